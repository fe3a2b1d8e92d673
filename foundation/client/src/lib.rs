//! L3: a client of the tarnd of this node (docs/guide/tasks.md).
//!
//! One connection may be used by many threads: each request has a number, and any waiting thread reads
//! replies for all. There is no thread of the client's own, no runtime and no signal handler. It belongs to
//! the process that connected: in a forked child its calls give [`Code::Unsupported`].
//!
//! Sizes are bytes. Every error is a [`RequestError`] with a [`Code`]; those that any call can give are
//! [`Lost`](Code::Lost) (the connection is gone), [`Unsupported`](Code::Unsupported),
//! [`Version`](Code::Version) (tarnd speaks another version) and [`Internal`](Code::Internal), which the
//! calls below do not list again.
//!
//! All types that calls take and give are exported here, so a program depends on this crate alone: in its
//! `Cargo.toml` `tarn-client = { path = "../tarn/foundation/client" }`, with the path to tarn's source.
//!
//! The examples need a running tarnd (`tarnd --socket PATH --state FOLDER --space fast=FOLDER:SIZE`), so they
//! are compiled and not run; `apps/tarnd/tests/tasks.rs` runs these calls.
//!
//! ```no_run
//! use std::time::Duration;
//! use tarn_client::{Client, Result, TaskLocation, TaskOperation, TaskSpec, WaitCondition};
//!
//! fn main() -> Result<()> {
//!     let client = Client::from_env()?; // the tarnd that $TARN_SOCKET names
//!     let copy = TaskSpec::new(TaskOperation::Copy {
//!         from: TaskLocation::External("/home/me/mesh".as_bytes().into()),
//!         to: TaskLocation::Space { name: "fast".into(), path: "mesh".as_bytes().into() },
//!     });
//!     let id = client.submit(&[copy])?.remove(0)?;
//!     // The program computes meanwhile.
//!     let ended = client.wait(&[id], WaitCondition::All, Some(Duration::from_secs(60)))?;
//!     println!("{} bytes in {} ns", ended[0].bytes, ended[0].nanos);
//!     Ok(())
//! }
//! ```

mod socket;

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket::{is_not_listening, listening, may_appear};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tarn_proto::local::{
    LocalRequest, MAX_BATCH, MAX_IDS, MAX_PACKET, OLDEST, PacketError, Reply, Scope, VERSION,
    decode, encode,
};
use tarn_sys::fdpass::{receive_packet, send_packet};

pub use tarn_proto::local::{
    Access, Allocation, CancelResult, Checksum, Code, CopyVerification, JobChange, JobId, Limit,
    MAX_AFTER, MAX_FIRST, PartitionInfo, PathBytes, PauseResult, RegionId, RemotePartition,
    RequestError, SpaceChange, SpaceInfo, SpaceSpec, Stats, TaskEnd, TaskId, TaskLocation,
    TaskOperation, TaskOutcome, TaskSpec, TaskState, TaskStatus, UserId, WindowUse,
};
pub use tarn_types::grant::{Grant, Grantee};

/// The environment variable that names the socket.
pub const SOCKET: &str = "TARN_SOCKET";

/// How long a connect is tried again while tarnd has as many connections as it takes.
pub const CROWDED: Duration = Duration::from_secs(10);
/// How long a connect waits for a tarnd that does not listen: it may be starting.
pub const STARTING: Duration = Duration::from_secs(5);
/// Partitions of a folder that are listed.
const MAX_PARTITIONS: usize = 1 << 16;
/// Between two attempts at either: the first and the longest.
const BETWEEN: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// The result of a call.
pub type Result<T> = std::result::Result<T, RequestError>;

/// The result of [`Client::submit`]: for each task, in order, its number or why it was refused.
pub type SubmitResults = Vec<Result<TaskId>>;

/// For which of the tasks [`Client::wait`] waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitCondition {
    /// One of them, or more.
    Any,
    /// All of them.
    All,
}

#[derive(Debug, Default)]
struct RequestTable {
    /// The number of the last request; 0 is no request's.
    number: u32,
    /// Replies that came for requests whose threads have not looked yet.
    replies: BTreeMap<u32, ReplyWithFd>,
    /// Whether a thread reads.
    reading: bool,
    /// Why the connection is of no use any more.
    lost: Option<RequestError>,
}

