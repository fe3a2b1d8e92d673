//! Exchanging two trees, and removing one that was taken out: never a file that is not recorded.

use crate::storage::store::{alike, failure, io_failure, sync_folder};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tarn_ports::{Control, Mover};
use tarn_types::event::{RunError, RunErrorKind};
use tarn_types::manifest::{Entry, EntryKind, Manifest};

/// The error of a file system without the flags of `renameat2` (NFS has none).
fn unknown(e: Errno) -> bool {
    matches!(e, Errno::INVAL | Errno::NOSYS | Errno::NOTSUP)
}

/// The path at which a tree waits while two are exchanged by plain renames.
pub(super) fn aside(ready: &Path) -> PathBuf {
    let mut name = ready.as_os_str().to_os_string();
    name.push(".aside");
    name.into()
}

/// Gives a tree its name, which nobody may have taken meanwhile.
pub(super) fn rename_new(ready: &Path, dest: &Path, remedy: &str) -> Result<(), RunError> {
    let renamed = match renameat_with(CWD, ready, CWD, dest, RenameFlags::NOREPLACE) {
        // A plain rename replaces nothing but an empty folder.
        Err(e) if unknown(e) => std::fs::rename(ready, dest),
        other => other.map_err(io::Error::from),
    };
    renamed.map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty => failure(
            RunErrorKind::Conflict,
            format!(
                "somebody has made {} while its content was copied; move it away, then {remedy}",
                dest.display()
            ),
        ),
        _ => io_failure("make", dest, &e),
    })?;
    synced(dest)
}

/// Exchanges two trees of one folder.
pub(super) fn swap(ready: &Path, dest: &Path) -> Result<(), RunError> {
    let swapped = match renameat_with(CWD, ready, CWD, dest, RenameFlags::EXCHANGE) {
        Err(e) if unknown(e) => swap_by_renames(ready, dest),
        other => other.map_err(io::Error::from),
    };
    swapped.map_err(|e| io_failure("replace", dest, &e))?;
    synced(dest)
}

/// As close together as can be: `dest` is missing in between, never mixed.
fn swap_by_renames(ready: &Path, dest: &Path) -> io::Result<()> {
    let aside = aside(ready);
    std::fs::rename(dest, &aside)?;
    if let Err(e) = std::fs::rename(ready, dest) {
        // Somebody has taken the name: then what was there stays aside, and is found by the next delivery.
        let _ = std::fs::rename(&aside, dest);
        return Err(e);
    }
    std::fs::rename(&aside, ready)
}

fn synced(dest: &Path) -> Result<(), RunError> {
    let above = dest.parent().unwrap_or(Path::new("/"));
    sync_folder(above).map_err(|e| io_failure("sync the folder", above, &e))
}

/// Removes a tree as far as it is as recorded (in any of the manifests), down to its last folder.
///
/// # Errors
/// When something is left: its name, and where it is.
pub(super) fn dispose(
    tree: &Path,
    recorded: &[Manifest],
    remedy: &str,
    mover: &dyn Mover,
) -> Result<(), RunError> {
    if tree.symlink_metadata().is_err() {
        return Ok(());
    }
    let listed = mover.list(tree, &Control::default());
    let listed = listed?;
    let ours = |e: &Entry| {
        let alike = |r: &Entry| alike(e, r) || (e.is_folder() && r.is_folder());
        recorded.iter().filter_map(|m| m.find(&e.path)).any(alike)
    };
    for entry in listed.entries.iter().filter(|e| e.is_folder() && ours(e)) {
        // A folder was made read-only for others, not for tarn; one that cannot be changed is named below.
        let open = std::fs::Permissions::from_mode(0o700);
        let _ = std::fs::set_permissions(path_of(tree, entry), open);
    }
    for entry in listed.entries.iter().rev() {
        let path = path_of(tree, entry);
        let removed = match ours(entry) && unchanged(&path, entry) {
            true if entry.is_folder() => std::fs::remove_dir(&path),
            true => std::fs::remove_file(&path),
            false => Err(io::ErrorKind::DirectoryNotEmpty.into()),
        };
        match removed {
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => other.map_err(|e| io_failure("remove", &path, &e))?,
        }
    }
    match std::fs::remove_dir(tree) {
        Err(e) if e.kind() != io::ErrorKind::DirectoryNotEmpty => {
            Err(io_failure("remove", tree, &e))
        }
        Ok(()) => Ok(()),
        Err(_) => Err(failure(
            RunErrorKind::Conflict,
            format!(
                "{} was written by somebody else while tarn replaced the folder it was in; move it from there, then \
                 {remedy}",
                left_in(tree, mover).display()
            ),
        )),
    }
}

