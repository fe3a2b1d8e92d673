//! The steps of a run share this on the nodes of its world, beside its data: how they are started, and which other nodes there are.

use crate::attempt::jobs::SyntheticJobIds;
use crate::attempt::writers::Writers;
use crate::helper::image::Criu;
use crate::helper::protocol::StepIsolation;
use crate::storage::data_context::DataContext;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use tarn_ports::CapabilityError;
use tarn_ports::{ChangedSince, CheckpointFinder, Followers, MakePartition, Meter};
use tarn_types::id::NodeId;

/// Every attempt sees this of its world. The data of the run is reached through it.
pub(crate) struct NodeContext {
    /// Shared with the threads that move, which know nothing of steps.
    pub(crate) data: Arc<DataContext>,
    /// The nodes of other worlds, of steps of several nodes.
    pub(crate) followers: Option<Arc<dyn Followers>>,
    pub(crate) helper: PathBuf,
    pub(crate) checkpoints: CheckpointFinder,
    pub(crate) partitions: MakePartition,
    pub(crate) changed_since: ChangedSince,
    pub(crate) meter: Option<Arc<dyn Meter>>,
    pub(crate) isolation: StepIsolation,
    /// Why steps of several nodes cannot run here, if they cannot.
    pub(crate) multi_node: Result<(), CapabilityError>,
    /// Why the nodes of a step cannot have one namespace, if they cannot.
    pub(crate) one_namespace: Result<(), CapabilityError>,
    /// The program that takes images of processes, if a step wants them; or why it cannot.
    pub(crate) imaging: Option<Result<Criu, CapabilityError>>,
    /// The addresses that nodes use for each other.
    pub(crate) addresses: BTreeMap<NodeId, String>,
    pub(crate) caller_env: Vec<(OsString, OsString)>,
    /// Steps that write to tiers in memory.
    pub(crate) writers: Arc<Writers>,
    /// The numbers of jobs that are none of Slurm's.
    pub(crate) jobs: SyntheticJobIds,
}

impl Deref for NodeContext {
    type Target = DataContext;

    fn deref(&self) -> &DataContext {
        &self.data
    }
}
