//! Views: one tree that shows several, for reading (links) or for writing (a private copy).

use crate::error::{ErrorSide, Result, failed, show_in, show_path};
use crate::finish::seal;
use crate::gather::conflict;
use crate::publish::exists;
use crate::remove::remove;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Mode, linkat, mkdirat, symlinkat, utimensat};
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tarn_ports::{CopyJob, CopySource};
use tarn_sys::beneath::{Root, split};
use tarn_types::manifest::{Entry, EntryKind, Manifest};
use tarn_types::merge::merge;
use tarn_types::part::Verify;

/// A tree of links to the files of `roots`.
pub(crate) fn link_view(roots: &[(PathBuf, Manifest)], dest: &Path) -> Result<()> {
    let trees: Vec<&Manifest> = roots.iter().map(|(_, m)| m).collect();
    let merged = merge(&trees).map_err(|c| conflict(&c, |at| show_path(&roots[at].0)))?;
    let error = |path: &[u8], e| failed(ErrorSide::Dest, "make the view", &show_in(dest, path), e);
    match mkdirat(CWD, dest, Mode::from_raw_mode(0o755)) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Err(exists(dest)),
        Err(errno) => return Err(error(b"", errno)),
    }
    let made = Root::open(dest).map_err(|e| error(b"", e)).and_then(|top| {
        roots
            .iter()
            .try_for_each(|(root, manifest)| link_tree(root, manifest, &top))?;
        seal(&top, &merged)
            .map(drop)
            .map_err(|(path, e)| error(&path, e))
    });
    made.inspect_err(|_| drop(remove(dest)))
}

fn link_tree(path: &Path, manifest: &Manifest, dest: &Root) -> Result<()> {
    let error = |at: &[u8], e| failed(ErrorSide::Source, "link", &show_in(path, at), e);
    // Links across file systems name the whole path.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let source = Root::open(path).map_err(|e| error(b"", e))?;
    let mut holder: Option<(&[u8], OwnedFd, OwnedFd)> = None;
    for entry in &manifest.entries {
        let (above, name) = split(&entry.path);
        let (from, to) = match &holder {
            Some((path, from, to)) if *path == above => (from, to),
            _ => {
                let from = source.folder(above).map_err(|e| error(above, e))?;
                let to = dest.folder(above).map_err(|e| error(above, e))?;
                let (_, from, to) = holder.insert((above, from, to));
                (&*from, &*to)
            }
        };
        match link_entry(entry, name, from, to, &absolute) {
            // A folder that unites, or a file that another root has just so.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(error(&entry.path, errno)),
        }
    }
    Ok(())
}

fn link_entry(
    entry: &Entry,
    name: &[u8],
    from: &OwnedFd,
    to: &OwnedFd,
    root: &Path,
) -> std::result::Result<(), Errno> {
    match &entry.kind {
        EntryKind::Directory => mkdirat(to, name, Mode::RWXU),
        EntryKind::Symlink(target) => {
            symlinkat(&**target, to, name)?;
            utimensat(
                to,
                name,
                &crate::meta::times(entry.mtime),
                AtFlags::SYMLINK_NOFOLLOW,
            )
        }
        EntryKind::File { .. } => match linkat(from, name, to, name, AtFlags::empty()) {
            // Another file system; or too many links; or a file of another user (`protected_hardlinks`).
            Err(Errno::XDEV | Errno::MLINK | Errno::PERM) => {
                let mut path = root.as_os_str().as_bytes().to_vec();
                path.push(b'/');
                path.extend_from_slice(&entry.path);
                symlinkat(path, to, name)
            }
            other => other,
        },
    }
}

/// The copy that makes `dest` a private tree of the content of `roots`: nothing is hashed, as the manifests describe
/// it, and blocks are shared where the file system can.
pub(crate) fn clone_job(roots: &[(PathBuf, Manifest)], dest: &Path) -> CopyJob {
    let mut staging = dest.as_os_str().to_os_string();
    staging.push(".cloning");
    let source = |(root, manifest): &(PathBuf, Manifest)| CopySource {
        manifest: Some(manifest.clone()),
        ..CopySource::of(root.clone())
    };
    CopyJob {
        sources: roots.iter().map(source).collect(),
        dest: dest.to_path_buf(),
        staging: staging.into(),
        replace: false,
        verify: Verify::None,
        sync: false,
        rate: 0,
        latency: 0,
        arrivals: None,
        seal: None,
    }
}
