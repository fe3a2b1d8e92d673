//! Destinations outside: what tarn has put there is replaced, what somebody else has put or changed there never.
//!
//! `<state>/dests/<workspace>/<hash of the folder's path>` has two kinds of manifests: `.manifest` tells what tarn
//! has put there, `.intent` what it is about to put there.

mod exchange;

use crate::shared::Shared;
use crate::store::failure;
use crate::store::{
    alike, first_difference, is_folder, make_folder, read_manifest, write_manifests,
};
use crate::transfer::remove_file;
use exchange::{dispose, rename_new, swap};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use std::io;
use std::path::{Path, PathBuf};
use tarn_base::event::{Failure, FailureKind};
use tarn_base::hash::Hash;
use tarn_base::layout::StateDir;
use tarn_base::manifest::{Entry, Manifest};
use tarn_base::merge;
use tarn_base::object::is_object;
use tarn_base::workflow::OnFailure;
use tarn_ports::{Control, Mover, MoverError};

/// The folder that a destination stands for: what a link given as `dest` points to.
pub(crate) fn real_folder(dest: &Path) -> Result<PathBuf, String> {
    if !dest.is_symlink() {
        return Ok(dest.to_path_buf());
    }
    match std::fs::canonicalize(dest) {
        Ok(real) if real.is_dir() => Ok(real),
        Ok(real) => Err(format!(
            "the destination {} is a link to {}, which is no folder; let it point to a folder or remove it",
            dest.display(),
            real.display()
        )),
        Err(e) => Err(format!(
            "the destination {} is a link that leads nowhere: {e}; let it point to a folder or remove it",
            dest.display()
        )),
    }
}

/// What is remembered of one folder.
struct Memory {
    /// What tarn has put there.
    known: PathBuf,
    /// What it is about to put there.
    intended: PathBuf,
}

impl Memory {
    fn of(state: &StateDir, workspace: &str, folder: &Path) -> Self {
        let name = Hash::of(folder.as_os_str().as_encoded_bytes()).to_string();
        let base = state.dests(workspace).join(name);
        Self {
            known: base.with_extension("manifest"),
            intended: base.with_extension("intent"),
        }
    }

    /// What is remembered, as far as it can be read.
    fn manifests(&self) -> Vec<Manifest> {
        let files = [&self.known, &self.intended];
        files.iter().filter_map(|f| read_manifest(f).ok()).collect()
    }

    /// What lies in a folder and may be replaced: nothing, what tarn has put there, or what it was about to put
    /// there; `None` when there is no folder.
    ///
    /// # Errors
    /// The first path that is somebody else's, or why that cannot be told.
    fn replaceable(&self, folder: &Path, mover: &dyn Mover) -> Result<Option<Manifest>, String> {
        if folder.symlink_metadata().is_err() {
            return Ok(None);
        }
        if !is_folder(folder) {
            return Err("it is no folder".into());
        }
        let listed = mover.list(folder, &Control::default());
        let listed = listed.map_err(|MoverError { failure: f, .. }| f.message)?;
        let nothing = Manifest::default();
        let mut why = String::new();
        // The last is what is told: it is what tarn has put there, if it ever did.
        for allowed in [nothing]
            .into_iter()
            .chain(self.manifests().into_iter().rev())
        {
            match stranger(&listed, &allowed) {
                None => return Ok(Some(allowed)),
                Some(path) => why = path,
            }
        }
        Err(why)
    }
}

/// What is in a tree and not recorded, or else what is recorded and gone.
fn stranger(listed: &Manifest, recorded: &Manifest) -> Option<String> {
    let within = |tree: &Manifest, e: &&Entry| tree.find(&e.path).is_some_and(|o| alike(e, o));
    let strange = listed.entries.iter().find(|e| !within(recorded, e));
    let gone = || recorded.entries.iter().find(|e| !within(listed, e));
    let entry = strange.or_else(gone)?;
    Some(format!("`{}`", String::from_utf8_lossy(&entry.path)))
}

/// Whether a folder holds just what a file of the memory says.
fn holds(folder: &Path, memory: &Path, mover: &dyn Mover) -> bool {
    let Ok(known) = read_manifest(memory) else {
        return false;
    };
    mover
        .list(folder, &Control::default())
        .is_ok_and(|listed| first_difference(&listed, &known).is_none())
}

