//! Descriptors passed over unix sockets.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Descriptors in one message: standard input, output and error.
pub const MAX_FDS: usize = 3;

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

/// Receives what [`send`] sent. The descriptors are close-on-exec.
///
/// # Errors
/// When the socket is closed or the message carries no descriptors.
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
    let mut fds = Vec::new();
    for message in buffer.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if got.bytes == 0 || fds.is_empty() {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
    }
    Ok(fds)
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
}
