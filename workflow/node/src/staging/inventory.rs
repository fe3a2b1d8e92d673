//! After an interruption: the replicas that are still there, and the removal of everything else.

use crate::staging::dests;
use crate::staging::sources::resolve;
use crate::storage::checkpoint_folders;
use crate::storage::data_context::DataContext;
use crate::storage::drained::{self, remove_drained};
use crate::storage::keys::DataKeys;
use crate::storage::stage;
use crate::storage::store::{alike, entries, write_manifests};
use crate::storage::untouched::{self, ChangeScope, MarkValidity};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tarn_ports::{Control, MoverError, ObjectStoreError};
use tarn_types::event::{RunError, RunErrorKind};
use tarn_types::id::TierRef;
use tarn_types::key::DataKey;
use tarn_types::layout::{ERASE, TierDir, drained_area};
use tarn_types::manifest::{Entry, Manifest};
use tarn_types::nodes::{Cleaned, Staying};
use tarn_types::object::is_object;
use tarn_types::part::{PartRef, Place, StoreKey};

/// The file in a work folder that names its helper process: id and start time.
pub(crate) const HELPER_NOTE: &str = "helper";
/// How long leftovers of a dead run may take to notice that it is dead: they see their socket close.
const LEFTOVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Those of the replicas that are there, whole: folder and manifest exist and agree. The content is read of those that somebody may
/// have changed, or that the machine may have lost by a reboot.
///
/// # Errors
/// When an object store does not report its content: a replica that is not found would be made again, and removed.
pub(crate) fn inventory(
    shared: &DataContext,
    wanted: &[(PartRef, StoreKey, Place)],
) -> Result<Vec<(PartRef, Place)>, RunError> {
    let mut seen_of = InventoryCache::default();
    let mut found = Vec::new();
    // Replicas of earlier runs have other names: the keys show which of them are sealed.
    let keys = shared.keys.as_ref();
    let sealed = keys.map(DataKeys::parts).unwrap_or_default();
    for (part, key, place) in wanted {
        let seal = match keys.zip(sealed.get(key)) {
            None => None,
            Some((keys, dataset)) => match keys.get(dataset, key) {
                Ok(seal) => Some(seal),
                // Nobody can open it.
                Err(_) => continue,
            },
        };
        let Some(manifest) = manifest_of(shared, key, place, seal.as_ref())? else {
            continue;
        };
        if holds(
            shared,
            (part, key, place),
            &manifest,
            seal.as_ref(),
            &mut seen_of,
        )? {
            if let Place::Node(tier_ref) = place
                && shared.others_at(*tier_ref, key).is_none()
                && let Ok(path) = shared.replica(*tier_ref, key)
            {
                let stored = shared.mover.stored(&path).unwrap_or(0);
                shared.ledgers.found(*tier_ref, key, stored);
            }
            found.push((*part, place.clone()));
        }
    }
    let whole: BTreeSet<&(PartRef, Place)> = found.iter().collect();
    for (part, key, place) in wanted {
        if let Place::Node(tier_ref) = place
            && !whole.contains(&(*part, place.clone()))
        {
            // Of another workflow's: this run reads it no more, and may bring a whole one there.
            shared.leave_to_others(*tier_ref, key);
        }
    }
    Ok(found)
}

/// The result of a look at a place; `None` if nothing is there, or not what should be.
///
/// # Errors
/// When it is in an object store that gives no answer.
fn seen<T>(at: &Path, looked: Result<T, MoverError>) -> Result<Option<T>, RunError> {
    match looked {
        Ok(seen) => Ok(Some(seen)),
        Err(e) => {
            let is_certain =
                e.refused == Some(ObjectStoreError::Missing) || e.failure.kind != RunErrorKind::Io;
            match is_object(at) && !is_certain {
                true => Err(unknown(at, &e.failure)),
                false => Ok(None),
            }
        }
    }
}

fn is_there(shared: &DataContext, replica: &Path) -> Result<bool, RunError> {
    let there = shared.is_there(replica);
    there.map_err(|failure| unknown(replica, &failure))
}

fn unknown(at: &Path, failure: &RunError) -> RunError {
    let text = format!(
        "it is not known what is left at {}: {}; nothing was started or removed: `tarn resume`, or `tarn run` again, when the store \
         answers",
        at.display(),
        failure.message
    );
    RunError {
        kind: failure.kind,
        message: text,
    }
}

