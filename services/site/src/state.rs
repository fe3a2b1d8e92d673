//! What is known: nodes, datasets with their versions and parts, jobs.

use crate::event::{Action, Config, Token};
use crate::lend::Lent;
use crate::level::{Level, Moving};
use crate::orders::Orders;
use crate::usage::Meter;
use crate::verify::Verifying;
use crate::{MAX_HISTORY, MAX_TRIES};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use tarn_proto::local::Refusal;
use tarn_proto::site::{
    Capacity, Epoch, Gid, Job, Order, Owner, Part, Proof, Said, Slice, Submitted, Uid, Work,
};
use tarn_types::energy::Draw;
use tarn_types::pattern::ScatterRule;
use tarn_types::units::Time;
use tarn_types::workflow::Keep;

/// A site: see the crate's page.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Site {
    pub(crate) config: Config,
    pub(crate) now: Time,
    pub(crate) epoch: Epoch,
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) workflows: BTreeMap<(Owner, String), Workflow>,
    pub(crate) jobs: BTreeMap<Job, JobState>,
    pub(crate) meters: BTreeMap<Owner, Meter>,
    /// What was ordered and not reported.
    pub(crate) orders: Orders,
    pub(crate) next_order: u64,
    /// Jobs that were submitted a moment ago, and when that was heard: they are taken in by their numbers.
    pub(crate) arriving: BTreeMap<Job, (Time, Submitted)>,
    /// Who waits for a job's stage, whatever its phase ([`Phase::Waiting`] is for nodes).
    pub(crate) waiting: BTreeMap<Job, Token>,
    /// Whose data is being read again.
    #[serde(default)]
    pub(crate) verifying: BTreeMap<Owner, Verifying>,
    #[serde(skip)]
    pub(crate) actions: Vec<Action>,
    /// What nodes draw, and their cores. Not in the log: it changes all the time, and only advice depends on it.
    #[serde(skip)]
    pub(crate) draws: BTreeMap<String, (Draw, u32)>,
}

/// A node.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Node {
    /// Its store, or the first of them, as it was said last.
    pub(crate) capacity: Option<Capacity>,
    /// Its stores, fast to slow; one has no name.
    #[serde(default)]
    pub(crate) levels: Vec<Level>,
    /// Whether it takes orders.
    pub(crate) is_up: bool,
    /// Since when that is so, or is not.
    pub(crate) since: Time,
    /// The parts that it has, of versions that are known.
    pub(crate) parts: BTreeMap<Part, u64>,
    /// In which of its stores each of them lies.
    #[serde(default)]
    pub(crate) places: BTreeMap<Part, BTreeSet<String>>,
    /// Those that are on their way from one store to another: also while nothing is heard of the node.
    #[serde(default)]
    pub(crate) moving: BTreeMap<Part, Moving>,
    /// What could not be brought to a store, and when that was tried last.
    #[serde(default)]
    pub(crate) stuck: BTreeMap<(Part, String), Time>,
    /// What it is to remove.
    pub(crate) doomed: BTreeSet<(Uid, tarn_proto::site::Held)>,
    /// What is there, and nobody knows.
    pub(crate) orphans: BTreeMap<(Uid, tarn_proto::site::Held), (u64, Time)>,
    /// Where its users' workers serve.
    pub(crate) ports: BTreeMap<Uid, u16>,
    /// Bytes that jobs were promised for what they write, by whose it will be.
    pub(crate) promised: BTreeMap<(Job, Owner), u64>,
    /// In which store a job writes a dataset, or has a partition, and bytes that it was promised there.
    #[serde(default)]
    pub(crate) written: BTreeMap<(Job, String), (String, u64)>,
    /// In which store a dataset of several parts was merged for a job.
    #[serde(default)]
    pub(crate) merged: BTreeMap<(Job, String), String>,
}

/// A workflow of one owner.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Workflow {
    /// No further job will come.
    pub(crate) has_ended: bool,
    /// Jobs of it that were submitted, and have not been taken in.
    pub(crate) awaits: BTreeSet<Job>,
    pub(crate) datasets: BTreeMap<String, Dataset>,
}

