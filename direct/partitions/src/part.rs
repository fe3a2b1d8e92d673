//! A partition, wherever it is.

use crate::local::LocalPart;
use crate::name::PartitionName;
use crate::remote::RemotePart;
use crate::store::PartStorage;
use crate::{Code, OpenOptions, PartitionDetails, RequestError};
use std::path::Path;
use tarn_ports::Promises;
use tarn_proto::local::{Allocation, TaskOperation};
use tarn_sys::lock::RangeLockMode;

/// An open partition.
#[derive(Debug)]
pub(crate) enum PartitionPart {
    /// Of this node.
    Local(LocalPart),
    /// Of another one.
    Remote(RemotePart),
}

/// Asks whichever it is.
macro_rules! ask {
    ($part:ident, $it:ident => $answer:expr) => {
        match $part {
            PartitionPart::Local($it) => $answer,
            PartitionPart::Remote($it) => $answer,
        }
    };
}

impl PartitionPart {
    /// Opens one by its name.
    pub(crate) fn open(path: &Path, options: OpenOptions) -> Result<Self, RequestError> {
        let within = match PartitionName::of(path)? {
            PartitionName::Path(path) => return LocalPart::open(path, options).map(Self::Local),
            PartitionName::Space(within) => within,
        };
        let tarnd = within.tarnd()?;
        if within.node.is_some_and(|node| node != tarnd.node()) {
            // It asks by a connection of its own: a step's tarnd answers few at once.
            drop(tarnd);
            return RemotePart::open(path, &within, options).map(Self::Remote);
        }
        let file = within.file();
        let opened = tarnd.open_partition(None, within.space, file.as_bytes(), options.writable);
        LocalPart::from_tarnd_file(opened?.0, path, options).map(Self::Local)
    }

    /// Its details now.
    pub(crate) fn info(&self) -> Result<PartitionDetails, RequestError> {
        ask!(self, it => it.info())
    }

    /// Bytes that can be used, now.
    pub(crate) fn size(&self) -> Result<u64, RequestError> {
        ask!(self, it => it.size())
    }

    /// Makes it larger, if it is not as large; its size then. `path` is how it was named.
    pub(crate) fn grow(&self, path: &Path, size: u64) -> Result<u64, RequestError> {
        match (self, PartitionName::of(path)?) {
            (Self::Local(part), PartitionName::Path(_)) => return part.grow(size),
            (_, PartitionName::Space(within)) => within.done(|at| TaskOperation::Allocate {
                at,
                bytes: size,
                how: Allocation::Grow,
            })?,
            (Self::Remote(_), PartitionName::Path(_)) => {
                let text = "a partition of another node has no path";
                return Err(RequestError::new(Code::Internal, text));
            }
        }
        self.size()
    }

    /// Random, its own.
    pub(crate) fn identity(&self) -> u128 {
        ask!(self, it => it.identity())
    }

    /// Holds its lock, or gives it back, at once.
    pub(crate) fn lock(&self, what: RangeLockMode) -> Result<(), RequestError> {
        ask!(self, it => it.lock(what))
    }

    /// The promises of its medium.
    pub(crate) fn promises(&self) -> Promises {
        ask!(self, it => it.promises())
    }

    /// One more pair of hands.
    pub(crate) fn hands(&self) -> Result<PartStorage, RequestError> {
        match self {
            Self::Local(part) => part.hands(),
            Self::Remote(part) => Ok(PartStorage::Remote(Box::new(part.hands()?))),
        }
    }
}
