//! The key of a run's sessions: who has it belongs to the run. The data plane has another one (`Start::data` in `tarn_proto::node`).

use serde::{Deserialize, Serialize};
use std::fmt;
use tarn_stream::{Key, random};
use tarn_types::key::KEY_BYTES;
use tarn_types::stream::{RUN_BYTES, RunId};

/// A key could not be made.
#[derive(Debug, thiserror::Error)]
#[error("the key of the run cannot be made: {0}")]
pub struct RunKeyError(#[from] std::io::Error);

/// The secret of both ends of every session of a run. New for each run, passed to its nodes through a pipe, never
/// written to a file.
#[derive(Clone, Serialize, Deserialize)]
pub struct RunKeys {
    run: RunId,
    secret: [u8; KEY_BYTES],
}

impl fmt::Debug for RunKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RunKeys(secret)")
    }
}

impl RunKeys {
    /// New ones.
    ///
    /// # Errors
    /// When the system gives no random numbers.
    pub fn new() -> Result<Self, RunKeyError> {
        let mut run = [0; RUN_BYTES];
        run.copy_from_slice(&random()?[..RUN_BYTES]);
        Ok(Self {
            run,
            secret: random()?,
        })
    }

    pub(crate) fn run(&self) -> RunId {
        self.run
    }

    pub(crate) fn key(&self) -> Key {
        Key(self.secret)
    }
}
