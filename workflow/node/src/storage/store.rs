//! Manifests on disk, what two listings of one tree have to agree in, and the space a tree takes.

use rustix::fs::CWD;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tarn_types::event::{RunError, RunErrorKind};
use tarn_types::hash::Hash;
use tarn_types::manifest::{Entry, EntryKind, Manifest};

/// The unit in which file systems give out space (tmpfs, ext4 and xfs by default).
const BLOCK: u64 = 4096;
/// Manifests written at once from which one `syncfs` is cheaper than a sync of each file.
const SYNC_EACH: usize = 16;

/// A failure of a system call, with what was being done.
pub(crate) fn io_failure(what: &str, path: &Path, error: &io::Error) -> RunError {
    let full = matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    );
    let (kind, remedy) = if full {
        (
            RunErrorKind::NoSpace,
            "; free space there, then `tarn resume`",
        )
    } else {
        (RunErrorKind::Io, "")
    };
    RunError {
        kind,
        message: format!("cannot {what} {}: {error}{remedy}", path.display()),
    }
}

/// A failure of a kind.
pub(crate) fn failure(kind: RunErrorKind, message: impl Into<String>) -> RunError {
    RunError {
        kind,
        message: message.into(),
    }
}

/// Prints a text on stderr that no event can carry. If stderr is closed, nobody wants to know.
pub(crate) fn warn(text: &str) {
    let _ = std::io::stderr().write_all(format!("tarn: {text}\n").as_bytes());
}

/// Creates a folder and its parents.
pub(crate) fn make_folder(path: &Path) -> Result<(), RunError> {
    std::fs::create_dir_all(path).map_err(|e| io_failure("create the folder", path, &e))
}

/// The paths in a folder; none where it cannot be read.
pub(crate) fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .collect()
}

/// Removes a file that may be missing.
pub(crate) fn remove_file(path: &Path) -> Result<(), RunError> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(io_failure("remove", path, &e)),
        _ => Ok(()),
    }
}

/// Reads a manifest.
pub(crate) fn read_manifest(path: &Path) -> Result<Manifest, RunError> {
    let bytes = std::fs::read(path).map_err(|e| io_failure("read the manifest", path, &e))?;
    Manifest::decode(&bytes).map_err(|e| {
        failure(
            RunErrorKind::Corrupt,
            format!(
                "the manifest {} is damaged: {e}; its data must be made or read again",
                path.display()
            ),
        )
    })
}

/// Writes manifests, each whole or not at all (temporary file and rename). With `durable` they survive a crash
/// of the machine; without, only one of tarn, which is enough for what describes data in memory.
pub fn write_manifests<'a>(
    items: impl IntoIterator<Item = (&'a Path, &'a Manifest)>,
    durable: bool,
) -> Result<(), RunError> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut written: Vec<TemporaryManifest<'a>> = Vec::new();
    for (path, manifest) in items {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let item = TemporaryManifest::new(path, n, manifest);
        written.push(item.map_err(|e| io_failure("write the manifest", path, &e))?);
        if written.len() >= 256 {
            publish(std::mem::take(&mut written), durable)?;
        }
    }
    publish(written, durable)
}

/// A manifest that is written under a temporary name, which does not outlive it: it is renamed or removed.
struct TemporaryManifest<'a> {
    temporary: PathBuf,
    path: &'a Path,
    file: File,
    renamed: bool,
}

impl<'a> TemporaryManifest<'a> {
    fn new(path: &'a Path, number: u64, manifest: &Manifest) -> io::Result<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.{number}.tmp", std::process::id()));
        let temporary = PathBuf::from(name);
        let file = File::create(&temporary)?;
        let mut written = Self {
            temporary,
            path,
            file,
            renamed: false,
        };
        written.file.write_all(&manifest.encode())?;
        Ok(written)
    }
}

impl Drop for TemporaryManifest<'_> {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

