//! The view of a site: [`SchedulerView`] over the planner's [`PlannerState`].

use super::forecast::{ALL_NODES, class_index};
use super::items::ItemLayout;
use super::life::HOLDS;
use super::queue::{Fit, QueuedJob};
use super::rates::duration;
use super::routes::InputRoute;
use super::state::{PlannerJob, PlannerJobStage, PlannerState};
use super::view::{Candidate, HeldNodes, NodeHold, SchedulerView, Shadow};
use std::collections::BTreeMap;
use tarn_types::id::NodeId;
use tarn_types::placement::{NodeRank, best_nodes};
use tarn_types::policy::{DataMode, Order};
use tarn_types::site::{AllocationReason, Job, JobId, Mode};
use tarn_types::units::{Nanos, SECOND, Time};

/// Nodes with a job's data that are looked at.
const HOLDERS: usize = 16;
/// Free nodes that are looked at beside.
const SOME_FREE: usize = 4;
/// Jobs that bring their data to a busy node ahead, beside those that its cores could run at once: enough that a node never
/// waits for data, few enough that better choices stay open.
const AHEAD: usize = 2;

impl PlannerState {
    /// Nodes that hold a job's data, those with most of it first; of as many bytes in the order of its shares.
    fn holders(&self, job: &Job) -> Vec<NodeId> {
        // On several nodes, the layout of the largest input that was made on as many decides alone.
        if job.nodes > 1 {
            let inputs = job.reads.iter().filter_map(|i| self.item(i.item));
            let same = inputs.filter_map(|i| {
                let mut layouts = i.layouts.iter();
                let like = layouts.find(|l| l.nodes.len() == job.nodes as usize)?;
                Some((i.item.bytes, like))
            });
            if let Some((_, like)) = same.max_by_key(|(bytes, _)| *bytes) {
                return like.nodes.to_vec();
            }
        }
        let most = HOLDERS.max(job.nodes as usize);
        let mut found: BTreeMap<NodeId, (u64, usize)> = BTreeMap::new();
        for input in &job.reads {
            let Some(item) = self.item(input.item) else {
                continue;
            };
            let bytes = item.item.bytes;
            // A layout of as many nodes as the job has comes first, in its order.
            let same = |l: &&ItemLayout| l.nodes.len() == job.nodes as usize;
            let layouts = item.layouts.iter().filter(same);
            let others = item.layouts.iter().filter(|l| !same(l));
            for l in layouts.chain(others).take(HOLDERS) {
                for n in l.nodes.iter().take(job.nodes.max(1) as usize) {
                    let order = found.len();
                    match found.get_mut(n) {
                        Some(f) => f.0 = f.0.saturating_add(bytes),
                        None if order < most => {
                            found.insert(*n, (bytes, order));
                        }
                        None => {}
                    }
                }
            }
        }
        let rank = |(node, (bytes, order))| NodeRank {
            load: order,
            ..NodeRank::holding(node, bytes)
        };
        best_nodes(found.into_iter().map(rank), most)
    }

    /// Best first: where most of a job's data is; with `energy` where a core draws least; where it is coolest.
    pub(crate) fn sort_classes(&self, classes: &mut [(usize, Mode)], prefer: &[NodeId]) {
        let there = |c: &(usize, Mode)| {
            let index = class_index(c.0, c.1);
            prefer
                .iter()
                .filter(|n| self.class_of(**n) == index)
                .count()
        };
        let draws = |c: &(usize, Mode)| {
            let kind = &self.nodes.islands[c.0].kind;
            match self.policy.order {
                Order::Energy => kind.power.busy / f64::from(kind.cores.max(1)),
                _ => 0.0,
            }
        };
        let warm = |c: &(usize, Mode)| self.nodes.islands[c.0].kind.temperature;
        classes.sort_by(|a, b| {
            there(b)
                .cmp(&there(a))
                .then(draws(a).total_cmp(&draws(b)))
                .then(warm(a).total_cmp(&warm(b)))
        });
    }

    pub(crate) fn preferred(&self, job: &Job) -> Vec<NodeId> {
        match (self.policy.order, self.policy.data_mode) {
            (_, DataMode::StageThrough) => Vec::new(),
            _ => self.holders(job),
        }
    }