/// A reply, and the descriptor that came with it.
type ReplyWithFd = (Reply, Option<OwnedFd>);

/// A connection to tarnd. It ends when it is dropped; tasks continue.
///
/// # Examples
/// Threads share a connection. This needs a running tarnd:
/// ```no_run
/// use tarn_client::{Client, TaskOperation, TaskSpec};
///
/// # fn main() -> tarn_client::Result<()> {
/// let client = Client::connect("/run/tarn/socket".as_ref(), None)?;
/// println!("user {} on node {}", client.user(), client.node());
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| client.submit(&[TaskSpec::new(TaskOperation::Nothing)]));
///     }
/// });
/// for space in client.spaces()? {
///     println!("{}: {} of {} bytes", space.name, space.used, space.capacity);
/// }
/// println!("{} tasks are done", client.stats()?.done);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Client {
    fd: OwnedFd,
    state: Mutex<RequestTable>,
    more: Condvar,
    buffers: Mutex<Vec<Vec<u8>>>,
    user: UserId,
    node: String,
    /// The process that connected: the connection is not its forked children's.
    process: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lost(why: impl std::fmt::Display) -> RequestError {
    let text = format!(
        "the connection to tarnd is lost ({why}); is it still running? Durable tasks continue when it is started again"
    );
    RequestError::new(Code::Lost, text)
}

fn unexpected() -> RequestError {
    let text = "tarnd gave an answer that does not belong to the request";
    RequestError::new(Code::Internal, text)
}

impl Client {
    /// Connects to the tarnd that `$TARN_SOCKET` names, as [`Client::connect`] does.
    ///
    /// # Errors
    /// [`NotFound`](Code::NotFound): the variable is not set. Otherwise as [`Client::connect`].
    ///
    /// # Examples
    /// ```
    /// use tarn_client::{Client, Code, SOCKET};
    ///
    /// if std::env::var_os(SOCKET).is_none() {
    ///     assert_eq!(Client::from_env().unwrap_err().code, Code::NotFound);
    /// }
    /// ```
    pub fn from_env() -> Result<Self> {
        let path = std::env::var_os(SOCKET).ok_or_else(|| {
            let text = "TARN_SOCKET is not set: no tarnd serves this program";
            RequestError::new(Code::NotFound, text)
        })?;
        Self::connect(path.as_ref(), None)
    }

    /// Connects to the tarnd that listens at `path`, for a job if there is one. While nobody listens there,
    /// it waits up to [`STARTING`] if the socket's folder exists; while tarnd has as many connections as it
    /// takes, up to [`CROWDED`].
    ///
    /// # Errors
    /// - [`Lost`](Code::Lost): nobody listens there.
    /// - [`Denied`](Code::Denied): this user is refused, or this process is not of the job.
    /// - [`Busy`](Code::Busy): tarnd has no connection left. [`Version`](Code::Version): it is another
    ///   version.
    pub fn connect(path: &Path, job: Option<JobId>) -> Result<Self> {
        let starting = match may_appear(path) {
            true => STARTING,
            false => Duration::ZERO,
        };
        Self::connect_within(path, job, starting)
    }

    /// The same without a job and without waiting for a tarnd that does not listen.
    ///
    /// # Errors
    /// As [`Client::connect`].
    ///
    /// # Examples
    /// ```
    /// use tarn_client::{Client, Code};
    ///
    /// let nobody = Client::connect_running("/no/such/socket".as_ref()).unwrap_err();
    /// assert_eq!(nobody.code, Code::Lost);
    /// ```
    pub fn connect_running(path: &Path) -> Result<Self> {
        Self::connect_within(path, None, Duration::ZERO)
    }

