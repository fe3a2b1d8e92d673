//! Requests of programs, one at a time.

use super::{PendingRequest, TarndServer, reply_of};
use crate::connection::ProgramConnectionId;
use crate::waits::TaskWait;
use crate::work::{FileJob, PartitionQuery, PartitionRequest, TaskMemory};
use rustix::fd::OwnedFd;
use std::time::Duration;
use tarn_proto::local::{
    Code, JobChange, JobId, LocalRequest, MAX_BATCH, MAX_IDS, PacketError, PathBytes, RegionId,
    Reply, RequestError, Scope, SpaceChange, Stats, TaskId, TaskLocation, TaskOperation,
    TaskOutcome, TaskSpec, TaskStatus, decode, versions,
};
use tarn_tasks::{Added, Process, TaskEvent, TaskReply};

/// Requests of one connection that wait for tasks.
const MAX_WAITS: usize = 64;
/// Partitions that are opened or listed for one connection at a time.
const MAX_PARTITION_REQUESTS: u32 = 16;
/// Bytes of outcomes in one reply: another request gets the rest.
const MAX_OUTCOMES: usize = 56 << 10;
/// Bytes of an outcome without its text, at most.
const OUTCOME: usize = 64;
/// Processes above one that are looked at for its job.
const MAX_PARENTS: usize = 64;

fn refused(code: Code, text: impl Into<String>) -> Reply {
    Reply::Refused(RequestError::new(code, text))
}

impl TarndServer {
    /// Takes a packet of a program.
    pub(super) fn packet(
        &mut self,
        key: ProgramConnectionId,
        bytes: &[u8],
        truncated: bool,
        fd: Option<OwnedFd>,
    ) -> anyhow::Result<()> {
        let packet = match decode::<LocalRequest>(bytes) {
            _ if truncated => Err(PacketError::TooLarge),
            other => other,
        };
        let packet = match packet {
            Ok(packet) => packet,
            Err(e) => {
                self.reject_packet(key, &e);
                return Ok(());
            }
        };
        let number = packet.number;
        let greeted = self.connections.get(&key).is_some_and(|c| c.greeted);
        match packet.message {
            LocalRequest::Hello {
                oldest,
                newest,
                job,
            } => self.hello(key, number, (oldest, newest), job),
            _ if !greeted => {
                let text = "the first request must be Hello";
                self.send(key, number, &refused(Code::Invalid, text), 0);
            }
            LocalRequest::Open {
                node,
                space,
                path,
                write,
            } => {
                let query = PartitionQuery::One(write);
                self.start_partition_request(key, number, (node, space, path), query)?;
            }
            LocalRequest::Partitions {
                node,
                space,
                path,
                after,
            } => {
                let query = PartitionQuery::List(after);
                self.start_partition_request(key, number, (node, space, path), query)?;
            }
            _ if self.is_guest(key) => {
                let text = format!(
                    "of this tarnd, which is user {}'s, other users may only have partitions",
                    self.own
                );
                self.send(key, number, &refused(Code::Denied, text), 0);
            }
            request => self.answer_owner(key, number, request, fd)?,
        }
        Ok(())
    }

    /// A program that sends bytes which are no packet is not understood any further.
    fn reject_packet(&mut self, key: ProgramConnectionId, why: &PacketError) {
        let code = match why {
            PacketError::Version(_) => Code::Version,
            _ => Code::Invalid,
        };
        if let Some(connection) = self.connections.get_mut(&key) {
            tracing::warn!(
                user = connection.user,
                pid = connection.pid,
                "closed: {why}"
            );
            connection.closing = true;
        }
        self.send(key, 0, &refused(code, why.to_string()), 0);
    }

