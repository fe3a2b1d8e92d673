//! The life of a job: planned, allocated, staged, run, drained, released; or taken back to the queue.

use super::items::{ItemLayout, Pin, each};
use super::nodes::{NodeReleaseTimes, NodeTaking, TIERS};
use super::outbox::{MovePurpose, MoveRequest};
use super::rates::duration;
use super::routes::InputRoute;
use super::state::{PlannerJobStage, PlannerState};
use std::collections::BTreeSet;
use std::sync::Arc;
use tarn_types::account::{add, sub};
use tarn_types::compute::Demand;
use tarn_types::id::NodeId;
use tarn_types::policy::{DataMode, Order};
use tarn_types::retry::RetryRule;
use tarn_types::site::{
    AllocationReason, Input, ItemId, Job, JobId, JobNodes, MoveId, SiteAction, Spread, Urgency,
    Where,
};
use tarn_types::units::{Nanos, SECOND, Time};

/// A job puts up with its data or its node being late by this share of its run time, one in so many: it holds a free node
/// while its data comes, and waits for a planned one.
pub(crate) const HOLDS: u64 = 10;

impl PlannerState {
    /// Bytes that a job writes on each of its nodes.
    pub(crate) fn written(&self, job: &Job) -> u64 {
        let items = job.writes.iter().filter_map(|i| self.item(*i));
        let each = items.map(|i| each(i.item.bytes, job.nodes as usize, Spread::Share));
        each.fold(0, u64::saturating_add)
    }

    /// A job is to run on these nodes as soon as its data is there and they are free: its data begins to move. False if
    /// there is no space for it now.
    pub(crate) fn plan(
        &mut self,
        id: JobId,
        nodes: &[NodeId],
        begin: Time,
        why: AllocationReason,
    ) -> bool {
        let Some(job) = self.job(id).map(|j| j.job.clone()) else {
            return false;
        };
        if !self.make_space(id, &job, nodes) {
            return false;
        }
        self.dequeue(id);
        let nodes: JobNodes = Arc::from(nodes);
        for n in nodes.iter() {
            self.nodes.plan(*n, id);
        }
        let max_wait = begin.saturating_add((job.expect / HOLDS).max(SECOND));
        if let Some(state) = self.job_mut(id) {
            state.stage = PlannerJobStage::Planned;
            state.nodes = nodes.clone();
            (state.begins, state.max_wait) = (begin, max_wait);
        }
        self.plans.insert(max_wait, id);
        self.emit(SiteAction::Plan {
            job: id,
            nodes,
            begin,
            why,
        });
        let free = nodes_free(self, &job, id);
        self.fetch(id, if free { Urgency::Now } else { Urgency::Ahead });
        self.begin_planned(id);
        true
    }

    /// Decides whether a job's data goes through the tiers of its nodes, and frees space there. False while there is
    /// none.
    fn make_space(&mut self, id: JobId, job: &Job, nodes: &[NodeId]) -> bool {
        let written = self.written(job);
        let mut missing = 0u64;
        let mut inputs = 0u64;
        let mut past = 0u64;
        let mut past_tiers = BTreeSet::new();
        for input in &job.reads {
            let bytes = self.item(input.item).map_or(0, |i| i.item.bytes);
            let share = each(bytes, nodes.len(), input.spread);
            if self.outside_is_faster(input.item, nodes) {
                past_tiers.insert(input.item);
                past = past.saturating_add(share);
                continue;
            }
            inputs = inputs.saturating_add(share);
            if matches!(
                self.way(input.item, nodes, input.spread).0,
                InputRoute::From(..) | InputRoute::Follow
            ) {
                missing = missing.saturating_add(share);
            }
        }
        let least = nodes.iter().map(|n| self.nodes.capacity(*n)).min();
        let never = inputs.saturating_add(written) > least.unwrap_or(0);
        let bytes = missing.saturating_add(written);
        let mut direct = never && bytes > 0;
        if !direct {
            let held = self.pin_inputs(job, nodes);
            let mut all = true;
            for n in nodes {
                let kept = if bytes > 0 {
                    self.claims.kept_from(*n, id)
                } else {
                    0
                };
                all &= self.ensure_space(*n, bytes.saturating_add(kept));
            }
            held.iter().for_each(|pin| self.unpin(pin));
            // When nothing is under way that could free space, or that takes too long, it does without.
            if !all && self.under_way > 0 {
                let space = nodes
                    .iter()
                    .map(|n| self.time_until_space(*n, bytes, id))
                    .max();
                let without = self.without_tiers(missing, written, nodes.len(), job);
                if !self.may_do_without(id) || space.is_none_or(|r| r <= without) {
                    self.claim_space(id, nodes, bytes);
                    return false;
                }
            }
            direct = !all;
        }
        self.claims.remove(id);
        let io = match direct {
            true => self.outside_time(past.saturating_add(missing), written, nodes.len()),
            false => {
                let outside = self.outside_time(past, 0, nodes.len());
                outside.saturating_add(self.on_tiers(nodes, inputs, written))
            }
        };
        if let Some(state) = self.job_mut(id) {
            state.io = io;
            state.direct = direct;
            state.past_tiers = past_tiers;
            state.promised = if direct { 0 } else { written };
        }
        self.promise_space(nodes, if direct { 0 } else { written }, true);
        true
    }

