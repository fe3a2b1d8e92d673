//! Nodes that are lost and come back, links that slow down.

use crate::faults::mix;
use crate::model::{Keeps, LostNodeReplicas, Outage, ScheduledEvent, failure};
use crate::simulation::Simulation;
use tarn_types::action::AttemptSpec;
use tarn_types::event::{Event, RunErrorKind};
use tarn_types::id::NodeId;
use tarn_types::part::{Place, Transfer};
use tarn_types::units::{Nanos, SECOND};

/// The other nodes of an attempt whose node is lost are rid of it after at most so long.
const STOPPED_WITHIN: Nanos = 3 * SECOND;

impl Simulation {
    /// Whether the node is lost now.
    pub fn is_lost(&self, node: NodeId) -> bool {
        self.lost.contains_key(&node)
    }

    pub(crate) fn lose(&mut self, node: NodeId, outage: Outage) {
        if self.is_lost(node) || node.at() >= self.cluster.nodes.len() {
            return;
        }
        self.shaken.insert(node);
        self.happen(Event::NodeLost {
            node,
            why: "as the fault plan wants it".into(),
        });
        let now = self.now;
        let mut ends = Vec::new();
        for (id, running) in &mut self.running {
            if running.run.nodes.iter().any(|s| s.node == node) && !running.lost {
                running.lost = true;
                let of = [now, id.step.0.into(), id.index.into()];
                let several = u64::from(running.run.nodes.len() > 1);
                let after = mix(0, &of) % STOPPED_WITHIN * several;
                ends.push((now + after, ScheduledEvent::End(*id, running.run.attempt)));
            }
        }
        ends.into_iter()
            .for_each(|(at, end)| self.schedule(at, end));
        let moving = self.moving.values().map(|m| &m.order);
        let cut = moving.filter(|order| places(order).any(|p| on(p, node)));
        for id in cut.map(|order| order.id).collect::<Vec<_>>() {
            self.network.abandon(&self.cluster, id);
            if let Some(moving) = self.moving.remove(&id) {
                self.give_space_back(&moving);
            }
            let failure = failure(
                RunErrorKind::NodeLost,
                format!("{id}: a node of it was lost"),
            );
            self.transfer_failed(id, failure, None);
        }
        self.look_at_followers();
        let kept = self.store.take_node(node);
        self.lost.insert(node, LostNodeReplicas(kept));
        if let Some(lasts) = outage.lasts {
            self.schedule(
                now.saturating_add(lasts),
                ScheduledEvent::Back(node, outage.keeps),
            );
        }
    }

    pub(crate) fn back(&mut self, node: NodeId, keeps: Keeps) {
        let running = self.running.iter().filter(|(_, r)| r.lost);
        let here = running.filter(|(_, r)| r.run.nodes.iter().any(|s| s.node == node));
        let ends: Vec<_> = here.map(|(id, r)| (*id, r.run.attempt)).collect();
        ends.into_iter()
            .for_each(|(id, attempt)| self.ended(id, attempt));
        let Some(LostNodeReplicas(mut whole)) = self.lost.remove(&node) else {
            return;
        };
        let mut nth = 0;
        whole.retain(|_| {
            nth += 1;
            match keeps {
                Keeps::All => true,
                Keeps::Nothing => false,
                Keeps::Half(seed) => mix(seed, &[nth]).is_multiple_of(2),
            }
        });
        let capacities = self.store.give_node(node, &whole);
        self.happen(Event::NodeBack {
            node,
            capacities,
            whole,
        });
    }

    /// Changes the rates of the links; links without a limit stay so.
    pub(crate) fn links(&mut self, change: impl Fn(u64) -> u64) {
        for link in [&mut self.cluster.external, &mut self.cluster.peer] {
            for rate in [&mut link.read, &mut link.write] {
                if *rate > 0 {
                    *rate = change(*rate);
                }
            }
        }
        self.network.rates_changed(&self.cluster);
    }

    /// Whether a transfer cannot be done because a node of it is lost, or was since it was decided.
    pub(crate) fn cannot_move(&self, order: &Transfer) -> bool {
        let lost = |p: &Place| matches!(p, Place::Node(s) if self.is_lost(s.node));
        let shaken = |p: &Place| matches!(p, Place::Node(s) if self.shaken.contains(&s.node));
        let mut parts = order.parts.iter();
        places(order).any(lost)
            || parts.any(|m| {
                shaken(&m.from) && self.has_no_source(m)
                    || shaken(&order.to) && self.store.holds(m.part, &order.to)
            })
    }

    /// Whether an attempt cannot be begun because a node of it is lost, or was since it was decided.
    pub(crate) fn cannot_run(&self, run: &AttemptSpec) -> bool {
        let mut held = run.views.iter().flatten().flatten();
        run.nodes.iter().any(|s| self.is_lost(s.node))
            || held.any(|h| {
                let there = self.store.holds(h.part, &Place::Node(h.tier_ref))
                    && self.store.info(h.part).is_some_and(|i| i.key == h.key);
                self.shaken.contains(&h.tier_ref.node) && !there
            })
    }
}

fn places(order: &Transfer) -> impl Iterator<Item = &Place> {
    order.parts.iter().map(|m| &m.from).chain([&order.to])
}

fn on(place: &Place, node: NodeId) -> bool {
    matches!(place, Place::Node(s) if s.node == node)
}
