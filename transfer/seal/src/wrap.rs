//! Wrapped keys: a data key under a wrapping key, bound to the owner of the data.

use crate::{AES_256_GCM, SealError};
use ::ring::aead::{self, Aad, LessSafeKey, MAX_TAG_LEN, NONCE_LEN, Nonce, UnboundKey};
use ::ring::hkdf::{HKDF_SHA256, Salt};
use tarn_types::key::{DataKey, KEY_BYTES, KeyId};
use zeroize::Zeroizing;

const MAGIC: &[u8; 8] = b"TARNWKEY";
const VERSION: u8 = 1;
/// Another use of a user's key, one day, must not give the same keys.
const PURPOSE: &[u8] = b"tarn workspace key";
/// Magic, version, cipher, zeros; the ids of both keys; the nonce.
const HEAD: usize = 16 + 16 + 16 + NONCE_LEN;
/// Bytes of a wrapped key.
pub const WRAPPED: usize = HEAD + KEY_BYTES + MAX_TAG_LEN;

/// The key that data keys are wrapped with: a user's own, or a site's. Wiped when dropped, never printed.
#[derive(Clone)]
pub struct WrappingKey {
    id: KeyId,
    secret: Zeroizing<[u8; KEY_BYTES]>,
}

impl std::fmt::Debug for WrappingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WrappingKey({})", self.id)
    }
}

/// The owner of the data of a key. A wrapped key opens for the same three only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrappedKeyOwner<'a> {
    /// The user.
    pub uid: u32,
    /// The dataset.
    pub dataset: &'a str,
    /// The version of its content, as the store names it.
    pub version: &'a str,
}

impl WrappingKey {
    /// A key of random bytes, or one that was kept.
    pub fn new(id: KeyId, secret: Zeroizing<[u8; KEY_BYTES]>) -> Self {
        Self { id, secret }
    }

    /// Its identifier.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// The key for one workspace's data that is made of this one: its holder learns nothing of this one, or of other
    /// workspaces'.
    ///
    /// # Errors
    /// None that can be met; the cipher's own.
    pub fn of_workspace(&self, workspace: &str) -> Result<Self, SealError> {
        let secret = Salt::new(HKDF_SHA256, PURPOSE).extract(&self.secret[..]);
        let fill = |what: &[u8], into: &mut [u8]| {
            // It cannot fail: a key is as long as a digest, and an id shorter.
            let mut okm = Zeroizing::new([0; KEY_BYTES]);
            let info = [what, workspace.as_bytes()];
            let made = secret.expand(&info, HKDF_SHA256);
            let made = made.and_then(|made| made.fill(&mut okm[..]));
            made.map_err(|_| SealError::Unwrap)?;
            into.copy_from_slice(&okm[..into.len()]);
            Ok::<_, SealError>(())
        };
        let (mut id, mut derived) = ([0; 16], Zeroizing::new([0; KEY_BYTES]));
        fill(b"id ", &mut id)?;
        fill(b"key ", &mut derived[..])?;
        Ok(Self::new(KeyId(id), derived))
    }

    pub(crate) fn secret(&self) -> &[u8; KEY_BYTES] {
        &self.secret
    }

    fn cipher(&self) -> Result<LessSafeKey, SealError> {
        let key = UnboundKey::new(&aead::AES_256_GCM, &self.secret[..]);
        key.map(LessSafeKey::new).map_err(|_| SealError::Unwrap)
    }

    /// Wraps a data key. `nonce` must be random.
    ///
    /// # Errors
    /// None that can be met; the cipher's own.
    pub fn wrap(
        &self,
        key: &DataKey,
        owner: WrappedKeyOwner<'_>,
        nonce: [u8; NONCE_LEN],
    ) -> Result<[u8; WRAPPED], SealError> {
        let mut wrapped = [0; WRAPPED];
        wrapped[..8].copy_from_slice(MAGIC);
        wrapped[8] = VERSION;
        wrapped[9] = AES_256_GCM;
        wrapped[16..32].copy_from_slice(&self.id.0);
        wrapped[32..48].copy_from_slice(&key.id().0);
        wrapped[48..HEAD].copy_from_slice(&nonce);
        let about = about(&wrapped[..HEAD], owner);
        let (_, sealed) = wrapped.split_at_mut(HEAD);
        let (secret, tag) = sealed.split_at_mut(KEY_BYTES);
        secret.copy_from_slice(key.secret());
        let nonce = Nonce::assume_unique_for_key(nonce);
        let proof = self
            .cipher()?
            .seal_in_place_separate_tag(nonce, Aad::from(about), secret);
        tag.copy_from_slice(proof.map_err(|_| SealError::Unwrap)?.as_ref());
        Ok(wrapped)
    }

    /// The data key.
    ///
    /// # Errors
    /// [`SealError::OtherKey`] if another key wraps it (its id is in [`wrapped_by`]), [`SealError::Unwrap`] if it is not the key
    /// that was wrapped for this owner.
    pub fn unwrap(&self, wrapped: &[u8], owner: WrappedKeyOwner<'_>) -> Result<DataKey, SealError> {
        if wrapped_by(wrapped)? != self.id {
            return Err(SealError::OtherKey);
        }
        let about = about(&wrapped[..HEAD], owner);
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&wrapped[48..HEAD]);
        let mut sealed = Zeroizing::new([0; KEY_BYTES + MAX_TAG_LEN]);
        sealed.copy_from_slice(&wrapped[HEAD..]);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let cipher = self.cipher()?;
        let opened = cipher.open_in_place(nonce, Aad::from(about), &mut sealed[..]);
        let opened = opened.map_err(|_| SealError::Unwrap)?;
        let mut secret = Zeroizing::new([0; KEY_BYTES]);
        secret.copy_from_slice(opened);
        let mut id = [0; 16];
        id.copy_from_slice(&wrapped[32..48]);
        Ok(DataKey::new(KeyId(id), secret))
    }
}

/// The wrapping key that a wrapped key names.
///
/// # Errors
/// The bytes are no wrapped key, or one of another format.
pub fn wrapped_by(wrapped: &[u8]) -> Result<KeyId, SealError> {
    if wrapped.get(..8) != Some(MAGIC) {
        return Err(SealError::Unknown);
    }
    if wrapped.len() != WRAPPED {
        return Err(SealError::Length);
    }
    if wrapped[8] != VERSION {
        return Err(SealError::Version(wrapped[8]));
    }
    if wrapped[9] != AES_256_GCM {
        return Err(SealError::Cipher(wrapped[9]));
    }
    let mut id = [0; 16];
    id.copy_from_slice(&wrapped[16..32]);
    Ok(KeyId(id))
}

/// The bytes that the proof covers beside the key: everything before it, and the owner.
fn about(head: &[u8], owner: WrappedKeyOwner<'_>) -> Vec<u8> {
    let mut about = head.to_vec();
    about.extend_from_slice(&owner.uid.to_le_bytes());
    for text in [owner.dataset, owner.version] {
        about.extend_from_slice(&(text.len() as u64).to_le_bytes());
        about.extend_from_slice(text.as_bytes());
    }
    about
}
