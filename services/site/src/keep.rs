//! How long data stays, and which data goes when a job needs its space.

use crate::event::SiteServiceAction;
use crate::model::catalog::{VersionKey, VersionRecord, VersionState};
use crate::model::job::{SiteJob, SiteJobPhase};
use crate::model::orders::OrderPurpose;
use crate::state::Site;
use std::collections::BTreeSet;
use tarn_proto::site::{Owner, Part, SlurmJobId, StoreContent, Uid, Work};
use tarn_types::units::{Nanos, Time};
use tarn_types::workflow::Keep;

/// How long unknown content stays in a node's store.
const ORPHAN: Nanos = 7 * 24 * 3600 * 1_000_000_000;
/// How long a job that has ended is remembered.
const MEMORY: Nanos = 24 * 3600 * 1_000_000_000;

impl Site {
    /// Time has passed.
    pub(crate) fn expire(&mut self) {
        let versions: Vec<VersionKey> = self.catalog.versions().collect();
        let used = self.stock().used();
        for id in versions {
            if used.contains(&id) {
                continue;
            }
            match self.is_over(&id) {
                true => {
                    self.notify_lease_end(&id);
                    self.drop_version(&id);
                }
                false => self.warn(&id),
            }
        }
        self.expire_checkpoints();
        self.forget_orphans();
        self.forget_jobs();
        self.expire_flows();
        self.advance_waiting();
    }

    /// When the lease of data is over that was used last at this time.
    pub(crate) fn lease_end(&self, used: Time) -> Time {
        used.saturating_add(self.config.lease)
    }

    /// When a version may go that no job uses. `None` for never; 0 for at once.
    pub(crate) fn until(&self, id: &VersionKey) -> Option<Time> {
        let workflow = self
            .catalog
            .workflows
            .get(&(id.owner, id.workflow.clone()))?;
        let dataset = workflow.datasets.get(&id.dataset)?;
        let version = dataset.versions.get(&id.version)?;
        let kept = dataset.kept.unwrap_or(0);
        if matches!(version.state, VersionState::Failed(_)) {
            // Its readers are to learn why; its parts, if there are any, go with it.
            return Some(version.used.saturating_add(MEMORY));
        }
        let lease = self.lease_end(version.used);
        let until = match (version.keep, workflow.has_ended) {
            (Keep::Forever, _) => return None,
            (Keep::For(time), true) => version.used.saturating_add(time),
            (Keep::For(time), false) => lease.max(version.used.saturating_add(time)),
            (Keep::UntilConsumed | Keep::Workflow, true) => 0,
            (_, false) => lease,
        };
        Some(until.max(kept))
    }

    fn is_over(&self, id: &VersionKey) -> bool {
        let keeps_all = self.catalog.workflows.get(&(id.owner, id.workflow.clone()));
        let of_workflow = self
            .catalog
            .version(id)
            .is_some_and(|v| v.keep == Keep::Workflow);
        let is_live = of_workflow
            && keeps_all.is_some_and(|_| {
                let mut jobs = self.jobs.values();
                jobs.any(|j| {
                    j.phase != SiteJobPhase::Ended
                        && j.owner == id.owner
                        && j.workflow == id.workflow
                })
            });
        !is_live && self.until(id).is_some_and(|until| until <= self.now)
    }

    /// A version is no more: wherever its parts are, they are removed.
    pub(crate) fn drop_version(&mut self, id: &VersionKey) {
        let holders: Vec<(String, Part)> = self
            .nodes
            .iter()
            .flat_map(|(name, node)| {
                let first = id.part(0);
                let own = node.parts.range(first..).map(|(part, _)| part.clone());
                let own = own.take_while(|part| VersionKey::of(part) == *id);
                own.map(|part| (name.clone(), part)).collect::<Vec<_>>()
            })
            .collect();
        for (node, part) in holders {
            self.remove_part(&node, &part);
        }
        self.catalog.remove(id);
    }

    /// All nodes' copies of a part go.
    pub(crate) fn remove_everywhere(&mut self, part: &Part) {
        let have = self
            .nodes
            .iter()
            .filter(|(_, n)| n.parts.contains_key(part));
        let have: Vec<String> = have.map(|(name, _)| name.clone()).collect();
        for node in have {
            self.remove_part(&node, part);
        }
    }

    /// A node's copies of a part go.
    fn remove_part(&mut self, name: &str, part: &Part) {
        let node = self.nodes.get(name);
        let places = node.and_then(|node| node.places.get(part)).cloned();
        self.displace(name, part);
        for store in places.unwrap_or_else(|| BTreeSet::from([String::new()])) {
            self.doom_copy((name, &store), part);
        }
    }

