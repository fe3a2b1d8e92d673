//! Nodes that do not have a tier, and those that export them part of theirs. docs/internals/shared-namespace.md, "A borrowed tier".

use crate::error::NodeCallError;
use crate::link::ReachableNode;
use crate::measure::answers;
use crate::{ATTACH_TIMEOUT, QUICK};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tarn_proto::node::{Brick, NodeReply, NodeRequest};
use tarn_types::cluster::{Cluster, Tier};
use tarn_types::id::NodeId;

/// Nodes that attach a tier of one: each takes an equal part of it, and a part of its network and processors.
pub const MAX_BORROWERS: usize = 8;

/// A node has no remote tier in place of one that it does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemoteTierError {
    /// All that have the tier export it to as many as they may.
    #[error("no node that has it lends it to more than {MAX_BORROWERS} others")]
    NoProvider,
    /// A node does not export it.
    #[error("{provider} does not lend it: {why}")]
    NotExported {
        /// The node that has it.
        provider: String,
        /// Its error.
        why: NodeCallError,
    },
    /// The node itself does not attach it.
    #[error("it cannot borrow it: {0}")]
    NotAttached(NodeCallError),
    /// One of both answers something else.
    #[error(transparent)]
    Mismatch(NodeCallError),
}

/// The result for a tier that a node does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteTierAttachment {
    /// The node without it.
    pub node: String,
    /// The tier's name.
    pub tier: String,
    /// The node that exports it; or why no node does, and then its stand-in stays.
    pub by: Result<String, RemoteTierError>,
}

/// Which node is to have how much of another one's tier. Nodes and tiers by their positions in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RemoteTierPlan {
    tier: usize,
    node: usize,
    provider: usize,
    bytes: u64,
}

/// Has each node for which something stands in for a tier attach one instead, from a node that has it, for a run of this workspace.
/// The exported size is taken off the exporting node's tier; a tier that nobody exports stays as it is.
pub fn attach_remote_tiers(
    links: &[ReachableNode],
    cluster: &mut Cluster,
    workspace: &str,
    state: &Path,
) -> Vec<RemoteTierAttachment> {
    let lacking = lacking(cluster);
    if lacking.is_empty() {
        return Vec::new();
    }
    let before = earlier_attachments(links, cluster, workspace);
    let mut all = Vec::new();
    let mut plans = Vec::new();
    for (tier, node) in lacking {
        match choose_provider(cluster, &plans, (tier, node), &before) {
            Some(provider) => plans.push(RemoteTierPlan {
                tier,
                node,
                provider,
                bytes: 0,
            }),
            None => all.push(RemoteTierAttachment {
                node: cluster.nodes[node].name.clone(),
                tier: cluster.nodes[node].tiers[tier].name.clone(),
                by: Err(RemoteTierError::NoProvider),
            }),
        }
    }
    divide_tiers(cluster, &mut plans);
    let exported = export_tiers(links, cluster, workspace, &plans);
    let attached = attach_tiers(links, cluster, state, &plans, exported);
    for (plan, attached) in plans.iter().zip(attached) {
        let name = |node: usize| cluster.nodes[node].name.clone();
        let (node, provider) = (name(plan.node), name(plan.provider));
        let tier = cluster.nodes[plan.node].tiers[plan.tier].name.clone();
        let by = attached.map(|tier| {
            replace_tier(cluster, plan, tier);
            provider
        });
        all.push(RemoteTierAttachment { node, tier, by });
    }
    all
}

/// A node has another one's tier from now on, which has so much less.
fn replace_tier(cluster: &mut Cluster, plan: &RemoteTierPlan, attached: AttachedTier) {
    let old = &mut cluster.nodes[plan.node].tiers[plan.tier];
    *old = Tier {
        name: std::mem::take(&mut old.name),
        root: attached.root,
        capacity: plan.bytes,
        read: attached.read,
        write: attached.write,
        lender: Some(NodeId(plan.provider as u32)),
    };
    let left = &mut cluster.nodes[plan.provider].tiers[plan.tier].capacity;
    assert!(
        plan.bytes <= *left,
        "{} bytes of a tier of {left} were exported",
        plan.bytes
    );
    *left -= plan.bytes;
}

/// Tiers that nodes do not have, though others do: tier and node.
fn lacking(cluster: &Cluster) -> Vec<(usize, usize)> {
    let nodes = cluster.nodes.iter().enumerate();
    let tiers = nodes.flat_map(|(n, node)| {
        let tiers = node.tiers.iter().enumerate();
        tiers
            .filter(|(_, t)| t.stands_in())
            .map(move |(t, _)| (t, n))
    });
    tiers.collect()
}

