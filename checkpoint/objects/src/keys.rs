//! Keys of encrypted objects: each version has one of its own, which is stored at its end, wrapped with the user's.

use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, memfd_create};
use std::path::Path;
use tarn_checkpoint_core::object::Trailer;
use tarn_checkpoint_core::{CheckpointError, CheckpointErrorCode};
use tarn_keyring::of_user;
use tarn_media::MappedFile;
use tarn_seal::SealError;
use tarn_seal::piece::PieceCipher;
use tarn_seal::ring::KeyRing;
use tarn_seal::wrap::WrappedKeyOwner;
use tarn_sys::private::random;
use tarn_types::key::{DataKey, KEY_BYTES, KeyId};
use zeroize::Zeroizing;

/// The facts of the trailer that a version's key is bound to, so that none of them is another's.
fn facts(trailer: &Trailer) -> String {
    let Trailer {
        identity,
        number,
        length,
        sum,
        about,
        ..
    } = trailer;
    format!("object {number} {length} {identity:x} {sum:x} {about}")
}

fn owner<'a>(trailer: &'a Trailer, facts: &'a str) -> WrappedKeyOwner<'a> {
    WrappedKeyOwner {
        uid: rustix::process::geteuid().as_raw(),
        dataset: &trailer.key,
        version: facts,
    }
}

fn keys() -> Result<KeyRing, CheckpointError> {
    of_user().map_err(|e| CheckpointError::new(CheckpointErrorCode::Invalid, e.to_string()))
}

fn refused(key: &str, e: SealError) -> CheckpointError {
    let code = match e {
        SealError::Forged(_) | SealError::Unwrap => CheckpointErrorCode::Corrupt,
        _ => CheckpointErrorCode::Invalid,
    };
    CheckpointError::new(
        code,
        format!("object {key:?} is encrypted, and cannot be opened: {e}"),
    )
}

/// Seals a version.
#[derive(Debug)]
pub(crate) struct ObjectSealer {
    pieces: PieceCipher,
    key: DataKey,
    keys: KeyRing,
}

/// Opens a version.
#[derive(Debug)]
pub(crate) struct ObjectOpener(PieceCipher);

/// The identity of a chunk of a version.
fn about(identity: u128, chunk: u64) -> [u8; 24] {
    let mut about = [0; 24];
    about[..16].copy_from_slice(&identity.to_le_bytes());
    about[16..].copy_from_slice(&chunk.to_le_bytes());
    about
}

impl ObjectSealer {
    /// With a new key, for a version of an object.
    pub(crate) fn new(object: &str) -> Result<Self, CheckpointError> {
        let keys = keys()?;
        let secret = Zeroizing::new(random::<KEY_BYTES>().map_err(no_random)?);
        let key = DataKey::new(KeyId(random().map_err(no_random)?), secret);
        let pieces = PieceCipher::new(&key).map_err(|e| refused(object, e))?;
        Ok(Self { pieces, key, keys })
    }

    /// Its key, wrapped for the facts of its trailer.
    pub(crate) fn wrapped(&self, trailer: &Trailer) -> Result<Box<[u8]>, CheckpointError> {
        let nonce = random().map_err(no_random)?;
        let facts = facts(trailer);
        let newest = self.keys.newest();
        let wrapped = newest.wrap(&self.key, owner(trailer, &facts), nonce);
        Ok(wrapped.map_err(|e| refused(&trailer.key, e))?.into())
    }

    /// Seals a chunk where it is: each once.
    pub(crate) fn seal(
        &self,
        identity: u128,
        chunk: u64,
        bytes: &mut [u8],
    ) -> Result<[u8; 16], CheckpointError> {
        let sealed = self.pieces.seal(chunk, &about(identity, chunk), bytes);
        sealed.map_err(|e| CheckpointError::new(CheckpointErrorCode::Internal, e.to_string()))
    }
}

impl ObjectOpener {
    /// With the key that a version has.
    pub(crate) fn of(trailer: &Trailer, wrapped: &[u8]) -> Result<Self, CheckpointError> {
        let facts = facts(trailer);
        let key = keys()?.unwrap(wrapped, owner(trailer, &facts));
        let pieces = key.and_then(|key| PieceCipher::new(&key));
        pieces.map(Self).map_err(|e| refused(&trailer.key, e))
    }

    /// Opens a chunk where it is.
    pub(crate) fn open(
        &self,
        trailer: &Trailer,
        chunk: u64,
        proof: &[u8; 16],
        bytes: &mut [u8],
    ) -> Result<(), CheckpointError> {
        let about = about(trailer.identity, chunk);
        let opened = self.0.open(chunk, &about, proof, bytes);
        opened.map_err(|e| refused(&trailer.key, e))
    }
}

fn no_random(e: std::io::Error) -> CheckpointError {
    CheckpointError::new(CheckpointErrorCode::Io, format!("no random bytes: {e}"))
}

/// Memory of this program alone, for decrypted bytes.
pub(crate) fn memory(bytes: u64) -> Result<(OwnedFd, MappedFile), CheckpointError> {
    let made = memfd_create("tarn-object", MemfdFlags::CLOEXEC);
    let file = made.map_err(crate::folder::error("make", Path::new("memory")))?;
    let copy = file
        .try_clone()
        .map_err(|e| CheckpointError::new(CheckpointErrorCode::Io, e.to_string()))?;
    let mapped = MappedFile::make(file, Path::new("memory of an object"), bytes.max(1))?;
    Ok((copy, mapped))
}
