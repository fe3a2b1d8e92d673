//! A rank that has come.

use crate::folder::{self, AGAIN, PrivateFolder, RankLock, TIMEOUT};
use crate::greet::{ConnectionRole, GreetingReply, PROOF, ProgramKey, RankGreeting, random};
use crate::hub::Hub;
use crate::line::{FrameConnection, malformed};
use crate::peer::{RankCall, RankPeer, open};
use crate::serve::THREAD;
use crate::socket::{Listener, RankSocket, deadline};
use crate::state::{MeetingContext, rank};
use crate::turns::Turns;
use crate::wire::{FrameFields, FromHub};
use rustix::event::{EventfdFlags, eventfd};
use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tarn_ports::{Carried, OneSided, RankProgress, RankService, Ranks, RanksError};

/// Ranks of a program: the hub has a connection to each.
const MAX_RANKS: u32 = 16_384;
/// Bytes of a node's name, and of its switches.
const MAX_NODE: usize = u8::MAX as usize;
/// How long the end of this rank waits for others that are slow to notice it.
const LINGER: Duration = Duration::from_secs(2);

/// The rank that joins, and where to meet.
pub struct Options {
    /// A folder in this node's memory, for this program alone. It is made, for its user only, if it is not there.
    pub folder: PathBuf,
    /// The number of this rank.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// HOST:PORT at which rank 0 listens, where ranks are on several nodes.
    pub meet: Option<String>,
    /// The node: ranks that fail together have the same. `None`: this node, by its name and the id of its last boot.
    pub node: Option<String>,
    /// The switches over this node ([`Ranks::switches`]); `None`: not known.
    pub switches: Option<String>,
    /// The secret that all ranks know and nobody else: needed with `meet`.
    pub key: Option<[u8; PROOF]>,
    /// How long ranks that come late are waited for.
    pub timeout: Duration,
}

/// A rank among the others of its program, until it is dropped.
pub struct Meeting {
    running: RankThreads,
    peers: Vec<RankPeer>,
    place: RankLock,
}

impl std::fmt::Debug for Meeting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.rank(), self.ranks())
    }
}

fn invalid(what: impl Into<String>) -> RanksError {
    RanksError::Invalid(what.into())
}

fn io_error(doing: &'static str) -> impl Fn(io::Error) -> RanksError {
    move |e| invalid(format!("cannot {doing}: {e}"))
}

fn check(options: &Options) -> Result<(), RanksError> {
    let Options { rank, ranks, .. } = *options;
    if ranks > MAX_RANKS || rank >= ranks {
        return Err(invalid(format!(
            "rank {rank} of {ranks}: ranks count from 0, and there are 1 to {MAX_RANKS}"
        )));
    }
    match &options.meet {
        Some(_) if options.key.is_none() => Err(invalid(
            "ranks on several nodes need a key: without one anybody could come between them",
        )),
        Some(meet) => host_and_port(meet).map(drop),
        None => Ok(()),
    }
}

fn host_and_port(meet: &str) -> Result<(&str, u16), RanksError> {
    let parts = meet.rsplit_once(':');
    let parts = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
    parts.ok_or_else(|| invalid(format!("`{meet}` is not the HOST:PORT of rank 0")))
}

impl Meeting {
    /// Comes together with all other ranks.
    ///
    /// # Errors
    /// When another process has this rank, when rank 0 is of another program or does not let this one in, when others do not come
    /// within the time, when the folder or the addresses cannot be used.
    pub fn join(options: Options) -> Result<Arc<Self>, RanksError> {
        check(&options)?;
        let until = deadline(options.timeout);
        let node = options.node.clone().unwrap_or_else(folder::node);
        if node.len() > MAX_NODE {
            return Err(invalid(format!(
                "a node's name has at most {MAX_NODE} bytes"
            )));
        }
        let switches = options.switches.as_deref().unwrap_or_default();
        if switches.len() > MAX_NODE {
            return Err(invalid(format!(
                "the switches over a node have at most {MAX_NODE} bytes"
            )));
        }
        let place = PrivateFolder::open(&options.folder)?.take(options.rank, until)?;
        let mut listeners = vec![place.listen()?];
        let key = ProgramKey(options.key.unwrap_or_default());
        // The hub has a line to its own rank as to any other.
        let (line, identity, hub, address) = if options.rank == 0 {
            if let Some(meet) = &options.meet {
                listeners.push(listen(meet, until)?);
            }
            let identity = random().map_err(io_error("make an identity"))?;
            let (ours, theirs) = RankSocket::pair().map_err(io_error("make a socket"))?;
            let mut hub = Hub::new(options.ranks, identity);
            hub.admit(&member(&options), theirs);
            hub.flush();
            GreetingReply::receive(&ours, until).map_err(io_error("meet"))?;
            (ours, identity, Some(hub), options.meet.clone())
        } else {
            let (line, identity, here) = meet_hub(&options, &place, &key, until)?;
            let mut address = None;
            if let (Some(meet), Some(here)) = (&options.meet, here) {
                let (listener, at) = listen_beside_hub(meet, here)?;
                listeners.push(listener);
                address = Some(at);
            }
            (line, identity, None, address)
        };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(|e| io_error("make a descriptor")(e.into()))?;
        let shared = MeetingContext::new((options.rank, options.ranks), identity, key, wake);
        let shared = Arc::new(shared);
        let turns = Turns {
            shared: Arc::clone(&shared),
            listeners,
            line: Some(FrameConnection::new(line, FromHub::MAX)),
            hub,
        };
        turns.start().map_err(io_error("start a thread"))?;
        let running = RankThreads(shared);
        let left = until.saturating_duration_since(Instant::now());
        let all = running
            .0
            .exchange(&about(&node, switches, &address), left, "come");
        let all = all.map_err(|e| match e {
            RanksError::TimedOut { who, doing, .. } => late(who, doing, &options),
            e => e,
        })?;
        let peers = all.iter().map(|about| read_about(about));
        let peers: Option<Vec<_>> = peers.collect();
        Ok(Arc::new(Self {
            peers: peers.ok_or_else(|| io_error("meet")(malformed()))?,
            running,
            place,
        }))
    }

