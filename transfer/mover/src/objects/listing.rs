//! The content of a tree in a store: keys become paths.

use super::marker::{self, MarkerEntries};
use super::owner::PROBE;
use super::upload;
use crate::error::{Result, show};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use tarn_ports::{MoverError, ObjectMetadata, ObjectStore, ObjectStoreError, Watch};
use tarn_types::bounds::MAX_ENTRIES;
use tarn_types::event::RunErrorKind;
use tarn_types::hash::Hash;
use tarn_types::manifest::{Entry, EntryKind, Manifest, check_path, parent};
use tarn_types::object::ObjectUrl;

/// The mode of a file without a marker's entry.
const FILE_MODE: u32 = 0o644;
/// The same of a folder.
const FOLDER_MODE: u32 = 0o755;
const SECOND: i64 = 1_000_000_000;

/// The objects below a tree's prefix.
#[derive(Default)]
pub(crate) struct TreeListing {
    /// The objects, by path.
    pub(crate) objects: BTreeMap<Box<[u8]>, ObjectMetadata>,
    /// Folders that are objects whose keys end with `/`, without bytes.
    pub(crate) folders: Vec<Box<[u8]>>,
    /// tarn's own manifest.
    pub(crate) marker: Option<ObjectMetadata>,
    /// The entries in that manifest.
    pub(crate) marked: MarkerEntries,
    /// The note of an upload that a delivery has under way, or had when it was killed.
    pub(crate) upload: Option<ObjectMetadata>,
}

/// Lists a tree, or one object.
///
/// # Errors
/// When nothing is there, or a key can be no path.
pub(crate) fn list(store: &dyn ObjectStore, at: &ObjectUrl, watch: &dyn Watch) -> Result<Manifest> {
    if !at.is_tree() {
        let name = at.name().as_bytes();
        let found = store.look(at, watch)?.ok_or_else(|| {
            failed(format!(
                "there is no object {at}; name a tree of objects with a `/` at its end: {at}/"
            ))
            .refused(ObjectStoreError::Missing)
        })?;
        return Ok(Manifest {
            entries: vec![plain(name, &found)],
        });
    }
    let listing = listed(store, at, watch)?;
    if listing.is_empty() {
        return Err(nothing(at));
    }
    listing.manifest(at)
}

/// Whether there is something to be listed.
///
/// # Errors
/// As for [`list`].
pub(crate) fn is_there(store: &dyn ObjectStore, at: &ObjectUrl, watch: &dyn Watch) -> Result<()> {
    if !at.is_tree() {
        return list(store, at, watch).map(drop);
    }
    let mut is_there = false;
    let listed = store.list(at, watch, &mut |found| {
        is_there = found.key != at.key;
        match is_there {
            // The first page has reported it.
            true => Err(failed("it is there".into())),
            false => Ok(()),
        }
    });
    match is_there {
        true => Ok(()),
        false => listed.and_then(|()| Err(nothing(at))),
    }
}

fn nothing(at: &ObjectUrl) -> MoverError {
    failed(format!(
        "there is nothing at {at}; check its name, or put something there"
    ))
    .refused(ObjectStoreError::Missing)
}

/// Everything below a prefix.
pub(crate) fn listed(
    store: &dyn ObjectStore,
    at: &ObjectUrl,
    watch: &dyn Watch,
) -> Result<TreeListing> {
    let mut listing = TreeListing::default();
    let mut count = 0usize;
    store.list(at, watch, &mut |found| {
        count += 1;
        if count > MAX_ENTRIES {
            return Err(failed(format!(
                "there are more than {MAX_ENTRIES} objects at {at}; pack small ones together"
            )));
        }
        listing.add(at, found)
    })?;
    if let Some(found) = &listing.marker {
        listing.marked = marker::read(store, at, found, watch)?;
    }
    Ok(listing)
}

