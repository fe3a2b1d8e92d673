//! `tarn exec` to a node of another world: the command's input and output are carried over, in both directions.
//!
//! At the leader this listens at the socket of each follower instead of a helper; at the follower it requests the command from
//! the helper as `tarn exec` would do it, with pipes in place of the caller's descriptors. One thread a step on each side.

mod stream;

use crate::attempt::envelope_queue::{EnvelopeQueue, ExecMessage, ExecMessageQueue};
use crate::attempt::message::{AttemptPeer, Exec};
use crate::attempt::node_context::NodeContext;
use crate::fds::readable;
use crate::helper::exec_env::own_paths;
use crate::helper::exec_listener::{
    Arrived, ExecListener, REQUEST_TIMEOUT, keeps_to_the_view, refuse, socket_path,
};
use crate::helper::guests::MAX_GUESTS;
use crate::helper::protocol::{Channel, ExecReply, ExecRequest, line_of};
use crate::storage::run_facts::RunFacts;
use crate::storage::store::warn;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use stream::{ExecStreamSink, ExecStreamSource};
use tarn_types::action::AttemptSpec;
use tarn_types::id::TierRef;

/// The relay of one step on one of its nodes.
pub(crate) struct Relay<'a> {
    exec: &'a ExecMessageQueue,
    side: RelaySide<'a>,
    sessions: BTreeMap<u32, ExecSession<'a>>,
}

enum RelaySide<'a> {
    Leader {
        listeners: Vec<(AttemptPeer<'a>, ExecListener)>,
        /// Sessions so far.
        opened: u32,
    },
    Follower {
        peer: AttemptPeer<'a>,
        /// The node's own folder of sockets, and its name there.
        folder: PathBuf,
        name: String,
        /// Variables of a command whose values differ on this node.
        env: Vec<(&'static str, OsString)>,
    },
}

/// A command.
struct ExecSession<'a> {
    peer: AttemptPeer<'a>,
    /// Whether this is the side of `tarn exec`.
    leads: bool,
    /// To `tarn exec`, or to the helper; gone with whom it leads to.
    channel: Option<Channel>,
    sources: Vec<ExecStreamSource>,
    sinks: Vec<ExecStreamSink>,
    /// How it ended, and whether that was passed on.
    answer: Option<ExecReply>,
    reply_sent: bool,
}

impl<'a> Relay<'a> {
    /// Listens for `tarn exec` to each node of another world.
    pub(crate) fn of_leader(
        shared: &'a NodeContext,
        run: &AttemptSpec,
        envelopes: &'a EnvelopeQueue,
    ) -> io::Result<Self> {
        let home = run.nodes.first().copied();
        let home = home.ok_or_else(|| io::Error::other("the step has no node"))?;
        let folder = exec_folder(shared, run, home)?;
        let folder = File::open(folder)?;
        let mut listeners = Vec::new();
        for (at, tier_ref) in run.nodes.iter().enumerate() {
            if shared.own.has(tier_ref.node) {
                continue;
            }
            let name = shared.node_name(tier_ref.node);
            let listener = ExecListener::bind(&folder, &name)?;
            let peer = AttemptPeer {
                shared,
                to: tier_ref.node,
                step: (run.instance, run.attempt),
                at,
            };
            listeners.push((peer, listener));
        }
        Ok(Self {
            exec: &envelopes.exec,
            side: RelaySide::Leader {
                listeners,
                opened: 0,
            },
            sessions: BTreeMap::new(),
        })
    }

    /// Starts commands that the leader requests.
    pub(crate) fn of_follower(
        peer: AttemptPeer<'a>,
        run: &AttemptSpec,
        own: TierRef,
        envelopes: &'a EnvelopeQueue,
    ) -> Self {
        let work = peer.shared.work_folder(run, own).unwrap_or_default();
        let (hosts, folder) = (work.join("hosts"), work.join("exec"));
        let side = RelaySide::Follower {
            peer,
            name: peer.shared.node_name(own.node),
            env: own_paths(&hosts, &folder).to_vec(),
            folder,
        };
        Self {
            exec: &envelopes.exec,
            side,
            sessions: BTreeMap::new(),
        }
    }

    /// Until the step is over.
    pub(crate) fn run(mut self) {
        while !self.exec.closed() {
            for message in self.exec.take() {
                self.receive(message);
            }
            self.admit();
            self.sessions.retain(|id, session| !session.turn(*id));
            if let Err(e) = self.wait() {
                return warn(&format!("`tarn exec` to other nodes has stopped: {e}"));
            }
        }
    }

