//! The owner of an object, by the tags that tarn gives it.

use tarn_ports::ObjectMetadata;
use tarn_types::hash::Hash;

/// An object that is made and removed to see whether that can be done. It is no part of a tree: a killed run may leave it.
pub(super) const PROBE: &str = ".tarn-probe";
/// The owner of the tree that an object belongs to.
pub(super) const OWNER: &str = "tarn-owner";
/// The hash of its content.
pub(super) const HASH: &str = "tarn-hash";

/// Of an object that this owner has put: the hash of its content, if its tags have one.
pub(super) fn of_owner(found: &ObjectMetadata, owner: &str) -> Option<Option<Hash>> {
    let tag = |name: &str| Some(found.tags.iter().find(|t| t.0 == name)?.1.as_str());
    (tag(OWNER) == Some(owner)).then(|| tag(HASH).and_then(|h| h.parse().ok()))
}
