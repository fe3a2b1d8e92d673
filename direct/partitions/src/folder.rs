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

/// An open folder of partitions, for services that manage them; programs use [`Partition`](crate::Partition).
/// It stays the same folder, wherever its path leads later.
///
/// # Examples
/// ```
/// use tarn_partitions::{Code, PartitionFolder};
///
/// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
/// let folder = PartitionFolder::open(folder.path())?;
/// folder.create("field", 1 << 20, Some(0), 1000, Vec::new())?; // mapped, of user 1000
/// assert_eq!(folder.grow("field", 2 << 20)?, 2 << 20);
/// folder.resize("field", 1 << 20)?;
/// let details = folder.look("field")?;
/// assert_eq!((details.size, details.owner), (1 << 20, 1000));
///
/// let (file, _) = folder.export_file("field", true)?; // open while the descriptor is
/// assert_eq!(folder.delete("field").unwrap_err().code, Code::Busy);
/// drop(file);
/// folder.delete("field")?;
/// assert!(folder.list()?.is_empty());
/// # Ok::<(), tarn_partitions::RequestError>(())
/// ```
#[derive(Debug)]
pub struct PartitionFolder {
    pub(crate) fd: OwnedFd,
    path: PathBuf,
}

impl PartitionFolder {
    /// Opens a folder by its path.
    ///
    /// # Errors
    /// [`NotFound`](Code::NotFound), [`Denied`](Code::Denied), [`Io`](Code::Io): it cannot be opened.
    pub fn open(path: &Path) -> Result<Self, RequestError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = open(path, flags, Mode::empty()).map_err(refused("open the folder", path))?;
        Ok(Self::opened(fd, path.to_owned()))
    }

    /// A folder that is open already; `path` is for messages.
    pub fn opened(fd: OwnedFd, path: PathBuf) -> Self {
        Self { fd, path }
    }

    /// Creates a partition of `size` bytes, rounded up to whole pages and units, all zero, for the user
    /// `owner`. Its space is reserved. It is written in units of at least `unit` bytes, a power of two of 512
    /// to 16,384; mapped with 0; as its medium is with `None`.
    ///
    /// # Errors
    /// [`Exists`](Code::Exists); [`NoSpace`](Code::NoSpace) where there is no space;
    /// [`Invalid`](Code::Invalid) for a malformed name, size, unit or access list.
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

    /// Creates a partition that begins with `first` from the moment that it has its name. Only `owner` may
    /// open it, and it is used as its medium is.
    ///
    /// # Errors
    /// As [`PartitionFolder::create`], and [`Invalid`](Code::Invalid) for more than `size` bytes.
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

    /// Deletes a partition.
    ///
    /// # Errors
    /// [`Busy`](Code::Busy): somebody has it open. [`NotFound`](Code::NotFound): there is none.
    pub fn delete(&self, name: &str) -> Result<(), RequestError> {
        file::delete(&self.location(sound(name)?))
    }

    /// Resizes a partition that nobody has open to `size` bytes. It keeps the bytes that fit; added bytes are zero.
    ///
    /// # Errors
    /// [`Busy`](Code::Busy): somebody has it open. [`NotFound`](Code::NotFound): there is none.
    /// [`NoSpace`](Code::NoSpace): it is as it was.
    pub fn resize(&self, name: &str, size: u64) -> Result<(), RequestError> {
        let name = sound(name)?;
        let (file, header) = self.open_file(name, true, OtherOpeners::None)?;
        let path = self.path_of(name);
        if header.unit > 0 {
            // Torn units after a loss of power must not become part of units that are made later.
            let own = file.try_clone().map_err(refused("open", &path))?;
            file::units(own, &header, &path, true, false)?;
        }
        file::resize(&file, &header, size, &path).map(drop)
    }

    /// Makes a partition, which others may have open, at least `size` bytes large, and returns its size.
    ///
    /// # Errors
    /// [`NotFound`](Code::NotFound): there is none. [`NoSpace`](Code::NoSpace): it is as it was.
    pub fn grow(&self, name: &str, size: u64) -> Result<u64, RequestError> {
        let name = sound(name)?;
        let (file, _) = self.open_file(name, true, OtherOpeners::Allowed)?;
        file::grow(&file, size, &self.path_of(name))
    }

    /// A partition's file for another program, and the partition's details. The partition is open while
    /// the descriptor is.
    ///
    /// # Errors
    /// [`NotFound`](Code::NotFound); [`Denied`](Code::Denied); [`Busy`](Code::Busy) while it is deleted or
    /// made smaller; [`Corrupt`](Code::Corrupt) where its header is damaged.
    pub fn export_file(
        &self,
        name: &str,
        writable: bool,
    ) -> Result<(OwnedFd, PartitionDetails), RequestError> {
        let name = sound(name)?;
        let (file, header) = self.open_file(name, writable, OtherOpeners::Allowed)?;
        Ok((file, PartitionDetails::of(name, &header)))
    }

    /// The details of a partition. Nobody is kept from anything meanwhile.
    ///
    /// # Errors
    /// [`NotFound`](Code::NotFound); [`Denied`](Code::Denied); [`Corrupt`](Code::Corrupt) where its header is
    /// damaged.
    pub fn look(&self, name: &str) -> Result<PartitionDetails, RequestError> {
        let name = sound(name)?;
        let (_, header) = self.open_file(name, false, OtherOpeners::Unasked)?;
        Ok(PartitionDetails::of(name, &header))
    }

    /// The partitions of the folder, by name; at most 65,536 files are looked at.
    ///
    /// # Errors
    /// [`Io`](Code::Io), [`Denied`](Code::Denied): the folder cannot be read.
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

    /// The location of the partition of this name.
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
