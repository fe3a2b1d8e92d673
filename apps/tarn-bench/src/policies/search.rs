//! One workflow at the bandwidth of the external store that gives it the wanted share of I/O.

use super::points::{BandwidthPoint, IoShares, PolicyRun, ShareOf};
use crate::error::{CliError, CliResult};
use crate::print::message;
use crate::trial::{FileReadCache, SimulationTrial, Varied, with_store, without_io};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tarn_console::simulated::rejected;
use tarn_engine::bound::lower_bound;
use tarn_spec::site::{ReadOptions, read_workload};
use tarn_types::codes::Exit;
use tarn_types::policy::{Order, Policy};
use tarn_types::site::{Machine, Spread, Workload};
use tarn_types::units::SECOND;

/// A share so close to the wanted one is taken.
const CLOSE: f64 = 0.002;
/// A share farther from the wanted one than this is none: the bandwidth of one node is varied too, then it is reported.
const FAR: f64 = 0.03;
/// Bandwidths that are tried. Each halves the rest of eight powers of ten, so the last steps are 0.02 %.
const MAX_TRIALS: u32 = 16;
/// How many times more and less than "all bytes in the time without I/O" the bandwidth may be.
const RANGE: f64 = 1e4;

/// A workflow from a file.
pub(super) struct BenchWorkflow<'a> {
    path: PathBuf,
    name: String,
    files: &'a FileReadCache,
    /// Seconds that it takes under `easy` if data takes no time.
    without_io: f64,
    /// Bytes that `easy` moves.
    through: u64,
    /// Bytes that every policy has to move from and to outside.
    unavoidable: u64,
}

fn easy() -> Policy {
    Policy::new(Order::Easy, None)
}

impl<'a> BenchWorkflow<'a> {
    /// Reads a file, and tries it with data that takes no time.
    ///
    /// # Errors
    /// When it is no workflow, cannot run on this machine, or has no data.
    pub(super) fn new(path: &Path, machine: &Machine, files: &'a FileReadCache) -> CliResult<Self> {
        let mut instance = Self {
            path: path.to_owned(),
            name: path.display().to_string(),
            files,
            without_io: 0.0,
            through: 0,
            unavoidable: 0,
        };
        let machine = without_io(machine);
        let workload = Arc::new(instance.workload(&machine)?);
        let refuse = |why: &str| {
            let message = format!("{}: {why}", path.display());
            Err(CliError::new(Exit::InvalidWorkflow, message))
        };
        let [flow] = workload.flows.as_slice() else {
            return refuse(
                "one workflow is expected, recorded (WfFormat) or as a workflow file; `tarn sim` takes all kinds of \
                 workloads",
            );
        };
        instance.name.clone_from(&flow.name);
        instance.through = through(&workload);
        instance.unavoidable = unavoidable(&workload);
        if instance.through == 0 {
            return refuse(
                "its jobs read and write nothing, so that no bandwidth gives it a share of I/O",
            );
        }
        let trial = instance.trial(&machine, &workload, false);
        instance.without_io = trial.run(&easy())?.makespan_s;
        if instance.without_io <= 0.0 {
            return refuse("its jobs take no time, so that no bandwidth gives it a share of I/O");
        }
        Ok(instance)
    }

    /// Limits depend on how long reading and writing take, so a workload is read for its machine.
    fn workload(&self, machine: &Machine) -> CliResult<Workload> {
        let read = |path: &Path| self.files.read(path);
        let loaded = read_workload(&self.path, machine, &ReadOptions::default(), &read);
        Ok(loaded.map_err(|r| rejected(r, "workflow"))?.workload)
    }

