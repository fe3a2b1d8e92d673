//! Parity of a set of ranks: the exclusive or of their parts of a version, so that any one of them can be made again from the others.
//!
//! The *image* of a rank is all bytes of its objects behind each other. In a set of m ranks it is divided into m - 1 segments of one
//! length, as long as the longest image needs; the i-th rank keeps the exclusive or of one segment of each of the others: of the j-th
//! the segment (i - j - 1) mod m. So each keeps 1/(m - 1) of an image, and no rank keeps anything of its own. (As RAID 5; SCR has it for
//! checkpoints: Moody et al. 2010.)

use crate::arena;
use crate::fault::{CheckpointError, CheckpointErrorCode};
use crate::manifest::{CHUNK, MAX_BYTES, Object, ObjectPiece, PieceLocation, RankManifest, Shape};
use tarn_ports::ReadableMedium;

/// The object that has the ranks of the set, in their order, and their manifests.
const MEMBERS: &[u8] = b"members";
/// The parity.
const PARITY: &[u8] = b"parity";
/// Bytes of the former: more than a set of 16 ranks needs with the longest manifests.
const MOST_MEMBERS: u64 = 16 * MAX_BYTES;

/// A rank's part of a version, as bytes.
pub(super) struct PartImage<S> {
    source: S,
    manifest: RankManifest,
    /// All chunks, in their order: where each begins in the image, where it is stored, its length and checksum.
    chunks: Vec<ImageChunk>,
    /// The last chunk that was read: most are read in two parts.
    last: Option<(usize, Vec<u8>)>,
}

#[derive(Debug, Clone, Copy)]
struct ImageChunk {
    begin: u64,
    at: u64,
    length: u64,
    sum: u64,
}

impl<S: ReadableMedium> PartImage<S> {
    pub(super) fn new(source: S, manifest: RankManifest) -> Self {
        let mut chunks = Vec::new();
        let mut begin = 0;
        for piece in manifest.objects.iter().flat_map(|o| &o.pieces) {
            let (PieceLocation::Arena(mut at) | PieceLocation::Staged(mut at)) = piece.place;
            let mut left = piece.length;
            for &sum in &piece.sums {
                let length = left.min(CHUNK);
                chunks.push(ImageChunk {
                    begin,
                    at,
                    length,
                    sum,
                });
                (begin, at, left) = (begin + length, at + length, left - length);
            }
        }
        Self {
            source,
            manifest,
            chunks,
            last: None,
        }
    }

    fn length(&self) -> u64 {
        self.chunks.last().map_or(0, |c| c.begin + c.length)
    }

    /// Adds the bytes there, each chunk verified; bytes beyond the end are zero.
    fn add(&mut self, from: u64, into: &mut [u8]) -> Result<(), CheckpointError> {
        let wanted = from..from + into.len() as u64;
        let first = self
            .chunks
            .partition_point(|c| c.begin + c.length <= wanted.start);
        for number in first..self.chunks.len() {
            let chunk = self.chunks[number];
            if chunk.begin >= wanted.end {
                break;
            }
            let bytes = match self.last.take() {
                Some((last, bytes)) if last == number => bytes,
                _ => {
                    let mut bytes = vec![0; chunk.length as usize];
                    if self.source.read(chunk.at, &mut bytes)? != chunk.sum {
                        let text = "a chunk is not what it was: its version was given up, or it is damaged";
                        return Err(CheckpointError::new(CheckpointErrorCode::Corrupt, text));
                    }
                    bytes
                }
            };
            let both = wanted.start.max(chunk.begin)..wanted.end.min(chunk.begin + chunk.length);
            let part = |whole: u64| (both.start - whole) as usize..(both.end - whole) as usize;
            xor(&mut into[part(wanted.start)], &bytes[part(chunk.begin)]);
            self.last = Some((number, bytes));
        }
        Ok(())
    }
}

fn xor(into: &mut [u8], other: &[u8]) {
    into.iter_mut().zip(other).for_each(|(a, b)| *a ^= b);
}

/// The segment of the `of`-th rank's image that the `by`-th of so many ranks keeps.
fn segment(by: usize, of: usize, ranks: usize) -> u64 {
    ((by + 2 * ranks - of - 1) % ranks) as u64
}

/// How long a segment is.
fn length(longest: u64, ranks: usize) -> u64 {
    assert!(ranks > 1, "a set of {ranks} ranks has no parity");
    longest.div_ceil(ranks as u64 - 1).next_multiple_of(CHUNK)
}

/// The members of a set, by which any of them is made again: the ranks, and their manifests.
type Members = Vec<(u32, Vec<u8>)>;

/// The bytes that one rank keeps for its set: first the parity, then the members.
pub(super) struct Parity<S> {
    images: Vec<PartImage<S>>,
    /// The rank's own place among them.
    me: usize,
    /// Of a segment.
    length: u64,
    members: Vec<u8>,
}

