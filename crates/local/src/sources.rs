//! External datasets: listing them, and remembering the hashes of files that have not changed since they were read.

use crate::shared::Shared;
use crate::store::{alike, failure, make_folder, read_manifest, stored_estimate, write_manifests};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tarn_base::event::{Event, Failure, FailureKind};
use tarn_base::hash::{Hash, Hasher};
use tarn_base::id::DataId;
use tarn_base::manifest::{Entry, EntryKind, Manifest};
use tarn_base::merge;
use tarn_base::part::{PartClass, PartInfo, PartRef, StoreKey};
use tarn_ports::{Control, MoverError};

/// A file changed this short before it was read may change again within the same time stamp (FAT and old NFS
/// have 2 s): its hash is not remembered.
const RACY: i64 = 2_000_000_000;
/// How often what is remembered goes to disk; losing the rest costs only reading again.
const FLUSH: Duration = Duration::from_secs(5);

/// Entries of sources with hashes that were read in this run, to be written to `<state>/sources`.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    fresh: BTreeMap<DataId, BTreeMap<Box<[u8]>, Entry>>,
    flushed: Option<Instant>,
}

/// Nanoseconds since 1970.
pub(crate) fn wall_clock() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// A source's real folder: a link that the user gives as `source` is followed, once, here.
pub(crate) fn resolve(source: &Path) -> PathBuf {
    match std::fs::canonicalize(source) {
        Ok(real) if real.is_dir() => real,
        _ => source.to_path_buf(),
    }
}

/// Lists a source; the event to report.
pub(crate) fn list(shared: &Shared, data: DataId, control: &Control) -> Event {
    match try_list(shared, data, control) {
        Ok(parts) => Event::SourceListed { data, parts },
        Err(failure) => Event::SourceFailed { data, failure },
    }
}

fn try_list(shared: &Shared, data: DataId, control: &Control) -> Result<Vec<PartInfo>, Failure> {
    let dataset = shared.dataset(data)?;
    let source = dataset.source.as_deref().ok_or_else(|| {
        failure(
            FailureKind::Io,
            format!("dataset `{}` has no source", dataset.name),
        )
    })?;
    if let Err(e) = std::fs::symlink_metadata(source) {
        return Err(failure(
            FailureKind::Io,
            format!(
                "the source of dataset `{}` cannot be read: {}: {e}; check `source` in [data.{}]{}",
                dataset.name,
                source.display(),
                dataset.name,
                deepest_existing(source)
            ),
        ));
    }
    let now = wall_clock();
    let mut tree = shared
        .mover
        .list(&resolve(source), control)
        .map_err(|MoverError(f)| f)?;
    fill_hashes(&mut tree, &memory_file(shared, &dataset.name));
    let signature = signature(source, &tree, &shared.run, now);
    let parts = merge::partition(&tree, dataset.partition, dataset.scatter.as_ref())
        .map_err(|e| failure(FailureKind::Io, format!("dataset `{}`: {e}", dataset.name)))?;
    if parts.len() > tarn_base::bounds::MAX_PARTS {
        return Err(failure(
            FailureKind::Io,
            format!(
                "dataset `{}` has {} entries, more than the {} that a version may be divided into",
                dataset.name,
                parts.len(),
                tarn_base::bounds::MAX_PARTS
            ),
        ));
    }
    let mut infos = Vec::with_capacity(parts.len());
    let mut files = Vec::with_capacity(parts.len());
    for (seq, (class, manifest)) in (0u32..).zip(parts) {
        let key = StoreKey(format!("{}.src.{}.{seq}", dataset.name, signature.short()));
        let part = PartRef {
            data,
            version: 0,
            origin: 0,
            seq,
        };
        shared.know(part, class.clone(), key.clone());
        infos.push(part_info(
            seq,
            class,
            &manifest,
            stored_estimate(&manifest),
            key.clone(),
        ));
        files.push((shared.state.manifest(&key), manifest));
    }
    write_manifests(files.iter().map(|(p, m)| (p.as_path(), m)), true)?;
    Ok(infos)
}

/// What the engine is to know of a part.
pub(crate) fn part_info(
    seq: u32,
    class: PartClass,
    manifest: &Manifest,
    stored: u64,
    key: StoreKey,
) -> PartInfo {
    PartInfo {
        seq,
        class,
        bytes: manifest.bytes(),
        stored,
        files: manifest.files(),
        hash: manifest.hash(),
        key,
    }
}

fn deepest_existing(path: &Path) -> String {
    match path.ancestors().skip(1).find(|a| a.exists()) {
        Some(a) if a.parent().is_some() => format!(" ({} exists)", a.display()),
        _ => String::new(),
    }
}

