//! A step that is alone: its network, shared memory and terminals are its own, so that its images hold them. docs/internals/local-world.md,
//! "Steps that are alone".

use super::{StepImage, put_back};
use crate::storage::store::{failure, io_failure};
use rustix::fs::{CWD, Mode, OFlags, openat, statvfs};
use rustix::io::Errno;
use rustix::process::Pid;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tarn_ports::{Control, Mover};
use tarn_sys::{namespace, process};
use tarn_types::event::{RunError, RunErrorKind};

/// The name of its shared memory in an image; no dataset can have it.
pub(crate) const MEMORY: &str = ".shm";
/// The folder of shared memory.
const SHARED: &str = "/dev/shm";
/// The mode of a folder in which anybody may write, and only the owner of a file may remove it.
const OPEN: u32 = 0o1777;

/// The folder with the files that such a step sees in `/dev/shm`; `at` is the folder that was made for it.
pub(crate) fn memory(at: &Path) -> PathBuf {
    at.join("shm")
}

/// Gives the calling process, in the mount namespace of its step, shared memory and terminals of their own. With `from`, what an image
/// among these has of that memory is there. Folders in `/dev/shm` stay what they are: tiers are there, and programs' shared memory is files.
pub(crate) fn begin(
    at: &Path,
    from: Option<(&Path, &StepImage)>,
    mover: &dyn Mover,
) -> io::Result<()> {
    let size = statvfs(SHARED)?;
    let bytes = size.f_blocks.saturating_mul(size.f_frsize);
    namespace::mount_memory(at, bytes)?;
    let own = memory(at);
    match from {
        Some((images, image)) => put_back(mover, images, image, MEMORY, &own, &Control::default())
            .map_err(|f| io::Error::other(f.message))?,
        None => std::fs::create_dir(&own)?,
    }
    for open in [at, &own] {
        std::fs::set_permissions(open, std::fs::Permissions::from_mode(OPEN))?;
    }
    let folders = folders()?;
    namespace::bind(&own, Path::new(SHARED))?;
    for (name, folder) in folders {
        let to = Path::new(SHARED).join(name);
        std::fs::create_dir_all(&to)?;
        let folder = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
        namespace::bind(&folder, &to)?;
    }
    namespace::mount_terminals()
}

/// The folders that are there now, open.
fn folders() -> io::Result<Vec<(std::ffi::OsString, OwnedFd)>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut all = Vec::new();
    for entry in std::fs::read_dir(SHARED)? {
        let entry = entry?;
        match openat(CWD, entry.path(), flags, Mode::empty()) {
            Ok(folder) => all.push((entry.file_name(), folder)),
            // It is no folder, or not there any more.
            Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(all)
}

/// Whether an image that holds these processes holds all of its step. Called while they stand still.
pub(super) fn holds_all(root: Pid, alone: bool) -> Result<(), RunError> {
    let io = |e: io::Error| io_failure("look at", Path::new("/proc"), &e);
    let refuse = |why: String| Err(failure(RunErrorKind::Io, why));
    let foreign = find_foreign_process(root).map_err(io)?;
    if let Some(pid) = foreign {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        return refuse(format!(
            "process {pid} (`{}`) is not below the step's first process, as what started it has ended: an image would be without it",
            name.trim()
        ));
    }
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        // A machine without IPv6 has one only.
        let text = std::fs::read_to_string(table).unwrap_or_default();
        if alone && has_unread(&text) {
            return refuse(
                "a process has ended before what it had sent by TCP was taken: no process holds that any more".into(),
            );
        }
    }
    Ok(())
}

/// A process of this PID namespace that is neither the helper, nor of the step below its first one, nor of what takes the image.
fn find_foreign_process(root: Pid) -> io::Result<Option<i32>> {
    let mut taker = rustix::process::getpid();
    while let Some(above) = process::parent(taker.as_raw_nonzero().get()).and_then(Pid::from_raw)
        && above != Pid::INIT
    {
        taker = above;
    }
    let mut known = vec![root, taker];
    for top in [root, taker] {
        known.extend(process::descendants(top)?);
    }
    let all = process::descendants(Pid::INIT)?.into_iter();
    let others = all.filter(|pid| !known.contains(pid));
    let mut living = others
        .map(|pid| pid.as_raw_nonzero().get())
        .filter(|pid| !has_ended(*pid));
    Ok(living.next())
}

/// Whether a process only waits for the helper to take note of its end.
fn has_ended(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest.trim_start());
    state.is_empty() || state.starts_with(['Z', 'X'])
}

/// Whether a table of TCP sockets (proc(5)) has one that no process holds and that still has data to send. CRIU itself reports an
/// accepted connection whose two ends belong to nobody yet.
fn has_unread(table: &str) -> bool {
    const LISTENS: &str = "0A";
    table.lines().skip(1).any(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, _, _, state, queues, _, _, _, _, inode, ..] = words[..] else {
            return false;
        };
        let unsent = queues.split_once(':').map_or("", |(sent, _)| sent);
        inode == "0" && state != LISTENS && unsent.chars().any(|c| c != '0')
    })
}

/// The file that shows that the process on trial is connected.
pub(super) const CONNECTED: &str = "connected";
/// The argument that makes `tarn __image` that process.
pub(super) const TRIAL: &str = "connected";

/// Has a connection with itself, on trial, until it is killed.
pub(super) fn on_trial() -> ExitCode {
    let connected = || -> io::Result<(TcpListener, TcpStream, TcpStream)> {
        let listens = TcpListener::bind("127.0.0.1:0")?;
        let mut one = TcpStream::connect(listens.local_addr()?)?;
        let (other, _) = listens.accept()?;
        one.write_all(b"unread")?;
        Ok((listens, one, other))
    };
    match connected().and_then(|all| std::fs::write(CONNECTED, "").map(|()| all)) {
        Ok(_held) => loop {
            std::thread::sleep(Duration::from_secs(1000));
        },
        Err(_) => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_and_belongs_to_nobody_is_seen() {
        let line = |state: &str, queue: &str, inode: &str| {
            format!(
                "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                 0: 0100007F:9C4F 0100007F:A148 {state} {queue}:00000000 00:00000000 00000000     0        0 {inode} 1 ffff 20 4 24 10 -1\n"
            )
        };
        assert!(has_unread(&line("04", "0000A000", "0")));
        assert!(!has_unread(&line("04", "00000000", "0")));
        assert!(!has_unread(&line("01", "0000A000", "4711")));
        assert!(!has_unread(&line("0A", "00000001", "0")));
        assert!(!has_unread(""));
    }
}
