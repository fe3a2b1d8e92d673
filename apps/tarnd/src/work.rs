//! The threads that touch files: as many as there are tasks under way, at most [`MAX_THREADS`]. Idle ones sleep.

mod copy;
mod delegate;
mod memory;
mod object;
mod partition;
mod place;
mod remote;
mod survey;

use crate::connection::ProgramRegion;
use crate::peers::{PeerTable, handed};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tarn_mover::Trees;
use tarn_mover::throttle::Limiter;
use tarn_node::machine;
use tarn_node::sockets::Near;
use tarn_ports::Control;
use tarn_proto::local::{
    Allocation, Code, CopyVerification, RequestError, TaskId, TaskLocation, TaskOperation,
    TaskSpec, UserId,
};
use tarn_tasks::{ExternalLocation, Finish, Task, TaskEvent, TaskSize};
use tarn_types::cluster::Socket;
use tarn_types::object::ObjectUrl;

pub(crate) use copy::{SINGLE, list_of, release};
pub(crate) use memory::hash_memory;
pub(crate) use partition::{PartitionQuery, PartitionReply, PartitionRequest, list, serve};
pub(crate) use place::{
    ConfinedPath, above, check_outside, hidden, id_of, kind_of, open_folder, set_tag,
    to_request_error,
};

/// Threads that touch files; each copy may use some of the mover's beside it.
const MAX_THREADS: usize = 64;

/// One end of a movement.
#[derive(Debug, Clone)]
pub(crate) enum TaskEndpoint {
    /// A path: below a space's root, or outside.
    Path {
        /// The space's name and root; `None` outside.
        space: Option<(String, PathBuf)>,
        /// Relative to it, or absolute.
        path: Vec<u8>,
    },
    /// An object of a store outside, or a tree of them.
    Object(ObjectUrl),
    /// Memory of a program.
    Memory {
        region: ProgramRegion,
        offset: u64,
        length: u64,
    },
    /// A place of another node.
    Far {
        node: String,
        space: String,
        path: Vec<u8>,
    },
}

/// A task, with everything that it names resolved.
#[derive(Debug, Clone)]
pub(crate) struct TaskPlan {
    pub(crate) id: TaskId,
    pub(crate) verb: TaskVerb,
    pub(crate) from: TaskEndpoint,
    /// Of copies and moves.
    pub(crate) to: Option<TaskEndpoint>,
    /// Of a partition: the bytes that it is to have.
    pub(crate) allocation: Option<(u64, Allocation)>,
    /// Names and roots of the dataspaces, which a destination outside must have nothing to do with.
    pub(crate) spaces: Vec<(String, PathBuf)>,
    /// The node that does it for this one, and the task that it gets.
    pub(crate) handed: Option<(String, TaskSpec)>,
    pub(crate) verify: CopyVerification,
    pub(crate) rate: u64,
    pub(crate) durable: bool,
    pub(crate) replace: bool,
    /// Whether an earlier tarnd may have begun it.
    pub(crate) resumed: bool,
    /// The space reserved for it.
    pub(crate) space: u64,
    /// Its half-done work stays when it is stopped: it will resume.
    pub(crate) keep: Arc<AtomicBool>,
    /// Another node that it needs has not answered, or not as it should.
    pub(crate) peer_failed: Arc<AtomicBool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskVerb {
    Copy,
    Move,
    Remove,
    Allocate,
}

/// Memory that tasks use: (source, destination).
pub(crate) type TaskMemory = (Option<ProgramRegion>, Option<ProgramRegion>);

impl TaskPlan {
    /// Resolves the names of a task. `None` for a task that touches nothing.
    pub(crate) fn of(
        task: &Task,
        memory: TaskMemory,
        own: &str,
        root: impl Fn(&str) -> Option<PathBuf>,
    ) -> Result<Option<Self>, RequestError> {
        let tier_ref = |place: &TaskLocation, region: &Option<ProgramRegion>| match place {
            TaskLocation::Space { name, path } => Ok(TaskEndpoint::Path {
                space: Some((
                    name.clone(),
                    root(name).ok_or_else(|| {
                        let text = format!("dataspace `{name}` is gone");
                        RequestError::new(Code::NotFound, text)
                    })?,
                )),
                path: path.0.clone(),
            }),
            TaskLocation::External(place) => Ok(match tarn_tasks::outside(place)? {
                ExternalLocation::Path(path) => TaskEndpoint::Path { space: None, path },
                ExternalLocation::Object(at) => TaskEndpoint::Object(at),
            }),
            TaskLocation::Memory { offset, length, .. } => match region {
                Some(region) => Ok(TaskEndpoint::Memory {
                    region: region.clone(),
                    offset: *offset,
                    length: *length,
                }),
                None => Err(RequestError::new(Code::Lost, "the memory is gone")),
            },
            TaskLocation::Node { node, space, path } => Ok(TaskEndpoint::Far {
                node: node.clone(),
                space: space.clone(),
                path: path.0.clone(),
            }),
        };
        let TaskSpec { kind, .. } = &task.spec;
        let (verb, from, to) = match kind {
            TaskOperation::Nothing => return Ok(None),
            TaskOperation::Copy { from, to } => (TaskVerb::Copy, from, Some(to)),
            TaskOperation::Move { from, to } => (TaskVerb::Move, from, Some(to)),
            TaskOperation::Remove { at } => (TaskVerb::Remove, at, None),
            TaskOperation::Allocate { at, .. } => (TaskVerb::Allocate, at, None),
        };
        let allocation = match kind {
            TaskOperation::Allocate { bytes, how, .. } => Some((*bytes, how.clone())),
            _ => None,
        };
        Ok(Some(Self {
            id: task.id,
            verb,
            from: tier_ref(from, &memory.0)?,
            to: to.map(|to| tier_ref(to, &memory.1)).transpose()?,
            allocation,
            spaces: Vec::new(),
            handed: handed(own, task),
            verify: task.spec.verify,
            rate: task.spec.rate,
            durable: task.spec.durable,
            replace: task.spec.replace,
            resumed: task.resumed,
            space: task.size.map_or(0, |s| s.space),
            keep: Arc::default(),
            peer_failed: Arc::default(),
        }))
    }

