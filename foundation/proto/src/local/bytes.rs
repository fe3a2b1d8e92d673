//! Paths: any bytes but NUL. In packets as they are, in text with everything unprintable as `%XX`.

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A path's bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PathBytes(pub Vec<u8>);

impl PathBytes {
    /// For messages: bytes that are not printable UTF-8 are escaped.
    pub fn show(&self) -> String {
        String::from_utf8_lossy(&self.0).escape_debug().to_string()
    }
}

impl fmt::Debug for PathBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.show())
    }
}

impl<T: AsRef<[u8]>> From<T> for PathBytes {
    fn from(bytes: T) -> Self {
        Self(bytes.as_ref().to_vec())
    }
}

fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '%' || c.is_control() {
                let mut buffer = [0; 4];
                for b in c.encode_utf8(&mut buffer).bytes() {
                    text.push_str(&format!("%{b:02X}"));
                }
            } else {
                text.push(c);
            }
        }
        for b in chunk.invalid() {
            text.push_str(&format!("%{b:02X}"));
        }
    }
    text
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    Some(bytes)
}

impl Serialize for PathBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str(&escape(&self.0))
        } else {
            serializer.serialize_bytes(&self.0)
        }
    }
}

struct AnyBytes;

impl Visitor<'_> for AnyBytes {
    type Value = PathBytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a path")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<PathBytes, E> {
        Ok(bytes.into())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<PathBytes, E> {
        let broken = || E::custom("a path with a broken %XX");
        unescape(text).map(PathBytes).ok_or_else(broken)
    }
}

impl<'de> Deserialize<'de> for PathBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            deserializer.deserialize_str(AnyBytes)
        } else {
            deserializer.deserialize_bytes(AnyBytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_survive_both_forms(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let path = PathBytes(bytes);
            let text = serde_json::to_string(&path).unwrap();
            prop_assert!(!text.contains('\n'));
            prop_assert_eq!(&serde_json::from_str::<PathBytes>(&text).unwrap(), &path);
            let packed = postcard::to_stdvec(&path).unwrap();
            prop_assert_eq!(postcard::from_bytes::<PathBytes>(&packed).unwrap(), path);
        }
    }

    #[test]
    fn broken_escapes_are_refused() {
        for bad in ["\"%\"", "\"%4\"", "\"%zz\"", "7"] {
            assert!(serde_json::from_str::<PathBytes>(bad).is_err(), "{bad}");
        }
    }
}
