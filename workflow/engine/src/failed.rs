//! The consequences of a failed attempt of an instance: whether it counts, and whether there is another.

use crate::data::makes;
use crate::given_up::counts;
use crate::state::{EngineState, RunStopReason};
use crate::steps::{InstancePlacement, InstanceProgress, StepInstance};
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::action::Subject;
use tarn_types::event::{RunError, RunErrorKind};
use tarn_types::id::{InstanceId, NodeId, StepId, TierRef};
use tarn_types::part::{PartRef, Place, Transfer, TransferKind};
use tarn_types::reason::Reason;
use tarn_types::retry::RetryRule;

/// Attempts of an instance that may be lost with their nodes and count for nothing. After that it may be what ends nodes, by
/// filling their memory for instance, and must not go round all of them.
const FREE_LOSSES: RetryRule = RetryRule::with_retries(1);

impl EngineState {
    /// The reason of a failure that concerns one instance or step.
    pub(crate) fn failure(&self, message: String) -> Reason {
        match self.start.options.fail_fast {
            true => Reason::Failed { message },
            false => Reason::GaveUp { message },
        }
    }

    /// An instance or a step has failed for good: with `fail_fast` nothing new is started, else all continues that does not need it.
    pub(crate) fn give_up(&mut self, about: Subject, message: String) {
        if self.start.options.fail_fast {
            return self.fail(about, message);
        }
        self.given_up.add(about, message);
    }

    /// A transfer has failed for good: instances that need the part on its node fail, and a part for a `dest` does not
    /// go there.
    pub(crate) fn cannot_move(&mut self, t: &Transfer, message: String) {
        let about = Subject::Data(t.data);
        let brings = matches!(
            t.kind,
            TransferKind::Peer | TransferKind::ExternalIn | TransferKind::Promote
        );
        let to = match &t.to {
            Place::Node(tier_ref) if brings => Some(tier_ref.node),
            _ => None,
        };
        if self.start.options.fail_fast || to.is_none() && !self.delivers(t) {
            return self.fail(about, message);
        }
        for m in &t.parts {
            if let Some(part) = self.data.part_mut(m.part) {
                (part.failures, part.rests_until) = (0, 0);
            }
            if let Some(node) = to {
                let at = (m.part, node);
                self.given_up.unreachable.insert(at, message.clone());
            }
        }
        if to.is_none() {
            self.give_up(about, message);
        }
    }

    /// The instances that cannot run because a part could not be brought to a node: those placed there that need it;
    /// and all that have yet to begin, if no node has it.
    pub(crate) fn needy(&self, name: PartRef, node: NodeId) -> Vec<InstanceId> {
        let Some(part) = self.data.part(name) else {
            return Vec::new();
        };
        let elsewhere = part.present().any(|(p, _)| matches!(p, Place::Node(_)));
        let waiting = self.steps.pending.iter().map(|(_, id)| *id);
        let waiting = waiting.filter(|_| !elsewhere);
        let placed = self.steps.placed.difference(&self.steps.running).copied();
        let lacks = |id: &InstanceId| {
            let placed = self.steps.instance(*id).and_then(|i| i.placed());
            let mut tier_refs = placed.into_iter().flat_map(|p| &p.tier_refs);
            tier_refs
                .any(|s| !elsewhere || s.node == node && self.in_place(*s, name, part).is_none())
        };
        let needs = |id: &InstanceId| self.reads_part(*id, name);
        waiting.chain(placed.filter(lacks)).filter(needs).collect()
    }

    /// The instances that have yet to begin and read a part.
    pub(crate) fn readers_to_begin(&self, name: PartRef) -> Vec<InstanceId> {
        let waiting = self.steps.pending.iter().map(|(_, id)| *id);
        let placed = self.steps.placed.difference(&self.steps.running).copied();
        let all = waiting.chain(placed);
        all.filter(|id| self.reads_part(*id, name)).collect()
    }

    fn reads_part(&self, id: InstanceId, name: PartRef) -> bool {
        let instance = self.steps.instance(id);
        instance.is_some_and(|i| i.parts().contains(&name))
    }

