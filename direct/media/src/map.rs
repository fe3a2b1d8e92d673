//! A file or device in this process's memory.

use crate::flush::{Flush, fence};
use crate::held::LockedFile;
use crate::kernel;
use crate::pins;
use crate::promises::MediumKind;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fstat, fstatfs, ftruncate, open};
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MremapFlags, MsyncFlags, ProtFlags, madvise, mmap, mremap, mremap_fixed,
    msync, munmap,
};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use tarn_ports::{Medium, MediumError, MediumWindow, PowerFail, Promises, ReadableMedium};
use tarn_sys::memory::{is_memory, memory};

/// The path of sysfs.
const SYS: &str = "/sys";
/// Bytes whose memory is taken at once, so that a thread that waits for a signal is not kept long.
const POPULATE: usize = 256 << 20;

/// Pages that are mapped as long as this lives.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) start: NonNull<u8>,
    pub(crate) len: usize,
}

// SAFETY: it is an address range that belongs to this value alone; the owner of the value has the range.
unsafe impl Send for Pages {}
// SAFETY: by a shared reference it is only read.
unsafe impl Sync for Pages {}

impl Pages {
    /// Takes the memory of all pages from a byte on, and maps them, to be written.
    pub(crate) fn populate(&self, first: usize) -> Result<(), Errno> {
        self.populate_by(first..self.len, Advice::LinuxPopulateWrite)
    }

