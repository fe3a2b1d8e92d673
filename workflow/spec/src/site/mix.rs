//! Reading `workload.toml`: `[[job]]`, `[[trace]]` and `[[workflow]]` on one machine.

use crate::diag::{Finding, FindingCode, Findings, SpecError};
use crate::namerule::NameRule;
use crate::section::{Located, Section, value_of};
use crate::site::document::read_document;
use crate::site::draft::MAX_TIME;
use crate::site::jobs;
use crate::site::model::DataModel;
use crate::site::random::WorkloadRandom;
use crate::site::reader::{IncludeError, ReadOptions, WorkloadReader, flow_name};
use crate::site::steps::ASSUMED_ENTRIES;
use crate::site::swf::TraceOptions;
use crate::site::values::{NAME, NumberedTable};
use crate::site::ways::{FlowOptions, SubmitWay};
use miette::SourceSpan;
use std::path::{Path, PathBuf};
use tarn_types::bounds;
use tarn_types::units::{Nanos, Time};
use toml::de::DeTable;

const TOP_KEYS: &[&str] = &["data", "job", "trace", "workflow"];
const TRACE_KEYS: &[&str] = &[
    "file",
    "arrives",
    "max-jobs",
    "procs-per-node",
    "unknown-status",
    "data",
];
const TRACE_DATA_KEYS: &[&str] = &["io", "jobs", "seed"];
const FLOW_KEYS: &[&str] = &[
    "file",
    "name",
    "arrives",
    "every",
    "count",
    "seed",
    "submit",
    "bytes-scale",
    "time-scale",
    "entries",
];
/// `[[trace]]` and `[[workflow]]` of one file.
const MAX_FILES: usize = 10_000;
/// Copies of one workflow.
const MAX_COUNT: u32 = 1_000_000;
/// Factors of sizes and times.
const SCALES: (f64, f64) = (1e-6, 1e6);

/// A trace as written.
struct RawTrace {
    file: Located<PathBuf>,
    arrives: Time,
    options: TraceOptions,
}

/// A workflow file as written.
struct RawFlow {
    file: Located<PathBuf>,
    name: String,
    arrives: Time,
    every: Nanos,
    count: u32,
    seed: u64,
    entries: u32,
    options: FlowOptions,
}

/// Reads the text of a workload file and the files that it names.
///
/// # Errors
/// All that is wrong with it, or with the first wrong file that it names.
pub(crate) fn read_mix(
    source: &mut WorkloadReader<'_>,
    path: &Path,
    name: &str,
    text: &str,
    options: &ReadOptions,
) -> Result<(), SpecError> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut inner = None;
    let read = read_document(name, text, |out, table| {
        mix(out, table, source, folder, options, &mut inner)
    });
    match inner {
        Some(rejected) => Err(rejected),
        None => read,
    }
}

fn mix(
    out: &mut Findings,
    table: &DeTable<'_>,
    source: &mut WorkloadReader<'_>,
    folder: &Path,
    options: &ReadOptions,
    inner: &mut Option<SpecError>,
) -> Option<()> {
    let noun = "the file's top level";
    let top = Section::new(out, table, (0, 0).into(), "the workload", noun, TOP_KEYS);
    if ["job", "trace", "workflow"]
        .iter()
        .all(|key| top.get(key).is_none())
    {
        out.add(
            Finding::error(FindingCode::MissingKey, "the workload is empty")
                .at(top.span, "no `[[job]]`, no `[[trace]]`, no `[[workflow]]`")
                .help("add a `[[trace]]` or a `[[workflow]]` with `file`, or `[[job]]`s"),
        );
    }
    let inline = jobs::read(out, &top, source.machine, source.alone, options);
    let traces: Vec<RawTrace> = top
        .tables(out, "trace", MAX_FILES)
        .into_iter()
        .filter_map(|table| trace(out, table, folder, options))
        .collect();
    let flows: Vec<RawFlow> = top
        .tables(out, "workflow", MAX_FILES)
        .into_iter()
        .filter_map(|table| flow(out, table, folder, options))
        .collect();
    if !out.is_empty() {
        return None;
    }
    let file = out.file();
    let inline = inline?;
    let (jobs, items) = inline.size();
    if let Err(finding) = source.gather.check_workload_size(jobs, items) {
        out.add(finding.at(top.span, "with what came before"));
        return None;
    }
    jobs::add(&mut source.gather, inline, &file);
    let mut failed = |out: &mut Findings, failure, span| match failure {
        IncludeError::Here(finding) => out.add(Finding::at(finding, span, "named here")),
        IncludeError::There(rejected) => *inner = Some(rejected),
    };
    for raw in traces {
        if let Err(failure) = source.trace(&raw.file.value, &raw.options, raw.arrives) {
            failed(out, failure, raw.file.span);
            return None;
        }
    }
    for raw in flows {
        if let Err(failure) = copies(source, &raw) {
            failed(out, failure, raw.file.span);
            return None;
        }
    }
    Some(())
}

