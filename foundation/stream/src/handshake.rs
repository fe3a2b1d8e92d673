//! Both ends prove that they know a key, with nonces that are new each time. docs/internals/streams.md.

use crate::hello::{CLEAR, Hello, NO_VERSION, SEALED, Verdict, Welcome};
use crate::records::{RecordError, Records};
use hmac::{Hmac, KeyInit, Mac};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::rand::SystemRandom;
use sha2::Sha256;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tarn_types::key::KEY_BYTES;
use tarn_types::stream::{RunId, StreamKeys};

/// A handshake's time, at either end.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(5);

/// The secret that both ends of a stream share before it begins.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub [u8; KEY_BYTES]);

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
    /// A key for one purpose, made of another: a proof by the one is worth nothing for the other.
    ///
    /// # Errors
    /// Never for a key of this length.
    pub fn derive(secret: &[u8; KEY_BYTES], purpose: &[u8]) -> io::Result<Self> {
        let mac = proof(&Self(*secret), purpose, &[])?;
        Ok(Self(mac.finalize().into_bytes().into()))
    }
}

/// A secret that only both ends of a stream share, new for each stream: it proves the sender of each message.
#[derive(Debug, Clone)]
pub struct Secret(Key);

/// The result of a handshake.
#[derive(Debug)]
pub struct Session {
    /// Proves the sender of each message.
    pub secret: Secret,
    /// The keys that seal the stream, if it is sealed.
    pub keys: Option<StreamKeys>,
}

/// An end's nonce: a public key, whose private one the other's makes a secret of.
struct Half {
    private: EphemeralPrivateKey,
    public: [u8; KEY_BYTES],
}

impl Half {
    fn new() -> io::Result<Self> {
        let failed = |_| io::Error::other("no key can be made");
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new());
        let private = private.map_err(failed)?;
        let public = private.compute_public_key().map_err(failed)?;
        let public = public.as_ref().try_into();
        let public = public.map_err(|_| io::Error::other("a public key of another length"))?;
        Ok(Self { private, public })
    }

    /// The keys that seal the stream, if it is sealed.
    fn keys(
        self,
        version: u16,
        theirs: &[u8; KEY_BYTES],
        key: &Key,
        sent: &[&[u8]],
    ) -> io::Result<Option<StreamKeys>> {
        if version < SEALED {
            return Ok(None);
        }
        let theirs = UnparsedPublicKey::new(&X25519, theirs);
        let secret = agree_ephemeral(self.private, &theirs, |shared| -> io::Result<_> {
            let sent = [&[shared][..], sent].concat();
            Ok(proof(key, b"sealed", &sent)?.finalize().into_bytes().into())
        });
        let secret = secret.map_err(|_| invalid("a nonce that is no public key"))?;
        Ok(Some(StreamKeys {
            secret: secret?,
            to_server: 0,
            to_client: 0,
        }))
    }
}

/// Both directions of a sealed stream: to the server, and to the client.
pub(crate) fn records(keys: &StreamKeys) -> Result<(Records, Records), RecordError> {
    let of = |who: &[u8], next| {
        let key = proof(&Key(keys.secret), who, &[]).map_err(|_| RecordError::Length)?;
        Records::new(&key.finalize().into_bytes().into(), next)
    };
    Ok((
        of(b"client", keys.to_server)?,
        of(b"server", keys.to_client)?,
    ))
}

/// The lowest version of an end that wants its streams sealed, or does not ask for it.
fn lowest(sealed: bool) -> u16 {
    match sealed {
        true => SEALED,
        false => CLEAR,
    }
}

/// The sender of a message on a stream.
#[derive(Debug, Clone, Copy)]
pub enum MessageKind {
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

    fn mac(&self, who: MessageKind, number: u32, what: &[u8]) -> io::Result<Hmac<Sha256>> {
        let who: &[u8] = match who {
            MessageKind::Call => b"call",
            MessageKind::Reply => b"reply",
        };
        proof(&self.0, who, &[&number.to_le_bytes(), what])
    }

    /// The proof of a message.
    pub fn sign(&self, who: MessageKind, number: u32, what: &[u8]) -> io::Result<[u8; KEY_BYTES]> {
        Ok(self.mac(who, number, what)?.finalize().into_bytes().into())
    }

    /// Checks the proof of a message.
    pub fn check(
        &self,
        who: MessageKind,
        number: u32,
        what: &[u8],
        proof: &[u8; KEY_BYTES],
    ) -> io::Result<()> {
        // Compared in constant time.
        let checked = self.mac(who, number, what)?.verify_slice(proof);
        checked.map_err(|_| {
            invalid("an invalid proof: something between the two nodes changes messages")
        })
    }
}

