//! Namespaces and mounts of a single-threaded helper process.

use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;
use std::io;
use std::path::Path;

/// Leaves the mount, PID and host name namespaces for new ones; the next child is the first process of the
/// new PID namespace. With `user`, a user namespace that maps only the caller's own ids gives the rights.
///
/// # Errors
/// When the system does not allow it, or the process has other threads.
pub fn enter(user: bool) -> io::Result<()> {
    if crate::process::threads()? != 1 {
        return Err(io::Error::other(
            "namespaces need a process with a single thread",
        ));
    }
    if user {
        let (uid, gid) = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        // SAFETY: the process has one thread, and CLONE_FILES is not given.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) }?;
        // user_namespaces(7): an unprivileged process must give up setgroups before it maps its group.
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    }
    // SAFETY: as above.
    unsafe {
        rustix::thread::unshare_unsafe(
            UnshareFlags::NEWNS | UnshareFlags::NEWPID | UnshareFlags::NEWUTS,
        )
    }?;
    Ok(())
}

/// Gives the calling thread, and what it starts, mounts of its own: those that it makes are gone with them.
///
/// # Errors
/// What the system says, such as to who is not root.
pub fn own_mounts() -> io::Result<()> {
    // SAFETY: no descriptors are unshared, so what other threads have open stays valid.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
    make_private()
}

/// Keeps every later mount of this namespace from the rest of the system.
///
/// # Errors
/// What mount(2) says.
pub fn make_private() -> io::Result<()> {
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    Ok(rustix::mount::mount_change("/", flags)?)
}

/// Shows `from` at `to` as well.
///
/// # Errors
/// What mount(2) says.
pub fn bind(from: &Path, to: &Path) -> io::Result<()> {
    Ok(rustix::mount::mount_bind_recursive(from, to)?)
}

/// Makes the mount at `at` read-only, its other flags kept (a user namespace may not drop them).
///
/// # Errors
/// What mount(2) says.
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
/// What mount(2) says.
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

/// Takes away what is mounted at `at`: it stays wherever else it is shown or open.
///
/// # Errors
/// What umount(2) says.
pub fn unmount(at: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(
        at,
        rustix::mount::UnmountFlags::DETACH,
    )?)
}

/// Mounts the `/proc` of the PID namespace of the calling process.
///
/// # Errors
/// What mount(2) says: containers that mask parts of `/proc` forbid it to user namespaces.
pub fn mount_proc() -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(rustix::mount::mount("proc", "/proc", "proc", flags, None)?)
}

/// Sets the host name of this namespace.
///
/// # Errors
/// What sethostname(2) says.
pub fn set_hostname(name: &str) -> io::Result<()> {
    Ok(rustix::system::sethostname(name.as_bytes())?)
}
