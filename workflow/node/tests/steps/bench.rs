//! A small machine for one test: workflow, tiers, world.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tarn_mover::Trees;
use tarn_node::keys::Wrapping;
use tarn_node::{Config, Local, Namespaces};
use tarn_ports::{CapabilityError, Mover, NodeWorld, Progress, World};
use tarn_seal::ring::KeyRing;
use tarn_types::action::{Action, AttemptSpec, Do, NodeReplica};
use tarn_types::cluster::{Cluster, Host, Link, Node, Tier};
use tarn_types::event::{AttemptOutcome, Event, Output, RunError, RunErrorKind, Usage};
use tarn_types::hash::Hash;
use tarn_types::id::{DataId, InstanceId, NodeId, StepId, TierId, TierRef, TransferId};
use tarn_types::layout::StateDir;
use tarn_types::nodes::{Cleaned, OwnedNodes, Staying};
use tarn_types::part::{
    PartInfo, PartMove, PartRef, Place, StoreKey, Transfer, TransferKind, Verify,
};
use tarn_types::pattern::ScatterRule;
use tarn_types::reason::Reason;
use tarn_types::units::SECOND;
use tarn_types::workflow::{
    Dataset, DatasetUse, Distribution, Keep, OnFailure, Role, Step, VersionPartitioning, Workflow,
};

pub(crate) struct Bench {
    dir: PathBuf,
    /// Removed at the end; `None` when the folder is somebody else's.
    _guard: Option<tempfile::TempDir>,
    pub(crate) workflow: Workflow,
    pub(crate) nodes: u32,
    pub(crate) namespaces: Namespaces,
    /// Nanoseconds that a file to or from the external store costs, so that a test can interrupt a transfer.
    pub(crate) external_latency: u64,
    pub(crate) capacity: u64,
    pub(crate) signals: bool,
    pub(crate) mover: Arc<dyn Mover>,
    pub(crate) keys: Option<KeyRing>,
}

pub(crate) fn tier_ref(node: u32) -> TierRef {
    TierRef {
        node: NodeId(node),
        tier: TierId(0),
    }
}

