//! Each job of a snapshot, as the planner has to know it.

use crate::arrivals::submission;
use crate::choices::NodeChoices;
use crate::eligible::{waits_for, why_not};
use crate::gres::gpus_of;
use crate::jobs::{JobTable, KnownJob, KnownStage};
use crate::mode_features::requested_mode;
use crate::runtimes::{JobKind, NO_LIMIT, RunTimes};
use crate::topology::ClusterTopology;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use tarn_site::{PlanningJob, PlanningView};
use tarn_slurm::{NodeNames, SlurmJob, SlurmJobState, SlurmSnapshot};
use tarn_types::id::NodeId;
use tarn_types::site::{Job, NodeShare};
use tarn_types::units::{Nanos, SECOND, Time};

/// Waiting jobs that are planned: the first of Slurm's order. Those behind have a place when others have begun.
const MAX_WAITING: usize = 20_000;

/// How long a chain of jobs without a plan is followed.
const MAX_BACKWARD: usize = 64;

/// A job of the snapshot.
#[derive(Debug, Clone)]
pub(crate) struct WantedJob<'a> {
    pub(crate) stage: WantedStage,
    /// Without its workflow, its data, and the numbers of other jobs.
    pub(crate) spec: Job,
    pub(crate) kind: JobKind,
    pub(crate) user: u32,
    /// The names of the nodes that it has.
    pub(crate) names: NodeNames,
    /// Its data lines.
    pub(crate) data: Option<&'a PlanningJob>,
    /// The numbers of the jobs whose end it still waits for.
    pub(crate) after: Vec<u32>,
}

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WantedStage {
    /// It waits for nodes.
    Waits,
    /// It waits, and gets no plan; why.
    Excluded(String),
    /// It has nodes.
    Has {
        nodes: Vec<NodeId>,
        share: NodeShare,
        since: Time,
    },
    /// Its nodes are free again; Slurm still knows it.
    Left,
}

/// The jobs of a snapshot.
pub(crate) fn wanted<'a>(
    snapshot: &SlurmSnapshot,
    view: &'a PlanningView,
    topology: &ClusterTopology,
    (runs, known): (&RunTimes, &JobTable),
) -> BTreeMap<u32, WantedJob<'a>> {
    let mut reader = JobReader {
        snapshot,
        topology,
        runs,
        known,
        choices: NodeChoices::new(snapshot, topology, snapshot.read_at),
    };
    let jobs = snapshot.jobs.values().filter_map(|job| {
        let wanted = reader.read(job, view.jobs.get(&job.number))?;
        Some((job.number, wanted))
    });
    let mut jobs: BTreeMap<u32, WantedJob<'a>> = jobs.collect();
    exclude_those_behind(&mut jobs);
    give_places(snapshot, &mut jobs);
    jobs
}

struct JobReader<'a> {
    snapshot: &'a SlurmSnapshot,
    topology: &'a ClusterTopology,
    runs: &'a RunTimes,
    known: &'a JobTable,
    choices: NodeChoices<'a>,
}

