//! Peers that are not who they should be, use another protocol, or send false content.

use crate::common::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tarn_data_plane::{DataClient, DataClientTimeouts, Key, Limits};
use tarn_ports::{Control, PeerTree, Piece};
use tarn_proto::data::{Builder, MAX_REQUEST, ReadReplyHeader, ReadStatus, Tree};
use tarn_stream::hello::{CLEAR, Hello, Verdict, Welcome};
use tarn_types::event::RunErrorKind;

fn error_of(client: DataClient) -> String {
    let client = Arc::new(client);
    let tree = client.tree(tree());
    let error = tree.open(&Control::default()).err().unwrap();
    assert_eq!(error.failure.kind, RunErrorKind::Io);
    error.failure.message
}

/// Waits for a server to have noticed.
pub(crate) fn until(mut what: impl FnMut() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "nothing happened"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn attack_a_wrong_key_and_an_unknown_run_are_refused_at_both_ends() {
    let ends = Ends::new();
    let wrong = DataClient {
        key: Key([1; 32]),
        ..client_of(&ends.server)
    };
    assert!(error_of(wrong).contains("does not know the key"));
    let unknown = DataClient {
        run: [1; 16],
        ..client_of(&ends.server)
    };
    assert!(error_of(unknown).contains("does not know the key"));
    until(|| ends.server.counts().refused >= 2);
    assert_eq!(ends.server.counts().streams, 0);
    assert_ne!(
        Key::derive(&[9; 32], b"data").unwrap(),
        Key::derive(&[9; 32], b"control").unwrap()
    );
    assert_eq!(format!("{KEY:?}"), "Key(secret)");
}

#[test]
fn attack_a_replayed_handshake_is_worth_nothing() {
    let ends = Ends::new();
    ends.write("f", b"f");
    // A wire that remembers the client's bytes.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let to = ends.server.address();
    let recorder = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(to).unwrap();
        let (mut first, mut second, mut third, mut last) =
            ([0; Hello::BYTES], [0; Welcome::BYTES + 32], [0; 32], [0; 1]);
        client.read_exact(&mut first).unwrap();
        server.write_all(&first).unwrap();
        server.read_exact(&mut second).unwrap();
        client.write_all(&second).unwrap();
        client.read_exact(&mut third).unwrap();
        server.write_all(&third).unwrap();
        server.read_exact(&mut last).unwrap();
        client.write_all(&last).unwrap();
        (first, third)
    });
    let honest = Arc::new(DataClient {
        address,
        ..client_of(&ends.server)
    });
    let tree_there = honest.tree(tree());
    drop(tree_there.open(&Control::default()).unwrap());
    let (first, third) = recorder.join().unwrap();
    until(|| ends.server.counts().streams == 1);

    let mut replay = TcpStream::connect(to).unwrap();
    replay.write_all(&first).unwrap();
    replay.read_exact(&mut [0; Welcome::BYTES + 32]).unwrap();
    replay.write_all(&third).unwrap();
    let mut request = Builder::new(0, &tree(), false).unwrap();
    request.push(b"f", 0, 1).unwrap();
    let _ = replay.write_all(&request.finish());
    let mut rest = Vec::new();
    let _ = replay.read_to_end(&mut rest);
    assert!(rest.is_empty());
    assert_eq!(
        (ends.server.counts().streams, ends.server.counts().bytes),
        (1, 0)
    );
}

#[test]
fn another_version_is_told_and_refused() {
    let ends = Ends::new();
    let mut socket = TcpStream::connect(ends.server.address()).unwrap();
    let hello = Hello {
        lowest: 40,
        highest: 41,
        run: RUN,
        nonce: [3; 32],
    };
    socket.write_all(&hello.encode()).unwrap();
    let mut answer = [0; Welcome::BYTES + 32];
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(
        Welcome::decode(answer.first_chunk().unwrap())
            .unwrap()
            .version,
        0
    );
    assert_eq!(socket.read(&mut [0]).unwrap(), 0, "it closes");

    // The other way round: a server that chooses no version, and knows the key.
    use hmac::{Hmac, KeyInit, Mac};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let old = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut first = [0; Hello::BYTES];
        socket.read_exact(&mut first).unwrap();
        let second = Welcome {
            version: 0,
            nonce: [1; 32],
        }
        .encode();
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&KEY.0).unwrap();
        mac.update(b"server");
        mac.update(&first);
        mac.update(&second);
        socket.write_all(&second).unwrap();
        socket.write_all(&mac.finalize().into_bytes()).unwrap();
    });
    assert!(
        error_of(DataClient {
            address,
            ..client_of(&ends.server)
        })
        .contains("another version")
    );
    old.join().unwrap();
}

