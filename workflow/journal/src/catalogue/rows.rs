//! The tables, and the rows that are read from them.

use crate::changes::StoredAt;
use std::path::PathBuf;
use tarn_types::action::Outcome;
use tarn_types::hash::Hash;
use tarn_types::history::Traffic;
use tarn_types::part::StoreKey;

/// The tables. docs/reference/formats.md describes them.
pub(super) const SCHEMA: &str = "
CREATE TABLE runs (
    name TEXT PRIMARY KEY, workflow TEXT NOT NULL, workspace TEXT NOT NULL,
    wall INTEGER NOT NULL, ended INTEGER, outcome TEXT,
    instances INTEGER NOT NULL, done INTEGER NOT NULL,
    external_in INTEGER NOT NULL, external_out INTEGER NOT NULL, peer INTEGER NOT NULL,
    promote INTEGER NOT NULL, demote INTEGER NOT NULL, retained INTEGER NOT NULL,
    log_bytes INTEGER NOT NULL
) STRICT;
CREATE TABLE instances (
    workflow TEXT NOT NULL, identity TEXT NOT NULL, run TEXT NOT NULL, wall INTEGER NOT NULL,
    step TEXT NOT NULL, code TEXT NOT NULL, item TEXT, outputs TEXT NOT NULL
) STRICT;
CREATE INDEX instances_newest ON instances (workflow, wall);
CREATE INDEX instances_of_run ON instances (run);
CREATE TABLE replicas (
    key TEXT NOT NULL, place TEXT NOT NULL,
    workflow TEXT NOT NULL, workspace TEXT NOT NULL, dataset TEXT NOT NULL, version INTEGER NOT NULL,
    bytes INTEGER NOT NULL, stored INTEGER NOT NULL, run TEXT NOT NULL,
    since INTEGER NOT NULL, kept INTEGER NOT NULL, kept_until INTEGER, by_user INTEGER NOT NULL,
    PRIMARY KEY (key, place)
) STRICT;
CREATE INDEX replicas_of_dataset ON replicas (workflow, dataset, version);
CREATE TABLE tiers (
    workflow TEXT NOT NULL, workspace TEXT NOT NULL, place TEXT NOT NULL,
    PRIMARY KEY (workflow, workspace, place)
) STRICT;
CREATE TABLE dests (
    workflow TEXT NOT NULL, dataset TEXT NOT NULL, path TEXT NOT NULL, version INTEGER NOT NULL,
    hash TEXT NOT NULL, run TEXT NOT NULL, wall INTEGER NOT NULL,
    PRIMARY KEY (workflow, dataset)
) STRICT;
";

/// A run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRow {
    /// Its name.
    pub name: String,
    /// Its workflow's name.
    pub workflow: String,
    /// When it began, in seconds since 1970.
    pub wall: u64,
    /// When it ended, in the same seconds.
    pub ended: Option<u64>,
    /// How it ended; `None` while it runs or when it died.
    pub outcome: Option<Outcome>,
    /// Instances that anything was decided about.
    pub instances: u64,
    /// Those that are committed, reused or not needed.
    pub done: u64,
    /// Bytes by kind.
    pub bytes: Traffic,
}

/// A replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaRow {
    /// The part.
    pub key: StoreKey,
    /// Its place.
    pub at: StoredAt,
    /// Its workflow's name.
    pub workflow: String,
    /// Its workspace: with `at` and `key` it gives the path.
    pub workspace: String,
    /// Its dataset's name.
    pub dataset: String,
    /// Its version.
    pub version: u32,
    /// Bytes of content.
    pub bytes: u64,
    /// Bytes that it takes.
    pub stored: u64,
    /// The run that last recorded it.
    pub run: String,
    /// Since when, in seconds since 1970.
    pub since: u64,
    /// Whether it is to be kept. Other replicas are cache, or remain of a run that has not ended well: the next run uses or
    /// removes them.
    pub kept: bool,
    /// Until when it is kept, in the same seconds; `None`: until somebody removes it. If it is not to be kept: until when
    /// it may stay as cache.
    pub kept_until: Option<u64>,
    /// Whether the user set this, not the workflow file.
    pub by_user: bool,
}

impl ReplicaRow {
    /// Whether the user has pinned it, until it is released.
    pub fn is_pinned(&self) -> bool {
        self.by_user && self.kept && self.kept_until.is_none()
    }

    /// Its folder.
    pub fn path(&self) -> PathBuf {
        self.at.path(&self.workspace, &self.key)
    }

    /// Whether it is cached at `wall` (seconds since 1970): no run waits for it, and it is removed when its space is needed.
    pub fn is_cached(&self, wall: u64) -> bool {
        !self.kept && self.kept_until.is_some_and(|until| until > wall)
    }

    /// Whether it is to be kept at `wall` (seconds since 1970).
    pub fn is_kept(&self, wall: u64) -> bool {
        self.kept && self.kept_until.is_none_or(|until| until > wall)
    }
}

/// The parts of a version in one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetRow {
    /// The workflow's name.
    pub workflow: String,
    /// The dataset's name.
    pub dataset: String,
    /// The version.
    pub version: u32,
    /// The place.
    pub at: StoredAt,
    /// Parts that are stored there.
    pub parts: u64,
    /// Their bytes of content.
    pub bytes: u64,
    /// Bytes that they take.
    pub stored: u64,
    /// Whether all of them are to be kept: see [`ReplicaRow::kept`].
    pub kept: bool,
    /// Until when the first of them is kept, in seconds since 1970; `None`: until somebody removes it.
    pub kept_until: Option<u64>,
}

impl DatasetRow {
    /// Whether all of it is to be kept at `wall` (seconds since 1970).
    pub fn is_kept(&self, wall: u64) -> bool {
        self.kept && self.kept_until.is_none_or(|until| until > wall)
    }

    /// Whether some of it is there as cache: it is not to be kept, and no run waits for it.
    pub fn is_cached(&self) -> bool {
        !self.kept && self.kept_until.is_some()
    }
}

/// A `dest` that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestRow {
    /// The workflow's name.
    pub workflow: String,
    /// The dataset's name.
    pub dataset: String,
    /// The folder.
    pub path: PathBuf,
    /// The version it holds.
    pub version: u32,
    /// Its content hash.
    pub hash: Hash,
    /// The run that wrote it.
    pub run: String,
    /// When, in seconds since 1970.
    pub wall: u64,
}
