//! Waiting jobs in the order of the policy, in blocks that know the least that any of their jobs asks for: finding the
//! next one that could begin now skips whole blocks.

use tarn_types::site::JobId;
use tarn_types::units::Nanos;

/// Place in the queue: lower goes first. The second half is a rank within the first.
pub(crate) type JobQueueKey = (u64, u64);

/// Jobs in a block; a full block is divided. Chosen so that scanning one costs about as much as skipping 10,000 jobs.
const BLOCK: usize = 256;

/// A waiting job: the properties that decide whether it could begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueuedJob {
    pub(crate) key: JobQueueKey,
    pub(crate) job: JobId,
    /// Nodes.
    pub(crate) nodes: u32,
    /// Cores on each node; 0 for whole nodes.
    pub(crate) cores: u32,
    /// How long it may keep them.
    pub(crate) limit: Nanos,
}

impl QueuedJob {
    fn place(&self) -> (JobQueueKey, JobId) {
        (self.key, self.job)
    }
}

/// The jobs that could begin: those that ask for no more than this.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fit {
    /// Idle nodes (for whole-node jobs).
    pub(crate) nodes: u32,
    /// Free cores of the node that has most (for the others).
    pub(crate) cores: u32,
    /// Beside that: at most this long, or on no more than `extra` nodes.
    pub(crate) limit: Nanos,
    pub(crate) extra: u32,
}

impl Fit {
    /// Any job that has space, for however long.
    pub(crate) fn without_time_limit(nodes: u32, cores: u32) -> Self {
        Self {
            nodes,
            cores,
            limit: Nanos::MAX,
            extra: u32::MAX,
        }
    }

    /// Whether it could begin.
    pub(crate) fn takes(&self, w: &QueuedJob) -> bool {
        let space = match w.cores {
            0 => w.nodes <= self.nodes,
            cores => cores <= self.cores,
        };
        space && (w.limit <= self.limit || w.nodes <= self.extra)
    }
}

#[derive(Debug, Clone)]
struct JobQueueBlock {
    jobs: Vec<QueuedJob>,
    /// The least of its whole-node jobs; `u32::MAX` without any.
    nodes: u32,
    /// The least of the others; `u32::MAX` without any.
    cores: u32,
    limit: Nanos,
    least: u32,
}

impl JobQueueBlock {
    fn new(jobs: Vec<QueuedJob>) -> Self {
        let mut block = Self {
            jobs,
            nodes: u32::MAX,
            cores: u32::MAX,
            limit: Nanos::MAX,
            least: u32::MAX,
        };
        block.sum_up();
        block
    }

    fn note(&mut self, w: &QueuedJob) {
        match w.cores {
            0 => self.nodes = self.nodes.min(w.nodes),
            cores => self.cores = self.cores.min(cores),
        }
        self.limit = self.limit.min(w.limit);
        self.least = self.least.min(w.nodes);
    }

    fn sum_up(&mut self) {
        (self.nodes, self.cores) = (u32::MAX, u32::MAX);
        (self.limit, self.least) = (Nanos::MAX, u32::MAX);
        for w in std::mem::take(&mut self.jobs) {
            self.note(&w);
            self.jobs.push(w);
        }
    }

    fn may_take(&self, fit: &Fit) -> bool {
        (self.nodes <= fit.nodes || self.cores <= fit.cores)
            && (self.limit <= fit.limit || self.least <= fit.extra)
    }
}

/// The queue.
#[derive(Debug, Clone, Default)]
pub(crate) struct PlannerJobQueue {
    blocks: Vec<JobQueueBlock>,
    len: usize,
}

