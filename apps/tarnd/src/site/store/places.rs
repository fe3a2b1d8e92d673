//! The place of an object: one of the node's stores, and in that, opened beneath its root.

use super::UserStore;
use super::sealed::JobFolderKind;
use crate::site::stores::{having, root_in};
use crate::work::{ConfinedPath, TaskEndpoint};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Owner, Part, SlurmJobId, is_name};

impl UserStore {
    /// The root of a store; one without a name is the first.
    pub(super) fn root_of(&self, store: &str) -> Result<&Path, RequestError> {
        root_in(&self.places, store)
    }

    pub(super) fn roots(&self) -> impl Iterator<Item = &Path> {
        self.places.iter().map(|(_, root)| root.as_path())
    }

    /// The roots of the stores that have a part.
    pub(super) fn roots_of(&self, part: &Part) -> Vec<&Path> {
        let has = |root: &&Path| having(std::iter::once(*root), part).is_some();
        self.roots().filter(has).collect()
    }

    /// The root of the fastest store that has a part; of a part that is in none, the first.
    pub(super) fn where_is(&self, part: &Part) -> &Path {
        having(self.roots(), part).unwrap_or(&self.places[0].1)
    }

    /// The root of the store in which a job writes.
    pub(super) fn where_written(&self, job: SlurmJobId, dataset: &str) -> &Path {
        let path = format!("{}/j/{job}/w/{dataset}", Owner::User(self.user));
        let mut roots = self.roots();
        let found = roots.find(|root| std::fs::symlink_metadata(root.join(&path)).is_ok());
        found.unwrap_or(&self.places[0].1)
    }

    /// A place of a store, its folders opened one beneath the other, no link followed.
    pub(super) fn held(
        &self,
        root: &Path,
        relative: &Path,
        make: bool,
    ) -> Result<ConfinedPath, RequestError> {
        // The owner's folder is where names end that only root can change.
        let path = relative.as_os_str().as_bytes();
        let at = path.iter().position(|b| *b == b'/').unwrap_or(path.len());
        let (owner, rest) = path.split_at(at);
        let root = root.join(OsStr::from_bytes(owner));
        let space = Some(("store".to_owned(), root));
        let path = rest.strip_prefix(b"/").unwrap_or(rest).to_vec();
        ConfinedPath::open(&TaskEndpoint::Path { space, path }, make)
    }

    pub(super) fn part(
        &self,
        root: &Path,
        part: &Part,
        make: bool,
    ) -> Result<ConfinedPath, RequestError> {
        let folder = part.folder().ok_or_else(|| {
            RequestError::new(Code::Invalid, "a name that cannot be one of a dataset")
        })?;
        let held = self.held(root, &folder, make)?;
        if make {
            self.open_to_members(root, part)?;
        }
        Ok(held)
    }

    /// A folder of a job, in a store or in the job's memory, which is below the folder that the worker began in.
    pub(super) fn of_job(
        &self,
        job: SlurmJobId,
        which: JobFolderKind,
        dataset: &str,
        (root, make): (Option<&Path>, bool),
    ) -> Result<ConfinedPath, RequestError> {
        if !is_name(dataset) {
            let text = "a name that cannot be one of a dataset";
            return Err(RequestError::new(Code::Invalid, text));
        }
        let owner = Owner::User(self.user);
        let name = which.name();
        if let Some(root) = root {
            let path = format!("{owner}/j/{job}/{name}/{dataset}");
            return self.held(root, Path::new(&path), make);
        }
        let own = PathBuf::from(format!("{job}/{owner}"));
        let space = Some((format!("memory of job {job}"), own));
        let path = format!("{name}/{dataset}").into_bytes();
        ConfinedPath::open(&TaskEndpoint::Path { space, path }, make)
    }
}
