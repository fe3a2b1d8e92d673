//! A partition, wherever it is.

use crate::far::FarPart;
use crate::here::HerePart;
use crate::name::Name;
use crate::store::Hands;
use crate::{Code, Info, OpenOptions, Refusal};
use std::path::Path;
use tarn_ports::Promises;
use tarn_proto::local::{Allocation, Kind};
use tarn_sys::lock::Hold;

/// An open partition.
#[derive(Debug)]
pub(crate) enum Part {
    /// Of this node.
    Here(HerePart),
    /// Of another one.
    There(FarPart),
}

/// Asks whichever it is.
macro_rules! ask {
    ($part:ident, $it:ident => $answer:expr) => {
        match $part {
            Part::Here($it) => $answer,
            Part::There($it) => $answer,
        }
    };
}

impl Part {
    /// Opens one by its name.
    pub(crate) fn open(path: &Path, options: OpenOptions) -> Result<Self, Refusal> {
        let within = match Name::of(path)? {
            Name::Path(path) => return HerePart::open(path, options).map(Self::Here),
            Name::Space(within) => within,
        };
        let tarnd = within.tarnd()?;
        if within.node.is_some_and(|node| node != tarnd.node()) {
            // It asks by a connection of its own: a step's tarnd answers few at once.
            drop(tarnd);
            return FarPart::open(path, &within, options).map(Self::There);
        }
        let file = within.file();
        let lent = tarnd.open_partition(None, within.space, file.as_bytes(), options.writable);
        HerePart::lent(lent?.0, path, options).map(Self::Here)
    }

    /// What is known of it, now.
    pub(crate) fn info(&self) -> Result<Info, Refusal> {
        ask!(self, it => it.info())
    }

    /// Bytes that can be used, now.
    pub(crate) fn size(&self) -> Result<u64, Refusal> {
        ask!(self, it => it.size())
    }

    /// Makes it larger, if it is not as large; its size then. `path` is how it was named.
    pub(crate) fn grow(&self, path: &Path, size: u64) -> Result<u64, Refusal> {
        match (self, Name::of(path)?) {
            (Self::Here(part), Name::Path(_)) => return part.grow(size),
            (_, Name::Space(within)) => within.done(|at| Kind::Allocate {
                at,
                bytes: size,
                how: Allocation::Grow,
            })?,
            (Self::There(_), Name::Path(_)) => {
                let text = "a partition of another node has no path";
                return Err(Refusal::new(Code::Internal, text));
            }
        }
        self.size()
    }

    /// Random, its own.
    pub(crate) fn identity(&self) -> u128 {
        ask!(self, it => it.identity())
    }

    /// Holds its lock, or gives it back, at once.
    pub(crate) fn lock(&self, what: Hold) -> Result<(), Refusal> {
        ask!(self, it => it.lock(what))
    }

    /// What its medium promises.
    pub(crate) fn promises(&self) -> Promises {
        ask!(self, it => it.promises())
    }

    /// One more pair of hands.
    pub(crate) fn hands(&self) -> Result<Hands, Refusal> {
        match self {
            Self::Here(part) => part.hands(),
            Self::There(part) => Ok(Hands::There(Box::new(part.hands()?))),
        }
    }
}
