//! Memory that is watched by `mprotect`: the effects of its handler of SIGSEGV, and the faults that it leaves to others.

#![allow(unsafe_code)]

mod common;

use common::{Kind, Memory, page, pages, reported_ranges};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mprotect, mremap, munmap};
use std::io::{Error, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize};
use tarn_dirty_pages::Tracker;
use tarn_ports::WatchedMemory;

/// In a process of its own: the case to run.
const CASE: &str = "TARN_TRACK_CASE";

fn tracker() -> Tracker {
    Tracker::by_mprotect().unwrap()
}

/// Pages of a granule.
fn each() -> usize {
    tracker().granule() / page()
}

/// The case to run in a process of its own, if this is one.
fn case() -> Option<String> {
    let case = std::env::var(CASE).ok()?;
    let no_core = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: it is read.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &no_core) };
    Some(case)
}

/// Runs this test once more, in a process of its own.
fn apart(test: &str, case: &str) -> ExitStatus {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let command = command.args(["--exact", test, "--nocapture"]);
    let command = command.env(CASE, case).stdout(Stdio::null());
    command.status().unwrap()
}

/// The mappings in `/proc/self/maps` that meet this memory: their bytes in it, and flags.
fn mappings(memory: &Memory) -> Vec<(usize, String)> {
    let (first, end) = (
        memory.start.addr().get(),
        memory.start.addr().get() + memory.len,
    );
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let parts = maps.lines().filter_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).unwrap();
        let bytes = address(to)
            .min(end)
            .saturating_sub(address(from).max(first));
        (bytes > 0).then(|| (bytes, rest[..4].to_owned()))
    });
    parts.collect()
}

#[test]
fn calls_that_write_to_protected_memory_fail_and_change_nothing() {
    let (tracker, each) = (tracker(), each());
    let memory = Memory::touched(Kind::Anonymous, 4 * each);
    let mut watch = memory.watch(&tracker);
    watch.arm().unwrap();
    let (from, mut to) = std::io::pipe().unwrap();
    to.write_all(&vec![9; page()]).unwrap();
    // SAFETY: the bytes are inside.
    let read = || unsafe { libc::read(from.as_raw_fd(), memory.at(each).cast(), page()) };
    assert_eq!(read(), -1);
    assert_eq!(Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
    assert_eq!(
        (memory.read(each), watch.written(false).unwrap()),
        (1, vec![])
    );
    // Once the program has written there itself, they can.
    memory.write(each, 2);
    assert_eq!(read(), page() as isize);
    let expected = reported_ranges(&tracker, 4 * each, &[each]);
    assert_eq!(
        (memory.read(each), watch.written(true).unwrap()),
        (9, expected)
    );
}

#[test]
fn memory_is_one_mapping_again_when_it_is_watched_no_more() {
    let (tracker, each) = (tracker(), each());
    let pages = 64 * each;
    let memory = Memory::new(Kind::Anonymous, pages);
    let mut watch = memory.watch(&tracker);
    watch.arm().unwrap();
    // Pages that were never touched, far from each other.
    let odd: Vec<usize> = (each..pages).step_by(2 * each).collect();
    odd.iter().for_each(|page| memory.write(*page, 2));
    assert_eq!(
        watch.written(false).unwrap(),
        reported_ranges(&tracker, pages, &odd)
    );
    assert_eq!(mappings(&memory).len(), 64);
    drop(watch);
    assert_eq!(mappings(&memory), [(memory.len, "rw-p".to_owned())]);
    // As objects are given another size.
    let start = memory.start.as_ptr().cast();
    // SAFETY: the last page of this test's own memory, which `drop` does not miss.
    unsafe { mremap(start, memory.len, memory.len - page(), MremapFlags::empty()) }.unwrap();
    std::mem::forget(memory);
}

#[test]
fn only_what_can_be_read_and_written_and_not_executed_is_watched() {
    let (tracker, each) = (tracker(), each());
    let (read, write, execute) = (ProtFlags::READ, ProtFlags::WRITE, ProtFlags::EXEC);
    for (access, flags) in [
        (ProtFlags::empty(), "---p"),
        (read, "r--p"),
        (read | execute, "r-xp"),
        (read | write | execute, "rwxp"),
    ] {
        let memory = Memory::touched(Kind::Anonymous, 4 * each);
        // SAFETY: of this test's own memory, which is not used.
        unsafe { mprotect(memory.at(each).cast(), page(), to_mprotect(access)) }.unwrap();
        // SAFETY: it is refused.
        let refused = unsafe { tracker.watch(memory.start, memory.len) };
        let message = refused.unwrap_err().to_string();
        assert!(
            message.contains("read and written, and not executed"),
            "{message}"
        );
        assert!(mappings(&memory).contains(&(page(), flags.to_owned())));
    }
}

fn to_mprotect(access: ProtFlags) -> rustix::mm::MprotectFlags {
    rustix::mm::MprotectFlags::from_bits_retain(access.bits())
}

#[test]
fn errno_is_what_it_was() {
    let memory = Memory::touched(Kind::Anonymous, 4 * each());
    let mut watch = memory.watch(&tracker());
    watch.arm().unwrap();
    // SAFETY: this thread's own.
    let errno = unsafe { &mut *libc::__errno_location() };
    *errno = 77;
    memory.write(0, 2);
    assert_eq!(*errno, 77);
}

#[test]
fn a_thread_that_has_the_signal_blocked_is_refused() {
    let refused = std::thread::spawn(|| {
        // SAFETY: sets of this thread's own.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigfillset(&mut set);
            libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
        }
        Tracker::by_mprotect().map(drop)
    });
    let message = refused.join().unwrap().unwrap_err().to_string();
    assert!(
        message.contains("SIGSEGV blocked") && message.contains("without PHX_MPROTECT"),
        "{message}"
    );
}

