//! One range of memory.

use crate::tracker::Kernel;
use crate::uapi::{self, Which};
use rustix::io::Errno;
use rustix::mm::{MsyncFlags, msync};
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use tarn_ports::{TrackError, Watched};

/// What is copied at once, by bytes: what the processor reads in one piece.
const WORD: usize = size_of::<u64>();
/// Memory of this process that is watched for writes. It is not any more when this is dropped.
///
/// The pages that lie in it whole are tracked. What it has of a first and a last page with others counts as written always.
#[derive(Debug)]
pub struct Watch {
    kernel: Arc<Kernel>,
    start: NonNull<u8>,
    len: usize,
    /// Addresses of the whole pages; empty if there are none.
    pages: Range<usize>,
    /// Whether they may be registered.
    registered: bool,
}

// SAFETY: it is an address range, which means the same to each thread; whoever made it answers for the memory, whoever writes to it.
unsafe impl Send for Watch {}

impl Watch {
    /// Of `mapped` bytes, of which it has the first `len`, the others are nobody's.
    pub(crate) fn over(
        kernel: Arc<Kernel>,
        start: NonNull<u8>,
        len: usize,
        mapped: usize,
    ) -> Result<Self, TrackError> {
        let first = start.addr().get();
        let from = first.next_multiple_of(kernel.page);
        let to = (first + mapped) / kernel.page * kernel.page;
        let mut watch = Self {
            kernel,
            start,
            len,
            pages: from..to.max(from),
            registered: false,
        };
        watch.register()?;
        Ok(watch)
    }

    fn register(&mut self) -> Result<(), TrackError> {
        self.registered = true;
        self.checked("watch memory for writes", |kernel| {
            // SAFETY: whoever watches this memory has vouched for it.
            unsafe { uapi::register(&kernel.faults, &self.pages) }
        })
    }

    /// Does something to the pages, if there are any, in the process that has them, and sees that they are all there: the calls leave
    /// out what is not mapped without a word.
    fn checked(
        &self,
        doing: &'static str,
        call: impl FnOnce(&Kernel) -> io::Result<()>,
    ) -> Result<(), TrackError> {
        if self.pages.is_empty() {
            return Ok(());
        }
        if std::process::id() != self.kernel.process {
            return Err(TrackError::Io {
                doing: "track memory in a process that was forked: begin anew there",
                source: Errno::PERM.into(),
            });
        }
        let all_mapped = || {
            let start = self.pages.start as *mut _;
            // SAFETY: MS_ASYNC starts nothing: the kernel only looks whether the range is mapped.
            Ok(unsafe { msync(start, self.pages.len(), MsyncFlags::ASYNC) }?)
        };
        let done = call(&self.kernel).and_then(|()| all_mapped());
        done.map_err(|source| TrackError::Io { doing, source })
    }
}

impl Watched for Watch {
    fn size(&self) -> u64 {
        self.len as u64
    }

    fn arm(&mut self) -> Result<(), TrackError> {
        self.register()?;
        self.checked("protect watched memory", |kernel| {
            // SAFETY: as in `register`.
            unsafe { uapi::protect(&kernel.pagemap, &self.pages) }
        })
    }

    fn written(&mut self, again: bool) -> Result<Vec<Range<u64>>, TrackError> {
        let doing = "tell what was written (memory must be armed, and stay where it is)";
        // At most one range for each second page.
        let mut found = Vec::new();
        let scanned = self.checked(doing, |kernel| {
            for which in [Which::Written, Which::Empty] {
                // SAFETY: as in `register`.
                unsafe { uapi::scan(&kernel.pagemap, &self.pages, which, again, &mut found) }?;
            }
            Ok(())
        });
        if let Err(e) = scanned {
            // What was found and is protected again must not count as clean the next time.
            let _ = self.disarm();
            return Err(e);
        }
        let first = self.start.addr().get();
        let end = first + self.len;
        found.push(first..self.pages.start.min(end));
        found.push(self.pages.end.max(first)..end);
        Ok(apart(found, first..end))
    }

    fn disarm(&mut self) -> Result<(), TrackError> {
        if !std::mem::take(&mut self.registered) {
            return Ok(());
        }
        self.checked("stop watching memory", |kernel| {
            // SAFETY: as in `register`.
            unsafe { uapi::unregister(&kernel.faults, &self.pages) }
        })
    }

    /// By volatile words. A shared reference to the bytes would promise that nobody writes to them, and so does
    /// `copy_nonoverlapping`; of a volatile read the compiler assumes nothing, and reads each word once.
    ///
    /// # Panics
    /// When it is outside.
    fn copy(&self, at: u64, into: &mut [u8]) {
        let inside = at.checked_add(into.len() as u64);
        assert!(
            inside.is_some_and(|end| end <= self.size()),
            "{} bytes at {at} of {} bytes of watched memory",
            into.len(),
            self.len
        );
        // SAFETY: it lies inside, or at the end.
        let from = unsafe { self.start.as_ptr().add(at as usize) };
        let head = from.align_offset(WORD).min(into.len());
        let (head, rest) = into.split_at_mut(head);
        // SAFETY: inside, as it is no more than `into`.
        let aligned = unsafe { from.add(head.len()) };
        let (words, tail) = rest.as_chunks_mut::<WORD>();
        for (i, word) in words.iter_mut().enumerate() {
            // SAFETY: inside, and aligned.
            *word = unsafe { aligned.cast::<u64>().add(i).read_volatile() }.to_ne_bytes();
        }
        // SAFETY: inside.
        let last = unsafe { aligned.add(words.len() * WORD) };
        for (from, bytes) in [(from, head), (last, tail)] {
            for (i, byte) in bytes.iter_mut().enumerate() {
                // SAFETY: inside.
                *byte = unsafe { from.add(i).read_volatile() };
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // In a process that was forked there is nothing to undo, and memory that is gone is not watched.
        let _ = self.disarm();
    }
}

/// Ranges of addresses in order and apart, as offsets from the first of all.
fn apart(mut found: Vec<Range<usize>>, all: Range<usize>) -> Vec<Range<u64>> {
    found.retain(|r| r.start < r.end.min(all.end));
    found.sort_unstable_by_key(|r| r.start);
    let mut apart: Vec<Range<u64>> = Vec::new();
    for range in found {
        let end = (range.end.min(all.end) - all.start) as u64;
        let start = (range.start - all.start) as u64;
        match apart.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => apart.push(start..end),
        }
    }
    apart
}
