//! How fast the simulated site is by itself: batch jobs on a large machine under the simplest planner there is.
//!
//! ```text
//! cargo run --release -p tarn-simulator --example site_scale -- [JOBS] [NODES] [STORE_GB_PER_SECOND]
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use tarn_ports::SiteWorld;
use tarn_simulator::site::SimulatedSite;
use tarn_types::id::NodeId;
use tarn_types::site::{
    AllocationReason, Input, Island, Item, ItemId, Job, JobId, Machine, Mode, Move, MoveId,
    NodeKind, NodePowerModel, Rates, SiteAction, SiteEvent, Spread, Store, Submit, TierKind,
    Urgency, Where, WorkItem, WorkJob, Workload,
};
use tarn_types::units::{Nanos, SECOND, Time};

const GB: u64 = 1_000_000_000;
/// Jobs that read from outside and write there: every so-and-so-manieth.
const WITH_DATA: u32 = 3;

fn machine(nodes: u32, store: u64) -> Machine {
    let rate = |rate| Rates {
        read: rate,
        write: rate,
    };
    let kind = NodeKind {
        sockets: 2,
        cores: 64,
        memory: 256 * GB,
        gpus: 0,
        tiers: vec![TierKind {
            name: "nvme".into(),
            capacity: 1000 * GB,
            rates: rate(5 * GB),
            app_direct: false,
        }],
        link: rate(12 * GB),
        mode: Mode::OneLevel,
        mode_change: None,
        power: NodePowerModel::default(),
        temperature: 20.0,
    };
    Machine {
        name: "large".into(),
        islands: vec![Island {
            name: "n".into(),
            nodes,
            kind,
        }],
        store: Store {
            rates: rate(store * GB),
            // So slow that some hundred moves are under way at once.
            client: rate(GB / 50),
            saturates: 400,
        },
    }
}

/// Jobs of 1 to 64 nodes and one minute to half a day; so many arrive that about nine tenths of the nodes are in use.
fn workload(jobs: u32, nodes: u32) -> Workload {
    let mut work = Workload::default();
    let mut bits = 1u64;
    let mut below = |n: u64| {
        bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (bits >> 33) % n
    };
    let (mut at, mut load) = (0u64, 0u64);
    for number in 0..jobs {
        let (wide, long) = (1u32 << below(7), (60 * SECOND) << below(10));
        let mut job = Job {
            flow: None,
            nodes: wide.min(nodes),
            cores: 0,
            memory: 0,
            gpus: 0,
            mode: None,
            limit: 2 * long,
            expect: long,
            after: Vec::new(),
            continues: None,
            submitted: None,
            place: None,
            on: None,
            not_before: 0,
            reads: Vec::new(),
            writes: Vec::new(),
        };
        if number % WITH_DATA == 0 {
            let bytes = u64::from(wide) * (1 + below(100)) * GB;
            let first = work.items.len() as u32;
            for outside in [true, false] {
                let item = Item {
                    bytes,
                    outside,
                    keep: !outside,
                };
                let name = "".into();
                work.items.push(WorkItem { item, name, bytes });
            }
            let (item, spread) = (ItemId(first), Spread::Share);
            job.reads.push(Input { item, spread });
            job.writes.push(ItemId(first + 1));
        }
        load += u64::from(wide) * (long / SECOND);
        at = at.max(load * SECOND / u64::from(nodes) * 10 / 9);
        work.jobs.push(WorkJob {
            job: Arc::new(job),
            name: "".into(),
            submit: Submit::At(at),
            compute: long,
        });
    }
    work
}

/// First come, first served; the job itself reads and writes outside.
struct FirstFit {
    free: Vec<NodeId>,
    queue: VecDeque<JobId>,
    jobs: HashMap<JobId, (Arc<Job>, Arc<[NodeId]>)>,
    moves: HashMap<MoveId, (JobId, bool)>,
    next_move: u64,
    bytes: HashMap<ItemId, u64>,
}

