//! A tree is served onward while it arrives.

use crate::common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tarn_data_plane::{
    Arriving, ContentTransport, DataClient, DataClientTimeouts, DataServer, Limits,
};
use tarn_mover::Trees;
use tarn_ports::{Arrivals, Control, Mover};
use tarn_types::event::RunErrorKind;

/// A node that copies from `source` and serves what it has of it.
struct Hop {
    arriving: Arc<Arriving>,
    server: DataServer,
    client: Arc<DataClient>,
}

fn hop() -> Hop {
    let arriving = Arc::new(Arriving::new());
    let replica_registry = replica_registry();
    replica_registry.offer_arriving(&RUN, tree(), Arc::clone(&arriving));
    let server = DataServer::start(
        "127.0.0.1:0",
        replica_registry,
        Limits::default(),
        ContentTransport::Clear,
    )
    .unwrap();
    let client = Arc::new(client_of(&server));
    Hop {
        arriving,
        server,
        client,
    }
}

fn fill(ends: &Ends) {
    ends.write("large", &bytes(40 << 20, 1));
    ends.write("empty", b"");
    for n in 0..300 {
        ends.write(&format!("d/{n}"), &bytes(n * 100, n as u8));
    }
    std::fs::hard_link(ends.from.join("large"), ends.from.join("z-again")).unwrap();
}

#[test]
fn three_nodes_receive_at_the_same_time_and_the_source_sends_once() {
    let ends = Ends::new();
    fill(&ends);
    let manifest = ends.manifest();
    let hops = [hop(), hop()];
    let mut clients = vec![Arc::clone(&ends.client)];
    clients.extend(hops.iter().map(|h| Arc::clone(&h.client)));
    let destinations: Vec<_> = (0..3)
        .map(|n| ends.dir.path().join(format!("to{n}")))
        .collect();
    // The last begins first: it waits for the one before it, which waits for the first.
    std::thread::scope(|scope| {
        for n in (0..3).rev() {
            let mut job = job(
                vec![remote(&clients[n], manifest.clone())],
                &destinations[n],
            );
            job.arrivals = hops
                .get(n)
                .map(|h| Arc::clone(&h.arriving) as Arc<dyn Arrivals>);
            scope.spawn(move || {
                let control = Control::default();
                Trees::new().with_threads(2).copy(&job, &control).unwrap();
            });
            std::thread::sleep(Duration::from_millis(30));
        }
    });
    for to in &destinations {
        assert_eq!(model(to), model(&ends.from));
    }
    assert_eq!(ends.server.counts().bytes, manifest.bytes());
    for hop in &hops {
        assert_eq!(hop.server.counts().bytes, manifest.bytes());
    }
    // Published and whole, it is served as before.
    let late = job(vec![remote(&hops[1].client, manifest)], &ends.to);
    copy(&late).unwrap();
    assert_eq!(model(&ends.to), model(&ends.from));
}

/// Notes how much had arrived downstream before the copy upstream was over.
#[derive(Debug, Default)]
struct Gate {
    open: std::sync::Mutex<bool>,
    changed: std::sync::Condvar,
    held: AtomicU64,
}

/// Passes arrivals on, and holds the copy after the first stretch until the gate is opened.
#[derive(Debug)]
struct Held(Arc<Arriving>, Arc<Gate>);

impl Arrivals for Held {
    fn growing(&self, staging: &std::path::Path) {
        self.0.growing(staging);
    }
    fn arrived(&self, path: &[u8], offset: u64, len: u64) {
        self.0.arrived(path, offset, len);
        if self.1.held.fetch_add(1, Ordering::Relaxed) == 0 {
            let gate = self.1.open.lock().unwrap();
            drop(self.1.changed.wait_while(gate, |open| !*open).unwrap());
        }
    }
    fn ended(&self, whole: bool) {
        self.0.ended(whole);
    }
}

#[test]
fn what_has_arrived_is_served_before_the_rest_is_there() {
    let ends = Ends::new();
    ends.write("large", &bytes(40 << 20, 1));
    let manifest = ends.manifest();
    let hop = hop();
    let gate = Arc::new(Gate::default());
    let mut first = job(
        vec![remote(&ends.client, manifest.clone())],
        &ends.dir.path().join("first"),
    );
    let second = job(vec![remote(&hop.client, manifest)], &ends.to);
    let control = Control::default();
    let (control, second) = (&control, &second);
    std::thread::scope(|scope| {
        let arrivals: Arc<dyn Arrivals> =
            Arc::new(Held(Arc::clone(&hop.arriving), Arc::clone(&gate)));
        scope.spawn(move || {
            first.arrivals = Some(arrivals);
            let control = Control::default();
            Trees::new().with_threads(1).copy(&first, &control).unwrap();
        });
        let copying =
            scope.spawn(move || Trees::new().with_threads(1).copy(second, control).map(drop));
        // One MiB is through, of 40; the first copy is held in its middle.
        while control.done.load(Ordering::Relaxed) < 1 << 20 {
            std::thread::sleep(Duration::from_millis(5));
            assert!(!copying.is_finished());
        }
        assert!(!second.dest.exists());
        *gate.open.lock().unwrap() = true;
        gate.changed.notify_all();
        copying.join().unwrap().unwrap();
    });
    assert_eq!(model(&ends.to), model(&ends.from));
}

#[test]
fn a_copy_that_fails_upstream_fails_downstream() {
    let ends = Ends::new();
    fill(&ends);
    let manifest = ends.manifest();
    let hop = hop();
    let downstream = job(vec![remote(&hop.client, manifest)], &ends.to);
    let error = std::thread::scope(|scope| {
        let copying = scope.spawn(|| copy(&downstream).unwrap_err());
        std::thread::sleep(Duration::from_millis(50));
        hop.arriving.growing(&ends.from);
        hop.arriving.ended(false);
        copying.join().unwrap()
    });
    // The error does not name the first copy's source.
    assert_eq!(error.failure.kind, RunErrorKind::Io, "{error}");
    assert!(error.failure.message.contains("has failed"), "{error}");
}

#[test]
fn who_waits_for_what_never_comes_gives_up() {
    let ends = Ends::new();
    ends.write("f", b"f");
    let hop = hop();
    let impatient = DataClient {
        timeout: DataClientTimeouts {
            arrival: Duration::from_millis(100),
            ..DataClientTimeouts::default()
        },
        ..client_of(&hop.server)
    };
    let error = copy(&job(
        vec![remote(&Arc::new(impatient), ends.manifest())],
        &ends.to,
    ))
    .unwrap_err();
    assert!(error.failure.message.contains("not arrived"), "{error}");
}
