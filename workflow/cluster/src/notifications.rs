//! Events of nodes and of home, and those that the engine gets.

use crate::dispatch::{ActionPerformer, DispatchedTransfer, PendingEngineEvent, on};
use crate::error::ENDING;
use crate::orders::failed;
use crate::parts::made;
use crate::world::{AllocatedNode, AllocationWorld, NodeState};
use tarn_proto::node::{NodeCommand, NodeNotification};
use tarn_types::event::{AttemptOutcome, Event, Imaged, Output, RunError, RunErrorKind};
use tarn_types::hash::Hash;
use tarn_types::id::{InstanceId, NodeId, TierId, TierRef, TransferId};
use tarn_types::nodes::AttemptId;
use tarn_types::part::{PartRef, Place, StoreKey};

/// SIGHUP: a terminal that closes may send several.
const HANG_UP: i32 = 1;
/// SIGTERM.
const TERMINATE: i32 = 15;

impl AllocationWorld {
    pub(crate) fn handle_notification(&mut self, n: NodeId, notification: NodeNotification) {
        match notification {
            NodeNotification::Event(event) => self.handle_node_event(n, event),
            // Whether it has to do with the attempt, the other one knows.
            NodeNotification::Undelivered { to, step, why } => {
                if self.is_up(n) && self.is_up(to) && n != to {
                    let from = n;
                    self.send_command(to, NodeCommand::Undelivered { from, step, why });
                }
            }
            NodeNotification::Progress { transfers, steps } => {
                if self.is_up(n) {
                    self.progress.elsewhere(n, transfers, steps);
                }
            }
            NodeNotification::Begun(id) => {
                if self.performs(n, id) {
                    self.chains.begun(id);
                }
            }
            NodeNotification::Ending => self.handle_ending(n),
            NodeNotification::Broken(why) => {
                self.lose(n, format!("it cannot run steps any more: {why}"))
            }
        }
    }

    /// The end of a job ends all its processes, here and on the nodes, by a signal first: no node is lost by accident.
    fn handle_ending(&mut self, n: NodeId) {
        if !std::mem::replace(&mut self.interrupted, true) {
            self.queue_engine_event(Event::Interrupted { signal: TERMINATE }, Vec::new());
        }
        self.lose(n, ENDING.into());
    }

    /// Whether a node can know what has gone on another: on itself, or on one that takes part in a step that it leads.
    fn speaks_for(&self, n: NodeId, of: NodeId) -> bool {
        let mut running = self.under_way.running.values();
        n == of || running.any(|r| r.nodes.first() == Some(&n) && r.nodes.contains(&of))
    }

    fn performs(&self, n: NodeId, id: TransferId) -> bool {
        let moving = self.under_way.moving.get(&id);
        moving.is_some_and(|m| m.by == ActionPerformer::Node(n))
    }

    /// Handles an event of a node. Events about actions that the node does not perform are ignored.
    fn handle_node_event(&mut self, n: NodeId, event: Event) {
        if let Event::Capacity { tier_ref, bytes } = &event
            && tier_ref.node == n
            && let Some(NodeState::Lost { capacities, .. }) =
                self.node_mut(n).map(|node| &mut node.node_state)
        {
            capacities.insert(tier_ref.tier, *bytes);
            return;
        }
        if !self.is_up(n) {
            return;
        }
        match event {
            Event::TransferDone { id, .. } | Event::TransferFailed { id, .. } => {
                if self.performs(n, id)
                    && let Some(moving) = self.under_way.moving.remove(&id)
                {
                    self.finish_transfer(moving, event);
                }
            }
            Event::Ended {
                instance, attempt, ..
            } => self.finish_attempt(n, (instance, attempt), event),
            Event::Evicted { part, ref at } if on(at).is_some_and(|of| self.speaks_for(n, of)) => {
                let of = on(at).unwrap_or(n);
                self.record_eviction(part, at);
                self.queue_engine_event(event, vec![n, of]);
            }
            Event::Capacity { tier_ref, .. } if tier_ref.node == n => {
                self.queue_engine_event(event, vec![n])
            }
            Event::Image {
                what: Imaged::Copied { at, .. } | Imaged::NotCopied { at, .. },
                ..
            } if at.node != n => self.lose_for_invalid_message(n),
            Event::Image { .. } => self.queue_engine_event(event, vec![n]),
            _ => self.lose_for_invalid_message(n),
        }
    }

    pub(crate) fn handle_home_event(&mut self, event: Event) {
        match event {
            Event::SourceListed { data, ref parts } => {
                self.under_way.listing.remove(&data);
                for info in parts {
                    let part = PartRef {
                        data,
                        version: 0,
                        origin: 0,
                        seq: info.seq,
                    };
                    self.parts.learn(part, info.clone());
                }
            }
            Event::SourceFailed { data, .. } => drop(self.under_way.listing.remove(&data)),
            Event::TransferDone { id, .. } | Event::TransferFailed { id, .. } => {
                if let Some(moving) = self.under_way.moving.remove(&id) {
                    self.finish_transfer(moving, event);
                }
                return;
            }
            Event::Evicted { part, ref at } => self.record_eviction(part, at),
            Event::Interrupted { signal } => {
                if self.interrupted && signal != HANG_UP {
                    self.send_command_to_others(None, &NodeCommand::KillAll);
                }
                self.interrupted = true;
            }
            _ => {}
        }
        self.queue_engine_event(event, Vec::new());
    }

    pub(crate) fn queue_engine_event(&mut self, event: Event, nodes: Vec<NodeId>) {
        self.ready.push_back(PendingEngineEvent { event, nodes });
    }

