//! Content that is read from windows, by libfabric's providers that every machine has.

use crate::common::*;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tarn_data_plane::{
    ContentTransport, DataClient, DataClientTimeouts, DataServer, LIBRARY, Limits, Rma,
};
use tarn_ports::{Control, PeerTree, Piece};
use tarn_types::event::RunErrorKind;

/// The shim in a folder of this test; `None` where libfabric's headers are not installed.
pub(crate) fn library(folder: &Path) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut build = Command::new(root.join("scripts/shim.sh"));
    let built = build.arg(folder).status().unwrap();
    if built.code() == Some(3) {
        eprintln!("SKIPPED: no libfabric-dev");
        return None;
    }
    assert!(built.success());
    Some(folder.join(LIBRARY))
}

/// Two ends with an endpoint each, as two nodes have.
struct Both {
    ends: Ends,
    server: DataServer,
    client: Arc<DataClient>,
}

fn both(provider: &str) -> Option<Both> {
    let ends = Ends::new();
    let library = library(ends.dir.path())?;
    let [ours, theirs] =
        [(); 2].map(|()| ContentTransport::Windows(Rma::load(&library, provider).unwrap()));
    let at = "127.0.0.1:0";
    let server =
        DataServer::start(at, ends.replica_registry.clone(), Limits::default(), ours).unwrap();
    let client = DataClient {
        way: theirs,
        ..client_of(&server)
    };
    Some(Both {
        ends,
        server,
        client: Arc::new(client),
    })
}

fn a_tree_comes_through_windows(provider: &str) {
    let Some(both) = both(provider) else { return };
    let ends = &both.ends;
    ends.write("large", &bytes((24 << 20) + 4321, 1));
    ends.write("odd", &bytes((1 << 20) + 1, 2));
    for n in 0..50 {
        ends.write(&format!("small/{n}"), &bytes(60_000 + 500 * n, n as u8));
    }
    let job = job(vec![remote(&both.client, ends.manifest())], &ends.to);
    copy(&job).unwrap();
    assert_eq!(model(&ends.to), model(&ends.from));
    let counts = both.server.counts();
    assert!(
        counts.windows > 10 && counts.windows < counts.items,
        "{counts:?}"
    );
}

#[test]
fn a_tree_comes_through_windows_over_tcp() {
    a_tree_comes_through_windows("tcp;ofi_rxm");
}

