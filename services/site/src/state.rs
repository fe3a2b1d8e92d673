//! The state: nodes, datasets with their versions and parts, jobs.

use crate::event::{Config, SiteServiceAction, Token};
use crate::model::catalog::Catalog;
use crate::model::checkpoints::{CheckpointKey, CheckpointUse};
use crate::model::flow::FlowTable;
use crate::model::job::{SiteJob, SiteJobPhase};
use crate::model::node::SiteNode;
use crate::model::orders::{OrderPurpose, OrderTable, Ordered};
use crate::model::queue::QueueReading;
use crate::model::records::JobRecords;
use crate::model::reserved::ReservedNodes;
use crate::model::usage::UsageTable;
use crate::model::verification::Verifying;
use crate::placement::Placement;
use crate::stock::Stock;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{
    ControllerReply, Epoch, Gid, JobSubmission, NodeOrder, Owner, SlurmJobId, Uid, Work,
};
use tarn_types::energy::Draw;
use tarn_types::units::Time;

/// A site: see the crate's page.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Site {
    pub(crate) config: Config,
    pub(crate) now: Time,
    pub(crate) epoch: Epoch,
    /// Of the controller that wrote the events.
    #[serde(default)]
    pub(crate) rules: u32,
    pub(crate) nodes: BTreeMap<String, SiteNode>,
    #[serde(rename = "workflows")]
    pub(crate) catalog: Catalog,
    pub(crate) jobs: BTreeMap<SlurmJobId, SiteJob>,
    #[serde(rename = "meters")]
    pub(crate) usage: UsageTable,
    /// The sums of workflows.
    #[serde(default)]
    pub(crate) flows: FlowTable,
    /// Orders without a report.
    pub(crate) orders: OrderTable,
    pub(crate) next_order: u64,
    /// Jobs that are to be taken in by their numbers, and when they arrived.
    pub(crate) arriving: BTreeMap<SlurmJobId, (Time, JobSubmission)>,
    /// Checkpoints that nodes have.
    #[serde(default)]
    pub(crate) checkpoints: BTreeMap<CheckpointKey, CheckpointUse>,
    /// Slurm's queue when it was read last.
    #[serde(default)]
    pub(crate) queue: QueueReading,
    /// Jobs that were found in Slurm's queue and cannot be taken in: Slurm gets the reason when it asks.
    #[serde(default)]
    pub(crate) refused: BTreeMap<SlurmJobId, RequestError>,
    /// The connection that waits for a job's stage, whatever its phase ([`Queued`](crate::model::job::SiteJobPhase::Queued) is for nodes).
    pub(crate) waiting: BTreeMap<SlurmJobId, Token>,
    /// The nodes that the planner keeps for jobs that have none yet.
    #[serde(default)]
    pub(crate) reserved: BTreeMap<SlurmJobId, ReservedNodes>,
    /// The owners whose data is being read again.
    #[serde(default)]
    pub(crate) verifying: BTreeMap<Owner, Verifying>,
    /// Of jobs that have ended, and of those that will.
    #[serde(default)]
    pub(crate) records: JobRecords,
    #[serde(skip)]
    pub(crate) actions: Vec<SiteServiceAction>,
    /// The power that nodes draw, and their cores. Not in the log: it changes all the time, and only advice depends on
    /// it.
    #[serde(skip)]
    pub(crate) draws: BTreeMap<String, (Draw, u32)>,
}

