//! Where a part can be read from: here, on another node, outside; or nowhere, so that it must be made again.

use super::Decide;
use crate::data::{PartReplicaState, TrackedPart};
use crate::estimate::duration;
use crate::state::EngineState;
use tarn_types::action::{Do, Subject};
use tarn_types::id::{DataId, InstanceId, NodeId, TierId, TierRef, TransferId};
use tarn_types::part::{PartRef, Place, TransferKind};
use tarn_types::policy::DataMode;
use tarn_types::reason::Reason;

impl EngineState {
    /// What the policy does with data.
    pub(crate) fn data_mode(&self) -> DataMode {
        self.start.options.policy.data_mode
    }

    /// Whether the policy lets the steps that read a part begin: with `stage-through` and `cache` not before it is outside.
    pub(crate) fn may_be_read(&self, part: &TrackedPart) -> bool {
        self.data_mode() == DataMode::Keep
            || self.external_source(part).is_some()
            || part.replicas.values().any(|r| r.is_others)
    }

    /// The fastest tier of a node from which a step there can use a part. Under `stage-through` only what
    /// was staged in for it, and what another workflow has there.
    pub(crate) fn usable_on(&self, node: NodeId, part: &TrackedPart) -> Option<TierRef> {
        let spot = part.on_node(node)?;
        if self.data_mode() == DataMode::StageThrough {
            let staged = |(p, r): (&Place, &crate::data::PartReplica)| match p {
                Place::Node(s) if s.node == node && (r.staged || r.is_others) => Some(*s),
                _ => None,
            };
            return part.present().find_map(staged);
        }
        Some(spot)
    }

    /// The tier of a node that an input is brought to for a step on `spot`: the dataset's own if it names one.
    pub(crate) fn target(&self, spot: TierRef, data: DataId) -> TierRef {
        let Some(name) = &self.start.workflow.dataset(data).tier else {
            return spot;
        };
        let tiers = (0u32..).zip(&self.start.cluster.node(spot.node).tiers);
        let named = tiers
            .filter(|(_, t)| t.name == *name)
            .map(|(i, _)| TierId(i))
            .next();
        TierRef {
            node: spot.node,
            tier: named.unwrap_or(spot.tier),
        }
    }

    /// Whether a step on `spot` can use a part as it lies: on its target tier or a faster one.
    pub(crate) fn in_place(
        &self,
        spot: TierRef,
        name: PartRef,
        part: &TrackedPart,
    ) -> Option<TierRef> {
        let target = self.target(spot, name.data);
        self.usable_on(spot.node, part)
            .filter(|s| s.tier <= target.tier)
    }

    /// The least busy replica on another node, if the policy moves data between nodes; one that could not be read from there
    /// comes last. What many nodes lack comes to them as through a chain: a replica that is still arriving is as good a source
    /// as one that is there.
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
                    if follow && !self.ledger.is_lost(s.node) && !self.is_abandoned(id) =>
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

    /// What a tier that lacks a part gets it from: a slower tier of its node, another node, or outside; what could not be
    /// read there comes last.
    pub(crate) fn source_for(
        &self,
        target: TierRef,
        part: &TrackedPart,
    ) -> Option<(Place, TransferKind)> {
        let slower = self.usable_on(target.node, part);
        let slower = slower.map(|spot| (Place::Node(spot), TransferKind::Promote));
        let best = self.best_source(target.node, part);
        let mut ways = slower.iter().chain(&best);
        let untried = ways.find(|(from, _)| !part.is_refused(Some(target.node), from));
        untried.cloned().or(slower).or(best)
    }

    /// The best source of a part for a node that lacks it, counting what is already under way on each link.
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

/// Whether no readable replica of a part is left or on its way.
pub(crate) fn is_lost(part: &TrackedPart) -> bool {
    part.replicas
        .values()
        .all(|r| r.state == PartReplicaState::Bad)
}

impl Decide<'_> {
    /// A part is needed and no replica of it is left: its producer runs again.
    pub(super) fn make_again(&mut self, name: PartRef) {
        let Some(producer) = self.state.producer(name) else {
            return self.others_lost(name);
        };
        let instance = self.state.steps.instance(producer);
        let keeps = (self.state.partitions).keeps(&self.state.start.workflow, producer.step);
        if instance.is_some_and(|i| i.finished()) && keeps {
            let w = &self.state.start.workflow;
            let message = format!(
                "no replica of {} is left, and step {}, which made it, has used a partition that is kept for the workflow and has changed since; `tarn run` starts again",
                w.dataset(name.data).name,
                w.step(producer.step).name,
            );
            let about = Subject::Data(name.data);
            self.note(about, Reason::Failed { message });
        } else if instance.is_some_and(|i| i.finished()) {
            let about = Subject::Instance(producer);
            self.emit(Do::Note { about }, Reason::OutputLost { data: name.data });
        }
    }

    /// No replica is left of what another workflow has made: who needs it is given up.
    fn others_lost(&mut self, name: PartRef) {
        let mut all = self.state.start.prior_data.iter();
        let Some(prior) = all.find(|p| p.data == name.data) else {
            return;
        };
        let message = format!(
            "`{0}` of workflow {1} is damaged or gone, and only that workflow can make it again; `tarn data verify {0}` shows what is left of it",
            prior.dataset, prior.workflow
        );
        if self.state.start.options.fail_fast {
            let about = Subject::Data(name.data);
            return self.note(about, Reason::Failed { message });
        }
        for id in self.state.readers_to_begin(name) {
            self.give_up(id, &message);
        }
    }

    /// What an earlier run of an instance that runs again has left on nodes goes first, so that the two runs' outputs never
    /// mix. What is being read goes when that has ended; nobody begins to read it, or what lies of it outside.
    pub(super) fn clear_remade(&mut self) {
        for producer in self.state.steps.remade.clone() {
            for (part, at, removable) in self.leftovers(producer) {
                if removable {
                    self.evict(part, &at, Reason::OutputLost { data: part.data });
                }
            }
        }
    }

    /// Whether a part is being made again, or will be.
    pub(super) fn is_remade(&self, name: PartRef) -> bool {
        let remade = &self.state.steps.remade;
        let producer = || self.state.producer(name);
        !remade.is_empty() && producer().is_some_and(|id| remade.contains(&id))
    }

    /// The replicas that a new run of an instance would contradict; whether each can go now.
    pub(super) fn leftovers(&self, id: InstanceId) -> Vec<(PartRef, Place, bool)> {
        let mut all = Vec::new();
        for name in self.state.made_by(id) {
            let replicas = self.state.data.part(name).map(|p| &p.replicas);
            let bound = replicas.into_iter().flatten();
            let bound = bound.filter(|(p, _)| !matches!(p, Place::External(_) | Place::Source));
            all.extend(bound.map(|(at, r)| {
                let there = matches!(
                    r.state,
                    PartReplicaState::Present | PartReplicaState::Bad | PartReplicaState::Cached
                );
                (name, at.clone(), there && r.pins == 0)
            }));
        }
        all
    }

    /// Removes a replica.
    pub(super) fn evict(&mut self, part: PartRef, at: &Place, why: Reason) {
        let Some(key) = self.state.data.part(part).map(|p| p.info.key.clone()) else {
            return;
        };
        let what = Do::Evict {
            part,
            key,
            at: at.clone(),
        };
        self.emit(what, why);
    }
}
