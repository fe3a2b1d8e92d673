//! The loop of a simulated cluster: one thing after the other, by time.

use super::controller::{SimulatedController, StageCall};
use super::daemons::NodeDaemons;
use super::fault_plan::{ClusterFaultPlan, ClusterFaults};
use super::live::LiveJob;
use super::record::ClusterRecord;
use super::scripts::HandedItem;
use super::slurm::SimulatedSlurm;
use super::{ClusterError, ClusterResult, ClusterSettings, Due, ServiceMode};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use tarn_proto::site::{ControllerReply, Stage};
use tarn_simulator::site::{MachineNetwork, MachineStream};
use tarn_types::site::{JobId, Machine, Submit, Workload};
use tarn_types::units::{Nanos, SECOND, Time};

/// After which nothing is expected any more: longer than any deadline of tarn's.
const STUCK: Nanos = 2 * 3600 * SECOND;

/// The purpose of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StreamPurpose {
    /// A daemon's order.
    Order(String, u64),
    /// A job's program reads or writes.
    Job(u32),
}

/// A simulated cluster.
pub struct SimulatedCluster {
    pub(super) machine: Machine,
    pub(super) work: Arc<Workload>,
    pub(super) settings: ClusterSettings,
    pub(super) now: Time,
    sequence: u64,
    due: BinaryHeap<Reverse<(Time, u64, Due)>>,
    /// When the next pass of the scheduler is due.
    pub(super) next_pass: Option<Time>,
    /// When the next round of backfill is due; `None` while nothing has changed.
    next_backfill: Option<Time>,
    pub(super) network: MachineNetwork,
    pub(super) streams: BTreeMap<MachineStream, StreamPurpose>,
    pub(super) slurm: SimulatedSlurm,
    pub(super) daemons: NodeDaemons,
    pub(super) handed_over: HandedItem,
    /// The site service; `None` where there is no tarn.
    pub(super) controller: Option<SimulatedController>,
    /// Replies that the controller has given.
    pub(super) replies: VecDeque<(StageCall, ControllerReply)>,
    pub(super) live: BTreeMap<u32, LiveJob>,
    /// The numbers of submitted jobs.
    pub(super) numbers: BTreeMap<JobId, u32>,
    pub(super) faults: ClusterFaultPlan,
    pub(super) record: ClusterRecord,
    /// Jobs that are neither done nor taken out, those to come included.
    pub(super) open: usize,
    /// When something that counts happened last.
    progress: Time,
}

impl SimulatedCluster {
    /// A cluster that is idle, and to which this workload will be submitted.
    ///
    /// # Errors
    /// When a job is one that a simulated Slurm does not have.
    pub fn new(
        machine: &Machine,
        work: Arc<Workload>,
        settings: ClusterSettings,
    ) -> Result<Self, ClusterError> {
        check(machine, &work)?;
        let slurm = SimulatedSlurm::new(machine);
        let islands = machine.island_of();
        let tiers = |at: usize| {
            let kind = &machine.islands[usize::from(islands[at])].kind;
            kind.tiers.iter().map(|tier| tier.capacity).sum()
        };
        let has_service = settings.mode != ServiceMode::Without;
        let mut cluster = Self {
            network: MachineNetwork::new(machine),
            daemons: NodeDaemons::new(&slurm.names, tiers),
            handed_over: HandedItem::of(&work, has_service),
            controller: has_service.then(|| SimulatedController::new(settings)),
            record: ClusterRecord::new(&work, machine),
            open: work.jobs.len(),
            machine: machine.clone(),
            settings,
            slurm,
            work,
            now: 0,
            sequence: 0,
            due: BinaryHeap::new(),
            next_pass: None,
            next_backfill: None,
            streams: BTreeMap::new(),
            replies: VecDeque::new(),
            live: BTreeMap::new(),
            numbers: BTreeMap::new(),
            faults: ClusterFaultPlan::default(),
            progress: 0,
        };
        for (number, w) in (0..).zip(&cluster.work.clone().jobs) {
            if let Submit::At(time) = w.submit {
                cluster.at(time, Due::Submit(number));
            }
        }
        Ok(cluster)
    }

