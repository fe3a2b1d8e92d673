//! A partition of this node.

use crate::error::refused;
use crate::file::{self, Others, unusable};
use crate::folder::{Folder, divide};
use crate::name::InSpace;
use crate::store::Hands;
use crate::{Code, Info, OpenOptions, Refusal};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tarn_media::{Direct, Mapping, Queued, Shared, Units};
use tarn_ports::{PowerFail, Promises};
use tarn_queue::header::{DATA, Header};
use tarn_ring::Exposed;
use tarn_sys::lock::{Hold, hold};

/// The byte of a partition's file that its lock is: docs/reference/formats.md.
const LOCK: u64 = 32_770;

/// Where it is.
#[derive(Debug)]
enum Home {
    /// In this folder, by this name.
    Folder(Folder, String),
    /// In a dataspace: tarnd makes it larger, and opens it anew.
    Tarnd,
    /// In a dataspace of this tarnd.
    Own,
}

/// How it is used, as its header says.
#[derive(Debug)]
enum Access {
    Mapped(Arc<Shared>),
    Units(Arc<Units>),
}

/// An open partition of this node.
#[derive(Debug)]
pub(crate) struct HerePart {
    access: Access,
    home: Home,
    path: PathBuf,
    options: OpenOptions,
    header: Mutex<Header>,
}

impl HerePart {
    /// One of a folder.
    pub(crate) fn open(path: &Path, options: OpenOptions) -> Result<Self, Refusal> {
        let (folder, name) = divide(path)?;
        let (file, header) = folder.open_file(name, options.writable, Others::Allowed)?;
        let path = folder.path_of(name);
        let home = Home::Folder(folder, name.to_owned());
        Self::map(file, header, home, path, options)
    }

    /// One of a dataspace, as it was named, whose file tarnd has lent.
    pub(crate) fn lent(file: OwnedFd, path: &Path, options: OpenOptions) -> Result<Self, Refusal> {
        let header = file::header(&file, path)?;
        Self::map(file, header, Home::Tarnd, path.to_owned(), options)
    }

    /// One of a dataspace of this process, which is tarnd.
    pub(crate) fn own(file: OwnedFd, path: &Path, options: OpenOptions) -> Result<Self, Refusal> {
        let header = file::header(&file, path)?;
        Self::map(file, header, Home::Own, path.to_owned(), options)
    }

