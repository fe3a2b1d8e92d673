//! A user's queue: the tasks of the user's worker, and a thread that sees to it. It ends with the worker.

use super::worker::UserWorker;
use super::{WorkerPool, WorkerTask, lock};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Gid, Uid};

/// Orders of one user that wait to be written to the worker.
const MAX_WAITING: usize = 16_384;
/// A user whose worker did not answer, or did not begin, is given the next one after so long; twice as long each time.
const PAUSE: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(300);
/// How long a thread without a worker waits for more before it ends.
const IDLE: Duration = Duration::from_secs(5);

/// A message to a worker.
pub(super) enum WorkerQueueItem {
    /// It is to do this, in this group.
    Task(Gid, WorkerTask),
    /// Its work of this number is to be stopped.
    Stop(u64),
    /// Its user's keys are others now.
    Keys,
}

/// A user's queue.
pub(super) struct WorkerQueue {
    user: Uid,
    state: Mutex<WorkerQueueState>,
    added: Condvar,
}

#[derive(Default)]
struct WorkerQueueState {
    waiting: VecDeque<WorkerQueueItem>,
    has_thread: bool,
    worker: Option<Arc<UserWorker>>,
    /// Workers in a row that did not answer, and until when there is no next one.
    silent: u32,
    until: Option<(Instant, String)>,
}

/// Removes queues of which nothing is known that new ones would not know. Who has a queue in hand may be about to fill it:
/// queues are handed out under the lock of the map alone.
pub(super) fn forget_idle(queues: &mut BTreeMap<Uid, Arc<WorkerQueue>>) {
    queues.retain(|_, queue| Arc::strong_count(queue) > 1 || !queue.is_idle());
}

impl WorkerQueue {
    pub(super) fn new(user: Uid) -> Self {
        Self {
            user,
            state: Mutex::default(),
            added: Condvar::new(),
        }
    }

