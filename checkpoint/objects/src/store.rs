//! The store.

use crate::folder::{KeyFolder, MAX_NAMES, error, names};
use crate::object::{ObjectInfo, StoredObject, trailer};
use crate::writer::{ObjectWriter, random};
use rustix::fs::{AtFlags, FileType, fstat, statat};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use tarn_checkpoint_core::object::{NEWEST, check_key, file, number};
use tarn_checkpoint_core::{CheckpointError, CheckpointErrorCode};
use tarn_sys::beneath::{Root, join};

/// The environment variable that names the store of programs that name none.
pub const STORE: &str = "TARN_OBJECTS";
/// The environment variable that has new versions encrypted, if it is 1.
pub const ENCRYPT: &str = "TARN_OBJECTS_ENCRYPT";
/// How often the newest version is looked for that somebody deletes meanwhile.
const TRIES: usize = 16;

/// A folder with objects. Any number of programs, threads and forked children use one at the same time: this
/// holds nothing but the open folder.
///
/// A key has 1 to 255 bytes of UTF-8: names between slashes, that begin with no `.` and end with no `.obj`.
/// Versions of a key are numbered from 1 on; a number is never used again.
///
/// # Examples
/// ```
/// use tarn_objects::NodeObjectStore;
///
/// let folder = tempfile::tempdir().unwrap();
/// let store = NodeObjectStore::open(Some(folder.path()))?;
/// let field: Vec<u8> = (0..1000).flat_map(|i| f64::from(i).to_le_bytes()).collect();
/// let put = store.put("fields/rho", &field, "f64 1000")?;
/// assert_eq!((put.number, put.bytes), (1, 8000));
///
/// // Another program opens the same folder.
/// let reader = NodeObjectStore::open(Some(store.path()))?;
/// let object = reader.map("fields/rho", None)?; // the newest version
/// assert_eq!(object.bytes(), field);
/// assert_eq!(&*object.info().about, "f64 1000");
/// let keys: Vec<_> = reader.list()?.into_iter().map(|info| info.key).collect();
/// assert_eq!(keys, ["fields/rho".into()]);
/// # Ok::<(), tarn_objects::CheckpointError>(())
/// ```
#[derive(Debug)]
pub struct NodeObjectStore {
    pub(crate) root: Root,
    /// New versions are.
    encrypt: bool,
}

impl NodeObjectStore {
    /// Opens the store in an existing folder, or in the one that `$TARN_OBJECTS` names.
    ///
    /// # Errors
    /// - [`Invalid`](CheckpointErrorCode::Invalid): no folder is named, or `$TARN_OBJECTS_ENCRYPT` is neither
    ///   0 nor 1.
    /// - [`NotFound`](CheckpointErrorCode::NotFound): there is no such folder.
    /// - [`Io`](CheckpointErrorCode::Io): it cannot be opened.
    ///
    /// # Examples
    /// ```
    /// use tarn_objects::{CheckpointErrorCode, NodeObjectStore};
    ///
    /// let why = NodeObjectStore::open(Some("/no/such/folder".as_ref())).unwrap_err();
    /// assert_eq!(why.code, CheckpointErrorCode::NotFound);
    /// ```
    pub fn open(folder: Option<&Path>) -> Result<Self, CheckpointError> {
        let named = || std::env::var_os(STORE).filter(|v| !v.is_empty());
        let Some(path) = folder
            .map(Path::to_owned)
            .or_else(|| named().map(PathBuf::from))
        else {
            let text = format!("no store is named: give its folder, or set {STORE} to it");
            return Err(CheckpointError::new(CheckpointErrorCode::Invalid, text));
        };
        let root = Root::open(&path).map_err(|e| match e {
            Errno::NOENT => {
                let text = format!("there is no folder {}: make it", path.display());
                CheckpointError::new(CheckpointErrorCode::NotFound, text)
            }
            e => error("open the store", &path)(e),
        })?;
        let encrypt = tarn_keyring::read_switch(ENCRYPT);
        let encrypt = encrypt
            .map_err(|e| CheckpointError::new(CheckpointErrorCode::Invalid, e.to_string()))?;
        Ok(Self { root, encrypt })
    }

    /// Sets whether new versions are encrypted, with this user's key (`tarn key new`), whatever [`ENCRYPT`]
    /// is. Versions in the store stay as they are.
    #[must_use]
    pub fn encrypting(mut self, encrypt: bool) -> Self {
        self.encrypt = encrypt;
        self
    }

    /// The store's folder.
    pub fn path(&self) -> &Path {
        &self.root.path
    }

