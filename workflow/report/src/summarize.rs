//! From the fold to the totals.

use crate::ReportError;
use crate::count::{InstanceCounts, counts_of_steps, unexpanded};
use crate::names::RunNames;
use crate::summary::{
    EQUATION_5, Emulated, EnergyTotal, Estimate, ExternalStoreBytes, InstanceEndCounts, LostNode,
    MAX_FILL_POINTS, MAX_NOT_RUN, NodeSummary, NotRescued, OutcomeName, SCHEMA, SkippedStep,
    StepSummary, Summary, TierSummary, TransferTally,
};
use crate::trace::{AttemptKey, RunTrace};
use tarn_ports::Record;
use tarn_types::action::Outcome;
use tarn_types::cluster::Tier;
use tarn_types::event::{RunErrorKind, Usage};
use tarn_types::history::{Attempt, AttemptEnd, AttemptImages, NodeLoss, Traffic, TransferEnd};
use tarn_types::id::{NodeId, StepId, TierId, TierRef};
use tarn_types::part::TransferKind;
use tarn_types::reason::Reason;
use tarn_types::units::{Nanos, Time};

impl Summary {
    /// The totals of a log.
    ///
    /// # Errors
    /// When the log has no beginning.
    pub fn of(records: &[Record]) -> Result<Self, ReportError> {
        Ok(summarize(&RunTrace::of(records)?))
    }
}

pub(crate) fn summarize(trace: &RunTrace) -> Summary {
    let start = &trace.start;
    let (outcome, signal) = outcome(trace);
    let counted = counts_of_steps(trace);
    let steps: Vec<StepSummary> = (0..)
        .map(StepId)
        .zip(&counted)
        .map(|(id, counts)| step(trace, id, counts))
        .collect();
    Summary {
        schema: SCHEMA,
        run: start.run.clone(),
        workflow: start.workflow.name.clone(),
        policy: start.options.policy.to_string(),
        outcome,
        signal,
        started: start.wall,
        makespan_ns: trace.end(),
        resumed: trace.history.resumptions.len() as u64,
        emulated: emulated(trace),
        bytes: traffic(trace),
        stage_through: stage_through(trace),
        instances: add_up(steps.iter().map(|s| s.instances)),
        unexpanded_steps: counted.iter().map(|c| c.unexpanded_steps).sum(),
        unexpanded: unexpanded(trace, MAX_NOT_RUN),
        transfers: transfers(trace),
        lost_nodes: lost_nodes(trace),
        not_run: not_run(trace),
        not_rescued: not_rescued(trace),
        energy: steps
            .iter()
            .fold(EnergyTotal::default(), |sum, s| sum.and(&s.energy)),
        equation_5: EQUATION_5.into(),
        steps,
        nodes: nodes(trace),
    }
}

fn outcome(trace: &RunTrace) -> (OutcomeName, Option<i32>) {
    match trace.history.outcome {
        None => (OutcomeName::Unfinished, None),
        Some((_, Outcome::Done)) => (OutcomeName::Done, None),
        Some((_, Outcome::Failed)) => (OutcomeName::Failed, None),
        Some((_, Outcome::Refused)) => (OutcomeName::Refused, None),
        Some((_, Outcome::Interrupted(signal))) => (OutcomeName::Interrupted, Some(signal)),
    }
}

pub(crate) fn emulated(trace: &RunTrace) -> Option<Emulated> {
    Emulated::of(&trace.start.cluster.external)
}

fn traffic(trace: &RunTrace) -> Traffic {
    let moved = trace.history.moved();
    let of = |kind| moved.get(&kind).copied().unwrap_or(0);
    let retained = trace.inputs.values().map(|i| i.retained);
    Traffic {
        external_in: of(TransferKind::ExternalIn),
        external_out: of(TransferKind::ExternalOut),
        peer: of(TransferKind::Peer),
        promote: of(TransferKind::Promote),
        demote: of(TransferKind::Demote),
        retained: retained.fold(0, u64::saturating_add),
    }
}

fn committed(attempt: &Attempt) -> bool {
    matches!(attempt.ended, Some((_, AttemptEnd::Committed { .. })))
}

