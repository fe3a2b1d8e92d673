//! The nodes of a site: their ledgers, their jobs, and when they come free.

mod check;

use super::nodeset::NodeSet;
use super::timeline::Timeline;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use tarn_types::compute::Demand;
use tarn_types::id::{NodeId, TierId};
use tarn_types::ledger::{HasLedger, NodeAvailability, NodeLedger, NodeLedgers};
use tarn_types::site::{ItemId, Job, JobId, JobNodes, Machine, Mode, NodeKind};
use tarn_types::space::TierSpace;
use tarn_types::units::Time;

/// The tiers of a node, which a planner counts as one.
pub(crate) const TIERS: TierId = TierId(0);

/// A job that has a node or a part of it.
#[derive(Debug, Clone)]
pub(crate) struct NodeOccupant {
    pub(crate) job: JobId,
    /// When it is expected to give it back; and its first node, if it has several.
    pub(crate) until: Time,
    pub(crate) first: Time,
    /// The share that it took, and gives back.
    pub(crate) share: Demand,
    /// The resources that the host gave it beyond those that were free: it takes them as soon as others give it back.
    pub(crate) lacks: Option<Box<Demand>>,
    /// It has the node as a whole.
    pub(crate) whole: bool,
}

/// The share that a job takes.
#[derive(Debug)]
pub(crate) struct NodeTaking<'a> {
    pub(crate) job: JobId,
    pub(crate) nodes: &'a JobNodes,
    /// Of each node; `None` for nodes as a whole.
    pub(crate) share: Option<Demand>,
    /// When they are expected to be free again, with how many of them; together all.
    pub(crate) ends: NodeReleaseTimes,
    /// The host gave it, whether it is free or not.
    pub(crate) given: bool,
}

/// A job that has nodes as a whole.
#[derive(Debug, Clone)]
struct WholeNodeJob {
    nodes: JobNodes,
    ends: NodeReleaseTimes,
    /// Its entries in timelines: island, mode, ends.
    entries: Vec<(usize, usize, NodeReleaseTimes)>,
}

/// The lists of its class that a node is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeListing {
    /// None: it cannot be used, or the one job that has all of it counts it.
    Nowhere,
    Idle,
    /// By itself in the timeline; `partly`: some of its cores are free.
    Ends {
        until: Time,
        partly: bool,
    },
}

/// One node.
#[derive(Debug, Clone)]
pub(crate) struct PlannerNode {
    pub(crate) ledger: NodeLedger<[TierSpace; 1]>,
    pub(crate) island: u16,
    pub(crate) mode: Mode,
    /// Jobs that have it or a part of it.
    pub(crate) guests: Vec<NodeOccupant>,
    /// Jobs that are to run here and bring their data already.
    pub(crate) planned: BTreeSet<JobId>,
    /// Items of which something is here.
    pub(crate) held: BTreeSet<ItemId>,
    /// Since when nobody uses it.
    pub(crate) idle_since: Time,
    /// The host has something on it: it does not sleep.
    pub(crate) needed: bool,
    /// The host can wake it if it sleeps.
    pub(crate) wakeable: bool,
    /// Counts all changes to it.
    pub(crate) changes: u64,
    /// Kept because many jobs ask for it between two changes.
    pub(crate) known: RefCell<KnownEnds>,
}

/// When those on a node are expected to give their cores back.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownEnds {
    /// Known at this time, after so many changes of the node.
    pub(crate) of: (Time, u64),
    /// In order, with their cores.
    pub(crate) ends: Vec<(Time, u32)>,
    /// Their cores together.
    pub(crate) taken: u32,
}

impl HasLedger for PlannerNode {
    type Tiers = [TierSpace; 1];

    fn ledger(&self) -> &NodeLedger<Self::Tiers> {
        &self.ledger
    }

    fn ledger_mut(&mut self) -> &mut NodeLedger<Self::Tiers> {
        &mut self.ledger
    }
}

impl PlannerNode {
    pub(crate) fn availability(&self) -> NodeAvailability {
        self.ledger.availability()
    }

    pub(crate) fn closed(&self) -> Option<Time> {
        self.ledger.closed()
    }

    /// The resources that no job has.
    pub(crate) fn free(&self) -> Demand {
        self.ledger.free()
    }

    /// The bytes of its tiers together.
    pub(crate) fn space(&self) -> &TierSpace {
        self.ledger.tier(TIERS)
    }

    /// Whether one job has all of it, and counts it among its nodes that come free.
    fn is_counted_by_job(&self) -> bool {
        let whole = matches!(self.guests.as_slice(), [only] if only.whole);
        whole && self.closed().is_none()
    }