    /// A copy is to be removed from a store of a node.
    pub(crate) fn doom_copy(&mut self, (name, store): (&str, &str), part: &Part) {
        let user = Self::worker_of(part.owner);
        self.doom(name, user, StoreContent::part_in(part, store));
    }

    /// The user whose worker removes an owner's data, when no job's user is at hand.
    pub(crate) fn worker_of(owner: Owner) -> Uid {
        match owner {
            Owner::User(uid) => uid,
            // The node knows the user who has written it there.
            Owner::Project(_) => 0,
        }
    }

    /// A lease is over, of something that was there.
    fn notify_lease_end(&mut self, id: &VersionKey) {
        if self
            .catalog
            .version(id)
            .is_some_and(VersionRecord::is_there)
        {
            let (version, workflow, dataset) = (id.version, &id.workflow, &id.dataset);
            let text = format!(
                "version {version} of `{workflow}/{dataset}` is removed: its lease is over"
            );
            self.notify_owner(id.owner, text);
        }
    }

    pub(crate) fn notify_owner(&mut self, owner: Owner, text: String) {
        self.actions.push(SiteServiceAction::Notify { owner, text });
    }

    /// Something is to be removed there, as soon as the node answers.
    pub(crate) fn doom(&mut self, name: &str, user: Uid, held: StoreContent) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        node.doomed.insert((user, held.clone()));
        let is_away = match &held {
            StoreContent::Copy(_, store) => node.level(store).is_none_or(|level| level.is_away),
            _ => false,
        };
        if node.is_up && !is_away {
            let work = Work::Remove(vec![held.clone()]);
            self.work(name, OrderPurpose::Reclaim(user, held), (user, user), work);
        }
    }

    /// Whether a job was promised space on some node.
    pub(crate) fn has_promise(&self, id: SlurmJobId) -> bool {
        let mut promised = self.nodes.values().flat_map(|n| n.promised.keys());
        promised.any(|(job, _)| *job == id)
    }

    /// A job has left its nodes.
    pub(crate) fn ended(&mut self, id: SlurmJobId) {
        for node in self.nodes.values_mut() {
            node.end_job(id);
        }
        self.end_checkpoints(id);
        self.close_record(id);
        // The next job of its step may wait for them.
        let is_followed = self.jobs.get(&id).is_some_and(|job| job.restart.is_some());
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let reads: Vec<VersionKey> = job.reads.iter().map(|r| r.version.clone()).collect();
        let now = self.now;
        for version in reads {
            if let Some(version) = self.catalog.version_mut(&version) {
                version.used = now;
            }
        }
        self.settle();
        if is_followed {
            self.advance_waiting();
        }
        if self.arriving.contains_key(&id) {
            self.take_in();
        }
    }

    /// Drops data that waited for a job that is over, or for a workflow's end.
    pub(crate) fn settle(&mut self) {
        let ended: Vec<VersionKey> = self
            .catalog
            .versions()
            .filter(|id| {
                let key = (id.owner, id.workflow.clone());
                self.catalog
                    .workflows
                    .get(&key)
                    .is_some_and(|w| w.has_ended)
            })
            .collect();
        let used = self.stock().used();
        for id in ended {
            if !used.contains(&id) && self.is_over(&id) {
                self.drop_version(&id);
            }
        }
    }

    /// Jobs that have ended long ago are forgotten; when there are too many, the oldest are sooner.
    pub(crate) fn forget_jobs(&mut self) {
        let now = self.now;
        let is_old = |j: &SiteJob| now.saturating_sub(j.changed) >= MEMORY;
        self.jobs
            .retain(|_, j| j.phase != SiteJobPhase::Ended || !is_old(j));
        if self.jobs.len() < crate::MAX_JOBS {
            return;
        }
        let ended = self
            .jobs
            .iter()
            .filter(|(_, j)| j.phase == SiteJobPhase::Ended);
        let mut ended: Vec<(Time, SlurmJobId)> = ended.map(|(id, j)| (j.changed, *id)).collect();
        ended.sort_unstable();
        for (_, id) in ended.into_iter().take(crate::MAX_JOBS / 10) {
            self.jobs.remove(&id);
        }
    }

    fn forget_orphans(&mut self) {
        let now = self.now;
        let old: Vec<(String, Uid, StoreContent)> = self
            .nodes
            .iter()
            .flat_map(|(name, node)| {
                let old = node.orphans.iter();
                let old = old.filter(|(_, (_, since))| now.saturating_sub(*since) >= ORPHAN);
                old.map(|((user, held), _)| (name.clone(), *user, held.clone()))
                    .collect::<Vec<_>>()
            })
            .collect();
        for (name, user, held) in old {
            if let Some(node) = self.nodes.get_mut(&name) {
                node.orphans.remove(&(user, held.clone()));
            }
            self.doom(&name, user, held);
        }
    }
}
