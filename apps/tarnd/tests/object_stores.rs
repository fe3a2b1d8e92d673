//! Tasks from and to a real object store.

mod common;
// No C program is made here.
#[allow(dead_code)]
#[path = "../../../bindings/c/tests/common/mod.rs"]
mod linked;
#[path = "../../../transfer/s3/tests/common/mod.rs"]
mod store;

use common::*;
use linked::{library, output_of as printed, source};
use rustix::fd::AsFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use store::{Act, Bucket, Proxy, SECRET, swift};
use tarn_client::Client;
use tarn_proto::local::*;

/// The command of a tarnd whose user has keys for a store.
fn with_keys(daemon: &Daemon, endpoint: &str, secret: &str) -> Command {
    let mut command = daemon.command();
    command
        .env("AWS_ENDPOINT_URL", endpoint)
        .env("AWS_ACCESS_KEY_ID", store::KEY)
        .env("AWS_SECRET_ACCESS_KEY", secret)
        .env("HOME", daemon.dir.path());
    command
}

fn start(endpoint: &str, secret: &str, options: &[&str]) -> Daemon {
    let mut daemon = Daemon::start(options);
    daemon.kill();
    start_again(&mut daemon, endpoint, secret);
    daemon
}

fn start_again(daemon: &mut Daemon, endpoint: &str, secret: &str) {
    let mut command = with_keys(daemon, endpoint, secret);
    daemon.start_by(&mut command);
}

/// A place of a bucket.
fn there(bucket: &Bucket, key: &str) -> TaskLocation {
    TaskLocation::External(bucket.at(key).to_string().as_bytes().into())
}

fn replacing(task: TaskSpec) -> TaskSpec {
    TaskSpec {
        replace: true,
        ..task
    }
}

fn durable(task: TaskSpec) -> TaskSpec {
    TaskSpec {
        durable: true,
        ..task
    }
}

fn readback(task: TaskSpec) -> TaskSpec {
    TaskSpec {
        verify: CopyVerification::Readback,
        ..task
    }
}

fn error_text(outcome: &TaskOutcome) -> &str {
    match &outcome.end {
        TaskEnd::Done => "",
        TaskEnd::Failed(why) => &why.text,
    }
}

fn until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !is() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn tree(at: &Path) {
    std::fs::create_dir_all(at.join("sub/empty")).unwrap();
    std::fs::write(at.join("one"), content(300_000, 1)).unwrap();
    std::fs::write(at.join("sub/two"), b"2").unwrap();
    std::fs::set_permissions(at.join("sub/two"), PermissionsExt::from_mode(0o750)).unwrap();
    symlink("sub/two", at.join("link")).unwrap();
}

