//! The state of the checker: nodes, jobs, items and moves.

use super::super::plumbing;
use super::super::space::ItemDistribution;
use super::SiteRuleViolation;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tarn_types::account::sub;
use tarn_types::id::NodeId;
use tarn_types::site::promise::{PromiseJudge, StartPromise};
use tarn_types::site::{
    FlowId, Input, Item, ItemId, Job, JobId, JobNodes, Machine, Mode, Move, MoveId, NodeKind,
    Spread,
};
use tarn_types::units::Time;

/// The state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckedNodeState {
    Up,
    Asleep,
    Waking,
    Booting(Mode),
    Lost,
}

/// A node.
#[derive(Debug)]
pub(super) struct CheckedNode {
    pub(super) mode: Mode,
    pub(super) power: CheckedNodeState,
    /// It takes no new jobs until then, as far as is known; `Time::MAX` where it is not.
    pub(super) closed: Option<Time>,
    /// Jobs that have it or a part of it. Jobs that continue in another one's allocation are not listed.
    pub(super) guests: Vec<JobId>,
    /// Bytes of its tiers that are taken.
    pub(super) taken: u64,
}

/// How far a job has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckedJobStage {
    Waiting,
    Held,
    Running,
    Ended { ok: bool },
    Done,
    TakenOut,
}

/// A job.
#[derive(Debug)]
pub(super) struct JobRow {
    pub(super) job: Arc<Job>,
    pub(super) stage: CheckedJobStage,
    /// When it was submitted, and when it got nodes last.
    pub(super) submitted: Time,
    pub(super) since: Time,
    pub(super) attempts: u32,
    /// Times its nodes were taken from it by a loss.
    pub(super) broken: u32,
    pub(super) nodes: Option<JobNodes>,
    /// Nodes on which it is planned.
    pub(super) planned: Option<JobNodes>,
    /// It continues in its script's allocation.
    pub(super) within: bool,
    /// The host began it.
    pub(super) by_host: bool,
    /// The host gave some of its nodes to another, and has not begun it: it may leave them.
    pub(super) may_leave: bool,
    /// The host took its nodes from it: its release follows.
    pub(super) leaves: bool,
    /// The promise that it had when the planner allocated it nodes: if the host does not begin it, it has waited all the time.
    pub(super) promised: Option<StartPromise<JobId>>,
    /// It has ended well, though it may run again for data of a lost node.
    pub(super) ended_once: bool,
    /// Items that direct moves brought into its memory, with the nodes.
    pub(super) brought: Vec<(ItemId, JobNodes)>,
    /// It writes to its tiers.
    pub(super) writes_locally: bool,
}

/// An item.
#[derive(Debug)]
pub(super) struct ItemRow {
    pub(super) item: Item,
    /// Its size as far as known.
    pub(super) bytes: u64,
    pub(super) outside: bool,
    pub(super) producer: Option<JobId>,
    pub(super) readers: Vec<JobId>,
    /// Its layouts on the tiers, each of the whole item.
    pub(super) layouts: Vec<ItemDistribution>,
}

/// Which end of a move is a job's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckedMemoryEnd {
    None,
    From,
    To,
}

/// The account.
#[derive(Debug)]
pub(crate) struct SiteAccount {
    pub(super) now: Time,
    pub(super) machine: Machine,
    pub(super) island_of: Vec<u16>,
    pub(super) nodes: Vec<CheckedNode>,
    pub(super) jobs: BTreeMap<JobId, JobRow>,
    pub(super) items: BTreeMap<ItemId, ItemRow>,
    pub(super) moves: BTreeMap<MoveId, (Move, CheckedMemoryEnd)>,
    /// Items of which a lost node took the last: nobody else can be blamed for that.
    pub(super) lost: BTreeSet<ItemId>,
    /// When the first job of each workflow came.
    pub(super) flows: BTreeMap<FlowId, Time>,
    /// Of the promise to ordinary jobs, if there is a bound.
    pub(super) judge: Option<PromiseJudge<JobId>>,
    /// The host decides by itself: a job may wait although it could begin.
    pub(super) has_host: bool,
}

