//! The end: all done, failed, or interrupted; and a guard against a run in which nothing can proceed.

use super::Decide;
use crate::data::PartReplicaState;
use crate::state::RunStopReason;
use std::collections::BTreeMap;
use tarn_types::account::sub;
use tarn_types::action::{Do, Outcome, Subject};
use tarn_types::id::{DataId, StepId};
use tarn_types::part::Place;
use tarn_types::reason::{NotStarted, Reason};
use tarn_types::units::SECOND;
use tarn_types::workflow::Keep;

/// Failures, and steps that did not run because of them, that the end of a run names.
const NAMED: usize = 8;

impl Decide<'_> {
    /// `nothing_new`: this round of choices has changed nothing so far.
    pub(super) fn end(&mut self, nothing_new: bool) {
        if self.state.drains {
            self.rescue();
        }
        let quiet = self.state.steps.running.is_empty()
            && self.state.transfers.is_empty()
            && self.state.leaving == 0;
        match self.state.stop.clone() {
            Some(RunStopReason::Interrupted(signal)) if quiet => {
                if self.state.drains {
                    self.report_unrescued();
                }
                self.report_not_run(&Reason::Interrupted { signal });
                let outcome = Outcome::Interrupted(signal);
                self.emit(Do::Finish { outcome }, Reason::Interrupted { signal });
            }
            Some(RunStopReason::Interrupted(_)) => {}
            Some(RunStopReason::Failed { about, message }) => {
                self.rescue();
                if quiet && !self.rescuing() && self.state.transfers.is_empty() {
                    self.report_unrescued();
                    let outcome = match self.refused() {
                        true => Outcome::Refused,
                        false => Outcome::Failed,
                    };
                    if outcome == Outcome::Failed {
                        self.report_not_run(&Reason::AfterFailure { about });
                    }
                    let why = match about {
                        Subject::Run => Reason::Failed { message },
                        _ => Reason::AfterFailure { about },
                    };
                    self.emit(Do::Finish { outcome }, why);
                }
            }
            Some(RunStopReason::Incomplete) => {
                self.rescue();
                if quiet && !self.rescuing() && self.state.transfers.is_empty() {
                    self.report_unrescued();
                    let outcome = Outcome::Failed;
                    let why = self.incomplete(&self.state.not_run());
                    self.emit(Do::Finish { outcome }, why);
                }
            }
            None if self.all_done() => self.clean_up(),
            None if nothing_new => self.guard(),
            None => {}
        }
    }

    /// Takes every assignment back, once in one go of decisions; whether there was anything to take back.
    fn take_back(&mut self) -> bool {
        let taken = std::mem::replace(&mut self.taken_back, true);
        let assigned = match taken {
            true => Vec::new(),
            false => self.state.steps.placed.iter().copied().collect(),
        };
        for instance in &assigned {
            let instance = *instance;
            self.emit(Do::Unassign { instance }, Reason::SpaceGone);
        }
        !assigned.is_empty()
    }

    /// Reports why each step has not run, or not with all of its instances: the failure of something that it needs, or
    /// the reason why nothing new was started.
    fn report_not_run(&mut self, otherwise: &Reason) {
        let needs = self.state.not_run();
        let blocked = self.state.instances_not_run();
        for step in (0..self.state.steps.all.len() as u32).map(StepId) {
            // How many of its open instances need the failed one; of a step that is not bound: all.
            let of_step = blocked.iter().filter(|(id, _)| id.step == step);
            let open = self.state.open_instances(step);
            let need_it = of_step.clone().count() as u64;
            let not_started = open.map(|mut all| {
                sub(&mut all, need_it, "open instances");
                all
            });
            let cause = match not_started {
                Some(_) => of_step.map(|(_, cause)| cause).next(),
                None => needs.get(&step),
            };
            let why = match (cause, otherwise) {
                (Some(&needs), Reason::AfterFailure { about }) => Reason::NotRun {
                    needs,
                    not_started: not_started.filter(|n| *n > 0).map(|instances| NotStarted {
                        need_it,
                        instances,
                        after: *about,
                    }),
                },
                (Some(&needs), _) => Reason::NotRun {
                    needs,
                    not_started: None,
                },
                (None, _) if open != Some(0) => otherwise.clone(),
                (None, _) => continue,
            };
            let about = Subject::Step(step);
            self.emit(Do::Note { about }, why);
        }
    }

    /// Reports which steps and instances do not run because of a failure, and ends the run.
    fn end_incomplete(&mut self) {
        for (id, needs) in self.state.instances_not_run() {
            let about = Subject::Instance(id);
            let not_started = None;
            self.emit(Do::Note { about }, Reason::NotRun { needs, not_started });
        }
        let not_run = self.state.not_run();
        for (step, needs) in &not_run {
            let about = Subject::Step(*step);
            let (needs, not_started) = (*needs, None);
            self.emit(Do::Note { about }, Reason::NotRun { needs, not_started });
        }
        let why = self.incomplete(&not_run);
        let about = Subject::Run;
        self.emit(Do::Note { about }, why);
    }

    fn incomplete(&self, not_run: &BTreeMap<StepId, Subject>) -> Reason {
        let failed = &self.state.given_up.all;
        Reason::Incomplete {
            failed: failed.iter().take(NAMED).copied().collect(),
            failures: failed.len() as u64,
            not_run: not_run.keys().take(NAMED).copied().collect(),
            steps: not_run.len() as u64,
        }
    }

    fn all_done(&self) -> bool {
        if self.state.steps.incomplete > 0
            || !self.state.given_up.all.is_empty()
            || !self.state.transfers.is_empty()
            || !self.state.unkept.is_empty()
        {
            return false;
        }
        let w = &self.state.start.workflow;
        (0u32..).zip(&w.data).all(|(i, d)| {
            let version = self
                .state
                .data
                .version(DataId(i), w.last_version(DataId(i)));
            d.dest.is_none() || version.delivered || version.parts.is_empty()
        })
    }

    /// The run as a whole was refused before anything moved or ran.
    pub(super) fn refused(&self) -> bool {
        let untouched = || self.state.steps.instances().all(|(_, i)| i.attempts == 0);
        let about = match &self.state.stop {
            Some(RunStopReason::Failed { about, .. }) => Some(*about),
            _ => None,
        };
        about == Some(Subject::Run) && self.state.next_transfer == 0 && untouched()
    }

    /// Removes replicas that nothing asks to keep; when all of them are gone, the run is over.
    fn clean_up(&mut self) {
        let w = &self.state.start.workflow;
        let mut going = Vec::new();
        for (name, part) in self.state.data.parts() {
            let keep = w.dataset(name.data).keep;
            if matches!(keep, Keep::For(_) | Keep::Forever)
                && w.last_version(name.data) == name.version
            {
                continue;
            }
            let ours = part
                .replicas
                .iter()
                .filter(|(p, _)| matches!(p, Place::Node(_) | Place::Drained));
            let there = ours.filter(|(_, r)| r.state == PartReplicaState::Present && r.pins == 0);
            going.extend(there.map(|(p, _)| (name, p.clone())));
        }
        for (name, at) in going {
            self.evict_or_cache(name, &at, Reason::WorkflowEnded);
        }
        if self.state.leaving == 0 {
            let outcome = Outcome::Done;
            self.emit(Do::Finish { outcome }, Reason::AllDone);
        }
    }

    /// Nothing is under way and the run is not over: instances that are assigned but lack space for their inputs are
    /// placed again, and the others wait for another run's space if that is the cause. Otherwise this is reported,
    /// instead of hanging.
    fn guard(&mut self) {
        if !self.nothing_under_way() || self.take_back() {
            return;
        }
        let failed = !self.state.given_up.all.is_empty();
        if failed && self.state.steps.placed.is_empty() && self.state.all_wait_for_given_up() {
            return self.end_incomplete();
        }
        let cluster = &self.state.start.cluster;
        let tier_refs = (0u32..).zip(&cluster.nodes).flat_map(|(n, node)| {
            (0u32..).zip(&node.tiers).map(move |(t, tier)| {
                let tier_ref = tarn_types::id::TierRef {
                    node: tarn_types::id::NodeId(n),
                    tier: tarn_types::id::TierId(t),
                };
                (tier_ref, tier.capacity)
            })
        });
        let shared = tier_refs
            .into_iter()
            .filter(|(s, _)| !self.state.ledger.nodes.is_lost(s.node))
            .any(|(s, capacity)| self.state.ledger.nodes.tier(s).capacity() < capacity);
        let lost = self.state.ledger.nodes.lost() > 0;
        if let Some((id, message)) = (lost || !shared).then(|| self.stuck()).flatten() {
            let about = Subject::Instance(id);
            return self.emit(Do::Note { about }, Reason::Failed { message });
        }
        if shared {
            self.state.deadline = Some(self.state.now + SECOND);
            return;
        }
        if failed {
            return self.end_incomplete();
        }
        let pending = self.state.steps.pending.first().map(|(_, id)| *id);
        let waiting = pending.or(self.state.steps.placed.first().copied());
        let name = waiting.map_or("the workflow".to_owned(), |id| {
            format!("step {}", self.state.start.workflow.step(id.step).name)
        });
        let message = format!(
            "{name} cannot proceed and nothing else is under way; this is an error in tarn, please report its log"
        );
        self.emit(
            Do::Note {
                about: Subject::Run,
            },
            Reason::Failed { message },
        );
    }
}
