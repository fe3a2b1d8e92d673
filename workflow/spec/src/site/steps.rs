//! A workflow file of tarn as jobs and items. Missing values are assumed, and the notes list them.

use crate::diag::{Finding, FindingCode};
use crate::item::ITEM;
use crate::site::alone::Alone;
use crate::site::draft::{DraftJob, LIMIT_FACTOR, WorkflowDraft, plain_job, usual_limit};
use crate::site::files::scaled;
use crate::site::gather::{MAX_SITE_ITEMS, MAX_SITE_JOBS};
use crate::site::ways::FlowOptions;
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::id::{DataId, StepId};
use tarn_types::site::{Input, Item, ItemId, JobId, Spread, WorkItem};
use tarn_types::units::{Bytes, Elapsed, Nanos, SECOND};
use tarn_types::workflow::{DatasetUse, Distribution, Foreach, Step, Workflow};

/// Run time of a step without a `time`, and size of a dataset without a `size`: the assumptions of `tarn plan`.
const ASSUMED_RUN_TIME: Nanos = SECOND;
const ASSUMED_BYTES: u64 = 1 << 20;
/// Uses of items by jobs, and jobs waited for by jobs, of one workflow: a step of a million instances that each read what
/// another million made is refused.
const MAX_USES: usize = 32 << 20;

/// Entries that a dataset is assumed to have where a step runs for each, unless its `max` is less or the workload file
/// has their number.
pub(crate) const ASSUMED_ENTRIES: u32 = 100;

/// A version of a dataset.
type DatasetVersion = (DataId, u32);

/// The items of a version.
#[derive(Default)]
struct VersionItems {
    count: usize,
    /// Entries that steps select by name, each a part of its own.
    entries: BTreeSet<String>,
    /// The number of its first item.
    first: usize,
    /// The steps that make it.
    makers: Vec<StepId>,
}

impl VersionItems {
    /// The parts of one of several instances: an equal share in order.
    fn shared(&self, instance: usize, instances: usize) -> std::ops::Range<usize> {
        instance * self.count / instances..(instance + 1) * self.count / instances
    }
}

/// A workflow on its way to a draft.
struct Expansion<'w> {
    workflow: &'w Workflow,
    options: &'w FlowOptions,
    entries: u32,
    parts: BTreeMap<DatasetVersion, VersionItems>,
    /// The number of each step's first job.
    first_job: Vec<usize>,
}

/// Makes a draft of a workflow and appends its assumptions to `notes`.
///
/// # Errors
/// A finding without a place: it comes to more than can be simulated.
pub(crate) fn expand(
    workflow: &Workflow,
    options: &FlowOptions,
    entries: u32,
    alone: Alone,
    notes: &mut Vec<String>,
) -> Result<WorkflowDraft, Finding> {
    let mut expansion = Expansion {
        workflow,
        options,
        parts: parts(workflow, entries),
        entries,
        first_job: Vec::new(),
    };
    expansion.number()?;
    assumptions(workflow, entries, notes);
    let mut draft = WorkflowDraft {
        jobs: Vec::new(),
        items: expansion.items(),
    };
    for step in &workflow.steps {
        for instance in 0..expansion.instances(step) {
            let mut job = expansion.job(step, instance);
            let (read, written) = draft.bytes(&job.job);
            let takes = job
                .compute
                .saturating_add(alone.time(step.nodes, read, written));
            job.job.limit = match step.time {
                Some(time) => scaled(time, options.time_scale).max(1),
                None => usual_limit(takes),
            };
            job.job.expect = job.compute.min(job.job.limit);
            draft.jobs.push(job);
        }
    }
    Ok(draft)
}

fn instances(step: &Step, entries: u32) -> usize {
    match &step.foreach {
        None => 1,
        Some(Foreach::Values(values)) => values.len(),
        Some(Foreach::Entries { max, .. }) => entries.min(*max).max(1) as usize,
    }
}

