//! The C shim over libfabric (`shim/tarnfabric.h`), loaded at run time. All that is unsafe of the data plane is here.
#![allow(unsafe_code)]

use super::{RmaError, shared};
use crate::lock;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};
use tarn_proto::data::MAX_NAME;
use tarn_ring::{MemorySpan, ProgramMemory};
use tarn_sys::fault::{MemoryFault, Signal};

/// `TF_VERSION`.
const VERSION: c_int = 3;
/// Bytes that are read of a window before anything else.
const TRIAL: usize = 8;
/// Libraries that a process loads at most: one, but for tests.
const LIBRARIES: usize = 256;
/// Reads and writes whose ends are taken at once.
const DONE: usize = 16;

#[repr(C)]
#[derive(Clone, Copy)]
struct RmaCompletion {
    context: *mut c_void,
    error: c_int,
}

impl RmaCompletion {
    const NONE: Self = Self {
        context: std::ptr::null_mut(),
        error: 0,
    };
}

type Tf = *mut c_void;
type Raw = *mut c_void;

/// Declares the functions of the shim, and how they are found.
macro_rules! functions {
    ($($name:ident: $symbol:literal ($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The library's functions. It is never unloaded.
        pub(super) struct Shim {
            // SAFETY: the caller of each keeps to its description in shim/tarnfabric.h.
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Shim {
            fn find(library: Raw) -> Result<Self, RmaError> {
                $(
                    // SAFETY: the name ends with NUL; the library is open.
                    let $name = unsafe { libc::dlsym(library, $symbol.as_ptr()) };
                    if $name.is_null() {
                        let symbol = $symbol.to_string_lossy();
                        return Err(RmaError::new(format_args!("it lacks {symbol}")));
                    }
                )*
                Ok(Self {
                    $(
                        // SAFETY: a function of the type that shim/tarnfabric.h gives for this version.
                        $name: unsafe { std::mem::transmute::<Raw, unsafe extern "C" fn($($argument),*) $(-> $result)?>($name) },
                    )*
                })
            }
        }
    };
}

functions! {
    version: c"tf_version" () -> c_int;
    deal: c"tf_deal" (usize) -> c_int;
    open: c"tf_open" (*const c_char, *const c_char, *mut Tf, *mut c_char, usize) -> c_int;
    name: c"tf_name" (Tf, *mut c_void, *mut usize) -> c_int;
    peer: c"tf_peer" (Tf, *const c_void, usize, *mut u64) -> c_int;
    window_open: c"tf_window_open" (Tf, c_int, u64, u64, c_int, c_int, u64, *mut Raw, *mut u64, *mut u64) -> c_int;
    window_close: c"tf_window_close" (Raw);
    read: c"tf_read" (Tf, u64, *mut c_void, usize, u64, u64, *mut c_void) -> c_int;
    write: c"tf_write" (Tf, u64, *const c_void, usize, u64, u64, *mut c_void) -> c_int;
    descriptor: c"tf_descriptor" (Tf) -> c_int;
    may_sleep: c"tf_may_sleep" (Tf) -> c_int;
    progress: c"tf_progress" (Tf, c_int, *mut RmaCompletion, usize) -> c_int;
    stop: c"tf_stop" (Tf);
    close: c"tf_close" (Tf);
}

/// The libraries' fault handlers, as addresses: the libraries are loaded for ever, and these are called in a signal handler.
static DEALS: [AtomicUsize; LIBRARIES] = [const { AtomicUsize::new(0) }; LIBRARIES];

/// Deals with a fault in a window, whichever library has it.
fn deal(fault: &MemoryFault<'_>) -> bool {
    let all = DEALS.iter().map(|deal| deal.load(Ordering::SeqCst));
    all.take_while(|deal| *deal != 0).any(|deal| {
        // SAFETY: a `tf_deal`, which may be called in a handler.
        unsafe {
            let deal = std::mem::transmute::<usize, unsafe extern "C" fn(usize) -> c_int>(deal);
            deal(fault.address) != 0
        }
    })
}

fn checked(rc: c_int) -> io::Result<c_int> {
    match rc {
        0.. => Ok(rc),
        _ => Err(io::Error::from_raw_os_error(-rc)),
    }
}

impl Shim {
    /// Has its windows guarded: a file may be cut by somebody else while it is mapped.
    fn guard(&self) -> io::Result<()> {
        let own = self.deal as usize;
        let is_registered = DEALS.iter().any(|slot| {
            let order = Ordering::SeqCst;
            let there = slot.compare_exchange(0, own, order, order);
            there.is_ok() || there == Err(own)
        });
        // libfabric's own provider `shm` handles it as well, to clean up before the process dies.
        match is_registered && Signal::Bus.install_over(deal) {
            true => Ok(()),
            false => Err(io::Error::other(
                "another handler of SIGBUS was installed over tarn's",
            )),
        }
    }

    /// # Errors
    /// Why it cannot be loaded.
    pub(super) fn load(path: &Path) -> Result<Arc<Self>, RmaError> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(RmaError::new)?;
        // SAFETY: the name ends with NUL. The library's code that runs when it is loaded is as safe as the library.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            // SAFETY: after a failure it is a string, until the next call of this thread.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(RmaError::new(why.to_string_lossy()));
        }
        let shim = Self::find(library)?;
        // SAFETY: takes nothing.
        match unsafe { (shim.version)() } {
            VERSION => Ok(Arc::new(shim)),
            other => Err(RmaError::new(format_args!(
                "{} is of version {other}, this program of {VERSION}; use the same release of tarn",
                path.display()
            ))),
        }
    }
}

/// An endpoint of this process.
pub(super) struct RmaEndpoint {
    shim: Arc<Shim>,
    tf: Tf,
    is_shm: bool,
    /// False once it was stopped.
    open: RwLock<bool>,
}

// SAFETY: the shim's functions may be called by several threads at once but for `stop` and `close`: `stop` is called with the
// lock held for writing, `close` by the last owner.
unsafe impl Send for RmaEndpoint {}
// SAFETY: see above.
unsafe impl Sync for RmaEndpoint {}

impl RmaEndpoint {
    /// # Errors
    /// The reason why it cannot be opened.
    pub(super) fn open(
        shim: &Arc<Shim>,
        provider: &str,
        node: Option<IpAddr>,
    ) -> Result<Self, RmaError> {
        let text = |text: &str| CString::new(text).map_err(RmaError::new);
        let is_shm = shared::is_shm(provider);
        let provider = text(provider)?;
        let node = node.map(|n| text(&n.to_string())).transpose()?;
        let node = node.as_ref().map_or(std::ptr::null(), |n| n.as_ptr());
        let (mut tf, mut why) = (std::ptr::null_mut(), [0u8; 400]);
        // SAFETY: strings end with NUL; `tf` and `why` are written to, the latter within its length and with NUL at its end.
        let rc = unsafe {
            let why = why.as_mut_ptr().cast();
            (shim.open)(provider.as_ptr(), node, &raw mut tf, why, 400)
        };
        match rc {
            0 => Ok(Self {
                shim: Arc::clone(shim),
                tf,
                is_shm,
                open: RwLock::new(true),
            }),
            _ => {
                let why = CStr::from_bytes_until_nul(&why).map(CStr::to_string_lossy);
                Err(why.map_or_else(RmaError::new, RmaError::new))
            }
        }
    }

    /// Holds off the end of the endpoint.
    fn opened(&self) -> io::Result<RwLockReadGuard<'_, bool>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        match *open {
            true => Ok(open),
            false => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// # Errors
    /// When it was stopped.
    pub(super) fn is_open(&self) -> io::Result<()> {
        self.opened().map(drop)
    }

    /// Its name for peers.
    pub(super) fn name(&self) -> io::Result<Box<[u8]>> {
        let _open = self.opened()?;
        let (mut name, mut size) = ([0u8; MAX_NAME], MAX_NAME);
        // SAFETY: at most `size` bytes are written to `name`.
        checked(unsafe { (self.shim.name)(self.tf, name.as_mut_ptr().cast(), &raw mut size) })?;
        let name = name.get(..size).ok_or(io::ErrorKind::InvalidData)?;
        Ok(name.into())
    }

    /// A peer's number.
    pub(super) fn peer(&self, name: &[u8]) -> io::Result<u64> {
        let _open = self.opened()?;
        if self.is_shm {
            shared::check(name)?;
        }
        let mut peer = 0;
        // SAFETY: `name` is read within its length.
        let rc = unsafe {
            let named = name.as_ptr().cast();
            (self.shim.peer)(self.tf, named, name.len(), &raw mut peer)
        };
        checked(rc).map(|_| peer)
    }

    /// Has windows guarded from now on: without that, a process that makes a window's file shorter ends this process.
    pub(super) fn guard(&self) -> io::Result<()> {
        self.shim.guard()
    }

    /// Opens a window onto a stretch of a file, to be read or written too; also where it begins, and its key. The stream, which is to stay
    /// open for as long, is ended when the file is found to have become shorter.
    pub(super) fn window(
        self: &Arc<Self>,
        file: BorrowedFd<'_>,
        (offset, len): (u64, u64),
        (writable, stream): (bool, Option<BorrowedFd<'_>>),
        wanted: u64,
    ) -> io::Result<(FileWindow, u64, u64)> {
        let _open = self.opened()?;
        let (mut raw, mut from, mut key) = (std::ptr::null_mut(), 0, 0);
        // SAFETY: the descriptor is open during the call; the rest are numbers and places for results.
        let rc = unsafe {
            (self.shim.window_open)(
                self.tf,
                file.as_raw_fd(),
                offset,
                len,
                writable.into(),
                stream.map_or(-1, |stream| stream.as_raw_fd()),
                wanted,
                &raw mut raw,
                &raw mut from,
                &raw mut key,
            )
        };
        checked(rc)?;
        let endpoint = Arc::clone(self);
        Ok((FileWindow { endpoint, raw }, from, key))
    }

    /// Begins to read `len` bytes of a peer's window into a buffer, or to write them from there.
    ///
    /// # Errors
    /// `WouldBlock`: not now. The buffer comes back.
    pub(super) fn begin(
        &self,
        way: RmaDirection,
        peer: u64,
        (from, key): (u64, u64),
        mut buffer: Vec<u8>,
        len: usize,
    ) -> Result<Arc<RmaOperation>, (Vec<u8>, io::Error)> {
        let open = match self.opened() {
            Ok(open) => open,
            Err(e) => return Err((buffer, e)),
        };
        let len = len.min(buffer.len());
        let start = buffer.as_mut_ptr().cast();
        let flight = Arc::new(RmaOperation {
            state: Mutex::new(RmaOperationState::Flying(buffer)),
            over: Condvar::new(),
        });
        let context = Arc::into_raw(Arc::clone(&flight));
        let context = context.cast_mut().cast();
        let (shim, tf) = (&self.shim, self.tf);
        // SAFETY, of both: `start` has space for `len` bytes and stays where it is: nobody takes the vector out of the flight
        // before the endpoint reports that it is over, and until then the endpoint holds the flight by `context`.
        let rc = match way {
            // SAFETY: see above.
            RmaDirection::Read => unsafe { (shim.read)(tf, peer, start, len, from, key, context) },
            // SAFETY: see above.
            RmaDirection::Write => unsafe {
                (shim.write)(tf, peer, start, len, from, key, context)
            },
        };
        drop(open);
        match checked(rc) {
            Ok(_) => Ok(flight),
            Err(e) => {
                // SAFETY: from `into_raw` above, and the endpoint has not taken it.
                drop(unsafe { Arc::from_raw(context.cast_const().cast::<RmaOperation>()) });
                let state = std::mem::replace(&mut *lock(&flight.state), RmaOperationState::Taken);
                match state {
                    RmaOperationState::Flying(buffer) | RmaOperationState::Over(buffer, _) => {
                        Err((buffer, e))
                    }
                    RmaOperationState::Taken => Err((Vec::new(), e)),
                }
            }
        }
    }

    /// Lets the endpoint do its work until an operation ends, at most so long; the number of operations that ended.
    fn poll(&self, timeout: Duration, done: &mut [RmaCompletion; DONE]) -> io::Result<usize> {
        let _open = self.opened()?;
        let millis = c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX);
        // SAFETY: at most `DONE` elements are written.
        let count = unsafe { (self.shim.progress)(self.tf, millis, done.as_mut_ptr(), DONE) };
        checked(count).map(|count| count as usize)
    }

    /// Lets the endpoint do its work until some reads are over, at most so long.
    pub(super) fn progress(&self, timeout: Duration) -> io::Result<()> {
        let mut done = [RmaCompletion::NONE; DONE];
        let count = self.poll(timeout, &mut done)?;
        for done in done.iter().take(count).filter(|d| !d.context.is_null()) {
            // SAFETY: from `into_raw` in `begin`, as only a `Numbered` gives other contexts, which keeps its endpoint for itself; the
            // endpoint gives each back once.
            let flight = unsafe { Arc::from_raw(done.context.cast_const().cast::<RmaOperation>()) };
            flight.end(done.error);
        }
        Ok(())
    }

    /// Ends it: operations under way never complete.
    pub(super) fn stop(&self) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut *open) {
            // SAFETY: nobody else is in a call, as the lock is held for writing.
            unsafe { (self.shim.stop)(self.tf) };
        }
    }
}

