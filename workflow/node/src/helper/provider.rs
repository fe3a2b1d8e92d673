//! One namespace over the nodes of a step, by a file system that exists: what tarn asks of it. docs/internals/shared-namespace.md.
//!
//! Its processes are children of the step's helper, in the step's namespaces: they and the mount end with the helper, however that
//! ends. So what outlives it is folders only, and those are the step's work folder.

pub(crate) mod fill;
pub(crate) mod gluster;
mod leftovers;
mod volfile;

pub(crate) use leftovers::tidy;

use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// Below a step's work folder: what the file system has of this node.
pub(crate) const FOLDER: &str = "shared";

/// Where a node's part of the file system is reached, and what opens it. Made again for each attempt on each node.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderAddress {
    /// Name or address of the node, as the others know it; empty until whoever leads the step fills it in.
    pub host: String,
    /// Where the brick listens.
    pub port: u16,
    /// Who may use it.
    pub user: String,
    /// And by what.
    pub password: String,
}

impl std::fmt::Debug for ProviderAddress {
    /// Without the password: messages are logged.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ProviderAddress({}:{})", self.host, self.port)
    }
}

/// A dataset in the namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamespaceDataset {
    pub(crate) name: String,
    /// Where the step finds it.
    pub(crate) to: PathBuf,
    pub(crate) writable: bool,
    /// On the first node: the replicas that it begins with, and the files of their manifests.
    pub(crate) from: Vec<(PathBuf, PathBuf)>,
}

/// What a helper is to set up of the namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamespacePlan {
    /// The node's own folder for it.
    pub(crate) folder: PathBuf,
    /// The node's name, for messages.
    pub(crate) node: String,
    /// Whether this node is the first, which makes and fills the datasets.
    pub(crate) first: bool,
    pub(crate) parts: Vec<NamespaceDataset>,
    /// Where it appears as a whole, if not beside the rest: to one node alone, which then need not ask for every name again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<PathBuf>,
}

impl NamespacePlan {
    /// Where the file system keeps this node's share of everything.
    pub(crate) fn brick(folder: &Path) -> PathBuf {
        folder.join("brick")
    }

    /// Where the namespace appears.
    pub(crate) fn mount(&self) -> PathBuf {
        let beside = || self.folder.join("mount");
        self.at.clone().unwrap_or_else(beside)
    }
}

/// A file system that can be started for a step, on each of its nodes. A call may take until its own limit of time; none looks into
/// the mount, which may hang.
pub(crate) trait Provider {
    /// Starts this node's part.
    ///
    /// # Errors
    /// Why it does not come up, with what it said.
    fn start(&mut self) -> io::Result<ProviderAddress>;

    /// Makes the namespace appear, once all nodes have started.
    ///
    /// # Errors
    /// Why it does not.
    fn mount(&mut self, provider_addresses: &[ProviderAddress]) -> io::Result<()>;

    /// What a child that has ended was to it, and what it said last: then the namespace is not whole any more.
    fn health(&self, ended: Pid) -> Option<String>;

    /// Its processes, which are not the step's.
    fn processes(&self) -> Vec<Pid>;

    /// Ends its processes, once nothing of the step runs any more.
    fn stop(&mut self);
}
