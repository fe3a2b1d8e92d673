//! L4: partitions of storage memory, and queue pairs to them, for Rust programs; `libtarn` and `tarn` are over this. docs/guide/direct-access.md.
//!
//! A [`Partition`] is opened by its name. A [`PartitionQueue`] of a thread has regions of partitions and of memory, takes requests and tells their
//! ends.

mod error;
mod file;
mod folder;
mod local;
mod name;
mod part;
mod partition;
mod queue;
mod remote;
mod step;
mod store;
mod target;

pub use file::SUFFIX;
pub use folder::PartitionFolder;
pub use partition::{OpenOptions, Partition, PartitionDetails};
pub use queue::PartitionQueue;
pub use step::for_step;
pub use target::Serving;
pub use tarn_ports::{PowerFail, Promises};
pub use tarn_proto::local::{Code, RequestError};
pub use tarn_queue::header::{DATA as HEAD, MAX_UNIT, PAGE};
pub use tarn_queue::{MAX_PARTS, Options, QueueRegionId};
pub use tarn_ring::{Cqe, Flags, Level, Op, ProgramMemory, Sqe, StorageRequestError};
pub use tarn_sys::lock::RangeLockState;
pub use tarn_types::grant::{Grant, Grantee};
