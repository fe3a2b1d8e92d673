//! Mapped storage memory for bytes that are this program's own, one request after the other: for other nodes.

use crate::shared::Direct;
use std::ptr::NonNull;
use tarn_ring::{Failure, Memory, Span, Started, Storage};

/// What was done within the call; only files that are not mapped have anything pending.
fn now(storage: &mut Direct, started: Started) -> Result<u64, Failure> {
    let settled = storage.settle();
    match started {
        Started::Done(result) => settled.and(result),
        Started::Pending => Err(Failure::Io),
    }
}

/// The span of some bytes, for as long as the call takes.
///
/// # Safety
/// The bytes are not used otherwise until the request has ended, and not changed unless they may be.
unsafe fn span(start: *mut u8, length: usize) -> Option<Span> {
    let start = NonNull::new(start)?;
    // SAFETY: as the caller says.
    let memory = unsafe { Memory::new(start, length, true) };
    memory.span(start.addr().get() as u64, length as u64)
}

impl Direct {
    fn has(&mut self, at: u64, length: u64) -> Result<(), Failure> {
        let end = at.checked_add(length);
        match end.is_some_and(|end| end <= self.size()) {
            true => Ok(()),
            false => Err(Failure::Invalid),
        }
    }

    fn may_change(&mut self, at: u64, length: u64) -> Result<(), Failure> {
        match self.shared().is_writable() {
            true => self.has(at, length),
            false => Err(Failure::Denied),
        }
    }

    fn word_at(&mut self, at: u64) -> Result<(), Failure> {
        match at.is_multiple_of(8) {
            true => self.may_change(at, 8),
            false => Err(Failure::Invalid),
        }
    }

    /// Copies bytes out, wherever they are asked for.
    ///
    /// # Errors
    /// `Invalid` for what there is not, and why else it cannot.
    pub fn read_now(&mut self, at: u64, to: &mut [u8]) -> Result<(), Failure> {
        self.has(at, to.len() as u64)?;
        // SAFETY: they are borrowed until this returns, and the request has ended then.
        let span = unsafe { span(to.as_mut_ptr(), to.len()) };
        let started = self.read(at, span.ok_or(Failure::Invalid)?, 0);
        now(self, started).map(drop)
    }

    /// Copies bytes in: they are visible, or `persistent`.
    ///
    /// # Errors
    /// As [`Direct::read_now`], and `Denied` where nothing may be written.
    pub fn write_now(&mut self, at: u64, from: &[u8], persistent: bool) -> Result<(), Failure> {
        self.may_change(at, from.len() as u64)?;
        // SAFETY: as above; a write only reads them.
        let span = unsafe { span(from.as_ptr().cast_mut(), from.len()) };
        let started = self.write(at, span.ok_or(Failure::Invalid)?, persistent, 0);
        now(self, started).map(drop)
    }

    /// Adds to 8 aligned bytes; what was there.
    ///
    /// # Errors
    /// As [`Direct::write_now`].
    pub fn fetch_add_now(&mut self, at: u64, add: u64) -> Result<u64, Failure> {
        self.word_at(at)?;
        let started = self.fetch_add(at, add, 0);
        now(self, started)
    }

    /// Replaces 8 aligned bytes if they are what is expected; what was there.
    ///
    /// # Errors
    /// As [`Direct::write_now`].
    pub fn compare_swap_now(&mut self, at: u64, expected: u64, new: u64) -> Result<u64, Failure> {
        self.word_at(at)?;
        let started = self.compare_swap(at, expected, new, 0);
        now(self, started)
    }

    /// Makes persistent what was done before.
    ///
    /// # Errors
    /// When it cannot.
    pub fn flush_now(&mut self) -> Result<(), Failure> {
        let started = self.flush(0);
        now(self, started).map(drop)
    }
}
