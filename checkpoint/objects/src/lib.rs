//! L4: the object store of a node for Rust programs (docs/guide/objects.md); C (`libtarn`), Python
//! (`bindings/python`) and the command line are built on it. A store is a folder. Each version of an object
//! is one file in it, which never changes; all programs that may read the file map it without a copy.
//!
//! Here, as in all examples below, the store is a temporary folder. A real program names a folder in the node's
//! memory or on its NVMe, or gives `None` and takes the one that `$TARN_OBJECTS` names:
//!
//! ```
//! use tarn_objects::NodeObjectStore;
//!
//! let folder = tempfile::tempdir_in("/dev/shm").unwrap();
//! let store = NodeObjectStore::open(Some(folder.path()))?;
//! store.put("mesh/points", b"0 1 2", "")?;
//! let mut field = store.create("field", 8000)?;
//! field.bytes().fill(1); // computes in place: nothing is copied
//! let number = field.publish("f64 1000")?.number;
//! assert_eq!(store.map("field", Some(number))?.bytes()[7999], 1);
//! assert_eq!(store.get("mesh/points", None)?, b"0 1 2");
//! # Ok::<(), tarn_objects::CheckpointError>(())
//! ```
//!
//! Sizes are bytes. Every error is a [`CheckpointError`] with a [`CheckpointErrorCode`], whose numbers are
//! those of C's `phx.h`. A version is durable when [`NodeObjectStore::put`] or [`ObjectWriter::publish`]
//! returns.
//!
//! Reading order: [`NodeObjectStore`], [`ObjectWriter`] (unpublished versions), [`StoredObject`] (mapped
//! ones), `folder` (the files of one key).

#![allow(unsafe_code)]

mod folder;
mod keys;
mod object;
mod remote;
mod store;
mod writer;

pub use object::{ObjectInfo, StoredObject};
pub use store::{ENCRYPT, NodeObjectStore, STORE};
pub use tarn_checkpoint_core::{CheckpointError, CheckpointErrorCode};
pub use writer::ObjectWriter;
