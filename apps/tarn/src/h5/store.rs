//! An HDF5 file in a partition, or in several. `plugins/hdf5` reads and writes the same; docs/reference/formats.md says what is stored where.

use crate::error::{CliError, CliResult};
use crate::partition::refused;
use std::cell::Cell;
use std::path::PathBuf;
use std::time::Duration;
use tarn_partitions::{
    Code, Op, OpenOptions, Options, Partition, PartitionQueue, ProgramMemory, QueueRegionId,
    RangeLockMode, RequestError, Sqe,
};
use tarn_types::codes::Exit;
use tarn_types::crc::crc;

/// Bytes of all that stands before a file.
pub(super) const PAGE: u64 = 4096;
/// Bytes of a copy of the header, of which the last eight are its checksum.
const COPY: usize = 128;
/// The offset of the second copy.
const SECOND: usize = 2048;
/// The offset of the count of changes.
const CHANGES: usize = 1024;
/// Bytes that are copied at once.
const CHUNK: u64 = 8 << 20;
/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(60);
const MAGIC: u64 = u64::from_le_bytes(*b"TARNHDF5");
const VERSION: u64 = 1;

/// The header before a file in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hdf5PartitionHeader {
    /// Of this copy; the higher one holds.
    pub(super) number: u64,
    pub(super) identity: u128,
    /// Bytes of the file.
    pub(super) eof: u64,
    /// Bytes in one of several partitions before it is the next one's turn.
    pub(super) block: u64,
    /// Partitions that hold the file.
    pub(super) count: u32,
    /// Which of them this is.
    pub(super) index: u32,
}

impl Hdf5PartitionHeader {
    fn copy(page: &[u8]) -> Option<Self> {
        let (copy, sum) = page.get(..COPY)?.split_at(COPY - 8);
        let word = |at: usize| Some(u64::from_le_bytes(*copy.get(8 * at..)?.first_chunk()?));
        let sound = word(0)? == MAGIC && word(1)? == VERSION && crc(copy).to_le_bytes() == sum;
        let last = word(7)?;
        sound.then_some(Self {
            number: word(2)?,
            identity: u128::from(word(3)?) | u128::from(word(4)?) << 64,
            eof: word(5)?,
            block: word(6)?,
            count: last as u32,
            index: (last >> 32) as u32,
        })
    }

    /// That of a partition, by its first page.
    pub(super) fn of(page: &[u8]) -> Option<Self> {
        let copies = [Self::copy(page), page.get(SECOND..).and_then(Self::copy)];
        copies.into_iter().flatten().max_by_key(|copy| copy.number)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let last = u64::from(self.count) | u64::from(self.index) << 32;
        let words = [MAGIC, VERSION, self.number].into_iter();
        let words = words.chain([self.identity as u64, (self.identity >> 64) as u64]);
        let words = words.chain([self.eof, self.block, last]);
        let mut copy: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        copy.resize(COPY - 8, 0);
        copy.extend(crc(&copy).to_le_bytes());
        copy
    }
}

/// How often a file was changed.
pub(super) fn changes(page: &[u8]) -> u64 {
    let word = page.get(CHANGES..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u64::from_le_bytes(*word))
}

/// Memory that copies go through. As long as the program, which does one of these commands.
pub(super) type Hdf5CopyBuffer = &'static [Cell<u8>];

/// A buffer for the page before a file.
pub(super) fn allocate_page_buffer() -> Hdf5CopyBuffer {
    Box::leak(vec![Cell::new(0); PAGE as usize].into())
}

pub(super) fn allocate_chunk_buffer() -> Hdf5CopyBuffer {
    Box::leak(vec![Cell::new(0); CHUNK as usize].into())
}

/// Partitions in the hands of this program.
pub(super) struct Hdf5PartitionIo {
    partition: Partition,
    queue: PartitionQueue,
    memory: QueueRegionId,
    region: QueueRegionId,
    cells: Hdf5CopyBuffer,
}

impl Hdf5PartitionIo {
    /// # Errors
    /// When one cannot be opened.
    pub(super) fn open(
        partitions: &[PathBuf],
        block: u64,
        writable: bool,
        cells: Hdf5CopyBuffer,
    ) -> Result<Self, RequestError> {
        let options = OpenOptions {
            writable,
            ..OpenOptions::default()
        };
        let partition = match partitions {
            [one] => Partition::open(one, options)?,
            several => Partition::open_cyclic(several, block, options)?,
        };
        let mut queue = PartitionQueue::new(
            1,
            Options {
                volatile: true,
                ..Options::default()
            },
        )?;
        let size = partition.size()?;
        Ok(Self {
            memory: queue.register_memory(ProgramMemory::of(cells))?,
            region: queue.register(&partition, 0, size, writable)?,
            partition,
            queue,
            cells,
        })
    }

