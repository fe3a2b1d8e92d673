//! The head of a partition's file. docs/reference/formats.md, "Partitions".

use tarn_types::block::{self, BlockKind, Fields};
use tarn_types::grant::{Grant, Grantee, MAX_GRANTS};

/// Bytes of a copy of the header.
pub const COPY: usize = 4096;
/// The first copy is at 0, the second here: no unit of a medium has both.
pub const SECOND: u64 = MAX_UNIT as u64;
/// Bytes that both copies are in.
pub const HEAD: usize = SECOND as usize + COPY;
/// Bytes that a medium can write at once, at least and at most.
pub const MIN_UNIT: u32 = 512;
/// As above.
pub const MAX_UNIT: u32 = 16384;
/// The offset of the data: behind the copies, at a multiple of a large page.
pub const DATA: u64 = 2 << 20;
/// Bytes of a partition, at most.
pub const MAX_SIZE: u64 = 1 << 50;
/// Bytes of a partition are a multiple of these.
pub const PAGE: u64 = 4096;

/// The header of a partition: two copies at the beginning of its file, written in turn
/// (docs/reference/formats.md).
///
/// # Examples
/// ```
/// use tarn_queue::header::{DATA, HEAD, Header};
///
/// let first = Header { identity: 9, number: 1, size: 1 << 20, unit: 0, owner: 1000, grants: Vec::new() };
/// let second = Header { size: 2 << 20, ..first.again() };
/// let mut head = vec![0; HEAD];
/// for header in [&first, &second] {
///     let copy = header.encode();
///     head[header.place() as usize..][..copy.len()].copy_from_slice(&copy);
/// }
/// assert_eq!(Header::newest(&head, DATA + (2 << 20)), Some(second));
/// // The file is shorter than the newest header says: that one does not count.
/// assert_eq!(Header::newest(&head, DATA + (1 << 20)), Some(first));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Random, the partition's own.
    pub identity: u128,
    /// Of two copies the one of the higher number holds.
    pub number: u64,
    /// Bytes of data.
    pub size: u64,
    /// Bytes that it is written by, a power of two; 0: it is mapped.
    pub unit: u32,
    /// The user that it belongs to.
    pub owner: u32,
    /// The others that may have it, at most [`MAX_GRANTS`].
    pub grants: Vec<Grant>,
}

impl Header {
    /// The offset of this one's copy: they are written in turn.
    pub fn place(&self) -> u64 {
        self.number % 2 * SECOND
    }

    /// The same once more, in the other copy's place.
    pub fn again(&self) -> Self {
        Self {
            number: self.number + 1,
            ..self.clone()
        }
    }

    /// The copy.
    pub fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        payload.extend(self.number.to_le_bytes());
        payload.extend(self.size.to_le_bytes());
        payload.extend(self.unit.to_le_bytes());
        payload.extend(self.owner.to_le_bytes());
        let grants = self.grants.iter().take(MAX_GRANTS);
        payload.push(grants.len() as u8);
        for grant in grants {
            let (kind, id) = match grant.who {
                Grantee::User(id) => (0, id),
                Grantee::Group(id) => (1, id),
            };
            payload.push(kind | u8::from(grant.write) << 1);
            payload.extend(id.to_le_bytes());
        }
        block::seal(
            BlockKind::Partition,
            self.identity,
            self.place(),
            &payload,
            COPY,
        )
    }

    /// The one that holds, of the two copies that a file begins with; none where it has none. `file` is how
    /// many bytes the file has: a header with a larger number is none.
    pub fn newest(head: &[u8], file: u64) -> Option<Self> {
        let copy = |at: u64| Self::decode(head.get(at as usize..)?.get(..COPY)?, at);
        let headers = [0, SECOND].into_iter().filter_map(copy);
        let whole = headers.filter(|header| header.size <= file.saturating_sub(DATA));
        whole.max_by_key(|header| header.number)
    }

    fn decode(copy: &[u8], at: u64) -> Option<Self> {
        let (identity, payload) = block::unseal(BlockKind::Partition, at, copy)?;
        let mut fields = Fields(payload);
        let (number, size) = (fields.u64()?, fields.u64()?);
        let (unit, owner) = (fields.u32()?, fields.u32()?);
        let count = usize::from(fields.u8()?);
        let grant = |fields: &mut Fields<'_>| {
            let (kind, id) = (fields.u8()?, fields.u32()?);
            let who = match kind & 1 {
                0 => Grantee::User(id),
                _ => Grantee::Group(id),
            };
            let write = kind & 2 != 0;
            (kind < 4).then_some(Grant { who, write })
        };
        let grants: Option<Vec<_>> = (0..count).map(|_| grant(&mut fields)).collect();
        let header = Self {
            identity,
            number,
            size,
            unit,
            owner,
            grants: grants?,
        };
        let sound = count <= MAX_GRANTS
            && fields.0.is_empty()
            && header.place() == at
            && size <= MAX_SIZE
            && size.is_multiple_of(PAGE)
            && (unit == 0 || is_unit(unit) && size.is_multiple_of(unit.into()));
        sound.then_some(header)
    }
}

