//! From names to numbers: datasets, versions, distributions, parts, and who waits for whom.

use crate::data::RawData;
use crate::diag::{Code, Finding, Findings, quoted};
use crate::foreach::RawForeach;
use crate::graph::{Edge, Why};
use crate::item::{Dist, Item};
use crate::section::value_of;
use crate::step::RawStep;
use crate::suggest::did_you_mean;
use miette::SourceSpan;
use std::collections::HashMap;
use tarn_base::bounds;
use tarn_base::id::{DataId, StepId};
use tarn_base::workflow::{Distribution, Foreach, Partition, Role, Use};

/// What a step's items and `after` mean.
pub(crate) struct Resolved {
    pub(crate) uses: Vec<Use>,
    pub(crate) after: Vec<(StepId, SourceSpan)>,
    pub(crate) foreach: Option<Foreach>,
}

/// Everything resolved: the steps, how each dataset is divided, and the edges of the graph by step.
pub(crate) struct Resolution {
    pub(crate) steps: Vec<Resolved>,
    pub(crate) partitions: Vec<Partition>,
    pub(crate) edges: Vec<Vec<Edge>>,
}

/// Resolves names, then versions. `None` when problems leave no graph to speak of.
pub(crate) fn resolve(out: &mut Findings, data: &[RawData], steps: &[RawStep]) -> Option<Resolution> {
    if out.data_broken {
        return None;
    }
    let names: HashMap<&str, DataId> =
        data.iter().enumerate().map(|(i, d)| (d.name.value.as_str(), DataId(i as u32))).collect();
    let names = Names { ids: names, data };
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
    Some(Resolution { steps: resolved, partitions, edges })
}

/// The datasets by name.
struct Names<'d> {
    ids: HashMap<&'d str, DataId>,
    data: &'d [RawData],
}

impl Names<'_> {
    fn find(&self, out: &mut Findings, name: &str, span: SourceSpan) -> Option<DataId> {
        let id = self.ids.get(name).copied();
        if id.is_none() {
            let near = out.suggest(|| did_you_mean(name, self.data.iter().map(|d| d.name.value.as_str())));
            out.add_breaking(
                Finding::error(Code::UnknownDataset, format!("there is no dataset {}", quoted(name)))
                    .at(span, "names no `[data.NAME]`")
                    .help(near.unwrap_or_else(|| format!("declare it with a table {}", quoted(&format!("[data.{name}]"))))),
            );
        }
        id
    }
}

