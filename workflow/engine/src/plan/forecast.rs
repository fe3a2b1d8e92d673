//! When nodes come free: for a class, for certain nodes, for a job; by the limits of jobs and by their expected ends.

use super::nodes::{MODES, last_end};
use super::queue::QueuedJob;
use super::state::PlannerState;
use super::view::Shadow;
use std::sync::Arc;
use tarn_types::compute::Demand;
use tarn_types::id::NodeId;
use tarn_types::policy::Order;
use tarn_types::site::{Job, JobId, Mode};
use tarn_types::units::{Nanos, Time};

/// The index of the class of an island's nodes in a mode.
pub(crate) fn class_index(island: usize, mode: Mode) -> usize {
    island * MODES.len() + usize::from(mode == Mode::TwoLevel)
}

/// The class of an index.
pub(crate) fn class_at(index: usize) -> (usize, Mode) {
    (index / MODES.len(), MODES[index % MODES.len()])
}

/// Nodes up to which all of them are looked at for a job that takes a part of one; beyond, those that hold its data and
/// those with free cores.
pub(crate) const ALL_NODES: usize = 64;

impl PlannerState {
    pub(crate) fn classes_of(&self, job: &Job) -> Vec<(usize, Mode)> {
        self.nodes.classes_for(job)
    }

    pub(crate) fn class_of(&self, node: NodeId) -> usize {
        let node = self.nodes.node(node);
        class_index(usize::from(node.island), node.mode)
    }

    pub(crate) fn job_of(&self, w: &QueuedJob) -> Option<Arc<Job>> {
        self.job(w.job).map(|s| s.job.clone())
    }

    /// The nodes of the job that a step's input comes from.
    fn predecessor_nodes(&self, job: &Job) -> Option<Vec<NodeId>> {
        let items = job.reads.iter().filter_map(|i| self.item(i.item));
        let made = items.filter_map(|i| Some((i.item.bytes, i.producer?)));
        let (_, producer) = made.max_by_key(|(bytes, p)| (*bytes, *p))?;
        let nodes = &self.job(producer)?.nodes;
        (!nodes.is_empty()).then(|| nodes.to_vec())
    }

    /// When a node is expected to have the cores that a job asks for, jobs planned there included.
    pub(crate) fn free_in(&self, id: NodeId, job: &Job) -> Nanos {
        let node = self.nodes.node(id);
        let cores = self.nodes.kind(id).cores;
        let want = if job.cores == 0 { cores } else { job.cores };
        let mut known = node.known.borrow_mut();
        if known.of != (self.now, node.changes) {
            let mut ends = std::mem::take(&mut known.ends);
            self.ends_on(id, &mut ends);
            known.taken = ends.iter().map(|e| e.1).sum();
            (known.of, known.ends) = ((self.now, node.changes), ends);
        }
        let mut free = i64::from(cores) - i64::from(known.taken);
        let mut at = self.now;
        for (end, cores) in &known.ends {
            if free >= i64::from(want) {
                break;
            }
            free += i64::from(*cores);
            at = *end;
        }
        at.saturating_sub(self.now)
    }

    /// When those that run on a node, or are planned there, are expected to give their cores back, in order.
    fn ends_on(&self, id: NodeId, ends: &mut Vec<(Time, u32)>) {
        let node = self.nodes.node(id);
        ends.clear();
        let guests = node.guests.iter();
        ends.extend(guests.map(|g| (self.expected_end(g.job), g.share.cores)));
        for planned in &node.planned {
            if let Some(state) = self.job(*planned) {
                let takes = state.io.saturating_add(state.job.expect);
                let begins = state.begins.max(self.now);
                ends.push((begins.saturating_add(takes), state.job.cores.max(1)));
            }
        }
        ends.sort_unstable();
    }

    /// When a job with nodes is expected to end by the known run times of its program; one that is overdue needs a
    /// tenth more.
    pub(crate) fn expected_end(&self, id: JobId) -> Time {
        let Some(state) = self.job(id) else {
            return self.now;
        };
        let takes = state.io.saturating_add(state.job.expect);
        let end = state.began.saturating_add(takes);
        match end > self.now {
            true => end,
            false => self.now.saturating_add(takes / 10),
        }
    }

