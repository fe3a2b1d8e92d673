//! Messages between `tarn run` and the tarnd of a node about a run: the engine's actions and events, and the requests before and
//! after them. docs/internals/cluster.md, "Control plane".
//!
//! A message is JSON. Messages between the nodes of a step are not among them: see [`crate::local::StepMessage`].

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

/// A command to a node, in order, without an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum NodeCommand {
    /// Perform this; its result is a notification.
    Do(Action),
    /// Parts that later actions name.
    Know(Vec<(PartRef, PartInfo)>),
    /// Messages that wait for this mark, or a lower one, wait no more: this node has all that was sent before the mark. Marks
    /// count up for the whole run.
    Mark(u64),
    /// The attempt that comes next is led here; messages about it are for those who have had this mark.
    Lead {
        /// The attempt.
        step: AttemptId,
        /// See [`NodeCommand::Mark`].
        mark: u64,
    },
    /// See [`NodeNotification::Undelivered`].
    Undelivered {
        /// The sender of the message.
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

/// The address at which a node serves its files to other nodes: host name or address, and port.
pub type Address = (String, u16);

/// A request to a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum NodeRequest {
    /// Measures the node. Answered by [`NodeReply::Cluster`], of this one node.
    Measure {
        /// [`VERSION`] of the sender.
        version: u32,
        /// tarn's own version, for messages to people.
        tarn: String,
        /// Tiers as on the command line, `NAME=PATH[:SIZE]`; none for the default.
        tiers: Vec<String>,
        /// The external store as it is taken to be.
        external: Link,
        /// The state folder.
        state: PathBuf,
        /// Paths that every node must see as tarn does, the state folder first.
        sights: Vec<SharedPath>,
    },
    /// How fast bytes come from another node, which was measured lately or is measured now. Answered by [`NodeReply::Rate`].
    Link {
        /// The other node's name.
        from: String,
        /// The address at which it serves its files.
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
    /// Lend another node space of a tier for as long as this tarnd lives. Answered by [`NodeReply::Exported`].
    #[serde(rename = "Lend")]
    Export {
        /// The tier's name.
        tier: String,
        /// Its root.
        root: PathBuf,
        /// The other node's name.
        borrower: String,
        /// The workspace of the run.
        workspace: String,
        /// The size.
        bytes: u64,
    },
    /// Use that as the tier of this name. Answered by [`NodeReply::Borrowed`].
    Borrow {
        /// The tier's name.
        tier: String,
        /// The lender's name.
        lender: String,
        /// Its address.
        brick: Brick,
        /// Its capacity.
        bytes: u64,
        /// The state folder.
        state: PathBuf,
    },
    /// The usage of the tiers at these roots now. Answered by [`NodeReply::TierUsage`].
    #[serde(rename = "Room")]
    TierUsage(Vec<PathBuf>),
    /// As `tarn_node::sweep`: removes data that dead runs have left on this node. Answered by [`NodeReply::Swept`].
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
    /// As `tarn_ports::NodeWorld::offer`.
    Offer {
        /// See there.
        prior: Vec<PriorInstance>,
        /// See there.
        there: BTreeSet<(StoreKey, Place)>,
        /// See there.
        protected: BTreeSet<PathBuf>,
    },
    /// As `tarn_ports::NodeWorld::inventory`.
    Inventory(Vec<(PartRef, StoreKey, Place)>),
    /// As `tarn_ports::NodeWorld::clean`.
    Clean(Staying),
    /// For so many nanoseconds the whole run has had nothing to do but to wait for space; none: that is over. Answered by
    /// [`NodeReply::Waits`].
    Idle(Option<u64>),
    /// As `tarn_ports::NodeWorld::exist`.
    Exist(Vec<PathBuf>),
    /// As `tarn_ports::NodeWorld::remove`.
    Remove(Vec<PathBuf>),
    /// As `tarn_ports::NodeWorld::leave`.
    Leave,
    /// The run is over, with any result: tarnd ends once this session does.
    Close,
}

/// The address of an exported tier, and the credentials for it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Brick {
    /// Name or address of the lender; empty in its own reply.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The user name for it.
    pub user: String,
    /// The password.
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
    /// This node.
    pub node: NodeId,
    /// The instances that earlier runs left.
    pub prior: Vec<PriorInstance>,
    /// The state folder.
    pub state: PathBuf,
    /// The run's time now.
    pub epoch: Time,
    /// Whether steps may get namespaces of their own.
    pub namespaces: bool,
    /// The environment of tarn's caller.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// The addresses at which the nodes serve their files.
    pub peers: BTreeMap<NodeId, Address>,
    /// The run's number and key on the data plane.
    pub data: (u128, [u8; 32]),
    /// The keys that wrap the keys of encrypted data, where the workflow has any.
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
    /// To a request without another answer.
    Done,
    /// To [`NodeRequest::Measure`].
    Cluster(Cluster),
    /// To [`NodeRequest::Link`]: bytes a second.
    Rate(u64),
    /// To [`NodeRequest::Borrowers`]: names, tier by tier.
    Borrowers(Vec<BTreeSet<String>>),
    /// To [`NodeRequest::Export`].
    #[serde(rename = "Lent")]
    Exported(Brick),
    /// To [`NodeRequest::Borrow`].
    Borrowed {
        /// The folder at which it appears on the node.
        root: PathBuf,
        /// Bytes a second read.
        read: u64,
        /// Bytes a second written.
        write: u64,
    },
    /// To [`NodeRequest::TierUsage`].
    #[serde(rename = "Room")]
    TierUsage(NodeTierUsage),
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
    /// To [`NodeRequest::Remove`] and [`NodeRequest::Leave`]: a sentence for each failure.
    Left(Vec<String>),
    /// It cannot be done, and why.
    Failed(String),
    /// It is not done any more: see [`NodeNotification::Ending`].
    Ending,
}

/// A notification from a node, in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum NodeNotification {
    /// Something happened.
    Event(Event),
    /// A message about an attempt could not be given to another of its nodes: the attempt ends on both. That node gets this too.
    Undelivered {
        /// The receiver.
        to: NodeId,
        /// About which attempt.
        step: AttemptId,
        /// Why.
        why: String,
    },
    /// A transfer to this node has begun: its bytes can be read from now on, as they arrive.
    Begun(TransferId),
    /// The work under way.
    Progress {
        /// The transfers.
        transfers: Vec<MovingTransfer>,
        /// The running steps.
        steps: Vec<RunningStep>,
    },
    /// The world of this node is broken as a whole.
    Broken(String),
    /// tarnd got a signal to end, as all of a job does when the job is cancelled. Nothing more comes.
    Ending,
}

/// The line on tarnd's standard input when it is started for a run.
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
    /// How nodes read each other's files: the value of `--transport`.
    pub transport: String,
    /// The tiers that a node without one is to borrow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub borrow: Option<Borrow>,
}

/// The data about a run that tarnd needs at once if tiers may be borrowed: later it cannot get a namespace of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Borrow {
    /// Tiers as on the command line, `NAME=PATH[:SIZE]`.
    pub tiers: Vec<String>,
    /// The state folder.
    pub state: PathBuf,
}

/// The line that tarnd then writes to its standard output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStartReport {
    /// The node's host name.
    pub node: String,
    /// The port of the control plane.
    pub control: u16,
    /// The port of the data plane.
    pub data: u16,
}

/// The received bytes are no message.
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
