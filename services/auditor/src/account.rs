//! The account: nodes, and the jobs that wait and run, at one moment of the replay.

use crate::AuditInput;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::site::AccountedJob;
use tarn_types::site::promise::{NodeResources, PromiseAccount, TakerKind, all_free_at, free_at};

/// The position of an attempt.
pub(crate) type Row = usize;

/// The jobs that are compared: partition and quality of service.
pub(crate) type ComparedQueue<'a> = (&'a str, &'a str);

/// An attempt of a job.
#[derive(Debug)]
pub(crate) struct AuditedJob<'a> {
    pub(crate) job: &'a AccountedJob,
    /// It had data lines.
    pub(crate) has_data: bool,
    /// Until when it may keep its nodes: [`u64::MAX`] before it has any, or without a limit.
    pub(crate) limit_end: u64,
    pub(crate) is_waiting: bool,
    pub(crate) is_running: bool,
    /// It is judged no further.
    pub(crate) is_set_aside: bool,
    /// Its share of each of its nodes.
    share: NodeResources,
    nodes: Vec<usize>,
}

#[derive(Debug, Default)]
struct NodeAccount {
    all: NodeResources,
    guests: Vec<Row>,
}

/// The account.
#[derive(Debug)]
pub(crate) struct AuditAccount<'a> {
    pub(crate) now: u64,
    pub(crate) rows: Vec<AuditedJob<'a>>,
    nodes: Vec<NodeAccount>,
    /// By partition.
    members: BTreeMap<&'a str, Vec<usize>>,
    /// Ordinary jobs that wait, by queue, the longest first.
    waiting: BTreeMap<ComparedQueue<'a>, BTreeSet<(u64, Row)>>,
    /// Those of them during whose wait no job of another queue with data lines has got nodes of their partition yet.
    unaffected: BTreeMap<ComparedQueue<'a>, BTreeSet<Row>>,
    /// Jobs with data lines that have nodes, by queue, the first that was submitted first.
    data_running: BTreeMap<ComparedQueue<'a>, BTreeSet<(Option<u64>, Row)>>,
    /// The earliest end by limit of those that run: whether one is beyond its limit.
    limits: BTreeSet<(u64, Row)>,
    /// Results for the first jobs, kept up to date: a machine has many nodes, and an event concerns few.
    free: RefCell<BTreeMap<ComparedQueue<'a>, FreeTimes>>,
}

fn share_of(job: &AccountedJob) -> NodeResources {
    let nodes = job.node_count();
    let each = |sum: u64| sum.div_ceil(nodes);
    [
        each(job.cpus),
        each(job.memory.unwrap_or(0)),
        each(job.gpus),
    ]
}

pub(crate) fn queue_of(job: &AccountedJob) -> ComparedQueue<'_> {
    (&job.partition, &job.qos)
}

impl<'a> AuditAccount<'a> {
    pub(crate) fn new(input: &AuditInput<'a>) -> Self {
        let mut account = Self {
            now: 0,
            rows: Vec::with_capacity(input.jobs.len()),
            nodes: Vec::new(),
            members: BTreeMap::new(),
            waiting: BTreeMap::new(),
            unaffected: BTreeMap::new(),
            data_running: BTreeMap::new(),
            limits: BTreeSet::new(),
            free: RefCell::default(),
        };
        let mut numbers: BTreeMap<&'a str, usize> = BTreeMap::new();
        for (name, node) in input.nodes {
            numbers.insert(name, account.nodes.len());
            for partition in &node.partitions {
                let members = account.members.entry(partition).or_default();
                members.push(account.nodes.len());
            }
            account.nodes.push(NodeAccount {
                all: node.resources,
                guests: Vec::new(),
            });
        }
        let is_described = account.nodes.len();
        for job in input.jobs {
            account.add(job, input, &mut numbers);
        }
        account.measure(is_described);
        account
    }

    fn add(
        &mut self,
        job: &'a AccountedJob,
        input: &AuditInput<'a>,
        numbers: &mut BTreeMap<&'a str, usize>,
    ) {
        let mut nodes = Vec::with_capacity(job.nodes.len());
        for name in job.nodes.iter() {
            let number = *numbers.entry(name).or_insert_with(|| {
                self.nodes.push(NodeAccount::default());
                self.nodes.len() - 1
            });
            nodes.push(number);
            if !input.nodes.contains_key(name) {
                self.members.entry(&job.partition).or_default().push(number);
            }
        }
        self.rows.push(AuditedJob {
            job,
            has_data: input.data_jobs.contains(&job.number),
            limit_end: u64::MAX,
            is_waiting: false,
            is_running: false,
            is_set_aside: false,
            share: share_of(job),
            nodes,
        });
    }

