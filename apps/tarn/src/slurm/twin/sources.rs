//! The site's past is read: from Slurm's accounting, Slurm as it is now, and the controller.

use super::super::command::run_command;
use super::super::{ControllerClient, TIMEOUT, refused, unexpected};
use crate::error::{CliError, CliResult, ExitWith};
use crate::print::message;
use anyhow::Context;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{ControllerReply, ControllerRequest, JobDataRecord, NodeInfo};
use tarn_slurm::{
    AccountingAnswer, AccountingQuery, AccountingSource, SlurmSnapshot, SlurmSource, SnapshotLimits,
};
use tarn_types::codes::Exit;
use tarn_types::site::AccountedJob;
use tarn_types::units::{SECOND, Time};

/// Pages of records that are read: more than a controller keeps.
const MAX_PAGES: usize = 10_000;

/// All that is known, before it is put together.
pub(super) struct HistorySources {
    pub(super) snapshot: SlurmSnapshot,
    pub(super) jobs: Vec<AccountedJob>,
    pub(super) records: Vec<JobDataRecord>,
    pub(super) nodes: Vec<NodeInfo>,
}

impl HistorySources {
    /// Of all users for root and Slurm's user, else of the caller's own jobs.
    pub(super) fn read(since: Time) -> CliResult<Self> {
        let limits = SnapshotLimits::default();
        let (_, snapshot, _) = SlurmSource::choose(&limits)
            .context("Slurm's nodes cannot be read")
            .exit(Exit::State)?;
        let user = rustix::process::getuid().as_raw();
        let sees_all = user == 0 || Some(user) == slurm_user()?;
        let answer = accounting(since, sees_all, &limits)?;
        if answer.unreadable > 0 {
            let count = answer.unreadable;
            message!(
                "note: {count} records of Slurm's accounting cannot be read; they are left out"
            );
        }
        let mut jobs = answer.jobs;
        jobs.retain(|job| sees_all || job.user == user);
        let controller = ControllerClient::of_environment();
        Ok(Self {
            snapshot,
            jobs,
            records: records(&controller, since)?,
            nodes: match controller.ask_once(&ControllerRequest::Nodes, TIMEOUT)? {
                ControllerReply::Nodes(nodes) => nodes,
                other => return Err(no_answer(&other)),
            },
        })
    }
}

/// The number of the user that slurmctld runs as.
fn slurm_user() -> CliResult<Option<u32>> {
    let config = run_command("scontrol", &["show", "config"])?;
    let line = config.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "SlurmUser").then_some(value)
    });
    // `SlurmUser = slurm(64030)`.
    let number = line.and_then(|line| line.split_once('(')?.1.split(')').next()?.parse().ok());
    Ok(number)
}

fn accounting(since: Time, sees_all: bool, limits: &SnapshotLimits) -> CliResult<AccountingAnswer> {
    let query = AccountingQuery {
        since: since / SECOND,
        jobs: None,
    };
    let found = AccountingSource::find(limits)
        .context("Slurm's accounting cannot be found")
        .exit(Exit::State)?;
    let source = match found {
        // The file is for Slurm's user; slurmctld shows everybody the jobs that ended lately.
        AccountingSource::JobComp(_) if !sees_all => {
            message!(
                "note: only root and Slurm's user read Slurm's file of ended jobs: these are those of yours that slurmctld still knows"
            );
            AccountingSource::Queue
        }
        source => source,
    };
    source
        .read(&query, limits)
        .context("Slurm's accounting cannot be read")
        .exit(Exit::State)
}

fn no_answer(reply: &ControllerReply) -> CliError {
    match reply {
        ControllerReply::Refused(why) => refused(why),
        other => unexpected(other),
    }
}

fn records(controller: &ControllerClient, since: Time) -> CliResult<Vec<JobDataRecord>> {
    let (mut all, mut from) = (Vec::new(), 0);
    for _ in 0..MAX_PAGES {
        let ask = ControllerRequest::Records { since, from };
        match controller.ask_once(&ask, TIMEOUT)? {
            ControllerReply::Records { records, next } => {
                all.extend(records);
                match next {
                    // Each page begins behind the one before.
                    Some(next) if next > from => from = next,
                    _ => return Ok(all),
                }
            }
            other => return Err(no_answer(&other)),
        }
    }
    let text = "the controller's records do not end: name a later time with --since";
    Err(refused(&RequestError::new(Code::Busy, text)))
}
