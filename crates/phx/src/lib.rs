//! L2: checkpoints as a core (docs/checkpoints.md): what lies where in an arena, which versions are whole, what is free. Whatever
//! holds the bytes is a [`tarn_ports::Window`]; there is no clock, no thread and no I/O here.
//!
//! Reading order: [`manifest`] (what a version is), [`arena`] (how one is published and found again), [`restart`] (which one), [`split`]
//! (what goes where first), [`model`] (what it is worth), [`block`] and [`room`].

pub mod arena;
pub mod block;
pub mod manifest;
pub mod model;
pub mod restart;
pub mod room;
pub mod split;

pub use arena::{Arena, ArenaError, Header, Level, VersionId};
pub use manifest::{Manifest, Object, Piece, Place, Shape};
