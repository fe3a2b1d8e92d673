//! The data about a dataset that a run of another workflow needs to read it where it is stored.

use super::LockedVersion;
use crate::clock::wall;
use crate::error::{CliError, CliResult};
use tarn_journal::{ReplicaRow, RunLock, StoredAt};
use tarn_types::codes::Exit;
use tarn_types::manifest::Manifest;
use tarn_types::part::PartInfo;

/// The message about a dataset that may go at any time.
pub(crate) const NOT_KEPT: &str = "is not kept: it is only cached, its time is over, or the run that made it has failed; give it `keep` in that \
     workflow, and run that workflow again";

/// A part of a kept version.
pub(crate) struct StoredPart {
    /// As the run that made it has recorded it.
    pub(crate) info: PartInfo,
    /// The files that each replica must hold.
    pub(crate) manifest: Manifest,
    /// Its replicas on tiers of this machine whose folders are there; at least one.
    pub(crate) rows: Vec<ReplicaRow>,
}

impl LockedVersion {
    /// The workflow that the dataset belongs to.
    pub(crate) fn workflow(&self) -> &str {
        self.rows.first().map_or("", |r| &r.workflow)
    }

    /// The lock that keeps others from changing it.
    pub(crate) fn into_lock(self) -> RunLock {
        self.lock
    }

    /// The parts of the newest version, of which everything is kept on tiers of this machine.
    pub(crate) fn stored(&self) -> CliResult<Vec<StoredPart>> {
        let name = match self.rows.first() {
            Some(row) => format!("`{}` of workflow {}", row.dataset, row.workflow),
            None => return Ok(Vec::new()),
        };
        let refused = |exit, why: &str| Err(CliError::new(exit, format!("{name} {why}")));
        let parts = match self.made(&self.rows, None)? {
            (parts, None) => parts,
            (_, Some(lack)) => {
                let why = format!("cannot be read: {}. {}", lack.why, lack.remedy);
                return refused(Exit::NotFound, &why);
            }
        };
        let mut all = Vec::with_capacity(parts.len());
        for choice in self.choices(&parts)? {
            let of_part = choice.replicas.iter().copied();
            let on_nodes = of_part.filter(|r| matches!(r.at, StoredAt::Node { .. }));
            let on_nodes: Vec<&ReplicaRow> = on_nodes.collect();
            let mut rows = on_nodes.clone();
            rows.retain(|r| r.is_kept(wall()));
            match (on_nodes.first(), rows.is_empty()) {
                (None, _) => {
                    let at = choice.replicas.first().map(|r| r.path());
                    let at = at.unwrap_or_default();
                    let why = format!(
                        "is stored in {} only, on no tier; name that place as `source`",
                        at.display()
                    );
                    return refused(Exit::NotFound, &why);
                }
                (Some(_), true) => {
                    return refused(Exit::NotFound, NOT_KEPT);
                }
                _ => {}
            }
            rows.retain(|r| r.path().is_dir());
            if rows.is_empty() {
                let why =
                    "is gone: somebody has removed it from its tier; have that workflow run again";
                return refused(Exit::NotFound, why);
            }
            if choice.key.is_some() {
                return refused(
                    Exit::Usage,
                    "is encrypted, and only that workflow reads it; `tarn data get` copies it out",
                );
            }
            let info = rows.first().and_then(|r| parts.get(&r.key));
            if let Some(info) = info {
                all.push(StoredPart {
                    info: info.clone(),
                    manifest: choice.manifest,
                    rows: rows.into_iter().cloned().collect(),
                });
            }
        }
        if all.is_empty() {
            refused(Exit::NotFound, "has no parts")
        } else {
            Ok(all)
        }
    }
}
