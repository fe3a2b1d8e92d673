//! Work with a user's rights on a node.

use super::{Gid, SlurmJobId, Uid};
use crate::local::RequestError;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tarn_types::hash::Hash;
pub use tarn_types::named::is_name;
use tarn_types::pattern::ScatterRule;

/// The owner of a dataset: names the dataset's folder in a store, and may remove it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Owner {
    /// A user's own: `u<uid>`.
    User(Uid),
    /// A project's, which is a group: `p<gid>`.
    Project(Gid),
}

impl Owner {
    /// The workflow, in names of folders, of a project's datasets: they belong to none.
    pub const NO_WORKFLOW: &str = "named";

    /// Whether it is this user, or a group that the user is in.
    pub fn is(self, user: Uid, groups: &[Gid]) -> bool {
        match self {
            Self::User(uid) => uid == user,
            Self::Project(gid) => groups.contains(&gid),
        }
    }
}

/// A part of a dataset's version: the publication of one node, or a source. It never changes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Part {
    /// The owner.
    pub owner: Owner,
    /// The workflow's name.
    pub workflow: String,
    /// The dataset's name.
    pub dataset: String,
    /// Its version: 0 is a source's.
    pub version: u32,
    /// Its number.
    pub part: u32,
}

/// The content of a part: it never changes once it is published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// Of its manifest: of all names and contents.
    pub hash: Hash,
    /// Bytes of content.
    pub bytes: u64,
    /// Files, folders and links.
    pub entries: u64,
    /// Bytes of the manifest itself, which a fetch of the part reads first.
    pub manifest: u64,
    /// It is not a folder but this one file.
    pub file: Option<String>,
    /// Of a source: its names, sizes and times when it was read.
    #[serde(default)]
    pub origin: Option<Hash>,
    /// Its files are sealed: the other fields are of them as they are stored.
    #[serde(default)]
    pub sealed: bool,
}

/// The address at which a node serves its users' parts: host name or address, and the port of this user's worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerAddress {
    /// The node's name, for people.
    pub node: String,
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// The origin of a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// From outside: a file or folder that the user may read.
    Outside(PathBuf),
    /// From another node, which has it.
    Peer(WorkerAddress),
}

/// A node's share of a folder that several nodes read or write: the entries of its ranks by the dataset's rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// The rule that assigns entries to ranks.
    pub rule: ScatterRule,
    /// The first rank of this node.
    pub first: u32,
    /// The rank after its last.
    pub end: u32,
    /// Whether entries of no rank are this node's too: of what is read on every node, of what is written on the first.
    pub rest: bool,
}

impl Slice {
    /// Whether an entry is in it.
    pub fn has(&self, path: &[u8]) -> bool {
        match self.rule.rank(path) {
            Some(rank) => (self.first..self.end).contains(&rank),
            None => self.rest,
        }
    }

    /// Whether a folder that was cut to `other` may have entries of this one.
    pub fn may_overlap(&self, other: &Self) -> bool {
        let is_apart = self.end <= other.first || other.end <= self.first;
        self.rule != other.rule || !is_apart || (self.rest && other.rest)
    }
}

/// Something to be done by a user's worker. Each can be requested again, after any failure: existing content is found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Bring a part into the store; with a proof, only that content. Of a source that is there already: see whether it is what was
    /// read, which is refused as changed if not.
    Fetch {
        /// The part.
        part: Part,
        /// From where.
        from: Origin,
        /// The expected content. None of a source that nobody has read.
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
        /// The parts that it has at first.
        parts: Vec<Part>,
        /// The hash of each part's manifest, in the order of the parts. A part with other content is refused. An older controller
        /// sends none.
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
        /// The parts that it has.
        parts: Vec<Part>,
        /// The hash of each part's manifest, in the order of the parts. A part with other content is refused. An older controller
        /// sends none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        hashes: Vec<Hash>,
        /// It is a copy in the job's memory, which holds so many bytes at most, of content that is sealed in the store.
        #[serde(default)]
        memory: Option<u64>,
        /// The store of the parts and of the view; without a name, the node's first one.
        #[serde(default)]
        store: String,
    },
    /// Make the folder that a job reads, or one that it writes: of these parts the entries of some ranks, and those of none. A part
    /// that is not here is read at its origin; with a proof, only that content. The result has the bytes that the folder takes.
    Slice {
        /// The job.
        job: SlurmJobId,
        /// The dataset.
        dataset: String,
        /// The parts: where each is read if it is not here, and its content if that is known.
        parts: Vec<(Part, Option<Origin>, Option<Proof>)>,
        /// The ranks.
        slice: Slice,
        /// The job writes it: a private copy.
        written: bool,
        /// In this store; without a name, the node's first one.
        #[serde(default)]
        store: String,
    },
    /// Make a partition for a job, empty, of so many bytes, written by units of so many bytes, or mapped with 0.
    #[serde(rename = "Lend")]
    Export {
        /// The job.
        job: SlurmJobId,
        /// Its name.
        partition: String,
        /// Bytes.
        size: u64,
        /// Bytes of a unit.
        unit: u32,
        /// In this store; without a name, the node's first one.
        #[serde(default)]
        store: String,
    },
    /// Export the pieces here of the job's partitions that are spread over its nodes: to its tasks, by a socket in the first one's folder, and to
    /// the user's workers on its other nodes. Until the job's content is removed.
    Share {
        /// The job.
        job: SlurmJobId,
        /// The name of each of them, and the store that it is in; without a name, the node's first one.
        partitions: Vec<(String, String)>,
    },
    /// A job whose pieces are lent here has the others there: those are opened for its tasks.
    Join {
        /// The job.
        job: SlurmJobId,
        /// All its nodes of which that is known.
        peers: Vec<WorkerAddress>,
    },
    /// Make the folder of a step's checkpoints, if it is not there: it outlives the job.
    Checkpoints {
        /// The step's.
        folder: CheckpointFolder,
        /// In this store; without a name, the node's first one.
        #[serde(default)]
        store: String,
    },
    /// The program with these checkpoints has ended: what libtarn has left in memory is brought to them, or removed.
    Destage {
        /// The step's.
        folder: CheckpointFolder,
        /// The store that they are in; without a name, the node's first one.
        #[serde(default)]
        store: String,
    },
    /// Make a part of a job's output. The folder is gone then.
    Publish {
        /// The job.
        job: SlurmJobId,
        /// The part; its dataset is the name of the job's folder.
        part: Part,
        /// The share of it; `None`: all. The rest is removed.
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
        /// The store that has it.
        from: String,
        /// The store that is to get it.
        to: String,
        /// The expected content.
        proof: Proof,
        /// It is in both then.
        keep: bool,
    },
    /// Write parts, of this node and of others, merged to a place outside, and read them back.
    Send {
        /// The parts, the address if they are not here, and their content.
        parts: Vec<(Part, Option<WorkerAddress>, Proof)>,
        /// The folder that they become. An existing one is replaced when all has come, if it was put there for the same owner.
        dest: PathBuf,
        /// The owner of the data: the record of what this may replace has that name. An older controller sends none, and sends
        /// nothing to an object store.
        #[serde(default)]
        owner: String,
    },
    /// Look whether parts may be written to a place outside: only content of an earlier [`Work::Send`] of this owner is replaced.
    CheckDest {
        /// The place.
        dest: PathBuf,
        /// The owner of the data, as in [`Work::Send`].
        owner: String,
    },
    /// Read a part again, and compare it with its manifest. The result has its content: the caller compares that with the
    /// published one.
    Check(Part),
    /// The same for a part in this store.
    CheckIn(Part, String),
    /// Remove these; missing content counts as removed.
    Remove(Vec<StoreContent>),
    /// Wrap the keys of these with the newest secret. tarnd's own: no controller orders it.
    WrapAnew(Vec<Part>),
    /// List the content of this user and of these projects.
    Inventory(Vec<Gid>),
}