/// Adds all copies of a workflow.
fn copies(source: &mut WorkloadReader<'_>, raw: &RawFlow) -> Result<(), IncludeError> {
    let mut draft = source.draft(&raw.file.value, &raw.options, raw.entries)?;
    let count = raw.count as usize;
    let (jobs, items) = (draft.jobs.len(), draft.items.len());
    source
        .gather
        .check_workload_size(jobs.saturating_mul(count), items.saturating_mul(count))
        .map_err(IncludeError::Here)?;
    let order = draft.order().unwrap_or_default();
    raw.options.submit.apply(&mut draft, &order);
    let mut random = WorkloadRandom::new(raw.seed, 0);
    let mut arrives = raw.arrives;
    for number in 1..=raw.count {
        let name = match raw.count {
            1 => raw.name.clone(),
            _ => format!("{}-{number}", raw.name),
        };
        source.gather.flow(&draft, &name, arrives);
        let pause = random.exponential() * raw.every as f64;
        arrives = arrives.saturating_add(pause as Nanos).min(MAX_TIME);
    }
    Ok(())
}

fn file(
    out: &mut Findings,
    section: &Section<'_>,
    folder: &Path,
    example: &str,
) -> Option<Located<PathBuf>> {
    section.require(out, "file", example);
    section.path(out, "file", folder)
}

fn trace(
    out: &mut Findings,
    (number, table, span): NumberedTable<'_>,
    folder: &Path,
    options: &ReadOptions,
) -> Option<RawTrace> {
    let section = Section::new(
        out,
        table,
        span,
        format!("trace {number}"),
        "a trace",
        TRACE_KEYS,
    );
    let usual = options.trace;
    let count = |out: &mut Findings, key| value_of(&section.count(out, key, 1, u32::MAX));
    Some(RawTrace {
        arrives: value_of(&section.moment(out, "arrives")).unwrap_or(options.arrives),
        options: TraceOptions {
            procs_per_node: count(out, "procs-per-node").unwrap_or(usual.procs_per_node),
            max_jobs: count(out, "max-jobs").map_or(usual.max_jobs, u64::from),
            data: data_model(out, &section).or(usual.data),
            unknown_status: section
                .flag(out, "unknown-status")
                .unwrap_or(usual.unknown_status),
        },
        file: file(out, &section, folder, "\"jobs.swf.gz\"")?,
    })
}

fn data_model(out: &mut Findings, trace: &Section<'_>) -> Option<DataModel> {
    let section = trace.table(
        out,
        "data",
        TRACE_DATA_KEYS,
        "{ io = 0.3, jobs = 0.5, seed = 1 }",
    )?;
    section.require(out, "io", "0.3");
    let (least, most) = DataModel::IO_RANGE;
    let io = section.number(out, "io", least, most);
    let jobs = section.number(out, "jobs", 0.0, 1.0);
    Some(DataModel {
        seed: seed(out, &section),
        jobs: value_of(&jobs).unwrap_or(1.0),
        io: value_of(&io)?,
    })
}

fn seed(out: &mut Findings, section: &Section<'_>) -> u64 {
    value_of(&section.count(out, "seed", 0, u32::MAX)).map_or(0, u64::from)
}

fn flow(
    out: &mut Findings,
    (number, table, span): NumberedTable<'_>,
    folder: &Path,
    options: &ReadOptions,
) -> Option<RawFlow> {
    let what = format!("workflow {number}");
    let section = Section::new(out, table, span, what, "a workflow", FLOW_KEYS);
    let name = section.name(
        out,
        "name",
        &NameRule {
            noun: "workflow",
            ..NAME
        },
    );
    let usual = options.flow;
    let scale = |out: &mut Findings, key, usual| {
        value_of(&section.number(out, key, SCALES.0, SCALES.1)).unwrap_or(usual)
    };
    let every = section.time(out, "every");
    let count = section.count(out, "count", 1, MAX_COUNT);
    if let (Some(every), None) = (&every, section.get("count")) {
        out.add(needs_count(every.span, &section.what));
    }
    let options = FlowOptions {
        submit: section
            .word(out, "submit", SubmitWay::NAMES)
            .unwrap_or(usual.submit),
        bytes_scale: scale(out, "bytes-scale", usual.bytes_scale),
        time_scale: scale(out, "time-scale", usual.time_scale),
    };
    let entries = section.count(out, "entries", 1, bounds::MAX_INSTANCES);
    let arrives = section.moment(out, "arrives");
    let seed = seed(out, &section);
    let file = file(out, &section, folder, "\"montage.json.gz\"")?;
    Some(RawFlow {
        name: name.map_or_else(|| flow_name(&file.value), |n| n.value),
        arrives: value_of(&arrives).unwrap_or_default(),
        every: value_of(&every).unwrap_or(0),
        count: value_of(&count).unwrap_or(1),
        seed,
        entries: value_of(&entries).unwrap_or(ASSUMED_ENTRIES),
        options,
        file,
    })
}

fn needs_count(span: SourceSpan, what: &str) -> Finding {
    Finding::error(
        FindingCode::MissingKey,
        format!("{what} has `every` and no `count`"),
    )
    .at(span, "their number is not stated")
    .help("add `count = 10`, or write `arrives` for a single one")
}
