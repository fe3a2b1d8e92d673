//! The state folder of a command, and the runs in it.

use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use crate::print::message;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tarn_journal::Catalogue;
use tarn_ports::Record;
use tarn_types::codes::Exit;
use tarn_types::event::{Event, Start};
use tarn_types::hash::Hash;
use tarn_types::history::History;
use tarn_types::layout::StateDir;
use tarn_types::text::first_of;

/// How many runs a message names at most.
const NAMES: usize = 20;

const NONE_YET: &str = "no run has been started here yet: `tarn run` starts one";

/// The state folder for a workflow file: `--state`, or `.tarn` beside it.
pub(crate) fn beside(globals: &Globals, folder: &Path) -> CliResult<StateDir> {
    let folder = match &globals.state {
        Some(dir) => dir.clone(),
        None => folder.join(".tarn"),
    };
    let dir = absolute(folder)?;
    be_owner(&dir)?;
    Ok(dir)
}

/// The state folder for looking at runs: `--state`, or `.tarn` here.
pub(crate) fn here(globals: &Globals) -> CliResult<StateDir> {
    let given = globals.state.as_ref().map(|dir| dir.as_os_str());
    let dir = absolute(globals.state.clone().unwrap_or_else(|| ".tarn".into()))?;
    if dir.0.is_dir() {
        be_owner(&dir)?;
        return Ok(dir);
    }
    let of_environment = std::env::var_os("TARN_STATE");
    let remedy = if of_environment.is_some() && of_environment.as_deref() == given {
        "`$TARN_STATE` names it: unset that, or set it to the right one"
    } else {
        "go to the workflow's folder or name it with --state DIR"
    };
    let text = format!("there is no state folder {}; {remedy}", dir.0.display());
    Err(CliError::new(Exit::NotFound, text))
}

/// Root works in a user's state folder with that user's rights: entries of its owner, such as links, lead to nothing that is
/// not theirs, and they can change and remove the written files.
fn be_owner(dir: &StateDir) -> CliResult<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // The owner of a link that stands there, too.
    let abouts = [std::fs::symlink_metadata(&dir.0), std::fs::metadata(&dir.0)];
    let owner = abouts.into_iter().flatten().find(|about| about.uid() != 0);
    let Some(owner) = owner else {
        return Ok(());
    };
    let (user, group) = (owner.uid(), owner.gid());
    message!(
        "note: {} belongs to user {user}: tarn continues with that user's rights",
        dir.0.display()
    );
    tarn_sys::process::be_user(user, group).map_err(|e| {
        let text = format!(
            "{} belongs to user {user}, whose rights tarn cannot take on: {e}; have that user call tarn",
            dir.0.display()
        );
        CliError::new(Exit::State, text)
    })
}

fn absolute(dir: PathBuf) -> CliResult<StateDir> {
    std::path::absolute(dir).map(StateDir).exit(Exit::State)
}

/// The folder name of a workflow on tiers: its name, and a hash of where its state is, so that two
/// workflows of one name never meet.
pub(crate) fn workspace(name: &str, state: &StateDir) -> String {
    let hash = Hash::of(state.0.as_os_str().as_encoded_bytes()).short();
    format!("{name}-{}", &hash[..8])
}

/// The name of the run that is meant: as given, or the newest.
pub(crate) fn which(state: &StateDir, run: Option<&String>) -> CliResult<String> {
    let all: Vec<_> = tarn_journal::runs::list(state)
        .exit(Exit::State)?
        .into_iter()
        .map(|r| r.name)
        .collect();
    match run {
        Some(name) if all.contains(name) => Ok(name.clone()),
        Some(name) => Err(CliError::new(
            Exit::NotFound,
            no_such_run(name, &all, state),
        )),
        None => {
            let newest = tarn_journal::runs::newest(state, None).exit(Exit::State)?;
            newest
                .map(|r| r.name)
                .ok_or_else(|| CliError::new(Exit::NotFound, NONE_YET))
        }
    }
}

/// Says which runs there are, and which comes closest to the name.
fn no_such_run(name: &str, all: &[String], state: &StateDir) -> String {
    if all.is_empty() {
        return format!("there is no run {name}: {NONE_YET}");
    }
    let close = tarn_spec::did_you_mean(name, all.iter().map(String::as_str));
    let meant = close.map_or_else(|| ".".into(), |hint| format!("; {hint}"));
    let newest: Vec<&String> = all.iter().rev().collect();
    format!(
        "there is no run {name} in {}{meant} Runs, newest first: {}",
        state.0.display(),
        first_of(&newest, NAMES)
    )
}

/// All records of a run.
pub(crate) fn records(state: &StateDir, run: &str) -> CliResult<Vec<Record>> {
    tarn_journal::runs::read(state, run).exit(Exit::State)
}

/// All records of an event log.
pub(crate) fn records_of(log: &Path) -> CliResult<Vec<Record>> {
    let reader = tarn_journal::LogReader::open(log).exit(Exit::State)?;
    reader.collect::<Result<_, _>>().exit(Exit::State)
}

/// The first record of a run: its workflow and options.
pub(crate) fn started(state: &StateDir, run: &str) -> CliResult<Start> {
    let mut reader = tarn_journal::LogReader::open(&state.log(run)).exit(Exit::State)?;
    match reader.next() {
        Some(Ok(record)) => match record.event {
            Event::Started(start) => Ok(*start),
            _ => Err(CliError::new(
                Exit::State,
                format!("the log of {run} does not begin with its start"),
            )),
        },
        Some(Err(e)) => Err(CliError::new(Exit::State, e)),
        None => Err(CliError::new(
            Exit::NotFound,
            format!("{run} died before its first record: nothing was done; `tarn run` again"),
        )),
    }
}

/// The catalogue of the state folder; says which runs are left out of it.
pub(crate) fn open_catalogue(state: &StateDir) -> CliResult<Catalogue> {
    let catalogue = Catalogue::open(state).exit(Exit::State)?;
    for (run, e) in catalogue.skipped() {
        message!("warning: {run} is left out of the catalogue: {e}");
    }
    Ok(catalogue)
}

/// The history that results from records.
pub(crate) fn history_of(records: &[Record]) -> History {
    let mut history = History::new();
    for r in records {
        history.apply(r.now, &r.event, &r.actions);
    }
    history
}
