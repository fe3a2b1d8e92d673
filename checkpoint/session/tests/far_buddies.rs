//! Programs of two ranks, each on a node of its own (a network namespace with a name of its own), whose copies go by libfabric. A rank is
//! a process, which gets its commands line by line.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tarn_checkpoint::{
    CheckpointSession, Options, PersistenceLevel, Properties, Replicate, StagingShare, VersionId,
};
use tarn_keyring::{fresh, write};
use tarn_seal::ring::KeyRing;

const RANK: &str = "TARN_TEST_RANK";
const LIBRARY: &str = "TARN_FABRIC_LIBRARY";
/// Longer than anything takes.
const LONG: Duration = Duration::from_secs(60);
/// Of a wait for another rank.
const TIMEOUT: &str = "TARN_TEST_TIMEOUT";
const BYTES: &str = "TARN_TEST_BYTES";
const COPIES: &str = "TARN_TEST_COPIES";
const TCP: &str = "libfabric:tcp;ofi_rxm";
const SHM: &str = "libfabric:shm";

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn filled(rank: u32, step: u64, cells: &mut [u64]) {
    for (n, cell) in cells.iter_mut().enumerate() {
        *cell = (n as u64 ^ step << 40 ^ u64::from(rank) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// The signals that this process handles or ignores, and its threads.
fn process() -> (String, Vec<String>) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let of = |line: &&str| line.starts_with("SigIgn") || line.starts_with("SigCgt");
    let signals: Vec<&str> = status.lines().filter(of).collect();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |t: std::io::Result<std::fs::DirEntry>| {
        let name = std::fs::read_to_string(t.unwrap().path().join("comm"));
        name.ok().map(|n| n.trim().to_owned())
    };
    (signals.join(" "), tasks.filter_map(name).collect())
}

/// Not a test: a rank.
#[test]
#[ignore = "run by the others, on nodes of its own"]
fn program() {
    let Some(rank) = number(RANK) else { return };
    let (rank, bytes) = (rank as u32, number(BYTES).unwrap() as usize);
    let before = process().0;
    let copies = number(COPIES).unwrap_or(0) as usize;
    let session = CheckpointSession::begin(Options {
        rank,
        ranks: 2,
        // Without a helper nothing that is staged goes to the tier.
        helper: copies > 0,
        staging: Some(match copies {
            0 => StagingShare::All,
            _ => StagingShare::None,
        }),
        replicate: match copies {
            0 => Replicate::None,
            some => Replicate::Copies(some),
        },
        timeout: Duration::from_secs(number(TIMEOUT).unwrap()),
        ..Options::default()
    });
    let mut session = match session {
        Ok(session) => session,
        Err(fault) => {
            println!("\nrefused {:?} {}", fault.code, fault.text);
            // Its node, and the link to the other, stay until the test has read that.
            let _ = std::io::stdin().lines().next();
            return;
        }
    };
    session
        .create("cells", bytes, 8, Properties::default())
        .unwrap();
    session.create("step", 8, 8, Properties::default()).unwrap();
    println!("\nbegun");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (what, step) = line.split_once(' ').unwrap_or((&line, "0"));
        let step: u64 = step.parse().unwrap();
        let reply = match what {
            "commit" => {
                session.values::<u64>("step").unwrap()[0] = step;
                filled(rank, step, session.values("cells").unwrap());
                println!("commits");
                match session.commit() {
                    Ok(done) => format!(
                        "committed {} {}",
                        done.id,
                        done.degraded.unwrap_or_default()
                    ),
                    Err(fault) => format!("failed {:?} {}", fault.code, fault.text),
                }
            }
            "replicated" => {
                let id = VersionId {
                    generation: 1,
                    number: step,
                };
                session
                    .wait(id, PersistenceLevel::Replicated, None)
                    .is_ok()
                    .to_string()
            }
            "restart" => match session.restart(None) {
                Ok(None) => "nothing".into(),
                Ok(Some(id)) => {
                    let step = session.values::<u64>("step").unwrap()[0];
                    let mut wanted = vec![0; bytes / 8];
                    filled(rank, step, &mut wanted);
                    let same = session.values::<u64>("cells").unwrap() == wanted;
                    format!("restored {id} step {step} {same}")
                }
                Err(fault) => format!("failed {:?} {}", fault.code, fault.text),
            },
            "carried" => {
                let c = session.stats().carried;
                format!(
                    "{} {} {} {}",
                    c.put, c.put_by_stream, c.fetched, c.fetched_by_stream
                )
            }
            "signals" => (process().0 == before).to_string(),
            "threads" => process().1.join(" "),
            "loaded" => {
                let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
                maps.contains("libfabric").to_string()
            }
            "end" => {
                println!("{:?}", session.end().map_err(|e| e.text));
                return;
            }
            other => panic!("{other}"),
        };
        println!("{reply}");
    }
}

/// The nodes' folders.
struct Site {
    folder: tempfile::TempDir,
    transport: String,
    bytes: u64,
    copies: u64,
    timeout: u64,
    encrypt: bool,
    library: Option<PathBuf>,
}

/// The shim, built once; `None` where libfabric's headers are not installed, or nobody may make a node.
fn library() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let node = Command::new("unshare").args(["--net", "--uts", "ip", "link"]).output();
        if !node.is_ok_and(|o| o.status.success()) {
            println!("SKIPPED: no network namespaces here (that takes root, unshare and ip), so no two nodes");
            return None;
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let built = Command::new(root.join("scripts/shim.sh")).arg(folder).status();
        match built.unwrap().code() {
            Some(3) => {
                println!("SKIPPED: no libfabric-dev");
                None
            }
            code => {
                assert_eq!(code, Some(0));
                Some(folder.join("libtarnfabric.so"))
            }
        }
    });
    built.clone()
}

