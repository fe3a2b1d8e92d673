//! Signals that faults of the processor are, and handlers for them.
//!
//! A handler may have interrupted anything, also an allocation, or the holder of a lock. So all that it uses is atomic words and
//! system calls, and faults that are not its own it hands on to the handler that was there before.

use libc::{c_int, c_void, siginfo_t, ucontext_t};
use once_cell::race::OnceBox;
use std::mem::{MaybeUninit, transmute};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

/// A handler with `SA_SIGINFO`.
type SignalHandlerFn = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
/// Handles faults that are its own, and returns whether one was. It uses atomic words and system calls, nothing else.
pub type Deal = fn(&MemoryFault<'_>) -> bool;

const OURS: SignalHandlerFn = on_fault;

/// A signal of memory faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// `SIGSEGV`: nothing is mapped there, or it does not allow that.
    Segv,
    /// `SIGBUS`: something is mapped, and there is nothing behind it.
    Bus,
}

/// Handlers of a signal's faults at most: each is a part of tarn with memory of its own.
const DEALS: usize = 4;

/// The handlers of a signal's faults, and the action that was there before. Threads that install at once do not wait for each
/// other: a process may be forked while one does, and the child would wait for ever.
struct FaultHandlerChain {
    deals: [OnceBox<Deal>; DEALS],
    before: OnceBox<libc::sigaction>,
    is_installed: AtomicBool,
}

static CHAINS: [FaultHandlerChain; 2] = [const {
    FaultHandlerChain {
        deals: [const { OnceBox::new() }; DEALS],
        before: OnceBox::new(),
        is_installed: AtomicBool::new(false),
    }
}; 2];

/// A fault.
#[derive(Debug)]
pub struct MemoryFault<'a> {
    /// The reason, as in `si_code`.
    pub code: c_int,
    /// The address that was read or written.
    pub address: usize,
    context: &'a ucontext_t,
}

impl MemoryFault<'_> {
    /// Whether it was a write: bit 1 of the processor's error code.
    #[cfg(target_arch = "x86_64")]
    pub fn is_write(&self) -> bool {
        self.context.uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0
    }

    /// Whether it was a write, for memory that can be read: if not, it was a jump there.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_write(&self) -> bool {
        self.context.uc_mcontext.pc as usize != self.address
    }
}

impl Signal {
    fn number(self) -> c_int {
        match self {
            Self::Segv => libc::SIGSEGV,
            Self::Bus => libc::SIGBUS,
        }
    }

    /// Installs a handler of faults, from now on and beside others; a second call changes nothing. False where it would not be
    /// called: there are too many, or another handler was installed over this one.
    #[must_use]
    pub fn install(self, deal: Deal) -> bool {
        let chain = chain(self.number());
        let there = |slot: &OnceBox<Deal>| *slot.get_or_init(|| Box::new(deal));
        let mut slots = chain.deals.iter().map(there);
        let is_registered = slots.any(|there| std::ptr::fn_addr_eq(there, deal));
        let before = chain.before.get_or_init(|| Box::new(self.current()));
        if !chain.is_installed.load(Acquire) {
            self.set(&ours(before));
            chain.is_installed.store(true, Release);
        }
        is_registered && self.is_installed()
    }

    /// The same in a process of tarn's own: a handler that a library has installed over this one is not called any more.
    #[must_use]
    pub fn install_over(self, deal: Deal) -> bool {
        self.install(deal) || {
            let before = chain(self.number()).before.get();
            self.set(&ours(before.unwrap_or(&default())));
            self.install(deal)
        }
    }

    /// Whether its handler is there still: if not, a fault ends the process.
    pub fn is_installed(self) -> bool {
        self.current().sa_sigaction == OURS as usize
    }

    /// Whether this thread has it blocked: then it dies as well.
    pub fn is_blocked(self) -> bool {
        let mut now = MaybeUninit::uninit();
        // SAFETY: no new mask is given, and the old one is written.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), now.as_mut_ptr());
            libc::sigismember(now.as_ptr(), self.number()) == 1
        }
    }

    fn current(self) -> libc::sigaction {
        let mut now = default();
        // SAFETY: nothing is changed, and the present action is written.
        unsafe { libc::sigaction(self.number(), std::ptr::null(), &raw mut now) };
        now
    }

    fn set(self, action: &libc::sigaction) {
        // SAFETY: ours, which may run at any time, or the default.
        unsafe { libc::sigaction(self.number(), action, std::ptr::null_mut()) };
    }
}

