//! Jobs: the inputs and outputs of each, its progress, and the work done for it.

use crate::MAX_HISTORY;
use crate::model::catalog::{Catalog, VersionKey};
use crate::model::checkpoints::{CheckpointKey, JobRestart};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Gid, NodeOrder, Owner, Part, Slice, SlurmJobId, Uid, Work};
use tarn_types::pattern::ScatterRule;
use tarn_types::retry::RetryRule;
use tarn_types::units::Time;
use tarn_types::workflow::StoragePartition;

/// An input of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Reads {
    /// The job's name for it.
    pub(crate) name: String,
    pub(crate) version: VersionKey,
    /// On its first node only.
    pub(crate) on_first: bool,
    /// It is the beginning of what the job writes, not read for itself.
    pub(crate) is_changed: bool,
    /// The declared bytes of a source that nobody has read.
    #[serde(default)]
    pub(crate) size: u64,
    /// The store that it is wished to be read in.
    #[serde(default)]
    pub(crate) tier: Option<String>,
    /// It is scattered: which entries are of which rank.
    #[serde(default)]
    pub(crate) rule: Option<ScatterRule>,
}

/// An output of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Makes {
    pub(crate) version: VersionKey,
    /// Which entries are of which rank; none if its first node alone publishes.
    pub(crate) rule: Option<ScatterRule>,
    /// The version that it begins with.
    pub(crate) from: Option<VersionKey>,
    /// Its declared bytes.
    pub(crate) size: u64,
    /// The place outside where it goes at the end.
    pub(crate) dest: Option<PathBuf>,
    /// The place outside where it goes if the job fails.
    pub(crate) rescue: Option<PathBuf>,
    /// On so many nodes at the end.
    pub(crate) copies: u32,
    /// The store that it is wished to be written to.
    #[serde(default)]
    pub(crate) tier: Option<String>,
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum SiteJobPhase {
    /// It is in Slurm's queue, before the gate.
    #[serde(rename = "Waiting")]
    Queued,
    /// Its nodes get its inputs.
    Staging,
    /// Its nodes have it.
    Running,
    /// Its outputs become versions.
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
pub(crate) struct SiteJob {
    pub(crate) user: Uid,
    pub(crate) group: Gid,
    /// All groups of its user, when it was submitted.
    pub(crate) groups: Vec<Gid>,
    pub(crate) owner: Owner,
    pub(crate) workflow: String,
    /// It is to run on the nodes of this job.
    pub(crate) beside: Option<SlurmJobId>,
    pub(crate) phase: SiteJobPhase,
    /// Slurm has asked about it: then it asks when the job is over, too.
    #[serde(default = "is_reported")]
    pub(crate) is_reported: bool,
    /// As long as Slurm has not: how many readings of its queue in a row have lacked it.
    #[serde(default)]
    pub(crate) absences: u32,
    /// It leaves its nodes once its rescues are done.
    pub(crate) is_leaving: bool,
    /// Nodes that its user excludes. `None`: not known, so its excluded nodes are left as they are.
    #[serde(default)]
    pub(crate) excludes: Option<Vec<String>>,
    /// As long as it has no nodes: those that it is expected on.
    #[serde(default)]
    pub(crate) ahead: Vec<String>,
    /// Whether its inputs are being brought there.
    #[serde(default)]
    pub(crate) is_bringing: bool,
    /// Whether Slurm has called for its data before it has nodes.
    #[serde(default)]
    pub(crate) was_called: bool,
    /// Ranks, and nodes that it asks for.
    pub(crate) tasks: u32,
    pub(crate) wants: u32,
    pub(crate) reads: Vec<Reads>,
    pub(crate) makes: Vec<Makes>,
    /// On each of its nodes, or over them.
    #[serde(default)]
    pub(crate) partitions: Vec<JobPartition>,
    /// It continues from checkpoints.
    #[serde(default)]
    pub(crate) restart: Option<JobRestart>,
    /// Its user has said where it is to run, when it was submitted.
    #[serde(default)]
    pub(crate) has_wish: bool,
    /// It was put back into the queue.
    #[serde(default)]
    pub(crate) is_again: bool,
    /// It has left its nodes for that; whether its workflow had ended then.
    #[serde(default)]
    pub(crate) put_back: Option<bool>,
    /// The ports that its nodes reported last for the pieces of partitions that span them, and how often one has
    /// reported another port.
    #[serde(default, rename = "shared")]
    pub(crate) exported: BTreeMap<String, u16>,
    #[serde(default)]
    pub(crate) moves: u32,
    pub(crate) nodes: Vec<String>,
    /// Its script ended well.
    pub(crate) is_well: bool,
    /// The work done for it on its nodes in this phase.
    pub(crate) done: BTreeSet<(String, NodeJobTask)>,
    /// How often something has failed.
    pub(crate) tries: BTreeMap<(String, NodeJobTask), u32>,
    pub(crate) history: Vec<(Time, String)>,
    pub(crate) waits: Option<String>,
    /// When its nodes became its.
    pub(crate) began: Option<Time>,
    pub(crate) changed: Time,
}

/// Of jobs in logs of versions that knew no others.
fn is_reported() -> bool {
    true
}

/// Something that is done once on a node for a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum NodeJobTask {
    /// A source, of this dataset, is looked at: whether it is unchanged since it was read.
    Look(Owner, String, String),
    /// The place outside for this dataset is checked: whether it may go there.
    CheckDest(String),
    /// A part is brought there.
    Fetch(Part),
    /// A version is merged to be read.
    View(String),
    /// Of an input that is scattered, the entries of the node's ranks are brought together.
    Slice(String),
    /// A folder is made to be written.
    Prepare(String),
    /// A partition is made.
    #[serde(rename = "Lend")]
    CreatePartition(String),
    /// The pieces of those that span its nodes are exported.
    #[serde(rename = "Share")]
    Export,
    /// The node knows where the others export theirs: after so many [`SiteJob::moves`].
    #[serde(rename = "Join")]
    Attach(u32),
    /// The folder of its checkpoints is made.
    Checkpoints,
    /// The data that its program has left in memory is brought to its checkpoints.
    Destage,
    /// The job's tasks are let in.
    Admit,
    /// The files that were written become a part.
    Publish(String),
    /// It goes outside.
    Send(String),
    /// The folders go that the job has of this user's.
    Clear(Uid),
    /// It is not let in any more.
    Dismiss,
}

