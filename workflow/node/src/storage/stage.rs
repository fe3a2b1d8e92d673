//! Steps see their folders at `<tier root>/<workspace>/at/<name>`. The mount points are made in each step's namespace. Outside of it
//! there is a folder in place of each that may be entered, as slurmstepd does for a task of srun before `tarn enter`, and nothing else:
//! a program that was started outside can neither list, read nor write there, and gets an error. Permissions do not bind root:
//! for it there is a file. An empty folder would take the output of such a program, and lose it.

use crate::storage::store::{io_failure, is_folder, make_folder};
use std::fs::{OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tarn_types::event::RunError;

/// The name of the folder in a workspace's; no node has it.
pub(crate) const NAME: &str = "at";

/// Such a folder may be entered.
const ENTERED: u32 = 0o111;
/// The text of such a file.
const TEXT: &str = "A step of tarn has a folder here, which only the step itself and its processes see. Processes that srun starts in a step of several\n\
    nodes see it by `srun ... tarn enter COMMAND`, commands on another node of the step by `tarn exec NODE -- COMMAND`.\n";

/// The folder of a workspace on a tier.
pub(crate) fn folder(root: &Path, workspace: &str) -> PathBuf {
    root.join(workspace).join(NAME)
}

/// Makes what is outside: a place of each of these names.
pub(crate) fn make(stage: &Path, names: &[String]) -> Result<(), RunError> {
    make_folder(stage)?;
    for name in names {
        let path = stage.join(name);
        if !rustix::process::geteuid().is_root() {
            if path.is_file() && is_own(&path) {
                let removed = std::fs::remove_file(&path);
                removed.map_err(|e| io_failure("remove", &path, &e))?;
            }
            make_folder(&path)?;
            let closed = std::fs::set_permissions(&path, Permissions::from_mode(ENTERED));
            closed.map_err(|e| io_failure("close", &path, &e))?;
            continue;
        }
        // One that is not empty has what a program outside of its step has written: it stays.
        let _ = std::fs::remove_dir(&path);
        if is_folder(&path) {
            continue;
        }
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o444)
            .open(&path);
        match made.and_then(|mut file| file.write_all(TEXT.as_bytes())) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                return Err(io_failure("write", &path, &e));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Removes what [`make`] has made in the folder of a workspace; nothing else that is there.
pub(crate) fn remove(workspace: &Path) {
    let stage = workspace.join(NAME);
    for entry in std::fs::read_dir(&stage).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type());
        // The next look finds an entry that cannot be removed.
        let _ = match kind {
            Ok(kind) if kind.is_dir() => std::fs::remove_dir(&path),
            Ok(kind) if kind.is_file() && is_own(&path) => std::fs::remove_file(&path),
            _ => Ok(()),
        };
    }
    let _ = std::fs::remove_dir(stage);
}

fn is_own(path: &Path) -> bool {
    let length = std::fs::metadata(path).map_or(0, |about| about.len());
    length == 0
        || (length == TEXT.len() as u64 && std::fs::read(path).is_ok_and(|t| t == TEXT.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_put_there_stays() {
        let workspace = tempfile::tempdir().unwrap();
        let stage = workspace.path().join(NAME);
        std::fs::create_dir_all(stage.join(".scratch")).unwrap();
        std::fs::create_dir_all(stage.join("old/lost")).unwrap();
        std::fs::write(stage.join("data"), TEXT).unwrap();
        std::fs::write(stage.join("theirs"), "something").unwrap();
        remove(workspace.path());
        let left = std::fs::read_dir(&stage)
            .unwrap()
            .map(|e| e.unwrap().file_name());
        let mut left: Vec<_> = left.collect();
        left.sort();
        assert_eq!(left, ["old", "theirs"]);
        std::fs::remove_dir_all(stage.join("old")).unwrap();
        std::fs::remove_file(stage.join("theirs")).unwrap();
        remove(workspace.path());
        assert!(!stage.exists());
    }
}
