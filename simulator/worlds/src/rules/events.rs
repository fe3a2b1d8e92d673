//! Events: the world keeps rules too.

use super::account::{ReplicaStage, RunAccount};
use super::{RuleViolation, rule};
use tarn_types::event::{
    AttemptOutcome, Event, IntactReplica, Output, of_others, pin, set_aside, version_hash,
};
use tarn_types::hash::Hash;
use tarn_types::id::{DataId, InstanceId, NodeId, TierId, TierRef, TransferId};
use tarn_types::part::{PartInfo, PartRef, Place};

impl RunAccount {
    pub(super) fn happened(&mut self, event: &Event) -> Result<(), RuleViolation> {
        self.stopped |= self.stops;
        match event {
            Event::Started(_) | Event::Image { .. } | Event::Timer => Ok(()),
            Event::SourceListed { data, parts } => {
                self.source_listed(*data, parts);
                Ok(())
            }
            Event::SourceFailed { data, .. } => {
                self.failed_lists.insert(*data);
                Ok(())
            }
            Event::TransferDone {
                id, hashes, stored, ..
            } => self.transfer_done(*id, hashes, stored),
            Event::TransferFailed { id, damaged, .. } => self.transfer_failed(*id, *damaged),
            Event::Ended {
                instance,
                attempt,
                ended,
                ..
            } => self.ended(*instance, *attempt, ended),
            Event::Evicted { part, at } => {
                self.evicted(*part, at);
                Ok(())
            }
            Event::Capacity { tier_ref, bytes } => {
                self.capacity.insert(*tier_ref, *bytes);
                Ok(())
            }
            Event::Interrupted { .. } => {
                self.interrupted = true;
                Ok(())
            }
            Event::Resumed {
                found,
                pinned,
                set_aside: aside,
            } => {
                if let Some(now) = aside {
                    set_aside(&mut self.cluster, &mut self.set_aside, now);
                }
                self.pin(pinned);
                self.resumed(found);
                Ok(())
            }
            Event::NodeLost { node, .. } => {
                self.node_lost(*node);
                Ok(())
            }
            Event::NodeBack {
                node,
                capacities,
                whole,
            } => self.node_back(*node, capacities, whole),
        }
    }

    fn source_listed(&mut self, data: DataId, parts: &[PartInfo]) {
        self.listed.insert(data);
        for info in parts {
            let part = PartRef {
                data,
                version: 0,
                origin: 0,
                seq: info.seq,
            };
            self.parts.insert(part, info.clone());
            self.add(part, Place::Source, ReplicaStage::There, 0);
        }
    }

    fn transfer_done(
        &mut self,
        id: TransferId,
        hashes: &[Hash],
        stored: &[u64],
    ) -> Result<(), RuleViolation> {
        let transfer = self.transfers.remove(&id);
        let Some(t) = transfer else {
            return Err(("what ends was under way", id.to_string()));
        };
        for (m, (hash, stored)) in t.parts.iter().zip(hashes.iter().zip(stored)) {
            let stored = match t.to {
                Place::Node(_) => *stored,
                _ => 0,
            };
            if let Some(info) = self.parts.get_mut(&m.part) {
                info.hash = Some(*hash);
                info.stored = info.stored.max(stored);
            }
            self.remove(m.part, &t.to);
            if !self.on_lost(&t.to) {
                self.add(m.part, t.to.clone(), ReplicaStage::There, stored);
            }
        }
        let dataset = self.workflow.dataset(t.data);
        let last = self.workflow.last_version(t.data) == t.version;
        if last && matches!(&t.to, Place::External(to) if Some(to) == dataset.dest.as_ref()) {
            self.delivered.insert(t.data);
        }
        Ok(())
    }

    fn transfer_failed(
        &mut self,
        id: TransferId,
        damaged: Option<PartRef>,
    ) -> Result<(), RuleViolation> {
        let transfer = self.transfers.remove(&id);
        let Some(t) = transfer else {
            return Err(("what ends was under way", id.to_string()));
        };
        for m in &t.parts {
            let copies = self.copies.entry(m.part).or_default();
            match copies.get_mut(&t.to) {
                Some(copy) if copy.state == ReplicaStage::Renewed => {
                    copy.state = ReplicaStage::There
                }
                _ => drop(copies.remove(&t.to)),
            }
            if damaged == Some(m.part)
                && m.from != Place::Source
                && let Some(copy) = copies.get_mut(&m.from)
                && copy.state != ReplicaStage::Coming
            {
                copy.state = match copy.state {
                    ReplicaStage::Renewed => ReplicaStage::Coming,
                    _ => ReplicaStage::Damaged,
                };
                let dest = self.workflow.dataset(t.data).dest.as_ref();
                if matches!(&m.from, Place::External(from) if Some(from) == dest) {
                    self.delivered.remove(&t.data);
                }
            }
        }
        Ok(())
    }

