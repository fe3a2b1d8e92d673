//! Data that outlives jobs: its owner, its readers, the notices about it. docs/guide/on-a-site.md, "Data that outlives
//! jobs".

use crate::MAX_LISTED;
use crate::model::catalog::{DatasetRecord, VersionKey, VersionRecord, VersionState};
use crate::model::job::SiteJob;
use crate::model::node::SiteNode;
use crate::model::requester::Requester;
use crate::state::Site;
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{
    ControllerReply, DatasetFilter, DatasetInfo, OrphanInfo, Owner, SlurmJobId, StoreContent, Uid,
};
use tarn_types::units::Elapsed;
use tarn_types::workflow::Keep;

impl Site {
    /// Goes as if its owner had wished nothing.
    pub(crate) fn release(
        &mut self,
        owner: Owner,
        workflow: &str,
        dataset: &str,
    ) -> Result<(), RequestError> {
        let found = self.catalog.dataset_mut(owner, workflow, dataset)?;
        found.kept = None;
        for version in found.versions.values_mut() {
            version.keep = Keep::UntilConsumed;
        }
        self.settle();
        Ok(())
    }

    /// The datasets that a requester may see.
    pub(crate) fn datasets(
        &self,
        requester: &Requester<'_>,
        which: &DatasetFilter,
    ) -> ControllerReply {
        let mut infos = Vec::new();
        let needed = self.needed();
        for ((owner, workflow), found) in &self.catalog.workflows {
            if which.owner.is_some_and(|o| o != *owner)
                || which.workflow.as_ref().is_some_and(|w| w != workflow)
            {
                continue;
            }
            for (name, dataset) in &found.datasets {
                let id = VersionKey {
                    owner: *owner,
                    workflow: workflow.clone(),
                    dataset: name.clone(),
                    version: 0,
                };
                if which.dataset.as_ref().is_some_and(|d| d != name)
                    || !self.catalog.may_read(&id, requester.user, requester.groups)
                        && requester.user != 0
                {
                    continue;
                }
                for version in dataset.versions.keys() {
                    let version = *version;
                    let id = VersionKey {
                        version,
                        ..id.clone()
                    };
                    infos.extend(self.info(requester, &id, dataset, &needed));
                }
                if infos.len() > MAX_LISTED {
                    let text = format!(
                        "more than {MAX_LISTED} versions: name whose datasets you mean (`tarn data ls --of USER`)"
                    );
                    return ControllerReply::Refused(RequestError::new(Code::Invalid, text));
                }
            }
        }
        ControllerReply::Datasets(infos)
    }

    /// The jobs that need each version, as far as there are any.
    fn needed(&self) -> BTreeMap<VersionKey, Vec<SlurmJobId>> {
        let mut needed: BTreeMap<VersionKey, Vec<SlurmJobId>> = BTreeMap::new();
        for (number, job) in &self.jobs {
            for id in job.needs_of(&self.catalog) {
                let jobs = needed.entry(id.clone()).or_default();
                if jobs.last() != Some(number) {
                    jobs.push(*number);
                }
            }
        }
        needed
    }

    fn info(
        &self,
        requester: &Requester<'_>,
        id: &VersionKey,
        dataset: &DatasetRecord,
        needed: &BTreeMap<VersionKey, Vec<SlurmJobId>>,
    ) -> Option<DatasetInfo> {
        let version = dataset.versions.get(&id.version)?;
        let has = |n: &SiteNode| {
            let mut parts = version.parts.keys();
            parts.any(|part| n.parts.contains_key(&id.part(*part)))
        };
        let places = |n: &SiteNode| {
            let parts = version
                .parts
                .keys()
                .filter_map(|part| n.places.get(&id.part(*part)));
            let all: BTreeSet<&String> = parts.flatten().collect();
            // Fast to slow.
            let levels = n.levels.iter().filter(|level| all.contains(&level.name));
            let names = levels.map(|level| level.name.clone());
            names.filter(|name| !name.is_empty()).collect::<Vec<_>>()
        };
        let stores = self.nodes.iter().map(|(name, n)| (name.clone(), places(n)));
        let stores = stores.filter(|(_, stores)| !stores.is_empty()).collect();
        let nodes = self.nodes.iter().filter(|(_, n)| has(n));
        let may_change = requester.may_change(id.owner).is_ok();
        let jobs = needed.get(id).into_iter().flatten();
        let is_theirs = |job: &SlurmJobId| {
            let job = self.jobs.get(job);
            may_change || job.is_some_and(|j| j.user == requester.user)
        };
        Some(DatasetInfo {
            owner: id.owner,
            workflow: id.workflow.clone(),
            dataset: id.dataset.clone(),
            version: id.version,
            bytes: version.parts.values().map(|p| p.bytes).sum(),
            nodes: nodes.map(|(name, _)| name.clone()).collect(),
            stores,
            awaits: version.maker.filter(|_| !VersionRecord::is_there(version)),
            until: self.until(id),
            ends_soon: !needed.contains_key(id) && self.ends_soon(id),
            failed: match &version.state {
                VersionState::Failed(why) => Some(why.clone()),
                _ => None,
            },
            readers: match may_change {
                true => dataset.readers.iter().copied().collect(),
                false => Vec::new(),
            },
            jobs: jobs.copied().filter(is_theirs).collect(),
        })
    }

