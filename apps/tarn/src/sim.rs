//! `tarn sim`: a machine and a workload under one or more policies, in virtual time.

mod advice;
mod args;
mod calibrate;
mod on_slurm;
mod replay;

use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use crate::print::{self, message};
use anyhow::Context;
pub(crate) use args::SimArgs;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tarn_console::simulated::{check_folder, machine_of, read_bounded, rejected};
use tarn_engine::bound::{Bounds, lower_bound};
use tarn_engine::plan::{Planner, drive_site};
use tarn_ports::WorldError;
use tarn_report::site::{Chart, SiteRun, SiteSummary, page, table};
use tarn_simulator::site::SimulatedSite;
use tarn_site_planner::simulated::ServiceMode;
use tarn_spec::site::{Loaded, read_workloads};
use tarn_types::codes::Exit;
use tarn_types::policy::Policy;
use tarn_types::site::{Machine, SiteAction, SiteResult, Workload};

/// Events between two strokes of the progress bar.
const STROKE: u64 = 1 << 12;
/// The column of what happened, where the workload is a site's history.
const RECORDED: &str = "recorded";

/// The object that `--json` prints.
#[derive(Serialize)]
struct SimOutput<'a> {
    schema: u32,
    runs: &'a [SiteSummary],
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<serde_json::Value>,
}

pub(crate) fn sim(globals: &Globals, args: &SimArgs) -> CliResult {
    match (&args.replay, &args.calibrate) {
        (Some(run), _) => replay::replay(globals, run),
        (None, Some(run)) => calibrate::calibrate(globals, args, run),
        (None, None) => compare(globals, args),
    }
}

/// A machine and a workload from files under one policy after the other.
fn compare(globals: &Globals, args: &SimArgs) -> CliResult {
    if let Some(path) = &args.report {
        check_folder(path)?;
    }
    let machine = read_machine(args)?;
    let loaded = read_workload(args, &machine)?;
    let (workload, recorded) = (Arc::new(loaded.workload), loaded.recorded);
    let bounds = lower_bound(&machine, &workload);
    let simulated = Simulated {
        machine: &machine,
        workload: &workload,
        bounds: &bounds,
        args,
    };
    let mut runs = Vec::new();
    let mut last = None;
    if let Some(result) = &recorded {
        let run = simulated.site_run(RECORDED, result, 0.0);
        runs.push((SiteSummary::of(&run), None));
    }
    for policy in &args.policy.0 {
        let (result, wall_s) = simulated.run(*policy)?;
        let name = policy.to_string();
        let run = simulated.site_run(&name, &result, wall_s);
        let summary = SiteSummary::of(&run);
        print_rejected_jobs(&summary);
        let chart = args.report.is_some().then(|| Chart::of(&run));
        runs.push((summary, chart));
        last = Some(result);
    }
    for mode in &args.site {
        runs.push(simulated.on_slurm(*mode)?);
    }
    if let Some(path) = &args.report {
        write_page(path, &machine, &workload, &mut runs)?;
    }
    let summaries: Vec<SiteSummary> = runs.into_iter().map(|(summary, _)| summary).collect();
    let advice = last.filter(|_| args.advice);
    let advice = advice.map(|result| advice::of(args, &machine, &workload, &result));
    if globals.json {
        print::json(&SimOutput {
            schema: 1,
            runs: &summaries,
            advice: advice.map(|a| a.json()),
        })?;
    } else {
        print::text(&table(&summaries))?;
        if let Some(advice) = advice {
            print::text(&advice.text())?;
        }
    }
    let never = summaries
        .iter()
        .find_map(|s| s.refused_jobs.iter().find(|j| j.can_never_run()));
    if let Some(job) = never {
        let workflow = job.workflow.as_deref().unwrap_or_default();
        let message = format!(
            "workflow {workflow} can never run to its end on this machine: {}: {}; the figures are without it",
            job.job, job.why
        );
        return Err(CliError::new(Exit::NoSpace, message));
    }
    let jobs = workload.jobs.len() as u64;
    if jobs > 0 && summaries.iter().any(|s| s.refused == jobs) {
        let message =
            "none of the jobs can run on this machine; the notes above list what is missing";
        return Err(CliError::new(Exit::NoSpace, message));
    }
    Ok(Exit::Success)
}

fn read_machine(args: &SimArgs) -> CliResult<Machine> {
    let Some(cluster) = &args.cluster else {
        let message = "there is no machine to simulate; name it with --cluster FILE";
        return Err(CliError::new(Exit::Usage, message));
    };
    let mut machine = machine_of(cluster)?;
    if let Some(rate) = args.external_rate {
        machine.store.rates.read = rate;
        machine.store.rates.write = rate;
    }
    Ok(machine)
}