impl<S: ReadableMedium> Parity<S> {
    /// Of the images of all ranks of a set, in its order.
    pub(super) fn new(
        set: &[u32],
        me: u32,
        images: Vec<PartImage<S>>,
    ) -> Result<Self, CheckpointError> {
        let members = set.iter().zip(&images);
        let members: Members = members.map(|(r, i)| (*r, i.manifest.encode())).collect();
        let members = postcard::to_stdvec(&members)
            .map_err(|e| CheckpointError::new(CheckpointErrorCode::Internal, e.to_string()))?;
        let longest = images.iter().map(PartImage::length).max().unwrap_or(0);
        Ok(Self {
            length: length(longest, set.len()),
            me: set.iter().position(|rank| *rank == me).unwrap_or(0),
            images,
            members,
        })
    }

    /// It as a version: pieces are places in [`Parity::read`], their checksums not known yet.
    pub(super) fn manifest(&self) -> RankManifest {
        let object = |key: &[u8], at, length| Object {
            key: key.into(),
            unit: 1,
            shape: Shape::Own,
            pieces: vec![ObjectPiece {
                length,
                place: PieceLocation::Staged(at),
                sums: vec![0; ObjectPiece::chunks(length) as usize],
            }],
        };
        let parity = (self.length > 0).then(|| object(PARITY, 0, self.length));
        let members = object(MEMBERS, self.length, self.members.len() as u64);
        RankManifest {
            seal: None,
            objects: [members].into_iter().chain(parity).collect(),
        }
    }

    /// Computes the bytes there.
    pub(super) fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), CheckpointError> {
        if let Some(at) = at.checked_sub(self.length) {
            into.copy_from_slice(&self.members[at as usize..][..into.len()]);
            return Ok(());
        }
        into.fill(0);
        let ranks = self.images.len();
        for (of, image) in self.images.iter_mut().enumerate() {
            if of != self.me {
                image.add(segment(self.me, of, ranks) * self.length + at, into)?;
            }
        }
        Ok(())
    }
}

/// The members of a set, and their manifests: of the version that a rank of it keeps the parity of.
pub(super) fn members(
    stored: &impl ReadableMedium,
    manifest: &RankManifest,
) -> Result<Vec<(u32, RankManifest)>, CheckpointError> {
    let object = manifest.objects.iter().find(|o| *o.key == *MEMBERS);
    let object = object
        .filter(|o| o.size() <= MOST_MEMBERS)
        .ok_or_else(strange)?;
    let mut bytes = vec![0; object.size() as usize];
    if !arena::read(stored, object, &mut bytes)?.is_empty() {
        return Err(strange());
    }
    let members: Members = postcard::from_bytes(&bytes).map_err(|_| strange())?;
    let member = |(rank, manifest): (u32, Vec<u8>)| {
        Some((rank, RankManifest::decode(&manifest, i64::MAX as u64)?))
    };
    members
        .into_iter()
        .map(|m| member(m).ok_or_else(strange))
        .collect()
}

fn strange() -> CheckpointError {
    CheckpointError::new(
        CheckpointErrorCode::Corrupt,
        "this is no parity of checkpoints, or it is damaged",
    )
}

/// The one of a set that is lost, made from all others.
pub(super) struct ReconstructedImage<S> {
    lost: usize,
    length: u64,
    /// The parts of the others, and the parities that they keep; at the place of the lost one, nothing.
    others: Vec<Option<(PartImage<S>, PartImage<S>)>>,
}

impl<S: ReadableMedium> ReconstructedImage<S> {
    /// `others` are the rest of a set, in its order: the part of each, and the manifest of its parity, with the media of both.
    pub(super) fn new(lost: usize, others: Vec<Option<(PartImage<S>, PartImage<S>)>>) -> Self {
        let mut parities = others.iter().flatten().map(|(_, parity)| parity.length());
        Self {
            lost,
            length: parities.next().unwrap_or(0),
            others,
        }
    }

    /// Computes the bytes at an offset of its image.
    pub(super) fn read(&mut self, mut at: u64, mut into: &mut [u8]) -> Result<(), CheckpointError> {
        let ranks = self.others.len();
        into.fill(0);
        while !into.is_empty() {
            let number = at.checked_div(self.length).ok_or_else(strange)?;
            let offset = at % self.length;
            let here = (self.length - offset).min(into.len() as u64);
            let (now, rest) = into.split_at_mut(here as usize);
            let keeper = (self.lost + number as usize + 1) % ranks;
            for (of, other) in self.others.iter_mut().enumerate() {
                let Some((image, parity)) = other else {
                    continue;
                };
                match of == keeper {
                    true => parity.add(offset, now)?,
                    false => image.add(segment(keeper, of, ranks) * self.length + offset, now)?,
                }
            }
            (at, into) = (at + here, rest);
        }
        Ok(())
    }
}

/// The parity that a rank keeps of its set, as an image.
pub(super) fn kept<S: ReadableMedium>(source: S, manifest: &RankManifest) -> PartImage<S> {
    let parity = manifest.objects.iter().filter(|o| *o.key == *PARITY);
    let objects = parity.cloned().collect();
    PartImage::new(source, RankManifest::of(objects))
}

