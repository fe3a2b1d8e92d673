//! The rules for decisions.

use super::account::{InstanceReservation, ReplicaAccount, ReplicaStage, RunAccount};
use super::{RuleViolation, rule};
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::action::{Action, AttemptSpec, Do, Outcome, Subject};
use tarn_types::event::Output;
use tarn_types::id::{InstanceId, TierRef};
use tarn_types::part::{PartRef, Place, StoreKey, Transfer, TransferKind};
use tarn_types::reason::Reason;
use tarn_types::workflow::{Keep, OnFailure};

impl RunAccount {
    pub(super) fn decided(&mut self, action: &Action) -> Result<(), RuleViolation> {
        let over = self.finished.is_none();
        rule("nothing is done when the run is over", over, String::new)?;
        match &action.what {
            Do::List { data } => rule(
                "a source is listed once",
                !self.listed.contains(data),
                || data.to_string(),
            ),
            Do::Transfer(t) => self.transfer(t, &action.why),
            Do::Abandon { id } => rule(
                "what is abandoned is under way",
                self.transfers.contains_key(id),
                || id.to_string(),
            ),
            Do::Assign {
                instance,
                nodes,
                reserve,
                ..
            } => self.assign(*instance, nodes, *reserve),
            Do::Unassign { instance } => {
                let placed = self.placed.remove(instance).is_some();
                let kept = placed && !self.running.contains_key(instance);
                self.drop_unused();
                rule("what is taken back has a place", kept, || {
                    instance.to_string()
                })
            }
            Do::Run(run) => self.run(run),
            Do::Stop { instance, attempt } => {
                let run = self.running.get(instance);
                let kept = run.is_some_and(|r| r.attempt == *attempt);
                rule("what is stopped runs", kept, || instance.to_string())
            }
            Do::CopyImage {
                instance,
                attempt,
                from,
                to,
                ..
            } => {
                let run = self.running.get(instance);
                let kept = run.is_some_and(|r| r.attempt == *attempt) && from.node != to.node;
                rule(
                    "what is copied to another node is of a step that runs",
                    kept,
                    || instance.to_string(),
                )
            }
            Do::Forget { instance, .. } => {
                let waits = self.placed.contains_key(instance);
                rule("whose checkpoints go has no place", !waits, || {
                    instance.to_string()
                })
            }
            Do::Discard { partition, key, .. } => self.discard(*partition, key),
            Do::Reuse { instance, prior } => self.reuse(*instance, *prior),
            Do::Evict { part, key, at } => self.evict(*part, key, at),
            Do::Cache { part, key, at, .. } => self.leave_cached(*part, key, *at),
            Do::Note { about } => self.note(*about, &action.why),
            Do::Finish { outcome } => self.finish(*outcome),
        }
    }

    fn transfer(&mut self, t: &Transfer, why: &Reason) -> Result<(), RuleViolation> {
        rule(
            "transfers are numbered",
            t.id.0 >= self.next_transfer,
            || format!("{} comes after x{}", t.id, self.next_transfer),
        )?;
        self.next_transfer = t.id.0 + 1;
        rule("a transfer moves something", !t.parts.is_empty(), || {
            t.id.to_string()
        })?;
        rule(
            "nothing is done on a lost node",
            !self.on_lost(&t.to),
            || t.id.to_string(),
        )?;
        let mut space = 0;
        for m in &t.parts {
            let of = (m.part.data, m.part.version) == (t.data, t.version);
            rule("a transfer is of one version", of, || m.part.to_string())?;
            rule(
                "what is read is there",
                self.is_readable(m.part, &m.from)
                    || *why == Reason::Rescue && self.is_cached(m.part, &m.from),
                || format!("{} at {:?}: {:?}", m.part, m.from, self.copies.get(&m.part)),
            )?;
            let there = matches!(t.to, Place::Node(_) | Place::Drained)
                .then(|| self.copy(m.part, &t.to))
                .flatten();
            rule("nothing moves to where it is", there.is_none(), || {
                format!("{}: {there:?}", m.part)
            })?;
            let kind = match (&m.from, &t.to) {
                (Place::Node(a), Place::Node(b)) if a.node != b.node => TransferKind::Peer,
                (Place::Node(a), Place::Node(b)) if a.tier < b.tier => TransferKind::Demote,
                (Place::Node(_), Place::Node(_)) => TransferKind::Promote,
                (_, Place::Node(_)) => TransferKind::ExternalIn,
                _ => TransferKind::ExternalOut,
            };
            // A part that is outside already may be copied to another place outside.
            rule("a transfer is what it says", kind == t.kind, || {
                format!("{kind:?}")
            })?;
            let stored = self.parts.get(&m.part).map_or(0, |i| i.stored);
            space += stored;
            let stored = if matches!(t.to, Place::Node(_)) {
                stored
            } else {
                0
            };
            let coming = match self.is_there(m.part, &t.to) {
                true => ReplicaStage::Renewed,
                false => ReplicaStage::Coming,
            };
            self.add(m.part, t.to.clone(), coming, stored);
        }
        if let Place::Node(tier_ref) = t.to {
            self.within_capacity(tier_ref, space)?;
        }
        if matches!(t.to, Place::External(_)) {
            self.sent.insert((t.data, t.version));
        }
        self.transfers.insert(t.id, t.clone());
        Ok(())
    }

