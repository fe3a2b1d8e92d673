//! The planner beside a host that decides by itself, as on a real Slurm: every begin is the host's, nodes drain, jobs
//! change. Nothing is simulated but the answers of the host, so all of the memory is the planner's and the jobs' own.

use super::Timed;
use crate::processes::resident;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Instant;
use tarn_engine::plan::Planner;
use tarn_types::id::NodeId;
use tarn_types::policy::Policy;
use tarn_types::random::Random;
use tarn_types::site::{
    Job, JobId, JobNodes, Machine, MoveId, NodeMask, NodeShare, SiteAction, SiteEvent, Submit,
    Workload,
};
use tarn_types::units::{SECOND, Time};

/// Of a hundred allocations, so many are not begun, and so many lose their nodes to a job that waits behind.
const NOT_BEGUN: u64 = 10;
const LOST: u64 = 10;
/// One event in so many closes a node, and one changes a job.
const RARE: u64 = 20;
/// How long a node is closed.
const CLOSED_FOR: Time = 600 * SECOND;
/// The host reports that it has not begun a job so long after the planner wished it.
const REPORTS_AFTER: Time = 10 * SECOND;
/// Bytes a second of every move.
const RATE: u64 = 1_000_000_000;
/// Sets of nodes to which changed jobs are bound: each leaves some nodes out, as a list of excluded nodes does.
const MASKS: usize = 4;
/// Nodes that each leaves out.
const LEFT_OUT: u32 = 20;

/// The events of the host, in order of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// The program of a job ends, if it still has the nodes that it had got so-many-th.
    End(JobId, u32),
    NotBegun(JobId, u32),
    Moved(u64),
    Open(NodeId),
    Submit(usize),
}

struct BenchHost<'a> {
    work: &'a Workload,
    random: Random,
    due: BinaryHeap<Reverse<(Time, u64, Due)>>,
    numbered: u64,
    /// How often a job has got nodes or lost them, and its nodes while it has some.
    turns: HashMap<JobId, u32>,
    held: HashMap<JobId, JobNodes>,
    /// Ordinary jobs without data that may still wait, by what they ask for.
    waiting: HashMap<(u32, u32), Vec<JobId>>,
    specs: HashMap<JobId, Arc<Job>>,
    masks: Vec<Arc<NodeMask>>,
    nodes: u32,
}

impl<'a> BenchHost<'a> {
    fn new(machine: &Machine, work: &'a Workload, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let nodes = machine.nodes();
        let few = LEFT_OUT.min(nodes / 2);
        let mut mask = || {
            let out = std::iter::repeat_with(|| random.below(nodes.into()) as u32);
            let out: BTreeSet<u32> = out.take(few as usize).collect();
            let left = (0..nodes).filter(|n| !out.contains(n));
            Arc::new(left.map(NodeId).collect())
        };
        let masks = std::iter::repeat_with(&mut mask).take(MASKS).collect();
        let mut this = Self {
            work,
            random,
            due: BinaryHeap::new(),
            numbered: 0,
            turns: HashMap::new(),
            held: HashMap::new(),
            waiting: HashMap::new(),
            specs: HashMap::new(),
            masks,
            nodes,
        };
        let mut at = 0;
        while at < work.jobs.len() {
            this.at(submit_time(work, at), Due::Submit(at));
            at = this.together(at);
        }
        this
    }

    fn at(&mut self, time: Time, due: Due) {
        self.numbered += 1;
        self.due.push(Reverse((time, self.numbered, due)));
    }

    /// The first job that is not submitted with this one.
    fn together(&self, first: usize) -> usize {
        let time = submit_time(self.work, first);
        let flow = self.work.jobs[first].job.flow;
        let with = |n: &usize| {
            let same = submit_time(self.work, *n) == time;
            same && (time == 0 || flow.is_some() && self.work.jobs[*n].job.flow == flow)
        };
        let mut next = first + 1;
        while next < self.work.jobs.len() && with(&next) {
            next += 1;
        }
        next
    }

    fn submitted(&mut self, first: usize) -> SiteEvent {
        let range = first..self.together(first);
        let (mut jobs, mut items) = (Vec::new(), Vec::new());
        for number in range {
            let (id, job) = (JobId(number as u32), self.work.jobs[number].job.clone());
            let reads = job.reads.iter().map(|i| i.item);
            for item in reads.chain(job.writes.iter().copied()) {
                items.push((item, self.work.items[item.at()].item));
            }
            if job.flow.is_none() && job.reads.is_empty() && job.writes.is_empty() {
                let like = self.waiting.entry((job.nodes, job.cores)).or_default();
                like.push(id);
            }
            self.specs.insert(id, job.clone());
            jobs.push((id, job));
        }
        SiteEvent::Submitted { jobs, items }
    }

    fn next(&mut self) -> Option<(Time, SiteEvent)> {
        loop {
            let Reverse((now, _, due)) = self.due.pop()?;
            let turn = |h: &Self, job: &JobId| h.turns.get(job).copied().unwrap_or(0);
            let event = match due {
                Due::End(job, of) if of == turn(self, &job) => {
                    self.held.remove(&job);
                    let (ok, sizes) = (true, Vec::new());
                    SiteEvent::Ended { job, ok, sizes }
                }
                Due::NotBegun(job, of) if of == turn(self, &job) => SiteEvent::NotBegun { job },
                Due::End(..) | Due::NotBegun(..) => continue,
                Due::Moved(id) => SiteEvent::Moved { id: MoveId(id) },
                Due::Open(node) => SiteEvent::Opened { node },
                Due::Submit(first) => self.submitted(first),
            };
            return Some((now, event));
        }
    }

