//! Aligned reads and writes of a file by an io_uring and nothing else: the baseline for storage memory in units.

use crate::map::Pages;
use crate::units::pool;
use io_uring::{IoUring, opcode, types};
use rustix::fs::{Mode, OFlags, open};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// A file without the page cache, a ring, and a buffer for each place of it.
pub struct UncachedFile {
    /// Dropped before the memory that it fills.
    ring: IoUring,
    memory: Pages,
    depth: usize,
    bytes: usize,
    write: bool,
    _file: OwnedFd,
}

impl std::fmt::Debug for UncachedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UncachedFile").finish_non_exhaustive()
    }
}

impl UncachedFile {
    /// Opens a file for `depth` requests at the same time, of `bytes` bytes each.
    ///
    /// # Errors
    /// The file cannot be opened without the page cache, or the system allows no io_uring.
    pub fn new(path: &Path, depth: u32, bytes: usize, write: bool) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::empty())?;
        let ring = IoUring::new(depth)?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        let depth = depth as usize;
        Ok(Self {
            ring,
            memory: pool(depth * bytes)?,
            depth,
            bytes,
            write,
            _file: file,
        })
    }

    /// One request at each place of the file.
    ///
    /// # Errors
    /// When one of them fails.
    pub fn run(&mut self, places: impl IntoIterator<Item = u64>) -> io::Result<()> {
        let mut places = places.into_iter();
        let mut free: Vec<u64> = (0..self.depth as u64).collect();
        let mut result = Ok(());
        loop {
            while let Some(buffer) = free.pop() {
                let Some(at) = places.next() else {
                    free.push(buffer);
                    break;
                };
                // SAFETY: within the memory.
                let start = unsafe { self.memory.start.as_ptr().add(buffer as usize * self.bytes) };
                let (file, length) = (types::Fixed(0), self.bytes as u32);
                let entry = match self.write {
                    true => opcode::Write::new(file, start, length).offset(at).build(),
                    false => opcode::Read::new(file, start, length).offset(at).build(),
                };
                // SAFETY: the buffer is this call's until its end, for which this waits; there is space for each.
                let pushed = unsafe { self.ring.submission().push(&entry.user_data(buffer)) };
                pushed.map_err(io::Error::other)?;
            }
            if free.len() == self.depth {
                return result;
            }
            self.ring.submit_and_wait(1)?;
            for end in self.ring.completion() {
                free.push(end.user_data());
                if end.result() != self.bytes as i32 {
                    result = Err(io::Error::from_raw_os_error(end.result().min(0).abs()));
                }
            }
        }
    }
}
