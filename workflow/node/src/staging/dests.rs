//! Destinations outside: tarn replaces its own content there, and never content that somebody else has put or changed there.
//!
//! Of each there are two manifests: `.manifest` lists the content that tarn has put there, `.intent` the content that it is about
//! to put there. Those of a run are `<state>/dests/<workspace>/<hash of the folder's path>`; those of a site's jobs, whose nodes
//! change, are beside the folder.

mod error;
mod exchange;

use crate::storage::data_context::DataContext;
use crate::storage::run_facts::RunFacts;
use crate::storage::store::{
    alike, failure, first_difference, io_failure, is_folder, make_folder, read_manifest,
    remove_file, sync_folder, write_manifests,
};
pub use error::{DestinationError, ForeignContentError};
use exchange::{dispose, rename_new, swap};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use tarn_ports::{Control, Mover};
use tarn_types::event::{RunError, RunErrorKind};
use tarn_types::hash::Hash;
use tarn_types::layout::StateDir;
use tarn_types::manifest::{Entry, Manifest};
use tarn_types::merge;
use tarn_types::object::is_object;
use tarn_types::part::StoreKey;
use tarn_types::workflow::OnFailure;

/// The folder that a destination stands for: if `dest` is a link, its target.
///
/// # Errors
/// When that is no folder.
pub fn real_folder(dest: &Path) -> Result<PathBuf, DestinationError> {
    if !dest.is_symlink() {
        return Ok(dest.to_path_buf());
    }
    match std::fs::canonicalize(dest) {
        Ok(real) if real.is_dir() => Ok(real),
        Ok(real) => Err(DestinationError::LinkToNoFolder {
            dest: dest.to_path_buf(),
            real,
        }),
        Err(source) => Err(DestinationError::BrokenLink {
            dest: dest.to_path_buf(),
            source,
        }),
    }
}

/// The records of one folder.
#[derive(Debug)]
struct DestRecord {
    /// The file with the content that tarn has put there.
    known: PathBuf,
    /// The file with the content that it is about to put there.
    intended: PathBuf,
    /// It is where others may write, too: only what its user, or the folder's owner, has written is believed.
    is_beside: bool,
}

impl DestRecord {
    fn of(state: &StateDir, workspace: &str, folder: &Path) -> Self {
        let name = Hash::of(folder.as_os_str().as_encoded_bytes()).to_string();
        let base = state.dests(workspace).join(name);
        Self {
            known: base.with_extension("manifest"),
            intended: base.with_extension("intent"),
            is_beside: false,
        }
    }

    /// The recorded content, as far as it can be read: first the present one, then the coming one.
    fn manifests(&self, folder: &Path) -> Vec<Manifest> {
        let files = [&self.known, &self.intended];
        let files = files.iter().filter(|f| self.believes(f, folder));
        files.filter_map(|f| read_manifest(f).ok()).collect()
    }

    fn believes(&self, file: &Path, folder: &Path) -> bool {
        let Ok(about) = file.symlink_metadata() else {
            return false;
        };
        let is_own = || about.uid() == rustix::process::geteuid().as_raw();
        let is_owners = || {
            folder
                .symlink_metadata()
                .is_ok_and(|f| f.uid() == about.uid())
        };
        about.is_file() && (!self.is_beside || is_own() || is_owners())
    }

    /// Writes one of them. Beside a folder, who may list that may read it.
    fn write(&self, file: &Path, manifest: &Manifest, folder: &Path) -> Result<(), RunError> {
        write_manifests([(file, manifest)], true)?;
        if !self.is_beside {
            return Ok(());
        }
        let about = folder.symlink_metadata().ok();
        let mode = about.as_ref().map_or(0o600, |a| 0o600 | a.mode() & 0o644);
        let is_of_group = about.is_some_and(|a| chown(file, None, Some(a.gid())).is_ok());
        let mode = mode & if is_of_group { 0o644 } else { 0o604 };
        let set = std::fs::set_permissions(file, Permissions::from_mode(mode));
        set.map_err(|e| io_failure("set the rights of", file, &e))
    }

