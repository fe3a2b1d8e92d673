//! The free space of an arena: all that no version leads to. It is computed, not stored.

use std::ops::Range;

/// The begin of extents: before it are the header and the superblocks.
pub const FIRST: u64 = 64 << 10;
/// Extents begin at multiples of this.
pub const PAGE: u64 = 4 << 10;
/// Those that are as large begin at multiples of this, so that they can be mapped by large pages.
pub const LARGE: u64 = 2 << 20;

/// The free ranges of an arena of `size` bytes, of which these are taken (in any order, overlapping or not). Taken bytes beyond the
/// end do not count: readers of other processes may pin any bytes.
pub fn free_ranges(size: u64, taken: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let within = |r: Range<u64>| r.start.min(size)..r.end.min(size);
    let mut taken: Vec<Range<u64>> = taken
        .into_iter()
        .map(within)
        .filter(|r| r.start < r.end)
        .collect();
    taken.sort_by_key(|r| r.start);
    let mut free = Vec::new();
    let mut at = FIRST;
    for range in taken {
        if range.start > at {
            free.push(at..range.start);
        }
        at = at.max(range.end);
    }
    if at < size {
        free.push(at..size);
    }
    debug_assert!(
        free.last().is_none_or(|last| last.end <= size),
        "a free range ends beyond the arena"
    );
    debug_assert!(
        free.windows(2).all(|pair| pair[0].end < pair[1].start),
        "free ranges touch or overlap"
    );
    free
}

/// Takes extents of these lengths; where they begin, in the same order. None if they do not fit: then nothing is taken.
pub fn take_extents(free: &mut Vec<Range<u64>>, lengths: &[u64]) -> Option<Vec<u64>> {
    let mut left = free.clone();
    let mut places = Vec::with_capacity(lengths.len());
    for length in lengths {
        if *length == 0 {
            places.push(FIRST); // it takes nothing, and so parts no range
            continue;
        }
        let unit = if *length >= LARGE { LARGE } else { PAGE };
        let fits = |r: &Range<u64>| {
            let start = r.start.checked_next_multiple_of(unit)?;
            (start.checked_add(*length)? <= r.end).then_some(start)
        };
        let (at, start) = left
            .iter()
            .enumerate()
            .find_map(|(at, r)| Some((at, fits(r)?)))?;
        let range = left[at].clone();
        let end = start + length;
        left.splice(
            at..=at,
            [range.start..start, end..range.end]
                .into_iter()
                .filter(|r| r.start < r.end),
        );
        places.push(start);
    }
    debug_assert_eq!(
        bytes(free) - bytes(&left),
        lengths.iter().sum::<u64>(),
        "extents that were taken are not what is missing"
    );
    *free = left;
    Some(places)
}

/// Whether no byte is in ranges of both.
pub fn are_apart(
    one: impl IntoIterator<Item = Range<u64>>,
    other: impl IntoIterator<Item = Range<u64>>,
) -> bool {
    let one = one.into_iter().map(|range| (range, 0));
    let other = other.into_iter().map(|range| (range, 1));
    let mut all: Vec<(Range<u64>, usize)> = one.chain(other).collect();
    all.retain(|(range, _)| range.start < range.end);
    all.sort_by_key(|(range, _)| range.start);
    // The end of each side's ranges so far.
    let mut ends = [0; 2];
    all.into_iter().all(|(range, side)| {
        ends[side] = ends[side].max(range.end);
        range.start >= ends[1 - side]
    })
}

fn bytes(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_not_taken_is_free() {
        let all = FIRST..1 << 20;
        let all_of_it = [all];
        assert_eq!(free_ranges(1 << 20, []), all_of_it);
        let taken = [FIRST + 100..FIRST + 200, FIRST + 150..FIRST + 300, 0..10];
        assert_eq!(
            free_ranges(1 << 20, taken),
            [FIRST..FIRST + 100, FIRST + 300..1 << 20]
        );
        assert_eq!(free_ranges(1 << 20, Some(0..1 << 20)), []);
        assert_eq!(free_ranges(100, []), []);
        let beyond = [2 << 20..3 << 20, FIRST + 100..u64::MAX];
        let before = FIRST..FIRST + 100;
        assert_eq!(free_ranges(1 << 20, beyond), [before]);
        assert_eq!(free_ranges(1 << 20, Some(2 << 20..3 << 20)), all_of_it);
    }

    #[test]
    fn ranges_that_share_a_byte_are_not_apart() {
        let one = [10..20, 30..40, 5..5];
        assert!(are_apart(one.clone(), [0..10, 20..30, 15..15, 40..50]));
        for other in [0..11, 19..20, 12..13, 39..60, 0..100] {
            assert!(!are_apart(one.clone(), [other.clone()]), "{other:?}");
            assert!(!are_apart([other], one.clone()));
        }
        assert!(are_apart([0..10, 0..20], []));
    }

    #[test]
    fn what_is_empty_takes_nothing() {
        let mut left = free_ranges(4 << 20, []);
        assert_eq!(take_extents(&mut left, &[1, 0]), Some(vec![FIRST, FIRST]));
        let rest = FIRST + 1..4 << 20;
        assert_eq!(left, [rest]);
    }

    proptest! {
        /// Extents never overlap, begin where they must, and everything that fits into one range is found.
        #[test]
        fn extents_are_apart(lengths in proptest::collection::vec(0u64..3 << 20, 0..20), size in FIRST..64 << 20) {
            let mut left = free_ranges(size, []);
            let before = left.clone();
            match take_extents(&mut left, &lengths) {
                None => {
                    prop_assert_eq!(left, before);
                    let most: u64 = lengths.iter().map(|l| l + LARGE).sum();
                    prop_assert!(most > size - FIRST, "they fit");
                }
                Some(places) => {
                    let mut ranges: Vec<_> = places.iter().zip(&lengths).map(|(at, len)| *at..at + len).collect();
                    for range in &ranges {
                        let unit = if range.end - range.start >= LARGE { LARGE } else { PAGE };
                        prop_assert!(range.start % unit == 0 && range.start >= FIRST && range.end <= size);
                    }
                    ranges.retain(|r| r.start < r.end);
                    prop_assert_eq!(&free_ranges(size, ranges.iter().cloned()), &left);
                    ranges.sort_by_key(|r| r.start);
                    prop_assert!(ranges.windows(2).all(|w| w[0].end <= w[1].start));
                }
            }
        }
    }
}
