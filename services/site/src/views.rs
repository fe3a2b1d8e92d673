//! The views of a job's tasks: of encrypted datasets a copy in clear, in the job's own memory.

use crate::checkpoints;
use crate::model::catalog::{VersionKey, stored_size};
use crate::model::job::{NodeJobTask, Reads, SiteJob};
use crate::partitions;
use crate::slices::slice_key;
use crate::state::Site;
use tarn_proto::site::{Mount, NodeOrder, Owner, Part, SlurmJobId, Work};

/// Bytes of a job's memory beyond what its datasets take: folders.
const FOLDERS: u64 = 1 << 20;

impl Site {
    /// Bytes of the job's memory on a node, if this version of those that it uses is in clear there.
    pub(crate) fn memory_for(
        &self,
        job: &SiteJob,
        node: &str,
        version: &VersionKey,
    ) -> Option<u64> {
        if !self.catalog.is_sealed(version) {
            return None;
        }
        let is_here = |nodes: &[String]| nodes.iter().any(|name| name == node);
        let reads = job.reads.iter().filter(|r| is_here(job.readers(r)));
        let read = reads.filter_map(|r| self.catalog.version(&r.version));
        let read = read.filter(|v| v.is_sealed);
        let read: u64 = read.flat_map(|v| v.parts.values()).map(stored_size).sum();
        let makes = job.makes.iter().filter(|m| is_here(job.writers(m)));
        let makes = makes.filter(|m| self.catalog.is_sealed(&m.version));
        let made: u64 = makes.map(|m| m.size).sum();
        Some(read.saturating_add(made).saturating_add(FOLDERS))
    }

    /// Merges data of several parts, and opens sealed data. Returns whether that is done everywhere.
    pub(crate) fn view(&mut self, id: SlurmJobId, job: &SiteJob, reads: &Reads) -> bool {
        let parts = self.catalog.parts_of(&reads.version);
        if parts.len() < 2 && !self.catalog.is_sealed(&reads.version) {
            return true;
        }
        let mut is_whole = true;
        for node in job.readers(reads) {
            let dataset = reads.name.clone();
            let step = NodeJobTask::View(dataset.clone());
            let is_begun = job.is_done(node, &step) || self.orders.is_under_way(id, node, &step);
            let store = self.store_to_merge((id, is_begun), node, reads, &parts);
            let work = Work::View {
                store,
                job: id,
                dataset: dataset.clone(),
                hashes: self.catalog.hashes_of(&parts),
                parts: parts.clone(),
                memory: self.memory_for(job, node, &reads.version),
            };
            let order = NodeOrder::Do {
                user: Self::rights(reads.version.owner, job.user),
                group: job.group,
                work: Box::new(work),
            };
            is_whole &= self.once(id, job, node, step, order);
        }
        is_whole
    }

    /// The store in which a dataset of several parts is merged for a job: where all of them are stored; it stays that one.
    fn store_to_merge(
        &mut self,
        (id, is_begun): (SlurmJobId, bool),
        node: &str,
        reads: &Reads,
        parts: &[Part],
    ) -> String {
        let Some(node) = self.nodes.get_mut(node) else {
            return String::new();
        };
        let common = node.common(parts).map(|level| level.name.clone());
        let key = (id, reads.name.clone());
        if !is_begun {
            node.merged.remove(&key);
        }
        let merged = node.merged.entry(key);
        merged.or_insert(common.unwrap_or_default()).clone()
    }

    /// The mounts that the tasks of a job see on the node at this position.
    pub(crate) fn mounts(&self, id: SlurmJobId, job: &SiteJob, at: usize) -> Vec<Mount> {
        let mut mounts = Vec::new();
        let node = job.nodes.get(at).and_then(|name| self.nodes.get(name));
        for reads in job
            .reads
            .iter()
            .filter(|r| !r.is_changed && (at == 0 || !r.on_first))
        {
            let in_memory = self.catalog.is_sealed(&reads.version);
            let owner = match reads.version.owner {
                // A project's is opened by its reader.
                Owner::Project(_) if in_memory => Owner::User(job.user),
                owner => owner,
            };
            let dataset = reads.name.clone();
            let parts = self.catalog.parts_of(&reads.version);
            let known = self.catalog.version(&reads.version);
            let file = match &parts[..] {
                [only] => known.and_then(|v| v.parts.get(&only.part)?.file.as_ref()),
                _ => None,
            };
            let is_sliced = self.is_sliced(job, reads);
            let file = file.filter(|_| !is_sliced);
            let path = match &parts[..] {
                _ if is_sliced => format!("{owner}/j/{id}/v/{dataset}").into(),
                _ if in_memory => format!("{owner}/v/{dataset}").into(),
                [only] => only.folder().unwrap_or_default().join("tree"),
                _ => format!("{owner}/j/{id}/v/{dataset}").into(),
            };
            let path = file.map_or_else(|| path.clone(), |file| path.join(file));
            let store = node.and_then(|node| match &parts[..] {
                _ if is_sliced => node.written_in(id, &slice_key(&dataset)),
                _ if in_memory => None,
                [only] => node.places_of(only).next().map(|level| &level.name),
                _ => node.merged.get(&(id, dataset.clone())),
            });
            mounts.push(Mount {
                store: store.cloned().unwrap_or_default(),
                dataset,
                owner,
                path,
                writable: false,
                in_memory,
                partition: false,
                spread: None,
                checkpoints: None,
            });
        }
        for makes in job.makes.iter().filter(|m| at == 0 || m.rule.is_some()) {
            let dataset = makes.version.dataset.clone();
            let owner = Owner::User(job.user);
            let in_memory = self.catalog.is_sealed(&makes.version);
            let path = match in_memory {
                true => format!("{owner}/w/{dataset}"),
                false => format!("{owner}/j/{id}/w/{dataset}"),
            };
            let written = node.and_then(|node| node.written.get(&(id, dataset.clone())));
            let store = written.filter(|_| !in_memory).map(|(store, _)| store);
            mounts.push(Mount {
                store: store.cloned().unwrap_or_default(),
                path: path.into(),
                owner,
                dataset,
                writable: true,
                in_memory,
                partition: false,
                spread: None,
                checkpoints: None,
            });
        }
        mounts.extend(partitions::mounts(id, job, node));
        let key = job.checkpoint_key();
        let kept = key.and_then(|key| Some(&node?.checkpoints.get(&key)?.0));
        mounts.extend(checkpoints::mount(job, kept));
        mounts
    }
}
