//! One run at a time of a workflow and state folder, and whether there can be one.

use crate::error::{CliError, CliResult, ExitWith};
use anyhow::Context;
use rustix::fs::{Access, access};
use std::io::ErrorKind::AlreadyExists;
use std::path::Path;
use tarn_journal::{LockError, RunLock};
use tarn_types::codes::Exit;
use tarn_types::layout::StateDir;

pub(super) fn lock(state: &StateDir, workflow: &str) -> CliResult<RunLock> {
    match std::fs::create_dir_all(&state.0) {
        // A plan has removed it while it was empty: the lock makes it again.
        Err(e) if e.kind() == AlreadyExists && state.0.symlink_metadata().is_err() => {}
        made => made.with_context(|| cannot_make(state)).exit(Exit::State)?,
    }
    let lock = RunLock::take(&state.lock(workflow)).map_err(not_locked)?;
    changes_are_whole(state)?;
    Ok(lock)
}

/// Refuses what [`lock`] would refuse, and makes nothing.
pub(crate) fn could_lock(state: &StateDir, workflow: &str) -> CliResult<()> {
    may_make(&state.0)
        .with_context(|| cannot_make(state))
        .exit(Exit::State)?;
    let path = state.lock(workflow);
    if let Some(folder) = path.parent() {
        may_make(folder)
            .with_context(|| format!("cannot lock {}", path.display()))
            .exit(Exit::State)?;
    }
    RunLock::could_take(&path).map_err(not_locked)?;
    changes_are_whole(state)
}

fn cannot_make(state: &StateDir) -> String {
    format!("cannot create the state folder {}", state.0.display())
}

fn not_locked(e: LockError) -> CliError {
    let exit = match e {
        LockError::Busy { .. } | LockError::Read { .. } => Exit::Busy,
        _ => Exit::State,
    };
    CliError::new(exit, e)
}

/// The end of a run writes into the catalogue what this says: better known before the first step.
fn changes_are_whole(state: &StateDir) -> CliResult<()> {
    tarn_journal::changes::read(state)
        .context("nothing was started")
        .exit(Exit::State)?;
    Ok(())
}

/// Whether a folder is there and can be written, or can be made.
fn may_make(folder: &Path) -> std::io::Result<()> {
    for at in folder.ancestors() {
        match std::fs::metadata(at) {
            Ok(found) if !found.is_dir() => {
                let why = format!("{} is not a folder", at.display());
                return Err(std::io::Error::other(why));
            }
            Ok(_) => return Ok(access(at, Access::WRITE_OK | Access::EXEC_OK)?),
            // A link that leads nowhere.
            Err(e) if at.is_symlink() => return Err(e),
            Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
