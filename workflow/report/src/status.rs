//! `tarn status`: the state of a run.

mod failed;
mod meter;
mod text;

use crate::ReportError;
use crate::count::{InstanceCounts, counts, unexpanded};
use crate::names::{RunNames, kind_name};
use crate::summarize::{emulated, lost_nodes, not_rescued, not_run};
use crate::summary::{
    Emulated, LostNode, MAX_NOT_RUN, NotRescued, OutcomeName, SCHEMA, SkippedStep,
};
use crate::trace::RunTrace;
use failed::failures;
use meter::Meters;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tarn_ports::Record;
use tarn_types::action::{Outcome, Subject};
use tarn_types::history::{AttemptEnd, DeedKind, TransferEnd, TransferHistory};
use tarn_types::id::{InstanceId, NodeId, TierId, TierRef};
use tarn_types::nodes::{LiveRunStatus, Phase};
use tarn_types::part::{PartMove, Place};
use tarn_types::reason::Reason;
use tarn_types::units::{Nanos, Time};

/// Failures that [`RunStatus::failures`] lists.
pub const MAX_FAILURES: usize = 100;

/// The state of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStatus {
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
    /// The emulated external store.
    pub emulated: Option<Emulated>,
    /// Instances by state.
    pub counts: InstanceCounts,
    /// The running attempts.
    pub running: Vec<RunningAttemptStatus>,
    /// The open transfers.
    pub transfers: Vec<ActiveTransferStatus>,
    /// The nodes.
    #[serde(default)]
    pub nodes: Vec<NodeNow>,
    /// The use of the tiers.
    pub tiers: Vec<TierFillStatus>,
    /// The bytes moved so far, by kind.
    #[serde(default)]
    pub moved: Vec<TransferKindBytes>,
    /// Whether the run's process is there; `None` where nobody has looked.
    #[serde(default)]
    pub alive: Option<bool>,
    /// Every loss of a node, in order.
    #[serde(default)]
    pub lost_nodes: Vec<LostNode>,
    /// Steps that did not run because of a failure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_run: Vec<SkippedStep>,
    /// Datasets with `on_failure = "drain"` that were not copied out completely when the run ended early.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_rescued: Vec<NotRescued>,
    /// The first [`MAX_FAILURES`] of the failures for good or at the last attempt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<FailedNow>,
    /// How many more have failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_failures: u64,
    /// The first [`crate::summary::MAX_NOT_RUN`] of the steps whose number of instances is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unexpanded: Vec<String>,
    /// The last thing that failed.
    pub last_failure: Option<LastFailure>,
}

/// A running attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningAttemptStatus {
    /// The instance.
    pub name: String,
    /// Its nodes.
    pub nodes: Vec<String>,
    /// The attempt, from 1.
    pub attempt: u32,
    /// `preparing`, `running` or `committing`; known from the live status.
    #[serde(default)]
    pub phase: Option<String>,
    /// Since it was started.
    pub elapsed_ns: Nanos,
    /// Of a step that continues from its checkpoints: from which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted: Option<String>,
    /// Its partitions: the bytes of each and its tier.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<String>,
    /// The state of the images of its processes, if any were to be taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<String>,
}

/// A transfer that has been ordered and has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveTransferStatus {
    /// Its id, as `tarn why` takes it.
    pub id: String,
    /// The dataset and version.
    pub data: String,
    /// Its kind.
    pub kind: String,
    /// The source; of several sources the first, and how many more.
    #[serde(default)]
    pub from: String,
    /// The destination.
    pub to: String,
    /// Bytes of its parts.
    pub bytes: u64,
    /// Bytes that are there; known while it moves, from the live status, like the next two.
    #[serde(default)]
    pub done: Option<u64>,
    /// Bytes a second over the last 5 s, or since it began to move.
    #[serde(default)]
    pub rate: Option<u64>,
    /// Nanoseconds that it takes to its end at this rate.
    #[serde(default)]
    pub left_ns: Option<Nanos>,
    /// Since it was ordered.
    pub elapsed_ns: Nanos,
}

/// The use of a tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierFillStatus {
    /// The node.
    pub node: String,
    /// The tier.
    pub tier: String,
    /// Bytes it holds of this run.
    pub held: u64,
    /// Bytes this run may use.
    pub capacity: u64,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeNow {
    /// Its name.
    pub node: String,
    /// Whether it is lost.
    pub lost: bool,
    /// Attempts that run on it.
    pub running: u64,
    /// Cores that they take.
    pub cores_busy: u64,
    /// Cores that it offers.
    pub cores: u64,
}

/// Bytes that transfers of one kind have moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferKindBytes {
    /// The kind.
    pub kind: String,
    /// Bytes, those of unfinished transfers included as far as they are known.
    pub bytes: u64,
    /// Bytes a second over the whole run.
    pub mean: u64,
    /// Bytes a second over the last 5 s; known while somebody watches, from the live status.
    pub rate: Option<u64>,
}

