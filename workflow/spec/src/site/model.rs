//! Modelled data for traces that record none.

use crate::site::alone::Alone;
use crate::site::random::WorkloadRandom;
use tarn_types::units::{Nanos, SECOND};

/// Deviation of the logarithm of the I/O seconds a job spends for each second of computing. Requests for storage are
/// log-normal in models of burst buffer workloads (Kopanski and Rzadca, Euro-Par 2021); its width is a choice.
const SIGMA: f64 = 1.0;
/// Numerical integration over the normal distribution: half its width in deviations, and steps.
const WIDTH: f64 = 8.0;
const STEPS: u32 = 400;
/// Halvings of the interval in which the median is sought: below the resolution of a double.
const HALVINGS: u32 = 60;

/// Which jobs of a trace read and write, and how much. docs/internals/simulator.md states the rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DataModel {
    /// The same seed gives the same data.
    pub seed: u64,
    /// Share of the jobs that have data, from 0 to 1.
    pub jobs: f64,
    /// Mean share of their run time that those jobs read and write when they are alone, above 0 and below 1.
    pub io: f64,
}

impl DataModel {
    /// The range of `io`: below, no data is left; above, no computing.
    pub const IO_RANGE: (f64, f64) = (0.001, 0.95);
}

/// The model with the values that are derived from it once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sampler {
    model: DataModel,
    /// Logarithm of the median I/O seconds for each second of computing.
    median: f64,
}

/// The data of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobIoBytes {
    pub(crate) read: u64,
    pub(crate) written: u64,
}

/// Share of the run time at a number of deviations from the median.
fn share(median: f64, deviations: f64) -> f64 {
    let ratio = (median + SIGMA * deviations).exp();
    ratio / (1.0 + ratio)
}

fn mean_share(median: f64) -> f64 {
    let step = 2.0 * WIDTH / f64::from(STEPS);
    let weighted = (0..STEPS).map(|i| {
        let z = (f64::from(i) + 0.5) * step - WIDTH;
        let weight = (-z * z / 2.0).exp();
        (weight * share(median, z), weight)
    });
    let (sum, weights) = weighted.fold((0.0, 0.0), |(s, w), (a, b)| (s + a, w + b));
    sum / weights
}

impl Sampler {
    pub(crate) fn new(model: DataModel) -> Self {
        let (mut low, mut high) = (-20.0, 20.0);
        for _ in 0..HALVINGS {
            let middle = (low + high) / 2.0;
            if mean_share(middle) < model.io {
                low = middle;
            } else {
                high = middle;
            }
        }
        Self { model, median: low }
    }

    /// The data of the job with this number, if it has any. Its reading and writing together take less than `run`.
    pub(crate) fn sample(
        &self,
        number: u64,
        nodes: u32,
        run: Nanos,
        alone: Alone,
    ) -> Option<JobIoBytes> {
        let mut random = WorkloadRandom::new(self.model.seed, number);
        if random.unit() >= self.model.jobs {
            return None;
        }
        let io = (run as f64 * share(self.median, random.normal())) as Nanos;
        let reading = (io as f64 * random.unit()) as Nanos;
        let bytes = |time: Nanos, rate: u64| {
            let bytes = u128::from(time) * u128::from(rate) / u128::from(SECOND);
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        Some(JobIoBytes {
            read: bytes(reading, alone.read_rate(nodes)),
            written: bytes(io.saturating_sub(reading), alone.write_rate(nodes)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_types::site::{Rates, Store};

    #[test]
    fn shares_have_the_mean_that_was_asked_for() {
        let rates = Rates {
            read: 1_000_000_000,
            write: 500_000_000,
        };
        let alone = Alone(Store {
            rates: Rates::default(),
            client: rates,
            saturates: 1,
        });
        for wanted in [0.05, 0.3, 0.8] {
            let model = DataModel {
                seed: 7,
                jobs: 0.5,
                io: wanted,
            };
            let sampler = Sampler::new(model);
            let run = 1000 * SECOND;
            let all: Vec<JobIoBytes> = (0..20_000)
                .filter_map(|n| sampler.sample(n, 2, run, alone))
                .collect();
            let with_data = all.len() as f64 / 20_000.0;
            assert!((with_data - 0.5).abs() < 0.02, "{with_data}");
            let times = all.iter().map(|io| alone.time(2, io.read, io.written));
            assert!(times.clone().all(|t| t <= run));
            let mean = times.map(|t| t as f64 / run as f64).sum::<f64>() / all.len() as f64;
            assert!((mean - wanted).abs() < 0.01, "{mean} instead of {wanted}");
        }
    }
}