    /// Makes bytes go to ranks of other nodes, and come from there, by this, as far as those have the same; before others are
    /// served. Where that does not work all goes by streams ([`Meeting::report_streams_only`]).
    pub fn reach_by(&self, one_sided: Arc<dyn OneSided>) {
        // A second one is not needed.
        drop(self.shared().one_sided.set(one_sided));
    }

    /// All bytes go by streams, although they were to go otherwise: [`Ranks::detour`] returns why.
    pub fn report_streams_only(&self, why: impl std::fmt::Display) {
        self.shared().note_detour(format!(
            "copies go to other nodes and come back by TCP: {why}"
        ));
    }

    fn shared(&self) -> &MeetingContext {
        &self.running.0
    }

    fn call(&self, to: u32, within: Duration) -> Result<RankCall<'_>, RanksError> {
        let peer = self.peers.get(to as usize);
        let peer = peer.ok_or_else(|| invalid(format!("there is no rank {to}")))?;
        let here = peer.node == self.node(self.rank());
        Ok(RankCall {
            shared: self.shared(),
            peer,
            to,
            folder: here.then_some(&self.place.folder),
            within,
            until: Cell::new(deadline(within)),
        })
    }
}

/// Listens on the node of rank 0: others reach this rank as they reach rank 0. Returns the address too.
fn listen_beside_hub(meet: &str, here: IpAddr) -> Result<(Listener, String), RanksError> {
    let (host, _) = host_and_port(meet)?;
    let host = if here.is_loopback() {
        host.to_owned()
    } else {
        here.to_string()
    };
    let (listener, port) = Listener::tcp(&host, 0).map_err(io_error("listen for other nodes"))?;
    let address = if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    Ok((listener, address))
}

/// The bytes that a rank sends the others about itself as it comes.
fn about(node: &str, switches: &str, address: &Option<String>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for text in [node, switches] {
        bytes.push(text.len() as u8);
        bytes.extend(text.as_bytes());
    }
    bytes.extend(address.as_deref().unwrap_or_default().as_bytes());
    bytes
}

fn read_about(bytes: &[u8]) -> Option<RankPeer> {
    let mut f = FrameFields(bytes);
    let mut text = || {
        let len = f.u8()?;
        String::from_utf8(f.bytes(usize::from(len))?.to_vec()).ok()
    };
    let (node, switches) = (text()?, text()?);
    let address = String::from_utf8(f.0.to_vec()).ok()?;
    let address = Some(address).filter(|a| !a.is_empty());
    Some(RankPeer::new(node, switches, address))
}

fn late(who: String, doing: &'static str, options: &Options) -> RanksError {
    RanksError::TimedOut {
        who,
        doing,
        seconds: options.timeout.as_secs(),
    }
}

fn member(options: &Options) -> RankGreeting {
    RankGreeting {
        role: ConnectionRole::Member,
        identity: [0; 16],
        rank: options.rank,
        ranks: options.ranks,
        process: std::process::id(),
    }
}

/// Listens where the others look for rank 0, as soon as a dying program has let go of it.
fn listen(meet: &str, until: Instant) -> Result<Listener, RanksError> {
    let (host, port) = host_and_port(meet)?;
    let until = until.min(Instant::now() + TIMEOUT);
    loop {
        match Listener::tcp(host, port) {
            Ok((listener, _)) => return Ok(listener),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                if Instant::now() >= until {
                    let who = format!("something listens at {meet}");
                    return Err(RanksError::Taken { who });
                }
            }
            Err(e) => return Err(invalid(format!("cannot listen at {meet}: {e}"))),
        }
        std::thread::sleep(AGAIN);
    }
}