    /// When it is expected to be idle, if jobs have it now and others may have it then: by the `last` end of the job that
    /// has all of it, or by the first.
    pub(crate) fn comes_free(&self, last: bool) -> Option<Time> {
        match (self.listing(), self.guests.as_slice()) {
            (NodeListing::Ends { until, .. }, _) => Some(until),
            (NodeListing::Nowhere, [only])
                if self.availability() == NodeAvailability::Up && self.is_counted_by_job() =>
            {
                Some(if last { only.until } else { only.first })
            }
            _ => None,
        }
    }

    fn listing(&self) -> NodeListing {
        if self.availability() != NodeAvailability::Up {
            return NodeListing::Nowhere;
        }
        match self.closed() {
            Some(Time::MAX) => NodeListing::Nowhere,
            Some(until) => NodeListing::Ends {
                until: until.max(last_end(self)),
                partly: false,
            },
            None if self.guests.is_empty() => NodeListing::Idle,
            None if self.is_counted_by_job() => NodeListing::Nowhere,
            None => NodeListing::Ends {
                until: last_end(self),
                partly: self.free().cores > 0,
            },
        }
    }
}

/// Nodes on which nothing is planned.
#[derive(Debug, Clone, Default)]
pub(super) struct UnplannedNodes {
    pub(super) idle: NodeSet,
    pub(super) partly: BTreeSet<(u32, NodeId)>,
}

/// Nodes of one island in one memory mode.
#[derive(Debug, Clone, Default)]
pub(crate) struct Class {
    /// Nodes that nobody uses.
    pub(crate) idle: NodeSet,
    /// Nodes that somebody uses and that have cores left: (cores left, node).
    pub(crate) partly: BTreeSet<(u32, NodeId)>,
    /// Those of both on which nothing is planned.
    pub(super) open: UnplannedNodes,
    /// When the others (and those) are expected to be idle.
    pub(crate) ends: Timeline,
}

impl Class {
    pub(super) fn is_empty(&self) -> bool {
        self.idle.is_empty() && self.partly.is_empty() && self.ends.iter().next().is_none()
    }
}

/// One island.
#[derive(Debug, Clone)]
pub(crate) struct PlannerIsland {
    pub(crate) kind: NodeKind,
    pub(crate) nodes: u32,
    /// Its first node.
    pub(crate) first: u32,
    /// By memory mode: 1LM, 2LM.
    pub(crate) classes: [Class; 2],
}

impl PlannerIsland {
    /// The numbers of its nodes.
    pub(crate) fn range(&self) -> Range<u32> {
        self.first..self.first + self.nodes
    }
}

/// Nodes that a job has, as the timeline knows them: ends with their counts.
pub(crate) type NodeReleaseTimes = Vec<(Time, u32)>;

/// All nodes.
#[derive(Debug, Clone)]
pub(crate) struct PlannerNodes {
    pub(crate) all: NodeLedgers<PlannerNode>,
    pub(crate) islands: Vec<PlannerIsland>,
    /// The jobs that have nodes as a whole.
    whole: BTreeMap<JobId, WholeNodeJob>,
    /// How often nodes were taken out of or put into a list.
    changes: u64,
}

pub(crate) const MODES: [Mode; 2] = [Mode::OneLevel, Mode::TwoLevel];

pub(super) fn slot(mode: Mode) -> usize {
    match mode {
        Mode::OneLevel => 0,
        Mode::TwoLevel => 1,
    }
}

/// Memory of a node in a mode; `None` where it cannot be in it.
pub(crate) fn memory_in(kind: &NodeKind, mode: Mode) -> Option<u64> {
    match (mode, &kind.mode_change) {
        (Mode::TwoLevel, Some(change)) => Some(change.memory),
        (mode, None) if mode != kind.mode => None,
        _ => Some(kind.memory),
    }
}

/// The cores, memory and GPUs of a node in a mode.
fn all_in(kind: &NodeKind, mode: Mode) -> Demand {
    Demand {
        cores: kind.cores,
        memory: memory_in(kind, mode).unwrap_or(0),
        gpus: kind.gpus,
    }
}

/// Space of a node's tiers in a mode.
pub(crate) fn capacity_in(kind: &NodeKind, mode: Mode) -> u64 {
    let there = kind
        .tiers
        .iter()
        .filter(|t| mode == Mode::OneLevel || !t.app_direct);
    there.map(|t| t.capacity).sum()
}

