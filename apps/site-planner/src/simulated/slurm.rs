//! A simulated Slurm: its queue, nodes and reservations, as snapshots show them, and the calls that change them. The rules are those
//! of the trials R1 to R6 of docs/internals/driving-slurm.md.

use crate::CallError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tarn_proto::site::SlurmUpdate;
use tarn_slurm::{
    NodeBase, NodeNames, PartitionState, PendingReason, RENEWED_SECONDS, SlurmAction, SlurmJob,
    SlurmJobState, SlurmNode, SlurmNodeState, SlurmPartition, SlurmReservation, SlurmSettings,
    SlurmSnapshot,
};
use tarn_types::site::promise::NodeResources;
use tarn_types::site::{Job, Machine};
use tarn_types::units::{Nanos, SECOND, Time};

/// Seconds since 1970 at which a simulation begins: a full minute.
pub(crate) const EPOCH: u64 = 1_700_000_040;
/// The first job has the highest of `priority/basic`.
const FIRST_PRIORITY: u32 = u32::MAX / 2;
/// Seconds after its last renewal for which Slurm keeps a reservation that no job is in: 35 to 95 (trial R14).
const UNUSED: u32 = RENEWED_SECONDS + 30;

/// How far Slurm's burst buffer has a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobStage {
    /// Its `setup` is called once a pass has looked at it.
    Uncalled,
    /// Its `setup` was called, and its `data_in` has not ended.
    Staging,
    /// It has, or the job has no lines.
    Staged,
}

/// A job beside what a snapshot shows of it.
#[derive(Debug, Clone)]
pub(crate) struct SimulatedSlurmJob {
    pub(crate) stage: JobStage,
    pub(crate) limit: Nanos,
    /// On each node; `None`: all of it.
    pub(super) share: Option<NodeResources>,
    pub(crate) nodes: Vec<usize>,
    pub(crate) started: Time,
    /// How often it got nodes.
    pub(crate) attempt: u32,
}

/// The end of a job, for those that depend on it.
#[derive(Debug, Clone, Copy, Default)]
struct JobEnd {
    ended_well: Option<bool>,
    /// Its burst buffer has written its results.
    is_out: bool,
}

/// How a job's dependencies stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dependencies {
    Satisfied,
    Open,
    Never,
}

/// Slurm.
#[derive(Debug)]
pub(crate) struct SimulatedSlurm {
    /// As a reading would show it now, but for the time.
    pub(crate) snapshot: SlurmSnapshot,
    pub(crate) names: Vec<String>,
    numbers: BTreeMap<String, usize>,
    pub(super) resources: Vec<NodeResources>,
    islands: Vec<u16>,
    pub(crate) queued: BTreeMap<u32, SimulatedSlurmJob>,
    ends: BTreeMap<u32, JobEnd>,
    pub(super) down: BTreeSet<usize>,
    /// The ends of reservations: `None` in Slurm's record would have no end.
    pub(super) reserved_until: BTreeMap<String, Time>,
    /// When one that no job is in ends, as nobody has renewed it (`PURGE_COMP`).
    unused_until: BTreeMap<String, Time>,
    next_number: u32,
}

impl SimulatedSlurm {
    pub(crate) fn new(machine: &Machine) -> Self {
        let islands = machine.island_of();
        let mut slurm = Self {
            snapshot: empty(),
            names: Vec::new(),
            numbers: BTreeMap::new(),
            resources: Vec::new(),
            queued: BTreeMap::new(),
            ends: BTreeMap::new(),
            down: BTreeSet::new(),
            reserved_until: BTreeMap::new(),
            unused_until: BTreeMap::new(),
            next_number: 1,
            islands,
        };
        for (number, island) in slurm.islands.clone().into_iter().enumerate() {
            let of = &machine.islands[usize::from(island)];
            let name = format!("n{number:05}");
            // A machine without cores has one: a node in Slurm has a processor.
            let cores = of.kind.cores.max(1);
            let resources = [cores.into(), of.kind.memory, of.kind.gpus.into()];
            let node = node_named(&name, &format!("p{island}"), resources);
            slurm.snapshot.nodes.insert(name.clone(), node);
            slurm.numbers.insert(name.clone(), number);
            slurm.names.push(name);
            slurm.resources.push(resources);
        }
        for island in 0..machine.islands.len() {
            let name = format!("p{island}");
            let nodes = slurm.names.iter().zip(&slurm.islands);
            let nodes = nodes.filter(|(_, of)| usize::from(**of) == island);
            let partition = SlurmPartition {
                name: name.clone(),
                nodes: nodes.map(|(node, _)| node.clone()).collect(),
                max_time: None,
                tier: 1,
                state: PartitionState::Up,
                is_default: island == 0,
                oversubscribe: "NO".to_owned(),
            };
            slurm.snapshot.partitions.insert(name, partition);
        }
        slurm
    }

