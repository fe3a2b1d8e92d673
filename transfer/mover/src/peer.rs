//! Trees of other nodes. Their manifests list their content, so nothing is listed; contents come over streams, one a
//! thread, and are requested well before they are read.

use crate::content::{CHUNK, PIECE};
use crate::error::Result;
use crate::extents;
use crate::file::MAX_FILE;
use crate::job::Pointer;
use crate::large_file::{Large, SHARED};
use crate::meta::FileStatus;
use crate::sealed_file::header;
use crate::source_file::{Content, OpenSourceFile, Sink};
use crate::target::CopyTarget;
use crate::task::ScanTask;
use crate::tree::{TreeOrigin, special};
use crate::worker::Worker;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::FileType;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use tarn_ports::{MoverError, Piece};
use tarn_seal::file::stretch;
use tarn_sys::beneath::split;
use tarn_types::account;
use tarn_types::event::RunErrorKind;
use tarn_types::manifest::{Entry, EntryKind};

/// Files of one request of small files.
const BATCH_FILES: usize = 64;
/// Bytes of one request, unless one file has more.
const BATCH_BYTES: u64 = 1 << 20;
/// Bytes on their way to a thread: two batches or a file, so that the peer always has something to send.
const AHEAD_BYTES: u64 = 2 * BATCH_BYTES;
/// Files on their way to a thread.
const AHEAD_FILES: usize = 2 * BATCH_FILES;

impl<'a> Worker<'a> {
    /// Makes the folders and links of a peer's tree, and gives out its files: the small ones together, each large
    /// one alone.
    pub(crate) fn peer(&mut self, at: u32) -> Result<()> {
        let tree = &self.job.trees[at as usize];
        let (Some(manifest), Some(target)) = (tree.expected, self.job.target()) else {
            return Ok(());
        };
        let mut firsts: HashMap<u32, &[u8]> = HashMap::new();
        let (mut small, mut large) = (Vec::new(), Vec::new());
        for (index, entry) in manifest.entries.iter().enumerate() {
            if !tree.wants(&entry.path) {
                continue;
            }
            match &entry.kind {
                EntryKind::Directory => {
                    let (above, name) = self.holder(target, &entry.path)?;
                    target.make_folder(above.as_fd(), name, &entry.path)?;
                    self.found(at, entry.clone());
                }
                EntryKind::Symlink(_) => {
                    let (above, _) = self.holder(target, &entry.path)?;
                    self.link(at, Some(&above), entry.clone())?;
                }
                EntryKind::File {
                    size, link_group, ..
                } => {
                    let first = (*link_group > 0)
                        .then(|| *firsts.entry(*link_group).or_insert(&entry.path))
                        .filter(|first| **first != *entry.path);
                    match first {
                        Some(first) => self.output.linked.push(Pointer {
                            tree: at,
                            path: entry.path.clone(),
                            to: first.into(),
                        }),
                        None if is_large(*size) => large.push(index as u32),
                        None => small.push(index as u32),
                    }
                }
            }
        }
        // Taken from the end: the large ones first, and everything in the order of the names.
        small.reverse();
        if !small.is_empty() {
            self.job.queue.push(ScanTask::Fetch(at, small));
        }
        for file in large.into_iter().rev() {
            self.job.queue.push(ScanTask::Fetch(at, vec![file]));
        }
        Ok(())
    }

    /// Fetches files of a peer's tree. Files requested ahead stay with this thread; the others are given to idle
    /// threads.
    pub(crate) fn fetch(&mut self, tree: u32, mut files: Vec<u32>) -> Result<()> {
        let mut coming: VecDeque<OpenSourceFile> = VecDeque::new();
        let mut bytes = 0;
        let mut done = 0usize;
        loop {
            self.job.queue.check(self.job.control)?;
            if bytes < AHEAD_BYTES / 2 || coming.len() < BATCH_FILES {
                bytes += self.order(tree, &mut files, &mut coming, bytes)?;
            }
            let Some(source) = coming.pop_front() else {
                return Ok(());
            };
            account::sub(&mut bytes, source.status.size, "bytes on their way");
            self.receive(source)?;
            done += 1;
            if done.is_multiple_of(BATCH_FILES) {
                self.flush()?;
            }
            if files.len() > 1 && self.job.queue.hungry() {
                let half = files.split_off(files.len() / 2);
                self.job.queue.push(ScanTask::Fetch(tree, half));
            }
        }
    }

