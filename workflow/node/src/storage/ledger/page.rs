//! The file `ledger` at a tier's root: the claims of every workspace on the tier. Read by all, written under a lock.
//!
//! Each number in it is whatever somebody wrote: sums and differences of them saturate.

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::path::Path;

/// Names of claims of what a tier has exported begin so: they are names of its folders.
const EXPORTED_HERE: &str = "lent/";

/// All claims on one tier root.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TierClaims {
    pub(super) entries: Vec<WorkspaceClaim>,
}

/// The claim of one workspace on a tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WorkspaceClaim {
    pub(super) workspace: String,
    pub(super) pid: i32,
    /// Start time of the process in ticks since boot, which tells it from a later one of the same id.
    pub(super) start: u64,
    /// The size of the tier, as the run takes it.
    pub(super) limit: u64,
    pub(super) used: u64,
    pub(super) reserved: u64,
    /// Bytes of what is used that anybody may have who needs them.
    #[serde(default, skip_serializing_if = "is_none_of_it")]
    pub(super) cached: u64,
    /// Since when it waits for space, in milliseconds since boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) waiting: Option<u64>,
}

fn is_none_of_it(bytes: &u64) -> bool {
    *bytes == 0
}

impl WorkspaceClaim {
    pub(super) fn alive(&self) -> bool {
        tarn_sys::process::start_time(self.pid) == Some(self.start)
    }

    /// Bytes that nobody else may use: the reservations of a dead run lapse.
    pub(super) fn weight(&self) -> u64 {
        match self.alive() {
            true => self.used.saturating_add(self.reserved),
            false => self.used,
        }
    }

    /// The same without what goes when they need it.
    fn lasting(&self) -> u64 {
        self.weight().saturating_sub(self.cached)
    }

    /// Whether it still counts: a dead run's claim does as long as its folder is there, because its bytes are.
    pub(super) fn counts(&self, root: &Path) -> bool {
        self.alive() || (self.used > 0 && root.join(&self.workspace).is_dir())
    }

    /// Whether it is what a run of this workspace exports now.
    pub(super) fn is_export_of(&self, workspace: &str) -> bool {
        if !self.alive() {
            return false;
        }
        let of = self.workspace.strip_prefix(EXPORTED_HERE);
        let of = of.and_then(|of| of.split_once('/'));
        of.is_some_and(|(of, _)| of == workspace)
    }

    /// The order of seniority: the run that started first, and of two at once the lower process id.
    pub(super) fn seniority(&self) -> (u64, i32) {
        (self.start, self.pid)
    }
}

/// Keeps others from changing the page until it is dropped.
pub(super) fn lock(root: &Path) -> io::Result<File> {
    let lock = File::create(root.join("ledger.lock"))?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
    Ok(lock)
}

impl TierClaims {
    /// A page that cannot be read (it is replaced by renames, so only a foreign hand can have damaged it) counts
    /// as empty: every live run writes its claim again with its next change.
    pub(super) fn read(root: &Path) -> io::Result<Self> {
        match std::fs::read(root.join("ledger")) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(e) => Err(e),
        }
    }

    /// Writes it; an empty page is no file.
    pub(super) fn write(&self, root: &Path) -> io::Result<()> {
        let path = root.join("ledger");
        if self.entries.is_empty() {
            return match std::fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
                _ => Ok(()),
            };
        }
        let temporary = root.join("ledger.tmp");
        let written = std::fs::write(&temporary, serde_json::to_vec(self)?);
        let written = written.and_then(|()| std::fs::rename(&temporary, path));
        if written.is_err() {
            // Half of it on a full tier is of no use to anybody.
            let _ = std::fs::remove_file(&temporary);
        }
        written
    }
}

fn claims(root: &Path) -> Vec<WorkspaceClaim> {
    TierClaims::read(root).unwrap_or_default().entries
}

/// Bytes of the tier at `root` that other workspaces' runs use or have reserved, for planning before a run. Bytes that go when
/// they are needed do not count. Exports of this process do not count either: they are no part of its tier meanwhile.
pub fn held_by_others(root: &Path, workspace: &str) -> u64 {
    let all = claims(root);
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let is_exported =
        |c: &WorkspaceClaim| c.workspace.starts_with(EXPORTED_HERE) && c.pid == own && c.alive();
    let others = all
        .iter()
        .filter(|c| c.workspace != workspace && c.counts(root) && !is_exported(c));
    others
        .map(WorkspaceClaim::lasting)
        .fold(0, u64::saturating_add)
}

/// Bytes of the tier at `root` that are accounted to a workspace, without what goes when others need the space.
pub fn held_of(root: &Path, workspace: &str) -> u64 {
    let all = claims(root).into_iter();
    let own = all.filter(|c| c.workspace == workspace && c.counts(root));
    own.map(|c| c.lasting()).fold(0, u64::saturating_add)
}

/// Bytes on the tier at `root` that are accounted to any workspace: they count as space of the tier that is taken,
/// not as space that it lacks.
pub(crate) fn used_by_all(root: &Path) -> u64 {
    let all = claims(root);
    let there = all.iter().filter(|c| c.counts(root));
    there.map(|c| c.used).fold(0, u64::saturating_add)
}

/// Enters what the tier at `root` has exported in its folder `name`: bytes that are `used` there, and, while this process exports it, those
/// `reserved` beside them. Nothing of both: there is nothing any more.
///
/// # Errors
/// When the ledger cannot be changed.
pub(crate) fn record_export(root: &Path, name: &str, used: u64, reserved: u64) -> io::Result<()> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let pid = if reserved > 0 { own } else { 0 };
    let _lock = lock(root)?;
    let found = TierClaims::read(root)?;
    let mut page = found.clone();
    page.entries.retain(|c| c.workspace != name);
    if used > 0 || reserved > 0 {
        page.entries.push(WorkspaceClaim {
            workspace: name.to_owned(),
            pid,
            start: tarn_sys::process::start_time(pid).unwrap_or(0),
            limit: u64::MAX,
            used,
            reserved,
            cached: 0,
            waiting: None,
        });
        page.entries.sort_by(|a, b| a.workspace.cmp(&b.workspace));
    }
    match page == found {
        true => Ok(()),
        false => page.write(root),
    }
}

/// A dead run's claim on the tier at `root`, with its folder.
#[cfg(test)]
pub(crate) fn left_by_the_dead(root: &Path, used: u64) {
    let claim = WorkspaceClaim {
        workspace: "gone".into(),
        pid: i32::MAX,
        start: 1,
        limit: used,
        used,
        reserved: 0,
        cached: 0,
        waiting: None,
    };
    std::fs::create_dir_all(root.join(&claim.workspace)).unwrap();
    let entries = vec![claim];
    TierClaims { entries }.write(root).unwrap();
}