    /// Somebody else has taken nodes on which jobs were planned: those that would now wait longer than it takes to bring
    /// their data elsewhere choose again.
    pub(crate) fn overtaken(&mut self, nodes: &[NodeId], by: JobId) {
        for n in nodes {
            let planned: Vec<JobId> = self.nodes.node(*n).planned.iter().copied().collect();
            for id in planned.into_iter().filter(|p| *p != by) {
                let Some(job) = self.job(id).map(|s| s.job.clone()) else {
                    continue;
                };
                let bring = |i: &tarn_types::site::Input| {
                    let bytes = self.item(i.item).map_or(0, |i| i.item.bytes);
                    let link = self.nodes.kind(*n).link.read;
                    duration(bytes, link)
                };
                let bring: Nanos = job.reads.iter().map(bring).sum();
                let max_wait = bring.saturating_add(job.expect / HOLDS).max(SECOND);
                if self.free_in(*n, &job).saturating_sub(job.expect) > max_wait {
                    self.unplan(id);
                    self.enqueue(id);
                }
            }
        }
    }

    /// When a job's data would be on a node, bytes that have to be brought for that, and how long its program reads and
    /// writes there: data that bypasses the tier is no data to wait for, on any node alike.
    fn data_in(&self, node: NodeId, id: JobId, job: &Job, written: u64) -> (Nanos, u64, Nanos) {
        let (mut wait, mut missing) = (0, 0u64);
        let (mut past, mut inputs, mut absent) = (0u64, 0u64, 0u64);
        // The wait for inputs that come anyway.
        let mut coming = 0;
        for input in &job.reads {
            let bytes = self.item(input.item).map_or(0, |i| i.item.bytes);
            if self.outside_is_faster(input.item, &[node]) {
                past = past.saturating_add(bytes);
                continue;
            }
            inputs = inputs.saturating_add(bytes);
            let (way, time) = self.way(input.item, &[node], input.spread);
            wait = wait.max(time);
            match way {
                InputRoute::There(..) => {}
                InputRoute::From(..) => {
                    (missing, absent) =
                        (missing.saturating_add(bytes), absent.saturating_add(bytes))
                }
                _ => (missing, coming) = (missing.saturating_add(bytes), coming.max(time)),
            }
        }
        if inputs.saturating_add(written) > self.nodes.capacity(node) {
            let past = past.saturating_add(absent);
            return (coming, 0, self.outside_time(past, written, 1));
        }
        let space = self.time_until_space(node, missing.saturating_add(written), id);
        if space > 0 && self.may_do_without(id) {
            let without = self.without_tiers(absent, written, 1, job);
            if space > without {
                let past = self.outside_time(past, 0, 1);
                return (coming, 0, past.saturating_add(without));
            }
        }
        let io = self.outside_time(past, 0, 1);
        let io = io.saturating_add(self.on_tiers(&[node], inputs, written));
        (wait.max(space), missing, io)
    }

    fn candidate(
        &self,
        (node, free_in): (NodeId, Nanos),
        (id, job): (JobId, &Job),
        written: u64,
    ) -> Candidate {
        let state = self.nodes.node(node);
        let (data_in, missing, io) = self.data_in(node, id, job, written);
        let slots = (state.free().cores / job.cores.max(1)) as usize;
        let waiting = state.planned.len();
        Candidate {
            node,
            free_in,
            data_in,
            missing,
            io,
            load: 0,
            draw: (0, 0),
            open: waiting < slots + AHEAD,
        }
    }
}

/// The nodes with a job's data, of which some are busy.
pub(crate) struct BusyHolders {
    pub(crate) nodes: Vec<NodeId>,
    /// When all of them are expected to be free.
    pub(crate) free: Time,
    /// In how long they are, and have what is missing there.
    pub(crate) ready_in: Nanos,
}

impl PlannerState {
    /// How long it takes until all that a job reads is on these nodes.
    pub(crate) fn bringing_time(&self, job: &Job, nodes: &[NodeId]) -> Nanos {
        let inputs = job.reads.iter();
        let times = inputs.map(|i| self.way(i.item, nodes, i.spread).1);
        times.max().unwrap_or(0)
    }

