//! `[data.NAME]` and `[[job]]` of a workload file.

use crate::diag::{Finding, FindingCode, Findings, quoted};
use crate::namerule::NameRule;
use crate::section::{Located, Section, in_order, kind, place, value_of};
use crate::site::alone::Alone;
use crate::site::connect::{check_data, check_edges, connect, submissions};
use crate::site::draft::{DraftJob, LEAST_LIMIT, WorkflowDraft, plain_job};
use crate::site::gather::Gather;
use crate::site::machine::MODES;
use crate::site::raw_jobs::{RawJob, RawWorkItem};
use crate::site::reader::ReadOptions;
use crate::site::values::{NAME, NumberedTable, unique};
use std::collections::BTreeMap;
use tarn_types::bounds;
use tarn_types::site::{FlowId, Machine, Spread};
use tarn_types::units::Time;

const DATA_KEYS: &[&str] = &["size", "outside", "keep", "spread"];
const JOB_KEYS: &[&str] = &[
    "name", "workflow", "arrives", "nodes", "cores", "memory", "gpus", "mode", "compute", "limit",
    "in", "out", "after",
];
const SPREADS: &[(&str, Spread)] = &[("share", Spread::Share), ("whole", Spread::Whole)];
/// Cores and GPUs of one node.
const MAX_PER_NODE: u32 = 65_536;

/// Jobs that make sense.
pub(crate) struct Inline {
    draft: WorkflowDraft,
    /// Of each job: its workflow, and when it is submitted.
    flows: Vec<(Option<String>, Time)>,
    notes: Vec<String>,
}

impl Inline {
    /// How many jobs and items.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.draft.jobs.len(), self.draft.items.len())
    }
}

/// Reads `[data.NAME]` and `[[job]]`. `None` if something is wrong.
pub(crate) fn read(
    out: &mut Findings,
    top: &Section<'_>,
    machine: &Machine,
    alone: Alone,
    options: &ReadOptions,
) -> Option<Inline> {
    let data = data(out, top);
    let tables = top.tables(out, "job", bounds::MAX_STEPS);
    let jobs: Vec<RawJob> = tables
        .into_iter()
        .map(|table| job(out, table, machine))
        .collect();
    unique(out, "job", jobs.iter().map(|j| &j.name));
    if !out.is_empty() {
        return None;
    }
    let draft = connect(out, &data, &jobs);
    let flows = submissions(out, &jobs, options.arrives);
    check_edges(out, &draft, &jobs);
    let notes = check_data(out, &draft, &data);
    if !out.is_empty() {
        return None;
    }
    let mut inline = Inline {
        draft,
        flows,
        notes,
    };
    for (at, raw) in jobs.iter().enumerate().filter(|(_, raw)| raw.no_limit) {
        let (read, written) = inline.draft.bytes(&inline.draft.jobs[at].job);
        let job = &mut inline.draft.jobs[at].job;
        let moving = alone.time(job.nodes, read, written);
        job.limit = raw.draft.compute.saturating_add(moving).max(LEAST_LIMIT);
    }
    Some(inline)
}

/// Adds jobs; `file` is named in their notes.
pub(crate) fn add(gather: &mut Gather, inline: Inline, file: &str) {
    let first = gather.first();
    gather.items(&inline.draft.items);
    let mut ids: BTreeMap<&str, FlowId> = BTreeMap::new();
    for (job, (flow, arrives)) in inline.draft.jobs.iter().zip(&inline.flows) {
        let flow = flow.as_deref().map(|name| {
            *ids.entry(name)
                .or_insert_with(|| gather.begin_flow(name, *arrives))
        });
        gather.push(job, flow, first, *arrives);
    }
    for note in inline.notes {
        gather.note(format!("{file}: {note}"));
    }
}

