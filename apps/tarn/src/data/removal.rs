//! Removal of replicas between runs: the catalogue's record, the bytes, and the space that the tiers' ledgers count.

use crate::clock::wall;
use crate::error::{CliError, CliResult, ExitWith};
use crate::print::message;
use anyhow::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tarn_journal::{Catalogue, ChangeKind, ReplicaChange, ReplicaRow, StoredAt};
use tarn_ports::Mover;
use tarn_types::codes::Exit;
use tarn_types::units::Bytes;

pub(super) fn change_of(row: &ReplicaRow, change: ChangeKind) -> ReplicaChange {
    ReplicaChange {
        wall: wall(),
        key: row.key.clone(),
        at: row.at.clone(),
        change,
    }
}

/// Removes replicas: first the record, then the bytes, so that nothing half removed is ever taken for data. Replicas on nodes
/// that cannot be seen from here are only released: the next run that has these nodes removes them.
pub(super) fn remove_replicas(
    catalogue: &mut Catalogue,
    rows: &[ReplicaRow],
    mover: &dyn Mover,
) -> CliResult<u64> {
    let ours = rows
        .iter()
        .filter(|r| !matches!(r.at, StoredAt::External(_)));
    let (ours, far): (Vec<_>, Vec<_>) = ours.partition(|r| is_here(&r.at));
    let let_go = far
        .iter()
        .map(|r| change_of(r, ChangeKind::KeptUntil(Some(wall()))));
    let removed = ours.iter().map(|r| change_of(r, ChangeKind::Removed));
    let changes: Vec<_> = removed.chain(let_go).collect();
    if !far.is_empty() {
        message!(
            "{} are stored on {}, which only a run in an allocation that has them reaches: the next `tarn run` there, or `tarn data rm --orphans`, removes them",
            Bytes(far.iter().map(|r| r.stored).sum()),
            nodes_elsewhere(far.iter().copied())
        );
    }
    catalogue.record(&changes).exit(Exit::State)?;
    erase(catalogue, &ours, mover).map_err(|e| {
        let text = format!(
            "{e}. tarn does not use the data any more; the next `tarn run`, or `tarn data rm --orphans`, removes what is left of it"
        );
        CliError::new(e.exit, text)
    })
}

/// Removes the bytes of replicas that are not recorded any more; how many these were.
fn erase(catalogue: &Catalogue, ours: &[&ReplicaRow], mover: &dyn Mover) -> CliResult<u64> {
    debug_assert!(
        ours.iter().all(|r| is_here(&r.at)),
        "only what this machine sees is erased by it"
    );
    let mut freed: BTreeMap<(&Path, &str), u64> = BTreeMap::new();
    let mut sum = 0;
    for r in ours {
        let path = r.path();
        // A replica that is gone already is in no ledger any more.
        let stored = if is_there(r, mover)? { r.stored } else { 0 };
        sum += stored;
        match &r.at {
            StoredAt::Node { root, .. } => {
                mover.remove(&path).exit(Exit::State)?;
                *freed.entry((root, &r.workspace)).or_default() += stored;
            }
            _ => tarn_node::remove_drained(&path, &r.workspace, mover)
                .map_err(|failure| CliError::new(Exit::State, failure.message))?,
        }
        forget_key(catalogue, r, mover)?;
    }
    for ((root, workspace), bytes) in freed {
        tarn_node::vacate(root, workspace, bytes)
            .with_context(|| format!("cannot update the ledger of the tier at {}", root.display()))
            .exit(Exit::State)?;
    }
    Ok(sum)
}

/// Whether a replica that this machine sees is there.
fn is_there(row: &ReplicaRow, mover: &dyn Mover) -> CliResult<bool> {
    tarn_node::is_there(&row.path(), &row.workspace, mover)
        .map_err(|failure| CliError::new(Exit::State, failure.message))
}

/// The key of a part that was encrypted is forgotten with its last replica.
fn forget_key(catalogue: &Catalogue, row: &ReplicaRow, mover: &dyn Mover) -> CliResult<()> {
    let all = catalogue
        .replicas(&row.workflow, Some(&row.dataset))
        .exit(Exit::State)?;
    let sealed = |r: &&ReplicaRow| !matches!(r.at, StoredAt::External(_));
    for same in all.iter().filter(sealed).filter(|r| r.key == row.key) {
        if !is_here(&same.at) || is_there(same, mover)? {
            return Ok(());
        }
    }
    let forgotten =
        tarn_node::keys::forget_key(catalogue.state(), &row.workspace, &row.dataset, &row.key);
    forgotten.map_err(|failure| CliError::new(Exit::State, failure.message))
}

/// Whether this machine sees data there: only nodes of an allocation see data on them.
pub(super) fn is_here(at: &StoredAt) -> bool {
    match at {
        StoredAt::Node { name, machine, .. } => {
            !machine || *name == tarn_node::machine::host_name()
        }
        StoredAt::External(_) | StoredAt::Drained(_) => true,
    }
}

/// The names of the nodes that have such rows and are not seen from here.
pub(super) fn nodes_elsewhere<'a>(rows: impl Iterator<Item = &'a ReplicaRow>) -> String {
    let names = rows.filter_map(|r| match &r.at {
        StoredAt::Node { name, .. } if !is_here(&r.at) => Some(name.as_str()),
        _ => None,
    });
    names
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect::<Vec<_>>()
        .join(", ")
}

/// Removes the replicas that nobody keeps any more, of a workflow whose lock the caller holds.
pub(crate) fn remove_expired(
    catalogue: &mut Catalogue,
    workflow: &str,
    mover: &dyn Mover,
) -> CliResult<()> {
    let mut rows = catalogue.expired(wall()).exit(Exit::State)?;
    rows.retain(|r| r.workflow == workflow && is_here(&r.at));
    if rows.is_empty() {
        return Ok(());
    }
    let bytes = remove_replicas(catalogue, &rows, mover)?;
    print_freed(bytes, "kept no longer");
    Ok(())
}

/// Says how much space the removal of replicas has freed, if that is anything: those of empty parts take none.
pub(super) fn print_freed(bytes: u64, what: &str) {
    if bytes > 0 {
        message!("{} freed: {what}", Bytes(bytes));
    }
}
