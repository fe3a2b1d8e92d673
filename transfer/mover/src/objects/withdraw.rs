//! Taking back what a delivery that does not continue has left in a store.

use super::owner::of_owner;
use super::upload::UploadNote;
use super::{STREAMS, StoreLocation, marker, together, upload};
use crate::error::Result;
use tarn_ports::{Control, MoverError, ObjectStoreError};
use tarn_types::object::ObjectUrl;

/// Whether what is there is a delivery of this owner's that came to its end.
pub(crate) fn is_whole(place: &StoreLocation<'_>, owner: &str, control: &Control) -> Result<bool> {
    let last = match place.at.is_tree() {
        true => place.own(marker::NAME)?,
        false => place.at.clone(),
    };
    let found = place.store.look(&last, control)?;
    Ok(found.is_some_and(|found| of_owner(&found, owner).is_some()))
}

/// Ends the upload that an unfinished delivery of this owner had under way, and removes what it has left, if `objects`: of the tree, or
/// of the one object. An upload that cannot be ended keeps its note, and nothing else.
pub(crate) fn withdraw(
    place: &StoreLocation<'_>,
    owner: &str,
    objects: bool,
    control: &Control,
) -> Result<()> {
    let ended = end_upload(place, owner, control);
    if objects {
        remove_objects(place, owner, ended.is_ok(), control)?;
    }
    ended
}

fn end_upload(place: &StoreLocation<'_>, owner: &str, control: &Control) -> Result<()> {
    match upload::noted(place, owner, false, control)? {
        UploadNote::Killed(begun, _, note) => upload::end(place, &begun, &note, control),
        _ => Ok(()),
    }
}

fn remove_objects(
    place: &StoreLocation<'_>,
    owner: &str,
    with_note: bool,
    control: &Control,
) -> Result<()> {
    let remove_own = |at: &ObjectUrl| match place.store.look(at, control)? {
        Some(found) if of_owner(&found, owner).is_some() => {
            let removed = place.store.remove(at, Some(&found.etag), control);
            // An object that somebody else has put there meanwhile is none of it.
            let taken = |e: &MoverError| e.refused == Some(ObjectStoreError::Occupied);
            removed.or_else(|e| if taken(&e) { Ok(()) } else { Err(e) })
        }
        _ => Ok(()),
    };
    if !place.at.is_tree() {
        return remove_own(&place.at);
    }
    // First the marker, which declares the tree whole.
    remove_own(&place.own(marker::NAME)?)?;
    let stays = Some(place.own(upload::NAME)?).filter(|_| !with_note);
    let mut all = Vec::new();
    place.store.list(&place.at, control, &mut |found| {
        all.push(place.at.object(found.key));
        Ok(())
    })?;
    all.retain(|at| stays.as_ref() != Some(at));
    together(&all, STREAMS, control, || (), |(), at| remove_own(at))
}
