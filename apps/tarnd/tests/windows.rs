//! Partitions of another node that are read and written by windows: `tarnd --transport`.

mod common;

use common::*;
use std::cell::Cell;
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;
use tarn_client::Client;
use tarn_data_plane::{LIBRARY, RemoteStorage, Wire};
use tarn_partitions::HEAD;
use tarn_proto::local::{
    Allocation, RemotePartition, TaskLocation, TaskOperation, TaskSpec, WindowUse,
};
use tarn_ring::{MemorySpan, ProgramMemory, Storage, StorageRequestError, SubmitOutcome};

const MIB: u64 = 1 << 20;
/// Partitions are mapped there.
const MEMORY: &str = "/dev/shm";

/// Has the library beside tarnd; false where libfabric's headers are not installed.
fn library() -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = Path::new(env!("CARGO_BIN_EXE_tarnd")).parent().unwrap();
    let built = Command::new(root.join("scripts/shim.sh"))
        .arg(folder)
        .status()
        .unwrap();
    if built.code() == Some(3) {
        eprintln!("SKIPPED: no libfabric-dev");
        return false;
    }
    assert!(built.success());
    true
}

fn make(client: &Client, bytes: u64) {
    let at = fast("f.partition");
    let how = Allocation::Make {
        grants: Vec::new(),
        unit: None,
    };
    let task = TaskSpec::new(TaskOperation::Allocate { at, bytes, how });
    client.carry_out(task, LONG).unwrap();
}

fn open(client: &Client) -> (TcpStream, RemotePartition) {
    let opened = client.open_partition(Some("b"), "fast", b"f.partition", true);
    let (stream, far) = opened.unwrap();
    let stream = TcpStream::from(stream);
    stream.set_nonblocking(false).unwrap();
    (stream, far.unwrap())
}

fn far((stream, far): (TcpStream, RemotePartition)) -> (RemoteStorage, Option<WindowUse>) {
    let size = Arc::new(far.info.bytes.into());
    let wire = Wire::new(stream, far.seal.as_ref()).unwrap();
    (
        RemoteStorage::new(wire, size, far.persistent).unwrap(),
        far.windows,
    )
}

fn by_window(far: &mut RemoteStorage, windows: &WindowUse) -> bool {
    let library = std::ffi::OsStr::from_bytes(&windows.library.0);
    far.by_window(Path::new(library), &windows.provider)
        .unwrap()
}

/// Does one thing.
fn done(
    far: &mut RemoteStorage,
    begin: impl FnOnce(&mut RemoteStorage) -> SubmitOutcome,
) -> Result<u64, StorageRequestError> {
    let mut end = match begin(far) {
        SubmitOutcome::Done(result) => Some(result),
        SubmitOutcome::Pending => None,
    };
    let until = Instant::now() + LONG;
    while end.is_none() {
        assert!(Instant::now() < until, "it does not end");
        far.settle().unwrap();
        far.reap(&mut |_, result| end = Some(result));
    }
    end.unwrap()
}

#[test]
fn nodes_of_one_provider_use_windows_and_others_do_not() {
    if !library() {
        return;
    }
    let cells: &'static [Cell<u8>] = Box::leak(vec![Cell::new(7); 4096].into_boxed_slice());
    let memory = ProgramMemory::of(cells);
    let span = memory.span(cells.as_ptr().addr() as u64, 4096).unwrap();
    let libfabric = ["--transport", "libfabric"];
    let sockets = ["--transport", "libfabric:sockets"];
    for (a_options, b_options, is_offered, used) in [
        (&libfabric[..], &libfabric[..], true, true),
        (&libfabric, &[], true, false),
        (&libfabric, &sockets, true, false),
        (&[], &libfabric, false, false),
    ] {
        let (a, mut b) = pair_in(MEMORY.as_ref(), a_options, b_options);
        make(&b.client(), MIB);
        let (mut far, windows) = far(open(&a.client()));
        assert_eq!(windows.is_some(), is_offered);
        let by_window = windows.is_some_and(|windows| by_window(&mut far, &windows));
        assert_eq!(by_window, used);
        assert_eq!(
            done(&mut far, |far| far.write(1000, span, false, 1)),
            Ok(4096)
        );
        let file = std::fs::read(b.path("fast/f.partition")).unwrap();
        let data = &file[HEAD as usize..];
        assert!(data[..1000].iter().all(|byte| *byte == 0));
        assert!(data[1000..5096].iter().all(|byte| *byte == 7));
        assert_eq!(done(&mut far, |far| far.fetch_add(0, 3, 1)), Ok(0));
        assert_eq!(done(&mut far, |far| far.read(0, span, 1)), Ok(4096));
        assert_eq!(cells[0].get(), 3);
        cells.iter().for_each(|cell| cell.set(7));
        b.kill();
        assert_eq!(
            done(&mut far, |far| far.flush(1)),
            Err(StorageRequestError::Lost)
        );
    }
}

