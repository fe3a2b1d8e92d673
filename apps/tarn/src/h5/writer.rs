//! The writer of `tarn h5 import`. A process that is killed leaves partitions that hold no file yet; the next import knows them
//! by their mark, and replaces them. A partition without the mark is the user's: the import refuses it.

use super::store::{
    Hdf5PartitionHeader, Hdf5PartitionIo, PAGE, allocate_chunk_buffer, allocate_page_buffer, start,
};
use crate::error::{CliError, CliResult};
use crate::partition::refused;
use std::path::PathBuf;
use tarn_partitions::{Code, Partition, RequestError};
use tarn_types::codes::Exit;
use tarn_types::crc::crc;

/// The offset of the mark that an import into a partition has begun; it counts until there is a header.
const BEGUN: usize = 3072;
const MAGIC: u64 = u64::from_le_bytes(*b"TARNIMPT");
/// Bytes of the mark, with the checksum.
const LENGTH: usize = 32;

/// A file that is written into partitions of its own. Dropped before it is whole, it takes them away.
pub(super) struct Hdf5FileWriter {
    /// To be taken away.
    partitions: Vec<PathBuf>,
    store: Option<Hdf5PartitionIo>,
    count: usize,
    block: u64,
    size: u64,
    done: u64,
    identity: u128,
}

impl Hdf5FileWriter {
    /// # Errors
    /// When they are there already, or have no space.
    pub(super) fn create(partitions: &[PathBuf], block: u64, size: u64) -> CliResult<Self> {
        let mut identity = [0; 16];
        let random = rustix::rand::getrandom(&mut identity, rustix::rand::GetRandomFlags::empty());
        random.map_err(|e| CliError::new(Exit::Internal, e))?;
        let mut writer = Self {
            partitions: Vec::new(),
            store: None,
            count: partitions.len(),
            block,
            size,
            done: 0,
            identity: u128::from_le_bytes(identity),
        };
        let count = partitions.len() as u64;
        let each = match count {
            1 => PAGE + size,
            _ if block == 0 || !block.is_multiple_of(PAGE) => {
                let text = "--block must be a multiple of 4 KiB";
                return Err(CliError::new(Exit::Usage, text));
            }
            count => (1 + size.div_ceil(count * block)) * block,
        };
        // With it from the beginning: a partition without it is never an import's.
        let mut first = vec![0; BEGUN];
        first.extend(begun(writer.identity));
        let mut there = Vec::new();
        for path in partitions {
            match Partition::create_with(path, each, &first) {
                Ok(()) => writer.partitions.push(path.clone()),
                Err(why) if why.code == Code::Exists => there.push((path, why)),
                Err(why) => return Err(refused(why)),
            }
        }
        let left = unfinished(partitions);
        // The first one last: the others are known by it.
        for (path, why) in there.into_iter().rev() {
            if !left.contains(&path) {
                return Err(refused(why));
            }
            Partition::delete(path)
                .and_then(|()| Partition::create_with(path, each, &first))
                .map_err(refused)?;
            writer.partitions.push(path.clone());
        }
        // In their order: see `drop`.
        writer.partitions = partitions.to_vec();
        writer.begin(partitions).map(|()| writer)
    }

    /// Has them alone, if they are still its own.
    fn begin(&mut self, partitions: &[PathBuf]) -> CliResult<()> {
        let mut store =
            Hdf5PartitionIo::open(partitions, self.block, true, allocate_chunk_buffer())
                .map_err(refused)?;
        let mut is_own = || -> Result<bool, RequestError> {
            for i in 0..partitions.len() as u64 {
                let page = store.read(i * self.block, PAGE as usize)?;
                if begun_by(&page) != Some(self.identity) {
                    return Ok(false);
                }
            }
            store.hold()?;
            Ok(Hdf5PartitionHeader::of(&store.page()?).is_none())
        };
        if !is_own().map_err(refused)? {
            let text = "another process has written a file there meanwhile";
            return Err(CliError::new(Exit::Busy, text));
        }
        self.store = Some(store);
        Ok(())
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) -> CliResult<()> {
        let store = self.store.as_mut();
        store.map_or(Ok(()), |store| store.write(offset, bytes).map_err(refused))
    }

    /// Appends bytes, at most as many as [`chunk`](super::store::chunk) says.
    pub(super) fn write(&mut self, bytes: &[u8]) -> CliResult<()> {
        self.put(start(self.count, self.block) + self.done, bytes)?;
        self.done += bytes.len() as u64;
        Ok(())
    }

