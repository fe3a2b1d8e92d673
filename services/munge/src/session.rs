//! A session over a stream: how it begins, and its messages.

use crate::credential::{Identity, MAX_CREDENTIAL, Munge, MungeError};
use crate::{KEY_BYTES, SecretBytes};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tarn_proto::site::{FrameError, MAX_FRAME, decode, encode};
use tarn_stream::{Receiver, Sender, StreamEnd, Wait, keep_alive, messages, read_until};
use tarn_types::stream::StreamKeys;

/// The first bytes from a node: without them the peer is something else.
const MAGIC: &[u8; 8] = b"TARNSITE";
/// How long the other side may take to prove itself.
const HANDSHAKE: Duration = Duration::from_secs(15);
/// How long the opener of a session may send nothing at all: there is a place for only so many of them.
const SILENCE: Duration = Duration::from_secs(5);
/// How long a message may take to be written.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Why a session does not begin, or is over.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The connection is closed, or too slow.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// munge does not prove who it is.
    #[error(transparent)]
    Munge(#[from] MungeError),
    /// The other side is not the one that may.
    #[error("{0}")]
    Refused(String),
    /// Something that is no message, or not of the other side.
    #[error("{0}")]
    Broken(String),
    /// A message cannot be made or read.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Begins a session with a node, as this process's user. `reader` is the user that the node's tarnd runs as; with the session it
/// gets the site's secrets.
///
/// # Errors
/// When the node does not answer as one, or munge does not.
pub fn open(
    stream: TcpStream,
    node: &str,
    reader: u32,
    secrets: &[SecretBytes],
    munge: &Munge,
) -> Result<(MungeSessionReader, MungeSessionWriter), SessionError> {
    let until = Instant::now() + HANDSHAKE;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(HANDSHAKE))?;
    let mut magic = [0; MAGIC.len()];
    read_until(&stream, &mut magic, until)?;
    if magic != *MAGIC {
        let text = "whoever listens there is no tarnd of a site";
        return Err(SessionError::Broken(text.into()));
    }
    let mut nonce = [0; KEY_BYTES];
    read_until(&stream, &mut nonce, until)?;
    let key = SecretBytes::random()?;
    let payload = Payload {
        nonce,
        key: key.clone(),
        secrets: secrets.to_vec(),
        node: node.to_owned(),
    };
    let credential = munge.encode(&payload.pack(), reader)?;
    let length = (credential.len() as u32).to_le_bytes();
    (&stream).write_all(&[&length, credential.as_bytes()].concat())?;
    halves(stream, &key, StreamEnd::Client)
}

/// The node's half: `node` is its name, `opener` the user that may begin sessions. Returns the site's secrets too.
///
/// # Errors
/// When the other side may not, or does not prove its identity; the error belongs in the audit log.
pub fn accept(
    stream: TcpStream,
    node: &str,
    opener: u32,
    munge: &Munge,
) -> Result<(MungeSessionReader, MungeSessionWriter, Vec<SecretBytes>), SessionError> {
    let (Identity { user, .. }, payload) = proven(&stream, node, munge)?;
    if user != opener {
        let text = format!("user {user} may not give orders, only user {opener} may");
        return Err(SessionError::Refused(text));
    }
    let (reader, writer) = halves(stream, &payload.key, StreamEnd::Server)?;
    Ok((reader, writer, payload.secrets))
}

/// The half of a server that accepts any user, called `name`; returns the identity of the user.
///
/// # Errors
/// When the other side does not prove its identity.
pub fn accept_anyone(
    stream: TcpStream,
    name: &str,
    munge: &Munge,
) -> Result<(MungeSessionReader, MungeSessionWriter, Identity), SessionError> {
    let (identity, payload) = proven(&stream, name, munge)?;
    let (reader, writer) = halves(stream, &payload.key, StreamEnd::Server)?;
    Ok((reader, writer, identity))
}

/// The identity of the opener of this session, as munge proves it, and its payload.
fn proven(
    stream: &TcpStream,
    node: &str,
    munge: &Munge,
) -> Result<(Identity, Payload), SessionError> {
    let (began, until) = (Instant::now(), Instant::now() + HANDSHAKE);
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(HANDSHAKE))?;
    let nonce = SecretBytes::random()?;
    let mut writer = stream;
    writer.write_all(&[MAGIC, &nonce.bytes()[..]].concat())?;
    let mut length = [0; 4];
    read_until(stream, &mut length, began + SILENCE)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_CREDENTIAL {
        let text = "a credential that is too long to be one";
        return Err(SessionError::Broken(text.into()));
    }
    let mut credential = vec![0; length];
    read_until(stream, &mut credential, until)?;
    let (identity, payload) = munge.decode(&credential)?;
    let payload = Payload::unpack(&payload).ok_or_else(|| {
        let text = "a credential that was made for something else, or by another release of tarn: use the same one on all hosts";
        SessionError::Broken(text.into())
    })?;
    if payload.nonce != *nonce.bytes() {
        let text = "a credential that was made for another session: a replay";
        return Err(SessionError::Refused(text.into()));
    }
    if payload.node != node {
        let text = format!(
            "a credential for node `{}`: this is `{node}`",
            payload.node.escape_debug()
        );
        return Err(SessionError::Refused(text));
    }
    Ok((identity, payload))
}

