//! L4: the planner of jobs ([`tarn_engine::plan::Planner`]) on a Slurm cluster, without I/O. docs/internals/driving-slurm.md.
//!
//! [`SitePlanner::see`] takes a snapshot of Slurm and the state of the site service, and has the planner know the
//! difference. Its state is derived: it is built again from the newest snapshot at any time, and never logged.
//! [`SitePlanner::plan`] follows a copy of the planner into the future, in which jobs run as long as expected.
//!
//! Reading order: `topology` (nodes), `wanted` with `eligible` and `choices` (jobs as a snapshot has them), `seniority`, `jobs` and
//! `data` (as the planner has them), `difference` (events), `forecast` (the plan), `accuracy`.

mod accuracy;
mod arrivals;
mod choices;
mod data;
mod difference;
mod eligible;
mod features;
mod forecast;
mod gres;
mod hosted;
mod jobs;
mod marks;
mod mode_features;
mod modes;
mod planned;
mod power;
mod promised;
mod rates;
mod reserve;
mod runtimes;
mod seniority;
pub mod simulated;
mod topology;
mod wanted;

#[cfg(test)]
mod tests;

pub use accuracy::PlanAccuracy;
pub use difference::JobTransition;
pub use marks::{
    CallError, DelayWish, JoinWish, MAX_AGE, MAX_RESERVATIONS, MAX_USER_RESERVATIONS, MarkOrder,
    MarkStep, Marks, ReservationWish, WorkflowKey,
};
pub use planned::{PlannedJob, SitePlan, UnplannedJob};
pub use power::{PowerOrder, PowerWish, SitePower};
pub use promised::SitePromise;
pub use rates::SiteRates;

use accuracy::BeginRecords;
use data::DataTable;
use difference::SnapshotDifference;
use hosted::{HostedMoves, NodeWish};
use jobs::{JobTable, KnownStage};
use modes::ModeTable;
use power::PowerTable;
use reserve::KeptNodes;
use runtimes::RunTimes;
use seniority::give_seniority;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tarn_engine::plan::Planner;
use tarn_site::PlanningView;
use tarn_slurm::{SlurmJobState, SlurmSnapshot};
use tarn_types::id::NodeId;
use tarn_types::policy::Policy;
use tarn_types::site::{JobId, SiteAction, SiteEvent};
use tarn_types::units::{Nanos, SECOND, Time};
use topology::ClusterTopology;
use wanted::{WantedJob, WantedStage, wanted};

/// Numbers of jobs or items after which the planner is built again: its tables are as long as the highest.
const MAX_NUMBERS: u32 = 1 << 20;
/// A clock that is behind the planner's by more was set back.
const MAX_BACK: Nanos = 5 * SECOND;
/// Rounds in which the host answers the actions of one step; what is left comes with the next step.
const MAX_ROUNDS: usize = 16;
/// Snapshots for which a job that the planner began stays so if Slurm does not begin it.
const SNAPSHOTS_TO_BEGIN: u32 = 2;

/// Why the planner was built from nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RebuildReason {
    /// There was none.
    First,
    /// The set of nodes, or their kinds, differ.
    NodesChanged,
    /// slurmctld was started again.
    SlurmRestarted,
    /// Slurm's clock was set back.
    ClockSetBack,
    /// Its numbers are used up.
    NumbersUsedUp,
    /// It differed from the snapshot in this.
    Disagreement(String),
}

/// The changes that a snapshot brought.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SeenChanges {
    /// Why the planner was built again, if it was.
    pub rebuilt: Option<RebuildReason>,
    /// The jobs that began or ended since the snapshot before.
    pub transitions: Vec<JobTransition>,
    /// The planner's decisions: wishes to a host that observes.
    pub actions: Vec<SiteAction>,
    /// Events that the planner refused although it was built again: a fault of tarn's.
    pub refused: Vec<String>,
}

/// The planner of a cluster.
pub struct SitePlanner {
    policy: Policy,
    rates: SiteRates,
    topology: Arc<ClusterTopology>,
    planner: Planner,
    jobs: JobTable,
    data: DataTable,
    closed: BTreeSet<NodeId>,
    moves: HostedMoves,
    power: PowerTable,
    modes: ModeTable,
    wishes: BTreeMap<u32, NodeWish>,
    /// Why jobs of the newest snapshot get no plan.
    excluded: BTreeMap<u32, (u32, String)>,
    /// The users of the jobs of the newest snapshot, and their workflows.
    owners: BTreeMap<u32, (u32, Option<String>)>,
    runs: RunTimes,
    records: BeginRecords,
    /// Nodes of running steps that are kept for the next ones, by these.
    kept: BTreeMap<u32, KeptNodes>,
    /// The promise that it has given: the only state that a planner that is built again needs.
    promise: Option<SitePromise>,
    /// When slurmctld started; `None` before the first snapshot.
    boot: Option<Option<u64>>,
    now: Time,
}