/// A dataset.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Dataset {
    pub(crate) versions: BTreeMap<u32, Version>,
    /// Who else may read it.
    pub(crate) readers: BTreeSet<Owner>,
    /// Kept until then by its owner's wish.
    pub(crate) kept: Option<Time>,
}

/// A version.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Version {
    pub(crate) state: VersionState,
    /// The job that makes or made it; none of a source.
    pub(crate) maker: Option<Job>,
    /// Of version 0.
    pub(crate) source: Option<PathBuf>,
    /// Of a source, the number of the part that is its content now: each content that was found there has one.
    pub(crate) content: u32,
    /// Its parts are encrypted.
    #[serde(default)]
    pub(crate) is_sealed: bool,
    /// What its parts hold. Of a source, none before it was read.
    pub(crate) parts: BTreeMap<u32, Proof>,
    pub(crate) keep: Keep,
    /// When it was used last.
    pub(crate) used: Time,
    /// Its owner was told that it will soon be removed.
    pub(crate) is_warned: bool,
}

/// How far a version is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum VersionState {
    /// Its job has not ended.
    Promised,
    /// Its parts are known.
    There,
    /// It will never be there.
    Failed(String),
}

/// A version's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct VersionId {
    pub(crate) owner: Owner,
    pub(crate) workflow: String,
    pub(crate) dataset: String,
    pub(crate) version: u32,
}

/// What a job reads.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Reads {
    /// What the job calls it.
    pub(crate) name: String,
    pub(crate) version: VersionId,
    /// On its first node only.
    pub(crate) on_first: bool,
    /// It is the beginning of what the job writes, not read for itself.
    pub(crate) is_changed: bool,
    /// Bytes that it is said to take: of a source that nobody has read.
    #[serde(default)]
    pub(crate) size: u64,
    /// The store that it is wished to be read in.
    #[serde(default)]
    pub(crate) tier: Option<String>,
}

/// What a job makes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Makes {
    pub(crate) version: VersionId,
    /// Which entries are of which rank; none if its first node alone publishes.
    pub(crate) rule: Option<ScatterRule>,
    /// What it begins with.
    pub(crate) from: Option<VersionId>,
    /// Bytes that it is said to take.
    pub(crate) size: u64,
    /// Where it goes at the end.
    pub(crate) dest: Option<PathBuf>,
    /// Where it goes if the job fails.
    pub(crate) rescue: Option<PathBuf>,
    /// On so many nodes at the end.
    pub(crate) copies: u32,
    /// The store that it is wished to be written to.
    #[serde(default)]
    pub(crate) tier: Option<String>,
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Phase {
    /// It waits for nodes.
    Waiting,
    /// Its nodes get what it reads.
    Staging,
    /// Its nodes have it.
    Running,
    /// What it has made becomes versions.
    Publishing,
    /// These are there.
    Published,
    /// They go where they belong.
    Sending,
    /// They are there too.
    Sent,
    /// Its folders are removed.
    Leaving,
    /// Nothing of it is left but its history.
    Ended,
}

/// A job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct JobState {
    pub(crate) user: Uid,
    pub(crate) group: Gid,
    /// All groups of its user, when it was submitted.
    pub(crate) groups: Vec<Gid>,
    pub(crate) owner: Owner,
    pub(crate) workflow: String,
    /// It is to run on the nodes of this job.
    pub(crate) beside: Option<Job>,
    pub(crate) phase: Phase,
    /// It leaves its nodes when what must be rescued is.
    pub(crate) is_leaving: bool,
    /// Nodes that its user excludes. `None`: not known, so what it excludes is left as it is.
    #[serde(default)]
    pub(crate) excludes: Option<Vec<String>>,
    /// The nodes without room for it when it was taken in.
    #[serde(default)]
    pub(crate) full: Vec<String>,
    /// As long as it has no nodes: those that it is expected on.
    #[serde(default)]
    pub(crate) ahead: Vec<String>,
    /// What it reads is being brought there.
    #[serde(default)]
    pub(crate) is_bringing: bool,
    /// Ranks, and nodes that it asks for.
    pub(crate) tasks: u32,
    pub(crate) wants: u32,
    pub(crate) reads: Vec<Reads>,
    pub(crate) makes: Vec<Makes>,
    /// On each of its nodes, or over them.
    #[serde(default)]
    pub(crate) partitions: Vec<Lent>,
    /// Where its nodes have said last that they lend their pieces of what lies over them, and how often one has said another port than before.
    #[serde(default)]
    pub(crate) shared: BTreeMap<String, u16>,
    #[serde(default)]
    pub(crate) moves: u32,
    pub(crate) nodes: Vec<String>,
    /// Its script ended well.
    pub(crate) is_well: bool,
    /// What was done for it on its nodes in this phase.
    pub(crate) done: BTreeSet<(String, Step)>,
    /// How often something has failed.
    pub(crate) tries: BTreeMap<(String, Step), u32>,
    pub(crate) history: Vec<(Time, String)>,
    pub(crate) waits: Option<String>,
    /// When its nodes became its.
    pub(crate) began: Option<Time>,
    pub(crate) changed: Time,
}