    fn wait(&self) -> io::Result<()> {
        let mut fds = vec![PollFd::from_borrowed_fd(self.exec.fd(), PollFlags::IN)];
        let mut due = None;
        if let RelaySide::Leader { listeners, .. } = &self.side {
            let waiting = listeners.iter().flat_map(|(_, l)| l.fds());
            fds.extend(waiting.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            due = listeners.iter().filter_map(|(_, l)| l.due()).min();
        }
        for session in self.sessions.values() {
            let channel = session.channel.iter();
            fds.extend(channel.map(|c| PollFd::new(&c.socket, PollFlags::IN)));
            fds.extend(session.sources.iter().filter_map(ExecStreamSource::poll));
            fds.extend(session.sinks.iter().filter_map(ExecStreamSink::poll));
        }
        let due = due.and_then(|due| Timespec::try_from(due).ok());
        match poll(&mut fds, due.as_ref()) {
            Err(rustix::io::Errno::INTR) | Ok(_) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn receive(&mut self, message: ExecMessage) {
        let ExecMessage {
            at,
            session: id,
            about,
            bytes,
        } = message;
        if let (Exec::Open(request), RelaySide::Follower { peer, .. }) = (&about, &self.side) {
            let peer = *peer;
            return match self.open(request) {
                Ok(session) => drop(self.sessions.insert(id, session)),
                Err(e) => {
                    let answer = ExecReply::Refused(e.to_string());
                    peer.exec(id, Exec::End(answer), None);
                }
            };
        }
        // Messages may still come for one that has been over here.
        if let Some(session) = self.sessions.get_mut(&id).filter(|s| s.peer.at == at) {
            session.receive(about, bytes);
        }
    }

    /// Requests a command from this node's helper.
    fn open(&self, request: &ExecRequest) -> io::Result<ExecSession<'a>> {
        let RelaySide::Follower {
            peer,
            folder,
            name,
            env,
        } = &self.side
        else {
            return Err(io::Error::other("commands are not started here"));
        };
        let mut request = request.clone();
        for (key, value) in &mut request.env {
            if let Some((_, own)) = env.iter().find(|(name, _)| *key == *name) {
                value.clone_from(own);
            }
        }
        let request = line_of(&request)?;
        let pipe = || pipe_with(PipeFlags::CLOEXEC);
        let (input, output, error) = (pipe()?, pipe()?, pipe()?);
        let socket = UnixStream::connect(socket_path(&File::open(folder)?, name))?;
        socket.set_write_timeout(Some(REQUEST_TIMEOUT))?;
        let theirs = [input.0.as_fd(), output.1.as_fd(), error.1.as_fd()];
        tarn_sys::fdpass::send(&socket, &theirs)?;
        let mut channel = Channel::new(socket);
        channel.send_line(&request)?;
        Ok(ExecSession {
            peer: *peer,
            leads: false,
            channel: Some(channel),
            sources: vec![
                ExecStreamSource::new(1, output.0),
                ExecStreamSource::new(2, error.0),
            ],
            sinks: vec![ExecStreamSink::new(0, input.1)],
            answer: None,
            reply_sent: false,
        })
    }

    /// Takes new requests.
    fn admit(&mut self) {
        let Self { side, sessions, .. } = self;
        let RelaySide::Leader { listeners, opened } = side else {
            return;
        };
        for (peer, listener) in listeners {
            listener.take(|mut arrived| {
                let there = sessions.values().filter(|s| s.peer.at == peer.at);
                let full = there.count() >= MAX_GUESTS;
                match streams(&mut arrived, full) {
                    Ok([input, output, error]) => {
                        let id = *opened;
                        *opened = opened.wrapping_add(1);
                        peer.exec(id, Exec::Open(Box::new(arrived.request)), None);
                        let session = ExecSession {
                            peer: *peer,
                            leads: true,
                            channel: Some(arrived.client),
                            sources: vec![ExecStreamSource::new(0, input)],
                            sinks: vec![
                                ExecStreamSink::new(1, output),
                                ExecStreamSink::new(2, error),
                            ],
                            answer: None,
                            reply_sent: false,
                        };
                        sessions.insert(id, session);
                    }
                    Err(e) => refuse(&mut arrived.client, &e.to_string()),
                }
            });
        }
    }
}

fn exec_folder(shared: &RunFacts, run: &AttemptSpec, tier_ref: TierRef) -> io::Result<PathBuf> {
    let work = shared
        .work_folder(run, tier_ref)
        .map_err(|f| io::Error::other(f.message))?;
    Ok(Path::join(&work, "exec"))
}

/// The standard streams of a request to another node: nothing else can be carried there.
fn streams(arrived: &mut Arrived, full: bool) -> io::Result<[OwnedFd; 3]> {
    if full {
        return Err(io::Error::other(format!(
            "{MAX_GUESTS} commands of `tarn exec` run on this node already"
        )));
    }
    if !arrived.request.fds.is_empty() {
        return Err(io::Error::other(
            "open files beside the standard streams cannot be handed on to another node",
        ));
    }
    let fds = std::mem::take(&mut arrived.fds);
    (0..)
        .zip(&fds)
        .try_for_each(|(number, fd)| keeps_to_the_view(number, fd))?;
    <[OwnedFd; 3]>::try_from(fds)
        .map_err(|_| io::Error::other("a request passes three descriptors"))
}

impl ExecSession<'_> {
    fn receive(&mut self, about: Exec, bytes: Vec<u8>) {
        match about {
            Exec::Data { stream } => {
                let sink = self.sinks.iter_mut().find(|s| s.stream == stream);
                // Data beyond the window is lost.
                if let Some(sink) = sink {
                    sink.push(bytes);
                }
            }
            Exec::Taken { stream } => {
                let source = self.sources.iter_mut().find(|s| s.stream == stream);
                source.into_iter().for_each(ExecStreamSource::taken);
            }
            Exec::Close { stream } => {
                let sink = self.sinks.iter_mut().find(|s| s.stream == stream);
                sink.into_iter().for_each(ExecStreamSink::close);
                self.sources.retain(|s| s.stream != stream);
            }
            Exec::Gone => {
                if let Some(channel) = &self.channel {
                    // The helper sees its client go.
                    let _ = channel.socket.shutdown(std::net::Shutdown::Write);
                }
            }
            Exec::End(answer) => {
                self.answer = Some(answer);
                self.sources.clear();
            }
            Exec::Open(_) => {}
        }
    }

    /// Passes on what can be; whether there is nothing left to do.
    fn turn(&mut self, id: u32) -> bool {
        let peer = self.peer;
        let mut reached = true;
        self.sources.retain_mut(|source| {
            let stream = source.stream;
            loop {
                match source.read() {
                    Some(bytes) if bytes.is_empty() => {
                        reached &= peer.exec(id, Exec::Close { stream }, None);
                        return false;
                    }
                    Some(bytes) => reached &= peer.exec(id, Exec::Data { stream }, Some(&bytes)),
                    None => return true,
                }
            }
        });
        self.sinks.retain_mut(|sink| {
            let stream = sink.stream;
            let written = sink.write();
            for _ in 0..sink.taken() {
                reached &= peer.exec(id, Exec::Taken { stream }, None);
            }
            if written.is_err() {
                reached &= peer.exec(id, Exec::Close { stream }, None);
            }
            written.is_ok() && !sink.over()
        });
        let ready_channel = self
            .channel
            .as_mut()
            .filter(|c| readable(&c.socket).unwrap_or(true));
        match (ready_channel, self.leads) {
            (None, _) => {}
            // A client sends nothing after its request: readable means gone.
            (Some(_), true) => {
                reached &= self.answer.is_some() || peer.exec(id, Exec::Gone, None);
                self.channel = None;
                self.sources.clear();
            }
            (Some(helper), false) => {
                let gone = || ExecReply::Refused("its step has ended there".into());
                let answer = helper.receive().ok().flatten();
                self.answer = Some(answer.unwrap_or_else(gone));
                self.channel = None;
            }
        }
        !reached || self.conclude(id)
    }

    /// Passes on how the command ended, once all that it printed before has been; whether that was all.
    fn conclude(&mut self, id: u32) -> bool {
        let Some(answer) = &self.answer else {
            return false;
        };
        let printed = match self.leads {
            true => self.sinks.iter().all(ExecStreamSink::idle),
            false => !self.sources.iter().any(ExecStreamSource::ready),
        };
        if !self.reply_sent && printed {
            self.reply_sent = true;
            match (self.leads, self.channel.take()) {
                // The client may be gone.
                (true, Some(mut client)) => drop(client.send(answer)),
                (true, None) => {}
                (false, _) => {
                    self.sinks.clear();
                    self.peer.exec(id, Exec::End(answer.clone()), None);
                }
            }
        }
        // Processes that it has left in the background may print on.
        self.reply_sent && self.sources.is_empty() && self.sinks.is_empty()
    }
}
