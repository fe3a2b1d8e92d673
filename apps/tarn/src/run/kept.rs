//! Data of earlier runs on the tiers: data that a run finds, data that stays whatever it does, and data that is gone.

use crate::error::{CliResult, ExitWith};
use crate::print::message;
use std::collections::BTreeSet;
use std::path::PathBuf;
use tarn_journal::{Catalogue, ChangeKind, ReplicaChange, ReplicaRow, StoredAt};
use tarn_mover::Trees;
use tarn_ports::NodeWorld;
use tarn_types::codes::Exit;
use tarn_types::event::{PriorInstance, Start};
use tarn_types::id::{DataId, TierRef};
use tarn_types::layout::{TierDir, drained_part};
use tarn_types::nodes::{Cleaned, Staying, Swept};
use tarn_types::part::{PartRef, Place, StoreKey};
use tarn_types::units::Bytes;

/// The catalogue's replicas of a workflow, except those in its `dest`s, which are the user's.
pub(super) struct LeftReplicas {
    rows: Vec<ReplicaRow>,
    /// Those on machines that this run does not have, or has lost: nothing is known of them, so they count as they are listed.
    elsewhere: Vec<ReplicaRow>,
    wall: u64,
}

impl LeftReplicas {
    pub(super) fn of(catalogue: &Catalogue, start: &Start) -> CliResult<Self> {
        let mut rows = catalogue
            .replicas(&start.workflow.name, None)
            .exit(Exit::State)?;
        rows.retain(|r| r.workspace == start.workspace && !matches!(r.at, StoredAt::External(_)));
        let wall = crate::clock::wall();
        let (rows, elsewhere) = rows.into_iter().partition(|r| is_here(start, &r.at));
        Ok(Self {
            rows,
            elsewhere,
            wall,
        })
    }

    /// Those to be kept that this run can look at.
    fn kept(&self) -> impl Iterator<Item = &ReplicaRow> {
        self.rows.iter().filter(|r| r.is_kept(self.wall))
    }

    /// All rows: replicas elsewhere may be visible here too, if nodes share the folder of a tier, and a lost node may come back.
    fn all(&self) -> impl Iterator<Item = &ReplicaRow> {
        self.rows.iter().chain(&self.elsewhere)
    }

    /// The folders of replicas that are to be kept.
    pub(super) fn protected(&self) -> BTreeSet<PathBuf> {
        let kept = self.all().filter(|r| r.is_kept(self.wall));
        kept.map(ReplicaRow::path).collect()
    }

    /// The parts that the user has pinned. Data in a `dest` is the user's in any case.
    pub(super) fn pinned(&self) -> BTreeSet<StoreKey> {
        let is_ours = |r: &&ReplicaRow| !matches!(r.at, StoredAt::External(_));
        let pinned = self.all().filter(|r| r.is_pinned()).filter(is_ours);
        pinned.map(|r| r.key.clone()).collect()
    }

    /// The folders of replicas that are to be kept or cached, and of those with which this run, if any, can resume.
    pub(super) fn wanted(&self, resumable: Option<&str>) -> BTreeSet<PathBuf> {
        let waits = |r: &ReplicaRow| !r.kept && resumable == Some(&r.run);
        let stays = |r: &ReplicaRow| r.is_kept(self.wall) || r.is_cached(self.wall);
        let wanted = self.all().filter(|r| waits(r) || stays(r));
        wanted.map(ReplicaRow::path).collect()
    }

    /// How many of these folders, by what the catalogue says, are to be kept, and how many only wait for a run that continues.
    pub(super) fn staying(&self, folders: &[PathBuf]) -> (usize, usize) {
        let folders: BTreeSet<&PathBuf> = folders.iter().collect();
        let there = self.all().filter(|r| folders.contains(&r.path()));
        let stays = |r: &&ReplicaRow| r.kept || r.is_cached(self.wall);
        let (kept, others): (Vec<_>, Vec<_>) = there.partition(stays);
        (kept.len(), others.len())
    }

