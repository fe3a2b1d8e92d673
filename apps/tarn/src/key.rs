//! `tarn key`: the user's own keys, which the keys of encrypted data are wrapped with (docs/admin/security.md, "Encryption").

use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use crate::print::message;
use crate::state;
use clap::Subcommand;
use std::path::PathBuf;
use tarn_journal::RunLock;
use tarn_keyring as keys;
use tarn_node::keys::{DataKeys, Wrapping, workspaces};
use tarn_seal::ring::{KeyRing, MAX_KEYS};
use tarn_types::codes::Exit;
use tarn_types::layout::StateDir;
use tarn_types::workflow::Workflow;

/// Commands on keys.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key, if there is none
    New,
    /// Make a new key, and wrap the keys of data with it; the data stays as it is
    Rotate {
        /// State folders whose data was sealed with the old keys [default: `--state`, or `.tarn` here, if there is one]
        states: Vec<PathBuf>,
        /// Then forget the old keys: data of other state folders, and older encrypted checkpoints and objects, cannot be opened any more
        #[arg(long)]
        drop: bool,
    },
}

/// Runs the command.
///
/// # Errors
/// When keys cannot be read or written.
pub(crate) fn key(globals: &Globals, command: &KeyCommand) -> CliResult {
    let path = keys::user_file().exit(Exit::State)?;
    match command {
        KeyCommand::New => {
            let key = keys::fresh().exit(Exit::State)?;
            let id = key.id();
            keys::write(&path, &KeyRing::new(key), false).exit(Exit::State)?;
            message!(
                "key {id} is in {}; keep a copy where nobody else reads it: without it, the data sealed with it is lost",
                path.display()
            );
        }
        KeyCommand::Rotate { states, drop } => {
            let mut all = keys::read(&path).exit(Exit::State)?;
            let folders = folders(globals, states, *drop)?;
            // A file that is full of keys is emptied with the newest of them.
            if all.keys().len() < MAX_KEYS || !drop {
                all.rotate(keys::fresh().exit(Exit::State)?)
                    .exit(Exit::State)?;
                // Written before anything is wrapped with it.
                keys::write(&path, &all, true).exit(Exit::State)?;
            }
            let rewrapped = rewrap(&folders, &all)?;
            if *drop {
                all.drop_old();
                keys::write(&path, &all, true).exit(Exit::State)?;
            }
            message!(
                "key {} is the newest in {}; {rewrapped} keys of data were wrapped again",
                all.newest().id(),
                path.display()
            );
        }
    }
    Ok(Exit::Success)
}

/// The state folders that are meant. One that is named and not there is a mistake; before keys are forgotten, so is none at all.
fn folders(globals: &Globals, states: &[PathBuf], drop: bool) -> CliResult<Vec<StateDir>> {
    if states.is_empty() {
        return match state::here(globals) {
            Ok(here) => Ok(vec![here]),
            Err(_) if globals.state.is_none() && !drop => Ok(Vec::new()),
            Err(e) => Err(e),
        };
    }
    let folder = |path: &PathBuf| {
        let path = std::path::absolute(path).exit(Exit::Usage)?;
        if path.is_dir() {
            Ok(StateDir(path))
        } else {
            Err(CliError::new(
                Exit::NotFound,
                format!(
                    "there is no state folder {}; nothing was changed",
                    path.display()
                ),
            ))
        }
    };
    states.iter().map(folder).collect()
}

/// Wraps the keys of data in these state folders again; how many. No run of them is active meanwhile: it would wrap with the keys that
/// it began with, and remove what is wrapped again here.
fn rewrap(states: &[StateDir], keys: &KeyRing) -> CliResult<u64> {
    let mut rewrapped = 0;
    for state in states {
        for workspace in workspaces(state).exit(Exit::State)? {
            // Its name, and a hash of where its state is.
            let workflow = workspace
                .rsplit_once('-')
                .map_or(&*workspace, |(name, _)| name);
            let _lock = RunLock::take(&state.lock(workflow)).exit(Exit::Busy)?;
            let wrapping = Wrapping::of_user(keys.clone(), &workspace).exit(Exit::Internal)?;
            let data = DataKeys::new(state, &workspace, wrapping);
            rewrapped += data.rewrap().exit(Exit::State)?;
        }
    }
    Ok(rewrapped)
}

/// The wrapping of the keys of a workspace's data, if the workflow encrypts any.
pub(crate) fn for_workflow(workflow: &Workflow, workspace: &str) -> CliResult<Option<Wrapping>> {
    if !workflow.data.iter().any(|d| d.encrypt) {
        return Ok(None);
    }
    let user = keys::of_user().exit(Exit::State)?;
    Wrapping::of_user(user, workspace)
        .map(Some)
        .exit(Exit::Internal)
}
