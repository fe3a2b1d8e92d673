//! Staging: what an assigned instance lacks is brought to its nodes, each part from its best source.

use super::Decide;
use super::room::Space;
use super::sources::is_lost;
use crate::data::ReplicaState;
use std::collections::BTreeMap;
use tarn_base::action::Do;
use tarn_base::id::{InstanceId, Spot};
use tarn_base::part::{PartMove, PartRef, Place, TransferKind, Verify};
use tarn_base::reason::Reason;

/// Parts that go the same way together.
type Groups = BTreeMap<(u32, u32, Spot, TransferKind, Place), Vec<PartMove>>;

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
        let mut missing: Vec<(PartRef, Spot)> = Vec::new();
        for (position, spot) in placed.spots.iter().enumerate() {
            for name in instance
                .needs
                .iter()
                .filter_map(|u| u.get(position))
                .flatten()
            {
                let Some(part) = self.state.data.part(*name) else {
                    continue;
                };
                let target = self.state.target(*spot, name.data);
                if self.state.in_place(*spot, *name, part).is_none() && !part.incoming(target) {
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
            (is_lost(part) || self.is_remade(*name)).then_some((name.data, part))
        });
        if let Some((data, part)) = lost {
            let why = match part.replicas.values().any(|r| r.state == ReplicaState::Bad) {
                true => Reason::Damaged,
                false => Reason::OutputLost { data },
            };
            return self.emit(Do::Unassign { instance: id }, why);
        }
        self.bring(id, missing);
    }

    fn bring(&mut self, id: InstanceId, missing: Vec<(PartRef, Spot)>) {
        let mut groups = Groups::new();
        let mut want: BTreeMap<Spot, u64> = BTreeMap::new();
        for (name, target) in missing {
            let Some(part) = self.state.data.part(name) else {
                continue;
            };
            // A replica that is on its way out must be gone before the next one comes.
            if part.replicas.contains_key(&Place::Node(target)) {
                continue;
            }
            let slower = self.state.usable_on(target.node, part);
            let (from, kind) = match slower {
                Some(s) => (Place::Node(s), TransferKind::Promote),
                None => match self.state.best_source(target.node, part) {
                    Some(source) => source,
                    None => continue,
                },
            };
            *want.entry(target).or_default() += part.info.stored;
            let key = (name.data.0, name.version, target, kind, from.clone());
            groups
                .entry(key)
                .or_default()
                .push(PartMove { part: name, from });
        }
        for (spot, bytes) in want {
            if self.make_room(spot, bytes, id) != Space::Free {
                return;
            }
        }
        let urgency = self.state.steps.ranks[id.step.at()];
        for ((_, _, target, kind, from), parts) in groups {
            let why = match (kind, &from) {
                (TransferKind::Promote, _) => Reason::PromoteForUse { instance: id },
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
