//! A host that decides by itself, as a batch scheduler does. It starts ordinary jobs without data where and when it likes:
//! as the planner wishes, on other nodes, later, not at all, or before the planner has decided anything, by a backfill of
//! its own. Now and then it drains nodes, cancels, holds, requeues and changes jobs, and copies and loses data
//! ([`whims`]). All other jobs it starts as the planner orders.

mod start;
mod whims;

use super::{SimulatedJobPhase, SimulatedSite};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tarn_ports::{SiteWorld, WorldError};
use tarn_types::id::NodeId;
use tarn_types::random::Random;
use tarn_types::site::{
    AllocationReason, ItemId, Job, JobId, JobNodes, Move, MoveId, NodeShare, SiteAction, SiteEvent,
    Spread, Submit,
};
use tarn_types::units::{SECOND, Time};

/// Copies that the host makes by itself have numbers from here on.
const OWN_MOVES: u64 = 1 << 40;

/// A job that the host starts by itself.
#[derive(Debug)]
struct HostedJob {
    spec: Arc<Job>,
    attempts: u32,
    /// Held by its user until then.
    held_until: Option<Time>,
}

/// The host's intention about nodes that the planner has allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WishFate {
    Begins,
    BeginsElsewhere,
    NeverBegins,
}

/// Nodes that the planner has allocated to a job of the host's.
#[derive(Debug)]
struct Wish {
    nodes: JobNodes,
    fate: WishFate,
    at: Time,
}

/// A site whose host decides by itself.
#[derive(Debug)]
pub struct HostedSite {
    site: SimulatedSite,
    random: Random,
    /// From then on it only does what the planner wishes.
    calm: Time,
    /// All jobs that it starts by itself, and those of them that have come and neither ended nor been cancelled.
    own: BTreeSet<JobId>,
    jobs: BTreeMap<JobId, HostedJob>,
    wishes: BTreeMap<JobId, Wish>,
    /// The jobs that have nodes.
    running: BTreeMap<JobId, (Arc<Job>, JobNodes)>,
    /// All jobs as they were submitted.
    specs: BTreeMap<JobId, Arc<Job>>,
    /// Jobs with data of which it has reported the begin, as the planner ordered it.
    confirmed: BTreeSet<JobId>,
    /// Closed nodes, and when they open.
    closed: BTreeMap<NodeId, Time>,
    /// The planner's moves under way, and the host's own.
    moving: BTreeMap<MoveId, Move>,
    copies: BTreeMap<MoveId, (ItemId, JobNodes)>,
    /// Moves that the host has overtaken: their ends are no events.
    overtaken: BTreeSet<MoveId>,
    ready: VecDeque<SiteEvent>,
    next_whim: Time,
    /// Something has happened since it last looked for jobs to start.
    looks: bool,
}

impl SimulatedSite {
    /// Lets a host decide by itself until `calm`.
    #[must_use]
    pub fn hosted(self, seed: u64, calm: Time) -> HostedSite {
        let work = &self.work;
        let mut named: BTreeSet<JobId> = BTreeSet::new();
        for w in &work.jobs {
            named.extend(w.job.after.iter().chain(&w.job.continues));
            if let Submit::After(before) = w.submit {
                named.insert(before);
            }
        }
        let alone = |job: &Job| {
            let data = job.reads.is_empty() && job.writes.is_empty();
            data && job.flow.is_none() && job.after.is_empty() && job.continues.is_none()
        };
        let jobs = (0..).map(JobId).zip(&work.jobs);
        let own = jobs.filter(|(id, w)| alone(&w.job) && !named.contains(id));
        HostedSite {
            own: own.map(|(id, _)| id).collect(),
            random: Random::new(seed),
            calm,
            jobs: BTreeMap::new(),
            wishes: BTreeMap::new(),
            running: BTreeMap::new(),
            specs: BTreeMap::new(),
            confirmed: BTreeSet::new(),
            closed: BTreeMap::new(),
            moving: BTreeMap::new(),
            copies: BTreeMap::new(),
            overtaken: BTreeSet::new(),
            ready: VecDeque::new(),
            next_whim: 0,
            looks: false,
            site: self,
        }
    }
}

impl HostedSite {
    /// Holds the planner to every rule.
    #[must_use]
    pub fn checked(self) -> super::Checked<Self> {
        let machine = self.site.machine.clone();
        super::Checked::new(&machine, self)
    }

    /// The simulated site.
    pub fn into_inner(self) -> SimulatedSite {
        self.site
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.random.below(100) < chance
    }

    fn seconds(&mut self, from: u64, to: u64) -> Time {
        self.random.within(from..to + 1) * SECOND
    }

    fn is_calm(&self) -> bool {
        self.site.now >= self.calm
    }

    fn order(&mut self, action: &SiteAction) -> Result<(), WorldError> {
        let now = self.site.now;
        self.site.perform(now, action)
    }