    /// Takes two kinds of replicas off the list: those that were swept away, and those that nobody keeps and that were not found
    /// where somebody has looked (on these nodes, and in these places of this machine).
    pub(super) fn swept(
        &self,
        catalogue: &mut Catalogue,
        nodes: &BTreeSet<&str>,
        here: &BTreeSet<PathBuf>,
        swept: &Swept,
    ) -> CliResult<()> {
        let removed: BTreeSet<&PathBuf> = swept.removed.iter().collect();
        let there: BTreeSet<&PathBuf> = swept.left.iter().collect();
        let seen = |at: &StoredAt| match at {
            StoredAt::Node {
                name,
                machine: true,
                ..
            } => nodes.contains(name.as_str()),
            StoredAt::Node { root, .. } => here.contains(root),
            StoredAt::Drained(_) => true,
            StoredAt::External(_) => false,
        };
        let gone = self.all().filter(|r| {
            let path = r.path();
            seen(&r.at)
                && (removed.contains(&path) || !r.is_kept(self.wall) && !there.contains(&path))
        });
        forget(catalogue, gone)
    }

    /// Those of the rows that are there. Rows that nobody can check count as elsewhere from now on.
    fn look(&mut self, world: &mut dyn NodeWorld) -> CliResult<BTreeSet<PathBuf>> {
        let paths: Vec<PathBuf> = self.rows.iter().map(ReplicaRow::path).collect();
        let answers = world.exist(&paths).exit(Exit::State)?;
        let mut there = BTreeSet::new();
        let mut seen = Vec::with_capacity(paths.len());
        let rows = std::mem::take(&mut self.rows).into_iter();
        for ((row, path), answer) in rows.zip(paths).zip(answers) {
            match answer {
                None => self.elsewhere.push(row),
                Some(is) => {
                    seen.push(row);
                    if is {
                        there.insert(path);
                    }
                }
            }
        }
        self.rows = seen;
        Ok(there)
    }

    /// Parts that are to be kept and of which no whole replica is left.
    fn lost(&self, whole: &dyn Fn(&PathBuf) -> bool) -> BTreeSet<StoreKey> {
        let there = self.kept().filter(|r| whole(&r.path()));
        let there: BTreeSet<_> = there.chain(&self.elsewhere).map(|r| &r.key).collect();
        let gone = self.kept().map(|r| &r.key).filter(|k| !there.contains(k));
        gone.cloned().collect()
    }

    fn print_warnings(&self, lost: &BTreeSet<StoreKey>, bad: &BTreeSet<PathBuf>) {
        for row in self.kept() {
            let (name, path) = (&row.dataset, row.path());
            if bad.contains(&path) {
                message!(
                    "warning: {} was changed or damaged and is not used; `tarn data rm {name}` removes what is kept of `{name}`",
                    path.display()
                );
            } else if lost.contains(&row.key) {
                message!(
                    "warning: `{name}` was to be kept, but {} is gone; its step runs again if it is still part of the workflow",
                    path.display()
                );
            }
        }
    }
}

/// Whether a run can look at what is stored there. On one machine it can look at whatever earlier runs on it have left, however they
/// divided it; in an allocation at what is on the tiers of its nodes.
fn is_here(start: &Start, at: &StoredAt) -> bool {
    match at {
        StoredAt::Drained(_) | StoredAt::External(_) => true,
        StoredAt::Node { machine: false, .. } => start.allocation.is_none(),
        StoredAt::Node { name, root, .. } => {
            let mut nodes = start.cluster.nodes.iter().filter(|n| n.name == *name);
            start.allocation.is_some() && nodes.any(|n| n.tiers.iter().any(|t| t.root == *root))
        }
    }
}

