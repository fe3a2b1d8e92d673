//! What goes wrong on bad days: each fails whole, with the source untouched and nothing visible.

mod common;

use common::*;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tarn_base::event::FailureKind;
use tarn_base::manifest::EntryKind;
use tarn_base::part::Verify;
use tarn_movers::Trees;
use tarn_ports::{Control, CopyJob, CopySource, Mover, MoverError};

const CHUNK: usize = 1 << 20;

fn fails(
    outcome: Result<tarn_ports::CopyReport, MoverError>,
    kind: FailureKind,
    says: &str,
) -> String {
    let failure = outcome.expect_err("must fail").0;
    assert_eq!(failure.kind, kind, "{}", failure.message);
    assert!(failure.message.contains(says), "{}", failure.message);
    failure.message
}

fn with_manifest(from: &Path, to: &Path) -> CopyJob {
    let manifest = Trees::new().digest(from, &quiet()).unwrap();
    let source = CopySource {
        manifest: Some(manifest),
        ..source(from)
    };
    job(vec![source], to)
}

#[test]
fn a_flipped_byte_is_found_by_copy_and_verify() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir(&from).unwrap();
    for size in [100, 3 * CHUNK + 5] {
        std::fs::write(from.join("f"), bytes(size, 1)).unwrap();
        let job = with_manifest(&from, &to);
        let file = std::fs::File::options()
            .write(true)
            .open(from.join("f"))
            .unwrap();
        let time = file.metadata().unwrap().modified().unwrap();
        file.write_all_at(&[bytes(size, 1)[size - 1] ^ 1], size as u64 - 1)
            .unwrap();
        file.set_modified(time).unwrap();
        fails(
            Trees::new().copy(&job, &quiet()),
            FailureKind::Corrupt,
            "does not match its hash",
        );
        assert!(!to.exists() && clean(&job));
        let manifest = job.sources[0].manifest.as_ref().unwrap();
        let failure = Trees::new()
            .verify(&from, manifest, &quiet())
            .unwrap_err()
            .0;
        assert_eq!(failure.kind, FailureKind::Corrupt);
        assert!(failure.message.contains("/from/f"), "{}", failure.message);
    }
}

#[test]
fn a_source_that_is_not_what_it_was() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("f"), "one").unwrap();
    std::fs::write(from.join("g"), "two").unwrap();
    let job = with_manifest(&from, &to);
    let fails = |says| {
        fails(
            Trees::new().copy(&job, &quiet()),
            FailureKind::SourceChanged,
            says,
        )
    };
    std::fs::write(from.join("f"), "ONE").unwrap();
    fails("other content");
    std::fs::write(from.join("f"), "longer").unwrap();
    fails("another size");
    std::fs::remove_file(from.join("f")).unwrap();
    fails("is missing");
    std::fs::create_dir(from.join("f")).unwrap();
    fails("another kind");
    std::fs::remove_dir(from.join("f")).unwrap();
    std::fs::write(from.join("f"), "one").unwrap();
    std::fs::write(from.join("new"), "").unwrap();
    fails("not in the manifest");
    std::fs::remove_file(from.join("new")).unwrap();
    std::fs::set_permissions(from.join("f"), std::fs::Permissions::from_mode(0o640)).unwrap();
    fails("another mode");
    assert!(!to.exists() && clean(&job));
}

#[test]
fn a_listed_source_that_changed_before_it_was_read() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("f"), "one").unwrap();
    let manifest = Trees::new().list(&from, &quiet()).unwrap();
    std::fs::write(from.join("f"), "two").unwrap();
    let file = std::fs::File::options()
        .write(true)
        .open(from.join("f"))
        .unwrap();
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    let source = CopySource {
        manifest: Some(manifest),
        ..source(&from)
    };
    let outcome = Trees::new().copy(&job(vec![source], &to), &quiet());
    fails(outcome, FailureKind::SourceChanged, "since it was listed");
}

