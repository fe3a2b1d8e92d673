//! Processes: fork of a single-threaded helper, reaping with resource usage, death with the parent.

use rustix::process::{Pid, Signal};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// The side of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fork {
    /// The new process.
    Child,
    /// The process that forked, with the child's id.
    Parent(Pid),
}

/// A child that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reaped {
    /// Its process id.
    pub pid: Pid,
    /// Its end.
    pub end: ProcessExit,
    /// The resources that it and the descendants it waited for used.
    pub usage: ResourceUsage,
}

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessExit {
    /// It exited with this status.
    Exited(i32),
    /// This signal ended it.
    Signalled(i32),
}

/// CPU time in nanoseconds and the largest resident set in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResourceUsage {
    /// In user mode.
    pub user: u64,
    /// In the kernel.
    pub system: u64,
    /// Of the largest single process.
    pub memory: u64,
}

impl ResourceUsage {
    /// The sum of two processes' usage (of memory: the larger).
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            user: self.user.saturating_add(other.user),
            system: self.system.saturating_add(other.system),
            memory: self.memory.max(other.memory),
        }
    }
}

/// The file that this code was loaded from: the program's, or that of the library that it is a part of.
///
/// # Errors
/// When the kernel gives no answer.
pub fn own_file() -> io::Result<PathBuf> {
    let own = own_file as *const () as u64;
    let maps = std::fs::read("/proc/self/maps")?;
    let has_own = |line: &[u8]| {
        let text = str::from_utf8(line.split(|b| *b == b' ').next()?).ok()?;
        let (from, to) = text.split_once('-')?;
        let from = u64::from_str_radix(from, 16).ok()?;
        let to = u64::from_str_radix(to, 16).ok()?;
        // The path stands last, and is all from the first slash on.
        let path = line.iter().position(|b| *b == b'/')?;
        (from..to)
            .contains(&own)
            .then(|| PathBuf::from(OsStr::from_bytes(&line[path..])))
    };
    let found = maps.split(|b| *b == b'\n').find_map(has_own);
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Threads of this process.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn threads() -> io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/task")?.count())
}

/// Forks. Only a process with a single thread may: locks of other threads would stay locked in the child.
///
/// # Errors
/// When there are other threads, or no process can be made.
pub fn fork() -> io::Result<Fork> {
    if threads()? != 1 {
        return Err(io::Error::other(
            "fork needs a process with a single thread",
        ));
    }
    // SAFETY: the process has one thread (checked above, and only this thread could start another), so no
    // lock can be held by a thread that does not exist in the child.
    let pid = unsafe { libc::fork() };
    match pid {
        ..0 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        _ => Pid::from_raw(pid)
            .map(Fork::Parent)
            .ok_or_else(|| io::Error::other("fork returned no process id")),
    }
}

/// Waits for any child. `Ok(None)` when none has ended and `block` is false.
///
/// # Errors
/// `ECHILD` when there are no children.
pub fn reap(block: bool) -> io::Result<Option<Reaped>> {
    let mut status = 0;
    // SAFETY: `rusage` is plain data for which all zeros is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let flags = if block { 0 } else { libc::WNOHANG };
    loop {
        // SAFETY: both pointers are to live, writable locals of the right types.
        let pid = unsafe { libc::wait4(-1, &raw mut status, flags, &raw mut usage) };
        if pid < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error);
        }
        let Some(pid) = Pid::from_raw(pid) else {
            return Ok(None);
        };
        let end = if libc::WIFSIGNALED(status) {
            ProcessExit::Signalled(libc::WTERMSIG(status))
        } else {
            ProcessExit::Exited(libc::WEXITSTATUS(status))
        };
        return Ok(Some(Reaped {
            pid,
            end,
            usage: usage_of(&usage),
        }));
    }
}

fn usage_of(r: &libc::rusage) -> ResourceUsage {
    let nanos = |t: libc::timeval| {
        let (s, us) = (
            t.tv_sec.max(0).unsigned_abs(),
            t.tv_usec.max(0).unsigned_abs(),
        );
        s.saturating_mul(1_000_000_000)
            .saturating_add(us.saturating_mul(1000))
    };
    ResourceUsage {
        user: nanos(r.ru_utime),
        system: nanos(r.ru_stime),
        // Linux counts `ru_maxrss` in KiB.
        memory: r.ru_maxrss.max(0).unsigned_abs().saturating_mul(1024),
    }
}