#[test]
fn where_one_node_wants_it_all_is_sealed() {
    let cells: &'static [Cell<u8>] = Box::leak(vec![Cell::new(7); 4096].into_boxed_slice());
    let memory = ProgramMemory::of(cells);
    let span = memory.span(cells.as_ptr().addr() as u64, 4096).unwrap();
    let sealed = ["--transport", "sealed"];
    for (a_options, b_options) in [(&sealed[..], &[][..]), (&[], &sealed)] {
        let (a, mut b) = pair_in(MEMORY.as_ref(), a_options, b_options);
        make(&b.client(), MIB);
        let opened = open(&a.client());
        assert!(opened.1.seal.is_some() && opened.1.windows.is_none());
        let (mut far, _) = far(opened);
        let write = |far: &mut RemoteStorage| far.write(1000, span, false, 1);
        assert_eq!(done(&mut far, write), Ok(4096));
        let file = std::fs::read(b.path("fast/f.partition")).unwrap();
        assert!(file[HEAD as usize..][1000..5096].iter().all(|b| *b == 7));
        assert_eq!(done(&mut far, |far| far.fetch_add(0, 3, 1)), Ok(0));
        assert_eq!(done(&mut far, |far| far.read(0, span, 1)), Ok(4096));
        assert_eq!(cells[0].get(), 3);
        cells.iter().for_each(|cell| cell.set(7));
        // A client that has the stream and not its keys gets nowhere.
        let (stream, mut without) = open(&a.client());
        without.seal = None;
        let (mut stranger, _) = self::far((stream, without));
        assert_eq!(done(&mut stranger, write), Err(StorageRequestError::Lost));
        // Tasks read and call over such streams, too.
        let there = TaskLocation::Node {
            node: "b".into(),
            space: "fast".into(),
            path: b"moved".as_slice().into(),
        };
        std::fs::write(a.path("fast/f"), vec![5; 3 << 20]).unwrap();
        assert_eq!(code(&run(&a.client(), moved(fast("f"), there))), None);
        assert_eq!(
            std::fs::read(b.path("fast/moved")).unwrap(),
            vec![5; 3 << 20]
        );
        b.kill();
        assert_eq!(
            done(&mut far, |far| far.flush(1)),
            Err(StorageRequestError::Lost)
        );
    }
}

#[test]
fn while_windows_are_open_partitions_are_opened_grown_and_cut_as_ever() {
    if !library() {
        return;
    }
    let cells: &'static [Cell<u8>] = Box::leak(vec![Cell::new(7); 4096].into_boxed_slice());
    let memory = ProgramMemory::of(cells);
    let span = memory.span(cells.as_ptr().addr() as u64, 4096).unwrap();
    // The second has a handler of SIGBUS of its own.
    for transport in ["libfabric", "libfabric:shm"] {
        opened_grown_and_cut(transport, span);
    }
}