/// The manifest of a part. If it is missing or damaged, it is made again from a replica, if that has the recorded content.
fn manifest_of(
    shared: &DataContext,
    key: &StoreKey,
    place: &Place,
    seal: Option<&Arc<DataKey>>,
) -> Result<Option<Manifest>, RunError> {
    if let Ok(manifest) = shared.manifest(key) {
        return Ok(Some(manifest));
    }
    let root = match place {
        Place::Node(tier_ref) => shared.replica(*tier_ref, key),
        Place::Drained => shared.drained(key),
        Place::External(_) | Place::Source => return Ok(None),
    };
    let recorded = shared.hashes.lock().ok();
    let recorded = recorded.and_then(|hashes| hashes.get(key).copied());
    let (Ok(root), Some(recorded)) = (root, recorded) else {
        return Ok(None);
    };
    if !is_there(shared, &root)? {
        return Ok(None);
    }
    let found = seen(&root, shared.digest_replica(&root, seal))?;
    let Some(found) = found.filter(|found| found.hash() == Some(recorded)) else {
        return Ok(None);
    };
    let file = shared.manifest_file(key);
    let written = write_manifests([(file.as_path(), &found)], true);
    Ok(written.ok().map(|()| found))
}

/// Looks that all parts share.
#[derive(Default)]
struct InventoryCache {
    /// Folders that hold whole versions, as they are.
    listings: BTreeMap<PathBuf, Option<Manifest>>,
    /// The recorded content of destinations.
    given: BTreeMap<PathBuf, Vec<Manifest>>,
}

fn holds(
    shared: &DataContext,
    (part, key, place): (&PartRef, &StoreKey, &Place),
    manifest: &Manifest,
    seal: Option<&Arc<DataKey>>,
    seen_of: &mut InventoryCache,
) -> Result<bool, RunError> {
    let listings = &mut seen_of.listings;
    // Folders that hold a whole version: listed once for all of their parts.
    let mut listed = |folder: &Path| -> Result<bool, RunError> {
        let listed = match listings.entry(resolve(folder)) {
            Slot::Occupied(slot) => slot.into_mut(),
            Slot::Vacant(slot) => {
                let list = match place {
                    Place::Source => shared.mover.list_source(slot.key(), &Control::default()),
                    _ => shared.mover.list(slot.key(), &Control::default()),
                };
                let list = seen(slot.key(), list)?;
                slot.insert(list)
            }
        };
        Ok(listed.as_ref().is_some_and(|l| contains(l, manifest)))
    };
    let root = match place {
        Place::Node(tier_ref) => shared.replica(*tier_ref, key),
        Place::Drained => shared.drained(key),
        // A rescue is not recorded; its files are enough.
        Place::External(folder) => {
            let given = seen_of
                .given
                .entry(folder.clone())
                .or_insert_with(|| dests::given(&shared.state, &shared.workspace, folder));
            let was_given = given.is_empty() || given.iter().any(|g| dests::has_all(g, manifest));
            return Ok(was_given && listed(folder)?);
        }
        Place::Source => {
            let dataset = shared.dataset(part.data).ok();
            return match dataset.and_then(|d| d.source.as_deref()) {
                Some(source) => listed(source),
                None => Ok(false),
            };
        }
    };
    let Ok(root) = root else { return Ok(false) };
    if !is_there(shared, &root)? {
        return Ok(false);
    }
    let read_again = || {
        untouched::read_and_mark(&root, MarkValidity::ThisBoot, || {
            let found = shared.digest_replica(&root, seal);
            found.is_ok_and(|found| found.hash() == manifest.hash())
        })
    };
    let listed = seen(&root, shared.list_replica(&root, seal.is_some()))?;
    let listed = listed.filter(|l| same_shape(l, manifest));
    // A file that was written since, or has come in its place, may have the same size and time; so may one that lost data in a
    // reboot. An object that a store lists is not lost with this machine.
    let is_as_marked = || untouched::is_untouched(&root, MarkValidity::ThisBoot, ChangeScope::All);
    Ok(listed.is_some_and(|l| {
        is_object(&root) || contains(&l, manifest) && is_as_marked() || read_again()
    }))
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
    let mut pairs = listed.entries.iter().zip(&manifest.entries);
    let same = |(l, e): (&Entry, &Entry)| {
        let mut timeless = l.clone();
        timeless.mtime = e.mtime;
        alike(&timeless, e)
    };
    listed.entries.len() == manifest.entries.len() && pairs.all(same)
}