#[test]
fn a_tree_comes_through_windows_of_shared_memory() {
    a_tree_comes_through_windows("shm");
    // The provider calls its files so; another test may have some.
    let own = format!("{}:", std::process::id());
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    let left = || {
        let names = std::fs::read_dir("/dev/shm").unwrap().map(name);
        names
            .filter(|n| n.to_string_lossy().starts_with(&own))
            .count()
    };
    let until = Instant::now() + Duration::from_secs(20);
    while left() > 0 {
        assert!(Instant::now() < until, "{} files", left());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn without_a_window_content_is_sent() {
    // Only one end has it.
    let Some(both) = both("tcp;ofi_rxm") else {
        return;
    };
    let ends = &both.ends;
    ends.write("f", &bytes(3 << 20, 1));
    ends.fetch().unwrap();
    let plain = Arc::new(client_of(&both.server));
    let other = ends.dir.path().join("other");
    copy(&job(vec![remote(&plain, ends.manifest())], &other)).unwrap();
    // More windows than a stream may have open.
    let tree = both.client.tree(tree());
    let control = Control::default();
    let mut stream = tree.open(&control).unwrap();
    let piece = |n: u64| Piece {
        path: b"f",
        offset: n << 17,
        len: 1 << 17,
    };
    let pieces: Vec<_> = (0..20).map(piece).collect();
    stream.ask(&pieces).unwrap();
    let (mut all, mut buffer) = (Vec::new(), vec![0; 1 << 17]);
    for _ in &pieces {
        stream.read(&mut buffer).unwrap();
        all.extend_from_slice(&buffer);
    }
    assert!(all == bytes(3 << 20, 1)[..20 << 17]);
    assert_eq!(both.server.counts().windows, 16);
}

/// A process that cuts a file that a window shows harms the copy, and nobody else: the kernel returns an error to a provider that
/// lets it read, and one that reads itself finds zeros, whose hashes are not those of the manifest.
#[test]
fn a_file_that_is_cut_under_a_window_is_found_out() {
    for provider in ["sockets", "tcp;ofi_rxm", "shm"] {
        let Some(both) = both(provider) else { return };
        let ends = &both.ends;
        let hasty = Arc::new(DataClient {
            timeout: DataClientTimeouts {
                stall: Duration::from_secs(8),
                ..DataClientTimeouts::default()
            },
            way: both.client.way.clone(),
            ..client_of(&both.server)
        });
        let (whole, kept) = ((4 << 20) + 100, 4 << 20);
        ends.write("f", &bytes(whole, 1));
        ends.write("g", b"g");
        let tree = hasty.tree(tree());
        let control = Control::default();
        let mut stream = tree.open(&control).unwrap();
        let piece = Piece {
            path: b"f",
            offset: 0,
            len: whole as u64,
        };
        stream.ask(&[piece]).unwrap();
        let mut buffer = vec![1; whole];
        let (first, rest) = buffer.split_at_mut(1);
        stream.read(first).unwrap();
        let f = std::fs::File::options()
            .write(true)
            .open(ends.from.join("f"));
        f.unwrap().set_len(kept as u64).unwrap();
        match stream.read(rest) {
            Ok(()) => {
                assert!(buffer[kept..].iter().all(|b| *b == 0), "{provider}");
                assert!(buffer[..kept] == bytes(kept, 1), "{provider}");
            }
            Err(e) => {
                assert_ne!(provider, "sockets", "{e}");
                assert!(e.failure.message.contains("libfabric"), "{e}");
            }
        }
        drop(stream);
        let plain = Arc::new(client_of(&both.server));
        let tree = plain.tree(crate::common::tree());
        let mut stream = tree.open(&control).unwrap();
        let piece = Piece {
            path: b"g",
            offset: 0,
            len: 1,
        };
        stream.ask(&[piece]).unwrap();
        stream.read(&mut [0]).unwrap();
    }
}

/// A server's endpoint that is of no use: the first attempt reports it, the next one goes over the stream.
#[test]
fn what_does_not_work_is_given_up() {
    let Some(both) = both("tcp;ofi_rxm") else {
        return;
    };
    let ends = &both.ends;
    ends.write("f", &bytes(20 << 20, 1));
    // It looks for the windows of one provider with another.
    let library = library(ends.dir.path()).unwrap();
    let client = Arc::new(DataClient {
        way: ContentTransport::Windows(Rma::load(&library, "sockets").unwrap()),
        timeout: DataClientTimeouts {
            stall: Duration::from_secs(8),
            ..DataClientTimeouts::default()
        },
        ..client_of(&both.server)
    });
    let job = job(vec![remote(&client, ends.manifest())], &ends.to);
    let began = Instant::now();
    let error = copy(&job).unwrap_err();
    assert_eq!(error.failure.kind, RunErrorKind::Io, "{error}");
    assert!(error.failure.message.contains("libfabric"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(60));
    copy(&job).unwrap();
    assert_eq!(model(&ends.to), model(&ends.from));
}

#[test]
fn what_cannot_be_loaded_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let why = Rma::load(&dir.path().join(LIBRARY), "tcp;ofi_rxm").unwrap_err();
    let why = why.to_string();
    assert!(
        why.contains(LIBRARY) && why.contains("libfabric-dev"),
        "{why}"
    );
    let Some(library) = library(dir.path()) else {
        return;
    };
    // Nor one that takes for granted what others may have written, where libfabric has it or not.
    for provider in ["sm2", "lnx"] {
        let why = Rma::load(&library, provider).unwrap_err().to_string();
        assert!(why.contains("is not used") && why.contains("shm"), "{why}");
    }
    let why = Rma::load(&library, "carrier-pigeon").unwrap_err();
    let why = why.to_string();
    assert!(
        why.contains("carrier-pigeon") && why.contains("fi_info -l"),
        "{why}"
    );
}

/// The thread that makes progress is there only while somebody needs it.
#[test]
fn an_idle_endpoint_idles() {
    let Some(both) = both("tcp;ofi_rxm") else {
        return;
    };
    let ends = &both.ends;
    ends.write("f", &bytes(3 << 20, 1));
    copy(&job(vec![remote(&both.client, ends.manifest())], &ends.to)).unwrap();
    assert!(both.server.counts().windows > 0);
    let threads = || {
        both.client
            .way
            .rma()
            .into_iter()
            .map(|r| r.threads())
            .sum::<usize>()
    };
    assert!(threads() <= 1);
    let until = Instant::now() + Duration::from_secs(60);
    while threads() > 0 {
        assert!(Instant::now() < until, "it still runs");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Bytes of an answer before its window's head, and where its kind is: 6 is a window.
const ANSWER: usize = 17;
const KIND: usize = 8;
/// Bytes of a window's head before the address: its length, the beginning, the key.
const HEAD: usize = 17;

/// The places where the heads of windows begin in the bytes that a server has sent: the numbers before them are small.
fn heads(sent: &[u8]) -> Vec<usize> {
    let is_window = |at: &usize| {
        let answer = &sent[at - ANSWER..*at];
        answer[KIND] == 6
            && [&answer[1..4], &answer[5..8]]
                .concat()
                .iter()
                .all(|b| *b == 0)
    };
    let last = sent.len().saturating_sub(HEAD);
    (ANSWER..=last).filter(is_window).collect()
}

/// A server that changes the heads of its windows on their way, and how many it has changed.
fn liar(
    both: &Both,
    lie: impl Fn(&mut [u8]) + Send + Sync + 'static,
) -> (Arc<DataClient>, Arc<AtomicUsize>) {
    let lied = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&lied);
    let back = move |mut server: TcpStream, mut client: TcpStream| {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(n @ 1..) = server.read(&mut buffer) {
            for at in heads(&buffer[..n]) {
                lie(&mut buffer[at..n]);
                count.fetch_add(1, Ordering::Relaxed);
            }
            if client.write_all(&buffer[..n]).is_err() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    };
    let client = DataClient {
        address: wire(both.server.address(), back),
        way: both.client.way.clone(),
        timeout: DataClientTimeouts {
            stall: Duration::from_secs(8),
            ..DataClientTimeouts::default()
        },
        ..client_of(&both.server)
    };
    (Arc::new(client), lied)
}

/// A server gives a wrong place, key or owner of its windows: the copy says so and ends, no byte comes from elsewhere, and the
/// client continues by the stream.
#[test]
fn attack_a_window_that_is_not_where_the_peer_says() {
    type Lie = fn(&mut [u8]);
    let lies: [(&str, Lie); 4] = [
        ("the end of all addresses", |head| head[1..9].fill(0xff)),
        ("beyond the window", |head| head[4] ^= 0x40),
        ("another key", |head| head[9] ^= 0x55),
        ("nobody's address", |head| {
            let end = head.len().min(HEAD + usize::from(head[0]));
            head[HEAD..end].fill(0x11);
        }),
    ];
    for (name, lie) in lies {
        let Some(both) = both("tcp;ofi_rxm") else {
            return;
        };
        let ends = &both.ends;
        ends.write("f", &bytes(8 << 20, 1));
        let (client, lied) = liar(&both, lie);
        let job = job(vec![remote(&client, ends.manifest())], &ends.to);
        let error = copy(&job).unwrap_err();
        assert!(lied.load(Ordering::Relaxed) > 0, "{name}");
        assert_eq!(error.failure.kind, RunErrorKind::Io, "{name}: {error}");
        assert!(!ends.to.exists(), "{name}");
        copy(&job).unwrap();
        assert_eq!(model(&ends.to), model(&ends.from), "{name}");
    }
}

/// Shared memory of this test, removed with it.
struct Region(PathBuf);

impl Drop for Region {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0).or_else(|_| std::fs::remove_dir(&self.0));
    }
}

/// With the provider `shm` a peer's name leads to memory that the provider maps and believes: a lock that is held there stops it
/// for ever, a size that is none ends the process. Memory that is not this user's alone is not mapped: the copy gets the reason
/// at once, without a wait, and continues by the stream.
#[test]
fn attack_shared_memory_that_another_may_have_written_is_not_mapped() {
    use std::os::unix::fs::PermissionsExt;
    let own = std::process::id();
    let region = |name: &str| Region(Path::new("/dev/shm").join(format!("{own}{name}")));
    let [open, foreign, link, folder, none] = ["o", "f", "l", "d", "n"].map(region);
    for (region, mode) in [(&open, 0o666), (&foreign, 0o600)] {
        // All locks are held, all sizes are beyond any memory.
        std::fs::write(&region.0, vec![0xff; 1 << 20]).unwrap();
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&region.0, mode).unwrap();
    }
    std::os::unix::fs::symlink(&open.0, &link.0).unwrap();
    std::fs::create_dir(&folder.0).unwrap();
    let mut cases = vec![
        (&open.0, "not this user's alone"),
        (&link.0, "not this user's alone"),
        (&folder.0, "not this user's alone"),
        (&none.0, "no shared region of that name"),
    ];
    // Only root can give a file away.
    if std::os::unix::fs::chown(&foreign.0, Some(65534), None).is_ok() {
        cases.push((&foreign.0, "not this user's alone"));
    }
    for (region, why) in cases {
        let Some(both) = both("shm") else { return };
        let ends = &both.ends;
        ends.write("f", &bytes(8 << 20, 1));
        let name = region.file_name().unwrap().to_string_lossy();
        let name = format!("fi_shm://{name}\0").into_bytes();
        let (client, lied) = liar(&both, move |head| {
            let space = usize::from(head[0]).min(head.len() - HEAD);
            let address = &mut head[HEAD..HEAD + space];
            assert!(address.len() >= name.len());
            address.fill(0);
            address[..name.len()].copy_from_slice(&name);
        });
        let job = job(vec![remote(&client, ends.manifest())], &ends.to);
        let error = copy(&job).unwrap_err();
        assert!(lied.load(Ordering::Relaxed) > 0, "{region:?}");
        assert_eq!(error.failure.kind, RunErrorKind::Io, "{region:?}: {error}");
        assert!(error.failure.message.contains(why), "{region:?}: {error}");
        assert!(!ends.to.exists(), "{region:?}");
        copy(&job).unwrap();
        assert_eq!(model(&ends.to), model(&ends.from), "{region:?}");
    }
}
