//! What of an arena is free: what nothing leads to. Nowhere is it stored.

use std::ops::Range;

/// Where extents begin: before it are the header and the superblocks.
pub const FIRST: u64 = 64 << 10;
/// Extents begin at multiples of this.
pub const PAGE: u64 = 4 << 10;
/// Those that are as large begin at multiples of this, so that they can be mapped by large pages.
pub const LARGE: u64 = 2 << 20;

/// The free ranges of an arena of so many bytes, of which these are taken (in any order, overlapping or not).
pub fn free(size: u64, taken: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut taken: Vec<Range<u64>> = taken.into_iter().filter(|r| r.start < r.end).collect();
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
        free.windows(2).all(|pair| pair[0].end < pair[1].start),
        "free ranges touch or overlap"
    );
    free
}

/// Takes extents of these lengths; where they begin, in the same order. None if they do not fit: then nothing is taken.
pub fn take(free: &mut Vec<Range<u64>>, lengths: &[u64]) -> Option<Vec<u64>> {
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
        assert_eq!(free(1 << 20, []), [all]);
        let taken = [FIRST + 100..FIRST + 200, FIRST + 150..FIRST + 300, 0..10];
        assert_eq!(
            free(1 << 20, taken),
            [FIRST..FIRST + 100, FIRST + 300..1 << 20]
        );
        assert_eq!(free(1 << 20, Some(0..1 << 20)), []);
        assert_eq!(free(100, []), []);
    }

    #[test]
    fn what_is_empty_takes_nothing() {
        let mut left = free(4 << 20, []);
        assert_eq!(take(&mut left, &[1, 0]), Some(vec![FIRST, FIRST]));
        let rest = FIRST + 1..4 << 20;
        assert_eq!(left, [rest]);
    }

    proptest! {
        /// Extents never overlap, begin where they must, and whatever fits into one range is found.
        #[test]
        fn extents_are_apart(lengths in proptest::collection::vec(0u64..3 << 20, 0..20), size in FIRST..64 << 20) {
            let mut left = free(size, []);
            let before = left.clone();
            match take(&mut left, &lengths) {
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
                    prop_assert_eq!(&free(size, ranges.iter().cloned()), &left);
                    ranges.sort_by_key(|r| r.start);
                    prop_assert!(ranges.windows(2).all(|w| w[0].end <= w[1].start));
                }
            }
        }
    }
}
