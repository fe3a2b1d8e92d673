//! The content of a user's part of a store, and leftovers of half-done work.

use super::{HIDDEN, MADE, UserStore};
use crate::work::{ConfinedPath as Opened, to_request_error};
use std::path::{Path, PathBuf};
use tarn_node::looks_like;
use tarn_node::untouched::{self, ChangeScope, MarkValidity};
use tarn_ports::{Control, Mover};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{
    CheckpointFolder, Gid, Holding, Owner, Part, Proof, StoreContent, WorkResult, is_name,
};
use tarn_types::manifest::Manifest;

/// Bytes that are reported of one owner here, and of all owners that one worker reports.
const MOST_OF_OWNER: usize = 4 << 20;
const MOST: usize = 24 << 20;

/// The reported holdings, and the owners who have more.
#[derive(Default)]
struct HoldingsReport {
    all: Vec<Holding>,
    /// Bytes of all of it.
    weight: usize,
    partial: Vec<Owner>,
}

impl HoldingsReport {
    /// Adds a holding, if its owner's report has space for it. False if no more of theirs is reported.
    fn add(&mut self, owner: Owner, space: &mut usize, holding: Holding) -> bool {
        let weight = holding.weight();
        if weight > *space || self.weight + weight > MOST {
            self.partial.push(owner);
            *space = 0;
            return false;
        }
        *space -= weight;
        self.weight += weight;
        self.all.push(holding);
        true
    }
}

impl UserStore {
    pub(super) fn inventory(&self, projects: &[Gid]) -> Result<WorkResult, RequestError> {
        let mut report = HoldingsReport::default();
        let own = Owner::User(self.user);
        let projects = projects.iter().map(|gid| Owner::Project(*gid));
        for owner in std::iter::once(own).chain(projects) {
            let mut space = MOST_OF_OWNER;
            for place in &self.places {
                let is_all = (owner != own
                    || self.jobs_in(place, &mut space, &mut report)?
                        && self.checkpoints_in(place, &mut space, &mut report)?)
                    && self.parts_of(owner, place, &mut space, &mut report)?;
                if !is_all {
                    break;
                }
            }
        }
        Ok(WorkResult::Inventory {
            holds: report.all,
            partial: report.partial,
        })
    }

    /// A part whose tree does not look as it was published (names, kinds, modes, sizes, times), or that has got other entries since, is read
    /// again before a job uses it.
    pub(super) fn check_if_changed(
        &self,
        part: &Part,
        (held, manifest): (&Opened, &Manifest),
        control: &Control,
    ) -> Result<(), RequestError> {
        let tree = held.path_of(&[held.name(), b"/tree"].concat());
        let listed = self.mover.list(&tree, control);
        // Views of jobs link to its files.
        let is_as_marked =
            || untouched::is_untouched(&tree, MarkValidity::Always, ChangeScope::Entries);
        if listed.is_ok_and(|listed| looks_like(&listed, manifest)) && is_as_marked() {
            return Ok(());
        }
        let mut same = Ok(());
        untouched::read_and_mark(&tree, MarkValidity::Always, || {
            same = self.mover.verify(&tree, manifest, control);
            same.is_ok()
        });
        same.map_err(|e| {
            let why = to_request_error(&e, &[held]);
            let text = format!(
                "{part} was changed on this node since it was published: {}. `tarn data rm` removes it, and the next job that needs it has it brought or made again",
                why.text
            );
            RequestError::new(why.code, text)
        })
    }

