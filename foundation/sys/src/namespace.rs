//! Namespaces and mounts of a single-threaded helper process.

use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};
use std::io;
use std::path::Path;

/// The identity of a process in a user namespace that has nobody but its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamespaceIdentity {
    /// By the ids that it has outside.
    AsItself,
    /// As root. A program that sets ids on its own behalf needs that (CRIU does).
    AsRoot,
}

/// The clocks that count from some start: the monotonic one, and the one since the machine was booted. Nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    /// `CLOCK_MONOTONIC`.
    pub monotonic: i64,
    /// `CLOCK_BOOTTIME`.
    pub boottime: i64,
}

impl Clocks {
    /// Their times in this process.
    pub fn now() -> Self {
        use rustix::time::{ClockId, clock_gettime};
        let read = |clock| {
            let now = clock_gettime(clock);
            now.tv_sec.saturating_mul(1_000_000_000) + now.tv_nsec
        };
        Self {
            monotonic: read(ClockId::Monotonic),
            boottime: read(ClockId::Boottime),
        }
    }

    /// The lead of new children's clocks over the machine's: that of this process, until it has set another.
    fn ahead() -> io::Result<Self> {
        let text = std::fs::read_to_string("/proc/self/timens_offsets")?;
        let of = |name: &str| {
            let line = text.lines().find_map(|l| l.strip_prefix(name));
            let mut words = line.unwrap_or_default().split_ascii_whitespace();
            let mut next = || words.next().and_then(|w| w.parse::<i64>().ok());
            let (seconds, nanos) = (next().unwrap_or(0), next().unwrap_or(0));
            seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
        };
        Ok(Self {
            monotonic: of("monotonic"),
            boottime: of("boottime"),
        })
    }

    /// Sets the clocks of the next child to this. (time_namespaces(7): before anybody is in the new namespace.)
    fn set(self) -> io::Result<()> {
        let (now, ahead) = (Self::now(), Self::ahead()?);
        // SAFETY: the process has one thread (`enter` has looked), and CLONE_FILES is not given.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWTIME) }?;
        let line = |name: &str, want: i64, now: i64, ahead: i64| {
            let offset = want.saturating_sub(now).saturating_add(ahead);
            let (seconds, nanos) = (
                offset.div_euclid(1_000_000_000),
                offset.rem_euclid(1_000_000_000),
            );
            format!("{name} {seconds} {nanos}\n")
        };
        let text = line("monotonic", self.monotonic, now.monotonic, ahead.monotonic)
            + &line("boottime", self.boottime, now.boottime, ahead.boottime);
        std::fs::write("/proc/self/timens_offsets", text)
    }
}

/// The process id that was given last in this PID namespace.
///
/// # Errors
/// The error of reading `/proc`.
pub fn last_pid() -> io::Result<i32> {
    let text = std::fs::read_to_string(LAST_PID)?;
    text.trim().parse().map_err(io::Error::other)
}

/// Lets the next process of this PID namespace have the id after this one.
///
/// # Errors
/// The error of writing to `/proc`: it takes a right over the namespace.
pub fn set_last_pid(pid: i32) -> io::Result<()> {
    std::fs::write(LAST_PID, pid.to_string())
}

const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";

/// Leaves the mount, PID and host name namespaces for new ones; the next child is the first process of the
/// new PID namespace. With `user`, a user namespace that maps only the caller's own ids gives the rights. With `clocks`, these continue
/// from there for what is started. With `network` it leaves that too, for one in which nothing is.
///
/// # Errors
/// When the system does not allow it, or the process has other threads.
pub fn enter(
    user: Option<NamespaceIdentity>,
    clocks: Option<Clocks>,
    network: bool,
) -> io::Result<()> {
    if crate::process::threads()? != 1 {
        return Err(io::Error::other(
            "namespaces need a process with a single thread",
        ));
    }
    if let Some(known) = user {
        enter_user(known)?;
    }
    clocks.map_or(Ok(()), Clocks::set)?;
    let mut what = UnshareFlags::NEWNS | UnshareFlags::NEWPID | UnshareFlags::NEWUTS;
    what.set(UnshareFlags::NEWNET, network);
    // SAFETY: the process has one thread, and CLONE_FILES is not given.
    unsafe { rustix::thread::unshare_unsafe(what) }?;
    Ok(())
}

/// Leaves the user namespace for a new one that maps only the caller's own ids. The process must have a single thread.
fn enter_user(known: NamespaceIdentity) -> io::Result<()> {
    let (uid, gid) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    // SAFETY: the process has one thread, and CLONE_FILES is not given.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) }?;
    // user_namespaces(7): an unprivileged process must give up setgroups before it maps its group.
    std::fs::write("/proc/self/setgroups", "deny")?;
    let inside = |id| {
        if known == NamespaceIdentity::AsRoot {
            0
        } else {
            id
        }
    };
    std::fs::write("/proc/self/uid_map", format!("{} {uid} 1", inside(uid)))?;
    std::fs::write("/proc/self/gid_map", format!("{} {gid} 1", inside(gid)))?;
    Ok(())
}

