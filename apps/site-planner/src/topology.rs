//! The nodes of a cluster as a [`Machine`]: an island is a set of nodes that are equal in processors, memory, GPUs,
//! partitions and the size of tarn's stores.

use crate::gres::gpus_of;
use crate::mode_features::can_change;
use crate::rates::SiteRates;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tarn_site::PlanningView;
use tarn_slurm::{SlurmNode, SlurmSnapshot};
use tarn_types::id::NodeId;
use tarn_types::site::{
    Island, Machine, Mode, ModeChange, NodeKind, NodePowerModel, NodeShare, Rates, Store, TierKind,
};
use tarn_types::units::{Nanos, SECOND};

/// Kinds of nodes; those beyond, of the rarest kinds, get no plan. The number of an island has 16 bits.
const MAX_ISLANDS: usize = 4_096;
/// A reboot into another memory mode.
const REBOOT: Nanos = 600 * SECOND;
/// Streams of the external store that are under way at once.
const STREAMS: u32 = 16;

/// The properties that make nodes equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeShape {
    pub(crate) cores: u32,
    pub(crate) memory: u64,
    pub(crate) gpus: u32,
    /// Bytes of tarn's stores.
    space: u64,
    partitions: BTreeSet<String>,
    /// Whether Slurm can have them change their memory mode.
    pub(crate) has_modes: bool,
}

/// The nodes by number, and the machine that they make.
#[derive(Debug, Default)]
pub(crate) struct ClusterTopology {
    names: Vec<String>,
    /// For lookups alone.
    numbers: HashMap<String, NodeId>,
    /// In the order of their names.
    sorted: Vec<NodeId>,
    /// Nodes of the snapshot, with those that are left out.
    all: usize,
    /// The shape of each island, and its first node.
    islands: Vec<(NodeShape, u32)>,
}

impl ClusterTopology {
    pub(crate) fn of(snapshot: &SlurmSnapshot, view: &PlanningView) -> Self {
        let mut alike: BTreeMap<NodeShape, Vec<&str>> = BTreeMap::new();
        for (name, node) in &snapshot.nodes {
            let space = view.capacities.get(name).copied().unwrap_or(0);
            alike.entry(shape(node, space)).or_default().push(name);
        }
        let mut kinds: Vec<(NodeShape, Vec<&str>)> = alike.into_iter().collect();
        if kinds.len() > MAX_ISLANDS {
            kinds.sort_by_key(|(_, nodes)| std::cmp::Reverse(nodes.len()));
            kinds.truncate(MAX_ISLANDS);
        }
        let mut this = Self {
            all: snapshot.nodes.len(),
            ..Self::default()
        };
        for (shape, names) in kinds {
            this.islands.push((shape, this.names.len() as u32));
            for name in names {
                let number = NodeId(this.names.len() as u32);
                this.names.push(name.to_owned());
                this.numbers.insert(name.to_owned(), number);
            }
        }
        this.sorted = (0..this.names.len() as u32).map(NodeId).collect();
        this.sorted
            .sort_unstable_by(|a, b| this.names[a.at()].cmp(&this.names[b.at()]));
        this
    }

    /// Whether the snapshot has the same nodes, of the same kinds.
    pub(crate) fn is_of(&self, snapshot: &SlurmSnapshot, view: &PlanningView) -> bool {
        if snapshot.nodes.len() != self.all {
            return false;
        }
        // In the order of names as well.
        let mut capacities = view.capacities.iter().peekable();
        let mut count = 0;
        let is_same = self.states(snapshot).all(|(number, node)| {
            count += 1;
            while capacities.next_if(|(name, _)| **name < node.name).is_some() {}
            let space = capacities.next_if(|(name, _)| **name == node.name);
            let space = space.map_or(0, |(_, space)| *space);
            self.shape_of(number).is_some_and(|shape| {
                shape.cores == node.cpus
                    && shape.memory == node.memory
                    && shape.gpus == gpus_of(&node.gres)
                    && shape.space == space
                    && shape.partitions == node.partitions
                    && shape.has_modes == can_change(node)
            })
        });
        is_same && count == self.names.len()
    }

