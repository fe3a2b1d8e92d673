//! Programs that call one thing after the other, and that a failed call ends.

use crate::calls::{Hit, How, sweep};
use crate::{compiled, ran};
use std::process::Command;
use tempfile::TempDir;

/// Commits and a restart, in memory and on a disk: a version that was reported as there is there, whole, whatever was hit after
/// that.
#[test]
fn checkpoints() {
    let program = compiled("inject_phx");
    for disk in [false, true] {
        let prepare = || -> TempDir {
            let dir = match disk {
                true => tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
                false => tempfile::tempdir_in("/dev/shm").unwrap(),
            };
            // From what an earlier start has left.
            let first = ran(Command::new(&program).arg(dir.path()).arg("2"));
            assert_eq!(first, "from 0\ncommitted 1\ncommitted 2\n");
            dir
        };
        let command = |dir: &TempDir| {
            let mut command = Command::new(&program);
            command.arg(dir.path()).arg("4");
            (dir.path().to_owned(), command)
        };
        sweep("phx", "inject_phx", prepare, command, |dir, hit: &Hit| {
            let is_reported = |step: &u32| hit.ran.out.contains(&format!("committed {step}\n"));
            let last = (1..=4).filter(is_reported).max().unwrap_or(2);
            let whole = hit.ran.out.contains("committed 4\n");
            assert!(!hit.done() || whole, "{}: {}", hit.what, hit.ran.out);
            assert!(
                !hit.ran.out.contains("wrong"),
                "{}: {}",
                hit.what,
                hit.ran.out
            );
            assert!(
                hit.how == How::Kill || hit.done() || hit.ran.err.contains("phx:"),
                "{}",
                hit.what
            );
            let then = ran(Command::new(&program).arg(dir.path()).arg("6"));
            let from = then
                .lines()
                .next()
                .and_then(|line| line.strip_prefix("from "));
            let from: Option<u32> = from.and_then(|step| step.parse().ok());
            // One that was committed without a report may be there, too.
            assert!(
                from.is_some_and(|from| (last..=last + 1).contains(&from)),
                "{}: {last}: {then}",
                hit.what
            );
            assert!(then.ends_with("committed 6\n"), "{}: {then}", hit.what);
        });
    }
}

/// A partition is made, written, flushed, made larger and read again; another is taken away.
#[test]
fn partitions() {
    let program = compiled("inject_dsa");
    for (disk, folder) in [(false, "/dev/shm"), (true, env!("CARGO_TARGET_TMPDIR"))] {
        let prepare = || {
            let dir = tempfile::tempdir_in(folder).unwrap();
            assert_eq!(
                ran(Command::new(&program).arg(dir.path()).arg("make")),
                "made\n"
            );
            dir
        };
        let command = |dir: &TempDir| {
            let mut command = Command::new(&program);
            command.arg(dir.path()).arg("change");
            (dir.path().to_owned(), command)
        };
        sweep("dsa", "inject_dsa", prepare, command, |dir, hit| {
            assert!(
                !hit.done() || hit.ran.out.ends_with("changed\n"),
                "{}",
                hit.what
            );
            let is_explained = hit.how == How::Kill || hit.done() || hit.ran.err.contains("dsa:");
            assert!(is_explained, "{}: {}", hit.what, hit.ran.err);
            let flushed = if hit.ran.out.contains("flushed\n") {
                "new"
            } else {
                "old"
            };
            let look = ran(Command::new(&program)
                .arg(dir.path())
                .args(["look", flushed]));
            assert_eq!(
                look, "whole\n",
                "{} (disk: {disk}): {}",
                hit.what, hit.ran.err
            );
        });
    }
}