pub(crate) fn data(name: &str) -> Dataset {
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

pub(crate) fn ranked(name: &str) -> Dataset {
    Dataset {
        scatter: ScatterRule::new("p{rank}").ok(),
        partition: VersionPartitioning::Ranks,
        ..data(name)
    }
}

/// A use of dataset number `at` that makes version `makes` of it.
pub(crate) fn used(at: u32, role: Role, distribution: Distribution) -> DatasetUse {
    DatasetUse {
        data: DataId(at),
        role,
        distribution,
        entry: None,
        reads: (role != Role::Out).then_some(0),
        makes: (role != Role::In).then_some(1),
    }
}

pub(crate) fn step(run: &str, uses: Vec<DatasetUse>) -> Step {
    Step {
        name: "work".into(),
        run: run.into(),
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
        retries: 0,
        restart: None,
        tier: None,
        after: Vec::new(),
        foreach: None,
        uses,
        code: Hash::default(),
    }
}

impl Bench {
    pub(crate) fn new(data: Vec<Dataset>, steps: Vec<Step>) -> Self {
        let guard = tempfile::tempdir().expect("a temporary folder");
        let mut bench = Self::at(guard.path(), data, steps);
        bench._guard = Some(guard);
        bench
    }

    pub(crate) fn at(dir: &Path, data: Vec<Dataset>, steps: Vec<Step>) -> Self {
        Self {
            workflow: Workflow {
                name: "w".into(),
                external: Some(dir.join("external")),
                erase: false,
                partitions: Vec::new(),
                folder: dir.into(),
                data,
                steps,
            },
            dir: dir.into(),
            _guard: None,
            nodes: 1,
            namespaces: Namespaces::Auto,
            external_latency: 0,
            capacity: 1 << 30,
            signals: false,
            mover: Arc::new(Trees::new()),
            keys: None,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(&path, content).expect("a file");
        path
    }

    pub(crate) fn state(&self) -> StateDir {
        StateDir(self.path("state"))
    }

    pub(crate) fn cluster(&self) -> Cluster {
        let link = Link {
            read: 1 << 30,
            write: 1 << 30,
            latency: 0,
            streams: 1,
            emulated: false,
        };
        let node = |n: u32| Node {
            name: format!("n{n}"),
            host: 0,
            cores: 1,
            memory: 1 << 30,
            gpus: 0,
            tiers: vec![Tier {
                name: "t".into(),
                root: self.path("tier"),
                capacity: self.capacity,
                read: 1 << 30,
                write: 1 << 30,
                lender: None,
            }],
        };
        Cluster {
            hosts: vec![Host {
                name: "h".into(),
                cores: 4,
                memory: 1 << 32,
                sockets: Vec::new(),
                draw: Default::default(),
            }],
            nodes: (0..self.nodes).map(node).collect(),
            external: Link {
                latency: self.external_latency,
                emulated: self.external_latency > 0,
                ..link.clone()
            },
            peer: link,
        }
    }

    pub(crate) fn world(&self) -> Machine {
        self.world_of("ws")
    }

    /// The world of another workflow on the same tiers.
    pub(crate) fn world_of(&self, workspace: &str) -> Machine {
        Machine::new(self.config(workspace))
    }

    pub(crate) fn config(&self, workspace: &str) -> Config {
        Config {
            run: "r1".into(),
            workspace: workspace.into(),
            workflow: self.workflow.clone(),
            cluster: self.cluster(),
            prior: Vec::new(),
            prior_data: Vec::new(),
            state: self.state(),
            mover: Arc::clone(&self.mover),
            keys: self
                .keys
                .clone()
                .map(|k| Wrapping::of_user(k, workspace).expect("its keys")),
            helper_exe: std::env::current_exe().expect("this program"),
            checkpoints: Arc::new(|_, _| Vec::new()),
            partitions: Arc::new(|_, _, _, _| Ok(())),
            changed_since: Arc::new(|_| None),
            epoch: 0,
            meter: None,
            namespaces: self.namespaces,
            signals: self.signals,
            own: OwnedNodes::All,
            peers: None,
            followers: None,
            addresses: BTreeMap::new(),
            caller_env: std::env::vars_os().collect(),
        }
    }
}

/// Whether this machine allows namespaces. A world that denies it must be right: util-linux is tried as well.
pub(crate) fn namespaces_allowed(world: &Machine) -> bool {
    let Err(why) = world.multi_node() else {
        return true;
    };
    let mut unshare = std::process::Command::new("unshare");
    unshare.args([
        "--user",
        "--map-current-user",
        "--mount",
        "--pid",
        "--fork",
        "true",
    ]);
    let allowed = unshare
        .stderr(std::process::Stdio::null())
        .status()
        .is_ok_and(|s| s.success());
    assert!(!allowed, "unshare(1) works, but: {why}");
    eprintln!("skipped: {why}");
    false
}

/// A world with the words of an engine.
pub(crate) struct Machine {
    pub(crate) local: Local,
    next_transfer: u64,
}

impl Machine {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            local: Local::new(config).expect("a world"),
            next_transfer: 0,
        }
    }

    pub(crate) fn perform(&mut self, what: Do) {
        let action = Action {
            what,
            why: Reason::Needed,
        };
        self.local.perform(&action).expect("the world works");
    }

    pub(crate) fn multi_node(&self) -> Result<(), CapabilityError> {
        self.local.multi_node()
    }

    pub(crate) fn progress(&self) -> Progress {
        self.local.progress()
    }

    pub(crate) fn inventory(
        &mut self,
        wanted: &[(PartRef, StoreKey, Place)],
    ) -> Vec<(PartRef, Place)> {
        self.local.inventory(wanted).expect("the world works")
    }

    pub(crate) fn clean(&mut self, staying: &Staying) -> Cleaned {
        self.local.clean(staying).expect("the world works")
    }

    pub(crate) fn next(&mut self) -> Event {
        let until = self.local.now() + 120 * SECOND;
        self.local.next(Some(until)).expect("an event").1
    }

    pub(crate) fn list(&mut self, data: u32) -> Result<Vec<PartInfo>, RunError> {
        self.perform(Do::List { data: DataId(data) });
        match self.next() {
            Event::SourceListed { parts, .. } => Ok(parts),
            Event::SourceFailed { failure, .. } => Err(failure),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn order(
        &mut self,
        data: u32,
        version: u32,
        infos: &[PartInfo],
        from: &Place,
        to: &Place,
    ) -> TransferId {
        self.next_transfer += 1;
        let id = TransferId(self.next_transfer);
        let part = |i: &PartInfo| PartMove {
            part: part_ref(data, version, i.seq),
            from: from.clone(),
        };
        self.perform(Do::Transfer(Transfer {
            id,
            data: DataId(data),
            version,
            parts: infos.iter().map(part).collect(),
            to: to.clone(),
            kind: TransferKind::Peer,
            verify: Verify::Copy,
            priority: 1,
        }));
        id
    }

    pub(crate) fn transfer(
        &mut self,
        data: u32,
        version: u32,
        infos: &[PartInfo],
        from: &Place,
        to: &Place,
    ) -> Result<u64, RunError> {
        self.order(data, version, infos, from, to);
        match self.next() {
            Event::TransferDone { bytes, hashes, .. } => {
                assert_eq!(hashes.len(), infos.len());
                Ok(bytes)
            }
            Event::TransferFailed { failure, .. } => Err(failure),
            other => panic!("{other:?}"),
        }
    }

    /// Lists a source and brings all of it to a node; the replicas of a view of it.
    pub(crate) fn stage(&mut self, data: u32, node: u32) -> Vec<NodeReplica> {
        let infos = self.list(data).expect("a source");
        let to = Place::Node(tier_ref(node));
        self.transfer(data, 0, &infos, &Place::Source, &to)
            .expect("a transfer");
        held(data, 0, &infos, node)
    }

    pub(crate) fn begin(
        &mut self,
        step: u32,
        attempt: u32,
        nodes: &[u32],
        views: Vec<Vec<Vec<NodeReplica>>>,
    ) {
        self.begin_in(step, attempt, nodes, views, 1 << 20);
    }

    /// With so many bytes reserved for what it writes.
    pub(crate) fn begin_in(
        &mut self,
        step: u32,
        attempt: u32,
        nodes: &[u32],
        views: Vec<Vec<Vec<NodeReplica>>>,
        reserve: u64,
    ) {
        self.perform(Do::Run(Box::new(AttemptSpec {
            instance: InstanceId {
                step: StepId(step),
                index: 0,
            },
            attempt,
            item: None,
            nodes: nodes.iter().map(|n| tier_ref(*n)).collect(),
            views,
            identity: Hash::default(),
            store: format!("r1.s{step}.a{attempt}"),
            reserve,
            partitions: Vec::new(),
        })));
    }

    pub(crate) fn ended(&mut self) -> (AttemptOutcome, Usage) {
        match self.next() {
            Event::Ended { ended, usage, .. } => (ended, usage),
            other => panic!("{other:?}"),
        }
    }

    /// Runs a step on node 0.
    pub(crate) fn run(&mut self, views: Vec<Vec<Vec<NodeReplica>>>) -> (AttemptOutcome, Usage) {
        self.begin(0, 1, &[0], views);
        self.ended()
    }
}

pub(crate) fn part_ref(data: u32, version: u32, seq: u32) -> PartRef {
    PartRef {
        data: DataId(data),
        version,
        origin: 0,
        seq,
    }
}

pub(crate) fn held(data: u32, version: u32, infos: &[PartInfo], node: u32) -> Vec<NodeReplica> {
    let one = |i: &PartInfo| NodeReplica {
        part: part_ref(data, version, i.seq),
        key: i.key.clone(),
        tier_ref: tier_ref(node),
    };
    infos.iter().map(one).collect()
}

pub(crate) fn committed(result: (AttemptOutcome, Usage)) -> Vec<Output> {
    match result.0 {
        AttemptOutcome::Committed { outputs, .. } => outputs,
        AttemptOutcome::Failed {
            failure, log_tail, ..
        } => panic!("{failure:?}\n{log_tail}"),
    }
}

pub(crate) fn failed(result: (AttemptOutcome, Usage)) -> (RunErrorKind, String, String) {
    match result.0 {
        AttemptOutcome::Failed {
            failure, log_tail, ..
        } => (failure.kind, failure.message, log_tail),
        AttemptOutcome::Committed { .. } => panic!("it was committed"),
    }
}

/// All files below a folder with their contents.
pub(crate) fn tree(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path
                    .strip_prefix(root)
                    .expect("below")
                    .display()
                    .to_string();
                found.insert(name, std::fs::read_to_string(&path).unwrap_or_default());
            }
        }
    }
    found
}

/// Gives a replica's folder the time that it has after a reboot of the machine: that of a mark of another boot.
pub(crate) fn of_another_boot(replica: &Path) {
    let folder = std::fs::File::open(replica).expect("the replica");
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_700_000_000, 5);
    folder.set_modified(time).expect("a time");
}