    /// One request, from its doorbell to its end.
    fn ask(&mut self, op: Op, offset: u64, length: usize) -> Result<(), RequestError> {
        self.queue.prepare(Sqe {
            op: op as u8,
            memory: self.memory,
            storage: self.region,
            address: self.cells.as_ptr().addr() as u64,
            offset,
            length: length as u64,
            ..Sqe::default()
        });
        // On a disk, and on another node, it does not end within its doorbell.
        self.queue.wait(1, TIMEOUT)?;
        match self.queue.reap().map(|end| end.code) {
            Some(0) => Ok(()),
            Some(code) => {
                let code = Code::ALL.iter().find(|c| c.number() == code);
                let code = code.copied().unwrap_or(Code::Internal);
                Err(RequestError::new(code, code.text()))
            }
            None => Err(RequestError::new(Code::Internal, "a request has no end")),
        }
    }

    pub(super) fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, RequestError> {
        self.ask(Op::Read, offset, length)?;
        Ok(self.cells.iter().take(length).map(Cell::get).collect())
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RequestError> {
        self.cells
            .iter()
            .zip(bytes)
            .for_each(|(cell, byte)| cell.set(*byte));
        self.ask(Op::Write, offset, bytes.len())
    }

    /// The page before the file.
    pub(super) fn page(&mut self) -> Result<Vec<u8>, RequestError> {
        self.read(0, PAGE as usize)
    }

    /// Keeps writers out for as long as this is open.
    pub(super) fn share(&self) -> Result<(), RequestError> {
        self.partition.lock(RangeLockMode::Shared)
    }

    /// Keeps everybody else out for as long as this is open.
    pub(super) fn hold(&self) -> Result<(), RequestError> {
        self.partition.lock(RangeLockMode::Alone)
    }
}

/// The offset of a file in its partitions.
pub(super) fn start(count: usize, block: u64) -> u64 {
    match count {
        1 => PAGE,
        several => several as u64 * block,
    }
}

/// The file that is stored in partitions; no writer has it meanwhile.
pub(super) struct Hdf5FileReader {
    store: Hdf5PartitionIo,
    start: u64,
    /// Bytes of the file.
    pub(super) size: u64,
}

impl Hdf5FileReader {
    /// # Errors
    /// When there is none, it is written to, or these are not its partitions.
    pub(super) fn open(partitions: &[PathBuf]) -> CliResult<Self> {
        let first = partitions.first().cloned().unwrap_or_default();
        let buffer = allocate_chunk_buffer();
        let header = header(&first, buffer)?;
        let count = u32::try_from(partitions.len()).unwrap_or(u32::MAX);
        if (header.count, header.index) != (count, 0) {
            let text = format!(
                "{} is number {} of {} partitions that hold a file: name all of them, in their order",
                first.display(),
                header.index + 1,
                header.count
            );
            return Err(CliError::new(Exit::Usage, text));
        }
        for (index, path) in (0..).zip(partitions) {
            let other = self::header(path, buffer)?;
            if (other.identity, other.index) != (header.identity, index) {
                let text = format!("{} is not number {} of them", path.display(), index + 1);
                return Err(CliError::new(Exit::Usage, text));
            }
        }
        let mut store =
            Hdf5PartitionIo::open(partitions, header.block, false, buffer).map_err(refused)?;
        store.share().map_err(refused)?;
        // It may have been changed before it was locked.
        let page = store.page().map_err(refused)?;
        let header = Hdf5PartitionHeader::of(&page).unwrap_or(header);
        Ok(Self {
            store,
            start: start(partitions.len(), header.block),
            size: header.eof,
        })
    }

    /// The bytes from a place on, some of them.
    pub(super) fn read(&mut self, at: u64) -> CliResult<Vec<u8>> {
        let length = (self.size - at).min(CHUNK);
        let bytes = self.store.read(self.start + at, length as usize);
        bytes.map_err(refused)
    }
}

/// The header of a partition that holds a file.
///
/// # Errors
/// When there is none.
fn header(path: &PathBuf, buffer: Hdf5CopyBuffer) -> CliResult<Hdf5PartitionHeader> {
    let mut store =
        Hdf5PartitionIo::open(std::slice::from_ref(path), PAGE, false, buffer).map_err(refused)?;
    let page = store.page().map_err(refused)?;
    Hdf5PartitionHeader::of(&page).ok_or_else(|| {
        let text = format!(
            "{} holds no HDF5 file, or the header of one that is damaged, or of a newer version of tarn",
            path.display()
        );
        CliError::new(Exit::State, text)
    })
}

/// Bytes that are appended at once, at most.
pub(super) fn chunk() -> usize {
    CHUNK as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_of_the_higher_number_holds_if_it_is_whole() {
        let header = Hdf5PartitionHeader {
            number: 7,
            identity: 3 << 100 | 5,
            eof: 12345,
            block: 4096,
            count: 2,
            index: 1,
        };
        let mut page = vec![0; PAGE as usize];
        assert_eq!(Hdf5PartitionHeader::of(&page), None);
        page[..COPY].copy_from_slice(&header.encode());
        assert_eq!(Hdf5PartitionHeader::of(&page), Some(header));
        let newer = Hdf5PartitionHeader {
            number: 8,
            ..header
        };
        page[SECOND..SECOND + COPY].copy_from_slice(&newer.encode());
        assert_eq!(Hdf5PartitionHeader::of(&page), Some(newer));
        page[SECOND + 40] ^= 1;
        assert_eq!(Hdf5PartitionHeader::of(&page), Some(header));
        page[CHANGES] = 9;
        assert_eq!(changes(&page), 9);
    }
}
