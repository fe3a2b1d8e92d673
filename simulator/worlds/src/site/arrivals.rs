//! The submission of jobs: at a time, or when another job is done.

use std::collections::{HashMap, VecDeque};
use tarn_ports::WorldError;
use tarn_types::site::{FlowId, ItemId, JobId, SiteEvent, Submit, Workload};
use tarn_types::units::Time;

/// The submissions of a workload.
#[derive(Debug)]
pub(super) struct JobArrivals {
    /// By time, then by rank: jobs of one rank and time come in one event.
    timed: Vec<(Time, u32, JobId)>,
    next: usize,
    /// By the job they come after.
    chained: Vec<(JobId, JobId)>,
    /// Submissions whose moment has come.
    released: VecDeque<Vec<JobId>>,
    /// Items that the planner knows, by number.
    announced: Vec<bool>,
}

impl JobArrivals {
    /// # Errors
    /// When the workload names jobs or items that it does not have.
    pub(super) fn new(work: &Workload) -> Result<Self, WorldError> {
        check(work)?;
        let mut ranks: HashMap<(FlowId, Time), u32> = HashMap::new();
        let (mut timed, mut chained) = (Vec::new(), Vec::new());
        for (number, w) in (0u32..).zip(&work.jobs) {
            let id = JobId(number);
            match w.submit {
                Submit::After(before) => chained.push((before, id)),
                Submit::At(time) => {
                    let together = w
                        .job
                        .flow
                        .map(|f| *ranks.entry((f, time)).or_insert(number));
                    timed.push((time, together.unwrap_or(number), id));
                }
            }
        }
        timed.sort_unstable();
        chained.sort_unstable();
        Ok(Self {
            timed,
            next: 0,
            chained,
            released: VecDeque::new(),
            announced: vec![false; work.items.len()],
        })
    }

    /// When the next submission is.
    pub(super) fn time(&self, now: Time) -> Option<Time> {
        if !self.released.is_empty() {
            return Some(now);
        }
        self.timed.get(self.next).map(|t| t.0.max(now))
    }

    /// The jobs of the next submission.
    pub(super) fn take(&mut self) -> Vec<JobId> {
        if let Some(jobs) = self.released.pop_front() {
            return jobs;
        }
        let rest = &self.timed[self.next..];
        let Some((time, rank, _)) = rest.first() else {
            return Vec::new();
        };
        let same = |t: &&(Time, u32, JobId)| (t.0, t.1) == (*time, *rank);
        let jobs: Vec<JobId> = rest.iter().take_while(same).map(|t| t.2).collect();
        self.next += jobs.len();
        jobs
    }

    /// The event that announces jobs to the planner, with the items that it does not know yet.
    pub(super) fn event(&mut self, work: &Workload, jobs: &[JobId]) -> SiteEvent {
        let mut items = Vec::new();
        let mut named = Vec::with_capacity(jobs.len());
        for id in jobs {
            let job = &work.jobs[id.at()].job;
            let reads = job.reads.iter().map(|r| r.item);
            for item in reads.chain(job.writes.iter().copied()) {
                if !std::mem::replace(&mut self.announced[item.at()], true) {
                    items.push((item, work.items[item.at()].item));
                }
            }
            named.push((*id, job.clone()));
        }
        SiteEvent::Submitted { jobs: named, items }
    }

    /// A job is done: jobs that come after it are submitted now.
    pub(super) fn done(&mut self, work: &Workload, job: JobId) {
        let mut jobs: Vec<JobId> = self.after(job).collect();
        while let Some(first) = jobs.first() {
            let flow = work.jobs[first.at()].job.flow;
            let together = |j: &JobId| flow.is_some() && work.jobs[j.at()].job.flow == flow;
            let first = *first;
            let (now, later) = jobs.into_iter().partition(|j| *j == first || together(j));
            self.released.push_back(now);
            jobs = later;
        }
    }

    /// The jobs that are submitted after a job.
    pub(super) fn after(&self, job: JobId) -> impl Iterator<Item = JobId> {
        let from = self.chained.partition_point(|c| c.0 < job);
        let chained = self.chained[from..].iter();
        chained.take_while(move |c| c.0 == job).map(|c| c.1)
    }
}

/// Whether all that the workload names is there, and nothing is made twice.
fn check(work: &Workload) -> Result<(), WorldError> {
    let mut made = vec![false; work.items.len()];
    for (number, w) in (0u32..).zip(&work.jobs) {
        let id = JobId(number);
        let wrong = |what: String| {
            Err(WorldError(format!(
                "workload: job {id} {what}; this is an error of what made the workload"
            )))
        };
        let comes_after = match w.submit {
            Submit::After(before) => Some(before),
            Submit::At(_) => None,
        };
        let jobs = w
            .job
            .after
            .iter()
            .copied()
            .chain(w.job.continues)
            .chain(comes_after);
        for other in jobs {
            if other.at() >= work.jobs.len() || other == id {
                return wrong(format!("names job {other}, which is not there or itself"));
            }
        }
        if w.job.flow.is_some_and(|f| f.at() >= work.flows.len()) {
            return wrong("is of a workflow that is not there".into());
        }
        let reads = w.job.reads.iter().map(|r| r.item);
        let items: Vec<ItemId> = reads.chain(w.job.writes.iter().copied()).collect();
        if let Some(item) = items.iter().find(|i| i.at() >= work.items.len()) {
            return wrong(format!("names item {item}, which is not there"));
        }
        for item in &w.job.writes {
            if work.items[item.at()].item.outside || std::mem::replace(&mut made[item.at()], true) {
                return wrong(format!("writes item {item}, which exists already"));
            }
        }
        if w.job.nodes == 0 {
            return wrong("asks for no nodes; it needs at least 1".into());
        }
    }
    for (number, w) in (0u32..).zip(&work.jobs) {
        let missing = |i: &&ItemId| !made[i.at()] && !work.items[i.at()].item.outside;
        let reads: Vec<ItemId> = w.job.reads.iter().map(|r| r.item).collect();
        if let Some(item) = reads.iter().find(missing) {
            return Err(WorldError(format!(
                "workload: job {} reads item {item}, which is not outside and which nobody writes; this is an error of \
                 what made the workload",
                JobId(number)
            )));
        }
    }
    Ok(())
}
