//! Links are measured.

use crate::common::*;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tarn_data_plane::{DataClient, LinkProbe, Tree};
use tarn_ports::{Control, PeerTree, Piece};
use tarn_types::event::RunErrorKind;

const SHORT: LinkProbe = LinkProbe {
    streams: 4,
    time: Duration::from_millis(200),
    most: 256 << 20,
    timeout: Duration::from_secs(5),
};

/// So many bytes a second come back, over all connections; with 0 none do.
fn limited(mut server: TcpStream, mut client: TcpStream, free: &Mutex<Instant>, rate: u64) {
    // Of a handshake, which is never held back.
    let mut head = 75;
    let mut buffer = vec![0; 16 << 10];
    while let Ok(n @ 1..) = server.read(&mut buffer) {
        if head < n && rate == 0 {
            continue;
        }
        let held = Duration::from_secs_f64(n.saturating_sub(head) as f64 / rate.max(1) as f64);
        head = head.saturating_sub(n);
        let until = {
            let mut free = free.lock().unwrap();
            *free = (*free).max(Instant::now()) + held;
            *free
        };
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        if client.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

fn through(ends: &Ends, rate: u64) -> DataClient {
    let free = Mutex::new(Instant::now());
    let back = move |server, client| limited(server, client, &free, rate);
    DataClient {
        address: wire(ends.server.address(), back),
        ..client_of(&ends.server)
    }
}

#[test]
fn the_rate_of_a_wire_is_found() {
    let ends = Ends::new();
    for rate in [2_000_000, 8_000_000] {
        // A machine that is busy with other things makes a wire slower, never faster.
        let mut found = Vec::new();
        let is_found = (0..8).any(|_| {
            let began = Instant::now();
            let rate_found = through(&ends, rate).rate(&SHORT).unwrap();
            let share = rate_found as f64 / rate as f64;
            assert!(share < 1.3, "{rate_found} of {rate}");
            found.push((rate_found, began.elapsed()));
            share > 0.7 && began.elapsed() < Duration::from_secs(2)
        });
        assert!(is_found, "{found:?} of {rate}");
    }
}

#[test]
fn a_probe_of_a_fast_link_ends_with_its_bytes() {
    let ends = Ends::new();
    let probe = LinkProbe {
        time: Duration::from_secs(30),
        most: 16 << 20,
        ..SHORT
    };
    let began = Instant::now();
    let rate = ends.client.rate(&probe).unwrap();
    // Its time would be over by then.
    assert!(began.elapsed() < Duration::from_secs(25), "{rate}");
    // All requested bytes, but for those counted a moment later: each of four streams has its share, no more than two pieces
    // of 4 MiB ahead.
    let sent = ends.server.counts();
    assert!(
        (8 << 20..=48 << 20).contains(&sent.bytes),
        "{} bytes",
        sent.bytes
    );
    assert_eq!((sent.refused, sent.windows), (0, 0));
    assert!(rate > 1_000_000, "{rate}");
}

#[test]
fn who_does_not_answer_is_not_measured() {
    let ends = Ends::new();
    let hasty = LinkProbe {
        timeout: Duration::from_millis(300),
        ..SHORT
    };
    let began = Instant::now();
    let error = through(&ends, 0).rate(&hasty).unwrap_err();
    assert!(
        error.failure.message.contains("n1") && error.failure.message.contains("is not measured"),
        "{error}"
    );
    assert!(began.elapsed() < Duration::from_secs(60));
    let stranger = DataClient {
        run: [1; 16],
        ..client_of(&ends.server)
    };
    assert_eq!(
        stranger.rate(&SHORT).unwrap_err().failure.kind,
        RunErrorKind::Io,
        "the key is asked of who measures too"
    );
    let gone = DataClient {
        address: TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap(),
        ..client_of(&ends.server)
    };
    let error = gone.rate(&SHORT).unwrap_err();
    assert!(
        error.failure.message.contains("cannot be reached"),
        "{error}"
    );
    // No more is sent at a time than of any piece.
    let control = Control::default();
    let tree = ends.client.tree(Tree::Probe);
    let mut stream = tree.open(&control).unwrap();
    let long = Piece {
        path: b"any",
        offset: 7,
        len: 1 << 30,
    };
    stream.ask(&[long]).unwrap();
    let error = stream.read(&mut [0; 8]).unwrap_err();
    assert!(error.failure.message.contains("at a time"), "{error}");
}