/// Of the data of earlier runs, only data that is really there counts; lost data that is to be kept is made again.
/// Everything else in the workspace goes.
pub(super) fn keep_what_is_there(
    start: &mut Start,
    world: &mut dyn NodeWorld,
    catalogue: &mut Catalogue,
) -> CliResult<()> {
    let wanted = held_replicas(&start.prior);
    let found: BTreeSet<_> = world
        .inventory(&wanted)
        .exit(Exit::State)?
        .into_iter()
        .collect();
    let is_there = |name: &PartRef, place: &Place| found.contains(&(*name, place.clone()));
    let bad = wanted.iter().filter(|(n, _, p)| !is_there(n, p));
    let bad = bad.filter_map(|(_, key, place)| path(start, key, place));
    let bad: BTreeSet<PathBuf> = bad.collect();
    for (instance, prior) in (0u32..).zip(&mut start.prior) {
        prior
            .held
            .retain(|(output, part, place)| is_there(&name(instance, *output, *part), place));
    }
    let keep = wanted
        .iter()
        .filter(|(n, _, p)| is_there(n, p))
        .map(|(_, key, place)| (key.clone(), place.clone()))
        .collect();
    let mut left = LeftReplicas::of(catalogue, start)?;
    let there = left.look(world)?;
    let lost = left.lost(&|path| there.contains(path) && !bad.contains(path));
    left.print_warnings(&lost, &bad.intersection(&there).cloned().collect());
    start.prior.retain(|prior| {
        let mut parts = prior.outputs.iter().flat_map(|o| &o.parts);
        !parts.any(|(info, _)| lost.contains(&info.key))
    });
    let staying = Staying {
        keep,
        protected: left.protected(),
        pinned: left.pinned(),
        ..Staying::default()
    };
    world
        .offer(start.prior.clone(), &staying.keep, &staying.protected)
        .exit(Exit::State)?;
    let cleaned = tidy(world, catalogue, &mut left, &staying)?;
    set_aside(start, &cleaned);
    Ok(())
}

/// Stands for a position in `prior`: nothing is known of this run's parts yet.
fn name(instance: u32, output: u32, part: u32) -> PartRef {
    PartRef {
        data: DataId(instance),
        version: output,
        origin: part,
        seq: 0,
    }
}

fn held_replicas(prior: &[PriorInstance]) -> Vec<(PartRef, StoreKey, Place)> {
    let mut all = Vec::new();
    for (instance, prior) in (0u32..).zip(prior) {
        for (output, part, place) in &prior.held {
            let output_made = prior.outputs.get(*output as usize);
            if let Some((info, _)) = output_made.and_then(|o| o.parts.get(*part as usize)) {
                let name = name(instance, *output, *part);
                all.push((name, info.key.clone(), place.clone()));
            }
        }
    }
    all
}

fn path(start: &Start, key: &StoreKey, place: &Place) -> Option<PathBuf> {
    match place {
        Place::Node(TierRef { node, tier }) => {
            let node = start.cluster.nodes.get(node.at())?;
            let root = &node.tiers.get(tier.at())?.root;
            Some(TierDir::new(root, &start.workspace, &node.name).part(key))
        }
        Place::Drained => {
            let external = start.workflow.external.as_deref()?;
            Some(drained_part(external, &start.workspace, key))
        }
        Place::External(_) | Place::Source => None,
    }
}

/// The space that kept data takes is not this run's. It is noted how much that is: see [`aside_again`].
fn set_aside(start: &mut Start, cleaned: &Cleaned) {
    start.set_aside(&aside(cleaned));
    for (tier_ref, bytes) in start.set_aside.iter().flatten() {
        let Some(node) = start.cluster.nodes.get(tier_ref.node.at()) else {
            continue;
        };
        if let Some(tier) = node.tiers.get(tier_ref.tier.at()) {
            message!(
                "{} of {}/{} hold kept data, {} are left for this run; `tarn data ls` shows it",
                Bytes(*bytes),
                node.name,
                tier.name,
                Bytes(tier.capacity)
            );
        }
    }
}

/// The same when a run is resumed: space that was released since is its own again. None of one that an earlier version has begun.
pub(super) fn aside_again(begun: &mut Start, cleaned: &Cleaned) -> Option<Vec<(TierRef, u64)>> {
    begun.set_aside.as_ref()?;
    let now = aside(cleaned);
    begun.set_aside(&now);
    Some(now)
}

