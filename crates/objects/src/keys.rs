//! Keys of encrypted objects: each version has one of its own, which lies at its end, wrapped with the user's.

use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, memfd_create};
use std::path::Path;
use tarn_base::key::{DataKey, KEY_BYTES, KeyId};
use tarn_keyring::of_user;
use tarn_media::Mapped;
use tarn_phx::{Code, Fault};
use tarn_seal::SealError;
use tarn_seal::piece::Pieces;
use tarn_seal::ring::KeyRing;
use tarn_seal::wrap::Owner;
use tarn_sys::private::random;

/// What an object's version is, beside its key.
const VERSION: &str = "object";

fn owner(key: &str) -> Owner<'_> {
    Owner {
        uid: rustix::process::geteuid().as_raw(),
        dataset: key,
        version: VERSION,
    }
}

fn keys() -> Result<KeyRing, Fault> {
    of_user().map_err(|e| Fault::new(Code::Invalid, e.to_string()))
}

fn refused(key: &str, e: SealError) -> Fault {
    let code = match e {
        SealError::Forged(_) => Code::Corrupt,
        _ => Code::Invalid,
    };
    Fault::new(
        code,
        format!("object {key:?} is encrypted, and cannot be opened: {e}"),
    )
}

/// What seals, or opens, a version.
#[derive(Debug)]
pub(crate) struct Sealing {
    pieces: Pieces,
    /// Its key.
    pub(crate) wrapped: Box<[u8]>,
}

/// What a chunk of a version is.
fn about(identity: u128, chunk: u64) -> [u8; 24] {
    let mut about = [0; 24];
    about[..16].copy_from_slice(&identity.to_le_bytes());
    about[16..].copy_from_slice(&chunk.to_le_bytes());
    about
}

impl Sealing {
    /// With a new key, for a version of an object.
    pub(crate) fn new(object: &str) -> Result<Self, Fault> {
        let failed = |e: std::io::Error| Fault::new(Code::Io, format!("no random bytes: {e}"));
        let keys = keys()?;
        let secret = random::<KEY_BYTES>().map_err(failed)?;
        let key = DataKey::new(KeyId(random().map_err(failed)?), secret.into());
        let nonce = random().map_err(failed)?;
        let wrapped = keys.newest().wrap(&key, owner(object), nonce);
        Ok(Self {
            pieces: Pieces::new(&key).map_err(|e| refused(object, e))?,
            wrapped: wrapped.map_err(|e| refused(object, e))?.into(),
        })
    }

    /// With the key that a version has.
    pub(crate) fn of(object: &str, wrapped: &[u8]) -> Result<Self, Fault> {
        let key = keys()?.unwrap(wrapped, owner(object));
        let pieces = key.and_then(|key| Pieces::new(&key));
        Ok(Self {
            pieces: pieces.map_err(|e| refused(object, e))?,
            wrapped: wrapped.into(),
        })
    }

    /// Seals a chunk where it is: each once.
    pub(crate) fn seal(
        &self,
        identity: u128,
        chunk: u64,
        bytes: &mut [u8],
    ) -> Result<[u8; 16], Fault> {
        let sealed = self.pieces.seal(chunk, &about(identity, chunk), bytes);
        sealed.map_err(|e| Fault::new(Code::Internal, e.to_string()))
    }

    /// Opens it.
    pub(crate) fn open(
        &self,
        object: &str,
        (identity, chunk): (u128, u64),
        proof: &[u8; 16],
        bytes: &mut [u8],
    ) -> Result<(), Fault> {
        let opened = self
            .pieces
            .open(chunk, &about(identity, chunk), proof, bytes);
        opened.map_err(|e| refused(object, e))
    }
}

/// Memory of this program alone, for what is in clear.
pub(crate) fn memory(bytes: u64) -> Result<(OwnedFd, Mapped), Fault> {
    let made = memfd_create("tarn-object", MemfdFlags::CLOEXEC);
    let file = made.map_err(crate::folder::error("make", Path::new("memory")))?;
    let copy = file
        .try_clone()
        .map_err(|e| Fault::new(Code::Io, e.to_string()))?;
    let mapped = Mapped::make(file, Path::new("memory of an object"), bytes.max(1))?;
    Ok((copy, mapped))
}