impl SitePlanner {
    /// A planner that has seen nothing yet.
    pub fn new(policy: Policy, rates: SiteRates) -> Self {
        let topology = ClusterTopology::default();
        Self {
            planner: Planner::new(&topology.machine(&rates), policy),
            policy,
            rates,
            topology: Arc::new(topology),
            jobs: JobTable::default(),
            data: DataTable::default(),
            closed: BTreeSet::new(),
            moves: HostedMoves::default(),
            power: PowerTable::default(),
            modes: ModeTable::default(),
            wishes: BTreeMap::new(),
            excluded: BTreeMap::new(),
            owners: BTreeMap::new(),
            runs: RunTimes::default(),
            records: BeginRecords::default(),
            kept: BTreeMap::new(),
            promise: None,
            boot: None,
            now: 0,
        }
    }

    /// The figures of a site about its nodes' power, for those that are not measured.
    #[must_use]
    pub fn with_power(mut self, power: SitePower) -> Self {
        self.power = PowerTable::new(power);
        self
    }

    /// Takes a snapshot and the state of the site service at the same time. `now` is in nanoseconds since 1970, by the clock
    /// that Slurm has: its times of jobs are compared with it.
    pub fn see(&mut self, snapshot: &SlurmSnapshot, view: &PlanningView, now: Time) -> SeenChanges {
        let mut seen = SeenChanges {
            rebuilt: self.doubt(snapshot, view, now),
            ..SeenChanges::default()
        };
        self.now = match &seen.rebuilt {
            Some(RebuildReason::ClockSetBack) => now,
            _ => self.now.max(now),
        };
        if let Some(RebuildReason::NodesChanged | RebuildReason::ClockSetBack) = &seen.rebuilt {
            // Nodes may have other numbers, and times would come later than they should.
            self.kept.clear();
        }
        if seen.rebuilt.is_some() {
            self.begin_again(Arc::new(ClusterTopology::of(snapshot, view)));
        }
        self.boot = Some(snapshot.settings.boot_time);
        self.note_runs(snapshot);
        let topology = Arc::clone(&self.topology);
        let mut jobs = wanted(snapshot, view, &topology, (&self.runs, &self.jobs));
        give_seniority(snapshot, view, &mut jobs);
        self.note_jobs(&jobs);
        let mut refused = self.apply(snapshot, view, &jobs, &mut seen);
        let differs = self.difference_from(&jobs, &refused);
        if let Some(what) = differs.filter(|_| seen.rebuilt.is_none()) {
            seen.rebuilt = Some(RebuildReason::Disagreement(what));
            seen.actions.clear();
            self.begin_again(topology);
            refused = self.apply(snapshot, view, &jobs, &mut seen);
        }
        seen.refused = refused;
        self.note_promise();
        seen
    }

    /// Why the planner has to be built again before this snapshot.
    fn doubt(
        &self,
        snapshot: &SlurmSnapshot,
        view: &PlanningView,
        now: Time,
    ) -> Option<RebuildReason> {
        let Some(boot) = self.boot else {
            return Some(RebuildReason::First);
        };
        if self.now.saturating_sub(now) > MAX_BACK {
            return Some(RebuildReason::ClockSetBack);
        }
        if !self.topology.is_of(snapshot, view) {
            return Some(RebuildReason::NodesChanged);
        }
        if boot != snapshot.settings.boot_time {
            return Some(RebuildReason::SlurmRestarted);
        }
        let numbers = self.jobs.numbers().max(self.data.numbers());
        (numbers > MAX_NUMBERS).then_some(RebuildReason::NumbersUsedUp)
    }

    fn begin_again(&mut self, topology: Arc<ClusterTopology>) {
        self.planner = Planner::new(&topology.machine(&self.rates), self.policy);
        self.topology = topology;
        self.jobs = JobTable::default();
        self.data = DataTable::default();
        self.closed.clear();
        self.moves = HostedMoves::default();
        self.power.begin_again();
        self.modes.begin_again();
        self.wishes.clear();
    }

