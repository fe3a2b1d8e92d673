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
use tarn_sys::lock::RangeLockMode;
use tarn_types::grant::Grant;

/// The details of a partition: its size, units and access list.
///
/// # Examples
/// ```
/// use tarn_partitions::{Grant, Grantee, OpenOptions, Partition};
///
/// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
/// let path = folder.path().join("field");
/// let readers = Grant { who: Grantee::Group(100), write: false };
/// Partition::create(&path, 1 << 20, vec![readers])?;
/// let details = Partition::open(&path, OpenOptions::default())?.info()?;
/// assert_eq!((&*details.name, details.size, details.unit), ("field", 1 << 20, 0));
/// assert_eq!((details.grants, details.damaged), (vec![readers], None));
/// # Ok::<(), tarn_partitions::RequestError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionDetails {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// The bytes of a unit that it is written by; 0: it is mapped.
    pub unit: u32,
    /// The number of the user that it belongs to.
    pub owner: u32,
    /// The others that may open it.
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

/// How a partition is opened. The default: to be written, mapped piece by piece, with a handler of SIGBUS.
///
/// # Examples
/// ```
/// use tarn_partitions::{Code, OpenOptions, Partition, RangeLockMode};
///
/// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
/// let path = folder.path().join("field");
/// Partition::create(&path, 4096, Vec::new())?;
/// let reader = Partition::open(&path, OpenOptions { writable: false, ..OpenOptions::default() })?;
/// assert!(!reader.is_writable());
/// assert_eq!(reader.grow(8192).unwrap_err().code, Code::Denied);
/// # Ok::<(), tarn_partitions::RequestError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    /// To be written, too.
    pub writable: bool,
    /// All of it is mapped now. Else memory is mapped piece by piece as it is used, and other media page by
    /// page. A partition in units is not mapped.
    pub populate: bool,
    /// A handler of SIGBUS is installed: pages that are lost fail requests, and do not kill the program.
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

