//! Large files ([`Large`]): copied chunk by chunk, by several threads when they have nothing else.

use crate::content::{self, CHUNK, ChunkHash, ChunkHasher, PIECE, ZEROS};
use crate::error::{Result, changed};
use crate::extents;
use crate::file_io::write_full;
use crate::large_file::{GRAIN, Large, is_shared};
use crate::progress::{SourceFileIdentity, record};
use crate::queue::lock;
use crate::source_file::{Content, Sink};
use crate::target::CopyTarget;
use crate::worker::Worker;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, copy_file_range, ftruncate, ioctl_ficlone, open};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tarn_seal::file::sealed_len;
use tarn_types::hash::Hash;
use tarn_types::manifest::{Entry, EntryKind};
use tarn_types::part::Verify;

/// Runs of chunks that a thread has requested from a peer, the one that it reads included.
const AHEAD: usize = 2;

impl Worker<'_> {
    /// Copies a file that this thread found, with the help of those that have nothing else to do.
    pub(crate) fn begin(&mut self, large: &Arc<Large>) -> Result<()> {
        if let (Some(target), Sink::File(fd, set_mode, sealing)) = (self.job.target(), &large.sink)
        {
            let path = &large.source.path;
            let size = large.source.status.size;
            let sealed = sealing.as_ref().and_then(|_| sealed_len(size));
            ftruncate(fd, sealed.unwrap_or(size)).map_err(|e| target.failed("size", path, e))?;
            if let Some(hash) = large.source.known.filter(|_| self.reflink(target, large)) {
                target.finish(
                    fd,
                    path,
                    &large.source.status,
                    &large.source.xattrs,
                    *set_mode,
                )?;
                self.tally.done += large.source.status.size;
                self.check_unchanged(&large.source, hash)?;
                self.job.arrived(path, 0, large.source.status.size);
                self.record_large(large, hash);
                return Ok(());
            }
        }
        let shared =
            self.job.threads > 1 && is_shared(large.source.status.size) && !large.is_requested;
        if shared {
            self.job.queue.share(large);
        }
        self.share(large)
    }

    /// Shares blocks with the source instead of copying, where the file system can. Only a file whose hash is
    /// known and which has not changed since: nothing is read. Not under a limit, which emulates a slow store.
    fn reflink(&self, target: &CopyTarget, large: &Large) -> bool {
        let no_reflink = &self.job.trees[large.source.tree as usize].no_reflink;
        let (Sink::File(fd, _, None), Content::File(from)) = (&large.sink, &large.source.from)
        else {
            return false;
        };
        if target.verify > Verify::Copy
            || target.limiter.is_some()
            || no_reflink.load(Ordering::Relaxed)
        {
            return false;
        }
        let cloned = ioctl_ficlone(fd, from).is_ok();
        if !cloned {
            no_reflink.store(true, Ordering::Relaxed);
        }
        cloned
    }

    /// Joins another thread in a file. It is opened once more: the kernel decides on read-ahead for each opening, by the order
    /// in which it is read.
    pub(crate) fn join(&mut self, large: &Arc<Large>) -> Result<()> {
        self.own = large.fd().and_then(|fd| reopen(fd).ok());
        let done = self.share(large);
        self.own = None;
        done
    }

    /// Copies chunks of a file until none is left to begin.
    pub(crate) fn share(&mut self, large: &Arc<Large>) -> Result<()> {
        let all = large.chunks();
        let from_peer = large.fd().is_none();
        if from_peer && large.next.load(Ordering::Relaxed) < all {
            self.connect(large.source.tree)?;
        }
        let mut claimed = VecDeque::with_capacity(AHEAD);
        loop {
            // The next run is requested from a peer before this one has come.
            while claimed.len() < if from_peer { AHEAD } else { 1 } {
                let first = large.next.fetch_add(GRAIN, Ordering::Relaxed);
                if first >= all {
                    break;
                }
                if from_peer && !large.is_requested {
                    let chunks = first..all.min(first + GRAIN);
                    self.ask(&large.source, &large.extents, chunks, large.goes_on())?;
                }
                claimed.push_back(first);
            }
            let Some(first) = claimed.pop_front() else {
                self.job.queue.exhausted(large);
                return Ok(());
            };
            let last = all.min(first + GRAIN);
            let hashes = (first..last)
                .map(|at| self.chunk(large, at))
                .collect::<Result<Vec<_>>>()?;
            lock(&large.hashes)[first as usize..last as usize].copy_from_slice(&hashes);
            if let (Some(target), Sink::File(fd, ..)) = (self.job.target(), &large.sink) {
                if !self.copies_unread(large) {
                    let identity = SourceFileIdentity::from(&large.source.status);
                    record(
                        &mut self.records,
                        large.source.tree,
                        &large.source.path,
                        identity,
                        first,
                        &hashes,
                    );
                }
                if target.sync {
                    let start = first * CHUNK as u64;
                    // Only a head start: the sync at the end counts.
                    let _ = tarn_sys::writeback::start(fd, start, (last - first) * CHUNK as u64);
                }
                self.flush()?;
            }
            let before = large.finished.fetch_add(last - first, Ordering::AcqRel);
            let finished = before + (last - first);
            debug_assert!(finished <= all, "{finished} chunks are finished, of {all}");
            if finished == all {
                return self.complete(large);
            }
        }
    }

    fn complete(&mut self, large: &Arc<Large>) -> Result<()> {
        self.job.queue.exhausted(large);
        let source = &large.source;
        let skip_hash = source.known.filter(|_| self.trusts_hashes());
        let hash = skip_hash.unwrap_or_else(|| content::file(&lock(&large.hashes)));
        self.check_unchanged(source, hash)?;
        if let (Some(target), Sink::File(fd, set_mode, _)) = (self.job.target(), &large.sink) {
            target.finish(fd, &source.path, &source.status, &source.xattrs, *set_mode)?;
        }
        self.record_large(large, hash);
        Ok(())
    }

    fn record_large(&mut self, large: &Large, hash: Hash) {
        let source = &large.source;
        let entry = Entry {
            path: source.path.clone(),
            kind: EntryKind::File {
                size: source.status.size,
                hash: Some(hash),
                link_group: 0,
                extents: large.extents.clone(),
            },
            mode: source.status.mode,
            mtime: source.status.mtime,
            xattrs: source.xattrs.clone(),
        };
        self.found(source.tree, entry);
    }

    /// Copies one chunk and returns its hash (0 where a known hash is trusted and nothing is hashed).
    fn chunk(&mut self, large: &Large, at: u64) -> Result<ChunkHash> {
        self.job.queue.check(self.job.control)?;
        let size = large.source.status.size;
        let (start, len) = (at * CHUNK as u64, content::chunk_len(size, at));
        if let Some(hash) = self.chunk_there(large, at) {
            self.output.resumed += len as u64;
            self.tally.done += len as u64;
            self.job.arrived(&large.source.path, start, len as u64);
            return Ok(hash);
        }
        if let Some(limiter) = self.job.target().and_then(|t| t.limiter.as_ref()) {
            let data = extents::pieces(&large.extents, start, len as u64);
            let bytes = data.iter().filter(|p| p.0).map(|p| p.2).sum();
            limiter.bytes(bytes, self.job.control)?;
        }
        let hash = match &large.sink {
            Sink::File(..) if self.copies_unread(large) => {
                self.chunk_by_kernel(large, start, len)?;
                0
            }
            Sink::File(_, _, Some(sealing)) => self.chunk_sealed(large, sealing, start, len)?,
            _ => self.chunk_by_pieces(large, start, len)?,
        };
        self.output.bytes += len as u64;
        self.job.arrived(&large.source.path, start, len as u64);
        // An observer sees every chunk, not only the end of a run of them.
        self.job.advance(len as u64);
        Ok(hash)
    }

    /// Whether the content is moved without being looked at: its hash is known and trusted.
    fn copies_unread(&self, large: &Large) -> bool {
        let plain = matches!(
            (&large.source.from, &large.sink),
            (Content::File(_), Sink::Nowhere | Sink::File(_, _, None))
        );
        plain && self.trusts_hashes() && large.source.known.is_some()
    }

    /// The hash of a chunk that an earlier attempt has copied.
    fn chunk_there(&self, large: &Large, at: u64) -> Option<ChunkHash> {
        let copied = self.job.target()?.copied(&large.source)?;
        let chunk = copied.chunks.get(&at).copied();
        chunk.filter(|_| large.goes_on())
    }

    fn chunk_by_pieces(&mut self, large: &Large, start: u64, len: usize) -> Result<ChunkHash> {
        let pieces = extents::pieces(&large.extents, start, len as u64);
        if let [(false, ..)] = pieces[..] {
            return Ok(content::zeros(len));
        }
        let mut hasher = ChunkHasher::new();
        for (is_data, mut offset, mut left) in pieces {
            while left > 0 {
                let n = left.min(PIECE as u64) as usize;
                if is_data {
                    self.read(&large.source, offset, n)?;
                    hasher.update(&self.buffer[..n]);
                    self.write_piece(large, offset, n)?;
                } else {
                    hasher.update(&ZEROS[..n]);
                }
                offset += n as u64;
                left -= n as u64;
            }
        }
        Ok(hasher.finish())
    }

    fn write_piece(&self, large: &Large, offset: u64, n: usize) -> Result<()> {
        let (Some(target), Sink::File(fd, ..)) = (self.job.target(), &large.sink) else {
            return Ok(());
        };
        write_full(fd, &self.buffer[..n], offset)
            .map_err(|e| target.failed("write", &large.source.path, e))
    }

    /// Copies a chunk without hashing it, inside the kernel where it can.
    fn chunk_by_kernel(&mut self, large: &Large, start: u64, len: usize) -> Result<()> {
        let (Some(target), Sink::File(fd, ..), Some(source)) =
            (self.job.target(), &large.sink, large.fd())
        else {
            return Ok(());
        };
        for (is_data, offset, left) in extents::pieces(&large.extents, start, len as u64) {
            let (mut from, mut to, end) = (offset, offset, offset + left);
            while is_data && from < end {
                let left = (end - from) as usize;
                match copy_file_range(source, Some(&mut from), fd, Some(&mut to), left) {
                    Ok(0) => {
                        let path =
                            self.job.trees[large.source.tree as usize].show(&large.source.path);
                        return Err(changed(&path, "became shorter while it was read"));
                    }
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(
                        Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM,
                    ) => {
                        let n = (end - from).min(PIECE as u64) as usize;
                        self.read(&large.source, from, n)?;
                        self.write_piece(large, from, n)?;
                        (from, to) = (from + n as u64, to + n as u64);
                    }
                    Err(errno) => {
                        return Err(target.failed("copy into", &large.source.path, errno));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Opens an open file once more, for reading.
fn reopen(fd: &OwnedFd) -> std::result::Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}
