//! Two nodes: data that one has made is moved to the other.

use crate::Test;
use crate::bed::*;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tarn_proto::node::{NodeCommand, NodeNotification, NodeReply, NodeRequest, decode};
use tarn_stream::hello::{CLEAR, Hello, NO_VERSION, SEALED, Welcome};
use tarn_types::action::Do;
use tarn_types::event::{AttemptOutcome, Event, RunError, RunErrorKind};
use tarn_types::id::{DataId, NodeId, TransferId};
use tarn_types::nodes::Staying;
use tarn_types::part::{PartMove, Place, Transfer, TransferKind, Verify};

pub(crate) const TESTS: &[Test] = &[
    ("peers::a_replica_is_pulled", a_replica_is_pulled),
    ("peers::a_step_runs_on_two_nodes", a_step_runs_on_two_nodes),
    ("peers::a_link_is_measured_once", a_link_is_measured_once),
    (
        "peers::what_is_to_be_sealed_is_sent_to_nobody_in_clear",
        what_is_to_be_sealed_is_sent_to_nobody_in_clear,
    ),
    (
        "peers::memory_of_one_host_is_shared",
        memory_of_one_host_is_shared,
    ),
];

/// Whether tarnd finds the library for libfabric.
pub(crate) fn shim(bed: &Bed) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut build = Command::new(root.join("scripts/shim.sh"));
    let code = build.arg(bed.path("bin")).status().unwrap().code();
    if code == Some(3) {
        eprintln!("SKIPPED: no libfabric-dev");
        return false;
    }
    assert_eq!(code, Some(0));
    true
}