/// How every version is divided: by the instances that make it, or that each take entries of it, whichever are more.
fn parts(workflow: &Workflow, entries: u32) -> BTreeMap<DatasetVersion, VersionItems> {
    let mut parts: BTreeMap<DatasetVersion, VersionItems> = BTreeMap::new();
    for (at, step) in workflow.steps.iter().enumerate() {
        let count = instances(step, entries);
        for used in &step.uses {
            if let Some(version) = used.makes {
                let made = parts.entry((used.data, version)).or_default();
                made.count = made.count.max(count);
                made.makers.push(StepId(at as u32));
            }
            if let Some(version) = used.reads {
                let read = parts.entry((used.data, version)).or_default();
                match used.entry.as_deref() {
                    Some(entry) if entry.contains(ITEM) => read.count = read.count.max(count),
                    Some(entry) => {
                        read.entries.insert(entry.to_owned());
                    }
                    None => {}
                }
            }
        }
    }
    for part in parts.values_mut() {
        part.count = part.count.max(part.entries.len()).max(1);
    }
    parts
}

/// Notes the values that the file does not have.
fn assumptions(workflow: &Workflow, entries: u32, notes: &mut Vec<String>) {
    let list = |names: Vec<&str>| match names.as_slice() {
        [first, _, ..] => format!("`{first}` and {} more", names.len() - 1),
        _ => format!("`{}`", names.concat()),
    };
    let timeless: Vec<&str> = workflow
        .steps
        .iter()
        .filter(|s| s.time.is_none())
        .map(|s| s.name.as_str())
        .collect();
    if !timeless.is_empty() {
        let time = Elapsed(ASSUMED_RUN_TIME);
        notes.push(format!(
            "no `time`: {} are assumed to run {time}",
            list(timeless)
        ));
    }
    if workflow.steps.iter().any(|s| s.time.is_some()) {
        notes.push(format!(
            "steps are assumed to run 1/{LIMIT_FACTOR} of their `time`"
        ));
    }
    let sizeless: Vec<&str> = workflow
        .data
        .iter()
        .filter(|d| d.size.is_none())
        .map(|d| d.name.as_str())
        .collect();
    if !sizeless.is_empty() {
        let size = Bytes(ASSUMED_BYTES);
        notes.push(format!(
            "no `size`: versions of {} are assumed to have {size}",
            list(sizeless)
        ));
    }
    for step in &workflow.steps {
        if let Some(Foreach::Entries { .. }) = &step.foreach {
            let count = instances(step, entries);
            let name = &step.name;
            notes.push(format!(
                "step `{name}` is assumed to have {count} instances"
            ));
        }
    }
}

