//! The catalog: workflows of owners, their datasets, versions and their content.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Gid, Owner, Part, Proof, Slice, SlurmJobId, Uid};
use tarn_types::hash::Hash;
use tarn_types::pattern::ScatterRule;
use tarn_types::units::Time;
use tarn_types::workflow::{self, Keep};

/// All that is known of datasets.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Catalog {
    pub(crate) workflows: BTreeMap<(Owner, String), WorkflowRecord>,
}

/// A workflow of one owner.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct WorkflowRecord {
    /// No further job will come.
    pub(crate) has_ended: bool,
    /// Jobs of it that were submitted, and have not been taken in.
    pub(crate) awaits: BTreeSet<SlurmJobId>,
    pub(crate) datasets: BTreeMap<String, DatasetRecord>,
}

/// A dataset.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct DatasetRecord {
    pub(crate) versions: BTreeMap<u32, VersionRecord>,
    /// The other readers.
    pub(crate) readers: BTreeSet<Owner>,
    /// Kept until then by its owner's wish.
    pub(crate) kept: Option<Time>,
    /// Which entries are of which rank, as a script has given it last.
    #[serde(default)]
    pub(crate) rule: Option<ScatterRule>,
}

/// A version.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct VersionRecord {
    pub(crate) state: VersionState,
    /// The job that makes or made it; none of a source.
    pub(crate) maker: Option<SlurmJobId>,
    /// Of version 0.
    pub(crate) source: Option<PathBuf>,
    /// Of a source, the number of the part that is its content now: each content that was found there has one.
    pub(crate) content: u32,
    /// Its parts are encrypted.
    #[serde(default)]
    pub(crate) is_sealed: bool,
    /// The content of its parts. Of a source, none before it was read.
    pub(crate) parts: BTreeMap<u32, Proof>,
    /// Of parts with the entries of some ranks only: these.
    #[serde(default)]
    pub(crate) ranks: BTreeMap<u32, Slice>,
    pub(crate) keep: Keep,
    /// When it was used last.
    pub(crate) used: Time,
    /// Its owner was notified that it will soon be removed.
    pub(crate) is_warned: bool,
}

/// How far a version is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum VersionState {
    /// Its job has not ended.
    Promised,
    /// Its parts are known.
    There,
    /// It will never be there.
    Failed(String),
}

/// A version's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct VersionKey {
    pub(crate) owner: Owner,
    pub(crate) workflow: String,
    pub(crate) dataset: String,
    pub(crate) version: u32,
}

impl VersionKey {
    pub(crate) fn part(&self, part: u32) -> Part {
        Part {
            owner: self.owner,
            workflow: self.workflow.clone(),
            dataset: self.dataset.clone(),
            version: self.version,
            part,
        }
    }

    pub(crate) fn of(part: &Part) -> Self {
        Self {
            owner: part.owner,
            workflow: part.workflow.clone(),
            dataset: part.dataset.clone(),
            version: part.version,
        }
    }
}

impl VersionRecord {
    /// Whether its parts are known.
    pub(crate) fn is_there(&self) -> bool {
        self.state == VersionState::There
    }
}

/// Bytes that something takes on a tier: file systems allocate blocks, and names take some too.
pub(crate) fn stored_size(proof: &Proof) -> u64 {
    let names = proof.entries.saturating_add(1).saturating_mul(4096);
    proof.bytes.saturating_add(names)
}

impl Catalog {
    pub(crate) fn version(&self, id: &VersionKey) -> Option<&VersionRecord> {
        let workflow = self.workflows.get(&(id.owner, id.workflow.clone()))?;
        workflow
            .datasets
            .get(&id.dataset)?
            .versions
            .get(&id.version)
    }

    pub(crate) fn version_mut(&mut self, id: &VersionKey) -> Option<&mut VersionRecord> {
        let key = (id.owner, id.workflow.clone());
        let datasets = &mut self.workflows.get_mut(&key)?.datasets;
        datasets.get_mut(&id.dataset)?.versions.get_mut(&id.version)
    }

    pub(crate) fn dataset(&self, id: &VersionKey) -> Option<&DatasetRecord> {
        let workflow = self.workflows.get(&(id.owner, id.workflow.clone()))?;
        workflow.datasets.get(&id.dataset)
    }

    pub(crate) fn dataset_mut(
        &mut self,
        owner: Owner,
        workflow: &str,
        dataset: &str,
    ) -> Result<&mut DatasetRecord, RequestError> {
        let found = self.workflows.get_mut(&(owner, workflow.to_owned()));
        let found = found.and_then(|w| w.datasets.get_mut(dataset));
        found.ok_or_else(|| {
            let text = format!("there is no dataset `{dataset}` of workflow `{workflow}`");
            RequestError::new(Code::NotFound, text)
        })
    }

