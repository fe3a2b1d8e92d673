//! Runs Slurm's programs for a snapshot.

use super::hostlist::NodeLists;
use super::{Answers, SlurmSnapshot, fields, json, scontrol};
use crate::SlurmError;
use crate::command::{CommandLimits, answer_of};
use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, SystemTime};

/// Jobs of one snapshot that are asked for again with longer columns.
const MAX_WIDE_JOBS: usize = 256;
/// The states of jobs that have not ended (squeue(1), "JOB STATE CODES").
const STATES: &str = "PD,CF,R,S,CG,SO,RQ,RH,RD,SE,SI,ST,RS";

/// The bounds of each program that is run for a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotLimits {
    /// Bytes of its output.
    pub bytes: u64,
    /// Until it is killed.
    pub time: Duration,
}

impl Default for SnapshotLimits {
    /// 64 MiB and 30 s. Columns are 2.1 KB a job and 1.1 KB a node and partition: 30,000 jobs on 60,000 nodes fit.
    fn default() -> Self {
        Self {
            bytes: 64 << 20,
            time: Duration::from_secs(30),
        }
    }
}

/// The form of Slurm's output that a snapshot is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlurmSource {
    /// Columns of fixed width: smaller, and every release has them.
    Fields,
    /// JSON: 3.3 KB (22.05) to 8.5 KB (24.11) a job, jobs that have ended included. Slurm must be built with it.
    Json,
}

impl SlurmSource {
    /// The first of fields and JSON that can be read here, a snapshot by it, and the bytes that were read.
    ///
    /// # Errors
    /// That of fields, when neither can be read.
    pub fn choose(limits: &SnapshotLimits) -> Result<(Self, SlurmSnapshot, u64), SlurmError> {
        let first = |error| match Self::Json.read(limits) {
            Ok((snapshot, bytes)) => Ok((Self::Json, snapshot, bytes)),
            Err(_) => Err(error),
        };
        let fields = Self::Fields.read(limits);
        fields.map_or_else(first, |(snapshot, bytes)| {
            Ok((Self::Fields, snapshot, bytes))
        })
    }

    /// Reads Slurm as it is now: seven programs, and two more where a value of a job is longer than its column. The number
    /// is that of bytes that were read.
    ///
    /// # Errors
    /// When Slurm cannot be asked, needs more time or bytes than the limits allow, or answers what tarn cannot read.
    pub fn read(self, limits: &SnapshotLimits) -> Result<(SlurmSnapshot, u64), SlurmError> {
        let answers = self.answers(limits)?;
        Ok((self.parse(&answers)?, answers.bytes()))
    }

    /// Makes a snapshot of the output of Slurm's programs.
    ///
    /// # Errors
    /// As [`SlurmSnapshot::from_fields`].
    pub fn parse(self, answers: &Answers) -> Result<SlurmSnapshot, SlurmError> {
        match self {
            Self::Fields => SlurmSnapshot::from_fields(answers),
            Self::Json => SlurmSnapshot::from_json(answers),
        }
    }

    /// The output of Slurm's programs about jobs alone, without the nodes that they must not get: one of them, two where a
    /// value is longer than its column.
    ///
    /// # Errors
    /// As [`SlurmSource::answers`].
    pub fn answers_about_jobs(self, limits: &SnapshotLimits) -> Result<Answers, SlurmError> {
        let run = |program: &str, words: &[&str]| run(program, words, limits);
        let mut answers = Answers {
            read_at: seconds_since_1970(),
            ..Answers::default()
        };
        match self {
            Self::Fields => {
                read_jobs(&mut answers, &run)?;
            }
            Self::Json => answers.jobs = run("squeue", &["--json"])?,
        }
        Ok(answers)
    }

    /// An earlier snapshot with the jobs of now, by [`SlurmSource::answers_about_jobs`].
    ///
    /// # Errors
    /// As [`SlurmSnapshot::from_fields`].
    pub fn parse_jobs(
        self,
        answers: &Answers,
        earlier: &SlurmSnapshot,
    ) -> Result<SlurmSnapshot, SlurmError> {
        let mut lists = NodeLists::default();
        let jobs = match self {
            Self::Fields => fields::jobs(answers, &mut lists, &earlier.jobs)?,
            Self::Json => json::jobs(answers, &mut lists)?,
        };
        Ok(SlurmSnapshot {
            read_at: answers.read_at,
            jobs,
            ..earlier.clone()
        })
    }

