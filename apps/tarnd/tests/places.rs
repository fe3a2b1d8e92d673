//! Places that have several names, that contain each other, that change while they are moved: nothing is lost, no space is counted
//! twice.

mod common;

use common::*;
use rustix::fd::AsFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use tarn_proto::local::*;

fn replacing(task: TaskSpec) -> TaskSpec {
    TaskSpec {
        replace: true,
        ..task
    }
}

fn on(node: &str, path: &str) -> TaskLocation {
    TaskLocation::Node {
        node: node.into(),
        space: "fast".into(),
        path: path.as_bytes().into(),
    }
}

fn text(outcome: &TaskOutcome) -> &str {
    match &outcome.end {
        TaskEnd::Failed(why) => &why.text,
        TaskEnd::Done => "",
    }
}

/// A move onto itself loses nothing, by any names of its two ends.
#[test]
fn a_move_onto_itself() {
    let (a, b) = pair(&[]);
    let client = a.client();
    symlink(a.path("fast"), a.path("alias")).unwrap();
    std::fs::create_dir(a.path("out/sub")).unwrap();
    for folder in [a.path("fast"), b.path("fast"), a.path("out")] {
        std::fs::write(folder.join("y"), b"precious").unwrap();
        std::fs::create_dir(folder.join("tree")).unwrap();
        std::fs::write(folder.join("tree/leaf"), b"precious").unwrap();
    }
    for name in ["y", "tree"] {
        let outside = |daemon: &Daemon, folder: &str| daemon.outside(&format!("{folder}/{name}"));
        let url = format!("file://{}", a.path("alias").join(name).display());
        for (from, to) in [
            (fast(name), fast(name)),
            (outside(&a, "fast"), fast(name)),
            (outside(&a, "alias"), fast(name)),
            (
                TaskLocation::External(url.into_bytes().as_slice().into()),
                fast(name),
            ),
            (on("a", name), fast(name)),
            (fast(name), on("a", name)),
            (fast(name), outside(&a, "fast")),
            (outside(&a, "out"), outside(&a, "out")),
            (on("b", name), on("b", name)),
            // As on a file system that both nodes have.
            (outside(&b, "fast"), on("b", name)),
        ] {
            for task in [
                moved(from.clone(), to.clone()),
                copy(from.clone(), to.clone()),
            ] {
                let end = run(&client, replacing(task.clone()));
                assert_eq!(code(&end), Some(Code::Invalid), "{task:?}: {end:?}");
            }
        }
    }
    for folder in [a.path("fast"), b.path("fast"), a.path("out")] {
        assert_eq!(read(&folder.join("y")), b"precious");
        assert_eq!(read(&folder.join("tree/leaf")), b"precious");
    }
    assert_eq!((a.leftovers(), b.leftovers()), (Vec::new(), Vec::new()));
    // Two names of one file are two places.
    std::fs::hard_link(a.path("fast/y"), a.path("fast/z")).unwrap();
    let end = run(&client, replacing(moved(fast("y"), fast("z"))));
    assert_eq!(code(&end), None, "{end:?}");
    assert!(read(&a.path("fast/z")) == b"precious" && !a.path("fast/y").exists());
}

/// Nodes whose dataspaces are in one folder of a shared file system: data moved from one to the other is not removed after it has
/// taken its own place.
#[test]
fn a_move_to_the_same_folder_of_another_node() {
    let [a, b, c] = ports();
    let nodes = [("a", a, ""), ("b", b, ""), ("c", c, "")];
    let a = start_peer("a", KEY, &nodes, &[]);
    let also = |name: &str, folder: &str| {
        let shared = a.path(folder);
        std::fs::create_dir(&shared).unwrap();
        std::fs::write(shared.join("x"), b"precious").unwrap();
        let dir = tempfile::tempdir().unwrap();
        symlink(&shared, dir.path().join("fast")).unwrap();
        let file = peers(dir.path(), KEY, &nodes);
        let other = Daemon::start_in(dir, "64MiB", &["--node-name", name, "--peers", &file]);
        (other, shared)
    };
    let (_b, in_space) = also("b", "fast/shared");
    let (_c, outside) = also("c", "out/shared");
    for (from, to) in [
        (fast("shared/x"), on("b", "x")),
        (on("b", "x"), fast("shared/x")),
        (on("c", "x"), a.outside("out/shared/x")),
    ] {
        let end = run(&a.client(), replacing(moved(from.clone(), to)));
        assert_eq!(code(&end), Some(Code::Changed), "{from:?}: {end:?}");
        assert_eq!(read(&in_space.join("x")), b"precious");
        assert_eq!(read(&outside.join("x")), b"precious");
    }
}

