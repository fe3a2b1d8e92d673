//! `data.log`: changes to replicas by people outside any run. The catalogue can be made again only because this is
//! kept.

use crate::lines::{LineError, LineReader, LineWriter};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tarn_types::layout::{StateDir, TierDir, drained_part};
use tarn_types::part::StoreKey;

/// Name and version of the format: the first line.
pub const FORMAT: &str = "tarn-data-log 1";

/// The place of a replica, by names that hold beyond one run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoredAt {
    /// A tier of a node.
    Node {
        /// The node's name.
        name: String,
        /// The tier's name.
        tier: String,
        /// The tier's root.
        root: PathBuf,
        /// Whether it is a machine of its own, known by its name; else it is the machine, or a part of it, on which tarn ran.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        machine: bool,
    },
    /// A directory of the external store that holds a whole version.
    External(PathBuf),
    /// The workflow's own area below this directory of the external store.
    Drained(PathBuf),
}

impl StoredAt {
    /// The folder: of the part, or for [`StoredAt::External`] of the whole version.
    pub fn path(&self, workspace: &str, key: &StoreKey) -> PathBuf {
        match self {
            Self::Node { name, root, .. } => TierDir::new(root, workspace, name).part(key),
            Self::External(path) => path.clone(),
            Self::Drained(external) => drained_part(external, workspace, key),
        }
    }
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaChange {
    /// When, in seconds since 1970.
    pub wall: u64,
    /// The replica's part.
    pub key: StoreKey,
    /// The replica's place.
    pub at: StoredAt,
    /// The kind of change.
    pub change: ChangeKind,
}

/// A kind of change to a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeKind {
    /// It was removed.
    Removed,
    /// It is to be kept until this second since 1970; `None`: until somebody removes it.
    KeptUntil(Option<u64>),
}

/// Why changes could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ChangesError {
    /// The file cannot be used.
    #[error(transparent)]
    Lines(#[from] LineError),
    /// A change cannot be written or understood.
    #[error("line {line} of {}: {source}; it was written by another version of tarn, or names a path that is not UTF-8", .path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The line; 0 for one that was to be written.
        line: u64,
        /// The conversion error.
        source: serde_json::Error,
    },
}

fn path(state: &StateDir) -> PathBuf {
    state.0.join("data.log")
}

/// All changes, oldest first.
///
/// # Errors
/// When the file cannot be read or is damaged.
pub fn read(state: &StateDir) -> Result<Vec<ReplicaChange>, ChangesError> {
    Ok(scan(&path(state))?.0)
}

/// The changes and the bytes that were intact; `None` for the latter when there is no file.
fn scan(path: &Path) -> Result<(Vec<ReplicaChange>, Option<u64>), ChangesError> {
    let mut lines = match LineReader::open(path, FORMAT) {
        Ok(lines) => lines,
        Err(e) if e.is_missing() => return Ok((Vec::new(), None)),
        Err(e) => return Err(e.into()),
    };
    let mut changes = Vec::new();
    while let Some(text) = lines.next_line()? {
        match serde_json::from_slice(text) {
            Ok(change) => changes.push(change),
            Err(source) => {
                return Err(ChangesError::Json {
                    path: path.to_path_buf(),
                    line: lines.line(),
                    source,
                });
            }
        }
    }
    Ok((changes, Some(lines.good())))
}

/// Appends changes, all or none, durably. The caller holds the catalogue's lock.
pub(crate) fn append(state: &StateDir, changes: &[ReplicaChange]) -> Result<(), ChangesError> {
    let path = path(state);
    let (_, good) = scan(&path)?;
    let mut writer = match good {
        Some(good) => LineWriter::open_at(&path, good, FORMAT)?,
        None => LineWriter::create(&path, FORMAT)?,
    };
    let encoded: Result<Vec<_>, _> = changes.iter().map(serde_json::to_vec).collect();
    let encoded = encoded.map_err(|source| ChangesError::Json {
        path: path.clone(),
        line: 0,
        source,
    })?;
    let appended = writer.append(encoded.iter().map(Vec::as_slice));
    Ok(appended.map_err(LineError::io("append to", &path))?)
}