    /// When the nodes of a class that a job asks for are idle, if `taken` more are taken until `until` before.
    fn class_earliest(
        &self,
        job: &Job,
        (island, mode): (usize, Mode),
        taken: u32,
        until: Time,
    ) -> Option<Shadow> {
        let idle = self.nodes.idle_for(job, island, mode) as u64;
        let (want, taken) = (u64::from(job.nodes), u64::from(taken));
        let ends = self.ends_for(job, island, mode);
        let ended = |lack: u64| match lack {
            0 => Some(self.now),
            _ => ends.earliest(lack),
        };
        let without = ended((want + taken).saturating_sub(idle));
        // The taken nodes come back.
        let with = match taken {
            0 => None,
            _ => ended(want.saturating_sub(idle)).map(|at| at.max(until)),
        };
        let at = [without, with].into_iter().flatten().min()?;
        let at = at.max(self.now + 1);
        let there = idle + ends.by(at) + if at >= until { taken } else { 0 };
        Some(Shadow {
            at,
            class: class_index(island, mode),
            extra: u32::try_from(there.saturating_sub(want + taken)).unwrap_or(u32::MAX),
            keeps: Vec::new(),
        })
    }

    /// When a job could begin if `nodes` nodes of a class were taken until `until` before.
    pub(crate) fn earliest_behind(
        &self,
        w: &QueuedJob,
        class: usize,
        nodes: u32,
        until: Time,
    ) -> Option<Shadow> {
        let job = self.job_of(w)?;
        if let Some(own) = self.own_nodes(&job) {
            return self.nodes_earliest(&job, &own);
        }
        self.classes_earliest(&job, class, nodes, until)
    }

    /// The same on any nodes that suit it.
    pub(crate) fn classes_earliest(
        &self,
        job: &Job,
        class: usize,
        nodes: u32,
        until: Time,
    ) -> Option<Shadow> {
        let shadows = self
            .classes_of(job)
            .into_iter()
            .filter_map(|(island, mode)| {
                if job.cores > 0 && job.nodes == 1 {
                    return self.node_earliest(job, island, mode, None);
                }
                let taken = match class_index(island, mode) == class {
                    true => nodes,
                    false => 0,
                };
                self.class_earliest(job, (island, mode), taken, until)
            });
        shadows.min_by_key(|s| (s.at, s.class))
    }

    /// When certain nodes are free for a job.
    pub(crate) fn nodes_earliest(&self, job: &Job, nodes: &[NodeId]) -> Option<Shadow> {
        let first = nodes.first()?;
        let free = |n: &NodeId| match self.nodes.free_for(job, *n) {
            true => self.now,
            false => last_end(self.nodes.node(*n)),
        };
        let at = nodes.iter().map(free).max()?;
        let node = self.nodes.node(*first);
        let mut keeps = nodes.to_vec();
        keeps.sort_unstable();
        Some(Shadow {
            at: at.max(self.now + 1),
            class: class_index(usize::from(node.island), node.mode),
            extra: u32::MAX,
            keeps,
        })
    }

    pub(crate) fn own_nodes(&self, job: &Job) -> Option<Vec<NodeId>> {
        if self.policy.order != Order::SameNodes {
            return None;
        }
        let mut nodes = self.predecessor_nodes(job)?;
        nodes.truncate(job.nodes as usize);
        let has = |n: &NodeId| self.nodes.could_have(job, *n);
        (nodes.len() == job.nodes as usize && nodes.iter().all(has)).then_some(nodes)
    }

    /// When a job that waits could begin as things are.
    pub(crate) fn earliest(&self, w: &QueuedJob) -> Option<Shadow> {
        self.earliest_behind(w, usize::MAX, 0, 0)
    }

    /// The nodes that a step has to have, as the one before it had them (with `same-nodes`).
    pub(crate) fn own_nodes_of(&self, w: &QueuedJob) -> Option<Vec<NodeId>> {
        let job = self.job_of(w)?;
        self.own_nodes(&job)
    }

    /// When a node has the resources that a job asks for, by the limits of jobs, with one more guest if there is one.
    pub(super) fn limit_free_at(&self, id: NodeId, job: &Job, guest: Option<(Time, &Job)>) -> Time {
        let node = self.nodes.node(id);
        let wide = |share: Demand| {
            [u64::from(share.cores), share.memory, u64::from(share.gpus)].map(i128::from)
        };
        let want = wide(self.nodes.share(job, id));
        let mut free = wide(node.free());
        let guests = node.guests.iter();
        let mut ends: Vec<(Time, [i128; 3])> = guests.map(|g| (g.until, wide(g.share))).collect();
        if let Some((until, job)) = guest {
            let takes = wide(self.nodes.share(job, id));
            (0..3).for_each(|i| free[i] -= takes[i]);
            ends.push((until, takes));
        }
        ends.sort_unstable();
        let mut at = self.now;
        for (end, gives) in ends {
            if (0..3).all(|i| free[i] >= want[i]) {
                break;
            }
            (0..3).for_each(|i| free[i] += gives[i]);
            at = end;
        }
        at
    }
}
