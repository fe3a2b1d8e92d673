//! The partitions of an attempt on a node: made before its command starts, shown to it, and removed with its work folder; or kept, beside
//! checkpoints, until the engine has them removed.
//!
//! One that is spread over nodes that are not all this world's is reached on each of them through whoever has the node ([`export_pieces`]).

use crate::attempt::node_context::NodeContext;
use crate::attempt::step_view::{SOCKET_VIEW, partition_mount_point};
use crate::storage::checkpoint_folders::CheckpointFolders;
use crate::storage::data_context::DataContext;
use crate::storage::ledger::Reservation;
use crate::storage::run_facts::RunFacts;
use crate::storage::store::{failure, make_folder};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tarn_ports::{Pieces, STEP_SPACE};
use tarn_types::action::{AttemptSpec, PartitionAssignment};
use tarn_types::event::{RunError, RunErrorKind};
use tarn_types::id::TierRef;
use tarn_types::part::StoreKey;
use tarn_types::workflow::{KeepPartition, StoragePartition};

/// Beside scratch folders: those of partitions, each of its name.
const FOLDER: &str = "partitions";

/// Beside scratch folders: that of the socket for pieces on other nodes, and its name there.
const SOCKET_FOLDER: &str = "door";
const SOCKET: &str = "tarnd";
/// A partition of an attempt.
pub(crate) struct AttemptPartition<'a> {
    about: &'a StoragePartition,
    assignment: &'a PartitionAssignment,
}

/// One as a step sees it.
pub(crate) struct SeenPartition {
    pub(crate) name: String,
    /// Its names for `dsa_open`; several, in order, if it is spread.
    pub(crate) names: Vec<PathBuf>,
    /// Whether these are pieces on nodes that are not all this world's, which programs reach by a socket.
    pub(crate) apart: bool,
    /// Bytes of a block of one that is spread.
    pub(crate) block: Option<u64>,
}

/// The partitions of an attempt.
pub(crate) fn of<'a>(
    shared: &'a RunFacts,
    run: &'a AttemptSpec,
) -> Result<Vec<AttemptPartition<'a>>, RunError> {
    let known = |assignment: &'a PartitionAssignment| {
        let about = shared.workflow.partitions.get(assignment.partition.at());
        let about = about.filter(|_| assignment.tier_refs.len() == run.nodes.len());
        let why = || failure(RunErrorKind::Launch, "the workflow has no such partition");
        about
            .map(|about| AttemptPartition { about, assignment })
            .ok_or_else(why)
    };
    run.partitions.iter().map(known).collect()
}

/// Lets the programs of the step have the pieces of those that are on nodes of other worlds too, if there are any, until what is returned is
/// dropped. This node's were made.
pub(crate) fn export_pieces(
    (shared, run): (&DataContext, &AttemptSpec),
    at: usize,
    work: &Path,
) -> Result<Option<Box<dyn Send>>, RunError> {
    let all = of(shared, run)?;
    let apart = all.iter().filter(|p| p.is_apart(shared));
    let folder = |p: &AttemptPartition<'_>| Ok((p.about.name.clone(), p.folder(shared, run, at)?));
    let folders = apart.map(folder);
    let folders = folders.collect::<Result<BTreeMap<_, _>, RunError>>()?;
    if folders.is_empty() {
        return Ok(None);
    }
    let none = || {
        let text = "a partition is on nodes that cannot be reached from here";
        failure(RunErrorKind::Launch, text)
    };
    let peers = shared.peers.as_ref().ok_or_else(none)?;
    let socket_folder = work.join(SOCKET_FOLDER);
    make_folder(&socket_folder)?;
    let pieces = Pieces {
        step: (run.instance, run.attempt),
        folders,
        socket: socket_folder.join(SOCKET),
    };
    peers.export_pieces(pieces).map(Some)
}

/// The socket's path as the step sees it, if any of its partitions needs one. `show` gives the path at which the step sees a
/// folder.
pub(crate) fn socket(
    seen: &[SeenPartition],
    work: &Path,
    mut show: impl FnMut(PathBuf, &str) -> PathBuf,
) -> Option<PathBuf> {
    let apart = seen.iter().any(|p| p.apart);
    apart.then(|| show(work.join(SOCKET_FOLDER), SOCKET_VIEW).join(SOCKET))
}

/// The name of one that is kept, beside the checkpoints of instances; none of these can have it.
pub(crate) fn beside(key: &StoreKey) -> String {
    format!(".{}", key.0)
}

