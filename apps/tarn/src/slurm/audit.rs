//! `tarn slurm audit`: whether workflows delayed ordinary jobs, by Slurm's own accounting. docs/admin/site.md, "The audit".

use super::{ControllerClient, TIMEOUT, refused, unexpected};
use crate::clock::now;
use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use crate::print::{self, out};
use crate::usage::when;
use clap::Args;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tarn_auditor::{AuditInput, AuditReport, AuditedNode, BackwardTime, Delay, audit};
use tarn_proto::site::{ControllerReply, ControllerRequest};
use tarn_slurm::{
    AccountingAnswer, AccountingQuery, AccountingSource, SlurmNode, SlurmSource, SnapshotLimits,
};
use tarn_types::codes::Exit;
use tarn_types::text::minute;
use tarn_types::units::{Elapsed, SECOND, Time, parse_time};

/// Bytes of an accounting that are read, and for how long Slurm may take.
const LIMITS: SnapshotLimits = SnapshotLimits {
    bytes: 256 << 20,
    time: Duration::from_secs(300),
};
/// Bytes of a list of jobs.
const MAX_LIST: u64 = 16 << 20;
/// Delays, and times, of a page for people; all are in `--json`.
const MAX_SHOWN: usize = 20;

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// Jobs that had not ended then: a date such as 2026-11-01, or a time back from now
    #[arg(long, value_name = "WHEN", default_value = "7d")]
    since: String,
    /// How far a workflow may put an ordinary job off
    #[arg(long, value_name = "TIME", default_value = "10m")]
    bound: String,
    /// Read this file of Slurm's jobcomp/filetxt plug-in, and nothing else of Slurm's
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "sacct",
        requires = "data_jobs"
    )]
    jobcomp: Option<PathBuf>,
    /// Read this output of `sacct`, with the fields of docs/admin/site.md
    #[arg(long, value_name = "FILE", requires = "data_jobs")]
    sacct: Option<PathBuf>,
    /// The numbers of the jobs with data lines, one a line, in place of the controller's
    #[arg(long, value_name = "FILE")]
    data_jobs: Option<PathBuf>,
}

/// The accounting, and what it is judged by.
struct Audited {
    source: String,
    answer: AccountingAnswer,
    nodes: BTreeMap<String, AuditedNode>,
    data_jobs: BTreeSet<u32>,
    /// Jobs with data lines that were taken in before then may count as ordinary: seconds since 1970.
    known_since: u64,
    /// Jobs that had ended before then are left out.
    since: u64,
}

pub(super) fn audit_site(globals: &Globals, args: &AuditArgs) -> CliResult {
    let usage = |e: &dyn std::fmt::Display| CliError::new(Exit::Usage, e.to_string());
    let since = when(&args.since, now()).map_err(|e| usage(&e))?;
    let bound = parse_time(&args.bound).map_err(|e| usage(&e))? / SECOND;
    let audited = read(args, since)?;
    let report = audit(&AuditInput {
        jobs: &audited.answer.jobs,
        data_jobs: &audited.data_jobs,
        nodes: &audited.nodes,
        bound,
    });
    if globals.json {
        print::json(&json_of(&audited, &report, bound))?;
    } else {
        for line in page_of(&audited, &report, bound) {
            out!("{line}")?;
        }
    }
    if report.is_clean() {
        return Ok(Exit::Success);
    }
    let text = format!(
        "{} times an ordinary job was delayed by more than {} since a job with data lines got nodes before it: both are named above; docs/admin/site.md, \"The audit\", says what to look at",
        report.delay_count,
        Elapsed(bound.saturating_mul(SECOND))
    );
    Err(CliError::new(Exit::WorkflowFailed, text))
}

fn read(args: &AuditArgs, since: Time) -> CliResult<Audited> {
    let (data_jobs, known_since) = match &args.data_jobs {
        Some(path) => (list(path)?, 0),
        None => from_controller()?,
    };
    let nobody = BTreeMap::new;
    let (source, answer, nodes) = match (&args.jobcomp, &args.sacct) {
        (Some(path), _) => {
            let answer = AccountingAnswer::from_jobcomp(&bytes_of(path)?);
            (path.display().to_string(), answer, nobody())
        }
        (None, Some(path)) => {
            let answer = AccountingAnswer::from_sacct(&bytes_of(path)?);
            (path.display().to_string(), answer, nobody())
        }
        (None, None) => from_slurm(since)?,
    };
    Ok(Audited {
        source,
        answer: since_then(answer, since / SECOND),
        nodes,
        data_jobs,
        known_since,
        since: since / SECOND,
    })
}

