//! How an input best comes to the nodes of a job, and about how long that takes.

use super::items::{ItemState, each};
use super::outbox::MoveRequest;
use super::rates::{duration, slower};
use super::state::PlannerState;
use tarn_types::id::NodeId;
use tarn_types::policy::DataMode;
use tarn_types::site::{ItemId, JobNodes, MoveId, Rates, Spread, Where};
use tarn_types::units::Nanos;

/// Jobs that follow the same item and are counted: with more, the copies come from each other.
const MOST_FOLLOWERS: usize = 8;

/// How a job's input comes to its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InputRoute {
    /// It is there: this layout.
    There(JobNodes, Spread),
    /// It is on its way there.
    Coming(MoveId, JobNodes, Spread),
    /// To be brought from here; so many bytes travel.
    From(Where, u64),
    /// It is on its way to another node, from where it is best taken then.
    Follow,
    /// It is nowhere.
    Nowhere,
}

/// Bytes of an item on all of these nodes together.
fn on_all(bytes: u64, nodes: &[NodeId], spread: Spread) -> u64 {
    match spread {
        Spread::Share => bytes,
        Spread::Whole => bytes.saturating_mul(nodes.len() as u64),
    }
}

impl PlannerState {
    /// How an input comes to these nodes, and about how long that takes from now.
    pub(crate) fn way(&self, id: ItemId, nodes: &[NodeId], spread: Spread) -> (InputRoute, Nanos) {
        let Some(item) = self.item(id) else {
            return (InputRoute::Nowhere, 0);
        };
        let serving = || item.layouts.iter().filter(|l| l.serves(nodes, spread));
        if let Some(l) = serving().find(|l| l.present()) {
            return (InputRoute::There(l.nodes.clone(), l.spread), 0);
        }
        if let Some((l, coming)) = serving().find_map(|l| Some((l, l.coming?))) {
            let wait = l.eta.saturating_sub(self.now);
            return (InputRoute::Coming(coming, l.nodes.clone(), l.spread), wait);
        }
        let all = on_all(item.item.bytes, nodes, spread);
        let outside = item.outside.then(|| self.inward(all, nodes.len()));
        let ours = self.policy.data_mode == DataMode::Keep;
        let peer = ours.then(|| self.best_peer(item, nodes, all)).flatten();
        let follow = ours.then(|| self.may_follow(item, nodes)).flatten();
        match (peer, outside) {
            (Some((from, bytes, wait)), o) if o.is_none_or(|o| wait <= o) => {
                (InputRoute::From(Where::Nodes(from), bytes), wait)
            }
            (_, Some(wait)) => match follow {
                Some(later) if later < wait => (InputRoute::Follow, later),
                _ => (InputRoute::From(Where::Outside, all), wait),
            },
            (_, None) => match follow {
                Some(later) => (InputRoute::Follow, later),
                None => (InputRoute::Nowhere, 0),
            },
        }
    }

    /// A program reads an input by itself from the best place that has it now: it waits for no copy that has yet to come.
    /// False if none has it.
    pub(crate) fn take_from_best(&self, draft: &mut MoveRequest) -> bool {
        let Where::Nodes(to) = &draft.to else {
            return true;
        };
        match self.way(draft.item, to, draft.spread).0 {
            InputRoute::From(from, bytes) => (draft.from, draft.bytes) = (from, bytes),
            InputRoute::There(nodes, _) => draft.from = Where::Nodes(nodes),
            InputRoute::Coming(..) | InputRoute::Follow | InputRoute::Nowhere => {
                let Some(item) = self.item(draft.item) else {
                    return false;
                };
                let all = on_all(item.item.bytes, to, draft.spread);
                let ours = self.policy.data_mode == DataMode::Keep;
                let peer = || ours.then(|| self.best_peer(item, to, all)).flatten();
                (draft.from, draft.bytes) = match item.outside {
                    true => (Where::Outside, all),
                    false => match peer() {
                        Some((from, bytes, _)) => (Where::Nodes(from), bytes),
                        None => return false,
                    },
                };
            }
        }
        true
    }

    /// About how long it takes until `bytes` are in from outside, behind moves that are ordered already.
    pub(crate) fn inward(&self, bytes: u64, nodes: usize) -> Nanos {
        let queued = bytes.saturating_add(self.outbox.ahead(self.store.rates.read, bytes));
        self.alone(bytes, nodes)
            .max(duration(queued, self.store.rates.read))
    }

    /// The same on an idle store.
    pub(crate) fn alone(&self, bytes: u64, nodes: usize) -> Nanos {
        let client = self.store.client.read.saturating_mul(nodes as u64);
        duration(bytes, client).max(duration(bytes, self.store.rates.read))
    }

