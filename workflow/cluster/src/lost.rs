//! Nodes that are lost and come back. The engine gets the loss, then the end of all that was under way with the node, then
//! perhaps its return: docs/internals/cluster.md, "A node that is lost".

use crate::dispatch::{ActionPerformer, DispatchedTransfer, nodes_of, on};
use crate::event_queue::NodeEvent;
use crate::link::ReachableNode;
use crate::parts::Knows;
use crate::returning::{PriorReplicaOffer, Return, Returned, place_of};
use crate::world::{AllocationWorld, NodeState};
use std::collections::BTreeSet;
use std::sync::Arc;
use tarn_proto::node::NodeCommand;
use tarn_types::action::{Action, Do};
use tarn_types::event::{Event, IntactReplica};
use tarn_types::id::{NodeId, TierId};
use tarn_types::reason::Reason;

impl AllocationWorld {
    /// Gives a node up. If it could be used until now, the engine gets an event, and all that it took part in ends.
    pub(crate) fn lose(&mut self, n: NodeId, why: String) {
        let Some(node) = self.node_mut(n) else { return };
        let was_up = node.is_up();
        if !was_up && node.connection.is_none() {
            return;
        }
        node.session += 1;
        node.connection = None;
        node.knows = Knows::new();
        node.node_state = NodeState::lost();
        let session = node.session;
        self.reconnect(n, session);
        if !was_up {
            return;
        }
        self.progress.elsewhere(n, Vec::new(), Vec::new());
        self.queue_engine_event(Event::NodeLost { node: n, why }, vec![n]);
        self.end_what_it_performs(n);
        self.send_command_to_others(Some(n), &NodeCommand::NodeLost(n));
        self.stop_what_it_takes_part_in(n);
    }

    fn end_what_it_performs(&mut self, n: NodeId) {
        // For the engine a lost node holds nothing: nothing has to be removed there.
        self.under_way
            .evicting
            .retain(|(_, at), _| on(at) != Some(n));
        let moving = self.under_way.moving.values();
        // A transfer that nobody has begun ends with any of its nodes.
        let unbegun = |m: &DispatchedTransfer| {
            self.is_waiting(&m.order) && nodes_of(&m.order).any(|of| of == n)
        };
        let performed = moving.filter(|m| m.by == ActionPerformer::Node(n) || unbegun(m));
        let performed = performed.map(|m| m.order.id);
        for id in performed.collect::<Vec<_>>() {
            if let Some(moving) = self.under_way.moving.remove(&id) {
                let event = self.transfer_lost(&moving.order, n);
                self.end_transfer(&moving.order, event);
            }
        }
        let running = self.under_way.running.iter();
        let performed = running.filter(|(_, r)| r.nodes.first() == Some(&n));
        let performed: Vec<_> = performed.map(|(id, _)| *id).collect();
        for id in performed {
            if let Some(running) = self.under_way.running.remove(&id) {
                let event = self.attempt_lost(id, n);
                self.queue_engine_event(event, running.nodes);
            }
        }
    }

    /// Orders the other nodes to end the transfers and attempts in which it takes part; these last until a node reports their
    /// end.
    fn stop_what_it_takes_part_in(&mut self, n: NodeId) {
        let mut orders = Vec::new();
        for (id, moving) in &mut self.under_way.moving {
            if let ActionPerformer::Node(by) = moving.by
                && nodes_of(&moving.order).any(|o| o == n)
            {
                moving.cut.get_or_insert(n);
                orders.push((by, Do::Abandon { id: *id }));
            }
        }
        for (&(instance, attempt), running) in &mut self.under_way.running {
            if let Some(by) = running.nodes.first().copied()
                && running.nodes.contains(&n)
            {
                running.cut.get_or_insert(n);
                orders.push((by, Do::Stop { instance, attempt }));
            }
        }
        for (by, what) in orders {
            let why = Reason::NodeLost { node: n };
            self.send_command(by, NodeCommand::Do(Action { what, why }));
        }
    }

