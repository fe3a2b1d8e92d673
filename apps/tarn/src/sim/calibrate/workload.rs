//! A recorded run as a workload: a job is an instance with its observed time; an item is data that one instance made (or nobody)
//! and the same instances read, with its observed size.

use super::recorded::{Ran, Recorded};
use crate::error::{CliError, CliResult};
use std::collections::BTreeMap;
use std::sync::Arc;
use tarn_types::codes::Exit;
use tarn_types::id::{DataId, InstanceId, StepId};
use tarn_types::part::PartRef;
use tarn_types::site::{
    Flow, FlowId, Input, Item, ItemId, Job, JobId, Rates, Spread, Submit, WorkItem, WorkJob,
    Workload,
};
use tarn_types::units::{Nanos, SECOND};

/// Uses of parts by instances, and instances waited for by instances: the most that `tarn sim` takes of one workflow.
const MAX_USES: usize = 32 << 20;
/// Users ask for twice the time that they expect, and for no less than this.
const LIMIT_FACTOR: u64 = 2;
const LEAST_LIMIT: Nanos = SECOND;

/// The readers of something, in the order of the jobs, and how it is spread over the nodes of each.
type JobReaders = Vec<(JobId, Spread)>;
/// The identity of data that moves as one: its maker, dataset, version and readers.
type Same = (Option<JobId>, DataId, u32, JobReaders);

/// A run on its way to a workload.
struct Converted<'r> {
    recorded: &'r Recorded<'r>,
    numbers: BTreeMap<InstanceId, JobId>,
    uses: usize,
}

/// The workload of a run. `store`: the rates of its external store, for the time that people would ask for.
///
/// # Errors
/// When it is more than can be simulated.
pub(super) fn workload(recorded: &Recorded<'_>, store: Rates) -> CliResult<Workload> {
    let numbers = recorded.jobs.keys().copied().zip((0u32..).map(JobId));
    let mut converted = Converted {
        recorded,
        numbers: numbers.collect(),
        uses: 0,
    };
    let mut jobs = converted.jobs()?;
    let items = converted.items(&mut jobs)?;
    for job in &mut jobs {
        let io = io_time(job, &items, store);
        if job.limit == 0 {
            let takes = job.expect.saturating_add(io);
            job.limit = takes.saturating_mul(LIMIT_FACTOR).max(LEAST_LIMIT);
        }
        job.expect = job.expect.min(job.limit);
    }
    let jobs = jobs.into_iter().zip(&recorded.jobs);
    let jobs = jobs.map(|(job, (id, ran))| WorkJob {
        job: Arc::new(job),
        name: recorded.history.instance_name(*id).into(),
        submit: Submit::At(0),
        compute: ran.took(),
    });
    Ok(Workload {
        jobs: jobs.collect(),
        items,
        flows: vec![Flow {
            name: recorded.start.workflow.name.clone(),
            arrives: 0,
        }],
        skipped: Vec::new(),
    })
}

/// How long a job reads and writes outside if it does so by itself.
fn io_time(job: &Job, items: &[WorkItem], store: Rates) -> Nanos {
    let bytes = |item: ItemId| items.get(item.at()).map_or(0, |i| u128::from(i.bytes));
    let read: u128 = job.reads.iter().map(|r| bytes(r.item)).sum();
    let written: u128 = job.writes.iter().map(|w| bytes(*w)).sum();
    let time = |bytes: u128, rate: u64| {
        let nanos = (bytes * u128::from(SECOND)).checked_div(u128::from(rate));
        nanos.map_or(0, |n| u64::try_from(n).unwrap_or(Nanos::MAX))
    };
    time(read, store.read).saturating_add(time(written, store.write))
}

