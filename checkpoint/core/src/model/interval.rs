//! How long to compute between checkpoints: Young 1974, and the higher-order estimate and the run time of
//! Daly 2006.

/// The times of a run's checkpoints and failures, all in the same unit, such as seconds. All are above 0, but
/// for the restart.
///
/// # Examples
/// Daly 2006, section 4: a checkpoint of five minutes, a restart of ten, a failure a day.
/// ```
/// use tarn_checkpoint_core::model::interval::Times;
///
/// let times = Times { checkpoint: 300.0, restart: 600.0, mtbf: 86_400.0 };
/// assert_eq!(times.young(), 7200.0); // seconds
/// assert!((times.daly() - 7001.4).abs() < 0.1);
/// let waste = times.waste(times.daly());
/// assert!(waste > 0.087 && waste < 0.088); // of the run time
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// To make a checkpoint, while nothing is computed.
    pub checkpoint: f64,
    /// From a failure until it computes again from the last checkpoint.
    pub restart: f64,
    /// Mean time between failures of the whole: a node's, divided by the nodes.
    pub mtbf: f64,
}

impl Times {
    /// Young's optimal interval, to the first order (Young 1974).
    pub fn young(&self) -> f64 {
        (2.0 * self.checkpoint * self.mtbf).sqrt()
    }

    /// Daly's optimal interval (Daly 2006). Where a checkpoint takes twice the time between failures or more,
    /// it is that time.
    pub fn daly(&self) -> f64 {
        let part = self.checkpoint / (2.0 * self.mtbf);
        match part < 1.0 {
            true => self.young() * (1.0 + part.sqrt() / 3.0 + part / 9.0) - self.checkpoint,
            false => self.mtbf,
        }
    }

    /// The expected time to compute for `work`, with checkpoints, restarts and lost work;
    /// infinite where it hardly ever comes to a checkpoint. Checkpoints are made every `interval` of
    /// computing (Daly's complete model: failures are exponential, and may come in checkpoints and restarts
    /// too).
    pub fn run_time(&self, work: f64, interval: f64) -> f64 {
        let segment = (interval + self.checkpoint) / self.mtbf;
        let restarts = (self.restart / self.mtbf).exp();
        self.mtbf * restarts * segment.exp_m1() * work / interval
    }

    /// The part of the run time in which nothing is computed that stays.
    pub fn waste(&self, interval: f64) -> f64 {
        1.0 - 1.0 / self.run_time(1.0, interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: f64 = 3600.0;

    /// Daly 2006, section 4: a checkpoint of five minutes, a restart of ten.
    const DALY: Times = Times {
        checkpoint: 300.0,
        restart: 600.0,
        mtbf: 24.0 * HOUR,
    };

    #[test]
    fn intervals_are_those_of_the_formulas() {
        assert!((DALY.young() - 7200.0).abs() < 1e-9);
        // 7200 (1 + sqrt(1/576)/3 + 1/576/9) - 300
        assert!((DALY.daly() - 7_001.388_888).abs() < 1e-3);
        let hopeless = Times {
            checkpoint: 2.0 * DALY.mtbf,
            ..DALY
        };
        assert_eq!(hopeless.daly(), DALY.mtbf);
    }

    #[test]
    fn without_failures_only_checkpoints_are_wasted() {
        let safe = Times { mtbf: 1e12, ..DALY };
        assert!((safe.waste(2700.0) - 0.1).abs() < 1e-6);
        assert!((safe.run_time(27_000.0, 2700.0) - 30_000.0).abs() < 1.0);
        let never = Times { mtbf: 1.0, ..DALY };
        assert_eq!(never.waste(7200.0), 1.0);
    }

    proptest! {
        /// Nothing around it is better by more than Daly's expansion leaves: one in a thousand, where
        /// checkpoints are short.
        #[test]
        fn the_optimum_is_one(checkpoint in 1.0..300.0, factor in 0.1f64..10.0, days in 0.2..100.0) {
            let times = Times { checkpoint, restart: 60.0, mtbf: days * 24.0 * HOUR };
            let best = times.run_time(1.0, times.daly());
            prop_assert!(best <= times.run_time(1.0, times.daly() * factor) * 1.001);
        }
    }
}
