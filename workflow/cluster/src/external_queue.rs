//! Transfers to and from the external store: as many at once as it has streams, the most urgent first.

use crate::dispatch::ActionPerformer;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use tarn_types::action::Action;
use tarn_types::id::TransferId;
use tarn_types::part::{Place, Transfer};

/// How many of how many transfers somebody has.
type StreamShare = (u32, u32);

/// Transfers to and from the external store.
#[derive(Default)]
pub(crate) struct ExternalTransferQueue {
    /// Handed out, and to whom.
    busy: BTreeMap<TransferId, ActionPerformer>,
    /// Not yet, the most urgent first.
    waiting: BTreeMap<(Reverse<u64>, TransferId), Action>,
    /// The share that was last sent to each.
    shares: BTreeMap<ActionPerformer, StreamShare>,
}

impl ExternalTransferQueue {
    pub(crate) fn is_waiting(&self, t: &Transfer) -> bool {
        self.waiting.contains_key(&key(t))
    }

    pub(crate) fn has_space(&self, streams: usize) -> bool {
        self.busy.len() < streams
    }

    /// Gives a transfer one of the streams, until it has [`Self::ended`]. False if none is free.
    pub(crate) fn begin(&mut self, id: TransferId, by: ActionPerformer, streams: usize) -> bool {
        if !self.has_space(streams) {
            return false;
        }
        let before = self.busy.insert(id, by);
        assert!(before.is_none(), "transfer {id} was begun twice");
        debug_assert!(
            self.waiting.keys().all(|(_, waiting)| *waiting != id),
            "transfer {id} was begun and waits"
        );
        true
    }

    pub(crate) fn wait(&mut self, t: &Transfer, action: Action) {
        self.waiting.insert(key(t), action);
    }

    /// The most urgent one of those that wait; it waits no more.
    pub(crate) fn take(&mut self) -> Option<(TransferId, Action)> {
        let ((_, id), action) = self.waiting.pop_first()?;
        Some((id, action))
    }

    /// A transfer is over; perhaps it never touched the store.
    pub(crate) fn ended(&mut self, t: &Transfer) {
        self.busy.remove(&t.id);
        self.waiting.remove(&key(t));
    }

    /// Shares that have changed since the last call: the performer, how many of the transfers it has, of how many.
    pub(crate) fn take_changed_shares(&mut self) -> Vec<(ActionPerformer, u32, u32)> {
        let shares = shares(&self.busy);
        let before = std::mem::replace(&mut self.shares, shares);
        let shares = self.shares.iter();
        let changed = shares.filter(|(by, share)| before.get(by) != Some(share));
        changed.map(|(by, (own, all))| (*by, *own, *all)).collect()
    }
}

/// Of what is handed out, how much each has; of how much.
fn shares(busy: &BTreeMap<TransferId, ActionPerformer>) -> BTreeMap<ActionPerformer, StreamShare> {
    let mut shares = BTreeMap::new();
    for by in busy.values() {
        let share: &mut StreamShare = shares.entry(*by).or_default();
        share.0 += 1;
        share.1 = busy.len() as u32;
    }
    debug_assert_eq!(
        shares.values().map(|(own, _)| *own as usize).sum::<usize>(),
        busy.len(),
        "each transfer has one share"
    );
    shares
}

fn key(t: &Transfer) -> (Reverse<u64>, TransferId) {
    (Reverse(t.priority), t.id)
}

pub(crate) fn touches_store(t: &Transfer) -> bool {
    let outside = |place: &Place| !matches!(place, Place::Node(_));
    outside(&t.to) || t.parts.iter().any(|m| outside(&m.from))
}
