//! Removes what dead runs have left of a workspace on tiers, found without knowing anything of those runs but where the tiers were.

use crate::remote_tiers::exported::{self, Idle};
use crate::staging::inventory::{HELPER_NOTE, end_leftovers, is_protected, protected_places};
use crate::storage::checkpoint_folders;
use crate::storage::drained::{self, remove_drained};
use crate::storage::ledger::vacate;
use crate::storage::stage;
use crate::storage::store::entries;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tarn_ports::{Mover, MoverError};
use tarn_types::event::RunError;
use tarn_types::layout::TierDir;
use tarn_types::nodes::Swept;
use tarn_types::object::is_object;

struct Sweep<'a> {
    /// As they are called where no link leads to them: two roots may be one folder.
    protected: BTreeSet<PathBuf>,
    mover: &'a dyn Mover,
    /// The folder in which checkpoints are staged.
    memory: PathBuf,
    swept: Swept,
}

/// Removes from the tiers at these roots what is there of a workspace, but for the `protected` folders: replicas, half-copied
/// ones, what steps have left, and the checkpoints of whole runs, from memory too. Makes no folder and needs no space. Only for who holds the
/// workspace's run lock.
pub fn sweep(
    workspace: &str,
    roots: &BTreeSet<PathBuf>,
    protected: &BTreeSet<PathBuf>,
    mover: &dyn Mover,
) -> Swept {
    let exports = roots
        .iter()
        .flat_map(|root| exported::find_idle(root, Some(workspace)));
    let exports: Vec<Idle> = exports.collect();
    let bricks: Vec<PathBuf> = exports.iter().map(Idle::brick).collect();
    // The node that attached it knew what is there by another path with the same end: workspace, node, `parts`, key.
    let end = |p: &PathBuf| {
        p.iter()
            .skip(p.iter().count().saturating_sub(4))
            .collect::<PathBuf>()
    };
    let there = bricks
        .iter()
        .flat_map(|b| protected.iter().map(|p| b.join(end(p))));
    let protected: BTreeSet<PathBuf> = protected.iter().cloned().chain(there).collect();
    let mut sweep = Sweep::new(&protected, checkpoint_folders::memory(workspace), mover);
    for root in roots.iter().chain(&bricks) {
        let mut freed = 0;
        for node in entries(&root.join(workspace)) {
            // The folder in which steps see their data is no node's; it goes with the rest.
            if node.file_name().is_some_and(|n| n != stage::NAME) {
                freed += sweep.node(&TierDir(node));
            }
        }
        if let Err(e) = vacate(root, workspace, freed) {
            let root = root.display();
            let problem = format!("cannot update the ledger of the tier at {root}: {e}");
            sweep.swept.trouble.push(problem);
        }
    }
    exports.into_iter().for_each(Idle::settle);
    sweep.staged();
    sweep.swept
}

/// Removes what was drained to this area of the external store, but for the `protected` folders. Only for who holds the
/// workspace's run lock.
pub fn sweep_drained(
    area: &Path,
    workspace: &str,
    protected: &BTreeSet<PathBuf>,
    mover: &dyn Mover,
) -> Swept {
    if is_object(area) {
        return sweep_objects(area, workspace, protected, mover);
    }
    let mut sweep = Sweep::new(protected, PathBuf::new(), mover);
    sweep.parts(area);
    // It goes when nothing is left in it.
    let _ = std::fs::remove_dir(area);
    sweep.swept
}

/// The same in an object store.
fn sweep_objects(
    area: &Path,
    workspace: &str,
    protected: &BTreeSet<PathBuf>,
    mover: &dyn Mover,
) -> Swept {
    let mut swept = Swept::default();
    let all = drained::entries(area, mover).unwrap_or_else(|RunError { message, .. }| {
        swept.trouble.push(message);
        // A part that cannot be listed may be there.
        let outside = protected.iter().filter(|p| is_object(p));
        outside.cloned().collect()
    });
    for part in all {
        if protected.contains(&part) {
            swept.left.push(part);
            continue;
        }
        match remove_drained(&part, workspace, mover) {
            Ok(()) => swept.removed.push(part),
            Err(RunError { message, .. }) => swept.trouble.push(message),
        }
    }
    swept
}

impl<'a> Sweep<'a> {
    fn new(protected: &BTreeSet<PathBuf>, memory: PathBuf, mover: &'a dyn Mover) -> Self {
        let there = protected.iter().filter(|p| p.exists());
        let swept = Swept {
            left: there.cloned().collect(),
            ..Swept::default()
        };
        Self {
            protected: protected_places(protected),
            mover,
            memory,
            swept,
        }
    }

    /// The bytes that were freed.
    fn node(&mut self, dir: &TierDir) -> u64 {
        for work in entries(&dir.work()) {
            end_leftovers(&work.join(HELPER_NOTE));
            self.remove(&work);
        }
        let mut freed = 0;
        for run in entries(&dir.checkpoints()) {
            if is_protected(&self.protected, &run) {
                continue;
            }
            let stored = self.mover.stored(&run).unwrap_or(0);
            freed += if self.remove(&run) { stored } else { 0 };
        }
        for half in entries(&dir.incoming()) {
            self.remove(&half);
        }
        freed + self.parts(&dir.parts())
    }

