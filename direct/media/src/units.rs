//! Storage memory that is written in units: a part of a file of a medium that is no memory, in the hands of
//! many queue pairs, by io_uring. docs/guide/direct-access.md, "In units".

mod cut;
mod engine;
mod layout;
mod locks;
mod marks;
mod recover;
#[cfg(test)]
mod tests;
mod unit_io;
mod uring;

use crate::map::{Pages, failed};
use engine::{Blocking, UnitIoEngine};
use layout::{GATE, USERS, UnitLayout};
use marks::Marks;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, fstat, open, statx};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tarn_ports::{MediumError, PowerFail, Promises};
use tarn_ring::{MemorySpan, Storage, StorageRequestError, SubmitOutcome, Ticket};
use tarn_sys::lock::{RangeLockMode, held, hold, hold_alone};
use tarn_sys::signals::Blocked;
use unit_io::{BUFFER, DEPTH, UnitChange, UnitIo, UnitOperation};

/// The unit of a medium if nobody sets another: disks and file systems write as much whole.
const USUAL: u32 = 4096;
/// How long who begins to use a file waits for another one who does.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How a file is to be used in units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Using {
    /// The offset at which its units begin: 2 MiB or later.
    pub from: u64,
    /// Bytes of a unit: a power of two from 512 to 16,384.
    pub unit: u32,
    /// Of the file, which its slots have too.
    pub identity: u128,
    /// To be written, too.
    pub writable: bool,
    /// A file that is made shorter kills nobody.
    pub guarded: bool,
}

/// The alignment of reads and writes.
#[derive(Debug, Clone, Copy)]
struct Grain {
    /// In the file.
    bytes: usize,
    /// In memory.
    memory: usize,
}

/// A file in units, in this process, each of its queue pairs by a [`UnitStorage`]. A change of a part of a
/// unit is atomic: after a crash all of it is there, or nothing.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use tarn_media::{Now, UnitStorage, Units, Using, clear_slots};
///
/// const FROM: u64 = 2 << 20; // behind the header and the slots
/// let file = tempfile::tempfile().unwrap();
/// tarn_media::reserve(&file, 0, FROM + (1 << 16)).unwrap();
/// let file = file.into();
/// clear_slots(&file, "a file".as_ref())?;
/// let using = Using { from: FROM, unit: 4096, identity: 7, writable: true, guarded: false };
/// let units = Arc::new(Units::new(file, "a file".as_ref(), using, 1 << 16)?);
///
/// let mut storage = Now::new(UnitStorage::blocking(&units)?, true);
/// storage.write(4090, b"over two units", true).unwrap();
/// let mut read = [0; 14];
/// storage.read(4090, &mut read).unwrap();
/// assert_eq!(&read, b"over two units");
/// # Ok::<(), tarn_ports::MediumError>(())
/// ```
#[derive(Debug)]
pub struct Units {
    file: OwnedFd,
    /// Of a file that is only read, but may be written: the open file that has the users' lock.
    _keeper: Option<OwnedFd>,
    layout: UnitLayout,
    using: Using,
    marks: Marks,
    promises: Promises,
    /// Without the page cache.
    direct: bool,
    grain: Grain,
    size: AtomicU64,
    /// It was made shorter than that.
    cut: AtomicBool,
    /// It could not be synced once: the system may report success now.
    failed: AtomicBool,
    path: PathBuf,
}

/// The unit in bytes that a file is written by: 0 if it is better mapped, else at least as many as were
/// requested.
///
/// # Errors
/// The system does not report it.
///
/// # Examples
/// ```
/// let memory = tempfile::tempfile_in("/dev/shm").unwrap();
/// memory.set_len(2 << 20).unwrap(); // the header and the slots
/// let memory = memory.into();
/// assert_eq!(tarn_media::unit_of(&memory, "a file".as_ref(), None)?, 0);
/// assert!(tarn_media::unit_of(&memory, "a file".as_ref(), Some(8192))? >= 8192);
/// # Ok::<(), tarn_ports::MediumError>(())
/// ```
pub fn unit_of(file: &OwnedFd, path: &Path, requested: Option<u32>) -> Result<u32, MediumError> {
    let (_, promises) = Marks::new(file, path, false, false)?;
    if requested.is_none() && promises.power_fail != PowerFail::Synced {
        return Ok(0);
    }
    let (_, grain) = grain(file);
    Ok(requested.unwrap_or(USUAL).max(grain.bytes as u32))
}

