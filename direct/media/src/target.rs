//! Storage memory for bytes that are this program's own, one request after the other: for other nodes.

use std::ptr::NonNull;
use std::time::Duration;
use tarn_ring::{MemorySpan, ProgramMemory, Storage, StorageRequestError, SubmitOutcome};

/// Between two looks at a request that has not ended at once: it waits for a lock.
const BETWEEN: Duration = Duration::from_micros(250);

/// A storage whose requests have ended when their calls return: for other nodes, and wherever requests come
/// one by one. [`SharedMedium`](crate::SharedMedium) has an example. Offsets and lengths are bytes, and may
/// be anything: those outside give [`StorageRequestError::Invalid`].
#[derive(Debug)]
pub struct Now<S> {
    storage: S,
    writable: bool,
}

/// The span of some bytes, for as long as the call takes.
///
/// # Safety
/// The bytes are not used otherwise until the request has ended, and not changed unless they may be.
unsafe fn span(start: *mut u8, length: usize) -> Option<MemorySpan> {
    let start = NonNull::new(start)?;
    // SAFETY: as the caller says.
    let memory = unsafe { ProgramMemory::new(start, length, true) };
    memory.span(start.addr().get() as u64, length as u64)
}

impl<S: Storage> Now<S> {
    /// Over a storage that is used for nothing else.
    pub fn new(storage: S, writable: bool) -> Self {
        Self { storage, writable }
    }

    /// Its size in bytes, now.
    pub fn size(&mut self) -> u64 {
        self.storage.size()
    }

    /// The result of a request that was begun, once it has ended: its memory is in use until then.
    fn end(&mut self, started: SubmitOutcome) -> Result<u64, StorageRequestError> {
        let settled = self.storage.settle();
        let result = match started {
            SubmitOutcome::Done(result) => result,
            SubmitOutcome::Pending => self.wait(),
        };
        settled.and(result)
    }

    fn wait(&mut self) -> Result<u64, StorageRequestError> {
        loop {
            let mut end = None;
            self.storage.reap(&mut |_, result| end = Some(result));
            if let Some(result) = end {
                return result;
            }
            let _ = self.storage.settle();
            // As many streams of other nodes as there are may wait at the same time: nobody spins.
            std::thread::sleep(BETWEEN);
        }
    }

    fn has(&mut self, at: u64, length: u64) -> Result<(), StorageRequestError> {
        let end = at.checked_add(length);
        match end.is_some_and(|end| end <= self.size()) {
            true => Ok(()),
            false => Err(StorageRequestError::Invalid),
        }
    }

    fn may_change(&mut self, at: u64, length: u64) -> Result<(), StorageRequestError> {
        match self.writable {
            true => self.has(at, length),
            false => Err(StorageRequestError::Denied),
        }
    }

    fn word_at(&mut self, at: u64) -> Result<(), StorageRequestError> {
        match at.is_multiple_of(8) {
            true => self.may_change(at, 8),
            false => Err(StorageRequestError::Invalid),
        }
    }

    /// Copies bytes out, wherever they are requested.
    ///
    /// # Errors
    /// `Invalid` for bytes that are not there, and the reason of any other error.
    pub fn read(&mut self, at: u64, to: &mut [u8]) -> Result<(), StorageRequestError> {
        self.has(at, to.len() as u64)?;
        // SAFETY: they are borrowed until this returns, and the request has ended then.
        let span = unsafe { span(to.as_mut_ptr(), to.len()) };
        let started = self
            .storage
            .read(at, span.ok_or(StorageRequestError::Invalid)?, 0);
        self.end(started).map(drop)
    }

    /// Copies bytes in: they are visible, or `persistent`.
    ///
    /// # Errors
    /// As [`Now::read`], and `Denied` where nothing may be written.
    pub fn write(
        &mut self,
        at: u64,
        from: &[u8],
        persistent: bool,
    ) -> Result<(), StorageRequestError> {
        self.may_change(at, from.len() as u64)?;
        // SAFETY: as above; a write only reads them.
        let span = unsafe { span(from.as_ptr().cast_mut(), from.len()) };
        let span = span.ok_or(StorageRequestError::Invalid)?;
        let started = self.storage.write(at, span, persistent, 0);
        self.end(started).map(drop)
    }

    /// Adds to 8 aligned bytes, and returns their value before.
    ///
    /// # Errors
    /// As [`Now::write`].
    pub fn fetch_add(&mut self, at: u64, add: u64) -> Result<u64, StorageRequestError> {
        self.word_at(at)?;
        let started = self.storage.fetch_add(at, add, 0);
        self.end(started)
    }

    /// Replaces 8 aligned bytes if they are as expected, and returns their value before.
    ///
    /// # Errors
    /// As [`Now::write`].
    pub fn compare_swap(
        &mut self,
        at: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64, StorageRequestError> {
        self.word_at(at)?;
        let started = self.storage.compare_swap(at, expected, new, 0);
        self.end(started)
    }

    /// Makes persistent what was done before.
    ///
    /// # Errors
    /// When it cannot.
    pub fn flush(&mut self) -> Result<(), StorageRequestError> {
        let started = self.storage.flush(0);
        self.end(started).map(drop)
    }
}
