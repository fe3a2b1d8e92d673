//! Data that is to be kept outlives a loss of power, once the run that made it has ended well.

use crate::storage::run_facts::RunFacts;
use crate::storage::store::{entries, io_failure};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tarn_types::event::RunError;
use tarn_types::layout::TierDir;
use tarn_types::workflow::Keep;

/// Replicas of this world's nodes that outlive the run, with what describes them.
pub(crate) fn sync_kept(shared: &RunFacts) -> Result<(), RunError> {
    let is_kept = |keep: Keep| matches!(keep, Keep::For(_) | Keep::Forever);
    if !shared.workflow.data.iter().any(|d| is_kept(d.keep)) {
        return Ok(());
    }
    let parts = shared
        .own_tiers()
        .map(|(_, node, tier)| TierDir::new(&tier.root, &shared.workspace, &node.name).parts());
    let mut places: Vec<PathBuf> = parts.filter(|parts| !entries(parts).is_empty()).collect();
    // Nodes write there, too.
    places.push(shared.state.0.clone());
    sync_file_systems(places.iter().map(PathBuf::as_path))
}

/// Everything that was written to the file systems of these places is on their devices. In memory there is none.
///
/// # Errors
/// When a file system could not write something.
pub fn sync_file_systems<'a>(places: impl Iterator<Item = &'a Path>) -> Result<(), RunError> {
    let mut synced = BTreeSet::new();
    for place in places {
        let mut sync = || -> std::io::Result<()> {
            let folder = File::open(place)?;
            if synced.insert(folder.metadata()?.dev()) {
                rustix::fs::syncfs(&folder)?;
            }
            Ok(())
        };
        sync().map_err(|e| io_failure("sync the file system of", place, &e))?;
    }
    Ok(())
}