/// An object that takes a file's name while the file is moved into memory stays.
#[test]
fn a_file_replaced_while_it_moves_into_memory() {
    let daemon = Daemon::start(&[]);
    let client = daemon.client();
    let memfd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memfd, 1_000_000).unwrap();
    let region = client.register(memfd.as_fd(), 1_000_000).unwrap();
    let memory = || TaskLocation::Memory {
        region,
        offset: 0,
        length: 1_000_000,
    };
    let old = content(1_000_000, 1);
    std::fs::write(daemon.path("fast/f"), &old).unwrap();
    std::fs::write(daemon.path("fast/new"), content(1_000_000, 2)).unwrap();
    let slow = TaskSpec {
        rate: 2_000_000,
        ..moved(fast("f"), memory())
    };
    let id = submit(&client, slow).unwrap();
    let until = Instant::now() + LONG;
    while client.status(&[id]).unwrap()[0].done < 200_000 {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(5));
    }
    std::fs::rename(daemon.path("fast/new"), daemon.path("fast/f")).unwrap();
    let end = wait(&client, id);
    assert_eq!(code(&end), Some(Code::Changed), "{end:?}");
    assert!(read(&daemon.path("fast/f")) == content(1_000_000, 2));
    // Nobody in the way: it is moved.
    assert_eq!(code(&run(&client, moved(fast("f"), memory()))), None);
    assert!(!daemon.path("fast/f").exists() && daemon.leftovers().is_empty());
}

/// A folder that memory replaces is gone, and its space is free.
#[test]
fn memory_replaces_a_folder() {
    let daemon = Daemon::start(&[]);
    let client = daemon.client();
    std::fs::write(daemon.path("big"), content(8 << 20, 1)).unwrap();
    assert_eq!(
        code(&run(&client, copy(daemon.outside("big"), fast("tree/big")))),
        None
    );
    let memfd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memfd, 4096).unwrap();
    let region = client.register(memfd.as_fd(), 4096).unwrap();
    let memory = TaskLocation::Memory {
        region,
        offset: 0,
        length: 4096,
    };
    assert_eq!(
        code(&run(&client, replacing(copy(memory, fast("tree"))))),
        None
    );
    assert_eq!(read(&daemon.path("fast/tree")), vec![0; 4096]);
    assert_eq!(daemon.leftovers(), Vec::<PathBuf>::new());
    let used = client.spaces().unwrap()[0].used;
    assert!(used < 1 << 20, "{used}");
}

/// A dataspace's folder cannot be filled by its outside name, by any path.
#[test]
fn a_space_is_not_filled_from_outside() {
    let daemon = Daemon::start(&[]);
    let client = daemon.client();
    std::fs::create_dir_all(daemon.path("fast/sub")).unwrap();
    symlink(daemon.path("fast/sub"), daemon.path("alias")).unwrap();
    std::fs::write(daemon.path("f"), b"bytes").unwrap();
    std::fs::create_dir(daemon.path("tree")).unwrap();
    let whole = daemon.dir.path().file_name().unwrap().to_owned();
    let above = daemon.dir.path().parent().unwrap().join(whole);
    use std::os::unix::ffi::OsStrExt;
    let above = TaskLocation::External(above.as_os_str().as_bytes().into());
    for to in [
        daemon.outside("fast/x"),
        daemon.outside("fast/sub/x"),
        daemon.outside("fast/new/folder/x"),
        daemon.outside("alias/x"),
        daemon.outside("fast"),
        above,
    ] {
        let end = run(&client, replacing(copy(daemon.outside("tree"), to.clone())));
        assert_eq!(code(&end), Some(Code::Invalid), "{to:?}: {end:?}");
        assert!(text(&end).contains("`fast`"), "{end:?}");
    }
    assert!(!daemon.path("fast/new").exists() && daemon.path("fast/sub").is_dir());
    // Beside it, and out of it, all is well.
    let out = daemon.outside("fastest/x");
    assert_eq!(code(&run(&client, copy(daemon.outside("f"), out))), None);
    std::fs::write(daemon.path("fast/f"), b"x").unwrap();
    let end = run(&client, moved(daemon.outside("fast/f"), fast("g")));
    assert_eq!(code(&end), None, "{end:?}");
}

