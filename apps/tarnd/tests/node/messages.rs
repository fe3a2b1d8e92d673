//! Messages between the nodes of a step: in order, once, not before their time, whatever the network does in between.

use crate::Test;
use crate::bed::*;
use crate::peers::until_ended;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tarn_data_plane::{ContentTransport, DataClient as Peer, DataClientTimeouts, Key};
use tarn_ports::Control;
use tarn_proto::local::{Code, PeerTarndReply, PeerTarndRequest, StepMessage, pack, unpack};
use tarn_proto::node::{Address, NodeCommand, NodeConfig, NodeReply, NodeRequest};
use tarn_types::event::{AttemptOutcome, Output, RunErrorKind};
use tarn_types::id::{InstanceId, NodeId, StepId};
use tarn_types::nodes::{AttemptId, Staying};

pub(crate) const TESTS: &[Test] = &[
    (
        "messages::a_message_waits_for_its_mark",
        a_message_waits_for_its_mark,
    ),
    (
        "messages::a_stream_that_is_cut_loses_and_doubles_nothing",
        a_stream_that_is_cut_loses_and_doubles_nothing,
    ),
    (
        "messages::who_cannot_be_reached_fails_the_attempt_by_name",
        who_cannot_be_reached_fails_the_attempt_by_name,
    ),
    (
        "messages::busy_streams_hold_no_message_up",
        busy_streams_hold_no_message_up,
    ),
    (
        "messages::only_a_node_of_the_run_is_heard_and_no_lost_one",
        only_a_node_of_the_run_is_heard_and_no_lost_one,
    ),
];

/// Two nodes of a run.
struct Two {
    nodes: [Node; 2],
    clients: [Client; 2],
}

/// `change` edits each one's configuration; none where this machine has no namespaces.
fn two(bed: &Bed, change: impl Fn(&mut NodeConfig)) -> Option<Two> {
    let nodes = ["n1", "n2"].map(|name| bed.start(name, &[]));
    let clients = nodes.each_ref().map(|node| bed.connect(&node.started));
    let both: Vec<_> = nodes.iter().zip(&clients).collect();
    for (at, client) in (0..).zip(&clients) {
        let mut node_config = bed.node_config(&both, at);
        change(&mut node_config);
        match client.call(NodeRequest::Open(Box::new(node_config))) {
            NodeReply::Opened { several: None, .. } => {}
            NodeReply::Opened {
                several: Some(why), ..
            } => {
                eprintln!("skipped: {why}");
                return None;
            }
            other => panic!("{other:?}"),
        }
        client.clean(Staying::default());
    }
    Some(Two { nodes, clients })
}

impl Two {
    fn ended(&self) -> AttemptOutcome {
        until_ended(&self.clients[0], &self.clients[1], |_| ())
    }

    fn committed(&self) -> Vec<Output> {
        match self.ended() {
            AttemptOutcome::Committed { outputs, .. } => outputs,
            AttemptOutcome::Failed {
                failure, log_tail, ..
            } => panic!("{failure:?}\n{log_tail}"),
        }
    }

    /// A client of the second one's data server.
    fn peer(&self, run: [u8; 16], key: Key) -> Peer {
        Peer {
            node: "n2".into(),
            address: ([127, 0, 0, 1], self.nodes[1].started.data).into(),
            others: Vec::new(),
            run,
            key,
            timeout: DataClientTimeouts {
                busy: Duration::ZERO,
                crowded: Duration::from_secs(1),
                ..DataClientTimeouts::default()
            },
            way: ContentTransport::Clear,
        }
    }
}

fn attempt(step: u32, attempt: u32) -> AttemptId {
    let step = StepId(step);
    (InstanceId { step, index: 0 }, attempt)
}

fn local(port: u16) -> Address {
    ("127.0.0.1".into(), port)
}

fn a_message_waits_for_its_mark() {
    let bed = Bed::make();
    let Some(two) = two(&bed, |_| ()) else { return };
    let [first, second] = &two.clients;
    let step = attempt(PAIR, 1);
    first.send_command(NodeCommand::Lead { step, mark: 5 });
    first.begin_on(PAIR, 1, &[0, 1]);
    // It is led, and nothing of it is seen on the other node, although that has had a mark.
    let work = |node| bed.tier(node).work().join(format!("s{PAIR}.0.1"));
    second.send_command(NodeCommand::Mark(4));
    std::thread::sleep(Duration::from_millis(500));
    assert!(!work("n2").exists());
    second.send_command(NodeCommand::Mark(5));
    two.committed();
}