    /// When the host has something to do next.
    fn alarm(&self) -> Option<Time> {
        let next = self.site.arrivals.time(self.site.now);
        if self.site.is_over(next) {
            return None;
        }
        let whim = (!self.is_calm()).then_some(self.next_whim);
        let wishes = self.wishes.values().map(|w| w.at);
        let held = self.jobs.values().filter_map(|j| j.held_until);
        let opens = self.closed.values().copied();
        wishes.chain(held).chain(opens).chain(whim).min()
    }

    /// The next act of the host.
    fn decide(&mut self) -> Result<Option<SiteEvent>, WorldError> {
        if !self.looks {
            return Ok(None);
        }
        let now = self.site.now;
        if let Some(node) = first_due(self.closed.iter().map(|(n, at)| (*at, *n)), now) {
            self.closed.remove(&node);
            return Ok(Some(SiteEvent::Opened { node }));
        }
        let held = self.jobs.iter();
        let held = held.filter_map(|(id, j)| Some((j.held_until?, *id)));
        if let Some(id) = first_due(held, now)
            && let Some(job) = self.jobs.get_mut(&id)
        {
            job.held_until = None;
            let jobs = vec![(id, job.spec.clone())];
            let items = Vec::new();
            return Ok(Some(SiteEvent::Submitted { jobs, items }));
        }
        if !self.is_calm() && self.next_whim <= now {
            self.next_whim = now + self.seconds(5, 120);
            if let Some(event) = self.whim()? {
                return Ok(Some(event));
            }
        }
        if let Some(event) = self.start_one()? {
            return Ok(Some(event));
        }
        self.looks = false;
        Ok(None)
    }

    /// An event of the site, as the host sees and reports it.
    fn observe(&mut self, event: SiteEvent) -> Result<Option<SiteEvent>, WorldError> {
        match &event {
            SiteEvent::Submitted { jobs, .. } => {
                for (id, spec) in jobs {
                    self.specs.insert(*id, spec.clone());
                    if self.own.contains(id) {
                        let job = HostedJob {
                            spec: spec.clone(),
                            attempts: 0,
                            held_until: None,
                        };
                        self.jobs.insert(*id, job);
                    }
                }
            }
            SiteEvent::Moved { id } => {
                self.moving.remove(id);
                if self.copies.contains_key(id) {
                    return self.copied(*id);
                }
            }
            SiteEvent::MoveFailed { id } => {
                self.moving.remove(id);
                let own = self.copies.remove(id).is_some();
                if own || self.overtaken.remove(id) {
                    return Ok(None);
                }
            }
            SiteEvent::Ended { job, ok, .. } if self.own.contains(job) => {
                self.running.remove(job);
                self.order(&SiteAction::Release { job: *job })?;
                if *ok {
                    self.jobs.remove(job);
                }
            }
            // Its program has written its outputs outside too.
            SiteEvent::Ended { job, ok: true, .. } if self.confirmed.contains(job) => {
                let writes = self.specs.get(job).map(|s| s.writes.clone());
                for item in writes.unwrap_or_default() {
                    self.ready.push_back(SiteEvent::Stored {
                        item,
                        nodes: JobNodes::from([]),
                        spread: Spread::Share,
                        bytes: self.site.space.bytes(item),
                    });
                }
                self.ready.push_back(event);
                return Ok(None);
            }
            SiteEvent::NodeLost { node } => self.lost(*node)?,
            _ => {}
        }
        Ok(Some(event))
    }

    /// A node is lost, and with it the jobs that the host ran there.
    fn lost(&mut self, node: NodeId) -> Result<(), WorldError> {
        let touches = |m: &Move| {
            let ends = [&m.from, &m.to];
            ends.iter()
                .any(|w| matches!(w, tarn_types::site::Where::Nodes(n) if n.contains(&node)))
        };
        self.moving.retain(|_, m| !touches(m));
        let here = self.running.iter().filter(|(_, r)| r.1.contains(&node));
        let here = here.map(|(id, _)| *id).filter(|id| self.own.contains(id));
        for job in here.collect::<Vec<JobId>>() {
            self.running.remove(&job);
            self.order(&SiteAction::Release { job })?;
        }
        Ok(())
    }

    /// The planner has allocated nodes to a job.
    fn allocated(&mut self, id: JobId, nodes: &JobNodes, why: AllocationReason) {
        let now = self.site.now;
        if !self.own.contains(&id) {
            if why != AllocationReason::Continues
                && let Some(spec) = self.specs.get(&id)
            {
                self.running.insert(id, (spec.clone(), nodes.clone()));
            }
            return;
        }
        let roll = match self.is_calm() {
            true => 0,
            false => self.random.below(100),
        };
        let (fate, after) = match roll {
            0..60 => (WishFate::Begins, 0),
            60..75 => (WishFate::Begins, self.seconds(1, 60)),
            75..88 => (WishFate::BeginsElsewhere, self.seconds(0, 5)),
            _ => (WishFate::NeverBegins, self.seconds(2, 90)),
        };
        let wish = Wish {
            nodes: nodes.clone(),
            fate,
            at: now + after,
        };
        self.wishes.insert(id, wish);
        self.looks = true;
    }