    /// How long a job reads and writes so many bytes outside by itself on each of its nodes.
    pub(crate) fn outside_time(&self, reads: u64, writes: u64, nodes: usize) -> Nanos {
        let all = |bytes: u64| bytes.saturating_mul(nodes as u64);
        let reads = self.reads_outside(all(reads), nodes);
        reads.saturating_add(self.writes_outside(all(writes), nodes))
    }

    /// How long it reads and writes so many bytes on each of its nodes' tiers.
    pub(crate) fn on_tiers(&self, nodes: &[NodeId], reads: u64, writes: u64) -> Nanos {
        let kind = nodes.first().map(|n| self.nodes.kind(*n));
        let rates = kind.and_then(|k| k.tiers.first()).map(|t| t.rates);
        let rates = rates.unwrap_or_default();
        duration(reads, rates.read).saturating_add(duration(writes, rates.write))
    }

    /// The same for a job that could go through its nodes' tiers, and the loss of others: they read its data outside
    /// too.
    pub(crate) fn without_tiers(&self, reads: u64, writes: u64, nodes: usize, job: &Job) -> Nanos {
        let read_later = |i: &ItemId| self.item(*i).is_some_and(|i| !i.readers.is_empty());
        let again = match job.writes.iter().any(read_later) {
            true => writes,
            false => 0,
        };
        self.outside_time(reads.saturating_add(again), writes, nodes)
    }

    pub(crate) fn promise_space(&mut self, nodes: &[NodeId], bytes: u64, take: bool) {
        for n in nodes {
            let node = self.nodes.node_mut(*n);
            match take {
                true => node.ledger.reserve(TIERS, bytes),
                false => node.ledger.unreserve(TIERS, bytes),
            }
        }
    }

    /// Pins inputs that are there already, while space is freed for the rest.
    fn pin_inputs(&mut self, job: &Job, nodes: &[NodeId]) -> Vec<Pin> {
        let mut held = Vec::new();
        for input in &job.reads {
            if let InputRoute::There(at, spread) = self.way(input.item, nodes, input.spread).0 {
                held.extend(self.pin(input.item, &at, spread));
            }
        }
        held
    }

    /// Brings a job's missing inputs to its nodes. It counts the moves that it has to wait for.
    pub(crate) fn fetch(&mut self, id: JobId, urgency: Urgency) {
        let Some(state) = self.job(id) else {
            return;
        };
        let (job, nodes, direct) = (state.job.clone(), state.nodes.clone(), state.direct);
        let past_tiers = state.past_tiers.clone();
        let mut retained = 0;
        let holds = state.stage == PlannerJobStage::Staging;
        let (mut waits, mut follows) = (0, false);
        for input in &job.reads {
            let bytes = self.item(input.item).map_or(0, |i| i.item.bytes);
            let all = match input.spread {
                Spread::Share => bytes,
                Spread::Whole => bytes.saturating_mul(nodes.len() as u64),
            };
            if past_tiers.contains(&input.item) {
                if holds && self.reads_itself(id, input.item) {
                    self.bring(id, *input, Where::Outside, all, &nodes, true, urgency);
                }
                continue;
            }
            match self.way(input.item, &nodes, input.spread).0 {
                InputRoute::There(at, spread) => {
                    self.pin_for(id, input.item, &at, spread);
                    retained += all;
                }
                InputRoute::Coming(order, at, spread) => {
                    self.pin_for(id, input.item, &at, spread);
                    self.outbox.hurry(order, urgency);
                    if let Some(MovePurpose::Input(jobs)) = self.outbox.purpose_mut(order) {
                        jobs.push(id);
                        waits += 1;
                    } else if let Some(purpose) = self.outbox.purpose_mut(order) {
                        *purpose = MovePurpose::Input(vec![id]);
                        waits += 1;
                    }
                }
                InputRoute::From(from, travels) => {
                    // A direct move is the program's own: it begins with the job.
                    if !direct {
                        self.bring(id, *input, from, travels, &nodes, direct, urgency);
                        waits += 1;
                    } else if holds && self.reads_itself(id, input.item) {
                        self.bring(id, *input, from, travels, &nodes, direct, urgency);
                    }
                }
                InputRoute::Follow | InputRoute::Nowhere => {
                    waits += 1;
                    follows = true;
                }
            }
        }
        if let Some(state) = self.job_mut(id) {
            (state.moving, state.retained, state.follows) = (waits, retained, follows);
        }
    }

