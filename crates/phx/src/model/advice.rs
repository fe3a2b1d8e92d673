//! What follows for a machine: how many replicas, how much is staged, how often.

use super::energy::link_budget;
use super::interval::Times;
use super::loss::Exposure;
use crate::split::{Rates, Split};
use tarn_base::units::SECOND;

/// Replicas that a rank can have of what is staged.
pub const MAX_REPLICAS: u32 = 1;

/// A run on a machine. Rates are above 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Job {
    /// Nodes.
    pub nodes: f64,
    /// Mean time between failures of one of them; above 0.
    pub mtbf: f64,
    /// How long the run computes.
    pub length: f64,
    /// Bytes of a node's checkpoint; above 0.
    pub bytes: u64,
    /// The most of them that may be staged.
    pub budget: u64,
    /// Bytes a second that a node's persistent tier takes and gives.
    pub persistent: u64,
    /// Bytes a second that its memory takes.
    pub memory: u64,
    /// Bytes a second that its link to the buddy takes.
    pub link: u64,
    /// From a failure until it computes again; none: as long as it takes to read the checkpoint from the tier.
    pub restart: Option<f64>,
    /// How long a checkpoint lies in memory only; none: as long as it takes to de-stage it.
    pub exposure: Option<f64>,
    /// The time between checkpoints; none: Daly's optimum.
    pub interval: Option<f64>,
    /// Checkpoints of the run; none: one each interval.
    pub checkpoints: Option<f64>,
}

/// What so many replicas mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Of what is staged, on other nodes.
    pub replicas: u32,
    /// Where the bytes of a checkpoint go first.
    pub split: Split,
    /// What checkpoints and restarts take, and how often the whole fails.
    pub times: Times,
    /// The time between checkpoints.
    pub interval: f64,
    /// What the run is exposed to.
    pub exposure: Exposure,
    /// How likely it loses something that was committed and not yet durable.
    pub loss: f64,
}

impl Job {
    /// With so many replicas.
    pub fn with(&self, replicas: u32) -> Choice {
        let rates = Rates {
            persistent: self.persistent,
            memory: self.memory,
            copies: 1 + replicas,
        };
        let linked = match replicas {
            0 => u64::MAX,
            n => link_budget(self.bytes, self.persistent, self.link / u64::from(n)),
        };
        let split = rates.split(self.bytes, self.budget.min(linked));
        let stored = |bytes: u64| bytes as f64 / self.persistent as f64;
        // What is too short to be told from nothing takes a nanosecond.
        let checkpoint = rates.time(split).max(1);
        let times = Times {
            checkpoint: checkpoint as f64 / SECOND as f64,
            restart: self.restart.unwrap_or(stored(self.bytes)),
            mtbf: self.mtbf / self.nodes,
        };
        let interval = self.interval.unwrap_or(times.daly());
        let exposure = Exposure {
            nodes: self.nodes,
            mtbf: self.mtbf,
            exposure: self.exposure.unwrap_or(stored(split.staged)),
            checkpoints: self.checkpoints.unwrap_or(self.length / interval),
        };
        Choice {
            replicas,
            split,
            times,
            interval,
            exposure,
            loss: exposure.loss(1 + replicas),
        }
    }

    /// With the fewest replicas that make a loss no more likely than this; with the most there are, if none do.
    pub fn advise(&self, bound: f64) -> Choice {
        let mut fewer = (0..MAX_REPLICAS).map(|n| self.with(n));
        let enough = fewer.find(|choice| choice.loss <= bound);
        enough.unwrap_or_else(|| self.with(MAX_REPLICAS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::loss::YEAR;

    const JOB: Job = Job {
        nodes: 1000.0,
        mtbf: 5.0 * YEAR,
        length: 48.0 * 3600.0,
        bytes: 40_000_000_000,
        budget: 20_000_000_000,
        persistent: 5_000_000_000,
        memory: 20_000_000_000,
        link: 12_500_000_000,
        restart: None,
        exposure: None,
        interval: None,
        checkpoints: None,
    };

    #[test]
    fn a_replica_is_advised_where_one_copy_is_not_safe_enough() {
        let alone = JOB.with(0);
        // 5 of 20 GB/s to the tier would be best; no more than half is staged.
        assert_eq!(alone.split.staged, 20_000_000_000);
        assert!((alone.times.checkpoint - 4.0).abs() < 1e-9);
        assert!((alone.exposure.exposure - 4.0).abs() < 1e-9);
        assert!((alone.times.restart - 8.0).abs() < 1e-9);
        assert!((alone.times.mtbf - 5.0 * YEAR / 1000.0).abs() < 1e-6);
        assert_eq!(alone.interval, alone.times.daly());
        assert!(alone.loss > 1e-3 && JOB.with(1).loss < 1e-6);
        assert_eq!(JOB.advise(1e-3).replicas, 1);
        assert_eq!(JOB.advise(0.5).replicas, 0);
        // Never safe enough: what there is.
        let never = JOB.advise(0.0);
        assert!(never.replicas == MAX_REPLICAS && never.loss > 0.0);
    }

    #[test]
    fn a_slow_link_takes_what_it_can_while_the_tier_takes_the_rest() {
        let job = Job {
            link: 1_000_000_000,
            ..JOB
        };
        let choice = job.with(1);
        let sent = choice.split.staged as f64 / 1e9;
        assert!(choice.split.staged > 6_000_000_000);
        assert!(sent <= choice.times.checkpoint + 1e-6);
        assert_eq!(job.with(0), JOB.with(0));
    }

    #[test]
    fn what_is_given_is_taken() {
        let given = Job {
            restart: Some(60.0),
            exposure: Some(10.0),
            interval: Some(100.0),
            checkpoints: Some(7.0),
            ..JOB
        };
        let choice = given.with(1);
        assert_eq!(
            (choice.times.restart, choice.interval, choice.exposure),
            (
                60.0,
                100.0,
                Exposure {
                    nodes: 1000.0,
                    mtbf: 5.0 * YEAR,
                    exposure: 10.0,
                    checkpoints: 7.0
                }
            )
        );
        let every = Job {
            checkpoints: None,
            ..given
        };
        assert_eq!(every.with(0).exposure.checkpoints, 1728.0);
    }
}
