//! Copies from other nodes, and tasks that other nodes do for this one.
//!
//! Data is pulled: what goes to another node is a task of that node's tarnd, which has its room, quotas, slots and journal. This
//! one hands it over, follows it, and removes the source of a move once the copy there is proven.

use super::copy::{self, SINGLE, TreeSource};
use super::memory::{self, CopySide};
use super::place::{ConfinedPath, id_of, kind_of, to_request_error};
use super::{FilePoolState, TaskEndpoint, TaskPlan, TaskVerb, lock, object};
use crate::fingerprint::fingerprint;
use crate::peers::{PeerEndpoint, PeerTable, unexpected};
use rustix::fs::FileType;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tarn_data_plane::RemoteTree;
use tarn_mover::ContentHasher;
use tarn_ports::{Control, MoverError, PeerStream, PeerTree, Piece, Watch};
use tarn_proto::local::{
    Code, CopyVerification, PeerTarndReply, PeerTarndRequest, RequestError, TaskEnd, TaskId,
    TaskOutcome, TaskSpec, TaskState,
};
use tarn_tasks::{Finish, TaskSize};
use tarn_types::event::FailureKind;
use tarn_types::hash::Hash;
use tarn_types::manifest::{EntryKind, Manifest};

/// Between two questions after a task that another node does: the first and the longest.
const ASK_AFTER: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(250));
/// How long a node that does a task may not answer before the task is given up.
const SILENCE: Duration = Duration::from_secs(60);
/// How long the end of a task is waited for that was cancelled.
const ENDING: Duration = Duration::from_secs(5);
/// Bytes that are asked for at a time, and how many times ahead.
const PIECE: u64 = 1 << 20;
const AHEAD: u64 = 4;

/// Node, dataspace and path.
pub(super) type PeerPath<'a> = (&'a str, &'a str, &'a [u8]);

