//! Errors in the middle of a transfer.

use crate::common::*;
use crate::strangers::until;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tarn_data_plane::{DataClient, DataClientTimeouts, Limits};
use tarn_mover::Trees;
use tarn_ports::{Control, Mover};
use tarn_types::event::RunErrorKind;

/// The behaviour of a wire after its first bytes towards the client.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    Cuts,
    IsSilent,
    Flips,
}

/// Lets `left` bytes through to the client, over all connections, and then does as `then` says.
fn forward(mut server: TcpStream, mut client: TcpStream, left: &AtomicI64, then: Then) {
    let mut buffer = vec![0; 32 << 10];
    while let Ok(n @ 1..) = server.read(&mut buffer) {
        let before = left.fetch_sub(n as i64, Ordering::Relaxed);
        if before < n as i64 {
            match then {
                Then::Cuts => break,
                Then::IsSilent => continue,
                Then::Flips if before > 0 => buffer[n - 1] ^= 0x40,
                Then::Flips => {}
            }
        }
        if client.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

fn through(ends: &Ends, good: i64, then: Then, stall: Duration) -> Arc<DataClient> {
    let left = AtomicI64::new(good);
    let back = move |server, client| forward(server, client, &left, then);
    Arc::new(DataClient {
        address: wire(ends.server.address(), back),
        timeout: DataClientTimeouts {
            stall,
            ..DataClientTimeouts::default()
        },
        ..client_of(&ends.server)
    })
}

fn large_and_small(ends: &Ends) {
    ends.write("a-large", &bytes(48 << 20, 1));
    for n in 0..500 {
        ends.write(&format!("small/{n}"), &bytes(20_000 + n, n as u8));
    }
}

#[test]
fn a_cut_connection_is_resumed_and_nothing_proven_is_sent_twice() {
    let ends = Ends::new();
    large_and_small(&ends);
    let whole = ends.manifest().bytes();
    let client = through(&ends, 38 << 20, Then::Cuts, Duration::from_secs(5));
    let mut cut = job(vec![remote(&client, ends.manifest())], &ends.to);
    let error = copy(&cut).unwrap_err();
    assert_eq!(error.failure.kind, RunErrorKind::Io, "{error}");
    assert!(
        error.failure.message.contains("n1") && !ends.to.exists(),
        "{error}"
    );
    // Bytes on their way to the peer that was cut are counted when that connection has ended.
    until(|| ends.server.connections() == 0);
    let sent_before = ends.server.counts().bytes;
    cut.sources = vec![remote(&ends.client, ends.manifest())];
    let report = copy(&cut).unwrap();
    assert_eq!(report.bytes + report.resumed, whole);
    assert!(report.resumed >= 8 << 20, "{}", report.resumed);
    // The second attempt requested the missing bytes, and no others.
    assert_eq!(ends.server.counts().bytes - sent_before, report.bytes);
    assert_eq!(model(&ends.to), model(&ends.from));
    assert!(clean(&cut));
}

#[test]
fn a_silent_peer_costs_its_patience_and_no_more() {
    let ends = Ends::new();
    large_and_small(&ends);
    let client = through(&ends, 5 << 20, Then::IsSilent, Duration::from_millis(400));
    let start = Instant::now();
    let error = copy(&job(vec![remote(&client, ends.manifest())], &ends.to)).unwrap_err();
    assert_eq!(error.failure.kind, RunErrorKind::Io);
    assert!(error.failure.message.contains("silent"), "{error}");
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn a_cancelled_copy_ends_at_once_though_the_peer_is_silent() {
    let ends = Ends::new();
    large_and_small(&ends);
    let client = through(&ends, 5 << 20, Then::IsSilent, Duration::from_secs(60));
    let job = job(vec![remote(&client, ends.manifest())], &ends.to);
    let control = Control::default();
    let (error, start) = std::thread::scope(|scope| {
        let copying = scope.spawn(|| Trees::new().copy(&job, &control));
        while control.done.load(Ordering::Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        control.cancel.store(true, Ordering::Relaxed);
        let start = Instant::now();
        (copying.join().unwrap().unwrap_err(), start)
    });
    assert_eq!(error.failure.kind, RunErrorKind::Cancelled);
    // Long before its timeout ends, on a machine with much else to do too.
    assert!(
        start.elapsed() < Duration::from_secs(50),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn a_flipped_bit_is_found() {
    let ends = Ends::new();
    ends.write("f", &bytes(12 << 20, 1));
    let client = through(&ends, 7 << 20, Then::Flips, Duration::from_secs(5));
    let job = job(vec![remote(&client, ends.manifest())], &ends.to);
    let error = copy(&job).unwrap_err();
    assert_eq!(error.failure.kind, RunErrorKind::Corrupt, "{error}");
    assert!(error.failure.message.contains("n1:key/f"), "{error}");
    // Nothing of it can be trusted.
    assert!(clean(&job) && !ends.to.exists());
}

#[test]
fn a_file_that_shrank_vanished_or_was_replaced() {
    for size in [3000, 3 << 20, 30 << 20] {
        let ends = Ends::new();
        ends.write("f", &bytes(size, 1));
        ends.write("g", b"g");
        let job = ends.job();
        let f = ends.from.join("f");
        std::fs::File::options()
            .write(true)
            .open(&f)
            .unwrap()
            .set_len(size as u64 - 1)
            .unwrap();
        let error = copy(&job).unwrap_err();
        assert_eq!(error.failure.kind, RunErrorKind::SourceChanged, "{error}");
        assert!(error.failure.message.contains("shorter"), "{error}");
        std::fs::remove_file(&f).unwrap();
        let error = copy(&job).unwrap_err();
        assert_eq!(error.failure.kind, RunErrorKind::SourceChanged, "{error}");
        for replace in [true, false] {
            let secret = ends.dir.path().join("secret");
            std::fs::write(&secret, bytes(size, 1)).unwrap();
            match replace {
                true => std::os::unix::fs::symlink(&secret, &f).unwrap(),
                false => std::fs::create_dir(&f).unwrap(),
            }
            let error = copy(&job).unwrap_err();
            assert!(error.failure.message.contains("may not be read"), "{error}");
            if replace {
                std::fs::remove_file(&f).unwrap();
            }
        }
        std::fs::remove_dir(&f).unwrap();
        // The same length, another content.
        std::fs::write(&f, bytes(size, 2)).unwrap();
        assert_eq!(copy(&job).unwrap_err().failure.kind, RunErrorKind::Corrupt);
        assert!(!ends.to.exists());
    }
}

#[test]
fn a_full_server_says_so_and_everybody_gets_a_turn() {
    let ends = Ends::with(Limits {
        streams: 2,
        ..Limits::default()
    });
    large_and_small(&ends);
    let patient = Arc::new(DataClient {
        timeout: DataClientTimeouts {
            // All four of them, on a machine that has much else to do.
            busy: Duration::from_secs(300),
            ..DataClientTimeouts::default()
        },
        ..client_of(&ends.server)
    });
    let manifest = ends.manifest();
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for n in 0..4 {
            let (client, manifest, done) = (&patient, manifest.clone(), &done);
            let to = ends.dir.path().join(format!("to{n}"));
            scope.spawn(move || {
                copy(&job(vec![remote(client, manifest)], &to)).unwrap();
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(done.into_inner(), 4);
    // With no timeout for it, it is an error with its reason.
    let hasty = DataClient {
        timeout: DataClientTimeouts {
            busy: Duration::ZERO,
            ..DataClientTimeouts::default()
        },
        ..client_of(&ends.server)
    };
    let hold: Vec<_> = (0..2).map(|_| ends.client.tree(tree())).collect();
    let control = Control::default();
    let held: Vec<_> = hold
        .iter()
        .map(|t| tarn_ports::PeerTree::open(t, &control).unwrap())
        .collect();
    let error = copy(&job(vec![remote(&Arc::new(hasty), manifest)], &ends.to)).unwrap_err();
    assert!(error.failure.message.contains("busy"), "{error}");
    drop(held);
}

#[test]
fn a_server_that_ends_leaves_no_thread_and_clients_an_error() {
    let ends = Ends::new();
    large_and_small(&ends);
    let manifest = ends.manifest();
    let Ends {
        server,
        client,
        to,
        dir,
        ..
    } = ends;
    let control = Control::default();
    let tree = client.tree(tree());
    let stream = tarn_ports::PeerTree::open(&tree, &control).unwrap();
    assert_eq!(server.connections(), 1);
    drop(server);
    drop(stream);
    let error = copy(&job(vec![remote(&client, manifest)], &to)).unwrap_err();
    assert!(
        error.failure.message.contains("cannot be reached"),
        "{error}"
    );
    drop(dir);
}
