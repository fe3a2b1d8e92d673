//! The storage that an open partition is to a queue pair.

use std::os::fd::BorrowedFd;
use tarn_data_plane::RemoteStorage;
use tarn_media::{Direct, UnitStorage};
use tarn_queue::Cyclic;
use tarn_ring::{MemorySpan, Storage, StorageRequestError, SubmitOutcome, Ticket};

/// A partition in the hands of a queue pair.
#[derive(Debug)]
pub(crate) enum PartStorage {
    /// Mapped.
    Mapped(Direct),
    /// In units.
    Units(Box<UnitStorage>),
    /// By a stream to its node.
    Remote(Box<RemoteStorage>),
}

/// One partition, or several as one.
#[derive(Debug)]
pub(crate) enum PartitionStorage {
    One(PartStorage),
    Many(Cyclic<PartStorage>),
}

impl PartitionStorage {
    /// Whether it is nothing but mapped memory.
    pub(crate) fn is_mapped(&self) -> bool {
        let is_mapped = |hands: &PartStorage| matches!(hands, PartStorage::Mapped(_));
        match self {
            Self::One(hands) => is_mapped(hands),
            Self::Many(all) => all.parts().iter().all(is_mapped),
        }
    }
}

/// A storage that is one of several.
macro_rules! any {
    ($whole:ident: $($one:ident),+) => {
        impl Storage for $whole {
            fn size(&mut self) -> u64 {
                match self { $(Self::$one(it) => it.size()),+ }
            }

            fn is_persistent(&self) -> bool {
                match self { $(Self::$one(it) => it.is_persistent()),+ }
            }

            #[inline(always)]
            fn read(&mut self, at: u64, to: MemorySpan, ticket: Ticket) -> SubmitOutcome {
                match self { $(Self::$one(it) => it.read(at, to, ticket)),+ }
            }

            #[inline(always)]
            fn write(&mut self, at: u64, from: MemorySpan, persistent: bool, ticket: Ticket) -> SubmitOutcome {
                match self { $(Self::$one(it) => it.write(at, from, persistent, ticket)),+ }
            }

            fn fetch_add(&mut self, at: u64, add: u64, ticket: Ticket) -> SubmitOutcome {
                match self { $(Self::$one(it) => it.fetch_add(at, add, ticket)),+ }
            }

            fn compare_swap(&mut self, at: u64, old: u64, new: u64, ticket: Ticket) -> SubmitOutcome {
                match self { $(Self::$one(it) => it.compare_swap(at, old, new, ticket)),+ }
            }

            fn flush(&mut self, ticket: Ticket) -> SubmitOutcome {
                match self { $(Self::$one(it) => it.flush(ticket)),+ }
            }

            #[inline(always)]
            fn settle(&mut self) -> Result<(), StorageRequestError> {
                match self { $(Self::$one(it) => it.settle()),+ }
            }

            fn reap(&mut self, ended: &mut dyn FnMut(Ticket, Result<u64, StorageRequestError>)) {
                match self { $(Self::$one(it) => it.reap(ended)),+ }
            }

            fn notify(&mut self, event: BorrowedFd<'_>, poll: BorrowedFd<'_>) -> bool {
                match self { $(Self::$one(it) => it.notify(event, poll)),+ }
            }
        }
    };
}

any!(PartStorage: Mapped, Units, Remote);
any!(PartitionStorage: One, Many);
