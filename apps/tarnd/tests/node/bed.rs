//! A folder with programs, a state folder and a tier a node; the nodes; a client.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tarn_proto::node::{
    Address, NodeCommand, NodeConfig, NodeNotification, NodeReply, NodeRequest, NodeStartInput,
    NodeStartReport, VERSION,
};
use tarn_proto::node::{decode, encode};
use tarn_sessions::{CallError, NodeSession, RunKeys, SessionTimeouts};
use tarn_types::action::{Action, AttemptSpec, Do, PartitionAssignment};
use tarn_types::cluster::{Cluster, Link};
use tarn_types::event::{AttemptOutcome, Event, Output};
use tarn_types::hash::Hash;
use tarn_types::id::{DataId, InstanceId, NodeId, StepId, TierId, TierRef};
use tarn_types::layout::{StateDir, TierDir};
use tarn_types::nodes::{PathAppearance, SharedPath, Staying};
use tarn_types::part::{PartInfo, PartRef};
use tarn_types::reason::Reason;
use tarn_types::workflow::{
    Dataset, DatasetUse, Distribution, Keep, OnFailure, Role, Step, VersionPartitioning, Workflow,
};

/// Longer than anything here takes.
pub(crate) const LONG: Duration = Duration::from_secs(120);
/// Milliseconds between heartbeats, and until silence is a loss.
const HASTE: (u64, u64) = (100, 1000);
pub(crate) const RUN: &str = "w-1";
pub(crate) const WORKSPACE: &str = "w-ws";
const NONCE: (&str, &str) = ("nonce", "a word");

/// The settings that a run's processes share.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Bed {
    root: PathBuf,
    keys: RunKeys,
    pub(crate) data: (u128, [u8; 32]),
}

/// The bed with its folder, which goes with the test.
pub(crate) struct Made {
    bed: Bed,
    _folder: tempfile::TempDir,
}

impl std::ops::Deref for Made {
    type Target = Bed;

    fn deref(&self) -> &Bed {
        &self.bed
    }
}

pub(crate) fn tier_ref(node: u32) -> TierRef {
    TierRef {
        node: NodeId(node),
        tier: TierId(0),
    }
}

pub(crate) fn part(data: u32) -> PartRef {
    PartRef {
        data: DataId(data),
        version: 1,
        origin: 0,
        seq: 0,
    }
}

fn dataset(name: &str) -> Dataset {
    Dataset {
        name: name.into(),
        source: None,
        dest: None,
        size: None,
        scatter: None,
        keep: Keep::Workflow,
        copies: 1,
        on_failure: OnFailure::Discard,
        encrypt: false,
        of: None,
        tier: None,
        partition: VersionPartitioning::Whole,
    }
}

/// Step number `at`, which makes dataset number `at`.
fn step(at: u32, run: String) -> Step {
    Step {
        name: format!("s{at}"),
        run,
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
        uses: vec![DatasetUse {
            data: DataId(at),
            role: Role::Out,
            distribution: Distribution::Single,
            entry: None,
            reads: None,
            makes: Some(1),
        }],
        code: Hash::default(),
    }
}

/// Makes a small tree and prints that.
pub(crate) const MAKES: u32 = 0;
/// Notes again and again that it is there, whatever requests it gets; `beats` gives the place.
pub(crate) const BEATS: u32 = 1;
/// Makes a large tree.
pub(crate) const LARGE: u32 = 2;
/// Runs on two nodes; waits on the second one while there is a file `wait`.
pub(crate) const PAIR: u32 = 3;

/// Makes data that is kept.
pub(crate) const KEEPS: u32 = 4;
/// Runs on two nodes; the second one prints [`PRINTED`] lines of numbers, which it has read from the first, and how many words
/// its command has: [`WORDS`], more than one piece of a message.
pub(crate) const STREAMS: u32 = 5;
/// See there.
pub(crate) const PRINTED: u32 = 150_000;
pub(crate) const WORDS: u32 = 40_000;

