//! Clients that are not of the run, and bytes that are no message.

use crate::Test;
use crate::bed::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;
use tarn_proto::node::{NodeNotification, NodeReply, decode};
use tarn_sessions::{ControlError, NodeSession, RunKeys, SessionTimeouts};
use tarn_types::nodes::Staying;

pub(crate) const TESTS: &[Test] = &[
    ("strangers::garbage_is_closed_on", garbage_is_closed_on),
    (
        "strangers::what_is_no_message_is_said_to_be_none",
        what_is_no_message,
    ),
    (
        "strangers::who_is_of_another_run_is_refused",
        another_run_is_refused,
    ),
    (
        "strangers::a_start_that_is_none_ends_tarnd",
        a_start_that_is_none,
    ),
];

fn garbage_is_closed_on() {
    let bed = Bed::make();
    let node = bed.start("n1", &[]);
    let client = bed.opened(&node);
    for port in [node.started.control, node.started.data] {
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 5000], &[0xff; 70_000]] {
            let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stranger.set_read_timeout(Some(LONG)).unwrap();
            // It may be cut off in the middle.
            let _ = stranger.write_all(garbage);
            let mut answer = Vec::new();
            let closed = stranger.read_to_end(&mut answer);
            let timed_out = closed.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock);
            assert!(!timed_out && answer.len() < 1000, "{} bytes", answer.len());
        }
    }
    client.clean(Staying::default());
    client.run(MAKES, 0);
}

fn what_is_no_message() {
    let bed = Bed::make();
    let node = bed.start("n1", &[]);
    let client = bed.opened(&node);
    for garbage in [
        &b""[..],
        b"{",
        b"\"Leave\"\nmore",
        b"{\"Frob\":1}\n",
        &[0xff; 1000],
    ] {
        let answer = client.session.call(garbage.to_vec(), Some(LONG)).unwrap();
        match decode(&answer).unwrap() {
            NodeReply::Failed(why) => assert!(why.contains("no message"), "{why}"),
            other => panic!("{other:?}"),
        }
        client.session.send_command(garbage.to_vec()).unwrap();
        match client.next_notification() {
            Some(NodeNotification::Broken(why)) => assert!(why.contains("no message"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    client.clean(Staying::default());
}

fn another_run_is_refused() {
    let bed = Bed::make();
    let node = bed.start("n1", &[]);
    let at = SocketAddr::from(([127, 0, 0, 1], node.started.control));
    let open = |keys: &RunKeys, run: &str| {
        NodeSession::open(at, keys, SessionTimeouts::default(), run, "n1", |_| ()).err()
    };
    match open(bed.keys(), "w-2") {
        Some(ControlError::Refused { why, .. }) => {
            assert!(why.contains("w-1") && why.contains("w-2"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    assert!(open(&RunKeys::new().unwrap(), RUN).is_some());
    // The configuration of another run or node, over a session of this one.
    let client = bed.connect(&node.started);
    let node_config = bed.node_config(&[(&node, &client)], 0);
    for change in [
        |o: &mut tarn_proto::node::NodeConfig| o.data.0 += 1,
        |o: &mut tarn_proto::node::NodeConfig| o.node.0 = 9,
    ] {
        let mut wrong = node_config.clone();
        change(&mut wrong);
        client.failed(tarn_proto::node::NodeRequest::Open(Box::new(wrong)));
    }
    client.open(node_config);
}

fn a_start_that_is_none() {
    for line in [
        "\n",
        "{}\n",
        "",
        "{\"keys\":{},\"run\":\"r\",\"patience\":[1,2],\"data\":[1,2]}\n",
    ] {
        let mut tarnd = Command::new(env!("CARGO_BIN_EXE_tarnd"))
            .arg("--node")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        tarnd
            .stdin
            .take()
            .unwrap()
            .write_all(line.as_bytes())
            .unwrap();
        std::thread::sleep(Duration::from_millis(1));
        let out = tarnd.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{line}");
        let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(
            stderr.contains("no start of a run") && out.stdout.is_empty(),
            "{stderr}"
        );
    }
}
