//! A dataset that is stored on the nodes, and its way out.

mod parts;
mod stored;
mod which;

pub(crate) use stored::{NOT_KEPT, StoredPart};
pub(crate) use which::DatasetSelector;

use super::delivered::{Delivered, deliver};
use super::missing::had_again;
use super::removal::{change_of, is_here, nodes_elsewhere, remove_replicas};
use crate::clock::wall;
use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use crate::mover::trees;
use crate::print::message;
use crate::state::{self, open_catalogue};
use anyhow::Context;
use parts::{IncompleteVersion, VersionParts, parts_in};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tarn_journal::{Catalogue, ChangeKind, DatasetRow, ReplicaRow, RunLock, StoredAt, runs};
use tarn_mover::Trees;
use tarn_node::keys::{DataKeys, Wrapping};
use tarn_ports::{Control, CopyJob, CopyReport, CopySource, Follow, Mover, MoverError, Over};
use tarn_types::codes::Exit;
use tarn_types::event::RunErrorKind;
use tarn_types::hash::Hash;
use tarn_types::key::DataKey;
use tarn_types::layout::StateDir;
use tarn_types::manifest::Manifest;
use tarn_types::merge::merge;
use tarn_types::object::{ObjectUrl, is_object, shown};
use tarn_types::part::{StoreKey, Verify};
use tarn_types::units::Bytes;

/// The newest version of a dataset on the nodes, locked against runs of its workflow.
pub(crate) struct LockedVersion {
    state: StateDir,
    catalogue: Catalogue,
    pub(super) rows: Vec<ReplicaRow>,
    /// Those of its older versions, newest first.
    older: Vec<ReplicaRow>,
    lock: RunLock,
}

/// The first of the rows, if there is any.
///
/// # Errors
/// When they are of several workflows.
fn only_workflow<'a>(rows: &[&'a DatasetRow], dataset: &str) -> CliResult<Option<&'a DatasetRow>> {
    let Some((first, rest)) = rows.split_first() else {
        return Ok(None);
    };
    match rest.iter().find(|r| r.workflow != first.workflow) {
        None => Ok(Some(first)),
        Some(other) => Err(CliError::new(
            Exit::Usage,
            format!(
                "both {} and {} have a dataset `{dataset}`; name it in full, such as {0}/{dataset}",
                first.workflow, other.workflow
            ),
        )),
    }
}

/// The result of reading a replica again.
pub(super) enum ReplicaCheck {
    Whole,
    /// It is not what was published: why.
    Damaged(String),
    /// It is stored where nothing is seen from here.
    Elsewhere,
}

/// Replicas that were read again.
pub(super) type CheckedReplicas<'a> = Vec<(&'a ReplicaRow, ReplicaCheck)>;

/// The copied parts, and the reason if they are not the whole version.
pub(super) struct CopiedParts {
    pub(super) parts: VersionParts,
    pub(super) lacks: Option<IncompleteVersion>,
}

/// A part: its manifest, and its replicas, first the one to read first.
struct PartSources<'a> {
    manifest: Manifest,
    replicas: Vec<&'a ReplicaRow>,
    /// The key of the replicas on nodes, if they are encrypted.
    key: Option<Arc<DataKey>>,
}

impl LockedVersion {
    /// Whether a dataset that is named in full, `WORKFLOW/DATASET`, is one of the runs here.
    ///
    /// # Errors
    /// When what is here cannot be read: another one must not be taken for it.
    pub(super) fn is_of_runs_here(globals: &Globals, name: &str) -> CliResult<bool> {
        let Ok(state) = state::here(globals) else {
            return Ok(false);
        };
        let known = open_catalogue(&state)?.datasets().exit(Exit::State)?;
        let which = DatasetSelector::named(name);
        Ok(known.iter().any(|r| which.is(r)))
    }

    /// To change or remove it: nobody else has it meanwhile.
    pub(super) fn find(globals: &Globals, dataset: &str) -> CliResult<Self> {
        Self::of(
            state::here(globals)?,
            &DatasetSelector::named(dataset),
            false,
        )
    }