    /// Asks for the next files, as many as may be on their way; large ones are begun at once. Returns their bytes.
    fn order(
        &mut self,
        tree: u32,
        files: &mut Vec<u32>,
        coming: &mut VecDeque<OpenSourceFile>,
        on_their_way: u64,
    ) -> Result<u64> {
        let Some(manifest) = self.job.trees[tree as usize].expected else {
            return Ok(0);
        };
        let ahead = match &self.job.trees[tree as usize].origin {
            TreeOrigin::Peer(peer) if peer.streams().is_some() => 1,
            _ => AHEAD_FILES,
        };
        let mut pieces: Vec<Piece<'a>> = Vec::new();
        let mut ordered = 0;
        while coming.len() < ahead && (coming.is_empty() || on_their_way + ordered < AHEAD_BYTES) {
            let Some(index) = files.pop() else { break };
            let entry = &manifest.entries[index as usize];
            let EntryKind::File { size, extents, .. } = &entry.kind else {
                continue;
            };
            let source = self.remote(tree, entry)?;
            let extents = self.data_of(tree, extents);
            if let Some(target) = self.job.target()
                && target.copied(&source).is_some()
            {
                let (above, _) = self.holder(target, &entry.path)?;
                if let Some(hash) = self.all_there(target, Some(&above), &source)? {
                    self.was_there(source, hash, extents.into());
                    continue;
                }
            }
            if is_large(*size) {
                self.fetch_large(source, extents)?;
                continue;
            }
            // How the file is sealed here is not known yet: then all of it is requested.
            let goes_on = self.job.target().is_some_and(|t| t.seal.is_none());
            let path = &*entry.path;
            if self.job.trees[tree as usize].sealed.is_some() {
                pieces.push(header(path));
            }
            self.wanted(&source, extents, 0..SHARED, goes_on, |offset, len| {
                pieces.push(Piece { path, offset, len });
            });
            ordered += size;
            coming.push_back(source);
        }
        if !pieces.is_empty() {
            self.connect(tree)?.ask(&pieces)?;
        }
        Ok(ordered)
    }

    /// A file of a peer's tree, as its manifest has it.
    fn remote(&self, tree: u32, entry: &Entry) -> Result<OpenSourceFile> {
        let EntryKind::File {
            size,
            hash,
            extents,
            ..
        } = &entry.kind
        else {
            let path = self.job.trees[tree as usize].show(&entry.path);
            return Err(special(&path, FileType::Unknown));
        };
        if *size > MAX_FILE {
            let path = self.job.trees[tree as usize].show(&entry.path);
            return Err(MoverError::new(
                RunErrorKind::Io,
                format!("`{path}` is larger than {MAX_FILE} bytes; divide it"),
            ));
        }
        let content = hash.map_or(0, |h| h.0);
        let status = FileStatus {
            kind: FileType::RegularFile,
            device: 0,
            // The mark that tells this file from another of the same name: its content.
            inode: content as u64,
            ctime: (content >> 64) as i64,
            links: 1,
            mode: entry.mode,
            size: *size,
            blocks: match self.data_of(tree, extents).is_empty() {
                true => size.div_ceil(512),
                false => 0,
            },
            mtime: entry.mtime,
        };
        Ok(OpenSourceFile {
            tree,
            path: entry.path.clone(),
            from: Content::Peer(*hash, None),
            status,
            xattrs: entry.xattrs.clone(),
            known: None,
        })
    }

