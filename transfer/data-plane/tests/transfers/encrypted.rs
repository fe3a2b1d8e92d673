//! Trees whose files are sealed: they cross as they are stored, and are opened, kept sealed, resumed, or refused where they
//! arrive.

use crate::common::*;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tarn_data_plane::{Arriving, ContentTransport, DataClient, DataServer, Limits};
use tarn_mover::Trees;
use tarn_ports::{Arrivals, Control, CopyJob, Mover};
use tarn_types::event::RunErrorKind;
use tarn_types::key::{DataKey, KeyId};
use tarn_types::manifest::Manifest;
use tarn_types::part::Verify;

/// Sizes around every border: nothing, a piece, a chunk, the work of one thread, the work that threads share.
const SIZES: &[usize] = &[
    0,
    1,
    131_071,
    131_072,
    131_073,
    1 << 20,
    (3 << 20) + 5,
    (19 << 20) + 77,
];

fn key(of: u8) -> Arc<DataKey> {
    Arc::new(DataKey::new(KeyId([of; 16]), [of ^ 0x5a; 32].into()))
}

/// A tree in the clear, the same tree sealed, and a node that serves that.
struct Vault {
    dir: tempfile::TempDir,
    manifest: Manifest,
    server: DataServer,
    client: Arc<DataClient>,
}