fn publish(mut written: Vec<TemporaryManifest<'_>>, durable: bool) -> Result<(), RunError> {
    let at_once = durable && written.len() > SYNC_EACH;
    if at_once && let Some(TemporaryManifest { path, file, .. }) = written.first() {
        rustix::fs::syncfs(file).map_err(|e| io_failure("sync", path, &e.into()))?;
    }
    let mut folders = BTreeSet::new();
    for item in &mut written {
        let path = item.path;
        let mut done = || -> io::Result<()> {
            let file = &item.file;
            // A file that is replaced must be whole at any time. A new one that a crash of the machine leaves torn is known by
            // its checksum, and nothing refers to it yet: after the rename, one commit of the file system takes content and name
            // together.
            let sync = durable && !at_once;
            let replaces = sync && path.symlink_metadata().is_ok();
            if replaces {
                file.sync_data()?;
            }
            std::fs::rename(&item.temporary, path)?;
            item.renamed = true;
            match sync && !replaces {
                true => file.sync_data(),
                false => Ok(()),
            }
        };
        done().map_err(|e| io_failure("write the manifest", path, &e))?;
        folders.extend(path.parent());
    }
    for folder in folders.into_iter().filter(|_| durable) {
        sync_folder(folder).map_err(|e| io_failure("sync the folder", folder, &e))?;
    }
    Ok(())
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// The space that a folder takes with all that is in it, while others may change that: an entry that cannot be looked at does not
/// count.
pub(crate) fn disk_use(folder: &Path) -> u64 {
    let mut bytes = 0u64;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            bytes = bytes.saturating_add(meta.blocks().saturating_mul(512));
            if meta.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    bytes
}

/// The space a replica of this tree will take: whole blocks of every file, one for every folder and for the one that holds it all.
pub(crate) fn stored_estimate(manifest: &Manifest) -> u64 {
    let mut seen = BTreeSet::new();
    let blocks = manifest.entries.iter().map(|e| match &e.kind {
        EntryKind::File {
            size,
            link_group,
            extents,
            ..
        } => {
            if *link_group != 0 && !seen.insert(*link_group) {
                return 0;
            }
            match extents.is_empty() {
                true => size.div_ceil(BLOCK),
                false => extents.iter().map(|(_, n)| n.div_ceil(BLOCK)).sum(),
            }
        }
        EntryKind::Directory => 1,
        EntryKind::Symlink(_) => 0,
    });
    blocks
        .fold(1u64, |sum, n| sum.saturating_add(n))
        .saturating_mul(BLOCK)
}

/// The same of a replica whose files are sealed.
pub(crate) fn sealed_estimate(manifest: &Manifest) -> u64 {
    stored_estimate(&sealed(manifest))
}

/// A tree whose files are sealed, as one of files: there are no holes, and each has a header and proofs.
pub(crate) fn sealed(manifest: &Manifest) -> Manifest {
    let mut sealed = manifest.clone();
    for entry in &mut sealed.entries {
        if let EntryKind::File {
            size,
            extents,
            hash,
            ..
        } = &mut entry.kind
        {
            *size = tarn_seal::file::sealed_len(*size).unwrap_or(u64::MAX);
            *extents = Box::default();
            *hash = None;
        }
    }
    sealed
}

/// Gives a listed sealed file the size of its content; one that cannot be sealed has none that anything has.
pub(crate) fn unsealed(entry: &mut Entry) {
    if let EntryKind::File { size, .. } = &mut entry.kind {
        *size = tarn_seal::file::content_len(*size).unwrap_or(u64::MAX);
    }
}

/// The first path in which a listing differs from a manifest, judged without reading contents: kind, mode, link
/// target, and of files size and time.
pub(crate) fn first_difference(listed: &Manifest, manifest: &Manifest) -> Option<String> {
    let name = |e: &Entry| String::from_utf8_lossy(&e.path).into_owned();
    let mut pairs = listed.entries.iter().zip(&manifest.entries);
    if let Some((a, b)) = pairs.find(|(a, b)| !alike(a, b)) {
        return Some(name(if a.path <= b.path { a } else { b }));
    }
    let (a, b) = (listed.entries.len(), manifest.entries.len());
    let longer = if a > b {
        &listed.entries
    } else {
        &manifest.entries
    };
    longer.get(a.min(b)).map(name)
}

/// Whether a listed tree looks as in its manifest: names, kinds, modes, link targets, and of files sizes and times.
pub fn looks_like(listed: &Manifest, manifest: &Manifest) -> bool {
    first_difference(listed, manifest).is_none()
}

/// The hash of a file that is known.
pub(crate) fn hash_of(entry: &Entry) -> Option<Hash> {
    match entry.kind {
        EntryKind::File { hash, .. } => hash,
        _ => None,
    }
}

/// Whether two entries agree in all that can be seen without reading contents.
pub(crate) fn alike(a: &Entry, b: &Entry) -> bool {
    a.path == b.path
        && a.mode == b.mode
        && match (&a.kind, &b.kind) {
            (EntryKind::Directory, EntryKind::Directory) => true,
            (EntryKind::Symlink(x), EntryKind::Symlink(y)) => x == y,
            (EntryKind::File { size: x, .. }, EntryKind::File { size: y, .. }) => {
                x == y && a.mtime == b.mtime
            }
            _ => false,
        }
}

/// The last bytes of a file as text, from the start of a line where there is one.
pub(crate) fn tail(path: &Path, bytes: usize) -> String {
    use std::os::unix::fs::FileExt;
    let read = || -> io::Result<Vec<u8>> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let want = usize::try_from(length).unwrap_or(usize::MAX).min(bytes);
        let mut buffer = vec![0; want];
        file.read_exact_at(&mut buffer, length - want as u64)?;
        if (want as u64) < length
            && let Some(newline) = buffer.iter().position(|&b| b == b'\n')
            && newline + 1 < buffer.len()
        {
            buffer.drain(..=newline);
        }
        Ok(buffer)
    };
    read()
        .map(|b| String::from_utf8_lossy(&b).into_owned())
        .unwrap_or_default()
}

/// Whether there is a folder (not a link to one).
pub(crate) fn is_folder(path: &Path) -> bool {
    rustix::fs::statat(CWD, path, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|s| rustix::fs::FileType::from_raw_mode(s.st_mode).is_dir())
}