    /// Copies bytes into a new version of an object. It is durable, and all see it, when this returns.
    /// `about` is up to 255 bytes for readers, such as the type and shape of an array.
    ///
    /// # Errors
    /// No version is made then.
    /// - [`Invalid`](CheckpointErrorCode::Invalid): the key is malformed, `about` is too long, there are more
    ///   than 64 TiB, or this user has no key to encrypt with.
    /// - [`NoSpace`](CheckpointErrorCode::NoSpace), [`NoMem`](CheckpointErrorCode::NoMem): the store is full.
    /// - [`Busy`](CheckpointErrorCode::Busy): another writer holds the key's lock for too long.
    /// - [`Io`](CheckpointErrorCode::Io): the folder cannot be written.
    ///
    /// # Examples
    /// ```
    /// use tarn_objects::{CheckpointErrorCode, NodeObjectStore};
    ///
    /// let folder = tempfile::tempdir().unwrap();
    /// let store = NodeObjectStore::open(Some(folder.path()))?;
    /// assert_eq!(store.put("mesh", b"0 1 2", "text")?.number, 1);
    /// assert_eq!(store.put("mesh", b"0 2 1", "text")?.number, 2); // the first one stays
    /// let why = store.put("../mesh", b"", "").unwrap_err();
    /// assert_eq!(why.code, CheckpointErrorCode::Invalid);
    /// # Ok::<(), tarn_objects::CheckpointError>(())
    /// ```
    pub fn put(&self, key: &str, bytes: &[u8], about: &str) -> Result<ObjectInfo, CheckpointError> {
        tarn_checkpoint_core::object::check_about(about)?;
        check_key(key)?;
        let how = (self.encrypt, false);
        let draft = ObjectWriter::new(
            KeyFolder::make(&self.root, key)?,
            (key, bytes.len() as u64),
            how,
        )?;
        draft.put(bytes, about)
    }

    /// Gives memory for a new version of `bytes` bytes, to be filled in place and then published: nothing is
    /// copied. [`ObjectWriter`] has an example.
    ///
    /// # Errors
    /// As [`NodeObjectStore::put`].
    pub fn create(&self, key: &str, bytes: u64) -> Result<ObjectWriter, CheckpointError> {
        check_key(key)?;
        let how = (self.encrypt, true);
        ObjectWriter::new(KeyFolder::make(&self.root, key)?, (key, bytes), how)
    }

    /// Maps a version, or the newest: nothing is copied, and only its trailer is checked
    /// ([`StoredObject::verify`] checks the data). An encrypted version is decrypted into memory of this
    /// program.
    ///
    /// # Errors
    /// - [`Invalid`](CheckpointErrorCode::Invalid): the key is malformed, or this user has no key for the
    ///   encrypted version.
    /// - [`NotFound`](CheckpointErrorCode::NotFound): there is no such object or version.
    /// - [`Corrupt`](CheckpointErrorCode::Corrupt): its file is incomplete or damaged.
    /// - [`NoMem`](CheckpointErrorCode::NoMem), [`Io`](CheckpointErrorCode::Io): it cannot be mapped.
    ///
    /// # Examples
    /// ```
    /// use tarn_objects::{CheckpointErrorCode, NodeObjectStore};
    ///
    /// let folder = tempfile::tempdir().unwrap();
    /// let store = NodeObjectStore::open(Some(folder.path()))?;
    /// store.put("mesh", b"first", "")?;
    /// store.put("mesh", b"second", "")?;
    /// let newest = store.map("mesh", None)?;
    /// let first = store.map("mesh", Some(1))?;
    /// assert_eq!((first.bytes(), newest.bytes()), (&b"first"[..], &b"second"[..]));
    /// let why = store.map("mesh", Some(3)).unwrap_err();
    /// assert_eq!(why.code, CheckpointErrorCode::NotFound);
    /// # Ok::<(), tarn_objects::CheckpointError>(())
    /// ```
    pub fn map(&self, key: &str, number: Option<u64>) -> Result<StoredObject, CheckpointError> {
        self.find(key, number)?.opened()
    }

