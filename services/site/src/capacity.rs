//! Room on nodes: what no node can ever give, and which nodes have none for a job.

use crate::MAX_ADVISED;
use crate::model::catalog::stored_size;
use crate::model::job::{JobState, Makes, Phase};
use crate::model::node::Node;
use crate::state::Site;
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::local::{Code, Refusal};
use tarn_proto::site::{Excluded, Job, MAX_EXCLUDED, Part};

impl Site {
    /// A job that wants more on a node than any has would wait for ever.
    pub(crate) fn check_size(&self, job: &JobState) -> Result<(), Refusal> {
        let known = self.nodes.values().filter(|n| n.capacity.is_some());
        let largest = known.map(Node::capacity).max();
        let sizes = job.makes.iter().map(|makes| makes.size);
        let wants = sizes.fold(job.partition_bytes(), u64::saturating_add);
        match largest {
            Some(largest) if wants > largest => Err(Refusal::new(
                Code::NoSpace,
                format!(
                    "it declares {wants} bytes on a node (`size`), partitions included, and no node has more than {largest} for tarn"
                ),
            )),
            _ => self.check_each(job),
        }
    }

    /// What a job writes of one dataset lies in one store.
    fn check_each(&self, job: &JobState) -> Result<(), Refusal> {
        let levels = self.nodes.values().flat_map(|n| &n.levels);
        let largest = levels.map(|level| level.bytes).max();
        let over = |m: &&Makes| largest.is_some_and(|largest| m.size > largest);
        match job.makes.iter().find(over) {
            None => Ok(()),
            Some(makes) => {
                let text = format!(
                    "`{}` has a declared `size` of {} bytes, and no node has a store of that size",
                    makes.version.dataset, makes.size
                );
                Err(Refusal::new(Code::NoSpace, text))
            }
        }
    }

    /// A job that wishes a store that no node has was misspelt, or is another site's.
    pub(crate) fn check_tiers(&self, job: &JobState) -> Result<(), Refusal> {
        let levels = self.nodes.values().flat_map(|n| &n.levels);
        let names: BTreeSet<&String> = levels.map(|level| &level.name).collect();
        let reads = job.reads.iter().filter_map(|r| r.tier.as_ref());
        let lent = job.partitions.iter().filter_map(|p| p.tier.as_ref());
        let makes = job.makes.iter().filter_map(|m| m.tier.as_ref());
        let mut wishes = reads.chain(makes).chain(lent);
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
        Err(Refusal::new(Code::Invalid, text))
    }

    /// Jobs that wait for nodes, at most [`MAX_ADVISED`], those with the lowest numbers first: which nodes each is not to get, which changes with
    /// what is stored there, and those without room of which Slurm was told when the job was taken in.
    pub fn excluded(&self) -> Vec<(Job, Excluded, Vec<String>)> {
        let jobs = self.jobs.iter().map(|(id, job)| (*id, job));
        let waiting = jobs.filter(|(_, job)| job.phase == Phase::Waiting && job.is_anywhere());
        let waiting: Vec<(Job, &JobState)> = waiting.take(MAX_ADVISED).collect();
        let most = waiting.iter().map(|(_, job)| self.wants_of(job).0).max();
        let short = self.short_of(most.unwrap_or(0));
        let excluded = waiting.into_iter();
        excluded
            .map(|(id, job)| (id, self.excluded_of(job, &short), job.full.clone()))
            .collect()
    }

    /// The nodes that nobody misses: they answer, hold nothing, and no job has them.
    pub fn spare(&self) -> Vec<String> {
        let live = self.jobs.values().filter(|job| job.phase != Phase::Ended);
        let taken: BTreeSet<&String> = live.flat_map(|job| &job.nodes).collect();
        let ordered: BTreeSet<&String> = self.orders.values().map(|o| &o.node).collect();
        let is_empty = |node: &Node| {
            node.is_up
                && node.parts.is_empty()
                && node.promised.is_empty()
                && node.doomed.is_empty()
                && node.moving.is_empty()
        };
        let empty = self.nodes.iter().filter(|(_, node)| is_empty(node));
        let spare = empty.filter(|(name, _)| !taken.contains(name) && !ordered.contains(name));
        spare.map(|(name, _)| name.clone()).collect()
    }

