//! `tarn slurm advise`: the last days again, as they were and as `drive` would have them.

use super::gather::twin_since;
use super::sentences::{Replays, sentences};
use super::{AS_IT_WAS, DRIVE};
use crate::error::{CliResult, ExitWith};
use crate::globals::Globals;
use crate::print::{self, out};
use anyhow::Context;
use clap::Args;
use std::sync::Arc;
use tarn_engine::plan::{Planner, drive_site};
use tarn_report::site::{SiteRun, SiteSummary};
use tarn_simulator::site::SimulatedSite;
use tarn_twin::SiteTwin;
use tarn_types::codes::Exit;
use tarn_types::policy::Policy;
use tarn_types::site::{SiteResult, Workload};

#[derive(Debug, Clone, Args)]
pub(crate) struct AdviseArgs {
    /// Jobs that ended since then: a date such as 2026-11-01, or a time back from now such as 7d
    #[arg(long, value_name = "WHEN", default_value = "7d")]
    since: String,
}

pub(in crate::slurm) fn advise(globals: &Globals, args: &AdviseArgs) -> CliResult {
    let twin = twin_since(&args.since)?;
    let work = Arc::new(twin.recorded.workload.clone());
    let replays = Replays {
        recorded: summary(&twin, "recorded", &twin.recorded.result),
        as_it_was: simulate(&twin, &work, AS_IT_WAS)?,
        drive: simulate(&twin, &work, DRIVE)?,
    };
    let sentences = sentences(&replays);
    if globals.json {
        let runs = [&replays.recorded, &replays.as_it_was, &replays.drive];
        print::json(&serde_json::json!({
            "schema": 1, "runs": runs, "sentences": sentences, "notes": twin.notes,
        }))?;
        return Ok(Exit::Success);
    }
    for sentence in sentences {
        out!("{sentence}")?;
    }
    Ok(Exit::Success)
}

fn simulate(twin: &SiteTwin, work: &Arc<Workload>, policy: &str) -> CliResult<SiteSummary> {
    let failed = || format!("the simulation of `{policy}` stopped");
    let parsed: Policy = policy.parse().with_context(failed).exit(Exit::Internal)?;
    let site = SimulatedSite::new(&twin.machine, work.clone());
    let mut site = site.with_context(failed).exit(Exit::Internal)?;
    let mut planner = Planner::new(&twin.machine, parsed);
    drive_site(&mut planner, &mut site, &mut |_, _, _| {})
        .with_context(failed)
        .exit(Exit::Internal)?;
    Ok(summary(twin, policy, &site.into_result()))
}

fn summary(twin: &SiteTwin, policy: &str, result: &SiteResult) -> SiteSummary {
    SiteSummary::of(&SiteRun {
        policy,
        machine: &twin.machine,
        workload: &twin.recorded.workload,
        result,
        lower_bound: 0,
        flow_bounds: &[],
        wall_s: 0.0,
    })
}