fn read_workload(args: &SimArgs, machine: &Machine) -> CliResult<Loaded> {
    for path in &args.workload {
        std::fs::metadata(path)
            .with_context(|| format!("cannot read the workload {}", path.display()))
            .exit(Exit::NotFound)?;
    }
    let paths: Vec<&Path> = args.workload.iter().map(AsRef::as_ref).collect();
    let loaded = read_workloads(&paths, machine, &args.reading(), &read_bounded)
        .map_err(|r| rejected(r, "workload"))?;
    for note in &loaded.notes {
        message!("note: {note}");
    }
    for s in &loaded.workload.skipped {
        message!(
            "note: {}: {} record(s) left out: {} (the first in line {})",
            s.file,
            s.count,
            s.why,
            s.first_line
        );
    }
    let of_flows = args.of_flows();
    if loaded.workload.flows.is_empty() && !of_flows.is_empty() {
        message!(
            "note: {} change nothing: they concern workflows, and there are none here",
            of_flows.join(", ")
        );
    }
    Ok(loaded)
}

fn print_rejected_jobs(summary: &SiteSummary) {
    for job in &summary.refused_jobs {
        message!(
            "note: {}: {}{} was taken out: {}",
            summary.policy,
            job.job,
            job.workflow
                .as_ref()
                .map_or(String::new(), |w| format!(" of workflow {w}")),
            job.why
        );
    }
    let named = summary.refused_jobs.len() as u64;
    if summary.refused > named {
        let more = summary.refused - named;
        message!("note: {}: {more} more jobs were taken out", summary.policy);
    }
}

/// The inputs of a simulation.
struct Simulated<'a> {
    machine: &'a Machine,
    workload: &'a Arc<Workload>,
    bounds: &'a Bounds,
    args: &'a SimArgs,
}

impl<'a> Simulated<'a> {
    /// Simulates a policy; returns the result, and the seconds that the simulation took.
    fn run(&self, policy: Policy) -> CliResult<(SiteResult, f64)> {
        let started = Instant::now();
        let result = self.simulate(policy);
        let wall = started.elapsed().as_secs_f64();
        let result = result
            .with_context(|| format!("the simulation of `{policy}` stopped"))
            .exit(Exit::Internal)?;
        Ok((result, wall))
    }

    fn simulate(&self, policy: Policy) -> Result<SiteResult, WorldError> {
        let mut site = SimulatedSite::new(self.machine, self.workload.clone())?;
        if self.args.report.is_some() {
            site = site.with_spans();
        }
        let mut planner = Planner::new(self.machine, policy);
        let mut progress = SimProgress::new(policy, self.workload.jobs.len());
        let mut watch = |_, _: &_, actions: &[SiteAction]| progress.see(actions);
        if self.args.check {
            let mut checked = site.checked();
            drive_site(&mut planner, &mut checked, &mut watch)?;
            return Ok(checked.into_inner().into_result());
        }
        drive_site(&mut planner, &mut site, &mut watch)?;
        Ok(site.into_result())
    }

    /// The figures, and a chart if there is to be a page, of a Slurm with tarn.
    fn on_slurm(&self, mode: ServiceMode) -> CliResult<(SiteSummary, Option<Chart>)> {
        let (result, wall_s) = on_slurm::run(self.machine, self.workload, mode, self.args)?;
        let run = self.site_run(mode.title(), &result, wall_s);
        let summary = SiteSummary::of(&run);
        print_rejected_jobs(&summary);
        let chart = self.args.report.is_some().then(|| Chart::of(&run));
        Ok((summary, chart))
    }

    fn site_run(&self, policy: &'a str, result: &'a SiteResult, wall_s: f64) -> SiteRun<'a> {
        SiteRun {
            policy,
            machine: self.machine,
            workload: self.workload,
            result,
            lower_bound: self.bounds.makespan,
            flow_bounds: &self.bounds.flows,
            wall_s,
        }
    }
}

fn write_page(
    path: &Path,
    machine: &Machine,
    workload: &Workload,
    runs: &mut [(SiteSummary, Option<Chart>)],
) -> CliResult<()> {
    let drawn = runs
        .iter_mut()
        .filter_map(|(s, chart)| Some((s.clone(), chart.take()?)));
    let drawn: Vec<_> = drawn.collect();
    crate::whole::replace(path, page(machine, workload, &drawn).as_bytes(), None)
        .with_context(|| format!("cannot write the report to {}", path.display()))
        .exit(Exit::State)
}

/// A bar on a terminal: jobs that have released their nodes.
struct SimProgress {
    bar: ProgressBar,
    events: u64,
    released: u64,
}

impl SimProgress {
    fn new(policy: Policy, jobs: usize) -> Self {
        let bar = ProgressBar::new(jobs as u64).with_prefix(policy.to_string());
        let style = "{prefix} {wide_bar} {pos}/{len} jobs, {per_sec}, {eta} left";
        bar.set_style(ProgressStyle::with_template(style).unwrap_or(ProgressStyle::default_bar()));
        Self {
            bar,
            events: 0,
            released: 0,
        }
    }

    fn see(&mut self, actions: &[SiteAction]) {
        let released = actions
            .iter()
            .filter(|a| matches!(a, SiteAction::Release { .. }));
        self.released += released.count() as u64;
        self.events += 1;
        if self.events.is_multiple_of(STROKE) {
            self.bar.set_position(self.released);
        }
    }
}

impl Drop for SimProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