/// Threads write to the same granules at the same time, also as these are protected again.
#[test]
fn what_many_threads_write_at_once_is_all_told() {
    const THREADS: usize = 8;
    let (tracker, each) = (tracker(), each());
    let pages = 6 * each;
    let memory = &Memory::touched(Kind::Anonymous, pages);
    let mut watch = memory.watch(&tracker);
    let (mut copy, mut there) = (vec![0; memory.len], vec![0; memory.len]);
    for round in 0..40u8 {
        if round % 20 == 0 {
            watch.arm().unwrap();
            watch.copy(0, &mut copy);
        }
        let mut copy_again = || {
            for range in watch.written(true).unwrap() {
                watch.copy(
                    range.start,
                    &mut copy[range.start as usize..range.end as usize],
                );
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for n in 0..pages / THREADS {
                        let page = (n * 37 + usize::from(round)) % pages;
                        // SAFETY: inside, and written by atomic bytes only.
                        let byte = unsafe { AtomicU8::from_ptr(memory.at(page).add(thread)) };
                        byte.fetch_add(1, SeqCst);
                    }
                });
            }
            (0..3).for_each(|_| copy_again());
        });
        copy_again();
        watch.copy(0, &mut there);
        assert!(copy == there, "round {round}");
    }
}

/// Threads continue that wrote to memory that was watched, and is not any more as their fault is looked at.
#[test]
fn memory_can_be_let_go_while_threads_write_to_it() {
    let (tracker, each) = (tracker(), each());
    let memory = &Memory::touched(Kind::Anonymous, 8 * each);
    let end = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            scope.spawn(move || {
                let mut page = thread;
                while !end.load(SeqCst) {
                    // SAFETY: inside, and written by atomic bytes only.
                    let byte = unsafe { AtomicU8::from_ptr(memory.at(page)) };
                    byte.fetch_add(1, SeqCst);
                    page = (page + 5) % (8 * each);
                }
            });
        }
        let done = (0..2000).try_for_each(|_| memory.watch(&tracker).arm());
        end.store(true, SeqCst);
        done.unwrap();
    });
    assert_eq!(mappings(memory), [(memory.len, "rw-p".to_owned())]);
}