/// The first file in a tree, or what there is instead.
fn left_in(tree: &Path, mover: &dyn Mover) -> PathBuf {
    let left = mover.list(tree, &Control::default()).unwrap_or_default();
    let file = left.entries.iter().find(|e| !e.is_folder());
    let entry = file.or(left.entries.last());
    entry.map_or_else(|| tree.to_path_buf(), |e| path_of(tree, e))
}

fn path_of(tree: &Path, entry: &Entry) -> PathBuf {
    tree.join(std::ffi::OsStr::from_bytes(&entry.path))
}

/// Whether a file is still what it was when it was listed.
fn unchanged(path: &Path, entry: &Entry) -> bool {
    let Ok(now) = path.symlink_metadata() else {
        return true;
    };
    let time = || now.mtime().saturating_mul(1_000_000_000) + now.mtime_nsec();
    match &entry.kind {
        EntryKind::Directory => now.is_dir(),
        EntryKind::Symlink(_) => now.is_symlink(),
        EntryKind::File { size, .. } => {
            now.is_file() && now.len() == *size && time() == entry.mtime
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tarn_mover::Trees;

    #[test]
    fn a_file_system_without_exchange_gets_three_renames() {
        let dir = tempfile::tempdir().unwrap();
        let (ready, dest) = (dir.path().join(".out.ready"), dir.path().join("out"));
        for (folder, text) in [(&ready, "new"), (&dest, "old")] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("a"), text).unwrap();
        }
        swap_by_renames(&ready, &dest).unwrap();
        assert_eq!(fs::read_to_string(dest.join("a")).unwrap(), "new");
        assert_eq!(fs::read_to_string(ready.join("a")).unwrap(), "old");
        assert!(!aside(&ready).exists());
        fs::remove_dir_all(&ready).unwrap();
        swap_by_renames(&ready, &dest).unwrap_err();
        assert_eq!(fs::read_to_string(dest.join("a")).unwrap(), "new");
    }

    #[test]
    fn only_what_is_recorded_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("sub/deep")).unwrap();
        for name in ["a", "edited", "sub/b"] {
            fs::write(tree.join(name), name).unwrap();
        }
        let recorded = Trees::new().list(&tree, &Control::default()).unwrap();
        fs::set_permissions(tree.join("sub"), fs::Permissions::from_mode(0o555)).unwrap();
        fs::write(tree.join("edited"), "by hand").unwrap();
        fs::write(tree.join("sub/deep/mine"), "mine").unwrap();
        let recorded = [Manifest::default(), recorded];
        let refused = dispose(&tree, &recorded, "", &Trees::new()).unwrap_err();
        assert_eq!(refused.kind, RunErrorKind::Conflict);
        assert!(refused.message.contains("tree/edited"), "{refused:?}");
        assert!(!tree.join("a").exists() && !tree.join("sub/b").exists());
        assert_eq!(fs::read_to_string(tree.join("edited")).unwrap(), "by hand");
        fs::remove_file(tree.join("edited")).unwrap();
        let refused = dispose(&tree, &recorded, "", &Trees::new()).unwrap_err();
        assert!(refused.message.contains("sub/deep/mine"), "{refused:?}");
        fs::remove_file(tree.join("sub/deep/mine")).unwrap();
        dispose(&tree, &recorded, "", &Trees::new()).unwrap();
        assert!(!tree.exists());
        dispose(&tree, &recorded, "", &Trees::new()).unwrap();
    }
}
