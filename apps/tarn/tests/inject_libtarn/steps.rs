//! Programs that make each call once more when it has failed, and say which were done.

use crate::calls::{Hit, How, sweep};
use crate::{compiled, ran};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Memory, and a disk.
const FOLDERS: [&str; 2] = ["/dev/shm", env!("CARGO_TARGET_TMPDIR")];

/// It says so if a call has failed, and continues to its end all the same, unless it was killed.
pub(crate) fn went_on(hit: &Hit, end: &str) {
    let Hit { how, what, ran } = hit;
    let ended = ran.out.ends_with(end);
    assert_eq!(hit.done(), ended, "{what}: {}{}", ran.out, ran.err);
    assert!(*how == How::Kill || ended, "{what}: {}{}", ran.out, ran.err);
}

/// `make`, then `change` with a call hit, then `look`.
fn changed(name: &str, folder: &str) {
    let program = compiled(name);
    let command_for = |dir: &Path, what: &str| {
        let mut command = Command::new(&program);
        command.arg(dir).arg(what);
        command
    };
    let prepare = || {
        let dir = tempfile::tempdir_in(folder).unwrap();
        assert_eq!(ran(&mut command_for(dir.path(), "make")), "made\n");
        dir
    };
    let command = |dir: &TempDir| (dir.path().to_owned(), command_for(dir.path(), "change"));
    sweep(name, name, prepare, command, |dir, hit| {
        went_on(hit, "changed\n");
        let look = ran(command_for(dir.path(), "look").arg(&hit.ran.out));
        let Hit { what, ran, .. } = hit;
        assert!(
            look.ends_with("whole\n"),
            "{what} ({folder}): {}{}; then {look}",
            ran.out,
            ran.err
        );
        let left = unpublished(dir.path());
        assert!(left.is_empty(), "{what}: {left:?}");
    });
}

/// Files that writers of objects have left. The next writer removes those beside an object that was deleted.
fn unpublished(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    crate::common::files(folder, &mut all);
    let is_left = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with(".put-") && path.parent() != Some(&folder.join("b"))
    };
    all.into_iter().filter(is_left).collect()
}

#[test]
fn objects() {
    for folder in FOLDERS {
        changed("inject_objects", folder);
    }
}

#[test]
fn partitions_that_are_open() {
    for folder in FOLDERS {
        changed("inject_dsa_calls", folder);
    }
}

/// Objects of checkpoints come, grow and go between versions, which go to an external store.
#[test]
fn objects_of_checkpoints() {
    let program = compiled("inject_phx_calls");
    let to = |dir: &Path, last: &str| {
        let mut command = Command::new(&program);
        command.arg(dir).arg(last);
        command
    };
    for folder in FOLDERS {
        let prepare = || {
            let dir = tempfile::tempdir_in(folder).unwrap();
            std::fs::create_dir(dir.path().join("store")).unwrap();
            let first = ran(&mut to(dir.path(), "2"));
            assert!(first.ends_with("ended at 2\n"), "{first}");
            dir
        };
        let command = |dir: &TempDir| (dir.path().to_owned(), to(dir.path(), "4"));
        sweep(
            "phx objects",
            "inject_phx_calls",
            prepare,
            command,
            |dir, hit| {
                went_on(hit, "ended at 4\n");
                let kept = |step: &u32| hit.ran.out.contains(&format!("kept {step}\n"));
                let last = (1..=4).filter(kept).max().unwrap_or(2);
                let then = ran(&mut to(dir.path(), "6"));
                let from = then.lines().find_map(|line| line.strip_prefix("from "));
                let from: Option<u32> = from.and_then(|step| step.parse().ok());
                // One that was committed without a report may be there, too.
                assert!(
                    from.is_some_and(|from| (last..=last + 1).contains(&from)),
                    "{}: {last}: {}{}; then {then}",
                    hit.what,
                    hit.ran.out,
                    hit.ran.err
                );
                assert!(then.ends_with("ended at 6\n"), "{}: {then}", hit.what);
            },
        );
    }
}