impl PlannerJobQueue {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, w: QueuedJob) {
        self.len += 1;
        let at = self.block_of(w.place());
        let Some(block) = self.blocks.get_mut(at) else {
            self.blocks.push(JobQueueBlock::new(vec![w]));
            return;
        };
        let position = block.jobs.partition_point(|o| o.place() < w.place());
        block.note(&w);
        block.jobs.insert(position, w);
        if block.jobs.len() > 2 * BLOCK {
            let upper = block.jobs.split_off(BLOCK);
            block.sum_up();
            self.blocks.insert(at + 1, JobQueueBlock::new(upper));
        }
    }

    pub(crate) fn remove(&mut self, key: JobQueueKey, job: JobId) -> bool {
        let at = self.block_of((key, job));
        let Some(block) = self.blocks.get_mut(at) else {
            return false;
        };
        let found = block
            .jobs
            .binary_search_by_key(&(key, job), QueuedJob::place);
        let Ok(position) = found else {
            return false;
        };
        let gone = block.jobs.remove(position);
        self.len -= 1;
        if block.jobs.is_empty() {
            self.blocks.remove(at);
        } else if gone.nodes == block.least
            || gone.limit == block.limit
            || gone.cores == block.cores
        {
            block.sum_up();
        }
        true
    }

    /// The block that has, or would have, this place.
    fn block_of(&self, place: (JobQueueKey, JobId)) -> usize {
        let after = self
            .blocks
            .partition_point(|b| b.jobs.first().is_some_and(|w| w.place() <= place));
        after.saturating_sub(1)
    }

    /// The first job behind `after` (or of all) that fits.
    pub(crate) fn next(&self, after: Option<&QueuedJob>, fit: &Fit) -> Option<QueuedJob> {
        let (mut at, mut position) = (0, 0);
        if let Some(after) = after {
            at = self.block_of(after.place());
            let jobs = &self.blocks.get(at)?.jobs;
            position = jobs.partition_point(|w| w.place() <= after.place());
        }
        for block in &self.blocks[at.min(self.blocks.len())..] {
            if block.may_take(fit) {
                let found = block.jobs[position..].iter().find(|w| fit.takes(w));
                if let Some(w) = found {
                    return Some(*w);
                }
            }
            position = 0;
        }
        None
    }

    #[cfg(test)]
    fn iter(&self) -> impl Iterator<Item = &QueuedJob> {
        self.blocks.iter().flat_map(|b| &b.jobs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn waiting(key: u64, job: u32, nodes: u32, cores: u32, limit: u64) -> QueuedJob {
        QueuedJob {
            key: (key, 0),
            job: JobId(job),
            nodes,
            cores,
            limit,
        }
    }

    proptest! {
        /// Against a sorted map that is searched from the front.
        #[test]
        fn finds_what_a_plain_search_finds(
            ops in prop::collection::vec((0u64..50, 1u32..20, 0u32..4, 1u64..100, any::<bool>()), 1..1500),
            fit in (0u32..20, 0u32..4, 0u64..100, 0u32..20),
        ) {
            let mut queue = PlannerJobQueue::default();
            let mut plain = BTreeMap::new();
            for (n, (key, nodes, cores, limit, take)) in (0u32..).zip(ops) {
                if take && !plain.is_empty() {
                    let (&(key, job), _) = plain.iter().nth(n as usize % plain.len()).expect("not empty");
                    plain.remove(&(key, job));
                    prop_assert!(queue.remove(key, job));
                    prop_assert!(!queue.remove(key, job));
                } else {
                    let w = waiting(key, n, nodes, cores, limit);
                    plain.insert((w.key, w.job), w);
                    queue.insert(w);
                }
            }
            prop_assert_eq!(queue.len(), plain.len());
            prop_assert!(queue.iter().eq(plain.values()));
            let fit = Fit { nodes: fit.0, cores: fit.1, limit: fit.2, extra: fit.3 };
            let mut at = None;
            let mut found = Vec::new();
            while let Some(w) = queue.next(at.as_ref(), &fit) {
                found.push(w);
                at = Some(w);
            }
            let expected: Vec<_> = plain.values().filter(|w| fit.takes(w)).copied().collect();
            prop_assert_eq!(found, expected);
        }
    }
}
