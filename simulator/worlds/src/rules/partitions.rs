//! Partitions of steps: they have their space, kept ones are where all their steps run, and go when nobody needs them.

use super::account::{RunAccount, WorkflowPartition};
use super::{RuleViolation, rule};
use std::collections::BTreeSet;
use tarn_types::action::AttemptSpec;
use tarn_types::id::{InstanceId, NodeId, PartitionId, TierId, TierRef};
use tarn_types::part::StoreKey;
use tarn_types::workflow::KeepPartition;

impl RunAccount {
    fn partitions_of(&self, id: InstanceId) -> Vec<(PartitionId, KeepPartition)> {
        let own = self.workflow.partitions_of(id.step);
        own.map(|(id, p)| (id, p.keep)).collect()
    }

    /// Whether an instance uses a partition that is kept.
    pub(super) fn uses_kept(&self, id: InstanceId) -> bool {
        let own = self.partitions_of(id).into_iter();
        own.filter(|(_, keep)| *keep == KeepPartition::Workflow)
            .count()
            > 0
    }

    fn tier_refs_of(&self, partition: PartitionId, homes: &[TierRef]) -> Vec<TierRef> {
        let named = self.workflow.partition(partition).tier.as_ref();
        let tier_ref = |home: &TierRef| {
            let tiers = &self.cluster.node(home.node).tiers;
            let own = tiers.iter().position(|t| Some(&t.name) == named);
            let tier = own.map_or(home.tier, |t| TierId(t as u32));
            TierRef { tier, ..*home }
        };
        homes.iter().map(tier_ref).collect()
    }

    /// Bytes that partitions take on a tier.
    pub(super) fn partitions_on(&self, tier_ref: TierRef) -> u64 {
        let takes = |id: PartitionId, tier_refs: &[TierRef]| {
            let here = tier_refs.iter().filter(|s| **s == tier_ref).count() as u64;
            here * self.workflow.partition(id).takes(tier_refs.len())
        };
        let kept = self.kept.iter().map(|(id, k)| takes(*id, &k.tier_refs));
        let own = self.placed.iter().flat_map(|(id, placed)| {
            let own = self.partitions_of(*id).into_iter();
            let own = own.filter(|(_, keep)| *keep == KeepPartition::Step);
            own.map(|(p, _)| takes(p, &self.tier_refs_of(p, &placed.tier_refs)))
                .collect::<Vec<_>>()
        });
        kept.sum::<u64>() + own.sum::<u64>()
    }

    /// An instance gets a place.
    pub(super) fn place_partitions(
        &mut self,
        id: InstanceId,
        homes: &[TierRef],
    ) -> Result<(), RuleViolation> {
        let nodes: Vec<NodeId> = homes.iter().map(|s| s.node).collect();
        for (partition, keep) in self.partitions_of(id) {
            let tier_refs = self.tier_refs_of(partition, homes);
            let takes = self.workflow.partition(partition).takes(tier_refs.len());
            if keep == KeepPartition::Workflow {
                let fresh = || WorkflowPartition {
                    tier_refs: tier_refs.clone(),
                    key: None,
                };
                let kept = self.kept.entry(partition).or_insert_with(fresh);
                let there: Vec<NodeId> = kept.tier_refs.iter().map(|s| s.node).collect();
                rule(
                    "a step runs where its partitions lie",
                    there == nodes,
                    || format!("{id} on {nodes:?}, {partition} on {there:?}"),
                )?;
            }
            tier_refs
                .iter()
                .try_for_each(|s| self.within_capacity(*s, takes))?;
        }
        Ok(())
    }

    /// Drops the kept partitions that no placed instance uses and that no step has had.
    pub(super) fn drop_unused(&mut self) {
        let placed: BTreeSet<_> = self.placed.keys().map(|id| id.step).collect();
        let workflow = &self.workflow;
        self.kept.retain(|id, kept| {
            let mut steps = workflow.partition(*id).steps.iter();
            kept.key.is_some() || steps.any(|s| placed.contains(s))
        });
    }

    fn is_filled(&self, partition: PartitionId) -> bool {
        let steps = &self.workflow.partition(partition).steps;
        self.done.iter().any(|id| steps.contains(&id.step))
    }

    /// The space that was reserved for a step is still there when it begins, as far as is known.
    pub(super) fn check_start_space(&self, run: &AttemptSpec) -> Result<(), RuleViolation> {
        for tier_ref in &run.nodes {
            self.within_capacity(*tier_ref, run.reserve)?;
        }
        for exported in &run.partitions {
            let takes = self
                .workflow
                .partition(exported.partition)
                .takes(exported.tier_refs.len());
            let made = self
                .kept
                .get(&exported.partition)
                .is_some_and(|k| k.key.is_some());
            let takes = if made { 0 } else { takes };
            let mut tier_refs = exported.tier_refs.iter();
            tier_refs.try_for_each(|s| self.within_capacity(*s, takes))?;
        }
        Ok(())
    }

    pub(super) fn has_its_partitions(&mut self, run: &AttemptSpec) -> Result<(), RuleViolation> {
        let wants = self.partitions_of(run.instance);
        let has = run.partitions.iter().map(|l| l.partition);
        let same = has.eq(wants.iter().map(|(id, _)| *id));
        rule("a step has its partitions", same, || {
            format!("{:?}", run.partitions)
        })?;
        for (exported, (partition, keep)) in run.partitions.iter().zip(wants) {
            let filled = self.is_filled(partition) && keep == KeepPartition::Workflow;
            rule(
                "what is filled is not made anew",
                filled == exported.filled,
                || format!("{exported:?}"),
            )?;
            let tier_refs = match keep {
                KeepPartition::Step => self.tier_refs_of(partition, &run.nodes),
                KeepPartition::Workflow => {
                    let kept = self.kept.get_mut(&partition);
                    let Some(kept) = kept else {
                        return Err(("what is kept is there", partition.to_string()));
                    };
                    let key = kept.key.get_or_insert_with(|| exported.key.clone());
                    rule("what is kept stays", *key == exported.key, || {
                        format!("{key:?} and {exported:?}")
                    })?;
                    kept.tier_refs.clone()
                }
            };
            rule(
                "a partition lies where it has its room",
                tier_refs == exported.tier_refs,
                || format!("{exported:?} and {tier_refs:?}"),
            )?;
        }
        Ok(())
    }

    pub(super) fn discard(
        &mut self,
        partition: PartitionId,
        key: &StoreKey,
    ) -> Result<(), RuleViolation> {
        let kept = self.kept.remove(&partition);
        let there = kept.as_ref().is_some_and(|k| k.key.as_ref() == Some(key));
        rule("what is removed is there", there, || partition.to_string())?;
        let steps = &self.workflow.partition(partition).steps;
        let used = self.placed.keys().find(|id| steps.contains(&id.step));
        rule(
            "a partition that is used is not removed",
            used.is_none(),
            || format!("{partition} and {used:?}"),
        )?;
        let tier_refs = kept.map_or_else(Vec::new, |k| k.tier_refs);
        let lost = tier_refs.iter().any(|s| self.lost.contains(&s.node));
        let over = steps.iter().all(|s| {
            let done = self.done.iter().filter(|id| id.step == *s).count();
            self.items(*s).is_some_and(|items| items.len() == done)
        });
        let vain = lost && !self.is_filled(partition);
        rule(
            "a partition that is needed is not removed",
            over || vain,
            || partition.to_string(),
        )
    }
}
