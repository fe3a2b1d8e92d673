//! One partition.

use crate::file::{self, Others, unusable};
use crate::folder::{Folder, divide};
use crate::name::{InSpace, Name};
use crate::store::Hands;
use crate::{Code, Info, OpenOptions, Refusal};
use rustix::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tarn_dsa::header::{DATA, Header};
use tarn_media::{Direct, Mapping, Queued, Shared, Units};
use tarn_ports::Promises;
use tarn_proto::local::{Allocation, Kind};

/// How a partition is used, as its header says.
#[derive(Debug)]
enum Access {
    Mapped(Arc<Shared>),
    Units(Arc<Units>),
}

/// Who makes it larger.
#[derive(Debug)]
enum Home {
    /// This program, in its folder.
    Folder(Folder, String),
    /// The tarnd that has lent it, by this name.
    Tarnd(PathBuf),
}

/// An open partition.
#[derive(Debug)]
pub(crate) struct Part {
    access: Access,
    home: Home,
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
        let (file, header, home, path) = match Name::of(path)? {
            Name::Path(path) => {
                let (folder, name) = divide(path)?;
                let (file, header) = file::open(&folder, name, options.writable, Others::Allowed)?;
                let path = folder.path_of(name);
                (file, header, Home::Folder(folder, name.to_owned()), path)
            }
            Name::Space(within) => {
                let file = lent(&within, options.writable)?;
                let header = file::header(&file, path)?;
                (file, header, Home::Tarnd(path.to_owned()), path.to_owned())
            }
        };
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
            home,
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
        let name = match &self.home {
            Home::Folder(_, name) => name,
            Home::Tarnd(path) => path
                .file_name()
                .and_then(|n| n.to_str())
                .unwrap_or_default(),
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

    /// Makes it larger while it is open; it is never made smaller by this.
    ///
    /// # Errors
    /// `NOSPACE`: it is as it was. `DENIED` where it was opened to be read only.
    pub(crate) fn grow(&self, size: u64) -> Result<u64, Refusal> {
        if !self.options.writable {
            let text = format!("{} was opened to be read only", self.path.display());
            return Err(Refusal::new(Code::Denied, text));
        }
        match &self.home {
            Home::Folder(folder, name) => drop(folder.grow(name, size)?),
            Home::Tarnd(path) => {
                if let Name::Space(within) = Name::of(path)? {
                    within.done(|at| Kind::Allocate {
                        at,
                        bytes: size,
                        how: Allocation::Grow,
                    })?;
                }
            }
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
        let units = match &self.access {
            Access::Mapped(shared) => return Ok(Hands::Mapped(Direct::new(shared))),
            Access::Units(units) => units,
        };
        let lent = match &self.home {
            Home::Folder(..) => None,
            // Who may have it may not open the file.
            Home::Tarnd(path) => match Name::of(path)? {
                Name::Space(within) => Some(lent(&within, self.options.writable)?),
                Name::Path(_) => None,
            },
        };
        Queued::new(units, lent).map(Hands::Units).map_err(unusable)
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

/// The file, as this node's tarnd opens it.
fn lent(within: &InSpace<'_>, writable: bool) -> Result<OwnedFd, Refusal> {
    let tarnd = within.tarnd()?;
    if within.node.is_some_and(|node| node != tarnd.node()) {
        let text = "partitions of other nodes cannot be opened from here";
        return Err(Refusal::new(Code::Unsupported, text));
    }
    let path = within.file();
    tarnd.open_partition(within.space, path.as_bytes(), writable)
}
