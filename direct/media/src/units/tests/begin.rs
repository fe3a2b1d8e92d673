//! A process begins to use a file while the system still writes data of a killed program.

use crate::units::layout::{GATE, UnitLayout};
use crate::units::recover::write_all;
use crate::units::{Units, Using, reopened};
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, pread};
use std::path::Path;
use std::time::{Duration, Instant};
use tarn_sys::lock::{RangeLockMode, held, hold};

const UNIT: u64 = 4096;
const FROM: u64 = 2 << 20;
const SIZE: u64 = 8 * UNIT;
const USING: Using = Using {
    from: FROM,
    unit: UNIT as u32,
    identity: 5,
    writable: true,
    guarded: false,
};
const LAYOUT: UnitLayout = UnitLayout {
    unit: UNIT,
    from: FROM,
    identity: 5,
};

fn begin(file: &OwnedFd) -> Result<Units, Errno> {
    let own = reopened(file, true).unwrap();
    Units::new(own, Path::new("units"), USING, SIZE).map_err(|e| match e {
        tarn_ports::MediumError::Io { source, .. } => Errno::from_io_error(&source).unwrap(),
        other => panic!("{other}"),
    })
}

/// A whole shadow of unit 3.
fn shadow(byte: u8) -> Vec<u8> {
    let mut slot = vec![byte; 2 * UNIT as usize];
    LAYOUT.frame(3, &mut slot);
    slot
}

fn unit(file: &OwnedFd) -> u8 {
    let mut byte = [0];
    assert_eq!(pread(file, &mut byte, FROM + 3 * UNIT), Ok(1));
    byte[0]
}

#[test]
fn waits_for_what_a_killed_program_still_writes() {
    let file: OwnedFd = tempfile::tempfile().unwrap().into();
    fallocate(&file, FallocateFlags::empty(), 0, FROM + SIZE).unwrap();
    // Of the dead program there is only what io_uring holds: an open file, which has locked a slot.
    let dead = reopened(&file, true).unwrap();
    let lock = LAYOUT.locks(3..4);
    assert_eq!(hold(&dead, &lock, RangeLockMode::Alone), Ok(true));
    let place = LAYOUT.place(3..4).start;
    write_all(&file, place, &shadow(1)).unwrap();
    std::thread::scope(|threads| {
        let begun = threads.spawn(|| begin(&file).map(drop));
        let until = Instant::now() + Duration::from_secs(60);
        while held(&file, &GATE).unwrap().is_none() && !begun.is_finished() {
            assert!(Instant::now() < until, "it does not begin");
        }
        write_all(&dead, place, &shadow(2)).unwrap();
        assert!(!begun.is_finished(), "it has not waited");
        drop(dead);
        assert_eq!(begun.join().unwrap(), Ok(()));
    });
    assert_eq!(unit(&file), 2);
    assert_eq!(held(&file, &LAYOUT.all_locks()), Ok(None));
}

/// Not for ever: a disk may never answer.
#[test]
fn is_refused_where_that_never_ends() {
    let file: OwnedFd = tempfile::tempfile().unwrap().into();
    fallocate(&file, FallocateFlags::empty(), 0, FROM + SIZE).unwrap();
    let dead = reopened(&file, true).unwrap();
    assert_eq!(
        hold(&dead, &LAYOUT.locks(0..1), RangeLockMode::Shared),
        Ok(true)
    );
    assert_eq!(begin(&file).map(drop), Err(Errno::BUSY));
    drop(dead);
    assert_eq!(begin(&file).map(drop), Ok(()));
}
