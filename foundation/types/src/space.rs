//! The account of the bytes of a store: a tier of a run, the tiers of a node of a simulated cluster, a store of a node of a
//! site. All three hosts of the planner count with it, so "is there space?" has one answer everywhere.

use crate::account::{add, sub};

/// The bytes of a tier, or of several tiers together.
///
/// # Examples
/// ```
/// use tarn_types::space::TierSpace;
///
/// let mut space = TierSpace::new(100);
/// space.occupy(60);
/// space.reserve(30);
/// assert_eq!((space.free(), space.lack(15)), (10, 5));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierSpace {
    capacity: u64,
    /// Bytes of replicas that are present, arrive or are being removed.
    used: u64,
    /// Bytes reserved for data that has yet to be written.
    reserved: u64,
}

impl TierSpace {
    /// An empty tier.
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            ..Self::default()
        }
    }

    /// All of its bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// It may become smaller than the bytes taken.
    pub fn set_capacity(&mut self, bytes: u64) {
        self.capacity = bytes;
    }

    /// Bytes of data that is there.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Bytes that were promised.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    fn sum(&self) -> u128 {
        u128::from(self.used) + u128::from(self.reserved)
    }

    /// Bytes that are used or promised.
    pub fn taken(&self) -> u64 {
        self.used.saturating_add(self.reserved)
    }

    /// Bytes that are neither used nor promised; none where more is taken than there is.
    pub fn free(&self) -> u64 {
        let rest = u128::from(self.capacity).checked_sub(self.sum());
        rest.map_or(0, |rest| rest as u64)
    }

    /// Bytes that have to go before so many more fit.
    pub fn lack(&self, bytes: u64) -> u64 {
        let wanted = self.sum() + u128::from(bytes);
        let lack = wanted - wanted.min(u128::from(self.capacity));
        u64::try_from(lack).unwrap_or(u64::MAX)
    }

    /// Whether so many more bytes fit.
    pub fn holds(&self, bytes: u64) -> bool {
        self.lack(bytes) == 0
    }

    /// Whether more is taken than there is: the tier has shrunk since, or items were larger than was known.
    pub fn is_overdrawn(&self) -> bool {
        !self.holds(0)
    }

    /// Promises bytes.
    pub fn reserve(&mut self, bytes: u64) {
        add(&mut self.reserved, bytes, "bytes reserved");
    }

    /// Takes a promise back.
    ///
    /// # Panics
    /// In a debug build, when so many were not promised.
    pub fn unreserve(&mut self, bytes: u64) {
        sub(&mut self.reserved, bytes, "bytes reserved");
    }

    /// Counts data that comes.
    pub fn occupy(&mut self, bytes: u64) {
        add(&mut self.used, bytes, "bytes used");
    }

    /// Counts data that goes.
    ///
    /// # Panics
    /// In a debug build, when so many are not used.
    pub fn vacate(&mut self, bytes: u64) {
        sub(&mut self.used, bytes, "bytes used");
    }

    /// This tier and another one together. The sums saturate: users declare sizes.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            capacity: self.capacity.saturating_add(other.capacity),
            used: self.used.saturating_add(other.used),
            reserved: self.reserved.saturating_add(other.reserved),
        }
    }

    /// The used bytes are lost; each reservation is given back by its requester.
    pub fn lose_used(&mut self) {
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::TierSpace;

    #[test]
    fn a_tier_that_shrank_has_nothing_free() {
        let mut space = TierSpace::new(100);
        space.occupy(60);
        space.reserve(30);
        assert_eq!((space.free(), space.lack(15)), (10, 5));
        space.set_capacity(80);
        assert!(space.is_overdrawn() && !space.holds(0));
        assert_eq!(space.free(), 0);
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "bytes used: 10 cannot be taken from 0")]
    fn a_double_release_of_space_is_caught() {
        let mut space = TierSpace::new(100);
        space.occupy(10);
        space.vacate(10);
        space.vacate(10);
    }
}
