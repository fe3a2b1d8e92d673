//! The content of a version: its objects, the pieces that each is stored in, and their checksums.

use crate::free_space::FIRST;
use std::ops::Range;
use tarn_seal::piece::PROOF;
use tarn_types::block::{Fields, put_short};

/// Bytes that have a checksum of their own.
pub const CHUNK: u64 = 256 << 10;
/// Objects of a rank.
pub const MAX_OBJECTS: usize = 65_536;
/// Bytes of a key.
pub const MAX_KEY: usize = 255;
/// Dimensions of a decomposed array.
pub const MAX_DIMENSIONS: usize = 8;
/// Bytes of a manifest: the checksums of 1 TiB take half of it.
pub const MAX_BYTES: u64 = 64 << 20;

/// How an object is a part of something that all ranks have together, so that a restart with another number of ranks
/// can divide it again.
///
/// # Examples
/// ```
/// use tarn_checkpoint_core::Shape;
///
/// // Of an array of 100 x 200, this rank has rows 24 to 50 of which one at each end is a neighbour's.
/// // In each dimension: elements of all, the first one here, elements here, ghosts at each end.
/// let block = Shape::Block(vec![[100, 24, 27, 1], [200, 0, 200, 0]]);
/// // Any number of particles of 48 bytes on each rank.
/// let particles = Shape::Irregular(48);
/// assert!(block != particles && Shape::default() == Shape::Own);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Shape {
    /// Nothing is known: it goes back to the rank that it came from.
    #[default]
    Own,
    /// The same on all ranks.
    Replicated,
    /// A box of an array; in each dimension, elements of all, where this box begins, elements of it, and how many of them at each
    /// end are copies of a neighbour's.
    Block(Vec<[u64; 4]>),
    /// Rows of so many bytes, any number of them on each rank, one rank's after another's.
    Irregular(u64),
}

/// The place of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceLocation {
    /// In the arena, from this byte on.
    Arena(u64),
    /// In the staging file, from this byte on.
    Staged(u64),
}

impl PieceLocation {
    /// So many bytes behind it.
    pub fn plus(self, bytes: u64) -> Self {
        match self {
            Self::Arena(at) => Self::Arena(at + bytes),
            Self::Staged(at) => Self::Staged(at + bytes),
        }
    }
}

/// Some of an object's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectPiece {
    /// How many.
    pub length: u64,
    /// The place of the bytes.
    pub place: PieceLocation,
    /// The checksum of each chunk of them.
    pub sums: Vec<u64>,
}

/// A checkpoint object in one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its name.
    pub key: Box<[u8]>,
    /// Bytes of one element.
    pub unit: u32,
    /// How it divides.
    pub shape: Shape,
    /// All of its bytes, in their order.
    pub pieces: Vec<ObjectPiece>,
}

/// A version of one rank's objects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RankManifest {
    /// By key.
    pub objects: Vec<Object>,
    /// How they are sealed, if they are.
    pub seal: Option<Seal>,
}

/// How the objects of a version are sealed. Checksums are those of the ciphertext.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seal {
    /// Their key, wrapped.
    pub key: Box<[u8]>,
    /// Of each object, in the order of these, the proof of each of its chunks.
    pub proofs: Vec<Vec<ChunkProof>>,
    /// The proof that all of this was sealed so, of that rank and as that version.
    pub whole: ChunkProof,
}

/// The proof that a chunk is as it was sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkProof {
    /// The number that it was sealed with: no other chunk was, by this key.
    pub number: u64,
    /// The cipher's own.
    pub tag: [u8; PROOF],
}

impl ObjectPiece {
    /// Chunks of so many bytes.
    pub fn chunks(length: u64) -> u64 {
        length.div_ceil(CHUNK)
    }

    /// The bytes of the arena that it takes.
    pub fn extent(&self) -> Option<Range<u64>> {
        match self.place {
            PieceLocation::Arena(at) => Some(at..at.checked_add(self.length)?),
            PieceLocation::Staged(_) => None,
        }
    }
}

impl Object {
    /// Bytes.
    pub fn size(&self) -> u64 {
        self.pieces.iter().map(|p| p.length).sum()
    }

