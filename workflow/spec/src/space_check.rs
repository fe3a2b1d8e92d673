//! Refuses a dataset of a stated size that certainly cannot be stored as a step needs it. The size is that of one version;
//! other data there, pre-images and second copies, is not counted: it may be moved away.

use crate::diag::{Finding, FindingCode, Findings, quoted};
use crate::parsed::Parsed;
use crate::spans::StepSpans;
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::cluster::{Cluster, Node};
use tarn_types::id::DataId;
use tarn_types::units::Bytes;
use tarn_types::workflow::{
    Dataset, DatasetUse, Distribution, Foreach, Role, Step, VersionPartitioning, Workflow,
};

/// The capacities of the nodes, largest first.
pub(crate) struct SpaceCheck<'p> {
    /// By the tier that a dataset names (none: any): the largest tier of each node, and all its tiers together.
    by_tier: BTreeMap<Option<&'p str>, (Vec<u64>, Vec<u64>)>,
    /// Versions that consist of the parts of several instances.
    by_instances: BTreeSet<(DataId, u32)>,
}

impl<'p> SpaceCheck<'p> {
    pub(crate) fn new(parsed: &'p Parsed, cluster: &Cluster) -> Self {
        let tiers: BTreeSet<Option<&str>> = parsed
            .workflow
            .data
            .iter()
            .map(|d| d.tier.as_deref())
            .collect();
        Self {
            by_tier: tiers
                .into_iter()
                .map(|tier| (tier, capacities(cluster, tier)))
                .collect(),
            by_instances: by_instances(&parsed.workflow),
        }
    }

    /// The most bytes of a dataset that can be stored as a use needs it, and how, in words; `None` when it need not
    /// all be there at once.
    fn most(
        &self,
        step: &Step,
        used: &DatasetUse,
        dataset: &Dataset,
    ) -> Option<(u64, &'static str)> {
        let one_instance_of_many = step.foreach.is_some() && used.role == Role::Out;
        if used.entry.is_some() || one_instance_of_many {
            return None;
        }
        let version = used.reads.or(used.makes)?;
        let one_part = dataset.partition == VersionPartitioning::Whole
            && !self.by_instances.contains(&(used.data, version));
        let (largest, together) = self.by_tier.get(&dataset.tier.as_deref())?;
        let spaces = if one_part { largest } else { together };
        let of = |at: usize| spaces.get(at).copied().unwrap_or(0);
        let nodes = step.nodes as usize;
        Some(match used.distribution {
            Distribution::Single if one_part => (of(0), "in one piece on a tier of a node"),
            // Before it is spread, its input is on the first node.
            Distribution::Shared if used.role == Role::In => (of(0), "whole on a node"),
            Distribution::Single => (of(0), "whole on a node"),
            // Every node holds it: the smallest of the largest `nodes` decides.
            Distribution::Broadcast => (of(nodes.saturating_sub(1)), "whole on each node"),
            Distribution::Scatter | Distribution::Shared => (
                together
                    .iter()
                    .take(nodes)
                    .fold(0, |sum: u64, r| sum.saturating_add(*r)),
                "spread over its nodes",
            ),
        })
    }
}

fn capacities(cluster: &Cluster, tier: Option<&str>) -> (Vec<u64>, Vec<u64>) {
    let of = |node: &Node| {
        let counted = node
            .tiers
            .iter()
            .filter(|t| tier.is_none_or(|name| name == t.name));
        counted.fold((0, 0), |(most, sum): (u64, u64), t| {
            (most.max(t.capacity), sum.saturating_add(t.capacity))
        })
    };
    let (mut largest, mut together): (Vec<u64>, Vec<u64>) = cluster.nodes.iter().map(of).unzip();
    largest.sort_unstable_by(|a, b| b.cmp(a));
    together.sort_unstable_by(|a, b| b.cmp(a));
    (largest, together)
}

fn by_instances(workflow: &Workflow) -> BTreeSet<(DataId, u32)> {
    let several = |step: &&Step| match &step.foreach {
        None => false,
        Some(Foreach::Values(values)) => values.len() > 1,
        Some(Foreach::Entries { .. }) => true,
    };
    let uses = workflow.steps.iter().filter(several).flat_map(|s| &s.uses);
    uses.filter_map(|u| Some((u.data, u.makes?))).collect()
}

/// Checks every use of a step.
pub(crate) fn check_space(
    out: &mut Findings,
    parsed: &Parsed,
    step: &Step,
    spans: &StepSpans,
    spaces: &SpaceCheck<'_>,
) {
    for (used, (span, _)) in step.uses.iter().zip(&spans.uses) {
        let dataset = parsed.workflow.dataset(used.data);
        let stated = parsed.spans.data[used.data.at()].size;
        if let (Some(size), Some(stated), Some((space, whole))) =
            (dataset.size, stated, spaces.most(step, used, dataset))
            && size > space
        {
            let (name, step) = (quoted(&dataset.name), quoted(&step.name));
            out.add(
                Finding::error(
                    FindingCode::NoSpace,
                    format!("dataset {name} of {} does not fit where step {step} needs it", Bytes(size)),
                )
                .at(stated, "its stated size")
                .at(*span, format!("needs it {whole}: there is space for {}", Bytes(space)))
                .help("use larger or more tiers, select entries (`NAME/ENTRY`, `foreach`), scatter it, or correct `size`"),
            );
        }
    }
}
