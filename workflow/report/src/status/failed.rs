//! The failures of a run.

use super::{FailedNow, MAX_FAILURES};
use crate::count::was_stopped;
use crate::names::RunNames;
use crate::trace::RunTrace;
use tarn_types::action::Subject;
use tarn_types::history::{AttemptEnd, InstanceHistory, InstanceState};
use tarn_types::reason::Reason;

/// The instances that have failed, and the steps and datasets that were given up since the run began or was resumed: the first ones, and
/// how many more there are.
pub(super) fn failures(trace: &RunTrace, names: &RunNames<'_>) -> (Vec<FailedNow>, u64) {
    let history = &trace.history;
    let since = history.resumptions.last().copied().unwrap_or(0);
    let given_up = |about: &Subject| {
        let deeds = history.deeds.get(about)?;
        let mut newest = deeds.kept.iter().rev().filter(|d| d.at >= since);
        newest.find_map(|d| match &d.why {
            Reason::GaveUp { message } => Some(message.clone()),
            _ => None,
        })
    };
    let mut all = Vec::new();
    for (id, instance) in &history.instances {
        if instance.state == InstanceState::Failed && !was_stopped(instance) {
            let why = last_message(instance).or_else(|| given_up(&Subject::Instance(*id)));
            all.push(FailedNow {
                what: names.instance(*id),
                message: why.unwrap_or_default(),
            });
        }
    }
    for about in history.deeds.keys() {
        let what = match about {
            Subject::Step(id) => names.step(*id),
            Subject::Data(id) => names.data(*id),
            _ => continue,
        };
        if let Some(message) = given_up(about) {
            all.push(FailedNow { what, message });
        }
    }
    let more = all.len().saturating_sub(MAX_FAILURES) as u64;
    all.truncate(MAX_FAILURES);
    (all, more)
}

/// Why its last attempt failed.
fn last_message(instance: &InstanceHistory) -> Option<String> {
    match &instance.attempts.last()?.ended {
        Some((_, AttemptEnd::Failed { failure, .. })) => Some(failure.message.clone()),
        _ => None,
    }
}