    /// Notes how long jobs ran that have ended, before others of their kind are looked at.
    fn note_runs(&mut self, snapshot: &SlurmSnapshot) {
        let ended = |number: &u32| match snapshot.jobs.get(number) {
            None => true,
            Some(job) => job.state == SlurmJobState::StageOut || job.state.has_ended(),
        };
        for (number, known) in &self.jobs.jobs {
            if let KnownStage::Has { since, .. } = &known.stage
                && ended(number)
            {
                let seconds = snapshot.read_at.saturating_sub(since / SECOND);
                self.runs.note(known.kind.clone(), seconds);
            }
        }
    }

    fn note_jobs(&mut self, jobs: &BTreeMap<u32, WantedJob<'_>>) {
        self.excluded.clear();
        self.owners.clear();
        for (number, job) in jobs {
            let workflow = job.data.map(|d| d.workflow.1.clone());
            self.owners.insert(*number, (job.user, workflow));
            if let WantedStage::Excluded(why) = &job.stage {
                self.excluded.insert(*number, (job.user, why.clone()));
            }
        }
    }

    /// Has the planner know the difference. Returns the events that it refused.
    fn apply(
        &mut self,
        snapshot: &SlurmSnapshot,
        view: &PlanningView,
        jobs: &BTreeMap<u32, WantedJob<'_>>,
        seen: &mut SeenChanges,
    ) -> Vec<String> {
        let mut events = self.moves.over(self.now);
        self.modes
            .difference(snapshot, &self.planner, &self.topology, &mut events);
        if self.policy.has_sleepers() {
            let (planner, topology) = (&mut self.planner, &self.topology);
            self.power
                .difference((snapshot, view), planner, topology, &mut events);
            self.power.measure((snapshot, view), planner, topology);
        }
        let mut difference = SnapshotDifference {
            planner: &self.planner,
            topology: &self.topology,
            jobs: &mut self.jobs,
            data: &mut self.data,
            closed: &mut self.closed,
            wishes: &mut self.wishes,
            view,
            read_at: snapshot.read_at,
            events: &mut events,
            transitions: &mut seen.transitions,
            again: BTreeSet::new(),
        };
        difference.of(snapshot, jobs);
        if seen.rebuilt.is_some() {
            let kept = self.promise.as_ref().and_then(|p| p.event(&self.jobs));
            events.extend(kept);
        }
        let mut refused = Vec::new();
        self.step(&events, &mut seen.actions, &mut refused);
        // The planner's layouts are known only now, with the jobs that were submitted.
        let mut events = Vec::new();
        let (planner, topology) = (&self.planner, &self.topology);
        let known = jobs.iter().filter(|(n, _)| self.jobs.jobs.contains_key(n));
        let used = known.filter_map(|(_, job)| job.data).flat_map(|data| {
            let reads = data.reads.iter().map(|(key, _)| key);
            reads.chain(&data.makes)
        });
        let used = used.collect();
        self.data
            .reconcile((view, &used), planner, topology, &mut events);
        if !events.is_empty() {
            self.step(&events, &mut seen.actions, &mut refused);
        }
        for change in &seen.transitions {
            self.records.note(change, &self.jobs, &self.topology);
        }
        self.records.keep_only(jobs);
        refused
    }

    /// One step of the planner, and its host's answers.
    fn step(
        &mut self,
        events: &[SiteEvent],
        actions: &mut Vec<SiteAction>,
        refused: &mut Vec<String>,
    ) {
        let mut answers: Vec<SiteEvent> = Vec::new();
        for round in 0..MAX_ROUNDS {
            let events = if round == 0 { events } else { &answers };
            let mut decided = Vec::new();
            let without = self.planner.step_all(self.now, events, &mut decided);
            // A job that cannot have its promise any more has none.
            let is_promise =
                |at: &usize| matches!(events.get(*at), Some(SiteEvent::Promised { .. }));
            let without = without.into_iter().filter(|(at, _)| !is_promise(at));
            refused.extend(without.map(|(at, why)| {
                let event = events
                    .get(at)
                    .map_or_else(String::new, |e| format!("{e:?}"));
                format!("{why} ({})", event.chars().take(200).collect::<String>())
            }));
            answers = decided
                .iter()
                .filter_map(|action| self.perform(action))
                .collect();
            actions.append(&mut decided);
            if answers.is_empty() {
                return;
            }
        }
        self.moves.answer_later(answers);
    }

