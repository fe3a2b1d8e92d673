//! What an open partition is to a queue pair.

use std::os::fd::BorrowedFd;
use tarn_dsa::Cyclic;
use tarn_media::{Direct, Queued};
use tarn_ring::{Failure, Span, Started, Storage, Ticket};

/// A partition in the hands of one queue pair.
#[derive(Debug)]
pub(crate) enum Hands {
    Mapped(Direct),
    Units(Queued),
}

/// One partition, or several as one.
#[derive(Debug)]
pub(crate) enum Store {
    One(Hands),
    Many(Cyclic<Hands>),
}

impl Store {
    /// The first of its parts.
    pub(crate) fn first(&self) -> &Hands {
        match self {
            Self::One(hands) => hands,
            Self::Many(cyclic) => cyclic.first(),
        }
    }
}

/// Asks whichever of two it is.
macro_rules! either {
    ($which:ident, $one:path, $other:path) => {
        impl Storage for $which {
            fn size(&mut self) -> u64 {
                match self {
                    $one(it) => it.size(),
                    $other(it) => it.size(),
                }
            }

            fn is_persistent(&self) -> bool {
                match self {
                    $one(it) => it.is_persistent(),
                    $other(it) => it.is_persistent(),
                }
            }

            #[inline(always)]
            fn read(&mut self, at: u64, to: Span, ticket: Ticket) -> Started {
                match self {
                    $one(it) => it.read(at, to, ticket),
                    $other(it) => it.read(at, to, ticket),
                }
            }

            #[inline(always)]
            fn write(&mut self, at: u64, from: Span, persistent: bool, ticket: Ticket) -> Started {
                match self {
                    $one(it) => it.write(at, from, persistent, ticket),
                    $other(it) => it.write(at, from, persistent, ticket),
                }
            }

            fn fetch_add(&mut self, at: u64, add: u64, ticket: Ticket) -> Started {
                match self {
                    $one(it) => it.fetch_add(at, add, ticket),
                    $other(it) => it.fetch_add(at, add, ticket),
                }
            }

            fn compare_swap(
                &mut self,
                at: u64,
                expected: u64,
                new: u64,
                ticket: Ticket,
            ) -> Started {
                match self {
                    $one(it) => it.compare_swap(at, expected, new, ticket),
                    $other(it) => it.compare_swap(at, expected, new, ticket),
                }
            }

            fn flush(&mut self, ticket: Ticket) -> Started {
                match self {
                    $one(it) => it.flush(ticket),
                    $other(it) => it.flush(ticket),
                }
            }

            #[inline(always)]
            fn settle(&mut self) -> Result<(), Failure> {
                match self {
                    $one(it) => it.settle(),
                    $other(it) => it.settle(),
                }
            }

            fn reap(&mut self, ended: &mut dyn FnMut(Ticket, Result<u64, Failure>)) {
                match self {
                    $one(it) => it.reap(ended),
                    $other(it) => it.reap(ended),
                }
            }

            fn notify(&mut self, event: BorrowedFd<'_>) -> bool {
                match self {
                    $one(it) => it.notify(event),
                    $other(it) => it.notify(event),
                }
            }
        }
    };
}

either!(Hands, Hands::Mapped, Hands::Units);
either!(Store, Store::One, Store::Many);