/// In timelines, this bit distinguishes jobs from single nodes.
const NODE: u64 = 1 << 32;

/// The node of an entry of a timeline that stands for a single node.
pub(crate) fn node_of(who: u64) -> Option<NodeId> {
    (who & NODE != 0).then_some(NodeId(who as u32))
}

impl PlannerNodes {
    pub(crate) fn new(machine: &Machine) -> Self {
        let mut next = 0;
        let island = |i: &tarn_types::site::Island| {
            let first = next;
            next += i.nodes;
            PlannerIsland {
                kind: i.kind.clone(),
                nodes: i.nodes,
                first,
                classes: [Class::default(), Class::default()],
            }
        };
        let islands: Vec<_> = machine.islands.iter().map(island).collect();
        let node = |island: u16| {
            let kind = &islands[usize::from(island)].kind;
            let space = TierSpace::new(capacity_in(kind, kind.mode));
            PlannerNode {
                ledger: NodeLedger::new(all_in(kind, kind.mode), [space]),
                island,
                mode: kind.mode,
                guests: Vec::new(),
                planned: BTreeSet::new(),
                held: BTreeSet::new(),
                idle_since: 0,
                needed: false,
                wakeable: true,
                changes: 0,
                known: RefCell::default(),
            }
        };
        let mut this = Self {
            all: machine.island_of().into_iter().map(node).collect(),
            islands,
            whole: BTreeMap::new(),
            changes: 0,
        };
        this.all.ids().for_each(|id| this.list(id));
        this
    }

    /// A number that changes when nodes come free or are taken.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    pub(crate) fn node(&self, id: NodeId) -> &PlannerNode {
        self.all.node(id)
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut PlannerNode {
        let node = self.all.node_mut(id);
        node.changes += 1;
        node
    }

    pub(crate) fn kind(&self, id: NodeId) -> &NodeKind {
        &self.islands[usize::from(self.node(id).island)].kind
    }

    fn class_mut(&mut self, id: NodeId) -> &mut Class {
        let node = self.all.node(id);
        let (island, mode) = (usize::from(node.island), slot(node.mode));
        &mut self.islands[island].classes[mode]
    }

    /// Space of a node's tiers.
    pub(crate) fn capacity(&self, id: NodeId) -> u64 {
        self.node(id).space().capacity()
    }

    pub(crate) fn free_space(&self, id: NodeId) -> u64 {
        self.node(id).space().free()
    }

    /// The share of a node that a job takes.
    pub(crate) fn share(&self, job: &Job, id: NodeId) -> Demand {
        Demand::of_job(job).unwrap_or_else(|| self.node(id).ledger.all())
    }

    /// A job gets nodes.
    pub(crate) fn take(&mut self, taking: NodeTaking) {
        let until = taking.ends.iter().map(|e| e.0).max().unwrap_or(0);
        let first = taking.ends.iter().map(|e| e.0).min().unwrap_or(0);
        for n in taking.nodes.iter() {
            self.unlist(*n);
            let node = self.node_mut(*n);
            let wants = taking.share.unwrap_or_else(|| node.ledger.all());
            let share = match taking.given {
                true => node.ledger.expect(wants),
                false => {
                    node.ledger.take(wants);
                    wants
                }
            };
            node.guests.push(NodeOccupant {
                job: taking.job,
                until,
                first,
                share,
                lacks: (share != wants).then(|| Box::new(wants.without(share))),
                whole: taking.share.is_none(),
            });
            self.list(*n);
            self.enter_guests_again(*n, Some(taking.job));
        }
        if taking.share.is_none() {
            let whole = WholeNodeJob {
                nodes: taking.nodes.clone(),
                ends: taking.ends,
                entries: Vec::new(),
            };
            self.whole.insert(taking.job, whole);
            self.enter(taking.job);
        }
    }

    /// A job gives its nodes back.
    pub(crate) fn give(&mut self, now: Time, id: JobId, nodes: &[NodeId]) {
        self.leave(id);
        self.whole.remove(&id);
        for n in nodes {
            self.unlist(*n);
            let node = self.node_mut(*n);
            let guest = node.guests.iter().position(|g| g.job == id);
            debug_assert!(guest.is_some(), "job {id} gives {n} back, which it has not");
            if let Some(guest) = guest {
                let share = node.guests.remove(guest).share;
                node.ledger.give(share);
            }
            node.serve_lacking();
            node.idle_since = now;
            self.list(*n);
            self.enter_guests_again(*n, Some(id));
        }
    }

