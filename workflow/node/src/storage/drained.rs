//! Drained data is in folders of the external store, or is trees of an object store, which carry the workspace's name.

use crate::storage::store;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tarn_ports::{Control, Mover, MoverError, ObjectStoreError};
use tarn_types::event::RunError;
use tarn_types::layout::tree;
use tarn_types::object::is_object;

/// Whether the folder of a replica, on a tier or outside, is there; a tree of an object store is when it is whole.
///
/// # Errors
/// When the object store gives no answer.
pub fn is_there(path: &Path, workspace: &str, mover: &dyn Mover) -> Result<bool, RunError> {
    match is_object(path) {
        true => Ok(mover.is_delivered(path, workspace, &Control::default())?),
        false => Ok(path.exists()),
    }
}

/// Removes what was drained as one part, if it is there.
///
/// # Errors
/// When something may still be there.
pub fn remove_drained(part: &Path, workspace: &str, mover: &dyn Mover) -> Result<(), RunError> {
    if is_object(part) {
        return Ok(mover.withdraw(part, workspace, true, &Control::default())?);
    }
    mover.remove(part)?;
    // The drained area goes with its last part; it stays while there are others.
    let _ = part.parent().map(std::fs::remove_dir);
    Ok(())
}

/// The parts in an area, whole or not.
pub(crate) fn entries(area: &Path, mover: &dyn Mover) -> Result<Vec<PathBuf>, RunError> {
    if !is_object(area) {
        return Ok(store::entries(area));
    }
    let listed = match mover.list(area, &Control::default()) {
        Err(MoverError {
            refused: Some(ObjectStoreError::Missing),
            ..
        }) => return Ok(Vec::new()),
        listed => listed?,
    };
    let names = listed.entries.iter().filter_map(|e| {
        let name = e.path.split(|b| *b == b'/').next()?;
        std::str::from_utf8(name).ok()
    });
    let names: BTreeSet<&str> = names.collect();
    Ok(names.into_iter().map(|n| tree(area.join(n))).collect())
}
