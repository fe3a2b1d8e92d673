//! The thread that has everything: socket, core, connections. It waits for events, and does what the core says.

mod requests;
mod roots;
mod socket;

use crate::connection::{Connection, Key, Outgoing};
use crate::guest::Guest;
use crate::journal::{self, Journal};
use crate::options::Options;
use crate::peers::{Host, Peers};
use crate::progress::Running;
use crate::waits::Waits;
use crate::work::{Done, Endpoint, Job, Kept, Memory, Plan, Workers, set_tag};
use crate::{Fault, progress};
use anyhow::Context;
use roots::Roots;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use socket::{Remove, listen_at};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};
use tarn_journal::{LockError, RunLock};
use tarn_node::machine::host_name;
use tarn_ports::Control;
use tarn_proto::local::{Code, MAX_PACKET, Outcome, Refusal, Reply, TaskId, Uid, VERSION, encode};
use tarn_sys::fdpass::{Peer, peer, peer_groups};
use tarn_tasks::{Action, Answer, Config, Core, Event, Record};
use tarn_types::codes::Exit;
use tarn_types::units::{Elapsed, SECOND, Time};

/// Connections at a time: each takes a descriptor and may hold 64 more for memory. Nodes have some hundred cores, and a program
/// for each.
const MAX_CONNECTIONS: usize = 1024;
/// Of these, kept for tarnd itself: what other nodes ask comes over connections of its own.
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

const LISTENER: Key = 0;
const SIGNALS: Key = 1;
const WORKERS: Key = 2;
const JOURNAL: Key = 3;
const FIRST: Key = 16;

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

/// A request whose answer the core gives.
struct Ticket {
    connection: Key,
    number: u32,
    /// Memory of the tasks that are submitted, in order.
    memory: Vec<Memory>,
}

struct Server {
    node: String,
    /// What other nodes see of this one.
    host: Option<Arc<Host>>,
    /// The program that this tarnd is for, and whether it has ended well: how many tasks had failed by then.
    guest: Option<Guest>,
    leaving: Option<u64>,
    /// Readable after a signal, and when the program has ended.
    signals: Option<UnixStream>,
    own: Uid,
    /// Other users may have partitions.
    guests: bool,
    /// The kernel's name for this boot: numbers and starts of processes mean nothing after another.
    boot: Vec<u8>,
    clock: Clock,
    core: Core,
    journal: Journal,
    workers: Workers,
    epoll: OwnedFd,
    listener: OwnedFd,
    /// When connections are accepted again, if that has failed.
    accepts_at: Option<Time>,
    connections: BTreeMap<Key, Connection>,
    next: Key,
    waits: Waits,
    tickets: BTreeMap<u64, Ticket>,
    next_ticket: u64,
    running: BTreeMap<TaskId, Running>,
    memory: BTreeMap<TaskId, Memory>,
    /// Folders of the dataspaces; none for a step's, whose datasets other steps' tarnds may have too.
    roots: Option<Roots>,
    /// Set for the first surveys, which clean up.
    kept: Option<Kept>,
    actions: Vec<Action>,
    buffer: Vec<u8>,
}

