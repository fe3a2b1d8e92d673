//! A large Slurm cluster from a seed, second by second.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;
use tarn_proto::site::Owner;
use tarn_site::{PlanningJob, PlanningVersion, PlanningView};
use tarn_slurm::{
    NodeNames, PartitionState, PendingReason, SlurmJob, SlurmJobState, SlurmNode, SlurmNodeState,
    SlurmPartition, SlurmSettings, SlurmSnapshot,
};
use tarn_types::random::Random;

const START: u64 = 1_700_000_000;
const GIB: u64 = 1 << 30;
const CORES: u32 = 48;
const USERS: u64 = 500;
/// Of ten nodes, so many are in use by jobs.
const IN_USE: u32 = 9;
/// Seconds that jobs run, and users request up to so many times as much.
const SHORTEST: u64 = 60;
const LONGEST: u64 = 3_600;
const MOST_REQUESTED: u64 = 4;
/// One job in so many is of a workflow: it reads a source and makes a dataset.
const FLOWS: u64 = 50;
/// In one second of so many a node drains, and one comes back.
const DRAINS: u64 = 10;
const PARTITION: &str = "all";

#[derive(Debug, Clone, Copy)]
pub(super) struct CrowdSettings {
    pub(super) nodes: u32,
    pub(super) running: u32,
    pub(super) waiting: u32,
    /// The planner may put nodes to sleep.
    pub(super) has_sleepers: bool,
    pub(super) seed: u64,
}

pub(super) struct Crowd {
    pub(super) snapshot: SlurmSnapshot,
    pub(super) view: PlanningView,
    random: Random,
    /// Nodes of a job.
    largest: u64,
    next: u32,
    /// Jobs that wait, first to last, with the seconds that they will run.
    queue: VecDeque<(u32, u64)>,
    ends: BinaryHeap<Reverse<(u64, u32)>>,
    free: Vec<String>,
    drained: VecDeque<String>,
}

impl Crowd {
    pub(super) fn new(settings: CrowdSettings) -> Self {
        let all: Vec<String> = (0..settings.nodes).map(|n| format!("n{n:06}")).collect();
        let mut view = PlanningView::default();
        for name in &all {
            view.capacities.insert(name.clone(), 100 * GIB);
            if settings.has_sleepers {
                view.spare.insert(name.clone());
                view.drawn.insert(name.clone(), 300_000);
            }
        }
        // The mean of what jobs have is half the largest.
        let mean = u64::from(settings.nodes) * u64::from(IN_USE) / 10 / u64::from(settings.running);
        let mut this = Self {
            snapshot: empty_cluster(&all),
            view,
            random: Random::new(settings.seed),
            largest: (2 * mean).saturating_sub(1).max(1),
            next: 1,
            queue: VecDeque::new(),
            ends: BinaryHeap::new(),
            free: all,
            drained: VecDeque::new(),
        };
        for _ in 0..settings.running + settings.waiting {
            this.submit();
        }
        this.begin();
        // As far as jobs have nodes: the others wait.
        this.settle();
        this
    }

    /// Jobs that have run for a while.
    fn settle(&mut self) {
        let ends: Vec<(u64, u32)> = self.ends.drain().map(|Reverse(end)| end).collect();
        for (end, number) in ends {
            let run = end - START;
            let ran = self.random.below(run);
            if let Some(job) = self.snapshot.jobs.get_mut(&number) {
                job.start = Some(START - ran);
                job.end = job.limit.map(|limit| START - ran + limit);
            }
            self.ends.push(Reverse((end - ran, number)));
        }
    }

    /// One second. Returns the number of its changes.
    pub(super) fn next_second(&mut self) -> u32 {
        self.snapshot.read_at += 1;
        let now = self.snapshot.read_at;
        let mut ended = 0;
        while let Some(Reverse((end, number))) = self.ends.peek().copied()
            && end <= now
        {
            self.ends.pop();
            self.end(number);
            ended += 1;
        }
        for _ in 0..ended {
            self.submit();
        }
        let drains = match self.random.below(DRAINS) {
            0 => self.drain(),
            _ => 0,
        };
        2 * ended + drains + self.begin()
    }