    /// Whether a job's program has yet to begin reading an item by itself.
    fn reads_itself(&mut self, id: JobId, item: ItemId) -> bool {
        let Some(state) = self.job_mut(id) else {
            return false;
        };
        let first = state.own.insert(item);
        state.own_left += u32::from(first);
        first
    }

    #[allow(clippy::too_many_arguments)]
    fn bring(
        &mut self,
        id: JobId,
        input: Input,
        from: Where,
        bytes: u64,
        nodes: &JobNodes,
        direct: bool,
        urgency: Urgency,
    ) {
        let draft = MoveRequest {
            item: input.item,
            bytes,
            from,
            to: Where::Nodes(nodes.clone()),
            spread: input.spread,
            direct,
            job: Some(id),
            urgency,
            purpose: MovePurpose::Input(vec![id]),
        };
        if direct {
            return self.order_in_turn(id, draft);
        }
        let order = self.order(draft);
        self.lay(input.item, nodes, input.spread, Some(order));
        self.pin_for(id, input.item, nodes, input.spread);
    }

    /// Fetches a job's missing inputs again: one has come to another node, or did not come.
    pub(crate) fn refetch(&mut self, id: JobId) {
        let Some(state) = self.job(id) else {
            return;
        };
        let urgency = match state.stage {
            PlannerJobStage::Planned => Urgency::Ahead,
            PlannerJobStage::Staging => Urgency::Now,
            _ => return,
        };
        self.unpin_inputs(id);
        self.forget_waits(id);
        self.fetch(id, urgency);
        match urgency {
            Urgency::Now => self.run_if_there(id),
            _ => self.begin_planned(id),
        }
    }

    /// Takes a job from the lists of those that wait for moves.
    pub(crate) fn forget_waits(&mut self, id: JobId) {
        let Some(state) = self.job(id) else {
            return;
        };
        let job = state.job.clone();
        let mut moves: Vec<MoveId> = Vec::new();
        for input in &job.reads {
            let item = self.item(input.item);
            moves.extend(
                item.iter()
                    .flat_map(|i| i.layouts.iter().filter_map(|l| l.coming)),
            );
        }
        for order in moves {
            if let Some(MovePurpose::Input(jobs)) = self.outbox.purpose_mut(order) {
                jobs.retain(|j| *j != id);
            }
        }
    }

    /// A planned job begins once its data is there and its nodes are free.
    pub(crate) fn begin_planned(&mut self, id: JobId) {
        let Some(state) = self.job(id).filter(|s| s.stage == PlannerJobStage::Planned) else {
            return;
        };
        let waits = state.moving > 0 && !state.direct;
        let (job, nodes, retained) = (state.job.clone(), state.nodes.clone(), state.retained);
        if waits || !nodes.iter().all(|n| self.nodes.free_for(&job, *n)) {
            return;
        }
        let w = self.waiting(id);
        let until = self.now.saturating_add(job.limit);
        if w.is_some_and(|w| self.breaks_promise(&w, &nodes, until)) {
            self.unplan(id);
            return self.enqueue(id);
        }
        self.forget_plan(id, &nodes);
        let why = match retained {
            0 => AllocationReason::First,
            _ => AllocationReason::WithData,
        };
        self.take_nodes(id, &nodes, why);
        if reads_by_itself(self, id) {
            self.unpin_inputs(id);
            self.fetch(id, Urgency::Now);
            if let Some(state) = self.job_mut(id) {
                state.retained = retained;
            }
        }
        self.run_if_there(id);
    }

