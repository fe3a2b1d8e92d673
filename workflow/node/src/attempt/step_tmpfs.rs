//! The private memory of a step that uses encrypted data: a file system that only the step and tarn see. tarn opens the sealed
//! inputs of the tiers into it before the command, and seals the outputs out of it.

use crate::attempt::step_needs::Need;
use crate::fds::reached;
use crate::storage::run_facts::RunFacts;
use crate::storage::store::{failure, stored_estimate};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use tarn_sys::memory::memory;
use tarn_types::event::{RunError, RunErrorKind};
use tarn_types::units::Bytes;
use tarn_types::workflow::Role;

/// The folder of a step's work folder over which it is mounted.
pub(crate) const MOUNT_FOLDER: &str = "room";
/// Of the memory that is free beside what is known to be needed, a step may take one in so many bytes: the rest is the programs'.
const SHARE: u64 = 2;
/// Bytes for the file system itself, and for a scratch folder with little in it.
const BESIDE: u64 = 16 << 20;
/// With less than this free, in bytes, it is full.
const FULL: u64 = 64 << 10;

/// Private memory of a step on a node.
#[derive(Debug)]
pub(crate) struct StepTmpfs {
    /// As the helper calls it until it shows parts of it to the step.
    inside: PathBuf,
    /// As this process reaches it.
    seen: PathBuf,
    /// Bytes that are known to be needed.
    pub(crate) needed: u64,
    bytes: u64,
    /// It is there as long as this is open.
    _top: OwnedFd,
}

/// How large it is to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepTmpfsSize {
    needed: u64,
    pub(crate) bytes: u64,
}

impl StepTmpfs {
    pub(crate) fn new(inside: PathBuf, top: OwnedFd, size: StepTmpfsSize) -> Self {
        Self {
            inside,
            seen: reached(&top),
            needed: size.needed,
            bytes: size.bytes,
            _top: top,
        }
    }

    /// A folder in it, for this process.
    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.seen.join(name)
    }

    /// The same folder for the helper; any other folder is itself.
    pub(crate) fn inside(&self, folder: &Path) -> PathBuf {
        match folder.strip_prefix(&self.seen) {
            Ok(below) => self.inside.join(below),
            Err(_) => folder.to_path_buf(),
        }
    }

    /// The path at which the helper has mounted it.
    pub(crate) fn mounted(&self) -> PathBuf {
        self.inside.clone()
    }

    /// The error text for a step that has failed while it was full.
    pub(crate) fn lack(&self) -> Option<String> {
        // The last component must not be a link.
        let stat = rustix::fs::statvfs(self.folder(".")).ok()?;
        let full = stat.f_bavail.saturating_mul(stat.f_frsize) < FULL;
        full.then(|| {
            format!(
                "out of memory: the private memory of {}, which holds its encrypted data and its scratch folder, is full; state the `size` of its output, ask for more memory, or leave `encrypt` out",
                Bytes(self.bytes)
            )
        })
    }
}

/// Whether a step needs private memory on node number `at`.
pub(crate) fn is_needed(shared: &RunFacts, needs: &[Need<'_>], at: usize) -> bool {
    let mut here = needs.iter().filter(|n| n.is_on(at));
    here.any(|n| shared.dataset(n.data).is_ok_and(|d| d.encrypt))
}

/// How large the private memory of a step on node number `at` is: its inputs, what is set aside for its outputs, and a share of what is left.
pub(crate) fn size(
    shared: &RunFacts,
    needs: &[Need<'_>],
    at: usize,
    reserve: u64,
) -> Result<StepTmpfsSize, RunError> {
    let mut needed = BESIDE;
    let mut writes = false;
    for need in needs.iter().filter(|n| n.is_on(at)) {
        if !shared.dataset(need.data)?.encrypt {
            continue;
        }
        writes |= need.role != Role::In;
        for held in need.held.get(at).into_iter().flatten() {
            needed = needed.saturating_add(stored_estimate(&shared.manifest(&held.key)?));
        }
    }
    if writes {
        needed = needed.saturating_add(reserve);
    }
    let memory = memory();
    let free = memory.map_err(|e| {
        failure(
            RunErrorKind::Io,
            format!("the free memory cannot be read: {e}"),
        )
    })?;
    let free = free.free;
    if needed > free {
        let message = format!(
            "its encrypted inputs and outputs take {} of memory while it runs, and {} are free; ask for more memory, divide the \
             data over more instances, or leave `encrypt` out",
            Bytes(needed),
            Bytes(free)
        );
        return Err(failure(RunErrorKind::NoSpace, message));
    }
    Ok(StepTmpfsSize {
        needed,
        bytes: needed.saturating_add((free - needed) / SHARE),
    })
}
