//! Messages between a node's tarnd and the worker of a user, over a socket that the worker inherits.

use super::keys::UserKeys;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use tarn_proto::site::{Gid, MAX_FRAME, Work, WorkResult, decode, encode};

/// How workers of a node copy.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WorkerConfig {
    /// Nothing goes over a stream to another node that is not sealed.
    pub(super) sealed: bool,
    /// Bytes a second that a user's worker reads and writes outside.
    pub(super) external_rate: Option<u64>,
    /// Bytes a second that it reads from other nodes.
    pub(super) peer_rate: Option<u64>,
    /// Bytes a second that it moves from one store of the node to another.
    pub(super) move_rate: Option<u64>,
    /// The object store of users whose files name none.
    pub(super) object_endpoint: Option<String>,
}

/// To a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WorkerCommand {
    /// First.
    Begin {
        /// Name and root of each store, fast to slow.
        stores: Vec<(String, PathBuf)>,
        /// The node's name.
        node: String,
        /// The user's keys.
        keys: UserKeys,
        /// Projects whose folders are in the stores.
        projects: Vec<Gid>,
        /// How it copies.
        worker_config: WorkerConfig,
    },
    /// Do this.
    Work {
        /// Its number.
        number: u64,
        /// The work.
        work: Box<Work>,
    },
    /// Stop that.
    Stop(u64),
    /// The user's keys are these from now on.
    Keys(UserKeys),
}

/// From a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WorkerNotification {
    /// It serves this user's parts there.
    Serving {
        /// The port.
        port: u16,
    },
    /// The result of a work.
    Worked {
        /// Its number.
        number: u64,
        /// The result.
        what: WorkResult,
    },
    /// It is there.
    Alive,
}

impl WorkerNotification {
    /// How often a worker gives a sign that it is there: one that its user has stopped does not.
    pub(super) const BEAT: Duration = Duration::from_secs(3);
}

/// Sends a message.
pub(super) fn send_message<T: Serialize>(mut to: &UnixStream, what: &T) -> io::Result<()> {
    to.write_all(&encode(what).map_err(io::Error::other)?)
}

/// Hears something; `None` when the other side has ended.
pub(super) fn receive_message<T: DeserializeOwned>(mut from: &UnixStream) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME {
        return Err(io::Error::other("a message that is too long to be one"));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    decode(&body).map(Some).map_err(io::Error::other)
}