    /// Answers a program of the user whose tarnd this is.
    fn answer_owner(
        &mut self,
        key: ProgramConnectionId,
        number: u32,
        request: LocalRequest,
        fd: Option<OwnedFd>,
    ) -> anyhow::Result<()> {
        match request {
            LocalRequest::Submit(tasks) => self.submit(key, number, tasks)?,
            LocalRequest::Wait { ids, any, timeout } => self.wait(key, number, ids, any, timeout),
            LocalRequest::Status(ids) => self.status(key, number, &ids),
            LocalRequest::Cancel(ids) if ids.len() > MAX_IDS => self.too_many(key, number),
            LocalRequest::Cancel(ids) => {
                let user = self.user(key);
                let ticket = self.ticket(key, number, Vec::new());
                self.step(TaskEvent::Cancel { ticket, user, ids })?;
            }
            LocalRequest::Pause(scope) => self.pause(key, number, scope, true)?,
            LocalRequest::Resume(scope) => self.pause(key, number, scope, false)?,
            LocalRequest::Register { length } => self.register_memory(key, number, fd, length),
            LocalRequest::Unregister(region) => self.unregister_memory(key, number, region),
            LocalRequest::Spaces => {
                let spaces = self.core.spaces_for(self.user(key));
                self.send(key, number, &Reply::Spaces(spaces), 0);
            }
            LocalRequest::Space(change) => self.space(key, number, change)?,
            LocalRequest::Job(JobChange::AddProcess { job, pid }) => {
                self.add_process(key, number, job, pid)?;
            }
            LocalRequest::Job(change) => {
                let user = self.user(key);
                let ticket = self.ticket(key, number, Vec::new());
                self.step(TaskEvent::Job {
                    ticket,
                    user,
                    change,
                })?;
            }
            LocalRequest::Stats => {
                let stats = self.stats();
                self.send(key, number, &Reply::Stats(stats), 0);
            }
            LocalRequest::Hello { .. }
            | LocalRequest::Open { .. }
            | LocalRequest::Partitions { .. } => {
                unreachable!("it is answered whoever asks")
            }
        }
        Ok(())
    }

    fn register_memory(
        &mut self,
        key: ProgramConnectionId,
        number: u32,
        fd: Option<OwnedFd>,
        length: u64,
    ) {
        if let Some(connection) = self.connections.get_mut(&key) {
            let registered = connection.register(fd, length);
            let reply = registered.map_or_else(Reply::Refused, Reply::Registered);
            self.send(key, number, &reply, 0);
        }
    }

    fn unregister_memory(&mut self, key: ProgramConnectionId, number: u32, region: RegionId) {
        if let Some(connection) = self.connections.get_mut(&key) {
            let unregistered = connection.unregister(region);
            let reply = unregistered.map_or_else(Reply::Refused, |()| Reply::Done);
            self.send(key, number, &reply, 0);
        }
    }

    fn is_guest(&self, key: ProgramConnectionId) -> bool {
        let connection = self.connections.get(&key);
        connection.is_none_or(|c| c.guest.is_some())
    }

    /// Opens or lists partitions, which a thread does that may touch files.
    fn start_partition_request(
        &mut self,
        key: ProgramConnectionId,
        number: u32,
        (node, space, path): (Option<String>, String, PathBytes),
        wanted: PartitionQuery,
    ) -> anyhow::Result<()> {
        let Some(connection) = self.connections.get(&key) else {
            return Ok(());
        };
        if connection.partition_requests() >= MAX_PARTITION_REQUESTS {
            let text = format!(
                "{MAX_PARTITION_REQUESTS} partitions are being opened for this connection already"
            );
            self.send(key, number, &refused(Code::Busy, text), 0);
            return Ok(());
        }
        let node = node.filter(|node| *node != self.node);
        let guest = connection.guest.clone();
        let guest = guest.map(|groups| (connection.user, groups));
        let is_list = matches!(wanted, PartitionQuery::List(_));
        let checked = tarn_tasks::check_path(&path, is_list);
        let checked = match (&node, &guest) {
            (Some(_), Some(_)) => {
                let text = "other users than this tarnd's have partitions of this node only";
                Err(RequestError::new(Code::Denied, text))
            }
            (Some(node), None) => tarn_tasks::check_name("node", node).and(checked),
            (None, _) => checked,
        };
        let root = match &node {
            Some(_) => Some(Default::default()),
            None => self.root(&space),
        };
        let root = root.ok_or_else(|| {
            let text = format!(
                "there is no dataspace `{}` on this node",
                space.escape_debug()
            );
            RequestError::new(Code::NotFound, text)
        });
        match checked.and(root) {
            Err(why) => self.send(key, number, &Reply::Refused(why), 0),
            Ok(root) => {
                if let Some(connection) = self.connections.get_mut(&key) {
                    connection.begin_partition_request();
                }
                self.workers.give(FileJob::Export(PartitionRequest {
                    to: (key, number),
                    node,
                    space: (space, root),
                    path: path.0,
                    wanted,
                    guest,
                }))?;
            }
        }
        Ok(())
    }

