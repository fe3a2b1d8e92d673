//! A process that commits as fast as it can to an arena in memory, killed at any instant, again and again.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tarn_checkpoint_core::arena::Arena;
use tarn_media::{MappedFile, ReadOnlyMapping};
use tarn_ports::Medium;

/// The variable with the path of the child's arena.
const PATH: &str = "TARN_TEST_ARENA";
const KILLS: u32 = 100;
/// Of the content: versions of some MiB, so that most kills meet one that is being written.
const SCALE: usize = 20;
const SIZE: u64 = 16 << 20;
const KEEP: u64 = 2;

/// Not a test: the process that is killed.
#[test]
#[ignore = "run by the other one"]
fn commits_for_ever() {
    let Some(path) = std::env::var_os(PATH).map(PathBuf::from) else {
        return;
    };
    let (mut mapped, mut arena) = match path.exists() {
        true => {
            let mut mapped = MappedFile::open(&path).unwrap();
            let arena = Arena::resume(&mut mapped.windows(&whole(&path)).unwrap()[0]).unwrap();
            (mapped, arena)
        }
        false => {
            let before = path.with_extension("new");
            let _ = std::fs::remove_file(&before);
            let mut mapped = MappedFile::create(&before, SIZE).unwrap();
            let made = Arena::format(
                &mut mapped.windows(&whole(&before)).unwrap()[0],
                common::header(),
            );
            std::fs::rename(&before, &path).unwrap();
            (mapped, made.unwrap())
        }
    };
    let mut window = mapped.windows(&whole(&path)).unwrap().remove(0);
    let mut number = arena.versions().last().map_or(0, |v| v.id.number);
    loop {
        number += 1;
        common::commit(&mut arena, &mut window, number, KEEP, SCALE);
    }
}

fn whole(path: &Path) -> Vec<std::ops::Range<u64>> {
    let size = std::fs::metadata(path).unwrap().len();
    std::iter::once(0..size).collect()
}

/// Kills the child when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn newest(path: &Path) -> u64 {
    let arena = ReadOnlyMapping::open(path)
        .ok()
        .and_then(|seen| Arena::open(&seen).ok());
    arena.map_or(0, |a| a.versions().last().map_or(0, |v| v.id.number))
}

#[test]
fn what_was_committed_outlives_the_process() {
    let shm = Path::new("/dev/shm");
    let folder = match shm.is_dir() {
        true => tempfile::tempdir_in(shm).unwrap(),
        false => tempfile::tempdir().unwrap(),
    };
    let path = folder.path().join("0.arena");
    let mut last = 0;
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "commits_for_ever", "--ignored"])
            .env(PATH, &path);
        let child = Killed(child.stdout(Stdio::null()).spawn().unwrap());
        let begun = Instant::now();
        // It comes on, and then is killed somewhere in its next versions.
        while newest(&path) <= last {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "it does not come on from {last}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(u64::from(kill) * 137 % 9973));
        let seen_before = newest(&path);
        drop(child);
        let there = common::whole(&ReadOnlyMapping::open(&path).unwrap(), SCALE);
        let newest = there.last().copied().unwrap_or(0);
        assert!(
            newest >= seen_before,
            "{seen_before} was committed: {there:?}"
        );
        let kept: Vec<u64> = (newest.saturating_sub(KEEP - 1).max(1)..=newest).collect();
        assert_eq!(there, kept);
        last = newest;
    }
}
