//! Files that appear whole or not at all, whenever the program ends.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use rustix::io::Errno;
use std::fs::File;
use std::io::Result;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Writes a file that is not there yet. It has its name once `fill` has written it and it is synced.
///
/// # Errors
/// `AlreadyExists`, what the system says, or what `fill` does: nothing of the file is there then.
pub(crate) fn create(path: &Path, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
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
    File::open(folder)?.sync_all()
}

/// The same by a name of its own, which stays if the program is killed.
fn hidden(path: &Path, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let unfinished: PathBuf = path.with_file_name(format!(".{name}.{}.tarn", std::process::id()));
    let mut file = File::create_new(&unfinished)?;
    let written = fill(&mut file)
        .and_then(|()| file.sync_all())
        // Not over one that is there.
        .and_then(|()| std::fs::hard_link(&unfinished, path));
    let gone = std::fs::remove_file(&unfinished);
    written.and(gone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Write};

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
}
