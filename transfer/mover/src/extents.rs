//! The stretches of a sparse file that have data.

use crate::meta::FileStatus;
use rustix::fd::AsFd;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use tarn_types::bounds::MAX_EXTENTS;

/// Data extents (offset, length); empty for a file without holes.
pub(crate) fn of(fd: impl AsFd, status: &FileStatus) -> Result<Box<[(u64, u64)]>, Errno> {
    if !status.may_have_holes() {
        return Ok(Box::default());
    }
    let mut found = Vec::new();
    let mut at = 0;
    while at < status.size {
        let data = match seek(&fd, SeekFrom::Data(at)) {
            Ok(data) if data >= status.size => break,
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            // The file system does not report holes: all is data.
            Err(Errno::INVAL | Errno::NOTSUP) => return Ok(Box::default()),
            Err(errno) => return Err(errno),
        };
        let hole = seek(&fd, SeekFrom::Hole(data))?.min(status.size);
        if found.len() + 1 == MAX_EXTENTS {
            found.push((data, status.size - data));
            break;
        }
        // A file that shrinks meanwhile is found out when it is read.
        at = hole.max(data + 1);
        found.push((data, at - data));
    }
    match found[..] {
        // An empty list means "no holes": a file that is one hole says so with an extent of its last byte.
        [] => Ok([(status.size - 1, 1)].into()),
        [(0, len)] if len == status.size => Ok(Box::default()),
        _ => Ok(found.into()),
    }
}

/// The pieces of `offset..offset + len`: (is data, offset, length), in order.
pub(crate) fn pieces(extents: &[(u64, u64)], offset: u64, len: u64) -> Vec<(bool, u64, u64)> {
    let end = offset + len;
    if extents.is_empty() {
        return vec![(true, offset, len)];
    }
    let first = extents.partition_point(|&(o, l)| o + l <= offset);
    let mut pieces = Vec::new();
    let mut at = offset;
    for &(o, l) in &extents[first..] {
        if o >= end {
            break;
        }
        let (start, stop) = (o.max(at), (o + l).min(end));
        if start > at {
            pieces.push((false, at, start - at));
        }
        pieces.push((true, start, stop - start));
        at = stop;
    }
    if at < end {
        pieces.push((false, at, end - at));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_cover_the_range_once(
            gaps in proptest::collection::vec((0u64..50, 1u64..50), 0..12),
            offset in 0u64..300,
            len in 1u64..300,
        ) {
            let mut at = 0;
            let extents: Vec<_> = gaps.iter().map(|&(gap, l)| { let o = at + gap; at = o + l; (o, l) }).collect();
            let data = |b: u64| extents.is_empty() || extents.iter().any(|&(o, l)| (o..o + l).contains(&b));
            let mut next = offset;
            for (is_data, o, l) in pieces(&extents, offset, len) {
                prop_assert_eq!(o, next);
                prop_assert!(l > 0);
                prop_assert!((o..o + l).all(|b| data(b) == is_data));
                next = o + l;
            }
            prop_assert_eq!(next, offset + len);
        }
    }
}