    /// The same in one way or the other, for some of them.
    pub(crate) fn populate_by(&self, bytes: Range<usize>, advice: Advice) -> Result<(), Errno> {
        let end = self.len.min(bytes.end);
        for at in (bytes.start..end).step_by(POPULATE) {
            let len = POPULATE.min(end - at);
            // SAFETY: a part of this range. No byte is changed.
            let taken = unsafe {
                let start = self.start.as_ptr().add(at);
                madvise(start.cast(), len, advice)
            };
            match taken {
                Ok(()) => {}
                // Kernels before 5.14, and devices: the first touch takes it; its space is taken.
                Err(Errno::INVAL) => return Ok(()),
                Err(Errno::FAULT) => return Err(Errno::NOSPC),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this range was mapped for this value, and nothing borrowed of it outlives it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A file or DAX device, mapped by its only writer. It is locked while this lives.
///
/// # Examples
/// ```
/// use tarn_media::{MappedFile, ReadOnlyMapping};
/// use tarn_ports::{Medium, MediumWindow, PowerFail, ReadableMedium};
///
/// # let folder = tempfile::tempdir_in("/dev/shm").unwrap();
/// let path = folder.path().join("7.arena");
/// let mut file = MappedFile::create(&path, 1 << 20)?;
/// assert_eq!(file.promises().power_fail, PowerFail::Lost); // a tmpfs keeps nothing without power
/// let mut windows = file.windows(&[0..4096, 4096..8192])?; // for several threads
/// let sum = windows[1].write(0, b"hello")?; // at byte 4096
/// windows[1].persist()?;
/// drop(windows);
/// assert!(MappedFile::open(&path).is_err()); // it has a writer
/// drop(file);
///
/// let seen = ReadOnlyMapping::open(&path)?;
/// let mut read = [0; 5];
/// assert_eq!(seen.read(4096, &mut read)?, sum);
/// assert_eq!(&read, b"hello");
/// # Ok::<(), tarn_ports::MediumError>(())
/// ```
#[derive(Debug)]
pub struct MappedFile {
    pages: Pages,
    promises: Promises,
    flush: Flush,
    path: PathBuf,
    /// Locked for as long as this lives.
    file: LockedFile,
}

impl MappedFile {
    /// Creates a file of `size` bytes and maps it, with all of its memory reserved.
    ///
    /// # Errors
    /// [`MediumError::Io`]: it exists already, or there is no space for it.
    pub fn create(path: &Path, size: u64) -> Result<Self, MediumError> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(failed("make", path))?;
        let made = Self::make(file, path, size);
        if made.is_err() {
            // A file without memory is of no use.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    /// Gives a new file `size` bytes and maps it, with all of its memory reserved. `path` is for messages.
    ///
    /// # Errors
    /// [`MediumError::Io`]: there is no space for it.
    pub fn make(file: OwnedFd, path: &Path, size: u64) -> Result<Self, MediumError> {
        reserve(&file, 0, size).map_err(failed("reserve the space of", path))?;
        let mut mapped = Self::of(file, path)?;
        mapped.populate()?;
        Ok(mapped)
    }

    /// Maps an existing file or DAX device.
    ///
    /// # Errors
    /// [`MediumError::Io`]: another process has it for writing (`EWOULDBLOCK`), or it cannot be mapped.
    pub fn open(path: &Path) -> Result<Self, MediumError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = open(path, flags, Mode::empty()).map_err(failed("open", path))?;
        Self::of(file, path)
    }

    /// Maps a small file that processes share, made with so many bytes of zeros if it is not there. Nobody
    /// locks it.
    pub(crate) fn shared(path: &Path, size: u64) -> Result<Self, MediumError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(failed("make", path))?;
        let has = fstat(&file).map_err(failed("examine", path))?.st_size as u64;
        if has < size {
            ftruncate(&file, size).map_err(failed("reserve the space of", path))?;
        }
        Self::map(LockedFile::new(file), path)
    }

    /// All of its bytes. Bytes written here are persistent after [`MappedPart::filled`], not before.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the range of `pages`, which this has for itself.
        unsafe { std::slice::from_raw_parts_mut(self.pages.start.as_ptr(), self.pages.len) }
    }

    /// Its writer is done: the memory keeps its place and its content, but later writes to it do not
    /// reach the file. Only written pages take memory.
    ///
    /// # Errors
    /// When the system has no space for that: nothing that is written to it gets to the file any more.
    pub fn freeze(&mut self) -> Result<(), MediumError> {
        let len = self.pages.len;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // Not charged: else a file larger than the memory could not be mapped so.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // Elsewhere first: kernels before 6.12 that refuse a mapping have unmapped what was in its place already.
        // SAFETY: a new range that the system chooses: no other is touched.
        let private = unsafe { mmap(std::ptr::null_mut(), len, protection, flags, &self.file, 0) };
        let start = NonNull::new(private.map_err(failed("map", &self.path))?.cast());
        let start = start.ok_or_else(|| failed("map", &self.path)(Errno::NOMEM))?;
        let private = Pages { start, len };
        // SAFETY: the ranges of `private` and `pages`, which nothing borrows as this is exclusive: the one takes the place of the other,
        // with the same content.
        let moved = unsafe {
            let (from, to) = (start.as_ptr().cast(), self.pages.start.as_ptr().cast());
            mremap_fixed(from, len, len, MremapFlags::MAYMOVE, to)
        };
        // Only one of the two is unmapped in the end. If it was not moved, its old place may be unmapped, and belong to
        // another mapping now.
        std::mem::forget(match moved {
            Ok(_) => private,
            Err(_) => std::mem::replace(&mut self.pages, private),
        });
        moved.map(drop).map_err(failed("map", &self.path))
    }

    /// The first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.pages.start
    }

    fn of(file: OwnedFd, path: &Path) -> Result<Self, MediumError> {
        let file = LockedFile::new(file);
        file.lock().map_err(failed("lock", path))?;
        Self::map(file, path)
    }

    fn map(file: LockedFile, path: &Path) -> Result<Self, MediumError> {
        let (pages, promises) = pages(
            file.as_fd(),
            path,
            0,
            None,
            ProtFlags::READ | ProtFlags::WRITE,
        )?;
        Ok(Self {
            pages,
            promises,
            flush: Flush::here(),
            path: path.to_owned(),
            file,
        })
    }

    /// Takes the memory of all pages now: later, each would cost a fault, and might not be there.
    ///
    /// # Errors
    /// When there is not enough.
    pub fn populate(&mut self) -> Result<(), MediumError> {
        self.populate_from(0)
    }

    fn populate_from(&mut self, first: usize) -> Result<(), MediumError> {
        let populated = self.pages.populate(first);
        populated.map_err(failed("take the memory of", &self.path))
    }
}

/// Reserves the space of a file from byte `old` to byte `new`, where the file system can: a mapping of a file
/// without space ends the process. Memory that is not free is not requested: the kernel would end processes
/// for it.
///
/// # Errors
/// There is no space ([`StorageFull`](io::ErrorKind::StorageFull),
/// [`OutOfMemory`](io::ErrorKind::OutOfMemory)). The space that was reserved stays.
///
/// # Examples
/// ```
/// let file = tempfile::tempfile_in("/dev/shm").unwrap();
/// tarn_media::reserve(&file, 0, 1 << 20)?;
/// assert_eq!(file.metadata()?.len(), 1 << 20);
/// assert!(tarn_media::reserve(&file, 1 << 20, 1 << 60).is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn reserve(file: impl AsFd, old: u64, new: u64) -> Result<(), io::Error> {
    let more = new - old;
    if is_memory(&fstatfs(&file)?) {
        let free = memory()?.free;
        if more > free {
            let text = format!("{more} bytes of memory are wanted, and {free} are free");
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, text));
        }
    }
    if (fstat(&file)?.st_size as u64) < new {
        ftruncate(&file, new)?;
    }
    match fallocate(&file, FallocateFlags::empty(), old, more) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        other => Ok(other?),
    }
}