impl AttemptPartition<'_> {
    fn is_kept(&self) -> bool {
        self.about.keep == KeepPartition::Workflow
    }

    /// Whether it is spread over nodes that are not all this world's.
    fn is_apart(&self, shared: &RunFacts) -> bool {
        let mut tier_refs = self.assignment.tier_refs.iter();
        self.about.spread.is_some() && tier_refs.any(|s| !shared.own.has(s.node))
    }

    fn tier_ref(&self, at: usize) -> TierRef {
        self.assignment.tier_refs[at]
    }

    /// The folder that has it at a position of the step.
    fn folder(&self, shared: &RunFacts, run: &AttemptSpec, at: usize) -> Result<PathBuf, RunError> {
        if self.is_kept() {
            return Ok(self.kept(shared, at)?.tier);
        }
        let work = shared.work_folder(run, self.tier_ref(at))?;
        Ok(work.join(FOLDER).join(&self.about.name))
    }

    fn kept(&self, shared: &RunFacts, at: usize) -> Result<CheckpointFolders, RunError> {
        CheckpointFolders::named(shared, beside(&self.assignment.key), self.tier_ref(at))
    }

    fn is_there(&self, shared: &RunFacts, at: usize) -> Result<bool, RunError> {
        let file = self.about.file();
        Ok(self.is_kept() && self.kept(shared, at)?.tier.join(file).is_file())
    }

    /// Claims its space at a position, if it is not there.
    pub(crate) fn reserve<'s>(
        &self,
        shared: &'s DataContext,
        at: usize,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<Reservation<'s>>, RunError> {
        if self.is_there(shared, at)? {
            return Ok(None);
        }
        if self.assignment.filled {
            let node = shared.cluster.nodes.get(self.tier_ref(at).node.at());
            let message = format!(
                "its partition `{}` is not on node `{}` any more, with the data that steps wrote to it; `tarn run` starts again",
                self.about.name,
                node.map_or("?", |n| n.name.as_str()),
            );
            return Err(failure(RunErrorKind::Launch, message));
        }
        let bytes = self.about.takes(self.assignment.tier_refs.len());
        shared
            .reserve(self.tier_ref(at), bytes, cancelled)
            .map(Some)
    }

    /// Makes it at a position, if it is not there: it has its name when it is whole. Its space was claimed.
    pub(crate) fn make(
        &self,
        (shared, run): (&NodeContext, &AttemptSpec),
        at: usize,
        reserved: Option<&mut Reservation<'_>>,
    ) -> Result<(), RunError> {
        if self.is_there(shared, at)? {
            return Ok(());
        }
        let folder = self.folder(shared, run, at)?;
        make_folder(&folder)?;
        let bytes = self.about.on_each(self.assignment.tier_refs.len());
        let unit = self.about.unit.unwrap_or(0);
        let made = (shared.partitions)(&folder, &self.about.name, bytes, unit);
        made.map_err(|f| RunError {
            message: format!("its partition `{}`: {}", self.about.name, f.message),
            ..f
        })?;
        if self.is_kept() {
            let stored = shared.mover.stored(&folder)?;
            let key = self.kept(shared, at)?.key;
            match reserved {
                Some(reserved) => reserved.arrived(&key, stored),
                None => shared.ledgers.found(self.tier_ref(at), &key, stored),
            }
        }
        Ok(())
    }

    /// The work folder that it has beside the step's own, on a tier of its own.
    pub(crate) fn work_beside(
        &self,
        shared: &RunFacts,
        run: &AttemptSpec,
        at: usize,
    ) -> Option<PathBuf> {
        let apart = !self.is_kept() && run.nodes.get(at) != Some(&self.tier_ref(at));
        apart.then(|| shared.work_folder(run, self.tier_ref(at)).ok())?
    }

    /// The partition as the step sees it at a position. `show` gives the path at which the step sees a folder.
    pub(crate) fn seen(
        &self,
        (shared, run): (&RunFacts, &AttemptSpec),
        at: usize,
        mut show: impl FnMut(PathBuf, &str) -> PathBuf,
    ) -> Result<SeenPartition, RunError> {
        let pieces = match self.about.spread {
            Some(_) => 0..self.assignment.tier_refs.len(),
            None => at..at + 1,
        };
        let (name, apart) = (&self.about.name, self.is_apart(shared));
        let names = pieces.map(|piece| {
            if apart {
                // The same on all nodes: the environment goes from one to the other.
                let node = shared.node_name(self.tier_ref(piece).node);
                return Ok(PathBuf::from(format!("{node}:{STEP_SPACE}/{name}")));
            }
            let folder = self.folder(shared, run, piece)?;
            Ok(show(folder, &partition_mount_point(self.about, piece)).join(name))
        });
        let names: Vec<PathBuf> = names.collect::<Result<_, RunError>>()?;
        fit(name, &names)?;
        Ok(SeenPartition {
            name: name.clone(),
            names,
            apart,
            block: self.about.spread,
        })
    }
}

/// Whether the names of a partition's pieces fit into one variable; Linux starts no program with a longer one.
fn fit(name: &str, pieces: &[PathBuf]) -> Result<(), RunError> {
    let most = StoragePartition::MOST_NAMES;
    let bytes = pieces
        .iter()
        .map(|p| p.as_os_str().len() + 1)
        .sum::<usize>();
    if bytes <= most {
        return Ok(());
    }
    let message = format!(
        "the names of the {} pieces of its partition `{name}` have {bytes} bytes, and at most {most} fit into $TARN_PARTITION_{name}: \
         give the step fewer `nodes`, or tiers with shorter paths",
        pieces.len()
    );
    Err(failure(RunErrorKind::Launch, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_program_can_be_started_with_are_refused() {
        let of = |pieces: usize, bytes: usize| {
            let piece = |at| PathBuf::from(format!("/{at:0>0$}", bytes - 2));
            (0..pieces).map(piece).collect::<Vec<_>>()
        };
        // With commas.
        fit("field", &of(1000, 120)).unwrap();
        let why = fit("field", &of(1001, 120)).unwrap_err().message;
        let wanted =
            "1001 pieces of its partition `field` have 120120 bytes, and at most 120000 fit";
        assert!(why.contains(wanted), "{why}");
    }
}
