//! Storage memory that many queue pairs use at the same time: a part of a file, mapped.

use crate::flush::{Flush, fence};
use crate::kernel::{self, STREAM};
use crate::map::failed;
use crate::view::{Copying, Mapping, View};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tarn_ports::{MediumError, PowerFail, Promises};
use tarn_ring::{MemorySpan, Storage, StorageRequestError, SubmitOutcome, Ticket};

/// Storage memory that several queue pairs of this process use, each by a [`Direct`] of its own. Nothing
/// refers to its bytes: they are copied, and others may write to them.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use tarn_media::{Direct, Mapping, Now, SharedMedium};
///
/// let file = tempfile::tempfile_in("/dev/shm").unwrap();
/// tarn_media::reserve(&file, 0, 1 << 20).unwrap();
/// let mapping = Mapping { from: 0, writable: true, populate: false, guarded: false };
/// let shared = Arc::new(SharedMedium::new(file.into(), "a file".as_ref(), mapping, 1 << 20)?);
///
/// // `Now` does requests one after the other; a queue pair many at once.
/// let (mut one, mut other) = (Now::new(Direct::new(&shared), true), Now::new(Direct::new(&shared), true));
/// one.write(4096, b"hello", false).unwrap();
/// let mut read = [0; 5];
/// other.read(4096, &mut read).unwrap();
/// assert_eq!(&read, b"hello");
/// assert_eq!((one.fetch_add(0, 5), other.fetch_add(0, 1)), (Ok(0), Ok(5)));
/// # Ok::<(), tarn_ports::MediumError>(())
/// ```
#[derive(Debug)]
pub struct SharedMedium {
    view: Mutex<Arc<View>>,
    mapping: Mapping,
    promises: Promises,
    file: OwnedFd,
    path: PathBuf,
    /// It could not be synced once: the system may report success now.
    failed: AtomicBool,
}

impl SharedMedium {
    /// Maps `length` bytes of a file; `path` is for messages.
    ///
    /// # Errors
    /// It cannot be mapped: it is shorter, or is not open for that.
    pub fn new(
        file: OwnedFd,
        path: &Path,
        mapping: Mapping,
        length: u64,
    ) -> Result<Self, MediumError> {
        let (view, promises) = View::new(&file, path, mapping, length, None)?;
        Ok(Self {
            view: Mutex::new(Arc::new(view)),
            mapping,
            promises,
            file,
            path: path.to_owned(),
            failed: AtomicBool::new(false),
        })
    }

    /// Its promises.
    pub fn promises(&self) -> Promises {
        self.promises
    }

    /// The file.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Maps `length` bytes of the file; it is never mapped shorter. A [`Direct`] sees that in its
    /// [`Storage::size`].
    ///
    /// # Errors
    /// It cannot be mapped, or is broken: all is as it was then.
    pub fn extend(&self, length: u64) -> Result<(), MediumError> {
        let mut now = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        if length <= now.pages.len as u64 {
            return Ok(());
        }
        if now.is_broken() {
            // Bytes written to pages that were not there any more are lost.
            return Err(failed("map", &self.path)(Errno::IO));
        }
        let (new, _) = View::new(&self.file, &self.path, self.mapping, length, Some(&now))?;
        *now = Arc::new(new);
        Ok(())
    }

    /// Makes all of it persistent where only the system can.
    fn sync(&self) -> Result<(), StorageRequestError> {
        if self.promises.power_fail == PowerFail::Synced {
            let synced = rustix::fs::fdatasync(&self.file);
            if self.failed.fetch_or(synced.is_err(), Ordering::SeqCst) || synced.is_err() {
                return Err(StorageRequestError::Io);
            }
        }
        Ok(())
    }

    fn view(&self) -> Arc<View> {
        let view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&view)
    }
}

/// Copies that wait for each other, at most: their table stays in the first cache.
const FEW: usize = 64;
/// A copy is small up to so many bytes.
const SMALL: usize = 64;
/// A copy out of storage memory may wait up to so many bytes: the next one's are fetched while one is done,
/// and both fit the second cache.
const AHEAD: usize = 64 << 10;

/// The request goes beyond the mapping: the caller has not looked.
const OUTSIDE: SubmitOutcome = SubmitOutcome::Done(Err(StorageRequestError::Invalid));

/// A copy that is to be done.
#[derive(Debug, Clone, Copy)]
struct Few {
    to: *mut u8,
    from: *const u8,
    length: usize,
    /// The instruction that writes lines back, if they are to be.
    flush: Flush,
}

