//! Scripts of waiting jobs, also of those that Slurm has not asked about: held, and dependent ones. Needs Slurm's own rights.

use crate::SlurmError;
use crate::command::{CommandLimits, SOON, answer, answer_of};
use crate::snapshot::values::number;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// Bytes of a script: Slurm's own limit is 4 MB.
const MAX_SCRIPT: u64 = 8 << 20;
/// Widths of the columns: a number, and the folder, whose text is its user's and may look like anything.
const NUMBER: usize = 12;
const FOLDER: usize = 4096;

/// Where a job was submitted, and as which group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOrigin {
    /// The group's number.
    pub group: u32,
    /// The folder that it begins in.
    pub folder: PathBuf,
}

/// The origins of jobs, as far as Slurm still has these jobs.
///
/// # Errors
/// When Slurm cannot be asked.
pub fn job_origins(jobs: &[u32]) -> Result<BTreeMap<u32, JobOrigin>, SlurmError> {
    let jobs: Vec<String> = jobs.iter().map(u32::to_string).collect();
    let columns = format!("JobID:{NUMBER},GroupID:{NUMBER},WorkDir:{FOLDER}");
    let mut command = Command::new("squeue");
    command.args(["-h", "-a", "-j", &jobs.join(","), "-O", &columns]);
    let output = answer_of(&mut command, CommandLimits::short(SOON))?;
    Ok(origins(&output))
}

/// Takes an output apart by the length of its records.
fn origins(output: &[u8]) -> BTreeMap<u32, JobOrigin> {
    let records = output.chunks_exact(NUMBER + NUMBER + FOLDER + 1);
    let origins = records.filter_map(|record| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        let small = |bytes: &[u8]| u32::try_from(number(&text(bytes))?).ok();
        let (job, rest) = record.split_at(NUMBER);
        let (group, folder) = rest.split_at(NUMBER);
        let origin = JobOrigin {
            group: small(group)?,
            folder: text(folder).into(),
        };
        Some((small(job)?, origin))
    });
    origins.collect()
}

/// The script of a job.
///
/// # Errors
/// When Slurm cannot be asked, has no such job any more, or it has no script.
pub fn job_script(job: u32) -> Result<String, SlurmError> {
    let mut command = Command::new("scontrol");
    command.args(["write", "batch_script", &job.to_string(), "-"]);
    let limits = CommandLimits {
        bytes: MAX_SCRIPT,
        time: SOON,
    };
    let output = answer_of(&mut command, limits)?;
    Ok(String::from_utf8_lossy(&output).into_owned())
}

/// Releases a held job, with this comment of the administrator's.
///
/// # Errors
/// When Slurm cannot be asked, or refuses.
pub fn release_with_comment(job: u32, comment: &str) -> Result<(), SlurmError> {
    let (id, comment) = (format!("jobid={job}"), format!("admincomment={comment}"));
    answer("scontrol", &["update", &id, &comment], SOON)?;
    answer("scontrol", &["release", &job.to_string()], SOON).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_looks_like_a_record_stays_one() {
        let record = |job: &str, folder: &str| format!("{job:<12}{:<12}{folder:<4096}\n", 1000);
        let forged = format!("/home/a\n{}", &record("9", "/")[..40]);
        let output = record("7", &forged) + &record("8", "/home/b");
        let origins = origins(output.as_bytes());
        assert_eq!(origins.keys().collect::<Vec<_>>(), [&7, &8]);
        assert_eq!(origins[&8].folder, PathBuf::from("/home/b"));
        assert_eq!(origins[&8].group, 1000);
        assert!(super::origins(b"7 1000 /x\n").is_empty());
    }
}