    /// A version, or the newest, as it is stored.
    pub(crate) fn find(
        &self,
        key: &str,
        number: Option<u64>,
    ) -> Result<StoredObject, CheckpointError> {
        let folder = self.folder(key, number)?;
        'again: for _ in 0..TRIES {
            let there = number.map_or_else(|| folder.used(), |number| Ok(vec![number]))?;
            for found in there.into_iter().rev() {
                let path = folder.path.join(file(found));
                match folder.version(found) {
                    // A number that was used up.
                    Ok(fd) if fstat(&fd).is_ok_and(|s| s.st_size == 0) => {}
                    Ok(fd) => return StoredObject::open(&fd, path, key, Some(found)),
                    // Deleted a moment ago: there may be a newer one.
                    Err(Errno::NOENT) if number.is_none() => continue 'again,
                    Err(Errno::NOENT) => {}
                    Err(Errno::LOOP) => {
                        let text = format!(
                            "{} is a link that leads to no regular file of this user or of root: others are not followed",
                            path.display()
                        );
                        return Err(CheckpointError::new(CheckpointErrorCode::Io, text));
                    }
                    Err(e) => return Err(error("open", &path)(e)),
                }
            }
            break;
        }
        Err(self.none(key, number))
    }

    /// Copies a version, or the newest, out of the store, and compares it with its checksums.
    ///
    /// # Errors
    /// As [`NodeObjectStore::map`]; [`Corrupt`](CheckpointErrorCode::Corrupt) also where the data is damaged.
    ///
    /// # Examples
    /// ```
    /// use tarn_objects::NodeObjectStore;
    ///
    /// let folder = tempfile::tempdir().unwrap();
    /// let store = NodeObjectStore::open(Some(folder.path()))?;
    /// store.put("mesh", b"0 1 2", "")?;
    /// assert_eq!(store.get("mesh", None)?, b"0 1 2");
    /// # Ok::<(), tarn_objects::CheckpointError>(())
    /// ```
    pub fn get(&self, key: &str, number: Option<u64>) -> Result<Vec<u8>, CheckpointError> {
        let object = self.map(key, number)?;
        let length = object.bytes().len();
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).map_err(|e| {
            let text = format!("no memory for object {key:?} of {length} bytes: {e}");
            CheckpointError::new(CheckpointErrorCode::NoMem, text)
        })?;
        bytes.resize(length, 0);
        object.copy_to(&mut bytes)?;
        Ok(bytes)
    }

    /// The newest version of every object, by key. Objects that this user may not read are listed as damaged.
    ///
    /// # Errors
    /// [`Io`](CheckpointErrorCode::Io): the store cannot be read.
    /// [`Unsupported`](CheckpointErrorCode::Unsupported): it has too many names.
    ///
    /// # Examples
    /// ```
    /// use tarn_objects::NodeObjectStore;
    ///
    /// let folder = tempfile::tempdir().unwrap();
    /// let store = NodeObjectStore::open(Some(folder.path()))?;
    /// for step in 0..3_u8 {
    ///     store.put("fields/rho", &[step], "")?;
    /// }
    /// store.put("mesh", b"0 1 2", "")?;
    /// let newest: Vec<_> = store.list()?.into_iter().map(|info| (info.key, info.number)).collect();
    /// assert_eq!(newest, [("fields/rho".into(), 3), ("mesh".into(), 1)]);
    /// assert_eq!(store.versions("fields/rho")?.len(), 3);
    /// # Ok::<(), tarn_objects::CheckpointError>(())
    /// ```
    pub fn list(&self) -> Result<Vec<ObjectInfo>, CheckpointError> {
        let mut found = Vec::new();
        let mut looked = 0;
        let mut folders = vec![Box::<[u8]>::default()];
        while let Some(key) = folders.pop() {
            let shown = String::from_utf8_lossy(&key);
            let path = self.root.path.join(&*shown);
            let is_key = std::str::from_utf8(&key).is_ok_and(|k| check_key(k).is_ok());
            let fd = match self.root.folder(&key) {
                Ok(fd) => fd,
                // Removed meanwhile, by hand.
                Err(Errno::NOENT) => continue,
                Err(Errno::ACCESS) if !key.is_empty() => {
                    found.extend(is_key.then(|| ObjectInfo::damaged(&shown, 0)));
                    continue;
                }
                Err(e) => return Err(error("open", &path)(e)),
            };
            let names = names(&fd, &path)?;
            looked += names.len();
            if looked > MAX_NAMES {
                let text = format!(
                    "the store {} has more than {MAX_NAMES} names: delete versions, or use several stores",
                    self.root.path.display()
                );
                return Err(CheckpointError::new(CheckpointErrorCode::Unsupported, text));
            }
            for name in names
                .iter()
                .filter(|n| number(n).is_none() && !n.starts_with(b"."))
            {
                let stat = statat(&fd, &**name, AtFlags::SYMLINK_NOFOLLOW);
                if stat.is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Directory) {
                    folders.push(join(&key, name));
                }
            }
            if is_key && names.iter().any(|n| number(n).is_some()) {
                let infos = self.infos(&KeyFolder { fd, path }, &shown);
                found.extend(
                    infos.map_or_else(|_| Some(ObjectInfo::damaged(&shown, 0)), |mut i| i.pop()),
                );
            }
        }
        found.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    /// All versions of an object, newest last.
    ///
    /// # Errors
    /// [`NotFound`](CheckpointErrorCode::NotFound): there is none. [`Invalid`](CheckpointErrorCode::Invalid):
    /// the key is malformed. [`Io`](CheckpointErrorCode::Io): its folder cannot be read.
    pub fn versions(&self, key: &str) -> Result<Vec<ObjectInfo>, CheckpointError> {
        let found = self.infos(&self.folder(key, None)?, key)?;
        match found.is_empty() {
            true => Err(self.none(key, None)),
            false => Ok(found),
        }
    }

    /// Deletes a version, or all of an object. Programs that have it mapped keep it; its number is not used
    /// again.
    ///
    /// # Errors
    /// As [`NodeObjectStore::versions`]; [`Busy`](CheckpointErrorCode::Busy) where a writer holds the key's
    /// lock for too long.
    ///
    /// # Examples
    /// ```
    /// use tarn_objects::NodeObjectStore;
    ///
    /// let folder = tempfile::tempdir().unwrap();
    /// let store = NodeObjectStore::open(Some(folder.path()))?;
    /// store.put("mesh", b"old", "")?;
    /// store.put("mesh", b"new", "")?;
    /// let mapped = store.map("mesh", Some(1))?;
    /// store.delete("mesh", Some(1))?; // one version
    /// assert_eq!(mapped.bytes(), b"old");
    /// store.delete("mesh", None)?; // all that is left
    /// assert!(store.list()?.is_empty());
    /// assert_eq!(store.put("mesh", b"newer", "")?.number, 3);
    /// # Ok::<(), tarn_objects::CheckpointError>(())
    /// ```
    pub fn delete(&self, key: &str, number: Option<u64>) -> Result<(), CheckpointError> {
        let folder = self.folder(key, number)?;
        let _lock = folder.lock()?;
        if let Some(number) = number.filter(|number| is_older(&folder, *number)) {
            // It need not be remembered: the others are not looked at, however many they are.
            return match folder.size(number) {
                Ok(0) | Err(Errno::NOENT) => Err(self.none(key, Some(number))),
                size => size
                    .and_then(|_| folder.delete_older(number))
                    .map_err(error("delete a version in", &folder.path)),
            };
        }
        let numbers = folder.numbers()?;
        let wanted = |(n, size): (&u64, &u64)| {
            (*size > 0 && number.is_none_or(|wanted| wanted == *n)).then_some(*n)
        };
        let gone: Vec<u64> = numbers.iter().filter_map(wanted).collect();
        match gone.is_empty() {
            true => Err(self.none(key, number)),
            false => folder
                .delete(random()?, &numbers, &gone)
                .map_err(error("delete a version in", &folder.path)),
        }
    }

    /// The versions in a folder.
    fn infos(&self, folder: &KeyFolder, key: &str) -> Result<Vec<ObjectInfo>, CheckpointError> {
        let mut found = Vec::new();
        for (number, size) in folder.numbers()? {
            let path = folder.path.join(file(number));
            let ended = match folder.version(number) {
                _ if size == 0 => continue,
                // Deleted meanwhile.
                Err(Errno::NOENT) => continue,
                // A link to a number that was used up.
                Ok(fd) if fstat(&fd).is_ok_and(|s| s.st_size == 0) => continue,
                Ok(fd) => trailer(&fd, &path)?,
                Err(_) => None,
            };
            let own = ended.filter(|t| *t.key == *key && t.number == number);
            found.push(own.map_or_else(
                || ObjectInfo::damaged(key, number),
                |t| ObjectInfo::from(&t),
            ));
        }
        Ok(found)
    }

    fn folder(&self, key: &str, number: Option<u64>) -> Result<KeyFolder, CheckpointError> {
        check_key(key)?;
        KeyFolder::open(&self.root, key).map_err(|e| match e {
            Errno::NOENT => self.none(key, number),
            e => error("open", &self.root.path.join(key))(e),
        })
    }

    fn none(&self, key: &str, number: Option<u64>) -> CheckpointError {
        let what = number.map_or("no".into(), |n| format!("no version {n} of"));
        let text = format!(
            "there is {what} object {key:?} in the store {}: list what there is",
            self.root.path.display()
        );
        CheckpointError::new(CheckpointErrorCode::NotFound, text)
    }
}

/// Whether the name of the newest version leads to a later one than this. False too where that name is wrong: a writer
/// may have been killed.
fn is_older(folder: &KeyFolder, number: u64) -> bool {
    let newest = folder.read(NEWEST).ok();
    let newest = newest.and_then(|fd| trailer(&fd, &folder.path.join(NEWEST)).ok().flatten());
    newest.is_some_and(|t| number < t.number && folder.points_to(t.number))
}
