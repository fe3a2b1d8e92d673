//! `tarn sim --replay`: the events of a recorded run, given to a fresh engine, produce the recorded actions.

use crate::error::{CliError, CliResult};
use crate::globals::Globals;
use crate::print::{self, message, out};
use crate::state;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;
use tarn_engine::{ENGINE_VERSION, Engine};
use tarn_ports::Record;
use tarn_types::action::Action;
use tarn_types::codes::Exit;
use tarn_types::event::Event;
use tarn_types::units::Elapsed;

/// The result, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Replayed<'a> {
    schema: u32,
    run: &'a str,
    /// The version of the engine that decides now.
    engine: u32,
    /// Other versions that decided in the run.
    recorded_by: BTreeSet<u32>,
    /// Records of the log, and how often it was resumed.
    records: usize,
    resumed: usize,
    /// Records and actions that agree: all, or those before the first difference.
    agreed_records: usize,
    agreed_actions: usize,
    difference: Option<Difference<'a>>,
}

/// The first action that is another one now.
#[derive(Debug, Serialize)]
struct Difference<'a> {
    seq: u64,
    now_ns: u64,
    event: &'a Event,
    /// The action's position among those of its record, from 1.
    position: usize,
    /// `None` where the run decided nothing more.
    recorded: Option<&'a Action>,
    /// `None` where nothing more is decided now.
    decided: Option<Action>,
}

pub(super) fn replay(globals: &Globals, run: &str) -> CliResult {
    let records = records(globals, run)?;
    let replayed = Replayed::of(run, &records);
    if globals.json {
        print::json(&replayed)?;
    } else {
        replayed.print()?;
    }
    replayed.verdict()
}

/// The records of a run of the state folder, or of a log file.
pub(super) fn records(globals: &Globals, run: &str) -> CliResult<Vec<Record>> {
    let records = if Path::new(run).is_file() {
        state::records_of(Path::new(run))?
    } else {
        let state = state::here(globals)?;
        let name = state::which(&state, Some(&run.to_owned()))?;
        state::records(&state, &name)?
    };
    match records.first().map(|r| &r.event) {
        Some(Event::Started(_)) => Ok(records),
        Some(_) => Err(CliError::new(
            Exit::State,
            format!("the log of {run} does not begin with its start; restore it"),
        )),
        None => Err(CliError::new(
            Exit::NotFound,
            format!("{run} died before its first record: there is nothing to go by"),
        )),
    }
}

impl<'a> Replayed<'a> {
    fn of(run: &'a str, records: &'a [Record]) -> Self {
        let others = records.iter().map(|r| r.engine);
        let resumed = |r: &&Record| matches!(r.event, Event::Resumed { .. });
        let mut this = Self {
            schema: 1,
            run,
            engine: ENGINE_VERSION,
            recorded_by: others.filter(|e| *e != ENGINE_VERSION).collect(),
            records: records.len(),
            resumed: records.iter().filter(resumed).count(),
            agreed_records: 0,
            agreed_actions: 0,
            difference: None,
        };
        let mut engine = Engine::new();
        for (at, record) in records.iter().enumerate() {
            if matches!(record.event, Event::Resumed { .. }) {
                // As in `tarn resume`: the engine forgets data that it had only looked at.
                engine = tarn_engine::replay(&records[..at]).0;
            }
            let mut decided = Vec::new();
            engine.step(record.now, &record.event, &mut decided);
            this.difference = Difference::of(record, decided);
            if this.difference.is_some() {
                break;
            }
            this.agreed_records += 1;
            this.agreed_actions += record.actions.len();
        }
        this
    }

    fn print(&self) -> CliResult<()> {
        let times = match self.resumed {
            0 => String::new(),
            1 => ", resumed once".to_owned(),
            n => format!(", resumed {n} times"),
        };
        out!("run         {}: {} records{times}", self.run, self.records)?;
        out!(
            "agree       {} records with {} actions",
            self.agreed_records,
            self.agreed_actions
        )?;
        let Some(d) = &self.difference else {
            return Ok(());
        };
        out!(
            "differs     record {} at {}, action {}",
            d.seq,
            Elapsed(d.now_ns),
            d.position
        )?;
        out!("  event     {}", text(d.event)?)?;
        out!("  recorded  {}", action(d.recorded)?)?;
        out!("  decided   {}", action(d.decided.as_ref())?)
    }

    fn verdict(&self) -> CliResult {
        let others: Vec<String> = self.recorded_by.iter().map(u32::to_string).collect();
        let others = others.join(", ");
        if !others.is_empty() {
            message!(
                "note: {} was decided by engine version {others}, this is version {}: differences are expected",
                self.run,
                self.engine
            );
        }
        let Some(difference) = &self.difference else {
            return Ok(Exit::Success);
        };
        let seq = difference.seq;
        let error = if others.is_empty() {
            CliError::new(
                Exit::Internal,
                format!(
                    "the engine decides otherwise than in {} from record {seq} on, although it is of the same version: an error of \
                     tarn; report it with the log",
                    self.run
                ),
            )
        } else {
            CliError::new(
                Exit::WorkflowFailed,
                format!(
                    "this engine decides otherwise than in {} from record {seq} on; replay the log with the tarn that wrote it",
                    self.run
                ),
            )
        };
        Err(error)
    }
}

impl<'a> Difference<'a> {
    fn of(record: &'a Record, decided: Vec<Action>) -> Option<Self> {
        let most = record.actions.len().max(decided.len());
        let at = (0..most).find(|at| record.actions.get(*at) != decided.get(*at))?;
        Some(Self {
            seq: record.seq,
            now_ns: record.now,
            event: &record.event,
            position: at + 1,
            recorded: record.actions.get(at),
            decided: decided.into_iter().nth(at),
        })
    }
}

fn text(value: &impl Serialize) -> CliResult<String> {
    serde_json::to_string(value).map_err(|e| CliError::new(Exit::Internal, e))
}

fn action(action: Option<&Action>) -> CliResult<String> {
    action.map_or_else(|| Ok("nothing more".to_owned()), text)
}
