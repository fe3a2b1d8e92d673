//! Calls on streams: answered in their time, and by nobody in between.

use crate::common::*;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tarn_data_plane::{
    Called, ContentTransport, DataClient, DataServer, Key, Limits, Registry, RegistryError, RunId,
    Served, ServedFileExtent, Tree,
};
use tarn_ports::{Control, PeerTree, Piece};
use tarn_proto::data::MAX_REQUEST;
use tarn_stream::hello::{Hello, Welcome};

/// A run whose streams are for messages.
const MESSAGES: RunId = [9; 16];

/// Answers calls, and serves one stretch of a file.
struct Echo {
    part: Option<ServedFileExtent>,
    cancelled: AtomicBool,
}

impl Registry for Echo {
    fn key(&self, run: &RunId) -> Option<Key> {
        [RUN, MESSAGES].contains(run).then_some(KEY)
    }

    fn is_for_messages(&self, run: &RunId) -> bool {
        *run == MESSAGES
    }

    fn tree(&self, _: &RunId, _: &Tree) -> Result<Served, RegistryError> {
        let part = self.part.clone().map(Served::Part);
        part.ok_or_else(|| RegistryError("nothing".into()))
    }

    fn call(&self, _: &RunId, body: &[u8], control: &Control) -> Result<Called, RegistryError> {
        match body {
            b"no" => Err(RegistryError("not that".into())),
            b"for ever" => {
                while !control.cancelled() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                self.cancelled.store(true, Ordering::Relaxed);
                Err(RegistryError("given up".into()))
            }
            b"slow" => {
                std::thread::sleep(Duration::from_millis(4500));
                Ok(Called::Reply(b"at last".to_vec()))
            }
            other => Ok(Called::Reply(other.repeat(3))),
        }
    }
}

fn echo(part: Option<ServedFileExtent>) -> (Arc<Echo>, DataServer) {
    echo_with(part, Limits::default())
}

fn echo_with(part: Option<ServedFileExtent>, limits: Limits) -> (Arc<Echo>, DataServer) {
    let registry = Arc::new(Echo {
        part,
        cancelled: AtomicBool::new(false),
    });
    let server = DataServer::start(
        "127.0.0.1:0",
        Arc::clone(&registry) as _,
        limits,
        ContentTransport::Clear,
    );
    (registry, server.unwrap())
}

fn patient(server: &DataServer, stall: Duration) -> DataClient {
    let mut client = client_of(server);
    client.timeout.stall = stall;
    client
}

#[test]
fn calls_are_answered_refused_and_given_up() {
    let (registry, server) = echo(None);
    let client = patient(&server, Duration::from_millis(4000));
    let control = Control::default();
    let long = vec![7; 200_000];
    for body in [&b""[..], b"hello", &long] {
        assert_eq!(client.call(body, &control).unwrap(), body.repeat(3));
    }
    let why = client.call(b"no", &control).unwrap_err().failure.message;
    assert!(why.contains("n1") && why.contains("not that"), "{why}");
    assert!(client.call(&vec![0; MAX_REQUEST], &control).is_err());
    // Slower than the timeout for silence: signs of life come meanwhile.
    assert_eq!(client.call(b"slow", &control).unwrap(), b"at last");
    let watch = Control::default();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| client.call(b"for ever", &watch));
        std::thread::sleep(Duration::from_millis(100));
        watch.cancel.store(true, Ordering::Relaxed);
        assert!(waits.join().unwrap().is_err());
    });
    let began = Instant::now();
    while !registry.cancelled.load(Ordering::Relaxed) {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    }
    // A registry has files only.
    let ends = Ends::new();
    let why = ends
        .client
        .call(b"x", &control)
        .unwrap_err()
        .failure
        .message;
    assert!(why.contains("nothing but files"), "{why}");
}

/// One stream serves many calls; a client that kept it sees that the server has gone. Of a node's addresses the one that
/// answers counts.
#[test]
fn a_line_is_kept_for_calls() {
    let (_, server) = echo(None);
    let mut client = patient(&server, Duration::from_secs(5));
    // Nobody listens at the first.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    client.others = vec![client.address];
    client.address = free.local_addr().unwrap();
    drop(free);
    let control = Control::default();
    let mut line = client.line(&control).unwrap();
    for body in [&b"a"[..], b"bc", b"def"] {
        let reply = client.call_on(&mut line, body, &control).unwrap();
        assert_eq!(reply, body.repeat(3));
        assert!(line.is_open());
    }
    assert_eq!(server.counts().streams, 1);
    drop(server);
    assert!(!line.is_open());
    assert!(client.call_on(&mut line, b"x", &control).is_err());
}

