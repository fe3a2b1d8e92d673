//! After an interruption: what is still there, and the removal of everything else.

use crate::shared::Shared;
use crate::sources::resolve;
use crate::store::{alike, read_manifest};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tarn_base::event::Failure;
use tarn_base::id::{NodeId, Spot, TierId};
use tarn_base::layout::{StateDir, TierDir};
use tarn_base::manifest::Manifest;
use tarn_base::part::{PartRef, Place, StoreKey};
use tarn_ports::{Control, MoverError};

/// The file in a work folder that names its helper process: id and start time.
pub(crate) const HELPER_NOTE: &str = "helper";
/// How long leftovers of a dead run may take to notice that it is dead: they see their socket close.
const LEFTOVER_PATIENCE: Duration = Duration::from_secs(5);

fn boot_file(state: &StateDir) -> PathBuf {
    state.0.join("boot_id")
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// Whether the machine was started anew since this state folder was used last: unsynced data may be lost.
pub(crate) fn rebooted(state: &StateDir) -> bool {
    std::fs::read_to_string(boot_file(state)).is_ok_and(|before| before != boot_id())
}

/// From now on, data is as safe as since this boot.
pub(crate) fn note_boot(state: &StateDir) {
    if std::fs::read_to_string(boot_file(state)).unwrap_or_default() != boot_id() {
        // Without the note, the next resume reads everything: slow, never wrong.
        let _ = std::fs::write(boot_file(state), boot_id());
    }
}

/// Those of the replicas that are there, whole: folder and manifest exist and agree. After a reboot contents are
/// read as well.
pub(crate) fn inventory(
    shared: &Shared,
    wanted: &[(PartRef, StoreKey, Place)],
) -> Vec<(PartRef, Place)> {
    let contents = rebooted(&shared.state);
    let mut listings: BTreeMap<PathBuf, Option<Manifest>> = BTreeMap::new();
    let mut found = Vec::new();
    for (part, key, place) in wanted {
        let Ok(manifest) = read_manifest(&shared.state.manifest(key)) else {
            continue;
        };
        if holds(shared, part, key, place, &manifest, contents, &mut listings) {
            if let Place::Node(spot) = place
                && let Ok(path) = shared.replica(*spot, key)
            {
                let stored = shared.mover.stored(&path).unwrap_or(0);
                shared.ledgers.arrived(*spot, key, stored);
            }
            found.push((*part, place.clone()));
        }
    }
    found
}

fn holds(
    shared: &Shared,
    part: &PartRef,
    key: &StoreKey,
    place: &Place,
    manifest: &Manifest,
    contents: bool,
    listings: &mut BTreeMap<PathBuf, Option<Manifest>>,
) -> bool {
    let list = |path: &Path| shared.mover.list(path, &Control::default()).ok();
    let root = match place {
        Place::Node(spot) => shared.replica(*spot, key),
        Place::Drained => shared.drained(key),
        // Folders that hold a whole version: listed once for all of their parts.
        Place::External(folder) => {
            let listed = listings
                .entry(folder.clone())
                .or_insert_with(|| list(folder));
            return listed.as_ref().is_some_and(|l| contains(l, manifest));
        }
        Place::Source => {
            let source = shared
                .dataset(part.data)
                .ok()
                .and_then(|d| d.source.as_deref());
            let Some(folder) = source.map(resolve) else {
                return false;
            };
            let listed = listings
                .entry(folder.clone())
                .or_insert_with(|| list(&folder));
            return listed.as_ref().is_some_and(|l| contains(l, manifest));
        }
    };
    let Ok(root) = root else { return false };
    if !crate::store::is_folder(&root) {
        return false;
    }
    match contents {
        true => shared
            .mover
            .verify(&root, manifest, &Control::default())
            .is_ok(),
        false => list(&root)
            .is_some_and(|l| l.entries.len() == manifest.entries.len() && same_shape(&l, manifest)),
    }
}

/// Whether every entry of the manifest is in the listing, alike.
fn contains(listed: &Manifest, manifest: &Manifest) -> bool {
    manifest
        .entries
        .iter()
        .all(|e| listed.find(&e.path).is_some_and(|l| alike(l, e)))
}

/// As [`alike`] for whole trees, times apart: nodes of a step may have made equal files at different times.
fn same_shape(listed: &Manifest, manifest: &Manifest) -> bool {
    listed.entries.iter().zip(&manifest.entries).all(|(l, e)| {
        let mut timeless = l.clone();
        timeless.mtime = e.mtime;
        alike(&timeless, e)
    })
}

/// Removes everything of this workspace that is neither kept nor resumable, and ends what still runs of a dead
/// run. Manifests of `known` parts stay. Returns what could not be removed.
pub(crate) fn clean(
    shared: &Shared,
    keep: &BTreeSet<(StoreKey, Place)>,
    resumable: &BTreeSet<StoreKey>,
    known: BTreeSet<StoreKey>,
) -> Vec<String> {
    let mut trouble = Vec::new();
    let mut remove = |path: &Path| {
        if let Err(MoverError(Failure { message, .. })) = shared.mover.remove(path) {
            trouble.push(message);
        }
    };
    for (n, node) in (0..).zip(&shared.cluster.nodes) {
        for (t, tier) in (0..).zip(&node.tiers) {
            let spot = Spot {
                node: NodeId(n),
                tier: TierId(t),
            };
            let dir = TierDir::new(&tier.root, &shared.workspace, &node.name);
            for work in entries(&dir.work()) {
                end_leftovers(&work.join(HELPER_NOTE));
                remove(&work);
            }
            let stale = entries(&dir.incoming())
                .into_iter()
                .filter(|p| !resumable.contains(&key_of(p)));
            stale.for_each(|p| remove(&p));
            let stale = entries(&dir.parts())
                .into_iter()
                .filter(|p| !keep.contains(&(key_of(p), Place::Node(spot))));
            stale.for_each(|p| remove(&p));
        }
    }
    foreign_folders(shared).iter().for_each(|p| remove(p));
    if let Some(external) = &shared.workflow.external {
        let area = external.join(format!("tarn-{}", shared.workspace));
        for path in entries(&area) {
            let key = key_of(&path);
            let half = key
                .0
                .strip_prefix(".incoming-")
                .map(|k| StoreKey(k.to_owned()));
            let kept = match half {
                Some(key) => resumable.contains(&key),
                None => keep.contains(&(key, Place::Drained)),
            };
            if !kept {
                remove(&path);
            }
        }
        // It goes when nothing is left in it.
        let _ = std::fs::remove_dir(&area);
    }
    forget_manifests(shared, keep, resumable, known);
    trouble
}

/// Folders of nodes that this cluster does not have: an earlier run had more of them.
fn foreign_folders(shared: &Shared) -> Vec<PathBuf> {
    let tiers = shared.cluster.nodes.iter().flat_map(|n| &n.tiers);
    let roots: BTreeSet<PathBuf> = tiers.map(|t| t.root.join(&shared.workspace)).collect();
    let known = |p: &Path| {
        let name = p.file_name().unwrap_or_default();
        name == "at" || shared.cluster.nodes.iter().any(|n| name == n.name.as_str())
    };
    let all = roots.iter().flat_map(|r| entries(r));
    all.filter(|p| !known(p)).collect()
}

fn forget_manifests(
    shared: &Shared,
    keep: &BTreeSet<(StoreKey, Place)>,
    resumable: &BTreeSet<StoreKey>,
    known: BTreeSet<StoreKey>,
) {
    let mut needed = known;
    needed.extend(keep.iter().map(|(k, _)| k.clone()));
    needed.extend(resumable.iter().cloned());
    if let Ok(parts) = shared.parts.lock() {
        needed.extend(parts.values().map(|(_, key)| key.clone()));
    }
    for path in entries(&shared.state.0.join("manifests")) {
        if !needed.contains(&key_of(&path)) {
            // One that stays costs some bytes; the next clean-up tries again.
            let _ = std::fs::remove_file(&path);
        }
    }
}

fn key_of(path: &Path) -> StoreKey {
    StoreKey(
        path.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
    )
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .collect()
}

/// A helper ends by itself when its run dies. One that does not is killed with all that descends from it.
fn end_leftovers(note: &Path) {
    let Ok(text) = std::fs::read_to_string(note) else {
        return;
    };
    let mut words = text.split_whitespace();
    let (Some(pid), Some(start)) = (
        words.next().and_then(|w| w.parse::<i32>().ok()),
        words.next().and_then(|w| w.parse::<u64>().ok()),
    ) else {
        return;
    };
    let alive = || tarn_sys::process::start_time(pid) == Some(start);
    let since = Instant::now();
    while alive() && since.elapsed() < LEFTOVER_PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    if alive()
        && let Some(helper) = Pid::from_raw(pid)
    {
        let family = tarn_sys::process::descendants(helper).unwrap_or_default();
        for pid in family.into_iter().chain([helper]) {
            // It may have ended meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}