    /// Lets things go wrong.
    #[must_use]
    pub fn with_faults(mut self, faults: ClusterFaults) -> Self {
        self.faults = ClusterFaultPlan::new(faults);
        self
    }

    /// Lets it run until all jobs are over.
    ///
    /// # Errors
    /// When a rule is broken, or nothing happens any more.
    pub fn run(mut self) -> Result<ClusterResult, ClusterError> {
        self.plan_faults();
        self.start_service();
        while self.open > 0 {
            let next = self.network.next(self.now);
            let due = self.due.peek().map(|Reverse((at, ..))| *at);
            match (next, due) {
                (Some((at, stream)), due) if due.is_none_or(|due| at <= due) => {
                    self.now = self.now.max(at);
                    self.progress = self.now;
                    self.stream_ended(stream);
                }
                (_, Some(at)) => {
                    self.now = self.now.max(at);
                    if let Some(Reverse((_, _, due))) = self.due.pop() {
                        self.happen(due)?;
                    }
                }
                (_, None) => return Err(self.stuck()),
            }
            self.record.result.events += 1;
            self.take_replies();
            if self.settings.is_checked {
                self.check_rules()?;
            }
            let is_idle = self.streams.is_empty() && self.now - self.progress > STUCK;
            if is_idle && self.due.iter().all(|Reverse((.., due))| due.is_periodic()) {
                return Err(self.stuck());
            }
        }
        self.finish()
    }

    fn happen(&mut self, due: Due) -> Result<(), ClusterError> {
        if !due.is_periodic() {
            self.progress = self.now;
        }
        match due {
            Due::Submit(number) => self.submit(JobId(number)),
            Due::Pass => self.pass(),
            Due::Look => self.request_turn(),
            Due::Backfill => self.backfill(),
            Due::SetUp(job, attempt) if self.is_at(job, attempt) => self.set_up(job),
            Due::DataIn(job, attempt) if self.is_at(job, attempt) => self.data_in(job),
            Due::Staged(job, attempt) if self.is_at(job, attempt) => self.staged(job),
            Due::Launched(job, attempt) if self.is_at(job, attempt) => self.launched(job),
            Due::Start(job, attempt) if self.is_at(job, attempt) => return self.start(job),
            Due::Computed(job, attempt) if self.is_at(job, attempt) => self.computed(job),
            Due::Released(job, attempt) if self.is_at(job, attempt) => self.released(job),
            Due::PostRun(job, attempt) if self.is_at(job, attempt) => {
                self.call(job, Stage::PostRun { ok: true });
            }
            Due::DataOut(job, attempt) if self.is_at(job, attempt) => {
                self.call(job, Stage::DataOut);
            }
            Due::TearDown(job, attempt) if self.is_at(job, attempt) => {
                self.call(job, Stage::Teardown { hurry: false });
            }
            Due::OrderDone(node, number) => self.order_done(&node, number),
            Due::Reading => self.begin_reading(),
            Due::Read => self.end_reading(),
            Due::Plan => self.plan(),
            Due::LoseNode => self.lose_node(),
            Due::NodeBack(node) => self.node_back(node as usize),
            Due::Restart => return self.restart_controller(),
            // Of an attempt that was cut short.
            Due::SetUp(..)
            | Due::DataIn(..)
            | Due::Staged(..)
            | Due::Launched(..)
            | Due::Start(..)
            | Due::Computed(..)
            | Due::Released(..)
            | Due::PostRun(..)
            | Due::DataOut(..)
            | Due::TearDown(..) => {}
        }
        Ok(())
    }

    /// Something will happen at this time.
    pub(super) fn at(&mut self, time: Time, due: Due) {
        self.sequence += 1;
        self.due
            .push(Reverse((time.max(self.now), self.sequence, due)));
    }

    pub(super) fn after(&mut self, wait: Nanos, due: Due) {
        self.at(self.now.saturating_add(wait), due);
    }

