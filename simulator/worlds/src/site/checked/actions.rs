//! The rules for orders about jobs.

use super::super::space::ItemDistribution;
use super::SiteRuleViolation;
use super::state::{CheckedJobStage, CheckedNodeState, JobRow, SiteAccount};
use tarn_types::site::{
    AllocationReason, ItemId, Job, JobId, JobNodes, Mode, MoveId, NodeKind, SiteAction, Spread,
};

impl SiteAccount {
    pub(super) fn check(&mut self, action: &SiteAction) -> Result<(), SiteRuleViolation> {
        match action {
            SiteAction::Plan { job, nodes, .. } => self.plan(*job, nodes),
            SiteAction::Unplan { job } => {
                self.job_mut(*job)?.planned = None;
                Ok(())
            }
            SiteAction::Allocate { job, nodes, why } => {
                let goes_on = *why == AllocationReason::Continues;
                let promised = self.before_allocation(*job).filter(|_| !goes_on);
                self.allocate(*job, nodes, goes_on)?;
                promised.map_or(Ok(()), |p| self.after_allocation(*job, p))?;
                self.promise()
            }
            SiteAction::Move(order) => self.start_move(order),
            SiteAction::Cancel { id } => match self.moves.contains_key(id) {
                true => Ok(()),
                false => Err((
                    "known ids",
                    format!("move {} is cancelled and not under way", id.0),
                )),
            },
            SiteAction::Run {
                job,
                attempt,
                to_tiers,
                ..
            } => self.run(*job, *attempt, *to_tiers),
            SiteAction::Release { job } => {
                self.release(*job)?;
                self.promise()
            }
            SiteAction::Drop {
                item,
                nodes,
                spread,
            } => self.drop_item(*item, &ItemDistribution::new(nodes, *spread)),
            SiteAction::SetMode { node, mode } => self.set_mode(*node, *mode),
            SiteAction::Sleep { node } => {
                self.idle("puts to sleep", *node)?;
                self.nodes[node.at()].power = CheckedNodeState::Asleep;
                Ok(())
            }
            SiteAction::Wake { node } => self.wake(*node),
            SiteAction::Refuse { job, .. } => self.refuse(*job),
            SiteAction::GiveUp { job } => self.give_up(*job),
        }
    }

    fn plan(&mut self, job: JobId, nodes: &JobNodes) -> Result<(), SiteRuleViolation> {
        let row = self.job(job)?;
        let there = nodes.iter().all(|n| n.at() < self.nodes.len());
        if nodes.len() != row.job.nodes as usize || !there {
            return Err((
                "nodes",
                format!(
                    "job {job}, which asks for {} nodes, is planned on {nodes:?}",
                    row.job.nodes
                ),
            ));
        }
        self.job_mut(job)?.planned = Some(nodes.clone());
        Ok(())
    }

    fn allocate(
        &mut self,
        id: JobId,
        nodes: &JobNodes,
        goes_on: bool,
    ) -> Result<(), SiteRuleViolation> {
        let row = self.job(id)?;
        let again =
            row.stage == CheckedJobStage::Done && row.job.writes.iter().any(|i| self.is_lost(*i));
        if row.stage != CheckedJobStage::Waiting && !again {
            return Err((
                "one allocation",
                format!("job {id} gets nodes and is {:?}", row.stage),
            ));
        }
        let job = row.job.clone();
        if nodes.len() != job.nodes as usize {
            return Err((
                "nodes",
                format!("job {id} asks for {} nodes and gets {nodes:?}", job.nodes),
            ));
        }
        self.usable(&format!("the allocation of job {id}"), nodes)?;
        if job.not_before > self.now {
            let how = format!("job {id} gets nodes before {} ns", job.not_before);
            return Err(("not before its time", how));
        }
        for node in nodes.iter() {
            if !goes_on && (self.nodes[node.at()].closed.is_some() || !job.may_have(*node)) {
                return Err((
                    "only nodes that are open for it",
                    format!("job {id} gets node {node}, which is closed or not one of its own"),
                ));
            }
            let mode = self.nodes[node.at()].mode;
            if job.mode.is_some_and(|m| m != mode) {
                return Err((
                    "memory mode",
                    format!(
                        "job {id} needs {:?} and node {node} is in {mode:?}",
                        job.mode
                    ),
                ));
            }
        }
        match goes_on {
            true => self.goes_on(id, &job, nodes)?,
            false => self.fits(id, &job, nodes)?,
        }
        let now = self.now;
        let row = self.job_mut(id)?;
        if again {
            row.attempts = 0;
        }
        row.stage = CheckedJobStage::Held;
        row.within = goes_on;
        row.since = now;
        (row.by_host, row.may_leave, row.leaves) = (false, false, false);
        row.nodes = Some(nodes.clone());
        row.planned = None;
        row.brought.clear();
        Ok(())
    }

    /// Whether an item that was made is nowhere any more.
    fn is_lost(&self, item: ItemId) -> bool {
        let row = self.items.get(&item);
        row.is_some_and(|i| !i.outside && i.layouts.is_empty())
    }