#[test]
fn more_than_the_table_has_space_for_is_refused() {
    const TEST: &str = "more_than_the_table_has_space_for_is_refused";
    if case().is_none() {
        return assert!(apart(TEST, "full").success());
    }
    let memory = Memory::touched(Kind::Anonymous, 1025);
    let tracker = tracker();
    let one = |n: usize| n * page()..(n + 1) * page();
    for _ in 0..3 {
        let mut all: Vec<_> = (0..1024).map(|n| memory.part(&tracker, one(n))).collect();
        // SAFETY: it is refused.
        let refused = unsafe { tracker.watch(NonNull::new(memory.at(1024)).unwrap(), page()) };
        let message = refused.unwrap_err().to_string();
        assert!(
            message.contains("1024 ranges are watched already"),
            "{message}"
        );
        let last = all.last_mut().unwrap();
        last.arm().unwrap();
        memory.write(1023, 2);
        assert_eq!(last.written(true).unwrap().len(), 1);
    }
}

#[test]
fn where_the_kernel_allows_no_more_mappings_all_counts_as_written() {
    const TEST: &str = "where_the_kernel_allows_no_more_mappings_all_counts_as_written";
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let most: usize = most.trim().parse().unwrap();
    if most > 1 << 17 {
        return eprintln!("SKIPPED: it allows {most}");
    }
    if case().is_none() {
        return assert!(apart(TEST, "mappings").success());
    }
    let (tracker, each) = (tracker(), each());
    let memory = Memory::touched(Kind::Anonymous, 64 * each);
    let mut watch = memory.watch(&tracker);
    watch.arm().unwrap();
    let all = reported_ranges(&tracker, 64 * each, &(0..64 * each).collect::<Vec<_>>());
    let len = 2 * most * page();
    // SAFETY: a new range, every second page of which is made another mapping.
    unsafe {
        let null = std::ptr::null_mut();
        let many = mmap_anonymous(null, len, ProtFlags::READ, MapFlags::PRIVATE).unwrap();
        let mut pages = (0..len).step_by(2 * page());
        let split = |at| mprotect(many.byte_add(at), page(), to_mprotect(ProtFlags::empty()));
        assert!(pages.any(|at| split(at).is_err()));
        memory.write(20 * each, 2);
        memory.write(40 * each, 2);
        assert_eq!(watch.written(false).unwrap(), all);
        // Nothing in between is protected.
        assert_eq!(watch.written(true).unwrap(), all);
        assert_eq!(watch.written(true).unwrap(), []);
        memory.write(30 * each, 2);
        assert_eq!(watch.written(true).unwrap(), all);
        munmap(many, len).unwrap();
    }
    memory.write(30 * each, 2);
    assert_eq!(
        watch.written(true).unwrap(),
        reported_ranges(&tracker, 64 * each, &[30 * each])
    );
}

/// Memory that a handler which was there before lets be written, and the faults that it has seen.
static SEEN: Seen = Seen {
    own: AtomicUsize::new(0),
    faults: AtomicUsize::new(0),
    as_expected: AtomicUsize::new(0),
};

struct Seen {
    own: AtomicUsize,
    faults: AtomicUsize,
    as_expected: AtomicUsize,
}

impl Seen {
    fn fault(&self, as_expected: bool) {
        self.faults.fetch_add(1, SeqCst);
        self.as_expected.fetch_add(usize::from(as_expected), SeqCst);
        let own = self.own.load(SeqCst) as *mut _;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the test's own memory.
        unsafe { mprotect(own, page(), to_mprotect(access)) }.unwrap();
    }
}

/// Whether this thread has a signal blocked, and is on the stack for signals.
fn here(signal: i32) -> (bool, bool) {
    // SAFETY: nothing is changed; the current mask is written.
    unsafe {
        let mut mask = std::mem::zeroed();
        let mut stack: libc::stack_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
        libc::sigaltstack(std::ptr::null(), &mut stack);
        let blocked = libc::sigismember(&mask, signal) == 1;
        (blocked, stack.ss_flags & libc::SS_ONSTACK != 0)
    }
}

