//! The cluster of an allocation, made of the properties of its nodes.

use crate::connection::ask;
use crate::error::{NodeCallError, NodeReplyResult, TARN};
use crate::link::ReachableNode;
use crate::{QUICK, THOROUGH};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tarn_proto::node::{NodeReply, NodeRequest, VERSION};
use tarn_types::cluster::{Cluster, Link, Node};
use tarn_types::nodes::{NodeTierUsage, SharedPath, Swept};

/// For a node to measure the rate of another one's bytes: tarnd gives the other one 5 s.
const LINK: Duration = Duration::from_secs(15);

/// The nodes are no cluster for a run.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A node does not answer, or refuses.
    #[error("node {node} cannot be used: {why}")]
    Node {
        /// Which.
        node: String,
        /// Its error.
        why: NodeCallError,
    },
    /// Nodes have different tiers.
    #[error(
        "the nodes have different tiers: {one} has {has}, {other} has {instead}; name tiers that all nodes have with --tier NAME=PATH"
    )]
    Tiers {
        /// A node.
        one: String,
        /// Its tiers.
        has: String,
        /// Another node.
        other: String,
        /// Its tiers.
        instead: String,
    },
    /// No node has it.
    #[error(
        "tier {0} can be made and written on none of the nodes; name a folder that they have with --tier NAME=PATH"
    )]
    NoTier(String),
    /// Two nodes have the same name.
    #[error("two nodes have the name {0}; their folders would be the same")]
    SameName(String),
    /// There is none.
    #[error("an allocation without a node")]
    None,
}

/// Requests the properties of all nodes at once, and makes one cluster of them: hosts and nodes in the order of the links.
/// `tiers` as on the command line; `external` is the external store as it is taken to be; `state` is the state folder; every node
/// must see the `sights` as tarn does.
///
/// # Errors
/// When a node does not answer, is of another version, does not see what all must, or has other tiers than the first.
pub fn measure(
    links: &[ReachableNode],
    tiers: &[String],
    external: &Link,
    state: &Path,
    sights: &[SharedPath],
) -> Result<Cluster, MeasureError> {
    let call = NodeRequest::Measure {
        version: VERSION,
        tarn: TARN.into(),
        tiers: tiers.to_vec(),
        external: external.clone(),
        state: state.to_owned(),
        sights: sights.to_vec(),
    };
    let clusters = ask_all(
        links,
        |_| call.clone(),
        |answer| match answer {
            NodeReply::Cluster(c) if c.nodes.len() == 1 && c.hosts.len() == 1 => Some(c),
            _ => None,
        },
    )?;
    let cluster = merge(clusters, external)?;
    alike(&cluster, tiers)?;
    Ok(cluster)
}

/// The measurement of the link from one node to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLinkMeasurement {
    /// The node that reads.
    pub to: String,
    /// The node that is read from.
    pub from: String,
    /// Bytes a second, or why that is not known.
    pub rate: Result<u64, NodeCallError>,
}