/// A liar that the client trusts first: an honest server's handshake, and then these bytes.
fn liar(ends: &Ends, lie: Vec<u8>, then_close: bool) -> Arc<DataClient> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let to = ends.server.address();
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            let mut server = TcpStream::connect(to).unwrap();
            let (mut first, mut second) = ([0; Hello::BYTES], [0; Welcome::BYTES + 32]);
            client.read_exact(&mut first).unwrap();
            server.write_all(&first).unwrap();
            server.read_exact(&mut second).unwrap();
            client.write_all(&second).unwrap();
            client.read_exact(&mut [0; 32]).unwrap();
            client.write_all(&Verdict::Ready.encode()).unwrap();
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(&lie);
            if !then_close {
                std::thread::spawn(move || drop(std::io::copy(&mut client, &mut std::io::sink())));
            }
        }
    });
    Arc::new(DataClient {
        address,
        timeout: DataClientTimeouts {
            stall: Duration::from_secs(3),
            ..DataClientTimeouts::default()
        },
        ..client_of(&ends.server)
    })
}

#[test]
fn attack_lies_are_found_out() {
    let ends = Ends::new();
    ends.write("f", b"0123456789");
    let answer = |request, item, status, len| {
        ReadReplyHeader {
            request,
            item,
            status,
            len,
        }
        .encode()
        .to_vec()
    };
    let content =
        |len: u64, bytes: &[u8]| [answer(0, 0, ReadStatus::Content, len), bytes.to_vec()].concat();
    let cases: Vec<(&str, Vec<u8>, bool, RunErrorKind, &str)> = vec![
        (
            "longer",
            content(11, b"01234567890"),
            false,
            RunErrorKind::Io,
            "another length",
        ),
        (
            "shorter",
            content(9, b"012345678"),
            false,
            RunErrorKind::Io,
            "another length",
        ),
        (
            "huge",
            content(u64::MAX, b""),
            false,
            RunErrorKind::Io,
            "another length",
        ),
        (
            "another item",
            answer(0, 1, ReadStatus::Content, 10),
            false,
            RunErrorKind::Io,
            "another request",
        ),
        (
            "another request",
            answer(9, 0, ReadStatus::Content, 10),
            false,
            RunErrorKind::Io,
            "another request",
        ),
        (
            "other bytes",
            content(10, b"9876543210"),
            false,
            RunErrorKind::Corrupt,
            "hash",
        ),
        (
            "noise",
            vec![0xff; 300],
            false,
            RunErrorKind::Io,
            "not asked for",
        ),
        (
            "ends early",
            content(10, b"01234"),
            true,
            RunErrorKind::Io,
            "closed the connection",
        ),
        (
            "stops early",
            content(10, b"01234"),
            false,
            RunErrorKind::Io,
            "silent",
        ),
        ("nothing", vec![], false, RunErrorKind::Io, "silent"),
        (
            "long text",
            [
                answer(0, 0, ReadStatus::Gone, 0)[..9].to_vec(),
                u64::MAX.to_le_bytes().to_vec(),
            ]
            .concat(),
            false,
            RunErrorKind::Io,
            "longer than allowed",
        ),
        (
            "gone",
            [answer(0, 0, ReadStatus::Gone, 3), b"\x1b[2".to_vec()].concat(),
            false,
            RunErrorKind::SourceChanged,
            "not there any more",
        ),
    ];
    for (name, lie, then_close, kind, expected) in cases {
        let client = liar(&ends, lie, then_close);
        let error = copy(&job(vec![remote(&client, ends.manifest())], &ends.to)).unwrap_err();
        assert_eq!(error.failure.kind, kind, "{name}: {error}");
        assert!(error.failure.message.contains(expected), "{name}: {error}");
        assert!(
            error.failure.message.contains("n1") && !error.failure.message.contains('\x1b'),
            "{name}: {error}"
        );
        assert!(!ends.to.exists(), "{name}");
    }
}

