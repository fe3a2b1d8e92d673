//! Putting trees into a store. A store has no renames: objects are replaced one by one, each whole or absent, objects that the
//! tree no longer has are removed after them, and tarn's own manifest is the last.

use super::delivery::{DeliveryFile, DeliveryProgress, PART, TreeDelivery};
use super::listing::TreeListing;
use super::owned::{exists, object, owned, owned_object};
use super::owner::{HASH, OWNER, PROBE, of_owner};
use super::reading::PeerSourceReader;
use super::upload::{Meant, UploadNote};
use super::{HELD, STREAMS, StoreLocation, chunks_of, hash_of, marker, together, upload};
use crate::content::{self, CHUNK, ChunkHash};
use crate::error::{Result, corrupt, show};
use crate::gather::{conflict, name_of};
use crate::queue::lock;
use crate::throttle::Limiter;
use crate::tree::SourceTree;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tarn_ports::{
    Control, CopyReport, CopySource, DeliveryJob, MoverError, ObjectMetadata, ObjectStoreError,
    Over, Replaces, Tags, Upload,
};
use tarn_types::account;
use tarn_types::event::RunErrorKind;
use tarn_types::hash::Hash;
use tarn_types::manifest::{Entry, EntryKind, Manifest};
use tarn_types::merge::merge;
use tarn_types::object::ObjectUrl;
use tarn_types::part::Verify;

/// Parts of an object (Amazon S3's bound, which others keep to).
const MAX_PARTS: u64 = 10_000;
/// Bytes of an object (Amazon S3's old bound, which others keep to).
const MAX_OBJECT: u64 = 5 << 40;
/// How often a file goes up in parts, where the store wants it again because somebody else puts an object there at the same time.
const UPLOADS: u32 = 3;
/// The file's time, as rclone writes and reads it.
const TIME: &str = "mtime";

/// Puts trees into a store. `digest` reads one whose manifest is not known.
pub(crate) fn deliver(
    place: &StoreLocation<'_>,
    job: &DeliveryJob,
    sources: &[CopySource],
    limiter: Option<Arc<Limiter>>,
    digest: &dyn Fn(&CopySource) -> Result<Manifest>,
    control: &Control,
) -> Result<CopyReport> {
    let known: Vec<Manifest> = sources
        .iter()
        .map(|s| s.manifest.clone().map_or_else(|| digest(s), Ok))
        .collect::<Result<_>>()?;
    let trees = sources.iter().enumerate();
    let trees: Vec<SourceTree<'_>> = trees
        .map(|(at, source)| SourceTree::of(source).map_err(|e| e.of_source(at)))
        .collect::<Result<_>>()?;
    let mut manifests: Vec<Manifest> = trees.iter().zip(known).map(wanted).collect();
    let merged =
        merge(&manifests.iter().collect::<Vec<_>>()).map_err(|c| conflict(&c, name_of(&trees)))?;
    let who = (&*job.owner, job.over);
    let (listing, there) = match job.single {
        true => {
            let path = only_file(&merged, &place.at)?;
            let there = owned_object(place, who, control)?;
            let there = there.map(|there| (path, there));
            (TreeListing::default(), there.into_iter().collect())
        }
        false => owned(place, who, control)?,
    };
    let putting = TreeDelivery {
        place,
        job,
        control,
        limiter,
        trees: &trees,
        manifests: &manifests,
        there: &there,
        note: Mutex::default(),
        done: Mutex::default(),
    };
    let files = putting.files(&merged)?;
    let noted = match job.single || listing.upload.is_some() {
        true => upload::noted(place, &job.owner, job.over == Over::All, control)?,
        false => UploadNote::Nothing,
    };
    if matches!(noted, UploadNote::Theirs) {
        return Err(exists(&place.note()?));
    }
    putting.replace_tree(&listing, &merged, &files, noted)?;
    let done = putting.done.into_inner();
    let done = done.unwrap_or_else(std::sync::PoisonError::into_inner);
    if !job.single {
        put_marker(place, job, &with_hashes(merged, &done.put), &done, control)?;
    }
    for manifest in &mut manifests {
        *manifest = with_hashes(std::mem::take(manifest), &done.put);
    }
    Ok(CopyReport {
        manifests,
        bytes: done.bytes,
        resumed: done.resumed,
        lost: Vec::new(),
    })
}

