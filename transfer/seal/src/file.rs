//! Sealed files: a header, then pieces of one size, each with its own proof.
//!
//! The key of a file is derived from the data key, the file's random salt and all of its header, so any change there makes every
//! piece fail. A piece's nonce is its number, whether it is the last, and eight random bytes of its sealer: a piece that is
//! sealed again, by an attempt that continues where another ended, never meets its old nonce.

use crate::{AES_256_GCM, SealError};
use ::ring::aead::{self, Aad, LessSafeKey, MAX_TAG_LEN, NONCE_LEN, Nonce, UnboundKey};
use ::ring::hkdf::{HKDF_SHA256, Salt};
use tarn_types::key::{DataKey, KeyId};

/// Bytes of a piece of content; the last one may have fewer. A piece fits the second-level cache twice:
/// docs/internals/movers.md.
pub const PIECE: usize = 1 << PIECE_BITS;
const PIECE_BITS: u8 = 17;
/// Bytes of the header.
pub const HEADER: usize = 64;
/// Bytes of an attempt's name, which are part of each nonce.
pub const ATTEMPT: usize = 8;
/// Bytes that follow each piece: its tag, and the attempt that sealed it.
pub const TRAILER: usize = MAX_TAG_LEN + ATTEMPT;
/// Random bytes of a file.
pub const SALT: usize = 24;
/// The longest content: the number of a piece has 31 bits.
pub const MAX_LENGTH: u64 = (PIECE as u64) << 31;

const MAGIC: &[u8; 8] = b"TARNSEAL";
const VERSION: u8 = 1;
/// Another use of a data key, one day, must not give the same keys.
const PURPOSE: &[u8] = b"tarn sealed file";
/// In a nonce's number: this piece is the last.
const LAST: u32 = 1 << 31;

/// Bytes of the sealed file that holds so much content; `None` if that is more than [`MAX_LENGTH`].
pub fn sealed_len(content: u64) -> Option<u64> {
    let trailers = pieces(content) * TRAILER as u64;
    (content <= MAX_LENGTH).then_some(HEADER as u64 + content + trailers)
}

/// Bytes of content of a sealed file of so many bytes; `None` if no sealed file is that long.
pub fn content_len(sealed: u64) -> Option<u64> {
    let body = sealed.checked_sub(HEADER as u64)?;
    let whole = (PIECE + TRAILER) as u64;
    let trailers = body.div_ceil(whole) * TRAILER as u64;
    let content = body.checked_sub(trailers)?;
    (sealed_len(content) == Some(sealed)).then_some(content)
}

/// Pieces of so much content: one at least, so that an empty file has a proof too.
pub fn pieces(content: u64) -> u64 {
    content.div_ceil(PIECE as u64).max(1)
}

/// The offset of a piece in the sealed file.
pub fn offset(piece: u64) -> u64 {
    HEADER as u64 + piece * (PIECE + TRAILER) as u64
}

/// The offset and the length, in the sealed file, of `len` bytes of content from `offset` on. They begin with a piece and end
/// with one.
pub fn stretch(offset: u64, len: u64) -> (u64, u64) {
    let from = self::offset(offset / PIECE as u64);
    let end = offset + len;
    let to = HEADER as u64 + end + pieces(end) * TRAILER as u64;
    (from, to - from)
}

/// The cipher that seals and opens the pieces of one file. Threads may share it.
pub struct FileCipher {
    key: LessSafeKey,
    header: [u8; HEADER],
    length: u64,
}

