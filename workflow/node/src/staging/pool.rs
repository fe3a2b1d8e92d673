//! The threads that move, list and remove: a bounded pool that takes the most urgent job first.

use crate::helper::image::copy::ImageCopy;
use crate::host::machine::MAX_MOVING;
use crate::staging::sources;
use crate::staging::transfer;
use crate::storage::checkpoint_folders::{self, Aside};
use crate::storage::data_context::{DataContext, NodeLoopEvent};
use crate::storage::store::failure;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use tarn_ports::Control;
use tarn_types::event::{Event, RunErrorKind};
use tarn_types::id::{DataId, InstanceId, TierRef, TransferId};
use tarn_types::part::{PartRef, Place, StoreKey, Transfer};

/// The jobs that can be cancelled.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CancelTarget {
    List(DataId),
    Transfer(TransferId),
    Image(InstanceId),
}

pub(crate) enum DataJob {
    List(DataId),
    Transfer(Box<Transfer>),
    Evict {
        part: PartRef,
        key: StoreKey,
        at: Place,
    },
    Image(ImageCopy),
    /// Checkpoints that were set aside go. As nobody waits for it, it is done even when the world ends.
    Forget(Vec<Aside>),
    /// Another world has done a transfer that began at this time: the sources that it has read are remembered. Nobody waits
    /// for it; it is done even when the world ends.
    Learned(Box<Transfer>, i64),
}

/// Higher first, then in the order of arrival.
type DataJobRank = (Reverse<u64>, u64);

#[derive(Default)]
struct DataJobQueue {
    waiting: BTreeMap<DataJobRank, DataJob>,
    controls: BTreeMap<CancelTarget, Arc<Control>>,
    arrived: u64,
    external: u32,
    closed: bool,
}

struct DataPoolState {
    queue: Mutex<DataJobQueue>,
    changed: Condvar,
    shared: Arc<DataContext>,
    streams: u32,
}

pub(crate) struct DataPool {
    state: Arc<DataPoolState>,
    threads: Vec<JoinHandle<()>>,
}

fn uses_external(job: &DataJob) -> bool {
    let outside = |p: &Place| !matches!(p, Place::Node(_));
    match job {
        DataJob::Transfer(t) => outside(&t.to) || t.parts.iter().any(|m| outside(&m.from)),
        _ => false,
    }
}

fn name(job: &DataJob) -> Option<CancelTarget> {
    match job {
        DataJob::List(data) => Some(CancelTarget::List(*data)),
        DataJob::Transfer(t) => Some(CancelTarget::Transfer(t.id)),
        DataJob::Image(copy) => Some(CancelTarget::Image(copy.instance)),
        DataJob::Evict { .. } | DataJob::Forget(_) | DataJob::Learned(..) => None,
    }
}

/// The tier of a node that a job reads or writes most of.
fn tier_of(job: &DataJob) -> Option<TierRef> {
    let t = match job {
        DataJob::Transfer(t) => t,
        DataJob::Image(copy) => return Some(copy.to),
        _ => return None,
    };
    let first = t.parts.first().map(|m| &m.from);
    match (&t.to, first) {
        (Place::Node(tier_ref), _) | (_, Some(Place::Node(tier_ref))) => Some(*tier_ref),
        _ => None,
    }
}

fn is_owed(job: &DataJob) -> bool {
    !matches!(job, DataJob::Forget(_) | DataJob::Learned(..))
}

/// Whether a job gives space on tiers back and never waits for any.
fn frees_space(job: &DataJob) -> bool {
    match job {
        DataJob::Evict { .. } | DataJob::Forget(_) => true,
        DataJob::Transfer(t) => !matches!(t.to, Place::Node(_)),
        DataJob::List(_) | DataJob::Image(_) | DataJob::Learned(..) => false,
    }
}

/// Which jobs a thread takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    Any,
    /// Those that free space: were all other threads waiting for space, nobody else would.
    FreesSpace,
}

impl DataPool {
    pub(crate) fn new(shared: &Arc<DataContext>) -> std::io::Result<Self> {
        let state = Arc::new(DataPoolState {
            queue: Mutex::default(),
            changed: Condvar::new(),
            shared: Arc::clone(shared),
            streams: shared.cluster.external.streams.max(1),
        });
        let mut threads = Vec::new();
        for n in 0..=MAX_MOVING {
            let takes = match n {
                MAX_MOVING => Takes::FreesSpace,
                _ => Takes::Any,
            };
            let state = Arc::clone(&state);
            let thread = std::thread::Builder::new().name(format!("tarn-move-{n}"));
            threads.push(thread.spawn(move || work(&state, takes))?);
        }
        Ok(Self { state, threads })
    }

