//! Copies from and to object stores, with the keys of the user that tarnd runs as. docs/guide/tasks.md says what holds.

use super::copy::{self, SINGLE, TreeSource};
use super::memory::{self, CopySide};
use super::place::{ConfinedPath, hidden, id_of, kind_of, to_request_error};
use super::remote::{self, Asking, PeerPath};
use super::{FilePoolState, TaskEndpoint, TaskPlan, TaskVerb};
use crate::connection::ProgramRegion;
use crate::fingerprint::fingerprint;
use crate::peers::PeerEndpoint;
use rustix::fs::FileType;
use rustix::io::pread;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use tarn_ports::{
    Control, CopySource, DeliveryJob, Mover, MoverError, ObjectStoreError, Over, PeerStream,
    PeerTree, Piece, Watch,
};
use tarn_proto::local::{Checksum, Code, CopyVerification, RequestError};
use tarn_tasks::{Finish, TaskSize};
use tarn_types::event::RunErrorKind;
use tarn_types::hash::Hash;
use tarn_types::manifest::{Entry, EntryKind, Manifest};
use tarn_types::object::ObjectUrl;

/// The mode of a file from memory.
const MODE: u32 = 0o644;

/// As movers name it.
fn path(at: &ObjectUrl) -> PathBuf {
    at.to_string().into()
}

/// Objects and trees of them are told apart by their names.
fn normal(list: Manifest, at: &ObjectUrl) -> Manifest {
    remote::normal(list, !at.is_tree())
}

fn list(
    shared: &FilePoolState,
    at: &ObjectUrl,
    control: &Control,
) -> Result<Manifest, RequestError> {
    let list = shared.mover.list(&path(at), control);
    Ok(normal(list.map_err(|e| to_request_error(&e, &[]))?, at))
}

/// The size of the data that a task would move from there.
pub(super) fn measure(
    shared: &FilePoolState,
    at: &ObjectUrl,
    control: &Control,
) -> Result<TaskSize, RequestError> {
    let list = list(shared, at, control)?;
    Ok(TaskSize {
        bytes: list.bytes(),
        space: copy::space_needed(&list),
    })
}

/// The hash of the objects there, all of which are read.
pub(super) fn content(
    shared: &FilePoolState,
    at: &ObjectUrl,
    control: &Control,
) -> Result<Option<Hash>, RequestError> {
    let list = shared.mover.digest(&path(at), control);
    Ok(normal(list.map_err(|e| to_request_error(&e, &[]))?, at).hash())
}

/// Copies from a store to a path of this node, or outside.
pub(super) fn fetch(
    shared: &FilePoolState,
    plan: &TaskPlan,
    at: &ObjectUrl,
    to: &TaskEndpoint,
    control: &Control,
) -> Result<Finish, RequestError> {
    let into_space = matches!(to, TaskEndpoint::Path { space: Some(_), .. });
    let to = ConfinedPath::open(to, true)?;
    let there = to.stat()?.is_some();
    if there && !plan.replace {
        // An earlier tarnd may have come so far, and no further.
        if !plan.resumed || remote::content(shared, &to, control)? != content(shared, at, control)?
        {
            return Err(to.exists());
        }
        return copy::finish(shared, plan, &to, None, 0);
    }
    let replaced = if there { copy::stored(shared, &to)? } else { 0 };
    let list = list(shared, at, control)?;
    if into_space && copy::space_needed(&list) > plan.space {
        return Err(copy::grown(&at.to_string()));
    }
    let source = TreeSource {
        root: path(at),
        held: None,
        peer: None,
        single: (!at.is_tree()).then_some(SINGLE.as_bytes()),
        list: &list,
        only: None,
    };
    let checksum = copy::transfer(shared, plan, source, &to, control)?;
    let mut done = copy::finish(shared, plan, &to, Some(list.bytes()), replaced)?;
    done.checksum = checksum;
    Ok(done)
}

