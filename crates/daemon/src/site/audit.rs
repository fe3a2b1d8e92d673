//! The audit log: who had what done on this node, and what was refused.

use anyhow::Context;
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;
use tarn_proto::site::Uid;

/// Where it goes beside the log.
pub(super) struct Audit(Option<Mutex<File>>);

impl Audit {
    /// Opens the file for append, if there is one.
    pub(super) fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = path else {
            return Ok(Self(None));
        };
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).mode(0o600).open(path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Self(Some(Mutex::new(file))))
    }

    /// Something was done for a user.
    pub(super) fn done(&self, user: Uid, what: &str) {
        tracing::debug!(user, "done: {what}");
        self.write(Some(user), what, "done");
    }

    /// Something failed, or was refused.
    pub(super) fn refused(&self, user: Option<Uid>, what: &str, why: &str) {
        tracing::warn!(user, "refused: {what}: {why}");
        self.write(user, what, why);
    }

    fn write(&self, user: Option<Uid>, what: &str, result: &str) {
        let Some(file) = &self.0 else {
            return;
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let seconds = now.map_or(0.0, |d| d.as_secs_f64());
        let line = json!({"at": seconds, "user": user, "what": what, "result": result});
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(e) = writeln!(file, "{line}") {
            tracing::error!("the audit log cannot be written: {e}");
        }
    }
}
