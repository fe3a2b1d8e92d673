//! Changes since the last run of a workflow, in terms of the workflow file and its files: why a step runs again.

use super::files::{RunFiles, is_done};
use super::opened;
use super::stale::Stale;
use crate::error::{CliError, CliResult};
use crate::state;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tarn_node::{RereadScope, SourceLook};
use tarn_ports::Mover;
use tarn_spec::Parsed;
use tarn_types::codes::Exit;
use tarn_types::event::{PriorData, RunError, Start};
use tarn_types::hash::Hash;
use tarn_types::history::History;
use tarn_types::id::{DataId, StepId};
use tarn_types::layout::StateDir;
use tarn_types::part::StoreKey;
use tarn_types::workflow::{DatasetUse, Foreach, Step, Workflow};

/// The file in a run's folder with the changes when it began.
const NAME: &str = "changes.json";

/// The sources as a run would find them.
pub(crate) type Looks = BTreeMap<DataId, Result<SourceLook, RunError>>;

/// Looks at every source that a step reads.
pub(crate) fn looks(
    w: &Workflow,
    state: &StateDir,
    workspace: &str,
    reading: RereadScope,
    mover: &dyn Mover,
) -> Looks {
    let ids = (0u32..).map(DataId).zip(&w.data);
    let sources = ids.filter(|(_, d)| d.source.is_some());
    sources
        .map(|(id, d)| {
            let look = tarn_node::look_at_source(state, workspace, d, reading, mover);
            (id, look)
        })
        .collect()
}

/// Before a run continues: a source that is not what it was when the run listed it is noted, and refused where a step that reads it
/// is still to be run. It would be done with the old one, or with both.
pub(super) fn check_sources_for_resume(
    begun: &Start,
    state: &StateDir,
    history: &History,
    mover: &dyn Mover,
    stale: &mut Stale,
) -> CliResult<()> {
    let w = &begun.workflow;
    let mut looks = Looks::new();
    for (id, dataset) in (0u32..).map(DataId).zip(&w.data) {
        let parts = history.parts.iter();
        let listed = parts.filter(|(part, _)| part.data == id && part.version == 0);
        let listed: Vec<StoreKey> = listed.map(|(_, info)| info.key.clone()).collect();
        if dataset.source.is_none() || listed.is_empty() {
            continue;
        }
        let look =
            tarn_node::look_at_source_since(state, &begun.workspace, dataset, &listed, mover);
        looks.insert(id, look);
    }
    for (id, step) in (0u32..).map(StepId).zip(&w.steps) {
        for what in of_sources(w, step, &looks) {
            if !is_done(history, id, step) {
                return Err(CliError::new(
                    Exit::Usage,
                    format!(
                        "{what} since this run began, and step `{}`, which reads it, is still to be run; `tarn run` begins a run with \
                         it as it is now, and runs again only what that changes",
                        step.name
                    ),
                ));
            }
            stale.source(id, what);
        }
    }
    Ok(())
}

/// The changes by step.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct StepChanges {
    again: BTreeMap<String, Vec<String>>,
    /// Files that a step opened without naming them, and that are other ones now: it does not run again for them.
    unseen: BTreeMap<String, Vec<String>>,
}

impl StepChanges {
    /// The changes since the newest run; empty if there is none.
    pub(crate) fn since_last(
        state: &StateDir,
        parsed: &Parsed,
        files: &RunFiles,
        (looks, others): (&Looks, &[PriorData]),
    ) -> Self {
        let mut changes = Self::default();
        let w = &parsed.workflow;
        let newest = tarn_journal::runs::newest(state, Some(&w.name));
        let Some(newest) = newest.ok().flatten() else {
            return changes;
        };
        let Ok(begun) = state::started(state, &newest.name) else {
            return changes;
        };
        let then = RunFiles::read(&state.run(&newest.name));
        let opened = opened::read(&state.run(&newest.name));
        for step in &w.steps {
            let before = begun.workflow.steps.iter().find(|s| s.name == step.name);
            let Some(before) = before else { continue };
            let mut all = if before.code == step.code {
                Vec::new()
            } else {
                of_code((&begun.workflow, before, &then), (w, step, files))
            };
            all.extend(of_sources(w, step, looks));
            all.extend(of_others((&begun, others), w, step));
            if !all.is_empty() {
                changes.again.insert(step.name.clone(), all);
            }
            let other = opened.get(&step.name).map(|known| {
                let differs = known.iter().filter(|(path, hash)| {
                    let path = w.folder.join(path);
                    !files.knows(&path) && RunFiles::hash_of(&path) != Some(**hash)
                });
                differs
                    .map(|(path, _)| path.display().to_string())
                    .collect()
            });
            if let Some(other) = other.filter(|o: &Vec<String>| !o.is_empty()) {
                changes.unseen.insert(step.name.clone(), other);
            }
        }
        changes
    }

    /// The changes for a step.
    pub(crate) fn of(&self, step: &str) -> Option<String> {
        self.again.get(step).map(|all| all.join("; "))
    }

