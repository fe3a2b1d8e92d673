//! Partitions that tarnd makes, keeps, lends and takes away.

mod common;

use common::*;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};
use tarn_client::Client;
use tarn_partitions::{HEAD, PartitionFolder};
use tarn_proto::local::{
    Allocation, Code, JobChange, Limit, RequestError, TaskLocation, TaskOperation, TaskSpec,
};
use tarn_proto::storage::{StorageReply, StorageRequest, Verb};
use tarn_types::grant::{Grant, Grantee};

const MIB: u64 = 1 << 20;

fn file(name: &str) -> String {
    format!("{name}.partition")
}

fn allocate(
    client: &Client,
    at: TaskLocation,
    bytes: u64,
    how: Allocation,
) -> Result<(), RequestError> {
    let task = TaskSpec::new(TaskOperation::Allocate { at, bytes, how });
    client.carry_out(task, LONG).map(drop)
}

fn made(unit: Option<u32>) -> Allocation {
    Allocation::Make {
        grants: Vec::new(),
        unit,
    }
}

fn make(client: &Client, name: &str, bytes: u64, grants: &[Grant]) -> Result<(), RequestError> {
    let grants = grants.to_vec();
    let how = Allocation::Make { grants, unit: None };
    allocate(client, fast(&file(name)), bytes, how)
}

fn delete(client: &Client, name: &str) -> Result<(), RequestError> {
    client.carry_out(remove(fast(&file(name))), LONG).map(drop)
}

fn open(client: &Client, name: &str, write: bool) -> Result<OwnedFd, RequestError> {
    let opened = client.open_partition(None, "fast", file(name).as_bytes(), write)?;
    assert!(opened.1.is_none());
    Ok(opened.0)
}

fn used(client: &Client) -> u64 {
    client.spaces().unwrap()[0].used
}

#[test]
fn one_is_made_with_what_it_begins_with() {
    use std::os::unix::fs::FileExt;
    let daemon = Daemon::start(&[]);
    let client = daemon.client();
    let make = |first: &[u8]| {
        let first = first.to_owned();
        let how = Allocation::MakeWith { first };
        allocate(&client, fast(&file("field")), MIB, how)
    };
    let refused = make(&[1; 4097]).unwrap_err();
    assert_eq!(refused.code, Code::Invalid, "{refused}");
    make(b"first").unwrap();
    assert_eq!(make(b"other").unwrap_err().code, Code::Exists);
    let exported = std::fs::File::from(open(&client, "field", false).unwrap());
    let mut read = [0; 6];
    exported.read_exact_at(&mut read, HEAD).unwrap();
    assert_eq!(&read, b"first\0");
    drop(exported);
    delete(&client, "field").unwrap();
}

#[test]
fn one_is_made_exported_grown_and_taken_away_and_its_space_is_counted() {
    let daemon = Daemon::start(&[]);
    let client = daemon.client();
    let before = used(&client);
    make(&client, "run/field", 10 * MIB, &[]).unwrap();
    // With the folder that was made for it.
    let taken = used(&client) - before;
    assert!(
        (10 * MIB + HEAD..11 * MIB + HEAD).contains(&taken),
        "{taken}"
    );
    let path = daemon.path("fast/run/field.partition");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let exists = make(&client, "run/field", MIB, &[]).unwrap_err();
    assert_eq!(exists.code, Code::Exists, "{exists}");

    let list = client.partitions(None, "fast", b"run").unwrap();
    assert_eq!(
        (list.len(), &*list[0].name, list[0].bytes),
        (1, "field", 10 * MIB)
    );
    assert_eq!(client.partitions(None, "fast", b"").unwrap(), []);

    // A program that has it open keeps it, as large as it is at least.
    let exported = open(&client, "run/field", true).unwrap();
    let busy = |result: Result<(), RequestError>| assert_eq!(result.unwrap_err().code, Code::Busy);
    busy(delete(&client, "run/field"));
    let place = || fast(&file("run/field"));
    busy(allocate(&client, place(), MIB, Allocation::Resize));
    allocate(&client, place(), 20 * MIB, Allocation::Grow).unwrap();
    allocate(&client, place(), MIB, Allocation::Grow).unwrap();
    let size = rustix::fs::fstat(&exported).unwrap().st_size;
    assert_eq!(size as u64, HEAD + 20 * MIB);
    let grown = used(&client) - before - taken;
    assert_eq!(grown, 10 * MIB);
    drop(exported);
    allocate(&client, place(), 5 * MIB, Allocation::Resize).unwrap();
    assert_eq!(used(&client), before + taken - 5 * MIB);
    delete(&client, "run/field").unwrap();
    assert!(!path.exists());
    assert!(used(&client) < before + MIB);
    assert_eq!(
        delete(&client, "run/field").unwrap_err().code,
        Code::NotFound
    );
    assert_eq!(
        open(&client, "run/field", false).unwrap_err().code,
        Code::NotFound
    );
    assert_eq!(daemon.leftovers(), [] as [&Path; 0]);
}