    /// A job gets free nodes now; it holds them while its data moves.
    pub(crate) fn begin(&mut self, id: JobId, nodes: &[NodeId], why: AllocationReason) -> bool {
        let Some(job) = self.job(id).map(|j| j.job.clone()) else {
            return false;
        };
        match self.policy.data_mode {
            DataMode::Keep => {
                if !self.make_space(id, &job, nodes) {
                    return false;
                }
            }
            DataMode::Cache => self.cache_space(id, &job, nodes),
            DataMode::StageThrough => {
                if let Some(state) = self.job_mut(id) {
                    (state.direct, state.promised) = (true, 0);
                }
            }
        }
        self.dequeue(id);
        let nodes: JobNodes = Arc::from(nodes);
        self.take_nodes(id, &nodes, why);
        self.fetch(id, Urgency::Now);
        self.run_if_there(id);
        true
    }

    /// With `cache`: a job's data stays on the tiers if they have space for it (after older data has gone), else none
    /// of it does.
    pub(crate) fn cache_space(&mut self, id: JobId, job: &Job, nodes: &[NodeId]) {
        let direct = !self.make_space(id, job, nodes);
        self.claims.remove(id);
        if let Some(state) = self.job_mut(id)
            && direct
        {
            (state.direct, state.promised) = (true, 0);
        }
    }

    pub(crate) fn take_nodes(&mut self, id: JobId, nodes: &JobNodes, why: AllocationReason) {
        let Some(job) = self.job(id).map(|s| s.job.clone()) else {
            return;
        };
        let ends = self.ends(id, self.now, job.nodes, job.cores == 0);
        self.hold(id, nodes, self.now);
        if why != AllocationReason::Continues {
            self.nodes.take(NodeTaking {
                job: id,
                nodes,
                share: Demand::of_job(&job),
                ends,
                given: false,
            });
            self.overtaken(nodes, id);
        }
        self.emit(SiteAction::Allocate {
            job: id,
            nodes: nodes.clone(),
            why,
        });
    }

    /// A job has these nodes.
    pub(crate) fn hold(&mut self, id: JobId, nodes: &JobNodes, since: Time) {
        if let Some(state) = self.job_mut(id) {
            state.stage = PlannerJobStage::Staging;
            state.own.clear();
            state.own_left = 0;
            state.in_turn.clear();
            state.nodes = nodes.clone();
            state.began = since;
        }
        self.pay_for_wait(id);
        add(&mut self.under_way, 1, "things under way");
        self.promises.keep(id);
    }

    /// When a job's nodes are expected to be free: at its limit, but those that the next steps of its workflow will go
    /// on to use later: a workflow's resources are reserved as a whole.
    pub(crate) fn ends(&self, id: JobId, since: Time, nodes: u32, whole: bool) -> NodeReleaseTimes {
        /// Steps ahead that are looked at.
        const AHEAD: usize = 64;
        let Some(state) = self.job(id) else {
            return Vec::new();
        };
        let mut at = since.saturating_add(state.job.limit);
        let mut left = nodes;
        let mut ends = Vec::new();
        if whole && self.keeps_nodes(id) {
            let mut job = id;
            for _ in 0..AHEAD {
                let Some((next, nodes, limit)) = self.main_successor(job) else {
                    break;
                };
                if nodes < left {
                    ends.push((at, left - nodes));
                    left = nodes;
                }
                at = at.saturating_add(limit);
                job = next;
            }
        }
        ends.push((at, left));
        ends
    }

    /// Whether whole nodes of a job are kept for the next steps of its workflow.
    pub(crate) fn keeps_nodes(&self, id: JobId) -> bool {
        // A job that overtakes reserves no more than it has: the rest of it would delay others beyond their promise.
        let reserves = matches!(self.policy.order, Order::Data | Order::Energy);
        reserves && !self.overtakes(id)
    }

    /// The job that reads most of a job's output, if it takes whole nodes and no more of them.
    pub(crate) fn main_successor(&self, id: JobId) -> Option<(JobId, u32, Time)> {
        let state = self.job(id)?;
        let flow = state.job.flow?;
        let written = state.job.writes.iter().filter_map(|i| self.item(*i));
        let readers = written.flat_map(|i| i.readers.iter().map(move |r| (i.item.bytes, *r)));
        let (_, next) = readers.max_by_key(|(bytes, r)| (*bytes, std::cmp::Reverse(*r)))?;
        let job = &self.job(next)?.job;
        let fits = job.flow == Some(flow) && job.cores == 0 && job.nodes <= state.job.nodes;
        fits.then_some((next, job.nodes, job.limit))
    }

