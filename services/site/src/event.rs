//! What happens, and what is done about it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tarn_proto::site::{
    ControllerReply, ControllerRequest, Epoch, Holding, NodeOrder, NodeStoreReport, Owner, Report,
    SlurmJobId, StoreCapacity, Uid,
};
use tarn_types::units::Nanos;

/// Somebody who waits for an answer; means nothing after a restart.
pub type Token = u64;

/// What a site wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// How long a version stays after its last use when nothing else is said.
    pub lease: Nanos,
    /// How long before its end a lease is said to end soon.
    pub warning: Nanos,
    /// Bytes on all nodes together that a user may have, unless `quotas` says otherwise; 0 for no limit.
    pub quota: u64,
    /// The same of projects.
    pub project_quota: u64,
    /// Bytes of particular owners.
    pub quotas: BTreeMap<Owner, u64>,
    /// Nodes may sleep: how long a job waits for one of its nodes that does not answer. Otherwise a minute from when the node was last heard of.
    #[serde(default)]
    pub wake: Option<Nanos>,
    /// What a job reads is brought to the nodes that it prefers before it has any.
    #[serde(default)]
    pub ahead: bool,
}

/// Who asks what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteRequest {
    /// Who waits.
    pub token: Token,
    /// The user, as the kernel says.
    pub user: Uid,
    /// The user's groups.
    pub groups: Vec<u32>,
    /// Whether it is root, or Slurm's user.
    pub trusted: bool,
    /// What.
    pub ask: ControllerRequest,
}

/// What has happened: what the log holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SiteServiceEvent {
    /// A controller begins; what an earlier one had under way is not known any more.
    Began {
        /// Its term.
        epoch: Epoch,
    },
    /// Somebody asks something that changes something. (What changes nothing is answered by [`crate::Site::answer`].)
    Asked(SiteRequest),
    /// A node takes orders.
    Opened {
        /// Its name.
        node: String,
        /// Its store, or the first of them.
        capacity: StoreCapacity,
        /// All of them, fast to slow, if they have names.
        #[serde(default)]
        stores: Vec<NodeStoreReport>,
        /// All that it holds.
        holds: Vec<(Uid, Holding)>,
        /// Those who may have more there: what is not told of them is where the log says.
        #[serde(default)]
        partial: Vec<Owner>,
        /// The jobs that it lets in.
        jobs: Vec<SlurmJobId>,
    },
    /// A node does not answer any more.
    Closed {
        /// Its name.
        node: String,
    },
    /// A node says what came of an order.
    Reported {
        /// The order.
        order: u64,
        /// What.
        report: Report,
    },
    /// Time has passed: leases may be over.
    Passed,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SiteServiceAction {
    /// A node is to do this; its report comes with this number.
    Order {
        /// The node.
        node: String,
        /// The number.
        number: u64,
        /// What.
        order: NodeOrder,
    },
    /// Who waits is answered.
    Answer {
        /// Who.
        token: Token,
        /// What is said.
        said: ControllerReply,
    },
    /// Something has become of somebody's data that nobody has asked for: the log is to say it.
    Tell {
        /// Whose.
        owner: Owner,
        /// What.
        text: String,
    },
}

impl Default for Config {
    fn default() -> Self {
        let day = 24 * 3600 * 1_000_000_000;
        Self {
            lease: 7 * day,
            warning: day,
            quota: 0,
            project_quota: 0,
            quotas: BTreeMap::new(),
            wake: None,
            ahead: false,
        }
    }
}
