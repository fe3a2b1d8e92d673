//! The content of the stores of nodes, its users, and the parts on their way: a view for decisions about space.

use crate::model::catalog::{Catalog, VersionKey, VersionRecord, stored_size};
use crate::model::job::{NodeJobTask, SiteJob, SiteJobPhase};
use crate::model::node::{SiteNode, SiteNodeStore};
use crate::model::orders::{OrderPurpose, OrderTable, Ordered};
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Owner, Part, SlurmJobId, StoreContent};
use tarn_types::ledger::{HasLedger, NodeLedger, NodeLedgers};
use tarn_types::retry::RetryRule;
use tarn_types::space::TierSpace;
use tarn_types::units::{SECOND, Time};

/// A move between stores that failed is not tried again for 300 s.
pub(crate) const MOVES: RetryRule = RetryRule::with_pauses(300 * SECOND, 300 * SECOND);

/// A view of the state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stock<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) nodes: &'a BTreeMap<String, SiteNode>,
    pub(crate) jobs: &'a BTreeMap<SlurmJobId, SiteJob>,
    pub(crate) orders: &'a OrderTable,
    pub(crate) now: Time,
}

/// A node, with its ledger as it is now.
pub(crate) struct StockedNode<'a> {
    pub(crate) name: &'a str,
    pub(crate) node: &'a SiteNode,
    ledger: NodeLedger,
}

impl HasLedger for StockedNode<'_> {
    type Tiers = Vec<TierSpace>;

    fn ledger(&self) -> &NodeLedger {
        &self.ledger
    }

    fn ledger_mut(&mut self) -> &mut NodeLedger {
        &mut self.ledger
    }
}