    /// The machine's nodes as a snapshot has them.
    pub(crate) fn states<'a>(
        &'a self,
        snapshot: &'a SlurmSnapshot,
    ) -> impl Iterator<Item = (NodeId, &'a SlurmNode)> {
        // Both are in the order of names.
        let mut sorted = self.sorted.iter().copied().peekable();
        snapshot.nodes.iter().filter_map(move |(name, node)| {
            // As a rule it is the next.
            if let Some(number) = sorted.next_if(|n| self.name(*n) == name) {
                return Some((number, node));
            }
            while sorted.next_if(|n| self.name(*n) < &name[..]).is_some() {}
            let number = sorted.next_if(|n| self.name(*n) == name)?;
            Some((number, node))
        })
    }

    /// The nodes of these partitions, in order.
    pub(crate) fn in_partitions(&self, partitions: &[String]) -> impl Iterator<Item = NodeId> {
        let ends = self.islands.iter().skip(1).map(|(_, first)| *first);
        let ends = ends.chain([self.names.len() as u32]);
        let islands = self.islands.iter().zip(ends);
        let islands = islands.filter(|((shape, _), _)| {
            partitions
                .iter()
                .any(|name| shape.partitions.contains(name))
        });
        islands.flat_map(|((_, first), end)| (*first..end).map(NodeId))
    }

    pub(crate) fn machine(&self, rates: &SiteRates) -> Machine {
        let ends = self.islands.iter().skip(1).map(|(_, first)| *first);
        let ends = ends.chain([self.names.len() as u32]);
        let islands = self.islands.iter().zip(ends).enumerate();
        let islands = islands.map(|(number, ((shape, first), end))| Island {
            name: format!("i{number}"),
            nodes: end - first,
            kind: kind(shape, rates),
        });
        Machine {
            name: "slurm".to_owned(),
            islands: islands.collect(),
            store: Store {
                rates: Rates::default(),
                client: rates.external,
                saturates: STREAMS,
            },
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    pub(crate) fn name(&self, node: NodeId) -> &str {
        self.names.get(node.at()).map_or("", |name| name)
    }

    pub(crate) fn number(&self, name: &str) -> Option<NodeId> {
        self.numbers.get(name).copied()
    }

    /// The nodes of a list that the machine has, in its order, each once.
    pub(crate) fn known(&self, names: &[String]) -> Vec<NodeId> {
        let mut seen = BTreeSet::new();
        let numbers = names.iter().filter_map(|name| self.number(name));
        numbers.filter(|node| seen.insert(*node)).collect()
    }

    /// The number of a node's island.
    pub(crate) fn island_of(&self, node: NodeId) -> usize {
        let behind = self.islands.partition_point(|(_, first)| *first <= node.0);
        behind.saturating_sub(1)
    }

    pub(crate) fn shape_of(&self, node: NodeId) -> Option<&NodeShape> {
        let island = self.islands.get(self.island_of(node));
        island.map(|(shape, _)| shape)
    }

    /// A share that fits on these nodes, which are alike.
    pub(crate) fn share_on(&self, share: NodeShare, nodes: &[NodeId]) -> NodeShare {
        let shape = nodes.first().and_then(|n| self.shape_of(*n));
        shape.map_or(share, |shape| NodeShare {
            cores: share.cores.min(shape.cores),
            memory: share.memory.min(shape.memory),
            gpus: share.gpus.min(shape.gpus),
        })
    }

    /// The shapes of all islands.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = &NodeShape> {
        self.islands.iter().map(|(shape, _)| shape)
    }

    /// Nodes by the island that they are in, in their order.
    pub(crate) fn by_island(&self, nodes: &[NodeId]) -> Vec<Vec<NodeId>> {
        let mut islands: BTreeMap<usize, Vec<NodeId>> = BTreeMap::new();
        for node in nodes {
            islands
                .entry(self.island_of(*node))
                .or_default()
                .push(*node);
        }
        islands.into_values().collect()
    }
}

fn shape(node: &SlurmNode, space: u64) -> NodeShape {
    NodeShape {
        cores: node.cpus,
        memory: node.memory,
        gpus: gpus_of(&node.gres),
        space,
        partitions: node.partitions.clone(),
        has_modes: can_change(node),
    }
}

fn kind(shape: &NodeShape, rates: &SiteRates) -> NodeKind {
    let tier = TierKind {
        name: "tarn".to_owned(),
        capacity: shape.space,
        rates: rates.tier,
        app_direct: false,
    };
    NodeKind {
        sockets: 1,
        cores: shape.cores,
        memory: shape.memory,
        gpus: shape.gpus,
        tiers: if shape.space > 0 {
            vec![tier]
        } else {
            Vec::new()
        },
        link: rates.link,
        mode: Mode::OneLevel,
        mode_change: shape.has_modes.then_some(ModeChange {
            time: REBOOT,
            memory: shape.memory,
        }),
        power: NodePowerModel::default(),
        temperature: 0.0,
    }
}