    /// A job is expected to give its nodes back at other times.
    pub(crate) fn set_ends(&mut self, id: JobId, nodes: &[NodeId], ends: NodeReleaseTimes) {
        let until = ends.iter().map(|e| e.0).max().unwrap_or(0);
        let first = ends.iter().map(|e| e.0).min().unwrap_or(0);
        for n in nodes {
            self.unlist(*n);
            let guests = self.node_mut(*n).guests.iter_mut();
            let own = guests.filter(|g| g.job == id);
            own.for_each(|g| (g.until, g.first) = (until, first));
            self.list(*n);
        }
        self.leave(id);
        if let Some(whole) = self.whole.get_mut(&id) {
            whole.ends = ends;
        }
        self.enter(id);
    }

    /// A node takes no new jobs until then, or takes some again.
    pub(crate) fn set_closed(&mut self, id: NodeId, closed: Option<Time>) {
        self.unlist(id);
        self.node_mut(id).ledger.set_closed(closed);
        self.list(id);
        self.enter_guests_again(id, None);
    }

    /// Others came to a node that a job has as a whole, or went: whether the job counts it has changed.
    fn enter_guests_again(&mut self, node: NodeId, but: Option<JobId>) {
        let guests = self.node(node).guests.iter();
        let guests = guests.filter(|g| g.whole && Some(g.job) != but);
        let guests = guests.map(|g| g.job);
        for guest in guests.collect::<Vec<_>>() {
            self.leave(guest);
            self.enter(guest);
        }
    }

    /// Puts a job that has nodes as a whole into the timelines.
    fn enter(&mut self, id: JobId) {
        let Some(whole) = self.whole.get(&id) else {
            return;
        };
        let entries = self.entries_of(whole);
        for (island, mode, ends) in &entries {
            let timeline = &mut self.islands[*island].classes[*mode].ends;
            for (at, count) in ends {
                timeline.insert(*at, u64::from(id.0), *count);
            }
        }
        if let Some(whole) = self.whole.get_mut(&id) {
            whole.entries = entries;
        }
        self.changes += 1;
    }

    fn leave(&mut self, id: JobId) {
        let entries = self
            .whole
            .get_mut(&id)
            .map(|w| std::mem::take(&mut w.entries));
        for (island, mode, ends) in entries.unwrap_or_default() {
            let timeline = &mut self.islands[island].classes[mode].ends;
            for (at, _) in ends {
                timeline.remove(at, u64::from(id.0));
            }
        }
    }

    /// The entries of a job in timelines: its nodes that come free with it.
    fn entries_of(&self, whole: &WholeNodeJob) -> Vec<(usize, usize, NodeReleaseTimes)> {
        let mut counts: Vec<((usize, usize), u32)> = Vec::new();
        for n in whole.nodes.iter() {
            let node = self.node(*n);
            if !node.is_counted_by_job() {
                continue;
            }
            let class = (usize::from(node.island), slot(node.mode));
            match counts.iter_mut().find(|(of, _)| *of == class) {
                Some((_, count)) => *count += 1,
                None => counts.push((class, 1)),
            }
        }
        let last = whole.ends.last().map_or(0, |e| e.0);
        let several = counts.len() > 1;
        let entry = |((island, mode), count): ((usize, usize), u32)| {
            let ends = match several {
                true => vec![(last, count)],
                false => last_of(&whole.ends, count),
            };
            (island, mode, ends)
        };
        counts.into_iter().map(entry).collect()
    }

    /// Whether a job has nodes as a whole.
    pub(crate) fn is_whole(&self, id: JobId) -> bool {
        self.whole.contains_key(&id)
    }

    /// The nodes of a class that come free with a job that has them as a whole.
    pub(crate) fn counted_by(
        &self,
        id: JobId,
        island: usize,
        mode: Mode,
    ) -> impl Iterator<Item = NodeId> {
        let nodes = self.whole.get(&id).map(|w| w.nodes.iter().copied());
        nodes.into_iter().flatten().filter(move |n| {
            let node = self.node(*n);
            node.is_counted_by_job() && usize::from(node.island) == island && node.mode == mode
        })
    }

    /// Takes a node out of the lists of its class.
    fn unlist(&mut self, id: NodeId) {
        self.changes += 1;
        let node = self.node(id);
        let (cores, listing) = (node.free().cores, node.listing());
        let class = self.class_mut(id);
        match listing {
            NodeListing::Nowhere => {}
            NodeListing::Idle => {
                class.idle.remove(id);
                class.open.idle.remove(id);
            }
            NodeListing::Ends { until, partly } => {
                class.ends.remove(until, NODE | u64::from(id.0));
                if partly {
                    class.partly.remove(&(cores, id));
                    class.open.partly.remove(&(cores, id));
                }
            }
        }
    }

