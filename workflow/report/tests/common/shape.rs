//! The workflow and the cluster of the mosaic.

use super::{MIB, MS, info};
use std::collections::BTreeMap;
use tarn_types::cluster::{Cluster, Host, Link, Node, Tier};
use tarn_types::event::{Options, Output, PriorInstance, Start};
use tarn_types::hash::Hash;
use tarn_types::id::DataId;
use tarn_types::part::{PartClass, Verify};
use tarn_types::pattern::EntryPattern;
use tarn_types::policy::{Order, Policy};
use tarn_types::workflow::{
    Dataset, DatasetUse, Distribution, Foreach, Keep, OnFailure, Role, Step, VersionPartitioning,
    Workflow,
};

pub(crate) fn start(workflow: Workflow, cluster: Cluster) -> Start {
    let made = info("prior.8", 0, PartClass::Whole, 2 * MIB);
    Start {
        run: "mosaic-3".into(),
        workspace: "mosaic-5f2a".into(),
        wall: 1_795_255_380,
        workflow,
        cluster,
        options: Options {
            policy: Policy::new(Order::Data, None),
            verify: Verify::Copy,
            cache: 0,
            fail_fast: false,
        },
        prior: vec![PriorInstance {
            identity: Hash::of(b"thumbs"),
            outputs: vec![Output {
                data: DataId(8),
                version: 1,
                parts: vec![(made, vec![])],
            }],
            held: vec![],
        }],
        prior_dest: vec![],
        prior_data: vec![],
        allocation: None,
        sealed: false,
        pinned: Vec::new(),
        set_aside: None,
    }
}

pub(crate) fn cluster(nodes: u32, cores: u32) -> Cluster {
    let tier = |name: &str, capacity: u64| Tier {
        name: name.into(),
        root: format!("/tmp/{name}").into(),
        capacity,
        read: 4_000_000_000,
        write: 3_000_000_000,
        lender: None,
    };
    let node = |n: u32| Node {
        name: format!("n{n}"),
        host: 0,
        cores,
        memory: 4 << 30,
        gpus: 0,
        tiers: vec![tier("tmpfs", 1024 * MIB), tier("disk", 16 << 30)],
    };
    let link = |rate, latency, emulated| Link {
        read: rate,
        write: rate,
        latency,
        streams: 4,
        emulated,
    };
    Cluster {
        hosts: vec![Host {
            name: "host".into(),
            cores: nodes * cores,
            memory: 16 << 30,
            sockets: Vec::new(),
            draw: Default::default(),
        }],
        nodes: (0..nodes).map(node).collect(),
        external: link(200_000_000, 2 * MS, true),
        peer: link(3_000_000_000, 0, false),
    }
}

pub(crate) fn dataset(
    name: &str,
    source: Option<&str>,
    dest: Option<&str>,
    partition: VersionPartitioning,
) -> Dataset {
    Dataset {
        name: name.into(),
        source: source.map(Into::into),
        dest: dest.map(Into::into),
        size: None,
        scatter: None,
        keep: Keep::UntilConsumed,
        copies: 1,
        on_failure: OnFailure::Discard,
        encrypt: false,
        of: None,
        tier: None,
        partition,
    }
}

pub(crate) fn step(
    name: &str,
    foreach: Option<Foreach>,
    reads: &[(u32, u32)],
    makes: &[u32],
) -> Step {
    let used = |data: u32, role, reads, makes| DatasetUse {
        data: DataId(data),
        role,
        distribution: Distribution::Single,
        entry: None,
        reads,
        makes,
    };
    let ins = reads
        .iter()
        .map(|(data, version)| used(*data, Role::In, Some(*version), None));
    let outs = makes
        .iter()
        .map(|data| used(*data, Role::Out, None, Some(1)));
    Step {
        name: name.into(),
        run: format!("{name}.sh"),
        prelude: None,
        shell: None,
        shared_tmp: false,
        env: BTreeMap::new(),
        nodes: 1,
        tasks: 1,
        cores: 1,
        memory: 0,
        gpus: 0,
        time: None,
        retries: 2,
        restart: None,
        tier: None,
        after: vec![],
        foreach,
        uses: ins.chain(outs).collect(),
        code: Hash::of(name.as_bytes()),
    }
}

pub(crate) fn workflow(first: &str) -> Workflow {
    let entries = |data: u32, version: u32| {
        Some(Foreach::Entries {
            data: DataId(data),
            version,
            pattern: EntryPattern::new("*.fits").expect("a pattern"),
            max: 100_000,
            allow_empty: false,
        })
    };
    Workflow {
        name: "mosaic".into(),
        external: None,
        erase: false,
        partitions: Vec::new(),
        folder: "/home/ada/mosaic".into(),
        data: vec![
            dataset(
                "raw",
                Some("/lustre/sky/raw"),
                None,
                VersionPartitioning::Entries,
            ),
            dataset(
                "header",
                Some("/lustre/sky/header"),
                None,
                VersionPartitioning::Whole,
            ),
            dataset("projected", None, None, VersionPartitioning::Entries),
            dataset("differences", None, None, VersionPartitioning::Entries),
            dataset("background", None, None, VersionPartitioning::Whole),
            dataset("corrected", None, None, VersionPartitioning::Entries),
            dataset(
                "mosaic",
                None,
                Some("/results/mosaic"),
                VersionPartitioning::Whole,
            ),
            dataset(
                "picture",
                None,
                Some("/results/picture"),
                VersionPartitioning::Whole,
            ),
            dataset("thumbs", None, None, VersionPartitioning::Whole),
        ],
        steps: vec![
            step(first, entries(0, 0), &[(0, 0), (1, 0)], &[2]),
            step("differ", entries(2, 1), &[(2, 1)], &[3]),
            step("model", None, &[(3, 1)], &[4]),
            step("correct", entries(2, 1), &[(2, 1), (4, 1)], &[5]),
            step("add", None, &[(5, 1), (1, 0)], &[6]),
            step("view", None, &[(6, 1)], &[7]),
            step("thumbs", None, &[(0, 0)], &[8]),
        ],
    }
}
