//! Bytes by RMA: a server opens *windows* onto its files, and a client reads from them, or writes to them, without the server's doing. libfabric does
//! it, through a C shim that is loaded when somebody asks for it; all else goes over the stream as ever.
//!
//! An endpoint makes progress only while somebody calls it. One thread does, while windows are open or read from, and a moment
//! longer: an idle daemon idles.

mod bare;
mod ranks;
mod shared;
mod shim;
mod window_client;

pub use bare::{BareWindow, RawWindowClient};
pub(crate) use shim::RmaDirection;
pub(crate) use window_client::WindowClient;

use crate::lock;
use shim::{FileWindow, RmaEndpoint, RmaOperation, Shim};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tarn_proto::data::Window;
use tarn_stream::random;
use tarn_sys::signals::{Blocked, Handlers};
use tarn_types::account;

/// The library's file name, beside the program or library that contains tarn, or where it is installed.
pub const LIBRARY: &str = "libtarnfabric.so";

/// The library: the path in `$TARN_FABRIC_LIBRARY`; else the one beside the program, or the library, that contains this code, or
/// where `make install` puts it for either.
///
/// # Errors
/// When the program does not find itself.
pub fn library() -> io::Result<PathBuf> {
    if let Some(named) = std::env::var_os("TARN_FABRIC_LIBRARY").filter(|v| !v.is_empty()) {
        return Ok(named.into());
    }
    let own = tarn_sys::process::own_file()?;
    let beside = own.with_file_name(LIBRARY);
    let installed = ["tarn", "../lib/tarn"].map(|folder| own.with_file_name(folder).join(LIBRARY));
    let all = [&beside].into_iter().chain(&installed);
    let there = all.into_iter().find(|path| path.exists());
    Ok(there.unwrap_or(&beside).clone())
}
/// Addresses of this host with an endpoint.
const ADDRESSES: usize = 16;
/// Peers that an endpoint knows.
const PEERS: usize = 4096;
/// Bytes of one read.
const BLOCK: usize = 512 << 10;
/// Reads of one window under way.
const AHEAD: usize = 3;
/// One turn of the thread that makes progress.
const TURN: Duration = Duration::from_millis(20);
/// So long it continues when nobody needs it: the next one comes soon.
const LINGER: Duration = Duration::from_secs(1);
/// The same in a program that computes.
const SHORT_LINGER: Duration = Duration::from_millis(20);
/// Before a read that could not be begun is tried again.
const AGAIN: Duration = Duration::from_millis(1);
/// A wait before somebody looks whether to continue waiting.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes of the stack on which an endpoint is opened: libfabric asks every provider.
const STACK: usize = 8 << 20;

/// The reason why libfabric, or a window, cannot be used, and the remedy, as a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RmaError(String);

impl RmaError {
    pub(crate) fn new(why: impl Display) -> Self {
        Self(why.to_string())
    }
}

/// Opens an endpoint on a thread whose stack is large enough for it.
fn on_stack<T: Send>(open: impl FnOnce() -> Result<T, RmaError> + Send) -> Result<T, RmaError> {
    // Providers may have threads of their own.
    let _blocked = Blocked::new();
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK);
        let opened = thread.spawn_scoped(scope, open);
        let opened =
            opened.map_err(|e| RmaError::new(format_args!("cannot start a thread: {e}")))?;
        let panicked = |_| RmaError::new("an error inside tarn");
        opened.join().map_err(panicked).and_then(|opened| opened)
    })
}

/// The address of an endpoint on a host that is reached at `at`, which a socket of both kinds of addresses may have written in
/// the other kind's way; shm has no addresses.
fn source(provider: &str, at: IpAddr) -> Option<IpAddr> {
    (!shared::is_shm(provider)).then_some(at.to_canonical())
}

/// The purpose of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EndpointRole {
    /// Windows are open there, and of tarnd's nodes those of others are read.
    Shows,
    /// A rank reads and writes the windows of others: it is closed when something is given up.
    Accesses,
}

/// libfabric, with one provider.
pub struct Rma {
    shim: Arc<Shim>,
    library: PathBuf,
    provider: String,
    /// As `--transport` has it.
    named: String,
    domains: Mutex<BTreeMap<(IpAddr, EndpointRole), Arc<Domain>>>,
    given_up: AtomicBool,
    /// It is part of a program that is not tarn's.
    guest: bool,
    /// Memory of reads and writes that are over.
    spare: Mutex<Vec<Vec<u8>>>,
}

impl std::fmt::Debug for Rma {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rma({})", self.provider)
    }
}

impl Rma {
    /// Loads the shim and opens the provider once, to see that it can be.
    ///
    /// # Errors
    /// The reason why it cannot be used, and the remedy.
    pub fn load(library: &Path, provider: &str) -> Result<Arc<Self>, RmaError> {
        Self::opened(library, provider, false)
            .map_err(|why| RmaError::new(format_args!("{why}, or leave out --transport")))
    }

