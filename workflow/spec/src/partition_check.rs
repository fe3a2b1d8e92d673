//! Whether the nodes can have the partitions of steps: docs/reference/workflow-file.md, "Partitions".

use crate::diag::{Finding, FindingCode, Findings, quoted};
use crate::parsed::Parsed;
use crate::spans::PartitionSpans;
use crate::tier_names::unknown_tier;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::Path;
use tarn_types::cluster::{Cluster, Node};
use tarn_types::id::StepId;
use tarn_types::units::Bytes;
use tarn_types::workflow::{KeepPartition, StoragePartition};

type PartitionWithSpans<'p> = (&'p StoragePartition, &'p PartitionSpans);

/// Whether as many nodes as each of its steps has can hold it.
pub(crate) fn check_partition(
    out: &mut Findings,
    parsed: &Parsed,
    (partition, spans): PartitionWithSpans<'_>,
    (cluster, tiers): (&Cluster, &BTreeSet<&str>),
) {
    let what = format!("partition {}", quoted(&partition.name));
    if let (Some(tier), Some(span)) = (&partition.tier, spans.tier)
        && !tiers.contains(tier.as_str())
    {
        return out.add(unknown_tier(&what, tier, span, tiers));
    }
    for (step, named) in partition.steps.iter().zip(&spans.steps) {
        let step = parsed.workflow.step(*step);
        let nodes = step.nodes as usize;
        let largest = largest(cluster, partition.tier.as_deref().or(step.tier.as_deref()));
        let space = largest.get(nodes - 1).copied().unwrap_or(0);
        let takes = partition.takes(nodes);
        // A lack of nodes is reported for the step.
        if takes > space && nodes <= largest.len() {
            let name = quoted(&step.name);
            let message = format!(
                "{what} takes {} on each node, and does not fit where step {name} needs it",
                Bytes(takes)
            );
            out.add(
                Finding::error(FindingCode::NoSpace, message)
                    .at(spans.size, "its size")
                    .at(
                        *named,
                        format!("there is space for {} on a tier", Bytes(space)),
                    )
                    .help("use larger tiers, name another `tier`, or correct `size`"),
            );
        }
    }
}

/// The names of the pieces of one that is spread are in one variable, with commas between them; on one machine they are paths.
pub(crate) fn check_names(
    out: &mut Findings,
    parsed: &Parsed,
    (partition, spans): PartitionWithSpans<'_>,
    cluster: &Cluster,
) {
    let Some(span) = spans.spread else {
        return;
    };
    let mut tiers = cluster.nodes.iter().flat_map(|n| &n.tiers);
    let comma = |root: &Path| root.as_os_str().as_encoded_bytes().contains(&b',');
    if let Some(tier) = tiers.find(|t| comma(&t.root)) {
        let why = format!(
            "tier {} is at {}, and commas separate the names of its pieces",
            quoted(&tier.name),
            tier.root.display()
        );
        out.add(
            refused(partition, &why, span)
                .help("give the tier a path without a comma, or leave `spread` out"),
        );
    }
    let mut nodes: Vec<&str> = cluster.nodes.iter().map(|n| n.name.as_str()).collect();
    // It is not known yet which of them a step runs on.
    nodes.sort_by_key(|name| Reverse(name.len()));
    let most = StoragePartition::MOST_NAMES;
    let bytes_in = |step: &StepId| {
        let nodes = nodes
            .iter()
            .take(parsed.workflow.step(*step).nodes as usize);
        StoragePartition::names(&partition.name, nodes.copied())
    };
    if let Some(step) = partition.steps.iter().find(|step| bytes_in(step) > most) {
        let why = format!(
            "the names of its pieces in step {} have up to {} bytes, and at most {most} fit into $TARN_PARTITION_{}",
            quoted(&parsed.workflow.step(*step).name),
            bytes_in(step),
            partition.name
        );
        out.add(refused(partition, &why, span).help(
            "give the step fewer `nodes`, the partition a shorter name, or leave `spread` out",
        ));
    }
}

/// The largest tier of each node, of those of this name if one is given; largest first.
fn largest(cluster: &Cluster, tier: Option<&str>) -> Vec<u64> {
    let of = |node: &Node| {
        let named = node.tiers.iter();
        let named = named.filter(|t| tier.is_none_or(|name| *name == t.name));
        named.map(|t| t.capacity).max().unwrap_or(0)
    };
    let mut largest: Vec<u64> = cluster.nodes.iter().map(of).collect();
    largest.sort_unstable_by(|a, b| b.cmp(a));
    largest
}

/// The restrictions on the partitions of a site's job.
pub(crate) fn check_site_partition(out: &mut Findings, (partition, spans): PartitionWithSpans<'_>) {
    if let (KeepPartition::Workflow, Some(span)) = (partition.keep, spans.keep) {
        out.add(
            refused(partition, "a job of a site has its partitions as long as it is there", span)
                .help("leave `keep` out; data for other jobs is a dataset: copy it there at the end of the job"),
        );
    }
}

/// Partitions are not encrypted: in them the content of an encrypted dataset would be in clear on the tier.
pub(crate) fn check_clear(
    out: &mut Findings,
    parsed: &Parsed,
    (partition, spans): PartitionWithSpans<'_>,
) {
    for (step, named) in partition.steps.iter().zip(&spans.steps) {
        let step = parsed.workflow.step(*step);
        let mut uses = step.uses.iter();
        let encrypted = uses.find(|used| parsed.workflow.dataset(used.data).encrypt);
        if let Some(used) = encrypted {
            let dataset = quoted(&parsed.workflow.dataset(used.data).name);
            let message = format!(
                "step {} uses {dataset}, which is encrypted, and a partition, which would be stored on the tier unencrypted",
                quoted(&step.name),
            );
            out.add(
                Finding::error(FindingCode::NoEncryption, message)
                    .at(*named, "not sealed")
                    .help("leave the partition or `encrypt` out"),
            );
        }
    }
}

fn refused(partition: &StoragePartition, why: &str, at: miette::SourceSpan) -> Finding {
    let name = quoted(&partition.name);
    Finding::error(
        FindingCode::NoPartition,
        format!("partition {name} cannot be had like this: {why}"),
    )
    .at(at, "asked for here")
}
