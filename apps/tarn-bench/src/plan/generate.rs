//! A machine, and a workload for it, from a seed. docs/internals/simulator.md states the rules.

use std::sync::Arc;
use tarn_types::random::Random;
use tarn_types::site::{
    Flow, FlowId, Input, Island, Item, ItemId, Job, JobId, Machine, Mode, NodeKind, NodePowerModel,
    Rates, Spread, Store, Submit, TierKind, WorkItem, WorkJob, Workload,
};
use tarn_types::units::{Nanos, SECOND, Time};

const GB: u64 = 1_000_000_000;
/// Node-time that jobs bring, as a share of the machine's.
const LOAD: f64 = 0.9;
/// Run times.
const SHORTEST: f64 = 60.0;
const LONGEST: f64 = 12.0 * 3600.0;
/// Users request up to so many times their need.
const MOST_REQUESTED: f64 = 5.0;
/// A job of whole nodes takes at most one of so many parts of the machine.
const LARGEST_PART: u32 = 16;
/// Cores of a node, of which a job that takes a part of one has at most [`MOST_CORES`], and memory for each core.
const CORES: u32 = 48;
const MOST_CORES: u32 = 16;
const CORE_MEMORY: u64 = 4 << 30;
/// Share of the ordinary jobs that read and write outside.
const WITH_DATA: f64 = 0.2;
/// Share of arrivals that are workflows of [`FLOW_JOBS`] jobs: one makes what three read, whose results one gathers.
const FLOWS: f64 = 0.03;
const FLOW_JOBS: usize = 5;
/// Seconds that reading or writing takes at [`NODE_RATE`] on the job's nodes.
const LEAST_IO: f64 = 1.0;
const MOST_IO: f64 = 300.0;
const NODE_RATE: u64 = GB;

/// How much of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct GeneratorSettings {
    /// Jobs submitted at time 0; the others come later.
    pub(super) at_once: u64,
    /// Each takes some cores of one node, not nodes as a whole.
    pub(super) shared: bool,
    /// All jobs, at least; the last workflow may bring some more.
    pub(super) jobs: u64,
    /// The same seed gives the same.
    pub(super) seed: u64,
}

/// Nodes like those of the NEXTGenIO prototype, and an external store of 100 MB/s a node.
pub(super) fn machine(nodes: u32) -> Machine {
    let both = |rate: u64| Rates {
        read: rate,
        write: rate,
    };
    let kind = NodeKind {
        sockets: 2,
        cores: CORES,
        memory: CORE_MEMORY * CORES as u64,
        gpus: 0,
        tiers: vec![TierKind {
            name: "pmem".into(),
            capacity: 3000 * GB,
            rates: Rates {
                read: 40 * GB,
                write: 10 * GB,
            },
            app_direct: false,
        }],
        link: both(10 * GB),
        mode: Mode::OneLevel,
        mode_change: None,
        power: NodePowerModel::default(),
        temperature: 20.0,
    };
    Machine {
        name: format!("{nodes} nodes"),
        islands: vec![Island {
            name: "n".into(),
            nodes,
            kind,
        }],
        store: Store {
            rates: both(u64::from(nodes) * GB / 10),
            client: both(2 * GB),
            saturates: 64,
        },
    }
}

/// The workload.
pub(super) fn workload(machine: &Machine, shape: &GeneratorSettings) -> Workload {
    let (largest, in_one) = if shape.shared {
        (MOST_CORES.ilog2(), f64::from(CORES))
    } else {
        ((machine.nodes() / LARGEST_PART).max(1).ilog2(), 1.0)
    };
    let mut made = WorkloadGenerator {
        random: Random::new(shape.seed),
        largest,
        shared: shape.shared,
        workload: Workload::default(),
    };
    let sizes = f64::from((2u32 << largest) - 1) / f64::from(largest + 1);
    let mean_run = (LONGEST - SHORTEST) / (LONGEST / SHORTEST).ln();
    let each_job = sizes * mean_run / (LOAD * f64::from(machine.nodes()) * in_one);
    let mut now = 0.0;
    while (made.workload.jobs.len() as u64) < shape.jobs {
        let count = if made.random.unit() < FLOWS {
            made.flow(seconds(now))
        } else {
            made.ordinary(seconds(now))
        };
        if made.workload.jobs.len() as u64 >= shape.at_once {
            // Exponential: arrivals know nothing of each other.
            now -= each_job * count as f64 * (1.0 - made.random.unit()).ln();
        }
    }
    made.workload
}

fn seconds(time: f64) -> Nanos {
    (time * SECOND as f64) as Nanos
}

fn log_uniform(random: &mut Random, least: f64, most: f64) -> f64 {
    least * (most / least).powf(random.unit())
}