/// Only its length is printed: its content is secret.
impl std::fmt::Debug for FileCipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileCipher")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl FileCipher {
    /// For a new file of so many bytes of content. `salt` must be random: two files of one salt and data key would share a key.
    ///
    /// # Errors
    /// [`SealError::Length`] beyond [`MAX_LENGTH`].
    pub fn create(key: &DataKey, salt: [u8; SALT], length: u64) -> Result<Self, SealError> {
        if length > MAX_LENGTH {
            return Err(SealError::Length);
        }
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(MAGIC);
        header[8] = VERSION;
        header[9] = AES_256_GCM;
        header[10] = PIECE_BITS;
        header[16..32].copy_from_slice(&key.id().0);
        header[32..56].copy_from_slice(&salt);
        header[56..].copy_from_slice(&length.to_le_bytes());
        Self::derive(key, header, length)
    }

    /// For a file that begins with this header. Only its first piece that opens proves the header.
    ///
    /// # Errors
    /// The header is none, or is one of another format or key.
    pub fn open(key: &DataKey, header: &[u8; HEADER]) -> Result<Self, SealError> {
        if &header[..8] != MAGIC {
            return Err(SealError::Unknown);
        }
        if header[8] != VERSION {
            return Err(SealError::Version(header[8]));
        }
        if header[9] != AES_256_GCM {
            return Err(SealError::Cipher(header[9]));
        }
        if header[10] != PIECE_BITS || header[11..16] != [0; 5] {
            return Err(SealError::Header("tarn does not write pieces of this size"));
        }
        if key_of(header) != key.id() {
            return Err(SealError::OtherKey);
        }
        let mut length = [0; 8];
        length.copy_from_slice(&header[56..]);
        let length = u64::from_le_bytes(length);
        if length > MAX_LENGTH {
            return Err(SealError::Length);
        }
        Self::derive(key, *header, length)
    }

    fn derive(key: &DataKey, header: [u8; HEADER], length: u64) -> Result<Self, SealError> {
        let secret = Salt::new(HKDF_SHA256, &header[32..56]).extract(key.secret());
        let info = [PURPOSE, &header[..]];
        // Neither fails: the length is the cipher's own.
        let okm = secret.expand(&info, &aead::AES_256_GCM);
        let okm = okm.map_err(|_| SealError::OtherKey)?;
        Ok(Self {
            key: LessSafeKey::new(UnboundKey::from(okm)),
            header,
            length,
        })
    }

    /// The header, for the file's first bytes.
    pub fn header(&self) -> &[u8; HEADER] {
        &self.header
    }

    /// Bytes of content.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Bytes of content of a piece.
    pub fn piece_len(&self, piece: u64) -> usize {
        let before = piece.saturating_mul(PIECE as u64);
        self.length.saturating_sub(before).min(PIECE as u64) as usize
    }

    fn nonce(&self, piece: u64, attempt: [u8; ATTEMPT]) -> Nonce {
        let last = piece + 1 == pieces(self.length);
        let number = u32::try_from(piece).unwrap_or(u32::MAX) & !LAST;
        let number = if last { number | LAST } else { number };
        let mut nonce = [0; NONCE_LEN];
        nonce[..ATTEMPT].copy_from_slice(&attempt);
        nonce[ATTEMPT..].copy_from_slice(&number.to_le_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    /// Seals a piece where it is stored: its content, and space for [`TRAILER`] bytes behind it. `attempt` must be random, and one content of
    /// a piece be sealed under it once.
    ///
    /// # Errors
    /// [`SealError::Length`] if the buffer is not as long as this piece is.
    pub fn seal(
        &self,
        piece: u64,
        attempt: [u8; ATTEMPT],
        buffer: &mut [u8],
    ) -> Result<(), SealError> {
        let len = self.expects(piece, buffer)?;
        let (content, trailer) = buffer.split_at_mut(len);
        let nonce = self.nonce(piece, attempt);
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::empty(), content);
        let tag = tag.map_err(|_| SealError::Length)?;
        trailer[..MAX_TAG_LEN].copy_from_slice(tag.as_ref());
        trailer[MAX_TAG_LEN..].copy_from_slice(&attempt);
        Ok(())
    }

    /// Opens a piece in place, with its trailer; the returned part of the buffer is its content.
    ///
    /// # Errors
    /// [`SealError::Forged`] if any byte of it differs from the piece of this file that was sealed.
    pub fn open_piece<'b>(
        &self,
        piece: u64,
        buffer: &'b mut [u8],
    ) -> Result<&'b mut [u8], SealError> {
        let len = self.expects(piece, buffer)?;
        let mut attempt = [0; ATTEMPT];
        attempt.copy_from_slice(&buffer[len + MAX_TAG_LEN..]);
        let nonce = self.nonce(piece, attempt);
        let sealed = &mut buffer[..len + MAX_TAG_LEN];
        let opened = self.key.open_in_place(nonce, Aad::empty(), sealed);
        opened.map_err(|_| SealError::Forged(piece))
    }

    fn expects(&self, piece: u64, buffer: &[u8]) -> Result<usize, SealError> {
        let len = self.piece_len(piece);
        match piece < pieces(self.length) && buffer.len() == len + TRAILER {
            true => Ok(len),
            false => Err(SealError::Length),
        }
    }
}

/// The data key that a header names.
pub fn key_of(header: &[u8; HEADER]) -> KeyId {
    let mut id = [0; 16];
    id.copy_from_slice(&header[16..32]);
    KeyId(id)
}