/// The kind of a file, and the number of its bytes from one on.
fn examine(
    file: BorrowedFd<'_>,
    path: &Path,
    from: u64,
) -> Result<(MediumKind, usize), MediumError> {
    let kind = MediumKind::of(file, Path::new(SYS)).map_err(failed("examine", path))?;
    let size = match kind {
        MediumKind::Device { size, .. } => size,
        _ => fstat(file).map_err(failed("examine", path))?.st_size as u64,
    };
    // Nothing cannot be mapped.
    let len = usize::try_from(size.saturating_sub(from))
        .ok()
        .filter(|len| *len > 0);
    Ok((kind, len.ok_or_else(|| failed("map", path)(Errno::NODATA))?))
}

/// Maps a file from a page on, to its end or so many bytes, and finds what it promises.
pub(crate) fn pages(
    file: BorrowedFd<'_>,
    path: &Path,
    from: u64,
    length: Option<u64>,
    protection: ProtFlags,
) -> Result<(Pages, Promises), MediumError> {
    let (kind, there) = examine(file, path, from)?;
    let len = match length.map(usize::try_from) {
        None => there,
        Some(Ok(len)) if (1..=there).contains(&len) => len,
        Some(_) => return Err(failed("map", path)(Errno::NODATA)),
    };
    let map = |flags| {
        // SAFETY: a new range that the system chooses: no other is touched.
        unsafe { mmap(std::ptr::null_mut(), len, protection, flags, file, from) }
    };
    let (start, synchronous) = match map(MapFlags::SHARED_VALIDATE | MapFlags::SYNC) {
        Ok(start) => (start, true),
        // Not a DAX file system, or a kernel that does not know.
        Err(Errno::OPNOTSUPP | Errno::INVAL) => {
            (map(MapFlags::SHARED).map_err(failed("map", path))?, false)
        }
        Err(e) => return Err(failed("map", path)(e)),
    };
    let start = NonNull::new(start.cast()).ok_or_else(|| failed("map", path)(Errno::NOMEM))?;
    let promises = kind.promises(synchronous, Path::new(SYS));
    Ok((Pages { start, len }, promises))
}

impl Medium for MappedFile {
    type Window<'a> = MappedPart<'a>;

    fn promises(&self) -> Promises {
        self.promises
    }

    fn size(&self) -> u64 {
        self.pages.len as u64
    }

    fn windows(&mut self, ranges: &[Range<u64>]) -> Result<Vec<MappedPart<'_>>, MediumError> {
        let size = self.pages.len as u64;
        let mut sorted: Vec<&Range<u64>> = ranges.iter().collect();
        sorted.sort_by_key(|r| (r.start, r.end));
        let mut end = 0;
        for range in sorted {
            if range.start > range.end || range.end > size {
                return Err(MediumError::Outside {
                    range: range.clone(),
                    size,
                });
            }
            if range.start < end {
                return Err(MediumError::Taken(range.clone()));
            }
            end = range.end;
        }
        let part = |range: &Range<u64>| {
            let (at, len) = (range.start as usize, (range.end - range.start) as usize);
            // SAFETY: within the mapped pages, and in no other window, as was checked; the windows borrow all of this exclusively.
            let bytes = unsafe {
                let start = self.pages.start.as_ptr().add(at);
                std::slice::from_raw_parts_mut(start, len)
            };
            MappedPart {
                bytes,
                at: range.start,
                power_fail: self.promises.power_fail,
                flush: self.flush,
                file: self.file.as_fd(),
                path: &self.path,
                written: None,
                failed: false,
            }
        };
        Ok(ranges.iter().map(part).collect())
    }

    fn grow(&mut self, size: u64) -> Result<(), MediumError> {
        let old = self.pages.len;
        let len = usize::try_from(size).map_err(|_| failed("map", &self.path)(Errno::NOMEM))?;
        if len <= old {
            return Ok(());
        }
        let taken = reserve(&self.file, old as u64, size);
        let taken = taken.map_err(failed("reserve the space of", &self.path));
        let grown = taken.and_then(|()| {
            // SAFETY: the range of `pages`, which nothing borrows as this is exclusive; it may move.
            let start = unsafe {
                mremap(
                    self.pages.start.as_ptr().cast(),
                    old,
                    len,
                    MremapFlags::MAYMOVE,
                )
            };
            let start = start.map_err(failed("map", &self.path))?;
            let start = NonNull::new(start.cast());
            self.pages.start = start.ok_or_else(|| failed("map", &self.path)(Errno::NOMEM))?;
            self.pages.len = len;
            self.populate_from(old)
        });
        if grown.is_err() {
            // Pages without memory are not used: the pages behind the old end are given back, mapped or not.
            let _ = ftruncate(&self.file, old as u64);
            if self.pages.len > old {
                // SAFETY: as above; it only becomes shorter.
                let _ = unsafe {
                    mremap(
                        self.pages.start.as_ptr().cast(),
                        len,
                        old,
                        MremapFlags::empty(),
                    )
                };
                self.pages.len = old;
            }
        }
        grown
    }
}

