//! Scripts of waiting jobs, also of those that Slurm has not asked about: held, and dependent ones. Needs Slurm's own rights.

use crate::command::{CommandLimits, SOON, answer, answer_of};
use crate::snapshot::values::{number, text};
use crate::{SlurmError, expand_hostlist};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// Bytes of a script: Slurm's own limit is 4 MB.
const MAX_SCRIPT: u64 = 8 << 20;
/// Widths of the columns: a number, a list of nodes, a folder, whose text is its user's and may look like anything.
pub(crate) const NUMBER: usize = 12;
pub(crate) const NODES: usize = 8192;
const FOLDER: usize = 4096;
/// Of a wish as much as tells whether there is one.
const WISH: usize = 8;

/// Where a job was submitted, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOrigin {
    /// The number of its user's group.
    pub group: u32,
    /// Of a task of an array: the array's number.
    pub array: Option<u32>,
    /// The nodes that its user excludes.
    pub excluded: Vec<String>,
    /// The folder that it begins in.
    pub folder: PathBuf,
}

/// The origins of jobs, as far as Slurm still has these jobs.
///
/// # Errors
/// When Slurm cannot be asked.
pub fn job_origins(jobs: &[u32]) -> Result<BTreeMap<u32, JobOrigin>, SlurmError> {
    let jobs: Vec<String> = jobs.iter().map(u32::to_string).collect();
    let columns = format!("%{NUMBER}A%{NUMBER}F%{NUMBER}G%{NODES}x%{FOLDER}Z");
    let output = read(
        "squeue",
        &[
            "-h",
            "-a",
            "-t",
            "all",
            "-j",
            &jobs.join(","),
            "-o",
            &columns,
        ],
    )?;
    Ok(origins(&output))
}

pub(crate) fn read(program: &str, words: &[&str]) -> Result<Vec<u8>, SlurmError> {
    let mut command = Command::new(program);
    // Times are seconds since 1970: others depend on the host.
    command
        .args(words)
        .env("SLURM_TIME_FORMAT", "%s")
        .env("LC_ALL", "C");
    let limits = CommandLimits {
        bytes: MAX_SCRIPT,
        time: SOON,
    };
    answer_of(&mut command, limits)
}

/// These columns of a job, whatever its state: of an array that is named by its leading job's number there is a record of each task.
pub(crate) fn read_job(job: u32, columns: &str) -> Result<Vec<u8>, SlurmError> {
    let id = job.to_string();
    read(
        "squeue",
        &["-h", "-a", "-t", "all", "-j", &id, "-O", columns],
    )
}

/// Takes records apart by the widths of their columns.
pub(crate) fn records<const N: usize>(output: &[u8], widths: [usize; N]) -> Vec<[String; N]> {
    let length: usize = widths.iter().sum();
    let records = output.chunks_exact(length + 1).map(|record| {
        let mut rest = record;
        widths.map(|width| {
            let (value, behind) = rest.split_at(width.min(rest.len()));
            rest = behind;
            String::from_utf8_lossy(value).trim_end().to_owned()
        })
    });
    records.collect()
}

pub(crate) fn small(text: &str) -> Option<u32> {
    u32::try_from(number(text)?).ok()
}

pub(crate) fn list(text: &str) -> Result<Vec<String>, SlurmError> {
    match text {
        "" | "(null)" | "N/A" => Ok(Vec::new()),
        list => Ok(expand_hostlist(list)?),
    }
}

fn origins(output: &[u8]) -> BTreeMap<u32, JobOrigin> {
    let mut origins = BTreeMap::new();
    for record in records(output, [NUMBER, NUMBER, NUMBER, NODES, FOLDER]) {
        let [job, array, group, excluded, folder] = record;
        let (Some(job), Some(group)) = (small(&job), small(&group)) else {
            continue;
        };
        // A list that cannot be read, or is cut, is one job's fault alone: Slurm asks about that job.
        let Ok(excluded) = list(&excluded) else {
            continue;
        };
        let origin = JobOrigin {
            group,
            array: small(&array).filter(|array| *array != job),
            excluded,
            folder: folder.into(),
        };
        origins.insert(job, origin);
    }
    origins
}

/// Whether a job's user has said where it must, or had best, run; not if Slurm does not have it.
///
/// # Errors
/// When Slurm cannot be asked.
pub fn has_wish(job: u32) -> Result<bool, SlurmError> {
    let columns = format!("JobID:{NUMBER},ReqNodes:{WISH},Prefer:{WISH}");
    let output = read_job(job, &columns)?;
    let mut records = records(&output, [NUMBER, WISH, WISH]).into_iter();
    let found = records.find(|record| small(&record[0]) == Some(job));
    Ok(found.is_some_and(|[_, required, preferred]| {
        !text(&required).is_empty() || !text(&preferred).is_empty()
    }))
}

/// The administrator's comment of a job; empty if there is none, or no such job.
///
/// # Errors
/// When Slurm cannot be asked.
pub fn admin_comment(job: u32) -> Result<String, SlurmError> {
    let columns = format!("JobID:{NUMBER},admin_comment:{NODES}");
    let output = read_job(job, &columns)?;
    let mut records = records(&output, [NUMBER, NODES]).into_iter();
    let found = records.find(|record| small(&record[0]) == Some(job));
    Ok(found.map(|[_, comment]| comment).unwrap_or_default())
}

/// The script of a job.
///
/// # Errors
/// When Slurm cannot be asked, has no such job any more, or it has no script.
pub fn job_script(job: u32) -> Result<String, SlurmError> {
    let output = read(
        "scontrol",
        &["write", "batch_script", &job.to_string(), "-"],
    )?;
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
        let record = |job: &str, array: &str, folder: &str| {
            format!(
                "{job:<12}{array:<12}{:<12}{:<8192}{folder:<4096}\n",
                1000, "n[1-2]"
            )
        };
        let forged = format!("/home/a\n{}", &record("9", "9", "/")[..40]);
        let output = record("7", "7", &forged) + &record("8", "6", "/home/b");
        let origins = origins(output.as_bytes());
        assert_eq!(origins.keys().collect::<Vec<_>>(), [&7, &8]);
        assert_eq!(origins[&8].folder, PathBuf::from("/home/b"));
        assert_eq!((origins[&8].group, origins[&8].array), (1000, Some(6)));
        assert_eq!(
            (origins[&7].array, &origins[&7].excluded[..]),
            (None, &["n1".to_owned(), "n2".to_owned()][..])
        );
        assert!(super::origins(b"7 1000 /x\n").is_empty());
        let cut = record("7", "7", "/").replace("n[1-2]", "n[1-2,");
        let both = cut + &record("8", "8", "/home/b");
        assert_eq!(
            super::origins(both.as_bytes())
                .into_keys()
                .collect::<Vec<_>>(),
            [8]
        );
    }
}
