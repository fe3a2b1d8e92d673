//! Both ends prove that they know the run's key, with nonces that are new each time.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tarn_proto::data::{
    Hello, Malformed, NO_VERSION, PROOF_BYTES, RunId, VERSION, Verdict, Welcome,
};

/// A handshake's time, at either end.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(5);

/// The key of a run's data plane.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub [u8; PROOF_BYTES]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(secret)")
    }
}

fn proof(key: &Key, who: &[u8], sent: &[&[u8]]) -> io::Result<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(&key.0).map_err(io::Error::other)?;
    mac.update(who);
    for bytes in sent {
        mac.update(bytes);
    }
    Ok(mac)
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

impl Key {
    /// A key for one purpose, made of another: what the one proves is worth nothing for the other.
    ///
    /// # Errors
    /// Never for a key of this length.
    pub fn derive(secret: &[u8; PROOF_BYTES], purpose: &[u8]) -> io::Result<Self> {
        let mac = proof(&Self(*secret), purpose, &[])?;
        Ok(Self(mac.finalize().into_bytes().into()))
    }
}

/// What both ends of a stream know and nobody else, new for each: it proves who says what on it.
#[derive(Debug, Clone)]
pub(crate) struct Secret(Key);

/// Who says something on a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Says {
    /// The client calls.
    Call,
    /// The server replies.
    Reply,
}

impl Secret {
    fn of(key: &Key, sent: &[&[u8]]) -> io::Result<Self> {
        let mac = proof(key, b"calls", sent)?;
        Ok(Self(Key(mac.finalize().into_bytes().into())))
    }

    fn mac(&self, who: Says, number: u32, what: &[u8]) -> io::Result<Hmac<Sha256>> {
        let who: &[u8] = match who {
            Says::Call => b"call",
            Says::Reply => b"reply",
        };
        proof(&self.0, who, &[&number.to_le_bytes(), what])
    }

    /// Proves what is said.
    pub(crate) fn sign(
        &self,
        who: Says,
        number: u32,
        what: &[u8],
    ) -> io::Result<[u8; PROOF_BYTES]> {
        Ok(self.mac(who, number, what)?.finalize().into_bytes().into())
    }

    /// Checks that it was said.
    pub(crate) fn check(
        &self,
        who: Says,
        number: u32,
        what: &[u8],
        proof: &[u8; PROOF_BYTES],
    ) -> io::Result<()> {
        // Compared in constant time.
        let checked = self.mac(who, number, what)?.verify_slice(proof);
        checked.map_err(|_| invalid("a proof that is none: somebody stands between"))
    }
}

/// Bytes that nobody can foresee.
pub(crate) fn nonce() -> io::Result<[u8; PROOF_BYTES]> {
    let mut bytes = [0; PROOF_BYTES];
    let mut have = 0;
    while have < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        have += rustix::rand::getrandom(&mut bytes[have..], flags)?;
    }
    Ok(bytes)
}

/// Reads all of `out` before `until`.
fn read(mut stream: &TcpStream, out: &mut [u8], until: Instant) -> io::Result<()> {
    let mut have = 0;
    while have < out.len() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut out[have..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => have += n,
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The server's half. `admit` says whether there is a place for a client that has proven itself. `Ok(None)`: the client was
/// sent away, with the reason.
pub(crate) fn accept(
    mut stream: &TcpStream,
    key_of: impl FnOnce(&RunId) -> Option<Key>,
    admit: impl FnOnce() -> Verdict,
) -> io::Result<Option<(RunId, Secret)>> {
    let until = Instant::now() + HANDSHAKE;
    let mut first = [0; Hello::BYTES];
    read(stream, &mut first, until)?;
    let wrong = |m: Malformed| invalid(m.to_string());
    let hello = Hello::decode(&first).map_err(wrong)?;
    let Some(key) = key_of(&hello.run) else {
        // A proof of nothing: who has another key knows at once, and does not come again as one that was crowded out.
        let welcome = Welcome {
            version: NO_VERSION,
            nonce: nonce()?,
        };
        stream.write_all(&[&welcome.encode()[..], &nonce()?].concat())?;
        return Err(invalid("a run that is not known here"));
    };
    let version = hello.version().unwrap_or(NO_VERSION);
    let welcome = Welcome {
        version,
        nonce: nonce()?,
    };
    let second = welcome.encode();
    let ours: [u8; PROOF_BYTES] = proof(&key, b"server", &[&first, &second])?
        .finalize()
        .into_bytes()
        .into();
    stream.write_all(&[&second[..], &ours].concat())?;
    if version == NO_VERSION {
        return Ok(None);
    }
    let mut theirs = [0; PROOF_BYTES];
    read(stream, &mut theirs, until)?;
    // Compared in constant time.
    proof(&key, b"client", &[&first, &second, &ours])?
        .verify_slice(&theirs)
        .map_err(|_| invalid("a proof that is none: the key is another"))?;
    let verdict = admit();
    stream.write_all(&verdict.encode())?;
    if verdict != Verdict::Ready {
        return Ok(None);
    }
    let secret = Secret::of(&key, &[&first, &second, &ours])?;
    Ok(Some((hello.run, secret)))
}

/// What a server says to a client that is who it should be.
pub(crate) enum Outcome {
    /// Ask.
    Ready(Secret),
    /// Come again later.
    Busy,
    /// It does not speak this version.
    NoVersion,
}

/// The client's half.
pub(crate) fn connect(mut stream: &TcpStream, run: RunId, key: &Key) -> io::Result<Outcome> {
    let until = Instant::now() + HANDSHAKE;
    let hello = Hello {
        lowest: VERSION,
        highest: VERSION,
        run,
        nonce: nonce()?,
    };
    let first = hello.encode();
    stream.write_all(&first)?;
    let (mut second, mut theirs) = ([0; Welcome::BYTES], [0; PROOF_BYTES]);
    read(stream, &mut second, until)?;
    read(stream, &mut theirs, until)?;
    let welcome = Welcome::decode(&second).map_err(|m| invalid(m.to_string()))?;
    proof(key, b"server", &[&first, &second])?
        .verify_slice(&theirs)
        .map_err(|_| invalid("it does not know the key of this node"))?;
    if welcome.version != VERSION {
        return Ok(Outcome::NoVersion);
    }
    let ours = proof(key, b"client", &[&first, &second, &theirs])?;
    stream.write_all(&ours.finalize().into_bytes())?;
    let mut last = [0; 1];
    read(stream, &mut last, until)?;
    match Verdict::decode(last).map_err(|m| invalid(m.to_string()))? {
        Verdict::Busy => Ok(Outcome::Busy),
        Verdict::Ready => {
            let secret = Secret::of(key, &[&first, &second, &theirs])?;
            Ok(Outcome::Ready(secret))
        }
    }
}
