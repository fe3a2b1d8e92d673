//! Events beside the life of jobs: moves end or fail, nodes change, fail and come back, items are lost.

use super::items::{ItemLayout, one_way};
use super::nodes::memory_in;
use super::outbox::{MovePurpose, MoveRecord, MoveRequest};
use super::state::{PlannerJob, PlannerJobStage, PlannerState};
use tarn_types::account::sub;
use tarn_types::id::NodeId;
use tarn_types::ledger::NodeAvailability;
use tarn_types::site::{ItemId, JobId, Mode, MoveId, SiteAction, SiteEvent, SiteEventError, Where};

impl PlannerState {
    /// Applies an event. A refused one changes nothing.
    pub(crate) fn apply(&mut self, event: &SiteEvent) -> Result<(), SiteEventError> {
        match event {
            SiteEvent::Submitted { jobs, items } => {
                self.may_come(jobs, items)?;
                self.submitted(jobs, items);
            }
            SiteEvent::Moved { id } => self.moved(*id),
            SiteEvent::MoveFailed { id } => self.move_failed(*id),
            SiteEvent::Ended { job, ok, sizes } => self.ended(*job, *ok, sizes),
            SiteEvent::ModeSet { node, ok } => {
                self.known_node(*node)?;
                self.mode_set(*node, *ok);
            }
            SiteEvent::InMode { node, mode } => {
                self.known_node(*node)?;
                self.in_this_mode(*node, *mode);
            }
            SiteEvent::Awake { node } => {
                self.known_node(*node)?;
                self.awake(*node);
            }
            SiteEvent::Asleep { node } => {
                self.known_node(*node)?;
                self.found_asleep(*node);
            }
            SiteEvent::Wakeable { node, is_wakeable } => {
                self.known_node(*node)?;
                self.nodes.node_mut(*node).wakeable = *is_wakeable;
            }
            SiteEvent::Needed { node, is_needed } => {
                self.known_node(*node)?;
                self.needed(*node, *is_needed);
            }
            SiteEvent::NodeLost { node } => {
                self.known_node(*node)?;
                self.node_lost(*node);
            }
            SiteEvent::NodeBack { node } => {
                self.known_node(*node)?;
                self.node_back(*node);
            }
            SiteEvent::Timer => {}
            SiteEvent::Began {
                job,
                nodes,
                share,
                since,
            } => self.began(*job, nodes, *share, *since)?,
            SiteEvent::NotBegun { job } => self.not_begun(*job)?,
            SiteEvent::Withdrawn { job } => self.withdrawn(*job)?,
            SiteEvent::Changed { job, spec } => self.changed(*job, spec)?,
            SiteEvent::Closed { node, until } => self.close(*node, *until)?,
            SiteEvent::Opened { node } => self.open(*node)?,
            SiteEvent::Stored {
                item,
                nodes,
                spread,
                bytes,
            } => self.stored(*item, nodes, *spread, *bytes)?,
            SiteEvent::Gone {
                item,
                nodes,
                spread,
            } => self.gone(*item, nodes, *spread)?,
            SiteEvent::Promised { job, begin } => self.promise(*job, *begin)?,
        }
        Ok(())
    }

    fn awake(&mut self, node: NodeId) {
        match self.nodes.node(node).availability() {
            NodeAvailability::Waking => sub(&mut self.under_way, 1, "things under way"),
            NodeAvailability::Asleep | NodeAvailability::Away => {}
            // It is up, or has been lost since.
            NodeAvailability::Up | NodeAvailability::Booting(_) | NodeAvailability::Lost => return,
        }
        let now = self.now;
        self.nodes.set_availability(node, NodeAvailability::Up);
        self.nodes.node_mut(node).idle_since = now;
    }

    fn node_back(&mut self, node: NodeId) {
        if self.nodes.node(node).ledger.is_lost() {
            self.nodes.regain(node);
        }
    }

    pub(crate) fn moved(&mut self, id: MoveId) {
        let Some(order) = self.over(id) else {
            return;
        };
        let m = &order.what;
        match (&m.to, &order.purpose) {
            (Where::Outside, purpose) => self.is_outside(m.item, purpose),
            (Where::Nodes(_), _) if m.direct => {}
            (Where::Nodes(to), _) => self.items.arrived(self.now, m.item, to, m.spread),
        }
        if let MovePurpose::Space = order.purpose
            && let Where::Nodes(from) = &m.from
        {
            // It is elsewhere now: here it can go.
            for n in from.iter() {
                let here = self.item(m.item).and_then(|i| {
                    let free = |l: &&ItemLayout| l.pins == 0 && l.present() && l.has(*n);
                    i.layouts.iter().find(free).cloned()
                });
                if let Some(l) = here {
                    self.drop_layout(m.item, &l.nodes, l.spread);
                }
            }
        }
        self.wake(&order);
        self.tidy(m.item);
    }