/// The datasets of a step's items, each named once; checks their distributions.
fn items(out: &mut Findings, step: &RawStep, names: &Names<'_>) -> Vec<DataId> {
    let mut seen: HashMap<(&str, Option<&str>), &Item> = HashMap::new();
    let mut wholes: HashMap<&str, &Item> = HashMap::new();
    let mut ids = Vec::with_capacity(step.items.len());
    for item in &step.items {
        let earlier = match (&item.entry, wholes.get(item.name.as_str())) {
            (Some(_), Some(first)) if first.entry.is_none() => Some(*first),
            (Some(entry), _) => seen.get(&(item.name.as_str(), Some(entry.as_str()))).copied(),
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

fn used_twice(step: &RawStep, first: &Item, again: &Item) -> Finding {
    let hint = match (first.role, again.role) {
        (Role::In, Role::Out) | (Role::Out, Role::In) => {
            format!("to change a dataset, name it once: `inout = [\"{}\"]`", again.name)
        }
        (Role::In, Role::Inout) | (Role::Inout, Role::In) => "`inout` reads it too: remove the `in`".into(),
        _ => "name it once; only different entries of one dataset (`NAME/ENTRY`) can stand together in `in`".into(),
    };
    Finding::error(
        Code::DuplicateUse,
        format!("step {} names dataset {} twice", quoted(&step.name.value), quoted(&again.name)),
    )
    .at(again.span, "again here")
    .at(first.span, "first here")
    .help(hint)
}

/// How an item lies over the step's nodes. `shared` is taken for `broadcast` here: no run begins with it.
fn distribution(step: &RawStep, item: &Item) -> Result<Distribution, Finding> {
    let what = quoted(&step.name.value);
    if item.dist == Some(Dist::Gather) && item.role != Role::In {
        return Err(Finding::error(Code::BadDistribution, format!("step {what} cannot gather what it writes"))
            .at(item.span, "`gather` is for `in`")
            .help(format!("write \"{}:single\": the step's first node has it whole", item.name)));
    }
    if step.nodes() == 1 {
        return Ok(Distribution::Single);
    }
    match item.dist {
        Some(Dist::Single | Dist::Gather) => Ok(Distribution::Single),
        Some(Dist::Scatter) => Ok(Distribution::Scatter),
        Some(Dist::Broadcast | Dist::Shared) => Ok(Distribution::Broadcast),
        None if item.role == Role::In => Ok(Distribution::Broadcast),
        None => {
            let name = &item.name;
            let mut problem = Finding::error(
                Code::BadDistribution,
                format!("step {what} does not say how {} lies over its {} nodes", quoted(name), step.nodes()),
            )
            .at(item.span, "needs a distribution");
            if let Some(nodes) = &step.nodes {
                problem = problem.at(nodes.span, "several nodes");
            }
            Err(problem.help(format!(
                "write \"{name}:scatter\" (each node has its ranks' part), \"{name}:single\" (the first node has it) or \
                 \"{name}:broadcast\" (every node makes the same)"
            )))
        }
    }
}

fn entries_of(out: &mut Findings, step: &RawStep, names: &Names<'_>) -> Option<DataId> {
    let foreach = step.foreach.as_ref()?;
    match &foreach.value {
        RawForeach::Values(_) => None,
        RawForeach::Entries(name, _) => names.find(out, name, foreach.span),
    }
}

/// The steps that `after` names, with their places.
fn after(out: &mut Findings, steps: &[RawStep]) -> Vec<Vec<(StepId, SourceSpan)>> {
    let ids: HashMap<&str, StepId> =
        steps.iter().enumerate().map(|(i, s)| (s.name.value.as_str(), StepId(i as u32))).collect();
    let mut all = Vec::with_capacity(steps.len());
    for step in steps {
        let mut list: Vec<(StepId, SourceSpan)> = Vec::with_capacity(step.after.len());
        let mut seen: HashMap<StepId, SourceSpan> = HashMap::new();
        for name in &step.after {
            let Some(&id) = ids.get(name.value.as_str()) else {
                let hint = out.suggest(|| did_you_mean(&name.value, steps.iter().map(|s| s.name.value.as_str())));
                out.add_breaking(
                    Finding::error(Code::UnknownStep, format!("there is no step {}", quoted(&name.value)))
                        .at(name.span, "names no step")
                        .help(hint.unwrap_or_else(|| "`after` lists names of steps of this file".into())),
                );
                continue;
            };
            match seen.insert(id, name.span) {
                None => list.push((id, name.span)),
                Some(first) => out.add(
                    Finding::error(
                        Code::DuplicateUse,
                        format!("`after` of step {} names {} twice", quoted(&step.name.value), quoted(&name.value)),
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

/// Who makes the versions of a dataset.
#[derive(Default)]
struct Makers {
    /// The version that the first of `changers` reads: 0 of a source, 1 otherwise.
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

fn makers(out: &mut Findings, data: &[RawData], steps: &[RawStep], uses: &[Vec<DataId>], over: &[Option<DataId>]) -> Vec<Makers> {
    let mut all: Vec<Makers> =
        data.iter().map(|d| Makers { first: u32::from(d.source.is_none()), ..Makers::default() }).collect();
    for (i, (step, ids)) in steps.iter().zip(uses).enumerate() {
        for (item, id) in step.items.iter().zip(ids) {
            let makers = &mut all[id.at()];
            match item.role {
                Role::In => {}
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

fn source_as_output(step: &RawStep, item: &Item, source: SourceSpan) -> Finding {
    let name = quoted(&item.name);
    Finding::error(Code::SourceAsOutput, format!("step {} makes {name}, which has a source", quoted(&step.name.value)))
        .at(item.span, "an `out`")
        .at(source, "exists already")
        .help("to change it, use `inout`: its source stays as it is; for something new, use another name")
}

fn two_producers(item: &Item, first: SourceSpan) -> Finding {
    Finding::error(Code::TwoProducers, format!("two producers of one version: two steps make {}", quoted(&item.name)))
        .at(item.span, "made again here")
        .at(first, "made here")
        .help("to change what is there, use `inout`; for something new, use another name; for parts, use one `foreach` step")
}

/// Where each dataset is used first.
fn first_uses(
    data: &[RawData],
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
fn check_makers(out: &mut Findings, data: &[RawData], used: &[Option<SourceSpan>], makers: &[Makers]) {
    for ((d, makers), used) in data.iter().zip(makers).zip(used) {
        let name = quoted(&d.name.value);
        let made = makers.producer.is_some() || (d.source.is_some() && !makers.changers.is_empty());
        if let (Some(span), None, None) = (*used, &d.source, makers.producer) {
            out.add(
                Finding::error(Code::NobodyMakes, format!("nobody makes dataset {name}"))
                    .at(span, "used here")
                    .at(d.name.span, "has no `source`, and no step has it in `out`")
                    .help("give it a `source`, or put it in `out` of the step that makes it"),
            );
        } else if let (Some(dest), false) = (&d.dest, made) {
            out.add(
                Finding::error(Code::NobodyMakes, format!("nobody makes what the dest of {name} is for"))
                    .at(dest.span, "nothing would be put here")
                    .help("put the dataset in `out` or `inout` of a step, or remove `dest`"),
            );
        }
    }
}

/// How each dataset is divided: by entries where entries are selected, by ranks where several nodes scatter it.
fn partitions(
    out: &mut Findings,
    data: &[RawData],
    steps: &[RawStep],
    uses: &[Vec<DataId>],
    over: &[Option<DataId>],
) -> Vec<Partition> {
    let mut entries: Vec<Option<SourceSpan>> = vec![None; data.len()];
    let mut scatters: Vec<Option<SourceSpan>> = vec![None; data.len()];
    let mut ranks = vec![false; data.len()];
    for ((step, ids), over) in steps.iter().zip(uses).zip(over) {
        if let (Some(id), Some(foreach)) = (over, &step.foreach) {
            entries[id.at()].get_or_insert(foreach.span);
        }
        for (item, id) in step.items.iter().zip(ids) {
            if item.entry.is_some() {
                entries[id.at()].get_or_insert(item.span);
            }
            if item.dist == Some(Dist::Scatter) {
                scatters[id.at()].get_or_insert(item.span);
                ranks[id.at()] |= step.nodes() > 1;
                if data[id.at()].scatter.is_none() {
                    out.add(no_rule(&data[id.at()], item.span));
                }
            }
        }
    }
    let mut all = Vec::with_capacity(data.len());
    for (i, d) in data.iter().enumerate() {
        if let (Some(entry), Some(scatter), Some(rule)) = (entries[i], scatters[i], &d.scatter)
            && !rule.value.is_top_level()
        {
            out.add(
                Finding::error(Code::PartsClash, format!("dataset {} is divided in two ways", quoted(&d.name.value)))
                    .at(entry, "by its top-level entries here")
                    .at(scatter, "by its scatter rule here")
                    .at(rule.span, "several components: it cuts through entries")
                    .help("let the rule name top-level entries, such as \"processor{rank}\", or read the dataset whole"),
            );
        }
        all.push(match (entries[i], ranks[i]) {
            (Some(_), _) => Partition::Entries,
            (None, true) => Partition::Ranks,
            (None, false) => Partition::Whole,
        });
    }
    all
}

fn no_rule(data: &RawData, span: SourceSpan) -> Finding {
    let name = &data.name.value;
    Finding::error(Code::NoScatterRule, format!("dataset {} has no scatter rule", quoted(name)))
        .at(span, "to be scattered here")
        .at(data.name.span, "has no `scatter`")
        .help(format!("add `scatter = \"processor{{rank}}\"` to `[data.{name}]`, with the name that its ranks' entries have"))
}

/// Numbers what each step reads and makes, in the order of the file.
fn versions(
    out: &mut Findings,
    data: &[RawData],
    steps: &[RawStep],
    uses: &[Vec<DataId>],
    over: &[Option<DataId>],
    after: Vec<Vec<(StepId, SourceSpan)>>,
    makers: &[Makers],
) -> Vec<Resolved> {
    // What an `in` reads at this place of the file; and how many `inout`s came before.
    let mut latest: Vec<u32> = makers.iter().map(|m| m.first).collect();
    let mut changed: Vec<u32> = latest.clone();
    let mut all = Vec::with_capacity(steps.len());
    for (((step, ids), over), after) in steps.iter().zip(uses).zip(over).zip(after) {
        let foreach = foreach(out, data, step, *over, &latest);
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
            resolved.push(Use {
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
        all.push(Resolved { uses: resolved, after, foreach });
    }
    all
}

fn foreach(
    out: &mut Findings,
    data: &[RawData],
    step: &RawStep,
    over: Option<DataId>,
    latest: &[u32],
) -> Option<Foreach> {
    let foreach = step.foreach.as_ref()?;
    let (pattern, id) = match (&foreach.value, over) {
        (RawForeach::Entries(_, pattern), Some(id)) => (pattern, id),
        (RawForeach::Values(values), _) => {
            return Some(Foreach::Values(values.iter().map(|v| v.value.clone()).collect()));
        }
        (RawForeach::Entries(..), None) => return None,
    };
    let version = latest[id.at()];
    let max = value_of(&step.max);
    if version > 0 && max.is_none() {
        out.add(
            Finding::error(Code::BadForeach, format!("`foreach` of step {} has no `max`", quoted(&step.name.value)))
                .at(foreach.span, format!("a step makes {}: its entries are not known yet", quoted(&data[id.at()].name.value)))
                .help("add `max = N`, the most entries there can be: the plan reckons with it"),
        );
    }
    Some(Foreach::Entries { data: id, version, pattern: pattern.clone(), max: max.unwrap_or(bounds::MAX_INSTANCES) })
}

/// Whom each step waits for.
fn edges(steps: &[RawStep], resolved: &[Resolved], makers: &[Makers]) -> Vec<Vec<Edge>> {
    let mut all = Vec::with_capacity(steps.len());
    for (raw, step) in steps.iter().zip(resolved) {
        let mut edges = Vec::new();
        let mut wait = |data: DataId, version: u32, span| {
            if let Some(on) = makers[data.at()].maker(version) {
                edges.push(Edge { on, span, why: Why::Reads(data) });
            }
        };
        for (item, used) in raw.items.iter().zip(&step.uses) {
            if let Some(version) = used.reads {
                wait(used.data, version, item.span);
            }
        }
        if let (Some(Foreach::Entries { data, version, .. }), Some(raw)) = (&step.foreach, &raw.foreach) {
            wait(*data, *version, raw.span);
        }
        edges.extend(step.after.iter().map(|(on, span)| Edge { on: *on, span: *span, why: Why::After }));
        all.push(edges);
    }
    all
}
