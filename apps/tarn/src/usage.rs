//! `tarn usage`: the use of a site by users and projects. docs/guide/on-a-site.md, "Usage".

mod workflows;

use crate::argument::ArgumentError;
use crate::clock::now;
use crate::date::days;
use crate::error::{CliError, CliResult};
use crate::globals::Globals;
use crate::print::{self, message, out};
use crate::slurm::people::OwnerNames;
use crate::slurm::{ControllerClient, TIMEOUT, refused, unexpected};
use clap::{Args, ValueEnum};
use tarn_proto::site::{ControllerReply, ControllerRequest, Owner};
use tarn_types::codes::Exit;
use tarn_types::units::{Bytes, SECOND, Time, parse_time};

const HOUR: f64 = 3600.0;
const DAY: u64 = 24 * 3600;

#[derive(Debug, Clone, Args)]
pub(crate) struct UsageArgs {
    /// Users only, or projects only [default: both]
    #[arg(long, value_enum)]
    by: Option<UsageGrouping>,
    /// Since the beginning of that day (UTC): a date such as 2026-11-01, or a time back from now such as 30d [default: all
    /// that the controller knows]
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    /// Workflows in place of users and projects: time to solution, waits, run times, node-hours
    #[arg(long, conflicts_with = "by")]
    workflows: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum UsageGrouping {
    /// Users
    User,
    /// Projects, which are groups
    Project,
}

pub(crate) fn usage(globals: &Globals, args: &UsageArgs) -> CliResult {
    let since = match &args.since {
        Some(text) => when(text, now()).map_err(|why| CliError::new(Exit::Usage, why))?,
        None => 0,
    };
    if args.workflows {
        return workflows::workflows(globals, since);
    }
    let mut used = match ControllerClient::of_environment()
        .ask_once(&ControllerRequest::Usage(since), TIMEOUT)?
    {
        ControllerReply::Usage(used) => used,
        ControllerReply::Refused(why) => return Err(refused(&why)),
        other => return Err(unexpected(&other)),
    };
    used.retain(|u| {
        let kind = match u.owner {
            Owner::User(_) => UsageGrouping::User,
            Owner::Project(_) => UsageGrouping::Project,
        };
        args.by.is_none_or(|by| by == kind)
    });
    let mut names = OwnerNames::default();
    let node_hours = |seconds: u64| seconds as f64 / HOUR;
    let gib_hours = |mib_seconds: u64| mib_seconds as f64 / 1024.0 / HOUR;
    if globals.json {
        for u in &used {
            let (kind, number) = match u.owner {
                Owner::User(uid) => ("user", uid),
                Owner::Project(gid) => ("project", gid),
            };
            print::json(&serde_json::json!({
                "schema": 1, "kind": kind, "number": number,
                "name": names.of(u.owner).trim_start_matches('@'),
                "node_hours": node_hours(u.node_seconds),
                "tier_gib_hours": gib_hours(u.mib_seconds),
                "read_outside": u.read_outside, "written_outside": u.written_outside,
                "between_nodes": u.between_nodes,
            }))?;
        }
        return Ok(Exit::Success);
    }
    if used.is_empty() {
        message!("nothing was used");
        return Ok(Exit::Success);
    }
    out!(
        "{:<20} {:>12} {:>15} {:>13} {:>15} {:>13}",
        "who",
        "node-hours",
        "tier-GiB-hours",
        "read outside",
        "written outside",
        "between nodes"
    )?;
    for u in used {
        out!(
            "{:<20} {:>12.2} {:>15.2} {:>13} {:>15} {:>13}",
            names.of(u.owner),
            node_hours(u.node_seconds),
            gib_hours(u.mib_seconds),
            Bytes(u.read_outside).to_string(),
            Bytes(u.written_outside).to_string(),
            Bytes(u.between_nodes).to_string()
        )?;
    }
    Ok(Exit::Success)
}

/// A date, or so long before now; never 0, which is for all.
pub(crate) fn when(text: &str, now: Time) -> Result<Time, ArgumentError> {
    if let Some(days) = days(text) {
        let at = days.checked_mul(DAY * SECOND);
        let at = at.ok_or_else(|| ArgumentError::new(format!("`{text}` is too far away")))?;
        return Ok(at.max(1));
    }
    let back = parse_time(text).map_err(|e| {
        let form = "is neither a date such as 2026-11-01 nor a time such as 30d";
        ArgumentError::new(format!("`{text}` {form}: {e}"))
    })?;
    Ok(now.saturating_sub(back).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_times_back_are_read() {
        assert_eq!(when("2d", 3 * DAY * SECOND), Ok(DAY * SECOND));
        assert_eq!(when("1970-01-01", 5), Ok(1));
        assert!(when("yesterday", 5).is_err());
    }
}
