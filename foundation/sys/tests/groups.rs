//! The memory that a process may still take in a real control group with a limit: of version 2 where the machine has that, else
//! of 1.

use std::path::{Path, PathBuf};
use std::process::Command;
use tarn_sys::memory::memory;

const LIMIT: u64 = 512 << 20;
const HELD: u64 = 16 << 20;
const INSIDE: &str = "TARN_TEST_GROUP";

/// A group at the top of the hierarchy that accounts for memory; removed with this.
struct Group(PathBuf);

impl Group {
    /// A reason on stderr where none can be had.
    fn new() -> Option<Self> {
        let top = Path::new("/sys/fs/cgroup");
        let name = format!("tarn-test-{}", std::process::id());
        let (folder, limit) = if top.join("cgroup.controllers").exists() {
            // Where it fails, the next line fails too.
            let _ = std::fs::write(top.join("cgroup.subtree_control"), "+memory");
            (top.join(name), "memory.max")
        } else {
            (top.join("memory").join(name), "memory.limit_in_bytes")
        };
        let made = std::fs::create_dir(&folder).map(|()| Self(folder));
        let set = made.and_then(|group| {
            std::fs::write(group.0.join(limit), LIMIT.to_string())?;
            Ok(group)
        });
        set.inspect_err(|e| eprintln!("SKIPPED: no control group for memory here: {e}"))
            .ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn the_limit_of_a_group_and_what_files_in_memory_take_of_it_are_seen() {
    if std::env::var_os(INSIDE).is_some() {
        let m = memory().unwrap();
        let without = m.free_without(HELD);
        println!("MEMORY {} {} {without} {}", m.total, m.free, m.limited_by);
        return;
    }
    let Some(group) = Group::new() else { return };
    let files = tempfile::tempdir_in("/dev/shm").unwrap();
    let (at, held) = (group.0.display(), files.path().join("held"));
    let test = "the_limit_of_a_group_and_what_files_in_memory_take_of_it_are_seen";
    let script = format!(
        "echo $$ > {at}/cgroup.procs && head -c {HELD} /dev/zero > {} && exec \"$0\" --exact {test} --nocapture",
        held.display()
    );
    let mut inside = Command::new("sh");
    inside.args(["-c", &script]);
    inside.arg(std::env::current_exe().unwrap());
    let output = inside.env(INSIDE, "1").output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let seen = stdout.lines().find_map(|line| line.split_once("MEMORY "));
    let seen = seen.unwrap_or_else(|| panic!("{stdout}{output:?}"));
    let words: Vec<&str> = seen.1.split(' ').collect();
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    assert_eq!((number(0), words[3]), (LIMIT, &*at.to_string()));
    assert!(number(1) <= LIMIT - HELD, "{stdout}");
    assert!(number(2) > number(1), "{stdout}");
}
