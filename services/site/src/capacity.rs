//! Space on nodes: the needs that no node can ever meet, and the nodes without space for a job.

use crate::MAX_ADVISED;
use crate::model::job::{SiteJob, SiteJobPhase};
use crate::model::node::SiteNode;
use crate::state::Site;
use std::collections::BTreeSet;
use tarn_proto::site::{Excluded, SlurmJobId};

impl Site {
    /// Jobs that wait for nodes, at most [`MAX_ADVISED`], those with the lowest numbers first: the nodes that each is
    /// not to get, which change with the data stored there.
    pub fn excluded(&self) -> Vec<(SlurmJobId, Excluded)> {
        let jobs = self.jobs.iter().map(|(id, job)| (*id, job));
        let waiting =
            jobs.filter(|(_, job)| job.phase == SiteJobPhase::Queued && job.is_anywhere());
        let waiting: Vec<(SlurmJobId, &SiteJob)> = waiting.take(MAX_ADVISED).collect();
        let most = waiting
            .iter()
            .map(|(_, job)| self.placement().wants_of(job).0)
            .max();
        let short = self.placement().short_of(most.unwrap_or(0));
        let excluded = waiting.into_iter();
        excluded
            .map(|(id, job)| (id, self.placement().excluded_of(job, &short)))
            .collect()
    }

    /// The user of a job has changed which nodes it must not get.
    pub(crate) fn excludes(&mut self, job: SlurmJobId, nodes: Vec<String>) {
        let known = self.jobs.get_mut(&job);
        if let Some(known) = known.filter(|known| known.excludes.is_some()) {
            known.excludes = Some(nodes);
        }
    }

    /// The nodes that nobody misses: they answer, hold nothing, and no job has them.
    pub fn spare(&self) -> Vec<String> {
        let live = self
            .jobs
            .values()
            .filter(|job| job.phase != SiteJobPhase::Ended);
        let taken: BTreeSet<&String> = live.flat_map(|job| &job.nodes).collect();
        let ordered: BTreeSet<&String> = self.orders.values().map(|o| &o.node).collect();
        let is_empty = |node: &SiteNode| {
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
}
