//! Bytes under way between nodes, by sending and receiving node: the remaining load of each link.

use tarn_types::account::{add, sub};
use tarn_types::id::NodeId;
use tarn_types::part::{Place, Transfer, TransferKind};

#[derive(Debug)]
pub(crate) struct NodeLinkLoads {
    /// Bytes that each node has yet to send and to receive.
    nodes: Vec<(u64, u64)>,
}

impl NodeLinkLoads {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            nodes: vec![(0, 0); nodes],
        }
    }

    pub(crate) fn sent(&self, by: NodeId) -> u64 {
        self.nodes.get(by.at()).map_or(0, |n| n.0)
    }

    pub(crate) fn received(&self, by: NodeId) -> u64 {
        self.nodes.get(by.at()).map_or(0, |n| n.1)
    }

    pub(crate) fn begun(&mut self, t: &Transfer, bytes: u64) {
        self.change(t, |n| add(n, bytes, "bytes under way"));
    }

    pub(crate) fn over(&mut self, t: &Transfer, bytes: u64) {
        self.change(t, |n| sub(n, bytes, "bytes under way"));
    }

    /// All parts of a transfer between two nodes have the same source.
    fn change(&mut self, t: &Transfer, change: impl Fn(&mut u64)) {
        let from = t.parts.first().map(|m| &m.from);
        let (TransferKind::Peer, Some(Place::Node(from)), Place::Node(to)) = (t.kind, from, &t.to)
        else {
            return;
        };
        if let Some(n) = self.nodes.get_mut(from.node.at()) {
            change(&mut n.0);
        }
        if let Some(n) = self.nodes.get_mut(to.node.at()) {
            change(&mut n.1);
        }
    }
}
