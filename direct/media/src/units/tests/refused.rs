//! Systems that allow no io_uring, or no `O_DIRECT`; calls that fail, and programs that do not look.

use crate::units::engine::{Blocking, UnitIoCall, UnitIoCompletion, UnitIoEngine};
use crate::units::{UnitStorage, Units, Using};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use rustix::io::Errno;
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tarn_ring::{MemorySpan, ProgramMemory, Storage, StorageRequestError, SubmitOutcome};

const UNIT: u64 = 8192;
const SIZE: u64 = 64 * UNIT;
const FROM: u64 = 2 << 20;
const TIMEOUT: Duration = Duration::from_secs(20);

/// A file of the disk where the tests' own are.
fn file() -> OwnedFd {
    let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR").to_owned() + "/../../target");
    let file: OwnedFd = file.unwrap().into();
    fallocate(&file, FallocateFlags::empty(), 0, FROM + SIZE).unwrap();
    file
}

fn units(file: &OwnedFd) -> Arc<Units> {
    let using = Using {
        from: FROM,
        unit: UNIT as u32,
        identity: 5,
        writable: true,
        guarded: true,
    };
    let own = super::super::reopened(file, true).unwrap();
    Arc::new(Units::new(own, Path::new("units"), using, SIZE).unwrap())
}

/// Memory that is never given back, aligned to pages but for some bytes.
fn memory(length: usize, skip: usize) -> (&'static [Cell<u8>], MemorySpan) {
    let cells: Box<[Cell<u8>]> = vec![Cell::new(0); length + 8192].into();
    let cells: &'static [Cell<u8>] = Box::leak(cells);
    let first = cells.as_ptr().addr().next_multiple_of(4096) - cells.as_ptr().addr() + skip;
    let cells = &cells[first..][..length];
    let span = ProgramMemory::of(cells).span(cells.as_ptr().addr() as u64, length as u64);
    (cells, span.unwrap())
}

fn bytes(from: &[u8], skip: usize) -> MemorySpan {
    let (cells, span) = memory(from.len(), skip);
    cells
        .iter()
        .zip(from)
        .for_each(|(cell, byte)| cell.set(*byte));
    span
}

fn end(queued: &mut UnitStorage, started: SubmitOutcome) -> Result<u64, StorageRequestError> {
    if let SubmitOutcome::Done(result) = started {
        return result;
    }
    queued.settle().unwrap();
    let until = Instant::now() + TIMEOUT;
    let mut ended = None;
    while ended.is_none() {
        assert!(Instant::now() < until, "it does not end");
        queued.reap(&mut |_, result| ended = Some(result));
    }
    ended.unwrap()
}

fn write(
    queued: &mut UnitStorage,
    at: u64,
    from: &[u8],
    skip: usize,
) -> Result<u64, StorageRequestError> {
    let started = queued.write(at, bytes(from, skip), false, 0);
    end(queued, started)
}

fn read(
    queued: &mut UnitStorage,
    at: u64,
    length: usize,
    skip: usize,
) -> Result<Vec<u8>, StorageRequestError> {
    let (cells, span) = memory(length, skip);
    let started = queued.read(at, span, 0);
    end(queued, started)?;
    Ok(cells.iter().map(Cell::get).collect())
}

/// All kinds of requests.
fn works(queued: &mut UnitStorage) {
    let all: Vec<u8> = (0..SIZE).map(|i| ((i * 31) >> 3) as u8).collect();
    for (at, length, skip) in [
        (0, SIZE, 0),
        (UNIT, 3 * UNIT, 7),
        (5, 20_000, 0),
        (100, 1, 3),
        (2 * UNIT - 1, 2, 0),
        (4096, 4096, 0),
    ] {
        let from = &all[at as usize..][..length as usize];
        assert_eq!(
            write(queued, at, from, skip),
            Ok(length),
            "{length} at {at}"
        );
        assert!(read(queued, at, length as usize, skip).unwrap() == from);
        assert!(read(queued, at, length as usize, 1).unwrap() == from);
    }
    assert!(read(queued, 0, SIZE as usize, 0).unwrap() == all);
    assert_eq!(write(queued, 0, &7_u64.to_ne_bytes(), 0), Ok(8));
    let (add, swap) = (queued.fetch_add(0, 3, 0), 10);
    assert_eq!(end(queued, add), Ok(7));
    let started = queued.compare_swap(0, 9, 1, 0);
    assert_eq!(end(queued, started), Ok(swap));
    let started = queued.compare_swap(0, 10, u64::MAX, 0);
    assert_eq!(end(queued, started), Ok(swap));
    let started = queued.flush(0);
    assert_eq!(end(queued, started), Ok(0));
    assert_eq!(read(queued, 0, 8, 0).unwrap(), [0xff; 8]);
    let started = queued.write(SIZE - 4, bytes(&[0; 5], 0), false, 0);
    assert_eq!(end(queued, started), Err(StorageRequestError::Invalid));
}