    /// Others may have written more than was known when space was promised: then a job writes outside by itself.
    fn keep_within_tiers(&mut self, id: JobId) {
        let Some(state) = self.job(id).filter(|s| !s.direct && s.promised > 0) else {
            return;
        };
        let (nodes, promised) = (state.nodes.clone(), state.promised);
        let full = |s: &Self, n: &NodeId| s.nodes.node(*n).space().is_overdrawn();
        for n in nodes
            .iter()
            .filter(|n| full(self, n))
            .copied()
            .collect::<Vec<_>>()
        {
            self.ensure_space(n, 0);
        }
        if nodes.iter().any(|n| full(self, n)) {
            self.promise_space(&nodes, promised, false);
            if let Some(state) = self.job_mut(id) {
                (state.direct, state.promised) = (true, 0);
            }
        }
    }

    /// Runs a job that has its nodes and its data.
    pub(crate) fn run_if_there(&mut self, id: JobId) {
        let Some(state) = self.job(id) else {
            return;
        };
        if state.stage != PlannerJobStage::Staging || state.moving > 0 || state.own_left > 0 {
            return;
        }
        self.keep_within_tiers(id);
        let Some(state) = self.job(id) else {
            return;
        };
        let (job, nodes, direct, retained) = (
            state.job.clone(),
            state.nodes.clone(),
            state.direct,
            state.retained,
        );
        let past_tiers = state.past_tiers.clone();
        // A host has begun its program already.
        if !direct && !state.by_host && self.saves_outputs(&job, &nodes) {
            return;
        }
        let (mut local_read, mut local_write) = (0u64, 0u64);
        for input in &job.reads {
            let bytes = self.item(input.item).map_or(0, |i| i.item.bytes);
            let all = match input.spread {
                Spread::Share => bytes,
                Spread::Whole => bytes.saturating_mul(nodes.len() as u64),
            };
            let there = matches!(
                self.way(input.item, &nodes, input.spread).0,
                InputRoute::There(..)
            );
            let there = there && !past_tiers.contains(&input.item);
            if there && (!direct || self.policy.data_mode != DataMode::StageThrough) {
                local_read = local_read.saturating_add(all);
            }
        }
        if !direct {
            for item in &job.writes {
                self.drop_former(*item, &nodes);
                let bytes = self.item(*item).map_or(0, |i| i.item.bytes);
                local_write = local_write.saturating_add(bytes);
            }
        }
        let Some(state) = self.job_mut(id) else {
            return;
        };
        state.stage = PlannerJobStage::Running;
        state.attempt += 1;
        let attempt = state.attempt;
        self.emit(SiteAction::Run {
            job: id,
            attempt,
            local_read,
            local_write,
            to_tiers: !direct,
            retained,
        });
    }

    /// An output that an earlier run of the same job left on the same nodes goes before the job writes it again.
    fn drop_former(&mut self, id: ItemId, nodes: &JobNodes) {
        let former = self.item(id).and_then(|i| {
            let same = |l: &&ItemLayout| *l.nodes == **nodes && l.pins == 0;
            i.layouts.iter().find(same).cloned()
        });
        if let Some(l) = former {
            self.drop_layout(id, &l.nodes, l.spread);
        }
    }

    fn pin_for(&mut self, id: JobId, item: ItemId, nodes: &JobNodes, spread: Spread) {
        let pin = self.pin(item, nodes, spread);
        if let Some(state) = self.job_mut(id) {
            state.pinned.extend(pin);
        }
    }

    pub(crate) fn unpin_inputs(&mut self, id: JobId) {
        let pinned = self.job_mut(id).map(|s| std::mem::take(&mut s.pinned));
        for pin in pinned.unwrap_or_default() {
            self.unpin(&pin);
        }
    }

    pub(crate) fn ended(&mut self, id: JobId, ok: bool, sizes: &[(ItemId, u64)]) {
        if self.job(id).is_some_and(|s| s.by_host) {
            return self.ended_by_host(id, ok, sizes);
        }
        let Some(state) = self.job(id).filter(|s| s.stage == PlannerJobStage::Running) else {
            return;
        };
        let (job, nodes) = (state.job.clone(), state.nodes.clone());
        let (direct, promised, attempt) = (state.direct, state.promised, state.attempt);
        self.unpin_inputs(id);
        self.promise_space(&nodes, promised, false);
        if let Some(state) = self.job_mut(id) {
            (state.promised, state.stage) = (0, PlannerJobStage::Draining);
        }
        if !ok {
            self.release(id);
            self.end_script(id);
            if RetryRule::USUAL.gives_up(attempt) {
                self.emit(SiteAction::GiveUp { job: id });
                return self.take_out(id);
            }
            return self.queue_again(id);
        }
        self.learn_sizes(sizes);
        let mut waits = 0;
        for item in &job.writes {
            let local = !direct;
            if local {
                self.lay(*item, &nodes, Spread::Share, None);
            }
            if !local || self.policy.data_mode == DataMode::Cache {
                self.write_out(id, *item, &nodes, direct);
                waits += 1;
            }
        }
        if let Some(state) = self.job_mut(id) {
            state.moving = waits;
        }
        if waits == 0 {
            self.finish(id);
        }
        if !sizes.is_empty()
            && let Some(flow) = job.flow
        {
            self.rank(flow);
        }
    }

