//! The capacity of a node: its cores, memory and GPUs, and the bytes of its tiers. The engine of a run and the planner
//! of a site count both with these types: each amount taken is given back once, and nothing goes below zero.

use tarn_types::account::{add, sub};
use tarn_types::workflow::Step;

/// The share of a node that a step or a job takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) cores: u32,
    pub(crate) memory: u64,
    pub(crate) gpus: u32,
}

impl Demand {
    pub(crate) fn of(step: &Step) -> Self {
        Self {
            cores: step.cores,
            memory: step.memory,
            gpus: step.gpus,
        }
    }
}

impl Demand {
    /// Both together.
    pub(crate) fn with(self, more: Self) -> Self {
        let mut sum = self;
        add(&mut sum.cores, more.cores, "cores");
        add(&mut sum.memory, more.memory, "memory");
        add(&mut sum.gpus, more.gpus, "GPUs");
        sum
    }

    /// The rest without a part.
    pub(crate) fn without(self, part: Self) -> Self {
        let mut rest = self;
        sub(&mut rest.cores, part.cores, "cores");
        sub(&mut rest.memory, part.memory, "memory");
        sub(&mut rest.gpus, part.gpus, "GPUs");
        rest
    }

    pub(crate) fn is_nothing(self) -> bool {
        (self.cores, self.memory, self.gpus) == (0, 0, 0)
    }
}

/// Free compute resources of a node or a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compute {
    pub(crate) cores: u32,
    pub(crate) memory: u64,
    pub(crate) gpus: u32,
}

impl Compute {
    pub(crate) fn holds(self, d: Demand, times: u32) -> bool {
        self.cores >= d.cores * times
            && self.memory >= d.memory * u64::from(times)
            && self.gpus >= d.gpus * times
    }

    pub(crate) fn take(&mut self, d: Demand) {
        sub(&mut self.cores, d.cores, "free cores");
        sub(&mut self.memory, d.memory, "free memory");
        sub(&mut self.gpus, d.gpus, "free GPUs");
    }

    pub(crate) fn give(&mut self, d: Demand) {
        add(&mut self.cores, d.cores, "free cores");
        add(&mut self.memory, d.memory, "free memory");
        add(&mut self.gpus, d.gpus, "free GPUs");
    }

    /// All of it.
    pub(crate) fn as_demand(self) -> Demand {
        Demand {
            cores: self.cores,
            memory: self.memory,
            gpus: self.gpus,
        }
    }

    /// The part of a demand that is available.
    pub(crate) fn most_of(self, d: Demand) -> Demand {
        Demand {
            cores: d.cores.min(self.cores),
            memory: d.memory.min(self.memory),
            gpus: d.gpus.min(self.gpus),
        }
    }

    /// Takes the available share of a demand: in a forecast, in which all demands may exceed the node.
    pub(crate) fn expect(&mut self, d: Demand) {
        self.take(self.most_of(d));
    }
}

/// The bytes of a tier, or of all tiers of a node.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TierSpace {
    capacity: u64,
    /// Bytes of replicas that are present, arrive or are being removed.
    used: u64,
    /// Bytes reserved for data that has yet to be written.
    reserved: u64,
}

impl TierSpace {
    pub(crate) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            ..Self::default()
        }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// It may become smaller than the bytes taken.
    pub(crate) fn set_capacity(&mut self, bytes: u64) {
        self.capacity = bytes;
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Bytes that are used or promised.
    fn taken(&self) -> u128 {
        u128::from(self.used) + u128::from(self.reserved)
    }

    /// Bytes that are neither used nor promised; none where more is taken than there is.
    pub(crate) fn free(&self) -> u64 {
        let rest = u128::from(self.capacity).checked_sub(self.taken());
        rest.map_or(0, |rest| rest as u64)
    }

    /// Bytes that have to go before so many more fit.
    pub(crate) fn lack(&self, bytes: u64) -> u64 {
        let wanted = self.taken() + u128::from(bytes);
        let lack = wanted - wanted.min(u128::from(self.capacity));
        u64::try_from(lack).unwrap_or(u64::MAX)
    }

    /// Whether so many more bytes fit.
    pub(crate) fn holds(&self, bytes: u64) -> bool {
        self.lack(bytes) == 0
    }

    /// Whether more is taken than there is: the tier has shrunk since, or items were larger than was known.
    pub(crate) fn is_overdrawn(&self) -> bool {
        !self.holds(0)
    }

    pub(crate) fn reserve(&mut self, bytes: u64) {
        add(&mut self.reserved, bytes, "bytes reserved");
    }

    pub(crate) fn unreserve(&mut self, bytes: u64) {
        sub(&mut self.reserved, bytes, "bytes reserved");
    }

    pub(crate) fn occupy(&mut self, bytes: u64) {
        add(&mut self.used, bytes, "bytes used");
    }

    pub(crate) fn vacate(&mut self, bytes: u64) {
        sub(&mut self.used, bytes, "bytes used");
    }

    /// The used bytes are lost; each reservation is given back by its requester.
    pub(crate) fn lose_used(&mut self) {
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::{Compute, Demand, TierSpace};

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

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "free cores: 3 cannot be taken from 1")]
    fn no_core_is_taken_twice() {
        let (cores, memory, gpus) = (4, 0, 0);
        let mut free = Compute {
            cores,
            memory,
            gpus,
        };
        let demand = Demand {
            cores: 3,
            memory,
            gpus,
        };
        free.take(demand);
        free.take(demand);
    }
}