/// An instance that has failed, or a step or a dataset that was given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedNow {
    /// Its name.
    pub what: String,
    /// Why, as reported.
    pub message: String,
}

/// A failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastFailure {
    /// When, in nanoseconds since the start.
    pub when: Time,
    /// The failed attempt, step or dataset.
    pub what: String,
    /// Why, as reported.
    pub message: String,
    /// Last lines of the step's log.
    pub log_tail: Option<String>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The state of a run at `now` (nanoseconds since its start; the last record's time if that is later).
///
/// # Errors
/// When the log has no beginning.
pub fn status(records: &[Record], now: Time) -> Result<RunStatus, ReportError> {
    let trace = RunTrace::of(records)?;
    Ok(status_of(&trace, now, None, &mut Meters::default()))
}

/// The state of a run, as its log grows and its live status changes.
#[derive(Debug, Default)]
pub struct LiveStatus {
    trace: Option<RunTrace>,
    meters: Meters,
}

impl LiveStatus {
    /// The next record.
    pub fn apply(&mut self, record: &Record) {
        match &mut self.trace {
            Some(trace) => trace.apply(record),
            None => self.trace = RunTrace::of(std::slice::from_ref(record)).ok(),
        }
    }

    /// As [`status()`], with the run's live status. The log is the truth: an activity that it does not have under way is
    /// not shown.
    ///
    /// # Errors
    /// When no record has begun the run yet.
    pub fn status(
        &mut self,
        now: Time,
        live: Option<&LiveRunStatus>,
    ) -> Result<RunStatus, ReportError> {
        let trace = self.trace.as_ref().ok_or(ReportError::NotStarted)?;
        Ok(status_of(trace, now, live, &mut self.meters))
    }
}

fn status_of(
    trace: &RunTrace,
    now: Time,
    live: Option<&LiveRunStatus>,
    meters: &mut Meters,
) -> RunStatus {
    let names = RunNames::new(&trace.start, &trace.history);
    let (outcome, now) = match trace.history.outcome {
        None => (OutcomeName::Unfinished, now.max(trace.history.now)),
        Some((at, Outcome::Done)) => (OutcomeName::Done, at),
        Some((at, Outcome::Failed)) => (OutcomeName::Failed, at),
        Some((at, Outcome::Refused)) => (OutcomeName::Refused, at),
        Some((at, Outcome::Interrupted(_))) => (OutcomeName::Interrupted, at),
    };
    meters.read(&trace.history, live);
    let (failures, more_failures) = failures(trace, &names);
    RunStatus {
        schema: SCHEMA,
        run: trace.start.run.clone(),
        workflow: trace.start.workflow.name.clone(),
        policy: trace.start.options.policy.to_string(),
        outcome,
        elapsed_ns: now,
        emulated: emulated(trace),
        counts: counts(trace),
        running: running(trace, &names, now, live),
        transfers: moving(trace, &names, now, meters),
        nodes: nodes(trace),
        tiers: fills(trace),
        moved: meters.moved(now),
        alive: None,
        lost_nodes: lost_nodes(trace),
        not_run: not_run(trace),
        not_rescued: not_rescued(trace),
        failures,
        more_failures,
        unexpanded: unexpanded(trace, MAX_NOT_RUN),
        last_failure: last_failure(trace, &names),
    }
}

fn running(
    trace: &RunTrace,
    names: &RunNames<'_>,
    now: Time,
    live: Option<&LiveRunStatus>,
) -> Vec<RunningAttemptStatus> {
    let steps = live.map_or(&[][..], |l| &l.steps);
    let phases = steps.iter().map(|s| ((s.instance, s.attempt), s.phase));
    let phases: BTreeMap<_, _> = phases.collect();
    let open = trace.attempts().filter(|(_, a)| a.ended.is_none());
    let open = open.map(|((id, _), a)| RunningAttemptStatus {
        name: names.instance(id),
        nodes: a.nodes.iter().map(|s| names.node(s.node)).collect(),
        attempt: a.attempt,
        phase: phases
            .get(&(id, a.attempt))
            .map(|p| phase_name(*p).to_owned()),
        elapsed_ns: now.saturating_sub(a.started),
        restarted: restarted(trace, names, id, a.attempt),
        partitions: names.partition_texts(&a.partitions),
        images: a.images.any().then(|| a.images.to_string()),
    });
    open.collect()
}

fn restarted(
    trace: &RunTrace,
    names: &RunNames<'_>,
    id: InstanceId,
    attempt: u32,
) -> Option<String> {
    let deeds = trace.history.deeds.get(&Subject::Instance(id))?;
    let mut newest = deeds.kept.iter().rev();
    let begun = newest.find(|d| d.what == DeedKind::Run(attempt))?;
    matches!(begun.why, Reason::Restart { .. }).then(|| names.reason(&begun.why))
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Preparing => "preparing",
        Phase::Running => "running",
        Phase::Committing => "committing",
    }
}