/// Comes to the hub, which may not be there yet, or not any more: that of a program that is dying refuses.
fn meet_hub(
    options: &Options,
    place: &RankLock,
    key: &ProgramKey,
    until: Instant,
) -> Result<(RankSocket, [u8; 16], Option<IpAddr>), RanksError> {
    let mut refused: Option<(Instant, RanksError)> = None;
    loop {
        let opened = open(
            (key, &member(options)),
            until,
            || match &options.meet {
                Some(meet) => RankSocket::tcp(meet, until).map(|(s, here)| (s, Some(here))),
                None => Ok((place.folder.connect(0)?, None)),
            },
            |e| {
                let again = e.kind() != io::ErrorKind::PermissionDenied;
                if again && e.kind() != io::ErrorKind::TimedOut {
                    // The rank that refused is gone.
                    refused = None;
                }
                again
            },
        );
        let error = match opened {
            Ok((socket, here, answer)) => match answer.of(&rank(0)) {
                Ok(identity) => return Ok((socket, identity, here)),
                Err(e) => e,
            },
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => RanksError::Refused {
                who: rank(0),
                why: e.to_string(),
            },
            Err(e) => {
                let at = options
                    .meet
                    .as_ref()
                    .map(|meet| format!(" (at {meet}: {e})"));
                let who = rank(0) + &at.unwrap_or_default();
                return Err(refused.map_or_else(|| late(who, "come", options), |(_, e)| e));
            }
        };
        let since = refused.map_or_else(Instant::now, |(since, _)| since);
        if Instant::now() >= until.min(since + TIMEOUT) {
            return Err(error);
        }
        refused = Some((since, error));
        std::thread::sleep(AGAIN);
    }
}

impl Ranks for Meeting {
    fn rank(&self) -> u32 {
        self.shared().rank
    }

    fn ranks(&self) -> u32 {
        self.shared().ranks
    }

    fn node(&self, rank: u32) -> &str {
        self.peers.get(rank as usize).map_or("", |p| &p.node)
    }

    fn switches(&self, rank: u32) -> &str {
        let peer = self.peers.get(rank as usize);
        peer.map_or("", |p| &p.switches)
    }

    fn serve(&self, host: Arc<dyn RankService>) {
        self.shared().lock().host = Some(host);
    }

    fn exchange(&self, word: &[u8], within: Duration) -> Result<Vec<Box<[u8]>>, RanksError> {
        self.shared().exchange(word, within, "come to the exchange")
    }

    fn report_progress(&self, progress: RankProgress) {
        self.shared().report_progress(progress);
    }

    fn common_progress(&self) -> RankProgress {
        self.shared().common_progress()
    }

    fn wait(&self, least: RankProgress, within: Duration) -> Result<(), RanksError> {
        self.shared().wait_for(least, within)
    }

    fn grant(
        &self,
        from: u32,
        generation: u64,
        bytes: u64,
        within: Duration,
    ) -> Result<String, RanksError> {
        self.call(from, within)?.grant(generation, bytes)
    }

    fn put(
        &self,
        to: u32,
        generation: u64,
        at: u64,
        bytes: &[u8],
        within: Duration,
    ) -> Result<u64, RanksError> {
        self.call(to, within)?.put(generation, at, bytes)
    }

    fn fetch(
        &self,
        from: u32,
        medium: &str,
        at: u64,
        into: &mut [u8],
        within: Duration,
        arrived: &mut dyn FnMut(&[u8]),
    ) -> Result<(), RanksError> {
        self.call(from, within)?.fetch(medium, at, into, arrived)
    }

    fn carried(&self) -> Carried {
        self.shared().carried.read()
    }

    fn detour(&self) -> Option<String> {
        self.shared().detour().take()
    }
}

/// The threads of a rank. Dropped, they end.
struct RankThreads(Arc<MeetingContext>);

impl Drop for RankThreads {
    fn drop(&mut self) {
        let shared = &self.0;
        let until = Instant::now() + LINGER;
        let mut state = shared.lock();
        state.leave = Some(until);
        let host = state.host.take();
        for c in state.incoming.values() {
            c.socket.close();
        }
        shared.wake();
        // The last reference to the host may end here, and may itself have a rank: not under the lock.
        drop(state);
        drop(host);
        // One of the threads that is waited for may be this one, in a call of the host.
        let own = std::thread::current().name() == Some(THREAD);
        let mut state = shared.lock();
        let mut in_time = true;
        while in_time && !(state.ended && (own || state.incoming.is_empty())) {
            (state, in_time) = shared.wait(state, until + LINGER);
        }
        drop(state);
        if let Some(one_sided) = shared.one_sided.get() {
            one_sided.close();
        }
    }
}
