//! Data keys, which seal and open the files of a dataset. The crate `seal` does it.

use std::fmt;
use zeroize::Zeroizing;

/// Bytes of every secret here: keys of AES-256.
pub const KEY_BYTES: usize = 32;

/// The public name of a key: random, no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub [u8; 16]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The key of a part's data. It is wiped from memory when it is dropped, and never printed.
#[derive(Clone)]
pub struct DataKey {
    id: KeyId,
    secret: Zeroizing<[u8; KEY_BYTES]>,
}

impl DataKey {
    /// A key of random bytes, or one that was unwrapped.
    pub fn new(id: KeyId, secret: Zeroizing<[u8; KEY_BYTES]>) -> Self {
        Self { id, secret }
    }

    /// Its name.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// The secret, from which keys of files are derived.
    pub fn secret(&self) -> &[u8; KEY_BYTES] {
        &self.secret
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataKey({})", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_prints_its_name_and_not_its_secret() {
        let key = DataKey::new(KeyId([0xab; 16]), Zeroizing::new([0xcd; KEY_BYTES]));
        let printed = format!("{key:?} {key:#?} {}", key.id());
        assert!(printed.contains(&"ab".repeat(16)), "{printed}");
        assert!(
            !printed.contains("cd") && !printed.contains("205"),
            "{printed}"
        );
    }
}