    /// All but where it is stored, as it is written.
    pub(crate) fn describe(&self, out: &mut Vec<u8>) {
        put_short(out, &self.key);
        out.extend(self.unit.to_le_bytes());
        match &self.shape {
            Shape::Own => out.push(0),
            Shape::Replicated => out.push(1),
            Shape::Block(dimensions) => {
                out.extend([2, dimensions.len() as u8]);
                let numbers = dimensions.iter().flatten();
                numbers.for_each(|n| out.extend(n.to_le_bytes()));
            }
            Shape::Irregular(row) => {
                out.push(3);
                out.extend(row.to_le_bytes());
            }
        }
    }
}

impl ChunkProof {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.number.to_le_bytes());
        out.extend(self.tag);
    }

    fn decode(fields: &mut Fields<'_>) -> Option<Self> {
        Some(Self {
            number: fields.u64()?,
            tag: fields.take()?,
        })
    }
}

impl RankManifest {
    /// Of objects that are stored in clear.
    pub fn of(objects: Vec<Object>) -> Self {
        Self {
            objects,
            seal: None,
        }
    }

    /// The bytes of the arena that it takes.
    pub fn extents(&self) -> impl Iterator<Item = Range<u64>> {
        let pieces = self.objects.iter().flat_map(|o| &o.pieces);
        pieces.filter_map(ObjectPiece::extent)
    }

    /// Whether nothing of it is staged.
    pub fn is_durable(&self) -> bool {
        let mut pieces = self.objects.iter().flat_map(|o| &o.pieces);
        pieces.all(|p| matches!(p.place, PieceLocation::Arena(_)))
    }

    /// As it is written.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend((self.objects.len() as u32).to_le_bytes());
        for object in &self.objects {
            object.describe(&mut out);
            out.extend((object.pieces.len() as u32).to_le_bytes());
            for piece in &object.pieces {
                let (kind, at) = match piece.place {
                    PieceLocation::Arena(at) => (0, at),
                    PieceLocation::Staged(at) => (1, at),
                };
                out.push(kind);
                out.extend(at.to_le_bytes());
                out.extend(piece.length.to_le_bytes());
                piece.sums.iter().for_each(|s| out.extend(s.to_le_bytes()));
            }
        }
        if let Some(seal) = &self.seal {
            put_short(&mut out, &seal.key);
            let proofs = seal.proofs.iter().flatten();
            proofs.for_each(|proof| proof.encode(&mut out));
            seal.whole.encode(&mut out);
        }
        out
    }

    /// The manifest that was encoded, of an arena of so many bytes. None if the bytes cannot be one.
    pub fn decode(bytes: &[u8], size: u64) -> Option<Self> {
        let mut fields = Fields(bytes);
        let count = fields.u32()? as usize;
        if count > MAX_OBJECTS {
            return None;
        }
        let mut objects: Vec<Object> = Vec::new();
        for _ in 0..count {
            let object = decode_object(&mut fields, size)?;
            if objects.last().is_some_and(|last| last.key >= object.key) {
                return None;
            }
            objects.push(object);
        }
        let seal = match fields.0.is_empty() {
            true => None,
            false => Some(decode_seal(&mut fields, &objects)?),
        };
        fields.0.is_empty().then_some(Self { objects, seal })
    }
}

fn decode_seal(fields: &mut Fields<'_>, objects: &[Object]) -> Option<Seal> {
    let key = fields.short().filter(|key| !key.is_empty())?.into();
    let of = |object: &Object| {
        let chunks = ObjectPiece::chunks(object.size());
        if chunks > fields.0.len() as u64 / (8 + PROOF as u64) {
            return None;
        }
        (0..chunks).map(|_| ChunkProof::decode(fields)).collect()
    };
    let proofs = objects.iter().map(of).collect::<Option<_>>()?;
    let whole = ChunkProof::decode(fields)?;
    Some(Seal { key, proofs, whole })
}

