//! The external store is one for all nodes: its bound of transfers at once is that of all of them together, and so is the
//! rate that it is played with (`--external-rate`).

use crate::world::{ActionPerformer, AllocationWorld};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use tarn_ports::WorldError;
use tarn_proto::node::NodeCommand;
use tarn_types::action::Action;
use tarn_types::id::TransferId;
use tarn_types::part::{Place, Transfer};

/// Transfers to and from the external store.
#[derive(Default)]
pub(crate) struct ExternalTransferQueue {
    /// Handed out, and to whom.
    busy: BTreeMap<TransferId, ActionPerformer>,
    /// Not yet, the most urgent first.
    waiting: BTreeMap<(Reverse<u64>, TransferId), Action>,
    /// How many of how many transfers each was last told to have.
    told: BTreeMap<ActionPerformer, (u32, u32)>,
}

impl ExternalTransferQueue {
    pub(crate) fn is_waiting(&self, t: &Transfer) -> bool {
        self.waiting.contains_key(&key(t))
    }

    /// A transfer is over.
    pub(crate) fn ended(&mut self, t: &Transfer) {
        self.busy.remove(&t.id);
        self.waiting.remove(&key(t));
    }
}

/// Of what is handed out, how much each has; of how much.
fn shares(busy: &BTreeMap<TransferId, ActionPerformer>) -> BTreeMap<ActionPerformer, (u32, u32)> {
    let mut shares = BTreeMap::new();
    for by in busy.values() {
        let share: &mut (u32, u32) = shares.entry(*by).or_default();
        share.0 += 1;
        share.1 = busy.len() as u32;
    }
    shares
}

fn key(t: &Transfer) -> (Reverse<u64>, TransferId) {
    (Reverse(t.priority), t.id)
}

fn touches_store(t: &Transfer) -> bool {
    let outside = |place: &Place| !matches!(place, Place::Node(_));
    outside(&t.to) || t.parts.iter().any(|m| outside(&m.from))
}

impl AllocationWorld {
    /// Whether a transfer has to wait for others; then it is kept for later.
    pub(crate) fn waits_for_store(&mut self, action: &Action, t: &Transfer) -> bool {
        if !touches_store(t) {
            return false;
        }
        let streams = self.node_config.cluster.external.streams.max(1);
        if self.store.busy.len() < streams as usize {
            let by = self
                .under_way
                .moving
                .get(&t.id)
                .map_or(ActionPerformer::Home, |m| m.by);
            self.store.busy.insert(t.id, by);
            self.pace();
            return false;
        }
        self.store.waiting.insert(key(t), action.clone());
        true
    }

    /// Whether nobody has been told of a transfer yet.
    pub(crate) fn is_waiting(&self, t: &Transfer) -> bool {
        self.store.is_waiting(t) || self.chains.is_waiting(t.id)
    }

    /// Hands out those for which there is room now.
    pub(crate) fn hand_out(&mut self) -> Result<(), WorldError> {
        let streams = self.node_config.cluster.external.streams.max(1);
        while let Some((id, action)) = self.chains.next() {
            if let Some(by) = self.under_way.moving.get(&id).map(|m| m.by) {
                self.hand(by, &action)?;
            }
        }
        while self.store.busy.len() < streams as usize
            && let Some(((_, id), action)) = self.store.waiting.pop_first()
        {
            let Some(moving) = self.under_way.moving.get(&id) else {
                continue;
            };
            let by = moving.by;
            self.store.busy.insert(id, by);
            self.pace();
            self.hand(by, &action)?;
        }
        self.pace();
        Ok(())
    }

    /// Tells those that play the store's rate which share of it is theirs: as many streams as each has of all.
    fn pace(&mut self) {
        if !self.node_config.cluster.external.emulated {
            return;
        }
        let shares = shares(&self.store.busy);
        if shares == self.store.told {
            return;
        }
        for (by, (own, all)) in &shares {
            if self.store.told.get(by) == Some(&(*own, *all)) {
                continue;
            }
            match by {
                ActionPerformer::Home => self.home.pace(*own, *all),
                ActionPerformer::Node(n) => self.send_command(
                    *n,
                    NodeCommand::Pace {
                        own: *own,
                        all: *all,
                    },
                ),
            }
        }
        self.store.told = shares;
    }

    /// A transfer that nobody has begun yet is abandoned. False if somebody has.
    pub(crate) fn abandon_queued(&mut self, id: TransferId) -> bool {
        let moving = self.under_way.moving.get(&id);
        if !moving.is_some_and(|m| self.is_waiting(&m.order)) {
            return false;
        }
        self.give_up(id, "abandoned before it began".into());
        true
    }
}
