//! Which faults come in a simulated cluster, and when.

use tarn_types::random::Random;
use tarn_types::units::{Nanos, SECOND};

/// The faults of a simulation; they come in an order that the seed decides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClusterFaults {
    /// Decides when, and which nodes.
    pub seed: u64,
    /// Nodes that are lost, one after the other. Half of them come back empty.
    pub losses: u32,
    /// Times that the controller is started again.
    pub restarts: u32,
    /// Between two faults, on average.
    pub interval: Nanos,
}

/// The faults that are still to come.
#[derive(Debug)]
pub(super) struct ClusterFaultPlan {
    pub(super) faults: ClusterFaults,
    pub(super) random: Random,
}

impl Default for ClusterFaultPlan {
    fn default() -> Self {
        Self::new(ClusterFaults::default())
    }
}

impl ClusterFaultPlan {
    pub(super) fn new(faults: ClusterFaults) -> Self {
        Self {
            faults,
            random: Random::new(faults.seed),
        }
    }

    pub(super) fn wait(&mut self) -> Nanos {
        self.random.below(2 * self.faults.interval.max(SECOND))
    }
}