impl Bed {
    pub(crate) fn make() -> Made {
        // Beside the programs, so that they can be linked.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let bed = Self {
            root: folder.path().to_path_buf(),
            keys: RunKeys::new().unwrap(),
            data: (77, [7; 32]),
        };
        std::fs::create_dir_all(bed.path("bin")).unwrap();
        std::fs::create_dir_all(bed.state().0).unwrap();
        std::fs::write(bed.state().0.join(NONCE.0), NONCE.1).unwrap();
        let link = |from: &Path, name: &str| {
            std::fs::hard_link(from, bed.path("bin").join(name)).unwrap();
        };
        link(Path::new(env!("CARGO_BIN_EXE_tarnd")), "tarnd");
        link(&std::env::current_exe().unwrap(), "tarn");
        Made {
            bed,
            _folder: folder,
        }
    }

    pub(crate) fn keys(&self) -> &RunKeys {
        &self.keys
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn state(&self) -> StateDir {
        StateDir(self.path("state"))
    }

    pub(crate) fn tier(&self, node: &str) -> TierDir {
        TierDir::new(&self.path(&format!("tier-{node}")), WORKSPACE, node)
    }

    pub(crate) fn workflow(&self) -> Workflow {
        let wait = self.path("wait").display().to_string();
        let pair = format!(
            "tarn exec n2 -- sh -c 'echo from $TARN_NODE; while test -e {wait}; do sleep 0.05; done' > $TARN_paired/f"
        );
        let streams = format!(
            "seq 1 {PRINTED} | tarn exec n2 -- sh -c 'cat; echo $#' $(seq 0 {WORDS}) > $TARN_streamed/f"
        );
        let beat = self.path("beat").display().to_string();
        let kept = Dataset {
            keep: Keep::Forever,
            ..dataset("kept")
        };
        Workflow {
            name: "w".into(),
            external: None,
            erase: false,
            partitions: Vec::new(),
            folder: self.root.clone(),
            data: ["made", "beats", "large", "paired"].map(dataset).into_iter().chain([kept, dataset("streamed")]).collect(),
            steps: vec![
                step(MAKES, "echo said; mkdir $TARN_made/d; echo $FROM_CALLER > $TARN_made/d/f".into()),
                step(BEATS, format!("trap '' TERM; while :; do echo . >> {beat}; sleep 0.02; done")),
                step(
                    LARGE,
                    "cd $TARN_large; for i in 1 2 3 4 5 6 7 8; do head -c 3000000 /dev/urandom > f$i; done; mkdir e; echo x > e/y".into(),
                ),
                Step {
                    nodes: 2,
                    tasks: 2,
                    ..step(PAIR, pair)
                },
                step(KEEPS, "echo k > $TARN_kept/f".into()),
                Step {
                    nodes: 2,
                    tasks: 2,
                    ..step(STREAMS, streams)
                },
            ],
        }
    }

    /// How often [`BEATS`] was there.
    fn beats(&self) -> u64 {
        std::fs::metadata(self.path("beat")).map_or(0, |m| m.len())
    }

    pub(crate) fn wait_for_beats(&self) {
        until("the step begins", || self.beats() > 0);
    }

    /// Waits until it is there no more.
    pub(crate) fn wait_for_silence(&self) {
        let mut before = self.beats();
        until("the step ends", || {
            std::thread::sleep(Duration::from_millis(200));
            std::mem::replace(&mut before, self.beats()) == self.beats()
        });
    }

    pub(crate) fn start(&self, name: &str, options: &[&str]) -> Node {
        self.start_with(name, options, HASTE)
    }

    /// With timeout as [`NodeStartInput`] has it.
    pub(crate) fn start_with(&self, name: &str, options: &[&str], timeout: (u64, u64)) -> Node {
        let mut tarnd = Command::new(self.path("bin/tarnd"));
        tarnd.args(["--node", "--node-name", name, "--log-level", "error"]);
        tarnd.args(options);
        self.launch(tarnd, name, timeout, "tcp")
    }

    /// By way of another program, which becomes it.
    pub(crate) fn start_by(&self, program: &[&str], name: &str) -> Node {
        let mut tarnd = Command::new(program[0]);
        tarnd.args(&program[1..]).arg(self.path("bin/tarnd"));
        tarnd.args(["--node", "--node-name", name, "--log-level", "error"]);
        self.launch(tarnd, name, HASTE, "tcp")
    }

    /// A node that reads as `--transport` says. Its log is in a file of its name.
    pub(crate) fn start_reading_by(&self, name: &str, transport: &str) -> Node {
        let mut tarnd = Command::new(self.path("bin/tarnd"));
        tarnd.args(["--node", "--node-name", name, "--log-level", "info"]);
        tarnd.stderr(std::fs::File::create(self.path(name)).unwrap());
        self.launch(tarnd, name, HASTE, transport)
    }

    fn launch(&self, mut tarnd: Command, name: &str, timeout: (u64, u64), transport: &str) -> Node {
        let mut child = tarnd
            .env_remove("SLURM_CPUS_ON_NODE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let start = NodeStartInput {
            keys: serde_json::to_value(&self.keys).unwrap(),
            run: RUN.into(),
            timeouts: timeout,
            data: self.data,
            transport: transport.into(),
            borrow: None,
        };
        let mut stdin = child.stdin.take().unwrap();
        writeln!(stdin, "{}", serde_json::to_string(&start).unwrap()).unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let started: NodeStartReport = serde_json::from_str(&line).unwrap();
        assert_eq!(started.node, name);
        Node {
            child,
            stdin: Some(stdin),
            started,
        }
    }

    pub(crate) fn connect(&self, started: &NodeStartReport) -> Client {
        self.connect_with(started, HASTE)
    }

    pub(crate) fn connect_with(&self, started: &NodeStartReport, timeout: (u64, u64)) -> Client {
        let at = SocketAddr::from(([127, 0, 0, 1], started.control));
        let timeout = SessionTimeouts {
            heartbeat: Duration::from_millis(timeout.0),
            lost: Duration::from_millis(timeout.1),
            connect: LONG,
        };
        let (sender, notifications) = channel();
        let session = NodeSession::open(at, &self.keys, timeout, RUN, &started.node, move |n| {
            let _ = sender.send(n);
        });
        let session = session.unwrap();
        let about: NodeStartReport = serde_json::from_slice(session.about()).unwrap();
        assert_eq!(about, *started);
        Client {
            session,
            notifications,
        }
    }

    pub(crate) fn measure(&self, node: &str) -> NodeRequest {
        let tier = format!("t={}:64MiB", self.path(&format!("tier-{node}")).display());
        NodeRequest::Measure {
            version: VERSION,
            tarn: "test".into(),
            tiers: vec![tier],
            external: Link {
                read: 1 << 30,
                write: 1 << 30,
                latency: 0,
                streams: 2,
                emulated: false,
            },
            state: self.state().0,
            sights: vec![SharedPath {
                title: "the state folder".into(),
                path: self.state().0,
                look: PathAppearance::Word {
                    name: NONCE.0.into(),
                    word: NONCE.1.into(),
                },
            }],
        }
    }

    /// The configuration of node number `node` of those.
    pub(crate) fn node_config(&self, nodes: &[(&Node, &Client)], node: u32) -> NodeConfig {
        let all: Vec<_> = nodes.iter().map(|(n, c)| (&n.started, *c)).collect();
        self.opening_of(&all, node)
    }

    pub(crate) fn opening_of(
        &self,
        clients: &[(&NodeStartReport, &Client)],
        node: u32,
    ) -> NodeConfig {
        let mut clusters =
            clients
                .iter()
                .map(|(n, client)| match client.call(self.measure(&n.node)) {
                    NodeReply::Cluster(cluster) => cluster,
                    other => panic!("{other:?}"),
                });
        let mut cluster: Cluster = clusters.next().unwrap();
        for (other, host) in clusters.zip(1..) {
            cluster.hosts.extend(other.hosts);
            cluster.nodes.extend(other.nodes);
            cluster.nodes.last_mut().unwrap().host = host;
        }
        let address = |n: &NodeStartReport| -> Address { ("127.0.0.1".into(), n.data) };
        let peers = (0..)
            .map(NodeId)
            .zip(clients.iter().map(|(n, _)| address(n)));
        let mut environment: Vec<(Vec<u8>, Vec<u8>)> = std::env::vars_os()
            .map(|(k, v)| (k.into_vec(), v.into_vec()))
            .collect();
        environment.push((b"FROM_CALLER".to_vec(), b"hello".to_vec()));
        NodeConfig {
            run: RUN.into(),
            workspace: WORKSPACE.into(),
            workflow: self.workflow(),
            cluster,
            node: NodeId(node),
            prior: Vec::new(),
            state: self.state().0,
            epoch: 0,
            namespaces: true,
            environment,
            peers: peers.collect(),
            data: self.data,
            keys: None,
        }
    }

    /// A session with one node, opened and cleaned.
    pub(crate) fn opened(&self, node: &Node) -> Client {
        let client = self.connect(&node.started);
        client.open(self.node_config(&[(node, &client)], 0));
        client
    }
}