/// Between two nodes: passes on, but each connection for so many bytes only.
struct Cutting {
    port: u16,
    cuts: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<u8>>>,
    over: Arc<AtomicBool>,
}

impl Cutting {
    fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let cutting = Self {
            port: listener.local_addr().unwrap().port(),
            cuts: Arc::default(),
            seen: Arc::default(),
            over: Arc::default(),
        };
        let (cuts, seen) = (Arc::clone(&cutting.cuts), Arc::clone(&cutting.seen));
        let over = Arc::clone(&cutting.over);
        std::thread::spawn(move || {
            // A handshake, and a piece of a message with it, fit into the larger ones only.
            for bytes in [500, 150_000, 3_000, 70_000, 400_000].into_iter().cycle() {
                let Ok((near, _)) = listener.accept() else {
                    return;
                };
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else {
                    continue;
                };
                pass((near, far), bytes, &cuts, &seen);
            }
        });
        cutting
    }
}

impl Drop for Cutting {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// Both ways, until one end closes or so many bytes have passed either way: bytes under way then are lost.
fn pass(
    (near, far): (TcpStream, TcpStream),
    bytes: usize,
    cuts: &Arc<AtomicUsize>,
    seen: &Arc<Mutex<Vec<u8>>>,
) {
    let left = Arc::new(AtomicUsize::new(bytes));
    let [near, far] = [near, far].map(Arc::new);
    for (from, to) in [(&near, &far), (&far, &near)] {
        let (from, to) = (Arc::clone(from), Arc::clone(to));
        let (left, cuts) = (Arc::clone(&left), Arc::clone(cuts));
        let seen = Arc::clone(seen);
        std::thread::spawn(move || {
            let mut buffer = vec![0; 16 << 10];
            while let Ok(n @ 1..) = (&*from).read(&mut buffer) {
                let take = |left: usize| Some(left.saturating_sub(n));
                let had = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
                let passed = n.min(had.unwrap_or_default());
                seen.lock().unwrap().extend_from_slice(&buffer[..passed]);
                if (&*to).write_all(&buffer[..passed]).is_err() || passed < n {
                    cuts.fetch_add(1, Ordering::SeqCst);
                    break;
                }
            }
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}

fn a_stream_that_is_cut_loses_and_doubles_nothing() {
    let bed = Bed::make();
    let between = Mutex::new(Vec::new());
    let made = two(&bed, |node_config| {
        for (node, address) in &mut node_config.peers {
            if *node != node_config.node {
                let cutting = Cutting::to(address.1);
                *address = local(cutting.port);
                between.lock().unwrap().push(cutting);
            }
        }
    });
    let Some(two) = made else { return };
    two.clients[0].begin_on(STREAMS, 1, &[0, 1]);
    let outputs = two.committed();
    let made = bed.tier("n1").part(&outputs[0].parts[0].0.key);
    let text = std::fs::read_to_string(made.join("f")).unwrap();
    let expected: String = (1..=PRINTED).map(|n| format!("{n}\n")).collect();
    assert!(
        text == expected + &format!("{WORDS}\n"),
        "{} bytes",
        text.len()
    );
    for cutting in between.lock().unwrap().iter() {
        let cuts = cutting.cuts.load(Ordering::SeqCst);
        assert!(cuts > 2, "{cuts} cuts");
        // It is sealed, although the run asks for no transport that is.
        let seen = cutting.seen.lock().unwrap();
        assert!(!seen.windows(12).any(|w| w == b"10001\n10002\n"));
    }
}

/// A port at which nobody listens, for as long as the listener does not.
fn nobody() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Neither way of two may be shut: it is the attempt that fails, and it ends on both nodes.
fn who_cannot_be_reached_fails_the_attempt_by_name() {
    for (from, to) in [(0, 1), (1, 0)] {
        let bed = Bed::make();
        let [from, to] = [from, to].map(NodeId);
        let made = two(&bed, |node_config| {
            if node_config.node == from {
                node_config.peers.insert(to, local(nobody()));
            }
        });
        let Some(two) = made else { return };
        two.clients[0].begin_on(PAIR, 1, &[0, 1]);
        match two.ended() {
            AttemptOutcome::Failed { failure, .. } => {
                // It counts as a try, as one of a lost node would not.
                assert_eq!(failure.kind, RunErrorKind::Io, "{}", failure.message);
                let names = format!("node n{} could not give node n{}", from.0 + 1, to.0 + 1);
                assert!(failure.message.contains(&names), "{}", failure.message);
                let why = failure.message.contains("cannot be reached");
                assert!(why, "{}", failure.message);
            }
            other => panic!("{other:?}"),
        }
        for node in ["n1", "n2"] {
            let work = bed.tier(node).work();
            let is_empty = || work.read_dir().is_ok_and(|mut all| all.next().is_none());
            until("the attempt is over", || !work.exists() || is_empty());
        }
        // It is there for steps of its own.
        two.clients[to.at()].run(MAKES, to.0);
    }
}

fn busy_streams_hold_no_message_up() {
    let bed = Bed::make();
    let Some(two) = two(&bed, |_| ()) else { return };
    let bulk = two.peer(bed.data.0.to_le_bytes(), Key(bed.data.1));
    let control = Control::default();
    let mut streams = Vec::new();
    let why = loop {
        match bulk.line(&control) {
            Ok(line) => streams.push(line),
            Err(why) => break why.failure.message,
        }
    };
    assert!(streams.len() == 16 && why.contains("busy"), "{why}");
    two.clients[0].begin_on(PAIR, 1, &[0, 1]);
    two.committed();
    assert!(streams.iter().all(tarn_data_plane::CallStream::is_open));
}

fn only_a_node_of_the_run_is_heard_and_no_lost_one() {
    let bed = Bed::make();
    let Some(two) = two(&bed, |_| ()) else { return };
    let [first, second] = &two.clients;
    // As every node makes them of the run's key.
    let derive = |purpose: &str| {
        let purpose = format!("tarn: {purpose} of messages about steps");
        Key::derive(&bed.data.1, purpose.as_bytes()).unwrap()
    };
    let mut run = [0; 16];
    run.copy_from_slice(&derive("run").0[..16]);
    let bulk_run = bed.data.0.to_le_bytes();
    let message = |from: u32| {
        PeerTarndRequest::Step(StepMessage {
            from: NodeId(from),
            epoch: 1,
            number: 1,
            after: 0,
            step: attempt(PAIR, 1),
            first: true,
            last: true,
            piece: b"{}".to_vec(),
        })
    };
    let reply_to = |run, key, ask: &PeerTarndRequest| -> Option<PeerTarndReply> {
        let peer = two.peer(run, key);
        let reply = peer.call(&pack(ask).unwrap(), &Control::default());
        unpack(&reply.ok()?).ok()
    };
    let refused = |reply| match reply {
        Some(PeerTarndReply::Refused(why)) => Some(why.code),
        _ => None,
    };
    // With the run's own key; with another; of no other node of the run; on a stream for content; and bytes that are no message.
    assert_eq!(reply_to(run, Key(bed.data.1), &message(0)), None);
    assert_eq!(reply_to(run, Key([9; 32]), &message(0)), None);
    let key = || derive("key");
    for stranger in [1, 2, 77] {
        let reply = reply_to(run, key(), &message(stranger));
        assert_eq!(refused(reply), Some(Code::Denied));
    }
    let on_another = reply_to(bulk_run, Key(bed.data.1), &message(0));
    assert_eq!(refused(on_another), Some(Code::Unsupported));
    let no_message = reply_to(run, key(), &PeerTarndRequest::Look(7));
    assert_eq!(refused(no_message), Some(Code::Unsupported));
    assert_eq!(
        reply_to(run, key(), &message(0)),
        Some(PeerTarndReply::Done)
    );
    // A lost node's messages are refused until it is back.
    second.send_command(NodeCommand::NodeLost(NodeId(0)));
    until("it is lost", || {
        refused(reply_to(run, key(), &message(0))) == Some(Code::Lost)
    });
    first.begin_on(PAIR, 1, &[0, 1]);
    std::thread::sleep(Duration::from_millis(500));
    assert!(!bed.tier("n2").work().join(format!("s{PAIR}.0.1")).exists());
    let back = NodeCommand::NodeBack(NodeId(0), local(two.nodes[0].started.data));
    second.send_command(back);
    two.committed();
}