/// Names this state of the source. Files that may still change unseen make it the run's own.
fn signature(source: &Path, tree: &Manifest, run: &str, now: i64) -> Hash {
    let mut h = Hasher::new();
    h.field(source.as_os_str().as_encoded_bytes());
    let mut racy = false;
    for e in &tree.entries {
        let (kind, size) = match &e.kind {
            EntryKind::Directory => (0, 0),
            EntryKind::File { size, .. } => (1, *size),
            EntryKind::Symlink(target) => {
                h.field(target);
                (2, 0)
            }
        };
        h.field(&e.path)
            .number(kind)
            .number(size)
            .number(e.mode.into());
        if kind == 1 {
            h.field(&e.mtime.to_le_bytes());
            racy |= e.mtime > now.saturating_sub(RACY);
        }
    }
    if racy {
        h.field(run.as_bytes());
    }
    h.finish()
}

fn memory_file(shared: &Shared, dataset: &str) -> PathBuf {
    shared
        .state
        .0
        .join("sources")
        .join(format!("{dataset}.manifest"))
}

fn fill_hashes(tree: &mut Manifest, memory: &Path) {
    // Without a memory, or with a damaged one, files are read again.
    let Ok(known) = read_manifest(memory) else {
        return;
    };
    let mut used = BTreeMap::new();
    for entry in &mut tree.entries {
        let Some(before) = known.find(&entry.path) else {
            continue;
        };
        if alike(entry, before)
            && let EntryKind::File { hash: known, .. } = &before.kind
            && let EntryKind::File { hash, .. } = &mut entry.kind
        {
            *hash = *known;
            used.insert(before.path.clone(), before.clone());
        }
    }
    if (used.len() as u64) < known.files() {
        // What the source no longer holds is forgotten: the memory never outgrows the source.
        let _ = write_manifests([(memory, &with_folders(used))], false);
    }
}

/// A part of a source has been read, beginning at `began`: its hashes hold as long as the files look the same.
pub(crate) fn remember(shared: &Shared, data: DataId, manifest: &Manifest, began: i64) {
    let Ok(mut memory) = shared.remembered.lock() else {
        return;
    };
    let settled = |e: &&Entry| e.mtime < began.saturating_sub(RACY);
    let files = manifest
        .entries
        .iter()
        .filter(|e| matches!(e.kind, EntryKind::File { .. }));
    let fresh = memory.fresh.entry(data).or_default();
    fresh.extend(files.filter(settled).map(|e| (e.path.clone(), e.clone())));
    let due = memory.flushed.get_or_insert_with(Instant::now).elapsed() >= FLUSH;
    drop(memory);
    if due {
        flush(shared);
    }
}

/// Writes what is remembered. A memory that cannot be written is no reason to fail a run.
pub(crate) fn flush(shared: &Shared) {
    let Ok(mut memory) = shared.remembered.lock() else {
        return;
    };
    memory.flushed = Some(Instant::now());
    for (data, fresh) in std::mem::take(&mut memory.fresh) {
        let Ok(dataset) = shared.dataset(data) else {
            continue;
        };
        let path = memory_file(shared, &dataset.name);
        let mut all: BTreeMap<Box<[u8]>, Entry> = BTreeMap::new();
        if let Ok(before) = read_manifest(&path) {
            all.extend(before.entries.into_iter().map(|e| (e.path.clone(), e)));
        }
        all.extend(fresh);
        let merged = with_folders(all);
        if make_folder(&shared.state.0.join("sources")).is_ok() {
            let _ = write_manifests([(path.as_path(), &merged)], false);
        }
    }
}

/// A manifest needs the folders of its files.
fn with_folders(mut all: BTreeMap<Box<[u8]>, Entry>) -> Manifest {
    let mut folders = std::collections::BTreeSet::new();
    for path in all.keys() {
        let mut at: &[u8] = path;
        while let Some(parent) = tarn_base::manifest::parent(at) {
            if !folders.insert(Box::<[u8]>::from(parent)) {
                break;
            }
            at = parent;
        }
    }
    for path in folders {
        all.entry(path.clone())
            .and_modify(|e| e.kind = EntryKind::Directory)
            .or_insert(Entry {
                path,
                kind: EntryKind::Directory,
                mode: 0o755,
                mtime: 0,
                xattrs: Box::default(),
            });
    }
    // What was a folder may have become a file since: keep nothing below files.
    let mut manifest = Manifest::default();
    for (path, entry) in all {
        let parent = tarn_base::manifest::parent(&path);
        if parent.is_none_or(|p| manifest.find(p).is_some_and(Entry::is_folder)) {
            manifest.entries.push(entry);
        }
    }
    manifest.renumber_links();
    manifest
}
