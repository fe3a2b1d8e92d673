//! L4: checkpoints for Rust programs (docs/guide/checkpoints.md), and what C (`libtarn`) and Python (`bindings/python`) are over: ranks
//! that meet, folders of the tiers and the core in one [`CheckpointSession`].
//!
//! ```
//! use tarn_checkpoint::{CheckpointSession, Options, PersistenceLevel, Properties};
//!
//! # let folder = tempfile::tempdir_in("/dev/shm").unwrap();
//! # let tier = folder.path().join("tier");
//! # let memory = folder.path().join("memory");
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

#![allow(unsafe_code)]

pub mod destage;
mod environment;
mod keys;
mod memory;
mod reader;
mod session;
mod settings;
mod slot;
mod transport;
pub mod version_catalog;

pub use memory::{Element, ObjectMemory};
pub use reader::{RankObject, VersionReader, VersionSelector};
pub use session::{CheckpointSession, Options, Precopy, Properties};
pub use slot::{SessionGuard, SessionSlot};
pub use tarn_checkpoint_core::{
    CheckpointError, CheckpointErrorCode, Committed, MAX_REPLICAS, MAX_SET, PersistenceLevel,
    RankStats, Replicate, Restorable, Shape, StagingShare, VersionId,
};
pub use tarn_ports::PowerFail;
