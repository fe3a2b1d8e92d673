//! The plan of the next hours: a copy of the planner in a future in which jobs run as long as expected, and copies take
//! as long as estimated.

use crate::SitePlanner;
use crate::hosted::HostedMoves;
use crate::jobs::KnownStage;
use crate::planned::{PlannedJob, SitePlan, UnplannedJob, reason_text};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use tarn_engine::plan::{Planner, Wakefulness};
use tarn_types::id::NodeId;
use tarn_types::site::{JobId, SiteAction, SiteEvent};
use tarn_types::units::{Nanos, SECOND, Time};

/// Steps into the future: a bound on work. Some 20 microseconds each on a cluster of 1,000 nodes.
const MAX_STEPS: usize = 20_000;
/// Jobs that have no place and are listed: the first of Slurm's numbers.
const MAX_UNPLANNED: usize = 20_000;

/// A future in the making.
struct Future<'a> {
    of: &'a SitePlanner,
    planner: Planner,
    now: Time,
    moves: HostedMoves,
    /// When jobs end.
    ends: BinaryHeap<Reverse<(Time, JobId)>>,
    planned: BTreeMap<u32, PlannedJob>,
    refused: BTreeMap<u32, String>,
}

impl SitePlanner {
    /// The plan of the time from the newest snapshot on. First plans of jobs are what their begins are compared with.
    pub fn plan(&mut self, horizon: Nanos) -> SitePlan {
        let plan = self.forecast(horizon);
        self.records.note_plan(&plan);
        plan
    }

    fn forecast(&self, horizon: Nanos) -> SitePlan {
        let until = self.now.saturating_add(horizon);
        let mut future = Future {
            of: self,
            planner: self.planner.clone(),
            now: self.now,
            moves: self.moves.clone(),
            ends: BinaryHeap::new(),
            planned: BTreeMap::new(),
            refused: BTreeMap::new(),
        };
        future.start();
        future.follow(until);
        let unplanned = future.unplanned();
        let mut jobs: Vec<PlannedJob> = future.planned.into_values().collect();
        jobs.sort_by_key(|job| (job.begin, job.job));
        SitePlan {
            made: self.now,
            until,
            nodes: self.topology.names().to_vec(),
            jobs,
            unplanned,
        }
    }
}

