//! Connections that come in. A connection is a *stranger* until it has proven itself; when there are too many of them the newest
//! takes the place of the oldest. Then a member's goes to the hub, and a caller's is served here.

use crate::greet::{self, ConnectionRole, GreetingReply, RankGreeting};
use crate::line::malformed;
use crate::socket::{RankSocket, wait};
use crate::state::{IncomingConnection, MeetingContext};
use crate::wire::{MAX_REQUEST, RankRequest, short};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::fstat;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tarn_ports::RankServiceError::{self, Unserved};
use tarn_ports::{KeepAliveGuard, OneSided, RankService};
use tarn_sys::signals::Blocked;
use tarn_types::strangers::sent_away;

/// Time for a peer that connects to send its greeting.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// A request or an answer that makes no progress for so long ends the connection.
const STALL: Duration = Duration::from_secs(30);
/// A connection without a request for so long gives its memory back.
const IDLE: Duration = Duration::from_secs(1);
/// Connections at one time that have not proven themselves.
const MAX_STRANGERS: usize = 128;
/// Connections of each rank at one time, more than it has threads that call.
const MAX_EACH: usize = 16;
/// The name of its threads.
pub(crate) const THREAD: &str = "tarn-rank-call";

/// Gives a connection a thread.
pub(crate) fn start(
    shared: &Arc<MeetingContext>,
    socket: RankSocket,
    from: IpAddr,
) -> io::Result<()> {
    let socket = Arc::new(socket);
    let mut state = shared.lock();
    if state.leave.is_some() {
        return Ok(());
    }
    let strangers = state.incoming.iter().filter(|(_, c)| !c.proven);
    let strangers: Vec<_> = strangers.map(|(n, c)| (*n, c.from)).collect();
    if strangers.len() >= MAX_STRANGERS
        && let Some(oldest) = sent_away(strangers)
        && let Some(c) = state.incoming.get_mut(&oldest)
    {
        // It has its thread for a moment more, but counts no longer.
        c.proven = true;
        c.socket.close();
    }
    if state.incoming.len() >= shared.ranks as usize * MAX_EACH + 2 * MAX_STRANGERS {
        return Err(io::ErrorKind::QuotaExceeded.into());
    }
    let number = state.next_incoming;
    state.next_incoming += 1;
    let incoming = IncomingConnection {
        from,
        socket: Arc::clone(&socket),
        proven: false,
    };
    state.incoming.insert(number, incoming);
    drop(state);
    let theirs = Gone {
        shared: Arc::clone(shared),
        number,
    };
    let named = std::thread::Builder::new().name(THREAD.into());
    named.spawn(move || {
        // A caller that is gone must not cost the program its life.
        Blocked::new().stay();
        // The caller sees its connection close: nobody else needs to know.
        let _ = begin(&theirs, socket);
    })?;
    Ok(())
}

/// Takes a connection off the list when its thread ends, in whatever way.
struct Gone {
    shared: Arc<MeetingContext>,
    number: u64,
}

impl Gone {
    fn take(&self) {
        self.shared.lock().incoming.remove(&self.number);
        self.shared.changed.notify_all();
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        self.take();
    }
}

fn begin(place: &Gone, socket: Arc<RankSocket>) -> io::Result<()> {
    let shared = &place.shared;
    let until = Instant::now() + HANDSHAKE;
    greet::check(&socket, &shared.key, until)?;
    let who = RankGreeting::receive(&socket, until)?;
    if who.role == ConnectionRole::Member && shared.rank == 0 {
        place.take();
        let socket = Arc::try_unwrap(socket).map_err(|_| io::ErrorKind::Interrupted)?;
        shared.lock().members.push((who, socket));
        shared.wake();
        return Ok(());
    }
    let ours = who.role == ConnectionRole::Caller
        && who.identity == shared.identity
        && (who.ranks, who.rank < who.ranks) == (shared.ranks, true);
    let answer = match ours {
        true => GreetingReply::Welcome(shared.identity),
        false => {
            GreetingReply::Refused("it is a rank of another program, or of its last start".into())
        }
    };
    socket.send_all(&answer.encode(), b"", until)?;
    if !ours {
        return Ok(());
    }
    if let Some(c) = shared.lock().incoming.get_mut(&place.number) {
        c.proven = true;
    }
    serve(shared, &socket, who.rank)
}

