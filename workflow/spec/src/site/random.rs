//! Distributions of numbers that a seed decides.

use tarn_types::random::{self, mix};

#[derive(Debug, Clone)]
pub(crate) struct WorkloadRandom(random::Random);

impl WorkloadRandom {
    /// A sequence of its own for each pair of numbers.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        Self(random::Random::new(mix(seed) ^ stream))
    }

    /// From 0 to below 1.
    pub(crate) fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    /// Exponential with mean 1.
    pub(crate) fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Normal with mean 0 and deviation 1 (Box and Muller, 1958).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (2.0 * self.exponential()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_the_moments_it_should() {
        let mut random = WorkloadRandom::new(1, 0);
        let normal: Vec<f64> = (0..20_000).map(|_| random.normal()).collect();
        let mean = normal.iter().sum::<f64>() / 20_000.0;
        let square = normal.iter().map(|n| n * n).sum::<f64>() / 20_000.0;
        assert!(
            mean.abs() < 0.03 && (square - 1.0).abs() < 0.05,
            "{mean} {square}"
        );
        let wait = (0..20_000).map(|_| random.exponential()).sum::<f64>() / 20_000.0;
        assert!((wait - 1.0).abs() < 0.03, "{wait}");
        let streams = [
            WorkloadRandom::new(1, 1).unit(),
            WorkloadRandom::new(1, 2).unit(),
            WorkloadRandom::new(2, 1).unit(),
        ];
        assert!(streams[0] != streams[1] && streams[0] != streams[2]);
    }
}