/// An object into memory.
pub(super) fn load(
    shared: &FilePoolState,
    plan: &TaskPlan,
    at: &ObjectUrl,
    to: &TaskEndpoint,
    control: &Control,
) -> Result<Finish, RequestError> {
    let list = list(shared, at, control)?;
    let (entry, size) = match &list.entries[..] {
        [only] if !at.is_tree() => (only, list.bytes()),
        _ => {
            let text = format!("{at} is a tree: only single objects can go into memory");
            return Err(RequestError::new(Code::Invalid, text));
        }
    };
    let name = at.to_string();
    let memory = remote::memory_for(to, size, &name)?;
    let tree = shared.mover.object_tree(&path(at), list.clone());
    let tree = tree.map_err(|e| to_request_error(&e, &[]))?;
    let file = (&*tree, &*entry.path, size);
    let hash = remote::pour(shared, plan, file, &memory, control)?;
    if plan.verify == CopyVerification::Readback {
        memory::prove(memory::hash(&memory, size, control)?, hash, &memory)?;
    }
    Ok(Finish {
        bytes: size,
        checksum: (plan.verify != CopyVerification::None).then(|| hash.0.to_be_bytes()),
        ..Finish::nothing()
    })
}

/// An upload to a store, and the source that a move removes afterwards.
struct ObjectUpload<'a> {
    source: CopySource,
    list: Manifest,
    /// A single file.
    single: bool,
    /// For messages.
    name: String,
    held: Option<ConfinedPath>,
    moved: MoveSource<'a>,
}

/// The source of a move, with its fingerprint.
enum MoveSource<'a> {
    No,
    Own(u128),
    Far(Asking<'a>, PeerPath<'a>, u128),
}

/// Copies or moves into a store.
pub(super) fn put(
    shared: &FilePoolState,
    plan: &TaskPlan,
    from: &TaskEndpoint,
    at: &ObjectUrl,
    control: &Control,
) -> Result<Finish, RequestError> {
    let upload = find_source(shared, plan, from, control).and_then(|upload| {
        check(&upload, from, at)?;
        Ok(upload)
    });
    let upload = match upload {
        Ok(upload) => upload,
        Err(why) if is_moved(shared, plan, &why, at, control)? => {
            copy::remove_gone(shared, plan, from)?;
            return Ok(Finish::nothing());
        }
        Err(why) => {
            // An earlier tarnd may have put something.
            if plan.resumed && !shared.keeps(plan, &why) {
                withdraw(shared, plan, at, true);
            }
            return Err(why);
        }
    };
    let report = deliver(shared, plan, &upload, at, control);
    let (bytes, checksum) = report.inspect_err(|why| {
        let strange = why.code == Code::Exists && !plan.resumed;
        if !strange && !shared.keeps(plan, why) {
            withdraw(shared, plan, at, plan.resumed);
        }
    })?;
    let freed = match (&upload.moved, &upload.held) {
        (MoveSource::Own(print), Some(held)) => copy::release_own(shared, plan, held, *print)?,
        (MoveSource::Far(peers, place, print), _) => {
            peers.release(*place, plan.id, *print)?;
            0
        }
        _ => 0,
    };
    Ok(Finish {
        bytes,
        checksum,
        freed,
        ..Finish::nothing()
    })
}

/// Whether the source is gone as an earlier tarnd has moved it.
fn is_moved(
    shared: &FilePoolState,
    plan: &TaskPlan,
    why: &RequestError,
    at: &ObjectUrl,
    control: &Control,
) -> Result<bool, RequestError> {
    if why.code != Code::NotFound || !plan.resumed || plan.verb != TaskVerb::Move {
        return Ok(false);
    }
    let is = shared.mover.is_delivered(&path(at), &owner(plan), control);
    is.map_err(|e| to_request_error(&e, &[]))
}

/// Whether the source can be that place.
fn check(
    upload: &ObjectUpload<'_>,
    from: &TaskEndpoint,
    at: &ObjectUrl,
) -> Result<(), RequestError> {
    let (name, invalid) = (&upload.name, |text: String| {
        Err(RequestError::new(Code::Invalid, text))
    });
    let is_file = |e: &Entry| matches!(e.kind, EntryKind::File { .. });
    match (upload.single, at.is_tree()) {
        (true, true) => invalid(format!(
            "`{name}` is no folder, and {at} a tree: name the object that it becomes, such as {at}NAME"
        )),
        (false, false) => invalid(format!(
            "`{name}` is a tree: name the tree of objects that it becomes with a `/` at its end, {at}/"
        )),
        (true, false) if !upload.list.entries.iter().all(is_file) => {
            invalid(format!("`{name}` is no file: only files become objects"))
        }
        _ => match from {
            TaskEndpoint::Object(source) if source.is_in_way_of(at) => {
                invalid(format!("one of {source} and {at} contains the other"))
            }
            _ => Ok(()),
        },
    }
}