    /// The job whose allocation another continues in.
    fn owner(&self, mut job: JobId) -> JobId {
        // A chain has no more links than there are jobs.
        for _ in 0..self.jobs.len() {
            match self.jobs.get(&job).and_then(|r| r.job.continues) {
                Some(before) => job = before,
                None => break,
            }
        }
        job
    }

    /// A job gets nodes that its script has.
    fn goes_on(&self, id: JobId, job: &Job, nodes: &JobNodes) -> Result<(), SiteRuleViolation> {
        let rule = "goes on in its allocation";
        let Some(before) = job.continues else {
            return Err((rule, format!("job {id} continues none")));
        };
        let stage = self.job(before)?.stage;
        if !matches!(
            stage,
            CheckedJobStage::Ended { ok: true } | CheckedJobStage::Done
        ) {
            let how =
                format!("job {id} gets nodes and job {before}, which it continues, is {stage:?}");
            return Err((rule, how));
        }
        let owner = self.owner(before);
        let held = &self.job(owner)?.nodes;
        if held.as_ref().is_some_and(|h| h.starts_with(nodes)) {
            return Ok(());
        }
        let how = format!(
            "job {id} gets {nodes:?}, which are not the first that job {owner} has: {held:?}"
        );
        Err((rule, how))
    }

    /// Cores, memory and GPUs of nodes are there for one more job.
    fn fits(&mut self, id: JobId, job: &Job, nodes: &JobNodes) -> Result<(), SiteRuleViolation> {
        for node in nodes.iter() {
            let kind = self.kind(*node);
            let state = &self.nodes[node.at()];
            let guests = state.guests.iter().filter_map(|j| self.jobs.get(j));
            let all: Vec<&Job> = guests.map(|r| r.job.as_ref()).chain([job]).collect();
            let whole = all.iter().any(|j| j.cores == 0);
            if whole && all.len() > 1 {
                return Err((
                    "whole nodes are nobody else's",
                    format!(
                        "job {id} gets node {node}, which {:?} have or which it does not want to share",
                        state.guests
                    ),
                ));
            }
            let sum = |f: &dyn Fn(&Job) -> u64| all.iter().map(|j| f(j)).sum::<u64>();
            let memory = memory_in(kind, state.mode).unwrap_or(0);
            let takes = [
                ("cores", sum(&|j| u64::from(j.cores)), u64::from(kind.cores)),
                ("bytes of memory", sum(&|j| j.memory), memory),
                ("GPUs", sum(&|j| u64::from(j.gpus)), u64::from(kind.gpus)),
            ];
            if let Some((what, wanted, there)) = takes.into_iter().find(|t| t.1 > t.2) {
                return Err((
                    "node capacity",
                    format!(
                        "with job {id}, node {node} would need {wanted} {what} and has {there} (its jobs: {:?})",
                        state.guests
                    ),
                ));
            }
        }
        for node in nodes.iter() {
            self.nodes[node.at()].guests.push(id);
        }
        Ok(())
    }

    fn run(&mut self, id: JobId, attempt: u32, local: bool) -> Result<(), SiteRuleViolation> {
        let row = self.job(id)?;
        if !matches!(
            row.stage,
            CheckedJobStage::Held | CheckedJobStage::Ended { ok: false }
        ) {
            return Err((
                "runs on its nodes",
                format!("job {id} runs and is {:?}", row.stage),
            ));
        }
        if attempt != row.attempts + 1 {
            return Err((
                "attempts count up",
                format!(
                    "job {id} ran {} times; this is called attempt {attempt}",
                    row.attempts
                ),
            ));
        }
        let nodes = row.nodes.clone().unwrap_or_default();
        self.usable(&format!("job {id}"), &nodes)?;
        for before in &row.job.after {
            if !self.job(*before)?.ended_once {
                return Err((
                    "order of jobs",
                    format!("job {id} runs before job {before} has ended"),
                ));
            }
        }
        if let Some((item, node)) = self.lacking(row)? {
            let layouts = &self.item(item)?.layouts;
            return Err((
                "inputs are there",
                format!(
                    "job {id} runs on {nodes:?} and item {item} is not on node {node}; it lies on {layouts:?}"
                ),
            ));
        }
        if let Some(order) = self.direct_of(id) {
            return Err((
                "inputs are there",
                format!(
                    "job {id} runs while its direct move {} is under way",
                    order.0
                ),
            ));
        }
        let writes = row.job.writes.clone();
        let row = self.job_mut(id)?;
        (row.stage, row.attempts, row.writes_locally) = (CheckedJobStage::Running, attempt, local);
        if local {
            let layout = ItemDistribution::new(&nodes, Spread::Share);
            for item in writes {
                self.take(&format!("job {id}"), item, &layout)?;
            }
        }
        Ok(())
    }

    /// A direct move for a job that is under way.
    fn direct_of(&self, job: JobId) -> Option<MoveId> {
        let mut moves = self.moves.values();
        moves
            .find(|(m, _)| m.direct && m.job == Some(job))
            .map(|(m, _)| m.id)
    }

