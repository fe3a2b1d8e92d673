//! Destinations outside: what tarn has put there is replaced, what somebody else has put or changed there never.
//!
//! `<state>/dests/<workspace>/<hash of the folder's path>` has two kinds of manifests: `.manifest` tells what tarn
//! has put there, `.intent` what it is about to put there.

use crate::shared::Shared;
use crate::store::failure;
use crate::store::{first_difference, make_folder, read_manifest, write_manifests};
use crate::transfer::remove_file;
use std::path::{Path, PathBuf};
use tarn_base::event::{Failure, FailureKind};
use tarn_base::hash::Hash;
use tarn_base::layout::StateDir;
use tarn_base::manifest::Manifest;
use tarn_base::merge;
use tarn_ports::{Control, Mover};

/// The folder that a destination stands for: what a link given as `dest` points to.
pub(crate) fn real_folder(dest: &Path) -> Result<PathBuf, String> {
    if !dest.is_symlink() {
        return Ok(dest.to_path_buf());
    }
    match std::fs::canonicalize(dest) {
        Ok(real) if real.is_dir() => Ok(real),
        Ok(real) => Err(format!(
            "the destination {} is a link to {}, which is no folder; let it point to a folder or remove it",
            dest.display(),
            real.display()
        )),
        Err(e) => Err(format!(
            "the destination {} is a link that leads nowhere: {e}; let it point to a folder or remove it",
            dest.display()
        )),
    }
}

/// What is remembered of one folder.
struct Memory {
    /// What tarn has put there.
    known: PathBuf,
    /// What it is about to put there.
    intended: PathBuf,
}

impl Memory {
    fn of(state: &StateDir, workspace: &str, folder: &Path) -> Self {
        let name = Hash::of(folder.as_os_str().as_encoded_bytes()).to_string();
        let base = state.dests(workspace).join(name);
        Self {
            known: base.with_extension("manifest"),
            intended: base.with_extension("intent"),
        }
    }
}

/// Whether a folder holds just what a file of the memory says.
fn holds(folder: &Path, memory: &Path, mover: &dyn Mover) -> bool {
    let Ok(known) = read_manifest(memory) else {
        return false;
    };
    mover
        .list(folder, &Control::default())
        .is_ok_and(|listed| first_difference(&listed, &known).is_none())
}

/// Whether the destination still holds what an earlier run put there: nothing added, removed or changed.
pub fn destination_intact(
    state: &StateDir,
    workspace: &str,
    dest: &Path,
    mover: &dyn Mover,
) -> bool {
    real_folder(dest)
        .is_ok_and(|real| holds(&real, &Memory::of(state, workspace, &real).known, mover))
}

/// Whether tarn may write this destination: it is missing or empty, or holds exactly what tarn put there, or what an
/// interrupted run was about to. For the check before a run starts.
///
/// # Errors
/// The sentence to show when it may not.
pub fn check_destination(
    state: &StateDir,
    workspace: &str,
    dataset: &str,
    dest: &Path,
    mover: &dyn Mover,
) -> Result<(), String> {
    let real = real_folder(dest)?;
    let empty = match std::fs::read_dir(&real) {
        Ok(mut entries) => entries.next().is_none(),
        Err(e) => e.kind() == std::io::ErrorKind::NotFound,
    };
    let memory = Memory::of(state, workspace, &real);
    if empty || holds(&real, &memory.known, mover) || holds(&real, &memory.intended, mover) {
        return Ok(());
    }
    Err(format!(
        "the destination {} of dataset `{dataset}` holds files that tarn did not put there or that were changed since; move them away or choose another `dest`",
        dest.display()
    ))
}

/// The declared wish to put something into a destination: it lets a later run replace what a crash left there
/// before it was remembered.
pub(crate) struct Intent {
    dest: PathBuf,
    memory: Memory,
    staging: PathBuf,
}

impl Intent {
    /// Checks the destination and notes what it is about to hold.
    pub(crate) fn declare(
        shared: &Shared,
        dataset: &str,
        dest: &Path,
        parts: &[&Manifest],
        control: &Control,
    ) -> Result<Self, Failure> {
        if control.cancelled() {
            return Err(failure(FailureKind::Cancelled, "abandoned before it began"));
        }
        check_destination(
            &shared.state,
            &shared.workspace,
            dataset,
            dest,
            &*shared.mover,
        )
        .map_err(|why| failure(FailureKind::Conflict, why))?;
        let dest = real_folder(dest).map_err(|why| failure(FailureKind::Conflict, why))?;
        let (Some(parent), Some(staging)) =
            (dest.parent(), Self::staging_of(&dest, &shared.workspace))
        else {
            return Err(failure(
                FailureKind::Io,
                format!(
                    "{} cannot be a destination: name a folder that tarn may create",
                    dest.display()
                ),
            ));
        };
        make_folder(parent)?;
        make_folder(&shared.state.dests(&shared.workspace))?;
        let memory = Memory::of(&shared.state, &shared.workspace, &dest);
        write_manifests([(memory.intended.as_path(), &united(parts)?)], true)?;
        Ok(Self {
            dest,
            memory,
            staging,
        })
    }

    /// The folder itself, links resolved.
    pub(crate) fn dest(&self) -> &Path {
        &self.dest
    }

    /// Where the tree grows, beside its destination.
    pub(crate) fn staging(&self) -> &Path {
        &self.staging
    }

    /// The destination is written: remember what it holds.
    pub(crate) fn fulfil(self, manifests: &[Manifest]) -> Result<(), Failure> {
        let trees: Vec<&Manifest> = manifests.iter().collect();
        write_manifests([(self.memory.known.as_path(), &united(&trees)?)], true)?;
        remove_file(&self.memory.intended)
    }

    /// The delivery failed: the wish is dropped, unless it has come true all the same.
    pub(crate) fn abandon(self, mover: &dyn Mover) {
        if !holds(&self.dest, &self.memory.intended, mover) {
            // One that stays does no harm: it allows only what tarn itself was about to write.
            let _ = remove_file(&self.memory.intended);
        }
    }

    /// The staging folder of a destination, for the clean-up after a crash.
    pub(crate) fn staging_of(dest: &Path, workspace: &str) -> Option<PathBuf> {
        let name = dest.file_name()?.to_string_lossy();
        Some(dest.parent()?.join(format!(".{name}.tarn-{workspace}")))
    }
}

fn united(trees: &[&Manifest]) -> Result<Manifest, Failure> {
    merge::merge(trees).map_err(|c| failure(FailureKind::Conflict, c.to_string()))
}
