//! Messages of the local socket: requests of a program on a node to its tarnd.
//!
//! One packet is one message: `u16` version, `u32` number of the request (a reply carries that of its request), both
//! little-endian, then the message in postcard. Descriptors travel with the packet that names them.

mod bytes;
mod code;
mod message;
mod packet;
mod peer;
mod task;

pub use bytes::PathBytes;
pub use code::Code;
pub use message::{
    Access, CancelResult, JobChange, Limit, LocalRequest, PartitionInfo, PauseResult,
    RemotePartition, Reply, Scope, SpaceChange, SpaceInfo, SpaceSpec, Stats, WindowUse,
};
pub use packet::{Packet, PacketError, decode, encode, versions};
pub use peer::{
    MAX_STEP_PIECE, PEER_VERSION, PeerCodeError, PeerTarndReply, PeerTarndRequest, StepMessage,
    pack, unpack,
};
pub use task::{
    Allocation, Checksum, CopyVerification, MAX_FIRST, RequestError, TaskEnd, TaskLocation,
    TaskOperation, TaskOutcome, TaskSpec, TaskState, TaskStatus,
};

/// A task's id: never given twice by one tarnd, restarts included.
pub type TaskId = u64;
/// A user, as the kernel numbers them.
pub type UserId = u32;
/// A job, as the scheduler numbers them.
pub type JobId = u64;
/// A registered piece of memory, of one connection.
pub type RegionId = u32;

/// The oldest version of the messages that is understood.
pub const OLDEST: u16 = 1;
/// The version of the messages described here.
pub const VERSION: u16 = 1;
/// Bytes of a packet: a unix socket's default buffer holds several.
pub const MAX_PACKET: usize = 64 << 10;
/// Tasks in one request: larger batches do not make submission faster.
pub const MAX_BATCH: usize = 256;
/// Ids in one request; such a request, and the outcomes without messages, fit into a packet.
pub const MAX_IDS: usize = 1024;
/// Tasks that one task may follow.
pub const MAX_AFTER: usize = 64;
/// Descriptors in one packet: one region is registered at a time.
pub const MAX_FDS: usize = 1;
/// Bytes of an error's text: a path and a sentence.
pub const MAX_TEXT: usize = 8 << 10;