fn moving(
    trace: &RunTrace,
    names: &RunNames<'_>,
    now: Time,
    meters: &Meters,
) -> Vec<ActiveTransferStatus> {
    let open = trace
        .history
        .transfers
        .values()
        .filter(|t| t.ended.is_none());
    let open = open.map(|t| {
        let metered = meters.of(t.order.id);
        ActiveTransferStatus {
            id: t.order.id.to_string(),
            data: names.version(t.order.data, t.order.version),
            kind: kind_name(t.order.kind).into(),
            from: sources(&t.order.parts, names),
            to: names.place(&t.order.to),
            bytes: t.expected,
            done: metered.map(|m| m.done),
            rate: metered.and_then(|m| m.rate),
            left_ns: metered.and_then(|m| m.left),
            elapsed_ns: now.saturating_sub(t.ordered),
        }
    });
    open.collect()
}

fn sources(parts: &[PartMove], names: &RunNames<'_>) -> String {
    let places: BTreeSet<&Place> = parts.iter().map(|p| &p.from).collect();
    let first = places.first().map(|p| names.place(p)).unwrap_or_default();
    match places.len() {
        0 | 1 => first,
        n => format!("{first} +{}", n - 1),
    }
}

fn nodes(trace: &RunTrace) -> Vec<NodeNow> {
    let mut nodes: Vec<NodeNow> = (0..)
        .map(NodeId)
        .zip(&trace.start.cluster.nodes)
        .map(|(id, node)| NodeNow {
            node: node.name.clone(),
            lost: trace.history.is_lost(id),
            running: 0,
            cores_busy: 0,
            cores: node.cores.into(),
        })
        .collect();
    for ((id, _), attempt) in trace.attempts().filter(|(_, a)| a.ended.is_none()) {
        for tier_ref in &attempt.nodes {
            if let Some(node) = nodes.get_mut(tier_ref.node.at()) {
                node.running += 1;
                node.cores_busy += u64::from(trace.cores(id.step));
            }
        }
    }
    nodes
}

fn fills(trace: &RunTrace) -> Vec<TierFillStatus> {
    let mut fills = Vec::new();
    for (n, node) in (0..).zip(&trace.start.cluster.nodes) {
        for (t, tier) in (0..).zip(&node.tiers) {
            let tier_ref = TierRef {
                node: NodeId(n),
                tier: TierId(t),
            };
            let changed = trace.history.capacity.get(&tier_ref).and_then(|c| c.last());
            fills.push(TierFillStatus {
                node: node.name.clone(),
                tier: tier.name.clone(),
                held: trace.history.held(tier_ref),
                capacity: changed.map_or(tier.capacity, |c| c.1),
            });
        }
    }
    fills
}

fn has_result(trace: &RunTrace, id: InstanceId) -> bool {
    let instance = trace.history.instances.get(&id);
    instance.is_some_and(|instance| instance.state.is_done())
}

/// The newest failure that no later success has made up for: of instances that have no result, and of transfers of versions that have
/// not arrived since.
fn last_failure(trace: &RunTrace, names: &RunNames<'_>) -> Option<LastFailure> {
    let attempts = trace.attempts().filter_map(|((id, _), a)| match &a.ended {
        Some((when, AttemptEnd::Failed { failure, log_tail })) if !has_result(trace, id) => {
            Some(LastFailure {
                when: *when,
                what: format!("attempt {} of {}", a.attempt, names.instance(id)),
                message: failure.message.clone(),
                log_tail: Some(log_tail.clone()).filter(|t| !t.is_empty()),
            })
        }
        _ => None,
    });
    let came_later = |t: &TransferHistory, failed: Time| {
        trace.history.transfers.values().any(|other| {
            let is_same =
                (other.order.data, other.order.version) == (t.order.data, t.order.version);
            is_same
                && matches!(&other.ended, Some((when, TransferEnd::Done { .. })) if *when >= failed)
        })
    };
    let transfers = trace
        .history
        .transfers
        .values()
        .filter_map(|t| match &t.ended {
            Some((when, TransferEnd::Failed(failure)))
                if !t.instance.is_some_and(|id| has_result(trace, id)) && !came_later(t, *when) =>
            {
                Some(LastFailure {
                    when: *when,
                    what: format!(
                        "transfer {} of {}",
                        t.order.id,
                        names.version(t.order.data, t.order.version)
                    ),
                    message: failure.message.clone(),
                    log_tail: None,
                })
            }
            _ => None,
        });
    attempts.chain(transfers).max_by_key(|f| f.when)
}