    /// The end of a transfer, whoever has performed it.
    fn finish_transfer(&mut self, moving: DispatchedTransfer, mut event: Event) {
        let order = &moving.order;
        match &mut event {
            Event::TransferDone { hashes, stored, .. } => {
                self.record_arrival(&moving, hashes, stored);
                let read = order.parts.iter().any(|m| m.from == Place::Source);
                if read && moving.by != ActionPerformer::Home {
                    self.home.learned(order, moving.began);
                }
            }
            Event::TransferFailed { failure, .. } => {
                self.blame_lost_node(moving.cut, failure);
                if failure.kind == RunErrorKind::Corrupt {
                    // It may be the key that is of no use.
                    for m in &order.parts {
                        if let Some(key) = self.parts.get(m.part).map(|info| info.key.clone()) {
                            self.drop_key_if_gone(m.part, &key);
                        }
                    }
                }
            }
            _ => {}
        }
        self.end_transfer(order, event);
    }

    fn record_arrival(&mut self, moving: &DispatchedTransfer, hashes: &[Hash], stored: &[u64]) {
        for (i, m) in moving.order.parts.iter().enumerate() {
            if let Some(hash) = hashes.get(i) {
                self.parts.hashed(m.part, *hash);
            }
            if let Place::Node(tier_ref) = moving.order.to
                && let Some(info) = self.parts.get(m.part)
            {
                let bytes = stored.get(i).copied().unwrap_or(info.stored);
                let replica = (m.part, tier_ref.tier, info.key.clone());
                if let Some(node) = self.node_table.nodes.get_mut(tier_ref.node.at()) {
                    node.holds.insert(replica, bytes);
                }
            }
        }
    }

    fn finish_attempt(&mut self, n: NodeId, id: AttemptId, mut event: Event) {
        let running = &mut self.under_way.running;
        let performed = running.get(&id).and_then(|r| r.nodes.first()) == Some(&n);
        let Some(ran) = performed.then(|| running.remove(&id)).flatten() else {
            return;
        };
        if let Event::Ended { ended, .. } = &mut event {
            match ended {
                AttemptOutcome::Committed { outputs, .. } => self.record_commit(id.0, outputs),
                AttemptOutcome::Failed { failure, .. } => self.blame_lost_node(ran.cut, failure),
            }
        }
        self.queue_engine_event(event, ran.nodes);
    }

    fn record_commit(&mut self, instance: InstanceId, outputs: &[Output]) {
        let mut earlier = Vec::new();
        for output in outputs {
            for (info, tier_refs) in &output.parts {
                let part = made(output, instance, info.seq);
                let known = self.parts.get(part).filter(|known| known.key != info.key);
                earlier.extend(known.map(|known| (part, known.key.clone())));
                for TierRef { node, tier } in tier_refs {
                    if let Some(node) = self.node_table.nodes.get_mut(node.at()) {
                        let replica = (part, *tier, info.key.clone());
                        node.holds.insert(replica, info.stored);
                    }
                }
            }
        }
        self.parts.committed(instance, outputs);
        // The replica of an earlier commit, if there is one, has another key.
        for (part, key) in earlier {
            self.drop_key_if_gone(part, &key);
        }
    }

    fn record_eviction(&mut self, part: PartRef, at: &Place) {
        let place = (part, at.clone());
        let evicting = &mut self.under_way.evicting;
        let keys = evicting.get_mut(&place);
        let ordered = keys.and_then(|keys| {
            let key = keys.pop_front()?;
            Some((key, keys.is_empty()))
        });
        let key = match ordered {
            Some((key, last)) => {
                if last {
                    evicting.remove(&place);
                }
                key
            }
            // The node has made way for another run, or does not have what was to be used again.
            None => match self.parts.get(part) {
                Some(info) => info.key.clone(),
                None => return,
            },
        };
        if let Place::Node(tier_ref) = at
            && let Some(node) = self.node_table.nodes.get_mut(tier_ref.node.at())
        {
            node.holds.remove(&(part, tier_ref.tier, key.clone()));
        }
        self.drop_key_if_gone(part, &key);
    }

    /// Drops the key of an encrypted part with its last replica and the last transfer that makes one. A replica on a lost node
    /// counts: the node may come back with it.
    pub(crate) fn drop_key_if_gone(&mut self, part: PartRef, key: &StoreKey) {
        let dataset = self.node_config.workflow.data.get(part.data.at());
        if !dataset.is_some_and(|d| d.encrypt) {
            return;
        }
        let from = (part, TierId(0), StoreKey(String::new()));
        let holds = |node: &AllocatedNode| {
            let of_part = node.holds.range(from.clone()..).map(|(at, _)| at);
            let mut of_part = of_part.take_while(|(p, ..)| *p == part);
            of_part.any(|(.., k)| k == key)
        };
        let brings = |m: &DispatchedTransfer| m.order.parts.iter().any(|m| m.part == part);
        let is_there = self.node_table.nodes.iter().any(holds);
        if !is_there && !self.under_way.moving.values().any(brings) {
            self.home.gone(part, key);
        }
    }

    /// A lost node is the reason for each failure of an action on it.
    fn blame_lost_node(&self, cut: Option<NodeId>, failure: &mut RunError) {
        if let Some(lost) = cut
            && failure.kind != RunErrorKind::NodeLost
        {
            failure.kind = RunErrorKind::NodeLost;
            let name = self.name(lost);
            failure.message = format!("node {name} was lost meanwhile: {}", failure.message);
        }
    }

    pub(crate) fn fail_attempt(&mut self, n: NodeId, id: AttemptId, message: String) {
        let kind = RunErrorKind::Launch;
        self.finish_attempt(n, id, failed(id, RunError { kind, message }));
    }

    pub(crate) fn lose_for_invalid_message(&mut self, n: NodeId) {
        self.lose(n, "it sent a message that a node never sends".into());
    }
}
