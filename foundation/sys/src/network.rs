//! A network namespace that is a machine of its own: its loopback interface has the machine's addresses (netlink(7), rtnetlink(7)).

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// Of `linux/rtnetlink.h` and `linux/netlink.h`.
const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const CREATE: u16 = 0x400;
const DUMP: u16 = 0x300;
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
const UP: u32 = 1;
/// An IPv6 address that is used without asking others for it first.
const NO_DUPLICATES: u8 = 2;
/// Of an address: its machine's own.
const SCOPE_HOST: u8 = 254;
/// The loopback interface is the first of every namespace.
const LOOPBACK: u32 = 1;
/// Bytes of `nlmsghdr`, and of `ifaddrmsg`, which is as long as no attribute.
const HEADER: usize = 16;
const OF_ADDRESS: usize = 8;
/// Bytes of one answer; the kernel fills at most 32 KiB of its buffer.
const ANSWER: usize = 32 << 10;
/// Addresses that are taken over, at most.
const MAX_ADDRESSES: usize = 256;

/// The addresses of this network namespace by which its processes may reach each other, without those that every one has.
///
/// # Errors
/// The error of netlink.
pub fn addresses() -> io::Result<Vec<IpAddr>> {
    let socket = open()?;
    send(&socket, GET_ADDRESS, REQUEST | DUMP, &[0; OF_ADDRESS])?;
    let mut all = Vec::new();
    let mut buffer = vec![0; ANSWER];
    loop {
        let (_, read) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        let mut rest = buffer.get(..read).unwrap_or_default();
        while let Some((kind, body, next)) = message(rest) {
            rest = next;
            match kind {
                DONE => return Ok(all),
                ERROR => return Err(netlink_error(body)),
                NEW_ADDRESS if all.len() < MAX_ADDRESSES => all.extend(own_address(body)),
                _ => {}
            }
        }
    }
}

/// Starts the loopback interface of this network namespace, and gives it these addresses too.
///
/// # Errors
/// The error of netlink: it takes a right over the namespace.
pub fn begin(addresses: &[IpAddr]) -> io::Result<()> {
    let socket = open()?;
    let mut link = vec![0u8; HEADER];
    link[4..8].copy_from_slice(&LOOPBACK.to_ne_bytes());
    link[8..12].copy_from_slice(&UP.to_ne_bytes());
    link[12..16].copy_from_slice(&UP.to_ne_bytes());
    ask(&socket, NEW_LINK, &link)?;
    for address in addresses {
        match ask(&socket, NEW_ADDRESS, &on_loopback(*address)) {
            Err(e) if e.raw_os_error() == Some(Errno::EXIST.raw_os_error()) => {}
            // A machine without IPv6 has none of these.
            other => other?,
        }
    }
    Ok(())
}

fn on_loopback(address: IpAddr) -> Vec<u8> {
    let (family, octets) = match address {
        IpAddr::V4(a) => (AddressFamily::INET, a.octets().to_vec()),
        IpAddr::V6(a) => (AddressFamily::INET6, a.octets().to_vec()),
    };
    let bytes = octets.len();
    let family = u8::try_from(family.as_raw()).unwrap_or(0);
    let bits = u8::try_from(bytes * 8).unwrap_or(0);
    let mut body = vec![family, bits, NO_DUPLICATES, SCOPE_HOST];
    body.extend(LOOPBACK.to_ne_bytes());
    for kind in [LOCAL, ADDRESS] {
        let length = u16::try_from(4 + bytes).unwrap_or(0);
        body.extend(length.to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(&octets);
    }
    body
}

/// The address in a message of this kind, if it is one that others can know the machine by.
fn own_address(body: &[u8]) -> Option<IpAddr> {
    let mut attributes = body.get(OF_ADDRESS..)?;
    let mut found = None;
    while let [a, b, c, d, ..] = *attributes {
        let (length, kind) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
        let length = usize::from(length);
        let value = attributes.get(4..length)?;
        // Of a link between two machines, the first is the other's.
        if kind == LOCAL || (kind == ADDRESS && found.is_none()) {
            found = address(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    found.filter(|a| {
        let of_link = matches!(a, IpAddr::V6(a) if a.is_unicast_link_local());
        !a.is_loopback() && !of_link
    })
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from).ok();
    v4.or_else(|| <[u8; 16]>::try_from(octets).map(IpAddr::from).ok())
}

fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    // Protocol 0 is NETLINK_ROUTE.
    Ok(socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        flags,
        None,
    )?)
}

fn send(socket: &OwnedFd, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(HEADER + body.len()).map_err(io::Error::other)?;
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    // Its number, and its owner: there is one at a time, and the kernel knows.
    message.extend([0; 8]);
    message.extend(body);
    sendto(
        socket,
        &message,
        SendFlags::empty(),
        &SocketAddrNetlink::new(0, 0),
    )?;
    Ok(())
}

/// Has it done, and waits for the answer.
fn ask(socket: &OwnedFd, kind: u16, body: &[u8]) -> io::Result<()> {
    send(socket, kind, REQUEST | ACKNOWLEDGE | CREATE, body)?;
    let mut buffer = [0; 1024];
    let (_, read) = recv(socket, &mut buffer[..], RecvFlags::empty())?;
    match message(buffer.get(..read).unwrap_or_default()) {
        Some((ERROR, body, _)) if body.get(..4) == Some(&[0; 4]) => Ok(()),
        Some((ERROR, body, _)) => Err(netlink_error(body)),
        _ => Err(io::Error::other("netlink gives no answer")),
    }
}

/// The kind of the first message, its body, and the bytes behind it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
    let length = usize::try_from(u32::from_ne_bytes(length)).ok()?;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let body = bytes.get(HEADER..length)?;
    let next = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    Some((kind, body, next))
}

fn netlink_error(body: &[u8]) -> io::Error {
    let code = body.get(..4).and_then(|b| b.try_into().ok());
    io::Error::from_raw_os_error(code.map_or(0, |b| -i32::from_ne_bytes(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        for text in ["10.1.2.3", "2001:db8::7"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(own_address(&on_loopback(address)), Some(address));
        }
        for text in ["127.0.0.1", "::1", "fe80::1"] {
            assert_eq!(own_address(&on_loopback(text.parse().unwrap())), None);
        }
        assert_eq!(own_address(&[0; 9]), None);
        assert_eq!(own_address(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1]), None);
        assert!(message(&[255; 20]).is_none());
    }

    #[test]
    fn those_of_this_machine_are_told() {
        assert!(addresses().unwrap().iter().all(|a| !a.is_loopback()));
    }
}