    /// The root of the space that it fills, or else of the one that it reads.
    fn root(&self) -> Option<&Path> {
        let ends = [self.to.as_ref(), Some(&self.from)];
        ends.into_iter()
            .flatten()
            .find_map(|tier_ref| match tier_ref {
                TaskEndpoint::Path { space, .. } => space.as_ref().map(|(_, root)| root.as_path()),
                _ => None,
            })
    }

    /// Whether this is a failure of another node's, which may pass.
    fn lacks_peer(&self, why: &RequestError) -> bool {
        let passes = matches!(why.code, Code::Io | Code::Lost | Code::Busy);
        passes && self.peer_failed.load(Ordering::Relaxed)
    }

    /// The event for a node that did not answer: of a durable task, the core decides when it resumes.
    fn unreachable(&self, why: RequestError) -> TaskEvent {
        let task = self.id;
        if self.durable {
            tracing::warn!(
                task,
                "it is tried again later, and continues with the bytes that are still missing: {why}"
            );
        }
        TaskEvent::Unreachable { task, why }
    }

    /// The node whose link it uses.
    fn link(&self) -> Option<&str> {
        match &self.from {
            TaskEndpoint::Far { node, .. } => Some(node),
            _ => None,
        }
    }

    /// The path outside that it writes to.
    pub(crate) fn fills_outside(&self) -> Option<&[u8]> {
        match &self.to {
            Some(TaskEndpoint::Path { space: None, path }) if self.handed.is_none() => Some(path),
            _ => None,
        }
    }