/// Starts a slow copy, waits until it has begun, does something, and returns how the copy ended.
fn meanwhile(
    job: &CopyJob,
    control: &Control,
    change: impl FnOnce() + Send,
) -> Result<tarn_ports::CopyReport, MoverError> {
    let mut slow = job.clone();
    slow.rate = 80 << 20;
    std::thread::scope(|scope| {
        let copy = scope.spawn(|| Trees::new().copy(&slow, control));
        while control.done.load(Ordering::Relaxed) == 0 && !copy.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        change();
        copy.join().unwrap()
    })
}

#[test]
fn a_source_changes_or_vanishes_while_it_is_copied() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir(&from).unwrap();
    let big = from.join("big");
    let write = || std::fs::write(&big, bytes(40 * CHUNK, 3)).unwrap();
    let job = job(vec![source(&from)], &to);
    let change = |change: &(dyn Fn() + Sync)| {
        write();
        let outcome = meanwhile(&job, &Control::default(), change);
        fails(outcome, FailureKind::SourceChanged, "/from");
        assert!(!to.exists() && clean(&job));
    };
    let open = || std::fs::File::options().write(true).open(&big).unwrap();
    change(&|| open().write_all_at(b"changed", 39 << 20).unwrap());
    change(&|| open().set_len(5).unwrap());
    change(&|| std::fs::remove_file(&big).unwrap());
    change(&|| std::fs::write(from.join("appears"), "").unwrap());
}

#[test]
fn a_new_hard_link_to_a_source_is_no_change() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("big"), bytes(24 * CHUNK, 3)).unwrap();
    let job = job(vec![source(&from)], &to);
    let link = || std::fs::hard_link(from.join("big"), dir.at("view")).unwrap();
    meanwhile(&job, &Control::default(), link).unwrap();
    assert_eq!(model(&from), model(&to));
}

#[test]
fn cancelled_half_way_then_resumed() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir_all(from.join("sub")).unwrap();
    std::fs::write(from.join("big"), bytes(40 * CHUNK + 7, 3)).unwrap();
    for i in 0..50 {
        std::fs::write(from.join(format!("sub/{i}")), bytes(i * 100, 1)).unwrap();
    }
    let job = job(vec![source(&from)], &to);
    let control = Control::default();
    let started = std::time::Instant::now();
    let outcome = meanwhile(&job, &control, || {
        while control.done.load(Ordering::Relaxed) < 12 << 20 {
            std::thread::sleep(Duration::from_millis(1));
        }
        control.cancel.store(true, Ordering::Relaxed);
    });
    fails(outcome, FailureKind::Cancelled, "cancelled");
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "cancelling took long"
    );
    assert!(!to.exists() && job.staging.exists());
    let report = Trees::new().copy(&job, &quiet()).unwrap();
    assert!(report.resumed >= 8 << 20, "{}", report.resumed);
    assert_eq!(report.resumed + report.bytes, report.manifests[0].bytes());
    assert_eq!(model(&from), model(&to));
    assert!(clean(&job));
}

/// Half of a copy, as `kill -9` would leave it.
fn interrupted(job: &CopyJob) {
    let control = Control::default();
    let outcome = meanwhile(job, &control, || {
        while control.done.load(Ordering::Relaxed) < 20 << 20 {
            std::thread::sleep(Duration::from_millis(1));
        }
        control.cancel.store(true, Ordering::Relaxed);
    });
    assert!(outcome.is_err());
}