impl NodeJobTask {
    /// Whether it may read from other nodes.
    pub(crate) fn has_peers(&self) -> bool {
        matches!(
            self,
            Self::Fetch(_) | Self::Slice(_) | Self::Prepare(_) | Self::Send(_)
        )
    }
}

/// A partition that a job has on each of its nodes, or over all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobPartition {
    pub(crate) name: String,
    /// Bytes of data on each node; of one that is spread, on all of them together.
    pub(crate) size: u64,
    /// Bytes of a unit; 0: it is mapped.
    pub(crate) unit: u32,
    /// It spans the nodes: bytes of a block.
    #[serde(default)]
    pub(crate) spread: Option<u64>,
    /// The store that it is wished to be in.
    #[serde(default)]
    pub(crate) tier: Option<String>,
}

impl SiteJob {
    /// Says something of its data, for people.
    pub(crate) fn note(&mut self, now: Time, what: impl Into<String>) {
        let what = what.into();
        self.changed = now;
        if self.history.last().is_some_and(|(_, last)| *last == what) {
            return;
        }
        if self.history.len() == MAX_HISTORY {
            // The first one says when the job came.
            self.history.remove(1);
        }
        self.history.push((now, what));
    }

    /// Whether tarn may exclude nodes for it.
    pub(crate) fn is_anywhere(&self) -> bool {
        self.beside.is_none() && self.excludes.is_some()
    }

    /// The nodes that get an input.
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

    /// The slice of a folder written by all its nodes that is the part of the node at this position.
    pub(crate) fn slice(&self, makes: &Makes, at: usize) -> Option<Slice> {
        let rule = makes.rule.as_ref()?;
        Some(self.ranks_at(rule, at, at == 0))
    }

    /// The ranks of the node at this position: they map to nodes in blocks, those beyond the last task to the last node
    /// (as in a run, [`tarn_types::workflow::Step::node_of_rank`]).
    pub(crate) fn ranks_at(&self, rule: &ScatterRule, at: usize, rest: bool) -> Slice {
        let nodes = self.nodes.len().max(1) as u32;
        let block = self.tasks.div_ceil(nodes).max(1);
        let at = at as u32;
        let is_last = at + 1 == nodes;
        Slice {
            rule: rule.clone(),
            first: at.saturating_mul(block),
            end: match is_last {
                true => u32::MAX,
                false => (at + 1).saturating_mul(block),
            },
            rest,
        }
    }

