//! The view of a site: [`SchedulerView`] over the planner's [`State`].

use super::data::InputRoute;
use super::life::HOLDS;
use super::nodes::{MODES, NodeOccupant, NodePowerState};
use super::queue::{Fit, QueuedJob};
use super::state::{PlannerJobStage, PlannerState};
use super::view::{Candidate, SchedulerView, Shadow};
use std::collections::BTreeMap;
use tarn_types::id::NodeId;
use tarn_types::policy::{DataMode, Order};
use tarn_types::site::{AllocationReason, Job, JobId, Mode};
use tarn_types::units::{Nanos, SECOND, Time};

/// Nodes up to which all of them are looked at for a job that takes a part of one; beyond, those that hold its data and
/// those with free cores.
const ALL_NODES: usize = 64;
/// Nodes with a job's data that are looked at.
const HOLDERS: usize = 16;
/// Free nodes that are looked at beside.
const SOME_FREE: usize = 4;
/// Jobs that bring their data to a busy node ahead, beside those that its cores could run at once: enough that a node never
/// waits for data, few enough that better choices stay open.
const AHEAD: usize = 2;

impl PlannerState {
    fn classes_of(&self, job: &Job) -> Vec<(usize, Mode)> {
        self.nodes.classes_for(job)
    }

    fn class_index(island: usize, mode: Mode) -> usize {
        island * MODES.len() + usize::from(mode == Mode::TwoLevel)
    }