#[test]
fn leftovers_are_used_only_when_they_are_proven() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir_all(from.join("gone")).unwrap();
    std::fs::write(from.join("big"), bytes(40 * CHUNK, 3)).unwrap();
    std::fs::write(from.join("gone/x"), "x").unwrap();
    let job = job(vec![source(&from)], &to);
    interrupted(&job);
    // A copied chunk is damaged, the source loses a folder, somebody leaves something in the staging folder.
    let big = job.staging.join("big");
    std::fs::File::options()
        .write(true)
        .open(&big)
        .unwrap()
        .write_all_at(b"damaged", 1000)
        .unwrap();
    std::fs::remove_dir_all(from.join("gone")).unwrap();
    std::fs::create_dir(from.join("new")).unwrap();
    std::fs::write(job.staging.join("new"), "in the way").unwrap();
    std::fs::write(job.staging.join("stray"), "not ours").unwrap();
    let report = Trees::new().copy(&job, &quiet()).unwrap();
    assert_eq!(model(&from), model(&to));
    assert!(
        report.resumed > 0 && report.resumed < 40 << 20,
        "{}",
        report.resumed
    );
    assert!(clean(&job));
}

#[test]
fn leftovers_of_another_content_are_not_used() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("big"), bytes(40 * CHUNK, 3)).unwrap();
    let job = job(vec![source(&from)], &to);
    interrupted(&job);
    std::fs::write(from.join("big"), bytes(40 * CHUNK, 4)).unwrap();
    let report = Trees::new().copy(&job, &quiet()).unwrap();
    assert_eq!(report.resumed, 0);
    assert_eq!(model(&from), model(&to));
}

/// The process that `killed_half_way_then_resumed` kills.
#[test]
#[ignore = "runs only as the child of another test"]
fn child_copies_slowly() {
    let Some(dir) = std::env::var_os("TARN_TEST_DIR") else {
        return;
    };
    let dir = Path::new(&dir);
    let mut job = job(vec![source(&dir.join("from"))], &dir.join("to"));
    job.rate = 40 << 20;
    Trees::new().copy(&job, &quiet()).unwrap();
}

#[test]
fn killed_half_way_then_resumed() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("big"), bytes(60 * CHUNK, 3)).unwrap();
    for i in 0..300 {
        std::fs::write(from.join(format!("small{i}")), bytes(30_000, i as u8)).unwrap();
    }
    let job = job(vec![source(&from)], &to);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "child_copies_slowly", "--quiet"])
        .env("TARN_TEST_DIR", &dir.0)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut progress = job.staging.as_os_str().to_os_string();
    progress.push(".progress");
    let begun = || std::fs::metadata(&progress).is_ok_and(|m| m.len() > 20_000);
    while !begun() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!to.exists() && job.staging.exists());
    let report = Trees::new().copy(&job, &quiet()).unwrap();
    assert!(report.resumed > 0, "nothing was reused");
    assert_eq!(model(&from), model(&to));
    assert!(clean(&job));
}

#[test]
fn gathered_files_that_differ_conflict() {
    let dir = Scratch::new();
    let (a, b, to) = (dir.at("a"), dir.at("b"), dir.at("to"));
    for (root, same, other) in [(&a, "same", "one"), (&b, "same", "two")] {
        std::fs::create_dir_all(root.join("sub")).unwrap();
        std::fs::write(root.join("sub/same"), same).unwrap();
        std::fs::write(root.join(format!("sub/only-{other}")), other).unwrap();
    }
    let job = job(vec![source(&a), source(&b)], &to);
    let report = Trees::new().copy(&job, &quiet()).unwrap();
    assert_eq!(report.manifests.len(), 2);
    let all: Vec<_> = model(&to)
        .into_keys()
        .map(|k| String::from_utf8(k).unwrap())
        .collect();
    assert_eq!(all, ["sub", "sub/only-one", "sub/only-two", "sub/same"]);
    Trees::new().remove(&to).unwrap();

    std::fs::write(b.join("sub/same"), "different").unwrap();
    let message = fails(
        Trees::new().copy(&job, &quiet()),
        FailureKind::Conflict,
        "sub/same",
    );
    assert!(
        message.contains("/a") && message.contains("/b"),
        "{message}"
    );
    assert!(!to.exists() && clean(&job));

    std::fs::remove_file(b.join("sub/same")).unwrap();
    std::fs::create_dir(b.join("sub/same")).unwrap();
    fails(
        Trees::new().copy(&job, &quiet()),
        FailureKind::Conflict,
        "sub/same",
    );
    assert!(!to.exists() && clean(&job));

    let manifests = [&a, &b].map(|r| (r.clone(), Trees::new().digest(r, &quiet()).unwrap()));
    let failure = Trees::new()
        .link_view(&manifests, &dir.at("view"))
        .unwrap_err()
        .0;
    assert_eq!(failure.kind, FailureKind::Conflict);
    assert!(!dir.at("view").exists());
}

