//! A job's script.

use crate::error::{CliError, CliResult};
use std::path::{Path, PathBuf};
use tarn_proto::site::SlurmJobId;
use tarn_slurm::{JobOrigin, job_script};
use tarn_spec::{ChainOptions, JobScript, SbatchScript, SpecError, check_site, parse_job};
use tarn_types::codes::Exit;

/// Bytes of a script; Slurm's own limit is 4 MB.
const MAX_SCRIPT: u64 = 8 << 20;

/// Reads a script that was submitted in this folder, and its place in a chain. `None` when it says nothing to tarn.
pub(super) fn read(
    path: &Path,
    folder: &Path,
) -> CliResult<Option<(JobScript, Option<ChainOptions>)>> {
    parsed(&text(path)?, folder)
}

/// The same of the script of a job. Slurm 24.11 says of a task of an array where the script would be if the task had one of its own.
pub(super) fn read_of(
    job: SlurmJobId,
    origin: &JobOrigin,
    path: &Path,
) -> CliResult<Option<(JobScript, Option<ChainOptions>)>> {
    let array = origin.array.filter(|_| !path.exists());
    let text = match array {
        None => text(path)?,
        Some(array) => match of_array(path, array).filter(|path| path.exists()) {
            Some(path) => text(&path)?,
            None => job_script(job).map_err(|e| CliError::new(Exit::State, e.to_string()))?,
        },
    };
    parsed(&text, &origin.folder)
}

/// The path of the array's script, from that of its task: `hash.4/job.14/script`.
fn of_array(path: &Path, array: SlurmJobId) -> Option<PathBuf> {
    let spool = path.parent()?.parent()?.parent()?;
    let folder = format!("hash.{}/job.{array}", array % 10);
    Some(spool.join(folder).join(path.file_name()?))
}

fn text(path: &Path) -> CliResult<String> {
    let failed = |why: String| {
        CliError::new(
            Exit::NotFound,
            format!("cannot read the script {}: {why}", path.display()),
        )
    };
    let about = std::fs::metadata(path).map_err(|e| failed(e.to_string()))?;
    if about.len() > MAX_SCRIPT {
        return Err(failed(format!("it has more than {MAX_SCRIPT} bytes")));
    }
    let bytes = std::fs::read(path).map_err(|e| failed(e.to_string()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn parsed(text: &str, folder: &Path) -> CliResult<Option<(JobScript, Option<ChainOptions>)>> {
    let (chain, text) = ChainOptions::of_script(text);
    let script = SbatchScript {
        name: "the script",
        text: &text,
    };
    match parse_job(&script, folder, chain.is_some()) {
        Ok(job) => Ok(job.map(|job| (job, chain))),
        Err(rejected) => Err(script_error(&rejected)),
    }
}

/// Whether a site can do what a script requests, judged by the script alone.
pub(super) fn possible(script: &JobScript) -> CliResult<()> {
    check_site(&script.parsed).map_err(|rejected| script_error(&rejected))
}

/// The problems of a script, in one line: Slurm shows no more.
fn script_error(rejected: &SpecError) -> CliError {
    let lines = rejected.problems().iter().take(3).map(|finding| {
        let line = finding
            .position()
            .map_or(String::new(), |(line, _)| format!("line {line}: "));
        let hint = finding
            .hint()
            .map_or(String::new(), |hint| format!(" ({hint})"));
        format!("{line}{}{hint}", finding.message())
    });
    let messages: Vec<String> = lines.collect();
    CliError::new(Exit::InvalidWorkflow, messages.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_of_an_array_is_found_from_where_its_tasks_would_be() {
        let task = Path::new("/spool/hash.4/job.14/script");
        let array = of_array(task, 3);
        assert_eq!(
            array.as_deref(),
            Some(Path::new("/spool/hash.3/job.3/script"))
        );
        assert_eq!(of_array(Path::new("script"), 3), None);
    }
}
