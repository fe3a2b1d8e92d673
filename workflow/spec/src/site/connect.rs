//! The connections between the jobs of a workload file: names become numbers, and edges are checked.

use crate::diag::{Finding, FindingCode, Findings, quoted};
use crate::section::{Located, value_of};
use crate::site::draft::{WorkflowDraft, way_round};
use crate::site::raw_jobs::{RawJob, RawWorkItem};
use crate::suggest::did_you_mean;
use miette::SourceSpan;
use std::collections::HashMap;
use tarn_types::site::{Input, Item, ItemId, JobId, WorkItem};
use tarn_types::units::Time;

/// Turns names into numbers.
pub(crate) fn connect(out: &mut Findings, data: &[RawWorkItem], jobs: &[RawJob]) -> WorkflowDraft {
    let items: HashMap<&str, usize> = data
        .iter()
        .enumerate()
        .map(|(at, d)| (d.name.value.as_str(), at))
        .collect();
    let names: HashMap<&str, usize> = jobs
        .iter()
        .enumerate()
        .map(|(at, j)| (j.name.value.as_str(), at))
        .collect();
    let mut draft = WorkflowDraft::default();
    for raw in data {
        draft.items.push(WorkItem {
            item: Item {
                bytes: raw.bytes,
                outside: raw.outside,
                keep: raw.keep && !raw.outside,
            },
            name: raw.name.value.as_str().into(),
            bytes: raw.bytes,
        });
    }
    let mut writers: HashMap<usize, SourceSpan> = HashMap::new();
    for raw in jobs {
        let mut job = raw.draft.clone();
        for at in lookup(out, &raw.reads, &items, FindingCode::UnknownDataset, "data") {
            job.job.reads.push(Input {
                item: ItemId(at.value as u32),
                spread: data[at.value].spread,
            });
        }
        for at in lookup(
            out,
            &raw.writes,
            &items,
            FindingCode::UnknownDataset,
            "data",
        ) {
            job.job.writes.push(ItemId(at.value as u32));
            if data[at.value].outside {
                out.add(source_written(&raw.name.value, &data[at.value], at.span));
            }
            if let Some(first) = writers.insert(at.value, at.span) {
                let message = format!("two jobs write {}", quoted(&data[at.value].name.value));
                let finding =
                    Finding::error(FindingCode::TwoProducers, message).at(at.span, "again here");
                out.add(
                    finding
                        .at(first, "first here")
                        .help("data never changes once made: give it another name"),
                );
            }
        }
        for at in lookup(out, &raw.after, &names, FindingCode::UnknownStep, "job") {
            job.job.after.push(JobId(at.value as u32));
        }
        draft.jobs.push(job);
    }
    draft
}

fn source_written(job: &str, data: &RawWorkItem, span: SourceSpan) -> Finding {
    let message = format!(
        "job {} writes {}, which is outside from the start",
        quoted(job),
        quoted(&data.name.value)
    );
    Finding::error(FindingCode::SourceAsOutput, message)
        .at(span, "written here")
        .at(data.name.span, "`outside = true`")
        .help("remove `outside`; `keep = true` makes sure that it is outside in the end")
}

/// The numbers of names; reports unknown ones and those that occur twice.
fn lookup(
    out: &mut Findings,
    names: &[Located<String>],
    known: &HashMap<&str, usize>,
    code: FindingCode,
    noun: &str,
) -> Vec<Located<usize>> {
    let mut found: Vec<Located<usize>> = Vec::with_capacity(names.len());
    for name in names {
        let at = known.get(name.value.as_str()).copied();
        match at {
            None => {
                let mut all: Vec<&str> = known.keys().copied().collect();
                all.sort_unstable();
                let hint = out.suggest(|| did_you_mean(&name.value, all));
                out.add(
                    Finding::error(code, format!("there is no {noun} {}", quoted(&name.value)))
                        .at(name.span, "not in this file")
                        .help(hint.unwrap_or_else(|| match noun {
                            "data" => format!("add `[data.{}]` with its `size`", name.value),
                            _ => "name a `[[job]]` of this file".into(),
                        })),
                );
            }
            Some(at) if found.iter().any(|f| f.value == at) => out.add(
                Finding::error(
                    FindingCode::DuplicateUse,
                    format!("{} is twice in one list", quoted(&name.value)),
                )
                .at(name.span, "again here")
                .help("remove it"),
            ),
            Some(at) => found.push(Located::new(at, name.span)),
        }
    }
    found
}

