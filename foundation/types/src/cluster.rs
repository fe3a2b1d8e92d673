//! The resources of a run: hosts, nodes, tiers, the external store. Rates are bytes a second.

use crate::energy::{Draw, EnergyRank, ranks_of};
use crate::id::{NodeId, TierRef};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Hosts with their nodes, and the external store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Machines; several nodes may share one.
    pub hosts: Vec<Host>,
    /// Nodes.
    pub nodes: Vec<Node>,
    /// The external store, as seen from a node.
    pub external: Link,
    /// Between two nodes.
    pub peer: Link,
}

/// One machine: the jobs of all its nodes together never exceed it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its cores.
    pub cores: u32,
    /// Its memory in bytes.
    pub memory: u64,
    /// Its processor sockets, if there are several and steps are bound to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<Socket>,
    /// Its power draw and temperature when it was measured.
    #[serde(default, skip_serializing_if = "Draw::is_unknown")]
    pub draw: Draw,
}

/// A processor socket, with the memory and the tiers next to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    /// The system's number of it.
    pub number: u32,
    /// The system's numbers of its processors (hardware threads) that may be used; those of a core side by side.
    pub cpus: Vec<u32>,
    /// The system's numbers of its NUMA nodes.
    pub numa: Vec<u32>,
    /// Bytes of its memory; 0 where that is not known.
    pub memory: u64,
    /// Tiers that are on it, by name.
    pub tiers: Vec<String>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Position of its host.
    pub host: u32,
    /// Cores it offers.
    pub cores: u32,
    /// Bytes of memory it offers to steps.
    pub memory: u64,
    /// GPUs.
    pub gpus: u32,
    /// Its tiers, fast to slow.
    pub tiers: Vec<Tier>,
}

/// A store on a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tier {
    /// Its name, such as `tmpfs` or `disk`; the same on every node.
    pub name: String,
    /// Its root folder.
    pub root: PathBuf,
    /// Bytes that this run may use.
    pub capacity: u64,
    /// Bytes a second read.
    pub read: u64,
    /// Bytes a second written.
    pub write: u64,
    /// The node in whose tier it is, where it is borrowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lender: Option<NodeId>,
}

/// The ending of a folder that stands in for a tier that its node does not have.
pub const STAND_IN: &str = "stand-in";
/// The ending of a folder in which a borrowed tier appears, where it cannot appear at the tier's own path.
pub const BORROWED: &str = "borrowed";

impl Tier {
    /// Whether this only stands in for the tier on a node that does not have it.
    pub fn stands_in(&self) -> bool {
        self.root.extension().is_some_and(|e| e == STAND_IN)
    }

    /// Whether it is stored elsewhere than on other nodes, in a folder of tarn's own making.
    pub fn elsewhere(&self) -> bool {
        let ending = self.root.extension();
        ending.is_some_and(|e| e == STAND_IN || e == BORROWED)
    }
}

/// A path for data between two kinds of place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Bytes a second towards the node, over all streams.
    pub read: u64,
    /// Bytes a second away from the node, over all streams.
    pub write: u64,
    /// Nanoseconds that tarn adds to every file, to emulate a slow store; the latency of a real store is part of its rate.
    pub latency: u64,
    /// Transfers in flight at once.
    pub streams: u32,
    /// Whether the rate is imposed by tarn rather than found or assumed.
    pub emulated: bool,
}

impl Cluster {
    /// The node of an id.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.at()]
    }

    /// The energy rank of each node; two nodes of one host have the same.
    pub fn energy_ranks(&self) -> Vec<EnergyRank> {
        let host = |node: &Node| self.hosts.get(node.host as usize);
        let nodes = self.nodes.iter().map(host);
        let draws: Vec<(Draw, u32)> = nodes
            .map(|host| host.map_or_else(Default::default, |h| (h.draw, h.cores)))
            .collect();
        ranks_of(&draws)
    }

    /// The tier of a spot.
    pub fn tier(&self, tier_ref: TierRef) -> &Tier {
        &self.nodes[tier_ref.node.at()].tiers[tier_ref.tier.at()]
    }
}
