//! Copies, moves and removals of files and trees.

use super::place::{ConfinedPath, Id, hidden, id_of, kind_of, to_request_error};
use super::{FilePoolState, TaskEndpoint, TaskPlan, TaskVerb, partition};
use crate::fingerprint::fingerprint;
use rustix::fs::FileType;
use std::path::PathBuf;
use std::sync::Arc;
use tarn_mover::Trees;
use tarn_ports::{Control, CopyJob, CopySource, Follow, Mover, PeerTree};
use tarn_proto::local::{Checksum, Code, CopyVerification, RequestError};
use tarn_tasks::{Finish, HIDDEN, TaskSize};
use tarn_types::manifest::{EntryKind, Manifest};
use tarn_types::part::Verify as Level;

/// File systems allocate space in pieces of so many bytes; a name takes at most one more.
const PIECE: u64 = 4096;
/// The name of a single file while it is copied.
pub(crate) const SINGLE: &str = "file";

/// The size of the data that a task would move.
pub(super) fn measure(
    shared: &FilePoolState,
    plan: &TaskPlan,
    control: &Control,
) -> Result<TaskSize, RequestError> {
    let from = ConfinedPath::open(&plan.from, false)?;
    let Some(stat) = from.stat()? else {
        // A move that an earlier tarnd has done has nothing left to move.
        return match plan.resumed && plan.verb == TaskVerb::Move {
            true => Ok(TaskSize::default()),
            false => Err(from.missing()),
        };
    };
    let list = list(shared, &from, control)?;
    let mut size = TaskSize {
        bytes: list.bytes(),
        space: space_needed(&list),
    };
    if let (TaskVerb::Move, Some(to)) = (plan.verb, &plan.to)
        && let (
            TaskEndpoint::Path {
                space: Some((a, _)),
                ..
            },
            TaskEndpoint::Path {
                space: Some((b, _)),
                ..
            },
        ) = (&plan.from, to)
    {
        let to = ConfinedPath::open(to, true)?;
        let there = rustix::fs::fstat(to.folder()).map_err(|e| to.failed("examine", e))?;
        if a == b && there.st_dev == stat.st_dev {
            // Only its name changes.
            size.space = 0;
        }
    }
    Ok(size)
}

pub(super) fn space_needed(list: &Manifest) -> u64 {
    let entry = |kind: &EntryKind| match kind {
        EntryKind::File { size, .. } => size.div_ceil(PIECE).saturating_mul(PIECE),
        EntryKind::Directory | EntryKind::Symlink(_) => 0,
    };
    let entries = list.entries.iter().map(|e| entry(&e.kind));
    entries.fold(PIECE, |sum, n| sum.saturating_add(n).saturating_add(PIECE))
}

/// The entries of a source, without half-done work of tarnd itself there.
pub(super) fn list(
    shared: &FilePoolState,
    from: &ConfinedPath,
    control: &Control,
) -> Result<Manifest, RequestError> {
    list_of(&shared.mover, from, from.name(), false, control)
}

/// The same of another name in its folder; with `hashes`, contents are read.
pub(crate) fn list_of(
    mover: &Trees,
    from: &ConfinedPath,
    name: &[u8],
    hashes: bool,
    control: &Control,
) -> Result<Manifest, RequestError> {
    from.check_readable()?;
    let path = from.path_of(name);
    let list = match hashes {
        true => mover.digest(&path, control),
        false => mover.list(&path, control),
    };
    let mut list = list.map_err(|e| to_request_error(&e, &[from]))?;
    if let [only] = &mut list.entries[..]
        && *only.path == *name
    {
        // A single file has this name in the list.
        only.path = SINGLE.as_bytes().into();
    }
    let ours = |path: &[u8]| {
        path.split(|b| *b == b'/')
            .any(|name| name.starts_with(HIDDEN))
    };
    list.entries.retain(|e| !ours(&e.path));
    Ok(list)
}

