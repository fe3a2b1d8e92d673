//! The threads that move, list and remove: a bounded pool that takes the most urgent job first.

use crate::shared::{Delivery, Shared};
use crate::store::failure;
use crate::{sources, transfer};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use tarn_base::event::{Event, FailureKind};
use tarn_base::id::{DataId, TransferId};
use tarn_base::part::{PartRef, Place, StoreKey, Transfer};
use tarn_ports::Control;

/// Jobs at once. A mover uses several threads itself for one large tree; more jobs than these help only where
/// latency rules, which is the external store's `streams`, and that is at most this.
pub const MAX_MOVING: usize = 8;

pub(crate) enum Job {
    List(DataId),
    Transfer(Box<Transfer>),
    Evict {
        part: PartRef,
        key: StoreKey,
        at: Place,
    },
}

/// Higher first, then in the order of arrival.
type Rank = (Reverse<u64>, u64);

#[derive(Default)]
struct Queue {
    waiting: BTreeMap<Rank, Job>,
    controls: BTreeMap<TransferId, Arc<Control>>,
    arrived: u64,
    external: u32,
    closed: bool,
}

struct State {
    queue: Mutex<Queue>,
    changed: Condvar,
    shared: Arc<Shared>,
    streams: u32,
}

pub(crate) struct Pool {
    state: Arc<State>,
    threads: Vec<JoinHandle<()>>,
}

fn uses_external(job: &Job) -> bool {
    let outside = |p: &Place| !matches!(p, Place::Node(_));
    match job {
        Job::Transfer(t) => outside(&t.to) || t.parts.iter().any(|m| outside(&m.from)),
        _ => false,
    }
}

impl Pool {
    pub(crate) fn new(shared: &Arc<Shared>) -> std::io::Result<Self> {
        let state = Arc::new(State {
            queue: Mutex::default(),
            changed: Condvar::new(),
            shared: Arc::clone(shared),
            streams: shared.cluster.external.streams.max(1),
        });
        let mut threads = Vec::new();
        for n in 0..MAX_MOVING {
            let state = Arc::clone(&state);
            let thread = std::thread::Builder::new().name(format!("tarn-move-{n}"));
            threads.push(thread.spawn(move || work(&state))?);
        }
        Ok(Self { state, threads })
    }

    pub(crate) fn add(&self, job: Job) {
        let Ok(mut queue) = self.state.queue.lock() else {
            return;
        };
        let urgency = match &job {
            Job::Transfer(t) => {
                queue.controls.insert(t.id, Arc::default());
                t.priority
            }
            // They are short, and others wait for them.
            Job::List(_) | Job::Evict { .. } => u64::MAX,
        };
        queue.arrived += 1;
        let rank = (Reverse(urgency), queue.arrived);
        queue.waiting.insert(rank, job);
        self.state.changed.notify_one();
    }

    /// Jobs that no thread has taken yet.
    pub(crate) fn queued(&self) -> u64 {
        let queue = self.state.queue.lock();
        queue.map_or(0, |q| q.waiting.len() as u64)
    }

    /// Cancels a transfer, waiting or moving. One that has ended already is no error.
    pub(crate) fn abandon(&self, id: TransferId) {
        if let Ok(queue) = self.state.queue.lock()
            && let Some(control) = queue.controls.get(&id)
        {
            control
                .cancel
                .store(true, std::sync::atomic::Ordering::Relaxed);
            self.state.changed.notify_all();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Ok(mut queue) = self.state.queue.lock() {
            queue.closed = true;
            queue.waiting.clear();
            for control in queue.controls.values() {
                control
                    .cancel
                    .store(true, std::sync::atomic::Ordering::Relaxed);
            }
        }
        self.state.changed.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The most urgent job that may begin: one that uses the external store only while a stream is free.
fn take(state: &State) -> Option<(Job, Arc<Control>)> {
    let mut queue = state.queue.lock().ok()?;
    loop {
        if queue.closed {
            return None;
        }
        let busy = queue.external >= state.streams;
        let cancelled = |job: &Job| match job {
            Job::Transfer(t) => queue.controls.get(&t.id).is_some_and(|c| c.cancelled()),
            _ => false,
        };
        let next = queue
            .waiting
            .iter()
            .find(|(_, job)| cancelled(job) || !(busy && uses_external(job)));
        if let Some(rank) = next.map(|(rank, _)| *rank)
            && let Some(job) = queue.waiting.remove(&rank)
        {
            queue.external += u32::from(uses_external(&job));
            let control = match &job {
                Job::Transfer(t) => queue.controls.get(&t.id).cloned(),
                _ => None,
            };
            return Some((job, control.unwrap_or_default()));
        }
        queue = state.changed.wait(queue).ok()?;
    }
}

fn work(state: &State) {
    while let Some((job, control)) = take(state) {
        let external = uses_external(&job);
        let id = match &job {
            Job::Transfer(t) => Some(t.id),
            _ => None,
        };
        // A bug in a mover must not leave the run waiting for ever.
        let done = catch_unwind(AssertUnwindSafe(|| perform(&state.shared, &job, &control)));
        let event = done.unwrap_or_else(|_| broken(&job));
        if let Ok(mut queue) = state.queue.lock() {
            queue.external -= u32::from(external);
            if let Some(id) = id {
                queue.controls.remove(&id);
            }
        }
        state.changed.notify_all();
        state.shared.deliver(Delivery::Outcome(event));
    }
}

fn perform(shared: &Shared, job: &Job, control: &Arc<Control>) -> Event {
    match job {
        Job::List(data) => sources::list(shared, *data, control),
        Job::Transfer(t) => transfer::run(shared, t, control),
        Job::Evict { part, key, at } => transfer::evict(shared, *part, key, at),
    }
}

fn broken(job: &Job) -> Event {
    let why = failure(
        FailureKind::Io,
        "an error inside tarn; please report it with what stands above on stderr",
    );
    match job {
        Job::List(data) => Event::SourceFailed {
            data: *data,
            failure: why,
        },
        Job::Transfer(t) => Event::TransferFailed {
            id: t.id,
            failure: why,
        },
        // What is left of it is found and removed by the next clean-up.
        Job::Evict { part, at, .. } => Event::Evicted {
            part: *part,
            at: at.clone(),
        },
    }
}
