//! The one fold over a log: [`History`], and beside it what has to be caught in passing: when an attempt's
//! inputs were there, and how many of their bytes had not moved for it.

use crate::ReportError;
use std::collections::{BTreeMap, BTreeSet};
use tarn_ports::Record;
use tarn_types::action::{AttemptSpec, Do};
use tarn_types::event::{AttemptOutcome, Event, Output, RunErrorKind, Start};
use tarn_types::history::{Attempt, AttemptEnd, History, TransferEnd, TransferHistory};
use tarn_types::id::{InstanceId, NodeId, StepId, TierId, TierRef, TransferId};
use tarn_types::part::{PartRef, Place};
use tarn_types::units::Time;

/// An attempt: its instance and its position in [`tarn_types::history::InstanceHistory::attempts`].
pub(crate) type AttemptKey = (InstanceId, usize);

/// The inputs of an attempt.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Inputs {
    /// When the last of its replicas was there.
    pub(crate) there: Time,
    /// Bytes of all replicas in its views: the bytes that it would read from the external store if every step did.
    pub(crate) read: u64,
    /// Of these, bytes that were stored there already. Known once it has committed; 0 if it has not.
    pub(crate) retained: u64,
}

/// Whether an attempt was stopped because the run ended: it did not fail by itself.
pub(crate) fn is_stopped(attempt: &Attempt) -> bool {
    matches!(&attempt.ended, Some((_, AttemptEnd::Failed { failure, .. }))
        if failure.kind == RunErrorKind::Cancelled)
}

/// Everything that the totals are computed from.
#[derive(Debug)]
pub(crate) struct RunTrace {
    pub(crate) history: History,
    pub(crate) start: Box<Start>,
    pub(crate) inputs: BTreeMap<AttemptKey, Inputs>,
    /// Bytes of the outputs of the attempts that committed, a part that several nodes hold once.
    pub(crate) written: BTreeMap<AttemptKey, u64>,
    /// For each resumption, the time of the record before it: nothing is known to have run after that.
    alive_until: BTreeMap<Time, Time>,
    /// Of each open attempt, the replicas in its views that a transfer had brought: (arrival, bytes).
    open: BTreeMap<InstanceId, Vec<(u64, u64)>>,
    /// Replicas that are where a transfer brought them, with the number of that arrival.
    arrivals: BTreeMap<(PartRef, TierRef), u64>,
    /// Arrivals that no committed attempt has read yet: the first that does bears the movement.
    unread: BTreeSet<u64>,
    arrived: u64,
}

impl RunTrace {
    pub(crate) fn of(records: &[Record]) -> Result<Self, ReportError> {
        let start = records.iter().find_map(|r| match &r.event {
            Event::Started(start) => Some(start.clone()),
            _ => None,
        });
        let mut trace = Self {
            history: History::new(),
            start: start.ok_or(ReportError::NotStarted)?,
            inputs: BTreeMap::new(),
            written: BTreeMap::new(),
            alive_until: BTreeMap::new(),
            open: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            unread: BTreeSet::new(),
            arrived: 0,
        };
        for record in records {
            trace.apply(record);
        }
        Ok(trace)
    }

    pub(crate) fn apply(&mut self, record: &Record) {
        let before = self.history.now;
        self.before_state(&record.event);
        self.history
            .apply(record.now, &record.event, &record.actions);
        match &record.event {
            Event::Resumed { .. } => {
                self.alive_until.insert(self.history.now, before);
                self.open.clear();
                self.forget_arrivals();
            }
            Event::NodeLost { .. } => self.forget_arrivals(),
            Event::Evicted {
                part,
                at: Place::Node(tier_ref),
            } => {
                self.arrivals.remove(&(*part, *tier_ref));
            }
            Event::TransferDone { id, .. } => self.arrived(*id),
            _ => {}
        }
        for action in &record.actions {
            if let Do::Run(run) = &action.what {
                self.started(run);
            }
        }
    }

    /// Arrivals whose replica is not there any more.
    fn forget_arrivals(&mut self) {
        let history = &self.history;
        let there = |(part, tier_ref): &(PartRef, TierRef)| {
            history.places(*part).any(|p| *p == Place::Node(*tier_ref))
        };
        self.arrivals.retain(|at, _| there(at));
    }

