//! A folder of an external store: ordinary files, written and read as such, on any file system.

use crate::folder::{error, private, remove, sync_folder};
use crate::held::LockedFile;
use crate::map::ReadOnlyMapping;
use crate::pins;
use rustix::fd::AsFd;
use rustix::fs::{Advice, OFlags, fadvise};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tarn_ports::{External, ExternalFileWriter, MediumError, ReadableMedium};
use tarn_types::crc::crc;

/// The suffix of a file until it has its name.
const PART: &str = ".part";
/// The file that is locked.
const LOCK: &str = "lock";
/// In a mode: only its owner can remove or rename what is in the folder.
const STICKY: u32 = 0o1000;
/// Names in a folder that are looked at: more than there may be ranks.
const MAX_NAMES: usize = 1 << 17;

/// A folder of an external store that only this user can enter, with one level of folders in it: where
/// versions of checkpoints are flushed to. Its files have their names once they are written and verified.
#[derive(Debug, Clone)]
pub struct ExternalFolder {
    path: PathBuf,
}

impl ExternalFolder {
    /// The folder of a run below a store: `<store>/phx/<run>`, made if it is not there. `phx` is made as
    /// open as the store is.
    ///
    /// # Errors
    /// When the store is not there (it may not be mounted), or the run's folder cannot be made or belongs to
    /// somebody else.
    pub fn new(store: &Path, run: &Path) -> Result<Self, MediumError> {
        let found = fs::metadata(store).map_err(error("find the external store", store))?;
        let all = store.join("phx");
        match fs::create_dir(&all) {
            Ok(()) => {
                // A user who may make files in the store may have runs there. A store without modes has none to set.
                let mode = Permissions::from_mode(found.mode() & 0o777 | STICKY);
                let _ = fs::set_permissions(&all, mode);
                sync_folder(&all)?;
            }
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(error("make", &all)(e)),
        }
        let path = all.join(run);
        private(&path)?;
        Ok(Self { path })
    }

    /// The same for a reader: nothing is made.
    pub fn there(store: &Path, run: &Path) -> Self {
        let path = store.join("phx").join(run);
        Self { path }
    }

    /// The path of a name such as `3.7/0.arena`.
    fn file(&self, name: &str) -> Result<PathBuf, MediumError> {
        let path = Path::new(name);
        let plain = |c: Component<'_>| matches!(c, Component::Normal(_));
        if path.components().count() <= 2 && path.components().all(plain) {
            return Ok(self.path.join(path));
        }
        let bad = io::Error::new(ErrorKind::InvalidInput, "this is no name in a store");
        Err(error("open", path)(bad))
    }
}

impl External for ExternalFolder {
    fn create(&self, name: &str) -> Result<Box<dyn ExternalFileWriter>, MediumError> {
        // No other process has this name, on any node.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let path = self.file(name)?;
        let folder = path.parent().unwrap_or(&self.path);
        private(folder)?;
        let begin = format!(
            "{}.",
            path.file_name().unwrap_or_default().to_string_lossy()
        );
        for left in names(folder)? {
            if left.starts_with(&begin) && left.ends_with(PART) {
                remove(&folder.join(left))?;
            }
        }
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy().replace('/', "_");
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let part = format!("{begin}{host}.{}.{number}{PART}", std::process::id());
        let part = folder.join(part);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&part).map_err(error("make", &part))?;
        Ok(Box::new(Unnamed {
            file,
            part,
            path,
            size: 0,
        }))
    }

    fn see(&self, name: &str) -> Result<Box<dyn ReadableMedium + Send + Sync>, MediumError> {
        let path = self.file(name)?;
        Ok(Box::new(Reader::open(&path)?))
    }

    fn list(&self, folder: &str) -> Result<Vec<String>, MediumError> {
        let mut names = names(&self.file(folder)?)?;
        names.retain(|name| !name.ends_with(PART));
        names.sort();
        Ok(names)
    }

    fn remove(&self, name: &str) -> Result<(), MediumError> {
        let path = self.file(name)?;
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => match fs::remove_dir_all(&path) {
                Err(e) if e.kind() != ErrorKind::NotFound => Err(error("remove", &path)(e)),
                _ => Ok(()),
            },
            _ => {
                remove(&path)?;
                if let Some(folder) = path.parent().filter(|f| *f != self.path) {
                    // The last of them takes its folder with it.
                    let _ = fs::remove_dir(folder);
                }
                Ok(())
            }
        }
    }

    fn lock(&self) -> Result<Box<dyn Send>, MediumError> {
        let path = self.path.join(LOCK);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(error("open", &path))?;
        let file = LockedFile::new(file.into());
        match file.lock() {
            // A store without locks.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOLCK | Errno::NOSYS) => Ok(Box::new(file)),
            Err(e) => Err(error("lock", &path)(e.into())),
        }
    }
}

