//! Blocks: records about data in files of checkpoints, objects and partitions, framed so that a block which is torn, moved, of
//! another file or of another kind is none.
//!
//! | offset | bytes | what |
//! | --- | --- | --- |
//! | 0 | 8 | kind and version of the format |
//! | 8 | 16 | identity of the file |
//! | 24 | 8 | offset of the block in the file |
//! | 32 | 8 | length of the payload |
//! | 40 | | payload, then zeros |
//! | end - 8 | 8 | checksum of all before it |

use crate::crc::crc;

const FRAME: usize = 40;
const SUM: usize = 8;

/// The kind of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// The arena's first.
    Header,
    /// Leads to all versions.
    Superblock,
    /// The content of a version.
    Manifest,
    /// The first of a staging file.
    Staging,
    /// Names the newest version on the external store.
    Latest,
    /// The last of an object's file.
    Object,
    /// One of the two that describe a partition.
    Partition,
    /// Precedes a copy of a unit of a partition.
    Shadow,
}

impl BlockKind {
    /// The last byte is the version of the format.
    fn word(self) -> [u8; 8] {
        *match self {
            Self::Header => b"PHXHEAD\x01",
            Self::Superblock => b"PHXSUPR\x01",
            Self::Manifest => b"PHXMANI\x01",
            Self::Staging => b"PHXSTAG\x01",
            Self::Latest => b"PHXLAST\x01",
            Self::Object => b"PHXOBJT\x01",
            Self::Partition => b"DSAPART\x01",
            Self::Shadow => b"DSASHDW\x01",
        }
    }
}

/// Bytes of a block with so much payload, a multiple of `unit`.
pub fn size(payload: usize, unit: usize) -> usize {
    (FRAME + payload + SUM).next_multiple_of(unit)
}

/// A block of so many bytes, which the payload fits into.
pub fn seal(kind: BlockKind, identity: u128, at: u64, payload: &[u8], size: usize) -> Vec<u8> {
    debug_assert!(FRAME + payload.len() + SUM <= size);
    let mut block = Vec::with_capacity(size);
    block.extend(kind.word());
    block.extend(identity.to_le_bytes());
    block.extend(at.to_le_bytes());
    block.extend((payload.len() as u64).to_le_bytes());
    block.extend(payload);
    block.resize(size - SUM, 0);
    block.extend(crc(&block).to_le_bytes());
    block
}

/// The checksum that a block ends with; 0 where there is none. One over all of its bytes, this included, would be the same for
/// every block.
pub fn sum(block: &[u8]) -> u64 {
    block.last_chunk().map_or(0, |sum| u64::from_le_bytes(*sum))
}

/// The payload of a block that is there, and the identity of the file that it is of; none if it is not one.
pub fn unseal(kind: BlockKind, at: u64, block: &[u8]) -> Option<(u128, &[u8])> {
    let (body, sum) = block.split_last_chunk::<SUM>()?;
    let mut fields = Fields(body);
    let framed = fields.take::<8>()? == kind.word();
    let identity = u128::from_le_bytes(fields.take()?);
    let placed = fields.u64()? == at;
    let length = usize::try_from(fields.u64()?).ok()?;
    let whole = framed && placed && crc(body) == u64::from_le_bytes(*sum);
    let payload = fields.0.get(..length).filter(|_| whole)?;
    Some((identity, payload))
}

/// Fields that are read one after the other; none where there are not as many bytes. The unread bytes are inside.
#[derive(Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// So many.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    /// A number of one byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    /// A number of four.
    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    /// A number of eight.
    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// So many bytes, the number in a byte before them.
    pub fn short(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(self.u8()?);
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
}

/// Writes bytes with their number before them.
///
/// # Panics
/// With more than 255.
pub fn put_short(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(u8::try_from(bytes.len()).expect("a name that was checked"));
    out.extend(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_only_itself() {
        let payload = b"what it says";
        let block = seal(
            BlockKind::Superblock,
            7,
            4096,
            payload,
            size(payload.len(), 64),
        );
        assert_eq!(block.len() % 64, 0);
        assert_eq!(
            unseal(BlockKind::Superblock, 4096, &block),
            Some((7, &payload[..]))
        );
        assert_eq!(unseal(BlockKind::Header, 4096, &block), None);
        assert_eq!(unseal(BlockKind::Superblock, 8192, &block), None);
        for bit in 0..block.len() * 8 {
            let mut flipped = block.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                unseal(BlockKind::Superblock, 4096, &flipped),
                None,
                "bit {bit}"
            );
        }
        for length in 0..block.len() {
            assert_eq!(unseal(BlockKind::Superblock, 4096, &block[..length]), None);
        }
    }
}
