//! A partition as a block device of the kernel's own: nbdfuse shows it as a file, and a loop device is above that.

use crate::nbd::{Fixture, output_of};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Commits rows for as long as it can, and says each number once it is committed.
const WRITER: &str = r#"
import sqlite3, sys
with sqlite3.connect(sys.argv[1], isolation_level=None) as database:
    # Also the removal of its journal, with which it commits.
    database.execute("pragma synchronous = extra")
    database.execute("create table field (step integer primary key, bytes blob)")
    for step in range(1000000):
        database.execute("insert into field values (?, ?)", (step, bytes([step % 251]) * 1000))
        print(step, flush=True)
"#;

/// Whether it is sound, its rows, and whether each is as it was written.
const READER: &str = r#"
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
rows = database.execute("select step, bytes from field order by step").fetchall()
whole = all(row == (step, bytes([step % 251]) * 1000) for step, row in enumerate(rows))
print(database.execute("pragma integrity_check").fetchone()[0], whole, len(rows))
"#;

/// `None` if there is no FUSE, no loop device or no right to use them.
fn fixture() -> Option<Fixture> {
    let there = rustix::process::geteuid().is_root()
        && ["/dev/fuse", "/dev/loop-control", "/usr/bin/python3"]
            .iter()
            .all(|path| Path::new(path).exists());
    if !there {
        eprintln!("SKIPPED: only root mounts devices, where the kernel has FUSE and loop devices");
        return None;
    }
    Fixture::new(&["nbdfuse", "losetup", "mke2fs", "e2fsck", "unshare", "mount"])
}

/// A shell with mounts of its own, in which `$device` is the device of the served partition and `$mount` an empty folder. All is
/// gone when it ends.
fn attached(fixture: &Fixture, uri: &str, then: &str) -> Command {
    let (fuse, mount) = (fixture.path("fuse"), fixture.path("mount"));
    for folder in [&fuse, &mount] {
        std::fs::create_dir_all(folder).unwrap();
    }
    let begin = r#"
        set -e
        nbdfuse "$fuse/nbd" "$uri" & nbdfuse=$!
        until [ -e "$fuse/nbd" ]; do kill -0 $nbdfuse; sleep 0.05; done
        device=$(losetup --find --show "$fuse/nbd")
        end() {
            code=$?; set +e
            umount "$mount" 2>/dev/null
            losetup --detach "$device"
            # The kernel lets go of it a moment later.
            for _ in $(seq 100); do umount "$fuse" 2> /dev/null && break; sleep 0.1; done
            kill $nbdfuse 2> /dev/null; wait $nbdfuse
            exit $code
        }
        trap end EXIT
    "#;
    let mut shell = Command::new("timeout");
    shell
        .args(["60", "unshare", "--mount", "sh", "-c"])
        .arg(format!("{begin}{then}"))
        .env_remove("LD_LIBRARY_PATH")
        .env("LC_ALL", "C")
        .envs([("fuse", &fuse), ("mount", &mount)])
        .envs([("uri", uri), ("WRITER", WRITER), ("READER", READER)])
        .stdin(Stdio::null());
    shell
}

#[test]
fn the_kernel_reads_and_writes_it_and_mounts_a_file_system_on_it() {
    let Some(fixture) = fixture() else {
        return;
    };
    let partition = fixture.partition("disk");
    let served = fixture.serve(&[&partition]);
    output_of(&mut attached(
        &fixture,
        &served.uri,
        r#"
        [ "$(blockdev --getsize64 "$device")" = 16777216 ]
        dd if=/dev/urandom of="$device" bs=1M count=16 oflag=direct conv=fsync status=none
        [ "$(dd if="$device" bs=1M iflag=direct status=none | cksum)" = "$(cksum < "$fuse/nbd")" ]
        mke2fs -q -F -t ext4 "$device"
        mount "$device" "$mount"
        cp -r /etc/apt "$mount"
        sync -f "$mount"; umount "$mount"
        e2fsck -f -n "$device" > /dev/null 2>&1
        mount "$device" "$mount"
        diff -r /etc/apt "$mount/apt"
        "#,
    ));
}

#[test]
fn a_database_on_it_has_what_was_committed_after_the_server_was_killed() {
    let Some(fixture) = fixture() else {
        return;
    };
    let partition = fixture.partition("disk");
    let mut served = fixture.serve(&[&partition]);
    let writes = r#"
        mke2fs -q -F -t ext4 "$device"
        mount "$device" "$mount"
        exec 3>&1
        /usr/bin/python3 -c "$WRITER" "$mount/field.db" >&3
    "#;
    let mut writer: Child = attached(&fixture, &served.uri, writes)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let committed = BufReader::new(writer.stdout.take().unwrap());
    let mut last = 0;
    for line in committed.lines() {
        last = line.unwrap().parse().unwrap();
        if last == 100 {
            served.kill();
        }
    }
    let mut stderr = String::new();
    writer
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    assert!(!writer.wait().unwrap().success(), "{stderr}");
    assert!(last >= 100, "{last}: {stderr}");
    drop(served);

    let served = fixture.serve(&[&partition]);
    let reads = r#"
        mount "$device" "$mount"
        /usr/bin/python3 -c "$READER" "$mount/field.db"
    "#;
    let found = output_of(&mut attached(&fixture, &served.uri, reads));
    let [sound, whole, rows] = found.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("{found}");
    };
    assert_eq!((sound, whole), ("ok", "True"));
    // The last one may have been committed without a report.
    assert!(rows.parse::<u64>().unwrap() > last, "{rows} of {last}");
}
