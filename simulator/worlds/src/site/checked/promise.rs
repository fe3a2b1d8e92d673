//! No workflow delays an ordinary job beyond the promise (`tarn_types::site::promise`), by the checker's own account: from the
//! limits of the jobs that have nodes, node by node.
//!
//! While a workflow that came before it has nodes, there is no promise: only the planner knows when these come free, as it
//! keeps them for the workflow's next steps.

use super::SiteRuleViolation;
use super::state::{CheckedJobStage, CheckedNodeState, JobRow, SiteAccount};
use tarn_types::id::NodeId;
use tarn_types::site::promise::{
    NodeResources, PromiseAccount, PromiseViolation, StartCheck, StartPromise, TakerKind,
    all_free_at, free_at,
};
use tarn_types::site::{Job, JobId, Mode};
use tarn_types::units::{Elapsed, Nanos, Time};

/// The place of an ordinary job among the others.
fn place(row: &JobRow) -> Time {
    row.job.place.unwrap_or(row.submitted)
}

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

impl PromiseAccount for SiteAccount {
    type Job = JobId;

    fn now(&self) -> Time {
        self.now
    }

    fn first_waiting(&self) -> Option<JobId> {
        let ordinary = self.jobs.iter().filter(|(_, r)| {
            let ended = |j: &JobId| self.jobs.get(j).is_some_and(|r| r.ended_once);
            let there = |i: &tarn_types::site::ItemId| {
                let item = self.items.get(i);
                item.is_some_and(|i| i.outside || !i.layouts.is_empty())
            };
            let first = r.job.flow.is_none() && r.stage == CheckedJobStage::Waiting;
            let first = first && r.job.not_before <= self.now;
            first && r.job.after.iter().all(ended) && r.job.reads.iter().all(|i| there(&i.item))
        });
        let (job, _) = ordinary.min_by_key(|(id, r)| (place(r), **id))?;
        Some(*job)
    }

    fn is_waiting(&self, job: JobId) -> bool {
        let row = self.jobs.get(&job);
        row.is_some_and(|r| {
            let may_begin = r.job.flow.is_none() && r.job.not_before <= self.now;
            r.stage == CheckedJobStage::Waiting && may_begin
        })
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
        none && !self.has_host
            && self.nodes.iter().all(up)
            && !self.jobs.values().filter(open).any(disturbs)
    }

    fn is_begin_known(&self, job: JobId) -> bool {
        let row = self.jobs.get(&job);
        row.is_some_and(|r| !self.keeps_for_others(r))
    }

    fn is_judged(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|first| {
            let retried = first.attempts + first.broken > 0;
            !retried && is_known(&first.job) && !self.keeps_for_others(first)
        })
    }

    fn kind_of(&self, taker: JobId, first: JobId) -> TakerKind {
        let (Some(row), Some(waits)) = (self.jobs.get(&taker), self.jobs.get(&first)) else {
            return TakerKind::Before;
        };
        match row.job.flow {
            Some(_) if self.came_before(row, waits) => TakerKind::Before,
            Some(_) => TakerKind::LaterWorkflow,
            None if (place(row), taker) < (place(waits), first) => TakerKind::Before,
            None => TakerKind::LaterOrdinary,
        }
    }

    fn earliest(&self, job: JobId) -> Option<Time> {
        let job = &self.jobs.get(&job)?.job;
        let places = (0..self.machine.islands.len())
            .flat_map(|i| [Mode::OneLevel, Mode::TwoLevel].map(|m| (i, m)));
        let ends = places.filter_map(|(island, mode)| {
            let here = (0..self.nodes.len()).filter(|n| {
                let node = &self.nodes[*n];
                usize::from(self.island_of[*n]) == island && node.mode == mode
            });
            let free = here.filter_map(|n| self.free_at(NodeId(n as u32), job));
            all_free_at(free.collect(), job.nodes)
        });
        Some(ends.min()?.max(self.now + 1))
    }
}

