//! What `tarn h5 import` writes. A process that is killed leaves partitions that hold no file yet; the next import knows them, and has
//! them for its own.

use super::store::{Header, PAGE, Store, chunk, chunk_room, start};
use crate::error::{CliError, CliResult};
use crate::partition::refused;
use std::path::{Path, PathBuf};
use tarn_partitions::{Code, Partition, Refusal};
use tarn_types::codes::Exit;
use tarn_types::crc::crc;

/// Where a partition says that an import into it has begun; that counts until it has a header.
const BEGUN: usize = 3072;
const MAGIC: u64 = u64::from_le_bytes(*b"TARNIMPT");
/// Bytes of what it says, with the checksum.
const LENGTH: usize = 32;

/// A file that is written into partitions of its own. Dropped before it is whole, it takes them away.
pub(super) struct Writer {
    /// To be taken away.
    partitions: Vec<PathBuf>,
    store: Option<Store>,
    count: usize,
    block: u64,
    size: u64,
    done: u64,
    identity: u128,
}

impl Writer {
    /// # Errors
    /// When they are there already, or have no room.
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
        let mut there = Vec::new();
        for path in partitions {
            match Partition::create(path, each, Vec::new()) {
                Ok(()) => writer.partitions.push(path.clone()),
                Err(why) if why.code == Code::Exists => there.push((path, why)),
                Err(why) => return Err(refused(why)),
            }
        }
        let left = Unfinished::of(partitions, each);
        // The first one last: the others are known by it.
        for (path, why) in there.into_iter().rev() {
            match left.iter().find(|(at, _)| *at == path) {
                None => return Err(refused(why)),
                Some((_, Unfinished::Empty)) => {}
                Some((_, Unfinished::Begun)) => {
                    Partition::delete(path)
                        .and_then(|()| Partition::create(path, each, Vec::new()))
                        .map_err(refused)?;
                    writer.partitions.push(path.clone());
                }
            }
        }
        writer.begin(partitions).map(|()| writer)
    }

    /// Has them alone, and says in each that an import has begun.
    fn begin(&mut self, partitions: &[PathBuf]) -> CliResult<()> {
        let mut store = Store::open(partitions, self.block, true, chunk_room()).map_err(refused)?;
        let mut is_free = || match store.hold() {
            Ok(()) => Ok(Header::of(&store.page()?).is_none()),
            Err(why) => Err(why),
        };
        let free = is_free();
        if !matches!(free, Ok(true)) {
            // Another import was faster: they are its own.
            self.partitions.clear();
        }
        if !free.map_err(refused)? {
            let text = "another process has written a file there meanwhile";
            return Err(CliError::new(Exit::Busy, text));
        }
        self.partitions = partitions.to_vec();
        self.store = Some(store);
        let said = begun(self.identity);
        (0..partitions.len() as u64)
            .try_for_each(|i| self.put(i * self.block + BEGUN as u64, &said))
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) -> CliResult<()> {
        let store = self.store.as_mut();
        store.map_or(Ok(()), |store| store.write(offset, bytes).map_err(refused))
    }

    /// Appends bytes, at most as many as [`chunk`] says.
    pub(super) fn write(&mut self, bytes: &[u8]) -> CliResult<()> {
        self.put(start(self.count, self.block) + self.done, bytes)?;
        self.done += bytes.len() as u64;
        Ok(())
    }

    /// What is there now is the file.
    pub(super) fn finish(mut self) -> CliResult<()> {
        let count = self.count as u32;
        let header = Header {
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
            let copy = Header {
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

impl Drop for Writer {
    fn drop(&mut self) {
        self.store = None;
        // The first one last: the others are known by it.
        for path in self.partitions.iter().rev() {
            match Partition::delete(path) {
                Err(why) if why.code != Code::NotFound => {
                    crate::print::say!("warning: {}", why.text);
                }
                _ => {}
            }
        }
    }
}

/// What a partition says while an import writes to it.
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

/// What an import that was killed has left of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unfinished {
    /// As a new one would be: nothing is lost with it.
    Empty,
    /// It holds no file, but some of one, perhaps.
    Begun,
}

impl Unfinished {
    /// Those of the partitions that are there and belong to nothing but an import that was killed; none if the first one has a file.
    fn of(partitions: &[PathBuf], size: u64) -> Vec<(&PathBuf, Self)> {
        let mut all = Vec::new();
        let mut first = None;
        for (index, path) in partitions.iter().enumerate() {
            let Ok((page, is_empty)) = look(path, size) else {
                continue;
            };
            let (header, by) = (Header::of(&page), begun_by(&page));
            match (header, by) {
                (None, Some(_)) => all.push((path, Self::Begun)),
                (None, None) if is_empty => all.push((path, Self::Empty)),
                // Headers are written from the last one to the first.
                (Some(header), Some(by))
                    if index > 0 && first == Some(by) && header.identity == by =>
                {
                    all.push((path, Self::Begun));
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
}

/// The first page of a partition, and whether the partition is as [`Partition::create`] makes it.
fn look(path: &Path, size: u64) -> Result<(Vec<u8>, bool), Refusal> {
    let parted = path.parent().zip(path.file_name());
    let info = match parted {
        Some((folder, name)) => Partition::list(folder)?
            .into_iter()
            .find(|info| name == info.name.as_str()),
        None => None,
    };
    let owner = rustix::process::geteuid().as_raw();
    let of_size = size.next_multiple_of(PAGE);
    let is_like_new = info.is_some_and(|info| {
        info.grants.is_empty()
            && info.owner == owner
            && (of_size..of_size + PAGE).contains(&info.size)
    });
    let paths = [path.to_path_buf()];
    let mut store = Store::open(&paths, PAGE, false, chunk_room())?;
    let page = store.page()?;
    if !is_like_new {
        return Ok((page, false));
    }
    let all = store.size()?;
    let mut at = 0;
    while at < all {
        let length = (all - at).min(chunk() as u64) as usize;
        if store.read(at, length)?.iter().any(|byte| *byte != 0) {
            return Ok((page, false));
        }
        at += length as u64;
    }
    Ok((page, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_import_has_begun_is_known_by_its_identity() {
        let mut page = vec![0; PAGE as usize];
        assert_eq!(begun_by(&page), None);
        let said = begun(1 << 100 | 7);
        assert_eq!(said.len(), LENGTH);
        page[BEGUN..BEGUN + LENGTH].copy_from_slice(&said);
        assert_eq!(begun_by(&page), Some(1 << 100 | 7));
        page[BEGUN + 9] ^= 1;
        assert_eq!(begun_by(&page), None);
    }
}