    /// The nodes that a job is not to get, among those that are short of room.
    pub(crate) fn excluded_of(&self, job: &JobState, short: &[(u64, String)]) -> Excluded {
        let (most, reads) = self.wants_of(job);
        let is_full = |(spare, name): &&(u64, String)| {
            let Some(node) = self.nodes.get(name) else {
                return false;
            };
            let here = reads.iter().filter(|(p, _)| node.has(p));
            let here: u64 = here.map(|(_, bytes)| bytes).sum();
            *spare < most.saturating_sub(here)
        };
        let full = short.iter().take_while(|(spare, _)| *spare < most);
        let full = full.filter(is_full).take(MAX_EXCLUDED);
        Excluded {
            own: job.excludes.clone().unwrap_or_default(),
            full: full.map(|(_, name)| name.clone()).collect(),
        }
    }

    /// Bytes that a job needs on each node that it gets, if nothing of what it reads is there; and the parts that it reads with theirs.
    pub(crate) fn wants_of(&self, job: &JobState) -> (u64, Vec<(Part, u64)>) {
        // What only the first of several nodes needs is the gate's to see.
        let is_one = job.wants <= 1;
        let makes = job.makes.iter().filter(|m| is_one || m.rule.is_some());
        let writes = makes.map(|m| m.size);
        let writes = writes.fold(job.partition_bytes(), u64::saturating_add);
        let reads = job.reads.iter().filter(|r| is_one || !r.on_first);
        let parts = reads.flat_map(|reads| {
            let parts = self.catalog.version(&reads.version).into_iter();
            let parts = parts.flat_map(|version| &version.parts);
            parts.map(move |(part, proof)| (reads.version.part(*part), stored_size(proof)))
        });
        let parts: Vec<(Part, u64)> = parts.collect();
        let bytes = parts.iter().map(|(_, bytes)| *bytes);
        (bytes.fold(writes, u64::saturating_add), parts)
    }

    /// The nodes that cannot give so many bytes, even by what could be had again, with what they can give; those with least first.
    pub(crate) fn short_of(&self, most: u64) -> Vec<(u64, String)> {
        if most == 0 {
            return Vec::new();
        }
        let up = || self.nodes.iter().filter(|(_, node)| node.is_up);
        let mut coming: BTreeMap<&str, u64> = BTreeMap::new();
        for order in self.orders.values() {
            *coming.entry(&order.node).or_default() += self.brings(order);
        }
        let measured = up().filter_map(|(name, node)| {
            node.capacity.as_ref()?;
            let capacity = node.capacity();
            let comes = coming.get(&name[..]).copied().unwrap_or(0);
            Some((name, node, capacity, node.taken().saturating_add(comes)))
        });
        let close = measured
            .filter(|(_, _, capacity, taken)| capacity.saturating_sub(*taken) < most)
            .collect::<Vec<(&String, &Node, u64, u64)>>();
        if close.is_empty() {
            return Vec::new();
        }
        let used = self.used();
        let mut copies: BTreeMap<&Part, u32> = BTreeMap::new();
        for part in up().flat_map(|(_, node)| node.parts.keys()) {
            *copies.entry(part).or_default() += 1;
        }
        let again = |node: &Node| -> u64 {
            let can_go = |part: &Part| {
                let version = self.unused(part, &used);
                version.is_some_and(|v| v.source.is_some() || copies[part] > 1)
            };
            let parts = node.parts.iter().filter(|(part, _)| can_go(part));
            parts.map(|(_, bytes)| bytes).sum()
        };
        let spares = close.into_iter().map(|(name, node, capacity, taken)| {
            let kept = taken.saturating_sub(again(node));
            (capacity.saturating_sub(kept), name.clone())
        });
        let mut short: Vec<(u64, String)> = spares.filter(|(spare, _)| *spare < most).collect();
        short.sort_unstable();
        short
    }
}
