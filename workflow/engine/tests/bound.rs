//! Lower bounds against every order in which a tiny workload can be scheduled, and where they are exact.

use proptest::prelude::*;
use std::sync::Arc;
use tarn_engine::bound::lower_bound;
use tarn_types::site::{
    Flow, FlowId, Input, Island, Item, ItemId, Job, JobId, Machine, Mode, NodeKind, NodePowerModel,
    Rates, Spread, Store, Submit, WorkItem, WorkJob, Workload,
};
use tarn_types::units::{Nanos, SECOND, Time};

const GB: u64 = 1_000_000_000;

fn both(rate: u64) -> Rates {
    Rates {
        read: rate,
        write: rate,
    }
}

fn machine(nodes: u32, cores: u32, store: u64, client: u64, saturates: u32) -> Machine {
    let kind = NodeKind {
        sockets: 1,
        cores,
        memory: 64 * GB,
        gpus: 0,
        tiers: Vec::new(),
        link: both(0),
        mode: Mode::OneLevel,
        mode_change: None,
        power: NodePowerModel::default(),
        temperature: 20.0,
    };
    Machine {
        name: "m".into(),
        islands: vec![Island {
            name: "n".into(),
            nodes,
            kind,
        }],
        store: Store {
            rates: both(store),
            client: both(client),
            saturates,
        },
    }
}

#[derive(Debug, Clone, Default)]
struct Plan {
    nodes: u32,
    cores: u32,
    compute: u64,
    flow: Option<u32>,
    reads: Vec<u32>,
    writes: Vec<u32>,
}

fn workload(jobs: &[Plan], items: &[(u64, bool, bool)], arrives: [Time; 2]) -> Workload {
    let job = |p: &Plan| WorkJob {
        job: Arc::new(Job {
            flow: p.flow.map(FlowId),
            nodes: p.nodes,
            cores: p.cores,
            memory: 0,
            gpus: 0,
            mode: None,
            limit: p.compute * SECOND,
            expect: p.compute * SECOND,
            after: Vec::new(),
            continues: None,
            submitted: None,
            place: None,
            on: None,
            not_before: 0,
            reads: p
                .reads
                .iter()
                .map(|i| Input {
                    item: ItemId(*i),
                    spread: Spread::Share,
                })
                .collect(),
            writes: p.writes.iter().copied().map(ItemId).collect(),
        }),
        name: "".into(),
        submit: Submit::At(p.flow.map_or(0, |f| arrives[f as usize])),
        compute: p.compute * SECOND,
    };
    let item = |(gigabytes, outside, keep): &(u64, bool, bool)| WorkItem {
        item: Item {
            bytes: gigabytes * GB,
            outside: *outside,
            keep: *keep,
        },
        name: "".into(),
        bytes: gigabytes * GB,
    };
    let flow = |n: usize| Flow {
        name: format!("w{n}"),
        arrives: arrives[n],
    };
    Workload {
        jobs: jobs.iter().map(job).collect(),
        items: items.iter().map(item).collect(),
        flows: (0..2).map(flow).collect(),
        skipped: Vec::new(),
    }
}

/// A possible schedule on unlimited tiers and links: jobs get nodes in this order, each item from outside is read once,
/// for its first reader, and one at a time.
struct Schedule<'a> {
    machine: &'a Machine,
    workload: &'a Workload,
    /// By node and core.
    free: Vec<Vec<Time>>,
    store_in: Time,
    store_out: Time,
    there: Vec<Option<Time>>,
    /// By job: its end, its kept results outside included.
    done: Vec<Time>,
}

impl<'a> Schedule<'a> {
    fn new(machine: &'a Machine, workload: &'a Workload) -> Self {
        let kind = &machine.islands[0].kind;
        Self {
            machine,
            workload,
            free: vec![vec![0; kind.cores as usize]; machine.nodes() as usize],
            store_in: 0,
            store_out: 0,
            there: vec![None; workload.items.len()],
            done: vec![0; workload.jobs.len()],
        }
    }

    fn transfer(&self, bytes: u64, nodes: u32) -> Nanos {
        let store = &self.machine.store;
        let one = store.rates.read / u64::from(store.saturates);
        let rate = one.min(store.client.read * u64::from(nodes));
        let time = (u128::from(bytes) * u128::from(SECOND)).div_ceil(rate.into());
        Nanos::try_from(time).expect("short")
    }