/// The jobs that had not ended then.
fn since_then(mut answer: AccountingAnswer, since: u64) -> AccountingAnswer {
    answer
        .jobs
        .retain(|job| job.end.is_none_or(|end| end >= since));
    answer
}

/// The end of a file, which is what happened last.
fn bytes_of(path: &Path) -> CliResult<Vec<u8>> {
    let about = |e: std::io::Error| {
        let text = format!("{} cannot be read: {e}", path.display());
        CliError::new(Exit::NotFound, text)
    };
    let mut file = File::open(path).map_err(about)?;
    let length = file.metadata().map_err(about)?.len();
    let from = std::io::SeekFrom::Start(length.saturating_sub(LIMITS.bytes));
    std::io::Seek::seek(&mut file, from).map_err(about)?;
    let mut bytes = Vec::new();
    file.take(LIMITS.bytes)
        .read_to_end(&mut bytes)
        .map_err(about)?;
    Ok(bytes)
}

fn list(path: &Path) -> CliResult<BTreeSet<u32>> {
    let about = |e: std::io::Error| {
        let text = format!("{} cannot be read: {e}", path.display());
        CliError::new(Exit::NotFound, text)
    };
    let mut text = String::new();
    let file = File::open(path).map_err(about)?;
    file.take(MAX_LIST)
        .read_to_string(&mut text)
        .map_err(about)?;
    let numbers = text.split_whitespace().map(|word| {
        word.parse().map_err(|_| {
            let text = format!("{}: `{word}` is no number of a job", path.display());
            CliError::new(Exit::Usage, text)
        })
    });
    numbers.collect()
}

fn from_controller() -> CliResult<(BTreeSet<u32>, u64)> {
    match ControllerClient::of_environment().ask_once(&ControllerRequest::DataJobs, TIMEOUT)? {
        ControllerReply::DataJobs { known_since, jobs } => {
            Ok((jobs.into_iter().collect(), known_since / SECOND))
        }
        ControllerReply::Refused(why) => Err(refused(&why)),
        other => Err(unexpected(&other)),
    }
}

type FromSlurm = (String, AccountingAnswer, BTreeMap<String, AuditedNode>);

fn from_slurm(since: Time) -> CliResult<FromSlurm> {
    let source = AccountingSource::find(&LIMITS).exit(Exit::State)?;
    let query = AccountingQuery {
        since: since / SECOND,
        jobs: None,
    };
    let answer = source.read(&query, &LIMITS).exit(Exit::State)?;
    let name = match &source {
        AccountingSource::Sacct => "sacct".to_owned(),
        AccountingSource::JobComp(path) => path.display().to_string(),
        AccountingSource::Queue => {
            "squeue (this Slurm has no accounting: jobs that ended longer ago than MinJobAge are missing)".to_owned()
        }
    };
    let (snapshot, _) = SlurmSource::Fields.read(&LIMITS).exit(Exit::State)?;
    let nodes = snapshot.nodes.into_iter();
    let nodes = nodes.map(|(name, node)| (name, described(node)));
    Ok((name, answer, nodes.collect()))
}

fn described(node: SlurmNode) -> AuditedNode {
    AuditedNode {
        resources: [u64::from(node.cpus), node.memory, gpus_of(&node.gres)],
        partitions: node.partitions,
    }
}

/// The GPUs of a node's generic resources: `gpu:2`, `gpu:a100:4(S:0-1)`.
fn gpus_of(gres: &str) -> u64 {
    let counts = gres.split(',').filter_map(|one| {
        let rest = one.trim().strip_prefix("gpu")?;
        let rest = rest.split('(').next()?;
        let count = rest.rsplit(':').next()?;
        (rest.is_empty() || rest.starts_with(':')).then(|| count.parse::<u64>().unwrap_or(1))
    });
    counts.fold(0, u64::saturating_add)
}