    fn release(&mut self, id: JobId) -> Result<(), SiteRuleViolation> {
        let row = self.job_mut(id)?;
        if std::mem::take(&mut row.leaves) {
            return Ok(());
        }
        let nodes = row.nodes.clone().filter(|_| row.may_leave);
        let allocated = matches!(row.stage, CheckedJobStage::Held | CheckedJobStage::Running);
        if let Some(nodes) = nodes.filter(|_| allocated) {
            return self.leave(id, &nodes);
        }
        let row = self.job(id)?;
        let ok = match row.stage {
            CheckedJobStage::Held => false,
            CheckedJobStage::Ended { ok } => ok,
            stage => {
                return Err((
                    "releases what it has",
                    format!("job {id} gives its nodes back and is {stage:?}"),
                ));
            }
        };
        if let Some(order) = self.direct_of(id) {
            return Err((
                "releases what it has",
                format!(
                    "job {id} gives its nodes back while its direct move {} is under way",
                    order.0
                ),
            ));
        }
        let has = |r: &JobRow| {
            !matches!(
                r.stage,
                CheckedJobStage::Waiting | CheckedJobStage::Done | CheckedJobStage::TakenOut
            )
        };
        let within = |j: &JobId| self.jobs.get(j).is_some_and(|r| r.within);
        let inside = |j: &JobId| *j != id && within(j) && self.owner(*j) == id;
        if let Some((other, _)) = self.jobs.iter().find(|(j, r)| has(r) && inside(j)) {
            return Err((
                "goes on in its allocation",
                format!("job {id} gives back the nodes in which job {other} goes on"),
            ));
        }
        let nodes = row.nodes.clone().unwrap_or_default();
        let writes = row.job.writes.clone();
        for node in nodes.iter() {
            self.nodes[node.at()].guests.retain(|j| *j != id);
        }
        let row = self.job_mut(id)?;
        row.stage = if ok {
            CheckedJobStage::Done
        } else {
            CheckedJobStage::Waiting
        };
        row.nodes = None;
        if ok {
            for item in writes
                .into_iter()
                .filter(|i| !self.lost.contains(i))
                .collect::<Vec<_>>()
            {
                self.still_there(&format!("the release of job {id}"), item)?;
            }
        }
        Ok(())
    }

    fn refuse(&mut self, id: JobId) -> Result<(), SiteRuleViolation> {
        let row = self.job(id)?;
        if row.stage == CheckedJobStage::Waiting {
            let runs = self
                .machine
                .islands
                .iter()
                .find(|i| i.nodes >= row.job.nodes && could_run(&i.kind, &row.job));
            if let Some(island) = runs.filter(|_| row.job.on.is_none()) {
                return Err((
                    "refused for a reason",
                    format!(
                        "job {id} is refused and island {} could run it",
                        island.name
                    ),
                ));
            }
        }
        self.take_out(id)
    }

    fn give_up(&mut self, id: JobId) -> Result<(), SiteRuleViolation> {
        let row = self.job(id)?;
        if row.stage == CheckedJobStage::Waiting && row.attempts + row.broken == 0 {
            return Err((
                "given up for a reason",
                format!("job {id} is given up and never failed"),
            ));
        }
        self.take_out(id)
    }

    /// A job that waits is taken out, with everything that waits for it.
    fn take_out(&mut self, id: JobId) -> Result<(), SiteRuleViolation> {
        if !matches!(
            self.job(id)?.stage,
            CheckedJobStage::Waiting | CheckedJobStage::TakenOut
        ) {
            let stage = self.job(id)?.stage;
            return Err((
                "takes out what waits",
                format!("job {id} is taken out and is {stage:?}"),
            ));
        }
        let mut waiting = vec![id];
        while let Some(next) = waiting.pop() {
            let row = self.job_mut(next)?;
            if row.stage != CheckedJobStage::Waiting {
                continue;
            }
            row.stage = CheckedJobStage::TakenOut;
            let made = row.job.writes.clone();
            let depends = |r: &JobRow| {
                r.job.after.contains(&next)
                    || r.job.continues == Some(next)
                    || r.job.reads.iter().any(|i| made.contains(&i.item))
            };
            let others = self.jobs.iter().filter(|(_, r)| depends(r));
            waiting.extend(others.map(|(j, _)| *j));
        }
        Ok(())
    }
}

/// Memory of a node in a mode; `None` where it cannot be in it.
pub(super) fn memory_in(kind: &NodeKind, mode: Mode) -> Option<u64> {
    match (mode, &kind.mode_change) {
        (Mode::TwoLevel, Some(change)) => Some(change.memory),
        (mode, None) if mode != kind.mode => None,
        _ => Some(kind.memory),
    }
}

/// Whether a node of this kind can ever run its part of a job.
fn could_run(kind: &NodeKind, job: &Job) -> bool {
    let mut modes = [Mode::OneLevel, Mode::TwoLevel].into_iter();
    let memory = modes.any(|mode| {
        job.mode.is_none_or(|m| m == mode) && memory_in(kind, mode).is_some_and(|m| m >= job.memory)
    });
    memory && job.cores <= kind.cores && job.gpus <= kind.gpus
}
