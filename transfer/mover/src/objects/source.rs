//! A tree of a store, as one that is fetched.

use super::listing::made_of;
use super::{StoreLocation, hash_of};
use crate::error::{Result, show};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use tarn_ports::{MoverError, ObjectBody, ObjectStore, PeerStream, PeerTree, Piece, Watch};
use tarn_types::event::RunErrorKind;
use tarn_types::hash::Hash;
use tarn_types::manifest::{EntryKind, Manifest};
use tarn_types::object::ObjectUrl;

/// A tree of a store, with the content of its manifest.
#[derive(Debug)]
pub(crate) struct ObjectTree {
    store: Arc<dyn ObjectStore>,
    at: ObjectUrl,
    manifest: Manifest,
    /// The ETags of objects that are read in several pieces: all of one object.
    pins: Mutex<BTreeMap<Box<[u8]>, String>>,
}

impl ObjectTree {
    pub(crate) fn new(place: &StoreLocation<'_>, manifest: Manifest) -> Self {
        Self {
            store: Arc::clone(place.store),
            at: place.at.clone(),
            manifest,
            pins: Mutex::default(),
        }
    }

    fn key(&self, path: &[u8]) -> Result<ObjectUrl> {
        self.at.at(path).map_err(|why| {
            let text = format!("`{}` cannot be read from {}: {why}", show(path), self.at);
            MoverError::new(RunErrorKind::Io, text)
        })
    }

    fn changed(&self, path: &[u8]) -> MoverError {
        crate::error::changed(
            &format!("{}{}", self.at, show(path)),
            "was replaced since it was listed",
        )
    }

    /// Opens a stretch of a file, and sees to it that it is of the listed object, and all stretches of one object.
    fn open<'a>(
        &'a self,
        path: &[u8],
        range: Range<u64>,
        watch: &'a dyn Watch,
    ) -> Result<Box<dyn ObjectBody + 'a>> {
        let pinned = crate::queue::lock(&self.pins).get(path).cloned();
        let whole = range.start == 0;
        let end = range.end;
        let body = self
            .store
            .open(&self.key(path)?, range, pinned.as_deref(), watch)?;
        let entry = self.manifest.find(path);
        let as_listed = entry.is_some_and(|entry| match entry.kind {
            // A known hash decides, at the end.
            EntryKind::File { size, hash, .. } => {
                size == body.size() && (hash.is_some() || made_of(entry, body.etag()))
            }
            _ => false,
        });
        if !as_listed {
            return Err(self.changed(path));
        }
        if !(whole && end == body.size()) {
            let mut pins = crate::queue::lock(&self.pins);
            let pin = pins
                .entry(path.into())
                .or_insert_with(|| body.etag().into());
            if *pin != body.etag() {
                return Err(self.changed(path));
            }
        }
        Ok(body)
    }

    /// The hash of a file, all of which is read.
    pub(crate) fn hash_of(&self, path: &[u8], size: u64, watch: &dyn Watch) -> Result<Hash> {
        if size == 0 {
            return hash_of(0, watch, |_| Ok(()));
        }
        let mut body = self.open(path, 0..size, watch)?;
        hash_of(size, watch, |buffer| body.fill(buffer))
    }
}

impl PeerTree for ObjectTree {
    fn name(&self) -> String {
        self.at.to_string()
    }

    fn open<'a>(&'a self, watch: &'a dyn Watch) -> Result<Box<dyn PeerStream + 'a>> {
        Ok(Box::new(ObjectTreeStream {
            tree: self,
            watch,
            wanted: VecDeque::new(),
            open: None,
        }))
    }

    fn streams(&self) -> Option<usize> {
        Some(super::STREAMS)
    }
}

/// A thread's requests to a store.
struct ObjectTreeStream<'a> {
    tree: &'a ObjectTree,
    watch: &'a dyn Watch,
    /// The ranges still to be read, in order.
    wanted: VecDeque<(Box<[u8]>, Range<u64>)>,
    /// The object that is being read, and the number of its bytes that are still to come.
    open: Option<(Box<dyn ObjectBody + 'a>, u64)>,
}

impl PeerStream for ObjectTreeStream<'_> {
    fn ask(&mut self, pieces: &[Piece<'_>]) -> Result<()> {
        for piece in pieces {
            let range = piece.offset..piece.offset + piece.len;
            match self.wanted.back_mut() {
                // One request for adjacent ranges.
                Some((path, last)) if **path == *piece.path && last.end == range.start => {
                    last.end = range.end;
                }
                _ => self.wanted.push_back((piece.path.into(), range)),
            }
        }
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<()> {
        let mut at = 0;
        while at < buffer.len() {
            let (mut body, left) = match self.open.take() {
                Some(open) => open,
                None => {
                    let (path, range) = self.wanted.pop_front().ok_or_else(|| {
                        let text = format!("more was read of {} than was asked for", self.tree.at);
                        MoverError::new(RunErrorKind::Io, text)
                    })?;
                    let left = range.end - range.start;
                    (self.tree.open(&path, range, self.watch)?, left)
                }
            };
            let now = usize::try_from(left)
                .unwrap_or(usize::MAX)
                .min(buffer.len() - at);
            body.fill(&mut buffer[at..at + now])?;
            at += now;
            self.open = Some((body, left - now as u64)).filter(|(_, left)| *left > 0);
        }
        Ok(())
    }
}
