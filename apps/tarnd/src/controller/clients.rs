//! Clients: Slurm's scripts and users, at a unix socket, and from other hosts by TCP, where munge proves who they are. Each has a
//! thread; most wait for a stage of their job.

use super::ControllerInput;
use crate::TarndError;
use crate::site::{MAX_PENDING, MAX_PENDING_OF_ONE};
use anyhow::Context;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tarn_munge::{Munge, MungeSessionReader, MungeSessionWriter, SessionError, accept_anyone};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{CONTROLLER, ControllerReply, ControllerRequest, decode, encode};
use tarn_stream::PendingConnections;
use tarn_sys::fdpass::{peer, peer_groups};
use tarn_types::codes::Exit;

/// Slurm's and root's questions at a time; users have places of their own, so that neither shuts the other out.
const MAX_CLIENTS: usize = 4096;
/// Users' at a time, and of each of them.
const MAX_USERS: usize = 256;
const MAX_OF_USER: usize = 16;
/// Bytes of a question: a script's lines, read, are larger than they were.
const MAX_ASK: usize = 1 << 20;
/// How long a client may take to send its request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// After a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(200);
/// How often it is checked whether a client that waits is still there.
const LOOK: Duration = Duration::from_secs(1);

/// Slurm's user, and the queue for requests.
#[derive(Debug, Clone)]
pub(super) struct ClientListener {
    pub(super) slurm: u32,
    pub(super) inputs: Sender<ControllerInput>,
    pub(super) munge: Munge,
}

/// A client with a request.
struct Asker {
    user: u32,
    groups: Vec<u32>,
    trusted: bool,
}

/// Serves at a path, and for other hosts at an address, until the program ends.
pub(super) fn serve(
    path: &Path,
    far: SocketAddr,
    listener: ClientListener,
) -> Result<(), TarndError> {
    let fault = |e: anyhow::Error| TarndError::new(Exit::State, e);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))
            .map_err(fault)?;
    }
    // The state folder's lock ensures that no other controller serves here.
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            let text = format!("cannot remove the socket {}", path.display());
            return Err(fault(anyhow::Error::from(e).context(text)));
        }
        _ => {}
    }
    let near = UnixListener::bind(path)
        .with_context(|| format!("cannot listen at {}", path.display()))
        .map_err(fault)?;
    // The kernel names the client; its rights are decided then.
    let open = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(path, open).map_err(|e| fault(e.into()))?;
    let far = TcpListener::bind(far)
        .with_context(|| format!("cannot listen at {far}"))
        .map_err(fault)?;
    let counts = Arc::new(ClientCounts::default());
    let (theirs, of_all) = (listener.clone(), Arc::clone(&counts));
    let accept = move || {
        loop {
            if let Some((stream, _)) = accepted(near.accept()) {
                admit(stream, &theirs, &of_all);
            }
        }
    };
    let pending = PendingConnections::new(MAX_PENDING, MAX_PENDING_OF_ONE);
    let accept_far = move || {
        loop {
            if let Some((stream, from)) = accepted(far.accept()) {
                meet(stream, from, &listener, &counts, &pending);
            }
        }
    };
    start("accept", accept).map_err(fault)?;
    start("accept far", accept_far).map_err(fault)
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let thread = std::thread::Builder::new().name(name.into());
    thread.spawn(work).context("cannot start a thread")?;
    Ok(())
}

fn accepted<T>(result: io::Result<T>) -> Option<T> {
    result
        .inspect_err(|e| {
            tracing::warn!("nobody can be accepted now: {e}");
            std::thread::sleep(PAUSE);
        })
        .ok()
}

/// How many each user has; Slurm's and root's are one.
type ClientCounts = Mutex<BTreeMap<Option<u32>, usize>>;

/// The place of a client, given back at the end, in whatever way that comes.
struct ClientSlot {
    counts: Arc<ClientCounts>,
    /// None for a client that acts for Slurm.
    user: Option<u32>,
}

impl ClientSlot {
    /// `None` when all are taken.
    fn take(counts: &Arc<ClientCounts>, user: Option<u32>) -> Option<Self> {
        let mut all = counts.lock().unwrap_or_else(PoisonError::into_inner);
        let of_users: usize = all
            .iter()
            .filter(|(who, _)| who.is_some())
            .map(|(_, n)| n)
            .sum();
        let own = all.entry(user).or_default();
        let is_full = match user {
            None => *own >= MAX_CLIENTS,
            Some(_) => *own >= MAX_OF_USER || of_users >= MAX_USERS,
        };
        if is_full {
            return None;
        }
        *own += 1;
        let counts = Arc::clone(counts);
        Some(Self { counts, user })
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        let mut all = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = all.get_mut(&self.user) {
            *own -= 1;
            if *own == 0 {
                all.remove(&self.user);
            }
        }
    }
}

/// A place for a client; `None` when all are taken. Whether the client acts for Slurm.
fn place(
    listener: &ClientListener,
    counts: &Arc<ClientCounts>,
    user: u32,
) -> (bool, Option<ClientSlot>) {
    let trusted = user == 0 || user == listener.slurm;
    (
        trusted,
        ClientSlot::take(counts, (!trusted).then_some(user)),
    )
}

