//! A storage whose requests end at once, later, in another order, or badly.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use tarn_ring::{MemorySpan, Storage, StorageRequestError, SubmitOutcome, Ticket};

/// The events of a storage, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Happened {
    Began(u64),
    Ended(u64, Result<u64, StorageRequestError>),
    Settled,
}

/// A storage of some bytes. A request at byte n is numbered n, and does as the plan says of n.
#[derive(Debug, Clone)]
pub(crate) struct EmulatedStorage(pub(crate) Rc<RefCell<Play>>);

#[derive(Debug)]
pub(crate) struct Play {
    pub(crate) bytes: Vec<u8>,
    pub(crate) persistent: bool,
    /// Those that end later.
    pub(crate) late: BTreeSet<u64>,
    pub(crate) failing: BTreeMap<u64, StorageRequestError>,
    /// The next settling fails.
    pub(crate) unsettled: Option<StorageRequestError>,
    pub(crate) pending: Vec<(Ticket, u64, u64)>,
    pub(crate) happened: Vec<Happened>,
}

impl EmulatedStorage {
    pub(crate) fn new(size: usize) -> Self {
        Self(Rc::new(RefCell::new(Play {
            bytes: vec![0; size],
            persistent: false,
            late: BTreeSet::new(),
            failing: BTreeMap::new(),
            unsettled: None,
            pending: Vec::new(),
            happened: Vec::new(),
        })))
    }

    fn begin(&self, at: u64, ticket: Ticket, value: u64) -> SubmitOutcome {
        let mut play = self.0.borrow_mut();
        play.happened.push(Happened::Began(at));
        if play.late.contains(&at) {
            play.pending.push((ticket, at, value));
            return SubmitOutcome::Pending;
        }
        let result = play.result(at, value);
        play.happened.push(Happened::Ended(at, result));
        SubmitOutcome::Done(result)
    }
}

impl Play {
    fn result(&self, at: u64, value: u64) -> Result<u64, StorageRequestError> {
        self.failing.get(&at).map_or(Ok(value), |why| Err(*why))
    }
}

impl Storage for EmulatedStorage {
    fn size(&mut self) -> u64 {
        self.0.borrow().bytes.len() as u64
    }

    fn is_persistent(&self) -> bool {
        self.0.borrow().persistent
    }

    fn read(&mut self, at: u64, to: MemorySpan, ticket: Ticket) -> SubmitOutcome {
        to.fill(&self.0.borrow().bytes[at as usize..]);
        self.begin(at, ticket, to.len() as u64)
    }

    fn write(&mut self, at: u64, from: MemorySpan, _: bool, ticket: Ticket) -> SubmitOutcome {
        from.copy_to(&mut self.0.borrow_mut().bytes[at as usize..]);
        self.begin(at, ticket, from.len() as u64)
    }

    fn fetch_add(&mut self, at: u64, add: u64, ticket: Ticket) -> SubmitOutcome {
        self.begin(at, ticket, add)
    }

    fn compare_swap(&mut self, at: u64, expected: u64, new: u64, ticket: Ticket) -> SubmitOutcome {
        self.begin(at, ticket, expected ^ new)
    }

    fn flush(&mut self, ticket: Ticket) -> SubmitOutcome {
        self.begin(0, ticket, 0)
    }

    fn settle(&mut self) -> Result<(), StorageRequestError> {
        let mut play = self.0.borrow_mut();
        play.happened.push(Happened::Settled);
        play.unsettled.take().map_or(Ok(()), Err)
    }

    /// One at a time, the last first.
    fn reap(&mut self, ended: &mut dyn FnMut(Ticket, Result<u64, StorageRequestError>)) {
        let mut play = self.0.borrow_mut();
        if let Some((ticket, at, value)) = play.pending.pop() {
            let result = play.result(at, value);
            play.happened.push(Happened::Ended(at, result));
            ended(ticket, result);
        }
    }
}
