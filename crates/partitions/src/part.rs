//! One partition.

use crate::file::{self, Others, unusable};
use crate::folder::{Folder, divide};
use crate::store::Hands;
use crate::{Code, Info, OpenOptions, Refusal};
use rustix::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tarn_dsa::header::{DATA, Header};
use tarn_media::{Direct, Mapping, Queued, Shared, Units};
use tarn_ports::Promises;

/// How a partition is used, as its header says.
#[derive(Debug)]
enum Access {
    Mapped(Arc<Shared>),
    Units(Arc<Units>),
}

/// An open partition.
#[derive(Debug)]
pub(crate) struct Part {
    access: Access,
    folder: Folder,
    name: String,
    path: PathBuf,
    options: OpenOptions,
    header: Mutex<Header>,
}

impl Part {
    /// Opens a partition.
    ///
    /// # Errors
    /// `NOTFOUND`, `DENIED`, `BUSY` while it is deleted or made smaller, `CORRUPT` where its header is damaged, `NOSPACE` where there is no
    /// memory to map it.
    pub(crate) fn open(path: &Path, options: OpenOptions) -> Result<Self, Refusal> {
        let (folder, name) = divide(path)?;
        let path = folder.path_of(name);
        let (file, header) = file::open(&folder, name, options.writable, Others::Allowed)?;
        let (writable, guarded) = (options.writable, options.guarded);
        let access = match header.unit {
            0 => {
                let mapping = Mapping {
                    from: DATA,
                    writable,
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
        let part = Self {
            access,
            folder,
            name: name.to_owned(),
            path,
            options,
            header: Mutex::new(header),
        };
        part.populate()?;
        Ok(part)
    }

    /// What is known of it, now: others may have made it larger.
    ///
    /// # Errors
    /// When its header cannot be read.
    pub(crate) fn info(&self) -> Result<Info, Refusal> {
        let header = file::header(self.file(), &self.path)?;
        Ok(Info::of(&self.name, &header))
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

    /// Makes it larger while it is open; it is never made smaller by this.
    ///
    /// # Errors
    /// `NOSPACE`: it is as it was. `DENIED` where it was opened to be read only.
    pub(crate) fn grow(&self, size: u64) -> Result<u64, Refusal> {
        if !self.options.writable {
            let text = format!("{} was opened to be read only", self.path.display());
            return Err(Refusal::new(Code::Denied, text));
        }
        let _lock = self.folder.lock()?;
        let mut known = self.header.lock().unwrap_or_else(PoisonError::into_inner);
        let now = file::header(self.file(), &self.path)?;
        self.never_shorter(&known, &now)?;
        let new = match size > now.size {
            true => file::resize(self.file(), &now, size, &self.path)?,
            false => now,
        };
        self.extend(&mut known, new)
    }

    fn extend(&self, known: &mut Header, now: Header) -> Result<u64, Refusal> {
        self.never_shorter(known, &now)?;
        if now.size > known.size {
            match &self.access {
                Access::Mapped(shared) => shared.extend(now.size).map_err(unusable)?,
                Access::Units(units) => units.extend(now.size),
            }
            self.populate()?;
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
            "{} had {} bytes when it was opened, and says {} now: its file was made shorter, or its header is damaged",
            self.path.display(),
            known.size,
            now.size
        );
        Err(Refusal::new(Code::Corrupt, text))
    }

    fn populate(&self) -> Result<(), Refusal> {
        match &self.access {
            Access::Mapped(shared) if self.options.populate => shared.populate().map_err(unusable),
            _ => Ok(()),
        }
    }

    /// What its medium promises.
    pub(crate) fn promises(&self) -> Promises {
        match &self.access {
            Access::Mapped(shared) => shared.promises(),
            Access::Units(units) => units.promises(),
        }
    }

    /// The partition in the hands of one queue pair.
    ///
    /// # Errors
    /// When it is used in units, and cannot be opened once more.
    pub(crate) fn hands(&self) -> Result<Hands, Refusal> {
        match &self.access {
            Access::Mapped(shared) => Ok(Hands::Mapped(Direct::new(shared))),
            Access::Units(units) => Queued::new(units).map(Hands::Units).map_err(unusable),
        }
    }

    /// Random, its own.
    pub(crate) fn identity(&self) -> u128 {
        let header = self.header.lock().unwrap_or_else(PoisonError::into_inner);
        header.identity
    }

    /// Whether those are hands of this, as it was opened here.
    pub(crate) fn is(&self, hands: &Hands) -> bool {
        match (&self.access, hands) {
            (Access::Mapped(own), Hands::Mapped(direct)) => Arc::ptr_eq(own, direct.shared()),
            (Access::Units(own), Hands::Units(queued)) => Arc::ptr_eq(own, queued.units()),
            _ => false,
        }
    }

    fn file(&self) -> &OwnedFd {
        match &self.access {
            Access::Mapped(shared) => shared.file(),
            Access::Units(units) => units.file(),
        }
    }
}