#[test]
fn links_and_names_that_lead_out_are_refused() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir_all(from.join("sub")).unwrap();
    std::fs::write(dir.at("secret"), "secret").unwrap();
    let job = job(vec![source(&from)], &to);
    for target in ["../../secret", "/etc/passwd", "../sub/../../secret"] {
        symlink(target, from.join("sub/link")).unwrap();
        fails(
            Trees::new().copy(&job, &quiet()),
            FailureKind::Escape,
            "sub/link",
        );
        assert!(
            Trees::new().digest(&from, &quiet()).is_err()
                && Trees::new().list(&from, &quiet()).is_err()
        );
        assert!(!to.exists() && clean(&job));
        std::fs::remove_file(from.join("sub/link")).unwrap();
    }
    // The text stays inside, but the way through another link does not.
    symlink("..", from.join("sub/up")).unwrap();
    symlink("sub/up/../secret", from.join("out")).unwrap();
    fails(
        Trees::new().copy(&job, &quiet()),
        FailureKind::Escape,
        "out",
    );
    for name in ["../x", "a/b", "..", "", "/x"] {
        let mut job = job.clone();
        job.sources[0].as_entry = Some(name.into());
        fails(
            Trees::new().copy(&job, &quiet()),
            FailureKind::Escape,
            "refused",
        );
    }
}

#[test]
fn special_files_are_refused() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir(&from).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap();
    fails(copy(&from, &to), FailureKind::Io, "is a socket");
    std::fs::remove_file(from.join("socket")).unwrap();
    let made = Command::new("mkfifo")
        .arg(from.join("fifo"))
        .status()
        .unwrap();
    assert!(made.success());
    fails(copy(&from, &to), FailureKind::Io, "is a FIFO");
}