/// When each job is submitted, and its workflow: all jobs of a workflow come together.
pub(crate) fn submissions(
    out: &mut Findings,
    jobs: &[RawJob],
    usual: Time,
) -> Vec<(Option<String>, Time)> {
    let mut arrivals: HashMap<&str, &Located<Time>> = HashMap::new();
    for job in jobs {
        if let (Some(flow), Some(arrives)) = (&job.flow, &job.arrives) {
            let first = *arrivals.entry(&flow.value).or_insert(arrives);
            if first.value != arrives.value {
                let message = format!(
                    "the jobs of workflow {} come at two times",
                    quoted(&flow.value)
                );
                out.add(
                    Finding::error(FindingCode::BadValue, message)
                        .at(arrives.span, "another time than before")
                        .at(first.span, "first here")
                        .help(
                            "a workflow is submitted as a whole: set `arrives` at one of its jobs",
                        ),
                );
            }
        }
    }
    let of = |job: &RawJob| match &job.flow {
        Some(flow) => {
            let time = arrivals.get(flow.value.as_str()).map_or(usual, |t| t.value);
            (Some(flow.value.clone()), time)
        }
        None => (None, value_of(&job.arrives).unwrap_or(usual)),
    };
    jobs.iter().map(of).collect()
}

/// A job may wait only for jobs of its own workflow, and not for itself.
pub(crate) fn check_edges(out: &mut Findings, draft: &WorkflowDraft, jobs: &[RawJob]) {
    let flow = |at: usize| jobs[at].flow.as_ref().map(|f| f.value.as_str());
    for (at, before) in draft.waits_for().iter().enumerate() {
        for other in before
            .iter()
            .filter(|other| flow(at).is_none() || flow(at) != flow(**other))
        {
            let (name, other) = (&jobs[at].name, &jobs[*other].name);
            let message = format!(
                "job {} waits for {}, and they are no workflow",
                quoted(&name.value),
                quoted(&other.value)
            );
            out.add(
                Finding::error(FindingCode::BadValue, message)
                    .at(name.span, "waits")
                    .at(other.span, "is waited for")
                    .help("give both the same `workflow = \"NAME\"`"),
            );
        }
    }
    if let (true, Err(circle)) = (out.is_empty(), draft.order()) {
        let way = way_round(&circle, |at| &jobs[at].name.value);
        let first = circle
            .first()
            .map_or((0, 0).into(), |at| jobs[*at].name.span);
        out.add(
            Finding::error(FindingCode::Cycle, "jobs wait for each other")
                .at(first, way)
                .help("remove one of the names in `in` or `after`"),
        );
    }
}

/// Every input must come from somewhere, and data that is there must be used. Notes data that nobody gets.
pub(crate) fn check_data(
    out: &mut Findings,
    draft: &WorkflowDraft,
    data: &[RawWorkItem],
) -> Vec<String> {
    let mut notes = Vec::new();
    let writers = draft.writers();
    let mut read = vec![false; data.len()];
    for input in draft.jobs.iter().flat_map(|j| &j.job.reads) {
        read[input.item.at()] = true;
    }
    for (at, raw) in data.iter().enumerate() {
        let name = quoted(&raw.name.value);
        match (read[at], writers[at].is_some(), raw.outside) {
            (true, false, false) => out.add(
                Finding::error(
                    FindingCode::NobodyMakes,
                    format!("nobody writes {name}, and it is read"),
                )
                .at(raw.name.span, "comes from nowhere")
                .help("add `outside = true`, or name it in `out` of a job"),
            ),
            (false, false, _) => out.add(
                Finding::error(FindingCode::BadValue, format!("no job uses {name}"))
                    .at(raw.name.span, "neither read nor written")
                    .help("remove it, or name it in `in` or `out` of a job"),
            ),
            (false, true, _) if !raw.keep => {
                notes.push(format!(
                    "{name} is written, but nobody reads it and it is not kept"
                ));
            }
            _ => {}
        }
    }
    notes
}