impl SiteAccount {
    pub(super) fn new(machine: &Machine) -> Self {
        let island_of = machine.island_of();
        let node = |island: &u16| CheckedNode {
            mode: machine.islands[usize::from(*island)].kind.mode,
            power: CheckedNodeState::Up,
            closed: None,
            guests: Vec::new(),
            taken: 0,
        };
        Self {
            now: 0,
            machine: machine.clone(),
            nodes: island_of.iter().map(node).collect(),
            island_of,
            jobs: BTreeMap::new(),
            items: BTreeMap::new(),
            moves: BTreeMap::new(),
            lost: BTreeSet::new(),
            flows: BTreeMap::new(),
            judge: None,
            has_host: false,
        }
    }

    pub(super) fn kind(&self, node: NodeId) -> &NodeKind {
        &self.machine.islands[usize::from(self.island_of[node.at()])].kind
    }

    pub(super) fn job(&self, id: JobId) -> Result<&JobRow, SiteRuleViolation> {
        let row = self.jobs.get(&id);
        row.ok_or_else(|| ("known ids", format!("job {id} was not submitted")))
    }

    pub(super) fn job_mut(&mut self, id: JobId) -> Result<&mut JobRow, SiteRuleViolation> {
        let row = self.jobs.get_mut(&id);
        row.ok_or_else(|| ("known ids", format!("job {id} was not submitted")))
    }

    pub(super) fn item(&self, id: ItemId) -> Result<&ItemRow, SiteRuleViolation> {
        let row = self.items.get(&id);
        row.ok_or_else(|| ("known ids", format!("item {id} was not submitted")))
    }

    pub(super) fn item_mut(&mut self, id: ItemId) -> Result<&mut ItemRow, SiteRuleViolation> {
        let row = self.items.get_mut(&id);
        row.ok_or_else(|| ("known ids", format!("item {id} was not submitted")))
    }

    /// Whether these are different nodes of one island, all up.
    pub(super) fn usable(&self, what: &str, nodes: &[NodeId]) -> Result<(), SiteRuleViolation> {
        let mut sorted = nodes.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() < nodes.len() || nodes.is_empty() {
            return Err((
                "nodes",
                format!("{what} names no node or one twice: {nodes:?}"),
            ));
        }
        for node in nodes {
            let Some(state) = self.nodes.get(node.at()) else {
                return Err((
                    "known ids",
                    format!("{what} names node {node}, which is not there"),
                ));
            };
            if state.power != CheckedNodeState::Up {
                return Err((
                    "nodes are up",
                    format!("{what} uses node {node}, which is {:?}", state.power),
                ));
            }
        }
        if nodes
            .iter()
            .any(|n| self.island_of[n.at()] != self.island_of[nodes[0].at()])
        {
            return Err(("one island", format!("{what} spans islands: {nodes:?}")));
        }
        Ok(())
    }

