//! Names that steps see beside their datasets: scratch folder, checkpoints, command and partitions.

use crate::helper::command::COMMAND;
use crate::storage::run_facts::RunFacts;
use tarn_types::nodes::OwnedNodes;
use tarn_types::workflow::StoragePartition;

/// The name of the scratch folder beside the datasets; no dataset can have it.
pub(crate) const SCRATCH: &str = ".scratch";
/// The name of the folder of checkpoints beside the datasets; no dataset can have it.
pub(crate) const CHECKPOINTS: &str = ".checkpoints";
/// The folder in which steps see the socket for pieces of partitions on other nodes; no dataset can have this name.
pub(crate) const SOCKET_VIEW: &str = ".partitions";

/// All that steps see beside each other, whether it is on a node of a step or not.
pub(crate) fn mount_points(shared: &RunFacts) -> Vec<String> {
    let names = shared.workflow.data.iter().map(|d| d.name.clone());
    let own = [SCRATCH, CHECKPOINTS, COMMAND].map(str::to_owned);
    let own = own.into_iter().chain(names);
    own.chain(partition_mount_points(shared)).collect()
}

/// The names of partitions in the steps' view, beside the datasets; no dataset can have these names.
fn partition_mount_points(shared: &RunFacts) -> impl Iterator<Item = String> {
    let all = shared.workflow.partitions.iter().flat_map(|p| {
        let nodes = p.steps.iter();
        let nodes = nodes.filter_map(|s| Some(shared.workflow.steps.get(s.at())?.nodes));
        let pieces = match p.spread {
            Some(_) => nodes.max().unwrap_or(1) as usize,
            None => 1,
        };
        (0..pieces).map(|at| partition_mount_point(p, at))
    });
    let mut partitions = shared.workflow.partitions.iter();
    let apart = shared.own != OwnedNodes::All && partitions.any(|p| p.spread.is_some());
    all.chain(apart.then(|| SOCKET_VIEW.to_owned()))
}

/// The name of one partition, or of one piece of it.
pub(crate) fn partition_mount_point(about: &StoragePartition, at: usize) -> String {
    match about.spread {
        Some(_) => format!(".partition.{}.{at}", about.name),
        None => format!(".partition.{}", about.name),
    }
}
