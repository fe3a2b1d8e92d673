//! The memory of a source between runs: `<state>/sources/<workspace>/<dataset>`. docs/reference/formats.md describes
//! the file.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;
use tarn_types::hash::Hash;
use tarn_types::id::DataId;
use tarn_types::manifest::{Entry, EntryKind, Manifest, parent};

const MAGIC: &[u8; 8] = b"tarnsrc1";
const HASH_BYTES: usize = 16;

/// The facts of a file that a program cannot set back: they tell a changed file of the same size and time from the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// When the file's inode was changed last, in nanoseconds since 1970.
    pub(crate) changed: i64,
    pub(crate) inode: u64,
}

impl Stamp {
    /// Of a file that could still change unseen when it was read: no file has it, so its content is looked at again.
    pub(crate) const UNSURE: Self = Self {
        changed: i64::MIN,
        inode: 0,
    };

    /// Of an object of a store, whose size and time in a manifest tell it from every other: the time is made of its ETag.
    pub(crate) const OBJECT: Self = Self {
        changed: i64::MIN + 1,
        inode: 0,
    };

    /// Of a file, or of the one that a link stands for; `None` when it cannot be looked at.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let meta = std::fs::metadata(path).ok()?;
        let changed = meta.ctime().saturating_mul(1_000_000_000);
        Some(Self {
            changed: changed.saturating_add(meta.ctime_nsec()),
            inode: meta.ino(),
        })
    }
}

/// Files with hashes and stamps.
pub(crate) type StampedFiles = BTreeMap<Box<[u8]>, (Entry, Stamp)>;

/// Files of sources with hashes that were read in this run, to be written to `<state>/sources`.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    pub(crate) fresh: BTreeMap<DataId, StampedFiles>,
    pub(crate) flushed: Option<Instant>,
}

/// The known files of `source`. None, when the memory is missing, damaged, or of another source: then files are read again.
pub(crate) fn read(file: &Path, source: &Path) -> StampedFiles {
    let decoded = std::fs::read(file).ok().and_then(|b| decode(&b, source));
    decoded.unwrap_or_default()
}

fn decode(bytes: &[u8], source: &Path) -> Option<StampedFiles> {
    let (body, hash) = bytes.split_last_chunk::<HASH_BYTES>()?;
    if Hash::of(body) != Hash(u128::from_le_bytes(*hash)) {
        return None;
    }
    let rest = body.strip_prefix(MAGIC)?;
    let (path, rest) = field(rest)?;
    if path != source.as_os_str().as_encoded_bytes() {
        return None;
    }
    let (manifest, mut stamps) = field(rest)?;
    let mut files = StampedFiles::new();
    let all = Manifest::decode(manifest).ok()?.entries;
    for entry in all.into_iter().filter(is_file) {
        let (changed, rest) = stamps.split_first_chunk::<8>()?;
        let (inode, rest) = rest.split_first_chunk::<8>()?;
        stamps = rest;
        let stamp = Stamp {
            changed: i64::from_le_bytes(*changed),
            inode: u64::from_le_bytes(*inode),
        };
        files.insert(entry.path.clone(), (entry, stamp));
    }
    stamps.is_empty().then_some(files)
}

/// Replaces the memory. Losing it costs only reading again, so that nothing is synced and no error reported.
pub(crate) fn write(file: &Path, source: &Path, mut files: StampedFiles) {
    let manifest = with_folders(&files);
    let mut bytes = MAGIC.to_vec();
    for part in [
        source.as_os_str().as_encoded_bytes(),
        manifest.encode().as_slice(),
    ] {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part);
    }
    for entry in manifest.entries.iter().filter(|e| is_file(e)) {
        if let Some((_, stamp)) = files.remove(&entry.path) {
            bytes.extend_from_slice(&stamp.changed.to_le_bytes());
            bytes.extend_from_slice(&stamp.inode.to_le_bytes());
        }
    }
    let hash = Hash::of(&bytes);
    bytes.extend_from_slice(&hash.0.to_le_bytes());
    let temporary = file.with_extension(format!("{}.tmp", std::process::id()));
    let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
    let written = folder.and_then(|()| std::fs::write(&temporary, bytes));
    if written
        .and_then(|()| std::fs::rename(&temporary, file))
        .is_err()
    {
        let _ = std::fs::remove_file(&temporary);
    }
}

/// A length and so many bytes.
fn field(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

fn is_file(entry: &Entry) -> bool {
    matches!(entry.kind, EntryKind::File { .. })
}

/// A manifest needs the folders of its files.
fn with_folders(files: &StampedFiles) -> Manifest {
    let mut folders = BTreeSet::new();
    for path in files.keys() {
        let mut at: &[u8] = path;
        while let Some(above) = parent(at) {
            if !folders.insert(Box::<[u8]>::from(above)) {
                break;
            }
            at = above;
        }
    }
    // A file may have become a folder since: then it is forgotten as a file.
    let kept = files.values().filter(|(e, _)| !folders.contains(&e.path));
    let mut all: BTreeMap<_, _> = kept.map(|(e, _)| (e.path.clone(), e.clone())).collect();
    for path in folders {
        let folder = Entry {
            path: path.clone(),
            kind: EntryKind::Directory,
            mode: 0o755,
            mtime: 0,
            xattrs: Box::default(),
        };
        all.insert(path, folder);
    }
    let mut manifest = Manifest {
        entries: all.into_values().collect(),
    };
    manifest.renumber_links();
    manifest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, hash: u128) -> (Box<[u8]>, (Entry, Stamp)) {
        let kind = EntryKind::File {
            size: 3,
            hash: Some(Hash(hash)),
            link_group: 0,
            extents: Box::default(),
        };
        let entry = Entry {
            path: path.as_bytes().into(),
            kind,
            mode: 0o644,
            mtime: 7,
            xattrs: Box::default(),
        };
        let stamp = Stamp {
            changed: hash as i64,
            inode: 5,
        };
        (path.as_bytes().into(), (entry, stamp))
    }

    #[test]
    fn what_is_written_is_read_for_the_same_source_only() {
        let dir = tempfile::tempdir().unwrap();
        let (at, source) = (dir.path().join("ws/d"), Path::new("/s1"));
        let files: StampedFiles = [file("a", 1), file("b/c", 2)].into();
        write(&at, source, files.clone());
        assert_eq!(read(&at, source), files);
        assert_eq!(read(&at, Path::new("/s2")), StampedFiles::new());
        let mut bytes = std::fs::read(&at).unwrap();
        for n in 0..bytes.len() {
            bytes[n] ^= 1;
            assert_eq!(decode(&bytes, source), None, "byte {n}");
            bytes[n] ^= 1;
            assert_eq!(decode(&bytes[..n], source), None, "cut at {n}");
        }
    }

    #[test]
    fn a_file_that_became_a_folder_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let (at, source) = (dir.path().join("d"), Path::new("/s"));
        write(&at, source, [file("a", 1), file("a/b", 2)].into());
        assert_eq!(read(&at, source), [file("a/b", 2)].into());
    }
}