/// The checkpoints of a step of a user's workflow, which its next job continues from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CheckpointFolder {
    /// The workflow's name.
    pub workflow: String,
    /// The step's name.
    pub step: String,
}

impl CheckpointFolder {
    /// It, relative to the store: `u1000/c/<workflow>/<step>`. `None` when its names are none.
    pub fn path(&self, user: Uid) -> Option<PathBuf> {
        let Self { workflow, step } = self;
        let owner = Owner::User(user);
        (is_name(workflow) && is_name(step)).then(|| format!("{owner}/c/{workflow}/{step}").into())
    }

    /// The program's name for libtarn (`$TARN_PHX_RUN`): no other step's on any node.
    pub fn run_name(&self, user: Uid) -> String {
        let mut hasher = tarn_types::hash::Hasher::new();
        hasher.field(b"tarn checkpoints 1").number(u64::from(user));
        hasher.field(self.workflow.as_bytes());
        hasher.field(self.step.as_bytes());
        format!("c{:032x}", hasher.finish().0)
    }
}

/// Something in a node's store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StoreContent {
    /// A part, whole.
    Part(Part),
    /// The content of a job there: the folders that it writes, its views and its partitions.
    Job(SlurmJobId),
    /// A part, as it is in one of several stores.
    Copy(Part, String),
    /// Checkpoints of a step, in all stores, and what is in memory of them.
    Checkpoints(CheckpointFolder),
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
            Self::Job(_) | Self::Checkpoints(_) => None,
        }
    }
}

/// Content that a worker holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// The part or job.
    pub held: StoreContent,
    /// The proof of its content, as published. None of a job's folders.
    pub proof: Option<Proof>,
    /// Bytes on the tier.
    pub stored: u64,
    /// Its key could not be wrapped with the newest secret.
    #[serde(default)]
    pub is_behind: bool,
    /// The store that it is in, if the node's stores have names. Content in several stores is reported for each.
    #[serde(default)]
    pub store: String,
}

impl Holding {
    /// Bytes that it takes in a message, at most.
    pub fn weight(&self) -> usize {
        let names = |part: &Part| part.workflow.len() + part.dataset.len();
        let file = self.proof.as_ref().and_then(|proof| proof.file.as_ref());
        // A control character in a file's name takes six.
        let names_of_step = match &self.held {
            StoreContent::Checkpoints(folder) => folder.workflow.len() + folder.step.len(),
            _ => 0,
        };
        512 + self.held.part().map_or(names_of_step, names) + file.map_or(0, |name| 6 * name.len())
    }
}

/// The result of work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkResult {
    /// It is done.
    Done,
    /// Of [`Work::Fetch`], [`Work::Slice`], [`Work::Publish`], [`Work::Move`], [`Work::Check`], [`Work::Send`]: its content, and the number of
    /// bytes that came from elsewhere for it.
    Proven {
        /// The content; of a [`Work::Send`] and a [`Work::Slice`], the sum.
        proof: Proof,
        /// Bytes that moved.
        moved: u64,
    },
    /// Of [`Work::Inventory`].
    Inventory {
        /// The content.
        holds: Vec<Holding>,
        /// Owners that have more.
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
