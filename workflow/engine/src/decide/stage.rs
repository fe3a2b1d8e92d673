//! Staging: brings the parts that an assigned instance lacks to its nodes, each from its best source.

use super::Decide;
use super::space::TierSpaceOutlook;
use crate::data::PartReplicaState;
use std::collections::BTreeMap;
use tarn_types::action::Do;
use tarn_types::id::{InstanceId, TierRef};
use tarn_types::part::{PartMove, PartRef, Place, TransferKind, Verify};
use tarn_types::reason::Reason;

/// Parts that go the same way together.
type PartMoveGroups = BTreeMap<(u32, u32, TransferKind, Place), Vec<PartMove>>;

impl Decide<'_> {
    /// Looks after every assigned instance: a transfer may have failed, a replica may be lost.
    pub(super) fn stage(&mut self) {
        let steps = &self.state.steps;
        let assigned: Vec<_> = steps
            .placed
            .iter()
            .filter(|id| !steps.running.contains(id))
            .copied()
            .collect();
        for id in assigned {
            self.stage_instance(id);
        }
    }

    pub(super) fn stage_instance(&mut self, id: InstanceId) {
        let Some(instance) = self.state.steps.instance(id) else {
            return;
        };
        let Some(placed) = instance.placed() else {
            return;
        };
        let mut missing: Vec<(PartRef, TierRef)> = Vec::new();
        for (position, tier_ref) in placed.tier_refs.iter().enumerate() {
            for name in instance
                .needs
                .iter()
                .filter_map(|u| u.get(position))
                .flatten()
            {
                let Some(part) = self.state.data.part(*name) else {
                    continue;
                };
                let target = self.state.target(*tier_ref, name.data);
                if self.state.in_place(*tier_ref, *name, part).is_none() && !part.incoming(target) {
                    missing.push((*name, target));
                }
            }
        }
        missing.sort();
        missing.dedup();
        if missing.is_empty() {
            return;
        }
        let lost = missing.iter().find_map(|(name, _)| {
            let part = self.state.data.part(*name)?;
            (part.is_lost() || self.is_remade(*name)).then_some((name.data, part))
        });
        if let Some((data, part)) = lost {
            let why = match part
                .replicas
                .values()
                .any(|r| r.state == PartReplicaState::Bad)
            {
                true => Reason::Damaged,
                false => Reason::OutputLost { data },
            };
            return self.emit(Do::Unassign { instance: id }, why);
        }
        self.bring(id, missing);
    }

    fn is_arriving(&self, parts: &[PartMove], at: &Place) -> bool {
        parts.iter().any(|m| {
            let part = self.state.data.part(m.part);
            part.is_some_and(|p| p.present().all(|(place, _)| place != at))
        })
    }

    fn bring(&mut self, id: InstanceId, missing: Vec<(PartRef, TierRef)>) {
        let mut wanted: BTreeMap<TierRef, (u64, Vec<PartRef>)> = BTreeMap::new();
        for (name, target) in missing {
            let Some(part) = self.state.data.part(name) else {
                continue;
            };
            if part.rests_until > self.state.now {
                let at = part.rests_until;
                self.look_again(at);
                continue;
            }
            // A replica that is on its way out must be gone before the next one comes; without a source there is no next one.
            if !part.replicas.contains_key(&Place::Node(target))
                && self.state.source_for(target, part).is_some()
            {
                let wanted = wanted.entry(target).or_default();
                wanted.0 += part.info.stored;
                wanted.1.push(name);
            }
        }
        for (tier_ref, (bytes, _)) in &wanted {
            if self.ensure_space(*tier_ref, *bytes, id) != TierSpaceOutlook::Free {
                return;
            }
        }
        // Node by node: a part on its way to one is a source for the next.
        for (target, (_, names)) in wanted {
            self.bring_to(target, names, id);
        }
    }

    fn bring_to(&mut self, target: TierRef, names: Vec<PartRef>, id: InstanceId) {
        let mut groups = PartMoveGroups::new();
        for name in names {
            let part = self.state.data.part(name);
            let Some((from, kind)) = part.and_then(|p| self.state.source_for(target, p)) else {
                continue;
            };
            let key = (name.data.0, name.version, kind, from.clone());
            groups
                .entry(key)
                .or_default()
                .push(PartMove { part: name, from });
        }
        let urgency = self.state.steps.ranks[id.step.at()];
        for ((_, _, kind, from), parts) in groups {
            let why = match (kind, &from) {
                (TransferKind::Promote, _) => Reason::PromoteForUse { instance: id },
                (_, Place::Node(s)) if self.is_arriving(&parts, &from) => Reason::FollowPeer {
                    instance: id,
                    from: s.node,
                },
                (_, Place::Node(s)) => Reason::FetchPeer {
                    instance: id,
                    from: s.node,
                },
                _ => Reason::ReadExternal { instance: id },
            };
            self.transfer(parts, Place::Node(target), kind, Verify::Copy, urgency, why);
        }
    }
}