#[test]
fn what_it_may_hold_bounds_them_together_with_all_else() {
    let daemon = Daemon::start(&[]);
    let client = daemon.client();
    make(&client, "a", 30 * MIB, &[]).unwrap();
    let full = make(&client, "b", 40 * MIB, &[]).unwrap_err();
    assert_eq!(full.code, Code::NoSpace, "{full}");
    let grown = allocate(&client, fast(&file("a")), 70 * MIB, Allocation::Grow).unwrap_err();
    assert_eq!(grown.code, Code::NoSpace, "{grown}");
    let huge = make(&client, "c", u64::MAX, &[]).unwrap_err();
    assert_eq!(huge.code, Code::NoSpace, "{huge}");
    assert_eq!(client.partitions(None, "fast", b"").unwrap().len(), 1);

    // A job's limit counts for partitions that its processes make.
    let limits = vec![Limit {
        space: "fast".into(),
        quota: 5 * MIB,
    }];
    let (job, user) = (7, rustix::process::geteuid().as_raw());
    client
        .change_job(JobChange::Register { job, user, limits })
        .unwrap();
    let pid = std::process::id() as i32;
    client
        .change_job(JobChange::AddProcess { job, pid })
        .unwrap();
    let own = Client::connect(&daemon.socket(), Some(job)).unwrap();
    let over = make(&own, "d", 4 * MIB, &[]).unwrap_err();
    assert_eq!(over.code, Code::Quota, "{over}");
    make(&own, "d", 2 * MIB, &[]).unwrap();
}

#[test]
fn one_has_the_unit_that_was_asked_for_here_and_on_another_node() {
    let (a, b) = pair(&[]);
    let (client, there) = (a.client(), b.client());
    let far = |name: &str| TaskLocation::Node {
        node: "b".into(),
        space: "fast".into(),
        path: file(name).as_str().into(),
    };
    let unit = |at, how| allocate(&client, at, 20 << 10, how);
    for (asking, name) in [(&client, None), (&there, Some("b"))] {
        let at = |file: &str| match name {
            None => fast(&crate::file(file)),
            Some(_) => far(file),
        };
        let before = used(asking);
        unit(at("flash"), made(Some(8192))).unwrap();
        assert_eq!(used(asking) - before, HEAD + (24 << 10));
        unit(at("mapped"), made(Some(0))).unwrap();
        let list = client.partitions(name, "fast", b"").unwrap();
        let list: Vec<_> = list.iter().map(|i| (&*i.name, i.bytes, i.unit)).collect();
        assert_eq!(list, [("flash", 24 << 10, 8192), ("mapped", 20 << 10, 0)]);
        // It stays so when its size changes.
        let before = used(asking);
        allocate(&client, at("flash"), 25 << 10, Allocation::Grow).unwrap();
        assert_eq!(used(asking) - before, 8 << 10);
        for bad in [1, 3000, 32 << 10, u32::MAX] {
            let why = unit(at("bad"), made(Some(bad))).unwrap_err();
            assert_eq!(why.code, Code::Invalid, "{bad}: {why}");
        }
    }
}