    /// Takes space, which must be there.
    pub(super) fn take(
        &mut self,
        what: &str,
        item: ItemId,
        layout: &ItemDistribution,
    ) -> Result<(), SiteRuleViolation> {
        let each = layout.each(self.item(item)?.bytes);
        for node in layout.nodes.iter() {
            let capacity = plumbing::capacity(self.kind(*node), self.nodes[node.at()].mode);
            let taken = &mut self.nodes[node.at()].taken;
            *taken += each;
            if each > 0 && *taken > capacity {
                return Err((
                    "tier capacity",
                    format!(
                        "{what} takes {each} bytes for item {item} on node {node}, whose tiers hold {capacity} bytes, \
                         {} of them taken already",
                        *taken - each
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Gives space back.
    pub(super) fn give_back(
        &mut self,
        item: ItemId,
        layout: &ItemDistribution,
    ) -> Result<(), SiteRuleViolation> {
        let each = layout.each(self.item(item)?.bytes);
        for node in layout.nodes.iter() {
            self.free(*node, each);
        }
        Ok(())
    }

    pub(super) fn free(&mut self, node: NodeId, bytes: u64) {
        let taken = &mut self.nodes[node.at()].taken;
        sub(taken, bytes, "bytes of a node");
    }

    /// The layout of a job's output on its tiers, if it writes there.
    pub(super) fn written(row: &JobRow) -> Option<ItemDistribution> {
        row.nodes
            .as_ref()
            .map(|n| ItemDistribution::new(n, Spread::Share))
    }

    /// Whether an input of a job is on the so-and-so-manieth of its nodes.
    fn is_on(
        &self,
        row: &JobRow,
        input: &Input,
        nodes: &[NodeId],
        rank: usize,
    ) -> Result<bool, SiteRuleViolation> {
        let node = nodes[rank];
        let brought = row.brought.iter();
        let mut brought = brought.filter(|(item, _)| *item == input.item);
        let serves_input = |l: &ItemDistribution| serves(l, input.spread, nodes, rank);
        let item = self.item(input.item)?;
        Ok(brought.any(|(_, to)| to.contains(&node)) || item.layouts.iter().any(serves_input))
    }

    /// An item that only the tiers hold is leased to the jobs that count on it: those that are planned on its nodes or have them.
    /// It stays until their programs run (and then because these read it).
    pub(super) fn leased(
        &self,
        what: &str,
        id: ItemId,
        gone: &ItemDistribution,
    ) -> Result<(), SiteRuleViolation> {
        let item = self.item(id)?;
        if item.outside {
            return Ok(());
        }
        for reader in &item.readers {
            let row = self.job(*reader)?;
            let nodes = match row.stage {
                CheckedJobStage::Held => row.nodes.as_deref(),
                CheckedJobStage::Waiting => row.planned.as_deref(),
                _ => None,
            };
            let nodes = nodes.unwrap_or_default();
            for input in row.job.reads.iter().filter(|i| i.item == id) {
                for rank in 0..nodes.len() {
                    let was = serves(gone, input.spread, nodes, rank);
                    if was && !self.is_on(row, input, nodes, rank)? {
                        return Err((
                            "leases are honoured",
                            format!(
                                "{what} takes it away from node {}, where job {reader} counts on it",
                                nodes[rank]
                            ),
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// The first input of a job that is not on one of its nodes.
    pub(super) fn lacking(
        &self,
        row: &JobRow,
    ) -> Result<Option<(ItemId, NodeId)>, SiteRuleViolation> {
        let nodes: &[NodeId] = row.nodes.as_deref().unwrap_or_default();
        for input in &row.job.reads {
            for (rank, node) in nodes.iter().enumerate() {
                if !self.is_on(row, input, nodes, rank)? {
                    return Ok(Some((input.item, *node)));
                }
            }
        }
        Ok(None)
    }

    /// Why an item is still needed, if it is.
    pub(super) fn needed(&self, item: &ItemRow) -> Option<String> {
        let reader = item.readers.iter().find(|j| {
            let stage = self.jobs.get(j).map(|r| r.stage);
            !matches!(
                stage,
                Some(
                    CheckedJobStage::Done
                        | CheckedJobStage::TakenOut
                        | CheckedJobStage::Ended { ok: true }
                )
            )
        });
        if let Some(reader) = reader {
            return Some(format!("job {reader} is to read it"));
        }
        (item.item.keep && !item.outside).then(|| "it has to be outside in the end".to_owned())
    }

    /// An item that must not be lost is still somewhere.
    pub(super) fn still_there(&self, what: &str, id: ItemId) -> Result<(), SiteRuleViolation> {
        let item = self.item(id)?;
        if item.outside || !item.layouts.is_empty() {
            return Ok(());
        }
        match self.needed(item) {
            None => Ok(()),
            Some(why) => Err((
                "nothing needed is lost",
                format!("{what} loses item {id}, which lies nowhere else, and {why}"),
            )),
        }
    }

    /// Jobs that run still have these inputs. A lost node may have taken others, from a script that continues elsewhere in
    /// its allocation: it has them in memory.
    pub(super) fn runs_undisturbed(
        &self,
        what: &str,
        gone: &[ItemId],
    ) -> Result<(), SiteRuleViolation> {
        for (id, row) in self
            .jobs
            .iter()
            .filter(|(_, r)| r.stage == CheckedJobStage::Running)
        {
            if let Some((item, node)) = self.lacking(row)?.filter(|l| gone.contains(&l.0)) {
                return Err((
                    "inputs stay",
                    format!(
                        "{what} takes item {item} away from node {node}, where job {id} reads it"
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// Whether an item in this layout is, for a job on these nodes, on the node with this rank.
fn serves(l: &ItemDistribution, wanted: Spread, nodes: &[NodeId], rank: usize) -> bool {
    match (l.spread, wanted) {
        (Spread::Whole, _) => l.nodes.contains(&nodes[rank]),
        (Spread::Share, Spread::Share) => {
            l.nodes.len() == nodes.len() && l.nodes.get(rank) == nodes.get(rank)
        }
        (Spread::Share, Spread::Whole) => false,
    }
}
