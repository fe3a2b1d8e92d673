//! Objects as readers have them.

use crate::folder::error;
use crate::keys::{ObjectOpener, memory};
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use tarn_checkpoint_core::object::{ObjectFileLayout, TRAILER, Trailer, chunks, entry};
use tarn_checkpoint_core::{CheckpointError, CheckpointErrorCode};
use tarn_media::ReadOnlyMapping;
use tarn_ports::ReadableMedium;
use tarn_types::crc::crc;

/// The facts of a version of an object.
///
/// # Examples
/// ```
/// use tarn_objects::NodeObjectStore;
///
/// let folder = tempfile::tempdir().unwrap();
/// let store = NodeObjectStore::open(Some(folder.path()))?;
/// store.put("mesh", b"0 1 2", "text")?;
/// for info in store.list()? {
///     let state = if info.damaged { "damaged" } else { "whole" };
///     println!("{} {}: {} bytes, {state}, {}", info.key, info.number, info.bytes, info.about);
/// }
/// # Ok::<(), tarn_objects::CheckpointError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The object's name.
    pub key: Box<str>,
    /// Which version, from 1 on; 0 where the folder of its key may not be read.
    pub number: u64,
    /// Bytes of data; 0 where it is damaged.
    pub bytes: u64,
    /// The program's description of it.
    pub about: Box<str>,
    /// Its file does not end as one of this version must, or may not be read: the data cannot be had.
    pub damaged: bool,
    /// Its data are ciphertext where they are stored.
    pub encrypted: bool,
}

impl ObjectInfo {
    /// The description of a version whose data cannot be had.
    pub(crate) fn damaged(key: &str, number: u64) -> Self {
        Self {
            key: key.into(),
            number,
            bytes: 0,
            about: "".into(),
            damaged: true,
            encrypted: false,
        }
    }
}

impl From<&Trailer> for ObjectInfo {
    fn from(trailer: &Trailer) -> Self {
        Self {
            key: trailer.key.clone(),
            number: trailer.number,
            bytes: trailer.length,
            about: trailer.about.clone(),
            damaged: false,
            encrypted: trailer.seal.is_some(),
        }
    }
}

/// A version that is mapped from its file. The data stays while this lives, also when the version is deleted.
///
/// # Examples
/// ```
/// use tarn_objects::NodeObjectStore;
///
/// let folder = tempfile::tempdir().unwrap();
/// let store = NodeObjectStore::open(Some(folder.path()))?;
/// store.put("mesh", b"0 1 2", "")?;
/// let object = store.map("mesh", None)?;
/// object.verify()?; // reads all of it
/// let mut copy = [0; 5];
/// object.copy_to(&mut copy)?; // reads it once, copied and compared
/// assert_eq!(object.bytes(), copy);
///
/// // Any tool finds the data at the beginning of the file.
/// let file = std::fs::read(object.path()).unwrap();
/// assert!(file.starts_with(b"0 1 2"));
/// # Ok::<(), tarn_objects::CheckpointError>(())
/// ```
#[derive(Debug)]
pub struct StoredObject {
    seen: ReadOnlyMapping,
    /// The content of an encrypted one, once it was opened.
    clear: Option<ReadOnlyMapping>,
    trailer: Trailer,
    path: PathBuf,
}

/// The trailer of an object's file; none if it is not whole.
pub(crate) fn trailer(file: &OwnedFd, path: &Path) -> Result<Option<Trailer>, CheckpointError> {
    let stat = fstat(file).map_err(error("examine", path))?;
    let size = stat.st_size as u64;
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let Some(at) = size.checked_sub(TRAILER).filter(|_| regular) else {
        return Ok(None);
    };
    let mut last = [0; TRAILER as usize];
    let mut filled = 0;
    while filled < last.len() {
        match rustix::io::pread(file, &mut last[filled..], at + filled as u64) {
            Ok(0) => return Ok(None),
            Ok(more) => filled += more,
            Err(Errno::INTR) => {}
            Err(e) => return Err(error("read", path)(e)),
        }
    }
    Ok(Trailer::decode(&last, size))
}

impl StoredObject {
    /// Maps an object's file. Of its key, and of this number if one is given.
    pub(crate) fn open(
        file: &OwnedFd,
        path: PathBuf,
        key: &str,
        number: Option<u64>,
    ) -> Result<Self, CheckpointError> {
        let own = |t: &Trailer| *t.key == *key && number.is_none_or(|n| n == t.number);
        let Some(trailer) = trailer(file, &path)?.filter(own) else {
            let text = format!(
                "{} is not a complete version of object {key:?}: delete it, and put or fetch the object again",
                path.display()
            );
            return Err(CheckpointError::new(CheckpointErrorCode::Corrupt, text));
        };
        let seen = ReadOnlyMapping::of(file, &path)?;
        Ok(Self {
            seen,
            clear: None,
            trailer,
            path,
        })
    }