    /// Whether nothing is known of the user, but for how long earlier pauses were, that another queue would not know.
    fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        let pauses = state
            .until
            .as_ref()
            .is_some_and(|(until, _)| *until > Instant::now());
        !state.has_thread && state.worker.is_none() && !pauses
    }

    /// Puts it behind the items that wait already. A task that cannot wait comes back.
    pub(super) fn add(
        self: &Arc<Self>,
        item: WorkerQueueItem,
        pool: &Arc<WorkerPool>,
    ) -> Result<(), (WorkerTask, RequestError)> {
        let mut state = lock(&self.state);
        let is_full = state.waiting.len() >= MAX_WAITING;
        let refused = |item, why| match item {
            WorkerQueueItem::Task(_, task) => Err((task, why)),
            WorkerQueueItem::Stop(_) | WorkerQueueItem::Keys => Ok(()),
        };
        if is_full && matches!(item, WorkerQueueItem::Task(..)) {
            let text = format!("{MAX_WAITING} orders of user {} wait already", self.user);
            return refused(item, RequestError::new(Code::Busy, text));
        }
        if !state.has_thread {
            let (queue, pool) = (Arc::clone(self), Arc::clone(pool));
            let thread = std::thread::Builder::new().name("post".into());
            if let Err(e) = thread.spawn(move || queue.serve(&pool)) {
                let text = format!("no thread for the worker of user {}: {e}", self.user);
                return refused(item, RequestError::new(Code::Busy, text));
            }
            state.has_thread = true;
        }
        state.waiting.push_back(item);
        self.added.notify_all();
        Ok(())
    }

    /// Tells a worker that there is; one that begins later knows it.
    pub(super) fn notify_worker(self: &Arc<Self>, item: WorkerQueueItem, pool: &Arc<WorkerPool>) {
        let state = lock(&self.state);
        let is_served = state.has_thread || state.worker.is_some();
        drop(state);
        if is_served {
            let _ = self.add(item, pool);
        }
    }

    /// Stops the work of this number, or removes it while it waits.
    pub(super) fn stop(self: &Arc<Self>, number: u64, pool: &Arc<WorkerPool>) {
        let mut state = lock(&self.state);
        let is_it = |item: &WorkerQueueItem| matches!(item, WorkerQueueItem::Task(_, task) if task.number == number);
        if let Some(at) = state.waiting.iter().position(is_it) {
            let found = state.waiting.remove(at);
            drop(state);
            if let Some(WorkerQueueItem::Task(_, task)) = found {
                let why = RequestError::new(Code::Cancelled, "it was stopped before it began");
                task.refuse(self.user, &pool.audit, why);
            }
            return;
        }
        let has_it = state.worker.as_ref().is_some_and(|w| w.has(number));
        drop(state);
        if has_it {
            self.notify_worker(WorkerQueueItem::Stop(number), pool);
        }
    }

    /// Sends everything to the worker, which it starts, as long as there is something to send, or a worker.
    fn serve(self: &Arc<Self>, pool: &Arc<WorkerPool>) {
        while let Some(item) = self.next() {
            match item {
                WorkerQueueItem::Task(group, task) => match self.worker(group, pool) {
                    Ok(worker) => worker.give(task),
                    Err(why) => task.refuse(self.user, &pool.audit, why),
                },
                WorkerQueueItem::Stop(number) => {
                    if let Some(worker) = self.current() {
                        worker.stop(number);
                    }
                }
                WorkerQueueItem::Keys => {
                    let secrets = lock(&pool.secrets).clone();
                    if let (Some(worker), Some(secrets)) = (self.current(), secrets) {
                        worker.rekey(&secrets);
                    }
                }
            }
        }
    }

    /// The next item; `None` when the thread is to end.
    fn next(&self) -> Option<WorkerQueueItem> {
        let mut state = lock(&self.state);
        loop {
            if let Some(item) = state.waiting.pop_front() {
                return Some(item);
            }
            let waited = self.added.wait_timeout(state, IDLE);
            let (again, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            state = again;
            if waited.timed_out() && state.waiting.is_empty() && state.worker.is_none() {
                state.has_thread = false;
                return None;
            }
        }
    }

    fn current(&self) -> Option<Arc<UserWorker>> {
        lock(&self.state).worker.clone()
    }

    /// The user's worker, begun if there is none.
    fn worker(
        self: &Arc<Self>,
        group: Gid,
        pool: &Arc<WorkerPool>,
    ) -> Result<Arc<UserWorker>, RequestError> {
        {
            let state = lock(&self.state);
            if let Some(worker) = &state.worker {
                return Ok(Arc::clone(worker));
            }
            if let Some((until, why)) = &state.until
                && let left = until.saturating_duration_since(Instant::now())
                && !left.is_zero()
            {
                let text = format!(
                    "no worker of user {} is started for another {} s: {why}",
                    self.user,
                    left.as_secs() + 1
                );
                return Err(RequestError::new(Code::Busy, text));
            }
        }
        let (worker, listening) = pool.spawn_worker(self.user, group).inspect_err(|why| {
            self.failed(&why.text);
        })?;
        let worker = Arc::new(worker);
        lock(&self.state).worker = Some(Arc::clone(&worker));
        let (queue, theirs) = (Arc::clone(self), Arc::clone(&worker));
        let thread = std::thread::Builder::new().name("worker".into());
        let listen = move || {
            let silent = theirs.listen(listening);
            lock(&queue.state).worker = None;
            match silent {
                Some(why) => {
                    queue.failed(&why);
                    theirs.over(&why);
                }
                None => theirs.over("it died"),
            }
        };
        if let Err(e) = thread.spawn(listen) {
            // The worker that has begun ends, as its socket is closed.
            lock(&self.state).worker = None;
            let text = format!("no thread for the worker of user {}: {e}", self.user);
            return Err(RequestError::new(Code::Busy, text));
        }
        Ok(worker)
    }

    /// A worker did not answer, or did not begin: the next one may wait.
    fn failed(&self, why: &str) {
        let mut state = lock(&self.state);
        let pause = PAUSE.saturating_mul(1 << state.silent.min(16)).min(LONGEST);
        state.silent += 1;
        state.until = Some((Instant::now() + pause, why.to_owned()));
    }

    /// A worker has done something.
    pub(super) fn answered(&self) {
        let mut state = lock(&self.state);
        (state.silent, state.until) = (0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_whose_worker_pauses_is_remembered_until_the_pause_is_over() {
        let queue = WorkerQueue::new(1000);
        assert!(queue.is_idle());
        queue.failed("no answer");
        assert!(!queue.is_idle());
        let over = (Instant::now(), "no answer".to_owned());
        lock(&queue.state).until = Some(over);
        assert!(queue.is_idle());
    }

    #[test]
    fn a_queue_that_somebody_is_about_to_fill_is_not_forgotten() {
        let queues = [1000, 1001].map(|user| (user, Arc::new(WorkerQueue::new(user))));
        let mut queues: BTreeMap<_, _> = queues.into();
        let held = Arc::clone(&queues[&1000]);
        forget_idle(&mut queues);
        assert_eq!(queues.keys().collect::<Vec<_>>(), [&1000]);
        drop(held);
        forget_idle(&mut queues);
        assert!(queues.is_empty());
    }
}
