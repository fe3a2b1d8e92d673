//! Memory of the program.

use std::cell::Cell;
use std::ptr::NonNull;

/// A range of the program's memory that requests may name.
///
/// # Examples
/// ```
/// use std::cell::Cell;
/// use std::ptr::NonNull;
/// use tarn_ring::ProgramMemory;
///
/// // Without unsafe code: memory that the program never frees.
/// let cells = Box::leak(vec![Cell::new(0_u8); 64].into_boxed_slice());
/// let memory = ProgramMemory::of(cells);
/// let address = cells.as_ptr().addr() as u64;
/// assert_eq!(memory.span(address + 8, 56).unwrap().len(), 56);
/// assert!(memory.span(address + 8, 57).is_none()); // one byte too far
///
/// // Memory that it frees later, which requests only read.
/// let mut field = vec![1.0_f64; 1000];
/// let start = NonNull::from(&mut field[0]).cast();
/// // SAFETY: `field` outlives the requests, and nobody writes to it meanwhile.
/// let field = unsafe { ProgramMemory::new(start, 8000, false) };
/// assert!(!field.is_writable());
/// ```
#[derive(Debug)]
pub struct ProgramMemory {
    start: NonNull<u8>,
    length: usize,
    writable: bool,
}

impl ProgramMemory {
    /// A range; `writable`: reads may fill it.
    ///
    /// # Safety
    /// The memory exists, and may be written if `writable`, until this was dropped and all requests that name it have ended. The
    /// bytes of a request under way are the request's: nobody writes to them, or reads what a read fills.
    pub unsafe fn new(start: NonNull<u8>, length: usize, writable: bool) -> Self {
        Self {
            start,
            length,
            writable,
        }
    }

    /// Memory that this program never gives back. Do not look at bytes that a read is filling.
    pub fn of(cells: &'static [Cell<u8>]) -> Self {
        Self {
            start: NonNull::from(cells).cast(),
            length: cells.len(),
            writable: true,
        }
    }

    /// The bytes from an address on; none where some of them are not of it.
    #[inline]
    pub fn span(&self, address: u64, length: u64) -> Option<MemorySpan> {
        let offset = address.wrapping_sub(self.start.addr().get() as u64);
        let size = self.length as u64;
        if length > size || offset > size - length {
            return None;
        }
        // SAFETY: within the range, or just behind it.
        let start = unsafe { self.start.add(offset as usize) };
        Some(MemorySpan {
            start,
            length: length as usize,
            writable: self.writable,
        })
    }

    /// Whether reads may fill it.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.writable
    }
}

/// Bytes of a [`ProgramMemory`], in use by a request until it ends. Those of memory that is not writable must only be
/// read.
#[derive(Debug, Clone, Copy)]
pub struct MemorySpan {
    start: NonNull<u8>,
    length: usize,
    writable: bool,
}

impl MemorySpan {
    /// Their begin.
    #[inline]
    pub fn start(self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Their number.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> usize {
        self.length
    }

    /// Fills them, as far as there are as many, and if they may be written.
    #[inline]
    pub fn fill(self, from: &[u8]) {
        let length = match self.writable {
            true => self.length.min(from.len()),
            false => 0,
        };
        // SAFETY: as many are of a `Memory` that may be written, which who has made that promises; nothing borrows them.
        unsafe { std::ptr::copy(from.as_ptr(), self.start(), length) };
    }

    /// Copies them, as far as there is space.
    #[inline]
    pub fn copy_to(self, to: &mut [u8]) {
        let length = self.length.min(to.len());
        // SAFETY: as above.
        unsafe { std::ptr::copy(self.start(), to.as_mut_ptr(), length) };
    }

    /// The first of them, and the others; all are the first if there are not as many.
    #[inline]
    pub fn split(self, at: usize) -> (Self, Self) {
        let at = at.min(self.length);
        // SAFETY: within the range, or just behind it.
        let rest = unsafe { self.start.add(at) };
        let first = Self { length: at, ..self };
        let rest = Self {
            start: rest,
            length: self.length - at,
            ..self
        };
        (first, rest)
    }
}