/// A tarnd; killed with the test.
pub(crate) struct Node {
    child: Child,
    stdin: Option<ChildStdin>,
    pub(crate) started: NodeStartReport,
}

impl Node {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    pub(crate) fn close_stdin(&mut self) {
        drop(self.stdin.take());
    }

    pub(crate) fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    pub(crate) fn hang_up(&self) {
        self.signal(rustix::process::Signal::HUP);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for its end.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        until("tarnd ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The client of a node, in the place of `tarn run`.
pub(crate) struct Client {
    pub(crate) session: NodeSession,
    pub(crate) notifications: Receiver<Option<Vec<u8>>>,
}

impl Client {
    pub(crate) fn try_call(&self, call: NodeRequest) -> Result<NodeReply, CallError> {
        let bytes = self.session.call(encode(call).unwrap(), Some(LONG))?;
        Ok(decode(&bytes).unwrap())
    }

    pub(crate) fn call(&self, call: NodeRequest) -> NodeReply {
        self.try_call(call).unwrap()
    }

    pub(crate) fn failed(&self, call: NodeRequest) -> String {
        match self.call(call) {
            NodeReply::Failed(why) => why,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn open(&self, node_config: NodeConfig) {
        let opened = self.call(NodeRequest::Open(Box::new(node_config)));
        assert!(matches!(opened, NodeReply::Opened { .. }), "{opened:?}");
    }

    pub(crate) fn clean(&self, staying: Staying) {
        let cleaned = self.call(NodeRequest::Clean(staying));
        assert!(matches!(cleaned, NodeReply::Cleaned(_)), "{cleaned:?}");
    }

    pub(crate) fn send_command(&self, command: NodeCommand) {
        self.session.send_command(encode(command).unwrap()).unwrap();
    }

    pub(crate) fn order(&self, what: Do) {
        let why = Reason::Needed;
        self.send_command(NodeCommand::Do(Action { what, why }));
    }

    /// Its next notification; none when the session is over.
    pub(crate) fn next_notification(&self) -> Option<NodeNotification> {
        let bytes = self.notifications.recv_timeout(LONG).unwrap();
        bytes.map(|bytes| decode(&bytes).unwrap())
    }

    pub(crate) fn event(&self) -> Event {
        loop {
            match self.next_notification() {
                Some(
                    NodeNotification::Event(Event::Capacity { .. })
                    | NodeNotification::Progress { .. }
                    | NodeNotification::Begun(_),
                ) => {}
                Some(NodeNotification::Event(event)) => return event,
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) fn begin(&self, step: u32, attempt: u32, node: u32) {
        self.begin_on(step, attempt, &[node]);
    }

    pub(crate) fn begin_on(&self, step: u32, attempt: u32, nodes: &[u32]) {
        self.begin_with(step, attempt, nodes, Vec::new());
    }

    pub(crate) fn begin_with(
        &self,
        step: u32,
        attempt: u32,
        nodes: &[u32],
        partitions: Vec<PartitionAssignment>,
    ) {
        self.order(Do::Run(Box::new(AttemptSpec {
            instance: InstanceId {
                step: StepId(step),
                index: 0,
            },
            attempt,
            item: None,
            nodes: nodes.iter().map(|n| tier_ref(*n)).collect(),
            views: vec![vec![]],
            identity: Hash::default(),
            store: format!("{RUN}.s{step}.a{attempt}"),
            reserve: 1 << 20,
            partitions,
        })));
    }

    /// Runs a step that makes one part.
    pub(crate) fn run(&self, step: u32, node: u32) -> PartInfo {
        self.begin(step, 1, node);
        let outputs: Vec<Output> = match self.event() {
            Event::Ended {
                ended: AttemptOutcome::Committed { outputs, .. },
                ..
            } => outputs,
            other => panic!("{other:?}"),
        };
        let [(info, tier_refs)] = &outputs[0].parts[..] else {
            panic!("{outputs:?}");
        };
        assert_eq!(tier_refs, &[tier_ref(node)]);
        info.clone()
    }
}

pub(crate) fn until(what: &str, mut there: impl FnMut() -> bool) {
    let began = Instant::now();
    while !there() {
        assert!(began.elapsed() < LONG, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