    fn end(&mut self, number: u32) {
        self.view.jobs.remove(&number);
        let workflow = format!("w{number}");
        self.view.versions.retain(|key, _| key.1 != workflow);
        if let Some(job) = self.snapshot.jobs.remove(&number) {
            for name in job.nodes.iter() {
                self.set_state(name, "idle");
                self.free.push(name.clone());
            }
        }
    }

    fn set_state(&mut self, name: &str, state: &str) {
        if let Some(node) = self.snapshot.nodes.get_mut(name) {
            node.state = SlurmNodeState::parse(state);
        }
    }

    /// A node without jobs drains, and one that did before is idle again.
    fn drain(&mut self) -> u32 {
        let mut changes = 0;
        if let Some(name) = self.free.pop() {
            self.set_state(&name, "drained");
            self.drained.push_back(name);
            changes += 1;
        }
        if self.drained.len() > 1
            && let Some(name) = self.drained.pop_front()
        {
            self.set_state(&name, "idle");
            self.free.push(name);
            changes += 1;
        }
        changes
    }

    fn submit(&mut self) {
        let number = self.next;
        self.next += 1;
        let nodes = self.random.within(1..self.largest + 1) as u32;
        let run = self.random.within(SHORTEST..LONGEST);
        let limit = run * self.random.within(1..MOST_REQUESTED + 1);
        let user = 1000 + self.random.below(USERS) as u32;
        let now = self.snapshot.read_at;
        let job = waiting(number, user, (nodes, limit), now);
        self.snapshot.jobs.insert(number, job);
        self.queue.push_back((number, run));
        if self.random.below(FLOWS) == 0 {
            self.add_data(number, user);
        }
    }

    /// Data lines of a job: a source outside, and a dataset that it makes.
    fn add_data(&mut self, number: u32, user: u32) {
        let workflow = format!("w{number}");
        let owner = Owner::User(user);
        let key = |dataset: &str| (owner, workflow.clone(), dataset.to_owned(), 1);
        let version = |is_outside: bool| PlanningVersion {
            bytes: 10 * GIB,
            is_outside,
            is_made: is_outside,
            parts: Vec::new(),
        };
        self.view.versions.insert(key("source"), version(true));
        self.view.versions.insert(key("made"), version(false));
        self.view.jobs.insert(
            number,
            PlanningJob {
                workflow: (owner, workflow.clone()),
                arrived: 0,
                reads: vec![(key("source"), false)],
                makes: vec![key("made")],
                is_well: true,
                is_called: true,
                is_staged: true,
            },
        );
    }

    /// The first jobs begin while there are nodes for them.
    fn begin(&mut self) -> u32 {
        let now = self.snapshot.read_at;
        let mut begun = 0;
        while let Some((number, run)) = self.queue.front().copied() {
            let Some(job) = self.snapshot.jobs.get_mut(&number) else {
                break;
            };
            let nodes = job.min_nodes as usize;
            let keeps = self.view.capacities.len() / 10;
            if self.free.len() < nodes + keeps {
                break;
            }
            let mut names = self.free.split_off(self.free.len() - nodes);
            names.sort_unstable();
            job.state = SlurmJobState::Running;
            job.reason = PendingReason::None;
            job.start = Some(now);
            job.end = job.limit.map(|limit| now + limit);
            job.nodes = NodeNames::from(&names[..]);
            for name in &names {
                self.set_state(name, "allocated");
            }
            self.queue.pop_front();
            self.ends.push(Reverse((now + run, number)));
            begun += 1;
        }
        begun
    }
}

