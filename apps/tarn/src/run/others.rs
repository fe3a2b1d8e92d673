//! Datasets of other workflows of the state folder (`of`): a run reads them where they are stored, without a copy.
//!
//! As long as it is active it has a share of the lock of each workflow that owns one, so nobody removes or replaces them meanwhile.

use crate::clock::wall;
use crate::data::held::{DatasetSelector, LockedVersion, NOT_KEPT, StoredPart, uncache};
use crate::error::{CliError, CliResult, ExitWith};
use crate::print::message;
use crate::state::{self, open_catalogue};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tarn_journal::{ReplicaRow, RunLock, StoredAt};
use tarn_ports::NodeWorld;
use tarn_types::cluster::{Cluster, Tier};
use tarn_types::codes::Exit;
use tarn_types::event::{PriorData, PriorPart, Start};
use tarn_types::hash::Hash;
use tarn_types::id::{DataId, NodeId, TierId, TierRef};
use tarn_types::layout::StateDir;
use tarn_types::manifest::Manifest;
use tarn_types::part::{PartClass, PartInfo, PartRef, Place, StoreKey};
use tarn_types::workflow::{Dataset, VersionPartitioning, Workflow};

/// Those that a run reads.
#[derive(Default)]
pub(crate) struct PriorDatasets {
    pub(crate) data: Vec<PriorData>,
    manifests: Vec<(StoreKey, Manifest)>,
    _locks: Vec<RunLock>,
}

impl PriorDatasets {
    /// Finds all that a workflow names.
    pub(crate) fn find(
        state: &StateDir,
        w: &Workflow,
        cluster: &Cluster,
        in_allocation: bool,
    ) -> CliResult<Self> {
        let mut others = Self::default();
        for (id, dataset) in (0u32..).map(DataId).zip(&w.data) {
            let Some(named) = &dataset.of else { continue };
            let refused = |exit, why: String| {
                let text = format!("dataset `{}` (`of = \"{named}\"`): {why}", dataset.name);
                CliError::new(exit, text)
            };
            if in_allocation {
                let why = "a run inside an allocation does not read data of other workflows; copy it out (`tarn data get`) and name the \
                           copy as `source`";
                return Err(refused(Exit::NoSpace, why.into()));
            }
            if named.workflow.as_ref() == Some(&w.name) {
                let why = "it is this workflow's own; name it without `of`";
                return Err(refused(Exit::InvalidWorkflow, why.into()));
            }
            let which = DatasetSelector {
                workflow: named.workflow.as_deref(),
                but: Some(&w.name),
                dataset: &named.dataset,
            };
            let in_full = |e: CliError| refused(e.exit, e.to_string());
            let held = LockedVersion::of(state.clone(), &which, true).map_err(in_full)?;
            let parts = held.stored().map_err(in_full)?;
            check_parts(dataset, &parts).map_err(in_full)?;
            let mut prior = PriorData {
                data: id,
                workflow: held.workflow().to_owned(),
                workspace: state::workspace(held.workflow(), state),
                dataset: named.dataset.clone(),
                parts: Vec::with_capacity(parts.len()),
                set_aside: Vec::new(),
            };
            uncache(parts.iter().flat_map(|p| &p.rows)).map_err(in_full)?;
            for (seq, part) in (0u32..).zip(parts) {
                let at = places(cluster, &part.rows).map_err(in_full)?;
                let key = key(&dataset.name, &part, seq);
                let info = PartInfo {
                    seq,
                    hash: part.manifest.hash(),
                    key: key.clone(),
                    ..part.info
                };
                prior.parts.push(PriorPart { info, at });
                others.manifests.push((key, part.manifest));
            }
            others.data.push(prior);
            others._locks.push(held.into_lock());
        }
        Ok(others)
    }

    /// Those of a run that is resumed: they are kept still, and nobody has changed them since, or it cannot be.
    pub(crate) fn again(state: &StateDir, begun: &Start) -> CliResult<Self> {
        let names: BTreeSet<&str> = begun.prior_data.iter().map(|p| &*p.workflow).collect();
        let lock = |name: &str| RunLock::share(&state.lock(name)).exit(Exit::Busy);
        let locks = names.into_iter().map(lock).collect::<CliResult<_>>()?;
        for prior in &begun.prior_data {
            check_kept(state, prior)?;
        }
        Ok(Self {
            data: begun.prior_data.clone(),
            manifests: Vec::new(),
            _locks: locks,
        })
    }

