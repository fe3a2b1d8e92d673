//! The energy that staging costs, and the worth of the time that it saves: a model of our own. The published one (Fernando 2016,
//! figure 2) cannot be rebuilt from its text.
//!
//! With D bytes of a node's checkpoint, s of them staged, rates P of the tier, M of memory and L of the link, and two copies in
//! memory (this node's and its buddy's), the checkpoint takes T(s) = max((D - s) / P, (D + s) / M, s / L): it falls as the tier has
//! less to take, until memory or the link limits it, and rises then. The saving, power times T(0) - T(s), is so a
//! curve with a top, and the cost of the copies a line through 0: beyond where they meet, staging costs more than it saves.

use crate::split::{Split, StagingRates};

/// Bits of a byte.
const BITS: f64 = 8.0;
/// Joules of a picojoule.
const PICO: f64 = 1e-12;
/// How often a staged byte is in memory's way beside the naive one: written to the staging file, read for the buddy, written by
/// the buddy, read to be de-staged. The tier takes each byte once in both.
const ACCESSES: f64 = 4.0;
/// Copies of the staged bytes.
const COPIES: u32 = 2;

/// Picojoules for a bit that memory takes or gives: assumed, of the order of DDR3 and DDR4 with their interface.
pub const MEMORY: f64 = 20.0;

/// A network between buddies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interconnect {
    /// Bytes a second, each way.
    pub rate: u64,
    /// Picojoules for a bit in the adapters of both ends.
    pub adapters: f64,
    /// Picojoules for a bit in each switch.
    pub switch: f64,
}

/// 100 Gb/s. Energies are assumed: some 8 W an adapter, and 4 W a port of a switch, at the full rate.
pub const OMNI_PATH: Interconnect = Interconnect {
    rate: 12_500_000_000,
    adapters: 80.0,
    switch: 40.0,
};

/// 400 Gb/s, the most that the paper expects. Energies are assumed: tens of pJ/bit from node to node, as roadmaps of optical
/// links have it.
pub const EXASCALE: Interconnect = Interconnect {
    rate: 50_000_000_000,
    adapters: 20.0,
    switch: 10.0,
};

/// A checkpoint of one node, and the devices that move it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CheckpointEnergy {
    /// Bytes of the checkpoint.
    pub bytes: u64,
    /// Bytes a second that the persistent tier takes; above 0.
    pub persistent: u64,
    /// Bytes a second that memory takes; above 0.
    pub memory: u64,
    /// Picojoules for a bit that memory takes or gives.
    pub memory_energy: f64,
    /// The way to the buddy; its rate is above 0.
    pub link: Interconnect,
    /// Switches on it.
    pub switches: u32,
    /// Watts that are saved while a node does not wait for its checkpoint.
    pub power: f64,
}

/// The published point: up to about so many bytes can be staged "without extra overheads".
pub const PUBLISHED: f64 = 750e6;

/// The published case: 2:1, two copies, one switch, Omni-Path. The rest is assumed: a checkpoint of twice the point, as the
/// paper's runs stage about half of theirs; memory at 20 GB/s. The power is fitted to the published point.
pub fn calibrated() -> CheckpointEnergy {
    let mut case = CheckpointEnergy {
        bytes: 2 * PUBLISHED as u64,
        persistent: 10_000_000_000,
        memory: 20_000_000_000,
        memory_energy: MEMORY,
        link: OMNI_PATH,
        switches: 1,
        power: 0.0,
    };
    case.power = case.overhead(PUBLISHED) / (case.time(0.0) - case.time(PUBLISHED));
    case
}

impl CheckpointEnergy {
    /// The energy of the additional copies of so many staged bytes.
    pub fn overhead(&self, staged: f64) -> f64 {
        let link = self.link.adapters + self.link.switch * f64::from(self.switches);
        staged * BITS * PICO * (self.memory_energy * ACCESSES + link)
    }

    /// How long the checkpoint takes with so many bytes staged.
    pub fn time(&self, staged: f64) -> f64 {
        let all = self.bytes as f64;
        let tier = (all - staged) / self.persistent as f64;
        let moved = all + staged * f64::from(COPIES - 1);
        let memory = moved / self.memory as f64;
        tier.max(memory).max(staged / self.link.rate as f64)
    }

    /// The net saving; below 0 if staging costs more than it saves.
    pub fn net(&self, staged: f64) -> f64 {
        self.power * (self.time(0.0) - self.time(staged)) - self.overhead(staged)
    }