impl<'a> Stock<'a> {
    /// All nodes with their ledgers, in the order of their names.
    pub(crate) fn ledgers(&self) -> NodeLedgers<StockedNode<'a>> {
        let nodes = self.nodes.iter();
        let nodes = nodes.map(|(name, node)| StockedNode {
            name,
            node,
            ledger: node.ledger(),
        });
        nodes.collect()
    }

    /// The nodes that answer.
    pub(crate) fn up(&self) -> impl Iterator<Item = (&'a String, &'a SiteNode)> + use<'a> {
        self.nodes.iter().filter(|(_, node)| node.is_up)
    }

    /// The account of a node's store with the parts that are coming to it.
    pub(crate) fn space_in(&self, name: &str, node: &SiteNode, level: &SiteNodeStore) -> TierSpace {
        let mut space = node.space_in(level);
        let own = |o: &&Ordered| o.node == name && o.store == level.name;
        for order in self.orders.values().filter(own) {
            space.occupy(self.brings(order));
        }
        for (part, moving) in &node.moving {
            let places = node.places.get(part);
            let is_there = places.is_some_and(|all| all.contains(&moving.to));
            if moving.to == level.name && !is_there {
                space.occupy(node.parts.get(part).copied().unwrap_or(0));
            }
        }
        space
    }

    /// Bytes of a node's store that nothing has, and nothing is coming for.
    pub(crate) fn free_in(&self, name: &str, node: &SiteNode, level: &SiteNodeStore) -> u64 {
        self.space_in(name, node, level).free()
    }

    /// The versions that jobs work with where they are stored, or that are being read for one that is expected: these parts do not go from their
    /// places. Those of `but` alone may.
    pub(crate) fn pinned(&self, but: Option<SlurmJobId>) -> BTreeSet<VersionKey> {
        let mut all = BTreeSet::new();
        for (id, job) in self.jobs {
            let is_here = (SiteJobPhase::Staging..SiteJobPhase::Ended).contains(&job.phase)
                || job.is_bringing;
            if !is_here || but == Some(*id) {
                continue;
            }
            // A version from which its output begins is copied at the gate.
            let is_gone = |is_changed| is_changed && job.phase > SiteJobPhase::Staging;
            let reads = job.reads.iter().filter(|r| !is_gone(r.is_changed));
            all.extend(reads.map(|r| r.version.clone()));
            all.extend(job.makes.iter().map(|m| m.version.clone()));
        }
        all
    }

    /// Whether a part could not be brought to this store a moment ago.
    pub(crate) fn is_stuck(&self, node: &SiteNode, part: &Part, to: &str) -> bool {
        let at = node.stuck.get(&(part.clone(), to.to_owned()));
        at.is_some_and(|at| MOVES.is_pausing(*at, self.now))
            || node
                .doomed
                .iter()
                .any(|(_, held)| *held == StoreContent::part_in(part, to))
    }

    /// Bytes that an order brings to its node.
    pub(crate) fn brings(&self, order: &Ordered) -> u64 {
        let OrderPurpose::Job(job, NodeJobTask::Fetch(part), _) = &order.why else {
            return 0;
        };
        let id = VersionKey::of(part);
        let known = self
            .catalog
            .version(&id)
            .and_then(|v| v.parts.get(&part.part));
        // Of a source that nobody has read: the size that its reader gives.
        let declared_size = || {
            let reads = &self.jobs.get(job)?.reads;
            reads.iter().find(|r| r.version == id).map(|r| r.size)
        };
        known.map_or_else(|| declared_size().unwrap_or(0), stored_size)
    }

    /// The versions that jobs read or make which have not ended.
    pub(crate) fn used(&self) -> BTreeSet<VersionKey> {
        let all = self
            .jobs
            .values()
            .flat_map(|job| job.needs_of(self.catalog));
        all.cloned().collect()
    }

    /// The version that a part is of, if no job uses it.
    pub(crate) fn unused(
        &self,
        part: &Part,
        used: &BTreeSet<VersionKey>,
    ) -> Option<&'a VersionRecord> {
        let id = VersionKey::of(part);
        self.catalog.version(&id).filter(|_| !used.contains(&id))
    }

    /// Bytes of copies that were brought ahead of jobs, that no job had yet, and beside which there is another one that counts.
    pub(crate) fn unused_of(&self, owner: Owner) -> u64 {
        let has = |other: &SiteNode, part: &Part| other.parts.contains_key(part);
        let mut bytes = 0u64;
        for (name, node) in self.nodes {
            let own = node.unused.iter().filter(|part| part.owner == owner);
            for part in own {
                let mut others = self.nodes.iter().filter(|(other, _)| *other != name);
                let counts = |other: &str, node: &SiteNode| {
                    has(node, part) && (!node.unused.contains(part) || *other < **name)
                };
                if others.any(|(other, node)| counts(other, node)) {
                    bytes = bytes.saturating_add(node.parts.get(part).copied().unwrap_or(0));
                }
            }
        }
        bytes
    }

    /// Whether a copy on a node was brought ahead of a job, and nothing reads it: it makes way for a job with this node.
    pub(crate) fn makes_way(&self, node: &SiteNode, part: &Part) -> bool {
        if !node.unused.contains(part) {
            return false;
        }
        let version = VersionKey::of(part);
        let reads = |order: &Ordered| match &order.why {
            OrderPurpose::Job(job, step, _) if step.has_peers() => {
                let job = self.jobs.get(job);
                job.is_some_and(|job| job.reads.iter().any(|r| r.version == version))
            }
            _ => false,
        };
        !self.orders.values().any(reads)
    }

    /// Why a node cannot give so many bytes.
    pub(crate) fn no_space(&self, name: &str, bytes: u64) -> RequestError {
        let node = self.nodes.get(name).into_iter();
        let stores: Vec<String> = node
            .flat_map(|node| node.present().map(move |level| (node, level)))
            .map(|(node, level)| {
                let free = self.free_in(name, node, level);
                let taken = level.bytes.saturating_sub(free);
                let of = if level.name.is_empty() {
                    String::new()
                } else {
                    format!(" in store `{}`", level.name)
                };
                format!("{taken} of {}{of}", level.bytes)
            })
            .collect();
        let text = format!(
            "node {name} has no space: {bytes} bytes are needed, {} are taken by data that is used or kept (`tarn data ls`)",
            stores.join(", ")
        );
        RequestError::new(Code::NoSpace, text)
    }

    /// Whether something is going from a store.
    pub(crate) fn is_being_freed(&self, name: &str, node: &SiteNode, store: &str) -> bool {
        let mut orders = self.orders.values().filter(|o| o.node == name);
        let reclaims = orders.any(|o| match &o.why {
            OrderPurpose::Reclaim(_, StoreContent::Copy(_, at)) => at == store,
            OrderPurpose::Reclaim(..) => true,
            _ => false,
        });
        let mut moving = node.moving.values();
        reclaims || moving.any(|m| m.from == store && !m.keep)
    }

    /// The versions that jobs need which have not ended, each with the first of them.
    pub(crate) fn used_by(&self) -> BTreeMap<VersionKey, SlurmJobId> {
        let mut all = BTreeMap::new();
        for (id, job) in self.jobs {
            for version in job.needs_of(self.catalog) {
                all.entry(version.clone()).or_insert(*id);
            }
        }
        all
    }
}
