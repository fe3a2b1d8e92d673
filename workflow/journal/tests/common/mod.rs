//! A small run, record by record: a source is fetched, a step fails once and then commits, its output goes to
//! another node, a second step makes the result, which is delivered.
#![allow(dead_code, reason = "every test file uses its own part of this")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tarn_journal::LogWriter;
use tarn_ports::{Journal, Record};
use tarn_types::action::{Action, AttemptSpec, Do, NodeReplica, Outcome, Subject};
use tarn_types::cluster::{Cluster, Host, Link, Node, Tier};
use tarn_types::event::{
    AttemptOutcome, Event, Options, Output, RunError, RunErrorKind, Start, Undeclared, Usage,
};
use tarn_types::hash::Hash;
use tarn_types::id::{DataId, InstanceId, NodeId, StepId, TierId, TierRef, TransferId};
use tarn_types::part::{
    PartClass, PartInfo, PartMove, PartRef, Place, StoreKey, Transfer, TransferKind, Verify,
};
use tarn_types::policy::{Order, Policy};
use tarn_types::reason::Reason;
use tarn_types::units::SECOND;
use tarn_types::workflow::{
    Dataset, DatasetUse, Distribution, Keep, OnFailure, Role, Step, VersionPartitioning, Workflow,
};

/// The start of a run, in seconds since 1970.
pub(crate) const WALL: u64 = 1_795_000_000;

pub(crate) fn tier_ref(node: u32) -> TierRef {
    TierRef {
        node: NodeId(node),
        tier: TierId(0),
    }
}

pub(crate) fn instance(step: u32) -> InstanceId {
    InstanceId {
        step: StepId(step),
        index: 0,
    }
}

pub(crate) fn cluster(names: &[&str], root: &str) -> Cluster {
    let link = Link {
        read: 1_000_000,
        write: 1_000_000,
        latency: 0,
        streams: 2,
        emulated: false,
    };
    let node = |name: &&str| Node {
        name: (*name).into(),
        host: 0,
        cores: 1,
        memory: 1 << 30,
        gpus: 0,
        tiers: vec![Tier {
            name: "tmpfs".into(),
            root: root.into(),
            capacity: 1 << 30,
            read: 0,
            write: 0,
            lender: None,
        }],
    };
    Cluster {
        hosts: vec![Host {
            name: "h".into(),
            cores: 4,
            memory: 1 << 34,
            sockets: Vec::new(),
            draw: Default::default(),
        }],
        nodes: names.iter().map(node).collect(),
        external: link.clone(),
        peer: link,
    }
}

fn dataset(name: &str) -> Dataset {
    Dataset {
        name: name.into(),
        source: None,
        dest: None,
        size: None,
        scatter: None,
        keep: Keep::UntilConsumed,
        copies: 1,
        on_failure: OnFailure::Discard,
        encrypt: false,
        of: None,
        tier: None,
        partition: VersionPartitioning::Whole,
    }
}

fn step(name: &str, uses: Vec<DatasetUse>) -> Step {
    Step {
        name: name.into(),
        run: format!("{name}.sh \"ä\\n\""),
        prelude: None,
        shell: None,
        shared_tmp: false,
        env: BTreeMap::new(),
        nodes: 1,
        tasks: 1,
        cores: 1,
        memory: 0,
        gpus: 0,
        time: Some(60 * SECOND),
        retries: 1,
        restart: None,
        tier: None,
        after: vec![],
        foreach: None,
        uses,
        code: Hash(1),
    }
}

fn uses(reads: u32, version: u32, makes: u32) -> Vec<DatasetUse> {
    let used = |data, role, reads, makes| DatasetUse {
        data: DataId(data),
        role,
        distribution: Distribution::Single,
        entry: None,
        reads,
        makes,
    };
    vec![
        used(reads, Role::In, Some(version), None),
        used(makes, Role::Out, None, Some(1)),
    ]
}