    /// The nodes on which a waiting job's data is, if there are as many as it asks for, and they are not free now.
    pub(crate) fn busy_holders(&self, w: &QueuedJob) -> Option<BusyHolders> {
        let job = self.job_of(w)?;
        let mut nodes = self.holders(&job);
        nodes.truncate(job.nodes as usize);
        if nodes.len() < job.nodes as usize {
            return None;
        }
        if !nodes.iter().all(|n| self.nodes.could_have(&job, *n)) {
            return None;
        }
        let until = |n: &NodeId| match self.nodes.free_for(&job, *n) {
            true => self.now,
            false => {
                let guests = self.nodes.node(*n).guests.iter();
                let ends = guests.map(|g| self.expected_end(g.job));
                ends.max().unwrap_or(self.now)
            }
        };
        let free = nodes.iter().map(until).max()?;
        // Else they are of another kind, and not all of them can be had.
        (free > self.now).then(|| BusyHolders {
            ready_in: free
                .saturating_sub(self.now)
                .saturating_add(self.bringing_time(&job, &nodes)),
            nodes,
            free,
        })
    }
}

impl SchedulerView for PlannerState {
    fn now(&self) -> Time {
        self.now
    }

    fn next(&self, after: Option<&QueuedJob>, fit: &Fit) -> Option<QueuedJob> {
        self.queue.next(after, fit)
    }

    fn free(&self) -> Fit {
        let (nodes, cores) = self.nodes.most_free();
        Fit::without_time_limit(nodes, cores)
    }

    fn one_class(&self) -> bool {
        self.nodes.one_class()
    }

    fn nodes_for(&self, w: &QueuedJob, not: &[NodeId], until: Time) -> Option<Vec<NodeId>> {
        let job = self.job_of(w)?;
        let late = self.now.saturating_add(w.limit) > until;
        let barred = |n: &NodeId| late && not.binary_search(n).is_ok();
        if let Some(own) = self.own_nodes(&job) {
            let free = own
                .iter()
                .all(|n| self.nodes.free_for(&job, *n) && !barred(n));
            return free.then_some(own);
        }
        let mut classes = self.classes_of(&job);
        if job.cores == 0 {
            classes.retain(|(i, m)| self.nodes.idle_for(&job, *i, *m) >= job.nodes as usize);
        }
        if classes.is_empty() {
            return None;
        }
        let mut prefer = self.preferred(&job);
        prefer.retain(|n| !barred(n));
        if classes.len() > 1 {
            self.sort_classes(&mut classes, &prefer);
        }
        let found = classes
            .into_iter()
            .find_map(|(island, mode)| self.nodes.pick(&job, island, mode, &prefer))?;
        (!found.iter().any(barred)).then_some(found)
    }

    fn class_for(&self, w: &QueuedJob) -> Option<usize> {
        let job = self.job_of(w)?;
        if job.cores > 0 {
            let nodes = self.nodes_for(w, &[], Time::MAX)?;
            return nodes.first().map(|n| self.class_of(*n));
        }
        let enough =
            |(i, m): &(usize, Mode)| self.nodes.idle_for(&job, *i, *m) >= job.nodes as usize;
        let (island, mode) = self.classes_of(&job).into_iter().find(enough)?;
        Some(class_index(island, mode))
    }

    fn class_of(&self, node: NodeId) -> usize {
        PlannerState::class_of(self, node)
    }

    fn earliest(&self, w: &QueuedJob) -> Option<Shadow> {
        PlannerState::earliest(self, w)
    }

    fn beside(
        &self,
        w: &QueuedJob,
        held: &HeldNodes,
    ) -> Option<(Time, Vec<NodeId>, Vec<NodeHold>)> {
        let (at, nodes) = self.earliest_beside(w, held)?;
        let holds = self.hold_of(w, at, &nodes);
        Some((at, nodes, holds))
    }

    fn waited(&self, w: &QueuedJob) -> Nanos {
        let ready = self.job(w.job).map_or(self.now, |s| s.ready);
        self.now.saturating_sub(ready)
    }

    fn start(&mut self, w: &QueuedJob, nodes: &[NodeId], why: AllocationReason) -> bool {
        if self.policy.order == Order::SameNodes && self.own_nodes_of(w).is_some() {
            return self.begin(w.job, nodes, AllocationReason::SameNodes);
        }
        self.begin(w.job, nodes, why)
    }