impl Drop for RmaEndpoint {
    fn drop(&mut self) {
        // SAFETY: nobody else has it, and windows hold it.
        unsafe { (self.shim.close)(self.tf) };
    }
}

/// A window onto a file of this node, open until it is dropped.
pub(super) struct FileWindow {
    endpoint: Arc<RmaEndpoint>,
    raw: Raw,
}

// SAFETY: it is a handle for one call of the shim, which may come from any thread.
unsafe impl Send for FileWindow {}
// SAFETY: nothing can be done with a reference to it.
unsafe impl Sync for FileWindow {}

impl Drop for FileWindow {
    fn drop(&mut self) {
        // SAFETY: it was opened and not closed; the endpoint is still there.
        unsafe { (self.endpoint.shim.window_close)(self.raw) };
    }
}

enum RmaOperationState {
    Flying(Vec<u8>),
    /// 0, or the error.
    Over(Vec<u8>, c_int),
    Taken,
}

/// An endpoint for one thread, which numbers what it asks for, and moves bytes between memory that it was lent and windows.
pub(super) struct Numbered {
    endpoint: RmaEndpoint,
    /// The buffer for a trial read from a peer.
    trial: Box<[u8; TRIAL]>,
}

impl Numbered {
    /// # Errors
    /// The reason why it cannot be opened.
    pub(super) fn open(
        shim: &Arc<Shim>,
        provider: &str,
        node: Option<IpAddr>,
    ) -> Result<Self, RmaError> {
        Ok(Self {
            endpoint: RmaEndpoint::open(shim, provider, node)?,
            trial: Box::new([0; TRIAL]),
        })
    }

