//! The nodes of a run: the requests of `tarn run` to its world beside actions and events, and those of a world that owns only some
//! of the nodes to the others. docs/internals/cluster.md explains the roles.

use crate::peer::{Arrivals, PeerTree};
use crate::progress::Progress;
use crate::world::{World, WorldError};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tarn_types::checkpoint::Checkpoint;
use tarn_types::event::{PriorInstance, RunError};
use tarn_types::id::{NodeId, StepId, TierRef, TransferId};
use tarn_types::nodes::{AttemptId, Cleaned, Staying};
use tarn_types::part::{PartInfo, PartRef, Place, StoreKey, Transfer};

/// Of a step, a file that its command names and that has changed since the run began, if there is one. Looks at files, so
/// it may take long where a file system hangs.
pub type ChangedSince = Arc<dyn Fn(StepId) -> Option<PathBuf> + Send + Sync>;

/// Finds the checkpoints of programs in two folders, one on a persistent tier and one in memory. It only looks.
pub type CheckpointFinder = Arc<dyn Fn(&Path, &Path) -> Vec<Checkpoint> + Send + Sync>;

/// Makes a partition (docs/guide/direct-access.md) of this name in a folder, of so many bytes, written by units of so many bytes, or mapped with 0.
pub type MakePartition = Arc<dyn Fn(&Path, &str, u64, u32) -> Result<(), RunError> + Send + Sync>;

/// The dataspace in which programs find the partitions of their own step (docs/guide/direct-access.md), named like a dataspace;
/// no dataspace has such a name.
pub const STEP_SPACE: &str = "@step";

/// The variable that names the socket by which they have those that span several machines.
pub const STEP_SOCKET: &str = "TARN_STEP_SOCKET";

/// An own node's pieces of the partitions that span the nodes of a step.
#[derive(Debug, Clone)]
pub struct Pieces {
    /// The attempt that owns them.
    pub step: AttemptId,
    /// The name of each partition, and the folder that has the piece of it.
    pub folders: BTreeMap<String, PathBuf>,
    /// The path of the socket for the step's programs, in an existing folder.
    pub socket: PathBuf,
}

/// A sentence for people about a lack of this machine or its settings, which only people can mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CapabilityError(String);

impl CapabilityError {
    /// The error with this sentence.
    pub fn new(why: impl Display) -> Self {
        Self(why.to_string())
    }

    /// For work that needs namespaces, which are not available for this reason.
    #[must_use]
    pub fn needs_namespaces(why: &Self) -> Self {
        Self(format!("it needs namespaces: {why}"))
    }
}

/// A world of nodes that keep data between runs.
pub trait NodeWorld: World {
    /// Whether steps of several nodes can run here, or why not.
    ///
    /// # Errors
    /// The reason.
    fn multi_node(&self) -> Result<(), CapabilityError>;

    /// Whether the nodes of a step can have one namespace (`shared`), or why not.
    ///
    /// # Errors
    /// The reason.
    fn one_namespace(&self) -> Result<(), CapabilityError>;

    /// Whether images of a step's processes can be taken and restored here, or why not. Only looked at where a step wants it.
    ///
    /// # Errors
    /// The reason.
    fn images(&self) -> Result<(), CapabilityError>;

    /// The transfers and steps under way, for progress bars; outlives the world.
    fn progress(&self) -> Progress;

    /// Checks which results of earlier runs are still there: `Do::Reuse` counts in them from now on.
    /// The replicas are `there`; those in the `protected` folders take space until they are reused, all others make
    /// way when theirs is wanted.
    ///
    /// # Errors
    /// When the world is broken as a whole.
    fn offer(
        &mut self,
        prior: Vec<PriorInstance>,
        there: &BTreeSet<(StoreKey, Place)>,
        protected: &BTreeSet<PathBuf>,
    ) -> Result<(), WorldError>;

    /// Makes the parts in the log of an interrupted run known.
    ///
    /// # Errors
    /// When the world is broken as a whole.
    fn know(&mut self, parts: Vec<(PartRef, PartInfo)>) -> Result<(), WorldError>;

    /// Those of the replicas that are really there, whole, where the log has them.
    ///
    /// # Errors
    /// When the world is broken as a whole.
    fn inventory(
        &mut self,
        wanted: &[(PartRef, StoreKey, Place)],
    ) -> Result<Vec<(PartRef, Place)>, WorldError>;

    /// Removes everything of this workspace that does not stay; ends the rest of a dead run. Called before anything
    /// is performed.
    ///
    /// # Errors
    /// When the world is broken as a whole.
    fn clean(&mut self, staying: &Staying) -> Result<Cleaned, WorldError>;

    /// Where the external store's rate is emulated: of the transfers to and from it that are under way anywhere, `own` of `all`
    /// are this world's, and so is that share of the rate. Not called on a world that knows all of them.
    fn pace(&mut self, own: u32, all: u32);

    /// Of folders on tiers and in the drained area, whether each is there; `None` where nobody can look, as the node is lost.
    ///
    /// # Errors
    /// When the world is broken as a whole.
    fn exist(&mut self, folders: &[PathBuf]) -> Result<Vec<Option<bool>>, WorldError>;

    /// Removes such folders with their content, wherever they are. Returns a sentence for each failure.
    ///
    /// # Errors
    /// When the world is broken as a whole.
    fn remove(&mut self, folders: &[PathBuf]) -> Result<Vec<String>, WorldError>;

    /// The run has ended well: half-copied replicas, empty folders and claims on tiers go, and the world with them. Returns a
    /// sentence for each failure.
    fn leave(self: Box<Self>) -> Vec<String>;

    /// No other world has a replica of this part under this key any more: forget the key that encrypts one. Not called on a world
    /// that knows all replicas.
    fn gone(&mut self, part: PartRef, key: &StoreKey);

    /// A transfer from a source that another world has made is complete; it began at `began` (nanoseconds since 1970):
    /// the bytes read of the source are remembered.
    fn learned(&mut self, transfer: &Transfer, began: i64);
}

/// Replicas on nodes that a world does not own, and pieces of partitions.
pub trait Peers: Send + Sync {
    /// A replica as a source of copies.
    ///
    /// # Errors
    /// `NodeLost` when its node is, `Io` when it is no node of this run.
    fn tree(&self, tier_ref: TierRef, key: &StoreKey) -> Result<Arc<dyn PeerTree>, RunError>;

    /// The receiver of notifications about the bytes of a replica that arrive on an own node, so that others can read it before
    /// it is whole. From now on requests for the replica wait for it.
    fn arriving(&self, tier_ref: TierRef, key: &StoreKey) -> Option<Arc<dyn Arrivals>>;

    /// A transfer to an own node has begun: all receivers of its notifications are known.
    fn begun(&self, id: TransferId);

    /// Lets the step's programs here have its pieces, those of the other nodes as well, and those on the other nodes have these. It ends
    /// when the returned value is dropped: then nobody has these open any more.
    ///
    /// # Errors
    /// When the socket cannot be made.
    fn export_pieces(&self, pieces: Pieces) -> Result<Box<dyn Send>, RunError>;
}

/// The other nodes of a step: messages about it, whose content is the sender's and the receiver's own.
pub trait Followers: Send + Sync {
    /// Sends. The order between two nodes is kept. Does not wait for an answer; may wait for space in a queue. False when that
    /// node is lost. If the message turns out later to be undeliverable, the attempt has failed, and the world gets an event.
    fn send(&self, to: NodeId, step: AttemptId, message: Vec<u8>) -> bool;
}
