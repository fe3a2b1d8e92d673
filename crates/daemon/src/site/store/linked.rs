//! Which parts the views of a job have links to: their fingerprints are taken again when the links go.

use super::sealed::Which;
use super::{Store, read_small, write};
use crate::work::Held;
use std::path::{Path, PathBuf};
use tarn_proto::local::Refusal;
use tarn_proto::site::{Job, Owner, Part};

/// Bytes of a list of parts that is believed to be one.
const MAX_LIST: u64 = 16 << 20;

impl Store {
    fn lists(&self, job: Job) -> PathBuf {
        let owner = Owner::User(self.user);
        format!("{owner}/j/{job}/{}", Which::Linked.name()).into()
    }

    /// Before a view is made: what it is going to have links to.
    pub(super) fn note_links<'a>(
        &self,
        root: &Path,
        (job, dataset): (Job, &str),
        parts: impl Iterator<Item = &'a Part>,
    ) -> Result<(), Refusal> {
        let held = self.held(root, &self.lists(job).join(dataset), true)?;
        let parts: Vec<&Part> = parts.collect();
        let list = serde_json::to_vec(&parts).unwrap_or_default();
        write(&held, b".", dataset, &list)
    }

    /// What the views of a job have links to. What cannot be found out costs a read of that part.
    pub(super) fn linked_by(&self, root: &Path, job: Job) -> Vec<Held> {
        let folder = self.lists(job);
        let mut parts: Vec<Part> = Vec::new();
        for dataset in self.names(root, &folder).unwrap_or_default() {
            let held = self.held(root, &folder.join(&dataset), false);
            let list = held.map(|held| read_small(&held.path(), MAX_LIST));
            let list = list.into_iter().flatten();
            let all = list.filter_map(|l| serde_json::from_slice::<Vec<Part>>(&l).ok());
            parts.extend(all.flatten());
        }
        parts.sort();
        parts.dedup();
        let found = parts.iter().map(|part| self.part(root, part, false));
        found.flatten().collect()
    }
}
