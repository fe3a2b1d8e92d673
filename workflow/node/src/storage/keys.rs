//! Keys of encrypted datasets, wrapped with the user's own, in the state folder.
//! Their purpose: docs/admin/security.md; the content of the files: docs/reference/formats.md.

use crate::storage::store::{failure, io_failure, make_folder};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tarn_seal::SealError;
use tarn_seal::ring::KeyRing;
use tarn_seal::wrap::{WRAPPED, WrappedKeyOwner, wrapped_by};
use tarn_sys::private::{publish, random, wipe};
use tarn_types::event::{RunError, RunErrorKind};
use tarn_types::key::{DataKey, KEY_BYTES, KeyId};
use tarn_types::layout::StateDir;
use tarn_types::part::StoreKey;
use zeroize::Zeroizing;

/// How often a key is written while others make and remove keys beside it.
const TRIES: u32 = 8;

/// Why a workspace's keys cannot be wrapped again, or listed.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceKeyError {
    /// The system refused something.
    #[error("cannot {what} {}: {source}", .path.display())]
    Io {
        /// The action.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A wrapped key cannot be wrapped again.
    #[error("{}: {source}", .path.display())]
    Wrapped {
        /// The file.
        path: PathBuf,
        /// Why.
        source: SealError,
    },
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> WorkspaceKeyError {
    let path = path.to_path_buf();
    move |source| WorkspaceKeyError::Io { what, path, source }
}

/// The keys that wrap the keys of a workspace's data: made of the user's for this workspace. Nodes of a run have no others.
#[derive(Debug, Clone)]
pub struct Wrapping {
    keys: KeyRing,
    /// The user's own, which older releases have wrapped with.
    user: Option<KeyRing>,
}

impl Wrapping {
    /// Of a user, for a workspace.
    ///
    /// # Errors
    /// None that can be met; the cipher's own.
    pub fn of_user(keys: KeyRing, workspace: &str) -> Result<Self, SealError> {
        Ok(Self {
            keys: keys.of_workspace(workspace)?,
            user: Some(keys),
        })
    }

    /// As [`Wrapping::for_nodes`] gave them.
    pub fn of_run(keys: KeyRing) -> Self {
        Self { keys, user: None }
    }

    /// The keys for the nodes of a run: nodes wrap and open the keys of this workspace's data with them, and nothing else.
    pub fn for_nodes(&self) -> &KeyRing {
        &self.keys
    }

    fn unwrap(&self, wrapped: &[u8], owner: WrappedKeyOwner<'_>) -> Result<DataKey, SealError> {
        match (self.keys.unwrap(wrapped, owner), &self.user) {
            (Err(SealError::OtherKey), Some(user)) => user.unwrap(wrapped, owner),
            (unwrapped, _) => unwrapped,
        }
    }
}

/// The keys of a workspace's data, wrapped in `<state>/keys/<workspace>`. Nodes that share the state folder share them: each reads
/// what another has written, and of two that make the key of a part at once one has the other's.
#[derive(Debug)]
pub struct DataKeys {
    folder: PathBuf,
    keys: Wrapping,
    uid: u32,
    /// Those that somebody works with: they are not forgotten meanwhile. As many as there are transfers and views at a time, and dead
    /// ones until the next is added.
    used: Mutex<BTreeMap<StoreKey, Weak<DataKey>>>,
    /// Parts with replicas to keep that this run may not see: at most as many as there are keys.
    protected: Mutex<BTreeSet<StoreKey>>,
}

impl DataKeys {
    /// Those of a workspace, for who has these keys.
    pub fn new(state: &StateDir, workspace: &str, keys: Wrapping) -> Self {
        Self {
            folder: state.keys(workspace),
            keys,
            uid: rustix::process::geteuid().as_raw(),
            used: Mutex::default(),
            protected: Mutex::default(),
        }
    }

    fn used(&self) -> MutexGuard<'_, BTreeMap<StoreKey, Weak<DataKey>>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, dataset: &str, part: &StoreKey) -> PathBuf {
        self.folder.join(dataset).join(&part.0)
    }

    fn owner<'a>(&self, dataset: &'a str, part: &'a StoreKey) -> WrappedKeyOwner<'a> {
        WrappedKeyOwner {
            uid: self.uid,
            dataset,
            version: &part.0,
        }
    }

    /// The key of a part that was sealed.
    ///
    /// # Errors
    /// `Corrupt` where there is none, or it does not open: the part must be fetched or made again.
    pub fn get(&self, dataset: &str, part: &StoreKey) -> Result<Arc<DataKey>, RunError> {
        let mut used = self.used();
        self.find(&mut used, dataset, part)?.ok_or_else(|| {
            let message = format!(
                "the key of part {} of `{dataset}` was forgotten, so its replicas cannot be opened any more; it must be \
                 fetched or made again",
                part.0
            );
            failure(RunErrorKind::Corrupt, message)
        })
    }

    /// The key of a part that is to be sealed: a new one, unless it has one.
    ///
    /// # Errors
    /// When it cannot be written, or the one that is there does not open.
    pub fn make(&self, dataset: &str, part: &StoreKey) -> Result<Arc<DataKey>, RunError> {
        let mut used = self.used();
        if let Some(key) = self.find(&mut used, dataset, part)? {
            return Ok(key);
        }
        let path = self.file(dataset, part);
        let error = |e: io::Error| io_failure("write the key", &path, &e);
        let secret = Zeroizing::new(random::<KEY_BYTES>().map_err(error)?);
        let key = DataKey::new(KeyId(random().map_err(error)?), secret);
        let nonce = random().map_err(error)?;
        let newest = self.keys.keys.newest();
        let wrapped = newest.wrap(&key, self.owner(dataset, part), nonce);
        let wrapped = wrapped.map_err(|e| failure(RunErrorKind::Io, e.to_string()))?;
        for _ in 0..TRIES {
            path.parent().map_or(Ok(()), make_folder)?;
            match publish(&path, &wrapped, false) {
                Ok(()) => return Ok(self.share_key(&mut used, part, key)),
                // Another node was first.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    if let Some(theirs) = self.find(&mut used, dataset, part)? {
                        return Ok(theirs);
                    }
                }
                // The folder went with a key that was the last one there.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(error(e)),
            }
        }
        Err(error(io::ErrorKind::ResourceBusy.into()))
    }

    fn find(
        &self,
        used: &mut BTreeMap<StoreKey, Weak<DataKey>>,
        dataset: &str,
        part: &StoreKey,
    ) -> Result<Option<Arc<DataKey>>, RunError> {
        if let Some(key) = used.get(part).and_then(Weak::upgrade) {
            return Ok(Some(key));
        }
        let path = self.file(dataset, part);
        let wrapped = match read_wrapped(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|e| io_failure("read the key", &path, &e))?,
        };
        let key = self.keys.unwrap(&wrapped, self.owner(dataset, part));
        let key = key.map_err(|e| {
            let message = format!(
                "the key {} cannot be used: {e}; bring back the file of keys that it was wrapped with, or `tarn data rm {dataset}` \
                 and make the data again",
                path.display()
            );
            failure(RunErrorKind::Corrupt, message)
        })?;
        Ok(Some(self.share_key(used, part, key)))
    }

    fn share_key(
        &self,
        used: &mut BTreeMap<StoreKey, Weak<DataKey>>,
        part: &StoreKey,
        key: DataKey,
    ) -> Arc<DataKey> {
        used.retain(|_, key| key.strong_count() > 0);
        let key = Arc::new(key);
        used.insert(part.clone(), Arc::downgrade(&key));
        key
    }

    /// The parts that have a key, and the datasets that they are of.
    pub(crate) fn parts(&self) -> BTreeMap<StoreKey, String> {
        let all = files(&self.folder).unwrap_or_default();
        all.into_iter().map(|(d, part)| (part, d)).collect()
    }

    /// Forgets the key of a part, if nobody works with it: its remaining replicas cannot be opened any more.
    ///
    /// # Errors
    /// When it is there and cannot be removed.
    pub fn forget(&self, dataset: &str, part: &StoreKey) -> Result<(), RunError> {
        let used = self.used();
        let protected = self.protected.lock();
        let protected = protected.unwrap_or_else(PoisonError::into_inner);
        if protected.contains(part) || used.get(part).is_some_and(|k| k.strong_count() > 0) {
            return Ok(());
        }
        forget(&self.file(dataset, part))
    }

    /// From now on these keys are not forgotten.
    pub(crate) fn protect(&self, parts: impl Iterator<Item = StoreKey>) {
        let protected = self.protected.lock();
        protected
            .unwrap_or_else(PoisonError::into_inner)
            .extend(parts);
    }

    /// Forgets the keys of all parts but those.
    ///
    /// # Errors
    /// When one is there and cannot be removed.
    pub fn keep(&self, needed: impl Fn(&StoreKey) -> bool) -> Result<(), RunError> {
        let all = all_files(&self.folder).map_err(|e| io_failure("read", &self.folder, &e))?;
        for (dataset, part, _) in all {
            if !needed(&part) {
                self.forget(&dataset, &part)?;
            }
        }
        Ok(())
    }

    /// Wraps those keys again that only the user's own key opens, so that the nodes of a run can open them. One that does not
    /// open stays.
    ///
    /// # Errors
    /// When one cannot be read or written.
    pub(crate) fn hand_over(&self) -> Result<(), WorkspaceKeyError> {
        let Some(user) = &self.keys.user else {
            return Ok(());
        };
        for (dataset, part) in files(&self.folder).map_err(io_error("read", &self.folder))? {
            let path = self.file(&dataset, &part);
            let wrapped = read_wrapped(&path).map_err(io_error("read", &path))?;
            let owner = self.owner(&dataset, &part);
            if let Ok(key) = user.unwrap(&wrapped, owner) {
                self.rewrap_key(&path, &key, owner)?;
            }
        }
        Ok(())
    }

    fn rewrap_key(
        &self,
        path: &Path,
        key: &DataKey,
        owner: WrappedKeyOwner<'_>,
    ) -> Result<(), WorkspaceKeyError> {
        let nonce = random().map_err(io_error("wrap", path))?;
        let wrapped = self.keys.keys.newest().wrap(key, owner, nonce);
        let wrapped = wrapped.map_err(|source| WorkspaceKeyError::Wrapped {
            path: path.to_path_buf(),
            source,
        })?;
        publish(path, &wrapped, true).map_err(io_error("write", path))
    }

    /// Wraps every key of data again that is not wrapped with the newest key; how many those were.
    ///
    /// # Errors
    /// The first that does not open or cannot be written: those before it are done, and it can be tried again.
    pub fn rewrap(&self) -> Result<u64, WorkspaceKeyError> {
        let newest = self.keys.keys.newest();
        let mut rewrapped = 0;
        for (dataset, part) in files(&self.folder).map_err(io_error("read", &self.folder))? {
            let path = self.file(&dataset, &part);
            let bad = |source| WorkspaceKeyError::Wrapped {
                path: path.clone(),
                source,
            };
            let wrapped = read_wrapped(&path).map_err(io_error("read", &path))?;
            if wrapped.iter().all(|byte| *byte == 0) {
                // It was being forgotten when the machine stopped.
                forget(&path)
                    .map_err(|f| io_error("remove", &path)(io::Error::other(f.message)))?;
                continue;
            }
            if wrapped_by(&wrapped).map_err(bad)? == newest.id() {
                continue;
            }
            let owner = self.owner(&dataset, &part);
            let key = self.keys.unwrap(&wrapped, owner).map_err(bad)?;
            self.rewrap_key(&path, &key, owner)?;
            rewrapped += 1;
        }
        Ok(rewrapped)
    }
}

