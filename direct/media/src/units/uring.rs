//! Calls by an io_uring.

use super::engine::{UnitIoCall, UnitIoCompletion, UnitIoEngine};
use io_uring::{IoUring, opcode, squeue::Entry, types};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The file is the first that the ring knows.
const FILE: types::Fixed = types::Fixed(0);
/// The time between two looks for ends, if the ring itself is lost.
const BETWEEN: Duration = Duration::from_millis(1);

/// An io_uring of one file.
pub(super) struct Ring {
    ring: IoUring,
    /// The memory that is registered, by its addresses.
    registered: Range<usize>,
    /// The calls that were taken and not entered.
    fresh: VecDeque<u32>,
    /// The calls that have ended without the ring.
    refused: VecDeque<UnitIoCompletion>,
    /// In the kernel.
    under_way: u32,
    /// Open for as long as the ring is.
    _file: Arc<OwnedFd>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("fresh", &self.fresh)
            .field("under_way", &self.under_way)
            .finish_non_exhaustive()
    }
}

impl Ring {
    /// A ring for so many calls, and its memory.
    ///
    /// # Errors
    /// The system does not allow it, or does not know it.
    ///
    /// # Safety
    /// The pool is there until the ring was dropped.
    pub(super) unsafe fn new(
        file: Arc<OwnedFd>,
        calls: u32,
        pool: Range<usize>,
    ) -> io::Result<Self> {
        let ring = IoUring::new(calls)?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        let vector = libc::iovec {
            iov_base: pool.start as *mut _,
            iov_len: pool.len(),
        };
        // SAFETY: as the caller says.
        let registered = unsafe { ring.submitter().register_buffers(&[vector]) };
        Ok(Self {
            ring,
            // It counts as locked memory, which may be short: then it is memory as other is.
            registered: match registered {
                Ok(()) => pool,
                Err(_) => 0..0,
            },
            fresh: VecDeque::new(),
            refused: VecDeque::new(),
            under_way: 0,
            _file: file,
        })
    }

    fn entry(&self, io: UnitIoCall) -> Entry {
        let is_registered = |memory: *const u8| self.registered.contains(&memory.addr());
        match io {
            UnitIoCall::Read { at, to, length } => match is_registered(to) {
                true => opcode::ReadFixed::new(FILE, to, length as u32, 0)
                    .offset(at)
                    .build(),
                false => opcode::Read::new(FILE, to, length as u32)
                    .offset(at)
                    .build(),
            },
            UnitIoCall::Write {
                at,
                from,
                length,
                synced,
            } => {
                let flags = match synced {
                    true => libc::RWF_DSYNC,
                    false => 0,
                };
                match is_registered(from) {
                    true => opcode::WriteFixed::new(FILE, from, length as u32, 0)
                        .offset(at)
                        .rw_flags(flags)
                        .build(),
                    false => opcode::Write::new(FILE, from, length as u32)
                        .offset(at)
                        .rw_flags(flags)
                        .build(),
                }
            }
            UnitIoCall::Sync => opcode::Fsync::new(FILE)
                .flags(types::FsyncFlags::DATASYNC)
                .build(),
        }
    }

    fn submit(&mut self, wait: usize) {
        match self.ring.submit_and_wait(wait) {
            Ok(entered) => {
                self.fresh.drain(..entered.min(self.fresh.len()));
                self.under_way += entered as u32;
            }
            Err(e) => match e.raw_os_error().map(Errno::from_raw_os_error) {
                // Some memory is short, or ends are to be taken first: at the next time.
                Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
                // The program has closed the ring, as those do that close all that they have open.
                _ => {
                    let refused = self.fresh.drain(..).map(|number| (number, Err(Errno::IO)));
                    self.refused.extend(refused);
                    std::thread::sleep(BETWEEN);
                }
            },
        }
    }
}

impl UnitIoEngine for Ring {
    // SAFETY: the trait's: the memory is there until the number has ended.
    unsafe fn begin(&mut self, number: u32, io: UnitIoCall) {
        let entry = self.entry(io).user_data(number.into());
        // SAFETY: as the caller says; the file is registered.
        match unsafe { self.ring.submission().push(&entry) } {
            Ok(()) => self.fresh.push_back(number),
            Err(_) => self.refused.push_back((number, Err(Errno::IO))),
        }
    }

    fn enter(&mut self) {
        if !self.fresh.is_empty() {
            self.submit(0);
        }
    }

    fn ended(&mut self) -> Option<UnitIoCompletion> {
        if let Some(refused) = self.refused.pop_front() {
            return Some(refused);
        }
        let end = self.ring.completion().next()?;
        self.under_way -= 1;
        let result = match usize::try_from(end.result()) {
            Ok(bytes) => Ok(bytes),
            Err(_) => Err(Errno::from_raw_os_error(-end.result())),
        };
        Some((end.user_data() as u32, result))
    }

    fn wait(&mut self) {
        let is_waited_for =
            self.refused.is_empty() && self.under_way as usize + self.fresh.len() > 0;
        if is_waited_for && self.ring.completion().is_empty() {
            self.submit(1);
        }
    }

    fn notify(&mut self, event: BorrowedFd<'_>) -> bool {
        let submitter = self.ring.submitter();
        // Fails where there was none.
        let _ = submitter.unregister_eventfd();
        submitter.register_eventfd(event.as_raw_fd()).is_ok()
    }
}
