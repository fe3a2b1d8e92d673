//! The inputs of the controller's loop.

use super::ReadyNode;
use super::scripts::FoundJob;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Sender, SyncSender};
use tarn_proto::site::{
    ControllerReply, ControllerRequest, NumberedOrder, Report, SlurmJobId, Uid,
};
use tarn_site_planner::{PowerOrder, ReservedFor};
use tarn_types::site::JobResult;

/// An input of the controller.
pub(crate) enum ControllerInput {
    /// A request of a client.
    Request {
        user: Uid,
        groups: Vec<u32>,
        trusted: bool,
        ask: ControllerRequest,
        reply: SyncSender<ControllerReply>,
    },
    /// A node takes orders.
    Opened(Box<OpenedNode>),
    /// A session is over.
    Closed { node: String, session: u64 },
    /// Slurm's state was read, or could not be.
    Read,
    /// The planner's decisions about nodes' sleep.
    Power(Vec<PowerOrder>),
    /// A request for the nodes that have no data now.
    Spare { reply: SyncSender<BTreeSet<String>> },
    /// The nodes that are reserved for a waiting job.
    Reserved(ReservedFor),
    /// Scripts of jobs were read that Slurm has not asked about.
    Found(Vec<FoundJob>),
    /// The user of a waiting job has it exclude these nodes now.
    Excludes { job: SlurmJobId, nodes: Vec<String> },
    /// The power that nodes draw as Slurm reports it, in thousandths of a watt.
    Drawn(BTreeMap<String, u64>),
    /// How jobs ended, by Slurm's accounting.
    Accounted(BTreeMap<SlurmJobId, JobResult>),
    /// A node's report on an order.
    Reported {
        node: String,
        session: u64,
        number: u64,
        report: Report,
    },
}

/// A node that takes orders.
pub(crate) struct OpenedNode {
    pub(super) node: String,
    /// The number of its session.
    pub(super) session: u64,
    /// How often the secrets had changed when the session began.
    pub(super) changes: u64,
    pub(super) ready: ReadyNode,
    pub(super) orders: Sender<NumberedOrder>,
}
