//! 128-bit hashes at memory speed (XXH3), for integrity and identity inside one user's own runs.
//! They are not a defence against a forger.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::fmt;
use xxhash_rust::xxh3::Xxh3Default;

/// A 128-bit hash; printed and stored as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Hash(pub u128);

impl Hash {
    /// The hash of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxhash_rust::xxh3::xxh3_128(bytes))
    }

    /// The first 16 hexadecimal digits, for names.
    pub fn short(self) -> String {
        format!("{:016x}", (self.0 >> 64) as u64)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Hash {
    type Err = std::num::ParseIntError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(s, 16).map(Self)
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let s = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        s.parse()
            .map_err(|_| D::Error::custom("expected 32 hexadecimal digits"))
    }
}

/// A streaming hash. Fields of a record are framed by [`Hasher::field`], so that no two records
/// with different fields feed the same bytes.
#[derive(Clone, Default)]
pub struct Hasher(Xxh3Default);

impl Hasher {
    /// An empty hash.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds raw bytes: content, in order.
    pub fn update(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.update(bytes);
        self
    }

    /// Adds one field of a record: its length, then its bytes.
    pub fn field(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    /// Adds a number as a field.
    pub fn number(&mut self, n: u64) -> &mut Self {
        self.field(&n.to_le_bytes())
    }

    /// The hash of the added bytes.
    pub fn finish(&self) -> Hash {
        Hash(self.0.digest128())
    }
}