#[test]
fn an_unreadable_file_fails_the_copy_and_names_it() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("locked"), "x").unwrap();
    std::fs::set_permissions(from.join("locked"), std::fs::Permissions::from_mode(0o000)).unwrap();
    if unprivileged() {
        fails(copy(&from, &to), FailureKind::Io, "locked");
        assert!(!to.exists());
        return;
    }
    // As root: the same test as nobody, in a folder that nobody can use.
    std::fs::set_permissions(&dir.0, std::fs::Permissions::from_mode(0o777)).unwrap();
    let exe = dir.at("exe");
    std::fs::copy(std::env::current_exe().unwrap(), &exe).unwrap();
    std::fs::set_permissions(&exe, std::fs::Permissions::from_mode(0o755)).unwrap();
    let tmp = dir.at("tmp");
    std::fs::create_dir(&tmp).unwrap();
    std::fs::set_permissions(&tmp, std::fs::Permissions::from_mode(0o1777)).unwrap();
    use std::os::unix::process::CommandExt;
    let status = Command::new(&exe)
        .args([
            "--exact",
            "an_unreadable_file_fails_the_copy_and_names_it",
            "read_only_folders_can_be_copied_divided_and_removed",
        ])
        .env("TMPDIR", &tmp)
        .current_dir(&tmp)
        .uid(65534)
        .gid(65534)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn read_only_folders_can_be_copied_divided_and_removed() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir_all(from.join("a/b")).unwrap();
    std::fs::create_dir_all(from.join("processor1")).unwrap();
    std::fs::write(from.join("a/b/f"), "x").unwrap();
    std::fs::write(from.join("processor1/f"), "y").unwrap();
    for (path, mode) in [
        ("a/b/f", 0o444),
        ("a/b", 0o555),
        ("a", 0o555),
        ("processor1", 0o2555),
    ] {
        std::fs::set_permissions(from.join(path), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let mover = Trees::new();
    let manifest = copy(&from, &to).unwrap().manifests.remove(0);
    assert_eq!(model(&from), model(&to));
    let rule = tarn_base::pattern::ScatterRule::new("processor{rank}").unwrap();
    let parts = tarn_base::merge::partition(
        &manifest,
        tarn_base::workflow::Partition::Ranks,
        Some(&rule),
    )
    .unwrap();
    let named: Vec<_> = parts
        .iter()
        .enumerate()
        .map(|(i, (_, m))| (m, dir.at(&format!("part{i}"))))
        .collect();
    mover.split(&from, &named).unwrap();
    for (manifest, path) in &named {
        mover.verify(path, manifest, &quiet()).unwrap();
    }
    mover.remove(&to).unwrap();
    assert!(!to.exists());
}

#[test]
fn a_full_destination_fails_with_figures_and_can_be_resumed() {
    // A tmpfs of our own, in a namespace of our own: the test runs itself again inside.
    if let Some(dir) = std::env::var_os("TARN_TEST_FULL") {
        return full_destination(Path::new(&dir));
    }
    let dir = Scratch::new();
    let mount = format!(
        "mount -t tmpfs -o size=8m none {0} && exec {1} --exact a_full_destination_fails_with_figures_and_can_be_resumed",
        dir.0.display(),
        std::env::current_exe().unwrap().display()
    );
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &mount])
        .env("TARN_TEST_FULL", &dir.0)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && (said.contains("unshare") || said.contains("mount:")) {
        eprintln!("SKIPPED: no namespaces here: {said}");
        return;
    }
    assert!(
        output.status.success(),
        "{}{said}",
        String::from_utf8_lossy(&output.stdout)
    );
}

fn full_destination(dir: &Path) {
    let home = Scratch::new();
    let from = home.at("from");
    std::fs::create_dir(&from).unwrap();
    for i in 0..12 {
        std::fs::write(from.join(format!("f{i:02}")), bytes(CHUNK, i)).unwrap();
    }
    let job = job(vec![source(&from)], &dir.join("to"));
    let message = fails(
        Trees::new().copy(&job, &quiet()),
        FailureKind::NoSpace,
        "are free in",
    );
    assert!(
        message.contains("bytes") && message.contains(&dir.display().to_string()),
        "{message}"
    );
    assert!(!job.dest.exists() && job.staging.exists());
    // Somebody makes room: half of the source is not needed any more.
    for i in 6..12 {
        std::fs::remove_file(from.join(format!("f{i:02}"))).unwrap();
    }
    let report = Trees::new().copy(&job, &quiet()).unwrap();
    assert!(report.resumed > 0);
    assert_eq!(model(&from), model(&job.dest));
}

#[test]
fn an_existing_destination_is_kept_or_replaced_whole() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("f"), "new").unwrap();
    std::fs::create_dir(&to).unwrap();
    std::fs::write(to.join("old"), "old").unwrap();
    let mut job = job(vec![source(&from)], &to);
    fails(
        Trees::new().copy(&job, &quiet()),
        FailureKind::Io,
        "exists already",
    );
    assert_eq!(std::fs::read_to_string(to.join("old")).unwrap(), "old");
    job.replace = true;
    job.sync = true;
    Trees::new().copy(&job, &quiet()).unwrap();
    assert_eq!(model(&from), model(&to));
    assert!(clean(&job));
}

