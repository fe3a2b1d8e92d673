//! One namespace over the nodes of a step, by an existing file system: its interface to tarn. docs/internals/shared-namespace.md.
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

/// Below a step's work folder: this node's files of the file system.
pub(crate) const FOLDER: &str = "shared";

/// The address of a node's part of the file system, and its credentials. Made again for each attempt on each node.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderAddress {
    /// Name or address of the node, as the others know it; empty until the leader of the step fills it in.
    pub host: String,
    /// The port of the brick.
    pub port: u16,
    /// The user name.
    pub user: String,
    /// The password.
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
    /// The path at which the step sees it.
    pub(crate) to: PathBuf,
    pub(crate) writable: bool,
    /// On the first node: the replicas that it begins with, and the files of their manifests.
    pub(crate) from: Vec<(PathBuf, PathBuf)>,
}

/// The setup of the namespace that a helper makes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamespacePlan {
    /// The node's own folder for it.
    pub(crate) folder: PathBuf,
    /// The node's name, for messages.
    pub(crate) node: String,
    /// Whether this node is the first, which makes and fills the datasets.
    pub(crate) first: bool,
    pub(crate) parts: Vec<NamespaceDataset>,
    /// The mount point of the whole, if not beside the rest: for one node alone, which then need not look every name up again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<PathBuf>,
}

impl NamespacePlan {
    /// The folder with this node's share of the file system.
    pub(crate) fn brick(folder: &Path) -> PathBuf {
        folder.join("brick")
    }

    /// The mount point of the namespace.
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
    /// Why it does not come up, with its output.
    fn start(&mut self) -> io::Result<ProviderAddress>;

    /// Makes the namespace appear, once all nodes have started.
    ///
    /// # Errors
    /// Why it does not.
    fn mount(&mut self, provider_addresses: &[ProviderAddress]) -> io::Result<()>;

    /// The role of a child that has ended, and its last message: then the namespace is not whole any more.
    fn health(&self, ended: Pid) -> Option<String>;

    /// Its processes, which are not the step's.
    fn processes(&self) -> Vec<Pid>;

    /// Ends its processes, once nothing of the step runs any more.
    fn stop(&mut self);
}
