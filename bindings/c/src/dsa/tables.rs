//! The tables of what C was given. A fork holds them locked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tarn_partitions::Partition;

/// The partitions and queue pairs that C has, by their addresses. A call has a share of its own: what is closed meanwhile is gone when that call has ended.
pub(super) static PARTITIONS: Mutex<BTreeMap<usize, Arc<Partition>>> = Mutex::new(BTreeMap::new());
pub(super) static QUEUES: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

pub(super) fn lock<T>(known: &Mutex<T>) -> MutexGuard<'_, T> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All tables, locked.
pub(crate) type DsaTableGuards = (
    MutexGuard<'static, BTreeMap<usize, Arc<Partition>>>,
    MutexGuard<'static, BTreeSet<usize>>,
);

pub(crate) fn hold() -> DsaTableGuards {
    (lock(&PARTITIONS), lock(&QUEUES))
}