    /// Writes the headers: from then on the partitions hold the file.
    pub(super) fn finish(mut self) -> CliResult<()> {
        let count = self.count as u32;
        let header = Hdf5PartitionHeader {
            number: 1,
            identity: self.identity,
            eof: self.size,
            block: if count == 1 { PAGE } else { self.block },
            count,
            index: 0,
        };
        // The first says that there is a file.
        for index in (0..count).rev() {
            let eof = if index == 0 { header.eof } else { 0 };
            let copy = Hdf5PartitionHeader {
                index,
                eof,
                ..header
            }
            .encode();
            self.put(u64::from(index) * self.block, &copy)?;
        }
        self.partitions.clear();
        Ok(())
    }
}

impl Drop for Hdf5FileWriter {
    fn drop(&mut self) {
        self.store = None;
        // The first one last: the others are known by it.
        for path in self.partitions.iter().rev() {
            let deleted = first_page(path).and_then(|page| match begun_by(&page) {
                Some(by) if by == self.identity => Partition::delete(path),
                // Another process has made one of this name meanwhile.
                _ => Ok(()),
            });
            match deleted {
                Err(why) if why.code != Code::NotFound => {
                    crate::print::message!("warning: {}", why.text);
                }
                _ => {}
            }
        }
    }
}

/// The mark of a partition while an import writes to it.
fn begun(identity: u128) -> Vec<u8> {
    let mut bytes = MAGIC.to_le_bytes().to_vec();
    bytes.extend(identity.to_le_bytes());
    bytes.extend(crc(&bytes).to_le_bytes());
    bytes
}

/// The identity of the file that an import has begun to write.
fn begun_by(page: &[u8]) -> Option<u128> {
    let bytes = page.get(BEGUN..BEGUN + LENGTH)?;
    let identity = u128::from_le_bytes(*bytes.get(8..)?.first_chunk()?);
    (bytes == begun(identity)).then_some(identity)
}

/// Those of the partitions that are there and belong to nothing but an import that was killed: they hold no file, but some of one,
/// perhaps. None if the first one is not such.
fn unfinished(partitions: &[PathBuf]) -> Vec<&PathBuf> {
    let mut all = Vec::new();
    let mut first = None;
    for (index, path) in partitions.iter().enumerate() {
        let Ok(page) = first_page(path) else {
            continue;
        };
        let by = begun_by(&page);
        match (Hdf5PartitionHeader::of(&page), by) {
            (None, Some(_)) => all.push(path),
            // Headers are written from the last one to the first.
            (Some(header), Some(by)) if index > 0 && first == Some(by) && header.identity == by => {
                all.push(path);
            }
            _ if index == 0 => return Vec::new(),
            _ => {}
        }
        if index == 0 {
            first = by;
        }
    }
    all
}

fn first_page(path: &PathBuf) -> Result<Vec<u8>, RequestError> {
    Hdf5PartitionIo::open(
        std::slice::from_ref(path),
        PAGE,
        false,
        allocate_page_buffer(),
    )?
    .page()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    #[test]
    fn what_an_import_has_begun_is_known_by_its_identity() {
        let mut page = vec![0; PAGE as usize];
        assert_eq!(begun_by(&page), None);
        let encoded = begun(1 << 100 | 7);
        assert_eq!(encoded.len(), LENGTH);
        page[BEGUN..BEGUN + LENGTH].copy_from_slice(&encoded);
        assert_eq!(begun_by(&page), Some(1 << 100 | 7));
        page[BEGUN + 9] ^= 1;
        assert_eq!(begun_by(&page), None);
    }

    fn create(path: &Path) -> CliResult<Hdf5FileWriter> {
        Hdf5FileWriter::create(&[path.to_path_buf()], 0, 10_000)
    }

    #[test]
    fn only_what_carries_the_mark_of_an_import_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("field");
        let inode = || std::fs::metadata(folder.path().join("field.partition")).map(|m| m.ino());
        Partition::create(&path, PAGE + 10_000, Vec::new()).unwrap();
        let users = inode().unwrap();
        assert!(create(&path).is_err());
        assert_eq!(inode().unwrap(), users);
        Partition::delete(&path).unwrap();
        // As a process leaves it that was killed as soon as there was a partition.
        let mut first = vec![0; BEGUN];
        first.extend(begun(7));
        Partition::create_with(&path, PAGE + 10_000, &first).unwrap();
        let writer = create(&path).unwrap();
        let by = begun_by(&first_page(&path).unwrap());
        assert_eq!(by, Some(writer.identity));
        drop(writer);
        assert!(inode().is_err());
    }

    #[test]
    fn an_import_that_fails_takes_away_its_own_partitions_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("field");
        let mut writer = create(&path).unwrap();
        writer.store = None;
        Partition::delete(&path).unwrap();
        Partition::create(&path, PAGE, Vec::new()).unwrap();
        drop(writer);
        assert!(folder.path().join("field.partition").exists());
    }
}
