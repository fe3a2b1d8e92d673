//! Several storages as one, block by block in turn: block k is block k / n of storage k mod n. The
//! distributed shared memory of Schürmann et al. 2014, section 4.3, where the storages are those of several
//! nodes.

use crate::slab::Slab;
use std::os::fd::BorrowedFd;
use tarn_ring::{MemorySpan, Storage, StorageRequestError, SubmitOutcome, Ticket};

/// Storages in one, at most.
pub const MAX_PARTS: usize = 1024;

/// The place of a byte of the whole (Schürmann et al. 2014, section 4.3).
///
/// # Examples
/// ```
/// use tarn_queue::CyclicLayout;
///
/// let layout = CyclicLayout::new(3, 4096).unwrap();
/// // Byte 10,000 is in block 2: in the first block of storage 2, with 2288 more bytes of that block behind it.
/// assert_eq!(layout.place(10_000), (2, 1808, 2288));
/// assert_eq!(layout.place(3 * 4096), (0, 4096, 4096));
/// assert_eq!((layout.size(10_000), layout.part(24_576)), (24_576, 8192));
/// assert!(CyclicLayout::new(3, 1000).is_none());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CyclicLayout {
    parts: u64,
    block: u64,
}

impl CyclicLayout {
    /// `parts` storages in blocks of `block` bytes, a multiple of 4096. `None` for other blocks, no storage,
    /// or more than [`MAX_PARTS`].
    pub fn new(parts: usize, block: u64) -> Option<Self> {
        let is_sound = block > 0 && block.is_multiple_of(4096) && block <= crate::header::MAX_SIZE;
        (is_sound && (1..=MAX_PARTS).contains(&parts)).then_some(Self {
            parts: parts as u64,
            block,
        })
    }

    /// The storage of byte `at`, its offset there, and the number of bytes from it on to the end of its
    /// block.
    #[inline]
    pub fn place(self, at: u64) -> (usize, u64, u64) {
        let (block, within) = (at / self.block, at % self.block);
        let there = block / self.parts * self.block + within;
        ((block % self.parts) as usize, there, self.block - within)
    }

    /// The bytes of the whole if each storage has `part` bytes: whole rows of blocks.
    #[inline]
    pub fn size(self, part: u64) -> u64 {
        let row = part / self.block * self.block;
        // Saturates: sizes come from files, or from users.
        row.saturating_mul(self.parts)
    }

    /// The bytes that each storage needs so that the whole has at least `size`.
    #[inline]
    pub fn part(self, size: u64) -> u64 {
        let blocks = size.div_ceil(self.block).div_ceil(self.parts);
        blocks.saturating_mul(self.block)
    }
}

/// A request some of whose pieces have not ended.
#[derive(Debug)]
struct Joint {
    ticket: Ticket,
    left: u32,
    result: Result<u64, StorageRequestError>,
}

/// Several storages as one.
#[derive(Debug)]
pub struct Cyclic<S> {
    /// At least one.
    parts: Vec<S>,
    layout: CyclicLayout,
    joints: Slab<Joint>,
    /// The requests of the pieces under way, by the numbers that their storages know.
    pieces: Slab<Ticket>,
}

impl<S: Storage> Cyclic<S> {
    /// The storages that it is made of.
    #[inline]
    pub fn parts(&self) -> &[S] {
        &self.parts
    }

    /// These storages, in this order; none where they are not as many as the layout says.
    pub fn new(parts: Vec<S>, layout: CyclicLayout) -> Option<Self> {
        (parts.len() as u64 == layout.parts).then_some(Self {
            parts,
            layout,
            joints: Slab::default(),
            pieces: Slab::default(),
        })
    }

    /// The first of them.
    #[inline]
    pub fn first(&self) -> &S {
        &self.parts[0]
    }

    /// Begins one request as several, each with a number of its own.
    fn join(
        &mut self,
        ticket: Ticket,
        pieces: impl IntoIterator<Item = (usize, impl FnOnce(&mut S, Ticket) -> SubmitOutcome)>,
    ) -> SubmitOutcome {
        let joint = self.joints.next();
        let (mut left, mut whole) = (0, Ok(0));
        for (part, begin) in pieces {
            let number = self.pieces.next();
            match begin(&mut self.parts[part], number) {
                SubmitOutcome::Done(result) => whole = and(whole, result),
                SubmitOutcome::Pending => {
                    let inserted = self.pieces.insert(joint);
                    debug_assert_eq!(inserted, number, "a piece is begun by another number");
                    left += 1;
                }
            }
        }
        if left == 0 {
            return SubmitOutcome::Done(whole);
        }
        let inserted = self.joints.insert(Joint {
            ticket,
            left,
            result: whole,
        });
        debug_assert_eq!(inserted, joint, "the pieces are those of another request");
        SubmitOutcome::Pending
    }

