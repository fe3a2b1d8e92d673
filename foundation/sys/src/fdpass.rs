//! Descriptors passed over unix sockets.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Descriptors in one message: standard input, output and error, and the others that a program was started with.
pub const MAX_FDS: usize = 64;
/// Descriptors that come with a packet: one is taken, the others are closed.
const MAX_OF_PACKET: usize = 3;

/// Sends one byte with descriptors.
///
/// # Errors
/// When the socket is closed or the descriptors are more than [`MAX_FDS`].
pub fn send(socket: impl AsFd, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut buffer = SendAncillaryBuffer::new(&mut space);
    if fds.len() > MAX_FDS || !buffer.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors in one message"));
    }
    // A closed peer is an error here, never a SIGPIPE.
    sendmsg(
        socket,
        &[IoSlice::new(b"f")],
        &mut buffer,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Receives a message of [`send`]. The descriptors are close-on-exec.
///
/// # Errors
/// When the socket is closed, the message carries no descriptors, or not all of them could be received. None stays open then.
pub fn receive(socket: impl AsFd) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut buffer = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    let got = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut buffer,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let is_cut_off = got.flags.contains(ReturnFlags::CTRUNC);
    let mut fds = Vec::new();
    for message in buffer.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if got.bytes == 0 || (fds.is_empty() && !is_cut_off) {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
    }
    // The buffer for them may hold one more.
    if is_cut_off || fds.len() > MAX_FDS {
        let text = format!(
            "not all descriptors of the request could be received: at most {MAX_FDS} come in one message, and none beyond the limit of \
             open files"
        );
        return Err(io::Error::other(text));
    }
    Ok(fds)
}

/// The process at the other end of a unix socket, as the kernel knew it when it connected, or began to listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketPeer {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The process; 0 where it is in another namespace of process numbers. (rustix has no such number, and so no such peer.)
    pub pid: i32,
}

/// The process at the other end of a unix socket.
///
/// # Errors
/// The error of getsockopt(2).
pub fn peer(socket: impl AsFd) -> io::Result<SocketPeer> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `bytes` is the length of the buffer.
    let code = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut bytes,
        )
    };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    let libc::ucred { pid, uid, gid } = peer;
    Ok(SocketPeer { uid, gid, pid })
}

/// The groups of the process at the other end of a unix socket, as the kernel knows them.
///
/// # Errors
/// The error of getsockopt(2) (SO_PEERGROUPS: Linux 4.13).
pub fn peer_groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; 64];
    loop {
        let mut bytes = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: `bytes` is the length of the buffer.
        let code = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let needed = bytes as usize / size_of::<u32>();
        if code == 0 {
            groups.truncate(needed);
            return Ok(groups);
        }
        let e = io::Error::last_os_error();
        if e.raw_os_error() != Some(libc::ERANGE) || needed <= groups.len() {
            return Err(e);
        }
        groups.resize(needed, 0);
    }
}

/// Sends a whole packet with at most one descriptor. Never blocks, never a SIGPIPE.
///
/// # Errors
/// `WouldBlock` when the peer does not read; others when the socket is closed.
pub fn send_packet(
    socket: impl AsFd,
    bytes: &[u8],
    fd: Option<BorrowedFd<'_>>,
    flags: SendFlags,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut buffer = SendAncillaryBuffer::new(&mut space);
    let fds: &[BorrowedFd<'_>] = fd.as_slice();
    if !fds.is_empty() && !buffer.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("a descriptor does not fit into a message"));
    }
    let flags = flags | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut buffer, flags)?;
    Ok(())
}

/// A packet as it was received.
#[derive(Debug)]
pub struct Received {
    /// Bytes of it; 0 when the peer has closed.
    pub len: usize,
    /// Whether it was longer than the buffer.
    pub truncated: bool,
    /// The descriptor that came with it, close-on-exec; further ones are closed.
    pub fd: Option<OwnedFd>,
}

/// Receives a packet.
///
/// # Errors
/// `WouldBlock` when there is none and the call must not wait.
pub fn receive_packet(
    socket: impl AsFd,
    into: &mut [u8],
    flags: RecvFlags,
) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_OF_PACKET))];
    let mut buffer = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(socket, &mut [IoSliceMut::new(into)], &mut buffer, flags)?;
    let mut fd = None;
    for message in buffer.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            for right in rights {
                fd.get_or_insert(right);
            }
        }
    }
    Ok(Received {
        len: got.bytes,
        truncated: got.flags.contains(ReturnFlags::TRUNC),
        fd,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_passed_descriptor_is_the_same_file() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        send(&here, &[writer.as_fd()]).unwrap();
        drop(writer);
        let mut got = receive(&there).unwrap();
        assert_eq!(got.len(), 1);
        let mut file = std::fs::File::from(got.remove(0));
        file.write_all(b"hello").unwrap();
        drop(file);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        drop(here);
        assert!(receive(&there).is_err());
    }

    #[test]
    fn a_message_of_which_descriptors_were_lost_is_refused() {
        let (here, there) = UnixStream::pair().unwrap();
        let own = peer(&here).unwrap();
        assert_eq!(own.uid, rustix::process::geteuid().as_raw());
        assert_eq!(own.pid, std::process::id() as i32);
        // More than tarn ever sends.
        let fds = [here.as_fd(); MAX_FDS + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS + 1))];
        let mut buffer = SendAncillaryBuffer::new(&mut space);
        assert!(buffer.push(SendAncillaryMessage::ScmRights(&fds)));
        let byte = [IoSlice::new(b"f")];
        sendmsg(&here, &byte, &mut buffer, SendFlags::empty()).unwrap();
        let why = receive(&there).unwrap_err().to_string();
        assert!(why.contains("not all descriptors"), "{why}");
        assert!(send(&here, &fds).is_err());
    }

    #[test]
    fn packets_keep_their_bounds_and_descriptors() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let flags = SocketFlags::CLOEXEC;
        let (here, there) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let (reader, _writer) = io::pipe().unwrap();
        send_packet(&here, b"abc", Some(reader.as_fd()), SendFlags::empty()).unwrap();
        send_packet(&here, b"defgh", None, SendFlags::empty()).unwrap();
        let mut buffer = [0; 4];
        let first = receive_packet(&there, &mut buffer, RecvFlags::empty()).unwrap();
        assert!(first.len == 3 && !first.truncated && first.fd.is_some());
        let second = receive_packet(&there, &mut buffer, RecvFlags::empty()).unwrap();
        assert!(second.len == 4 && second.truncated && second.fd.is_none());
        let none = receive_packet(&there, &mut buffer, RecvFlags::DONTWAIT);
        assert_eq!(none.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
