//! Walking a tree: folders are listed, their files given out in batches.

use crate::error::{ErrorSide, Result, failed};
use crate::job::{Goal, Listed, OpenFolder, Pointer, TreeOperation, WorkerOutput};
use crate::large::Large;
use crate::links::{self, LinkedFolder};
use crate::meta::{FileStatus, LINK_MODE, times, xattrs};
use crate::queue::{OperationWork, lock};
use crate::sealed::BUFFER;
use crate::tree::{TreeOrigin, child, special};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, RawDir, readlinkat, statat, symlinkat, utimensat};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tarn_ports::{MoverError, PeerStream};
use tarn_sys::beneath::split;
use tarn_types::bounds::MAX_ENTRIES;
use tarn_types::event::FailureKind;
use tarn_types::manifest::{Entry, EntryKind};

/// Files between two looks at whether another thread is idle, and two writes of progress records.
const BATCH: usize = 64;
/// Bytes for one listing call: some 1,000 names.
const LISTING: usize = 32 << 10;

/// Something for a thread to do.
pub(crate) enum ScanTask {
    /// List a folder of a tree (its path in the result), which is there by a link or not.
    Folder(u32, Box<[u8]>, Option<Box<LinkedFolder>>),
    /// Do these files of a folder.
    Files(OpenFolder, Vec<Box<[u8]>>),
    /// Do a tree that is one file or link.
    Single(u32),
    /// Make the folders and links of a peer's tree, and give out its files.
    Peer(u32),
    /// Fetch these files of a peer's tree: indexes in its manifest, the last first.
    Fetch(u32, Vec<u32>),
}

/// An open folder.
pub(crate) struct ScanFolder {
    pub(crate) tree: u32,
    /// Its path in the result.
    pub(crate) path: Box<[u8]>,
    pub(crate) source: OwnedFd,
    /// The same folder in the destination.
    pub(crate) dest: Option<OwnedFd>,
    /// It is there by a link.
    pub(crate) linked: Option<Box<LinkedFolder>>,
}

/// A thread of a job.
pub(crate) struct Worker<'a> {
    pub(crate) job: &'a TreeOperation<'a>,
    pub(crate) buffer: Vec<u8>,
    /// Progress records not written yet.
    pub(crate) records: Vec<u8>,
    /// Counts not passed on yet: threads that share a counter for every small file slow each other down.
    pub(crate) tally: ScanTally,
    pub(crate) output: WorkerOutput,
    /// To the peer of one tree: one at a time, so that no thread holds a stream while it waits for another.
    pub(crate) stream: Option<(u32, Box<dyn PeerStream + 'a>)>,
    /// Another opening of the large file that another thread has begun and this one takes part in.
    pub(crate) own: Option<OwnedFd>,
    /// The folder of the destination that a file came into last.
    pub(crate) last_folder: Option<(Box<[u8]>, Arc<OwnedFd>)>,
}

/// What a thread has done since it last said so.
#[derive(Debug, Default)]
pub(crate) struct ScanTally {
    /// Bytes that are done.
    pub(crate) done: u64,
    /// Entries found.
    pub(crate) entries: u64,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(job: &'a TreeOperation<'a>) -> Self {
        Self {
            job,
            buffer: vec![0; BUFFER],
            records: Vec::new(),
            tally: ScanTally::default(),
            output: WorkerOutput::default(),
            stream: None,
            own: None,
            last_folder: None,
        }
    }

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

    /// Writes the progress records and passes the counts on.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let tally = std::mem::take(&mut self.tally);
        self.job.advance(tally.done);
        let entries = self.job.entries.fetch_add(tally.entries, Ordering::Relaxed) + tally.entries;
        if entries > MAX_ENTRIES as u64 {
            return Err(MoverError::new(
                FailureKind::Io,
                format!(
                    "there are more than {MAX_ENTRIES} files and folders; pack small files together"
                ),
            ));
        }
        if let Some(target) = self.job.target()
            && !self.records.is_empty()
        {
            target.progress.append(&self.records)?;
        }
        self.records.clear();
        Ok(())
    }

    pub(crate) fn found(&mut self, tree: u32, entry: Entry) {
        self.tally.entries += 1;
        self.output.found.push((tree, entry));
    }

    /// An error of reading a path of a tree.
    pub(crate) fn unreadable(
        &self,
        tree: u32,
        doing: &str,
        path: &[u8],
        errno: Errno,
    ) -> MoverError {
        failed(
            ErrorSide::Source,
            doing,
            &self.job.trees[tree as usize].show(path),
            errno,
        )
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

    pub(crate) fn status(
        &self,
        folder: &ScanFolder,
        name: &[u8],
        path: &[u8],
    ) -> Result<FileStatus> {
        let status = statat(&folder.source, name, AtFlags::SYMLINK_NOFOLLOW).map(FileStatus::from);
        status.map_err(|e| self.unreadable(folder.tree, "examine", path, e))
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

    /// Remembers the first name of a file with several links. `false`: it has been seen, under `first`.
    pub(crate) fn claim(&mut self, tree: u32, status: &FileStatus, path: &[u8]) -> bool {
        if status.links < 2 {
            return true;
        }
        let mut firsts = lock(&self.job.firsts);
        match firsts.get(&(tree, status.device, status.inode)) {
            Some(first) => {
                self.output.linked.push(Pointer {
                    tree,
                    path: path.into(),
                    to: first.clone(),
                });
                false
            }
            None => {
                firsts.insert((tree, status.device, status.inode), path.into());
                true
            }
        }
    }

    /// Whether files are only listed.
    pub(crate) fn lists(&self) -> bool {
        matches!(self.job.goal, Goal::List)
    }
}