/// An open partition, or several as one. While it is open, or a queue pair has a region of it, nobody deletes
/// it or makes it smaller.
///
/// # Examples
/// ```
/// use tarn_partitions::{Code, OpenOptions, Partition, RangeLockMode};
///
/// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
/// let path = folder.path().join("field");
/// Partition::create(&path, 1 << 20, Vec::new())?;
///
/// let partition = Partition::open(&path, OpenOptions::default())?;
/// assert_eq!(partition.size()?, 1 << 20);
/// assert_eq!(partition.grow(2 << 20)?, 2 << 20);
/// assert_eq!(Partition::delete(&path).unwrap_err().code, Code::Busy);
///
/// // Its lock is for programs that agree on it. It goes with this open partition.
/// partition.lock(RangeLockMode::Alone)?;
/// let other = Partition::open(&path, OpenOptions::default())?;
/// assert_eq!(other.lock(RangeLockMode::Shared).unwrap_err().code, Code::Busy);
/// partition.lock(RangeLockMode::Nothing)?;
/// drop((partition, other));
///
/// Partition::delete(&path)?;
/// assert!(Partition::list(folder.path())?.is_empty());
/// # Ok::<(), tarn_partitions::RequestError>(())
/// ```
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
    /// Creates a partition of `size` bytes, rounded up to whole pages of 4096, all zero. Its space is
    /// reserved. Memory and DAX devices are mapped; all other media are used in units of 4096 bytes or more.
    /// `grants` lists those who may open it besides its user.
    ///
    /// # Errors
    /// - [`Exists`](Code::Exists): there is a partition of this name.
    /// - [`NoSpace`](Code::NoSpace), [`Quota`](Code::Quota): there is no space for it.
    /// - [`Invalid`](Code::Invalid): the name, the size or the access list is malformed.
    /// - [`NotFound`](Code::NotFound), [`Denied`](Code::Denied), [`Io`](Code::Io): the folder cannot be used.
    /// - With a name in a dataspace, also those of [`open`](Self::open) that tarnd gives.
    ///
    /// # Examples
    /// ```
    /// use tarn_partitions::{Code, OpenOptions, Partition};
    ///
    /// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    /// let path = folder.path().join("field");
    /// Partition::create(&path, 5000, Vec::new())?;
    /// assert_eq!(Partition::open(&path, OpenOptions::default())?.size()?, 8192);
    /// assert_eq!(Partition::create(&path, 1, Vec::new()).unwrap_err().code, Code::Exists);
    /// # Ok::<(), tarn_partitions::RequestError>(())
    /// ```
    pub fn create(path: &Path, size: u64, grants: Vec<Grant>) -> Result<(), RequestError> {
        Self::make(path, size, None, grants)
    }

    /// The same, in units of at least `unit` bytes, a power of two of 512 to 16,384, on any medium; with a
    /// `unit` of 0 it is mapped. A change of a part of a unit is atomic: after a crash all of it is there,
    /// or nothing (docs/guide/direct-access.md).
    ///
    /// # Errors
    /// As [`Partition::create`], and [`Invalid`](Code::Invalid) for another unit.
    ///
    /// # Examples
    /// ```
    /// use tarn_partitions::{Code, OpenOptions, Partition};
    ///
    /// let folder = tempfile::tempdir().unwrap();
    /// let path = folder.path().join("table");
    /// Partition::create_units(&path, 1 << 16, 512, Vec::new())?;
    /// let unit = Partition::open(&path, OpenOptions::default())?.info()?.unit;
    /// assert!(unit >= 512 && unit.is_power_of_two()); // larger where the disk's own are
    /// let why = Partition::create_units(&path, 1 << 16, 1000, Vec::new()).unwrap_err();
    /// assert_eq!(why.code, Code::Invalid);
    /// # Ok::<(), tarn_partitions::RequestError>(())
    /// ```
    pub fn create_units(
        path: &Path,
        size: u64,
        unit: u32,
        grants: Vec<Grant>,
    ) -> Result<(), RequestError> {
        Self::make(path, size, Some(unit), grants)
    }

    /// Creates a partition that begins with `first`, at most 4096 bytes, from the moment that it has its
    /// name; zeros follow. Only its user may open it.
    ///
    /// # Errors
    /// As [`Partition::create`], and [`Invalid`](Code::Invalid) for too many bytes.
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

    /// Deletes a partition.
    ///
    /// # Errors
    /// [`Busy`](Code::Busy): somebody has it open. [`NotFound`](Code::NotFound): there is none.
    /// [`Denied`](Code::Denied), [`Io`](Code::Io): the folder cannot be written.
    pub fn delete(path: &Path) -> Result<(), RequestError> {
        match PartitionName::of(path)? {
            PartitionName::Path(path) => {
                let (folder, name) = divide(path)?;
                folder.delete(name)
            }
            PartitionName::Space(within) => within.done(|at| TaskOperation::Remove { at }),
        }
    }

    /// Resizes a partition that nobody has open to `size` bytes, rounded up to whole pages and units. It
    /// keeps the bytes that fit; added bytes are zero.
    ///
    /// # Errors
    /// [`Busy`](Code::Busy): somebody has it open. [`NotFound`](Code::NotFound): there is none.
    /// [`NoSpace`](Code::NoSpace): there is no space. It is as it was then.
    ///
    /// # Examples
    /// ```
    /// use tarn_partitions::{OpenOptions, Partition};
    ///
    /// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    /// let path = folder.path().join("field");
    /// Partition::create(&path, 1 << 20, Vec::new())?;
    /// Partition::resize(&path, 4096)?;
    /// assert_eq!(Partition::list(folder.path())?[0].size, 4096);
    /// # Ok::<(), tarn_partitions::RequestError>(())
    /// ```
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

    /// The partitions of a folder or of a dataspace, by name. A damaged partition is listed with the reason.
    ///
    /// # Errors
    /// [`NotFound`](Code::NotFound), [`Denied`](Code::Denied), [`Io`](Code::Io): the folder cannot be read.
    /// [`Lost`](Code::Lost): its node does not answer.
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

    /// Opens a partition by one of its [names](crate#names).
    ///
    /// # Errors
    /// - [`NotFound`](Code::NotFound): there is none, or no tarnd serves this program.
    /// - [`Denied`](Code::Denied): this user may not open it so.
    /// - [`Busy`](Code::Busy): it is being deleted or made smaller.
    /// - [`Corrupt`](Code::Corrupt): its header is damaged.
    /// - [`NoSpace`](Code::NoSpace): there is no memory to map it.
    /// - [`Invalid`](Code::Invalid): the name is malformed. [`Lost`](Code::Lost): tarnd or its node does not
    ///   answer.
    ///
    /// # Examples
    /// One of another node, by a tarnd on each, so it is not run here:
    /// ```no_run
    /// use tarn_partitions::{OpenOptions, Partition};
    ///
    /// let far = Partition::open("n2:fast/field".as_ref(), OpenOptions::default())?;
    /// println!("{} bytes on n2", far.size()?);
    /// # Ok::<(), tarn_partitions::RequestError>(())
    /// ```
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

    /// Opens several partitions as one, block by block in turn: byte x is in partition (x / `block`) mod n
    /// (Schürmann et al. 2014, section 4.3). Its size is n times the whole blocks of the smallest. The order
    /// and the block are not stored anywhere: each program that opens it names the same.
    ///
    /// # Errors
    /// As [`Partition::open`], and [`Invalid`](Code::Invalid): no partition, more than [`MAX_PARTS`], one of
    /// them twice, or a block that is no multiple of 4096 bytes.
    ///
    /// # Examples
    /// ```
    /// use tarn_partitions::{OpenOptions, Partition};
    ///
    /// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    /// let paths = ["a", "b", "c"].map(|name| folder.path().join(name));
    /// for path in &paths {
    ///     Partition::create(path, 1 << 20, Vec::new())?;
    /// }
    /// let all = Partition::open_cyclic(&paths, 64 << 10, OpenOptions::default())?;
    /// assert_eq!(all.size()?, 3 << 20);
    /// # Ok::<(), tarn_partitions::RequestError>(())
    /// ```
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

    /// Its details now: others may have made it larger. Of several partitions these are the details of the
    /// first, with the size of all.
    ///
    /// # Errors
    /// [`Corrupt`](Code::Corrupt), [`Io`](Code::Io): a header cannot be read. [`Lost`](Code::Lost): its node
    /// does not answer.
    pub fn info(&self) -> Result<PartitionDetails, RequestError> {
        let mut info = self.first.info()?;
        for part in &self.others {
            info.size = info.size.min(part.info()?.size);
        }
        info.size = self.whole(info.size);
        Ok(info)
    }

    /// The bytes that can be used. If others have made it larger, it is larger here from now on.
    ///
    /// # Errors
    /// As [`Partition::info`], and [`NoSpace`](Code::NoSpace) where what was added cannot be mapped.
    pub fn size(&self) -> Result<u64, RequestError> {
        let mut least = self.first.size()?;
        for part in &self.others {
            least = least.min(part.size()?);
        }
        Ok(self.whole(least))
    }

    /// Makes it at least `size` bytes large while it is open, and returns its size. It is never made smaller
    /// by this.
    ///
    /// # Errors
    /// - [`NoSpace`](Code::NoSpace): it is as it was, but for space that some of several partitions have
    ///   reserved already, which the next call uses.
    /// - [`Denied`](Code::Denied): it was opened to be read only.
    /// - [`Unsupported`](Code::Unsupported): this process was forked from the one that opened it.
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

    /// Takes the partition's lock, of several the first one's, or gives it back, without waiting. It is for
    /// programs that agree on it: reads and writes do not look at it. It goes with this open partition,
    /// however its process ends.
    ///
    /// # Errors
    /// - [`Busy`](Code::Busy): another program holds it in a way that excludes this.
    /// - [`Denied`](Code::Denied): it is to be held alone, and the partition was opened to be read only.
    /// - [`Unsupported`](Code::Unsupported): this process was forked from the one that opened the partition.
    pub fn lock(&self, what: RangeLockMode) -> Result<(), RequestError> {
        match self.check() {
            Err(_) if what == RangeLockMode::Nothing => return Ok(()),
            checked => checked?,
        }
        self.first.lock(what)
    }

    /// The promises of its medium about a loss of power; of several partitions, those of the one that promises least.
    ///
    /// # Examples
    /// ```
    /// use tarn_partitions::{OpenOptions, Partition, PowerFail};
    ///
    /// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    /// let path = folder.path().join("field");
    /// Partition::create(&path, 4096, Vec::new())?;
    /// let promises = Partition::open(&path, OpenOptions::default())?.promises();
    /// assert_eq!(promises.power_fail, PowerFail::Lost); // memory: nothing outlives a loss of power
    /// # Ok::<(), tarn_partitions::RequestError>(())
    /// ```
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

    /// The number that tells it from all others that this process has opened.
    pub(crate) fn own(&self) -> u64 {
        self.own
    }
}

/// Partitions that were opened.
static OPENED: AtomicU64 = AtomicU64::new(0);
