//! The rights of waiting jobs: the begin that one was promised, the space that one has claimed, the time until which
//! each planned one waits for its node.

use super::queue::JobQueueKey;
use super::view::Shadow;
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::id::NodeId;
use tarn_types::site::{Job, JobId};
use tarn_types::units::Time;

/// The promise to the first ordinary job that waits.
#[derive(Debug, Clone)]
pub(crate) struct BackfillReservation {
    pub(crate) job: JobId,
    /// The earliest begin that it could rely on so far.
    pub(crate) begin: Time,
    /// When it could begin as things are, if there are nodes for it at all; and as they were: the time, and how often nodes
    /// had changed hands.
    pub(crate) now: Option<Shadow>,
    pub(crate) seen: (Time, u64),
}

/// The ordinary jobs that wait, and the promise to one of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct BackfillPromises {
    /// Those in the queue, in its order (with `data` and `energy`).
    ordinary: BTreeSet<(JobQueueKey, JobId)>,
    promise: Option<BackfillReservation>,
    /// The begins that were promised to jobs that have nodes now: of one that its host does not begin, the promise stands.
    kept: BTreeMap<JobId, Time>,
}

impl BackfillPromises {
    /// An ordinary job has come into the queue, or left it.
    pub(crate) fn note_queued(&mut self, key: JobQueueKey, id: JobId, is_queued: bool) {
        if is_queued {
            self.ordinary.insert((key, id));
        } else {
            self.ordinary.remove(&(key, id));
        }
    }

    /// The ordinary jobs in the queue.
    pub(crate) fn queued(&self) -> impl Iterator<Item = JobId> {
        self.ordinary.iter().map(|(_, id)| *id)
    }

    pub(crate) fn promise(&self) -> Option<&BackfillReservation> {
        self.promise.as_ref()
    }

    /// The job that has the promise, or would get it next.
    pub(crate) fn first(&self) -> Option<JobId> {
        let promised = self.promise.as_ref().map(|p| p.job);
        promised.or_else(|| self.queued().next())
    }

    pub(crate) fn set(&mut self, promise: Option<BackfillReservation>) {
        self.promise = promise;
    }

    /// A job has begun or ended, or is out: it needs no promise.
    pub(crate) fn fulfil(&mut self, id: JobId) {
        self.promise.take_if(|p| p.job == id);
        self.kept.remove(&id);
    }

    /// The planner gave a job nodes: its promise is kept until the host has begun it.
    pub(crate) fn keep(&mut self, id: JobId) {
        if let Some(promise) = self.promise.take_if(|p| p.job == id) {
            self.kept.insert(id, promise.begin);
        }
    }

    /// The begin that was promised to a job, before the planner gave it nodes.
    pub(crate) fn take_kept(&mut self, id: JobId) -> Option<Time> {
        self.kept.remove(&id)
    }
}

/// Space that is kept for the first job that found none: nobody behind it takes it meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FirstJobReservation {
    pub(crate) job: JobId,
    /// In ascending order.
    pub(crate) nodes: Vec<NodeId>,
    /// On each of its nodes.
    pub(crate) bytes: u64,
}

/// Jobs that found no space for their data.
#[derive(Debug, Clone, Default)]
pub(crate) struct SpaceClaims {
    /// All of them: tried again when something goes.
    lacking: BTreeSet<JobId>,
    /// In this round: the space that is kept for the first of them.
    first: Option<FirstJobReservation>,
}

impl SpaceClaims {
    /// A new round begins: nobody has claimed space.
    pub(crate) fn begin_round(&mut self) {
        self.first = None;
    }

    /// A job has found no space: where the policy `keeps` data, the first of a round keeps the free space.
    pub(crate) fn add(&mut self, job: JobId, nodes: &[NodeId], bytes: u64, keeps: bool) {
        self.lacking.insert(job);
        if self.first.is_none() && keeps {
            let mut nodes = nodes.to_vec();
            nodes.sort_unstable();
            self.first = Some(FirstJobReservation { job, nodes, bytes });
        }
    }

    /// A job has space now, or needs none.
    pub(crate) fn remove(&mut self, job: JobId) {
        self.lacking.remove(&job);
    }

    /// The reservation of the first job.
    pub(crate) fn first(&self) -> Option<&FirstJobReservation> {
        self.first.as_ref()
    }

    /// Bytes of a node that are kept for somebody else.
    pub(crate) fn kept_from(&self, node: NodeId, by: JobId) -> u64 {
        match &self.first {
            Some(c) if c.job != by && c.nodes.binary_search(&node).is_ok() => c.bytes,
            _ => 0,
        }
    }
}

/// Planned jobs by the time until which each waits for its node.
#[derive(Debug, Clone, Default)]
pub(crate) struct PlanDeadlines(BTreeSet<(Time, JobId)>);

impl PlanDeadlines {
    pub(crate) fn insert(&mut self, until: Time, id: JobId) {
        let is_new = self.0.insert((until, id));
        debug_assert!(is_new, "job {id} is planned twice");
    }

    pub(crate) fn remove(&mut self, until: Time, id: JobId) {
        self.0.remove(&(until, id));
    }

    /// The first whose time is over.
    pub(crate) fn expired(&self, now: Time) -> Option<(Time, JobId)> {
        self.0.first().copied().filter(|(until, _)| *until <= now)
    }

    /// When the next one's time is over.
    pub(crate) fn next(&self) -> Option<Time> {
        self.0.first().map(|(until, _)| *until)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Time, JobId)> {
        self.0.iter().copied()
    }
}

/// Jobs whose time has not come, in its order.
#[derive(Debug, Clone, Default)]
pub(crate) struct LaterJobs(BTreeSet<(Time, JobId)>);

impl LaterJobs {
    pub(crate) fn insert(&mut self, id: JobId, job: &Job) {
        self.0.insert((job.not_before, id));
    }

    /// Whether a job, as it was submitted, is among them.
    pub(crate) fn has(&self, id: JobId, job: &Job) -> bool {
        self.0.contains(&(job.not_before, id))
    }

    /// Takes a job out. Returns whether it was there.
    pub(crate) fn remove(&mut self, id: JobId, job: &Job) -> bool {
        self.0.remove(&(job.not_before, id))
    }

    /// The job whose time comes first, and that time.
    pub(crate) fn first(&self) -> Option<(Time, JobId)> {
        self.0.first().copied()
    }

    pub(crate) fn take_first(&mut self) {
        self.0.pop_first();
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
