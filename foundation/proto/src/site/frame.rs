//! Frames: `u32` length, little-endian, then JSON: a newer side may send more than an older one knows.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of a frame: an inventory of some 100,000 parts.
pub const MAX_FRAME: usize = 32 << 20;

/// Why a frame cannot be made or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It is larger than [`MAX_FRAME`].
    #[error("a message of more than {MAX_FRAME} bytes")]
    TooLarge,
    /// It is no message.
    #[error("bytes that are no message of tarn")]
    Garbage,
}

/// A message with its length before it.
///
/// # Errors
/// When it is too large, or has a path that is no UTF-8.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message).map_err(|_| FrameError::Garbage)?;
    let length = frame.len() - 4;
    if length > MAX_FRAME {
        return Err(FrameError::TooLarge);
    }
    frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(frame)
}

/// Reads the bytes behind a length.
///
/// # Errors
/// When it is not a whole message and nothing else.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, FrameError> {
    if body.len() > MAX_FRAME {
        return Err(FrameError::TooLarge);
    }
    serde_json::from_slice(body).map_err(|_| FrameError::Garbage)
}