/// Forgets the key of a part of a workspace, without keys at hand, for the process that removes its last replica.
///
/// # Errors
/// When it is there and cannot be removed.
pub fn forget_key(
    state: &StateDir,
    workspace: &str,
    dataset: &str,
    part: &StoreKey,
) -> Result<(), RunError> {
    forget(&state.keys(workspace).join(dataset).join(&part.0))
}

/// Overwrites a part's key and removes it, and what a process that was killed has left half-written of it.
fn forget(path: &Path) -> Result<(), RunError> {
    for half in unfinished(path) {
        wiped(&half).map_err(|e| io_failure("remove the key", &half, &e))?;
    }
    wiped(path).map_err(|e| io_failure("remove the key", path, &e))?;
    // The dataset's folder goes with its last key.
    let _ = path.parent().map(std::fs::remove_dir);
    Ok(())
}

/// Overwrites a file and removes it, if it is there.
fn wiped(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        opened => {
            wipe(opened?)?;
            std::fs::remove_file(path)
        }
    }
}

/// Files beside a key's that were to take its place: its name, a number, and `.tmp`.
fn unfinished(path: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Vec::new();
    };
    let begins = [name.as_encoded_bytes(), b"."].concat();
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let half = entries.map(|e| e.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        name.starts_with(&begins) && name.ends_with(b".tmp")
    });
    half.collect()
}

