//! `tarn usage --workflows`: the sums of workflows on a site (Weiland 2018, equations 1 to 4).

use crate::error::CliResult;
use crate::globals::Globals;
use crate::print::{self, message, out};
use crate::slurm::people::OwnerNames;
use crate::slurm::{ControllerClient, TIMEOUT, refused, unexpected};
use tarn_proto::site::{ControllerReply, ControllerRequest, Owner, WorkflowUsageInfo};
use tarn_types::codes::Exit;
use tarn_types::text::minute;
use tarn_types::units::{Elapsed, SECOND, Time};

const HOUR: f64 = 3600.0;

/// Workflows that had a job since then.
pub(super) fn workflows(globals: &Globals, since: Time) -> CliResult {
    let ask = ControllerRequest::WorkflowUsage(since);
    let runs = match ControllerClient::of_environment().ask_once(&ask, TIMEOUT)? {
        ControllerReply::WorkflowUsage(runs) => runs,
        ControllerReply::Refused(why) => return Err(refused(&why)),
        other => return Err(unexpected(&other)),
    };
    let mut names = OwnerNames::default();
    if globals.json {
        for run in &runs {
            print::json(&json_of(run, names.of(Owner::User(run.user))))?;
        }
        return Ok(Exit::Success);
    }
    if runs.is_empty() {
        message!("no workflow is known");
        return Ok(Exit::Success);
    }
    out!(
        "{:<12} {:<20} {:<20} {:>10} {:>10} {:>10} {:>12}  jobs",
        "who",
        "workflow",
        "begun",
        "T_all",
        "T_queue",
        "T_run",
        "node-hours"
    )?;
    for run in &runs {
        out!(
            "{:<12} {:<20} {:<20} {:>10} {:>10} {:>10} {:>12.2}  {}",
            names.of(Owner::User(run.user)),
            run.workflow,
            minute(run.begun / SECOND),
            Elapsed(run.time).to_string(),
            Elapsed(run.queue).to_string(),
            Elapsed(run.run).to_string(),
            seconds(run.node_time) / HOUR,
            jobs_of(run)
        )?;
    }
    Ok(Exit::Success)
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / SECOND as f64
}

fn json_of(run: &WorkflowUsageInfo, name: &str) -> serde_json::Value {
    serde_json::json!({
        "schema": 1, "user": run.user, "name": name, "workflow": run.workflow,
        "begun": run.begun / SECOND, "is_over": run.is_over,
        "time_s": seconds(run.time), "queue_s": seconds(run.queue), "run_s": seconds(run.run),
        "node_s": seconds(run.node_time),
        "jobs": run.done, "not_done": run.not_done, "open": run.open, "unaccounted": run.unaccounted,
    })
}

/// How its jobs ended, and how many have not.
fn jobs_of(run: &WorkflowUsageInfo) -> String {
    let mut parts = vec![format!("{} done", run.done)];
    let others = [
        (run.not_done, "failed or cancelled"),
        (run.open, "open"),
        (run.unaccounted, "not in Slurm's accounting"),
    ];
    let others = others.iter().filter(|(count, _)| *count > 0);
    parts.extend(others.map(|(count, what)| format!("{count} {what}")));
    if !run.is_over && run.open == 0 {
        parts.push("more may come".into());
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> WorkflowUsageInfo {
        WorkflowUsageInfo {
            user: 7001,
            workflow: "foam".into(),
            begun: 1_796_000_000 * SECOND,
            is_over: true,
            done: 3,
            not_done: 0,
            open: 0,
            unaccounted: 0,
            time: 490 * SECOND,
            queue: 20 * SECOND,
            run: 470 * SECOND,
            node_time: 1880 * SECOND,
        }
    }

    #[test]
    fn the_sums_of_table_4_are_in_seconds() {
        let json = json_of(&run(), "alice");
        assert_eq!(
            (&json["time_s"], &json["node_s"]),
            (&490.0.into(), &1880.0.into())
        );
        assert_eq!(
            (&json["queue_s"], &json["run_s"]),
            (&20.0.into(), &470.0.into())
        );
    }

    #[test]
    fn jobs_that_are_missing_are_named() {
        assert_eq!(jobs_of(&run()), "3 done");
        let part = WorkflowUsageInfo {
            not_done: 2,
            unaccounted: 1,
            is_over: false,
            ..run()
        };
        assert_eq!(
            jobs_of(&part),
            "3 done, 2 failed or cancelled, 1 not in Slurm's accounting, more may come"
        );
    }
}
