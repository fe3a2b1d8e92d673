//! What an open partition is to a queue pair.

use tarn_dsa::Cyclic;
use tarn_fabric::Far;
use tarn_media::Direct;
use tarn_ring::{Failure, Span, Started, Storage, Ticket};

/// A partition in the hands of a queue pair.
#[derive(Debug)]
pub(crate) enum Hands {
    /// Mapped here.
    Here(Direct),
    /// By a stream to its node.
    There(Box<Far>),
}

/// One partition, or several as one.
#[derive(Debug)]
pub(crate) enum Store {
    One(Hands),
    Many(Cyclic<Hands>),
}

/// A storage that is one of two.
macro_rules! either {
    ($whole:ident, $one:ident, $other:ident) => {
        impl Storage for $whole {
            fn size(&mut self) -> u64 {
                either!(self, $whole, $one, $other, it => it.size())
            }

            fn is_persistent(&self) -> bool {
                either!(self, $whole, $one, $other, it => it.is_persistent())
            }

            #[inline(always)]
            fn read(&mut self, at: u64, to: Span, ticket: Ticket) -> Started {
                either!(self, $whole, $one, $other, it => it.read(at, to, ticket))
            }

            #[inline(always)]
            fn write(&mut self, at: u64, from: Span, persistent: bool, ticket: Ticket) -> Started {
                either!(self, $whole, $one, $other, it => it.write(at, from, persistent, ticket))
            }

            fn fetch_add(&mut self, at: u64, add: u64, ticket: Ticket) -> Started {
                either!(self, $whole, $one, $other, it => it.fetch_add(at, add, ticket))
            }

            fn compare_swap(&mut self, at: u64, expected: u64, new: u64, ticket: Ticket) -> Started {
                either!(self, $whole, $one, $other, it => it.compare_swap(at, expected, new, ticket))
            }

            fn flush(&mut self, ticket: Ticket) -> Started {
                either!(self, $whole, $one, $other, it => it.flush(ticket))
            }

            #[inline(always)]
            fn settle(&mut self) -> Result<(), Failure> {
                either!(self, $whole, $one, $other, it => it.settle())
            }

            fn reap(&mut self, ended: &mut dyn FnMut(Ticket, Result<u64, Failure>)) {
                either!(self, $whole, $one, $other, it => it.reap(ended))
            }
        }
    };
    ($self:ident, $whole:ident, $one:ident, $other:ident, $it:ident => $answer:expr) => {
        match $self {
            $whole::$one($it) => $answer,
            $whole::$other($it) => $answer,
        }
    };
}

either!(Hands, Here, There);
either!(Store, One, Many);