    pub(crate) fn number_of(&self, node: &str) -> Option<usize> {
        self.numbers.get(node).copied()
    }

    /// A job is submitted: its number. `before` are the jobs that its user has it wait for.
    pub(crate) fn submit(
        &mut self,
        now: Time,
        job: &Job,
        user: u32,
        has_lines: bool,
        before: &[u32],
    ) -> u32 {
        let number = self.next_number;
        self.next_number += 1;
        let seconds = EPOCH + now / SECOND;
        let nodes = self.names.iter().enumerate();
        let excluded = nodes.filter(|(at, _)| !job.may_have(tarn_types::id::NodeId(*at as u32)));
        let excluded: NodeNames = excluded.map(|(_, name)| name.clone()).collect();
        let dependency: Vec<String> = before.iter().map(|n| format!("afterok:{n}")).collect();
        let is_whole = job.cores == 0;
        let row = SlurmJob {
            partitions: self.snapshot.partitions.keys().cloned().collect(),
            submitted: Some(seconds),
            eligible: before.is_empty().then_some(seconds),
            limit: Some(job.limit.div_ceil(SECOND).max(1)),
            min_nodes: job.nodes,
            max_nodes: job.nodes,
            cpus: job.nodes.saturating_mul(match job.cores {
                0 => self.fewest_cores(),
                cores => cores,
            }),
            memory: (!is_whole).then(|| job.memory.saturating_mul(job.nodes.into())),
            tres_per_node: match job.gpus {
                0 => String::new(),
                gpus => format!("gres:gpu:{gpus}"),
            },
            is_exclusive: is_whole,
            excluded,
            dependency: dependency.join(","),
            has_burst_buffer: has_lines,
            ..waiting_row(number, user)
        };
        self.snapshot.jobs.insert(number, row);
        let queued = SimulatedSlurmJob {
            stage: match has_lines {
                true => JobStage::Uncalled,
                false => JobStage::Staged,
            },
            limit: job.limit,
            share: (!is_whole).then(|| [job.cores.into(), job.memory, job.gpus.into()]),
            nodes: Vec::new(),
            started: 0,
            attempt: 0,
        };
        self.queued.insert(number, queued);
        self.ends.insert(number, JobEnd::default());
        number
    }

    fn fewest_cores(&self) -> u32 {
        let cores = self.resources.iter().map(|[cores, ..]| *cores as u32);
        cores.min().unwrap_or(1)
    }

    /// Takes satisfied dependencies away, and says how the others stand.
    pub(crate) fn settle_dependencies(&mut self, number: u32, now: Time) -> Dependencies {
        let Some(job) = self.snapshot.jobs.get_mut(&number) else {
            return Dependencies::Never;
        };
        let mut open = Vec::new();
        for part in job.dependency.split(',').filter(|part| !part.is_empty()) {
            let (kind, before) = part.split_once(':').unwrap_or_default();
            let before = before.parse().ok().and_then(|n: u32| self.ends.get(&n));
            let end = before.copied().unwrap_or_default();
            match (kind, end.ended_well) {
                ("afterok", Some(false)) => return Dependencies::Never,
                ("afterok", Some(true)) => {}
                ("afterburstbuffer", Some(_)) if end.is_out => {}
                _ => open.push(part.to_owned()),
            }
        }
        job.dependency = open.join(",");
        if open.is_empty() {
            let eligible = *job.eligible.get_or_insert(EPOCH + now / SECOND);
            if job.reason == PendingReason::Dependency {
                job.reason = match eligible > EPOCH + now / SECOND {
                    true => PendingReason::BeginTime,
                    false => PendingReason::None,
                };
            }
            return Dependencies::Satisfied;
        }
        // A begin time stays.
        let seconds = EPOCH + now / SECOND;
        job.eligible = job.eligible.filter(|at| *at > seconds);
        job.reason = PendingReason::Dependency;
        Dependencies::Open
    }

