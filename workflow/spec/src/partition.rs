//! Reading `[partition.NAME]`, and which steps use which.

use crate::data::{RawDataset, not_a_table};
use crate::diag::{Finding, FindingCode, Findings, quoted};
use crate::namerule::{NameRule, TIER_NAME};
use crate::section::{Located, Section, in_order, place, value_of};
use crate::spans::PartitionSpans;
use crate::step::RawStep;
use crate::suggest::did_you_mean;
use std::collections::HashMap;
use tarn_types::bounds;
use tarn_types::id::StepId;
use tarn_types::workflow::{KeepPartition, StoragePartition};
use toml::de::DeTable;

const KEYS: &[&str] = &["size", "unit", "tier", "spread", "keep"];
/// Bytes of a unit (docs/guide/direct-access.md).
const UNITS: std::ops::RangeInclusive<u64> = 512..=16 << 10;
/// A block is a multiple of this, in bytes: whole pages are on one node.
const PAGE: u64 = 4096;
/// Bytes of a block: a larger one is on one node as if nothing were spread.
const MAX_BLOCK: u64 = 1 << 30;
/// Bytes of a partition: the most that its header can hold (docs/reference/formats.md).
const MAX_SIZE: u64 = 1 << 50;

const NAME: NameRule = NameRule {
    noun: "partition",
    words: "a lower-case letter or `_`, then letters, digits and `_`, at most 64 bytes: it names the variable $TARN_PARTITION_<name>",
    first: |c| c.is_ascii_lowercase() || c == '_',
    rest: |c| c.is_ascii_alphanumeric() || c == '_',
};

/// A partition as written. A value that could not be read has its default.
pub(crate) struct RawPartition {
    pub(crate) name: Located<String>,
    size: Option<Located<u64>>,
    unit: Option<u32>,
    tier: Option<Located<String>>,
    spread: Option<Located<u64>>,
    keep: Option<Located<KeepPartition>>,
    /// The steps that use it, and the places of these uses.
    steps: Vec<Located<StepId>>,
}

impl RawPartition {
    fn keep(&self) -> KeepPartition {
        value_of(&self.keep).unwrap_or(KeepPartition::Step)
    }

    pub(crate) fn spans(&self) -> PartitionSpans {
        PartitionSpans {
            name: self.name.span,
            size: self.size.as_ref().map_or(self.name.span, |s| s.span),
            tier: self.tier.as_ref().map(|t| t.span),
            spread: self.spread.as_ref().map(|s| s.span),
            keep: self.keep.as_ref().map(|k| k.span),
            steps: self.steps.iter().map(|s| s.span).collect(),
        }
    }

    pub(crate) fn finished(self) -> StoragePartition {
        StoragePartition {
            keep: self.keep(),
            name: self.name.value,
            size: value_of(&self.size).unwrap_or(0),
            unit: self.unit,
            tier: self.tier.map(|t| t.value),
            spread: value_of(&self.spread),
            steps: self.steps.into_iter().map(|s| s.value).collect(),
        }
    }
}

/// Reads all partitions, in the order of the file.
pub(crate) fn read(out: &mut Findings, top: &Section<'_>) -> Vec<RawPartition> {
    let Some(value) = top.get("partition") else {
        return Vec::new();
    };
    let Some(table) = value.get_ref().as_table() else {
        out.add_breaking(not_a_table(
            "`partition`",
            "partition.NAME",
            value.get_ref(),
            place(value),
        ));
        return Vec::new();
    };
    if table.len() > bounds::MAX_PARTITIONS {
        out.add_breaking(
            Finding::error(
                FindingCode::TooLarge,
                format!("{} partitions are too many", table.len()),
            )
            .at(
                place(value),
                format!("at most {} are allowed", bounds::MAX_PARTITIONS),
            )
            .help("one table can be used by any number of steps"),
        );
        return Vec::new();
    }
    let mut all = Vec::with_capacity(table.len());
    for (name, value) in in_order(table) {
        NAME.check(out, name.value, name.span);
        match value.get_ref().as_table() {
            Some(table) => all.push(partition(out, name, table)),
            None => {
                let what = format!("partition {}", quoted(name.value));
                let header = format!("partition.{}", name.value);
                out.add_breaking(not_a_table(&what, &header, value.get_ref(), place(value)));
            }
        }
    }
    all
}

fn partition(out: &mut Findings, name: Located<&str>, table: &DeTable<'_>) -> RawPartition {
    let what = format!("partition {}", quoted(name.value));
    let section = Section::new(out, table, name.span, what, "a partition", KEYS);
    section.require(out, "size", "\"4 GiB\"");
    RawPartition {
        name: Located::new(name.value.to_owned(), name.span),
        size: bounded(out, &section, "size", "it has at most 1 PiB", |bytes| {
            bytes <= MAX_SIZE
        }),
        unit: bounded(out, &section, "unit", UNIT_HINT, |bytes| {
            UNITS.contains(&bytes) && bytes.is_power_of_two()
        })
        .map(|unit| unit.value as u32),
        tier: section.name(out, "tier", &TIER_NAME),
        spread: bounded(out, &section, "spread", SPREAD_HINT, |bytes| {
            bytes % PAGE == 0 && bytes <= MAX_BLOCK
        }),
        keep: keep(out, &section),
        steps: Vec::new(),
    }
}

const UNIT_HINT: &str =
    "write a power of two from \"512 B\" to \"16 KiB\", or leave it out: the partition is mapped";
const SPREAD_HINT: &str = "write a multiple of \"4 KiB\" up to \"1 GiB\": the bytes on one node before the next node follows";

