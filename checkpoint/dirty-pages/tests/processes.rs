//! Other processes, and other things beside the memory.

#![allow(unsafe_code)]

mod common;

use common::{Kind, Memory, kernel, page, reported_ranges, trackers};
use std::process::Command;
use tarn_dirty_pages::{Tracker, pinned};
use tarn_ports::{TrackError, WatchedMemory};

/// Runs it in a forked child, and returns its exit status. It must not allocate: another thread may have held the lock.
fn forked(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls `child` and ends.
    match unsafe { libc::fork() } {
        0 => {
            let code = child();
            // SAFETY: it ends the child without running anything of the parent's.
            unsafe { libc::_exit(code) }
        }
        pid => {
            assert!(pid > 0);
            let mut status = 0;
            // SAFETY: the status lives as long as the call.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert!(libc::WIFEXITED(status));
            libc::WEXITSTATUS(status)
        }
    }
}

#[test]
fn after_a_fork_the_parents_writes_are_seen_and_the_childs_are_its_own() {
    for tracker in trackers() {
        for kind in [Kind::Anonymous, Kind::Huge] {
            let each = tracker.granule() / page();
            let memory = Memory::touched(kind, 64 * each);
            let mut watch = memory.watch(&tracker);
            watch.arm().unwrap();
            memory.write(each, 2);
            let read_by_child = || {
                memory.write(2 * each, 9);
                i32::from(memory.read(each) * 10 + memory.read(2 * each))
            };
            assert_eq!(forked(read_by_child), 29);
            memory.write(3 * each, 2);
            memory.write(each, 3);
            let expected = reported_ranges(&tracker, 64 * each, &[each, 3 * each]);
            assert_eq!(watch.written(true).unwrap(), expected, "{kind:?}");
            memory.write(2 * each, 2);
            let expected = reported_ranges(&tracker, 64 * each, &[2 * each]);
            assert_eq!(watch.written(true).unwrap(), expected, "{kind:?}");
        }
    }
}

#[test]
fn in_shared_memory_another_processs_writes_are_not_seen() {
    for tracker in trackers() {
        let each = tracker.granule() / page();
        let memory = Memory::touched(Kind::Shared, 64 * each);
        let mut watch = memory.watch(&tracker);
        watch.arm().unwrap();
        let write = || {
            memory.write(2 * each, 9);
            0
        };
        forked(write);
        memory.write(3 * each, 2);
        let expected = reported_ranges(&tracker, 64 * each, &[3 * each]);
        let seen = watch.written(true).unwrap();
        assert_eq!((memory.read(2 * each), seen), (9, expected));
    }
}

#[test]
fn what_a_forked_child_inherits_does_nothing_there_or_to_the_parent() {
    for tracker in trackers() {
        let memory = Memory::touched(Kind::Anonymous, 64);
        let mut watch = memory.watch(&tracker);
        watch.arm().unwrap();
        let mut inherited = Some(watch);
        let child = || {
            let mut watch = inherited.take().unwrap();
            let refused = watch.written(true).is_err() && watch.arm().is_err();
            let mut copy = [0; 200];
            watch.copy(0, &mut copy);
            drop(watch);
            memory.write(9, 2);
            i32::from(refused && copy[77] == 1)
        };
        // The closure runs in the child: here the value is still in its place.
        let code = forked(child);
        let mut watch = inherited.unwrap();
        assert_eq!(code, 1);
        memory.write(7, 2);
        assert_eq!(
            watch.written(true).unwrap(),
            reported_ranges(&tracker, 64, &[7])
        );
    }
}

#[test]
fn a_program_that_is_started_inherits_nothing() {
    let Some(_tracker) = kernel() else { return };
    let listed = Command::new("ls")
        .args(["-l", "/proc/self/fd"])
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(
        listed.contains("/proc/") && listed.contains("->"),
        "{listed}"
    );
    assert!(
        !listed.contains("userfaultfd") && !listed.contains("pagemap"),
        "{listed}"
    );
}

#[test]
fn pinned_memory_is_counted() {
    let before = pinned().unwrap();
    let memory = Memory::touched(Kind::Anonymous, 64);
    let mut parameters = [0_u8; 120];
    // SAFETY: `struct io_uring_params` has 120 bytes.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    if ring < 0 {
        let e = std::io::Error::last_os_error();
        return eprintln!("SKIPPED: nothing can be pinned without io_uring ({e})");
    }
    let buffer = libc::iovec {
        iov_base: memory.start.as_ptr().cast(),
        iov_len: memory.len,
    };
    // SAFETY: IORING_REGISTER_BUFFERS (0) reads one iovec; the memory lives until the ring is closed.
    let registered = unsafe { libc::syscall(libc::SYS_io_uring_register, ring, 0, &buffer, 1) };
    assert_eq!(registered, 0, "{}", std::io::Error::last_os_error());
    assert_eq!(pinned().unwrap() - before, (64 * page()) as u64);
    // SAFETY: this test's own descriptor.
    unsafe { libc::close(ring as i32) };
}

#[test]
fn where_userfaultfd_is_refused_the_reason_is_said() {
    // A filter holds for the thread that sets it.
    let probing = std::thread::spawn(|| {
        refuse(libc::SYS_userfaultfd);
        Tracker::probe().map(drop)
    });
    let error = probing.join().unwrap().unwrap_err();
    assert!(matches!(error, TrackError::Unsupported(_)), "{error}");
    let message = error.to_string();
    assert!(
        message.contains("userfaultfd is refused") && message.contains("ask for PHX_MPROTECT"),
        "{message}"
    );
}

/// This thread gets EPERM for a system call from now on, as in a container that allows few.
fn refuse(call: i64) {
    let statement = |code: u32, k: u32, (jt, jf): (u8, u8)| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut filter = [
        // The number of the call is the first word of `struct seccomp_data`.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, (0, 0)),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            call as u32,
            (0, 1),
        ),
        statement(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
            (0, 0),
        ),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, (0, 0)),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the filter lives as long as the calls, and refuses one call to this thread.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    };
    assert!(set, "{}", std::io::Error::last_os_error());
}
