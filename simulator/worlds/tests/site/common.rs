//! A small machine, jobs and items in a few words, and actions.

use std::sync::Arc;
use tarn_ports::SiteWorld;
use tarn_types::id::NodeId;
use tarn_types::site::{
    AllocationReason, Flow, FlowId, Input, Island, Item, ItemId, Job, JobId, Machine, Mode,
    ModeChange, Move, MoveId, NodeKind, NodePowerModel, Rates, SiteAction, SiteEvent, Spread,
    Store, Submit, TierKind, Urgency, Where, WorkItem, WorkJob, Workload,
};
use tarn_types::units::{SECOND, Time};

pub(crate) const GB: u64 = 1_000_000_000;

pub(crate) fn rate(gb: u64) -> Rates {
    Rates {
        read: gb * GB,
        write: gb * GB,
    }
}

/// `nodes` nodes of 4 cores with 100 GB of pmem (read and written at 10 GB/s); links of 2 GB/s; a store of 4 GB/s, 1 GB/s
/// for each client. Any of it may be changed.
pub(crate) fn machine(nodes: u32) -> Machine {
    let kind = NodeKind {
        sockets: 1,
        cores: 4,
        memory: 64 * GB,
        gpus: 1,
        tiers: vec![TierKind {
            name: "pmem".into(),
            capacity: 100 * GB,
            rates: rate(10),
            app_direct: true,
        }],
        link: rate(2),
        mode: Mode::OneLevel,
        mode_change: Some(ModeChange {
            time: 100 * SECOND,
            memory: 256 * GB,
        }),
        power: NodePowerModel {
            idle: 100.0,
            busy: 300.0,
            asleep: 10.0,
            boot: 200.0,
            wake: 50 * SECOND,
        },
        temperature: 20.0,
    };
    Machine {
        name: "small".into(),
        islands: vec![Island {
            name: "n".into(),
            nodes,
            kind,
        }],
        store: Store {
            rates: rate(4),
            client: rate(1),
            saturates: 1,
        },
    }
}

pub(crate) fn job(nodes: u32) -> Job {
    Job {
        flow: None,
        nodes,
        cores: 0,
        memory: 0,
        gpus: 0,
        mode: None,
        limit: 1000 * SECOND,
        expect: 100 * SECOND,
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

/// Reads and writes these items.
pub(crate) fn with_data(mut job: Job, reads: &[u32], writes: &[u32]) -> Job {
    let input = |item: &u32| Input {
        item: ItemId(*item),
        spread: Spread::Share,
    };
    job.reads = reads.iter().map(input).collect();
    job.writes = writes.iter().map(|i| ItemId(*i)).collect();
    job
}

/// A workload under construction; every job computes for 100 seconds.
#[derive(Default)]
pub(crate) struct Work(pub(crate) Workload);

impl Work {
    pub(crate) fn item(mut self, bytes: u64, outside: bool, keep: bool) -> Self {
        let item = Item {
            bytes,
            outside,
            keep,
        };
        self.0.items.push(WorkItem {
            item,
            name: "".into(),
            bytes,
        });
        self
    }

    pub(crate) fn flow(mut self, name: &str) -> Self {
        self.0.flows.push(Flow {
            name: name.into(),
            arrives: 0,
        });
        self
    }

    pub(crate) fn job(self, job: Job) -> Self {
        self.job_at(job, Submit::At(0))
    }

    pub(crate) fn job_at(mut self, job: Job, submit: Submit) -> Self {
        self.0.jobs.push(WorkJob {
            job: Arc::new(job),
            name: "".into(),
            submit,
            compute: 100 * SECOND,
        });
        self
    }

    pub(crate) fn done(self) -> Arc<Workload> {
        Arc::new(self.0)
    }
}

pub(crate) fn in_flow(mut job: Job) -> Job {
    job.flow = Some(FlowId(0));
    job
}

pub(crate) fn nodes(numbers: &[u32]) -> Arc<[NodeId]> {
    numbers.iter().map(|n| NodeId(*n)).collect()
}

pub(crate) fn on(numbers: &[u32]) -> Where {
    Where::Nodes(nodes(numbers))
}

pub(crate) fn allocate(job: u32, numbers: &[u32]) -> SiteAction {
    SiteAction::Allocate {
        job: JobId(job),
        nodes: nodes(numbers),
        why: AllocationReason::First,
    }
}

/// A job continues in the allocation of its script.
pub(crate) fn goes_on(job: u32, numbers: &[u32]) -> SiteAction {
    SiteAction::Allocate {
        job: JobId(job),
        nodes: nodes(numbers),
        why: AllocationReason::Continues,
    }
}

pub(crate) fn run(job: u32, local_read: u64, local_write: u64) -> SiteAction {
    SiteAction::Run {
        job: JobId(job),
        attempt: 1,
        local_read,
        local_write,
        to_tiers: local_write > 0,
        retained: local_read,
    }
}

pub(crate) fn release(job: u32) -> SiteAction {
    SiteAction::Release { job: JobId(job) }
}

pub(crate) fn drop_item(item: u32, numbers: &[u32]) -> SiteAction {
    SiteAction::Drop {
        item: ItemId(item),
        nodes: nodes(numbers),
        spread: Spread::Share,
    }
}

/// A move to or from tiers.
pub(crate) fn moves(id: u64, item: u32, bytes: u64, from: Where, to: Where) -> SiteAction {
    SiteAction::Move(Move {
        id: MoveId(id),
        item: ItemId(item),
        bytes,
        from,
        to,
        spread: Spread::Share,
        streams: 1,
        direct: false,
        job: None,
        urgency: Urgency::Now,
    })
}

/// A move to or from the memory of a job.
pub(crate) fn direct(
    id: u64,
    job: u32,
    item: u32,
    bytes: u64,
    from: Where,
    to: Where,
) -> SiteAction {
    let SiteAction::Move(mut order) = moves(id, item, bytes, from, to) else {
        unreachable!("moves() makes moves");
    };
    (order.direct, order.job) = (true, Some(JobId(job)));
    SiteAction::Move(order)
}

/// The next actions: `None` advances time to the next event.
pub(crate) type Script = Vec<Option<SiteAction>>;

/// Plays a script. Its events, or the first error.
pub(crate) fn play(
    world: &mut impl SiteWorld,
    script: Script,
) -> Result<Vec<(Time, SiteEvent)>, String> {
    play_on(world, 0, script)
}

/// The same from a later time on.
pub(crate) fn play_on(
    world: &mut impl SiteWorld,
    mut now: Time,
    script: Script,
) -> Result<Vec<(Time, SiteEvent)>, String> {
    let mut events = Vec::new();
    for step in script {
        match step {
            Some(action) => world.perform(now, &action).map_err(|e| e.to_string())?,
            None => {
                if let Some((time, event)) = world.next(None).map_err(|e| e.to_string())? {
                    now = time;
                    events.push((time, event));
                }
            }
        }
    }
    Ok(events)
}

/// Seconds of events.
pub(crate) fn seconds(events: &[(Time, SiteEvent)]) -> Vec<u64> {
    events.iter().map(|(t, _)| t / SECOND).collect()
}
