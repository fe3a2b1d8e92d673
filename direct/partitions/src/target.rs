//! A partition of this node for a program of another one.

use crate::local::LocalPart;
use crate::store::PartStorage;
use crate::{Code, OpenOptions, RequestError};
use rustix::fd::OwnedFd;
use std::path::Path;
use tarn_media::Now;
use tarn_ports::PowerFail;
use tarn_proto::local::{PartitionInfo, RemotePartition};
use tarn_ring::{Exposed, StorageRequestError, Target};
use tarn_sys::lock::RangeLockMode;

/// A partition that is open for another node: tarnd serves that node's requests by its
/// [`target`](Self::target).
///
/// # Examples
/// ```
/// use tarn_partitions::{PartitionFolder, Serving};
///
/// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
/// let partitions = PartitionFolder::open(folder.path())?;
/// partitions.create("field", 4096, Some(0), 1000, Vec::new())?;
/// let (file, _) = partitions.export_file("field", true)?;
/// let serving = Serving::new(file, "fast/field".as_ref(), true)?;
/// assert_eq!(serving.describe_partition()?.info.bytes, 4096);
///
/// let mut target = serving.target(())?;
/// target.write(8, b"from n2", false).unwrap();
/// let mut read = [0; 7];
/// target.read(8, &mut read).unwrap();
/// assert_eq!(&read, b"from n2");
/// # Ok::<(), tarn_partitions::RequestError>(())
/// ```
#[derive(Debug)]
pub struct Serving(LocalPart);

impl Serving {
    /// A partition whose file [`crate::PartitionFolder::export_file`] has opened; `path` is its name in
    /// messages.
    ///
    /// # Errors
    /// [`Corrupt`](Code::Corrupt) where its header is damaged, [`NoSpace`](Code::NoSpace) where there is no
    /// memory to map it.
    pub fn new(file: OwnedFd, path: &Path, writable: bool) -> Result<Self, RequestError> {
        let options = OpenOptions {
            writable,
            ..OpenOptions::default()
        };
        LocalPart::own(file, path, options).map(Self)
    }

    /// The description that the other node gets.
    ///
    /// # Errors
    /// [`Corrupt`](Code::Corrupt), [`Io`](Code::Io): the header cannot be read.
    pub fn describe_partition(&self) -> Result<RemotePartition, RequestError> {
        Ok(RemotePartition {
            info: PartitionInfo::from(self.0.info()?),
            identity: self.0.identity(),
            persistent: self.0.promises().power_fail != PowerFail::Lost,
            windows: None,
            seal: None,
        })
    }

    /// Gives what does the other node's requests. When it is dropped, the partition is closed, and then
    /// `open` is dropped.
    ///
    /// # Errors
    /// It is used in units, and cannot be opened once more.
    pub fn target(self, open: impl Send + 'static) -> Result<Box<dyn Target>, RequestError> {
        let hands = Now::new(self.0.hands()?, self.0.is_writable());
        Ok(Box::new(ExportTarget {
            hands,
            part: self.0,
            _open: open,
        }))
    }
}

/// An open partition, and the storage that does its requests. Dropped in this order.
struct ExportTarget<T> {
    hands: Now<PartStorage>,
    part: LocalPart,
    _open: T,
}

impl<T: Send> ExportTarget<T> {
    /// Does something, once more where the partition has become larger meanwhile.
    fn done<V>(
        &mut self,
        mut once: impl FnMut(&mut Now<PartStorage>) -> Result<V, StorageRequestError>,
    ) -> Result<V, StorageRequestError> {
        let result = once(&mut self.hands);
        let before = self.hands.size();
        match result {
            Err(StorageRequestError::Invalid) if self.size() > before => once(&mut self.hands),
            result => result,
        }
    }
}

impl<T: Send> Target for ExportTarget<T> {
    fn size(&mut self) -> u64 {
        // One that cannot be looked at is as large as it was.
        let size = self.part.size();
        size.unwrap_or_else(|_| self.hands.size())
    }

    fn read(&mut self, at: u64, to: &mut [u8]) -> Result<(), StorageRequestError> {
        self.done(|hands| hands.read(at, to))
    }

    fn write(&mut self, at: u64, from: &[u8], persistent: bool) -> Result<(), StorageRequestError> {
        self.done(|hands| hands.write(at, from, persistent))
    }

    fn fetch_add(&mut self, at: u64, add: u64) -> Result<u64, StorageRequestError> {
        self.done(|hands| hands.fetch_add(at, add))
    }

    fn compare_swap(
        &mut self,
        at: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64, StorageRequestError> {
        self.done(|hands| hands.compare_swap(at, expected, new))
    }

    fn hold(&mut self, alone: Option<bool>) -> Result<(), StorageRequestError> {
        let what = match alone {
            None => RangeLockMode::Nothing,
            Some(false) => RangeLockMode::Shared,
            Some(true) => RangeLockMode::Alone,
        };
        self.part.lock(what).map_err(|why| match why.code {
            Code::Busy => StorageRequestError::Busy,
            Code::Denied => StorageRequestError::Denied,
            _ => StorageRequestError::Io,
        })
    }

    fn flush(&mut self) -> Result<(), StorageRequestError> {
        self.hands.flush()
    }

    fn file(&self) -> Option<Exposed<'_>> {
        self.part.exposed()
    }
}
