//! Jobs come in: their needs, their places in the queue, their ranks; jobs that can never run are refused.

use super::queue::{JobQueueKey, QueuedJob};
use super::rates::duration;
use super::state::{FlowState, PlannerJob, PlannerJobStage, PlannerState};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use tarn_types::account::sub;
use tarn_types::policy::{DataMode, Order};
use tarn_types::site::{FlowId, Item, ItemId, Job, JobId, SiteAction};
use tarn_types::units::Nanos;

impl PlannerState {
    pub(crate) fn submitted(&mut self, jobs: &[(JobId, Arc<Job>)], items: &[(ItemId, Item)]) {
        for (id, item) in items {
            if self.item(*id).is_none() {
                self.items.insert(*id, *item);
            }
        }
        if self.arrivals.1 != Some(self.now) {
            self.arrivals = (self.arrivals.0 + 1, Some(self.now));
        }
        for (id, job) in jobs {
            self.enter(*id, job);
        }
        for (id, job) in jobs {
            self.connect(*id, job);
        }
        let flows: BTreeSet<FlowId> = jobs.iter().filter_map(|(_, j)| j.flow).collect();
        for flow in flows {
            self.rank(flow);
        }
        for (id, job) in jobs {
            if let Some(lacks) = self.nodes.lacks(job).or_else(|| self.lacks_input(job)) {
                self.emit(SiteAction::Refuse { job: *id, lacks });
                self.take_out(*id);
            } else if self.job(*id).is_some_and(|j| j.lacks == 0) {
                self.ready(*id);
            }
        }
    }

    fn enter(&mut self, id: JobId, job: &Arc<Job>) {
        if self.jobs.len() <= id.at() {
            self.jobs.resize_with(id.at() + 1, || None);
        }
        let seq = self.arrivals.0 << 32 | u64::from(id.0);
        if let Some(flow) = job.flow {
            let now = self.now;
            let first = || FlowState {
                arrived: now,
                jobs: Vec::new(),
                left: 0,
            };
            let flow = self.flows.entry(flow).or_insert_with(first);
            flow.jobs.push(id);
            flow.left += 1;
        }
        let followers = self.orphans.remove(&id).unwrap_or_default();
        self.jobs[id.at()] = Some(Box::new(PlannerJob {
            job: job.clone(),
            seq,
            submitted: job.submitted.map_or(self.now, |at| at.min(self.now)),
            key: (0, 0),
            stage: PlannerJobStage::Blocked,
            lacks: 0,
            followers,
            successors: 0,
            successor: None,
            attached: false,
            by_host: false,
            nodes: Arc::from([]),
            pinned: Vec::new(),
            moving: 0,
            past_tiers: BTreeSet::new(),
            own: BTreeSet::new(),
            own_left: 0,
            in_turn: VecDeque::new(),
            follows: false,
            attempt: 0,
            began: 0,
            ready: self.now,
            held: 0,
            direct: false,
            io: 0,
            begins: 0,
            retained: 0,
            max_wait: 0,
            promised: 0,
            rank: job.expect,
        }));
        for item in &job.writes {
            if let Some(item) = self.item_mut(*item) {
                item.producer = Some(id);
            }
        }
    }

    /// Records the needs of a job: items that are not made, jobs that have not ended.
    fn connect(&mut self, id: JobId, job: &Job) {
        let before: BTreeSet<JobId> = job.after.iter().chain(&job.continues).copied().collect();
        let mut lacks = self.need_inputs(id, job) + self.note_later(id, job);
        for other in before {
            if let Some(before) = self.job_mut(other)
                && before.stage != PlannerJobStage::Done
            {
                if !before.followers.contains(&id) {
                    before.followers.push(id);
                }
                lacks += 1;
            }
        }
        let root = self.script_of(id);
        if let Some(root) = self.job_mut(root).filter(|_| root != id) {
            root.successors += 1;
        }
        if let Some(state) = self.job_mut(id) {
            (state.lacks, state.attached) = (lacks, root != id);
        }
    }

    /// Makes a job a reader of its inputs; how many of them have yet to be made.
    pub(crate) fn need_inputs(&mut self, id: JobId, job: &Job) -> u32 {
        let inputs: BTreeSet<ItemId> = job.reads.iter().map(|i| i.item).collect();
        let mut lacks = 0;
        for input in inputs {
            let Some(item) = self.item_mut(input) else {
                continue;
            };
            item.readers.insert(id);
            if item.made && item.layouts.is_empty() && !item.outside {
                self.make_again(input);
            }
            lacks += u32::from(self.item(input).is_some_and(|i| !i.made));
        }
        lacks
    }

