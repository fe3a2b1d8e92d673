//! L4: checkpoints for Rust programs (docs/guide/checkpoints.md); C (`libtarn`) and Python
//! (`bindings/python`) are built on it. A [`CheckpointSession`] holds a program's ranks, the folders of its
//! tiers and its objects. The method is Phoenix (Fernando et al. 2016, section II): a commit stores part of a
//! version on the persistent tier and stages the rest in memory, with a copy on another node.
//!
//! A program begins, creates its objects, restarts once, and commits whenever its state is worth keeping.
//! Here, as in all examples below, the tier and the memory are temporary folders. In a real program the tier is
//! a folder on the node's NVMe or persistent memory, and the memory is `/dev/shm` unless it is named:
//!
//! ```
//! use tarn_checkpoint::{CheckpointSession, Options, PersistenceLevel, Properties};
//!
//! let folder = tempfile::tempdir_in("/dev/shm").unwrap();
//! let tier = folder.path().join("tier");
//! let memory = folder.path().join("memory");
//! let mut session = CheckpointSession::begin(Options {
//!     tier: Some(tier),
//!     memory: Some(memory),
//!     ..Options::default()
//! })?;
//! session.create("field", 8000, 8, Properties::default())?;
//! session.create("step", 8, 8, Properties::default())?;
//! if session.restart(None)?.is_none() {
//!     session.values::<f64>("field")?.fill(1.0);
//! }
//! while session.values::<u64>("step")?[0] < 3 {
//!     session.values::<u64>("step")?[0] += 1;
//!     session.values::<f64>("field")?.iter_mut().for_each(|x| *x *= 0.5);
//!     let committed = session.commit()?;
//!     session.wait(committed.id, PersistenceLevel::Durable, None)?;
//! }
//! assert_eq!(session.values::<f64>("field")?, [0.125; 1000]);
//! session.end()?;
//! # Ok::<(), tarn_checkpoint::CheckpointError>(())
//! ```
//!
//! | to | use |
//! | --- | --- |
//! | save and restore a program's arrays | [`CheckpointSession`], [`Options`], [`Properties`] |
//! | read a version from another program of the node | [`VersionReader`] |
//! | list the versions that are in a folder | [`version_catalog`] |
//! | finish what a dead program left in memory | [`destage`] |
//! | share one session between threads | [`SessionSlot`] |
//!
//! Sizes are bytes, times are [`Duration`](std::time::Duration)s. Every error is a [`CheckpointError`] with a
//! [`CheckpointErrorCode`], whose numbers are those of C's `phx.h`.

#![allow(unsafe_code)]

pub mod destage;
mod environment;
mod keys;
mod memory;
mod options;
mod reader;
mod session;
mod settings;
mod slot;
mod transport;
pub mod version_catalog;

pub use memory::{Element, ObjectMemory};
pub use options::{Options, Precopy, Properties};
pub use reader::{RankObject, VersionReader, VersionSelector};
pub use session::CheckpointSession;
pub use slot::{SessionGuard, SessionSlot};
pub use tarn_checkpoint_core::{
    CheckpointError, CheckpointErrorCode, Committed, MAX_REPLICAS, MAX_SET, PersistenceLevel,
    RankStats, Replicate, Restorable, Shape, StagingShare, VersionId,
};
pub use tarn_ports::PowerFail;
