//! The conditions of a waiting job as Slurm has them at this moment. They are read again before tarn changes the job: a reading of
//! the whole queue is seconds old, and what its user has changed since then stays.

use crate::scripts::{NODES, NUMBER, list, read, read_job, records, small};
use crate::snapshot::unreadable;
use crate::snapshot::values::{text, time};
use crate::{SlurmError, SlurmJob};
use std::collections::BTreeSet;
use tarn_proto::site::SlurmJobConditions;

/// Bytes of the conditions on other jobs: some 1,000 of them.
const DEPENDENCY: usize = 32 << 10;
/// Bytes of a time.
const TIME: usize = 20;

/// A job's conditions now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PresentConditions {
    /// The jobs that it waits for, as Slurm writes them.
    pub(crate) dependency: String,
    pub(crate) required: BTreeSet<String>,
    pub(crate) preferred: String,
    pub(crate) reservation: String,
    /// When it could begin at the earliest, in seconds since 1970.
    pub(crate) eligible: Option<u64>,
}

impl PresentConditions {
    /// Those of a job.
    ///
    /// # Errors
    /// When Slurm cannot be asked, has no such job, or says more than fits.
    pub(crate) fn read(job: u32) -> Result<Self, SlurmError> {
        let columns = format!(
            "JobID:{NUMBER},ReqNodes:{NODES},Prefer:{NODES},Dependency:{DEPENDENCY},Reservation:{NODES},EligibleTime:{TIME}"
        );
        Self::parse(job, &read_job(job, &columns)?)
    }

    fn parse(job: u32, output: &[u8]) -> Result<Self, SlurmError> {
        let widths = [NUMBER, NODES, NODES, DEPENDENCY, NODES, TIME];
        let mut records = records(output, widths).into_iter();
        let Some(record) = records.find(|record| small(&record[0]) == Some(job)) else {
            return Err(unreadable("squeue", &format!("it has no job {job}")));
        };
        if record
            .iter()
            .zip(widths)
            .any(|(value, width)| value.len() >= width)
        {
            let what = format!("the conditions of job {job} are longer than what is read of them");
            return Err(unreadable("squeue", &what));
        }
        let [_, required, preferred, dependency, reservation, eligible] = record;
        Ok(Self {
            dependency: text(&dependency).to_owned(),
            required: list(&required)?.into_iter().collect(),
            preferred: text(&preferred).to_owned(),
            reservation: text(&reservation).to_owned(),
            eligible: time(&eligible),
        })
    }

    /// Whether its nodes are its user's to choose as they were.
    pub(crate) fn has_nodes_of(&self, seen: &SlurmJobConditions) -> bool {
        self.required == seen.required.iter().cloned().collect() && self.preferred == seen.preferred
    }
}

/// The nodes that a job must not get now. `-O` of 22.05 has no column of them.
///
/// # Errors
/// As of [`PresentConditions::read`].
pub(crate) fn excluded_now(job: u32) -> Result<BTreeSet<String>, SlurmError> {
    let columns = format!("%{NUMBER}A%{NODES}x");
    let id = job.to_string();
    let output = read(
        "squeue",
        &["-h", "-a", "-t", "all", "-j", &id, "-o", &columns],
    )?;
    let mut records = records(&output, [NUMBER, NODES]).into_iter();
    match records.find(|record| small(&record[0]) == Some(job)) {
        Some([_, excluded]) if excluded.len() < NODES => Ok(list(&excluded)?.into_iter().collect()),
        _ => Err(unreadable(
            "squeue",
            &format!("the nodes that job {job} excludes"),
        )),
    }
}

/// Whether where and when a job may begin is as the snapshot has it: its user has changed neither nodes, nor reservation, nor begin.
///
/// # Errors
/// When Slurm cannot be asked, or has no such job.
pub fn is_as_read(job: &SlurmJob) -> Result<bool, SlurmError> {
    let now = PresentConditions::read(job.number)?;
    let is_same = now.has_nodes_of(&conditions(job))
        && now.reservation == job.reservation
        && now.eligible == job.eligible;
    Ok(is_same && excluded_now(job.number)? == names(&job.excluded))
}

/// Those of a job in a snapshot.
pub(crate) fn conditions(job: &SlurmJob) -> SlurmJobConditions {
    SlurmJobConditions {
        required: job.required.to_vec(),
        preferred: job.preferred.clone(),
        excluded: job.excluded.to_vec(),
    }
}

pub(crate) fn names(nodes: &[String]) -> BTreeSet<String> {
    nodes.iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(job: &str, required: &str, preferred: &str, dependency: &str) -> String {
        format!(
            "{job:<12}{required:<8192}{preferred:<8192}{dependency:<32768}{:<8192}{:<20}\n",
            "", "1796056674"
        )
    }

    #[test]
    fn conditions_are_those_of_the_job_itself_and_never_a_part_of_them() {
        let output = record("13", "", "n9", "")
            + &record("12", "n[1-2]", "(null)", "afterok:3(unfulfilled)");
        let now = PresentConditions::parse(12, output.as_bytes()).unwrap();
        assert_eq!(now.dependency, "afterok:3(unfulfilled)");
        assert_eq!((now.required.len(), &now.preferred[..]), (2, ""));
        assert_eq!(now.eligible, Some(1_796_056_674));
        assert!(PresentConditions::parse(14, output.as_bytes()).is_err());
        let long = record("12", "", "", &"x".repeat(DEPENDENCY));
        let why = PresentConditions::parse(12, long.as_bytes()).unwrap_err();
        assert!(why.to_string().contains("longer"), "{why}");
    }
}
