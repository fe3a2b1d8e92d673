//! Packets: version, number, message.

use super::{MAX_PACKET, OLDEST, VERSION};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes before the message.
const HEAD: usize = 6;

/// A message as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet<T> {
    /// The version it is of.
    pub version: u16,
    /// The request's number, chosen by the program.
    pub number: u32,
    /// The message.
    pub message: T,
}

/// Why a packet cannot be made or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// It is larger than [`MAX_PACKET`].
    #[error("a message of more than {MAX_PACKET} bytes; send fewer items at a time")]
    TooLarge,
    /// It is of a version that is not known.
    #[error("a message of version {0}; this side speaks {OLDEST} to {VERSION}")]
    Version(u16),
    /// It is no message.
    #[error("bytes that are no message of tarn")]
    Garbage,
}

/// Writes a packet into `out` (its old content is dropped).
///
/// # Errors
/// When it is too large.
pub fn encode<T: Serialize>(
    version: u16,
    number: u32,
    message: &T,
    out: &mut Vec<u8>,
) -> Result<(), PacketError> {
    out.clear();
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    let head = std::mem::take(out);
    *out = postcard::to_extend(message, head).map_err(|_| PacketError::TooLarge)?;
    if out.len() > MAX_PACKET {
        return Err(PacketError::TooLarge);
    }
    Ok(())
}

/// Reads a packet.
///
/// # Errors
/// When it is not a whole message and nothing else.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<Packet<T>, PacketError> {
    if bytes.len() > MAX_PACKET {
        return Err(PacketError::TooLarge);
    }
    let (head, body) = bytes
        .split_first_chunk::<HEAD>()
        .ok_or(PacketError::Garbage)?;
    let version = u16::from_le_bytes([head[0], head[1]]);
    let number = u32::from_le_bytes([head[2], head[3], head[4], head[5]]);
    if !(OLDEST..=VERSION).contains(&version) {
        return Err(PacketError::Version(version));
    }
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(Packet {
            version,
            number,
            message,
        }),
        _ => Err(PacketError::Garbage),
    }
}

/// The newest version that both sides speak.
pub fn versions(oldest: u16, newest: u16) -> Option<u16> {
    let best = newest.min(VERSION);
    (best >= oldest.max(OLDEST)).then_some(best)
}
