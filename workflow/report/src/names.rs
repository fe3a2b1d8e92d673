//! Names for people, from ids. A log is checksummed, not trusted: an id that is not in its table prints itself.

use tarn_types::action::PartitionAssignment;
use tarn_types::cluster::Cluster;
use tarn_types::event::Start;
use tarn_types::history::History;
use tarn_types::id::{DataId, InstanceId, NodeId, PartitionId, StepId, TierRef};
use tarn_types::part::{Place, TransferKind};
use tarn_types::reason::Reason;
use tarn_types::units::Bytes;

/// The partitions of an attempt: the bytes of each and its tier, as `field 1.00 MiB on n1/fast`.
pub fn partition_texts(start: &Start, all: &[PartitionAssignment]) -> Vec<String> {
    let history = History::new();
    let names = RunNames::new(start, &history);
    let one = |partition: &PartitionAssignment| {
        let about = start.workflow.partitions.get(partition.partition.at());
        let bytes = about.map_or(0, |p| p.on_each(partition.tier_refs.len()));
        let tiers: Vec<String> = partition
            .tier_refs
            .iter()
            .map(|s| names.tier_ref(*s))
            .collect();
        let each = if tiers.len() > 1 { "each " } else { "" };
        let (name, tiers) = (names.partition(partition.partition), tiers.join(", "));
        format!("{name} {} {each}on {tiers}", Bytes(bytes))
    };
    all.iter().map(one).collect()
}

/// The names of one run.
pub(crate) struct RunNames<'a> {
    start: &'a Start,
    history: &'a History,
}

impl<'a> RunNames<'a> {
    pub(crate) fn new(start: &'a Start, history: &'a History) -> Self {
        Self { start, history }
    }

    pub(crate) fn cluster(&self) -> &'a Cluster {
        &self.start.cluster
    }

    pub(crate) fn step(&self, id: StepId) -> String {
        let step = self.start.workflow.steps.get(id.at());
        step.map_or_else(|| id.to_string(), |s| s.name.clone())
    }

    /// The element of a `foreach` instance; `None` for a plain step, or while it is not known.
    pub(crate) fn item(&self, id: InstanceId) -> Option<&'a str> {
        self.history.item(id)
    }

    /// `solve`, `project[tile-3]`, or `project[7]` while the element is not known.
    pub(crate) fn instance(&self, id: InstanceId) -> String {
        let foreach = self
            .start
            .workflow
            .steps
            .get(id.step.at())
            .is_none_or(|s| s.foreach.is_some());
        match self.item(id) {
            Some(item) => format!("{}[{item}]", self.step(id.step)),
            None if foreach => format!("{}[{}]", self.step(id.step), id.index),
            None => self.step(id.step),
        }
    }

    pub(crate) fn data(&self, id: DataId) -> String {
        let data = self.start.workflow.data.get(id.at());
        data.map_or_else(|| id.to_string(), |d| d.name.clone())
    }

    pub(crate) fn partition(&self, id: PartitionId) -> String {
        let partition = self.start.workflow.partitions.get(id.at());
        partition.map_or_else(|| id.to_string(), |p| p.name.clone())
    }

    pub(crate) fn partition_texts(&self, all: &[PartitionAssignment]) -> Vec<String> {
        partition_texts(self.start, all)
    }

    pub(crate) fn version(&self, id: DataId, version: u32) -> String {
        format!("{} v{version}", self.data(id))
    }

    pub(crate) fn node(&self, id: NodeId) -> String {
        let node = self.start.cluster.nodes.get(id.at());
        node.map_or_else(|| id.to_string(), |n| n.name.clone())
    }

    pub(crate) fn tier(&self, tier_ref: TierRef) -> String {
        let tiers = self
            .start
            .cluster
            .nodes
            .get(tier_ref.node.at())
            .map(|n| &n.tiers);
        let tier = tiers.and_then(|t| t.get(tier_ref.tier.at()));
        tier.map_or_else(|| tier_ref.tier.to_string(), |t| t.name.clone())
    }

    /// `n0/tmpfs`.
    pub(crate) fn tier_ref(&self, tier_ref: TierRef) -> String {
        format!("{}/{}", self.node(tier_ref.node), self.tier(tier_ref))
    }

    pub(crate) fn place(&self, place: &Place) -> String {
        match place {
            Place::Node(tier_ref) => self.tier_ref(*tier_ref),
            Place::Source => "its source".into(),
            Place::External(path) => path.display().to_string(),
            Place::Drained => "the external store".into(),
        }
    }

    /// The nodes of spots, each once, in order.
    pub(crate) fn nodes(&self, tier_refs: &[TierRef]) -> String {
        let mut names: Vec<String> = Vec::new();
        for tier_ref in tier_refs {
            let name = self.node(tier_ref.node);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(", ")
    }

    pub(crate) fn reason(&self, reason: &Reason) -> String {
        let tier = |s: TierRef| format!("{} of {}", self.tier(s), self.node(s.node));
        let (node, instance) = (|n| self.node(n), |i| self.instance(i));
        reason.explain_with(&self.start.workflow, &node, &tier, &instance)
    }
}

/// The name of a kind of transfer, as it is printed and written into JSON.
pub(crate) fn kind_name(kind: TransferKind) -> &'static str {
    match kind {
        TransferKind::ExternalIn => "external in",
        TransferKind::ExternalOut => "external out",
        TransferKind::Peer => "peer",
        TransferKind::Promote => "promote",
        TransferKind::Demote => "demote",
    }
}
