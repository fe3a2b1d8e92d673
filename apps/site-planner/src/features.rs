//! Expressions of node features (sbatch(1), `--constraint`): `a&b`, `a|b`, parentheses; `&` binds more closely.
//! Counts (`a*2`) and matching ORs (`[a|b]`) are about nodes together, and are not read.

use std::collections::BTreeSet;

/// Parentheses within parentheses.
const MAX_DEPTH: u32 = 32;

/// An expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FeatureExpression {
    Feature(String),
    All(Vec<Self>),
    Any(Vec<Self>),
}

impl FeatureExpression {
    /// `None` where it is not of the forms that are read here.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parser = FeatureParser {
            text: text.trim(),
            depth: 0,
        };
        let parsed = parser.any()?;
        parser.text.is_empty().then_some(parsed)
    }

    pub(crate) fn holds(&self, features: &BTreeSet<&str>) -> bool {
        match self {
            Self::Feature(name) => features.contains(&name[..]),
            Self::All(of) => of.iter().all(|e| e.holds(features)),
            Self::Any(of) => of.iter().any(|e| e.holds(features)),
        }
    }

    /// Whether a node with all other features than these may satisfy it.
    pub(crate) fn may_hold_without(&self, lacks: &BTreeSet<&str>) -> bool {
        match self {
            Self::Feature(name) => !lacks.contains(&name[..]),
            Self::All(of) => of.iter().all(|e| e.may_hold_without(lacks)),
            Self::Any(of) => of.iter().any(|e| e.may_hold_without(lacks)),
        }
    }
}

struct FeatureParser<'a> {
    text: &'a str,
    depth: u32,
}

impl FeatureParser<'_> {
    fn take(&mut self, sign: char) -> bool {
        match self.text.strip_prefix(sign) {
            Some(rest) => {
                self.text = rest;
                true
            }
            None => false,
        }
    }

    fn any(&mut self) -> Option<FeatureExpression> {
        let mut of = vec![self.all()?];
        while self.take('|') {
            of.push(self.all()?);
        }
        Some(alone_or(of, FeatureExpression::Any))
    }

    fn all(&mut self) -> Option<FeatureExpression> {
        let mut of = vec![self.one()?];
        // A comma is an AND (slurm.conf(5), "Feature").
        while self.take('&') || self.take(',') {
            of.push(self.one()?);
        }
        Some(alone_or(of, FeatureExpression::All))
    }

    fn one(&mut self) -> Option<FeatureExpression> {
        if self.take('(') {
            self.depth += 1;
            if self.depth > MAX_DEPTH {
                return None;
            }
            let within = self.any()?;
            self.depth -= 1;
            return self.take(')').then_some(within);
        }
        let is_sign = |c: char| "&|,()[]*!".contains(c) || c.is_whitespace();
        let end = self.text.find(is_sign).unwrap_or(self.text.len());
        let (name, rest) = self.text.split_at(end);
        self.text = rest;
        (!name.is_empty()).then(|| FeatureExpression::Feature(name.to_owned()))
    }
}

fn alone_or(
    mut of: Vec<FeatureExpression>,
    several: fn(Vec<FeatureExpression>) -> FeatureExpression,
) -> FeatureExpression {
    match of.len() {
        1 => of.remove(0),
        _ => several(of),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn expressions_hold_as_slurm_reads_them() {
        let features = BTreeSet::from(["a", "b", "x86-64"]);
        for (text, holds) in [
            ("a", Some(true)),
            ("c", Some(false)),
            ("a&b", Some(true)),
            ("a&c|b", Some(true)),
            ("a&(c|d)", Some(false)),
            ("c|a&x86-64", Some(true)),
            ("a,b", Some(true)),
            ("[a|b]", None),
            ("a*2", None),
            ("a&", None),
            ("(a", None),
            ("", None),
        ] {
            let parsed = FeatureExpression::parse(text);
            assert_eq!(parsed.map(|e| e.holds(&features)), holds, "{text}");
        }
        assert_eq!(FeatureExpression::parse(&"(".repeat(1 << 20)), None);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[ab&|,()*\\[]{0,40}") {
            let _ = FeatureExpression::parse(&text);
        }
    }
}
