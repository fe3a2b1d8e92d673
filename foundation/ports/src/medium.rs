//! Media: memory that outlives a process, byte by byte.

use std::ops::Range;

/// When written bytes of a medium outlive a loss of power, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PowerFail {
    /// Never: it is memory. It outlives the process.
    Lost,
    /// Once the operating system has synced it.
    Synced,
    /// Once its cache lines were flushed and a fence has followed (ADR).
    Flushed,
    /// Once a fence has followed: as it goes down, the machine flushes its caches itself (eADR).
    Fenced,
}

/// The guarantees of a medium for the bytes that are written to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promises {
    /// Aligned bytes that are written whole or not at all, in any event.
    pub atomic: u64,
    /// Bytes that cost as much as one of them: the length of a write is best a multiple.
    pub write_unit: u64,
    /// Bytes that become persistent together, at least.
    pub persist_unit: u64,
    /// The state that a loss of power leaves.
    pub power_fail: PowerFail,
}

/// Why a medium did not do a request.
#[derive(Debug, thiserror::Error)]
pub enum MediumError {
    /// It ends before that.
    #[error("bytes {} to {} were asked for, and there are {size}", .range.start, .range.end)]
    Outside {
        /// The requested bytes.
        range: Range<u64>,
        /// Bytes that there are.
        size: u64,
    },
    /// The same bytes were requested twice.
    #[error("bytes {} to {} are in another window already", .0.start, .0.end)]
    Taken(Range<u64>),
    /// The operating system refused something.
    #[error("cannot {doing} {what}: {source}")]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The object of the operation.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
}

/// A medium, in the hands of its only writer.
pub trait Medium: Send {
    /// A part of it.
    type Window<'a>: MediumWindow
    where
        Self: 'a;

    /// Its guarantees.
    fn promises(&self) -> Promises;

    /// Bytes.
    fn size(&self) -> u64;

    /// Parts that threads can write at the same time, in the order of the ranges.
    ///
    /// # Errors
    /// [`MediumError::Outside`], and [`MediumError::Taken`] where ranges overlap.
    fn windows(&mut self, ranges: &[Range<u64>]) -> Result<Vec<Self::Window<'_>>, MediumError>;

    /// Makes it larger, its memory taken; its content stays.
    ///
    /// # Errors
    /// When there is no space: it is as it was.
    fn grow(&mut self, size: u64) -> Result<(), MediumError>;
}

/// Bytes of a medium that can be read. Offsets count from its beginning.
pub trait ReadableMedium {
    /// Bytes.
    fn size(&self) -> u64;

    /// Copies bytes out and returns their checksum (CRC-64/NVME).
    ///
    /// # Errors
    /// [`MediumError::Outside`].
    fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError>;

    /// Copies bytes out and returns the checksums of their chunks, which have so many bytes each, but for the last.
    ///
    /// # Errors
    /// As [`ReadableMedium::read`].
    fn read_chunks(&self, at: u64, into: &mut [u8], chunk: usize) -> Result<Vec<u64>, MediumError> {
        let parts = (at..).step_by(chunk).zip(into.chunks_mut(chunk));
        parts.map(|(at, part)| self.read(at, part)).collect()
    }
}

impl<S: ReadableMedium + ?Sized> ReadableMedium for Box<S> {
    fn size(&self) -> u64 {
        (**self).size()
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
        (**self).read(at, into)
    }

    fn read_chunks(&self, at: u64, into: &mut [u8], chunk: usize) -> Result<Vec<u64>, MediumError> {
        (**self).read_chunks(at, into, chunk)
    }
}

/// A part of a medium that can be written. Offsets count from its beginning.
pub trait MediumWindow: ReadableMedium + Send {
    /// Copies bytes in and returns their checksum (CRC-64/NVME). They are persistent after [`MediumWindow::persist`], not before.
    ///
    /// # Errors
    /// [`MediumError::Outside`]: nothing is written.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<u64, MediumError>;

    /// The same to this window and another, at the same place of both. Some read the bytes only once for that.
    ///
    /// # Errors
    /// As [`MediumWindow::write`], of either.
    fn write_both(&mut self, other: &mut Self, at: u64, bytes: &[u8]) -> Result<u64, MediumError>
    where
        Self: Sized,
    {
        other.write(at, bytes)?;
        self.write(at, bytes)
    }

    /// It will be used soon: memory that is not mapped yet is mapped now. If that fails, the first use maps it.
    fn warm(&mut self) {}

    /// Makes all persistent that was written through this window, as far as the medium can.
    ///
    /// # Errors
    /// When the system cannot sync it: nothing is promised then.
    fn persist(&mut self) -> Result<(), MediumError>;

    /// The ranges of it that readers in other programs have pinned at this instant, in any order: do not write to them. A reader
    /// that pins afterwards sees all that was written before. No ranges if nobody else can see it.
    ///
    /// # Errors
    /// When the system does not report them: then nothing may be written where nothing was kept before.
    fn pinned(&self) -> Result<Vec<Range<u64>>, MediumError> {
        Ok(Vec::new())
    }
}
