//! The system's reads and writes, and the ways to do them.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut, ReadWriteFlags, pread, preadv2, pwritev2};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;

/// One call. Its memory is the system's until its end was reported.
#[derive(Debug, Clone, Copy)]
pub(super) enum UnitIoCall {
    /// From a place of the file.
    Read { at: u64, to: *mut u8, length: usize },
    /// To a place of the file; `synced`: it ends when it is persistent.
    Write {
        at: u64,
        from: *const u8,
        length: usize,
        synced: bool,
    },
    /// All that was written is persistent.
    Sync,
}

impl UnitIoCall {
    /// Bytes.
    pub(super) fn length(&self) -> usize {
        match self {
            Self::Read { length, .. } | Self::Write { length, .. } => *length,
            Self::Sync => 0,
        }
    }

    /// The rest of it, if so many bytes were done.
    pub(super) fn after(self, done: usize) -> Self {
        match self {
            Self::Read { at, to, length } => Self::Read {
                at: at + done as u64,
                to: to.wrapping_add(done),
                length: length - done,
            },
            Self::Write {
                at,
                from,
                length,
                synced,
            } => Self::Write {
                at: at + done as u64,
                from: from.wrapping_add(done),
                length: length - done,
                synced,
            },
            Self::Sync => Self::Sync,
        }
    }
}

/// The end of a call: bytes.
pub(super) type UnitIoCompletion = (u32, Result<usize, Errno>);

/// An engine that does calls, each by a number that has no other one under way.
pub(super) trait UnitIoEngine: Debug + Send {
    /// Takes one.
    ///
    /// # Safety
    /// Its memory is there until its end was reported, and to be written where it is read to.
    unsafe fn begin(&mut self, number: u32, io: UnitIoCall);

    /// Starts the calls that were taken.
    fn enter(&mut self);

    /// The next end.
    fn ended(&mut self) -> Option<UnitIoCompletion>;

    /// Waits for an end, if there may be one: there may be none then.
    fn wait(&mut self);

    /// An eventfd is notified of ends that come later, from now on; false where it can not.
    fn notify(&mut self, event: BorrowedFd<'_>) -> bool;
}

/// Does them at once.
#[derive(Debug)]
pub(super) struct Blocking {
    file: Arc<OwnedFd>,
    ended: VecDeque<UnitIoCompletion>,
}

impl Blocking {
    pub(super) fn new(file: Arc<OwnedFd>) -> Self {
        let ended = VecDeque::new();
        Self { file, ended }
    }

    /// # Safety
    /// As [`UnitIoEngine::begin`].
    unsafe fn call(&self, io: UnitIoCall) -> Result<usize, Errno> {
        match io {
            UnitIoCall::Read { at, to, length } => {
                // SAFETY: as the caller says. Existing bytes are overwritten, and bytes are of any value.
                let to = unsafe { std::slice::from_raw_parts_mut(to, length) };
                preadv2(
                    &self.file,
                    &mut [IoSliceMut::new(to)],
                    at,
                    ReadWriteFlags::empty(),
                )
            }
            UnitIoCall::Write {
                at,
                from,
                length,
                synced,
            } => {
                let flags = match synced {
                    true => ReadWriteFlags::DSYNC,
                    false => ReadWriteFlags::empty(),
                };
                // SAFETY: as the caller says.
                let from = unsafe { std::slice::from_raw_parts(from, length) };
                pwritev2(&self.file, &[IoSlice::new(from)], at, flags)
            }
            UnitIoCall::Sync => rustix::fs::fdatasync(&self.file).map(|()| 0),
        }
    }
}

impl UnitIoEngine for Blocking {
    unsafe fn begin(&mut self, number: u32, io: UnitIoCall) {
        // SAFETY: as the caller says.
        let result = unsafe { self.call(io) };
        self.ended.push_back((number, result));
    }

    fn enter(&mut self) {}

    fn ended(&mut self) -> Option<UnitIoCompletion> {
        self.ended.pop_front()
    }

    fn wait(&mut self) {}

    fn notify(&mut self, _: BorrowedFd<'_>) -> bool {
        true
    }
}

/// Fills memory from a place of a file.
pub(super) fn read_all(file: impl AsFd, at: u64, to: &mut [u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < to.len() {
        match pread(&file, &mut to[done..], at + done as u64) {
            Ok(0) => return Err(Errno::NODATA),
            Ok(more) => done += more,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
