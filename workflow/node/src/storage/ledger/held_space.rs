//! Bytes that a run has on a tier, and those that it has claimed for what is to come.

/// No tier is so large. A claim beyond it is refused, so that no sum of claims and replicas overflows.
const MAX_BYTES: u64 = u64::MAX / 4;

/// Claimed bytes are released once, or become used bytes. Neither goes below zero.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeldSpace {
    used: u64,
    reserved: u64,
}

impl HeldSpace {
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    pub(super) fn total(&self) -> u64 {
        self.used + self.reserved
    }

    /// Claims bytes. False, and nothing is claimed, where no tier could hold that: sizes of files are whatever somebody wrote.
    #[must_use]
    pub(super) fn claim(&mut self, bytes: u64) -> bool {
        let reserved = self.reserved.checked_add(bytes);
        let Some(reserved) = reserved.filter(|all| *all <= MAX_BYTES) else {
            return false;
        };
        self.reserved = reserved;
        true
    }

    /// Gives back what was claimed.
    pub(super) fn release(&mut self, bytes: u64) {
        assert!(
            bytes <= self.reserved,
            "{bytes} bytes are given back to a tier of which {} are claimed",
            self.reserved
        );
        self.reserved -= bytes;
    }

    /// A replica takes `after` bytes in place of `before`; so many of them were `claimed`.
    pub(super) fn settle(&mut self, before: u64, after: u64, claimed: u64) {
        assert!(
            before <= self.used,
            "a replica of {before} bytes goes from a tier of which {} are used",
            self.used
        );
        self.release(claimed);
        let others = self.used - before;
        assert!(
            after <= MAX_BYTES && others <= MAX_BYTES,
            "a tier with {others} bytes gets a replica of {after}"
        );
        self.used = others + after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_claimed_becomes_used_or_is_given_back() {
        let mut space = HeldSpace::default();
        assert!(space.claim(10));
        space.settle(0, 7, 6);
        assert_eq!((space.used(), space.reserved()), (7, 4));
        space.settle(7, 0, 0);
        space.release(4);
        assert_eq!(space, HeldSpace::default());
        assert!(space.claim(5) && !space.claim(u64::MAX) && !space.claim(MAX_BYTES));
        assert_eq!(space.total(), 5);
    }

    #[test]
    #[should_panic(expected = "are claimed")]
    fn nothing_is_given_back_twice() {
        let mut space = HeldSpace::default();
        assert!(space.claim(1));
        space.release(1);
        space.release(1);
    }

    #[test]
    #[should_panic(expected = "are used")]
    fn no_replica_goes_twice() {
        let mut space = HeldSpace::default();
        space.settle(0, 3, 0);
        space.settle(3, 0, 0);
        space.settle(3, 0, 0);
    }
}
