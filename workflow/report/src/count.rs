//! How many instances are in which state, those included that nothing was decided about yet.

use crate::trace::{RunTrace, is_stopped};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::history::{InstanceHistory, InstanceState};
use tarn_types::id::{DataId, StepId};
use tarn_types::part::PartClass;
use tarn_types::pattern::EntryPattern;
use tarn_types::text::some_of;
use tarn_types::workflow::Foreach;

/// Instances by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InstanceCounts {
    /// Not placed.
    pub waiting: u64,
    /// Placed, inputs on their way or cores still busy.
    pub staging: u64,
    /// Running.
    pub running: u64,
    /// Committed in this run.
    pub committed: u64,
    /// Taken from an earlier run.
    pub reused: u64,
    /// Failed at the last attempt.
    pub failed: u64,
    /// Steps whose number of instances is not known yet: the data they run over is not made.
    pub unexpanded_steps: u64,
}

impl InstanceCounts {
    /// Those whose state is known, in whichever state.
    fn instances(&self) -> u64 {
        self.waiting + self.staging + self.running + self.committed + self.reused + self.failed
    }
}

/// Those of each step.
pub(crate) fn counts_of_steps(trace: &RunTrace) -> Vec<InstanceCounts> {
    let expected = (0..).map(StepId).zip(expected_instances(trace));
    let of_step = |(step, expected): (StepId, Option<u64>)| {
        let mut counts = InstanceCounts::default();
        let mut known = 0u64;
        for (_, instance) in trace.history.instances_of(step) {
            known += 1;
            *match instance.state {
                InstanceState::Waiting => &mut counts.waiting,
                InstanceState::Assigned => &mut counts.staging,
                InstanceState::Running => &mut counts.running,
                InstanceState::Committed => &mut counts.committed,
                InstanceState::Reused => &mut counts.reused,
                InstanceState::Failed if was_stopped(instance) => &mut counts.waiting,
                InstanceState::Failed => &mut counts.failed,
            } += 1;
        }
        debug_assert_eq!(counts.instances(), known, "each instance is in one state");
        counts.unexpanded_steps = u64::from(expected.is_none());
        // There may be more than are expected: a log may have more than its workflow has.
        counts.waiting += expected.unwrap_or(0).saturating_sub(known);
        // Nothing is on its way in a run that has ended: waiting instances do not run any more.
        if trace.history.outcome.is_some() {
            counts.waiting += std::mem::take(&mut counts.staging);
            counts.waiting += std::mem::take(&mut counts.running);
        }
        counts
    };
    expected.map(of_step).collect()
}

/// Whether the last attempt only ended because the run was stopped: the instance has not failed.
pub(crate) fn was_stopped(instance: &InstanceHistory) -> bool {
    instance.attempts.last().is_some_and(is_stopped)
}

/// The names of the steps whose number of instances is not known, `most` at most.
pub(crate) fn unexpanded(trace: &RunTrace, most: usize) -> Vec<String> {
    let steps = trace.start.workflow.steps.iter();
    let unknown = steps
        .zip(expected_instances(trace))
        .filter(|(_, expected)| expected.is_none());
    let names = unknown.map(|(step, _)| step.name.clone());
    names.take(most).collect()
}

/// Those of all steps together.
pub(crate) fn counts(trace: &RunTrace) -> InstanceCounts {
    let steps = counts_of_steps(trace).into_iter();
    steps.fold(InstanceCounts::default(), |a, b| InstanceCounts {
        waiting: a.waiting + b.waiting,
        staging: a.staging + b.staging,
        running: a.running + b.running,
        committed: a.committed + b.committed,
        reused: a.reused + b.reused,
        failed: a.failed + b.failed,
        unexpanded_steps: a.unexpanded_steps + b.unexpanded_steps,
    })
}

/// The steps whose number of instances is not known, after the counts of those whose number is. `may_come`: it may be known later.
pub(crate) fn unexpanded_text(steps: u64, names: &[String], may_come: bool) -> String {
    let named = names.iter().map(|name| format!("`{name}`"));
    let named = if names.is_empty() {
        String::new()
    } else {
        format!(" ({})", some_of(named, steps))
    };
    match (steps, may_come) {
        (0, _) => String::new(),
        (1, true) => format!("; and 1 step whose number of instances is not known yet{named}"),
        (1, false) => format!("; and 1 step with an unknown number of instances{named}"),
        (n, true) => format!("; and {n} steps whose number of instances is not known yet{named}"),
        (n, false) => format!("; and {n} steps with an unknown number of instances{named}"),
    }
}

/// How many instances each step has; `None` while the data that it runs over is not complete. A step runs over
/// the data of at most one other, so that the steps before it form a chain: it is walked, not recursed into.
fn expected_instances(trace: &RunTrace) -> Vec<Option<u64>> {
    let steps = &trace.start.workflow.steps;
    let mut producers = BTreeMap::new();
    for (at, step) in steps.iter().enumerate() {
        let made = step.uses.iter().filter_map(|u| Some((u.data, u.makes?)));
        producers.extend(made.map(|version| (version, at)));
    }
    let before = |at: usize| match &steps[at].foreach {
        Some(Foreach::Entries { data, version, .. }) => producers.get(&(*data, *version)).copied(),
        _ => None,
    };
    let mut visited = vec![false; steps.len()];
    let mut expected = vec![None; steps.len()];
    for at in 0..steps.len() {
        let mut chain = Vec::new();
        let mut next = Some(at);
        while let Some(step) = next.filter(|s| !std::mem::replace(&mut visited[*s], true)) {
            chain.push(step);
            next = before(step);
        }
        for step in chain.into_iter().rev() {
            expected[step] = match &steps[step].foreach {
                None => Some(1),
                Some(Foreach::Values(values)) => Some(values.len() as u64),
                Some(Foreach::Entries {
                    data,
                    version,
                    pattern,
                    ..
                }) => is_complete(trace, *data, *version, before(step), &expected)
                    .then(|| entries(trace, *data, *version, pattern)),
            };
        }
    }
    expected
}

/// Whether all parts of a version are known: it was listed, or everything that makes it has ended.
fn is_complete(
    trace: &RunTrace,
    data: DataId,
    version: u32,
    producer: Option<usize>,
    expected: &[Option<u64>],
) -> bool {
    let Some(producer) = producer else {
        return trace.history.parts_of(data, version).next().is_some();
    };
    let instances = trace.history.instances_of(StepId(producer as u32));
    let made = instances.filter(|(_, i)| i.state.is_done()).count() as u64;
    expected[producer].is_some_and(|wanted| made >= wanted)
}

fn entries(trace: &RunTrace, data: DataId, version: u32, pattern: &EntryPattern) -> u64 {
    let parts = trace.history.parts_of(data, version);
    let names: BTreeSet<&str> = parts
        .filter_map(|(_, info)| match &info.class {
            PartClass::Entry(name) if pattern.matches(name) => Some(name.as_str()),
            _ => None,
        })
        .collect();
    names.len() as u64
}
