//! Moves: those under way, and those that wait because the external store is busy enough (admission control after
//! Herbein et al., HPDC 2016): more clients at once only slow each other down.

use super::data::{InputRoute, one_way};
use super::state::{Pin, PlannerState};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::account::{add, sub};
use tarn_types::policy::DataMode;
use tarn_types::site::{ItemId, JobId, Move, MoveId, SiteAction, Spread, Urgency, Where};

/// Bytes from which on another stream is worth its while: a stream moves so much in the time it takes to begin. Less
/// needs no admission either: it would only wait.
const STREAM_BYTES: u64 = 16 << 20;

/// What a move is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MovePurpose {
    /// Inputs of these jobs.
    Input(Vec<JobId>),
    /// What a job writes outside itself.
    Output(JobId),
    /// It has to be outside in the end.
    Deliver,
    /// It makes room where it lies.
    Room,
    /// It may turn out useful.
    Spare,
}

#[derive(Debug)]
pub(crate) struct MoveRecord {
    pub(crate) what: Move,
    pub(crate) purpose: MovePurpose,
    /// The layout that it reads stays meanwhile.
    pub(crate) reads: Option<Pin>,
    /// Its place among those that wait for the store; `None` for one that needs no admission.
    place: Option<MoveAdmissionRank>,
    /// Bytes a second that it was admitted with.
    rate: u64,
}

impl Outbox {
    pub(crate) fn orders(&self) -> impl Iterator<Item = &MoveRecord> {
        self.orders.values()
    }

    /// Counts the orders, and compares them with the accounts.
    ///
    /// # Panics
    /// When they differ.
    pub(crate) fn check(&self) {
        let reads = |o: &&MoveRecord| way(&o.what) == 0 && o.what.direct;
        let reads = self.orders().filter(reads).count();
        assert_eq!(self.own_reads as usize, reads, "programs' reads");
        let spare = |o: &&MoveRecord| o.what.urgency == Urgency::Spare;
        let spare = self.orders().filter(spare).count();
        assert_eq!(self.spare as usize, spare, "spare copies");
        for at in 0..2 {
            let of_store = || {
                let orders = self.orders().filter(move |o| way(&o.what) == at);
                orders.filter_map(|o| Some((o.place?, o)))
            };
            let bytes: u64 = of_store().map(|(_, o)| o.what.bytes).sum();
            assert_eq!(self.bytes[at], bytes, "bytes for the store");
            let admitted = of_store().filter(|(place, _)| !self.waiting[at].contains(place));
            let busy: u64 = admitted.map(|(_, o)| o.rate).sum();
            assert_eq!(self.busy[at], busy, "admitted bandwidth");
        }
    }

    /// Programs that read from the store by themselves now.
    pub(crate) fn own_reads(&self) -> u32 {
        self.own_reads
    }

    /// Whether a copy that may turn out useful is under way: one at a time.
    pub(crate) fn spare_under_way(&self) -> bool {
        self.spare > 0
    }

    /// Bytes from outside that go before so many more: none while the store has bandwidth left, or for little.
    pub(crate) fn ahead(&self, rate: u64, bytes: u64) -> u64 {
        match self.busy[0] >= rate && (bytes == 0 || bytes > STREAM_BYTES) {
            true => self.bytes[0],
            false => 0,
        }
    }
}

impl MoveRecord {
    /// A job that has its nodes reads or writes by itself.
    pub(crate) fn in_turn(&self) -> bool {
        match self.purpose {
            MovePurpose::Output(_) => true,
            MovePurpose::Input(_) => self.what.direct,
            _ => false,
        }
    }
}

/// More urgent first, then the job with the longest way to go.
type MoveAdmissionRank = (Reverse<Urgency>, Reverse<u64>, MoveId);

/// All moves that are not over.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    next: u64,
    orders: BTreeMap<MoveId, MoveRecord>,
    /// Those that wait for the store, most urgent first: towards the nodes, away from them.
    waiting: [BTreeSet<MoveAdmissionRank>; 2],
    /// Bytes a second that those admitted to the store can take: towards the nodes, away from them.
    busy: [u64; 2],
    /// Reads under way by programs themselves.
    own_reads: u32,
    /// Copies under way that may turn out useful.
    spare: u32,
    /// Bytes that were admitted, or wait for that: towards the nodes, away from them.
    bytes: [u64; 2],
}

/// The way of a move: from outside, to outside, between nodes.
fn way(m: &Move) -> usize {
    match (&m.from, &m.to) {
        (Where::Outside, _) => 0,
        (_, Where::Outside) => 1,
        _ => 2,
    }
}

/// A move, but for its number.
#[derive(Debug, Clone)]
pub(crate) struct MoveRequest {
    pub(crate) item: ItemId,
    pub(crate) bytes: u64,
    pub(crate) from: Where,
    pub(crate) to: Where,
    pub(crate) spread: Spread,
    pub(crate) direct: bool,
    pub(crate) job: Option<JobId>,
    pub(crate) urgency: Urgency,
    pub(crate) purpose: MovePurpose,
}

