//! Random machines, workloads and faults, each wholly decided by a seed.

use std::sync::Arc;
use tarn_simulator::site::SiteFaults;
use tarn_types::random;
use tarn_types::site::{
    Flow, FlowId, Input, Island, Item, ItemId, Job, JobId, Machine, Mode, ModeChange, NodeKind,
    NodePowerModel, Rates, Spread, Store, Submit, TierKind, WorkItem, WorkJob, Workload,
};
use tarn_types::units::{Nanos, SECOND, Time};

const GB: u64 = 1_000_000_000;
/// Arrivals are spread over so long.
const ARRIVALS: Time = 1500 * SECOND;

pub(crate) struct Random(random::Random);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(random::Random::new(seed))
    }

    fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// From `low` to `high`, both included.
    fn within(&mut self, low: u64, high: u64) -> u64 {
        self.0.within(low..high + 1)
    }

    fn small(&mut self, low: u32, high: u32) -> u32 {
        self.within(low.into(), high.into()) as u32
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.within(1, 100) <= chance
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.within(0, of.len() as u64 - 1) as usize]
    }

    fn rates(&mut self, low: u64, high: u64) -> Rates {
        let mut rate = || match self.percent(15) {
            true => 0,
            false => self.within(low, high),
        };
        Rates {
            read: rate(),
            write: rate(),
        }
    }

    fn tiers(&mut self) -> Vec<TierKind> {
        let mut tier = |name: &str, capacity, app_direct| TierKind {
            name: name.into(),
            capacity,
            rates: self.rates(GB, 10 * GB),
            app_direct,
        };
        let large = tier("nvme", 2000 * GB, false);
        let tiny = tier("tiny", 12 * GB, false);
        let pmem = tier("pmem", 300 * GB, true);
        match self.within(0, 5) {
            0 => Vec::new(),
            1 | 2 => vec![tiny],
            3 => vec![large],
            4 => vec![tiny, large],
            _ => vec![pmem],
        }
    }

    fn kind(&mut self) -> NodeKind {
        let change = ModeChange {
            time: self.within(30, 300) * SECOND,
            memory: 512 * GB,
        };
        NodeKind {
            sockets: 2,
            cores: self.small(2, 16),
            memory: 64 * GB,
            gpus: self.small(0, 2),
            tiers: self.tiers(),
            link: self.rates(GB, 12 * GB),
            mode: self.pick(&[Mode::OneLevel, Mode::OneLevel, Mode::TwoLevel]),
            mode_change: self.percent(60).then_some(change),
            power: NodePowerModel {
                idle: 100.0,
                busy: 300.0,
                asleep: 10.0,
                boot: 150.0,
                wake: 60 * SECOND,
            },
            temperature: self.within(18, 30) as f64,
        }
    }

    pub(crate) fn machine(&mut self) -> Machine {
        let islands = (0..self.within(1, 3)).map(|n| Island {
            name: format!("island{n}-"),
            nodes: self.small(2, 6),
            kind: self.kind(),
        });
        let islands = islands.collect();
        Machine {
            name: "random".into(),
            islands,
            store: Store {
                rates: self.rates(GB / 2, 4 * GB),
                client: self.rates(GB / 4, 2 * GB),
                saturates: self.small(1, 4),
            },
        }
    }

    pub(crate) fn faults(&mut self) -> SiteFaults {
        if self.percent(40) {
            return SiteFaults::default();
        }
        let mut every = |low, high| match self.percent(50) {
            true => 0,
            false => self.within(low, high) * SECOND,
        };
        let (loss_every, slow_every) = (every(200, 2000), every(50, 500));
        SiteFaults {
            seed: self.bits(),
            until: self.within(500, 4000) * SECOND,
            loss_every,
            loss_for: self.within(10, 600) * SECOND,
            move_failure: self.within(0, 10) as f64 / 100.0,
            job_failure: self.within(0, 10) as f64 / 100.0,
            mode_failure: self.within(0, 50) as f64 / 100.0,
            slow_every,
            slow_for: self.within(10, 200) * SECOND,
            slow_to: 0.1,
        }
    }

    pub(crate) fn workload(&mut self, machine: &Machine) -> Workload {
        let mut work = Workload::default();
        for _ in 0..self.within(2, 12) {
            self.batch_job(machine, &mut work);
        }
        for _ in 0..self.within(1, 3) {
            let flow = FlowId(work.flows.len() as u32);
            let arrives = self.within(0, ARRIVALS);
            work.flows.push(Flow {
                name: format!("flow{}", flow.0),
                arrives,
            });
            match self.within(0, 5) {
                0 => self.script(machine, &mut work, flow, arrives),
                1 => self.chain(machine, &mut work, flow, arrives),
                _ => self.graph(machine, &mut work, flow, arrives),
            }
        }
        work
    }

    /// Ordinary jobs without data, which a host starts by itself.
    pub(crate) fn plain_jobs(&mut self, machine: &Machine, work: &mut Workload) {
        for _ in 0..self.within(5, 25) {
            let job = self.job(machine, None);
            let at = self.within(0, ARRIVALS);
            self.enter(work, job, Submit::At(at));
        }
    }

    fn item(&mut self, work: &mut Workload, outside: bool, keep: bool) -> ItemId {
        let most = self.pick(&[1, GB, 8 * GB, 20 * GB]);
        let bytes = self.within(0, most);
        let truly = match !outside && self.percent(25) {
            true => bytes.saturating_mul(self.within(50, 200)) / 100,
            false => bytes,
        };
        work.items.push(WorkItem {
            item: Item {
                bytes,
                outside,
                keep,
            },
            name: "".into(),
            bytes: truly,
        });
        ItemId(work.items.len() as u32 - 1)
    }

    fn job(&mut self, machine: &Machine, flow: Option<FlowId>) -> Job {
        let island = &machine.islands[self.within(0, machine.islands.len() as u64 - 1) as usize];
        let kind = &island.kind;
        let limit = self.within(30, 1200) * SECOND;
        let whole = self.percent(60);
        let needs_mode = self.percent(15);
        let modes: &[Mode] = match kind.mode_change {
            Some(_) => &[Mode::OneLevel, Mode::TwoLevel],
            None => std::slice::from_ref(&kind.mode),
        };
        let mode = needs_mode.then(|| self.pick(modes));
        // Now and then more than any island has.
        let extra = self.small(0, 1) * u32::from(self.percent(4));
        Job {
            flow,
            nodes: self.small(1, island.nodes) + extra * 20,
            cores: if whole { 0 } else { self.small(1, kind.cores) },
            memory: self.within(0, 64 * GB),
            gpus: if whole { 0 } else { self.small(0, kind.gpus) },
            mode,
            limit,
            expect: limit / 2,
            after: Vec::new(),
            continues: None,
            submitted: None,
            place: None,
            on: None,
            not_before: 0,
            reads: Vec::new(),
            writes: Vec::new(),
        }
    }

    fn compute(&mut self, limit: Nanos) -> Nanos {
        // Now and then longer than its limit.
        limit / 100 * self.within(5, 110)
    }

    fn enter(&mut self, work: &mut Workload, job: Job, submit: Submit) -> JobId {
        let compute = self.compute(job.limit);
        work.jobs.push(WorkJob {
            job: Arc::new(job),
            name: "".into(),
            submit,
            compute,
        });
        JobId(work.jobs.len() as u32 - 1)
    }

    fn spread(&mut self) -> Spread {
        self.pick(&[Spread::Share, Spread::Whole])
    }

    fn batch_job(&mut self, machine: &Machine, work: &mut Workload) {
        let mut job = self.job(machine, None);
        if self.percent(50) {
            let item = self.item(work, true, false);
            let spread = self.spread();
            job.reads.push(Input { item, spread });
        }
        if self.percent(50) {
            job.writes.push(self.item(work, false, true));
        }
        let at = self.within(0, ARRIVALS);
        self.enter(work, job, Submit::At(at));
    }

    /// Reads some of the items there, and writes something.
    fn data(&mut self, work: &mut Workload, job: &mut Job, there: &mut Vec<ItemId>) {
        for _ in 0..self.within(0, 3) {
            let item = match there.is_empty() || self.percent(20) {
                true => self.item(work, true, false),
                false => self.pick(there),
            };
            if job.reads.iter().all(|r| r.item != item) {
                let spread = self.spread();
                job.reads.push(Input { item, spread });
            }
            there.push(item);
        }
        for _ in 0..self.within(0, 2) {
            let keep = self.percent(30);
            job.writes.push(self.item(work, false, keep));
        }
        there.extend(&job.writes);
    }

    /// Jobs with data and other dependencies.
    fn graph(&mut self, machine: &Machine, work: &mut Workload, flow: FlowId, arrives: Time) {
        let mut there = Vec::new();
        let first = work.jobs.len() as u32;
        for _ in 0..self.within(2, 9) {
            let mut job = self.job(machine, Some(flow));
            self.data(work, &mut job, &mut there);
            let next = work.jobs.len() as u32;
            if next > first && self.percent(20) {
                job.after.push(JobId(self.small(first, next - 1)));
            }
            self.enter(work, job, Submit::At(arrives));
        }
    }

    /// Each job submits the next.
    fn chain(&mut self, machine: &Machine, work: &mut Workload, flow: FlowId, arrives: Time) {
        let mut there = Vec::new();
        let mut submit = Submit::At(arrives);
        for _ in 0..self.within(2, 5) {
            let mut job = self.job(machine, Some(flow));
            self.data(work, &mut job, &mut there);
            // Nobody knows which items later jobs will read: all have to be outside.
            for item in &job.writes {
                work.items[item.at()].item.keep = true;
            }
            submit = Submit::After(self.enter(work, job, submit));
        }
    }

    /// One batch script with the most nodes that any of its steps needs.
    fn script(&mut self, machine: &Machine, work: &mut Workload, flow: FlowId, arrives: Time) {
        let mut there = Vec::new();
        let mut first = self.job(machine, Some(flow));
        (first.cores, first.gpus) = (0, 0);
        let (nodes, mode, memory) = (first.nodes, first.mode, first.memory);
        self.data(work, &mut first, &mut there);
        let steps = self.within(1, 4);
        first.limit *= steps + 1;
        let mut before = self.enter(work, first, Submit::At(arrives));
        for _ in 0..steps {
            let mut job = self.job(machine, Some(flow));
            (job.cores, job.gpus, job.mode, job.memory) = (0, 0, mode, memory);
            job.nodes = self.small(1, nodes);
            job.continues = Some(before);
            self.data(work, &mut job, &mut there);
            before = self.enter(work, job, Submit::At(arrives));
        }
    }
}
