//! Nodes that sleep: which of them do, as a snapshot has it, what the planner decided, and the power that nodes draw.
//! docs/admin/energy.md, "Sleep".

use crate::topology::ClusterTopology;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tarn_engine::plan::{Planner, Wakefulness};
use tarn_site::PlanningView;
use tarn_slurm::{NodeBase, NodeFlag, SlurmNode, SlurmSnapshot};
use tarn_types::id::NodeId;
use tarn_types::site::{NodePowerModel, SiteAction, SiteEvent};
use tarn_types::units::{Nanos, SECOND, Time};

/// A decision that Slurm has not followed after so long has failed, or nobody ordered it.
const MAX_UNFOLLOWED: Nanos = 30 * SECOND;
/// For which an order to put a node to sleep may be under way: Slurm is read twice before it.
const UNDER_WAY: Nanos = 10 * SECOND;
/// How long waking takes where it was neither seen nor given.
const WAKE: Nanos = 300 * SECOND;
/// The last wakings of which the median counts.
const MAX_WAKINGS: usize = 16;
/// Measured power counts in so many steps from one watt to ten: about a tenth each, as between nodes.
const STEPS: f64 = 24.0;

/// The figures of a site about its nodes' power, for those that are not measured. Watts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SitePower {
    /// Nothing runs.
    pub idle: Option<f64>,
    /// All cores run.
    pub busy: Option<f64>,
    /// Asleep: 0 where nothing is given, as nobody measures it.
    pub asleep: Option<f64>,
    /// Booting: as busy where nothing is given.
    pub boot: Option<f64>,
    /// How long waking takes.
    pub wake: Option<Nanos>,
}

/// A decision about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerWish {
    /// It is to sleep.
    Sleep,
    /// It is to wake up.
    Wake,
}

/// A decision about a node, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PowerOrder {
    /// The node.
    pub node: String,
    /// Its next state.
    pub wish: PowerWish,
}

/// Whether a node sleeps, as Slurm has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SeenPower {
    Awake,
    Asleep,
    Waking,
}

/// The state of the nodes' sleep beside the planner's own.
#[derive(Debug, Default)]
pub(crate) struct PowerTable {
    given: SitePower,
    /// When the planner decided what Slurm has not followed yet.
    decided: BTreeMap<NodeId, Time>,
    /// Whether nodes have something on them that the planner does not know. From the first event on they may be idle.
    needed: BTreeMap<NodeId, bool>,
    /// Nodes that Slurm cannot wake yet: they are to be off first.
    falling: BTreeSet<NodeId>,
    /// When nodes that wake up were first seen so.
    waking: BTreeMap<NodeId, Time>,
    /// How long the last wakings took.
    took: VecDeque<Nanos>,
    /// The draw of idle and of full nodes of each island when any were measured last.
    measured: Vec<[Option<f64>; 2]>,
    /// Of each island, as the planner has it.
    pub(crate) models: Vec<NodePowerModel>,
}

impl PowerTable {
    pub(crate) fn new(given: SitePower) -> Self {
        Self {
            given,
            ..Self::default()
        }
    }

    /// The planner is built again: it knows nothing of it. What was measured stays.
    pub(crate) fn begin_again(&mut self) {
        self.decided.clear();
        self.needed.clear();
        self.falling.clear();
        self.waking.clear();
        self.measured.clear();
        self.models.clear();
    }

    /// The planner's decision.
    pub(crate) fn note(&mut self, action: &SiteAction, now: Time) {
        if let SiteAction::Sleep { node } | SiteAction::Wake { node } = action {
            self.decided.insert(*node, now);
        }
    }

    /// The events between what the planner knows and what a snapshot says.
    pub(crate) fn difference(
        &mut self,
        (snapshot, view): (&SlurmSnapshot, &PlanningView),
        planner: &Planner,
        topology: &ClusterTopology,
        events: &mut Vec<SiteEvent>,
    ) {
        let read_at = snapshot.read_at.saturating_mul(SECOND);
        for (node, state) in topology.states(snapshot) {
            // One that is reserved or kept for another job is not Slurm's to put to sleep.
            let is_kept = seen(state) == SeenPower::Awake && !state.state.is_idle_and_awake();
            let is_needed = is_kept || !view.spare.contains(&state.name);
            if self.needed.insert(node, is_needed) != Some(is_needed) {
                events.push(SiteEvent::Needed { node, is_needed });
            }
            let seen = seen(state);
            self.note_falling(node, (seen, state, read_at), planner, events);
            self.note_waking(node, (seen, state.state.base), read_at);
            let decided = self.decided.get(&node).copied();
            let may_follow = decided.is_some_and(|at| read_at < at.saturating_add(MAX_UNFOLLOWED));
            let event = match (planner.wakefulness(node), seen) {
                (Some(Wakefulness::Awake), SeenPower::Asleep) => SiteEvent::Asleep { node },
                (Some(Wakefulness::Waking), SeenPower::Asleep) if !may_follow => {
                    SiteEvent::Asleep { node }
                }
                // Slurm has not followed, or woke it by itself.
                (Some(Wakefulness::Asleep), SeenPower::Awake) if !may_follow => {
                    SiteEvent::Awake { node }
                }
                (Some(Wakefulness::Asleep), SeenPower::Waking) if !may_follow => {
                    SiteEvent::Awake { node }
                }
                (Some(Wakefulness::Waking), SeenPower::Awake) => SiteEvent::Awake { node },
                (Some(Wakefulness::Asleep), SeenPower::Asleep) => {
                    self.decided.remove(&node);
                    continue;
                }
                _ => continue,
            };
            self.decided.remove(&node);
            events.push(event);
        }
    }