/// The path in a tree that is a single file.
fn only_file(merged: &Manifest, at: &ObjectUrl) -> Result<Box<[u8]>> {
    match &merged.entries[..] {
        [only] if matches!(only.kind, EntryKind::File { .. }) => Ok(only.path.clone()),
        _ => {
            let text = format!(
                "only a file can become the object {at}; a tree is put into one: {}",
                at.clone().tree()
            );
            Err(MoverError::new(RunErrorKind::Conflict, text))
        }
    }
}

fn wanted((tree, manifest): (&SourceTree<'_>, Manifest)) -> Manifest {
    let entries = manifest.entries.into_iter();
    Manifest {
        entries: entries.filter(|e| tree.wants(&e.path)).collect(),
    }
}

/// Puts tarn's own manifest of the whole tree.
fn put_marker(
    place: &StoreLocation<'_>,
    job: &DeliveryJob,
    merged: &Manifest,
    done: &DeliveryProgress,
    control: &Control,
) -> Result<()> {
    let bytes = marker::write(merged, |path| Some(done.put.get(path)?.0.clone()));
    let at = place.own(marker::NAME)?;
    let (tags, replaces) = (tags(&job.owner, None, 0), replaces(job, None));
    place.store.put(&at, &bytes, &tags, replaces, control)?;
    Ok(())
}

fn with_hashes(mut manifest: Manifest, put: &BTreeMap<Box<[u8]>, (String, Hash)>) -> Manifest {
    for entry in &mut manifest.entries {
        if let (EntryKind::File { hash, .. }, Some((_, is))) =
            (&mut entry.kind, put.get(&entry.path))
        {
            *hash = Some(*is);
        }
    }
    manifest
}

fn tags(owner: &str, hash: Option<Hash>, mtime: i64) -> Tags {
    let mut tags = vec![(OWNER.to_owned(), owner.to_owned())];
    if let Some(hash) = hash {
        let (seconds, nanos) = (
            mtime.div_euclid(1_000_000_000),
            mtime.rem_euclid(1_000_000_000),
        );
        tags.push((HASH.into(), hash.to_string()));
        tags.push((TIME.into(), format!("{seconds}.{nanos:09}")));
    }
    tags
}

/// The object that an upload may replace, given the ETag that was seen: nothing of others, unless the delivery replaces
/// everything.
fn replaces<'a>(job: &DeliveryJob, seen: Option<&'a str>) -> Replaces<'a> {
    match (job.over, seen) {
        (Over::All, _) => Replaces::Anything,
        (_, Some(etag)) => Replaces::Only(etag),
        (_, None) => Replaces::Nothing,
    }
}

/// Bytes of a part of an object of this size: whole chunks, so that their hashes make the file's.
fn part_len(size: u64) -> u64 {
    size.div_ceil(MAX_PARTS)
        .next_multiple_of(CHUNK as u64)
        .max(PART)
}

