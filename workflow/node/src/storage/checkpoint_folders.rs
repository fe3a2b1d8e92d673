//! The checkpoints of steps that resume from them: folders that outlive an attempt, on the tier of its node and in memory.

use crate::storage::data_context::DataContext;
use crate::storage::run_facts::RunFacts;
use crate::storage::store::{entries, failure, io_failure, make_folder, warn};
use crate::storage::tier_folder::make_private_folder;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tarn_ports::MoverError;
use tarn_types::event::{RunError, RunErrorKind};
use tarn_types::id::{InstanceId, TierRef};
use tarn_types::layout::TierDir;
use tarn_types::part::StoreKey;
use tarn_types::workflow::CheckpointMethod;

/// The folders for an instance's checkpoints on a node.
pub(crate) struct CheckpointFolders {
    /// Of this run and instance, and of no other.
    pub(crate) name: String,
    pub(crate) tier: PathBuf,
    /// The folder in which libtarn stages. Made by the program.
    pub(crate) memory: PathBuf,
    /// Under which the space is accounted that they take while no attempt has claimed it.
    pub(crate) key: StoreKey,
}

/// The same as a step sees it.
pub(crate) struct StepCheckpointView {
    pub(crate) folder: PathBuf,
    /// Only for libtarn.
    pub(crate) memory: Option<PathBuf>,
    pub(crate) name: String,
}

/// In memory, what is staged of all runs of a workspace.
pub(crate) fn memory(workspace: &str) -> PathBuf {
    own_memory().join(workspace)
}

/// In memory, what is staged of a run.
pub fn staged(workspace: &str, run: &str) -> PathBuf {
    memory(workspace).join(run)
}

/// A folder that nobody else can write to.
pub(crate) fn own_memory() -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    PathBuf::from(format!("/dev/shm/tarn-phx-{user}"))
}

fn key(instance: &str) -> StoreKey {
    StoreKey(format!("checkpoints/{instance}"))
}

impl CheckpointFolders {
    pub(crate) fn new(
        shared: &RunFacts,
        id: InstanceId,
        tier_ref: TierRef,
    ) -> Result<Self, RunError> {
        let step = shared.workflow.steps.get(id.step.at());
        let step =
            step.ok_or_else(|| failure(RunErrorKind::Launch, "the workflow has no such step"))?;
        Self::named(shared, format!("{}-{}", step.name, id.index), tier_ref)
    }

    /// Those of an instance with this name.
    pub(crate) fn named(
        shared: &RunFacts,
        instance: String,
        tier_ref: TierRef,
    ) -> Result<Self, RunError> {
        let tier = shared.tier_dir(tier_ref)?.checkpoints().join(&shared.run);
        Ok(Self {
            name: format!("{}.{instance}", shared.run),
            tier: tier.join(&instance),
            memory: memory(&shared.workspace).join(&shared.run).join(&instance),
            key: key(&instance),
        })
    }

    /// The name of its folder in the run's.
    pub(crate) fn instance(&self) -> &str {
        self.tier
            .file_name()
            .and_then(|n| n.to_str())
            .unwrap_or_default()
    }

    pub(crate) fn make(&self, from: CheckpointMethod) -> Result<(), RunError> {
        if from == CheckpointMethod::Phx {
            let memory = own_memory();
            make_private_folder(&memory).map_err(|e| io_failure("use the folder", &memory, &e))?;
        }
        make_folder(&self.tier)
    }

    /// Counts what is on the tier.
    pub(crate) fn account(&self, shared: &DataContext, tier_ref: TierRef) {
        let stored = shared.mover.stored(&self.tier).unwrap_or(0);
        shared.ledgers.found(tier_ref, &self.key, stored);
    }
}

/// Counts what a run has on a tier.
pub(crate) fn account_all(shared: &DataContext, tier_ref: TierRef, run: &Path) {
    for instance in entries(run) {
        let name = instance.file_name().unwrap_or_default().to_string_lossy();
        let stored = shared.mover.stored(&instance).unwrap_or(0);
        shared.ledgers.found(tier_ref, &key(&name), stored);
    }
}

/// Checkpoints that are to be removed, where no attempt looks for them.
pub(crate) struct Aside {
    tier_ref: TierRef,
    folders: [PathBuf; 2],
    key: StoreKey,
}

/// Takes the checkpoints of an instance out of the way of further attempts there, into folders that the next clean-up removes.
pub(crate) fn set_aside(
    shared: &DataContext,
    kept: &CheckpointFolders,
    tier_ref: TierRef,
) -> Option<Aside> {
    // As often as an instance is done again.
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let work = shared.tier_dir(tier_ref).ok()?.work();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("{}.{}.{number}", kept.name, std::process::id());
    let folders = [work.join(&name), memory(&shared.workspace).join(&name)];
    let away = |from: &Path, to: &Path| match std::fs::rename(from, to) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(io_failure("rename", from, &e)),
        _ => Ok(()),
    };
    let moved = make_folder(&work)
        .and_then(|()| away(&kept.tier, &folders[0]))
        .and_then(|()| away(&kept.memory, &folders[1]));
    if let Err(f) = moved {
        warn(&format!("{}; the next clean-up tries again", f.message));
        return None;
    }
    let key = key(&name);
    shared.ledgers.renamed(tier_ref, &kept.key, &key);
    Some(Aside {
        tier_ref,
        folders,
        key,
    })
}

/// Removes what was set aside.
pub(crate) fn forget(shared: &DataContext, all: &[Aside]) {
    for aside in all {
        if aside.folders.iter().all(|folder| remove(shared, folder)) {
            shared.ledgers.left(aside.tier_ref, &aside.key);
        }
    }
}

/// The checkpoints of all steps go from the own nodes.
pub(crate) fn remove_all(shared: &DataContext) {
    for (tier_ref, node, tier) in shared.own_tiers() {
        let dir = TierDir::new(&tier.root, &shared.workspace, &node.name);
        let own = entries(&dir.checkpoints().join(&shared.run));
        if remove(shared, &dir.checkpoints()) {
            // Checkpoints that were to go before a crash, and are no step's any more.
            let names = own.iter().filter_map(|path| path.file_name());
            names.for_each(|name| shared.ledgers.left(tier_ref, &key(&name.to_string_lossy())));
        }
    }
    remove(shared, &memory(&shared.workspace));
}

fn remove(shared: &DataContext, folder: &Path) -> bool {
    let removed = shared.mover.remove(folder);
    if let Err(MoverError { failure: f, .. }) = &removed {
        warn(&format!("{}; the next clean-up tries again", f.message));
    }
    removed.is_ok()
}
