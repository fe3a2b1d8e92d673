//! Numbers that a seed decides, the same on every machine: for generated workloads, faults that are injected, and tests. No secrets.

use std::ops::Range;

/// The increment of the state: the golden ratio's fraction, in 64 bits.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn bits(&mut self) -> u64 {
        let bits = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        bits
    }

    /// From 0 to below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    /// One of a range that is not empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// From 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        unit(self.bits())
    }
}

/// The first number of a seed's sequence: every bit of the seed reaches every bit of it.
pub const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(STEP);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number from 0 to below 1, from the upper 53 bits.
pub fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_that_are_published() {
        // Of the reference implementation (Vigna, splitmix64.c) with the seed 1234567.
        let mut random = Random::new(1_234_567);
        let numbers = [(); 5].map(|()| random.bits());
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(numbers, published);
    }

    #[test]
    fn numbers_stay_within_their_range_and_reach_its_ends() {
        let mut random = Random::new(1);
        let dice: Vec<u64> = (0..1000).map(|_| random.within(1..7)).collect();
        assert!(dice.iter().all(|n| (1..7).contains(n)));
        assert!((1..7).all(|n| dice.contains(&n)));
        let units: Vec<f64> = (0..1000).map(|_| random.unit()).collect();
        assert!(units.iter().all(|u| (0.0..1.0).contains(u)));
        let mean = units.iter().sum::<f64>() / 1000.0;
        assert!((mean - 0.5).abs() < 0.05, "{mean}");
        assert!(unit(0) == 0.0 && unit(u64::MAX) < 1.0);
    }
}