/// Makes the command's process die with `signal` when the thread that starts it ends.
pub fn die_with_parent(command: &mut Command, signal: Signal) -> &mut Command {
    let parent = rustix::process::getpid();
    // SAFETY: the closure only makes two system calls (prctl, getppid), which are async-signal-safe, and
    // allocates nothing.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(signal))?;
            // The parent may have died before the call above.
            if rustix::process::getppid() == Some(parent) {
                Ok(())
            } else {
                Err(io::Error::from_raw_os_error(libc::ESRCH))
            }
        })
    }
}

/// Makes the command's process the leader of a session of its own, to which nothing is handed but its standard streams: an image can be
/// taken of what is below it. With `powerless` it and what it starts have no capabilities, whoever they are. With `ipc` they have memory
/// segments, semaphores and queues (System V, and POSIX queues) that nobody else has.
pub fn begin_session(command: &mut Command, powerless: bool, ipc: bool) -> &mut Command {
    // SAFETY: the closure only makes system calls (setsid, unshare, close_range, prctl), which are async-signal-safe, and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            if ipc && libc::unshare(libc::CLONE_NEWIPC) != 0 {
                return Err(io::Error::last_os_error());
            }
            let (first, last) = (3 as libc::c_uint, libc::c_uint::MAX);
            let flags = libc::CLOSE_RANGE_CLOEXEC;
            if libc::syscall(libc::SYS_close_range, first, last, flags) != 0 {
                return Err(io::Error::last_os_error());
            }
            let none = 0 as libc::c_ulong;
            // Those that this kernel does not know are refused, and not there.
            for capability in 0..if powerless { 64 as libc::c_ulong } else { 0 } {
                libc::prctl(libc::PR_CAPBSET_DROP, capability, none, none, none);
            }
            Ok(())
        })
    }
}

/// Makes the command's process, and its children, take no notice of a signal.
pub fn ignoring(command: &mut Command, signal: Signal) -> &mut Command {
    // SAFETY: the closure only makes a system call (signal), which is async-signal-safe, and allocates nothing.
    unsafe {
        command.pre_exec(move || match libc::signal(signal.as_raw(), libc::SIG_IGN) {
            libc::SIG_ERR => Err(io::Error::last_os_error()),
            _ => Ok(()),
        })
    }
}

/// Makes the command's process a user's from its first instruction: their user, group and groups, no capability and no way to more,
/// a session of its own. Only root can start it.
pub fn become_user(command: &mut Command, user: u32, group: u32, groups: Vec<u32>) -> &mut Command {
    // SAFETY: the closure only makes system calls (setgroups, setresgid, setresuid, prctl, setsid), which are async-signal-safe, and
    // allocates nothing. After a fork there is one thread, so they are the whole process's.
    unsafe {
        command.pre_exec(move || {
            let done = |code: libc::c_long| match code {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            };
            done(libc::syscall(
                libc::SYS_setgroups,
                groups.len(),
                groups.as_ptr(),
            ))?;
            done(libc::syscall(libc::SYS_setresgid, group, group, group))?;
            done(libc::syscall(libc::SYS_setresuid, user, user, user))?;
            let none = 0 as libc::c_ulong;
            done(
                libc::prctl(
                    libc::PR_SET_NO_NEW_PRIVS,
                    1 as libc::c_ulong,
                    none,
                    none,
                    none,
                )
                .into(),
            )?;
            rustix::process::setsid()?;
            Ok(())
        })
    }
}