#[test]
fn holes_links_and_attributes_are_kept() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir_all(from.join("d")).unwrap();
    let sparse = std::fs::File::create(from.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    sparse.write_all_at(&bytes(5000, 1), 10 << 20).unwrap();
    sparse
        .write_all_at(&bytes(100, 2), (40 << 20) + 123)
        .unwrap();
    std::fs::File::create(from.join("hole"))
        .unwrap()
        .set_len(3 << 20)
        .unwrap();
    std::fs::write(from.join("one"), "linked").unwrap();
    std::fs::hard_link(from.join("one"), from.join("d/two")).unwrap();
    let mover = Trees::new();
    let can = mover.capabilities(&dir.0).unwrap();
    if can.xattrs {
        for path in ["d", "one"] {
            let file = std::fs::File::open(from.join(path)).unwrap();
            rustix::fs::fsetxattr(
                &file,
                "user.tarn-test",
                b"value\0x",
                rustix::fs::XattrFlags::empty(),
            )
            .unwrap();
        }
    }
    std::fs::set_permissions(from.join("one"), std::fs::Permissions::from_mode(0o444)).unwrap();
    let mut job = job(vec![source(&from)], &to);
    job.verify = Verify::Readback;
    let report = mover.copy(&job, &quiet()).unwrap();
    assert_eq!(report.lost, Vec::<String>::new());
    assert_eq!(model(&from), model(&to));
    let blocks = |path: &str| std::fs::metadata(to.join(path)).unwrap().blocks() * 512;
    if can.sparse {
        assert!(blocks("sparse") < 1 << 20, "{}", blocks("sparse"));
        assert!(blocks("hole") < 1 << 20);
        let entry = report.manifests[0].find(b"sparse").unwrap();
        let EntryKind::File { extents, .. } = &entry.kind else {
            panic!()
        };
        assert!(extents.iter().map(|e| e.1).sum::<u64>() < 1 << 20);
    }
    let inode = |path: &str| std::fs::metadata(to.join(path)).unwrap().ino();
    assert_eq!(inode("one"), inode("d/two"));
    if can.xattrs {
        let mut value = [0; 64];
        let file = std::fs::File::open(to.join("d/two")).unwrap();
        let n = rustix::fs::fgetxattr(&file, "user.tarn-test", &mut value[..]).unwrap();
        assert_eq!(&value[..n], b"value\0x");
        assert_eq!(report.manifests[0].find(b"d").unwrap().xattrs.len(), 1);
    }
    // What a dense copy would hash to.
    let dense = dir.at("dense");
    std::fs::create_dir(&dense).unwrap();
    std::fs::write(
        dense.join("sparse"),
        std::fs::read(from.join("sparse")).unwrap(),
    )
    .unwrap();
    let dense = mover.digest(&dense, &quiet()).unwrap();
    let hash = |m: &tarn_base::manifest::Manifest| match &m.find(b"sparse").unwrap().kind {
        EntryKind::File { hash, .. } => *hash,
        _ => None,
    };
    assert_eq!(hash(&dense), hash(&report.manifests[0]));
    assert!(mover.stored(&to).unwrap() < 4 << 20);
}

#[test]
fn deep_trees_do_not_need_many_open_files() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    let mut at = from.clone();
    for _ in 0..700 {
        at.push("d");
    }
    std::fs::create_dir_all(&at).unwrap();
    std::fs::write(at.join("f"), "deep").unwrap();
    let report = copy(&from, &to).unwrap();
    assert_eq!(report.manifests[0].entries.len(), 701);
    Trees::new()
        .verify(&to, &report.manifests[0], &quiet())
        .unwrap();
    assert_eq!(Trees::new().list(&to, &quiet()).unwrap().entries.len(), 701);
}