#[test]
fn files_and_trees_go_to_a_store_and_come_back() {
    let bucket = Bucket::new("tasks");
    let daemon = start(&swift().endpoint, SECRET, &[]);
    let client = daemon.client();
    let bytes = content((9 << 20) + 77, 3);
    std::fs::write(daemon.path("fast/file"), &bytes).unwrap();
    tree(&daemon.path("fast/tree"));
    // A file, in parts; it is read again there.
    let sent = run(
        &client,
        durable(readback(copy(fast("file"), there(&bucket, "a/file")))),
    );
    let (all, hash) = (bytes.len() as u64, Some(checksum(&bytes)));
    assert_eq!(
        (code(&sent), sent.bytes, sent.checksum),
        (None, all, hash),
        "{}",
        error_text(&sent)
    );
    assert!(bucket.read("a/file") == bytes);
    let got = run(
        &client,
        readback(copy(there(&bucket, "a/file"), fast("back/file"))),
    );
    assert_eq!(
        (code(&got), got.bytes, got.checksum),
        (None, all, hash),
        "{}",
        error_text(&got)
    );
    assert!(read(&daemon.path("fast/back/file")) == bytes);
    // A tree, with properties that objects cannot have.
    let tree = fast("tree");
    let sent = run(&client, copy(tree.clone(), there(&bucket, "b/tree/")));
    assert_eq!(
        (code(&sent), sent.bytes),
        (None, 300_001),
        "{}",
        error_text(&sent)
    );
    let got = run(
        &client,
        copy(there(&bucket, "b/tree/"), daemon.outside("out/tree")),
    );
    assert_eq!(code(&got), None, "{}", error_text(&got));
    let two = daemon.path("out/tree/sub/two").metadata().unwrap();
    assert_eq!(two.mode() & 0o777, 0o750);
    assert!(daemon.path("out/tree/sub/empty").is_dir());
    assert!(daemon.path("out/tree/link").is_symlink());
    // From one place of the store to another.
    let across = run(
        &client,
        copy(there(&bucket, "a/file"), there(&bucket, "c/file")),
    );
    assert_eq!(
        (code(&across), across.checksum),
        (None, hash),
        "{}",
        error_text(&across)
    );
    // An object stays, unless it is to be replaced.
    for to in ["a/file", "c/file"] {
        let task = copy(fast("tree/sub/two"), there(&bucket, to));
        let refused = run(&client, task.clone());
        assert_eq!(
            code(&refused),
            Some(Code::Exists),
            "{}",
            error_text(&refused)
        );
        assert!(bucket.read(to) == bytes);
        let done = run(&client, replacing(task));
        assert_eq!(
            (code(&done), bucket.read(to)),
            (None, b"2".to_vec()),
            "{}",
            error_text(&done)
        );
    }
    bucket.put("b/tree/mine", b"mine");
    let task = copy(fast("tree/sub"), there(&bucket, "b/tree/"));
    assert_eq!(code(&run(&client, task.clone())), Some(Code::Exists));
    assert_eq!(code(&run(&client, replacing(task))), None);
    let keys = ["b/tree/.tarn-manifest", "b/tree/two"];
    assert_eq!(bucket.keys("b/tree/"), keys);
    // A move leaves nothing here. Nothing is removed there.
    let gone = run(&client, moved(fast("tree"), there(&bucket, "d/tree/")));
    assert!(
        code(&gone).is_none() && !daemon.path("fast/tree").exists(),
        "{}",
        error_text(&gone)
    );
    for task in [
        moved(there(&bucket, "a/file"), fast("x")),
        remove(there(&bucket, "a/file")),
    ] {
        let refused = submit(&client, task).unwrap_err();
        assert_eq!(refused.code, Code::Unsupported);
    }
    // Places that cannot be its destination.
    let wrong = [
        copy(fast("file"), there(&bucket, "e/")),
        copy(fast("back"), there(&bucket, "e")),
        copy(there(&bucket, "d/"), there(&bucket, "d/tree/in/")),
        copy(there(&bucket, "d/tree/"), there(&bucket, "e")),
    ];
    for task in wrong {
        let refused = run(&client, task);
        assert_eq!(
            code(&refused),
            Some(Code::Invalid),
            "{}",
            error_text(&refused)
        );
    }
    assert!(bucket.keys("e").is_empty() && daemon.leftovers().is_empty());
}

#[test]
fn memory_goes_to_a_store_and_comes_back() {
    let bucket = Bucket::new("memory");
    let daemon = start(&swift().endpoint, SECRET, &[]);
    let client = daemon.client();
    let bytes = content(10 << 20, 4);
    let memfd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memfd, 21 << 20).unwrap();
    rustix::io::pwrite(&memfd, &bytes, 100).unwrap();
    let region = client.register(memfd.as_fd(), 21 << 20).unwrap();
    let memory = |offset, length| TaskLocation::Memory {
        region,
        offset,
        length,
    };
    let save = readback(copy(memory(100, 10 << 20), there(&bucket, "dump")));
    let saved = run(&client, save);
    let hash = Some(checksum(&bytes));
    assert_eq!(
        (code(&saved), saved.checksum),
        (None, hash),
        "{}",
        error_text(&saved)
    );
    assert!(bucket.read("dump") == bytes);
    let load = copy(there(&bucket, "dump"), memory(11 << 20, 10 << 20));
    let loaded = run(&client, readback(load));
    assert_eq!(
        (code(&loaded), loaded.checksum),
        (None, hash),
        "{}",
        error_text(&loaded)
    );
    let mut back = vec![0; 10 << 20];
    rustix::io::pread(&memfd, &mut back[..], 11 << 20).unwrap();
    assert!(back == bytes);
    let small = run(&client, copy(there(&bucket, "dump"), memory(0, 9)));
    assert_eq!(code(&small), Some(Code::NoSpace));
    let empty = run(&client, copy(memory(0, 0), there(&bucket, "empty")));
    assert_eq!(
        (code(&empty), bucket.read("empty").len()),
        (None, 0),
        "{}",
        error_text(&empty)
    );
    ftruncate(&memfd, 1000).unwrap();
    let shrunk = run(&client, copy(memory(0, 20 << 20), there(&bucket, "no")));
    assert_eq!(
        code(&shrunk),
        Some(Code::Changed),
        "{}",
        error_text(&shrunk)
    );
    assert!(bucket.keys("no").is_empty());
}

