//! Transfers and steps under way right now, for progress bars.

use crate::operation::Control;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tarn_types::id::{DataId, InstanceId, NodeId, TransferId};
use tarn_types::nodes::{MovingTransfer, Phase, RunningStep};
use tarn_types::part::TransferKind;

#[derive(Debug, Default)]
struct ProgressState {
    transfers: BTreeMap<TransferId, (DataId, TransferKind, u64, Instant, Arc<Control>)>,
    steps: BTreeMap<(InstanceId, u32), (Phase, Instant)>,
    /// The last reports of other nodes.
    elsewhere: BTreeMap<NodeId, (Vec<MovingTransfer>, Vec<RunningStep>)>,
}

/// A handle on the transfers and steps under way; cheap to clone, readable from any thread.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Mutex<ProgressState>>);

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

impl Progress {
    /// The transfers that are moving now, by number.
    pub fn transfers(&self) -> Vec<MovingTransfer> {
        let Ok(inner) = self.0.lock() else {
            return Vec::new();
        };
        let item = |(id, (data, kind, total, since, control)): (
            &TransferId,
            &(_, _, u64, Instant, Arc<Control>),
        )| {
            MovingTransfer {
                id: *id,
                data: *data,
                kind: *kind,
                done: control.done.load(Ordering::Relaxed).min(*total),
                total: *total,
                elapsed: nanos(*since),
            }
        };
        let others = inner
            .elsewhere
            .values()
            .flat_map(|(t, _)| t.iter().cloned());
        inner.transfers.iter().map(item).chain(others).collect()
    }

    /// The steps that are running now.
    pub fn steps(&self) -> Vec<RunningStep> {
        let Ok(inner) = self.0.lock() else {
            return Vec::new();
        };
        let item =
            |(&(instance, attempt), &(phase, since)): (&(InstanceId, u32), &(Phase, Instant))| {
                RunningStep {
                    instance,
                    attempt,
                    phase,
                    elapsed: nanos(since),
                }
            };
        let others = inner
            .elsewhere
            .values()
            .flat_map(|(_, s)| s.iter().cloned());
        inner.steps.iter().map(item).chain(others).collect()
    }

    /// Notes that a transfer of `total` bytes begins to move.
    pub fn moving(
        &self,
        id: TransferId,
        data: DataId,
        kind: TransferKind,
        total: u64,
        control: &Arc<Control>,
    ) {
        if let Ok(mut inner) = self.0.lock() {
            let entry = (data, kind, total, Instant::now(), Arc::clone(control));
            inner.transfers.insert(id, entry);
        }
    }

    /// Notes that a transfer moves no more.
    pub fn moved(&self, id: TransferId) {
        if let Ok(mut inner) = self.0.lock() {
            inner.transfers.remove(&id);
        }
    }

    /// Notes the present phase of a step.
    pub fn step(&self, instance: InstanceId, attempt: u32, phase: Phase) {
        if let Ok(mut inner) = self.0.lock() {
            let entry = inner
                .steps
                .entry((instance, attempt))
                .or_insert((phase, Instant::now()));
            entry.0 = phase;
        }
    }

    /// Notes that a step does nothing more.
    pub fn step_over(&self, instance: InstanceId, attempt: u32) {
        if let Ok(mut inner) = self.0.lock() {
            inner.steps.remove(&(instance, attempt));
        }
    }

    /// Replaces the last report of another node.
    pub fn elsewhere(&self, node: NodeId, transfers: Vec<MovingTransfer>, steps: Vec<RunningStep>) {
        if let Ok(mut inner) = self.0.lock() {
            inner.elsewhere.insert(node, (transfers, steps));
        }
    }
}