fn stage_through(trace: &RunTrace) -> ExternalStoreBytes {
    let done = trace.attempts().filter(|(_, a)| committed(a));
    let read = done.map(|(key, _)| trace.inputs.get(&key).map_or(0, |i| i.read));
    ExternalStoreBytes {
        external_in: read.fold(0, u64::saturating_add),
        external_out: trace.written.values().copied().fold(0, u64::saturating_add),
    }
}

fn tally(counts: &InstanceCounts, attempts: u64) -> InstanceEndCounts {
    InstanceEndCounts {
        run: counts.committed,
        reused: counts.reused,
        failed: counts.failed,
        open: counts.waiting + counts.staging + counts.running,
        attempts,
    }
}

fn add_up(tallies: impl Iterator<Item = InstanceEndCounts>) -> InstanceEndCounts {
    tallies.fold(InstanceEndCounts::default(), |a, b| InstanceEndCounts {
        run: a.run + b.run,
        reused: a.reused + b.reused,
        failed: a.failed + b.failed,
        open: a.open + b.open,
        attempts: a.attempts + b.attempts,
    })
}

fn transfers(trace: &RunTrace) -> TransferTally {
    let mut tally = TransferTally::default();
    for t in trace.history.transfers.values() {
        *match &t.ended {
            Some((_, TransferEnd::Done { .. })) => &mut tally.done,
            Some((_, TransferEnd::Failed(_))) => &mut tally.failed,
            Some((_, TransferEnd::Interrupted)) => &mut tally.interrupted,
            None => &mut tally.open,
        } += 1;
    }
    tally
}

pub(crate) fn not_run(trace: &RunTrace) -> Vec<SkippedStep> {
    let names = RunNames::new(&trace.start, &trace.history);
    let steps = trace.history.not_run.iter().map(|(step, why)| {
        let why = names.reason(why);
        let why = why.trim_start_matches("not run: ");
        SkippedStep {
            step: names.step(*step),
            why: match trace.history.some_not_run(*step) {
                Some((left, all)) => format!("{left} of {all} instances: {why}"),
                None => why.to_owned(),
            },
        }
    });
    steps.collect()
}

pub(crate) fn not_rescued(trace: &RunTrace) -> Vec<NotRescued> {
    let names = RunNames::new(&trace.start, &trace.history);
    let all = trace.history.not_rescued.iter();
    let datasets = all.filter_map(|(data, why)| {
        let (why, in_part) = match why {
            Reason::NotRescued { message } => (message, false),
            Reason::RescuedInPart { message } => (message, true),
            _ => return None,
        };
        Some(NotRescued {
            dataset: names.data(*data),
            why: why.clone(),
            in_part,
        })
    });
    datasets.collect()
}

pub(crate) fn lost_nodes(trace: &RunTrace) -> Vec<LostNode> {
    let names = RunNames::new(&trace.start, &trace.history);
    let ended_by = |loss: &NodeLoss| {
        let ran = |a: &Attempt| {
            let there = a.nodes.iter().any(|s| s.node == loss.node);
            let of_it = matches!(&a.ended, Some((at, AttemptEnd::Failed { failure, .. }))
                if failure.kind == RunErrorKind::NodeLost && *at >= loss.at);
            there && of_it && a.started <= loss.at
        };
        trace.attempts().filter(|(_, a)| ran(a)).count() as u64
    };
    let losses = trace.history.losses.iter();
    let lost = losses.map(|loss| LostNode {
        node: names.node(loss.node),
        at_ns: loss.at,
        why: loss.why.clone(),
        replicas: loss.replicas,
        bytes: loss.bytes,
        attempts: ended_by(loss),
        back_ns: loss.back,
    });
    lost.collect()
}

fn step(trace: &RunTrace, id: StepId, counts: &InstanceCounts) -> StepSummary {
    let name = trace.start.workflow.steps.get(id.at());
    let instances = trace.history.instances_of(id);
    let attempts = instances.map(|(_, i)| i.attempts.len() as u64).sum();
    let mut sum = StepSummary {
        name: name.map_or_else(|| id.to_string(), |s| s.name.clone()),
        instances: tally(counts, attempts),
        staging_ns: 0,
        waiting_ns: 0,
        prepare_ns: 0,
        run_ns: 0,
        commit_ns: 0,
        longest_ns: 0,
        user_ns: 0,
        system_ns: 0,
        read: 0,
        written: 0,
        memory: 0,
        input: 0,
        retained: 0,
        output: 0,
        energy: EnergyTotal::default(),
        images: AttemptImages::default(),
        estimate: Estimate::default(),
    };
    for (id, instance) in trace.history.instances_of(id) {
        for (at, attempt) in instance.attempts.iter().enumerate() {
            sum.images.and(&attempt.images);
            if attempt.ended.is_some() {
                add_attempt(&mut sum, trace, (id, at), attempt);
            }
        }
    }
    sum
}