/// Writes zeros to the slots of a new file: blocks that were never written cost a file system's commit at
/// their first use. [`Units`] has an example.
///
/// # Errors
/// The file cannot be written.
pub fn clear_slots(file: &OwnedFd, path: &Path) -> Result<(), MediumError> {
    let zeros = vec![0; layout::SLOTS as usize];
    recover::write_all(file, layout::SLOTS, &zeros).map_err(failed("write the slots of", path))
}

/// Whether a file can be used without the page cache, and the alignment that it needs then.
fn grain(file: &OwnedFd) -> (bool, Grain) {
    let flags = StatxFlags::DIOALIGN;
    let stat = statx(file, "", AtFlags::EMPTY_PATH, flags);
    let stat = stat.ok().filter(|stat| stat.stx_mask & flags.bits() != 0);
    let (bytes, memory) = match stat {
        Some(stat) => (stat.stx_dio_offset_align, stat.stx_dio_mem_align),
        // A system that does not report it: no disk has more.
        None => (4096, 4096),
    };
    let fits = |align: u32, most: u32| align.is_power_of_two() && align <= most;
    let is_direct = fits(bytes, 16384) && fits(memory, 4096) && avoid_cache(file, true).is_ok();
    match is_direct && avoid_cache(file, false).is_ok() {
        true => {
            let (bytes, memory) = (bytes as usize, memory as usize);
            (true, Grain { bytes, memory })
        }
        false => {
            let (bytes, memory) = (1, 1);
            (false, Grain { bytes, memory })
        }
    }
}

/// Has an open file used without the page cache, or with it.
fn avoid_cache(file: &OwnedFd, avoided: bool) -> Result<(), Errno> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, avoided);
    fcntl_setfl(file, flags)
}

/// The same file, opened once more.
fn reopened(file: &OwnedFd, writable: bool) -> Result<OwnedFd, Errno> {
    let access = match writable {
        true => OFlags::RDWR,
        false => OFlags::RDONLY,
    };
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    open(path, access | OFlags::CLOEXEC, Mode::empty())
}

impl Units {
    /// Begins to use so many bytes of a file; `path` is for messages. It makes whole the units that a loss
    /// of power has left torn.
    ///
    /// # Errors
    /// When it cannot be opened for that; `EBUSY` where it was left torn and may only be read, or somebody
    /// else is kept from beginning.
    pub fn new(file: OwnedFd, path: &Path, using: Using, length: u64) -> Result<Self, MediumError> {
        let (direct, grain) = grain(&file);
        let (marks, mut promises) = Marks::new(&file, path, using.writable, using.guarded)?;
        let unit = u64::from(using.unit);
        promises.write_unit = unit;
        promises.persist_unit = unit;
        if promises.power_fail != PowerFail::Lost {
            promises.power_fail = PowerFail::Synced;
        }
        let layout = UnitLayout {
            unit,
            from: using.from,
            identity: using.identity,
        };
        // Of another medium, since it was made.
        let direct = direct && grain.bytes as u64 <= unit;
        let grain = match direct {
            true => grain,
            false => Grain {
                bytes: 1,
                memory: 1,
            },
        };
        let mut units = Self {
            _keeper: None,
            layout,
            using,
            marks,
            promises,
            direct,
            grain,
            size: AtomicU64::new(length),
            cut: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            path: path.to_owned(),
            file,
        };
        units._keeper = units.join().map_err(failed("recover", path))?;
        Ok(units)
    }

