//! Times that no policy can beat: for each workflow, and for a whole workload. `docs/internals/lower-bound.md` derives
//! them.
//!
//! Every job gets a *head* (before which it cannot begin) and a *tail* (the least time that must follow its end). All
//! cores together, and each direction of the external store, then have their work to do between heads and tails.

mod graph;
mod packing;
mod store;

use graph::{BoundJobGraph, EarliestJobTimes};
use packing::{PackingTask, least_end};
use store::{Direction, StoreRates};
use tarn_types::site::{Machine, Submit, Workload};
use tarn_types::units::{Nanos, Time};

/// Lower bounds; valid for every policy, however large the tiers are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// From the first submission until all jobs have ended and all kept items are in the external store.
    pub makespan: Nanos,
    /// By workflow: from its first submission until its jobs have ended and its kept items are in the external store.
    pub flows: Vec<Nanos>,
}

/// The bounds of a workload on a machine. Jobs that fit on no island, and jobs that wait for them, count nothing: they
/// are refused.
pub fn lower_bound(machine: &Machine, workload: &Workload) -> Bounds {
    let graph = BoundJobGraph::new(machine, workload);
    let store = StoreRates::new(machine);
    let EarliestJobTimes { known, .. } = graph.finishes(|_| 0);
    let EarliestJobTimes { finish, .. } =
        graph.finishes(|job| inputs_there(&graph, &store, &known, job));
    let facts = |within_flow| BoundInputs {
        graph: &graph,
        known: &known,
        finish: &finish,
        tails: tails(&graph, &store, within_flow),
    };
    let whole = facts(false).sums(1, |_| Some(0));
    let flow_of = |job: usize| workload.jobs[job].job.flow.map(|f| f.at());
    let flows = facts(true).sums(workload.flows.len(), flow_of);
    let cores = machine.islands.iter();
    let cores = cores.map(|i| u128::from(i.nodes) * u128::from(i.kind.cores));
    let cores = cores.sum();
    Bounds {
        makespan: whole.iter().map(|w| w.bound(cores, &store)).sum(),
        flows: flows.iter().map(|f| f.bound(cores, &store)).collect(),
    }
}

/// When the inputs of a job from outside can be there at the earliest. Three ways to see it: each item by itself; all of
/// them through the store; those that nobody else reads through the job's own nodes (others may come from a node that
/// has read them before).
fn inputs_there(graph: &BoundJobGraph<'_>, store: &StoreRates, known: &[Time], job: usize) -> Time {
    let (mut single, mut first, mut first_own) = (0, Time::MAX, Time::MAX);
    let (mut all_bytes, mut own_bytes) = (0u128, 0u128);
    for item in graph.outside_inputs(job) {
        let bytes = graph.bytes(item);
        let nodes = graph.widest(item);
        let alone = store.transfer(Direction::In, bytes, nodes);
        single = single.max(known[item].saturating_add(alone));
        first = first.min(known[item]);
        all_bytes += bytes;
        if graph.readers[item].len() == 1 {
            first_own = first_own.min(known[item]);
            own_bytes += bytes;
        }
    }
    if all_bytes == 0 {
        return 0;
    }
    let through_store = first.saturating_add(store.together(Direction::In, all_bytes));
    let nodes = graph.workload.jobs[job].job.nodes;
    let own = match first_own {
        Time::MAX => 0,
        begin => begin.saturating_add(store.through_nodes(Direction::In, own_bytes, nodes)),
    };
    single.max(through_store).max(own)
}

/// By job: the time that must follow its end; with `within_flow`, within its workflow only.
fn tails(graph: &BoundJobGraph<'_>, store: &StoreRates, within_flow: bool) -> Vec<Nanos> {
    let jobs = &graph.workload.jobs;
    let mut tails = vec![0; jobs.len()];
    for &job in graph.order.iter().rev() {
        let job = job as usize;
        let own = delivery(graph, store, job).max(tails[job]);
        tails[job] = own;
        let beneath = own.saturating_add(jobs[job].compute);
        for before in graph.before(job) {
            if !within_flow || jobs[before].job.flow == jobs[job].job.flow {
                tails[before] = beneath.max(tails[before]);
            }
        }
    }
    tails
}