    /// The most that can be staged before the additional copies cost more than the time is worth; all of the checkpoint at most.
    pub fn break_even(&self) -> f64 {
        let all = self.bytes as f64;
        let (cost, naive) = (self.overhead(1.0), self.time(0.0));
        if self.power / self.persistent as f64 <= cost {
            return 0.0;
        }
        // Each device that can limit it gives a line; the point is where the lowest of them falls below 0.
        let [memory, link] = [self.memory, self.link.rate].map(|rate| rate as f64);
        let by_memory = self.power * (naive - all / memory)
            / (cost + self.power * f64::from(COPIES - 1) / memory);
        let by_link = self.power * naive / (cost + self.power / link);
        by_memory.min(by_link).clamp(0.0, all)
    }

    /// The division of the checkpoint that takes least time: where staging pays at all, it saves most energy too.
    pub fn split(&self) -> Split {
        let rates = StagingRates {
            persistent: self.persistent,
            memory: self.memory,
            copies: COPIES,
        };
        let budget = link_budget(self.bytes, self.persistent, self.link.rate);
        rates.split(self.bytes, budget)
    }
}

/// The most bytes that a link takes while the persistent tier takes the others.
pub fn link_budget(bytes: u64, persistent: u64, link: u64) -> u64 {
    let both = u128::from(persistent) + u128::from(link);
    let staged = (u128::from(bytes) * u128::from(link)).checked_div(both);
    staged.and_then(|s| u64::try_from(s).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_published_point_is_met() {
        let case = calibrated();
        assert!((case.break_even() - PUBLISHED).abs() < 1.0);
        assert!(case.net(PUBLISHED).abs() < 1e-9);
        // 200 pJ/bit times 750 MB in the 37.5 ms that are saved.
        assert!((case.power - 32.0).abs() < 1e-6, "{}", case.power);
        // It is behind the top of the curve: a third of the checkpoint.
        assert_eq!(case.split().staged, case.bytes / 3);
        assert!(case.net(case.bytes as f64 / 3.0) > 0.0);
    }

    #[test]
    fn a_slower_tier_and_a_cheaper_link_make_more_staging_pay() {
        let case = calibrated();
        let farther = CheckpointEnergy {
            switches: 2,
            ..case
        };
        let slower = CheckpointEnergy {
            persistent: case.persistent / 2,
            ..case
        };
        let expected = CheckpointEnergy {
            link: EXASCALE,
            ..case
        };
        assert!(farther.break_even() < case.break_even());
        assert!(expected.break_even() > case.break_even());
        // All of it, as it never takes longer than to the tier alone.
        assert_eq!(slower.break_even(), case.bytes as f64);
        let best = |case: &CheckpointEnergy| case.net(case.split().staged as f64);
        assert!(best(&slower) > best(&case) && best(&case) > best(&farther));
    }

    #[test]
    fn where_a_copy_costs_more_than_the_time_nothing_is_staged() {
        let idle = CheckpointEnergy {
            power: 1.0,
            ..calibrated()
        };
        assert_eq!(idle.break_even(), 0.0);
        let even = CheckpointEnergy {
            memory: 10_000_000_000,
            ..calibrated()
        };
        assert_eq!(even.break_even(), 0.0);
    }

    proptest! {
        /// Below the point all is gain, above it all is loss, and no other division saves more than the fastest.
        #[test]
        fn the_point_divides_gain_from_loss(
            bytes in 1_000_000u64..1 << 40, persistent in 1u64..100, ratio in 1u64..10, rate in 1u64..100,
            switches in 0u32..5, power in 1.0..1000.0, part in 0.0..=1.0,
        ) {
            let persistent = persistent * 1_000_000_000;
            let link = Interconnect { rate: rate * 1_000_000_000, ..OMNI_PATH };
            let case = CheckpointEnergy { bytes, persistent, memory: persistent * ratio, link, switches, power, ..calibrated() };
            let point = case.break_even();
            let slack = case.overhead(bytes as f64) * 1e-6;
            prop_assert!(case.net(point * part) >= -slack);
            let above = point + (bytes as f64 - point) * part;
            prop_assert!(above <= point || case.net(above) <= slack);
            if point > 0.0 {
                let best = case.net(case.split().staged as f64);
                prop_assert!(best >= case.net(bytes as f64 * part) - slack);
            }
        }
    }
}