    pub(crate) fn versions(&self) -> impl Iterator<Item = VersionKey> {
        self.workflows.iter().flat_map(|((owner, workflow), w)| {
            w.datasets.iter().flat_map(move |(dataset, d)| {
                d.versions.keys().map(move |version| VersionKey {
                    owner: *owner,
                    workflow: workflow.clone(),
                    dataset: dataset.clone(),
                    version: *version,
                })
            })
        })
    }

    /// Bytes of a version's content, as far as it is known.
    pub(crate) fn bytes_of(&self, version: &VersionKey) -> u64 {
        let parts = self.version(version).map(|v| &v.parts);
        let bytes = parts
            .into_iter()
            .flat_map(|parts| parts.values().map(|p| p.bytes));
        bytes.fold(0, u64::saturating_add)
    }

    pub(crate) fn parts_of(&self, version: &VersionKey) -> Vec<Part> {
        let known = self.version(version);
        let parts = known.into_iter().flat_map(|v| v.parts.keys());
        parts.map(|part| version.part(*part)).collect()
    }

    /// The hash of each of these parts, as it was published.
    pub(crate) fn hashes_of(&self, parts: &[Part]) -> Vec<Hash> {
        let of = |part: &Part| {
            let known = self.version(&VersionKey::of(part))?;
            known.parts.get(&part.part).map(|proof| proof.hash)
        };
        parts.iter().filter_map(of).collect()
    }

    pub(crate) fn proof_of(&self, part: &Part) -> Option<Proof> {
        let version = self.version(&VersionKey::of(part))?;
        if matches!(version.state, VersionState::Failed(_)) {
            return None;
        }
        version.parts.get(&part.part).cloned()
    }

    /// Whether a version is kept encrypted.
    pub(crate) fn is_sealed(&self, version: &VersionKey) -> bool {
        self.version(version).is_some_and(|v| v.is_sealed)
    }

    /// Whether a dataset has versions that are encrypted: then all that come are.
    pub(crate) fn was_sealed(&self, id: &VersionKey) -> bool {
        let versions = self.dataset(id).map(|d| &d.versions);
        versions.is_some_and(|all| all.values().any(|v| v.is_sealed))
    }

    /// Whether somebody may read a dataset.
    pub(crate) fn may_read(&self, id: &VersionKey, user: Uid, groups: &[Gid]) -> bool {
        let granted = |d: &DatasetRecord| d.readers.iter().any(|r| r.is(user, groups));
        id.owner.is(user, groups) || self.dataset(id).is_some_and(granted)
    }

    /// A dataset has one source, in all jobs that name it.
    pub(crate) fn same_source(
        &self,
        id: &VersionKey,
        dataset: &workflow::Dataset,
    ) -> Result<(), RequestError> {
        let known = self.version(&VersionKey {
            version: 0,
            ..id.clone()
        });
        let known = known.and_then(|v| v.source.as_ref());
        match (&dataset.of, known, &dataset.source) {
            (Some(of), Some(known), Some(named)) if known != named => {
                let text = format!(
                    "the source of `{of}` is `{}`, not `{}`: remove the dataset first (`tarn data rm {of}`), or give yours another name",
                    known.display(),
                    named.display()
                );
                Err(RequestError::new(Code::Invalid, text))
            }
            _ => Ok(()),
        }
    }

    /// It will never be there.
    pub(crate) fn fail_version(&mut self, id: &VersionKey, why: &str, now: Time) {
        if let Some(version) = self.version_mut(id) {
            version.used = now;
            version.state = VersionState::Failed(why.to_owned());
        }
    }

    /// Forgets a version, and its dataset and workflow if it was their last.
    pub(crate) fn remove(&mut self, id: &VersionKey) {
        let key = (id.owner, id.workflow.clone());
        let Some(workflow) = self.workflows.get_mut(&key) else {
            return;
        };
        if let Some(dataset) = workflow.datasets.get_mut(&id.dataset) {
            dataset.versions.remove(&id.version);
            if dataset.versions.is_empty() {
                workflow.datasets.remove(&id.dataset);
            }
        }
        if workflow.datasets.is_empty() {
            self.workflows.remove(&key);
        }
    }

    /// Datasets of an owner.
    pub(crate) fn count_datasets(&self, owner: Owner) -> usize {
        let own = self.workflows.range((owner, String::new())..);
        let own = own.take_while(|((o, _), _)| *o == owner);
        own.map(|(_, workflow)| workflow.datasets.len()).sum()
    }

    /// A job that workflows wait for does not come any more. Whether one of them has ended with that.
    pub(crate) fn stop_awaiting(&mut self, job: SlurmJobId) -> bool {
        let mut has_ended = false;
        for workflow in self.workflows.values_mut() {
            if workflow.awaits.remove(&job) && workflow.awaits.is_empty() {
                workflow.has_ended = true;
                has_ended = true;
            }
        }
        has_ended
    }
}