pub(crate) fn workflow() -> Workflow {
    let mut data = [dataset("raw"), dataset("mid"), dataset("out")];
    data[0].source = Some("/lustre/raw".into());
    data[1].keep = Keep::For(3600 * SECOND);
    data[2].dest = Some("/lustre/out".into());
    Workflow {
        name: "w".into(),
        external: Some("/lustre/scratch".into()),
        erase: false,
        partitions: Vec::new(),
        folder: "/home/x".into(),
        data: data.into(),
        steps: vec![step("make", uses(0, 0, 1)), step("finish", uses(1, 1, 2))],
    }
}

pub(crate) fn start(run: &str, wall: u64) -> Start {
    Start {
        run: run.into(),
        workspace: "w-abc".into(),
        wall,
        workflow: workflow(),
        cluster: cluster(&["n0", "n1"], "/tier"),
        options: Options {
            policy: Policy::new(Order::Data, None),
            verify: Verify::Copy,
            cache: 0,
            fail_fast: false,
        },
        prior: vec![],
        prior_dest: vec![],
        prior_data: vec![],
        allocation: None,
        sealed: false,
        pinned: Vec::new(),
        set_aside: None,
    }
}

pub(crate) fn info(key: &str, bytes: u64, hash: Option<u128>) -> PartInfo {
    PartInfo {
        seq: 0,
        class: PartClass::Whole,
        bytes,
        stored: bytes + 4096,
        files: 1,
        hash: hash.map(Hash),
        key: StoreKey(key.into()),
    }
}

pub(crate) fn part(data: u32, version: u32) -> PartRef {
    PartRef {
        data: DataId(data),
        version,
        origin: 0,
        seq: 0,
    }
}

pub(crate) fn act(what: Do, why: Reason) -> Action {
    Action { what, why }
}

pub(crate) fn transfer(
    id: u64,
    part: PartRef,
    from: Place,
    to: Place,
    kind: TransferKind,
    why: Reason,
) -> Action {
    let order = Transfer {
        id: TransferId(id),
        data: part.data,
        version: part.version,
        parts: vec![PartMove { part, from }],
        to,
        kind,
        verify: Verify::Copy,
        priority: 1,
    };
    act(Do::Transfer(order), why)
}

fn done(id: u64, bytes: u64, hash: u128) -> Event {
    Event::TransferDone {
        id: TransferId(id),
        bytes,
        hashes: vec![Hash(hash)],
        stored: vec![bytes + 4096],
        took: SECOND / 2,
    }
}

fn run(step: u32, attempt: u32, view: PartRef, key: &str, node: u32, name: &str) -> Action {
    let held = NodeReplica {
        part: view,
        key: StoreKey(key.into()),
        tier_ref: tier_ref(node),
    };
    let run = AttemptSpec {
        instance: instance(step),
        attempt,
        item: None,
        nodes: vec![tier_ref(node)],
        views: vec![vec![vec![held]], vec![]],
        identity: Hash(100 + u128::from(step)),
        store: format!("{name}.s{step}"),
        reserve: 1 << 20,
        partitions: Vec::new(),
    };
    act(Do::Run(Box::new(run)), Reason::Ready)
}

fn ended(step: u32, attempt: u32, ended: AttemptOutcome) -> Event {
    Event::Ended {
        instance: instance(step),
        attempt,
        ended,
        usage: Usage {
            wall: SECOND,
            user: SECOND / 2,
            ..Usage::default()
        },
    }
}

fn committed(data: u32, info: PartInfo, node: u32) -> AttemptOutcome {
    AttemptOutcome::Committed {
        outputs: vec![Output {
            data: DataId(data),
            version: 1,
            parts: vec![(info, vec![tier_ref(node)])],
        }],
        undeclared: Undeclared::default(),
    }
}

pub(crate) fn assign(step: u32, node: u32) -> Action {
    let what = Do::Assign {
        instance: instance(step),
        nodes: vec![tier_ref(node)],
        reserve: 1 << 20,
        end: 9 * SECOND,
    };
    act(what, Reason::FirstFree { node: NodeId(node) })
}

