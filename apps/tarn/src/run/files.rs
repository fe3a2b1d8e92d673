//! The files of a run: the workflow file and the files that its commands name. Their content when the run began is kept beside
//! its log, because a step's identity says that just those bytes have run.

use super::file_content::{read_script, read_watched};
use super::stale::Stale;
use crate::error::{CliError, CliResult, ExitWith};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tarn_ports::ChangedSince;
use tarn_types::codes::Exit;
use tarn_types::hash::Hash;
use tarn_types::history::History;
use tarn_types::id::StepId;
use tarn_types::workflow::{Foreach, Step, Workflow};

/// Their name in a run's folder.
const NAME: &str = "files.json";

/// The files that were read when a run began.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RunFiles {
    /// The workflow file; a run of `tarn data put` has none, nor has one of sbatch scripts.
    workflow: Option<(PathBuf, Hash)>,
    /// The sbatch scripts that are the workflow. Their content is kept with that of the files that commands name: commands name
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    submitted: Vec<PathBuf>,
    /// The files that commands name.
    scripts: BTreeMap<PathBuf, Hash>,
    /// By step, the files and folders that it watches beside those: its `files`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    watched: BTreeMap<String, Vec<PathBuf>>,
}

impl RunFiles {
    pub(crate) fn of(workflow: PathBuf, text: &[u8]) -> Self {
        Self {
            workflow: Some((workflow, Hash::of(text))),
            ..Self::default()
        }
    }

    pub(crate) fn of_scripts(submitted: Vec<PathBuf>) -> Self {
        Self {
            submitted,
            ..Self::default()
        }
    }

    /// The files that a user names to run it: the workflow file, or the scripts.
    pub(super) fn named(&self) -> Vec<PathBuf> {
        let file = self.workflow.iter().map(|(path, _)| path);
        file.chain(&self.submitted).cloned().collect()
    }

    /// A step watches these.
    pub(crate) fn watch(&mut self, step: &str, files: &[PathBuf]) {
        if !files.is_empty() {
            self.watched.insert(step.to_owned(), files.to_vec());
        }
    }

    /// The content of a file now that counts. The directives of a script that is the workflow are left out: they count by
    /// themselves.
    pub(crate) fn read_now(&self, path: &Path) -> Option<Vec<u8>> {
        let is_watched = || self.watched.values().flatten().any(|w| w == path);
        let bytes = if path.is_dir() && is_watched() {
            return read_watched(path);
        } else {
            read_script(path)?
        };
        Some(if self.is_submitted(path) {
            tarn_spec::without_directives(&bytes)
        } else {
            bytes
        })
    }

    /// Whether it is an sbatch script that is the workflow.
    pub(super) fn is_submitted(&self, path: &Path) -> bool {
        let mut submitted = self.submitted.iter();
        let real = || path.canonicalize().ok();
        !self.submitted.is_empty() && submitted.any(|s| s.canonicalize().ok() == real())
    }

    /// Whether a file counts for some step already.
    pub(super) fn knows(&self, path: &Path) -> bool {
        let mut watched = self.watched.values().flatten();
        let path = plain(path);
        self.scripts.keys().any(|s| plain(s) == path) || watched.any(|w| path.starts_with(w))
    }

    /// Whether it is the workflow file.
    pub(super) fn is_workflow(&self, path: &Path) -> bool {
        let mut named = self.named().into_iter();
        named.any(|n| n.canonicalize().is_ok_and(|n| n == path))
    }

    /// A file's hash when this was read.
    pub(super) fn hash(&self, path: &Path) -> Option<Hash> {
        self.scripts.get(path).copied()
    }

    /// A file's hash now.
    pub(super) fn hash_of(path: &Path) -> Option<Hash> {
        read_script(path).map(|bytes| Hash::of(&bytes))
    }

    /// Files that a step's command names and that are not what they were when this was read, though it has run.
    pub(super) fn changed_by(&self, workflow: &Workflow, step: &Step) -> Vec<PathBuf> {
        let mut named = self.named_by(workflow, step);
        named.retain(|path| !self.holds(path));
        named
    }

    pub(crate) fn add(&mut self, path: &Path, bytes: &[u8]) {
        self.scripts.insert(path.to_path_buf(), Hash::of(bytes));
    }

    /// Keeps them in a run's folder, durably: without them a resumed run could not detect a changed script.
    pub(super) fn write(&self, run: &Path) -> CliResult<()> {
        let write = || -> anyhow::Result<()> {
            let mut file = File::create(run.join(NAME))?;
            file.write_all(&serde_json::to_vec_pretty(self)?)?;
            Ok(file.sync_data()?)
        };
        let doing = || format!("cannot write {}", run.join(NAME).display());
        write().with_context(doing).exit(Exit::State)
    }