/// The nodes that have something on another node's tiers from an earlier run: (provider, tier) and names. A node that does not
/// report it has nothing.
fn earlier_attachments(
    links: &[ReachableNode],
    cluster: &Cluster,
    workspace: &str,
) -> BTreeMap<(usize, usize), BTreeSet<String>> {
    let nodes: Vec<&ReachableNode> = links.iter().collect();
    let call = |at: usize| NodeRequest::Borrowers {
        roots: cluster.nodes[at]
            .tiers
            .iter()
            .map(|t| t.root.clone())
            .collect(),
        workspace: workspace.to_owned(),
    };
    let mut found = BTreeMap::new();
    for (node, answer) in answers(&nodes, call, QUICK).into_iter().enumerate() {
        if let Ok(NodeReply::Borrowers(tiers)) = answer {
            let tiers = tiers.into_iter().enumerate();
            found.extend(tiers.map(|(tier, names)| ((node, tier), names)));
        }
    }
    found
}

/// The provider where the node has something already; else the one that has most for each that attaches its tier.
fn choose_provider(
    cluster: &Cluster,
    plans: &[RemoteTierPlan],
    (tier, node): (usize, usize),
    before: &BTreeMap<(usize, usize), BTreeSet<String>>,
) -> Option<usize> {
    let name = &cluster.nodes[node].name;
    let mut best: Option<(bool, u64, usize)> = None;
    for (at, node) in cluster.nodes.iter().enumerate() {
        let Some(has) = node.tiers.get(tier).filter(|t| !t.stands_in()) else {
            continue;
        };
        let others = plans
            .iter()
            .filter(|p| p.provider == at && p.tier == tier)
            .count();
        if others >= MAX_BORROWERS {
            continue;
        }
        let known = before
            .get(&(at, tier))
            .is_some_and(|names| names.contains(name));
        let part = has.capacity / (others as u64 + 2);
        // Of equals the first.
        if best.is_none_or(|(k, p, _)| (known, part) > (k, p)) {
            best = Some((known, part, at));
        }
    }
    best.map(|(.., at)| at)
}

/// A provider keeps as much of its tier as each node gets that attaches it.
fn divide_tiers(cluster: &Cluster, plans: &mut [RemoteTierPlan]) {
    let same = |all: &[RemoteTierPlan], p: &RemoteTierPlan| {
        let of = |o: &&RemoteTierPlan| (o.provider, o.tier) == (p.provider, p.tier);
        all.iter().filter(of).count() as u64
    };
    for at in 0..plans.len() {
        let plan = plans[at];
        let capacity = cluster.nodes[plan.provider].tiers[plan.tier].capacity;
        plans[at].bytes = capacity / (same(plans, &plan) + 1);
    }
}

type TierExportResult = Result<Brick, RemoteTierError>;

fn export_tiers(
    links: &[ReachableNode],
    cluster: &Cluster,
    workspace: &str,
    plans: &[RemoteTierPlan],
) -> Vec<TierExportResult> {
    let providers: Vec<&ReachableNode> = plans.iter().map(|p| &links[p.provider]).collect();
    let call = |at: usize| {
        let plan = &plans[at];
        let tier = &cluster.nodes[plan.provider].tiers[plan.tier];
        NodeRequest::Export {
            tier: tier.name.clone(),
            root: tier.root.clone(),
            borrower: cluster.nodes[plan.node].name.clone(),
            workspace: workspace.to_owned(),
            bytes: plan.bytes,
        }
    };
    let answers = answers(&providers, call, ATTACH_TIMEOUT)
        .into_iter()
        .zip(&providers);
    let exported = answers.map(|(answer, provider)| match answer {
        Ok(NodeReply::Exported(brick)) => Ok(Brick {
            host: provider.data.0.clone(),
            ..brick
        }),
        Ok(_) => Err(RemoteTierError::Mismatch(NodeCallError::Mismatch)),
        Err(why) => Err(RemoteTierError::NotExported {
            provider: provider.name.clone(),
            why,
        }),
    });
    exported.collect()
}

/// A remote tier that a node has, and what it reads and writes there, in bytes a second.
struct AttachedTier {
    root: PathBuf,
    read: u64,
    write: u64,
}

