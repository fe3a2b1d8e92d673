//! What a loss of power, or the death of all who used a file, has left torn.

use super::engine::read_all;
use super::layout::{MAX_SLOTS, SLOTS};
use super::{Units, pool, reopened};
use crate::map::Pages;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::fdatasync;
use rustix::io::{Errno, pwrite};

impl Units {
    /// Writes in place what slots have whole, and clears them. Nobody else uses the file.
    pub(super) fn recover(&self, file: &OwnedFd) -> Result<(), Errno> {
        let file = reopened(file, true, self.direct)?;
        let (mut slots, whole) = self.whole()?;
        let unit = self.layout.unit as usize;
        for (slot, number) in &whole {
            let content = &bytes(&mut slots)[(2 * *slot as usize + 1) * unit..][..unit];
            let is_there = self.has(*number);
            if is_there {
                write_all(&file, self.layout.from + number * self.layout.unit, content)?;
            }
        }
        if !whole.is_empty() {
            // Before the slots are clear.
            fdatasync(&file)?;
        }
        bytes(&mut slots).fill(0);
        for (slot, _) in &whole {
            let at = self.layout.place(*slot..*slot).start;
            write_all(&file, at, &bytes(&mut slots)[..unit])?;
        }
        if self.using.writable {
            (0..MAX_SLOTS).for_each(|slot| self.marks.set(slot, false));
        }
        Ok(())
    }

    /// How many slots are whole.
    pub(super) fn shadows(&self) -> Result<usize, Errno> {
        self.whole().map(|(_, whole)| whole.len())
    }

    /// All slots, and which of them are whole, with their units.
    fn whole(&self) -> Result<(Pages, Vec<(u64, u64)>), Errno> {
        let file = reopened(&self.file, false, self.direct)?;
        let mut slots = pool(SLOTS as usize)?;
        let unit = self.layout.unit as usize;
        let length = self.layout.slots() as usize * 2 * unit;
        read_all(file, SLOTS, &mut bytes(&mut slots)[..length])?;
        let each = (0..).zip(bytes(&mut slots)[..length].chunks_exact(2 * unit));
        let whole = each.filter_map(|(slot, bytes)| Some((slot, self.layout.shadow(slot, bytes)?)));
        let whole = whole.collect();
        Ok((slots, whole))
    }
}

fn bytes(pages: &mut Pages) -> &mut [u8] {
    // SAFETY: this range, to be written, and nobody else has it.
    unsafe { std::slice::from_raw_parts_mut(pages.start.as_ptr(), pages.len) }
}

fn write_all(file: impl AsFd, at: u64, from: &[u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < from.len() {
        match pwrite(&file, &from[done..], at + done as u64) {
            Ok(more) => done += more,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
