//! Nodes that do not have a tier, and those that lend them one. docs/internals/shared-namespace.md, "A borrowed tier".

use crate::link::ReachableNode;
use crate::measure::{NO_SENSE, answers};
use crate::{PATIENCE_TO_BORROW, QUICK};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tarn_proto::node::{Brick, NodeReply, NodeRequest};
use tarn_types::cluster::{Cluster, Tier};
use tarn_types::id::NodeId;

/// Nodes that borrow of one: each takes an equal part of its tier, and a part of its network and processors.
pub const MAX_BORROWERS: usize = 8;

/// What became of a tier that a node does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteTierAttachment {
    /// The node without it.
    pub node: String,
    /// The tier's name.
    pub tier: String,
    /// Who lends it; or why nobody does, and then what stands in for it stays.
    pub by: Result<String, String>,
}

/// Who is to lend whom how much of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Loan {
    tier: usize,
    borrower: usize,
    lender: usize,
    bytes: u64,
}

/// Has each node for which something stands in for a tier borrow one instead, from a node that has it, for a run of this workspace. What a
/// node lends is taken off its own; what nobody lends stays as it is.
pub fn borrow(
    links: &[ReachableNode],
    cluster: &mut Cluster,
    workspace: &str,
    state: &Path,
) -> Vec<RemoteTierAttachment> {
    let lacking = lacking(cluster);
    if lacking.is_empty() {
        return Vec::new();
    }
    let before = before(links, cluster, workspace);
    let mut all = Vec::new();
    let mut loans = Vec::new();
    for (tier, borrower) in lacking {
        let lending = |by| RemoteTierAttachment {
            node: cluster.nodes[borrower].name.clone(),
            tier: cluster.nodes[borrower].tiers[tier].name.clone(),
            by,
        };
        match choose(cluster, &loans, (tier, borrower), &before) {
            Some(lender) => loans.push(Loan {
                tier,
                borrower,
                lender,
                bytes: 0,
            }),
            None => all.push(lending(Err(format!(
                "no node that has it lends it to more than {MAX_BORROWERS} others"
            )))),
        }
    }
    share(cluster, &mut loans);
    let lent = export_tiers(links, cluster, workspace, &loans);
    let taken = take(links, cluster, state, &loans, lent);
    for (loan, taken) in loans.iter().zip(taken) {
        let name = |node: usize| cluster.nodes[node].name.clone();
        let (node, lender) = (name(loan.borrower), name(loan.lender));
        let old = &cluster.nodes[loan.borrower].tiers[loan.tier];
        let tier = old.name.clone();
        let by = taken.map(|(root, read, write)| {
            let borrowed = Tier {
                name: tier.clone(),
                root,
                capacity: loan.bytes,
                read,
                write,
                lender: Some(NodeId(loan.lender as u32)),
            };
            cluster.nodes[loan.borrower].tiers[loan.tier] = borrowed;
            let of = &mut cluster.nodes[loan.lender].tiers[loan.tier].capacity;
            *of = of.saturating_sub(loan.bytes);
            lender
        });
        all.push(RemoteTierAttachment { node, tier, by });
    }
    all
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

/// Which nodes have something on which node's tiers from an earlier run: (lender, tier) and names. Who does not say so has nothing.
fn before(
    links: &[ReachableNode],
    cluster: &Cluster,
    workspace: &str,
) -> BTreeMap<(usize, usize), BTreeSet<String>> {
    let asked: Vec<&ReachableNode> = links.iter().collect();
    let call = |at: usize| NodeRequest::Borrowers {
        roots: cluster.nodes[at]
            .tiers
            .iter()
            .map(|t| t.root.clone())
            .collect(),
        workspace: workspace.to_owned(),
    };
    let mut found = BTreeMap::new();
    for (node, answer) in answers(&asked, call, QUICK).into_iter().enumerate() {
        if let Ok(NodeReply::Borrowers(tiers)) = answer {
            let tiers = tiers.into_iter().enumerate();
            found.extend(tiers.map(|(tier, names)| ((node, tier), names)));
        }
    }
    found
}

/// Where the borrower has something already; else who has most for each that borrows from it.
fn choose(
    cluster: &Cluster,
    loans: &[Loan],
    (tier, borrower): (usize, usize),
    before: &BTreeMap<(usize, usize), BTreeSet<String>>,
) -> Option<usize> {
    let name = &cluster.nodes[borrower].name;
    let mut best: Option<(bool, u64, usize)> = None;
    for (at, node) in cluster.nodes.iter().enumerate() {
        let Some(has) = node.tiers.get(tier).filter(|t| !t.stands_in()) else {
            continue;
        };
        let others = loans
            .iter()
            .filter(|l| l.lender == at && l.tier == tier)
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

/// A lender keeps as much of its tier as each borrower gets.
fn share(cluster: &Cluster, loans: &mut [Loan]) {
    let of = |all: &[Loan], l: &Loan| {
        let same = all
            .iter()
            .filter(|o| (o.lender, o.tier) == (l.lender, l.tier));
        same.count() as u64
    };
    for at in 0..loans.len() {
        let loan = loans[at];
        let capacity = cluster.nodes[loan.lender].tiers[loan.tier].capacity;
        loans[at].bytes = capacity / (of(loans, &loan) + 1);
    }
}

type TierExportResult = Result<Brick, String>;

fn export_tiers(
    links: &[ReachableNode],
    cluster: &Cluster,
    workspace: &str,
    loans: &[Loan],
) -> Vec<TierExportResult> {
    let asked: Vec<&ReachableNode> = loans.iter().map(|l| &links[l.lender]).collect();
    let call = |at: usize| {
        let loan = &loans[at];
        let tier = &cluster.nodes[loan.lender].tiers[loan.tier];
        NodeRequest::Lend {
            tier: tier.name.clone(),
            root: tier.root.clone(),
            borrower: cluster.nodes[loan.borrower].name.clone(),
            workspace: workspace.to_owned(),
            bytes: loan.bytes,
        }
    };
    let answers = answers(&asked, call, PATIENCE_TO_BORROW)
        .into_iter()
        .zip(&asked);
    let lent = answers.map(|(answer, lender)| match answer {
        Ok(NodeReply::Lent(brick)) => Ok(Brick {
            host: lender.data.0.clone(),
            ..brick
        }),
        Ok(NodeReply::Failed(why)) | Err(why) => {
            Err(format!("{} does not lend it: {why}", lender.name))
        }
        Ok(_) => Err(NO_SENSE.into()),
    });
    lent.collect()
}

type TierAttachResult = Result<(PathBuf, u64, u64), String>;

fn take(
    links: &[ReachableNode],
    cluster: &Cluster,
    state: &Path,
    loans: &[Loan],
    lent: Vec<TierExportResult>,
) -> Vec<TierAttachResult> {
    let given: Vec<(&Loan, &Brick)> = loans
        .iter()
        .zip(&lent)
        .filter_map(|(loan, brick)| Some((loan, brick.as_ref().ok()?)))
        .collect();
    let asked: Vec<&ReachableNode> = given.iter().map(|(l, _)| &links[l.borrower]).collect();
    let call = |at: usize| {
        let (loan, brick) = given[at];
        NodeRequest::Borrow {
            tier: cluster.nodes[loan.borrower].tiers[loan.tier].name.clone(),
            lender: cluster.nodes[loan.lender].name.clone(),
            brick: brick.clone(),
            bytes: loan.bytes,
            state: state.to_owned(),
        }
    };
    let mut answers = answers(&asked, call, PATIENCE_TO_BORROW).into_iter();
    let taken = lent.iter().map(|lent| {
        lent.as_ref().map_err(Clone::clone)?;
        match answers.next() {
            Some(Ok(NodeReply::Borrowed { root, read, write })) => Ok((root, read, write)),
            Some(Ok(NodeReply::Failed(why)) | Err(why)) => {
                Err(format!("it cannot borrow it: {why}"))
            }
            _ => Err(NO_SENSE.into()),
        }
    });
    taken.collect()
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

    fn all(cluster: &Cluster, before: &BTreeMap<(usize, usize), BTreeSet<String>>) -> Vec<Loan> {
        let mut loans: Vec<Loan> = Vec::new();
        for (tier, borrower) in lacking(cluster) {
            if let Some(lender) = choose(cluster, &loans, (tier, borrower), before) {
                loans.push(Loan {
                    tier,
                    borrower,
                    lender,
                    bytes: 0,
                });
            }
        }
        share(cluster, &mut loans);
        loans
    }

    #[test]
    fn lenders_are_those_with_most_room_for_each_and_keep_as_much_themselves() {
        let cluster = cluster(&[None, Some(120), None, Some(100), None, None]);
        let loans = all(&cluster, &BTreeMap::new());
        let lenders: Vec<usize> = loans.iter().map(|l| l.lender).collect();
        assert_eq!(lenders, [1, 3, 1, 3]);
        let bytes: Vec<u64> = loans.iter().map(|l| l.bytes).collect();
        assert_eq!(bytes, [40, 33, 40, 33]);
    }

    #[test]
    fn who_has_something_there_comes_back_and_a_lender_has_a_bound() {
        let mut nodes = vec![None; MAX_BORROWERS + 2];
        nodes.extend([Some(1000), Some(10)]);
        let cluster = cluster(&nodes);
        let poor = MAX_BORROWERS + 3;
        let before = BTreeMap::from([((poor, 0), BTreeSet::from(["n0".to_owned()]))]);
        let loans = all(&cluster, &before);
        assert_eq!(loans[0].lender, poor);
        let of = |lender: usize| loans.iter().filter(|l| l.lender == lender).count();
        assert_eq!((of(poor), of(poor - 1)), (2, MAX_BORROWERS));
    }
}
