//! What is done with a user's rights on a node.

use super::{Gid, SlurmJobId, Uid};
use crate::local::RequestError;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tarn_types::hash::Hash;
pub use tarn_types::named::is_name;
use tarn_types::pattern::ScatterRule;

/// Whose a dataset is: what its folder in a store is called, and who may remove it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Owner {
    /// A user's own: `u<uid>`.
    User(Uid),
    /// A project's, which is a group: `p<gid>`.
    Project(Gid),
}

impl Owner {
    /// The workflow, in names of folders, of what is a project's: it belongs to none.
    pub const NO_WORKFLOW: &str = "named";

    /// Whether it is this user, or a group that the user is in.
    pub fn is(self, user: Uid, groups: &[Gid]) -> bool {
        match self {
            Self::User(uid) => uid == user,
            Self::Project(gid) => groups.contains(&gid),
        }
    }
}

/// A part of a dataset's version: what one node has published, or a source. It never changes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Part {
    /// Whose.
    pub owner: Owner,
    /// The workflow's name.
    pub workflow: String,
    /// The dataset's name.
    pub dataset: String,
    /// Its version: 0 is a source's.
    pub version: u32,
    /// Which of them.
    pub part: u32,
}

/// What a part holds: of which nobody has another idea once it is published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// Of its manifest: of all names and contents.
    pub hash: Hash,
    /// Bytes of content.
    pub bytes: u64,
    /// Files, folders and links.
    pub entries: u64,
    /// Bytes of the manifest itself, which who fetches the part reads first.
    pub manifest: u64,
    /// It is not a folder but this one file.
    pub file: Option<String>,
    /// Of a source: its names, sizes and times when it was read.
    #[serde(default)]
    pub origin: Option<Hash>,
    /// Its files are sealed: what the others tell is of them as they are stored.
    #[serde(default)]
    pub sealed: bool,
}

/// Where a node serves its users' parts: host name or address, and the port of this user's worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerAddress {
    /// The node's name, for people.
    pub node: String,
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// Where a part comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// From outside: a file or folder that the user may read.
    Outside(PathBuf),
    /// From another node, which has it.
    Peer(WorkerAddress),
}

/// What of a folder that several nodes have written is this node's: the entries of its ranks by the dataset's rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// Which entries are of which rank.
    pub rule: ScatterRule,
    /// The first rank of this node.
    pub first: u32,
    /// The rank after its last.
    pub end: u32,
    /// Whether what belongs to no rank is this node's too: of the first node.
    pub rest: bool,
}

/// Something to be done by a user's worker. Each can be asked for again, after whatever failure: what is there already is found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Bring a part into the store; with a proof, only that content. Of a source that is there already: see whether it is what was
    /// read, which is refused as changed if not.
    Fetch {
        /// The part.
        part: Part,
        /// From where.
        from: Origin,
        /// What it must be. None of a source that nobody has read.
        proof: Option<Proof>,
        /// It is sealed in stores, its key beside it.
        #[serde(default)]
        sealed: bool,
        /// Into this store. Without a name: where the part is already, else the node's first one.
        #[serde(default)]
        store: String,
    },
    /// Make the folder that a job writes: empty, or a private copy of these parts merged.
    Prepare {
        /// The job.
        job: SlurmJobId,
        /// The dataset.
        dataset: String,
        /// What is in it at first.
        parts: Vec<Part>,
        /// What each of the parts holds, in their order: the hash of its manifest. A part that holds something else is refused. An older
        /// controller says none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        hashes: Vec<Hash>,
        /// It is made in the job's memory, which holds so many bytes at most. Else in the store; sealed parts are refused then.
        #[serde(default)]
        memory: Option<u64>,
        /// In this store; without a name, the node's first one.
        #[serde(default)]
        store: String,
    },
    /// Make the folder that a job reads: these parts of this node merged, without copying.
    View {
        /// The job.
        job: SlurmJobId,
        /// The dataset.
        dataset: String,
        /// What is in it.
        parts: Vec<Part>,
        /// What each of the parts holds, in their order: the hash of its manifest. A part that holds something else is refused. An older
        /// controller says none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        hashes: Vec<Hash>,
        /// It is a copy in the job's memory, which holds so many bytes at most, of what is sealed in the store.
        #[serde(default)]
        memory: Option<u64>,
        /// Of what is in this store, and in it; without a name, the node's first one.
        #[serde(default)]
        store: String,
    },
    /// Make a partition for a job, empty, of so many bytes, written by units of so many bytes, or mapped with 0.
    Lend {
        /// The job.
        job: SlurmJobId,
        /// What it is called.
        partition: String,
        /// Bytes.
        size: u64,
        /// Bytes of a unit.
        unit: u32,
        /// In this store; without a name, the node's first one.
        #[serde(default)]
        store: String,
    },
    /// Lend the pieces here of the job's partitions that are spread over its nodes: to its tasks, by a socket in the first one's folder, and to
    /// the user's workers on its other nodes. Until what the job has is removed.
    Share {
        /// The job.
        job: SlurmJobId,
        /// What each of them is called, and the store that it is in; without a name, the node's first one.
        partitions: Vec<(String, String)>,
    },
    /// A job whose pieces are lent here has the others there: those are opened for its tasks.
    Join {
        /// The job.
        job: SlurmJobId,
        /// All its nodes of which that is known.
        peers: Vec<WorkerAddress>,
    },
    /// Make a part of what a job has written. The folder is gone then.
    Publish {
        /// The job.
        job: SlurmJobId,
        /// The part; its dataset is what the job's folder is called.
        part: Part,
        /// What of it; all if not said. The rest is removed.
        slice: Option<Slice>,
        /// It is in the job's memory, and is sealed in the store.
        #[serde(default)]
        sealed: bool,
        /// In this store, where the folder was made; without a name, the node's first one.
        #[serde(default)]
        store: String,
    },
    /// Bring a part from one store of the node to another. It is there when all of it was read back; only then it goes from
    /// where it was, unless it is to stay. Of a part that is there already, only the rest is done.
    Move {
        /// The part.
        part: Part,
        /// Where it is stored.
        from: String,
        /// Where it is to be stored.
        to: String,
        /// What it must be.
        proof: Proof,
        /// It is in both then.
        keep: bool,
    },
    /// Write parts, of this node and of others, merged to a place outside, and read them back.
    Send {
        /// The parts, where they are if not here, and what they hold.
        parts: Vec<(Part, Option<WorkerAddress>, Proof)>,
        /// The folder that they become. What is there is replaced when all has come, if it was put there for the same owner.
        dest: PathBuf,
        /// Whose data it is: what this may replace is recorded under that name. An older controller says none, and sends nothing to an
        /// object store.
        #[serde(default)]
        owner: String,
    },
    /// Look whether parts may be written to a place outside: only what an earlier [`Work::Send`] of this owner has put there is replaced.
    CheckDest {
        /// The place.
        dest: PathBuf,
        /// Whose data it is, as in [`Work::Send`].
        owner: String,
    },
    /// Read a part again, and compare it with its manifest. What that is goes back: who asks compares it with what was published.
    Check(Part),
    /// The same of what is in this store.
    CheckIn(Part, String),
    /// Remove these; what is not there is removed.
    Remove(Vec<StoreContent>),
    /// Wrap the keys of these with the newest secret. tarnd's own: no controller orders it.
    WrapAnew(Vec<Part>),
    /// Say what there is of this user and in these projects.
    Inventory(Vec<Gid>),
}

