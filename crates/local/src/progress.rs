//! What is going on right now, for progress bars.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tarn_base::id::{DataId, InstanceId, TransferId};
use tarn_base::part::TransferKind;
use tarn_ports::Control;

/// A transfer that is moving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovingTransfer {
    /// Its number.
    pub id: TransferId,
    /// The dataset.
    pub data: DataId,
    /// How its bytes are counted.
    pub kind: TransferKind,
    /// Bytes done.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// Nanoseconds since it began to move.
    pub elapsed: u64,
}

/// What a step is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Views and pre-images are made.
    Preparing,
    /// Its command runs.
    Running,
    /// Its outputs are hashed and published.
    Committing,
}

/// A step that is running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningStep {
    /// The instance.
    pub instance: InstanceId,
    /// Its attempt.
    pub attempt: u32,
    /// What it is doing.
    pub phase: Phase,
    /// Nanoseconds since it began.
    pub elapsed: u64,
}

#[derive(Debug, Default)]
struct Inner {
    transfers: BTreeMap<TransferId, (DataId, TransferKind, u64, Instant, Arc<Control>)>,
    steps: BTreeMap<(InstanceId, u32), (Phase, Instant)>,
}

/// A handle on what is going on; cheap to clone, readable from any thread.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Mutex<Inner>>);

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
        inner.transfers.iter().map(item).collect()
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
        inner.steps.iter().map(item).collect()
    }

    pub(crate) fn moving(
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

    pub(crate) fn moved(&self, id: TransferId) {
        if let Ok(mut inner) = self.0.lock() {
            inner.transfers.remove(&id);
        }
    }

    pub(crate) fn step(&self, instance: InstanceId, attempt: u32, phase: Phase) {
        if let Ok(mut inner) = self.0.lock() {
            let entry = inner
                .steps
                .entry((instance, attempt))
                .or_insert((phase, Instant::now()));
            entry.0 = phase;
        }
    }

    pub(crate) fn step_over(&self, instance: InstanceId, attempt: u32) {
        if let Ok(mut inner) = self.0.lock() {
            inner.steps.remove(&(instance, attempt));
        }
    }
}