#[test]
fn what_is_no_partition_is_refused() {
    let daemon = Daemon::start(&[]);
    let client = daemon.client();
    let refused = |at: TaskLocation, bytes| {
        let made = allocate(&client, at, bytes, made(None));
        made.unwrap_err().code
    };
    assert_eq!(refused(fast("field"), MIB), Code::Invalid);
    assert_eq!(refused(fast("../field.partition"), MIB), Code::Invalid);
    assert_eq!(refused(fast(".x.partition"), MIB), Code::Invalid);
    assert_eq!(refused(fast(&file("a")), 0), Code::Invalid);
    assert_eq!(refused(daemon.outside("x.partition"), MIB), Code::Invalid);
    let grant = Grant {
        who: Grantee::User(1),
        write: false,
    };
    let long = make(&client, "a", MIB, &[grant; 65]).unwrap_err();
    assert_eq!(long.code, Code::Invalid);
    let slow = client.open_partition(None, "slow", b"a.partition", false);
    assert_eq!(slow.unwrap_err().code, Code::NotFound);
    // A link does not lead out, and a file that only looks like a partition is none.
    let outside = tempfile::tempdir().unwrap();
    PartitionFolder::open(outside.path())
        .unwrap()
        .create("a", MIB, None, 0, Vec::new())
        .unwrap();
    let link = daemon.path("fast/link");
    std::os::unix::fs::symlink(outside.path(), &link).unwrap();
    let through = client.open_partition(None, "fast", b"link/a.partition", false);
    assert_eq!(through.unwrap_err().code, Code::Denied);
    std::os::unix::fs::symlink(
        outside.path().join(file("a")),
        daemon.path("fast/b.partition"),
    )
    .unwrap();
    assert_eq!(open(&client, "b", false).unwrap_err().code, Code::Denied);
    std::fs::write(daemon.path("fast/c.partition"), [0; 10_000]).unwrap();
    assert_eq!(open(&client, "c", false).unwrap_err().code, Code::Corrupt);
    let list = client.partitions(None, "fast", b"").unwrap();
    assert!(list.iter().all(|info| info.damaged.is_some()), "{list:?}");
    // It can be taken away all the same.
    delete(&client, "c").unwrap();
}

#[test]
fn they_outlive_tarnd_and_what_was_durable_is_made_after_a_kill() {
    let mut daemon = Daemon::start(&[]);
    make(&daemon.client(), "a", MIB, &[]).unwrap();
    let kept = open(&daemon.client(), "a", true).unwrap();
    let durable = |name: &str| TaskSpec {
        durable: true,
        ..TaskSpec::new(TaskOperation::Allocate {
            at: fast(&file(name)),
            bytes: MIB,
            how: made(Some(8192)),
        })
    };
    let ids: Vec<_> = (0..8)
        .map(|n| submit(&daemon.client(), durable(&format!("d{n}"))).unwrap())
        .collect();
    daemon.kill();
    daemon.again();
    let client = daemon.client();
    for id in ids {
        assert_eq!(code(&wait(&client, id)), None);
    }
    let list = client.partitions(None, "fast", b"").unwrap();
    assert_eq!(list.iter().filter(|info| info.unit == 8192).count(), 8);
    assert_eq!(list.len(), 9);
    // It is open still.
    assert_eq!(delete(&client, "a").unwrap_err().code, Code::Busy);
    drop(kept);
    delete(&client, "a").unwrap();
}

