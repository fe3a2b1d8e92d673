//! Trees of an object store: listed, fetched as a peer's tree is, and put. docs/guide/object-stores.md describes such a
//! tree.

mod deliver;
mod delivery;
mod listing;
mod marker;
mod owned;
mod owner;
mod reading;
mod source;
mod upload;
mod withdraw;

pub(crate) use deliver::deliver;
pub(crate) use listing::{is_there, list};
pub(crate) use owned::check;
pub(crate) use withdraw::{is_whole, withdraw};

use crate::content::{CHUNK, ChunkHash, chunk, file};
use crate::error::Result;
use source::ObjectTree;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tarn_ports::{Control, CopySource, MoverError, ObjectStore, PeerTree, Watch};
use tarn_seal::file::{content_len, sealed_len};
use tarn_types::event::RunErrorKind;
use tarn_types::hash::Hash;
use tarn_types::key::DataKey;
use tarn_types::manifest::{EntryKind, Manifest};
use tarn_types::object::{ObjectUrl, ObjectUrlError, shown};

/// Requests of one operation that are under way at once. A request to a store takes tens of milliseconds, nearly all of it waiting.
pub(crate) const STREAMS: usize = 16;
/// Bytes of a thread's stack: a handshake of TLS has deep calls.
pub(crate) const STACK: usize = 1 << 20;
/// Bytes of parts of objects that an operation holds in memory, unless one part alone has more.
const HELD: u64 = 256 << 20;

/// A store and a place in it.
pub(crate) struct StoreLocation<'a> {
    pub(crate) store: &'a Arc<dyn ObjectStore>,
    pub(crate) at: ObjectUrl,
}

impl StoreLocation<'_> {
    /// An object of tarn's own, by its name in the tree.
    fn own(&self, name: &str) -> Result<ObjectUrl> {
        self.usable(self.at.at(name.as_bytes()))
    }

    /// The note of an upload that is under way: in the tree, or beside the one object.
    fn note(&self) -> Result<ObjectUrl> {
        match self.at.is_tree() {
            true => self.own(upload::NAME),
            false => self.usable(self.at.beside(upload::NAME)),
        }
    }

    fn usable(&self, at: std::result::Result<ObjectUrl, ObjectUrlError>) -> Result<ObjectUrl> {
        at.map_err(|why| {
            let text = format!("{} cannot be used: {why}", self.at);
            MoverError::new(RunErrorKind::Io, text)
        })
    }
}

/// The place in an object store that a path names; `None` for any other path.
pub(crate) fn place<'a>(
    store: Option<&'a Arc<dyn ObjectStore>>,
    path: &Path,
) -> Option<Result<StoreLocation<'a>>> {
    let at = ObjectUrl::of(path)?;
    let refused = |why: &dyn std::fmt::Display| {
        let text = format!("`{}` cannot be used: {why}", shown(path));
        MoverError::new(RunErrorKind::Io, text)
    };
    Some(match (at, store) {
        (Err(why), _) => Err(refused(&why)),
        (Ok(_), None) => Err(refused(&"nothing here speaks to object stores")),
        (Ok(at), Some(store)) => Ok(StoreLocation { store, at }),
    })
}

/// A source that is in a store, as one that is fetched like a peer's.
pub(crate) fn fetched(
    place: &StoreLocation<'_>,
    source: &CopySource,
    watch: &dyn Watch,
) -> Result<CopySource> {
    let mut manifest = match (&source.manifest, &source.sealed) {
        (Some(manifest), _) => manifest.clone(),
        (None, None) => list(&**place.store, &place.at, watch)?,
        (None, Some(_)) => opened(list(&**place.store, &place.at, watch)?),
    };
    if let (Some(name), [only], false) = (
        &source.as_entry,
        &mut manifest.entries[..],
        place.at.is_tree(),
    ) {
        only.path = name.as_bytes().into();
    }
    let stored = match &source.sealed {
        Some(_) => resized(manifest.clone(), sealed_len),
        None => manifest.clone(),
    };
    Ok(CopySource {
        root: PathBuf::new(),
        peer: Some(as_peer(place, stored)),
        // The paths of its manifest say where it is.
        as_entry: None,
        manifest: Some(manifest),
        ..source.clone()
    })
}

