//! How long the audit of a Slurm's accounting takes (`tarn slurm audit`), and how that grows: files of `jobcomp/filetxt` from a seed,
//! of clusters in which jobs wait and jobs with data lines get nodes before them. Beside it, a pass over the words of the file.

mod history;

use crate::figure::BenchFigure;
use crate::processes::{resident, timed};
use history::{HistorySettings, JobHistory};
use std::collections::BTreeMap;
use tarn_auditor::{AuditInput, audit};
use tarn_slurm::AccountingAnswer;

/// Files have up to the requested number of jobs by this factor, and the smallest is so many times smaller.
const GROWTH: u32 = 10;
const SMALLEST: u32 = GROWTH * GROWTH;
/// Seconds by which a workflow may put an ordinary job off: the default of `tarn slurm audit`.
const BOUND: u64 = 600;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Jobs of the longest file; the others have a tenth and a hundredth
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1_000..=1_000_000))]
    jobs: u32,
    /// Nodes of the cluster
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(16..=100_000))]
    nodes: u32,
    /// Runs of each length; the medians count
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// The same seed gives the same files
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Seconds of the processor for one length.
#[derive(Debug, Default)]
struct AuditTimes {
    read: Vec<f64>,
    audit: Vec<f64>,
    words: Vec<f64>,
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// All figures.
///
/// # Errors
/// When a file is not read as it was written, or Linux does not say how much memory the program has.
pub(crate) fn run(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    let mut figures = Vec::new();
    let mut before: Option<f64> = None;
    let mut jobs = args.jobs / SMALLEST;
    while jobs <= args.jobs {
        let history = JobHistory::new(HistorySettings {
            jobs,
            nodes: args.nodes,
            seed: args.seed,
        });
        let (seconds, of_length) = measure(&history, (jobs, args.runs))?;
        figures.extend(of_length);
        if let Some(fewer) = before {
            figures.push(BenchFigure {
                name: format!("growth of the time to {jobs} jobs"),
                value: seconds / fewer,
                unit: "times",
                against: Some(("as many times the jobs".to_owned(), f64::from(GROWTH))),
            });
        }
        before = Some(seconds);
        jobs *= GROWTH;
    }
    Ok(figures)
}

/// The seconds of an audit, and its figures.
fn measure(
    history: &JobHistory,
    (jobs, runs): (u32, u32),
) -> anyhow::Result<(f64, Vec<BenchFigure>)> {
    let mut times = AuditTimes::default();
    let before = resident()?;
    let (mut memory, mut found) = (0, String::new());
    let nodes = BTreeMap::new();
    for _ in 0..runs {
        let words = timed(&mut times.words, || {
            let words = history.text.split(|b| b.is_ascii_whitespace());
            words.filter(|word| !word.is_empty()).count()
        });
        anyhow::ensure!(words > jobs as usize, "the file has {words} words");
        let answer = timed(&mut times.read, || {
            AccountingAnswer::from_jobcomp(&history.text)
        });
        anyhow::ensure!(
            answer.unreadable == 0 && answer.jobs.len() == jobs as usize,
            "{} of {jobs} jobs were read, {} records were not",
            answer.jobs.len(),
            answer.unreadable
        );
        let report = timed(&mut times.audit, || {
            audit(&AuditInput {
                jobs: &answer.jobs,
                data_jobs: &history.data_jobs,
                nodes: &nodes,
                bound: BOUND,
            })
        });
        memory = memory.max(resident()?.saturating_sub(before));
        found = format!(
            "{} with data lines, {} judged, {} delays, {} not compared",
            report.data_jobs, report.judged, report.delay_count, report.not_compared.other_queue
        );
    }
    eprintln!("{jobs} jobs: {found}");
    let figure = |name: String, value: f64, unit: &'static str| BenchFigure {
        name,
        value,
        unit,
        against: None,
    };
    let (read, audited) = (median(&times.read), median(&times.audit));
    let words = ("a pass over its words".to_owned(), median(&times.words));
    let figures = vec![
        BenchFigure {
            against: Some(words),
            ..figure(format!("reading {jobs} jobs"), read, "s")
        },
        figure(format!("audit of {jobs} jobs: {found}"), audited, "s"),
        figure(
            format!("memory of {jobs} jobs, beside the file"),
            memory as f64 / f64::from(1 << 20),
            "MiB",
        ),
    ];
    Ok((read + audited, figures))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_file_gives_every_figure() {
        let args = Args {
            jobs: 5_000,
            nodes: 100,
            runs: 1,
            seed: 1,
        };
        let figures = run(&args).expect("figures");
        let names: Vec<&str> = figures
            .iter()
            .map(|f| f.name.split(':').next().unwrap_or(""))
            .collect();
        assert_eq!(
            names,
            [
                "reading 50 jobs",
                "audit of 50 jobs",
                "memory of 50 jobs, beside the file",
                "reading 500 jobs",
                "audit of 500 jobs",
                "memory of 500 jobs, beside the file",
                "growth of the time to 500 jobs",
                "reading 5000 jobs",
                "audit of 5000 jobs",
                "memory of 5000 jobs, beside the file",
                "growth of the time to 5000 jobs",
            ]
        );
        assert!(figures.iter().all(|f| f.value >= 0.0));
    }
}
