//! L1: streams between hosts: both ends prove that they know a key, and the bytes of a stream are sealed, or in clear where
//! content proves itself. docs/internals/streams.md.
//!
//! [`connect`] and [`accept`] begin one by a key that both have; two ends that share a fresh key by other means (munge) have
//! [`StreamKeys`](tarn_types::stream::StreamKeys) at once. A [`Wire`] is bytes, [`mod@messages`] are messages; [`PendingConnections`] bounds those who
//! have not proven anything.

mod handshake;
pub mod hello;
mod messages;
mod pending;
pub mod records;
mod wire;

pub use handshake::{
    HandshakeOutcome, Key, MessageKind, Secret, Session, accept, connect, random, read_until,
};
pub use messages::{Receiver, Sender, Wait, messages};
pub use pending::{PendingConnection, PendingConnections};
pub use wire::{Incoming, Outgoing, StreamEnd, Wire, halves, keep_alive, read_exact_at};