impl PlannerState {
    /// Orders a move. It begins at once, or when the store has room for it.
    pub(crate) fn order(&mut self, draft: MoveRequest) -> MoveId {
        let id = MoveId(self.outbox.next);
        self.outbox.next += 1;
        let rank = draft.job.and_then(|j| self.job(j)).map_or(0, |j| j.rank);
        let spread = match &draft.to {
            Where::Nodes(nodes) => one_way(nodes, draft.spread),
            Where::Outside => draft.spread,
        };
        let what = Move {
            id,
            item: draft.item,
            bytes: draft.bytes,
            from: draft.from,
            to: draft.to,
            spread,
            streams: 1,
            direct: draft.direct,
            job: draft.job,
            urgency: draft.urgency,
        };
        add(&mut self.under_way, 1, "things under way");
        let at = way(&what);
        let reads = self.pin_source(&what);
        let ours = self.policy.data_mode == DataMode::Keep && at < 2 && !what.direct;
        let ours = ours && what.bytes > STREAM_BYTES;
        if ours {
            add(
                &mut self.outbox.bytes[at],
                what.bytes,
                "bytes for the store",
            );
        }
        let place = ours.then_some((Reverse(what.urgency), Reverse(rank), id));
        let purpose = draft.purpose;
        let is_spare = u32::from(what.urgency == Urgency::Spare);
        add(&mut self.outbox.spare, is_spare, "spare copies");
        let is_own = u32::from(at == 0 && what.direct);
        add(&mut self.outbox.own_reads, is_own, "programs' reads");
        let order = MoveRecord {
            what,
            purpose,
            reads,
            place,
            rate: 0,
        };
        self.outbox.orders.insert(id, order);
        match place {
            Some(place) => {
                self.outbox.waiting[at].insert(place);
                self.admit(at);
            }
            None => {
                let streams = self
                    .outbox
                    .orders
                    .get(&id)
                    .map_or(1, |o| self.streams(&o.what));
                if let Some(order) = self.outbox.orders.get_mut(&id) {
                    order.what.streams = streams;
                }
                self.set_out(id);
            }
        }
        id
    }

    /// Orders a direct move, behind those of the same job where that has several nodes.
    pub(crate) fn order_in_turn(&mut self, job: JobId, draft: MoveRequest) {
        let Some(state) = self.job_mut(job) else {
            return;
        };
        if state.nodes.len() > 1 {
            state.in_turn.push_back(draft.clone());
            if state.in_turn.len() > 1 {
                return;
            }
        }
        self.order(draft);
    }

    /// A direct move of a job has arrived: the next one's turn, from where it is best taken now. False if it is nowhere.
    pub(crate) fn next_in_turn(&mut self, job: JobId) -> bool {
        let Some(state) = self.job_mut(job) else {
            return true;
        };
        state.in_turn.pop_front();
        let Some(mut next) = state.in_turn.front().cloned() else {
            return true;
        };
        if let (Where::Nodes(to), MovePurpose::Input(_)) = (&next.to, &next.purpose) {
            match self.way(next.item, to, next.spread).0 {
                InputRoute::From(from, bytes) => (next.from, next.bytes) = (from, bytes),
                InputRoute::There(nodes, _) => next.from = Where::Nodes(nodes),
                InputRoute::Coming(..) | InputRoute::Follow | InputRoute::Nowhere => return false,
            }
        }
        self.order(next);
        true
    }

    /// The bandwidth of the store in the direction of a move, that of the nodes at its other end, and how many those are.
    fn limits(&self, m: &Move) -> (u64, u64, u32) {
        let (all, client) = match m.to {
            Where::Outside => (self.store.rates.write, self.store.client.write),
            Where::Nodes(_) => (self.store.rates.read, self.store.client.read),
        };
        let nodes = match (&m.from, &m.to) {
            (Where::Nodes(nodes), Where::Outside) | (Where::Outside, Where::Nodes(nodes)) => nodes,
            _ => return (all, client, 1),
        };
        let nodes = nodes.len() as u32;
        (all, client.saturating_mul(u64::from(nodes)), nodes)
    }

    /// Streams that a move can use: as many as its bytes and its nodes' own limits are worth. What a program moves by
    /// itself is one stream a node.
    fn streams(&self, m: &Move) -> u32 {
        let most = self.store.saturates.max(1);
        let (all, client, nodes) = self.limits(m);
        if m.direct || self.policy.data_mode != DataMode::Keep {
            return nodes.clamp(1, most);
        }
        let by_bytes = u32::try_from(m.bytes / STREAM_BYTES).unwrap_or(most);
        let by_nodes = match (all, client) {
            (0, _) | (_, 0) => most,
            (all, client) => {
                let share = u128::from(client) * u128::from(most);
                u32::try_from(share.div_ceil(u128::from(all))).unwrap_or(most)
            }
        };
        by_bytes.saturating_add(1).min(by_nodes).clamp(1, most)
    }