    /// The content of a folder that may be replaced: nothing, tarn's present content, or the content that it was about to put
    /// there; `None` when there is no folder.
    ///
    /// # Errors
    /// The first path that is somebody else's, or why that is not known.
    fn replaceable(
        &self,
        folder: &Path,
        mover: &dyn Mover,
    ) -> Result<Option<Manifest>, ForeignContentError> {
        if folder.symlink_metadata().is_err() {
            return Ok(None);
        }
        if !is_folder(folder) {
            return Err(ForeignContentError::NoFolder);
        }
        let listed = mover.list(folder, &Control::default());
        let listed = listed.map_err(|e| ForeignContentError::NotListed(e.failure.message))?;
        let nothing = Manifest::default();
        let mut why = String::new();
        // The last one is reported: it is the content that tarn has put there, if it ever did.
        for allowed in [nothing]
            .into_iter()
            .chain(self.manifests(folder).into_iter().rev())
        {
            match first_foreign(&listed, &allowed) {
                None => return Ok(Some(allowed)),
                Some(path) => why = path,
            }
        }
        Err(ForeignContentError::Path(why))
    }

    /// Records the content of a delivery that was interrupted before it could do that itself: its intent makes way for another.
    fn settle(&self, folder: &Path, mover: &dyn Mover) -> Result<(), RunError> {
        let is_believed = self.believes(&self.intended, folder);
        if !is_believed || !holds(folder, &self.intended, mover) {
            return Ok(());
        }
        let renamed = std::fs::rename(&self.intended, &self.known);
        renamed.map_err(|e| io_failure("write the manifest", &self.known, &e))?;
        let above = self.known.parent().unwrap_or(Path::new("/"));
        sync_folder(above).map_err(|e| io_failure("sync the folder", above, &e))
    }
}

/// Finds an entry of a tree that is not recorded. A recorded entry that is gone was removed by somebody: it may be put there
/// again.
fn first_foreign(listed: &Manifest, recorded: &Manifest) -> Option<String> {
    let within = |tree: &Manifest, e: &&Entry| tree.find(&e.path).is_some_and(|o| alike(e, o));
    let strange = listed.entries.iter().find(|e| !within(recorded, e))?;
    Some(format!("`{}`", String::from_utf8_lossy(&strange.path)))
}

/// Finds what an earlier run put into a destination and is not there any more: the first such path, and how many others.
pub fn destination_lacks(
    state: &StateDir,
    workspace: &str,
    dest: &Path,
    mover: &dyn Mover,
) -> Option<(String, usize)> {
    let real = real_folder(dest).ok().filter(|_| !is_object(dest))?;
    let known = read_manifest(&DestRecord::of(state, workspace, &real).known).ok()?;
    let listed = match mover.list(&real, &Control::default()) {
        Ok(listed) => listed,
        Err(_) if !real.exists() => Manifest::default(),
        Err(_) => return None,
    };
    let mut gone = known
        .entries
        .iter()
        .filter(|e| listed.find(&e.path).is_none());
    let first = gone.next()?;
    let path = String::from_utf8_lossy(&first.path).into_owned();
    Some((path, gone.count()))
}

/// The content that tarn has put into a destination, and that it was about to put there, as far as it is recorded. Another
/// version may have written a part's paths since: the hashes in there show it.
pub(crate) fn given(state: &StateDir, workspace: &str, dest: &Path) -> Vec<Manifest> {
    let real = real_folder(dest).ok();
    let files = real.map(|real| {
        let memory = DestRecord::of(state, workspace, &real);
        [memory.known, memory.intended]
    });
    let files = files.into_iter().flatten();
    files.filter_map(|f| read_manifest(&f).ok()).collect()
}

/// Which of these parts an earlier run put into a destination, and are there still.
pub fn destination_holds(
    state: &StateDir,
    workspace: &str,
    dest: &Path,
    parts: &[&StoreKey],
    mover: &dyn Mover,
) -> Vec<bool> {
    let given = given(state, workspace, dest);
    let real = real_folder(dest).ok().filter(|r| r.is_dir());
    let listed = real.and_then(|real| mover.list(&real, &Control::default()).ok());
    let Some(listed) = listed else {
        return vec![false; parts.len()];
    };
    let there = |e: &Entry| listed.find(&e.path).is_some_and(|l| alike(l, e));
    let has = |key: &&StoreKey| {
        let part = read_manifest(&state.manifest(workspace, key));
        part.is_ok_and(|part| {
            given.iter().any(|g| has_all(g, &part)) && part.entries.iter().all(there)
        })
    };
    parts.iter().map(has).collect()
}