    fn pause(
        &mut self,
        key: ProgramConnectionId,
        number: u32,
        scope: Scope,
        on: bool,
    ) -> anyhow::Result<()> {
        if matches!(&scope, Scope::Tasks(ids) if ids.len() > MAX_IDS) {
            self.too_many(key, number);
            return Ok(());
        }
        let user = self.user(key);
        let ticket = self.ticket(key, number, Vec::new());
        self.step(TaskEvent::Pause {
            ticket,
            user,
            scope,
            on,
        })
    }

    fn user(&self, key: ProgramConnectionId) -> u32 {
        self.connections.get(&key).map_or(u32::MAX, |c| c.user)
    }

    fn ticket(
        &mut self,
        connection: ProgramConnectionId,
        number: u32,
        memory: Vec<TaskMemory>,
    ) -> u64 {
        let id = self.next_ticket;
        self.next_ticket += 1;
        let ticket = PendingRequest {
            connection,
            number,
            memory,
        };
        self.tickets.insert(id, ticket);
        id
    }

    /// The core has answered.
    pub(super) fn answer(&mut self, ticket: u64, answer: TaskReply, after: u64) {
        let Some(ticket) = self.tickets.remove(&ticket) else {
            return;
        };
        if let TaskReply::Submitted(results) = &answer {
            for (result, memory) in results.iter().zip(ticket.memory) {
                if let (Ok(id), (Some(_), _) | (_, Some(_))) = (result, &memory) {
                    self.memory.insert(*id, memory);
                }
            }
        }
        self.send(ticket.connection, ticket.number, &reply_of(answer), after);
    }

    fn too_many(&mut self, key: ProgramConnectionId, number: u32) {
        let text = format!("more than {MAX_IDS} ids in a request; send them in several");
        self.send(key, number, &refused(Code::Invalid, text), 0);
    }

    fn hello(
        &mut self,
        key: ProgramConnectionId,
        number: u32,
        (oldest, newest): (u16, u16),
        job: Option<JobId>,
    ) {
        let Some(connection) = self.connections.get(&key) else {
            return;
        };
        let (user, pid) = (connection.user, connection.pid);
        let reply = match (versions(oldest, newest), self.job(user, pid, job)) {
            (None, _) => {
                let text = format!(
                    "this tarnd speaks versions {} to {} of the messages, the program {oldest} to {newest}; use the same release of both",
                    tarn_proto::local::OLDEST,
                    tarn_proto::local::VERSION
                );
                refused(Code::Version, text)
            }
            (_, Err(why)) => Reply::Refused(why),
            (Some(version), Ok(job)) => {
                if let Some(connection) = self.connections.get_mut(&key) {
                    connection.greeted = true;
                    connection.job = job;
                }
                let node = self.node.clone();
                Reply::Welcome {
                    version,
                    user,
                    node,
                }
            }
        };
        self.send(key, number, &reply, 0);
    }

    /// The job of a process: the one that it, or a process above it, was added to. One that it names itself must be
    /// that one, where jobs are registered.
    fn job(
        &self,
        user: u32,
        pid: i32,
        named: Option<JobId>,
    ) -> Result<Option<JobId>, RequestError> {
        if !self.core.has_jobs() && named.is_none() {
            return Ok(None);
        }
        let parents = std::iter::successors(Some(pid), |pid| tarn_sys::process::parent(*pid));
        let stamped = parents.take(MAX_PARENTS);
        let stamped = stamped.filter_map(|pid| Some((pid, self.stamp(pid)?)));
        let found = self.core.job_of(stamped);
        match (named, found) {
            (Some(named), Some(found)) if named != found => Err(RequestError::new(
                Code::Denied,
                format!("process {pid} belongs to job {found}, not to job {named}"),
            )),
            (Some(named), None) => Err(RequestError::new(
                Code::Denied,
                format!("process {pid} of user {user} does not belong to job {named}"),
            )),
            (_, found) => Ok(found),
        }
    }