    /// What a move with so many streams can take of the store.
    fn takes(&self, m: &Move, streams: u32) -> u64 {
        let (all, client, _) = self.limits(m);
        let share = all / u64::from(self.store.saturates.max(1)) * u64::from(streams);
        match client {
            0 => share,
            client => share.min(client),
        }
    }

    fn set_out(&mut self, id: MoveId) {
        if let Some(order) = self.outbox.orders.get(&id) {
            let action = SiteAction::Move(order.what.clone());
            self.emit(action);
        }
    }

    /// Lets waiting moves begin while the store has bandwidth that those before them cannot use. Some is kept from what
    /// may turn out useful.
    fn admit(&mut self, at: usize) {
        let all = match at {
            0 => self.store.rates.read,
            _ => self.store.rates.write,
        };
        while let Some(place) = self.outbox.waiting[at].first().copied() {
            let kept = match place.0.0 {
                Urgency::Spare => all / 4,
                _ => 0,
            };
            let free = all.saturating_sub(self.outbox.busy[at]);
            if all > 0 && free <= kept {
                return;
            }
            self.outbox.waiting[at].pop_first();
            let Some(order) = self.outbox.orders.get(&place.2) else {
                continue;
            };
            let one = (all / u64::from(self.store.saturates.max(1))).max(1);
            let room = u32::try_from(free.div_ceil(one)).unwrap_or(u32::MAX);
            let streams = self.streams(&order.what).min(room.max(1));
            let rate = self.takes(&order.what, streams);
            add(&mut self.outbox.busy[at], rate, "admitted bandwidth");
            if let Some(order) = self.outbox.orders.get_mut(&place.2) {
                (order.what.streams, order.rate) = (streams, rate);
            }
            self.set_out(place.2);
        }
    }

    /// A move is over: forgets it and admits the next.
    pub(crate) fn over(&mut self, id: MoveId) -> Option<MoveRecord> {
        let order = self.outbox.orders.remove(&id)?;
        if order.what.direct && way(&order.what) == 0 {
            sub(&mut self.outbox.own_reads, 1, "programs' reads");
        }
        if order.what.urgency == Urgency::Spare {
            sub(&mut self.outbox.spare, 1, "spare copies");
        }
        sub(&mut self.under_way, 1, "things under way");
        let at = way(&order.what);
        if let Some(place) = order.place {
            sub(
                &mut self.outbox.bytes[at],
                order.what.bytes,
                "bytes for the store",
            );
            if !self.outbox.waiting[at].remove(&place) {
                sub(&mut self.outbox.busy[at], order.rate, "admitted bandwidth");
            }
            self.admit(at);
        }
        if let Some(read) = &order.reads {
            self.unpin(read);
        }
        Some(order)
    }

    /// Somebody waits for a move who is in more of a hurry than who ordered it.
    pub(crate) fn hurry(&mut self, id: MoveId, urgency: Urgency) {
        let Some(order) = self.outbox.orders.get_mut(&id) else {
            return;
        };
        let at = way(&order.what);
        let Some(place) = order.place.filter(|p| p.0 > Reverse(urgency)) else {
            return;
        };
        if self.outbox.waiting[at].remove(&place) {
            let spare = u32::from(order.what.urgency == Urgency::Spare);
            sub(&mut self.outbox.spare, spare, "spare copies");
            let place = (Reverse(urgency), place.1, id);
            order.place = Some(place);
            order.what.urgency = urgency;
            self.outbox.waiting[at].insert(place);
        }
    }

    pub(crate) fn purpose_mut(&mut self, id: MoveId) -> Option<&mut MovePurpose> {
        self.outbox.orders.get_mut(&id).map(|o| &mut o.purpose)
    }

    /// Moves of an item towards nodes that the store has not admitted yet.
    pub(crate) fn waiting_for_store(&self, item: ItemId) -> Vec<MoveId> {
        let layouts = self.item(item).map(|i| i.layouts.iter());
        let coming = layouts.into_iter().flatten().filter_map(|l| l.coming);
        coming
            .filter(|id| {
                let place = self.outbox.orders.get(id).and_then(|o| o.place);
                place.is_some_and(|p| self.outbox.waiting[0].contains(&p))
            })
            .collect()
    }

    /// The moves that a job itself makes: its own reading and writing.
    pub(crate) fn moves_of(&self, job: JobId) -> Vec<MoveId> {
        let own = |o: &MoveRecord| {
            o.what.job == Some(job) && (o.what.direct || o.purpose == MovePurpose::Output(job))
        };
        let orders = self.outbox.orders.iter();
        orders.filter(|(_, o)| own(o)).map(|(id, _)| *id).collect()
    }

    /// The moves that read from, or bring to, any of these nodes.
    pub(crate) fn moves_touching(&self, node: tarn_types::id::NodeId) -> Vec<MoveId> {
        let touches = |w: &Where| matches!(w, Where::Nodes(n) if n.contains(&node));
        let orders = self.outbox.orders.iter();
        orders
            .filter(|(_, o)| touches(&o.what.from) || touches(&o.what.to))
            .map(|(id, _)| *id)
            .collect()
    }
}
