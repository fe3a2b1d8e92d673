//! A rank's part of a version, and where it is read from: this node, another one, or the external store.

use crate::arena::VersionId;
use crate::seal::SealedOrigin;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::time::Duration;
use tarn_ports::{MediumError, Ranks, ReadableMedium, Vault};
use tarn_types::crc::crc;

/// Chunks that are requested of another node at once, and are there within the longest wait.
const AT_ONCE: usize = 256;

/// A version, and the start that it is of. Parts of other starts are not part of it, whatever its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct VersionIdentity {
    pub(super) id: VersionId,
    pub(super) start: u128,
    /// Ranks that wrote it.
    pub(super) ranks: u32,
}

impl VersionIdentity {
    /// A rank's part of it.
    pub(super) fn origin(self, rank: u32) -> SealedOrigin {
        SealedOrigin {
            id: self.id,
            start: self.start,
            rank,
            ranks: self.ranks,
        }
    }
}

/// Bytes on this node, on another, or on the external store.
pub(super) enum VersionSource<'a, V: Vault> {
    Near(V::Seen),
    Far(RemoteMedium<'a>),
    Outside(Box<dyn ReadableMedium + Send + Sync>),
}

impl<V: Vault> ReadableMedium for VersionSource<'_, V> {
    fn size(&self) -> u64 {
        match self {
            Self::Near(seen) => seen.size(),
            Self::Far(far) => far.size(),
            Self::Outside(stored) => stored.size(),
        }
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
        match self {
            Self::Near(seen) => seen.read(at, into),
            Self::Far(far) => far.read(at, into),
            Self::Outside(stored) => stored.read(at, into),
        }
    }

    fn read_chunks(&self, at: u64, into: &mut [u8], chunk: usize) -> Result<Vec<u64>, MediumError> {
        match self {
            Self::Near(seen) => seen.read_chunks(at, into, chunk),
            Self::Far(far) => far.read_chunks(at, into, chunk),
            Self::Outside(stored) => stored.read_chunks(at, into, chunk),
        }
    }
}

/// A medium of another node.
pub(super) struct RemoteMedium<'a> {
    pub(super) ranks: &'a dyn Ranks,
    pub(super) from: u32,
    pub(super) name: Cow<'a, str>,
    pub(super) size: u64,
    pub(super) timeout: Duration,
}

impl ReadableMedium for RemoteMedium<'_> {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
        self.fetch(at, into, &mut |_| ())?;
        Ok(crc(into))
    }

    /// Verifies bytes that have arrived while more are on their way.
    fn read_chunks(&self, at: u64, into: &mut [u8], chunk: usize) -> Result<Vec<u64>, MediumError> {
        let mut all = Vec::with_capacity(into.len().div_ceil(chunk));
        let step = chunk * AT_ONCE;
        for (at, part) in (at..).step_by(step).zip(into.chunks_mut(step)) {
            let size = part.len();
            let mut sums = Vec::new();
            self.fetch(at, part, &mut |there: &[u8]| {
                let whole = match there.len() == size {
                    true => there,
                    false => &there[..there.len() / chunk * chunk],
                };
                let proven = sums.len();
                sums.extend(whole.chunks(chunk).skip(proven).map(crc));
            })?;
            all.append(&mut sums);
        }
        Ok(all)
    }
}

impl RemoteMedium<'_> {
    fn fetch(
        &self,
        at: u64,
        into: &mut [u8],
        arrived: &mut dyn FnMut(&[u8]),
    ) -> Result<(), MediumError> {
        let (name, timeout) = (&self.name, self.timeout);
        let fetched = self
            .ranks
            .fetch(self.from, name, at, into, timeout, arrived);
        fetched.map_err(|e| MediumError::Io {
            doing: "fetch",
            what: name.to_string(),
            source: std::io::Error::other(e.to_string()),
        })
    }
}
