//! Data is brought to a job's nodes before it has them: to those that Slurm is expected to start it on, while Slurm waits
//! for that, and to those that the planner keeps for it, while nobody does. docs/internals/driving-slurm.md, "Bringing data ahead".

use crate::MAX_RESERVED_JOBS;
use crate::model::catalog::VersionRecord;
use crate::model::job::{NodeJobTask, Reads, SiteJob, SiteJobPhase};
use crate::model::orders::OrderPurpose;
use crate::model::progress::PreparationState;
use crate::model::reserved::ReservedNodes;
use crate::model::space::SpaceRequest;
use crate::reported::is_final;
use crate::state::Site;
use std::collections::BTreeSet;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{ControllerReply, NodeOrder, Part, Proof, SlurmJobId};

impl VersionRecord {
    /// Its parts, or that as which a source is read for the first time.
    pub(crate) fn parts_for(&self, reads: &Reads) -> Vec<(Part, Option<Proof>)> {
        let parts = self.parts.iter();
        let mut parts: Vec<(Part, Option<Proof>)> = parts
            .map(|(part, proof)| (reads.version.part(*part), Some(proof.clone())))
            .collect();
        if self.source.is_some() && parts.is_empty() {
            parts.push((reads.version.part(self.content), None));
        }
        parts
    }
}

impl Site {
    /// Slurm expects a job on these nodes. Whether its stage is over, as nothing is brought there, or to other nodes that are
    /// kept for it.
    pub(crate) fn begin_bringing(&mut self, id: SlurmJobId, nodes: Vec<String>) -> bool {
        let is_on = self.config.ahead && !self.reserved.contains_key(&id);
        let waits = |job: &&mut SiteJob| job.phase == SiteJobPhase::Queued && !job.reads.is_empty();
        let job = self.jobs.get_mut(&id).filter(|job| is_on && waits(job));
        let Some(job) = job else {
            return true;
        };
        job.is_bringing = !nodes.is_empty();
        job.ahead = nodes;
        !job.is_bringing
    }

    /// A job has no nodes yet, and Slurm waits for its data: its inputs are brought to its expected nodes as far as
    /// they can be had now, so that its nodes need not wait (Weiland 2018, section 2.2). The rest is the gate's.
    pub(crate) fn bring_ahead(&mut self, id: SlurmJobId, job: &SiteJob) -> PreparationState {
        if let Some(node) = job.ahead.iter().find(|node| !self.is_up(node)) {
            let text = format!("node {node} does not answer any more");
            return PreparationState::Failed(RequestError::new(Code::Lost, text));
        }
        let expected = SiteJob {
            nodes: job.ahead.clone(),
            ..job.clone()
        };
        let mut is_whole = true;
        for reads in &job.reads {
            let version = self.catalog.version(&reads.version);
            // Scattered inputs are divided at the gate.
            let is_there = version.is_some_and(VersionRecord::is_there);
            if !is_there || self.is_sliced(&expected, reads) {
                continue;
            }
            match self.bring(id, &expected, reads) {
                PreparationState::Complete => {}
                PreparationState::Pending => is_whole = false,
                never => return never,
            }
        }
        PreparationState::of(is_whole)
    }

    /// As much as could be is brought to where a job is expected.
    pub(crate) fn brought(&mut self, id: SlurmJobId, how: &str) {
        let now = self.now;
        if let Some(job) = self.jobs.get_mut(&id) {
            job.is_bringing = false;
            job.tries.clear();
            let nodes = job.ahead.join(", ");
            job.note(now, format!("it is expected on {nodes}: {how}"));
        }
        self.answer_stage(id, Ok(ControllerReply::Done));
    }

