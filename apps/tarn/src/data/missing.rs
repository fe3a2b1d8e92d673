//! Missing data of a version, and how to make it again.

use crate::state;
use std::collections::{BTreeMap, BTreeSet};
use tarn_journal::runs;
use tarn_types::history::History;
use tarn_types::id::{DataId, InstanceId};
use tarn_types::layout::StateDir;
use tarn_types::part::{PartClass, PartInfo, PartRef};
use tarn_types::text::sentence_of;
use tarn_types::workflow::{Dataset, Keep, Workflow};

/// How many instances or entries a message names.
const NAMED: usize = 8;

/// The data of a version that completed instances have made and that is missing.
pub(crate) struct Missing {
    /// The instances of which something is missing.
    pub(crate) makers: usize,
    /// The missing instances and entries; `None` if nothing is missing.
    pub(crate) named: Option<String>,
    /// That it is gone.
    pub(crate) text: Option<String>,
}

impl Missing {
    pub(crate) fn of(
        history: &History,
        data: DataId,
        version: u32,
        is_there: impl Fn(PartRef, &PartInfo) -> bool,
    ) -> Self {
        let makers = history.makers_of_missing(data, version, &is_there);
        let Some(w) = history.start.as_ref().map(|s| &s.workflow) else {
            return Self {
                makers: 0,
                named: None,
                text: None,
            };
        };
        let name = &w.dataset(data).name;
        // By origin: the entries that are missing, as long as others of it are there.
        let mut entries: BTreeMap<u32, Option<BTreeSet<&str>>> = BTreeMap::new();
        for (part, info) in history.parts_of(data, version) {
            let of_origin = entries.entry(part.origin).or_insert(None);
            if is_there(part, info) {
                of_origin.get_or_insert_default();
            }
        }
        for (part, info) in history.parts_of(data, version) {
            if let (Some(Some(names)), PartClass::Entry(entry), false) = (
                entries.get_mut(&part.origin),
                &info.class,
                is_there(part, info),
            ) {
                names.insert(entry);
            }
        }
        let (mut made, mut named) = (Vec::new(), BTreeSet::<&str>::new());
        for id in &makers {
            match entries.get(&id.index) {
                Some(Some(names)) if !names.is_empty() => named.extend(names.iter().copied()),
                _ => made.push(instance(history, *id)),
            }
        }
        let named: Vec<String> = named.iter().map(|e| format!("`{name}/{e}`")).collect();
        let is = if made.is_empty() && named.len() == 1 || named.is_empty() {
            "is"
        } else {
            "are"
        };
        let of = if made.is_empty() {
            ""
        } else {
            "the output of "
        };
        let all = [made, named].concat();
        let all = (!all.is_empty()).then(|| sentence_of(&all, NAMED));
        let text = all.as_ref().map(|all| format!("{of}{all} {is} gone"));
        Self {
            makers: makers.len(),
            named: all,
            text,
        }
    }
}

/// How to keep data that a later step has read until the run's end, if nothing keeps it yet; with a space before it.
pub(crate) fn how_kept(dataset: &Dataset) -> String {
    match dataset.keep {
        Keep::UntilConsumed => {
            let name = &dataset.name;
            format!(" (to prevent this: `keep = \"workflow\"` in [data.{name}])")
        }
        _ => String::new(),
    }
}

/// An instance by its step and element.
fn instance(history: &History, id: InstanceId) -> String {
    let Some(start) = &history.start else {
        return id.to_string();
    };
    let step = &start.workflow.step(id.step).name;
    match history.item(id) {
        Some(item) => format!("{step}[{item}]"),
        None => step.clone(),
    }
}

/// How a dataset is had that was made and is not there any more: nothing that it depends on has changed, so its step does not run by
/// itself. `None` for one that no step makes.
pub(crate) fn run_again(w: &Workflow, data: DataId) -> Option<String> {
    let dataset = w.dataset(data);
    let step = w.producer(data, w.last_version(data))?;
    let name = &dataset.name;
    let keep = match dataset.keep {
        Keep::For(_) | Keep::Forever => String::new(),
        _ => format!("set `keep = \"7d\"` in [data.{name}], "),
    };
    Some(format!(
        "To make `{name}` again: {keep}add `env = {{ AGAIN = \"1\" }}` to step `{}` (another value if it is there already; in a script: a \
         line `export AGAIN=1`), then `tarn run`",
        w.step(step).name
    ))
}

/// The same for a dataset of this name in the newest run that knows it, if that run has made all of it.
pub(crate) fn had_again(state: &StateDir, workflow: Option<&str>, dataset: &str) -> Option<String> {
    let runs = runs::list(state).ok()?;
    let of_workflow = |run: &&runs::RunEntry| workflow.is_none_or(|w| w == run.workflow);
    runs.iter().rev().filter(of_workflow).find_map(|run| {
        let start = state::started(state, &run.name).ok()?;
        let known = start.workflow.data.iter().position(|d| d.name == dataset)?;
        let data = DataId(u32::try_from(known).ok()?);
        let history = runs::history(state, &run.name).ok()?;
        let is_made = history.is_sealed(data, start.workflow.last_version(data));
        // The newest of them alone: data that it has yet to make is not gone.
        let again = is_made.then(|| run_again(&start.workflow, data));
        Some(again.flatten())
    })?
}