struct WorkloadGenerator {
    random: Random,
    /// The largest job has 2 to the power of this nodes, or cores.
    largest: u32,
    shared: bool,
    workload: Workload,
}

impl WorkloadGenerator {
    fn ordinary(&mut self, now: Time) -> usize {
        let size = self.size();
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        if self.random.unit() < WITH_DATA {
            reads.push(self.item(size, true, false));
            writes.push(self.item(size, false, true));
        }
        self.job(None, size, now, &reads, writes);
        1
    }

    fn flow(&mut self, now: Time) -> usize {
        let number = self.workload.flows.len();
        let flow = FlowId(number as u32);
        self.workload.flows.push(Flow {
            name: format!("w{number}"),
            arrives: now,
        });
        let size = self.size();
        let input = self.item(size, true, false);
        let made = self.item(size, false, false);
        self.job(Some(flow), size, now, &[input], vec![made]);
        let results: Vec<ItemId> = (0..FLOW_JOBS - 2)
            .map(|_| self.item(size, false, false))
            .collect();
        for result in &results {
            self.job(Some(flow), size, now, &[made], vec![*result]);
        }
        let kept = self.item(size, false, true);
        self.job(Some(flow), size, now, &results, vec![kept]);
        FLOW_JOBS
    }

    /// Nodes, or cores of one.
    fn size(&mut self) -> u32 {
        let sizes = f64::from(self.largest + 1);
        1 << (self.random.unit() * sizes) as u32
    }

    fn item(&mut self, size: u32, outside: bool, keep: bool) -> ItemId {
        let nodes = if self.shared { 1 } else { size };
        let seconds = log_uniform(&mut self.random, LEAST_IO, MOST_IO);
        let bytes = (seconds * f64::from(nodes) * NODE_RATE as f64) as u64;
        let id = ItemId(self.workload.items.len() as u32);
        self.workload.items.push(WorkItem {
            item: Item {
                bytes,
                outside,
                keep,
            },
            name: "".into(),
            bytes,
        });
        id
    }

    fn job(
        &mut self,
        flow: Option<FlowId>,
        size: u32,
        now: Time,
        reads: &[ItemId],
        writes: Vec<ItemId>,
    ) {
        let run = log_uniform(&mut self.random, SHORTEST, LONGEST);
        let factor = 1.0 + self.random.unit() * (MOST_REQUESTED - 1.0);
        // The time to read and write is part of a user's request.
        let moving = if reads.is_empty() { 0.0 } else { 2.0 * MOST_IO };
        let reads = reads.iter().map(|item| Input {
            item: *item,
            spread: Spread::Share,
        });
        let (nodes, cores) = if self.shared { (1, size) } else { (size, 0) };
        let job = Job {
            flow,
            nodes,
            cores,
            memory: u64::from(cores) * CORE_MEMORY,
            gpus: 0,
            mode: None,
            limit: seconds(run * factor + moving),
            expect: seconds(run * factor),
            after: Vec::<JobId>::new(),
            continues: None,
            submitted: None,
            place: None,
            on: None,
            not_before: 0,
            reads: reads.collect(),
            writes,
        };
        self.workload.jobs.push(WorkJob {
            job: Arc::new(job),
            name: "".into(),
            submit: Submit::At(now),
            compute: seconds(run),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_load() {
        gives_the_same_load(false);
        gives_the_same_load(true);
    }

    fn gives_the_same_load(shared: bool) {
        let machine = machine(1000);
        let made = |seed| {
            let shape = GeneratorSettings {
                at_once: 0,
                jobs: 20_000,
                seed,
                shared,
            };
            workload(&machine, &shape)
        };
        let first = made(3);
        let described = |w: &Workload| {
            w.jobs
                .iter()
                .map(|j| (j.submit, j.compute, j.job.nodes, j.job.cores))
                .collect::<Vec<_>>()
        };
        assert_eq!(described(&first), described(&made(3)));
        assert_ne!(described(&first), described(&made(4)));
        let nodes = |j: &Job| match j.cores {
            0 => f64::from(j.nodes),
            cores => f64::from(cores) / f64::from(CORES),
        };
        let area: f64 = first
            .jobs
            .iter()
            .map(|j| j.compute as f64 * nodes(&j.job))
            .sum();
        let Some(Submit::At(last)) = first.jobs.last().map(|j| j.submit) else {
            panic!("jobs come at times");
        };
        let load = area / (last as f64 * 1000.0);
        assert!((0.85..0.95).contains(&load), "load {load}");
        let steps = first.jobs.iter().filter(|j| j.job.flow.is_some()).count();
        assert!((2000..4000).contains(&steps), "{steps} steps of workflows");
    }
}