    /// To read it, beside others who read it.
    pub(super) fn find_to_read(globals: &Globals, dataset: &str) -> CliResult<Self> {
        Self::of(
            state::here(globals)?,
            &DatasetSelector::named(dataset),
            true,
        )
    }

    /// The newest version of a dataset, locked against whoever would change it, and unless it is only read against everybody.
    pub(crate) fn of(
        state: StateDir,
        which: &DatasetSelector<'_>,
        is_only_read: bool,
    ) -> CliResult<Self> {
        let DatasetSelector { but, dataset, .. } = *which;
        let catalogue = open_catalogue(&state)?;
        let known = catalogue.datasets().exit(Exit::State)?;
        let mut named: Vec<&DatasetRow> = known.iter().filter(|r| which.is(r)).collect();
        // Kept data comes before data that a run has only left there. A change needs an unambiguous dataset; cached ones do not
        // count beside others, because they may go at any time.
        let wall = wall();
        let is_usable = |at: &StoredAt| but.is_none() || matches!(at, StoredAt::Node { .. });
        let comes_first = |r: &DatasetRow| {
            if is_only_read {
                r.is_kept(wall) && is_usable(&r.at)
            } else {
                !r.is_cached()
            }
        };
        if named.iter().any(|r| comes_first(r)) {
            named.retain(|r| comes_first(r));
        }
        let Some(first) = only_workflow(&named, dataset)? else {
            return Err(which.not_there(&known, &state));
        };
        let path = state.lock(&first.workflow);
        let lock = if is_only_read {
            RunLock::share(&path)
        } else {
            RunLock::take(&path)
        };
        let lock = lock.exit(Exit::Busy)?;
        // Once more: a run may have ended since.
        let catalogue = open_catalogue(&state)?;
        let all = catalogue
            .replicas(&first.workflow, Some(dataset))
            .exit(Exit::State)?;
        // Data that nobody keeps may have made way since. Data of a failed run is listed until it is removed.
        let may_go =
            |r: &ReplicaRow| r.is_cached(wall) || is_only_read && but.is_none() && !r.is_kept(wall);
        let all: Vec<_> = all
            .into_iter()
            .filter(|r| !may_go(r) || !is_on_tier(r) || r.path().exists())
            .collect();
        if all.is_empty() && but.is_none() {
            let others = known.iter().filter(|r| !which.is(r)).cloned();
            return Err(which.not_there(&others.collect::<Vec<_>>(), &state));
        }
        // A run of another workflow reads kept replicas, whatever is left there beside them.
        let is_kept = |r: &&ReplicaRow| r.is_kept(wall) && is_usable(&r.at);
        let kept = all.iter().filter(is_kept).filter(|_| but.is_some());
        let newest = kept.map(|r| r.version).max();
        let newest = newest.or_else(|| all.iter().map(|r| r.version).max());
        let newest = newest.unwrap_or(0);
        let (rows, mut older): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|r| r.version == newest);
        older.sort_by_key(|r| std::cmp::Reverse(r.version));
        Ok(Self {
            state,
            catalogue,
            rows,
            older,
            lock,
        })
    }

    /// The parts of the whole version.
    fn complete(&self, wanted_run: Option<&str>) -> CliResult<VersionParts> {
        match self.made(&self.rows, wanted_run)? {
            (parts, None) => Ok(parts),
            (_, Some(IncompleteVersion { why, remedy, .. })) => Err(CliError::new(
                Exit::WorkflowFailed,
                format!(
                    "{why}; nothing was copied. `tarn data get` copies what is there. {remedy}"
                ),
            )),
        }
    }

    /// The parts of the version as the requested run has made them, or else the newest run that has the dataset.
    /// Parts of two runs are never mixed. If some instances of its step have not ended well: the parts of the others, and why the
    /// version is not whole.
    fn made(
        &self,
        rows: &[ReplicaRow],
        wanted_run: Option<&str>,
    ) -> CliResult<(VersionParts, Option<IncompleteVersion>)> {
        let of: BTreeSet<&str> = rows.iter().map(|r| r.run.as_str()).collect();
        let meant = |run: &str| wanted_run.map_or(of.contains(run), |wanted_run| wanted_run == run);
        let listed = runs::list(&self.state).exit(Exit::State)?;
        let mut newest_first = listed.iter().rev().filter(|r| meant(&r.name));
        let Some(newest) = newest_first.next() else {
            let name = wanted_run.unwrap_or("the run that has made it");
            return Err(CliError::new(
                Exit::NotFound,
                format!("{name} is not there (any more); `tarn data where` names the runs"),
            ));
        };
        let parts = |run: &str| -> CliResult<_> {
            let history = runs::history(&self.state, run).exit(Exit::State)?;
            let of_workflow = history.start.as_ref().map(|s| &s.workflow.name);
            let newest = listed
                .iter()
                .rev()
                .find(|r| Some(&r.workflow) == of_workflow);
            let resumes = newest.is_some_and(|r| r.name == run);
            Ok(parts_in(rows, &history, resumes))
        };
        let mut lack = match parts(&newest.name)? {
            Ok(keys) => return Ok((keys, None)),
            Err(lack) => lack,
        };
        for older in newest_first {
            if parts(&older.name)?.is_ok() {
                return Err(CliError::new(
                    Exit::WorkflowFailed,
                    format!(
                        "{}; nothing was copied. {}. `--run {}` takes what that run has made",
                        lack.why, lack.remedy, older.name
                    ),
                ));
            }
        }
        let made = std::mem::take(&mut lack.made);
        if !made.is_empty() {
            return Ok((made, Some(lack)));
        }
        Err(CliError::new(
            Exit::WorkflowFailed,
            format!("{}; nothing was copied. {}", lack.why, lack.remedy),
        ))
    }

    /// The replicas to choose from for each part: those on nodes first, those that people may have changed last.
    fn choices(&self, parts: &VersionParts) -> CliResult<Vec<PartSources<'_>>> {
        let mut rows: BTreeMap<&StoreKey, Vec<&ReplicaRow>> = BTreeMap::new();
        for row in self.rows.iter().filter(|r| parts.contains_key(&r.key)) {
            rows.entry(&row.key).or_default().push(row);
        }
        let choice = |(key, rows)| self.choice(rows, parts.get(key).and_then(|i| i.hash));
        rows.into_iter().map(choice).collect()
    }

    fn choice<'a>(
        &self,
        mut replicas: Vec<&'a ReplicaRow>,
        recorded: Option<Hash>,
    ) -> CliResult<PartSources<'a>> {
        if replicas.iter().all(|r| !is_here(&r.at)) {
            let nodes = nodes_elsewhere(replicas.iter().copied());
            return Err(CliError::new(
                Exit::NotFound,
                format!(
                    "a part of it is stored only on {nodes}, which only a run in an allocation that has them reaches; nothing was copied. Give \
                     the dataset a `dest` and `tarn run` there: the data stored there is not made again"
                ),
            ));
        }
        replicas.retain(|r| is_here(&r.at));
        replicas.sort_by_key(|r| match r.at {
            StoredAt::Node { .. } => 0,
            StoredAt::Drained(_) => 1,
            StoredAt::External(_) => 2,
        });
        let key = self.key(replicas[0])?;
        let manifest = self.manifest(&replicas, recorded, key.as_ref())?;
        Ok(PartSources {
            manifest,
            replicas,
            key,
        })
    }

    /// The manifest that every replica of a part must match. If it is lost or damaged, it comes from a replica with the content
    /// that the run has recorded.
    fn manifest(
        &self,
        replicas: &[&ReplicaRow],
        recorded: Option<Hash>,
        key: Option<&Arc<DataKey>>,
    ) -> CliResult<Manifest> {
        let row = replicas[0];
        let path = self.state.manifest(&row.workspace, &row.key);
        let read = std::fs::read(&path).map_err(anyhow::Error::from);
        let why = match read.and_then(|bytes| Ok(Manifest::decode(&bytes)?)) {
            Ok(manifest) => return Ok(manifest),
            Err(why) => why,
        };
        let (mover, control) = (trees(), Control::default());
        let alone = replicas
            .iter()
            .filter(|r| !matches!(r.at, StoredAt::External(_)));
        for replica in alone {
            let found = match key {
                None => mover.digest(&replica.path(), &control),
                Some(key) => mover.digest_sealed(&replica.path(), key, &control),
            };
            if let Ok(found) = found
                && recorded.is_some()
                && found.hash() == recorded
            {
                return Ok(found);
            }
        }
        Err(CliError::new(
            Exit::State,
            format!(
                "the manifest {} of a part of `{}` cannot be used: {why:#}; no replica that is seen from here holds what {} recorded. \
                 `tarn data rm {1}`, then `tarn run` makes it again",
                path.display(),
                row.dataset,
                row.run
            ),
        ))
    }

    /// The key of a part of an encrypted dataset.
    fn key(&self, row: &ReplicaRow) -> CliResult<Option<Arc<DataKey>>> {
        let of_part = self
            .state
            .keys(&row.workspace)
            .join(&row.dataset)
            .join(&row.key.0);
        if !of_part.exists() {
            return Ok(None);
        }
        let ring = tarn_keyring::of_user().exit(Exit::State)?;
        let wrapping = Wrapping::of_user(ring, &row.workspace).exit(Exit::Internal)?;
        let keys = DataKeys::new(&self.state, &row.workspace, wrapping);
        let key = keys.get(&row.dataset, &row.key);
        key.map(Some)
            .map_err(|failure| CliError::new(Exit::State, failure.message))
    }

    /// Copies the version out; returns the copied parts. If the version is to be freed afterwards, the copy is read again.
    /// A copy that an earlier call has completed is not made again.
    pub(super) fn copy_to(
        &self,
        dest: &Path,
        run: Option<&str>,
        frees: bool,
    ) -> CliResult<CopiedParts> {
        if let Some(at) = ObjectUrl::of(dest) {
            let refused = |why| format!("{} is no place in an object store: {why}", shown(dest));
            let at = at.map_err(|why| CliError::new(Exit::Usage, refused(why)))?;
            return self.put_to(at.tree(), run, frees);
        }
        let dest = super::copy::plain(&std::path::absolute(dest).exit(Exit::Usage)?);
        if dest.symlink_metadata().is_ok() {
            if let Ok(copied) = self.to_copy(run, frees)
                && holds(&dest, &self.choices(&copied.parts)?)
            {
                sync([dest.as_path()].into_iter())?;
                message!("{} has all of it already", dest.display());
                return Ok(copied);
            }
            return Err(CliError::new(
                Exit::Usage,
                format!("{} exists already; choose another place", dest.display()),
            ));
        }
        let copied = self.to_copy(run, frees)?;
        let report = copy(&mut self.choices(&copied.parts)?, &dest, level(frees));
        let report = report.exit(Exit::WorkflowFailed)?;
        for lost in &report.lost {
            message!("warning: {lost}");
        }
        message!("{} copied to {}", Bytes(report.bytes), dest.display());
        Ok(copied)
    }

    /// The parts to copy. A version that is freed afterwards must be complete.
    fn to_copy(&self, run: Option<&str>, frees: bool) -> CliResult<CopiedParts> {
        let (parts, lacks) = if frees {
            (self.complete(run)?, None)
        } else {
            self.made(&self.rows, run)?
        };
        Ok(CopiedParts { parts, lacks })
    }

    /// The same to a tree of an object store, where an interrupted call has left what the next one continues with.
    fn put_to(&self, dest: ObjectUrl, run: Option<&str>, frees: bool) -> CliResult<CopiedParts> {
        let copied = self.to_copy(run, frees)?;
        let owner = self.rows.first().map_or(String::new(), |row| {
            format!("{}/{}", row.workspace, row.dataset)
        });
        let mut parts = self.choices(&copied.parts)?;
        if frees && is_put(&dest, &owner, &parts).exit(Exit::WorkflowFailed)? {
            message!("{dest} has all of it already, by an earlier call");
            return Ok(copied);
        }
        let report = try_all(&mut parts, &trees(), &|sources| {
            deliver(Delivered {
                sources,
                dest: dest.clone(),
                single: false,
                owner: owner.clone(),
                over: Over::Unfinished,
                verify: level(frees),
            })
        })
        .exit(Exit::WorkflowFailed)?;
        message!("{} copied to {dest}", Bytes(report.bytes + report.resumed));
        Ok(copied)
    }

    /// Reads all replicas of the version, as a run has made it, and then those of the older ones that are left of it. And what parts
    /// of it are gone, if all had been made.
    pub(super) fn read_all(
        &self,
        run: Option<&str>,
    ) -> CliResult<(CheckedReplicas<'_>, Option<IncompleteVersion>)> {
        let (parts, lack) = self.made(&self.rows, run)?;
        let mut all = self.read(&self.rows, &parts, true);
        for of_version in self.older.chunk_by(|a, b| a.version == b.version) {
            // Of an older one some parts may have gone: those that are there can be kept all the same.
            let made = self.made(of_version, run);
            let parts = made.map_or_else(|_| VersionParts::new(), |(parts, _)| parts);
            all.extend(self.read(of_version, &parts, run.is_some()));
        }
        Ok((all, lack.filter(|l| l.was_whole)))
    }

    /// Reads replicas: all of them, or only those of these parts.
    fn read<'a>(
        &self,
        rows: &'a [ReplicaRow],
        parts: &VersionParts,
        is_only: bool,
    ) -> Vec<(&'a ReplicaRow, ReplicaCheck)> {
        let is_meant = |r: &&ReplicaRow| !is_only || parts.contains_key(&r.key);
        let read = |row: &'a ReplicaRow| {
            if !is_here(&row.at) {
                return (row, ReplicaCheck::Elsewhere);
            }
            let recorded = parts.get(&row.key).and_then(|i| i.hash);
            let read = match self.choice(vec![row], recorded) {
                Ok(choice) => choice.read(&trees()).map_err(|e| e.to_string()),
                Err(e) => Err(format!("{:#}", e.error)),
            };
            (
                row,
                read.map_or_else(ReplicaCheck::Damaged, |()| ReplicaCheck::Whole),
            )
        };
        rows.iter().filter(is_meant).map(read).collect()
    }

    /// The replicas of all versions, those of the newest first.
    pub(super) fn of_all_versions(&self) -> impl Iterator<Item = &ReplicaRow> {
        self.rows.iter().chain(&self.older)
    }

    /// The note beside a replica of an older version.
    pub(super) fn which_version(&self, row: &ReplicaRow) -> String {
        if self.rows.first().is_some_and(|r| r.version > row.version) {
            format!(" (version {})", row.version)
        } else {
            String::new()
        }
    }

    /// From now on the older versions are meant as well.
    pub(super) fn with_older(mut self) -> Self {
        self.rows.append(&mut self.older);
        self
    }

    /// Makes the replicas here durable, with their metadata.
    pub(super) fn sync(&self) -> CliResult<()> {
        let here = self.rows.iter().filter(|r| is_here(&r.at));
        let paths: Vec<PathBuf> = here.map(ReplicaRow::path).collect();
        let folders = paths.iter().filter(|p| !is_object(p) && p.is_dir());
        let state = self.state.0.as_path();
        sync(folders.map(PathBuf::as_path).chain([state]))
    }

    /// Its replicas on tiers of this machine are cache no more, if they were: nobody removes them for space. Refused when one of them is
    /// gone already.
    pub(super) fn uncache(&self) -> CliResult<()> {
        uncache(self.rows.iter().filter(|r| is_here(&r.at)))?;
        let on_tiers = self.rows.iter().filter(|r| is_on_tier(r));
        let mut gone = on_tiers.filter(|r| !r.path().exists());
        match gone.next() {
            None => Ok(()),
            Some(row) => Err(CliError::new(
                Exit::NotFound,
                format!(
                    "`{}` is incomplete: {} is gone. {}",
                    row.dataset,
                    row.path().display(),
                    had_again(&self.state, Some(&row.workflow), &row.dataset)
                        .unwrap_or_else(|| "`tarn run` makes it again".into())
                ),
            )),
        }
    }

    pub(super) fn record(&mut self, change: ChangeKind) -> CliResult<()> {
        let changes: Vec<_> = self.rows.iter().map(|r| change_of(r, change)).collect();
        self.catalogue.record(&changes).exit(Exit::State)
    }

    pub(super) fn remove(&mut self) -> CliResult {
        let bytes = remove_replicas(&mut self.catalogue, &self.rows, &trees())?;
        // A message was printed about replicas on nodes that cannot be seen from here: none of them is removed yet.
        let all = self.rows.len();
        self.rows.retain(|r| is_here(&r.at));
        let ours = |r: &ReplicaRow| !matches!(r.at, StoredAt::External(_));
        if self.rows.len() == all || self.rows.iter().any(ours) {
            message!("{}", freed(&self.rows, bytes));
        }
        Ok(Exit::Success)
    }
}