/// Copies or moves from path to path.
pub(super) fn copy(
    shared: &FilePoolState,
    plan: &TaskPlan,
    from: &TaskEndpoint,
    to: &TaskEndpoint,
    control: &Control,
) -> Result<Finish, RequestError> {
    let from = ConfinedPath::open(from, false)?;
    let into_space = matches!(to, TaskEndpoint::Path { space: Some(_), .. });
    let to = ConfinedPath::open(to, true)?;
    let there = to.stat()?.is_some();
    let Some(source) = from.stat()? else {
        if plan.resumed && plan.verb == TaskVerb::Move && there {
            remove_gone_of(shared, plan, &from)?;
            return finish(shared, plan, &to, None, 0);
        }
        return Err(from.missing());
    };
    if from.is(&to)? {
        let text = format!("`{}` and `{}` are the same place", from.place(), to.place());
        return Err(RequestError::new(Code::Invalid, text));
    }
    let single = kind_of(&source) != FileType::Directory;
    if there && !plan.replace {
        // An earlier tarnd may have come so far, and no further.
        if !plan.resumed || !same(shared, &from, &to, single, control)? {
            return Err(to.exists());
        }
        let list = list(shared, &from, control)?;
        return settle(shared, plan, (&from, id_of(&source)), &to, &list, 0);
    }
    let replaced = if there { stored(shared, &to)? } else { 0 };
    if plan.verb == TaskVerb::Move && from.rename(from.name(), &to, plan.replace)? {
        if there {
            // The replaced object is where the source was.
            from.aside(&hidden(plan.id, ".gone"))?;
            let old = from.path_of(&hidden(plan.id, ".gone"));
            shared
                .mover
                .remove(&old)
                .map_err(|e| to_request_error(&e, &[&from]))?;
        }
        to.sync()?;
        from.sync()?;
        let mut done = finish(shared, plan, &to, None, replaced)?;
        (done.bytes, done.freed) = (done.stored, done.stored);
        return Ok(done);
    }
    let list = list(shared, &from, control)?;
    if into_space && space_needed(&list) > plan.space {
        return Err(grown(from.place()));
    }
    let copied = TreeSource {
        only: (!single).then(|| list.entries.iter().map(|e| e.path.clone()).collect()),
        root: from.path(),
        peer: None,
        held: Some(&from),
        single: single.then_some(SINGLE.as_bytes()),
        list: &list,
    };
    let checksum = transfer(shared, plan, copied, &to, control)?;
    let from = (&from, id_of(&source));
    let mut done = settle(shared, plan, from, &to, &list, replaced)?;
    done.bytes = list.bytes();
    done.checksum = checksum;
    Ok(done)
}

pub(super) fn grown(place: &str) -> RequestError {
    let text =
        format!("`{place}` has grown since it was measured; submit again when nobody writes it");
    RequestError::new(Code::Changed, text)
}

/// The source of a copy.
pub(super) struct TreeSource<'a> {
    /// Of this node's: its path, and the folder that holds it.
    pub(super) root: PathBuf,
    pub(super) held: Option<&'a ConfinedPath>,
    /// Of another node's.
    pub(super) peer: Option<Arc<dyn PeerTree>>,
    /// The name in the list of a source that is no folder.
    pub(super) single: Option<&'a [u8]>,
    pub(super) list: &'a Manifest,
    /// The entries of the tree that are copied, if not all.
    pub(super) only: Option<Vec<Box<[u8]>>>,
}

/// Copies; when that fails, the bytes so far are removed unless the task resumes later.
pub(super) fn transfer(
    shared: &FilePoolState,
    plan: &TaskPlan,
    source: TreeSource<'_>,
    to: &ConfinedPath,
    control: &Control,
) -> Result<Option<Checksum>, RequestError> {
    let copied = stage(shared, plan, source, to, control);
    copied.inspect_err(|why| {
        if !shared.keeps(plan, why) {
            clean(shared, plan, to);
        }
    })
}

/// How a task's copies are verified.
pub(super) fn level(plan: &TaskPlan) -> Level {
    match (plan.verb, plan.verify) {
        (TaskVerb::Move, _) | (_, CopyVerification::Readback) => Level::Readback,
        (_, CopyVerification::Copy) => Level::Copy,
        (_, CopyVerification::None) => Level::None,
    }
}