    /// Slurm's loops look at the queue in their next turns. Backfill's rounds lie half a period behind those of the main loop at first; as
    /// the periods differ, every distance between them comes up.
    pub(super) fn request_turn(&mut self) {
        let turn = self.settings.times.turn.max(1);
        self.pass_at((self.now / turn + 1) * turn);
        self.request_backfill();
    }

    fn request_backfill(&mut self) {
        let interval = self.settings.times.backfill.max(1);
        if self.next_backfill.is_none() {
            let half = interval / 2;
            let next = ((self.now + half) / interval + 1) * interval - half;
            self.next_backfill = Some(next);
            self.at(next, Due::Backfill);
        }
    }

    /// A job has ended: the main scheduler looks at the queue at once.
    pub(super) fn request_pass(&mut self) {
        self.pass_at(self.now);
    }

    fn pass_at(&mut self, at: Time) {
        if self.next_pass.is_none_or(|next| at < next) {
            self.next_pass = Some(at);
            self.at(at, Due::Pass);
        }
    }

    fn pass(&mut self) {
        if self.next_pass.is_none_or(|next| next > self.now) {
            // Another one came before it.
            return;
        }
        self.next_pass = None;
        if let Some(at) = self.slurm.lapse(self.now) {
            self.at(at, Due::Look);
        }
        // Backfill looks at the jobs that it leaves.
        self.request_backfill();
        self.schedule(false);
    }

    fn backfill(&mut self) {
        self.next_backfill = None;
        self.schedule(true);
    }

    fn schedule(&mut self, is_backfill: bool) {
        let pass = self.slurm.schedule(self.now, is_backfill);
        for job in pass.begun {
            self.begun(job);
        }
        for job in pass.called {
            self.call_setup(job);
        }
    }

    fn stream_ended(&mut self, stream: MachineStream) {
        self.network.stop(self.now, stream);
        match self.streams.remove(&stream) {
            Some(StreamPurpose::Order(node, number)) => self.order_streamed(node, number, stream),
            Some(StreamPurpose::Job(job)) => self.job_streamed(job, stream),
            None => {}
        }
    }

    fn stuck(&self) -> ClusterError {
        let waiting = self.slurm.snapshot.jobs.values().next();
        let why = waiting.map_or("it was never submitted".to_owned(), |job| {
            format!("Slurm has it {:?}, reason {:?}", job.state, job.reason)
        });
        ClusterError::Stuck {
            at: self.now / SECOND,
            job: waiting.map_or(String::new(), |job| job.number.to_string()),
            why,
        }
    }

    /// Checks what must always hold.
    fn check_rules(&self) -> Result<(), ClusterError> {
        if let Some(node) = self.slurm.overcommitted() {
            let what = format!("jobs have more of {node} than it has");
            return Err(self.rule("nodes have jobs for as much as they have", what));
        }
        if let Some(node) = self.daemons.overfull() {
            let what = format!("the store of {node} holds more than it can");
            return Err(self.rule("space is never negative", what));
        }
        Ok(())
    }

    pub(super) fn rule(&self, rule: &'static str, what: String) -> ClusterError {
        ClusterError::Rule {
            at: self.now / SECOND,
            rule,
            what,
        }
    }
}

/// Refuses jobs that a simulated Slurm does not have.
fn check(machine: &Machine, work: &Workload) -> Result<(), ClusterError> {
    let largest = machine.islands.iter().map(|island| island.nodes).max();
    for (number, w) in (0..).map(JobId).zip(&work.jobs) {
        let found = if w.job.continues.is_some() {
            let instead = "submit the workflow as jobs with dependencies (`--submit dependencies`)";
            Some(("continues in another one's allocation", instead))
        } else if w.job.mode.is_some() {
            Some((
                "asks for a memory mode",
                "leave the mode out of the workload",
            ))
        } else if w.job.nodes > largest.unwrap_or(0) {
            Some((
                "asks for more nodes than any island has",
                "give the machine more nodes, or leave the job out",
            ))
        } else {
            None
        };
        if let Some((what, instead)) = found {
            let job = match w.name.is_empty() {
                true => number.to_string(),
                false => w.name.to_string(),
            };
            return Err(ClusterError::Unsupported { job, what, instead });
        }
    }
    Ok(())
}
