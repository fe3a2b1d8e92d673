//! Typed reading of the tables of a TOML document, keeping every value's place.

use crate::diag::{Finding, FindingCode, Findings, quoted};
use crate::namerule::NameRule;
use crate::suggest::did_you_mean;
use miette::SourceSpan;
use std::fmt::Display;
use std::path::{Component, Path, PathBuf};
use tarn_types::bounds;
use tarn_types::object::{self, ObjectUrl};
use tarn_types::units::{Nanos, UnitError, parse_size, parse_time};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A value and its place.
#[derive(Debug, Clone)]
pub(crate) struct Located<T> {
    pub(crate) value: T,
    pub(crate) span: SourceSpan,
}

impl<T> Located<T> {
    pub(crate) fn new(value: T, span: SourceSpan) -> Self {
        Self { value, span }
    }
}

/// The value of an optional key.
pub(crate) fn value_of<T: Copy>(located: &Option<Located<T>>) -> Option<T> {
    located.as_ref().map(|l| l.value)
}

/// A table whose keys are known.
pub(crate) struct Section<'d> {
    table: &'d DeTable<'d>,
    /// Names the table in messages, such as "step `solve`".
    pub(crate) what: String,
    /// The place of the table.
    pub(crate) span: SourceSpan,
}

/// The place of a value.
pub(crate) fn place<T>(spanned: &Spanned<T>) -> SourceSpan {
    spanned.span().into()
}

/// The kind of a value for messages: "a string", "an integer".
pub(crate) fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

/// An integer of any radix.
pub(crate) fn integer(value: &DeValue<'_>) -> Option<i64> {
    let digits = value.as_integer()?;
    i64::from_str_radix(digits.as_str(), digits.radix()).ok()
}

/// The entries of a table in the order of the file.
pub(crate) fn in_order<'d>(
    table: &'d DeTable<'d>,
) -> Vec<(Located<&'d str>, &'d Spanned<DeValue<'d>>)> {
    let mut entries: Vec<_> = table
        .iter()
        .map(|(k, v)| (Located::new(k.get_ref().as_ref(), place(k)), v))
        .collect();
    entries.sort_by_key(|(key, _)| key.span.offset());
    entries
}

/// Names that other programs have for keys of tarn.
const OTHER_NAMES: [(&str, &str); 4] = [
    ("input", "in"),
    ("inputs", "in"),
    ("output", "out"),
    ("outputs", "out"),
];

/// A hint at the key that an unknown one was probably meant to be.
fn meant(key: &str, known: &[&str]) -> Option<String> {
    let other = OTHER_NAMES
        .iter()
        .find(|(other, ours)| *other == key && known.contains(ours));
    match other {
        Some((_, ours)) => Some(format!("did you mean `{ours}`?")),
        None => did_you_mean(key, known.iter().copied()),
    }
}