extern "C" fn long(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: as the kernel gave it.
    let address = unsafe { (*info).si_addr() } as usize;
    let is_own_fault =
        signal == libc::SIGSEGV && address == SEEN.own.load(SeqCst) && !context.is_null();
    SEEN.fault(is_own_fault && here(libc::SIGUSR1) == (true, true) && here(libc::SIGSEGV).0);
}

extern "C" fn short(signal: i32) {
    SEEN.fault(signal == libc::SIGSEGV && here(libc::SIGSEGV) == (false, true));
}

/// As somebody else's handler is installed.
fn install(handler: usize, flags: i32, mask: &[i32]) {
    // SAFETY: one of the handlers above, the default, or none.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        mask.iter().for_each(|signal| {
            libc::sigaddset(&mut action.sa_mask, *signal);
        });
        assert_eq!(
            libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()),
            0
        );
    }
}

const LONG: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = long;
const SHORT: extern "C" fn(i32) = short;

#[test]
fn faults_of_others_reach_the_handler_that_was_there_before() {
    const TEST: &str = "faults_of_others_reach_the_handler_that_was_there_before";
    let Some(case) = case() else {
        assert!(apart(TEST, "long").success());
        assert!(apart(TEST, "short").success());
        // It is called once, and then there is none.
        assert_eq!(apart(TEST, "once").signal(), Some(libc::SIGSEGV));
        return;
    };
    match &*case {
        "long" => install(LONG as usize, libc::SA_SIGINFO, &[libc::SIGUSR1]),
        "short" => install(SHORT as usize, libc::SA_NODEFER, &[]),
        _ => install(SHORT as usize, libc::SA_NODEFER | libc::SA_RESETHAND, &[]),
    }
    let memory = Memory::touched(Kind::Anonymous, 4 * each());
    let others = Memory::touched(Kind::Anonymous, 1);
    SEEN.own.store(others.start.addr().get(), SeqCst);
    let mut watch = memory.watch(&tracker());
    watch.arm().unwrap();
    for round in 1..4 {
        // SAFETY: the test's own memory; its handler lets it be written.
        unsafe {
            mprotect(others.at(0).cast(), page(), to_mprotect(ProtFlags::READ)).unwrap();
            others.at(0).write_volatile(round);
            assert_eq!(others.at(0).read_volatile(), round);
        }
        memory.write(usize::from(round), round);
        let seen = [SEEN.faults.load(SeqCst), SEEN.as_expected.load(SeqCst)];
        assert_eq!(seen, [usize::from(round); 2]);
    }
    assert_eq!(watch.written(true).unwrap().len(), 1);
}

#[test]
fn faults_of_nobody_end_the_process() {
    const TEST: &str = "faults_of_nobody_end_the_process";
    let Some(case) = case() else {
        // The earlier handler: none, the signal ignored, and the handler that Rust has for stacks that overflow.
        for before in ["default", "ignored", "rust"] {
            for fault in ["unmapped", "unwritable", "jump", "sent"] {
                let ended = apart(TEST, &format!("{before} {fault}"));
                match (before, fault) {
                    ("ignored", "sent") => assert!(ended.success(), "{ended}"),
                    _ => assert_eq!(ended.signal(), Some(libc::SIGSEGV), "{before} {fault}"),
                }
            }
        }
        return;
    };
    let (before, fault) = case.split_once(' ').unwrap();
    match before {
        "default" => install(libc::SIG_DFL, 0, &[]),
        "ignored" => install(libc::SIG_IGN, 0, &[]),
        _ => {}
    }
    let memory = Memory::touched(Kind::Anonymous, 4 * each());
    let mut watch = memory.watch(&tracker());
    watch.arm().unwrap();
    memory.write(0, 2);
    let other = Memory::touched(Kind::Anonymous, 1);
    // SAFETY: there is none: the process is to end.
    unsafe {
        match fault {
            "unmapped" => {
                munmap(other.at(0).cast(), page()).unwrap();
                other.at(0).write_volatile(1);
            }
            "unwritable" => {
                mprotect(other.at(0).cast(), page(), to_mprotect(ProtFlags::READ)).unwrap();
                other.at(0).write_volatile(1);
            }
            "jump" => std::mem::transmute::<*mut u8, extern "C" fn()>(memory.at(each()))(),
            _ => {
                libc::raise(libc::SIGSEGV);
                // Rust's handler takes it for a fault that comes again.
                libc::raise(libc::SIGSEGV);
            }
        }
    }
}

