//! Strangers that hold connections and send nothing.

use crate::common::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tarn_data_plane::{DataClient, DataClientTimeouts, Limits};

/// A crowd that is there when this returns, and in which there is always somebody new until it is dropped.
struct Crowd {
    end: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

fn crowd(at: SocketAddr, size: usize) -> Crowd {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum;
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
    let mut held: Vec<TcpStream> = (0..size).map(|_| TcpStream::connect(at).unwrap()).collect();
    let end = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&end);
    let thread = std::thread::spawn(move || {
        for n in (0..size).cycle() {
            if ends.load(Ordering::Relaxed) {
                return;
            }
            if let Ok(socket) = TcpStream::connect(at) {
                held[n] = socket;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let thread = Some(thread);
    Crowd { end, thread }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        self.thread.take().map(std::thread::JoinHandle::join);
    }
}

#[test]
fn a_transfer_goes_on_while_a_thousand_strangers_are_silent() {
    let ends = Ends::new();
    ends.write("large", &bytes(40 << 20, 1));
    for n in 0..300 {
        ends.write(&format!("small/{n}"), &bytes(20_000 + n, n as u8));
    }
    let _crowd = crowd(ends.server.address(), 1000);
    // Without places of its own a peer would wait for all of them to be given up: 5 s for every 128.
    let patient = Arc::new(DataClient {
        timeout: DataClientTimeouts {
            crowded: Duration::from_secs(10),
            ..DataClientTimeouts::default()
        },
        ..client_of(&ends.server)
    });
    copy(&job(vec![remote(&patient, ends.manifest())], &ends.to)).unwrap();
    assert_eq!(model(&ends.to), model(&ends.from));
    let there = ends.server.connections();
    assert!(there < 200, "{there} connections");
}

#[test]
fn strangers_leave_proven_streams_alone() {
    let ends = Ends::with(Limits {
        streams: 3,
        streams_of_one: 3,
        ..Limits::default()
    });
    ends.write("f", b"f");
    let tree = ends.client.tree(tree());
    let control = tarn_ports::Control::default();
    let open = || tarn_ports::PeerTree::open(&tree, &control).unwrap();
    let mut streams: Vec<_> = (0..3).map(|_| open()).collect();
    let _crowd = crowd(ends.server.address(), 300);
    for stream in &mut streams {
        let piece = tarn_ports::Piece {
            path: b"f",
            offset: 0,
            len: 1,
        };
        stream.ask(&[piece]).unwrap();
        stream.read(&mut [0]).unwrap();
    }
    // All places are taken by those that have proven themselves: that is another answer than silence.
    let hasty = DataClient {
        timeout: DataClientTimeouts {
            busy: Duration::ZERO,
            ..DataClientTimeouts::default()
        },
        ..client_of(&ends.server)
    };
    let hasty = Arc::new(hasty).tree(crate::common::tree());
    let why = tarn_ports::PeerTree::open(&hasty, &control).err().unwrap();
    assert!(why.failure.message.contains("busy"), "{why}");
}
