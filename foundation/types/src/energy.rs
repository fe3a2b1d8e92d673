//! The power draw and temperature of machines, as they report them (docs/admin/energy.md). An unknown value is absent, never 0.

use serde::{Deserialize, Serialize};

/// The source of a measurement. Sources do not cover the same parts of a node, so their figures are never compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The node's own counters on a Cray.
    PmCounters,
    /// A meter of the node, by hwmon.
    Hwmon,
    /// Counters of the processors, and of memory where there are some.
    Rapl,
    /// Counters or meters of the processors, by hwmon.
    HwmonCpu,
    /// Slurm, by its energy plug-in.
    Slurm,
    /// Different ones on different nodes.
    Several,
}

impl Source {
    /// The word, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PmCounters => "pm-counters",
            Self::Hwmon => "hwmon",
            Self::Rapl => "rapl",
            Self::HwmonCpu => "hwmon-cpu",
            Self::Slurm => "slurm",
            Self::Several => "several",
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// Energy, as it was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Energy {
    /// Thousandths of a joule.
    pub millijoules: u64,
    /// Its source.
    pub source: Source,
}

impl Energy {
    /// The sum with another one.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            millijoules: self.millijoules.saturating_add(other.millijoules),
            source: match self.source == other.source {
                true => self.source,
                false => Source::Several,
            },
        }
    }
}

impl std::fmt::Display for Energy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mj = self.millijoules;
        let text = match mj {
            0..10_000_000 => format!("{}.{} J", mj / 1000, mj % 1000 / 100),
            10_000_000..10_000_000_000 => {
                format!("{}.{} kJ", mj / 1_000_000, mj % 1_000_000 / 100_000)
            }
            _ => format!("{} MJ", mj / 1_000_000_000),
        };
        f.pad(&format!("{text} ({})", self.source))
    }
}

/// The power draw of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Power {
    /// Thousandths of a watt.
    pub milliwatts: u64,
    /// Its source.
    pub source: Source,
}

/// The place of a temperature sensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sensor {
    /// At the air inlet.
    Inlet,
    /// In the warmest processor.
    Processor,
}

impl Sensor {
    /// The word, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inlet => "inlet",
            Self::Processor => "processor",
        }
    }
}

/// The temperature of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warmth {
    /// Thousandths of a degree Celsius.
    pub millicelsius: i32,
    /// The place.
    pub sensor: Sensor,
}

/// The power draw and temperature of a machine, at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draw {
    /// Its power draw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<Power>,
    /// Its temperature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmth: Option<Warmth>,
}

impl Draw {
    /// Whether nothing is known.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// Of nodes that are equal otherwise, the one with the least of this goes first: its draw for each core, then its temperature.
pub type EnergyRank = (u32, i32);

/// Degrees by which temperatures differ before one counts as cooler, in thousandths.
const WARMER: i32 = 5000;

/// The rank of each of some nodes, of which the power draw and the number of cores are known. All have the same where powers,
/// or temperatures, cannot be compared.
pub fn ranks_of(draws: &[(Draw, u32)]) -> Vec<EnergyRank> {
    let sources = draws.iter().map(|(d, _)| d.power.map(|p| p.source));
    let sensors = draws.iter().map(|(d, _)| d.warmth.map(|w| w.sensor));
    let (powers, warmths) = (all_alike(sources), all_alike(sensors));
    let rank = |(draw, cores): &(Draw, u32)| {
        let watts = draw.power.filter(|_| powers);
        let watts = watts.map_or(0, |p| step_of(p.milliwatts / u64::from(*cores).max(1)));
        let warm = draw.warmth.filter(|_| warmths);
        (watts, warm.map_or(0, |w| w.millicelsius.div_euclid(WARMER)))
    };
    draws.iter().map(rank).collect()
}

/// Whether all are known and the same.
fn all_alike<T: PartialEq>(all: impl Iterator<Item = Option<T>>) -> bool {
    let all: Option<Vec<T>> = all.collect();
    all.is_some_and(|all| all.windows(2).all(|two| two[0] == two[1]))
}

/// A number's power of two, and the eighth of it: steps of 6 to 12 percent.
fn step_of(number: u64) -> u32 {
    match number.checked_ilog2() {
        Some(power @ 3..) => power * 8 + ((number >> (power - 3)) & 7) as u32,
        // Less than eight milliwatts.
        _ => number as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranks of nodes with four cores each.
    fn ranks(draws: &[Draw]) -> Vec<EnergyRank> {
        let draws: Vec<_> = draws.iter().map(|draw| (*draw, 4)).collect();
        ranks_of(&draws)
    }

    fn watts(watts: u64, source: Source) -> Draw {
        let milliwatts = watts * 1000;
        Draw {
            power: Some(Power { milliwatts, source }),
            warmth: None,
        }
    }

    fn warm(draw: Draw, celsius: i32, sensor: Sensor) -> Draw {
        let millicelsius = celsius * 1000;
        Draw {
            warmth: Some(Warmth {
                millicelsius,
                sensor,
            }),
            ..draw
        }
    }

    #[test]
    fn steps_grow_with_the_number_and_are_a_tenth_of_it() {
        let mut last = 0;
        for n in 0..200_000u64 {
            let step = step_of(n);
            assert!(step >= last, "{n}");
            last = step;
        }
        for n in [100u64, 5_000, 90_000, 700_000_000] {
            assert!(step_of(n + n / 7) > step_of(n), "{n}");
            assert!(step_of(n + n / 17) <= step_of(n) + 1, "{n}");
        }
        assert!(step_of(u64::MAX) > step_of(u64::MAX / 2));
    }

    #[test]
    fn less_for_each_core_goes_first_and_then_the_cooler() {
        let rapl = |w| watts(w, Source::Rapl);
        let all = ranks(&[rapl(200), rapl(100), rapl(101)]);
        assert!(all[1] < all[0] && all[1] == all[2], "{all:?}");
        let inlet = |c| warm(rapl(100), c, Sensor::Inlet);
        let all = ranks(&[inlet(29), inlet(21), inlet(-3)]);
        assert!(all[2] < all[1] && all[1] < all[0], "{all:?}");
    }

    #[test]
    fn what_cannot_be_compared_decides_nothing() {
        let unlike = [
            watts(200, Source::Rapl),
            watts(100, Source::Hwmon),
            watts(1, Source::Rapl),
        ];
        assert!(ranks(&unlike).windows(2).all(|w| w[0] == w[1]));
        let one_unknown = [watts(200, Source::Rapl), Draw::default()];
        assert!(ranks(&one_unknown).windows(2).all(|w| w[0] == w[1]));
        let sensors = [
            warm(Draw::default(), 60, Sensor::Processor),
            warm(Draw::default(), 20, Sensor::Inlet),
        ];
        assert!(ranks(&sensors).windows(2).all(|w| w[0] == w[1]));
        assert!(ranks(&[]).is_empty());
    }

    #[test]
    fn energies_add_up_and_say_from_where() {
        let of = |millijoules, source| Energy {
            millijoules,
            source,
        };
        let sum = of(1500, Source::Rapl).and(of(500, Source::Rapl));
        assert_eq!(sum, of(2000, Source::Rapl));
        assert_eq!(sum.and(of(1, Source::Hwmon)).source, Source::Several);
        assert_eq!(of(12_345, Source::Rapl).to_string(), "12.3 J (rapl)");
        assert_eq!(of(12_345_678, Source::Slurm).to_string(), "12.3 kJ (slurm)");
        assert_eq!(
            of(u64::MAX, Source::Hwmon)
                .and(of(9, Source::Hwmon))
                .millijoules,
            u64::MAX
        );
    }
}
