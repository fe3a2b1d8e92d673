//! From names to numbers: datasets, versions, distributions, parts, and dependencies of steps.

use crate::data::RawDataset;
use crate::diag::{Finding, FindingCode, Findings, quoted};
use crate::distribution::distribution;
use crate::foreach::RawForeach;
use crate::graph::StepDependency;
use crate::item::RawStepItem;
use crate::parts::partitions;
use crate::step::RawStep;
use crate::suggest::did_you_mean;
use crate::versions::{Resolved, edges, makers, versions};
use miette::SourceSpan;
use std::collections::HashMap;
use tarn_types::id::{DataId, StepId};
use tarn_types::workflow::{Role, VersionPartitioning};

/// Everything resolved: the steps, how each dataset is divided, and the edges of the graph by step.
pub(crate) struct ResolvedWorkflow {
    pub(crate) steps: Vec<Resolved>,
    pub(crate) partitions: Vec<VersionPartitioning>,
    pub(crate) edges: Vec<Vec<StepDependency>>,
}

/// Resolves names, then versions. `None` when problems leave no graph to speak of.
pub(crate) fn resolve(
    out: &mut Findings,
    data: &[RawDataset],
    steps: &[RawStep],
) -> Option<ResolvedWorkflow> {
    if out.data_broken {
        return None;
    }
    let names: HashMap<&str, DataId> = data
        .iter()
        .enumerate()
        .map(|(i, d)| (d.name.value.as_str(), DataId(i as u32)))
        .collect();
    let names = DatasetNameIndex { ids: names, data };
    let uses: Vec<Vec<DataId>> = steps.iter().map(|s| items(out, s, &names)).collect();
    let over: Vec<Option<DataId>> = steps.iter().map(|s| entries_of(out, s, &names)).collect();
    let after = after(out, steps);
    if out.uses_broken {
        return None;
    }
    let makers = makers(out, data, steps, &uses, &over);
    let partitions = partitions(out, data, steps, &uses, &over);
    let resolved = versions(out, data, steps, &uses, &over, after, &makers);
    let edges = edges(steps, &resolved, &makers);
    Some(ResolvedWorkflow {
        steps: resolved,
        partitions,
        edges,
    })
}

/// The datasets by name.
struct DatasetNameIndex<'d> {
    ids: HashMap<&'d str, DataId>,
    data: &'d [RawDataset],
}

impl DatasetNameIndex<'_> {
    fn find(&self, out: &mut Findings, name: &str, span: SourceSpan) -> Option<DataId> {
        let id = self.ids.get(name).copied();
        if id.is_none() {
            let near =
                out.suggest(|| did_you_mean(name, self.data.iter().map(|d| d.name.value.as_str())));
            out.add_breaking(
                Finding::error(
                    FindingCode::UnknownDataset,
                    format!("there is no dataset {}", quoted(name)),
                )
                .at(span, "names no `[data.NAME]`")
                .help(near.unwrap_or_else(|| {
                    format!(
                        "declare it with a table {}",
                        quoted(&format!("[data.{name}]"))
                    )
                })),
            );
        }
        id
    }
}

/// The datasets of a step's items, each named once; checks their distributions.
fn items(out: &mut Findings, step: &RawStep, names: &DatasetNameIndex<'_>) -> Vec<DataId> {
    let mut seen: HashMap<(&str, Option<&str>), &RawStepItem> = HashMap::new();
    let mut wholes: HashMap<&str, &RawStepItem> = HashMap::new();
    let mut ids = Vec::with_capacity(step.items.len());
    for item in &step.items {
        let earlier = match (&item.entry, wholes.get(item.name.as_str())) {
            (Some(_), Some(first)) if first.entry.is_none() => Some(*first),
            (Some(entry), _) => seen
                .get(&(item.name.as_str(), Some(entry.as_str())))
                .copied(),
            (None, first) => first.copied(),
        };
        match earlier {
            Some(first) => out.add_breaking(used_twice(step, first, item)),
            None => {
                wholes.insert(&item.name, item);
                seen.insert((&item.name, item.entry.as_deref()), item);
            }
        }
        if let Some(id) = names.find(out, &item.name, item.span) {
            ids.push(id);
        }
        if let Err(problem) = distribution(step, item) {
            out.add(problem);
        }
    }
    ids
}

fn used_twice(step: &RawStep, first: &RawStepItem, again: &RawStepItem) -> Finding {
    let hint = match (first.role, again.role) {
        (Role::In, Role::Out) | (Role::Out, Role::In) => {
            format!("to change a dataset, name it once: `inout = [\"{}\"]`", again.name)
        }
        (Role::In, Role::Inout) | (Role::Inout, Role::In) => "`inout` reads it too: remove the `in`".into(),
        _ => "name it once; only different entries of one dataset (`NAME/ENTRY`) can stand together in `in`".into(),
    };
    Finding::error(
        FindingCode::DuplicateUse,
        format!(
            "step {} names dataset {} twice",
            quoted(&step.name.value),
            quoted(&again.name)
        ),
    )
    .at(again.span, "again here")
    .at(first.span, "first here")
    .help(hint)
}

fn entries_of(out: &mut Findings, step: &RawStep, names: &DatasetNameIndex<'_>) -> Option<DataId> {
    let foreach = step.foreach.as_ref()?;
    match &foreach.value {
        RawForeach::Values(_) => None,
        RawForeach::Entries(name, _) => names.find(out, name, foreach.span),
    }
}

/// The steps that `after` names, with their places.
fn after(out: &mut Findings, steps: &[RawStep]) -> Vec<Vec<(StepId, SourceSpan)>> {
    let ids: HashMap<&str, StepId> = steps
        .iter()
        .enumerate()
        .map(|(i, s)| (s.name.value.as_str(), StepId(i as u32)))
        .collect();
    let mut all = Vec::with_capacity(steps.len());
    for step in steps {
        let mut list: Vec<(StepId, SourceSpan)> = Vec::with_capacity(step.after.len());
        let mut seen: HashMap<StepId, SourceSpan> = HashMap::new();
        for name in &step.after {
            let Some(&id) = ids.get(name.value.as_str()) else {
                let hint = out.suggest(|| {
                    did_you_mean(&name.value, steps.iter().map(|s| s.name.value.as_str()))
                });
                out.add_breaking(
                    Finding::error(
                        FindingCode::UnknownStep,
                        format!("there is no step {}", quoted(&name.value)),
                    )
                    .at(name.span, "names no step")
                    .help(
                        hint.unwrap_or_else(|| "`after` lists names of steps of this file".into()),
                    ),
                );
                continue;
            };
            match seen.insert(id, name.span) {
                None => list.push((id, name.span)),
                Some(first) => out.add(
                    Finding::error(
                        FindingCode::DuplicateUse,
                        format!(
                            "`after` of step {} names {} twice",
                            quoted(&step.name.value),
                            quoted(&name.value)
                        ),
                    )
                    .at(name.span, "again here")
                    .at(first, "first here")
                    .help("name it once"),
                ),
            }
        }
        all.push(list);
    }
    all
}
