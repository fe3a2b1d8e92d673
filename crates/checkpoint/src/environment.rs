//! What the environment of a program says.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tarn_phx::{Code, Distance, Fault};

/// Which nodes come first as buddies: a matter of the machine, so its user says it where the program is started.
pub(crate) fn distance() -> Result<Distance, Fault> {
    match text("TARN_PHX_BUDDIES").as_deref() {
        None | Some("near") => Ok(Distance::Near),
        Some("far") => Ok(Distance::Far),
        Some(other) => Err(Fault::new(
            Code::Invalid,
            format!(
                "$TARN_PHX_BUDDIES is {other:?}: near (below the same switch) or far (below another one) are possible"
            ),
        )),
    }
}

/// The switches over this node, from the top down: as the environment says, or as Slurm does, which names the node last.
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

/// Whether a folder may be used: it is there, or can be made without taking the root disk for a tier that is not mounted, as
/// `/nvme/me` would on a node without `/nvme`, or the current folder for one, as `nvme/me` would.
pub(crate) fn may_begin(folder: &Path, what: &str) -> Result<(), Fault> {
    if folder.is_dir() {
        return Ok(());
    }
    let refused = |why: &str| {
        let text = format!(
            "{what} is {}, which is not there{why}: give a folder of the tier by its absolute path, and make it first (mkdir -p) if it is to be new",
            folder.display()
        );
        Err(Fault::new(Code::Invalid, text))
    };
    if !folder.is_absolute() {
        return refused(", and is not an absolute path");
    }
    let there = folder.ancestors().find(|above| above.is_dir());
    let there = there.unwrap_or(Path::new("/"));
    let device = |path: &Path| std::fs::metadata(path).map(|meta| meta.dev()).ok();
    // A folder in `/` is where file systems are mounted.
    if there.ancestors().count() <= 2 && device(there) == device(Path::new("/")) {
        return refused(", and would be made on the node's root disk");
    }
    Ok(())
}
