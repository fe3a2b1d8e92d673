//! `tarn sim --site`: the same machine and workload on a simulated Slurm, with tarn's site service.

use super::SimArgs;
use crate::error::{CliError, CliResult};
use crate::print::message;
use std::sync::Arc;
use std::time::Instant;
use tarn_site_planner::simulated::{
    ClusterError, ClusterSettings, ServiceMode, SimulatedCluster, SlurmTimes,
};
use tarn_types::codes::Exit;
use tarn_types::policy::{Order, Policy};
use tarn_types::site::{Machine, SiteResult, Workload};
use tarn_types::units::Elapsed;

/// Simulates a mode; returns the result, and the seconds that the simulation took.
pub(super) fn run(
    machine: &Machine,
    workload: &Arc<Workload>,
    mode: ServiceMode,
    args: &SimArgs,
) -> CliResult<(SiteResult, f64)> {
    // The planner of a site has this policy unless site.toml names another one.
    let own = args.policy.0.iter().rfind(|p| p.order == Order::Data);
    let settings = ClusterSettings {
        mode,
        times: SlurmTimes::default(),
        policy: own
            .copied()
            .unwrap_or_else(|| Policy::new(Order::Data, None)),
        is_checked: args.check,
    };
    let started = Instant::now();
    let cluster = SimulatedCluster::new(machine, workload.clone(), settings);
    let result = cluster.and_then(SimulatedCluster::run);
    let result = result.map_err(|e| {
        let exit = match e {
            ClusterError::Unsupported { .. } => Exit::InvalidWorkflow,
            ClusterError::Rule { .. } | ClusterError::Stuck { .. } => Exit::Internal,
        };
        CliError::new(exit, format!("the simulation of `{}`: {e}", mode.title()))
    })?;
    if result.delays > 0 {
        message!(
            "note: {}: workflows put ordinary jobs off by more than {}, {} times",
            mode.title(),
            Elapsed(settings.policy.bound),
            result.delays
        );
    }
    Ok((result.site, started.elapsed().as_secs_f64()))
}