impl FirstFit {
    fn step(&mut self, event: &SiteEvent, actions: &mut Vec<SiteAction>) {
        match event {
            SiteEvent::Submitted { jobs, items } => {
                self.bytes
                    .extend(items.iter().map(|(id, item)| (*id, item.bytes)));
                for (id, job) in jobs {
                    self.jobs.insert(*id, (job.clone(), Arc::from([])));
                    self.queue.push_back(*id);
                }
            }
            SiteEvent::Moved { id } => match self.moves.remove(id) {
                Some((job, true)) => actions.push(run(job)),
                Some((job, false)) => self.release(job, actions),
                None => {}
            },
            SiteEvent::Ended { job, .. } => match self.jobs[job].0.writes.first().copied() {
                Some(item) => self.transfer(*job, item, false, actions),
                None => self.release(*job, actions),
            },
            _ => {}
        }
        self.begin(actions);
    }

    fn begin(&mut self, actions: &mut Vec<SiteAction>) {
        while let Some(id) = self.queue.front().copied() {
            let Some((job, nodes)) = self.jobs.get_mut(&id) else {
                return;
            };
            let Some(left) = self.free.len().checked_sub(job.nodes as usize) else {
                return;
            };
            *nodes = self.free.drain(left..).collect();
            let (nodes, input) = (nodes.clone(), job.reads.first().copied());
            let why = AllocationReason::First;
            actions.push(SiteAction::Allocate {
                job: id,
                nodes,
                why,
            });
            match input {
                Some(input) => self.transfer(id, input.item, true, actions),
                None => actions.push(run(id)),
            }
            self.queue.pop_front();
        }
    }

    fn transfer(&mut self, job: JobId, item: ItemId, inwards: bool, actions: &mut Vec<SiteAction>) {
        self.next_move += 1;
        let id = MoveId(self.next_move);
        self.moves.insert(id, (job, inwards));
        let here = Where::Nodes(self.jobs[&job].1.clone());
        let (from, to) = match inwards {
            true => (Where::Outside, here),
            false => (here, Where::Outside),
        };
        actions.push(SiteAction::Move(Move {
            id,
            item,
            bytes: self.bytes[&item],
            from,
            to,
            spread: Spread::Share,
            streams: self.jobs[&job].0.nodes,
            direct: true,
            job: Some(job),
            urgency: Urgency::Now,
        }));
    }

    fn release(&mut self, job: JobId, actions: &mut Vec<SiteAction>) {
        if let Some((_, nodes)) = self.jobs.remove(&job) {
            self.free.extend(nodes.iter());
        }
        actions.push(SiteAction::Release { job });
    }
}

fn run(job: JobId) -> SiteAction {
    SiteAction::Run {
        job,
        attempt: 1,
        local_read: 0,
        local_write: 0,
        to_tiers: false,
        retained: 0,
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let jobs: u32 = args.next().map_or(Ok(1_000_000), |a| a.parse())?;
    let nodes: u32 = args.next().map_or(Ok(10_000), |a| a.parse())?;
    let store: u64 = args.next().map_or(Ok(500), |a| a.parse())?;
    let (machine, work) = (machine(nodes, store), Arc::new(workload(jobs, nodes)));
    let mut planner = FirstFit {
        free: (0..nodes).map(NodeId).collect(),
        queue: VecDeque::new(),
        jobs: HashMap::new(),
        moves: HashMap::new(),
        next_move: 0,
        bytes: HashMap::new(),
    };
    let began = Instant::now();
    let mut site = SimulatedSite::new(&machine, work)?;
    let (mut in_world, mut last): (_, Time) = (std::time::Duration::ZERO, 0);
    let mut actions = Vec::new();
    let mut most_moves = 0;
    loop {
        let before = Instant::now();
        for action in actions.drain(..) {
            site.perform(last, &action)?;
        }
        let next = site.next(None)?;
        in_world += before.elapsed();
        let Some((now, event)) = next else {
            break;
        };
        last = now;
        planner.step(&event, &mut actions);
        most_moves = most_moves.max(planner.moves.len());
    }
    let result = site.into_result();
    let hours = result.end as Nanos / (3600 * SECOND);
    println!(
        "{jobs} jobs on {nodes} nodes, {hours} h, {} events, at most {most_moves} moves at once: {:.2} s in the world, {:.2} s in all",
        result.events,
        in_world.as_secs_f64(),
        began.elapsed().as_secs_f64()
    );
    Ok(())
}
