//! Memory, or a folder that all nodes see, stands in for a tier that a node does not have. Also the place of one that is attached.

use super::{TierSpec, free_bytes, nameless};
use crate::storage::tier_folder::{default_root, look_at_root};
use std::io;
use std::path::{Path, PathBuf};
use tarn_sys::memory::in_memory;
use tarn_types::cluster::STAND_IN;

/// Of the free bytes of a file system that all nodes see, a node takes one in so many: others may have to as well.
const SHARED_PART: u64 = 16;

/// A tier that a node does not have, and what stands in for it.
#[derive(Debug)]
pub struct StandIn {
    /// The tier's name.
    pub tier: String,
    /// The path that it should have.
    pub wanted: PathBuf,
    /// The path of its stand-in.
    pub root: PathBuf,
    /// The reason.
    pub why: io::Error,
}

/// Replaces each tier that cannot be made or written here, though not for being full: by memory, and if that cannot be used
/// either by a folder in `folder`, this node's own on a file system that all nodes see. A stand-in has no size, or one that is
/// known to fit. A tier for which nothing stands in stays as it is. Nothing is made by looking.
pub fn stand_in(tiers: &mut [TierSpec], folder: &Path) -> Vec<StandIn> {
    let mut all = Vec::new();
    for tier in tiers {
        let Some(why) = lacks(tier) else {
            continue;
        };
        let Some((root, size)) = substitute(tier, folder) else {
            continue;
        };
        let wanted = std::mem::replace(&mut tier.root, root.clone());
        tier.size = size;
        let tier = tier.name.clone();
        all.push(StandIn {
            tier,
            wanted,
            root,
            why,
        });
    }
    all
}

/// Why this node does not have a tier, if it does not: one that is full is there.
pub(crate) fn lacks(tier: &TierSpec) -> Option<io::Error> {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    let near = look_at_root(&tier.root);
    let why = near.and_then(|near| nameless(&near)).err()?;
    (!matches!(why.kind(), StorageFull | QuotaExceeded)).then_some(why)
}

fn substitute(tier: &TierSpec, folder: &Path) -> Option<(PathBuf, Option<u64>)> {
    let (root, memory) = instead(tier, STAND_IN, folder)?;
    if memory {
        return Some((root, None));
    }
    let part = free_bytes(&look_at_root(&root).ok()?).ok()? / SHARED_PART;
    Some((root, Some(part.min(tier.size.unwrap_or(u64::MAX)))))
}

/// A folder of this node's own, with this ending: in memory (true), or in `folder`.
pub(crate) fn instead(tier: &TierSpec, ending: &str, folder: &Path) -> Option<(PathBuf, bool)> {
    let name = format!("{}.{ending}", tier.name);
    let default = default_root();
    let beside = default.file_name()?.to_string_lossy().into_owned();
    let memory = default.with_file_name(format!("{beside}-{name}"));
    if in_memory(memory.parent()?) && usable(&memory).is_ok() {
        return Some((memory, true));
    }
    let shared = folder.join(name);
    usable(&shared).ok()?;
    Some((shared, false))
}

/// Whether a folder is there or can be made, and can be written.
fn usable(root: &Path) -> io::Result<()> {
    let near = look_at_root(root)?;
    nameless(&near).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_that_is_not_there_has_a_stand_in_and_one_that_is_there_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let spec = |name: &str, root: &Path| TierSpec {
            name: name.into(),
            root: root.into(),
            size: Some(1 << 20),
        };
        // A file can be no folder, not even for root.
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let gone = format!("gone{}", std::process::id());
        let mut tiers = [
            spec("here", &dir.path().join("here")),
            spec(&gone, &file.join("tier")),
        ];
        let found = stand_in(&mut tiers, dir.path());
        assert_eq!(tiers[0], spec("here", &dir.path().join("here")));
        let [only] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(
            (&only.tier, &only.wanted),
            (&gone, &file.join("tier")),
            "{}",
            only.why
        );
        assert_eq!((&tiers[1].root, tiers[1].size), (&only.root, None));
        assert!(
            in_memory(only.root.parent().unwrap())
                && only.root.ends_with(format!(
                    "tarn-{}-{gone}.stand-in",
                    rustix::process::geteuid().as_raw()
                ))
        );
        assert!(!only.root.exists(), "nothing is made by looking");
        // Memory cannot be used because a file has the folder's name.
        std::fs::write(&only.root, "").unwrap();
        let mut tiers = [spec(&gone, &file.join("tier"))];
        let again = stand_in(&mut tiers, dir.path());
        std::fs::remove_file(&only.root).unwrap();
        assert_eq!(again[0].root, dir.path().join(format!("{gone}.stand-in")));
        assert!(!again[0].root.exists());
        assert_eq!(tiers[0].size, Some(1 << 20));
    }
}
