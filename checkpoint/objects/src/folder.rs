//! The files of one key. A process that publishes, deletes or clears up holds the folder's lock meanwhile; readers need none.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, fsync, linkat,
    mkdirat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tarn_checkpoint_core::object::{NEWEST, PART, file, number};
use tarn_checkpoint_core::{CheckpointError, CheckpointErrorCode};
use tarn_ports::MediumError;
use tarn_sys::beneath::Root;
use tarn_sys::lock::Lock;

/// Names of a store that are looked at in one call.
pub(crate) const MAX_NAMES: usize = 1 << 20;
/// How long the lock of a key is waited for: it is held for as long as a few names take to become durable.
const TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 10_000 });

const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

const MAKE: OFlags = OFlags::CREATE
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// An open folder of a key.
#[derive(Debug)]
pub(crate) struct KeyFolder {
    pub(crate) fd: OwnedFd,
    /// As it is called in messages.
    pub(crate) path: PathBuf,
}

/// A name that is not published: removed when this goes, if nothing has become of it.
#[derive(Debug)]
pub(crate) struct UnpublishedFile {
    pub(crate) folder: KeyFolder,
    pub(crate) name: String,
    /// That made it: it is not its forked children's.
    process: u32,
}

impl UnpublishedFile {
    pub(crate) fn is_own(&self) -> bool {
        std::process::id() == self.process
    }

    pub(crate) fn remove(&self) {
        if self.is_own() {
            remove(&self.folder.fd, self.name.as_bytes());
        }
    }
}

impl Drop for UnpublishedFile {
    fn drop(&mut self) {
        self.remove();
    }
}

impl KeyFolder {
    /// The folder of a key, if it is there.
    pub(crate) fn open(root: &Root, key: &str) -> Result<Self, Errno> {
        Ok(Self {
            fd: root.folder(key.as_bytes())?,
            path: root.path.join(key),
        })
    }

    /// The same; missing folders are made, durably.
    pub(crate) fn make(root: &Root, key: &str) -> Result<Self, CheckpointError> {
        let path = root.path.join(key);
        let failed = |e| error("make", &path)(e);
        let mut fd = root.folder(b"").map_err(failed)?;
        for name in key.split('/') {
            match mkdirat(&fd, name, Mode::from_raw_mode(0o777)) {
                Ok(()) => fsync(&fd).map_err(failed)?,
                Err(Errno::EXIST) => {}
                Err(e) => return Err(failed(e)),
            }
            let flags = READ | OFlags::DIRECTORY;
            fd = openat(&fd, name, flags, Mode::empty()).map_err(failed)?;
        }
        Ok(Self { fd, path })
    }

    /// Waits for the folder's lock.
    pub(crate) fn lock(&self) -> Result<Lock<&OwnedFd>, CheckpointError> {
        Lock::wait(&self.fd, TIMEOUT).map_err(|e| match e {
            Errno::WOULDBLOCK => {
                let text = format!(
                    "another program has held the lock of {} for {TIMEOUT:?}: if it was stopped, let it continue or end it",
                    self.path.display()
                );
                CheckpointError::new(CheckpointErrorCode::Busy, text)
            }
            e => error("lock", &self.path)(e),
        })
    }

    /// All numbers that were used, the highest last.
    pub(crate) fn used(&self) -> Result<Vec<u64>, CheckpointError> {
        let names = names(&self.fd, &self.path)?;
        let mut used: Vec<u64> = names.iter().filter_map(|name| number(name)).collect();
        used.sort_unstable();
        Ok(used)
    }

    /// The same, and how long their files are: an empty one is of no version.
    pub(crate) fn numbers(&self) -> Result<BTreeMap<u64, u64>, CheckpointError> {
        let mut found = BTreeMap::new();
        for number in self.used()? {
            match self.size(number) {
                Ok(size) => drop(found.insert(number, size)),
                Err(Errno::NOENT) => {}
                Err(e) => return Err(error("examine", &self.path.join(file(number)))(e)),
            }
        }
        Ok(found)
    }

    /// Bytes of a version's file, or of the link to it, which is never empty; 0 if it is neither.
    pub(crate) fn size(&self, number: u64) -> Result<u64, Errno> {
        let stat = statat(&self.fd, file(number), AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile | FileType::Symlink => Ok(stat.st_size as u64),
            _ => Ok(0),
        }
    }

