//! The state of a run: its tables, and the changes to more than one of them at once. No choice is made here.

mod recount;

use crate::cache::DataCache;
use crate::data::{PartReplicaState, TrackedData};
use crate::given_up::GivenUp;
use crate::ledger::Ledger;
use crate::links::NodeLinkLoads;
use crate::partitions::Partitions;
use crate::returned::ReturnedReplicas;
use crate::steps::{InstancePlacement, InstanceProgress, Steps};
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::account::sub;
use tarn_types::action::{Outcome, Subject};
use tarn_types::energy::EnergyRank;
use tarn_types::event::Start;
use tarn_types::hash::Hash;
use tarn_types::id::{DataId, InstanceId, StepId, TierRef, TransferId};
use tarn_types::part::{PartRef, Place, Transfer, TransferKind};
use tarn_types::reason::Reason;
use tarn_types::units::Time;

/// Why nothing new is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RunStopReason {
    /// This failed for good.
    Failed { about: Subject, message: String },
    /// All is done that does not need a failed step.
    Incomplete,
    /// By a signal.
    Interrupted(i32),
}

/// A transfer under way.
#[derive(Debug)]
pub(crate) struct EngineTransfer {
    pub(crate) transfer: Transfer,
    /// Its sources are to be removed once it is done.
    pub(crate) releases: bool,
    pub(crate) abandoned: bool,
    pub(crate) rescue: bool,
    /// Bytes of content it moves.
    pub(crate) bytes: u64,
}

/// Everything the engine knows.
#[derive(Debug)]
pub(crate) struct EngineState {
    pub(crate) start: Start,
    pub(crate) now: Time,
    pub(crate) data: TrackedData,
    pub(crate) steps: Steps,
    pub(crate) ledger: Ledger,
    pub(crate) partitions: Partitions,
    /// For each version, the steps that read it.
    pub(crate) readers: BTreeMap<(DataId, u32), Vec<StepId>>,
    /// For each version that is made, the step that makes it.
    pub(crate) producers: BTreeMap<(DataId, u32), StepId>,
    /// For each step, the versions of which its instances read entries of their own elements alone.
    pub(crate) by_element: Vec<BTreeSet<(DataId, u32)>>,
    /// Sources that have not been listed.
    pub(crate) unlisted: BTreeSet<DataId>,
    /// Datasets whose last version is sealed, has to go to a `dest` and is not on its way there.
    pub(crate) undelivered: BTreeSet<DataId>,
    /// Parts that are promised to be kept, were there and are lost.
    pub(crate) unkept: BTreeSet<PartRef>,
    /// Data that came back with lost nodes and is none of the replicas.
    pub(crate) returned: ReturnedReplicas,
    pub(crate) transfers: BTreeMap<TransferId, EngineTransfer>,
    pub(crate) next_transfer: u64,
    /// Sources requested and not yet listed.
    pub(crate) listing: BTreeSet<DataId>,
    pub(crate) prior: BTreeMap<Hash, u32>,
    pub(crate) stop: Option<RunStopReason>,
    /// The permanent failures while the rest continues.
    pub(crate) given_up: GivenUp,
    /// Instances that were placed when an entry of a dataset, which they read, became another: they give their places back.
    pub(crate) outdated: BTreeMap<InstanceId, DataId>,
    /// A request to end the run in order: datasets that ask to be drained when it fails are brought out first.
    pub(crate) drains: bool,
    /// Last note about each subject: none is repeated.
    pub(crate) notes: BTreeMap<Subject, Reason>,
    pub(crate) finished: Option<Outcome>,
    pub(crate) deadline: Option<Time>,
    /// The check for demands that the machine can never meet is done.
    pub(crate) fits_checked: bool,
    /// Bytes under way on the external link (in, out) and between nodes.
    pub(crate) under_way: BTreeMap<TransferKind, u64>,
    /// Those between nodes, node by node.
    pub(crate) links: NodeLinkLoads,
    /// The power per core and the temperature of each node when the run began.
    pub(crate) draws: Vec<EnergyRank>,
    /// Transfers under way that read a replica that was on its way to a node and has not come.
    pub(crate) orphans: BTreeSet<TransferId>,
    /// Until then some part rests whose move has failed: that is something under way.
    pub(crate) rests_until: Time,
    /// Evictions under way.
    pub(crate) leaving: u64,
    /// Data that stays on the tiers for later runs.
    pub(crate) cache: DataCache,
}

