//! The thread that has everything: socket, core, connections. It waits for events, and performs the core's actions.

mod accept;
mod requests;
mod roots;
mod socket;

use crate::connection::{PendingReply, ProgramConnection, ProgramConnectionId};
use crate::guest::ChildProgram;
use crate::journal::{self, TaskJournal};
use crate::options::Options;
use crate::peer_host::PeerHost;
use crate::peers::PeerTable;
use crate::progress::RunningTask;
use crate::waits::TaskWaitTable;
use crate::work::{
    FileJob, FileJobOutcome, LiveLeftovers, TaskEndpoint, TaskMemory, TaskPlan, Workers, set_tag,
};
use crate::{TarndError, progress};
use anyhow::Context;
use roots::SpaceRoots;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use socket::{Remove, listen_at};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};
use tarn_journal::{LockError, RunLock};
use tarn_node::machine::host_name;
use tarn_ports::Control;
use tarn_proto::local::{
    Code, MAX_PACKET, Reply, RequestError, TaskId, TaskOutcome, UserId, VERSION, encode,
};
use tarn_tasks::{Config, Core, TaskAction, TaskEvent, TaskLogRecord, TaskReply};
use tarn_types::codes::Exit;
use tarn_types::units::{Elapsed, SECOND, Time};

/// Connections at a time: each takes a descriptor and may hold 64 more for memory. Nodes have some hundred cores, and a program
/// for each.
const MAX_CONNECTIONS: usize = 1024;
/// Of these, kept for tarnd itself: requests of other nodes come over connections of its own.
const RESERVED: usize = 8;
/// Those of other users than tarnd's, and of each of them.
const MAX_GUESTS: usize = 256;
const MAX_OF_GUEST: usize = 64;
/// Packets read from one connection before the next one's turn.
const MAX_TURN: usize = 16;
/// How long nobody is accepted after that has failed, such as for want of descriptors.
const PAUSE: Duration = Duration::from_millis(200);
/// How long tasks are given to stop when tarnd ends.
const TIMEOUT: Duration = Duration::from_secs(5);

const LISTENER: ProgramConnectionId = 0;
const SIGNALS: ProgramConnectionId = 1;
const WORKERS: ProgramConnectionId = 2;
const JOURNAL: ProgramConnectionId = 3;
const FIRST: ProgramConnectionId = 16;

/// Nanoseconds since 1970 that never go back.
struct Clock {
    began: Instant,
    at: Time,
}

impl Clock {
    fn start() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let at = since.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
        let began = Instant::now();
        Self { began, at }
    }

    fn now(&self) -> Time {
        let passed = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.at.saturating_add(passed)
    }
}

/// A request that the core answers.
struct PendingRequest {
    connection: ProgramConnectionId,
    number: u32,
    /// Memory of the tasks that are submitted, in order.
    memory: Vec<TaskMemory>,
}

struct TarndServer {
    node: String,
    /// This node, as other nodes see it.
    host: Option<Arc<PeerHost>>,
    /// The program that this tarnd is for, and whether it has ended well: how many tasks had failed by then.
    guest: Option<ChildProgram>,
    leaving: Option<u64>,
    /// Readable after a signal, and when the program has ended.
    signals: Option<UnixStream>,
    own: UserId,
    /// Other users may have partitions.
    guests: bool,
    /// The kernel's name for this boot: numbers and starts of processes mean nothing after another.
    boot: Vec<u8>,
    clock: Clock,
    core: Core,
    journal: TaskJournal,
    workers: Workers,
    epoll: OwnedFd,
    listener: OwnedFd,
    /// When connections are accepted again, if that has failed.
    accepts_at: Option<Time>,
    connections: BTreeMap<ProgramConnectionId, ProgramConnection>,
    next: ProgramConnectionId,
    waits: TaskWaitTable,
    tickets: BTreeMap<u64, PendingRequest>,
    next_ticket: u64,
    running: BTreeMap<TaskId, RunningTask>,
    memory: BTreeMap<TaskId, TaskMemory>,
    /// Folders of the dataspaces; none for a step's, whose datasets other steps' tarnds may have too.
    roots: Option<SpaceRoots>,
    /// Set for the first surveys, which clean up.
    kept: Option<LiveLeftovers>,
    actions: Vec<TaskAction>,
    buffer: Vec<u8>,
}