    /// Nodes that nobody describes have as much as jobs had on them at one time.
    fn measure(&mut self, is_described: usize) {
        for members in self.members.values_mut() {
            members.sort_unstable();
            members.dedup();
        }
        let mut changes: Vec<(u64, bool, Row)> = Vec::new();
        for (row, of) in self.rows.iter().enumerate() {
            if let (Some(start), Some(end)) = (of.job.start, of.job.end)
                && start < end
            {
                changes.extend([(start, true, row), (end, false, row)]);
            }
        }
        // Ends come before begins of the same second.
        changes.sort_unstable();
        let mut taken = vec![[0u64; 3]; self.nodes.len()];
        for (_, is_begin, row) in changes {
            let of = &self.rows[row];
            for node in of.nodes.iter().filter(|node| **node >= is_described) {
                for (sum, share) in taken[*node].iter_mut().zip(of.share) {
                    *sum = match is_begin {
                        true => sum.saturating_add(share),
                        false => sum.saturating_sub(share),
                    };
                }
                let all = &mut self.nodes[*node].all;
                for (most, sum) in all.iter_mut().zip(taken[*node]) {
                    *most = sum.max(*most);
                }
            }
        }
    }

    /// From when on a node has room for such a share, by the limits of the jobs that have it; 0: now. `None`: never.
    fn free_time(&self, node: usize, share: NodeResources) -> Option<u64> {
        let node = &self.nodes[node];
        let fits = node.all.iter().zip(share).all(|(all, share)| share <= *all);
        let guests = node.guests.iter().map(|guest| {
            let guest = &self.rows[*guest];
            (guest.limit_end, guest.share)
        });
        fits.then(|| free_at(0, node.all, share, guests.collect()))
    }

    /// The jobs of a node have changed.
    fn refresh(&self, nodes: &[usize]) {
        for (queue, free) in self.free.borrow_mut().iter_mut() {
            let members = self.members.get(queue.0).map_or(&[][..], |m| m);
            for node in nodes {
                if let Ok(at) = members.binary_search(node) {
                    free.set(at, self.free_time(*node, free.share));
                }
            }
        }
    }

    pub(crate) fn is_beyond_its_limit(&self) -> bool {
        self.limits.first().is_some_and(|(end, _)| *end < self.now)
    }

    /// It waits from now on.
    pub(crate) fn wait(&mut self, row: Row) {
        let of = &mut self.rows[row];
        of.is_waiting = true;
        if !of.has_data && !of.is_set_aside {
            let waiting = self.waiting.entry(queue_of(of.job)).or_default();
            waiting.insert((ready(of.job), row));
            let unaffected = self.unaffected.entry(queue_of(of.job)).or_default();
            unaffected.insert(row);
        }
    }

    /// It waits no longer.
    pub(crate) fn leave_queue(&mut self, row: Row) {
        let of = &mut self.rows[row];
        of.is_waiting = false;
        if let Some(waiting) = self.waiting.get_mut(&queue_of(of.job)) {
            waiting.remove(&(ready(of.job), row));
        }
        if let Some(unaffected) = self.unaffected.get_mut(&queue_of(of.job)) {
            unaffected.remove(&row);
        }
    }

    /// It is judged no further. Whether it was until now.
    pub(crate) fn set_aside(&mut self, row: Row) -> bool {
        let was = std::mem::replace(&mut self.rows[row].is_set_aside, true);
        let is_waiting = self.rows[row].is_waiting;
        self.leave_queue(row);
        self.rows[row].is_waiting = is_waiting;
        !was
    }

    pub(crate) fn start(&mut self, row: Row) {
        self.leave_queue(row);
        let of = &mut self.rows[row];
        of.is_running = true;
        of.limit_end = match of.job.limit {
            Some(limit) => self.now.saturating_add(limit),
            None => u64::MAX,
        };
        self.limits.insert((of.limit_end, row));
        for node in &of.nodes {
            self.nodes[*node].guests.push(row);
        }
        if of.has_data {
            let running = self.data_running.entry(queue_of(of.job)).or_default();
            running.insert((of.job.submitted, row));
        }
        self.refresh(&self.rows[row].nodes);
    }

    pub(crate) fn end(&mut self, row: Row) {
        self.leave_queue(row);
        let of = &mut self.rows[row];
        if !std::mem::take(&mut of.is_running) {
            return;
        }
        self.limits.remove(&(of.limit_end, row));
        for node in &of.nodes {
            self.nodes[*node].guests.retain(|guest| *guest != row);
        }
        if let Some(running) = self.data_running.get_mut(&queue_of(of.job)) {
            running.remove(&(of.job.submitted, row));
        }
        self.refresh(&self.rows[row].nodes);
    }

    /// Ordinary jobs of other queues that wait for nodes of a partition that one of these nodes is in; each is returned once
    /// while it waits.
    pub(crate) fn waiting_elsewhere(&mut self, row: Row) -> Vec<Row> {
        let of = &self.rows[row];
        let own = queue_of(of.job);
        let mut found = Vec::new();
        for (queue, waiting) in self.unaffected.iter_mut().filter(|(q, _)| **q != own) {
            let members = self.members.get(queue.0).map_or(&[][..], |m| m);
            let is_member = |node: &usize| members.binary_search(node).is_ok();
            if !waiting.is_empty() && of.nodes.iter().any(is_member) {
                found.extend(std::mem::take(waiting));
            }
        }
        found
    }