fn add_attempt(sum: &mut StepSummary, trace: &RunTrace, key: AttemptKey, attempt: &Attempt) {
    let there = trace.inputs_there(key, attempt);
    let usage = &attempt.usage;
    for (to, more) in [
        (&mut sum.staging_ns, there.saturating_sub(attempt.assigned)),
        (&mut sum.waiting_ns, attempt.started.saturating_sub(there)),
        (&mut sum.prepare_ns, usage.prepare),
        (&mut sum.run_ns, usage.wall),
        (&mut sum.commit_ns, usage.commit),
        (&mut sum.user_ns, usage.user),
        (&mut sum.system_ns, usage.system),
        (&mut sum.read, usage.read),
        (&mut sum.written, usage.written),
    ] {
        *to = to.saturating_add(more);
    }
    sum.longest_ns = sum.longest_ns.max(usage.wall);
    sum.memory = sum.memory.max(usage.memory);
    if let (true, Some(inputs)) = (committed(attempt), trace.inputs.get(&key)) {
        sum.input = sum.input.saturating_add(inputs.read);
        sum.retained = sum.retained.saturating_add(inputs.retained);
        sum.output = sum
            .output
            .saturating_add(trace.written.get(&key).copied().unwrap_or(0));
    }
    sum.energy.add(usage.energy);
    let estimate = equation_5(usage);
    sum.estimate.io_ns = sum.estimate.io_ns.saturating_add(estimate.io_ns);
    sum.estimate.compute_ns = sum.estimate.compute_ns.saturating_add(estimate.compute_ns);
}

/// As in [`EQUATION_5`]. Time in the kernel is not counted as computing: in a step that moves data it is
/// mostly the copying itself. Cores used are taken from CPU time, not from the declaration: a serial program
/// in a step of four cores would else seem to wait three quarters of its time.
pub(crate) fn equation_5(usage: &Usage) -> Estimate {
    let whole = usage
        .wall
        .saturating_add(usage.prepare)
        .saturating_add(usage.commit);
    let compute = (usage.user / cores_used(usage)).min(usage.wall);
    assert!(compute <= whole, "computing is a part of the run time");
    Estimate {
        io_ns: whole - compute,
        compute_ns: compute,
    }
}

/// Cores that an attempt kept busy, by its CPU time.
pub(crate) fn cores_used(usage: &Usage) -> u64 {
    let cpu = usage.user.saturating_add(usage.system);
    cpu.div_ceil(usage.wall.max(1)).max(1)
}

/// The division of each node's time, in one pass over the attempts.
fn nodes(trace: &RunTrace) -> Vec<NodeSummary> {
    let mut spans: Vec<Vec<(Time, Time)>> = vec![Vec::new(); trace.start.cluster.nodes.len()];
    let mut core_busy = vec![0u64; spans.len()];
    for ((instance, _), attempt) in trace.attempts() {
        let (from, to) = (attempt.started, trace.attempt_end(attempt));
        let cores = trace.cores(instance.step);
        for tier_ref in &attempt.nodes {
            let (Some(spans), Some(core_busy)) = (
                spans.get_mut(tier_ref.node.at()),
                core_busy.get_mut(tier_ref.node.at()),
            ) else {
                continue;
            };
            spans.push((from, to));
            *core_busy = core_busy.saturating_add((to - from).saturating_mul(u64::from(cores)));
        }
    }
    let busy = spans.into_iter().map(union).zip(core_busy);
    let numbered = trace.start.cluster.nodes.iter().enumerate().zip(busy);
    let summary = numbered.map(|((at, node), (busy_ns, core_busy_ns))| NodeSummary {
        name: node.name.clone(),
        cores: node.cores,
        busy_ns,
        core_busy_ns,
        tiers: tiers(trace, NodeId(at as u32), &node.tiers),
    });
    summary.collect()
}

