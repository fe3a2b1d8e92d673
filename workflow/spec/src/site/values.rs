//! Kinds of value that only the files of a site have.

use crate::diag::{Finding, FindingCode, Findings, quoted};
use crate::namerule::NameRule;
use crate::section::{Located, Section, TIME_HINT, kind, place, shorten};
use crate::site::draft::MAX_TIME;
use crate::suggest::did_you_mean;
use miette::SourceSpan;
use std::collections::HashMap;
use tarn_types::units::{SECOND, Time, parse_rate, parse_time};
use toml::de::{DeTable, DeValue};

/// The rule for names of a site's objects.
pub(crate) const NAME: NameRule = NameRule {
    noun: "site",
    words: "letters, digits, `_`, `.` and `-`, beginning with a letter or a digit, at most 64 bytes",
    first: |c| c.is_ascii_alphanumeric(),
    rest: |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'),
};

/// A table of a list of tables: its number (from 1), itself and its place.
pub(crate) type NumberedTable<'d> = (usize, &'d DeTable<'d>, SourceSpan);

impl<'d> Section<'d> {
    /// `[[key]]`: at most `most` tables.
    pub(crate) fn tables(
        &self,
        out: &mut Findings,
        key: &str,
        most: usize,
    ) -> Vec<NumberedTable<'d>> {
        let Some(value) = self.get(key) else {
            return Vec::new();
        };
        let header = format!("write `[[{key}]]` (two brackets), with its keys below");
        let wrong = |what: String, want: &str, value: &toml::Spanned<DeValue<'_>>| {
            let found = kind(value.get_ref());
            Finding::error(
                FindingCode::WrongType,
                format!("{what} must be {want}, not {found}"),
            )
            .at(place(value), found)
            .help(header.clone())
        };
        let DeValue::Array(list) = value.get_ref() else {
            out.add(wrong(format!("`{key}`"), "an array of tables", value));
            return Vec::new();
        };
        if list.len() > most {
            out.add(
                Finding::error(
                    FindingCode::TooLarge,
                    format!("{} times `[[{key}]]` is too often", list.len()),
                )
                .at(place(value), format!("at most {most} are allowed"))
                .help("divide the file, or describe what is alike once"),
            );
            return Vec::new();
        }
        let mut tables = Vec::with_capacity(list.len());
        for (i, value) in list.iter().enumerate() {
            match value.get_ref().as_table() {
                Some(table) => tables.push((i + 1, table, place(value))),
                None => out.add(wrong(format!("{key} {}", i + 1), "a table", value)),
            }
        }
        tables
    }

    /// A table below a key, with the keys that are known in it.
    pub(crate) fn table(
        &self,
        out: &mut Findings,
        key: &str,
        known: &[&str],
        example: &str,
    ) -> Option<Section<'d>> {
        let value = self.get(key)?;
        match value.get_ref().as_table() {
            Some(table) => Some(Section::new(
                out,
                table,
                place(value),
                format!("`{key}` of {}", self.what),
                &format!("`{key}`"),
                known,
            )),
            None => {
                self.wrong_type(out, key, value, "a table", example);
                None
            }
        }
    }

    /// Bytes a second; 0, for no limit, when the key is not there.
    pub(crate) fn rate(&self, out: &mut Findings, key: &str) -> u64 {
        let hint =
            "rates are a size and `/s`, such as \"2 GB/s\"; without the key there is no limit";
        self.quantity(out, key, "\"2 GB/s\"", "a rate", hint, parse_rate)
            .map_or(0, |r| r.value)
    }

    /// A length of time that may be 0.
    pub(crate) fn moment(&self, out: &mut Findings, key: &str) -> Option<Located<Time>> {
        let text = self.string(out, key, "\"10m\"")?;
        let (code, label, hint) = match parse_time(&text.value) {
            Ok(time) if time <= MAX_TIME => return Some(Located::new(time, text.span)),
            Ok(_) => {
                let most = format!("must be at most {} s", MAX_TIME / SECOND);
                (FindingCode::BadValue, most, "write a shorter time")
            }
            Err(why) => (FindingCode::BadUnit, shorten(&why), TIME_HINT),
        };
        let message = format!(
            "`{key}` of {} is not a time that can be simulated",
            self.what
        );
        out.add(
            Finding::error(code, message)
                .at(text.span, label)
                .help(hint),
        );
        None
    }

    /// A number in quotes with one of the units, each with its factor. 0 is allowed.
    pub(crate) fn measure(
        &self,
        out: &mut Findings,
        key: &str,
        units: &[(&str, f64)],
        example: &str,
    ) -> Option<f64> {
        let text = self.string(out, key, example)?;
        let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
        let read = units.iter().find_map(|(name, factor)| {
            let number = text.value.trim().strip_suffix(name)?.trim_end();
            let number: f64 = number.parse().ok()?;
            (number.is_finite() && number.abs() < MAX_MEASURE).then_some(number * factor)
        });
        if read.is_none() {
            out.add(
                Finding::error(
                    FindingCode::BadUnit,
                    format!("`{key}` of {} is not a number with its unit", self.what),
                )
                .at(
                    text.span,
                    format!("needs one of the units {}", names.join(", ")),
                )
                .help(format!("write it as `{key} = {example}`")),
            );
        }
        read
    }

    /// A number from `least` to `most`.
    pub(crate) fn number(
        &self,
        out: &mut Findings,
        key: &str,
        least: f64,
        most: f64,
    ) -> Option<Located<f64>> {
        let value = self.get(key)?;
        let number = match value.get_ref() {
            DeValue::Float(f) => f.as_str().replace('_', "").parse::<f64>().ok(),
            DeValue::Integer(i) => i.as_str().replace('_', "").parse::<f64>().ok(),
            _ => {
                self.wrong_type(out, key, value, "a number", &least.max(0.5).to_string());
                return None;
            }
        };
        let number = number.filter(|n| (least..=most).contains(n));
        if number.is_none() {
            out.add(
                Finding::error(
                    FindingCode::BadValue,
                    format!("`{key}` of {} is out of its limits", self.what),
                )
                .at(place(value), format!("must be from {least} to {most}"))
                .help(format!("write a number from {least} to {most}")),
            );
        }
        number.map(|n| Located::new(n, place(value)))
    }

    /// `true` or `false`.
    pub(crate) fn flag(&self, out: &mut Findings, key: &str) -> Option<bool> {
        let value = self.get(key)?;
        let flag = value.get_ref().as_bool();
        if flag.is_none() {
            self.wrong_type(out, key, value, "`true` or `false`", "true");
        }
        flag
    }

    /// One of some words.
    pub(crate) fn word<T: Copy>(
        &self,
        out: &mut Findings,
        key: &str,
        words: &[(&str, T)],
    ) -> Option<T> {
        let first = words.first().map_or("", |(word, _)| word);
        let text = self.string(out, key, &format!("\"{first}\""))?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text.value) {
            return Some(*value);
        }
        let list: Vec<String> = words
            .iter()
            .map(|(word, _)| format!("\"{word}\""))
            .collect();
        let hint = did_you_mean(&text.value, words.iter().map(|(word, _)| *word));
        out.add(
            Finding::error(
                FindingCode::BadValue,
                format!("{} is no `{key}` of {}", quoted(&text.value), self.what),
            )
            .at(text.span, "not a known word")
            .help(hint.unwrap_or_else(|| format!("write {}", list.join(" or ")))),
        );
        None
    }
}

/// Watts and degrees are smaller.
const MAX_MEASURE: f64 = 1e9;

/// Reports names that occur twice.
pub(crate) fn unique<'n>(
    out: &mut Findings,
    noun: &str,
    names: impl IntoIterator<Item = &'n Located<String>>,
) {
    let mut seen: HashMap<&str, SourceSpan> = HashMap::new();
    for name in names {
        if let Some(first) = seen.insert(&name.value, name.span) {
            out.add(
                Finding::error(
                    FindingCode::DuplicateName,
                    format!("two {noun}s are called {}", quoted(&shorten(&name.value))),
                )
                .at(name.span, "again here")
                .at(first, "first here")
                .help("give one of them another name"),
            );
        }
    }
}
