//! Exports a part of a tier to a node that does not have it: a folder with a brick of GlusterFS, which a helper of its own serves.
//! docs/internals/shared-namespace.md, "A borrowed tier".
//!
//! On the tier it is `lent/<workspace>/<borrower>`: `brick` is the tier of the node that attaches it, everything else is for the time of the export.

use crate::attempt::writers::MemoryTierWriter;
use crate::helper::launch::{
    HelperLaunch, HelperProcess, LaunchError, Launcher, StepStopper, StopUrgency,
};
use crate::helper::namespaces::isolation;
use crate::helper::protocol::{HelperReport, Spec};
use crate::helper::provider::{NamespacePlan, ProviderAddress, tidy};
use crate::staging::inventory::HELPER_NOTE;
use crate::storage::ledger::{record_export, vacate};
use crate::storage::store::{disk_use, entries, is_folder, tail, warn};
use crate::storage::tier_folder::{make_private_folder, make_root};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use tarn_ports::CapabilityError;
use tarn_sys::memory::in_memory;
use tarn_types::layout::{EXPORTED, TierDir};

/// Held by the process that exports it.
const LOCK: &str = "lock";
/// The helper's log of errors.
const LOG: &str = "helper.log";
/// Bytes at the end of that which an error shows.
const LOG_SHOWN: usize = 600;

/// Which partition is exported, and to which node.
#[derive(Debug, Clone)]
pub struct Terms {
    /// The tarn binary, whose helper serves it.
    pub helper: PathBuf,
    /// The tier that is exported.
    pub root: PathBuf,
    /// Its name.
    pub tier: String,
    /// The workspace of the run.
    pub workspace: String,
    /// This node's name.
    pub lender: String,
    /// The name of the node that attaches it.
    pub borrower: String,
    /// How much it may hold.
    pub bytes: u64,
}

impl Terms {
    /// The export's folder, below the tier's root; its name in the ledger.
    fn name(&self) -> String {
        format!("{EXPORTED}/{}/{}", self.workspace, self.borrower)
    }

    fn folder(&self) -> PathBuf {
        self.root.join(self.name())
    }
}