impl TreeListing {
    fn add(&mut self, at: &ObjectUrl, found: ObjectMetadata) -> Result<()> {
        let path = found.key.strip_prefix(&at.key).ok_or_else(|| {
            failed(format!(
                "the store lists `{}` for {at}, which does not contain it",
                show(found.key.as_bytes())
            ))
        })?;
        let folder = path.strip_suffix('/').filter(|_| found.size == 0);
        match (path, folder) {
            // The tree's own folder, as consoles make it; somebody tries whether the tree can be written.
            ("" | PROBE, _) => {}
            (marker::NAME, _) => self.marker = Some(found),
            (upload::NAME, _) => self.upload = Some(found),
            (_, Some(folder)) => {
                check(at, &found.key, folder)?;
                self.folders.push(folder.as_bytes().into());
            }
            (path, None) => {
                check(at, &found.key, path)?;
                self.objects.insert(path.as_bytes().into(), found);
            }
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.folders.is_empty() && self.marker.is_none()
    }

    /// The entry of an object that tarn has put, if the object is still the same.
    pub(crate) fn known(&self, path: &[u8], found: &ObjectMetadata) -> Option<&Entry> {
        let (entry, etag) = self.marked.get(path)?;
        let same = matches!(entry.kind, EntryKind::File { size, .. } if size == found.size);
        (same && *etag == found.etag).then_some(entry)
    }

    /// The tree.
    ///
    /// # Errors
    /// When an object has the name of a folder.
    pub(crate) fn manifest(&self, at: &ObjectUrl) -> Result<Manifest> {
        let mut entries: BTreeMap<Box<[u8]>, Entry> = BTreeMap::new();
        for (path, found) in &self.objects {
            let known = self.known(path, found).cloned();
            entries.insert(path.clone(), known.unwrap_or_else(|| plain(path, found)));
        }
        // Folders and links are where no object is now.
        for (path, (entry, _)) in &self.marked {
            if !matches!(entry.kind, EntryKind::File { .. }) {
                entries.entry(path.clone()).or_insert_with(|| entry.clone());
            }
        }
        let inner: Vec<(Box<[u8]>, i64)> = entries
            .values()
            .map(|e| (e.path.clone(), e.mtime))
            .chain(
                self.folders
                    .iter()
                    .map(|f| (crate::objects::listing::within(f), 0)),
            )
            .collect();
        for (path, mtime) in inner {
            let mut above = parent(&path);
            while let Some(folder) = above {
                match entries.entry(folder.into()) {
                    Slot::Vacant(slot) => drop(slot.insert(self::folder(folder, mtime))),
                    Slot::Occupied(slot) if slot.get().is_folder() => {
                        let is_marked = self.marked.contains_key(folder);
                        let entry = slot.into_mut();
                        // As new as the newest in it.
                        entry.mtime = entry.mtime.max(if is_marked { i64::MIN } else { mtime });
                    }
                    Slot::Occupied(_) => return Err(collision(at, folder, &path)),
                }
                above = parent(folder);
            }
        }
        let mut manifest = Manifest {
            entries: entries.into_values().collect(),
        };
        manifest.renumber_links();
        Ok(manifest)
    }
}

/// A path whose folder this is.
fn within(folder: &[u8]) -> Box<[u8]> {
    tarn_sys::beneath::join(folder, b"-")
}

fn folder(path: &[u8], mtime: i64) -> Entry {
    Entry {
        path: path.into(),
        kind: EntryKind::Directory,
        mode: FOLDER_MODE,
        mtime,
        xattrs: Box::default(),
    }
}

/// The entry of a file that only its object describes. Its time is the object's to the second; the fraction is made of the ETag,
/// so that a comparison of sizes and times distinguishes ETags.
fn plain(path: &[u8], found: &ObjectMetadata) -> Entry {
    Entry {
        path: path.into(),
        kind: EntryKind::File {
            size: found.size,
            hash: None,
            link_group: 0,
            extents: Box::default(),
        },
        mode: FILE_MODE,
        mtime: found
            .modified
            .saturating_mul(SECOND)
            .saturating_add(fraction(&found.etag)),
        xattrs: Box::default(),
    }
}

fn fraction(etag: &str) -> i64 {
    (Hash::of(etag.as_bytes()).0 % SECOND as u128) as i64
}

/// Whether a file's time was made of this ETag.
pub(crate) fn made_of(entry: &Entry, etag: &str) -> bool {
    entry.mtime.rem_euclid(SECOND) == fraction(etag)
}

fn check(at: &ObjectUrl, key: &str, path: &str) -> Result<()> {
    check_path(path.as_bytes()).map_err(|fault| {
        let key = show(key.as_bytes());
        let text = format!("the key `{key}` in {at} can be no path of a file: {fault}; copy the object to another key and remove it");
        MoverError::new(RunErrorKind::Escape, text)
    })
}

fn collision(at: &ObjectUrl, folder: &[u8], path: &[u8]) -> MoverError {
    let (folder, path) = (show(folder), show(path));
    failed(format!(
        "`{folder}` in {at} is an object, and would be the folder of `{path}` too: no file system can hold both; copy one of them to \
         another key"
    ))
}

fn failed(text: String) -> MoverError {
    MoverError::new(RunErrorKind::Io, text)
}
