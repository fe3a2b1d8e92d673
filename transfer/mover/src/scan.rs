//! Walking a tree: folders are listed, their files given out in batches.

use crate::error::Result;
use crate::job::{Listed, Pointer};
use crate::large_file::Large;
use crate::links;
use crate::meta::{FileStatus, LINK_MODE, times, xattrs};
use crate::queue::OperationWork;
use crate::task::{LinkedFolder, OpenFolder, ScanFolder, ScanTask};
use crate::tree::{TreeOrigin, child, special};
use crate::worker::Worker;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, RawDir, readlinkat, symlinkat, utimensat};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::sync::Arc;
use tarn_sys::beneath::split;
use tarn_types::manifest::{Entry, EntryKind};

/// Files between two looks at whether another thread is idle, and two writes of progress records.
const BATCH: usize = 64;
/// Bytes for one listing call: some 1,000 names.
const LISTING: usize = 32 << 10;

impl Worker<'_> {
    pub(crate) fn perform(&mut self, work: OperationWork<ScanTask, Large>) -> Result<()> {
        let (tree, done) = match work {
            OperationWork::Task(ScanTask::Folder(tree, path, linked)) => {
                (tree, self.folder(tree, path, linked))
            }
            OperationWork::Task(ScanTask::Files(folder, names)) => {
                (folder.tree, self.files(&folder, names))
            }
            OperationWork::Task(ScanTask::Single(tree)) => (tree, self.single(tree)),
            OperationWork::Task(ScanTask::Peer(tree)) => (tree, self.peer(tree)),
            OperationWork::Task(ScanTask::Fetch(tree, files)) => (tree, self.fetch(tree, files)),
            OperationWork::Share(large) => (large.tree(), self.join(&large)),
            OperationWork::Idle => {
                // A thread that waits for work must not keep one that waits for a stream from it.
                self.stream = None;
                return Ok(());
            }
        };
        done.map_err(|e| e.of_source(tree as usize))?;
        self.flush()
    }

    /// Does files of a folder. They stay on one thread, as two that make files in one folder wait for each other, until
    /// another thread is idle, or a large file comes first.
    fn files(&mut self, folder: &OpenFolder, mut names: Vec<Box<[u8]>>) -> Result<()> {
        let mut done = 0usize;
        while let Some(name) = names.pop() {
            self.job.queue.check(self.job.control)?;
            let path = child(&self.job.trees[folder.tree as usize], &folder.path, &name)?;
            self.file(folder, &name, path, &mut names)?;
            done += 1;
            if done.is_multiple_of(BATCH) {
                self.flush()?;
            }
            if names.len() > 1 && self.job.queue.hungry() {
                let half = names.split_off(names.len() / 2);
                self.job
                    .queue
                    .push(ScanTask::Files(Arc::clone(folder), half));
            }
        }
        Ok(())
    }

    fn folder(
        &mut self,
        at: u32,
        path: Box<[u8]>,
        mut linked: Option<Box<LinkedFolder>>,
    ) -> Result<()> {
        let tree = &self.job.trees[at as usize];
        let source = match (&linked, &tree.origin) {
            (Some(linked), _) => linked.open(),
            (None, TreeOrigin::Folder(root)) => root.folder(tree.relative(&path)),
            (None, _) => return Ok(()),
        };
        let source = source.map_err(|e| self.unreadable(at, "open the folder", &path, e))?;
        let status =
            FileStatus::of(&source).map_err(|e| self.unreadable(at, "examine", &path, e))?;
        if let Some(linked) = &mut linked {
            linked.again = self.is_again(&status);
        }
        if !path.is_empty() {
            let xattrs = xattrs(&source)
                .map_err(|e| self.unreadable(at, "read the attributes of", &path, e))?;
            let entry = Entry {
                path: path.clone(),
                kind: EntryKind::Directory,
                mode: status.mode,
                mtime: status.mtime,
                xattrs,
            };
            self.found(at, entry);
        }
        let real = linked.as_ref().map(|l| l.real.clone());
        let listed = Listed {
            tree: at,
            path: path.clone(),
            mtime: status.mtime,
            real,
        };
        self.output.folders.push(listed);
        let dest = match self.job.target() {
            None => None,
            Some(target) => {
                if *path == *tree.prefix && !path.is_empty() {
                    target.make_folder(target.root.as_fd(), &path, &path)?;
                }
                let fd = target.root.folder(&path);
                Some(fd.map_err(|e| target.failed("open the folder", &path, e))?)
            }
        };
        let folder = Arc::new(ScanFolder {
            tree: at,
            path,
            source,
            dest,
            linked,
        });
        self.listing(&folder)
    }

    fn listing(&mut self, folder: &OpenFolder) -> Result<()> {
        let tree = &self.job.trees[folder.tree as usize];
        let mut space = vec![MaybeUninit::uninit(); LISTING];
        let mut names = RawDir::new(folder.source.as_fd(), &mut space);
        let mut files: Vec<Box<[u8]>> = Vec::new();
        while let Some(next) = names.next() {
            let next = next.map_err(|e| self.unreadable(folder.tree, "list", &folder.path, e))?;
            let name = next.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let path = child(tree, &folder.path, name)?;
            if !tree.wants(&path) {
                continue;
            }
            if folder.linked.as_ref().is_some_and(|l| l.again) {
                self.repeats(folder, path.len())?;
            }
            match self.kind(folder, name, &path, next.file_type())? {
                FileType::RegularFile => files.push(name.into()),
                FileType::Directory => self.subfolder(folder, name, path)?,
                FileType::Symlink => self.symlink(folder, name, path)?,
                other => return Err(special(&tree.show(&path), other)),
            }
        }
        drop(space);
        // Taken from the end: in the order of their names.
        files.sort_unstable_by(|a, b| b.cmp(a));
        self.files(folder, files)
    }

    fn kind(
        &self,
        folder: &ScanFolder,
        name: &[u8],
        path: &[u8],
        listed: FileType,
    ) -> Result<FileType> {
        if listed != FileType::Unknown {
            return Ok(listed);
        }
        self.status(folder, name, path).map(|s| s.kind)
    }

    fn subfolder(&mut self, folder: &ScanFolder, name: &[u8], path: Box<[u8]>) -> Result<()> {
        if let (Some(target), Some(dest)) = (self.job.target(), &folder.dest) {
            target.make_folder(dest.as_fd(), name, &path)?;
        }
        let linked = folder.linked.as_ref().map(|l| Box::new(l.child(name)));
        self.job
            .queue
            .push(ScanTask::Folder(folder.tree, path, linked));
        Ok(())
    }

    pub(crate) fn symlink(
        &mut self,
        folder: &OpenFolder,
        name: &[u8],
        path: Box<[u8]>,
    ) -> Result<()> {
        let status = self.status(folder, name, &path)?;
        let target = readlinkat(&folder.source, name, Vec::new())
            .map_err(|e| self.unreadable(folder.tree, "read the link", &path, e))?
            .into_bytes();
        if self.follow(folder, name, &path, &target)? {
            return Ok(());
        }
        let entry = Entry {
            path,
            kind: EntryKind::Symlink(target.into()),
            mode: LINK_MODE,
            mtime: status.mtime,
            xattrs: Box::default(),
        };
        self.link(folder.tree, folder.dest.as_ref(), entry)
    }

    /// Checks a symbolic link and makes it in its folder of the destination.
    pub(crate) fn link(&mut self, tree: u32, dest: Option<&OwnedFd>, entry: Entry) -> Result<()> {
        let EntryKind::Symlink(target) = &entry.kind else {
            return Ok(());
        };
        let path = &entry.path;
        if links::check(path, target)? {
            self.output.undecided.push(Pointer {
                tree,
                path: path.clone(),
                to: target.clone(),
            });
        }
        if let (Some(to), Some(dest)) = (self.job.target(), dest) {
            let (_, name) = split(path);
            match symlinkat(&**target, dest, name) {
                Ok(()) => utimensat(dest, name, &times(entry.mtime), AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(|e| to.failed("set the time of", path, e))?,
                // Another tree has something of that name: compared at the end.
                Err(Errno::EXIST) => self.output.taken.push((tree, path.clone())),
                Err(errno) => return Err(to.failed("create the link", path, errno)),
            }
        }
        self.found(tree, entry);
        Ok(())
    }

    fn single(&mut self, at: u32) -> Result<()> {
        let tree = &self.job.trees[at as usize];
        let TreeOrigin::Single { holder, name } = &tree.origin else {
            return Ok(());
        };
        if !tree.wants(&tree.prefix) {
            return Ok(());
        }
        let source = holder
            .folder(b"")
            .map_err(|e| self.unreadable(at, "open the folder of", &tree.prefix, e))?;
        let dest = match self.job.target() {
            None => None,
            Some(target) => Some(
                target
                    .root
                    .folder(b"")
                    .map_err(|e| target.failed("open", b"", e))?,
            ),
        };
        let folder = Arc::new(ScanFolder {
            tree: at,
            path: Box::default(),
            source,
            dest,
            linked: None,
        });
        let status = self.status(&folder, name, &tree.prefix)?;
        match status.kind {
            FileType::RegularFile => self.file(&folder, name, tree.prefix.clone(), &mut Vec::new()),
            FileType::Symlink => self.symlink(&folder, name, tree.prefix.clone()),
            _ => Err(crate::error::changed(
                &tree.show(&tree.prefix),
                "was replaced by something else",
            )),
        }
    }
}