fn page_of(audited: &Audited, report: &AuditReport, bound: u64) -> Vec<String> {
    let mut page = vec![
        format!(
            "{} attempts of jobs, {} of them with data lines, from {}",
            report.replayed, report.data_jobs, audited.source
        ),
        format!(
            "judged: {} ordinary jobs that were promised a begin when a later job with data lines began",
            report.judged
        ),
        format!(
            "delayed by more than {}: {} times",
            Elapsed(bound.saturating_mul(SECOND)),
            report.delay_count
        ),
    ];
    page.extend(report.delays.iter().take(MAX_SHOWN).map(delay_line));
    let of = &report.not_compared;
    let counts = [
        (
            report.without_effect,
            "times put off too far by the limits, without effect: others ended early",
        ),
        (
            report.late,
            "ordinary jobs late, and put off by no job with data lines",
        ),
        (
            of.other_queue,
            "ordinary jobs not compared: nodes of theirs went to a job of another QOS or partition",
        ),
        (
            of.passed_over,
            "ordinary jobs not judged to the end: Slurm began a later ordinary one first",
        ),
        (
            of.waited_for_more,
            "ordinary jobs not judged to the end: they waited though nodes were free for them",
        ),
        (
            of.bad_times,
            "ordinary jobs not judged: times run backwards",
        ),
        (
            audited.answer.unreadable,
            "records that are cut or cannot be read",
        ),
    ];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    page.extend(counts.map(|(count, what)| format!("{count} {what}")));
    if audited.known_since > audited.since {
        page.push(format!(
            "tarn knows which jobs had data lines since {}: earlier ones count as ordinary",
            minute(audited.known_since)
        ));
    }
    let backwards = report.backwards.iter().take(MAX_SHOWN);
    page.extend(backwards.map(backward_line));
    page
}

fn delay_line(delay: &Delay) -> String {
    let began = match delay.began {
        Some(began) => format!("began {}", minute(began)),
        None => "has not begun".to_owned(),
    };
    format!(
        "  job {}: could have begun {}, may be put off until {}, {began}; job {} got nodes {}",
        delay.job,
        minute(delay.could_begin),
        minute(delay.latest),
        delay.by,
        minute(delay.at)
    )
}

fn backward_line(found: &BackwardTime) -> String {
    match found {
        BackwardTime::StartBeforeSubmission { job, by } => {
            format!("  job {job} began {by} s before it was submitted or eligible")
        }
        BackwardTime::EndBeforeStart { job, by } => {
            format!("  job {job} ended {by} s before it began")
        }
        BackwardTime::ClockSetBack {
            before,
            after,
            from,
            to,
        } => format!(
            "  the clock was set back by {} s between the submissions of jobs {before} and {after}, to {}",
            from.saturating_sub(*to),
            minute(*to)
        ),
    }
}

fn json_of(audited: &Audited, report: &AuditReport, bound: u64) -> serde_json::Value {
    let delays = report.delays.iter().map(|d| {
        serde_json::json!({
            "job": d.job, "by": d.by, "at": d.at, "could_begin": d.could_begin, "latest": d.latest,
            "then": d.then, "began": d.began,
        })
    });
    let backwards = report.backwards.iter().map(|found| match found {
        BackwardTime::StartBeforeSubmission { job, by } => {
            serde_json::json!({"what": "start before submission", "job": job, "by_s": by})
        }
        BackwardTime::EndBeforeStart { job, by } => {
            serde_json::json!({"what": "end before start", "job": job, "by_s": by})
        }
        BackwardTime::ClockSetBack {
            before,
            after,
            from,
            to,
        } => serde_json::json!({
            "what": "clock set back", "before": before, "after": after, "from": from, "to": to,
        }),
    });
    let of = &report.not_compared;
    serde_json::json!({
        "schema": 1, "source": audited.source, "since": audited.since, "bound_s": bound,
        "replayed": report.replayed, "unreadable": audited.answer.unreadable,
        "data_jobs": report.data_jobs, "data_jobs_known_since": audited.known_since,
        "judged": report.judged, "delayed": report.delay_count,
        "delays": delays.collect::<Vec<_>>(),
        "without_effect": report.without_effect, "late": report.late,
        "not_compared": {
            "other_queue": of.other_queue, "passed_over": of.passed_over,
            "waited_for_more": of.waited_for_more, "bad_times": of.bad_times,
        },
        "backward_times": report.backward_count,
        "backwards": backwards.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_of_a_node_are_counted() {
        assert_eq!(gpus_of("gpu:2"), 2);
        assert_eq!(gpus_of("gpu:a100:4(S:0-1),gpu:h200:2,fs:1"), 6);
        assert_eq!((gpus_of(""), gpus_of("gpu"), gpus_of("gpus:3")), (0, 1, 0));
    }
}