impl EngineState {
    /// The instance that makes a part; `None` for one of a source.
    pub(crate) fn producer(&self, name: PartRef) -> Option<InstanceId> {
        let step = *self.producers.get(&(name.data, name.version))?;
        Some(InstanceId {
            step,
            index: name.origin,
        })
    }

    /// Stops the run for good because of a failure; the first one counts.
    pub(crate) fn fail(&mut self, about: Subject, message: String) {
        self.stop
            .get_or_insert(RunStopReason::Failed { about, message });
    }

    pub(crate) fn assigned(
        &mut self,
        id: InstanceId,
        tier_refs: &[TierRef],
        reserve: u64,
        end: Time,
    ) {
        self.steps.dequeue(id);
        for s in tier_refs {
            self.ledger.nodes.reserve(*s, reserve);
            self.steps.on_node[s.node.at()].insert(id);
        }
        self.steps.placed.insert(id);
        let about = (&self.start.workflow, &self.start.cluster);
        self.partitions
            .place(about, &mut self.ledger, id, tier_refs);
        // The space that it sets aside for itself has space for images too.
        self.steps
            .give_image_space_back(&mut self.ledger, id, |at| tier_refs.contains(&at));
        let factor = self.steps.all[id.step.at()].reserve_factor;
        if let Some(i) = self.steps.instance_mut(id) {
            i.progress = InstanceProgress::Assigned(InstancePlacement {
                tier_refs: tier_refs.to_vec(),
                reserve,
                factor,
                end,
                started: None,
                pinned: Vec::new(),
                stopping: false,
            });
        }
    }

    /// Takes an instance from its nodes; returns where it was.
    pub(crate) fn displaced(&mut self, id: InstanceId) -> Option<InstancePlacement> {
        let placed = self.steps.instance(id)?.placed()?.clone();
        for s in &placed.tier_refs {
            self.ledger.nodes.unreserve(*s, placed.reserve);
            self.steps.on_node[s.node.at()].remove(&id);
        }
        let about = (&self.start.workflow, &self.start.cluster);
        self.partitions
            .displace(about, &mut self.ledger, id, &placed.tier_refs);
        self.steps.placed.remove(&id);
        self.steps.running.remove(&id);
        if placed
            .tier_refs
            .iter()
            .any(|s| self.ledger.nodes.is_lost(s.node))
        {
            // It is to be placed there itself; the space of older copies elsewhere stays counted.
            let next = self.steps.instance(id)?.kept.images.best(None);
            let next = next.map(|(at, _)| at.node);
            let leaves = |at: TierRef| next.is_none_or(|node| node == at.node);
            self.steps
                .give_image_space_back(&mut self.ledger, id, leaves);
        }
        Some(placed)
    }

    pub(crate) fn unpin_views(&mut self, placed: &InstancePlacement) {
        for (part, tier_ref) in &placed.pinned {
            self.unpin(*part, &Place::Node(*tier_ref));
        }
    }

    pub(crate) fn unpin(&mut self, part: PartRef, at: &Place) {
        if let Some(r) = self.data.replica_mut(part, at) {
            // It may be another one than was pinned, which was lost: one that comes counts the readers still there.
            sub(&mut r.pins, 1, "pins of a replica");
        }
        self.data.to_check.insert(part);
    }

    /// A replica stays for later runs.
    pub(crate) fn cached(&mut self, part: PartRef, tier_ref: TierRef) {
        if let Some(r) = self.data.replica_mut(part, &Place::Node(tier_ref)) {
            r.state = PartReplicaState::Cached;
            let stored = r.stored;
            self.cache.add(tier_ref, part, stored);
        }
    }

    /// One that did goes, or has gone.
    pub(crate) fn uncached(&mut self, part: PartRef, at: &Place) {
        let replica = self.data.replica_mut(part, at);
        let cached = replica.is_some_and(|r| r.state == PartReplicaState::Cached);
        if let (true, Place::Node(tier_ref)) = (cached, at) {
            self.cache.remove(*tier_ref, part);
        }
    }
}
