//! L2: checkpoints (docs/internals/checkpoints.md): the places in an arena, its whole versions, its free space, and how a rank uses
//! them. A [`tarn_ports::MediumWindow`] holds the bytes, and other ranks are a [`tarn_ports::Ranks`]; there is no I/O here, and
//! threads and time only in [`rank`] and `copy_workers`, which drive the rest.
//!
//! Reading order: [`manifest`] (the content of a version), [`arena`] (how one is published and found again), [`layout`] (the copy
//! jobs), [`rank`] (all together), [`flush`] (the external store), [`split`] (the shares of tier and memory), [`model`] (the value
//! of checkpoints), [`free_space`] (free ranges); beside all that, [`object`] (a file of the node's object store).

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
