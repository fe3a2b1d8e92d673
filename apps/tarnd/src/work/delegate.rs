//! Tasks that other nodes do for this one.
//!
//! Data is pulled: a copy to another node is a task of that node's tarnd, which has its space, quotas, slots and journal. This
//! one hands it over, follows it, and removes the source of a move once the copy there is proven.

use super::copy;
use super::place::{ConfinedPath, id_of, kind_of};
use super::remote::{Asking, far, normal};
use super::{FilePoolState, TaskEndpoint, TaskPlan, TaskVerb, lock, object};
use crate::fingerprint::fingerprint;
use crate::peers::{PeerTable, unexpected};
use rustix::fs::FileType;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tarn_ports::Control;
use tarn_proto::local::{
    Code, CopyVerification, PeerTarndReply, PeerTarndRequest, RequestError, TaskEnd, TaskId,
    TaskOutcome, TaskSpec, TaskState,
};
use tarn_tasks::Finish;

/// Between two questions after a task that another node does: the first and the longest.
const ASK_AFTER: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(250));
/// How long a node that does a task may not answer before the task is given up.
const SILENCE: Duration = Duration::from_secs(60);
/// How long the end of a task is waited for that was cancelled.
const ENDING: Duration = Duration::from_secs(5);

/// A task that another node has taken for one of this node's.
#[derive(Debug, Clone, Copy)]
pub(super) struct DelegatedTask {
    /// Its id there.
    id: TaskId,
    /// The fingerprint that the source had then, if it is to be removed from here.
    source: Option<u128>,
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
    // The state of a move's source before it is copied, if it is to be removed from here.
    let moves =
        plan.verb == TaskVerb::Move && spec.verify == CopyVerification::Readback && is_copy(spec);
    let known = lock(&shared.taken).get(&plan.id).and_then(|t| t.source);
    let source = match &plan.from {
        tier_ref @ TaskEndpoint::Path { space: Some(_), .. } if moves => {
            let held = ConfinedPath::open(tier_ref, false)?;
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
        tier_ref @ TaskEndpoint::Far { .. } if moves => {
            let place = far(tier_ref)?;
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
    // A task that is still in progress there is queried again, unless that node knows nothing of it any more.
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

/// Whether a task's copy is already on another node: an earlier tarnd had it copied.
fn is_there(
    shared: &FilePoolState,
    plan: &TaskPlan,
    peers: &Asking<'_>,
    control: &Control,
) -> Result<bool, RequestError> {
    let hash = |tier_ref: &TaskEndpoint| match tier_ref {
        TaskEndpoint::Far { .. } => {
            let found = peers.list(far(tier_ref)?, true, control)?;
            Ok(normal(found.list, found.single).hash())
        }
        TaskEndpoint::Object(at) => object::content(shared, at, control),
        _ => {
            let held = ConfinedPath::open(tier_ref, false)?;
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
    let mut last_reply = Instant::now();
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
                last_reply = Instant::now();
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
            Err(why) if last_reply.elapsed() >= SILENCE => {
                let text = format!("{}; the request may still be carried out there", why.text);
                return Err((RequestError::new(Code::Lost, text), true));
            }
            Err(_) => {}
        }
    }
}

/// Takes back a task of another node for a task that does not resume.
pub(super) fn discard(shared: &FilePoolState, plan: &TaskPlan) {
    let taken = lock(&shared.taken).remove(&plan.id);
    if let (Some((node, _)), Some(taken), Ok(peers)) = (&plan.handed, taken, shared.peers()) {
        cancel(peers, node, taken.id);
    }
}

/// Takes a task back, and waits a moment until it has ended: its half-done work is gone then.
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
