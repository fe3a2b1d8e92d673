//! The memory that requests may name.

use tarn_ring::{MemorySpan, ProgramMemory};

/// Regions of a queue pair, at most.
pub const MAX_REGIONS: usize = 4096;
/// Partitions that a queue pair has regions of, at most.
pub const MAX_STORAGES: usize = 64;

/// A region as requests name it; 0 is none. One that was given back is not named by the same number again soon.
pub type QueueRegionId = u32;

/// Why a region could not be made or given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRegion {
    /// There is no such region, or it would not be within the partition.
    Invalid,
    /// There are as many as there may be.
    Full,
    /// Requests under way name it.
    Busy,
}

/// A range of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    /// Which partition of the queue pair.
    pub(crate) storage: u32,
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) writable: bool,
}

#[derive(Debug)]
enum RegionTarget {
    Memory(ProgramMemory),
    Storage(Range),
}

#[derive(Debug)]
struct RegionSlot {
    /// Which of those that were here one after the other; never 0.
    turn: u16,
    region: Option<RegionTarget>,
}

/// The regions of a queue pair.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    slots: Vec<RegionSlot>,
}

impl Regions {
    pub(crate) fn add_memory(&mut self, memory: ProgramMemory) -> Result<QueueRegionId, NoRegion> {
        self.add(RegionTarget::Memory(memory))
    }

    pub(crate) fn add_storage(&mut self, range: Range) -> Result<QueueRegionId, NoRegion> {
        self.add(RegionTarget::Storage(range))
    }

    fn add(&mut self, region: RegionTarget) -> Result<QueueRegionId, NoRegion> {
        let free = self.slots.iter().position(|slot| slot.region.is_none());
        let index = free.unwrap_or(self.slots.len());
        if index == self.slots.len() {
            if index == MAX_REGIONS {
                return Err(NoRegion::Full);
            }
            let (turn, region) = (0, None);
            self.slots.push(RegionSlot { turn, region });
        }
        let slot = &mut self.slots[index];
        slot.turn = slot.turn.checked_add(1).unwrap_or(1);
        slot.region = Some(region);
        Ok(u32::from(slot.turn) << 16 | index as u32)
    }

    /// Takes a region away; the partition that it was of.
    pub(crate) fn remove(&mut self, id: QueueRegionId) -> Result<Option<u32>, NoRegion> {
        let slot = self.slots.get_mut(id as u16 as usize);
        let slot = slot.filter(|slot| u32::from(slot.turn) == id >> 16);
        match slot.and_then(|slot| slot.region.take()) {
            Some(RegionTarget::Storage(range)) => Ok(Some(range.storage)),
            Some(RegionTarget::Memory(_)) => Ok(None),
            None => Err(NoRegion::Invalid),
        }
    }

    /// Whether a partition has regions.
    pub(crate) fn uses(&self, storage: u32) -> bool {
        let of_it = |slot: &RegionSlot| matches!(&slot.region, Some(RegionTarget::Storage(range)) if range.storage == storage);
        self.slots.iter().any(of_it)
    }

    #[inline]
    fn get(&self, id: QueueRegionId) -> Option<&RegionTarget> {
        let slot = self.slots.get(id as u16 as usize)?;
        if u32::from(slot.turn) != id >> 16 {
            return None;
        }
        slot.region.as_ref()
    }

    /// Bytes of the program's memory; `fill`: they will be written.
    #[inline]
    pub(crate) fn memory(
        &self,
        id: QueueRegionId,
        address: u64,
        length: u64,
        fill: bool,
    ) -> Option<MemorySpan> {
        match self.get(id)? {
            RegionTarget::Memory(memory) if memory.is_writable() || !fill => {
                memory.span(address, length)
            }
            _ => None,
        }
    }

    /// Bytes of a partition: which, and where they begin in it.
    #[inline]
    pub(crate) fn storage(
        &self,
        id: QueueRegionId,
        offset: u64,
        length: u64,
        write: bool,
    ) -> Option<(usize, u64)> {
        match self.get(id)? {
            RegionTarget::Storage(range)
                if (range.writable || !write)
                    && length <= range.length
                    && offset <= range.length - length =>
            {
                Some((range.storage as usize, range.start + offset))
            }
            _ => None,
        }
    }
}