    fn is_outside(&mut self, id: ItemId, purpose: &MovePurpose) {
        if let Some(item) = self.item_mut(id) {
            (item.outside, item.leaving) = (true, None);
        }
        if let MovePurpose::Output(job) = purpose {
            self.next_in_turn(*job);
            self.one_move_less(*job);
        }
        if let Some(producer) = self.item(id).and_then(|i| i.producer) {
            self.run_if_there(producer);
            self.settle(producer);
        }
    }

    /// A job's program has read an item by itself.
    fn own_arrived(&mut self, id: JobId) {
        if let Some(state) = self.job_mut(id) {
            sub(
                &mut state.own_left,
                1,
                "items that a program has yet to read",
            );
        }
        match self.next_in_turn(id) {
            true => self.run_if_there(id),
            false => self.read_no_more(id),
        }
    }

    fn one_move_less(&mut self, id: JobId) {
        let Some(state) = self.job_mut(id) else {
            return;
        };
        // Others may have taken its nodes or its plan meanwhile.
        if !matches!(
            state.stage,
            PlannerJobStage::Planned | PlannerJobStage::Staging | PlannerJobStage::Draining
        ) {
            return;
        }
        sub(&mut state.moving, 1, "moves that a job waits for");
        match (state.stage, state.moving) {
            (PlannerJobStage::Draining, 0) => self.finish(id),
            (PlannerJobStage::Staging, 0) => self.run_if_there(id),
            (PlannerJobStage::Planned, 0) => self.begin_planned(id),
            _ => {}
        }
    }

    /// Wakes the jobs that waited for a move, and those that wanted to copy from its target. Moves that still wait for
    /// the store look for the best source again.
    fn wake(&mut self, order: &MoveRecord) {
        if matches!(order.what.to, Where::Nodes(_)) && !order.what.direct {
            for id in self.waiting_for_store(order.what.item) {
                if let Some(waiting) = self.over(id) {
                    self.look_again(waiting);
                }
            }
        }
        match &order.purpose {
            MovePurpose::Input(jobs) if order.what.direct => {
                for job in jobs.clone() {
                    self.own_arrived(job);
                }
            }
            MovePurpose::Input(jobs) => {
                for job in jobs.clone() {
                    self.one_move_less(job);
                }
            }
            _ => {}
        }
        self.refetch_readers(order.what.item);
    }

    /// A move that has not begun is taken back: the jobs that wait for it choose again.
    fn look_again(&mut self, order: MoveRecord) {
        if let Where::Nodes(nodes) = &order.what.to {
            self.unlay(order.what.item, nodes, order.what.spread);
        }
        if let MovePurpose::Input(jobs) = order.purpose {
            for job in jobs {
                self.refetch(job);
            }
        }
    }

    fn move_failed(&mut self, id: MoveId) {
        let Some(order) = self.over(id) else {
            return;
        };
        let m = &order.what;
        if let (Where::Nodes(nodes), false) = (&m.to, m.direct) {
            self.unlay(m.item, nodes, one_way(nodes, m.spread));
        }
        if m.to == Where::Outside
            && let Some(item) = self.item_mut(m.item)
        {
            item.leaving = None;
        }
        match order.purpose.clone() {
            MovePurpose::Input(_) | MovePurpose::Output(_) if order.in_turn() => self.again(&order),
            MovePurpose::Input(jobs) => {
                for job in jobs {
                    self.refetch(job);
                }
            }
            MovePurpose::Output(_) => {}
            MovePurpose::Deliver => self.deliver(m.item),
            MovePurpose::Space | MovePurpose::Spare => {}
        }
        let producer = self.item(m.item).and_then(|i| i.producer);
        if let Some(producer) = producer.filter(|_| m.to == Where::Outside) {
            self.run_if_there(producer);
        }
        self.refetch_readers(m.item);
    }

