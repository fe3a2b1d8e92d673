//! Requests to storage memory of another node, on a stream of the data plane that was given over to them: fixed headers, little-endian.
//! docs/guide/direct-access.md, "Of another node". Requests are answered in their order.

use crate::data::{FieldReader, MAX_NAME, Malformed, Window};

/// Bytes of a piece; a larger request has several pieces.
pub const MAX_PIECE: usize = 1 << 20;

/// The operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Bytes of the partition. They follow the answer.
    Read,
    /// Bytes that follow the request; visible when that is answered.
    Write,
    /// The same; persistent when that is answered.
    WritePersistent,
    /// Adds `operand` to 8 aligned bytes.
    FetchAdd,
    /// Replaces 8 aligned bytes by `operand` if they are `expected`.
    CompareSwap,
    /// Operations that ended before are persistent when this is answered.
    Flush,
    /// The number of bytes now.
    Size,
    /// Holds the partition's lock: `operand` 1 with others, 2 alone, 0 no more.
    Hold,
    /// Opens a window onto the data for as long as the stream is open: an [`Offer`] follows the answer, whose length is the
    /// answer's `value`.
    Window,
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorageRequest {
    /// The operation.
    pub verb: Verb,
    /// Bytes, at most [`MAX_PIECE`].
    pub length: u32,
    /// From the beginning of the data.
    pub at: u64,
    /// Of atomic operations.
    pub operand: u64,
    /// Of a compare-and-swap.
    pub expected: u64,
}

impl StorageRequest {
    /// Bytes on the wire.
    pub const BYTES: usize = 32;

    /// One of nothing but its verb.
    pub fn of(verb: Verb) -> Self {
        Self {
            verb,
            length: 0,
            at: 0,
            operand: 0,
            expected: 0,
        }
    }

    /// As it is sent.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0] = match self.verb {
            Verb::Read => 1,
            Verb::Write => 2,
            Verb::WritePersistent => 3,
            Verb::FetchAdd => 4,
            Verb::CompareSwap => 5,
            Verb::Flush => 6,
            Verb::Size => 7,
            Verb::Hold => 8,
            Verb::Window => 9,
        };
        out[4..8].copy_from_slice(&self.length.to_le_bytes());
        out[8..16].copy_from_slice(&self.at.to_le_bytes());
        out[16..24].copy_from_slice(&self.operand.to_le_bytes());
        out[24..].copy_from_slice(&self.expected.to_le_bytes());
        out
    }

    /// As it was received.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, Malformed> {
        let mut from = FieldReader::new(bytes);
        let verb = match from.u32()? {
            1 => Verb::Read,
            2 => Verb::Write,
            3 => Verb::WritePersistent,
            4 => Verb::FetchAdd,
            5 => Verb::CompareSwap,
            6 => Verb::Flush,
            7 => Verb::Size,
            8 => Verb::Hold,
            9 => Verb::Window,
            _ => return Err(Malformed("a request to storage memory that there is not")),
        };
        let ask = Self {
            verb,
            length: from.u32()?,
            at: from.u64()?,
            operand: from.u64()?,
            expected: from.u64()?,
        };
        match ask.length as usize <= MAX_PIECE {
            true => Ok(ask),
            false => Err(Malformed("a piece of storage memory that is too large")),
        }
    }
}

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorageReply {
    /// 0, or why it was not done: a number of `tarn_code`.
    pub code: u32,
    /// Bytes; of atomic operations the old number.
    pub value: u64,
}

impl StorageReply {
    /// Bytes on the wire.
    pub const BYTES: usize = 12;

    /// As it is sent.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&self.code.to_le_bytes());
        out[4..].copy_from_slice(&self.value.to_le_bytes());
        out
    }

    /// As it was received: the requester checks the values.
    pub fn decode(bytes: [u8; Self::BYTES]) -> Self {
        let [a, b, c, d, value @ ..] = bytes;
        Self {
            code: u32::from_le_bytes([a, b, c, d]),
            value: u64::from_le_bytes(value),
        }
    }
}

/// A window onto a partition's data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Of libfabric; at most [`MAX_NAME`] bytes.
    pub provider: String,
    /// Bytes of it.
    pub size: u64,
    /// Whether it may be written, too.
    pub writable: bool,
    /// Its address.
    pub window: Window,
}

impl Offer {
    /// Bytes on the wire, at most.
    pub const MAX_BYTES: usize = 1 + MAX_NAME + 8 + 1 + Window::HEAD + MAX_NAME;

    /// As it is sent; a provider whose name is too long is cut.
    pub fn encode(&self) -> Vec<u8> {
        let provider = self.provider.as_bytes();
        let provider = &provider[..provider.len().min(MAX_NAME)];
        let mut out = vec![provider.len() as u8];
        out.extend_from_slice(provider);
        out.extend_from_slice(&self.size.to_le_bytes());
        out.push(self.writable.into());
        out.extend_from_slice(&self.window.encode());
        out
    }

    /// As it was received.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = FieldReader::new(bytes);
        let length = from.u8()?.into();
        let provider = from.take(length)?.to_vec();
        let provider = String::from_utf8(provider);
        let provider = provider.map_err(|_| Malformed("a provider without a name"))?;
        let (size, writable) = (from.u64()?, from.u8()?);
        if writable > 1 {
            return Err(Malformed("a window of no kind"));
        }
        let (name, start, key) = Window::decode_head(&from.array()?);
        let window = Window {
            name: from.take(name)?.into(),
            from: start,
            key,
        };
        from.end()?;
        Ok(Self {
            provider,
            size,
            writable: writable == 1,
            window,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_sent_is_received_and_garbage_is_refused(bytes in any::<[u8; StorageRequest::BYTES]>(), answer in any::<[u8; StorageReply::BYTES]>()) {
            if let Ok(ask) = StorageRequest::decode(&bytes) {
                prop_assert_eq!(ask.encode(), bytes);
                prop_assert!(ask.length as usize <= MAX_PIECE);
            }
            prop_assert_eq!(StorageReply::decode(answer).encode(), answer);
        }

        #[test]
        fn what_is_offered_comes_back_and_garbage_is_refused(
            provider in "[ -~]{0,60}",
            (size, start, key) in any::<(u64, u64, u64)>(),
            writable in any::<bool>(),
            name in proptest::collection::vec(any::<u8>(), 0..=MAX_NAME),
            garbage in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let window = Window { name: name.into(), from: start, key };
            let offer = Offer { provider, size, writable, window };
            let bytes = offer.encode();
            prop_assert!(bytes.len() <= Offer::MAX_BYTES);
            prop_assert!(Offer::decode(&bytes[..bytes.len() - 1]).is_err());
            prop_assert_eq!(Offer::decode(&bytes).unwrap(), offer);
            if let Ok(offer) = Offer::decode(&garbage) {
                prop_assert_eq!(offer.encode(), garbage);
            }
        }

        #[test]
        fn every_verb_comes_back(verb in 1..=9_u8, length in 0..=MAX_PIECE as u32, rest in any::<[u8; 24]>()) {
            let mut bytes = [0; StorageRequest::BYTES];
            bytes[0] = verb;
            bytes[4..8].copy_from_slice(&length.to_le_bytes());
            bytes[8..].copy_from_slice(&rest);
            prop_assert_eq!(StorageRequest::decode(&bytes).unwrap().encode(), bytes);
        }
    }
}
