//! Which pieces of a mapping are mapped yet, so that a program that uses a little of it does not pay for all.
//!
//! To map a page costs time, and a new one of memory is cleared before that; a system call copies to and from pages without
//! either. So the system copies large requests until as much has gone through a piece as it holds: about then it would have been
//! cheaper to map it, so it is mapped, all at once, and costs nothing more. That is the ski rental problem: for any requests,
//! both together cost at most about twice as much as the better one alone.

use crate::guarded::AtomicWord;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;

/// Bytes of a piece, as a power of two: as many as one page of a page table maps.
const SHIFT: u32 = 21;
/// Pieces of a mapping, at most: those of longer ones are larger.
const MAX_PIECES: usize = 1 << 16;
/// The cost of a request besides its bytes, in bytes that are copied in that time.
const REQUEST: usize = 8 << 10;
/// Nothing more is to be done for a piece.
const MAPPED: usize = usize::MAX;

/// The way to serve a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PieceAccess {
    /// Its piece is mapped.
    Mapped,
    /// Its piece is to be mapped now.
    Map,
    /// The system copies.
    System,
}

/// Pieces of a mapping. These are only hints: a thread that finds an older one does the right thing too, but later.
#[derive(Debug)]
pub(crate) struct MappedPieces<W> {
    /// For each, bytes that have gone through it, or [`MAPPED`].
    used: Box<[W]>,
    /// Bytes of a piece, as a power of two.
    shift: u32,
    /// Of the mapping.
    length: usize,
}

impl MappedPieces<AtomicUsize> {
    /// Those of a mapping of so many bytes of a file, of which a shorter mapping may have been used before.
    pub(crate) fn new(length: usize, before: Option<&Self>) -> Self {
        let mut shift = SHIFT;
        while length.div_ceil(1 << shift) > MAX_PIECES {
            shift += 1;
        }
        let before = before.filter(|before| before.shift == shift);
        let used = |piece| {
            let used = before.and_then(|before| before.used.get(piece));
            // Pieces that were mapped there are to be mapped here when they are used.
            AtomicUsize::new(used.map_or(0, |used: &AtomicUsize| used.peek().min(1 << shift)))
        };
        Self {
            used: (0..length.div_ceil(1 << shift)).map(used).collect(),
            shift,
            length,
        }
    }
}

impl<W: AtomicWord> MappedPieces<W> {
    /// The piece that a byte is of.
    #[inline]
    pub(crate) fn of(&self, at: u64) -> usize {
        at as usize >> self.shift
    }

    /// Its bytes.
    pub(crate) fn range(&self, piece: usize) -> Range<usize> {
        let start = piece << self.shift;
        start..self.length.min(start + (1 << self.shift))
    }

    /// Whether all of a request's bytes are of one piece, which is mapped.
    #[inline]
    pub(crate) fn are_mapped(&self, at: u64, length: usize) -> bool {
        let first = self.of(at);
        let last = self.of(at + (length as u64).saturating_sub(1));
        let is_mapped = |used: &W| used.peek() == MAPPED;
        first == last && self.used.get(first).is_some_and(is_mapped)
    }

    /// The way to serve so many bytes of a piece.
    pub(crate) fn charge(&self, piece: usize, length: usize) -> PieceAccess {
        let Some(used) = self.used.get(piece) else {
            return PieceAccess::Mapped;
        };
        match used.peek() {
            MAPPED => PieceAccess::Mapped,
            before if before >= 1 << self.shift => PieceAccess::Map,
            before => {
                // If another thread was faster, this one costs nothing.
                used.replace(before, before + length.max(REQUEST));
                PieceAccess::System
            }
        }
    }