    /// A permanent failure was reported.
    pub(crate) fn gave_up(&mut self, about: Subject) {
        if self.given_up.untold.remove(&about).is_some() {
            return;
        }
        self.given_up.all.insert(about);
        if let Subject::Instance(id) = about {
            if let Some(i) = self.steps.instance_mut(id) {
                i.progress = InstanceProgress::Failed;
            }
            self.steps.dequeue(id);
        }
    }

    /// The steps that something given up, or the cause of the run's stop, keeps from running, each with that cause.
    pub(crate) fn not_run(&self) -> BTreeMap<StepId, Subject> {
        let mut causes: BTreeMap<StepId, Subject> = BTreeMap::new();
        let mut reached = BTreeSet::new();
        let stopped = match &self.stop {
            Some(RunStopReason::Failed { about, .. }) => Some(about),
            _ => None,
        };
        let all = self.given_up.all.iter().chain(stopped);
        let failed = all.filter_map(|about| match about {
            Subject::Instance(id) => Some((id.step, *about)),
            Subject::Step(step) => Some((*step, *about)),
            _ => None,
        });
        let mut next: Vec<(StepId, Subject)> = failed.collect();
        while let Some((step, cause)) = next.pop() {
            if !reached.insert(step) {
                continue;
            }
            let made = makes(self.start.workflow.step(step));
            let readers = made
                .filter_map(|version| self.readers.get(&version))
                .flatten();
            let after = self.steps.followers.get(&step).into_iter().flatten();
            for reader in readers.chain(after) {
                let waits =
                    self.waits(*reader) && !self.given_up.all.contains(&Subject::Step(*reader));
                if waits {
                    causes.entry(*reader).or_insert(cause);
                    next.push((*reader, cause));
                }
            }
        }
        causes
    }

    /// The instances that one that has failed keeps from an entry of their own, each with that one.
    pub(crate) fn instances_not_run(&self) -> BTreeMap<InstanceId, Subject> {
        let failed = self.steps.instances();
        let failed = failed.filter(|(_, i)| i.progress == InstanceProgress::Failed);
        let given_up = self.given_up.all.iter().filter_map(instance_of);
        let mut causes: BTreeMap<InstanceId, Subject> = failed
            .map(|(id, _)| id)
            .chain(given_up)
            .map(|id| (id, Subject::Instance(id)))
            .collect();
        let waits = |i: &StepInstance| !i.inputs_known && i.progress == InstanceProgress::Pending;
        let waiting = self.steps.instances().filter(|(_, i)| waits(i));
        let mut waiting: Vec<(InstanceId, &StepInstance)> = waiting.collect();
        let mut not_run = BTreeMap::new();
        loop {
            let before = waiting.len();
            waiting.retain(|(id, instance)| {
                let makers = instance.entries.iter().filter_map(|input| {
                    let step = *self.producers.get(&(input.data, input.version))?;
                    let index = input.maker?;
                    Some(InstanceId { step, index })
                });
                let cause = makers
                    .filter_map(|maker| causes.get(&maker))
                    .next()
                    .copied();
                if let Some(cause) = cause {
                    causes.insert(*id, cause);
                    not_run.insert(*id, cause);
                }
                cause.is_none()
            });
            if waiting.len() == before {
                return not_run;
            }
        }
    }

    /// Whether a step has instances that did not run yet.
    fn waits(&self, step: StepId) -> bool {
        self.open_instances(step) != Some(0)
    }

    /// How many instances of a step did not run yet; `None` as long as it is not known which there are.
    pub(crate) fn open_instances(&self, step: StepId) -> Option<u64> {
        let all = self.steps.all[step.at()].instances.as_deref()?;
        let open = |i: &&StepInstance| {
            matches!(
                i.progress,
                InstanceProgress::Pending | InstanceProgress::Assigned(_)
            )
        };
        Some(all.iter().filter(open).count() as u64)
    }