/// The copy itself: into a hidden folder beside the destination, which then gets its name.
fn stage(
    shared: &FilePoolState,
    plan: &TaskPlan,
    source: TreeSource<'_>,
    to: &ConfinedPath,
    control: &Control,
) -> Result<Option<Checksum>, RequestError> {
    let whole = to.path_of(&hidden(plan.id, ".whole"));
    let single = source.single;
    if single.is_some() {
        shared
            .mover
            .remove(&whole)
            .map_err(|e| to_request_error(&e, &[to]))?;
    }
    let verify = level(plan);
    let job = CopyJob {
        sources: vec![CopySource {
            root: source.root,
            as_entry: (source.peer.is_none() && single.is_some()).then(|| SINGLE.to_owned()),
            peer: source.peer,
            manifest: Some(source.list.clone()),
            only: source.only,
            sealed: None,
            follow: Follow::None,
        }],
        dest: match single {
            Some(_) => whole.clone(),
            None => to.path(),
        },
        staging: to.path_of(&hidden(plan.id, "")),
        replace: single.is_none() && plan.replace,
        verify,
        sync: plan.durable || verify == Level::Readback,
        rate: 0,
        latency: 0,
        arrivals: None,
        seal: None,
    };
    let limiter = shared.limiter(plan);
    let report = shared.mover.copy_limited(&job, control, limiter);
    let held: Vec<&ConfinedPath> = source.held.into_iter().chain([to]).collect();
    let report = report.map_err(|e| to_request_error(&e, &held))?;
    if let Some(name) = single {
        let inside = [&hidden(plan.id, ".whole")[..], b"/", name].concat();
        to.rename(&inside, to, plan.replace)?;
        if job.sync {
            to.sync()?;
        }
        shared
            .mover
            .remove(&whole)
            .map_err(|e| to_request_error(&e, &[to]))?;
    }
    let entries = report.manifests.first().map(|m| &m.entries[..]);
    Ok(match entries {
        Some([entry]) if single.is_some() => match &entry.kind {
            EntryKind::File { hash, .. } => hash.map(|h| h.0.to_be_bytes()),
            _ => None,
        },
        _ => None,
    })
}

/// Removes the leftovers of a failed copy.
pub(super) fn clean(shared: &FilePoolState, plan: &TaskPlan, to: &ConfinedPath) {
    for what in ["", ".progress", ".whole"] {
        if let Err(e) = shared.mover.remove(&to.path_of(&hidden(plan.id, what))) {
            tracing::warn!(
                task = plan.id,
                "a leftover stays: {}",
                to_request_error(&e, &[to])
            );
        }
    }
}

/// Removes the half-done work of a task that does not resume.
pub(super) fn discard(shared: &FilePoolState, plan: &TaskPlan) {
    let Some(to @ TaskEndpoint::Path { .. }) = &plan.to else {
        return;
    };
    // If nothing can be opened, nothing was begun.
    if let Ok(to) = ConfinedPath::open(to, false) {
        clean(shared, plan, &to);
    }
}

/// Whether source and destination hold the same.
fn same(
    shared: &FilePoolState,
    from: &ConfinedPath,
    to: &ConfinedPath,
    single: bool,
    control: &Control,
) -> Result<bool, RequestError> {
    let content = |held: &ConfinedPath| {
        let digest = shared.mover.digest(&held.path(), control);
        let mut digest = digest.map_err(|e| to_request_error(&e, &[held]))?;
        if let [entry] = &mut digest.entries[..]
            && single
        {
            entry.path = SINGLE.as_bytes().into();
        }
        Ok(digest.hash())
    };
    Ok(content(from)? == content(to)?)
}

/// The end of a copy that is proven; of a move, the source is removed.
fn settle(
    shared: &FilePoolState,
    plan: &TaskPlan,
    from: (&ConfinedPath, Id),
    to: &ConfinedPath,
    list: &Manifest,
    replaced: u64,
) -> Result<Finish, RequestError> {
    if plan.verb != TaskVerb::Move {
        return finish(shared, plan, to, Some(list.bytes()), replaced);
    }
    let print = fingerprint(list, from.1);
    let freed = release_own(shared, plan, from.0, print)?;
    let mut done = finish(shared, plan, to, Some(list.bytes()), replaced)?;
    done.freed = freed;
    Ok(done)
}

