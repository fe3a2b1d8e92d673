//! Copies from other nodes: their trees, read through their tarnds.

use super::copy::{self, SINGLE, TreeSource};
use super::memory::{self, CopySide};
use super::place::{ConfinedPath, to_request_error};
use super::{FilePoolState, TaskEndpoint, TaskPlan, TaskVerb};
use crate::peers::{PeerEndpoint, PeerTable};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tarn_data_plane::RemoteTree;
use tarn_mover::ContentHasher;
use tarn_ports::{Control, MoverError, PeerStream, PeerTree, Piece, Watch};
use tarn_proto::local::{
    Code, CopyVerification, PeerTarndReply, PeerTarndRequest, RequestError, TaskId,
};
use tarn_tasks::{Finish, TaskSize};
use tarn_types::event::RunErrorKind;
use tarn_types::hash::Hash;
use tarn_types::manifest::{EntryKind, Manifest};

/// Bytes of one request, and how many requests ahead.
const PIECE: u64 = 1 << 20;
const AHEAD: u64 = 4;

/// Node, dataspace and path.
pub(super) type PeerPath<'a> = (&'a str, &'a str, &'a [u8]);

pub(super) fn far(tier_ref: &TaskEndpoint) -> Result<PeerPath<'_>, RequestError> {
    match tier_ref {
        TaskEndpoint::Far { node, space, path } => Ok((node, space, path)),
        _ => Err(RequestError::new(
            Code::Internal,
            "that is no place of another node",
        )),
    }
}

pub(super) fn show((node, space, path): PeerPath<'_>) -> String {
    let path = String::from_utf8_lossy(path);
    format!("{node}/{space}:{}", path.escape_debug())
}

/// A tree of another node; its failures are noted.
#[derive(Debug)]
struct MonitoredTree {
    tree: RemoteTree,
    failed: Arc<AtomicBool>,
}

struct NotedStream<'a> {
    stream: Box<dyn PeerStream + 'a>,
    failed: &'a AtomicBool,
}

impl MonitoredTree {
    fn new(tree: RemoteTree, plan: &TaskPlan) -> Self {
        let failed = Arc::clone(&plan.peer_failed);
        Self { tree, failed }
    }
}

/// A tree of another node, of which a task reads.
pub(super) fn noted(tree: RemoteTree, plan: &TaskPlan) -> Arc<dyn PeerTree> {
    Arc::new(MonitoredTree::new(tree, plan))
}

fn note<T>(failed: &AtomicBool, result: Result<T, MoverError>) -> Result<T, MoverError> {
    if result
        .as_ref()
        .is_err_and(|e| e.failure.kind == RunErrorKind::Io)
    {
        failed.store(true, Ordering::Relaxed);
    }
    result
}

impl PeerTree for MonitoredTree {
    fn name(&self) -> String {
        self.tree.name()
    }

    fn open<'a>(&'a self, watch: &'a dyn Watch) -> Result<Box<dyn PeerStream + 'a>, MoverError> {
        let stream = note(&self.failed, self.tree.open(watch))?;
        let failed = &*self.failed;
        Ok(Box::new(NotedStream { stream, failed }))
    }
}

impl PeerStream for NotedStream<'_> {
    fn ask(&mut self, pieces: &[Piece<'_>]) -> Result<(), MoverError> {
        note(self.failed, self.stream.ask(pieces))
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<(), MoverError> {
        note(self.failed, self.stream.read(buffer))
    }
}

/// The other nodes, asked for one task: whether one has failed it is noted.
pub(super) struct Asking<'a> {
    pub(super) peers: &'a PeerTable,
    pub(super) failed: &'a AtomicBool,
}

impl<'a> Asking<'a> {
    pub(super) fn of(shared: &'a FilePoolState, plan: &'a TaskPlan) -> Result<Self, RequestError> {
        Ok(Self {
            peers: shared.peers()?,
            failed: &plan.peer_failed,
        })
    }

    fn record_outcome<T>(&self, answer: Result<T, RequestError>) -> Result<T, RequestError> {
        self.failed.store(answer.is_err(), Ordering::Relaxed);
        answer
    }

    pub(super) fn ask(
        &self,
        node: &str,
        ask: &PeerTarndRequest,
        control: &Control,
    ) -> Result<PeerTarndReply, RequestError> {
        self.record_outcome(self.peers.ask(node, ask, control))
    }

