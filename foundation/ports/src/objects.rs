//! An object store outside the nodes: objects that are whole or absent, without folders, links or renames.

use crate::operation::MoverError;
use crate::peer::Watch;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use tarn_types::object::ObjectUrl;

/// Small texts that are kept with an object: name (lower case) and value.
pub type Tags = Vec<(String, String)>;

/// An object, as a store lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectMetadata {
    /// Its key.
    pub key: String,
    /// In bytes.
    pub size: u64,
    /// Distinguishes this content from any other that had or will have the key; without quotes.
    pub etag: String,
    /// When it was put, in seconds since 1970.
    pub modified: i64,
    /// The tags that are stored with it. A listing does not show them.
    pub tags: Tags,
}

/// The existing object that a put may replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replaces<'a> {
    /// Any object.
    Anything,
    /// Nothing: no object was seen there.
    Nothing,
    /// The object with this ETag, which was seen there; it may have gone since.
    Only(&'a str),
}

impl Replaces<'_> {
    /// Whether the present object may be replaced.
    pub fn allows(&self, found: &ObjectMetadata) -> bool {
        match self {
            Self::Anything => true,
            Self::Nothing => false,
            Self::Only(etag) => found.etag == *etag,
        }
    }
}

/// An upload in parts, which can be seen nowhere until it is completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    /// The object that it becomes.
    pub at: ObjectUrl,
    /// The store's name for it.
    pub id: String,
}

/// Speaks to object stores. Every call blocks; an error that may pass by itself (a cut connection, a store that is busy) is tried
/// again for a bounded time, and given up soon when `watch` says so.
///
/// Errors are `Io` unless a method lists another kind, `Cancelled` when `watch` has stopped it.
pub trait ObjectStore: Send + Sync + Debug {
    /// Calls `each` for every object whose key begins with that of `at`, in the store's order. An error from `each` ends it.
    ///
    /// # Errors
    /// When the bucket cannot be listed.
    fn list(
        &self,
        at: &ObjectUrl,
        watch: &dyn Watch,
        each: &mut dyn FnMut(ObjectMetadata) -> Result<(), MoverError>,
    ) -> Result<(), MoverError>;

    /// The metadata of an object; `None` when it is not there.
    ///
    /// # Errors
    /// When the store gives no answer.
    fn look(&self, at: &ObjectUrl, watch: &dyn Watch)
    -> Result<Option<ObjectMetadata>, MoverError>;

    /// Opens a stretch of an object, which is not empty. With an ETag it must be that object.
    ///
    /// # Errors
    /// `SourceChanged` when it is not there, is another, or is shorter.
    fn open<'a>(
        &'a self,
        at: &ObjectUrl,
        range: Range<u64>,
        etag: Option<&str>,
        watch: &'a dyn Watch,
    ) -> Result<Box<dyn ObjectBody + 'a>, MoverError>;

    /// Puts an object in one piece, in the place of `replaces` only; its ETag. The store compares the arrived bytes with a
    /// checksum.
    ///
    /// # Errors
    /// When it cannot be put; then it is as it was, or (where the answer was lost) as it should be. `Conflict`, refused as `Occupied`,
    /// when something else is there.
    fn put(
        &self,
        at: &ObjectUrl,
        bytes: &[u8],
        tags: &Tags,
        replaces: Replaces<'_>,
        watch: &dyn Watch,
    ) -> Result<String, MoverError>;

    /// Begins an upload in parts.
    ///
    /// # Errors
    /// When it cannot be begun.
    fn begin(&self, at: &ObjectUrl, tags: &Tags, watch: &dyn Watch) -> Result<Upload, MoverError>;

    /// Sends a part, counted from 1; its ETag. The store compares the arrived bytes with a checksum.
    ///
    /// # Errors
    /// When it cannot be sent.
    fn part(
        &self,
        upload: &Upload,
        number: u16,
        bytes: &[u8],
        watch: &dyn Watch,
    ) -> Result<String, MoverError>;

    /// The ETags of the parts that an upload has, by their numbers; `None` when there is no such upload any more.
    ///
    /// # Errors
    /// When the store gives no answer.
    fn parts(
        &self,
        upload: &Upload,
        watch: &dyn Watch,
    ) -> Result<Option<BTreeMap<u16, String>>, MoverError>;

    /// Whether a part with this ETag has just these bytes. Where ETags do not show it, false.
    fn is_part(&self, etag: &str, bytes: &[u8]) -> bool;

    /// Makes the object out of all parts, whose ETags these are in their order, in the place of `replaces` only; its ETag.
    ///
    /// # Errors
    /// When it cannot be made. `Conflict`, refused as `Occupied`, when something else is there; refused as `RestartUpload` when the upload has to
    /// be begun again.
    fn complete(
        &self,
        upload: &Upload,
        parts: &[String],
        replaces: Replaces<'_>,
        watch: &dyn Watch,
    ) -> Result<String, MoverError>;

    /// Gives an upload up. That it is not there is no error.
    ///
    /// # Errors
    /// When it may still be there.
    fn abort(&self, upload: &Upload, watch: &dyn Watch) -> Result<(), MoverError>;

    /// Removes an object; with an ETag, only if the object has that one. A missing object is no error.
    ///
    /// # Errors
    /// When it may still be there. `Conflict`, refused as `Occupied`, when something else is there.
    fn remove(
        &self,
        at: &ObjectUrl,
        etag: Option<&str>,
        watch: &dyn Watch,
    ) -> Result<(), MoverError>;
}

/// A stretch of an object, being read.
pub trait ObjectBody {
    /// The object's ETag.
    fn etag(&self) -> &str;

    /// The whole object's size.
    fn size(&self) -> u64;

    /// Fills the buffer with the next bytes; it must not reach beyond the stretch's end.
    ///
    /// # Errors
    /// `SourceChanged` when the object was replaced meanwhile: never a mixture.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), MoverError>;
}