    /// The stretches of a file that have data, if it has holes: a sealed file has none, at its source or its destination.
    fn data_of<'e>(&self, tree: u32, extents: &'e [(u64, u64)]) -> &'e [(u64, u64)] {
        let sealed = self.job.target().is_some_and(|t| t.seal.is_some());
        match sealed || self.job.trees[tree as usize].sealed.is_some() {
            true => &[],
            false => extents,
        }
    }

    /// The stretches that must be fetched of some chunks of a file: data that no earlier attempt has brought, if what that has left
    /// counts.
    fn wanted(
        &self,
        source: &OpenSourceFile,
        extents: &[(u64, u64)],
        chunks: Range<u64>,
        goes_on: bool,
        mut want: impl FnMut(u64, u64),
    ) {
        let size = source.status.size;
        let is_sealed = self.job.trees[source.tree as usize].sealed.is_some();
        let mut want = |offset, len| match is_sealed {
            true => {
                let (offset, len) = stretch(offset, len);
                want(offset, len);
            }
            false => want(offset, len),
        };
        if is_sealed && size == 0 {
            // It has a proof all the same.
            return want(0, 0);
        }
        let target = self.job.target().filter(|_| goes_on);
        let copied = target.and_then(|t| t.copied(source));
        let mut open: Option<(u64, u64)> = None;
        for at in chunks {
            let start = at * CHUNK as u64;
            if start >= size {
                break;
            }
            if copied.is_some_and(|c| c.chunks.contains_key(&at)) {
                continue;
            }
            let len = (size - start).min(CHUNK as u64);
            for (is_data, offset, len) in extents::pieces(extents, start, len) {
                match &mut open {
                    _ if !is_data => {}
                    Some((from, have)) if *from + *have == offset => *have += len,
                    other => {
                        if let Some((offset, len)) = other.replace((offset, len)) {
                            want(offset, len);
                        }
                    }
                }
            }
        }
        if let Some((offset, len)) = open {
            want(offset, len);
        }
    }

    /// Requests the missing bytes of some chunks of a file, chunk by chunk: while content is still arriving at the peer itself,
    /// it can send each chunk as soon as it has that.
    pub(crate) fn ask(
        &mut self,
        source: &OpenSourceFile,
        extents: &[(u64, u64)],
        chunks: Range<u64>,
        goes_on: bool,
    ) -> Result<()> {
        let mut pieces = Vec::new();
        for at in chunks {
            self.wanted(source, extents, at..at + 1, goes_on, |offset, len| {
                pieces.push(Piece {
                    path: &source.path,
                    offset,
                    len,
                });
            });
        }
        if pieces.is_empty() {
            return Ok(());
        }
        self.connect(source.tree)?.ask(&pieces)
    }

    /// Stores the next file that was requested.
    fn receive(&mut self, mut source: OpenSourceFile) -> Result<()> {
        self.unlock(&mut source)?;
        let Some(target) = self.job.target() else {
            return Ok(());
        };
        if let Some(limiter) = &target.limiter {
            limiter.file(self.job.control)?;
        }
        let (above, _) = self.holder(target, &source.path)?;
        let size = source.status.size;
        if size <= PIECE as u64
            && !source.status.may_have_holes()
            && target.copied(&source).is_none()
        {
            if size > 0 || source.cipher().is_some() {
                self.read(&source, 0, size as usize)?;
            }
            return self.small(Some(&above), source);
        }
        let extents = self.extents_of(&source);
        let sink = self.sink(Some(&above), &source)?;
        self.begin(&Arc::new(Large::new(source, sink, extents).on_its_way()))
    }

    /// Begins a file that several threads may fetch.
    fn fetch_large(&mut self, mut source: OpenSourceFile, extents: &[(u64, u64)]) -> Result<()> {
        let Some(target) = self.job.target() else {
            return Ok(());
        };
        if let Some(limiter) = &target.limiter {
            limiter.file(self.job.control)?;
        }
        let (above, _) = self.holder(target, &source.path)?;
        if self.job.trees[source.tree as usize].sealed.is_some() {
            // A large file is fetched alone: nothing else is on its way on this stream.
            self.connect(source.tree)?.ask(&[header(&source.path)])?;
            self.unlock(&mut source)?;
        }
        let sink = self.sink(Some(&above), &source)?;
        match (&sink, &source.from) {
            // Another source has it: that both are alike is compared by their hashes, without the bytes.
            (Sink::Nowhere, Content::Peer(Some(hash), _)) => {
                let (hash, size) = (*hash, source.status.size);
                self.tally.done += size;
                self.done(source, hash, extents.into());
                Ok(())
            }
            _ => self.begin(&Arc::new(Large::new(source, sink, extents.into()))),
        }
    }

    fn extents_of(&self, source: &OpenSourceFile) -> Box<[(u64, u64)]> {
        let manifest = self.job.trees[source.tree as usize].expected;
        match manifest.and_then(|m| m.find(&source.path)).map(|e| &e.kind) {
            Some(EntryKind::File { extents, .. }) => self.data_of(source.tree, extents).into(),
            _ => Box::default(),
        }
    }

    /// The folder of the destination that holds `path`, and its last component. Files come in the order of their names, so
    /// the last folder is often the next.
    fn holder<'p>(
        &mut self,
        target: &CopyTarget,
        path: &'p [u8],
    ) -> Result<(Arc<OwnedFd>, &'p [u8])> {
        let (above, name) = split(path);
        if let Some((_, fd)) = self
            .last_folder
            .as_ref()
            .filter(|(last, _)| **last == *above)
        {
            return Ok((Arc::clone(fd), name));
        }
        let fd = target.root.folder(above);
        let fd = Arc::new(fd.map_err(|e| target.failed("open the folder", above, e))?);
        self.last_folder = Some((above.into(), Arc::clone(&fd)));
        Ok((fd, name))
    }
}

/// Whether threads share a file.
fn is_large(size: u64) -> bool {
    size > SHARED * CHUNK as u64
}
