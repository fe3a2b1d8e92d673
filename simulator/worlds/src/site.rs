//! A whole site in virtual time: carries out a planner's decisions ([`SiteAction`]), reports events to it ([`SiteEvent`]), and
//! measures.
//!
//! Everything is an integer and nothing depends on a hash order: the same machine, workload, faults and actions give the
//! same events. An order that the planner may not give is a [`WorldError`]; the world itself only refuses the impossible, and
//! [`Checked`] holds the planner to every rule.
//!
//! When a node is lost, or reboots and with it its `app_direct` tiers, every layout that includes the node is gone, from
//! its other nodes too. Jobs that had a lost node have ended without success; they keep their allocation until they are
//! released.

mod arrivals;
mod checked;
mod earliest;
mod faults;
mod fluid;
mod hosted;
mod jobs;
mod moves;
mod network;
mod nodes;
mod plumbing;
mod power;
mod record;
mod recount;
mod space;
mod taken_out;

use arrivals::JobArrivals;
pub use checked::Checked;
pub use faults::SiteFaults;
use faults::SlowResource;
use fluid::{Fluid, StreamIndex};
pub use hosted::HostedSite;
use jobs::{JobSlot, SimulatedJobPhase};
use moves::ActiveMove;
pub use network::{MachineNetwork, MachineStream, StreamWay};
use nodes::NodeSlot;
use power::SitePowerMeter;
use record::SiteRecorder;
use space::TierOccupancy;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use tarn_ports::{SiteWorld, WorldError};
use tarn_types::id::NodeId;
use tarn_types::site::{
    JobId, JobResult, Machine, MoveId, NodeKind, SiteAction, SiteEvent, SiteResult, Workload,
};
use tarn_types::units::{Elapsed, Time};

/// Timers in a row without an action or anything else that happens: a planner that asks for more waits for nothing.
const MAX_IDLE_TIMERS: u32 = 100_000;

/// An event at a known time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ScheduledSiteEvent {
    /// A program ends; not if it was stopped before.
    End(JobId),
    /// A node has booted: woken up, or in another mode.
    Boot(NodeId),
    Lose,
    Back(NodeId),
    Slow,
    SlowOver(SlowResource),
}

/// A site in virtual time.
#[derive(Debug)]
pub struct SimulatedSite {
    machine: Machine,
    island_of: Vec<u16>,
    work: Arc<Workload>,
    faults: SiteFaults,
    now: Time,
    /// Numbers the due events, to recognise those that were overtaken.
    numbered: u64,
    due: BinaryHeap<Reverse<(Time, u64, ScheduledSiteEvent)>>,
    /// Events that were not delivered yet.
    ready: VecDeque<SiteEvent>,
    arrivals: JobArrivals,
    jobs: Vec<JobSlot>,
    /// Submitted jobs that are neither done nor taken out.
    open: usize,
    /// The writer of each item.
    producers: Vec<Option<JobId>>,
    /// Pairs of jobs (before, after) of which one waits for the other; made when a job is first taken out.
    waits: Vec<(JobId, JobId)>,
    nodes: Vec<NodeSlot>,
    space: TierOccupancy,
    fluid: Fluid,
    /// By stream.
    moving: Vec<Option<ActiveMove>>,
    streams: HashMap<MoveId, StreamIndex>,
    losses: u64,
    /// Nodes that are lost or boot: data of a lost one may have to be made again once they are back.
    away: u32,
    slow_downs: u64,
    /// The slow resources, and how many times over.
    slow: BTreeMap<SlowResource, u32>,
    idle_timers: u32,
    record: SiteRecorder,
}

