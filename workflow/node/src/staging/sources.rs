//! External datasets: listing them, and remembering the hashes of files that have not changed since they were read.

mod since;

use crate::storage::data_context::DataContext;
use crate::storage::run_facts::RunFacts;
use crate::storage::source_memory::{self, Stamp, StampedFiles};
use crate::storage::store::{alike, failure, hash_of, write_manifests};
use rustix::fs::{Access, Mode, OFlags, access, open};
use rustix::io::pread;
pub use since::look_at_source_since;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tarn_ports::{Control, Mover};
use tarn_types::event::{Event, RunError, RunErrorKind};
use tarn_types::hash::{Hash, Hasher};
use tarn_types::id::DataId;
use tarn_types::layout::StateDir;
use tarn_types::manifest::{EntryKind, Manifest};
use tarn_types::merge;
use tarn_types::object::{ObjectUrl, is_object};
use tarn_types::part::{PartClass, PartInfo, PartRef, Place, StoreKey, Transfer};
use tarn_types::text::not_empty;
use tarn_types::workflow::{Dataset, VersionPartitioning};

/// A file changed this short before it was read may change again within the same time stamp (FAT and old NFS
/// have 2 s): its hash is not relied on. Nor is that of a file whose inode was changed (ctime) so short before:
/// a program can set its time back, not that.
const RACY: i64 = 2_000_000_000;
/// How often what is remembered goes to disk; losing the rest costs only reading again.
const FLUSH: Duration = Duration::from_secs(5);

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
pub(crate) fn list(shared: &DataContext, data: DataId, control: &Control) -> Event {
    match try_list(shared, data, control) {
        Ok(parts) => Event::SourceListed { data, parts },
        Err(failure) => Event::SourceFailed { data, failure },
    }
}

fn try_list(
    shared: &DataContext,
    data: DataId,
    control: &Control,
) -> Result<Vec<PartInfo>, RunError> {
    let dataset = shared.dataset(data)?;
    let source = dataset.source.as_deref().ok_or_else(|| {
        failure(
            RunErrorKind::Io,
            format!("dataset `{}` has no source", dataset.name),
        )
    })?;
    if !is_object(source) {
        check_source(&dataset.name, source)?;
    }
    let now = wall_clock();
    let root = resolve(source);
    let mut tree = shared.mover.list_source(&root, control)?;
    let stamps = stamps(&root, &tree);
    let listed_hashes: Vec<Option<Hash>> = tree.entries.iter().map(hash_of).collect();
    let file = memory_file(shared, &dataset.name);
    let touched = fill_hashes(&mut tree, &stamps, &file, &root);
    if shared.reusable.load(Ordering::Relaxed) {
        look_again(shared, data, &mut tree, &touched, control);
    }
    let signature = signature(shared, source, &tree, (&stamps, &listed_hashes), now);
    let parts = merge::partition(&tree, dataset.partition, dataset.scatter.as_ref())
        .map_err(|e| failure(RunErrorKind::Io, format!("dataset `{}`: {e}", dataset.name)))?;
    if parts.len() > tarn_types::bounds::MAX_PARTS {
        return Err(failure(
            RunErrorKind::Io,
            format!(
                "dataset `{}` has {} entries, more than the {} that a version may be divided into",
                dataset.name,
                parts.len(),
                tarn_types::bounds::MAX_PARTS
            ),
        ));
    }
    let mut infos = Vec::with_capacity(parts.len());
    let mut files = Vec::with_capacity(parts.len());
    for (seq, (class, manifest)) in (0u32..).zip(parts) {
        // A sealed part is no replica of one that is not sealed.
        let src = if dataset.encrypt { "sealed" } else { "src" };
        let key = StoreKey(format!(
            "{}.{src}.{}.{seq}",
            dataset.name,
            signature.short()
        ));
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
            shared.estimate(data, &manifest),
            key.clone(),
        ));
        files.push((shared.manifest_file(&key), manifest));
    }
    write_manifests(files.iter().map(|(p, m)| (p.as_path(), m)), true)?;
    Ok(infos)
}