fn tiers(trace: &RunTrace, node: NodeId, tiers: &[Tier]) -> Vec<TierSummary> {
    let numbered = (0..).map(TierId).zip(tiers);
    let summary = numbered.map(|(at, tier)| {
        let tier_ref = TierRef { node, tier: at };
        let fill = trace
            .history
            .fill
            .get(&tier_ref)
            .map_or(&[][..], Vec::as_slice);
        let mut capacity = vec![(0, tier.capacity)];
        capacity.extend(trace.history.capacity.get(&tier_ref).into_iter().flatten());
        TierSummary {
            name: tier.name.clone(),
            capacity: thin(&capacity, trace.end(), MAX_FILL_POINTS),
            peak: fill.iter().map(|p| p.1).max().unwrap_or(0),
            fill: thin(fill, trace.end(), MAX_FILL_POINTS),
        }
    });
    summary.collect()
}

/// The length of the union of spans.
fn union(mut spans: Vec<(Time, Time)>) -> Nanos {
    spans.sort_unstable();
    let (mut total, mut until) = (0, 0);
    for (from, to) in spans {
        let from = from.max(until);
        total += to.saturating_sub(from);
        until = until.max(to);
    }
    total
}

/// A step curve with at most `most` points (and at least 2): every slice of time keeps its maximum; the last
/// point stays, so that the bytes of a tier at the end are right.
fn thin(points: &[(Time, u64)], end: Time, most: usize) -> Vec<(Time, u64)> {
    if points.len() <= most {
        return points.to_vec();
    }
    let Some((last, rest)) = points.split_last() else {
        return Vec::new();
    };
    let slices = (most.max(2) - 1) as u128;
    let slice = |t: Time| u128::from(t.min(end)) * slices / (u128::from(end) + 1);
    let mut kept: Vec<(Time, u64)> = Vec::new();
    for &(at, bytes) in rest {
        match kept.last_mut() {
            Some(k) if slice(k.0) == slice(at) => k.1 = k.1.max(bytes),
            _ => kept.push((at, bytes)),
        }
    }
    kept.push(*last);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn thinning_keeps_peak_end_and_bound(
            steps in prop::collection::vec((0u64..50, 0u64..1000), 1..400),
            most in 2usize..40,
        ) {
            let mut now = 0;
            let points: Vec<(u64, u64)> = steps.iter().map(|(d, b)| { now += d; (now, *b) }).collect();
            let thinned = thin(&points, now, most);
            prop_assert!(thinned.len() <= most.max(points.len().min(most)));
            prop_assert_eq!(thinned.last(), points.last());
            prop_assert_eq!(thinned.iter().map(|p| p.1).max(), points.iter().map(|p| p.1).max());
            prop_assert!(thinned.windows(2).all(|w| w[0].0 <= w[1].0));
        }

        #[test]
        fn union_is_what_counting_says(spans in prop::collection::vec((0u64..60, 0u64..20), 0..12)) {
            let spans: Vec<(u64, u64)> = spans.iter().map(|(a, l)| (*a, a + l)).collect();
            let naive = (0..100).filter(|t| spans.iter().any(|(a, b)| a <= t && t < b)).count() as u64;
            prop_assert_eq!(union(spans), naive);
        }

        #[test]
        fn equation_5_adds_up(wall: u64, user: u64, system: u64, prepare in 0u64..1 << 40, commit in 0u64..1 << 40) {
            let usage = Usage { wall: wall >> 8, user, system, prepare, commit, ..Usage::default() };
            let e = equation_5(&usage);
            prop_assert_eq!(e.io_ns + e.compute_ns, usage.wall + prepare + commit);
        }
    }

    #[test]
    fn equation_5_by_hand() {
        let second = 1_000_000_000;
        // Serial: 6 s of computing, 4 s of waiting. Four threads without I/O: all compute.
        let serial = Usage {
            wall: 10 * second,
            user: 6 * second,
            system: second,
            ..Usage::default()
        };
        assert_eq!(equation_5(&serial).compute_ns, 6 * second);
        let four = Usage {
            wall: 10 * second,
            user: 40 * second,
            ..Usage::default()
        };
        assert_eq!(
            equation_5(&four),
            Estimate {
                io_ns: 0,
                compute_ns: 10 * second
            }
        );
    }
}
