//! What an open partition is to a queue pair.

use tarn_dsa::Cyclic;
use tarn_media::Direct;
use tarn_ring::{Failure, Span, Started, Storage, Ticket};

/// One partition, or several as one.
#[derive(Debug)]
pub(crate) enum Store {
    One(Direct),
    Many(Cyclic<Direct>),
}

impl Store {
    /// The first of its parts.
    pub(crate) fn first(&self) -> &Direct {
        match self {
            Self::One(direct) => direct,
            Self::Many(cyclic) => cyclic.first(),
        }
    }
}

/// Asks whichever it is.
macro_rules! ask {
    ($store:ident, $direct:ident => $answer:expr) => {
        match $store {
            Store::One($direct) => $answer,
            Store::Many($direct) => $answer,
        }
    };
}

impl Storage for Store {
    fn size(&mut self) -> u64 {
        ask!(self, it => it.size())
    }

    fn is_persistent(&self) -> bool {
        ask!(self, it => it.is_persistent())
    }

    #[inline(always)]
    fn read(&mut self, at: u64, to: Span, ticket: Ticket) -> Started {
        ask!(self, it => it.read(at, to, ticket))
    }

    #[inline(always)]
    fn write(&mut self, at: u64, from: Span, persistent: bool, ticket: Ticket) -> Started {
        ask!(self, it => it.write(at, from, persistent, ticket))
    }

    fn fetch_add(&mut self, at: u64, add: u64, ticket: Ticket) -> Started {
        ask!(self, it => it.fetch_add(at, add, ticket))
    }

    fn compare_swap(&mut self, at: u64, expected: u64, new: u64, ticket: Ticket) -> Started {
        ask!(self, it => it.compare_swap(at, expected, new, ticket))
    }

    fn flush(&mut self, ticket: Ticket) -> Started {
        ask!(self, it => it.flush(ticket))
    }

    #[inline(always)]
    fn settle(&mut self) -> Result<(), Failure> {
        ask!(self, it => it.settle())
    }

    fn reap(&mut self, ended: &mut dyn FnMut(Ticket, Result<u64, Failure>)) {
        ask!(self, it => it.reap(ended))
    }
}
