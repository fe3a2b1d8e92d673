//! Versions whose objects are ciphertext wherever they are stored: docs/guide/checkpoints.md, "Encrypted".

use crate::arena::VersionId;
use crate::fault::{CheckpointError, CheckpointErrorCode};
use crate::manifest::{CHUNK, ChunkProof, Object, RankManifest, Seal};
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tarn_seal::SealError;
use tarn_seal::piece::PieceCipher;
use tarn_types::key::DataKey;

/// The data key that a version's wrapped one stands for.
pub type Unwrap = dyn Fn(&[u8]) -> Result<DataKey, SealError> + Send + Sync;

/// Seals a rank's versions for as long as it runs, and opens those that others, or its earlier starts, have sealed.
pub struct RankSealer {
    pieces: Arc<PieceCipher>,
    /// The key of those, wrapped: a part of each version.
    wrapped: Box<[u8]>,
    /// The number of the next piece.
    next: AtomicU64,
    unwrap: Arc<Unwrap>,
    clear: bool,
}

impl std::fmt::Debug for RankSealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RankSealer(secret)")
    }
}

/// The origin of a version. It is proven with it, so that no other stands in for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedOrigin {
    /// The version.
    pub id: VersionId,
    /// The start that committed it.
    pub start: u128,
    /// The rank.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
}

/// The identity of a chunk of an object.
fn about(key: &[u8], chunk: u64) -> Vec<u8> {
    [&chunk.to_le_bytes(), key].concat()
}

/// The identity of a version: all but where it is stored, which changes when it is de-staged or copied, and the checksums, which
/// the proofs make needless.
fn about_all(of: &SealedOrigin, objects: &[Object], proofs: &[Vec<ChunkProof>]) -> Vec<u8> {
    let mut out = b"tarn-checkpoint".to_vec();
    out.extend(of.start.to_le_bytes());
    out.extend(of.id.generation.to_le_bytes());
    out.extend(of.id.number.to_le_bytes());
    out.extend(of.rank.to_le_bytes());
    out.extend(of.ranks.to_le_bytes());
    out.extend((objects.len() as u32).to_le_bytes());
    for object in objects {
        object.describe(&mut out);
        out.extend(object.size().to_le_bytes());
    }
    let proofs = proofs.iter().flatten();
    proofs.for_each(|proof| proof.encode(&mut out));
    out
}

impl RankSealer {
    /// With a key that seals nothing else, and that `wrapped` stands for. `clear` versions, too, are restored then, or refused.
    ///
    /// # Errors
    /// None that can be met; the cipher's own.
    pub fn new(
        key: &DataKey,
        wrapped: Box<[u8]>,
        unwrap: Arc<Unwrap>,
        clear: bool,
    ) -> Result<Self, CheckpointError> {
        let pieces = PieceCipher::new(key)
            .map_err(|e| CheckpointError::new(CheckpointErrorCode::Internal, e.to_string()))?;
        Ok(Self {
            pieces: Arc::new(pieces),
            wrapped,
            next: AtomicU64::new(0),
            unwrap,
            clear,
        })
    }

    fn prove(&self, about: &[u8], bytes: &mut [u8]) -> Result<ChunkProof, CheckpointError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let tag = self.pieces.seal(number, about, bytes);
        let tag =
            tag.map_err(|e| CheckpointError::new(CheckpointErrorCode::Internal, e.to_string()))?;
        Ok(ChunkProof { number, tag })
    }

    /// Seals a chunk of an object where it is.
    pub(crate) fn seal(
        &self,
        key: &[u8],
        chunk: u64,
        bytes: &mut [u8],
    ) -> Result<ChunkProof, CheckpointError> {
        self.prove(&about(key, chunk), bytes)
    }

    /// The seal of a version, by the proofs of its objects' chunks.
    pub(crate) fn seals(
        &self,
        of: &SealedOrigin,
        objects: &[Object],
        proofs: Vec<Vec<ChunkProof>>,
    ) -> Result<Seal, CheckpointError> {
        let whole = self.prove(&about_all(of, objects, &proofs), &mut [])?;
        Ok(Seal {
            key: self.wrapped.clone(),
            proofs,
            whole,
        })
    }
}

fn refused(what: impl Display, e: SealError) -> CheckpointError {
    let code = match e {
        // A newer version of tarn, or the right key, opens it.
        SealError::OtherKey | SealError::Version(_) | SealError::Cipher(_) => {
            CheckpointErrorCode::Invalid
        }
        _ => CheckpointErrorCode::Corrupt,
    };
    CheckpointError::new(code, format!("{what} cannot be opened: {e}"))
}