/// Has the system refuse some calls to this thread: `call`, if its second argument is `second`, and the third has some bits.
fn refuse(call: libc::c_long, second: Option<libc::c_int>, third: libc::c_int, errno: i32) {
    let statement = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let if_equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let if_set = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let refused = statement(answer, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32);
    let allowed = statement(answer, 0, 0, libc::SECCOMP_RET_ALLOW);
    let call = call as u32;
    let mut program = match second {
        None => vec![
            statement(load, 0, 0, 0),
            statement(if_equal, 0, 1, call),
            refused,
            allowed,
        ],
        Some(second) => vec![
            statement(load, 0, 0, 0),
            statement(if_equal, 0, 5, call),
            statement(load, 0, 0, 16 + 8),
            statement(if_equal, 0, 3, second as u32),
            statement(load, 0, 0, 16 + 2 * 8),
            statement(if_set, 0, 1, third as u32),
            refused,
            allowed,
        ],
    };
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the program is this function's, and the kernel copies it.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) == 0
    };
    assert!(refused, "{}", std::io::Error::last_os_error());
}

fn in_a_thread(of: impl FnOnce() + Send + 'static) {
    std::thread::spawn(of).join().unwrap();
}

#[test]
fn by_io_uring_and_without_the_page_cache_all_kinds_of_requests_work() {
    let units = units(&file());
    let mut queued = UnitStorage::new(&units, None).unwrap();
    works(&mut queued);
}

#[test]
fn without_io_uring_the_same_is_done_by_calls_that_block() {
    in_a_thread(|| {
        refuse(libc::SYS_io_uring_setup, None, 0, libc::EPERM);
        let units = units(&file());
        let mut queued = UnitStorage::new(&units, None).unwrap();
        assert!(format!("{:?}", queued.core).contains("Blocking"));
        works(&mut queued);
    });
}

#[test]
fn where_the_page_cache_cannot_be_avoided_it_is_used() {
    in_a_thread(|| {
        refuse(
            libc::SYS_fcntl,
            Some(libc::F_SETFL),
            libc::O_DIRECT,
            libc::EINVAL,
        );
        let units = units(&file());
        assert!(!units.direct);
        let mut queued = UnitStorage::new(&units, None).unwrap();
        works(&mut queued);
    });
}

/// Does so many calls, and none after.
#[derive(Debug)]
struct Failing {
    inner: Blocking,
    left: u32,
    failed: Vec<u32>,
}

impl UnitIoEngine for Failing {
    // SAFETY: the trait's: the memory is there until the number has ended.
    unsafe fn begin(&mut self, number: u32, io: UnitIoCall) {
        if self.left == 0 {
            return self.failed.push(number);
        }
        self.left -= 1;
        // SAFETY: as the caller says.
        unsafe { self.inner.begin(number, io) };
    }

    fn enter(&mut self) {}

    fn ended(&mut self) -> Option<UnitIoCompletion> {
        let failed = self.failed.pop().map(|number| (number, Err(Errno::IO)));
        failed.or_else(|| self.inner.ended())
    }

    fn wait(&mut self) {}

    fn notify(&mut self, _: BorrowedFd<'_>) -> bool {
        true
    }
}