/// The least time from the end of a job until its outputs that must be kept are outside.
fn delivery(graph: &BoundJobGraph<'_>, store: &StoreRates, job: usize) -> Nanos {
    let (mut single, mut all_bytes, mut own_bytes) = (0, 0u128, 0u128);
    for item in graph.kept_outputs(job) {
        let bytes = graph.bytes(item);
        single = single.max(store.transfer(Direction::Out, bytes, graph.widest(item)));
        all_bytes += bytes;
        if graph.readers[item].is_empty() {
            own_bytes += bytes;
        }
    }
    let nodes = graph.workload.jobs[job].job.nodes;
    let own = store.through_nodes(Direction::Out, own_bytes, nodes);
    single
        .max(store.together(Direction::Out, all_bytes))
        .max(own)
}

/// The known facts of every job.
struct BoundInputs<'a> {
    graph: &'a BoundJobGraph<'a>,
    known: &'a [Time],
    finish: &'a [Time],
    tails: Vec<Nanos>,
}

/// The total demand of some of the jobs.
#[derive(Debug, Clone, Default)]
struct JobDemandSum {
    first: Option<Time>,
    path: Time,
    area: Vec<PackingTask>,
    reads: Vec<PackingTask>,
    writes: Vec<PackingTask>,
}

impl BoundInputs<'_> {
    /// The work of `count` groups of jobs.
    fn sums(&self, count: usize, group: impl Fn(usize) -> Option<usize>) -> Vec<JobDemandSum> {
        let mut sums = vec![JobDemandSum::default(); count];
        for &job in &self.graph.order {
            let job = job as usize;
            if let Some(sum) = group(job).and_then(|g| sums.get_mut(g)) {
                self.add_job(sum, job);
            }
        }
        for item in 0..self.graph.readers.len() {
            self.add_reading(&mut sums, &group, item);
        }
        sums
    }

    fn add_job(&self, sum: &mut JobDemandSum, job: usize) {
        let (finish, tail) = (self.finish[job], self.tails[job]);
        // Of a job that another one submits only the earliest time is known: no time to count from.
        if let Submit::At(submitted) = self.graph.workload.jobs[job].submit {
            sum.first = Some(sum.first.map_or(submitted, |f| f.min(submitted)));
        }
        sum.path = sum.path.max(finish.saturating_add(tail));
        let compute = self.graph.workload.jobs[job].compute;
        sum.area.push(PackingTask {
            head: finish.saturating_sub(compute),
            work: self.graph.cores[job] * u128::from(compute),
            tail,
        });
        let kept = self.graph.kept_outputs(job);
        sum.writes.extend(kept.map(|item| PackingTask {
            head: finish,
            work: store::work(self.graph.bytes(item)),
            tail: 0,
        }));
    }

    /// An item from outside has to be there before its readers run.
    fn add_reading(
        &self,
        sums: &mut [JobDemandSum],
        group: impl Fn(usize) -> Option<usize>,
        item: usize,
    ) {
        if !self.graph.workload.items[item].item.outside {
            return;
        }
        let mut groups: Vec<(usize, Nanos)> = Vec::new();
        for &reader in &self.graph.readers[item] {
            let reader = reader as usize;
            let Some(g) = group(reader) else { continue };
            let compute = self.graph.workload.jobs[reader].compute;
            let tail = compute.saturating_add(self.tails[reader]);
            match groups.iter_mut().find(|(known, _)| *known == g) {
                Some((_, most)) => *most = tail.max(*most),
                None => groups.push((g, tail)),
            }
        }
        for (g, tail) in groups {
            if let Some(sum) = sums.get_mut(g) {
                sum.reads.push(PackingTask {
                    head: self.known[item],
                    work: store::work(self.graph.bytes(item)),
                    tail,
                });
            }
        }
    }
}

impl JobDemandSum {
    fn bound(&self, cores: u128, store: &StoreRates) -> Nanos {
        let reads = store.all(Direction::In);
        let writes = store.all(Direction::Out);
        let end = self
            .path
            .max(least_end(&self.area, Some(cores)))
            .max(least_end(&self.reads, reads))
            .max(least_end(&self.writes, writes));
        end.saturating_sub(self.first.unwrap_or(end))
    }
}

/// The time at which a job is submitted, given the ends of others.
fn submission(submit: Submit, finish: &[Time]) -> Time {
    match submit {
        Submit::At(time) => time,
        Submit::After(job) => finish.get(job.at()).copied().unwrap_or(0),
    }
}
