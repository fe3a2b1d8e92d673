//! The catalogue: a SQLite index over all logs of a state folder. It holds nothing of its own: whatever is wrong
//! with it, it is made again.

mod index;
mod query;
mod rows;

pub use query::MAX_PRIOR;
pub use rows::{DatasetRow, DestRow, ReplicaRow, RunRow};

use crate::changes::{self, ChangesError, ReplicaChange};
use crate::lines::LineError;
use crate::lock::{LockError, RunLock};
use crate::runs::{self, RunsError};
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tarn_types::layout::StateDir;

/// `PRAGMA user_version` of this layout.
const VERSION: i64 = 4;
/// How long a writer waits for another process's transaction: they take milliseconds.
const BUSY: Duration = Duration::from_secs(20);

/// Why the catalogue cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// SQLite refused something.
    #[error("cannot {doing} the catalogue {}: {source}; it is only an index: remove it, and it is made again from the logs", .path.display())]
    Sql {
        /// The attempted operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// A value in it cannot be understood or written.
    #[error("cannot encode or decode a value of the catalogue {}: {source}; remove it, and it is made again from the logs", .path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The conversion error.
        source: serde_json::Error,
    },
    /// The state folder cannot be made.
    #[error("cannot create the state folder {}: {source}", .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// It is damaged or outdated, and cannot be removed to be made again.
    #[error("cannot remove the unusable catalogue {}: {source}; remove it by hand, it is made again from the logs", .path.display())]
    Remove {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// It cannot be locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A log cannot be read.
    #[error(transparent)]
    Log(#[from] LineError),
    /// The runs cannot be listed.
    #[error(transparent)]
    Runs(#[from] RunsError),
    /// The log of changes cannot be read or written.
    #[error(transparent)]
    Changes(#[from] ChangesError),
}

/// The index over the logs of one state folder.
pub struct Catalogue {
    db: Connection,
    state: StateDir,
    path: PathBuf,
    skipped: Vec<(String, LineError)>,
}

impl Catalogue {
    /// Opens the catalogue of a state folder, made where it does not exist, and indexes the logs that it lacks. When it is
    /// missing, damaged or of another version, it is made again from the logs.
    ///
    /// # Errors
    /// When the folder cannot be written. A run whose log is damaged is no error: see [`Catalogue::skipped`].
    pub fn open(state: &StateDir) -> Result<Self, CatalogueError> {
        std::fs::create_dir_all(&state.0).map_err(|source| CatalogueError::Folder {
            path: state.0.clone(),
            source,
        })?;
        let _lock = RunLock::wait(&lock_path(state))?;
        let path = state.catalogue();
        let db = match connect(&path) {
            Ok(db) => db,
            Err(e) if is_unusable(&e) => {
                remove(&path).map_err(|source| CatalogueError::Remove {
                    path: path.clone(),
                    source,
                })?;
                connect(&path).map_err(sql("make", &path))?
            }
            Err(e) => return Err(sql("open", &path)(e)),
        };
        let mut catalogue = Self {
            db,
            state: state.clone(),
            path,
            skipped: Vec::new(),
        };
        catalogue.refresh()?;
        Ok(catalogue)
    }

    /// The state folder whose logs it indexes.
    pub fn state(&self) -> &StateDir {
        &self.state
    }

    /// Runs that could not be indexed, because their logs are damaged.
    pub fn skipped(&self) -> &[(String, LineError)] {
        &self.skipped
    }

    /// Indexes every run whose log has changed, the one written last at the end.
    fn refresh(&mut self) -> Result<(), CatalogueError> {
        let known = self.indexed_lengths()?;
        for run in runs::list(&self.state)? {
            let changed = known.get(&run.name) != Some(&run.log_bytes);
            if run.written.is_none() || !changed {
                continue;
            }
            match self.index_log(&run.name) {
                Err(CatalogueError::Log(e)) => self.skipped.push((run.name, e)),
                other => other?,
            }
        }
        Ok(())
    }

    /// Indexes a run, if its log has changed since it was indexed.
    ///
    /// # Errors
    /// When its log or the catalogue cannot be read.
    pub fn index(&mut self, run: &str) -> Result<(), CatalogueError> {
        let len = std::fs::metadata(self.state.log(run)).map(|m| m.len());
        if self.indexed_lengths()?.get(run) == len.ok().as_ref() {
            return Ok(());
        }
        self.index_log(run)
    }

    /// Records changes to replicas outside any run: durably in the log of changes, then here.
    ///
    /// # Errors
    /// When it cannot be recorded; then nothing is.
    pub fn record(&mut self, changes: &[ReplicaChange]) -> Result<(), CatalogueError> {
        let _lock = RunLock::wait(&lock_path(&self.state))?;
        changes::append(&self.state, changes)?;
        self.transaction(|tx| index::apply_changes(tx, changes))
    }

    /// All or nothing, and nobody else writes meanwhile.
    fn transaction(
        &mut self,
        work: impl FnOnce(&rusqlite::Transaction<'_>) -> Result<(), index::IndexError>,
    ) -> Result<(), CatalogueError> {
        let path = &self.path;
        let begun = self
            .db
            .transaction_with_behavior(TransactionBehavior::Immediate);
        let tx = begun.map_err(sql("write", path))?;
        work(&tx).map_err(|e| match e {
            index::IndexError::Sql(e) => sql("write", path)(e),
            index::IndexError::Json(e) => json(path)(e),
        })?;
        tx.commit().map_err(sql("write", path))
    }
}

fn sql(doing: &'static str, path: &Path) -> impl FnOnce(rusqlite::Error) -> CatalogueError {
    move |source| CatalogueError::Sql {
        doing,
        path: path.to_path_buf(),
        source,
    }
}

fn json(path: &Path) -> impl FnOnce(serde_json::Error) -> CatalogueError {
    move |source| CatalogueError::Json {
        path: path.to_path_buf(),
        source,
    }
}

fn lock_path(state: &StateDir) -> PathBuf {
    state.0.join("catalogue.lock")
}

/// Opens the file, checks it, and makes the tables of a new one. A sound catalogue of another version is reported as
/// [`ErrorCode::DatabaseCorrupt`] too: both are made again.
fn connect(path: &Path) -> rusqlite::Result<Connection> {
    // The folder's path may have links; the file itself, whoever owns the folder, is none.
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    let real = match (folder, path.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    };
    let flags = OpenFlags::default() | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let mut db = Connection::open_with_flags(real, flags)?;
    db.busy_timeout(BUSY)?;
    db.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()))?;
    db.pragma_update(None, "synchronous", "NORMAL")?;
    let version: i64 = db.query_row("PRAGMA user_version", [], |r| r.get(0))?;
    let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |r| r.get(0))?;
    if version == 0 && tables == 0 {
        let tx = db.transaction()?;
        tx.execute_batch(rows::SCHEMA)?;
        tx.pragma_update(None, "user_version", VERSION)?;
        tx.commit()?;
        return Ok(db);
    }
    let sound: String = db.query_row("PRAGMA quick_check(1)", [], |r| r.get(0))?;
    if version != VERSION || sound != "ok" {
        let corrupt = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
        return Err(rusqlite::Error::SqliteFailure(corrupt, Some(sound)));
    }
    Ok(db)
}

/// Whether making the file again helps.
fn is_unusable(error: &rusqlite::Error) -> bool {
    let damaged = |code| matches!(code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase);
    error.sqlite_error_code().is_some_and(damaged)
}

fn remove(path: &Path) -> std::io::Result<()> {
    for suffix in ["", "-journal", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        match std::fs::remove_file(&name) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(())
}