    /// A peer's number.
    pub(super) fn peer(&self, name: &[u8]) -> io::Result<u64> {
        self.endpoint.peer(name)
    }

    /// Reads the first bytes of a peer's window of some bytes, and nothing else at the same time.
    ///
    /// # Errors
    /// The error, also when the trial takes too long. The endpoint is stopped then.
    pub(super) fn try_peer(
        &mut self,
        peer: u64,
        at: (u64, u64),
        size: u64,
        timeout: Duration,
    ) -> io::Result<()> {
        let length = size.min(TRIAL as u64);
        let start = NonNull::from(&mut *self.trial).cast();
        // SAFETY: it is there for as long as this does, whose endpoint is stopped before, or until it is leaked.
        let memory = unsafe { ProgramMemory::new(start, TRIAL, true) };
        let span = memory.span(start.addr().get() as u64, length);
        let span = span.ok_or(io::ErrorKind::InvalidInput)?;
        let until = Instant::now() + timeout;
        let (mut begun, mut over) = (false, None);
        while over.is_none() && Instant::now() < until {
            begun = begun || self.begin(RmaDirection::Read, peer, at, span, 0)?;
            self.ended(|_, result| over = Some(result))?;
            std::thread::yield_now();
        }
        over.unwrap_or_else(|| {
            self.endpoint.stop();
            // A peer that comes late may write to it.
            Box::leak(std::mem::replace(&mut self.trial, Box::new([0; TRIAL])));
            Err(io::ErrorKind::TimedOut.into())
        })
    }