/// A manifest of which all pieces are stored where they are in the image.
pub(super) fn imaged(mut manifest: RankManifest) -> RankManifest {
    let mut at = 0;
    for piece in manifest.objects.iter_mut().flat_map(|o| &mut o.pieces) {
        piece.place = PieceLocation::Staged(at);
        at += piece.length;
    }
    manifest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::free_space::FIRST;
    use crate::layout;
    use tarn_ports::MediumError;
    use tarn_types::crc::crc;

    struct Bytes(Vec<u8>);

    impl ReadableMedium for &Bytes {
        fn size(&self) -> u64 {
            self.0.len() as u64
        }

        fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
            into.copy_from_slice(&self.0[at as usize..][..into.len()]);
            Ok(crc(into))
        }
    }

    /// A part of a version: objects of these sizes behind each other.
    fn part(seed: u64, sizes: &[u64]) -> (Bytes, RankManifest) {
        let mut bytes = vec![0; FIRST as usize];
        let object = |(number, &size): (usize, &u64)| {
            let at = bytes.len() as u64;
            let byte = |i: u64| (i.wrapping_mul(seed + 3) >> 3 ^ i ^ seed) as u8;
            let content: Vec<u8> = (0..size).map(byte).collect();
            let chunks = (0..).zip(content.chunks(CHUNK as usize));
            let chunks = chunks.map(|(n, c)| (PieceLocation::Arena(at + n * CHUNK), crc(c)));
            let pieces = layout::pieces(size, chunks);
            bytes.extend(&content);
            Object {
                key: vec![number as u8].into(),
                unit: 1,
                shape: Shape::Own,
                pieces,
            }
        };
        let objects = sizes.iter().enumerate().map(object).collect();
        (Bytes(bytes), RankManifest::of(objects))
    }

    fn image((bytes, manifest): &(Bytes, RankManifest)) -> PartImage<&Bytes> {
        PartImage::new(bytes, manifest.clone())
    }

    #[test]
    fn each_of_a_set_is_made_again_from_the_others() {
        let parts = [
            part(1, &[0, 3 * CHUNK + 17, 100]),
            part(2, &[5]),
            part(3, &[CHUNK, 7 * CHUNK, 1]),
            part(4, &[]),
        ];
        for ranks in 2..=parts.len() {
            let parts = &parts[..ranks];
            let set: Vec<u32> = (10..10 + ranks as u32).collect();
            let made = |me: &u32| {
                let images = parts.iter().map(image).collect();
                let mut parity = Parity::new(&set, *me, images).unwrap();
                let mut manifest = parity.manifest();
                let mut bytes = vec![0; (parity.length + parity.members.len() as u64) as usize];
                for piece in manifest.objects.iter_mut().flat_map(|o| &mut o.pieces) {
                    let PieceLocation::Staged(mut at) = piece.place else {
                        panic!("not made yet")
                    };
                    piece.place = PieceLocation::Arena(at);
                    let all = &mut bytes[at as usize..][..piece.length as usize];
                    for (chunk, sum) in all.chunks_mut(CHUNK as usize).zip(&mut piece.sums) {
                        parity.read(at, chunk).unwrap();
                        *sum = crc(chunk);
                        at += chunk.len() as u64;
                    }
                }
                (Bytes(bytes), manifest)
            };
            let kept_by: Vec<_> = set.iter().map(made).collect();
            for lost in 0..ranks {
                let (stored, manifest) = &kept_by[(lost + 1) % ranks];
                let members = members(&stored, manifest).unwrap();
                assert_eq!(members[lost], (set[lost], parts[lost].1.clone()));
                let others = (0..ranks).map(|n| {
                    let (stored, manifest) = &kept_by[n];
                    (n != lost).then(|| (image(&parts[n]), kept(stored, manifest)))
                });
                let mut made = ReconstructedImage::new(lost, others.collect());
                let mut at = 0;
                for object in &imaged(members[lost].1.clone()).objects {
                    for piece in &object.pieces {
                        assert_eq!(piece.place, PieceLocation::Staged(at));
                        let mut left = piece.length;
                        for sum in &piece.sums {
                            let mut chunk = vec![1; left.min(CHUNK) as usize];
                            made.read(at, &mut chunk).unwrap();
                            assert_eq!(crc(&chunk), *sum, "{lost} of {ranks} at {at}");
                            (at, left) = (at + chunk.len() as u64, left - chunk.len() as u64);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_damaged_is_no_parity() {
        let (mut bytes, manifest) = part(1, &[2 * CHUNK]);
        bytes.0[(FIRST + CHUNK) as usize + 5] ^= 1;
        let parts = [(bytes, manifest), part(2, &[2 * CHUNK])];
        let mut parity = Parity::new(&[0, 1], 1, parts.iter().map(image).collect()).unwrap();
        let mut chunk = vec![0; CHUNK as usize];
        parity.read(0, &mut chunk).unwrap();
        assert_eq!(
            parity.read(CHUNK, &mut chunk).unwrap_err().code,
            CheckpointErrorCode::Corrupt
        );
    }
}
