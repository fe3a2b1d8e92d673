//! The cores, memory and GPUs of a node. The engine of a run and the planner of a site count them with these types, and the
//! bytes of tiers with [`TierSpace`](tarn_types::space::TierSpace): each amount taken is given back once, and nothing goes
//! below zero.

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

#[cfg(test)]
mod tests {
    use super::{Compute, Demand};

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