    /// Repeats a move that a job does itself and that failed; from elsewhere, if its source is gone.
    fn again(&mut self, order: &MoveRecord) {
        let m = &order.what;
        let Some(job) = m.job.filter(|j| self.has_nodes(*j)) else {
            return;
        };
        let mut draft = MoveRequest {
            item: m.item,
            bytes: m.bytes,
            from: m.from.clone(),
            to: m.to.clone(),
            spread: m.spread,
            direct: m.direct,
            job: m.job,
            urgency: m.urgency,
            purpose: order.purpose.clone(),
        };
        if !self.is_source(m.item, &m.from) && !self.take_from_best(&mut draft) {
            return self.read_no_more(job);
        }
        self.order(draft);
    }

    /// Whether an item can be taken from there.
    fn is_source(&self, id: ItemId, from: &Where) -> bool {
        self.item(id).is_some_and(|i| match from {
            Where::Outside => i.outside,
            Where::Nodes(from) => i.layouts.iter().any(|l| l.present() && *l.nodes == **from),
        })
    }

    /// An item that a job's program was to read by itself is nowhere any more.
    fn read_no_more(&mut self, id: JobId) {
        if self.job(id).is_some_and(|s| s.by_host) {
            // The host's program runs without it, or fails by itself.
            self.stop_own_reads(id);
            return self.run_if_there(id);
        }
        self.abort(id);
        self.queue_again(id);
    }

    fn mode_set(&mut self, node: NodeId, ok: bool) {
        let now = self.now;
        if let NodeAvailability::Booting(mode) = self.nodes.node(node).availability() {
            sub(&mut self.under_way, 1, "things under way");
            if ok {
                self.nodes.set_mode(node, mode);
            }
            self.nodes.set_availability(node, NodeAvailability::Up);
            self.nodes.node_mut(node).idle_since = now;
        }
    }

    /// The host found a node in a mode. One that is lost has none.
    fn in_this_mode(&mut self, node: NodeId, mode: Mode) {
        if self.nodes.node(node).ledger.is_lost() {
            return;
        }
        if matches!(
            self.nodes.node(node).availability(),
            NodeAvailability::Booting(_)
        ) {
            sub(&mut self.under_way, 1, "things under way");
            self.nodes.set_availability(node, NodeAvailability::Up);
        }
        let can_be = memory_in(self.nodes.kind(node), mode).is_some();
        if can_be && self.nodes.node(node).mode != mode {
            let now = self.now;
            self.nodes.set_mode(node, mode);
            self.nodes.node_mut(node).idle_since = now;
        }
    }

    fn node_lost(&mut self, node: NodeId) {
        let was = self.nodes.node(node).availability();
        if matches!(was, NodeAvailability::Waking | NodeAvailability::Booting(_)) {
            sub(&mut self.under_way, 1, "things under way");
        }
        self.nodes.lose(node);
        let failed: Vec<MoveRecord> = self
            .outbox
            .moves_touching(node)
            .into_iter()
            .filter_map(|id| self.over(id))
            .collect();
        for order in &failed {
            if let (Where::Nodes(nodes), false) = (&order.what.to, order.what.direct) {
                self.unlay(order.what.item, nodes, one_way(nodes, order.what.spread));
            }
            if order.what.to == Where::Outside
                && let Some(item) = self.item_mut(order.what.item)
            {
                item.leaving = None;
            }
        }
        let planned: Vec<JobId> = self.nodes.node(node).planned.iter().copied().collect();
        let guests: Vec<JobId> = self.nodes.node(node).guests.iter().map(|g| g.job).collect();
        let mut again = Vec::new();
        for id in planned {
            self.unplan(id);
            again.push(id);
        }
        for id in guests {
            let handed = self.job(id).filter(|s| s.stage == PlannerJobStage::Handed);
            let Some(first) = handed else {
                self.abort(id);
                again.push(id);
                continue;
            };
            // A part of the script that runs on its other nodes continues; else the rest of the script queues for
            // itself.
            if let Some(successor) = first.successor.filter(|h| self.has_nodes(*h)) {
                if self
                    .job(successor)
                    .is_some_and(|h| !h.nodes.contains(&node))
                {
                    continue;
                }
                self.abort(successor);
                again.push(successor);
            }
            if self
                .job(id)
                .is_some_and(|s| s.stage == PlannerJobStage::Handed)
            {
                self.release(id);
                self.done(id);
            }
        }
        self.lose_items(node);
        for id in again {
            self.queue_again(id);
        }
        for order in failed {
            match order.purpose {
                MovePurpose::Input(jobs) => jobs.into_iter().for_each(|j| self.refetch(j)),
                MovePurpose::Deliver => self.deliver(order.what.item),
                _ => {}
            }
        }
        self.refetch_followers();
    }