    /// A change of a waiting job, in the words of `scontrol update`.
    pub(crate) fn update(&mut self, update: &SlurmUpdate) {
        let Some(job) = self.snapshot.jobs.get_mut(&update.job) else {
            return;
        };
        if job.state != SlurmJobState::Pending {
            return;
        }
        for word in &update.words {
            let (key, value) = word.split_once('=').unwrap_or_default();
            let list = || -> NodeNames { value.split(',').map(str::to_owned).collect() };
            match key {
                "dependency" => value.clone_into(&mut job.dependency),
                "prefer" => value.clone_into(&mut job.preferred),
                "excnodelist" => job.excluded = list(),
                "reqnodelist" => job.required = list(),
                _ => {}
            }
        }
    }

    /// A call of drive's.
    pub(crate) fn perform(&mut self, now: Time, action: &SlurmAction) -> Result<(), CallError> {
        let after = |seconds: u32| now + Nanos::from(seconds) * SECOND;
        match action {
            SlurmAction::Reserve {
                reservation,
                nodes,
                user,
                seconds,
            } => {
                let until = after(*seconds);
                self.check_free(nodes, reservation)?;
                let made = SlurmReservation {
                    name: reservation.clone(),
                    nodes: nodes.iter().cloned().collect(),
                    start: Some(EPOCH + now / SECOND),
                    end: Some(EPOCH + until / SECOND),
                    users: vec![user.clone()],
                    accounts: Vec::new(),
                    flags: ["IGNORE_JOBS", "FLEX", "NO_HOLD_JOBS_AFTER"]
                        .map(str::to_owned)
                        .to_vec(),
                    licences: String::new(),
                    is_active: true,
                };
                self.snapshot.reservations.insert(reservation.clone(), made);
                self.reserved_until.insert(reservation.clone(), until);
                self.unused_until.insert(reservation.clone(), after(UNUSED));
                Ok(())
            }
            SlurmAction::Renew {
                reservation,
                seconds,
                ..
            } => {
                self.unused_until.insert(reservation.clone(), after(UNUSED));
                self.end_at(reservation, after(*seconds))
            }
            SlurmAction::Expire { reservation } => self.end_at(reservation, now + SECOND),
            SlurmAction::Resize { reservation, nodes } => {
                self.check_free(nodes, reservation)?;
                let found = self.reservation(reservation)?;
                found.nodes = nodes.iter().cloned().collect();
                Ok(())
            }
            SlurmAction::NameFeature { .. } => Ok(()),
            SlurmAction::Join {
                job,
                reservation,
                nodes,
            } => {
                self.reservation(reservation)?;
                let job = self.waiting(*job)?;
                job.reservation.clone_from(reservation);
                job.preferred = nodes.join("|");
                job.eligible = Some(EPOCH + now / SECOND);
                Ok(())
            }
            SlurmAction::DelayUntil { job, seconds } => {
                self.waiting(*job)?.eligible = Some(EPOCH + after(*seconds) / SECOND);
                Ok(())
            }
            SlurmAction::Undelay { job } => {
                self.waiting(*job)?.eligible = Some(EPOCH + now / SECOND);
                Ok(())
            }
            SlurmAction::Leave { job } => {
                let found = self.snapshot.jobs.get_mut(job);
                let found = found.ok_or_else(|| CallError::Refused(format!("no job {job}")))?;
                found.reservation.clear();
                Ok(())
            }
            SlurmAction::Delete { reservation } => {
                let mut jobs = self.snapshot.jobs.values();
                if jobs.any(|job| job.reservation == *reservation) {
                    return Err(CallError::Refused(
                        "Requested reservation is in use".to_owned(),
                    ));
                }
                self.reservation(reservation)?;
                self.forget_reservation(reservation);
                Ok(())
            }
        }
    }

    fn reservation(&mut self, name: &str) -> Result<&mut SlurmReservation, CallError> {
        let found = self.snapshot.reservations.get_mut(name);
        found.ok_or_else(|| CallError::Refused(format!("no reservation {name}")))
    }

    fn waiting(&mut self, number: u32) -> Result<&mut SlurmJob, CallError> {
        let found = self.snapshot.jobs.get_mut(&number);
        let found = found.filter(|job| job.state == SlurmJobState::Pending);
        found.ok_or_else(|| CallError::Refused(format!("job {number} does not wait")))
    }

    fn check_free(&self, nodes: &[String], own: &str) -> Result<(), CallError> {
        let mut others = self
            .snapshot
            .reservations
            .values()
            .filter(|r| r.name != own);
        match others.find(|r| r.nodes.iter().any(|node| nodes.contains(node))) {
            Some(other) => Err(CallError::Refused(format!(
                "it overlaps with {}",
                other.name
            ))),
            None => Ok(()),
        }
    }

