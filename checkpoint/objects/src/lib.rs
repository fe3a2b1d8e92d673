//! L4: the object store of a node for Rust programs (docs/guide/objects.md), and what C (`libtarn`), Python (`bindings/python`) and the
//! command line are over. A store is a folder: each version of an object is one file in it, which never changes, and which all programs
//! that may read it map where it lies.
//!
//! ```
//! use tarn_objects::NodeObjectStore;
//!
//! # let folder = tempfile::tempdir_in("/dev/shm").unwrap();
//! # let folder = folder.path();
//! let store = NodeObjectStore::open(Some(folder))?;
//! store.put("mesh/points", b"0 1 2", "")?;
//! let mut field = store.create("field", 8000)?;
//! field.bytes().fill(1); // computes in place: nothing is copied
//! let number = field.publish("f64 1000")?.number;
//! assert_eq!(store.map("field", Some(number))?.bytes()[7999], 1);
//! assert_eq!(store.get("mesh/points", None)?, b"0 1 2");
//! # Ok::<(), tarn_objects::CheckpointError>(())
//! ```
//!
//! Reading order: [`NodeObjectStore`], [`ObjectWriter`] (what is not published yet), [`StoredObject`] (what is mapped), `folder` (the files of one key).

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
