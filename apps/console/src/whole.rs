//! Files that appear whole or not at all, whenever the program ends.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs::{self, File, Permissions};
use std::io::{Result, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// Writes a file that is not there yet. It has its name once `fill` has written it and it is synced.
///
/// # Errors
/// `AlreadyExists`, what the system says, or what `fill` does: nothing of the file is there then.
pub fn create(path: &Path, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match open(folder, flags, Mode::from_raw_mode(0o666)) {
        Ok(file) => {
            let mut file = File::from(file);
            fill(&mut file)?;
            file.sync_all()?;
            let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(CWD, unnamed, CWD, path, AtFlags::SYMLINK_FOLLOW)?;
        }
        // Network file systems have no files without a name.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => hidden(path, fill)?,
        Err(e) => return Err(e.into()),
    }
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.inspect_err(|_| drop(fs::remove_file(path)))
}

/// Replaces a file, or makes it: a reader sees the old one or the new one, whole. Rights stay as they are, and a link still leads to the
/// file; a new one has `mode`, if that is given. What is no file, such as a pipe, is written to.
///
/// # Errors
/// What the system says: the old file is as it was then.
pub fn replace(path: &Path, bytes: &[u8], mode: Option<u32>) -> Result<()> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let old = fs::metadata(&path).ok();
    if old.as_ref().is_some_and(|old| !old.is_file()) {
        return fs::write(&path, bytes);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Of one name: what a killed process has left is overwritten by the next.
    let part = path.with_file_name(format!(".tarn-{name}"));
    let written = || -> Result<()> {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            // Whoever else may write to the folder must not lead this elsewhere.
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(&part)?;
        if let Some(mode) = old.as_ref().map(|old| old.mode() & 0o7777).or(mode) {
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        if let Some(old) = old.as_ref().filter(|_| geteuid().is_root()) {
            fchown(&file, Some(old.uid()), Some(old.gid()))?;
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&part, &path)
    };
    written().inspect_err(|_| drop(fs::remove_file(&part)))
}

/// The same by a name of its own, which stays if the program is killed.
fn hidden(path: &Path, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let unfinished: PathBuf = path.with_file_name(format!(".{name}.{}.tarn", std::process::id()));
    let mut file = File::create_new(&unfinished)?;
    let written = fill(&mut file)
        .and_then(|()| file.sync_all())
        // Not over one that is there.
        .and_then(|()| fs::hard_link(&unfinished, path));
    let gone = fs::remove_file(&unfinished);
    written?;
    gone.inspect_err(|_| drop(fs::remove_file(path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    #[test]
    fn a_file_is_whole_or_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        type Way = fn(&Path, &dyn Fn(&mut File) -> Result<()>) -> Result<()>;
        let ways: [Way; 2] = [
            |path, fill| create(path, fill),
            |path, fill| hidden(path, fill),
        ];
        for way in ways {
            let broken = |file: &mut File| {
                file.write_all(b"half")?;
                Err(ErrorKind::Other.into())
            };
            way(&path, &broken).unwrap_err();
            assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
            way(&path, &|file| file.write_all(b"whole")).unwrap();
            let again = way(&path, &|file| file.write_all(b"other")).unwrap_err();
            assert_eq!(again.kind(), ErrorKind::AlreadyExists);
            assert_eq!(std::fs::read(&path).unwrap(), b"whole");
            assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn what_is_replaced_keeps_its_rights_and_links_lead_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
        replace(&path, b"one", Some(0o604)).unwrap();
        assert_eq!(mode(), 0o604);
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        replace(&link, b"two", None).unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode()), (b"two".to_vec(), 0o640));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        replace(Path::new("/dev/null"), b"three", None).unwrap();
        replace(folder.path(), b"four", None).unwrap_err();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
    }
}