/// Bytes that nobody can foresee.
///
/// # Errors
/// When the kernel gives none.
pub fn random() -> io::Result<[u8; KEY_BYTES]> {
    let mut bytes = [0; KEY_BYTES];
    let mut have = 0;
    while have < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        have += rustix::rand::getrandom(&mut bytes[have..], flags)?;
    }
    Ok(bytes)
}

/// Reads all of `out` before `until`.
///
/// # Errors
/// `TimedOut`, `UnexpectedEof`, and the system's error.
pub fn read_until(mut stream: &TcpStream, out: &mut [u8], until: Instant) -> io::Result<()> {
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

/// The server's half; `sealed`: nothing goes over the stream that is not. `admit` returns whether there is a place for a client
/// that has proven itself. `Ok(None)`: the client was sent away, with the reason.
pub fn accept(
    mut stream: &TcpStream,
    sealed: bool,
    key_of: impl FnOnce(&RunId) -> Option<Key>,
    admit: impl FnOnce() -> Verdict,
) -> io::Result<Option<(RunId, Session)>> {
    let until = Instant::now() + HANDSHAKE;
    let mut first = [0; Hello::BYTES];
    read_until(stream, &mut first, until)?;
    let hello = Hello::decode(&first).map_err(invalid)?;
    let Some(key) = key_of(&hello.run) else {
        // A proof of nothing: a client with another key knows at once, and does not come again like a client that was crowded out.
        let welcome = Welcome {
            version: NO_VERSION,
            nonce: random()?,
        };
        stream.write_all(&[&welcome.encode()[..], &random()?].concat())?;
        return Err(invalid("a run that is not known here"));
    };
    let version = hello.version(lowest(sealed)).unwrap_or(NO_VERSION);
    let half = Half::new()?;
    let welcome = Welcome {
        version,
        nonce: half.public,
    };
    let second = welcome.encode();
    let ours: [u8; KEY_BYTES] = proof(&key, b"server", &[&first, &second])?
        .finalize()
        .into_bytes()
        .into();
    stream.write_all(&[&second[..], &ours].concat())?;
    if version == NO_VERSION {
        return Ok(None);
    }
    let mut theirs = [0; KEY_BYTES];
    read_until(stream, &mut theirs, until)?;
    // Compared in constant time.
    proof(&key, b"client", &[&first, &second, &ours])?
        .verify_slice(&theirs)
        .map_err(|_| invalid("an invalid proof: it has another key"))?;
    let verdict = admit();
    stream.write_all(&verdict.encode())?;
    if verdict != Verdict::Ready {
        return Ok(None);
    }
    let sent: [&[u8]; 3] = [&first, &second, &ours];
    let session = Session {
        secret: Secret::of(&key, &sent)?,
        keys: half.keys(version, &hello.nonce, &key, &sent)?,
    };
    Ok(Some((hello.run, session)))
}

/// A server's reply to a client that has proven its identity.
pub enum HandshakeOutcome {
    /// Ask.
    Ready(Session),
    /// Come again later.
    Busy,
    /// It does not speak this version.
    NoVersion,
}

/// The client's half; `sealed`: nothing goes over the stream that is not.
pub fn connect(
    mut stream: &TcpStream,
    sealed: bool,
    run: RunId,
    key: &Key,
) -> io::Result<HandshakeOutcome> {
    let until = Instant::now() + HANDSHAKE;
    let half = Half::new()?;
    let hello = Hello {
        lowest: lowest(sealed),
        highest: SEALED,
        run,
        nonce: half.public,
    };
    let first = hello.encode();
    stream.write_all(&first)?;
    let (mut second, mut theirs) = ([0; Welcome::BYTES], [0; KEY_BYTES]);
    read_until(stream, &mut second, until)?;
    read_until(stream, &mut theirs, until)?;
    let welcome = Welcome::decode(&second).map_err(invalid)?;
    proof(key, b"server", &[&first, &second])?
        .verify_slice(&theirs)
        .map_err(|_| invalid("it does not know the key of this node"))?;
    if !(hello.lowest..=hello.highest).contains(&welcome.version) {
        return Ok(HandshakeOutcome::NoVersion);
    }
    let ours = proof(key, b"client", &[&first, &second, &theirs])?;
    stream.write_all(&ours.finalize().into_bytes())?;
    let mut last = [0; 1];
    read_until(stream, &mut last, until)?;
    match Verdict::decode(last).map_err(invalid)? {
        Verdict::Busy => Ok(HandshakeOutcome::Busy),
        Verdict::Ready => {
            let sent: [&[u8]; 3] = [&first, &second, &theirs];
            let session = Session {
                secret: Secret::of(key, &sent)?,
                keys: half.keys(welcome.version, &welcome.nonce, key, &sent)?,
            };
            Ok(HandshakeOutcome::Ready(session))
        }
    }
}