    /// The message for a job whose input is nowhere and that nobody can make any more.
    fn lacks_input(&self, job: &Job) -> Option<String> {
        let gone = |i: &&tarn_types::site::Input| {
            let item = self.item(i.item);
            item.is_none_or(|i| {
                let alive = i.producer.is_some_and(|p| self.job(p).is_some());
                !alive && !i.outside && i.layouts.is_empty()
            })
        };
        let input = job.reads.iter().find(gone)?;
        Some(format!(
            "its input {} is nowhere any more: keep data that a later submission reads in the external store",
            input.item
        ))
    }

    /// Upward ranks of a workflow's jobs: how long it is from the begin of a job to the end of the workflow, with the
    /// bytes on the edges (Topcuoglu, Hariri, Wu 2002, equation 4).
    pub(crate) fn rank(&mut self, flow: FlowId) {
        let Some(jobs) = self.flows.get(&flow).map(|f| f.jobs.clone()) else {
            return;
        };
        // A job comes after those that it waits for, so ranks are known from the last to the first; where a file lists
        // them otherwise, the second pass mends most of it, which is enough for a heuristic.
        for _ in 0..2 {
            for id in jobs.iter().rev() {
                let Some(rank) = self.rank_of(*id) else {
                    continue;
                };
                if let Some(state) = self.job_mut(*id) {
                    state.rank = rank;
                }
            }
        }
        for id in jobs {
            let Some(state) = self.job(id) else {
                continue;
            };
            let key = self.key(state);
            if key != state.key {
                self.requeue_as(id, key);
            }
        }
    }

    fn rank_of(&self, id: JobId) -> Option<Nanos> {
        let state = self.job(id)?;
        let mut below = 0;
        for item in &state.job.writes {
            let Some(item) = self.item(*item) else {
                continue;
            };
            let edge = self.edge(item.item.bytes);
            for reader in &item.readers {
                let rank = self.job(*reader).map_or(0, |r| r.rank);
                below = below.max(rank.saturating_add(edge));
            }
        }
        for follower in &state.followers {
            below = below.max(self.job(*follower).map_or(0, |f| f.rank));
        }
        Some(state.job.expect.saturating_add(below))
    }

    /// Time on an edge whose ends are on different nodes.
    fn edge(&self, bytes: u64) -> Nanos {
        match self.policy.data_mode {
            DataMode::Keep => {
                let rate = self.nodes.islands.first().map_or(0, |i| i.kind.link.read);
                duration(bytes, rate)
            }
            _ => {
                let out = duration(bytes, self.store.client.write)
                    .max(duration(bytes, self.store.rates.write));
                let back = duration(bytes, self.store.client.read)
                    .max(duration(bytes, self.store.rates.read));
                out.saturating_add(back)
            }
        }
    }

    /// A job's place in the queue.
    pub(crate) fn key(&self, state: &PlannerJob) -> JobQueueKey {
        let flow = state.job.flow.and_then(|f| self.flows.get(&f));
        match self.policy.order {
            Order::Fcfs | Order::Greedy | Order::Easy | Order::Conservative | Order::SameNodes => {
                (state.job.place.unwrap_or(state.seq), 0)
            }
            Order::SjfEasy => (state.job.limit, state.seq),
            Order::Heft => (u64::MAX - state.rank, state.seq),
            // A workflow keeps the place of its first job: it was reserved as a whole.
            Order::Data | Order::Energy => match flow.filter(|_| state.job.place.is_none()) {
                Some(flow) => {
                    let place = flow.arrival_of(state).saturating_sub(self.policy.lead);
                    (place << 1, u64::MAX - state.rank)
                }
                None => (state.place() << 1 | 1, state.seq),
            },
        }
    }

    /// A job that waited for nothing but its turn gets another place.
    fn requeue_as(&mut self, id: JobId, key: JobQueueKey) {
        let queued = self
            .job(id)
            .is_some_and(|j| j.stage == PlannerJobStage::Queued);
        if queued {
            self.dequeue(id);
        }
        if let Some(state) = self.job_mut(id) {
            state.key = key;
        }
        if queued {
            self.enqueue(id);
        }
    }