#[test]
fn what_fails_is_told_and_the_next_one_deals_with_what_it_has_left() {
    let units = units(&file());
    let mut other = UnitStorage::new(&units, None).unwrap();
    // The unit is read, the shadow is written, the unit, and the slot is cleared.
    for calls in 0..=4 {
        let before = vec![calls as u8; UNIT as usize];
        assert_eq!(write(&mut other, 0, &before, 0), Ok(UNIT));
        let mut failing = UnitStorage::with(&units, None, |file, _| {
            Box::new(Failing {
                inner: Blocking::new(Arc::clone(file)),
                left: calls,
                failed: Vec::new(),
            })
        })
        .unwrap();
        let done = write(&mut failing, 8, &[0xaa; 8], 0);
        assert_eq!(
            done,
            if calls < 4 {
                Err(StorageRequestError::Io)
            } else {
                Ok(8)
            }
        );
        let marked = units.marks.is_set(0);
        assert_eq!(marked, (1..4).contains(&calls), "{calls}");
        // A part of the unit, of another one with the same slot, and whole units.
        match calls % 2 {
            0 => assert_eq!(write(&mut other, 16, &[0xbb; 8], 0), Ok(8)),
            _ => assert_eq!(write(&mut other, UNIT, &[0; UNIT as usize], 0), Ok(UNIT)),
        }
        let there = read(&mut other, 0, UNIT as usize, 0).unwrap();
        assert!(there[8..16] == [0xaa; 8] || calls < 4 && there[8..16] == before[8..16]);
        assert_eq!(there[24..], before[24..]);
        assert_eq!(there[..8], before[..8]);
    }
}

#[test]
fn a_program_that_does_not_look_keeps_nobody_waiting() {
    let units = units(&file());
    let mut idle = UnitStorage::new(&units, None).unwrap();
    for ticket in 0..8 {
        let (at, length) = match ticket % 2 {
            0 => (0, UNIT),
            _ => (64, 8),
        };
        let span = bytes(&vec![1; length as usize], 0);
        assert_eq!(idle.write(at, span, false, ticket), SubmitOutcome::Pending);
    }
    idle.settle().unwrap();
    let mut other = UnitStorage::new(&units, None).unwrap();
    assert_eq!(write(&mut other, 128, &[2; 8], 0), Ok(8));
    let mut ended = 0;
    let until = Instant::now() + TIMEOUT;
    while ended < 8 && Instant::now() < until {
        idle.reap(&mut |_, result| ended += u32::from(result.is_ok()));
    }
    assert_eq!(ended, 8);
}

#[test]
fn what_is_under_way_ends_before_the_hands_are_gone() {
    let units = units(&file());
    for _ in 0..20 {
        let mut queued = UnitStorage::new(&units, None).unwrap();
        let mut kept = Vec::new();
        for ticket in 0..200 {
            let span = bytes(&[3; 5000], ticket as usize % 2);
            kept.push((
                queued.write(u64::from(ticket) * 2000, span, true, ticket),
                span,
            ));
        }
        queued.settle().unwrap();
    }
    let mut queued = UnitStorage::new(&units, None).unwrap();
    // No lock is left, and no slot is wanted by anybody.
    assert_eq!(write(&mut queued, 0, &vec![0; SIZE as usize], 0), Ok(SIZE));
}

#[test]
fn a_file_that_was_made_shorter_is_broken() {
    for whole in [true, false] {
        let file = file();
        let units = units(&file);
        let mut queued = UnitStorage::new(&units, None).unwrap();
        assert_eq!(write(&mut queued, 0, &[1; 9000], 0), Ok(9000));
        ftruncate(&file, FROM + UNIT).unwrap();
        assert_eq!(read(&mut queued, 0, 100, 0).map(|read| read[0]), Ok(1));
        let done = match whole {
            true => write(&mut queued, 0, &[2; UNIT as usize], 0),
            false => read(&mut queued, UNIT, 100, 0).map(|_| 0),
        };
        assert_eq!(done, Err(StorageRequestError::Corrupt));
        assert_eq!(
            read(&mut queued, 0, 100, 0).map(drop),
            Err(StorageRequestError::Corrupt)
        );
        let flush = queued.flush(0);
        assert_eq!(end(&mut queued, flush), Err(StorageRequestError::Corrupt));
    }
}
