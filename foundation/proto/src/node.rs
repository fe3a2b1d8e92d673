//! What `tarn run` and the tarnd of a node say to each other about a run: the engine's actions and events, and what a run
//! needs before and after them. docs/internals/cluster.md, "Control plane".
//!
//! A message is JSON. What the nodes of a step have for each other is not among them: see [`crate::local::StepMessage`].

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use tarn_types::action::Action;
use tarn_types::cluster::{Cluster, Link};
use tarn_types::event::{Event, PriorInstance};
use tarn_types::id::{NodeId, TransferId};
use tarn_types::nodes::{
    AttemptId, Cleaned, MovingTransfer, NodeTierUsage, RunningStep, SharedPath, SpaceWaitCause,
    Staying, Swept,
};
use tarn_types::part::{PartInfo, PartRef, Place, StoreKey};
use tarn_types::units::Time;
use tarn_types::workflow::Workflow;
use zeroize::Zeroizing;

/// The version of these messages. tarn and tarnd refuse each other when theirs differ.
pub const VERSION: u32 = 11;

/// Said to a node, in order, without an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum NodeCommand {
    /// Perform this; what comes of it is news.
    Do(Action),
    /// Parts that later actions name.
    Know(Vec<(PartRef, PartInfo)>),
    /// Whoever waits for this mark, or a lower one, waits no more: what was told before it is known here. They count up for the
    /// whole run.
    Mark(u64),
    /// The attempt that comes next is led here; messages about it are for those who have had this mark.
    Lead {
        /// Which attempt.
        step: AttemptId,
        /// See [`NodeCommand::Mark`].
        mark: u64,
    },
    /// See [`NodeNotification::Undelivered`].
    Undelivered {
        /// Whose message it was.
        from: NodeId,
        /// About which attempt.
        step: AttemptId,
        /// Why.
        why: String,
    },
    /// Another node is lost.
    NodeLost(NodeId),
    /// It is back, and takes data connections there.
    NodeBack(NodeId, Address),
    /// Of the transfers to and from the external store that are under way, `own` of `all` are this node's: its share of the
    /// rate that the store is emulated with.
    Pace {
        /// Its transfers.
        own: u32,
        /// Those of all nodes and of tarn itself.
        all: u32,
    },
    /// Every step is killed, because somebody is impatient.
    KillAll,
}

/// Where a node serves its files to other nodes: host name or address, and port.
pub type Address = (String, u16);

