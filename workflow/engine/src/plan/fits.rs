//! The nodes that a job could have: by their kind, by what is free there, by what it may have.

use super::nodes::{MODES, PlannerIsland, PlannerNodes, memory_in};
use std::collections::BTreeSet;
use tarn_types::id::NodeId;
use tarn_types::site::{Job, Mode, NodeMask};
use tarn_types::units::Bytes;

/// Nodes with free cores that are looked at for some that can run a job: they may lack memory or GPUs.
const SOME_LOOKED_AT: usize = 256;

impl PlannerNodes {
    /// Whether nodes of an island in a mode are of the kind that a job asks for.
    pub(crate) fn suits(&self, job: &Job, island: usize, mode: Mode) -> bool {
        let island = &self.islands[island];
        let may_have = |on: &NodeMask| on.count_in(island.range());
        let kind = &island.kind;
        let memory = memory_in(kind, mode);
        job.nodes <= island.nodes
            && job.cores <= kind.cores
            && job.gpus <= kind.gpus
            && job.mode.is_none_or(|m| m == mode)
            && memory.is_some_and(|m| job.memory <= m)
            && job.on.as_deref().is_none_or(|on| may_have(on) >= job.nodes)
    }

    /// The nodes of an island that a job may have; `None` for all of them.
    pub(crate) fn mask_of<'a>(&self, job: &'a Job, island: usize) -> Option<&'a NodeMask> {
        let on = job.on.as_deref()?;
        let island = &self.islands[island];
        (on.count_in(island.range()) < island.nodes).then_some(on)
    }

    /// How many idle nodes of a class a job may have.
    pub(crate) fn idle_for(&self, job: &Job, island: usize, mode: Mode) -> usize {
        let idle = &self.class(island, mode).idle;
        match self.mask_of(job, island) {
            Some(on) => idle.count_in(on),
            None => idle.len(),
        }
    }

    /// Why no island can ever run a job; `None` if one can.
    pub(crate) fn lacks(&self, job: &Job) -> Option<String> {
        let islands = 0..self.islands.len();
        if islands
            .into_iter()
            .any(|i| MODES.iter().any(|m| self.suits(job, i, *m)))
        {
            return None;
        }
        let most =
            |f: &dyn Fn(&PlannerIsland) -> u64| self.islands.iter().map(f).max().unwrap_or(0);
        let memory = |i: &PlannerIsland| {
            let modes = MODES.iter().filter(|m| job.mode.is_none_or(|j| j == **m));
            modes.filter_map(|m| memory_in(&i.kind, *m)).max()
        };
        let nodes = most(&|i| u64::from(i.nodes));
        let cores = most(&|i| u64::from(i.kind.cores));
        let gpus = most(&|i| u64::from(i.kind.gpus));
        Some(if u64::from(job.nodes) > nodes {
            format!(
                "it asks for {} nodes and no island has more than {nodes}",
                job.nodes
            )
        } else if u64::from(job.cores) > cores {
            format!(
                "it asks for {} cores a node and no node has more than {cores}",
                job.cores
            )
        } else if u64::from(job.gpus) > gpus {
            format!(
                "it asks for {} GPUs a node and no node has more than {gpus}",
                job.gpus
            )
        } else if self.islands.iter().all(|i| memory(i).is_none()) {
            "it asks for a memory mode that no node can be in".to_owned()
        } else if job.memory > most(&|i| memory(i).unwrap_or(0)) {
            format!(
                "it asks for {} of memory a node and no node that it could use has more than {}",
                Bytes(job.memory),
                Bytes(most(&|i| memory(i).unwrap_or(0)))
            )
        } else if job.on.is_some() {
            "too few of the nodes that it may have are in one island and have all that it asks for"
                .to_owned()
        } else {
            "no single island has all that it asks for: nodes, cores, memory, GPUs and memory mode together".to_owned()
        })
    }

    /// Whether a job could have this node now.
    pub(crate) fn free_for(&self, job: &Job, id: NodeId) -> bool {
        self.could_have(job, id) && self.node(id).free().holds(self.share(job, id), 1)
    }

    /// Whether a job could have this node, now or later.
    pub(crate) fn could_have(&self, job: &Job, id: NodeId) -> bool {
        let node = self.node(id);
        node.ledger.is_usable()
            && job.may_have(id)
            && self.suits(job, usize::from(node.island), node.mode)
    }

    /// The classes that a job could run in.
    pub(crate) fn classes_for(&self, job: &Job) -> Vec<(usize, Mode)> {
        let islands = 0..self.islands.len();
        islands
            .flat_map(|i| MODES.iter().map(move |m| (i, *m)))
            .filter(|(i, m)| !self.class(*i, *m).is_empty() && self.suits(job, *i, *m))
            .collect()
    }

    /// Whether all nodes are in one island and one mode.
    pub(crate) fn one_class(&self) -> bool {
        let classes = self.islands.iter().flat_map(|i| &i.classes);
        classes.filter(|c| !c.is_empty()).count() <= 1
    }

    /// The most idle nodes of a class, and the most free cores of a node.
    pub(crate) fn most_free(&self) -> (u32, u32) {
        let (mut nodes, mut cores) = (0, 0);
        for island in &self.islands {
            for class in &island.classes {
                nodes = nodes.max(class.idle.len() as u32);
                if !class.idle.is_empty() {
                    cores = cores.max(island.kind.cores);
                }
                cores = cores.max(class.partly.last().map_or(0, |(c, _)| *c));
            }
        }
        (nodes, cores)
    }

    /// Up to so many nodes of a class that a one-node job could have now and on which nobody else is planned: nodes that
    /// others use already first.
    pub(crate) fn some_free(
        &self,
        job: &Job,
        island: usize,
        mode: Mode,
        most: usize,
    ) -> Vec<NodeId> {
        let open = &self.class(island, mode).open;
        let partly = open.partly.range((job.cores, NodeId(0))..);
        let partly = partly.map(|(_, n)| *n).take(SOME_LOOKED_AT);
        let free = |n: &NodeId| self.free_for(job, *n);
        let mut found: Vec<NodeId> = partly.filter(free).take(most).collect();
        let idle = open.idle.iter_in(self.mask_of(job, island));
        found.extend(idle.filter(free).take(most));
        found
    }

    /// Nodes of a class that a job could have now, as many as it asks for: first those that are preferred, then those
    /// that others use already (the fullest first, so that whole nodes stay free), then idle ones.
    pub(crate) fn pick(
        &self,
        job: &Job,
        island: usize,
        mode: Mode,
        prefer: &[NodeId],
    ) -> Option<Vec<NodeId>> {
        let class = self.class(island, mode);
        let want = job.nodes as usize;
        if job.cores == 0 && self.idle_for(job, island, mode) < want {
            return None;
        }
        let here = |n: &NodeId| {
            let node = self.node(*n);
            usize::from(node.island) == island && node.mode == mode && self.free_for(job, *n)
        };
        // `prefer` has each node once.
        let mut chosen: Vec<NodeId> = Vec::with_capacity(want);
        chosen.extend(prefer.iter().filter(|n| here(n)).take(want));
        if chosen.len() == want {
            return Some(chosen);
        }
        let preferred: BTreeSet<NodeId> = chosen.iter().copied().collect();
        if job.cores > 0 {
            let partly = class.partly.range((job.cores, NodeId(0))..);
            let free = partly.map(|(_, n)| *n).filter(|n| self.free_for(job, *n));
            let others = free.filter(|n| !preferred.contains(n));
            chosen.extend(others.take(want - chosen.len()));
        }
        let idle = class.idle.iter_in(self.mask_of(job, island));
        let idle = idle.filter(|n| preferred.is_empty() || !preferred.contains(n));
        chosen.extend(idle.take(want - chosen.len()));
        (chosen.len() == want).then_some(chosen)
    }
}
