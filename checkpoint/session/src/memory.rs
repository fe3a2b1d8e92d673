//! The memory of objects.

use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, munmap,
};
use std::ptr::NonNull;
use tarn_checkpoint_core::{CheckpointError, CheckpointErrorCode};

/// Objects of so many bytes are worth large pages.
const LARGE: usize = 2 << 20;

/// The memory of an object's bytes. They belong to the program: it writes to them whenever it is in no call of
/// this library.
///
/// # Examples
/// ```
/// use tarn_checkpoint::ObjectMemory;
///
/// let memory = ObjectMemory::new(4096)?;
/// assert_eq!(memory.size(), 4096);
/// // SAFETY: one byte of this memory, which nobody else has.
/// assert_eq!(unsafe { *memory.start().as_ptr() }, 0);
/// # Ok::<(), tarn_checkpoint::CheckpointError>(())
/// ```
#[derive(Debug)]
pub struct ObjectMemory {
    start: NonNull<u8>,
    len: usize,
    /// It was made here, and goes with this.
    made: bool,
}

// SAFETY: it is an address range; its holder may use it as far as the program lets it.
unsafe impl Send for ObjectMemory {}
// SAFETY: by a shared reference only the range can be requested.
unsafe impl Sync for ObjectMemory {}

impl ObjectMemory {
    /// Allocates `len` bytes, all zero, on pages of their own.
    ///
    /// # Errors
    /// [`NoMem`](CheckpointErrorCode::NoMem): there is not enough memory.
    pub fn new(len: usize) -> Result<Self, CheckpointError> {
        let mut memory = Self {
            start: NonNull::dangling(),
            len,
            made: true,
        };
        if len > 0 {
            // Large pages begin at multiples of their size only, and one that two objects share would be taken apart.
            let more = if len >= LARGE { LARGE } else { 0 };
            let none = |e| none(len, e);
            let total = len.checked_add(more).ok_or(none(Errno::NOMEM))?;
            // SAFETY: a new range that the system chooses: no other is touched.
            let start = unsafe {
                let protection = ProtFlags::READ | ProtFlags::WRITE;
                mmap_anonymous(std::ptr::null_mut(), total, protection, MapFlags::PRIVATE)
            };
            let start =
                NonNull::new(start.map_err(none)?.cast::<u8>()).ok_or(none(Errno::NOMEM))?;
            let before = start.addr().get().next_multiple_of(more.max(1)) - start.addr().get();
            let end = (before + len).next_multiple_of(rustix::param::page_size());
            // SAFETY: before and after the used part, all of it within the new range.
            unsafe {
                memory.start = start.add(before);
                for (from, bytes) in [(0, before), (end, total.saturating_sub(end))] {
                    if bytes > 0 {
                        munmap(start.add(from).as_ptr().cast(), bytes).map_err(none)?;
                    }
                }
            }
            memory.advise();
        }
        Ok(memory)
    }

    /// `len` bytes of the program's own memory, for
    /// [`CheckpointSession::add`](crate::CheckpointSession::add), which has an example.
    ///
    /// # Safety
    /// The range is the program's, can be written, and stays until this is gone. The program does not write
    /// to it during a [`commit`](crate::CheckpointSession::commit) or
    /// [`resize`](crate::CheckpointSession::resize), nor use it during a
    /// [`restart`](crate::CheckpointSession::restart).
    pub unsafe fn of(start: NonNull<u8>, len: usize) -> Self {
        Self {
            start,
            len,
            made: false,
        }
    }

    fn advise(&self) {
        if self.len >= LARGE {
            // SAFETY: the range of this. A system without large pages does without.
            let _ = unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxHugepage) };
        }
    }

    /// Sets another size; it may move. New bytes are zero.
    pub(crate) fn resize(&mut self, len: usize) -> Result<(), CheckpointError> {
        if self.len == 0 || len == 0 {
            let new = Self::new(len)?;
            *self = new;
            return Ok(());
        }
        // Bytes that are cut off and come back are zero too.
        let page = rustix::param::page_size();
        if len < self.len {
            let end = len.next_multiple_of(page).min(self.len);
            // SAFETY: within the range, which the program does not use during a call.
            unsafe { std::ptr::write_bytes(self.start.as_ptr().add(len), 0, end - len) };
        }
        // SAFETY: the range of this, made here; it may move, and the caller gets the new address.
        let start = unsafe {
            mremap(
                self.start.as_ptr().cast(),
                self.len,
                len,
                MremapFlags::MAYMOVE,
            )
        };
        let start = start.map_err(|e| none(len, e))?;
        self.start = NonNull::new(start.cast()).ok_or_else(|| none(len, Errno::NOMEM))?;
        self.len = len;
        self.advise();
        Ok(())
    }

    /// Whether some of it is some of another.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        let (from, begin) = (self.start.as_ptr() as usize, other.start.as_ptr() as usize);
        from.max(begin) < (from + self.len).min(begin + other.len)
    }

    /// Whether it was made here.
    pub(crate) fn made(&self) -> bool {
        self.made
    }

    /// Its address; dangling if it is empty.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Its size in bytes.
    pub fn size(&self) -> usize {
        self.len
    }

    /// Its content.
    ///
    /// # Safety
    /// The program does not write to them meanwhile.
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: made here, or of so many bytes by the program's promise.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The same to be written.
    ///
    /// # Safety
    /// The program does not use them meanwhile, and no other object has some of them.
    pub(crate) unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Numbers for which any bytes are a valid value: the element types of
/// [`CheckpointSession::values`](crate::CheckpointSession::values) and
/// [`VersionReader::values`](crate::VersionReader::values). These are the integers of 8 to 128 bits, `f32`
/// and `f64`.
pub trait Element: sealed::Sealed {}

mod sealed {
    pub trait Sealed: Copy {}
}

macro_rules! elements {
    ($($type:ty)*) => {
        $(impl sealed::Sealed for $type {} impl Element for $type {})*
    };
}
elements!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64);

impl Drop for ObjectMemory {
    fn drop(&mut self) {
        if self.made && self.len > 0 {
            // SAFETY: made here, and its holder lets nobody use it any longer.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}

fn none(len: usize, e: Errno) -> CheckpointError {
    CheckpointError::new(
        CheckpointErrorCode::NoMem,
        format!("no memory for an object of {len} bytes: {e}"),
    )
}