/// Two tarnds of one machine read each other's memory, where their options say so.
fn memory_of_one_host_is_shared() {
    let bed = Bed::make();
    if !shim(&bed) {
        return;
    }
    let one = bed.start_reading_by("n1", "libfabric:shm");
    let two = bed.start_reading_by("n2", "libfabric:shm");
    let (first, second) = moved(&bed, &one, &two);
    // It served from windows, but for the small file.
    let mut pids = Vec::new();
    for (client, mut node) in [(first, one), (second, two)] {
        client.call(NodeRequest::Close);
        drop(client);
        node.ended();
        pids.push(format!("{}:", node.pid()));
    }
    let log = std::fs::read_to_string(bed.path("n1")).unwrap();
    let windows = log.split("windows=").nth(1);
    let windows = windows.and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
    assert!(windows.is_some_and(|n| n >= 8), "{log}");
    // The provider's files are called so.
    let left = std::fs::read_dir("/dev/shm").unwrap().flatten();
    let left = left.map(|e| e.file_name().to_string_lossy().into_owned());
    let left: Vec<_> = left
        .filter(|name| pids.iter().any(|pid| name.starts_with(pid)))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The second node reads the data that the first has made.
fn moved(bed: &Bed, one: &Node, two: &Node) -> (Client, Client) {
    let (first, second) = (bed.connect(&one.started), bed.connect(&two.started));
    let both = [(one, &first), (two, &second)];
    first.open(bed.node_config(&both, 0));
    second.open(bed.node_config(&both, 1));
    first.clean(Staying::default());
    second.clean(Staying::default());
    let large = first.run(LARGE, 0);
    second.send_command(NodeCommand::Know(vec![(part(LARGE), large.clone())]));
    second.order(transfer(1));
    match second.event() {
        Event::TransferDone { hashes, .. } => assert_eq!(hashes, [large.hash.unwrap()]),
        other => panic!("{other:?}"),
    }
    let [from, to] = ["n1", "n2"].map(|n| tree(&bed.tier(n).part(&large.key)));
    assert!(from == to && from.len() == 9);
    (first, second)
}

/// If a run wants it, nothing is sent in clear, to any client.
fn what_is_to_be_sealed_is_sent_to_nobody_in_clear() {
    let bed = Bed::make();
    let [one, two] = ["n1", "n2"].map(|name| bed.start_reading_by(name, "sealed"));
    let _clients = moved(&bed, &one, &two);
    let chosen = |(lowest, highest): (u16, u16)| {
        let mut stream = TcpStream::connect(("127.0.0.1", one.started.data)).unwrap();
        let hello = Hello {
            lowest,
            highest,
            run: bed.data.0.to_le_bytes(),
            nonce: [7; 32],
        };
        stream.write_all(&hello.encode()).unwrap();
        let mut welcome = [0; Welcome::BYTES];
        stream.read_exact(&mut welcome).unwrap();
        Welcome::decode(&welcome).unwrap().version
    };
    assert_eq!(chosen((CLEAR, CLEAR)), NO_VERSION);
    assert_eq!(chosen((CLEAR, SEALED)), SEALED);
}

fn a_link_is_measured_once() {
    let bed = Bed::make();
    let (one, mut two) = (bed.start("n1", &[]), bed.start("n2", &[]));
    let first = bed.connect(&one.started);
    let link = |from: &str, port: u16| NodeRequest::Link {
        from: from.into(),
        at: ("127.0.0.1".into(), port),
        state: bed.state().0,
    };
    let rate = |call: NodeRequest| match first.call(call) {
        NodeReply::Rate(rate) => rate,
        other => panic!("{other:?}"),
    };
    let found = rate(link("n2", two.started.data));
    assert!(found > 10_000_000, "{found}");
    // It is remembered: nothing is measured again, and the tiers are beside it.
    first.call(bed.measure("n1"));
    two.kill();
    two.ended();
    assert_eq!(rate(link("n2", two.started.data)), found);
    let memory = std::fs::read_to_string(bed.state().0.join("hosts/n1/machine.json")).unwrap();
    assert!(
        memory.contains("\"from n2\"") && memory.contains("tier-n1\""),
        "{memory}"
    );
    // A node that is not there, and one that does not answer.
    let why = first.failed(link("n3", two.started.data));
    assert!(
        why.contains("node n3") && why.contains("cannot be reached"),
        "{why}"
    );
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let began = Instant::now();
    let why = first.failed(link("n4", silent.local_addr().unwrap().port()));
    assert!(
        why.contains("node n4") && why.contains("not measured"),
        "{why}"
    );
    assert!(began.elapsed() < Duration::from_secs(8));
    // Nothing of it hinders a run.
    let node_config = bed.node_config(&[(&one, &first)], 0);
    first.open(node_config);
    first.clean(Staying::default());
    first.run(MAKES, 0);
}

/// How a step of two nodes ends. Does `more` in between, with the time so far; reports undelivered messages, as tarn does.
pub(crate) fn until_ended(
    first: &Client,
    second: &Client,
    mut more: impl FnMut(Duration),
) -> AttemptOutcome {
    let both = [first, second];
    let began = Instant::now();
    loop {
        more(began.elapsed());
        for (from, client) in (0u32..).map(NodeId).zip(both) {
            let Ok(Some(bytes)) = client.notifications.recv_timeout(Duration::from_millis(5))
            else {
                assert!(began.elapsed() < LONG, "the step does not end");
                continue;
            };
            match decode(&bytes).unwrap() {
                NodeNotification::Undelivered { to, step, why } => {
                    both[to.at()].send_command(NodeCommand::Undelivered { from, step, why });
                }
                NodeNotification::Event(Event::Ended { ended, .. }) => return ended,
                NodeNotification::Event(Event::Capacity { .. })
                | NodeNotification::Progress { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

fn a_step_runs_on_two_nodes() {
    let bed = Bed::make();
    let (one, mut two) = (bed.start("n1", &[]), bed.start("n2", &[]));
    let (first, second) = (bed.connect(&one.started), bed.connect(&two.started));
    let both = [(&one, &first), (&two, &second)];
    let openings = [bed.node_config(&both, 0), bed.node_config(&both, 1)];
    for (client, node_config) in [&first, &second].into_iter().zip(openings) {
        match client.call(NodeRequest::Open(Box::new(node_config))) {
            NodeReply::Opened { several: None, .. } => {}
            NodeReply::Opened {
                several: Some(why), ..
            } => return eprintln!("skipped: {why}"),
            other => panic!("{other:?}"),
        }
        client.clean(Staying::default());
    }
    first.begin_on(PAIR, 1, &[0, 1]);
    let outputs = match until_ended(&first, &second, |_| ()) {
        AttemptOutcome::Committed { outputs, .. } => outputs,
        AttemptOutcome::Failed {
            failure, log_tail, ..
        } => panic!("{failure:?}\n{log_tail}"),
    };
    let made = bed.tier("n1").part(&outputs[0].parts[0].0.key);
    let text = std::fs::read_to_string(made.join("f")).unwrap();
    assert_eq!(text, "from n2\n");
    // The second node is lost in the middle.
    std::fs::write(bed.path("wait"), "").unwrap();
    first.begin_on(PAIR, 2, &[0, 1]);
    let mut killed = false;
    let lose = |after: Duration| {
        if after.as_secs() >= 1 && !std::mem::replace(&mut killed, true) {
            two.kill();
            first.send_command(NodeCommand::NodeLost(NodeId(1)));
        }
    };
    match until_ended(&first, &second, lose) {
        AttemptOutcome::Failed { failure, .. } => {
            assert_eq!(failure.kind, RunErrorKind::NodeLost, "{}", failure.message);
        }
        other => panic!("{other:?}"),
    }
    first.run(MAKES, 0);
}

pub(crate) fn transfer(id: u64) -> Do {
    Do::Transfer(Transfer {
        id: TransferId(id),
        data: DataId(LARGE),
        version: 1,
        parts: vec![PartMove {
            part: part(LARGE),
            from: Place::Node(tier_ref(0)),
        }],
        to: Place::Node(tier_ref(1)),
        kind: TransferKind::Peer,
        verify: Verify::Copy,
        priority: 1,
    })
}

pub(crate) fn tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let name = path.strip_prefix(root).unwrap().display().to_string();
                    found.insert(name, std::fs::read(&path).unwrap());
                }
            }
        }
    }
    found
}

fn failed(event: Event) -> RunError {
    match event {
        Event::TransferFailed { failure, .. } => failure,
        other => panic!("{other:?}"),
    }
}

fn a_replica_is_pulled() {
    let bed = Bed::make();
    let (one, two) = (bed.start("n1", &[]), bed.start("n2", &[]));
    let (first, second) = (bed.connect(&one.started), bed.connect(&two.started));
    let both = [(&one, &first), (&two, &second)];
    first.open(bed.node_config(&both, 0));
    let mut seen = bed.node_config(&both, 1);
    // Data on another node is not to be seen in the file system.
    seen.cluster.nodes[0].tiers[0].root = bed.path("elsewhere");
    second.open(seen);
    first.clean(Staying::default());
    second.clean(Staying::default());
    let large = first.run(LARGE, 0);
    second.send_command(NodeCommand::Know(vec![(part(LARGE), large.clone())]));
    second.order(transfer(1));
    match second.event() {
        Event::TransferDone { bytes, hashes, .. } => {
            assert_eq!(bytes, 24_000_002);
            assert_eq!(hashes, [large.hash.unwrap()]);
        }
        other => panic!("{other:?}"),
    }
    let [from, to] = ["n1", "n2"].map(|n| tree(&bed.tier(n).part(&large.key)));
    assert_eq!(from.len(), 9);
    assert!(from == to);
    // Evicted data is not served any more.
    let at = Place::Node(tier_ref(0));
    let (gone, key) = (part(LARGE), large.key.clone());
    first.order(Do::Evict {
        part: gone,
        key,
        at,
    });
    assert!(matches!(first.event(), Event::Evicted { .. }));
    second.order(transfer(2));
    let failure = failed(second.event());
    assert!(
        failure.kind == RunErrorKind::Corrupt && failure.message.contains("n1"),
        "what is gone behind a run's back is as good as damaged: {failure:?}"
    );
    second.send_command(NodeCommand::NodeLost(NodeId(0)));
    second.order(transfer(3));
    let failure = failed(second.event());
    assert_eq!(failure.kind, RunErrorKind::NodeLost, "{failure:?}");
}