    fn map(
        file: OwnedFd,
        header: Header,
        home: Home,
        path: PathBuf,
        options: OpenOptions,
    ) -> Result<Self, Refusal> {
        let (writable, guarded) = (options.writable, options.guarded);
        let access = match header.unit {
            0 => {
                let mapping = Mapping {
                    from: DATA,
                    writable,
                    populate: options.populate,
                    guarded,
                };
                let shared = Shared::new(file, &path, mapping, header.size);
                Access::Mapped(Arc::new(shared.map_err(unusable)?))
            }
            _ => {
                let units = file::units(file, &header, &path, writable, guarded)?;
                Access::Units(Arc::new(units))
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

    /// What is known of it, now: others may have made it larger.
    ///
    /// # Errors
    /// When its header cannot be read.
    pub(crate) fn info(&self) -> Result<Info, Refusal> {
        let header = file::header(self.file(), &self.path)?;
        let name = match &self.home {
            Home::Folder(_, name) => name,
            Home::Tarnd | Home::Own => {
                let name = self.path.file_name().and_then(|name| name.to_str());
                name.unwrap_or_default()
            }
        };
        Ok(Info::of(name, &header))
    }

    /// Bytes that can be used. If others have made it larger, it is larger here from now on.
    ///
    /// # Errors
    /// When its header cannot be read, or what was added cannot be mapped.
    pub(crate) fn size(&self) -> Result<u64, Refusal> {
        let mut known = self.header.lock().unwrap_or_else(PoisonError::into_inner);
        let now = file::header(self.file(), &self.path)?;
        self.extend(&mut known, now)
    }

    /// Makes it larger, in a folder; its size then.
    pub(crate) fn grow(&self, size: u64) -> Result<u64, Refusal> {
        if let Home::Folder(folder, name) = &self.home {
            folder.grow(name, size)?;
        }
        self.size()
    }

    fn extend(&self, known: &mut Header, now: Header) -> Result<u64, Refusal> {
        self.never_shorter(known, &now)?;
        if now.size > known.size {
            match &self.access {
                Access::Mapped(shared) => shared.extend(now.size).map_err(unusable)?,
                Access::Units(units) => units.extend(now.size),
            }
        }
        *known = now;
        Ok(known.size)
    }

    /// Nobody makes it smaller while it is open, by the rules.
    fn never_shorter(&self, known: &Header, now: &Header) -> Result<(), Refusal> {
        if now.size >= known.size {
            return Ok(());
        }
        let text = format!(
            "{} had {} bytes when it was opened, and has {} now: its file was made shorter, or its header is damaged",
            self.path.display(),
            known.size,
            now.size
        );
        Err(Refusal::new(Code::Corrupt, text))
    }

    /// Holds its lock, or gives it back, at once.
    pub(crate) fn lock(&self, what: Hold) -> Result<(), Refusal> {
        match hold(self.file(), &(LOCK..LOCK + 1), what) {
            Ok(true) => Ok(()),
            Ok(false) => Err(taken(&self.path)),
            Err(Errno::BADF) => Err(read_only(&self.path)),
            Err(e) => Err(refused("lock", &self.path)(e)),
        }
    }

    /// What its medium promises.
    pub(crate) fn promises(&self) -> Promises {
        match &self.access {
            Access::Mapped(shared) => shared.promises(),
            Access::Units(units) => units.promises(),
        }
    }

    /// One more pair of hands.
    ///
    /// # Errors
    /// When it is used in units, and cannot be opened once more.
    pub(crate) fn hands(&self) -> Result<Hands, Refusal> {
        let units = match &self.access {
            Access::Mapped(shared) => return Ok(Hands::Mapped(Direct::new(shared))),
            Access::Units(units) => units,
        };
        let queued = match &self.home {
            Home::Folder(..) => Queued::new(units, None),
            // Who may have it may not open the file.
            Home::Tarnd => {
                let lent = lent(&InSpace::of(&self.path)?, self.options.writable)?;
                Queued::new(units, Some(lent))
            }
            // For another node, whose requests are done one after the other.
            Home::Own => Queued::blocking(units),
        };
        queued
            .map(|queued| Hands::Units(Box::new(queued)))
            .map_err(unusable)
    }

    /// Its data as a stretch of its file, if it is mapped. On persistent memory only stores that this processor writes back are persistent.
    pub(crate) fn exposed(&self) -> Option<Exposed<'_>> {
        let Access::Mapped(shared) = &self.access else {
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
            Access::Mapped(shared) => shared.file(),
            Access::Units(units) => units.file(),
        }
    }

    /// Random, its own.
    pub(crate) fn identity(&self) -> u128 {
        let header = self.header.lock().unwrap_or_else(PoisonError::into_inner);
        header.identity
    }
}

/// The file, as this node's tarnd opens it once more.
fn lent(within: &InSpace<'_>, writable: bool) -> Result<OwnedFd, Refusal> {
    let path = within.file();
    let lent = within
        .tarnd()?
        .open_partition(None, within.space, path.as_bytes(), writable);
    let (file, _) = lent?;
    // It is open here by another descriptor already. An io_uring lets go of this one some time after it was closed.
    flock(&file, FlockOperation::Unlock).map_err(refused("unlock", Path::new(&path)))?;
    Ok(file)
}

/// The lock is somebody else's.
pub(crate) fn taken(path: &Path) -> Refusal {
    let text = format!("another program holds the lock of {}", path.display());
    Refusal::new(Code::Busy, text)
}

/// It cannot be changed by this opening.
pub(crate) fn read_only(path: &Path) -> Refusal {
    let text = format!("{} was opened to be read only", path.display());
    Refusal::new(Code::Denied, text)
}
