//! No workflow delays an ordinary job beyond the promise: by the checker's own account, from the limits of the jobs that have
//! nodes, node by node.
//!
//! The ordinary job that has waited longest is promised the begin that it would have if no waiting job went before it;
//! when others end before their limits, that becomes sooner.
//! A job that came after it and gets nodes first may not put off this begin: a workflow's step no further than the bound
//! beyond the promise, an ordinary job not at all. So it begins in time, if nothing comes between that nobody decides:
//! a node that is not up, a job beyond its limit, one that has failed, data that needs space.
//!
//! While a workflow that came before it has nodes, there is no promise: only the planner knows when these come free, as it
//! keeps them for the workflow's next steps.

use super::SiteRuleViolation;
use super::state::{CheckedJobStage, CheckedNodeState, JobRow, SiteAccount, StartPromise};
use tarn_types::id::NodeId;
use tarn_types::site::{Job, JobId, Mode};
use tarn_types::units::{Elapsed, Nanos, Time};

fn has_nodes(row: &JobRow) -> bool {
    matches!(
        row.stage,
        CheckedJobStage::Held | CheckedJobStage::Running | CheckedJobStage::Ended { .. }
    )
}

/// Whether it is known when nodes are free for it: for cores on several, the planner waits for idle ones.
fn is_known(job: &Job) -> bool {
    job.nodes == 1 || job.cores == 0
}

impl SiteAccount {
    /// After an event or an action: updates the promise, or gives one to the next job.
    pub(super) fn promise(&mut self) -> Result<(), SiteRuleViolation> {
        let Some(bound) = self.bound else {
            return Ok(());
        };
        let waits = |row: &JobRow| row.stage == CheckedJobStage::Waiting && row.job.flow.is_none();
        let kept = self
            .promise
            .filter(|p| self.jobs.get(&p.job).is_some_and(waits));
        let Some(mut promise) = kept.or_else(|| self.next_promise()) else {
            self.promise = None;
            return Ok(());
        };
        promise.calm &= self.is_calm(promise.job);
        if let Some(row) = self
            .jobs
            .get(&promise.job)
            .filter(|r| !self.keeps_for_others(r))
        {
            let now = self.earliest(&row.job).unwrap_or(Time::MAX);
            promise.begin = promise.begin.min(now);
        }
        self.promise = Some(promise);
        let latest = promise.begin.saturating_add(bound);
        if promise.calm && self.now > latest {
            return Err((
                "begins as promised",
                format!(
                    "job {} could have begun at {} and waits beyond {}",
                    promise.job,
                    Elapsed(promise.begin),
                    Elapsed(latest)
                ),
            ));
        }
        Ok(())
    }

    fn next_promise(&self) -> Option<StartPromise> {
        let ordinary = self.jobs.iter().filter(|(_, r)| {
            let ended = |j: &JobId| self.jobs.get(j).is_some_and(|r| r.ended_once);
            let there = |i: &tarn_types::site::ItemId| {
                let item = self.items.get(i);
                item.is_some_and(|i| i.outside || !i.layouts.is_empty())
            };
            let first = r.job.flow.is_none() && r.stage == CheckedJobStage::Waiting;
            first && r.job.after.iter().all(ended) && r.job.reads.iter().all(|i| there(&i.item))
        });
        let (job, _) = ordinary.min_by_key(|(id, r)| (r.submitted, **id))?;
        Some(StartPromise {
            job: *job,
            begin: Time::MAX,
            calm: true,
        })
    }

    /// Whether a job came before another, or with it: a workflow comes with its first job.
    fn came_before(&self, row: &JobRow, first: &JobRow) -> bool {
        let flow = row.job.flow.and_then(|f| self.flows.get(&f));
        flow.copied().unwrap_or(row.submitted) <= first.submitted
    }

    fn is_calm(&self, job: JobId) -> bool {
        let Some(first) = self.jobs.get(&job) else {
            return false;
        };
        let open =
            |r: &&JobRow| !matches!(r.stage, CheckedJobStage::Done | CheckedJobStage::TakenOut);
        let disturbs = |r: &JobRow| {
            let before = r.job.flow.is_some() && self.came_before(r, first);
            let late = has_nodes(r) && r.since.saturating_add(r.job.limit) < self.now;
            let failed = r.attempts > u32::from(r.stage != CheckedJobStage::Waiting);
            before || late || failed || r.broken > 0
        };
        let none = first.job.reads.is_empty() && first.job.writes.is_empty();
        let none = none && is_known(&first.job);
        let up = |n: &super::state::CheckedNode| n.power == CheckedNodeState::Up;
        none && self.nodes.iter().all(up) && !self.jobs.values().filter(open).any(disturbs)
    }

