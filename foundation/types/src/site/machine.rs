//! A machine by kinds of node: the content of `cluster.toml`. Rates are bytes a second; a rate of 0 means no limit.

use crate::id::NodeId;
use crate::units::Nanos;
use serde::{Deserialize, Serialize};

/// Islands of equal nodes, and the external store they share. Node 0 is the first node of the first island.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Groups of equal nodes. A job runs within one of them.
    pub islands: Vec<Island>,
    /// The external store.
    pub store: Store,
}

/// A group of equal nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Island {
    /// Its name.
    pub name: String,
    /// How many nodes.
    pub nodes: u32,
    /// The kind of all its nodes.
    pub kind: NodeKind,
}

/// The kind of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeKind {
    /// Processor sockets; cores and tiers are spread over them evenly.
    pub sockets: u32,
    /// Cores in all.
    pub cores: u32,
    /// Bytes of DRAM.
    pub memory: u64,
    /// GPUs.
    pub gpus: u32,
    /// Node-local stores, fast to slow; empty where jobs use other nodes' tiers over the network.
    pub tiers: Vec<TierKind>,
    /// Between this node and other nodes.
    pub link: Rates,
    /// The memory mode it starts in.
    pub mode: Mode,
    /// The effects of a change of mode; `None` where the mode cannot be changed.
    pub mode_change: Option<ModeChange>,
    /// Its power draw.
    pub power: NodePowerModel,
    /// Degrees Celsius at its air inlet: of nodes that are otherwise equal the coolest is taken.
    pub temperature: f64,
}

/// A node-local store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TierKind {
    /// Its name, such as `pmem` or `nvme`.
    pub name: String,
    /// Bytes it holds.
    pub capacity: u64,
    /// Bandwidths.
    pub rates: Rates,
    /// Whether it is there only while the node is in mode 1LM (Weiland, section 1.3).
    pub app_direct: bool,
}

/// Bandwidth in both directions, bytes a second; 0 for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Rates {
    /// Read from it, or received by a node.
    pub read: u64,
    /// Written to it, or sent by a node.
    pub write: u64,
}

/// The external store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    /// Of all clients together: read is towards the nodes.
    pub rates: Rates,
    /// Of one node; 0 for no limit of its own.
    pub client: Rates,
    /// Streams at once from which on the whole bandwidth is reached: one alone gets at most its share of it. Also the
    /// most that tarn has under way at once in each direction (admission control). At least 1.
    pub saturates: u32,
}

/// How a node's memory is configured (Weiland, sections 1.2 and 1.3; Jackson, section 2.2).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// 1LM: DRAM is memory, the persistent tier is a store.
    #[default]
    OneLevel,
    /// 2LM: DRAM caches the persistent memory, which is the node's memory; no store.
    TwoLevel,
}

/// The effects of a change of a node's memory mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeChange {
    /// The reboot. Nothing runs on the node meanwhile; the content of its `app_direct` tiers is lost.
    pub time: Nanos,
    /// Bytes of memory in mode 2LM.
    pub memory: u64,
}

/// The power draw of a node, in watts.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct NodePowerModel {
    /// Nothing runs.
    pub idle: f64,
    /// All its cores run; in between it is proportional to cores.
    pub busy: f64,
    /// Asleep.
    pub asleep: f64,
    /// Booting: waking up or changing its mode.
    pub boot: f64,
    /// How long waking up takes.
    pub wake: Nanos,
}

impl Machine {
    /// All nodes together.
    pub fn nodes(&self) -> u32 {
        self.islands.iter().map(|i| i.nodes).sum()
    }

    /// The island of each node, in order.
    pub fn island_of(&self) -> Vec<u16> {
        let each = (0u16..).zip(&self.islands);
        each.flat_map(|(i, island)| std::iter::repeat_n(i, island.nodes as usize))
            .collect()
    }

    /// The name of a node: that of its island with its number there.
    pub fn node_name(&self, node: NodeId) -> String {
        let mut first = 0;
        for island in &self.islands {
            if node.0 < first + island.nodes {
                return format!("{}{}", island.name, node.0 - first);
            }
            first += island.nodes;
        }
        node.to_string()
    }
}