    /// Removes staged checkpoints from memory, also of runs whose tiers are not looked at.
    fn staged(&mut self) {
        let all = entries(&self.memory);
        let protected = |run: &PathBuf| is_protected(&self.protected, run);
        let (stay, go): (Vec<_>, Vec<_>) = all.into_iter().partition(protected);
        for run in &go {
            self.remove(run);
        }
        if stay.is_empty() && !go.is_empty() {
            // It goes when nothing is left in it.
            let _ = std::fs::remove_dir(&self.memory);
        }
    }

    fn parts(&mut self, folder: &Path) -> u64 {
        let mut freed = 0;
        for part in entries(folder) {
            if is_protected(&self.protected, &part) {
                continue;
            }
            let stored = self.mover.stored(&part).unwrap_or(0);
            if self.remove(&part) {
                freed += stored;
                self.swept.removed.push(part);
            }
        }
        freed
    }

    fn remove(&mut self, path: &Path) -> bool {
        match self.mover.remove(path) {
            Ok(()) => true,
            Err(MoverError { failure, .. }) => {
                self.swept.trouble.push(failure.message);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tarn_mover::Trees;

    #[test]
    fn what_is_staged_of_runs_that_are_over_goes() {
        let memory = tempfile::tempdir().unwrap();
        let (over, stays) = (memory.path().join("w-1"), memory.path().join("w-2"));
        for run in [&over, &stays] {
            fs::create_dir_all(run.join("s-0/tarn-phx-0")).unwrap();
        }
        let mover = Trees::new();
        let staged = |protected: &BTreeSet<PathBuf>| {
            let mut sweep = Sweep::new(protected, memory.path().to_path_buf(), &mover);
            sweep.staged();
            sweep.swept
        };
        let swept = staged(&[stays.clone()].into());
        assert!(
            swept.trouble.is_empty() && swept.left == [stays.clone()],
            "{swept:?}"
        );
        assert!(stays.join("s-0").exists() && !over.exists());
        staged(&BTreeSet::new());
        assert!(!memory.path().exists());
    }

    #[test]
    fn what_was_exported_goes_but_for_what_the_other_node_is_to_keep() {
        let tier = tempfile::tempdir().unwrap();
        let export = tier.path().join("lent/w-1/n2");
        let parts = export.join("brick/w-1/n2/parts");
        for key in ["gone", "kept"] {
            fs::create_dir_all(parts.join(key)).unwrap();
            fs::write(parts.join(key).join("file"), "x").unwrap();
        }
        let mover = Trees::new();
        let roots = BTreeSet::from([tier.path().to_path_buf()]);
        let kept = BTreeSet::from([PathBuf::from("/elsewhere/w-1/n2/parts/kept")]);
        sweep("w-2", &roots, &BTreeSet::new(), &mover);
        assert!(parts.join("gone").exists(), "another workspace's");
        let swept = sweep("w-1", &roots, &kept, &mover);
        assert!(swept.trouble.is_empty(), "{swept:?}");
        assert!(parts.join("kept/file").exists() && !parts.join("gone").exists());
        sweep("w-1", &roots, &BTreeSet::new(), &mover);
        assert!(!tier.path().join("lent").exists());
    }

    #[test]
    fn what_is_protected_stays_by_whatever_path_and_all_else_goes() {
        let here = tempfile::tempdir().unwrap();
        let (tier, link) = (here.path().join("tier"), here.path().join("link"));
        for folder in [
            "w/n1/parts/kept",
            "w/n1/parts/old",
            "w/n2/parts/old",
            "w/n1/checkpoints/w-1/s-0",
            "w/n1/checkpoints/w-2/s-0",
            "other/n1/parts/p",
        ] {
            fs::create_dir_all(tier.join(folder)).unwrap();
            fs::write(tier.join(folder).join("f"), "1234").unwrap();
        }
        for folder in ["w/n1/work/s.1", "w/n1/incoming/half", "w/at/data"] {
            fs::create_dir_all(tier.join(folder)).unwrap();
        }
        std::os::unix::fs::symlink(&tier, &link).unwrap();
        let kept = tier.join("w/n1/parts/kept");
        let run = tier.join("w/n1/checkpoints/w-2");
        let protected = [kept.clone(), run.clone(), tier.join("w/n1/parts/gone")].into();
        let missing = here.path().join("missing");
        let swept = sweep(
            "w",
            &[link.clone(), missing.clone()].into(),
            &protected,
            &Trees::new(),
        );
        assert_eq!(swept.left, [run.clone(), kept.clone()]);
        assert_eq!(
            swept.removed.iter().collect::<BTreeSet<_>>(),
            [&link.join("w/n1/parts/old"), &link.join("w/n2/parts/old")].into()
        );
        assert!(swept.trouble.is_empty(), "{swept:?}");
        assert!(kept.join("f").exists() && tier.join("other/n1/parts/p/f").exists());
        assert!(run.join("s-0/f").exists());
        for gone in [
            "w/n2",
            "w/at",
            "w/n1/checkpoints/w-1",
            "w/n1/work",
            "w/n1/incoming",
        ] {
            assert!(!tier.join(gone).exists(), "{gone}");
        }
        assert!(!missing.exists(), "nothing is made");
        sweep("w", &[tier.clone()].into(), &BTreeSet::new(), &Trees::new());
        assert!(!tier.join("w").exists());
    }
}
