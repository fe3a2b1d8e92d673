//! Partitions of jobs: made at the gate on each of a job's nodes, by its user's worker, and gone with the job's folders. Those that are spread
//! over the nodes are exported by each node's worker to the others, from the gate to the job's end: a node that starts again meanwhile exports its own
//! again, and the others learn where.

use crate::model::job::{JobPartition, NodeJobTask, SiteJob, SiteJobPhase};
use crate::model::node::SiteNode;
use crate::model::orders::OrderPurpose;
use crate::model::progress::PreparationState;
use crate::model::space::{SpaceAvailability, SpaceRequest};
use crate::state::Site;
use std::path::PathBuf;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{
    Mount, Owner, PartitionSpread, SlurmJobId, StoreContent, Work, WorkerAddress, is_name,
};
use tarn_types::id::StepId;
use tarn_types::workflow::{KeepPartition, StoragePartition, Workflow};

/// The partitions that a job's script asks for.
pub(crate) fn partitions_of(workflow: &Workflow) -> Result<Vec<JobPartition>, RequestError> {
    let tier = workflow.steps.first().and_then(|step| step.tier.clone());
    let own = workflow.partitions_of(StepId(0)).map(|(_, about)| {
        if about.keep != KeepPartition::Step || !is_name(&about.name) {
            let text = format!(
                "partition `{}`: a job of a site has its partitions as long as it is there: leave `keep` out",
                about.name
            );
            return Err(RequestError::new(Code::Unsupported, text));
        }
        Ok(JobPartition {
            name: about.name.clone(),
            size: about.size,
            unit: about.unit.unwrap_or(0),
            spread: about.spread,
            tier: about.tier.clone().or_else(|| tier.clone()),
        })
    });
    own.collect()
}

impl Site {
    /// Nothing in a partition is sealed: an encrypted dataset that a job reads would be stored there in clear. And one
    /// has as many pieces as can be opened as one, whose names fit into one variable; which these are is known at the
    /// gate.
    pub(crate) fn check_partitions(&self, job: &SiteJob) -> Result<(), RequestError> {
        let pieces = job.nodes.len().max(job.wants as usize);
        let most = StoragePartition::MOST_PIECES;
        if job.is_spread() && pieces > most as usize {
            let text = format!(
                "a partition that is spread would have {pieces} pieces, and at most {most} are opened as one: ask for fewer nodes, or leave `spread` out"
            );
            return Err(RequestError::new(Code::Invalid, text));
        }
        let most = StoragePartition::MOST_NAMES;
        let bytes = |name: &str| {
            let nodes = job.nodes.iter().map(String::as_str);
            StoragePartition::names(name, nodes)
        };
        let mut spread = job.partitions.iter().filter(|p| p.spread.is_some());
        if let Some(JobPartition { name, .. }) = spread.find(|p| bytes(&p.name) > most) {
            let text = format!(
                "the names of the pieces of partition `{name}` have {} bytes, and at most {most} fit into $TARN_PARTITION_{name}: ask for fewer nodes, give it a shorter name, or leave `spread` out",
                bytes(name)
            );
            return Err(RequestError::new(Code::Invalid, text));
        }
        let reads = job.reads.iter().map(|r| &r.version);
        let mut all = reads.chain(job.makes.iter().map(|m| &m.version));
        let what = match (job.partitions.is_empty(), &job.restart) {
            (false, _) => "a partition, which",
            (true, Some(_)) => "`restart`, whose checkpoints",
            (true, None) => return Ok(()),
        };
        match all.find(|version| self.catalog.was_sealed(version)) {
            None => Ok(()),
            Some(version) => {
                let text = format!(
                    "it uses `{}`, which is encrypted, and {what} would be kept in the store unencrypted: leave one of them out",
                    version.dataset
                );
                Err(RequestError::new(Code::Unsupported, text))
            }
        }
    }

