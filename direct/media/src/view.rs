//! A file in this process's memory, as many queue pairs use it.

use crate::guarded::Guarded;
use crate::kernel::STREAM;
use crate::map::{Pages, failed, pages};
use crate::pieces::{MappedPieces, PieceAccess};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::mm::{Advice, ProtFlags};
use rustix::process::{Resource, getrlimit};
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use tarn_ports::{MediumError, PowerFail, Promises};
use tarn_ring::MemorySpan;

/// How a file is to be mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// The offset in the file: a multiple of a page.
    pub from: u64,
    /// To be written, too.
    pub writable: bool,
    /// All pages are mapped at once. Else memory is mapped piece by piece as it is used, and other files page by page.
    pub populate: bool,
    /// A page that is not there any more kills nobody.
    pub guarded: bool,
}

/// A file from a page on, mapped as it is now. Dropped from the first field to the last.
#[derive(Debug)]
pub(crate) struct View {
    guarded: Option<Guarded>,
    pub(crate) pages: Pages,
    /// None where all is mapped, or as the system likes.
    pieces: Option<MappedPieces<AtomicUsize>>,
    /// The offset in the file at which it begins.
    from: u64,
    /// Whether the system may write to all of it for this process.
    writable: bool,
}

/// Which way bytes are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copying {
    /// From the file.
    Out,
    /// To it.
    In,
}

impl View {
    /// Maps so many bytes of a file, of which fewer may have been mapped before, and finds what they promise.
    ///
    /// # Errors
    /// When it cannot be mapped: it ends before that, is not open for that, or there is no memory.
    pub(crate) fn new(
        file: &OwnedFd,
        path: &Path,
        mapping: Mapping,
        length: u64,
        before: Option<&Self>,
    ) -> Result<(Self, Promises), MediumError> {
        let protection = match mapping.writable {
            true => ProtFlags::READ | ProtFlags::WRITE,
            false => ProtFlags::READ,
        };
        let (pages, promises) = pages(file.as_fd(), path, mapping.from, Some(length), protection)?;
        let start = pages.start.addr().get();
        let range = start..start + pages.len;
        // SAFETY: the mapping is only copied from and to, and unmapped after this was dropped.
        let guarded = mapping.guarded.then(|| unsafe { Guarded::new(range) });
        let guarded = guarded.transpose().map_err(failed("guard", path))?;
        let in_memory = promises.power_fail == PowerFail::Lost;
        if mapping.populate {
            // Files in memory are not notified of a page's first write: to be read, sixteen pages are mapped by one fault, and can be written.
            let advice = match mapping.writable && !in_memory {
                true => Advice::LinuxPopulateWrite,
                false => Advice::LinuxPopulateRead,
            };
            let populated = pages.populate_by(0..pages.len, advice);
            populated.map_err(failed("map", path))?;
        }
        let pieces = (in_memory && !mapping.populate).then(|| {
            let before = before.and_then(|before| before.pieces.as_ref());
            MappedPieces::new(pages.len, before)
        });
        // A mapping knows no such limit, but the system kills a process that writes beyond it by a call.
        let limit = getrlimit(Resource::Fsize).current;
        let view = Self {
            guarded,
            pages,
            pieces,
            from: mapping.from,
            writable: limit.is_none_or(|limit| mapping.from + length <= limit),
        };
        Ok((view, promises))
    }

    /// Whether some of it was not there when it was touched.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.guarded.as_ref().is_some_and(Guarded::is_broken)
    }

    /// Whether a request is no more than a copy.
    #[inline(always)]
    pub(crate) fn is_mapped(&self, at: u64, length: usize) -> bool {
        let pieces = self.pieces.as_ref();
        pieces.is_none_or(|pieces| pieces.are_mapped(at, length))
    }

    /// The first part of a request, which is of one piece, and the others.
    pub(crate) fn first(&self, at: u64, span: MemorySpan) -> (MemorySpan, MemorySpan) {
        let end = self.pieces.as_ref().map(|pieces| {
            let piece = pieces.range(pieces.of(at));
            piece.end - at as usize
        });
        span.split(end.unwrap_or(span.len()))
    }

    /// Does for a part of a request the work that is due while its piece is not mapped: maps that, or has the system copy some of
    /// the first bytes, if it may; returns their number, and the caller copies the others.
    pub(crate) fn begin(
        &self,
        file: &OwnedFd,
        at: u64,
        part: MemorySpan,
        copying: Copying,
        by_system: bool,
    ) -> usize {
        let Some(pieces) = &self.pieces else {
            return 0;
        };
        let piece = pieces.of(at);
        match pieces.charge(piece, part.len()) {
            PieceAccess::Mapped => 0,
            PieceAccess::Map => {
                // If this fails, the error is found when the page is touched.
                let range = pieces.range(piece);
                let _ = self.pages.populate_by(range, Advice::LinuxPopulateRead);
                pieces.mapped(piece);
                0
            }
            PieceAccess::System if by_system => self.by_system(file, at, part, copying),
            PieceAccess::System => 0,
        }
    }

    /// Has the system copy; how many bytes. Small ones it does not: 8 aligned bytes are to be whole for others.
    fn by_system(&self, file: &OwnedFd, at: u64, part: MemorySpan, copying: Copying) -> usize {
        // A write would make a file longer that was made shorter, so that nobody found that. It never gets to the last page.
        let last = self.pages.len - self.pages.len.min(rustix::param::page_size());
        let length = match copying {
            Copying::Out => part.len(),
            Copying::In if !self.writable => 0,
            Copying::In => part.len().min(last.saturating_sub(at as usize)),
        };
        if length < STREAM || !self.is_whole() {
            return 0;
        }
        let (file, from) = (file.as_raw_fd(), (self.from + at) as i64);
        // SAFETY: so many bytes are there, as the maker of the request says; where they are not, the system only fails.
        let copied = unsafe {
            match copying {
                Copying::Out => libc::pread(file, part.start().cast(), length, from),
                Copying::In => libc::pwrite(file, part.start().cast(), length, from),
            }
        };
        self.is_whole();
        usize::try_from(copied).unwrap_or(0)
    }

    /// Whether the file has not been made shorter; else it is broken from now on.
    fn is_whole(&self) -> bool {
        // SAFETY: the last byte of the mapping.
        let _ = unsafe { self.pages.start.add(self.pages.len - 1).read_volatile() };
        !self.is_broken()
    }
}
