//! Tiers must lie apart: what is moved from one to another would otherwise be moved onto itself, and be lost.

use crate::error::{CliError, CliResult};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use tarn_base::codes::Exit;
use tarn_local::machine::TierSpec;

/// Refuses two tiers of one name, in one folder (by whatever path), or one inside the other.
pub(super) fn apart(tiers: &[TierSpec]) -> CliResult<()> {
    let refused = |text: String| Err(CliError::new(Exit::Usage, text));
    let mut names = BTreeSet::new();
    for tier in tiers {
        if !names.insert(&tier.name) {
            return refused(format!(
                "two tiers are called `{0}`; give each --tier a name of its own",
                tier.name
            ));
        }
    }
    let places: Vec<Location> = tiers.iter().map(|t| Location::of(&t.root)).collect();
    for (at, (tier, place)) in tiers.iter().zip(&places).enumerate() {
        for (other, its) in tiers.iter().zip(&places).skip(at + 1) {
            let (a, b) = (tier.root.display(), other.root.display());
            let how = if place.is(its) {
                format!("are one folder ({a} and {b})")
            } else if place.holds(its) || its.holds(place) {
                format!("lie one inside the other ({a} and {b})")
            } else {
                continue;
            };
            return refused(format!(
                "the tiers `{}` and `{}` {how}; give each --tier a folder of its own, best on storage of its own",
                tier.name, other.name
            ));
        }
    }
    Ok(())
}

/// A folder that may not exist yet.
struct Location {
    /// Without links, as far as it exists.
    path: PathBuf,
    /// Device and inode of those of its ancestors that exist, its own first.
    above: Vec<(u64, u64)>,
    exists: bool,
}

impl Location {
    fn of(root: &Path) -> Self {
        let path = real(root);
        let identity = |p: &Path| std::fs::metadata(p).ok().map(|m| (m.dev(), m.ino()));
        Self {
            exists: path.exists(),
            above: path.ancestors().filter_map(identity).collect(),
            path,
        }
    }

    fn is(&self, other: &Self) -> bool {
        let one = self.exists && other.exists && self.above.first() == other.above.first();
        one || self.path == other.path
    }

    fn holds(&self, other: &Self) -> bool {
        let own = self.above.first().filter(|_| self.exists);
        own.is_some_and(|o| other.above.contains(o)) || other.path.starts_with(&self.path)
    }
}

/// The path without links: of its deepest ancestor that exists, and the rest as written.
fn real(path: &Path) -> PathBuf {
    let found = path
        .ancestors()
        .find_map(|a| Some((a, std::fs::canonicalize(a).ok()?)));
    let Some((ancestor, mut whole)) = found else {
        return path.to_path_buf();
    };
    let rest = path.strip_prefix(ancestor).unwrap_or(Path::new(""));
    for part in rest.components() {
        match part {
            Component::ParentDir => drop(whole.pop()),
            other => whole.push(other),
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(refused.exit, Exit::Usage, "{one:?} {two:?}");
        }
        let mut twice = tiers(&[&a, &here.join("b")]);
        twice[1].name = twice[0].name.clone();
        assert!(apart(&twice).is_err());
    }
}
