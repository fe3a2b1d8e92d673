//! L3: trees of this node for its peers, and peers' trees for this node's movers, over TCP, sealed or by RMA
//! if that is configured.
//!
//! A [`DataServer`] answers peers that know a run's key, with the content that a [`Registry`] allows: [`ReplicaRegistry`] is one,
//! and [`Arriving`] a tree on it that is still being copied here. A [`DataClient`] stands for a peer; its trees are sources of
//! copies. docs/internals/cluster.md, "Data plane", has the protocol.

mod arriving;
mod client;
mod context;
mod far;
mod probe;
mod remote_tree;
mod replica_registry;
mod rma;
mod serve;
mod server;
mod stream;
mod transport;

pub use arriving::Arriving;
pub use client::{CallStream, DataClient, DataClientTimeouts, MAX_ADDRESSES};
pub use context::Limits;
pub use far::{RemoteStorage, result};
pub use probe::LinkProbe;
pub use remote_tree::RemoteTree;
pub use replica_registry::{
    Called, MakeTarget, Registry, RegistryError, ReplicaRegistry, Served, ServedFileExtent,
};
pub use rma::{BareWindow, LIBRARY, RawWindowClient, Rma, RmaError, library};
pub use server::{DataServer, DataServerCounts};
pub use tarn_proto::data::Tree;
pub use tarn_stream::{Key, Wire};
pub use tarn_types::stream::{RunId, StreamKeys};
pub use transport::{ContentTransport, Transport, TransportError};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A mutex whose holders never panic half-way through a change: a poisoned one is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
