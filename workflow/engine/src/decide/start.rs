//! Starting: an assigned instance runs once its inputs are there and its nodes have the cores, in the policy's
//! order. One that waits for cores keeps its nodes from those behind it, so that a large step is never
//! starved by small ones.

use super::Decide;
use crate::identity::identity;
use std::collections::BTreeSet;
use tarn_types::action::{AttemptSpec, Do, NodeReplica};
use tarn_types::compute::Demand;
use tarn_types::hash::Hash;
use tarn_types::id::{InstanceId, NodeId, TierRef};
use tarn_types::reason::Reason;

impl Decide<'_> {
    pub(super) fn start(&mut self) {
        let steps = &self.state.steps;
        let mut assigned: Vec<_> = steps
            .placed
            .iter()
            .filter(|id| !steps.running.contains(id))
            .copied()
            .collect();
        assigned.sort_by_key(|id| steps.turn(*id));
        let mut waiting: BTreeSet<NodeId> = BTreeSet::new();
        for id in assigned.iter().copied() {
            let Some(tier_refs) = self
                .state
                .steps
                .instance(id)
                .and_then(|i| i.placed())
                .map(|p| p.tier_refs.clone())
            else {
                continue;
            };
            let Some(views) = self.views(id, &tier_refs) else {
                continue;
            };
            let demand = Demand::of(self.state.start.workflow.step(id.step));
            let kept = tier_refs.iter().any(|s| waiting.contains(&s.node));
            let nodes: Vec<_> = tier_refs.iter().map(|s| s.node).collect();
            if kept || !self.state.ledger.can_run(&nodes, demand) {
                waiting.extend(nodes);
                continue;
            }
            if self.ensure_reserved_space(id, &tier_refs, &assigned) {
                self.start_one(id, tier_refs, views);
            }
        }
    }

    /// Whether the space that was set aside for an instance is still there: others may have taken a part of the tier
    /// since. Then those behind it give their places back, the last of the queue first, and at last it does itself.
    fn ensure_reserved_space(
        &mut self,
        id: InstanceId,
        tier_refs: &[TierRef],
        queue: &[InstanceId],
    ) -> bool {
        let mut behind = queue.iter().rev().copied().take_while(|other| *other != id);
        loop {
            let overdrawn = self.overdrawn(id, tier_refs);
            if overdrawn.is_empty() {
                return true;
            }
            let other = behind.find(|other| {
                let placed = self.state.steps.instance(*other).and_then(|i| i.placed());
                let waits = placed.filter(|p| p.started.is_none());
                waits.is_some_and(|p| {
                    let claims = self.claims(*other, &p.tier_refs);
                    claims.iter().any(|s| overdrawn.contains(s))
                })
            });
            let mut back = self.state.partitions.sharers(other.unwrap_or(id));
            back.insert(other.unwrap_or(id));
            let is_among = back.contains(&id);
            for instance in back {
                self.emit(Do::Unassign { instance }, Reason::SpaceGone);
            }
            if is_among {
                return false;
            }
        }
    }

    /// Tiers on which an instance has yet to take space and which have less than it reserved.
    fn overdrawn(&self, id: InstanceId, tier_refs: &[TierRef]) -> BTreeSet<TierRef> {
        let mut claims = self.claims(id, tier_refs);
        claims.retain(|s| self.state.ledger.nodes.tier(*s).is_overdrawn());
        claims
    }

    /// Tiers on which space is set aside for an instance's outputs and for its partitions.
    fn claims(&self, id: InstanceId, tier_refs: &[TierRef]) -> BTreeSet<TierRef> {
        let start = &self.state.start;
        let (w, cluster) = (&start.workflow, &start.cluster);
        let placed = self.state.steps.instance(id).and_then(|i| i.placed());
        let writes = placed.is_some_and(|p| p.reserve > 0);
        let outputs = tier_refs.iter().copied().filter(|_| writes);
        let partitions = self
            .state
            .partitions
            .to_make(w, cluster, id.step, tier_refs);
        outputs.chain(partitions).collect()
    }

    /// The replicas that make up the view of each node of an instance; `None` while something is missing.
    fn views(&self, id: InstanceId, tier_refs: &[TierRef]) -> Option<Vec<Vec<Vec<NodeReplica>>>> {
        let instance = self.state.steps.instance(id)?;
        let held = |tier_ref: TierRef, name| {
            let part = self.state.data.part(name)?;
            Some(NodeReplica {
                part: name,
                key: part.info.key.clone(),
                tier_ref: self.state.in_place(tier_ref, name, part)?,
            })
        };
        let one_use = |positions: &Vec<Vec<_>>| {
            let lists = positions.iter().zip(tier_refs);
            lists
                .map(|(list, tier_ref)| list.iter().map(|name| held(*tier_ref, *name)).collect())
                .collect()
        };
        instance.needs.iter().map(one_use).collect()
    }

    fn start_one(
        &mut self,
        id: InstanceId,
        nodes: Vec<TierRef>,
        views: Vec<Vec<Vec<NodeReplica>>>,
    ) {
        let w = &self.state.start.workflow;
        let step = w.step(id.step);
        let Some(instance) = self.state.steps.instance(id) else {
            return;
        };
        // Every part has been read by now, so the identity is known.
        let identity = identity(w, step, instance, &self.state.data).unwrap_or(Hash(0));
        let prior = self.state.prior.get(&identity).copied();
        let keeps = self.state.partitions.keeps(w, id.step);
        if let (Some(prior), false) = (prior, instance.forced || keeps) {
            self.emit(Do::Unassign { instance: id }, Reason::Unchanged);
            return self.emit(
                Do::Reuse {
                    instance: id,
                    prior,
                },
                Reason::Unchanged,
            );
        }
        let attempt = instance.attempts + 1;
        let partitions = self.state.partitions.attached_partitions(
            w,
            &self.state.start.cluster,
            (id, attempt),
            &nodes,
            |p| self.is_filled(p),
        );
        let run = AttemptSpec {
            instance: id,
            attempt,
            item: instance.item.clone(),
            nodes,
            views,
            identity,
            store: format!(
                "{}.{}.{}.{attempt}",
                step.name, id.index, self.state.start.run
            ),
            reserve: instance.placed().map_or(0, |p| p.reserve),
            partitions,
        };
        let why = match instance.failures {
            _ if !instance.kept.tier_refs.is_empty() => Reason::Restart {
                from: instance.kept.last,
                restart: instance.attempts,
                failures: instance.failures,
                retries: step.retries,
            },
            0 => Reason::Ready,
            _ => Reason::Retry {
                attempt: instance.failures.saturating_add(1),
                of: step.retries.saturating_add(1),
            },
        };
        self.emit(Do::Run(Box::new(run)), why);
    }
}