    /// A job that waits behind and asks for the same.
    fn another(&mut self, like: &Job, but: JobId) -> Option<JobId> {
        let waiting = self.waiting.get_mut(&(like.nodes, like.cores))?;
        while let Some(id) = waiting.pop() {
            if id != but && !self.held.contains_key(&id) && !self.turns.contains_key(&id) {
                return Some(id);
            }
        }
        None
    }

    fn began(&mut self, job: JobId, nodes: JobNodes, now: Time) -> SiteEvent {
        let spec = &self.specs[&job];
        let share = NodeShare {
            cores: spec.cores,
            memory: spec.memory,
            gpus: spec.gpus,
        };
        let since = now;
        self.held.insert(job, nodes.clone());
        SiteEvent::Began {
            job,
            nodes,
            share,
            since,
        }
    }

    /// Does what the planner decided, or something else. The events that follow at once.
    fn perform(&mut self, now: Time, actions: &[SiteAction]) -> Vec<SiteEvent> {
        let mut at_once = Vec::new();
        for action in actions {
            match action {
                SiteAction::Allocate { job, nodes, .. } => {
                    let turn = self.turns.entry(*job).or_default();
                    *turn += 1;
                    let turn = *turn;
                    let roll = self.random.below(100);
                    if roll < NOT_BEGUN {
                        self.at(now + REPORTS_AFTER, Due::NotBegun(*job, turn));
                        continue;
                    }
                    let spec = self.specs[job].clone();
                    let lost = roll < NOT_BEGUN + LOST && spec.flow.is_none();
                    let other = lost.then(|| self.another(&spec, *job)).flatten();
                    at_once.push(self.began(other.unwrap_or(*job), nodes.clone(), now));
                }
                SiteAction::Run { job, .. } => {
                    let turn = self.turns.get(job).copied().unwrap_or(0);
                    let compute = self.work.jobs[job.at()].compute;
                    self.at(now + compute, Due::End(*job, turn));
                }
                SiteAction::Release { job } => {
                    *self.turns.entry(*job).or_default() += 1;
                    self.held.remove(job);
                }
                SiteAction::Move(order) => {
                    let takes = u128::from(order.bytes) * u128::from(SECOND) / u128::from(RATE);
                    self.at(now + takes as Time, Due::Moved(order.id.0));
                }
                _ => {}
            }
        }
        at_once
    }

    /// Now and then a node drains, or a job changes.
    fn rare(&mut self, now: Time) -> Option<SiteEvent> {
        match self.random.below(RARE) {
            0 => {
                let node = NodeId(self.random.below(self.nodes.into()) as u32);
                let until = now + CLOSED_FOR + self.random.below(SECOND);
                self.at(until, Due::Open(node));
                let until = Some(until);
                Some(SiteEvent::Closed { node, until })
            }
            1 => {
                let job = JobId(self.random.below(self.work.jobs.len() as u64) as u32);
                let mut spec = Job::clone(self.specs.get(&job)?);
                spec.limit += spec.limit / 10;
                if !self.held.contains_key(&job) {
                    spec.on = Some(self.masks[self.random.below(MASKS as u64) as usize].clone());
                }
                let spec = Arc::new(spec);
                self.specs.insert(job, spec.clone());
                Some(SiteEvent::Changed { job, spec })
            }
            _ => None,
        }
    }
}

fn submit_time(work: &Workload, job: usize) -> Time {
    match work.jobs[job].submit {
        Submit::At(time) => time,
        Submit::After(_) => 0,
    }
}

/// The time that a host's day costs the planner.
pub(super) struct HostedFigures {
    pub(super) timed: Timed,
    /// Bytes that the planner has with the machine and all waiting jobs.
    pub(super) memory: u64,
}

/// Times the planner's steps with the events of a host, once all nodes are taken, while enough jobs wait.
pub(super) fn time_hosted(
    machine: &Machine,
    workload: &Workload,
    (policy, seed): (Policy, u64),
    (waiting, most): (usize, usize),
) -> anyhow::Result<HostedFigures> {
    let mut host = BenchHost::new(machine, workload, seed);
    let before = resident()?;
    let mut planner = Planner::new(machine, policy);
    let (mut timed, mut actions) = (Timed::default(), Vec::new());
    let mut memory = 0;
    let mut events: Vec<SiteEvent> = Vec::new();
    let mut now = 0;
    let (mut full, mut deadline) = (false, None);
    while timed.working.len() < most {
        let event = match events.pop() {
            Some(event) => event,
            None if host
                .due
                .peek()
                .is_none_or(|Reverse(d)| deadline.is_some_and(|t| t < d.0)) =>
            {
                let Some(at) = deadline else {
                    break;
                };
                now = at;
                SiteEvent::Timer
            }
            None => {
                let Some((at, event)) = host.next() else {
                    break;
                };
                full |= at > 0 && planner.waiting() >= waiting;
                now = now.max(at);
                event
            }
        };
        if full && memory == 0 {
            memory = resident()?.saturating_sub(before).max(1);
        }
        let waits = planner.waiting();
        if full && waits < waiting {
            break;
        }
        actions.clear();
        let started = Instant::now();
        // The host's own choices may contradict what the planner knows: such events are refused.
        let stepped = planner.step(now, &event, &mut actions);
        let took = started.elapsed().as_secs_f64() * 1e3;
        let taken = stepped.is_ok();
        if matches!(event, SiteEvent::Submitted { .. }) {
            stepped?;
        }
        let worked = taken && event != SiteEvent::Timer;
        if full && (worked || !actions.is_empty()) {
            timed.see(took, true, waits);
        }
        deadline = planner.deadline();
        // In order: the last is the next.
        let at_once = host.perform(now, &actions);
        events.extend(at_once.into_iter().rev());
        events.extend(host.rare(now).filter(|_| full));
    }
    Ok(HostedFigures { timed, memory })
}