    /// Opens a version for reading. A link is followed, as views have them for files of other file systems, but only to a file that nobody
    /// but this user and root can make shorter; `LOOP` where it is none.
    pub(crate) fn version(&self, number: u64) -> Result<OwnedFd, Errno> {
        let name = file(number);
        match self.read(&name) {
            Err(Errno::LOOP) => {}
            opened => return opened,
        }
        let trusted = |stat: Stat| {
            let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            let owned = [0, geteuid().as_raw()].contains(&stat.st_uid);
            (regular && owned).then_some(()).ok_or(Errno::LOOP)
        };
        // Looked at before it is opened too: to open a device may do something.
        match statat(&self.fd, &name, AtFlags::empty()) {
            Err(Errno::NOENT) => return Err(Errno::LOOP),
            stat => trusted(stat?)?,
        }
        let flags = READ.difference(OFlags::NOFOLLOW);
        let opened = openat(&self.fd, &name, flags, Mode::empty())?;
        trusted(fstat(&opened)?)?;
        Ok(opened)
    }

    /// Opens one of its files for reading; never through a link.
    pub(crate) fn read(&self, name: &str) -> Result<OwnedFd, Errno> {
        openat(&self.fd, name, READ, Mode::empty())
    }

    /// A new file for its only writer, which is locked for as long as that lives. Files of dead writers are removed.
    pub(crate) fn begin(
        self,
        identity: u128,
    ) -> Result<(UnpublishedFile, OwnedFd), CheckpointError> {
        // Nobody will write to it but by this descriptor.
        let mode = Mode::from_raw_mode(0o444);
        self.begin_by(identity, |folder, name| {
            openat(folder, name, MAKE.union(OFlags::RDWR), mode)
        })
    }

    /// The same for a folder in which somebody else makes a file.
    pub(crate) fn begin_far(
        self,
        identity: u128,
    ) -> Result<(UnpublishedFile, OwnedFd), CheckpointError> {
        self.begin_by(identity, |folder, name| {
            mkdirat(folder, name, Mode::from_raw_mode(0o777))?;
            openat(folder, name, READ | OFlags::DIRECTORY, Mode::empty())
        })
    }

    fn begin_by(
        self,
        identity: u128,
        make: impl FnOnce(&OwnedFd, &str) -> Result<OwnedFd, Errno>,
    ) -> Result<(UnpublishedFile, OwnedFd), CheckpointError> {
        let name = part(identity);
        let lock = self.lock()?;
        self.clear()?;
        // Locked before anybody clears up again.
        let made = make(&self.fd, &name).and_then(|made| {
            flock(&made, FlockOperation::NonBlockingLockExclusive)?;
            Ok(made)
        });
        let made = made.map_err(error("make", &self.path.join(&name)))?;
        drop(lock);
        let part = UnpublishedFile {
            folder: self,
            name,
            process: std::process::id(),
        };
        Ok((part, made))
    }

    /// Removes the remains of killed writers: nobody holds their locks. The folder's lock is held.
    fn clear(&self) -> Result<(), CheckpointError> {
        for name in names(&self.fd, &self.path)? {
            if name.starts_with(PART.as_bytes()) {
                let left = openat(&self.fd, &*name, READ, Mode::empty());
                let free = left.and_then(|fd| flock(fd, FlockOperation::NonBlockingLockExclusive));
                if free.is_ok() {
                    remove(&self.fd, &name);
                }
            }
        }
        Ok(())
    }

    /// Gives a file of this folder the name of a new version, whose number is behind the `last`, and that of the newest. The folder's lock
    /// is held.
    pub(crate) fn publish(
        &self,
        part: &str,
        number: u64,
        last: Option<u64>,
    ) -> Result<(), CheckpointError> {
        let (name, path) = (file(number), self.path.join(file(number)));
        linkat(&self.fd, part, &self.fd, &name, AtFlags::empty()).map_err(error("name", &path))?;
        if let Err(e) = renameat(&self.fd, part, &self.fd, NEWEST) {
            let _ = unlinkat(&self.fd, &name, AtFlags::empty());
            return Err(error("name", &path)(e));
        }
        // A later number is there now: one that was used up need not be remembered.
        if let Some(last) = last.filter(|last| self.size(*last) == Ok(0)) {
            let _ = unlinkat(&self.fd, file(last), AtFlags::empty());
        }
        fsync(&self.fd).map_err(error("sync", &self.path))
    }