    pub(crate) fn learn_sizes(&mut self, sizes: &[(ItemId, u64)]) {
        for (item, bytes) in sizes {
            if let Some(item) = self.item_mut(*item) {
                item.item.bytes = *bytes;
            }
        }
    }

    pub(crate) fn write_out(&mut self, id: JobId, item: ItemId, nodes: &JobNodes, direct: bool) {
        let bytes = self.item(item).map_or(0, |i| i.item.bytes);
        let draft = MoveRequest {
            item,
            bytes,
            from: Where::Nodes(nodes.clone()),
            to: Where::Outside,
            spread: Spread::Share,
            direct,
            job: Some(id),
            urgency: Urgency::Now,
            purpose: MovePurpose::Output(id),
        };
        self.order_in_turn(id, draft);
    }

    /// A job has ended well and its results are where others can use them.
    pub(crate) fn finish(&mut self, id: JobId) {
        let Some(state) = self.job(id) else {
            return;
        };
        let (job, goes_on) = (state.job.clone(), state.successors > 0 && !state.by_host);
        self.earn_leeway(id);
        self.promises.fulfil(id);
        if goes_on {
            if let Some(state) = self.job_mut(id) {
                state.stage = PlannerJobStage::Handed;
            }
        } else {
            self.release(id);
        }
        for item in &job.writes {
            self.made(*item);
        }
        for input in &job.reads {
            self.read_by(input.item, id);
        }
        for item in &job.writes {
            self.deliver(*item);
            self.tidy(*item);
        }
        let followers = self.job_mut(id).map(|s| std::mem::take(&mut s.followers));
        for follower in followers.unwrap_or_default() {
            if self.waits_for(follower, id) {
                self.lacks_less(follower);
            }
        }
        if !goes_on {
            self.done(id);
        }
    }

    pub(crate) fn made(&mut self, id: ItemId) {
        let Some(item) = self.item_mut(id).filter(|i| !i.made) else {
            return;
        };
        item.made = true;
        for reader in item.readers.clone() {
            self.lacks_less(reader);
            // The host began it before.
            if self.job(reader).is_some_and(|j| j.follows && j.by_host) {
                self.refetch(reader);
            }
        }
    }

    /// Jobs that have nodes or a plan, and an input of which was nowhere or comes to another node first, look for it again.
    pub(crate) fn refetch_readers(&mut self, id: ItemId) {
        let readers = self.item(id).map(|i| i.readers.clone());
        for reader in readers.unwrap_or_default() {
            if self.job(reader).is_some_and(|j| j.follows) {
                self.refetch(reader);
            }
        }
    }

    /// Whether a job waits for the end of another. (A number may have come to another job since.)
    pub(crate) fn waits_for(&self, follower: JobId, before: JobId) -> bool {
        self.job(follower)
            .is_some_and(|s| s.job.continues == Some(before) || s.job.after.contains(&before))
    }

    pub(crate) fn lacks_less(&mut self, id: JobId) {
        let Some(state) = self.job_mut(id) else {
            return;
        };
        // A job that had its inputs does not count those that are made again.
        if state.stage != PlannerJobStage::Blocked {
            return;
        }
        sub(&mut state.lacks, 1, "what a job lacks");
        if state.lacks == 0 {
            self.ready(id);
        }
    }
}

/// Whether the nodes of a planned job are free: it waits for nothing but its data.
fn nodes_free(state: &PlannerState, job: &Job, id: JobId) -> bool {
    let nodes = state.job(id).map(|s| s.nodes.clone());
    nodes.is_some_and(|n| n.iter().all(|n| state.nodes.free_for(job, *n)))
}

fn reads_by_itself(state: &PlannerState, id: JobId) -> bool {
    state
        .job(id)
        .is_some_and(|s| s.direct || !s.past_tiers.is_empty())
}