/// Whether it is a replica on a tier that this machine sees.
fn is_on_tier(row: &ReplicaRow) -> bool {
    matches!(row.at, StoredAt::Node { .. }) && is_here(&row.at)
}

/// Withdraws the right of others to remove these replicas for space. Only for a holder of the lock of their workflows, shared or
/// not.
pub(crate) fn uncache<'a>(rows: impl Iterator<Item = &'a ReplicaRow>) -> CliResult<()> {
    let mut all: BTreeMap<(&Path, &str), BTreeSet<PathBuf>> = BTreeMap::new();
    for row in rows {
        if let StoredAt::Node { root, .. } = &row.at {
            let of_tier = all.entry((root, &row.workspace)).or_default();
            of_tier.insert(row.path());
        }
    }
    for ((root, workspace), replicas) in all {
        tarn_node::uncache_replicas(root, workspace, &replicas)
            .with_context(|| format!("cannot update the ledger of the tier at {}", root.display()))
            .exit(Exit::State)?;
    }
    Ok(())
}

fn level(frees: bool) -> Verify {
    if frees {
        Verify::Readback
    } else {
        Verify::Copy
    }
}

/// Whether a tree of a store is whole and just this, by an earlier call that was killed before it had freed the nodes. All of it is
/// read.
fn is_put(dest: &ObjectUrl, owner: &str, parts: &[PartSources<'_>]) -> Result<bool, MoverError> {
    let (mover, control) = (trees(), Control::default());
    let dest = PathBuf::from(dest.to_string());
    if !mover.is_delivered(&dest, owner, &control)? {
        return Ok(false);
    }
    let meant = hash_of(parts);
    Ok(meant.is_some() && mover.digest(&dest, &control)?.hash() == meant)
}

/// The same of a folder: whether it is just this.
fn holds(folder: &Path, parts: &[PartSources<'_>]) -> bool {
    let meant = hash_of(parts);
    let found = trees().digest(folder, &Control::default());
    folder.is_dir() && meant.is_some() && found.is_ok_and(|found| found.hash() == meant)
}

fn hash_of(parts: &[PartSources<'_>]) -> Option<Hash> {
    let manifests: Vec<&Manifest> = parts.iter().map(|p| &p.manifest).collect();
    merge(&manifests).ok().and_then(|merged| merged.hash())
}

fn sync<'a>(places: impl Iterator<Item = &'a Path>) -> CliResult<()> {
    let synced = tarn_node::sync_file_systems(places);
    synced.map_err(|failure| CliError::new(Exit::State, failure.message))
}

/// The result of removing replicas, in words: a `dest` is the user's, and stays.
fn freed(rows: &[ReplicaRow], bytes: u64) -> String {
    let (theirs, ours): (Vec<_>, Vec<_>) = rows
        .iter()
        .partition(|r| matches!(r.at, StoredAt::External(_)));
    let dests: BTreeSet<_> = theirs.iter().map(|r| r.path()).collect();
    let there: Vec<_> = dests
        .iter()
        // An object store is not asked whether it has the copy.
        .filter(|d| is_object(d) || d.exists())
        .map(|d| d.display().to_string())
        .collect();
    let stays = if there.is_empty() {
        String::new()
    } else {
        format!("; the copy in {} stays", there.join(", "))
    };
    match theirs.first().filter(|_| ours.is_empty()) {
        Some(row) => format!("`{}` is not on any tier{stays}", row.dataset),
        None if bytes == 0 => format!("removed; it took no space{stays}"),
        None => format!("{} freed{stays}", Bytes(bytes)),
    }
}

/// Copies parts into one folder.
fn copy(
    parts: &mut [PartSources<'_>],
    dest: &Path,
    verify: Verify,
) -> Result<CopyReport, MoverError> {
    let mover = trees();
    let mut staging = dest.as_os_str().to_owned();
    staging.push(".tarn-incoming");
    let copied = try_all(parts, &mover, &|sources| {
        let job = CopyJob {
            sources,
            dest: dest.to_path_buf(),
            staging: staging.clone().into(),
            replace: false,
            verify,
            sync: true,
            rate: 0,
            latency: 0,
            arrivals: None,
            seal: None,
        };
        mover.copy(&job, &Control::default())
    });
    copied.inspect_err(|_| {
        // An incomplete copy is of no use to anybody. If it cannot be removed either, the user gets the copy's error.
        let _ = mover.remove(staging.as_ref());
    })
}

/// Copies sources. If a replica is damaged, another one of its part is taken.
fn try_all(
    parts: &mut [PartSources<'_>],
    mover: &Trees,
    copy: &dyn Fn(Vec<CopySource>) -> Result<CopyReport, MoverError>,
) -> Result<CopyReport, MoverError> {
    loop {
        let failed = match copy(parts.iter().map(PartSources::source).collect()) {
            Err(failed) => failed,
            done => return done,
        };
        let hopeless = matches!(
            failed.failure.kind,
            RunErrorKind::NoSpace | RunErrorKind::Cancelled | RunErrorKind::Conflict
        );
        // Each round leaves out a replica at least: there is an end.
        let other = |p: &mut PartSources<'_>| p.leave_damaged(mover);
        if hopeless || parts.iter_mut().map(other).filter(|left| *left).count() == 0 {
            return Err(failed);
        }
    }
}

impl PartSources<'_> {
    fn source(&self) -> CopySource {
        let row = self.replicas[0];
        let paths = || self.manifest.entries.iter().map(|e| e.path.clone());
        CopySource {
            root: row.path(),
            peer: None,
            as_entry: None,
            manifest: Some(self.manifest.clone()),
            // The other parts of the version are stored there as well.
            only: matches!(row.at, StoredAt::External(_)).then(|| paths().collect()),
            sealed: match row.at {
                StoredAt::External(_) => None,
                _ => self.key.clone(),
            },
            follow: Follow::None,
        }
    }

    /// Reads the replica that is to be read first, and compares it with its manifest.
    fn read(&self, mover: &dyn Mover) -> Result<(), MoverError> {
        let (path, control) = (self.replicas[0].path(), Control::default());
        let same = |is: bool| {
            let other = || MoverError::new(RunErrorKind::Corrupt, "it has other content");
            is.then_some(()).ok_or_else(other)
        };
        match (self.source().sealed, &self.replicas[0].at) {
            (Some(key), _) => {
                let found = mover.digest_sealed(&path, &key, &control)?;
                same(found.hash() == self.manifest.hash())
            }
            // The other parts of the version are stored there as well.
            (None, StoredAt::External(_)) => {
                let found = mover.digest(&path, &control)?;
                let mut all = self.manifest.entries.iter();
                same(all.all(|e| found.find(&e.path).is_some_and(|f| f.same_content(e))))
            }
            (None, _) => mover.verify(&path, &self.manifest, &control),
        }
    }

    /// Turns from a damaged replica to the next, if there is one.
    fn leave_damaged(&mut self, mover: &dyn Mover) -> bool {
        if self.replicas.len() < 2 {
            return false;
        }
        let path = self.replicas[0].path();
        let Err(e) = self.read(mover) else {
            return false;
        };
        message!(
            "warning: the replica at {} cannot be used ({e}); another is taken",
            path.display()
        );
        self.replicas.remove(0);
        true
    }
}
