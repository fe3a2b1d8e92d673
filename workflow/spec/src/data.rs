//! Reading `[data.NAME]`.

use crate::diag::{Finding, FindingCode, Findings, quoted};
use crate::elsewhere::{self, Elsewhere};
use crate::namerule::{NameRule, TIER_NAME};
use crate::section::{Located, Section, TIME_HINT, in_order, kind, place, shorten};
use crate::suggest::did_you_mean;
use miette::SourceSpan;
use std::path::{Path, PathBuf};
use tarn_types::bounds;
use tarn_types::object::ObjectUrl;
use tarn_types::pattern::ScatterRule;
use tarn_types::units::parse_time;
use tarn_types::workflow::{Keep, OnFailure};
use toml::de::{DeTable, DeValue};

const KEYS: &[&str] = &[
    "source",
    "dest",
    "size",
    "scatter",
    "keep",
    "copies",
    "on_failure",
    "tier",
    "encrypt",
    "of",
    "project",
];

const NAME: NameRule = NameRule {
    noun: "dataset",
    words: "a lower-case letter or `_`, then letters, digits and `_`, at most 64 bytes: it names the variable $TARN_<name>",
    first: |c| c.is_ascii_lowercase() || c == '_',
    rest: |c| c.is_ascii_alphanumeric() || c == '_',
};

/// A dataset as written.
pub(crate) struct RawDataset {
    pub(crate) name: Located<String>,
    pub(crate) source: Option<Located<PathBuf>>,
    pub(crate) dest: Option<Located<PathBuf>>,
    pub(crate) size: Option<Located<u64>>,
    pub(crate) scatter: Option<Located<ScatterRule>>,
    pub(crate) keep: Keep,
    pub(crate) copies: Option<Located<u32>>,
    pub(crate) on_failure: Option<Located<OnFailure>>,
    pub(crate) tier: Option<Located<String>>,
    pub(crate) encrypt: Option<Located<bool>>,
    pub(crate) elsewhere: Option<Located<Elsewhere>>,
}

/// Reads all datasets, in the order of the file.
pub(crate) fn read(out: &mut Findings, top: &Section<'_>, folder: &Path) -> Vec<RawDataset> {
    let Some(value) = top.get("data") else {
        return Vec::new();
    };
    let Some(table) = value.get_ref().as_table() else {
        out.data_broken = true;
        out.add_breaking(not_a_table(
            "`data`",
            "data.NAME",
            value.get_ref(),
            place(value),
        ));
        return Vec::new();
    };
    if table.len() > bounds::MAX_DATASETS {
        out.data_broken = true;
        out.add_breaking(
            Finding::error(FindingCode::TooLarge, format!("{} datasets are too many", table.len()))
                .at(place(value), format!("at most {} are allowed", bounds::MAX_DATASETS))
                .help("put files that go together into one dataset; entries are selected with `NAME/ENTRY`"),
        );
        return Vec::new();
    }
    let mut all = Vec::with_capacity(table.len());
    for (name, value) in in_order(table) {
        NAME.check(out, name.value, name.span);
        match value.get_ref().as_table() {
            Some(table) => all.push(dataset(out, name, table, folder)),
            None => {
                let what = format!("dataset {}", quoted(name.value));
                out.data_broken = true;
                out.add_breaking(not_a_table(
                    &what,
                    &format!("data.{}", name.value),
                    value.get_ref(),
                    place(value),
                ));
            }
        }
    }
    all
}

fn dest(out: &mut Findings, section: &Section<'_>, folder: &Path) -> Option<Located<PathBuf>> {
    let dest = section.place(out, "dest", folder)?;
    if let Some(Ok(tree)) = ObjectUrl::of(&dest.value)
        && tree.key.is_empty()
    {
        out.add(
            Finding::error(FindingCode::BadPath, "`dest` would replace a whole bucket")
                .at(dest.span, "no prefix")
                .help(format!("name a prefix in it: \"{tree}result/\"")),
        );
        return None;
    }
    Some(dest)
}

pub(crate) fn not_a_table(
    what: &str,
    header: &str,
    value: &DeValue<'_>,
    span: SourceSpan,
) -> Finding {
    let found = kind(value);
    Finding::error(
        FindingCode::WrongType,
        format!("{what} must be a table, not {found}"),
    )
    .at(span, found)
    .help(format!("write a table: `[{header}]`, with its keys below"))
}

