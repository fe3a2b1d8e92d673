//! How each dataset is divided into parts: that follows from its use.

use crate::data::RawDataset;
use crate::diag::{Finding, FindingCode, Findings, quoted};
use crate::item::Dist;
use crate::step::RawStep;
use miette::SourceSpan;
use tarn_types::id::DataId;
use tarn_types::workflow::VersionPartitioning;

/// How each dataset is divided: by entries where entries are selected, by ranks where several nodes scatter it.
pub(crate) fn partitions(
    out: &mut Findings,
    data: &[RawDataset],
    steps: &[RawStep],
    uses: &[Vec<DataId>],
    over: &[Option<DataId>],
) -> Vec<VersionPartitioning> {
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
                Finding::error(FindingCode::PartsClash, format!("dataset {} is divided in two ways", quoted(&d.name.value)))
                    .at(entry, "by its top-level entries here")
                    .at(scatter, "by its scatter rule here")
                    .at(rule.span, "several components: it cuts through entries")
                    .help("let the rule name top-level entries, such as \"processor{rank}\", or read the dataset whole"),
            );
        }
        all.push(match (entries[i], ranks[i]) {
            (Some(_), _) => VersionPartitioning::Entries,
            (None, true) => VersionPartitioning::Ranks,
            (None, false) => VersionPartitioning::Whole,
        });
    }
    all
}

fn no_rule(data: &RawDataset, span: SourceSpan) -> Finding {
    let name = &data.name.value;
    Finding::error(FindingCode::NoScatterRule, format!("dataset {} has no scatter rule", quoted(name)))
        .at(span, "to be scattered here")
        .at(data.name.span, "has no `scatter`")
        .help(format!("add `scatter = \"processor{{rank}}\"` to `[data.{name}]`, with the name that its ranks' entries have"))
}
