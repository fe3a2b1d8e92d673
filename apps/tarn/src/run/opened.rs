//! Files below the workflow's folder that steps open and nobody has named: a parameter file beside a script, a module that it
//! imports. A step does not run again when they change, so tarn says so. Seen by inotify, on this machine only; a program that
//! opens such a file meanwhile is seen too, which is why this is a note and decides nothing.

use super::files::RunFiles;
use crate::print::message;
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tarn_ports::Record;
use tarn_types::action::Do;
use tarn_types::cluster::Cluster;
use tarn_types::event::{AttemptOutcome, Event};
use tarn_types::hash::Hash;
use tarn_types::id::InstanceId;
use tarn_types::text::first_of;
use tarn_types::workflow::Workflow;

/// The file in a run's folder with the files that its steps opened.
const NAME: &str = "opened.json";
/// Folders that are watched: a workflow's folder with more has data in it.
const MAX_FOLDERS: usize = 256;
/// Files of a step that are remembered.
const MAX_FILES: usize = 1000;
/// Of these as many are named.
const NAMED: usize = 8;
/// Bytes that are read at once: some hundred events.
const BUFFER: usize = 16 << 10;

/// By step, the files and their content, by their paths in the workflow's folder.
type OpenedFiles = BTreeMap<String, BTreeMap<PathBuf, Hash>>;

/// The files that an earlier run has seen.
pub(super) fn read(run: &Path) -> OpenedFiles {
    let bytes = std::fs::read(run.join(NAME)).ok();
    let opened = bytes.and_then(|b| serde_json::from_slice(&b).ok());
    opened.unwrap_or_default()
}

/// Watches the folder of a workflow while it runs.
pub(super) struct FolderWatcher {
    queue: OwnedFd,
    folders: BTreeMap<i32, PathBuf>,
    running: BTreeSet<InstanceId>,
    /// By step, the files opened while it ran, perhaps by another.
    seen: BTreeMap<String, BTreeSet<PathBuf>>,
    /// The files that were written: they are no inputs.
    written: BTreeSet<PathBuf>,
}

impl FolderWatcher {
    /// `None` where nothing can be watched, or there is too much.
    pub(super) fn new(w: &Workflow, state: &Path, cluster: &Cluster) -> Option<Self> {
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        let tiers = cluster.nodes.iter().flat_map(|n| &n.tiers);
        let tiers = tiers.map(|t| t.root.as_path());
        let places = w.data.iter().flat_map(|d| d.source.iter().chain(&d.dest));
        let apart: BTreeSet<PathBuf> = places
            .chain(&w.external)
            .map(PathBuf::as_path)
            .chain([state])
            .chain(tiers)
            .filter_map(|p| p.canonicalize().ok())
            .collect();
        let mut folders = BTreeMap::new();
        let mut left = vec![w.folder.canonicalize().ok()?];
        let flags = WatchFlags::OPEN | WatchFlags::CLOSE_WRITE | WatchFlags::ONLYDIR;
        while let Some(folder) = left.pop() {
            if folders.len() == MAX_FOLDERS {
                return None;
            }
            folders.insert(
                inotify::add_watch(&queue, &folder, flags).ok()?,
                folder.clone(),
            );
            for entry in std::fs::read_dir(&folder).ok()?.flatten() {
                let path = entry.path();
                let hidden = entry.file_name().as_bytes().starts_with(b".");
                let is_folder = entry.file_type().is_ok_and(|t| t.is_dir());
                if is_folder && !hidden && path.file_name() != Some(OsStr::new("__pycache__")) {
                    left.extend((!apart.contains(&path)).then_some(path));
                }
            }
        }
        let this = Self {
            queue,
            folders,
            running: BTreeSet::new(),
            seen: BTreeMap::new(),
            written: BTreeSet::new(),
        };
        Some(this)
    }

    /// Tells what was opened until now of the steps that run, and which run from now on.
    pub(super) fn see(&mut self, w: &Workflow, record: &Record) {
        let opened = self.drain();
        if !opened.is_empty() {
            for step in self.running.iter().map(|id| id.step) {
                let seen = self.seen.entry(w.step(step).name.clone()).or_default();
                assert!(seen.len() <= MAX_FILES, "no more files than that are noted");
                let left = MAX_FILES - seen.len();
                seen.extend(opened.iter().take(left).cloned());
            }
        }
        if let Event::Ended {
            instance, ended, ..
        } = &record.event
        {
            self.running.remove(instance);
            let name = &w.step(instance.step).name;
            if matches!(ended, AttemptOutcome::Committed { .. }) {
                self.seen.entry(name.clone()).or_default();
            }
        }
        for action in &record.actions {
            if let Do::Run(run) = &action.what {
                self.running.insert(run.instance);
            }
        }
    }

    fn drain(&mut self) -> BTreeSet<PathBuf> {
        let mut opened = BTreeSet::new();
        let mut space = vec![MaybeUninit::uninit(); BUFFER];
        let mut events = inotify::Reader::new(&self.queue, &mut space);
        while let Ok(event) = events.next() {
            let is_folder = event.events().contains(ReadFlags::ISDIR);
            let (Some(name), Some(folder), false) =
                (event.file_name(), self.folders.get(&event.wd()), is_folder)
            else {
                continue;
            };
            let path = folder.join(OsStr::from_bytes(name.to_bytes()));
            if event.events().contains(ReadFlags::CLOSE_WRITE) {
                self.written.insert(path);
            } else {
                opened.insert(path);
            }
        }
        opened
    }

    /// Prints the files that steps opened without naming them, and keeps them for the next run; for steps that did not run, those
    /// that an earlier run (`before`) has seen.
    pub(super) fn end(mut self, w: &Workflow, files: &RunFiles, run: &Path, before: Option<&Path>) {
        self.drain();
        let mut all = before.map(read).unwrap_or_default();
        all.retain(|name, _| w.steps.iter().any(|s| s.name == *name));
        let real = w.folder.canonicalize().unwrap_or_else(|_| w.folder.clone());
        for (step, seen) in self.seen {
            let mut known = BTreeMap::new();
            for path in seen.difference(&self.written) {
                let Ok(inside) = path.strip_prefix(&real) else {
                    continue;
                };
                let named = files.knows(&w.folder.join(inside)) || files.is_workflow(path);
                if let Some(hash) = RunFiles::hash_of(path).filter(|_| !named) {
                    known.insert(inside.to_path_buf(), hash);
                }
            }
            if !known.is_empty() {
                let names: Vec<_> = known.keys().map(|p| p.display().to_string()).collect();
                message!(
                    "note: while `{step}` ran, {} was opened, which it does not name: it does not run again when that changes; \
                     `files = [...]` in its `[[step]]` watches it",
                    first_of(&names, NAMED)
                );
            }
            all.insert(step, known);
        }
        if let Ok(bytes) = serde_json::to_vec_pretty(&all) {
            // Losing it costs a note.
            let _ = std::fs::write(run.join(NAME), bytes);
        }
    }
}