struct Node {
    child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The provider `shm` names its files so; a killed process leaves them.
        let own = format!("{}:", self.child.id());
        let left = std::fs::read_dir("/dev/shm")
            .into_iter()
            .flatten()
            .flatten();
        for file in left.filter(|f| f.file_name().to_string_lossy().starts_with(&own)) {
            let _ = std::fs::remove_file(file.path());
        }
    }
}

impl Site {
    fn new(transport: &str) -> Option<Self> {
        Some(Self {
            library: Some(library()?),
            folder: tempfile::tempdir_in("/dev/shm").unwrap(),
            transport: transport.into(),
            bytes: 12 << 20,
            copies: 0,
            timeout: 30,
            encrypt: false,
        })
    }

    /// Whether its versions are encrypted.
    fn with_key(self, encrypt: bool) -> Self {
        if encrypt {
            let file = self.folder.path().join("config/tarn/key");
            write(&file, &KeyRing::new(fresh().unwrap()), false).unwrap();
        }
        Self { encrypt, ..self }
    }

    fn node(&self, rank: usize) -> PathBuf {
        self.folder.path().join(format!("node{rank}"))
    }

    /// Both ranks, on nodes with a link between them.
    fn start(&self) -> [Node; 2] {
        let mut nodes = [0, 1].map(|rank| self.node_process(rank));
        for node in &mut nodes {
            node.wait_for("alone");
        }
        let [a, b] = [0, 1].map(|n: usize| nodes[n].child.id().to_string());
        let link = [
            "link", "add", "tarn", "netns", &a, "type", "veth", "peer", "name", "tarn", "netns", &b,
        ];
        let linked = Command::new("ip").args(link).output().unwrap();
        assert!(linked.status.success(), "{linked:?}");
        nodes
    }

    fn begin(&self) -> [Node; 2] {
        let mut nodes = self.start();
        for node in &mut nodes {
            node.wait_for("begun");
        }
        nodes
    }