/// Storage memory in the hands of one queue pair.
///
/// Small copies are done together: checks between two requests would else separate their fetches of cache
/// lines, and the processor fetches only as many at a time as it can look ahead. So are reads that are not
/// long: the next one is known, and so its bytes are on their way before its turn.
#[derive(Debug)]
pub struct Direct {
    view: Arc<View>,
    shared: Arc<SharedMedium>,
    flush: Flush,
    power_fail: PowerFail,
    /// Stores went past the caches, or lines were written back, since the last fence.
    unfenced: bool,
    /// Something was done since the last doorbell.
    used: bool,
    /// None after a doorbell.
    few: Vec<Few>,
}

impl Direct {
    /// One more user of this storage memory, for one queue pair.
    pub fn new(shared: &Arc<SharedMedium>) -> Self {
        Self {
            view: shared.view(),
            flush: Flush::here(),
            power_fail: shared.promises.power_fail,
            unfenced: false,
            used: false,
            few: Vec::with_capacity(FEW),
            shared: Arc::clone(shared),
        }
    }

    /// The medium that it accesses.
    pub fn shared(&self) -> &Arc<SharedMedium> {
        &self.shared
    }

    /// The address of mapped bytes; none if not all are mapped.
    #[inline(always)]
    fn at(&self, at: u64, length: usize) -> Option<*mut u8> {
        let size = self.view.pages.len as u64;
        let end = at.checked_add(length as u64).filter(|end| *end <= size);
        // SAFETY: within what is mapped, or just behind it.
        end.map(|_| unsafe { self.view.pages.start.as_ptr().add(at as usize) })
    }

    #[inline(always)]
    fn done(&mut self, value: u64) -> SubmitOutcome {
        self.used = true;
        SubmitOutcome::Done(match self.view.is_broken() {
            true => Err(StorageRequestError::Corrupt),
            false => Ok(value),
        })
    }

    /// How lines get to the medium with a write. On persistent memory they always do: every flush covers
    /// all earlier writes, of any writer.
    #[inline]
    fn flush_of(&self, persistent: bool) -> Flush {
        match self.power_fail {
            PowerFail::Flushed => self.flush,
            // That prices it.
            PowerFail::Lost if persistent => self.flush,
            _ => Flush::None,
        }
    }

    /// A copy is to be done.
    #[inline(always)]
    fn later(&mut self, to: *mut u8, from: *const u8, length: usize, flush: Flush) {
        if self.few.len() == FEW {
            self.copy_few();
        }
        self.few.push(Few {
            to,
            from,
            length,
            flush,
        });
    }

    #[inline(never)]
    fn copy_few(&mut self) {
        for (at, few) in self.few.iter().enumerate() {
            let next = self.few.get(at + 1).filter(|_| few.length > SMALL);
            // SAFETY: the memory of a request that has not ended: both ranges are there, and the program's memory is another
            // than the mapping.
            unsafe {
                match next {
                    Some(next) => {
                        let ahead = (next.from, next.length);
                        kernel::copy_and_fetch(few.to, few.from, few.length, ahead);
                    }
                    None => copy(few.to, few.from, few.length),
                }
            }
        }
        let flushed = self.few.iter().filter(|few| few.flush != Flush::None);
        for few in flushed {
            // SAFETY: as above.
            unsafe { few.flush.write_back(few.to, few.length) };
            self.unfenced = true;
        }
        self.few.clear();
    }

    /// Copies bytes out of the mapping.
    #[inline(always)]
    fn get(&mut self, from: *const u8, to: MemorySpan) {
        match to.len() {
            0..=AHEAD => self.later(to.start(), from, to.len(), Flush::None),
            // SAFETY: so many bytes are mapped there, and the program's memory is another.
            length => unsafe { to.start().copy_from_nonoverlapping(from, length) },
        }
    }

    /// Copies bytes into what is mapped, to be written.
    #[inline(always)]
    fn put(&mut self, to: *mut u8, from: MemorySpan, flush: Flush) {
        match from.len() {
            0..=SMALL => self.later(to, from.start(), from.len(), flush),
            // SAFETY: so many bytes are mapped there, to be written, and the program's memory is another.
            length @ STREAM.. => unsafe {
                kernel::stream(to, from.start(), length, flush);
                self.unfenced = true;
            },
            // SAFETY: as above.
            length => unsafe {
                to.copy_from_nonoverlapping(from.start(), length);
                flush.write_back(to, length);
                self.unfenced |= flush != Flush::None;
            },
        }
    }

    /// Does a request's parts one after the other, where some are not mapped yet: the system copies, or they
    /// are mapped now.
    #[cold]
    #[inline(never)]
    fn do_parts(&mut self, at: u64, span: MemorySpan, copying: Copying, flush: Flush) {
        let (mut at, mut left) = (at, span);
        while left.len() > 0 {
            let (part, others) = self.view.first(at, left);
            // Lines are written back here.
            let by_system = flush == Flush::None;
            let file = &self.shared.file;
            let done = self.view.begin(file, at, part, copying, by_system);
            let (_, rest) = part.split(done);
            if let Some(here) = self.at(at + done as u64, rest.len()) {
                match copying {
                    Copying::Out => self.get(here, rest),
                    Copying::In => self.put(here, rest, flush),
                }
            }
            at += part.len() as u64;
            left = others;
        }
    }

