//! Checkpoints of steps: a folder in the store, which outlives its job, and what libtarn has staged in memory beside it.

use super::UserStore;
use crate::work::{ConfinedPath, to_request_error};
use rustix::fs::{AtFlags, Mode};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tarn_checkpoint::destage::{DestageOutcome, DestagedArena, Destager};
use tarn_ports::Mover;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{CheckpointFolder, WorkResult};

/// Where libtarn stages, if nothing else is set: each user has a folder below it.
const MEMORY: &str = "/dev/shm";

/// How long processes of a job that is over may take to be gone, and from one look to the next.
const ENDING: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(200);

/// The name that works with these checkpoints claim.
pub(super) fn claim_name(folder: &CheckpointFolder) -> String {
    format!("checkpoints {}/{}", folder.workflow, folder.step)
}

impl UserStore {
    /// The folder, in a store.
    pub(super) fn checkpoints(
        &self,
        root: &Path,
        folder: &CheckpointFolder,
        make: bool,
    ) -> Result<ConfinedPath, RequestError> {
        let path = folder.path(self.user).ok_or_else(|| {
            let text = "a name that cannot be one of a workflow or a step";
            RequestError::new(Code::Invalid, text)
        })?;
        self.held(root, &path, make)
    }

    /// Makes the folder, if it is not there.
    pub(super) fn make_checkpoints(
        &self,
        folder: &CheckpointFolder,
        store: &str,
    ) -> Result<WorkResult, RequestError> {
        let held = self.checkpoints(self.root_of(store)?, folder, true)?;
        if held.stat()?.is_none() {
            let made = rustix::fs::mkdirat(held.folder(), held.name(), Mode::RWXU);
            made.map_err(|e| held.failed("make", e))?;
        }
        Ok(WorkResult::Done)
    }

    /// Brings what a dead program has left in memory to its checkpoints, then frees the memory.
    pub(super) fn destage(
        &self,
        folder: &CheckpointFolder,
        store: &str,
    ) -> Result<WorkResult, RequestError> {
        let held = self.checkpoints(self.root_of(store)?, folder, false)?;
        let name = folder.run_name(self.user);
        let tier = held.path();
        if held.stat()?.is_none() || !tier.join("phx").join(&name).exists() {
            self.clear_memory(folder)?;
            return Ok(WorkResult::Done);
        }
        let mut destager = Destager::new(&tier, Path::new(MEMORY));
        let began = Instant::now();
        let done = loop {
            let mut is_running = false;
            let mut note = |arena: DestagedArena| match arena.what {
                DestageOutcome::Running(_) | DestageOutcome::Busy => is_running = true,
                DestageOutcome::Failed(why) => tracing::warn!("{}: {why}", arena.path.display()),
                DestageOutcome::Brought(_) | DestageOutcome::Lacking(_) => {}
            };
            let done = destager.run(OsStr::new(&name), &mut note);
            if !is_running {
                break done;
            }
            if began.elapsed() >= ENDING {
                let text = "the program with the checkpoints has not ended yet";
                return Err(RequestError::new(Code::Busy, text));
            }
            std::thread::sleep(PAUSE);
        };
        // Data that cannot be brought there is not waited for: the next start begins with an older version.
        if let Err(why) = done {
            tracing::warn!("checkpoints of {name}: {why}");
        }
        self.clear_memory(folder)?;
        Ok(WorkResult::Done)
    }

    /// The folder of a workflow goes with its last step's.
    pub(super) fn prune_checkpoints(&self, root: &Path, folder: &CheckpointFolder) {
        let path = folder.path(self.user);
        let above = path.as_deref().and_then(Path::parent);
        let held = above.and_then(|above| self.held(root, above, false).ok());
        if let Some(held) = held {
            // It may hold others.
            let _ = rustix::fs::unlinkat(held.folder(), held.name(), AtFlags::REMOVEDIR);
        }
    }

    /// Frees the memory that libtarn has for these checkpoints.
    pub(super) fn clear_memory(&self, folder: &CheckpointFolder) -> Result<(), RequestError> {
        let own = PathBuf::from(format!("{MEMORY}/tarn-phx-{}", self.user));
        let removed = self.mover.remove(&own.join(folder.run_name(self.user)));
        removed.map_err(|e| to_request_error(&e, &[]))
    }
}
