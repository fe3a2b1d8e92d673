//! The ledger of a node: whether it can be used, and how much of it is free. A simulated cluster, a run and a site keep their
//! nodes in one table of such ledgers, each with data of its own beside them.

use crate::account::sub;
use crate::compute::{Compute, Demand};
use crate::id::{NodeId, TierId, TierRef};
use crate::part::Place;
use crate::site::Mode;
use crate::space::TierSpace;
use crate::units::Time;
use std::fmt::Display;

/// Whether a node is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeAvailability {
    /// Jobs can run.
    Up,
    /// It sleeps, with its data.
    Asleep,
    /// It wakes up.
    Waking,
    /// It reboots into this memory mode.
    Booting(Mode),
    /// It does not answer. Its data counts as before when it is back.
    Away,
    /// It is gone with its data.
    Lost,
}

/// The ledger of a node. `S` has the accounts of its tiers, fast to slow: an array where all of them count as one.
///
/// # Examples
/// ```
/// use tarn_types::compute::Demand;
/// use tarn_types::id::TierId;
/// use tarn_types::ledger::NodeLedger;
/// use tarn_types::space::TierSpace;
///
/// let all = Demand { cores: 4, memory: 0, gpus: 0 };
/// let mut node = NodeLedger::new(all, vec![TierSpace::new(100)]);
/// node.occupy(TierId(0), 60);
/// assert!(node.can_run(all) && node.free_in(TierId(0)) == 40);
/// node.take(all);
/// assert!(node.is_usable() && !node.can_run(all));
/// ```
#[derive(Debug, Clone)]
pub struct NodeLedger<S = Vec<TierSpace>> {
    availability: NodeAvailability,
    /// It takes no new jobs until then, as far as is known; `Time::MAX` where it is not.
    closed: Option<Time>,
    compute: Compute,
    tiers: S,
}

impl<S: AsRef<[TierSpace]> + AsMut<[TierSpace]>> NodeLedger<S> {
    /// A node that is up.
    pub fn new(all: Demand, tiers: S) -> Self {
        Self {
            availability: NodeAvailability::Up,
            closed: None,
            compute: Compute::new(all),
            tiers,
        }
    }

    /// Whether it is there.
    pub fn availability(&self) -> NodeAvailability {
        self.availability
    }

    /// It falls asleep, wakes up, reboots, does not answer, or is up. Its table loses and regains it.
    ///
    /// # Panics
    /// In a debug build, when it is lost, or is to be.
    pub fn set_availability(&mut self, to: NodeAvailability) {
        let known = [self.availability, to];
        debug_assert!(!known.contains(&NodeAvailability::Lost), "{known:?}");
        self.availability = to;
    }

    /// Whether it is lost.
    pub fn is_lost(&self) -> bool {
        self.availability == NodeAvailability::Lost
    }

    /// Until when it takes no new jobs, if it is closed.
    pub fn closed(&self) -> Option<Time> {
        self.closed
    }

    /// It takes no new jobs until then, or takes some again.
    pub fn set_closed(&mut self, closed: Option<Time>) {
        self.closed = closed;
    }

    /// Whether jobs may begin here.
    pub fn is_usable(&self) -> bool {
        self.availability == NodeAvailability::Up && self.closed.is_none()
    }

    /// Its cores, memory and GPUs.
    pub fn all(&self) -> Demand {
        self.compute.all()
    }

    /// Those that nobody has.
    pub fn free(&self) -> Demand {
        self.compute.free()
    }

    /// Whether a job may begin here now that takes such a share.
    pub fn can_run(&self, share: Demand) -> bool {
        self.is_usable() && self.free().holds(share, 1)
    }

    /// A job gets a share. See [`Compute::take`].
    pub fn take(&mut self, share: Demand) {
        self.compute.take(share);
    }

    /// A job gives a share back. See [`Compute::give`].
    pub fn give(&mut self, share: Demand) {
        self.compute.give(share);
    }

    /// Takes the part of a demand that is free, and returns it.
    pub fn expect(&mut self, demand: Demand) -> Demand {
        self.compute.expect(demand)
    }

