//! Settings from the environment of a program.

use std::path::{Path, PathBuf};
use tarn_checkpoint_core::{CheckpointError, CheckpointErrorCode, Distance};
use tarn_sys::folder::may_make;

/// Which nodes come first as buddies: a matter of the machine, so its user sets it where the program is started.
pub(crate) fn distance() -> Result<Distance, CheckpointError> {
    match text("TARN_PHX_BUDDIES").as_deref() {
        None | Some("near") => Ok(Distance::Near),
        Some("far") => Ok(Distance::Far),
        Some(other) => Err(CheckpointError::new(
            CheckpointErrorCode::Invalid,
            format!(
                "$TARN_PHX_BUDDIES is {other:?}: near (below the same switch) or far (below another one) are possible"
            ),
        )),
    }
}

/// The switches over this node, from the top down: from the environment, or from Slurm, which names the node last.
pub(crate) fn switches() -> Option<String> {
    let slurm = || {
        let address = text("SLURM_TOPOLOGY_ADDR")?;
        let (above, _) = address.rsplit_once('.')?;
        Some(above.to_owned())
    };
    text("TARN_PHX_SWITCH").or_else(slurm)
}

/// A text of the environment.
pub(crate) fn text(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|v| !v.is_empty())
}

/// A path of the environment, which need not be UTF-8.
pub(crate) fn path(variable: &str) -> Option<PathBuf> {
    let value = std::env::var_os(variable).filter(|v| !v.is_empty());
    value.map(PathBuf::from)
}

/// Refuses a folder that is not there, where it may not be made.
pub(crate) fn may_begin(folder: &Path, what: &str) -> Result<(), CheckpointError> {
    let refused =
        |why| CheckpointError::new(CheckpointErrorCode::Invalid, format!("{what}: {why}"));
    may_make(folder).map(drop).map_err(refused)
}