/// A part of a mapped file, for one thread: the window of a [`MappedFile`].
#[derive(Debug)]
pub struct MappedPart<'a> {
    bytes: &'a mut [u8],
    /// The offset at which they begin in the file.
    at: u64,
    power_fail: PowerFail,
    flush: Flush,
    file: BorrowedFd<'a>,
    path: &'a Path,
    /// A range that covers all bytes that were written and are not persistent yet.
    written: Option<Range<usize>>,
    /// Some of it could not be synced.
    failed: bool,
}

impl MappedPart<'_> {
    /// The bytes themselves. Bytes written here are persistent after [`MappedPart::filled`] and
    /// [`persist`](MediumWindow::persist), not before.
    ///
    /// # Examples
    /// ```
    /// use tarn_media::MappedFile;
    /// use tarn_ports::{Medium, MediumWindow};
    ///
    /// # let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    /// let mut file = MappedFile::create(&folder.path().join("file"), 4096)?;
    /// let mut windows = file.windows(&[0..4096])?;
    /// windows[0].bytes()[..5].copy_from_slice(b"hello");
    /// windows[0].filled(0..5)?;
    /// windows[0].persist()?;
    /// # Ok::<(), tarn_ports::MediumError>(())
    /// ```
    pub fn bytes(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// Says that these bytes were written without [`MediumWindow::write`]: the next [`MediumWindow::persist`]
    /// is for them too.
    ///
    /// # Errors
    /// [`MediumError::Outside`].
    pub fn filled(&mut self, bytes: Range<u64>) -> Result<(), MediumError> {
        let length = bytes.end.saturating_sub(bytes.start) as usize;
        let range = self.range(bytes.start, length)?;
        self.note(range.clone()).lines(&self.bytes[range]);
        fence();
        Ok(())
    }

    /// Notes what is not persistent yet, and gives how its lines get to the medium.
    fn note(&mut self, range: Range<usize>) -> Flush {
        let written = self.written.get_or_insert(range.clone());
        *written = written.start.min(range.start)..written.end.max(range.end);
        match self.power_fail {
            PowerFail::Flushed => self.flush,
            _ => Flush::None,
        }
    }

    fn range(&self, at: u64, len: usize) -> Result<Range<usize>, MediumError> {
        let size = self.bytes.len() as u64;
        let end = at.checked_add(len as u64).filter(|end| *end <= size);
        match end {
            Some(end) => Ok(at as usize..end as usize),
            None => Err(MediumError::Outside {
                range: at..at.saturating_add(len as u64),
                size,
            }),
        }
    }
}

impl ReadableMedium for MappedPart<'_> {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
        let range = self.range(at, into.len())?;
        Ok(kernel::copy([into], &self.bytes[range], |_| ()))
    }
}