/// Answers one request after the other. The time between them ends with the meeting of either, or the caller's node.
fn serve(shared: &MeetingContext, socket: &RankSocket, of: u32) -> io::Result<()> {
    let mut request = Vec::new();
    // The window by which the caller reads or writes by itself.
    let mut held: Option<KeepAliveGuard> = None;
    loop {
        if held.is_some() {
            wait(socket.as_fd(), PollFlags::IN, Some(Instant::now() + STALL))?;
        } else if wait(socket.as_fd(), PollFlags::IN, Some(Instant::now() + IDLE)).is_err() {
            request = Vec::new();
            wait(socket.as_fd(), PollFlags::IN, None)?;
        }
        let mut len = [0; 4];
        socket.receive_all(&mut len, Instant::now() + STALL)?;
        let len = u32::from_le_bytes(len) as usize;
        if len > MAX_REQUEST {
            return Err(malformed());
        }
        // As large as the largest so far: to clear it each time would cost as much as to copy.
        request.resize(request.len().max(len), 0);
        socket.receive_all(&mut request[..len], Instant::now() + STALL)?;
        let query = RankRequest::parse(&request[..len]).ok_or_else(malformed)?;
        held = match query {
            // Where that does not work the caller waits in vain, for a while.
            RankRequest::Comes => attend(shared, socket).ok(),
            _ => None,
        };
        if matches!(query, RankRequest::Comes | RankRequest::Seen) {
            continue;
        }
        let host = shared.lock().host.clone();
        let host = host.ok_or(Unserved("it does not serve others yet"));
        let done = host.and_then(|host| found(shared, socket, &*host, of, &query));
        let until = Instant::now() + STALL;
        match done {
            Ok(ServedData::Words(words)) => socket.send_all(&head(0, words.len()), &words, until),
            Ok(ServedData::Shown(hold, words)) => {
                held = Some(hold);
                socket.send_all(&head(0, words.len()), &words, until)
            }
            Ok(ServedData::File(file, at, len)) => {
                socket.send_all(&head(0, len), b"", until)?;
                socket.send_file(&file, at, len, until)
            }
            Err(why) => {
                let text = why.to_string();
                let text = short(&text);
                socket.send_all(&head(1, text.len()), text, until)
            }
        }?;
    }
}

/// Carries out a rank's request.
fn found(
    shared: &MeetingContext,
    socket: &RankSocket,
    host: &dyn RankService,
    of: u32,
    query: &RankRequest<'_>,
) -> Result<ServedData, RankServiceError> {
    Ok(match *query {
        RankRequest::Grant(generation, bytes) => {
            let name = host.grant(of, generation, bytes)?;
            ServedData::Words(short(&name).to_vec())
        }
        RankRequest::Put(generation, at, bytes) => {
            let checksum = host.put(of, generation, at, bytes)?;
            ServedData::Words(checksum.to_le_bytes().to_vec())
        }
        RankRequest::Landed(generation, at, bytes) => {
            let checksum = host.landed(of, generation, at, bytes)?;
            ServedData::Words(checksum.to_le_bytes().to_vec())
        }
        RankRequest::Fetch(at, len, medium) => {
            let (file, stretch) = stretch(host, medium, at, len)?;
            ServedData::File(file, stretch.start, len)
        }
        RankRequest::Window(generation) => {
            let (one_sided, here) = means(shared, socket)?;
            let mut words = Vec::new();
            host.window(of, generation, &mut |file, size| {
                let (hold, opened) = one_sided.open(here, file, 0..size, true)?;
                words = opened.into();
                Ok(hold)
            })?;
            ServedData::Words(words)
        }
        RankRequest::Show(at, len, medium) => {
            let (one_sided, here) = means(shared, socket)?;
            let (file, stretch) = stretch(host, medium, at, len)?;
            let shown = one_sided.open(here, file.as_fd(), stretch, false);
            let (hold, words) = shown?;
            let attends = one_sided.attend(here)?;
            ServedData::Shown(Box::new((hold, attends)), words.into())
        }
        RankRequest::Comes | RankRequest::Seen => ServedData::Words(Vec::new()),
    })
}

/// A file that has these bytes.
fn stretch(
    host: &dyn RankService,
    medium: &str,
    at: u64,
    len: usize,
) -> Result<(OwnedFd, Range<u64>), RankServiceError> {
    let file = host.file(medium)?;
    let size = fstat(&file).map_err(io::Error::from)?.st_size as u64;
    let end = at.checked_add(len as u64).filter(|end| *end <= size);
    Ok((file, at..end.ok_or(Unserved("it ends before that"))?))
}

/// The means by which the caller and this rank may reach each other, beside streams.
fn means<'a>(
    shared: &'a MeetingContext,
    socket: &RankSocket,
) -> Result<(&'a dyn OneSided, IpAddr), RankServiceError> {
    let one_sided = shared.one_sided.get();
    let one_sided = one_sided.ok_or(Unserved("it goes by TCP alone"))?;
    let here = socket.here().ok_or(Unserved("they are on one node"))?;
    Ok((&**one_sided, here))
}

/// Keeps the caller's transfers in progress while the result is held.
fn attend(
    shared: &MeetingContext,
    socket: &RankSocket,
) -> Result<KeepAliveGuard, RankServiceError> {
    let (one_sided, here) = means(shared, socket)?;
    Ok(one_sided.attend(here)?)
}

/// The answer to a request.
enum ServedData {
    Words(Vec<u8>),
    /// Words that name the window, which is open as long as this is held.
    Shown(KeepAliveGuard, Vec<u8>),
    /// Bytes of a file, from there on, so many.
    File(OwnedFd, u64, usize),
}

/// The head of an answer.
fn head(status: u8, len: usize) -> [u8; 5] {
    let [a, b, c, d] = ((1 + len) as u32).to_le_bytes();
    [a, b, c, d, status]
}
