//! The sensors of a machine, and their readings.

use crate::files::{entries, number, text};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tarn_types::energy::{Sensor, Source, Warmth};

/// Drivers of hwmon that measure a whole node; further `aem1`, `aem2` and so on.
const OF_NODES: &str = "power_meter";
/// Those that measure processors.
const OF_PROCESSORS: [&str; 2] = ["amd_energy", "fam15h_power"];
/// Temperatures beyond are no air's and no processor's: a sensor that is not connected.
const POSSIBLE: std::ops::RangeInclusive<i32> = -60_000..=150_000;

/// A counter of energy.
#[derive(Debug, Clone)]
struct Counter {
    file: PathBuf,
    /// Microjoules that one unit of it is.
    unit: u64,
    /// In its units, where it starts again; 0 where it does not.
    range: u64,
}

/// A meter of power.
#[derive(Debug, Clone)]
struct Watts {
    file: PathBuf,
    /// Microwatts that one unit of it is.
    unit: u64,
}

/// All instances of one source.
#[derive(Debug, Clone)]
struct SensorGroup {
    source: Source,
    counters: Vec<Counter>,
    watts: Vec<Watts>,
}

/// The sensors of a machine.
#[derive(Debug, Clone, Default)]
pub struct Sensors {
    gauge: Option<SensorGroup>,
    inlets: Vec<PathBuf>,
    processors: Vec<PathBuf>,
    /// Sources that are there and cannot be read, a sentence each.
    pub closed: Vec<String>,
}

/// A reading of the energy sensors at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    at: Duration,
    what: SensorValue,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum SensorValue {
    /// Of each counter.
    Counted(Vec<u64>),
    /// Microwatts of all meters together.
    Drawn(u64),
}

impl Sensors {
    /// Those of a machine that shows its devices in this folder (`/sys`).
    pub fn find(sysfs: &Path) -> Self {
        let mut found = Self::default();
        let chips = chips(&sysfs.join("class/hwmon"));
        let all = [
            cray(&sysfs.join("cray/pm_counters")),
            of_nodes(&chips),
            rapl(&sysfs.join("class/powercap")),
            of_processors(&chips),
        ];
        for gauge in all.into_iter().flatten() {
            match gauge.readable() {
                Ok(()) if found.gauge.is_none() => found.gauge = Some(gauge),
                Ok(()) => {}
                Err((file, e)) => found.closed.push(closed(gauge.source, &file, &e)),
            }
        }
        for chip in &chips {
            chip.temperatures(&mut found);
        }
        found
    }

    /// The source of its energy readings, if there is one.
    pub fn source(&self) -> Option<Source> {
        self.gauge.as_ref().map(|g| g.source)
    }

    /// Reads the best source of energy; `at` is the time by any clock.
    pub fn read(&self, at: Duration) -> Option<Reading> {
        let gauge = self.gauge.as_ref()?;
        let what = match gauge.counters.is_empty() {
            false => SensorValue::Counted(gauge.counted().ok()?),
            true => SensorValue::Drawn(gauge.drawn().ok()?),
        };
        Some(Reading { at, what })
    }

    /// Microjoules between two readings; none if a counter was set back.
    pub fn between(&self, from: &Reading, to: &Reading) -> Option<u64> {
        let gauge = self.gauge.as_ref()?;
        match (&from.what, &to.what) {
            (SensorValue::Counted(from), SensorValue::Counted(to)) => {
                let each = gauge.counters.iter().zip(from.iter().zip(to));
                each.map(|(c, (from, to))| c.between(*from, *to))
                    .try_fold(0u64, |sum, more| sum.checked_add(more?))
            }
            (SensorValue::Drawn(first), SensorValue::Drawn(last)) => {
                let passed = to.at.saturating_sub(from.at).as_nanos();
                let mean = (u128::from(*first) + u128::from(*last)) / 2;
                u64::try_from(mean * passed / 1_000_000_000).ok()
            }
            _ => None,
        }
    }

    /// Milliwatts now, where a meter has that.
    pub(crate) fn milliwatts(&self) -> Option<u64> {
        let gauge = self.gauge.as_ref().filter(|g| !g.watts.is_empty())?;
        Some(gauge.drawn().ok()? / 1000)
    }

