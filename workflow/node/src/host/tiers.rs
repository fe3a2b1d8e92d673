//! Tiers must be apart: data that is moved from one to another would otherwise be moved onto itself, and be lost.

use crate::host::machine::TierSpec;
use crate::location::FolderLocation;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Why tiers cannot be used beside each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TiersError {
    /// Two have one name.
    #[error("two tiers are called `{0}`; give each --tier its own name")]
    SameName(String),
    /// The folders of two overlap.
    #[error(
        "the tiers `{}` and `{}` {how} ({} and {}); give each --tier its own folder, best on its own storage",
        .tiers[0], .tiers[1], .roots[0].display(), .roots[1].display()
    )]
    Overlap {
        /// Their names.
        tiers: [String; 2],
        /// Their folders.
        roots: [PathBuf; 2],
        /// How they overlap.
        how: &'static str,
    },
}

/// Refuses two tiers of one name, in one folder (by whatever path, here), or one inside the other.
///
/// # Errors
/// Which, and what to do.
pub fn apart(tiers: &[TierSpec]) -> Result<(), TiersError> {
    let mut names = BTreeSet::new();
    for tier in tiers {
        if !names.insert(&tier.name) {
            return Err(TiersError::SameName(tier.name.clone()));
        }
    }
    let places: Vec<FolderLocation> = tiers.iter().map(|t| FolderLocation::of(&t.root)).collect();
    for (at, (tier, place)) in tiers.iter().zip(&places).enumerate() {
        for (other, its) in tiers.iter().zip(&places).skip(at + 1) {
            let how = if place.is(its) {
                "are one folder"
            } else if place.holds(its) || its.holds(place) {
                "are one inside the other"
            } else {
                continue;
            };
            return Err(TiersError::Overlap {
                tiers: [tier.name.clone(), other.name.clone()],
                roots: [tier.root.clone(), other.root.clone()],
                how,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn tiers(roots: &[&Path]) -> Vec<TierSpec> {
        let tier = |(n, root): (usize, &&Path)| TierSpec {
            name: format!("t{n}"),
            root: root.to_path_buf(),
            size: None,
        };
        roots.iter().enumerate().map(tier).collect()
    }

    #[test]
    fn tiers_lie_apart() {
        let dir = tempfile::tempdir().expect("a folder");
        let here = dir.path();
        let (a, b) = (here.join("a"), here.join("b"));
        std::fs::create_dir(&a).expect("mkdir");
        std::os::unix::fs::symlink(&a, here.join("link")).expect("symlink");
        assert!(apart(&tiers(&[&a, &b, &here.join("ab")])).is_ok());
        let clash = [
            [a.clone(), a.clone()],
            [a.clone(), here.join("link")],
            [a.clone(), here.join("link/below")],
            [b.join("x/y"), b.clone()],
            [b.clone(), here.join("c/../b")],
            [here.to_path_buf(), b],
        ];
        for [one, two] in clash {
            let refused = apart(&tiers(&[&one, &two])).expect_err("a clash");
            assert!(
                refused.to_string().contains("its own folder"),
                "{one:?} {two:?}"
            );
        }
        let mut twice = tiers(&[&a, &here.join("b")]);
        twice[1].name = twice[0].name.clone();
        assert!(apart(&twice).is_err());
    }
}