/// Finds the source.
fn find_source<'a>(
    shared: &'a FilePoolState,
    plan: &'a TaskPlan,
    from: &'a TaskEndpoint,
    control: &Control,
) -> Result<ObjectUpload<'a>, RequestError> {
    let source = CopySource::of(PathBuf::new());
    match from {
        TaskEndpoint::Path { .. } => path_source(shared, plan, from, control),
        TaskEndpoint::Object(at) => Ok(ObjectUpload {
            source: CopySource {
                root: path(at),
                ..source
            },
            list: list(shared, at, control)?,
            single: !at.is_tree(),
            name: at.to_string(),
            held: None,
            moved: MoveSource::No,
        }),
        TaskEndpoint::Memory {
            region,
            offset,
            length,
        } => Ok(ObjectUpload {
            source: CopySource {
                peer: Some(Arc::new(InMemory {
                    region: region.clone(),
                    offset: *offset,
                })),
                ..source
            },
            list: of_memory(*length),
            single: true,
            name: "the memory".into(),
            held: None,
            moved: MoveSource::No,
        }),
        TaskEndpoint::Far { .. } => peer_source(shared, plan, from, control),
    }
}

/// A path of this node, or outside.
fn path_source<'a>(
    shared: &FilePoolState,
    plan: &TaskPlan,
    from: &TaskEndpoint,
    control: &Control,
) -> Result<ObjectUpload<'a>, RequestError> {
    let held = ConfinedPath::open(from, false)?;
    let stat = held.stat()?.ok_or_else(|| held.missing())?;
    let single = kind_of(&stat) != FileType::Directory;
    let list = copy::list(shared, &held, control)?;
    Ok(ObjectUpload {
        source: CopySource {
            as_entry: single.then(|| SINGLE.to_owned()),
            only: (!single).then(|| list.entries.iter().map(|e| e.path.clone()).collect()),
            ..CopySource::of(held.path())
        },
        single,
        name: held.place().to_owned(),
        moved: match plan.verb {
            TaskVerb::Move => MoveSource::Own(fingerprint(&list, id_of(&stat))),
            _ => MoveSource::No,
        },
        list,
        held: Some(held),
    })
}

/// A place of another node.
fn peer_source<'a>(
    shared: &'a FilePoolState,
    plan: &'a TaskPlan,
    from: &'a TaskEndpoint,
    control: &Control,
) -> Result<ObjectUpload<'a>, RequestError> {
    let moves = plan.verb == TaskVerb::Move;
    let (peers, place) = (Asking::of(shared, plan)?, remote::far(from)?);
    let hashes = plan.verify != CopyVerification::None || moves;
    let PeerEndpoint {
        single,
        list,
        print,
        tree,
    } = peers.list(place, hashes, control)?;
    Ok(ObjectUpload {
        source: CopySource {
            peer: Some(remote::noted(tree, plan)),
            ..CopySource::of(PathBuf::new())
        },
        list,
        single,
        name: remote::show(place),
        held: None,
        moved: match moves {
            true => MoveSource::Far(peers, place, print),
            false => MoveSource::No,
        },
    })
}

/// The owner of a task's objects: this tarnd, as of its half-done files.
fn owner(plan: &TaskPlan) -> String {
    String::from_utf8_lossy(&hidden(plan.id, "")).into_owned()
}

fn deliver(
    shared: &FilePoolState,
    plan: &TaskPlan,
    upload: &ObjectUpload<'_>,
    at: &ObjectUrl,
    control: &Control,
) -> Result<(u64, Option<Checksum>), RequestError> {
    let job = DeliveryJob {
        sources: vec![CopySource {
            manifest: Some(upload.list.clone()),
            ..upload.source.clone()
        }],
        dest: path(at),
        single: upload.single,
        owner: owner(plan),
        over: match (plan.replace, plan.resumed) {
            (true, _) => Over::All,
            // It may be whole: an earlier tarnd has not come to report it.
            (false, true) => Over::Own,
            (false, false) => Over::Unfinished,
        },
        verify: copy::level(plan),
        rate: 0,
        latency: 0,
    };
    let limiter = shared.limiter(plan);
    let report = shared.mover.deliver_limited(&job, control, limiter);
    let held: Vec<&ConfinedPath> = upload.held.iter().collect();
    let report = report.map_err(|e| {
        let why = to_request_error(&e, &held);
        // Objects that it put before it met somebody else's one are removed; the one it met is not its own.
        let goes = e.refused == Some(ObjectStoreError::Occupied) && !shared.keeps(plan, &why);
        if goes && !plan.resumed {
            withdraw(shared, plan, at, false);
        }
        why
    })?;
    let checksum = match report.manifests.first().map(|m| &m.entries[..]) {
        Some([entry]) if upload.single && plan.verify != CopyVerification::None => {
            match &entry.kind {
                EntryKind::File { hash, .. } => hash.map(|h| h.0.to_be_bytes()),
                _ => None,
            }
        }
        _ => None,
    };
    Ok((upload.list.bytes(), checksum))
}

