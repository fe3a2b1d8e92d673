//! The jobs of a workload as users of a Slurm submit them: which data a job reads and writes by itself outside, and which one it hands
//! over on the nodes, by `#TARN` lines.

use super::daemons::RANKS;
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::site::JobSubmission;
use tarn_types::hash::Hash;
use tarn_types::id::DataId;
use tarn_types::pattern::{PatternError, ScatterRule};
use tarn_types::site::{FlowId, ItemId, Job, JobId, Spread, Workload};
use tarn_types::workflow::{
    Dataset, DatasetUse, Distribution, Keep, OnFailure, Role, Step, VersionPartitioning, Workflow,
};

/// The user of ordinary jobs; a workflow's is one of those behind it.
pub(crate) const ORDINARY_USER: u32 = 1000;
/// Workflows are of so many users, in turn.
const USERS: u32 = 50;

/// How the data of a workload is handed over.
#[derive(Debug)]
pub(crate) struct HandedItem {
    /// Items that a job of a workflow makes and only others of it read.
    items: BTreeSet<ItemId>,
    pub(crate) makers: BTreeMap<ItemId, JobId>,
}

/// The name of a workflow.
pub(crate) fn workflow_name(flow: FlowId) -> String {
    format!("w{}", flow.0)
}

/// The name of an item's dataset.
pub(crate) fn dataset_name(item: ItemId) -> String {
    format!("d{}", item.0)
}

/// The user of a job.
pub(crate) fn user_of(job: &Job) -> u32 {
    job.flow
        .map_or(ORDINARY_USER, |flow| ORDINARY_USER + 1 + flow.0 % USERS)
}

impl HandedItem {
    /// Of all jobs if `with_service`; else nothing is handed over.
    pub(crate) fn of(work: &Workload, with_service: bool) -> Self {
        let mut makers = BTreeMap::new();
        for (id, w) in (0..).map(JobId).zip(&work.jobs) {
            makers.extend(w.job.writes.iter().map(|item| (*item, id)));
        }
        let flow_of = |job: &JobId| work.jobs[job.at()].job.flow;
        let own = makers.iter().filter(|(_, maker)| flow_of(maker).is_some());
        let mut items: BTreeSet<ItemId> = own.map(|(item, _)| *item).collect();
        let mut read: BTreeSet<ItemId> = BTreeSet::new();
        for w in &work.jobs {
            for input in &w.job.reads {
                read.insert(input.item);
                let maker = makers.get(&input.item);
                if maker.and_then(flow_of) != w.job.flow {
                    items.remove(&input.item);
                }
            }
        }
        // A result that nobody reads goes to where it is to be in the end.
        let is_result = |item: &ItemId| work.items[item.at()].item.keep && !read.contains(item);
        items.retain(|item| with_service && !is_result(item));
        Self { items, makers }
    }

    pub(crate) fn has(&self, item: ItemId) -> bool {
        self.items.contains(&item)
    }

    /// Whether a job has lines.
    pub(crate) fn is_of(&self, job: &Job) -> bool {
        let reads = job.reads.iter().map(|input| input.item);
        reads.chain(job.writes.iter().copied()).any(|i| self.has(i))
    }

    /// The makers of a job's inputs.
    pub(crate) fn makers_of(&self, job: &Job) -> BTreeSet<JobId> {
        let reads = job.reads.iter();
        reads
            .filter_map(|input| self.makers.get(&input.item).copied())
            .collect()
    }

    /// The lines of a job, if it has some.
    pub(crate) fn script(
        &self,
        work: &Workload,
        id: JobId,
    ) -> Result<Option<JobSubmission>, PatternError> {
        let job = &work.jobs[id.at()].job;
        let Some(flow) = job.flow.filter(|_| self.is_of(job)) else {
            return Ok(None);
        };
        let (mut data, mut uses) = (Vec::new(), Vec::new());
        let reads = job.reads.iter();
        let reads = reads.map(|input| (input.item, Role::In, input.spread));
        let writes = job
            .writes
            .iter()
            .map(|item| (*item, Role::Out, Spread::Share));
        for (item, role, spread) in reads.chain(writes).filter(|(item, ..)| self.has(*item)) {
            let of = &work.items[item.at()];
            let maker = self.makers.get(&item).map(|m| &work.jobs[m.at()].job);
            let shares = match role {
                Role::In => 1,
                _ => u64::from(job.nodes.max(1)),
            };
            let is_kept = of.item.keep && role == Role::Out;
            let is_scattered = maker.is_some_and(|m| m.nodes > 1) || job.nodes > 1;
            data.push(Dataset {
                name: dataset_name(item),
                source: None,
                dest: is_kept.then(|| format!("/results/{}", dataset_name(item)).into()),
                size: Some(of.bytes.div_ceil(shares)),
                scatter: is_scattered
                    .then(|| ScatterRule::new("p{rank}"))
                    .transpose()?,
                keep: Keep::UntilConsumed,
                copies: 1,
                on_failure: OnFailure::Discard,
                tier: None,
                encrypt: false,
                of: None,
                partition: VersionPartitioning::Whole,
            });
            uses.push(DatasetUse {
                data: DataId(data.len() as u32 - 1),
                role,
                distribution: match spread {
                    Spread::Share if is_scattered => Distribution::Scatter,
                    Spread::Whole => Distribution::Broadcast,
                    Spread::Share => Distribution::Single,
                },
                entry: None,
                reads: None,
                makes: None,
            });
        }
        Ok(Some(submission(
            flow,
            user_of(job),
            data,
            step(id, job, uses),
        )))
    }
}

fn submission(flow: FlowId, user: u32, data: Vec<Dataset>, step: Step) -> JobSubmission {
    JobSubmission {
        user,
        group: user,
        groups: vec![user],
        owners: BTreeMap::new(),
        is_alone: false,
        chain: None,
        excludes: None,
        has_wish: false,
        workflow: Workflow {
            name: workflow_name(flow),
            external: None,
            erase: false,
            partitions: Vec::new(),
            folder: "/home".into(),
            data,
            steps: vec![step],
        },
    }
}

fn step(id: JobId, job: &Job, uses: Vec<DatasetUse>) -> Step {
    Step {
        name: id.to_string(),
        run: String::new(),
        prelude: None,
        shell: None,
        shared_tmp: false,
        env: BTreeMap::new(),
        nodes: job.nodes,
        tasks: RANKS,
        cores: job.cores.max(1),
        memory: 0,
        gpus: 0,
        time: None,
        retries: 0,
        restart: None,
        tier: None,
        after: Vec::new(),
        foreach: None,
        uses,
        code: Hash::default(),
    }
}
