//! Requests and completions, as C sees them too.

/// The operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Nothing.
    Nothing = 0,
    /// From a partition to the program's memory.
    Read = 1,
    /// From the program's memory to a partition.
    Write = 2,
    /// Adds to 8 bytes of a partition; the completion has the old number.
    FetchAdd = 3,
    /// Replaces 8 bytes of a partition if they are what is expected; the completion has what was there
    /// before.
    CompareSwap = 4,
    /// Bytes of requests that were completed before are persistent.
    Flush = 5,
}

impl Op {
    /// The operation of a number.
    #[inline]
    pub fn of(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Nothing,
            1 => Self::Read,
            2 => Self::Write,
            3 => Self::FetchAdd,
            4 => Self::CompareSwap,
            5 => Self::Flush,
            _ => return None,
        })
    }
}

/// When a write is complete.
///
/// # Examples
/// ```
/// use tarn_ring::Level;
///
/// assert_eq!(Level::of(0, Level::Visible), Some(Level::Visible)); // 0: the queue pair's own
/// assert_eq!(Level::of(3, Level::Visible), Some(Level::Persistent));
/// assert!(Level::Persistent > Level::Visible);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Its memory may be used again.
    Posted = 1,
    /// Every later read sees it.
    Visible = 2,
    /// It survives a loss of power.
    Persistent = 3,
}

impl Level {
    /// The level of a number; 0 gives `default`.
    #[inline]
    pub fn of(number: u8, default: Self) -> Option<Self> {
        Some(match number {
            0 => default,
            1 => Self::Posted,
            2 => Self::Visible,
            3 => Self::Persistent,
            _ => return None,
        })
    }
}

/// The bits of [`Sqe::flags`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags;

impl Flags {
    /// Success has no completion of its own.
    pub const UNSIGNALLED: u8 = 1;
    /// The next request begins when this one has succeeded.
    pub const LINKED: u8 = 2;
    /// Those that there are.
    pub const ALL: u8 = Self::UNSIGNALLED | Self::LINKED;
}

/// A request: `struct dsa_sqe`, 64 bytes. One of zeros does nothing.
///
/// # Examples
/// ```
/// use tarn_ring::{Flags, Level, Op, Sqe};
///
/// // Adds 1 to the 8 bytes at byte 64 of a region; the completion has the number 7 and what was there before.
/// let (storage, user_data) = (0x1_0000, 7);
/// let count = Sqe { op: Op::FetchAdd as u8, storage, offset: 64, length: 8, operand: 1, user_data, ..Sqe::default() };
/// assert!(count.is_signalled() && !count.is_linked());
///
/// // A write that is persistent before the next request begins, and has a completion only if it fails.
/// let write = Sqe {
///     op: Op::Write as u8,
///     flags: Flags::UNSIGNALLED | Flags::LINKED,
///     level: Level::Persistent as u8,
///     ..count
/// };
/// assert!(!write.is_signalled() && write.is_linked());
/// ```
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sqe {
    /// [`Op`].
    pub op: u8,
    /// [`Flags`].
    pub flags: u8,
    /// [`Level`] of a write; 0 for that of the queue pair.
    pub level: u8,
    /// 0.
    pub reserved: u8,
    /// The region of the program's memory.
    pub memory: u32,
    /// The region of a partition.
    pub storage: u32,
    /// 0.
    pub reserved2: u32,
    /// The address in the program's memory.
    pub address: u64,
    /// The offset in the region of the partition, in bytes from its beginning.
    pub offset: u64,
    /// The number of bytes: 8 for atomic operations.
    pub length: u64,
    /// The number to add, or the number that replaces the expected one.
    pub operand: u64,
    /// The expected number.
    pub expected: u64,
    /// The program's own: the completion has it.
    pub user_data: u64,
}

impl Sqe {
    /// Whether its success has a completion of its own.
    #[inline]
    pub fn is_signalled(&self) -> bool {
        self.flags & Flags::UNSIGNALLED == 0
    }

    /// Whether the next request waits for its success.
    #[inline]
    pub fn is_linked(&self) -> bool {
        self.flags & Flags::LINKED != 0
    }
}

/// A completion, the end of a request: `struct dsa_cqe`, 24 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cqe {
    /// Of the request.
    pub user_data: u64,
    /// Bytes of a read or write; the old number of atomic operations.
    pub value: u64,
    /// 0, or [`crate::StorageRequestError::code`].
    pub code: i32,
    /// 0.
    pub flags: u32,
}

impl Cqe {
    /// Makes a success a failure.
    pub fn fail(&mut self, code: i32) {
        if self.code == 0 {
            (self.code, self.value) = (code, 0);
        }
    }
}

const _: () = assert!(size_of::<Sqe>() == 64 && size_of::<Cqe>() == 24);
