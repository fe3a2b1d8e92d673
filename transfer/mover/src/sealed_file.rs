//! Sealed files over descriptors: `tarn_seal` piece by piece. docs/internals/movers.md, "Sealed trees".

use crate::content::PIECE;
use crate::error::corrupt;
use crate::file_io::read_full;
use rustix::fd::AsFd;
use rustix::io::Errno;
use tarn_ports::{MoverError, Piece};
use tarn_seal::SealError;
use tarn_seal::file::{self, ATTEMPT, FileCipher, HEADER, TRAILER};
use tarn_types::key::DataKey;

// A piece that is read, hashed and written at once is one that is sealed for itself.
const _: () = assert!(file::PIECE == PIECE);

/// Bytes of a buffer that holds a piece, sealed or not.
pub(crate) const BUFFER: usize = PIECE + TRAILER;

/// How a file of the destination is sealed.
pub(crate) struct FileSealing {
    pub(crate) cipher: FileCipher,
    pub(crate) attempt: [u8; ATTEMPT],
    /// The part of it that an earlier attempt has left counts.
    pub(crate) goes_on: bool,
    /// Its pieces are those of the source.
    pub(crate) as_it_is: bool,
}

/// Why a sealed file cannot be read.
pub(crate) enum SealedReadError {
    Io(Errno),
    Seal(SealError),
}

impl From<Errno> for SealedReadError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno)
    }
}

impl From<SealError> for SealedReadError {
    fn from(error: SealError) -> Self {
        Self::Seal(error)
    }
}

/// The cipher of an open sealed file of so many bytes.
pub(crate) fn open(key: &DataKey, fd: impl AsFd, size: u64) -> Result<FileCipher, SealedReadError> {
    let mut header = [0; HEADER];
    if read_full(fd, &mut header, 0)? < HEADER {
        return Err(SealError::Length.into());
    }
    let cipher = FileCipher::open(key, &header)?;
    match file::sealed_len(cipher.length()) == Some(size) {
        true => Ok(cipher),
        false => Err(SealError::Length.into()),
    }
}

/// Reads a piece into the buffer's beginning as it is there; its bytes with the trailer.
pub(crate) fn read_raw(
    fd: impl AsFd,
    cipher: &FileCipher,
    piece: u64,
    buffer: &mut [u8],
) -> Result<usize, SealedReadError> {
    let len = cipher.piece_len(piece) + TRAILER;
    match read_full(fd, &mut buffer[..len], file::offset(piece))? == len {
        true => Ok(len),
        false => Err(SealError::Length.into()),
    }
}

/// Reads a piece and opens it at the buffer's beginning; its bytes of content.
pub(crate) fn read(
    fd: impl AsFd,
    cipher: &FileCipher,
    piece: u64,
    buffer: &mut [u8],
) -> Result<usize, SealedReadError> {
    let len = read_raw(fd, cipher, piece, buffer)?;
    Ok(cipher.open_piece(piece, &mut buffer[..len])?.len())
}

/// The header of a sealed file, as a request to a peer.
pub(crate) fn header(path: &[u8]) -> Piece<'_> {
    Piece {
        path,
        offset: 0,
        len: HEADER as u64,
    }
}

/// A sealed file that is none, or not this one.
pub(crate) fn refused(path: &str, error: SealError) -> MoverError {
    corrupt(path, &format!("cannot be opened: {error}"))
}
