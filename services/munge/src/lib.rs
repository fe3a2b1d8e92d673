//! L3: sessions between the controller and the nodes of a site. The opener of a session proves its identity by a munge
//! credential, which also holds the key of a sealed stream. docs/internals/site.md, "Who may give orders";
//! docs/internals/streams.md.

mod credential;
mod session;

pub use credential::{Identity, Munge, MungeError};
pub use session::{
    MungeSessionReader, MungeSessionWriter, SessionError, accept, accept_anyone, open,
};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::io;

/// Bytes of keys and nonces.
pub use tarn_types::key::KEY_BYTES;

/// Something that nobody else is to know. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes([u8; KEY_BYTES]);

impl SecretBytes {
    /// Bytes that nobody can foresee.
    ///
    /// # Errors
    /// When the kernel gives none.
    pub fn random() -> io::Result<Self> {
        Ok(Self(tarn_stream::random()?))
    }

    /// One that is known already.
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes, to be kept or handed to a process that must know them.
    pub fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// A secret for one purpose: this one cannot be derived from it.
    pub fn derive(&self, purpose: &[u8]) -> Self {
        let mac = self.mac(&[b"derive", purpose]);
        Self(mac.finalize().into_bytes().into())
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        // HMAC fills shorter keys with zeros to a block of its hash.
        let mut block = [0; 64];
        block[..KEY_BYTES].copy_from_slice(&self.0);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        for part in parts {
            mac.update(part);
        }
        mac
    }
}

impl std::fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretBytes(..)")
    }
}
