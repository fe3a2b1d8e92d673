//! The places in a file that belong to units. docs/reference/formats.md, "Partitions".

use std::ops::Range;
use tarn_types::block::{self, BlockKind, Fields};
use tarn_types::crc::crc;

/// The offset of the marks: one page.
pub(super) const MARKS: u64 = 32 << 10;
/// Bytes of it.
pub(super) const PAGE: u64 = 4096;
/// The byte that is locked while somebody begins to use the file.
pub(super) const GATE: Range<u64> = MARKS..MARKS + 1;
/// The byte that all who use it have locked.
pub(super) const USERS: Range<u64> = MARKS + 1..MARKS + 2;
/// The offset of the bytes that are the locks of slots, one each: behind the marks.
const LOCKS: u64 = MARKS + PAGE;
/// The offset of the slots, and the number of bytes for them.
pub(super) const SLOTS: u64 = 1 << 20;
/// Slots, at most.
pub(super) const MAX_SLOTS: u64 = 1024;

/// The units of a file and their slots.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnitLayout {
    /// Bytes of a unit.
    pub(super) unit: u64,
    /// The offset of the first.
    pub(super) from: u64,
    /// Of the file.
    pub(super) identity: u128,
}

impl UnitLayout {
    /// How many slots there are.
    pub(super) fn slots(self) -> u64 {
        (SLOTS / (2 * self.unit)).min(MAX_SLOTS)
    }

    /// The slot of a unit.
    pub(super) fn slot(self, unit: u64) -> u64 {
        unit % self.slots()
    }

    /// The slots of units that follow each other: one range, or two.
    pub(super) fn slots_of(self, units: Range<u64>) -> [Range<u64>; 2] {
        let slots = self.slots();
        if units.end - units.start >= slots {
            return [0..slots, 0..0];
        }
        let (first, end) = (units.start % slots, units.end % slots);
        match first < end || units.is_empty() {
            true => [first..end.max(first), 0..0],
            false => [first..slots, 0..end],
        }
    }

    /// The range of slots in the file.
    pub(super) fn place(self, slots: Range<u64>) -> Range<u64> {
        let at = |slot| SLOTS + slot * 2 * self.unit;
        at(slots.start)..at(slots.end)
    }

    /// The bytes that are the locks of slots.
    pub(super) fn locks(self, slots: Range<u64>) -> Range<u64> {
        LOCKS + slots.start..LOCKS + slots.end
    }

    /// The bytes that are the locks of all slots.
    pub(super) fn all_locks(self) -> Range<u64> {
        self.locks(0..self.slots())
    }

    /// Fills the first half of a slot, which names the unit whose content the other half is.
    pub(super) fn frame(self, unit: u64, slot: &mut [u8]) {
        let (frame, content) = slot.split_at_mut(self.unit as usize);
        let mut payload = unit.to_le_bytes().to_vec();
        payload.extend(crc(content).to_le_bytes());
        let at = self.place(self.slot(unit)..self.slot(unit)).start;
        let whole = block::seal(BlockKind::Shadow, self.identity, at, &payload, frame.len());
        frame.copy_from_slice(&whole);
    }

    /// The unit whose content a slot has; none where it is clear, or not whole.
    pub(super) fn shadow(self, slot: u64, bytes: &[u8]) -> Option<u64> {
        let (frame, content) = bytes.split_at_checked(self.unit as usize)?;
        let at = self.place(slot..slot).start;
        let (identity, payload) = block::unseal(BlockKind::Shadow, at, frame)?;
        let mut fields = Fields(payload);
        let (unit, sum) = (fields.u64()?, fields.u64()?);
        let is_whole = identity == self.identity && self.slot(unit) == slot && crc(content) == sum;
        is_whole.then_some(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(unit: u64) -> UnitLayout {
        UnitLayout {
            unit,
            from: 2 << 20,
            identity: 7,
        }
    }

    #[test]
    fn slots_lie_between_the_marks_and_the_data() {
        for (unit, slots) in [(512, 1024), (4096, 128), (8192, 64), (16384, 32)] {
            let layout = layout(unit);
            assert_eq!(layout.slots(), slots);
            assert!(slots <= PAGE);
            let all = layout.place(0..slots);
            assert!(all.start >= MARKS + PAGE && all.end <= layout.from);
            assert!(all.start.is_multiple_of(unit));
        }
    }

    proptest::proptest! {
        #[test]
        fn units_have_the_slots_that_each_of_them_has(start in 0..1000_u64, count in 1..200_u64) {
            let layout = layout(4096);
            let ranges = layout.slots_of(start..start + count);
            let mut found: Vec<u64> = ranges.into_iter().flatten().collect();
            found.sort_unstable();
            let mut each: Vec<u64> = (start..start + count).map(|unit| layout.slot(unit)).collect();
            each.sort_unstable();
            each.dedup();
            assert_eq!(found, each);
        }

        #[test]
        fn a_slot_that_is_torn_is_clear(bit in 0..2 * 4096 * 8_usize) {
            let layout = layout(4096);
            let mut slot = vec![9; 8192];
            layout.frame(1000, &mut slot);
            let there = layout.slot(1000);
            assert_eq!(layout.shadow(there, &slot), Some(1000));
            assert_eq!(layout.shadow(there + 1, &slot), None);
            let other = UnitLayout { identity: 8, ..layout };
            assert_eq!(other.shadow(there, &slot), None);
            slot[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(layout.shadow(there, &slot), None);
        }
    }
}
