//! Files that a step wrote on a node become parts of its outputs' new versions.

use super::LocalNode;
use crate::attempt::node_task::PublishedPart;
use crate::storage::store::{io_failure, make_folder};
use crate::storage::untouched::{self, MarkValidity};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tarn_ports::{CopyJob, CopySource, Mover};
use tarn_types::event::RunError;
use tarn_types::id::DataId;
use tarn_types::manifest::Manifest;
use tarn_types::part::Verify;

/// Removes the files of a node's tree that are no part of the merged version: another node deleted them.
fn remove_superseded(
    mover: &dyn Mover,
    folder: &Path,
    tree: &Manifest,
    parts: &[PublishedPart],
) -> Result<(), RunError> {
    let kept: BTreeSet<&[u8]> = parts
        .iter()
        .flat_map(|p| p.manifest.entries.iter().map(|e| &*e.path))
        .collect();
    for entry in tree
        .entries
        .iter()
        .rev()
        .filter(|e| !kept.contains(&*e.path))
    {
        let path = folder.join(OsStr::from_bytes(&entry.path));
        if !entry.is_folder() {
            mover.remove(&path)?;
            continue;
        }
        // A folder that another part needs is not empty; one that none needs is.
        match std::fs::remove_dir(&path) {
            Err(e) if e.kind() != ErrorKind::DirectoryNotEmpty => {
                return Err(io_failure("remove", &path, &e));
            }
            _ => {}
        }
    }
    Ok(())
}

impl LocalNode<'_> {
    pub(super) fn publish(
        &mut self,
        data: DataId,
        parts: &[PublishedPart],
    ) -> Result<Vec<u64>, RunError> {
        let shared = self.of.shared;
        let folder = self.ready()?.outs.get(&data).cloned();
        let (Some(folder), Some(tree)) = (folder, self.trees.get(&data)) else {
            return Ok(Vec::new());
        };
        let dir = shared.tier_dir(self.tier_ref)?;
        make_folder(&dir.parts())?;
        if shared.dataset(data)?.encrypt {
            return self.publish_sealed(data, &folder, parts);
        }
        remove_superseded(&*shared.mover, &folder, tree, parts)?;
        let pieces: Vec<(&Manifest, PathBuf)> = parts
            .iter()
            .map(|p| (&*p.manifest, dir.part(&p.key)))
            .collect();
        for (_, path) in pieces.iter().filter(|(_, path)| path.exists()) {
            // An attempt commits once: only one whose record the log has lost since can have been here.
            shared.mover.remove(path)?;
        }
        self.published.extend(parts.iter().map(|p| p.key.clone()));
        shared.mover.split(&folder, &pieces)?;
        let mut all = Vec::with_capacity(parts.len());
        for (part, (_, path)) in parts.iter().zip(&pieces) {
            let _ = untouched::mark(path, MarkValidity::ThisBoot);
            let stored = shared.mover.stored(path)?;
            if let Some(reserved) = &mut self.reserved {
                reserved.arrived(&part.key, stored);
            }
            all.push(stored);
        }
        Ok(all)
    }

    /// Seals parts of an output out of its private memory.
    fn publish_sealed(
        &mut self,
        data: DataId,
        folder: &Path,
        parts: &[PublishedPart],
    ) -> Result<Vec<u64>, RunError> {
        let shared = self.of.shared;
        let dir = shared.tier_dir(self.tier_ref)?;
        make_folder(&dir.incoming())?;
        let mut all = Vec::with_capacity(parts.len());
        for part in parts {
            let dest = dir.part(&part.key);
            self.published.push(part.key.clone());
            let paths = part.manifest.entries.iter().map(|e| e.path.clone());
            let source = CopySource {
                manifest: Some(Manifest::clone(&part.manifest)),
                only: Some(paths.collect()),
                ..CopySource::of(folder)
            };
            let job = CopyJob {
                sources: vec![source],
                // An attempt commits once: only one whose record the log has lost since can have been here.
                replace: dest.exists(),
                dest: dest.clone(),
                staging: dir.incoming().join(&part.key.0),
                verify: Verify::Copy,
                sync: false,
                rate: 0,
                latency: 0,
                arrivals: None,
                seal: shared.new_key(data, &part.key)?,
            };
            let copied = shared.mover.copy(&job, &self.of.handle.control);
            copied.inspect_err(|_| drop(shared.mover.remove(&job.staging)))?;
            let _ = untouched::mark(&dest, MarkValidity::ThisBoot);
            let stored = shared.mover.stored(&dest)?;
            if let Some(reserved) = &mut self.reserved {
                reserved.arrived(&part.key, stored);
            }
            all.push(stored);
        }
        Ok(all)
    }
}
