//! Versions: the steps that make them, the one that a step reads, and dependencies of steps.

use crate::data::RawDataset;
use crate::diag::{Finding, FindingCode, Findings, quoted};
use crate::distribution::distribution;
use crate::elsewhere::made_elsewhere;
use crate::foreach::RawForeach;
use crate::graph::{DependencyReason, StepDependency};
use crate::item::RawStepItem;
use crate::section::value_of;
use crate::step::RawStep;
use miette::SourceSpan;
use tarn_types::bounds;
use tarn_types::id::{DataId, StepId};
use tarn_types::workflow::{DatasetUse, Distribution, Foreach, Role};

/// The resolved items and `after` of a step.
pub(crate) struct Resolved {
    pub(crate) uses: Vec<DatasetUse>,
    pub(crate) after: Vec<(StepId, SourceSpan)>,
    pub(crate) foreach: Option<Foreach>,
}

/// The makers of a dataset's versions.
#[derive(Default)]
pub(crate) struct Makers {
    /// The version that the first of `changers` reads: 0 of a source and of others' datasets, 1 otherwise.
    first: u32,
    /// The step with the dataset in `out`, and where.
    producer: Option<(StepId, SourceSpan)>,
    /// The steps with it in `inout`, in the order of the file.
    changers: Vec<StepId>,
}

impl Makers {
    fn maker(&self, version: u32) -> Option<StepId> {
        match version.checked_sub(self.first)? {
            0 => self.producer.map(|(step, _)| step),
            n => self.changers.get(n as usize - 1).copied(),
        }
    }
}

pub(crate) fn makers(
    out: &mut Findings,
    data: &[RawDataset],
    steps: &[RawStep],
    uses: &[Vec<DataId>],
    over: &[Option<DataId>],
) -> Vec<Makers> {
    let mut all: Vec<Makers> = data
        .iter()
        .map(|d| Makers {
            first: u32::from(d.source.is_none() && !is_elses(d)),
            ..Makers::default()
        })
        .collect();
    for (i, (step, ids)) in steps.iter().zip(uses).enumerate() {
        for (item, id) in step.items.iter().zip(ids) {
            let makers = &mut all[id.at()];
            match item.role {
                Role::In => {}
                _ if is_elses(&data[id.at()]) => {
                    let step = &step.name.value;
                    out.add(made_elsewhere(step, &item.name, item.span));
                }
                Role::Inout => makers.changers.push(StepId(i as u32)),
                Role::Out => match (&data[id.at()].source, makers.producer) {
                    (Some(source), _) => out.add(source_as_output(step, item, source.span)),
                    (None, Some((_, first))) => out.add(two_producers(item, first)),
                    (None, None) => makers.producer = Some((StepId(i as u32), item.span)),
                },
            }
        }
    }
    check_makers(out, data, &first_uses(data, steps, uses, over), &all);
    all
}

/// Whether it is somebody else's.
fn is_elses(data: &RawDataset) -> bool {
    let elsewhere = data.elsewhere.as_ref();
    elsewhere.is_some_and(|elsewhere| !elsewhere.value.is_ours)
}

fn source_as_output(step: &RawStep, item: &RawStepItem, source: SourceSpan) -> Finding {
    let name = quoted(&item.name);
    Finding::error(
        FindingCode::SourceAsOutput,
        format!(
            "step {} makes {name}, which has a source",
            quoted(&step.name.value)
        ),
    )
    .at(item.span, "an `out`")
    .at(source, "exists already")
    .help(
        "to change it, use `inout`: its source stays as it is; for something new, use another name",
    )
}

fn two_producers(item: &RawStepItem, first: SourceSpan) -> Finding {
    Finding::error(FindingCode::TwoProducers, format!("two producers of one version: two steps make {}", quoted(&item.name)))
        .at(item.span, "made again here")
        .at(first, "made here")
        .help("to change what is there, use `inout`; for something new, use another name; for parts, use one `foreach` step")
}

/// The first use of each dataset.
fn first_uses(
    data: &[RawDataset],
    steps: &[RawStep],
    uses: &[Vec<DataId>],
    over: &[Option<DataId>],
) -> Vec<Option<SourceSpan>> {
    let mut used = vec![None; data.len()];
    for ((step, ids), over) in steps.iter().zip(uses).zip(over) {
        for (item, id) in step.items.iter().zip(ids) {
            used[id.at()].get_or_insert(item.span);
        }
        if let (Some(id), Some(foreach)) = (over, &step.foreach) {
            used[id.at()].get_or_insert(foreach.span);
        }
    }
    used
}

