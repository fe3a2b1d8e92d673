//! Copies, moves and removals of files and trees.

use super::place::{Held, hidden, kind_of, told};
use super::{Plan, Shared, Spot, Verb};
use rustix::fs::FileType;
use tarn_base::manifest::{EntryKind, Manifest};
use tarn_base::part::Verify as Level;
use tarn_ports::{Control, CopyJob, CopySource, Mover};
use tarn_proto::local::{Checksum, Code, Refusal, Verify};
use tarn_tasks::{Finish, HIDDEN, Size};

/// File systems give room in pieces of so many bytes; a name takes at most one more.
const PIECE: u64 = 4096;
/// What a single file is called while it is copied.
const SINGLE: &str = "file";

/// What a task would move.
pub(super) fn measure(shared: &Shared, plan: &Plan, control: &Control) -> Result<Size, Refusal> {
    let from = Held::open(&plan.from, false)?;
    let Some(stat) = from.stat()? else {
        // A move that an earlier tarnd has done has nothing left to move.
        return match plan.resumed && plan.verb == Verb::Move {
            true => Ok(Size::default()),
            false => Err(from.missing()),
        };
    };
    let list = list(shared, &from, control)?;
    let mut size = Size {
        bytes: list.bytes(),
        room: room(&list),
    };
    if let (Verb::Move, Some(to)) = (plan.verb, &plan.to)
        && let (
            Spot::Path {
                space: Some((a, _)),
                ..
            },
            Spot::Path {
                space: Some((b, _)),
                ..
            },
        ) = (&plan.from, to)
    {
        let to = Held::open(to, true)?;
        let there = rustix::fs::fstat(to.folder()).map_err(|e| to.failed("examine", e))?;
        if a == b && there.st_dev == stat.st_dev {
            // Only its name changes.
            size.room = 0;
        }
    }
    Ok(size)
}

fn room(list: &Manifest) -> u64 {
    let entry = |kind: &EntryKind| match kind {
        EntryKind::File { size, .. } => size.div_ceil(PIECE).saturating_mul(PIECE),
        EntryKind::Directory | EntryKind::Symlink(_) => 0,
    };
    let entries = list.entries.iter().map(|e| entry(&e.kind));
    entries.fold(PIECE, |sum, n| sum.saturating_add(n).saturating_add(PIECE))
}

/// The entries of a source, without what tarnd itself has half done there.
fn list(shared: &Shared, from: &Held, control: &Control) -> Result<Manifest, Refusal> {
    list_of(shared, from, from.name(), control)
}