    fn jobs_in(
        &self,
        (store, root): &(String, PathBuf),
        space: &mut usize,
        report: &mut HoldingsReport,
    ) -> Result<bool, RequestError> {
        let own = Owner::User(self.user);
        for name in self.names(root, Path::new(&format!("{own}/j")))? {
            if let Ok(job) = name.parse() {
                let held = self.held(root, Path::new(&format!("{own}/j/{job}")), false)?;
                let holding = Holding {
                    store: store.clone(),
                    held: StoreContent::Job(job),
                    proof: None,
                    is_behind: false,
                    stored: self.mover.stored(&held.path()).unwrap_or(0),
                };
                if !report.add(own, space, holding) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn checkpoints_in(
        &self,
        (store, root): &(String, PathBuf),
        space: &mut usize,
        report: &mut HoldingsReport,
    ) -> Result<bool, RequestError> {
        let own = Owner::User(self.user);
        let top = PathBuf::from(format!("{own}/c"));
        for workflow in self.names(root, &top)? {
            for step in self.names(root, &top.join(&workflow))? {
                let folder = CheckpointFolder {
                    workflow: workflow.clone(),
                    step,
                };
                if folder.path(self.user).is_none() {
                    continue;
                }
                let held = self.checkpoints(root, &folder, false)?;
                let holding = Holding {
                    store: store.clone(),
                    stored: self.mover.stored(&held.path()).unwrap_or(0),
                    held: StoreContent::Checkpoints(folder),
                    proof: None,
                    is_behind: false,
                };
                if !report.add(own, space, holding) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn parts_of(
        &self,
        owner: Owner,
        (store, root): &(String, PathBuf),
        space: &mut usize,
        report: &mut HoldingsReport,
    ) -> Result<bool, RequestError> {
        let top = PathBuf::from(format!("{owner}/d"));
        // A folder without the name of a dataset is none.
        let named = |folder: &Path| -> Result<Vec<String>, RequestError> {
            let mut names = self.names(root, folder)?;
            names.retain(|name| is_name(name));
            Ok(names)
        };
        for workflow in named(&top)? {
            for dataset in named(&top.join(&workflow))? {
                let folder = top.join(&workflow).join(&dataset);
                for version in self.names(root, &folder)? {
                    for part in self.names(root, &folder.join(&version))? {
                        let (Ok(version), Ok(part)) = (version.parse(), part.parse()) else {
                            continue;
                        };
                        let part = Part {
                            owner,
                            workflow: workflow.clone(),
                            dataset: dataset.clone(),
                            version,
                            part,
                        };
                        let found = self.manifest_at(root, &part).ok();
                        let is_behind = found.as_ref().is_some_and(|(held, _, proof)| {
                            self.stays_behind(held, (&part, proof))
                        });
                        let proof = found.map(|(_, _, proof)| proof);
                        let holding = Holding {
                            store: store.clone(),
                            stored: proof.as_ref().map_or(0, |p| p.bytes),
                            held: StoreContent::Part(part),
                            proof,
                            is_behind,
                        };
                        if !report.add(owner, space, holding) {
                            return Ok(false);
                        }
                    }
                }
            }
        }
        Ok(true)
    }

    /// Whether the newest secret does not wrap a part's key, after all that this worker can do: in a project its maker alone can.
    fn stays_behind(&self, held: &super::ConfinedPath, about: (&Part, &Proof)) -> bool {
        let is_own = held
            .stat()
            .is_ok_and(|about| about.is_some_and(|about| about.st_uid == self.user));
        let behind = match is_own {
            true => self.wrap_anew(held, about).map(|()| false),
            false => self.is_behind(held, about.0),
        };
        behind.unwrap_or_else(|why| {
            tracing::warn!("the key of {} is not wrapped again: {why}", about.0);
            true
        })
    }

    /// The names in a folder of a store that are not hidden; none if there is no such folder.
    fn names(&self, root: &Path, folder: &Path) -> Result<Vec<String>, RequestError> {
        let held = match self.held(root, &folder.join("."), false) {
            Err(why) if why.code == Code::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let failed = |e: rustix::io::Errno| held.failed("list", e);
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(held.folder()).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if let Ok(name) = entry.file_name().to_str()
                && !name.starts_with('.')
            {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Removes half-done work of earlier workers.
    pub(super) fn sweep(&self) {
        for root in self.roots() {
            self.sweep_store(root);
        }
    }

    fn sweep_store(&self, root: &Path) {
        let own = PathBuf::from(Owner::User(self.user).to_string());
        let mut folders = vec![own.join("j")];
        let projects = self.projects.iter();
        let projects = projects.map(|gid| PathBuf::from(Owner::Project(*gid).to_string()));
        for owner in projects.chain([own.clone()]) {
            for workflow in self.names(root, &owner.join("d")).unwrap_or_default() {
                let workflow = owner.join("d").join(workflow);
                for dataset in self.names(root, &workflow).unwrap_or_default() {
                    let dataset = workflow.join(dataset);
                    let versions = self.names(root, &dataset).unwrap_or_default();
                    folders.extend(versions.iter().map(|v| dataset.join(v)));
                }
            }
        }
        for workflow in self.names(root, &own.join("c")).unwrap_or_default() {
            folders.push(own.join("c").join(workflow));
        }
        for job in self.names(root, &own.join("j")).unwrap_or_default() {
            for which in ["w", "v"] {
                folders.push(own.join("j").join(&job).join(which));
            }
        }
        for folder in folders {
            if let Err(why) = self.sweep_folder(root, &folder) {
                tracing::warn!("a leftover stays: {why}");
            }
        }
    }

    fn sweep_folder(&self, root: &Path, folder: &Path) -> Result<(), RequestError> {
        let held = match self.held(root, &folder.join("."), false) {
            Err(why) if why.code == Code::NotFound => return Ok(()),
            other => other?,
        };
        let failed = |e: rustix::io::Errno| held.failed("list", e);
        for entry in rustix::fs::Dir::read_from(held.folder()).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            let is_left = name.starts_with(HIDDEN.as_bytes()) && !name.ends_with(MADE.as_bytes());
            // A project's other members continue with theirs.
            let is_own = || {
                let about = held.stat_of(name);
                about.is_ok_and(|about| about.is_some_and(|about| about.st_uid == self.user))
            };
            if is_left && is_own() {
                self.clear(&held, name)?;
            }
        }
        Ok(())
    }
}