/// Removes the objects of a task that does not resume; objects that have replaced others stay. So do whole objects of a move that
/// `may_be_moved`: its source may be gone already.
pub(super) fn withdraw(
    shared: &FilePoolState,
    plan: &TaskPlan,
    at: &ObjectUrl,
    may_be_moved: bool,
) {
    let (owner, control) = (owner(plan), Control::default());
    let is_whole = || shared.mover.is_delivered(&path(at), &owner, &control);
    let is_only_copy = plan.verb == TaskVerb::Move && may_be_moved && is_whole().unwrap_or(true);
    let objects = !plan.replace && !is_only_copy;
    let removed = shared.mover.withdraw(&path(at), &owner, objects, &control);
    if let Err(e) = removed {
        tracing::warn!(
            task = plan.id,
            "a leftover stays at {at}: {}",
            to_request_error(&e, &[])
        );
    }
}

/// The list of a file in memory.
fn of_memory(length: u64) -> Manifest {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Manifest {
        entries: vec![Entry {
            path: SINGLE.as_bytes().into(),
            kind: EntryKind::File {
                size: length,
                hash: None,
                link_group: 0,
                extents: Box::default(),
            },
            mode: MODE,
            mtime: since.map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)),
            xattrs: Box::default(),
        }],
    }
}

/// Memory of a program, as a tree of one file that is read like a peer's. It is never mapped: a program that shrinks it meanwhile
/// makes the task fail, and nothing else.
#[derive(Debug)]
struct InMemory {
    region: ProgramRegion,
    offset: u64,
}

impl PeerTree for InMemory {
    fn name(&self) -> String {
        "the memory".into()
    }

    fn open<'a>(&'a self, _watch: &'a dyn Watch) -> Result<Box<dyn PeerStream + 'a>, MoverError> {
        Ok(Box::new(MemoryStream {
            memory: self,
            wanted: VecDeque::new(),
        }))
    }
}

struct MemoryStream<'a> {
    memory: &'a InMemory,
    /// Stretches that are to be read, in order: where they begin, and their bytes.
    wanted: VecDeque<(u64, u64)>,
}

impl PeerStream for MemoryStream<'_> {
    fn ask(&mut self, pieces: &[Piece<'_>]) -> Result<(), MoverError> {
        let wanted = pieces.iter().map(|p| (p.offset, p.len));
        self.wanted.extend(wanted.filter(|(_, len)| *len > 0));
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<(), MoverError> {
        let side = CopySide {
            fd: &self.memory.region.fd,
            offset: self.memory.offset,
            name: "the memory",
        };
        let mut got = 0;
        while got < buffer.len() {
            let Some((start, len)) = self.wanted.front_mut() else {
                let text = "more was read of the memory than was asked for";
                return Err(MoverError::new(RunErrorKind::Io, text));
            };
            let now = usize::try_from(*len)
                .unwrap_or(usize::MAX)
                .min(buffer.len() - got);
            let read = pread(side.fd, &mut buffer[got..got + now], side.offset + *start);
            let read = read.map_err(|e| {
                MoverError::new(RunErrorKind::Io, memory::refuse(&side, "read", e).text)
            })?;
            if read == 0 {
                let text = memory::shorter(&side).text;
                return Err(MoverError::new(RunErrorKind::SourceChanged, text));
            }
            got += read;
            *start += read as u64;
            *len -= read as u64;
            if *len == 0 {
                self.wanted.pop_front();
            }
        }
        Ok(())
    }
}
