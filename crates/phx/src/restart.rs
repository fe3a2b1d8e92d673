//! Which version is restored: one that all ranks have.

use crate::arena::VersionId;
use std::collections::BTreeSet;

/// The newest version that every rank can restore: neither the least of their newest, which one of them may lack, nor the greatest.
pub fn newest_of_all<'a>(
    ranks: impl IntoIterator<Item = &'a BTreeSet<VersionId>>,
) -> Option<VersionId> {
    let mut ranks = ranks.into_iter();
    let first = ranks.next()?.clone();
    let common = ranks.fold(first, |common, rank| {
        common.intersection(rank).copied().collect()
    });
    common.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(of: &[(u64, u64)]) -> BTreeSet<VersionId> {
        let id = |(generation, number): &(u64, u64)| VersionId {
            generation: *generation,
            number: *number,
        };
        of.iter().map(id).collect()
    }

    #[test]
    fn it_is_one_that_all_have() {
        let newest = |ranks: &[&[(u64, u64)]]| {
            let ranks: Vec<_> = ranks.iter().map(|r| versions(r)).collect();
            newest_of_all(&ranks).map(|v| (v.generation, v.number))
        };
        assert_eq!(
            newest(&[&[(1, 4), (1, 5)], &[(1, 5), (1, 6)]]),
            Some((1, 5))
        );
        // The least of the newest is 5, and one rank has lost it.
        assert_eq!(
            newest(&[&[(1, 4), (1, 5)], &[(1, 4), (1, 6)]]),
            Some((1, 4))
        );
        // The same number of another start is another version.
        assert_eq!(newest(&[&[(1, 7)], &[(2, 7)]]), None);
        assert_eq!(
            newest(&[&[(1, 9), (2, 1)], &[(1, 9), (2, 1)]]),
            Some((2, 1))
        );
        assert_eq!(newest(&[&[(1, 1)], &[]]), None);
        assert_eq!(newest(&[]), None);
    }
}