/// The content of a place, as a tree that is read like a peer's.
pub(crate) fn as_peer(place: &StoreLocation<'_>, manifest: Manifest) -> Arc<dyn PeerTree> {
    Arc::new(ObjectTree::new(place, manifest))
}

/// The manifest of the content of sealed files, from one of the sealed files themselves.
fn opened(mut stored: Manifest) -> Manifest {
    for entry in &mut stored.entries {
        if let EntryKind::File { hash, .. } = &mut entry.kind {
            *hash = None;
        }
    }
    resized(stored, content_len)
}

/// Files have other sizes when they are sealed; one that cannot be, or is none, has a size that nothing has.
fn resized(mut manifest: Manifest, by: fn(u64) -> Option<u64>) -> Manifest {
    for entry in &mut manifest.entries {
        if let EntryKind::File { size, .. } = &mut entry.kind {
            *size = by(*size).unwrap_or(u64::MAX);
        }
    }
    manifest
}

/// Reads all objects of a tree whole: its manifest with their hashes. If the objects are sealed with a key, it is that of
/// their content.
pub(crate) fn digest(
    place: &StoreLocation<'_>,
    key: Option<&Arc<DataKey>>,
    control: &Control,
) -> Result<Manifest> {
    let stored = list(&**place.store, &place.at, control)?;
    let tree = ObjectTree::new(place, stored.clone());
    let mut manifest = match key {
        Some(_) => opened(stored),
        None => stored,
    };
    let files = manifest.entries.iter_mut();
    let hashes: Vec<_> = files
        .filter_map(|entry| match &mut entry.kind {
            EntryKind::File { size, hash, .. } => {
                Some((entry.path.clone(), *size, Mutex::new(hash)))
            }
            _ => None,
        })
        .collect();
    together(
        &hashes,
        STREAMS,
        control,
        || (),
        |(), (path, size, hash)| {
            let read = match key {
                None => tree.hash_of(path, *size, control)?,
                Some(key) => reading::sealed_hash_of(&tree, (path, *size), key, control)?,
            };
            **crate::queue::lock(hash) = Some(read);
            control.advance(*size);
            Ok(())
        },
    )?;
    drop(hashes);
    Ok(manifest)
}

/// The hash of content that comes chunk by chunk: `fill` fills a buffer with the next bytes. It may be cancelled between two.
fn hash_of(
    size: u64,
    watch: &dyn Watch,
    mut fill: impl FnMut(&mut [u8]) -> Result<()>,
) -> Result<Hash> {
    let mut hashes = Vec::new();
    let mut buffer = vec![0; CHUNK.min(usize::try_from(size).unwrap_or(CHUNK))];
    let mut left = size;
    while left > 0 {
        if watch.stopped() {
            return Err(crate::error::cancelled());
        }
        let now = &mut buffer[..CHUNK.min(usize::try_from(left).unwrap_or(CHUNK))];
        fill(now)?;
        hashes.push(chunk(now));
        left -= now.len() as u64;
    }
    Ok(file(&hashes))
}

/// The hashes of the chunks of a stretch that begins with one.
fn chunks_of(bytes: &[u8]) -> Vec<ChunkHash> {
    bytes.chunks(CHUNK).map(chunk).collect()
}

/// Does all of them on so many threads, each with something of its own; the first failure ends it.
fn together<T: Sync, S>(
    items: &[T],
    threads: usize,
    control: &Control,
    own: impl Fn() -> S + Sync,
    each: impl Fn(&mut S, &T) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let failure = Mutex::new(None);
    let work = || {
        let mut own = own();
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let done = match control.cancelled() {
                true => Err(crate::error::cancelled()),
                false => each(&mut own, item),
            };
            if let Err(error) = done {
                stop.store(true, Ordering::Relaxed);
                crate::queue::lock(&failure).get_or_insert(error);
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(items.len()) {
            // If no more threads can be had, fewer do it.
            let _ = std::thread::Builder::new()
                .stack_size(STACK)
                .spawn_scoped(scope, work);
        }
        work();
    });
    let failure = failure
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    failure.map_or(Ok(()), Err)
}
