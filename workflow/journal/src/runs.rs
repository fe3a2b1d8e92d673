//! The runs of a state folder.

use crate::lines::{LineError, sync_folder};
use crate::log::LogReader;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tarn_ports::Record;
use tarn_types::history::History;
use tarn_types::layout::StateDir;

/// Runs of one workflow in one state folder. Each has a folder; nobody reads a listing of more.
pub const MAX_RUNS: u64 = 1_000_000;

/// Why the runs of a state folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunsError {
    /// The system refused something.
    #[error("cannot {doing} {}: {source}", .path.display())]
    Io {
        /// The attempted operation.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// There are too many.
    #[error("{} holds {MAX_RUNS} runs of `{workflow}`; remove old ones", .path.display())]
    TooMany {
        /// The folder.
        path: PathBuf,
        /// The workflow's name.
        workflow: String,
    },
}

impl RunsError {
    fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            doing,
            path: path.to_path_buf(),
            source,
        }
    }
}

/// A run that has a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunEntry {
    /// Its name, `<workflow>-<n>`.
    pub name: String,
    /// Its workflow's name.
    pub workflow: String,
    /// Its number.
    pub number: u64,
    /// When its log was last written; `None` when it has none (it died before it began).
    pub written: Option<SystemTime>,
    /// Length of its log in bytes.
    pub log_bytes: u64,
}

/// The workflow and the number of a run's name.
fn split(name: &str) -> Option<(&str, u64)> {
    let (workflow, digits) = name.rsplit_once('-')?;
    let number: u64 = digits.parse().ok()?;
    let canonical = number > 0 && number.to_string() == digits && !workflow.is_empty();
    canonical.then_some((workflow, number))
}

/// All runs, oldest first: by the last write to their logs, then by number. A state folder that does not exist has none.
///
/// # Errors
/// When the folder cannot be read.
pub fn list(state: &StateDir) -> Result<Vec<RunEntry>, RunsError> {
    let folder = state.runs();
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(RunsError::io("list", &folder)(e)),
    };
    let mut runs = Vec::new();
    for entry in entries {
        let entry = entry.map_err(RunsError::io("list", &folder))?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let Some((workflow, number)) = split(&name) else {
            continue;
        };
        let log = std::fs::metadata(state.log(&name)).ok();
        runs.push(RunEntry {
            workflow: workflow.to_owned(),
            number,
            written: log.as_ref().and_then(|m| m.modified().ok()),
            log_bytes: log.map_or(0, |m| m.len()),
            name,
        });
    }
    runs.sort_by(|a, b| {
        (a.written, &a.workflow, a.number).cmp(&(b.written, &b.workflow, b.number))
    });
    Ok(runs)
}

/// Takes the next name for a run of `workflow`, by making its folder; makes the state folder where needed.
///
/// # Errors
/// When a folder cannot be made.
pub fn allocate(state: &StateDir, workflow: &str) -> Result<String, RunsError> {
    let folder = state.runs();
    std::fs::create_dir_all(&folder).map_err(RunsError::io("create", &folder))?;
    let numbers = list(state)?
        .into_iter()
        .filter(|r| r.workflow == workflow)
        .map(|r| r.number);
    let first = numbers.max().unwrap_or(0) + 1;
    for number in first..=MAX_RUNS {
        let name = format!("{workflow}-{number}");
        let path = state.run(&name);
        match std::fs::create_dir(&path) {
            Ok(()) => {
                for made in [&folder, &state.0] {
                    sync_folder(made).map_err(RunsError::io("sync", made))?;
                }
                return Ok(name);
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(RunsError::io("create", &path)(e)),
        }
    }
    Err(RunsError::TooMany {
        path: folder,
        workflow: workflow.to_owned(),
    })
}

/// The run with the highest number of `workflow`, or the one written last of all; only those that have a log.
///
/// # Errors
/// When the folder cannot be read.
pub fn newest(state: &StateDir, workflow: Option<&str>) -> Result<Option<RunEntry>, RunsError> {
    let mut runs = list(state)?.into_iter().filter(|r| r.written.is_some());
    Ok(match workflow {
        Some(workflow) => runs
            .filter(|r| r.workflow == workflow)
            .max_by_key(|r| r.number),
        None => runs.next_back(),
    })
}

/// All records of a run.
///
/// # Errors
/// When its log cannot be read or is damaged.
pub fn read(state: &StateDir, run: &str) -> Result<Vec<Record>, LineError> {
    LogReader::open(&state.log(run))?.collect()
}

/// The history of a run, from its log.
///
/// # Errors
/// When it cannot be read or is damaged.
pub fn history(state: &StateDir, run: &str) -> Result<History, LineError> {
    Ok(fold(LogReader::open(&state.log(run))?)?.0)
}

/// Folds a log; also the bytes of it that were intact.
pub(crate) fn fold(mut log: LogReader) -> Result<(History, u64), LineError> {
    let mut history = History::new();
    for record in log.by_ref() {
        let record = record?;
        history.apply(record.now, &record.event, &record.actions);
    }
    Ok((history, log.good()))
}