fn data(out: &mut Findings, top: &Section<'_>) -> Vec<RawWorkItem> {
    let Some(value) = top.get("data") else {
        return Vec::new();
    };
    let Some(table) = value.get_ref().as_table() else {
        let found = kind(value.get_ref());
        out.add(
            Finding::error(
                FindingCode::WrongType,
                format!("`data` must be a table, not {found}"),
            )
            .at(place(value), found)
            .help("write a table for each: `[data.NAME]`, with its keys below"),
        );
        return Vec::new();
    };
    if table.len() > bounds::MAX_DATASETS {
        out.add(
            Finding::error(
                FindingCode::TooLarge,
                format!("{} items of data are too many", table.len()),
            )
            .at(
                place(value),
                format!("at most {} are allowed", bounds::MAX_DATASETS),
            )
            .help("what is made by one job and read by the same jobs is one item"),
        );
        return Vec::new();
    }
    let mut all = Vec::with_capacity(table.len());
    for (name, value) in in_order(table) {
        NameRule {
            noun: "data",
            ..NAME
        }
        .check(out, name.value, name.span);
        let what = format!("data {}", quoted(name.value));
        let Some(table) = value.get_ref().as_table() else {
            let found = kind(value.get_ref());
            out.add(
                Finding::error(
                    FindingCode::WrongType,
                    format!("{what} must be a table, not {found}"),
                )
                .at(place(value), found)
                .help(format!(
                    "write a table: `[data.{}]`, with its keys below",
                    name.value
                )),
            );
            continue;
        };
        let section = Section::new(out, table, name.span, what, "data", DATA_KEYS);
        section.require(out, "size", "\"40 GB\"");
        all.push(RawWorkItem {
            name: Located::new(name.value.to_owned(), name.span),
            bytes: value_of(&section.size(out, "size")).unwrap_or(0),
            outside: section.flag(out, "outside").unwrap_or(false),
            keep: section.flag(out, "keep").unwrap_or(false),
            spread: section
                .word(out, "spread", SPREADS)
                .unwrap_or(Spread::Share),
        });
    }
    all
}

fn job(out: &mut Findings, (number, table, span): NumberedTable<'_>, machine: &Machine) -> RawJob {
    let what = match table.get("name").and_then(|n| n.get_ref().as_str()) {
        Some(name) => format!("job {}", quoted(name)),
        None => format!("job {number}"),
    };
    let section = Section::new(out, table, span, what, "a job", JOB_KEYS);
    section.require(out, "compute", "\"10m\"");
    let name = section.name(
        out,
        "name",
        &NameRule {
            noun: "job",
            ..NAME
        },
    );
    let per_node =
        |out: &mut Findings, key| value_of(&section.count(out, key, 0, MAX_PER_NODE)).unwrap_or(0);
    let nodes = section.count(out, "nodes", 1, bounds::MAX_NODES as u32);
    if let Some(nodes) = nodes.as_ref().filter(|n| n.value > machine.nodes()) {
        let message = format!(
            "{} wants {} nodes; the machine has {}",
            section.what,
            nodes.value,
            machine.nodes()
        );
        let finding =
            Finding::error(FindingCode::TooFewNodes, message).at(nodes.span, "more than there are");
        out.add(finding.help("lower it, or simulate a larger machine"));
    }
    let mut job = plain_job(value_of(&nodes).unwrap_or(1));
    job.cores = per_node(out, "cores");
    job.gpus = per_node(out, "gpus");
    job.memory = value_of(&section.size(out, "memory")).unwrap_or(0);
    job.mode = section.word(out, "mode", MODES);
    let compute = value_of(&section.moment(out, "compute")).unwrap_or(0);
    let limit = section.time(out, "limit");
    job.limit = value_of(&limit).unwrap_or(compute);
    job.expect = compute.min(job.limit);
    let list = |out: &mut Findings, key| section.list(out, key, "[\"name\"]").unwrap_or_default();
    let name = name.unwrap_or_else(|| Located::new(number.to_string(), span));
    RawJob {
        flow: section.name(
            out,
            "workflow",
            &NameRule {
                noun: "workflow",
                ..NAME
            },
        ),
        arrives: section.moment(out, "arrives"),
        draft: DraftJob {
            name: name.value.as_str().into(),
            job,
            compute,
            follows: None,
        },
        no_limit: limit.is_none(),
        reads: list(out, "in"),
        writes: list(out, "out"),
        after: list(out, "after"),
        name,
    }
}