    /// Notes an action, and answers it if nothing is to be waited for.
    fn perform(&mut self, action: &SiteAction) -> Option<SiteEvent> {
        match action {
            SiteAction::Plan {
                job,
                nodes,
                begin,
                why,
            } => self.wish(*job, NodeWish::planned(nodes, *begin, *why)),
            SiteAction::Allocate { job, nodes, why } => {
                self.wish(*job, NodeWish::allocated(nodes, self.now, *why));
            }
            SiteAction::Unplan { job } | SiteAction::Release { job } => {
                if let Some(number) = self.jobs.number_of(*job) {
                    self.wishes.remove(&number);
                }
            }
            SiteAction::Refuse { job, lacks } => self.refuse(*job, lacks),
            SiteAction::GiveUp { job } => self.refuse(*job, "it failed too often"),
            SiteAction::Move(order) => self.moves.begin(self.now, order, &self.rates),
            SiteAction::Cancel { id } => return self.moves.cancel(*id),
            SiteAction::SetMode { .. } => self.modes.note(action, self.now),
            SiteAction::Run { job, .. } => {
                let number = self.jobs.number_of(*job);
                if let Some(wish) = number.and_then(|n| self.wishes.get_mut(&n)) {
                    wish.runs = true;
                }
            }
            SiteAction::Sleep { .. } | SiteAction::Wake { .. } => {
                self.power.note(action, self.now);
            }
            SiteAction::Drop { .. } => {}
        }
        None
    }

    fn wish(&mut self, job: JobId, wish: NodeWish) {
        if let Some(number) = self.jobs.number_of(job) {
            self.wishes.insert(number, wish);
        }
    }

    fn refuse(&mut self, job: JobId, why: &str) {
        let number = self.jobs.number_of(job);
        if let Some(known) = number.and_then(|n| self.jobs.jobs.get_mut(&n)) {
            known.stage = KnownStage::Refused(why.to_owned());
        }
    }

    /// The running job that the planner has otherwise than the snapshot; `None` where it has all.
    fn difference_from(
        &self,
        jobs: &BTreeMap<u32, WantedJob<'_>>,
        refused: &[String],
    ) -> Option<String> {
        if let Some(first) = refused.first() {
            return Some(first.clone());
        }
        jobs.iter().find_map(|(number, job)| {
            let WantedStage::Has { nodes, .. } = &job.stage else {
                return None;
            };
            let known = self.jobs.jobs.get(number);
            if let Some([id]) = known.map(|known| &known.ids[..])
                && self
                    .planner
                    .nodes_of(*id)
                    .is_some_and(|has| has[..] == nodes[..])
            {
                return None;
            }
            let ids = known.into_iter().flat_map(|k| &k.ids);
            let has = ids.filter_map(|id| self.planner.nodes_of(*id));
            let has: BTreeSet<NodeId> = has.flat_map(|n| n.iter().copied()).collect();
            let is_same = has.len() == nodes.len() && nodes.iter().all(|n| has.contains(n));
            (!is_same).then(|| format!("job {number} has other nodes"))
        })
    }

    /// When the planner, or the end of a copy, needs [`SitePlanner::pass`].
    pub fn deadline(&self) -> Option<Time> {
        let of_moves = self.moves.next();
        self.planner.deadline().into_iter().chain(of_moves).min()
    }

    /// Time has passed without a snapshot. Returns the planner's decisions.
    pub fn pass(&mut self, now: Time) -> Vec<SiteAction> {
        self.now = self.now.max(now);
        let mut events = self.moves.over(self.now);
        events.push(SiteEvent::Timer);
        let (mut actions, mut refused) = (Vec::new(), Vec::new());
        self.step(&events, &mut actions, &mut refused);
        self.note_promise();
        actions
    }

    /// The decisions about nodes' sleep among these.
    pub fn power_orders(&self, actions: &[SiteAction]) -> Vec<PowerOrder> {
        let order = |node: NodeId, wish| PowerOrder {
            node: self.topology.name(node).to_owned(),
            wish,
        };
        let orders = actions.iter().filter_map(|action| match action {
            SiteAction::Sleep { node } => Some(order(*node, PowerWish::Sleep)),
            SiteAction::Wake { node } => Some(order(*node, PowerWish::Wake)),
            _ => None,
        });
        orders.collect()
    }

    /// How well begins were planned so far.
    pub fn accuracy(&self) -> PlanAccuracy {
        self.records.accuracy()
    }
}