/// A wire that changes one byte of a direction, if one is given.
fn wire(server: &DataServer, there: Option<usize>, back: Option<usize>) -> DataClient {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = DataClient {
        address: listener.local_addr().unwrap(),
        ..client_of(server)
    };
    let to = server.address();
    std::thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(to).unwrap();
        let pump = |mut from: TcpStream, mut to: TcpStream, at: Option<usize>| {
            let (mut seen, mut buffer) = (0, [0; 4096]);
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                if let Some(at) = at.filter(|at| (seen..seen + n).contains(at)) {
                    buffer[at - seen] ^= 1;
                }
                seen += n;
                if to.write_all(&buffer[..n]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        };
        let (a, b) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        let forth = std::thread::spawn(move || pump(a, b, there));
        pump(far, near, back);
        let _ = forth.join();
    });
    client
}

#[test]
fn who_stands_between_changes_nothing_unseen() {
    let (_, server) = echo(None);
    let control = Control::default();
    assert_eq!(
        wire(&server, None, None).call(b"abc", &control).unwrap(),
        b"abcabcabc"
    );
    // After both handshakes: length, kind, number, proof, body; and head, proof, body.
    let (call, reply) = (Hello::BYTES + 32, Welcome::BYTES + 32 + 1);
    for at in [5, 9, 4 + 1 + 4 + 32] {
        let refused = wire(&server, Some(call + at), None).call(b"abc", &control);
        assert!(refused.is_err(), "byte {at} of the call");
    }
    for at in [17, 17 + 32, 17 + 32 + 8] {
        let refused = wire(&server, None, Some(reply + at)).call(b"abc", &control);
        let why = refused.unwrap_err().failure.message;
        assert!(
            why.contains("between the two nodes"),
            "byte {at} of the reply: {why}"
        );
    }
}

#[test]
fn a_stretch_of_an_open_file_is_a_tree_of_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, b"0123456789").unwrap();
    let part = ServedFileExtent {
        fd: Arc::new(std::fs::File::open(&path).unwrap().into()),
        name: b"file".as_slice().into(),
        offset: 2,
        length: 6,
    };
    let (_, server) = echo(Some(part));
    let read = |path: &[u8], offset, len| {
        let client = Arc::new(client_of(&server));
        let tree = client.tree(Tree::Space(b"x".as_slice().into()));
        let control = Control::default();
        let mut stream = tree.open(&control).unwrap();
        stream.ask(&[Piece { path, offset, len }]).unwrap();
        let mut bytes = vec![0; len as usize];
        stream.read(&mut bytes).map(|()| bytes)
    };
    assert_eq!(read(b"file", 0, 6).unwrap(), b"234567");
    assert_eq!(read(b"file", 4, 2).unwrap(), b"67");
    assert!(read(b"file", 4, 3).is_err());
    assert!(read(b"other", 0, 1).is_err());
    std::fs::write(&path, b"0123").unwrap();
    assert!(read(b"file", 0, 6).is_err(), "it has become shorter");
}

/// Streams for messages have places of their own: neither do bulk transfers hold them up, nor they those.
#[test]
fn messages_and_content_do_not_take_each_other_s_places() {
    let limits = Limits {
        streams: 2,
        messages: 3,
        ..Limits::default()
    };
    let (_, server) = echo_with(None, limits);
    let mut bulk = patient(&server, Duration::from_secs(30));
    bulk.timeout.busy = Duration::ZERO;
    let messages = DataClient {
        run: MESSAGES,
        ..bulk.clone()
    };
    let control = Control::default();
    let is_busy = |client: &DataClient| {
        let why = client.line(&control).expect_err("all places are taken");
        assert!(why.failure.message.contains("busy"), "{why}");
    };
    let _content: Vec<_> = (0..2).map(|_| bulk.line(&control).unwrap()).collect();
    is_busy(&bulk);
    let mut lines: Vec<_> = (0..3).map(|_| messages.line(&control).unwrap()).collect();
    is_busy(&messages);
    for line in &mut lines {
        let reply = messages.call_on(line, b"a", &control).unwrap();
        assert_eq!(reply, b"aaa");
    }
    // A place is free again once its stream has ended.
    drop(lines.pop());
    let began = Instant::now();
    while messages.line(&control).is_err() {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(20));
    }
    is_busy(&bulk);
}