    /// `None` if its input is not made yet.
    fn run(&mut self, number: usize) -> Option<()> {
        let work = &self.workload.jobs[number];
        let Submit::At(submitted) = work.submit else {
            return None;
        };
        let mut begin = submitted;
        for input in &work.job.reads {
            let item = input.item.at();
            if self.there[item].is_none() && self.workload.items[item].item.outside {
                let took = self.transfer(self.workload.items[item].bytes, work.job.nodes);
                self.store_in = self.store_in.max(submitted) + took;
                self.there[item] = Some(self.store_in);
            }
            begin = begin.max(self.there[item]?);
        }
        let need = match work.job.cores {
            0 => self.machine.islands[0].kind.cores,
            cores => cores,
        } as usize;
        self.free.iter_mut().for_each(|cores| cores.sort_unstable());
        self.free.sort_by_key(|cores| cores[need - 1]);
        let chosen = &mut self.free[..work.job.nodes as usize];
        let free = chosen.iter().map(|cores| cores[need - 1]).max();
        let end = begin.max(free.unwrap_or(0)) + work.compute;
        chosen.iter_mut().for_each(|cores| cores[..need].fill(end));
        let mut done = end;
        for item in work.job.writes.iter().map(|i| i.at()) {
            self.there[item] = Some(end);
            if self.workload.items[item].item.keep {
                let took = self.transfer(self.workload.items[item].bytes, work.job.nodes);
                self.store_out = self.store_out.max(end) + took;
                done = self.store_out;
            }
        }
        self.done[number] = done;
        Some(())
    }
}

fn orders(jobs: usize) -> Vec<Vec<usize>> {
    if jobs == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(jobs - 1);
    let insert = |order: &Vec<usize>, at: usize| {
        let mut order = order.clone();
        order.insert(at, jobs - 1);
        order
    };
    shorter
        .iter()
        .flat_map(|order| (0..jobs).map(|at| insert(order, at)))
        .collect()
}

/// The least makespan and flow times over all orders.
fn best(machine: &Machine, workload: &Workload) -> (Time, [Time; 2]) {
    let mut best = (Time::MAX, [Time::MAX; 2]);
    for order in orders(workload.jobs.len()) {
        let mut schedule = Schedule::new(machine, workload);
        if order.iter().any(|j| schedule.run(*j).is_none()) {
            continue;
        }
        let all = schedule.done.iter().copied().max().unwrap_or(0);
        best.0 = best.0.min(all);
        for (n, least) in best.1.iter_mut().enumerate() {
            let of_flow = workload.jobs.iter().zip(&schedule.done);
            let of_flow = of_flow.filter(|(j, _)| j.job.flow.is_some_and(|f| f.at() == n));
            let end = of_flow.map(|(_, end)| *end).max();
            let arrives = workload.flows[n].arrives;
            *least = (*least).min(end.unwrap_or(arrives) - arrives);
        }
    }
    best
}

