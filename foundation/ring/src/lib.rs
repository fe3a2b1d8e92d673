//! L1: shared by a program, a queue pair and storage memory: the rings of a queue pair, the requests in them, the memory that
//! these name, and the trait of the storage that does them. Nothing here touches the world. docs/guide/direct-access.md.

#![allow(unsafe_code)]

mod entry;
mod memory;
mod rings;
mod storage;

pub use entry::{Cqe, Flags, Level, Op, Sqe};
pub use memory::{MemorySpan, ProgramMemory};
pub use rings::{MAX_ENTRIES, Rings};
pub use storage::{Exposed, Storage, StorageRequestError, SubmitOutcome, Target, Ticket};
