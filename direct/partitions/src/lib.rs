//! L4: partitions of storage memory, and queue pairs to them, for Rust programs; `libtarn` and `tarn` are
//! built on this. docs/guide/direct-access.md explains both; they are after DSA (Schürmann et al. 2014,
//! sections 4 and 5).
//!
//! A [`Partition`] is opened by its name. A [`PartitionQueue`] belongs to one thread: it has regions of
//! partitions and of the program's memory, takes requests ([`Sqe`]) that name both, and gives completions
//! ([`Cqe`]).
//!
//! Here, as in all examples below, the partition is in a temporary folder; a real program gives one of the
//! [names](#names) below:
//!
//! ```
//! use std::cell::Cell;
//! use std::time::Duration;
//! use tarn_partitions::{Op, OpenOptions, Options, Partition, PartitionQueue, ProgramMemory, Sqe};
//!
//! let folder = tempfile::tempdir_in("/dev/shm").unwrap();
//! let path = folder.path().join("field");
//! Partition::create(&path, 1 << 20, Vec::new())?; // 1 MiB of zeros
//! let partition = Partition::open(&path, OpenOptions::default())?;
//!
//! let mut queue = PartitionQueue::new(8, Options::default())?;
//! let cells = Box::leak(vec![Cell::new(0_u8); 4096].into_boxed_slice());
//! let memory = queue.register_memory(ProgramMemory::of(cells))?;
//! let storage = queue.register(&partition, 0, partition.size()?, true)?;
//!
//! let write = Sqe {
//!     op: Op::Write as u8,
//!     memory,
//!     storage,
//!     address: cells.as_ptr().addr() as u64,
//!     offset: 512, // bytes from the beginning of the region
//!     length: 4096,
//!     user_data: 1,
//!     ..Sqe::default()
//! };
//! cells.iter().for_each(|cell| cell.set(7));
//! assert!(queue.prepare(write));
//! queue.wait(1, Duration::from_secs(10))?;
//! let done = queue.reap().unwrap();
//! assert_eq!((done.user_data, done.code, done.value), (1, 0, 4096));
//!
//! cells.iter().for_each(|cell| cell.set(0));
//! assert!(queue.prepare(Sqe { op: Op::Read as u8, ..write }));
//! queue.wait(1, Duration::from_secs(10))?;
//! assert_eq!((queue.reap().unwrap().code, cells[4095].get()), (0, 7));
//! # Ok::<(), tarn_partitions::RequestError>(())
//! ```
//!
//! # Names
//! | name | which partition |
//! | --- | --- |
//! | `/dev/shm/me/field`, `./field` | of a folder: a path that begins with `/`, `./` or `../`; no service is needed |
//! | `fast/field` | of the dataspace `fast` of this node's tarnd (`$TARN_SOCKET`) |
//! | `n2:fast/field` | of that dataspace on node `n2`, by this node's tarnd |
//! | `@step/field` | of the workflow step that this program belongs to |
//!
//! Sizes, offsets and lengths are bytes. Calls return a [`RequestError`] with a [`Code`]; completions have
//! the number of a [`StorageRequestError`].

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
pub use tarn_sys::lock::RangeLockMode;
pub use tarn_types::grant::{Grant, Grantee};
