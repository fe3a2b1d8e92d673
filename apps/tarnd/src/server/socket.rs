//! The socket that programs connect to.

use crate::TarndError;
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::path::Path;
use tarn_types::codes::Exit;

/// Removes the socket's name at the end.
pub(super) struct Remove<'a>(pub(super) &'a Path);

impl Drop for Remove<'_> {
    fn drop(&mut self) {
        if is_socket(self.0) {
            let _ = std::fs::remove_file(self.0);
        }
    }
}

/// Listens at a path, whose leftover of an earlier tarnd is removed; `guests`: other users may connect.
pub(super) fn listen_at(path: &Path, guests: bool) -> Result<OwnedFd, TarndError> {
    let state = |e: Errno, doing: &str| {
        let text = format!("cannot {doing} the socket {}: {e}", path.display());
        TarndError::new(Exit::State, anyhow::anyhow!(text))
    };
    let address = SocketAddrUnix::new(path).map_err(|e| state(e, "name"))?;
    let new = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
    };
    let socket = new().map_err(|e| state(e, "make"))?;
    match connect(new().map_err(|e| state(e, "make"))?, &address) {
        Ok(()) | Err(Errno::AGAIN) => {
            let text = format!("another tarnd listens at {}; stop it first", path.display());
            return Err(TarndError::new(Exit::Busy, anyhow::anyhow!(text)));
        }
        // Nobody listens: a leftover of one that was killed, or nothing that was ever tarnd's.
        Err(Errno::CONNREFUSED) if is_socket(path) => drop(std::fs::remove_file(path)),
        Err(Errno::CONNREFUSED) => {
            let text = format!(
                "{} exists and is no socket: give a name that is free (`--socket`)",
                path.display()
            );
            return Err(TarndError::new(Exit::Usage, anyhow::anyhow!(text)));
        }
        Err(_) => {}
    }
    // Only permitted users can connect, in between too.
    let mask = if guests { 0o111 } else { 0o177 };
    let before = rustix::process::umask(Mode::from_raw_mode(mask));
    let bound = bind(&socket, &address);
    rustix::process::umask(before);
    bound.map_err(|e| state(e, "make"))?;
    listen(&socket, 128).map_err(|e| state(e, "listen at"))?;
    Ok(socket)
}

/// Whether that is a socket itself, not a link to one.
fn is_socket(path: &Path) -> bool {
    let stat = rustix::fs::lstat(path);
    stat.is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Socket)
}
