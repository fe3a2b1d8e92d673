//! The best places of a job, the nodes without space for it, and the needs that no node can ever meet.

use crate::model::catalog::{VersionKey, VersionState, stored_size};
use crate::model::job::{Makes, SiteJob, SiteJobPhase};
use crate::model::node::SiteNode;
use crate::stock::{Stock, StockedNode};
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Excluded, MAX_EXCLUDED, Part, PlacementAdvice};
use tarn_types::energy::{Draw, EnergyRank, ranks_of};
use tarn_types::ledger::HasLedger;
use tarn_types::placement::{NodeRank, best_nodes};
use tarn_types::space::TierSpace;

/// The state from which jobs are placed. Sums of declared sizes are capped: users write them.
pub(crate) struct Placement<'a> {
    pub(crate) stock: Stock<'a>,
    /// The power that nodes draw, and their cores.
    pub(crate) draws: &'a BTreeMap<String, (Draw, u32)>,
    /// Whether data is brought to where a job is expected.
    pub(crate) is_ahead: bool,
}

impl Placement<'_> {
    /// A job that wants more on a node than any has would wait for ever.
    pub(crate) fn check_size(&self, job: &SiteJob) -> Result<(), RequestError> {
        let ledgers = self.stock.ledgers();
        let known = ledgers.iter().filter(|(_, n)| n.node.capacity.is_some());
        let largest = known.map(|(_, n)| n.ledger().space().capacity()).max();
        let sizes = job.makes.iter().map(|makes| makes.size);
        let wants = sizes.fold(job.own_bytes(), u64::saturating_add);
        match largest {
            Some(largest) if wants > largest => Err(RequestError::new(
                Code::NoSpace,
                format!(
                    "it declares {wants} bytes on a node (`size`), checkpoints and partitions included, and no node has more than {largest} for tarn"
                ),
            )),
            _ => self.check_each(job),
        }
    }

    /// Checks that some store holds each output: the data that a job writes of one dataset is in one store.
    fn check_each(&self, job: &SiteJob) -> Result<(), RequestError> {
        let levels = self.stock.nodes.values().flat_map(|n| &n.levels);
        let largest = levels.map(|level| level.bytes).max();
        let over = |m: &&Makes| largest.is_some_and(|largest| m.size > largest);
        match job.makes.iter().find(over) {
            None => Ok(()),
            Some(makes) => {
                let text = format!(
                    "`{}` has a declared `size` of {} bytes, and no node has a store of that size",
                    makes.version.dataset, makes.size
                );
                Err(RequestError::new(Code::NoSpace, text))
            }
        }
    }

    /// A job that wishes a store that no node has was misspelt, or is another site's.
    pub(crate) fn check_tiers(&self, job: &SiteJob) -> Result<(), RequestError> {
        let levels = self.stock.nodes.values().flat_map(|n| &n.levels);
        let names: BTreeSet<&String> = levels.map(|level| &level.name).collect();
        let reads = job.reads.iter().filter_map(|r| r.tier.as_ref());
        let exported = job.partitions.iter().filter_map(|p| p.tier.as_ref());
        let makes = job.makes.iter().filter_map(|m| m.tier.as_ref());
        let kept = job.restart.iter().filter_map(|r| r.tier.as_ref());
        let mut wishes = reads.chain(makes).chain(exported).chain(kept);
        let Some(wish) = wishes.find(|wish| !names.is_empty() && !names.contains(wish)) else {
            return Ok(());
        };
        let named: Vec<&str> = names
            .iter()
            .map(|n| n.as_str())
            .filter(|n| !n.is_empty())
            .collect();
        let what = match named.is_empty() {
            true => "the nodes' stores have no names: leave `tier` out".into(),
            false => format!("the stores are {}", named.join(", ")),
        };
        let text = format!("`tier`: no node has a store `{wish}`; {what}");
        Err(RequestError::new(Code::Invalid, text))
    }

    /// The nodes that a job is not to get, among those that are short of space.
    pub(crate) fn excluded_of(&self, job: &SiteJob, short: &[(u64, String)]) -> Excluded {
        let (most, reads) = self.wants_of(job);
        let key = job.checkpoint_key();
        let is_full = |(spare, name): &&(u64, String)| {
            let Some(node) = self.stock.nodes.get(name) else {
                return false;
            };
            let here = reads.iter().filter(|(p, _)| node.has(p));
            let here: u64 = here.map(|(_, bytes)| bytes).sum();
            let kept = key.as_ref().and_then(|key| node.checkpoints.get(key));
            let here = here.saturating_add(kept.map_or(0, |(_, bytes)| *bytes));
            *spare < most.saturating_sub(here)
        };
        let full = short.iter().take_while(|(spare, _)| *spare < most);
        let full = full.filter(is_full).take(MAX_EXCLUDED);
        Excluded {
            own: job.excludes.clone().unwrap_or_default(),
            full: full.map(|(_, name)| name.clone()).collect(),
        }
    }

    /// Bytes that a job needs on each node that it gets, if none of its inputs is there; and the parts that it reads
    /// with theirs.
    pub(crate) fn wants_of(&self, job: &SiteJob) -> (u64, Vec<(Part, u64)>) {
        // The gate checks the needs of only the first of several nodes.
        let is_one = job.wants <= 1;
        let makes = job.makes.iter().filter(|m| is_one || m.rule.is_some());
        let writes = makes.map(|m| m.size);
        let writes = writes.fold(job.own_bytes(), u64::saturating_add);
        let reads = job.reads.iter().filter(|r| is_one || !r.on_first);
        let parts = reads.flat_map(|reads| {
            let parts = self.stock.catalog.version(&reads.version).into_iter();
            let parts = parts.flat_map(|version| &version.parts);
            parts.map(move |(part, proof)| (reads.version.part(*part), stored_size(proof)))
        });
        let parts: Vec<(Part, u64)> = parts.collect();
        let bytes = parts.iter().map(|(_, bytes)| *bytes);
        (bytes.fold(writes, u64::saturating_add), parts)
    }

    /// The nodes that cannot give so many bytes, even with the removals that could be had again, with the bytes that
    /// they can give; those with least first.
    pub(crate) fn short_of(&self, most: u64) -> Vec<(u64, String)> {
        if most == 0 {
            return Vec::new();
        }
        let ledgers = self.stock.ledgers();
        let mut coming: BTreeMap<&str, u64> = BTreeMap::new();
        for order in self.stock.orders.values() {
            *coming.entry(&order.node).or_default() += self.stock.brings(order);
        }
        let measured = ledgers.usable().filter_map(|(_, stocked)| {
            stocked.node.capacity.as_ref()?;
            let mut space = stocked.ledger().space();
            space.occupy(coming.get(stocked.name).copied().unwrap_or(0));
            Some((stocked, space))
        });
        let close = measured
            .filter(|(_, space)| !space.holds(most))
            .collect::<Vec<(&StockedNode, TierSpace)>>();
        if close.is_empty() {
            return Vec::new();
        }
        let used = self.stock.used();
        let mut copies: BTreeMap<&Part, u32> = BTreeMap::new();
        for part in self.stock.up().flat_map(|(_, node)| node.parts.keys()) {
            *copies.entry(part).or_default() += 1;
        }
        let again = |node: &SiteNode| -> u64 {
            let can_go = |part: &Part| {
                let version = match node.unused.contains(part) {
                    true => self.stock.catalog.version(&VersionKey::of(part)),
                    false => self.stock.unused(part, &used),
                };
                version.is_some_and(|v| v.source.is_some() || copies[part] > 1)
            };
            let parts = node.parts.iter().filter(|(part, _)| can_go(part));
            parts
                .map(|(part, bytes)| node.present_bytes(part, *bytes))
                .sum()
        };
        let spares = close.into_iter().map(|(stocked, mut space)| {
            space.vacate(again(stocked.node));
            (space.free(), stocked.name.to_owned())
        });
        let mut short: Vec<(u64, String)> = spares.filter(|(spare, _)| *spare < most).collect();
        short.sort_unstable();
        short
    }

    /// The nodes on which a job would best run, those that it must not use, and the jobs that it follows.
    pub(crate) fn advice(&self, job: &SiteJob) -> PlacementAdvice {
        let excluded = self.excluded_of(job, &self.short_of(self.wants_of(job).0));
        let is_possible = |name: &str| {
            let mut without = excluded.full.iter().chain(&excluded.own);
            without.all(|node| node != name)
        };
        let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
        let mut after = BTreeSet::new();
        for reads in &job.reads {
            let Some(version) = self.stock.catalog.version(&reads.version) else {
                continue;
            };
            if let (VersionState::Promised, Some(maker)) = (&version.state, version.maker) {
                after.insert(maker);
                // It is likely to run where its input is made.
                let maker = self.stock.jobs.get(&maker);
                for node in maker.iter().flat_map(|m| &m.nodes) {
                    *bytes.entry(node).or_default() += 1;
                }
            }
            for (part, proof) in &version.parts {
                let part = reads.version.part(*part);
                for (name, node) in self.stock.up() {
                    if node.has(&part) {
                        *bytes.entry(name).or_default() += proof.bytes.max(1);
                    }
                }
            }
        }
        let key = job.checkpoint_key();
        let continues = |name: &str| {
            let node = self.stock.nodes.get(name).filter(|node| node.is_up);
            let known = key.as_ref().zip(node);
            known.is_some_and(|(key, node)| node.checkpoints.contains_key(key))
        };
        for name in self.stock.nodes.keys().filter(|name| continues(name)) {
            bytes.entry(name).or_default();
        }
        bytes.retain(|name, _| is_possible(name));
        let wants = job.wants.max(1) as usize;
        let is_outside = bytes.is_empty() && !job.reads.is_empty();
        let names = match is_outside {
            // The job that makes it has no nodes yet: this one is advised again when it is made.
            true if !after.is_empty() => Vec::new(),
            // It will be brought from outside: all nodes are equal, but for their power, and for their jobs.
            true => {
                let up = self.stock.up().map(|(name, _)| &name[..]);
                self.equals(up.filter(|name| is_possible(name)).collect(), wants)
            }
            false => {
                let rank = |(name, bytes)| NodeRank {
                    restart: u8::from(!continues(name)),
                    ..NodeRank::holding(name, bytes)
                };
                self.best(bytes.into_iter().map(rank).collect(), wants)
            }
        };
        let beside = job.beside.and_then(|other| self.stock.jobs.get(&other));
        PlacementAdvice {
            prefer: names,
            require: beside.map_or_else(Vec::new, |other| other.nodes.clone()),
            after: after.into_iter().collect(),
            exclude: job.is_anywhere().then_some(excluded),
            is_again: job.is_again && !job.has_wish,
        }
    }

    /// So many of nodes of which none has data of a job: those that draw least; none if they do not differ, or that is
    /// not known. If the job's inputs are brought ahead, so many all the same: those that fewest jobs have or are
    /// expected on.
    fn equals(&self, nodes: Vec<&str>, wanted: usize) -> Vec<String> {
        let draws = self.draws_of(&nodes);
        if draws.windows(2).any(|two| two[0] != two[1]) {
            return self.best(nodes.into_iter().map(NodeRank::of).collect(), wanted);
        }
        if !self.is_ahead {
            return Vec::new();
        }
        let live = self.stock.jobs.values();
        let live = live.filter(|job| job.phase != SiteJobPhase::Ended);
        let mut jobs: BTreeMap<&str, usize> = BTreeMap::new();
        for name in live.flat_map(|job| job.nodes.iter().chain(&job.ahead)) {
            *jobs.entry(name).or_default() += 1;
        }
        let load = |name: &str| jobs.get(name).copied().unwrap_or(0);
        let nodes = nodes.into_iter().map(|name| NodeRank {
            load: load(name),
            ..NodeRank::of(name)
        });
        self.best(nodes.collect(), wanted)
    }

    fn draws_of(&self, nodes: &[&str]) -> Vec<EnergyRank> {
        let draw = |name: &&str| self.draws.get(*name).copied().unwrap_or_default();
        ranks_of(&nodes.iter().map(draw).collect::<Vec<_>>())
    }

    /// So many of the best nodes; of those that are alike, those that draw least (docs/admin/energy.md).
    fn best(&self, mut nodes: Vec<NodeRank<&str>>, wanted: usize) -> Vec<String> {
        let names: Vec<&str> = nodes.iter().map(|rank| rank.node).collect();
        for (node, draw) in nodes.iter_mut().zip(self.draws_of(&names)) {
            node.draw = draw;
        }
        let best = best_nodes(nodes, wanted).into_iter();
        best.map(str::to_owned).collect()
    }
}