impl Converted<'_> {
    /// The jobs, without data; their limit is 0 where the workflow has none.
    fn jobs(&mut self) -> CliResult<Vec<Job>> {
        let recorded = self.recorded;
        let mut jobs = Vec::with_capacity(recorded.jobs.len());
        for id in recorded.jobs.keys() {
            let step = recorded.start.workflow.step(id.step);
            let after = self.waits_for(id.step);
            self.more_uses(after.len())?;
            jobs.push(Job {
                flow: Some(FlowId(0)),
                nodes: step.nodes,
                cores: step.cores,
                memory: step.memory,
                gpus: step.gpus,
                mode: None,
                limit: step.time.unwrap_or(0),
                expect: self.mean_of(id.step),
                after,
                continues: None,
                submitted: None,
                place: None,
                on: None,
                not_before: 0,
                reads: Vec::new(),
                writes: Vec::new(),
            });
        }
        Ok(jobs)
    }

    fn more_uses(&mut self, count: usize) -> CliResult<()> {
        self.uses = self.uses.saturating_add(count);
        if self.uses <= MAX_USES {
            return Ok(());
        }
        Err(CliError::new(
            Exit::Usage,
            format!(
                "the run has more than {MAX_USES} uses of data by instances, and no more are simulated; name a smaller one"
            ),
        ))
    }

    fn jobs_of(&self, step: StepId) -> impl Iterator<Item = (JobId, &Ran<'_>)> {
        let at = |index| InstanceId { step, index };
        let range = self.recorded.jobs.range(at(0)..=at(u32::MAX));
        range.filter_map(|(id, ran)| Some((*self.numbers.get(id)?, ran)))
    }

    /// The run time of a step that the planner may expect: the mean.
    fn mean_of(&self, step: StepId) -> Nanos {
        let (sum, count) = self.jobs_of(step).fold((0u64, 0u64), |(sum, n), (_, ran)| {
            (sum.saturating_add(ran.took()), n + 1)
        });
        sum.checked_div(count).unwrap_or(0)
    }

    /// Instances become known once every version that their step reads is complete: each waits for all that make them,
    /// beside those that it names in `after`.
    fn waits_for(&self, step: StepId) -> Vec<JobId> {
        let workflow = &self.recorded.start.workflow;
        let step = workflow.step(step);
        let read = step.uses.iter().filter_map(|u| Some((u.data, u.reads?)));
        let makers = read.filter_map(|(data, version)| workflow.producer(data, version));
        let mut steps: Vec<StepId> = makers.chain(step.after.iter().copied()).collect();
        steps.sort_unstable();
        steps.dedup();
        let jobs = steps.into_iter().flat_map(|s| self.jobs_of(s));
        jobs.map(|(job, _)| job).collect()
    }

    /// The items, and each job's reads and writes of them.
    fn items(&mut self, jobs: &mut [Job]) -> CliResult<Vec<WorkItem>> {
        let mut parts: BTreeMap<PartRef, (Option<JobId>, JobReaders)> = BTreeMap::new();
        for (id, ran) in &self.recorded.jobs {
            let Some(job) = self.numbers.get(id).copied() else {
                continue;
            };
            for part in &ran.made {
                parts.entry(*part).or_default().0 = Some(job);
            }
            let read = ran.read();
            self.more_uses(read.len())?;
            for (part, whole) in read {
                let spread = if whole { Spread::Whole } else { Spread::Share };
                parts.entry(part).or_default().1.push((job, spread));
            }
        }
        let mut same: BTreeMap<Same, u64> = BTreeMap::new();
        for (part, (maker, readers)) in parts {
            let bytes = self
                .recorded
                .history
                .parts
                .get(&part)
                .map_or(0, |i| i.bytes);
            *same
                .entry((maker, part.data, part.version, readers))
                .or_default() += bytes;
        }
        let mut items = Vec::with_capacity(same.len());
        for ((maker, data, version, readers), bytes) in same {
            let item = ItemId(items.len() as u32);
            for (job, spread) in readers {
                jobs[job.at()].reads.push(Input { item, spread });
            }
            if let Some(job) = maker {
                jobs[job.at()].writes.push(item);
            }
            items.push(self.item(maker, data, version, bytes));
        }
        Ok(items)
    }

    fn item(&self, maker: Option<JobId>, data: DataId, version: u32, bytes: u64) -> WorkItem {
        let workflow = &self.recorded.start.workflow;
        let dataset = workflow.dataset(data);
        let last = workflow.last_version(data) == version;
        WorkItem {
            item: Item {
                bytes,
                outside: maker.is_none(),
                keep: maker.is_some() && dataset.dest.is_some() && last,
            },
            name: dataset.name.as_str().into(),
            bytes,
        }
    }
}