    fn node_process(&self, rank: usize) -> Node {
        let script = "hostname node$0 && ip link set lo up && echo alone && \
            n=0; until ip addr add 10.7.0.1$0/24 dev tarn 2>/dev/null; do n=$((n+1)); [ $n -lt 2000 ] || exit 1; sleep 0.02; done && ip link set tarn up && exec \"$@\"";
        let folder = self.node(rank);
        let mut command = Command::new("unshare");
        command
            .args(["--net", "--uts", "sh", "-c", script, &rank.to_string()])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "program", "--ignored", "--nocapture"])
            .env(RANK, rank.to_string())
            .env(TIMEOUT, self.timeout.to_string())
            .env(BYTES, self.bytes.to_string())
            .env(COPIES, self.copies.to_string())
            .env("TARN_PHX_TIER", folder.join("tier"))
            .env("TARN_PHX_MEMORY", folder.join("memory"))
            .env("TARN_PHX_MEET", "10.7.0.10:7111")
            .env("TARN_PHX_KEY", format!("hex:{}", "5a".repeat(32)))
            .env("TARN_PHX_RUN", "far")
            .env("TARN_PHX_TRANSPORT", &self.transport)
            .env("TARN_PHX_ENCRYPT", if self.encrypt { "1" } else { "" })
            .env("XDG_CONFIG_HOME", self.folder.path().join("config"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(library) = &self.library {
            command.env(LIBRARY, library);
        }
        let mut child = command.spawn().unwrap();
        Node {
            stdin: child.stdin.take().unwrap(),
            stdout: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
        }
    }
}

impl Node {
    /// The next line that begins so.
    fn wait_for(&mut self, begins: &str) -> String {
        loop {
            let line = self.stdout.next().expect("it ended").unwrap();
            if line.starts_with(begins) {
                return line;
            }
            assert!(
                !line.contains("refused") && !line.contains("panicked"),
                "{line}"
            );
        }
    }

    fn send(&mut self, what: &str) {
        writeln!(self.stdin, "{what}").unwrap();
    }

    /// Its answer.
    fn answers(&mut self) -> String {
        self.stdout.next().expect("it ended").unwrap()
    }

    fn request(&mut self, what: &str) -> String {
        self.send(what);
        self.answers()
    }

    /// put, put by stream, fetched, fetched by stream
    fn carried(&mut self) -> [u64; 4] {
        let reply = self.request("carried");
        let numbers: Vec<u64> = reply.split(' ').map(|n| n.parse().unwrap()).collect();
        numbers.try_into().unwrap()
    }

