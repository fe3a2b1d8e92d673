//! Partitions.

use crate::file::{self, Others};
use crate::folder::{Place, code, name, open_folder, refused};
use crate::{Code, Refusal};
use rustix::fd::OwnedFd;
use rustix::fs::Dir;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tarn_dsa::header::{DATA, Grant, Header};
use tarn_media::{Direct, Mapping, Shared};
use tarn_ports::{MediumError, Promises};
use tarn_sys::lock::{Hold, hold};

/// The byte of a partition's file that its lock is: between the copies of the header and the data.
const LOCK: u64 = 1 << 20;
/// Names of a folder that are looked at.
const MAX_NAMES: usize = 1 << 16;

/// What is known of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// The user that it belongs to.
    pub owner: u32,
    /// Who else may have it.
    pub grants: Vec<Grant>,
    /// Why it cannot be used, if it cannot.
    pub damaged: Option<String>,
}

/// How a partition is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    /// To be written, too.
    pub writable: bool,
    /// All of it is mapped now; else each page costs a fault at its first use.
    pub populate: bool,
    /// Pages that are not there any more kill nobody, by a handler of SIGBUS.
    pub guarded: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            writable: true,
            populate: false,
            guarded: true,
        }
    }
}

/// An open partition. While it, or a region of it, is there, it is neither deleted nor made smaller.
#[derive(Debug)]
pub struct Partition {
    shared: Arc<Shared>,
    /// It stays the same, wherever its path leads later.
    folder: OwnedFd,
    place: Place,
    path: PathBuf,
    options: OpenOptions,
    header: Mutex<Header>,
}

impl Partition {
    /// Makes a partition of so many bytes, up to whole pages, all of zeros; its room is taken. `path` is a folder's, and the name behind
    /// it.
    ///
    /// # Errors
    /// `EXISTS`, `NOSPACE` where there is no room, `INVALID` for a bad name or size.
    pub fn create(path: &Path, size: u64, grants: Vec<Grant>) -> Result<(), Refusal> {
        file::make(&Place::of(path)?, size, grants)
    }

    /// Takes a partition away.
    ///
    /// # Errors
    /// `BUSY` while anybody has it open, `NOTFOUND`.
    pub fn delete(path: &Path) -> Result<(), Refusal> {
        file::delete(&Place::of(path)?)
    }

    /// Gives a partition that nobody has open another size; what it holds stays, as far as there is room.
    ///
    /// # Errors
    /// `BUSY` while anybody has it open, `NOTFOUND`, `NOSPACE`: it is as it was.
    pub fn resize(path: &Path, size: u64) -> Result<(), Refusal> {
        let place = Place::of(path)?;
        let folder = place.open()?;
        let _lock = place.lock(&folder)?;
        let (file, header) = file::open(&place, &folder, true, Others::None)?;
        file::resize(&file, &header, size, &place.path()).map(drop)
    }

    /// The partitions of a folder, by name.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn list(folder: &Path) -> Result<Vec<Info>, Refusal> {
        let fd = open_folder(folder)?;
        let failed = refused("read", folder);
        let mut found = Vec::new();
        for entry in Dir::read_from(&fd).map_err(&failed)?.take(MAX_NAMES) {
            let entry = entry.map_err(&failed)?;
            let Some(name) = name(entry.file_name().to_bytes()) else {
                continue;
            };
            let place = Place {
                folder: folder.to_owned(),
                name: name.to_owned(),
            };
            match file::open(&place, &fd, false, Others::Unasked) {
                Ok((_, header)) => found.push(info(&place, &header)),
                Err(why) if why.code == Code::NotFound => {}
                Err(why) => found.push(Info {
                    name: place.name,
                    size: 0,
                    owner: 0,
                    grants: Vec::new(),
                    damaged: Some(why.text),
                }),
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Opens a partition.
    ///
    /// # Errors
    /// `NOTFOUND`, `DENIED`, `BUSY` while it is deleted or made smaller, `CORRUPT` where its header is damaged, `NOSPACE` where there is no
    /// memory to map it.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self, Refusal> {
        let place = Place::of(path)?;
        let path = place.path();
        let folder = place.open()?;
        let (file, header) = file::open(&place, &folder, options.writable, Others::Allowed)?;
        let mapping = Mapping {
            from: DATA,
            writable: options.writable,
            guarded: options.guarded,
        };
        let shared = Shared::new(file, &path, mapping, header.size).map_err(unmapped)?;
        let partition = Self {
            shared: Arc::new(shared),
            folder,
            place,
            path,
            options,
            header: Mutex::new(header),
        };
        partition.populate()?;
        Ok(partition)
    }

    /// What is known of it, now: others may have made it larger.
    ///
    /// # Errors
    /// When its header cannot be read.
    pub fn info(&self) -> Result<Info, Refusal> {
        let header = file::header(self.shared.file(), &self.path)?;
        Ok(info(&self.place, &header))
    }

    /// Bytes that can be used. If others have made it larger, it is larger here from now on.
    ///
    /// # Errors
    /// When its header cannot be read, or what was added cannot be mapped.
    pub fn size(&self) -> Result<u64, Refusal> {
        let mut known = self.header.lock().unwrap_or_else(PoisonError::into_inner);
        let now = file::header(self.shared.file(), &self.path)?;
        self.extend(&mut known, now)
    }

    /// Makes it larger while it is open; it is never made smaller by this.
    ///
    /// # Errors
    /// `NOSPACE`: it is as it was. `DENIED` where it was opened to be read only.
    pub fn grow(&self, size: u64) -> Result<u64, Refusal> {
        if !self.options.writable {
            let text = format!("{} was opened to be read only", self.path.display());
            return Err(Refusal::new(Code::Denied, text));
        }
        let _lock = self.place.lock(&self.folder)?;
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

    /// Holds the partition's lock, or gives it back, at once: for who uses it to agree on who may. Nothing else heeds it, and it goes with
    /// this open partition, however its process ends.
    ///
    /// # Errors
    /// `BUSY` when somebody else holds it otherwise; `DENIED` where it is to be held alone by who may only read.
    pub fn lock(&self, what: Hold) -> Result<(), Refusal> {
        hold(self.shared.file(), LOCK, what).map_err(|e| match e {
            Errno::WOULDBLOCK => {
                let text = format!("another program holds the lock of {}", self.path.display());
                Refusal::new(Code::Busy, text)
            }
            Errno::BADF => {
                let text = format!("{} was opened to be read only", self.path.display());
                Refusal::new(Code::Denied, text)
            }
            e => refused("lock", &self.path)(e),
        })
    }

    /// What its medium promises.
    pub fn promises(&self) -> Promises {
        self.shared.promises()
    }

    /// Whether it may be written.
    pub fn is_writable(&self) -> bool {
        self.options.writable
    }

    /// The partition in the hands of one queue pair.
    pub(crate) fn direct(&self) -> Direct {
        Direct::new(&self.shared)
    }

    pub(crate) fn is(&self, direct: &Direct) -> bool {
        Arc::ptr_eq(&self.shared, direct.shared())
    }
}

fn info(place: &Place, header: &Header) -> Info {
    Info {
        name: place.name.clone(),
        size: header.size,
        owner: header.owner,
        grants: header.grants.clone(),
        damaged: None,
    }
}

fn unmapped(why: MediumError) -> Refusal {
    let kind = match &why {
        MediumError::Io { source, .. } => code(source),
        _ => Code::Internal,
    };
    Refusal::new(kind, why.to_string())
}