    /// Has the world look at every replica, as at those that earlier runs of its workflow have kept. Returns what is whole.
    pub(crate) fn whole(
        &self,
        state: &StateDir,
        workspace: &str,
        world: &mut dyn NodeWorld,
    ) -> CliResult<Vec<PriorData>> {
        let files: Vec<_> = self
            .manifests
            .iter()
            .map(|(key, manifest)| (state.manifest(workspace, key), manifest))
            .collect();
        let files = files.iter().map(|(path, m)| (path.as_path(), *m));
        tarn_node::write_manifests(files, true)
            .map_err(|failure| CliError::new(Exit::State, failure.message))?;
        let parts = || self.data.iter().flat_map(PriorData::parts);
        let known = parts().map(|(name, part)| (name, part.info.clone()));
        world.know(known.collect()).exit(Exit::State)?;
        let wanted = parts().flat_map(|(name, part)| {
            let place =
                move |(tier_ref, _): &_| (name, part.info.key.clone(), Place::Node(*tier_ref));
            part.at.iter().map(place)
        });
        let wanted: Vec<_> = wanted.collect();
        let found = world.inventory(&wanted).exit(Exit::State)?;
        let found: BTreeSet<(PartRef, Place)> = found.into_iter().collect();
        let mut whole = self.data.clone();
        for (prior, known) in whole.iter_mut().zip(&self.data) {
            for ((name, _), part) in known.parts().zip(&mut prior.parts) {
                let first = part.at.first().map(|(_, path)| path.clone());
                part.at.retain(|(tier_ref, path)| {
                    let is_whole = found.contains(&(name, Place::Node(*tier_ref)));
                    if !is_whole {
                        message!(
                            "warning: {} was changed or damaged and is not used",
                            path.display()
                        );
                    }
                    is_whole
                });
                if part.at.is_empty() {
                    return Err(damaged(known, first.as_deref()));
                }
            }
        }
        Ok(whole)
    }
}

/// Refuses to continue with data that its workflow does not keep any more. A replica that is not listed was removed or replaced,
/// which is reported when it is looked at.
fn check_kept(state: &StateDir, prior: &PriorData) -> CliResult<()> {
    let catalogue = open_catalogue(state)?;
    let rows = catalogue.replicas(&prior.workflow, Some(&prior.dataset));
    let rows = rows.exit(Exit::State)?;
    for part in &prior.parts {
        let is_read = |r: &&ReplicaRow| part.at.iter().any(|(_, path)| *path == r.path());
        let listed: Vec<&ReplicaRow> = rows.iter().filter(is_read).collect();
        if !listed.is_empty() && listed.iter().all(|r| !r.is_kept(wall())) {
            let text = format!(
                "`{}` of workflow {} {NOT_KEPT}",
                prior.dataset, prior.workflow
            );
            return Err(CliError::new(Exit::NotFound, text));
        }
        uncache(listed.into_iter().filter(|r| r.is_kept(wall())))?;
    }
    Ok(())
}

/// The space that they take is none that the run can have, whatever else changes on the tiers meanwhile. How much it was is noted: see
/// [`full_tiers`].
pub(crate) fn set_aside(cluster: &mut Cluster, data: &mut [PriorData]) {
    let mut done: BTreeSet<(TierRef, String)> = BTreeSet::new();
    for prior in data {
        let tier_refs = prior.parts.iter().flat_map(|part| &part.at);
        let tier_refs: BTreeSet<TierRef> = tier_refs.map(|(tier_ref, _)| *tier_ref).collect();
        for tier_ref in tier_refs {
            let is_new = done.insert((tier_ref, prior.workspace.clone()));
            if let Some(tier) = tier_mut(cluster, tier_ref).filter(|_| is_new) {
                let theirs = tarn_node::held_of(&tier.root, &prior.workspace);
                let theirs = theirs.min(tier.capacity);
                // Not below zero: it is at most the capacity.
                tier.capacity -= theirs;
                prior.set_aside.push((tier_ref, theirs));
            }
        }
    }
}