/// Lists one part of a source once more, and writes its manifest: a power cut may have torn the one that was completed since.
///
/// # Errors
/// When the source cannot be read, or has no such part any more.
pub(crate) fn list_again(
    shared: &DataContext,
    data: DataId,
    (class, key): (&PartClass, &StoreKey),
    control: &Control,
) -> Result<Manifest, RunError> {
    let dataset = shared.dataset(data)?;
    let gone = || {
        let text = format!("the source of dataset `{}` has changed", dataset.name);
        failure(RunErrorKind::SourceChanged, text)
    };
    let source = dataset.source.as_deref().ok_or_else(gone)?;
    let tree = shared.mover.list_source(&resolve(source), control)?;
    let parts = merge::partition(&tree, dataset.partition, dataset.scatter.as_ref());
    let parts = parts.map_err(|_| gone())?;
    let part = parts.into_iter().find(|(found, _)| found == class);
    let (_, manifest) = part.ok_or_else(gone)?;
    let file = shared.manifest_file(key);
    write_manifests([(file.as_path(), &manifest)], true)?;
    Ok(manifest)
}

/// The facts of a part that the engine gets.
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

/// Whether there is a source: a link that leads nowhere is none, nor is a file that is empty only as long as nobody reads it.
///
/// # Errors
/// When it cannot be used: the reason, and where to look.
pub fn check_source(dataset: &str, source: &Path) -> Result<(), RunError> {
    let status = std::fs::metadata(source).map_err(|e| {
        let why = why_unreadable(source, &e);
        let name = source.to_string_lossy();
        if e.kind() == std::io::ErrorKind::NotFound && name.contains(['*', '?', '[', '{']) {
            let text = format!(
                "the source of dataset `{dataset}` does not exist: {name}; `source` takes no patterns: name the folder in \
                 [data.{dataset}], and its files in the step, as in `in = [\"{dataset}/FILE\"]`"
            );
            return failure(RunErrorKind::Io, text);
        }
        failure(
            RunErrorKind::Io,
            format!(
                "the source of dataset `{dataset}` does not exist or cannot be read: {}: {why}; check `source` in \
                 [data.{dataset}]{}",
                source.display(),
                deepest_existing(source)
            ),
        )
    })?;
    let why = status
        .is_file()
        .then(|| why_not_copied(source, status.len()));
    match why.flatten() {
        Some(why) => Err(failure(
            RunErrorKind::Io,
            format!("the source of dataset `{dataset}` cannot be copied: {why}"),
        )),
        None => Ok(()),
    }
}

/// Why a copy of a file would fail, as far as that is known before it: it may not be read, or is one of `/proc`, which is empty only as
/// long as nobody reads it.
fn why_not_copied(file: &Path, size: u64) -> Option<String> {
    let path = file.display();
    let unreadable = |e| format!("`{path}` cannot be read: {e}");
    if size > 0 {
        return access(file, Access::READ_OK).err().map(unreadable);
    }
    // Some files of /proc wait until there is something to be read.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match open(file, flags, Mode::empty()) {
        Ok(fd) if matches!(pread(&fd, &mut [0u8; 1][..], 0), Ok(1)) => Some(not_empty(path)),
        Ok(_) => None,
        Err(e) => Some(unreadable(e)),
    }
}

/// Why the source that is named so cannot be read.
pub fn why_unreadable(source: &Path, e: &std::io::Error) -> String {
    match source.is_symlink() && e.kind() == std::io::ErrorKind::NotFound {
        true => format!("it is a link that leads nowhere: {e}"),
        false => e.to_string(),
    }
}

fn deepest_existing(path: &Path) -> String {
    match path.ancestors().skip(1).find(|a| a.exists()) {
        Some(a) if a.parent().is_some() => format!(" ({} exists)", a.display()),
        _ => String::new(),
    }
}

