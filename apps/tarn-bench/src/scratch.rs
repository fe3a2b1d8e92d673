//! Folders of a benchmark, removed with it: at its end, and when a signal ends it.

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tarn_mover::Trees;
use tarn_ports::Mover;

/// Attempts to list a folder while others still write into it.
const TRIES: u32 = 10;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(100);

/// Those that are there.
struct Folders {
    all: BTreeSet<PathBuf>,
    made: u64,
    watched: bool,
}

static FOLDERS: Mutex<Folders> = Mutex::new(Folders {
    all: BTreeSet::new(),
    made: 0,
    watched: false,
});

fn folders() -> MutexGuard<'static, Folders> {
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder of its own, removed with everything in it.
pub(super) struct ScratchFolder(PathBuf);

impl ScratchFolder {
    /// # Errors
    /// When it cannot be made there.
    pub(super) fn new(parent: &Path) -> anyhow::Result<Self> {
        let mut folders = folders();
        if !folders.watched {
            watch_signals()?;
            folders.watched = true;
        }
        folders.made += 1;
        let name = format!(".tarn-bench-{}-{}", std::process::id(), folders.made);
        let path = parent.join(name);
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        folders.all.insert(path.clone());
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        if let Err(e) = Trees::new().remove(&self.0) {
            crate::print::message!("warning: {e}");
        }
        folders().all.remove(&self.0);
    }
}

fn watch_signals() -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let name = "tarn-signals".to_owned();
    std::thread::Builder::new().name(name).spawn(move || {
        let Some(signal) = signals.forever().next() else {
            return;
        };
        // Held to the end: no other is made.
        let folders = folders();
        for folder in &folders.all {
            let tried = (0..TRIES).any(|_| {
                let gone = Trees::new().remove(folder).is_ok();
                if !gone {
                    std::thread::sleep(PAUSE);
                }
                gone
            });
            if !tried {
                crate::print::message!("warning: {} remains", folder.display());
            }
        }
        let _ = emulate_default_handler(signal);
    })?;
    Ok(())
}

/// The type of the file system of a folder, from its mount.
pub(crate) fn file_system(folder: &Path) -> anyhow::Result<String> {
    let folder = folder.canonicalize().with_context(|| {
        format!(
            "cannot use the directory {}: make it, or name another",
            folder.display()
        )
    })?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")
        .context("cannot read /proc/self/mountinfo")?;
    // Field 5 is the mount point; the type follows a lone hyphen (proc(5)). Of equal mount points the last is on top.
    let found = mounts
        .lines()
        .filter_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            Some((before.split(' ').nth(4)?, after.split(' ').next()?))
        })
        .filter(|(point, _)| folder.starts_with(point))
        .max_by_key(|(point, _)| point.len());
    Ok(found
        .map_or("unknown file system", |(_, kind)| kind)
        .to_owned())
}