    /// Whether something has failed too often, counting this time.
    pub(crate) fn has_failed(&mut self, node: &str, step: &NodeJobTask) -> bool {
        let tries = self.tries.entry((node.to_owned(), step.clone()));
        let tries = tries.or_default();
        *tries += 1;
        RetryRule::USUAL.gives_up(*tries)
    }

    /// Whether a step was done for it on a node.
    pub(crate) fn is_done(&self, node: &str, step: &NodeJobTask) -> bool {
        self.done.contains(&(node.to_owned(), step.clone()))
    }

    /// An order that its user's worker carries out.
    pub(crate) fn order(&self, work: Work) -> NodeOrder {
        NodeOrder::Do {
            user: self.user,
            group: self.group,
            work: Box::new(work),
        }
    }

    /// Whether it, before it has begun, may still read an input of its submission.
    pub(crate) fn check_grant(&self, catalog: &Catalog, reads: &Reads) -> Result<(), RequestError> {
        if catalog.may_read(&reads.version, self.user, &self.groups) {
            return Ok(());
        }
        let text = format!(
            "`{}` is not yours to read any more: who owns it has revoked the grant, or removed it",
            reads.name
        );
        Err(RequestError::new(Code::Denied, text))
    }

    /// The versions that it needs: its outputs, and its inputs as far as it may read them.
    pub(crate) fn needs_of<'a>(
        &'a self,
        catalog: &'a Catalog,
    ) -> impl Iterator<Item = &'a VersionKey> {
        let has_begun = (SiteJobPhase::Running..SiteJobPhase::Ended).contains(&self.phase);
        let may = move |r: &&Reads| has_begun || self.check_grant(catalog, r).is_ok();
        let reads = self.reads.iter().filter(may).map(|r| &r.version);
        let all = reads.chain(self.makes.iter().map(|m| &m.version));
        all.filter(|_| self.phase != SiteJobPhase::Ended || self.put_back.is_some())
    }

    pub(crate) fn needs(&self, catalog: &Catalog, id: &VersionKey) -> bool {
        self.needs_of(catalog).any(|needed| needed == id)
    }
}

impl JobPartition {
    /// Bytes of data on each of so many nodes.
    pub(crate) fn on_each(&self, nodes: usize) -> u64 {
        StoragePartition::piece(self.size, self.spread, nodes)
    }

    /// Bytes that it takes there.
    pub(crate) fn takes(&self, nodes: usize) -> u64 {
        StoragePartition::max_file_size(self.on_each(nodes))
    }
}

impl SiteJob {
    /// Bytes that its partitions take on each of its nodes.
    pub(crate) fn partition_bytes(&self) -> u64 {
        let nodes = match self.nodes.len() {
            0 => self.wants as usize,
            nodes => nodes,
        };
        let takes = self.partitions.iter().map(|p| p.takes(nodes));
        takes.fold(0, u64::saturating_add)
    }

    /// The checkpoints that it continues from.
    pub(crate) fn checkpoint_key(&self) -> Option<CheckpointKey> {
        let restart = self.restart.as_ref()?;
        Some((self.user, restart.folder.clone()))
    }

    /// Bytes that its partitions and checkpoints take on each of its nodes.
    pub(crate) fn own_bytes(&self) -> u64 {
        let checkpoints = self.restart.as_ref().map_or(0, |restart| restart.space);
        self.partition_bytes().saturating_add(checkpoints)
    }

    /// Whether some of them span its nodes.
    pub(crate) fn is_spread(&self) -> bool {
        self.partitions.iter().any(|p| p.spread.is_some())
    }
}

impl VersionKey {
    /// A look at the source of its dataset.
    pub(crate) fn look(&self) -> NodeJobTask {
        let (workflow, dataset) = (self.workflow.clone(), self.dataset.clone());
        NodeJobTask::Look(self.owner, workflow, dataset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queued_job_has_the_name_of_earlier_logs() {
        let text = serde_json::to_string(&SiteJobPhase::Queued).unwrap();
        assert_eq!(text, r#""Waiting""#);
    }

    /// The state in a controller's log has the names of the releases that wrote it.
    #[test]
    fn steps_have_the_names_of_earlier_logs() {
        let steps = [
            (NodeJobTask::CreatePartition("p".into()), r#"{"Lend":"p"}"#),
            (NodeJobTask::Export, r#""Share""#),
            (NodeJobTask::Attach(2), r#"{"Join":2}"#),
        ];
        for (step, text) in steps {
            assert_eq!(serde_json::to_string(&step).unwrap(), text);
            assert_eq!(serde_json::from_str::<NodeJobTask>(text).unwrap(), step);
        }
    }
}