/// Gives this process mounts of its own, which go with it and its children, and lets `arrange` make some; with `user` by the
/// rights of a user namespace. Of these rights it keeps only that to mount, and that only to pass it on.
///
/// # Errors
/// When the system does not allow it, the process has other threads, or the error of `arrange`.
pub fn enter_mounts<T>(user: bool, arrange: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if crate::process::threads()? != 1 {
        return Err(io::Error::other(
            "namespaces need a process with a single thread",
        ));
    }
    if user {
        enter_user(NamespaceIdentity::AsItself)?;
    }
    own_mounts()?;
    let arranged = arrange();
    if user {
        let rights = CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::SYS_ADMIN,
            inheritable: CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, rights)?;
    }
    arranged
}

/// Gives the calling thread, and its later children, mounts of its own: those that it makes are gone with them.
///
/// # Errors
/// The system's error, such as for a user who is not root.
pub fn own_mounts() -> io::Result<()> {
    // SAFETY: no descriptors are unshared, so open files of other threads stay valid.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
    make_private()
}

/// Lets `act` change the mounts of this thread's namespace, where [`enter_mounts`] has kept the right to.
///
/// # Errors
/// The error of `act`, or the system's about the right.
pub fn mounting<T>(act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = rustix::thread::capabilities(None)?;
    let mut rights = before;
    rights.effective |= rights.permitted & CapabilitySet::SYS_ADMIN;
    rustix::thread::set_capabilities(None, rights)?;
    let done = act();
    rustix::thread::set_capabilities(None, before)?;
    done
}

/// Keeps every later mount of this namespace from the rest of the system.
///
/// # Errors
/// The error of mount(2).
pub fn make_private() -> io::Result<()> {
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    Ok(rustix::mount::mount_change("/", flags)?)
}

/// Shows `from` at `to` as well.
///
/// # Errors
/// The error of mount(2).
pub fn bind(from: &Path, to: &Path) -> io::Result<()> {
    Ok(rustix::mount::mount_bind_recursive(from, to)?)
}

/// Makes the mount at `at` read-only, its other flags kept (a user namespace may not drop them).
///
/// # Errors
/// The error of mount(2).
pub fn read_only(at: &Path) -> io::Result<()> {
    let keep = mount_flags(at)?;
    rustix::mount::mount_remount(at, keep | MountFlags::BIND | MountFlags::RDONLY, "")?;
    Ok(())
}

fn mount_flags(at: &Path) -> io::Result<MountFlags> {
    use rustix::fs::StatVfsMountFlags as Has;
    let has = rustix::fs::statvfs(at)?.f_flag;
    let pairs = [
        (Has::NOSUID, MountFlags::NOSUID),
        (Has::NODEV, MountFlags::NODEV),
        (Has::NOEXEC, MountFlags::NOEXEC),
        (Has::NOATIME, MountFlags::NOATIME),
        (Has::NODIRATIME, MountFlags::NODIRATIME),
        (Has::RELATIME, MountFlags::RELATIME),
    ];
    let kept = pairs.iter().filter(|(bit, _)| has.contains(*bit));
    Ok(kept.fold(MountFlags::empty(), |all, (_, flag)| all | *flag))
}

/// Mounts an empty file system in memory of at most so many bytes, for its owner only. Where that is allowed its pages are never
/// swapped out.
///
/// # Errors
/// The error of mount(2).
pub fn mount_memory(at: &Path, bytes: u64) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let options = |more: &str| std::ffi::CString::new(format!("size={bytes},mode=0700{more}"));
    // Linux 6.4 and later, for the real root only.
    let unswapped = options(",noswap")?;
    if rustix::mount::mount("tmpfs", at, "tmpfs", flags, unswapped.as_c_str()).is_ok() {
        return Ok(());
    }
    let plain = options("")?;
    Ok(rustix::mount::mount(
        "tmpfs",
        at,
        "tmpfs",
        flags,
        plain.as_c_str(),
    )?)
}

/// Mounts a file system at `at` that has these empty folders, on which others can be mounted, and to which nothing can be written.
///
/// # Errors
/// The error of mount(2) or mkdir(2).
pub fn mount_folders(at: &Path, names: &[String]) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("tmpfs", at, "tmpfs", flags, c"size=1m,mode=0755")?;
    for name in names {
        std::fs::create_dir_all(at.join(name))?;
    }
    read_only(at)
}

/// Mounts terminals that nobody else has.
///
/// # Errors
/// The error of mount(2).
pub fn mount_terminals() -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    let options = c"newinstance,ptmxmode=0666,mode=0600";
    rustix::mount::mount("devpts", "/dev/pts", "devpts", flags, options)?;
    bind(Path::new("/dev/pts/ptmx"), Path::new("/dev/ptmx"))
}

/// Takes away the mount at `at`: it stays wherever else it is shown or open.
///
/// # Errors
/// The error of umount(2).
pub fn unmount(at: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(
        at,
        rustix::mount::UnmountFlags::DETACH,
    )?)
}

/// Mounts the `/proc` of the PID namespace of the calling process.
///
/// # Errors
/// The error of mount(2): containers that mask parts of `/proc` forbid it to user namespaces.
pub fn mount_proc() -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(rustix::mount::mount("proc", "/proc", "proc", flags, None)?)
}

/// Sets the host name of this namespace.
///
/// # Errors
/// The error of sethostname(2).
pub fn set_hostname(name: &str) -> io::Result<()> {
    Ok(rustix::system::sethostname(name.as_bytes())?)
}
