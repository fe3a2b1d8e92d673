//! The subjects of a question, and the objects that an action touches.

use crate::names::RunNames;
use crate::trace::RunTrace;
use tarn_types::id::{DataId, InstanceId, NodeId, StepId, TierId, TierRef, TransferId};
use tarn_types::part::{Place, Transfer};
use tarn_types::reason::Reason;

/// The subjects of a question: all things that have the name.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Topic {
    pub(super) run: bool,
    steps: Vec<StepId>,
    pub(super) instances: Vec<InstanceId>,
    pub(super) data: Vec<DataId>,
    nodes: Vec<NodeId>,
    tiers: Vec<TierId>,
    pub(super) tier_refs: Vec<TierRef>,
    transfers: Vec<TransferId>,
}

impl Topic {
    /// A question about the run.
    pub(super) fn run() -> Self {
        Self {
            run: true,
            ..Self::default()
        }
    }
}

pub(super) fn topic(trace: &RunTrace, names: &RunNames<'_>, query: &str) -> Option<Topic> {
    let workflow = &trace.start.workflow;
    let mut topic = Topic {
        run: query.is_empty(),
        ..Topic::default()
    };
    let at = |n: usize| n as u32;
    let steps = workflow.steps.iter().enumerate();
    topic.steps = steps
        .filter(|(_, s)| s.name == query)
        .map(|(n, _)| StepId(at(n)))
        .collect();
    let data = workflow.data.iter().enumerate();
    topic.data = data
        .filter(|(_, d)| d.name == query)
        .map(|(n, _)| DataId(at(n)))
        .collect();
    for (n, node) in names.cluster().nodes.iter().enumerate() {
        let id = NodeId(at(n));
        if node.name == query {
            topic.nodes.push(id);
        }
        for (t, tier) in node.tiers.iter().enumerate() {
            let tier_id = TierId(at(t));
            if tier.name == query && !topic.tiers.contains(&tier_id) {
                topic.tiers.push(tier_id);
            }
            if query
                .strip_prefix(&node.name)
                .and_then(|r| r.strip_prefix('/'))
                == Some(&tier.name)
            {
                topic.tier_refs.push(TierRef {
                    node: id,
                    tier: tier_id,
                });
            }
        }
    }
    topic.instances = instances(trace, names, query);
    let number = query
        .strip_prefix('x')
        .and_then(|n| n.parse().ok())
        .map(TransferId);
    topic.transfers = number
        .filter(|id| trace.history.transfers.contains_key(id))
        .into_iter()
        .collect();
    (topic != Topic::default()).then_some(topic)
}

/// The instance that `step[element]` or `step[index]` names: an element goes before an index.
fn instances(trace: &RunTrace, names: &RunNames<'_>, query: &str) -> Vec<InstanceId> {
    let Some((step, item)) = query.strip_suffix(']').and_then(|q| q.split_once('[')) else {
        return Vec::new();
    };
    let steps = &trace.start.workflow.steps;
    let Some(at) = steps.iter().position(|s| s.name == step) else {
        return Vec::new();
    };
    let step = StepId(at as u32);
    let mut known: Vec<InstanceId> = trace.history.instances_of(step).map(|(id, _)| id).collect();
    // Those too of which nothing was decided but that they do not run.
    let all = (0..).map(|index| InstanceId { step, index });
    if steps[at].foreach.is_some() {
        known.extend(all.take_while(|id| names.item(*id).is_some()));
    }
    let by_item = known.iter().find(|id| names.item(**id) == Some(item));
    let by_index = || known.iter().find(|id| item.parse() == Ok(id.index));
    by_item.or_else(by_index).copied().into_iter().collect()
}

pub(super) fn all_names(trace: &RunTrace, names: &RunNames<'_>) -> Vec<String> {
    let workflow = &trace.start.workflow;
    let mut all: Vec<String> = workflow.steps.iter().map(|s| s.name.clone()).collect();
    all.extend(workflow.data.iter().map(|d| d.name.clone()));
    for node in &names.cluster().nodes {
        all.push(node.name.clone());
        for tier in &node.tiers {
            all.push(tier.name.clone());
            all.push(format!("{}/{}", node.name, tier.name));
        }
    }
    all.extend(trace.history.instances.keys().map(|id| names.instance(*id)));
    all
}

/// The objects that an action or a failure touches.
#[derive(Default)]
pub(super) struct Touched {
    pub(super) run: bool,
    pub(super) steps: Vec<StepId>,
    pub(super) instances: Vec<InstanceId>,
    pub(super) data: Vec<DataId>,
    pub(super) nodes: Vec<NodeId>,
    pub(super) tier_refs: Vec<TierRef>,
    pub(super) transfers: Vec<TransferId>,
}

impl Touched {
    pub(super) fn transfer(&mut self, t: &Transfer) {
        self.transfers.push(t.id);
        self.data.push(t.data);
        let places = t.parts.iter().map(|p| &p.from).chain([&t.to]);
        self.tier_refs.extend(places.filter_map(|p| match p {
            Place::Node(tier_ref) => Some(*tier_ref),
            _ => None,
        }));
    }

    pub(super) fn reason(&mut self, reason: &Reason) {
        match reason {
            Reason::EarliestEnd { node, .. }
            | Reason::FirstFree { node }
            | Reason::FirstInQueue { node }
            | Reason::Backfill { node }
            | Reason::PartitionThere { node, .. }
            | Reason::SameNodes { node } => self.nodes.push(*node),
            Reason::WaitForTurn { first } => self.instances.push(*first),
            Reason::WaitForCores { node, .. } | Reason::WaitForData { node, .. } => {
                self.nodes.push(*node)
            }
            Reason::ReadExternal { instance } | Reason::PromoteForUse { instance } => {
                self.instances.push(*instance)
            }
            Reason::FetchPeer { instance, from } | Reason::FollowPeer { instance, from } => {
                self.instances.push(*instance);
                self.nodes.push(*from);
            }
            Reason::WaitForSpace { tier_ref, .. }
            | Reason::MakingSpace { tier_ref, .. }
            | Reason::WaitForOthers { tier_ref, .. }
            | Reason::EvictForSpace { tier_ref, .. }
            | Reason::DemoteForSpace { tier_ref, .. }
            | Reason::DrainForSpace { tier_ref, .. } => self.tier_refs.push(*tier_ref),
            Reason::NodeLost { node } => self.nodes.push(*node),
            Reason::OutputLost { data }
            | Reason::OutputBack { data }
            | Reason::EntryChanged { data } => self.data.push(*data),
            Reason::MovedAway { transfer } => self.transfers.push(*transfer),
            _ => {}
        }
    }

    pub(super) fn concerns(&self, topic: &Topic) -> bool {
        let tier_refs = || self.tier_refs.iter();
        (topic.run && self.run)
            || self
                .instances
                .iter()
                .any(|i| topic.instances.contains(i) || topic.steps.contains(&i.step))
            || self.steps.iter().any(|s| topic.steps.contains(s))
            || self.data.iter().any(|d| topic.data.contains(d))
            || self.nodes.iter().any(|n| topic.nodes.contains(n))
            || tier_refs().any(|s| {
                topic.nodes.contains(&s.node)
                    || topic.tiers.contains(&s.tier)
                    || topic.tier_refs.contains(s)
            })
            || self.transfers.iter().any(|t| topic.transfers.contains(t))
    }
}
