//! Pieces of memory, each sealed where it is, with a proof that is stored elsewhere: of checkpoints. docs/admin/security.md.

use crate::SealError;
use ::ring::aead::{self, Aad, LessSafeKey, MAX_TAG_LEN, NONCE_LEN, Nonce, Tag, UnboundKey};
use tarn_types::key::DataKey;

/// Bytes of a proof.
pub const PROOF: usize = MAX_TAG_LEN;

/// The cipher that seals and opens pieces.
pub struct PieceCipher(LessSafeKey);

impl std::fmt::Debug for PieceCipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PieceCipher(secret)")
    }
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[NONCE_LEN - 8..].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

impl PieceCipher {
    /// Of a key that seals nothing else.
    ///
    /// # Errors
    /// None that can be met; the cipher's own.
    pub fn new(key: &DataKey) -> Result<Self, SealError> {
        let key = UnboundKey::new(&aead::AES_256_GCM, key.secret());
        let key = key.map_err(|_| SealError::OtherKey)?;
        Ok(Self(LessSafeKey::new(key)))
    }

    /// Seals a piece. A key seals only one with this number; `about` describes it.
    ///
    /// # Errors
    /// [`SealError::Length`] of one that is too long (64 GiB).
    pub fn seal(
        &self,
        number: u64,
        about: &[u8],
        piece: &mut [u8],
    ) -> Result<[u8; PROOF], SealError> {
        let sealed = self
            .0
            .seal_in_place_separate_tag(nonce(number), Aad::from(about), piece);
        let tag = sealed.map_err(|_| SealError::Length)?;
        let mut proof = [0; PROOF];
        proof.copy_from_slice(tag.as_ref());
        Ok(proof)
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`SealError::Forged`] when it is not the piece that was sealed with this number, as this, by this key; `piece` is
    /// worth nothing then.
    pub fn open(
        &self,
        number: u64,
        about: &[u8],
        proof: &[u8; PROOF],
        piece: &mut [u8],
    ) -> Result<(), SealError> {
        let tag = Tag::from(*proof);
        let opened =
            self.0
                .open_in_place_separate_tag(nonce(number), Aad::from(about), tag, piece, 0..);
        opened.map(drop).map_err(|_| SealError::Forged(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tarn_types::key::{KEY_BYTES, KeyId};

    fn pieces(secret: u8) -> PieceCipher {
        let key = DataKey::new(KeyId([1; 16]), [secret; KEY_BYTES].into());
        PieceCipher::new(&key).unwrap()
    }

    proptest! {
        #[test]
        fn a_piece_opens_as_what_it_was_and_as_nothing_else(
            mut piece in prop::collection::vec(any::<u8>(), 1..500),
            number: u64,
            at: prop::sample::Index,
        ) {
            let was = piece.clone();
            let proof = pieces(1).seal(number, b"what", &mut piece).unwrap();
            if was.len() > 16 {
                prop_assert!(piece != was);
            }
            let opens = |pieces: &PieceCipher, number, about: &[u8], proof, mut piece: Vec<u8>| {
                pieces.open(number, about, proof, &mut piece).ok().map(|()| piece)
            };
            let own = pieces(1);
            prop_assert_eq!(opens(&own, number, b"what", &proof, piece.clone()), Some(was));
            prop_assert_eq!(opens(&pieces(2), number, b"what", &proof, piece.clone()), None);
            prop_assert_eq!(opens(&own, number ^ 1, b"what", &proof, piece.clone()), None);
            prop_assert_eq!(opens(&own, number, b"else", &proof, piece.clone()), None);
            let at = at.index(piece.len());
            piece[at] ^= 1;
            prop_assert_eq!(opens(&own, number, b"what", &proof, piece.clone()), None);
        }
    }
}