impl SimulatedSite {
    /// A site on which nothing goes wrong.
    ///
    /// # Errors
    /// When the workload contradicts itself.
    pub fn new(machine: &Machine, work: Arc<Workload>) -> Result<Self, WorldError> {
        let arrivals = JobArrivals::new(&work)?;
        let island_of = machine.island_of();
        let mut producers = vec![None; work.items.len()];
        for (number, w) in (0u32..).zip(&work.jobs) {
            for item in &w.job.writes {
                producers[item.at()] = Some(JobId(number));
            }
        }
        let result = SiteResult {
            jobs: vec![JobResult::default(); work.jobs.len()],
            delivered: vec![None; work.flows.len()],
            ..SiteResult::default()
        };
        let modes = island_of
            .iter()
            .map(|i| &machine.islands[usize::from(*i)].kind);
        Ok(Self {
            nodes: modes.map(|kind| NodeSlot::new(kind.mode)).collect(),
            jobs: std::iter::repeat_with(JobSlot::default)
                .take(work.jobs.len())
                .collect(),
            space: TierOccupancy::new(island_of.len(), work.items.iter().map(|i| i.item.bytes)),
            fluid: Fluid::new(plumbing::capacities(machine).into_iter()),
            record: SiteRecorder {
                result,
                meter: SitePowerMeter::new(machine),
                spans: false,
            },
            machine: machine.clone(),
            island_of,
            work,
            faults: SiteFaults::default(),
            now: 0,
            numbered: 0,
            due: BinaryHeap::new(),
            ready: VecDeque::new(),
            arrivals,
            open: 0,
            producers,
            waits: Vec::new(),
            moving: Vec::new(),
            streams: HashMap::new(),
            losses: 0,
            away: 0,
            slow_downs: 0,
            slow: BTreeMap::new(),
            idle_timers: 0,
        })
    }

    /// Lets things go wrong.
    #[must_use]
    pub fn with_faults(mut self, faults: SiteFaults) -> Self {
        self.faults = faults;
        self.plan_loss();
        self.plan_slow_down();
        self
    }

    /// Keeps spans for charts.
    #[must_use]
    pub fn with_spans(mut self) -> Self {
        self.record.spans = true;
        self
    }

    /// Holds the planner to every rule.
    #[must_use]
    pub fn checked(self) -> Checked<Self> {
        let machine = self.machine.clone();
        Checked::new(&machine, self)
    }

    /// The result so far.
    pub fn into_result(mut self) -> SiteResult {
        self.end_spans();
        let mut result = self.record.result;
        result.tier_peaks = self.space.peaks;
        result.tier_peak_all = self.space.peak_all;
        result
    }

    fn kind(&self, node: NodeId) -> &NodeKind {
        &self.machine.islands[usize::from(self.island_of[node.at()])].kind
    }

    /// Something will happen. Its number.
    fn at(&mut self, time: Time, what: ScheduledSiteEvent) -> u64 {
        self.numbered += 1;
        self.due.push(Reverse((time, self.numbered, what)));
        self.numbered
    }

    /// Refuses an action that cannot be done.
    fn refuse<T>(&self, what: String) -> Result<T, WorldError> {
        Err(WorldError(format!(
            "site at {} ({} ns): {what}; this is an error of the planner that ordered it",
            Elapsed(self.now),
            self.now
        )))
    }

    /// Nothing is left to be done for anybody.
    fn is_over(&self, next_arrival: Option<Time>) -> bool {
        let idle = self.open == 0 && self.streams.is_empty() && self.away == 0;
        idle && next_arrival.is_none()
    }

    /// The next event and its time: due events before ends of moves before submissions.
    fn upcoming(&mut self) -> Option<(Time, Next)> {
        let arrival = self.arrivals.time(self.now);
        if self.is_over(arrival) {
            return None;
        }
        let now = self.now;
        let due = self.due.peek().map(|Reverse(d)| d.0.max(now));
        // An event that is due now needs no new rates of moves.
        if due == Some(now) {
            return Some((now, Next::Due));
        }
        if let Some(slot) = self.fluid.ended(now) {
            return Some((now, Next::Moved(slot)));
        }
        if arrival == Some(now) {
            return Some((now, Next::Submitted));
        }
        let due = due.map(|t| (t, Next::Due));
        let moved = self.fluid.next(now).map(|(t, s)| (t, Next::Moved(s)));
        let comes = arrival.map(|t| (t, Next::Submitted));
        let all = [due, moved, comes];
        all.into_iter().flatten().min_by_key(|n| n.0)
    }

