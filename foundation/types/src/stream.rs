//! Identifiers and keys of streams between two hosts. The crate `tarn-stream` has the streams.

use crate::key::KEY_BYTES;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes of a run's id.
pub const RUN_BYTES: usize = 16;

/// Identifies the key that both ends of a stream have: a run's, a site's, that of a user's nodes.
pub type RunId = [u8; RUN_BYTES];

/// The secret that only both ends of a sealed stream share, and how much of it was used.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamKeys {
    /// New for each stream: the keys of both directions are made of it.
    pub secret: [u8; KEY_BYTES],
    /// Records sent to the server.
    pub to_server: u64,
    /// Records sent to the client.
    pub to_client: u64,
}

impl fmt::Debug for StreamKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamKeys(secret)")
    }
}