#[test]
fn many_are_listed_in_order() {
    let daemon = Daemon::start_in(tempfile::tempdir().unwrap(), "4GiB", &[]);
    let grant = Grant {
        who: Grantee::Group(1),
        write: true,
    };
    // Sparse: only their names and lists count here.
    let folder = PartitionFolder::open(&daemon.path("fast")).unwrap();
    for n in 0..120 {
        let name = format!("{n:03}-{}", "x".repeat(150));
        folder
            .create(&name, 4096, None, 7, vec![grant; 64])
            .unwrap();
    }
    let list = daemon.client().partitions(None, "fast", b"").unwrap();
    assert_eq!(list.len(), 120);
    assert!(list.is_sorted_by(|a, b| a.name < b.name));
    assert!(
        list.iter()
            .all(|info| info.grants.len() == 64 && info.owner == 7)
    );
}

/// Runs this as another user, of some groups, in a thread.
fn by<T: Send>(user: u32, groups: &[u32], does: impl FnOnce() -> T + Send) -> Option<T> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be another user");
        return None;
    }
    let groups: Vec<Gid> = groups.iter().map(|g| Gid::from_raw(*g)).collect();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            set_thread_groups(&groups).unwrap();
            set_thread_gid(Gid::from_raw(65534)).unwrap();
            set_thread_uid(Uid::from_raw(user)).unwrap();
            does()
        });
        Some(thread.join().unwrap())
    })
}

