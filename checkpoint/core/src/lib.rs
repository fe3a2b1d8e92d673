//! L2: checkpoints (docs/internals/checkpoints.md): what is stored where in an arena, which versions are whole, what is free, and what a rank does with
//! all that. Whatever holds the bytes is a [`tarn_ports::MediumWindow`], and other ranks are a [`tarn_ports::Ranks`]; there is no I/O here, and
//! threads and time only in [`rank`] and `copy_workers`, which drive the rest.
//!
//! Reading order: [`manifest`] (what a version is), [`arena`] (how one is published and found again), [`layout`] (who copies what),
//! [`rank`] (all together), [`flush`] (what is on the external store), [`split`] (what that takes), [`model`] (what it is worth),
//! [`free_space`] (what is free); beside all that, [`object`] (a file of the node's object store).

pub mod arena;
mod copy_workers;
pub mod fault;
pub mod flush;
pub mod free_space;
pub mod layout;
pub mod manifest;
pub mod model;
pub mod object;
pub mod rank;
pub mod seal;
pub mod split;

pub use arena::{Arena, ArenaError, ArenaHeader, PersistenceLevel, ProgramStart, VersionId};
pub use fault::{CheckpointError, CheckpointErrorCode};
pub use manifest::{Object, ObjectPiece, PieceLocation, RankManifest, Shape};
pub use rank::{
    CommitObject, Committed, Distance, Empty, ExternalStore, MAX_REPLICAS, MAX_SET, Options, Rank,
    RankStats, Replicate, Restorable, StagingShare, VersionRequirements,
};