fn aside(cleaned: &Cleaned) -> Vec<(TierRef, u64)> {
    let all = cleaned.aside.iter().filter(|(_, bytes)| **bytes > 0);
    all.map(|(tier_ref, bytes)| (*tier_ref, *bytes)).collect()
}

/// Removes from the workflow's folders on the tiers all that no run knows and nobody keeps, and records what
/// is gone.
pub(super) fn tidy(
    world: &mut dyn NodeWorld,
    catalogue: &mut Catalogue,
    left: &mut LeftReplicas,
    staying: &Staying,
) -> CliResult<Cleaned> {
    let cleaned = world.clean(staying).exit(Exit::State)?;
    for problem in &cleaned.trouble {
        message!("warning: {problem}");
    }
    let removed: BTreeSet<_> = cleaned.removed.iter().collect();
    let there = left.look(world)?;
    let gone = |r: &&ReplicaRow| {
        let path = r.path();
        removed.contains(&path) || (!r.is_kept(left.wall) && !there.contains(&path))
    };
    forget(catalogue, left.rows.iter().filter(gone))?;
    Ok(cleaned)
}

/// After a run: replicas that were to be kept, are gone, and were made again by it are no longer listed.
pub(super) fn replaced(
    catalogue: &mut Catalogue,
    start: &Start,
    world: &mut dyn NodeWorld,
) -> CliResult<()> {
    let mut left = LeftReplicas::of(catalogue, start)?;
    let there = left.look(world)?;
    let is_there = |r: &&ReplicaRow| there.contains(&r.path());
    let made = left.rows.iter().filter(|r| r.run == start.run);
    let made: BTreeSet<_> = made
        .filter(is_there)
        .map(|r| (&r.dataset, r.version))
        .collect();
    let gone = left.kept().filter(|r| !is_there(r));
    forget(
        catalogue,
        gone.filter(|r| made.contains(&(&r.dataset, r.version))),
    )
}

/// After a run that has ended well nothing is left to resume: it removes the data that earlier, failed runs left.
pub(super) fn leftovers(
    catalogue: &mut Catalogue,
    start: &Start,
    world: &mut dyn NodeWorld,
) -> CliResult<()> {
    let mut left = LeftReplicas::of(catalogue, start)?;
    // Data that this run has cached stays, and cached data of earlier runs that it has not used goes.
    let cached = |r: &ReplicaRow| r.run == start.run && r.is_cached(left.wall);
    left.rows.retain(|r| !r.is_kept(left.wall) && !cached(r));
    // First the record, then the bytes: nothing half removed is ever taken for data.
    forget(catalogue, left.rows.iter())?;
    // Data on a lost node belongs to nobody any more: the next run there removes it.
    left.look(world)?;
    let folders: Vec<PathBuf> = left.rows.iter().map(ReplicaRow::path).collect();
    for problem in world.remove(&folders).exit(Exit::State)? {
        message!("warning: {problem}");
    }
    Ok(())
}

/// The last action of a run that ends well, for one that died just before it.
pub(super) fn leave_tiers(start: &Start) {
    let nodes = start.cluster.nodes.iter();
    let tiers = nodes.flat_map(|n| n.tiers.iter().map(move |t| (n, t)));
    for problem in tarn_node::leave_tiers(tiers, &start.workspace, &Trees::new()) {
        message!("warning: {problem}");
    }
}

fn forget<'a>(
    catalogue: &mut Catalogue,
    rows: impl Iterator<Item = &'a ReplicaRow>,
) -> CliResult<()> {
    let change = |r: &ReplicaRow| ReplicaChange {
        // It counts for replicas that are not younger: one that this run puts in the same place is younger.
        wall: r.since,
        key: r.key.clone(),
        at: r.at.clone(),
        change: ChangeKind::Removed,
    };
    let changes: Vec<_> = rows.map(change).collect();
    if changes.is_empty() {
        Ok(())
    } else {
        catalogue.record(&changes).exit(Exit::State)
    }
}