/// Stamps that tell changed files from those that look the same; `None` for other entries.
fn stamps(root: &Path, tree: &Manifest) -> Vec<Option<Stamp>> {
    let folder = is_tree(root);
    let stamp = |e: &tarn_types::manifest::Entry| match e.kind {
        // An object's content has a time of its own, or its hash is known.
        EntryKind::File { .. } if is_object(root) => Some(Stamp::OBJECT),
        EntryKind::File { .. } => Stamp::of(&on_disk(root, folder, &e.path)),
        _ => None,
    };
    tree.entries.iter().map(stamp).collect()
}

/// Whether a source is more than one file.
fn is_tree(root: &Path) -> bool {
    match ObjectUrl::of(root) {
        Some(url) => url.is_ok_and(|url| url.is_tree()),
        None => root.is_dir(),
    }
}

/// The time after which changes can stay unseen: none of an object.
fn settled_before(root: &Path, now: i64) -> i64 {
    match is_object(root) {
        true => i64::MAX,
        false => now.saturating_sub(RACY),
    }
}

/// The path of an entry of a source; a source that is one file is that entry.
fn on_disk(root: &Path, folder: bool, path: &[u8]) -> PathBuf {
    match folder {
        true => root.join(OsStr::from_bytes(path)),
        false => root.to_path_buf(),
    }
}

/// Names this state of the source for this workspace. Files that may still change unseen make it the run's own.
fn signature(
    shared: &RunFacts,
    source: &Path,
    tree: &Manifest,
    (stamps, listed_hashes): (&[Option<Stamp>], &[Option<Hash>]),
    now: i64,
) -> Hash {
    let mut h = Hasher::new();
    h.field(shared.workspace.as_bytes())
        .field(source.as_os_str().as_encoded_bytes());
    let young = settled_before(source, now);
    let mut racy = false;
    for ((e, stamp), listed_hash) in tree.entries.iter().zip(stamps).zip(listed_hashes) {
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
            racy |= e.mtime > young || stamp.is_none_or(|s| s.changed > young);
        }
        if let Some(s) = stamp {
            h.field(&s.changed.to_le_bytes()).number(s.inode);
        }
        if let Some(hash) = listed_hash {
            h.field(&hash.0.to_le_bytes());
        }
    }
    if racy {
        h.field(shared.run.as_bytes());
    }
    h.finish()
}

fn memory_file(shared: &RunFacts, dataset: &str) -> PathBuf {
    shared.state.sources(&shared.workspace).join(dataset)
}

/// Hashes of files that are as they were when they were read. Of those that only look other, the position and what their
/// hash was.
fn fill_hashes(
    tree: &mut Manifest,
    stamps: &[Option<Stamp>],
    file: &Path,
    root: &Path,
) -> Vec<(usize, Hash)> {
    let known = source_memory::read(file, root);
    let (touched, used) = fill(tree, stamps, &known);
    if used.len() < known.len() {
        // Files that the source no longer holds are forgotten: the memory never outgrows the source.
        source_memory::write(file, root, used);
    }
    touched
}

/// The same from what is known; and what of that is still of use.
fn fill(
    tree: &mut Manifest,
    stamps: &[Option<Stamp>],
    known: &StampedFiles,
) -> (Vec<(usize, Hash)>, StampedFiles) {
    let mut used = StampedFiles::new();
    let mut touched = Vec::new();
    for (at, (entry, stamp)) in tree.entries.iter_mut().zip(stamps).enumerate() {
        let Some(before) = known.get(&entry.path) else {
            continue;
        };
        let same = alike(entry, &before.0) && *stamp == Some(before.1);
        let (
            EntryKind::File {
                hash: Some(known),
                size: once,
                ..
            },
            EntryKind::File { hash, size, .. },
        ) = (&before.0.kind, &mut entry.kind)
        else {
            continue;
        };
        if hash.is_some() {
            continue;
        } else if same {
            *hash = Some(*known);
        } else if size == once {
            touched.push((at, *known));
        } else {
            continue;
        }
        used.insert(before.0.path.clone(), before.clone());
    }
    (touched, used)
}

