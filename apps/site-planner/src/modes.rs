//! Memory modes of nodes, as Slurm's features have them: which nodes are in which, what the planner decided, and the jobs
//! that wait so that reboots are few. docs/admin/memory-modes.md, "Few reboots".

use crate::SitePlanner;
use crate::jobs::KnownStage;
use crate::marks::DelayWish;
use crate::mode_features::{can_change, mode_in};
use crate::topology::ClusterTopology;
use std::collections::BTreeMap;
use tarn_engine::plan::Planner;
use tarn_site::PlanningView;
use tarn_slurm::{NodeBase, SlurmSnapshot};
use tarn_types::id::NodeId;
use tarn_types::policy::Order;
use tarn_types::site::{Job, Mode, SiteAction, SiteEvent};
use tarn_types::units::{Nanos, SECOND, Time};

/// A node that Slurm has not given to a job after so long is not rebooted.
const MAX_UNFOLLOWED: Nanos = 60 * SECOND;

/// The changes of modes that the planner decided.
#[derive(Debug, Default)]
pub(crate) struct ModeTable {
    decided: BTreeMap<NodeId, (Mode, Time)>,
}

impl ModeTable {
    /// The planner is built again.
    pub(crate) fn begin_again(&mut self) {
        self.decided.clear();
    }

    /// The planner's decision.
    pub(crate) fn note(&mut self, action: &SiteAction, now: Time) {
        if let SiteAction::SetMode { node, mode } = action {
            self.decided.insert(*node, (*mode, now));
        }
    }

    /// The events between what the planner knows and what a snapshot says.
    pub(crate) fn difference(
        &mut self,
        snapshot: &SlurmSnapshot,
        planner: &Planner,
        topology: &ClusterTopology,
        events: &mut Vec<SiteEvent>,
    ) {
        if !topology.shapes().any(|shape| shape.has_modes) {
            return;
        }
        let read_at = snapshot.read_at.saturating_mul(SECOND);
        for (node, state) in topology.states(snapshot) {
            let active = state.active_features.iter().map(String::as_str);
            let Some(mode) = mode_in(active).filter(|_| can_change(state)) else {
                continue;
            };
            let decided = self.decided.get(&node).copied();
            let is_over = decided.is_some_and(|(_, at)| {
                state.state.base != NodeBase::Idle || read_at >= at.saturating_add(MAX_UNFOLLOWED)
            });
            if planner.mode_of(node).is_some_and(|known| known != mode) {
                self.decided.remove(&node);
                events.push(SiteEvent::InMode { node, mode });
            } else if is_over {
                // A job has it, which Slurm reboots it for, or Slurm gave it to none.
                self.decided.remove(&node);
                events.push(SiteEvent::ModeSet { node, ok: false });
            }
        }
    }

    /// So many nodes change into each mode.
    fn coming(&self) -> BTreeMap<Mode, u32> {
        let mut coming = BTreeMap::new();
        for (mode, _) in self.decided.values() {
            *coming.entry(*mode).or_default() += 1;
        }
        coming
    }
}

impl SitePlanner {
    /// Jobs with data that Slurm would reboot nodes for before the planner would: they wait. To be called after
    /// [`SitePlanner::see`], with the same snapshot and state.
    pub fn delay_wishes(&self, snapshot: &SlurmSnapshot, view: &PlanningView) -> Vec<DelayWish> {
        let has_grouping = matches!(self.policy.order, Order::Data | Order::Energy);
        if !has_grouping || !self.topology.shapes().any(|shape| shape.has_modes) {
            return Vec::new();
        }
        let others = |mode: Mode| {
            let nodes = (0..self.topology.len() as u32).map(NodeId);
            let has_another = move |node: &NodeId| {
                let has_modes = self.topology.shape_of(*node).is_some_and(|s| s.has_modes);
                has_modes
                    && self.planner.mode_of(*node) != Some(mode)
                    && !self.planner.is_closed(*node)
            };
            nodes.filter(has_another).collect::<Vec<NodeId>>()
        };
        let others = [Mode::OneLevel, Mode::TwoLevel].map(|mode| (mode, others(mode)));
        // Slurm reboots a node in another mode.
        let could_change = |job: &Job| {
            let mut of_mode = others.iter().filter(|(mode, _)| job.mode == Some(*mode));
            of_mode.any(|(_, nodes)| nodes.iter().any(|node| job.may_have(*node)))
        };
        let waiting = self.jobs.jobs.iter().filter(|(number, known)| {
            let is_given = self
                .wishes
                .get(number)
                .is_some_and(|wish| wish.allocated_for.is_some());
            let is_staged = view.jobs.get(number).is_some_and(|job| job.is_staged);
            let is_free = snapshot
                .jobs
                .get(number)
                .is_some_and(|job| job.reservation.is_empty());
            known.stage == KnownStage::Waits
                && !is_given
                && is_staged
                && is_free
                && known.spec.not_before <= self.now
                && could_change(&known.spec)
        });
        let mut waiting: Vec<(Option<Time>, u32, u32, Mode)> = waiting
            .filter_map(|(number, known)| {
                let spec = &known.spec;
                Some((spec.place, *number, spec.nodes, spec.mode?))
            })
            .collect();
        waiting.sort_unstable();
        let mut coming = self.modes.coming();
        let mut wishes = Vec::new();
        for (_, job, nodes, mode) in waiting {
            let left = coming.entry(mode).or_default();
            if *left >= nodes {
                *left -= nodes;
                continue;
            }
            wishes.push(DelayWish {
                job,
                total: self.policy.bound,
                reason: "waiting jobs can use the nodes in the mode in which they are".to_owned(),
            });
        }
        wishes
    }
}
