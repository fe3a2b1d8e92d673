//! `tarn status`: where a run stands.

mod count;
mod text;

use crate::ReportError;
use crate::names::{Names, kind_name};
use crate::summarize::{emulated, lost_nodes};
use crate::summary::{Emulated, LostNode, OutcomeName, SCHEMA};
use crate::trace::Trace;
use count::counts;
use serde::{Deserialize, Serialize};
use tarn_base::action::Outcome;
use tarn_base::history::{AttemptEnd, TransferEnd};
use tarn_base::id::{NodeId, Spot, TierId};
use tarn_base::units::{Nanos, Time};
use tarn_ports::Record;

/// Where a run stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The version of this shape.
    pub schema: u32,
    /// The run's name.
    pub run: String,
    /// The workflow's name.
    pub workflow: String,
    /// The policy.
    pub policy: String,
    /// How it ended; `unfinished` while it runs (or when it died).
    pub outcome: OutcomeName,
    /// Nanoseconds since its start, or until its end.
    pub elapsed_ns: Nanos,
    /// What the external store is made to look like.
    pub emulated: Option<Emulated>,
    /// Instances by state.
    pub counts: Counts,
    /// What runs.
    pub running: Vec<Running>,
    /// What moves.
    pub transfers: Vec<Moving>,
    /// What lies where.
    pub tiers: Vec<Fill>,
    /// Every loss of a node, in order.
    #[serde(default)]
    pub lost_nodes: Vec<LostNode>,
    /// The last thing that failed.
    pub last_failure: Option<LastFailure>,
}

/// Instances by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
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

/// A running attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// The instance.
    pub name: String,
    /// Its nodes.
    pub nodes: Vec<String>,
    /// The attempt, from 1.
    pub attempt: u32,
    /// Since it was started.
    pub elapsed_ns: Nanos,
}

/// A transfer that has been ordered and has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moving {
    /// Its id, as `tarn why` takes it.
    pub id: String,
    /// The dataset and version.
    pub data: String,
    /// Its kind.
    pub kind: String,
    /// Where it goes.
    pub to: String,
    /// Bytes of its parts.
    pub bytes: u64,
    /// Since it was ordered.
    pub elapsed_ns: Nanos,
}

/// What a tier holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fill {
    /// The node.
    pub node: String,
    /// The tier.
    pub tier: String,
    /// Bytes it holds of this run.
    pub held: u64,
    /// Bytes this run may use.
    pub capacity: u64,
}

/// A failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastFailure {
    /// When, in nanoseconds since the start.
    pub when: Time,
    /// What failed.
    pub what: String,
    /// Why, as reported.
    pub message: String,
    /// Last lines of the step's log.
    pub log_tail: Option<String>,
}

/// Where a run stands at `now` (nanoseconds since its start; the last record's time if that is later).
///
/// # Errors
/// When the log has no beginning.
pub fn status(records: &[Record], now: Time) -> Result<Status, ReportError> {
    let trace = Trace::of(records)?;
    let names = Names::new(&trace.start, &trace.history);
    let (outcome, now) = match trace.history.outcome {
        None => (OutcomeName::Unfinished, now.max(trace.history.now)),
        Some((at, Outcome::Done)) => (OutcomeName::Done, at),
        Some((at, Outcome::Failed)) => (OutcomeName::Failed, at),
        Some((at, Outcome::Refused)) => (OutcomeName::Refused, at),
        Some((at, Outcome::Interrupted(_))) => (OutcomeName::Interrupted, at),
    };
    Ok(Status {
        schema: SCHEMA,
        run: trace.start.run.clone(),
        workflow: trace.start.workflow.name.clone(),
        policy: trace.start.options.policy.to_string(),
        outcome,
        elapsed_ns: now,
        emulated: emulated(&trace),
        counts: counts(&trace),
        running: running(&trace, &names, now),
        transfers: moving(&trace, &names, now),
        tiers: fills(&trace),
        lost_nodes: lost_nodes(&trace),
        last_failure: last_failure(&trace, &names),
    })
}

fn running(trace: &Trace, names: &Names<'_>, now: Time) -> Vec<Running> {
    let open = trace.attempts().filter(|(_, a)| a.ended.is_none());
    let open = open.map(|((id, _), a)| Running {
        name: names.instance(id),
        nodes: a.nodes.iter().map(|s| names.node(s.node)).collect(),
        attempt: a.attempt,
        elapsed_ns: now.saturating_sub(a.started),
    });
    open.collect()
}

fn moving(trace: &Trace, names: &Names<'_>, now: Time) -> Vec<Moving> {
    let open = trace
        .history
        .transfers
        .values()
        .filter(|t| t.ended.is_none());
    let open = open.map(|t| Moving {
        id: t.order.id.to_string(),
        data: names.version(t.order.data, t.order.version),
        kind: kind_name(t.order.kind).into(),
        to: names.place(&t.order.to),
        bytes: t.expected,
        elapsed_ns: now.saturating_sub(t.ordered),
    });
    open.collect()
}

fn fills(trace: &Trace) -> Vec<Fill> {
    let mut fills = Vec::new();
    for (n, node) in (0..).zip(&trace.start.cluster.nodes) {
        for (t, tier) in (0..).zip(&node.tiers) {
            let spot = Spot {
                node: NodeId(n),
                tier: TierId(t),
            };
            let changed = trace.history.capacity.get(&spot).and_then(|c| c.last());
            fills.push(Fill {
                node: node.name.clone(),
                tier: tier.name.clone(),
                held: trace.history.held(spot),
                capacity: changed.map_or(tier.capacity, |c| c.1),
            });
        }
    }
    fills
}

fn last_failure(trace: &Trace, names: &Names<'_>) -> Option<LastFailure> {
    let attempts = trace.attempts().filter_map(|((id, _), a)| match &a.ended {
        Some((when, AttemptEnd::Failed { failure, log_tail })) => Some(LastFailure {
            when: *when,
            what: format!("attempt {} of {}", a.attempt, names.instance(id)),
            message: failure.message.clone(),
            log_tail: Some(log_tail.clone()).filter(|t| !t.is_empty()),
        }),
        _ => None,
    });
    let transfers = trace
        .history
        .transfers
        .values()
        .filter_map(|t| match &t.ended {
            Some((when, TransferEnd::Failed(failure))) => Some(LastFailure {
                when: *when,
                what: format!(
                    "transfer {} of {}",
                    t.order.id,
                    names.version(t.order.data, t.order.version)
                ),
                message: failure.message.clone(),
                log_tail: None,
            }),
            _ => None,
        });
    attempts.chain(transfers).max_by_key(|f| f.when)
}