    /// Whether a workflow that came before has nodes.
    fn keeps_for_others(&self, first: &JobRow) -> bool {
        let before = |r: &JobRow| r.job.flow.is_some() && self.came_before(r, first);
        self.jobs.values().any(|r| has_nodes(r) && before(r))
    }

    /// A job that is about to get nodes: the job with the promise, when it could begin, and how far that may be put off.
    pub(super) fn before_allocation(&self, id: JobId) -> Option<(JobId, Time, Time)> {
        let promise = self.promise.filter(|p| p.job != id)?;
        let (row, first) = (self.jobs.get(&id)?, self.jobs.get(&promise.job)?);
        let retried = first.attempts + first.broken > 0;
        if retried || !is_known(&first.job) || self.keeps_for_others(first) {
            return None;
        }
        let latest = match row.job.flow {
            Some(_) if self.came_before(row, first) => return None,
            Some(_) => promise.begin.saturating_add(self.bound?),
            None if (row.submitted, id) < (first.submitted, promise.job) => return None,
            None => 0,
        };
        let begin = self.earliest(&first.job)?;
        Some((promise.job, begin, begin.max(latest)))
    }

    /// It has them.
    pub(super) fn after_allocation(
        &self,
        id: JobId,
        (first, begin, latest): (JobId, Time, Time),
    ) -> Result<(), SiteRuleViolation> {
        let job = self.job(first)?.job.clone();
        match self.earliest(&job) {
            Some(then) if then <= latest => Ok(()),
            then => Err((
                "no more delay than promised",
                format!(
                    "job {id} gets nodes, and job {first}, which came before it and could begin at {}, can begin at {} only; \
                     it may be put off until {}",
                    Elapsed(begin),
                    then.map_or("no time".into(), |t| Elapsed(t).to_string()),
                    Elapsed(latest)
                ),
            )),
        }
    }

    /// When a job could begin if nobody else got nodes before it and everybody kept them until their limits.
    fn earliest(&self, job: &Job) -> Option<Time> {
        let places = (0..self.machine.islands.len())
            .flat_map(|i| [Mode::OneLevel, Mode::TwoLevel].map(|m| (i, m)));
        let ends = places.filter_map(|(island, mode)| {
            let here = (0..self.nodes.len()).filter(|n| {
                let node = &self.nodes[*n];
                usize::from(self.island_of[*n]) == island && node.mode == mode
            });
            let mut free: Vec<Time> = here
                .filter_map(|n| self.free_at(NodeId(n as u32), job))
                .collect();
            free.sort_unstable();
            free.get(job.nodes.max(1) as usize - 1).copied()
        });
        Some(ends.min()?.max(self.now + 1))
    }

    /// When a node has the resources for a job. `None`: never.
    fn free_at(&self, id: NodeId, job: &Job) -> Option<Time> {
        let (node, kind) = (&self.nodes[id.at()], self.kind(id));
        let suits = job.mode.is_none_or(|m| m == node.mode);
        let memory = super::actions::memory_in(kind, node.mode).filter(|m| job.memory <= *m)?;
        let all = [kind.cores.into(), memory, kind.gpus.into()];
        if node.power != CheckedNodeState::Up
            || !suits
            || job.cores > kind.cores
            || job.gpus > kind.gpus
        {
            return None;
        }
        let share = |job: &Job| match job.cores {
            0 => all,
            cores => [cores.into(), job.memory, job.gpus.into()],
        };
        let guests = node.guests.iter().filter_map(|g| self.jobs.get(g));
        let mut ends: Vec<(Nanos, [u64; 3])> = guests
            .map(|r| (r.since.saturating_add(r.job.limit), share(&r.job)))
            .collect();
        ends.sort_unstable();
        let want = share(job);
        // From the last end back: as long as it fits beside the jobs that end later.
        let mut taken = [0u64; 3];
        for (end, takes) in ends.iter().rev() {
            (0..3).for_each(|i| taken[i] += takes[i]);
            if (0..3).any(|i| taken[i] + want[i] > all[i]) {
                return Some(*end);
            }
        }
        Some(self.now)
    }
}
