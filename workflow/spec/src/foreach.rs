//! Reading `foreach`, and the restrictions on a step with one.

use crate::diag::{Finding, FindingCode, Findings, quoted};
use crate::item::ITEM;
use crate::section::{Located, Section, integer, no_nul, place, shorten};
use miette::SourceSpan;
use std::collections::HashMap;
use tarn_types::bounds;
use tarn_types::pattern::EntryPattern;
use toml::Spanned;
use toml::de::DeValue;

/// A `foreach` as written.
pub(crate) enum RawForeach {
    /// Values, with their places.
    Values(Vec<Located<String>>),
    /// Entries of the dataset of this name.
    Entries(String, EntryPattern),
}

const HINT: &str = "write values, such as `foreach = [\"a\", \"b\"]`, or the entries of a dataset, such as `foreach = \"raw/*\"`";

/// Reads `foreach` of a step.
pub(crate) fn read(out: &mut Findings, step: &Section<'_>) -> Option<Located<RawForeach>> {
    let value = step.get("foreach")?;
    let span = place(value);
    let read = match value.get_ref() {
        DeValue::Array(list) => values(out, step, list, span).map(RawForeach::Values),
        DeValue::String(text) => no_nul(out, text, span)
            .then(|| entries(text, span, &step.what))
            .and_then(|read| read.map_err(|problem| out.add(problem)).ok()),
        _ => {
            step.wrong_type(
                out,
                "foreach",
                value,
                "an array of values or a string",
                "[\"a\", \"b\"]",
            );
            None
        }
    };
    read.map(|foreach| Located::new(foreach, span))
}

fn entries(text: &str, span: SourceSpan, what: &str) -> Result<RawForeach, Finding> {
    let refuse = |code, label: String| {
        Finding::error(
            code,
            format!("`foreach` of {what} does not name entries of a dataset"),
        )
        .at(span, label)
        .help(HINT)
    };
    let (name, pattern) = text
        .split_once('/')
        .ok_or_else(|| refuse(FindingCode::BadForeach, "has no `/`".into()))?;
    if pattern.contains(ITEM) {
        return Err(refuse(
            FindingCode::BadItem,
            format!("`{ITEM}` is what this gives; it cannot stand in it"),
        ));
    }
    let pattern =
        EntryPattern::new(pattern).map_err(|why| refuse(FindingCode::BadPattern, shorten(&why)))?;
    Ok(RawForeach::Entries(name.to_owned(), pattern))
}

fn values(
    out: &mut Findings,
    step: &Section<'_>,
    list: &[Spanned<DeValue<'_>>],
    span: SourceSpan,
) -> Option<Vec<Located<String>>> {
    if list.is_empty() {
        out.add(
            Finding::error(
                FindingCode::BadForeach,
                format!("`foreach` of {} is empty", step.what),
            )
            .at(span, "no values")
            .help("name at least one value, or remove the step"),
        );
        return None;
    }
    if list.len() > bounds::MAX_INSTANCES as usize {
        out.add(
            Finding::error(
                FindingCode::TooLarge,
                format!("`foreach` of {} has {} values", step.what, list.len()),
            )
            .at(
                span,
                format!("at most {} are allowed", bounds::MAX_INSTANCES),
            )
            .help("let one instance work on several values"),
        );
        return None;
    }
    let mut seen: HashMap<String, SourceSpan> = HashMap::with_capacity(list.len());
    let mut all = Vec::with_capacity(list.len());
    for item in list {
        let value = one_value(out, step, item)?;
        if let Some(first) = seen.insert(value.clone(), place(item)) {
            out.add(
                Finding::error(
                    FindingCode::BadForeach,
                    format!("{} is twice in `foreach` of {}", quoted(&value), step.what),
                )
                .at(place(item), "again here")
                .at(first, "first here")
                .help("remove one: each value gives one instance"),
            );
            return None;
        }
        all.push(Located::new(value, place(item)));
    }
    Some(all)
}

fn one_value(
    out: &mut Findings,
    step: &Section<'_>,
    item: &Spanned<DeValue<'_>>,
) -> Option<String> {
    if let Some(number) = integer(item.get_ref()) {
        return Some(number.to_string());
    }
    match item.get_ref().as_str() {
        Some("") => {
            out.add(
                Finding::error(
                    FindingCode::BadForeach,
                    format!("a value in `foreach` of {} is empty", step.what),
                )
                .at(place(item), "empty")
                .help("give it a text, which $TARN_ITEM holds in each instance"),
            );
            None
        }
        Some(text) => no_nul(out, text, place(item)).then(|| text.to_owned()),
        None => {
            step.wrong_type(
                out,
                "foreach",
                item,
                "an array of strings or integers",
                "[\"a\", \"b\"]",
            );
            None
        }
    }
}