impl Expansion<'_> {
    fn instances(&self, step: &Step) -> usize {
        instances(step, self.entries)
    }

    /// Numbers jobs and items.
    fn number(&mut self) -> Result<(), Finding> {
        let (mut jobs, mut items, mut uses) = (0usize, 0usize, 0usize);
        for parts in self.parts.values_mut() {
            parts.first = items;
            items = items.saturating_add(parts.count);
        }
        for step in &self.workflow.steps {
            self.first_job.push(jobs);
            let count = self.instances(step);
            jobs = jobs.saturating_add(count);
            let read = step.uses.iter().filter_map(|u| self.read(u, 0, count));
            let each = read
                .map(|r| r.len())
                .fold(self.befores(step), usize::saturating_add);
            uses = uses.saturating_add(each.saturating_mul(count));
        }
        if jobs <= MAX_SITE_JOBS && items <= MAX_SITE_ITEMS && uses <= MAX_USES {
            return Ok(());
        }
        let message = format!(
            "the workflow comes to {jobs} jobs, {items} items of data and {uses} uses of them"
        );
        Err(Finding::error(FindingCode::TooLarge, message).help(format!(
            "at most {MAX_SITE_JOBS} jobs, {MAX_SITE_ITEMS} items and {MAX_USES} uses are simulated; lower `entries`, or `max` of its steps"
        )))
    }

    /// The jobs that an instance waits for, beside the writers of its inputs.
    fn befores(&self, step: &Step) -> usize {
        self.steps_before(step)
            .map(|s| self.instances(self.workflow.step(s)))
            .sum()
    }

    /// Steps that have ended before: `after`, and those that make the entries that a `foreach` goes over.
    fn steps_before<'s>(&'s self, step: &'s Step) -> impl Iterator<Item = StepId> + 's {
        let entries = match &step.foreach {
            Some(Foreach::Entries { data, version, .. }) => self.parts.get(&(*data, *version)),
            _ => None,
        };
        let makers = entries.into_iter().flat_map(|p| p.makers.iter().copied());
        step.after.iter().copied().chain(makers)
    }

    /// The items that an instance reads by one use.
    fn read(
        &self,
        used: &DatasetUse,
        instance: usize,
        instances: usize,
    ) -> Option<std::ops::Range<usize>> {
        let parts = self.parts.get(&(used.data, used.reads?))?;
        let range = match used.entry.as_deref() {
            None => 0..parts.count,
            Some(entry) if entry.contains(ITEM) => parts.shared(instance, instances),
            Some(entry) => {
                let at = parts.entries.iter().position(|e| e == entry).unwrap_or(0);
                at..at + 1
            }
        };
        Some(parts.first + range.start..parts.first + range.end)
    }

    fn items(&self) -> Vec<WorkItem> {
        let mut last: BTreeMap<DataId, u32> = BTreeMap::new();
        for (data, version) in self.parts.keys() {
            last.insert(*data, *version);
        }
        let mut items = Vec::new();
        for ((data, version), parts) in &self.parts {
            let dataset = self.workflow.dataset(*data);
            let bytes = scaled(
                dataset.size.unwrap_or(ASSUMED_BYTES),
                self.options.bytes_scale,
            );
            let made = !parts.makers.is_empty();
            for part in 0..parts.count {
                let count = parts.count as u64;
                // The shares of all parts add up to the whole.
                let share = bytes / count + u64::from((part as u64) < bytes % count);
                items.push(WorkItem {
                    item: Item {
                        bytes: share,
                        outside: !made,
                        keep: made && dataset.dest.is_some() && last.get(data) == Some(version),
                    },
                    name: match parts.count {
                        1 => dataset.name.as_str().into(),
                        _ => format!("{}.{part}", dataset.name).into(),
                    },
                    bytes: share,
                });
            }
        }
        items
    }

    /// One instance of a step, its limit still missing.
    fn job(&self, step: &Step, instance: usize) -> DraftJob {
        let count = self.instances(step);
        let mut job = plain_job(step.nodes);
        (job.cores, job.memory, job.gpus) = (step.cores, step.memory, step.gpus);
        for before in self.steps_before(step) {
            let first = self.first_job[before.at()];
            let all = first..first + self.instances(self.workflow.step(before));
            job.after.extend(all.map(|at| JobId(at as u32)));
        }
        job.after.sort_unstable();
        job.after.dedup();
        for used in &step.uses {
            let spread = match used.distribution {
                Distribution::Broadcast => Spread::Whole,
                Distribution::Single | Distribution::Scatter | Distribution::Shared => {
                    Spread::Share
                }
            };
            let read = self.read(used, instance, count).into_iter().flatten();
            job.reads.extend(read.map(|at| Input {
                item: ItemId(at as u32),
                spread,
            }));
            if let Some(parts) = used.makes.and_then(|v| self.parts.get(&(used.data, v))) {
                let made = parts.shared(instance, count);
                job.writes
                    .extend(made.map(|at| ItemId((parts.first + at) as u32)));
            }
        }
        job.reads.sort_unstable_by_key(|r| (r.item, r.spread));
        job.reads.dedup_by_key(|r| r.item);
        let run = step
            .time
            .map_or(ASSUMED_RUN_TIME, |time| time / LIMIT_FACTOR);
        DraftJob {
            name: match &step.foreach {
                None => step.name.as_str().into(),
                Some(Foreach::Values(values)) => {
                    format!("{}[{}]", step.name, values[instance]).into()
                }
                Some(Foreach::Entries { .. }) => format!("{}[{instance}]", step.name).into(),
            },
            job,
            compute: scaled(run, self.options.time_scale),
            follows: None,
        }
    }
}
