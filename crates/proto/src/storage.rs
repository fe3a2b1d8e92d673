//! Requests to storage memory of another node, on a stream of the data plane that was given over to them: fixed headers, little-endian.
//! docs/dsa.md, "Of another node". Requests are answered in their order.

use crate::data::{Malformed, Reader};

/// Bytes of a piece: what is larger is asked for in several.
pub const MAX_PIECE: usize = 1 << 20;

/// What is asked.
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
    /// What was done before is persistent when that is answered.
    Flush,
    /// How many bytes there are now.
    Size,
    /// Holds the partition's lock: `operand` 1 with others, 2 alone, 0 no more.
    Hold,
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// What.
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

impl Ask {
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
        let mut from = Reader::new(bytes);
        let verb = match from.u32()? {
            1 => Verb::Read,
            2 => Verb::Write,
            3 => Verb::WritePersistent,
            4 => Verb::FetchAdd,
            5 => Verb::CompareSwap,
            6 => Verb::Flush,
            7 => Verb::Size,
            8 => Verb::Hold,
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
pub struct Answer {
    /// 0, or why it was not done: a number of `tarn_code`.
    pub code: u32,
    /// Bytes; of atomic operations what was there before.
    pub value: u64,
}

impl Answer {
    /// Bytes on the wire.
    pub const BYTES: usize = 12;

    /// As it is sent.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&self.code.to_le_bytes());
        out[4..].copy_from_slice(&self.value.to_le_bytes());
        out
    }

    /// As it was received: whatever it says is looked at by who has asked.
    pub fn decode(bytes: [u8; Self::BYTES]) -> Self {
        let [a, b, c, d, value @ ..] = bytes;
        Self {
            code: u32::from_le_bytes([a, b, c, d]),
            value: u64::from_le_bytes(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_sent_is_received_and_garbage_is_refused(bytes in any::<[u8; Ask::BYTES]>(), answer in any::<[u8; Answer::BYTES]>()) {
            if let Ok(ask) = Ask::decode(&bytes) {
                prop_assert_eq!(ask.encode(), bytes);
                prop_assert!(ask.length as usize <= MAX_PIECE);
            }
            prop_assert_eq!(Answer::decode(answer).encode(), answer);
        }

        #[test]
        fn every_verb_comes_back(verb in 1..=8_u8, length in 0..=MAX_PIECE as u32, rest in any::<[u8; 24]>()) {
            let mut bytes = [0; Ask::BYTES];
            bytes[0] = verb;
            bytes[4..8].copy_from_slice(&length.to_le_bytes());
            bytes[8..].copy_from_slice(&rest);
            prop_assert_eq!(Ask::decode(&bytes).unwrap().encode(), bytes);
        }
    }
}