/// Whether a tree has all of a part.
pub(crate) fn has_all(tree: &Manifest, part: &Manifest) -> bool {
    let mut entries = part.entries.iter();
    entries.all(|e| tree.find(&e.path).is_some_and(|k| k.same_content(e)))
}

/// Whether a folder holds exactly the content of a record.
fn holds(folder: &Path, memory: &Path, mover: &dyn Mover) -> bool {
    let Ok(known) = read_manifest(memory) else {
        return false;
    };
    mover
        .list(folder, &Control::default())
        .is_ok_and(|listed| first_difference(&listed, &known).is_none())
}

/// The run ended well: removes half-copied data of its failed rescue. Data that cannot be removed stays.
pub(crate) fn drop_half_rescues(shared: &DataContext) {
    let w = &shared.workflow;
    for dataset in w.data.iter().filter(|d| d.on_failure == OnFailure::Drain) {
        let above = dataset.dest.as_ref().and_then(|d| d.parent());
        let Some(external) = w.external.as_deref().or(above) else {
            continue;
        };
        let folder = external.join(format!("rescued-{}", shared.run));
        // In an object store the next rescue finds and replaces it.
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

/// A tree of an object store has been put: remember its content, as the store reports it.
pub(crate) fn delivered(
    shared: &DataContext,
    dest: &Path,
    control: &Control,
) -> Result<(), RunError> {
    let holds = shared.mover.list(dest, control)?;
    make_folder(&shared.state.dests(&shared.workspace))?;
    let memory = DestRecord::of(&shared.state, &shared.workspace, dest);
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
        .is_ok_and(|real| holds(&real, &DestRecord::of(state, workspace, &real).known, mover))
}

/// Whether tarn may write this destination: it is missing or empty, or holds exactly what tarn put there, or what an
/// interrupted run was about to. For the check before a run starts.
///
/// # Errors
/// When it may not.
pub fn check_destination(
    state: &StateDir,
    workspace: &str,
    dataset: &str,
    dest: &Path,
    mover: &dyn Mover,
) -> Result<(), DestinationError> {
    if is_object(dest) {
        let may = mover.may_deliver(dest, workspace, &Control::default());
        return may.map_err(|e| DestinationError::Unusable {
            dest: dest.to_path_buf(),
            dataset: dataset.to_owned(),
            why: e.failure.message,
        });
    }
    let real = real_folder(dest)?;
    let memory = DestRecord::of(state, workspace, &real);
    let may = memory.replaceable(&real, mover).map(drop);
    may.map_err(|why| DestinationError::HoldsForeign {
        what: format!("the destination {} of dataset `{dataset}`", dest.display()),
        why,
    })
}

/// Whether a destination can be written at all, tried before a run starts: a new tree is made beside it and exchanged
/// with it.
///
/// # Errors
/// When it cannot.
pub fn probe_destination(
    workspace: &str,
    dataset: &str,
    dest: &Path,
) -> Result<(), DestinationError> {
    // Whether it can be written was tried with its check.
    if is_object(dest) {
        return Ok(());
    }
    let real = real_folder(dest)?;
    let refused = |why: String| DestinationError::NotReplaceable {
        dest: dest.to_path_buf(),
        dataset: dataset.to_owned(),
        why,
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
    let removed = made.and_then(|()| match std::fs::remove_dir(&probe) {
        // A plan beside this, or a run beside this plan, has removed it.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    });
    removed.map_err(|e| {
        let above = above.display();
        refused(format!("no folder can be made beside it, in {above}: {e}"))
    })
}

/// Whether something is mounted there, as far as the system reports it (since Linux 5.8).
fn is_mount_point(folder: &Path) -> bool {
    let found = statx(CWD, folder, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty());
    found.is_ok_and(|s| s.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// A folder outside that tarn delivers to, and where it is recorded what tarn has put there.
#[derive(Debug)]
pub struct Destination {
    folder: PathBuf,
    memory: DestRecord,
    /// The name of trees beside it.
    tag: String,
    /// The command that resumes when the user has moved something away.
    remedy: &'static str,
}

impl Destination {
    fn of_run(shared: &RunFacts, dest: &Path) -> Result<Self, DestinationError> {
        let folder = real_folder(dest)?;
        Ok(Self {
            memory: DestRecord::of(&shared.state, &shared.workspace, &folder),
            folder,
            tag: shared.workspace.clone(),
            remedy: "`tarn resume`",
        })
    }

    /// One whose records are beside it: `owner` names the owner of the data, and another's is somebody else's.
    pub fn beside(folder: &Path, owner: &str, remedy: &'static str) -> Self {
        let tag = Hash::of(owner.as_bytes()).short()[..8].to_owned();
        let at = |suffix| named_beside(folder, &tag, suffix).unwrap_or_default();
        Self {
            memory: DestRecord {
                known: at(".manifest"),
                intended: at(".intent"),
                is_beside: true,
            },
            folder: folder.to_path_buf(),
            tag,
            remedy,
        }
    }

    /// Whether tarn may write there: it is missing or empty, or holds exactly what tarn put there, or what an interrupted delivery was
    /// about to.
    ///
    /// # Errors
    /// When it may not.
    pub fn check(&self, mover: &dyn Mover) -> Result<(), DestinationError> {
        let may = self.memory.replaceable(&self.folder, mover).map(drop);
        may.map_err(|why| DestinationError::HoldsForeign {
            what: self.folder.display().to_string(),
            why,
        })
    }

    /// Notes what it is about to hold. The destination was checked.
    ///
    /// # Errors
    /// When that cannot be noted, or something of somebody else's is in its way.
    pub fn declare(self, parts: &[&Manifest], mover: &dyn Mover) -> Result<Intent, RunError> {
        let beside = |suffix: &str| named_beside(&self.folder, &self.tag, suffix);
        let (Some(parent), Some(staging), Some(ready)) =
            (self.folder.parent(), beside(""), beside(".ready"))
        else {
            return Err(failure(
                RunErrorKind::Io,
                format!(
                    "{} cannot be a destination: name a folder that tarn may create",
                    self.folder.display()
                ),
            ));
        };
        make_folder(parent)?;
        if let Some(records) = self.memory.known.parent() {
            make_folder(records)?;
        }
        let intent = Intent {
            to: self,
            staging,
            ready,
            declared: united(parts)?,
        };
        intent.tidy(mover)?;
        let Destination { folder, memory, .. } = &intent.to;
        memory.settle(folder, mover)?;
        memory.write(&memory.intended, &intent.declared, folder)?;
        Ok(intent)
    }
}

/// Beside a folder, on the same file system. A name that would be too long is replaced by its hash.
fn named_beside(folder: &Path, tag: &str, suffix: &str) -> Option<PathBuf> {
    const LONG: usize = 160;
    let name = folder.file_name()?;
    let shown = match name.len() {
        0..=LONG => name.to_string_lossy().into_owned(),
        _ => Hash::of(name.as_encoded_bytes()).to_string(),
    };
    Some(folder.with_file_name(format!(".{shown}.tarn-{tag}{suffix}")))
}

/// The declared wish to put something into a destination: it lets a later run replace what a crash left there
/// before it was remembered.
#[derive(Debug)]
pub struct Intent {
    to: Destination,
    staging: PathBuf,
    /// The path at which the complete tree waits, and later the tree that it replaces: beside its destination, too.
    ready: PathBuf,
    declared: Manifest,
}

impl Intent {
    /// Checks the destination of a run and notes what it is about to hold.
    pub(crate) fn declare(
        shared: &DataContext,
        dataset: &str,
        dest: &Path,
        parts: &[&Manifest],
        control: &Control,
    ) -> Result<Self, RunError> {
        if control.cancelled() {
            return Err(failure(
                RunErrorKind::Cancelled,
                "abandoned before it began",
            ));
        }
        let conflict = |why: DestinationError| failure(RunErrorKind::Conflict, why.to_string());
        check_destination(
            &shared.state,
            &shared.workspace,
            dataset,
            dest,
            &*shared.mover,
        )
        .map_err(conflict)?;
        let to = Destination::of_run(shared, dest).map_err(conflict)?;
        to.declare(parts, &*shared.mover)
    }

    /// Removes what an interrupted or refused publication of tarn has left beside the destination.
    fn tidy(&self, mover: &dyn Mover) -> Result<(), RunError> {
        let remembered = self.to.memory.manifests(&self.to.folder);
        for left in [&self.ready, &exchange::aside(&self.ready)] {
            dispose(left, &remembered, self.to.remedy, mover)?;
        }
        Ok(())
    }

    /// Notes the copied content, if it differs from the declared content: it is known before it is published.
    ///
    /// # Errors
    /// When it cannot be noted.
    pub fn confirm(&mut self, manifests: &[Manifest]) -> Result<(), RunError> {
        let made = united(&manifests.iter().collect::<Vec<_>>())?;
        if first_difference(&made, &self.declared).is_some() {
            let Destination { folder, memory, .. } = &self.to;
            memory.write(&memory.intended, &made, folder)?;
            self.declared = made;
        }
        Ok(())
    }

    /// Puts the complete tree that waits beside the destination in its place. The old content is looked at directly before it is
    /// taken out, and again afterwards: content that is not tarn's is put back, and the tree is not delivered.
    ///
    /// # Errors
    /// `Conflict` when it holds something of somebody else's.
    pub fn publish(&self, mover: &dyn Mover) -> Result<(), RunError> {
        let Destination {
            folder,
            memory,
            remedy,
            ..
        } = &self.to;
        let refused = |why: ForeignContentError| {
            let text = format!(
                "{} has changed while its new content was copied, and was left as it is: it holds files that tarn did not \
                 put there or that were changed since ({why}); move them away, then {remedy}",
                folder.display()
            );
            failure(RunErrorKind::Conflict, text)
        };
        let there = memory.replaceable(folder, mover);
        let Some(old) = there.map_err(refused)? else {
            return rename_new(&self.ready, folder, remedy);
        };
        swap(&self.ready, folder)?;
        let taken = mover.list(&self.ready, &Control::default());
        let foreign = match &taken {
            Ok(taken) => first_foreign(taken, &old).map(ForeignContentError::Path),
            Err(e) => Some(ForeignContentError::NotListed(e.failure.message.clone())),
        };
        if let Some(why) = foreign {
            swap(&self.ready, folder)?;
            return Err(refused(why));
        }
        dispose(&self.ready, &[old], remedy, mover)
    }

    /// The path at which the tree grows, beside its destination.
    pub fn staging(&self) -> &Path {
        &self.staging
    }

    /// The path of the complete tree, before it is published.
    pub fn ready(&self) -> &Path {
        &self.ready
    }

    /// The destination is written: remember what it holds.
    ///
    /// # Errors
    /// When that cannot be written; the declared content is remembered.
    pub fn fulfil(self, manifests: &[Manifest]) -> Result<(), RunError> {
        let trees: Vec<&Manifest> = manifests.iter().collect();
        let Destination { folder, memory, .. } = &self.to;
        memory.write(&memory.known, &united(&trees)?, folder)?;
        remove_file(&memory.intended)
    }

    /// The delivery failed: the wish is dropped, unless it has come true all the same.
    pub fn abandon(self, mover: &dyn Mover) {
        // The next delivery names files that stay.
        let _ = self.tidy(mover);
        let Destination { folder, memory, .. } = &self.to;
        if !holds(folder, &memory.intended, mover) {
            // One that stays does no harm: it allows only what tarn itself was about to write.
            let _ = remove_file(&memory.intended);
        }
    }
}

fn united(trees: &[&Manifest]) -> Result<Manifest, RunError> {
    merge::merge(trees).map_err(|c| failure(RunErrorKind::Conflict, c.to_string()))
}

#[cfg(test)]
mod tests;
