//! One regular file: opened, checked, and when it is small, read, hashed and written at once.

use crate::content::{self, PIECE};
use crate::error::{Result, changed, corrupt};
use crate::extents;
use crate::file_io::{read_full, write_full};
use crate::job::Goal;
use crate::large_file::Large;
use crate::meta::{FileStatus, xattrs};
use crate::progress::{SourceFileIdentity, record};
use crate::remove::remove_file;
use crate::sealed_file::{self, SealedReadError};
use crate::source_file::{Content, OpenSourceFile, Sink};
use crate::target::{CopyTarget, Created};
use crate::task::{OpenFolder, ScanFolder, ScanTask};
use crate::tree::special;
use crate::worker::Worker;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Advice, FileType, Mode, OFlags, fadvise, openat};
use rustix::io::{Errno, pread};
use std::sync::Arc;
use tarn_ports::MoverError;
use tarn_sys::beneath::split;
use tarn_types::event::RunErrorKind;
use tarn_types::hash::Hash;
use tarn_types::manifest::{Entry, EntryKind};
use tarn_types::text::not_empty;

/// Larger files are refused: the hashes of their chunks would take more than 256 MiB (ext4 ends there, too).
pub(crate) const MAX_FILE: u64 = 16 << 40;

impl Worker<'_> {
    /// Does one file. `others` come after it on this thread; when this one takes long, they are given away.
    pub(crate) fn file(
        &mut self,
        folder: &OpenFolder,
        name: &[u8],
        path: Box<[u8]>,
        others: &mut Vec<Box<[u8]>>,
    ) -> Result<()> {
        if self.lists() {
            return self.list_file(folder, name, path);
        }
        let Some(source) = self.open(folder, name, path)? else {
            return Ok(());
        };
        if let Some(target) = self.job.target()
            && let Some(hash) = self.all_there(target, folder.dest.as_ref(), &source)?
        {
            let extents = self.extents(&source)?;
            self.was_there(source, hash, extents);
            return Ok(());
        }
        if source.status.size <= PIECE as u64 && !source.status.may_have_holes() {
            let len = source.status.size as usize;
            self.read(&source, 0, len)?;
            self.small(folder.dest.as_ref(), source)
        } else {
            if !others.is_empty() && self.job.threads > 1 {
                let others = std::mem::take(others);
                self.job
                    .queue
                    .push(ScanTask::Files(Arc::clone(folder), others));
            }
            let extents = self.extents(&source)?;
            let sink = self.sink(folder.dest.as_ref(), &source)?;
            let large = Arc::new(Large::new(source, sink, extents));
            self.begin(&large)
        }
    }

    fn list_file(&mut self, folder: &ScanFolder, name: &[u8], path: Box<[u8]>) -> Result<()> {
        let status = self.status(folder, name, &path)?;
        if status.kind != FileType::RegularFile {
            return Err(changed(
                &self.job.trees[folder.tree as usize].show(&path),
                "was replaced by something else",
            ));
        }
        if !self.claim(folder.tree, &status, &path) {
            return Ok(());
        }
        let extents = self.listed_extents(folder, name, &status, &path)?;
        let entry = Entry {
            kind: status.unread(extents),
            mode: status.mode,
            mtime: status.mtime,
            xattrs: crate::meta::xattrs_of(&folder.source, name)
                .map_err(|e| self.unreadable(folder.tree, "read the attributes of", &path, e))?,
            path,
        };
        self.found(folder.tree, entry);
        Ok(())
    }

    /// The stretches of a listed file that have data: only a file with holes is opened for that; if it cannot be opened, it
    /// counts as full.
    fn listed_extents(
        &self,
        folder: &ScanFolder,
        name: &[u8],
        status: &FileStatus,
        path: &[u8],
    ) -> Result<Box<[(u64, u64)]>> {
        if !status.may_have_holes() {
            return Ok(Box::default());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match openat(&folder.source, name, flags, Mode::empty()) {
            Ok(fd) => extents::of(&fd, status)
                .map_err(|e| self.unreadable(folder.tree, "find the holes of", path, e)),
            Err(_) => Ok(Box::default()),
        }
    }

    /// Opens a file; `None` when it is another name of one that was seen.
    fn open(
        &mut self,
        folder: &ScanFolder,
        name: &[u8],
        path: Box<[u8]>,
    ) -> Result<Option<OpenSourceFile>> {
        let tree = &self.job.trees[folder.tree as usize];
        if let Some(limiter) = self.job.target().and_then(|t| t.limiter.as_ref()) {
            limiter.file(self.job.control)?;
        }
        // Not blocking: a FIFO put there meanwhile must not stop us.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = openat(&folder.source, name, flags, Mode::empty())
            .map_err(|e| self.unreadable(folder.tree, "open", &path, e))?;
        let mut status =
            FileStatus::of(&fd).map_err(|e| self.unreadable(folder.tree, "examine", &path, e))?;
        if status.kind != FileType::RegularFile {
            return Err(special(&tree.show(&path), status.kind));
        }
        let mut cipher = None;
        if let Some(key) = &tree.sealed {
            let opened = sealed_file::open(key, &fd, status.size).map_err(|e| match e {
                SealedReadError::Io(errno) => self.unreadable(folder.tree, "read", &path, errno),
                SealedReadError::Seal(e) => sealed_file::refused(&tree.show(&path), e),
            })?;
            status = status.with_size(opened.length());
            cipher = Some(opened);
        }
        if status.size > MAX_FILE {
            return Err(MoverError::new(
                RunErrorKind::Io,
                format!(
                    "`{}` is larger than {MAX_FILE} bytes; divide it",
                    tree.show(&path)
                ),
            ));
        }
        if !self.claim(folder.tree, &status, &path) {
            return Ok(None);
        }
        if matches!(self.job.goal, Goal::Digest { read_back: true }) {
            let _ = fadvise(&fd, 0, None, Advice::DontNeed);
        }
        let xattrs = xattrs(&fd)
            .map_err(|e| self.unreadable(folder.tree, "read the attributes of", &path, e))?;
        let known = match tree.expected.and_then(|m| m.find(&path)) {
            Some(Entry {
                kind: EntryKind::File { size, hash, .. },
                mtime,
                ..
            }) if *size == status.size && *mtime == status.mtime => *hash,
            _ => None,
        };
        Ok(Some(OpenSourceFile {
            tree: folder.tree,
            path,
            from: match cipher {
                Some(cipher) => Content::Sealed(fd, Box::new(cipher)),
                None => Content::File(fd),
            },
            status,
            xattrs,
            known,
        }))
    }

    fn extents(&self, source: &OpenSourceFile) -> Result<Box<[(u64, u64)]>> {
        let Content::File(fd) = &source.from else {
            return Ok(Box::default());
        };
        extents::of(fd, &source.status)
            .map_err(|e| self.unreadable(source.tree, "find the holes of", &source.path, e))
    }

    /// The hash of a file that an earlier attempt has copied whole; its attributes are set again.
    pub(crate) fn all_there(
        &self,
        target: &CopyTarget,
        dest: Option<&OwnedFd>,
        source: &OpenSourceFile,
    ) -> Result<Option<Hash>> {
        let (Some(copied), Some(dest)) = (target.copied(source), dest) else {
            return Ok(None);
        };
        if copied.chunks.len() as u64 != content::chunks(source.status.size) {
            return Ok(None);
        }
        let (_, name) = split(&source.path);
        let fd = openat(
            dest,
            name,
            OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(|e| target.failed("open", &source.path, e))?;
        target.finish(&fd, &source.path, &source.status, &source.xattrs, true)?;
        let hashes: Vec<_> = copied.chunks.values().copied().collect();
        Ok(Some(content::file(&hashes)))
    }

    /// Opens the destination of a file.
    pub(crate) fn sink(&mut self, dest: Option<&OwnedFd>, source: &OpenSourceFile) -> Result<Sink> {
        let (Some(target), Some(dest)) = (self.job.target(), dest) else {
            return Ok(Sink::Nowhere);
        };
        let (_, name) = split(&source.path);
        let mode = source.status.mode;
        if let Some(fd) = self.half_done(target, source, dest, name)? {
            let sealing = self.sealing(target, source, &fd, true)?;
            return Ok(Sink::File(fd, true, sealing));
        }
        // A large file may have to be opened again by a later attempt: its owner must be able to write it.
        let at_once =
            source.status.size <= PIECE as u64 && target.mode_at_once(mode, &source.xattrs);
        let first = if at_once { mode } else { 0o600 };
        match target.create(dest.as_fd(), name, &source.path, first)? {
            Created::New(fd) => {
                let sealing = self.sealing(target, source, &fd, false)?;
                Ok(Sink::File(fd, !at_once, sealing))
            }
            Created::Taken => {
                self.output.taken.push((source.tree, source.path.clone()));
                Ok(Sink::Nowhere)
            }
        }
    }

    /// The part of this file that an earlier attempt left: opened if it is a part of the same, removed if not.
    fn half_done(
        &self,
        target: &CopyTarget,
        source: &OpenSourceFile,
        dest: &OwnedFd,
        name: &[u8],
    ) -> Result<Option<OwnedFd>> {
        if !target
            .earlier
            .contains_key(&(source.tree, source.path.clone()))
        {
            return Ok(None);
        }
        if target.copied(source).is_some() {
            let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = openat(dest, name, flags, Mode::empty());
            return fd
                .map(Some)
                .map_err(|e| target.failed("open", &source.path, e));
        }
        match remove_file(dest, name) {
            Ok(()) | Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(target.failed(
                "remove what an earlier attempt left of",
                &source.path,
                errno,
            )),
        }
    }

    /// Fills the buffer with `len` bytes of a file from `offset` on. One that grows is noticed by its status afterwards.
    pub(crate) fn read(&mut self, source: &OpenSourceFile, offset: u64, len: usize) -> Result<()> {
        if let Some(cipher) = source.cipher() {
            return self.read_sealed(source, cipher, offset);
        }
        let Content::File(fd) = &source.from else {
            return self.take(source, len);
        };
        let fd = self.own.as_ref().unwrap_or(fd);
        let got = read_full(fd, &mut self.buffer[..len], offset)
            .map_err(|e| self.unreadable(source.tree, "read", &source.path, e))?;
        if got == len && !(source.status.size == 0 && holds_more(fd)) {
            return Ok(());
        }
        let path = self.job.trees[source.tree as usize].show(&source.path);
        if source.status.size == 0 {
            return Err(MoverError::new(RunErrorKind::Io, not_empty(path)));
        }
        Err(changed(&path, "became shorter while it was read"))
    }

    /// Fills the buffer with the next `len` bytes that a peer sends.
    pub(crate) fn take(&mut self, source: &OpenSourceFile, len: usize) -> Result<()> {
        let Some((_, stream)) = &mut self.stream else {
            return Err(crate::error::cancelled());
        };
        stream.read(&mut self.buffer[..len]).map_err(|e| {
            let path = self.job.trees[source.tree as usize].show(&source.path);
            let message = format!("cannot fetch `{path}`: {}", e.failure.message);
            MoverError::new(e.failure.kind, message)
        })
    }

    /// Stores a file whose whole content is in the buffer.
    pub(crate) fn small(&mut self, dest: Option<&OwnedFd>, source: OpenSourceFile) -> Result<()> {
        let len = source.status.size as usize;
        let skip_hash = source.known.filter(|_| self.trusts_hashes());
        let chunk = (len > 0).then(|| content::chunk(&self.buffer[..len]));
        let hash = skip_hash.unwrap_or_else(|| content::file(chunk.as_slice()));
        self.check_unchanged(&source, hash)?;
        let sink = self.sink(dest, &source)?;
        if let (Some(target), Sink::File(fd, set_mode, sealing)) = (self.job.target(), &sink) {
            if let Some(limiter) = &target.limiter {
                limiter.bytes(len as u64, self.job.control)?;
            }
            match sealing {
                Some(sealing) => self.seal_piece(&source, &sink, sealing, 0, len)?,
                None => write_full(fd, &self.buffer[..len], 0)
                    .map_err(|e| target.failed("write", &source.path, e))?,
            }
            target.finish(fd, &source.path, &source.status, &source.xattrs, *set_mode)?;
            let identity = SourceFileIdentity::from(&source.status);
            record(
                &mut self.records,
                source.tree,
                &source.path,
                identity,
                0,
                chunk.as_slice(),
            );
            self.job.arrived(&source.path, 0, len as u64);
        }
        self.output.bytes += len as u64;
        self.tally.done += len as u64;
        self.done(source, hash, Box::default());
        Ok(())
    }

    /// Whether the source is still what it was when it was opened. A changed ctime alone may be a new hard link (views
    /// are made of them): then the content decides. Content from a peer must have the promised hash.
    pub(crate) fn check_unchanged(&mut self, source: &OpenSourceFile, hash: Hash) -> Result<()> {
        let fd = match &source.from {
            Content::File(fd) | Content::Sealed(fd, _) => fd,
            Content::Peer(promised, _) if promised.is_none_or(|promised| promised == hash) => {
                return Ok(());
            }
            Content::Peer(..) => {
                let path = self.job.trees[source.tree as usize].show(&source.path);
                return Err(corrupt(&path, "does not match its hash"));
            }
        };
        let mut after = FileStatus::of(fd)
            .map_err(|e| self.unreadable(source.tree, "examine", &source.path, e))?;
        if matches!(source.from, Content::Sealed(..)) {
            // No content has a length that no sealed file has.
            after.size = tarn_seal::file::content_len(after.size).unwrap_or(u64::MAX);
        }
        let before = &source.status;
        let show = || self.job.trees[source.tree as usize].show(&source.path);
        if after.links == 0 {
            return Err(changed(&show(), "vanished while it was read"));
        }
        if (after.size, after.mtime) != (before.size, before.mtime) {
            return Err(changed(&show(), "changed while it was read"));
        }
        if after.ctime != before.ctime && self.hash_again(source)? != hash {
            return Err(changed(&show(), "changed while it was read"));
        }
        Ok(())
    }

    fn hash_again(&mut self, source: &OpenSourceFile) -> Result<Hash> {
        let mut chunks = Vec::new();
        for at in 0..content::chunks(source.status.size) {
            self.job.queue.check(self.job.control)?;
            let mut hasher = content::ChunkHasher::new();
            let start = at * content::CHUNK as u64;
            let len = content::chunk_len(source.status.size, at);
            for offset in (0..len).step_by(PIECE) {
                let piece = PIECE.min(len - offset);
                self.read(source, start + offset as u64, piece)?;
                hasher.update(&self.buffer[..piece]);
            }
            chunks.push(hasher.finish());
        }
        Ok(content::file(&chunks))
    }

    /// Records a file that an earlier attempt has copied whole.
    pub(crate) fn was_there(
        &mut self,
        source: OpenSourceFile,
        hash: Hash,
        extents: Box<[(u64, u64)]>,
    ) {
        let size = source.status.size;
        self.tally.done += size;
        self.output.resumed += size;
        self.job.arrived(&source.path, 0, size);
        self.done(source, hash, extents);
    }

    /// Records a file that has been read.
    pub(crate) fn done(&mut self, source: OpenSourceFile, hash: Hash, extents: Box<[(u64, u64)]>) {
        let tree = source.tree;
        self.found(tree, source.entry(hash, extents));
    }
}

/// Whether a file of size 0 has a first byte all the same.
fn holds_more(fd: impl AsFd) -> bool {
    matches!(pread(fd, &mut [0u8; 1][..], 0), Ok(1))
}