    /// Its temperature.
    pub fn warmth(&self) -> Option<Warmth> {
        let read = |files: &[PathBuf]| -> Vec<i32> {
            let all = files.iter().filter_map(|f| number(f).ok());
            all.filter(|t| POSSIBLE.contains(t)).collect()
        };
        let inlets = read(&self.inlets);
        let (millicelsius, sensor) = match i32::try_from(inlets.len()) {
            Ok(count @ 1..) => (inlets.iter().sum::<i32>() / count, Sensor::Inlet),
            _ => (read(&self.processors).into_iter().max()?, Sensor::Processor),
        };
        Some(Warmth {
            millicelsius,
            sensor,
        })
    }
}

impl Counter {
    fn between(&self, from: u64, to: u64) -> Option<u64> {
        let counted = match to.checked_sub(from) {
            Some(more) => more,
            None => self.range.checked_sub(from)?.checked_add(to)?,
        };
        counted.checked_mul(self.unit)
    }
}

impl SensorGroup {
    fn counted(&self) -> io::Result<Vec<u64>> {
        self.counters.iter().map(|c| number(&c.file)).collect()
    }

    /// Microwatts.
    fn drawn(&self) -> io::Result<u64> {
        self.watts.iter().try_fold(0u64, |sum, w| {
            let more = number::<u64>(&w.file)?.saturating_mul(w.unit);
            Ok(sum.saturating_add(more))
        })
    }

    /// Whether all of it can be read; else which file cannot.
    fn readable(&self) -> Result<(), (PathBuf, io::Error)> {
        let files = self.counters.iter().map(|c| &c.file);
        let mut files = files.chain(self.watts.iter().map(|w| &w.file));
        files.try_for_each(|file| number::<u64>(file).map(drop).map_err(|e| (file.clone(), e)))
    }
}

fn closed(source: Source, file: &Path, e: &io::Error) -> String {
    let file = file.display();
    match e.kind() {
        io::ErrorKind::PermissionDenied => format!(
            "{source}: {file} is there, but this user may not read it (kernels since 2020 let only root); an administrator can open it to a group"
        ),
        _ => format!("{source}: {file} cannot be used: {e}"),
    }
}

/// The counters of a node of a Cray.
fn cray(folder: &Path) -> Option<SensorGroup> {
    let (energy, power) = (folder.join("energy"), folder.join("power"));
    let million = 1_000_000;
    let there = |file: &PathBuf| file.exists();
    Some(SensorGroup {
        source: Source::PmCounters,
        counters: vec![Counter {
            file: Some(energy).filter(there)?,
            unit: million,
            range: 0,
        }],
        watts: Some(power)
            .filter(there)
            .map(|file| Watts {
                file,
                unit: million,
            })
            .into_iter()
            .collect(),
    })
}

/// The zones of packages, and of memory in them.
fn rapl(folder: &Path) -> Option<SensorGroup> {
    let mut counters = Vec::new();
    for (entry, zone) in entries(folder) {
        // Not `intel-rapl-mmio`, which shows the same packages once more.
        let Some(numbers) = entry.strip_prefix("intel-rapl:") else {
            continue;
        };
        let name = text(&zone.join("name")).unwrap_or_default();
        let wanted = match numbers.contains(':') {
            false => name.starts_with("package"),
            true => name == "dram",
        };
        if wanted {
            counters.push(Counter {
                file: zone.join("energy_uj"),
                unit: 1,
                range: number(&zone.join("max_energy_range_uj")).unwrap_or(0),
            });
        }
    }
    (!counters.is_empty()).then_some(SensorGroup {
        source: Source::Rapl,
        counters,
        watts: Vec::new(),
    })
}

/// A device of hwmon.
struct Chip {
    driver: String,
    /// Its files, by name.
    files: Vec<(String, PathBuf)>,
}

fn chips(folder: &Path) -> Vec<Chip> {
    let chip = |(_, folder): (String, PathBuf)| {
        // Old drivers have their files one level down.
        let device = folder.join("device");
        let folder = match folder.join("name").exists() {
            true => folder,
            false => device,
        };
        let driver = text(&folder.join("name")).ok()?;
        let files = entries(&folder);
        Some(Chip { driver, files })
    };
    entries(folder).into_iter().filter_map(chip).collect()
}