/// Something that is done once on a node for a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Step {
    /// A source, of this dataset, is looked at: whether it is what was read.
    Look(Owner, String, String),
    /// Where this dataset is to go outside is looked at: whether it may.
    CheckDest(String),
    /// A part is brought there.
    Fetch(Part),
    /// A version is merged to be read.
    View(String),
    /// A folder is made to be written.
    Prepare(String),
    /// A partition is made.
    Lend(String),
    /// The pieces of those that lie over its nodes are lent.
    Share,
    /// The node knows where the others lend theirs: after so many [`JobState::moves`].
    Join(u32),
    /// The job's tasks are let in.
    Admit,
    /// What was written becomes a part.
    Publish(String),
    /// It goes outside.
    Send(String),
    /// The folders go that the job has of this user's.
    Clear(Uid),
    /// It is not let in any more.
    Dismiss,
}

/// An order under way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ordered {
    pub(crate) node: String,
    pub(crate) why: Why,
    /// The store that it is about.
    #[serde(default)]
    pub(crate) store: String,
}

/// What an order is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Why {
    /// Something of a job; with the node that it takes bytes from.
    Job(Job, Step, Option<(String, Uid)>),
    /// To know where a user's worker serves.
    Port(Uid),
    /// Removal of what nobody needs.
    Reclaim(Uid, tarn_proto::site::Held),
    /// To know whether something that was given up is what it was.
    Check(Part, Proof),
    /// To know, for who asks, whether a replica is still this. It is the one of this position in what they are told.
    Verify(usize, Part, Proof),
    /// A job that is over is let in no more.
    Forget(Job),
    /// A part goes from one store of the node to another.
    Move(Part),
}

impl VersionId {
    pub(crate) fn part(&self, part: u32) -> Part {
        Part {
            owner: self.owner,
            workflow: self.workflow.clone(),
            dataset: self.dataset.clone(),
            version: self.version,
            part,
        }
    }

    pub(crate) fn of(part: &Part) -> Self {
        Self {
            owner: part.owner,
            workflow: part.workflow.clone(),
            dataset: part.dataset.clone(),
            version: part.version,
        }
    }

    /// A look at the source of its dataset.
    pub(crate) fn look(&self) -> Step {
        let (workflow, dataset) = (self.workflow.clone(), self.dataset.clone());
        Step::Look(self.owner, workflow, dataset)
    }
}

impl JobState {
    /// Says something of its data, for people.
    pub(crate) fn note(&mut self, now: Time, what: impl Into<String>) {
        let what = what.into();
        self.changed = now;
        if self.history.last().is_some_and(|(_, last)| *last == what) {
            return;
        }
        if self.history.len() == MAX_HISTORY {
            self.history.remove(0);
        }
        self.history.push((now, what));
    }

    /// Whether tarn may say which nodes it is not to get.
    pub(crate) fn is_anywhere(&self) -> bool {
        self.beside.is_none() && self.excludes.is_some()
    }

    /// The nodes that get what it reads.
    pub(crate) fn readers(&self, reads: &Reads) -> &[String] {
        match reads.on_first {
            true => &self.nodes[..self.nodes.len().min(1)],
            false => &self.nodes,
        }
    }