/// The data that a clean-up must leave, and what this world knows of it.
pub(crate) struct Stays<'a> {
    pub(crate) staying: &'a Staying,
    /// Parts whose manifests stay.
    pub(crate) known: BTreeSet<StoreKey>,
    /// Of a resumed run, the parts that it may still take over: everything else that is protected is missing in the
    /// capacities already.
    pub(crate) offered: Option<BTreeSet<StoreKey>>,
}

/// Folders as they are called where no link leads to them, as far as they are there: a tier may be named by another path
/// today than when its replicas came.
pub(crate) fn protected_places(folders: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let there = folders.iter().filter_map(|f| match is_object(f) {
        true => Some(f.clone()),
        false => f.canonicalize().ok(),
    });
    there.collect()
}

/// Whether a folder is one of these places.
pub(crate) fn is_protected(places: &BTreeSet<PathBuf>, folder: &Path) -> bool {
    match is_object(folder) {
        true => places.contains(folder),
        false => folder.canonicalize().is_ok_and(|f| places.contains(&f)),
    }
}

struct Cleaner<'a> {
    shared: &'a DataContext,
    stays: Stays<'a>,
    protected: BTreeSet<PathBuf>,
    done: Cleaned,
}

/// Removes everything of this workspace that does not stay, and ends what still runs of a dead run.
pub(crate) fn clean(shared: &DataContext, stays: Stays<'_>) -> Cleaned {
    let mut cleaner = Cleaner {
        shared,
        protected: protected_places(&stays.staying.protected),
        stays,
        done: Cleaned::default(),
    };
    for (tier_ref, node, tier) in shared.own_tiers() {
        let dir = TierDir::new(&tier.root, &shared.workspace, &node.name);
        cleaner.tier(&dir, Some(tier_ref));
    }
    for run in entries(&checkpoint_folders::memory(&shared.workspace)) {
        if run.file_name().is_none_or(|n| n != &*shared.run) {
            cleaner.remove(&run);
        }
    }
    for (root, tier_ref) in roots(shared) {
        cleaner.foreign(&root, tier_ref);
    }
    if shared.is_home() {
        cleaner.external();
        cleaner.forget_manifests();
        if let Some(keys) = &shared.keys {
            keys.protect(cleaner.stays.staying.protected.iter().map(|p| key_of(p)));
        }
        if let Err(RunError { message, .. }) = shared.forget_keys() {
            cleaner.done.trouble.push(message);
        }
    }
    cleaner.done
}

/// The workspace's folder on each tier root, with a tier that is accounted there.
fn roots(shared: &DataContext) -> BTreeMap<PathBuf, TierRef> {
    let mut roots = BTreeMap::new();
    for (tier_ref, _, tier) in shared.own_tiers() {
        roots
            .entry(tier.root.join(&shared.workspace))
            .or_insert(tier_ref);
    }
    roots
}

