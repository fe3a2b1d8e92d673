//! `tarn why`, `tarn cancel`: looking at a run from outside, through its log.

use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use crate::options::{WhichRun, WhyArgs};
use crate::print::{self, message, out};
use crate::run::changes::StepChanges;
use crate::slurm::{self, ControllerClient};
use crate::state;
use crate::state::history_of;
use anyhow::Context;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tarn_journal::{Holder, RunLock};
use tarn_types::codes::Exit;
use tarn_types::history::History;
use tarn_types::id::{DataId, StepId};
use tarn_types::layout::StateDir;
use tarn_types::workflow::{Foreach, Step, Workflow};

/// How long `tarn cancel` waits for the run to end: steps get five seconds to stop before they are killed, nodes whose file systems
/// hang some forty.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) fn why(globals: &Globals, args: &WhyArgs) -> CliResult {
    let found = state::here(globals).and_then(|dir| {
        let run = state::which(&dir, args.run.as_ref())?;
        Ok((dir, run))
    });
    // Outside of a run, a number is a job's of Slurm.
    let is_outside = found.is_err() && args.run.is_none();
    if let Some(job) = args.what.parse().ok().filter(|_| is_outside) {
        let controller = ControllerClient::of_environment();
        if controller.is_known() {
            return slurm::why(globals, &controller, job);
        }
    }
    let (dir, run) = found?;
    let records = state::records(&dir, &run)?;
    let answers = tarn_report::why(&records, &args.what).exit(Exit::NotFound)?;
    let step = args.what.split('[').next().unwrap_or_default();
    let again = StepChanges::read(&dir.run(&run)).of(step);
    if globals.json {
        print::json(
            &serde_json::json!({"schema": 1, "run": run, "answers": answers, "changed": again}),
        )?;
    } else if answers.is_empty() {
        let begun = state::started(&dir, &run)?;
        let history = history_of(&records);
        out!(
            "{}",
            nothing_decided((&begun.workflow, &history), &run, &args.what)
        )?;
    } else {
        print::text(&tarn_report::render(&answers))?;
        if let Some(again) = again {
            out!("changed since the run before: {again}")?;
        }
    }
    Ok(Exit::Success)
}

/// The inputs and steps that a step still waits for, each as a phrase.
fn waits_for(workflow: &Workflow, history: &History, step: &Step) -> Vec<String> {
    let is_done = |id: StepId| {
        let all: Vec<_> = history.instances_of(id).collect();
        !all.is_empty() && all.iter().all(|(_, i)| i.state.is_done())
    };
    let entries = match &step.foreach {
        Some(Foreach::Entries { data, version, .. }) => Some((*data, *version)),
        _ => None,
    };
    let read = step.uses.iter().filter_map(|u| Some((u.data, u.reads?)));
    let read: BTreeSet<_> = read.chain(entries).collect();
    let made = read.into_iter().filter_map(|(data, version)| {
        let maker = workflow
            .producer(data, version)
            .filter(|id| !is_done(*id))?;
        let (data, maker) = (&workflow.dataset(data).name, &workflow.step(maker).name);
        Some(format!("`{data}`, which `{maker}` makes"))
    });
    let after = step.after.iter().filter(|id| !is_done(**id));
    let after = after.map(|id| format!("`{}` to end", workflow.step(*id).name));
    made.chain(after).collect()
}

/// The answer about something about which a run has decided nothing: it says where to look instead.
fn nothing_decided((workflow, history): (&Workflow, &History), run: &str, what: &str) -> String {
    if what.is_empty() {
        return format!(
            "nothing has failed in {run} so far; `tarn why STEP` and `tarn why DATASET` explain what was done"
        );
    }
    let text = format!("{run} has decided nothing about `{what}`");
    if let Some(step) = workflow.steps.iter().find(|s| s.name == what) {
        let waits = waits_for(workflow, history, step);
        return if waits.is_empty() {
            text
        } else {
            format!("{text} yet: it needs {}", waits.join(", "))
        };
    }
    let data = workflow.data.iter().position(|d| d.name == what);
    let Some(data) = data.map(|at| DataId(at as u32)) else {
        return text;
    };
    let makes = |s: &&Step| s.uses.iter().any(|u| u.data == data && u.makes.is_some());
    let makers = workflow.steps.iter().filter(makes);
    let hints: Vec<_> = makers.map(|s| format!("`tarn why {}`", s.name)).collect();
    if hints.is_empty() {
        format!("{text}: it was neither moved nor removed")
    } else {
        format!(
            "{text}: it was neither moved nor removed, and is stored where it was made; {} shows why it was made there",
            hints.join(", ")
        )
    }
}

pub(crate) fn cancel(globals: &Globals, which: &WhichRun) -> CliResult {
    let dir = state::here(globals)?;
    let run = state::which(&dir, which.name())?;
    let begun = state::started(&dir, &run)?;
    let lock = dir.lock(&begun.workflow.name);
    let Some(holder) = RunLock::holder(&lock).exit(Exit::State)? else {
        return Err(CliError::new(
            Exit::NotFound,
            format!("{run} is not running"),
        ));
    };
    let newest = tarn_journal::runs::newest(&dir, Some(&begun.workflow.name)).exit(Exit::State)?;
    if newest.is_some_and(|n| n.name != run) {
        return Err(CliError::new(
            Exit::NotFound,
            format!("{run} is not running; a newer run is"),
        ));
    }
    let signalled = holder.as_ref().map(Holder::terminate);
    let by_file = !signalled.transpose().exit(Exit::State)?.unwrap_or(false);
    if by_file {
        ask_by_file(&dir, &run, holder.as_ref())?;
    }
    let begun = Instant::now();
    while RunLock::holder(&lock).exit(Exit::State)?.is_some() {
        if begun.elapsed() > CANCEL_TIMEOUT {
            return Err(CliError::new(
                Exit::Busy,
                format!(
                    "{run}{} was asked to stop and has not ended within {} s",
                    holder
                        .as_ref()
                        .map_or_else(String::new, |h| format!(" ({h})")),
                    CANCEL_TIMEOUT.as_secs()
                ),
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    message!("{run} has stopped; `tarn resume` continues from here");
    Ok(Exit::Success)
}

/// Asks a run that no signal from here reaches, such as one on another node: it looks for this file every second.
fn ask_by_file(dir: &StateDir, run: &str, holder: Option<&Holder>) -> CliResult<()> {
    let path = dir.cancel(run);
    let where_it_is = holder.map_or_else(|| "elsewhere".into(), |h| format!("on {}", h.host()));
    message!(
        "{run} runs {where_it_is}: it is asked to stop by {}",
        path.display()
    );
    std::fs::write(&path, "")
        .with_context(|| format!("cannot write {}", path.display()))
        .exit(Exit::State)
}