/// The run ended well: what a failed rescue of it left half copied is of no use any more. What cannot be removed stays.
pub(crate) fn drop_half_rescues(shared: &Shared) {
    let w = &shared.workflow;
    for dataset in w.data.iter().filter(|d| d.on_failure == OnFailure::Drain) {
        let above = dataset.dest.as_ref().and_then(|d| d.parent());
        let Some(external) = w.external.as_deref().or(above) else {
            continue;
        };
        let folder = external.join(format!("rescued-{}", shared.run));
        // What is half put there is found and replaced by the next rescue.
        if is_object(&folder) {
            continue;
        }
        let half = format!(".{}.tarn-{}", dataset.name, shared.workspace);
        let _ = shared.mover.remove(&folder.join(&half));
        let _ = std::fs::remove_file(folder.join(format!("{half}.progress")));
        // Not while it holds a complete rescue.
        let _ = std::fs::remove_dir(folder);
    }
}

/// A tree of an object store has been put: remember what it holds, as the store tells it.
pub(crate) fn delivered(shared: &Shared, dest: &Path, control: &Control) -> Result<(), Failure> {
    let holds = shared.mover.list(dest, control)?;
    make_folder(&shared.state.dests(&shared.workspace))?;
    let memory = Memory::of(&shared.state, &shared.workspace, dest);
    write_manifests([(memory.known.as_path(), &holds)], true)
}

/// Whether the destination still holds what an earlier run put there: nothing added, removed or changed.
pub fn destination_intact(
    state: &StateDir,
    workspace: &str,
    dest: &Path,
    mover: &dyn Mover,
) -> bool {
    real_folder(dest)
        .is_ok_and(|real| holds(&real, &Memory::of(state, workspace, &real).known, mover))
}

/// Whether tarn may write this destination: it is missing or empty, or holds exactly what tarn put there, or what an
/// interrupted run was about to. For the check before a run starts.
///
/// # Errors
/// The sentence to show when it may not.
pub fn check_destination(
    state: &StateDir,
    workspace: &str,
    dataset: &str,
    dest: &Path,
    mover: &dyn Mover,
) -> Result<(), String> {
    if is_object(dest) {
        let may = mover.may_deliver(dest, workspace, &Control::default());
        return may.map_err(|MoverError { failure: f, .. }| {
            format!(
                "the destination {} of dataset `{dataset}` cannot be used: {}",
                dest.display(),
                f.message
            )
        });
    }
    let real = real_folder(dest)?;
    let memory = Memory::of(state, workspace, &real);
    memory.replaceable(&real, mover).map(drop).map_err(|why| {
        format!(
            "the destination {} of dataset `{dataset}` holds files that tarn did not put there or that were changed \
             since ({why}); move them away or choose another `dest`",
            dest.display()
        )
    })
}