fn decode_object(fields: &mut Fields<'_>, size: u64) -> Option<Object> {
    let key = fields.short().filter(|key| !key.is_empty())?.into();
    let unit = fields.u32()?;
    let shape = match fields.u8()? {
        0 => Shape::Own,
        1 => Shape::Replicated,
        2 => {
            let dimensions = usize::from(fields.u8()?);
            if dimensions > MAX_DIMENSIONS {
                return None;
            }
            let mut dimension =
                || Some([fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?]);
            Shape::Block(
                (0..dimensions)
                    .map(|_| dimension())
                    .collect::<Option<_>>()?,
            )
        }
        3 => Shape::Irregular(fields.u64()?),
        _ => return None,
    };
    let count = fields.u32()?;
    let mut pieces = Vec::new();
    let mut bytes = 0u64;
    for _ in 0..count {
        let kind = fields.u8()?;
        let at = fields.u64()?;
        let length = fields.u64()?;
        let end = at.checked_add(length)?;
        bytes = bytes.checked_add(length)?;
        let place = match kind {
            0 if at >= FIRST && end <= size => PieceLocation::Arena(at),
            1 => PieceLocation::Staged(at),
            _ => return None,
        };
        // At most as many as are there, whatever the length claims.
        let chunks = ObjectPiece::chunks(length);
        if chunks > fields.0.len() as u64 / 8 {
            return None;
        }
        let sums = (0..chunks).map(|_| fields.u64()).collect::<Option<_>>()?;
        pieces.push(ObjectPiece {
            length,
            place,
            sums,
        });
    }
    Some(Object {
        key,
        unit,
        shape,
        pieces,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 1 << 40;

    fn shapes() -> impl Strategy<Value = Shape> {
        prop_oneof![
            Just(Shape::Own),
            Just(Shape::Replicated),
            any::<u64>().prop_map(Shape::Irregular),
            proptest::collection::vec(any::<[u64; 4]>(), 0..=MAX_DIMENSIONS).prop_map(Shape::Block),
        ]
    }

    fn pieces() -> impl Strategy<Value = ObjectPiece> {
        let place = prop_oneof![
            (FIRST..SIZE / 2).prop_map(PieceLocation::Arena),
            (0..SIZE).prop_map(PieceLocation::Staged),
        ];
        (0..5 * CHUNK, place, any::<u64>()).prop_map(|(length, place, sum)| ObjectPiece {
            length,
            place,
            sums: vec![sum; ObjectPiece::chunks(length) as usize],
        })
    }

    fn manifests() -> impl Strategy<Value = RankManifest> {
        let object = (
            any::<u32>(),
            shapes(),
            proptest::collection::vec(pieces(), 0..4),
        );
        let keyed = proptest::collection::btree_map(
            proptest::collection::vec(any::<u8>(), 1..=MAX_KEY),
            object,
            0..6,
        );
        keyed.prop_map(|objects| RankManifest {
            seal: None,
            objects: objects
                .into_iter()
                .map(|(key, (unit, shape, pieces))| Object {
                    key: key.into(),
                    unit,
                    shape,
                    pieces,
                })
                .collect(),
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(manifest in manifests()) {
            prop_assert_eq!(RankManifest::decode(&manifest.encode(), SIZE), Some(manifest));
        }

        /// Any bytes: no panic, no more memory than they take, and a manifest that was read is written alike.
        #[test]
        fn garbage_is_none_or_itself(manifest in manifests(), cuts in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..4)) {
            let mut bytes = manifest.encode();
            for (at, byte) in cuts {
                let at = usize::from(at) % bytes.len();
                bytes[at] ^= byte;
            }
            if let Some(read) = RankManifest::decode(&bytes, SIZE) {
                prop_assert_eq!(read.encode(), bytes);
            }
        }
    }

    #[test]
    fn what_leads_out_of_the_arena_is_refused() {
        let with = |place, length| RankManifest {
            seal: None,
            objects: vec![Object {
                key: b"k".as_slice().into(),
                unit: 1,
                shape: Shape::Own,
                pieces: vec![ObjectPiece {
                    length,
                    place,
                    sums: vec![0; ObjectPiece::chunks(length) as usize],
                }],
            }],
        };
        for (place, length, fits) in [
            (PieceLocation::Arena(FIRST), 100, true),
            (PieceLocation::Arena(FIRST - 1), 100, false),
            (PieceLocation::Arena(SIZE - 99), 100, false),
            (PieceLocation::Staged(u64::MAX - 10), 100, false),
            (PieceLocation::Staged(0), 100, true),
        ] {
            let manifest = with(place, length);
            assert_eq!(
                RankManifest::decode(&manifest.encode(), SIZE).is_some(),
                fits,
                "{place:?}"
            );
        }
    }
}
