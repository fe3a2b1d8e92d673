//! Mapped storage memory for other nodes.

use crate::shared::Direct;
use std::ptr::NonNull;
use tarn_ring::{Failure, Memory, Span, Started, Storage, Target};

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
        match end.is_some_and(|end| end <= Storage::size(self)) {
            true => Ok(()),
            false => Err(Failure::Invalid),
        }
    }

    fn word_at(&mut self, at: u64) -> Result<(), Failure> {
        match at.is_multiple_of(8) {
            true => self.has(at, 8),
            false => Err(Failure::Invalid),
        }
    }
}

impl Target for Direct {
    fn size(&mut self) -> u64 {
        Storage::size(self)
    }

    fn read(&mut self, at: u64, to: &mut [u8]) -> Result<(), Failure> {
        self.has(at, to.len() as u64)?;
        // SAFETY: they are borrowed until this returns, and the request has ended then.
        let span = unsafe { span(to.as_mut_ptr(), to.len()) };
        let started = Storage::read(self, at, span.ok_or(Failure::Invalid)?, 0);
        now(self, started).map(drop)
    }

    fn write(&mut self, at: u64, from: &[u8], persistent: bool) -> Result<(), Failure> {
        if !self.shared().is_writable() {
            return Err(Failure::Invalid);
        }
        self.has(at, from.len() as u64)?;
        // SAFETY: as above; a write only reads them.
        let span = unsafe { span(from.as_ptr().cast_mut(), from.len()) };
        let started = Storage::write(self, at, span.ok_or(Failure::Invalid)?, persistent, 0);
        now(self, started).map(drop)
    }

    fn fetch_add(&mut self, at: u64, add: u64) -> Result<u64, Failure> {
        if !self.shared().is_writable() {
            return Err(Failure::Invalid);
        }
        self.word_at(at)?;
        let started = Storage::fetch_add(self, at, add, 0);
        now(self, started)
    }

    fn compare_swap(&mut self, at: u64, expected: u64, new: u64) -> Result<u64, Failure> {
        if !self.shared().is_writable() {
            return Err(Failure::Invalid);
        }
        self.word_at(at)?;
        let started = Storage::compare_swap(self, at, expected, new, 0);
        now(self, started)
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let started = Storage::flush(self, 0);
        now(self, started).map(drop)
    }
}
