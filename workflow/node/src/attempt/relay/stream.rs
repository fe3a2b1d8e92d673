//! The two ends of a stream that is carried over: where it is read, and where it is written.

use crate::fds::readable;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

/// Bytes read at once.
const CHUNK: usize = 64 << 10;
/// Chunks under way that nobody has taken yet.
const WINDOW: usize = 16;
/// A pipe that takes anything takes this much without blocking (`PIPE_BUF`).
const AT_ONCE: usize = 4096;

/// The reading end of a stream. Its descriptor may be shared with others, so it stays blocking, and is read only when there is
/// something to read.
pub(super) struct ExecStreamSource {
    pub(super) stream: u8,
    file: File,
    under_way: usize,
}

impl ExecStreamSource {
    pub(super) fn new(stream: u8, fd: OwnedFd) -> Self {
        Self {
            stream,
            file: fd.into(),
            under_way: 0,
        }
    }

    /// The poll entry, if more may be sent.
    pub(super) fn poll(&self) -> Option<PollFd<'_>> {
        (self.under_way < WINDOW).then(|| PollFd::new(&self.file, PollFlags::IN))
    }

    /// Whether there is something, or the end.
    pub(super) fn ready(&self) -> bool {
        readable(&self.file).unwrap_or(true)
    }

    /// The next chunk, if there is one and it may be sent; an empty one at the end.
    pub(super) fn read(&mut self) -> Option<Vec<u8>> {
        if self.under_way >= WINDOW || !self.ready() {
            return None;
        }
        let mut chunk = vec![0; CHUNK];
        let n = loop {
            match self.file.read(&mut chunk) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // Somebody else was faster.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
                // A descriptor that cannot be read counts as ended.
                other => break other.unwrap_or(0),
            }
        };
        chunk.truncate(n);
        self.under_way += usize::from(n > 0);
        Some(chunk)
    }

    /// Another node reports that it has taken a chunk: it may report too often.
    pub(super) fn taken(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }
}

/// The writing end of a stream.
pub(super) struct ExecStreamSink {
    pub(super) stream: u8,
    file: File,
    waiting: VecDeque<Vec<u8>>,
    /// Bytes of the first chunk that have been written.
    written: usize,
    taken: usize,
    closed: bool,
}

impl ExecStreamSink {
    pub(super) fn new(stream: u8, fd: OwnedFd) -> Self {
        Self {
            stream,
            file: fd.into(),
            waiting: VecDeque::new(),
            written: 0,
            taken: 0,
            closed: false,
        }
    }

    /// The poll entry, if something waits to be written.
    pub(super) fn poll(&self) -> Option<PollFd<'_>> {
        (!self.idle()).then(|| PollFd::new(&self.file, PollFlags::OUT))
    }

    pub(super) fn idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Queues a chunk. A chunk beyond the window is dropped.
    pub(super) fn push(&mut self, bytes: Vec<u8>) {
        if self.waiting.len() < WINDOW {
            self.waiting.push_back(bytes);
        }
    }

    /// Nothing more comes.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Whether all has been written that ever will be.
    pub(super) fn over(&self) -> bool {
        self.closed && self.idle()
    }

    /// Chunks that were written whole since the last time.
    pub(super) fn taken(&mut self) -> usize {
        std::mem::take(&mut self.taken)
    }

    /// Writes what can be without blocking.
    pub(super) fn write(&mut self) -> io::Result<()> {
        while let Some(chunk) = self.waiting.front()
            && writable(&self.file)?
        {
            let rest = chunk.get(self.written..).unwrap_or_default();
            let piece = &rest[..rest.len().min(AT_ONCE)];
            match self.file.write(piece) {
                Ok(n) => self.written += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // Somebody else was faster.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
            if self.written >= chunk.len() {
                self.waiting.pop_front();
                (self.written, self.taken) = (0, self.taken + 1);
            }
        }
        Ok(())
    }
}

fn writable(fd: impl AsFd) -> io::Result<bool> {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let n = poll(&mut [PollFd::new(&fd, PollFlags::OUT)], Some(&now))?;
    Ok(n > 0)
}