fn opened_grown_and_cut(transport: &str, span: MemorySpan) {
    let options = ["--transport", transport];
    let (mut a, mut b) = pair_in(MEMORY.as_ref(), &options, &options);
    make(&b.client(), MIB);
    let (mut first, windows) = far(open(&a.client()));
    let windows = windows.unwrap();
    assert!(by_window(&mut first, &windows));
    // Opened once more, by a stream and by a window.
    let (mut by_stream, _) = far(open(&a.client()));
    let (mut second, _) = far(open(&a.client()));
    assert!(by_window(&mut second, &windows));
    let at = fast("f.partition");
    let how = Allocation::Grow;
    let task = TaskSpec::new(TaskOperation::Allocate {
        at,
        bytes: 2 * MIB,
        how,
    });
    b.client().carry_out(task, LONG).unwrap();
    for far in [&mut first, &mut by_stream, &mut second] {
        let write = done(far, |far| far.write(2 * MIB - 4096, span, false, 1));
        assert_eq!(write, Ok(4096));
        assert_eq!(done(far, |far| far.read(4096, span, 1)), Ok(4096));
    }
    // Cut under windows and mappings: a reader there gets an error, and the node lives.
    let file = std::fs::File::options();
    let file = file.clone().write(true).open(b.path("fast/f.partition"));
    file.unwrap().set_len(HEAD).unwrap();
    for far in [&mut first, &mut by_stream, &mut second] {
        let read = done(far, |far| far.read(0, span, 1));
        assert!(
            matches!(
                read,
                Err(StorageRequestError::Corrupt | StorageRequestError::Lost)
            ),
            "{read:?}"
        );
    }
    assert!(b.client().stats().is_ok());
    // The files that it has made on the host are removed with it.
    drop((first, by_stream, second));
    a.terminate();
    b.terminate();
}

#[test]
fn a_node_that_is_killed_ends_what_goes_by_its_window_only() {
    if !library() {
        return;
    }
    let cells: &'static [Cell<u8>] = Box::leak(vec![Cell::new(7); 1 << 20].into_boxed_slice());
    let memory = ProgramMemory::of(cells);
    let span = memory.span(cells.as_ptr().addr() as u64, MIB).unwrap();
    for transport in ["libfabric", "libfabric:shm"] {
        let options = ["--transport", transport];
        let (mut a, mut b) = pair_in(MEMORY.as_ref(), &options, &options);
        let pid = b.pid();
        make(&b.client(), MIB);
        let (mut far, windows) = far(open(&a.client()));
        assert!(by_window(&mut far, &windows.unwrap()));
        assert_eq!(done(&mut far, |far| far.write(0, span, false, 1)), Ok(MIB));
        let until = Instant::now() + LONG;
        let mut killed = false;
        loop {
            let result = done(&mut far, |far| far.read(0, span, 1));
            if result == Err(StorageRequestError::Lost) {
                break;
            }
            assert_eq!(result, Ok(MIB), "{transport}");
            assert!(Instant::now() < until, "{transport}");
            if !std::mem::replace(&mut killed, true) {
                b.kill();
            }
        }
        drop(far);
        // A killed provider leaves the files that it made on the host, and no other one does.
        let own = format!("{}:", std::process::id());
        assert_eq!(of_shm(&own).len(), 0, "{transport}");
        let left = of_shm(&format!("{pid}:"));
        assert_eq!(
            left.len(),
            usize::from(transport.ends_with("shm")),
            "{left:?}"
        );
        left.iter()
            .for_each(|path| std::fs::remove_file(path).unwrap());
        let pid = a.pid();
        a.terminate();
        assert_eq!(of_shm(&format!("{pid}:")).len(), 0, "{transport}");
    }
}

fn of_shm(prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/dev/shm").unwrap();
    let all = entries.map(|entry| entry.unwrap().path());
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    all.filter(|path| name(path).starts_with(prefix)).collect()
}

#[test]
fn what_cannot_be_used_is_told_at_the_start() {
    let stderr_of = |program: &Path, options: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        let output = Command::new(program)
            .args(["--socket", "s", "--state", "state"])
            .args(options)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let tarnd = Path::new(env!("CARGO_BIN_EXE_tarnd"));
    let alone = stderr_of(tarnd, &["--transport", "libfabric"]);
    assert!(alone.contains("--peers"), "{alone}");
    let wrong = stderr_of(tarnd, &["--peers", "p", "--transport", "pigeon"]);
    assert!(wrong.contains("libfabric:PROVIDER"), "{wrong}");
    // Without the library beside it.
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("tarnd");
    std::fs::copy(tarnd, &program).unwrap();
    let peers = peers(dir.path(), KEY, &[("a", 1, "")]);
    let peers = [
        "--peers",
        &peers,
        "--node-name",
        "a",
        "--transport",
        "libfabric",
    ];
    let without = stderr_of(&program, &peers);
    assert!(
        without.contains(LIBRARY) && without.contains("libfabric-dev"),
        "{without}"
    );
}
