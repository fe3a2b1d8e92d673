//! The host's own backfill.

use super::super::SimulatedJobPhase;
use super::{HostedSite, WishFate, share_of};
use std::sync::Arc;
use tarn_ports::WorldError;
use tarn_types::id::NodeId;
use tarn_types::site::{AllocationReason, Job, JobId, JobNodes, Mode, SiteAction, SiteEvent};
use tarn_types::units::Time;

/// Cores, memory and GPUs.
type Amounts = [u64; 3];

impl HostedSite {
    /// Starts a job, or gives up a wish of the planner's.
    pub(super) fn start_one(&mut self) -> Result<Option<SiteEvent>, WorldError> {
        let now = self.site.now;
        let due = self.wishes.iter().find(|(_, w)| w.at <= now);
        if let Some(id) = due.map(|(id, _)| *id) {
            return self.grant(id);
        }
        self.backfill()
    }

    /// Does about a wish what was decided.
    fn grant(&mut self, id: JobId) -> Result<Option<SiteEvent>, WorldError> {
        let not_begun = Ok(Some(SiteEvent::NotBegun { job: id }));
        let Some(wish) = self.wishes.remove(&id) else {
            return Ok(None);
        };
        let Some(spec) = self.jobs.get(&id).map(|j| j.spec.clone()) else {
            return Ok(None);
        };
        let nodes = match wish.fate {
            WishFate::Begins => {
                let free = wish.nodes.iter().all(|n| self.fits(*n, &spec));
                free.then_some(wish.nodes)
            }
            WishFate::BeginsElsewhere => self.find(&spec),
            WishFate::NeverBegins => None,
        };
        match nodes {
            Some(nodes) => self.start(id, &spec, nodes).map(Some),
            None => not_begun,
        }
    }

    /// In the order of the queue: whoever fits begins, unless it might delay the first that does not.
    fn backfill(&mut self) -> Result<Option<SiteEvent>, WorldError> {
        let now = self.site.now;
        if self.is_calm() || !self.percent(50) {
            return Ok(None);
        }
        let waits = |id: &JobId| !self.wishes.contains_key(id) && !self.running.contains_key(id);
        let waiting = self
            .jobs
            .iter()
            .filter(|(id, j)| waits(id) && j.held_until.is_none() && j.spec.not_before <= now);
        let mut queue: Vec<(Time, JobId, Arc<Job>)> = waiting
            .map(|(id, j)| (j.spec.place.unwrap_or(0), *id, j.spec.clone()))
            .collect();
        queue.sort_by_key(|(place, id, _)| (*place, *id));
        let mut shadow: Option<Time> = None;
        for (_, id, spec) in queue {
            let in_time = shadow.is_none_or(|s| now.saturating_add(spec.limit) <= s);
            match self.find(&spec).filter(|_| in_time) {
                Some(nodes) => return self.start(id, &spec, nodes).map(Some),
                None => shadow = shadow.or_else(|| self.earliest(&spec)),
            }
        }
        Ok(None)
    }

    fn start(
        &mut self,
        id: JobId,
        spec: &Arc<Job>,
        nodes: JobNodes,
    ) -> Result<SiteEvent, WorldError> {
        self.order(&SiteAction::Allocate {
            job: id,
            nodes: nodes.clone(),
            why: AllocationReason::First,
        })?;
        let job = self.jobs.get_mut(&id);
        let attempt = job.map_or(1, |j| {
            j.attempts += 1;
            j.attempts
        });
        self.order(&SiteAction::Run {
            job: id,
            attempt,
            local_read: 0,
            local_write: 0,
            to_tiers: false,
            retained: 0,
        })?;
        self.running.insert(id, (spec.clone(), nodes.clone()));
        Ok(SiteEvent::Began {
            job: id,
            nodes,
            share: share_of(spec),
            since: self.site.now,
        })
    }

    fn all_of(&self, node: NodeId) -> Amounts {
        let kind = self.site.kind(node);
        let memory = match (self.site.nodes[node.at()].mode, &kind.mode_change) {
            (Mode::TwoLevel, Some(change)) => change.memory,
            _ => kind.memory,
        };
        [kind.cores.into(), memory, kind.gpus.into()]
    }

    fn takes(&self, node: NodeId, job: &Job) -> Amounts {
        match job.cores {
            0 => self.all_of(node),
            cores => [cores.into(), job.memory, job.gpus.into()],
        }
    }