/// Lets each node read from the next one, the last from the first, to see how fast that goes, and takes the median for the link
/// between any two nodes of the cluster: so one link that is slow or within one machine decides nothing. The speed at which a
/// copy reads there and writes here bounds it too. The nodes are those of the links, in their order; a link that cannot be
/// measured comes with the reason, and if none can be measured, the cluster stays as it is.
///
/// One after the other would take 0.1 s for each node; all at once, each link would be measured under what its two nodes do
/// besides. So there are rounds, two or three however many nodes there are, and in each a node either reads or is read from.
/// Pairs of a round that share a link share it in a run as well.
pub fn measure_links(
    links: &[ReachableNode],
    cluster: &mut Cluster,
    state: &Path,
) -> Vec<NodeLinkMeasurement> {
    let nodes = links.len().min(cluster.nodes.len());
    if nodes < 2 {
        return Vec::new();
    }
    let mut all: Vec<(usize, NodeLinkMeasurement)> = Vec::with_capacity(nodes);
    for round in 0..3 {
        let readers: Vec<usize> = (0..nodes)
            .filter(|n| round_of(*n, nodes) == round)
            .collect();
        let source = |reader: usize| (reader + 1) % nodes;
        let call = |at: usize| {
            let from = source(readers[at]);
            NodeRequest::Link {
                from: cluster.nodes[from].name.clone(),
                at: links[from].data.clone(),
                state: state.to_owned(),
            }
        };
        let reader_nodes: Vec<&ReachableNode> = readers.iter().map(|n| &links[*n]).collect();
        let answers = answers(&reader_nodes, call, LINK);
        all.extend(readers.iter().zip(answers).map(|(reader, answer)| {
            let rate = match answer {
                Ok(NodeReply::Rate(rate)) => Ok(rate),
                Ok(_) => Err(NodeCallError::Mismatch),
                Err(why) => Err(why),
            };
            let name = |node: usize| cluster.nodes[node].name.clone();
            let (to, from) = (name(*reader), name(source(*reader)));
            (*reader, NodeLinkMeasurement { to, from, rate })
        }));
    }
    all.sort_unstable_by_key(|(reader, _)| *reader);
    let all: Vec<NodeLinkMeasurement> = all.into_iter().map(|(_, between)| between).collect();
    let mut rates: Vec<u64> = all.iter().filter_map(|b| b.rate.clone().ok()).collect();
    rates.sort_unstable();
    // Of two in the middle the lower one: half of the links are at least as fast.
    if let Some(last) = rates.len().checked_sub(1) {
        let median = rates[last / 2];
        cluster.peer.read = cluster.peer.read.min(median);
        cluster.peer.write = cluster.peer.write.min(median);
    }
    all
}

/// In which round a node of a ring reads from the next one, so that no node is read from in the round in which it reads.
fn round_of(reader: usize, nodes: usize) -> usize {
    match reader + 1 == nodes && nodes % 2 == 1 {
        // In a ring of an odd number the last one, even like the first, would read while that does.
        true => 2,
        false => reader % 2,
    }
}

/// The bytes that are taken of the tiers at these roots, its own for each node, by requests to all at once; in the order of the
/// links.
///
/// # Errors
/// When a node does not answer.
pub fn tier_usage(
    links: &[ReachableNode],
    roots: &[Vec<PathBuf>],
) -> Result<Vec<NodeTierUsage>, MeasureError> {
    let call = |at: usize| NodeRequest::TierUsage(roots.get(at).cloned().unwrap_or_default());
    ask_all(links, call, |answer| match answer {
        NodeReply::TierUsage(usage) => Some(usage),
        _ => None,
    })
}

/// Has all nodes at once removed what dead runs have left there of a workspace: on the tiers at these roots, its own for each, but
/// for the `protected` folders. One result for each link, in their order.
pub fn sweep(
    links: &[ReachableNode],
    workspace: &str,
    state: &Path,
    roots: &[BTreeSet<PathBuf>],
    protected: &BTreeSet<PathBuf>,
) -> Vec<Result<Swept, NodeCallError>> {
    let call = |at: usize| NodeRequest::Sweep {
        workspace: workspace.to_owned(),
        state: state.to_owned(),
        roots: roots.get(at).cloned().unwrap_or_default(),
        protected: protected.clone(),
    };
    let nodes: Vec<&ReachableNode> = links.iter().collect();
    let answers = answers(&nodes, call, THOROUGH).into_iter();
    let swept = answers.map(|answer| match answer? {
        NodeReply::Swept(swept) => Ok(swept),
        _ => Err(NodeCallError::Mismatch),
    });
    swept.collect()
}