    /// The files that a run has recorded; none if it died before it did.
    pub(super) fn read(run: &Path) -> Self {
        let bytes = std::fs::read(run.join(NAME)).ok();
        let files = bytes.and_then(|b| serde_json::from_slice(&b).ok());
        files.unwrap_or_default()
    }

    /// A resumed run continues with the workflow as it was: it says so where the file is another by now, and refuses where
    /// a script is that it still has to run.
    pub(super) fn check_for_resume(
        &self,
        workflow: &Workflow,
        history: &History,
        stale: &mut Stale,
    ) -> CliResult<()> {
        if let Some((path, hash)) = &self.workflow {
            let now = std::fs::read(path).ok().map(|bytes| Hash::of(&bytes));
            let how = match now {
                Some(now) if now == *hash => None,
                Some(_) => Some("has changed since this run began"),
                None => Some("cannot be read any more"),
            };
            if let Some(how) = how {
                stale.workflow_file(&plain(path), how);
            }
        }
        for (id, step) in (0u32..).map(StepId).zip(&workflow.steps) {
            let named = self.named_by(workflow, step);
            let changed = named.into_iter().find(|p| !self.holds(p));
            let Some(path) = changed else { continue };
            let what = format!(
                "{}, which step `{}` names, has changed",
                path.display(),
                step.name
            );
            if !is_done(history, id, step) {
                return Err(CliError::new(
                    Exit::Usage,
                    format!(
                        "{what} since this run began, and the step is still to be run; `tarn run` begins a run with the file as it is \
                         now, and runs again only what that changes"
                    ),
                ));
            }
            stale.script(id, what);
        }
        Ok(())
    }

    /// The kept files that a step's command names.
    pub(super) fn named_by(&self, workflow: &Workflow, step: &Step) -> Vec<PathBuf> {
        let named = RefCell::new(Vec::new());
        tarn_spec::code_hash(workflow, step, &|path| {
            if self.scripts.contains_key(path) {
                named.borrow_mut().push(plain(path));
            }
            None
        });
        let mut named = named.into_inner();
        let watched = self.watched.get(&step.name).into_iter().flatten();
        named.extend(watched.map(|path| plain(path)));
        named
    }

    fn holds(&self, path: &Path) -> bool {
        let now = self.read_now(path).map(|bytes| Hash::of(&bytes));
        self.scripts.get(path).copied() == now
    }

    /// The check that the world makes before each attempt.
    pub(super) fn guard(self, workflow: &Workflow) -> ChangedSince {
        let steps = workflow.steps.iter();
        let named: Vec<Vec<PathBuf>> = steps.map(|s| self.named_by(workflow, s)).collect();
        // A file that looks as it did when it was read is not read again: steps may be very short.
        let seen: Mutex<BTreeMap<PathBuf, FileStamp>> = Mutex::default();
        Arc::new(move |step| {
            let changed = |path: &&PathBuf| {
                // A folder's stamp does not show a change of a file in it.
                let look = FileStamp::at(path).filter(|_| !path.is_dir());
                let known = seen.lock().ok().and_then(|s| s.get(*path).copied());
                if look.is_some() && look == known {
                    return false;
                }
                if !self.holds(path) {
                    return true;
                }
                if let (Some(look), Ok(mut seen)) = (look, seen.lock()) {
                    seen.insert((*path).clone(), look);
                }
                false
            };
            named.get(step.at())?.iter().find(changed).cloned()
        })
    }
}

/// The path without `.` and other needless components.
fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

/// Values that change whenever a file does: size, inode, time of its inode's last change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp(u64, u64, i64, i64);

impl FileStamp {
    fn at(path: &Path) -> Option<Self> {
        let m = std::fs::metadata(path).ok()?;
        Some(Self(m.len(), m.ino(), m.ctime(), m.ctime_nsec()))
    }
}

/// Whether every instance of a step is done, as far as the log shows how many there are.
pub(super) fn is_done(history: &History, id: StepId, step: &Step) -> bool {
    let makes = step.uses.iter().find_map(|u| Some((u.data, u.makes?)));
    let all = match (&step.foreach, makes) {
        (None, _) => Some(1),
        (Some(Foreach::Values(values)), _) => Some(values.len()),
        (Some(Foreach::Entries { .. }), Some((data, version))) => history.makers(data, version).1,
        (Some(Foreach::Entries { .. }), None) => None,
    };
    let done = history.instances_of(id).filter(|(_, i)| i.state.is_done());
    all == Some(done.count())
}
