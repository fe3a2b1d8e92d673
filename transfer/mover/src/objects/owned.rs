//! The objects in the place of a tree or an object, and their owners: each object names its owner.

use super::listing::{TreeListing, listed};
use super::owner::{PROBE, of_owner};
use super::{STREAMS, StoreLocation, marker, together, upload};
use crate::error::{Result, show};
use crate::queue::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use tarn_ports::{Control, MoverError, Over, Replaces, Tags};
use tarn_types::event::RunErrorKind;
use tarn_types::hash::Hash;
use tarn_types::manifest::EntryKind;
use tarn_types::object::{MAX_KEY_BYTES, ObjectUrl};

/// An object that is already there.
pub(super) struct There {
    pub(super) etag: String,
    pub(super) size: u64,
    /// As far as tarn has put it.
    pub(super) hash: Option<Hash>,
}

/// The objects below a prefix, and the known facts of each.
pub(super) type Owned = (TreeListing, BTreeMap<Box<[u8]>, There>);

/// The owner that delivers, and the objects that must make way.
pub(super) type DeliveryOwner<'a> = (&'a str, Over);

/// Whether a tree may be put there.
pub(crate) fn check(place: &StoreLocation<'_>, owner: &str, control: &Control) -> Result<()> {
    if place.at.key.is_empty() {
        let text = format!(
            "{} is a whole bucket: name a prefix in it, such as {0}result/",
            place.at
        );
        return Err(MoverError::new(RunErrorKind::Conflict, text));
    }
    owned(place, (owner, Over::Own), control)?;
    let probe = place.own(PROBE)?;
    let (tags, replaces) = (Tags::new(), Replaces::Anything);
    place.store.put(&probe, b"", &tags, replaces, control)?;
    place.store.remove(&probe, None, control)
}

pub(super) fn exists(at: &ObjectUrl) -> MoverError {
    let text = format!("{at} exists already; choose another place, or ask to replace it");
    MoverError::new(RunErrorKind::Conflict, text)
}

/// The object that is there, which must make way for this owner's.
pub(super) fn owned_object(
    place: &StoreLocation<'_>,
    (owner, over): DeliveryOwner<'_>,
    control: &Control,
) -> Result<Option<There>> {
    let Some(found) = place.store.look(&place.at, control)? else {
        return Ok(None);
    };
    let own = of_owner(&found, owner);
    let makes_way = match over {
        Over::All => true,
        Over::Own => own.is_some(),
        // It was killed when the object was whole already.
        Over::Unfinished => own.is_some() && upload::is_noted(place, owner, control)?,
    };
    if !makes_way {
        return Err(exists(&place.at));
    }
    Ok(Some(There {
        hash: own.flatten(),
        etag: found.etag,
        size: found.size,
    }))
}

/// An object is there that is not this owner's.
fn foreign(place: &StoreLocation<'_>, over: Over, path: &[u8]) -> MoverError {
    if over == Over::Unfinished {
        return exists(&place.at);
    }
    let text = format!(
        "{} holds objects that tarn did not put there for this workflow or task, or that were changed since (`{}`); move \
         them away or choose another place",
        place.at,
        show(path)
    );
    MoverError::new(RunErrorKind::Conflict, text)
}

/// Checks the owner of tarn's own objects that describe the tree: its marker, and the note of an upload.
fn check_own_objects(
    place: &StoreLocation<'_>,
    (owner, over): DeliveryOwner<'_>,
    listing: &mut TreeListing,
    control: &Control,
) -> Result<()> {
    for (listed, name) in [
        (&mut listing.marker, marker::NAME),
        (&mut listing.upload, upload::NAME),
    ] {
        if listed.is_none() {
            continue;
        }
        let is = place.store.look(&place.own(name)?, control)?;
        let own = is.as_ref().is_some_and(|f| of_owner(f, owner).is_some());
        *listed = is.or(listed.take());
        match over {
            Over::Own if own => {}
            // A finished tree is none of an unfinished delivery.
            Over::Unfinished if own && name == upload::NAME => {}
            Over::Own | Over::Unfinished => return Err(foreign(place, over, name.as_bytes())),
            // The marker of another owner proves nothing here.
            Over::All if !own && name == marker::NAME => listing.marked.clear(),
            Over::All => {}
        }
    }
    Ok(())
}

/// All that is there, which must make way for this owner's.
pub(super) fn owned(
    place: &StoreLocation<'_>,
    (owner, over): DeliveryOwner<'_>,
    control: &Control,
) -> Result<Owned> {
    let mut listing = listed(&**place.store, &place.at, control)?;
    if let (Some(folder), true) = (listing.folders.first(), over != Over::All) {
        return Err(foreign(place, over, folder));
    }
    check_own_objects(place, (owner, over), &mut listing, control)?;
    let there = Mutex::new(BTreeMap::new());
    let all: Vec<_> = listing.objects.iter().collect();
    together(
        &all,
        STREAMS,
        control,
        || (),
        |(), (path, found)| {
            let is = match listing.known(path, found).map(|e| &e.kind) {
                Some(EntryKind::File { hash, .. }) => There {
                    etag: found.etag.clone(),
                    size: found.size,
                    hash: *hash,
                },
                // An object that the marker does not describe, such as one of a killed delivery, has only its own tags.
                _ => {
                    let Some(is) = place.store.look(&object(place, path)?, control)? else {
                        // It has gone since it was listed.
                        return Ok(());
                    };
                    let hash = match of_owner(&is, owner) {
                        Some(hash) => hash,
                        None if over == Over::All => None,
                        None => return Err(foreign(place, over, path)),
                    };
                    There {
                        etag: is.etag,
                        size: is.size,
                        hash,
                    }
                }
            };
            lock(&there).insert((*path).clone(), is);
            Ok(())
        },
    )?;
    drop(all);
    let there = there
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok((listing, there))
}

pub(super) fn object(place: &StoreLocation<'_>, path: &[u8]) -> Result<ObjectUrl> {
    place.at.at(path).map_err(|why| {
        let text = format!(
            "`{}` cannot be put into {}: {why}; a key with the prefix has at most {MAX_KEY_BYTES} bytes: rename it",
            show(path),
            place.at
        );
        MoverError::new(RunErrorKind::Io, text)
    })
}
