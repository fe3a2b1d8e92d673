//! Partitions.

use crate::folder::{PartitionFolder, divide};
use crate::local::read_only;
use crate::name::{PartitionName, of_step};
use crate::part::PartitionPart;
use crate::queue::of_parent;
use crate::store::PartitionStorage;
use crate::{Code, RequestError};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tarn_ports::Promises;
use tarn_proto::local::{Allocation, PartitionInfo, TaskOperation};
use tarn_queue::header::Header;
use tarn_queue::{Cyclic, CyclicLayout, MAX_PARTS};
use tarn_sys::lock::RangeLockState;
use tarn_types::grant::Grant;

/// What is known of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionDetails {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Bytes that it is written by; 0: it is mapped.
    pub unit: u32,
    /// The user that it belongs to.
    pub owner: u32,
    /// Who else may have it.
    pub grants: Vec<Grant>,
    /// Why it cannot be used, if it cannot.
    pub damaged: Option<String>,
}

impl PartitionDetails {
    pub(crate) fn of(name: &str, header: &Header) -> Self {
        Self {
            name: name.to_owned(),
            size: header.size,
            unit: header.unit,
            owner: header.owner,
            grants: header.grants.clone(),
            damaged: None,
        }
    }
}

impl From<PartitionInfo> for PartitionDetails {
    fn from(of: PartitionInfo) -> Self {
        Self {
            name: of.name,
            size: of.bytes,
            unit: of.unit,
            owner: of.owner,
            grants: of.grants,
            damaged: of.damaged,
        }
    }
}

impl From<PartitionDetails> for PartitionInfo {
    fn from(info: PartitionDetails) -> Self {
        Self {
            name: info.name,
            bytes: info.size,
            unit: info.unit,
            owner: info.owner,
            grants: info.grants,
            damaged: info.damaged,
        }
    }
}

/// How a partition is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    /// To be written, too.
    pub writable: bool,
    /// All of it is mapped now. Else memory is mapped piece by piece as it is used, and other media page by page. In units there is nothing to
    /// map.
    pub populate: bool,
    /// Pages that are not there any more kill nobody, by a handler of SIGBUS.
    pub guarded: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            writable: true,
            populate: false,
            guarded: true,
        }
    }
}

/// An open partition, or several as one. While it, or a region of it, is there, it is neither deleted nor made smaller.
#[derive(Debug)]
pub struct Partition {
    /// As they were named.
    paths: Vec<PathBuf>,
    first: PartitionPart,
    others: Vec<PartitionPart>,
    /// Its own: by it queue pairs know it again.
    own: u64,
    /// Of several.
    layout: Option<CyclicLayout>,
    options: OpenOptions,
    /// That opened it: its locks are not its forked children's, who have the same open files.
    process: u32,
}

impl Partition {
    /// Makes a partition of so many bytes, up to whole pages, all of zeros; its room is taken. `path` is a folder's, and the name behind
    /// it.
    ///
    /// # Errors
    /// `EXISTS`, `NOSPACE` where there is no room, `INVALID` for a bad name or size.
    pub fn create(path: &Path, size: u64, grants: Vec<Grant>) -> Result<(), RequestError> {
        Self::make(path, size, None, grants)
    }

    /// The same, in units of at least so many bytes, a power of two of 512 to 16,384, whatever the medium is; or mapped, with 0. Without
    /// this, memory and DAX are mapped, and all else is used in units of 4096 bytes or more.
    ///
    /// # Errors
    /// As [`Partition::create`], and `INVALID` for a unit that is none.
    pub fn create_units(
        path: &Path,
        size: u64,
        unit: u32,
        grants: Vec<Grant>,
    ) -> Result<(), RequestError> {
        Self::make(path, size, Some(unit), grants)
    }

    /// Makes a partition that begins with these bytes, at most 4096, from the moment it has its name; zeros are behind them. It is its
    /// user's alone.
    ///
    /// # Errors
    /// As [`Partition::create`], and `INVALID` for too many bytes.
    pub fn create_with(path: &Path, size: u64, first: &[u8]) -> Result<(), RequestError> {
        match PartitionName::of(path)? {
            PartitionName::Path(path) => {
                let (folder, name) = divide(path)?;
                let owner = rustix::process::geteuid().as_raw();
                folder.create_with(name, size, owner, first)
            }
            PartitionName::Space(within) => within.done(|at| TaskOperation::Allocate {
                at,
                bytes: size,
                how: Allocation::MakeWith {
                    first: first.to_owned(),
                },
            }),
        }
    }