    fn add_process(
        &mut self,
        key: ProgramConnectionId,
        number: u32,
        job: JobId,
        pid: i32,
    ) -> anyhow::Result<()> {
        let refusal = match self.stamp(pid) {
            _ if pid <= 1 => refused(
                Code::Invalid,
                format!(
                    "process {pid} cannot be added to a job: name one that the job has started"
                ),
            ),
            None => refused(Code::NotFound, format!("there is no process {pid} here")),
            Some(stamp) => {
                let crowd = self.core.crowd(job);
                let gone = crowd.iter().filter(|p| self.stamp(p.pid) != Some(p.stamp));
                let gone = gone.map(|p| p.pid).collect();
                let user = self.user(key);
                let ticket = self.ticket(key, number, Vec::new());
                let process = Process { job, pid, stamp };
                return self.step(TaskEvent::Process(Added {
                    ticket,
                    user,
                    process,
                    gone,
                }));
            }
        };
        self.send(key, number, &refusal, 0);
        Ok(())
    }

    /// Tells a process from those that had or will have its number: by boot and start.
    fn stamp(&self, pid: i32) -> Option<u64> {
        let started = tarn_sys::process::start_time(pid)?;
        let mut hasher = tarn_types::hash::Hasher::new();
        hasher.field(&self.boot).number(started);
        Some(hasher.finish().0 as u64)
    }

    fn submit(
        &mut self,
        key: ProgramConnectionId,
        number: u32,
        mut tasks: Vec<TaskSpec>,
    ) -> anyhow::Result<()> {
        if tasks.len() > MAX_BATCH {
            let text = format!("more than {MAX_BATCH} tasks in a request; send them in several");
            self.send(key, number, &refused(Code::Invalid, text), 0);
            return Ok(());
        }
        let (user, job) = match self.connections.get(&key) {
            Some(connection) => (connection.user, connection.job),
            None => return Ok(()),
        };
        for place in tasks.iter_mut().flat_map(|t| t.kind.places_mut()) {
            self.make_own(place);
        }
        let mut memory = Vec::new();
        let touches = |t: &TaskSpec| {
            let (from, to) = t.kind.places();
            let is = |p: Option<&TaskLocation>| matches!(p, Some(TaskLocation::Memory { .. }));
            is(from) || is(to)
        };
        if tasks.iter().any(touches) {
            for task in &tasks {
                match self.memory_of(key, &task.kind) {
                    Ok(regions) => memory.push(regions),
                    Err(why) => {
                        // A region that is not there is an error of the program, not of one task.
                        self.send(key, number, &Reply::Refused(why), 0);
                        return Ok(());
                    }
                }
            }
        }
        let ticket = self.ticket(key, number, memory);
        self.step(TaskEvent::Submit {
            ticket,
            user,
            job,
            tasks,
        })
    }

    /// This node's dataspaces, called by the node's name, are its own.
    fn make_own(&self, place: &mut TaskLocation) {
        if let TaskLocation::Node { node, space, path } = place
            && *node == self.node
        {
            *place = TaskLocation::Space {
                name: std::mem::take(space),
                path: std::mem::take(path),
            };
        }
    }

    fn memory_of(
        &self,
        key: ProgramConnectionId,
        kind: &TaskOperation,
    ) -> Result<TaskMemory, RequestError> {
        let find = |place: Option<&TaskLocation>| match place {
            Some(TaskLocation::Memory {
                region,
                offset,
                length,
            }) => {
                let connection = self.connections.get(&key);
                let lost = || RequestError::new(Code::Lost, "the connection is closed");
                let found = connection.ok_or_else(lost)?.region(*region)?;
                let end = offset.checked_add(*length);
                if end.is_none_or(|end| end > found.length) {
                    return Err(RequestError::new(
                        Code::Invalid,
                        format!(
                            "{length} bytes at {offset} are not inside region {region} of {} bytes",
                            found.length
                        ),
                    ));
                }
                Ok(Some(found.clone()))
            }
            _ => Ok(None),
        };
        let (from, to) = kind.places();
        Ok((find(from)?, find(to)?))
    }

