//! Datasets that are to be kept and are not there any more, though no step has to run: `keep` came after they had been consumed.

use crate::data::missing::run_again;
use tarn_base::event::Start;
use tarn_base::history::{History, InstanceState};
use tarn_base::id::{DataId, InstanceId};
use tarn_base::part::{PartRef, Place};
use tarn_base::workflow::Keep;

/// What is to be said of them when a run, or its plan, has come to its end.
pub(crate) fn notes(start: &Start, history: &History) -> Vec<String> {
    let w = &start.workflow;
    let all = (0u32..).map(DataId).zip(&w.data);
    let kept = all.filter(|(_, d)| matches!(d.keep, Keep::For(_) | Keep::Forever));
    let gone = kept.filter(|(id, _)| is_gone(start, history, *id));
    let note = |(id, d): (DataId, &tarn_base::workflow::Dataset)| {
        let again = run_again(w, id)?;
        Some(format!(
            "`{}` is to be kept on the nodes and is no longer there: an earlier run made it, and nothing has changed for its step, which \
             does not run for that; {again}",
            d.name
        ))
    };
    gone.filter_map(note).collect()
}

/// Whether an earlier run made a part of the last version of a dataset, and no node has it.
fn is_gone(start: &Start, history: &History, data: DataId) -> bool {
    let version = start.workflow.last_version(data);
    let Some(step) = start.workflow.producer(data, version) else {
        return false;
    };
    let was_made_before = |part: PartRef| {
        let id = InstanceId {
            step,
            index: part.origin,
        };
        let maker = history.instances.get(&id);
        maker.is_some_and(|i| i.state == InstanceState::Reused)
    };
    let is_there = |part: PartRef| {
        let mut places = history.replicas.get(&part).into_iter().flatten();
        places.any(|(at, _)| matches!(at, Place::Node(_) | Place::Drained))
    };
    let mut parts = history.parts_of(data, version);
    parts.any(|(part, _)| was_made_before(part) && !is_there(part))
}
