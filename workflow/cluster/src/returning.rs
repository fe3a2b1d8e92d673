//! How a node that was lost is made ready to take part in the run again.

use crate::error::{NodeCallError, NodeReplyResult};
use crate::{QUICK, THOROUGH};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;
use tarn_proto::node::{NodeCommand, NodeConfig, NodeReply, NodeRequest};
use tarn_types::event::{IntactReplica, PriorInstance};
use tarn_types::id::{NodeId, TierId, TierRef};
use tarn_types::nodes::Staying;
use tarn_types::part::{PartInfo, PartRef, Place, StoreKey};

/// A session with the node, in which the calling thread waits.
pub(crate) trait NodeRequests {
    /// Sends a request to the node.
    fn call(&self, request: NodeRequest, timeout: Duration) -> NodeReplyResult;

    /// Sends it a command. False when the session is over.
    fn send_command(&self, command: NodeCommand) -> bool;
}

/// Replicas of earlier runs, as [`tarn_ports::NodeWorld::offer`] takes them.
pub(crate) struct PriorReplicaOffer {
    pub(crate) prior: Vec<PriorInstance>,
    pub(crate) there: BTreeSet<(StoreKey, Place)>,
}

/// A lost node takes part in the run again: the data for that.
pub(crate) struct Return {
    pub(crate) node_config: NodeConfig,
    /// Nodes that are lost.
    pub(crate) lost: Vec<NodeId>,
    pub(crate) parts: Vec<(PartRef, PartInfo)>,
    /// Replicas that were stored there when it was lost.
    pub(crate) held: Vec<IntactReplica>,
    pub(crate) offer: Option<PriorReplicaOffer>,
    pub(crate) protected: BTreeSet<PathBuf>,
    pub(crate) pinned: BTreeSet<StoreKey>,
}

/// A node that is ready again, and the replicas that it brings back.
pub(crate) struct Returned {
    pub(crate) whole: Vec<IntactReplica>,
}

impl Return {
    /// Opens the node's new world; finds out which replicas are still there; removes everything else.
    ///
    /// # Errors
    /// Why it cannot take part.
    pub(crate) fn carry_out(self, node: &impl NodeRequests) -> Result<Returned, NodeCallError> {
        let id = self.node_config.node;
        match node.call(NodeRequest::Open(Box::new(self.node_config)), QUICK)? {
            NodeReply::Opened { .. } => {}
            _ => return Err(NodeCallError::Mismatch),
        }
        let losses = self.lost.into_iter().map(NodeCommand::NodeLost);
        for command in losses.chain([NodeCommand::Know(self.parts)]) {
            if !node.send_command(command) {
                return Err(NodeCallError::LostAgain);
            }
        }
        let offered = self.offer.iter().flat_map(|o| &o.there);
        let wanted: Vec<_> = wanted(id, &self.held).chain(numbered(1, offered)).collect();
        let inventory = NodeRequest::Inventory(wanted.clone());
        let NodeReply::Found(found) = node.call(inventory, THOROUGH)? else {
            return Err(NodeCallError::Mismatch);
        };
        let found: BTreeSet<_> = found.into_iter().collect();
        let is_there = |(name, _, at): &&(PartRef, _, Place)| found.contains(&(*name, at.clone()));
        let there = wanted.iter().filter(is_there);
        let keep: BTreeSet<_> = there
            .map(|(_, key, at)| (key.clone(), at.clone()))
            .collect();
        if let Some(offer) = self.offer {
            let there = offer.there.intersection(&keep).cloned().collect();
            let prior = offer.prior;
            let protected = self.protected.clone();
            let call = NodeRequest::Offer {
                prior,
                there,
                protected,
            };
            node.call(call, QUICK)?;
        }
        let mut whole = self.held;
        whole.retain(|w| keep.contains(&(w.key.clone(), place_of(id, w.tier))));
        let staying = Staying {
            keep,
            resumable: BTreeSet::new(),
            protected: self.protected,
            pinned: self.pinned,
            // Capacities are without what is protected by now.
            resumed: true,
            is_without: true,
        };
        match node.call(NodeRequest::Clean(staying), THOROUGH)? {
            NodeReply::Cleaned(_) => Ok(Returned { whole }),
            _ => Err(NodeCallError::Mismatch),
        }
    }
}

/// The place of a replica on a tier of a node.
pub(crate) fn place_of(node: NodeId, tier: TierId) -> Place {
    Place::Node(TierRef { node, tier })
}

/// Replicas to be looked for, each under a name of its own: a part may be stored there in several commits.
fn wanted(
    node: NodeId,
    held: &[IntactReplica],
) -> impl Iterator<Item = (PartRef, StoreKey, Place)> {
    (0..).zip(held).map(move |(i, w)| {
        let part = PartRef {
            version: 0,
            origin: i,
            seq: 0,
            ..w.part
        };
        (part, w.key.clone(), place_of(node, w.tier))
    })
}

fn numbered<'a>(
    seq: u32,
    of: impl Iterator<Item = &'a (StoreKey, Place)>,
) -> impl Iterator<Item = (PartRef, StoreKey, Place)> {
    (0..).zip(of).map(move |(i, (key, place))| {
        let part = PartRef {
            data: tarn_types::id::DataId(0),
            version: 0,
            origin: i,
            seq,
        };
        (part, key.clone(), place.clone())
    })
}