/// The answers of all nodes that are `wanted`; the first that is not is the error.
fn ask_all<T>(
    links: &[ReachableNode],
    call: impl Fn(usize) -> NodeRequest,
    wanted: impl Fn(NodeReply) -> Option<T>,
) -> Result<Vec<T>, MeasureError> {
    let nodes: Vec<&ReachableNode> = links.iter().collect();
    let answers = answers(&nodes, call, QUICK);
    let answers = links.iter().zip(answers).map(|(linked, answer)| {
        let why = match answer {
            Ok(answer) => match wanted(answer) {
                Some(answer) => return Ok(answer),
                None => NodeCallError::Mismatch,
            },
            Err(why) => why,
        };
        let node = linked.name.clone();
        Err(MeasureError::Node { node, why })
    });
    answers.collect()
}

/// Sends requests to some nodes at once, and waits for all.
pub(crate) fn answers(
    nodes: &[&ReachableNode],
    call: impl Fn(usize) -> NodeRequest,
    timeout: Duration,
) -> Vec<NodeReplyResult> {
    std::thread::scope(|scope| {
        let threads = nodes.iter().enumerate().map(|(at, l)| {
            let call = call(at);
            scope.spawn(move || ask(&*l.link, call, timeout))
        });
        let threads: Vec<_> = threads.collect();
        let answers = threads.into_iter().map(|thread| thread.join());
        let answers = answers.map(|a| a.unwrap_or(Err(NodeCallError::Internal)));
        answers.collect()
    })
}

/// One cluster of several of one node each. The link between nodes is the first node's, until it is measured ([`measure_links`]).
fn merge(clusters: Vec<Cluster>, external: &Link) -> Result<Cluster, MeasureError> {
    let mut all: Option<Cluster> = None;
    let mut names = BTreeSet::new();
    for one in clusters {
        let Cluster {
            hosts, nodes, peer, ..
        } = one;
        let merged = all.get_or_insert_with(|| Cluster {
            hosts: Vec::new(),
            nodes: Vec::new(),
            external: external.clone(),
            peer,
        });
        for (host, mut node) in hosts.into_iter().zip(nodes) {
            if !names.insert(node.name.clone()) {
                return Err(MeasureError::SameName(node.name));
            }
            let known = merged.hosts.iter().position(|h| h.name == host.name);
            let at = known.unwrap_or(merged.hosts.len());
            if known.is_none() {
                merged.hosts.push(host);
            }
            node.host = at as u32;
            merged.nodes.push(node);
        }
    }
    all.ok_or(MeasureError::None)
}

/// Whether all nodes have the same tiers at the same places, but for what stands in for a tier; and somebody has each.
fn alike(cluster: &Cluster, requested: &[String]) -> Result<(), MeasureError> {
    let Some(first) = cluster.nodes.first() else {
        return Ok(());
    };
    // Of each tier, a node that has it.
    let mut models = Vec::with_capacity(first.tiers.len());
    for at in 0..first.tiers.len() {
        let has = |n: &&Node| n.tiers.get(at).is_some_and(|t| !t.stands_in());
        let missing = || requested.get(at).map_or("", String::as_str).to_owned();
        let model = cluster.nodes.iter().find(has);
        models.push(model.ok_or_else(|| MeasureError::NoTier(missing()))?);
    }
    let same = |node: &&Node| {
        let mut pairs = node.tiers.iter().zip(&models).enumerate();
        node.tiers.len() == models.len()
            && pairs.all(|(at, (tier, model))| {
                let of = &model.tiers[at];
                tier.name == of.name && (tier.root == of.root || tier.stands_in())
            })
    };
    let Some(other) = cluster.nodes.iter().find(|n| !same(n)) else {
        return Ok(());
    };
    let shown = |n: &Node| {
        let tiers = n.tiers.iter();
        let tiers = tiers.map(|t| format!("{}={}", t.name, t.root.display()));
        tiers.collect::<Vec<_>>().join(", ")
    };
    let one = models.into_iter().find(|m| m.name != other.name);
    let one = one.unwrap_or(first);
    Err(MeasureError::Tiers {
        one: one.name.clone(),
        has: shown(one),
        other: other.name.clone(),
        instead: shown(other),
    })
}