/// Something in a node's store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StoreContent {
    /// A part, whole.
    Part(Part),
    /// What a job has there: the folders that it writes, its views and its partitions.
    Job(SlurmJobId),
    /// A part, as it is in one of several stores.
    Copy(Part, String),
}

impl StoreContent {
    /// A part in a store: one without a name is a node's only one.
    pub fn part_in(part: &Part, store: &str) -> Self {
        match store {
            "" => Self::Part(part.clone()),
            store => Self::Copy(part.clone(), store.to_owned()),
        }
    }

    /// The part, if it is one.
    pub fn part(&self) -> Option<&Part> {
        match self {
            Self::Part(part) | Self::Copy(part, _) => Some(part),
            Self::Job(_) => None,
        }
    }
}

/// What a worker holds of something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// What.
    pub held: StoreContent,
    /// What it holds, as was said when it was published. None of a job's folders.
    pub proof: Option<Proof>,
    /// Bytes on the tier.
    pub stored: u64,
    /// Its key could not be wrapped with the newest secret.
    #[serde(default)]
    pub is_behind: bool,
    /// The store that it is in, if the node's stores have names. What is in several is told of for each.
    #[serde(default)]
    pub store: String,
}

impl Holding {
    /// Bytes that it takes in a message, at most.
    pub fn weight(&self) -> usize {
        let names = |part: &Part| part.workflow.len() + part.dataset.len();
        let file = self.proof.as_ref().and_then(|proof| proof.file.as_ref());
        // A control character in a file's name takes six.
        512 + self.held.part().map_or(0, names) + file.map_or(0, |name| 6 * name.len())
    }
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkResult {
    /// It is done.
    Done,
    /// Of [`Work::Fetch`], [`Work::Publish`], [`Work::Move`], [`Work::Check`], [`Work::Send`]: what it holds, and how many bytes came from elsewhere for it.
    Proven {
        /// What it holds; of what was sent, the sum.
        proof: Proof,
        /// Bytes that moved.
        moved: u64,
    },
    /// Of [`Work::Inventory`].
    Inventory {
        /// What there is.
        holds: Vec<Holding>,
        /// Of whom there is more.
        partial: Vec<Owner>,
    },
    /// Of [`Work::Share`]: the port of the worker, which stays as long as pieces are lent.
    Serving {
        /// The port.
        port: u16,
    },
    /// It failed, and nothing of it is to be seen.
    Failed(RequestError),
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(uid) => write!(f, "u{uid}"),
            Self::Project(gid) => write!(f, "p{gid}"),
        }
    }
}

impl Part {
    /// Its folder, relative to the store: `u1000/d/<workflow>/<dataset>/<version>/<part>`. In it are `tree`, and `manifest`.
    /// `None` when its names are none.
    pub fn folder(&self) -> Option<PathBuf> {
        let Self {
            owner,
            workflow,
            dataset,
            version,
            part,
        } = self;
        (is_name(workflow) && is_name(dataset))
            .then(|| format!("{owner}/d/{workflow}/{dataset}/{version}/{part}").into())
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            workflow,
            dataset,
            version,
            part,
            ..
        } = self;
        write!(
            f,
            "part {part} of version {version} of `{dataset}` (workflow `{workflow}`)"
        )
    }
}
