//! The restrictions on a step with `foreach`.

use crate::diag::{Finding, FindingCode, Findings, quoted};
use crate::foreach::RawForeach;
use crate::item::{ITEM, entry_problem, item_without_foreach};
use crate::section::Located;
use crate::step::RawStep;
use tarn_types::workflow::Role;

/// Checks the settings that go together with `foreach`: nodes, `inout`, `max`, `{item}`.
pub(crate) fn check(out: &mut Findings, step: &RawStep) {
    let what = format!("step {}", quoted(&step.name.value));
    let Some(foreach) = &step.foreach else {
        for item in &step.items {
            if item.entry.as_ref().is_some_and(|e| e.contains(ITEM)) {
                out.add(item_without_foreach(out.find(item.span, ITEM), &what));
            }
        }
        bounds_without_entries(out, step, &what);
        return;
    };
    if let Some(nodes) = step.nodes.as_ref().filter(|n| n.value > 1) {
        out.add(
            Finding::error(
                FindingCode::BadForeach,
                format!("{what} has `foreach` and several nodes"),
            )
            .at(nodes.span, "an instance of a foreach step has one node")
            .at(foreach.span, "`foreach`")
            .help("remove `nodes`, or write a step for each value"),
        );
    }
    for item in step.items.iter().filter(|i| i.role == Role::Inout) {
        out.add(
            Finding::error(
                FindingCode::BadForeach,
                format!("{what} has `foreach` and `inout`"),
            )
            .at(
                item.span,
                format!(
                    "all instances would change one tree of {}",
                    quoted(&item.name)
                ),
            )
            .at(foreach.span, "`foreach`")
            .help("read it with `in`, and write what is new to another dataset with `out`"),
        );
    }
    if let RawForeach::Values(values) = &foreach.value {
        bounds_without_entries(out, step, &what);
        check_substituted(out, step, values);
    }
}

/// `max` and `allow_empty` are for a `foreach` over the entries of a dataset.
fn bounds_without_entries(out: &mut Findings, step: &RawStep, what: &str) {
    let keys = [
        ("max", step.max.as_ref().map(|m| m.span)),
        ("allow_empty", step.allow_empty.as_ref().map(|a| a.span)),
    ];
    for (key, span) in keys {
        let Some(span) = span else { continue };
        out.add(
            Finding::error(
                FindingCode::BadForeach,
                format!("`{key}` of {what} has no meaning"),
            )
            .at(span, "bounds a `foreach` over the entries of a dataset")
            .help(format!(
                "remove `{key}`, or write `foreach = \"dataset/*\"`"
            )),
        );
    }
}

/// With values from the file, `NAME/{item}` is known now: it must name an entry.
fn check_substituted(out: &mut Findings, step: &RawStep, values: &[Located<String>]) {
    for item in &step.items {
        let Some(entry) = item.entry.as_ref().filter(|e| e.contains(ITEM)) else {
            continue;
        };
        for value in values {
            // A name with a literal `*` exists: here it was not meant as a pattern.
            let filled = entry.replace(ITEM, &value.value).replace('*', "-");
            if let Some((label, _)) = entry_problem(&filled) {
                let entry = quoted(&entry.replace(ITEM, &value.value));
                out.add(
                    Finding::error(
                        FindingCode::BadPattern,
                        format!("{entry} does not name a top-level entry of `{}`", item.name),
                    )
                    .at(value.span, label)
                    .at(item.span, format!("`{ITEM}` stands for it here"))
                    .help(
                        "use values that name entries, or another variable for values that are not names",
                    ),
                );
                return;
            }
        }
    }
}
