//! How far a job is, for its stages: read from Slurm at that moment.

use crate::SlurmError;
use crate::scripts::{NODES, NUMBER, list, read_job, records, small};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes of a state's name.
const STATE: usize = 20;
/// Of a comment as much as tells whose it is.
const COMMENT: usize = 8;
/// Slurm's name of the state of a job whose nodes are being taken back.
const COMPLETING: &str = "COMPLETING";
/// How long that may take, as epilogs end in it.
const COMPLETES: Duration = Duration::from_secs(60);
/// From one look at such a job to the next: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Seconds by which the end of a job may be ahead of this host's clock.
const CLOCKS: u64 = 20;

/// How far a job is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobProgress {
    /// Its script has ended with code 0, and it is not put back into the queue.
    pub ended_well: bool,
    /// Its nodes are being taken back: its code may not be known yet.
    pub is_completing: bool,
    /// Slurm has it waiting.
    pub is_pending: bool,
    /// Its nodes, in their order; none before it has them.
    pub nodes: Vec<String>,
    /// The beginning of its comment, 8 bytes: it may be its user's.
    pub comment: String,
}

/// How far a job is; `None` if Slurm does not have it.
///
/// # Errors
/// When Slurm cannot be asked.
pub fn job_progress(job: u32) -> Result<Option<JobProgress>, SlurmError> {
    let columns = format!(
        "JobID:{NUMBER},exit_code:{NUMBER},State:{STATE},EndTime:{STATE},NodeList:{NODES},Comment:{COMMENT}"
    );
    let output = read_job(job, &columns)?;
    progress(&output, job)
}

/// The same, once its nodes are taken back. Before that, the code is 0 of a job whose time is over, or that Slurm puts back into the
/// queue.
///
/// # Errors
/// When Slurm cannot be asked.
pub fn completed_job(job: u32) -> Result<Option<JobProgress>, SlurmError> {
    let began = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let found = job_progress(job)?;
        let is_open = found
            .as_ref()
            .is_some_and(|job| job.ended_well && job.is_completing);
        if !is_open || began.elapsed() >= COMPLETES {
            return Ok(found);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Of an array that is named by its leading job's number there is a record of each task.
fn progress(output: &[u8], job: u32) -> Result<Option<JobProgress>, SlurmError> {
    let mut records = records(output, [NUMBER, NUMBER, STATE, STATE, NODES, COMMENT]).into_iter();
    let found = records.find(|record| small(&record[0]) == Some(job));
    let Some([_, code, state, end, nodes, comment]) = found else {
        return Ok(None);
    };
    Ok(Some(JobProgress {
        ended_well: matches!(&code[..], "0" | "0:0") && has_ended(&state, &end),
        is_completing: state == COMPLETING,
        is_pending: state == "PENDING",
        nodes: list(&nodes)?,
        comment,
    }))
}

/// Whether a job whose nodes are taken back has ended. One that Slurm puts back into the queue is pending again, with the code 0. While
/// it is completing, its end is that of its next start, or none.
fn has_ended(state: &str, end: &str) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    let is_over = |end: u64| end <= now.saturating_add(CLOCKS);
    state != "PENDING" && end.parse().is_ok_and(is_over)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(job: &str, code: &str, state: &str, end: &str, nodes: &str, comment: &str) -> String {
        format!("{job:<12}{code:<12}{state:<20}{end:<20}{nodes:<8192}{comment:<8}\n")
    }

    #[test]
    fn of_an_array_the_record_of_the_job_itself_is_read() {
        let output = record("13", "0", "STAGE_OUT", "1796056674", "n3", "")
            + &record("12", "1", "COMPLETING", "NONE", "n[1-2]", "tarn: no");
        let of = |job| progress(output.as_bytes(), job).unwrap();
        assert!(of(13).is_some_and(|job| job.ended_well && job.nodes == ["n3"]));
        let job = of(12).unwrap();
        assert!(!job.ended_well && job.nodes == ["n1", "n2"] && job.comment == "tarn: no");
        assert_eq!(of(14), None);
    }

    /// As squeue of 22.05 prints it at post_run.
    #[test]
    fn a_job_that_is_put_back_has_not_ended_well() {
        let of = |state, end| {
            let output = record("1", "0", state, end, "n1", "");
            progress(output.as_bytes(), 1).unwrap().unwrap()
        };
        for state in ["COMPLETING", "STAGE_OUT", "COMPLETED"] {
            assert!(of(state, "1796056674").ended_well, "{state}");
        }
        // Far ahead: the limit of its next start.
        for (state, end) in [
            ("COMPLETING", "99996056674"),
            ("COMPLETING", "NONE"),
            ("PENDING", "NONE"),
            ("PENDING", "1796056674"),
            ("COMPLETING", "Unknown"),
        ] {
            let job = of(state, end);
            assert!(!job.ended_well, "{state} {end}");
            assert_eq!(job.is_pending, state == "PENDING");
        }
    }
}
