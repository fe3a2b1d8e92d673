//! The account of the cores, memory and GPUs of a node or a machine: each share that is taken is given back once.

use crate::account::{add, sub};
use crate::site::{Job, NodeShare};
use crate::workflow::Step;

/// Cores, bytes of memory and GPUs: all of a node, or the share of it that a step or a job takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demand {
    /// Cores.
    pub cores: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// GPUs.
    pub gpus: u32,
}

impl Demand {
    /// The share of a step on each of its nodes.
    pub fn of(step: &Step) -> Self {
        Self {
            cores: step.cores,
            memory: step.memory,
            gpus: step.gpus,
        }
    }

    /// The share that a job asks for on each of its nodes; `None` for nodes as a whole.
    pub fn of_job(job: &Job) -> Option<Self> {
        let (cores, memory, gpus) = (job.cores, job.memory, job.gpus);
        Self::of_share(NodeShare {
            cores,
            memory,
            gpus,
        })
    }

    /// The share that a host gave a job; `None` for nodes as a whole.
    pub fn of_share(share: NodeShare) -> Option<Self> {
        let demand = Self {
            cores: share.cores,
            memory: share.memory,
            gpus: share.gpus,
        };
        (share.cores > 0).then_some(demand)
    }

    /// Both together.
    #[must_use]
    #[inline]
    pub fn with(mut self, more: Self) -> Self {
        add(&mut self.cores, more.cores, "cores");
        add(&mut self.memory, more.memory, "memory");
        add(&mut self.gpus, more.gpus, "GPUs");
        self
    }

    /// The rest without a part.
    ///
    /// # Panics
    /// In a debug build, when it is no part.
    #[must_use]
    #[inline]
    pub fn without(mut self, part: Self) -> Self {
        sub(&mut self.cores, part.cores, "cores");
        sub(&mut self.memory, part.memory, "memory");
        sub(&mut self.gpus, part.gpus, "GPUs");
        self
    }

    /// The part of a demand that is in it.
    #[must_use]
    #[inline]
    pub fn most_of(self, demand: Self) -> Self {
        Self {
            cores: demand.cores.min(self.cores),
            memory: demand.memory.min(self.memory),
            gpus: demand.gpus.min(self.gpus),
        }
    }

    /// Whether a demand is in it so many times.
    #[inline]
    pub fn holds(self, demand: Self, times: u32) -> bool {
        self.cores >= demand.cores.saturating_mul(times)
            && self.memory >= demand.memory.saturating_mul(u64::from(times))
            && self.gpus >= demand.gpus.saturating_mul(times)
    }

    /// Whether it is neither cores nor memory nor GPUs.
    #[inline]
    pub fn is_nothing(self) -> bool {
        self == Self::default()
    }
}

/// The cores, memory and GPUs of a node or a machine, and the part of them that nobody has.
///
/// # Examples
/// ```
/// use tarn_types::compute::{Compute, Demand};
///
/// let cores = |cores| Demand { cores, ..Demand::default() };
/// let mut node = Compute::new(cores(4));
/// node.take(cores(3));
/// assert!(!node.free().holds(cores(2), 1));
/// assert_eq!(node.expect(cores(2)), cores(1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compute {
    all: Demand,
    free: Demand,
}

impl Compute {
    /// All of it is free.
    pub fn new(all: Demand) -> Self {
        Self { all, free: all }
    }

    /// All of it.
    #[inline]
    pub fn all(&self) -> Demand {
        self.all
    }

    /// The part that nobody has.
    #[inline]
    pub fn free(&self) -> Demand {
        self.free
    }

    /// Somebody gets a share.
    ///
    /// # Panics
    /// In a debug build, when so much is not free.
    #[inline]
    pub fn take(&mut self, share: Demand) {
        self.free = self.free.without(share);
    }

    /// Somebody gives a share back.
    ///
    /// # Panics
    /// In a debug build, when so much was not taken: it was given back before.
    #[inline]
    pub fn give(&mut self, share: Demand) {
        let taken = self.all.without(self.free);
        self.free = self.all.without(taken.without(share));
    }

    /// Takes the part of a demand that is free, and returns it.
    #[inline]
    pub fn expect(&mut self, demand: Demand) -> Demand {
        let share = self.free.most_of(demand);
        self.take(share);
        share
    }
}

#[cfg(test)]
mod tests {
    use super::{Compute, Demand};

    fn cores(cores: u32) -> Demand {
        Demand {
            cores,
            ..Demand::default()
        }
    }

    #[test]
    fn a_demand_is_met_as_far_as_there_is_something() {
        let memory = |bytes| Demand {
            memory: bytes,
            ..Demand::default()
        };
        let mut node = Compute::new(cores(4).with(memory(10)));
        assert_eq!(node.expect(cores(3).with(memory(20))).memory, 10);
        assert_eq!(node.free(), cores(1));
        assert!(node.free().holds(cores(1), 1) && !node.free().holds(cores(1), 2));
        assert!(!node.all().holds(cores(u32::MAX), 2));
        node.give(cores(3).with(memory(10)));
        assert_eq!(node.free(), node.all());
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "cores: 3 cannot be taken from 1")]
    fn no_core_is_taken_twice() {
        let mut node = Compute::new(cores(4));
        node.take(cores(3));
        node.take(cores(3));
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "cores: 3 cannot be taken from 1")]
    fn no_core_is_given_back_twice() {
        let mut node = Compute::new(cores(4));
        node.take(cores(3));
        node.take(cores(1));
        node.give(cores(3));
        node.give(cores(3));
    }
}