/// A proxy that holds back requests with this word until it is set free, and counts those of a method.
fn holding(word: &'static str) -> (Proxy, Arc<AtomicBool>) {
    let reached = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&reached);
    let proxy = Proxy::new(move |request, _| {
        if request.contains(word) {
            seen.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_secs(20));
        }
        Act::Pass
    });
    (proxy, reached)
}

/// From now on all passes; how many requests of a method for an object's content there were.
fn counting(proxy: &Proxy, method: &'static str) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    proxy.set(move |request, _| {
        if request.starts_with(method) && request.contains("/part-") {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        Act::Pass
    });
    count
}

#[test]
fn a_killed_tarnd_goes_on_with_what_it_was_bringing_from_a_store() {
    let bucket = Bucket::new("bring");
    for at in 0..6 {
        bucket.put(&format!("in/part-{at}"), &content(700_000, at));
    }
    bucket.put("in/zlast", b"last");
    let (proxy, reached) = holding("/zlast");
    let mut daemon = start(&proxy.endpoint, SECRET, &[]);
    let client = daemon.client();
    let task = durable(copy(there(&bucket, "in/"), fast("in")));
    let id = submit(&client, task).unwrap();
    until("the last one is asked for", || {
        let done = client.status(&[id]).unwrap()[0].done;
        reached.load(Ordering::SeqCst) && done >= 6 * 700_000
    });
    daemon.kill();
    assert!(!daemon.path("fast/in").exists());
    let fetched = counting(&proxy, "GET");
    start_again(&mut daemon, &proxy.endpoint, SECRET);
    let client = daemon.client();
    let outcome = wait(&client, id);
    assert_eq!(
        (code(&outcome), outcome.bytes),
        (None, 6 * 700_000 + 4),
        "{}",
        error_text(&outcome)
    );
    assert_eq!(fetched.load(Ordering::SeqCst), 0);
    for at in 0..6 {
        assert!(read(&daemon.path(&format!("fast/in/part-{at}"))) == content(700_000, at));
    }
    assert!(daemon.leftovers().is_empty());
}

#[test]
fn a_killed_tarnd_goes_on_with_what_it_was_putting_into_a_store() {
    let bucket = Bucket::new("put");
    let (proxy, reached) = holding("/zlast");
    let mut daemon = start(&proxy.endpoint, SECRET, &[]);
    std::fs::create_dir(daemon.path("fast/out")).unwrap();
    for at in 0..6 {
        let file = daemon.path(&format!("fast/out/part-{at}"));
        std::fs::write(file, content(500_000, at)).unwrap();
    }
    std::fs::write(daemon.path("fast/out/zlast"), b"last").unwrap();
    let client = daemon.client();
    let task = durable(copy(fast("out"), there(&bucket, "out/")));
    let id = submit(&client, task.clone()).unwrap();
    until("the last one is put", || {
        reached.load(Ordering::SeqCst) && bucket.keys("out/").len() == 6
    });
    daemon.kill();
    let put = counting(&proxy, "PUT");
    start_again(&mut daemon, &proxy.endpoint, SECRET);
    let client = daemon.client();
    let outcome = wait(&client, id);
    assert_eq!(code(&outcome), None, "{}", error_text(&outcome));
    assert_eq!(put.load(Ordering::SeqCst), 0);
    assert_eq!(bucket.keys("out/").len(), 8);
    assert!(bucket.read("out/part-5") == content(500_000, 5));
    // Another task has no part in it.
    let again = run(&client, task);
    assert_eq!(code(&again), Some(Code::Exists), "{}", error_text(&again));
    assert_eq!(bucket.keys("out/").len(), 8);
}