    fn is_outside(&self) -> bool {
        let outside = |s: &TaskEndpoint| {
            matches!(
                s,
                TaskEndpoint::Path { space: None, .. } | TaskEndpoint::Object(_)
            )
        };
        outside(&self.from) || self.to.as_ref().is_some_and(outside)
    }
}

/// Which leftovers are still of use.
#[derive(Debug, Clone)]
pub(crate) struct LiveLeftovers {
    /// Tasks from this id on are this tarnd's own.
    pub(crate) own: TaskId,
    /// Earlier ones that resume.
    pub(crate) live: BTreeSet<TaskId>,
}

/// Something to do.
pub(crate) enum FileJob {
    /// Find the size of the data that a task would move.
    Measure(TaskPlan, Arc<Control>),
    /// Carry out a task.
    Run(TaskPlan, Arc<Control>),
    /// Remove the half-done work of a task that does not resume.
    Discard(TaskPlan),
    /// Open or list partitions for a program.
    Export(PartitionRequest),
    /// Survey the usage of a space. With `Some`, leftovers of earlier tarnds are removed.
    Survey(String, PathBuf, Option<LiveLeftovers>),
}

/// The outcome of a job.
pub(crate) enum FileJobOutcome {
    /// For the core.
    Event(TaskEvent),
    /// For a program.
    Exported(PartitionReply),
}

struct FilePoolState {
    jobs: Mutex<FileJobQueue>,
    more: Condvar,
    done: Mutex<Vec<FileJobOutcome>>,
    wake: OwnedFd,
    mover: Trees,
    external: Option<Arc<Limiter>>,
    peers: Option<PeerTable>,
    /// Tasks that other nodes have taken for this one's, by these: their status is queried, they are not handed over again.
    taken: Mutex<BTreeMap<TaskId, delegate::DelegatedTask>>,
    /// Sockets where threads go to be near the spaces that they work in, if there are several.
    sockets: Vec<Socket>,
    /// tarnd ends: durable work is kept for the next one.
    ending: AtomicBool,
}

#[derive(Default)]
struct FileJobQueue {
    queue: VecDeque<FileJob>,
    idle: usize,
    threads: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The threads.
pub(crate) struct Workers(Arc<FilePoolState>);

impl Workers {
    /// `rate` bytes a second from and to outside, if there is a limit; other nodes, if they are known.
    pub(crate) fn new(rate: Option<u64>, peers: Option<PeerTable>) -> std::io::Result<Self> {
        let sockets = machine::sockets().unwrap_or_else(|why| {
            tracing::warn!("no thread is bound to a processor socket: {why}");
            Vec::new()
        });
        Ok(Self(Arc::new(FilePoolState {
            sockets,
            jobs: Mutex::default(),
            more: Condvar::new(),
            done: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            mover: Trees::new().with_store(tarn_s3::S3Client::of_environment().shared()),
            external: rate.map(|rate| Limiter::new(rate, 0)),
            peers,
            taken: Mutex::default(),
            ending: AtomicBool::new(false),
        })))
    }

    /// Gives a thread something to do.
    pub(crate) fn give(&self, job: FileJob) -> std::io::Result<()> {
        let mut jobs = lock(&self.0.jobs);
        jobs.queue.push_back(job);
        if jobs.idle >= jobs.queue.len() || jobs.threads >= MAX_THREADS {
            self.0.more.notify_one();
            return Ok(());
        }
        let shared = Arc::clone(&self.0);
        std::thread::Builder::new()
            .name("worker".into())
            .spawn(move || work(&shared))?;
        jobs.threads += 1;
        Ok(())
    }

    /// The outcomes since the last call.
    pub(crate) fn done(&self) -> Vec<FileJobOutcome> {
        std::mem::take(&mut *lock(&self.0.done))
    }

    /// Becomes readable when something is done.
    pub(crate) fn wake(&self) -> &OwnedFd {
        &self.0.wake
    }

    /// Nothing that was durable is cleaned up from now on.
    pub(crate) fn ending(&self) {
        self.0.ending.store(true, Ordering::Relaxed);
    }
}

fn work(shared: &FilePoolState) {
    loop {
        let job = {
            let mut jobs = lock(&shared.jobs);
            loop {
                if let Some(job) = jobs.queue.pop_front() {
                    break job;
                }
                jobs.idle += 1;
                jobs = shared
                    .more
                    .wait(jobs)
                    .unwrap_or_else(PoisonError::into_inner);
                jobs.idle -= 1;
            }
        };
        let done = match job {
            FileJob::Export(lending) => Some(FileJobOutcome::Exported(lending.answer(shared))),
            job => shared.perform(job).map(FileJobOutcome::Event),
        };
        let Some(done) = done else {
            continue;
        };
        lock(&shared.done).push(done);
        let _ = rustix::io::write(&shared.wake, &1u64.to_ne_bytes());
    }
}

impl FilePoolState {
    fn perform(&self, job: FileJob) -> Option<TaskEvent> {
        Some(match job {
            FileJob::Measure(plan, control) => match self.measure(&plan, &control) {
                Err(why) if plan.lacks_peer(&why) => plan.unreachable(why),
                size => TaskEvent::Measured {
                    task: plan.id,
                    size,
                },
            },
            FileJob::Run(plan, control) => {
                let _near = plan.root().and_then(|r| Near::folder(r, &self.sockets));
                match self.run(&plan, &control) {
                    Err(why) if plan.lacks_peer(&why) => plan.unreachable(why),
                    finish => TaskEvent::Finished {
                        task: plan.id,
                        finish: finish.unwrap_or_else(failed),
                    },
                }
            }
            FileJob::Survey(space, root, kept) => {
                let used = survey::survey(&self.mover, &root, kept.as_ref());
                TaskEvent::Surveyed { space, used }
            }
            FileJob::Discard(plan) => {
                match &plan.to {
                    Some(TaskEndpoint::Object(at)) => object::withdraw(self, &plan, at, true),
                    _ => copy::discard(self, &plan),
                }
                delegate::discard(self, &plan);
                return None;
            }
            FileJob::Export(_) => return None,
        })
    }