/// Datasets that are used or delivered must come from somewhere.
fn check_makers(
    out: &mut Findings,
    data: &[RawDataset],
    used: &[Option<SourceSpan>],
    makers: &[Makers],
) {
    for ((d, makers), used) in data.iter().zip(makers).zip(used) {
        let name = quoted(&d.name.value);
        let is_there = d.source.is_some() || d.elsewhere.is_some();
        let made = makers.producer.is_some() || (is_there && !makers.changers.is_empty());
        if let (Some(span), false, None) = (*used, is_there, makers.producer) {
            out.add(
                Finding::error(
                    FindingCode::NobodyMakes,
                    format!("nobody makes dataset {name}"),
                )
                .at(span, "used here")
                .at(d.name.span, "has no `source`, and no step has it in `out`")
                .help("give it a `source`, or put it in `out` of the step that makes it"),
            );
        } else if let (Some(dest), false) = (&d.dest, made) {
            out.add(
                Finding::error(
                    FindingCode::NobodyMakes,
                    format!("nobody makes what the dest of {name} is for"),
                )
                .at(dest.span, "nothing would be put here")
                .help("put the dataset in `out` or `inout` of a step, or remove `dest`"),
            );
        }
    }
}

/// Numbers the versions that each step reads and makes, in the order of the file.
pub(crate) fn versions(
    out: &mut Findings,
    data: &[RawDataset],
    steps: &[RawStep],
    uses: &[Vec<DataId>],
    over: &[Option<DataId>],
    after: Vec<Vec<(StepId, SourceSpan)>>,
    makers: &[Makers],
) -> Vec<Resolved> {
    // The version that an `in` reads at this place of the file; and how many `inout`s came before.
    let mut latest: Vec<u32> = makers.iter().map(|m| m.first).collect();
    let mut changed: Vec<u32> = latest.clone();
    let mut all = Vec::with_capacity(steps.len());
    for (((step, ids), over), after) in steps.iter().zip(uses).zip(over).zip(after) {
        let foreach = foreach(out, data, step, *over, &latest, makers);
        let mut resolved = Vec::with_capacity(ids.len());
        for (item, id) in step.items.iter().zip(ids) {
            let at = id.at();
            let (reads, makes) = match item.role {
                Role::In => (Some(latest[at]), None),
                Role::Out => (None, Some(1)),
                Role::Inout => {
                    changed[at] += 1;
                    (Some(changed[at] - 1), Some(changed[at]))
                }
            };
            resolved.push(DatasetUse {
                data: *id,
                role: item.role,
                distribution: distribution(step, item).unwrap_or(Distribution::Single),
                entry: item.entry.clone(),
                reads,
                makes,
            });
        }
        for made in &resolved {
            let at = made.data.at();
            latest[at] = latest[at].max(made.makes.unwrap_or(0));
        }
        all.push(Resolved {
            uses: resolved,
            after,
            foreach,
        });
    }
    all
}

fn foreach(
    out: &mut Findings,
    data: &[RawDataset],
    step: &RawStep,
    over: Option<DataId>,
    latest: &[u32],
    makers: &[Makers],
) -> Option<Foreach> {
    let foreach = step.foreach.as_ref()?;
    let (pattern, id) = match (&foreach.value, over) {
        (RawForeach::Entries(_, pattern), Some(id)) => (pattern, id),
        (RawForeach::Values(values), _) => {
            return Some(Foreach::Values(
                values.iter().map(|v| v.value.clone()).collect(),
            ));
        }
        (RawForeach::Entries(..), None) => return None,
    };
    let version = latest[id.at()];
    let max = value_of(&step.max);
    if max.is_none() && makers[id.at()].maker(version).is_some() {
        out.add(
            Finding::error(
                FindingCode::BadForeach,
                format!(
                    "`foreach` of step {} has no `max`",
                    quoted(&step.name.value)
                ),
            )
            .at(
                foreach.span,
                format!(
                    "a step makes {}: its entries are not known yet",
                    quoted(&data[id.at()].name.value)
                ),
            )
            .help("add `max = N`, the most entries there can be: the plan reckons with it"),
        );
    }
    Some(Foreach::Entries {
        data: id,
        version,
        pattern: pattern.clone(),
        max: max.unwrap_or(bounds::MAX_INSTANCES),
        allow_empty: value_of(&step.allow_empty).unwrap_or(false),
    })
}

/// Whom each step waits for.
pub(crate) fn edges(
    steps: &[RawStep],
    resolved: &[Resolved],
    makers: &[Makers],
) -> Vec<Vec<StepDependency>> {
    let mut all = Vec::with_capacity(steps.len());
    for (raw, step) in steps.iter().zip(resolved) {
        let mut edges = Vec::new();
        let mut wait = |data: DataId, version: u32, span| {
            if let Some(on) = makers[data.at()].maker(version) {
                edges.push(StepDependency {
                    on,
                    span,
                    why: DependencyReason::Reads(data),
                });
            }
        };
        for (item, used) in raw.items.iter().zip(&step.uses) {
            if let Some(version) = used.reads {
                wait(used.data, version, item.span);
            }
        }
        if let (Some(Foreach::Entries { data, version, .. }), Some(raw)) =
            (&step.foreach, &raw.foreach)
        {
            wait(*data, *version, raw.span);
        }
        edges.extend(step.after.iter().map(|(on, span)| StepDependency {
            on: *on,
            span: *span,
            why: DependencyReason::After,
        }));
        all.push(edges);
    }
    all
}
