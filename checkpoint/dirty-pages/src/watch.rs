//! One range of memory.

use rustix::io::Errno;
use rustix::mm::{MsyncFlags, msync};
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use tarn_ports::{TrackError, WatchedMemory};

/// Bytes that are copied at once: the processor reads them in one piece.
const WORD: usize = size_of::<u64>();
/// How some pages are watched. After an error all of them are disarmed, and not queried until they are armed again.
pub(crate) trait WriteDetector: Send + Debug {
    /// All are clean from now on.
    fn arm(&mut self) -> io::Result<()>;
    /// Adds the addresses that were written; if `again`, they are protected once more.
    fn written(&mut self, again: bool, found: &mut Vec<Range<usize>>) -> io::Result<()>;
    /// None is protected any more.
    fn disarm(&mut self) -> io::Result<()>;
}

/// Memory of this process that is watched for writes. It is not any more when this is dropped.
///
/// Pages that are in it whole are tracked. Its bytes in a first and a last page that are not always count as written.
#[derive(Debug)]
pub struct WriteWatch {
    start: NonNull<u8>,
    len: usize,
    /// Addresses of the whole pages; empty if there are none.
    pages: Range<usize>,
    /// The process that owns the memory.
    process: u32,
    /// None if there are no whole pages.
    way: Option<Box<dyn WriteDetector>>,
}

// SAFETY: it is an address range, which means the same to each thread; its maker answers for the memory, whoever writes to it.
unsafe impl Send for WriteWatch {}

impl WriteWatch {
    /// Of `mapped` bytes, of which it has the first `len`, the others are nobody's.
    pub(crate) fn over(
        (start, len): (NonNull<u8>, usize),
        mapped: usize,
        process: u32,
        way: impl FnOnce(Range<usize>) -> io::Result<Box<dyn WriteDetector>>,
    ) -> Result<Self, TrackError> {
        let page = rustix::param::page_size();
        let first = start.addr().get();
        let from = first.next_multiple_of(page);
        let pages = from..((first + mapped) / page * page).max(from);
        let mut watch = Self {
            start,
            len,
            process,
            way: None,
            pages: pages.clone(),
        };
        if !pages.is_empty() {
            let new = way(pages);
            watch.way = Some(new.map_err(|source| TrackError::Io {
                doing: "watch memory for writes",
                source,
            })?);
        }
        watch.checked("watch memory for writes", |_| Ok(()))?;
        Ok(watch)
    }

    /// Does something to the pages, if there are any, in the process that has them, and checks that they are all there: the calls
    /// silently leave out unmapped pages.
    fn checked<T: Default>(
        &mut self,
        doing: &'static str,
        call: impl FnOnce(&mut dyn WriteDetector) -> io::Result<T>,
    ) -> Result<T, TrackError> {
        let Some(way) = &mut self.way else {
            return Ok(T::default());
        };
        if std::process::id() != self.process {
            return Err(TrackError::Io {
                doing: "track memory in a process that was forked: start tracking again there",
                source: Errno::PERM.into(),
            });
        }
        let done = call(way.as_mut()).and_then(|done| {
            let start = self.pages.start as *mut _;
            // SAFETY: MS_ASYNC starts nothing: the kernel only looks whether the range is mapped.
            unsafe { msync(start, self.pages.len(), MsyncFlags::ASYNC) }?;
            Ok(done)
        });
        if done.is_err() {
            // Pages that were found and are protected again must not count as clean the next time.
            let _ = way.disarm();
        }
        done.map_err(|source| TrackError::Io { doing, source })
    }
}

impl WatchedMemory for WriteWatch {
    fn size(&self) -> u64 {
        self.len as u64
    }

    fn arm(&mut self) -> Result<(), TrackError> {
        self.checked("protect watched memory", |way| way.arm())
    }

    fn written(&mut self, again: bool) -> Result<Vec<Range<u64>>, TrackError> {
        let doing = "report what was written (memory must be armed, and stay where it is)";
        let mut found = self.checked(doing, |way| {
            // At most one range for each second page.
            let mut found = Vec::new();
            way.written(again, &mut found)?;
            Ok(found)
        })?;
        let first = self.start.addr().get();
        let end = first + self.len;
        found.push(first..self.pages.start.min(end));
        found.push(self.pages.end.max(first)..end);
        Ok(apart(found, first..end))
    }

    fn disarm(&mut self) -> Result<(), TrackError> {
        self.checked("stop watching memory", |way| way.disarm())
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
        // SAFETY: it is inside, or at the end.
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

impl Drop for WriteWatch {
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