    fn make(
        path: &Path,
        size: u64,
        unit: Option<u32>,
        grants: Vec<Grant>,
    ) -> Result<(), RequestError> {
        match PartitionName::of(path)? {
            PartitionName::Path(path) => {
                let (folder, name) = divide(path)?;
                let owner = rustix::process::geteuid().as_raw();
                folder.create(name, size, unit, owner, grants)
            }
            PartitionName::Space(within) => within.done(|at| TaskOperation::Allocate {
                at,
                bytes: size,
                how: Allocation::Make { grants, unit },
            }),
        }
    }

    /// Takes a partition away.
    ///
    /// # Errors
    /// `BUSY` while anybody has it open, `NOTFOUND`.
    pub fn delete(path: &Path) -> Result<(), RequestError> {
        match PartitionName::of(path)? {
            PartitionName::Path(path) => {
                let (folder, name) = divide(path)?;
                folder.delete(name)
            }
            PartitionName::Space(within) => within.done(|at| TaskOperation::Remove { at }),
        }
    }

    /// Gives a partition that nobody has open another size; what it holds stays, as far as there is room.
    ///
    /// # Errors
    /// `BUSY` while anybody has it open, `NOTFOUND`, `NOSPACE`: it is as it was.
    pub fn resize(path: &Path, size: u64) -> Result<(), RequestError> {
        match PartitionName::of(path)? {
            PartitionName::Path(path) => {
                let (folder, name) = divide(path)?;
                folder.resize(name, size)
            }
            PartitionName::Space(within) => within.done(|at| TaskOperation::Allocate {
                at,
                bytes: size,
                how: Allocation::Resize,
            }),
        }
    }

    /// The partitions of a folder, by name.
    ///
    /// # Errors
    /// When it cannot be read, or its node does not answer.
    pub fn list(folder: &Path) -> Result<Vec<PartitionDetails>, RequestError> {
        match PartitionName::of_folder(folder)? {
            PartitionName::Path(path) => PartitionFolder::open(path)?.list(),
            PartitionName::Space(within) => {
                let tarnd = within.tarnd()?;
                let all = tarnd.partitions(within.node, within.space, within.path.as_bytes())?;
                Ok(all.into_iter().map(PartitionDetails::from).collect())
            }
        }
    }

