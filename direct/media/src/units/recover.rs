//! Repairs units that a loss of power, or the death of all users of a file, has left torn.

use super::Units;
use super::engine::read_all;
use super::layout::{MAX_SLOTS, SLOTS};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::fdatasync;
use rustix::io::{Errno, pwrite};

/// Slots, and the units that they have whole.
type CompleteShadows = Vec<(u64, u64)>;

impl Units {
    /// Writes in place what slots have whole, and clears them. Nobody else uses the file.
    pub(super) fn recover(&self, file: &OwnedFd) -> Result<(), Errno> {
        let unit = self.layout.unit as usize;
        let (slots, whole) = self.whole()?;
        for (slot, number) in whole.iter().filter(|(_, number)| self.has(*number)) {
            let content = &slots[(2 * *slot as usize + 1) * unit..][..unit];
            write_all(file, self.layout.from + number * self.layout.unit, content)?;
        }
        if !whole.is_empty() {
            // Before the slots are clear.
            fdatasync(file)?;
        }
        for (slot, _) in &whole {
            let at = self.layout.place(*slot..*slot).start;
            write_all(file, at, &vec![0; unit])?;
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

    /// All slots, and which of them are whole.
    fn whole(&self) -> Result<(Vec<u8>, CompleteShadows), Errno> {
        let length = 2 * self.layout.unit as usize;
        let mut slots = vec![0; self.layout.slots() as usize * length];
        read_all(&self.file, SLOTS, &mut slots)?;
        let each = (0..).zip(slots.chunks_exact(length));
        let whole = each.filter_map(|(slot, bytes)| Some((slot, self.layout.shadow(slot, bytes)?)));
        let whole = whole.collect();
        Ok((slots, whole))
    }
}

pub(super) fn write_all(file: impl AsFd, at: u64, from: &[u8]) -> Result<(), Errno> {
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
