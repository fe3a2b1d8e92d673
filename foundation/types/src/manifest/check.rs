//! The rules of a well-formed manifest.

use super::{Entry, EntryKind, Manifest, ManifestError, parent};
use crate::bounds::{MAX_PATH_BYTES, MAX_XATTR_BYTES};

/// Why a path cannot stand in a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Nothing in it.
    #[error("it is empty or has an empty component")]
    Empty,
    /// `/` at its start.
    #[error("it is absolute")]
    Absolute,
    /// `.` or `..`.
    #[error("it has a `.` or `..` component")]
    Dots,
    /// A NUL byte.
    #[error("it has a NUL byte")]
    Nul,
    /// Longer than [`MAX_PATH_BYTES`].
    #[error("it is longer than {MAX_PATH_BYTES} bytes")]
    Long,
    /// Not after the path before it.
    #[error("it is out of order or listed twice")]
    Order,
    /// Its parent is not a listed folder.
    #[error("what holds it is not a listed folder")]
    Parent,
    /// A mode above `0o7777`, extents out of order, attributes unsorted and the like.
    #[error("its attributes are not well formed")]
    Attributes,
}

/// Checks a path relative to a tree's root.
///
/// # Errors
/// The first fault.
pub fn check_path(path: &[u8]) -> Result<(), PathError> {
    if path.len() > MAX_PATH_BYTES {
        return Err(PathError::Long);
    }
    if path.first() == Some(&b'/') {
        return Err(PathError::Absolute);
    }
    if path.contains(&0) {
        return Err(PathError::Nul);
    }
    for component in path.split(|&b| b == b'/') {
        match component {
            b"" => return Err(PathError::Empty),
            b"." | b".." => return Err(PathError::Dots),
            _ => {}
        }
    }
    Ok(())
}

impl Manifest {
    /// Checks that paths are relative and without dots, sorted and unique, that folders are listed before what
    /// they hold, and that attributes are well formed.
    ///
    /// # Errors
    /// The first entry that is not.
    pub fn check(&self) -> Result<(), ManifestError> {
        let mut before: Option<&Entry> = None;
        let mut folder: &[u8] = b"";
        for entry in &self.entries {
            let fault = |fault| ManifestError::Path {
                path: String::from_utf8_lossy(&entry.path).into_owned(),
                fault,
            };
            check_path(&entry.path).map_err(fault)?;
            if before.is_some_and(|b| b.path >= entry.path) {
                return Err(fault(PathError::Order));
            }
            if let Some(up) = parent(&entry.path)
                && up != folder
            {
                if !self.find(up).is_some_and(Entry::is_folder) {
                    return Err(fault(PathError::Parent));
                }
                folder = up;
            }
            if !entry.well_formed() {
                return Err(fault(PathError::Attributes));
            }
            before = Some(entry);
        }
        Ok(())
    }
}

impl Entry {
    fn well_formed(&self) -> bool {
        let names_sorted = self.xattrs.windows(2).all(|w| w[0].0 < w[1].0);
        let xattrs = names_sorted
            && self.xattrs.iter().all(|(name, value)| {
                !name.is_empty()
                    && !name.contains(&0)
                    && name.len() + value.len() <= MAX_XATTR_BYTES
            });
        let kind = match &self.kind {
            EntryKind::Directory => true,
            EntryKind::Symlink(target) => {
                !target.is_empty() && !target.contains(&0) && target.len() <= MAX_PATH_BYTES
            }
            EntryKind::File { size, extents, .. } => {
                let mut end = 0;
                extents.iter().all(|&(offset, length)| {
                    let after = offset.checked_add(length);
                    let fits = offset >= end && length > 0 && after.is_some_and(|a| a <= *size);
                    end = after.unwrap_or(u64::MAX);
                    fits
                })
            }
        };
        self.mode <= 0o7777 && xattrs && kind
    }
}
