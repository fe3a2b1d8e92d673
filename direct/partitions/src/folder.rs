//! Folders of partitions, and the names in them.

use crate::error::refused;
use crate::file::{self, New, OtherOpeners, PartitionLocation, SUFFIX};
use crate::{Code, PartitionDetails, RequestError};
use rustix::fd::OwnedFd;
use rustix::fs::{Dir, Mode, OFlags, open};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use tarn_queue::header::Header;
use tarn_types::grant::Grant;

/// Bytes of a name; with the suffix it is one of a file.
const MAX_NAME: usize = 200;
/// Names of a folder that are looked at.
const MAX_NAMES: usize = 1 << 16;
/// An open folder of partitions. It stays the same, wherever its path leads later.
#[derive(Debug)]
pub struct PartitionFolder {
    pub(crate) fd: OwnedFd,
    path: PathBuf,
}

impl PartitionFolder {
    /// A folder by its path.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> Result<Self, RequestError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = open(path, flags, Mode::empty()).map_err(refused("open the folder", path))?;
        Ok(Self::opened(fd, path.to_owned()))
    }

    /// One that is open already; `path` is for messages.
    pub fn opened(fd: OwnedFd, path: PathBuf) -> Self {
        Self { fd, path }
    }

    /// Makes a partition of so many bytes, up to whole pages and units, all of zeros; its room is taken. It is written by units of at least
    /// so many bytes, a power of two of 512 to 16,384, or mapped, with 0; with none as its medium is.
    ///
    /// # Errors
    /// `EXISTS`, `NOSPACE` where there is no room, `INVALID` for a bad name, size, unit or list.
    pub fn create(
        &self,
        name: &str,
        size: u64,
        unit: Option<u32>,
        owner: u32,
        grants: Vec<Grant>,
    ) -> Result<(), RequestError> {
        let how = New {
            unit,
            grants,
            first: &[],
        };
        file::make(&self.location(sound(name)?), size, owner, how)
    }

    /// Makes a partition that begins with these bytes once it has its name; it is its user's alone, and used as its medium is.
    ///
    /// # Errors
    /// As [`PartitionFolder::create`], and `INVALID` for more bytes than it has.
    pub fn create_with(
        &self,
        name: &str,
        size: u64,
        owner: u32,
        first: &[u8],
    ) -> Result<(), RequestError> {
        let how = New {
            unit: None,
            grants: Vec::new(),
            first,
        };
        file::make(&self.location(sound(name)?), size, owner, how)
    }

    /// Takes a partition away.
    ///
    /// # Errors
    /// `BUSY` while anybody has it open, `NOTFOUND`.
    pub fn delete(&self, name: &str) -> Result<(), RequestError> {
        file::delete(&self.location(sound(name)?))
    }

    /// Gives a partition that nobody has open another size; what it holds stays, as far as there is room.
    ///
    /// # Errors
    /// `BUSY` while anybody has it open, `NOTFOUND`, `NOSPACE`: it is as it was.
    pub fn resize(&self, name: &str, size: u64) -> Result<(), RequestError> {
        let name = sound(name)?;
        let (file, header) = self.open_file(name, true, OtherOpeners::None)?;
        let path = self.path_of(name);
        if header.unit > 0 {
            // What a loss of power has left must not come to units that are made later.
            let own = file.try_clone().map_err(refused("open", &path))?;
            file::units(own, &header, &path, true, false)?;
        }
        file::resize(&file, &header, size, &path).map(drop)
    }

    /// Makes a partition larger, which others may have open; it is never made smaller by this. What it has then.
    ///
    /// # Errors
    /// `NOTFOUND`, `NOSPACE`: it is as it was.
    pub fn grow(&self, name: &str, size: u64) -> Result<u64, RequestError> {
        let name = sound(name)?;
        let (file, _) = self.open_file(name, true, OtherOpeners::Allowed)?;
        file::grow(&file, size, &self.path_of(name))
    }

    /// A partition's file for another program, and what is known of it. It is open there for as long as the descriptor is.
    ///
    /// # Errors
    /// `NOTFOUND`, `DENIED`, `BUSY` while it is deleted or made smaller, `CORRUPT` where its header is damaged.
    pub fn export_file(
        &self,
        name: &str,
        writable: bool,
    ) -> Result<(OwnedFd, PartitionDetails), RequestError> {
        let name = sound(name)?;
        let (file, header) = self.open_file(name, writable, OtherOpeners::Allowed)?;
        Ok((file, PartitionDetails::of(name, &header)))
    }

    /// What is known of a partition.
    ///
    /// # Errors
    /// `NOTFOUND`, `DENIED`, `CORRUPT` where its header is damaged.
    pub fn look(&self, name: &str) -> Result<PartitionDetails, RequestError> {
        let name = sound(name)?;
        let (_, header) = self.open_file(name, false, OtherOpeners::Unasked)?;
        Ok(PartitionDetails::of(name, &header))
    }

    /// The partitions of the folder, by name.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn list(&self) -> Result<Vec<PartitionDetails>, RequestError> {
        let failed = refused("read", &self.path);
        let mut found = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(&failed)?.take(MAX_NAMES) {
            let entry = entry.map_err(&failed)?;
            let Some(name) = name(entry.file_name().to_bytes()) else {
                continue;
            };
            match self.look(name) {
                Ok(info) => found.push(info),
                Err(why) if why.code == Code::NotFound => {}
                Err(why) => found.push(PartitionDetails {
                    name: name.to_owned(),
                    size: 0,
                    unit: 0,
                    owner: 0,
                    grants: Vec::new(),
                    damaged: Some(why.text),
                }),
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Where the partition of this name is stored.
    fn location<'a>(&'a self, name: &'a str) -> PartitionLocation<'a> {
        PartitionLocation {
            folder: &self.fd,
            path: &self.path,
            name,
        }
    }

    /// A partition's file, for messages.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.location(name).file()
    }

    /// Opens a partition that is there, and holds its lock, if it is to, for as long as the file is open.
    pub(crate) fn open_file(
        &self,
        name: &str,
        writable: bool,
        others: OtherOpeners,
    ) -> Result<(OwnedFd, Header), RequestError> {
        file::open(&self.location(name), writable, others)
    }
}

/// The folder and the name that a path such as `/dev/shm/me/field` is.
pub(crate) fn divide(path: &Path) -> Result<(PartitionFolder, &str), RequestError> {
    let name = sound_in(path.file_name().unwrap_or_default(), path)?;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok((PartitionFolder::open(folder)?, name))
}

/// A name, if it is one.
pub(crate) fn sound(name: &str) -> Result<&str, RequestError> {
    sound_in(OsStr::new(name), Path::new(name))
}

fn sound_in<'n>(name: &'n OsStr, shown: &Path) -> Result<&'n str, RequestError> {
    let name = name.to_str().filter(|name| is_sound(name));
    name.ok_or_else(|| {
        let text = format!(
            "{} is no name of a partition: a folder, and behind it 1 to {MAX_NAME} bytes of UTF-8 without control characters and slashes that do not begin with a dot",
            shown.display()
        );
        RequestError::new(Code::Invalid, text)
    })
}

/// The name that a file's name has.
fn name(file: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(file).ok()?.strip_suffix(SUFFIX)?;
    is_sound(name).then_some(name)
}

fn is_sound(name: &str) -> bool {
    let length = 1..=MAX_NAME;
    let bad = |c: char| c.is_control() || c == '/';
    length.contains(&name.len()) && !name.starts_with('.') && !name.contains(bad)
}