    fn best(&self, w: &QueuedJob, may: &dyn Fn(&Candidate) -> bool) -> Option<Candidate> {
        let job = self.job_of(w)?;
        let mut nodes: Vec<NodeId> = Vec::new();
        if self.nodes.all.count() <= ALL_NODES {
            nodes.extend(self.nodes.all.ids());
        } else {
            nodes.extend(self.holders(&job));
            for (island, mode) in self.classes_of(&job) {
                nodes.extend(self.nodes.some_free(&job, island, mode, SOME_FREE));
            }
            nodes.sort_unstable();
            nodes.dedup();
        }
        nodes.retain(|n| self.nodes.could_have(&job, *n));
        let free_in = |n: NodeId| (self.free_in(n, &job), n);
        let mut nodes: Vec<(Nanos, NodeId)> = nodes.into_iter().map(free_in).collect();
        nodes.sort_unstable();
        let written = self.written(&job);
        let mut best: Option<Candidate> = None;
        for (free_in, node) in nodes {
            // Nor does it compute sooner on those that come free still later.
            if best.as_ref().is_some_and(|b| b.rank().computes < free_in) {
                break;
            }
            let candidate = self.candidate((node, free_in), (w.job, &job), written);
            let better = |b: &Candidate| candidate.rank() < b.rank();
            if may(&candidate) && best.as_ref().is_none_or(better) {
                best = Some(candidate);
            }
        }
        best
    }

    fn plan(&mut self, w: &QueuedJob, on: &Candidate) -> bool {
        let why = AllocationReason::EarliestEnd {
            data_in: on.data_in,
            free_in: on.free_in,
        };
        let expect = self.job(w.job).map_or(0, |s| s.job.expect);
        let free = self
            .job(w.job)
            .is_some_and(|s| self.nodes.free_for(&s.job, on.node));
        let due = PlannerState::is_due(self, w.job);
        if free && (due || on.data_in <= (expect / HOLDS).max(SECOND)) {
            return self.begin(w.job, &[on.node], why);
        }
        let begin = self.now.saturating_add(on.begin());
        PlannerState::plan(self, w.job, &[on.node], begin, why)
    }

    /// No two jobs are alike.
    fn native(&self, _: &QueuedJob, _: NodeId) -> Option<QueuedJob> {
        None
    }

    fn remind(&mut self, at: Time) {
        PlannerState::remind(self, at);
    }

    fn worth_waiting(&self, w: &QueuedJob, nodes: &[NodeId]) -> Option<Shadow> {
        let (job, busy) = (self.job_of(w)?, self.busy_holders(w)?);
        let here = self.bringing_time(&job, nodes);
        if here == 0 || busy.nodes == nodes || busy.ready_in >= here {
            return None;
        }
        self.nodes_earliest(&job, &busy.nodes)
    }

    fn space_shadow(&self, w: &QueuedJob) -> Option<Shadow> {
        let claim = self.claims.first().filter(|c| c.job == w.job)?;
        Some(Shadow {
            at: self
                .now
                .saturating_add(self.claim_in(claim))
                .max(self.now + 1),
            class: self.class_of(*claim.nodes.first()?),
            extra: u32::MAX,
            keeps: claim.nodes.clone(),
        })
    }

    fn bring_ahead(&mut self, w: &QueuedJob, shadow: &Shadow) {
        if let Some(job) = self.job_of(w) {
            self.bring_for(&job, w.job, shadow);
        }
    }

    fn promised(&mut self) -> Option<QueuedJob> {
        let w = PlannerState::promised(self)?;
        let queued = self.job(w.job)?.stage == PlannerJobStage::Queued;
        queued.then_some(w)
    }

    fn breaks_promise(&mut self, w: &QueuedJob, nodes: &[NodeId], until: Time) -> bool {
        PlannerState::breaks_promise(self, w, nodes, until)
    }

    fn shadow_breaks_promise(&mut self, w: &QueuedJob, shadow: &Shadow) -> bool {
        PlannerState::shadow_breaks_promise(self, w, shadow)
    }

    fn is_due(&self, w: &QueuedJob, node: NodeId) -> bool {
        let free = |s: &PlannerJob| self.nodes.free_for(&s.job, node);
        PlannerState::is_due(self, w.job) && self.job(w.job).is_some_and(free)
    }
}
