//! Which bytes of a file readers have pinned: shared locks of byte ranges that belong to an open file (`F_OFD_SETLK`). The kernel drops
//! them as the file is closed, also when the process is killed, and knows them all: nothing of it is stored anywhere.

use rustix::fd::BorrowedFd;
use std::io;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};
use tarn_sys::lock::{RangeLockMode, held, hold};

/// Ranges that are distinguished; if there are more, all that was not looked at counts as pinned.
const MAX_PINNED: usize = 1024;

/// Pins a range for as long as this file is open anywhere. It must be open for reading.
pub(crate) fn pin(file: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<()> {
    if range.is_empty() {
        // To lock no bytes is to lock all to the end of the file.
        return Ok(());
    }
    if !hold(file, range, RangeLockMode::Shared)? {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    // Later reads see content from before a writer saw the lock, or the writer's own earlier writes: each side publishes first
    // and looks then.
    fence(Ordering::SeqCst);
    Ok(())
}

/// The parts of a range that others have pinned, by any lock.
pub(crate) fn pinned(file: BorrowedFd<'_>, range: Range<u64>) -> io::Result<Vec<Range<u64>>> {
    fence(Ordering::SeqCst);
    let mut pinned = Vec::new();
    let mut left = vec![range];
    while let Some(range) = left.pop() {
        if range.is_empty() {
            continue;
        }
        // The kernel reports any lock there, not the first: the ranges on both sides of it are queried too.
        let Some(found) = locked(file, &range)? else {
            continue;
        };
        left.push(range.start..found.start);
        left.push(found.end..range.end);
        pinned.push(found);
        if pinned.len() == MAX_PINNED {
            pinned.append(&mut left);
        }
    }
    Ok(pinned)
}

/// Some of a range that another open file has locked.
fn locked(file: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<Option<Range<u64>>> {
    let found = match held(file, range).map_err(io::Error::from) {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(None),
        // Without such locks nobody has one.
        Err(e) if is_unsupported(&e) => return Ok(None),
        Err(e) => return Err(e),
    };
    let some = found.start.max(range.start)..found.end.min(range.end);
    // A lock that is none of the range's would be requested again and again.
    (!some.is_empty())
        .then_some(Some(some))
        .ok_or_else(|| io::Error::other("the system reports a lock that was not requested"))
}

fn is_unsupported(error: &io::Error) -> bool {
    let none = [libc::EINVAL, libc::ENOSYS, libc::EOPNOTSUPP];
    error.raw_os_error().is_some_and(|e| none.contains(&e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use std::fs::File;

    fn sorted(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
        ranges.sort_by_key(|r| r.start);
        ranges
    }

    /// The kernel keeps locks by their owners: the first that it reports need not be the first of the file.
    #[test]
    fn all_that_others_have_pinned_is_found_and_gone_with_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [0; 4096]).unwrap();
        let writer = File::options().read(true).write(true).open(&path).unwrap();
        let all = || sorted(pinned(writer.as_fd(), 0..4096).unwrap());
        assert_eq!(all(), []);
        let reader = |ranges: &[Range<u64>]| {
            let file = File::open(&path).unwrap();
            let fd = file.as_fd();
            ranges.iter().for_each(|range| pin(fd, range).unwrap());
            file
        };
        let first = reader(&[2000..3000, 100..200]);
        let second = reader(&[500..600, 1000..1000, 2500..2600]);
        let third = reader(&[1900..2100, 1950..2000]);
        assert_eq!(
            all().iter().map(|r| r.end - r.start).sum::<u64>(),
            100 + 100 + 1100
        );
        let has = |at: u64| all().iter().any(|r| r.contains(&at));
        assert!([100, 199, 500, 599, 1900, 2550, 2999].into_iter().all(has));
        assert!(![99, 200, 499, 600, 1899, 3000].into_iter().any(has));
        // Of a part, only what is in it.
        assert_eq!(
            pinned(writer.as_fd(), 150..550).unwrap(),
            [150..200, 500..550]
        );
        drop((first, third));
        assert_eq!(all(), [500..600, 2500..2600]);
        drop(second);
        assert_eq!(all(), []);
        // All to the end, wherever that is.
        let whole = File::open(&path).unwrap();
        assert!(hold(&whole, &(50..50), RangeLockMode::Shared).unwrap());
        let rest = pinned(writer.as_fd(), 0..1 << 40).unwrap();
        assert_eq!((rest.len(), &rest[0]), (1, &(50..1 << 40)));
    }

    #[test]
    fn more_than_can_be_told_apart_count_as_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, []).unwrap();
        let (writer, reader) = (
            File::options().write(true).open(&path).unwrap(),
            File::open(&path).unwrap(),
        );
        for at in 0..MAX_PINNED as u64 + 10 {
            pin(reader.as_fd(), &(at * 10..at * 10 + 1)).unwrap();
        }
        let found = pinned(writer.as_fd(), 0..1 << 20).unwrap();
        for at in 0..MAX_PINNED as u64 + 10 {
            assert!(found.iter().any(|r| r.contains(&(at * 10))), "{at}");
        }
    }
}