    /// Whether a job could ever run on a node as it is now.
    fn suits(&self, node: NodeId, job: &Job) -> bool {
        let kind = self.site.kind(node);
        let slot = &self.site.nodes[node.at()];
        slot.is_up()
            && !self.closed.contains_key(&node)
            && job.may_have(node)
            && job.mode.is_none_or(|m| m == slot.mode)
            && job.cores <= kind.cores
            && job.gpus <= kind.gpus
            && job.memory <= self.all_of(node)[1]
    }

    fn fits(&self, node: NodeId, job: &Job) -> bool {
        let free = self.suits(node, job) && self.free_at(node, job) == Some(self.site.now);
        free && (!self.runs_unreported(node) || self.fits_beside_wishes(node, job))
    }

    /// Whether a node has a running job of which the host has not reported the begin. For the planner that is a wish like
    /// others: it could take it back where the host gives its nodes to another.
    fn runs_unreported(&self, node: NodeId) -> bool {
        let here = self.running.iter().filter(|(_, r)| r.1.contains(&node));
        let mut unreported =
            here.filter(|(id, _)| !self.own.contains(id) && !self.confirmed.contains(id));
        unreported.any(|(id, _)| self.site.phase(*id) == Some(SimulatedJobPhase::Running))
    }

    /// Whether a node has the resources for a job beside those that run there and those that the planner wishes there.
    fn fits_beside_wishes(&self, node: NodeId, job: &Job) -> bool {
        let running = self.running.values().map(|(spec, nodes)| (spec, nodes));
        let wishes = self.wishes.iter().filter_map(|(id, wish)| {
            let spec = &self.jobs.get(id)?.spec;
            Some((spec, &wish.nodes))
        });
        let here = running.chain(wishes).filter(|(_, n)| n.contains(&node));
        let mut taken = self.takes(node, job);
        for (spec, _) in here {
            let takes = self.takes(node, spec);
            (0..3).for_each(|i| taken[i] += takes[i]);
        }
        let all = self.all_of(node);
        (0..3).all(|i| taken[i] <= all[i])
    }

    /// When a node has what a job asks for, by the limits of the jobs there.
    fn free_at(&self, node: NodeId, job: &Job) -> Option<Time> {
        if !self.suits(node, job) {
            return None;
        }
        let here = self.running.iter().filter(|(_, r)| r.1.contains(&node));
        let mut ends: Vec<(Time, Amounts)> = here
            .map(|(id, (spec, _))| {
                let begun = self.site.record.result.jobs[id.at()].begun;
                (begun.saturating_add(spec.limit), self.takes(node, spec))
            })
            .collect();
        ends.sort_unstable();
        let (all, want) = (self.all_of(node), self.takes(node, job));
        let mut taken = [0u64; 3];
        for (end, takes) in ends.iter().rev() {
            (0..3).for_each(|i| taken[i] += takes[i]);
            if (0..3).any(|i| taken[i] + want[i] > all[i]) {
                return Some((*end).max(self.site.now + 1));
            }
        }
        Some(self.site.now)
    }

    /// Free nodes of one island for a job, from a node that chance decides.
    fn find(&mut self, job: &Job) -> Option<JobNodes> {
        let count = self.site.nodes.len() as u64;
        let first = self.random.below(count);
        let from = (0..count).map(|n| NodeId(((first + n) % count) as u32));
        let free: Vec<NodeId> = from.filter(|n| self.fits(*n, job)).collect();
        (0..self.site.machine.islands.len()).find_map(|island| {
            let here = |n: &&NodeId| usize::from(self.site.island_of[n.at()]) == island;
            let nodes = free.iter().filter(here).take(job.nodes as usize);
            let nodes: JobNodes = nodes.copied().collect();
            (nodes.len() == job.nodes as usize).then_some(nodes)
        })
    }

    fn earliest(&self, job: &Job) -> Option<Time> {
        let islands = 0..self.site.machine.islands.len();
        let ends = islands.filter_map(|island| {
            let nodes = (0..self.site.nodes.len() as u32).map(NodeId);
            let here = nodes.filter(|n| usize::from(self.site.island_of[n.at()]) == island);
            let mut free: Vec<Time> = here.filter_map(|n| self.free_at(n, job)).collect();
            free.sort_unstable();
            free.get(job.nodes as usize - 1).copied()
        });
        ends.min()
    }
}
