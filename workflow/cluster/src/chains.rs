//! Chains: a transfer may read a replica that is still arriving at a node. It is handed out when what it follows has begun
//! there, so whoever waits for a peer waits for something that moves: no two transfers ever wait for each other.

use std::collections::{BTreeMap, BTreeSet};
use tarn_types::action::Action;
use tarn_types::id::{TierRef, TransferId};
use tarn_types::part::{PartMove, PartRef, Place, Transfer};

/// Transfers to nodes, and those that follow them.
#[derive(Default)]
pub(crate) struct Chains {
    /// The transfer that brings a replica.
    arriving: BTreeMap<(PartRef, TierRef), TransferId>,
    begun: BTreeSet<TransferId>,
    /// Followers that are not handed out yet, and what they wait for.
    waiting: BTreeMap<TransferId, (BTreeSet<TransferId>, Action)>,
    /// The followers of each transfer.
    followers: BTreeMap<TransferId, Vec<TransferId>>,
    /// Followers that wait no more.
    free: BTreeMap<TransferId, Action>,
    /// Replicas that will not come, which the engine does not know yet: its orders may still read them.
    untold: BTreeMap<(PartRef, TierRef), TransferId>,
}

impl Chains {
    /// Takes note of a transfer. True if it has to wait for others; then it is kept for later.
    pub(crate) fn ordered(&mut self, action: &Action, t: &Transfer) -> bool {
        let leader = |m: &PartMove| match m.from {
            Place::Node(tier_ref) => self.arriving.get(&(m.part, tier_ref)).copied(),
            _ => None,
        };
        let leaders = t.parts.iter().filter_map(leader);
        let leaders: BTreeSet<_> = leaders.filter(|l| !self.begun.contains(l)).collect();
        if let Place::Node(tier_ref) = t.to {
            let brings = t.parts.iter().map(|m| ((m.part, tier_ref), t.id));
            self.arriving.extend(brings);
        }
        let waits = !leaders.is_empty();
        if waits {
            for leader in &leaders {
                self.followers.entry(*leader).or_default().push(t.id);
            }
            self.waiting.insert(t.id, (leaders, action.clone()));
        }
        waits
    }

    /// Whether a transfer reads what will not come.
    pub(crate) fn is_broken(&self, t: &Transfer) -> bool {
        t.parts.iter().any(|m| match m.from {
            Place::Node(tier_ref) => self.untold.contains_key(&(m.part, tier_ref)),
            _ => false,
        })
    }

    /// The engine knows that a transfer has failed.
    pub(crate) fn acknowledge_failure(&mut self, id: TransferId) {
        self.untold.retain(|_, of| *of != id);
    }

    pub(crate) fn is_waiting(&self, id: TransferId) -> bool {
        self.waiting.contains_key(&id) || self.free.contains_key(&id)
    }

    /// A transfer has begun on its node: the replica can be read there.
    pub(crate) fn begun(&mut self, id: TransferId) {
        self.begun.insert(id);
        self.release(id);
    }

    /// A transfer is over; if it was done, those that wait for it find the replica whole. Else they are given back: there
    /// is nothing to follow.
    pub(crate) fn ended(&mut self, t: &Transfer, done: bool) -> Vec<TransferId> {
        if let Place::Node(tier_ref) = t.to {
            for m in &t.parts {
                let name = (m.part, tier_ref);
                if self.arriving.get(&name) == Some(&t.id) {
                    self.arriving.remove(&name);
                }
                if !done {
                    self.untold.insert(name, t.id);
                }
            }
        }
        self.begun.remove(&t.id);
        self.waiting.remove(&t.id);
        self.free.remove(&t.id);
        if done {
            self.release(t.id);
            return Vec::new();
        }
        self.followers.remove(&t.id).unwrap_or_default()
    }

    fn release(&mut self, leader: TransferId) {
        for id in self.followers.remove(&leader).unwrap_or_default() {
            let Some((leaders, _)) = self.waiting.get_mut(&id) else {
                continue;
            };
            leaders.remove(&leader);
            if leaders.is_empty()
                && let Some((_, action)) = self.waiting.remove(&id)
            {
                self.free.insert(id, action);
            }
        }
    }

    /// The next follower to hand out.
    pub(crate) fn next(&mut self) -> Option<(TransferId, Action)> {
        self.free.pop_first()
    }
}
