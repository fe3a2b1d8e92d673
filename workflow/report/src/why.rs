//! `tarn why`: decisions and failures, their times, and the reason as it was logged. Nothing is inferred.

mod teller;
mod topic;

use crate::ReportError;
use crate::names::RunNames;
use crate::suggest::nearest;
use crate::trace::RunTrace;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use tarn_ports::Record;
use tarn_types::action::{Action, Do};
use tarn_types::event::Event;
use tarn_types::reason::Reason;
use tarn_types::units::{Elapsed, Time};
use teller::ReasonRenderer;
use topic::{Topic, all_names, topic};

/// A decision or a failure, and its logged reason. Immediate repetitions are one entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedReason {
    /// When, in nanoseconds since the run's start.
    pub when: Time,
    /// The action, note or failure.
    pub what: String,
    /// The reason, as logged.
    pub why: String,
    /// How often it was logged in a row.
    pub times: u64,
    /// Of a failed attempt: the last lines of its log.
    pub log_tail: Option<String>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WhyError {
    /// There is no run.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// Nothing has this name.
    #[error("`{query}` is no step, dataset, node, tier or transfer of this run{}", did_you_mean(.near))]
    Unknown {
        /// The name in question.
        query: String,
        /// Names like it.
        near: Vec<String>,
    },
}

fn did_you_mean(near: &[String]) -> String {
    match near {
        [] => "; `tarn status` lists what there is".into(),
        _ => format!(
            "; did you mean {}?",
            near.iter()
                .map(|n| format!("`{n}`"))
                .collect::<Vec<_>>()
                .join(", ")
        ),
    }
}

/// Every logged reason about `query`: a step, `step[index]`, `step[element]`, a dataset, a node, a tier,
/// `node/tier`, a transfer (`x7`), or, when empty, the run: its outcome, what failed, and what each
/// unfinished instance was last waiting for.
///
/// # Errors
/// When nothing has this name; names like it are suggested.
pub fn why(records: &[Record], query: &str) -> Result<Vec<LoggedReason>, WhyError> {
    let trace = RunTrace::of(records)?;
    let names = RunNames::new(&trace.start, &trace.history);
    let query = query.trim();
    let topic = topic(&trace, &names, query).ok_or_else(|| WhyError::Unknown {
        query: query.into(),
        near: nearest(query, all_names(&trace, &names).iter().map(String::as_str)),
    })?;
    let mut teller = ReasonRenderer::new(&trace, &names, &topic);
    for record in records {
        teller.event(record.now, &record.event);
        for action in &record.actions {
            teller.action(record.now, action);
        }
    }
    Ok(teller.finish())
}

/// The decisions that a reader of the report would look for: waits, retries, space that was made, and work that was given up.
pub(crate) fn notes(
    trace: &RunTrace,
    names: &RunNames<'_>,
    records: &[Record],
) -> Vec<LoggedReason> {
    let topic = Topic::run();
    let mut teller = ReasonRenderer::new(trace, names, &topic);
    for record in records {
        if matches!(
            record.event,
            Event::NodeLost { .. } | Event::NodeBack { .. }
        ) {
            teller.event(record.now, &record.event);
        }
        for action in record.actions.iter().filter(|a| is_notable(a)) {
            teller.add_answer(
                record.now,
                teller.what(&action.what),
                names.reason(&action.why),
                None,
            );
        }
    }
    teller.finish()
}

fn is_notable(action: &Action) -> bool {
    let what = matches!(
        action.what,
        Do::Note { .. } | Do::Abandon { .. } | Do::Unassign { .. } | Do::Stop { .. }
    );
    let why = matches!(
        action.why,
        Reason::Retry { .. }
            | Reason::Restart { .. }
            | Reason::EvictForSpace { .. }
            | Reason::DemoteForSpace { .. }
            | Reason::DrainForSpace { .. }
            | Reason::OutputLost { .. }
            | Reason::GivenUp
            | Reason::Rescue
            | Reason::BeginAnew
    );
    what || why || matches!(action.what, Do::Finish { .. })
}

/// Answers as text: a column of times, the action, and below it the reason.
pub fn render(answers: &[LoggedReason]) -> String {
    let mut out = String::new();
    for a in answers {
        let again = if a.times > 1 {
            format!(" ({} times)", a.times)
        } else {
            String::new()
        };
        let _ = writeln!(out, "{:>9}  {}{again}", Elapsed(a.when).to_string(), a.what);
        let _ = writeln!(out, "{:>9}  because {}", "", a.why);
        for line in a.log_tail.iter().flat_map(|t| t.lines()) {
            let _ = writeln!(out, "{:>9}  | {line}", "");
        }
    }
    out
}