#[test]
fn a_killed_tarnd_sends_no_part_of_an_object_twice() {
    let bucket = Bucket::new("half");
    let (proxy, reached) = holding("partNumber=3");
    let mut daemon = start(&proxy.endpoint, SECRET, &[]);
    std::fs::write(daemon.path("fast/large"), content(20_000_000, 1)).unwrap();
    let client = daemon.client();
    let task = durable(copy(fast("large"), there(&bucket, "one")));
    let id = submit(&client, task).unwrap();
    until("two of three parts are there", || {
        reached.load(Ordering::SeqCst) && bucket.parts("one") == [1, 2]
    });
    daemon.kill();
    let parts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&parts);
    proxy.set(move |request, _| {
        if request.starts_with("PUT") && request.contains("partNumber=") {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        Act::Pass
    });
    start_again(&mut daemon, &proxy.endpoint, SECRET);
    let outcome = wait(&daemon.client(), id);
    assert_eq!(code(&outcome), None, "{}", error_text(&outcome));
    assert_eq!(parts.load(Ordering::SeqCst), 1);
    assert_eq!(bucket.keys("one"), ["one"]);
    assert!(bucket.uploads("one").is_empty());
    assert!(bucket.read("one") == content(20_000_000, 1));
}

#[test]
fn what_a_killed_move_has_put_whole_stays_as_its_source_may_be_gone() {
    let bucket = Bucket::new("moved");
    // It is read again: the objects are whole.
    let (proxy, reached) = holding("GET /moved-");
    let mut daemon = start(&proxy.endpoint, SECRET, &[]);
    let client = daemon.client();
    let begin = |daemon: &Daemon, name: &str| {
        std::fs::write(daemon.path(&format!("fast/{name}")), content(300_000, 1)).unwrap();
        let task = durable(moved(fast(name), there(&bucket, name)));
        submit(&client, task).unwrap()
    };
    let fails = begin(&daemon, "fails");
    until("it is read again", || reached.swap(false, Ordering::SeqCst));
    let cancelled = begin(&daemon, "cancelled");
    until("it is read again", || reached.load(Ordering::SeqCst));
    client.pause(&[cancelled]).unwrap();
    daemon.kill();
    proxy.set(|_, _| Act::Pass);
    // As if both had been released: one is gone, and in the place of the other is something else, so that its task fails.
    for name in ["fails", "cancelled"] {
        std::fs::remove_file(daemon.path(&format!("fast/{name}"))).unwrap();
    }
    std::fs::create_dir(daemon.path("fast/fails")).unwrap();
    start_again(&mut daemon, &proxy.endpoint, SECRET);
    let client = daemon.client();
    let outcome = wait(&client, fails);
    assert_eq!(
        code(&outcome),
        Some(Code::Invalid),
        "{}",
        error_text(&outcome)
    );
    let request_counts = || {
        let seen = proxy.seen.lock().unwrap().clone();
        let of = |word: &str| seen.iter().filter(|r| r.contains(word)).count();
        (of("/cancelled?"), of("/cancelled.tarn-upload?"))
    };
    let before = request_counts();
    client.cancel(&[cancelled]).unwrap();
    assert_eq!(code(&wait(&client, cancelled)), Some(Code::Cancelled));
    until("it is cleaned up after", || {
        let now = request_counts();
        now.0 > before.0 && now.1 > before.1
    });
    // Time enough to remove it, if that were to come.
    let other = run(&client, copy(there(&bucket, "fails"), fast("back")));
    assert_eq!(code(&other), None, "{}", error_text(&other));
    for name in ["fails", "cancelled"] {
        assert!(bucket.read(name) == content(300_000, 1), "{name}");
    }
}

#[test]
fn what_is_cancelled_leaves_nothing_in_the_store_and_rates_hold() {
    let bucket = Bucket::new("cancel");
    let daemon = start(&swift().endpoint, SECRET, &["--external-rate", "2 MB/s"]);
    std::fs::create_dir(daemon.path("fast/out")).unwrap();
    for at in 0..8 {
        let file = daemon.path(&format!("fast/out/part-{at}"));
        std::fs::write(file, content(1_000_000, at)).unwrap();
    }
    let client = daemon.client();
    let id = submit(&client, copy(fast("out"), there(&bucket, "out/"))).unwrap();
    let began = Instant::now();
    until("some of it is there", || bucket.keys("out/").len() >= 3);
    assert!(
        began.elapsed() >= Duration::from_millis(500),
        "{:?}",
        began.elapsed()
    );
    let status = client.status(&[id]).unwrap()[0].clone();
    assert!(
        status.all == Some(8_000_000) && status.done > 0 && status.done < 8_000_000,
        "{status:?}"
    );
    client.cancel(&[id]).unwrap();
    assert_eq!(code(&wait(&client, id)), Some(Code::Cancelled));
    until("it is taken back", || bucket.keys("out/").is_empty());
    assert!(bucket.uploads("out/").is_empty());
}

