//! `phx.h`: checkpoints, and `tarn_objects.h`: the node's object store.

mod abi;
mod calls;
mod objects;
mod readers;

pub use abi::{
    phx_dimension, phx_options, phx_properties, phx_stats, phx_version, phx_version_info,
};
pub use calls::*;
pub use objects::*;
pub use readers::*;

/// All tables, locked.
pub(crate) type PhxTableGuards = (
    objects::ObjectTableGuards,
    std::sync::MutexGuard<'static, readers::ReaderTable>,
);

pub(crate) fn hold() -> PhxTableGuards {
    (objects::hold(), readers::lock())
}