    /// Tries to reach a lost node again for as long as the run lasts.
    fn reconnect(&self, n: NodeId, session: u64) {
        let (relink, event_queue) = (
            Arc::clone(&self.relink),
            self.node_table.event_queue.clone(),
        );
        let (retry, thread) = (self.retry, std::thread::Builder::new());
        let thread = thread.name(format!("tarn-again-{n}"));
        let tries = move || {
            while !event_queue.closed_within(retry) {
                if let Some(linked) = relink(n, session) {
                    let link = Arc::clone(&linked.link);
                    if !event_queue.put(NodeEvent::Linked(n, session, linked)) {
                        link.end();
                    }
                    return;
                }
            }
        };
        // Without the thread the node stays lost, which a run survives.
        let _ = thread.spawn(tries);
    }

    /// A lost node has a session again: it is made ready.
    pub(crate) fn make_ready(&mut self, n: NodeId, linked: ReachableNode) {
        let data = linked.data.clone();
        self.node_config.peers.insert(n, data.clone());
        let Some(session) = self.node(n).map(|node| node.session) else {
            return;
        };
        let connection = match self.connection(n, session, linked) {
            Ok(connection) => connection,
            Err(e) => return self.lose(n, e.0),
        };
        let others = (0..).map(NodeId).zip(&self.node_table.nodes);
        let lost = others.filter(|(o, node)| *o != n && !node.is_up());
        let lost = lost.map(|(o, _)| o).collect();
        let node_config = self.opening_of(n);
        let (protected, prior) = (self.protected.clone(), &self.node_config.prior);
        let Some(node) = self.node_table.nodes.get_mut(n.at()) else {
            return;
        };
        node.address = data;
        let held = node
            .holds
            .iter()
            .map(|((part, tier, key), stored)| IntactReplica {
                part: *part,
                key: key.clone(),
                tier: *tier,
                stored: *stored,
            });
        let held: Vec<_> = held.collect();
        let parts = self
            .parts
            .take_unsent_parts(held.iter().map(|w| w.part), &mut node.knows);
        let ours: BTreeSet<_> = held
            .iter()
            .map(|w| (w.key.clone(), place_of(n, w.tier)))
            .collect();
        let offer = self.offered.as_ref().map(|offered| {
            let there = offered.iter().filter(|(_, place)| on(place) == Some(n));
            let there = there.filter(|o| !ours.contains(o)).cloned().collect();
            let prior = prior.clone();
            PriorReplicaOffer { prior, there }
        });
        let with = Return {
            node_config,
            lost,
            parts,
            held,
            offer,
            protected,
            pinned: self.pinned.clone(),
        };
        let begun = connection.make_ready(Box::new(with));
        node.connection = Some(connection);
        if !begun {
            self.lose(n, "too many messages to it are not yet sent".into());
        }
    }

    pub(crate) fn record_return(&mut self, n: NodeId, returned: Returned) {
        let Some(node) = self.node_mut(n) else { return };
        let replica = |w: &IntactReplica| ((w.part, w.tier, w.key.clone()), w.stored);
        let stored = returned.whole.iter().map(replica).collect();
        if let NodeState::Lost { back, .. } = &mut node.node_state {
            *back = Some(returned);
            let before = std::mem::replace(&mut node.holds, stored);
            for (part, _, key) in before.into_keys() {
                self.drop_key_if_gone(part, &key);
            }
        }
    }

    /// A node that can be used again, once the engine has the events of its loss and of the end of all that it had to do with.
    pub(crate) fn take_returned_node(&mut self) -> Option<Event> {
        let ready = |n: &NodeId| {
            let node = self.node(*n);
            let back = node.is_some_and(|node| {
                matches!(node.node_state, NodeState::Lost { back: Some(_), .. })
            });
            back && !self.under_way.involves(*n) && !self.ready.iter().any(|r| r.nodes.contains(n))
        };
        let n = (0..self.node_table.nodes.len() as u32)
            .map(NodeId)
            .find(ready)?;
        let node = self.node_mut(n)?;
        let address = node.address.clone();
        let node_state = std::mem::replace(&mut node.node_state, NodeState::Up);
        let NodeState::Lost {
            back: Some(Returned { whole }),
            capacities: reported,
        } = node_state
        else {
            return None;
        };
        let tiers = &self.node_config.cluster.nodes.get(n.at())?.tiers;
        let capacities = (0..).map(TierId).zip(tiers);
        let capacities =
            capacities.map(|(t, tier)| reported.get(&t).copied().unwrap_or(tier.capacity));
        let capacities = capacities.collect();
        self.send_command_to_others(Some(n), &NodeCommand::NodeBack(n, address));
        Some(Event::NodeBack {
            node: n,
            capacities,
            whole,
        })
    }
}
