//! A simulation for a benchmark, and many of them at once.

use crate::error::{CliError, CliResult, ExitWith};
use anyhow::Context;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tarn_engine::plan::{Planner, drive_site};
use tarn_ports::WorldError;
use tarn_report::site::{SiteRun, SiteSummary};
use tarn_simulator::site::SimulatedSite;
use tarn_types::codes::Exit;
use tarn_types::policy::Policy;
use tarn_types::site::{Machine, Rates, SiteResult, Workload};

/// A machine and a workload to simulate, and whether the planner is held to every rule meanwhile.
pub(super) struct SimulationTrial<'a> {
    pub(super) machine: &'a Machine,
    pub(super) workload: &'a Arc<Workload>,
    pub(super) checked: bool,
    /// For errors: the name of the workload.
    pub(super) name: &'a str,
}

impl SimulationTrial<'_> {
    /// The figures under a policy, without bounds. A job that is taken out is an error: figures of different jobs
    /// cannot be compared.
    pub(super) fn run(&self, policy: &Policy) -> CliResult<SiteSummary> {
        let result = self
            .simulate(policy)
            .with_context(|| format!("{}: the simulation of `{policy}` stopped", self.name))
            .exit(Exit::Internal)?;
        let summary = SiteSummary::of(&SiteRun {
            policy: &policy.to_string(),
            machine: self.machine,
            workload: self.workload,
            result: &result,
            lower_bound: 0,
            flow_bounds: &[],
            wall_s: 0.0,
        });
        if let Some(refused) = summary.refused_jobs.first() {
            let message = format!(
                "{}: {} job(s) can never run on {}; the first is {}: {}; take a larger machine, or leave this file out",
                self.name, summary.refused, self.machine.name, refused.job, refused.why
            );
            return Err(CliError::new(Exit::InvalidWorkflow, message));
        }
        Ok(summary)
    }

    fn simulate(&self, policy: &Policy) -> Result<SiteResult, WorldError> {
        let mut planner = Planner::new(self.machine, *policy);
        let mut site = SimulatedSite::new(self.machine, self.workload.clone())?;
        if !self.checked {
            drive_site(&mut planner, &mut site, &mut |_, _, _| ())?;
            return Ok(site.into_result());
        }
        let mut checked = site.checked();
        drive_site(&mut planner, &mut checked, &mut |_, _, _| ())?;
        Ok(checked.into_inner().into_result())
    }
}

/// The part of the external store that is varied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Varied {
    /// The bandwidth of all nodes together.
    Store,
    /// The bandwidth of one node too, in the proportion that the machine has.
    StoreAndClients,
}

/// The same machine with an external store of this bandwidth in both directions.
pub(super) fn with_store(machine: &Machine, rate: u64, varied: Varied) -> Machine {
    let mut machine = machine.clone();
    let store = machine.store;
    let scaled = |client: u64, all: u64| match all {
        0 => 0,
        all => (client as f64 / all as f64 * rate as f64).ceil() as u64,
    };
    if varied == Varied::StoreAndClients {
        machine.store.client = Rates {
            read: scaled(store.client.read, store.rates.read),
            write: scaled(store.client.write, store.rates.write),
        };
    }
    machine.store.rates = Rates {
        read: rate,
        write: rate,
    };
    machine
}

/// The same machine, on which data takes no time.
pub(super) fn without_io(machine: &Machine) -> Machine {
    let mut machine = machine.clone();
    machine.store.rates = Rates::default();
    machine.store.client = Rates::default();
    for island in &mut machine.islands {
        island.kind.link = Rates::default();
        for tier in &mut island.kind.tiers {
            tier.rates = Rates::default();
        }
    }
    machine
}

/// Files that are read once, however often they are used.
#[derive(Default)]
pub(super) struct FileReadCache(Mutex<HashMap<PathBuf, Vec<u8>>>);

impl FileReadCache {
    pub(super) fn read(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = known.get(path) {
            return Ok(bytes.clone());
        }
        let bytes = tarn_console::simulated::read_bounded(path)?;
        known.insert(path.to_owned(), bytes.clone());
        Ok(bytes)
    }
}

/// Does each piece of work, as many at once as there are cores. The results are in the order of the work; after the first
/// error no more is begun.
pub(super) fn on_all_cores<W: Sync, R: Send>(
    work: &[W],
    done: &(dyn Fn() + Sync),
    each: impl Fn(&W) -> CliResult<R> + Sync,
) -> CliResult<Vec<R>> {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let worker = || -> CliResult<Vec<(usize, R)>> {
        let mut results = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = work.get(at) else {
                return Ok(results);
            };
            match each(piece) {
                Ok(result) => results.push((at, result)),
                Err(error) => {
                    next.store(work.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
            done();
        }
    };
    let all: Vec<_> = std::thread::scope(|scope| {
        let threads = threads.min(work.len().max(1));
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        running.into_iter().map(|thread| thread.join()).collect()
    });
    let mut results = Vec::new();
    for of_thread in all {
        let lost = |_| CliError::new(Exit::Internal, "a thread of the benchmark panicked");
        results.extend(of_thread.map_err(lost)??);
    }
    results.sort_by_key(|(at, _)| *at);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Rows below each other: the first column to the left, the others to the right.
pub(super) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |n: usize| {
        let cells = rows.iter().filter_map(|r| r.get(n));
        cells.map(|c| c.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(n, (cell, width))| match n {
            0 => format!("{cell:width$}"),
            _ => format!("  {cell:>width$}"),
        });
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_work() {
        let work: Vec<u64> = (0..200).collect();
        let squares = on_all_cores(&work, &|| (), |n| Ok(n * n)).unwrap();
        assert_eq!(squares, work.iter().map(|n| n * n).collect::<Vec<_>>());
        let failed = on_all_cores(&work, &|| (), |n| match n {
            7 => Err(CliError::new(Exit::State, "seven")),
            n => Ok(*n),
        });
        assert_eq!(failed.unwrap_err().to_string(), "seven");
    }

    #[test]
    fn columns_stand_below_each_other() {
        let rows = [
            vec!["a".into(), "1".into()],
            vec!["long".into(), "22".into()],
        ];
        assert_eq!(aligned(&rows), "a      1\nlong  22\n");
    }
}
