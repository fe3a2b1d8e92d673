//! A thread of an operation: its buffer, its stream to a peer, and its results. Its work is beside: `scan` lists folders, `file`
//! and `large` do files, `links` follows links, `peer` fetches.

use crate::error::{ErrorSide, Result, cancelled, failed};
use crate::job::{Goal, Pointer, TreeOperation, WorkerOutput};
use crate::meta::FileStatus;
use crate::queue::lock;
use crate::sealed_file::BUFFER;
use crate::task::ScanFolder;
use crate::tree::TreeOrigin;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tarn_ports::{MoverError, PeerStream};
use tarn_types::bounds::MAX_ENTRIES;
use tarn_types::event::RunErrorKind;
use tarn_types::manifest::Entry;
use tarn_types::part::Verify;

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

/// The work of a thread since its last report.
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

    /// Writes the progress records and passes the counts on.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let tally = std::mem::take(&mut self.tally);
        self.job.advance(tally.done);
        let entries = self.job.entries.fetch_add(tally.entries, Ordering::Relaxed) + tally.entries;
        if entries > MAX_ENTRIES as u64 {
            return Err(MoverError::new(
                RunErrorKind::Io,
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

    pub(crate) fn status(
        &self,
        folder: &ScanFolder,
        name: &[u8],
        path: &[u8],
    ) -> Result<FileStatus> {
        let status = statat(&folder.source, name, AtFlags::SYMLINK_NOFOLLOW).map(FileStatus::from);
        status.map_err(|e| self.unreadable(folder.tree, "examine", path, e))
    }

    /// This thread's stream to the peer of a tree.
    pub(crate) fn connect(&mut self, tree: u32) -> Result<&mut (dyn PeerStream + 'a)> {
        let kept = self.stream.take().filter(|(to, _)| *to == tree);
        let stream = match (kept, &self.job.trees[tree as usize].origin) {
            (Some((_, stream)), _) => stream,
            (None, TreeOrigin::Peer(peer)) => peer.open(self.job)?,
            (None, _) => return Err(cancelled()),
        };
        Ok(&mut *self.stream.insert((tree, stream)).1)
    }

    /// Whether a known hash need not be computed again.
    pub(crate) fn trusts_hashes(&self) -> bool {
        self.job.target().is_some_and(|t| t.verify == Verify::None)
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