    fn trial<'t>(
        &'t self,
        machine: &'t Machine,
        workload: &'t Arc<Workload>,
        checked: bool,
    ) -> SimulationTrial<'t> {
        SimulationTrial {
            machine,
            workload,
            checked,
            name: &self.name,
        }
    }

    /// All policies at the bandwidth that gives `easy` this share.
    ///
    /// # Errors
    /// When a policy breaks a rule of the machine.
    pub(super) fn point(
        &self,
        machine: &Machine,
        policies: &[Policy],
        wanted: f64,
        of: ShareOf,
        checked: bool,
    ) -> CliResult<BandwidthPoint> {
        let far = |shares: &IoShares| (shares.of(of) - wanted).abs() > FAR;
        let mut varied = Varied::Store;
        let (mut rate, mut shares) = self.search(machine, wanted, of, varied)?;
        if far(&shares) {
            varied = Varied::StoreAndClients;
            (rate, shares) = self.search(machine, wanted, of, varied)?;
        }
        if far(&shares) {
            message!(
                "note: {}: no bandwidth gives a share of {:.0} %; the nearest found is {:.0} %",
                self.name,
                wanted * 100.0,
                shares.of(of) * 100.0
            );
        }
        let machine = with_store(machine, rate, varied);
        let workload = Arc::new(self.workload(&machine)?);
        let trial = self.trial(&machine, &workload, checked);
        let run = |policy: &Policy| {
            let summary = trial.run(policy)?;
            Ok(PolicyRun {
                policy: summary.policy,
                makespan_s: summary.makespan_s,
                external_bytes: summary.bytes.external_in + summary.bytes.external_out,
                peer_bytes: summary.bytes.peer,
            })
        };
        Ok(BandwidthPoint {
            instance: self.name.clone(),
            family: family(&self.name),
            wanted_share: wanted,
            shares,
            external_rate: rate,
            client_rates: [machine.store.client.read, machine.store.client.write],
            runs: policies.iter().map(run).collect::<CliResult<_>>()?,
            lower_bound_s: lower_bound(&machine, &workload).makespan as f64 / SECOND as f64,
            unavoidable_bytes: self.unavoidable,
            stage_through_bytes: self.through,
        })
    }

    /// Bisection by the logarithm. The share falls as the bandwidth grows, but for the odd step where jobs happen to begin
    /// in another order: so the nearest of all that were tried is taken.
    fn search(
        &self,
        machine: &Machine,
        wanted: f64,
        of: ShareOf,
        varied: Varied,
    ) -> CliResult<(u64, IoShares)> {
        let middle = self.through as f64 / self.without_io;
        let (mut slow, mut fast) = (middle / RANGE, middle * RANGE);
        let mut best: Option<(u64, IoShares)> = None;
        for _ in 0..MAX_TRIALS {
            let rate = (slow * fast).sqrt();
            let tried = (rate as u64).max(1);
            let shares = self.shares(&with_store(machine, tried, varied))?;
            let off = |s: &IoShares| (s.of(of) - wanted).abs();
            if best.is_none_or(|(_, b)| off(&shares) < off(&b)) {
                best = Some((tried, shares));
            }
            if off(&shares) <= CLOSE {
                break;
            }
            if shares.of(of) > wanted {
                slow = rate
            } else {
                fast = rate
            }
        }
        let none = || CliError::new(Exit::Internal, "no bandwidth was tried");
        best.ok_or_else(none)
    }

    /// Both shares on a machine.
    fn shares(&self, machine: &Machine) -> CliResult<IoShares> {
        let workload = Arc::new(self.workload(machine)?);
        let summary = self.trial(machine, &workload, false).run(&easy())?;
        Ok(IoShares {
            time_to_solution: (1.0 - self.without_io / summary.makespan_s).max(0.0),
            node_time: summary.io_share,
        })
    }
}

/// `montage` of `montage-chameleon-dss-05d-001`: instances of WfCommons are called by application, site and size.
fn family(name: &str) -> String {
    name.split('-').next().unwrap_or(name).to_owned()
}

/// Bytes to and from outside if every job reads and writes there.
fn through(workload: &Workload) -> u64 {
    let bytes = |item: usize| workload.items.get(item).map_or(0, |i| i.bytes);
    let of_job = |job: &tarn_types::site::Job| {
        let read = job.reads.iter().map(|input| {
            let copies = match input.spread {
                Spread::Share => 1,
                Spread::Whole => u64::from(job.nodes),
            };
            bytes(input.item.at()).saturating_mul(copies)
        });
        let written = job.writes.iter().map(|item| bytes(item.at()));
        read.chain(written).fold(0u64, u64::saturating_add)
    };
    let jobs = workload.jobs.iter().map(|w| of_job(&w.job));
    jobs.fold(0, u64::saturating_add)
}

/// Bytes to and from outside under every policy: each item from outside that is read, once, and each that is kept.
fn unavoidable(workload: &Workload) -> u64 {
    let mut read = vec![false; workload.items.len()];
    for input in workload.jobs.iter().flat_map(|w| &w.job.reads) {
        if let Some(read) = read.get_mut(input.item.at()) {
            *read = true;
        }
    }
    let items = workload.items.iter().zip(read);
    let crossing = items.filter(|(i, read)| if i.item.outside { *read } else { i.item.keep });
    crossing.fold(0, |sum, (i, _)| sum.saturating_add(i.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families() {
        assert_eq!(family("montage-chameleon-dss-05d-001"), "montage");
        assert_eq!(family("1000genome"), "1000genome");
    }
}
