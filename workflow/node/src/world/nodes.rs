//! The requests of `tarn run` to a local world before and after it is driven.

use super::Local;
use crate::staging::inventory::{self, Stays};
use crate::staging::pool::DataJob;
use crate::storage::drained::{is_there, remove_drained};
use crate::storage::ledger::vacate;
use crate::storage::run_facts::RunFacts;
use crate::storage::store::{io_failure, make_folder, warn};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use tarn_ports::CapabilityError;
use tarn_ports::{Mover, MoverError, NodeWorld, Progress, WorldError};
use tarn_types::cluster::{Node, Tier};
use tarn_types::event::{PriorInstance, RunError};
use tarn_types::id::TierRef;
use tarn_types::layout::{ERASE, TierDir};
use tarn_types::nodes::{Cleaned, Staying};
use tarn_types::part::{PartInfo, PartRef, Place, StoreKey, Transfer};

impl NodeWorld for Local {
    fn multi_node(&self) -> Result<(), CapabilityError> {
        self.shared.multi_node.clone()
    }

    fn one_namespace(&self) -> Result<(), CapabilityError> {
        self.shared.one_namespace.clone()
    }

    fn images(&self) -> Result<(), CapabilityError> {
        match &self.shared.imaging {
            Some(Err(why)) => Err(why.clone()),
            _ => Ok(()),
        }
    }

    fn progress(&self) -> Progress {
        self.shared.progress.clone()
    }

    fn pace(&mut self, own: u32, all: u32) {
        self.shared.mover.pace(own, all);
    }

    fn offer(
        &mut self,
        prior: Vec<PriorInstance>,
        there: &BTreeSet<(StoreKey, Place)>,
        protected: &BTreeSet<PathBuf>,
    ) -> Result<(), WorldError> {
        let shared = &self.shared;
        shared.reusable.store(!prior.is_empty(), Ordering::Relaxed);
        self.prior = prior;
        for (key, place) in there {
            if let Place::Node(tier_ref) = place
                && shared.own.has(tier_ref.node)
                && let Ok(path) = shared.replica(*tier_ref, key)
            {
                let kept = protected.contains(&path);
                shared.ledgers.leave(*tier_ref, key.clone(), path, kept);
            }
        }
        Ok(())
    }

    fn know(&mut self, parts: Vec<(PartRef, PartInfo)>) -> Result<(), WorldError> {
        for (part, info) in parts {
            if let (Some(hash), Ok(mut hashes)) = (info.hash, self.shared.hashes.lock()) {
                hashes.insert(info.key.clone(), hash);
            }
            self.shared.know(part, info.class, info.key);
        }
        Ok(())
    }

    fn gone(&mut self, part: PartRef, key: &StoreKey) {
        if let Err(RunError { message, .. }) = self.shared.forget_gone(part.data, key) {
            warn(&message);
        }
    }

    fn learned(&mut self, transfer: &Transfer, began: i64) {
        // Every file is looked at, on a store that may be slow: not on this thread, which looks after all else.
        if let Some(pool) = &self.pool {
            pool.add(DataJob::Learned(Box::new(transfer.clone()), began));
        }
    }

    fn inventory(
        &mut self,
        wanted: &[(PartRef, StoreKey, Place)],
    ) -> Result<Vec<(PartRef, Place)>, WorldError> {
        inventory::inventory(&self.shared, wanted).map_err(|f| WorldError(f.message))
    }

    fn clean(&mut self, staying: &Staying) -> Result<Cleaned, WorldError> {
        if self.shared.workflow.erase {
            mark(&self.shared).map_err(|f| WorldError(f.message))?;
        }
        let offered = self.prior.iter().flat_map(|p| {
            let info = |&(o, part, _): &(u32, u32, Place)| {
                let output = p.outputs.get(o as usize)?;
                Some(output.parts.get(part as usize)?.0.key.clone())
            };
            p.held.iter().filter_map(info)
        });
        let offered = staying.resumed.then(|| offered.collect());
        let outputs = self.prior.iter().flat_map(|p| &p.outputs);
        let prior = outputs.flat_map(|o| &o.parts);
        let stays = Stays {
            staying,
            known: prior.map(|(info, _)| info.key.clone()).collect(),
            offered,
        };
        self.protected = inventory::protected_places(&staying.protected);
        self.pinned.clone_from(&staying.pinned);
        // Space that is kept from the engine is reported at the first opportunity.
        self.looked = None;
        Ok(inventory::clean(&self.shared, stays))
    }

    fn exist(&mut self, folders: &[PathBuf]) -> Result<Vec<Option<bool>>, WorldError> {
        let shared = &self.shared;
        let there = |f: &PathBuf| is_there(f, &shared.workspace, &*shared.mover).ok();
        Ok(folders.iter().map(there).collect())
    }

    fn remove(&mut self, folders: &[PathBuf]) -> Result<Vec<String>, WorldError> {
        let shared = &self.shared;
        let tier_refs = shared.own_tiers().map(|(tier_ref, node, tier)| {
            let dir = TierDir::new(&tier.root, &shared.workspace, &node.name);
            (dir.parts(), tier_ref)
        });
        let tier_refs: BTreeMap<PathBuf, TierRef> = tier_refs.collect();
        let mut left = Vec::new();
        for folder in folders {
            let Some((parent, name)) = folder.parent().zip(folder.file_name()) else {
                continue;
            };
            let removed = match tier_refs.get(parent) {
                Some(tier_ref) => shared
                    .mover
                    .remove(folder)
                    .map_err(RunError::from)
                    .map(|()| {
                        let key = StoreKey(name.to_string_lossy().into_owned());
                        shared.ledgers.left(*tier_ref, &key);
                    }),
                None => remove_drained(folder, &shared.workspace, &*shared.mover),
            };
            left.extend(removed.err().map(|f| f.message));
        }
        Ok(left)
    }

    fn leave(self: Box<Self>) -> Vec<String> {
        let shared = self.shared.clone();
        // Threads and claims go first.
        drop(self);
        let tiers = shared.own_tiers().map(|(_, node, tier)| (node, tier));
        leave_tiers(tiers, &shared.workspace, &*shared.mover)
    }
}

/// Has all that is removed of this workspace from the own tiers overwritten, by whoever removes it.
fn mark(shared: &RunFacts) -> Result<(), RunError> {
    for (_, _, tier) in shared.own_tiers() {
        let folder = tier.root.join(&shared.workspace);
        make_folder(&folder)?;
        let mark = folder.join(ERASE);
        std::fs::write(&mark, b"").map_err(|e| io_failure("write", &mark, &e))?;
    }
    Ok(())
}

/// Removes half-copied replicas, empty folders and claims of a workspace that no run is active of from these tiers. Returns one
/// sentence for each failure.
pub fn leave_tiers<'a>(
    tiers: impl Iterator<Item = (&'a Node, &'a Tier)>,
    workspace: &str,
    mover: &dyn Mover,
) -> Vec<String> {
    let mut left = Vec::new();
    let mut roots = BTreeSet::new();
    for (node, tier) in tiers {
        let dir = TierDir::new(&tier.root, workspace, &node.name);
        left.extend(trouble(mover.remove(&dir.incoming())));
        roots.insert(&tier.root);
    }
    for root in roots {
        if let Err(e) = vacate(root, workspace, 0) {
            left.push(format!(
                "cannot update the ledger of the tier at {}: {e}",
                root.display()
            ));
        }
    }
    left
}

fn trouble(removed: Result<(), MoverError>) -> Option<String> {
    removed.err().map(|MoverError { failure: f, .. }| f.message)
}
