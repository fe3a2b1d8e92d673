//! L3: memory that outlives a process, mapped and kept, and its promises. docs/guide/checkpoints.md.
//!
//! Sizes and offsets are bytes, rates bytes a second, latencies nanoseconds.
//!
//! A [`MappedFile`] is a file (on a tmpfs, a DAX file system or any other) or a DAX device, mapped for its only writer; [`EmulatedMedium`] plays an
//! NVRAM of a given profile on any medium. Bytes go in by [`kernel`], which reads them once, past the caches, and checksums them on
//! the way. A [`SharedMedium`] is a part of a file that many use at once, each by a [`Direct`] of its own; [`Units`] is one that is not mapped,
//! but written in units, each by a [`UnitStorage`]: docs/guide/direct-access.md.

#![allow(unsafe_code)]

mod bare;
mod external;
mod flush;
#[cfg(target_arch = "x86_64")]
mod fold;
mod folder;
mod guarded;
mod held;
pub mod kernel;
mod map;
mod pieces;
mod pins;
mod profiles;
mod promises;
mod shared;
pub mod slow;
mod target;
mod units;
mod view;

pub use bare::UncachedFile;
pub use external::{ExternalFolder, Reader};
pub use flush::Flush;
pub use folder::Folder;
pub use map::{MappedFile, MappedPart, ReadOnlyMapping, reserve};
pub use profiles::ProfileError;
pub use shared::{Direct, SharedMedium};
pub use slow::{Device, EmulatedMedium, Profile};
pub use target::Now;
pub use units::{UnitStorage, Units, Using, clear_slots, unit_of};
pub use view::Mapping;
