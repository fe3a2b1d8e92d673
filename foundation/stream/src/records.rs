//! Records: the bytes of a stream, sealed piece by piece in its order. docs/internals/streams.md.

use ::ring::aead::{self, Aad, LessSafeKey, MAX_TAG_LEN, NONCE_LEN, Nonce, UnboundKey};
use tarn_types::key::KEY_BYTES;

/// Bytes of a record beside its sealed content: its length before, its proof after.
pub const OVERHEAD: usize = LENGTH + MAX_TAG_LEN;
/// Bytes that a record may hold.
pub const MAX_RECORD: usize = 64 << 10;
/// Of the length.
pub const LENGTH: usize = 4;
/// Records that one key seals.
const MAX_RECORDS: u64 = 1 << 32;

/// Why a record cannot be sealed or opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// It is longer than records are, or the key has sealed as much as it may.
    #[error("a record of a length that none has, or one more than a key may seal")]
    Length,
    /// It is not the record that was sealed next.
    #[error("record {0} was changed, left out, repeated or comes from somebody else")]
    Forged(u64),
}

/// One direction of a stream: the records that were sealed, or opened, so far are its state.
pub struct Records {
    cipher: LessSafeKey,
    /// The number of the next one.
    next: u64,
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Records({})", self.next)
    }
}

impl Records {
    /// Of a key that seals nothing else, after so many records.
    ///
    /// # Errors
    /// None that can be met; the cipher's own.
    pub fn new(secret: &[u8; KEY_BYTES], next: u64) -> Result<Self, RecordError> {
        let key = UnboundKey::new(&aead::AES_256_GCM, secret);
        let cipher = key
            .map(LessSafeKey::new)
            .map_err(|_| RecordError::Forged(next))?;
        Ok(Self { cipher, next })
    }

    /// Records so far.
    pub fn count(&self) -> u64 {
        self.next
    }

    /// The next number as a nonce; it is used up.
    fn nonce(&mut self) -> Result<Nonce, RecordError> {
        if self.next >= MAX_RECORDS {
            return Err(RecordError::Length);
        }
        let mut nonce = [0; NONCE_LEN];
        nonce[NONCE_LEN - 8..].copy_from_slice(&self.next.to_le_bytes());
        self.next += 1;
        Ok(Nonce::assume_unique_for_key(nonce))
    }

    /// Adds a record to `out`, of `len` bytes that `fill` writes.
    ///
    /// # Errors
    /// The error of `fill`; [`RecordError::Length`] of more than [`MAX_RECORD`] bytes, or when the key has sealed as much as it
    /// may.
    /// Then `out` is as it was.
    pub fn seal<E: From<RecordError>>(
        &mut self,
        out: &mut Vec<u8>,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = out.len();
        let sealed = self.seal_at(out, start, len, fill);
        if sealed.is_err() {
            out.truncate(start);
        }
        sealed
    }

    fn seal_at<E: From<RecordError>>(
        &mut self,
        out: &mut Vec<u8>,
        start: usize,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let whole = u32::try_from(len + MAX_TAG_LEN).ok();
        let length = whole.filter(|_| len <= MAX_RECORD);
        let length = length.ok_or(RecordError::Length)?;
        out.extend_from_slice(&length.to_le_bytes());
        out.resize(start + LENGTH + len, 0);
        let content = &mut out[start + LENGTH..];
        fill(content)?;
        let nonce = self.nonce()?;
        let tag = self
            .cipher
            .seal_in_place_separate_tag(nonce, Aad::empty(), content);
        let tag = tag.map_err(|_| RecordError::Length)?;
        out.extend_from_slice(tag.as_ref());
        Ok(())
    }

    /// Bytes after the length of a record, by that.
    ///
    /// # Errors
    /// A length that no record has.
    pub fn length(head: [u8; LENGTH]) -> Result<usize, RecordError> {
        let length = u32::from_le_bytes(head) as usize;
        match (MAX_TAG_LEN..=MAX_RECORD + MAX_TAG_LEN).contains(&length) {
            true => Ok(length),
            false => Err(RecordError::Length),
        }
    }

    /// Opens the next record, without its length, where it is: its content is the beginning of `sealed` afterwards.
    ///
    /// # Errors
    /// [`RecordError::Forged`] when it is another than was sealed next; the content of `sealed` is worth nothing then.
    pub fn open(&mut self, sealed: &mut [u8]) -> Result<usize, RecordError> {
        let number = self.next;
        let nonce = self.nonce()?;
        let opened = self.cipher.open_in_place(nonce, Aad::empty(), sealed);
        let opened = opened.map_err(|_| RecordError::Forged(number))?;
        Ok(opened.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn both() -> [Records; 2] {
        [0, 0].map(|next| Records::new(&[7; KEY_BYTES], next).unwrap())
    }

    fn sealed(records: &mut Records, content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let filled = records.seal(&mut out, content.len(), |to| {
            to.copy_from_slice(content);
            Ok::<(), RecordError>(())
        });
        filled.unwrap();
        out
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens_and_is_not_to_be_seen(contents in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..8)) {
            let [mut from, mut to] = both();
            for content in contents {
                let mut record = sealed(&mut from, &content);
                prop_assert_eq!(record.len(), content.len() + OVERHEAD);
                let (head, body) = record.split_first_chunk_mut().unwrap();
                prop_assert_eq!(Records::length(*head).unwrap(), body.len());
                if content.len() > 8 {
                    prop_assert!(!body.windows(content.len()).any(|w| w == content));
                }
                let n = to.open(body).unwrap();
                prop_assert_eq!(&body[..n], &content[..]);
            }
        }

        #[test]
        fn a_record_that_was_touched_does_not_open(at in 0..40_usize, bit in 0..8_u32) {
            let [mut from, mut to] = both();
            let mut record = sealed(&mut from, &[1; 24]);
            record[LENGTH + at] ^= 1 << bit;
            prop_assert_eq!(to.open(&mut record[LENGTH..]), Err(RecordError::Forged(0)));
        }
    }

    #[test]
    fn records_open_in_their_order_only() {
        let [mut from, mut to] = both();
        let [first, second] = [b"a", b"b"].map(|content| sealed(&mut from, content));
        assert_eq!(
            to.open(&mut second.clone()[LENGTH..]),
            Err(RecordError::Forged(0))
        );
        let [mut from_two, mut again] = [1, 2].map(|n| Records::new(&[7; 32], n).unwrap());
        assert!(from_two.open(&mut second.clone()[LENGTH..]).is_ok());
        assert!(again.open(&mut first.clone()[LENGTH..]).is_err());
        let mut other = Records::new(&[8; 32], 0).unwrap();
        assert!(other.open(&mut first.clone()[LENGTH..]).is_err());
    }

    #[test]
    fn bounds_are_kept() {
        for bad in [0, 15, MAX_RECORD + 17, usize::MAX] {
            assert!(Records::length((bad as u32).to_le_bytes()).is_err());
        }
        assert_eq!(Records::length(16_u32.to_le_bytes()), Ok(16));
        let mut out = b"before".to_vec();
        let mut last = Records::new(&[7; 32], MAX_RECORDS - 1).unwrap();
        let fill = |_: &mut [u8]| Ok::<(), RecordError>(());
        assert!(last.seal(&mut out, MAX_RECORD + 1, fill).is_err());
        assert!(last.seal(&mut out, 1, fill).is_ok());
        let len = out.len();
        assert_eq!(last.seal(&mut out, 1, fill), Err(RecordError::Length));
        assert_eq!(out.len(), len);
    }
}