/// Opens the objects of a version that was proven to be the expected one.
#[derive(Debug, Clone)]
pub struct Opener(Option<Arc<PieceCipher>>);

impl Opener {
    /// For a program that may have requested encryption.
    ///
    /// # Errors
    /// [`CheckpointErrorCode::Invalid`] when this program has not requested encryption, has not that key, or does not take
    /// versions in clear; [`CheckpointErrorCode::Corrupt`] when it is not the version that was sealed.
    pub(crate) fn new(
        with: Option<&RankSealer>,
        manifest: &RankManifest,
        of: &SealedOrigin,
    ) -> Result<Self, CheckpointError> {
        match (&manifest.seal, with) {
            (None, Some(with)) if !with.clear => Err(in_clear(of.id)),
            (None, _) => Ok(Self(None)),
            (Some(seal), Some(with)) if seal.key == with.wrapped => {
                Self::of(Arc::clone(&with.pieces), seal, &manifest.objects, of)
            }
            (Some(_), Some(with)) => Self::unwrapped(&*with.unwrap, manifest, of),
            (Some(_), None) => {
                let text = format!(
                    "version {} is encrypted, and this program has not asked for encryption: ask for it, with the key that it was made with",
                    of.id
                );
                Err(CheckpointError::new(CheckpointErrorCode::Invalid, text))
            }
        }
    }

    /// For a program that only reads, and takes versions in clear.
    ///
    /// # Errors
    /// As above.
    pub fn unwrapped(
        unwrap: &Unwrap,
        manifest: &RankManifest,
        of: &SealedOrigin,
    ) -> Result<Self, CheckpointError> {
        let Some(seal) = &manifest.seal else {
            return Ok(Self(None));
        };
        let refused = |e| refused(format_args!("version {} of rank {}", of.id, of.rank), e);
        let key = unwrap(&seal.key).map_err(refused)?;
        let pieces = PieceCipher::new(&key).map_err(refused)?;
        Self::of(Arc::new(pieces), seal, &manifest.objects, of)
    }

    fn of(
        pieces: Arc<PieceCipher>,
        seal: &Seal,
        objects: &[Object],
        of: &SealedOrigin,
    ) -> Result<Self, CheckpointError> {
        let about = about_all(of, objects, &seal.proofs);
        let proven = pieces.open(seal.whole.number, &about, &seal.whole.tag, &mut []);
        proven.map_err(|_| {
            let text = format!(
                "the data there as version {} of rank {} was changed since it was sealed, or is another version",
                of.id, of.rank
            );
            CheckpointError::new(CheckpointErrorCode::Corrupt, text)
        })?;
        Ok(Self(Some(pieces)))
    }

    /// Opens the content of an object of that version, as it was read, in place; clear content stays as it is.
    ///
    /// # Errors
    /// [`CheckpointErrorCode::Corrupt`] when it is not the sealed content.
    pub fn open(
        &self,
        manifest: &RankManifest,
        object: &Object,
        content: &mut [u8],
    ) -> Result<(), CheckpointError> {
        let Some(pieces) = &self.0 else {
            return Ok(());
        };
        let refused = |e| {
            let name = String::from_utf8_lossy(&object.key);
            refused(format_args!("object {name:?}"), e)
        };
        let number = manifest.objects.iter().position(|o| o.key == object.key);
        let proofs = number.and_then(|number| manifest.seal.as_ref()?.proofs.get(number));
        let proofs = proofs.map_or(&[][..], |proofs| proofs);
        let chunks = content.chunks_mut(CHUNK as usize);
        if chunks.len() != proofs.len() {
            return Err(refused(SealError::Length));
        }
        for ((chunk, bytes), proof) in (0..).zip(chunks).zip(proofs) {
            let opened = pieces.open(proof.number, &about(&object.key, chunk), &proof.tag, bytes);
            opened.map_err(refused)?;
        }
        Ok(())
    }
}

/// That a version is in clear, and should not be.
pub fn in_clear(id: VersionId) -> CheckpointError {
    let text = format!(
        "version {id} is not encrypted, and this program asks for encryption: who may write to the tier could have put it there. If it is your own, \
         from before you began to encrypt, set TARN_PHX_CLEAR=1 for this start"
    );
    CheckpointError::new(CheckpointErrorCode::Invalid, text)
}