    /// Lets it happen. `None` if there is nothing to report.
    fn happens(&mut self, what: Next) -> Option<SiteEvent> {
        match what {
            Next::Moved(slot) => self.move_ends(slot),
            Next::Submitted => {
                let mut jobs = self.arrivals.take();
                // Jobs that wait for a job that was taken out went with it.
                jobs.retain(|j| self.phase(*j) == Some(SimulatedJobPhase::Unknown));
                if jobs.is_empty() {
                    return None;
                }
                self.submit(&jobs);
                Some(self.arrivals.event(&self.work, &jobs))
            }
            Next::Due => {
                let Reverse((_, number, due)) = self.due.pop()?;
                match due {
                    ScheduledSiteEvent::End(job) => self.program_ends(job, number),
                    ScheduledSiteEvent::Boot(node) => self.booted(node, number),
                    ScheduledSiteEvent::Lose => self.lose_one(),
                    ScheduledSiteEvent::Back(node) => self.back(node),
                    ScheduledSiteEvent::Slow => self.slow_down(),
                    ScheduledSiteEvent::SlowOver(what) => self.slow_over(what),
                }
            }
        }
    }

    fn deliver_event(&mut self, event: SiteEvent) -> Result<Option<(Time, SiteEvent)>, WorldError> {
        let timer = event == SiteEvent::Timer;
        self.idle_timers = if timer { self.idle_timers + 1 } else { 0 };
        if self.idle_timers > MAX_IDLE_TIMERS {
            return self.refuse(format!(
                "the planner asked for {MAX_IDLE_TIMERS} timers in a row and did nothing"
            ));
        }
        self.record.result.events += 1;
        if cfg!(debug_assertions) {
            self.check_accounts();
        }
        Ok(Some((self.now, event)))
    }
}

/// The kind of the next event.
#[derive(Debug, Clone, Copy)]
enum Next {
    Due,
    Moved(StreamIndex),
    Submitted,
}

impl SiteWorld for SimulatedSite {
    fn perform(&mut self, now: Time, action: &SiteAction) -> Result<(), WorldError> {
        if now != self.now {
            return self.refuse(format!("acts at {now} ns, which is not now"));
        }
        self.idle_timers = 0;
        match action {
            SiteAction::Plan { .. } | SiteAction::Unplan { .. } => Ok(()),
            SiteAction::Allocate { job, nodes, .. } => self.allocate(*job, nodes),
            SiteAction::Move(order) => self.begin_move(order),
            SiteAction::Cancel { id } => self.cancel(*id),
            SiteAction::Run {
                job,
                attempt,
                local_read,
                local_write,
                to_tiers,
                retained,
            } => {
                let run = jobs::JobRunSpec {
                    attempt: *attempt,
                    local_read: *local_read,
                    local_write: *local_write,
                    to_tiers: *to_tiers,
                };
                let sum = &mut self.record.result.bytes.retained;
                *sum = sum.saturating_add(*retained);
                self.run(*job, run)
            }
            SiteAction::Release { job } => self.release(*job),
            SiteAction::Drop {
                item,
                nodes,
                spread,
            } => self.drop_item(*item, nodes, *spread),
            SiteAction::SetMode { node, mode } => self.set_mode(*node, *mode),
            SiteAction::Sleep { node } => self.sleep(*node),
            SiteAction::Wake { node } => self.wake(*node),
            SiteAction::Refuse { job, lacks } => self.take_out(*job, Some(lacks.clone())),
            SiteAction::GiveUp { job } => self.take_out(*job, None),
        }
    }

    fn next(&mut self, until: Option<Time>) -> Result<Option<(Time, SiteEvent)>, WorldError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return self.deliver_event(event);
            }
            let upcoming = self.upcoming();
            let until = until.map(|t| t.max(self.now));
            match (upcoming, until) {
                (Some((time, what)), until) if until.is_none_or(|u| time <= u) => {
                    self.now = time;
                    if let Some(event) = self.happens(what) {
                        return self.deliver_event(event);
                    }
                }
                (_, Some(until)) => {
                    self.now = until;
                    return self.deliver_event(SiteEvent::Timer);
                }
                (_, None) => return Ok(None),
            }
        }
    }
}
