//! Which characters a name has: names become parts of file names and variables.

use crate::diag::{Finding, FindingCode, Findings, quoted};
use miette::SourceSpan;
use tarn_types::bounds;

/// Which characters a name has.
pub(crate) struct NameRule {
    /// The named object, such as "step".
    pub(crate) noun: &'static str,
    /// The characters, in words.
    pub(crate) words: &'static str,
    /// Whether a character may come first.
    pub(crate) first: fn(char) -> bool,
    /// Whether a character may follow.
    pub(crate) rest: fn(char) -> bool,
}

impl NameRule {
    /// Checks a name and reports its errors.
    pub(crate) fn check(&self, out: &mut Findings, text: &str, span: SourceSpan) -> bool {
        let label = if text.is_empty() {
            "empty".to_owned()
        } else if text.len() > bounds::MAX_NAME_BYTES {
            format!(
                "{} bytes long; at most {} are allowed",
                text.len(),
                bounds::MAX_NAME_BYTES
            )
        } else {
            let mut letters = text.chars().enumerate();
            match letters.find(|(i, c)| {
                !if *i == 0 {
                    (self.first)(*c)
                } else {
                    (self.rest)(*c)
                }
            }) {
                None => return true,
                Some((0, c)) => format!("cannot begin with {}", quoted(&c.to_string())),
                Some((_, c)) => format!("cannot hold {}", quoted(&c.to_string())),
            }
        };
        out.add(
            Finding::error(
                FindingCode::BadName,
                format!("{} is not a name for a {}", quoted(text), self.noun),
            )
            .at(span, label)
            .help(format!("a {} name is {}", self.noun, self.words)),
        );
        false
    }
}

/// The names of tiers.
pub(crate) const TIER_NAME: NameRule = NameRule {
    noun: "tier",
    words: "letters, digits, `_`, `.` and `-`, such as `tmpfs`; `tarn nodes` lists the tiers",
    first: |c| c.is_ascii_alphanumeric() || c == '_',
    rest: |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'),
};
