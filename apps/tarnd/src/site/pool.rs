//! The workers: one a user, begun when there is something to do. They end by themselves when they are idle.
//!
//! The sender of an order waits for no worker: each user has a queue ([`worker_queue`]), with a thread that starts the user's worker,
//! writes to it and gives it up when it does not answer. So a worker that its user stops or locks out holds up that user alone.

mod spawn;
mod worker;
mod worker_queue;

use super::audit::Audit;
use super::keys::Secrets;
use super::stores::NodeStores;
use super::talk::WorkerConfig;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Gid, Report, Uid, Work, WorkResult};
use tarn_types::line::plain;
use worker_queue::{WorkerQueue, WorkerQueueItem};

/// Users that have a worker, or wait for one, at a time.
const MAX_WORKERS: usize = 4096;

/// The workers of this node.
pub(super) struct WorkerPool {
    pub(super) stores: Arc<NodeStores>,
    /// The current folder of workers: jobs' memory is reached from there.
    pub(super) memory: PathBuf,
    /// Locks by which at most one worker of each user runs; root's.
    pub(super) locks: PathBuf,
    pub(super) node: String,
    pub(super) min_uid: Uid,
    pub(super) worker_config: WorkerConfig,
    pub(super) audit: Arc<Audit>,
    pub(super) queues: WorkerQueues,
    /// Of the session that began last.
    pub(super) secrets: Mutex<Option<Secrets>>,
}

/// The queues of users.
#[derive(Default)]
pub(super) struct WorkerQueues(Mutex<BTreeMap<Uid, Arc<WorkerQueue>>>);

/// A task of a user's worker, and the receiver of its result.
pub(super) struct WorkerTask {
    pub(super) number: u64,
    pub(super) order: WorkerOrder,
    /// As the audit log has it; none for tarnd's own tasks.
    pub(super) about: Option<String>,
    pub(super) reports: Sender<Report>,
}

/// The request to a worker.
pub(super) enum WorkerOrder {
    Work(Box<Work>),
    /// Its port.
    Port,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WorkerTask {
    /// It came to nothing.
    fn refuse(self, user: Uid, audit: &Audit, why: RequestError) {
        self.ended(user, audit, WorkResult::Failed(why));
    }

    fn ended(self, user: Uid, audit: &Audit, mut what: WorkResult) {
        // A worker's user may have worded it: it is shown in lines of others.
        if let WorkResult::Failed(why) = &mut what {
            why.text = plain(&why.text).into_owned();
        }
        match (&self.about, &what) {
            (None, _) => {}
            (Some(about), WorkResult::Failed(why)) => audit.refused(Some(user), about, &why.text),
            (Some(about), _) => audit.done(user, about),
        }
        let number = self.number;
        let _ = self.reports.send(Report::Worked { number, what });
    }
}

impl WorkerPool {
    /// The users that have something in some store.
    pub(super) fn users(&self) -> BTreeSet<Uid> {
        let entries = self.stores.roots().map(std::fs::read_dir);
        let names = entries.flatten().flatten().flatten();
        let numbers = names.filter_map(|e| {
            let name = e.file_name();
            let number = name.to_str()?.strip_prefix('u')?.parse().ok()?;
            (number >= self.min_uid).then_some(number)
        });
        numbers.collect()
    }

    /// Gives a task to a user's worker. Nothing is waited for: its result is reported.
    pub(super) fn give(self: &Arc<Self>, user: Uid, group: Gid, task: WorkerTask) {
        let queue = match self.queue(user) {
            Ok(queue) => queue,
            Err(why) => return task.refuse(user, &self.audit, why),
        };
        if let Err((task, why)) = queue.add(WorkerQueueItem::Task(group, task), self) {
            task.refuse(user, &self.audit, why);
        }
    }

    fn queue(&self, user: Uid) -> Result<Arc<WorkerQueue>, RequestError> {
        if user < self.min_uid {
            let text = format!(
                "user {user} cannot have data here: users below {} cannot (`--min-uid`)",
                self.min_uid
            );
            return Err(RequestError::new(Code::Denied, text));
        }
        let mut queues = lock(&self.queues.0);
        if queues.len() >= MAX_WORKERS && !queues.contains_key(&user) {
            worker_queue::forget_idle(&mut queues);
        }
        if queues.len() >= MAX_WORKERS && !queues.contains_key(&user) {
            let text = format!("{MAX_WORKERS} users have something done here at a time");
            return Err(RequestError::new(Code::Busy, text));
        }
        let queue = queues
            .entry(user)
            .or_insert_with(|| Arc::new(WorkerQueue::new(user)));
        Ok(Arc::clone(queue))
    }

    fn all(&self) -> Vec<Arc<WorkerQueue>> {
        lock(&self.queues.0).values().cloned().collect()
    }

    /// Stops it, in any worker.
    pub(super) fn stop(self: &Arc<Self>, number: u64) {
        for queue in self.all() {
            queue.stop(number, self);
        }
    }

    /// Workers have the keys of these secrets from now on.
    pub(super) fn rekey(self: &Arc<Self>, secrets: &Secrets) {
        *lock(&self.secrets) = Some(secrets.clone());
        // Workers that begin now get these; running ones are notified.
        for queue in self.all() {
            queue.notify_worker(WorkerQueueItem::Keys, self);
        }
    }
}
