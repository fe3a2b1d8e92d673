//! L2: queue pairs to storage memory (Schürmann et al. 2014, section 4): what a request may name, in which order requests begin, when their
//! ends are told; and what is in a partition's header. Generic over the storage, so that nothing is dispatched on the way of a copy.
//! docs/guide/direct-access.md.

mod cyclic;
mod flight;
pub mod header;
mod queue;
mod region;
mod slab;

pub use cyclic::{Cyclic, CyclicLayout, MAX_PARTS};
pub use queue::{Options, Queue};
pub use region::{MAX_REGIONS, MAX_STORAGES, NoRegion, QueueRegionId};