/// Makes this whole process a user's, for good, with that group alone. Only root can.
///
/// # Errors
/// The error of setresuid(2) or its like; then nothing is done with half the rights: end.
pub fn be_user(user: u32, group: u32) -> io::Result<()> {
    let done = |code: libc::c_int| match code {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: numbers only, and a pointer to one group that outlives the call. The C library does it for all threads.
    unsafe {
        done(libc::setgroups(1, &group))?;
        done(libc::setresgid(group, group, group))?;
        done(libc::setresuid(user, user, user))
    }
}

/// Keeps others of the same user from looking into this process's memory.
///
/// # Errors
/// The error of prctl(2).
pub fn be_opaque() -> io::Result<()> {
    let none = 0 as libc::c_ulong;
    // SAFETY: numbers only.
    match unsafe { libc::prctl(libc::PR_SET_DUMPABLE, none, none, none, none) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends `signal` to every process of this PID namespace but this one, which must be its first process.
///
/// # Errors
/// When this process is not the first of its PID namespace: it would reach far more than was meant.
pub fn signal_namespace(signal: Signal) -> io::Result<()> {
    if rustix::process::getpid() != Pid::INIT {
        return Err(io::Error::other(
            "only the first process of a PID namespace may signal all of it",
        ));
    }
    // SAFETY: kill(2) takes two integers and touches no memory.
    if unsafe { libc::kill(-1, signal.as_raw()) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        // Nobody else is left.
        e if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        e => Err(e),
    }
}

/// Bytes (read, written) by system calls of this process and the descendants it has waited for.
///
/// # Errors
/// When the kernel does not account them.
pub fn io_bytes() -> io::Result<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/self/io")?;
    let field = |name: &str| {
        text.lines()
            .find_map(|l| l.strip_prefix(name)?.trim().parse().ok())
            .unwrap_or(0)
    };
    Ok((field("rchar:"), field("wchar:")))
}

/// All living descendants of process `root` (by `/proc`), itself excluded.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn descendants(root: Pid) -> io::Result<Vec<Pid>> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<i32>().ok())
        else {
            continue;
        };
        if let Some((parent, _)) = stat_of(pid) {
            parents.push((pid, parent));
        }
    }
    let mut found = vec![root.as_raw_nonzero().get()];
    let mut at = 0;
    while at < found.len() {
        let parent = found[at];
        found.extend(
            parents
                .iter()
                .filter(|(_, p)| *p == parent)
                .map(|(pid, _)| *pid),
        );
        at += 1;
    }
    Ok(found
        .into_iter()
        .skip(1)
        .filter_map(Pid::from_raw)
        .collect())
}

/// The start time of a living process in clock ticks since boot: with its id, it names a process for ever.
/// `None` when there is no such process or it is a zombie.
pub fn start_time(pid: i32) -> Option<u64> {
    stat_of(pid).map(|(_, start)| start)
}

/// The parent of a living process; `None` when there is none.
pub fn parent(pid: i32) -> Option<i32> {
    let (parent, _) = stat_of(pid)?;
    (parent > 0).then_some(parent)
}

/// Whether this process ignores a signal, as `nohup` makes its command do.
pub fn ignores(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    // proc(5): a hexadecimal mask; signal 1 is the lowest bit.
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok());
    let bit = u32::try_from(signal - 1)
        .ok()
        .and_then(|n| 1u64.checked_shl(n));
    matches!((mask, bit), (Some(mask), Some(bit)) if mask & bit != 0)
}

/// Parent and start time from `/proc/<pid>/stat` (proc(5): fields 4 and 22; the name may hold any character).
fn stat_of(pid: i32) -> Option<(i32, u64)> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    if matches!(*fields.first()?, "Z" | "X") {
        return None;
    }
    Some((fields.get(1)?.parse().ok()?, fields.get(19)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_code_is_in_the_test_program() {
        assert_eq!(own_file().unwrap(), std::env::current_exe().unwrap());
    }

    #[test]
    fn pipes_are_ignored_and_children_are_not() {
        // Rust's runtime ignores SIGPIPE (13) and nothing else.
        assert!(ignores(13) && !ignores(17) && !ignores(0) && !ignores(-1) && !ignores(65));
    }

    #[test]
    fn own_start_time_is_stable_and_children_are_found() {
        let me = rustix::process::getpid();
        let raw = me.as_raw_nonzero().get();
        assert_eq!(start_time(raw), start_time(raw));
        assert!(start_time(raw).is_some());
        let mut command = Command::new("/bin/sleep");
        let mut child = die_with_parent(command.arg("60"), Signal::KILL)
            .spawn()
            .unwrap();
        let id = i32::try_from(child.id()).unwrap();
        assert!(
            descendants(me)
                .unwrap()
                .contains(&Pid::from_raw(id).unwrap())
        );
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(start_time(id), None);
    }

    #[test]
    fn only_the_first_process_may_signal_all() {
        // Runs outside of a namespace of its own: must refuse, not signal the machine.
        assert!(signal_namespace(Signal::CONT).is_err());
    }

    #[test]
    fn fork_is_refused_beside_other_threads() {
        // The test harness runs this on a thread of its own.
        assert!(fork().is_err());
    }
}