/// This handler, over another one.
fn ours(before: &libc::sigaction) -> libc::sigaction {
    libc::sigaction {
        sa_sigaction: OURS as usize,
        // A handler of another signal in between might fault too, or never come back.
        sa_mask: all(),
        sa_flags: libc::SA_SIGINFO | libc::SA_ONSTACK | before.sa_flags & libc::SA_RESTART,
        ..*before
    }
}

fn chain(signal: c_int) -> &'static FaultHandlerChain {
    &CHAINS[usize::from(signal == libc::SIGBUS)]
}

/// All signals.
fn all() -> libc::sigset_t {
    let mut all = MaybeUninit::uninit();
    // SAFETY: it is written.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        all.assume_init()
    }
}

/// The kernel's action without a handler: it ends the process.
fn default() -> libc::sigaction {
    // SAFETY: numbers, and a function that there need not be.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives both to such a handler, and each thread has its `errno`.
    let (fault, errno) = unsafe {
        let fault = MemoryFault {
            code: (*info).si_code,
            address: (*info).si_addr().addr(),
            context: &*context.cast::<ucontext_t>(),
        };
        (fault, *libc::__errno_location())
    };
    let chain = chain(signal);
    // A signal that somebody has sent is no fault.
    let mut deals = chain.deals.iter().map_while(OnceBox::get);
    let ours = fault.code > 0 && deals.any(|deal| deal(&fault));
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if !ours {
        let before = chain.before.get().copied().unwrap_or_else(default);
        // SAFETY: the arguments are the kernel's.
        unsafe { hand_on(&before, signal, info, context) };
    }
}

/// Does the action that would follow without this handler.
///
/// # Safety
/// The arguments are those of a handler with `SA_SIGINFO`.
unsafe fn hand_on(
    before: &libc::sigaction,
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) {
    let which = match signal {
        libc::SIGBUS => Signal::Bus,
        _ => Signal::Segv,
    };
    // SAFETY: as the caller says.
    let was_sent = unsafe { (*info).si_code } <= 0;
    match before.sa_sigaction {
        libc::SIG_IGN if was_sent => {}
        // Nobody can ignore a fault. It happens again now, and ends the process.
        libc::SIG_DFL | libc::SIG_IGN => {
            which.set(&default());
            if was_sent {
                // SAFETY: it is taken when this handler has ended.
                unsafe { libc::raise(signal) };
            }
        }
        handler => {
            if before.sa_flags & libc::SA_RESETHAND != 0 {
                which.set(&default());
            }
            // SAFETY: as the caller says.
            unsafe { block_as(before, signal, &*context.cast::<ucontext_t>()) };
            // SAFETY: somebody has given it to the kernel, to be called so.
            unsafe {
                match before.sa_flags & libc::SA_SIGINFO {
                    0 => transmute::<usize, extern "C" fn(c_int)>(handler)(signal),
                    _ => transmute::<usize, SignalHandlerFn>(handler)(signal, info, context),
                }
            }
        }
    }
}

/// Blocks the signals that are when such a handler is called.
fn block_as(handler: &libc::sigaction, this: c_int, context: &ucontext_t) {
    /// The kernel gives no more of a mask.
    const SIGNALS: c_int = 64;
    let mut mask = MaybeUninit::uninit();
    // SAFETY: a set is made, and its signals are numbers that there are.
    unsafe {
        libc::sigemptyset(mask.as_mut_ptr());
        for signal in 1..=SIGNALS {
            let itself = signal == this && handler.sa_flags & libc::SA_NODEFER == 0;
            let in_set = |set: &libc::sigset_t| libc::sigismember(set, signal) == 1;
            if itself || in_set(&handler.sa_mask) || in_set(&context.uc_sigmask) {
                libc::sigaddset(mask.as_mut_ptr(), signal);
            }
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, mask.as_ptr(), std::ptr::null_mut());
    }
}