fn too_many() -> ControllerReply {
    let text = "too many ask at a time: try again in a moment";
    ControllerReply::Refused(RequestError::new(Code::Busy, text))
}

/// Somebody of this host.
fn admit(stream: UnixStream, listener: &ClientListener, counts: &Arc<ClientCounts>) {
    let Ok(peer) = peer(&stream) else {
        return;
    };
    let (user, group) = (peer.uid, peer.gid);
    let (trusted, Some(place)) = place(listener, counts, user) else {
        let _ = send_reply(&stream, &too_many());
        return;
    };
    let listener = listener.clone();
    let talk = move || {
        let _place = place;
        let _ = converse(&stream, &listener, (user, group), trusted);
    };
    if let Err(e) = start("client", talk) {
        tracing::warn!("a client cannot be served: {e}");
    }
}

/// A client on another host, which has to prove who it is.
fn meet(
    stream: TcpStream,
    from: SocketAddr,
    listener: &ClientListener,
    counts: &Arc<ClientCounts>,
    pending: &PendingConnections,
) {
    let stranger = match pending.admit(&stream, from) {
        Ok((stranger, _)) => stranger,
        Err(e) => {
            tracing::warn!("nobody can be accepted now: {e}");
            std::thread::sleep(PAUSE);
            return;
        }
    };
    let (listener, counts) = (listener.clone(), Arc::clone(counts));
    let talk = move || {
        let met = accept_anyone(stream, CONTROLLER, &listener.munge);
        drop(stranger);
        let ended = met.and_then(|(reader, writer, who)| {
            converse_far((reader, writer), &listener, &counts, (who.user, who.group))
        });
        if let Err(why) = ended {
            tracing::info!(%from, "a client of another host: {why}");
        }
    };
    if let Err(e) = start("client", talk) {
        tracing::warn!("a client cannot be served: {e}");
    }
}

/// One question and its answer.
fn converse(
    stream: &UnixStream,
    listener: &ClientListener,
    (user, group): (u32, u32),
    trusted: bool,
) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let ask = match receive_request(stream)? {
        Ok(ask) => ask,
        Err(why) => return send_reply(stream, &ControllerReply::Refused(why)),
    };
    let mut groups = peer_groups(stream)?;
    groups.push(group);
    let asker = Asker {
        user,
        groups,
        trusted,
    };
    stream.set_read_timeout(Some(Duration::from_millis(1)))?;
    let is_gone = || matches!((&*stream).read(&mut [0]), Ok(0));
    match answer(listener, asker, ask, is_gone) {
        Some(reply) => send_reply(stream, &reply),
        None => Ok(()),
    }
}

/// The same with a client on another host, whose groups are those that this host knows.
fn converse_far(
    (mut reader, mut writer): (MungeSessionReader, MungeSessionWriter),
    listener: &ClientListener,
    counts: &Arc<ClientCounts>,
    (user, group): (u32, u32),
) -> Result<(), SessionError> {
    let (trusted, Some(_place)) = place(listener, counts, user) else {
        return writer.send(&too_many());
    };
    let ask = reader.receive_at_most(MAX_ASK, TIMEOUT)?;
    let asker = Asker {
        user,
        groups: tarn_sys::users::groups_of(user, group)?,
        trusted,
    };
    let stream = Arc::clone(reader.socket());
    stream.set_read_timeout(Some(Duration::from_millis(1)))?;
    let is_gone = || match stream.peek(&mut [0]) {
        Ok(read) => read == 0,
        Err(e) => !matches!(
            e.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
        ),
    };
    match answer(listener, asker, ask, is_gone) {
        Some(reply) => writer.send(&reply),
        None => Ok(()),
    }
}

/// The controller's answer, when there is one; `None` when the client has gone meanwhile.
fn answer(
    listener: &ClientListener,
    asker: Asker,
    ask: ControllerRequest,
    mut is_gone: impl FnMut() -> bool,
) -> Option<ControllerReply> {
    let (reply, answer) = sync_channel(1);
    let input = ControllerInput::Request {
        user: asker.user,
        groups: asker.groups,
        trusted: asker.trusted,
        ask,
        reply,
    };
    listener.inputs.send(input).ok()?;
    loop {
        match answer.recv_timeout(LOOK) {
            Ok(reply) => return Some(reply),
            // Another client asks about the same job now, or the controller ends.
            Err(RecvTimeoutError::Disconnected) => {
                let text = "somebody else waits for this job's stage now, or the controller ends: ask again";
                return Some(ControllerReply::Refused(RequestError::new(
                    Code::Lost,
                    text,
                )));
            }
            // A client that has gone is not waited for; its job's stage continues.
            Err(RecvTimeoutError::Timeout) if is_gone() => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// A client's request; the client gets the inner error as reply.
fn receive_request(mut stream: &UnixStream) -> io::Result<Result<ControllerRequest, RequestError>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_ASK {
        let text = format!("a question of more than {MAX_ASK} bytes");
        return Ok(Err(RequestError::new(Code::Invalid, text)));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(decode(&body).map_err(|e| RequestError::new(Code::Invalid, e.to_string())))
}

fn send_reply(mut stream: &UnixStream, reply: &ControllerReply) -> io::Result<()> {
    let frame = encode(reply).map_err(io::Error::other)?;
    stream.write_all(&frame)
}