    fn signal(&self, which: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([which, &pid]).status();
        assert!(sent.unwrap().success());
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Does the same on both.
fn both(nodes: &mut [Node; 2], what: &str) -> [String; 2] {
    nodes.iter_mut().for_each(|n| n.send(what));
    [0, 1].map(|n| nodes[n].answers())
}

fn commit(nodes: &mut [Node; 2], step: u64) -> [String; 2] {
    assert_eq!(
        both(nodes, &format!("commit {step}")),
        ["commits", "commits"]
    );
    [0, 1].map(|n| nodes[n].answers())
}

fn kill(nodes: [Node; 2]) {
    for mut node in nodes {
        node.kill();
    }
}

/// The restored content is the committed one.
fn restored(nodes: &mut [Node; 2]) -> String {
    let [a, b] = both(nodes, "restart");
    assert_eq!(a, b);
    assert!(a.starts_with("restored") && a.ends_with("true"), "{a}");
    a
}

/// Two versions; nothing went by streams.
fn committed(site: &Site) -> [Node; 2] {
    let mut nodes = site.begin();
    for step in 1..=2 {
        let replies = commit(&mut nodes, step);
        assert_eq!(replies, [(); 2].map(|()| format!("committed 1.{step} ")));
    }
    nodes
}

#[test]
fn what_is_staged_is_written_to_the_other_node_and_read_back_from_there() {
    for (transport, encrypt) in [(TCP, false), (SHM, true)] {
        let Some(site) = Site::new(transport) else {
            return;
        };
        let site = site.with_key(encrypt);
        let mut nodes = committed(&site);
        for node in &mut nodes {
            let [put, by_stream, ..] = node.carried();
            assert!(put > 2 * site.bytes && by_stream == 0, "{put} {by_stream}");
            assert_eq!(node.request("signals"), "true");
            let until = Instant::now() + LONG;
            while node.request("threads").contains("tarn-rma") {
                assert!(Instant::now() < until, "it does not rest");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        kill(nodes);
        // The second version was only staged there.
        std::fs::remove_dir_all(site.node(1).join("memory")).unwrap();
        let mut nodes = site.begin();
        assert_eq!(restored(&mut nodes), "restored 1.2 step 2 true");
        let [.., fetched, _] = nodes[1].carried();
        assert!(fetched >= site.bytes, "{fetched}");
        let ended = both(&mut nodes, "end");
        assert_eq!(ended, ["Ok(())", "Ok(())"]);
    }
}

#[test]
fn a_lost_node_is_replaced_from_copies_that_were_read_so() {
    for (transport, encrypt) in [(TCP, true), (SHM, false)] {
        let Some(site) = Site::new(transport) else {
            return;
        };
        let site = Site {
            copies: 1,
            ..site.with_key(encrypt)
        };
        let mut nodes = committed(&site);
        assert_eq!(both(&mut nodes, "replicated 2"), ["true", "true"]);
        for node in &mut nodes {
            let [.., fetched, _] = node.carried();
            assert!(fetched >= 2 * site.bytes, "{fetched}");
        }
        kill(nodes);
        std::fs::remove_dir_all(site.node(1)).unwrap();
        let mut nodes = site.begin();
        assert_eq!(restored(&mut nodes), "restored 1.2 step 2 true");
        let [.., fetched, _] = nodes[1].carried();
        assert!(fetched >= site.bytes, "{fetched}");
    }
}

/// Both commit, and something happens to the second rank so many milliseconds later; returns the reply of the first one.
fn struck(nodes: &mut [Node; 2], step: u64, after: u64, strike: impl FnOnce(&mut Node)) -> String {
    for node in &mut *nodes {
        node.send(&format!("commit {step}"));
    }
    nodes[1].wait_for("commits");
    std::thread::sleep(Duration::from_millis(after));
    strike(&mut nodes[1]);
    nodes[0].wait_for("commits");
    nodes[0].answers()
}

#[test]
fn a_rank_that_is_killed_as_copies_are_written_costs_its_version_at_most() {
    let mut was_degraded = false;
    for (transport, after) in [(TCP, 0), (TCP, 40), (SHM, 0), (SHM, 40)] {
        let Some(site) = Site::new(transport) else {
            return;
        };
        let site = Site {
            bytes: 48 << 20,
            ..site
        };
        let mut nodes = site.begin();
        commit(&mut nodes, 1);
        let since = Instant::now();
        let reply = struck(&mut nodes, 2, after, Node::kill);
        assert!(since.elapsed() < LONG, "{:?}", since.elapsed());
        let [committed, failed] = ["committed 1.2", "failed Lost"].map(|w| reply.starts_with(w));
        assert!(committed || failed, "{reply}");
        was_degraded |= reply.contains("rank 1");
        kill(nodes);
        // The next generation: windows of its own, to memory of its own.
        let mut nodes = site.begin();
        let found = restored(&mut nodes);
        assert!(
            ["1.1 step 1 ", "1.2 step 2 "]
                .iter()
                .any(|v| found.contains(v)),
            "{found}"
        );
        let replies = commit(&mut nodes, 11);
        assert_eq!(replies, ["committed 2.1 ", "committed 2.1 "]);
        let [put, by_stream, ..] = nodes[0].carried();
        assert!(put > site.bytes && by_stream == 0);
        kill(nodes);
        std::fs::remove_dir_all(site.node(0).join("memory")).unwrap();
        assert_eq!(restored(&mut site.begin()), "restored 2.1 step 11 true");
    }
    assert!(
        was_degraded,
        "it was never killed while something was written"
    );
}

#[test]
fn a_rank_that_stands_still_as_copies_are_written_is_not_waited_for_and_harms_nothing_later() {
    let mut was_degraded = false;
    for (transport, after) in [(TCP, 0), (TCP, 20), (SHM, 0), (SHM, 20)] {
        let Some(site) = Site::new(transport) else {
            return;
        };
        let site = Site {
            bytes: 48 << 20,
            timeout: 6,
            ..site
        };
        let mut nodes = site.begin();
        commit(&mut nodes, 1);
        let since = Instant::now();
        let reply = struck(&mut nodes, 2, after, |node| node.signal("-STOP"));
        assert!(reply.starts_with("committed 1.2"), "{reply}");
        was_degraded |= reply.contains("rank 1 did not answer");
        assert!(since.elapsed() < Duration::from_secs(site.timeout + 20));
        nodes[1].signal("-CONT");
        let reply = nodes[1].answers();
        assert!(reply.starts_with("committed 1.2"), "{reply}");
        // Its late writes come now, to memory that nobody uses any more.
        let replies = commit(&mut nodes, 3);
        assert!(
            replies.iter().all(|s| s.starts_with("committed 1.3")),
            "{replies:?}"
        );
        kill(nodes);
        let mut nodes = site.begin();
        assert_eq!(restored(&mut nodes), "restored 1.3 step 3 true");
        kill(nodes);
    }
    assert!(
        was_degraded,
        "it was never stopped while something was written"
    );
}

#[test]
fn what_cannot_be_had_is_said_once_and_copies_go_by_tcp() {
    let Some(pigeon) = Site::new("libfabric:carrier-pigeon") else {
        return;
    };
    let Some(nowhere) = Site::new("libfabric") else {
        return;
    };
    let nowhere = Site {
        library: Some("/nowhere/libtarnfabric.so".into()),
        ..nowhere
    };
    for (site, expected) in [
        (pigeon, "carrier-pigeon"),
        (nowhere, "/nowhere/libtarnfabric.so"),
    ] {
        let mut nodes = site.begin();
        for reply in commit(&mut nodes, 1) {
            let is_degraded = reply.starts_with("committed 1.1 copies go to other nodes");
            assert!(
                is_degraded && reply.contains("by TCP") && reply.contains(expected),
                "{reply}"
            );
        }
        assert_eq!(commit(&mut nodes, 2), ["committed 1.2 ", "committed 1.2 "]);
        let [put, by_stream, ..] = nodes[1].carried();
        assert!(put == 0 && by_stream > 2 * site.bytes);
        kill(nodes);
        std::fs::remove_dir_all(site.node(1).join("memory")).unwrap();
        let mut nodes = site.begin();
        assert_eq!(restored(&mut nodes), "restored 1.2 step 2 true");
    }
}

#[test]
fn tcp_is_what_there_is_if_nothing_else_is_said_and_loads_nothing() {
    for transport in ["", "tcp"] {
        let Some(site) = Site::new(transport) else {
            return;
        };
        let mut nodes = site.begin();
        assert_eq!(commit(&mut nodes, 1), ["committed 1.1 ", "committed 1.1 "]);
        assert_eq!(both(&mut nodes, "loaded"), ["false", "false"]);
    }
    for (transport, expected) in [("sealed", "`encrypt`"), ("pigeon", "give tcp, libfabric")] {
        let Some(site) = Site::new(transport) else {
            return;
        };
        let mut nodes = site.start();
        for node in &mut nodes {
            let reply = loop {
                let line = node.answers();
                if line.starts_with("refused") {
                    break line;
                }
            };
            assert!(
                reply.contains("Invalid") && reply.contains(expected),
                "{reply}"
            );
        }
    }
}
