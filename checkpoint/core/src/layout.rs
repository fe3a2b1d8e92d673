//! How a version is stored in its slot of the arena, and which of it is copied by whom: a row of jobs, of which the tier's workers take the
//! first and memory's worker the last, until they meet. So each does as much as it can, whatever the rates are.

use crate::manifest::{CHUNK, ObjectPiece, PieceLocation};
use std::ops::Range;

/// Bytes that are copied in one go.
pub const JOB: u64 = 4 * CHUNK;
/// Objects of so many bytes begin at a page of their own, so that they can be mapped.
const PAGE: u64 = 4 << 10;
/// The others begin at a line of the caches.
const LINE: u64 = 64;

/// The begins of objects of these sizes in a slot, and the slot's length.
pub fn slot(sizes: impl IntoIterator<Item = u64>) -> Option<(Vec<u64>, u64)> {
    let mut end = 0u64;
    let mut places = Vec::new();
    for size in sizes {
        let unit = if size >= PAGE { PAGE } else { LINE };
        let at = end.checked_next_multiple_of(unit)?;
        end = at.checked_add(size)?;
        places.push(at);
    }
    Some((places, end))
}

/// Some chunks of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkRun {
    /// The object's number, in the order of the slot.
    pub object: usize,
    /// Its range of the object's bytes; begins at a chunk.
    pub bytes: Range<u64>,
    /// Their begin in the row of all jobs, each a multiple of a line long.
    pub at: u64,
}

/// The jobs of objects of these sizes, and how long their row is. Chunks of an object for which `skip` is true were copied before.
pub fn jobs(sizes: &[u64], skip: impl Fn(usize, u64) -> bool) -> (Vec<ChunkRun>, u64) {
    let mut jobs: Vec<ChunkRun> = Vec::new();
    let mut row = 0u64;
    for (object, &size) in sizes.iter().enumerate() {
        for chunk in 0..ObjectPiece::chunks(size) {
            if skip(object, chunk) {
                continue;
            }
            let bytes = chunk * CHUNK..size.min((chunk + 1) * CHUNK);
            let length = (bytes.end - bytes.start).next_multiple_of(LINE);
            match jobs.last_mut() {
                Some(last)
                    if last.object == object
                        && last.bytes.end == bytes.start
                        && bytes.end - last.bytes.start <= JOB =>
                {
                    last.bytes.end = bytes.end;
                }
                _ => jobs.push(ChunkRun {
                    object,
                    bytes,
                    at: row,
                }),
            }
            row += length;
        }
    }
    (jobs, row)
}

/// The place of a job's bytes in the staging file, which has so much space for a row that is so long: its end is the row's end.
/// None if it does not fit, and with it none of the jobs before.
pub fn staged(job: &ChunkRun, row: u64, capacity: u64) -> Option<u64> {
    (capacity + job.at).checked_sub(row)
}

/// An object's pieces, made of its chunks: where each is stored, and its checksum.
pub fn pieces(
    size: u64,
    chunks: impl IntoIterator<Item = (PieceLocation, u64)>,
) -> Vec<ObjectPiece> {
    let mut pieces: Vec<ObjectPiece> = Vec::new();
    let mut left = size;
    for (place, sum) in chunks {
        let length = left.min(CHUNK);
        left -= length;
        match pieces.last_mut() {
            Some(last) if follows(last, place) => {
                last.length += length;
                last.sums.push(sum);
            }
            _ => pieces.push(ObjectPiece {
                length,
                place,
                sums: vec![sum],
            }),
        }
    }
    debug_assert_eq!(left, 0, "chunks of an object are missing");
    pieces
}

/// Whether a chunk continues where a piece ends.
fn follows(piece: &ObjectPiece, place: PieceLocation) -> bool {
    match (piece.place, place) {
        (PieceLocation::Arena(first), PieceLocation::Arena(next))
        | (PieceLocation::Staged(first), PieceLocation::Staged(next)) => {
            first + piece.length == next
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn large_objects_begin_at_pages() {
        assert_eq!(slot([]), Some((vec![], 0)));
        assert_eq!(
            slot([10, 100, 5000, 1]),
            Some((vec![0, 64, 4096, 9152], 9153))
        );
        assert_eq!(slot([u64::MAX, 1]), None);
    }

    #[test]
    fn chunks_that_lie_behind_each_other_are_one_piece() {
        let size = 2 * CHUNK + 5;
        let all = [
            (PieceLocation::Arena(1 << 20), 1),
            (PieceLocation::Arena((1 << 20) + CHUNK), 2),
            (PieceLocation::Staged(0), 3),
        ];
        let found = pieces(size, all);
        let lengths: Vec<u64> = found.iter().map(|p| p.length).collect();
        assert_eq!(lengths, [2 * CHUNK, 5]);
        assert_eq!(found[0].sums, [1, 2]);
    }

    proptest! {
        /// Each chunk that is not skipped is in one job, jobs are in order, and those that are staged fit and do not overlap.
        #[test]
        fn jobs_are_all_there_is_to_copy(
            sizes in proptest::collection::vec(0..12 * CHUNK, 0..6),
            skipped in proptest::collection::btree_set((0usize..6, 0u64..12), 0..30),
            share in 0.0..=1.2,
        ) {
            let skip = |object, chunk| skipped.contains(&(object, chunk));
            let (jobs, row) = jobs(&sizes, skip);
            for (object, &size) in sizes.iter().enumerate() {
                for chunk in 0..ObjectPiece::chunks(size) {
                    let has = |j: &&ChunkRun| j.object == object && j.bytes.contains(&(chunk * CHUNK));
                    prop_assert_eq!(jobs.iter().filter(has).count(), usize::from(!skip(object, chunk)));
                }
            }
            let capacity = ((row as f64 * share) as u64).next_multiple_of(64);
            let mut before = None;
            for job in &jobs {
                prop_assert!(job.bytes.start % CHUNK == 0 && job.bytes.end - job.bytes.start <= JOB);
                let at = staged(job, row, capacity);
                prop_assert!(at.is_some() || before.is_none());
                if let Some(at) = at {
                    prop_assert!(before.is_none_or(|end| end <= at) && at % 64 == 0);
                    before = Some(at + job.bytes.end - job.bytes.start);
                    prop_assert!(before <= Some(capacity));
                }
            }
        }
    }
}