fn bounded(
    out: &mut Findings,
    section: &Section<'_>,
    key: &str,
    hint: &str,
    fits: impl Fn(u64) -> bool,
) -> Option<Located<u64>> {
    let size = section.size(out, key)?;
    if fits(size.value) {
        return Some(size);
    }
    out.add(
        Finding::error(
            FindingCode::BadValue,
            format!("{} cannot have this `{key}`", section.what),
        )
        .at(size.span, "out of its limits")
        .help(hint),
    );
    None
}

fn keep(out: &mut Findings, section: &Section<'_>) -> Option<Located<KeepPartition>> {
    let text = section.string(out, "keep", "\"workflow\"")?;
    let keep = match text.value.as_str() {
        "step" => KeepPartition::Step,
        "workflow" => KeepPartition::Workflow,
        other => {
            let hint = did_you_mean(other, ["step", "workflow"]);
            let message = format!("{} is not a way to keep {}", quoted(other), section.what);
            out.add(
                Finding::error(FindingCode::BadValue, message)
                    .at(text.span, "not a known word")
                    .help(hint.unwrap_or_else(|| {
                        "write \"step\" (each attempt of a step has its own) or \"workflow\" (its steps have one)".into()
                    })),
            );
            return None;
        }
    };
    Some(Located::new(keep, text.span))
}

/// A job's tasks see both below one folder.
fn check_names(out: &mut Findings, data: &[RawDataset], partitions: &[RawPartition]) {
    for partition in partitions {
        let name = &partition.name;
        let dataset = data.iter().find(|d| d.name.value == name.value);
        if let Some(dataset) = dataset {
            out.add(
                Finding::error(
                    FindingCode::DuplicateName,
                    format!(
                        "a partition and a dataset are named {}",
                        quoted(&name.value)
                    ),
                )
                .at(name.span, "a partition")
                .at(dataset.name.span, "a dataset")
                .help("give one of them another name"),
            );
        }
    }
}

/// Finds the partitions that steps name.
pub(crate) fn resolve(
    out: &mut Findings,
    data: &[RawDataset],
    partitions: &mut [RawPartition],
    steps: &[RawStep],
) {
    check_names(out, data, partitions);
    let ids: HashMap<String, usize> = (0..)
        .zip(partitions.iter())
        .map(|(at, p)| (p.name.value.clone(), at))
        .collect();
    for (id, step) in (0..).map(StepId).zip(steps) {
        let mut seen: HashMap<&str, &Located<String>> = HashMap::new();
        for name in &step.partitions {
            let Some(at) = ids.get(&name.value) else {
                let near =
                    out.suggest(|| did_you_mean(&name.value, ids.keys().map(String::as_str)));
                out.add(unknown(name, near));
                continue;
            };
            match seen.insert(&name.value, name) {
                None => partitions[*at].steps.push(Located::new(id, name.span)),
                Some(first) => out.add(
                    Finding::error(
                        FindingCode::DuplicateUse,
                        format!(
                            "step {} names partition {} twice",
                            quoted(&step.name.value),
                            quoted(&name.value)
                        ),
                    )
                    .at(name.span, "again here")
                    .at(first.span, "first here")
                    .help("name it once"),
                ),
            }
        }
    }
    for partition in partitions.iter() {
        check_nodes(out, partition, steps);
        check_pieces(out, partition, steps);
    }
}

fn unknown(name: &Located<String>, near: Option<String>) -> Finding {
    Finding::error(
        FindingCode::UnknownPartition,
        format!("there is no partition {}", quoted(&name.value)),
    )
    .at(name.span, "names no `[partition.NAME]`")
    .help(near.unwrap_or_else(|| {
        let table = quoted(&format!("[partition.{}]", name.value));
        format!("describe it with a table {table}")
    }))
}

/// One that is spread has as many pieces as can be opened as one.
fn check_pieces(out: &mut Findings, partition: &RawPartition, steps: &[RawStep]) {
    let Some(spread) = &partition.spread else {
        return;
    };
    let most = StoragePartition::MOST_PIECES;
    let nodes = |step: &&Located<StepId>| steps[step.value.at()].nodes();
    if let Some(step) = partition.steps.iter().find(|s| nodes(s) > most) {
        let name = quoted(&partition.name.value);
        out.add(
            Finding::error(
                FindingCode::PartitionNodes,
                format!("partition {name} would have {} pieces", nodes(&step)),
            )
            .at(step.span, "used by so many nodes")
            .at(spread.span, "spread over all of them")
            .help(format!(
                "at most {most} pieces are opened as one: give the step fewer `nodes`, or leave `spread` out"
            )),
        );
    }
}

/// A partition with `keep` is stored on the nodes of the first step that uses it, and the other steps run there.
fn check_nodes(out: &mut Findings, partition: &RawPartition, steps: &[RawStep]) {
    if partition.keep() != KeepPartition::Workflow {
        return;
    }
    let nodes = |step: &Located<StepId>| steps[step.value.at()].nodes();
    let Some(first) = partition.steps.first() else {
        return;
    };
    let other = partition.steps.iter().find(|s| nodes(s) != nodes(first));
    if let Some(other) = other {
        let name = |step: &Located<StepId>| quoted(&steps[step.value.at()].name.value);
        out.add(
            Finding::error(
                FindingCode::PartitionNodes,
                format!(
                    "partition {} is kept for the workflow, and steps with different `nodes` use it",
                    quoted(&partition.name.value)
                ),
            )
            .at(other.span, format!("{} has {}", name(other), nodes(other)))
            .at(first.span, format!("{} has {}", name(first), nodes(first)))
            .help("all steps that use it run on the nodes that have it: give them the same `nodes`, or each its own partition (`keep = \"step\"`)"),
        );
    }
}