impl Chip {
    /// Its files called KIND, a number, and `_WHAT`: the number and the path of each.
    fn all<'a>(&'a self, kind: &'a str, what: &'a str) -> impl Iterator<Item = (u32, &'a PathBuf)> {
        self.files.iter().filter_map(move |(name, path)| {
            let rest = name.strip_prefix(kind)?.strip_suffix(what)?;
            Some((rest.strip_suffix('_')?.parse().ok()?, path))
        })
    }

    /// Its maker's name for one of its values.
    fn label(&self, kind: &str, number: u32) -> String {
        let named = format!("{kind}{number}_label");
        let file = self.files.iter().find(|(name, _)| *name == named);
        file.and_then(|(_, path)| text(path).ok())
            .unwrap_or_default()
    }

    fn counters(&self, suits: impl Fn(&str) -> bool) -> Vec<Counter> {
        let all = self.all("energy", "input");
        let all = all.filter(|(n, _)| suits(&self.label("energy", *n)));
        let counter = |(_, file): (u32, &PathBuf)| Counter {
            file: file.clone(),
            unit: 1,
            range: 0,
        };
        all.map(counter).collect()
    }

    fn watts(&self) -> Vec<Watts> {
        let mean: Vec<_> = self.all("power", "average").collect();
        let all = match mean.is_empty() {
            true => self.all("power", "input").collect(),
            false => mean,
        };
        let watts = |(_, file): (u32, &PathBuf)| Watts {
            file: file.clone(),
            unit: 1,
        };
        all.into_iter().map(watts).collect()
    }

    fn temperatures(&self, found: &mut Sensors) {
        let at_inlet = |text: &str| {
            let text = text.to_ascii_lowercase();
            text.contains("inlet") || text.contains("ambient")
        };
        let mut die = Vec::new();
        let before = found.processors.len();
        for (number, file) in self.all("temp", "input") {
            let label = self.label("temp", number);
            let amd = matches!(&*self.driver, "k10temp" | "zenpower");
            if at_inlet(&label) || at_inlet(&self.driver) {
                found.inlets.push(file.clone());
            } else if self.driver == "coretemp" && label.starts_with("Package id")
                || amd && (label == "Tctl" || label.is_empty())
            {
                found.processors.push(file.clone());
            } else if amd && label == "Tdie" {
                die.push(file.clone());
            }
        }
        if found.processors.len() == before {
            found.processors.append(&mut die);
        }
    }
}

/// One source of all these chips.
fn gauge<'a>(
    source: Source,
    chips: impl Iterator<Item = &'a Chip>,
    suits: impl Fn(&str) -> bool + Copy,
) -> Option<SensorGroup> {
    let mut all = SensorGroup {
        source,
        counters: Vec::new(),
        watts: Vec::new(),
    };
    let (mut uncounted, mut unmetered) = (false, false);
    for chip in chips {
        let (counters, watts) = (chip.counters(suits), chip.watts());
        if counters.is_empty() && watts.is_empty() {
            continue;
        }
        uncounted |= counters.is_empty();
        unmetered |= watts.is_empty();
        all.counters.extend(counters);
        all.watts.extend(watts);
    }
    // A value that only some of them have is not the sum of all.
    if uncounted {
        all.counters.clear();
    }
    if unmetered {
        all.watts.clear();
    }
    (!all.counters.is_empty() || !all.watts.is_empty()).then_some(all)
}

fn of_nodes(chips: &[Chip]) -> Option<SensorGroup> {
    let of_node = |c: &&Chip| {
        let aem = c.driver.strip_prefix("aem");
        c.driver == OF_NODES || aem.is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
    };
    gauge(Source::Hwmon, chips.iter().filter(of_node), |_| true)
}

fn of_processors(chips: &[Chip]) -> Option<SensorGroup> {
    let of_cpu = |c: &&Chip| OF_PROCESSORS.contains(&&*c.driver);
    let sockets = |label: &str| label.is_empty() || label.starts_with("Esocket");
    gauge(Source::HwmonCpu, chips.iter().filter(of_cpu), sockets)
}