    fn end_at(&mut self, name: &str, until: Time) -> Result<(), CallError> {
        self.reservation(name)?.end = Some(EPOCH + until / SECOND);
        self.reserved_until.insert(name.to_owned(), until);
        Ok(())
    }

    fn forget_reservation(&mut self, name: &str) {
        self.snapshot.reservations.remove(name);
        self.reserved_until.remove(name);
        self.unused_until.remove(name);
        for job in self.snapshot.jobs.values_mut() {
            // NO_HOLD_JOBS_AFTER: those that wait, wait on.
            if job.reservation == name {
                job.reservation.clear();
            }
        }
    }

    /// Reservations whose end has come lapse. When the next one does.
    pub(crate) fn lapse(&mut self, now: Time) -> Option<Time> {
        let jobs = self.snapshot.jobs.values();
        let in_use: BTreeSet<&str> = jobs.map(|job| &job.reservation[..]).collect();
        let ended = self.reserved_until.iter().filter(|(_, end)| **end <= now);
        let unused = self.unused_until.iter();
        let unused = unused.filter(|(name, end)| **end <= now && !in_use.contains(&name[..]));
        let over: BTreeSet<String> = ended.chain(unused).map(|(name, _)| name.clone()).collect();
        for name in over {
            self.forget_reservation(&name);
        }
        let ends = self
            .reserved_until
            .values()
            .chain(self.unused_until.values());
        ends.filter(|end| **end > now).min().copied()
    }

    pub(super) fn begin(&mut self, number: u32, nodes: Vec<usize>, now: Time) {
        let names: NodeNames = nodes.iter().map(|at| self.names[*at].clone()).collect();
        let (Some(job), Some(queued)) = (
            self.snapshot.jobs.get_mut(&number),
            self.queued.get_mut(&number),
        ) else {
            return;
        };
        let seconds = EPOCH + now / SECOND;
        job.state = SlurmJobState::Running;
        job.reason = PendingReason::None;
        job.start = Some(seconds);
        job.end = job.limit.map(|limit| seconds + limit);
        let island = nodes.first().map_or(0, |at| self.islands[*at]);
        job.partitions = vec![format!("p{island}")];
        job.nodes = names;
        if job.is_exclusive {
            job.cpus = nodes.iter().map(|at| self.resources[*at][0] as u32).sum();
        }
        (queued.nodes, queued.started) = (nodes.clone(), now);
        queued.attempt += 1;
        self.show(&nodes);
    }

    /// A job gives its nodes back. It stays in the queue while its burst buffer writes; of a job that is put back, it waits again.
    pub(crate) fn free(&mut self, number: u32, state: SlurmJobState) {
        let Some(queued) = self.queued.get_mut(&number) else {
            return;
        };
        let nodes = std::mem::take(&mut queued.nodes);
        if let Some(job) = self.snapshot.jobs.get_mut(&number) {
            if state == SlurmJobState::Pending {
                job.partitions = self.snapshot.partitions.keys().cloned().collect();
                job.nodes = Arc::from([]);
                (job.start, job.end) = (None, None);
                job.reservation.clear();
                // It is set up again once tarn has put it back.
                if job.has_burst_buffer {
                    queued.stage = JobStage::Staging;
                }
            }
            job.state = state;
        }
        self.show(&nodes);
    }

    /// A job's program has ended, or it will never run.
    pub(crate) fn note_end(&mut self, number: u32, ended_well: bool) {
        if let Some(end) = self.ends.get_mut(&number) {
            end.ended_well = Some(ended_well);
        }
    }

    /// Its burst buffer has written its results.
    pub(crate) fn note_out(&mut self, number: u32) {
        if let Some(end) = self.ends.get_mut(&number) {
            end.is_out = true;
        }
    }

    /// Slurm forgets a job that is over.
    pub(crate) fn forget(&mut self, number: u32) {
        self.free(number, SlurmJobState::Ended("COMPLETED".to_owned()));
        self.snapshot.jobs.remove(&number);
        self.queued.remove(&number);
    }

    /// A job that was put back counts as submitted now.
    pub(crate) fn submitted_again(&mut self, number: u32, now: Time) {
        if let Some(job) = self.snapshot.jobs.get_mut(&number) {
            let seconds = EPOCH + now / SECOND;
            (job.submitted, job.eligible) = (Some(seconds), Some(seconds));
        }
    }

    pub(crate) fn is_down(&self, node: usize) -> bool {
        self.down.contains(&node)
    }

    pub(crate) fn set_down(&mut self, node: usize, is_down: bool) {
        if is_down {
            self.down.insert(node);
        } else {
            self.down.remove(&node);
        }
        self.show(&[node]);
    }

