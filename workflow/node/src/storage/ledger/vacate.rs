//! Gives the place of a workspace on a tier back: its empty folders and its claim.

use super::cache::prune;
use super::page::{TierClaims, lock};
use crate::storage::stage;
use std::io;
use std::path::{Path, PathBuf};
use tarn_types::layout::ERASE;

/// Gives a workspace's place on the tier at `root` back: `freed` bytes that were removed from it, its empty folders,
/// and, when nothing is left in it, its claim. Only for who holds the workspace's run lock.
///
/// # Errors
/// When the ledger cannot be changed; folders that cannot be removed stay.
pub fn vacate(root: &Path, workspace: &str, freed: u64) -> io::Result<()> {
    let folder = root.join(workspace);
    let cached = prune(root, workspace);
    remove_skeleton(&folder);
    if !root.is_dir() {
        return Ok(());
    }
    let _lock = lock(root)?;
    let found = TierClaims::read(root)?;
    let mut page = found.clone();
    for claim in page.entries.iter_mut().filter(|c| c.workspace == workspace) {
        claim.used = claim.used.saturating_sub(freed);
        claim.cached = cached.min(claim.used);
    }
    page.entries
        .retain(|c| c.workspace != workspace || (c.used > 0 && folder.is_dir()));
    if page != found {
        page.write(root)?;
    }
    Ok(())
}

/// Removes a workspace's own folders as far as nothing is in them: `<node>/{parts,incoming,work}` and `at`.
/// Never what is below those: an empty folder there is data. Links are not followed.
fn remove_skeleton(workspace: &Path) {
    stage::remove(workspace);
    for group in folders_in(workspace) {
        for folder in folders_in(&group).iter().chain([&group]) {
            // It fails where something is left in it, and then the folder is needed.
            let _ = std::fs::remove_dir(folder);
        }
    }
    let mark = workspace.join(ERASE);
    let mut left = std::fs::read_dir(workspace).into_iter().flatten().flatten();
    if left.all(|entry| entry.path() == mark) {
        let _ = std::fs::remove_file(mark);
    }
    let _ = std::fs::remove_dir(workspace);
}

fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    folders.map(|e| e.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::page::{WorkspaceClaim, held_by_others};
    use super::*;

    fn claim(workspace: &str, used: u64) -> WorkspaceClaim {
        WorkspaceClaim {
            workspace: workspace.into(),
            pid: i32::MAX,
            start: 1,
            limit: 100,
            used,
            reserved: 0,
            cached: 0,
            waiting: None,
        }
    }

    #[test]
    fn what_is_vacated_leaves_nothing_and_others_stay() {
        let tier = tempfile::tempdir().unwrap();
        let root = tier.path();
        std::fs::create_dir_all(root.join("a/node0/parts/k")).unwrap();
        std::fs::create_dir_all(root.join("a/node0/parts/folders/only")).unwrap();
        std::fs::create_dir_all(root.join("a/node0/work")).unwrap();
        std::fs::create_dir_all(root.join("a/at/x")).unwrap();
        std::fs::create_dir_all(root.join("b/node0/parts")).unwrap();
        std::fs::write(root.join("a/node0/parts/k/file"), "1").unwrap();
        let page = TierClaims {
            entries: vec![claim("a", 50), claim("b", 7)],
        };
        page.write(root).unwrap();
        vacate(root, "a", 20).unwrap();
        assert_eq!(held_by_others(root, "b"), 30, "a file is left");
        assert!(root.join("a/node0/parts/k/file").exists() && !root.join("a/at").exists());
        assert!(!root.join("a/node0/work").exists());
        std::fs::remove_dir_all(root.join("a/node0/parts/k")).unwrap();
        vacate(root, "a", 5).unwrap();
        let kept = root.join("a/node0/parts/folders");
        assert!(kept.join("only").is_dir(), "an empty folder is data");
        std::fs::remove_dir_all(kept).unwrap();
        vacate(root, "a", 5).unwrap();
        assert!(!root.join("a").exists() && root.join("b/node0/parts").exists());
        assert_eq!(TierClaims::read(root).unwrap().entries, [claim("b", 7)]);
        vacate(root, "b", 7).unwrap();
        assert!(!root.join("ledger").exists());
        vacate(&root.join("missing"), "b", 0).unwrap();
    }
}
