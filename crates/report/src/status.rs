//! `tarn status`: where a run stands.

use crate::ReportError;
use crate::names::{Names, kind_name};
use crate::summarize::{emulated, policy_name};
use crate::summary::{Emulated, OutcomeName, SCHEMA};
use crate::trace::Trace;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use tarn_base::action::Outcome;
use tarn_base::history::{AttemptEnd, InstanceState, TransferEnd};
use tarn_base::id::{DataId, NodeId, Spot, StepId, TierId};
use tarn_base::part::PartClass;
use tarn_base::pattern::EntryPattern;
use tarn_base::units::{Bytes, Elapsed, Nanos, SECOND, Time};
use tarn_base::workflow::Foreach;
use tarn_ports::Record;

/// Lines of a table that the text shows; JSON has all.
const MAX_LINES: usize = 20;

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
    /// Not needed.
    pub skipped: u64,
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
        Some((at, Outcome::Interrupted(_))) => (OutcomeName::Interrupted, at),
    };
    Ok(Status {
        schema: SCHEMA,
        run: trace.start.run.clone(),
        workflow: trace.start.workflow.name.clone(),
        policy: policy_name(trace.start.options.policy).into(),
        outcome,
        elapsed_ns: now,
        emulated: emulated(&trace),
        counts: counts(&trace),
        running: running(&trace, &names, now),
        transfers: moving(&trace, &names, now),
        tiers: fills(&trace),
        last_failure: last_failure(&trace, &names),
    })
}

fn counts(trace: &Trace) -> Counts {
    let mut counts = Counts::default();
    let mut known = 0u64;
    for instance in trace.history.instances.values() {
        known += 1;
        *match instance.state {
            InstanceState::Waiting => &mut counts.waiting,
            InstanceState::Assigned => &mut counts.staging,
            InstanceState::Running => &mut counts.running,
            InstanceState::Committed => &mut counts.committed,
            InstanceState::Reused => &mut counts.reused,
            InstanceState::Skipped => &mut counts.skipped,
            InstanceState::Failed => &mut counts.failed,
        } += 1;
    }
    let mut expected = 0u64;
    for (at, wanted) in (0..).zip(expected_instances(trace)) {
        let seen = trace.history.instances_of(StepId(at)).count() as u64;
        counts.unexpanded_steps += u64::from(wanted.is_none());
        expected += wanted.unwrap_or(0).max(seen);
    }
    counts.waiting += expected.saturating_sub(known);
    counts
}

/// How many instances each step has; `None` while the data that it runs over is not complete. A step runs over
/// the data of at most one other, so that the steps before it form a chain: it is walked, not recursed into.
fn expected_instances(trace: &Trace) -> Vec<Option<u64>> {
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
                    data, version, pattern, ..
                }) => is_complete(trace, *data, *version, before(step), &expected)
                    .then(|| entries(trace, *data, *version, pattern)),
            };
        }
    }
    expected
}

/// Whether all parts of a version are known: it was listed, or everything that makes it has ended.
fn is_complete(trace: &Trace, data: DataId, version: u32, producer: Option<usize>, expected: &[Option<u64>]) -> bool {
    let Some(producer) = producer else {
        return trace.history.parts_of(data, version).next().is_some();
    };
    let instances = trace.history.instances_of(StepId(producer as u32));
    let made = instances.filter(|(_, i)| i.state.is_done()).count() as u64;
    expected[producer].is_some_and(|wanted| made >= wanted)
}

fn entries(trace: &Trace, data: DataId, version: u32, pattern: &EntryPattern) -> u64 {
    let parts = trace.history.parts_of(data, version);
    let names: BTreeSet<&str> = parts
        .filter_map(|(_, info)| match &info.class {
            PartClass::Entry(name) if pattern.matches(name) => Some(name.as_str()),
            _ => None,
        })
        .collect();
    names.len() as u64
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
    let open = trace.history.transfers.values().filter(|t| t.ended.is_none());
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
    let transfers = trace.history.transfers.values().filter_map(|t| match &t.ended {
        Some((when, TransferEnd::Failed(failure))) => Some(LastFailure {
            when: *when,
            what: format!("transfer {} of {}", t.order.id, names.version(t.order.data, t.order.version)),
            message: failure.message.clone(),
            log_tail: None,
        }),
        _ => None,
    });
    attempts.chain(transfers).max_by_key(|f| f.when)
}