/// The payload of a credential.
struct Payload {
    nonce: [u8; KEY_BYTES],
    key: SecretBytes,
    /// At most 255.
    secrets: Vec<SecretBytes>,
    node: String,
}

impl Payload {
    /// Its first bytes: a credential of another use of munge is none of ours.
    const PURPOSE: &'static [u8] = b"tarn site 3\0";

    fn pack(&self) -> Vec<u8> {
        let Self {
            nonce,
            key,
            secrets,
            node,
        } = self;
        let count = u8::try_from(secrets.len()).unwrap_or(u8::MAX);
        let mut bytes = [Self::PURPOSE, nonce, key.bytes(), &[count]].concat();
        for secret in secrets.iter().take(count.into()) {
            bytes.extend_from_slice(secret.bytes());
        }
        bytes.extend_from_slice(node.as_bytes());
        bytes
    }

    fn unpack(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(Self::PURPOSE)?;
        let (nonce, rest) = rest.split_first_chunk::<KEY_BYTES>()?;
        let (key, rest) = rest.split_first_chunk::<KEY_BYTES>()?;
        let (count, mut rest) = rest.split_first()?;
        let mut secrets = Vec::new();
        for _ in 0..*count {
            let (secret, after) = rest.split_first_chunk::<KEY_BYTES>()?;
            secrets.push(SecretBytes::new(*secret));
            rest = after;
        }
        Some(Self {
            nonce: *nonce,
            key: SecretBytes::new(*key),
            secrets,
            node: String::from_utf8(rest.to_vec()).ok()?,
        })
    }
}

/// Both directions of a session whose key is fresh, and known to its ends alone.
fn halves(
    stream: TcpStream,
    key: &SecretBytes,
    end: StreamEnd,
) -> Result<(MungeSessionReader, MungeSessionWriter), SessionError> {
    stream.set_write_timeout(Some(TIMEOUT))?;
    keep_alive(&stream)?;
    let keys = StreamKeys {
        secret: *key.bytes(),
        to_server: 0,
        to_client: 0,
    };
    let (receiver, sender) = messages(stream, &keys, end)?;
    Ok((MungeSessionReader(receiver), MungeSessionWriter(sender)))
}

/// The reading half of a session.
#[derive(Debug)]
pub struct MungeSessionReader(Receiver);

impl MungeSessionReader {
    /// The next message, waited for so long. An error ends the session.
    ///
    /// # Errors
    /// When none comes, it is none, or it is not what the other side has sent.
    pub fn receive<T: DeserializeOwned>(&mut self, timeout: Duration) -> Result<T, SessionError> {
        self.receive_at_most(MAX_FRAME, timeout)
    }

    /// The same, of at most so many bytes.
    ///
    /// # Errors
    /// The same, and when it is longer.
    pub fn receive_at_most<T: DeserializeOwned>(
        &mut self,
        most: usize,
        timeout: Duration,
    ) -> Result<T, SessionError> {
        let body = self.0.receive(most, Wait::Whole(timeout));
        let body = body.map_err(|e| match e.kind() {
            io::ErrorKind::InvalidData => SessionError::Broken(e.to_string()),
            _ => SessionError::Io(e),
        })?;
        Ok(decode(&body)?)
    }

    /// The stream itself: to end the session from elsewhere, or to see whether the other side has gone.
    pub fn socket(&self) -> &Arc<TcpStream> {
        self.0.socket()
    }
}

/// The writing half of a session.
#[derive(Debug)]
pub struct MungeSessionWriter(Sender);

impl MungeSessionWriter {
    /// Says something.
    ///
    /// # Errors
    /// When it is too long, or the other side does not read. The session is over then.
    pub fn send<T: Serialize>(&mut self, message: &T) -> Result<(), SessionError> {
        let frame = encode(message)?;
        // The stream has a length of its own.
        Ok(self.0.send(&[&frame[4..]])?)
    }
}
