//! A folder of media.

use crate::map::{MappedFile, ReadOnlyMapping};
use crate::slow::{Device, EmulatedMedium};
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tarn_ports::{MediumError, Vault};

/// The suffix of a medium's name while it is filled.
const PART: &str = ".part";
/// Names in a folder that are looked at.
const MAX_NAMES: usize = 1 << 20;

/// Media in a folder that only this user can enter, with one level of folders in it: the [`Vault`] of
/// checkpoints.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use tarn_media::{Device, Folder, Profile};
/// use tarn_ports::Vault;
///
/// # let folder = tempfile::tempdir_in("/dev/shm").unwrap();
/// let device = Arc::new(Device::new(Profile::none()));
/// let vault = Folder::new(&folder.path().join("heat"), device)?;
/// drop(vault.create("1/0.arena", 1 << 20, &mut |_| Ok(()))?);
/// assert_eq!(vault.list()?, ["1/0.arena"]);
/// vault.remove("1/0.arena")?;
/// assert!(vault.open("1/0.arena").is_err());
/// # Ok::<(), tarn_ports::MediumError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
    device: Arc<Device>,
}

impl Folder {
    /// A folder, made if it is not there.
    ///
    /// # Errors
    /// When it cannot be made, or belongs to somebody else.
    pub fn new(path: &Path, device: Arc<Device>) -> Result<Self, MediumError> {
        private(path)?;
        Ok(Self {
            path: path.to_owned(),
            device,
        })
    }

    /// The same for a folder that is there: nothing is made.
    ///
    /// # Errors
    /// When it is not there, or belongs to somebody else.
    pub fn there(path: &Path, device: Arc<Device>) -> Result<Self, MediumError> {
        own(path)?;
        Ok(Self {
            path: path.to_owned(),
            device,
        })
    }

    /// The file of a name such as `3/7.arena`.
    fn path(&self, name: &str) -> Result<PathBuf, MediumError> {
        let plain = |c: Component<'_>| matches!(c, Component::Normal(_));
        let path = Path::new(name);
        let depth = path.components().count();
        if (1..=2).contains(&depth) && path.components().all(plain) {
            return Ok(self.path.join(path));
        }
        let bad = io::Error::new(ErrorKind::InvalidInput, "this is no name of a medium");
        Err(error("open", Path::new(name))(bad))
    }
}

/// Makes a folder that nobody else can enter; one that is there must be the user's.
pub(crate) fn private(path: &Path) -> Result<(), MediumError> {
    let new = path.ancestors().take_while(|a| !a.exists()).count();
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    made.map_err(error("make", path))?;
    own(path)?;
    path.ancestors().take(new).try_for_each(sync_folder)
}

/// Sees to it that a folder is the user's, and that nobody else writes to it.
fn own(path: &Path) -> Result<(), MediumError> {
    let meta = fs::symlink_metadata(path).map_err(error("examine", path))?;
    let own = meta.uid() == rustix::process::geteuid().as_raw();
    if !meta.is_dir() || !own || meta.mode() & 0o022 != 0 {
        let other = io::Error::new(
            ErrorKind::PermissionDenied,
            "it is a link, or belongs to somebody else, or others can write to it",
        );
        return Err(error("use", path)(other));
    }
    Ok(())
}

impl Vault for Folder {
    type Medium = EmulatedMedium<MappedFile>;
    type Seen = ReadOnlyMapping;

    fn create(
        &self,
        name: &str,
        size: u64,
        fill: &mut dyn FnMut(&mut Self::Medium) -> Result<(), MediumError>,
    ) -> Result<Self::Medium, MediumError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let file = self.path(name)?;
        if let Some(folder) = file.parent() {
            private(folder)?;
        }
        // The files that killed processes have left of this medium: nobody else makes it now.
        let parts = format!("{name}.");
        for left in all(&self.path)?.iter().filter(|n| n.ends_with(PART)) {
            if left.starts_with(&parts) {
                remove(&self.path.join(left))?;
            }
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let part = self
            .path
            .join(format!("{parts}{}.{number}{PART}", std::process::id()));
        let made = MappedFile::create(&part, size).and_then(|medium| {
            let mut medium = EmulatedMedium::new(medium, Arc::clone(&self.device));
            fill(&mut medium)?;
            fs::rename(&part, &file).map_err(error("name", &file))?;
            Ok(medium)
        });
        if made.is_err() {
            remove(&part)?;
            return made;
        }
        sync_folder(&file)?;
        made
    }

    fn open(&self, name: &str) -> Result<Self::Medium, MediumError> {
        let mapped = MappedFile::open(&self.path(name)?)?;
        Ok(EmulatedMedium::new(mapped, Arc::clone(&self.device)))
    }

    fn see(&self, name: &str) -> Result<ReadOnlyMapping, MediumError> {
        ReadOnlyMapping::open(&self.path(name)?)
    }

    fn file(&self, name: &str, writable: bool) -> Result<OwnedFd, MediumError> {
        let path = self.path(name)?;
        let rights = match writable {
            true => OFlags::RDWR,
            false => OFlags::RDONLY,
        };
        let flags = rights | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&path, flags, Mode::empty());
        file.map_err(|e| error("open", &path)(e.into()))
    }

    fn list(&self) -> Result<Vec<String>, MediumError> {
        let mut names = all(&self.path)?;
        names.retain(|name| !name.ends_with(PART));
        names.sort();
        Ok(names)
    }

    fn remove(&self, name: &str) -> Result<(), MediumError> {
        let file = self.path(name)?;
        remove(&file)?;
        if let Some(folder) = file.parent().filter(|f| *f != self.path) {
            // The last of them takes its folder with it.
            let _ = fs::remove_dir(folder);
        }
        Ok(())
    }
}

/// Names of all files in a folder and the folders in it.
fn all(folder: &Path) -> Result<Vec<String>, MediumError> {
    let mut names = Vec::new();
    for entry in entries(folder)? {
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
            continue;
        };
        let kind = entry.file_type().map_err(error("examine", &entry.path()))?;
        if kind.is_file() {
            names.push(name);
        } else if kind.is_dir() {
            for inner in entries(&entry.path())? {
                let is_file = inner.file_type().is_ok_and(|t| t.is_file());
                if let Some(inner) = inner.file_name().to_str().filter(|_| is_file) {
                    names.push(format!("{name}/{inner}"));
                }
            }
        }
    }
    Ok(names)
}

fn entries(folder: &Path) -> Result<Vec<fs::DirEntry>, MediumError> {
    let entries = fs::read_dir(folder).map_err(error("read", folder))?;
    entries
        .take(MAX_NAMES)
        .collect::<io::Result<_>>()
        .map_err(error("read", folder))
}

pub(crate) fn remove(file: &Path) -> Result<(), MediumError> {
    match fs::remove_file(file) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(error("remove", file)(e)),
        _ => Ok(()),
    }
}

/// A name is durable once its folder is synced.
pub(crate) fn sync_folder(file: &Path) -> Result<(), MediumError> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    let synced = fs::File::open(folder).and_then(|f| f.sync_all());
    synced.map_err(error("sync", folder))
}

pub(crate) fn error<'p>(
    doing: &'static str,
    path: &'p Path,
) -> impl Fn(io::Error) -> MediumError + 'p {
    move |source| MediumError::Io {
        doing,
        what: path.display().to_string(),
        source,
    }
}
