//! When a tier is full: wait for running instances, evict unneeded replicas, demote to a slower tier, drain to the
//! external store; in this order, each with its reason.

use super::Decide;
use crate::data::{PartReplicaState, TrackedPart};
use std::collections::BTreeSet;
use tarn_types::action::Subject;
use tarn_types::id::{InstanceId, TierId, TierRef};
use tarn_types::part::{PartMove, PartRef, Place, TransferKind, Verify};
use tarn_types::policy::DataMode;
use tarn_types::reason::Reason;
use tarn_types::units::Bytes;
use tarn_types::workflow::Keep;

/// A replica that could leave a full tier.
struct Movable {
    name: PartRef,
    stored: u64,
    /// Another readable replica exists where the promise to keep it holds.
    redundant: bool,
    /// How urgently it is needed next; the least urgent leaves first.
    urgency: u64,
}

/// Whether a tier has space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TierSpaceOutlook {
    /// There is.
    Free,
    /// Something leaves, or may leave once running instances have ended.
    Later,
    /// Not by itself: nothing is under way, and nothing there may leave.
    Stuck,
}

impl Decide<'_> {
    /// Whether `want` bytes are free on a tier. If not, begins to free space for `id` there.
    pub(super) fn ensure_space(
        &mut self,
        tier_ref: TierRef,
        want: u64,
        id: InstanceId,
    ) -> TierSpaceOutlook {
        let free = self.state.ledger.nodes.free_in(tier_ref);
        if free >= want {
            return TierSpaceOutlook::Free;
        }
        self.short_of_space = true;
        let lack = want - free;
        let more = lack.saturating_sub(self.leaving_from(tier_ref));
        self.clear_cache(
            tier_ref,
            more,
            &Reason::EvictForSpace {
                tier_ref,
                want,
                free,
            },
        );
        let coming = self.will_free(tier_ref, id);
        if coming >= lack {
            let why = self.pending_space_reason(tier_ref, want, free);
            let why = why.unwrap_or(Reason::WaitForSpace {
                tier_ref,
                want,
                free,
            });
            self.note(Subject::Instance(id), why);
            return TierSpaceOutlook::Later;
        }
        let mut lack = lack - coming;
        let movable = self.movable(tier_ref, id);
        for m in movable.iter().filter(|m| m.redundant) {
            if lack == 0 {
                return TierSpaceOutlook::Later;
            }
            self.evict(
                m.name,
                &Place::Node(tier_ref),
                Reason::EvictForSpace {
                    tier_ref,
                    want,
                    free,
                },
            );
            lack = lack.saturating_sub(m.stored);
        }
        for m in movable.iter().filter(|m| !m.redundant) {
            if lack == 0 {
                return TierSpaceOutlook::Later;
            }
            if self.move_away(m, tier_ref, want, free) {
                lack = lack.saturating_sub(m.stored);
            }
        }
        match lack {
            0 => TierSpaceOutlook::Later,
            _ => self.handle_no_space(tier_ref, want, free, id),
        }
    }

    /// Nothing more can leave: running instances may still give space back; when none runs, others of the queue
    /// continue.
    fn handle_no_space(
        &mut self,
        tier_ref: TierRef,
        want: u64,
        free: u64,
        id: InstanceId,
    ) -> TierSpaceOutlook {
        let configured = self.state.start.cluster.tier(tier_ref).capacity;
        let held = configured.saturating_sub(self.state.ledger.nodes.tier(tier_ref).capacity());
        let idle = self.idle();
        let why = match (held, idle) {
            (1.., _) => Reason::WaitForOthers {
                tier_ref,
                want,
                free,
                held,
            },
            (0, false) => Reason::WaitForSpace { tier_ref, want, free },
            (0, true) => self.state.failure(format!(
                    "{} wanted on {} of {} and only {} can be freed: everything else there is needed. Enlarge the tier, \
                     add a slower one (--tier NAME=PATH:SIZE), or set `external`, so that data can be drained",
                    Bytes(want),
                    self.state.start.cluster.tier(tier_ref).name,
                    self.state.start.cluster.node(tier_ref.node).name,
                    Bytes(free)
                )),
        };
        if idle {
            self.turn.stuck.get_or_insert((id, why));
            return TierSpaceOutlook::Stuck;
        }
        self.note(Subject::Instance(id), why);
        TierSpaceOutlook::Later
    }

    /// Nothing is under way anywhere, and nothing is assigned that could be.
    pub(super) fn idle(&self) -> bool {
        self.state.steps.placed.is_empty() && self.nothing_under_way()
    }

    /// Nothing runs, moves, leaves or is being listed: no event will come by itself.
    pub(super) fn nothing_under_way(&self) -> bool {
        let s = &self.state;
        s.steps.running.is_empty()
            && s.transfers.is_empty()
            && s.listing.is_empty()
            && s.leaving == 0
            && s.rests_until <= s.now
    }

    /// That replicas are on their way off a full tier, if some are.
    fn pending_space_reason(&self, tier_ref: TierRef, want: u64, free: u64) -> Option<Reason> {
        let place = Place::Node(tier_ref);
        let moved_as = |kind| -> u64 {
            let transfers = self.state.transfers.values();
            let releasing = transfers.filter(|t| t.releases && t.transfer.kind == kind);
            let parts = releasing.flat_map(|t| &t.transfer.parts);
            let here = parts.filter(|m| m.from == place);
            let parts = here.filter_map(|m| self.state.data.part(m.part)?.replicas.get(&place));
            parts.map(|replica| replica.stored).sum()
        };
        let (demoting, draining) = (
            moved_as(TransferKind::Demote),
            moved_as(TransferKind::ExternalOut),
        );
        let evicting = self.leaving_from(tier_ref);
        (demoting + draining + evicting > 0).then_some(Reason::MakingSpace {
            tier_ref,
            want,
            free,
            evicting,
            demoting,
            draining,
        })
    }

    /// Bytes of a tier that come free by themselves: replicas that are leaving, sources of transfers that
    /// release them, and inputs whose last reader is placed here.
    fn will_free(&self, tier_ref: TierRef, except: InstanceId) -> u64 {
        let place = Place::Node(tier_ref);
        let mut names: BTreeSet<PartRef> = BTreeSet::new();
        let releasing = self.state.transfers.values().filter(|t| t.releases);
        let sources = releasing
            .flat_map(|t| &t.transfer.parts)
            .filter(|m| m.from == place);
        names.extend(sources.map(|m| m.part));
        names.extend(
            self.state
                .data
                .to_release
                .keys()
                .filter(|(_, p)| *p == place)
                .map(|(name, _)| *name),
        );
        for id in self.state.steps.on_node[tier_ref.node.at()]
            .iter()
            .filter(|id| **id != except)
        {
            let needs = self.needs_on(*id, tier_ref.node).unwrap_or_default();
            names.extend(needs.into_iter().filter(|n| self.last_reader(*n)));
        }
        let stored = |name: &PartRef| {
            let replica = self.state.data.part(*name)?.replicas.get(&place)?;
            (replica.state == PartReplicaState::Present).then_some(replica.stored)
        };
        let leaving = self.leaving_from(tier_ref);
        names.iter().filter_map(stored).sum::<u64>() + leaving
    }

    pub(super) fn leaving_from(&self, tier_ref: TierRef) -> u64 {
        if self.state.leaving == 0 {
            return 0;
        }
        let replicas = self
            .state
            .data
            .parts()
            .filter_map(|(_, part)| part.replicas.get(&Place::Node(tier_ref)));
        replicas
            .filter(|r| r.state == PartReplicaState::Leaving)
            .map(|r| r.stored)
            .sum()
    }

    /// Whether a part goes once the one instance that still reads it has ended.
    fn last_reader(&self, name: PartRef) -> bool {
        let dataset = self.state.start.workflow.dataset(name.data);
        let readers = self.state.data.part(name).map_or(0, |p| p.readers);
        readers == 1
            && !self.state.is_awaited(name)
            && dataset.keep == Keep::UntilConsumed
            && !self.state.awaits_delivery(name)
    }

    /// The parts that could leave a tier, least urgently needed first, without those that instances placed there read.
    fn movable(&self, tier_ref: TierRef, id: InstanceId) -> Vec<Movable> {
        let mut needed = self.needed_on(tier_ref.node);
        needed.extend(
            self.state
                .steps
                .instance(id)
                .map(|i| i.parts())
                .unwrap_or_default(),
        );
        let place = Place::Node(tier_ref);
        let here = self.state.data.parts().filter_map(|(name, part)| {
            let replica = part.replicas.get(&place)?;
            let free = replica.state == PartReplicaState::Present
                && replica.pins == 0
                && !needed.contains(&name);
            free.then(|| Movable {
                name,
                stored: replica.stored,
                redundant: self.redundant(name, part, tier_ref),
                urgency: self.urgency(name, part),
            })
        });
        let mut all: Vec<_> = here.collect();
        all.sort_by_key(|m| (m.urgency, std::cmp::Reverse(m.stored), m.name));
        all
    }

    fn redundant(&self, name: PartRef, part: &TrackedPart, tier_ref: TierRef) -> bool {
        let keep = self.state.start.workflow.dataset(name.data).keep;
        let mut others = part.present().filter(|(p, _)| **p != Place::Node(tier_ref));
        match (keep, self.state.data_mode()) {
            // Without `DataMode::Keep`, data that is to be kept is kept outside.
            (Keep::UntilConsumed, _) | (_, DataMode::StageThrough | DataMode::Cache) => {
                others.next().is_some()
            }
            _ => others.any(|(p, _)| matches!(p, Place::Node(_))),
        }
    }

    fn urgency(&self, name: PartRef, part: &TrackedPart) -> u64 {
        if part.readers == 0 && !self.state.is_awaited(name) {
            return 0;
        }
        let steps = (0usize..).zip(&self.state.start.workflow.steps);
        let readers = steps.filter(|(i, s)| {
            !self.state.steps.all[*i].complete()
                && crate::data::reads(s).contains(&(name.data, name.version))
        });
        readers
            .map(|(i, _)| self.state.steps.ranks[i])
            .max()
            .unwrap_or(0)
    }

    /// Moves a replica to the fastest slower tier with space for it, or else to the external store, if there is one. A
    /// replica whose target has the part already only goes.
    fn move_away(&mut self, m: &Movable, tier_ref: TierRef, want: u64, free: u64) -> bool {
        let replicas = self.state.data.part(m.name).map(|p| &p.replicas);
        let state_at = |p: &Place| replicas.and_then(|r| r.get(p)).map(|r| r.state);
        let drained = state_at(&Place::Drained);
        let tiers = self.state.start.cluster.node(tier_ref.node).tiers.len() as u32;
        let mut slower = ((tier_ref.tier.0 + 1)..tiers).map(|t| TierRef {
            node: tier_ref.node,
            tier: TierId(t),
        });
        let roomy = slower.find(|s| {
            let there = state_at(&Place::Node(*s)).is_some();
            !there && self.free_but_for_cache(*s) >= m.stored
        });
        if let Some(to) = roomy
            && !self.is_free(to, m.stored)
        {
            return true;
        }
        let (to, kind, why) = match roomy {
            Some(to) => (
                Place::Node(to),
                TransferKind::Demote,
                Reason::DemoteForSpace {
                    tier_ref,
                    want,
                    free,
                },
            ),
            None if drained == Some(PartReplicaState::Present) => {
                let why = Reason::EvictForSpace {
                    tier_ref,
                    want,
                    free,
                };
                self.evict(m.name, &Place::Node(tier_ref), why);
                return true;
            }
            None if self.state.start.workflow.external.is_some() && drained.is_none() => (
                Place::Drained,
                TransferKind::ExternalOut,
                Reason::DrainForSpace {
                    tier_ref,
                    want,
                    free,
                },
            ),
            None => return false,
        };
        let from = Place::Node(tier_ref);
        let parts = vec![PartMove { part: m.name, from }];
        self.transfer(parts, to, kind, Verify::Readback, u64::MAX, why);
        true
    }
}