type TierAttachResult = Result<AttachedTier, RemoteTierError>;

/// The results are those of the plans, in their order; a node with nothing exported to it gets no request.
fn attach_tiers(
    links: &[ReachableNode],
    cluster: &Cluster,
    state: &Path,
    plans: &[RemoteTierPlan],
    exported: Vec<TierExportResult>,
) -> Vec<TierAttachResult> {
    let given: Vec<(&RemoteTierPlan, &Brick)> = plans
        .iter()
        .zip(&exported)
        .filter_map(|(plan, brick)| Some((plan, brick.as_ref().ok()?)))
        .collect();
    let nodes: Vec<&ReachableNode> = given.iter().map(|(p, _)| &links[p.node]).collect();
    let call = |at: usize| {
        let (plan, brick) = given[at];
        NodeRequest::Borrow {
            tier: cluster.nodes[plan.node].tiers[plan.tier].name.clone(),
            lender: cluster.nodes[plan.provider].name.clone(),
            brick: brick.clone(),
            bytes: plan.bytes,
            state: state.to_owned(),
        }
    };
    let mut answers = answers(&nodes, call, ATTACH_TIMEOUT).into_iter();
    let attached = exported.iter().map(|exported| {
        exported.as_ref().map_err(Clone::clone)?;
        match answers.next() {
            Some(Ok(NodeReply::Borrowed { root, read, write })) => {
                Ok(AttachedTier { root, read, write })
            }
            Some(Err(why)) => Err(RemoteTierError::NotAttached(why)),
            _ => Err(RemoteTierError::Mismatch(NodeCallError::Mismatch)),
        }
    });
    attached.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_types::cluster::{Host, Link, Node};

    fn cluster(capacities: &[Option<u64>]) -> Cluster {
        let node = |(n, capacity): (usize, &Option<u64>)| Node {
            name: format!("n{n}"),
            host: 0,
            cores: 1,
            memory: 1,
            gpus: 0,
            tiers: vec![Tier {
                name: "t".into(),
                root: capacity.map_or("/x.stand-in", |_| "/t").into(),
                capacity: capacity.unwrap_or(1),
                read: 1,
                write: 1,
                lender: None,
            }],
        };
        let link = Link {
            read: 1,
            write: 1,
            latency: 0,
            streams: 1,
            emulated: false,
        };
        Cluster {
            hosts: vec![Host {
                name: "h".into(),
                cores: 1,
                memory: 1,
                sockets: Vec::new(),
                draw: Default::default(),
            }],
            nodes: capacities.iter().enumerate().map(node).collect(),
            external: link.clone(),
            peer: link,
        }
    }

    fn all(
        cluster: &Cluster,
        before: &BTreeMap<(usize, usize), BTreeSet<String>>,
    ) -> Vec<RemoteTierPlan> {
        let mut plans: Vec<RemoteTierPlan> = Vec::new();
        for (tier, node) in lacking(cluster) {
            if let Some(provider) = choose_provider(cluster, &plans, (tier, node), before) {
                plans.push(RemoteTierPlan {
                    tier,
                    node,
                    provider,
                    bytes: 0,
                });
            }
        }
        divide_tiers(cluster, &mut plans);
        plans
    }

    #[test]
    fn providers_are_those_with_most_for_each_and_keep_as_much_themselves() {
        let cluster = cluster(&[None, Some(120), None, Some(100), None, None]);
        let plans = all(&cluster, &BTreeMap::new());
        let providers: Vec<usize> = plans.iter().map(|p| p.provider).collect();
        assert_eq!(providers, [1, 3, 1, 3]);
        let bytes: Vec<u64> = plans.iter().map(|p| p.bytes).collect();
        assert_eq!(bytes, [40, 33, 40, 33]);
    }

    #[test]
    fn who_has_something_there_comes_back_and_a_provider_has_a_bound() {
        let mut nodes = vec![None; MAX_BORROWERS + 2];
        nodes.extend([Some(1000), Some(10)]);
        let cluster = cluster(&nodes);
        let poor = MAX_BORROWERS + 3;
        let before = BTreeMap::from([((poor, 0), BTreeSet::from(["n0".to_owned()]))]);
        let plans = all(&cluster, &before);
        assert_eq!(plans[0].provider, poor);
        let of = |provider: usize| plans.iter().filter(|p| p.provider == provider).count();
        assert_eq!((of(poor), of(poor - 1)), (2, MAX_BORROWERS));
    }
}