/// A source as a run would find it.
#[derive(Debug, Default)]
pub struct SourceLook {
    /// Its content, with the hashes that are known.
    pub tree: Manifest,
    /// Files that are not what they were when they were read last.
    pub changed: Vec<String>,
    /// Files that were read and are gone.
    pub gone: Vec<String>,
    /// Files that nobody has read yet; none of a source of which nothing is remembered.
    pub new: Vec<String>,
}

/// How much is read of files that look changed since they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RereadScope {
    /// Until one is found that has other content: for a run, which reads the others when it stages them.
    UntilChanged,
    /// All: for a plan, which stages nothing and has to know for each entry whether it is what it was.
    All,
}

/// Looks at a source as a run does when it lists it, and changes nothing that is remembered of it. Files that may be what they were
/// are read, as a run reads them that may take over what earlier runs have committed.
///
/// # Errors
/// When it cannot be listed.
pub fn look_at_source(
    state: &StateDir,
    workspace: &str,
    dataset: &Dataset,
    reading: RereadScope,
    mover: &dyn Mover,
) -> Result<SourceLook, RunError> {
    let control = Control::default();
    let root = resolve(dataset.source.as_deref().unwrap_or(Path::new("")));
    let mut tree = mover.list_source(&root, &control)?;
    let stamps = stamps(&root, &tree);
    let known = source_memory::read(&state.sources(workspace).join(&dataset.name), &root);
    let (touched, _) = fill(&mut tree, &stamps, &known);
    let reading_all = reading == RereadScope::All;
    // One part has changed as a whole.
    let reading = match dataset.partition {
        VersionPartitioning::Whole => RereadScope::UntilChanged,
        VersionPartitioning::Entries | VersionPartitioning::Ranks => reading,
    };
    read_touched(mover, &root, &mut tree, &touched, reading, &control);
    if reading_all && !is_object(&root) {
        let folder = is_tree(&root);
        let why = tree.entries.iter().find_map(|e| match e.kind {
            EntryKind::File { size, .. } => why_not_copied(&on_disk(&root, folder, &e.path), size),
            _ => None,
        });
        if let Some(why) = why {
            return Err(failure(RunErrorKind::Io, why));
        }
    }
    let name = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let mut look = SourceLook::default();
    for entry in &tree.entries {
        let EntryKind::File { size, hash, .. } = &entry.kind else {
            continue;
        };
        match known.get(&entry.path) {
            None if known.is_empty() => {}
            None => look.new.push(name(&entry.path)),
            Some((once, _)) => {
                let same = match &once.kind {
                    EntryKind::File {
                        size: once_size,
                        hash: once_hash,
                        ..
                    } if hash.is_some() => hash == once_hash && size == once_size,
                    // Behind the first that has changed none is read: its time has to do.
                    EntryKind::File {
                        size: once_size, ..
                    } => size == once_size && entry.mtime == once.mtime,
                    _ => false,
                };
                if !same {
                    look.changed.push(name(&entry.path));
                }
            }
        }
    }
    let gone = known.keys().filter(|path| tree.find(path).is_none());
    look.gone = gone.map(|path| name(path)).collect();
    look.tree = tree;
    Ok(look)
}

/// Reads files whose content may be what it was, so that steps which read them need not run again, and remembers that.
fn look_again(
    shared: &DataContext,
    data: DataId,
    tree: &mut Manifest,
    touched: &[(usize, Hash)],
    control: &Control,
) {
    let source = shared.dataset(data).ok().and_then(|d| d.source.as_deref());
    let Some(root) = source.map(resolve) else {
        return;
    };
    let began = wall_clock();
    let until = RereadScope::UntilChanged;
    let read = read_touched(&*shared.mover, &root, tree, touched, until, control);
    remember(shared, data, &read, began);
}