    /// Nobody takes more of a tier than is free.
    pub(super) fn within_capacity(
        &self,
        tier_ref: TierRef,
        more: u64,
    ) -> Result<(), RuleViolation> {
        let (promised, capacity) = (self.promised(tier_ref), self.capacity[&tier_ref]);
        rule(
            "capacity is never exceeded",
            more == 0 || promised <= capacity,
            || format!("{promised} of {capacity} bytes of {tier_ref:?} are promised"),
        )
    }

    fn assign(
        &mut self,
        id: InstanceId,
        tier_refs: &[TierRef],
        reserve: u64,
    ) -> Result<(), RuleViolation> {
        let waits = !self.done.contains(&id) && !self.placed.contains_key(&id);
        rule("who gets a place waits for one", waits, || id.to_string())?;
        rule(
            "nothing new is started in a run that failed",
            !self.stopped,
            || id.to_string(),
        )?;
        rule(
            "what was given up does not go on",
            !self.given_up.contains(&id),
            || id.to_string(),
        )?;
        rule("a step waits for its data", self.may_begin(id), || {
            id.to_string()
        })?;
        let known = self
            .items(id.step)
            .is_some_and(|i| i.len() > id.index as usize);
        rule("there is such an instance", known, || id.to_string())?;
        let step = self.workflow.step(id.step);
        let nodes: BTreeSet<_> = tier_refs.iter().map(|s| s.node).collect();
        let enough = nodes.len() == tier_refs.len() && tier_refs.len() == step.nodes as usize;
        rule("a step has its nodes", enough, || {
            format!("{id} on {tier_refs:?}")
        })?;
        for tier_ref in tier_refs {
            let lost = self.lost.contains(&tier_ref.node);
            rule("nothing is done on a lost node", !lost, || {
                format!("{id} on {tier_ref:?}")
            })?;
            let node = self.cluster.node(tier_ref.node);
            let large =
                step.cores <= node.cores && step.memory <= node.memory && step.gpus <= node.gpus;
            rule("a node is large enough", large, || {
                format!("{id} on {}", node.name)
            })?;
            let tier = &self.cluster.tier(*tier_ref).name;
            let named = step.tier.as_ref().is_none_or(|t| t == tier);
            rule("a step writes to its tier", named, || {
                format!("{id} on {tier}")
            })?;
        }
        let placed = InstanceReservation {
            tier_refs: tier_refs.to_vec(),
            reserve,
        };
        self.placed.insert(id, placed);
        self.place_partitions(id, tier_refs)?;
        tier_refs
            .iter()
            .try_for_each(|s| self.within_capacity(*s, reserve))
    }

    fn run(&mut self, run: &AttemptSpec) -> Result<(), RuleViolation> {
        let id = run.instance;
        let placed = self.placed.get(&id);
        let same =
            placed.is_some_and(|p| p.tier_refs == run.nodes) && !self.running.contains_key(&id);
        rule("who runs has a place", same, || id.to_string())?;
        let attempts = self.attempts.entry(id).or_default();
        *attempts += 1;
        let attempts = *attempts;
        rule("attempts are numbered", run.attempt == attempts, || {
            format!("{} is attempt {attempts}", run.attempt)
        })?;
        rule("a step waits for its data", self.may_begin(id), || {
            id.to_string()
        })?;
        let lost = run.nodes.iter().find(|s| self.lost.contains(&s.node));
        rule("nothing is done on a lost node", lost.is_none(), || {
            format!("{lost:?}")
        })?;
        self.sees_its_data(run)?;
        self.check_start_space(run)?;
        self.has_its_partitions(run)?;
        self.running.insert(id, run.clone());
        self.within_machines()
    }

