//! Events, as the checker takes them in.

use super::super::space::ItemDistribution;
use super::SiteRuleViolation;
use super::state::{
    CheckedJobStage, CheckedMemoryEnd, CheckedNodeState, ItemRow, JobRow, SiteAccount,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use tarn_types::id::NodeId;
use tarn_types::site::{Item, ItemId, Job, JobId, Move, MoveId, SiteEvent, Where};

impl SiteAccount {
    pub(super) fn happened(&mut self, event: &SiteEvent) -> Result<(), SiteRuleViolation> {
        match event {
            SiteEvent::Submitted { jobs, items } => self.submitted(jobs, items),
            SiteEvent::Moved { id } => self.moved(*id),
            SiteEvent::MoveFailed { id } => {
                let (order, memory) = self.take_move(*id)?;
                self.undo(&order, memory)
            }
            SiteEvent::Ended { job, ok, sizes } => {
                for (item, bytes) in sizes {
                    self.true_size(*job, *item, *bytes)?;
                }
                self.ended(*job, *ok)
            }
            SiteEvent::ModeSet { node, ok } => {
                let state = &mut self.nodes[node.at()];
                if let (CheckedNodeState::Booting(mode), true) = (state.power, ok) {
                    state.mode = mode;
                }
                state.power = CheckedNodeState::Up;
                Ok(())
            }
            SiteEvent::Awake { node } => {
                self.nodes[node.at()].power = CheckedNodeState::Up;
                Ok(())
            }
            SiteEvent::NodeLost { node } => self.lost(*node),
            SiteEvent::NodeBack { node } => {
                let mode = self.kind(*node).mode;
                let state = &mut self.nodes[node.at()];
                (state.power, state.mode) = (CheckedNodeState::Up, mode);
                Ok(())
            }
            SiteEvent::Timer => Ok(()),
            _ => self.host_did(event),
        }
    }

    fn submitted(
        &mut self,
        jobs: &[(JobId, Arc<Job>)],
        items: &[(ItemId, Item)],
    ) -> Result<(), SiteRuleViolation> {
        for (id, item) in items {
            let row = ItemRow {
                item: *item,
                bytes: item.bytes,
                outside: item.outside,
                producer: None,
                readers: Vec::new(),
                layouts: Vec::new(),
            };
            if self.items.insert(*id, row).is_some() {
                return Err(("submitted once", format!("item {id} was submitted twice")));
            }
        }
        for (id, job) in jobs {
            if let Some(flow) = job.flow {
                self.flows.entry(flow).or_insert(self.now);
            }
            for item in &job.writes {
                self.item_mut(*item)?.producer = Some(*id);
            }
            for input in &job.reads {
                self.item_mut(input.item)?.readers.push(*id);
            }
            let withdrawn = |r: &JobRow| r.stage == CheckedJobStage::TakenOut;
            if self.jobs.get(id).is_some_and(withdrawn) {
                self.jobs.remove(id);
            }
            let row = self.row_of(job);
            if self.jobs.insert(*id, row).is_some() {
                return Err(("submitted once", format!("job {id} was submitted twice")));
            }
        }
        Ok(())
    }

    fn take_move(&mut self, id: MoveId) -> Result<(Move, CheckedMemoryEnd), SiteRuleViolation> {
        let found = self.moves.remove(&id);
        found.ok_or_else(|| {
            (
                "known ids",
                format!("move {} ended and was not under way", id.0),
            )
        })
    }

    fn moved(&mut self, id: MoveId) -> Result<(), SiteRuleViolation> {
        let (order, memory) = self.take_move(id)?;
        match &order.to {
            Where::Outside => self.item_mut(order.item)?.outside = true,
            Where::Nodes(nodes) if memory == CheckedMemoryEnd::To => {
                if let Some(row) = order.job.and_then(|j| self.jobs.get_mut(&j)) {
                    row.brought.push((order.item, nodes.clone()));
                }
            }
            Where::Nodes(nodes) => {
                let layout = ItemDistribution::new(nodes, order.spread);
                self.item_mut(order.item)?.layouts.push(layout);
            }
        }
        if memory == CheckedMemoryEnd::From {
            self.left_memory(&order)?;
        }
        Ok(())
    }

    /// An item that a job wrote out itself does not stay on its nodes.
    fn left_memory(&mut self, order: &Move) -> Result<(), SiteRuleViolation> {
        let Some(layout) = order
            .job
            .and_then(|j| self.jobs.get(&j))
            .and_then(Self::written)
        else {
            return Ok(());
        };
        let item = self.item_mut(order.item)?;
        if item.producer != order.job {
            return Ok(());
        }
        if let Some(at) = item.layouts.iter().position(|l| *l == layout) {
            item.layouts.remove(at);
            self.give_back(order.item, &layout)?;
        }
        Ok(())
    }

    pub(super) fn undo(
        &mut self,
        order: &Move,
        memory: CheckedMemoryEnd,
    ) -> Result<(), SiteRuleViolation> {
        if let (Where::Nodes(nodes), true) = (&order.to, memory != CheckedMemoryEnd::To) {
            self.give_back(order.item, &ItemDistribution::new(nodes, order.spread))?;
        }
        Ok(())
    }

    fn true_size(&mut self, job: JobId, item: ItemId, bytes: u64) -> Result<(), SiteRuleViolation> {
        let row = self.job(job)?;
        let layout = Self::written(row).filter(|_| row.writes_locally);
        // Space was taken for the known size; a surprise is nobody's fault.
        if let Some(layout) = &layout {
            self.give_back(item, layout)?;
        }
        self.item_mut(item)?.bytes = bytes;
        for layout in layout.iter() {
            for node in layout.nodes.iter() {
                self.nodes[node.at()].taken += layout.each(bytes);
            }
        }
        Ok(())
    }

    fn ended(&mut self, job: JobId, ok: bool) -> Result<(), SiteRuleViolation> {
        let row = self.job_mut(job)?;
        let ran = row.stage == CheckedJobStage::Running;
        row.stage = CheckedJobStage::Ended { ok };
        row.ended_once |= ok;
        let layout = Self::written(row).filter(|_| row.writes_locally && ran);
        row.writes_locally = false;
        let writes = row.job.writes.clone();
        let Some(layout) = layout else {
            return Ok(());
        };
        for item in writes {
            if ok {
                self.lost.remove(&item);
                self.item_mut(item)?.layouts.push(layout.clone());
            } else {
                self.give_back(item, &layout)?;
            }
        }
        Ok(())
    }

    fn lost(&mut self, node: NodeId) -> Result<(), SiteRuleViolation> {
        let touches = |w: &Where| matches!(w, Where::Nodes(nodes) if nodes.contains(&node));
        let moves = std::mem::take(&mut self.moves);
        let (failed, kept) = moves
            .into_iter()
            .partition(|(_, (order, _))| touches(&order.from) || touches(&order.to));
        self.moves = kept;
        let failed: BTreeMap<MoveId, (Move, CheckedMemoryEnd)> = failed;
        for (order, memory) in failed.values() {
            self.undo(order, *memory)?;
        }
        let has = |r: &JobRow| r.nodes.as_ref().is_some_and(|n| n.contains(&node));
        // A job that has ended well and writes nothing any more only lends its nodes to the rest of its script.
        let writes = |id: &JobId| failed.values().any(|(m, _)| m.job == Some(*id));
        let exports =
            |id: &JobId, r: &JobRow| r.stage == CheckedJobStage::Ended { ok: true } && !writes(id);
        let jobs = self.jobs.iter().filter(|(id, r)| has(r) && !exports(id, r));
        let jobs: Vec<JobId> = jobs.map(|(id, _)| *id).collect();
        for job in jobs {
            self.ended(job, false)?;
            self.job_mut(job)?.broken += 1;
        }
        let gone = self.forget(node)?;
        self.lost.extend(gone);
        let left = self.nodes[node.at()].taken;
        if left > 0 {
            return Err((
                "tier capacity",
                format!("{left} bytes are left on node {node}, which is lost"),
            ));
        }
        self.nodes[node.at()].power = CheckedNodeState::Lost;
        Ok(())
    }

    /// A node lost the data on its tiers: layouts of which a part is missing are gone. Returns their items.
    pub(super) fn forget(&mut self, node: NodeId) -> Result<Vec<ItemId>, SiteRuleViolation> {
        let mut lost = Vec::new();
        for (id, item) in &mut self.items {
            let gone = item.layouts.extract_if(.., |l| l.nodes.contains(&node));
            lost.extend(gone.map(|l| (*id, l)));
        }
        for (id, layout) in &lost {
            self.give_back(*id, layout)?;
        }
        Ok(lost.into_iter().map(|(id, _)| id).collect())
    }

    /// Nothing will happen any more.
    pub(super) fn end(&self) -> Result<(), SiteRuleViolation> {
        let finished =
            |r: &JobRow| matches!(r.stage, CheckedJobStage::Done | CheckedJobStage::TakenOut);
        if let Some((id, row)) = self.jobs.iter().find(|(_, r)| !finished(r)) {
            return Err((
                "everything ends",
                format!(
                    "nothing happens any more and job {id} is {:?} (on {:?})",
                    row.stage, row.nodes
                ),
            ));
        }
        let done = |j: &JobId| {
            self.jobs
                .get(j)
                .is_some_and(|r| r.stage == CheckedJobStage::Done)
        };
        for (id, item) in &self.items {
            if item.item.keep && !item.outside && item.producer.as_ref().is_some_and(done) {
                return Err((
                    "everything ends",
                    format!(
                        "nothing happens any more and item {id}, to be kept, is not outside: it lies on {:?}",
                        item.layouts
                    ),
                ));
            }
        }
        match self.moves.keys().next() {
            Some(id) => Err((
                "everything ends",
                format!("nothing happens any more and move {} is under way", id.0),
            )),
            None => Ok(()),
        }
    }
}