/// Runs until SIGTERM, SIGINT or SIGHUP, or until the program that it was started for has ended; with which exit code.
pub(crate) fn run(options: &Options) -> Result<u8, TarndError> {
    let state = |e: anyhow::Error| TarndError::new(Exit::State, e);
    std::fs::create_dir_all(options.state())
        .with_context(|| format!("cannot make the state folder {}", options.state().display()))
        .map_err(state)?;
    let _lock = lock_state(options.state())?;
    let records = journal::read(options.state()).map_err(state)?;
    let own = options.node_name.clone().unwrap_or_else(host_name);
    let folder = std::fs::canonicalize(options.state()).map_err(|e| state(e.into()))?;
    set_tag(&own, &folder);
    let listener = listen_at(options.socket(), options.guests)?;
    let _socket = Remove(options.socket());
    let (reader, writer) = UnixStream::pair().map_err(|e| state(e.into()))?;
    register_signals(&writer).map_err(|e| state(e.into()))?;
    reader.set_nonblocking(true).map_err(|e| state(e.into()))?;
    let peers = read_peers(options, &own).map_err(|e| TarndError::new(Exit::Usage, e))?;
    let host = peers.as_ref().map(|p| PeerHost::new(p, options.socket()));
    let data = peers.as_ref().zip(host.as_ref());
    let data = data
        .map(|(peers, host)| peers.serve(Arc::clone(host) as _))
        .transpose();
    let data = data
        .context("cannot serve other nodes at the port that the file of peers has for this one")
        .map_err(state)?;
    let mut server =
        TarndServer::start(options, own, (peers, host), records, listener).map_err(state)?;
    if let Some(roots) = &mut server.roots {
        roots.take_all(&options.spaces, server.core.spaces_for(server.own))?;
    }
    server.perform().map_err(state)?;
    server.kept = None;
    server.watch(&reader, SIGNALS).map_err(state)?;
    server.signals = Some(reader);
    crate::destage::start(&options.checkpoints)
        .context("cannot start a thread")
        .map_err(state)?;
    let guest = ChildProgram::start(&options.command, options.socket(), writer);
    server.guest = guest.map_err(|e| TarndError::new(Exit::NotFound, e))?;
    tracing::info!(
        socket = %options.socket().display(),
        tasks = server.core.len(),
        node = server.node,
        "tarnd {} serves",
        env!("CARGO_PKG_VERSION")
    );
    let outcome = server.serve();
    server.end();
    let code = server.code();
    drop((server, data));
    outcome.map_err(state).map(|()| code)
}

/// Takes the state folder: one tarnd has it.
fn lock_state(folder: &Path) -> Result<RunLock, TarndError> {
    RunLock::take(&folder.join("tarnd.lock")).map_err(|e| {
        let shown = folder.display();
        let (exit, text) = match &e {
            LockError::Busy { holder, .. } => {
                let holder = holder.as_ref().map(|h| format!(" ({h})"));
                let text = format!(
                    "another tarnd{} has the state folder {shown}: stop it (SIGTERM), or give this one another folder (`--state`)",
                    holder.unwrap_or_default()
                );
                (Exit::Busy, text)
            }
            e => (Exit::State, format!("state folder {shown}: {e}")),
        };
        TarndError::new(exit, anyhow::anyhow!(text))
    })
}

