//! The layout of stored files: the one place that knows the folders of a state directory and of a tier.
//! docs/reference/formats.md describes the same.

use crate::object::is_object;
use crate::part::{PartClass, StoreKey};
use std::path::{Path, PathBuf};

/// The folders of one workflow in a state directory (default `.tarn` beside the workflow file).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDir(pub PathBuf);

impl StateDir {
    /// The SQLite index.
    pub fn catalogue(&self) -> PathBuf {
        self.0.join("catalogue.sqlite")
    }
    /// All runs.
    pub fn runs(&self) -> PathBuf {
        self.0.join("runs")
    }
    /// One run.
    pub fn run(&self, run: &str) -> PathBuf {
        self.runs().join(run)
    }
    /// A run's event log.
    pub fn log(&self, run: &str) -> PathBuf {
        self.run(run).join("events.log")
    }
    /// The status file of a live run.
    pub fn live(&self, run: &str) -> PathBuf {
        self.run(run).join("live")
    }
    /// The file that asks a run to stop from where no signal reaches it.
    pub fn cancel(&self, run: &str) -> PathBuf {
        self.run(run).join("cancel")
    }
    /// The lock that a live run of workflow `name` holds.
    pub fn lock(&self, name: &str) -> PathBuf {
        self.0.join("locks").join(format!("{name}.lock"))
    }
    /// The output of a step.
    pub fn step_log(&self, run: &str, instance: &str, attempt: u32) -> PathBuf {
        self.run(run)
            .join("steps")
            .join(format!("{instance}.{attempt}.log"))
    }
    /// A run's report.
    pub fn report(&self, run: &str) -> PathBuf {
        self.run(run).join("report.html")
    }
    /// The manifests of a workspace's parts.
    pub fn manifests(&self, workspace: &str) -> PathBuf {
        self.0.join("manifests").join(workspace)
    }
    /// The manifest of a part.
    pub fn manifest(&self, workspace: &str, key: &StoreKey) -> PathBuf {
        self.manifests(workspace).join(&key.0)
    }
    /// The wrapped keys of a workspace's encrypted parts, a folder for each dataset.
    pub fn keys(&self, workspace: &str) -> PathBuf {
        self.0.join("keys").join(workspace)
    }
    /// The deliveries of a workspace: one manifest for each `dest`.
    pub fn dests(&self, workspace: &str) -> PathBuf {
        self.0.join("dests").join(workspace)
    }
    /// The records of a workspace's sources.
    pub fn sources(&self, workspace: &str) -> PathBuf {
        self.0.join("sources").join(workspace)
    }
}

/// A file in a folder: files below it are overwritten before they are removed.
pub const ERASE: &str = ".tarn-erase";

/// The folder at a tier's root of the space that the tier lends to other nodes: `lent/<workspace>/<borrower>`.
pub const EXPORTED: &str = "lent";

/// The folders of one workflow on one tier of one node: `<tier root>/<workspace>/<node>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierDir(pub PathBuf);

impl TierDir {
    /// The folder of node `node` in workspace `workspace` below a tier's root.
    pub fn new(root: &Path, workspace: &str, node: &str) -> Self {
        Self(root.join(workspace).join(node))
    }
    /// A part's replica: a folder that holds the part's tree. It exists only whole: it is renamed into place.
    pub fn part(&self, key: &StoreKey) -> PathBuf {
        self.parts().join(&key.0)
    }
    /// All replicas.
    pub fn parts(&self) -> PathBuf {
        self.0.join("parts")
    }
    /// An empty file for each replica that is there as cache.
    pub fn cached(&self) -> PathBuf {
        self.0.join("cached")
    }
    /// Half-copied replicas; after a crash they are resumed or removed.
    pub fn incoming(&self) -> PathBuf {
        self.0.join("incoming")
    }
    /// The checkpoints of steps that continue from them, a folder for each run and instance.
    pub fn checkpoints(&self) -> PathBuf {
        self.0.join("checkpoints")
    }
    /// The working folders of running steps: scratch, views, outputs not yet committed.
    pub fn work(&self) -> PathBuf {
        self.0.join("work")
    }
}

/// The folder of a workspace's drained parts in the external store. In an object store it is a tree, as its parts are.
pub fn drained_area(external: &Path, workspace: &str) -> PathBuf {
    tree(external.join(format!("tarn-{workspace}")))
}

/// The folder of a drained part in the external store.
pub fn drained_part(external: &Path, workspace: &str, key: &StoreKey) -> PathBuf {
    tree(drained_area(external, workspace).join(&key.0))
}

/// A folder's path; that of a tree of objects ends with `/`.
pub fn tree(folder: PathBuf) -> PathBuf {
    match is_object(&folder) {
        true => folder.join(""),
        false => folder,
    }
}

/// The path of `source` that a source's part is read from.
pub fn source_part(source: &Path, class: &PartClass) -> PathBuf {
    match class {
        PartClass::Entry(name) => source.join(name),
        _ => source.to_path_buf(),
    }
}