    /// A job as the queue knows it.
    pub(crate) fn waiting(&self, id: JobId) -> Option<QueuedJob> {
        let state = self.job(id)?;
        Some(QueuedJob {
            key: state.key,
            job: id,
            nodes: state.job.nodes,
            cores: state.job.cores,
            limit: state.job.limit,
        })
    }

    pub(crate) fn enqueue(&mut self, id: JobId) {
        if let Some(state) = self.job_mut(id) {
            state.stage = PlannerJobStage::Queued;
        }
        let Some(w) = self.waiting(id) else {
            return;
        };
        self.queue.insert(w);
        self.note_ordinary(id, true);
    }

    pub(crate) fn dequeue(&mut self, id: JobId) {
        if let Some(key) = self.job(id).map(|j| j.key) {
            self.queue.remove(key, id);
            self.note_ordinary(id, false);
        }
    }

    /// Nothing is missing but nodes.
    pub(crate) fn ready(&mut self, id: JobId) {
        let now = self.now;
        let Some(state) = self.job(id) else {
            return;
        };
        if state.stage != PlannerJobStage::Blocked {
            return;
        }
        let key = self.key(state);
        let attached = state.attached;
        if let Some(state) = self.job_mut(id) {
            (state.ready, state.key) = (now, key);
        }
        match attached {
            true => self.inherit(id),
            false => self.enqueue(id),
        }
    }

    /// A job is out for good, and so is everything that waits for it.
    pub(crate) fn take_out(&mut self, first: JobId) {
        let mut out = vec![first];
        while let Some(id) = out.pop() {
            let Some(state) = self.job(id).filter(|s| s.stage != PlannerJobStage::Done) else {
                continue;
            };
            // It has what it needs, or the host began it without.
            if id != first && self.has_nodes(id) {
                continue;
            }
            let job = state.job.clone();
            out.extend(state.followers.iter().copied());
            for item in &job.writes {
                if let Some(item) = self.item_mut(*item) {
                    out.extend(item.readers.iter().copied());
                    // It never runs: where the item is lost, nobody makes it again.
                    item.producer = item.producer.filter(|producer| *producer != id);
                }
            }
            self.withdraw(id);
            self.leave_withdrawn(id, &job);
            for input in &job.reads {
                self.read_by(input.item, id);
            }
            self.done(id);
        }
    }

    /// A job has ended, one way or the other.
    pub(crate) fn done(&mut self, id: JobId) {
        let Some(state) = self
            .job_mut(id)
            .filter(|s| s.stage != PlannerJobStage::Done)
        else {
            return;
        };
        state.stage = PlannerJobStage::Done;
        if let Some(flow) = state.job.flow
            && let Some(f) = self.flows.get_mut(&flow)
        {
            sub(&mut f.left, 1, "jobs of a workflow");
        }
        self.settle(id);
    }

    /// A job has ended. Its records are forgotten once nothing can make it run again: of a workflow as a whole, because
    /// a lost node can take back to its beginning.
    pub(crate) fn settle(&mut self, id: JobId) {
        let Some(state) = self.job(id) else {
            return;
        };
        let all = match state.job.flow.and_then(|f| self.flows.get(&f)) {
            Some(flow) if flow.left > 0 => return,
            Some(flow) => flow.jobs.clone(),
            None => vec![id],
        };
        if all.iter().all(|j| self.is_settled(*j)) {
            for job in all {
                self.forget(job);
            }
        }
    }

    fn is_settled(&self, id: JobId) -> bool {
        let Some(state) = self.job(id) else {
            return true;
        };
        let safe = |item: &ItemId| {
            let item = self.item(*item);
            item.is_none_or(|i| i.outside || !i.made || (!i.item.keep && i.readers.is_empty()))
        };
        state.stage == PlannerJobStage::Done && state.job.writes.iter().all(safe)
    }

    fn forget(&mut self, id: JobId) {
        let Some(state) = self.jobs.get_mut(id.at()).and_then(Option::take) else {
            return;
        };
        if let Some(flow) = state.job.flow {
            self.flows.remove(&flow);
        }
        for item in &state.job.writes {
            // A job that was submitted since may wait for it, or write it itself.
            let dropped = self
                .item(*item)
                .is_some_and(|i| !i.outside && i.layouts.is_empty() && i.readers.is_empty());
            if dropped {
                self.items.forget(*item);
            } else if let Some(item) = self.item_mut(*item) {
                item.producer = item.producer.filter(|producer| *producer != id);
            }
        }
    }
}