#[test]
fn one_file_or_link_is_a_tree_of_one_entry() {
    let dir = Scratch::new();
    let (file, link, folder) = (dir.at("file"), dir.at("link"), dir.at("folder"));
    std::fs::write(&file, "content").unwrap();
    symlink("elsewhere", &link).unwrap();
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("in"), "in").unwrap();
    let named = |root: &Path, name: Option<&str>| CopySource {
        as_entry: name.map(Into::into),
        ..source(root)
    };
    let to = dir.at("to");
    let sources = vec![
        named(&file, None),
        named(&file, Some("renamed")),
        named(&link, None),
        named(&folder, Some("sub")),
    ];
    let report = Trees::new().copy(&job(sources, &to), &quiet()).unwrap();
    let all: Vec<_> = model(&to)
        .into_keys()
        .map(|k| String::from_utf8(k).unwrap())
        .collect();
    assert_eq!(all, ["file", "link", "renamed", "sub", "sub/in"]);
    assert_eq!(&*report.manifests[1].entries[0].path, b"renamed");
    assert_eq!(
        Trees::new().list(&file, &quiet()).unwrap().entries[0].path,
        report.manifests[0].entries[0].path
    );
    assert_eq!(
        Trees::new().digest(&file, &quiet()).unwrap(),
        report.manifests[0]
    );
}

#[test]
fn many_small_sources_share_one_rate() {
    let dir = Scratch::new();
    let mover = Trees::new().with_threads(4);
    let jobs: Vec<_> = (0..2)
        .map(|i| {
            let from = dir.at(&format!("from{i}"));
            std::fs::create_dir(&from).unwrap();
            for f in 0..4 {
                std::fs::write(from.join(f.to_string()), bytes(500_000, f)).unwrap();
            }
            let mut job = job(vec![source(&from)], &dir.at(&format!("to{i}")));
            job.rate = 10_000_000;
            job
        })
        .collect();
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        for job in &jobs {
            scope.spawn(|| mover.copy(job, &quiet()).unwrap());
        }
    });
    // 4 MB at 10 MB/s for both jobs together.
    let took = start.elapsed();
    assert!(
        took >= Duration::from_millis(380) && took < Duration::from_secs(3),
        "{took:?}"
    );
}

#[test]
fn an_interrupted_division_is_finished() {
    let dir = Scratch::new();
    let from = dir.at("from");
    std::fs::create_dir_all(from.join("processor1/x")).unwrap();
    std::fs::create_dir_all(from.join("shared")).unwrap();
    for path in ["processor1/x/f", "shared/g", "h"] {
        std::fs::write(from.join(path), path).unwrap();
    }
    let mover = Trees::new();
    let manifest = mover.digest(&from, &quiet()).unwrap();
    let rule = tarn_base::pattern::ScatterRule::new("processor{rank}").unwrap();
    let parts = tarn_base::merge::partition(
        &manifest,
        tarn_base::workflow::Partition::Ranks,
        Some(&rule),
    )
    .unwrap();
    let named: Vec<_> = parts
        .iter()
        .enumerate()
        .map(|(i, (_, m))| (m, dir.at(&format!("part{i}"))))
        .collect();
    // What was moved before the interruption.
    std::fs::create_dir_all(dir.at("part1.splitting/shared")).unwrap();
    std::fs::rename(from.join("h"), dir.at("part1.splitting/h")).unwrap();
    mover.split(&from, &named).unwrap();
    for (manifest, path) in &named {
        mover.verify(path, manifest, &quiet()).unwrap();
    }
    assert!(!from.exists() && !dir.at("part1.splitting").exists());
    // Once more: nothing to do. With a part missing, it says so.
    mover.split(&from, &named).unwrap();
    mover.remove(&named[0].1).unwrap();
    assert!(mover.split(&from, &named).is_err());
}

#[test]
fn a_file_of_no_part_is_not_removed() {
    let dir = Scratch::new();
    let from = dir.at("from");
    std::fs::create_dir_all(from.join("a")).unwrap();
    std::fs::write(from.join("a/f"), "f").unwrap();
    let manifest = Trees::new().digest(&from, &quiet()).unwrap();
    std::fs::write(from.join("late"), "late").unwrap();
    let failure = Trees::new()
        .split(&from, &[(&manifest, dir.at("part"))])
        .unwrap_err()
        .0;
    assert!(failure.message.contains("late"), "{}", failure.message);
    assert!(from.join("late").exists());
}