    /// A piece is mapped now.
    pub(crate) fn mapped(&self, piece: usize) {
        if let Some(used) = self.used.get(piece) {
            used.store(MAPPED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::atomic::AtomicUsize as ModelWord;
    use std::sync::Arc;

    const PIECE: usize = 1 << SHIFT;

    fn new(length: usize) -> MappedPieces<AtomicUsize> {
        MappedPieces::new(length, None)
    }

    #[test]
    fn a_piece_is_mapped_when_as_much_has_gone_through_it_as_it_holds() {
        let pieces = new(2 * PIECE + 4096);
        assert_eq!(pieces.range(2), 2 * PIECE..2 * PIECE + 4096);
        assert_eq!(pieces.charge(1, PIECE / 2), PieceAccess::System);
        assert_eq!(pieces.charge(1, PIECE / 2), PieceAccess::System);
        assert_eq!(pieces.charge(1, 1), PieceAccess::Map);
        assert!(!pieces.are_mapped(PIECE as u64, 1));
        pieces.mapped(1);
        assert_eq!(pieces.charge(1, 1), PieceAccess::Mapped);
        assert!(pieces.are_mapped(PIECE as u64, PIECE));
        assert!(!pieces.are_mapped(PIECE as u64, PIECE + 1));
        assert!(!pieces.are_mapped(PIECE as u64 - 1, 2));
        // Many small ones are as much.
        for _ in 0..PIECE / REQUEST {
            assert_eq!(pieces.charge(0, 1), PieceAccess::System);
        }
        assert_eq!(pieces.charge(0, 1), PieceAccess::Map);
    }

    #[test]
    fn what_was_used_before_it_grew_is_mapped_at_its_next_use() {
        let old = new(PIECE + 4096);
        old.mapped(0);
        old.charge(1, PIECE);
        let grown = MappedPieces::new(3 * PIECE, Some(&old));
        assert!(!grown.are_mapped(0, 1));
        assert_eq!(grown.charge(0, 1), PieceAccess::Map);
        assert_eq!(grown.charge(1, 1), PieceAccess::Map);
        assert_eq!(grown.charge(2, 1), PieceAccess::System);
    }

    #[test]
    fn there_are_never_too_many_pieces() {
        let long = new(1 << 50);
        assert_eq!(long.used.len(), MAX_PIECES);
        assert_eq!(long.range(long.of((1 << 50) - 1)).end, 1 << 50);
        // Pieces of another size give no information about these.
        let grown = MappedPieces::new(1 << 50, Some(&new(PIECE)));
        assert_eq!(grown.charge(0, PIECE), PieceAccess::System);
    }

    /// By threads of the machine, and of Miri.
    #[test]
    fn threads_agree_on_what_is_mapped() {
        let pieces = new(2 * PIECE);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for turn in 0..12 {
                        let number = turn % 2;
                        if pieces.charge(number, PIECE / 4) == PieceAccess::Map {
                            pieces.mapped(number);
                        }
                    }
                });
            }
        });
        // Bytes that two threads count at the same time may count once.
        for number in 0..2 {
            while pieces.charge(number, PIECE) != PieceAccess::Mapped {
                pieces.mapped(number);
            }
            assert!(pieces.are_mapped((number * PIECE) as u64, PIECE));
        }
    }

    /// All orders in which two threads may use a piece: it is called mapped when somebody has mapped it, not before, and stays so.
    #[test]
    fn a_piece_is_called_mapped_once_somebody_has_mapped_it() {
        loom::model(|| {
            let pieces = Arc::new(MappedPieces {
                used: Box::new([ModelWord::new(0)]),
                shift: (2 * REQUEST).trailing_zeros(),
                length: 2 * REQUEST,
            });
            let has_mapped = Arc::new(ModelWord::new(0));
            let uses = |pieces: &MappedPieces<ModelWord>, has_mapped: &ModelWord| {
                for _ in 0..3 {
                    match pieces.charge(0, REQUEST) {
                        PieceAccess::System => {}
                        PieceAccess::Map => {
                            has_mapped.store(1, loom::sync::atomic::Ordering::Relaxed);
                            pieces.mapped(0);
                            assert!(pieces.are_mapped(0, 1), "it was taken back");
                        }
                        PieceAccess::Mapped => assert!(pieces.are_mapped(0, 1)),
                    }
                }
                pieces.are_mapped(0, 1)
            };
            let other = {
                let (pieces, has_mapped) = (Arc::clone(&pieces), Arc::clone(&has_mapped));
                loom::thread::spawn(move || uses(&pieces, &has_mapped))
            };
            let own = uses(&pieces, &has_mapped);
            let others = other.join().unwrap();
            assert!(own || others, "six uses are more than it holds");
            assert!(pieces.are_mapped(0, 1));
            assert_eq!(has_mapped.load(loom::sync::atomic::Ordering::Relaxed), 1);
        });
    }
}