/// Up to five jobs and four items, of which the first is outside and each other one is made by a job before its readers.
fn plans() -> impl Strategy<Value = (Vec<Plan>, Vec<(u64, bool, bool)>)> {
    let job = (1..3u32, 0..3u32, 0..9u64, 0..3u32, 0..16u32);
    let items = prop::collection::vec((1..20u64, any::<bool>()), 4);
    (prop::collection::vec(job, 1..6), items).prop_map(|(jobs, items)| {
        let makers: Vec<usize> = (0..4).map(|i| (i * 2) % jobs.len()).collect();
        let plan =
            |(n, (nodes, cores, compute, flow, reads)): (usize, &(u32, u32, u64, u32, u32))| {
                let read = |i: &u32| reads & (1 << i) != 0 && (*i == 0 || makers[*i as usize] < n);
                Plan {
                    nodes: *nodes,
                    cores: *cores,
                    compute: *compute,
                    flow: flow.checked_sub(1),
                    reads: (0..4).filter(read).collect(),
                    writes: (1..4).filter(|i| makers[*i as usize] == n).collect(),
                }
            };
        let plans = jobs.iter().enumerate().map(plan).collect();
        let items = (0..).zip(items);
        (
            plans,
            items.map(|(i, (b, keep))| (b, i == 0, keep)).collect(),
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_schedule_is_shorter(
        (plans, items) in plans(),
        (store, client, saturates, cores) in (1..5u64, 1..5u64, 1..3u32, 2..4u32),
        arrives in (0..20u64, 0..20u64),
    ) {
        let machine = machine(2, cores, store * GB, client * GB, saturates);
        let arrives = [arrives.0 * SECOND, arrives.1 * SECOND];
        let workload = workload(&plans, &items, arrives);
        let bounds = lower_bound(&machine, &workload);
        let (makespan, flows) = best(&machine, &workload);
        let first = workload.jobs.iter().filter_map(|j| match j.submit {
            Submit::At(time) => Some(time),
            Submit::After(_) => None,
        });
        let first = first.min().unwrap_or(0);
        prop_assert!(bounds.makespan <= makespan - first, "{bounds:?} {makespan} - {first}");
        for (bound, best) in bounds.flows.iter().zip(flows) {
            prop_assert!(*bound <= best, "{bounds:?}, best {best}");
        }
    }
}

fn job(nodes: u32, compute: u64, flow: Option<u32>, reads: &[u32], writes: &[u32]) -> Plan {
    Plan {
        nodes,
        cores: 0,
        compute,
        flow,
        reads: reads.to_vec(),
        writes: writes.to_vec(),
    }
}

/// Equation 6 of Weiland et al.: (10 + 50) + (0 + 180) + (10 + 30) seconds on four nodes of 1 GB/s.
#[test]
fn the_workflow_of_the_paper_cannot_be_faster_than_its_figure_9() {
    let machine = machine(20, 48, 0, GB, 1);
    let jobs = [
        job(4, 50, Some(0), &[0], &[1]),
        job(4, 180, Some(0), &[1], &[2]),
        job(4, 10, Some(0), &[2], &[3]),
    ];
    let items = [
        (40, true, false),
        (120, false, false),
        (40, false, false),
        (120, false, true),
    ];
    let workload = workload(&jobs, &items, [7 * SECOND, 0]);
    let bounds = lower_bound(&machine, &workload);
    assert_eq!(bounds.flows, [280 * SECOND, 0]);
    assert_eq!(bounds.makespan, 280 * SECOND);
}

#[test]
fn each_resource_gives_its_bound() {
    // Cores: five jobs of 10 s on two nodes, behind an input of 4 s and before an output of 2 s, in any order of the
    // jobs.
    let jobs: Vec<Plan> = (0..5)
        .map(|n| job(1, 10, Some(0), &[0], &[1 + n]))
        .collect();
    let mut items = vec![(4, true, false)];
    items.extend([(2, false, true); 5]);
    let one_rate = machine(2, 1, 0, GB, 1);
    let bounds = lower_bound(&one_rate, &workload(&jobs, &items, [0; 2]));
    assert_eq!(bounds.flows[0], (4 + 25 + 2) * SECOND);
    // The store, inwards: 5 items of 30 s, and the last of them is read by a job of 10 s.
    let jobs: Vec<Plan> = (0..5).map(|n| job(1, 10, Some(0), &[n], &[])).collect();
    let items = [(30, true, false); 5];
    let slow_store = machine(8, 1, GB, 0, 1);
    let bounds = lower_bound(&slow_store, &workload(&jobs, &items, [0; 2]));
    assert_eq!(bounds.flows[0], 160 * SECOND);
    // Outwards: the first result is there after 10 s.
    let jobs: Vec<Plan> = (0..5).map(|n| job(1, 10, Some(0), &[], &[n])).collect();
    let items = [(30, false, true); 5];
    let bounds = lower_bound(&slow_store, &workload(&jobs, &items, [0; 2]));
    assert_eq!(bounds.flows[0], 160 * SECOND);
    // A single transfer may use all of the store's bandwidth, with as many streams as that takes.
    let items = [(30, true, false)];
    let shared = machine(1, 1, 3 * GB, 0, 3);
    let bounds = lower_bound(
        &shared,
        &workload(&[job(1, 1, None, &[0], &[])], &items, [0; 2]),
    );
    assert_eq!(bounds.makespan, 11 * SECOND);
}

#[test]
fn what_never_runs_counts_nothing() {
    let jobs = [
        job(3, 100, Some(0), &[], &[0]),
        job(1, 100, Some(0), &[0], &[]),
        job(1, 5, Some(1), &[], &[]),
    ];
    let small = machine(2, 4, GB, GB, 1);
    let mut workload = workload(&jobs, &[(1, false, false)], [0; 2]);
    assert_eq!(
        lower_bound(&small, &workload).flows,
        [0, 5 * SECOND],
        "three nodes of two"
    );
    // A circle is never reached, and a job that another one submits begins behind it.
    workload.jobs[0].submit = Submit::After(JobId(1));
    workload.jobs[1].submit = Submit::After(JobId(2));
    let large = machine(3, 4, GB, GB, 1);
    assert_eq!(lower_bound(&large, &workload).makespan, 5 * SECOND);
    workload.jobs[0].submit = Submit::At(0);
    // The first (all three nodes) and the third have to be done before the second.
    let third = 305 * SECOND / 3;
    assert_eq!(
        lower_bound(&large, &workload).makespan,
        third + 100 * SECOND
    );
    assert_eq!(
        lower_bound(&large, &Workload::default()).makespan,
        0,
        "nothing to do"
    );
}
