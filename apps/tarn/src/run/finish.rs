//! The end of a run: the data that stays on the tiers, the report, and the messages.

use super::{cached, kept, unkept};
use crate::data::missing::{Missing, how_kept};
use crate::error::{CliResult, ExitWith};
use crate::globals::Globals;
use crate::print::{self, message, out};
use crate::state::{self, history_of, open_catalogue};
use anyhow::Context;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;
use tarn_ports::NodeWorld;
use tarn_report::{PageLinks, Summary};
use tarn_types::action::Outcome;
use tarn_types::codes::Exit;
use tarn_types::event::Start;
use tarn_types::history::{History, TransferEnd};
use tarn_types::layout::StateDir;
use tarn_types::part::Place;
use tarn_types::reason::Reason;

/// The links of a page at `page` about the run with folder `run`.
fn links(page: &Path, run: &Path) -> PageLinks {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let page = absolute(page);
    PageLinks::new(page.parent().unwrap_or(&page), &absolute(run))
}

pub(super) fn finish(
    globals: &Globals,
    state: &StateDir,
    start: &Start,
    outcome: Outcome,
    report: Option<&Path>,
    mut world: Box<dyn NodeWorld>,
) -> CliResult {
    let mut catalogue = open_catalogue(state)?;
    catalogue.index(&start.run).exit(Exit::State)?;
    kept::replaced(&mut catalogue, start, &mut *world)?;
    if outcome == Outcome::Done {
        kept::leftovers(&mut catalogue, start, &mut *world)?;
        for problem in world.leave() {
            message!("warning: {problem}");
        }
    } else {
        drop(world);
    }
    let left = match outcome {
        Outcome::Done => cached::line(&catalogue, start)?,
        _ => None,
    };
    let records = state::records(state, &start.run)?;
    let summary = Summary::of(&records).exit(Exit::Internal)?;
    let own = state.report(&start.run);
    for path in std::iter::once(own.as_path()).chain(report) {
        // Each copy has links from where it is.
        let links = links(path, &state.run(&start.run));
        let page = tarn_report::html(&records, &links).exit(Exit::Internal)?;
        write_page(path, &page)?;
    }
    let printed = print_summary(globals, state, &summary, report.unwrap_or(&own), left);
    let history = history_of(&records);
    print_rescued(start, &history);
    if outcome == Outcome::Done {
        for note in unkept::notes(state, start, &history) {
            message!("note: {note}");
        }
    }
    match outcome {
        // A failure to print is the only error.
        Outcome::Done => printed.map(|()| Exit::Success),
        outcome => Ok(print_outcome(&start.run, outcome)),
    }
}

/// The totals; for people also the path of the report, and `left`, the data that stays.
fn print_summary(
    globals: &Globals,
    state: &StateDir,
    summary: &Summary,
    report: &Path,
    left: Option<String>,
) -> CliResult<()> {
    if globals.json {
        return print::json(&PrintedSummary {
            summary,
            state: state.0.to_string_lossy(),
        });
    }
    print::text(&summary.to_string())?;
    out!("report    {}", report.display())?;
    match left {
        Some(line) => out!("{line}"),
        None => Ok(()),
    }
}

/// Prints how a run has ended, and what to do; returns the exit code.
fn print_outcome(run: &str, outcome: Outcome) -> Exit {
    match outcome {
        Outcome::Done => Exit::Success,
        Outcome::Failed => {
            message!(
                "error: {run} failed; `tarn why` shows why. `tarn resume` continues it; after a change of an input, a script or the workflow \
                 file: `tarn run`"
            );
            Exit::WorkflowFailed
        }
        Outcome::Refused => {
            message!("error: {run} was refused: nothing was started");
            Exit::NoSpace
        }
        Outcome::Interrupted(signal) => {
            message!("{run} was interrupted; `tarn resume` continues from here");
            if signal == 2 {
                Exit::Interrupted
            } else {
                Exit::Terminated
            }
        }
    }
}

/// The object that `--json` prints at the end.
#[derive(Serialize)]
struct PrintedSummary<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    /// The state folder, absolute: for commands about this run, from any folder.
    state: Cow<'a, str>,
}

/// Says where a run that has not ended well has put what was to be saved since it was last resumed, and whether that is all of it.
fn print_rescued(start: &Start, history: &History) {
    let mut reported = BTreeSet::new();
    let since = history.resumptions.last().copied().unwrap_or(0);
    for transfer in history.transfers.values().rev() {
        let (order, Place::External(folder)) = (&transfer.order, &transfer.order.to) else {
            continue;
        };
        let is_rescue = transfer.why == Reason::Rescue;
        let is_done = matches!(transfer.ended, Some((_, TransferEnd::Done { .. })));
        let is_new = transfer.ordered >= since;
        if !is_rescue || !is_done || !is_new || !reported.insert(order.data) {
            continue;
        }
        let dataset = start.workflow.dataset(order.data);
        let name = &dataset.name;
        let copied: BTreeSet<_> = order.parts.iter().map(|p| p.part).collect();
        let missing = Missing::of(history, order.data, order.version, |p, _| {
            copied.contains(&p)
        });
        let what = match history.makers(order.data, order.version) {
            (done, Some(1)) if done == 1 && missing.makers == 1 => {
                format!("what is left of `{name}`")
            }
            (done, Some(all)) if done - missing.makers < all => {
                let whole = done - missing.makers;
                format!("the output of {whole} of {all} instances of `{name}`")
            }
            _ => format!("`{name}`"),
        };
        let gone = missing.text;
        let gone = gone.map_or(String::new(), |gone| {
            format!("; {gone}{}", how_kept(dataset))
        });
        message!("copied {what} to {}{gone}", folder.display());
    }
}

fn write_page(path: &Path, page: &str) -> CliResult<()> {
    if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))
            .exit(Exit::State)?;
    }
    crate::whole::replace(path, page.as_bytes(), None)
        .with_context(|| format!("cannot write the report {}", path.display()))
        .exit(Exit::State)
}