    /// Whether every instance without a place waits for data that an instance that was given up was to make again.
    pub(crate) fn all_wait_for_given_up(&self) -> bool {
        let mut stuck: BTreeSet<InstanceId> =
            self.given_up.all.iter().filter_map(instance_of).collect();
        let mut waiting: Vec<InstanceId> = self.steps.pending.iter().map(|(_, id)| *id).collect();
        loop {
            let before = waiting.len();
            waiting.retain(|id| {
                let waits = self.waits_for_any(*id, &stuck);
                if waits {
                    stuck.insert(*id);
                }
                !waits
            });
            if waiting.is_empty() || waiting.len() == before {
                return waiting.is_empty();
            }
        }
    }

    /// Whether a part that an instance reads is lost, or about to be replaced, and one of these was to make it again.
    fn waits_for_any(&self, id: InstanceId, makers: &BTreeSet<InstanceId>) -> bool {
        let parts = self.steps.instance(id).map(StepInstance::parts);
        parts.into_iter().flatten().any(|name| {
            let maker = self.producer(name).filter(|maker| makers.contains(maker));
            maker.is_some_and(|maker| self.steps.remade.contains(&maker))
        })
    }

    /// Whether an attempt that ran out of space is to be repeated with space for its observed output: once, if that
    /// fits onto its tier and exceeds the bytes set aside.
    fn learns_size(&self, id: InstanceId, placed: &InstancePlacement, written: u64) -> bool {
        let capacity = |s: &TierRef| self.start.cluster.tier(*s).capacity;
        let fits = placed.tier_refs.iter().all(|s| written <= capacity(s));
        let first = |i: &StepInstance| i.outgrown.is_none();
        fits && written > placed.reserve && self.steps.instance(id).is_some_and(first)
    }

    /// `written`: the bytes that it was seen to write on a node.
    pub(crate) fn attempt_failed(
        &mut self,
        id: InstanceId,
        failure: &RunError,
        placed: &InstancePlacement,
        written: u64,
        newer: bool,
    ) {
        let step = self.start.workflow.step(id.step);
        let (name, retries) = (step.name.clone(), step.retries);
        let outgrown = match failure.kind {
            RunErrorKind::NoSpace => placed.tier_refs.iter().map(|s| s.tier).max(),
            _ => None,
        };
        let learns = outgrown.is_some() && self.learns_size(id, placed, written);
        if learns {
            let known = &mut self.steps.all[id.step.at()].outgrew;
            *known = written.max(*known);
        }
        let factor = &mut self.steps.all[id.step.at()].reserve_factor;
        if outgrown.is_some() && placed.factor == *factor {
            *factor = factor.saturating_mul(2);
        }
        let crowded = outgrown.is_some() && self.cache.was_in_the_way(&placed.tier_refs);
        let lost = failure.kind == RunErrorKind::NodeLost;
        let hopeless = matches!(failure.kind, RunErrorKind::Conflict | RunErrorKind::Escape);
        let Some(i) = self.steps.instance_mut(id) else {
            return;
        };
        i.losses += u32::from(lost);
        let counts = counts(failure.kind) && !learns && !crowded && (hopeless || !newer)
            || lost && !newer && FREE_LOSSES.gives_up(i.losses);
        i.failures += u32::from(counts);
        i.outgrown = i.outgrown.max(outgrown);
        if counts && (hopeless || RetryRule::with_retries(retries).gives_up(i.failures)) {
            i.progress = InstanceProgress::Failed;
            // A message that names the step, or its instance, needs no prefix.
            let mut message = match failure.message.starts_with(&format!("step `{name}")) {
                true => failure.message.clone(),
                false => format!("step {name} failed: {}", failure.message),
            };
            if lost {
                message = format!(
                    "{message}; {} attempts of it were lost with their nodes: it may be what ends them, by filling their \
                     memory for instance. `retries` allows more such attempts; `tarn resume` tries again",
                    i.losses
                );
            }
            self.give_up(Subject::Instance(id), message);
        } else {
            i.progress = InstanceProgress::Pending;
            self.steps.enqueue(id);
        }
    }
}

fn instance_of(about: &Subject) -> Option<InstanceId> {
    match about {
        Subject::Instance(id) => Some(*id),
        _ => None,
    }
}
