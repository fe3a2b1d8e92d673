//! The moves that are not over: those under way, and those that wait because the external store is busy enough (admission
//! control after Herbein et al., HPDC 2016): more clients at once only slow each other down. The one account of the
//! store's bandwidth.

use super::items::{Pin, one_way};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::account::{add, sub};
use tarn_types::id::NodeId;
use tarn_types::policy::DataMode;
use tarn_types::site::{ItemId, JobId, Move, MoveId, Spread, Store, Urgency, Where};

/// Bytes from which on another stream is worth its while: a stream moves so much in the time it takes to begin. Less
/// needs no admission either: it would only wait.
const STREAM_BYTES: u64 = 16 << 20;

/// The purpose of a move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MovePurpose {
    /// Inputs of these jobs.
    Input(Vec<JobId>),
    /// Output that a job writes outside itself.
    Output(JobId),
    /// It has to be outside in the end.
    Deliver,
    /// It makes space where it is.
    Space,
    /// It may turn out useful.
    Spare,
}

#[derive(Debug, Clone)]
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
#[derive(Debug, Clone, Default)]
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

/// The limits of the moves of a site: its store, and how its policy handles data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MoveLimits {
    pub(crate) store: Store,
    pub(crate) data_mode: DataMode,
}

impl MoveLimits {
    /// The bandwidth of the store in the direction of a move, that of the nodes at its other end, and how many those are.
    fn rates(&self, m: &Move) -> (u64, u64, u32) {
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

    /// Streams that a move can use: as many as its bytes and its nodes' own limits are worth. A program that moves data
    /// itself is one stream a node.
    fn streams(&self, m: &Move) -> u32 {
        let most = self.store.saturates.max(1);
        let (all, client, nodes) = self.rates(m);
        if m.direct || self.data_mode != DataMode::Keep {
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

    /// The share of the store that a move with so many streams can take.
    fn takes(&self, m: &Move, streams: u32) -> u64 {
        let (all, client, _) = self.rates(m);
        let share = all / u64::from(self.store.saturates.max(1)) * u64::from(streams);
        match client {
            0 => share,
            client => share.min(client),
        }
    }

    /// Whether a move waits until the store has bandwidth for it.
    fn admits(&self, m: &Move) -> bool {
        let of_store = way(m) < 2 && !m.direct;
        self.data_mode == DataMode::Keep && of_store && m.bytes > STREAM_BYTES
    }
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
            let waiting = of_store().filter(|(place, _)| self.waiting[at].contains(place));
            assert_eq!(self.waiting[at].len(), waiting.count(), "moves that wait");
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

    /// Takes in a move, with the rank of its job and the pin at its source. Returns its number, and the moves that
    /// begin.
    pub(crate) fn order(
        &mut self,
        limits: MoveLimits,
        draft: MoveRequest,
        rank: u64,
        reads: Option<Pin>,
    ) -> (MoveId, Vec<Move>) {
        let id = MoveId(self.next);
        self.next += 1;
        let spread = match &draft.to {
            Where::Nodes(nodes) => one_way(nodes, draft.spread),
            Where::Outside => draft.spread,
        };
        let mut what = Move {
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
        let at = way(&what);
        let is_spare = u32::from(what.urgency == Urgency::Spare);
        add(&mut self.spare, is_spare, "spare copies");
        let is_own = u32::from(at == 0 && what.direct);
        add(&mut self.own_reads, is_own, "programs' reads");
        let place = limits
            .admits(&what)
            .then_some((Reverse(what.urgency), Reverse(rank), id));
        if place.is_none() {
            what.streams = limits.streams(&what);
        }
        let begins = what.clone();
        let order = MoveRecord {
            what,
            purpose: draft.purpose,
            reads,
            place,
            rate: 0,
        };
        self.orders.insert(id, order);
        let Some(place) = place else {
            return (id, vec![begins]);
        };
        add(&mut self.bytes[at], begins.bytes, "bytes for the store");
        self.waiting[at].insert(place);
        (id, self.admit(limits, at))
    }

    /// Admits waiting moves while the store has bandwidth that those before them cannot use, and returns them. Some is
    /// kept from moves that only may turn out useful.
    fn admit(&mut self, limits: MoveLimits, at: usize) -> Vec<Move> {
        let all = match at {
            0 => limits.store.rates.read,
            _ => limits.store.rates.write,
        };
        let mut begin = Vec::new();
        while let Some(place) = self.waiting[at].first().copied() {
            let kept = match place.0.0 {
                Urgency::Spare => all / 4,
                _ => 0,
            };
            // Admitted moves may take more than there is: the last one takes at least one stream.
            let free = all.saturating_sub(self.busy[at]);
            if all > 0 && free <= kept {
                break;
            }
            self.waiting[at].pop_first();
            let Some(order) = self.orders.get_mut(&place.2) else {
                debug_assert!(false, "move {} waits and is over", place.2.0);
                continue;
            };
            let one = (all / u64::from(limits.store.saturates.max(1))).max(1);
            let space = u32::try_from(free.div_ceil(one)).unwrap_or(u32::MAX);
            let streams = limits.streams(&order.what).min(space.max(1));
            let rate = limits.takes(&order.what, streams);
            add(&mut self.busy[at], rate, "admitted bandwidth");
            (order.what.streams, order.rate) = (streams, rate);
            begin.push(order.what.clone());
        }
        begin
    }

    /// A move is over: forgets it. The moves that begin instead.
    pub(crate) fn over(
        &mut self,
        limits: MoveLimits,
        id: MoveId,
    ) -> Option<(MoveRecord, Vec<Move>)> {
        let order = self.orders.remove(&id)?;
        let at = way(&order.what);
        if order.what.direct && at == 0 {
            sub(&mut self.own_reads, 1, "programs' reads");
        }
        if order.what.urgency == Urgency::Spare {
            sub(&mut self.spare, 1, "spare copies");
        }
        let Some(place) = order.place else {
            return Some((order, Vec::new()));
        };
        sub(&mut self.bytes[at], order.what.bytes, "bytes for the store");
        if !self.waiting[at].remove(&place) {
            sub(&mut self.busy[at], order.rate, "admitted bandwidth");
        }
        Some((order, self.admit(limits, at)))
    }

    /// A move gets a waiter that is more urgent than the one that ordered it.
    pub(crate) fn hurry(&mut self, id: MoveId, urgency: Urgency) {
        let Some(order) = self.orders.get_mut(&id) else {
            return;
        };
        let at = way(&order.what);
        let Some(place) = order.place.filter(|p| p.0 > Reverse(urgency)) else {
            return;
        };
        if self.waiting[at].remove(&place) {
            let spare = u32::from(order.what.urgency == Urgency::Spare);
            sub(&mut self.spare, spare, "spare copies");
            let place = (Reverse(urgency), place.1, id);
            order.place = Some(place);
            order.what.urgency = urgency;
            self.waiting[at].insert(place);
        }
    }

    pub(crate) fn purpose_mut(&mut self, id: MoveId) -> Option<&mut MovePurpose> {
        self.orders.get_mut(&id).map(|o| &mut o.purpose)
    }

    /// Whether a move towards nodes has not been admitted to the store yet.
    pub(crate) fn waits_to_come(&self, id: MoveId) -> bool {
        let place = self.orders.get(&id).and_then(|o| o.place);
        place.is_some_and(|p| self.waiting[0].contains(&p))
    }

    /// The moves that a job itself makes: its own reading and writing.
    pub(crate) fn moves_of(&self, job: JobId) -> Vec<MoveId> {
        let own = |o: &MoveRecord| {
            o.what.job == Some(job) && (o.what.direct || o.purpose == MovePurpose::Output(job))
        };
        let orders = self.orders.iter();
        orders.filter(|(_, o)| own(o)).map(|(id, _)| *id).collect()
    }

    /// The moves that read from, or bring to, a node. Those that wait for the store come first: if they are taken out in
    /// this order, none of them begins when another is over.
    pub(crate) fn moves_touching(&self, node: NodeId) -> Vec<MoveId> {
        let touches = |w: &Where| matches!(w, Where::Nodes(n) if n.contains(&node));
        let waits = |o: &MoveRecord| {
            let at = way(&o.what);
            o.place.is_some_and(|p| self.waiting[at].contains(&p))
        };
        let touching = self.orders.iter();
        let touching = touching.filter(|(_, o)| touches(&o.what.from) || touches(&o.what.to));
        let (waiting, under_way): (Vec<_>, Vec<_>) = touching.partition(|(_, o)| waits(o));
        let in_order = waiting.into_iter().chain(under_way);
        in_order.map(|(id, _)| *id).collect()
    }
}
