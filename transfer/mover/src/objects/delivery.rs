//! A delivery of a tree, and the files that it puts.

use super::StoreLocation;
use super::owned::There;
use super::upload::UploadNoteEtag;
use crate::throttle::Limiter;
use crate::tree::SourceTree;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tarn_ports::{Control, DeliveryJob};
use tarn_types::hash::Hash;
use tarn_types::manifest::Manifest;
use tarn_types::object::ObjectUrl;

/// Bytes of a part of a large object, and of the largest that is put in one piece: 8 MiB is what the field's tools take.
pub(super) const PART: u64 = 8 << 20;

/// A file to be put.
pub(super) struct DeliveryFile<'a> {
    pub(super) path: &'a [u8],
    pub(super) at: ObjectUrl,
    /// The first source that has it.
    pub(super) tree: usize,
    pub(super) size: u64,
    pub(super) hash: Option<Hash>,
    pub(super) mtime: i64,
}

/// A delivery.
pub(super) struct TreeDelivery<'a> {
    pub(super) place: &'a StoreLocation<'a>,
    pub(super) job: &'a DeliveryJob,
    pub(super) control: &'a Control,
    pub(super) limiter: Option<Arc<Limiter>>,
    pub(super) trees: &'a [SourceTree<'a>],
    pub(super) manifests: &'a [Manifest],
    pub(super) there: &'a BTreeMap<Box<[u8]>, There>,
    /// The note of an upload that is there.
    pub(super) note: Mutex<Option<UploadNoteEtag>>,
    pub(super) done: Mutex<DeliveryProgress>,
}

/// The work that a delivery has done.
#[derive(Default)]
pub(super) struct DeliveryProgress {
    /// ETag and hash of each object, by path.
    pub(super) put: BTreeMap<Box<[u8]>, (String, Hash)>,
    pub(super) bytes: u64,
    pub(super) resumed: u64,
}