impl Vault {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let plain = dir.path().join("plain");
        std::fs::create_dir_all(plain.join("d")).unwrap();
        for (n, size) in SIZES.iter().enumerate() {
            std::fs::write(plain.join(format!("d/f{n}")), bytes(*size, n as u8)).unwrap();
        }
        for n in 0..200 {
            std::fs::write(plain.join(format!("small{n}")), bytes(n * 13, n as u8)).unwrap();
        }
        let holes = std::fs::File::create(plain.join("holes")).unwrap();
        holes.set_len(5 << 20).unwrap();
        holes.write_all_at(b"here", (3 << 20) + 77).unwrap();
        std::fs::hard_link(plain.join("d/f7"), plain.join("again")).unwrap();
        std::os::unix::fs::symlink("d/f0", plain.join("link")).unwrap();
        let sealed = dir.path().join("sealed");
        seal(&plain, &sealed);
        let (server, client) = serve(&sealed);
        let manifest = digest(&plain);
        Self {
            dir,
            manifest,
            server,
            client,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// To a tree that is sealed, or in the clear.
    fn job(&self, to: &str, sealed: bool) -> CopyJob {
        self.from(&self.client, to, sealed)
    }

    fn from(&self, client: &Arc<DataClient>, to: &str, sealed: bool) -> CopyJob {
        let mut source = remote(client, self.manifest.clone());
        source.sealed = Some(key(1));
        CopyJob {
            seal: sealed.then(|| key(1)),
            ..job(vec![source], &self.at(to))
        }
    }

    #[track_caller]
    fn opens(&self, sealed: &str) {
        let there = Trees::new().digest_sealed(&self.at(sealed), &key(1), &Control::default());
        assert_eq!(there.unwrap().hash(), self.manifest.hash(), "{sealed}");
    }
}

fn seal(plain: &Path, sealed: &Path) {
    let job = CopyJob {
        seal: Some(key(1)),
        ..job(vec![local(plain)], sealed)
    };
    copy(&job).unwrap();
}

fn serve(sealed: &Path) -> (DataServer, Arc<DataClient>) {
    let replica_registry = replica_registry();
    replica_registry.offer(&RUN, tree(), sealed).unwrap();
    let server = DataServer::start(
        "127.0.0.1:0",
        replica_registry,
        Limits::default(),
        ContentTransport::Clear,
    )
    .unwrap();
    let client = Arc::new(client_of(&server));
    (server, client)
}

#[test]
fn a_sealed_tree_crosses_as_it_lies_and_is_opened_where_it_is_to_be_clear() {
    let vault = Vault::new();
    for verify in [Verify::None, Verify::Readback] {
        let with = |job: CopyJob| CopyJob { verify, ..job };
        let (kept, open) = (format!("kept{verify:?}"), format!("open{verify:?}"));
        let report = copy(&with(vault.job(&kept, true))).unwrap();
        assert_eq!(report.manifests[0].hash(), vault.manifest.hash());
        vault.opens(&kept);
        // A file larger than a piece is the same file, salt and all.
        let read = |d: &str| std::fs::read(vault.at(d).join("d/f7")).unwrap();
        assert!(read("sealed") == read(&kept));
        let before = vault.server.counts().bytes;
        copy(&with(vault.job(&open, false))).unwrap();
        // Files of several names once, nothing twice: headers and proofs on top of the content.
        let sent = vault.server.counts().bytes - before;
        let content = vault.manifest.bytes();
        assert!(
            (content..content + content / 100).contains(&sent),
            "{sent} of {content}"
        );
        let clear = digest(&vault.at(&open));
        assert_eq!(clear.hash(), vault.manifest.hash());
    }
}

#[test]
fn a_sealed_tree_is_served_onward_while_it_arrives() {
    let vault = Vault::new();
    let hop = || {
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
        (arriving, server, client)
    };
    // The first hop seals what it reads of a source in the clear, as the first node does.
    let hops = [hop(), hop()];
    let plain = vault.at("plain");
    std::thread::scope(|scope| {
        for n in (0..3).rev() {
            let to = format!("to{n}");
            let mut job = match n {
                0 => CopyJob {
                    seal: Some(key(1)),
                    ..job(vec![local(&plain)], &vault.at(&to))
                },
                n => vault.from(&hops[n - 1].2, &to, n < 2),
            };
            let arrivals = hops.get(n).map(|h| Arc::clone(&h.0));
            job.arrivals = arrivals.map(|a| a as Arc<dyn Arrivals>);
            scope.spawn(move || {
                let control = Control::default();
                Trees::new().with_threads(2).copy(&job, &control).unwrap();
            });
            std::thread::sleep(std::time::Duration::from_millis(30));
        }
    });
    vault.opens("to0");
    vault.opens("to1");
    assert_eq!(digest(&vault.at("to2")).hash(), vault.manifest.hash());
}

#[test]
fn a_tree_in_the_clear_is_sealed_where_it_arrives() {
    let vault = Vault::new();
    let (_server, client) = serve(&vault.at("plain"));
    let job = || {
        let mut job = vault.from(&client, "to", true);
        job.sources[0].sealed = None;
        job
    };
    copy(&job()).unwrap();
    vault.opens("to");
    std::fs::remove_dir_all(vault.at("to")).unwrap();
    for after in [200_000, 12 << 20] {
        broken_off(job(), after);
        copy(&job()).unwrap();
        vault.opens("to");
        std::fs::remove_dir_all(vault.at("to")).unwrap();
    }
}

/// Cancels a copy once so many bytes have gone.
#[derive(Debug)]
struct Cut(Arc<Control>, AtomicU64, u64);

impl Arrivals for Cut {
    fn growing(&self, _: &Path) {}
    fn arrived(&self, _: &[u8], _: u64, len: u64) {
        if self.1.fetch_add(len, Ordering::Relaxed) > self.2 {
            self.0.cancel.store(true, Ordering::Relaxed);
        }
    }
    fn ended(&self, _: bool) {}
}

/// Begins a copy and breaks it off after so many bytes.
fn broken_off(mut job: CopyJob, after: u64) {
    let control = Arc::new(Control::default());
    job.arrivals = Some(Arc::new(Cut(
        Arc::clone(&control),
        AtomicU64::new(0),
        after,
    )));
    let broken = Trees::new().with_threads(2).copy(&job, &control);
    assert_eq!(broken.unwrap_err().failure.kind, RunErrorKind::Cancelled);
    assert!(!job.dest.exists() && job.staging.exists());
}

#[test]
fn a_copy_that_was_broken_off_goes_on_or_begins_a_file_anew() {
    let vault = Vault::new();
    for sealed in [true, false] {
        for after in [200_000, 12 << 20] {
            let to = format!("to-{sealed}-{after}");
            broken_off(vault.job(&to, sealed), after);
            let report = copy(&vault.job(&to, sealed)).unwrap();
            // So few bytes may all be of files and chunks of which the rest had not come.
            assert!(report.resumed > 0 || after < 1 << 20, "{to}");
            match sealed {
                true => vault.opens(&to),
                false => assert_eq!(digest(&vault.at(&to)).hash(), vault.manifest.hash()),
            }
            // Another node has the same content under salts of its own.
            let other = format!("other-{to}");
            seal(&vault.at("plain"), &vault.at(&other));
            let (_server, client) = serve(&vault.at(&other));
            let moved = format!("moved-{to}");
            broken_off(vault.job(&moved, sealed), after);
            copy(&vault.from(&client, &moved, sealed)).unwrap();
            match sealed {
                true => vault.opens(&moved),
                false => assert_eq!(digest(&vault.at(&moved)).hash(), vault.manifest.hash()),
            }
            for name in [to, other, moved] {
                std::fs::remove_dir_all(vault.at(&name)).unwrap();
            }
        }
    }
}

#[test]
fn what_a_peer_has_changed_is_refused_whole() {
    let vault = Vault::new();
    let sealed = |name: &str| vault.at("sealed").join(name);
    let original = std::fs::read(sealed("d/f7")).unwrap();
    let small = std::fs::read(sealed("small9")).unwrap();
    let mut damaged: Vec<(&str, Vec<u8>)> = Vec::new();
    for at in [3, 60, 70, original.len() - 1] {
        let mut bytes = original.clone();
        bytes[at] ^= 1;
        damaged.push(("d/f7", bytes));
    }
    damaged.push(("d/f7", original[..original.len() - 1].to_vec()));
    damaged.push(("small9", std::fs::read(sealed("small10")).unwrap()));
    damaged.push((
        "d/f0",
        vec![0; std::fs::read(sealed("d/f0")).unwrap().len()],
    ));
    for (name, bytes) in damaged {
        let kept = std::fs::read(sealed(name)).unwrap();
        std::fs::write(sealed(name), bytes).unwrap();
        for to_sealed in [true, false] {
            let job = vault.job("to", to_sealed);
            let error = copy(&job).unwrap_err();
            // A file that is shorter than it was promised has changed; that is damage, too.
            let kinds = [RunErrorKind::Corrupt, RunErrorKind::SourceChanged];
            assert!(kinds.contains(&error.failure.kind), "{name}: {error}");
            assert_eq!(error.tree, Some(0), "{name}: {error}");
            assert!(!job.dest.exists() && clean(&job), "{name}");
        }
        std::fs::write(sealed(name), kept).unwrap();
    }
    assert!(std::fs::read(sealed("small9")).unwrap() == small);
    // Nor is anything taken with another key, nor is sealed content taken for content in clear.
    let mut other = vault.job("to", true);
    other.sources[0].sealed = Some(key(2));
    other.seal = Some(key(2));
    assert_eq!(
        copy(&other).unwrap_err().failure.kind,
        RunErrorKind::Corrupt
    );
    let mut none = vault.job("to", true);
    none.sources[0].sealed = None;
    assert_eq!(copy(&none).unwrap_err().failure.kind, RunErrorKind::Corrupt);
}
