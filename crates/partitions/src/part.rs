//! One partition.

use crate::file::{self, Others};
use crate::folder::{Folder, code, divide};
use crate::{Code, Info, OpenOptions, Refusal};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tarn_dsa::header::{DATA, Header};
use tarn_media::{Direct, Mapping, Shared};
use tarn_ports::{MediumError, Promises};

/// An open partition.
#[derive(Debug)]
pub(crate) struct Part {
    shared: Arc<Shared>,
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
        let mapping = Mapping {
            from: DATA,
            writable: options.writable,
            guarded: options.guarded,
        };
        let shared = Shared::new(file, &path, mapping, header.size).map_err(unmapped)?;
        let part = Self {
            shared: Arc::new(shared),
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
        let header = file::header(self.shared.file(), &self.path)?;
        Ok(Info::of(&self.name, &header))
    }

    /// Bytes that can be used. If others have made it larger, it is larger here from now on.
    ///
    /// # Errors
    /// When its header cannot be read, or what was added cannot be mapped.
    pub(crate) fn size(&self) -> Result<u64, Refusal> {
        let mut known = self.header.lock().unwrap_or_else(PoisonError::into_inner);
        let now = file::header(self.shared.file(), &self.path)?;
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
        let now = file::header(self.shared.file(), &self.path)?;
        self.never_shorter(&known, &now)?;
        let new = match size > now.size {
            true => file::resize(self.shared.file(), &now, size, &self.path)?,
            false => now,
        };
        self.extend(&mut known, new)
    }

    fn extend(&self, known: &mut Header, now: Header) -> Result<u64, Refusal> {
        self.never_shorter(known, &now)?;
        if now.size > known.size {
            self.shared.extend(now.size).map_err(unmapped)?;
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
        match self.options.populate {
            true => self.shared.populate().map_err(unmapped),
            false => Ok(()),
        }
    }

    /// What its medium promises.
    pub(crate) fn promises(&self) -> Promises {
        self.shared.promises()
    }

    /// The partition in the hands of one queue pair.
    pub(crate) fn direct(&self) -> Direct {
        Direct::new(&self.shared)
    }

    /// Random, its own.
    pub(crate) fn identity(&self) -> u128 {
        let header = self.header.lock().unwrap_or_else(PoisonError::into_inner);
        header.identity
    }

    /// What it is mapped by.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

fn unmapped(why: MediumError) -> Refusal {
    let kind = match &why {
        MediumError::Io { source, .. } => code(source),
        _ => Code::Internal,
    };
    Refusal::new(kind, why.to_string())
}