fn list_of(
    shared: &Shared,
    from: &Held,
    name: &[u8],
    control: &Control,
) -> Result<Manifest, Refusal> {
    let list = shared.mover.list(&from.path_of(name), control);
    let mut list = list.map_err(|e| told(&e, &[from]))?;
    if let [only] = &mut list.entries[..]
        && *only.path == *name
    {
        // A single file: whatever it is called.
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
    shared: &Shared,
    plan: &Plan,
    from: &Spot,
    to: &Spot,
    control: &Control,
) -> Result<Finish, Refusal> {
    let from = Held::open(from, false)?;
    let into_space = matches!(to, Spot::Path { space: Some(_), .. });
    let to = Held::open(to, true)?;
    let there = to.stat()?.is_some();
    let Some(source) = from.stat()? else {
        if plan.resumed && plan.verb == Verb::Move && there {
            let gone = from.path_of(&hidden(plan.id, ".gone"));
            shared.mover.remove(&gone).map_err(|e| told(&e, &[&from]))?;
            return finish(shared, plan, &to, None, 0);
        }
        return Err(from.missing());
    };
    let single = kind_of(&source) != FileType::Directory;
    if there && !plan.replace {
        // An earlier tarnd may have come so far, and no further.
        if !plan.resumed || !same(shared, &from, &to, single, control)? {
            return Err(to.exists());
        }
        let list = list(shared, &from, control)?;
        return release(shared, plan, &from, &to, &list, 0);
    }
    let replaced = if there { stored(shared, &to)? } else { 0 };
    if plan.verb == Verb::Move && from.rename(from.name(), &to, plan.replace)? {
        if there {
            // What was replaced stands where the source was.
            from.aside(&hidden(plan.id, ".gone"))?;
            let old = from.path_of(&hidden(plan.id, ".gone"));
            shared.mover.remove(&old).map_err(|e| told(&e, &[&from]))?;
        }
        to.sync()?;
        from.sync()?;
        let mut done = finish(shared, plan, &to, None, replaced)?;
        (done.bytes, done.freed) = (done.stored, done.stored);
        return Ok(done);
    }
    let list = list(shared, &from, control)?;
    if into_space && room(&list) > plan.room {
        return Err(Refusal::new(
            Code::Changed,
            format!(
                "`{}` has grown since it was measured; submit again when nobody writes it",
                from.place()
            ),
        ));
    }
    let copied = transfer(shared, plan, &from, &to, &list, single, control);
    let checksum = copied.inspect_err(|_| {
        if !shared.keeps(plan) {
            clean(shared, plan, &to);
        }
    })?;
    let mut done = match plan.verb {
        Verb::Move => release(shared, plan, &from, &to, &list, replaced)?,
        _ => finish(shared, plan, &to, None, replaced)?,
    };
    done.bytes = list.bytes();
    done.checksum = checksum;
    Ok(done)
}

/// The copy itself: into a hidden folder beside the destination, which then gets its name.
fn transfer(
    shared: &Shared,
    plan: &Plan,
    from: &Held,
    to: &Held,
    list: &Manifest,
    single: bool,
    control: &Control,
) -> Result<Option<Checksum>, Refusal> {
    let whole = to.path_of(&hidden(plan.id, ".whole"));
    let mut only = None;
    if single {
        shared.mover.remove(&whole).map_err(|e| told(&e, &[to]))?;
    } else {
        only = Some(list.entries.iter().map(|e| e.path.clone()).collect());
    }
    let verify = match (plan.verb, plan.verify) {
        (Verb::Move, _) | (_, Verify::Readback) => Level::Readback,
        (_, Verify::Copy) => Level::Copy,
        (_, Verify::None) => Level::None,
    };
    let job = CopyJob {
        sources: vec![CopySource {
            root: from.path(),
            peer: None,
            as_entry: single.then(|| SINGLE.to_owned()),
            manifest: Some(list.clone()),
            only,
        }],
        dest: if single { whole.clone() } else { to.path() },
        staging: to.path_of(&hidden(plan.id, "")),
        replace: !single && plan.replace,
        verify,
        sync: plan.durable || verify == Level::Readback,
        rate: 0,
        latency: 0,
    };
    let limiter = shared.limiter(plan);
    let report = shared.mover.copy_limited(&job, control, limiter);
    let report = report.map_err(|e| told(&e, &[from, to]))?;
    if single {
        let inside = [&hidden(plan.id, ".whole")[..], b"/", SINGLE.as_bytes()].concat();
        to.rename(&inside, to, plan.replace)?;
        if job.sync {
            to.sync()?;
        }
        shared.mover.remove(&whole).map_err(|e| told(&e, &[to]))?;
    }
    let entries = report.manifests.first().map(|m| &m.entries[..]);
    Ok(match entries {
        Some([entry]) if single => match &entry.kind {
            EntryKind::File { hash, .. } => hash.map(|h| h.0.to_be_bytes()),
            _ => None,
        },
        _ => None,
    })
}

/// Removes what a failed copy has left.
fn clean(shared: &Shared, plan: &Plan, to: &Held) {
    for what in ["", ".progress", ".whole"] {
        if let Err(e) = shared.mover.remove(&to.path_of(&hidden(plan.id, what))) {
            tracing::warn!(task = plan.id, "a leftover stays: {}", told(&e, &[to]));
        }
    }
}

/// Whether source and destination hold the same.
fn same(
    shared: &Shared,
    from: &Held,
    to: &Held,
    single: bool,
    control: &Control,
) -> Result<bool, Refusal> {
    let content = |held: &Held| {
        let digest = shared.mover.digest(&held.path(), control);
        let mut digest = digest.map_err(|e| told(&e, &[held]))?;
        if let [entry] = &mut digest.entries[..]
            && single
        {
            entry.path = SINGLE.as_bytes().into();
        }
        Ok(digest.hash())
    };
    Ok(content(from)? == content(to)?)
}

/// Removes the source of a copy that was moved and is proven; of any other copy nothing.
fn release(
    shared: &Shared,
    plan: &Plan,
    from: &Held,
    to: &Held,
    list: &Manifest,
    replaced: u64,
) -> Result<Finish, Refusal> {
    if plan.verb != Verb::Move {
        return finish(shared, plan, to, Some(list.bytes()), replaced);
    }
    let gone = hidden(plan.id, ".gone");
    from.aside(&gone)?;
    // What was written between the copy and now would be lost.
    let late = list_of(shared, from, &gone, &Control::default())?;
    if late != *list {
        rustix::fs::renameat(from.folder(), &gone[..], from.folder(), from.name())
            .map_err(|e| from.failed("restore", e))?;
        return Err(Refusal::new(
            Code::Changed,
            format!(
                "`{}` was changed while it was moved: it stays, and so does the copy of its earlier content `{}`",
                from.place(),
                to.place()
            ),
        ));
    }
    let path = from.path_of(&gone);
    let freed = shared.mover.stored(&path).map_err(|e| told(&e, &[from]))?;
    shared.mover.remove(&path).map_err(|e| told(&e, &[from]))?;
    let mut done = finish(shared, plan, to, Some(list.bytes()), replaced)?;
    done.freed = freed;
    Ok(done)
}

fn stored(shared: &Shared, held: &Held) -> Result<u64, Refusal> {
    let stored = shared.mover.stored(&held.path());
    stored.map_err(|e| told(&e, &[held]))
}

fn finish(
    shared: &Shared,
    plan: &Plan,
    to: &Held,
    bytes: Option<u64>,
    replaced: u64,
) -> Result<Finish, Refusal> {
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

/// Removes a file or tree: at once by name, then what it held.
pub(super) fn remove_spot(shared: &Shared, plan: &Plan, at: &Spot) -> Result<Finish, Refusal> {
    remove(shared, plan, &Held::open(at, false)?)
}

pub(super) fn remove(shared: &Shared, plan: &Plan, held: &Held) -> Result<Finish, Refusal> {
    let gone = hidden(plan.id, ".gone");
    if held.stat()?.is_some() {
        held.aside(&gone)?;
    } else if !plan.resumed {
        return Err(held.missing());
    }
    let path = held.path_of(&gone);
    let mut freed = 0;
    if held.stat_of(&gone)?.is_some() {
        freed = shared.mover.stored(&path).map_err(|e| told(&e, &[held]))?;
        shared.mover.remove(&path).map_err(|e| told(&e, &[held]))?;
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