    fn ended(
        &mut self,
        id: InstanceId,
        attempt: u32,
        ended: &AttemptOutcome,
    ) -> Result<(), RuleViolation> {
        let run = self.running.remove(&id);
        let same = run.as_ref().is_some_and(|r| r.attempt == attempt);
        rule("what ends was under way", same, || {
            format!("{id}, attempt {attempt}")
        })?;
        self.placed.remove(&id);
        self.drop_unused();
        if let AttemptOutcome::Committed { outputs, .. } = ended {
            let before: Vec<PartRef> = self.made_by(id).collect();
            for part in &before {
                let ours = |p: &&Place| matches!(p, Place::Node(_) | Place::Drained);
                let mixed = self.copies.get(part).and_then(|c| c.keys().find(ours));
                rule("two makes of a part never mix", mixed.is_none(), || {
                    format!("{part} is made again while {mixed:?} has the one before")
                })?;
            }
            self.publish(id, outputs, before);
        }
        Ok(())
    }

    fn publish(&mut self, id: InstanceId, outputs: &[Output], before: Vec<PartRef>) {
        let mut old = Vec::new();
        for part in before {
            let info = self.parts.remove(&part);
            old.push((part, info, self.copies.remove(&part).unwrap_or_default()));
        }
        for output in outputs {
            for (info, tier_refs) in &output.parts {
                let part = PartRef {
                    data: output.data,
                    version: output.version,
                    origin: id.index,
                    seq: info.seq,
                };
                self.parts.insert(part, info.clone());
                for tier_ref in tier_refs
                    .iter()
                    .filter(|s| !self.lost.contains(&s.node))
                    .copied()
                    .collect::<Vec<_>>()
                {
                    self.add(
                        part,
                        Place::Node(tier_ref),
                        ReplicaStage::There,
                        info.stored,
                    );
                }
                let earlier = old.iter().find(|(p, ..)| *p == part);
                let Some((_, Some(was), copies)) = earlier else {
                    continue;
                };
                if was.hash == info.hash {
                    let outside = copies.iter().filter(|(p, c)| {
                        matches!(p, Place::External(_)) && c.state != ReplicaStage::Damaged
                    });
                    for (at, copy) in outside.map(|(p, c)| (p.clone(), *c)).collect::<Vec<_>>() {
                        self.add(part, at, copy.state, copy.stored);
                    }
                } else if self.workflow.last_version(part.data) == part.version {
                    self.delivered.remove(&part.data);
                }
            }
        }
        self.done.insert(id);
        self.ever.insert(id);
        self.compare_with_dests(id);
    }

    /// A `dest` may hold the version that has just been completed, from an earlier run. While some of it is being made
    /// again, nobody knows its content.
    pub(super) fn compare_with_dests(&mut self, id: InstanceId) {
        let mut all = self.all_of(id.step).into_iter().flatten();
        if !all.all(|i| self.done.contains(&i)) {
            return;
        }
        let uses = self.workflow.step(id.step).uses.iter();
        let made: Vec<_> = uses.filter_map(|u| Some((u.data, u.makes?))).collect();
        for (data, version) in made {
            let last = self.workflow.last_version(data) == version;
            let Some(prior) = last.then(|| self.prior_dest.remove(&data)).flatten() else {
                continue;
            };
            let parts = self.parts_of(data, version);
            let hashes: Option<Vec<_>> = parts.map(|(_, i)| Some((&i.class, i.hash?))).collect();
            let dest = self.workflow.dataset(data).dest.clone();
            if let (Some(hashes), Some(dest)) = (hashes, dest)
                && version_hash(hashes) == prior
            {
                self.delivered.insert(data);
                let parts: Vec<PartRef> = self.parts_of(data, version).map(|(p, _)| p).collect();
                for part in parts {
                    self.add(part, Place::External(dest.clone()), ReplicaStage::There, 0);
                }
            }
        }
    }

    fn evicted(&mut self, part: PartRef, at: &Place) {
        if let Place::Node(tier_ref) = at
            && self.returned.remove(&(part, *tier_ref)).is_some()
        {
            return;
        }
        self.others.remove(&(part, at.clone()));
        self.remove(part, at);
    }

