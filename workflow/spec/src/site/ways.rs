//! The three ways in which users submit a workflow (Weiland 2018, section 2, Figures 3 to 5).

use crate::site::draft::WorkflowDraft;
use tarn_types::site::JobId;

/// How a workflow is submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SubmitWay {
    /// All jobs at once, with their dependencies (Figure 5).
    #[default]
    Dependencies,
    /// The last line of each job's script submits the next (Figure 4).
    Chain,
    /// One script runs one step after the other with the most that any of them needs (Figure 3).
    Script,
}

/// How a workflow from a file becomes jobs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlowOptions {
    /// How it is submitted.
    pub submit: SubmitWay,
    /// Sizes are multiplied by this.
    pub bytes_scale: f64,
    /// Run times are multiplied by this.
    pub time_scale: f64,
}

impl Default for FlowOptions {
    fn default() -> Self {
        Self {
            submit: SubmitWay::default(),
            bytes_scale: 1.0,
            time_scale: 1.0,
        }
    }
}

impl SubmitWay {
    /// Their names.
    pub const NAMES: &[(&'static str, Self)] = &[
        ("dependencies", Self::Dependencies),
        ("chain", Self::Chain),
        ("script", Self::Script),
    ];

    /// Turns a workflow into its submissions; its jobs come in `order`.
    pub(crate) fn apply(self, draft: &mut WorkflowDraft, order: &[usize]) {
        match self {
            Self::Dependencies => {}
            Self::Chain => chain(draft, order),
            Self::Script => script(draft, order),
        }
    }
}

fn id(at: usize) -> JobId {
    JobId(at as u32)
}

/// If a user submits one job after the other, nobody knows the inputs of the later jobs: all inputs go outside.
fn chain(draft: &mut WorkflowDraft, order: &[usize]) {
    for pair in order.windows(2) {
        draft.jobs[pair[1]].follows = Some(id(pair[0]));
    }
    let WorkflowDraft { jobs, items } = draft;
    for input in jobs.iter().flat_map(|j| &j.job.reads) {
        let item = &mut items[input.item.at()].item;
        item.keep |= !item.outside;
    }
}

fn script(draft: &mut WorkflowDraft, order: &[usize]) {
    let Some((&first, rest)) = order.split_first() else {
        return;
    };
    let all = || draft.jobs.iter().map(|j| &j.job);
    let nodes = all().map(|j| j.nodes).max().unwrap_or(1);
    let whole = all().any(|j| j.cores == 0);
    let cores = all().map(|j| j.cores).max().filter(|_| !whole).unwrap_or(0);
    let memory = all().map(|j| j.memory).max().unwrap_or(0);
    let gpus = all().map(|j| j.gpus).max().unwrap_or(0);
    let limit = all().fold(0u64, |sum, j| sum.saturating_add(j.limit));
    let mut before = first;
    for &at in rest {
        let job = &mut draft.jobs[at].job;
        job.continues = Some(id(first));
        if !job.after.contains(&id(before)) {
            job.after.push(id(before));
        }
        before = at;
    }
    let job = &mut draft.jobs[first].job;
    (job.nodes, job.cores, job.memory, job.gpus, job.limit) = (nodes, cores, memory, gpus, limit);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::draft::{DraftJob, plain_job};
    use tarn_types::site::{Input, Item, ItemId, Job, Spread, WorkItem};

    /// Two steps, the second on four nodes; the first reads data from outside, the second the output of the first.
    fn draft() -> WorkflowDraft {
        let input = |item| Input {
            item: ItemId(item),
            spread: Spread::Share,
        };
        let job = |nodes, cores, limit, reads, writes| DraftJob {
            name: "".into(),
            job: Job {
                cores,
                limit,
                reads: vec![input(reads)],
                writes,
                ..plain_job(nodes)
            },
            compute: 1,
            follows: None,
        };
        let item = |outside| WorkItem {
            item: Item {
                bytes: 1,
                outside,
                keep: false,
            },
            name: "".into(),
            bytes: 1,
        };
        WorkflowDraft {
            jobs: vec![job(4, 2, 7, 1, vec![]), job(1, 8, 5, 0, vec![ItemId(1)])],
            items: vec![item(true), item(false)],
        }
    }

    #[test]
    fn chain_submits_one_after_the_other() {
        let mut draft = draft();
        let order = draft.order().expect("no circle");
        SubmitWay::Chain.apply(&mut draft, &order);
        assert_eq!(draft.jobs[1].follows, None);
        assert_eq!(draft.jobs[0].follows, Some(JobId(1)));
        let keep: Vec<bool> = draft.items.iter().map(|i| i.item.keep).collect();
        assert_eq!(keep, [false, true]);
    }

    #[test]
    fn script_asks_for_the_most() {
        let mut draft = draft();
        let order = draft.order().expect("no circle");
        SubmitWay::Script.apply(&mut draft, &order);
        let first = &draft.jobs[1].job;
        assert_eq!((first.nodes, first.cores, first.limit), (4, 8, 12));
        let second = &draft.jobs[0].job;
        assert_eq!((second.continues, second.nodes), (Some(JobId(1)), 4));
        assert_eq!(second.after, [JobId(1)]);
    }
}