/// Asked of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum NodeRequest {
    /// What the node has. Answered by [`NodeReply::Cluster`], of this one node.
    Measure {
        /// [`VERSION`] of who asks.
        version: u32,
        /// tarn's own version, for messages to people.
        tarn: String,
        /// Tiers as on the command line, `NAME=PATH[:SIZE]`; none for the default.
        tiers: Vec<String>,
        /// The external store as it is taken to be.
        external: Link,
        /// The state folder.
        state: PathBuf,
        /// What every node must see as tarn does, the state folder first.
        sights: Vec<SharedPath>,
    },
    /// How fast bytes come from another node, which was measured lately or is measured now. Answered by [`NodeReply::Rate`].
    Link {
        /// The other node's name.
        from: String,
        /// Where it serves its files.
        at: Address,
        /// The state folder.
        state: PathBuf,
    },
    /// Which nodes have left something in loans of the tiers at these roots. Answered by [`NodeReply::Borrowers`].
    Borrowers {
        /// The tiers.
        roots: Vec<PathBuf>,
        /// The workspace.
        workspace: String,
    },
    /// Lend another node space of a tier for as long as this tarnd lives. Answered by [`NodeReply::Lent`].
    Lend {
        /// The tier's name.
        tier: String,
        /// Where it is stored.
        root: PathBuf,
        /// The other node's name.
        borrower: String,
        /// The workspace of the run.
        workspace: String,
        /// How much.
        bytes: u64,
    },
    /// Use that as the tier of this name. Answered by [`NodeReply::Borrowed`].
    Borrow {
        /// The tier's name.
        tier: String,
        /// The lender's name.
        lender: String,
        /// Where it is reached.
        brick: Brick,
        /// How much it may hold.
        bytes: u64,
        /// The state folder.
        state: PathBuf,
    },
    /// What of the tiers at these roots is taken now. Answered by [`NodeReply::Room`].
    Room(Vec<PathBuf>),
    /// As `tarn_node::sweep`: what dead runs have left on this node. Answered by [`NodeReply::Swept`].
    Sweep {
        /// The workspace.
        workspace: String,
        /// The state folder.
        state: PathBuf,
        /// The roots of the tiers that runs have used here.
        roots: BTreeSet<PathBuf>,
        /// Folders that stay.
        protected: BTreeSet<PathBuf>,
    },
    /// Begin: the world of this node is made.
    Open(Box<NodeConfig>),
    /// As `tarn_ports::Nodes::offer`.
    Offer {
        /// See there.
        prior: Vec<PriorInstance>,
        /// See there.
        there: BTreeSet<(StoreKey, Place)>,
        /// See there.
        protected: BTreeSet<PathBuf>,
    },
    /// As `tarn_ports::Nodes::inventory`.
    Inventory(Vec<(PartRef, StoreKey, Place)>),
    /// As `tarn_ports::Nodes::clean`.
    Clean(Staying),
    /// For so many nanoseconds the whole run has had nothing to do but to wait for space; none: that is over. Answered by
    /// [`NodeReply::Waits`].
    Idle(Option<u64>),
    /// As `tarn_ports::Nodes::exist`.
    Exist(Vec<PathBuf>),
    /// As `tarn_ports::Nodes::remove`.
    Remove(Vec<PathBuf>),
    /// As `tarn_ports::Nodes::leave`.
    Leave,
    /// The run is over, whatever came of it: tarnd ends once this session does.
    Close,
}

/// Where what a node lends is reached, and what opens it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Brick {
    /// Name or address of the lender; empty as it says it.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Who may use it.
    pub user: String,
    /// And by what.
    pub password: String,
}

impl std::fmt::Debug for Brick {
    /// Without the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Brick({}:{})", self.host, self.port)
    }
}

/// All that a node needs to know of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeConfig {
    /// The run's name.
    pub run: String,
    /// The workspace.
    pub workspace: String,
    /// The workflow.
    pub workflow: Workflow,
    /// All nodes.
    pub cluster: Cluster,
    /// Which of them this one is.
    pub node: NodeId,
    /// What earlier runs left.
    pub prior: Vec<PriorInstance>,
    /// The state folder.
    pub state: PathBuf,
    /// The run's time now.
    pub epoch: Time,
    /// Whether steps may get namespaces of their own.
    pub namespaces: bool,
    /// The environment of who called tarn.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where the nodes serve their files.
    pub peers: BTreeMap<NodeId, Address>,
    /// The run's number and key on the data plane.
    pub data: (u128, [u8; 32]),
    /// What wraps the keys of encrypted data, where the workflow has any.
    pub keys: Option<WorkspaceKeys>,
}

/// Keys that are made of a user's for the data of one workspace, as text, as a user's file has keys. Wiped when it is dropped, never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct WorkspaceKeys(pub Zeroizing<String>);

impl fmt::Debug for WorkspaceKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkspaceKeys(secret)")
    }
}

impl Serialize for WorkspaceKeys {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for WorkspaceKeys {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from).map(|text| Self(Zeroizing::new(text)))
    }
}