    /// Takes the users' lock; the first user makes torn units whole.
    fn join(&self) -> Result<Option<OwnedFd>, Errno> {
        let own = match self.using.writable {
            true => None,
            false => match reopened(&self.file, true) {
                Ok(own) => Some(own),
                Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
                    // Nobody has it open: the content of its slots belongs to no living process.
                    let is_torn = held(&self.file, &USERS)?.is_none()
                        && (held(&self.file, &self.layout.all_locks())?.is_some()
                            || self.shadows()? > 0);
                    return match is_torn {
                        true => Err(Errno::BUSY),
                        false => Ok(None),
                    };
                }
                Err(e) => return Err(e),
            },
        };
        let keeper = own.as_ref().unwrap_or(&self.file);
        if !hold_alone(keeper, &GATE, TIMEOUT)? {
            return Err(Errno::BUSY);
        }
        if hold(keeper, &USERS, RangeLockMode::Alone)? {
            // Writes that a killed program had given to io_uring may still be under way. Its open file lives, and locks its
            // slots, until they end.
            let slots = self.layout.all_locks();
            if !hold_alone(keeper, &slots, TIMEOUT)? {
                return Err(Errno::BUSY);
            }
            self.recover(keeper)?;
            hold(keeper, &slots, RangeLockMode::Nothing)?;
        }
        // From alone to shared there is no moment without.
        hold(keeper, &USERS, RangeLockMode::Shared)?;
        hold(keeper, &GATE, RangeLockMode::Nothing)?;
        Ok(own)
    }

    /// Its promises.
    pub fn promises(&self) -> Promises {
        self.promises
    }

    /// The file.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// More bytes of the file can be used; never fewer.
    pub fn extend(&self, length: u64) {
        self.size.fetch_max(length, SeqCst);
    }

    /// Whether there is such a unit.
    fn has(&self, unit: u64) -> bool {
        unit < self.size.load(SeqCst) / self.layout.unit
    }

    /// Whether the file is shorter than it is to be, now or earlier.
    fn is_cut(&self) -> bool {
        let end = self.layout.from + self.size.load(SeqCst);
        let is_short = || fstat(&self.file).is_ok_and(|stat| (stat.st_size as u64) < end);
        if is_short() {
            self.cut.store(true, SeqCst);
        }
        self.is_broken()
    }

    fn is_broken(&self) -> bool {
        self.cut.load(SeqCst) || self.marks.is_broken()
    }
}

/// The state that a queue pair's storage and its thread share.
#[derive(Debug)]
struct SharedUnitIo {
    unit_io: Mutex<UnitIo>,
    /// There are locks to look after, or it is over.
    changed: Condvar,
}

impl SharedUnitIo {
    fn lock(&self) -> MutexGuard<'_, UnitIo> {
        self.unit_io.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Continues requests that hold locks that others may want, while the program does not look.
    fn watch(&self) {
        let mut unit_io = self.lock();
        while !unit_io.closing {
            let Some(timeout) = unit_io.timeout() else {
                unit_io.unwatched = true;
                let waited = self.changed.wait(unit_io);
                unit_io = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let waited = self.changed.wait_timeout(unit_io, timeout);
            unit_io = waited.unwrap_or_else(PoisonError::into_inner).0;
            if !unit_io.closing {
                unit_io.go_on();
                unit_io.notify_ends();
            }
        }
    }
}

/// A file in units, in the hands of one queue pair.
#[derive(Debug)]
pub struct UnitStorage {
    units: Arc<Units>,
    core: Arc<SharedUnitIo>,
    /// The thread, if it writes.
    watch: Option<JoinHandle<()>>,
}

impl UnitStorage {
    /// The storage of one more queue pair, by an open file of its own if that is given. If io_uring is not
    /// allowed, calls block.
    ///
    /// # Errors
    /// When the file cannot be opened once more, is another one, or there is no memory.
    pub fn new(units: &Arc<Units>, own: Option<OwnedFd>) -> Result<Self, MediumError> {
        Self::with(units, own, |file, pool| {
            let start = pool.start.addr().get();
            // SAFETY: the unit I/O has both, and drops the ring first.
            let ring = unsafe {
                uring::Ring::new(Arc::clone(file), 2 * DEPTH as u32, start..start + pool.len)
            };
            match ring {
                Ok(ring) => Box::new(ring),
                Err(_) => Box::new(Blocking::new(Arc::clone(file))),
            }
        })
    }

    /// One more pair of hands whose calls block: for requests that come one after the other, and are waited
    /// for.
    ///
    /// # Errors
    /// As [`UnitStorage::new`].
    pub fn blocking(units: &Arc<Units>) -> Result<Self, MediumError> {
        Self::with(units, None, |file, _| {
            Box::new(Blocking::new(Arc::clone(file)))
        })
    }

    fn with(
        units: &Arc<Units>,
        own: Option<OwnedFd>,
        engine: impl FnOnce(&Arc<OwnedFd>, &Pages) -> Box<dyn UnitIoEngine>,
    ) -> Result<Self, MediumError> {
        let failed = failed("use", &units.path);
        let file = match own {
            Some(own) => own,
            None => reopened(&units.file, units.using.writable).map_err(&failed)?,
        };
        let (known, found) = (fstat(&units.file), fstat(&file));
        let known = known.map_err(&failed)?;
        let is_same =
            |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino) == (known.st_dev, known.st_ino);
        if !is_same(found.map_err(&failed)?) {
            return Err(failed(Errno::STALE));
        }
        if units.direct {
            avoid_cache(&file, true).map_err(&failed)?;
        }
        let file = Arc::new(file);
        let pool = pool(DEPTH * BUFFER).map_err(failed)?;
        let engine = engine(&file, &pool);
        let unit_io = UnitIo::new(Arc::clone(units), file, engine, pool);
        let core = SharedUnitIo {
            unit_io: Mutex::new(unit_io),
            changed: Condvar::new(),
        };
        Ok(Self {
            units: Arc::clone(units),
            core: Arc::new(core),
            watch: None,
        })
    }

