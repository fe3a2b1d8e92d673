//! Destinations outside: what tarn has put there is replaced, what somebody else has put or changed there never.

use crate::shared::Shared;
use crate::store::failure;
use crate::store::{
    first_difference, io_failure, make_folder, read_manifest, sync_folder, write_manifests,
};
use crate::transfer::remove_file;
use std::io::Write;
use std::path::{Path, PathBuf};
use tarn_base::event::{Failure, FailureKind};
use tarn_base::layout::StateDir;
use tarn_base::manifest::Manifest;
use tarn_base::merge;
use tarn_ports::{Control, Mover};

fn memory_file(state: &StateDir, dataset: &str) -> PathBuf {
    state.0.join("dests").join(format!("{dataset}.manifest"))
}

fn intent_file(state: &StateDir, dataset: &str) -> PathBuf {
    state.0.join("dests").join(format!("{dataset}.intent"))
}

/// Whether the destination still holds what an earlier run put there: nothing added, removed or changed.
pub fn destination_intact(state: &StateDir, dataset: &str, dest: &Path, mover: &dyn Mover) -> bool {
    let Ok(known) = read_manifest(&memory_file(state, dataset)) else {
        return false;
    };
    let recorded =
        std::fs::read(memory_file(state, dataset).with_extension("path")).unwrap_or_default();
    recorded == dest.as_os_str().as_encoded_bytes()
        && mover
            .list(dest, &Control::default())
            .is_ok_and(|listed| first_difference(&listed, &known).is_none())
}

/// Whether tarn may write this destination: it is missing or empty, or holds exactly what tarn put there, or an
/// interrupted run was about to. For the check before a run starts.
///
/// # Errors
/// The sentence to show when it may not.
pub fn check_destination(
    state: &StateDir,
    dataset: &str,
    dest: &Path,
    mover: &dyn Mover,
) -> Result<(), String> {
    let empty = match std::fs::read_dir(dest) {
        Ok(mut entries) => entries.next().is_none(),
        Err(e) => e.kind() == std::io::ErrorKind::NotFound,
    };
    let intended = std::fs::read(intent_file(state, dataset)).unwrap_or_default();
    if empty
        || intended == dest.as_os_str().as_encoded_bytes()
        || destination_intact(state, dataset, dest, mover)
    {
        return Ok(());
    }
    Err(format!(
        "the destination {} of dataset `{dataset}` holds files that tarn did not put there or that were changed since; move them away or choose another `dest`",
        dest.display()
    ))
}

/// The declared wish to write a destination: it lets a later run replace what a crash left half recorded.
pub(crate) struct Intent {
    dataset: String,
    dest: PathBuf,
    staging: PathBuf,
}

impl Intent {
    pub(crate) fn declare(
        shared: &Shared,
        dataset: &str,
        dest: &Path,
        control: &Control,
    ) -> Result<Self, Failure> {
        if control.cancelled() {
            return Err(failure(FailureKind::Cancelled, "abandoned before it began"));
        }
        check_destination(&shared.state, dataset, dest, &*shared.mover)
            .map_err(|why| failure(FailureKind::Conflict, why))?;
        let (Some(parent), Some(staging)) =
            (dest.parent(), Self::staging_of(dest, &shared.workspace))
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
        let file = intent_file(&shared.state, dataset);
        let folder = shared.state.0.join("dests");
        make_folder(&folder)?;
        let write = || -> std::io::Result<()> {
            let mut f = std::fs::File::create(&file)?;
            f.write_all(dest.as_os_str().as_encoded_bytes())?;
            f.sync_all()?;
            sync_folder(&folder)
        };
        write().map_err(|e| io_failure("write", &file, &e))?;
        Ok(Self {
            dataset: dataset.to_owned(),
            dest: dest.to_path_buf(),
            staging,
        })
    }

    /// Where the tree grows, beside its destination.
    pub(crate) fn staging(&self) -> &Path {
        &self.staging
    }

    /// The destination is written: remember what it holds.
    pub(crate) fn fulfil(self, shared: &Shared, manifests: &[Manifest]) -> Result<(), Failure> {
        let trees: Vec<&Manifest> = manifests.iter().collect();
        let merged =
            merge::merge(&trees).map_err(|c| failure(FailureKind::Conflict, c.to_string()))?;
        let memory = memory_file(&shared.state, &self.dataset);
        let path = memory.with_extension("path");
        std::fs::write(&path, self.dest.as_os_str().as_encoded_bytes())
            .map_err(|e| io_failure("write", &path, &e))?;
        write_manifests([(memory.as_path(), &merged)], true)?;
        remove_file(&intent_file(&shared.state, &self.dataset))
    }

    /// The staging folder of a destination, for the clean-up after a crash.
    pub(crate) fn staging_of(dest: &Path, workspace: &str) -> Option<PathBuf> {
        let name = dest.file_name()?.to_string_lossy();
        Some(dest.parent()?.join(format!(".{name}.tarn-{workspace}")))
    }
}
