//! `tarn slurm plan`: which jobs are expected on which nodes, and when.

use super::people::OwnerNames;
use super::{ControllerClient, TIMEOUT, refused, unexpected};
use crate::error::{CliResult, ExitWith};
use crate::globals::Globals;
use crate::print::{self, message, out};
use anyhow::Context;
use clap::Args;
use std::path::PathBuf;
use tarn_proto::site::{
    ControllerReply, ControllerRequest, Owner, PlanInfo, PlanStatusInfo, PlannedJobInfo,
};
use tarn_report::site::{PlanBar, PlanChart, plan_page};
use tarn_types::codes::Exit;
use tarn_types::units::{Elapsed, Nanos, parse_time};

/// Nodes that a line of the table names.
const MAX_NAMED: usize = 3;

#[derive(Debug, Clone, Args)]
pub(crate) struct PlanArgs {
    /// Jobs that begin within this time
    #[arg(long, value_name = "TIME", default_value = "12h", value_parser = parse_time)]
    within: Nanos,
    /// Write a page with a chart of nodes over time
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(super) fn plan(globals: &Globals, controller: &ControllerClient, args: &PlanArgs) -> CliResult {
    let mut info = match controller.ask_once(&ControllerRequest::Plan, TIMEOUT)? {
        ControllerReply::Plan(info) => *info,
        ControllerReply::Refused(why) => return Err(refused(&why)),
        other => return Err(unexpected(&other)),
    };
    let until = info.status.made.saturating_add(args.within);
    info.jobs.retain(|job| job.begin <= until);
    info.until = info.until.min(until);
    if let Some(path) = &args.html {
        let page = plan_page(&chart(&info));
        let failed = || format!("cannot write {}", path.display());
        crate::whole::replace(path, page.as_bytes(), None)
            .with_context(failed)
            .exit(Exit::State)?;
        message!("{} shows the plan", path.display());
        return Ok(Exit::Success);
    }
    if globals.json {
        print::json(&as_json(&info))?;
        return Ok(Exit::Success);
    }
    table(&info)?;
    Ok(Exit::Success)
}

/// The mode of the site: `tarn slurm mode`.
pub(super) fn show_mode(globals: &Globals, controller: &ControllerClient) -> CliResult {
    let status = match controller.ask_once(&ControllerRequest::PlanStatus, TIMEOUT)? {
        ControllerReply::PlanStatus(status) => *status,
        ControllerReply::Refused(why) => return Err(refused(&why)),
        other => return Err(unexpected(&other)),
    };
    if globals.json {
        print::json(&serde_json::json!({ "mode": status.mode }))?;
    } else {
        out!("{}", status.mode)?;
    }
    Ok(Exit::Success)
}

/// The user of a job, for people.
fn user(names: &mut OwnerNames, job: &PlannedJobInfo) -> String {
    match job.user {
        Some(uid) => names.of(Owner::User(uid)).to_owned(),
        None => "-".to_owned(),
    }
}

fn nodes_of<'a>(info: &'a PlanInfo, job: &'a PlannedJobInfo) -> impl Iterator<Item = &'a str> {
    let nodes = job.nodes.iter();
    nodes.filter_map(|n| Some(&info.nodes.get(*n as usize)?[..]))
}

fn table(info: &PlanInfo) -> CliResult<()> {
    if info.status.made == 0 {
        message!("nothing is planned yet: the controller has not read Slurm's state");
        return Ok(());
    }
    let mut names = OwnerNames::default();
    out!(
        "{:>10} {:<12} {:<24} {:>12} {:>12}  why",
        "job",
        "user",
        "nodes",
        "begins",
        "ends"
    )?;
    for job in &info.jobs {
        let mut nodes = nodes_of(info, job);
        let mut named: Vec<&str> = nodes.by_ref().take(MAX_NAMED).collect();
        let more = format!("+{}", nodes.count());
        if more != "+0" {
            named.push(&more);
        }
        let since = |at: u64| match at.saturating_sub(info.status.made) {
            0 => "now".to_owned(),
            wait => Elapsed(wait).to_string(),
        };
        let begins = if job.has_begun {
            "runs".to_owned()
        } else {
            since(job.begin)
        };
        out!(
            "{:>10} {:<12} {:<24} {begins:>12} {:>12}  {}",
            job.job,
            user(&mut names, job),
            named.join(","),
            since(job.end),
            job.why
        )?;
    }
    for (job, why) in &info.unplanned {
        out!("{job:>10} has no place in the plan: {why}")?;
    }
    if info.others_unplanned > 0 {
        message!(
            "{} jobs of others have no place in the plan",
            info.others_unplanned
        );
    }
    if info.left_out > 0 {
        message!("{} jobs more are planned", info.left_out);
    }
    Ok(())
}

fn as_json(info: &PlanInfo) -> serde_json::Value {
    let mut names = OwnerNames::default();
    let job = |job: &PlannedJobInfo| {
        let user = job.user.map(|uid| names.of(Owner::User(uid)).to_owned());
        serde_json::json!({
            "job": job.job, "user": user, "workflow": job.workflow,
            "nodes": nodes_of(info, job).collect::<Vec<_>>(),
            "runs": job.has_begun, "begin": job.begin, "end": job.end,
            "why": Some(&job.why).filter(|why| !why.is_empty()),
        })
    };
    let jobs: Vec<serde_json::Value> = info.jobs.iter().map(job).collect();
    let unplanned = info.unplanned.iter();
    let unplanned = unplanned.map(|(job, why)| serde_json::json!({"job": job, "why": why}));
    serde_json::json!({
        "schema": 1, "mode": info.status.mode, "policy": info.status.policy,
        "made": info.status.made, "until": info.until, "jobs": jobs,
        "unplanned": unplanned.collect::<Vec<_>>(),
        "others_unplanned": info.others_unplanned, "left_out": info.left_out,
    })
}

fn chart(info: &PlanInfo) -> PlanChart {
    let mut names = OwnerNames::default();
    let made = info.status.made;
    let bars = info.jobs.iter().map(|job| PlanBar {
        name: match job.user {
            Some(_) => format!("{} of {}", job.job, user(&mut names, job)),
            None => job.job.to_string(),
        },
        workflow: job.workflow.clone(),
        nodes: job.nodes.clone(),
        has_begun: job.has_begun,
        begin: job.begin.saturating_sub(made),
        end: job.end.saturating_sub(made),
        why: job.why.clone(),
    });
    PlanChart {
        policy: info.status.policy.clone(),
        mode: info.status.mode.clone(),
        made: tarn_types::text::minute(made / tarn_types::units::SECOND),
        length: info.until.saturating_sub(made),
        nodes: info.nodes.clone(),
        bars: bars.collect(),
        unplanned: info.unplanned.clone(),
        others_unplanned: info.others_unplanned,
    }
}

/// The state of the planning, in a line or two: `tarn slurm status`.
pub(super) fn status_lines(status: &PlanStatusInfo) -> Vec<String> {
    let PlanStatusInfo { mode, policy, .. } = status;
    if status.made == 0 {
        return vec![format!(
            "plan: mode {mode}, policy {policy}: none was made yet"
        )];
    }
    let first = format!(
        "plan: mode {mode}, policy {policy}: {} jobs wait in the plan of {} ago, which took {}",
        status.waiting,
        Elapsed(status.age),
        Elapsed(status.took)
    );
    let second = match status.median_error {
        None => "planned against real begins: no planned job has begun yet".to_owned(),
        Some(error) => format!(
            "planned against real begins: {} jobs, median error {}, {} on just the planned nodes",
            status.begun,
            Elapsed(error),
            status.on_planned_nodes
        ),
    };
    vec![first, second]
}