impl MediumWindow for MappedPart<'_> {
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<u64, MediumError> {
        let range = self.range(at, bytes.len())?;
        let flush = self.note(range.clone());
        let to = &mut self.bytes[range];
        Ok(kernel::copy([to], bytes, |part| flush.lines(part)))
    }

    fn write_both(&mut self, other: &mut Self, at: u64, bytes: &[u8]) -> Result<u64, MediumError> {
        let range = self.range(at, bytes.len())?;
        let theirs = other.range(at, bytes.len())?;
        let (flush, their_flush) = (self.note(range.clone()), other.note(theirs.clone()));
        let flush = match flush {
            Flush::None => their_flush,
            flush => flush,
        };
        let to = [&mut self.bytes[range], &mut other.bytes[theirs]];
        Ok(kernel::copy(to, bytes, |part| flush.lines(part)))
    }

    /// By reading, which maps several pages at once where their memory is taken already.
    fn warm(&mut self) {
        // To map what is elsewhere, or nowhere yet, would read it, or take its memory.
        let all_there = |has: rustix::fs::Stat| {
            has.st_size > 0 && has.st_blocks.saturating_mul(512) >= has.st_size
        };
        let elsewhere = self.power_fail == PowerFail::Synced;
        if elsewhere || !fstat(self.file).is_ok_and(all_there) {
            return;
        }
        let from = self.bytes.as_mut_ptr();
        let before = from.addr() % rustix::param::page_size();
        let len = self.bytes.len() + before;
        for at in (0..len).step_by(POPULATE) {
            // SAFETY: the pages of this window, which stay as long as it; no byte is changed.
            let _ = unsafe {
                let start = from.sub(before).add(at);
                madvise(
                    start.cast(),
                    POPULATE.min(len - at),
                    Advice::LinuxPopulateRead,
                )
            };
        }
    }

    fn persist(&mut self) -> Result<(), MediumError> {
        if self.failed {
            return Err(failed("sync", self.path)(Errno::IO));
        }
        let Some(written) = self.written.take() else {
            return Ok(());
        };
        // Bytes that were stored and flushed are behind a fence already.
        if self.power_fail != PowerFail::Synced || written.is_empty() {
            return Ok(());
        }
        let start = self.bytes.as_ptr() as usize + written.start;
        let first = start & !(rustix::param::page_size() - 1);
        let len = start + written.len() - first;
        // SAFETY: pages that hold bytes of this window; to sync them changes none.
        let synced = unsafe { msync(first as *mut _, len, MsyncFlags::SYNC) };
        synced.map_err(|e| {
            // The system may take these pages for clean now: another try would report success.
            self.failed = true;
            failed("sync", self.path)(e)
        })
    }

    fn pinned(&self) -> Result<Vec<Range<u64>>, MediumError> {
        let own = self.at..self.at + self.bytes.len() as u64;
        let pinned =
            pins::pinned(self.file, own).map_err(failed("ask for the readers of", self.path))?;
        let here = |r: Range<u64>| r.start - self.at..r.end - self.at;
        Ok(pinned.into_iter().map(here).collect())
    }
}

/// A file or device that is mapped to be read, while others may write it: published content does not
/// change. [`MappedFile`] has an example.
#[derive(Debug)]
pub struct ReadOnlyMapping {
    pages: Pages,
    promises: Promises,
}

impl ReadOnlyMapping {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// [`MediumError::Io`]: it cannot be opened for reading, or is empty.
    pub fn open(path: &Path) -> Result<Self, MediumError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Self::of(
            open(path, flags, Mode::empty()).map_err(failed("open", path))?,
            path,
        )
    }

    /// Maps an open file; `path` is for messages.
    ///
    /// # Errors
    /// When it is empty, or cannot be mapped.
    pub fn of(file: impl AsFd, path: &Path) -> Result<Self, MediumError> {
        let (pages, promises) = pages(file.as_fd(), path, 0, None, ProtFlags::READ)?;
        Ok(Self { pages, promises })
    }

    /// The bytes where they are stored.
    ///
    /// # Safety
    /// Nobody writes to the file, or makes it shorter, for as long as this lives.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the mapped pages, which the caller says do not change.
        unsafe { std::slice::from_raw_parts(self.pages.start.as_ptr(), self.pages.len) }
    }

    /// Its promises to its writer.
    pub fn promises(&self) -> Promises {
        self.promises
    }
}

impl ReadableMedium for ReadOnlyMapping {
    fn size(&self) -> u64 {
        self.pages.len as u64
    }

    /// They are what they are: the checksum shows whether they are the published ones.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
        let size = self.size();
        let end = at.checked_add(into.len() as u64).filter(|end| *end <= size);
        if end.is_none() {
            return Err(MediumError::Outside {
                range: at..at.saturating_add(into.len() as u64),
                size,
            });
        }
        // SAFETY: within the mapped pages, as was checked, and `into` is none of them. Another process may be writing there: then
        // these bytes are of no version, which their checksum shows.
        Ok(unsafe { kernel::take(into, self.pages.start.as_ptr().add(at as usize)) })
    }
}

pub(crate) fn failed<'p, E: Into<io::Error>>(
    doing: &'static str,
    path: &'p Path,
) -> impl Fn(E) -> MediumError + 'p {
    move |e| MediumError::Io {
        doing,
        what: path.display().to_string(),
        source: e.into(),
    }
}
