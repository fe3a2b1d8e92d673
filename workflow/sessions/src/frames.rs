//! Messages as frames, and back.

use crate::MAX_MESSAGE;
use crate::wire::frame::Kind;
use crate::wire::{Frame, Piece};
use std::collections::BTreeMap;

/// Bytes of one frame: below gRPC's usual bound of 4 MiB, and short enough that heartbeats get through between them.
const PIECE: usize = 1 << 20;

/// A message cut into frames.
pub(crate) fn frames(
    kind: fn(Piece) -> Kind,
    number: u64,
    content: Vec<u8>,
) -> impl Iterator<Item = Frame> {
    let count = content.len().div_ceil(PIECE).max(1);
    (0..count).map(move |i| {
        let end = content.len().min((i + 1) * PIECE);
        let piece = Piece {
            number,
            content: content[i * PIECE..end].to_vec(),
            more: i + 1 < count,
        };
        Frame {
            kind: Some(kind(piece)),
        }
    })
}

/// A frame of its own.
pub(crate) fn frame(kind: Kind) -> Frame {
    Frame { kind: Some(kind) }
}

/// Messages of which not all pieces have come.
pub(crate) struct Pieces {
    begun: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
    most: usize,
}

impl Default for Pieces {
    fn default() -> Self {
        Self::up_to(MAX_MESSAGE)
    }
}

impl Pieces {
    fn up_to(most: usize) -> Self {
        Self {
            begun: BTreeMap::new(),
            bytes: 0,
            most,
        }
    }

    /// Takes a piece; the whole message if it is the last one.
    ///
    /// # Errors
    /// What the other end has done wrong.
    pub(crate) fn take(&mut self, piece: Piece) -> Result<Option<Vec<u8>>, String> {
        self.bytes += piece.content.len();
        if self.bytes > self.most {
            return Err(format!(
                "it sends more than {} bytes in unfinished messages",
                self.most
            ));
        }
        let begun = self.begun.entry(piece.number).or_default();
        begun.extend_from_slice(&piece.content);
        if piece.more {
            return Ok(None);
        }
        let whole = self.begun.remove(&piece.number).unwrap_or_default();
        self.bytes -= whole.len();
        Ok(Some(whole))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_any_length_comes_back_whole() {
        for length in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE] {
            let content: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let mut pieces = Pieces::default();
            let mut whole = None;
            for frame in frames(Kind::Request, 7, content.clone()) {
                assert!(whole.is_none(), "only the last piece ends it");
                let Some(Kind::Request(piece)) = frame.kind else {
                    panic!("another kind")
                };
                whole = pieces.take(piece).expect("pieces");
            }
            assert_eq!(whole, Some(content));
            assert_eq!(pieces.bytes, 0);
        }
    }

    #[test]
    fn unfinished_messages_are_bounded() {
        let mut pieces = Pieces::up_to(4000);
        let long = |number| Piece {
            number,
            content: vec![0; 1000],
            more: true,
        };
        for number in 0..4 {
            assert_eq!(pieces.take(long(number)), Ok(None));
        }
        assert!(pieces.take(long(4)).is_err());
    }
}
