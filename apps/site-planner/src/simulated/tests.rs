//! Small clusters, and Table 4 of Weiland et al. 2018 beside what a real Slurm made of it.

mod delays;
mod seeds;
mod table4;

use super::{ClusterResult, ClusterSettings, ServiceMode, SimulatedCluster, SlurmTimes};
use std::sync::Arc;
use tarn_types::policy::{Order, Policy};
use tarn_types::site::{
    FlowId, Input, Island, Item, ItemId, Job, Machine, Mode, NodeKind, NodePowerModel, Rates,
    Spread, Store, Submit, TierKind, WorkItem, WorkJob, Workload,
};
use tarn_types::units::{Nanos, SECOND, Time};

const MIB: u64 = 1 << 20;

fn settings(mode: ServiceMode) -> ClusterSettings {
    ClusterSettings {
        mode,
        times: SlurmTimes::default(),
        policy: Policy::new(Order::Data, None),
        is_checked: true,
    }
}

/// Equal nodes, with a store each, and links of 1 MiB/s to the external store.
fn machine(nodes: u32, capacity: u64) -> Machine {
    let client = Rates {
        read: MIB,
        write: MIB,
    };
    let tier = TierKind {
        name: "tier".to_owned(),
        capacity,
        rates: Rates::default(),
        app_direct: false,
    };
    let kind = NodeKind {
        sockets: 1,
        cores: 8,
        memory: 1 << 34,
        gpus: 0,
        tiers: vec![tier],
        link: Rates {
            read: 100 * MIB,
            write: 100 * MIB,
        },
        mode: Mode::OneLevel,
        mode_change: None,
        power: NodePowerModel::default(),
        temperature: 0.0,
    };
    Machine {
        name: "small".to_owned(),
        islands: vec![Island {
            name: "n".to_owned(),
            nodes,
            kind,
        }],
        store: Store {
            rates: Rates::default(),
            client,
            saturates: 1,
        },
    }
}

fn item(bytes: u64, outside: bool, keep: bool) -> WorkItem {
    WorkItem {
        item: Item {
            bytes,
            outside,
            keep,
        },
        name: "".into(),
        bytes,
    }
}

fn job(flow: Option<FlowId>, nodes: u32, compute: Nanos, limit: Nanos, at: Time) -> WorkJob {
    WorkJob {
        job: Arc::new(Job {
            flow,
            nodes,
            cores: 0,
            memory: 0,
            gpus: 0,
            mode: None,
            limit,
            expect: limit / 2,
            after: Vec::new(),
            continues: None,
            reads: Vec::new(),
            writes: Vec::new(),
            submitted: None,
            place: None,
            on: None,
            not_before: 0,
        }),
        name: "".into(),
        submit: Submit::At(at),
        compute,
    }
}

fn with_data(mut job: WorkJob, reads: &[(u32, Spread)], writes: &[u32]) -> WorkJob {
    let spec = Arc::make_mut(&mut job.job);
    let inputs = reads.iter();
    spec.reads = inputs
        .map(|(item, spread)| Input {
            item: ItemId(*item),
            spread: *spread,
        })
        .collect();
    spec.writes = writes.iter().copied().map(ItemId).collect();
    job
}

fn seconds(time: Time) -> f64 {
    time as f64 / SECOND as f64
}
