//! The options of a session, and the properties of each object.

use std::path::PathBuf;
use std::time::Duration;
use tarn_checkpoint_core::{PersistenceLevel, Replicate, Shape, StagingShare};

/// Longest wait for other ranks, unless set otherwise.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How a session begins. Where a field is `None`, the environment's value counts, then the default.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tarn_checkpoint::{Options, Replicate, StagingShare};
///
/// // Rank 3 of 16, with half of each version staged, and all of every fourth version on one other node.
/// let options = Options {
///     rank: 3,
///     ranks: 16,
///     run: Some("heat".into()),
///     tier: Some("/nvme/me".into()),
///     staging: Some(StagingShare::Half),
///     replicate: Replicate::Copies(1),
///     replicate_every: 4,
///     timeout: Duration::from_secs(120),
///     ..Options::default()
/// };
/// assert!(options.rank < options.ranks);
///
/// // The default is the only rank of a program.
/// let only = Options::default();
/// assert_eq!((only.rank, only.ranks, only.timeout), (0, 1, Duration::from_secs(60)));
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    /// Which rank this is: less than `ranks`.
    pub rank: u32,
    /// The number of ranks: at most 16,384.
    pub ranks: u32,
    /// Copies of the staged bytes, each on another node: at most [`MAX_REPLICAS`](crate::MAX_REPLICAS); else
    /// one if the ranks are on several nodes.
    pub replicas: Option<u32>,
    /// The program's name on this node, 1 to 200 bytes; else `$TARN_PHX_RUN`, or "phx".
    pub run: Option<String>,
    /// A folder on the persistent tier; else `$TARN_PHX_TIER`.
    pub tier: Option<PathBuf>,
    /// A folder in memory; else `$TARN_PHX_MEMORY`, or /dev/shm.
    pub memory: Option<PathBuf>,
    /// HOST:PORT of rank 0, where ranks are on several nodes; else `$TARN_PHX_MEET`, or all are on this node.
    pub meet: Option<String>,
    /// A file with 64 hexadecimal digits that only this user can read; else `$TARN_PHX_KEY`.
    pub key: Option<PathBuf>,
    /// How bytes go to ranks of other nodes and come back: `tcp`, `libfabric:PROVIDER`, or `libfabric` for
    /// the best provider that there is; else `$TARN_PHX_TRANSPORT`, or `tcp`. Where that is not available it is
    /// TCP, and the next commit reports it.
    pub transport: Option<String>,
    /// A slower persistent tier that is emulated; else `$TARN_PHX_PROFILE`, or none.
    pub profile: Option<String>,
    /// The bytes to stage; else the best for this tier.
    pub staging: Option<StagingShare>,
    /// A buddy on the same node will do (for tests).
    pub same_node: bool,
    /// How versions are kept on other nodes too, once they are durable.
    pub replicate: Replicate,
    /// `replicate` applies to every version whose number is a multiple of this.
    pub replicate_every: u64,
    /// The longest wait for other ranks: 60 s by default.
    pub timeout: Duration,
    /// Whether a thread copies in the background.
    pub helper: bool,
    /// Processors that it may use; none: those of the program.
    pub processors: Vec<usize>,
    /// Bytes that were copied ahead are compared at the commit: finds writes that nobody sees.
    pub audit: bool,
    /// Writes are tracked by [`Tracker::by_mprotect`](tarn_dirty_pages::Tracker::by_mprotect), even if the
    /// kernel has a mechanism: a handler of SIGSEGV is installed.
    pub mprotect: bool,
    /// The content of objects is encrypted wherever versions are stored, with this user's key (`tarn key new`);
    /// else where `$TARN_PHX_ENCRYPT` is 1. Versions in clear are refused then, unless `$TARN_PHX_CLEAR` is 1.
    pub encrypt: bool,
    /// A folder on a store that outlives the nodes; else `$TARN_PHX_EXTERNAL`, or there is none.
    pub external: Option<PathBuf>,
    /// Versions from one that is flushed to the next; else `$TARN_PHX_FLUSH_EVERY`, or none is.
    pub flush_every: Option<u64>,
    /// Bytes a second that are written to it and read back; else `$TARN_PHX_FLUSH_RATE`, such as 200MiB/s, or
    /// as many as it takes.
    pub flush_rate: Option<u64>,
}

impl Default for Options {
    /// The only rank of a program.
    fn default() -> Self {
        Self {
            rank: 0,
            ranks: 1,
            replicas: None,
            run: None,
            tier: None,
            memory: None,
            meet: None,
            key: None,
            transport: None,
            profile: None,
            staging: None,
            same_node: false,
            replicate: Replicate::None,
            replicate_every: 1,
            timeout: TIMEOUT,
            helper: true,
            processors: Vec::new(),
            audit: false,
            mprotect: false,
            encrypt: false,
            external: None,
            flush_every: None,
            flush_rate: None,
        }
    }
}

/// Whether an object is copied ahead of commits (Fernando et al. 2016, section III).
///
/// # Examples
/// ```
/// use tarn_checkpoint::{Precopy, Properties};
///
/// // A device writes to this object, which the library cannot see.
/// let dma = Properties { precopy: Precopy::Never, ..Properties::default() };
/// assert_ne!(dma.precopy, Precopy::default());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precopy {
    /// It is not: devices or other processes write to it.
    Never,
    /// If it is large, of this process alone, and it is learned that it pays.
    #[default]
    WherePays,
    /// As soon as possible.
    Always,
}

/// The properties of an object. A version is complete or it does not exist: of `versions`, `persistence` and
/// `replicas` the most that any object requires counts, for all that is committed while that object exists.
///
/// # Examples
/// ```
/// use tarn_checkpoint::{PersistenceLevel, Properties, Shape};
///
/// // Three versions are kept beside the newest, each on the tier when its commit returns.
/// let field = Properties {
///     versions: 3,
///     persistence: PersistenceLevel::Durable,
///     ..Properties::default()
/// };
/// // This rank's box of a 2-d array of 1000 x 1000: rows 250 to 499 with a ghost row at each end, all columns.
/// let part = Properties {
///     shape: Shape::Block(vec![[1000, 249, 252, 1], [1000, 0, 1000, 0]]),
///     ..field.clone()
/// };
/// assert_eq!(Properties::default().versions, 1);
/// assert_eq!(part.versions, field.versions);
/// ```
#[derive(Debug, Clone)]
pub struct Properties {
    /// It is not part of checkpoints.
    pub transient: bool,
    /// Whether it is copied ahead.
    pub precopy: Precopy,
    /// How many versions are kept beside the newest: 1 to 13.
    pub versions: usize,
    /// The level of a version when [`CheckpointSession::commit`](crate::CheckpointSession::commit)
    /// returns. From [`PersistenceLevel::Durable`] on nothing is staged; for a higher level the commit waits
    /// as [`CheckpointSession::wait`](crate::CheckpointSession::wait) does.
    pub persistence: PersistenceLevel,
    /// Copies of the staged bytes, each on another node: at most [`MAX_REPLICAS`](crate::MAX_REPLICAS); else as
    /// many as the options have.
    pub replicas: Option<u32>,
    /// How it is a part of something that all ranks have together.
    pub shape: Shape,
}

impl Default for Properties {
    /// One version is kept beside the newest, and the object is this rank's own.
    fn default() -> Self {
        Self {
            transient: false,
            precopy: Precopy::WherePays,
            versions: 1,
            persistence: PersistenceLevel::Committed,
            replicas: None,
            shape: Shape::Own,
        }
    }
}
