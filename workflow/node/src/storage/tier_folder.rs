//! The folders of tiers: made for one user alone, and refused where they are somebody else's.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tarn_sys::folder;

/// The mode of folders that data is put into: data that was private where it came from must not be readable on a tier.
const PRIVATE: u32 = 0o700;

/// The root of the default tier: memory, in a folder of the user's own.
pub(crate) fn default_root() -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    PathBuf::from(format!("/dev/shm/tarn-{user}"))
}

/// Makes the folder of a tier, where it may be.
pub(crate) fn make_root(root: &Path) -> io::Result<()> {
    match is_beside_default(root) {
        true => make_private_folder(root),
        false => folder::make(root),
    }
}

/// The folder of a tier, or the one within which it may be made.
pub(crate) fn look_at_root(root: &Path) -> io::Result<PathBuf> {
    if is_beside_default(root) && root.symlink_metadata().is_ok() {
        check_own(root)?;
    }
    Ok(folder::may_make(root)?)
}

/// Whether its name is known to everybody, and everybody may write the folder it is in.
fn is_beside_default(root: &Path) -> bool {
    root.parent() == default_root().parent()
}

/// Makes a folder that only this user can enter, or makes one that is there such a folder.
///
/// # Errors
/// When it is somebody else's, or no folder (a link to one is none): its owner could read the data.
pub(crate) fn make_private_folder(path: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(PRIVATE).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let found = check_own(path)?;
    if found.mode() & 0o777 != PRIVATE {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(PRIVATE))?;
    }
    Ok(())
}

/// Sees to it that a folder that is there is this user's.
fn check_own(path: &Path) -> io::Result<std::fs::Metadata> {
    let found = path.symlink_metadata()?;
    let refused = |why: String| {
        Err(io::Error::other(format!(
            "{why}; tarn keeps data only in folders that you own: remove it, or give another tier (--tier NAME=PATH)"
        )))
    };
    if !found.is_dir() {
        return refused(format!("{} is no folder", path.display()));
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return refused(format!(
            "{} belongs to user {}",
            path.display(),
            found.uid()
        ));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_ones_own_is_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        let new = dir.path().join("new");
        make_private_folder(&new).unwrap();
        assert_eq!(mode(&new), 0o700);
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).unwrap();
        make_private_folder(&new).unwrap();
        assert_eq!(mode(&new), 0o700, "made by an older tarn");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&new, &link).unwrap();
        assert!(
            make_private_folder(&link)
                .unwrap_err()
                .to_string()
                .contains("no folder")
        );
        // Root may give a folder away; for everybody else `/` is somebody else's.
        let theirs = match std::os::unix::fs::chown(&new, Some(1234), None) {
            Ok(()) => new.as_path(),
            Err(_) => Path::new("/"),
        };
        let refused = make_private_folder(theirs).unwrap_err().to_string();
        assert!(refused.contains("belongs to user"), "{refused}");
    }
}