/// The names in a folder, in any order.
fn names(folder: &Path) -> Result<Vec<String>, MediumError> {
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(error("read", folder))?,
    };
    let mut names = Vec::new();
    for entry in entries.take(MAX_NAMES) {
        let entry = entry.map_err(error("read", folder))?;
        names.extend(entry.file_name().into_string().ok());
    }
    Ok(names)
}

fn read(file: &File, path: &Path, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
    file.read_exact_at(into, at).map_err(error("read", path))?;
    Ok(crc(into))
}

/// An existing file that is read by copies, not by a mapping: if it is made shorter meanwhile, that is an
/// error.
///
/// # Examples
/// ```
/// use tarn_media::Reader;
/// use tarn_ports::ReadableMedium;
///
/// # let folder = tempfile::tempdir_in("/dev/shm").unwrap();
/// let path = folder.path().join("file");
/// std::fs::write(&path, b"hello").unwrap();
/// let reader = Reader::open(&path)?;
/// reader.pin(&(0..5))?; // writers that look pass over these bytes
/// let mut read = [0; 5];
/// reader.read(0, &mut read)?;
/// assert_eq!((reader.size(), &read), (5, b"hello"));
/// std::fs::write(&path, b"").unwrap();
/// assert!(reader.read(0, &mut read).is_err());
/// # Ok::<(), tarn_ports::MediumError>(())
/// ```
#[derive(Debug)]
pub struct Reader {
    file: File,
    path: PathBuf,
    size: u64,
}

impl Reader {
    /// Opens it.
    ///
    /// # Errors
    /// When it is no file, or cannot be opened for reading.
    pub fn open(path: &Path) -> Result<Self, MediumError> {
        // To open anything but a file may wait for ever.
        let meta = fs::symlink_metadata(path).map_err(error("open", path))?;
        if !meta.is_file() {
            let bad = io::Error::new(ErrorKind::InvalidInput, "it is no file");
            return Err(error("open", path)(bad));
        }
        let mut options = OpenOptions::new();
        options.read(true);
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
        let file = options.open(path).map_err(error("open", path))?;
        let size = file.metadata().map_err(error("examine", path))?.size();
        Ok(Self {
            file,
            path: path.to_owned(),
            size,
        })
    }

    /// Keeps writers from writing there for as long as this lives, if they look
    /// ([`tarn_ports::MediumWindow::pinned`]) before they do. Later reads see all that the writers wrote
    /// before they looked last.
    ///
    /// # Errors
    /// When somebody has locked it for writing, or the file system has no such locks.
    pub fn pin(&self, range: &Range<u64>) -> Result<(), MediumError> {
        pins::pin(self.file.as_fd(), range).map_err(error("pin a version in", &self.path))
    }

    /// Maps it.
    ///
    /// # Errors
    /// When it is empty, or there is no space in this process.
    pub fn map(&self) -> Result<ReadOnlyMapping, MediumError> {
        ReadOnlyMapping::of(&self.file, &self.path)
    }
}

impl ReadableMedium for Reader {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
        read(&self.file, &self.path, at, into)
    }
}

