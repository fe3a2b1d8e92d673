//! The sources from which a part can be read: here, another node, outside.

use crate::data::{PartReplica, PartReplicaState, TrackedPart};
use crate::estimate::duration;
use crate::state::EngineState;
use tarn_types::id::{DataId, NodeId, TierId, TierRef, TransferId};
use tarn_types::part::{PartRef, Place, TransferKind};
use tarn_types::policy::DataMode;

impl EngineState {
    /// How the policy handles data.
    pub(crate) fn data_mode(&self) -> DataMode {
        self.start.options.policy.data_mode
    }

    /// Whether the policy lets the steps that read a part begin: with `stage-through` and `cache` not before it is outside.
    pub(crate) fn may_be_read(&self, part: &TrackedPart) -> bool {
        self.data_mode() == DataMode::Keep
            || self.external_source(part).is_some()
            || part.replicas.values().any(|r| r.is_others)
    }

    /// The fastest tier of a node from which a step there can use a part. Under `stage-through` only replicas that were
    /// staged in for it, and those of another workflow.
    pub(crate) fn usable_on(&self, node: NodeId, part: &TrackedPart) -> Option<TierRef> {
        let tier_ref = part.on_node(node)?;
        if self.data_mode() == DataMode::StageThrough {
            let staged = |(p, r): (&Place, &PartReplica)| match p {
                Place::Node(s) if s.node == node && (r.staged || r.is_others) => Some(*s),
                _ => None,
            };
            return part.present().find_map(staged);
        }
        Some(tier_ref)
    }

    /// The tier of a node that an input is brought to for a step on `tier_ref`: the dataset's own if it names one.
    pub(crate) fn target(&self, tier_ref: TierRef, data: DataId) -> TierRef {
        let Some(name) = &self.start.workflow.dataset(data).tier else {
            return tier_ref;
        };
        let tiers = (0u32..).zip(&self.start.cluster.node(tier_ref.node).tiers);
        let named = tiers
            .filter(|(_, t)| t.name == *name)
            .map(|(i, _)| TierId(i))
            .next();
        TierRef {
            node: tier_ref.node,
            tier: named.unwrap_or(tier_ref.tier),
        }
    }

    /// Whether a step on `tier_ref` can use a part in place: on its target tier or a faster one.
    pub(crate) fn in_place(
        &self,
        tier_ref: TierRef,
        name: PartRef,
        part: &TrackedPart,
    ) -> Option<TierRef> {
        let target = self.target(tier_ref, name.data);
        self.usable_on(tier_ref.node, part)
            .filter(|s| s.tier <= target.tier)
    }

    /// The least busy replica on another node, if the policy moves data between nodes; one that could not be read from
    /// there comes last. A part that many nodes lack comes to them as through a chain: a replica that is still arriving
    /// is as good a source as one that is there.
    pub(crate) fn peer_source(&self, node: NodeId, part: &TrackedPart) -> Option<TierRef> {
        let is_others = part.replicas.values().any(|r| r.is_others);
        if self.data_mode() != DataMode::Keep && !is_others {
            return None;
        }
        let follow = self.start.allocation.is_some() && !part.followed_in_vain.contains(&node);
        let others = part
            .replicas
            .iter()
            .filter_map(|(p, r)| match (p, r.state) {
                (Place::Node(s), _) if s.node == node => None,
                (Place::Node(s), PartReplicaState::Present) => {
                    Some((part.is_refused(Some(node), p), r.pins, false, *s))
                }
                (Place::Node(s), PartReplicaState::Incoming(id))
                    if follow && !self.ledger.nodes.is_lost(s.node) && !self.is_abandoned(id) =>
                {
                    Some((part.is_refused(Some(node), p), r.pins, true, *s))
                }
                _ => None,
            });
        others.min().map(|(.., s)| s)
    }

    fn is_abandoned(&self, id: TransferId) -> bool {
        self.transfers.get(&id).is_none_or(|t| t.abandoned)
    }

    /// A replica outside the nodes.
    pub(crate) fn external_source<'a>(&self, part: &'a TrackedPart) -> Option<&'a Place> {
        part.present()
            .map(|(p, _)| p)
            .find(|p| !matches!(p, Place::Node(_)))
    }

    /// The source of a part for a tier that lacks it: a slower tier of its node, another node, or outside; a source
    /// that could not be read comes last.
    pub(crate) fn source_for(
        &self,
        target: TierRef,
        part: &TrackedPart,
    ) -> Option<(Place, TransferKind)> {
        let slower = self.usable_on(target.node, part);
        let slower = slower.map(|tier_ref| (Place::Node(tier_ref), TransferKind::Promote));
        let best = self.best_source(target.node, part);
        let mut ways = slower.iter().chain(&best);
        let untried = ways.find(|(from, _)| !part.is_refused(Some(target.node), from));
        untried.cloned().or(slower).or(best)
    }

    /// The best source of a part for a node that lacks it, counting the bytes already under way on each link.
    pub(crate) fn best_source(
        &self,
        node: NodeId,
        part: &TrackedPart,
    ) -> Option<(Place, TransferKind)> {
        match self.peer_if_best(node, part) {
            Some(peer) => Some((Place::Node(peer), TransferKind::Peer)),
            None => Some((
                self.outside_for(node, part)?.clone(),
                TransferKind::ExternalIn,
            )),
        }
    }

    /// Whether [`Self::best_source`] is another node.
    pub(crate) fn comes_by_peer(&self, node: NodeId, part: &TrackedPart) -> bool {
        self.peer_if_best(node, part).is_some()
    }

    /// The replica outside that a node reads.
    fn outside_for<'a>(&self, node: NodeId, part: &'a TrackedPart) -> Option<&'a Place> {
        let mut outside = part.present().map(|(p, _)| p);
        let untried = |p: &&Place| !matches!(p, Place::Node(_)) && !part.is_refused(Some(node), p);
        outside.find(untried).or_else(|| self.external_source(part))
    }

    fn peer_if_best(&self, node: NodeId, part: &TrackedPart) -> Option<TierRef> {
        let peer = self.peer_source(node, part)?;
        let Some(outside) = self.outside_for(node, part) else {
            return Some(peer);
        };
        let refused = |from: &Place| part.is_refused(Some(node), from);
        let best = match (refused(&Place::Node(peer)), refused(outside)) {
            (true, false) => false,
            (false, true) => true,
            _ => self.peer_is_sooner(peer.node, node, part),
        };
        best.then_some(peer)
    }

    /// Whether a part comes sooner from a node that has it than from outside.
    fn peer_is_sooner(&self, from: NodeId, to: NodeId, part: &TrackedPart) -> bool {
        let cost = |queue: u64, rate| duration(part.info.bytes.saturating_add(queue), rate);
        let outside = self.under_way.get(&TransferKind::ExternalIn);
        let between = self.links.sent(from).max(self.links.received(to));
        let cluster = &self.start.cluster;
        cost(between, cluster.peer.read)
            <= cost(outside.copied().unwrap_or(0), cluster.external.read)
    }
}
