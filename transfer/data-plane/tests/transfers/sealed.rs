//! Sealed streams: what an observer sees of them, and what an attacker in between can do to them.

use crate::common::*;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tarn_data_plane::{ContentTransport, DataClient, DataClientTimeouts, Limits, LinkProbe};
use tarn_ports::{Control, MoverError};
use tarn_stream::hello::{CLEAR, Hello, SEALED, Welcome};

/// The bytes that each side of a wire has sent.
type Seen = Arc<Mutex<[Vec<u8>; 2]>>;

/// Changes what goes one way, piece by piece as it comes.
type Change = dyn Fn(usize, &mut Vec<u8>) + Send + Sync;

fn pass(mut from: TcpStream, mut to: TcpStream, way: usize, seen: &Seen, change: &Change) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        let mut piece = buffer[..n].to_vec();
        seen.lock().unwrap()[way].extend_from_slice(&piece);
        change(way, &mut piece);
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// A client of `ends` whose bytes go by somebody who sees all of them, and may change some; 0 is the way to the server.
fn through(
    ends: &Ends,
    way: ContentTransport,
    change: impl Fn(usize, &mut Vec<u8>) + Send + Sync + 'static,
) -> (Arc<DataClient>, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let to = ends.server.address();
    let (seen, change) = (Seen::default(), Arc::new(change));
    let theirs = Arc::clone(&seen);
    std::thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let server = TcpStream::connect(to).unwrap();
            for way in [0, 1] {
                let ends = [&client, &server].map(|s| s.try_clone().unwrap());
                let [from, into] = if way == 0 {
                    ends
                } else {
                    let [client, server] = ends;
                    [server, client]
                };
                let (seen, change) = (Arc::clone(&theirs), Arc::clone(&change));
                std::thread::spawn(move || pass(from, into, way, &seen, &*change));
            }
        }
    });
    let client = DataClient {
        address,
        way,
        timeout: DataClientTimeouts {
            stall: Duration::from_secs(3),
            crowded: Duration::from_millis(500),
            ..DataClientTimeouts::default()
        },
        ..client_of(&ends.server)
    };
    (Arc::new(client), seen)
}

fn fill(ends: &Ends) {
    ends.write("large", &bytes(20 << 20, 3));
    for n in 0..200 {
        ends.write(&format!("a-folder/small-{n}"), &bytes(n * 97, 5));
    }
    // Longer than a record, and read together with its head.
    ends.write("middle", &bytes(64 << 10, 9));
}

fn has(all: &[u8], part: &[u8]) -> bool {
    all.windows(part.len()).any(|w| w == part)
}

fn fetch(ends: &Ends, client: &Arc<DataClient>) -> Result<(), MoverError> {
    copy(&job(vec![remote(client, ends.manifest())], &ends.to)).map(drop)
}

#[test]
fn nothing_of_a_sealed_stream_is_to_be_seen_and_one_end_is_enough() {
    let ways = [ContentTransport::Clear, ContentTransport::Sealed];
    for (server, client) in ways
        .iter()
        .flat_map(|s| ways.iter().map(move |c| (s.clone(), c.clone())))
    {
        let sealed = matches!(server, ContentTransport::Sealed)
            || matches!(client, ContentTransport::Sealed);
        let ends = Ends::by(Limits::default(), server);
        fill(&ends);
        let (client, seen) = through(&ends, client, |_, _| {});
        fetch(&ends, &client).unwrap();
        assert_eq!(model(&ends.to), model(&ends.from));
        let seen = seen.lock().unwrap();
        let [requests, replies] = &*seen;
        assert_eq!(!has(requests, b"small-17"), sealed, "names");
        assert_eq!(!has(requests, b"key"), sealed, "the tree's name");
        let content = bytes(1 << 10, 3);
        assert_eq!(!has(replies, &content[..64]), sealed, "content");
        assert!(replies.len() as u64 > ends.manifest().bytes());
    }
}

#[test]
fn every_stream_has_keys_of_its_own() {
    let ends = Ends::by(Limits::default(), ContentTransport::Sealed);
    ends.write("f", &bytes(300, 1));
    let answers = [(); 2].map(|()| {
        let (client, seen) = through(&ends, ContentTransport::Clear, |_, _| {});
        fetch(&ends, &client).unwrap();
        std::fs::remove_dir_all(&ends.to).unwrap();
        let seen = seen.lock().unwrap();
        // After the handshake, whose length is the same.
        seen[1][Welcome::BYTES + 32 + 1..].to_vec()
    });
    let [one, two] = &answers;
    assert_eq!(one.len(), two.len());
    assert!(one.len() > 300);
    let same = one.iter().zip(two).filter(|(a, b)| a == b).count();
    // Lengths of records are, and one byte of 256 by chance.
    assert!(same < one.len() / 8, "{same} of {}", one.len());
}