#[test]
fn what_a_store_refuses_has_its_code() {
    let bucket = Bucket::new("codes");
    bucket.put("in/one", &content(600_000, 1));
    let daemon = start(&swift().endpoint, SECRET, &[]);
    let client = daemon.client();
    std::fs::write(daemon.path("fast/file"), b"file").unwrap();
    let no_bucket =
        |key: &str| TaskLocation::External(format!("s3://none-such/{key}").as_bytes().into());
    for (task, what) in [
        (copy(there(&bucket, "in/two"), fast("x")), "no object"),
        (copy(there(&bucket, "none/"), fast("x")), "nothing at"),
        (copy(no_bucket("a/"), fast("x")), "bucket"),
        (copy(fast("file"), no_bucket("a")), "bucket"),
    ] {
        let refused = run(&client, task);
        assert_eq!(
            code(&refused),
            Some(Code::NotFound),
            "{}",
            error_text(&refused)
        );
        assert!(
            error_text(&refused).contains(what),
            "{}",
            error_text(&refused)
        );
    }
    let wrong = start(&swift().endpoint, "guessed", &[]);
    std::fs::write(wrong.path("fast/file"), b"file").unwrap();
    let none = {
        let mut daemon = Daemon::start(&[]);
        daemon.kill();
        let mut command = with_keys(&daemon, &swift().endpoint, SECRET);
        command
            .env_remove("AWS_ACCESS_KEY_ID")
            .env_remove("AWS_SECRET_ACCESS_KEY");
        daemon.start_by(&mut command);
        daemon
    };
    std::fs::write(none.path("fast/file"), b"file").unwrap();
    for daemon in [&wrong, &none] {
        let client = daemon.client();
        for task in [
            copy(there(&bucket, "in/"), fast("x")),
            copy(there(&bucket, "in/one"), fast("x")),
            copy(fast("file"), there(&bucket, "y")),
        ] {
            let refused = run(&client, task);
            assert_eq!(
                code(&refused),
                Some(Code::Denied),
                "{}",
                error_text(&refused)
            );
            let words = ["guessed", "X-Amz-Signature", SECRET];
            assert!(
                !words.iter().any(|w| error_text(&refused).contains(w)),
                "{}",
                error_text(&refused)
            );
        }
    }
    // Keys that come later are found by the same tarnd.
    std::fs::create_dir(none.path(".aws")).unwrap();
    let keys = format!(
        "[default]\naws_access_key_id = {}\naws_secret_access_key = {SECRET}\n",
        store::KEY
    );
    std::fs::write(none.path(".aws/credentials"), keys).unwrap();
    let late = run(&none.client(), copy(there(&bucket, "in/"), fast("x")));
    assert_eq!(code(&late), None, "{}", error_text(&late));
}

#[test]
fn an_object_that_is_replaced_while_it_is_read_fails_the_task() {
    let bucket = Bucket::new("replaced");
    bucket.put("in/part-0", &content(20 << 20, 1));
    let other = Bucket {
        name: bucket.name.clone(),
        store: Arc::clone(&bucket.store),
    };
    let gets = AtomicUsize::new(0);
    let proxy = Proxy::new(move |request, _| {
        if request.starts_with("GET") && request.contains("/part-0") {
            let before = gets.fetch_add(1, Ordering::SeqCst);
            if before == 1 {
                other.put("in/part-0", &content(20 << 20, 2));
            }
        }
        Act::Pass
    });
    let daemon = start(&proxy.endpoint, SECRET, &[]);
    let client = daemon.client();
    let task = copy(there(&bucket, "in/part-0"), fast("x"));
    let failed = run(&client, task);
    assert_eq!(
        code(&failed),
        Some(Code::Changed),
        "{}",
        error_text(&failed)
    );
    assert!(!daemon.path("fast/x").exists() && daemon.leftovers().is_empty());
}

