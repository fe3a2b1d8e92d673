//! `tarn sim --calibrate`: a recorded run beside its simulation.

mod machine;
mod recorded;
mod report;
mod workload;

use super::{SimArgs, Simulated, replay};
use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use crate::print;
use machine::Bandwidths;
use recorded::Recorded;
use report::{Calibration, CalibrationReport};
use std::sync::Arc;
use tarn_engine::bound::lower_bound;
use tarn_report::Summary;
use tarn_types::codes::Exit;
use tarn_types::site::{Machine, SiteResult, Workload};

pub(super) fn calibrate(globals: &Globals, args: &SimArgs, run: &str) -> CliResult {
    let records = replay::records(globals, run)?;
    let history = crate::state::history_of(&records);
    let recorded = Recorded::of(run, &records, &history)?;
    let bandwidths = Bandwidths::of(&recorded);
    let machine = machine::machine(run, &recorded.start.cluster, &bandwidths)?;
    let workload = Arc::new(workload::workload(&recorded, bandwidths.external())?);
    let simulated = Simulated {
        machine: &machine,
        workload: &workload,
        bounds: &lower_bound(&machine, &workload),
        args,
    };
    let real = Summary::of(&records).exit(Exit::Internal)?.bytes;
    let mut report = CalibrationReport::of(run, &recorded, bandwidths, simulated.bounds.makespan);
    for policy in &args.policy.0 {
        let (result, _) = simulated.run(*policy)?;
        all_ran(&machine, &workload, &result)?;
        let name = policy.to_string();
        report
            .policies
            .push(Calibration::of(name, &recorded, &real, &result));
    }
    if globals.json {
        print::json(&report)?;
    } else {
        print::text(&report.to_string())?;
    }
    Ok(Exit::Success)
}

/// Nothing can be compared with a simulation that left something out.
fn all_ran(machine: &Machine, workload: &Workload, result: &SiteResult) -> CliResult<()> {
    let Some(first) = result.refused.first() else {
        return Ok(());
    };
    let job = workload.jobs.get(first.job.at()).map_or("", |j| &j.name);
    let why = first.lacks.as_deref().unwrap_or("it failed too often");
    Err(CliError::new(
        Exit::NoSpace,
        format!(
            "the planner would not run {} of the {} jobs on {}; the first is {job}: {why}",
            result.refused.len(),
            workload.jobs.len(),
            machine.name
        ),
    ))
}