impl SiteAccount {
    /// After an event or an action: updates the promise, or gives one to the next job.
    pub(super) fn promise(&mut self) -> Result<(), SiteRuleViolation> {
        let Some(mut judge) = self.judge else {
            return Ok(());
        };
        let before = judge.promise().copied();
        let done = judge.update(self);
        self.judge = Some(judge);
        let taken = before.filter(|p| judge.promise().is_none_or(|now| now.job != p.job));
        let row = taken.and_then(|p| self.jobs.get_mut(&p.job));
        if let Some(row) = row.filter(|r| has_nodes(r) && !r.by_host) {
            row.promised = taken;
        }
        done.map_err(describe)
    }

    /// A job that the planner allocated nodes, and that the host did not begin, has its promise again, unless one before it has
    /// one.
    pub(super) fn promise_again(&mut self, promised: Option<StartPromise<JobId>>) {
        let Some(promised) = promised else {
            return;
        };
        let place = |id: JobId| Some((place(self.jobs.get(&id)?), id));
        let other = self.judge.as_ref().and_then(|judge| judge.promise());
        let is_behind = other.is_some_and(|other| place(other.job) < place(promised.job));
        if let Some(judge) = self.judge.as_mut().filter(|_| !is_behind) {
            judge.give_back(promised);
        }
    }

    /// Whether a job that waits has the promise.
    pub(super) fn has_promise(&self) -> bool {
        let promise = self.judge.as_ref().and_then(|judge| judge.promise());
        promise.is_some_and(|promise| self.is_waiting(promise.job))
    }

    /// Whether a job came before another, or with it: a workflow comes with its first job.
    fn came_before(&self, row: &JobRow, first: &JobRow) -> bool {
        let flow = row.job.flow.and_then(|f| self.flows.get(&f));
        flow.copied().unwrap_or_else(|| place(row)) <= place(first)
    }

    /// Whether a workflow that came before has nodes.
    fn keeps_for_others(&self, first: &JobRow) -> bool {
        let before = |r: &JobRow| r.job.flow.is_some() && self.came_before(r, first);
        self.jobs.values().any(|r| has_nodes(r) && before(r))
    }

    /// A job that is about to get nodes: what it may do to the job with the promise.
    pub(super) fn before_allocation(&self, id: JobId) -> Option<StartCheck<JobId>> {
        self.judge.as_ref()?.before_start(self, id)
    }

    /// It has them.
    pub(super) fn after_allocation(
        &self,
        id: JobId,
        check: StartCheck<JobId>,
    ) -> Result<(), SiteRuleViolation> {
        check.after_start(self, id).map_err(describe)
    }

    /// When a node has the resources for a job. `None`: never.
    fn free_at(&self, id: NodeId, job: &Job) -> Option<Time> {
        let (node, kind) = (&self.nodes[id.at()], self.kind(id));
        let suits = job.mode.is_none_or(|m| m == node.mode);
        let memory = super::actions::memory_in(kind, node.mode).filter(|m| job.memory <= *m)?;
        let all: NodeResources = [kind.cores.into(), memory, kind.gpus.into()];
        if node.power != CheckedNodeState::Up
            || node.closed == Some(Time::MAX)
            || !job.may_have(id)
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
        let guests: Vec<(Nanos, NodeResources)> = guests
            .map(|r| (r.since.saturating_add(r.job.limit), share(&r.job)))
            .collect();
        let opens = node.closed.unwrap_or(0);
        Some(free_at(self.now, all, share(job), guests).max(opens))
    }
}

fn describe(violation: PromiseViolation<JobId>) -> SiteRuleViolation {
    match violation {
        PromiseViolation::Late { job, begin, latest } => (
            "begins as promised",
            format!(
                "job {job} could have begun at {} and waits beyond {}",
                Elapsed(begin),
                Elapsed(latest)
            ),
        ),
        PromiseViolation::PutOff {
            job,
            by,
            begin,
            then,
            latest,
        } => (
            "no more delay than promised",
            format!(
                "job {by} gets nodes, and job {job}, which came before it and could begin at {}, can begin at {} only; \
                 it may be put off until {}",
                Elapsed(begin),
                then.map_or("no time".into(), |t| Elapsed(t).to_string()),
                Elapsed(latest)
            ),
        ),
    }
}