/// A page that is watched, and one after the other is written by a handler of SIGALRM.
static PAGES: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

extern "C" fn on_alarm(_: i32) {
    let [start, bytes, next] = &PAGES;
    let at = next.fetch_add(page(), SeqCst) % bytes.load(SeqCst).max(1);
    // SAFETY: a byte of the memory, which lives as long as the timer.
    unsafe {
        let byte = std::ptr::with_exposed_provenance_mut::<u8>(start.load(SeqCst) + at);
        byte.write_volatile(3);
    }
}

/// Also while a write that they have interrupted is being noted.
#[test]
fn handlers_of_other_signals_write_to_watched_memory() {
    const TEST: &str = "handlers_of_other_signals_write_to_watched_memory";
    if case().is_none() {
        return assert!(apart(TEST, "alarms").success());
    }
    let (tracker, each) = (tracker(), each());
    let (memory, other) = (
        Memory::touched(Kind::Anonymous, 64 * each),
        Memory::touched(Kind::Anonymous, 4 * each),
    );
    let mut watches = [memory.watch(&tracker), other.watch(&tracker)];
    PAGES[0].store(other.start.as_ptr().expose_provenance(), SeqCst);
    PAGES[1].store(other.len, SeqCst);
    let often = libc::itimerval {
        it_interval: libc::timeval {
            tv_sec: 0,
            tv_usec: 50,
        },
        it_value: libc::timeval {
            tv_sec: 0,
            tv_usec: 50,
        },
    };
    // SAFETY: the handler uses atomic words, and memory that outlives the process's timer: it ends with the process.
    unsafe {
        let handler: extern "C" fn(i32) = on_alarm;
        libc::signal(libc::SIGALRM, handler as *const () as usize);
        libc::setitimer(libc::ITIMER_REAL, &often, std::ptr::null_mut());
    }
    for round in 0..200u8 {
        watches.iter_mut().for_each(|watch| watch.arm().unwrap());
        (0..64).for_each(|granule| memory.write(granule * each, round));
        let all = watches[0].written(false).unwrap();
        assert_eq!(all, [pages(0..64 * each)]);
    }
    assert!(PAGES[2].load(SeqCst) > 0);
    std::process::exit(0);
}

#[test]
fn a_handler_that_comes_later_ends_the_watching() {
    const TEST: &str = "a_handler_that_comes_later_ends_the_watching";
    if case().is_none() {
        return assert!(apart(TEST, "replaced").success());
    }
    let (tracker, each) = (tracker(), each());
    let memory = Memory::touched(Kind::Anonymous, 4 * each);
    let mut watch = memory.watch(&tracker);
    watch.arm().unwrap();
    memory.write(0, 2);
    install(libc::SIG_DFL, 0, &[]);
    let message = watch.written(true).unwrap_err().to_string();
    assert!(message.contains("another handler of SIGSEGV"), "{message}");
    let all = watch.written(false).unwrap();
    assert_eq!(all, [pages(0..4 * each)]);
    assert!(watch.arm().is_err());
    // It can be written, and counts as written.
    memory.write(each, 2);
    assert_eq!(watch.written(false).unwrap(), all);
    assert!(Tracker::by_mprotect().is_err());
}