    fn sees_its_data(&self, run: &AttemptSpec) -> Result<(), RuleViolation> {
        let step = self.workflow.step(run.instance.step);
        for (used, views) in step.uses.iter().zip(&run.views) {
            for (at, tier_ref) in (0..).zip(&run.nodes) {
                let view = views.get(at as usize).map_or(&[][..], Vec::as_slice);
                let seen: BTreeSet<PartRef> = view.iter().map(|h| h.part).collect();
                let needs = self.needs(run.instance, used, at);
                rule("a step sees its data", seen == needs, || {
                    format!("on its node {at} it sees {seen:?} and needs {needs:?}")
                })?;
                for held in view {
                    let local = held.tier_ref.node == tier_ref.node;
                    let place = Place::Node(held.tier_ref);
                    let key = self.parts.get(&held.part).map(|i| &i.key);
                    let there = self.is_there(held.part, &place) && key == Some(&held.key);
                    rule("what is read is there", local && there, || {
                        format!("{held:?}")
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Cores, memory and GPUs of nodes and hosts.
    fn within_machines(&self) -> Result<(), RuleViolation> {
        let mut nodes: BTreeMap<_, (u64, u64, u64)> = BTreeMap::new();
        for run in self.running.values() {
            let step = self.workflow.step(run.instance.step);
            for tier_ref in &run.nodes {
                let used = nodes.entry(tier_ref.node).or_default();
                used.0 += u64::from(step.cores);
                used.1 += step.memory;
                used.2 += u64::from(step.gpus);
            }
        }
        let mut hosts: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for (id, (cores, memory, gpus)) in nodes {
            let node = self.cluster.node(id);
            let fits = cores <= u64::from(node.cores)
                && memory <= node.memory
                && gpus <= u64::from(node.gpus);
            rule("no node is overcommitted", fits, || node.name.clone())?;
            let used = hosts.entry(node.host).or_default();
            *used = (used.0 + cores, used.1 + memory);
        }
        for (id, (cores, memory)) in hosts {
            let host = &self.cluster.hosts[id as usize];
            let fits = cores <= u64::from(host.cores) && memory <= host.memory;
            rule("no host is overcommitted", fits, || host.name.clone())?;
        }
        Ok(())
    }

    fn reuse(&mut self, id: InstanceId, prior: u32) -> Result<(), RuleViolation> {
        let waits = !self.done.contains(&id) && !self.placed.contains_key(&id);
        rule("who reuses waits", waits, || id.to_string())?;
        rule("a step waits for its data", self.may_begin(id), || {
            id.to_string()
        })?;
        let Some(prior) = self.prior.get(prior as usize).cloned() else {
            return Err(("what is reused was made", format!("{id}: {prior}")));
        };
        let uses = self.workflow.step(id.step).uses.iter();
        let made: Vec<_> = uses.filter_map(|u| Some((u.data, u.makes?))).collect();
        let mut outputs: Vec<Output> = prior.outputs;
        for (at, (o, (data, version))) in outputs.iter_mut().zip(made).enumerate() {
            (o.data, o.version) = (data, version);
            for (n, (info, _)) in o.parts.iter().enumerate() {
                let part = PartRef {
                    data,
                    version,
                    origin: id.index,
                    seq: info.seq,
                };
                self.parts.insert(part, info.clone());
                let here = |h: &&(u32, u32, Place)| (h.0 as usize, h.1 as usize) == (at, n);
                for (_, _, place) in prior.held.iter().filter(here) {
                    if !self.on_lost(place) {
                        let node = matches!(place, Place::Node(_));
                        let stored = if node { info.stored } else { 0 };
                        self.add(part, place.clone(), ReplicaStage::There, stored);
                    }
                }
            }
        }
        self.done.insert(id);
        self.ever.insert(id);
        self.compare_with_dests(id);
        let again = self.uses_kept(id);
        rule(
            "what used a partition that is kept is not reused",
            !again,
            || id.to_string(),
        )
    }

    fn evict(&mut self, part: PartRef, key: &StoreKey, at: &Place) -> Result<(), RuleViolation> {
        if let Place::Node(tier_ref) = at
            && self
                .returned
                .get(&(part, *tier_ref))
                .is_some_and(|(k, _)| k == key)
        {
            return Ok(());
        }
        rule("nothing is done on a lost node", !self.on_lost(at), || {
            part.to_string()
        })?;
        let ours = matches!(at, Place::Node(_) | Place::Drained);
        rule("what is not ours is not removed", ours, || {
            format!("{at:?}")
        })?;
        let same = self.parts.get(&part).is_some_and(|i| i.key == *key);
        let state = self.copy(part, at).map(|c| c.state);
        let there = matches!(
            state,
            Some(ReplicaStage::There | ReplicaStage::Damaged | ReplicaStage::Cached)
        );
        rule("what is removed is there", same && there, || {
            format!("{part}: {state:?}")
        })?;
        let is_others = self.others.contains(&(part, at.clone()));
        rule(
            "what belongs to another workflow stays unless it is damaged",
            !is_others || state == Some(ReplicaStage::Damaged),
            || format!("{part} at {at:?}"),
        )?;
        let reader = self.running.values().find(|run| {
            let mut held = run.views.iter().flatten().flatten();
            held.any(|h| h.part == part && Place::Node(h.tier_ref) == *at)
        });
        rule("leases are honoured", reader.is_none(), || {
            format!("{:?} reads {part}", reader.map(|r| r.instance))
        })?;
        let mut moving = self.transfers.values();
        let moved = moving.find(|t| t.parts.iter().any(|m| m.part == part && m.from == *at));
        rule("leases are honoured", moved.is_none(), || {
            format!("{:?} reads {part}", moved.map(|t| t.id))
        })?;
        if let Some(copy) = self.copies.get_mut(&part).and_then(|c| c.get_mut(at)) {
            copy.state = ReplicaStage::Leaving;
        }
        let copies = self.copies.get(&part).into_iter().flatten();
        let others = copies
            .filter(|(_, c)| c.state == ReplicaStage::There)
            .count();
        // If its producer is to run again, the last replica may go.
        let producer = self.producer(part);
        let again = producer.is_some_and(|id| !self.done.contains(&id));
        if others == 0 && state == Some(ReplicaStage::There) && !again {
            let needed = self.needed(part);
            rule(
                "nothing is dropped while it is needed",
                needed.is_none(),
                || format!("the last replica of {part}: {}", needed.unwrap_or_default()),
            )?;
        }
        Ok(())
    }

    fn note(&mut self, about: Subject, why: &Reason) -> Result<(), RuleViolation> {
        self.waits_for_no_cache(why)?;
        self.stops |= matches!(why, Reason::Failed { .. });
        match (about, why) {
            (Subject::Step(id), Reason::GaveUp { .. }) => drop(self.given_up_steps.insert(id)),
            (Subject::Data(id), Reason::GaveUp { .. }) => drop(self.given_up_data.insert(id)),
            (Subject::Data(id), Reason::NotRescued { .. } | Reason::RescuedInPart { .. }) => {
                self.not_rescued.insert(id);
            }
            _ => {}
        }
        let Subject::Instance(id) = about else {
            return Ok(());
        };
        match why {
            Reason::GaveUp { .. } => {
                let open = !self.done.contains(&id) && !self.placed.contains_key(&id);
                rule(
                    "what is given up is not done and does not run",
                    open,
                    || id.to_string(),
                )?;
                self.given_up.insert(id);
                Ok(())
            }
            Reason::OutputLost { .. } => {
                rule("what is made again was made", self.done.remove(&id), || {
                    id.to_string()
                })?;
                let lost = self.made_by(id).any(|p| self.is_lost(p));
                rule("what is made again is lost", lost, || id.to_string())
            }
            Reason::OutputBack { .. } => {
                let waits = self.ever.contains(&id) && !self.placed.contains_key(&id);
                rule("what is taken as made waits", waits, || id.to_string())?;
                self.done.insert(id);
                self.given_up.remove(&id);
                let parts: Vec<PartRef> = self.made_by(id).collect();
                for part in parts {
                    let key = self.parts.get(&part).map(|i| i.key.clone());
                    let back = self
                        .returned
                        .iter()
                        .filter(|((p, _), (k, _))| *p == part && Some(k) == key.as_ref());
                    for at in back.map(|(at, _)| *at).collect::<Vec<_>>() {
                        let stored = self.returned.remove(&at).map_or(0, |s| s.1);
                        self.add(part, Place::Node(at.1), ReplicaStage::There, stored);
                    }
                }
                self.compare_with_dests(id);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, outcome: Outcome) -> Result<(), RuleViolation> {
        self.finished = Some(outcome);
        let quiet = self.running.is_empty() && self.transfers.is_empty();
        rule("a run ends when nothing is under way", quiet, || {
            format!("{outcome:?}")
        })?;
        match outcome {
            Outcome::Done => self.is_complete(),
            Outcome::Failed => {
                if !self.stops {
                    self.rest_is_done()?;
                }
                self.is_rescued()
            }
            Outcome::Refused | Outcome::Interrupted(_) => Ok(()),
        }
    }

    fn is_complete(&self) -> Result<(), RuleViolation> {
        rule(
            "a run is done when all steps are",
            self.all_done(),
            String::new,
        )?;
        for (part, info) in &self.parts {
            let dataset = self.workflow.dataset(part.data);
            let last = self.workflow.last_version(part.data) == part.version;
            let delivered = self.delivered.contains(&part.data);
            rule(
                "a run is done when all is at its dest",
                !last || dataset.dest.is_none() || delivered,
                || dataset.name.clone(),
            )?;
            let keeps = last && matches!(dataset.keep, Keep::For(_) | Keep::Forever);
            // The output of an earlier run may have been removed since.
            let kept = keeps && self.were_there.contains(part);
            rule(
                "what is to be kept is there",
                !kept || !self.is_lost(*part),
                || format!("{part} of {}, {info:?}", dataset.name),
            )?;
            let ours = |p: &Place| matches!(p, Place::Node(_) | Place::Drained);
            let ours =
                |(p, c): &(&Place, &ReplicaAccount)| ours(p) && c.state != ReplicaStage::Cached;
            let left = self.copies.get(part).and_then(|c| c.iter().find(ours));
            rule("nothing is left behind", keeps || left.is_none(), || {
                format!("{part} at {left:?}")
            })?;
        }
        let returned_replica = self.returned.keys().next();
        rule("nothing is left behind", returned_replica.is_none(), || {
            format!("{returned_replica:?}")
        })
    }

    /// Every instance that needs nothing that was given up is done.
    fn rest_is_done(&self) -> Result<(), RuleViolation> {
        let failed = !self.given_up.is_empty()
            || !self.given_up_steps.is_empty()
            || !self.given_up_data.is_empty();
        rule("a run fails because something failed", failed, String::new)?;
        for (id, _) in self.steps() {
            if self.needs_given_up_step(id) {
                continue;
            }
            let all = self.all_of(id).into_iter().flatten();
            for instance in all.filter(|instance| self.may_begin(*instance)) {
                let over = self.done.contains(&instance) || self.given_up.contains(&instance);
                rule(
                    "what does not need what failed is done",
                    over || self.lacks_input(instance),
                    || instance.to_string(),
                )?;
            }
        }
        Ok(())
    }

    /// Of each dataset to rescue, the newest whole version was sent out, or is stored at its `dest`; if none is whole, the
    /// parts that there are of the newest.
    fn is_rescued(&self) -> Result<(), RuleViolation> {
        for (data, dataset) in (0..).map(tarn_types::id::DataId).zip(&self.workflow.data) {
            let last = self.workflow.last_version(data);
            let there = |p: PartRef| {
                let mut copies = self.copies.get(&p).into_iter().flatten();
                copies.any(|(_, c)| matches!(c.state, ReplicaStage::There | ReplicaStage::Cached))
            };
            let whole =
                |v: &u32| self.sealed(data, *v) && self.parts_of(data, *v).all(|(p, _)| there(p));
            let in_part = |v: &u32| self.parts_of(data, *v).any(|(p, _)| there(p));
            let newest = (1..=last).rev().find(whole);
            let newest = newest.or_else(|| (1..=last).rev().find(in_part));
            if dataset.on_failure != OnFailure::Drain {
                continue;
            }
            let delivered = self.delivered.contains(&data);
            let Some(newest) = newest else {
                let ran = |p: PartRef| {
                    self.producer(p)
                        .is_some_and(|id| self.attempts.contains_key(&id))
                };
                let made = |v: u32| self.parts_of(data, v).any(|(p, _)| ran(p));
                let sent = (1..=last).any(|v| self.sent.contains(&(data, v)));
                let silent = (1..=last).any(made) && !sent && !delivered;
                let is_reported = self.not_rescued.contains(&data);
                rule(
                    "a failed run says what it does not rescue",
                    !silent || is_reported,
                    || dataset.name.clone(),
                )?;
                continue;
            };
            let empty = self.parts_of(data, newest).next().is_none();
            let saved = newest == last && delivered;
            let kept = empty || saved || self.sent.contains(&(data, newest));
            rule("a failed run rescues", kept, || {
                format!("{} v{newest}", dataset.name)
            })?;
            let is_left = |v: u32| {
                let is_empty = self.parts_of(data, v).next().is_none();
                self.sealed(data, v) && !is_empty && !self.sent.contains(&(data, v))
            };
            let is_cut = !empty && !saved && self.sealed(data, newest) && !whole(&newest);
            let silent = is_cut || !delivered && !empty && (newest + 1..=last).any(is_left);
            rule(
                "a failed run says what of the newest version is not rescued",
                !silent || self.not_rescued.contains(&data),
                || dataset.name.clone(),
            )?;
        }
        Ok(())
    }
}