    /// Makes a job's partitions on all of its nodes, whose space is the job's from then on.
    pub(crate) fn create_partitions(&mut self, id: SlurmJobId, job: &SiteJob) -> PreparationState {
        if let Err(why) = self.check_partitions(job) {
            return PreparationState::Failed(why);
        }
        let mut is_whole = true;
        for partition in &job.partitions {
            for node in &job.nodes {
                let step = NodeJobTask::CreatePartition(partition.name.clone());
                let whom = SpaceRequest {
                    job: id,
                    tier: partition.tier.as_deref(),
                    size: partition.takes(job.nodes.len()),
                    is_ahead: false,
                };
                match self.reserve_space(node, (Owner::User(job.user), &partition.name), whom) {
                    SpaceAvailability::In(_) => {}
                    SpaceAvailability::Soon => {
                        is_whole = false;
                        continue;
                    }
                    SpaceAvailability::None(why) => return PreparationState::Failed(why),
                }
                let work = Work::Export {
                    store: self.written_in(id, node, &partition.name),
                    job: id,
                    partition: partition.name.clone(),
                    size: partition.on_each(job.nodes.len()),
                    unit: partition.unit,
                };
                is_whole &= self.once(id, job, node, step, job.order(work));
            }
        }
        if is_whole {
            PreparationState::Complete
        } else {
            PreparationState::Pending
        }
    }

    /// Has each node of a job export its pieces of partitions that span the nodes to the others: at the gate all of
    /// them, and while the job runs those of nodes that were started again.
    pub(crate) fn export_partitions(&mut self, id: SlurmJobId, job: &SiteJob) -> PreparationState {
        if !job.is_spread() {
            return PreparationState::Complete;
        }
        let mut is_whole = true;
        let mut shared = Vec::new();
        for node in &job.nodes {
            let spread = job.partitions.iter().filter(|p| p.spread.is_some());
            let placed = spread.map(|p| (p.name.clone(), self.written_in(id, node, &p.name)));
            let partitions = placed.collect();
            let work = Work::Share {
                job: id,
                partitions,
            };
            match self.once(id, job, node, NodeJobTask::Export, job.order(work)) {
                true => shared.push(node),
                false => is_whole = false,
            }
        }
        if !is_whole && job.phase == SiteJobPhase::Staging {
            return PreparationState::Pending;
        }
        let peers: Vec<WorkerAddress> = job
            .nodes
            .iter()
            .filter_map(|node| {
                Some(WorkerAddress {
                    node: node.clone(),
                    host: node.clone(),
                    port: *job.exported.get(node)?,
                })
            })
            .collect();
        for node in shared {
            let work = Work::Join {
                job: id,
                peers: peers.clone(),
            };
            is_whole &= self.once(
                id,
                job,
                node,
                NodeJobTask::Attach(job.moves),
                job.order(work),
            );
        }
        if is_whole {
            PreparationState::Complete
        } else {
            PreparationState::Pending
        }
    }

    /// A node exports its pieces for a job at this port.
    pub(crate) fn note_export(&mut self, id: SlurmJobId, node: &str, port: u16) {
        if let Some(job) = self.jobs.get_mut(&id)
            && job.exported.insert(node.to_owned(), port) != Some(port)
        {
            job.moves += 1;
        }
    }

    /// A job runs elsewhere: a node keeps no piece of partitions that span the others.
    pub(crate) fn remove_partitions(&mut self, id: SlurmJobId, node: &str) {
        if let Some(job) = self.jobs.get(&id).filter(|job| job.is_spread()) {
            let work = job.order(Work::Remove(vec![StoreContent::Job(id)]));
            self.order(node, OrderPurpose::Forget(id), work);
        }
    }

    /// A node, or each, may have been started again: its exports are to be requested again.
    pub(crate) fn forget_exports(&mut self, node: Option<&str>) {
        for job in self.jobs.values_mut().filter(|job| job.is_spread()) {
            let is_it = |name: &String| node.is_none_or(|node| node == name);
            let of_it =
                |step: &NodeJobTask| matches!(step, NodeJobTask::Export | NodeJobTask::Attach(_));
            job.done
                .retain(|(name, step)| !(is_it(name) && of_it(step)));
        }
    }
}

/// The paths under which the tasks of a job see its partitions on a node.
pub(crate) fn mounts(
    id: SlurmJobId,
    job: &SiteJob,
    node: Option<&SiteNode>,
) -> impl Iterator<Item = Mount> {
    let owner = Owner::User(job.user);
    let store_of = move |name: &String| Some(node?.written.get(&(id, name.clone()))?.0.clone());
    job.partitions.iter().map(move |partition| Mount {
        store: store_of(&partition.name).unwrap_or_default(),
        dataset: partition.name.clone(),
        owner,
        path: PathBuf::from(format!("{owner}/j/{id}/p/{}", partition.name)),
        writable: true,
        in_memory: false,
        partition: true,
        spread: partition.spread.map(|block| PartitionSpread {
            block,
            nodes: job.nodes.clone(),
        }),
        checkpoints: None,
    })
}