/// Whether a partition can be written by so many bytes.
pub fn is_unit(unit: u32) -> bool {
    unit.is_power_of_two() && (MIN_UNIT..=MAX_UNIT).contains(&unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(number: u64, size: u64) -> Header {
        let grants = vec![
            Grant {
                who: Grantee::User(1000),
                write: true,
            },
            Grant {
                who: Grantee::Group(7),
                write: false,
            },
        ];
        Header {
            identity: 9,
            number,
            size,
            unit: 4096,
            owner: 1,
            grants,
        }
    }

    fn copies(first: &[u8], second: &[u8]) -> Vec<u8> {
        let mut head = vec![0; HEAD];
        head[..COPY].copy_from_slice(first);
        head[SECOND as usize..].copy_from_slice(second);
        head
    }

    /// Both copies: the first header, and the next.
    fn grown() -> (Vec<u8>, Header, Header) {
        let (old, new) = (header(4, 8192), header(5, 16384));
        (copies(&old.encode(), &new.encode()), old, new)
    }

    #[test]
    fn the_newest_that_is_whole_and_that_the_file_has_space_for_holds() {
        let (both, old, new) = grown();
        assert_eq!(Header::newest(&both, DATA + 16384), Some(new.clone()));
        assert_eq!(Header::newest(&both, DATA + 16383), Some(old.clone()));
        assert_eq!(Header::newest(&both, DATA + 100), None);
        let swapped = copies(&new.encode(), &old.encode());
        assert_eq!(Header::newest(&swapped, u64::MAX), None);
        assert_eq!(Header::newest(&[], u64::MAX), None);
        assert_eq!(Header::newest(&[0; HEAD], u64::MAX), None);
        let full = Header {
            grants: vec![old.grants[0]; MAX_GRANTS],
            ..old
        };
        let first = copies(&full.encode(), &[0; COPY]);
        assert_eq!(Header::newest(&first, u64::MAX), Some(full));
    }

    #[test]
    fn a_unit_is_a_power_of_two_that_divides_the_size() {
        for (unit, size, sound) in [
            (0, 4096, true),
            (512, 4096, true),
            (16384, 16384, true),
            (8192, 12288, false),
            (256, 4096, false),
            (32768, 32768, false),
            (5000, 20_480_000, false),
        ] {
            let header = Header {
                unit,
                ..header(4, size)
            };
            let head = copies(&header.encode(), &[0; COPY]);
            let found = Header::newest(&head, u64::MAX);
            assert_eq!(found, sound.then_some(header), "{unit} of {size}");
        }
    }

    proptest::proptest! {
        /// Every image that a loss of power may leave while a header is written, by the words of 8 bytes that
        /// got there.
        #[test]
        fn a_torn_header_is_the_one_before(words in proptest::collection::vec(proptest::bool::ANY, COPY / 8)) {
            let (both, old, new) = grown();
            let before = header(3, 4096).encode();
            let mut image = copies(&both[..COPY], &before);
            for (word, _) in words.iter().enumerate().filter(|(_, there)| **there) {
                let at = SECOND as usize + word * 8;
                let range = at..at + 8;
                image[range.clone()].copy_from_slice(&both[range]);
            }
            let found = Header::newest(&image, u64::MAX);
            assert!(found == Some(old) || found == Some(new), "{found:?}");
        }

        #[test]
        fn a_flipped_bit_is_found(bit in 0..COPY * 8) {
            let (mut both, old, _) = grown();
            both[SECOND as usize + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::newest(&both, u64::MAX), Some(old));
        }

        #[test]
        fn garbage_is_none(payload in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
            let copy = block::seal(BlockKind::Partition, 1, 0, &payload, COPY);
            let _ = Header::newest(&copy, u64::MAX);
        }
    }
}