impl Site {
    /// A site of which nothing is known yet.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            ..Self::default()
        }
    }

    /// Its wishes have changed.
    pub fn configure(&mut self, config: Config) {
        self.config = config;
    }

    /// All nodes that were ever named.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }

    /// The nodes that have parts.
    pub fn holders(&self) -> impl Iterator<Item = &str> {
        let have = self.nodes.iter().filter(|(_, n)| !n.parts.is_empty());
        have.map(|(name, _)| name.as_str())
    }

    /// Whether somebody waits for a stage that may end by time passing.
    pub fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether a job with data has no nodes yet.
    pub fn is_queued(&self) -> bool {
        let is_queued = |job: &SiteJob| job.phase == SiteJobPhase::Queued;
        !self.arriving.is_empty() || self.jobs.values().any(is_queued)
    }

    /// Whether a job waits for nodes.
    pub fn is_queued_job(&self, job: SlurmJobId) -> bool {
        let known = self.jobs.get(&job);
        known.is_some_and(|job| job.phase == SiteJobPhase::Queued)
    }

    /// Whether jobs arrive: each waits for a reading of Slurm's queue that begins after it arrived.
    pub fn is_arriving(&self) -> bool {
        !self.arriving.is_empty()
    }

    /// Whether a job was taken in, arrives, or was refused.
    pub fn is_known(&self, job: SlurmJobId) -> bool {
        self.jobs.contains_key(&job)
            || self.arriving.contains_key(&job)
            || self.refused.contains_key(&job)
    }

    /// The jobs that Slurm's queue has, unless they are over.
    pub fn queued_jobs(&self) -> impl Iterator<Item = SlurmJobId> {
        let jobs = self.jobs.iter();
        let jobs = jobs.filter(|(_, job)| job.phase == SiteJobPhase::Queued);
        jobs.map(|(id, _)| *id).chain(self.refused.keys().copied())
    }

    /// Whether a user's job was taken in: an error if it was refused, or is somebody else's. `None`: neither yet.
    pub fn taken_in(&self, user: Uid, job: SlurmJobId) -> Option<Result<(), RequestError>> {
        if let Some(why) = self.refused.get(&job) {
            return Some(Err(why.clone()));
        }
        let known = self.jobs.get(&job)?;
        Some(if known.user == user || user == 0 {
            Ok(())
        } else {
            let text = format!("job {job} is somebody else's");
            Err(RequestError::new(Code::Denied, text))
        })
    }

    /// The connections that wait for a reply.
    pub fn awaited(&self) -> BTreeSet<Token> {
        let verifying = self.verifying.values().map(|v| v.token);
        self.waiting.values().copied().chain(verifying).collect()
    }

    /// The term that it is in.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// A view of the content of the nodes' stores.
    pub(crate) fn stock(&self) -> Stock<'_> {
        Stock {
            catalog: &self.catalog,
            nodes: &self.nodes,
            jobs: &self.jobs,
            orders: &self.orders,
            now: self.now,
        }
    }

    /// The state from which jobs are placed.
    pub(crate) fn placement(&self) -> Placement<'_> {
        Placement {
            stock: self.stock(),
            draws: &self.draws,
            is_ahead: self.config.ahead,
        }
    }

    pub(crate) fn answer_to(&mut self, token: Token, reply: ControllerReply) {
        self.actions
            .push(SiteServiceAction::Answer { token, reply });
    }

    /// Ends a job's stage for the connection that waits for it.
    pub(crate) fn answer_stage(
        &mut self,
        job: SlurmJobId,
        reply: Result<ControllerReply, RequestError>,
    ) {
        if reply.is_ok() {
            self.record_stage_end(job);
        }
        if let Some(token) = self.waiting.remove(&job) {
            self.answer_to(token, reply.unwrap_or_else(ControllerReply::Refused));
        }
    }

    pub(crate) fn order(&mut self, node: &str, why: OrderPurpose, order: NodeOrder) {
        self.order_in((node, ""), why, order);
    }

    /// Orders something that is about a store of the node.
    pub(crate) fn order_in(
        &mut self,
        (node, store): (&str, &str),
        why: OrderPurpose,
        order: NodeOrder,
    ) {
        self.next_order += 1;
        let number = self.next_order;
        let node = node.to_owned();
        let ordered = Ordered {
            node: node.clone(),
            why,
            store: store.to_owned(),
            since: self.now,
        };
        self.orders.insert(number, ordered);
        self.actions.push(SiteServiceAction::Order {
            node,
            number,
            order,
        });
    }

    pub(crate) fn work(&mut self, node: &str, why: OrderPurpose, rights: (Uid, Gid), work: Work) {
        self.work_in((node, ""), why, rights, work);
    }

    pub(crate) fn work_in(
        &mut self,
        place: (&str, &str),
        why: OrderPurpose,
        (user, group): (Uid, Gid),
        work: Work,
    ) {
        let work = Box::new(work);
        self.order_in(place, why, NodeOrder::Do { user, group, work });
    }

    /// The user whose rights reach a part, for a job of this user.
    pub(crate) fn rights(owner: Owner, user: Uid) -> Uid {
        match owner {
            Owner::User(uid) => uid,
            Owner::Project(_) => user,
        }
    }
}
