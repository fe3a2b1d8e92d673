//! Upward ranks: how long it is from the start of a step to the end of the workflow, with the bytes on the
//! edges counted (Topcuoglu, Hariri, Wu 2002, equation 4), from declared and, once there are some, observed sizes.

use crate::data::makes;
use crate::state::EngineState;
use crate::steps::InstanceProgress;
use tarn_types::id::{InstanceId, StepId};

/// Computes all ranks anew and puts the waiting instances into their order.
pub(crate) fn refresh(state: &mut EngineState) {
    let steps = &state.start.workflow.steps;
    let edges = |i: usize| {
        let id = StepId(i as u32);
        let data = makes(&steps[i]).flat_map(|v| {
            let seconds = state.edge_time(v.0, v.1);
            let readers = state.readers.get(&v).into_iter().flatten();
            readers.map(move |r| (r.at(), seconds))
        });
        let control = state
            .steps
            .followers
            .get(&id)
            .into_iter()
            .flatten()
            .map(|f| (f.at(), 0));
        data.chain(control).collect::<Vec<_>>()
    };
    let mut ranks: Vec<Option<u64>> = vec![None; steps.len()];
    let mut stack: Vec<usize> = (0..steps.len()).collect();
    while let Some(&i) = stack.last() {
        if ranks[i].is_some() {
            stack.pop();
            continue;
        }
        let next = edges(i);
        let missing: Vec<_> = next
            .iter()
            .map(|(r, _)| *r)
            .filter(|r| ranks[*r].is_none())
            .collect();
        if missing.is_empty() {
            let below = next
                .iter()
                .map(|(r, t)| ranks[*r].unwrap_or(0).saturating_add(*t))
                .max()
                .unwrap_or(0);
            ranks[i] = Some(below.saturating_add(state.run_time(StepId(i as u32))));
            stack.pop();
        } else {
            stack.extend(missing);
        }
    }
    state.steps.ranks = ranks.into_iter().map(Option::unwrap_or_default).collect();
    state.steps.stale = 0;
    requeue(state);
}

fn requeue(state: &mut EngineState) {
    let waiting: Vec<InstanceId> = state
        .steps
        .instances()
        .filter(|(_, i)| i.progress == InstanceProgress::Pending)
        .map(|(id, _)| id)
        .collect();
    state.steps.pending.clear();
    for id in waiting {
        state.steps.enqueue(id);
    }
}
