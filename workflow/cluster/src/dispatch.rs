//! Actions that are under way, and who performs each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;
use tarn_types::event::Event;
use tarn_types::id::{DataId, NodeId, TransferId};
use tarn_types::nodes::AttemptId;
use tarn_types::part::{PartRef, Place, StoreKey, Transfer};

/// The performer of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ActionPerformer {
    Home,
    Node(NodeId),
}

/// A transfer under way.
pub(crate) struct DispatchedTransfer {
    pub(crate) order: Transfer,
    pub(crate) by: ActionPerformer,
    /// Nanoseconds since 1970.
    pub(crate) began: i64,
    /// A node of it that was lost, though not the one that performs it.
    pub(crate) cut: Option<NodeId>,
    /// The time of the order to its performer to give it up.
    pub(crate) abandoned: Option<Instant>,
}

/// An attempt under way; its first node performs it.
pub(crate) struct DispatchedAttempt {
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) cut: Option<NodeId>,
}

/// Actions whose end the engine does not know.
#[derive(Default)]
pub(crate) struct OutstandingActions {
    pub(crate) listing: BTreeSet<DataId>,
    pub(crate) moving: BTreeMap<TransferId, DispatchedTransfer>,
    pub(crate) running: BTreeMap<AttemptId, DispatchedAttempt>,
    pub(crate) evicting: BTreeMap<(PartRef, Place), VecDeque<StoreKey>>,
}

impl OutstandingActions {
    pub(crate) fn nothing(&self) -> bool {
        self.listing.is_empty()
            && self.moving.is_empty()
            && self.running.is_empty()
            && self.evicting.is_empty()
    }

    pub(crate) fn home_owes(&self) -> bool {
        !self.listing.is_empty()
            || self.moving.values().any(|m| m.by == ActionPerformer::Home)
            || self.evicting.keys().any(|(_, at)| on(at).is_none())
    }

    pub(crate) fn involves(&self, node: NodeId) -> bool {
        self.moving
            .values()
            .any(|m| nodes_of(&m.order).any(|n| n == node))
            || self.running.values().any(|r| r.nodes.contains(&node))
            || self.evicting.keys().any(|(_, at)| on(at) == Some(node))
    }
}

/// The node of a place.
pub(crate) fn on(place: &Place) -> Option<NodeId> {
    match place {
        Place::Node(tier_ref) => Some(tier_ref.node),
        Place::Source | Place::External(_) | Place::Drained => None,
    }
}

/// The nodes that a transfer needs, some of them perhaps more than once.
pub(crate) fn nodes_of(t: &Transfer) -> impl Iterator<Item = NodeId> {
    let places = t.parts.iter().map(|m| &m.from).chain([&t.to]);
    places.filter_map(on)
}

/// The engine's next event.
pub(crate) struct PendingEngineEvent {
    pub(crate) event: Event,
    /// Nodes that have to do with it: none of them comes back before the engine has it.
    pub(crate) nodes: Vec<NodeId>,
}
