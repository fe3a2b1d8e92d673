//! Events that cannot be: what they name is checked before anything changes.

use super::state::PlannerState;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tarn_types::id::NodeId;
use tarn_types::site::{Item, ItemId, Job, JobId, SiteEventError};

/// Numbers of jobs and of items that there may be: their tables are as long as the highest number (8 bytes each).
const MOST_NUMBERS: u32 = 1 << 26;
/// Bytes that an item may have, 64 PiB: the items of a node can be summed up.
const MOST_BYTES: u64 = 1 << 56;

impl PlannerState {
    /// Whether the machine has a node.
    pub(crate) fn known_node(&self, node: NodeId) -> Result<(), SiteEventError> {
        match node.at() < self.nodes.all.count() {
            true => Ok(()),
            false => Err(SiteEventError::UnknownNode(node)),
        }
    }

    /// Whether jobs or data can be on these nodes.
    pub(crate) fn may_be_on(&self, nodes: &[NodeId]) -> Result<(), SiteEventError> {
        for node in nodes {
            self.known_node(*node)?;
            if self.nodes.node(*node).ledger.is_lost() {
                return Err(SiteEventError::NodeIsLost(*node));
            }
        }
        let mut sorted = nodes.to_vec();
        sorted.sort_unstable();
        let twice = sorted.windows(2).find(|pair| pair[0] == pair[1]);
        twice.map_or(Ok(()), |pair| Err(SiteEventError::NodeTwice(pair[0])))
    }

    pub(crate) fn may_have_bytes(&self, id: ItemId, bytes: u64) -> Result<(), SiteEventError> {
        match bytes <= MOST_BYTES {
            true => Ok(()),
            false => Err(SiteEventError::TooManyBytes(id)),
        }
    }

    /// Whether jobs and items can be submitted.
    pub(crate) fn may_come(
        &self,
        jobs: &[(JobId, Arc<Job>)],
        items: &[(ItemId, Item)],
    ) -> Result<(), SiteEventError> {
        for (id, item) in items {
            if id.0 >= MOST_NUMBERS {
                return Err(SiteEventError::NumberTooHigh(id.0));
            }
            self.may_have_bytes(*id, item.bytes)?;
        }
        let mut new = BTreeSet::new();
        for (id, job) in jobs {
            if id.0 >= MOST_NUMBERS {
                return Err(SiteEventError::NumberTooHigh(id.0));
            }
            if job.nodes == 0 {
                return Err(SiteEventError::EmptyRequest(*id));
            }
            if self.job(*id).is_some() || !new.insert(*id) {
                return Err(SiteEventError::KnownJob(*id));
            }
        }
        self.scripts_end(jobs)
    }

    /// Every script has a first job.
    fn scripts_end(&self, jobs: &[(JobId, Arc<Job>)]) -> Result<(), SiteEventError> {
        let continuing = jobs.iter().filter_map(|(id, j)| Some((*id, j.continues?)));
        let new: BTreeMap<JobId, JobId> = continuing.collect();
        // Jobs that were submitted before may continue one that was withdrawn and comes again.
        let before = |id: &JobId| {
            let known = || self.job(*id).and_then(|s| s.job.continues);
            new.get(id).copied().or_else(known)
        };
        let mut good = BTreeSet::new();
        for id in new.keys() {
            let mut seen = BTreeSet::new();
            let mut at = Some(*id);
            while let Some(job) = at.filter(|job| !good.contains(job)) {
                if !seen.insert(job) {
                    return Err(SiteEventError::ContinuesItself(*id));
                }
                at = before(&job);
            }
            good.append(&mut seen);
        }
        Ok(())
    }
}