/// Runs until SIGTERM, SIGINT or SIGHUP, or until the program that it was started for has ended; with which exit code.
pub(crate) fn run(options: &Options) -> Result<u8, Fault> {
    let state = |e: anyhow::Error| Fault::new(Exit::State, e);
    std::fs::create_dir_all(options.state())
        .with_context(|| format!("cannot make the state folder {}", options.state().display()))
        .map_err(state)?;
    let lock = options.state().join("tarnd.lock");
    let _lock = RunLock::take(&lock).map_err(|e| {
        let busy = matches!(e, LockError::Busy { .. });
        let folder = options.state().display();
        let text = match &e {
            LockError::Busy { holder, .. } => format!(
                "another tarnd{} has the state folder {folder}: stop it (SIGTERM), or give this one another folder (`--state`)",
                holder.as_ref().map(|h| format!(" ({h})")).unwrap_or_default()
            ),
            e => format!("state folder {folder}: {e}"),
        };
        Fault::new(
            if busy { Exit::Busy } else { Exit::State },
            anyhow::anyhow!(text),
        )
    })?;
    let records = journal::read(options.state()).map_err(state)?;
    let own = options.node_name.clone().unwrap_or_else(host_name);
    let folder = std::fs::canonicalize(options.state()).map_err(|e| state(e.into()))?;
    set_tag(&own, &folder);
    let listener = listen_at(options.socket(), options.guests)?;
    let _socket = Remove(options.socket());
    let (reader, writer) = UnixStream::pair().map_err(|e| state(e.into()))?;
    // Under `nohup` it stays when the terminal goes.
    let hangup = (!tarn_sys::process::ignores(SIGHUP)).then_some(SIGHUP);
    for signal in [SIGTERM, SIGINT].into_iter().chain(hangup) {
        let writer = writer.try_clone().map_err(|e| state(e.into()))?;
        signal_hook::low_level::pipe::register(signal, writer).map_err(|e| state(e.into()))?;
    }
    reader.set_nonblocking(true).map_err(|e| state(e.into()))?;
    let peers = options.peers.as_deref().map(|path| Peers::read(path, &own));
    let mut peers = peers.transpose().map_err(|e| Fault::new(Exit::Usage, e))?;
    if let Some(peers) = &mut peers {
        let used = peers.travel(&options.transport);
        used.map_err(|e| Fault::new(Exit::Usage, e))?;
    }
    let host = peers.as_ref().map(|p| Host::new(p, options.socket()));
    let data = peers.as_ref().zip(host.as_ref());
    let data = data.map(|(peers, host)| peers.serve(host)).transpose();
    let data = data
        .context("cannot serve other nodes at the port that the file of peers has for this one")
        .map_err(state)?;
    let mut server =
        Server::start(options, own, (peers, host), records, listener).map_err(state)?;
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
    let guest = Guest::start(&options.command, options.socket(), writer);
    server.guest = guest.map_err(|e| Fault::new(Exit::NotFound, e))?;
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

impl Server {
    fn start(
        options: &Options,
        node: String,
        (peers, host): (Option<Peers>, Option<Arc<Host>>),
        records: Vec<Record>,
        listener: OwnedFd,
    ) -> anyhow::Result<Self> {
        raise_descriptors();
        let clock = Clock::start();
        let own = rustix::process::geteuid().as_raw();
        let config = Config {
            owner: own,
            space_slots: options.slots,
            external_slots: options.external_slots,
            nodes: peers.as_ref().map_or_else(BTreeMap::new, Peers::slots),
            weights: options.weights.iter().copied().collect(),
            jobs_only: options.jobs_only,
            bound: options.step,
        };
        let recovered = Core::recover(config, clock.now(), records, options.spaces.clone());
        let core = recovered.core;
        let journal = Journal::open(options.state(), &core.snapshot())?;
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
            roots: (!options.step).then(Roots::default),
            kept: Some(Kept {
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
            waits: Waits::default(),
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

    fn watch(&self, fd: &impl AsFd, key: Key) -> anyhow::Result<()> {
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

    /// Whether tarnd ends now: after a signal, unless it is for a program, which is told first; and when that has ended. What it
    /// had asked for is done first, if it has ended well.
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
        match self.guest.as_ref().and_then(Guest::code) {
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
            self.step(Event::Tick)?;
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

    fn step(&mut self, event: Event) -> anyhow::Result<()> {
        self.core.step(self.clock.now(), event, &mut self.actions);
        self.perform()
    }

    /// Does what the core says: first records are handed to the journal, so that replies can wait for them.
    fn perform(&mut self) -> anyhow::Result<()> {
        // What is done here may have further consequences.
        while !self.actions.is_empty() {
            let actions = std::mem::take(&mut self.actions);
            let mut records = Vec::new();
            let mut others = Vec::with_capacity(actions.len());
            for action in actions {
                match action {
                    Action::Record(record) => records.push(record),
                    other => others.push(other),
                }
            }
            if records.iter().any(|r| matches!(r, Record::Space(_))) {
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

    fn act(&mut self, action: Action, after: u64) -> anyhow::Result<()> {
        match action {
            Action::Record(_) => {}
            Action::Answer { ticket, answer } => self.answer(ticket, answer, after),
            Action::Measure(id) => self.begin(id, true)?,
            Action::Start(id) => self.begin(id, false)?,
            Action::Stop { task, keep } => {
                if let Some(running) = self.running.get(&task) {
                    running.stop(keep);
                }
            }
            Action::Discard(task) => {
                let memory = Memory::default();
                // What it named may be gone: then there is nothing to remove.
                if let Ok(Some(plan)) = Plan::of(&task, memory, &self.node, |name| self.root(name))
                {
                    self.workers.give(Job::Discard(plan))?;
                }
            }
            Action::Survey(name) => {
                let root = self.root(&name).unwrap_or_default();
                let kept = self.kept.clone();
                self.workers.give(Job::Survey(name, root, kept))?;
            }
            Action::Ended(outcome) => self.ended(&outcome),
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
        let plan = match Plan::of(task, memory, &self.node, |name| self.root(name)) {
            Ok(Some(mut plan)) => {
                if plan.fills_outside().is_some() {
                    plan.spaces = self.spaces();
                }
                plan
            }
            Ok(None) => return Ok(()),
            Err(why) => {
                let event = match measure {
                    true => Event::Measured {
                        task: id,
                        size: Err(why),
                    },
                    false => Event::Finished {
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
            Endpoint::Memory {
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
        let running = progress::Running::new(now, Arc::clone(&control), Arc::clone(&plan.keep));
        self.running.insert(id, running);
        let job = match measure {
            true => Job::Measure(plan, control),
            false => Job::Run(plan, control),
        };
        Ok(self.workers.give(job)?)
    }

    fn ended(&mut self, outcome: &Outcome) {
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

    /// What the workers have done.
    fn collect(&mut self) -> anyhow::Result<()> {
        drain(self.workers.wake());
        for done in self.workers.done() {
            let event = match done {
                Done::Event(event) => event,
                Done::Lent(lent) => {
                    let (key, number) = lent.to;
                    if let Some(connection) = self.connections.get_mut(&key) {
                        connection.lending = connection.lending.saturating_sub(1);
                    }
                    self.send_with(key, number, &lent.reply, (0, lent.file));
                    continue;
                }
            };
            if let Event::Surveyed {
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
        let keys: Vec<Key> = waiting.map(|(key, _)| *key).collect();
        for key in keys {
            self.flush(key);
        }
        Ok(())
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            let fd = match accept_with(&self.listener, flags) {
                Ok(fd) => fd,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(e) => {
                    tracing::warn!("cannot accept connections for {PAUSE:?}: {e}");
                    self.accept_later();
                    return;
                }
            };
            let Ok(Peer { uid: user, pid, .. }) = peer(&fd) else {
                continue;
            };
            let groups = match user == self.own {
                true => None,
                // Whoever's groups are not known has none.
                false => Some(peer_groups(&fd).unwrap_or_default()),
            };
            let mut connection = Connection::new(fd, user, pid);
            connection.guest = groups;
            if let Err(why) = self.admits(user, pid) {
                tracing::warn!(user, pid, "connection refused: {why}");
                let refused = Outgoing {
                    after: 0,
                    packet: packet_of(0, &Reply::Refused(why)),
                    fd: None,
                };
                let _ = connection.send(refused, 0);
                continue;
            }
            let key = self.next;
            if let Err(e) = self.watch(&connection, key) {
                tracing::warn!("cannot watch a connection: {e}");
                continue;
            }
            self.next += 1;
            self.connections.insert(key, connection);
        }
    }

    /// Who waits to be accepted does not wake this thread for a while.
    fn accept_later(&mut self) {
        if epoll::delete(&self.epoll, &self.listener).is_ok() {
            let pause = u64::try_from(PAUSE.as_nanos()).unwrap_or(u64::MAX);
            self.accepts_at = Some(self.clock.now().saturating_add(pause));
        }
    }

    fn admits(&self, user: Uid, pid: i32) -> Result<(), Refusal> {
        let guests = || self.connections.values().filter(|c| c.guest.is_some());
        if user != self.own && !self.guests {
            let text = format!(
                "this tarnd serves user {} only, and this is user {user}",
                self.own
            );
            return Err(Refusal::new(Code::Denied, text));
        }
        if user != self.own
            && (guests().count() >= MAX_GUESTS
                || guests().filter(|c| c.user == user).count() >= MAX_OF_GUEST)
        {
            let text = format!(
                "other users than {} have {MAX_GUESTS} connections at most, each of them {MAX_OF_GUEST}: close some",
                self.own
            );
            return Err(Refusal::new(Code::Busy, text));
        }
        let itself = u32::try_from(pid).is_ok_and(|pid| pid == std::process::id());
        let most = MAX_CONNECTIONS - if itself { 0 } else { RESERVED };
        if self.connections.len() >= most {
            let text = format!("there are {most} connections already: close some");
            return Err(Refusal::new(Code::Busy, text));
        }
        Ok(())
    }

    fn connection(&mut self, key: Key, flags: EventFlags) -> anyhow::Result<()> {
        if flags.contains(EventFlags::OUT) {
            self.flush(key);
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            self.listen_to(key)?;
        }
        Ok(())
    }

    /// Reads what a program asks, some requests at a time.
    fn listen_to(&mut self, key: Key) -> anyhow::Result<()> {
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

    fn close(&mut self, key: Key) {
        if let Some(connection) = self.connections.remove(&key) {
            let _ = epoll::delete(&self.epoll, &connection);
            self.waits.forget(key);
        }
    }

    fn send(&mut self, key: Key, number: u32, reply: &Reply, after: u64) {
        self.send_with(key, number, reply, (after, None));
    }

    fn send_with(
        &mut self,
        key: Key,
        number: u32,
        reply: &Reply,
        (after, fd): (u64, Option<OwnedFd>),
    ) {
        let packet = packet_of(number, reply);
        let durable = self.journal.durable();
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        match connection.send(Outgoing { after, packet, fd }, durable) {
            Ok(()) => self.set_interest(key),
            Err(_) => self.close(key),
        }
    }

    fn flush(&mut self, key: Key) {
        let durable = self.journal.durable();
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        match connection.flush(durable) {
            Ok(()) => self.set_interest(key),
            Err(_) => self.close(key),
        }
    }

    /// What is waited for at a connection follows from what it has not read.
    fn set_interest(&mut self, key: Key) {
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

    /// Ends: no new requests, tasks are stopped (durable ones go on with the next tarnd), records are written.
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
        let refused = Reply::Refused(Refusal::new(Code::Invalid, text));
        let _ = encode(VERSION, number, &refused, &mut packet);
    }
    packet
}

/// The reply that an answer of the core is.
fn reply_of(answer: Answer) -> Reply {
    match answer {
        Answer::Submitted(all) => Reply::Submitted(all),
        Answer::Busy(after) => Reply::Busy(after),
        Answer::Cancelled(all) => Reply::Cancelled(all),
        Answer::Paused(all) => Reply::Paused(all),
        Answer::Done => Reply::Done,
        Answer::Refused(why) => Reply::Refused(why),
    }
}
