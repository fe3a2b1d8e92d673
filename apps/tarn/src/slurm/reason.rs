//! Why a job's stage failed, in the job's comment: of a failed gate `squeue` shows no more of its own than that there was one.

use super::command::run_command;
use super::job::{ALONE, alone};
use super::{ControllerClient, TIMEOUT};
use crate::error::CliResult;
use tarn_proto::site::{ControllerReply, ControllerRequest, SlurmJobId};
use tarn_types::line::plain;

/// The beginning of tarn's comments. Others are the user's, and stay.
const OURS: &str = "tarn: ";
/// Characters of a comment.
const MOST: usize = 400;

/// The same result, once the job's comment says why it failed, or no longer says so.
pub(super) fn shown(job: SlurmJobId, done: CliResult) -> CliResult {
    let why = done.as_ref().err().map(ToString::to_string);
    // It stands in the job's history too (`tarn slurm why`): a Slurm that does not take a comment fails no stage.
    let _ = set_job_comment(job, why.as_deref());
    done
}

fn set_job_comment(job: SlurmJobId, why: Option<&str>) -> CliResult<()> {
    // Of an array that is named by its leading job's number there is a line of each task.
    let number = job.to_string();
    let squeue = |id: &str, how: &str, what: &str| {
        run_command("squeue", &["-h", "-t", "all", "-j", id, how, what])
    };
    let Some(id) = alone(&squeue(&number, "-o", ALONE)?, job) else {
        return Ok(());
    };
    let known = squeue(&id, "-O", "comment:512")?;
    let known = known.lines().next().unwrap_or_default().trim();
    if let Some(comment) = comment(known, why)
        && may_change_slurm()
    {
        let (id, comment) = (format!("jobid={id}"), format!("comment={comment}"));
        run_command("scontrol", &["update", &id, &comment])?;
    }
    Ok(())
}

/// Whether the site's mode lets tarn change anything in Slurm. A controller of an earlier version always does.
fn may_change_slurm() -> bool {
    let controller = ControllerClient::of_environment();
    match controller.ask_once(&ControllerRequest::PlanStatus, TIMEOUT) {
        Ok(ControllerReply::PlanStatus(status)) => status.mode != "observe",
        _ => true,
    }
}

/// The new comment, if the known one is to change.
fn comment(known: &str, why: Option<&str>) -> Option<String> {
    let is_free = matches!(known, "" | "(null)" | "N/A");
    let is_ours = known.starts_with(OURS.trim_end());
    match why {
        Some(why) if is_free || is_ours => {
            let why = plain(why);
            Some(OURS.chars().chain(why.chars()).take(MOST).collect())
        }
        None if is_ours => Some(String::new()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_comment_of_tarns_is_replaced() {
        let why = Some("node1: no\u{1b}[2J\nroom");
        for known in ["", "(null)", "tarn: older"] {
            assert_eq!(
                comment(known, why).as_deref(),
                Some("tarn: node1: no\\u{1b}[2J\\nroom")
            );
        }
        assert_eq!(comment("mine", why), None);
        assert_eq!(comment("mine", None), None);
        assert_eq!(comment("(null)", None), None);
        assert_eq!(comment("tarn: older", None).as_deref(), Some(""));
        let long = "x".repeat(9_000);
        assert_eq!(comment("", Some(&long)).map(|c| c.len()), Some(MOST));
    }
}