fn dataset(
    out: &mut Findings,
    name: Located<&str>,
    table: &DeTable<'_>,
    folder: &Path,
) -> RawDataset {
    let what = format!("dataset {}", quoted(name.value));
    let section = Section::new(out, table, name.span, what, "a dataset", KEYS);
    let source = section.place(out, "source", folder);
    // A source that cannot be read is still a source: there is no report that nobody makes the dataset.
    out.uses_broken |= source.is_none() && section.get("source").is_some();
    RawDataset {
        name: Located::new(name.value.to_owned(), name.span),
        source,
        dest: dest(out, &section, folder),
        size: section.size(out, "size"),
        scatter: scatter(out, &section),
        keep: keep(out, &section),
        copies: section.count(out, "copies", 1, bounds::MAX_NODES as u32),
        on_failure: on_failure(out, &section),
        tier: section.name(out, "tier", &TIER_NAME),
        encrypt: encrypt(out, &section),
        elsewhere: elsewhere::read(out, &section, name.value),
    }
}

fn encrypt(out: &mut Findings, section: &Section<'_>) -> Option<Located<bool>> {
    let value = section.get("encrypt")?;
    let flag = section.flag(out, "encrypt")?;
    Some(Located::new(flag, place(value)))
}

fn scatter(out: &mut Findings, section: &Section<'_>) -> Option<Located<ScatterRule>> {
    let text = section.string(out, "scatter", "\"processor{rank}\"");
    // A rule that cannot be read is still a rule: there is no report that there is none.
    out.uses_broken |= text.is_none() && section.get("scatter").is_some();
    let text = text?;
    match ScatterRule::new(&text.value) {
        Ok(rule) => Some(Located::new(rule, text.span)),
        Err(why) => {
            out.add_breaking(
                Finding::error(FindingCode::BadPattern, format!("`scatter` of {} is not a scatter rule", section.what))
                    .at(text.span, shorten(&why))
                    .help("write a path inside the dataset with `{rank}` once, such as \"processor{rank}\""),
            );
            None
        }
    }
}

fn keep(out: &mut Findings, section: &Section<'_>) -> Keep {
    const WORDS: [&str; 3] = ["until-consumed", "workflow", "forever"];
    let Some(text) = section.string(out, "keep", "\"workflow\"") else {
        return Keep::UntilConsumed;
    };
    match text.value.as_str() {
        "until-consumed" => Keep::UntilConsumed,
        "workflow" => Keep::Workflow,
        "forever" => Keep::Forever,
        other => match parse_time(other) {
            Ok(time) => Keep::For(time),
            Err(why) => {
                let timed = other.trim_start().starts_with(|c: char| c.is_ascii_digit());
                let code = if timed {
                    FindingCode::BadUnit
                } else {
                    FindingCode::BadValue
                };
                let label = if timed {
                    shorten(&why)
                } else {
                    "neither a known word nor a duration".into()
                };
                let hint = match timed {
                    true => TIME_HINT.to_owned(),
                    false => did_you_mean(other, WORDS).unwrap_or_else(|| {
                        "write \"until-consumed\", \"workflow\", \"forever\" or a duration such as \"7d\"".into()
                    }),
                };
                let message = format!("{} is not a way to keep {}", quoted(other), section.what);
                out.add(
                    Finding::error(code, message)
                        .at(text.span, label)
                        .help(hint),
                );
                Keep::UntilConsumed
            }
        },
    }
}

fn on_failure(out: &mut Findings, section: &Section<'_>) -> Option<Located<OnFailure>> {
    let text = section.string(out, "on_failure", "\"drain\"")?;
    let value = match text.value.as_str() {
        "discard" => OnFailure::Discard,
        "drain" => OnFailure::Drain,
        other => {
            let hint = did_you_mean(other, ["discard", "drain"]);
            out.add(
                Finding::error(
                    FindingCode::BadValue,
                    format!("{} is no `on_failure` of {}", quoted(other), section.what),
                )
                .at(text.span, "not a known word")
                .help(hint.unwrap_or_else(|| {
                    "write \"discard\" (it stays on the nodes) or \"drain\" (it is copied out)"
                        .into()
                })),
            );
            return None;
        }
    };
    Some(Located::new(value, text.span))
}