/// The cluster of a run with the space that was set aside: a world itself counts the space of others.
pub(crate) fn full_tiers(begun: &Start) -> Cluster {
    let mut cluster = begun.cluster.clone();
    let of_others = begun.prior_data.iter().flat_map(|prior| &prior.set_aside);
    let kept = begun.set_aside.iter().flatten();
    for (tier_ref, bytes) in of_others.chain(kept) {
        if let Some(tier) = tier_mut(&mut cluster, *tier_ref) {
            // It was taken off this capacity; a damaged log may say anything.
            tier.capacity = tier.capacity.saturating_add(*bytes);
        }
    }
    cluster
}

fn tier_mut(cluster: &mut Cluster, tier_ref: TierRef) -> Option<&mut Tier> {
    let node = cluster.nodes.get_mut(tier_ref.node.at())?;
    node.tiers.get_mut(tier_ref.tier.at())
}

/// All replicas, as the run names them.
pub(crate) fn replicas(data: &[PriorData]) -> impl Iterator<Item = (PartRef, Place)> {
    let parts = data.iter().flat_map(PriorData::parts);
    parts.flat_map(|(name, part)| {
        let place = move |(tier_ref, _): &_| (name, Place::Node(*tier_ref));
        part.at.iter().map(place)
    })
}

fn damaged(prior: &PriorData, at: Option<&Path>) -> CliError {
    let text = format!(
        "`{0}` of workflow {1} is damaged or was changed since: no whole replica is left of {2}; nothing was started. \
         `tarn data verify {0}` shows more; have that workflow make it again (or `tarn data put` it again), then `tarn run`",
        prior.dataset,
        prior.workflow,
        at.unwrap_or(Path::new("it")).display()
    );
    CliError::new(Exit::State, text)
}

/// Refuses to select entries of a dataset that is stored as a whole.
fn check_parts(dataset: &Dataset, parts: &[StoredPart]) -> CliResult<()> {
    let is_entry = |p: &StoredPart| matches!(p.info.class, PartClass::Entry(_));
    match dataset.partition {
        VersionPartitioning::Whole => Ok(()),
        _ if parts.iter().all(is_entry) => Ok(()),
        _ => Err(CliError::new(
            Exit::InvalidWorkflow,
            "a step selects entries of it, and it is stored as a whole; name all of it in `in`, and select within the step",
        )),
    }
}

/// A part's key in this run: stored parts of two workflows never have the same one. The catalogue lists no dataset by such keys.
fn key(dataset: &str, part: &StoredPart, seq: u32) -> StoreKey {
    let workspace = part.rows.first().map_or("", |r| &r.workspace);
    let theirs = Hash::of(format!("{workspace}/{}", part.info.key.0).as_bytes());
    StoreKey(format!("{dataset}.of.{}.{seq}", theirs.short()))
}

/// The places of replicas by the tiers of this run: on one machine, any node that has the tier's folder can read it.
fn places(cluster: &Cluster, rows: &[ReplicaRow]) -> CliResult<Vec<(TierRef, PathBuf)>> {
    let mut all: Vec<(TierRef, PathBuf)> = Vec::new();
    for row in rows {
        let StoredAt::Node {
            name,
            root,
            machine: false,
            ..
        } = &row.at
        else {
            continue;
        };
        let real = root.canonicalize();
        let is_root = |other: &Path| {
            other == root || matches!((&real, other.canonicalize()), (Ok(a), Ok(b)) if *a == b)
        };
        let tier_refs = (0u32..).map(NodeId).zip(&cluster.nodes);
        let tier_refs = tier_refs.flat_map(|(node, n)| {
            let tiers = (0u32..).map(TierId).zip(&n.tiers);
            tiers.map(move |(tier, t)| (n.name == *name, t, TierRef { node, tier }))
        });
        let with_root: Vec<_> = tier_refs.filter(|(_, t, _)| is_root(&t.root)).collect();
        let same = with_root.iter().find(|(is_same, ..)| *is_same);
        if let Some((_, _, tier_ref)) = same.or(with_root.first())
            && all.iter().all(|(other, _)| other != tier_ref)
        {
            all.push((*tier_ref, row.path()));
        }
    }
    match (all.is_empty(), rows.first()) {
        (true, Some(row)) => Err(CliError::new(
            Exit::NoSpace,
            format!(
                "it is stored at {}, which is on no tier of this run; add that tier (`--tier NAME=FOLDER:SIZE`)",
                row.path().display()
            ),
        )),
        _ => Ok(all),
    }
}