    /// The output of Slurm's programs as they are run for a snapshot.
    ///
    /// # Errors
    /// When one of them cannot be run, fails, or needs more time or bytes than the limits allow.
    pub fn answers(self, limits: &SnapshotLimits) -> Result<Answers, SlurmError> {
        let run = |program: &str, words: &[&str]| run(program, words, limits);
        let mut answers = Answers {
            read_at: seconds_since_1970(),
            config: run("scontrol", &["show", "config"])?,
            ..Answers::default()
        };
        match self {
            Self::Fields => {
                let cut = read_jobs(&mut answers, &run)?;
                read_exclusions(&mut answers, &run, &cut)?;
                let format = fields::node_format();
                answers.nodes = run("sinfo", &["-h", "-a", "-N", "-O", &format])?;
            }
            Self::Json => {
                answers.jobs = run("squeue", &["--json"])?;
                let version = scontrol::settings(&answers)?.version;
                // From 23.02 on `sinfo --json` sums nodes up; `scontrol` had no JSON before.
                let year = version
                    .split('.')
                    .next()
                    .and_then(|year| year.parse::<u32>().ok());
                answers.nodes = if year.is_some_and(|year| year < 23) {
                    run("sinfo", &["--json"])?
                } else {
                    run("scontrol", &["show", "nodes", "--json"])?
                };
            }
        }
        answers.partitions = run("scontrol", &["-a", "-o", "show", "partition"])?;
        answers.reservations = run("scontrol", &["-a", "-o", "show", "reservation"])?;
        answers.licences = run("scontrol", &["-o", "show", "licenses"])?;
        Ok(answers)
    }
}

fn seconds_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map(|since| since.as_secs()).unwrap_or_default()
}

/// Runs one program.
type RunProgram<'r> = &'r dyn Fn(&str, &[&str]) -> Result<Vec<u8>, SlurmError>;

/// Reads jobs by columns, and those with a value that was cut again. Returns these.
fn read_jobs(answers: &mut Answers, run: RunProgram<'_>) -> Result<BTreeSet<u32>, SlurmError> {
    let jobs = |is_wide: bool, among: &[&str]| {
        let format = fields::job_format(is_wide);
        let words = ["-h", "-a", "--noconvert", "-t", STATES, "-O", &format];
        run("squeue", &[among, &words].concat())
    };
    answers.jobs = jobs(false, &[])?;
    let cut = fields::cut_jobs(answers)?;
    if !cut.is_empty() {
        // squeue fails if the jobs have ended meanwhile; else they stay marked as incomplete.
        answers.wide_jobs = jobs(true, &["-j", &first_of(&cut)]).unwrap_or_default();
    }
    Ok(cut)
}

/// Reads the nodes that jobs must not get, by columns; again of jobs of which something is cut.
fn read_exclusions(
    answers: &mut Answers,
    run: RunProgram<'_>,
    cut: &BTreeSet<u32>,
) -> Result<(), SlurmError> {
    let excluded = |is_wide: bool, among: &[&str]| {
        let format = fields::excluded_format(is_wide);
        let words = ["-h", "-a", "-t", STATES, "-o", &format];
        run("squeue", &[among, &words].concat())
    };
    answers.excluded = excluded(false, &[])?;
    let mut cut = cut.clone();
    cut.extend(fields::cut_jobs(answers)?);
    if !cut.is_empty() {
        answers.wide_excluded = excluded(true, &["-j", &first_of(&cut)]).unwrap_or_default();
    }
    Ok(())
}

/// The first of them, as programs take them.
fn first_of(jobs: &BTreeSet<u32>) -> String {
    let jobs: Vec<String> = jobs
        .iter()
        .take(MAX_WIDE_JOBS)
        .map(u32::to_string)
        .collect();
    jobs.join(",")
}

/// Runs one program with times as seconds since 1970, whatever the caller's environment wants to see.
pub(crate) fn run(
    program: &str,
    words: &[&str],
    limits: &SnapshotLimits,
) -> Result<Vec<u8>, SlurmError> {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let filters = ["SQUEUE_", "SINFO_", "SCONTROL_", "SACCT_"];
        if filters.iter().any(|prefix| text.starts_with(prefix)) || text == "SLURM_CLUSTERS" {
            command.env_remove(&name);
        }
    }
    command.env("SLURM_TIME_FORMAT", "%s");
    // Of the tasks of an array Slurm shows 64 bytes, and then three points.
    command.env("SLURM_BITSTR_LEN", "4096");
    command.env("LC_ALL", "C");
    command.args(words);
    let SnapshotLimits { bytes, time } = *limits;
    answer_of(&mut command, CommandLimits { bytes, time })
}
