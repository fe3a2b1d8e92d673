//! A partition of this node.

use crate::error::refused;
use crate::file::{self, OtherOpeners, unusable};
use crate::folder::{PartitionFolder, divide};
use crate::name::InSpace;
use crate::store::PartStorage;
use crate::{Code, OpenOptions, PartitionDetails, RequestError};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tarn_media::{Direct, Mapping, SharedMedium, UnitStorage, Units};
use tarn_ports::{PowerFail, Promises};
use tarn_queue::header::{DATA, Header};
use tarn_ring::Exposed;
use tarn_sys::lock::{RangeLockMode, hold};

/// The byte of a partition's file that its lock is: docs/reference/formats.md.
const LOCK: u64 = 32_770;

/// The place of a partition.
#[derive(Debug)]
enum PartitionHome {
    /// In this folder, by this name.
    Folder(PartitionFolder, String),
    /// In a dataspace: tarnd makes it larger, and opens it again.
    Tarnd,
    /// In a dataspace of this tarnd.
    Own,
}

/// How it is used, as its header says.
#[derive(Debug)]
enum PartitionAccess {
    Mapped(Arc<SharedMedium>),
    Units(Arc<Units>),
}

/// An open partition of this node.
#[derive(Debug)]
pub(crate) struct LocalPart {
    access: PartitionAccess,
    home: PartitionHome,
    path: PathBuf,
    options: OpenOptions,
    header: Mutex<Header>,
}

impl LocalPart {
    /// One of a folder.
    pub(crate) fn open(path: &Path, options: OpenOptions) -> Result<Self, RequestError> {
        let (folder, name) = divide(path)?;
        let (file, header) = folder.open_file(name, options.writable, OtherOpeners::Allowed)?;
        let path = folder.path_of(name);
        let home = PartitionHome::Folder(folder, name.to_owned());
        Self::map(file, header, home, path, options)
    }

    /// One of a dataspace, as it was named, whose file tarnd has opened.
    pub(crate) fn from_tarnd_file(
        file: OwnedFd,
        path: &Path,
        options: OpenOptions,
    ) -> Result<Self, RequestError> {
        let header = file::header(&file, path)?;
        Self::map(file, header, PartitionHome::Tarnd, path.to_owned(), options)
    }

    /// One of a dataspace of this process, which is tarnd.
    pub(crate) fn own(
        file: OwnedFd,
        path: &Path,
        options: OpenOptions,
    ) -> Result<Self, RequestError> {
        let header = file::header(&file, path)?;
        Self::map(file, header, PartitionHome::Own, path.to_owned(), options)
    }

    fn map(
        file: OwnedFd,
        header: Header,
        home: PartitionHome,
        path: PathBuf,
        options: OpenOptions,
    ) -> Result<Self, RequestError> {
        let (writable, guarded) = (options.writable, options.guarded);
        let access = match header.unit {
            0 => {
                let mapping = Mapping {
                    from: DATA,
                    writable,
                    populate: options.populate,
                    guarded,
                };
                let shared = SharedMedium::new(file, &path, mapping, header.size);
                PartitionAccess::Mapped(Arc::new(shared.map_err(unusable)?))
            }
            _ => {
                let units = file::units(file, &header, &path, writable, guarded)?;
                PartitionAccess::Units(Arc::new(units))
            }
        };
        Ok(Self {
            access,
            home,
            path,
            options,
            header: Mutex::new(header),
        })
    }

    /// Its details now: others may have made it larger.
    ///
    /// # Errors
    /// When its header cannot be read.
    pub(crate) fn info(&self) -> Result<PartitionDetails, RequestError> {
        let header = file::header(self.file(), &self.path)?;
        let name = match &self.home {
            PartitionHome::Folder(_, name) => name,
            PartitionHome::Tarnd | PartitionHome::Own => {
                let name = self.path.file_name().and_then(|name| name.to_str());
                name.unwrap_or_default()
            }
        };
        Ok(PartitionDetails::of(name, &header))
    }

    /// Bytes that can be used. If others have made it larger, it is larger here from now on.
    ///
    /// # Errors
    /// Its header cannot be read, or the added bytes cannot be mapped.
    pub(crate) fn size(&self) -> Result<u64, RequestError> {
        let mut known = self.header.lock().unwrap_or_else(PoisonError::into_inner);
        let now = file::header(self.file(), &self.path)?;
        self.extend(&mut known, now)
    }

    /// Makes it larger, in a folder; its size then.
    pub(crate) fn grow(&self, size: u64) -> Result<u64, RequestError> {
        if let PartitionHome::Folder(folder, name) = &self.home {
            folder.grow(name, size)?;
        }
        self.size()
    }