/// Whether a destination can be written at all, tried before a run starts: a new tree is made beside it and exchanged
/// with it.
///
/// # Errors
/// The sentence to show when it cannot.
pub fn probe_destination(workspace: &str, dataset: &str, dest: &Path) -> Result<(), String> {
    // Whether it can be written was tried with its check.
    if is_object(dest) {
        return Ok(());
    }
    let real = real_folder(dest)?;
    let refused = |why: String| {
        format!(
            "the destination {} of dataset `{dataset}` cannot be replaced as a whole: {why}; name a folder below it, or \
             another one, as `dest`",
            dest.display()
        )
    };
    if is_mount_point(&real) {
        return Err(refused("it is a mount point".into()));
    }
    let existing = real.ancestors().skip(1).find(|a| a.is_dir());
    let Some(above) = existing else {
        return Err(refused("it has no folder above it".into()));
    };
    let probe = above.join(format!(".tarn-{workspace}.probe"));
    let made = match std::fs::create_dir(&probe) {
        // A run that died just here has left it.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    };
    made.and_then(|()| std::fs::remove_dir(&probe))
        .map_err(|e| {
            let above = above.display();
            refused(format!("no folder can be made beside it, in {above}: {e}"))
        })
}

/// Whether something is mounted there, as far as the system tells (since Linux 5.8).
fn is_mount_point(folder: &Path) -> bool {
    let found = statx(CWD, folder, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty());
    found.is_ok_and(|s| s.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// The declared wish to put something into a destination: it lets a later run replace what a crash left there
/// before it was remembered.
pub(crate) struct Intent {
    dest: PathBuf,
    memory: Memory,
    staging: PathBuf,
    /// Where the complete tree waits, and what it takes the place of goes: beside its destination, too.
    ready: PathBuf,
}

impl Intent {
    /// Checks the destination and notes what it is about to hold.
    pub(crate) fn declare(
        shared: &Shared,
        dataset: &str,
        dest: &Path,
        parts: &[&Manifest],
        control: &Control,
    ) -> Result<Self, Failure> {
        if control.cancelled() {
            return Err(failure(FailureKind::Cancelled, "abandoned before it began"));
        }
        check_destination(
            &shared.state,
            &shared.workspace,
            dataset,
            dest,
            &*shared.mover,
        )
        .map_err(|why| failure(FailureKind::Conflict, why))?;
        let dest = real_folder(dest).map_err(|why| failure(FailureKind::Conflict, why))?;
        let beside = |suffix: &str| {
            let name = dest.file_name()?.to_string_lossy();
            Some(dest.with_file_name(format!(".{name}.tarn-{}{suffix}", shared.workspace)))
        };
        let (Some(parent), Some(staging), Some(ready)) =
            (dest.parent(), beside(""), beside(".ready"))
        else {
            return Err(failure(
                FailureKind::Io,
                format!(
                    "{} cannot be a destination: name a folder that tarn may create",
                    dest.display()
                ),
            ));
        };
        make_folder(parent)?;
        make_folder(&shared.state.dests(&shared.workspace))?;
        let memory = Memory::of(&shared.state, &shared.workspace, &dest);
        let intent = Self {
            dest,
            memory,
            staging,
            ready,
        };
        intent.tidy(&*shared.mover)?;
        write_manifests([(intent.memory.intended.as_path(), &united(parts)?)], true)?;
        Ok(intent)
    }

    /// Removes what an interrupted or refused publication of tarn has left beside the destination.
    fn tidy(&self, mover: &dyn Mover) -> Result<(), Failure> {
        let remembered = self.memory.manifests();
        for left in [&self.ready, &exchange::aside(&self.ready)] {
            dispose(left, &remembered, mover)?;
        }
        Ok(())
    }

    /// Puts the complete tree that waits beside the destination in its place. What is there is looked at directly
    /// before it is taken out, and again afterwards: what is not tarn's is put back, and the tree is not delivered.
    pub(crate) fn publish(&self, mover: &dyn Mover) -> Result<(), Failure> {
        let refused = |why: String| {
            let text = format!(
                "{} has changed while its new content was copied, and was left as it is: it holds files that tarn did not \
                 put there or that were changed since ({why}); move them away, then `tarn resume`",
                self.dest.display()
            );
            failure(FailureKind::Conflict, text)
        };
        let there = self.memory.replaceable(&self.dest, mover);
        let Some(old) = there.map_err(refused)? else {
            return rename_new(&self.ready, &self.dest);
        };
        swap(&self.ready, &self.dest)?;
        let taken = mover.list(&self.ready, &Control::default());
        let stranger = match &taken {
            Ok(taken) => stranger(taken, &old),
            Err(MoverError { failure: f, .. }) => Some(f.message.clone()),
        };
        if let Some(why) = stranger {
            swap(&self.ready, &self.dest)?;
            return Err(refused(why));
        }
        dispose(&self.ready, &[old], mover)
    }

    /// Where the tree grows, beside its destination.
    pub(crate) fn staging(&self) -> &Path {
        &self.staging
    }

    /// Where it is to be when it is complete, before it is published.
    pub(crate) fn ready(&self) -> &Path {
        &self.ready
    }

    /// The destination is written: remember what it holds.
    pub(crate) fn fulfil(self, manifests: &[Manifest]) -> Result<(), Failure> {
        let trees: Vec<&Manifest> = manifests.iter().collect();
        write_manifests([(self.memory.known.as_path(), &united(&trees)?)], true)?;
        remove_file(&self.memory.intended)
    }

    /// The delivery failed: the wish is dropped, unless it has come true all the same.
    pub(crate) fn abandon(self, mover: &dyn Mover) {
        // What stays is named by the next delivery.
        let _ = self.tidy(mover);
        if !holds(&self.dest, &self.memory.intended, mover) {
            // One that stays does no harm: it allows only what tarn itself was about to write.
            let _ = remove_file(&self.memory.intended);
        }
    }
}

fn united(trees: &[&Manifest]) -> Result<Manifest, Failure> {
    merge::merge(trees).map_err(|c| failure(FailureKind::Conflict, c.to_string()))
}

#[cfg(test)]
mod tests;