/// A node's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum NodeReply {
    /// To what has none.
    Done,
    /// To [`NodeRequest::Measure`].
    Cluster(Cluster),
    /// To [`NodeRequest::Link`]: bytes a second.
    Rate(u64),
    /// To [`NodeRequest::Borrowers`]: names, tier by tier.
    Borrowers(Vec<BTreeSet<String>>),
    /// To [`NodeRequest::Lend`].
    Lent(Brick),
    /// To [`NodeRequest::Borrow`].
    Borrowed {
        /// Where it appears on the node.
        root: PathBuf,
        /// Bytes a second read.
        read: u64,
        /// Bytes a second written.
        write: u64,
    },
    /// To [`NodeRequest::Room`].
    Room(NodeTierUsage),
    /// To [`NodeRequest::Sweep`].
    Swept(Swept),
    /// To [`NodeRequest::Idle`].
    Waits(SpaceWaitCause),
    /// To [`NodeRequest::Open`].
    Opened {
        /// Why steps of several nodes cannot run there, if they cannot.
        several: Option<String>,
        /// Why their nodes cannot have one namespace, if they cannot.
        shared: Option<String>,
        /// Why no images of a step's processes can be taken there, if they cannot.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        images: Option<String>,
    },
    /// To [`NodeRequest::Inventory`].
    Found(Vec<(PartRef, Place)>),
    /// To [`NodeRequest::Clean`].
    Cleaned(Cleaned),
    /// To [`NodeRequest::Exist`].
    There(Vec<bool>),
    /// To [`NodeRequest::Remove`] and [`NodeRequest::Leave`]: what could not be done.
    Left(Vec<String>),
    /// It cannot be done, and why.
    Failed(String),
    /// It is not done any more: see [`NodeNotification::Ending`].
    Ending,
}

/// Said by a node, in order, unasked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum NodeNotification {
    /// Something happened.
    Event(Event),
    /// A message about an attempt could not be given to another of its nodes: the attempt ends on both. Told to that node.
    Undelivered {
        /// To whom.
        to: NodeId,
        /// About which attempt.
        step: AttemptId,
        /// Why.
        why: String,
    },
    /// A transfer to this node has begun: what it brings can be read from now on, as it arrives.
    Begun(TransferId),
    /// What is under way.
    Progress {
        /// What moves.
        transfers: Vec<MovingTransfer>,
        /// What runs.
        steps: Vec<RunningStep>,
    },
    /// The world of this node is broken as a whole.
    Broken(String),
    /// tarnd was told to end by a signal, as all of a job is when the job is cancelled. Nothing more comes.
    Ending,
}

/// What tarnd is told on its standard input when it is started for a run; one line.
#[derive(Clone, Serialize, Deserialize)]
pub struct NodeStartInput {
    /// The run's keys, as the control plane has them.
    pub keys: serde_json::Value,
    /// The run's name.
    pub run: String,
    /// Milliseconds between heartbeats, and after how many without one the other end is lost.
    #[serde(rename = "patience")]
    pub timeouts: (u64, u64),
    /// The run's number and key on the data plane.
    pub data: (u128, [u8; 32]),
    /// How nodes read each other's files: what `--transport` says.
    pub transport: String,
    /// Where a node that does not have a tier is to borrow one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub borrow: Option<Borrow>,
}

/// What tarnd must know of a run at once if tiers may be borrowed: later it cannot get a namespace of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Borrow {
    /// Tiers as on the command line, `NAME=PATH[:SIZE]`.
    pub tiers: Vec<String>,
    /// The state folder.
    pub state: PathBuf,
}

/// What tarnd then says on its standard output; one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStartReport {
    /// The node's host name.
    pub node: String,
    /// The port of the control plane.
    pub control: u16,
    /// The port of the data plane.
    pub data: u16,
}

/// What arrived is no message.
#[derive(Debug, thiserror::Error)]
#[error("what arrived is no message of version {VERSION}: {0}")]
pub struct NotAMessage(String);

/// The bytes of a message.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn encode(message: impl Serialize) -> Result<Vec<u8>, NotAMessage> {
    serde_json::to_vec(&message).map_err(|e| NotAMessage(e.to_string()))
}

/// The message of some bytes.
///
/// # Errors
/// When they are none.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, NotAMessage> {
    serde_json::from_slice(bytes).map_err(|e| NotAMessage(e.to_string()))
}