fn empty_cluster(names: &[String]) -> SlurmSnapshot {
    let partition = SlurmPartition {
        name: PARTITION.to_owned(),
        nodes: Arc::from(names),
        max_time: None,
        tier: 1,
        state: PartitionState::Up,
        is_default: true,
        oversubscribe: "NO".to_owned(),
    };
    SlurmSnapshot {
        read_at: START,
        nodes: names.iter().map(|n| (n.clone(), node(n))).collect(),
        jobs: BTreeMap::new(),
        partitions: BTreeMap::from([(PARTITION.to_owned(), partition)]),
        reservations: BTreeMap::new(),
        licences: BTreeMap::new(),
        settings: SlurmSettings {
            version: "24.11.5".to_owned(),
            boot_time: Some(START - 1_000),
            scheduler_type: "sched/backfill".to_owned(),
            scheduler_parameters: Vec::new(),
            priority_type: "priority/basic".to_owned(),
            min_job_age: Some(300),
            reservation_overrun: Some(0),
            job_completion_type: String::new(),
            energy_type: String::new(),
        },
    }
}

fn node(name: &str) -> SlurmNode {
    SlurmNode {
        name: name.to_owned(),
        state: SlurmNodeState::parse("idle"),
        cpus: CORES,
        cpus_allocated: 0,
        memory: 192 * GIB,
        memory_allocated: 0,
        gres: String::new(),
        features: vec!["cpu".to_owned()],
        active_features: vec!["cpu".to_owned()],
        partitions: BTreeSet::from([PARTITION.to_owned()]),
        reason: String::new(),
        extra: String::new(),
        is_incomplete: false,
    }
}

fn waiting(number: u32, user: u32, (nodes, limit): (u32, u64), now: u64) -> SlurmJob {
    let none = || NodeNames::from(&[][..]);
    SlurmJob {
        number,
        array: None,
        het: None,
        user,
        user_name: format!("user{user}"),
        partitions: vec![PARTITION.to_owned()],
        qos: "normal".to_owned(),
        account: "science".to_owned(),
        state: SlurmJobState::Pending,
        reason: PendingReason::Priority,
        description: String::new(),
        priority: 100_000_000 - number,
        nice: 0,
        submitted: Some(now),
        eligible: Some(now),
        start: None,
        end: None,
        limit: Some(limit),
        min_nodes: nodes,
        max_nodes: nodes,
        cpus: CORES * nodes,
        memory: None,
        tres_per_node: String::new(),
        is_exclusive: true,
        features: String::new(),
        preferred: String::new(),
        excluded: none(),
        required: none(),
        nodes: none(),
        planned: none(),
        reservation: String::new(),
        licences: String::new(),
        dependency: String::new(),
        has_burst_buffer: false,
        admin_comment: String::new(),
        lacks_exclusions: false,
        is_incomplete: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_end_begin_and_come_and_no_node_has_two() {
        let mut crowd = Crowd::new(CrowdSettings {
            nodes: 1_000,
            running: 50,
            waiting: 50,
            has_sleepers: false,
            seed: 3,
        });
        let (mut changes, mut ended) = (0, 0);
        let mut before: BTreeSet<u32> = crowd.snapshot.jobs.keys().copied().collect();
        for _ in 0..600 {
            changes += crowd.next_second();
            let jobs = &crowd.snapshot.jobs;
            let has = jobs.values().flat_map(|job| job.nodes.iter());
            let names: Vec<&String> = has.collect();
            let each: BTreeSet<&String> = names.iter().copied().collect();
            assert_eq!(names.len(), each.len());
            assert!(names.len() > 700 && names.len() <= 900, "{}", names.len());
            let now: BTreeSet<u32> = jobs.keys().copied().collect();
            ended += before.difference(&now).count();
            before = now;
        }
        assert!(ended > 5 && changes > 10, "{ended} {changes}");
        assert_eq!(crowd.snapshot.jobs.len(), 100);
        assert!(!crowd.view.jobs.is_empty());
    }
}
