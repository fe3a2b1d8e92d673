//! L3: sessions between `tarn run` and the tarnd of each of its nodes: calls with deadlines, what is told, news, heartbeats;
//! gRPC over mutual TLS with keys that only one run has. docs/internals/cluster.md, "Control plane".
//!
//! What is said is bytes here; `tarn_proto::node` gives them a meaning. Callers are blocking threads: the runtime that gRPC
//! needs stays inside.

mod client;
mod frames;
mod incoming;
mod keys;
mod server;

pub use client::{CallError, Session};
pub use keys::{KeyError, RunKeys};
pub use server::{Handler, News, Server, Talk};

use std::time::Duration;

/// What `proto/control.proto` says.
#[allow(missing_docs, unreachable_pub, clippy::all)]
mod wire {
    tonic::include_proto!("tarn.control.v1");
}

/// The version of the protocol.
pub const VERSION: u32 = 1;
/// Bytes of one message; a manifest of ten million files fits.
pub const MAX_MESSAGE: usize = 1 << 30;
/// Frames of one session that wait to be sent, of at most 1 MiB each.
const QUEUE: usize = 64;
/// News of one session that wait to be heard.
const UNHEARD: usize = 4096;
/// Messages that are told ahead of those that were heard.
const TOLD_AHEAD: usize = 1024;
/// Their bytes; a longer message is told alone.
const TOLD_AHEAD_BYTES: u64 = 64 << 20;
/// Calls of one session that are being answered at once.
const CALLS_AT_ONCE: usize = 256;
/// The name that certificates of a run carry; nobody resolves it.
const PEER: &str = "node.tarn";

/// How long silence may last.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Between two heartbeats.
    pub heartbeat: Duration,
    /// After so long without a word the other end is lost.
    pub lost: Duration,
    /// For connecting and the first words.
    pub connect: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(2),
            lost: Duration::from_secs(10),
            connect: Duration::from_secs(10),
        }
    }
}

/// A session could not be opened or served.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What it said.
        source: std::io::Error,
    },
    /// The other end cannot be reached, or is not of this run.
    #[error("cannot open a session with {address}: {why}")]
    Unreachable {
        /// Where.
        address: String,
        /// What was found.
        why: String,
    },
    /// The other end refused.
    #[error("{address} refused the session: {why}")]
    Refused {
        /// Where.
        address: String,
        /// What it said.
        why: String,
    },
    /// The keys cannot be used.
    #[error(transparent)]
    Keys(#[from] KeyError),
}

/// One for each end: it answers to nobody else.
fn runtime() -> Result<tokio::runtime::Runtime, ControlError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(2 * CALLS_AT_ONCE)
        .thread_name("tarn-sessions")
        .enable_all()
        .build()
        .map_err(|source| ControlError::System {
            what: "cannot start the threads of the control plane".into(),
            source,
        })
}