    /// Does what waits; all that was done is visible then.
    #[inline]
    fn finish(&mut self) {
        if !self.few.is_empty() {
            self.copy_few();
        }
        // Other processors than x86 do not keep stores in order.
        if std::mem::take(&mut self.unfenced) || self.used && cfg!(not(target_arch = "x86_64")) {
            fence();
        }
    }

    /// Makes completed writes persistent; all others were on the medium when their doorbell had ended. The
    /// earlier requests of this doorbell count as failed at its end, too, if some of the memory was not
    /// there.
    fn sync(&mut self) -> Result<(), StorageRequestError> {
        self.finish();
        self.used = true;
        match self.view.is_broken() {
            true => Err(StorageRequestError::Corrupt),
            false => self.shared.sync(),
        }
    }

    /// An atomic operation on a word.
    fn word(&mut self, at: u64, change: impl FnOnce(&AtomicU64) -> u64) -> SubmitOutcome {
        let Some(word) = self
            .at(at, 8)
            .filter(|word| word.cast::<u64>().is_aligned())
        else {
            return OUTSIDE;
        };
        // SAFETY: mapped, to be written as the caller has looked, and aligned.
        let found = change(unsafe { AtomicU64::from_ptr(word.cast()) });
        let flush = self.flush_of(false);
        // SAFETY: as above.
        unsafe { flush.write_back(word, 8) };
        self.unfenced |= flush != Flush::None;
        self.done(found)
    }
}

/// Copies a few bytes without a call, where they are as many as often.
///
/// # Safety
/// There are so many bytes at both, which do not overlap.
#[inline(always)]
unsafe fn copy(to: *mut u8, from: *const u8, length: usize) {
    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn whole<const N: usize>(to: *mut u8, from: *const u8) {
        // SAFETY: as the caller says; bytes have no alignment.
        unsafe { to.cast::<[u8; N]>().write(from.cast::<[u8; N]>().read()) };
    }
    // SAFETY: as the caller says.
    unsafe {
        match length {
            8 => whole::<8>(to, from),
            16 => whole::<16>(to, from),
            32 => whole::<32>(to, from),
            64 => whole::<64>(to, from),
            _ => to.copy_from_nonoverlapping(from, length),
        }
    }
}

impl Storage for Direct {
    fn size(&mut self) -> u64 {
        self.view = self.shared.view();
        self.view.pages.len as u64
    }

    fn is_persistent(&self) -> bool {
        self.power_fail != PowerFail::Lost
    }

    #[inline(always)]
    fn read(&mut self, at: u64, to: MemorySpan, _: Ticket) -> SubmitOutcome {
        let length = to.len();
        let Some(from) = self.at(at, length) else {
            return OUTSIDE;
        };
        match self.view.is_mapped(at, length) {
            true => self.get(from, to),
            false => self.do_parts(at, to, Copying::Out, Flush::None),
        }
        self.done(length as u64)
    }

    #[inline(always)]
    fn write(&mut self, at: u64, from: MemorySpan, persistent: bool, _: Ticket) -> SubmitOutcome {
        let length = from.len();
        let flush = self.flush_of(persistent);
        let Some(to) = self.at(at, length) else {
            return OUTSIDE;
        };
        match self.view.is_mapped(at, length) {
            true => self.put(to, from, flush),
            false => self.do_parts(at, from, Copying::In, flush),
        }
        if persistent && self.power_fail == PowerFail::Synced {
            return SubmitOutcome::Done(self.sync().map(|()| length as u64));
        }
        self.done(length as u64)
    }

    fn fetch_add(&mut self, at: u64, add: u64, _: Ticket) -> SubmitOutcome {
        self.word(at, |word| word.fetch_add(add, Ordering::SeqCst))
    }

    fn compare_swap(&mut self, at: u64, expected: u64, new: u64, _: Ticket) -> SubmitOutcome {
        self.word(at, |word| {
            let order = Ordering::SeqCst;
            word.compare_exchange(expected, new, order, order)
                .unwrap_or_else(|found| found)
        })
    }

    fn flush(&mut self, _: Ticket) -> SubmitOutcome {
        SubmitOutcome::Done(self.sync().map(|()| 0))
    }

    #[inline]
    fn settle(&mut self) -> Result<(), StorageRequestError> {
        self.finish();
        match std::mem::take(&mut self.used) && self.view.is_broken() {
            true => Err(StorageRequestError::Corrupt),
            false => Ok(()),
        }
    }

    fn notify(&mut self, _: BorrowedFd<'_>, _: BorrowedFd<'_>) -> bool {
        // Nothing is ever pending.
        true
    }
}