    /// It has other resources from now on; jobs have these shares of it, as far as there are so many.
    pub fn resize<'a>(&mut self, all: Demand, shares: impl Iterator<Item = &'a mut Demand>) {
        self.compute = Compute::new(all);
        shares.for_each(|share| *share = self.compute.expect(*share));
    }

    /// The account of a tier.
    pub fn tier(&self, tier: TierId) -> &TierSpace {
        &self.tiers.as_ref()[tier.at()]
    }

    fn tier_mut(&mut self, tier: TierId) -> &mut TierSpace {
        &mut self.tiers.as_mut()[tier.at()]
    }

    /// The account of all its tiers together.
    pub fn space(&self) -> TierSpace {
        let tiers = self.tiers.as_ref().iter();
        tiers.fold(TierSpace::default(), |sum, tier| sum.with(*tier))
    }

    /// Bytes of a tier that data can get; none of a lost node.
    pub fn free_in(&self, tier: TierId) -> u64 {
        match self.is_lost() {
            true => 0,
            false => self.tier(tier).free(),
        }
    }

    /// A tier has so many bytes now.
    pub fn set_capacity(&mut self, tier: TierId, bytes: u64) {
        self.tier_mut(tier).set_capacity(bytes);
    }

    /// Promises bytes of a tier.
    pub fn reserve(&mut self, tier: TierId, bytes: u64) {
        self.tier_mut(tier).reserve(bytes);
    }

    /// Takes a promise back, also of a lost node. See [`TierSpace::unreserve`].
    pub fn unreserve(&mut self, tier: TierId, bytes: u64) {
        self.tier_mut(tier).unreserve(bytes);
    }

    /// Counts data that comes to a tier.
    ///
    /// # Panics
    /// In a debug build, when the node is lost.
    pub fn occupy(&mut self, tier: TierId, bytes: u64) {
        debug_assert!(!self.is_lost(), "data comes to a lost node");
        self.tier_mut(tier).occupy(bytes);
    }

    /// Counts data that goes from a tier. That of a lost node has gone already. See [`TierSpace::vacate`].
    pub fn vacate(&mut self, tier: TierId, bytes: u64) {
        if !self.is_lost() {
            self.tier_mut(tier).vacate(bytes);
        }
    }

    /// It is lost with its data. False if it was lost already.
    fn lose(&mut self) -> bool {
        self.tiers
            .as_mut()
            .iter_mut()
            .for_each(TierSpace::lose_used);
        std::mem::replace(&mut self.availability, NodeAvailability::Lost) != NodeAvailability::Lost
    }

    /// It is there again. False if it was not lost.
    fn regain(&mut self, capacities: &[u64]) -> bool {
        if !self.is_lost() {
            return false;
        }
        self.availability = NodeAvailability::Up;
        for (tier, bytes) in self.tiers.as_mut().iter_mut().zip(capacities) {
            tier.set_capacity(*bytes);
        }
        true
    }

    /// Compares the ledger with the shares, the bytes used and the bytes promised of each tier, as they were counted again.
    ///
    /// # Panics
    /// When they differ: something was given back twice, or is never given back.
    pub fn check(
        &self,
        of: impl Display,
        shares: impl IntoIterator<Item = Demand>,
        used: &[u64],
        reserved: Option<&[u64]>,
    ) {
        let mut counted = Compute::new(self.all());
        shares.into_iter().for_each(|share| counted.take(share));
        assert_eq!(self.compute, counted, "cores, memory and GPUs of {of}");
        let tiers = self.tiers.as_ref().iter();
        let known: Vec<u64> = tiers.clone().map(TierSpace::used).collect();
        assert_eq!(known, used, "bytes used of {of}");
        if let Some(reserved) = reserved {
            let known: Vec<u64> = tiers.map(TierSpace::reserved).collect();
            assert_eq!(known, reserved, "bytes promised of {of}");
        }
    }
}

/// A node of a host, with its ledger.
pub trait HasLedger {
    /// The accounts of its tiers.
    type Tiers: AsRef<[TierSpace]> + AsMut<[TierSpace]>;

    /// Its ledger.
    fn ledger(&self) -> &NodeLedger<Self::Tiers>;

    /// Its ledger, to change it.
    fn ledger_mut(&mut self) -> &mut NodeLedger<Self::Tiers>;
}

