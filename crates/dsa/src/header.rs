//! What a partition's file begins with. docs/formats.md, "Partitions".

use tarn_base::block::{self, Fields, Kind};
use tarn_base::grant::{Grant, MAX_GRANTS, Who};

/// Bytes of a copy of the header: the first is at 0, the second behind it.
pub const COPY: usize = 4096;
/// Where the data begins: behind the copies, and where a large page does.
pub const DATA: u64 = 2 << 20;
/// Bytes of a partition, at most.
pub const MAX_SIZE: u64 = 1 << 50;
/// Bytes of a partition are a multiple of these.
pub const PAGE: u64 = 4096;

/// What is said of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Random, the partition's own.
    pub identity: u128,
    /// Of two copies the one of the higher number holds.
    pub number: u64,
    /// Bytes of data.
    pub size: u64,
    /// The user that it belongs to.
    pub owner: u32,
    /// Who else may have it, at most [`MAX_GRANTS`].
    pub grants: Vec<Grant>,
}

impl Header {
    /// Where this one's copy lies: they are written in turn.
    pub fn place(&self) -> u64 {
        self.number % 2 * COPY as u64
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
        payload.extend(self.owner.to_le_bytes());
        let grants = self.grants.iter().take(MAX_GRANTS);
        payload.push(grants.len() as u8);
        for grant in grants {
            let (kind, id) = match grant.who {
                Who::User(id) => (0, id),
                Who::Group(id) => (1, id),
            };
            payload.push(kind | u8::from(grant.write) << 1);
            payload.extend(id.to_le_bytes());
        }
        block::seal(Kind::Partition, self.identity, self.place(), &payload, COPY)
    }

    /// The one that holds, of the two copies that a file begins with; none where it has none. `file` is how many bytes the file has: a
    /// header that says more is none.
    pub fn newest(head: &[u8], file: u64) -> Option<Self> {
        let copies = head.chunks_exact(COPY).take(2).zip([0, COPY as u64]);
        let headers = copies.filter_map(|(copy, at)| Self::decode(copy, at));
        let whole = headers.filter(|header| header.size <= file.saturating_sub(DATA));
        whole.max_by_key(|header| header.number)
    }

    fn decode(copy: &[u8], at: u64) -> Option<Self> {
        let (identity, payload) = block::unseal(Kind::Partition, at, copy)?;
        let mut fields = Fields(payload);
        let (number, size, owner) = (fields.u64()?, fields.u64()?, fields.u32()?);
        let count = usize::from(fields.u8()?);
        let grant = |fields: &mut Fields<'_>| {
            let (kind, id) = (fields.u8()?, fields.u32()?);
            let who = match kind & 1 {
                0 => Who::User(id),
                _ => Who::Group(id),
            };
            let write = kind & 2 != 0;
            (kind < 4).then_some(Grant { who, write })
        };
        let grants: Option<Vec<_>> = (0..count).map(|_| grant(&mut fields)).collect();
        let header = Self {
            identity,
            number,
            size,
            owner,
            grants: grants?,
        };
        let sound = count <= MAX_GRANTS
            && fields.0.is_empty()
            && header.place() == at
            && size <= MAX_SIZE
            && size.is_multiple_of(PAGE);
        sound.then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(number: u64, size: u64) -> Header {
        let grants = vec![
            Grant {
                who: Who::User(1000),
                write: true,
            },
            Grant {
                who: Who::Group(7),
                write: false,
            },
        ];
        Header {
            identity: 9,
            number,
            size,
            owner: 1,
            grants,
        }
    }

    /// Both copies: the first header, and the next.
    fn grown() -> (Vec<u8>, Header, Header) {
        let (old, new) = (header(4, 8192), header(5, 16384));
        ([old.encode(), new.encode()].concat(), old, new)
    }

    #[test]
    fn the_newest_that_is_whole_and_that_the_file_has_room_for_holds() {
        let (both, old, new) = grown();
        assert_eq!(Header::newest(&both, DATA + 16384), Some(new.clone()));
        assert_eq!(Header::newest(&both, DATA + 16383), Some(old.clone()));
        assert_eq!(Header::newest(&both, DATA + 100), None);
        let swapped = [new.encode(), old.encode()].concat();
        assert_eq!(Header::newest(&swapped, u64::MAX), None);
        assert_eq!(Header::newest(&[], u64::MAX), None);
        assert_eq!(Header::newest(&[0; 2 * COPY], u64::MAX), None);
        let full = Header {
            grants: vec![old.grants[0]; MAX_GRANTS],
            ..old
        };
        let copies = [full.encode(), vec![0; COPY]].concat();
        assert_eq!(Header::newest(&copies, u64::MAX), Some(full));
    }

    proptest::proptest! {
        /// Every image that a loss of power may leave while a header is written, by the words of 8 bytes that got there.
        #[test]
        fn a_torn_header_is_the_one_before(words in proptest::collection::vec(proptest::bool::ANY, COPY / 8)) {
            let (both, old, new) = grown();
            let before = header(3, 4096).encode();
            let mut image = [&both[..COPY], &before].concat();
            for (word, _) in words.iter().enumerate().filter(|(_, there)| **there) {
                let range = COPY + word * 8..COPY + word * 8 + 8;
                image[range.clone()].copy_from_slice(&both[range]);
            }
            let found = Header::newest(&image, u64::MAX);
            assert!(found == Some(old) || found == Some(new), "{found:?}");
        }

        #[test]
        fn a_flipped_bit_is_found(bit in 0..COPY * 8) {
            let (mut both, old, _) = grown();
            both[COPY + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::newest(&both, u64::MAX), Some(old));
        }

        #[test]
        fn garbage_is_none(payload in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
            let copy = block::seal(Kind::Partition, 1, 0, &payload, COPY);
            let _ = Header::newest(&copy, u64::MAX);
        }
    }
}