impl fmt::Display for Status {
    /// Plain text for a terminal, columns aligned.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.outcome {
            OutcomeName::Unfinished => "running",
            ended => ended.as_str(),
        };
        writeln!(f, "{}  {state}  {}  policy {}", self.run, Elapsed(self.elapsed_ns), self.policy)?;
        if let Some(e) = &self.emulated {
            writeln!(f, "{e}")?;
        }
        let c = &self.counts;
        let counts = [
            (c.committed, "done"),
            (c.reused, "reused"),
            (c.skipped, "not needed"),
            (c.running, "running"),
            (c.staging, "staging"),
            (c.waiting, "waiting"),
            (c.failed, "failed"),
        ];
        let shown = counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}"));
        writeln!(f, "steps: {}", shown.collect::<Vec<_>>().join(", "))?;
        if c.unexpanded_steps > 0 {
            writeln!(f, "  and {} whose number of instances is not known yet", c.unexpanded_steps)?;
        }
        self.tables(f)?;
        let Some(failure) = &self.last_failure else { return Ok(()) };
        writeln!(f, "\nlast failure at {}: {}", Elapsed(failure.when), failure.what)?;
        writeln!(f, "  {}", failure.message)?;
        for line in failure.log_tail.iter().flat_map(|t| t.lines()) {
            writeln!(f, "  | {line}")?;
        }
        Ok(())
    }
}

impl Status {
    fn tables(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |r: &Running| {
            let nodes = match &r.nodes[..] {
                [first, _, ..] => format!("{first} +{}", r.nodes.len() - 1),
                nodes => nodes.join(""),
            };
            vec![r.name.clone(), nodes, r.attempt.to_string(), Elapsed(r.elapsed_ns).to_string()]
        };
        table(f, &["running", "node", "attempt", "for"], self.running.iter().map(row))?;
        let row = |t: &Moving| {
            let cells = [&t.id, &t.data, &t.kind, &t.to].map(String::clone);
            let size = [Bytes(t.bytes).to_string(), Elapsed(t.elapsed_ns).to_string()];
            cells.into_iter().chain(size).collect()
        };
        table(f, &["moving", "data", "kind", "to", "bytes", "for"], self.transfers.iter().map(row))?;
        let row = |t: &Fill| {
            let percent = u128::from(t.held) * 100 / u128::from(t.capacity.max(1));
            vec![
                format!("{}/{}", t.node, t.tier),
                Bytes(t.held).to_string(),
                Bytes(t.capacity).to_string(),
                format!("{percent} %"),
            ]
        };
        table(f, &["tier", "held", "of", "full"], self.tiers.iter().map(row))
    }
}

/// A table with its head, or nothing when it has no rows. The first column is flush left, numbers are too:
/// what is aligned is where columns begin.
fn table(f: &mut fmt::Formatter<'_>, head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> fmt::Result {
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return Ok(());
    }
    let head: Vec<String> = head.iter().map(|h| h.to_uppercase()).collect();
    let shown = || std::iter::once(&head).chain(rows.iter().take(MAX_LINES));
    let width = |c: usize| shown().filter_map(|r| r.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    writeln!(f)?;
    for row in shown() {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        writeln!(f, "  {}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    if rows.len() > MAX_LINES {
        writeln!(f, "  and {} more", rows.len() - MAX_LINES)?;
    }
    Ok(())
}

impl fmt::Display for Emulated {
    /// `external store emulated at 200 MB/s, 2 ms a file`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |r: u64| format!("{} MB/s", r as f64 / 1e6);
        write!(f, "external store emulated at ")?;
        match (self.read, self.write) {
            (0, 0) => write!(f, "full rate")?,
            (r, w) if r == w => write!(f, "{}", rate(r))?,
            (r, 0) => write!(f, "{} read, full rate written", rate(r))?,
            (0, w) => write!(f, "full rate read, {} written", rate(w))?,
            (r, w) => write!(f, "{} read, {} written", rate(r), rate(w))?,
        }
        if self.latency_ns > 0 {
            write!(f, ", {} ms a file", self.latency_ns as f64 / (SECOND / 1000) as f64)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulation_is_said_in_words() {
        let say = |read, write, latency_ns| Emulated { read, write, latency_ns }.to_string();
        assert_eq!(
            say(200_000_000, 200_000_000, 2_500_000),
            "external store emulated at 200 MB/s, 2.5 ms a file"
        );
        assert_eq!(
            say(1_500_000, 0, 0),
            "external store emulated at 1.5 MB/s read, full rate written"
        );
    }
}
