//! L4: partitions of storage memory, and queue pairs to them, for Rust programs; `libtarn` and `tarn` are over this. docs/guide/direct-access.md.
//!
//! A [`Partition`] is opened by its name. A [`Queue`] of a thread has regions of partitions and of memory, takes requests and tells their
//! ends.

mod error;
mod far;
mod file;
mod folder;
mod here;
mod lent;
mod name;
mod part;
mod partition;
mod queue;
mod store;
mod target;

pub use file::SUFFIX;
pub use folder::Folder;
pub use lent::for_step;
pub use partition::{Info, OpenOptions, Partition};
pub use queue::Queue;
pub use target::Serving;
pub use tarn_ports::{PowerFail, Promises};
pub use tarn_proto::local::{Code, Refusal};
pub use tarn_queue::header::{DATA as HEAD, MAX_UNIT, PAGE};
pub use tarn_queue::{MAX_PARTS, Options, RegionId};
pub use tarn_ring::{Cqe, Failure, Flags, Level, Memory, Op, Sqe};
pub use tarn_sys::lock::Hold;
pub use tarn_types::grant::{Grant, Who};