    /// The same in a program that is not tarn's: its signal handlers stay as they are, also where libfabric would change them.
    /// Files that are opened must not be made shorter meanwhile: no handler of SIGBUS is there.
    ///
    /// # Errors
    /// As [`Rma::load`].
    pub fn load_as_guest(library: &Path, provider: &str) -> Result<Arc<Self>, RmaError> {
        Self::opened(library, provider, true)
    }

    fn opened(library: &Path, provider: &str, guest: bool) -> Result<Arc<Self>, RmaError> {
        if let Some(why) = shared::why_not(provider) {
            return Err(RmaError(why));
        }
        let _handlers = guest.then(Handlers::keep);
        let shim = Shim::load(library).map_err(|why| {
            RmaError::new(format_args!(
                "libfabric cannot be used ({why}): `make build` makes {LIBRARY} where libfabric-dev is installed; put it beside tarnd or libtarn, or in lib/tarn"
            ))
        })?;
        let rma = Self {
            shim,
            library: library.to_owned(),
            provider: provider.to_owned(),
            named: format!("libfabric:{provider}"),
            domains: Mutex::default(),
            given_up: AtomicBool::new(false),
            guest,
            spare: Mutex::default(),
        };
        rma.endpoint(None).map_err(|why| {
            RmaError::new(format_args!("{why}; `fi_info -l` names the providers"))
        })?;
        Ok(Arc::new(rma))
    }

    /// The library that was loaded.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Which of libfabric.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    fn endpoint(&self, at: Option<IpAddr>) -> Result<RmaEndpoint, RmaError> {
        let _handlers = self.guest.then(Handlers::keep);
        on_stack(|| RmaEndpoint::open(&self.shim, &self.provider, at))
    }

    /// The endpoint at an address of this host, if there can be one.
    pub(crate) fn domain(&self, at: IpAddr) -> Option<Arc<Domain>> {
        self.domain_at(at, EndpointRole::Shows).ok()
    }

    fn domain_at(&self, at: IpAddr, side: EndpointRole) -> Result<Arc<Domain>, RmaError> {
        if self.given_up.load(Ordering::Relaxed) {
            return Err(RmaError::new("libfabric is not used any more"));
        }
        let node = source(&self.provider, at);
        let at = node.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        let mut domains = lock(&self.domains);
        if let Some(domain) = domains.get(&(at, side)) {
            return Ok(Arc::clone(domain));
        }
        if domains.len() >= ADDRESSES {
            return Err(RmaError::new("this host has too many addresses"));
        }
        let endpoint = match self.endpoint(node) {
            // The network's own addresses may be others than those of its streams.
            Err(why) if self.guest && node.is_some() => self.endpoint(None).map_err(|_| why),
            endpoint => endpoint,
        }?;
        let domain = Arc::new(Domain {
            name: endpoint.name().map_err(RmaError::new)?,
            endpoint: Arc::new(endpoint),
            peers: Mutex::default(),
            pump: Mutex::default(),
            guest: self.guest,
        });
        domains.insert((at, side), Arc::clone(&domain));
        Ok(domain)
    }

    /// Threads that make progress at this moment.
    pub fn threads(&self) -> usize {
        let domains = lock(&self.domains);
        domains.values().filter(|d| lock(&d.pump).runs).count()
    }

    /// Closes its endpoints: all goes over streams from now on. Files that a provider has made on this host are removed.
    pub fn close(&self) {
        self.given_up.store(true, Ordering::Relaxed);
        for domain in lock(&self.domains).values() {
            domain.endpoint.stop();
        }
    }
}

impl Drop for Rma {
    fn drop(&mut self) {
        self.close();
    }
}

/// An endpoint, its progress, and the peers that it knows.
pub(crate) struct Domain {
    endpoint: Arc<RmaEndpoint>,
    name: Box<[u8]>,
    peers: Mutex<HashMap<Box<[u8]>, u64>>,
    pump: Mutex<Pump>,
    guest: bool,
}

#[derive(Default)]
struct Pump {
    users: usize,
    runs: bool,
}

/// Somebody needs progress.
struct User(Arc<Domain>);

impl Drop for User {
    fn drop(&mut self) {
        account::sub(&mut lock(&self.0.pump).users, 1, "users of an endpoint");
    }
}

impl Domain {
    fn user(self: &Arc<Self>) -> io::Result<User> {
        let mut pump = lock(&self.pump);
        if !pump.runs {
            let domain = Arc::clone(self);
            // Signals are the program's.
            let _blocked = Blocked::new();
            let thread = std::thread::Builder::new().name("tarn-rma".into());
            thread.spawn(move || domain.work())?;
            pump.runs = true;
        }
        pump.users += 1;
        Ok(User(Arc::clone(self)))
    }

    fn work(&self) {
        let mut needed = Instant::now();
        let linger = match self.guest {
            true => SHORT_LINGER,
            false => LINGER,
        };
        loop {
            let worked = self.endpoint.progress(TURN);
            let mut pump = lock(&self.pump);
            if pump.users > 0 {
                needed = Instant::now();
            }
            if worked.is_err() || needed.elapsed() > linger {
                pump.runs = false;
                return;
            }
        }
    }

