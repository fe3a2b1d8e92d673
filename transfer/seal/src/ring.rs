//! A file of wrapping keys: a line for each, the one that is used for new data first. Older ones open what they have wrapped until that
//! is wrapped again.

use crate::SealError;
use crate::wrap::{WrappedKeyOwner, WrappingKey, wrapped_by};
use tarn_types::key::{DataKey, KEY_BYTES, KeyId};
use zeroize::Zeroizing;

/// The most keys of a file.
pub const MAX_KEYS: usize = 16;
/// The longest file that can be one: a line has 106 bytes.
pub const MAX_BYTES: usize = 4096;

const WORD: &str = "tarn-key";
const VERSION: &str = "1";

/// Why a text is no file of keys. It never quotes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// A line that is no key.
    #[error(
        "line {0} is no key: a line is `tarn-key 1 ID SECRET`, both in hexadecimal; `tarn key new` makes one"
    )]
    Line(usize),
    /// No key at all.
    #[error("it holds no key; `tarn key new` makes one")]
    Empty,
    /// Two keys of one name.
    #[error("line {0} has the id of an earlier line; keep one of them")]
    Twice(usize),
    /// Too many.
    #[error(
        "it holds {MAX_KEYS} keys, and no more are taken: `tarn key rotate --drop` after all data was wrapped again"
    )]
    Many,
}

/// Wrapping keys, the newest first.
#[derive(Debug, Clone)]
pub struct KeyRing(Vec<WrappingKey>);

impl KeyRing {
    /// A file with one key.
    pub fn new(key: WrappingKey) -> Self {
        Self(vec![key])
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// The first line that is not right.
    pub fn parse(text: &str) -> Result<Self, RingError> {
        let mut keys: Vec<WrappingKey> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let key = parse_line(line).ok_or(RingError::Line(at + 1))?;
            if keys.iter().any(|k| k.id() == key.id()) {
                return Err(RingError::Twice(at + 1));
            }
            if keys.len() == MAX_KEYS {
                return Err(RingError::Many);
            }
            keys.push(key);
        }
        match keys.is_empty() {
            true => Err(RingError::Empty),
            false => Ok(Self(keys)),
        }
    }

    /// The file's text.
    pub fn text(&self) -> Zeroizing<String> {
        let mut text = String::with_capacity(MAX_BYTES);
        for key in &self.0 {
            text.push_str(&format!("{WORD} {VERSION} {} ", key.id()));
            hex(key.secret(), &mut text);
            text.push('\n');
        }
        Zeroizing::new(text)
    }

    /// The key for new data.
    pub fn newest(&self) -> &WrappingKey {
        &self.0[0]
    }

    /// All keys.
    pub fn keys(&self) -> &[WrappingKey] {
        &self.0
    }

    /// The keys for one workspace's data that are made of these.
    ///
    /// # Errors
    /// As of [`WrappingKey::of_workspace`].
    pub fn of_workspace(&self, workspace: &str) -> Result<Self, SealError> {
        let keys = self.0.iter().map(|key| key.of_workspace(workspace));
        keys.collect::<Result<_, _>>().map(Self)
    }

    /// From now on this key is the one for new data.
    ///
    /// # Errors
    /// [`RingError::Many`].
    pub fn rotate(&mut self, key: WrappingKey) -> Result<(), RingError> {
        if self.0.len() == MAX_KEYS {
            return Err(RingError::Many);
        }
        self.0.insert(0, key);
        Ok(())
    }

    /// Forgets all keys but the newest.
    pub fn drop_old(&mut self) {
        self.0.truncate(1);
    }

    /// A data key, with whichever key wraps it.
    ///
    /// # Errors
    /// [`SealError::OtherKey`] if that is none of these.
    pub fn unwrap(&self, wrapped: &[u8], owner: WrappedKeyOwner<'_>) -> Result<DataKey, SealError> {
        let by = wrapped_by(wrapped)?;
        let key = self.0.iter().find(|k| k.id() == by);
        key.ok_or(SealError::OtherKey)?.unwrap(wrapped, owner)
    }
}

fn parse_line(line: &str) -> Option<WrappingKey> {
    let mut words = line.split_ascii_whitespace();
    if (words.next()?, words.next()?) != (WORD, VERSION) {
        return None;
    }
    let mut id = [0; 16];
    unhex(words.next()?, &mut id)?;
    let mut secret = Zeroizing::new([0; KEY_BYTES]);
    unhex(words.next()?, &mut secret[..])?;
    match words.next() {
        None => Some(WrappingKey::new(KeyId(id), secret)),
        Some(_) => None,
    }
}

fn hex(bytes: &[u8], text: &mut String) {
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(digit.into(), 16).unwrap_or('0'));
        }
    }
}

fn unhex(text: &str, into: &mut [u8]) -> Option<()> {
    let digits = text.as_bytes();
    if digits.len() != 2 * into.len() {
        return None;
    }
    for (byte, pair) in into.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |d: u8| char::from(d).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
    }
    Some(())
}