    /// Begins to move bytes between a span and a peer's window; false: not now. The span is in use until [`Numbered::ended`] has
    /// reported the number, or this was dropped.
    pub(super) fn begin(
        &self,
        way: RmaDirection,
        peer: u64,
        (from, key): (u64, u64),
        span: MemorySpan,
        number: u32,
    ) -> io::Result<bool> {
        let _open = self.endpoint.opened()?;
        let (shim, tf) = (&self.endpoint.shim, self.endpoint.tf);
        // Never null.
        let context = std::ptr::without_provenance_mut(number as usize + 1);
        let (start, length) = (span.start().cast::<c_void>(), span.len());
        let rc = match way {
            // SAFETY: the span's memory is there until its request has ended, which whoever has made its `Memory` promises.
            RmaDirection::Read => unsafe {
                (shim.read)(tf, peer, start, length, from, key, context)
            },
            // SAFETY: as above.
            RmaDirection::Write => unsafe {
                (shim.write)(tf, peer, start, length, from, key, context)
            },
        };
        match checked(rc) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// The descriptor that becomes readable when there is something to do; none if the provider has none.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let _open = self.endpoint.opened().ok()?;
        // SAFETY: the endpoint is there.
        let fd = unsafe { (self.endpoint.shim.descriptor)(self.endpoint.tf) };
        // SAFETY: it is open until the endpoint is closed, which this owns.
        (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Whether there is nothing to do until it becomes readable.
    pub(super) fn may_sleep(&self) -> bool {
        let open = self.endpoint.opened();
        // SAFETY: the endpoint is there.
        open.is_ok_and(|_open| unsafe { (self.endpoint.shim.may_sleep)(self.endpoint.tf) } == 1)
    }

    /// Tells what is over.
    ///
    /// # Errors
    /// When the endpoint cannot be used any more.
    pub(super) fn ended(&self, mut report: impl FnMut(u32, io::Result<()>)) -> io::Result<()> {
        let mut done = [RmaCompletion::NONE; DONE];
        loop {
            let count = self.endpoint.poll(Duration::ZERO, &mut done)?;
            for done in done.iter().take(count).filter(|d| !d.context.is_null()) {
                let result = match done.error {
                    0 => Ok(()),
                    e => Err(io::Error::from_raw_os_error(e)),
                };
                report((done.context.addr() - 1) as u32, result);
            }
            if count < DONE {
                return Ok(());
            }
        }
    }
}

/// The direction of a movement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RmaDirection {
    /// From the window.
    Read,
    /// To it.
    Write,
}

/// A read or write under way. One that never ends keeps its memory.
pub(super) struct RmaOperation {
    state: Mutex<RmaOperationState>,
    over: Condvar,
}

impl RmaOperation {
    fn end(&self, error: c_int) {
        let mut state = lock(&self.state);
        if let RmaOperationState::Flying(landing) =
            std::mem::replace(&mut *state, RmaOperationState::Taken)
        {
            *state = RmaOperationState::Over(landing, error);
        }
        self.over.notify_all();
    }

    /// Waits; its buffer, and whether it was done. `None`: not yet.
    pub(super) fn wait(&self, timeout: Duration) -> Option<(Vec<u8>, io::Result<()>)> {
        let flying = |s: &mut RmaOperationState| matches!(s, RmaOperationState::Flying(_));
        let waited = self
            .over
            .wait_timeout_while(lock(&self.state), timeout, flying);
        let (mut state, late) = waited.unwrap_or_else(PoisonError::into_inner);
        if late.timed_out() {
            return None;
        }
        match std::mem::replace(&mut *state, RmaOperationState::Taken) {
            RmaOperationState::Over(landing, 0) => Some((landing, Ok(()))),
            RmaOperationState::Over(landing, e) => {
                Some((landing, Err(io::Error::from_raw_os_error(e))))
            }
            _ => None,
        }
    }
}
