//! Why a job's stage failed, in the job's comment: of a failed gate `squeue` shows no more of its own than that there was one.

use super::command::run_command;
use super::{ControllerClient, TIMEOUT};
use crate::error::CliResult;
use tarn_proto::site::{ControllerReply, ControllerRequest, SlurmJobId};
use tarn_types::line::plain;

/// The beginning of tarn's comments. Others are the user's, and stay.
const OURS: &str = "tarn: ";
/// Characters of a comment.
const MOST: usize = 400;

/// The same result, once the job's comment says why it failed, or no longer says so. `begin`: of the comment that it has now.
pub(super) fn shown(job: SlurmJobId, begin: &str, done: CliResult) -> CliResult {
    let why = done.as_ref().err().map(ToString::to_string);
    if why.is_some() || begin.starts_with(OURS.trim_end()) {
        // It stands in the job's history too (`tarn slurm why`): a Slurm that does not take a comment fails no stage.
        let _ = set_job_comment(job, why.as_deref());
    }
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

/// The format of the lines of `squeue` that [`alone`] reads.
const ALONE: &str = "%A|%F|%K";

/// A name of this job alone: the number of a task of an array may be that of the array too.
fn alone(output: &str, job: SlurmJobId) -> Option<String> {
    output.lines().find_map(|line| {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [number, array, task] = fields[..] else {
            return None;
        };
        if number.parse() != Ok(job) {
            return None;
        }
        Some(match task.parse::<u32>() {
            Ok(task) => format!("{array}_{task}"),
            // Tasks that have not begun are one line together, as `1-9%2`; `N/A` if it is no array.
            Err(_) => job.to_string(),
        })
    })
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
    fn a_task_of_an_array_is_named_alone() {
        let output = "12|11|1\n13|11|2\n11|11|3\n";
        assert_eq!(alone(output, 12).as_deref(), Some("11_1"));
        assert_eq!(alone(output, 11).as_deref(), Some("11_3"));
        assert_eq!(alone(output, 14), None);
        assert_eq!(alone("12|12|N/A\n", 12).as_deref(), Some("12"));
        assert_eq!(alone("11|11|4-9%2\n", 11).as_deref(), Some("11"));
    }

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