    /// Slurm takes no order to wake a node that it powers down, or that tarn has just had powered down.
    fn note_falling(
        &mut self,
        node: NodeId,
        (seen, state, read_at): (SeenPower, &SlurmNode, Time),
        planner: &Planner,
        events: &mut Vec<SiteEvent>,
    ) {
        let is_off = state.state.flags.contains(&NodeFlag::PoweredDown);
        let decided = self.decided.get(&node);
        let is_ordered = planner.wakefulness(node) == Some(Wakefulness::Asleep)
            && decided.is_some_and(|at| read_at < at.saturating_add(UNDER_WAY));
        let is_falling = !is_off && (seen == SeenPower::Asleep || is_ordered);
        let is_other = match is_falling {
            true => self.falling.insert(node),
            false => self.falling.remove(&node),
        };
        if is_other {
            let is_wakeable = !is_falling;
            events.push(SiteEvent::Wakeable { node, is_wakeable });
        }
    }

    fn note_waking(&mut self, node: NodeId, (seen, base): (SeenPower, NodeBase), read_at: Time) {
        match seen {
            // It has not woken up in Slurm's `ResumeTimeout`: that is no measurement.
            _ if base == NodeBase::Down => {
                self.waking.remove(&node);
            }
            SeenPower::Waking => {
                self.waking.entry(node).or_insert(read_at);
            }
            SeenPower::Asleep => {
                self.waking.remove(&node);
            }
            SeenPower::Awake => {
                if let Some(since) = self.waking.remove(&node) {
                    self.took.push_back(read_at.saturating_sub(since));
                    if self.took.len() > MAX_WAKINGS {
                        self.took.pop_front();
                    }
                }
            }
        }
    }

    /// Has the planner know what nodes draw: the medians of the nodes of each island, else the site's figures.
    pub(crate) fn measure(
        &mut self,
        (snapshot, view): (&SlurmSnapshot, &PlanningView),
        planner: &mut Planner,
        topology: &ClusterTopology,
    ) {
        let count = topology.shapes().count();
        let mut idle: Vec<Vec<f64>> = vec![Vec::new(); count];
        let mut busy: Vec<Vec<f64>> = vec![Vec::new(); count];
        for (node, state) in topology.states(snapshot) {
            let Some(milliwatts) = view.drawn.get(&state.name) else {
                continue;
            };
            let watts = *milliwatts as f64 / 1000.0;
            let island = topology.island_of(node);
            if state.state.is_idle_and_awake() {
                idle[island].push(watts);
            } else if state.state.base == NodeBase::Allocated {
                busy[island].push(watts);
            }
        }
        let mut took: Vec<Nanos> = self.took.iter().copied().collect();
        took.sort_unstable();
        let wake = took.get(took.len() / 2).copied().or(self.given.wake);
        self.models.resize(count, NodePowerModel::default());
        self.measured.resize(count, [None; 2]);
        let measured = self.measured.iter_mut();
        for (island, (known, of_island)) in self.models.iter_mut().zip(measured).enumerate() {
            // None may be idle just now.
            for (last, samples) in of_island.iter_mut().zip([&mut idle, &mut busy]) {
                *last = median(&mut samples[island]).or(*last);
            }
            let idle = of_island[0].or(self.given.idle);
            let busy = of_island[1].or(self.given.busy).or(idle);
            let model = NodePowerModel {
                idle: idle.unwrap_or(0.0),
                busy: busy.unwrap_or(0.0),
                asleep: self.given.asleep.unwrap_or(0.0),
                boot: self.given.boot.or(busy).unwrap_or(0.0),
                wake: wake.unwrap_or(WAKE),
            };
            if model != *known {
                *known = model;
                planner.set_power_model(island, model);
            }
        }
    }
}

/// The middle of some figures, in steps.
fn median(samples: &mut [f64]) -> Option<f64> {
    samples.sort_unstable_by(f64::total_cmp);
    let middle = *samples.get(samples.len() / 2)?;
    (middle > 0.0).then(|| 10f64.powf((middle.log10() * STEPS).round() / STEPS))
}

fn seen(node: &SlurmNode) -> SeenPower {
    let has = |flag: NodeFlag| node.state.flags.contains(&flag);
    if has(NodeFlag::PoweringUp) {
        return SeenPower::Waking;
    }
    let sleeps = [
        NodeFlag::PowerDown,
        NodeFlag::PoweringDown,
        NodeFlag::PoweredDown,
    ];
    // A node with a job is to sleep once that has ended.
    let is_idle = node.state.base == NodeBase::Idle;
    match is_idle && sleeps.into_iter().any(has) {
        true => SeenPower::Asleep,
        false => SeenPower::Awake,
    }
}