    /// The planner keeps nodes for a job that waits, others than before, or none any more.
    pub(crate) fn advised(&mut self, id: SlurmJobId, nodes: Vec<String>) {
        let now = self.now;
        let before = self.reserved.get(&id);
        let is_same = before.map_or(&[][..], |kept| &kept.nodes) == nodes;
        let is_new = before.is_none() && self.reserved.len() >= MAX_RESERVED_JOBS;
        let waits = |job: &&mut SiteJob| job.phase == SiteJobPhase::Queued && !job.reads.is_empty();
        let Some(job) = self.jobs.get_mut(&id).filter(waits) else {
            return;
        };
        if is_same || is_new {
            return;
        }
        job.tries.clear();
        job.note(
            now,
            match &nodes[..] {
                [] => "no nodes are reserved for it any more".to_owned(),
                nodes => format!("nodes are reserved for it: {}", nodes.join(", ")),
            },
        );
        if job.is_bringing && !nodes.is_empty() {
            self.brought(id, "the rest is brought to the reserved nodes");
        }
        self.stop_fetches(id, &nodes);
        if nodes.is_empty() {
            self.reserved.remove(&id);
        } else {
            let kept = ReservedNodes {
                nodes,
                ..ReservedNodes::default()
            };
            self.reserved.insert(id, kept);
        }
        self.advance_waiting();
    }

    /// Brings a job's inputs, as far as they exist and there is space, to the nodes that are kept for it. Whatever cannot be
    /// brought is the gate's.
    pub(crate) fn bring_to_reserved(&mut self, id: SlurmJobId, job: &SiteJob) {
        let Some(kept) = self.reserved.get(&id).cloned() else {
            return;
        };
        let given_up = kept.given_up;
        let expected = SiteJob {
            nodes: kept.nodes,
            ..job.clone()
        };
        let mut is_whole = given_up.is_empty();
        let mut lacks = None;
        for reads in &job.reads {
            let version = self.catalog.version(&reads.version);
            let version = version.filter(|version| version.is_there()).cloned();
            let may = job.check_grant(&self.catalog, reads).is_ok();
            let Some(version) = version.filter(|_| may) else {
                is_whole = false;
                continue;
            };
            // Scattered inputs are divided at the gate.
            if self.is_sliced(&expected, reads) {
                continue;
            }
            match self.bring_free(id, &expected, (reads, &version), &given_up) {
                PreparationState::Complete => {}
                PreparationState::Pending => is_whole = false,
                PreparationState::Failed(why) => {
                    (is_whole, lacks) = (false, Some(why.text));
                }
            }
        }
        match lacks {
            Some(why) => self.note_progress(id, why),
            None if is_whole => {
                self.note_progress(id, "what it reads is on its reserved nodes".into());
            }
            None => {}
        }
    }

    /// Brings a version to the nodes that are kept for a job, one by one as far as it can be had: an error is of one of them.
    fn bring_free(
        &mut self,
        id: SlurmJobId,
        job: &SiteJob,
        (reads, version): (&Reads, &VersionRecord),
        given_up: &BTreeSet<String>,
    ) -> PreparationState {
        let source = version.source.as_deref();
        let whom = SpaceRequest {
            job: id,
            tier: reads.tier.as_deref(),
            size: reads.size,
            is_ahead: true,
        };
        let mut is_whole = true;
        let mut lacks = None;
        for node in job.readers(reads) {
            // It may come back, or the planner chooses another one.
            if !self.is_up(node) || given_up.contains(node) {
                is_whole = false;
                continue;
            }
            for (part, proof) in version.parts_for(reads) {
                let about = (&part, proof.as_ref(), source);
                match self.bring_part(whom, job, node, about) {
                    PreparationState::Complete => {}
                    PreparationState::Pending => is_whole = false,
                    PreparationState::Failed(why) => lacks = Some(why),
                }
            }
        }
        lacks.map_or(PreparationState::of(is_whole), PreparationState::Failed)
    }

    /// Notes for people how far the bringing to reserved nodes is, when that changes.
    fn note_progress(&mut self, id: SlurmJobId, progress: String) {
        let now = self.now;
        let kept = self.reserved.get_mut(&id);
        if let Some(kept) = kept.filter(|kept| kept.progress != progress)
            && let Some(job) = self.jobs.get_mut(&id)
        {
            job.note(now, progress.clone());
            kept.progress = progress;
        }
    }

