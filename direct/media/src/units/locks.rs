//! The locks of slots: two users of one open file exclude each other too.

use super::layout::UnitLayout;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::ops::Range;
use tarn_sys::lock::{RangeLockMode, hold};

#[derive(Debug, Clone, Default)]
struct UnitLock {
    shared: u32,
    exclusive: bool,
    /// Of this file's users, that would have it alone: nobody shares it meanwhile.
    wanting: u32,
}

/// The locks of slots that an open file has.
#[derive(Debug)]
pub(super) struct Locks {
    layout: UnitLayout,
    slots: Vec<UnitLock>,
    /// How many locks were taken and not given back.
    held: u32,
}

impl Locks {
    pub(super) fn new(layout: UnitLayout) -> Self {
        Self {
            layout,
            slots: vec![UnitLock::default(); layout.slots() as usize],
            held: 0,
        }
    }

    /// Whether there are any.
    pub(super) fn are_held(&self) -> bool {
        self.held > 0
    }

    fn of(&mut self, slots: &Range<u64>) -> &mut [UnitLock] {
        &mut self.slots[slots.start as usize..slots.end as usize]
    }

    /// Locks the slots of some units with others; false where somebody has one alone.
    pub(super) fn share(&mut self, file: impl AsFd, units: &Range<u64>) -> Result<bool, Errno> {
        let ranges = self.layout.slots_of(units.clone());
        let is_kept = |slot: &UnitLock| slot.exclusive || slot.wanting > 0;
        if ranges
            .iter()
            .any(|slots| self.of(slots).iter().any(is_kept))
        {
            return Ok(false);
        }
        for (number, slots) in ranges.iter().enumerate() {
            if self.of(slots).iter().all(|slot| slot.shared > 0) {
                continue;
            }
            let bytes = self.layout.locks(slots.clone());
            let locked = hold(&file, &bytes, RangeLockMode::Shared);
            if !matches!(locked, Ok(true)) {
                for before in &ranges[..number] {
                    self.unlock(&file, before)?;
                }
                return locked;
            }
        }
        for slots in &ranges {
            self.of(slots).iter_mut().for_each(|slot| slot.shared += 1);
        }
        self.held += 1;
        Ok(true)
    }

    /// Gives back what was shared.
    pub(super) fn unshare(&mut self, file: impl AsFd, units: &Range<u64>) -> Result<(), Errno> {
        self.release();
        let ranges = self.layout.slots_of(units.clone());
        for slots in &ranges {
            for slot in self.of(slots) {
                assert!(slot.shared > 0, "a slot is given back that was not shared");
                slot.shared -= 1;
            }
        }
        ranges
            .iter()
            .try_for_each(|slots| self.unlock(&file, slots))
    }

    /// Unlocks those of some slots that are not used any more.
    fn unlock(&self, file: impl AsFd, slots: &Range<u64>) -> Result<(), Errno> {
        let is_used = |slot: u64| self.slots[slot as usize].shared > 0;
        let mut at = slots.start;
        while at < slots.end {
            let run = (at..slots.end).take_while(|slot| !is_used(*slot)).count() as u64;
            if run > 0 {
                hold(
                    &file,
                    &self.layout.locks(at..at + run),
                    RangeLockMode::Nothing,
                )?;
            }
            at += run + 1;
        }
        Ok(())
    }

    /// Locks a slot alone; false where somebody has it.
    pub(super) fn take(&mut self, file: impl AsFd, slot: u64) -> Result<bool, Errno> {
        let own = &mut self.slots[slot as usize];
        if own.shared > 0 || own.exclusive {
            return Ok(false);
        }
        own.exclusive = hold(
            file,
            &self.layout.locks(slot..slot + 1),
            RangeLockMode::Alone,
        )?;
        self.held += u32::from(own.exclusive);
        Ok(own.exclusive)
    }

    /// Gives back what was locked alone.
    pub(super) fn give_back(&mut self, file: impl AsFd, slot: u64) -> Result<(), Errno> {
        self.release();
        let own = &mut self.slots[slot as usize];
        assert!(
            own.exclusive,
            "slot {slot} is given back that was not locked alone"
        );
        own.exclusive = false;
        hold(
            file,
            &self.layout.locks(slot..slot + 1),
            RangeLockMode::Nothing,
        )
        .map(drop)
    }

    /// Somebody would have a slot alone, or not any more.
    pub(super) fn want(&mut self, slot: u64, wanted: bool) {
        let wanting = &mut self.slots[slot as usize].wanting;
        if wanted {
            *wanting += 1;
        } else {
            assert!(*wanting > 0, "nobody waits for slot {slot}");
            *wanting -= 1;
        }
    }

    /// One lock less is held.
    fn release(&mut self) {
        assert!(self.held > 0, "more locks are given back than were taken");
        let is_locked = |slot: &UnitLock| slot.shared > 0 || slot.exclusive;
        debug_assert!(
            self.slots.iter().any(is_locked),
            "{} locks are held, and no slot is locked",
            self.held
        );
        self.held -= 1;
    }
}