impl<'a> TreeDelivery<'a> {
    /// Puts the files, and removes what the tree no longer has. From here on the tree is not that of its manifest, so the
    /// manifest goes first.
    fn replace_tree(
        &self,
        listing: &TreeListing,
        merged: &Manifest,
        files: &[DeliveryFile<'_>],
        noted: UploadNote,
    ) -> Result<()> {
        let place = self.place;
        if let Some(marker) = &listing.marker {
            let etag = Some(&*marker.etag).filter(|_| self.job.over != Over::All);
            let at = place.own(marker::NAME)?;
            place.store.remove(&at, etag, self.control)?;
        }
        self.put_files(files, noted)?;
        self.remove_others(merged)?;
        for folder in &listing.folders {
            let at = object(place, &[folder, &b"/"[..]].concat())?;
            place.store.remove(&at, None, self.control)?;
        }
        Ok(())
    }

    /// The files of the tree, all of whose names must be keys, before the first is put.
    fn files(&self, merged: &'a Manifest) -> Result<Vec<DeliveryFile<'a>>> {
        let mut files = Vec::new();
        for Entry {
            path, kind, mtime, ..
        } in &merged.entries
        {
            let at = object(self.place, path)?;
            let is_tarns = [marker::NAME, PROBE, upload::NAME]
                .iter()
                .any(|own| *own.as_bytes() == **path);
            if is_tarns && !self.job.single {
                let text = format!(
                    "`{}` cannot be put into {}: the name is tarn's own there; rename it",
                    show(path),
                    self.place.at
                );
                return Err(MoverError::new(RunErrorKind::Conflict, text));
            }
            let EntryKind::File { size, hash, .. } = kind else {
                continue;
            };
            if *size > MAX_OBJECT {
                let text = format!(
                    "`{}` has {size} bytes, and an object at most {MAX_OBJECT}; divide it",
                    show(path)
                );
                return Err(MoverError::new(RunErrorKind::Io, text));
            }
            let tree = self.manifests.iter().position(|m| m.find(path).is_some());
            files.push(DeliveryFile {
                path,
                at,
                tree: tree.unwrap_or_default(),
                size: *size,
                hash: *hash,
                mtime: *mtime,
            });
        }
        Ok(files)
    }

    /// Puts the large files one by one, the parts of each together, then the small ones together. First what a killed delivery had
    /// under way, as there is one note.
    fn put_files(&self, files: &[DeliveryFile<'_>], noted: UploadNote) -> Result<()> {
        let (large, small): (Vec<&DeliveryFile<'_>>, Vec<_>) =
            files.iter().partition(|f| f.size > PART);
        if let UploadNote::Killed(begun, meant, note) = noted {
            *lock(&self.note) = Some(note);
            let file = large.iter().find(|f| f.at == begun.at);
            let went_on = match file.zip(meant) {
                Some((file, meant)) => self.went_on(file, &begun, meant)?,
                None => false,
            };
            if !went_on {
                self.end(&begun, self.control)?;
            }
        }
        for file in large {
            if !lock(&self.done).put.contains_key(file.path) && !self.is_there(file)? {
                self.put_large(file)?;
            }
        }
        self.forget(self.control)?;
        together(
            &small,
            STREAMS,
            self.control,
            PeerSourceReader::default,
            |reader, file| match self.is_there(file)? {
                true => Ok(()),
                false => self.put_small(reader, file),
            },
        )
    }

    /// Whether the object is the intended one, by an earlier delivery.
    fn is_there(&self, file: &DeliveryFile<'_>) -> Result<bool> {
        let there = self.there.get(file.path);
        let Some((there, is)) = there
            .filter(|there| there.size == file.size)
            .and_then(|there| Some((there, there.hash?)))
        else {
            return Ok(false);
        };
        // To read a source is cheaper than to put it again.
        let hash = self.hash_of(file)?;
        if is != hash {
            return Ok(false);
        }
        let read = self.read_back(file, &there.etag, hash);
        match read {
            // It is put again.
            Err(e) if e.failure.kind == RunErrorKind::Corrupt => return Ok(false),
            other => other?,
        }
        self.control.advance(file.size);
        self.finished(file, there.etag.clone(), hash, file.size);
        Ok(true)
    }

    /// An object is there, of which so many bytes were before this delivery.
    fn finished(&self, file: &DeliveryFile<'_>, etag: String, hash: Hash, resumed: u64) {
        let mut done = lock(&self.done);
        done.put.insert(file.path.into(), (etag, hash));
        done.resumed += resumed;
        let mut moved = file.size;
        account::sub(&mut moved, resumed, "bytes of an object");
        done.bytes += moved;
    }

    /// Waits until bytes may pass, and counts them.
    fn passes(&self, bytes: u64) -> Result<()> {
        if let Some(limiter) = &self.limiter {
            limiter.bytes(bytes, self.control)?;
        }
        self.control.advance(bytes);
        Ok(())
    }

    fn begins(&self) -> Result<()> {
        self.limiter
            .as_ref()
            .map_or(Ok(()), |l| l.file(self.control))
    }

    fn put_small(&self, reader: &mut PeerSourceReader<'a>, file: &DeliveryFile<'_>) -> Result<()> {
        self.begins()?;
        let bytes = self.read(reader, file, 0, file.size)?;
        let hash = content::file(&chunks_of(&bytes));
        self.as_promised(file, hash)?;
        self.passes(file.size)?;
        let tags = tags(&self.job.owner, Some(hash), file.mtime);
        let replaces = self.replaces(file);
        let etag = self
            .place
            .store
            .put(&file.at, &bytes, &tags, replaces, self.control)?;
        drop(bytes);
        self.checked(file, etag, hash, 0)
    }

    /// The object that this file's upload may replace.
    fn replaces(&self, file: &DeliveryFile<'_>) -> Replaces<'_> {
        let seen = self.there.get(file.path);
        replaces(self.job, seen.map(|there| &*there.etag))
    }

    fn put_large(&self, file: &DeliveryFile<'_>) -> Result<()> {
        // It is kept with the object from the beginning.
        let hash = self.hash_of(file)?;
        let tags = tags(&self.job.owner, Some(hash), file.mtime);
        let mut left = UPLOADS;
        loop {
            left -= 1;
            let begun = self.place.store.begin(&file.at, &tags, self.control)?;
            let noted = self.note(&begun, (hash, file.mtime));
            noted.inspect_err(|_| self.give_up(&begun))?;
            match self.send(file, &begun, hash, &BTreeMap::new()) {
                Err(e) if e.refused == Some(ObjectStoreError::RestartUpload) && left > 0 => {}
                other => return other,
            }
        }
    }

    /// Notes an upload in the place of the one that this delivery has noted before.
    fn note(&self, begun: &Upload, meant: Meant) -> Result<()> {
        let own = tags(&self.job.owner, None, 0);
        let before = lock(&self.note).clone();
        let replaces = replaces(self.job, before.as_deref());
        let note = upload::note(self.place, begun, meant, (&own, replaces), self.control)?;
        *lock(&self.note) = Some(note);
        Ok(())
    }

    /// Takes the note away, if there is one.
    fn forget(&self, control: &Control) -> Result<()> {
        match lock(&self.note).take() {
            Some(note) => upload::forget(self.place, &note, control),
            None => Ok(()),
        }
    }

    /// Ends an upload.
    fn end(&self, begun: &Upload, control: &Control) -> Result<()> {
        self.place.store.abort(begun, control)?;
        self.forget(control)
    }

    /// Continues an upload of a file that was to become this; whether it did. It did not if the file has changed since, or the
    /// upload is gone, or the object is whole already.
    fn went_on(&self, file: &DeliveryFile<'_>, begun: &Upload, meant: Meant) -> Result<bool> {
        if self.is_there(file)? || meant != (self.hash_of(file)?, file.mtime) {
            return Ok(false);
        }
        let Some(there) = self.place.store.parts(begun, self.control)? else {
            return Ok(false);
        };
        match self.send(file, begun, meant.0, &there) {
            Err(e) if e.refused == Some(ObjectStoreError::RestartUpload) => Ok(false),
            sent => sent.map(|()| true),
        }
    }

    /// The hash of a file's intended content.
    fn hash_of(&self, file: &DeliveryFile<'_>) -> Result<Hash> {
        file.hash.map_or_else(|| self.read_for_hash(file), Ok)
    }

    /// Sends the parts of an upload that are not there, and makes the object of all.
    fn send(
        &self,
        file: &DeliveryFile<'_>,
        begun: &Upload,
        hash: Hash,
        there: &BTreeMap<u16, String>,
    ) -> Result<()> {
        let sent = self.begins();
        let sent = sent.and_then(|()| self.send_parts(file, begun, hash, there));
        let (etags, resumed) = sent.inspect_err(|_| self.give_up(begun))?;
        let (store, replaces) = (self.place.store, self.replaces(file));
        let etag = match store.complete(begun, &etags, replaces, self.control) {
            Ok(etag) => {
                self.is_whole(file, hash)?;
                etag
            }
            Err(why) => {
                // The store may have made it all the same, and only its answer been lost.
                let made = self.made(file, hash);
                self.give_up(begun);
                made.ok().flatten().ok_or(why)?
            }
        };
        self.checked(file, etag, hash, resumed)
    }

    /// A cancelled upload must go as well; if that fails, the next delivery ends it.
    fn give_up(&self, begun: &Upload) {
        let _ = self.end(begun, &Control::default());
    }

    /// The ETags of all parts, and how many bytes were there. Of what is there each part is compared with the file's bytes.
    fn send_parts(
        &self,
        file: &DeliveryFile<'_>,
        upload: &Upload,
        hash: Hash,
        there: &BTreeMap<u16, String>,
    ) -> Result<(Vec<String>, u64)> {
        let len = part_len(file.size);
        let parts: Vec<u64> = (0..file.size.div_ceil(len)).collect();
        let sent: Mutex<BTreeMap<u64, (String, Vec<ChunkHash>)>> = Mutex::default();
        let resumed = AtomicU64::new(0);
        let store = &self.place.store;
        let threads = usize::try_from(HELD / len).unwrap_or(1).clamp(1, STREAMS);
        together(
            &parts,
            threads,
            self.control,
            PeerSourceReader::default,
            |reader, part| {
                let start = part * len;
                let bytes = self.read(reader, file, start, len.min(file.size - start))?;
                let number = u16::try_from(part + 1).unwrap_or(u16::MAX);
                let there = there.get(&number);
                let etag = match there.filter(|etag| store.is_part(etag, &bytes)) {
                    Some(etag) => {
                        resumed.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                        self.control.advance(bytes.len() as u64);
                        etag.clone()
                    }
                    None => {
                        self.passes(bytes.len() as u64)?;
                        store.part(upload, number, &bytes, self.control)?
                    }
                };
                lock(&sent).insert(*part, (etag, chunks_of(&bytes)));
                Ok(())
            },
        )?;
        let sent = sent
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let (etags, chunks): (Vec<_>, Vec<_>) = sent.into_values().unzip();
        let is = content::file(&chunks.concat());
        match is == hash {
            true => Ok((etags, resumed.into_inner())),
            false => Err(self.damaged(file)),
        }
    }

    fn read_for_hash(&self, file: &DeliveryFile<'_>) -> Result<Hash> {
        let (mut reader, mut at) = (PeerSourceReader::default(), 0);
        hash_of(file.size, self.control, |buffer| {
            let bytes = self.read(&mut reader, file, at, buffer.len() as u64)?;
            buffer.copy_from_slice(&bytes);
            at += bytes.len() as u64;
            Ok(())
        })
    }

    fn damaged(&self, file: &DeliveryFile<'_>) -> MoverError {
        let path = self.trees[file.tree].show(file.path);
        corrupt(&path, "does not match its hash").of_source(file.tree)
    }

    fn as_promised(&self, file: &DeliveryFile<'_>, hash: Hash) -> Result<()> {
        match file.hash.is_none_or(|promised| promised == hash) {
            true => Ok(()),
            false => Err(self.damaged(file)),
        }
    }

    /// An upload in parts has become the object that was meant.
    fn is_whole(&self, file: &DeliveryFile<'_>, hash: Hash) -> Result<()> {
        self.made(file, hash)?.map(drop).ok_or_else(|| {
            let text = format!(
                "{} is not what was just put there; somebody else writes there too",
                file.at
            );
            MoverError::new(RunErrorKind::Io, text)
        })
    }

    /// The ETag of the object, if it is the intended result of an upload in parts.
    fn made(&self, file: &DeliveryFile<'_>, hash: Hash) -> Result<Option<String>> {
        let found = self.place.store.look(&file.at, self.control)?;
        let same = |f: &ObjectMetadata| {
            let is = of_owner(f, &self.job.owner).flatten();
            f.size == file.size && is == Some(hash)
        };
        Ok(found.filter(same).map(|f| f.etag))
    }

    /// An object that was put: read again if the job requires that.
    fn checked(
        &self,
        file: &DeliveryFile<'_>,
        etag: String,
        hash: Hash,
        resumed: u64,
    ) -> Result<()> {
        let read = self.read_back(file, &etag, hash);
        if read
            .as_ref()
            .is_err_and(|e| e.failure.kind == RunErrorKind::Corrupt)
        {
            let store = self.place.store;
            store.remove(&file.at, Some(&etag), self.control)?;
        }
        read?;
        self.finished(file, etag, hash, resumed);
        Ok(())
    }

    fn read_back(&self, file: &DeliveryFile<'_>, etag: &str, hash: Hash) -> Result<()> {
        if self.job.verify != Verify::Readback || file.size == 0 {
            return Ok(());
        }
        let mut body = self
            .place
            .store
            .open(&file.at, 0..file.size, Some(etag), self.control)?;
        let whole = body.size() == file.size;
        let is = hash_of(file.size, self.control, |buffer| body.fill(buffer))?;
        match whole && is == hash {
            true => Ok(()),
            false => Err(corrupt(&file.at.to_string(), "is not what was put there")),
        }
    }

    /// Removes what the tree no longer has: all of it is known to be the owner's.
    fn remove_others(&self, merged: &Manifest) -> Result<()> {
        let is_file = |path: &[u8]| {
            merged
                .find(path)
                .is_some_and(|e| matches!(e.kind, EntryKind::File { .. }))
        };
        let gone: Vec<_> = self.there.iter().filter(|(p, _)| !is_file(p)).collect();
        together(
            &gone,
            STREAMS,
            self.control,
            || (),
            |(), (path, there)| {
                let etag = Some(&*there.etag).filter(|_| self.job.over != Over::All);
                let at = object(self.place, path)?;
                self.place.store.remove(&at, etag, self.control)
            },
        )
    }
}