#[test]
fn attack_garbage_and_silence_cost_a_server_nothing_but_time() {
    let ends = Ends::with(Limits {
        // Enough for an honest client, however busy the machine is.
        idle: Duration::from_secs(2),
        stall: Duration::from_secs(2),
        ..Limits::default()
    });
    ends.write("f", b"f");
    for garbage in [
        vec![],
        vec![0; 500],
        b"GET / HTTP/1.1\r\n\r\n".repeat(9),
        [b"TARNDATA".as_slice(), &[0xff; 200]].concat(),
    ] {
        let mut socket = TcpStream::connect(ends.server.address()).unwrap();
        let _ = socket.write_all(&garbage);
    }
    // Behind a good handshake: requests that are none, or stop in the middle, or never come.
    let good = |body: &[u8]| {
        use hmac::{Hmac, KeyInit, Mac};
        let mut socket = TcpStream::connect(ends.server.address()).unwrap();
        let first = Hello {
            lowest: CLEAR,
            highest: CLEAR,
            run: RUN,
            nonce: [5; 32],
        }
        .encode();
        socket.write_all(&first).unwrap();
        let mut second = [0; Welcome::BYTES + 32];
        socket.read_exact(&mut second).unwrap();
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&KEY.0).unwrap();
        mac.update(b"client");
        mac.update(&first);
        mac.update(&second);
        socket.write_all(&mac.finalize().into_bytes()).unwrap();
        socket.write_all(body).unwrap();
        let mut rest = Vec::new();
        // The server hangs up, or this hangs: `stall` is far less.
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        if let Err(e) = socket.read_to_end(&mut rest) {
            assert_ne!(e.kind(), std::io::ErrorKind::WouldBlock, "it hangs");
        }
        rest
    };
    let mut request = Builder::new(0, &tree(), false).unwrap();
    request.push(b"f", 0, 1).unwrap();
    let request = request.finish();
    let ready = Verdict::Ready.encode();
    assert_eq!(
        good(&request).len(),
        ready.len() + ReadReplyHeader::BYTES + 1
    );
    assert_eq!(good(b""), ready);
    assert_eq!(good(&request[..request.len() - 1]), ready);
    assert_eq!(good(&(MAX_REQUEST as u32 + 1).to_le_bytes()), ready);
    assert_eq!(good(&[9, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 255]), ready);
    until(|| ends.server.connections() == 0);
    // And it still serves.
    ends.fetch().unwrap();
}

#[test]
fn attack_nothing_beyond_what_is_offered_is_served() {
    let ends = Ends::new();
    ends.write("f", b"f");
    std::fs::write(ends.dir.path().join("secret"), b"secret").unwrap();
    std::os::unix::fs::symlink("../secret", ends.from.join("link")).unwrap();
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        ends.from.join("fifo"),
        rustix::fs::Mode::RWXU,
    )
    .unwrap();
    let read = |client: &Arc<DataClient>, tree: Tree, path: &[u8]| {
        let tree = client.tree(tree);
        let control = Control::default();
        let mut stream = tree.open(&control).unwrap();
        let mut buffer = [0; 1];
        stream
            .ask(&[Piece {
                path,
                offset: 0,
                len: 1,
            }])
            .unwrap();
        stream
            .read(&mut buffer)
            .map(|()| buffer[0])
            .map_err(|e| e.failure.message)
    };
    assert_eq!(read(&ends.client, tree(), b"f"), Ok(b'f'));
    for path in [
        &b"../secret"[..],
        b"link",
        b"/etc/passwd",
        b".",
        b"..",
        b"fifo",
        b"f/..",
        b"./../secret",
        b"f\0",
    ] {
        let error = read(&ends.client, tree(), path).unwrap_err();
        assert!(error.contains("n1"), "{error}");
    }
    for other in [
        Tree::Replica(b"other".as_slice().into()),
        Tree::Space(b"key".as_slice().into()),
    ] {
        assert!(
            read(&ends.client, other, b"f")
                .unwrap_err()
                .contains("not offered")
        );
    }
    // Another run has its own key, and not these trees.
    ends.replica_registry.admit([8; 16], Key([8; 32]));
    let other = Arc::new(DataClient {
        run: [8; 16],
        key: Key([8; 32]),
        ..client_of(&ends.server)
    });
    assert!(
        read(&other, tree(), b"f")
            .unwrap_err()
            .contains("not offered")
    );
    ends.replica_registry.withdraw(&RUN, &tree());
    assert!(
        read(&ends.client, tree(), b"f")
            .unwrap_err()
            .contains("not offered")
    );
    ends.replica_registry.dismiss(&RUN);
    assert!(error_of(client_of(&ends.server)).contains("does not know the key"));
}
