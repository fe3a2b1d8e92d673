//! Facts of a host that decides by itself. The checker believes them; it holds the planner to what follows from them.

use super::super::space::ItemDistribution;
use super::SiteRuleViolation;
use super::state::{CheckedJobStage, CheckedMemoryEnd, JobRow, SiteAccount};
use std::sync::Arc;
use tarn_types::id::NodeId;
use tarn_types::site::{ItemId, Job, JobId, JobNodes, MoveId, SiteEvent, Spread, Where};
use tarn_types::units::Time;

impl SiteAccount {
    pub(super) fn host_did(&mut self, event: &SiteEvent) -> Result<(), SiteRuleViolation> {
        self.has_host = true;
        match event {
            SiteEvent::Began {
                job, nodes, since, ..
            } => self.began(*job, nodes, *since),
            SiteEvent::Withdrawn { job } => {
                self.take_nodes_back(*job)?;
                self.job_mut(*job)?.stage = CheckedJobStage::TakenOut;
                Ok(())
            }
            SiteEvent::NotBegun { job } => self.take_nodes_back(*job),
            SiteEvent::Changed { job, spec } => self.changed(*job, spec),
            SiteEvent::Closed { node, until } => {
                self.nodes[node.at()].closed = Some(until.unwrap_or(Time::MAX));
                Ok(())
            }
            SiteEvent::Opened { node } => {
                self.nodes[node.at()].closed = None;
                Ok(())
            }
            SiteEvent::Stored {
                item,
                nodes,
                spread,
                ..
            } => self.stored(*item, nodes, *spread),
            SiteEvent::Gone {
                item,
                nodes,
                spread,
            } => self.gone(*item, nodes, *spread),
            _ => Ok(()),
        }
    }

    /// The host gave a job nodes. Jobs that it has not begun may have to leave them.
    fn began(&mut self, id: JobId, nodes: &JobNodes, since: Time) -> Result<(), SiteRuleViolation> {
        if self.job(id)?.nodes.as_ref() == Some(nodes) {
            let row = self.job_mut(id)?;
            (row.by_host, row.since, row.promised) = (true, since, None);
            return Ok(());
        }
        self.take_nodes_back(id)?;
        // It begins, if not on the nodes that the planner had allocated.
        self.job_mut(id)?.promised = None;
        for node in nodes.iter() {
            for other in self.nodes[node.at()].guests.clone() {
                let row = self.job_mut(other)?;
                row.may_leave |= !row.by_host;
            }
            self.nodes[node.at()].guests.push(id);
        }
        let row = self.job_mut(id)?;
        row.stage = CheckedJobStage::Held;
        (row.since, row.by_host, row.may_leave) = (since, true, false);
        (row.nodes, row.planned, row.within) = (Some(nodes.clone()), None, false);
        row.brought.clear();
        Ok(())
    }

    /// A job has the nodes no more that the planner had allocated: a release follows, and no attempt was made.
    fn take_nodes_back(&mut self, id: JobId) -> Result<(), SiteRuleViolation> {
        let row = self.job_mut(id)?;
        let Some(nodes) = row.nodes.take() else {
            return Ok(());
        };
        row.leaves = true;
        self.leave(id, &nodes)
    }

    /// A job that the host has not begun leaves its nodes.
    pub(super) fn leave(&mut self, id: JobId, nodes: &[NodeId]) -> Result<(), SiteRuleViolation> {
        for node in nodes {
            self.nodes[node.at()].guests.retain(|j| *j != id);
        }
        let row = self.job_mut(id)?;
        row.attempts -= u32::from(row.stage == CheckedJobStage::Running);
        row.stage = CheckedJobStage::Waiting;
        (row.nodes, row.may_leave, row.writes_locally) = (None, false, false);
        let promised = row.promised.take();
        self.promise_again(promised);
        Ok(())
    }

    fn changed(&mut self, id: JobId, spec: &Arc<Job>) -> Result<(), SiteRuleViolation> {
        let now = self.now;
        let row = self.job_mut(id)?;
        let other = row.job.on != spec.on || spec.not_before > now;
        let waits = row.stage == CheckedJobStage::Waiting;
        row.job = spec.clone();
        // Such a job is promised a begin again, if it is the first then.
        if other
            && waits
            && let Some(judge) = &mut self.judge
        {
            judge.forget(id);
        }
        Ok(())
    }

    fn stored(
        &mut self,
        id: ItemId,
        nodes: &JobNodes,
        spread: Spread,
    ) -> Result<(), SiteRuleViolation> {
        if nodes.is_empty() {
            self.item_mut(id)?.outside = true;
            return Ok(());
        }
        let layout = ItemDistribution::new(nodes, spread);
        let to = Where::Nodes(nodes.clone());
        let brings = |(m, memory): &(_, CheckedMemoryEnd)| {
            let m: &tarn_types::site::Move = m;
            m.item == id && m.to == to && *memory == CheckedMemoryEnd::None
        };
        let coming = self
            .moves
            .iter()
            .find(|(_, m)| brings(m))
            .map(|(id, _)| *id);
        let coming: Option<MoveId> = coming;
        match coming {
            // Its space is taken already.
            Some(coming) => {
                self.moves.remove(&coming);
            }
            None => {
                let each = layout.each(self.item(id)?.bytes);
                for node in nodes.iter() {
                    self.nodes[node.at()].taken += each;
                }
            }
        }
        self.item_mut(id)?.layouts.push(layout);
        Ok(())
    }

    fn gone(
        &mut self,
        id: ItemId,
        nodes: &JobNodes,
        spread: Spread,
    ) -> Result<(), SiteRuleViolation> {
        let layout = ItemDistribution::new(nodes, spread);
        let item = self.item_mut(id)?;
        let Some(at) = item.layouts.iter().position(|l| *l == layout) else {
            return Err(("known ids", format!("item {id} is not on {nodes:?}")));
        };
        item.layouts.remove(at);
        if item.layouts.is_empty() && !item.outside {
            self.lost.insert(id);
        }
        // Programs that read it have it in memory, or fail by themselves.
        for row in self.jobs.values_mut() {
            let reads = row.job.reads.iter().any(|i| i.item == id);
            if reads && row.stage == CheckedJobStage::Running {
                row.brought.extend(row.nodes.clone().map(|n| (id, n)));
            }
        }
        self.give_back(id, &layout)
    }

    /// The row of a job that has just come.
    pub(super) fn row_of(&self, job: &Arc<Job>) -> JobRow {
        JobRow {
            job: job.clone(),
            stage: CheckedJobStage::Waiting,
            submitted: self.now,
            since: 0,
            attempts: 0,
            broken: 0,
            nodes: None,
            planned: None,
            within: false,
            by_host: false,
            may_leave: false,
            leaves: false,
            promised: None,
            ended_once: false,
            brought: Vec::new(),
            writes_locally: false,
        }
    }
}
