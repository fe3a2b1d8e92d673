//! The signal that a write to protected memory is, and its handler.
//!
//! A handler may have interrupted anything, also an allocation, or whoever holds a lock. So all that it uses is atomic words and system
//! calls, and what it does not know it hands on to the handler that was there before.

use crate::table;
use libc::{c_int, c_void, siginfo_t, ucontext_t};
use std::mem::{MaybeUninit, transmute};
use std::sync::atomic::AtomicU32;
use std::sync::{Once, OnceLock};

/// `SEGV_ACCERR`: something is mapped there, and does not allow it.
const NOT_ALLOWED: c_int = 2;

/// A handler with `SA_SIGINFO`.
type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

const OURS: Handler = on_fault;
/// What was there before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler, once.
pub(crate) fn install() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        let before = *BEFORE.get_or_init(current);
        set(&libc::sigaction {
            sa_sigaction: OURS as usize,
            // A handler of another signal in between might write to protected memory too, or never come back.
            sa_mask: all(),
            sa_flags: libc::SA_SIGINFO | libc::SA_ONSTACK | before.sa_flags & libc::SA_RESTART,
            ..before
        });
    });
}

/// Whether it is there still: if not, whoever writes to protected memory dies.
pub(crate) fn is_installed() -> bool {
    current().sa_sigaction == OURS as usize
}

/// Whether this thread has the signal blocked: then it dies as well.
pub(crate) fn is_blocked() -> bool {
    let mut now = MaybeUninit::uninit();
    // SAFETY: no new mask is given, and the old one is written.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), now.as_mut_ptr());
        libc::sigismember(now.as_ptr(), libc::SIGSEGV) == 1
    }
}

fn current() -> libc::sigaction {
    let mut now = default();
    // SAFETY: nothing is changed, and what there is is written.
    unsafe { libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut now) };
    now
}

fn set(action: &libc::sigaction) {
    // SAFETY: ours, which may run at any time, or the default.
    unsafe { libc::sigaction(libc::SIGSEGV, action, std::ptr::null_mut()) };
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

/// What the kernel does if nobody says anything: it ends the process.
fn default() -> libc::sigaction {
    // SAFETY: numbers, and a function that there need not be.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives both to such a handler, and each thread has its `errno`.
    let (code, address, is_write, errno) = unsafe {
        let address = (*info).si_addr().addr();
        let is_write = is_write(&*context.cast::<ucontext_t>(), address);
        let errno = *libc::__errno_location();
        ((*info).si_code, address, is_write, errno)
    };
    let ours =
        code == NOT_ALLOWED && is_write && (table::opened(address) || may_be_written(address));
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if !ours {
        // SAFETY: what the kernel gave.
        unsafe { hand_on(signal, info, context) };
    }
}

/// Whether a fault was a write: bit 1 of the processor's error code.
#[cfg(target_arch = "x86_64")]
fn is_write(context: &ucontext_t, _: usize) -> bool {
    context.uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0
}

/// Whether a fault was a write: what is watched can be read, so it was, or it was a jump there.
#[cfg(not(target_arch = "x86_64"))]
fn is_write(context: &ucontext_t, address: usize) -> bool {
    context.uc_mcontext.pc as usize != address
}

/// Does what would have been done without this handler.
///
/// # Safety
/// The arguments are those of a handler with `SA_SIGINFO`.
unsafe fn hand_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: as the caller says.
    let was_sent = unsafe { (*info).si_code } <= 0;
    let before = BEFORE.get().copied().unwrap_or_else(default);
    match before.sa_sigaction {
        libc::SIG_IGN if was_sent => {}
        // Nobody can ignore a fault. It happens again now, and ends the process.
        libc::SIG_DFL | libc::SIG_IGN => {
            set(&default());
            if was_sent {
                // SAFETY: it is taken when this handler has ended.
                unsafe { libc::raise(signal) };
            }
        }
        handler => {
            if before.sa_flags & libc::SA_RESETHAND != 0 {
                set(&default());
            }
            // SAFETY: as the caller says.
            unsafe { block_as(&before, &*context.cast::<ucontext_t>()) };
            // SAFETY: somebody has given it to the kernel, to be called so.
            unsafe {
                match before.sa_flags & libc::SA_SIGINFO {
                    0 => transmute::<usize, extern "C" fn(c_int)>(handler)(signal),
                    _ => transmute::<usize, Handler>(handler)(signal, info, context),
                }
            }
        }
    }
}

/// Blocks the signals that are when such a handler is called.
fn block_as(handler: &libc::sigaction, context: &ucontext_t) {
    /// The kernel gives no more of a mask.
    const SIGNALS: c_int = 64;
    let mut mask = MaybeUninit::uninit();
    // SAFETY: a set is made, and its signals are numbers that there are.
    unsafe {
        libc::sigemptyset(mask.as_mut_ptr());
        for signal in 1..=SIGNALS {
            let itself = signal == libc::SIGSEGV && handler.sa_flags & libc::SA_NODEFER == 0;
            let in_set = |set: &libc::sigset_t| libc::sigismember(set, signal) == 1;
            if itself || in_set(&handler.sa_mask) || in_set(&context.uc_sigmask) {
                libc::sigaddset(mask.as_mut_ptr(), signal);
            }
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, mask.as_ptr(), std::ptr::null_mut());
    }
}

/// Whether memory may be written, as the kernel finds when it adds no bits to a word of it. In a handler, that lets a thread go on that
/// wrote to what was watched then, and is not any more; and it touches memory that never was.
pub(crate) fn may_be_written(address: usize) -> bool {
    /// `FUTEX_WAKE_OP` with `FUTEX_PRIVATE_FLAG`.
    const WAKE_OP: c_int = 5 | 128;
    /// `FUTEX_OP_OR` of the word and 0.
    const OR_NOTHING: c_int = 2 << 28;
    static NOBODY_WAITS: AtomicU32 = AtomicU32::new(0);
    // SAFETY: the kernel looks itself whether it may write to the word, which stays as it is. Whoever sleeps until it changes may wake
    // for nothing, which he must expect of a futex.
    let woken = unsafe {
        let sleepers = NOBODY_WAITS.as_ptr();
        libc::syscall(
            libc::SYS_futex,
            sleepers,
            WAKE_OP,
            0,
            0_usize,
            address & !3,
            OR_NOTHING,
        )
    };
    woken >= 0
}
