//! Objects that are put, mapped, listed and deleted, by one program and by several at once.

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Uid;
use rustix::thread::set_thread_uid;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use tarn_objects::{CheckpointErrorCode, NodeObjectStore, ObjectInfo, ObjectWriter};
use tempfile::TempDir;

/// Stores in memory and on another file system.
fn stores() -> Vec<(TempDir, NodeObjectStore)> {
    let folders = [tempfile::tempdir_in("/dev/shm"), tempfile::tempdir()];
    folders
        .map(|folder| {
            let folder = folder.unwrap();
            let store = NodeObjectStore::open(Some(folder.path())).unwrap();
            (folder, store)
        })
        .into()
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    let mixed = |i: usize| (i.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed;
    (0..len).map(mixed).collect()
}

fn numbers(store: &NodeObjectStore, key: &str) -> Vec<u64> {
    let all = store.versions(key).unwrap();
    all.iter().map(|v| v.number).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[track_caller]
fn refused<T: std::fmt::Debug>(
    what: Result<T, tarn_objects::CheckpointError>,
    code: CheckpointErrorCode,
) {
    assert_eq!(what.unwrap_err().code, code);
}

/// A draft whose writer was killed: nothing is removed, and the kernel has released its lock.
fn killed(draft: ObjectWriter, key: &Path) {
    let name = names(key)
        .into_iter()
        .find(|n| n.starts_with(".put-"))
        .unwrap();
    let kept = key.join("kept");
    fs::rename(key.join(&name), &kept).unwrap();
    drop(draft);
    fs::rename(&kept, key.join(&name)).unwrap();
}

#[test]
fn what_is_put_is_there_for_all_and_never_changes() {
    for (folder, store) in stores() {
        for length in [0, 1, 4096, 262_144, 700_001] {
            let data = bytes(length, 1);
            let put = store.put("fields/rho", &data, "bytes").unwrap();
            assert_eq!((put.bytes, &*put.about), (length as u64, "bytes"));
            let other = NodeObjectStore::open(Some(folder.path())).unwrap();
            let object = other.map("fields/rho", None).unwrap();
            object.verify().unwrap();
            assert_eq!((object.bytes(), object.info()), (&data[..], put.clone()));
            assert_eq!(other.get("fields/rho", Some(put.number)).unwrap(), data);
            // Any tool finds the data at the file's beginning.
            let path = folder.path().join(format!("fields/rho/{}.obj", put.number));
            assert_eq!(object.path(), path);
            assert_eq!(&fs::read(&path).unwrap()[..length], data);
            let meta = path.metadata().unwrap();
            assert_eq!((meta.mode() & 0o333, meta.len() % 4096), (0, 0));
        }
        assert_eq!(numbers(&store, "fields/rho"), [1, 2, 3, 4, 5]);
        store.put("mesh", b"m", "").unwrap();
        let all = store.list().unwrap();
        let seen: Vec<_> = all.iter().map(|i| (&*i.key, i.number, i.bytes)).collect();
        assert_eq!(seen, [("fields/rho", 5, 700_001), ("mesh", 1, 1)]);
        // Other nodes find the newest by this name.
        let inode = |name: &str| folder.path().join(name).metadata().unwrap().ino();
        assert_eq!(inode("fields/rho/newest.obj"), inode("fields/rho/5.obj"));
        refused(store.map("fields", None), CheckpointErrorCode::NotFound);
        refused(store.map("mesh", Some(2)), CheckpointErrorCode::NotFound);
        refused(store.versions("no"), CheckpointErrorCode::NotFound);
        refused(store.put("../out", b"", ""), CheckpointErrorCode::Invalid);
        refused(
            store.put("a", b"", &"x".repeat(256)),
            CheckpointErrorCode::Invalid,
        );
        refused(
            store.create("a", u64::MAX).map(drop),
            CheckpointErrorCode::Invalid,
        );
        let large = store.create("a", 1 << 45).map(drop).unwrap_err();
        assert!(
            matches!(
                large.code,
                CheckpointErrorCode::NoMem | CheckpointErrorCode::NoSpace
            ),
            "{large}"
        );
        assert_eq!(names(&folder.path().join("a")), [""; 0]);
    }
}

#[test]
fn what_is_filled_in_place_is_published_without_a_copy() {
    for (folder, store) in stores() {
        let data = bytes(1_000_000, 2);
        let mut draft = store.create("field", data.len() as u64).unwrap();
        assert!(draft.bytes().iter().all(|b| *b == 0));
        refused(store.map("field", None), CheckpointErrorCode::NotFound);
        draft.bytes().copy_from_slice(&data);
        let info = draft.publish("f64").unwrap();
        // The program's memory is still there, and no longer the object's.
        assert_eq!(draft.bytes(), data);
        draft.bytes().fill(0);
        refused(draft.publish(""), CheckpointErrorCode::Invalid);
        drop(draft);
        let object = store.map("field", Some(info.number)).unwrap();
        object.verify().unwrap();
        assert_eq!(object.bytes(), data);
        // An unpublished version leaves nothing.
        drop(store.create("field", 5).unwrap());
        let mut draft = store.create("field", 5).unwrap();
        draft.abandon();
        draft.bytes().fill(1);
        refused(draft.publish(""), CheckpointErrorCode::Invalid);
        drop(draft);
        assert_eq!(names(&folder.path().join("field")), ["1.obj", "newest.obj"]);
    }
}

#[test]
fn a_number_is_never_used_twice_and_maps_stay() {
    for (folder, store) in stores() {
        let put = |seed| store.put("k", &bytes(300_000, seed), "").unwrap().number;
        assert_eq!([put(1), put(2), put(3)], [1, 2, 3]);
        let mapped = store.map("k", None).unwrap();
        store.delete("k", Some(3)).unwrap();
        assert_eq!(mapped.bytes(), bytes(300_000, 3));
        mapped.verify().unwrap();
        assert_eq!(store.map("k", None).unwrap().info().number, 2);
        refused(store.delete("k", Some(3)), CheckpointErrorCode::NotFound);
        assert_eq!(put(4), 4);
        store.delete("k", None).unwrap();
        refused(store.map("k", None), CheckpointErrorCode::NotFound);
        refused(store.delete("k", None), CheckpointErrorCode::NotFound);
        assert_eq!(store.list().unwrap(), [] as [ObjectInfo; 0]);
        let here = folder.path().join("k");
        assert_eq!(names(&here), ["4.obj"]);
        assert_eq!(here.join("4.obj").metadata().unwrap().len(), 0);
        assert_eq!(put(5), 5);
        assert_eq!(names(&here), ["5.obj", "newest.obj"]);
        store.delete("k", Some(5)).unwrap();
        assert_eq!(put(6), 6);
        assert_eq!(numbers(&store, "k"), [6]);
        // Older ones leave nothing.
        assert_eq!(put(7), 7);
        store.delete("k", Some(6)).unwrap();
        for number in [5, 6] {
            refused(
                store.delete("k", Some(number)),
                CheckpointErrorCode::NotFound,
            );
        }
        assert_eq!(names(&here), ["7.obj", "newest.obj"]);
    }
}

#[test]
fn programs_that_put_at_once_get_versions_of_their_own() {
    const EACH: u8 = 25;
    for (folder, _) in stores() {
        let path = folder.path();
        let mut given: Vec<u64> = std::thread::scope(|scope| {
            let put = |thread: u8| {
                let store = NodeObjectStore::open(Some(path)).unwrap();
                let one = |n| {
                    let info = store.put("k", &bytes(5000, thread ^ n), &format!("{}", thread ^ n));
                    let number = info.unwrap().number;
                    if n % 5 == 4 {
                        store.delete("k", Some(number)).unwrap();
                    }
                    number
                };
                (0..EACH).map(one).collect::<Vec<_>>()
            };
            let threads: Vec<_> = (0..4).map(|t| scope.spawn(move || put(t << 6))).collect();
            let all = threads.into_iter().flat_map(|t| t.join().unwrap());
            all.collect()
        });
        given.sort_unstable();
        assert_eq!(given, (1..=4 * u64::from(EACH)).collect::<Vec<_>>());
        let store = NodeObjectStore::open(Some(path)).unwrap();
        let all = store.versions("k").unwrap();
        assert_eq!(all.len(), 80);
        for info in all {
            let object = store.map("k", Some(info.number)).unwrap();
            object.verify().unwrap();
            assert_eq!(object.bytes(), bytes(5000, info.about.parse().unwrap()));
        }
    }
}

/// All that a killed writer can leave, step by step.
#[test]
fn what_a_killed_put_leaves_is_not_seen_and_goes_with_the_next() {
    for (folder, store) in stores() {
        let key = folder.path().join("k");
        let newest = |n| assert_eq!(store.map("k", None).unwrap().info().number, n);
        store.put("k", b"one", "").unwrap();
        // Its memory was made, or filled, or all but named.
        let whole = fs::read(key.join("1.obj")).unwrap();
        for content in [&b""[..], b"half", &whole] {
            fs::write(key.join(".put-0"), content).unwrap();
            newest(1);
            assert_eq!(numbers(&store, "k"), [1]);
        }
        let mut draft = store.create("k", 3).unwrap();
        assert_eq!(
            names(&key).len(),
            3,
            "what is left is cleared up, and the living are not"
        );
        let living = store.create("k", 3).unwrap();
        assert_eq!(names(&key).len(), 4);
        draft.bytes().fill(7);
        killed(draft, &key);
        assert_eq!(store.put("k", b"two", "").unwrap().number, 2);
        drop(living);
        assert_eq!(names(&key), ["1.obj", "2.obj", "newest.obj"]);
        // It had the name of its version, and was not yet the newest.
        fs::hard_link(key.join("1.obj"), key.join(".put-1")).unwrap();
        fs::rename(key.join(".put-1"), key.join("newest.obj")).unwrap();
        fs::hard_link(key.join("2.obj"), key.join(".put-2")).unwrap();
        newest(2);
        assert_eq!(store.put("k", b"three", "").unwrap().number, 3);
        newest(3);
        let all = ["1.obj", "2.obj", "3.obj", "newest.obj"];
        assert_eq!(names(&key), all);
        assert_eq!(store.get("k", Some(2)).unwrap(), b"two");
        // A fetch leaves a folder.
        fs::create_dir(key.join(".put-3")).unwrap();
        fs::write(key.join(".put-3/object"), &whole).unwrap();
        drop(store.create("k", 3).unwrap());
        assert_eq!(names(&key), all);
    }
}

#[test]
fn a_flipped_bit_anywhere_is_found() {
    let (folder, store) = stores().remove(0);
    let data = bytes(300_000, 5);
    store.put("k", &data, "").unwrap();
    let path = folder.path().join("k/1.obj");
    let whole = fs::read(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let sums = 300_000usize.next_multiple_of(4096);
    let trailer = whole.len() - 1024;
    for at in [
        0,
        262_143,
        262_144,
        299_999,
        sums,
        sums + 15,
        trailer,
        trailer + 600,
        whole.len() - 1,
    ] {
        let mut flipped = whole.clone();
        flipped[at] ^= 4;
        fs::write(&path, &flipped).unwrap();
        refused(store.get("k", None), CheckpointErrorCode::Corrupt);
        let verified = store.map("k", None).and_then(|o| o.verify());
        refused(verified, CheckpointErrorCode::Corrupt);
    }
    // Cut, or another object's: it is listed as damaged, and does not hide others.
    store.put("other", b"x", "").unwrap();
    fs::write(&path, &whole[..5000]).unwrap();
    refused(store.map("k", None), CheckpointErrorCode::Corrupt);
    let damaged: Vec<bool> = store.list().unwrap().iter().map(|i| i.damaged).collect();
    assert_eq!(damaged, [true, false]);
    fs::remove_file(&path).unwrap();
    fs::copy(folder.path().join("other/1.obj"), &path).unwrap();
    refused(store.map("k", None), CheckpointErrorCode::Corrupt);
    store.delete("k", None).unwrap();
    assert_eq!(store.list().unwrap().len(), 1);
}

#[test]
fn no_link_leads_out_of_the_store() {
    let (folder, store) = stores().remove(0);
    let outside = tempfile::tempdir().unwrap();
    let elsewhere = NodeObjectStore::open(Some(outside.path())).unwrap();
    elsewhere.put("k", b"theirs", "").unwrap();
    symlink(outside.path().join("k"), folder.path().join("k")).unwrap();
    fs::create_dir(folder.path().join("l")).unwrap();
    symlink(
        outside.path().join("k/1.obj"),
        folder.path().join("l/1.obj"),
    )
    .unwrap();
    for key in ["k", "l"] {
        assert!(store.map(key, Some(1)).is_err() && store.get(key, None).is_err());
    }
    assert!(store.delete("k", None).is_err());
    assert!(store.put("k", b"mine", "").is_err());
    // It is of another key. Only the link goes.
    assert!(store.list().unwrap()[0].damaged);
    store.delete("l", None).unwrap();
    assert_eq!(store.list().unwrap(), [] as [ObjectInfo; 0]);
    elsewhere.map("k", Some(1)).unwrap().verify().unwrap();
    assert_eq!(names(&outside.path().join("k")), ["1.obj", "newest.obj"]);
    let link = outside.path().join("store");
    symlink(folder.path(), &link).unwrap();
    assert!(NodeObjectStore::open(Some(&link)).is_err());
    refused(
        NodeObjectStore::open(Some(&outside.path().join("no"))),
        CheckpointErrorCode::NotFound,
    );
}

/// A view of a dataset has links where a part of it is stored on another file system.
#[test]
fn links_to_versions_are_followed_to_files_and_never_written_through() {
    let (_memory, parts) = stores().remove(1);
    let (folder, store) = stores().remove(0);
    let key = folder.path().join("k");
    fs::create_dir(&key).unwrap();
    let link = |to: &Path, number| symlink(to, key.join(format!("{number}.obj"))).unwrap();
    for number in 1..=2 {
        parts.put("k", &[number; 9], "part").unwrap();
        link(&parts.path().join(format!("k/{number}.obj")), number);
    }
    assert_eq!(store.get("k", None).unwrap(), [2; 9]);
    assert_eq!(store.versions("k").unwrap(), parts.versions("k").unwrap());
    assert_eq!(store.list().unwrap(), parts.list().unwrap());
    // Its number is used up there.
    parts.delete("k", Some(2)).unwrap();
    assert_eq!(store.list().unwrap(), parts.list().unwrap());
    assert_eq!(store.map("k", None).unwrap().info().number, 1);
    // A link to no file is not opened, and the error names it.
    let fifo = parts.path().join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
    for (number, to) in [(3, &fifo), (4, &parts.path().join("no"))] {
        link(to, number);
        let message = store.map("k", None).unwrap_err().to_string();
        assert!(message.contains("is a link"), "{message}");
        assert!(store.list().unwrap()[0].damaged);
    }
    assert_eq!(store.put("k", b"mine", "").unwrap().number, 5);
    store.delete("k", None).unwrap();
    assert_eq!(names(&key), ["5.obj"]);
    assert_eq!(parts.get("k", None).unwrap(), [1; 9]);
}

/// In a thread that is another user's, which takes the right to become one.
fn as_another<T: Send>(call: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let one = move || {
            let became = set_thread_uid(Uid::from_raw(65534));
            became.ok().map(|()| call())
        };
        scope.spawn(one).join().unwrap()
    })
}

#[test]
fn attack_another_user_deletes_and_lists_what_it_may() {
    let (folder, store) = stores().remove(0);
    let key = folder.path().join("k");
    for key in ["k", "no", "none/k"] {
        store.put(key, b"1", "").unwrap();
    }
    store.put("k", b"2", "").unwrap();
    store.put("k", b"3", "").unwrap();
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(folder.path(), 0o755);
    mode(&key, 0o777);
    mode(&key.join("2.obj"), 0);
    mode(&folder.path().join("no/1.obj"), 0);
    mode(&folder.path().join("none/k"), 0);
    let seen = as_another(|| {
        let listed = store.list().unwrap();
        let versions = store.versions("k").unwrap();
        // Neither is the newest; its name leads where it did.
        store.delete("k", Some(1)).unwrap();
        assert_eq!(names(&key), ["2.obj", "3.obj", "newest.obj"]);
        // The newest: another user's file may not be linked.
        store.delete("k", Some(3)).unwrap();
        (listed, versions)
    });
    mode(&folder.path().join("none/k"), 0o700);
    let Some((listed, versions)) = seen else {
        println!("SKIPPED: only root can be another user");
        return;
    };
    let short = |all: Vec<ObjectInfo>| -> Vec<_> {
        let one = |i: ObjectInfo| (i.key.into_string(), i.number, i.damaged);
        all.into_iter().map(one).collect()
    };
    let own = |key: &str, number, damaged| (key.to_owned(), number, damaged);
    assert_eq!(
        short(listed),
        [
            own("k", 3, false),
            own("no", 1, true),
            own("none/k", 0, true)
        ]
    );
    assert_eq!(short(versions).iter().filter(|v| v.2).count(), 1);
    assert_eq!(numbers(&store, "k"), [2]);
    // As above where the system allows the link.
    let newest = fs::read(key.join("newest.obj")).ok();
    assert!(newest.is_none_or(|n| n == fs::read(key.join("2.obj")).unwrap()));
    assert_eq!(store.put("k", b"4", "").unwrap().number, 4);
}

/// The variables with the path of the child's store, and the number of versions that it puts.
const STORE: &str = "TARN_TEST_STORE";
const PUTS: &str = "TARN_TEST_PUTS";

fn child(program: &mut std::process::Command, folder: &Path, puts: u32) {
    program
        .args(["--exact", "puts", "--ignored"])
        .env(STORE, folder)
        .env(PUTS, puts.to_string())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
}

/// Not a test: the process that is killed.
#[test]
#[ignore = "run by others"]
fn puts() {
    let Some(path) = std::env::var_os(STORE).map(PathBuf::from) else {
        return;
    };
    let store = NodeObjectStore::open(Some(&path)).unwrap();
    let puts: u32 = std::env::var(PUTS).unwrap().parse().unwrap();
    for n in 0..puts {
        let seed = n as u8;
        let data = bytes(200_000, seed);
        let mut draft = store.create("a/k", data.len() as u64).unwrap();
        draft.bytes().copy_from_slice(&data);
        let number = draft.publish(&seed.to_string()).unwrap().number;
        if number > 3 {
            // The other one may have been first.
            let _ = store.delete("a/k", Some(number - 3));
        }
    }
}

/// Checks that all versions are whole and as they were put; the number of the newest.
fn whole(store: &NodeObjectStore) -> u64 {
    let Ok(all) = store.versions("a/k") else {
        return 0;
    };
    for info in &all {
        let object = store.map("a/k", Some(info.number)).unwrap();
        object.verify().unwrap();
        assert_eq!(object.bytes(), bytes(200_000, info.about.parse().unwrap()));
    }
    all.last().unwrap().number
}

#[track_caller]
fn nothing_is_left(folder: &Path, store: &NodeObjectStore) {
    store.put("a/k", &bytes(200_000, 9), "9").unwrap();
    let left = names(&folder.join("a/k"));
    assert!(left.iter().all(|n| !n.starts_with(".put-")), "{left:?}");
}

/// Killed on the way into each call of the system that changes something; strace counts them.
#[test]
fn a_put_is_killed_at_each_of_its_steps() {
    const CALLS: [&str; 10] = [
        "mkdirat",
        "flock",
        "ftruncate",
        "fallocate",
        "madvise",
        "msync",
        "linkat",
        "renameat",
        "unlinkat",
        "fsync",
    ];
    let mut strace = std::process::Command::new("strace");
    strace.args(["-qq", "-o", "/dev/null", "true"]);
    if !strace.status().is_ok_and(|s| s.success()) {
        println!("SKIPPED: no strace here, so no put is killed step by step");
        return;
    }
    // Kills that have left no version, and one.
    let mut left = [0, 0];
    for call in CALLS {
        for which in 1.. {
            assert!(which < 100, "{call} never ends");
            let (folder, store) = stores().remove(0);
            let mut strace = std::process::Command::new("strace");
            strace.args(["-f", "-qq", "-o", "/dev/null", "-e"]);
            strace.arg(format!("inject={call}:signal=KILL:when={which}"));
            child(
                strace.arg(std::env::current_exe().unwrap()),
                folder.path(),
                1,
            );
            let ended = strace.status().unwrap().success();
            let newest = whole(&store);
            nothing_is_left(folder.path(), &store);
            let next = store.map("a/k", None).unwrap().info().number;
            assert_eq!(next, newest + 1, "{call} {which}");
            if ended {
                break;
            }
            left[newest as usize] += 1;
        }
    }
    assert!(left[0] >= 10 && left[1] >= 3, "{left:?}");
}

#[test]
fn writers_are_killed_at_any_instant_and_all_versions_are_whole() {
    const KILLS: u64 = 30;
    let (folder, store) = stores().remove(0);
    let mut before = 0;
    for kill in 0..KILLS {
        let mut children: Vec<_> = (0..2)
            .map(|_| {
                let own = std::env::current_exe().unwrap();
                let mut command = std::process::Command::new(own);
                child(&mut command, folder.path(), u32::MAX);
                command.spawn().unwrap()
            })
            .collect();
        std::thread::sleep(std::time::Duration::from_micros(20_000 + kill * 977 % 9000));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let newest = whole(&store);
        assert!(newest >= before, "{newest} after {before}");
        before = newest;
    }
    assert!(before > 0, "nothing was put");
    nothing_is_left(folder.path(), &store);
}