/// Why a partition of a tier cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// This machine cannot serve one.
    #[error(transparent)]
    Capability(#[from] CapabilityError),
    /// Its folder cannot be used.
    #[error("{}: {source}", .folder.display())]
    Io {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another run holds the lock.
    #[error("another run lends it already")]
    Locked,
    /// The helper's reason, with the end of its log.
    #[error("{0}")]
    Helper(String),
    /// The helper has started no brick.
    #[error("its helper serves nothing")]
    NothingServed,
    /// The thread that serves it has ended without a word.
    #[error("an error inside tarnd")]
    Internal,
}

/// A partition of a tier that this node exports; dropping it ends the export.
#[derive(Debug)]
pub struct ExportedPartition {
    terms: Terms,
    stop: Arc<StepStopper>,
    provider_address: ProviderAddress,
    thread: Option<JoinHandle<()>>,
}

impl ExportedPartition {
    /// Enters it in the tier's ledger and serves it.
    ///
    /// # Errors
    /// Why not.
    pub fn begin(terms: Terms) -> Result<Self, ExportError> {
        let folder = terms.folder();
        let io = |source: io::Error| ExportError::Io {
            folder: folder.clone(),
            source,
        };
        crate::helper::provider::gluster::able(&terms.helper)?;
        make_root(&terms.root).map_err(io)?;
        let above = folder.ancestors().take(3).collect::<Vec<_>>();
        let made = above.into_iter().rev().try_for_each(make_private_folder);
        made.map_err(io)?;
        let lock = lock(&folder).map_err(io)?;
        let lock = lock.ok_or(ExportError::Locked)?;
        let stop = Arc::new(StepStopper::new().map_err(io)?);
        let (sender, began) = channel();
        let thread = {
            let (terms, stop) = (terms.clone(), Arc::clone(&stop));
            // The helper ends with the thread that started it.
            let thread = std::thread::Builder::new().name("tarn-lends".into());
            thread.spawn(move || serve(&terms, &stop, lock, &sender))
        };
        let thread = thread.map_err(io)?;
        let began = began.recv();
        let provider_address = began.unwrap_or(Err(ExportError::Internal));
        match provider_address {
            Ok(provider_address) => Ok(Self {
                terms,
                stop,
                provider_address,
                thread: Some(thread),
            }),
            Err(why) => {
                let _ = thread.join();
                Err(why)
            }
        }
    }

    /// The address at which it is reached, but for this node's own.
    pub fn provider_address(&self) -> &ProviderAddress {
        &self.provider_address
    }

    /// How it is watched, where the tier is in memory: a node that stores more than was exported while memory runs out loses it.
    pub(crate) fn writer(&self) -> Option<MemoryTierWriter> {
        in_memory(&self.terms.root).then(|| MemoryTierWriter {
            folders: vec![NamespacePlan::brick(&self.terms.folder())],
            reserve: self.terms.bytes,
            node: self.terms.borrower.clone(),
            tier: self.terms.tier.clone(),
            stop: Arc::clone(&self.stop),
        })
    }
}

impl Drop for ExportedPartition {
    fn drop(&mut self) {
        self.stop.ask(StopUrgency::Kill);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    terms: &Terms,
    stop: &StepStopper,
    lock: File,
    sender: &Sender<Result<ProviderAddress, ExportError>>,
) {
    let served = start(terms).map(|(helper, provider_address)| {
        let _ = sender.send(Ok(provider_address));
        watch(helper, stop)
    });
    match served {
        Ok(None) => {}
        Ok(Some(why)) => warn(&format!(
            "the partition exported to {} is served no more: {why}",
            terms.borrower
        )),
        Err(why) => drop(sender.send(Err(why))),
    }
    if let Err(e) = settle(&terms.root, &terms.name()) {
        let folder = terms.folder();
        warn(&format!("{} cannot be cleaned up: {e}", folder.display()));
    }
    drop(lock);
}

/// The helper, when the brick listens.
fn start(terms: &Terms) -> Result<(HelperProcess, ProviderAddress), ExportError> {
    let folder = terms.folder();
    let io = |source: io::Error| ExportError::Io {
        folder: folder.clone(),
        source,
    };
    // Data that an earlier run has left there is again that node's.
    let there = disk_use(&NamespacePlan::brick(&folder));
    record_export(
        &terms.root,
        &terms.name(),
        there,
        terms.bytes.saturating_sub(there),
    )
    .map_err(io)?;
    let isolate = isolation(&terms.helper, &folder)?;
    let log = File::create(folder.join(LOG)).map_err(io)?;
    let mut helper = HelperProcess::spawn(&terms.helper, log).map_err(io)?;
    helper.equip(HelperLaunch {
        spec: Spec {
            isolate,
            node: terms.lender.clone(),
            rename_host: false,
            locked: Vec::new(),
            stage: None,
            binds: Vec::new(),
            listen: None,
            cwd: folder.clone(),
            cpus: Vec::new(),
            env: Vec::new(),
            command: None,
            shared: Some(NamespacePlan {
                folder: folder.clone(),
                node: terms.lender.clone(),
                first: false,
                parts: Vec::new(),
                at: None,
            }),
            tmpfs: None,
            tmp: None,
            images: None,
        },
        note: folder.join(HELPER_NOTE),
        meter: None,
        on_image: None,
    });
    let with_log = |why: LaunchError| {
        let log = tail(&folder.join(LOG), LOG_SHOWN);
        ExportError::Helper(match log.trim() {
            "" => why.to_string(),
            log => format!("{why}; its log ends with: {log}"),
        })
    };
    helper.prepare().map_err(with_log)?;
    let provider_address = helper.ready().map_err(with_log)?;
    Ok((helper, provider_address.ok_or(ExportError::NothingServed)?))
}

/// Until it is to end, or ends by itself; why, if so.
fn watch(mut helper: HelperProcess, stop: &StepStopper) -> Option<String> {
    loop {
        if stop.take() > 0 {
            helper.end();
            return stop.overran().map(str::to_owned);
        }
        match helper.next_report() {
            Some(Some(HelperReport::Refused(why))) => return Some(why),
            Some(_) => return Some("its helper has gone".into()),
            None => {}
        }
        let stop = stop.fd();
        let mut fds = vec![PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        fds.extend(
            helper
                .fd()
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
        );
        let _ = poll(&mut fds, None);
    }
}

/// None: somebody has it.
fn lock(folder: &Path) -> io::Result<Option<File>> {
    let file = File::create(folder.join(LOCK))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// After an export, whose lock the caller has: removes its temporary files, and if no replica is left all of it.
fn settle(root: &Path, name: &str) -> io::Result<()> {
    let folder = root.join(name);
    let brick = NamespacePlan::brick(&folder);
    for entry in entries(&folder) {
        let stays = entry == brick || entry.file_name().is_some_and(|n| n == LOCK);
        if !stays {
            remove(&entry)?;
        }
    }
    if is_folder(&brick) {
        // Links to every file, by which the file system knows them.
        remove(&brick.join(".glusterfs"))?;
        for workspace in entries(&brick).iter().filter(|p| p.is_dir()) {
            for node in entries(workspace) {
                let dir = TierDir(node);
                remove(&dir.work())?;
                remove(&dir.incoming())?;
            }
            if let Some(name) = workspace.file_name().and_then(|n| n.to_str()) {
                vacate(&brick, name, 0)?;
            }
        }
        tidy(&brick)?;
    }
    let left = entries(&brick).iter().any(|p| p.is_dir());
    if left {
        return record_export(root, name, disk_use(&brick), 0);
    }
    remove(&folder)?;
    for above in folder.ancestors().skip(1).take(2) {
        // Others may be in it.
        let _ = std::fs::remove_dir(above);
    }
    record_export(root, name, 0, 0)
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(status) if status.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(e) => Err(e),
    };
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// An export that nobody serves, as long as this is there.
pub(crate) struct Idle {
    root: PathBuf,
    /// Below the root: `lent/<workspace>/<borrower>`.
    name: String,
    _lock: File,
}

impl Idle {
    /// The tier of the node that attached it.
    pub(crate) fn brick(&self) -> PathBuf {
        NamespacePlan::brick(&self.root.join(&self.name))
    }

    /// Brings it in order, and counts what is left as taken.
    pub(crate) fn settle(self) {
        if let Err(e) = settle(&self.root, &self.name) {
            let folder = self.root.join(&self.name);
            warn(&format!("{} cannot be cleaned up: {e}", folder.display()));
        }
    }
}

/// The exports of the tier at `root` that nobody serves, of one workspace or of all.
pub(crate) fn find_idle(root: &Path, workspace: Option<&str>) -> Vec<Idle> {
    let of = match workspace {
        Some(workspace) => vec![root.join(EXPORTED).join(workspace)],
        None => entries(&root.join(EXPORTED)),
    };
    let mut found = Vec::new();
    for folder in of.iter().flat_map(|w| entries(w)) {
        let name = folder.strip_prefix(root).ok().and_then(|n| n.to_str());
        if let (Some(name), Ok(Some(lock))) = (name, lock(&folder)) {
            found.push(Idle {
                root: root.to_owned(),
                name: name.to_owned(),
                _lock: lock,
            });
        }
    }
    found
}

/// Brings what dead runs have left of exports of this tier in order.
pub fn settle_idle(root: &Path) {
    find_idle(root, None).into_iter().for_each(Idle::settle);
}

/// The names of the nodes that have something on this tier from an earlier export to a workspace.
pub fn borrowers(root: &Path, workspace: &str) -> BTreeSet<String> {
    let folders = entries(&root.join(EXPORTED).join(workspace));
    let names = folders.iter().filter_map(|f| f.file_name()?.to_str());
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::ledger::used_by_all;

    #[test]
    fn after_a_loan_only_replicas_are_left_and_count() {
        let tier = tempfile::tempdir().unwrap();
        let root = tier.path();
        let export = root.join("lent/w-1/n2");
        let own = export.join("brick/w-1/n2");
        for folder in ["parts/k", "work/0.1", "incoming/x"] {
            std::fs::create_dir_all(own.join(folder)).unwrap();
        }
        std::fs::create_dir_all(export.join("brick/.glusterfs/00")).unwrap();
        std::fs::create_dir_all(export.join("links")).unwrap();
        for file in ["brick.vol", "brick.log", "lock"] {
            std::fs::write(export.join(file), "secret").unwrap();
        }
        let file = own.join("parts/k/file");
        std::fs::write(&file, vec![1; 5000]).unwrap();
        std::fs::hard_link(&file, export.join("brick/.glusterfs/00/link")).unwrap();
        assert_eq!(borrowers(root, "w-1"), ["n2".to_owned()].into());
        // Somebody serves it.
        let held = lock(&export).unwrap().unwrap();
        settle_idle(root);
        assert!(export.join("brick.vol").exists());
        drop(held);
        settle_idle(root);
        let mut left = entries(&export);
        left.sort();
        assert_eq!(left, [export.join("brick"), export.join("lock")]);
        assert!(
            file.exists()
                && !own.join("work").exists()
                && !export.join("brick/.glusterfs").exists()
        );
        assert!(used_by_all(root) >= 5000);
        std::fs::remove_dir_all(own.join("parts/k")).unwrap();
        settle_idle(root);
        assert!(!root.join("lent").exists());
        assert_eq!(used_by_all(root), 0);
    }
}
