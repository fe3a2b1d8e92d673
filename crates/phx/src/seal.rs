//! Versions whose objects are ciphertext wherever they lie: docs/checkpoints.md, "Encrypted".

use crate::fault::{Code, Fault};
use crate::manifest::{CHUNK, Manifest, Object, Proof, Seal};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tarn_base::key::DataKey;
use tarn_seal::SealError;
use tarn_seal::piece::Pieces;

/// The data key that a version's wrapped one stands for.
pub type Unwrap = dyn Fn(&[u8]) -> Result<DataKey, SealError> + Send + Sync;

/// What a rank seals with for as long as it runs, and how it opens what others, or its earlier starts, have sealed.
pub struct Sealing {
    pieces: Pieces,
    /// The key of those, wrapped: a part of each version.
    wrapped: Box<[u8]>,
    /// The number of the next piece.
    next: AtomicU64,
    unwrap: Arc<Unwrap>,
}

impl std::fmt::Debug for Sealing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealing(secret)")
    }
}

/// What a chunk of an object is.
fn about(key: &[u8], chunk: u64) -> Vec<u8> {
    [&chunk.to_le_bytes(), key].concat()
}

impl Sealing {
    /// With a key that seals nothing else, and that `wrapped` stands for.
    ///
    /// # Errors
    /// None that can be met; the cipher's own.
    pub fn new(key: &DataKey, wrapped: Box<[u8]>, unwrap: Arc<Unwrap>) -> Result<Self, Fault> {
        let pieces = Pieces::new(key).map_err(|e| Fault::new(Code::Internal, e.to_string()))?;
        Ok(Self {
            pieces,
            wrapped,
            next: AtomicU64::new(0),
            unwrap,
        })
    }

    /// Seals a chunk of an object where it is.
    pub(crate) fn seal(&self, key: &[u8], chunk: u64, bytes: &mut [u8]) -> Result<Proof, Fault> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let tag = self.pieces.seal(number, &about(key, chunk), bytes);
        let tag = tag.map_err(|e| Fault::new(Code::Internal, e.to_string()))?;
        Ok(Proof { number, tag })
    }

    /// What a version says of how it is sealed, by the proofs of its objects' chunks.
    pub(crate) fn seals(&self, proofs: Vec<Vec<Proof>>) -> Seal {
        Seal {
            key: self.wrapped.clone(),
            proofs,
        }
    }
}

fn refused(object: &Object, e: SealError) -> Fault {
    let code = match e {
        SealError::Forged(_) => Code::Corrupt,
        _ => Code::Invalid,
    };
    let name = String::from_utf8_lossy(&object.key);
    Fault::new(code, format!("object {name:?} cannot be opened: {e}"))
}

/// Opens the content of an object, as it was read, where it is; what is not sealed stays as it is.
///
/// # Errors
/// When this program has no keys, or not that one; [`Code::Corrupt`] when it is not what was sealed.
pub(crate) fn open(
    with: Option<&Sealing>,
    manifest: &Manifest,
    object: &Object,
    content: &mut [u8],
) -> Result<(), Fault> {
    let Some(seal) = &manifest.seal else {
        return Ok(());
    };
    match with {
        Some(with) if *seal.key == *with.wrapped => {
            open_by(&with.pieces, manifest, object, content)
        }
        Some(with) => open_with(&*with.unwrap, manifest, object, content),
        None => {
            let text = format!(
                "object {:?} is encrypted in that version, and this program has not asked for encryption: ask for it, with the key that it was made with",
                String::from_utf8_lossy(&object.key)
            );
            Err(Fault::new(Code::Invalid, text))
        }
    }
}

/// The same for who only reads.
///
/// # Errors
/// When it has not that key; [`Code::Corrupt`] when it is not what was sealed.
pub fn open_with(
    unwrap: &Unwrap,
    manifest: &Manifest,
    object: &Object,
    content: &mut [u8],
) -> Result<(), Fault> {
    let Some(seal) = &manifest.seal else {
        return Ok(());
    };
    let key = unwrap(&seal.key).map_err(|e| refused(object, e))?;
    let pieces = Pieces::new(&key).map_err(|e| refused(object, e))?;
    open_by(&pieces, manifest, object, content)
}

fn open_by(
    pieces: &Pieces,
    manifest: &Manifest,
    object: &Object,
    content: &mut [u8],
) -> Result<(), Fault> {
    let number = manifest.objects.iter().position(|o| o.key == object.key);
    let proofs = number.and_then(|number| manifest.seal.as_ref()?.proofs.get(number));
    let proofs = proofs.map_or(&[][..], |proofs| proofs);
    let chunks = content.chunks_mut(CHUNK as usize);
    if chunks.len() != proofs.len() {
        return Err(refused(object, SealError::Length));
    }
    for ((chunk, bytes), proof) in (0..).zip(chunks).zip(proofs) {
        let opened = pieces.open(proof.number, &about(&object.key, chunk), &proof.tag, bytes);
        opened.map_err(|e| refused(object, e))?;
    }
    Ok(())
}