#[test]
fn attack_other_users_have_what_its_list_gives_them_and_nothing_else() {
    let daemon = Daemon::start(&["--guests"]);
    std::fs::set_permissions(daemon.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let own = daemon.client();
    let user = |id, write| Grant {
        who: Grantee::User(id),
        write,
    };
    let group = Grant {
        who: Grantee::Group(4242),
        write: true,
    };
    make(&own, "read", MIB, &[user(65534, false)]).unwrap();
    make(&own, "group", MIB, &[group]).unwrap();
    make(&own, "mine", MIB, &[]).unwrap();
    let socket = daemon.socket();
    let connect = || Client::connect(&socket, None).unwrap();
    let denied = |why: RequestError| assert_eq!(why.code, Code::Denied, "{why}");
    by(65534, &[], || {
        let guest = connect();
        assert_eq!(guest.user(), 65534);
        let file = open(&guest, "read", false).unwrap();
        assert!(rustix::io::write(&file, b"x").is_err());
        denied(open(&guest, "read", true).unwrap_err());
        denied(open(&guest, "group", false).unwrap_err());
        denied(open(&guest, "mine", false).unwrap_err());
        // Nor does the error reveal whether there is one.
        let (there, not) = (open(&guest, "mine", false), open(&guest, "none", false));
        assert_eq!(there.unwrap_err(), not.unwrap_err());
        let list = guest.partitions(None, "fast", b"").unwrap();
        assert_eq!(list.iter().map(|i| &*i.name).collect::<Vec<_>>(), ["read"]);
        // And nothing else.
        denied(make(&guest, "new", MIB, &[]).unwrap_err());
        denied(delete(&guest, "read").unwrap_err());
        denied(guest.stats().unwrap_err());
        denied(guest.spaces().unwrap_err());
        denied(guest.pause_all(true).unwrap_err());
    });
    by(65533, &[100, 4242], || {
        let guest = connect();
        let file = open(&guest, "group", true).unwrap();
        rustix::io::pwrite(&file, b"x", HEAD).unwrap();
        denied(open(&guest, "read", false).unwrap_err());
        // They do not take all the connections there are.
        let many: Vec<_> = (0..63).map(|_| connect()).collect();
        let hello = Client::connect(&socket, None);
        assert_eq!(hello.unwrap_err().code, Code::Busy);
        drop(many);
    });
    make(&own, "later", MIB, &[]).unwrap();
}

#[test]
fn attack_without_guests_nobody_else_is_served() {
    let daemon = Daemon::start(&[]);
    std::fs::set_permissions(daemon.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let socket = daemon.socket();
    by(65534, &[], || Client::connect(&socket, None).unwrap_err());
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).unwrap();
    let why = by(65534, &[], || Client::connect(&socket, None).unwrap_err());
    assert!(why.is_none_or(|why| why.code == Code::Denied));
}

#[test]
fn another_node_makes_them_for_this_one() {
    let (a, b) = pair(&[]);
    let client = a.client();
    let there = |name: &str| TaskLocation::Node {
        node: "b".into(),
        space: "fast".into(),
        path: file(name).as_str().into(),
    };
    allocate(&client, there("f"), MIB, made(None)).unwrap();
    allocate(&client, there("f"), 2 * MIB, Allocation::Grow).unwrap();
    let list = b.client().partitions(None, "fast", b"").unwrap();
    assert_eq!((list.len(), list[0].bytes), (1, 2 * MIB));
    let exported = open(&b.client(), "f", false).unwrap();
    let busy = client.carry_out(remove(there("f")), LONG).unwrap_err();
    assert_eq!(busy.code, Code::Busy, "{busy}");
    drop(exported);
    client
        .carry_out(remove(there("f")), Duration::from_secs(20))
        .unwrap();
}

#[test]
fn those_of_another_node_are_listed_by_the_own_one() {
    let (a, b) = pair(&["--guests"]);
    let (client, there) = (a.client(), b.client());
    // More than one answer holds. Sparse: only their names and lists count here.
    let folder = PartitionFolder::open(&b.path("fast")).unwrap();
    let grant = Grant {
        who: Grantee::User(65534),
        write: false,
    };
    for n in 0..120 {
        let name = format!("{n:03}-{}", "x".repeat(150));
        folder
            .create(&name, 4096, None, 7, vec![grant; 64])
            .unwrap();
    }
    make(&there, "run/field", MIB, &[]).unwrap();
    std::fs::write(b.path("fast/run/bad.partition"), [0; 10_000]).unwrap();
    for path in [&b""[..], b"run"] {
        let list = client.partitions(Some("b"), "fast", path).unwrap();
        assert_eq!(list, there.partitions(None, "fast", path).unwrap());
    }
    let run = client.partitions(Some("b"), "fast", b"run").unwrap();
    let names: Vec<_> = run.iter().map(|info| &*info.name).collect();
    assert_eq!(names, ["bad", "field"]);
    // It lists its own itself, by any name of the node.
    make(&client, "own", MIB, &[]).unwrap();
    let own = client.partitions(Some("a"), "fast", b"").unwrap();
    assert_eq!((own.len(), &*own[0].name), (1, "own"));
    let refused =
        |node, space, path: &[u8]| client.partitions(Some(node), space, path).unwrap_err();
    let none = refused("b", "slow", b"");
    assert_eq!(none.code, Code::NotFound);
    assert!(none.text.contains("node b: "), "{none}");
    assert_eq!(refused("b", "fast", b"none").code, Code::NotFound);
    assert_eq!(refused("b", "fast", b"..").code, Code::Invalid);
    assert_eq!(
        refused("b", "fast", b"run/field.partition").code,
        Code::NotFound
    );
    assert_eq!(refused("c", "fast", b"").code, Code::Unsupported);
    assert_eq!(refused("b/c", "fast", b"").code, Code::Invalid);
    // Other users are served here only, though that node's list has them.
    std::fs::set_permissions(a.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let socket = a.socket();
    let denied = by(65534, &[], || {
        let guest = Client::connect(&socket, None).unwrap();
        guest.partitions(Some("b"), "fast", b"").unwrap_err()
    });
    assert!(denied.is_none_or(|why| why.code == Code::Denied));
    drop(b);
    let gone = client.partitions(Some("b"), "fast", b"").unwrap_err();
    assert!(matches!(gone.code, Code::Io | Code::Lost), "{gone}");
}

/// A stream to a partition of the other node, and its size.
fn stream(client: &Client, name: &str, write: bool) -> Result<(TcpStream, u64), RequestError> {
    let file = file(name);
    let opened = client.open_partition(Some("b"), "fast", file.as_bytes(), write)?;
    let far = opened.1.expect("it is of another node");
    let stream = TcpStream::from(opened.0);
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    Ok((stream, far.info.bytes))
}

fn ask(verb: Verb, at: u64, operand: u64) -> StorageRequest {
    StorageRequest {
        at,
        operand,
        ..StorageRequest::of(verb)
    }
}

fn answer(mut stream: &TcpStream, ask: StorageRequest, bytes: &[u8]) -> StorageReply {
    stream
        .write_all(&[&ask.encode()[..], bytes].concat())
        .unwrap();
    let mut answer = [0; StorageReply::BYTES];
    stream.read_exact(&mut answer).unwrap();
    StorageReply::decode(answer)
}

#[test]
fn one_of_another_node_is_open_there_for_as_long_as_its_stream_is() {
    let (a, mut b) = pair(&[]);
    let (client, there) = (a.client(), b.client());
    let none = stream(&client, "f", true).unwrap_err();
    assert_eq!(none.code, Code::NotFound, "{none}");
    make(&there, "f", MIB, &[]).unwrap();
    let (one, size) = stream(&client, "f", true).unwrap();
    assert_eq!(size, MIB);
    assert_eq!(delete(&there, "f").unwrap_err().code, Code::Busy);
    // Words are changed at its node, whoever does it.
    let (two, _) = stream(&client, "f", true).unwrap();
    let values: u64 = std::thread::scope(|scope| {
        let add = |stream| {
            (0..500)
                .map(|_| answer(stream, ask(Verb::FetchAdd, 8, 1), &[]).value)
                .sum::<u64>()
        };
        let threads = [&one, &two].map(|stream| scope.spawn(move || add(stream)));
        threads.map(|thread| thread.join().unwrap()).iter().sum()
    });
    assert_eq!(values, (0..1000).sum::<u64>());
    // It grows there, and a client that asks learns that; a write behind the end is refused, and the stream stays open.
    let behind = StorageRequest {
        length: 4,
        ..ask(Verb::Write, MIB, 0)
    };
    assert_eq!(answer(&one, behind, b"data").code, 1);
    let place = fast(&file("f"));
    allocate(&there, place, 2 * MIB, Allocation::Grow).unwrap();
    assert_eq!(answer(&one, behind, b"data").value, 4);
    assert_eq!(answer(&one, ask(Verb::Size, 0, 0), &[]).value, 2 * MIB);
    // A lock is its stream's.
    let hold = |stream, what| answer(stream, ask(Verb::Hold, 0, what), &[]).code;
    assert_eq!([hold(&one, 2), hold(&two, 1), hold(&one, 1)], [0, 2, 0]);
    assert_eq!([hold(&two, 2), hold(&one, 0), hold(&two, 2)], [2, 0, 0]);
    // A stream that may only read cannot write.
    let (reader, _) = stream(&client, "f", false).unwrap();
    assert_eq!(answer(&reader, behind, b"none").code, 4);
    assert_eq!(answer(&reader, ask(Verb::FetchAdd, 8, 1), &[]).code, 4);
    drop((one, two, reader));
    let until = Instant::now() + LONG;
    while let Err(why) = delete(&there, "f") {
        assert!(why.code == Code::Busy && Instant::now() < until, "{why}");
        std::thread::sleep(Duration::from_millis(5));
    }
    // A node that dies takes its streams along.
    make(&there, "g", MIB, &[]).unwrap();
    let (mut lost, _) = stream(&client, "g", true).unwrap();
    b.kill();
    assert!(matches!(lost.read(&mut [0; 1]), Ok(0) | Err(_)));
    let gone = stream(&client, "g", true).unwrap_err();
    assert!(matches!(gone.code, Code::Io | Code::Lost), "{gone}");
    b.again();
    assert!(stream(&client, "g", true).is_ok());
}