/// Numbers events and actions as the records of a log, a second apart.
pub(crate) fn number(story: Vec<(Event, Vec<Action>)>) -> Vec<Record> {
    let record = |(n, (event, actions)): (usize, (Event, Vec<Action>))| Record {
        seq: n as u64,
        now: n as u64 * SECOND,
        engine: 1,
        event,
        actions,
    };
    story.into_iter().enumerate().map(record).collect()
}

/// The whole run.
pub(crate) fn story(name: &str, wall: u64) -> Vec<Record> {
    let needs = |step| Reason::ReadExternal {
        instance: instance(step),
    };
    let peer = Reason::FetchPeer {
        instance: instance(1),
        from: NodeId(0),
    };
    let failed = AttemptOutcome::Failed {
        failure: RunError {
            kind: RunErrorKind::Exit,
            message: "exit status 3".into(),
        },
        log_tail: "line 1\nline 2\n".into(),
        newest: None,
    };
    let (n0, n1) = (Place::Node(tier_ref(0)), Place::Node(tier_ref(1)));
    let (mid, out) = (format!("{name}.s0.0"), format!("{name}.s1.0"));
    let evict = Do::Evict {
        part: part(0, 0),
        key: StoreKey("src.raw".into()),
        at: n0.clone(),
    };
    let listed = Event::SourceListed {
        data: DataId(0),
        parts: vec![info("src.raw", 100, None)],
    };
    let evicted = Event::Evicted {
        part: part(0, 0),
        at: n0.clone(),
    };
    let retained = act(
        Do::Note {
            about: Subject::Instance(instance(1)),
        },
        Reason::Retained { bytes: 5 },
    );
    number(vec![
        (
            Event::Started(Box::new(start(name, wall))),
            vec![act(Do::List { data: DataId(0) }, Reason::Needed)],
        ),
        (
            listed,
            vec![
                assign(0, 0),
                transfer(
                    0,
                    part(0, 0),
                    Place::Source,
                    n0.clone(),
                    TransferKind::ExternalIn,
                    needs(0),
                ),
            ],
        ),
        (
            done(0, 100, 7),
            vec![run(0, 1, part(0, 0), "src.raw", 0, name)],
        ),
        (
            ended(0, 1, failed),
            vec![run(0, 2, part(0, 0), "src.raw", 0, name)],
        ),
        (
            ended(0, 2, committed(1, info(&mid, 50, Some(8)), 0)),
            vec![
                act(evict, Reason::NotNeeded),
                assign(1, 1),
                transfer(1, part(1, 1), n0, n1.clone(), TransferKind::Peer, peer),
            ],
        ),
        (evicted, vec![]),
        (
            done(1, 50, 8),
            vec![retained, run(1, 1, part(1, 1), &mid, 1, name)],
        ),
        (
            ended(1, 1, committed(2, info(&out, 30, Some(9)), 1)),
            vec![transfer(
                2,
                part(2, 1),
                n1,
                Place::External("/lustre/out".into()),
                TransferKind::ExternalOut,
                Reason::Deliver,
            )],
        ),
        (
            done(2, 30, 9),
            vec![act(
                Do::Finish {
                    outcome: Outcome::Done,
                },
                Reason::AllDone,
            )],
        ),
    ])
}

/// The first record of each append of [`write`], by position.
pub(crate) const APPENDS: [usize; 6] = [0, 1, 2, 4, 7, 8];

/// Writes records in the appends of [`APPENDS`].
pub(crate) fn write(path: &Path, records: &[Record]) {
    let mut log = LogWriter::create(path).unwrap();
    let ends = APPENDS.iter().skip(1).copied().chain([records.len()]);
    for (from, to) in APPENDS.into_iter().zip(ends) {
        let to = to.min(records.len());
        log.append(&records[from.min(to)..to]).unwrap();
    }
}

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}