impl Future<'_> {
    /// Jobs that have nodes, and those for which the planner has taken some.
    fn start(&mut self) {
        let nodes = (0..self.of.topology.len() as u32).map(NodeId);
        let wakes = |n: &NodeId| self.planner.wakefulness(*n) == Some(Wakefulness::Waking);
        let waking = nodes.filter(wakes);
        let awake = waking.map(|node| SiteEvent::Awake { node }).collect();
        self.moves.answer_later(awake);
        for (number, known) in &self.of.jobs.jobs {
            if let KnownStage::Has { nodes, since, .. } = &known.stage {
                let end = self.expected_end(*since, known.spec.expect, known.spec.limit);
                for id in &known.ids {
                    self.ends.push(Reverse((end, *id)));
                }
                let nodes = nodes.iter().map(|n| self.of.topology.name(*n).to_owned());
                let job = self.planned_job(*number, nodes.collect(), (*since, end), "");
                let job = PlannedJob {
                    has_begun: true,
                    ..job
                };
                self.planned.insert(*number, job);
            }
        }
        for (number, wish) in &self.of.wishes {
            let Some(known) = self.of.jobs.jobs.get(number) else {
                continue;
            };
            let nodes = wish
                .nodes
                .iter()
                .map(|n| self.of.topology.name(*n).to_owned());
            if wish.allocated_for.is_some() {
                let end = self.now.saturating_add(known.spec.expect);
                let why = reason_text(wish.why);
                let times = (wish.begin.min(self.now), end);
                let job = self.planned_job(*number, nodes.collect(), times, &why);
                self.planned.insert(*number, job);
                for id in known.ids.iter().filter(|_| wish.runs) {
                    self.ends.push(Reverse((end, *id)));
                }
            }
        }
    }

    /// A job that is longer than expected ends in the middle of the time that it has left.
    fn expected_end(&self, since: Time, expect: Nanos, limit: Nanos) -> Time {
        let expected = since.saturating_add(expect);
        let last = since.saturating_add(limit);
        let left = last.saturating_sub(self.now);
        match expected > self.now {
            true => expected,
            false => self.now.saturating_add((left / 2).max(SECOND)),
        }
    }

    fn planned_job(
        &self,
        job: u32,
        nodes: Vec<String>,
        (begin, end): (Time, Time),
        why: &str,
    ) -> PlannedJob {
        let owner = self.of.owners.get(&job);
        PlannedJob {
            job,
            user: owner.map_or(u32::MAX, |(user, _)| *user),
            workflow: owner.and_then(|(_, workflow)| workflow.clone()),
            nodes,
            has_begun: false,
            begin,
            end,
            why: why.to_owned(),
        }
    }

    fn follow(&mut self, until: Time) {
        for _ in 0..MAX_STEPS {
            let end = self.ends.peek().map(|Reverse((at, _))| *at);
            let times = [end, self.moves.next(), self.planner.deadline()];
            let Some(next) = times.into_iter().flatten().min().filter(|at| *at <= until) else {
                return;
            };
            self.now = self.now.max(next);
            let mut events = self.moves.over(self.now);
            while let Some(Reverse((at, id))) = self.ends.peek().copied() {
                if at > self.now {
                    break;
                }
                self.ends.pop();
                events.push(SiteEvent::Ended {
                    job: id,
                    ok: true,
                    sizes: Vec::new(),
                });
            }
            if events.is_empty() {
                events.push(SiteEvent::Timer);
            }
            let mut actions = Vec::new();
            self.planner.step_all(self.now, &events, &mut actions);
            for action in &actions {
                self.perform(action);
            }
        }
    }

    fn perform(&mut self, action: &SiteAction) {
        match action {
            SiteAction::Allocate { job, nodes, why } => {
                let Some((number, known)) = self.known(*job) else {
                    return;
                };
                let nodes = nodes.iter().map(|n| self.of.topology.name(*n).to_owned());
                let end = self.now.saturating_add(known);
                let why = reason_text(*why);
                let job = self.planned_job(number, nodes.collect(), (self.now, end), &why);
                self.planned.insert(number, job);
            }
            SiteAction::Run { job, .. } => {
                if let Some((number, expect)) = self.known(*job) {
                    let end = self.now.saturating_add(expect);
                    self.ends.push(Reverse((end, *job)));
                    if let Some(planned) = self.planned.get_mut(&number) {
                        planned.end = end;
                    }
                }
            }
            SiteAction::Refuse { job, lacks } => {
                if let Some(number) = self.of.jobs.number_of(*job) {
                    self.refused.insert(number, lacks.clone());
                }
            }
            SiteAction::Move(order) => self.moves.begin(self.now, order, &self.of.rates),
            SiteAction::Cancel { id } => {
                let failed = self.moves.cancel(*id);
                self.moves.answer_later(failed.into_iter().collect());
            }
            SiteAction::Wake { node } => {
                self.moves
                    .answer_later(vec![SiteEvent::Awake { node: *node }]);
            }
            SiteAction::SetMode { node, .. } => {
                let event = SiteEvent::ModeSet {
                    node: *node,
                    ok: false,
                };
                self.moves.answer_later(vec![event]);
            }
            SiteAction::Plan { .. }
            | SiteAction::Unplan { .. }
            | SiteAction::Release { .. }
            | SiteAction::Drop { .. }
            | SiteAction::Sleep { .. }
            | SiteAction::GiveUp { .. } => {}
        }
    }

    /// The number of a job, and how long it is expected to run.
    fn known(&self, id: JobId) -> Option<(u32, Nanos)> {
        let number = self.of.jobs.number_of(id)?;
        let known = self.of.jobs.jobs.get(&number)?;
        Some((number, known.spec.expect))
    }

    fn unplanned(&self) -> Vec<UnplannedJob> {
        let excluded = self.of.excluded.iter();
        let excluded = excluded.map(|(job, (user, why))| (*job, *user, why.clone()));
        let known = self.of.jobs.jobs.iter();
        let known = known.filter(|(number, _)| !self.planned.contains_key(number));
        let known = known.map(|(number, known)| {
            let why = match (&known.stage, self.refused.get(number)) {
                (KnownStage::Refused(why), _) | (_, Some(why)) => why.clone(),
                _ => "it is not expected to begin in this time".to_owned(),
            };
            let user = self
                .of
                .owners
                .get(number)
                .map_or(u32::MAX, |(user, _)| *user);
            (*number, user, why)
        });
        let mut all: Vec<UnplannedJob> = excluded
            .chain(known)
            .map(|(job, user, why)| UnplannedJob { job, user, why })
            .collect();
        all.sort_by_key(|job| job.job);
        all.truncate(MAX_UNPLANNED);
        all
    }
}