    pub(crate) fn add(&self, job: DataJob) {
        let Ok(mut queue) = self.state.queue.lock() else {
            return;
        };
        if let Some(name) = name(&job) {
            queue.controls.insert(name, Arc::default());
        }
        let urgency = match &job {
            DataJob::Transfer(t) => t.priority,
            // They are short, and others wait for them or for their space.
            DataJob::List(_) | DataJob::Evict { .. } | DataJob::Forget(_) => u64::MAX,
            // Steps wait for what is transferred.
            DataJob::Image(_) | DataJob::Learned(..) => 0,
        };
        queue.arrived += 1;
        let rank = (Reverse(urgency), queue.arrived);
        let before = queue.waiting.insert(rank, job);
        debug_assert!(before.is_none(), "two jobs have one rank");
        // One thread alone might be the one that does not take it.
        self.state.changed.notify_all();
    }

    /// Jobs that no thread has taken yet and whose outcome is waited for.
    pub(crate) fn queued(&self) -> u64 {
        let queue = self.state.queue.lock();
        let owed = |q: &DataJobQueue| q.waiting.values().filter(|job| is_owed(job)).count();
        queue.map_or(0, |q| owed(&q) as u64)
    }

    /// Cancels a transfer, waiting or moving. One that has ended already is no error.
    pub(crate) fn abandon(&self, id: TransferId) {
        self.cancel(CancelTarget::Transfer(id));
    }

    /// The same of the copying of an image.
    pub(crate) fn give_up_image(&self, id: InstanceId) {
        self.cancel(CancelTarget::Image(id));
    }

    fn cancel(&self, name: CancelTarget) {
        if let Ok(queue) = self.state.queue.lock()
            && let Some(control) = queue.controls.get(&name)
        {
            control
                .cancel
                .store(true, std::sync::atomic::Ordering::Relaxed);
            self.state.changed.notify_all();
        }
    }
}

impl Drop for DataPool {
    fn drop(&mut self) {
        if let Ok(mut queue) = self.state.queue.lock() {
            queue.closed = true;
            queue.waiting.retain(|_, job| !is_owed(job));
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
fn take(state: &DataPoolState, takes: Takes) -> Option<(DataJob, Arc<Control>)> {
    let mut queue = state.queue.lock().ok()?;
    loop {
        if queue.closed && queue.waiting.is_empty() {
            return None;
        }
        let busy = queue.external >= state.streams;
        let control = |job: &DataJob| queue.controls.get(&name(job)?).cloned();
        let may_begin = |job: &DataJob| {
            control(job).is_some_and(|c| c.cancelled())
                || !(busy && uses_external(job)) && (takes == Takes::Any || frees_space(job))
        };
        let next = queue.waiting.iter().find(|(_, job)| may_begin(job));
        if let Some(rank) = next.map(|(rank, _)| *rank)
            && let Some(job) = queue.waiting.remove(&rank)
        {
            queue.external += u32::from(uses_external(&job));
            let control = name(&job).and_then(|name| queue.controls.get(&name).cloned());
            return Some((job, control.unwrap_or_default()));
        }
        queue = state.changed.wait(queue).ok()?;
    }
}

fn work(state: &DataPoolState, takes: Takes) {
    while let Some((job, control)) = take(state, takes) {
        let external = uses_external(&job);
        // The mover's threads are started by this one: they and their buffers are there too.
        let near = tier_of(&job).and_then(|tier_ref| state.shared.near(tier_ref));
        // A bug in a mover must not leave the run waiting for ever.
        let done = catch_unwind(AssertUnwindSafe(|| perform(&state.shared, &job, &control)));
        drop(near);
        let event = done.unwrap_or_else(|_| broken(&job));
        if let Ok(mut queue) = state.queue.lock() {
            let streams = u32::from(external);
            assert!(streams <= queue.external, "a stream is given back twice");
            queue.external -= streams;
            if let Some(name) = name(&job) {
                queue.controls.remove(&name);
            }
        }
        state.changed.notify_all();
        if let Some(event) = event {
            state.shared.deliver(NodeLoopEvent::Outcome(event));
        }
    }
}

fn perform(shared: &DataContext, job: &DataJob, control: &Arc<Control>) -> Option<Event> {
    Some(match job {
        DataJob::List(data) => sources::list(shared, *data, control),
        DataJob::Transfer(t) => transfer::run(shared, t, control),
        DataJob::Evict { part, key, at } => shared.evict(*part, key, at),
        DataJob::Image(copy) => copy.run(shared, control),
        DataJob::Forget(aside) => {
            checkpoint_folders::forget(shared, aside);
            return None;
        }
        DataJob::Learned(t, began) => {
            sources::learn(shared, t, *began);
            return None;
        }
    })
}

fn broken(job: &DataJob) -> Option<Event> {
    let why = failure(
        RunErrorKind::Io,
        "an error inside tarn; please report it with the lines above on stderr",
    );
    Some(match job {
        DataJob::List(data) => Event::SourceFailed {
            data: *data,
            failure: why,
        },
        DataJob::Transfer(t) => Event::TransferFailed {
            id: t.id,
            failure: why,
            damaged: None,
        },
        DataJob::Image(copy) => copy.failed(why.message),
        // The next clean-up finds and removes its rest.
        DataJob::Evict { part, at, .. } => Event::Evicted {
            part: *part,
            at: at.clone(),
        },
        DataJob::Forget(_) | DataJob::Learned(..) => return None,
    })
}
