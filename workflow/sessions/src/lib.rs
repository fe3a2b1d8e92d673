//! L3: sessions between `tarn run` and the tarnd of each of its nodes: calls with deadlines, what is told, news, heartbeats, on a
//! sealed stream whose key only one run has. docs/internals/streams.md, "Sessions of a run".
//!
//! Messages are bytes here; `tarn_proto::node` gives them a meaning. Of each session each end has a thread that reads and one that
//! writes.

mod client;
mod frame_queue;
mod frames;
mod keys;
mod server;
mod talking;

pub use client::{CallError, NodeSession};
pub use keys::{RunKeyError, RunKeys};
pub use server::{NotificationSender, SessionHandler, SessionOpenError, SessionServer, Talk};

use frames::Frame;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tarn_stream::Sender;

/// The version of what is said in sessions.
pub const VERSION: u16 = 2;
/// Bytes of one message; a manifest of ten million files fits.
pub const MAX_MESSAGE: usize = 1 << 30;
/// Frames of one session that wait to be sent, of at most 1 MiB each.
const QUEUE: usize = 64;
/// Notifications of one session that wait to be read.
const MAX_WAITING_NOTIFICATIONS: usize = 4096;
/// Commands that are sent ahead of those that were handled.
const MAX_COMMANDS_AHEAD: usize = 1024;
/// Their bytes; a longer command is sent alone.
const MAX_COMMAND_BYTES_AHEAD: u64 = 64 << 20;
/// Calls of one session that are being answered at once.
const CALLS_AT_ONCE: usize = 256;
/// Calls beyond these that wait to be answered; a client that makes more than that is cut off.
const MAX_WAITING_CALLS: usize = 1024;

/// How long silence may last.
#[derive(Debug, Clone, Copy)]
pub struct SessionTimeouts {
    /// Between two heartbeats.
    pub heartbeat: Duration,
    /// After so long without a word the other end is lost.
    pub lost: Duration,
    /// For connecting and the first words.
    pub connect: Duration,
}

impl SessionTimeouts {
    /// After so long without taking a byte the other end is lost, even if it speaks. Longer than `lost`: an end that is silent as well is
    /// called silent.
    fn full(&self) -> Duration {
        self.lost * 2
    }
}

impl Default for SessionTimeouts {
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
        /// The operation that failed.
        what: &'static str,
        /// Its error.
        source: std::io::Error,
    },
    /// The other end cannot be reached, or is not of this run.
    #[error("cannot open a session with {address}: {why}")]
    Unreachable {
        /// Where.
        address: String,
        /// The finding.
        why: String,
    },
    /// The other end refused.
    #[error("{address} refused the session: {why}")]
    Refused {
        /// Where.
        address: String,
        /// Its error.
        why: String,
    },
}

/// A mutex whose holders never panic half-way through a change: a poisoned one is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread.
fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), ControlError> {
    let thread = std::thread::Builder::new().name(name.into());
    let started = thread.spawn(work);
    started.map(drop).map_err(|source| ControlError::System {
        what: "cannot start a thread",
        source,
    })
}

/// Writes what waits to be said, and a heartbeat where nothing does, until the end was said, nobody can say anything any more, or the
/// other end takes nothing: the error, then. What waits is dropped, and later senders get an error.
fn write_all(
    mut sender: Sender,
    mut next: impl FnMut(Duration) -> Result<Frame, RecvTimeoutError>,
    heartbeat: Duration,
) -> std::io::Result<()> {
    loop {
        let frame = match next(heartbeat) {
            Ok(frame) => frame,
            Err(RecvTimeoutError::Timeout) => Frame::Heartbeat,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        let sent = sender.send(&[&frame.encode()]);
        if sent.is_err() || matches!(frame, Frame::End(_)) {
            return sent;
        }
    }
}