    /// The notes to print before these steps run.
    pub(crate) fn notes(&self, w: &Workflow, runs: &BTreeSet<StepId>) -> Vec<String> {
        let named = runs.iter().map(|id| &w.step(*id).name);
        let again = named.filter_map(|name| {
            let why = self.of(name)?;
            Some(format!("`{name}` runs again: {why}"))
        });
        let all: BTreeSet<&String> = runs.iter().map(|id| &w.step(*id).name).collect();
        let unseen = self
            .unseen
            .iter()
            .filter(|(name, _)| !all.contains(name) && !self.again.contains_key(*name));
        let unseen = unseen.map(|(name, files)| {
            let list: Vec<_> = files.iter().map(|f| format!("{f:?}")).collect();
            format!(
                "`{name}` opened {} when it ran last, which has changed since: it does not run again for that; name it by \
                 `files = [{}]` if its result depends on it",
                files.join(", "),
                list.join(", ")
            )
        });
        again.chain(unseen).collect()
    }

    /// Kept for `tarn why`. It is only an explanation: an error of writing is ignored.
    pub(crate) fn write(&self, run: &Path) {
        if let Ok(bytes) = serde_json::to_vec_pretty(self) {
            let _ = std::fs::write(run.join(NAME), bytes);
        }
    }

    /// The changes that a run recorded when it began.
    pub(crate) fn read(run: &Path) -> Self {
        let bytes = std::fs::read(run.join(NAME)).ok();
        let changes = bytes.and_then(|b| serde_json::from_slice(&b).ok());
        changes.unwrap_or_default()
    }
}

/// The changes of a step's definition.
fn of_code(
    (w0, before, then): (&Workflow, &Step, &RunFiles),
    (w, step, now): (&Workflow, &Step, &RunFiles),
) -> Vec<String> {
    let mut all = Vec::new();
    let keys = [
        ("run", before.run != step.run),
        ("prelude", before.prelude != step.prelude),
        ("env", before.env != step.env),
        ("nodes", before.nodes != step.nodes),
        ("tasks", before.tasks != step.tasks),
    ];
    all.extend(
        keys.into_iter()
            .filter(|(_, changed)| *changed)
            .map(|(key, _)| format!("its `{key}` has changed")),
    );
    let uses = |w: &Workflow, s: &Step| -> Vec<(String, DatasetUse)> {
        let named = |u: &DatasetUse| {
            (
                w.dataset(u.data).name.clone(),
                DatasetUse {
                    data: DataId(0),
                    ..u.clone()
                },
            )
        };
        s.uses.iter().map(named).collect()
    };
    if uses(w0, before) != uses(w, step) {
        all.push("its inputs or outputs have changed".into());
    }
    let named: BTreeSet<PathBuf> = then
        .named_by(w0, before)
        .into_iter()
        .chain(now.named_by(w, step))
        .collect();
    for path in named {
        let shown = path.strip_prefix(&w.folder).unwrap_or(&path).display();
        match (then.hash(&path), now.hash(&path)) {
            (Some(a), Some(b)) if a != b => all.push(format!("{shown} has changed")),
            (None, Some(_)) => all.push(format!("{shown} is new")),
            (Some(_), None) => all.push(format!("{shown} is not there any more")),
            _ => {}
        }
    }
    if all.is_empty() {
        all.push("its definition has changed".into());
    }
    all
}

/// Which datasets of other workflows have changed that a step reads.
fn of_others((begun, now): (&Start, &[PriorData]), w: &Workflow, step: &Step) -> Vec<String> {
    let content = |prior: &PriorData| -> BTreeSet<Option<Hash>> {
        prior.parts.iter().map(|part| part.info.hash).collect()
    };
    let before = |name: &str| {
        let mut all = begun.prior_data.iter();
        all.find(|p| begun.workflow.dataset(p.data).name == name)
    };
    let read = now.iter().filter(|prior| {
        let reads = |u: &DatasetUse| u.data == prior.data && u.reads == Some(0);
        step.uses.iter().any(reads)
    });
    let changed = read.filter(|prior| {
        let known = before(&w.dataset(prior.data).name);
        known.is_some_and(|known| content(known) != content(prior))
    });
    let text = |p: &PriorData| format!("`{}` of workflow {} has changed", p.dataset, p.workflow);
    changed.map(text).collect()
}

/// The changes of the sources that a step reads.
fn of_sources(w: &Workflow, step: &Step, looks: &Looks) -> Vec<String> {
    let mut read: BTreeSet<DataId> = step
        .uses
        .iter()
        .filter(|u| u.reads == Some(0))
        .map(|u| u.data)
        .collect();
    if let Some(Foreach::Entries {
        data, version: 0, ..
    }) = &step.foreach
    {
        read.insert(*data);
    }
    let mut all = Vec::new();
    for id in read {
        let Some(Ok(look)) = looks.get(&id) else {
            continue;
        };
        let name = &w.dataset(id).name;
        // Of a dataset of which entries are selected, those that nobody selects are never read.
        let whole = w.dataset(id).partition == tarn_types::workflow::VersionPartitioning::Whole;
        let new = if whole { &look.new[..] } else { &[] };
        let kinds = [
            (&look.changed[..], "has changed"),
            (&look.gone[..], "is gone"),
            (new, "is new"),
        ];
        for (files, how) in kinds {
            let Some(first) = files.first() else { continue };
            let others = match files.len() {
                1 => String::new(),
                n => format!(", as {} others", n - 1),
            };
            all.push(format!("the input {first} of `{name}` {how}{others}"));
        }
    }
    all
}