    /// The end of an attempt is read before [`History`] closes it: its position is that of the open one.
    fn before_state(&mut self, event: &Event) {
        let Event::Ended {
            instance,
            attempt,
            ended,
            ..
        } = event
        else {
            return;
        };
        let brought = self.open.remove(instance).unwrap_or_default();
        let AttemptOutcome::Committed { outputs, .. } = ended else {
            return;
        };
        self.made_here(*instance, outputs);
        let attempts = self
            .history
            .instances
            .get(instance)
            .map_or(&[][..], |i| &i.attempts);
        let open = |a: &Attempt| a.attempt == *attempt && a.ended.is_none();
        let Some(key) = attempts.iter().rposition(open).map(|at| (*instance, at)) else {
            return;
        };
        let parts = outputs.iter().flat_map(|o| &o.parts);
        let written = parts.fold(0u64, |sum, (info, _)| sum.saturating_add(info.bytes));
        self.written.insert(key, written);
        let unread = brought
            .into_iter()
            .filter(|(arrival, _)| self.unread.remove(arrival));
        let moved = unread.fold(0u64, |sum, (_, bytes)| sum.saturating_add(bytes));
        if let Some(inputs) = self.inputs.get_mut(&key) {
            inputs.retained = inputs.read.saturating_sub(moved);
        }
    }

    /// A part that a step has just made did not come by a transfer, even if an earlier make of the same part did.
    fn made_here(&mut self, instance: InstanceId, outputs: &[Output]) {
        for output in outputs {
            for (info, _) in &output.parts {
                let part = PartRef {
                    data: output.data,
                    version: output.version,
                    origin: instance.index,
                    seq: info.seq,
                };
                let tier_ref = |n| TierRef {
                    node: NodeId(n),
                    tier: TierId(n),
                };
                let old = self
                    .arrivals
                    .range((part, tier_ref(0))..=(part, tier_ref(u32::MAX)));
                let old: Vec<(PartRef, TierRef)> = old.map(|(at, _)| *at).collect();
                for at in old {
                    self.arrivals.remove(&at);
                }
            }
        }
    }

    fn arrived(&mut self, id: TransferId) {
        let Some(t) = self.history.transfers.get(&id) else {
            return;
        };
        if let Place::Node(tier_ref) = t.order.to {
            for moved in &t.order.parts {
                self.arrived += 1;
                self.arrivals.insert((moved.part, tier_ref), self.arrived);
                self.unread.insert(self.arrived);
            }
        }
    }

    fn started(&mut self, run: &AttemptSpec) {
        let mut inputs = Inputs::default();
        let mut brought = Vec::new();
        for held in run.views.iter().flatten().flatten() {
            let bytes = self.history.parts.get(&held.part).map_or(0, |i| i.bytes);
            inputs.read = inputs.read.saturating_add(bytes);
            let replicas = self.history.replicas.get(&held.part);
            if let Some(replica) = replicas.and_then(|r| r.get(&Place::Node(held.tier_ref))) {
                inputs.there = inputs.there.max(replica.since);
            }
            if let Some(arrival) = self.arrivals.get(&(held.part, held.tier_ref)) {
                brought.push((*arrival, bytes));
            }
        }
        let attempts = self
            .history
            .instances
            .get(&run.instance)
            .map_or(0, |i| i.attempts.len());
        if let Some(at) = attempts.checked_sub(1) {
            self.inputs.insert((run.instance, at), inputs);
        }
        self.open.insert(run.instance, brought);
    }

    /// The last moment that the log knows of.
    pub(crate) fn end(&self) -> Time {
        self.history.outcome.map_or(self.history.now, |o| o.0)
    }

    /// When the run's process was last known to live, for activities that ended by its death at `resumed`.
    fn died(&self, resumed: Time) -> Time {
        self.alive_until.get(&resumed).copied().unwrap_or(resumed)
    }

    /// When an attempt ended: now, if it still runs.
    pub(crate) fn attempt_end(&self, attempt: &Attempt) -> Time {
        let end = match &attempt.ended {
            Some((at, AttemptEnd::Interrupted)) => self.died(*at),
            Some((at, _)) => *at,
            None => self.history.now,
        };
        end.max(attempt.started)
    }

    /// When a transfer ended: now, if it is in flight.
    pub(crate) fn transfer_end(&self, transfer: &TransferHistory) -> Time {
        let end = match &transfer.ended {
            Some((at, TransferEnd::Interrupted)) => self.died(*at),
            Some((at, _)) => *at,
            None => self.history.now,
        };
        end.max(transfer.ordered)
    }

    /// When an attempt's inputs were there: between its assignment and its start.
    pub(crate) fn inputs_there(&self, key: AttemptKey, attempt: &Attempt) -> Time {
        let there = self.inputs.get(&key).map_or(0, |i| i.there);
        there.max(attempt.assigned).min(attempt.started)
    }

    /// Cores that each attempt of a step takes on each of its nodes.
    pub(crate) fn cores(&self, step: StepId) -> u32 {
        let step = self.start.workflow.steps.get(step.at());
        step.map_or(1, |s| s.cores)
    }

    /// Every attempt with its key, in the order of steps and elements.
    pub(crate) fn attempts(&self) -> impl Iterator<Item = (AttemptKey, &Attempt)> {
        self.history.instances.iter().flat_map(|(id, i)| {
            let numbered = i.attempts.iter().enumerate();
            numbered.map(|(at, a)| ((*id, at), a))
        })
    }
}
