//! Symbolic links: copied as links, but never one that leads out of its tree. In a source such a link stands for its target: a
//! farm of links to where the data is, a dataset of git-annex or DVC.

use crate::error::{ErrorSide, Result, failed, show, show_path};
use crate::meta::FileStatus;
use crate::queue::lock;
use crate::task::{LinkedFolder, OpenFolder, ScanFolder, ScanTask};
use crate::tree::{TreeOrigin, special};
use crate::worker::Worker;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, statat};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tarn_ports::{Follow, MoverError};
use tarn_sys::beneath::{Root, split};
use tarn_sys::links::{Unresolved, resolve};
use tarn_types::event::RunErrorKind;
use tarn_types::manifest::{EntryKind, Manifest};

/// Bytes of the names in folders that links lead to again and again: folders with two links each to the next one hold more than
/// any memory.
const MAX_REPEATED: u64 = 64 << 20;

impl Worker<'_> {
    /// Does what a link of a source points to, if it leads out of the source. `false`: it does not, or this is no source.
    pub(crate) fn follow(
        &mut self,
        folder: &OpenFolder,
        name: &[u8],
        path: &[u8],
        target: &[u8],
    ) -> Result<bool> {
        let tree = &self.job.trees[folder.tree as usize];
        if matches!(tree.follow, Follow::None | Follow::Within) {
            return Ok(false);
        }
        // In a folder that is there by a link itself, only what stays in that one stays.
        let within = match &folder.linked {
            Some(linked) => path
                .strip_prefix(&*linked.at)
                .and_then(|rest| rest.strip_prefix(b"/"))
                .unwrap_or(path),
            None => path,
        };
        // The source itself is a link.
        let single = matches!(tree.origin, TreeOrigin::Single { .. }) && folder.linked.is_none();
        let stays = match tree.expected.and_then(|m| m.find(path)) {
            // It was listed, perhaps as a part of a larger tree.
            Some(entry) => matches!(entry.kind, EntryKind::Symlink(_)),
            None => !single && check(within, target).is_ok(),
        };
        if stays {
            return Ok(false);
        }
        let here = match (&folder.linked, single) {
            (Some(linked), _) => linked.real.join(OsStr::from_bytes(name)),
            (None, true) => tree.path.clone(),
            (None, false) => tree.path.join(OsStr::from_bytes(tree.relative(path))),
        };
        let shown = tree.show(path);
        let real = resolved(tree.follow, &here, &shown, target)?;
        let status = statat(CWD, &real, AtFlags::SYMLINK_NOFOLLOW).map(FileStatus::from);
        let status = status.map_err(|e| failed(ErrorSide::Source, "examine", &shown, e))?;
        match status.kind {
            FileType::RegularFile => self.follow_file(folder, path, &real)?,
            FileType::Directory => {
                let above = here.parent().map(std::fs::canonicalize);
                let mut way = folder.linked.as_ref().map_or(Vec::new(), |l| l.way.clone());
                way.extend(above.and_then(std::result::Result::ok));
                let at = path.into();
                let again = false;
                let linked = LinkedFolder {
                    real,
                    at,
                    way,
                    again,
                };
                if folder.linked.as_ref().is_some_and(|l| l.again) {
                    self.repeats(folder, linked.kept())?;
                }
                self.follow_folder(folder, target, linked)?;
            }
            other => return Err(special(&shown, other)),
        }
        Ok(true)
    }

    fn follow_file(&mut self, folder: &OpenFolder, path: &[u8], real: &Path) -> Result<()> {
        let tree = &self.job.trees[folder.tree as usize];
        let failed = |e: rustix::io::Errno| failed(ErrorSide::Source, "open", &tree.show(path), e);
        let (Some(above), Some(name)) = (real.parent(), real.file_name()) else {
            return Err(failed(rustix::io::Errno::NOENT));
        };
        let source = Root::real(above).and_then(|root| root.folder(b""));
        let source = source.map_err(failed)?;
        let dest = folder.dest.as_ref().map(OwnedFd::try_clone).transpose();
        let dest = dest.map_err(|e| {
            let errno = rustix::io::Errno::from_io_error(&e);
            failed(errno.unwrap_or(rustix::io::Errno::IO))
        })?;
        let there = Arc::new(ScanFolder {
            tree: folder.tree,
            path: folder.path.clone(),
            source,
            dest,
            linked: None,
        });
        self.file(&there, name.as_bytes(), path.into(), &mut Vec::new())
    }

    /// Remembers a folder that a link leads to. `true`: it has been listed by another one.
    pub(crate) fn is_again(&self, status: &FileStatus) -> bool {
        !lock(&self.job.linked).insert((status.device, status.inode))
    }

    /// Counts names of folders that are listed again, to keep within the bound.
    pub(crate) fn repeats(&self, folder: &ScanFolder, bytes: usize) -> Result<()> {
        let bytes = bytes as u64;
        let all = self.job.repeated.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if all <= MAX_REPEATED {
            return Ok(());
        }
        let text = format!(
            "links in `{}` lead to the same folders again and again: the names in them would take more than {} MiB; remove links, or name the folders as sources",
            show_path(&self.job.trees[folder.tree as usize].path),
            MAX_REPEATED >> 20
        );
        Err(MoverError::new(RunErrorKind::Io, text))
    }

    fn follow_folder(
        &mut self,
        folder: &ScanFolder,
        target: &[u8],
        linked: LinkedFolder,
    ) -> Result<()> {
        let path = linked.at.clone();
        if linked.way.iter().any(|w| w.starts_with(&linked.real)) {
            let text = format!(
                "the symbolic link `{}` -> `{}` leads to a folder that contains it, so the tree never ends; remove it",
                self.job.trees[folder.tree as usize].show(&path),
                show(target)
            );
            return Err(MoverError::new(RunErrorKind::Escape, text));
        }
        if let (Some(to), Some(dest)) = (self.job.target(), &folder.dest) {
            let (_, name) = split(&path);
            to.make_folder(dest.as_fd(), name, &path)?;
        }
        let task = ScanTask::Folder(folder.tree, path, Some(Box::new(linked)));
        self.job.queue.push(task);
        Ok(())
    }
}

