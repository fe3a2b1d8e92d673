//! The kernel's interfaces that this needs. Headers older than Linux 6.7 lack them (Debian 12 has those of 6.1), so they are here, from
//! `include/uapi/linux/userfaultfd.h` and `include/uapi/linux/fs.h` of 6.7.

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::ioctl::{Opcode, opcode};
use std::io;
use std::ops::Range;

/// `UFFD_API`.
const API: u64 = 0xaa;
/// The letter of userfaultfd's ioctls, `UFFDIO`.
const UFFDIO: u8 = 0xaa;
/// `UFFD_FEATURE_WP_UNPOPULATED`: pages that were never touched are protected too.
const WP_UNPOPULATED: u64 = 1 << 13;
/// `UFFD_FEATURE_WP_ASYNC`: the kernel takes the protection off by itself.
const WP_ASYNC: u64 = 1 << 15;
/// `UFFDIO_REGISTER_MODE_WP`.
const MODE_WP: u64 = 1 << 1;

/// `PAGEMAP_SCAN`.
const SCAN: Opcode = opcode::read_write::<Scan>(b'f', 16);
/// `PM_SCAN_WP_MATCHING`: protects matching pages, in the same step in which it looks at them.
const PROTECT: u64 = 1 << 0;
/// `PM_SCAN_CHECK_WPASYNC`: fails where memory is not registered.
const CHECK: u64 = 1 << 1;
/// `PAGE_IS_WRITTEN`: not protected (any more).
const WRITTEN: u64 = 1 << 1;
/// `PAGE_IS_PRESENT`.
const PRESENT: u64 = 1 << 3;
/// `PAGE_IS_SWAPPED`: in swap, or never touched and protected.
const SWAPPED: u64 = 1 << 4;

/// Regions that one call lists.
const REGIONS: usize = 512;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
struct UffdRange {
    start: u64,
    len: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    pages: UffdRange,
    mode: u64,
    ioctls: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// The pages that a scan is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanTarget {
    /// Pages that lost their protection.
    Written,
    /// Pages that neither have memory nor are protected: they were given back, and are zero. Where a whole page of page tables
    /// went with them, kernels before the middle of 2026 do not call them written (Linux commit 40de8160ca7f).
    Empty,
}

/// Asks a new userfaultfd for the features.
pub(crate) fn negotiate(faults: &OwnedFd) -> io::Result<()> {
    let mut api = Api {
        api: API,
        features: WP_UNPOPULATED | WP_ASYNC,
        ioctls: 0,
    };
    // SAFETY: UFFDIO_API reads and writes a uffdio_api, and changes nothing but this descriptor.
    unsafe { ioctl(faults, opcode::read_write::<Api>(UFFDIO, 0x3f), &mut api) }.map(drop)
}

/// Writes to these pages can be tracked from now on. Pages that are registered already stay as they are.
///
/// # Safety
/// They are memory that may be tracked.
pub(crate) unsafe fn register(faults: &OwnedFd, pages: &Range<usize>) -> io::Result<()> {
    let mut register = Register {
        pages: UffdRange::of(pages),
        mode: MODE_WP,
        ioctls: 0,
    };
    let code = opcode::read_write::<Register>(UFFDIO, 0x00);
    // SAFETY: UFFDIO_REGISTER reads and writes a uffdio_register. With WP_ASYNC nobody ever waits for this descriptor to be read.
    unsafe { ioctl(faults, code, &mut register) }.map(drop)
}

/// Takes protection and registration off.
///
/// # Safety
/// As for [`register`].
pub(crate) unsafe fn unregister(faults: &OwnedFd, pages: &Range<usize>) -> io::Result<()> {
    let code = opcode::read::<UffdRange>(UFFDIO, 0x01);
    // SAFETY: UFFDIO_UNREGISTER reads a uffdio_range.
    unsafe { ioctl(faults, code, &mut UffdRange::of(pages)) }.map(drop)
}

/// Protects registered pages, those without memory too. Quicker than `UFFDIO_WRITEPROTECT`, above all where most are protected, and it
/// fails when something is not registered.
///
/// # Safety
/// As for [`register`].
pub(crate) unsafe fn protect(pagemap: &OwnedFd, pages: &Range<usize>) -> io::Result<()> {
    let mut scan = Scan::of(PROTECT | CHECK, pages.start as u64, pages);
    // SAFETY: PAGEMAP_SCAN reads and writes a pm_scan_arg; it names no memory to write to.
    unsafe { ioctl(pagemap, SCAN, &mut scan) }?;
    scan.done(pages)
}

/// Appends which of the registered pages are such, in order; `again`: and protects them.
///
/// # Safety
/// As for [`register`].
pub(crate) unsafe fn scan(
    pagemap: &OwnedFd,
    pages: &Range<usize>,
    which: ScanTarget,
    again: bool,
    found: &mut Vec<Range<usize>>,
) -> io::Result<()> {
    let mut regions = [PageRegion {
        start: 0,
        end: 0,
        categories: 0,
    }; REGIONS];
    let mut at = pages.start as u64;
    while at < pages.end as u64 {
        let flags = if again { PROTECT | CHECK } else { CHECK };
        let mut scan = Scan {
            vec: regions.as_mut_ptr() as u64,
            vec_len: REGIONS as u64,
            ..Scan::of(flags, at, pages)
        };
        match which {
            // Exactly these masks: with others, such kernels call other pages clean too that were given back (07b4377bdbe7).
            ScanTarget::Written => {
                scan.category_mask = WRITTEN;
                scan.return_mask = WRITTEN;
            }
            ScanTarget::Empty => {
                scan.category_inverted = PRESENT | SWAPPED;
                scan.category_mask = PRESENT | SWAPPED;
            }
        }
        // SAFETY: PAGEMAP_SCAN reads and writes a pm_scan_arg, and writes up to `vec_len` regions to `vec`, which live.
        let listed = unsafe { ioctl(pagemap, SCAN, &mut scan) }?;
        let listed = &regions[..listed.min(REGIONS)];
        found.extend(listed.iter().map(|r| r.start as usize..r.end as usize));
        if scan.walk_end <= at {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        at = scan.walk_end;
    }
    Ok(())
}

impl UffdRange {
    fn of(pages: &Range<usize>) -> Self {
        Self {
            start: pages.start as u64,
            len: pages.len() as u64,
        }
    }
}

impl Scan {
    /// All pages from `at` on, and no list of them.
    fn of(flags: u64, at: u64, pages: &Range<usize>) -> Self {
        Self {
            size: size_of::<Self>() as u64,
            flags,
            start: at,
            end: pages.end as u64,
            walk_end: 0,
            vec: 0,
            vec_len: 0,
            max_pages: 0,
            category_inverted: 0,
            category_mask: 0,
            category_anyof_mask: 0,
            return_mask: 0,
        }
    }

    fn done(&self, pages: &Range<usize>) -> io::Result<()> {
        match self.walk_end == pages.end as u64 {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// # Safety
/// `code` is one whose argument is a `T`, and its other effects are allowed.
unsafe fn ioctl<T>(file: &OwnedFd, code: Opcode, argument: &mut T) -> io::Result<usize> {
    // SAFETY: as above; the argument lives as long as the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), code as _, std::ptr::from_mut(argument)) };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