    /// A job has got its nodes: copies there are ordinary ones, and its gate brings the rest.
    pub(crate) fn end_ahead(&mut self, id: SlurmJobId) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let nodes = job.nodes.clone();
        for reads in &job.reads {
            for part in self.catalog.parts_of(&reads.version) {
                for name in &nodes {
                    if let Some(node) = self.nodes.get_mut(name) {
                        node.unused.remove(&part);
                    }
                }
            }
        }
        if self.reserved.remove(&id).is_some() {
            self.stop_fetches(id, &nodes);
        }
    }

    /// Whether a job waits for nodes, and Slurm does not wait for its data.
    pub(crate) fn waits_without_nodes(&self, id: SlurmJobId) -> bool {
        let job = self.jobs.get(&id);
        job.is_some_and(|job| job.phase == SiteJobPhase::Queued && !job.is_bringing)
    }

    /// A part came to a node before the job that it is for. Another job that has the node meanwhile may be at its gate for it.
    pub(crate) fn note_unused(&mut self, id: SlurmJobId, node: &str, part: &Part) {
        let has_it = |job: &SiteJob| {
            (SiteJobPhase::Staging..SiteJobPhase::Ended).contains(&job.phase)
                && job.nodes.iter().any(|name| name == node)
                && job.reads.iter().any(|r| r.version.part(part.part) == *part)
        };
        let is_early = self.reserved.contains_key(&id) && !self.jobs.values().any(has_it);
        if let Some(node) = self.nodes.get_mut(node).filter(|_| is_early)
            && node.parts.contains_key(part)
        {
            node.unused.insert(part.clone());
        }
    }

    /// A part could not be brought to a node that is kept for a job. No more is tried there if it would fail again.
    pub(crate) fn not_brought(
        &mut self,
        id: SlurmJobId,
        node: &str,
        step: &NodeJobTask,
        why: &RequestError,
    ) {
        let is_lost = why.code == Code::Lost && !self.is_up(node);
        let job = self.jobs.get_mut(&id);
        let gives_up = job.is_some_and(|job| !is_lost && job.has_failed(node, step));
        if let Some(kept) = self.reserved.get_mut(&id)
            && (gives_up || is_final(why.code) && !is_lost)
        {
            kept.given_up.insert(node.to_owned());
            self.note_progress(id, format!("{node}: {}", why.text));
        }
        // Others may have relied on that copy.
        self.advance_waiting();
    }

    /// Stops the copies to nodes that a job without nodes is not expected on any more, unless another job needs them there.
    fn stop_fetches(&mut self, id: SlurmJobId, nodes: &[String]) {
        let own = self.orders.iter().filter_map(|(number, o)| match &o.why {
            OrderPurpose::Job(job, NodeJobTask::Fetch(part), _) if *job == id => {
                let place = (o.node.clone(), o.store.clone());
                Some((*number, place, part.clone()))
            }
            _ => None,
        });
        let own: Vec<(u64, (String, String), Part)> = own
            .filter(|(_, (node, _), part)| {
                !nodes.contains(node) && !self.is_needed_at(node, part, id)
            })
            .collect();
        for (number, (node, store), part) in own {
            self.orders.remove(&number);
            self.order(&node, OrderPurpose::Forget(id), NodeOrder::Stop(number));
            // It may have been done just now.
            self.doom_copy((&node, &store), &part);
        }
    }

    /// Whether another job than this one has a part brought to a node.
    fn is_needed_at(&self, node: &str, part: &Part, but: SlurmJobId) -> bool {
        let mut others = self.jobs.iter().filter(|(id, _)| **id != but);
        others.any(|(id, job)| {
            let version = |reads: &Reads| {
                let key = &reads.version;
                key.part(part.part) == *part
            };
            let kept = self.reserved.get(id);
            let kept = kept.map_or(&[][..], |kept| &kept.nodes);
            let goes_to: BTreeSet<&String> = match job.phase {
                SiteJobPhase::Queued => job.ahead.iter().chain(kept).collect(),
                SiteJobPhase::Ended => BTreeSet::new(),
                _ => job.nodes.iter().collect(),
            };
            goes_to.iter().any(|name| *name == node) && job.reads.iter().any(version)
        })
    }
}