fn read_wrapped(path: &Path) -> io::Result<Vec<u8>> {
    let mut wrapped = Vec::with_capacity(WRAPPED + 1);
    File::open(path)?
        .take(WRAPPED as u64 + 1)
        .read_to_end(&mut wrapped)?;
    Ok(wrapped)
}

/// The datasets and parts that have a key in a workspace's folder.
fn files(folder: &Path) -> io::Result<Vec<(String, StoreKey)>> {
    let all = all_files(folder)?.into_iter();
    Ok(all
        .filter_map(|(dataset, part, is_whole)| is_whole.then_some((dataset, part)))
        .collect())
}

/// The same with those whose key a killed process has not written to its end; whether each is whole.
fn all_files(folder: &Path) -> io::Result<Vec<(String, StoreKey, bool)>> {
    let entries = |folder: &Path| match std::fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.collect::<io::Result<Vec<_>>>(),
    };
    let mut all = Vec::new();
    for dataset in entries(folder)? {
        let name = dataset.file_name().to_string_lossy().into_owned();
        for part in entries(&dataset.path())? {
            let part = part.file_name().to_string_lossy().into_owned();
            match part.strip_suffix(".tmp") {
                None => all.push((name.clone(), StoreKey(part), true)),
                Some(half) => {
                    let key = half.rsplit_once('.').map_or(half, |(key, _)| key);
                    all.push((name.clone(), StoreKey(key.to_owned()), false));
                }
            }
        }
    }
    Ok(all)
}

/// The workspaces of a state folder that have keys.
///
/// # Errors
/// When the folder cannot be read.
pub fn workspaces(state: &StateDir) -> Result<Vec<String>, WorkspaceKeyError> {
    let folder = state.keys("");
    let read = match std::fs::read_dir(&folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(io_error("read", &folder))?,
    };
    let names = read.map(|e| Ok(e?.file_name().to_string_lossy().into_owned()));
    let names: io::Result<Vec<_>> = names.collect();
    names.map_err(io_error("read", &folder))
}