    pub(super) fn list(
        &self,
        place: PeerPath<'_>,
        hashes: bool,
        control: &Control,
    ) -> Result<PeerEndpoint, RequestError> {
        self.record_outcome(self.peers.list(place, hashes, control))
    }

    pub(super) fn release(
        &self,
        place: PeerPath<'_>,
        task: TaskId,
        print: u128,
    ) -> Result<(), RequestError> {
        self.record_outcome(self.peers.release(place, task, print))
    }
}

/// The size of the data that a task would move from another node.
pub(super) fn measure(
    shared: &FilePoolState,
    plan: &TaskPlan,
    control: &Control,
) -> Result<TaskSize, RequestError> {
    match Asking::of(shared, plan)?.list(far(&plan.from)?, false, control) {
        Ok(found) => Ok(TaskSize {
            bytes: found.list.bytes(),
            space: copy::space_needed(&found.list),
        }),
        Err(why) if plan.resumed && plan.verb == TaskVerb::Move && why.code == Code::NotFound => {
            Ok(TaskSize::default())
        }
        Err(why) => Err(why),
    }
}

/// Copies or moves from another node to a path of this one, or outside.
pub(super) fn fetch(
    shared: &FilePoolState,
    plan: &TaskPlan,
    to: &TaskEndpoint,
    control: &Control,
) -> Result<Finish, RequestError> {
    let (peers, place) = (&Asking::of(shared, plan)?, far(&plan.from)?);
    let into_space = matches!(to, TaskEndpoint::Path { space: Some(_), .. });
    let to = ConfinedPath::open(to, true)?;
    let there = to.stat()?.is_some();
    if there && !plan.replace && !plan.resumed {
        return Err(to.exists());
    }
    let hashes = plan.verify != CopyVerification::None || plan.verb == TaskVerb::Move || there;
    let PeerEndpoint {
        single,
        list,
        print,
        tree,
    } = match peers.list(place, hashes, control) {
        Err(why)
            if why.code == Code::NotFound
                && plan.verb == TaskVerb::Move
                && plan.resumed
                && there =>
        {
            // An earlier tarnd has come to the end.
            return copy::finish(shared, plan, &to, None, 0);
        }
        listed => listed?,
    };
    if there && !plan.replace {
        // An earlier tarnd may have come so far, and no further.
        if content(shared, &to, control)? != normal(list.clone(), single).hash() {
            return Err(to.exists());
        }
        return end(shared, plan, (peers, place), (&list, print), &to, 0);
    }
    let replaced = if there { copy::stored(shared, &to)? } else { 0 };
    if into_space && copy::space_needed(&list) > plan.space {
        return Err(copy::grown(&show(place)));
    }
    let name = list.entries.first().map(|e| e.path.clone());
    let source = TreeSource {
        root: std::path::PathBuf::new(),
        held: None,
        peer: Some(noted(tree, plan)),
        single: name.as_deref().filter(|_| single),
        list: &list,
        only: None,
    };
    let checksum = copy::transfer(shared, plan, source, &to, control)?;
    let mut done = end(shared, plan, (peers, place), (&list, print), &to, replaced)?;
    done.checksum = checksum;
    Ok(done)
}

/// The end of a copy that is proven; of a move, the source is removed on its node.
fn end(
    shared: &FilePoolState,
    plan: &TaskPlan,
    (peers, place): (&Asking<'_>, PeerPath<'_>),
    (list, print): (&Manifest, u128),
    to: &ConfinedPath,
    replaced: u64,
) -> Result<Finish, RequestError> {
    if plan.verb == TaskVerb::Move {
        to.sync()?;
        peers.release(place, plan.id, print)?;
    }
    copy::finish(shared, plan, to, Some(list.bytes()), replaced)
}

/// A single file's list under the name that all have.
pub(super) fn normal(mut list: Manifest, single: bool) -> Manifest {
    if let ([only], true) = (&mut list.entries[..], single) {
        only.path = SINGLE.as_bytes().into();
    }
    list
}

/// The hash of the data at a place of this node.
pub(super) fn content(
    shared: &FilePoolState,
    held: &ConfinedPath,
    control: &Control,
) -> Result<Option<tarn_types::hash::Hash>, RequestError> {
    let list = copy::list_of(&shared.mover, held, held.name(), true, control)?;
    Ok(list.hash())
}