impl<'d> Section<'d> {
    /// A table; reports keys that are not `known`.
    pub(crate) fn new(
        out: &mut Findings,
        table: &'d DeTable<'d>,
        span: SourceSpan,
        what: impl Into<String>,
        noun: &str,
        known: &[&str],
    ) -> Self {
        let what = what.into();
        for (key, _) in in_order(table) {
            if !known.contains(&key.value) {
                let hint = meant(key.value, known);
                let list = || format!("the keys of {noun} are {}", known.join(", "));
                out.add(
                    Finding::error(
                        FindingCode::UnknownKey,
                        format!("unknown key {} in {what}", quoted(key.value)),
                    )
                    .at(key.span, format!("not a key of {noun}"))
                    .help(hint.unwrap_or_else(list)),
                );
            }
        }
        Self { table, what, span }
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&'d Spanned<DeValue<'d>>> {
        self.table.get(key)
    }

    /// Reports that `value` does not suit `key`.
    pub(crate) fn wrong_type(
        &self,
        out: &mut Findings,
        key: &str,
        value: &Spanned<DeValue<'_>>,
        want: &str,
        example: &str,
    ) {
        let found = kind(value.get_ref());
        out.add(
            Finding::error(
                FindingCode::WrongType,
                format!("`{key}` of {} must be {want}, not {found}", self.what),
            )
            .at(place(value), found)
            .help(format!("write it as `{key} = {example}`")),
        );
    }

    /// A string without NUL.
    pub(crate) fn string(
        &self,
        out: &mut Findings,
        key: &str,
        example: &str,
    ) -> Option<Located<String>> {
        let value = self.get(key)?;
        let Some(text) = value.get_ref().as_str() else {
            self.wrong_type(out, key, value, "a string", example);
            return None;
        };
        no_nul(out, text, place(value)).then(|| Located::new(text.to_owned(), place(value)))
    }

    /// A string that may not be blank.
    pub(crate) fn filled(
        &self,
        out: &mut Findings,
        key: &str,
        example: &str,
    ) -> Option<Located<String>> {
        let text = self.string(out, key, example)?;
        if text.value.trim().is_empty() {
            out.add(
                Finding::error(FindingCode::BadValue, format!("`{key}` of {} is empty", self.what))
                    .at(text.span, "nothing here")
                    .help(format!("write something such as `{key} = {example}`, or leave the key out if it is optional")),
            );
            return None;
        }
        Some(text)
    }

    /// Reports a required key that is not there.
    pub(crate) fn require(&self, out: &mut Findings, key: &str, example: &str) -> bool {
        let there = self.get(key).is_some();
        if !there {
            out.add(
                Finding::error(
                    FindingCode::MissingKey,
                    format!("{} has no `{key}`", self.what),
                )
                .at(self.span, format!("`{key}` is required here"))
                .help(format!("add `{key} = {example}`")),
            );
        }
        there
    }

    /// A name with the characters that `rule` allows.
    pub(crate) fn name(
        &self,
        out: &mut Findings,
        key: &str,
        rule: &NameRule,
    ) -> Option<Located<String>> {
        let text = self.string(out, key, "\"...\"")?;
        rule.check(out, &text.value, text.span).then_some(text)
    }

    /// An integer from `least` to `most`.
    pub(crate) fn count(
        &self,
        out: &mut Findings,
        key: &str,
        least: u32,
        most: u32,
    ) -> Option<Located<u32>> {
        let value = self.get(key)?;
        if value.get_ref().as_integer().is_none() {
            let quoted: Option<u32> = value
                .get_ref()
                .as_str()
                .and_then(|text| text.trim().parse().ok());
            let example = quoted.filter(|n| (least..=most).contains(n));
            let example = example.unwrap_or(least.max(1)).to_string();
            self.wrong_type(out, key, value, "an integer", &example);
            return None;
        }
        let number = integer(value.get_ref()).and_then(|n| u32::try_from(n).ok());
        match number.filter(|n| (least..=most).contains(n)) {
            Some(n) => Some(Located::new(n, place(value))),
            None => {
                out.add(
                    Finding::error(
                        FindingCode::BadValue,
                        format!("`{key}` of {} is out of its limits", self.what),
                    )
                    .at(place(value), format!("must be from {least} to {most}"))
                    .help(format!("write an integer from {least} to {most}")),
                );
                None
            }
        }
    }

    /// A size in bytes above 0.
    pub(crate) fn size(&self, out: &mut Findings, key: &str) -> Option<Located<u64>> {
        let hint = "sizes are a number and a unit, such as \"400 GiB\"; units: B, kB, MB, GB, TB, PB (powers of 1000), \
                    KiB, MiB, GiB, TiB, PiB (powers of 1024)";
        self.quantity(out, key, "\"400 GiB\"", "a size", hint, |text| {
            parse_size(text)
        })
    }

    /// A length of time above 0.
    pub(crate) fn time(&self, out: &mut Findings, key: &str) -> Option<Located<Nanos>> {
        self.quantity(out, key, "\"10m\"", "a duration", TIME_HINT, |text| {
            parse_time(text)
        })
    }

    /// An amount above 0 in quotes, with its unit.
    pub(crate) fn quantity(
        &self,
        out: &mut Findings,
        key: &str,
        example: &str,
        noun: &str,
        hint: &str,
        parse: impl Fn(&str) -> Result<u64, UnitError>,
    ) -> Option<Located<u64>> {
        let value = self.get(key)?;
        let Some(text) = value.get_ref().as_str() else {
            self.wrong_type(
                out,
                key,
                value,
                &format!("{noun} in quotes, with its unit"),
                example,
            );
            return None;
        };
        let problem = match parse(text) {
            Ok(0) => Finding::error(
                FindingCode::BadValue,
                format!("`{key}` of {} is zero", self.what),
            )
            .at(place(value), "must be more than zero")
            .help(format!("write {noun} above zero")),
            Ok(amount) => return Some(Located::new(amount, place(value))),
            Err(why) => Finding::error(
                FindingCode::BadUnit,
                format!("`{key}` of {} is not {noun}", self.what),
            )
            .at(place(value), shorten(&why.to_string()))
            .help(hint),
        };
        out.add(problem);
        None
    }

    /// A place outside: a path, or a tree or object of an object store.
    pub(crate) fn place(
        &self,
        out: &mut Findings,
        key: &str,
        folder: &Path,
    ) -> Option<Located<PathBuf>> {
        let text = self
            .get(key)
            .and_then(|value| value.get_ref().as_str())
            .filter(|text| text.starts_with(object::SCHEME));
        if text.is_none() {
            return self.path(out, key, folder);
        }
        let text = self.string(out, key, "\"s3://bucket/prefix/\"")?;
        match ObjectUrl::parse(&text.value) {
            Ok(_) => Some(Located::new(text.value.into(), text.span)),
            Err(why) => {
                let what = format!(
                    "`{key}` of {} is no usable place in an object store",
                    self.what
                );
                let finding = |what| {
                    Finding::error(FindingCode::BadPath, what).help(
                        "write s3://BUCKET/PREFIX/ for a tree of objects, s3://BUCKET/KEY for one object",
                    )
                };
                // A line that may have a key in it is not shown.
                out.add(match object::shown(Path::new(&text.value)) == text.value {
                    true => finding(what).at(text.span, why.to_string()),
                    false => finding(format!("{what}: {why}")),
                });
                None
            }
        }
    }

    /// A path, made absolute.
    pub(crate) fn path(
        &self,
        out: &mut Findings,
        key: &str,
        folder: &Path,
    ) -> Option<Located<PathBuf>> {
        let text = self.string(out, key, "\"folder/file\"")?;
        let refuse = |why: &str, hint: &str| {
            Finding::error(
                FindingCode::BadPath,
                format!("`{key}` of {} is not a usable path", self.what),
            )
            .at(text.span, why)
            .help(hint)
        };
        let problem = if text.value.trim().is_empty() {
            refuse(
                "empty",
                "name a path; `.` is the folder of the workflow file",
            )
        } else if text.value.starts_with('~') {
            refuse(
                "`~` is not expanded",
                "write the whole path: a workflow file means the same for everybody",
            )
        } else if text.value.contains('$') {
            refuse(
                "variables are not expanded",
                "write the whole path, or one relative to the workflow file's folder",
            )
        } else if text.value.contains("://") {
            refuse(
                "a URL is not a path",
                "name a directory or file that the nodes can reach by its path",
            )
        } else if text.value.len() > bounds::MAX_PATH_BYTES {
            refuse(
                "too long",
                &format!("a path has at most {} bytes", bounds::MAX_PATH_BYTES),
            )
        } else {
            return Some(Located::new(absolute(folder, &text.value), text.span));
        };
        out.add(problem);
        None
    }

    /// A list of strings; one string is a list of one. `None` when the key is not there or of a wrong type.
    pub(crate) fn list(
        &self,
        out: &mut Findings,
        key: &str,
        example: &str,
    ) -> Option<Vec<Located<String>>> {
        let value = self.get(key)?;
        let one;
        let items: &[Spanned<DeValue<'_>>] = match value.get_ref() {
            DeValue::Array(items) => items,
            DeValue::String(_) => {
                one = [value.clone()];
                &one
            }
            _ => {
                self.wrong_type(out, key, value, "an array of strings", example);
                return None;
            }
        };
        let mut list = Vec::with_capacity(items.len());
        for item in items {
            match item.get_ref().as_str() {
                Some(text) if no_nul(out, text, place(item)) => {
                    list.push(Located::new(text.to_owned(), place(item)))
                }
                Some(_) => return None,
                None => {
                    self.wrong_type(out, key, item, "an array of strings", example);
                    return None;
                }
            }
        }
        Some(list)
    }
}

/// Shown where a duration was expected.
pub(crate) const TIME_HINT: &str =
    "durations are numbers with units, such as \"10m\" or \"1h30m\"; units: ns, us, ms, s, m, h, d";

/// Refuses NUL: no command, variable, name or path of the system can hold it.
pub(crate) fn no_nul(out: &mut Findings, text: &str, span: SourceSpan) -> bool {
    if text.contains('\0') {
        out.add(
            Finding::error(FindingCode::BadValue, "a string holds a NUL character")
                .at(span, "has `\\u0000` in it")
                .help("remove it: commands, variables and paths cannot hold one"),
        );
        return false;
    }
    true
}

/// A path below `folder`, without `.` components.
fn absolute(folder: &Path, text: &str) -> PathBuf {
    folder
        .join(text)
        .components()
        .filter(|c| *c != Component::CurDir)
        .collect()
}

/// The message of a parser without the user's text in full: a label stays on one line.
pub(crate) fn shorten(why: &impl Display) -> String {
    let text = why.to_string();
    let mut short: String = text.chars().take(160).flat_map(printable).collect();
    if text.chars().nth(160).is_some() {
        short.push_str("...");
    }
    short
}

fn printable(c: char) -> Option<char> {
    (!c.is_control()).then_some(c)
}
