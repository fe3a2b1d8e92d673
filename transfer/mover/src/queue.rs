//! The threads of one operation and their remaining work.

use crate::error::{Result, cancelled};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tarn_ports::{Control, MoverError};
use tarn_types::account;

/// A mutex whose holders never panic half-way through a change: a poisoned one is as good as any.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct OperationQueueState<T, S> {
    /// Last in, first out: deep content of a tree is finished before wide content, so few folders are open.
    tasks: Vec<T>,
    /// Work that several threads can share: large files, open on the thread that found them. At most one a
    /// thread.
    shared: Vec<Arc<S>>,
    /// Threads that work, and may add more.
    busy: usize,
    failure: Option<MoverError>,
}

/// Something to do.
pub(crate) enum OperationWork<T, S> {
    /// A task of this thread's own.
    Task(T),
    /// A share in another thread's work.
    Share(Arc<S>),
    /// Nothing at the moment: the thread releases resources that others may need.
    Idle,
}

/// Tasks shared by the threads of an operation. The number of waiting tasks is bounded by the number of
/// folders of the tree, which `MAX_ENTRIES` bounds.
pub(crate) struct OperationQueue<T, S> {
    state: Mutex<OperationQueueState<T, S>>,
    changed: Condvar,
    failed: AtomicBool,
    /// Threads that have nothing to do.
    hungry: AtomicUsize,
}

impl<T, S> OperationQueue<T, S> {
    pub(crate) fn new(tasks: Vec<T>) -> Self {
        Self {
            state: Mutex::new(OperationQueueState {
                tasks,
                shared: Vec::new(),
                busy: 0,
                failure: None,
            }),
            changed: Condvar::new(),
            failed: AtomicBool::new(false),
            hungry: AtomicUsize::new(0),
        }
    }

    pub(crate) fn push(&self, task: T) {
        lock(&self.state).tasks.push(task);
        self.changed.notify_one();
    }

    /// Whether another thread waits for something to do: a hint to give some away.
    pub(crate) fn hungry(&self) -> bool {
        self.hungry.load(Ordering::Relaxed) > 0
    }

    /// Offers work to threads that would otherwise wait.
    pub(crate) fn share(&self, work: &Arc<S>) {
        lock(&self.state).shared.push(Arc::clone(work));
        self.changed.notify_all();
    }

    /// Takes an offer back: nothing of it is left to begin.
    pub(crate) fn exhausted(&self, work: &Arc<S>) {
        lock(&self.state).shared.retain(|w| !Arc::ptr_eq(w, work));
    }

    /// Whether to stop: another thread has failed, or somebody has cancelled.
    pub(crate) fn check(&self, control: &Control) -> Result<()> {
        if control.cancelled() || self.failed.load(Ordering::Relaxed) {
            return Err(cancelled());
        }
        Ok(())
    }

    /// Works until nothing is left. All threads of the operation run this.
    pub(crate) fn work(
        &self,
        control: &Control,
        mut perform: impl FnMut(OperationWork<T, S>) -> Result<()>,
    ) {
        let mut idle = false;
        while let Some(work) = self.next(idle) {
            idle = matches!(work, OperationWork::Idle);
            if idle {
                // It fails nothing, as nothing is done.
                let _ = perform(work);
                continue;
            }
            let outcome = self.check(control).and_then(|()| perform(work));
            self.finished(outcome);
        }
    }

    /// The next thing to do; while others may still add some, [`OperationWork::Idle`] at first, and then it waits. `None` when all is
    /// done or has failed.
    fn next(&self, idle: bool) -> Option<OperationWork<T, S>> {
        let mut state = lock(&self.state);
        loop {
            if state.failure.is_some() {
                return None;
            }
            let work = match state.tasks.pop() {
                Some(task) => Some(OperationWork::Task(task)),
                None => state
                    .shared
                    .last()
                    .map(|w| OperationWork::Share(Arc::clone(w))),
            };
            if work.is_some() {
                state.busy += 1;
                return work;
            }
            if state.busy == 0 {
                return None;
            }
            if !idle {
                return Some(OperationWork::Idle);
            }
            self.hungry.fetch_add(1, Ordering::Relaxed);
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            self.hungry.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn finished(&self, outcome: Result<()>) {
        let mut state = lock(&self.state);
        account::sub(&mut state.busy, 1, "threads at work");
        if let Err(failure) = outcome {
            self.failed.store(true, Ordering::Relaxed);
            state.failure.get_or_insert(failure);
        }
        if state.busy == 0 || state.failure.is_some() {
            self.changed.notify_all();
        }
    }

    /// The first error, once all threads have ended.
    pub(crate) fn outcome(self) -> Result<()> {
        let state = self
            .state
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        state.failure.map_or(Ok(()), Err)
    }
}