/// Copies a file of another node into memory.
pub(super) fn load(
    shared: &FilePoolState,
    plan: &TaskPlan,
    to: &TaskEndpoint,
    control: &Control,
) -> Result<Finish, RequestError> {
    let (peers, place) = (&Asking::of(shared, plan)?, far(&plan.from)?);
    let hashes = plan.verify != CopyVerification::None || plan.verb == TaskVerb::Move;
    let found = peers.list(place, hashes, control)?;
    let file = match &found.list.entries[..] {
        [only] if found.single => match &only.kind {
            EntryKind::File { size, hash, .. } => Some((only, *size, *hash)),
            _ => None,
        },
        _ => None,
    };
    let Some((entry, size, promised)) = file else {
        let text = format!(
            "`{}` is no file: only files can go into memory",
            show(place)
        );
        return Err(RequestError::new(Code::Invalid, text));
    };
    let memory = memory_for(to, size, &show(place))?;
    let tree = MonitoredTree::new(found.tree, plan);
    let file: PeerFile<'_> = (&tree, &entry.path, size);
    let hash = pour(shared, plan, file, &memory, control)?;
    if promised.is_some_and(|promised| promised != hash) {
        let text = format!(
            "`{}` was changed while it was read, or came otherwise than it was sent",
            show(place)
        );
        return Err(RequestError::new(Code::Changed, text));
    }
    if plan.verify == CopyVerification::Readback || plan.verb == TaskVerb::Move {
        memory::prove(memory::hash(&memory, size, control)?, hash, &memory)?;
    }
    if plan.verb == TaskVerb::Move {
        peers.release(place, plan.id, found.print)?;
    }
    Ok(Finish {
        bytes: size,
        checksum: promised.map(|hash| hash.0.to_be_bytes()),
        ..Finish::nothing()
    })
}

/// The memory that a file of this name and size goes into.
pub(super) fn memory_for<'a>(
    to: &'a TaskEndpoint,
    size: u64,
    name: &str,
) -> Result<CopySide<'a>, RequestError> {
    let TaskEndpoint::Memory {
        region,
        offset,
        length,
    } = to
    else {
        return Err(RequestError::new(Code::Internal, "no memory in this task"));
    };
    if size > *length {
        let text =
            format!("`{name}` has {size} bytes, the memory given for it {length}; give more");
        return Err(RequestError::new(Code::NoSpace, text));
    }
    Ok(CopySide {
        fd: &region.fd,
        offset: *offset,
        name: "the memory",
    })
}

/// A file of a tree: its path, and its size.
type PeerFile<'a> = (&'a dyn PeerTree, &'a [u8], u64);

/// Reads a file of a tree into memory; its hash.
pub(super) fn pour(
    shared: &FilePoolState,
    plan: &TaskPlan,
    (tree, path, size): PeerFile<'_>,
    memory: &CopySide<'_>,
    control: &Control,
) -> Result<Hash, RequestError> {
    let limiter = shared.limiter(plan);
    let mut stream = tree.open(control).map_err(|e| to_request_error(&e, &[]))?;
    let piece = |at: u64| Piece {
        path,
        offset: at * PIECE,
        len: PIECE.min(size - at * PIECE),
    };
    let all = size.div_ceil(PIECE);
    let mut buffer = vec![0; usize::try_from(PIECE.min(size)).unwrap_or(0)];
    let mut hasher = ContentHasher::default();
    let mut requested = 0;
    for at in 0..all {
        if control.cancelled() {
            return Err(RequestError::new(Code::Cancelled, "cancelled"));
        }
        while requested < all.min(at + AHEAD) {
            stream
                .ask(&[piece(requested)])
                .map_err(|e| to_request_error(&e, &[]))?;
            requested += 1;
        }
        let part = &mut buffer[..usize::try_from(piece(at).len).unwrap_or(0)];
        if let Some(limiter) = &limiter {
            let bytes = limiter.bytes(part.len() as u64, control);
            bytes.map_err(|e| to_request_error(&e, &[]))?;
        }
        stream.read(part).map_err(|e| to_request_error(&e, &[]))?;
        hasher.update(part);
        memory::write(memory, at * PIECE, part)?;
        control.advance(part.len() as u64);
    }
    Ok(hasher.finish())
}