    pub(crate) fn has_nodes(&self, id: JobId) -> bool {
        let having = [
            PlannerJobStage::Staging,
            PlannerJobStage::Running,
            PlannerJobStage::Draining,
        ];
        self.job(id).is_some_and(|s| having.contains(&s.stage))
    }

    /// A job's nodes are gone under it.
    pub(crate) fn abort(&mut self, id: JobId) {
        let Some(state) = self.job(id) else {
            return;
        };
        let (nodes, promised) = (state.nodes.clone(), state.promised);
        if !self.has_nodes(id) {
            return self.withdraw(id);
        }
        self.cancel_own_moves(id);
        self.unpin_inputs(id);
        self.forget_waits(id);
        self.promise_space(&nodes, promised, false);
        if let Some(state) = self.job_mut(id) {
            state.promised = 0;
        }
        self.release(id);
    }

    /// The moves that a job's program makes itself end with it.
    pub(crate) fn cancel_own_moves(&mut self, id: JobId) {
        for m in self.outbox.moves_of(id) {
            self.emit(SiteAction::Cancel { id: m });
            if let Some(order) = self.over(m)
                && let (Where::Nodes(to), false) = (&order.what.to, order.what.direct)
            {
                self.unlay(order.what.item, to, one_way(to, order.what.spread));
            }
        }
    }

    /// All items on a node are gone; an item without another copy is made again if somebody needs it.
    fn lose_items(&mut self, node: NodeId) {
        let held: Vec<ItemId> = self.nodes.node(node).held.iter().copied().collect();
        for id in held {
            // All of a layout is gone with a part of it, without a word.
            let layouts = self.item(id).map(|i| i.layouts.clone());
            for l in layouts.unwrap_or_default() {
                if l.has(node) {
                    self.unlay(id, &l.nodes, l.spread);
                }
            }
            self.make_if_lost(id);
        }
        let lost = self.nodes.node_mut(node);
        debug_assert!(
            lost.held.is_empty(),
            "items are left on {node}, which is lost"
        );
    }

    /// An item may be nowhere any more.
    pub(crate) fn make_if_lost(&mut self, id: ItemId) {
        let lost = self.item(id).is_some_and(|i| {
            let needed = !i.readers.is_empty() || i.item.keep;
            i.made && i.layouts.is_empty() && !i.outside && needed
        });
        if lost {
            self.make_again(id);
        }
    }

    /// A needed item is nowhere: its producer runs again, if the planner ran it. Another is submitted again by its host,
    /// or the item is found.
    pub(crate) fn make_again(&mut self, id: ItemId) {
        // Those that wait for one that is being made already know that they lack it.
        let Some(item) = self.item_mut(id).filter(|i| i.made) else {
            return;
        };
        item.made = false;
        let producer = item.producer;
        for reader in item.readers.clone() {
            self.waits_again(reader);
        }
        let done = |s: &PlannerJob| s.stage == PlannerJobStage::Done && !s.by_host;
        let Some(producer) = producer.filter(|p| self.job(*p).is_some_and(done)) else {
            return;
        };
        let flow = self.job(producer).and_then(|s| s.job.flow);
        if let Some(f) = flow.and_then(|f| self.flows.get_mut(&f)) {
            f.left += 1;
        }
        if let Some(state) = self.job_mut(producer) {
            state.attempt = 0;
        }
        self.queue_again(producer);
    }

    /// One of the inputs of a job is missing again.
    fn waits_again(&mut self, id: JobId) {
        match self.job(id).map(|s| s.stage) {
            Some(PlannerJobStage::Queued) => self.dequeue(id),
            Some(PlannerJobStage::Planned) => self.unplan(id),
            Some(PlannerJobStage::Blocked) => {}
            // It has its data on its own nodes, or is looked at with them.
            _ => return,
        }
        if let Some(state) = self.job_mut(id) {
            state.stage = PlannerJobStage::Blocked;
            state.lacks += 1;
        }
    }

    fn refetch_followers(&mut self) {
        let follow: Vec<JobId> = (0u32..)
            .zip(&self.jobs)
            .filter(|(_, s)| s.as_ref().is_some_and(|s| s.follows))
            .map(|(i, _)| JobId(i))
            .collect();
        for id in follow {
            self.refetch(id);
        }
    }
}