/// The nodes of a host by number.
#[derive(Debug, Clone)]
pub struct NodeLedgers<N> {
    nodes: Vec<N>,
    /// How many of them are lost.
    lost: u32,
}

impl<N> Default for NodeLedgers<N> {
    fn default() -> Self {
        Self::from_iter([])
    }
}

impl<N> FromIterator<N> for NodeLedgers<N> {
    fn from_iter<I: IntoIterator<Item = N>>(nodes: I) -> Self {
        let nodes = nodes.into_iter().collect();
        Self { nodes, lost: 0 }
    }
}

impl<N: HasLedger> NodeLedgers<N> {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Their numbers.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<N> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &N)> {
        (0..).map(NodeId).zip(&self.nodes)
    }

    /// Those on which jobs may begin.
    pub fn usable(&self) -> impl Iterator<Item = (NodeId, &N)> {
        self.iter().filter(|(_, node)| node.ledger().is_usable())
    }

    /// A node, if there is one of this number.
    pub fn get(&self, id: NodeId) -> Option<&N> {
        self.nodes.get(id.at())
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &N {
        &self.nodes[id.at()]
    }

    /// A node, to change it.
    pub fn node_mut(&mut self, id: NodeId) -> &mut N {
        &mut self.nodes[id.at()]
    }

    /// The tiers of the nodes on which jobs may begin, together.
    pub fn space(&self) -> TierSpace {
        let spaces = self.usable().map(|(_, node)| node.ledger().space());
        spaces.fold(TierSpace::default(), TierSpace::with)
    }

    /// Whether a node is lost.
    pub fn is_lost(&self, id: NodeId) -> bool {
        self.get(id).is_some_and(|node| node.ledger().is_lost())
    }

    /// Whether a place is on a lost node.
    pub fn holds_lost(&self, place: &Place) -> bool {
        matches!(place, Place::Node(at) if self.is_lost(at.node))
    }

    /// How many nodes are lost.
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// A node is lost with its data; each share and promise is given back by its requester. False if it was lost already
    /// or is none.
    pub fn lose(&mut self, id: NodeId) -> bool {
        let node = self.nodes.get_mut(id.at());
        let is_new = node.is_some_and(|node| node.ledger_mut().lose());
        self.lost += u32::from(is_new);
        is_new
    }

    /// A lost node is there again, with tiers of these capacities and without data. False, and nothing changes, if it
    /// was not lost.
    pub fn regain(&mut self, id: NodeId, capacities: &[u64]) -> bool {
        let node = self.nodes.get_mut(id.at());
        let is_back = node.is_some_and(|node| node.ledger_mut().regain(capacities));
        sub(&mut self.lost, u32::from(is_back), "nodes lost");
        is_back
    }

    /// The account of a tier.
    pub fn tier(&self, at: TierRef) -> &TierSpace {
        self.node(at.node).ledger().tier(at.tier)
    }

    /// See [`NodeLedger::free_in`].
    pub fn free_in(&self, at: TierRef) -> u64 {
        self.node(at.node).ledger().free_in(at.tier)
    }

    /// See [`NodeLedger::set_capacity`].
    pub fn set_capacity(&mut self, at: TierRef, bytes: u64) {
        let ledger = self.node_mut(at.node).ledger_mut();
        ledger.set_capacity(at.tier, bytes);
    }

    /// See [`NodeLedger::reserve`].
    pub fn reserve(&mut self, at: TierRef, bytes: u64) {
        let ledger = self.node_mut(at.node).ledger_mut();
        ledger.reserve(at.tier, bytes);
    }

    /// See [`NodeLedger::unreserve`].
    pub fn unreserve(&mut self, at: TierRef, bytes: u64) {
        let ledger = self.node_mut(at.node).ledger_mut();
        ledger.unreserve(at.tier, bytes);
    }

    /// See [`NodeLedger::occupy`].
    pub fn occupy(&mut self, at: TierRef, bytes: u64) {
        let ledger = self.node_mut(at.node).ledger_mut();
        ledger.occupy(at.tier, bytes);
    }

    /// See [`NodeLedger::vacate`].
    pub fn vacate(&mut self, at: TierRef, bytes: u64) {
        let ledger = self.node_mut(at.node).ledger_mut();
        ledger.vacate(at.tier, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::{HasLedger, NodeAvailability, NodeLedger, NodeLedgers};
    use crate::compute::Demand;
    use crate::id::{NodeId, TierId};
    use crate::space::TierSpace;

    const FAST: TierId = TierId(0);
    const CORE: Demand = Demand {
        cores: 1,
        memory: 0,
        gpus: 0,
    };

    fn node() -> NodeLedger {
        let all = Demand { cores: 4, ..CORE };
        NodeLedger::new(all, vec![TierSpace::new(100), TierSpace::new(1000)])
    }

    impl HasLedger for NodeLedger {
        type Tiers = Vec<TierSpace>;

        fn ledger(&self) -> &NodeLedger {
            self
        }

        fn ledger_mut(&mut self) -> &mut NodeLedger {
            self
        }
    }

    #[test]
    fn a_lost_node_has_nothing_until_it_is_back() {
        let (id, mut nodes) = (NodeId(1), NodeLedgers::from_iter([node(), node()]));
        let node = nodes.node_mut(id);
        node.take(CORE);
        node.reserve(FAST, 10);
        node.occupy(FAST, 60);
        assert_eq!((node.space().free(), node.free_in(FAST)), (1030, 30));
        assert!(nodes.lose(id) && !nodes.lose(id) && !nodes.lose(NodeId(2)));
        assert_eq!((nodes.lost(), nodes.usable().count()), (1, 1));
        assert_eq!(nodes.space().capacity(), 1100);
        let node = nodes.node_mut(id);
        assert!(!node.is_usable() && node.free_in(FAST) == 0);
        // Its data is gone; the others give back what they have.
        node.vacate(FAST, 60);
        node.unreserve(FAST, 10);
        node.give(CORE);
        assert!(nodes.regain(id, &[50]) && !nodes.regain(id, &[70]));
        let node = nodes.node(id);
        assert_eq!((node.space().capacity(), node.free_in(FAST)), (1050, 50));
        node.check(id, [], &[0, 0], Some(&[0, 0]));
        assert_eq!(nodes.lost(), 0);
    }

    #[test]
    fn only_a_node_that_is_up_and_open_is_usable() {
        let mut node = node();
        assert!(node.is_usable() && node.can_run(CORE));
        node.set_closed(Some(5));
        assert!(!node.is_usable() && node.closed() == Some(5));
        node.set_closed(None);
        for other in [NodeAvailability::Asleep, NodeAvailability::Away] {
            node.set_availability(other);
            assert!(!node.is_usable() && !node.can_run(CORE));
        }
        node.set_availability(NodeAvailability::Up);
        node.take(Demand { cores: 4, ..CORE });
        assert!(node.is_usable() && !node.can_run(CORE));
    }

    #[test]
    fn shares_shrink_with_the_node() {
        let mut node = node();
        let mut shares = [Demand { cores: 3, ..CORE }, CORE];
        shares.iter().for_each(|share| node.take(*share));
        node.resize(Demand { cores: 3, ..CORE }, shares.iter_mut());
        assert_eq!((shares[0].cores, shares[1].cores), (3, 0));
        node.check("n1", shares, &[0, 0], None);
    }

    #[test]
    #[should_panic(expected = "bytes used of n1")]
    fn data_that_was_counted_twice_is_noticed() {
        let mut node = node();
        node.occupy(FAST, 10);
        node.occupy(FAST, 10);
        node.check("n1", [], &[10, 0], None);
    }

    #[test]
    #[should_panic(expected = "cores, memory and GPUs of n1")]
    fn a_share_that_is_never_given_back_is_noticed() {
        let mut node = node();
        node.take(CORE);
        node.check("n1", [], &[0, 0], None);
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "data comes to a lost node")]
    fn nothing_comes_to_a_lost_node() {
        let mut nodes = NodeLedgers::from_iter([node()]);
        nodes.lose(NodeId(0));
        nodes.node_mut(NodeId(0)).occupy(FAST, 10);
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "bytes reserved: 10 cannot be taken from 0")]
    fn a_double_release_is_caught() {
        let mut node = node();
        node.reserve(FAST, 10);
        node.unreserve(FAST, 10);
        node.unreserve(FAST, 10);
    }
}