    /// Opens a window onto a stretch (offset and length) of a file, to be read or written too, which ends a stream when the file is found to
    /// have become shorter. Progress is made as long as it is open.
    pub(crate) fn open(
        self: &Arc<Self>,
        file: BorrowedFd<'_>,
        stretch: (u64, u64),
        rights: (bool, Option<BorrowedFd<'_>>),
    ) -> io::Result<(ServedWindow, Window)> {
        let user = self.user()?;
        let (opening, window) = self.window(file, stretch, rights)?;
        let opened = ServedWindow {
            _opening: opening,
            _user: user,
        };
        Ok((opened, window))
    }

    /// The same, and it is for others to have progress made.
    fn window(
        &self,
        file: BorrowedFd<'_>,
        stretch: (u64, u64),
        rights: (bool, Option<BorrowedFd<'_>>),
    ) -> io::Result<(FileWindow, Window)> {
        // Nobody finds it by guessing, where the provider lets one choose.
        let secret = random()?;
        let wanted = u64::from_le_bytes(std::array::from_fn(|i| secret[i]));
        if !self.guest {
            self.endpoint.guard()?;
        }
        let (opening, from, key) = self.endpoint.window(file, stretch, rights, wanted)?;
        let name = self.name.clone();
        Ok((opening, Window { name, from, key }))
    }

    /// Whether it has not been given up.
    pub(crate) fn works(&self) -> bool {
        self.endpoint.is_open().is_ok()
    }

    fn peer(&self, name: &[u8]) -> io::Result<u64> {
        let mut peers = lock(&self.peers);
        if let Some(peer) = peers.get(name) {
            return Ok(*peer);
        }
        if peers.len() >= PEERS {
            return Err(io::Error::other("it knows too many peers"));
        }
        let peer = self.endpoint.peer(name)?;
        peers.insert(name.into(), peer);
        Ok(peer)
    }
}

/// A window that is open.
pub(crate) struct ServedWindow {
    _opening: FileWindow,
    _user: User,
}

/// A peer's window being read, from its beginning to its end.
pub(crate) struct WindowReader {
    domain: Arc<Domain>,
    _user: User,
    peer: u64,
    from: u64,
    key: u64,
    /// Bytes that are not requested yet.
    left: u64,
    flights: VecDeque<(Arc<RmaOperation>, usize)>,
    landed: Vec<u8>,
    unread: std::ops::Range<usize>,
    spare: Vec<Vec<u8>>,
}

impl WindowReader {
    /// `spare` is memory of an earlier one.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        window: &Window,
        len: u64,
        spare: Vec<Vec<u8>>,
    ) -> io::Result<Self> {
        Ok(Self {
            _user: domain.user()?,
            peer: domain.peer(&window.name)?,
            domain: Arc::clone(domain),
            from: window.from,
            key: window.key,
            left: len,
            flights: VecDeque::new(),
            landed: Vec::new(),
            unread: 0..0,
            spare,
        })
    }

    /// Reads some bytes. `WouldBlock`: none came for a moment.
    pub(crate) fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.domain.endpoint.is_open()?;
        self.ask()?;
        if self.unread.is_empty() {
            let Some((flight, len)) = self.flights.front() else {
                std::thread::sleep(AGAIN);
                return Err(io::ErrorKind::WouldBlock.into());
            };
            let (landing, landed) = flight.wait(LOOK).ok_or(io::ErrorKind::WouldBlock)?;
            landed?;
            self.unread = 0..*len;
            self.flights.pop_front();
            let before = std::mem::replace(&mut self.landed, landing);
            self.spare.push(before);
            self.ask()?;
        }
        let n = self.unread.len().min(out.len());
        let from = self.unread.start;
        out[..n].copy_from_slice(&self.landed[from..from + n]);
        self.unread.start += n;
        Ok(n)
    }

    fn ask(&mut self) -> io::Result<()> {
        while self.left > 0 && self.flights.len() < AHEAD {
            let mut landing = self.spare.pop().unwrap_or_default();
            landing.resize(BLOCK, 0);
            let len = self.left.min(BLOCK as u64) as usize;
            let at = (self.from, self.key);
            match self
                .domain
                .endpoint
                .begin(RmaDirection::Read, self.peer, at, landing, len)
            {
                Ok(flight) => {
                    self.flights.push_back((flight, len));
                    // Providers may count from anywhere, and a peer may send anything: the read shows.
                    self.from = self.from.wrapping_add(len as u64);
                    self.left -= len as u64;
                }
                Err((landing, e)) => {
                    self.spare.push(landing);
                    return match e.kind() {
                        io::ErrorKind::WouldBlock => Ok(()),
                        _ => Err(e),
                    };
                }
            }
        }
        Ok(())
    }

    /// Its memory, for the next one.
    pub(crate) fn end(mut self) -> Vec<Vec<u8>> {
        self.spare.push(self.landed);
        self.spare
    }
}