/// Reads files; of a run until one has other content than it had: then most of the source is likely new, and is read when it is staged.
fn read_touched(
    mover: &dyn Mover,
    root: &Path,
    tree: &mut Manifest,
    touched: &[(usize, Hash)],
    reading: RereadScope,
    control: &Control,
) -> Manifest {
    let folder = is_tree(root);
    let mut read = Manifest::default();
    for (at, known) in touched {
        let Some(entry) = tree.entries.get_mut(*at) else {
            continue;
        };
        let file = on_disk(root, folder, &entry.path);
        // There by a link, perhaps.
        let file = match is_object(root) {
            true => file,
            false => std::fs::canonicalize(&file).unwrap_or(file),
        };
        let found = mover.digest(&file, control);
        // A file that cannot be read now is reported when it is staged.
        let found = found.ok().and_then(|m| m.entries.into_iter().next());
        let now = found.as_ref().and_then(|f| match &f.kind {
            EntryKind::File { hash, .. } => *hash,
            _ => None,
        });
        if now != Some(*known) {
            match reading {
                RereadScope::UntilChanged => break,
                RereadScope::All => continue,
            }
        }
        if let EntryKind::File { hash, .. } = &mut entry.kind {
            *hash = now;
        }
        read.entries.push(entry.clone());
    }
    read
}

/// Forgets all that is remembered of a source, as it has other content. If this world does not remember it, the one that does
/// gets the new content instead ([`tarn_ports::NodeWorld::learned`]).
pub(crate) fn forget(shared: &DataContext, data: DataId) {
    if !shared.is_home() {
        return;
    }
    let Ok(dataset) = shared.dataset(data) else {
        return;
    };
    if let Ok(mut memory) = shared.remembered.lock() {
        memory.fresh.remove(&data);
        // A file that cannot be removed is found wrong, and read again, the next time as well.
        let _ = std::fs::remove_file(memory_file(shared, &dataset.name));
    }
}

/// A part of a source has been read, beginning at `began`: its hashes hold as long as the files look the same.
pub(crate) fn remember(shared: &DataContext, data: DataId, manifest: &Manifest, began: i64) {
    if !shared.is_home() {
        return;
    }
    let source = shared.dataset(data).ok().and_then(|d| d.source.as_deref());
    let Some(root) = source.map(resolve) else {
        return;
    };
    let stamps = stamps(&root, manifest);
    let young = settled_before(&root, began);
    let files = manifest.entries.iter().zip(stamps);
    let read = files.filter(|(e, _)| matches!(e.kind, EntryKind::File { .. }));
    let read = read.map(|(e, stamp)| {
        let settled = stamp.filter(|s| s.changed < young && e.mtime < young);
        let stamp = settled.unwrap_or(Stamp::UNSURE);
        (e.path.clone(), (e.clone(), stamp))
    });
    let Ok(mut memory) = shared.remembered.lock() else {
        return;
    };
    memory.fresh.entry(data).or_default().extend(read);
    let due = memory.flushed.get_or_insert_with(Instant::now).elapsed() >= FLUSH;
    drop(memory);
    if due {
        flush(shared);
    }
}

/// Remembers what another world has read of sources in a transfer that began at this time.
pub(crate) fn learn(shared: &DataContext, transfer: &Transfer, began: i64) {
    let read = transfer.parts.iter().filter(|p| p.from == Place::Source);
    for part in read {
        let known = shared.known(&part.part);
        // A part that is not remembered is read again by the next run.
        if let Ok(manifest) = known.and_then(|(_, key)| shared.manifest(&key)) {
            remember(shared, part.part.data, &manifest, began);
        }
    }
}

/// Writes what is remembered. A memory that cannot be written is no reason to fail a run.
pub(crate) fn flush(shared: &DataContext) {
    let Ok(mut remembered) = shared.remembered.lock() else {
        return;
    };
    remembered.flushed = Some(Instant::now());
    for (data, fresh) in std::mem::take(&mut remembered.fresh) {
        let Ok(dataset) = shared.dataset(data) else {
            continue;
        };
        let Some(root) = dataset.source.as_deref().map(resolve) else {
            continue;
        };
        let file = memory_file(shared, &dataset.name);
        let mut all = source_memory::read(&file, &root);
        all.extend(fresh);
        source_memory::write(&file, &root, all);
    }
}