/// The target of the link at `here`, as far as it may be followed.
fn resolved(follow: Follow, here: &Path, shown: &str, target: &[u8]) -> Result<PathBuf> {
    let real = match follow {
        Follow::Of(user) => resolve(here, user),
        _ => std::fs::canonicalize(here).map_err(Unresolved::Io),
    };
    real.map_err(|why| match why {
        Unresolved::Foreign { .. } => {
            let text = format!("`{shown}` is not read: {why}");
            MoverError::new(RunErrorKind::Escape, text)
        }
        Unresolved::Io(e) => {
            let text = format!(
                "the symbolic link `{shown}` -> `{}` leads nowhere: {e}; put there what it points to, or remove it",
                show(target)
            );
            MoverError::new(RunErrorKind::Io, text)
        }
    })
}

fn refused(path: &[u8], target: &[u8], why: &str) -> MoverError {
    MoverError::new(
        RunErrorKind::Escape,
        format!(
            "the symbolic link `{}` -> `{}` {why}; replace it by a relative link inside the dataset, or by the file itself",
            show(path),
            show(target)
        ),
    )
}

/// Checks a link's target as far as its text allows. `true` when the answer depends on the types of the
/// folders in it (a `..` after a name): then [`check_in`] decides once the tree is known.
pub(crate) fn check(path: &[u8], target: &[u8]) -> Result<bool> {
    if target.is_empty() || target[0] == b'/' {
        return Err(refused(path, target, "has an absolute target"));
    }
    let mut depth = path.iter().filter(|&&b| b == b'/').count();
    let mut named = false;
    let mut undecided = false;
    for component in target.split(|&b| b == b'/') {
        match component {
            b"" | b"." => {}
            b".." => {
                undecided |= named;
                depth = depth
                    .checked_sub(1)
                    .ok_or_else(|| refused(path, target, "leads out of the dataset's root"))?;
            }
            _ => {
                named = true;
                depth += 1;
            }
        }
    }
    Ok(undecided)
}

/// Checks that every name before a `..` in a link's target is a real folder of the tree, so that `..` means what
/// the text suggests.
pub(crate) fn check_in(tree: &Manifest, path: &[u8], target: &[u8]) -> Result<()> {
    let (above, _) = split(path);
    let mut at: Vec<&[u8]> = above
        .split(|&b| b == b'/')
        .filter(|c| !c.is_empty())
        .collect();
    for component in target.split(|&b| b == b'/') {
        match component {
            b"" | b"." => {}
            b".." => {
                let here = at.join(&b'/');
                let real = at.is_empty() || tree.find(&here).is_some_and(|e| e.is_folder());
                if !real || at.pop().is_none() {
                    return Err(refused(
                        path,
                        target,
                        "goes up from something that is not a folder of the dataset",
                    ));
                }
            }
            name => at.push(name),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_types::manifest::Entry;

    #[test]
    fn targets() {
        for (path, target) in [
            ("l", "a"),
            ("d/l", "../a"),
            ("d/e/l", "../../a/b"),
            ("l", "."),
            ("d/l", "./.."),
        ] {
            assert!(
                !check(path.as_bytes(), target.as_bytes()).unwrap(),
                "{path} {target}"
            );
        }
        for (path, target) in [
            ("l", ".."),
            ("l", "/etc"),
            ("d/l", "../../x"),
            ("l", "a/../.."),
            ("l", ""),
        ] {
            let err = check(path.as_bytes(), target.as_bytes()).unwrap_err();
            assert_eq!(err.failure.kind, RunErrorKind::Escape);
        }
        assert!(check(b"d/l", b"../a/../b").unwrap());
    }

    #[test]
    fn up_from_a_link_is_refused() {
        let entry = |path: &str, kind| Entry {
            path: path.as_bytes().into(),
            kind,
            mode: 0o755,
            mtime: 0,
            xattrs: Box::default(),
        };
        let tree = Manifest {
            entries: vec![
                entry("a", EntryKind::Directory),
                entry("a/b", EntryKind::Directory),
                // `a/top` is the root; `a/top/..` would be outside though its text stays inside.
                entry("a/top", EntryKind::Symlink((*b"..").into())),
            ],
        };
        assert!(check_in(&tree, b"x", b"a/b/../b").is_ok());
        assert!(check_in(&tree, b"x", b"a/top/../b").is_err());
        assert!(check_in(&tree, b"x", b"gone/../b").is_err());
    }
}