/// Makes a change that applies `does`, as an attacker would, to the piece at a place.
fn at(
    place: usize,
    does: impl Fn(&mut Vec<u8>, usize) + Send + Sync,
) -> impl Fn(usize, &mut Vec<u8>) {
    let so_far = Mutex::new([0; 2]);
    move |way, piece: &mut Vec<u8>| {
        let mut so_far = so_far.lock().unwrap();
        let from = so_far[way];
        so_far[way] += piece.len();
        if way == 1 && (from..so_far[way]).contains(&place) {
            does(piece, place - from);
        }
    }
}

#[test]
fn attack_a_sealed_stream_that_is_changed_ends_and_tells_nothing() {
    let ends = Ends::by(Limits::default(), ContentTransport::Sealed);
    ends.write("f", &bytes(3 << 20, 1));
    // Without a hash, nothing but the stream's own proof could find it.
    let mut manifest = ends.manifest();
    for entry in &mut manifest.entries {
        if let tarn_types::manifest::EntryKind::File { hash, .. } = &mut entry.kind {
            *hash = None;
        }
    }
    let begin = Welcome::BYTES + 32 + 1;
    for place in [
        begin,
        begin + 3,
        begin + 4,
        begin + 100,
        begin + 100_000,
        2_500_000,
    ] {
        for kind in 0..4 {
            let change = at(place, move |piece, at| match kind {
                0 => piece[at] ^= 1,
                // Left out, twice, and cut.
                1 => drop(piece.remove(at)),
                2 => piece.insert(at, piece[at] ^ 0x80),
                _ => piece.truncate(at),
            });
            let (client, _) = through(&ends, ContentTransport::Clear, change);
            let job = job(vec![remote(&client, manifest.clone())], &ends.to);
            let error = copy(&job).unwrap_err();
            assert!(!ends.to.exists(), "{place}, {kind}");
            if kind == 0 && place >= begin + 4 {
                let text = &error.failure.message;
                assert!(text.contains("sealed"), "{text}");
            }
        }
    }
}

#[test]
fn attack_nobody_is_talked_out_of_a_sealed_stream() {
    // To be sent in clear, the client's hello or the server's welcome would have to say so.
    for (way, at) in [(0, 8), (1, 8)] {
        let ends = Ends::new();
        ends.write("f", b"f");
        let change = move |to: usize, piece: &mut Vec<u8>| {
            if to == way && piece.starts_with(b"TARNDATA") {
                piece[at..at + 2].copy_from_slice(&CLEAR.to_le_bytes());
            }
        };
        let (client, seen) = through(&ends, ContentTransport::Sealed, change);
        fetch(&ends, &client).unwrap_err();
        assert!(!has(&seen.lock().unwrap()[0], b"key"));
    }
    // A client that speaks only the older version is sent away.
    let ends = Ends::by(Limits::default(), ContentTransport::Sealed);
    let mut old = TcpStream::connect(ends.server.address()).unwrap();
    let hello = Hello {
        lowest: CLEAR,
        highest: CLEAR,
        run: RUN,
        nonce: [3; 32],
    };
    old.write_all(&hello.encode()).unwrap();
    let mut answer = [0; Welcome::BYTES + 32];
    old.read_exact(&mut answer).unwrap();
    let welcome = Welcome::decode(answer.first_chunk().unwrap()).unwrap();
    assert_eq!(welcome.version, 0);
    assert_eq!(old.read(&mut [0]).unwrap(), 0, "it closes");
}

/// A nonce of few possible secrets, by a peer that knows the key of the run and wants later readers to know them too.
#[test]
fn attack_a_nonce_that_is_no_public_key_is_refused() {
    use hmac::{Hmac, KeyInit, Mac};
    let ends = Ends::by(Limits::default(), ContentTransport::Sealed);
    let mut stream = TcpStream::connect(ends.server.address()).unwrap();
    let hello = Hello {
        lowest: SEALED,
        highest: SEALED,
        run: RUN,
        nonce: [0; 32],
    };
    let first = hello.encode();
    stream.write_all(&first).unwrap();
    let mut answer = [0; Welcome::BYTES + 32];
    stream.read_exact(&mut answer).unwrap();
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&KEY.0).unwrap();
    for message in [&b"client"[..], &first, &answer] {
        mac.update(message);
    }
    stream.write_all(&mac.finalize().into_bytes()).unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.len() <= 1, "a verdict at most");
    assert_eq!(ends.server.counts().streams, 0);
}

#[test]
fn a_link_is_measured_as_it_is_used() {
    let ends = Ends::by(Limits::default(), ContentTransport::Sealed);
    let probe = LinkProbe {
        streams: 2,
        time: Duration::from_millis(300),
        most: 8 << 20,
        timeout: Duration::from_secs(10),
    };
    assert!(ends.client.rate(&probe).unwrap() > 1 << 20);
    let mut line = ends.client.line(&Control::default()).unwrap();
    let why = ends.client.call_on(&mut line, b"what", &Control::default());
    assert!(why.unwrap_err().failure.message.contains("refused"));
}
