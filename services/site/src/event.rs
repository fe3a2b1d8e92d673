//! Events, and the actions that follow from them.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::site::{
    ControllerReply, ControllerRequest, Epoch, Holding, JobSubmission, NodeOrder, NodeStoreReport,
    Owner, Report, SlurmJobId, StoreCapacity, Uid,
};
use tarn_types::site::JobResult;
use tarn_types::units::{Nanos, Time};

/// The connection that waits for a reply; means nothing after a restart.
pub type Token = u64;

/// The settings of a site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// How long a version stays after its last use if the dataset sets nothing else.
    pub lease: Nanos,
    /// How long before the end of a lease its owner is notified.
    pub warning: Nanos,
    /// Bytes on all nodes together that a user may have, unless `quotas` has another value; 0 for no limit.
    pub quota: u64,
    /// The same of projects.
    pub project_quota: u64,
    /// Bytes of particular owners.
    pub quotas: BTreeMap<Owner, u64>,
    /// Nodes may sleep: how long a job waits for one of its nodes that does not answer. Otherwise a minute from the
    /// node's last message.
    #[serde(default)]
    pub wake: Option<Nanos>,
    /// Whether a job's inputs are brought to the nodes that it prefers before it has any.
    #[serde(default)]
    pub ahead: bool,
}

/// A request, and its requester.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteRequest {
    /// The connection that waits for the reply.
    pub token: Token,
    /// The user, as the kernel reports.
    pub user: Uid,
    /// The user's groups.
    pub groups: Vec<u32>,
    /// Whether it is root, or Slurm's user.
    pub trusted: bool,
    /// The request.
    pub ask: ControllerRequest,
}

/// The present rules. Raised whenever other orders would follow from the same events, with the former ones kept for older logs:
/// - 1: whichever address of an order that reads from several nodes may be old, all are requested again when it fails; a node
///   that has just come back is waited for.
/// - 2: a part goes to no node that is removing an earlier copy of it; a copy for a job without nodes that fails ends no stage.
pub(crate) const RULES: u32 = 2;

/// An event: the log holds these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SiteServiceEvent {
    /// A controller begins; work that an earlier one had under way is not known any more.
    Began {
        /// Its term.
        epoch: Epoch,
        /// Which orders follow from its events: [`RULES`] of the version that wrote it. Orders have numbers, which later
        /// events name, so what an older version wrote is replayed as that would have had it.
        #[serde(default)]
        rules: u32,
    },
    /// A request that changes the state. ([`crate::Site::answer`] replies to the others.)
    #[serde(rename = "Asked")]
    Requested(SiteRequest),
    /// A job was found in Slurm's queue, and Slurm has not asked about it yet: it may be held, or wait for another job.
    Found {
        /// The job.
        job: SlurmJobId,
        /// Its script.
        submission: Box<JobSubmission>,
    },
    /// Slurm's queue was read.
    Listed {
        /// When the reading began.
        began: Time,
        /// The waiting jobs with data lines that are not known, by user.
        unknown: BTreeMap<Uid, BTreeSet<SlurmJobId>>,
        /// The jobs that Slurm has never asked about, and does not have any more.
        gone: BTreeSet<SlurmJobId>,
    },
    /// The user of a job that waits has had Slurm keep it from these nodes, instead of those before.
    Excludes {
        /// The job.
        job: SlurmJobId,
        /// The nodes.
        nodes: Vec<String>,
    },
    /// The planner keeps these nodes for a job that waits, instead of those before; none: it keeps none any more.
    Advised {
        /// The job.
        job: SlurmJobId,
        /// As many as it asks for.
        nodes: Vec<String>,
    },
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
        /// Owners who may have more there: data of theirs that is not listed is where the log records it.
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
    /// A node reports the result of an order.
    Reported {
        /// The order.
        order: u64,
        /// The report.
        report: Report,
    },
    /// Slurm's accounting has the ends of jobs ([`crate::Site::wanted_accounts`]).
    Accounted {
        /// By their numbers.
        jobs: BTreeMap<SlurmJobId, JobResult>,
    },
    /// Time has passed: leases may be over.
    Passed,
}

/// An action for the host of the site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SiteServiceAction {
    /// A node is to do this; its report comes with this number.
    Order {
        /// The node.
        node: String,
        /// The number.
        number: u64,
        /// The order.
        order: NodeOrder,
    },
    /// Replies to a request.
    Answer {
        /// The connection that waits.
        token: Token,
        /// The reply.
        reply: ControllerReply,
    },
    /// A notification for the log: an owner's data has changed without a request.
    Notify {
        /// The owner.
        owner: Owner,
        /// The notification.
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

impl SiteServiceEvent {
    /// A controller of this version begins.
    ///
    /// ```
    /// let event = tarn_site::SiteServiceEvent::began(7);
    /// assert!(matches!(event, tarn_site::SiteServiceEvent::Began { epoch: 7, .. }));
    /// ```
    #[must_use]
    pub fn began(epoch: Epoch) -> Self {
        Self::Began {
            epoch,
            rules: RULES,
        }
    }
}