    /// Brings what a snapshot shows of nodes up to date.
    fn show(&mut self, nodes: &[usize]) {
        for at in nodes {
            let here = self.queued.values().filter(|q| q.nodes.contains(at));
            let all = self.resources[*at];
            let cpus: u64 = here.map(|q| q.share.map_or(all[0], |s| s[0])).sum();
            let Some(node) = self.snapshot.nodes.get_mut(&self.names[*at]) else {
                continue;
            };
            node.cpus_allocated = cpus as u32;
            node.state.base = match cpus {
                _ if self.down.contains(at) => NodeBase::Down,
                0 => NodeBase::Idle,
                cpus if cpus >= all[0] => NodeBase::Allocated,
                _ => NodeBase::Mixed,
            };
        }
    }

    /// Jobs that have a node.
    pub(crate) fn on_node(&self, node: usize) -> Vec<u32> {
        let here = self.queued.iter().filter(|(_, q)| q.nodes.contains(&node));
        here.map(|(number, _)| *number).collect()
    }

    /// The first node on which jobs have more than there is.
    pub(crate) fn overcommitted(&self) -> Option<&str> {
        let mut taken = vec![[0u64; 3]; self.names.len()];
        for queued in self.queued.values() {
            for at in &queued.nodes {
                let share = queued.share.unwrap_or(self.resources[*at]);
                for (sum, more) in taken[*at].iter_mut().zip(share) {
                    *sum += more;
                }
            }
        }
        let over = taken.iter().zip(&self.resources);
        let mut over = over.map(|(taken, all)| taken.iter().zip(all).any(|(t, a)| t > a));
        over.position(|is_over| is_over)
            .map(|at| &self.names[at][..])
    }

    /// A reading that begins now.
    pub(crate) fn read(&self, now: Time) -> SlurmSnapshot {
        SlurmSnapshot {
            read_at: EPOCH + now / SECOND,
            ..self.snapshot.clone()
        }
    }
}

/// A job that waits, and asks for nothing.
fn waiting_row(number: u32, user: u32) -> SlurmJob {
    SlurmJob {
        number,
        array: None,
        het: None,
        user,
        user_name: format!("u{user}"),
        partitions: Vec::new(),
        qos: "normal".to_owned(),
        account: format!("u{user}"),
        state: SlurmJobState::Pending,
        reason: PendingReason::None,
        description: String::new(),
        priority: FIRST_PRIORITY.saturating_sub(number).max(1),
        nice: 0,
        submitted: None,
        eligible: None,
        start: None,
        end: None,
        limit: None,
        min_nodes: 1,
        max_nodes: 1,
        cpus: 1,
        memory: None,
        tres_per_node: String::new(),
        is_exclusive: false,
        features: String::new(),
        preferred: String::new(),
        excluded: Arc::from([]),
        required: Arc::from([]),
        nodes: Arc::from([]),
        planned: Arc::from([]),
        reservation: String::new(),
        licences: String::new(),
        dependency: String::new(),
        has_burst_buffer: false,
        admin_comment: String::new(),
        is_incomplete: false,
        lacks_exclusions: false,
    }
}

fn node_named(name: &str, partition: &str, [cores, memory, gpus]: NodeResources) -> SlurmNode {
    SlurmNode {
        name: name.to_owned(),
        state: SlurmNodeState::parse("idle"),
        cpus: cores as u32,
        cpus_allocated: 0,
        memory,
        memory_allocated: 0,
        gres: match gpus {
            0 => String::new(),
            gpus => format!("gpu:{gpus}"),
        },
        features: vec![name.to_owned()],
        active_features: vec![name.to_owned()],
        partitions: BTreeSet::from([partition.to_owned()]),
        reason: String::new(),
        extra: String::new(),
        is_incomplete: false,
    }
}

fn empty() -> SlurmSnapshot {
    SlurmSnapshot {
        read_at: EPOCH,
        nodes: BTreeMap::new(),
        jobs: BTreeMap::new(),
        partitions: BTreeMap::new(),
        reservations: BTreeMap::new(),
        licences: BTreeMap::new(),
        settings: SlurmSettings {
            version: "24.11.5".to_owned(),
            boot_time: Some(EPOCH),
            scheduler_type: "sched/backfill".to_owned(),
            scheduler_parameters: Vec::new(),
            priority_type: "priority/basic".to_owned(),
            min_job_age: Some(0),
            reservation_overrun: Some(0),
            job_completion_type: String::new(),
            energy_type: String::new(),
        },
    }
}
