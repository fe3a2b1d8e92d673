//! How a connection begins: both ends prove that they know the key, with nonces that are new each time, before anything else is
//! read; then the rank that comes names itself.

use crate::line::malformed;
use crate::socket::RankSocket;
use crate::wire::{FrameFields, MAX_TEXT, short};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::io;
use std::time::Instant;
use tarn_ports::RanksError;

const MAGIC: [u8; 8] = *b"TARNRANK";
const VERSION: u16 = 3;
/// Bytes of a nonce, a key and a proof.
pub(crate) const PROOF: usize = 32;
/// Bytes that both ends begin with: magic, version, nonce.
const HELLO: usize = 8 + 2 + PROOF;

/// The identity of a meeting: new each time.
pub(crate) type MeetingId = [u8; 16];

/// The key of a program. One that is on a single node needs none: nobody else comes into its folder.
#[derive(Clone)]
pub(crate) struct ProgramKey(pub(crate) [u8; PROOF]);

impl ProgramKey {
    fn proof(&self, who: &[u8], sent: &[u8]) -> io::Result<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).map_err(io::Error::other)?;
        mac.update(who);
        mac.update(sent);
        Ok(mac)
    }

    fn prove(&self, who: &[u8], sent: &[u8]) -> io::Result<[u8; PROOF]> {
        Ok(self.proof(who, sent)?.finalize().into_bytes().into())
    }

    fn check(&self, who: &[u8], sent: &[u8], proof: &[u8]) -> io::Result<()> {
        // Compared in constant time.
        let checked = self.proof(who, sent)?.verify_slice(proof);
        checked.map_err(|_| refused("it has another key than this rank"))
    }
}

/// Bytes that nobody can foresee.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut have = 0;
    while have < N {
        let flags = rustix::rand::GetRandomFlags::empty();
        have += rustix::rand::getrandom(&mut bytes[have..], flags)?;
    }
    Ok(bytes)
}

fn refused(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, what.into())
}

fn hello() -> io::Result<[u8; HELLO]> {
    let mut hello = [0; HELLO];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..10].copy_from_slice(&VERSION.to_le_bytes());
    hello[10..].copy_from_slice(&random::<PROOF>()?);
    Ok(hello)
}

fn check_hello(hello: &[u8]) -> io::Result<()> {
    let mut fields = FrameFields(hello);
    if fields.array() != Some(MAGIC) {
        return Err(malformed());
    }
    match fields.array().map(u16::from_le_bytes) {
        Some(VERSION) => Ok(()),
        theirs => Err(refused(format!(
            "it speaks version {} of this protocol, and this rank version {VERSION}: use one release of tarn",
            theirs.unwrap_or(0)
        ))),
    }
}

/// Proves itself to the peer that it has connected to, which has done so first.
pub(crate) fn prove(socket: &RankSocket, key: &ProgramKey, until: Instant) -> io::Result<()> {
    let ours = hello()?;
    socket.send_all(&ours, b"", until)?;
    let mut theirs = [0; HELLO];
    socket.receive_all(&mut theirs, until)?;
    check_hello(&theirs)?;
    let mut proof = [0; PROOF];
    socket.receive_all(&mut proof, until)?;
    let sent = [&ours[..], &theirs].concat();
    key.check(b"server", &sent, &proof)?;
    let sent = [&sent[..], &proof].concat();
    socket.send_all(&key.prove(b"client", &sent)?, b"", until)
}

/// The other half of it.
pub(crate) fn check(socket: &RankSocket, key: &ProgramKey, until: Instant) -> io::Result<()> {
    let mut theirs = [0; HELLO];
    socket.receive_all(&mut theirs, until)?;
    if theirs[..8] != MAGIC {
        return Err(malformed());
    }
    // A peer of another version gets this version, and closes.
    let ours = hello()?;
    let sent = [&theirs[..], &ours].concat();
    let proof = key.prove(b"server", &sent)?;
    socket.send_all(&ours, &proof, until)?;
    check_hello(&theirs)?;
    let mut answer = [0; PROOF];
    socket.receive_all(&mut answer, until)?;
    key.check(b"client", &[&sent[..], &proof].concat(), &answer)
}

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionRole {
    /// It is a member's, to the hub.
    Member = 1,
    /// It is for requests.
    Caller = 2,
}