    fn wait(
        &mut self,
        key: ProgramConnectionId,
        number: u32,
        ids: Vec<TaskId>,
        any: bool,
        timeout: u64,
    ) {
        if ids.len() > MAX_IDS {
            return self.too_many(key, number);
        }
        let user = self.user(key);
        let alive = ids.iter().filter(|id| self.core.is_live(user, **id));
        let mut live: Vec<TaskId> = alive.copied().collect();
        live.sort_unstable();
        live.dedup();
        let ended = any && ids.iter().any(|id| self.core.outcome(user, *id).is_some());
        if live.is_empty() || ended || timeout == 0 {
            return self.send_outcomes(key, number, &ids);
        }
        if self.waits.of(key) >= MAX_WAITS {
            let text = format!("{MAX_WAITS} requests of this connection wait already");
            return self.send(key, number, &refused(Code::Busy, text), 0);
        }
        let until = self.clock.now().saturating_add(timeout);
        self.waits.add((key, number), ids, &live, any, until);
    }

    pub(super) fn answer_wait(&mut self, wait: TaskWait) {
        self.send_outcomes(wait.connection, wait.number, &wait.ids);
    }

    fn send_outcomes(&mut self, key: ProgramConnectionId, number: u32, ids: &[TaskId]) {
        let user = self.user(key);
        let mut bytes = 0;
        let mut outcomes: Vec<TaskOutcome> = Vec::new();
        let mut durable = false;
        for id in ids {
            if let Some(outcome) = self.core.outcome(user, *id) {
                let text = match &outcome.end {
                    tarn_proto::local::TaskEnd::Failed(why) => why.text.len(),
                    tarn_proto::local::TaskEnd::Done => 0,
                };
                bytes += OUTCOME + text;
                if bytes > MAX_OUTCOMES {
                    break;
                }
                durable |= self.core.is_durable(*id);
                outcomes.push(outcome.clone());
            }
        }
        let after = self.after(durable);
        self.send(key, number, &Reply::Outcomes(outcomes), after);
    }

    /// The record that a reply about durable tasks must wait for.
    fn after(&self, durable: bool) -> u64 {
        if durable { self.journal.handed() } else { 0 }
    }

    fn status(&mut self, key: ProgramConnectionId, number: u32, ids: &[TaskId]) {
        if ids.len() > MAX_IDS {
            return self.too_many(key, number);
        }
        let (user, now) = (self.user(key), self.clock.now());
        let status = |id: &TaskId| {
            let mut status: TaskStatus = self.core.status(user, *id);
            if let Some(running) = self.running.get(id) {
                (status.done, status.left) = running.look(now, status.all);
            }
            status
        };
        let statuses = ids.iter().map(status).collect();
        let durable = ids.iter().any(|id| self.core.is_durable(*id));
        let after = self.after(durable);
        self.send(key, number, &Reply::Statuses(statuses), after);
    }

    fn stats(&self) -> Stats {
        let now = self.clock.now();
        let left = self.running.iter().filter_map(|(id, running)| {
            let size = self.core.task(*id).and_then(|t| t.size)?;
            running.look(now, Some(size.bytes)).1
        });
        Stats {
            left: left.max(),
            connections: u32::try_from(self.connections.len()).unwrap_or(u32::MAX),
            ..self.core.stats()
        }
    }

    fn space(
        &mut self,
        key: ProgramConnectionId,
        number: u32,
        change: SpaceChange,
    ) -> anyhow::Result<()> {
        if let SpaceChange::Make { name, spec } = &change {
            use std::os::unix::ffi::OsStrExt;
            let root = std::path::Path::new(std::ffi::OsStr::from_bytes(&spec.root.0));
            if !root.is_dir() {
                let text = format!("{} is not a folder: make it first", spec.root.show());
                self.send(key, number, &refused(Code::NotFound, text), 0);
                return Ok(());
            }
            // One that is there already is refused below.
            if self.core.space_root(name).is_none()
                && let Some(roots) = &mut self.roots
                && let Err(why) = roots.take(name, root, Duration::ZERO)
            {
                self.send(key, number, &Reply::Refused(why), 0);
                return Ok(());
            }
        }
        let user = self.user(key);
        let ticket = self.ticket(key, number, Vec::new());
        self.step(TaskEvent::Space {
            ticket,
            user,
            change,
        })?;
        if let Some(roots) = &mut self.roots {
            roots.keep(|name| self.core.space_root(name).is_some());
        }
        Ok(())
    }
}