    /// The class of an index.
    pub(crate) fn class_at(index: usize) -> (usize, Mode) {
        (index / MODES.len(), MODES[index % MODES.len()])
    }

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
            let same = |l: &&super::state::ItemLayout| l.nodes.len() == job.nodes as usize;
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
        let mut all: Vec<_> = found.into_iter().collect();
        all.sort_unstable_by_key(|(_, (bytes, order))| (std::cmp::Reverse(*bytes), *order));
        all.into_iter().map(|(n, _)| n).collect()
    }

    /// Best first: where most of a job's data is; with `energy` where a core draws least; where it is coolest.
    fn sort_classes(&self, classes: &mut [(usize, Mode)], prefer: &[NodeId]) {
        let there = |c: &(usize, Mode)| {
            let index = Self::class_index(c.0, c.1);
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

    /// The nodes of the job that a step's input comes from.
    fn predecessor_nodes(&self, job: &Job) -> Option<Vec<NodeId>> {
        let items = job.reads.iter().filter_map(|i| self.item(i.item));
        let made = items.filter_map(|i| Some((i.item.bytes, i.producer?)));
        let (_, producer) = made.max_by_key(|(bytes, p)| (*bytes, *p))?;
        let nodes = &self.job(producer)?.nodes;
        (!nodes.is_empty()).then(|| nodes.to_vec())
    }

    fn preferred(&self, job: &Job) -> Vec<NodeId> {
        match (self.policy.order, self.policy.data_mode) {
            (_, DataMode::StageThrough) => Vec::new(),
            _ => self.holders(job),
        }
    }

    /// When a node is expected to have the cores that a job asks for, what is planned there included.
    fn free_in(&self, id: NodeId, job: &Job) -> Nanos {
        let node = self.nodes.node(id);
        let cores = self.nodes.kind(id).cores;
        let want = if job.cores == 0 { cores } else { job.cores };
        let mut known = node.known.borrow_mut();
        if known.of != (self.now, node.changes) {
            let mut ends = std::mem::take(&mut known.ends);
            self.ends_on(id, &mut ends);
            known.taken = ends.iter().map(|e| e.1).sum();
            (known.of, known.ends) = ((self.now, node.changes), ends);
        }
        let mut free = i64::from(cores) - i64::from(known.taken);
        let mut at = self.now;
        for (end, cores) in &known.ends {
            if free >= i64::from(want) {
                break;
            }
            free += i64::from(*cores);
            at = *end;
        }
        at.saturating_sub(self.now)
    }

    /// When those that run on a node, or are planned there, are expected to give their cores back, in order.
    fn ends_on(&self, id: NodeId, ends: &mut Vec<(Time, u32)>) {
        let node = self.nodes.node(id);
        let all = self.nodes.kind(id).cores;
        ends.clear();
        for NodeOccupant { job: guest, .. } in &node.guests {
            if let Some(state) = self.job(*guest) {
                let cores = match state.job.cores {
                    0 => all,
                    cores => cores,
                };
                ends.push((self.expected_end(*guest), cores));
            }
        }
        for planned in &node.planned {
            if let Some(state) = self.job(*planned) {
                let takes = state.io.saturating_add(state.job.expect);
                let begins = state.begins.max(self.now);
                ends.push((begins.saturating_add(takes), state.job.cores.max(1)));
            }
        }
        ends.sort_unstable();
    }

    /// Somebody else has taken nodes on which jobs were planned: those that would now wait longer than it takes to bring
    /// their data elsewhere choose anew.
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
                    super::data::duration(bytes, link)
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

    /// When a job with nodes is expected to end by what is known of its program; one that is overdue needs a tenth more.
    pub(crate) fn expected_end(&self, id: JobId) -> Time {
        let Some(state) = self.job(id) else {
            return self.now;
        };
        let takes = state.io.saturating_add(state.job.expect);
        let end = state.began.saturating_add(takes);
        match end > self.now {
            true => end,
            false => self.now.saturating_add(takes / 10),
        }
    }

    /// When a job's data would be on a node, bytes that have to be brought for that, and how long its program reads and
    /// writes there: what does not go through the tier is no data to wait for, on any node alike.
    fn data_in(&self, node: NodeId, id: JobId, job: &Job, written: u64) -> (Nanos, u64, Nanos) {
        let (mut wait, mut missing) = (0, 0u64);
        let (mut past, mut inputs, mut absent) = (0u64, 0u64, 0u64);
        // The wait for what comes anyway.
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
        let room = self.time_until_space(node, missing.saturating_add(written), id);
        if room > 0 && self.may_do_without(id) {
            let without = self.without_tiers(absent, written, 1, job);
            if room > without {
                let past = self.outside_time(past, 0, 1);
                return (coming, 0, past.saturating_add(without));
            }
        }
        let io = self.outside_time(past, 0, 1);
        let io = io.saturating_add(self.on_tiers(&[node], inputs, written));
        (wait.max(room), missing, io)
    }

    fn candidate(
        &self,
        (node, free_in): (NodeId, Nanos),
        (id, job): (JobId, &Job),
        written: u64,
    ) -> Candidate {
        let state = self.nodes.node(node);
        let (data_in, missing, io) = self.data_in(node, id, job, written);
        let slots = (state.free.cores / job.cores.max(1)) as usize;
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

    fn job_of(&self, w: &QueuedJob) -> Option<std::sync::Arc<Job>> {
        self.job(w.job).map(|s| s.job.clone())
    }

    /// When `want` nodes of a class are idle, if `taken` more are taken until `until` before.
    fn class_earliest(
        &self,
        island: usize,
        mode: Mode,
        want: u32,
        taken: u32,
        until: Time,
    ) -> Option<Shadow> {
        let class = self.nodes.class(island, mode);
        let idle = class.idle.len() as u64;
        let (want, taken) = (u64::from(want), u64::from(taken));
        let ended = |lack: u64| match lack {
            0 => Some(self.now),
            _ => class.ends.earliest(lack).map(|(at, _)| at),
        };
        let without = ended((want + taken).saturating_sub(idle));
        // What was taken comes back.
        let with = match taken {
            0 => None,
            _ => ended(want.saturating_sub(idle)).map(|at| at.max(until)),
        };
        let at = [without, with].into_iter().flatten().min()?;
        let at = at.max(self.now + 1);
        let there = idle + class.ends.by(at) + if at >= until { taken } else { 0 };
        Some(Shadow {
            at,
            class: Self::class_index(island, mode),
            extra: u32::try_from(there.saturating_sub(want + taken)).unwrap_or(u32::MAX),
            keeps: Vec::new(),
        })
    }

    /// When a job could begin if `nodes` nodes of a class were taken until `until` before.
    pub(crate) fn earliest_behind(
        &self,
        w: &QueuedJob,
        class: usize,
        nodes: u32,
        until: Time,
    ) -> Option<Shadow> {
        let job = self.job_of(w)?;
        if let Some(own) = self.own_nodes(&job) {
            return self.nodes_earliest(&job, &own);
        }
        self.classes_earliest(&job, class, nodes, until)
    }

    /// The same on any nodes that suit it.
    pub(crate) fn classes_earliest(
        &self,
        job: &Job,
        class: usize,
        nodes: u32,
        until: Time,
    ) -> Option<Shadow> {
        let shadows = self
            .classes_of(job)
            .into_iter()
            .filter_map(|(island, mode)| {
                if job.cores > 0 && job.nodes == 1 {
                    return self.node_earliest(job, island, mode, None);
                }
                let taken = match Self::class_index(island, mode) == class {
                    true => nodes,
                    false => 0,
                };
                self.class_earliest(island, mode, job.nodes, taken, until)
            });
        shadows.min_by_key(|s| (s.at, s.class))
    }

    /// When certain nodes are free for a job.
    fn nodes_earliest(&self, job: &Job, nodes: &[NodeId]) -> Option<Shadow> {
        let first = nodes.first()?;
        let free = |n: &NodeId| match self.nodes.free_for(job, *n) {
            true => self.now,
            false => super::nodes::until(self.nodes.node(*n)),
        };
        let at = nodes.iter().map(free).max()?;
        let node = self.nodes.node(*first);
        let mut keeps = nodes.to_vec();
        keeps.sort_unstable();
        Some(Shadow {
            at: at.max(self.now + 1),
            class: Self::class_index(usize::from(node.island), node.mode),
            extra: u32::MAX,
            keeps,
        })
    }

    fn own_nodes(&self, job: &Job) -> Option<Vec<NodeId>> {
        if self.policy.order != Order::SameNodes {
            return None;
        }
        let mut nodes = self.predecessor_nodes(job)?;
        nodes.truncate(job.nodes as usize);
        let up = |n: &NodeId| {
            let node = self.nodes.node(*n);
            node.power == NodePowerState::Up
                && self.nodes.suits(job, usize::from(node.island), node.mode)
        };
        (nodes.len() == job.nodes as usize && nodes.iter().all(up)).then_some(nodes)
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
            classes.retain(|(i, m)| self.nodes.class(*i, *m).idle.len() >= job.nodes as usize);
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
            |(i, m): &(usize, Mode)| self.nodes.class(*i, *m).idle.len() >= job.nodes as usize;
        let (island, mode) = self.classes_of(&job).into_iter().find(enough)?;
        Some(Self::class_index(island, mode))
    }

    fn class_of(&self, node: NodeId) -> usize {
        let node = self.nodes.node(node);
        Self::class_index(usize::from(node.island), node.mode)
    }

    fn earliest(&self, w: &QueuedJob) -> Option<Shadow> {
        self.earliest_behind(w, usize::MAX, 0, 0)
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
        if self.nodes.all.len() <= ALL_NODES {
            nodes.extend((0..self.nodes.all.len() as u32).map(NodeId));
        } else {
            nodes.extend(self.holders(&job));
            for (island, mode) in self.classes_of(&job) {
                nodes.extend(self.nodes.some_free(&job, island, mode, SOME_FREE));
            }
            nodes.sort_unstable();
            nodes.dedup();
        }
        nodes.retain(|n| {
            let node = self.nodes.node(*n);
            node.power == NodePowerState::Up
                && self.nodes.suits(&job, usize::from(node.island), node.mode)
        });
        let free_in = |n: NodeId| (self.free_in(n, &job), n);
        let mut nodes: Vec<(Nanos, NodeId)> = nodes.into_iter().map(free_in).collect();
        nodes.sort_unstable();
        let written = self.written(&job);
        let mut best: Option<Candidate> = None;
        for (free_in, node) in nodes {
            // Nor does it compute sooner on those that come free still later.
            if best.as_ref().is_some_and(|b| b.place().0 < free_in) {
                break;
            }
            let candidate = self.candidate((node, free_in), (w.job, &job), written);
            let better = |b: &Candidate| candidate.place() < b.place();
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
        let at = at.max(self.now + 1);
        self.deadline = Some(self.deadline.map_or(at, |d| d.min(at)));
    }

    fn worth_waiting(&self, w: &QueuedJob, nodes: &[NodeId]) -> Option<Shadow> {
        let job = self.job_of(w)?;
        let bring = |nodes: &[NodeId]| {
            let times = job
                .reads
                .iter()
                .map(|i| self.way(i.item, nodes, i.spread).1);
            times.max().unwrap_or(0)
        };
        let here = bring(nodes);
        if here == 0 {
            return None;
        }
        let mut own = self.holders(&job);
        own.truncate(job.nodes as usize);
        if own.len() < job.nodes as usize || own == nodes {
            return None;
        }
        let up = |n: &NodeId| {
            let node = self.nodes.node(*n);
            node.power == NodePowerState::Up
                && self.nodes.suits(&job, usize::from(node.island), node.mode)
        };
        if !own.iter().all(up) {
            return None;
        }
        let until = |n: &NodeId| match self.nodes.free_for(&job, *n) {
            true => self.now,
            false => self
                .nodes
                .node(*n)
                .guests
                .iter()
                .map(|g| self.expected_end(g.job))
                .max()
                .unwrap_or(self.now),
        };
        let free = own.iter().map(until).max()?;
        if free <= self.now {
            // They are of another kind, and not all of them can be had.
            return None;
        }
        let there = free.saturating_sub(self.now).saturating_add(bring(&own));
        if there >= here {
            return None;
        }
        self.nodes_earliest(&job, &own)
    }

    fn space_shadow(&self, w: &QueuedJob) -> Option<Shadow> {
        let claim = self.claim.as_ref().filter(|c| c.job == w.job)?;
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
        let free = |s: &super::state::PlannerJob| self.nodes.free_for(&s.job, node);
        PlannerState::is_due(self, w.job) && self.job(w.job).is_some_and(free)
    }
}

/// The node of an entry of a timeline that stands for a single node.
pub(crate) fn node_of(who: u64) -> Option<NodeId> {
    (who >> 32 == 1).then_some(NodeId(who as u32))
}

impl PlannerState {
    fn own_nodes_of(&self, w: &QueuedJob) -> Option<Vec<NodeId>> {
        let job = self.job_of(w)?;
        self.own_nodes(&job)
    }

    /// When the first node of a class has what a job asks for; `taken`: nodes that another takes until a time before.
    pub(crate) fn node_earliest(
        &self,
        job: &Job,
        island: usize,
        mode: Mode,
        taken: Option<(&[NodeId], Time, &Job)>,
    ) -> Option<Shadow> {
        let class = self.nodes.class(island, mode);
        let takes = |n: &NodeId| taken.is_some_and(|(nodes, ..)| nodes.contains(n));
        let ends = || class.ends.iter().take(2 * ALL_NODES);
        let shared = ends().filter_map(|e| node_of(e.1)).take(ALL_NODES);
        let idle = class.idle.iter().find(|n| !takes(n));
        let later = taken.and_then(|(nodes, ..)| nodes.first().copied());
        let later = later.filter(|n| self.class_of(*n) == Self::class_index(island, mode));
        let by_name = shared
            .chain(idle)
            .chain(later)
            .map(|n| {
                let guest = taken.filter(|_| takes(&n));
                let at = self.limit_free_at(n, job, guest.map(|(_, until, job)| (until, job)));
                (at, n)
            })
            .min();
        let mut whole = ends().filter(|e| node_of(e.1).is_none()).map(|e| e.0);
        let whole = whole.next();
        let index = Self::class_index(island, mode);
        match (by_name, whole) {
            (Some((at, node)), whole) if whole.is_none_or(|w| at <= w) => Some(Shadow {
                at: at.max(self.now + 1),
                class: index,
                extra: u32::MAX,
                keeps: vec![node],
            }),
            (_, Some(at)) => Some(Shadow {
                at: at.max(self.now + 1),
                class: index,
                extra: 0,
                keeps: Vec::new(),
            }),
            _ => None,
        }
    }

    /// When a node has what a job asks for by the limits that jobs have, with one more guest if there is one.
    fn limit_free_at(&self, id: NodeId, job: &Job, guest: Option<(Time, &Job)>) -> Time {
        let node = self.nodes.node(id);
        let wide = |cores: u32, memory: u64, gpus: u32| {
            [u64::from(cores), memory, u64::from(gpus)].map(i128::from)
        };
        let takes = |job: &Job| {
            let share = self.nodes.share(job, id);
            wide(share.cores, share.memory, share.gpus)
        };
        let want = takes(job);
        let mut free = wide(node.free.cores, node.free.memory, node.free.gpus);
        let guests = node.guests.iter();
        let mut ends: Vec<(Time, [i128; 3])> = guests
            .filter_map(|g| Some((g.until, takes(&self.job(g.job)?.job))))
            .collect();
        if let Some((until, job)) = guest {
            let takes = takes(job);
            (0..3).for_each(|i| free[i] -= takes[i]);
            ends.push((until, takes));
        }
        ends.sort_unstable();
        let mut at = self.now;
        for (end, gives) in ends {
            if (0..3).all(|i| free[i] >= want[i]) {
                break;
            }
            (0..3).for_each(|i| free[i] += gives[i]);
            at = end;
        }
        at
    }
}