    fn copy(
        &mut self,
        at: u64,
        span: MemorySpan,
        ticket: Ticket,
        begin: impl Fn(&mut S, u64, MemorySpan, Ticket) -> SubmitOutcome,
    ) -> SubmitOutcome {
        let (layout, begin) = (self.layout, &begin);
        let (mut at, mut rest) = (at, span);
        let pieces = std::iter::from_fn(move || {
            if rest.len() == 0 {
                return None;
            }
            let (part, there, length) = layout.place(at);
            let (piece, more) = rest.split(usize::try_from(length).unwrap_or(usize::MAX));
            (at, rest) = (at + piece.len() as u64, more);
            Some((part, move |storage: &mut S, ticket| {
                begin(storage, there, piece, ticket)
            }))
        });
        self.join(ticket, pieces)
    }

    /// An operation on 8 aligned bytes, which no block divides.
    fn word(
        &mut self,
        at: u64,
        ticket: Ticket,
        begin: impl FnOnce(&mut S, u64, Ticket) -> SubmitOutcome,
    ) -> SubmitOutcome {
        let (part, there, _) = self.layout.place(at);
        let begin = move |storage: &mut S, ticket| begin(storage, there, ticket);
        self.join(ticket, [(part, begin)])
    }
}

/// The combined result of two pieces.
fn and(
    one: Result<u64, StorageRequestError>,
    other: Result<u64, StorageRequestError>,
) -> Result<u64, StorageRequestError> {
    Ok(one? + other?)
}

impl<S: Storage> Storage for Cyclic<S> {
    fn size(&mut self) -> u64 {
        let least = self.parts.iter_mut().map(Storage::size).min();
        self.layout.size(least.unwrap_or(0))
    }

    fn is_persistent(&self) -> bool {
        self.parts.iter().all(Storage::is_persistent)
    }

    fn read(&mut self, at: u64, to: MemorySpan, ticket: Ticket) -> SubmitOutcome {
        self.copy(at, to, ticket, S::read)
    }

    fn write(
        &mut self,
        at: u64,
        from: MemorySpan,
        persistent: bool,
        ticket: Ticket,
    ) -> SubmitOutcome {
        self.copy(at, from, ticket, |storage, at, from, ticket| {
            storage.write(at, from, persistent, ticket)
        })
    }

    fn fetch_add(&mut self, at: u64, add: u64, ticket: Ticket) -> SubmitOutcome {
        self.word(at, ticket, |storage, at, ticket| {
            storage.fetch_add(at, add, ticket)
        })
    }

    fn compare_swap(&mut self, at: u64, expected: u64, new: u64, ticket: Ticket) -> SubmitOutcome {
        self.word(at, ticket, |storage, at, ticket| {
            storage.compare_swap(at, expected, new, ticket)
        })
    }

    fn flush(&mut self, ticket: Ticket) -> SubmitOutcome {
        let all = 0..self.parts.len();
        self.join(ticket, all.map(|part| (part, S::flush)))
    }

    fn settle(&mut self) -> Result<(), StorageRequestError> {
        let settled = self.parts.iter_mut().map(Storage::settle);
        settled.fold(Ok(()), Result::and)
    }

    fn notify(&mut self, event: BorrowedFd<'_>, poll: BorrowedFd<'_>) -> bool {
        let notified = self.parts.iter_mut().map(|part| part.notify(event, poll));
        notified.filter(|notified| !notified).count() == 0
    }

    fn reap(&mut self, ended: &mut dyn FnMut(Ticket, Result<u64, StorageRequestError>)) {
        let Self {
            parts,
            joints,
            pieces,
            ..
        } = self;
        for part in parts {
            part.reap(&mut |ticket, result| {
                let Some(joint) = pieces.remove(ticket) else {
                    return;
                };
                let Some(whole) = joints.get_mut(joint) else {
                    return;
                };
                whole.result = and(whole.result, result);
                assert!(whole.left > 0, "a request has more ends than pieces");
                whole.left -= 1;
                if whole.left == 0
                    && let Some(whole) = joints.remove(joint)
                {
                    ended(whole.ticket, whole.result);
                }
            });
        }
    }
}