impl<'a> JobReader<'a> {
    fn read<'v>(
        &mut self,
        job: &'a SlurmJob,
        data: Option<&'v PlanningJob>,
    ) -> Option<WantedJob<'v>> {
        let nodes = self.nodes_now(job);
        let mut stage = match &job.state {
            SlurmJobState::Configuring
            | SlurmJobState::Running
            | SlurmJobState::Suspended
            | SlurmJobState::Completing
                if !nodes.is_empty() =>
            {
                let since = job.start.unwrap_or(self.snapshot.read_at);
                WantedStage::Has {
                    share: self.share(job, nodes.len() as u32),
                    nodes,
                    since: since.saturating_mul(SECOND),
                }
            }
            SlurmJobState::Pending => match why_not(job, self.snapshot) {
                None => WantedStage::Waits,
                Some(why) => WantedStage::Excluded(why),
            },
            SlurmJobState::Ended(_) | SlurmJobState::Other(_) => return None,
            SlurmJobState::Requeued
            | SlurmJobState::RequeueHold
            | SlurmJobState::SpecialExit
            | SlurmJobState::ReservationDeleted => {
                WantedStage::Excluded("it is being requeued".to_owned())
            }
            // Its list of nodes could not be read: it has not ended.
            SlurmJobState::Configuring | SlurmJobState::Running | SlurmJobState::Suspended
                if job.is_incomplete =>
            {
                WantedStage::Excluded("Slurm's answer about its nodes cannot be read".to_owned())
            }
            _ => WantedStage::Left,
        };
        let makes = data.into_iter().flat_map(|d| &d.makes);
        let names = makes.map(|(_, workflow, dataset, _)| format!("{workflow}/{dataset}"));
        let kind = JobKind::of(job, names.collect());
        let mut spec = self.spec(job, &kind);
        if stage == WantedStage::Waits {
            match self.choices.of(job, spec.nodes, spec.limit / SECOND) {
                Ok(on) => spec.on = on,
                Err(why) => stage = WantedStage::Excluded(why),
            }
        }
        Some(WantedJob {
            stage,
            spec,
            kind,
            user: job.user,
            names: job.nodes.clone(),
            data,
            after: waits_for(job, self.snapshot).unwrap_or_default(),
        })
    }

    fn spec(&self, job: &SlurmJob, kind: &JobKind) -> Job {
        let nodes = self.nodes_of(job);
        let share = self.share(job, nodes);
        let in_partitions = job.partitions.iter();
        let longest = in_partitions.filter_map(|name| self.snapshot.partitions.get(name)?.max_time);
        let limit = job
            .limit
            .or(longest.max())
            .unwrap_or(NO_LIMIT)
            .clamp(1, NO_LIMIT);
        let nanos = |seconds: u64| -> Nanos { seconds.saturating_mul(SECOND) };
        let begin = job.eligible.filter(|at| *at > self.snapshot.read_at);
        Job {
            flow: None,
            nodes,
            cores: share.cores,
            memory: share.memory,
            gpus: share.gpus,
            mode: requested_mode(&job.features),
            limit: nanos(limit),
            expect: nanos(self.runs.expected(kind, limit)),
            after: Vec::new(),
            continues: None,
            reads: Vec::new(),
            writes: Vec::new(),
            submitted: job.submitted.map(|at| submission(at, job.number)),
            place: None,
            on: None,
            not_before: begin.map_or(0, nanos),
        }
    }

    /// The nodes that it has: names are looked up once.
    fn nodes_now(&self, job: &SlurmJob) -> Vec<NodeId> {
        match self.known.jobs.get(&job.number) {
            Some(KnownJob {
                stage: KnownStage::Has { nodes, .. },
                names,
                ..
            }) if *names == job.nodes => nodes.clone(),
            _ => self.topology.known(&job.nodes),
        }
    }

    /// A request of processors alone takes as many nodes as it needs.
    fn nodes_of(&self, job: &SlurmJob) -> u32 {
        let cores = self.topology.shapes().map(|shape| shape.cores).max();
        let least = job.cpus.div_ceil(cores.unwrap_or(0).max(1));
        job.min_nodes.max(least).max(1)
    }

    /// Its share of each of so many nodes. Slurm shows the sums: of a job with unlike shares the mean, rounded up.
    fn share(&self, job: &SlurmJob, nodes: u32) -> NodeShare {
        let in_partitions = job.partitions.iter();
        let mut in_partitions = in_partitions.filter_map(|name| self.snapshot.partitions.get(name));
        let is_whole =
            job.is_exclusive || in_partitions.any(|p| p.oversubscribe.starts_with("EXCLUSIVE"));
        if is_whole {
            return NodeShare {
                cores: 0,
                memory: 0,
                gpus: 0,
            };
        }
        let nodes = nodes.max(1);
        NodeShare {
            cores: job.cpus.div_ceil(nodes).max(1),
            memory: job.memory.unwrap_or(0) / u64::from(nodes),
            gpus: gpus_of(&job.tres_per_node),
        }
    }
}

/// A job that waits for one without a plan gets none. Jobs wait for those with lower numbers, nearly always.
fn exclude_those_behind(jobs: &mut BTreeMap<u32, WantedJob<'_>>) {
    let is_excluded = |job: &WantedJob<'_>| matches!(job.stage, WantedStage::Excluded(_));
    for _ in 0..MAX_BACKWARD {
        let behind = jobs.iter().filter_map(|(number, job)| {
            let mut after = job.after.iter().filter(|_| job.stage == WantedStage::Waits);
            let before = after.find(|n| jobs.get(n).is_none_or(is_excluded))?;
            Some((*number, *before))
        });
        let behind: Vec<(u32, u32)> = behind.collect();
        if behind.is_empty() {
            return;
        }
        for (number, before) in behind {
            if let Some(job) = jobs.get_mut(&number) {
                let why = format!("it waits for job {before}, which has no plan");
                job.stage = WantedStage::Excluded(why);
            }
        }
    }
}

/// Gives jobs that wait their places: in the order of Slurm's priorities, as times. A job that goes before
/// others has a time before theirs; else it has that of its submission.
fn give_places(snapshot: &SlurmSnapshot, jobs: &mut BTreeMap<u32, WantedJob<'_>>) {
    let tier = |job: &SlurmJob| {
        let tiers = job.partitions.iter();
        let tiers = tiers.filter_map(|name| Some(snapshot.partitions.get(name)?.tier));
        tiers.max().unwrap_or(0)
    };
    let waiting = jobs
        .iter()
        .filter(|(_, job)| job.stage == WantedStage::Waits);
    let mut order: Vec<(Reverse<u32>, Reverse<u32>, u32)> = waiting
        .filter_map(|(number, _)| snapshot.jobs.get(number))
        .map(|job| (Reverse(tier(job)), Reverse(job.priority), job.number))
        .collect();
    order.sort_unstable();
    for (_, _, number) in order.drain(MAX_WAITING.min(order.len())..) {
        if let Some(job) = jobs.get_mut(&number) {
            let why = format!("{MAX_WAITING} jobs are before it in Slurm's order");
            job.stage = WantedStage::Excluded(why);
        }
    }
    let mut next = Time::MAX;
    for (_, _, number) in order.into_iter().rev() {
        let Some(job) = jobs.get_mut(&number) else {
            continue;
        };
        let submitted = job
            .spec
            .submitted
            .unwrap_or(snapshot.read_at.saturating_mul(SECOND));
        next = submitted.min(next.saturating_sub(1));
        job.spec.place = Some(next);
    }
}