    /// Now and then the host reports a begin that the planner had ordered.
    fn confirms(&mut self, id: JobId, nodes: &JobNodes) {
        let Some(spec) = self.specs.get(&id).cloned() else {
            return;
        };
        let script = spec.continues.is_some()
            || self.specs.values().any(|s| s.continues == Some(id))
            || self
                .site
                .work
                .jobs
                .iter()
                .any(|w| w.job.continues == Some(id));
        // Nobody makes data again that a host's job has made.
        let lasts = spec.writes.is_empty() || self.site.faults.loss_every == 0;
        if script || !lasts || self.is_calm() || !self.percent(30) {
            return;
        }
        self.confirmed.insert(id);
        self.ready.push_back(SiteEvent::Began {
            job: id,
            nodes: nodes.clone(),
            share: share_of(&spec),
            since: self.site.now,
        });
    }
}

fn first_due<T>(all: impl Iterator<Item = (Time, T)>, now: Time) -> Option<T> {
    all.filter(|(at, _)| *at <= now)
        .map(|(_, what)| what)
        .next()
}

fn share_of(job: &Job) -> NodeShare {
    NodeShare {
        cores: job.cores,
        memory: job.memory,
        gpus: job.gpus,
    }
}

impl SiteWorld for HostedSite {
    fn perform(&mut self, now: Time, action: &SiteAction) -> Result<(), WorldError> {
        match action {
            SiteAction::Allocate { job, nodes, why } => {
                self.allocated(*job, nodes, *why);
                if self.own.contains(job) {
                    return Ok(());
                }
                self.site.perform(now, action)?;
                self.confirms(*job, nodes);
                Ok(())
            }
            // The host does these by itself.
            SiteAction::Run { job, .. } if self.own.contains(job) => Ok(()),
            SiteAction::Release { job } if self.own.contains(job) => {
                self.wishes.remove(job);
                Ok(())
            }
            SiteAction::Release { job } => {
                self.running.remove(job);
                self.confirmed.remove(job);
                self.site.perform(now, action)
            }
            SiteAction::Refuse { job, .. } | SiteAction::GiveUp { job } => {
                self.jobs.remove(job);
                self.site.perform(now, action)
            }
            SiteAction::Move(order) => {
                self.moving.insert(order.id, order.clone());
                self.site.perform(now, action)
            }
            _ => self.site.perform(now, action),
        }
    }

    fn next(&mut self, until: Option<Time>) -> Result<Option<(Time, SiteEvent)>, WorldError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some((self.site.now, event)));
            }
            if let Some(event) = self.decide()? {
                return Ok(Some((self.site.now, event)));
            }
            let first = until.into_iter().chain(self.alarm()).min();
            let Some((now, event)) = self.site.next(first)? else {
                return Ok(None);
            };
            self.looks = true;
            if event == SiteEvent::Timer && until.is_none_or(|u| now < u) {
                continue;
            }
            if let Some(event) = self.observe(event)? {
                return Ok(Some((now, event)));
            }
        }
    }
}

impl HostedSite {
    /// A copy of the host's own is there.
    fn copied(&mut self, id: MoveId) -> Result<Option<SiteEvent>, WorldError> {
        let Some((item, nodes)) = self.copies.remove(&id) else {
            return Ok(None);
        };
        let spread = Spread::Share;
        let needed = self
            .site
            .work
            .jobs
            .iter()
            .zip(&self.site.jobs)
            .any(|(w, slot)| {
                let reads = w.job.reads.iter().any(|i| i.item == item);
                let open = matches!(
                    slot.phase,
                    SimulatedJobPhase::Waiting | SimulatedJobPhase::Held
                );
                reads && open
            });
        let same = self.site.space.copies(item, &nodes, spread);
        if !needed || same > 1 {
            let drop = SiteAction::Drop {
                item,
                nodes,
                spread,
            };
            self.order(&drop)?;
            return Ok(None);
        }
        // The planner's own move there is over with it.
        let to = tarn_types::site::Where::Nodes(nodes.clone());
        let planned = self.moving.values();
        let planned = planned.filter(|m| m.item == item && m.to == to && !m.direct);
        for other in planned.map(|m| m.id).collect::<Vec<_>>() {
            self.moving.remove(&other);
            self.order(&SiteAction::Cancel { id: other })?;
            self.overtaken.insert(other);
        }
        Ok(Some(SiteEvent::Stored {
            item,
            nodes,
            spread,
            bytes: self.site.space.bytes(item),
        }))
    }
}
