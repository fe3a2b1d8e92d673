//! The manifest that tarn puts into a tree of a store, as its last object: the facts about files that objects lack (modes, times,
//! links, empty folders, attributes, hashes), each file's tied to its object by the ETag.
//! docs/reference/formats.md has the bytes.

use crate::error::Result;
use std::collections::BTreeMap;
use tarn_ports::{MoverError, ObjectMetadata, ObjectStore, Watch};
use tarn_types::event::RunErrorKind;
use tarn_types::manifest::{Entry, EntryKind, Manifest, Xattr};
use tarn_types::object::ObjectUrl;

/// Its name in the tree.
pub(crate) const NAME: &str = ".tarn-manifest";
/// The attribute that ties a file to its object.
const ETAG: &[u8] = b"tarn.etag";
/// Bits of a mode that are kept: a stranger's setuid bit is no promise of anybody's here.
const MODE: u32 = 0o777;
/// Bytes that one can have: `MAX_ENTRIES` of some 60 bytes.
const MAX_BYTES: u64 = 1 << 30;

/// The manifest's entry for each path; for a file with its object's ETag.
pub(crate) type MarkerEntries = BTreeMap<Box<[u8]>, (Entry, String)>;

/// The bytes of the manifest in the store, made from this tree and the objects' ETags.
pub(crate) fn write(tree: &Manifest, etag: impl Fn(&[u8]) -> Option<String>) -> Vec<u8> {
    let entries = tree.entries.iter().map(|entry| {
        let mut xattrs: Vec<Xattr> = users(&entry.xattrs);
        if let Some(etag) = etag(&entry.path) {
            xattrs.push((ETAG.into(), etag.into_bytes().into()));
        }
        xattrs.sort();
        Entry {
            mode: mode(entry),
            xattrs: xattrs.into(),
            ..entry.clone()
        }
    });
    Manifest {
        entries: entries.collect(),
    }
    .encode()
}

fn mode(entry: &Entry) -> u32 {
    match entry.kind {
        EntryKind::Symlink(_) => entry.mode,
        _ => entry.mode & MODE,
    }
}

fn users(xattrs: &[Xattr]) -> Vec<Xattr> {
    let user = |x: &&Xattr| x.0.starts_with(b"user.");
    xattrs.iter().filter(user).cloned().collect()
}

/// Reads the one that was found in a tree.
pub(crate) fn read(
    store: &dyn ObjectStore,
    tree: &ObjectUrl,
    found: &ObjectMetadata,
    watch: &dyn Watch,
) -> Result<MarkerEntries> {
    let at = tree.object(found.key.clone());
    let damaged = |why: String| {
        let text = format!(
            "{at}, in which tarn keeps what objects cannot store of files, cannot be read: {why}; remove it, and the objects count as \
             they are"
        );
        MoverError::new(RunErrorKind::Io, text)
    };
    if found.size == 0 || found.size > MAX_BYTES {
        return Err(damaged(format!("it has {} bytes", found.size)));
    }
    let mut bytes = vec![0; found.size as usize];
    let mut body = store.open(&at, 0..found.size, Some(&found.etag), watch)?;
    body.fill(&mut bytes)?;
    drop(body);
    let tree = Manifest::decode(&bytes).map_err(|e| damaged(e.to_string()))?;
    let marked = tree.entries.into_iter().map(|entry| {
        let own = entry.xattrs.iter().find(|x| *x.0 == *ETAG);
        let etag = own.map(|x| String::from_utf8_lossy(&x.1).into_owned());
        let plain = Entry {
            mode: mode(&entry),
            xattrs: users(&entry.xattrs).into(),
            ..entry
        };
        (plain.path.clone(), (plain, etag.unwrap_or_default()))
    });
    Ok(marked.collect())
}
