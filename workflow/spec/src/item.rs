//! Reading the items of `in`, `out` and `inout`: `NAME`, `NAME/ENTRY`, `NAME:DIST`.

use crate::diag::{Finding, FindingCode, Findings, quoted};
use crate::section::Section;
use crate::suggest::did_you_mean;
use miette::SourceSpan;
use tarn_types::workflow::Role;

/// The placeholder of an instance's element.
pub(crate) const ITEM: &str = "{item}";
/// Bytes of one component of a path (Linux NAME_MAX).
const MAX_ENTRY_BYTES: usize = 255;

/// A distribution as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dist {
    Single,
    Gather,
    Scatter,
    Broadcast,
    Shared,
}

const DISTS: [(&str, Dist); 5] = [
    ("single", Dist::Single),
    ("gather", Dist::Gather),
    ("scatter", Dist::Scatter),
    ("broadcast", Dist::Broadcast),
    ("shared", Dist::Shared),
];

/// An item as written.
#[derive(Debug, Clone)]
pub(crate) struct RawStepItem {
    pub(crate) role: Role,
    pub(crate) name: String,
    pub(crate) entry: Option<String>,
    pub(crate) dist: Option<Dist>,
    pub(crate) span: SourceSpan,
}

/// Reads the three lists of a step: first `in`, then `out`, then `inout`.
pub(crate) fn read(out: &mut Findings, step: &Section<'_>) -> Vec<RawStepItem> {
    let mut items = Vec::new();
    for (key, role) in [("in", Role::In), ("out", Role::Out), ("inout", Role::Inout)] {
        match step.list(out, key, "[\"name\"]") {
            Some(list) => {
                for text in list {
                    match parse(&text.value, role, text.span) {
                        Ok(item) => items.push(item),
                        Err(problem) => out.add_breaking(problem),
                    }
                }
            }
            None => out.uses_broken |= step.get(key).is_some(),
        }
    }
    items
}

fn parse(text: &str, role: Role, span: SourceSpan) -> Result<RawStepItem, Finding> {
    let item = |name: &str, entry: Option<&str>, dist| RawStepItem {
        role,
        name: name.to_owned(),
        entry: entry.map(str::to_owned),
        dist,
        span,
    };
    if let Some((name, entry)) = text.split_once('/') {
        if let Some((name, _)) = name.split_once(':') {
            let message = format!("{} has a distribution before its entry", quoted(text));
            let hint = format!("write \"{name}/{entry}\": an entry is on every node of the step");
            return Err(Finding::error(FindingCode::BadDistribution, message)
                .at(span, "cannot stand here")
                .help(hint));
        }
        check_entry(name, entry, role, span)?;
        return Ok(item(name, Some(entry), None));
    }
    let Some((name, word)) = text.split_once(':') else {
        return Ok(item(text, None, None));
    };
    match DISTS.iter().find(|(known, _)| *known == word) {
        Some((_, dist)) => Ok(item(name, None, Some(*dist))),
        None => {
            let hint = did_you_mean(word, DISTS.map(|(known, _)| known));
            Err(Finding::error(
                FindingCode::BadDistribution,
                format!("{} is not a distribution", quoted(word)),
            )
            .at(span, "not a known word after `:`")
            .help(
                hint.unwrap_or_else(|| "write single, gather, scatter, broadcast or shared".into()),
            ))
        }
    }
}

fn check_entry(name: &str, entry: &str, role: Role, span: SourceSpan) -> Result<(), Finding> {
    if role != Role::In {
        let message = format!(
            "only an `in` can name an entry: {}",
            quoted(&format!("{name}/{entry}"))
        );
        let hint = format!(
            "write \"{name}\": a step makes or changes whole datasets; each instance of a foreach step adds a part"
        );
        return Err(Finding::error(FindingCode::BadPattern, message)
            .at(span, "an entry in an output")
            .help(hint));
    }
    if let Some((before, word)) = entry.rsplit_once(':')
        && DISTS.iter().any(|(known, _)| *known == word)
    {
        let message = format!("an entry has no distribution: `{word}`");
        let hint = format!("write \"{name}/{before}\": an entry is on every node of the step");
        return Err(Finding::error(FindingCode::BadDistribution, message)
            .at(span, "cannot stand here")
            .help(hint));
    }
    match entry_problem(entry) {
        None => Ok(()),
        Some((label, hint)) => {
            let message = format!(
                "{} does not name a top-level entry of `{name}`",
                quoted(entry)
            );
            Err(Finding::error(FindingCode::BadPattern, message)
                .at(span, label)
                .help(hint))
        }
    }
}

/// The reason why a text names no top-level entry of a dataset: a label and a hint.
pub(crate) fn entry_problem(entry: &str) -> Option<(&'static str, &'static str)> {
    if entry.is_empty() || entry == "." || entry == ".." {
        Some((
            "not an entry",
            "name a file or folder at the top of the dataset, such as \"raw/tile-1.fits\"",
        ))
    } else if entry.contains('/') {
        Some((
            "has more than one component",
            "name the top-level folder; all below it comes along",
        ))
    } else if entry.contains('*') {
        Some((
            "`*` stands for several entries",
            "read the whole dataset, or run once for each entry with `foreach = \"raw/*\"`",
        ))
    } else if entry.len() > MAX_ENTRY_BYTES {
        Some((
            "longer than 255 bytes",
            "no file system has names of this length",
        ))
    } else {
        None
    }
}

/// `{item}` in a step that has no items.
pub(crate) fn item_without_foreach(span: SourceSpan, what: &str) -> Finding {
    Finding::error(
        FindingCode::BadItem,
        format!("`{ITEM}` in {what}, which has no `foreach`"),
    )
    .at(span, "there is no item")
    .help("add `foreach = [...]` or `foreach = \"dataset/*\"`, or name the thing itself")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let ok = |text, role| parse(text, role, (0, 1).into()).unwrap();
        let plain = ok("raw", Role::In);
        assert_eq!(
            (plain.name.as_str(), plain.entry, plain.dist),
            ("raw", None, None)
        );
        let entry = ok("raw/a:b.{item}", Role::In);
        assert_eq!(
            (entry.name.as_str(), entry.entry.as_deref(), entry.dist),
            ("raw", Some("a:b.{item}"), None)
        );
        assert_eq!(ok("case:scatter", Role::Inout).dist, Some(Dist::Scatter));
    }

    #[test]
    fn refused() {
        for (text, role) in [
            ("raw:gathr", Role::In),
            ("raw:", Role::In),
            ("raw/", Role::In),
            ("raw/..", Role::In),
            ("raw/a/b", Role::In),
            ("raw/*", Role::In),
            ("raw/a:single", Role::In),
            ("raw:single/a", Role::In),
            ("raw/a", Role::Out),
            ("raw/a", Role::Inout),
        ] {
            assert!(parse(text, role, (0, 1).into()).is_err(), "{text}");
        }
    }
}
