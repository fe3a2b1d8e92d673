//! Removes what the file system has left in a dataset's folder on its brick and is none of the dataset.

use rustix::fs::Mode;
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Before the names of its attributes (workflow/node/brick).
const OWN: &[u8] = b"user.tarn.";
/// On a file without content that names the other brick on which the file of this name is.
const ELSEWHERE: &CStr = c"user.tarn.glusterfs.dht.linkto";
/// The mode of such a file.
const STICKY: u32 = 0o1000;
/// Bytes of the names of a file's attributes: the kernel's limit.
const NAMES: usize = 64 << 10;

/// Removes it: files that stand for others, and attributes of its own. Follows no link. Nothing may write there any more.
///
/// # Errors
/// When something cannot be read or removed; then the folder must not be taken for the dataset.
pub(crate) fn tidy(folder: &Path) -> io::Result<()> {
    let mut names = vec![0; NAMES];
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        strip(&at, &mut names).map_err(|e| cleanup_error(&at, &e))?;
        for entry in std::fs::read_dir(&at).map_err(|e| cleanup_error(&at, &e))? {
            let entry = entry.map_err(|e| cleanup_error(&at, &e))?;
            let path = entry.path();
            let status = entry.metadata().map_err(|e| cleanup_error(&path, &e))?;
            if status.is_dir() {
                folders.push(path);
            } else if status.is_file() {
                let one = stands_for_another(&path, &status).and_then(|stands| match stands {
                    true => std::fs::remove_file(&path),
                    false => strip(&path, &mut names),
                });
                one.map_err(|e| cleanup_error(&path, &e))?;
            }
        }
    }
    Ok(())
}

fn cleanup_error(path: &Path, e: &io::Error) -> io::Error {
    io::Error::new(
        e.kind(),
        format!(
            "the leftovers of the shared file system at {} cannot be cleaned up: {e}",
            path.display()
        ),
    )
}

fn stands_for_another(path: &Path, status: &std::fs::Metadata) -> io::Result<bool> {
    if status.len() != 0 || status.mode() & 0o7777 != STICKY {
        return Ok(false);
    }
    opened(path, || {
        rustix::fs::lgetxattr(path, ELSEWHERE, &mut [0u8; 0][..])
    })
    .map(|found| match found {
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(false),
        Err(e) => Err(e.into()),
        Ok(_) => Ok(true),
    })?
}

fn strip(path: &Path, names: &mut [u8]) -> io::Result<()> {
    let length = match rustix::fs::llistxattr(path, &mut *names) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    let own = names[..length]
        .split(|b| *b == 0)
        .filter(|n| n.starts_with(OWN));
    let own: Vec<CString> = own.filter_map(|n| CString::new(n).ok()).collect();
    let remove = || {
        own.iter()
            .try_for_each(|n| rustix::fs::lremovexattr(path, n.as_c_str()))
    };
    Ok(opened(path, remove)??)
}

/// Attributes of a file are its user's to read and change only if the mode allows it: otherwise the mode is changed meanwhile.
fn opened<T>(path: &Path, act: impl Fn() -> Result<T, Errno>) -> io::Result<Result<T, Errno>> {
    let done = act();
    if !matches!(done, Err(Errno::ACCESS | Errno::PERM)) {
        return Ok(done);
    }
    let mode = rustix::fs::lstat(path)?.st_mode;
    let mode = Mode::from_raw_mode(mode & 0o7777);
    rustix::fs::chmod(path, mode | Mode::RUSR | Mode::WUSR)?;
    let done = act();
    rustix::fs::chmod(path, mode)?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{XattrFlags, lsetxattr};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_what_is_the_file_systems_goes() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("sub")).unwrap();
        for name in ["file", "sub/other", "sticky", "link", "read-only"] {
            std::fs::write(at(name), if name == "file" { "content" } else { "" }).unwrap();
        }
        let set =
            |name: &str, attribute: &str| lsetxattr(at(name), attribute, b"x", XattrFlags::empty());
        if set("file", "user.tarn.gfid").is_err() {
            eprintln!(
                "SKIPPED: {} has no user attributes",
                folder.path().display()
            );
            return;
        }
        set("file", "user.mine").unwrap();
        set("sub", "user.tarn.gfid").unwrap();
        set("link", "user.tarn.glusterfs.dht.linkto").unwrap();
        set("read-only", "user.tarn.gfid").unwrap();
        let mode = |name: &str, mode| {
            std::fs::set_permissions(at(name), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        mode("link", 0o1000);
        mode("sticky", 0o1000);
        mode("read-only", 0o400);
        std::os::unix::fs::symlink("nowhere", at("symbolic")).unwrap();
        tidy(folder.path()).unwrap();
        let names = |name: &str| {
            let mut buffer = [0; 256];
            let length = rustix::fs::llistxattr(at(name), &mut buffer[..]).unwrap();
            String::from_utf8_lossy(&buffer[..length]).replace('\0', " ")
        };
        let own = |name: &str| names(name).contains("user.tarn");
        assert!(!at("link").exists(), "it stands for a file elsewhere");
        assert!(at("sticky").exists(), "a user's own empty file");
        assert!(at("sub/other").exists());
        assert!(at("symbolic").symlink_metadata().is_ok());
        assert!(names("file").contains("user.mine"));
        assert!(!own("file") && !own("sub") && !own("read-only"));
        assert_eq!(
            std::fs::metadata(at("read-only")).unwrap().mode() & 0o7777,
            0o400
        );
    }
}