    /// Puts a node into the lists of its class.
    fn list(&mut self, id: NodeId) {
        self.changes += 1;
        let node = self.node(id);
        let (cores, listing) = (node.free().cores, node.listing());
        let class = self.class_mut(id);
        match listing {
            NodeListing::Nowhere => return,
            NodeListing::Idle => class.idle.insert(id),
            NodeListing::Ends { until, partly } => {
                class.ends.insert(until, NODE | u64::from(id.0), 1);
                if partly {
                    class.partly.insert((cores, id));
                }
            }
        }
        self.open_or_not(id);
    }

    /// Puts a node that is in a list into the one of those on which nothing is planned, or takes it out of that.
    fn open_or_not(&mut self, id: NodeId) {
        let node = self.node(id);
        let (cores, open) = (node.free().cores, node.planned.is_empty());
        let class = self.class_mut(id);
        if !open {
            class.open.idle.remove(id);
            class.open.partly.remove(&(cores, id));
        } else if class.partly.contains(&(cores, id)) {
            class.open.partly.insert((cores, id));
        } else if class.idle.contains(id) {
            class.open.idle.insert(id);
        }
    }

    /// A job is to run on a node.
    pub(crate) fn plan(&mut self, id: NodeId, job: JobId) {
        self.node_mut(id).planned.insert(job);
        self.open_or_not(id);
    }

    /// It is not any more, or it does.
    pub(crate) fn unplan(&mut self, id: NodeId, job: JobId) {
        self.node_mut(id).planned.remove(&job);
        self.open_or_not(id);
    }

    /// A node wakes up, falls asleep, reboots, or is up.
    pub(crate) fn set_availability(&mut self, id: NodeId, to: NodeAvailability) {
        self.unlist(id);
        self.node_mut(id).ledger.set_availability(to);
        self.list(id);
    }

    /// A node is lost with its data.
    pub(crate) fn lose(&mut self, id: NodeId) {
        self.unlist(id);
        self.all.lose(id);
        self.all.node_mut(id).changes += 1;
        self.list(id);
    }

    /// A lost node is back, as it was at the beginning.
    pub(crate) fn regain(&mut self, id: NodeId) {
        let kind = self.kind(id);
        let (mode, capacity) = (kind.mode, capacity_in(kind, kind.mode));
        self.set_mode(id, mode);
        self.unlist(id);
        self.all.regain(id, &[capacity]);
        self.list(id);
    }

    /// A node is in a mode now. A script of which other nodes are left may still have it, and a job that it was rebooted for.
    pub(crate) fn set_mode(&mut self, id: NodeId, mode: Mode) {
        self.unlist(id);
        let all = all_in(self.kind(id), mode);
        let capacity = capacity_in(self.kind(id), mode);
        let node = self.node_mut(id);
        node.mode = mode;
        node.ledger.set_capacity(TIERS, capacity);
        let shares = node.guests.iter_mut().map(|guest| &mut guest.share);
        node.ledger.resize(all, shares);
        node.serve_lacking();
        self.list(id);
        self.enter_guests_again(id, None);
    }

    pub(crate) fn class(&self, island: usize, mode: Mode) -> &Class {
        &self.islands[island].classes[slot(mode)]
    }
}

/// When the last guest of a node is expected to have gone.
pub(crate) fn last_end(node: &PlannerNode) -> Time {
    node.guests.iter().map(|g| g.until).max().unwrap_or(0)
}

/// The last so many nodes of those that come free at these times.
fn last_of(ends: &[(Time, u32)], count: u32) -> NodeReleaseTimes {
    let mut before: u32 = ends.iter().map(|e| e.1).sum::<u32>().saturating_sub(count);
    let mut last = Vec::with_capacity(ends.len());
    for (at, nodes) in ends {
        let left = nodes.saturating_sub(before);
        before = before.saturating_sub(*nodes);
        if left > 0 {
            last.push((*at, left));
        }
    }
    last
}

impl PlannerNode {
    /// Jobs to which the host gave more than was free take what is free now.
    fn serve_lacking(&mut self) {
        for guest in &mut self.guests {
            let Some(lacks) = guest.lacks.take() else {
                continue;
            };
            let more = self.ledger.expect(*lacks);
            guest.share = guest.share.with(more);
            let left = lacks.without(more);
            guest.lacks = (!left.is_nothing()).then(|| Box::new(left));
        }
    }
}