    /// Whether a version that no job needs is removed soon.
    pub(crate) fn ends_soon(&self, id: &VersionKey) -> bool {
        let is_there = self
            .catalog
            .version(id)
            .is_some_and(VersionRecord::is_there);
        let until = self.until(id);
        is_there && until.is_some_and(|until| until <= self.now.saturating_add(self.config.warning))
    }

    /// Notices of a job's data that will soon be removed, for its user.
    pub(crate) fn ending(&self, job: &SiteJob) -> Vec<String> {
        let reads = job.reads.iter().map(|r| &r.version);
        let all = reads.chain(job.makes.iter().map(|m| &m.version));
        let is_needed = |id: &VersionKey| self.jobs.values().any(|j| j.needs(&self.catalog, id));
        let soon = all.filter(|id| self.ends_soon(id) && !is_needed(id));
        soon.map(|id| self.ending_text(id)).collect()
    }

    fn ending_text(&self, id: &VersionKey) -> String {
        let left = self.until(id).unwrap_or(0).saturating_sub(self.now);
        format!(
            "version {} of `{}/{}` is removed in {} if nobody uses it (`tarn data keep`)",
            id.version,
            id.workflow,
            id.dataset,
            Elapsed(left)
        )
    }

    /// Tells of leases that have come near their end, once each.
    pub(crate) fn warn(&mut self, id: &VersionKey) {
        let is_soon = self.ends_soon(id);
        let is_new = self.catalog.version_mut(id).is_some_and(|version| {
            let is_new = is_soon && !version.is_warned;
            version.is_warned = is_soon;
            is_new
        });
        if is_new {
            let text = self.ending_text(id);
            self.notify_owner(id.owner, text);
        }
    }

    /// The orphans that are somebody's.
    pub(crate) fn orphans(&self, requester: &Requester<'_>) -> Vec<OrphanInfo> {
        let all = self.nodes.iter().flat_map(|(name, node)| {
            let orphans = node.orphans.iter();
            orphans.map(move |((user, held), (bytes, since))| OrphanInfo {
                node: name.clone(),
                owner: owner_of(*user, held),
                what: match held {
                    StoreContent::Part(part) | StoreContent::Copy(part, _) => part.to_string(),
                    StoreContent::Job(job) => format!("folders of job {job}"),
                    StoreContent::Checkpoints(folder) => format!(
                        "checkpoints of step `{}` (workflow `{}`)",
                        folder.step, folder.workflow
                    ),
                },
                bytes: *bytes,
                since: *since,
            })
        });
        let own = all.filter(|o| requester.may_change(o.owner).is_ok());
        own.take(MAX_LISTED).collect()
    }

    /// Removes the orphans that are somebody's.
    pub(crate) fn remove_orphans(&mut self, requester: &Requester<'_>) -> Vec<OrphanInfo> {
        let removed = self.orphans(requester);
        let mut gone = Vec::new();
        for (name, node) in &mut self.nodes {
            let own = |(user, held): &(Uid, StoreContent)| {
                requester.may_change(owner_of(*user, held)).is_ok() && gone.len() < MAX_LISTED
            };
            let own: Vec<_> = node
                .orphans
                .keys()
                .filter(|key| own(key))
                .cloned()
                .collect();
            for key in own {
                node.orphans.remove(&key);
                gone.push((name.clone(), key));
            }
        }
        for (name, (user, held)) in gone {
            self.doom(&name, user, held);
        }
        removed
    }
}

fn owner_of(user: Uid, held: &StoreContent) -> Owner {
    match held {
        StoreContent::Part(part) | StoreContent::Copy(part, _) => part.owner,
        StoreContent::Job(_) | StoreContent::Checkpoints(_) => Owner::User(user),
    }
}
