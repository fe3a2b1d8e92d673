//! A recorded run: its instances, each with its reads, its writes and its time.

use crate::error::{CliError, CliResult};
use std::collections::BTreeMap;
use tarn_ports::Record;
use tarn_types::action::{AttemptSpec, Do, Outcome};
use tarn_types::codes::Exit;
use tarn_types::event::{Start, Usage};
use tarn_types::history::{Attempt, AttemptEnd, History, InstanceHistory, InstanceState};
use tarn_types::id::InstanceId;
use tarn_types::part::PartRef;
use tarn_types::units::{Nanos, Time};

/// A complete run.
pub(super) struct Recorded<'a> {
    pub(super) start: &'a Start,
    pub(super) history: &'a History,
    /// When it was over.
    pub(super) end: Time,
    /// Instances that ran, in the order of their ids.
    pub(super) jobs: BTreeMap<InstanceId, Ran<'a>>,
    /// Attempts that failed, or were cut short, or whose output was lost; and the time that they took.
    pub(super) in_vain: (usize, Nanos),
    /// Instances that an earlier run had committed.
    pub(super) reused: usize,
}

/// The last attempt of an instance that succeeded.
pub(super) struct Ran<'a> {
    order: &'a AttemptSpec,
    /// From its start to its commit, as the log has it: for so long it held its cores.
    pub(super) held: Nanos,
    usage: Usage,
    /// The parts that it made.
    pub(super) made: Vec<PartRef>,
}

/// How long an attempt held its cores.
fn time_held(attempt: &Attempt) -> Nanos {
    let end = attempt.ended.as_ref().map_or(attempt.started, |e| e.0);
    end.saturating_sub(attempt.started)
}

impl<'a> Recorded<'a> {
    /// Reads a recorded run; `name` is its name in messages.
    ///
    /// # Errors
    /// When it is not complete, or nothing ran in it.
    pub(super) fn of(name: &str, records: &'a [Record], history: &'a History) -> CliResult<Self> {
        let (Some(start), Some((end, Outcome::Done))) = (&history.start, history.outcome) else {
            return Err(CliError::new(
                Exit::Usage,
                format!(
                    "{name} is not complete, so there is nothing to compare with; `tarn resume` ends it, or name one that is"
                ),
            ));
        };
        let mut this = Self {
            start,
            history,
            end,
            jobs: BTreeMap::new(),
            in_vain: (0, 0),
            reused: 0,
        };
        let orders = orders(records);
        for (id, instance) in &history.instances {
            this.add(*id, instance, &orders);
        }
        if this.jobs.is_empty() {
            return Err(CliError::new(
                Exit::Usage,
                format!("{name} ran nothing: all was there from an earlier run; name that one"),
            ));
        }
        Ok(this)
    }

    fn add(&mut self, id: InstanceId, instance: &InstanceHistory, orders: &OrderedAttempts<'a>) {
        self.reused += usize::from(instance.state == InstanceState::Reused);
        let good = |a: &&Attempt| matches!(a.ended, Some((_, AttemptEnd::Committed { .. })));
        let last = instance.attempts.iter().rfind(good);
        for vain in instance.attempts.iter().filter(|a| Some(*a) != last) {
            self.in_vain.0 += 1;
            self.in_vain.1 += time_held(vain);
        }
        let order = last.and_then(|a| Some((a, *orders.get(&(id, a.attempt))?)));
        let Some((attempt, order)) = order else {
            return;
        };
        let parts = instance.outputs.iter();
        let parts = parts.flat_map(|o| o.parts.iter().map(move |(p, _)| (o, p.seq)));
        let made = parts.map(|(o, seq)| PartRef {
            data: o.data,
            version: o.version,
            origin: id.index,
            seq,
        });
        let ran = Ran {
            order,
            held: time_held(attempt),
            usage: attempt.usage,
            made: made.collect(),
        };
        self.jobs.insert(id, ran);
    }

    /// How long cores were held, all instances together, for work other than preparing, the program and committing.
    pub(super) fn overhead(&self) -> Nanos {
        let each = self.jobs.values().map(|j| j.held.saturating_sub(j.took()));
        each.sum()
    }
}

/// Every attempt, as it was ordered.
type OrderedAttempts<'a> = BTreeMap<(InstanceId, u32), &'a AttemptSpec>;

fn orders(records: &[Record]) -> OrderedAttempts<'_> {
    let actions = records.iter().flat_map(|r| &r.actions);
    let runs = actions.filter_map(|a| match &a.what {
        Do::Run(run) => Some(&**run),
        _ => None,
    });
    runs.map(|run| ((run.instance, run.attempt), run)).collect()
}

impl Ran<'_> {
    /// Preparing, running and committing.
    pub(super) fn took(&self) -> Nanos {
        let usage = &self.usage;
        usage
            .prepare
            .saturating_add(usage.wall)
            .saturating_add(usage.commit)
    }

    /// The parts that it read, and whether every node had each of them.
    pub(super) fn read(&self) -> BTreeMap<PartRef, bool> {
        let mut nodes: BTreeMap<PartRef, Vec<usize>> = BTreeMap::new();
        for used in &self.order.views {
            for (node, held) in used.iter().enumerate() {
                for part in held {
                    let seen = nodes.entry(part.part).or_default();
                    if !seen.contains(&node) {
                        seen.push(node);
                    }
                }
            }
        }
        let all = self.order.nodes.len();
        nodes
            .into_iter()
            .map(|(part, seen)| (part, seen.len() == all))
            .collect()
    }
}
