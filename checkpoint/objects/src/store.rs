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

/// The variable that names the store of programs that are told no other.
pub const STORE: &str = "TARN_OBJECTS";
/// The variable that has new versions encrypted, if it is 1.
pub const ENCRYPT: &str = "TARN_OBJECTS_ENCRYPT";
/// How often the newest version is looked for that somebody deletes meanwhile.
const TRIES: usize = 16;

/// A folder with objects. It holds nothing but the folder: any number of programs, threads and forked children use one at the same time.
#[derive(Debug)]
pub struct NodeObjectStore {
    pub(crate) root: Root,
    /// New versions are.
    encrypt: bool,
}

impl NodeObjectStore {
    /// Opens the store in a folder that is there, or in the one that `$TARN_OBJECTS` names.
    ///
    /// # Errors
    /// When neither is given, or the folder cannot be opened.
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

    /// Whether new versions are encrypted, with this user's key (`tarn key new`); else where [`ENCRYPT`] is 1.
    #[must_use]
    pub fn encrypting(mut self, encrypt: bool) -> Self {
        self.encrypt = encrypt;
        self
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.root.path
    }

    /// Copies bytes into a new version of an object, durably.
    ///
    /// # Errors
    /// When the key is none, `about` is too long, or there is no room.
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

    /// Memory for a new version of so many bytes, to be filled in place and then published: nothing is copied.
    ///
    /// # Errors
    /// When the key is none, or there is no room.
    pub fn create(&self, key: &str, bytes: u64) -> Result<ObjectWriter, CheckpointError> {
        check_key(key)?;
        let how = (self.encrypt, true);
        ObjectWriter::new(KeyFolder::make(&self.root, key)?, (key, bytes), how)
    }

    /// Maps a version, or the newest: nothing is copied, and only its trailer is checked. One that is encrypted is opened into memory of
    /// this program.
    ///
    /// # Errors
    /// When it is not there, or not whole.
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

    /// Copies a version, or the newest, out of the store; what comes is what was put.
    ///
    /// # Errors
    /// As [`NodeObjectStore::map`]; when it is damaged, or there is not enough memory.
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

    /// The newest version of every object, by key. What may not be read is listed as damaged.
    ///
    /// # Errors
    /// When the store cannot be read, or has more names than are looked at.
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
    /// When there is none.
    pub fn versions(&self, key: &str) -> Result<Vec<ObjectInfo>, CheckpointError> {
        let found = self.infos(&self.folder(key, None)?, key)?;
        match found.is_empty() {
            true => Err(self.none(key, None)),
            false => Ok(found),
        }
    }

    /// Deletes a version, or all of an object. Whoever has it mapped keeps it; its number is not used again.
    ///
    /// # Errors
    /// When it is not there, or the store cannot be written.
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

    /// What is known of the versions in a folder.
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

/// Whether what the name of the newest version leads to is behind this one. Not whenever it is: a writer may have been killed.
fn is_older(folder: &KeyFolder, number: u64) -> bool {
    let newest = folder.read(NEWEST).ok();
    let newest = newest.and_then(|fd| trailer(&fd, &folder.path.join(NEWEST)).ok().flatten());
    newest.is_some_and(|t| number < t.number && folder.points_to(t.number))
}
