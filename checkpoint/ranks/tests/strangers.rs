//! Peers that have no business on the sockets of a program.

mod common;

use common::{LONG, all, far_program, folder, free_port, here, program, round, there};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use tarn_ports::Ranks;
use tarn_ranks::{Meeting, Options};

/// Sends something to the listener, and reads until the connection ends.
fn send(mut stream: impl Read + Write, what: &[u8]) -> Vec<u8> {
    // It may be closed before all is sent.
    let _ = stream.write_all(what);
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    reply
}

fn unix(folder: &Path, rank: u32) -> UnixStream {
    let mut stream = None;
    common::until("it listens", || {
        stream = UnixStream::connect(folder.join(format!("{rank}.sock"))).ok();
        stream.is_some()
    });
    let stream = stream.unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// The version of this protocol.
const VERSION: u16 = 3;

fn hello(version: u16) -> Vec<u8> {
    [b"TARNRANK", &version.to_le_bytes()[..], &[9; 32]].concat()
}

#[test]
fn garbage_ends_its_connection_and_nothing_else() {
    let folder = folder();
    let ranks = program(folder.path(), 3);
    let garbage = [
        vec![0; 100],
        vec![0xff; 100_000],
        b"GET / HTTP/1.1\r\n\r\n".repeat(10),
        // A handshake with a proof of nothing.
        [hello(VERSION), vec![1; 32]].concat(),
    ];
    for what in &garbage {
        for rank in 0..3 {
            let reply = send(unix(folder.path(), rank), what);
            assert!(reply.len() <= 42 + 32, "{reply:?}");
        }
    }
    // Of another version: it gets this version.
    let reply = send(unix(folder.path(), 1), &hello(VERSION + 1));
    assert_eq!(reply[..10], hello(VERSION)[..10]);
    // Mute ones and such that go at once.
    let mute: Vec<_> = (0..300).map(|n| unix(folder.path(), n % 3)).collect();
    assert_eq!(round(&ranks, "rank")[2], ["rank 0", "rank 1", "rank 2"]);
    ranks[2].grant(0, 1, 1, LONG).unwrap_err();
    drop(mute);
}

/// A client that knows no key but the one of a program on a single node, which is none.
mod proven {
    use super::*;
    use hmac::{Hmac, KeyInit, Mac};
    use sha2::Sha256;

    fn proof(who: &[u8], sent: &[u8]) -> Vec<u8> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&[0; 32]).unwrap();
        mac.update(who);
        mac.update(sent);
        mac.finalize().into_bytes().to_vec()
    }

    /// Comes in with a greeting, and sends more.
    pub(crate) fn send(folder: &Path, rank: u32, greeting: &[u8], more: &[u8]) -> Vec<u8> {
        let mut stream = unix(folder, rank);
        stream.write_all(&hello(VERSION)).unwrap();
        let mut theirs = [0; 42 + 32];
        stream.read_exact(&mut theirs).unwrap();
        let sent = [&hello(VERSION)[..], &theirs[..42]].concat();
        assert_eq!(theirs[42..], proof(b"server", &sent));
        let answer = proof(b"client", &[&sent[..], &theirs[42..]].concat());
        super::send(stream, &[&answer, greeting, more].concat())
    }
}

fn greeting(role: u8, rank: u32, ranks: u32) -> Vec<u8> {
    let mut out = vec![role];
    out.extend([0; 16]);
    for n in [rank, ranks, 1] {
        out.extend(n.to_le_bytes());
    }
    out
}

#[test]
fn who_is_of_no_meeting_is_refused_by_every_rank() {
    let folder = folder();
    let ranks = program(folder.path(), 2);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let reply = text(proven::send(folder.path(), 1, &greeting(2, 0, 2), b""));
    assert!(
        reply.contains("another program, or of its last start"),
        "{reply:?}"
    );
    // Only rank 0 has members.
    let reply = text(proven::send(folder.path(), 1, &greeting(1, 0, 2), b""));
    assert!(reply.contains("another program"), "{reply:?}");
    let reply = text(proven::send(folder.path(), 0, &greeting(1, 1, 2), b""));
    assert!(reply.contains("is its rank 1"), "{reply:?}");
    let reply = text(proven::send(folder.path(), 0, &greeting(1, 7, 2), b""));
    assert!(reply.contains("no 7"), "{reply:?}");
    assert_eq!(proven::send(folder.path(), 0, &greeting(3, 1, 2), b""), b"");
    assert_eq!(round(&ranks, "rank")[1], ["rank 0", "rank 1"]);
}

#[test]
fn a_member_that_says_what_is_no_message_is_lost() {
    let frames: [&[u8]; 6] = [
        // No length, one that is too large, a kind that is none, a field too few, one too many, an exchange that is not the next.
        &[0; 4],
        &[0xff; 5],
        &[1, 0, 0, 0, 99],
        &[2, 0, 0, 0, 2, 0],
        &[2, 0, 0, 0, 4, 0],
        &[9, 0, 0, 0, 1, 5, 0, 0, 0, 0, 0, 0, 0],
    ];
    for frame in frames {
        let folder = folder();
        let options = here(folder.path(), 0, 2);
        let errors = all(vec![Some(options), None], |options| match options {
            Some(options) => Meeting::join(options).unwrap_err().to_string(),
            None => {
                proven::send(folder.path(), 0, &greeting(1, 1, 2), frame);
                String::new()
            }
        });
        assert_eq!(errors[0], "rank 1 is gone: it sent what is no message");
    }
}

#[test]
fn another_key_is_told_from_a_rank_that_does_not_come() {
    let folder = folder();
    let meet = free_port();
    let options = (0..2).map(|rank| there(folder.path(), &meet, rank, 2));
    let _far = all(options.collect(), |o| Meeting::join(o).unwrap());
    let _near = program(folder.path(), 2);
    let others = vec![
        there(&folder.path().join("other"), &meet, 1, 2),
        // On one node, where one has a key and the others have none.
        here(folder.path(), 2, 3),
    ];
    all(others, |options| {
        let options = Options {
            key: Some([8; 32]),
            ..options
        };
        let e = Meeting::join(options).unwrap_err().to_string();
        assert_eq!(e, "rank 0 refused: it has another key than this rank");
    });
}

#[test]
fn strangers_on_the_network_are_none_of_its_business() {
    let folder = folder();
    let meet = free_port();
    let options: Vec<_> = (0..3)
        .map(|rank| there(folder.path(), &meet, rank, 3))
        .collect();
    // As many as there may be, and mute, before all others.
    let ranks = all(options, |o| {
        let mute: Vec<TcpStream> = match o.rank {
            2 => {
                let connect = || TcpStream::connect(&meet);
                common::until("rank 0 listens", || connect().is_ok());
                (0..200).map(|_| connect().unwrap()).collect()
            }
            _ => Vec::new(),
        };
        (Meeting::join(o).unwrap(), mute)
    });
    let (ranks, mute): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
    send(TcpStream::connect(&meet).unwrap(), &[0; 1000]);
    assert_eq!(round(&ranks, "rank")[0], ["rank 0", "rank 1", "rank 2"]);
    drop(mute);
    drop(ranks);
    // The port is free at once.
    drop(far_program(folder.path(), 2));
    std::net::TcpListener::bind(&meet).unwrap();
}
