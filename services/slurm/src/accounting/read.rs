//! Runs `sacct` or reads the file of `jobcomp/filetxt`, and asks slurmctld for what these lack.

use super::{AccountingAnswer, queue, sacct};
use crate::snapshot::fields::format_of;
use crate::snapshot::read::run;
use crate::snapshot::values;
use crate::{SlurmError, SnapshotLimits};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Jobs that one command names.
const MAX_NAMED: usize = 500;

/// Where the accounting of a site is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccountingSource {
    /// slurmdbd: `sacct`.
    Sacct,
    /// The text file of `jobcomp/filetxt`, and slurmctld.
    JobComp(PathBuf),
    /// slurmctld alone: it forgets a job `MinJobAge` after its end.
    Queue,
}

/// Which jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccountingQuery<'a> {
    /// Seconds since 1970: those that had not ended then.
    pub since: u64,
    /// The numbers of some; `None`: all.
    pub jobs: Option<&'a [u32]>,
}

impl AccountingSource {
    /// The best that the site has, by Slurm's configuration.
    ///
    /// # Errors
    /// When slurmctld does not say what it is configured for.
    pub fn find(limits: &SnapshotLimits) -> Result<Self, SlurmError> {
        let config = run("scontrol", &["show", "config"], limits)?;
        Ok(Self::of_config(&String::from_utf8_lossy(&config)))
    }

    /// By the output of `scontrol show config`.
    #[must_use]
    pub fn of_config(config: &str) -> Self {
        let settings = values::settings(config);
        let is = |key: &str, value: &str| settings.get(key).is_some_and(|has| *has == value);
        let file = settings.get("JobCompLoc").copied().map(values::text);
        if is("AccountingStorageType", "accounting_storage/slurmdbd") {
            return Self::Sacct;
        }
        match file {
            Some(file) if is("JobCompType", "jobcomp/filetxt") && file.starts_with('/') => {
                Self::JobComp(file.into())
            }
            _ => Self::Queue,
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// When a program fails, needs more time or bytes than the limits allow, or the file cannot be read.
    pub fn read(
        &self,
        query: &AccountingQuery<'_>,
        limits: &SnapshotLimits,
    ) -> Result<AccountingAnswer, SlurmError> {
        let Self::Sacct = self else {
            let mut answer = match self {
                Self::JobComp(path) => of_file(path, limits.bytes)?,
                Self::Sacct | Self::Queue => AccountingAnswer::default(),
            };
            answer.complete(queued(limits)?);
            answer.jobs.retain(|job| is_wanted(job, query));
            return Ok(answer);
        };
        let mut answer = AccountingAnswer::default();
        let since = format!("now-{}seconds", seconds_since(query.since));
        let words = [
            "-a",
            "-D",
            "-X",
            "-P",
            "-n",
            "-S",
            &since,
            "-o",
            sacct::FIELDS,
        ];
        let mut ask = |more: &[&str]| {
            let bytes = run("sacct", &[&words, more].concat(), limits)?;
            let part = sacct::read(&bytes);
            answer.jobs.extend(part.jobs);
            answer.unreadable = answer.unreadable.saturating_add(part.unreadable);
            Ok::<(), SlurmError>(())
        };
        match query.jobs {
            None => ask(&[])?,
            Some(jobs) => {
                for some in jobs.chunks(MAX_NAMED) {
                    ask(&["-j", &list_of(some)])?;
                }
            }
        }
        // Of an array or a heterogeneous job sacct lists all parts.
        answer.jobs.retain(|job| is_wanted(job, query));
        Ok(answer.bound())
    }
}

fn is_wanted(job: &tarn_types::site::AccountedJob, query: &AccountingQuery<'_>) -> bool {
    let is_named = query.jobs.is_none_or(|jobs| jobs.contains(&job.number));
    is_named && job.end.is_none_or(|end| end >= query.since)
}

fn list_of(jobs: &[u32]) -> String {
    let jobs: Vec<String> = jobs.iter().map(u32::to_string).collect();
    jobs.join(",")
}

/// Seconds from then to now; `sacct` takes no later beginning than now.
fn seconds_since(then: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs()).saturating_sub(then)
}

/// The jobs that slurmctld knows: all of them, as squeue fails for a list in which one is unknown.
fn queued(limits: &SnapshotLimits) -> Result<AccountingAnswer, SlurmError> {
    let format = format_of(&queue::COLUMNS, false);
    let words = ["-h", "-a", "-r", "-t", "all", "-O", &format];
    queue::read(&run("squeue", &words, limits)?)
}

/// The processors of each node.
///
/// # Errors
/// When `sinfo` fails.
pub fn node_processors(limits: &SnapshotLimits) -> Result<BTreeMap<String, u32>, SlurmError> {
    let text = run("sinfo", &["-h", "-a", "-N", "-o", "%N %c"], limits)?;
    let text = String::from_utf8_lossy(&text);
    let nodes = text.lines().filter_map(|line| {
        let (name, cpus) = line.split_once(' ')?;
        Some((name.to_owned(), cpus.trim().parse().ok()?))
    });
    Ok(nodes.collect())
}

/// The last bytes of the file: what is before them ended longest ago. A line that they cut is one that cannot be read.
fn of_file(path: &Path, most: u64) -> Result<AccountingAnswer, SlurmError> {
    let unreadable = |source| SlurmError::File {
        path: path.to_owned(),
        source,
    };
    let mut file = File::open(path).map_err(unreadable)?;
    let length = file.metadata().map_err(unreadable)?.len();
    let from = length.saturating_sub(most);
    file.seek(SeekFrom::Start(from)).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(most)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    Ok(AccountingAnswer::from_jobcomp(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_follows_from_slurms_configuration() {
        let of = |text: &str| AccountingSource::of_config(text);
        let file =
            "JobCompLoc              = /var/log/jobs\nJobCompType             = jobcomp/filetxt\n";
        let dbd = "AccountingStorageType   = accounting_storage/slurmdbd\n";
        assert_eq!(of(file), AccountingSource::JobComp("/var/log/jobs".into()));
        assert_eq!(of(&format!("{dbd}{file}")), AccountingSource::Sacct);
        assert_eq!(of(""), AccountingSource::Queue);
        let none = file.replace("/var/log/jobs", "(null)");
        assert_eq!(of(&none), AccountingSource::Queue);
    }

    #[test]
    fn only_the_end_of_a_long_file_is_read() {
        let folder = std::env::temp_dir().join(format!("tarn-jobcomp-{}", std::process::id()));
        std::fs::write(&folder, "x\n".repeat(1000)).unwrap();
        let answer = of_file(&folder, 9);
        std::fs::remove_file(&folder).unwrap();
        assert_eq!(answer.unwrap().unreadable, 1);
        assert!(matches!(of_file(&folder, 9), Err(SlurmError::File { .. })));
    }
}