impl Cleaner<'_> {
    fn remove(&mut self, path: &Path) {
        if let Err(MoverError {
            failure: RunError { message, .. },
            ..
        }) = self.shared.mover.remove(path)
        {
            self.done.trouble.push(message);
        }
    }

    fn remove_replica(&mut self, path: PathBuf) {
        self.remove(&path);
        self.done.removed.push(path);
    }

    /// One node's folder; without a tier it is no node of this cluster.
    fn tier(&mut self, dir: &TierDir, tier_ref: Option<TierRef>) {
        for work in entries(&dir.work()) {
            end_leftovers(&work.join(HELPER_NOTE));
            self.remove(&work);
        }
        for path in entries(&dir.incoming()) {
            if tier_ref.is_none() || !self.stays.staying.resumable.contains(&key_of(&path)) {
                self.remove(&path);
            }
        }
        for run in entries(&dir.checkpoints()) {
            let own = run.file_name().is_some_and(|n| n == &*self.shared.run);
            match tier_ref.filter(|_| own) {
                // Its steps resume from them.
                Some(tier_ref) => checkpoint_folders::account_all(self.shared, tier_ref, &run),
                None => self.remove(&run),
            }
        }
        for path in entries(&dir.parts()) {
            let kept = tier_ref.is_some_and(|tier_ref| {
                let id = (key_of(&path), Place::Node(tier_ref));
                self.stays.staying.keep.contains(&id)
            });
            match is_protected(&self.protected, &path) {
                _ if kept => {}
                false => self.remove_replica(path),
                true => {
                    if let Some(tier_ref) = tier_ref {
                        let key = key_of(&path);
                        self.set_aside(path, tier_ref, key);
                    }
                }
            }
        }
    }

    /// Accounts for a protected replica that the run does not know of.
    fn set_aside(&mut self, path: PathBuf, tier_ref: TierRef, key: StoreKey) {
        let stored = self.shared.mover.stored(&path).unwrap_or(0);
        let ledgers = &self.shared.ledgers;
        ledgers.found(tier_ref, &key, stored);
        match &self.stays.offered {
            Some(offered) if offered.contains(&key) => {
                // It counts once it is in the way.
                return ledgers.leave(tier_ref, key, path, true);
            }
            _ if self.stays.staying.is_without => ledgers.enlarge(tier_ref, stored),
            _ => ledgers.set_aside(tier_ref, stored),
        }
        *self.done.aside.entry(tier_ref).or_default() += stored;
    }

    /// Nodes that this cluster does not have: an earlier run had more of them.
    fn foreign(&mut self, root: &Path, tier_ref: TierRef) {
        for path in entries(root) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let own = [stage::NAME, ERASE].contains(&&*name);
            if own || self.shared.cluster.nodes.iter().any(|n| *n.name == *name) {
                continue;
            }
            let dir = TierDir(path.clone());
            self.tier(&dir, None);
            let left = entries(&dir.parts());
            for part in &left {
                // A name of its own: this cluster may hold another replica of the part.
                let key = StoreKey(format!("{name}/{}", key_of(part).0));
                self.set_aside(part.clone(), tier_ref, key);
            }
            if left.is_empty() {
                self.remove(&path);
            }
        }
    }

    /// Cleans the drained area.
    fn external(&mut self) {
        let Some(external) = self.shared.workflow.external.as_deref() else {
            return;
        };
        let area = drained_area(external, &self.shared.workspace);
        let all = match drained::entries(&area, &*self.shared.mover) {
            Ok(all) => all,
            Err(RunError { message, .. }) => {
                self.done.trouble.push(message);
                return;
            }
        };
        for path in all {
            let key = key_of(&path);
            // A tree of objects grows where it is: objects that are there already are not put again.
            let grows = is_object(&path) && self.stays.staying.resumable.contains(&key);
            let half = key.0.strip_prefix(".incoming-");
            if let Some(key) = half.map(|k| StoreKey(k.to_owned())) {
                if !self.stays.staying.resumable.contains(&key) {
                    self.remove(&path);
                }
            } else if !grows
                && !self.stays.staying.keep.contains(&(key, Place::Drained))
                && !is_protected(&self.protected, &path)
            {
                let (workspace, mover) = (&self.shared.workspace, &*self.shared.mover);
                if let Err(RunError { message, .. }) = remove_drained(&path, workspace, mover) {
                    self.done.trouble.push(message);
                }
                self.done.removed.push(path);
            }
        }
        // It goes when nothing is left in it.
        if !is_object(&area) {
            let _ = std::fs::remove_dir(&area);
        }
    }

    fn forget_manifests(&self) {
        let mut needed = self.stays.known.clone();
        needed.extend(self.stays.staying.keep.iter().map(|(k, _)| k.clone()));
        needed.extend(self.stays.staying.resumable.iter().cloned());
        needed.extend(self.stays.staying.protected.iter().map(|p| key_of(p)));
        if let Ok(parts) = self.shared.parts.lock() {
            needed.extend(parts.values().map(|(_, key)| key.clone()));
        }
        for path in entries(&self.shared.state.manifests(&self.shared.workspace)) {
            if !needed.contains(&key_of(&path)) {
                // One that stays costs some bytes; the next clean-up tries again.
                let _ = std::fs::remove_file(&path);
            }
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

/// A helper ends by itself when its run dies. One that does not is killed with all that descends from it.
pub(crate) fn end_leftovers(note: &Path) {
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
    while alive() && since.elapsed() < LEFTOVER_TIMEOUT {
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
