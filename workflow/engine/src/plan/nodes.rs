//! The nodes of a site: their jobs, when they come free, how full their tiers are. The one account of capacity.

use super::nodeset::NodeSet;
use super::timeline::Timeline;
use crate::capacity::{Compute, Demand, TierSpace};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::account::sub;
use tarn_types::id::NodeId;
use tarn_types::site::{ItemId, Job, JobId, Machine, Mode, NodeKind};
use tarn_types::units::{Bytes, Time};

/// The power state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodePowerState {
    /// Jobs can run.
    Up,
    /// It sleeps, with its data.
    Asleep,
    /// It wakes up.
    Waking,
    /// It reboots into this memory mode.
    Booting(Mode),
    /// It is gone.
    Lost,
}

/// A job that has a node or a part of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeOccupant {
    pub(crate) job: JobId,
    /// When it is expected to give it back.
    pub(crate) until: Time,
    /// The share that it took, and gives back.
    pub(crate) share: Demand,
}

/// One node.
#[derive(Debug, Clone)]
pub(crate) struct PlannerNode {
    pub(crate) island: u16,
    pub(crate) mode: Mode,
    pub(crate) power: NodePowerState,
    pub(crate) free: Compute,
    /// Jobs that have it or a part of it.
    pub(crate) guests: Vec<NodeOccupant>,
    /// Jobs that are to run here and bring their data already.
    pub(crate) planned: BTreeSet<JobId>,
    /// Bytes of its tiers together.
    pub(crate) space: TierSpace,
    /// Items of which something is here.
    pub(crate) held: BTreeSet<ItemId>,
    /// Since when nobody uses it.
    pub(crate) idle_since: Time,
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

/// Nodes on which nothing is planned.
#[derive(Debug, Clone, Default)]
struct UnplannedNodes {
    idle: NodeSet,
    partly: BTreeSet<(u32, NodeId)>,
}

/// Nodes of one island in one memory mode.
#[derive(Debug, Clone, Default)]
pub(crate) struct Class {
    /// Nodes that nobody uses.
    pub(crate) idle: NodeSet,
    /// Nodes that somebody uses and that have cores left: (cores left, node).
    pub(crate) partly: BTreeSet<(u32, NodeId)>,
    /// Those of both on which nothing is planned.
    open: UnplannedNodes,
    /// When the others (and those) are expected to be idle.
    pub(crate) ends: Timeline,
}

impl Class {
    fn is_empty(&self) -> bool {
        self.idle.is_empty() && self.partly.is_empty() && self.ends.iter().next().is_none()
    }
}

/// One island.
#[derive(Debug, Clone)]
pub(crate) struct PlannerIsland {
    pub(crate) kind: NodeKind,
    pub(crate) nodes: u32,
    /// By memory mode: 1LM, 2LM.
    pub(crate) classes: [Class; 2],
}

/// Nodes that a job has, as the timeline knows them: ends with their counts.
pub(crate) type NodeReleaseTimes = Vec<(Time, u32)>;

/// All nodes.
#[derive(Debug, Clone)]
pub(crate) struct PlannerNodes {
    pub(crate) all: Vec<PlannerNode>,
    pub(crate) islands: Vec<PlannerIsland>,
    /// The whole-node jobs in the timelines, with their entries.
    entered: BTreeMap<JobId, (usize, usize, NodeReleaseTimes)>,
    /// How often nodes were taken out of or put into a list.
    changes: u64,
}

pub(crate) const MODES: [Mode; 2] = [Mode::OneLevel, Mode::TwoLevel];

fn slot(mode: Mode) -> usize {
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

/// Space of a node's tiers in a mode.
pub(crate) fn capacity_in(kind: &NodeKind, mode: Mode) -> u64 {
    let there = kind
        .tiers
        .iter()
        .filter(|t| mode == Mode::OneLevel || !t.app_direct);
    there.map(|t| t.capacity).sum()
}

/// Nodes with free cores that are looked at for some that can run a job: they may lack memory or GPUs.
const SOME_LOOKED_AT: usize = 256;

/// In timelines, this bit distinguishes jobs from single nodes.
const NODE: u64 = 1 << 32;

/// The node of an entry of a timeline that stands for a single node.
pub(crate) fn node_of(who: u64) -> Option<NodeId> {
    (who & NODE != 0).then_some(NodeId(who as u32))
}

impl PlannerNodes {
    pub(crate) fn new(machine: &Machine) -> Self {
        let islands: Vec<_> = machine
            .islands
            .iter()
            .map(|i| PlannerIsland {
                kind: i.kind.clone(),
                nodes: i.nodes,
                classes: [Class::default(), Class::default()],
            })
            .collect();
        let mut this = Self {
            all: Vec::with_capacity(machine.nodes() as usize),
            islands,
            entered: BTreeMap::new(),
            changes: 0,
        };
        for island in machine.island_of() {
            let kind = &this.islands[usize::from(island)].kind;
            let node = PlannerNode {
                island,
                mode: kind.mode,
                power: NodePowerState::Up,
                free: Compute {
                    cores: kind.cores,
                    memory: memory_in(kind, kind.mode).unwrap_or(kind.memory),
                    gpus: kind.gpus,
                },
                guests: Vec::new(),
                planned: BTreeSet::new(),
                space: TierSpace::new(capacity_in(kind, kind.mode)),
                held: BTreeSet::new(),
                idle_since: 0,
                changes: 0,
                known: RefCell::default(),
            };
            let id = NodeId(this.all.len() as u32);
            this.all.push(node);
            this.list(id, false);
        }
        this
    }

    /// A number that changes when nodes come free or are taken.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    pub(crate) fn node(&self, id: NodeId) -> &PlannerNode {
        &self.all[id.at()]
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut PlannerNode {
        let node = &mut self.all[id.at()];
        node.changes += 1;
        node
    }

    pub(crate) fn kind(&self, id: NodeId) -> &NodeKind {
        &self.islands[usize::from(self.node(id).island)].kind
    }

    fn class_mut(&mut self, id: NodeId) -> &mut Class {
        let node = &self.all[id.at()];
        let (island, mode) = (usize::from(node.island), slot(node.mode));
        &mut self.islands[island].classes[mode]
    }

    /// The resources of a node without jobs.
    pub(crate) fn all_of(&self, id: NodeId) -> Compute {
        let kind = self.kind(id);
        Compute {
            cores: kind.cores,
            memory: memory_in(kind, self.node(id).mode).unwrap_or(0),
            gpus: kind.gpus,
        }
    }

    /// Space of a node's tiers.
    pub(crate) fn capacity(&self, id: NodeId) -> u64 {
        self.node(id).space.capacity()
    }

    pub(crate) fn free_space(&self, id: NodeId) -> u64 {
        self.node(id).space.free()
    }

    /// Whether nodes of an island in a mode are of the kind that a job asks for.
    pub(crate) fn suits(&self, job: &Job, island: usize, mode: Mode) -> bool {
        let island = &self.islands[island];
        let kind = &island.kind;
        let memory = memory_in(kind, mode);
        job.nodes <= island.nodes
            && job.cores <= kind.cores
            && job.gpus <= kind.gpus
            && job.mode.is_none_or(|m| m == mode)
            && memory.is_some_and(|m| job.memory <= m)
    }

    /// Why no island can ever run a job; `None` if one can.
    pub(crate) fn lacks(&self, job: &Job) -> Option<String> {
        let islands = 0..self.islands.len();
        if islands
            .into_iter()
            .any(|i| MODES.iter().any(|m| self.suits(job, i, *m)))
        {
            return None;
        }
        let most =
            |f: &dyn Fn(&PlannerIsland) -> u64| self.islands.iter().map(f).max().unwrap_or(0);
        let memory = |i: &PlannerIsland| {
            let modes = MODES.iter().filter(|m| job.mode.is_none_or(|j| j == **m));
            modes.filter_map(|m| memory_in(&i.kind, *m)).max()
        };
        let nodes = most(&|i| u64::from(i.nodes));
        let cores = most(&|i| u64::from(i.kind.cores));
        let gpus = most(&|i| u64::from(i.kind.gpus));
        Some(if u64::from(job.nodes) > nodes {
            format!(
                "it asks for {} nodes and no island has more than {nodes}",
                job.nodes
            )
        } else if u64::from(job.cores) > cores {
            format!(
                "it asks for {} cores a node and no node has more than {cores}",
                job.cores
            )
        } else if u64::from(job.gpus) > gpus {
            format!(
                "it asks for {} GPUs a node and no node has more than {gpus}",
                job.gpus
            )
        } else if self.islands.iter().all(|i| memory(i).is_none()) {
            "it asks for a memory mode that no node can be in".to_owned()
        } else if job.memory > most(&|i| memory(i).unwrap_or(0)) {
            format!(
                "it asks for {} of memory a node and no node that it could use has more than {}",
                Bytes(job.memory),
                Bytes(most(&|i| memory(i).unwrap_or(0)))
            )
        } else {
            "no single island has all that it asks for: nodes, cores, memory, GPUs and memory mode together".to_owned()
        })
    }

    /// The share of a node that a job takes.
    pub(crate) fn share(&self, job: &Job, id: NodeId) -> Demand {
        let kind = self.kind(id);
        let node = self.node(id);
        match job.cores {
            0 => Demand {
                cores: kind.cores,
                memory: memory_in(kind, node.mode).unwrap_or(0),
                gpus: kind.gpus,
            },
            cores => Demand {
                cores,
                memory: job.memory,
                gpus: job.gpus,
            },
        }
    }

    /// Whether a job could have this node now.
    pub(crate) fn free_for(&self, job: &Job, id: NodeId) -> bool {
        let node = self.node(id);
        if node.power != NodePowerState::Up || !self.suits(job, usize::from(node.island), node.mode)
        {
            return false;
        }
        node.free.holds(self.share(job, id), 1)
    }

    /// A job gets nodes. `ends`: when they are expected to be free again, with how many of them; together all.
    pub(crate) fn take(&mut self, id: JobId, job: &Job, nodes: &[NodeId], ends: NodeReleaseTimes) {
        let until = ends.iter().map(|e| e.0).max().unwrap_or(0);
        for n in nodes {
            let share = self.share(job, *n);
            self.unlist(*n);
            let node = self.node_mut(*n);
            node.free.take(share);
            node.guests.push(NodeOccupant {
                job: id,
                until,
                share,
            });
            self.list(*n, job.cores > 0);
        }
        if let (0, Some(first)) = (job.cores, nodes.first()) {
            let node = self.node(*first);
            let (island, mode) = (usize::from(node.island), slot(node.mode));
            for (at, count) in &ends {
                self.islands[island].classes[mode]
                    .ends
                    .insert(*at, u64::from(id.0), *count);
            }
            self.entered.insert(id, (island, mode, ends));
        }
    }

    /// A job gives its nodes back.
    pub(crate) fn give(&mut self, now: Time, id: JobId, job: &Job, nodes: &[NodeId]) {
        if let Some((island, mode, ends)) = self.entered.remove(&id) {
            for (at, _) in ends {
                let class = &mut self.islands[island].classes[mode];
                class.ends.remove(at, u64::from(id.0));
            }
        }
        for n in nodes {
            // A whole-node job's nodes are in no list.
            if job.cores > 0 {
                self.unlist(*n);
            }
            let node = self.node_mut(*n);
            let guest = node.guests.iter().position(|g| g.job == id);
            debug_assert!(guest.is_some(), "job {id} gives {n} back, which it has not");
            if let Some(guest) = guest {
                let share = node.guests.remove(guest).share;
                node.free.give(share);
            }
            node.idle_since = now;
            let single = !node.guests.is_empty();
            self.list(*n, single);
        }
    }

    /// Takes a node out of the lists of its class.
    fn unlist(&mut self, id: NodeId) {
        self.changes += 1;
        let node = self.node(id);
        let (cores, until, idle) = (node.free.cores, last_end(node), node.guests.is_empty());
        let class = self.class_mut(id);
        if idle {
            class.idle.remove(id);
            class.open.idle.remove(id);
        } else {
            class.partly.remove(&(cores, id));
            class.open.partly.remove(&(cores, id));
            class.ends.remove(until, NODE | u64::from(id.0));
        }
    }

    /// Puts a node into the lists of its class. `shared`: by itself, not as one of a whole-node job's.
    fn list(&mut self, id: NodeId, shared: bool) {
        self.changes += 1;
        let node = self.node(id);
        if node.power != NodePowerState::Up {
            return;
        }
        let (cores, until, idle) = (node.free.cores, last_end(node), node.guests.is_empty());
        let class = self.class_mut(id);
        if idle {
            class.idle.insert(id);
        } else if shared {
            class.ends.insert(until, NODE | u64::from(id.0), 1);
            if cores > 0 {
                class.partly.insert((cores, id));
            }
        }
        self.open_or_not(id);
    }

    /// Puts a node that is in a list into the one of those on which nothing is planned, or takes it out of that.
    fn open_or_not(&mut self, id: NodeId) {
        let node = self.node(id);
        let (cores, open) = (node.free.cores, node.planned.is_empty());
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

    /// A node changes its power state; nobody is on it.
    pub(crate) fn set_power(&mut self, id: NodeId, power: NodePowerState) {
        self.unlist(id);
        self.node_mut(id).power = power;
        self.list(id, false);
    }

    /// A node is in a mode now. Nobody runs on it; a script of which other nodes are left may still have it.
    pub(crate) fn set_mode(&mut self, id: NodeId, mode: Mode) {
        self.unlist(id);
        let memory = memory_in(self.kind(id), mode).unwrap_or(0);
        let capacity = capacity_in(self.kind(id), mode);
        let node = self.node_mut(id);
        node.mode = mode;
        node.space.set_capacity(capacity);
        node.free.memory = memory;
        for guest in &mut node.guests {
            guest.share.memory = guest.share.memory.min(node.free.memory);
            sub(&mut node.free.memory, guest.share.memory, "free memory");
        }
        self.list(id, false);
    }

    pub(crate) fn class(&self, island: usize, mode: Mode) -> &Class {
        &self.islands[island].classes[slot(mode)]
    }

    /// The classes that a job could run in.
    pub(crate) fn classes_for(&self, job: &Job) -> Vec<(usize, Mode)> {
        let islands = 0..self.islands.len();
        islands
            .flat_map(|i| MODES.iter().map(move |m| (i, *m)))
            .filter(|(i, m)| !self.class(*i, *m).is_empty() && self.suits(job, *i, *m))
            .collect()
    }

    /// Whether all nodes are in one island and one mode.
    pub(crate) fn one_class(&self) -> bool {
        let classes = self.islands.iter().flat_map(|i| &i.classes);
        classes.filter(|c| !c.is_empty()).count() <= 1
    }

    /// The most idle nodes of a class, and the most free cores of a node.
    pub(crate) fn most_free(&self) -> (u32, u32) {
        let (mut nodes, mut cores) = (0, 0);
        for island in &self.islands {
            for class in &island.classes {
                nodes = nodes.max(class.idle.len() as u32);
                if !class.idle.is_empty() {
                    cores = cores.max(island.kind.cores);
                }
                cores = cores.max(class.partly.last().map_or(0, |(c, _)| *c));
            }
        }
        (nodes, cores)
    }

    /// Up to so many nodes of a class that a one-node job could have now and on which nobody else is planned: nodes that
    /// others use already first.
    pub(crate) fn some_free(
        &self,
        job: &Job,
        island: usize,
        mode: Mode,
        most: usize,
    ) -> Vec<NodeId> {
        let open = &self.class(island, mode).open;
        let partly = open.partly.range((job.cores, NodeId(0))..);
        let partly = partly.map(|(_, n)| *n).take(SOME_LOOKED_AT);
        let free = |n: &NodeId| self.free_for(job, *n);
        let mut found: Vec<NodeId> = partly.filter(free).take(most).collect();
        found.extend(open.idle.iter().filter(free).take(most));
        found
    }

    /// Nodes of a class that a job could have now, as many as it asks for: first those that are preferred, then those
    /// that others use already (the fullest first, so that whole nodes stay free), then idle ones.
    pub(crate) fn pick(
        &self,
        job: &Job,
        island: usize,
        mode: Mode,
        prefer: &[NodeId],
    ) -> Option<Vec<NodeId>> {
        let class = self.class(island, mode);
        let want = job.nodes as usize;
        if job.cores == 0 && class.idle.len() < want {
            return None;
        }
        let here = |n: &NodeId| {
            let node = self.node(*n);
            usize::from(node.island) == island && node.mode == mode && self.free_for(job, *n)
        };
        // `prefer` has each node once.
        let mut chosen: Vec<NodeId> = Vec::with_capacity(want);
        chosen.extend(prefer.iter().filter(|n| here(n)).take(want));
        if chosen.len() == want {
            return Some(chosen);
        }
        let preferred: BTreeSet<NodeId> = chosen.iter().copied().collect();
        if job.cores > 0 {
            let partly = class.partly.range((job.cores, NodeId(0))..);
            let free = partly.map(|(_, n)| *n).filter(|n| self.free_for(job, *n));
            let others = free.filter(|n| !preferred.contains(n));
            chosen.extend(others.take(want - chosen.len()));
        }
        let idle = class
            .idle
            .iter()
            .filter(|n| preferred.is_empty() || !preferred.contains(n));
        chosen.extend(idle.take(want - chosen.len()));
        (chosen.len() == want).then_some(chosen)
    }
}

/// When the last guest of a node is expected to have gone.
pub(crate) fn last_end(node: &PlannerNode) -> Time {
    node.guests.iter().map(|g| g.until).max().unwrap_or(0)
}
