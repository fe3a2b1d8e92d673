//! The memory modes that Slurm's node features name. docs/admin/memory-modes.md, "Slurm".

use crate::features::FeatureExpression;
use std::collections::BTreeSet;
use tarn_slurm::SlurmNode;
use tarn_types::site::Mode;

/// The features by which `tarn-mode-helper` reports a mode.
pub(crate) const MODE_FEATURES: [(&str, Mode); 2] =
    [("mode_1lm", Mode::OneLevel), ("mode_2lm", Mode::TwoLevel)];

/// The mode that a list of features names, if it names one alone.
pub(crate) fn mode_in<'a>(features: impl Iterator<Item = &'a str>) -> Option<Mode> {
    let named = features.filter_map(|feature| {
        let known = MODE_FEATURES.iter().find(|(name, _)| *name == feature);
        known.map(|(_, mode)| *mode)
    });
    let mut named: Vec<Mode> = named.collect();
    named.dedup();
    match named[..] {
        [mode] => Some(mode),
        _ => None,
    }
}

/// Whether Slurm can have a node change its mode.
pub(crate) fn can_change(node: &SlurmNode) -> bool {
    let has = |(name, _): &(&str, Mode)| node.features.iter().any(|feature| feature == name);
    MODE_FEATURES.iter().all(has)
}

/// The mode that a constraint names, if nodes in another one do not satisfy it.
pub(crate) fn requested_mode(constraint: &str) -> Option<Mode> {
    let expression = FeatureExpression::parse(constraint)?;
    let satisfying = MODE_FEATURES.iter().filter(|(name, _)| {
        let others = MODE_FEATURES.iter().map(|(other, _)| *other);
        let others: BTreeSet<&str> = others.filter(|other| other != name).collect();
        expression.may_hold_without(&others)
    });
    let satisfying: Vec<Mode> = satisfying.map(|(_, mode)| *mode).collect();
    match satisfying[..] {
        [mode] => Some(mode),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constraint_names_a_mode_if_no_other_one_satisfies_it() {
        for (text, mode) in [
            ("mode_2lm", Some(Mode::TwoLevel)),
            ("fast&mode_1lm", Some(Mode::OneLevel)),
            ("fast,mode_2lm&mode_2lm", Some(Mode::TwoLevel)),
            ("mode_1lm|mode_2lm", None),
            ("fast&(mode_1lm|mode_2lm)", None),
            ("mode_1lm&mode_2lm", None),
            ("fast&(mode_2lm|(mode_1lm&mode_2lm))", Some(Mode::TwoLevel)),
            ("fast&(mode_2lm&(a|b))", Some(Mode::TwoLevel)),
            ("(a&mode_1lm)|(b&mode_1lm)", Some(Mode::OneLevel)),
            ("(a|b)&(mode_1lm|(mode_1lm&c))", Some(Mode::OneLevel)),
            ("a|mode_1lm", None),
            ("a&(b|mode_1lm)", None),
            ("[mode_1lm|mode_2lm]", None),
            ("fast", None),
            ("", None),
        ] {
            assert_eq!(requested_mode(text), mode, "{text}");
        }
    }
}