    /// Has the name of the newest version lead to the one that is. The folder's lock is held.
    pub(crate) fn point(&self, identity: u128, newest: Option<u64>) -> Result<(), Errno> {
        let nowhere = || match unlinkat(&self.fd, NEWEST, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        };
        let Some(newest) = newest else {
            return nowhere();
        };
        if self.points_to(newest) {
            return Ok(());
        }
        let part = part(identity);
        match linkat(&self.fd, file(newest), &self.fd, &part, AtFlags::empty()) {
            // Another user's file (`protected_hardlinks`): better no name than a wrong one.
            Err(Errno::PERM) => nowhere(),
            linked => linked.and_then(|()| renameat(&self.fd, &part, &self.fd, NEWEST)),
        }
    }

    /// Whether this version is there, and the name of the newest leads to it.
    pub(crate) fn points_to(&self, number: u64) -> bool {
        let inode = |name: &str| {
            let stat = statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
            stat.map(|s| (s.st_dev, s.st_ino))
        };
        inode(NEWEST).is_ok_and(|newest| inode(&file(number)) == Ok(newest))
    }

    /// Removes a version behind which there is another. The folder's lock is held.
    pub(crate) fn delete_older(&self, number: u64) -> Result<(), Errno> {
        unlinkat(&self.fd, file(number), AtFlags::empty())?;
        fsync(&self.fd)
    }

    /// Removes versions. The highest number leaves an empty file, so that it is not given again. The folder's lock is held.
    pub(crate) fn delete(
        &self,
        identity: u128,
        numbers: &BTreeMap<u64, u64>,
        gone: &[u64],
    ) -> Result<(), Errno> {
        let stays = |(n, size): (&u64, &u64)| (*size > 0 && !gone.contains(n)).then_some(*n);
        self.point(identity, numbers.iter().rev().find_map(stays))?;
        for number in gone {
            if numbers.keys().next_back() == Some(number) {
                let part = part(identity);
                let mode = Mode::from_raw_mode(0o444);
                openat(&self.fd, &part, MAKE.union(OFlags::WRONLY), mode)?;
                renameat(&self.fd, &part, &self.fd, file(*number))?;
            } else {
                unlinkat(&self.fd, file(*number), AtFlags::empty())?;
            }
        }
        fsync(&self.fd)
    }
}

/// The name of an unpublished object.
fn part(identity: u128) -> String {
    format!("{PART}{identity:032x}")
}

/// Removes an unpublished file or folder of files. The next writer tries again if it cannot be removed.
fn remove(folder: &OwnedFd, name: &[u8]) {
    if unlinkat(folder, name, AtFlags::empty()) == Err(Errno::ISDIR) {
        if let Ok(inner) = openat(folder, name, READ | OFlags::DIRECTORY, Mode::empty()) {
            for file in names(&inner, Path::new("")).unwrap_or_default() {
                let _ = unlinkat(&inner, &*file, AtFlags::empty());
            }
        }
        let _ = unlinkat(folder, name, AtFlags::REMOVEDIR);
    }
}

/// The names in a folder.
pub(crate) fn names(folder: impl AsFd, path: &Path) -> Result<Vec<Box<[u8]>>, CheckpointError> {
    let mut found = Vec::new();
    for entry in Dir::read_from(folder).map_err(error("read", path))? {
        let entry = entry.map_err(error("read", path))?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            found.push(Box::from(name));
        }
        if found.len() > MAX_NAMES {
            let text = format!(
                "{} has more than {MAX_NAMES} names: delete versions, or use several stores",
                path.display()
            );
            return Err(CheckpointError::new(CheckpointErrorCode::Unsupported, text));
        }
    }
    Ok(found)
}

pub(crate) fn error<'p>(
    doing: &'static str,
    path: &'p Path,
) -> impl Fn(Errno) -> CheckpointError + 'p {
    move |e| {
        let what = path.display().to_string();
        let source = e.into();
        MediumError::Io {
            doing,
            what,
            source,
        }
        .into()
    }
}