/// A rank that comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RankGreeting {
    pub(crate) role: ConnectionRole,
    /// Zeros where it is not known yet.
    pub(crate) identity: MeetingId,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) process: u32,
}

impl RankGreeting {
    const BYTES: usize = 1 + 16 + 4 + 4 + 4;

    fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.role as u8];
        out.extend_from_slice(&self.identity);
        for number in [self.rank, self.ranks, self.process] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut f = FrameFields(bytes);
        Some(Self {
            role: match f.u8()? {
                1 => ConnectionRole::Member,
                2 => ConnectionRole::Caller,
                _ => return None,
            },
            identity: f.array()?,
            rank: f.u32()?,
            ranks: f.u32()?,
            process: f.u32()?,
        })
    }

    /// Reads it from a peer that has proven itself.
    pub(crate) fn receive(socket: &RankSocket, until: Instant) -> io::Result<Self> {
        let mut bytes = [0; Self::BYTES];
        socket.receive_all(&mut bytes, until)?;
        Self::decode(&bytes).ok_or_else(malformed)
    }

    /// Sends this greeting, and receives the meeting, or why this has no place there.
    pub(crate) fn send(&self, socket: &RankSocket, until: Instant) -> io::Result<GreetingReply> {
        socket.send_all(&self.encode(), b"", until)?;
        GreetingReply::receive(socket, until)
    }
}

/// The answer to a greeting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GreetingReply {
    /// It is of this meeting.
    Welcome(MeetingId),
    /// It is not: why.
    Refused(String),
    /// Another process has the rank: which.
    Taken(String),
}

impl GreetingReply {
    const HEAD: usize = 1 + 16 + 2;

    pub(crate) fn encode(&self) -> Vec<u8> {
        let (status, identity, text): (u8, _, &str) = match self {
            Self::Welcome(identity) => (0, *identity, ""),
            Self::Refused(why) => (1, [0; 16], why),
            Self::Taken(who) => (2, [0; 16], who),
        };
        let text = short(text);
        let mut out = vec![status];
        out.extend_from_slice(&identity);
        out.extend_from_slice(&(text.len() as u16).to_le_bytes());
        out.extend_from_slice(text);
        out
    }

    /// Reads it.
    pub(crate) fn receive(socket: &RankSocket, until: Instant) -> io::Result<Self> {
        let mut head = [0; Self::HEAD];
        socket.receive_all(&mut head, until)?;
        let mut f = FrameFields(&head);
        let mut fields = || Some((f.u8()?, f.array()?, f.array().map(u16::from_le_bytes)?));
        let (status, identity, len) = fields().ok_or_else(malformed)?;
        let mut text = vec![0; usize::from(len)];
        if text.len() > MAX_TEXT {
            return Err(malformed());
        }
        socket.receive_all(&mut text, until)?;
        let text = FrameFields(&text).text();
        match status {
            0 => Ok(Self::Welcome(identity)),
            1 => Ok(Self::Refused(text)),
            2 => Ok(Self::Taken(text)),
            _ => Err(malformed()),
        }
    }

    /// The meeting; `who` is the peer, for the error.
    pub(crate) fn of(self, who: &str) -> Result<MeetingId, RanksError> {
        let who = who.to_owned();
        match self {
            Self::Welcome(identity) => Ok(identity),
            Self::Refused(why) => Err(RanksError::Refused { who, why }),
            Self::Taken(who) => Err(RanksError::Taken { who }),
        }
    }
}
