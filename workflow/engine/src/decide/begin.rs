//! Before the first step: list the sources, refuse steps that can never fit. After a failure: report it, stop.

use super::Decide;
use crate::state::{EngineState, EngineTransfer, RunStopReason};
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::action::{Do, Subject};
use tarn_types::id::{DataId, InstanceId, StepId};
use tarn_types::reason::Reason;
use tarn_types::units::Bytes;
use tarn_types::workflow::{Distribution, Role};

impl EngineState {
    fn awaits_list(&self, data: DataId) -> bool {
        self.data.version(data, 0).unbound > 0
    }

    /// Once every source that somebody reads has been listed, it is looked whether all fits, once; whether that is now.
    pub(crate) fn note_all_listed(&mut self) -> bool {
        let mut unlisted = self.unlisted.iter();
        let now = self.stop.is_none()
            && !self.fits_checked
            && !unlisted.any(|data| self.awaits_list(*data));
        self.fits_checked |= now;
        now
    }
}

impl Decide<'_> {
    pub(super) fn begin(&mut self) {
        self.report_given_up();
        self.take_back_outdated();
        match self.state.stop.clone() {
            None => self.list_sources(),
            Some(RunStopReason::Failed { about, message }) => {
                self.note(about, Reason::Failed { message });
                if about != Subject::Run {
                    self.note(Subject::Run, Reason::AfterFailure { about });
                }
            }
            Some(RunStopReason::Incomplete) => {}
            Some(RunStopReason::Interrupted(signal)) => self.interrupt(signal),
        }
    }

    /// Reports permanent failures, each once.
    fn report_given_up(&mut self) {
        for (about, message) in self.state.given_up.untold.clone() {
            self.emit(Do::Note { about }, Reason::GaveUp { message });
        }
        let unreachable = std::mem::take(&mut self.state.given_up.unreachable);
        let (mut fail, mut needed) = (BTreeMap::new(), BTreeSet::new());
        for ((part, node), message) in &unreachable {
            for id in self.state.needy(*part, *node) {
                needed.insert(part.data);
                fail.entry(id).or_insert_with(|| message.clone());
            }
        }
        for (id, message) in fail {
            self.give_up(id, &message);
        }
        // A part that nobody needs there was to be a further replica, or is not needed there any more.
        let copies = |data: DataId| self.state.start.workflow.dataset(data).copies;
        let mut other = unreachable.into_iter();
        let copy = other.find(|((p, _), _)| !needed.contains(&p.data) && copies(p.data) > 1);
        if let Some(((part, _), message)) = copy {
            let about = Subject::Data(part.data);
            self.emit(Do::Note { about }, Reason::Failed { message });
        }
    }

    /// Instances whose entries have got more since they were placed give their places back.
    fn take_back_outdated(&mut self) {
        for (instance, data) in self.state.outdated.clone() {
            if self.state.steps.placed.contains(&instance) {
                self.emit(Do::Unassign { instance }, Reason::EntryChanged { data });
            }
        }
    }

    /// Gives up an instance that does not run.
    pub(super) fn give_up(&mut self, id: InstanceId, message: &str) {
        let name = &self.state.start.workflow.step(id.step).name;
        let message = format!("step {name} failed: {message}");
        let why = Reason::GaveUp { message };
        if self.state.steps.placed.contains(&id) {
            self.emit(Do::Unassign { instance: id }, why.clone());
        }
        let about = Subject::Instance(id);
        self.emit(Do::Note { about }, why);
    }

    fn list_sources(&mut self) {
        for data in self.state.unlisted.clone() {
            if self.state.awaits_list(data) && !self.state.listing.contains(&data) {
                self.emit(Do::List { data }, Reason::Needed);
            }
        }
        if self.state.note_all_listed() {
            match self.state.empty_foreach() {
                Some(why) => {
                    let about = Subject::Run;
                    let message = why.to_string();
                    self.emit(Do::Note { about }, Reason::Failed { message });
                }
                None => self.refuse_what_never_fits(),
            }
        }
    }

    /// Before anything is moved: a step whose known inputs and declared outputs exceed every tier.
    fn refuse_what_never_fits(&mut self) {
        for i in 0..self.state.start.workflow.steps.len() {
            let (want, most) = (self.least_bytes(i), self.largest_tier(i));
            if want > most {
                let message = format!(
                    "step {} needs at least {} on one node and no tier holds more than {}; declare a larger tier \
                     (--tier NAME=PATH:SIZE), use more nodes with scatter, or select entries",
                    self.state.start.workflow.steps[i].name,
                    Bytes(want),
                    Bytes(most)
                );
                self.emit(
                    Do::Note {
                        about: Subject::Run,
                    },
                    Reason::Failed { message },
                );
                return;
            }
        }
    }

    fn largest_tier(&self, step: usize) -> u64 {
        let wanted = self.state.start.workflow.steps[step].tier.as_ref();
        let nodes = &self.state.start.cluster.nodes;
        let tiers = nodes
            .iter()
            .flat_map(|n| &n.tiers)
            .filter(|t| wanted.is_none_or(|w| *w == t.name));
        tiers.map(|t| t.capacity).max().unwrap_or(0)
    }

    /// The least that a step needs on the tier of one node, as far as that is certain.
    fn least_bytes(&self, step: usize) -> u64 {
        let w = &self.state.start.workflow;
        let s = &w.steps[step];
        let whole = |u: &&tarn_types::workflow::DatasetUse| {
            u.entry.is_none() && u.distribution != Distribution::Scatter
        };
        let inputs = s.uses.iter().filter(|u| u.role != Role::Out).filter(whole);
        let mut want = s.restart.map_or(0, |r| r.space);
        // A partition that names its own tier may be on another one.
        let own = w.partitions_of(StepId(step as u32));
        let beside = own.filter(|(_, p)| p.tier.is_none() || p.tier == s.tier);
        want = beside.fold(want, |sum, (_, p)| {
            sum.saturating_add(p.takes(s.nodes as usize))
        });
        for u in inputs {
            let known = u.reads.map(|v| self.state.data.version(u.data, v));
            let bytes = match known {
                // Data that is read in place takes no space.
                _ if w.dataset(u.data).of.is_some() => 0,
                Some(v) if v.sealed => v.stored(),
                _ => w.dataset(u.data).size.unwrap_or(0),
            };
            // An `inout` keeps its pre-image beside its output.
            let times = if u.role == Role::Inout { 2 } else { 1 };
            want = want.saturating_add(bytes.saturating_mul(times));
        }
        if s.foreach.is_none() {
            let outs = s.uses.iter().filter(|u| u.role == Role::Out).filter(whole);
            want = outs.fold(want, |sum, u| {
                sum.saturating_add(w.dataset(u.data).size.unwrap_or(0))
            });
        }
        want
    }

    fn interrupt(&mut self, signal: i32) {
        self.note(Subject::Run, Reason::Interrupted { signal });
        for id in self.state.steps.running.clone() {
            let Some(instance) = self.state.steps.instance(id) else {
                continue;
            };
            if instance.placed().is_some_and(|p| !p.stopping) {
                let attempt = instance.attempts;
                self.emit(
                    Do::Stop {
                        instance: id,
                        attempt,
                    },
                    Reason::Interrupted { signal },
                );
            }
        }
        let drains = self.state.drains;
        let goes_on = |t: &EngineTransfer| t.abandoned || (t.rescue && drains);
        let active = self.state.transfers.iter().filter(|(_, t)| !goes_on(t));
        for id in active.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.emit(Do::Abandon { id }, Reason::Interrupted { signal });
        }
    }

    /// Takes the commit of an earlier run instead of running an instance again.
    pub(super) fn reuse(&mut self) {
        while let Some(id) = self.state.steps.fresh.pop_first() {
            let Some(instance) = self.state.steps.instance(id) else {
                continue;
            };
            let keeps = (self.state.partitions).keeps(&self.state.start.workflow, id.step);
            let pending = instance.progress == crate::steps::InstanceProgress::Pending;
            let waiting = pending && !instance.forced && !keeps;
            let prior = instance
                .identity
                .and_then(|identity| self.state.prior.get(&identity))
                .copied();
            if let (true, Some(prior)) = (waiting, prior) {
                self.emit(
                    Do::Reuse {
                        instance: id,
                        prior,
                    },
                    Reason::Unchanged,
                );
            }
        }
    }
}