    fn extend(&self, known: &mut Header, now: Header) -> Result<u64, RequestError> {
        self.never_shorter(known, &now)?;
        if now.size > known.size {
            match &self.access {
                PartitionAccess::Mapped(shared) => shared.extend(now.size).map_err(unusable)?,
                PartitionAccess::Units(units) => units.extend(now.size),
            }
        }
        *known = now;
        Ok(known.size)
    }

    /// Nobody makes it smaller while it is open, by the rules.
    fn never_shorter(&self, known: &Header, now: &Header) -> Result<(), RequestError> {
        if now.size >= known.size {
            return Ok(());
        }
        let text = format!(
            "{} had {} bytes when it was opened, and has {} now: its file was made shorter, or its header is damaged",
            self.path.display(),
            known.size,
            now.size
        );
        Err(RequestError::new(Code::Corrupt, text))
    }

    /// Holds its lock, or gives it back, at once.
    pub(crate) fn lock(&self, what: RangeLockMode) -> Result<(), RequestError> {
        match hold(self.file(), &(LOCK..LOCK + 1), what) {
            Ok(true) => Ok(()),
            Ok(false) => Err(taken(&self.path)),
            Err(Errno::BADF) => Err(read_only(&self.path)),
            Err(e) => Err(refused("lock", &self.path)(e)),
        }
    }

    /// The promises of its medium.
    pub(crate) fn promises(&self) -> Promises {
        match &self.access {
            PartitionAccess::Mapped(shared) => shared.promises(),
            PartitionAccess::Units(units) => units.promises(),
        }
    }

    /// One more pair of hands.
    ///
    /// # Errors
    /// When it is used in units, and cannot be opened once more.
    pub(crate) fn hands(&self) -> Result<PartStorage, RequestError> {
        let units = match &self.access {
            PartitionAccess::Mapped(shared) => return Ok(PartStorage::Mapped(Direct::new(shared))),
            PartitionAccess::Units(units) => units,
        };
        let queued = match &self.home {
            PartitionHome::Folder(..) => UnitStorage::new(units, None),
            // A user who may access it may be unable to open the file.
            PartitionHome::Tarnd => {
                let opened = reopen_file(&InSpace::of(&self.path)?, self.options.writable)?;
                UnitStorage::new(units, Some(opened))
            }
            // For another node, whose requests are done one after the other.
            PartitionHome::Own => UnitStorage::blocking(units),
        };
        queued
            .map(|queued| PartStorage::Units(Box::new(queued)))
            .map_err(unusable)
    }

    /// Its data as a stretch of its file, if it is mapped. On persistent memory only stores that this processor writes back are persistent.
    pub(crate) fn exposed(&self) -> Option<Exposed<'_>> {
        let PartitionAccess::Mapped(shared) = &self.access else {
            return None;
        };
        let plain = [PowerFail::Lost, PowerFail::Synced].contains(&shared.promises().power_fail);
        let header = self.header.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Exposed {
            file: shared.file().as_fd(),
            from: DATA,
            size: header.size,
            writable: self.options.writable && plain,
        })
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.options.writable
    }

    fn file(&self) -> &OwnedFd {
        match &self.access {
            PartitionAccess::Mapped(shared) => shared.file(),
            PartitionAccess::Units(units) => units.file(),
        }
    }

    /// Random, its own.
    pub(crate) fn identity(&self) -> u128 {
        let header = self.header.lock().unwrap_or_else(PoisonError::into_inner);
        header.identity
    }
}

/// The file, as this node's tarnd opens it once more.
fn reopen_file(within: &InSpace<'_>, writable: bool) -> Result<OwnedFd, RequestError> {
    let path = within.file();
    let opened = within
        .tarnd()?
        .open_partition(None, within.space, path.as_bytes(), writable);
    let (file, _) = opened?;
    // It is open here by another descriptor already. An io_uring lets go of this one some time after it was closed.
    flock(&file, FlockOperation::Unlock).map_err(refused("unlock", Path::new(&path)))?;
    Ok(file)
}

/// The lock is somebody else's.
pub(crate) fn taken(path: &Path) -> RequestError {
    let text = format!("another program holds the lock of {}", path.display());
    RequestError::new(Code::Busy, text)
}

/// It cannot be changed by this opening.
pub(crate) fn read_only(path: &Path) -> RequestError {
    let text = format!("{} was opened to be read only", path.display());
    RequestError::new(Code::Denied, text)
}