    /// The nodes that write it.
    pub(crate) fn writers(&self, makes: &Makes) -> &[String] {
        match makes.rule {
            None => &self.nodes[..self.nodes.len().min(1)],
            Some(_) => &self.nodes,
        }
    }

    /// What of a folder that all its nodes write is the part of the one at this position: ranks map to nodes in blocks.
    pub(crate) fn slice(&self, makes: &Makes, at: usize) -> Option<Slice> {
        let rule = makes.rule.clone()?;
        let nodes = self.nodes.len().max(1) as u32;
        let block = self.tasks.div_ceil(nodes).max(1);
        let at = at as u32;
        let first = (at * block).min(self.tasks);
        let is_last = at + 1 == nodes;
        let end = match is_last {
            true => self.tasks,
            false => (first + block).min(self.tasks),
        };
        Some(Slice {
            rule,
            first,
            end,
            rest: at == 0,
        })
    }

    /// Whether something has failed too often, counting this time.
    pub(crate) fn has_failed(&mut self, node: &str, step: &Step) -> bool {
        let tries = self.tries.entry((node.to_owned(), step.clone()));
        let tries = tries.or_default();
        *tries += 1;
        *tries >= MAX_TRIES
    }
}

/// Bytes that something takes on a tier: file systems give room in pieces, and names take some too.
pub(crate) fn room(proof: &Proof) -> u64 {
    let names = proof.entries.saturating_add(1).saturating_mul(4096);
    proof.bytes.saturating_add(names)
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

    /// Whether jobs arrive: then time is to pass in short steps.
    pub fn is_hasty(&self) -> bool {
        !self.arriving.is_empty()
    }

    /// Who waits for an answer.
    pub fn awaited(&self) -> BTreeSet<Token> {
        let verifying = self.verifying.values().map(|v| v.token);
        self.waiting.values().copied().chain(verifying).collect()
    }

    /// The term that it is in.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(crate) fn version(&self, id: &VersionId) -> Option<&Version> {
        let workflow = self.workflows.get(&(id.owner, id.workflow.clone()))?;
        workflow
            .datasets
            .get(&id.dataset)?
            .versions
            .get(&id.version)
    }

    pub(crate) fn version_mut(&mut self, id: &VersionId) -> Option<&mut Version> {
        let key = (id.owner, id.workflow.clone());
        let datasets = &mut self.workflows.get_mut(&key)?.datasets;
        datasets.get_mut(&id.dataset)?.versions.get_mut(&id.version)
    }

    pub(crate) fn answer_to(&mut self, token: Token, said: Said) {
        self.actions.push(Action::Answer { token, said });
    }

    /// Ends a job's stage for who waits for it.
    pub(crate) fn answer_stage(&mut self, job: Job, said: Result<Said, Refusal>) {
        if let Some(token) = self.waiting.remove(&job) {
            self.answer_to(token, said.unwrap_or_else(Said::Refused));
        }
    }

    pub(crate) fn order(&mut self, node: &str, why: Why, order: Order) {
        self.order_in((node, ""), why, order);
    }

    /// Orders something that is about a store of the node.
    pub(crate) fn order_in(&mut self, (node, store): (&str, &str), why: Why, order: Order) {
        self.next_order += 1;
        let number = self.next_order;
        let node = node.to_owned();
        let ordered = Ordered {
            node: node.clone(),
            why,
            store: store.to_owned(),
        };
        self.orders.insert(number, ordered);
        self.actions.push(Action::Order {
            node,
            number,
            order,
        });
    }

    pub(crate) fn work(&mut self, node: &str, why: Why, rights: (Uid, Gid), work: Work) {
        self.work_in((node, ""), why, rights, work);
    }

    pub(crate) fn work_in(
        &mut self,
        place: (&str, &str),
        why: Why,
        (user, group): (Uid, Gid),
        work: Work,
    ) {
        let work = Box::new(work);
        self.order_in(place, why, Order::Do { user, group, work });
    }

    /// Whose rights reach a part, for a job of this user.
    pub(crate) fn rights(owner: Owner, user: Uid) -> Uid {
        match owner {
            Owner::User(uid) => uid,
            Owner::Project(_) => user,
        }
    }
}