pub(super) fn far(spot: &TaskEndpoint) -> Result<PeerPath<'_>, RequestError> {
    match spot {
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

/// A task that another node has taken for one of this node's.
#[derive(Debug, Clone, Copy)]
pub(super) struct DelegatedTask {
    /// Its id there.
    id: TaskId,
    /// The fingerprint that the source had then, if it is to be removed from here.
    source: Option<u128>,
}

/// A tree of another node; what fails of it is noted.
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
        .is_err_and(|e| e.failure.kind == FailureKind::Io)
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
    peers: &'a PeerTable,
    failed: &'a AtomicBool,
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

    fn ask(
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

/// What a task would move that takes from another node.
pub(super) fn measure(
    shared: &FilePoolState,
    plan: &TaskPlan,
    control: &Control,
) -> Result<TaskSize, RequestError> {
    match Asking::of(shared, plan)?.list(far(&plan.from)?, false, control) {
        Ok(found) => Ok(TaskSize {
            bytes: found.list.bytes(),
            room: copy::space_needed(&found.list),
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
    if into_space && copy::space_needed(&list) > plan.room {
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

/// The hash of what lies at a place of this node.
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
    let mut asked = 0;
    for at in 0..all {
        if control.cancelled() {
            return Err(RequestError::new(Code::Cancelled, "cancelled"));
        }
        while asked < all.min(at + AHEAD) {
            stream
                .ask(&[piece(asked)])
                .map_err(|e| to_request_error(&e, &[]))?;
            asked += 1;
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

/// Has another node do a task.
pub(super) fn hand_over(
    shared: &FilePoolState,
    plan: &TaskPlan,
    node: &str,
    spec: &TaskSpec,
    control: &Control,
) -> Result<Finish, RequestError> {
    let peers = &Asking::of(shared, plan)?;
    // What the source of a move is before it is copied, if it is to be removed from here.
    let moves =
        plan.verb == TaskVerb::Move && spec.verify == CopyVerification::Readback && is_copy(spec);
    let known = lock(&shared.taken).get(&plan.id).and_then(|t| t.source);
    let source = match &plan.from {
        spot @ TaskEndpoint::Path { space: Some(_), .. } if moves => {
            let held = ConfinedPath::open(spot, false)?;
            let Some(stat) = held.stat()? else {
                return match plan.resumed {
                    // An earlier tarnd has come to the end.
                    true => Ok(Finish::nothing()),
                    false => Err(held.missing()),
                };
            };
            let print = match known {
                Some(print) => print,
                None => {
                    let list = copy::list_of(&shared.mover, &held, held.name(), false, control)?;
                    fingerprint(&list, id_of(&stat))
                }
            };
            Some((Ok(held), print))
        }
        spot @ TaskEndpoint::Far { .. } if moves => {
            let place = far(spot)?;
            match peers.list(place, false, control) {
                Err(why) if why.code == Code::NotFound && plan.resumed => {
                    return Ok(Finish::nothing());
                }
                found => Some((Err(place), known.unwrap_or(found?.print))),
            }
        }
        _ => None,
    };
    let print = source.as_ref().map(|(_, print)| *print);
    let done = follow(shared, plan, (peers, node), (spec, print), control)?;
    let freed = match source {
        Some((Ok(held), print)) => copy::release_own(shared, plan, &held, print)?,
        Some((Err(place), print)) => {
            peers.release(place, plan.id, print)?;
            0
        }
        None => 0,
    };
    Ok(Finish {
        bytes: done.0,
        checksum: done.1,
        freed,
        ..Finish::nothing()
    })
}

fn is_copy(spec: &TaskSpec) -> bool {
    matches!(spec.kind, tarn_proto::local::TaskOperation::Copy { .. })
}

type FileCopyResult = (u64, Option<tarn_proto::local::Checksum>);

/// Submits a task to a node and waits for its end: bytes moved, and the checksum.
fn follow(
    shared: &FilePoolState,
    plan: &TaskPlan,
    (peers, node): (&Asking<'_>, &str),
    (spec, source): (&TaskSpec, Option<u128>),
    control: &Control,
) -> Result<FileCopyResult, RequestError> {
    let _following = peers.peers.follow(node);
    let known = lock(&shared.taken).get(&plan.id).map(|t| t.id);
    let id = match known {
        Some(id) => id,
        None => {
            let submit = PeerTarndRequest::Submit(Box::new(spec.clone()));
            let PeerTarndReply::Taken(id) = peers.ask(node, &submit, control)? else {
                return Err(unexpected(node));
            };
            lock(&shared.taken).insert(plan.id, DelegatedTask { id, source });
            id
        }
    };
    let outcome = await_end(peers, node, id, control);
    let goes_on = |why: &RequestError| plan.durable && plan.lacks_peer(why);
    // What is still done there is asked after again, unless that node knows nothing of it any more.
    if !outcome
        .as_ref()
        .is_err_and(|(why, there)| *there && goes_on(why))
    {
        lock(&shared.taken).remove(&plan.id);
    }
    let outcome = outcome.map_err(|(why, _)| why).inspect_err(|why| {
        if why.code == Code::Cancelled {
            cancel(peers.peers, node, id);
        }
    })?;
    let why = match outcome.end {
        TaskEnd::Done => return Ok((outcome.bytes, outcome.checksum)),
        TaskEnd::Failed(why) => why,
    };
    if why.code == Code::Exists
        && plan.resumed
        && !plan.replace
        && is_there(shared, plan, peers, control)?
    {
        return Ok((outcome.bytes, None));
    }
    Err(RequestError::new(
        why.code,
        format!("node {node}: {}", why.text),
    ))
}

/// Whether what a task was to copy to another node lies there: an earlier tarnd had it copied.
fn is_there(
    shared: &FilePoolState,
    plan: &TaskPlan,
    peers: &Asking<'_>,
    control: &Control,
) -> Result<bool, RequestError> {
    let hash = |spot: &TaskEndpoint| match spot {
        TaskEndpoint::Far { .. } => {
            let found = peers.list(far(spot)?, true, control)?;
            Ok(normal(found.list, found.single).hash())
        }
        TaskEndpoint::Object(at) => object::content(shared, at, control),
        _ => {
            let held = ConfinedPath::open(spot, false)?;
            let stat = held.stat()?.ok_or_else(|| held.missing())?;
            let single = kind_of(&stat) != FileType::Directory;
            let list = copy::list_of(&shared.mover, &held, held.name(), true, control)?;
            Ok(normal(list, single).hash())
        }
    };
    let Some(to) = &plan.to else {
        return Ok(false);
    };
    let (from, to) = (hash(&plan.from)?, hash(to)?);
    Ok(from.is_some() && from == to)
}

/// The end of a task at the node that does it; or why it is not known, and whether the task may still be there.
fn await_end(
    peers: &Asking<'_>,
    node: &str,
    id: TaskId,
    control: &Control,
) -> Result<TaskOutcome, (RequestError, bool)> {
    let mut pause = ASK_AFTER.0;
    let mut heard = Instant::now();
    loop {
        let until = Instant::now() + pause;
        while Instant::now() < until {
            if control.cancelled() {
                return Err((RequestError::new(Code::Cancelled, "cancelled"), true));
            }
            let left = until.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
        pause = (pause * 2).min(ASK_AFTER.1);
        match peers.ask(node, &PeerTarndRequest::Look(id), control) {
            Ok(PeerTarndReply::Stands(status, outcome)) => {
                heard = Instant::now();
                control.done.store(status.done, Ordering::Relaxed);
                if let Some(outcome) = outcome {
                    return Ok(outcome);
                }
                if status.state == TaskState::Unknown {
                    let text = format!(
                        "node {node} knows nothing of the task any more: its tarnd was started again; submit it again, or let it be durable"
                    );
                    peers.failed.store(true, Ordering::Relaxed);
                    return Err((RequestError::new(Code::Lost, text), false));
                }
            }
            Ok(_) => return Err((unexpected(node), true)),
            Err(why) if why.code == Code::Cancelled => return Err((why, true)),
            Err(why) if heard.elapsed() >= SILENCE => {
                let text = format!("{}; the request may still be carried out there", why.text);
                return Err((RequestError::new(Code::Lost, text), true));
            }
            Err(_) => {}
        }
    }
}

/// Takes back what another node was to do for a task that does not go on.
pub(super) fn discard(shared: &FilePoolState, plan: &TaskPlan) {
    let taken = lock(&shared.taken).remove(&plan.id);
    if let (Some((node, _)), Some(taken), Ok(peers)) = (&plan.handed, taken, shared.peers()) {
        cancel(peers, node, taken.id);
    }
}

/// Takes a task back, and waits a moment until it has ended: what it had half done is gone then.
fn cancel(peers: &PeerTable, node: &str, id: TaskId) {
    let control = Control::default();
    if peers
        .ask(node, &PeerTarndRequest::Cancel(id), &control)
        .is_err()
    {
        return;
    }
    let until = Instant::now() + ENDING;
    while Instant::now() < until {
        match peers.ask(node, &PeerTarndRequest::Look(id), &control) {
            Ok(PeerTarndReply::Stands(_, None)) => std::thread::sleep(ASK_AFTER.0 * 5),
            _ => return,
        }
    }
}