    /// The file that it accesses.
    pub fn units(&self) -> &Arc<Units> {
        &self.units
    }

    fn post(
        &mut self,
        ticket: Ticket,
        at: u64,
        length: usize,
        work: UnitOperation,
        sync: bool,
    ) -> SubmitOutcome {
        let end = at.checked_add(length as u64);
        if end.is_none_or(|end| end > self.units.size.load(SeqCst)) {
            return SubmitOutcome::Done(Err(StorageRequestError::Invalid));
        }
        if self.units.is_broken() {
            return SubmitOutcome::Done(Err(StorageRequestError::Corrupt));
        }
        if !matches!(work, UnitOperation::Read(_)) && !self.is_watched() {
            return SubmitOutcome::Done(Err(StorageRequestError::Io));
        }
        self.core.lock().post(ticket, at, work, sync);
        SubmitOutcome::Pending
    }

    /// Has the thread that looks after locks.
    fn is_watched(&mut self) -> bool {
        if self.watch.is_none() {
            let core = Arc::clone(&self.core);
            let named = std::thread::Builder::new().name("tarn-units".to_owned());
            let _blocked = Blocked::new();
            self.watch = named.spawn(move || core.watch()).ok();
        }
        self.watch.is_some()
    }
}

impl Drop for UnitStorage {
    fn drop(&mut self) {
        self.core.lock().close();
        self.core.changed.notify_all();
        if let Some(watch) = self.watch.take() {
            // It has not panicked where this has not.
            let _ = watch.join();
        }
    }
}

impl Storage for UnitStorage {
    fn size(&mut self) -> u64 {
        self.units.size.load(SeqCst)
    }

    fn is_persistent(&self) -> bool {
        self.units.promises.power_fail != PowerFail::Lost
    }

    fn read(&mut self, at: u64, to: MemorySpan, ticket: Ticket) -> SubmitOutcome {
        self.post(ticket, at, to.len(), UnitOperation::Read(to), false)
    }

    fn write(
        &mut self,
        at: u64,
        from: MemorySpan,
        persistent: bool,
        ticket: Ticket,
    ) -> SubmitOutcome {
        self.post(
            ticket,
            at,
            from.len(),
            UnitOperation::Write(from),
            persistent,
        )
    }

    fn fetch_add(&mut self, at: u64, add: u64, ticket: Ticket) -> SubmitOutcome {
        self.post(
            ticket,
            at,
            8,
            UnitOperation::Word(UnitChange::Add(add)),
            false,
        )
    }

    fn compare_swap(&mut self, at: u64, expected: u64, new: u64, ticket: Ticket) -> SubmitOutcome {
        let swap = UnitChange::Swap { expected, new };
        self.post(ticket, at, 8, UnitOperation::Word(swap), false)
    }

    fn flush(&mut self, ticket: Ticket) -> SubmitOutcome {
        if self.units.is_broken() {
            return SubmitOutcome::Done(Err(StorageRequestError::Corrupt));
        }
        self.core.lock().flush(ticket);
        SubmitOutcome::Pending
    }

    fn settle(&mut self) -> Result<(), StorageRequestError> {
        let mut unit_io = self.core.lock();
        unit_io.go_on();
        unit_io.notify_ends();
        if unit_io.unwatched && unit_io.timeout().is_some() {
            unit_io.unwatched = false;
            self.core.changed.notify_all();
        }
        Ok(())
    }

    fn reap(&mut self, ended: &mut dyn FnMut(Ticket, Result<u64, StorageRequestError>)) {
        let mut unit_io = self.core.lock();
        unit_io.go_on();
        let ends = unit_io.ends();
        drop(unit_io);
        ends.into_iter()
            .for_each(|(ticket, result)| ended(ticket, result));
    }

    fn notify(&mut self, event: BorrowedFd<'_>, _: BorrowedFd<'_>) -> bool {
        let own = event.try_clone_to_owned();
        own.is_ok_and(|own| self.core.lock().notify(own))
    }
}

/// Memory of whole pages.
pub(crate) fn pool(len: usize) -> Result<Pages, Errno> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new range that the system chooses: no other is touched.
    let start =
        unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE) }?;
    let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
    Ok(Pages { start, len })
}