    fn connect_within(path: &Path, job: Option<JobId>, starting: Duration) -> Result<Self> {
        let until = Instant::now() + CROWDED;
        let mut pause = BETWEEN.0;
        loop {
            match Self::connect_once(path, job, starting) {
                Err(why) if why.code == Code::Busy && Instant::now() + pause < until => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(BETWEEN.1);
                }
                connected => return connected,
            }
        }
    }

    fn connect_once(path: &Path, job: Option<JobId>, starting: Duration) -> Result<Self> {
        let fd = listening(path, starting).map_err(|e| {
            let waited = match (is_not_listening(e), starting.as_secs()) {
                (true, 0) => ": is tarnd running?".to_owned(),
                (true, seconds) => format!(" (waited {seconds} s): is tarnd running?"),
                (false, _) => String::new(),
            };
            let text = format!("cannot connect to tarnd at {}: {e}{waited}", path.display());
            RequestError::new(Code::Lost, text)
        })?;
        let mut client = Self {
            fd,
            state: Mutex::default(),
            more: Condvar::new(),
            buffers: Mutex::default(),
            user: 0,
            node: String::new(),
            process: std::process::id(),
        };
        let hello = LocalRequest::Hello {
            oldest: OLDEST,
            newest: VERSION,
            job,
        };
        match client.call(&hello)? {
            Reply::Welcome { user, node, .. } => {
                (client.user, client.node) = (user, node);
                Ok(client)
            }
            _ => Err(unexpected()),
        }
    }

    /// The number of the user that tarnd takes this process for.
    pub fn user(&self) -> UserId {
        self.user
    }

    /// The node's name.
    pub fn node(&self) -> &str {
        &self.node
    }

    fn call(&self, request: &LocalRequest) -> Result<Reply> {
        self.call_with(request, None)
    }

    fn call_with(&self, request: &LocalRequest, fd: Option<BorrowedFd<'_>>) -> Result<Reply> {
        Ok(self.exchange(request, fd)?.0)
    }

    fn exchange(&self, request: &LocalRequest, fd: Option<BorrowedFd<'_>>) -> Result<ReplyWithFd> {
        // Before any lock, which another thread may have had when this process was forked.
        if self.process != std::process::id() {
            let text = "this connection is of the process that this one was forked from, which alone can use it: connect again";
            return Err(RequestError::new(Code::Unsupported, text));
        }
        let number = {
            let mut state = lock(&self.state);
            if let Some(why) = &state.lost {
                return Err(why.clone());
            }
            state.number = state.number.checked_add(1).unwrap_or(1);
            state.number
        };
        let mut buffer = lock(&self.buffers).pop().unwrap_or_default();
        encode(VERSION, number, request, &mut buffer)
            .map_err(|e| RequestError::new(Code::Invalid, e.to_string()))?;
        if let Err(e) = self.write(&buffer, fd) {
            if !matches!(e, Errno::CONNRESET | Errno::PIPE) {
                let text = format!("the request cannot be sent to tarnd: {e}");
                return Err(RequestError::new(Code::Io, text));
            }
            // Why it was closed may have come before.
            let why = self.read_all_for(number, &mut buffer).err();
            return Err(why
                .filter(|w| w.code != Code::Lost)
                .unwrap_or_else(|| lost(e)));
        }
        let reply = self.read_all_for(number, &mut buffer);
        lock(&self.buffers).push(buffer);
        match reply? {
            (Reply::Refused(why), _) => Err(why),
            answer => Ok(answer),
        }
    }

    fn write(&self, packet: &[u8], fd: Option<BorrowedFd<'_>>) -> std::result::Result<(), Errno> {
        loop {
            match send_packet(&self.fd, packet, fd, SendFlags::empty()) {
                Ok(()) => return Ok(()),
                Err(e) => match Errno::from_io_error(&e).unwrap_or(Errno::IO) {
                    // A signal handler of the program.
                    Errno::INTR => {}
                    e => return Err(e),
                },
            }
        }
    }

    /// The reply of a request: read by this thread, or by another one for it.
    fn read_all_for(&self, number: u32, buffer: &mut Vec<u8>) -> Result<ReplyWithFd> {
        let mut state = lock(&self.state);
        loop {
            if let Some(reply) = state.replies.remove(&number) {
                return Ok(reply);
            }
            if let Some(why) = &state.lost {
                return Err(why.clone());
            }
            if state.reading {
                state = self
                    .more
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.reading = true;
            drop(state);
            let read = self.read(buffer);
            state = lock(&self.state);
            state.reading = false;
            match read {
                Ok((of, answer)) if of == number => {
                    self.more.notify_all();
                    return Ok(answer);
                }
                // Not about a request, but about the connection.
                Ok((0, (Reply::Refused(why), _))) | Err(why) => state.lost = Some(why),
                Ok((of, answer)) => drop(state.replies.insert(of, answer)),
            }
            self.more.notify_all();
        }
    }

    fn read(&self, buffer: &mut Vec<u8>) -> Result<(u32, ReplyWithFd)> {
        buffer.resize(MAX_PACKET, 0);
        let mut reset = false;
        loop {
            match receive_packet(&self.fd, buffer, RecvFlags::empty()) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // tarnd closed and left requests unread. The kernel reports it once, before what tarnd had sent until
                // then: that is read next, and after it the end.
                Err(e) if e.kind() == ErrorKind::ConnectionReset && !reset => reset = true,
                Err(e) => return Err(lost(e)),
                Ok(got) if got.len == 0 => return Err(lost("it was closed")),
                Ok(got) => {
                    let packet = decode::<Reply>(&buffer[..got.len]);
                    let packet = packet.map_err(|e| match e {
                        PacketError::Version(_) => RequestError::new(Code::Version, e.to_string()),
                        _ => lost(e),
                    })?;
                    return Ok((packet.number, (packet.message, got.fd)));
                }
            }
        }
    }

    /// Submits tasks, in as many requests as they need. Each is taken or refused by itself. When a queue is
    /// full, the tasks that were not taken have [`Code::Busy`]: wait for some that were taken, then submit
    /// those again.
    ///
    /// # Errors
    /// No task was taken, for a reason that holds for all, such as [`Code::Lost`].
    ///
    /// # Examples
    /// This needs a running tarnd:
    /// ```no_run
    /// # fn main() -> tarn_client::Result<()> {
    /// use tarn_client::{Client, Code, TaskOperation, TaskSpec, WaitCondition};
    ///
    /// let client = Client::from_env()?;
    /// let mut left = vec![TaskSpec::new(TaskOperation::Nothing); 10_000];
    /// while !left.is_empty() {
    ///     let mut taken = Vec::new();
    ///     let mut again = Vec::new();
    ///     for (task, result) in left.iter().zip(client.submit(&left)?) {
    ///         match result {
    ///             Ok(id) => taken.push(id),
    ///             Err(why) if why.code == Code::Busy => again.push(task.clone()),
    ///             Err(why) => return Err(why),
    ///         }
    ///     }
    ///     client.wait(&taken, WaitCondition::All, None)?;
    ///     left = again;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit(&self, tasks: &[TaskSpec]) -> Result<SubmitResults> {
        let mut all = Vec::with_capacity(tasks.len());
        let mut rest = tasks;
        let mut size = MAX_BATCH;
        while !rest.is_empty() {
            let (batch, others) = rest.split_at(rest.len().min(size));
            match self.call(&LocalRequest::Submit(batch.to_vec())) {
                Ok(Reply::Submitted(results)) if results.len() == batch.len() => {
                    all.extend(results);
                    rest = others;
                }
                Ok(Reply::Busy(nanos)) => {
                    let after = Duration::from_nanos(nanos);
                    let text = format!("the queue is full: try again in {after:?}");
                    let busy = || Err(RequestError::new(Code::Busy, text.clone()));
                    all.extend(rest.iter().map(|_| busy()));
                    rest = &[];
                }
                Ok(_) => return Err(unexpected()),
                // They have long names: fewer fit into a packet.
                Err(why) if why.code == Code::Invalid && is_too_large(batch) && size > 1 => {
                    size = (batch.len() / 2).max(1);
                }
                Err(why) if all.is_empty() => return Err(why),
                Err(why) => {
                    all.extend(rest.iter().map(|_| Err(why.clone())));
                    rest = &[];
                }
            }
        }
        Ok(all)
    }

    /// Waits for tasks, without a limit if `timeout` is `None`. Returns how they ended, failed ones too;
    /// tasks that are not known (any more) are left out.
    ///
    /// # Errors
    /// - [`Code::TimedOut`]: the time was over before that.
    /// - [`Code::Invalid`]: [`WaitCondition::Any`] of more than 1024 tasks.
    pub fn wait(
        &self,
        ids: &[TaskId],
        until: WaitCondition,
        timeout: Option<Duration>,
    ) -> Result<Vec<TaskOutcome>> {
        let (outcomes, over) = self.wait_for(ids, until, timeout)?;
        let enough = match until {
            WaitCondition::Any => ids.is_empty() || !outcomes.is_empty(),
            WaitCondition::All => outcomes.len() == ids.len(),
        };
        if over && !enough {
            let text = format!(
                "{} of {} tasks have ended in time",
                outcomes.len(),
                ids.len()
            );
            return Err(RequestError::new(Code::TimedOut, text));
        }
        Ok(outcomes)
    }

    /// The same, but a time that is over is no error: returns how tasks ended, and whether the time was over.
    ///
    /// # Errors
    /// [`Code::Invalid`]: [`WaitCondition::Any`] of more than 1024 tasks. [`Code::Lost`]: the connection is
    /// lost.
    pub fn wait_for(
        &self,
        ids: &[TaskId],
        until: WaitCondition,
        timeout: Option<Duration>,
    ) -> Result<(Vec<TaskOutcome>, bool)> {
        let any = until == WaitCondition::Any;
        if any && ids.len() > MAX_IDS {
            let text = format!("waiting for any of more than {MAX_IDS} tasks; name fewer");
            return Err(RequestError::new(Code::Invalid, text));
        }
        let end = timeout.and_then(|t| Instant::now().checked_add(t));
        let mut outcomes = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(MAX_IDS) {
            let mut rest = chunk.to_vec();
            while !rest.is_empty() {
                let left = end.map(|end| end.saturating_duration_since(Instant::now()));
                let request = LocalRequest::Wait {
                    ids: rest,
                    any,
                    timeout: left.map_or(u64::MAX, |l| {
                        u64::try_from(l.as_nanos()).unwrap_or(u64::MAX)
                    }),
                };
                let Reply::Outcomes(some) = self.call(&request)? else {
                    return Err(unexpected());
                };
                let LocalRequest::Wait { ids: requested, .. } = request else {
                    return Err(unexpected());
                };
                let ended: std::collections::BTreeSet<TaskId> = some.iter().map(|o| o.id).collect();
                rest = requested;
                rest.retain(|id| !ended.contains(id));
                let nothing = some.is_empty();
                outcomes.extend(some);
                if any && !outcomes.is_empty() {
                    return Ok((outcomes, false));
                }
                let over = end.is_some_and(|end| Instant::now() >= end);
                if over && nothing {
                    return Ok((outcomes, true));
                }
                // All that is left is not known.
                if nothing {
                    break;
                }
            }
        }
        Ok((outcomes, false))
    }

    /// How far tasks are, in the order of `ids`: bytes done and of all, and nanoseconds left.
    ///
    /// # Errors
    /// [`Code::Lost`]: the connection is lost.
    pub fn status(&self, ids: &[TaskId]) -> Result<Vec<TaskStatus>> {
        let mut all = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(MAX_IDS) {
            match self.call(&LocalRequest::Status(chunk.to_vec()))? {
                Reply::Statuses(some) => all.extend(some),
                _ => return Err(unexpected()),
            }
        }
        Ok(all)
    }

    /// Cancels tasks. They end, as cancelled or otherwise, and can be waited for. Returns for each whether it
    /// was known and had not ended.
    ///
    /// # Errors
    /// [`Code::Lost`]: the connection is lost.
    ///
    /// # Examples
    /// This needs a running tarnd:
    /// ```no_run
    /// # fn main() -> tarn_client::Result<()> {
    /// use tarn_client::Client;
    ///
    /// let (client, ids) = (Client::from_env()?, [7, 8]); // ids that `submit` gave
    /// client.pause(&ids)?; // they give way to others
    /// client.resume(&ids)?; // and continue from where they were
    /// println!("{:?}, {:?}", client.status(&ids)?, client.cancel(&ids)?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancel(&self, ids: &[TaskId]) -> Result<Vec<CancelResult>> {
        let mut all = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(MAX_IDS) {
            match self.call(&LocalRequest::Cancel(chunk.to_vec()))? {
                Reply::Cancelled(some) => all.extend(some),
                _ => return Err(unexpected()),
            }
        }
        Ok(all)
    }

    /// Pauses tasks: they are not started, and those that run stop until they are resumed.
    ///
    /// # Errors
    /// [`Code::Lost`]: the connection is lost.
    pub fn pause(&self, ids: &[TaskId]) -> Result<Vec<PauseResult>> {
        self.pause_tasks(ids, LocalRequest::Pause)
    }

    /// Resumes paused tasks from where they were.
    ///
    /// # Errors
    /// [`Code::Lost`]: the connection is lost.
    pub fn resume(&self, ids: &[TaskId]) -> Result<Vec<PauseResult>> {
        self.pause_tasks(ids, LocalRequest::Resume)
    }

    fn pause_tasks(
        &self,
        ids: &[TaskId],
        request: impl Fn(Scope) -> LocalRequest,
    ) -> Result<Vec<PauseResult>> {
        let mut all = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(MAX_IDS) {
            match self.call(&request(Scope::Tasks(chunk.to_vec())))? {
                Reply::Paused(some) => all.extend(some),
                _ => return Err(unexpected()),
            }
        }
        Ok(all)
    }

    /// Pauses all tasks of a job, those that it submits later too; or resumes them if `on` is false.
    ///
    /// # Errors
    /// [`Code::NotFound`]: there is no such job. [`Code::Denied`]: this user does not run tarnd.
    pub fn pause_job(&self, job: JobId, on: bool) -> Result<()> {
        self.pause_all_of(Scope::Job(job), on)
    }

    /// Lets tarnd start no more tasks (running tasks end), or start them again if `on` is false. It remembers
    /// that over restarts.
    ///
    /// # Errors
    /// [`Code::Denied`]: this user does not run tarnd.
    pub fn pause_all(&self, on: bool) -> Result<()> {
        self.pause_all_of(Scope::All, on)
    }

    fn pause_all_of(&self, scope: Scope, on: bool) -> Result<()> {
        self.done(&match on {
            true => LocalRequest::Pause(scope),
            false => LocalRequest::Resume(scope),
        })
    }

    /// Registers the first `length` bytes of a memfd: tasks of this connection can read and write them. The
    /// descriptor may be closed afterwards.
    ///
    /// # Errors
    /// [`Code::Invalid`]: it is no memfd, or is shorter.
    ///
    /// # Examples
    /// This needs a running tarnd:
    /// ```no_run
    /// # fn main() -> tarn_client::Result<()> {
    /// use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    /// use std::os::fd::AsFd;
    /// use std::time::Duration;
    /// use tarn_client::{Client, TaskLocation, TaskOperation, TaskSpec};
    ///
    /// let client = Client::from_env()?;
    /// let memfd = memfd_create("field", MemfdFlags::CLOEXEC).unwrap();
    /// ftruncate(&memfd, 1 << 20).unwrap(); // mapped MAP_SHARED, it is the program's memory
    /// let region = client.register(memfd.as_fd(), 1 << 20)?;
    /// let save = TaskSpec::new(TaskOperation::Copy {
    ///     from: TaskLocation::Memory { region, offset: 0, length: 1 << 20 },
    ///     to: TaskLocation::Space { name: "fast".into(), path: "field".as_bytes().into() },
    /// });
    /// client.carry_out(save, Duration::from_secs(60))?;
    /// client.unregister(region)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn register(&self, memfd: BorrowedFd<'_>, length: u64) -> Result<RegionId> {
        match self.call_with(&LocalRequest::Register { length }, Some(memfd))? {
            Reply::Registered(region) => Ok(region),
            _ => Err(unexpected()),
        }
    }

    /// Takes such memory back.
    ///
    /// # Errors
    /// [`Code::Busy`]: tasks use it. [`Code::NotFound`]: it is not registered.
    pub fn unregister(&self, region: RegionId) -> Result<()> {
        self.done(&LocalRequest::Unregister(region))
    }

    fn done(&self, request: &LocalRequest) -> Result<()> {
        match self.call(request)? {
            Reply::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Submits one task and waits for its end, at most for `timeout`.
    ///
    /// # Errors
    /// The error of the task, if it was refused or failed. [`Code::TimedOut`]: the time was over, and the
    /// task is cancelled.
    pub fn carry_out(&self, task: TaskSpec, timeout: Duration) -> Result<TaskOutcome> {
        let submitted = self.submit(&[task])?.into_iter().next();
        let id = submitted.unwrap_or_else(|| Err(unexpected()))?;
        let ended = self.wait(&[id], WaitCondition::All, Some(timeout));
        let ended = ended.inspect_err(|_| drop(self.cancel(&[id])))?;
        let outcome = ended.into_iter().next().ok_or_else(unexpected)?;
        match outcome.end {
            TaskEnd::Done => Ok(outcome),
            TaskEnd::Failed(why) => Err(why),
        }
    }

    /// Opens a partition: returns its file; for one of another `node`, a stream to it and the properties of
    /// it. It is open while the descriptor is. Programs use `tarn_partitions::Partition`.
    ///
    /// # Errors
    /// [`NotFound`](Code::NotFound); [`Denied`](Code::Denied) where this user may not open it;
    /// [`Busy`](Code::Busy) while it is deleted or made smaller; [`Corrupt`](Code::Corrupt) where its header
    /// is damaged.
    pub fn open_partition(
        &self,
        node: Option<&str>,
        space: &str,
        path: &[u8],
        write: bool,
    ) -> Result<(OwnedFd, Option<RemotePartition>)> {
        let request = LocalRequest::Open {
            node: node.map(str::to_owned),
            space: space.into(),
            path: path.into(),
            write,
        };
        match self.exchange(&request, None)? {
            (Reply::Opened, Some(file)) => Ok((file, None)),
            (Reply::OpenedThere(far), Some(stream)) => Ok((stream, Some(far))),
            _ => Err(unexpected()),
        }
    }

    /// The partitions in a folder of a dataspace, of this node or of another one, that this user may open, by
    /// name; at most 65,536.
    ///
    /// # Errors
    /// [`NotFound`](Code::NotFound): there is no such dataspace or folder.
    /// [`Unsupported`](Code::Unsupported): this node's tarnd does not know the node.
    pub fn partitions(
        &self,
        node: Option<&str>,
        space: &str,
        path: &[u8],
    ) -> Result<Vec<PartitionInfo>> {
        let mut all: Vec<PartitionInfo> = Vec::new();
        loop {
            let request = LocalRequest::Partitions {
                node: node.map(str::to_owned),
                space: space.into(),
                path: path.into(),
                after: all.last().map_or(String::new(), |last| last.name.clone()),
            };
            match self.call(&request)? {
                Reply::Partitions(some) if some.is_empty() || all.len() >= MAX_PARTITIONS => {
                    return Ok(all);
                }
                Reply::Partitions(some) => all.extend(some),
                _ => return Err(unexpected()),
            }
        }
    }

    /// The dataspaces of this node, with their sizes in bytes.
    ///
    /// # Errors
    /// [`Code::Lost`]: the connection is lost.
    pub fn spaces(&self) -> Result<Vec<SpaceInfo>> {
        match self.call(&LocalRequest::Spaces)? {
            Reply::Spaces(spaces) => Ok(spaces),
            _ => Err(unexpected()),
        }
    }

    /// Makes, changes or removes a dataspace.
    ///
    /// # Errors
    /// [`Code::Denied`]: this user may not. [`Code::Invalid`], [`Code::Exists`], [`Code::NotFound`],
    /// [`Code::Busy`]: the change cannot be made.
    pub fn change_space(&self, change: SpaceChange) -> Result<()> {
        self.done(&LocalRequest::Space(change))
    }

    /// Registers, changes or removes a job.
    ///
    /// # Errors
    /// [`Code::Denied`]: this user does not run tarnd. [`Code::Invalid`], [`Code::NotFound`]: the change
    /// cannot be made.
    pub fn change_job(&self, change: JobChange) -> Result<()> {
        self.done(&LocalRequest::Job(change))
    }

    /// Counts of tarnd: tasks by state, bytes moved, and nanoseconds left.
    ///
    /// # Errors
    /// [`Code::Lost`]: the connection is lost.
    pub fn stats(&self) -> Result<Stats> {
        match self.call(&LocalRequest::Stats)? {
            Reply::Stats(stats) => Ok(stats),
            _ => Err(unexpected()),
        }
    }
}

/// Whether tasks do not fit into one packet.
fn is_too_large(tasks: &[TaskSpec]) -> bool {
    let request = LocalRequest::Submit(tasks.to_vec());
    encode(VERSION, 0, &request, &mut Vec::new()) == Err(PacketError::TooLarge)
}

#[cfg(test)]
mod tests;