/// Removes this node's source of a move, if it still has that fingerprint.
pub(super) fn release_own(
    shared: &FilePoolState,
    plan: &TaskPlan,
    from: &ConfinedPath,
    print: u128,
) -> Result<u64, RequestError> {
    let aside = hidden(plan.id, ".gone");
    release(&shared.mover, from, &aside, print, &Control::default())
}

/// Removes a source that has been copied, by way of another name in its folder, unless it no longer has the fingerprint: later
/// writes would be lost. Returns the bytes that are free now.
pub(crate) fn release(
    mover: &Trees,
    from: &ConfinedPath,
    aside: &[u8],
    print: u128,
    control: &Control,
) -> Result<u64, RequestError> {
    from.aside(aside)?;
    let late = list_of(mover, from, aside, false, control);
    let id = from.stat_of(aside)?.map(|stat| id_of(&stat));
    let is = |late: &Manifest| id.is_some_and(|id| fingerprint(late, id) == print);
    if !late.as_ref().is_ok_and(is) {
        from.rename(aside, from, false)?;
        late?;
        return Err(RequestError::new(
            Code::Changed,
            format!(
                "`{}` was changed while it was moved: it stays, and so does the copy of its earlier content",
                from.place(),
            ),
        ));
    }
    let path = from.path_of(aside);
    let freed = mover
        .stored(&path)
        .map_err(|e| to_request_error(&e, &[from]))?;
    mover
        .remove(&path)
        .map_err(|e| to_request_error(&e, &[from]))?;
    Ok(freed)
}

/// Removes the rest of a source that an earlier tarnd has moved, if it is one of this node.
pub(super) fn remove_gone(
    shared: &FilePoolState,
    plan: &TaskPlan,
    from: &TaskEndpoint,
) -> Result<(), RequestError> {
    match from {
        TaskEndpoint::Path { .. } => {
            remove_gone_of(shared, plan, &ConfinedPath::open(from, false)?)
        }
        _ => Ok(()),
    }
}

fn remove_gone_of(
    shared: &FilePoolState,
    plan: &TaskPlan,
    from: &ConfinedPath,
) -> Result<(), RequestError> {
    let gone = from.path_of(&hidden(plan.id, ".gone"));
    shared
        .mover
        .remove(&gone)
        .map_err(|e| to_request_error(&e, &[from]))
}

pub(super) fn stored(shared: &FilePoolState, held: &ConfinedPath) -> Result<u64, RequestError> {
    let stored = shared.mover.stored(&held.path());
    stored.map_err(|e| to_request_error(&e, &[held]))
}

pub(super) fn finish(
    shared: &FilePoolState,
    plan: &TaskPlan,
    to: &ConfinedPath,
    bytes: Option<u64>,
    replaced: u64,
) -> Result<Finish, RequestError> {
    clean(shared, plan, to);
    Ok(Finish {
        result: Ok(()),
        bytes: bytes.unwrap_or(0),
        stored: stored(shared, to)?,
        replaced,
        freed: 0,
        checksum: None,
    })
}

/// Removes a file or tree: at once by name, then its content.
pub(super) fn remove_endpoint(
    shared: &FilePoolState,
    plan: &TaskPlan,
    at: &TaskEndpoint,
) -> Result<Finish, RequestError> {
    if let Some(freed) = partition::delete(plan) {
        return Ok(Finish {
            freed: freed?,
            ..Finish::nothing()
        });
    }
    let held = &ConfinedPath::open(at, false)?;
    let gone = hidden(plan.id, ".gone");
    if held.stat()?.is_some() {
        held.aside(&gone)?;
    } else if !plan.resumed {
        return Err(held.missing());
    }
    let path = held.path_of(&gone);
    let mut freed = 0;
    if held.stat_of(&gone)?.is_some() {
        freed = shared
            .mover
            .stored(&path)
            .map_err(|e| to_request_error(&e, &[held]))?;
        shared
            .mover
            .remove(&path)
            .map_err(|e| to_request_error(&e, &[held]))?;
    }
    Ok(Finish {
        result: Ok(()),
        bytes: freed,
        stored: 0,
        replaced: 0,
        freed,
        checksum: None,
    })
}