/// Has the signals that end tarnd written to a socket.
fn register_signals(writer: &UnixStream) -> std::io::Result<()> {
    // Under `nohup` it stays when the terminal goes.
    let hangup = (!tarn_sys::process::ignores(SIGHUP)).then_some(SIGHUP);
    for signal in [SIGTERM, SIGINT].into_iter().chain(hangup) {
        signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    Ok(())
}

/// The other nodes, if there are any; `own` is this node's name.
fn read_peers(options: &Options, own: &str) -> anyhow::Result<Option<PeerTable>> {
    let Some(path) = options.peers.as_deref() else {
        return Ok(None);
    };
    let mut peers = PeerTable::read(path, own)?;
    peers.travel(&options.transport)?;
    Ok(Some(peers))
}

impl TarndServer {
    fn start(
        options: &Options,
        node: String,
        (peers, host): (Option<PeerTable>, Option<Arc<PeerHost>>),
        records: Vec<TaskLogRecord>,
        listener: OwnedFd,
    ) -> anyhow::Result<Self> {
        raise_descriptors();
        let clock = Clock::start();
        let own = rustix::process::geteuid().as_raw();
        let config = Config {
            owner: own,
            space_slots: options.slots,
            external_slots: options.external_slots,
            nodes: peers.as_ref().map_or_else(BTreeMap::new, PeerTable::slots),
            weights: options.weights.iter().copied().collect(),
            jobs_only: options.jobs_only,
            bound: options.step,
        };
        let recovered = Core::recover(config, clock.now(), records, options.spaces.clone());
        let core = recovered.core;
        let journal = TaskJournal::open(options.state(), &core.snapshot())?;
        let server = Self {
            node,
            host,
            guest: None,
            leaving: None,
            signals: None,
            own,
            guests: options.guests,
            boot: std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            clock,
            roots: (!options.step).then(SpaceRoots::default),
            kept: Some(LiveLeftovers {
                own: core.first_id(),
                live: core.durable().collect(),
            }),
            core,
            journal,
            workers: Workers::new(options.external_rate, peers)?,
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            listener,
            accepts_at: None,
            connections: BTreeMap::new(),
            next: FIRST,
            waits: TaskWaitTable::default(),
            tickets: BTreeMap::new(),
            next_ticket: 0,
            running: BTreeMap::new(),
            memory: BTreeMap::new(),
            actions: recovered.actions,
            buffer: vec![0; MAX_PACKET + 1],
        };
        server.watch(&server.listener, LISTENER)?;
        server.watch(server.workers.wake(), WORKERS)?;
        server.watch(server.journal.wake(), JOURNAL)?;
        server.show_spaces();
        Ok(server)
    }

    fn watch(&self, fd: &impl AsFd, key: ProgramConnectionId) -> anyhow::Result<()> {
        Ok(epoll::add(
            &self.epoll,
            fd,
            EventData::new_u64(key),
            EventFlags::IN,
        )?)
    }

    fn serve(&mut self) -> anyhow::Result<()> {
        let mut events = Vec::with_capacity(256);
        loop {
            events.clear();
            let timeout = self.timeout();
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, spare, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e).context("cannot wait for events"),
            }
            for event in &events {
                match event.data.u64() {
                    SIGNALS if self.is_over() => return Ok(()),
                    SIGNALS => {}
                    LISTENER => self.accept(),
                    WORKERS => self.collect()?,
                    JOURNAL => self.durable()?,
                    key => self.connection(key, event.flags)?,
                }
            }
            self.tick()?;
            if self.leaving.is_some() && self.core.rests() {
                return Ok(());
            }
        }
    }

    /// Whether tarnd ends now: after a signal, unless it is for a program, which is terminated first; and when that has ended.
    /// Tasks that it had requested are done first, if it has ended well.
    fn is_over(&mut self) -> bool {
        if let Some(signals) = &mut self.signals {
            let _ = std::io::Read::read(signals, &mut [0; 64]);
        }
        let Some(guest) = &self.guest else {
            return true;
        };
        match guest.code() {
            None => guest.terminate(),
            Some(0) if self.leaving.is_none() => self.leaving = Some(self.core.stats().failed),
            Some(_) => return true,
        }
        false
    }

    fn code(&self) -> u8 {
        let failed = self
            .leaving
            .is_some_and(|before| self.core.stats().failed > before);
        match self.guest.as_ref().and_then(ChildProgram::code) {
            Some(0) if failed => {
                tracing::error!(
                    "tasks failed after the program had ended without waiting for them"
                );
                Exit::WorkflowFailed as u8
            }
            code => code.unwrap_or(Exit::Success as u8),
        }
    }

    fn timeout(&self) -> Option<Timespec> {
        let times = [self.core.timer(), self.waits.timer(), self.accepts_at];
        let next = times.into_iter().flatten().min()?;
        let left = next.saturating_sub(self.clock.now());
        Some(Timespec {
            tv_sec: i64::try_from(left / SECOND).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(left % SECOND).unwrap_or(0),
        })
    }

    fn tick(&mut self) -> anyhow::Result<()> {
        let now = self.clock.now();
        if self.core.timer().is_some_and(|at| at <= now) {
            self.step(TaskEvent::Tick)?;
        }
        for wait in self.waits.expired(now) {
            self.answer_wait(wait);
        }
        if self.accepts_at.take_if(|at| *at <= now).is_some() {
            self.watch(&self.listener, LISTENER)?;
        }
        if self.journal.is_long() {
            self.journal.rewrite(&self.core.snapshot())?;
        }
        Ok(())
    }

    fn step(&mut self, event: TaskEvent) -> anyhow::Result<()> {
        self.core.step(self.clock.now(), event, &mut self.actions);
        self.perform()
    }

    /// Performs the core's actions: first records are handed to the journal, so that replies can wait for them.
    fn perform(&mut self) -> anyhow::Result<()> {
        // Actions may have further consequences.
        while !self.actions.is_empty() {
            let actions = std::mem::take(&mut self.actions);
            let mut records = Vec::new();
            let mut others = Vec::with_capacity(actions.len());
            for action in actions {
                match action {
                    TaskAction::Record(record) => records.push(record),
                    other => others.push(other),
                }
            }
            if records.iter().any(|r| matches!(r, TaskLogRecord::Space(_))) {
                self.show_spaces();
            }
            if !records.is_empty() {
                self.journal.append(&records)?;
            }
            let after = if records.is_empty() {
                0
            } else {
                self.journal.handed()
            };
            for action in others {
                self.act(action, after)?;
            }
        }
        Ok(())
    }

    fn act(&mut self, action: TaskAction, after: u64) -> anyhow::Result<()> {
        match action {
            TaskAction::Record(_) => {}
            TaskAction::Answer { ticket, answer } => self.answer(ticket, answer, after),
            TaskAction::Measure(id) => self.begin(id, true)?,
            TaskAction::Start(id) => self.begin(id, false)?,
            TaskAction::Stop { task, keep } => {
                if let Some(running) = self.running.get(&task) {
                    running.stop(keep);
                }
            }
            TaskAction::Discard(task) => {
                let memory = TaskMemory::default();
                // A space that it named may be gone: then there is nothing to remove.
                if let Ok(Some(plan)) =
                    TaskPlan::of(&task, memory, &self.node, |name| self.root(name))
                {
                    self.workers.give(FileJob::Discard(plan))?;
                }
            }
            TaskAction::Survey(name) => {
                let root = self.root(&name).unwrap_or_default();
                let kept = self.kept.clone();
                self.workers.give(FileJob::Survey(name, root, kept))?;
            }
            TaskAction::Ended(outcome) => self.ended(&outcome),
        }
        Ok(())
    }

    fn show_spaces(&self) {
        if let Some(host) = &self.host {
            host.show_spaces(self.core.spaces_for(self.own));
        }
    }

    /// Names and roots of the dataspaces.
    fn spaces(&self) -> Vec<(String, PathBuf)> {
        let all = self.core.spaces_for(self.own).into_iter();
        let root = |root: &[u8]| PathBuf::from(OsStr::from_bytes(root));
        all.map(|s| (s.name, root(&s.root.0))).collect()
    }

    fn root(&self, space: &str) -> Option<PathBuf> {
        let root = self.core.space_root(space)?;
        Some(PathBuf::from(OsStr::from_bytes(root)))
    }

    fn begin(&mut self, id: TaskId, measure: bool) -> anyhow::Result<()> {
        let Some(task) = self.core.task(id) else {
            return Ok(());
        };
        let memory = self.memory.get(&id).cloned().unwrap_or_default();
        let plan = match TaskPlan::of(task, memory, &self.node, |name| self.root(name)) {
            Ok(Some(mut plan)) => {
                if plan.fills_outside().is_some() {
                    plan.spaces = self.spaces();
                }
                plan
            }
            Ok(None) => return Ok(()),
            Err(why) => {
                let event = match measure {
                    true => TaskEvent::Measured {
                        task: id,
                        size: Err(why),
                    },
                    false => TaskEvent::Finished {
                        task: id,
                        finish: crate::work::failed(why),
                    },
                };
                let now = self.clock.now();
                self.core.step(now, event, &mut self.actions);
                return Ok(());
            }
        };
        if let (
            Some(host),
            Some(_),
            TaskEndpoint::Memory {
                region,
                offset,
                length,
            },
        ) = (&self.host, &plan.handed, &plan.from)
        {
            host.show_memory(id, region.clone(), *offset, *length);
        }
        let now = self.clock.now();
        let control = Arc::new(Control::default());
        let running = progress::RunningTask::new(now, Arc::clone(&control), Arc::clone(&plan.keep));
        self.running.insert(id, running);
        let job = match measure {
            true => FileJob::Measure(plan, control),
            false => FileJob::Run(plan, control),
        };
        Ok(self.workers.give(job)?)
    }

    fn ended(&mut self, outcome: &TaskOutcome) {
        let id = outcome.id;
        self.running.remove(&id);
        self.memory.remove(&id);
        if let Some(host) = &self.host {
            host.hide_memory(id);
        }
        tracing::debug!(
            task = id,
            bytes = outcome.bytes,
            end = ?outcome.end,
            "task ended after {}",
            Elapsed(outcome.nanos)
        );
        for wait in self.waits.ended(id) {
            self.answer_wait(wait);
        }
    }

    /// Handles the outcomes of the workers' jobs.
    fn collect(&mut self) -> anyhow::Result<()> {
        drain(self.workers.wake());
        for done in self.workers.done() {
            let event = match done {
                FileJobOutcome::Event(event) => event,
                FileJobOutcome::Exported(exported) => {
                    let (key, number) = exported.to;
                    if let Some(connection) = self.connections.get_mut(&key) {
                        connection.end_partition_request();
                    }
                    self.send_with(key, number, &exported.reply, (0, exported.file));
                    continue;
                }
            };
            if let TaskEvent::Surveyed {
                space,
                used: Err(why),
            } = &event
            {
                tracing::warn!(space, "{why}");
            }
            self.step(event)?;
        }
        Ok(())
    }

    /// More of the journal is durable: replies that waited for it go out.
    fn durable(&mut self) -> anyhow::Result<()> {
        drain(self.journal.wake());
        anyhow::ensure!(
            !self.journal.failed(),
            "the journal cannot be written any more: tarnd ends, and resumes durable tasks when it is started again"
        );
        let waiting = self.connections.iter().filter(|(_, c)| !c.is_read());
        let keys: Vec<ProgramConnectionId> = waiting.map(|(key, _)| *key).collect();
        for key in keys {
            self.flush(key);
        }
        Ok(())
    }

    fn connection(&mut self, key: ProgramConnectionId, flags: EventFlags) -> anyhow::Result<()> {
        if flags.contains(EventFlags::OUT) {
            self.flush(key);
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            self.listen_to(key)?;
        }
        Ok(())
    }

    /// Reads a program's requests, some at a time.
    fn listen_to(&mut self, key: ProgramConnectionId) -> anyhow::Result<()> {
        for _ in 0..MAX_TURN {
            let Some(connection) = self.connections.get(&key).filter(|c| c.listens()) else {
                return Ok(());
            };
            let flags = rustix::net::RecvFlags::DONTWAIT;
            let got = tarn_sys::fdpass::receive_packet(connection, &mut self.buffer, flags);
            let got = match got {
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => {
                    self.close(key);
                    return Ok(());
                }
                Ok(got) => got,
            };
            if got.len == 0 {
                self.close(key);
                return Ok(());
            }
            let buffer = std::mem::take(&mut self.buffer);
            let outcome = self.packet(key, &buffer[..got.len], got.truncated, got.fd);
            self.buffer = buffer;
            outcome?;
        }
        Ok(())
    }

    fn close(&mut self, key: ProgramConnectionId) {
        if let Some(connection) = self.connections.remove(&key) {
            let _ = epoll::delete(&self.epoll, &connection);
            self.waits.forget(key);
        }
    }

    fn send(&mut self, key: ProgramConnectionId, number: u32, reply: &Reply, after: u64) {
        self.send_with(key, number, reply, (after, None));
    }

    fn send_with(
        &mut self,
        key: ProgramConnectionId,
        number: u32,
        reply: &Reply,
        (after, fd): (u64, Option<OwnedFd>),
    ) {
        let packet = packet_of(number, reply);
        let durable = self.journal.durable();
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        match connection.send(PendingReply { after, packet, fd }, durable) {
            Ok(()) => self.set_interest(key),
            Err(_) => self.close(key),
        }
    }

    fn flush(&mut self, key: ProgramConnectionId) {
        let durable = self.journal.durable();
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        match connection.flush(durable) {
            Ok(()) => self.set_interest(key),
            Err(_) => self.close(key),
        }
    }

    /// Sets the events to wait for at a connection, from the replies that it has not read.
    fn set_interest(&mut self, key: ProgramConnectionId) {
        let durable = self.journal.durable();
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        if connection.closing && connection.is_read() {
            self.close(key);
            return;
        }
        let interest = (connection.listens(), connection.is_stuck(durable));
        if interest == connection.interest {
            return;
        }
        connection.interest = interest;
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, interest.0);
        flags.set(EventFlags::OUT, interest.1);
        if epoll::modify(&self.epoll, &*connection, EventData::new_u64(key), flags).is_err() {
            self.close(key);
        }
    }

    /// Ends: no new requests, tasks are stopped (durable ones resume with the next tarnd), records are written.
    fn end(&mut self) {
        self.workers.ending();
        if let Some(host) = &self.host {
            host.end();
        }
        self.connections.clear();
        for running in self.running.values() {
            running.control.cancel.store(true, Ordering::Relaxed);
        }
        let until = Instant::now() + TIMEOUT;
        let mut left = self.core.running().count();
        tracing::info!(running = left, "tarnd ends");
        while left > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
            let done = self.workers.done();
            // Surveys and partitions, which are no tasks, are done too.
            left = left.saturating_sub(done.len());
        }
    }
}

/// More descriptors than the usual 1024, as far as the system allows: connections and memory take some each.
pub(crate) fn raise_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

fn drain(eventfd: &OwnedFd) {
    let mut count = [0; 8];
    let _ = rustix::io::read(eventfd, &mut count);
}

/// A reply as a packet; one that does not fit is an error in its place.
fn packet_of(number: u32, reply: &Reply) -> Vec<u8> {
    let mut packet = Vec::new();
    if encode(VERSION, number, reply, &mut packet).is_err() {
        let text = "the answer does not fit into a packet: ask for less at a time";
        let refused = Reply::Refused(RequestError::new(Code::Invalid, text));
        let _ = encode(VERSION, number, &refused, &mut packet);
    }
    packet
}

/// The reply that an answer of the core is.
fn reply_of(answer: TaskReply) -> Reply {
    match answer {
        TaskReply::Submitted(all) => Reply::Submitted(all),
        TaskReply::Busy(after) => Reply::Busy(after),
        TaskReply::Cancelled(all) => Reply::Cancelled(all),
        TaskReply::Paused(all) => Reply::Paused(all),
        TaskReply::Done => Reply::Done,
        TaskReply::Refused(why) => Reply::Refused(why),
    }
}