    pub(crate) fn view(&self, queue: ComparedQueue<'a>) -> QueueView<'_, 'a> {
        QueueView {
            account: self,
            queue,
        }
    }
}

/// Since when nothing but nodes was missing to a job, as far as that is known.
pub(crate) fn ready(job: &AccountedJob) -> u64 {
    job.eligible.max(job.submitted).unwrap_or(0)
}

/// From when on each node of a partition has room for a share, that of the first job of a queue; 0: now.
#[derive(Debug)]
struct FreeTimes {
    share: NodeResources,
    times: Vec<Option<u64>>,
    /// How many nodes have each time.
    nodes: BTreeMap<u64, u32>,
}

impl FreeTimes {
    fn new(share: NodeResources, times: Vec<Option<u64>>) -> Self {
        let mut nodes = BTreeMap::new();
        for time in times.iter().flatten() {
            *nodes.entry(*time).or_default() += 1;
        }
        Self {
            share,
            times,
            nodes,
        }
    }

    /// The time of a node, by its place among the partition's.
    fn set(&mut self, at: usize, time: Option<u64>) {
        let Some(known) = self.times.get_mut(at) else {
            return;
        };
        let before = std::mem::replace(known, time);
        if before == time {
            return;
        }
        if let Some(before) = before
            && let Some(nodes) = self.nodes.get_mut(&before)
        {
            *nodes -= 1;
            if *nodes == 0 {
                self.nodes.remove(&before);
            }
        }
        if let Some(time) = time {
            *self.nodes.entry(time).or_default() += 1;
        }
    }

    /// When so many nodes are free together.
    fn all_free_at(&self, wanted: u32) -> Option<u64> {
        let mut left = wanted.max(1);
        self.nodes.iter().find_map(|(time, nodes)| {
            left = left.saturating_sub(*nodes);
            (left == 0).then_some(*time)
        })
    }
}

/// The account as the jobs of one queue see it.
#[derive(Debug)]
pub(crate) struct QueueView<'v, 'a> {
    account: &'v AuditAccount<'a>,
    queue: ComparedQueue<'a>,
}

impl QueueView<'_, '_> {
    /// A job with data lines that was submitted no later.
    fn came_before(&self, row: Row, first: Row) -> bool {
        let submitted = |row: Row| self.account.rows[row].job.submitted;
        submitted(row) <= submitted(first)
    }

    fn has_earlier_data_job(&self, first: Row) -> bool {
        let running = self.account.data_running.get(&self.queue);
        let earliest = running.and_then(|rows| rows.first());
        earliest.is_some_and(|(_, row)| self.came_before(*row, first))
    }
}

impl PromiseAccount for QueueView<'_, '_> {
    type Job = Row;

    fn now(&self) -> u64 {
        self.account.now
    }

    fn first_waiting(&self) -> Option<Row> {
        let (_, row) = self.account.waiting.get(&self.queue)?.first()?;
        Some(*row)
    }

    fn is_waiting(&self, job: Row) -> bool {
        let row = &self.account.rows[job];
        row.is_waiting && !row.is_set_aside
    }

    fn is_calm(&self, job: Row) -> bool {
        !self.account.is_beyond_its_limit() && !self.has_earlier_data_job(job)
    }

    fn is_begin_known(&self, job: Row) -> bool {
        !self.has_earlier_data_job(job)
    }

    fn is_judged(&self, job: Row) -> bool {
        !self.has_earlier_data_job(job)
    }

    fn kind_of(&self, taker: Row, first: Row) -> TakerKind {
        let (row, waits) = (&self.account.rows[taker], &self.account.rows[first]);
        if queue_of(row.job) != self.queue {
            return TakerKind::Before;
        }
        match row.has_data {
            true if self.came_before(taker, first) => TakerKind::Before,
            true => TakerKind::LaterWorkflow,
            false if (ready(row.job), taker) < (ready(waits.job), first) => TakerKind::Before,
            false => TakerKind::LaterOrdinary,
        }
    }

    fn earliest(&self, job: Row) -> Option<u64> {
        let account = self.account;
        let members = account.members.get(self.queue.0)?;
        let mut known = account.free.borrow_mut();
        let share = account.rows[job].share;
        let times = || members.iter().map(|node| account.free_time(*node, share));
        let of_share = known.get(&self.queue).filter(|free| free.share == share);
        if of_share.is_none() {
            known.insert(self.queue, FreeTimes::new(share, times().collect()));
        }
        let free = known.get(&self.queue)?;
        debug_assert!(
            times().eq(free.times.iter().copied()),
            "a node's free time was not kept up to date"
        );
        let wanted = u32::try_from(account.rows[job].job.node_count()).ok()?;
        let begin = free.all_free_at(wanted)?;
        debug_assert_eq!(
            Some(begin),
            all_free_at(free.times.iter().flatten().copied().collect(), wanted)
        );
        Some(begin.max(account.now))
    }
}