#[test]
fn what_somebody_puts_where_a_task_puts_stays_and_what_the_task_has_put_goes() {
    let bucket = Bucket::new("meanwhile");
    let other = Bucket {
        name: bucket.name.clone(),
        store: Arc::clone(&bucket.store),
    };
    let came = AtomicBool::new(false);
    let proxy = Proxy::new(move |request, _| {
        // The last one that is put.
        let puts = request.starts_with("PUT") && request.contains(".tarn-manifest");
        if puts && !came.swap(true, Ordering::SeqCst) {
            other.put("out/.tarn-manifest", b"theirs");
        }
        if request.starts_with("PUT") && request.contains("/out-one?") {
            other.put("out-one", b"theirs");
        }
        Act::Pass
    })
    .with(store::Conditions::Kept);
    let daemon = start(&proxy.endpoint, SECRET, &[]);
    let client = daemon.client();
    tree(&daemon.path("fast/tree"));
    std::fs::write(daemon.path("fast/one"), b"one").unwrap();
    let failed = run(&client, copy(fast("tree"), there(&bucket, "out/")));
    assert_eq!(code(&failed), Some(Code::Exists), "{}", error_text(&failed));
    assert!(
        error_text(&failed).contains("somebody else has put"),
        "{}",
        error_text(&failed)
    );
    assert_eq!(bucket.keys("out/"), ["out/.tarn-manifest"]);
    assert_eq!(bucket.read("out/.tarn-manifest"), b"theirs");
    let failed = run(&client, copy(fast("one"), there(&bucket, "out-one")));
    assert_eq!(code(&failed), Some(Code::Exists), "{}", error_text(&failed));
    assert_eq!(bucket.read("out-one"), b"theirs");
}

/// Does something as another user, where this one may; other threads stay who they are.
fn by<T: Send>(user: u32, does: impl FnOnce() -> T + Send) -> Option<T> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can become another user");
        return None;
    }
    let as_user = || {
        let user = rustix::process::Uid::from_raw(user);
        rustix::thread::set_thread_uid(user).unwrap();
        does()
    };
    Some(std::thread::scope(|scope| {
        scope.spawn(as_user).join().unwrap()
    }))
}

#[test]
fn attack_other_users_never_have_the_owners_keys() {
    let bucket = Bucket::new("guests");
    bucket.put("secret", b"mine");
    let request_count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&request_count);
    let proxy = Proxy::new(move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        Act::Pass
    });
    let daemon = start(&proxy.endpoint, SECRET, &["--guests"]);
    std::fs::set_permissions(daemon.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let socket = daemon.socket();
    by(65534, || {
        let guest = Client::connect(&socket, None).unwrap();
        for task in [
            copy(there(&bucket, "secret"), fast("x")),
            copy(there(&bucket, "secret"), there(&bucket, "taken")),
            copy(fast("x"), there(&bucket, "put")),
        ] {
            let refused = submit(&guest, task).unwrap_err();
            assert_eq!(refused.code, Code::Denied, "{refused}");
            assert!(refused.text.contains("other users"), "{refused}");
        }
    });
    assert_eq!(request_count.load(Ordering::SeqCst), 0);
    let own = run(&daemon.client(), copy(there(&bucket, "secret"), fast("x")));
    assert!(
        code(&own).is_none() && request_count.load(Ordering::SeqCst) > 0,
        "{}",
        error_text(&own)
    );
}

const PROGRAM: &str = r#"
import sys, tarn
bucket = sys.argv[1]
with tarn.connect() as node:
    got = node.copy(f"s3://{bucket}/in", tarn.Space("fast", "in"))
    put = node.copy(tarn.Space("fast", "in"), f"s3://{bucket}/out", after=[got], verify="readback", durable=False)
    node.wait(put)
    try:
        node.wait(node.copy(f"s3://{bucket}/none", tarn.Space("fast", "none")))
    except tarn.Error as error:
        print(error.code.name, error)
"#;

/// Over the C library.
#[test]
fn a_python_program_copies_from_a_store_and_to_it() {
    let bucket = Bucket::new("python");
    bucket.put("in", b"from a store");
    let daemon = start(&swift().endpoint, SECRET, &[]);
    let mut command = Command::new("/usr/bin/python3");
    command
        .args(["-B", "-c", PROGRAM, &bucket.name])
        .env("TARN_SOCKET", daemon.socket())
        .env("TARN_LIBRARY", library().join("libtarn.so"))
        .env("PYTHONPATH", source("../../bindings/python/python"));
    let text = printed(&mut command);
    assert!(
        text.starts_with("NOTFOUND") && text.contains("there is no object"),
        "{text}"
    );
    assert_eq!(bucket.read("out"), b"from a store");
}
