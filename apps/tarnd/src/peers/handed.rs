//! Tasks that another node does for this one.

use tarn_proto::local::{CopyVerification, TaskId, TaskLocation, TaskOperation, TaskSpec};

/// The name of a task's memory where other nodes name a dataspace; no dataspace has such a name.
fn memory_name(task: TaskId) -> String {
    format!("{}{task}", String::from_utf8_lossy(tarn_tasks::HIDDEN))
}

/// A task as the node sees it that is to do it for this one: its own dataspaces are its own there, this node's are another's.
/// `None` when it is this node's to do.
pub(crate) fn handed(own: &str, task: &tarn_tasks::Task) -> Option<(String, TaskSpec)> {
    let node = task.done_by()?.to_owned();
    let there = |place: &TaskLocation| match place {
        TaskLocation::Node {
            node: n,
            space,
            path,
        } if *n == node => TaskLocation::Space {
            name: space.clone(),
            path: path.clone(),
        },
        TaskLocation::Space { name, path } => TaskLocation::Node {
            node: own.to_owned(),
            space: name.clone(),
            path: path.clone(),
        },
        TaskLocation::Memory { .. } => TaskLocation::Node {
            node: own.to_owned(),
            space: memory_name(task.id),
            path: b"".into(),
        },
        other => other.clone(),
    };
    let mut verify = task.spec.verify;
    let kind = match &task.spec.kind {
        TaskOperation::Nothing => return None,
        TaskOperation::Remove { at } => TaskOperation::Remove { at: there(at) },
        TaskOperation::Allocate { at, bytes, how } => TaskOperation::Allocate {
            at: there(at),
            bytes: *bytes,
            how: how.clone(),
        },
        TaskOperation::Copy { from, to } => TaskOperation::Copy {
            from: there(from),
            to: there(to),
        },
        TaskOperation::Move { from, to } => match (there(from), there(to)) {
            // The source is removed from here, once the copy is proven.
            (from @ TaskLocation::Node { .. }, to) => {
                verify = CopyVerification::Readback;
                TaskOperation::Copy { from, to }
            }
            (from, to) => TaskOperation::Move { from, to },
        },
    };
    let spec = TaskSpec {
        kind,
        verify,
        // These have ended: this node knows that.
        after: Vec::new(),
        deadline: None,
        ..task.spec.clone()
    };
    Some((node, spec))
}
