//! The way to tarnd's socket, which may not be there yet.

use crate::BETWEEN;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::path::Path;
use std::time::{Duration, Instant};

/// A socket's address. A path that is too long for one is reached through its open folder.
fn address(path: &Path) -> std::result::Result<(SocketAddrUnix, Option<OwnedFd>), Errno> {
    let (folder, name) = match (SocketAddrUnix::new(path), path.parent(), path.file_name()) {
        (Err(Errno::NAMETOOLONG), Some(folder), Some(name)) => (folder, name),
        (address, ..) => return Ok((address?, None)),
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = open(folder, flags, Mode::empty())?;
    let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string());
    Ok((SocketAddrUnix::new(short.join(name))?, Some(folder)))
}

/// No socket is there, or one of a tarnd that has ended.
pub(super) fn is_not_listening(e: Errno) -> bool {
    matches!(e, Errno::NOENT | Errno::CONNREFUSED)
}

/// Whether a socket may come to be there: tarnd makes no folder for its own.
pub(super) fn may_appear(path: &Path) -> bool {
    let folder = path.parent().map(|folder| match folder.as_os_str() {
        here if here.is_empty() => Path::new("."),
        _ => folder,
    });
    folder.is_some_and(Path::is_dir)
}

/// A socket connected to it, as soon as somebody listens there.
pub(super) fn listening(path: &Path, timeout: Duration) -> std::result::Result<OwnedFd, Errno> {
    let until = Instant::now() + timeout;
    let mut pause = BETWEEN.0;
    loop {
        let connected = || {
            let (address, _folder) = address(path)?;
            let flags = SocketFlags::CLOEXEC;
            let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            connect(&fd, &address).map(|()| fd)
        };
        match connected() {
            Err(e) if is_not_listening(e) && Instant::now() + pause < until => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(BETWEEN.1);
            }
            connected => return connected,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{bind, listen};

    #[test]
    fn a_socket_comes_only_where_its_folder_is() {
        let folder = tempfile::tempdir().unwrap();
        assert!(may_appear(&folder.path().join("socket")));
        assert!(may_appear(Path::new("socket")));
        assert!(!may_appear(&folder.path().join("none/socket")));
    }

    #[test]
    fn a_tarnd_that_is_starting_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let at_once = listening(&path, Duration::ZERO);
        assert_eq!(at_once.unwrap_err(), Errno::NOENT);
        let bound = || {
            let fd = socket_with(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC,
                None,
            );
            let fd = fd.unwrap();
            bind(&fd, &SocketAddrUnix::new(&path).unwrap()).unwrap();
            fd
        };
        // A socket file that an earlier process has left.
        drop(bound());
        let at_once = listening(&path, Duration::ZERO);
        assert_eq!(at_once.unwrap_err(), Errno::CONNREFUSED);
        let connected = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| listening(&path, Duration::from_secs(120)));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished());
            std::fs::remove_file(&path).unwrap();
            let fd = bound();
            listen(&fd, 1).unwrap();
            waiting.join().unwrap().map(|there| (there, fd))
        });
        assert!(connected.is_ok());
    }
}
