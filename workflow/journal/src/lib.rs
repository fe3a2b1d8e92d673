//! L3: the event log, its SQLite index, and the folder they live in. docs/reference/formats.md describes the bytes.
//!
//! Reading order: [`lines`] (checksummed lines, torn tails), [`log`] (the event log), [`runs`] (a state folder's
//! runs), [`catalogue`] (the index over all of them), [`lock`], [`live`] (the live status of a run).

pub mod catalogue;
pub mod changes;
mod holder;
pub mod lines;
pub mod live;
pub mod lock;
pub mod log;
pub mod runs;

pub use catalogue::{Catalogue, CatalogueError, DatasetRow, DestRow, ReplicaRow, RunRow};
pub use changes::{ChangeKind, ReplicaChange, StoredAt};
pub use holder::Holder;
pub use lines::LineError;
pub use lock::{LockError, RunLock};
pub use log::{LogFollower, LogReader, LogWriter, OpenedLog};