/// A file that has no name yet.
struct Unnamed {
    file: File,
    part: PathBuf,
    path: PathBuf,
    size: u64,
}

impl ReadableMedium for Unnamed {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
        read(&self.file, &self.part, at, into)
    }
}

impl ExternalFileWriter for Unnamed {
    fn append(&mut self, bytes: &[u8]) -> Result<(), MediumError> {
        let written = self.file.write_all(bytes);
        written.map_err(error("write", &self.part))?;
        self.size += bytes.len() as u64;
        Ok(())
    }

    fn sync(&mut self) -> Result<(), MediumError> {
        self.file.sync_all().map_err(error("sync", &self.part))?;
        // This node's cached pages of it prove nothing.
        let _ = fadvise(&self.file, 0, None, Advice::DontNeed);
        Ok(())
    }

    fn publish(self: Box<Self>) -> Result<(), MediumError> {
        fs::rename(&self.part, &self.path).map_err(error("name", &self.path))?;
        sync_folder(&self.path)
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        // Once it has its name there is none of this one.
        let _ = fs::remove_file(&self.part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_name_when_it_is_whole_and_leaves_nothing_when_it_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let store = ExternalFolder::new(folder.path(), Path::new("run")).unwrap();
        let none: Vec<String> = Vec::new();
        assert_eq!(store.list("1.2").unwrap(), none);
        let write = |bytes: &[u8]| {
            let mut draft = store.create("1.2/0.arena").unwrap();
            draft.append(&bytes[..2]).unwrap();
            draft.append(&bytes[2..]).unwrap();
            draft.sync().unwrap();
            let mut back = vec![0; bytes.len() - 1];
            assert_eq!(draft.read(1, &mut back).unwrap(), crc(&bytes[1..]));
            draft
        };
        drop(write(b"abandoned"));
        let inside = folder.path().join("phx/run/1.2");
        assert_eq!(fs::read_dir(&inside).unwrap().count(), 0);
        // Killed in the middle of it.
        std::mem::forget(write(b"killed"));
        assert_eq!(fs::read_dir(&inside).unwrap().count(), 1);
        assert_eq!(store.list("1.2").unwrap(), none);
        write(b"whole").publish().unwrap();
        assert_eq!(fs::read_dir(&inside).unwrap().count(), 1);
        assert_eq!(store.list("1.2").unwrap(), ["0.arena"]);
        let seen = store.see("1.2/0.arena").unwrap();
        let mut back = [0; 5];
        assert_eq!(seen.read(0, &mut back).unwrap(), crc(b"whole"));
        assert!(seen.read(1, &mut back).is_err());
        let lock = store.lock().unwrap();
        assert!(store.lock().is_err());
        drop(lock);
        store.lock().unwrap();
        store.remove("1.2").unwrap();
        store.remove("1.2").unwrap();
        assert_eq!(store.list("").unwrap(), ["lock"]);
        assert!(store.create("../x").is_err() && store.see("1/2/3").is_err());
        let away = folder.path().join("away");
        assert!(ExternalFolder::new(&away, Path::new("run")).is_err() && !away.exists());
    }

    #[test]
    fn a_store_of_all_users_has_space_for_all_and_each_run_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |name: &str| folder.path().join(name).metadata().unwrap().mode() & 0o7777;
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        ExternalFolder::new(folder.path(), Path::new("run")).unwrap();
        assert_eq!((mode("phx"), mode("phx/run")), (0o1777, 0o700));
        fs::set_permissions(folder.path().join("phx"), Permissions::from_mode(0o755)).unwrap();
        ExternalFolder::new(folder.path(), Path::new("other")).unwrap();
        assert_eq!(mode("phx"), 0o755);
    }

    #[test]
    fn a_file_that_is_made_shorter_is_an_error_to_who_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, [1; 8192]).unwrap();
        let reader = Reader::open(&path).unwrap();
        let mut last = [0; 100];
        reader.read(8092, &mut last).unwrap();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(0)
            .unwrap();
        assert!(reader.read(8092, &mut last).is_err());
    }
}
