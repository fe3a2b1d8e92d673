//! The view of a site through which a policy sees it and acts: [`SchedulerView`]. Policies are written against it
//! alone, so that the same code decides in a simulated site and in a single run. Implemented in plan/site.rs and
//! decide/view.rs.

use super::queue::{Fit, QueuedJob};
use std::collections::HashMap;
use tarn_types::compute::Demand;
use tarn_types::energy::EnergyRank;
use tarn_types::id::NodeId;
use tarn_types::placement::NodeRank;
use tarn_types::site::AllocationReason;
use tarn_types::units::{Nanos, Time};

/// When a job could begin if nobody overtook it, and the jobs that may begin before it without delaying it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shadow {
    /// When.
    pub(crate) at: Time,
    /// Its nodes are of this class (an index of the view's own).
    pub(crate) class: usize,
    /// Nodes of that class that are idle then and that it does not need.
    pub(crate) extra: u32,
    /// Nodes that it waits for by name, in ascending order; nobody else may keep them beyond `at`.
    pub(crate) keeps: Vec<NodeId>,
}

/// Resources of a node that a job is to have in some time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeHold {
    pub(crate) node: NodeId,
    pub(crate) from: Time,
    pub(crate) until: Time,
    pub(crate) demand: Demand,
}

/// Reservations of jobs that wait, by node.
#[derive(Debug, Default)]
pub(crate) struct HeldNodes(HashMap<NodeId, Vec<NodeHold>>);

impl HeldNodes {
    pub(crate) fn add(&mut self, holds: &[NodeHold]) {
        for hold in holds {
            self.0.entry(hold.node).or_default().push(*hold);
        }
    }

    pub(crate) fn of(&self, node: NodeId) -> &[NodeHold] {
        self.0.get(&node).map_or(&[], Vec::as_slice)
    }
}

/// A node on which a job could run, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) node: NodeId,
    /// When the node has the resources that it needs, from now.
    pub(crate) free_in: Nanos,
    /// When its data is there, from now.
    pub(crate) data_in: Nanos,
    /// Bytes that have to be brought.
    pub(crate) missing: u64,
    /// How long its program then reads and writes, outside by itself and on the node's tiers.
    pub(crate) io: Nanos,
    /// Of nodes that are alike, the one with less goes first.
    pub(crate) load: usize,
    /// Of those, the node that draws less for each core, and then the cooler one.
    pub(crate) draw: EnergyRank,
    /// The node takes another job that waits.
    pub(crate) open: bool,
}

impl Candidate {
    pub(crate) fn begin(&self) -> Nanos {
        self.free_in.max(self.data_in)
    }

    /// Of candidates, the one with the least of this goes first.
    pub(crate) fn rank(&self) -> NodeRank<NodeId> {
        NodeRank {
            restart: 0,
            computes: self.begin().saturating_add(self.io),
            missing: self.missing,
            load: self.load,
            draw: self.draw,
            node: self.node,
        }
    }
}

/// The view of a policy.
pub(crate) trait SchedulerView {
    /// Time.
    fn now(&self) -> Time;
    /// The first waiting job in the policy's order, or the first after another that fits.
    fn next(&self, after: Option<&QueuedJob>, fit: &Fit) -> Option<QueuedJob>;
    /// The free capacity: the most idle nodes of one kind, the most free cores of one node.
    fn free(&self) -> Fit;
    /// Whether all nodes are of one class.
    fn one_class(&self) -> bool;
    /// Nodes that a job could have now, those with its data first; nodes in `not` (in ascending order) only if it ends by `until`.
    fn nodes_for(&self, w: &QueuedJob, not: &[NodeId], until: Time) -> Option<Vec<NodeId>>;
    /// The class of the nodes that a job could have now.
    fn class_for(&self, w: &QueuedJob) -> Option<usize>;
    /// The class of a node.
    fn class_of(&self, node: NodeId) -> usize;
    /// When it could begin.
    fn earliest(&self, w: &QueuedJob) -> Option<Shadow>;
    /// Its earliest begin beside what others hold, its nodes then, and what it would hold. `None`: it has none, or the view
    /// plans for the first of the queue only.
    fn beside(&self, w: &QueuedJob, held: &HeldNodes)
    -> Option<(Time, Vec<NodeId>, Vec<NodeHold>)>;
    /// How long it has waited since it could have begun.
    fn waited(&self, w: &QueuedJob) -> Nanos;
    /// Gives it its nodes, free now. False if its data has no space there yet: it continues to wait.
    fn start(&mut self, w: &QueuedJob, nodes: &[NodeId], why: AllocationReason) -> bool;
    /// The permitted place where a one-node job computes first.
    fn best(&self, w: &QueuedJob, may: &dyn Fn(&Candidate) -> bool) -> Option<Candidate>;
    /// Lets a one-node job bring its data to a node and begin there as soon as it can.
    fn plan(&mut self, w: &QueuedJob, on: &Candidate) -> bool;
    /// A job that differs from this one by its data alone, waits behind it, and has all of that on the node, while this one has all of its
    /// own on another.
    fn native(&self, w: &QueuedJob, node: NodeId) -> Option<QueuedJob>;
    /// Asks to decide again at a time, even if nothing happens.
    fn remind(&mut self, at: Time);
    /// Of a job on several nodes whose data is on others that are busy: when those are free, if waiting for them ends
    /// sooner than bringing the data to `nodes`.
    fn worth_waiting(&self, w: &QueuedJob, nodes: &[NodeId]) -> Option<Shadow>;
    /// Of a job that has just found no space for its data: when there is some. Nobody else takes it.
    fn space_shadow(&self, w: &QueuedJob) -> Option<Shadow>;
    /// A job that does not begin before its shadow goes first: its data may come ahead.
    fn bring_ahead(&mut self, w: &QueuedJob, shadow: &Shadow);
    /// The job that was promised a begin, if it is in the queue.
    fn promised(&mut self) -> Option<QueuedJob>;
    /// Whether the first ordinary job that waits would begin later than promised if another took these nodes until then.
    fn breaks_promise(&mut self, w: &QueuedJob, nodes: &[NodeId], until: Time) -> bool;
    /// The same if the other had nodes from its shadow on.
    fn shadow_breaks_promise(&mut self, w: &QueuedJob, shadow: &Shadow) -> bool;
    /// It was promised to begin by now, and could on this node.
    fn is_due(&self, w: &QueuedJob, node: NodeId) -> bool;
}