    /// About how long programs on so many nodes read these bytes by themselves, beside those that do so now.
    pub(crate) fn reads_outside(&self, bytes: u64, nodes: usize) -> Nanos {
        let others = self.outbox.own_reads();
        self.by_itself(
            bytes,
            nodes,
            others,
            self.store.rates.read,
            self.store.client.read,
        )
    }

    /// The same for writing.
    pub(crate) fn writes_outside(&self, bytes: u64, nodes: usize) -> Nanos {
        self.by_itself(
            bytes,
            nodes,
            0,
            self.store.rates.write,
            self.store.client.write,
        )
    }

    /// One stream a node.
    fn by_itself(&self, bytes: u64, nodes: usize, others: u32, all: u64, client: u64) -> Nanos {
        let streams = u32::try_from(nodes).unwrap_or(u32::MAX).max(1);
        let sharing = others.saturating_add(streams).max(self.store.saturates);
        let share = u128::from(all) * u128::from(streams) / u128::from(sharing);
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        let client = client.saturating_mul(u64::from(streams));
        duration(bytes, share).max(duration(bytes, client))
    }

    /// Whether reading an item straight from the store takes less time than reading it from a tier: a program reads with
    /// one stream a node.
    pub(crate) fn outside_is_faster(&self, id: ItemId, nodes: &[NodeId]) -> bool {
        let (Some(item), Some(first)) = (self.item(id), nodes.first()) else {
            return false;
        };
        let tier = self
            .nodes
            .kind(*first)
            .tiers
            .first()
            .map_or(0, |t| t.rates.read);
        if !item.outside || tier == 0 || self.policy.data_mode != DataMode::Keep {
            return false;
        }
        let bytes = each(item.item.bytes, nodes.len(), Spread::Share);
        // Jobs that read by themselves now share the store with it, and there are more of them while it reads.
        let readers = self.outbox.own_reads().saturating_mul(2) + 1;
        let streams = self.store.saturates.max(1).max(readers);
        let stream = self.store.rates.read / u64::from(streams);
        let outside = duration(bytes, self.store.client.read).max(duration(bytes, stream));
        let free = self.outbox.ahead(self.store.rates.read, u64::MAX) == 0;
        free && outside < duration(bytes, tier)
    }

    /// Bytes a second that a node takes from others, and sends them: its link's, or its tier's if that is slower.
    fn takes_and_sends(&self, node: NodeId) -> (u64, u64) {
        let kind = self.nodes.kind(node);
        let tier = kind.tiers.first().map_or(Rates::default(), |t| t.rates);
        let takes = slower(kind.link.read, tier.write);
        (takes, slower(kind.link.write, tier.read))
    }

    /// The layout from which the least has to travel; of equals the one with the fewest readers.
    fn best_peer(
        &self,
        item: &ItemState,
        nodes: &[NodeId],
        all: u64,
    ) -> Option<(JobNodes, u64, Nanos)> {
        let present = item.layouts.iter().filter(|l| l.present());
        let best = present.min_by_key(|l| {
            let senders = l.nodes.len().max(1) as u64;
            let part = 1_000_000 - l.overlap(nodes).min(1_000_000);
            (
                part,
                u64::from(l.pins) * 64 / senders,
                l.nodes.first().copied(),
            )
        })?;
        let part = 1_000_000 - best.overlap(nodes).min(1_000_000);
        let travels = u128::from(all) * u128::from(part) / 1_000_000;
        let travels = u64::try_from(travels).unwrap_or(u64::MAX);
        let (_, sends) = self.takes_and_sends(*best.nodes.first()?);
        let (takes, _) = self.takes_and_sends(*nodes.first()?);
        // Others that read it now share its links.
        let readers = u64::from(best.pins) + 1;
        let send = duration(
            travels.saturating_mul(readers),
            sends.saturating_mul(best.nodes.len() as u64),
        );
        let take = duration(travels, takes.saturating_mul(nodes.len() as u64));
        Some((best.nodes.clone(), travels, send.max(take)))
    }

    /// It comes to another node anyway: about when it could be here from there.
    fn may_follow(&self, item: &ItemState, nodes: &[NodeId]) -> Option<Nanos> {
        let coming = item.layouts.iter().filter(|l| !l.present());
        let eta = coming.map(|l| l.eta).min()?;
        let (takes, sends) = self.takes_and_sends(*nodes.first()?);
        let first = eta.saturating_sub(self.now);
        let hop = duration(item.item.bytes, slower(takes, sends));
        // Those that follow already share the sender's link.
        let readers = item.readers.iter();
        let before = readers.filter(|r| self.job(**r).is_some_and(|j| j.follows));
        let hops = hop.saturating_mul(1 + before.take(MOST_FOLLOWERS).count() as u64);
        Some(first.saturating_add(hops))
    }
}