    fn measure(&self, plan: &TaskPlan, control: &Control) -> Result<TaskSize, RequestError> {
        if let Some((bytes, how)) = &plan.allocation {
            return partition::measure(plan, *bytes, how);
        }
        match &plan.from {
            TaskEndpoint::Memory { length, .. } => Ok(TaskSize {
                bytes: *length,
                space: *length,
            }),
            TaskEndpoint::Path { .. } => copy::measure(self, plan, control),
            TaskEndpoint::Object(at) => object::measure(self, at, control),
            TaskEndpoint::Far { .. } => remote::measure(self, plan, control),
        }
    }

    fn run(&self, plan: &TaskPlan, control: &Control) -> Result<Finish, RequestError> {
        if let Some((node, spec)) = &plan.handed {
            return delegate::hand_over(self, plan, node, spec, control);
        }
        if let Some(path) = plan.fills_outside() {
            place::check_outside(path, &plan.spaces)?;
        }
        if let Some((bytes, how)) = &plan.allocation {
            return partition::allocate(plan, *bytes, how);
        }
        match (&plan.from, &plan.to) {
            (from, None) => copy::remove_endpoint(self, plan, from),
            (from, Some(TaskEndpoint::Object(to))) => object::put(self, plan, from, to, control),
            (TaskEndpoint::Object(from), Some(to @ TaskEndpoint::Path { .. })) => {
                object::fetch(self, plan, from, to, control)
            }
            (TaskEndpoint::Object(from), Some(to)) => object::load(self, plan, from, to, control),
            (from @ TaskEndpoint::Path { .. }, Some(to @ TaskEndpoint::Path { .. })) => {
                copy::copy(self, plan, from, to, control)
            }
            (TaskEndpoint::Far { .. }, Some(to @ TaskEndpoint::Path { .. })) => {
                remote::fetch(self, plan, to, control)
            }
            (TaskEndpoint::Far { .. }, Some(to)) => remote::load(self, plan, to, control),
            (from, Some(to)) => memory::copy(self, plan, from, to, control),
        }
    }

    /// The limiter of a task: of its own rate, that of its link, and that of outside.
    fn limiter(&self, plan: &TaskPlan) -> Option<Arc<Limiter>> {
        let outside = self.external.clone().filter(|_| plan.is_outside());
        let link = plan.link().and_then(|n| self.peers.as_ref()?.link(n));
        let shared: Vec<_> = [outside, link].into_iter().flatten().collect();
        match (plan.rate, &shared[..]) {
            (0, []) => None,
            (0, [only]) => Some(Arc::clone(only)),
            (rate, _) => Some(Limiter::under(rate, shared)),
        }
    }

    fn peers(&self) -> Result<&PeerTable, RequestError> {
        self.peers.as_ref().ok_or_else(|| {
            let text = "this tarnd knows no other nodes (`--peers`) any more";
            RequestError::new(Code::Unsupported, text)
        })
    }

    /// Whether half-done work of a task stays when it has failed so: for its next try, or the next tarnd.
    fn keeps(&self, plan: &TaskPlan, why: &RequestError) -> bool {
        let goes_on = || self.ending.load(Ordering::Relaxed) || plan.lacks_peer(why);
        plan.keep.load(Ordering::Relaxed) || plan.durable && goes_on()
    }
}

/// Nothing was done.
pub(crate) fn failed(why: RequestError) -> Finish {
    Finish {
        result: Err(why),
        bytes: 0,
        stored: 0,
        replaced: 0,
        freed: 0,
        checksum: None,
    }
}

/// Users and bytes.
pub(crate) type UsageByUser = BTreeMap<UserId, u64>;