    /// Opens a partition.
    ///
    /// # Errors
    /// `NOTFOUND`, `DENIED`, `BUSY` while it is deleted or made smaller, `CORRUPT` where its header is damaged, `NOSPACE` where there is no
    /// memory to map it.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self, RequestError> {
        let of_step = of_step(path).transpose()?;
        if let Some((pieces, Some(block))) = of_step {
            return Self::open_cyclic(&pieces, block, options);
        }
        let own = of_step.and_then(|(pieces, _)| pieces.into_iter().next());
        let path = own.as_deref().unwrap_or(path);
        Ok(Self::one(
            path,
            PartitionPart::open(path, options)?,
            options,
        ))
    }

    fn one(path: &Path, first: PartitionPart, options: OpenOptions) -> Self {
        Self {
            paths: vec![path.to_owned()],
            first,
            others: Vec::new(),
            own: OPENED.fetch_add(1, Ordering::Relaxed),
            layout: None,
            options,
            process: std::process::id(),
        }
    }

    /// Opens several partitions as one, block by block in turn: byte x of it lies in partition (x / `block`) mod n. What is behind the whole
    /// rows of blocks of the smallest is not used. Its order and its block are not written anywhere: who opens it says them.
    ///
    /// # Errors
    /// As [`Partition::open`], and `INVALID`: no partition, more than [`MAX_PARTS`], one of them twice, or a block that is no multiple of
    /// 4096.
    pub fn open_cyclic<P: AsRef<Path>>(
        paths: &[P],
        block: u64,
        options: OpenOptions,
    ) -> Result<Self, RequestError> {
        let sound = paths
            .split_first()
            .zip(CyclicLayout::new(paths.len(), block));
        let Some(((first, others), layout)) = sound else {
            let text = format!(
                "1 to {MAX_PARTS} partitions are opened as one, in blocks of a multiple of 4096 bytes; not {} in blocks of {block}",
                paths.len()
            );
            return Err(RequestError::new(Code::Invalid, text));
        };
        let open = |path: &P| PartitionPart::open(path.as_ref(), options);
        let cyclic = Self {
            paths: paths.iter().map(|path| path.as_ref().to_owned()).collect(),
            first: open(first)?,
            others: others.iter().map(open).collect::<Result<_, _>>()?,
            own: OPENED.fetch_add(1, Ordering::Relaxed),
            layout: Some(layout),
            options,
            process: std::process::id(),
        };
        let identities: BTreeSet<_> = cyclic.parts().map(PartitionPart::identity).collect();
        match identities.len() == paths.len() {
            true => Ok(cyclic),
            false => {
                let text = "a partition is named twice, or is a copy of another one";
                Err(RequestError::new(Code::Invalid, text))
            }
        }
    }

    fn parts(&self) -> impl Iterator<Item = &PartitionPart> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// What is known of it, now: others may have made it larger. Of several, what is known of the first, but for the bytes: those are of all.
    ///
    /// # Errors
    /// When a header cannot be read.
    pub fn info(&self) -> Result<PartitionDetails, RequestError> {
        let mut info = self.first.info()?;
        for part in &self.others {
            info.size = info.size.min(part.info()?.size);
        }
        info.size = self.whole(info.size);
        Ok(info)
    }

    /// Bytes that can be used. If others have made it larger, it is larger here from now on.
    ///
    /// # Errors
    /// When a header cannot be read, or what was added cannot be mapped; `LOST` when its node does not answer.
    pub fn size(&self) -> Result<u64, RequestError> {
        let mut least = self.first.size()?;
        for part in &self.others {
            least = least.min(part.size()?);
        }
        Ok(self.whole(least))
    }

    /// Makes it larger while it is open; it is never made smaller by this. What it has then.
    ///
    /// # Errors
    /// `NOSPACE`: it is as it was, but for room that some of several have taken already, which the next call uses. `DENIED` where it was
    /// opened to be read only.
    pub fn grow(&self, size: u64) -> Result<u64, RequestError> {
        if !self.options.writable {
            return Err(read_only(&self.paths[0]));
        }
        self.check()?;
        let each = self.layout.map_or(size, |layout| layout.part(size));
        for (path, part) in self.paths.iter().zip(self.parts()) {
            part.grow(path, each)?;
        }
        self.size()
    }

    fn check(&self) -> Result<(), RequestError> {
        match self.process == std::process::id() {
            true => Ok(()),
            false => Err(of_parent("this open partition")),
        }
    }

    fn whole(&self, part: u64) -> u64 {
        self.layout.map_or(part, |layout| layout.size(part))
    }

    /// Holds the partition's lock, of several the first one's, or gives it back, at once: for who uses it to agree on who may. Nothing
    /// else heeds it, and it goes with this open partition, however its process ends.
    ///
    /// # Errors
    /// `UNSUPPORTED` in a forked child, which has nothing of its own to give back. `BUSY` when somebody else holds it otherwise; `DENIED` where it is to be held alone by who may only read.
    pub fn lock(&self, what: RangeLockState) -> Result<(), RequestError> {
        match self.check() {
            Err(_) if what == RangeLockState::Nothing => return Ok(()),
            checked => checked?,
        }
        self.first.lock(what)
    }

    /// What its medium promises; of several, the one that promises least.
    pub fn promises(&self) -> Promises {
        let others = self.others.iter().map(PartitionPart::promises);
        others.fold(self.first.promises(), |one, other| {
            std::cmp::min_by_key(one, other, |promises| promises.power_fail)
        })
    }

    /// Whether it may be written.
    pub fn is_writable(&self) -> bool {
        self.options.writable
    }

    /// The partition in the hands of one queue pair.
    pub(crate) fn store(&self) -> Result<PartitionStorage, RequestError> {
        let Some(layout) = self.layout else {
            return Ok(PartitionStorage::One(self.first.hands()?));
        };
        let parts = self
            .parts()
            .map(PartitionPart::hands)
            .collect::<Result<_, _>>()?;
        let cyclic = Cyclic::new(parts, layout);
        let wrong = || RequestError::new(Code::Internal, "another number of partitions");
        cyclic.map(PartitionStorage::Many).ok_or_else(wrong)
    }

    /// What tells it from all others that this process has opened.
    pub(crate) fn own(&self) -> u64 {
        self.own
    }
}

/// Partitions that were opened.
static OPENED: AtomicU64 = AtomicU64::new(0);
