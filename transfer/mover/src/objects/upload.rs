//! The upload that a delivery has under way, noted in the tree itself: after a delivery that was killed, the next one of the same
//! owner continues or ends it, and never that of another owner.
//! docs/reference/formats.md has the text.

use super::StoreLocation;
use super::owner::of_owner;
use crate::error::Result;
use tarn_ports::{Control, MoverError, Replaces, Tags, Upload};
use tarn_types::event::RunErrorKind;
use tarn_types::hash::Hash;

/// The note's name in the tree; for a single object, the suffix of its key.
pub(crate) const NAME: &str = ".tarn-upload";
const HEAD: &str = "tarn-upload 2";
/// The head that earlier versions wrote, without the content that the object is to have.
const OLD_HEAD: &str = "tarn-upload 1";
/// Bytes of a note: a key has 1,024 at most, and a store's name of an upload some hundred.
const MAX_BYTES: u64 = 64 << 10;

/// The content that an upload is to produce: its hash, and the file's time.
pub(crate) type Meant = (Hash, i64);

/// The note of an upload.
pub(crate) enum UploadNote {
    Nothing,
    /// Of somebody else, who may still be at it.
    Theirs,
    /// It was killed, and is to be ended or, if its intended content is known, continued.
    Killed(Upload, Option<Meant>, UploadNoteEtag),
}

/// A note that is there: its ETag, as somebody else's may take its place.
pub(crate) type UploadNoteEtag = String;

/// Notes an upload that has begun, in the place of `replaces`.
pub(crate) fn note(
    place: &StoreLocation<'_>,
    upload: &Upload,
    (hash, mtime): Meant,
    (tags, replaces): (&Tags, Replaces<'_>),
    control: &Control,
) -> Result<UploadNoteEtag> {
    let (key, id) = (&upload.at.key, &upload.id);
    let text = format!("{HEAD}\n{key}\n{id}\n{hash}\n{mtime}\n");
    let at = place.note()?;
    place
        .store
        .put(&at, text.as_bytes(), tags, replaces, control)
}

/// Takes the note away: the upload that it named has ended.
pub(crate) fn forget(
    place: &StoreLocation<'_>,
    note: &UploadNoteEtag,
    control: &Control,
) -> Result<()> {
    place.store.remove(&place.note()?, Some(note), control)
}

/// Whether a delivery of this owner has something under way, or had when it was killed.
pub(crate) fn is_noted(place: &StoreLocation<'_>, owner: &str, control: &Control) -> Result<bool> {
    let found = place.store.look(&place.note()?, control)?;
    Ok(found.is_some_and(|found| of_owner(&found, owner).is_some()))
}

/// The upload that a killed delivery of this owner had under way, or one of `anybody`: nobody else would end it, and its parts
/// are paid for. An upload of another owner is not continued.
pub(crate) fn noted(
    place: &StoreLocation<'_>,
    owner: &str,
    anybody: bool,
    control: &Control,
) -> Result<UploadNote> {
    // A key without space for a note has none.
    let Ok(at) = place.note() else {
        return Ok(UploadNote::Nothing);
    };
    let Some(found) = place.store.look(&at, control)? else {
        return Ok(UploadNote::Nothing);
    };
    let own = of_owner(&found, owner).is_some();
    if !own && !anybody {
        return Ok(UploadNote::Theirs);
    }
    let damaged = || {
        let text = format!(
            "{at}, in which tarn notes what it is putting there, cannot be understood; remove it, and look whether the bucket has \
             an upload that never ended"
        );
        MoverError::new(RunErrorKind::Io, text)
    };
    if found.size == 0 || found.size > MAX_BYTES {
        return Err(damaged());
    }
    let mut bytes = vec![0; found.size as usize];
    let mut body = place
        .store
        .open(&at, 0..found.size, Some(&found.etag), control)?;
    body.fill(&mut bytes)?;
    drop(body);
    let (upload, meant) = read(place, &bytes).ok_or_else(damaged)?;
    Ok(UploadNote::Killed(
        upload,
        meant.filter(|_| own),
        found.etag,
    ))
}

/// Ends an upload that was noted.
pub(crate) fn end(
    place: &StoreLocation<'_>,
    upload: &Upload,
    note: &UploadNoteEtag,
    control: &Control,
) -> Result<()> {
    place.store.abort(upload, control)?;
    forget(place, note, control)
}

fn read(place: &StoreLocation<'_>, bytes: &[u8]) -> Option<(Upload, Option<Meant>)> {
    let text = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    let (key, id, meant) = match text.split('\n').collect::<Vec<_>>()[..] {
        [OLD_HEAD, key, id] => (key, id, None),
        [HEAD, key, id, hash, mtime] => (key, id, Some((hash.parse().ok()?, mtime.parse().ok()?))),
        _ => return None,
    };
    let is_meant = match place.at.is_tree() {
        true => key.len() > place.at.key.len() && key.starts_with(&place.at.key),
        false => key == place.at.key,
    };
    let upload = || Upload {
        at: place.at.object(key.to_owned()),
        id: id.to_owned(),
    };
    (is_meant && !id.is_empty()).then(|| (upload(), meant))
}
