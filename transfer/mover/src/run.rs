//! An operation is run: its trees are given out, and its threads work until nothing is left.

use crate::error::Result;
use crate::job::{Goal, TreeOperation, WorkerOutput};
use crate::queue::lock;
use crate::task::ScanTask;
use crate::tree::{SourceTree, TreeOrigin};
use crate::worker::Worker;
use std::sync::{Mutex, PoisonError};
use tarn_types::manifest::Entry;

impl TreeOperation<'_> {
    /// Runs to the end on all threads, this one among them.
    pub(crate) fn run(self) -> Result<(WorkerOutput, Goal)> {
        for (at, tree) in self.trees.iter().enumerate().rev() {
            let tree_at = at as u32;
            match &tree.origin {
                TreeOrigin::Folder(_) => {
                    let task = ScanTask::Folder(tree_at, tree.prefix.clone(), None);
                    self.queue.push(task);
                }
                TreeOrigin::Single { .. } => self.queue.push(ScanTask::Single(tree_at)),
                TreeOrigin::Peer(_) => self.queue.push(ScanTask::Peer(tree_at)),
            }
        }
        let all = Mutex::new(WorkerOutput::default());
        let work = || {
            let mut worker = Worker::new(&self);
            self.queue.work(self.control, |work| worker.perform(work));
            // Sorted here, on all threads, so that only runs are left to be merged.
            worker.output.found.sort_by(by_path);
            lock(&all).absorb(worker.output);
        };
        let from_store = |t: &SourceTree<'_>| matches!(t.origin, TreeOrigin::Peer(peer) if peer.streams().is_some());
        let stack = match self.trees.iter().any(from_store) {
            true => crate::objects::STACK,
            false => 256 << 10,
        };
        std::thread::scope(|scope| {
            for _ in 1..self.useful() {
                // If no more threads can be had, fewer do it.
                let _ = std::thread::Builder::new()
                    .stack_size(stack)
                    .spawn_scoped(scope, work);
            }
            work();
        });
        self.queue.outcome()?;
        let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok((all, self.goal))
    }
}

/// The order of manifests, tree by tree.
fn by_path(a: &(u32, Entry), b: &(u32, Entry)) -> std::cmp::Ordering {
    (a.0, &a.1.path).cmp(&(b.0, &b.1.path))
}
