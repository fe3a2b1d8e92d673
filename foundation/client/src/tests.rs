//! Clients whose tarnd refuses, or is not there.

use super::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// A client, and the end of its connection that tarnd would have.
fn pair() -> (Client, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    let (here, there) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let client = Client {
        fd: here,
        state: Mutex::default(),
        more: Condvar::new(),
        buffers: Mutex::default(),
        user: 0,
        node: String::new(),
        process: std::process::id(),
    };
    (client, there)
}

/// A client that tarnd has refused, and closed without reading what the client had sent.
fn refused() -> Client {
    let (client, there) = pair();
    client.write(b"never read", None).unwrap();
    let refusal = Reply::Refused(RequestError::new(Code::Busy, "too many"));
    let mut packet = Vec::new();
    encode(VERSION, 0, &refusal, &mut packet).unwrap();
    send_packet(&there, &packet, None, SendFlags::empty()).unwrap();
    client
}

#[test]
fn nobody_is_waited_for_who_cannot_come() {
    let folder = tempfile::tempdir().unwrap();
    let no_folder = Client::connect(&folder.path().join("none/socket"), None);
    let none_running = Client::connect_running(&folder.path().join("socket"));
    for connected in [no_folder, none_running] {
        let why = connected.unwrap_err();
        assert_eq!(why.code, Code::Lost);
        assert!(why.text.contains("is tarnd running?"), "{}", why.text);
        assert!(!why.text.contains("waited"), "{}", why.text);
    }
}

#[test]
fn a_refusal_is_read_although_requests_were_not() {
    // Gone before the program reads.
    let client = refused();
    let (number, reply) = client.read(&mut Vec::new()).unwrap();
    assert!(number == 0 && matches!(reply.0, Reply::Refused(why) if why.code == Code::Busy));
    let end = client.read(&mut Vec::new());
    assert_eq!(end.unwrap_err().code, Code::Lost);
    // Gone before the program's request: the send reports the reset.
    assert_eq!(refused().stats().unwrap_err().code, Code::Busy);
    // The send reports that it is closed.
    let client = refused();
    assert_eq!(client.write(b"", None), Err(Errno::CONNRESET));
    assert_eq!(client.write(b"", None), Err(Errno::PIPE));
    assert_eq!(client.stats().unwrap_err().code, Code::Busy);
}

/// A request that was not sent has no reply to wait for.
#[test]
fn a_request_that_cannot_be_sent() {
    let (client, _there) = pair();
    // The kernel's least: 4.5 KiB.
    rustix::net::sockopt::set_socket_send_buffer_size(&client.fd, 0).unwrap();
    let ids = vec![TaskId::MAX; MAX_IDS];
    assert_eq!(client.status(&ids).unwrap_err().code, Code::Io);
}