/// Folders of dataspaces do not overlap, and only one tarnd has them.
#[test]
fn spaces_do_not_overlap() {
    let mut daemon = Daemon::start(&[]);
    let client = daemon.client();
    std::fs::create_dir_all(daemon.path("fast/sub")).unwrap();
    std::fs::create_dir_all(daemon.path("beside")).unwrap();
    symlink(daemon.path("fast/sub"), daemon.path("alias")).unwrap();
    let make = |folder: &str| SpaceChange::Make {
        name: "other".into(),
        spec: SpaceSpec {
            root: daemon.path(folder).to_string_lossy().as_bytes().into(),
            capacity: 1 << 20,
            quota: 0,
            slots: 0,
            everyone: Access::default(),
            users: Vec::new(),
        },
    };
    for folder in ["fast", "fast/sub", "alias", "."] {
        let refused = client.change_space(make(folder)).unwrap_err();
        assert_eq!(refused.code, Code::Invalid, "{folder}: {refused:?}");
    }
    client.change_space(make("beside")).unwrap();
    let second = |space: String| {
        let ended = Command::new("timeout")
            .args(["20", env!("CARGO_BIN_EXE_tarnd"), "--socket"])
            .arg(daemon.path("socket2"))
            .arg("--state")
            .arg(daemon.path("state2"))
            .args(["--space", &space])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        (ended.status.code(), text)
    };
    for folder in ["fast", "beside"] {
        let (code, text) = second(format!("s={}:1MiB", daemon.path(folder).display()));
        assert!(code == Some(6) && text.contains("another tarnd"), "{text}");
    }
    // A space that is removed is free for others.
    let name = "other".to_owned();
    client.change_space(SpaceChange::Remove { name }).unwrap();
    client.change_space(make("beside")).unwrap();
    drop(client);
    let command = daemon.command();
    let inner = format!("inner={}:1MiB", daemon.path("fast/sub").display());
    daemon.kill();
    let mut nested = Command::new("timeout");
    let ended = nested
        .arg("20")
        .arg(command.get_program())
        .args(command.get_args())
        .args(["--space", &inner])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{text}");
    assert!(
        text.contains("`inner`") && text.contains("`fast`"),
        "{text}"
    );
    daemon.again();
}

/// A dataspace's folder that was away for a while is of use again.
#[test]
fn a_folder_that_was_away() {
    let daemon = Daemon::start_in(tempfile::tempdir().unwrap(), "1MiB", &[]);
    let client = daemon.client();
    std::fs::write(daemon.path("f"), content(600_000, 1)).unwrap();
    let task = || copy(daemon.outside("f"), fast("f"));
    assert_eq!(code(&run(&client, task())), None);
    std::fs::rename(daemon.path("fast"), daemon.path("away")).unwrap();
    let large = copy(daemon.outside("f"), fast("g"));
    assert!(code(&run(&client, large)).is_some());
    std::fs::rename(daemon.path("away"), daemon.path("fast")).unwrap();
    std::fs::write(daemon.path("small"), b"small").unwrap();
    let small = || run(&client, copy(daemon.outside("small"), fast("h")));
    let until = Instant::now() + LONG;
    while code(&small()).is_some() {
        assert!(Instant::now() < until, "{:?}", small());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Files whose size is not known before they are read are not copied as empty ones.
#[test]
fn files_of_the_kernel() {
    let daemon = Daemon::start(&[]);
    let client = daemon.client();
    let status = || TaskLocation::External(b"/proc/self/status".into());
    let end = run(&client, copy(status(), fast("status")));
    assert_eq!(code(&end), Some(Code::Unsupported), "{end:?}");
    assert!(text(&end).contains("/proc/self/status"), "{end:?}");
    assert!(!daemon.path("fast/status").exists());
}

/// Messages name paths as people write them.
#[test]
fn messages_have_no_double_slash() {
    let daemon = Daemon::start(&[]);
    let client = daemon.client();
    std::fs::write(daemon.path("fast/big"), content(4_000_000, 1)).unwrap();
    let slow = TaskSpec {
        rate: 2_000_000,
        ..copy(fast("big"), daemon.outside("out/big"))
    };
    let id = submit(&client, slow).unwrap();
    let until = Instant::now() + LONG;
    while client.status(&[id]).unwrap()[0].done < 200_000 {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(5));
    }
    std::fs::write(daemon.path("fast/big"), b"shorter").unwrap();
    let end = wait(&client, id);
    let path = daemon.path("fast/big").display().to_string();
    assert!(text(&end).contains(&path), "{end:?}");
}
