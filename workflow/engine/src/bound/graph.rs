//! A workload as a graph of the jobs that can run.

use super::submission;
use tarn_types::site::{Job, JobId, Machine, Mode, NodeKind, Submit, WorkJob, Workload};
use tarn_types::units::Time;

/// Jobs that can run, and the data between them. Numbers are positions in the workload.
pub(super) struct BoundJobGraph<'a> {
    pub(super) workload: &'a Workload,
    /// Each after those it waits for. Jobs that fit nowhere are not among them, nor those that wait for them.
    pub(super) order: Vec<u32>,
    /// By job: the cores it takes at least, on all its nodes.
    pub(super) cores: Vec<u128>,
    /// By item: the jobs among `order` that read it.
    pub(super) readers: Vec<Vec<u32>>,
    producer: Vec<Option<u32>>,
}

/// Earliest times.
pub(super) struct EarliestJobTimes {
    /// By job: when it has ended.
    pub(super) finish: Vec<Time>,
    /// By item: when a job that reads it is first submitted.
    pub(super) known: Vec<Time>,
}

impl<'a> BoundJobGraph<'a> {
    pub(super) fn new(machine: &Machine, workload: &'a Workload) -> Self {
        let mut producer = vec![None; workload.items.len()];
        for (number, job) in (0u32..).zip(&workload.jobs) {
            for item in &job.job.writes {
                if let Some(slot) = producer.get_mut(item.at()) {
                    *slot = Some(number);
                }
            }
        }
        let needs = workload.jobs.iter();
        let cores: Vec<Option<u128>> = needs.map(|j| least_cores(machine, &j.job)).collect();
        let mut graph = Self {
            workload,
            order: Vec::new(),
            cores: cores.iter().map(|c| c.unwrap_or(0)).collect(),
            readers: vec![Vec::new(); workload.items.len()],
            producer,
        };
        graph.order = graph.sorted(|job| cores[job].is_some());
        for &job in &graph.order {
            for input in &workload.jobs[job as usize].job.reads {
                let readers = graph.readers.get_mut(input.item.at());
                if let Some(readers) = readers.filter(|r| r.last() != Some(&job)) {
                    readers.push(job);
                }
            }
        }
        graph
    }

    /// The jobs that a job waits for.
    pub(super) fn before(&self, job: usize) -> impl Iterator<Item = usize> + '_ {
        let WorkJob { job, submit, .. } = &self.workload.jobs[job];
        let producers = job.reads.iter();
        let producers = producers.filter_map(|i| *self.producer.get(i.item.at())?);
        let chained = match submit {
            Submit::After(job) => Some(*job),
            Submit::At(_) => None,
        };
        let others = job.after.iter().copied().chain(job.continues);
        let others = others.chain(chained).map(JobId::at);
        let count = self.workload.jobs.len();
        producers
            .map(|p| p as usize)
            .chain(others.filter(move |j| *j < count))
    }

    /// Topological order (Kahn 1962) of the jobs that can run.
    fn sorted(&self, fits: impl Fn(usize) -> bool) -> Vec<u32> {
        let count = self.workload.jobs.len();
        let mut waits_for = vec![0u32; count];
        let mut edges: Vec<(u32, u32)> = Vec::new();
        for (number, waits) in (0u32..).zip(&mut waits_for) {
            for before in self.before(number as usize) {
                edges.push((before as u32, number));
                *waits += 1;
            }
        }
        edges.sort_unstable();
        let free = (0u32..).zip(&waits_for);
        let mut order: Vec<u32> = free
            .filter(|(j, waits)| **waits == 0 && fits(*j as usize))
            .map(|(j, _)| j)
            .collect();
        let mut next = 0;
        while let Some(&job) = order.get(next) {
            next += 1;
            let first = edges.partition_point(|e| e.0 < job);
            let behind = edges[first..].iter().take_while(|e| e.0 == job);
            for &(_, later) in behind {
                let waits = &mut waits_for[later as usize];
                *waits -= 1;
                if *waits == 0 && fits(later as usize) {
                    order.push(later);
                }
            }
        }
        order
    }

    /// The earliest ends of all jobs, if `inputs_there` says when a job's inputs from outside can be there.
    pub(super) fn finishes(&self, inputs_there: impl Fn(usize) -> Time) -> EarliestJobTimes {
        let jobs = &self.workload.jobs;
        let mut times = EarliestJobTimes {
            finish: vec![0; jobs.len()],
            known: vec![Time::MAX; self.readers.len()],
        };
        for &job in &self.order {
            let job = job as usize;
            let submitted = submission(jobs[job].submit, &times.finish);
            let before = self.before(job).map(|b| times.finish[b]);
            let begin = before
                .max()
                .unwrap_or(0)
                .max(submitted)
                .max(inputs_there(job));
            times.finish[job] = begin.saturating_add(jobs[job].compute);
            for input in &jobs[job].job.reads {
                if let Some(known) = times.known.get_mut(input.item.at()) {
                    *known = submitted.min(*known);
                }
            }
        }
        times
    }

    /// The items that a job reads and nobody makes, each once.
    pub(super) fn outside_inputs(&self, job: usize) -> Vec<usize> {
        let reads = self.workload.jobs[job].job.reads.iter();
        let outside = |i: &usize| self.workload.items.get(*i).is_some_and(|w| w.item.outside);
        let mut items: Vec<usize> = reads.map(|r| r.item.at()).filter(outside).collect();
        items.sort_unstable();
        items.dedup();
        items
    }

    /// The items that a job makes and that must be outside in the end.
    pub(super) fn kept_outputs(&self, job: usize) -> impl Iterator<Item = usize> + '_ {
        let writes = self.workload.jobs[job].job.writes.iter().map(|i| i.at());
        writes.filter(|i| {
            let item = self.workload.items.get(*i);
            item.is_some_and(|w| w.item.keep && !w.item.outside)
        })
    }

    /// An item's bytes: the lesser of the declared and the real size, as a planner may move the one or the other.
    pub(super) fn bytes(&self, item: usize) -> u128 {
        let item = &self.workload.items[item];
        u128::from(item.bytes.min(item.item.bytes))
    }

    /// The most nodes that ever hold an item: those of the job that makes it, or of one that reads it.
    pub(super) fn widest(&self, item: usize) -> u32 {
        let readers = self.readers[item].iter().copied();
        let jobs = readers.chain(self.producer[item]);
        let nodes = jobs.map(|j| self.workload.jobs[j as usize].job.nodes);
        nodes.max().unwrap_or(1)
    }
}

/// The least cores that a job takes from others, over the islands that it fits on.
fn least_cores(machine: &Machine, job: &Job) -> Option<u128> {
    let islands = machine.islands.iter();
    let fitting = islands.filter(|i| i.nodes >= job.nodes && fits(&i.kind, job));
    let cores = fitting.map(|i| match job.cores {
        0 => i.kind.cores,
        cores => cores,
    });
    cores
        .min()
        .map(|cores| u128::from(cores) * u128::from(job.nodes))
}

fn fits(kind: &NodeKind, job: &Job) -> bool {
    let changed = kind.mode_change.map(|c| c.memory);
    let memory = match (kind.mode, changed) {
        (Mode::OneLevel, Some(more)) => kind.memory.max(more),
        _ => kind.memory,
    };
    let mode = job.mode.is_none_or(|m| m == kind.mode) || changed.is_some();
    mode && job.cores <= kind.cores && job.gpus <= kind.gpus && job.memory <= memory
}
