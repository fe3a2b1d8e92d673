//! `snapshot [fields|json] [DIR]`: reads Slurm once and prints what it has; with a folder, also writes there what Slurm's
//! programs answered, for tests (`tests/cluster/record.sh`).

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use tarn_slurm::{SlurmSnapshot, SlurmSource, SnapshotLimits};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (source, end) = match words.first().map(String::as_str) {
        Some("json") => (SlurmSource::Json, "json"),
        _ => (SlurmSource::Fields, "txt"),
    };
    let folder = words.get(1).map(Path::new);
    match run(source, end, folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(
    source: SlurmSource,
    end: &str,
    folder: Option<&Path>,
) -> Result<(), Box<dyn std::error::Error>> {
    let began = Instant::now();
    let answers = source.answers(&SnapshotLimits::default())?;
    let (took, bytes) = (began.elapsed(), answers.jobs.len() + answers.nodes.len());
    if let Some(folder) = folder {
        let files = [
            (format!("jobs.{end}"), &answers.jobs),
            ("excluded.txt".into(), &answers.excluded),
            ("wide_jobs.txt".into(), &answers.wide_jobs),
            ("wide_excluded.txt".into(), &answers.wide_excluded),
            (format!("nodes.{end}"), &answers.nodes),
            ("partitions.txt".into(), &answers.partitions),
            ("reservations.txt".into(), &answers.reservations),
            ("licences.txt".into(), &answers.licences),
            ("config.txt".into(), &answers.config),
        ];
        for (name, bytes) in files.iter().filter(|(_, bytes)| !bytes.is_empty()) {
            std::fs::write(folder.join(name), bytes)?;
        }
    }
    let snapshot = match source {
        SlurmSource::Fields => SlurmSnapshot::from_fields(&answers)?,
        SlurmSource::Json => SlurmSnapshot::from_json(&answers)?,
    };
    println!("{source:?}: {took:?}, {bytes} bytes of jobs and nodes");
    println!("{snapshot:#?}");
    Ok(())
}