    /// The user has pinned these datasets: they are to be kept from now on, as far as anything is left of them.
    fn pin(&mut self, pinned: &[DataId]) {
        let new = |data: &DataId| !self.pinned.iter().any(|(known, _)| known == data);
        let new: Vec<DataId> = pinned.iter().copied().filter(new).collect();
        let gone = |part: &PartRef| new.contains(&part.data) && self.is_lost(*part);
        let gone: Vec<PartRef> = self.were_there.iter().copied().filter(gone).collect();
        gone.iter().for_each(|part| {
            self.were_there.remove(part);
        });
        pin(&mut self.workflow, &mut self.pinned, pinned);
    }

    fn resumed(&mut self, found: &[(PartRef, Place)]) {
        self.transfers.clear();
        self.running.clear();
        self.placed.clear();
        self.drop_unused();
        self.returned.clear();
        self.lost.clear();
        self.failed_lists.clear();
        (self.finished, self.interrupted) = (None, false);
        (self.stops, self.stopped) = (false, false);
        self.given_up.clear();
        self.given_up_steps.clear();
        self.given_up_data.clear();
        self.not_rescued.clear();
        self.reset_capacity();
        let others = &self.others;
        for (part, copies) in &mut self.copies {
            let is_others = |at: &Place| others.contains(&(*part, at.clone()));
            copies.retain(|place, _| *place == Place::Source || is_others(place));
        }
        let others = of_others(&self.prior_data, found);
        for ((part, at), is_whole) in &others {
            if *is_whole {
                self.others.insert((*part, at.clone()));
                self.add(*part, at.clone(), ReplicaStage::There, 0);
            } else {
                self.evicted(*part, at);
            }
        }
        let own = |at: &&(PartRef, Place)| !others.contains_key(*at);
        for (part, at) in found.iter().filter(own) {
            let info = self.parts.get(part);
            let stored = match at {
                Place::Node(_) => info.map_or(0, |i| i.stored),
                _ => 0,
            };
            let made = self
                .producer(*part)
                .is_none_or(|id| self.done.contains(&id));
            if let (Place::Node(tier_ref), Some(info), false) = (at, info, made) {
                self.returned
                    .insert((*part, *tier_ref), (info.key.clone(), stored));
                continue;
            }
            self.add(*part, at.clone(), ReplicaStage::There, stored);
        }
        let outside = |(data, version): &(DataId, u32)| {
            let mut parts = self.parts_of(*data, *version);
            parts.all(|(p, _)| {
                let copies = self.copies.get(&p).into_iter().flatten();
                copies
                    .filter(|(at, _)| matches!(at, Place::External(_)))
                    .count()
                    > 0
            })
        };
        let sent = self.sent.iter().copied().filter(outside);
        self.sent = sent.collect();
        let dest_there = |data: &DataId| {
            let last = self.workflow.last_version(*data);
            let Some(dest) = self.workflow.dataset(*data).dest.clone() else {
                return false;
            };
            let mut parts = self.parts_of(*data, last);
            parts.all(|(p, _)| self.is_there(p, &Place::External(dest.clone())))
        };
        let delivered = self.delivered.iter().copied().filter(dest_there);
        self.delivered = delivered.collect();
    }

    fn node_lost(&mut self, node: NodeId) {
        let gone = |p: &Place| matches!(p, Place::Node(s) if s.node == node);
        for copies in self.copies.values_mut() {
            copies.retain(|place, c| !gone(place) || c.state == ReplicaStage::Coming);
        }
        self.returned
            .retain(|(_, tier_ref), _| tier_ref.node != node);
        self.lost.insert(node);
    }

    fn node_back(
        &mut self,
        node: NodeId,
        capacities: &[u64],
        whole: &[IntactReplica],
    ) -> Result<(), RuleViolation> {
        let was_lost = self.lost.remove(&node);
        rule("who comes back was lost", was_lost, || node.to_string())?;
        for (tier, bytes) in (0..).map(TierId).zip(capacities) {
            self.capacity.insert(TierRef { node, tier }, *bytes);
        }
        for w in whole {
            let tier_ref = TierRef { node, tier: w.tier };
            let at = Place::Node(tier_ref);
            let newest = self.parts.get(&w.part).is_some_and(|i| i.key == w.key);
            let made = self
                .producer(w.part)
                .is_none_or(|id| self.done.contains(&id));
            if newest && made && self.copy(w.part, &at).is_none() {
                self.add(w.part, at, ReplicaStage::There, w.stored);
            } else {
                self.returned
                    .insert((w.part, tier_ref), (w.key.clone(), w.stored));
            }
        }
        Ok(())
    }
}