    /// Makes it readable: an encrypted one is opened into memory of this program.
    pub(crate) fn opened(mut self) -> Result<Self, CheckpointError> {
        let Some(wrapped) = &self.trailer.seal else {
            return Ok(self);
        };
        let opening = ObjectOpener::of(&self.trailer, wrapped)?;
        let (file, mut mapped) = memory(self.trailer.length)?;
        for (number, (chunk, (_, proof))) in
            (0..).zip(chunks(self.trailer.length).zip(self.known()?))
        {
            let range = chunk.start as usize..chunk.end as usize;
            let to = &mut mapped.bytes()[range.clone()];
            to.copy_from_slice(&self.file()[range]);
            let proof = proof.ok_or_else(|| self.damaged(chunk.start))?;
            opening.open(&self.trailer, number, &proof, to)?;
        }
        drop(mapped);
        self.clear = Some(ReadOnlyMapping::of(&file, &self.path)?);
        Ok(self)
    }

    /// Its key, number, size and text.
    pub fn info(&self) -> ObjectInfo {
        (&self.trailer).into()
    }

    /// Its file, for programs that map it by other means: the data begins at byte 0.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn identity(&self) -> u128 {
        self.trailer.identity
    }

    /// The whole file.
    fn file(&self) -> &[u8] {
        // SAFETY: a file that was published: nobody may write to it, and its only writer's memory is not the file's any more.
        unsafe { self.seen.bytes() }
    }

    /// The data: as many bytes as were put.
    pub fn bytes(&self) -> &[u8] {
        let all = match &self.clear {
            // SAFETY: memory of this object alone, which was filled before.
            Some(clear) => unsafe { clear.bytes() },
            None => self.file(),
        };
        &all[..self.trailer.length as usize]
    }

    /// The checksum of each chunk, and its proof where it is sealed. The table is verified first.
    fn known(&self) -> Result<impl Iterator<Item = (u64, Option<[u8; 16]>)> + '_, CheckpointError> {
        let sealed = self.trailer.seal.is_some();
        let layout =
            ObjectFileLayout::of(self.trailer.length, sealed).ok_or_else(|| self.damaged(0))?;
        let count = chunks(self.trailer.length).count();
        let entry = entry(sealed) as usize;
        let table = &self.file()[layout.sums as usize..][..entry * count];
        if crc(table) != self.trailer.sum {
            return Err(self.damaged(layout.sums));
        }
        Ok(table.chunks(entry).map(|entry| {
            let (sum, proof) = entry.split_at(8);
            let sum = sum.try_into().map_or(0, u64::from_le_bytes);
            (sum, proof.try_into().ok())
        }))
    }

    fn damaged(&self, at: u64) -> CheckpointError {
        let text = format!(
            "version {} of object {:?} is damaged, from byte {at} of {} on: delete it, and put or fetch the object again",
            self.trailer.number,
            self.trailer.key,
            self.path.display()
        );
        CheckpointError::new(CheckpointErrorCode::Corrupt, text)
    }

    /// Reads all of it, and compares it with its checksums (CRC-64/NVME of each 256 KiB).
    ///
    /// # Errors
    /// [`Corrupt`](CheckpointErrorCode::Corrupt): it is damaged; the message names the first such byte.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        for (chunk, (sum, _)) in chunks(self.trailer.length).zip(self.known()?) {
            if crc(&self.file()[chunk.start as usize..chunk.end as usize]) != sum {
                return Err(self.damaged(chunk.start));
            }
        }
        Ok(())
    }

    /// Copies all of it into `into`, which has exactly as many bytes, and compares the copied bytes with the
    /// checksums.
    ///
    /// # Errors
    /// - [`Invalid`](CheckpointErrorCode::Invalid): `into` has another size.
    /// - [`Corrupt`](CheckpointErrorCode::Corrupt): it is damaged.
    pub fn copy_to(&self, into: &mut [u8]) -> Result<(), CheckpointError> {
        let length = self.trailer.length;
        if into.len() as u64 != length {
            let text = format!(
                "object {:?} has {length} bytes, and the buffer has {}",
                self.trailer.key,
                into.len()
            );
            return Err(CheckpointError::new(CheckpointErrorCode::Invalid, text));
        }
        if self.clear.is_some() {
            into.copy_from_slice(self.bytes());
            return Ok(());
        }
        for (chunk, (sum, _)) in chunks(length).zip(self.known()?) {
            let to = &mut into[chunk.start as usize..chunk.end as usize];
            if self.seen.read(chunk.start, to)? != sum {
                return Err(self.damaged(chunk.start));
            }
        }
        Ok(())
    }
}
