//! The opener of arenas against near-arenas: flipped, cut, spliced, with numbers out of range, and most of it with the checksums
//! made right again, so that the code behind them is reached.
//!
//! A seed decides everything; one that fails is in the message. `TARN_ARENAS` sets the number of arenas, as `make soak` does.

mod common;

use common::{header, id};
use std::cell::Cell;
use std::ops::Range;
use tarn_checkpoint_core::arena::{self, Arena, MAX_VERSIONS, PersistenceLevel};
use tarn_checkpoint_core::free_space::{FIRST, PAGE};
use tarn_checkpoint_core::manifest::{
    MAX_BYTES, MAX_KEY, Object, ObjectPiece, PieceLocation, RankManifest, Shape,
};
use tarn_ports::{MediumError, MediumWindow, ReadableMedium};
use tarn_types::crc::crc;
use tarn_types::random;

/// Arenas that are tried, unless `TARN_ARENAS` sets another number.
const ARENAS: u64 = 1000;
const SIZE: usize = 512 << 10;
const SUPERBLOCKS: [usize; 2] = [4 << 10, 8 << 10];
const BLOCK: usize = 4 << 10;
/// Before a block's payload, and before the rows of a superblock's.
const FRAME: usize = 40;
const ROWS: usize = FRAME + 33;
/// Of a superblock: generation, number, start, level, begin, end, checksum.
const ROW: usize = 57;
/// Objects that are larger are not read back.
const LARGE: u64 = 4 << 20;

/// Bytes, and how many of them were read.
#[derive(Clone)]
struct Memory {
    bytes: Vec<u8>,
    read: Cell<u64>,
}

impl Memory {
    fn new(bytes: Vec<u8>) -> Self {
        let read = Cell::new(0);
        Self { bytes, read }
    }

    fn range(&self, at: u64, len: usize) -> Result<Range<usize>, MediumError> {
        let size = self.bytes.len() as u64;
        let end = at.checked_add(len as u64).filter(|end| *end <= size);
        let outside = MediumError::Outside {
            range: at..at.saturating_add(len as u64),
            size,
        };
        Ok(at as usize..end.ok_or(outside)? as usize)
    }
}

impl ReadableMedium for Memory {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
        self.read.set(self.read.get() + into.len() as u64);
        into.copy_from_slice(&self.bytes[self.range(at, into.len())?]);
        Ok(crc(into))
    }
}

impl MediumWindow for Memory {
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<u64, MediumError> {
        let range = self.range(at, bytes.len())?;
        self.bytes[range].copy_from_slice(bytes);
        Ok(crc(bytes))
    }

    fn persist(&mut self) -> Result<(), MediumError> {
        Ok(())
    }
}

/// Random choices: which bytes to change, and how.
struct Random(random::Random);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0.below(n as u64) as usize
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// Arenas as programs leave them: empty, of one version, of many, and of one that is staged and has every shape.
fn real() -> Vec<Vec<u8>> {
    let mut memory = Memory::new(vec![0; SIZE]);
    let mut arena = Arena::format(&mut memory, header()).unwrap();
    let mut all = vec![memory.bytes.clone()];
    for number in 1..=4 {
        common::commit(&mut arena, &mut memory, number, 3, 1);
        all.push(memory.bytes.clone());
    }
    let shapes = [
        Shape::Own,
        Shape::Replicated,
        Shape::Block(vec![[10, 0, 5, 1]; 3]),
        Shape::Irregular(8),
    ];
    let object = |(n, shape): (usize, Shape)| Object {
        key: vec![b'a' + n as u8; 1 + 50 * n].into(),
        unit: 8,
        shape,
        pieces: vec![
            ObjectPiece {
                length: 5000,
                place: PieceLocation::Staged(FIRST + 5000 * n as u64),
                sums: vec![7],
            };
            1 + n
        ],
    };
    let objects = shapes.into_iter().enumerate().map(object).collect();
    let staged = Some((
        id(5),
        PersistenceLevel::Committed,
        RankManifest::of(objects),
    ));
    arena.publish(&mut memory, staged, |_| true).unwrap();
    all.push(memory.bytes);
    all
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn put(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

/// The places of a superblock's rows, and of the manifests that they lead to, as far as they can be.
fn rows(bytes: &[u8], superblock: usize) -> Vec<(usize, Range<usize>)> {
    let rows = usize::from(bytes[superblock + ROWS - 1]).min(MAX_VERSIONS);
    let row = |n| {
        let row = superblock + ROWS + n * ROW;
        let (from, to) = (word(bytes, row + 33), word(bytes, row + 41));
        let fits = from >= FIRST && to <= bytes.len() as u64 && to.checked_sub(from)? > 48;
        fits.then_some((row, from as usize..to as usize))
    };
    (0..rows).filter_map(row).collect()
}

/// The place of a change: in the header, a superblock or a manifest, most of the time at bytes that are not zeros.
fn somewhere(bytes: &[u8], random: &mut Random) -> usize {
    let superblock = random.of(&SUPERBLOCKS);
    let block = match random.below(8) {
        0 => 0..FRAME + 40,
        1..=3 => superblock..superblock + ROWS + 4 * ROW,
        _ => match &rows(bytes, superblock)[..] {
            [] => 0..bytes.len(),
            some => {
                let block = some[random.below(some.len())].1.clone();
                let payload = word(bytes, block.start + 32).min(1000) as usize;
                block.start..block.end.min(block.start + FRAME + payload)
            }
        },
    };
    block.start + random.below(block.len())
}

fn change(bytes: &mut Vec<u8>, real: &[Vec<u8>], random: &mut Random) {
    let size = bytes.len();
    let at = somewhere(bytes, random);
    let left = size - at;
    match random.below(8) {
        0 | 1 => bytes[at] ^= 1 << random.below(8),
        2 => bytes[at] = random.of(&[0, 1, 2, 3, 4, 16, 17, 127, 255]),
        3 if left >= 8 => {
            let other = word(bytes, somewhere(bytes, random).min(size - 8));
            let hurts = [
                0,
                1,
                FIRST,
                FIRST + PAGE,
                size as u64,
                size as u64 - PAGE,
                MAX_BYTES,
                1 << 32,
                u64::MAX,
                u64::MAX - 7,
                other,
            ];
            put(bytes, at, random.of(&hurts));
        }
        // A part of another arena, or of this one, at the same place or moved.
        4 => {
            let from = &real[random.below(real.len())];
            let start = match random.below(2) {
                0 => at,
                _ => somewhere(from, random),
            };
            let length = random
                .of(&[8, 41, 100, 4096])
                .min(left)
                .min(from.len().saturating_sub(start));
            bytes[at..at + length].copy_from_slice(&from[start..start + length]);
        }
        // Some bytes more or less, and all behind them moved.
        5 => {
            let end = size.min(at + 1000);
            let by = (1 + random.below(24)).min(end - at);
            match random.below(2) {
                0 => bytes.copy_within(at..end - by, at + by),
                _ => bytes.copy_within(at + by..end, at),
            }
        }
        6 => {
            let (one, two) = (SUPERBLOCKS[0], SUPERBLOCKS[1]);
            if size >= two + BLOCK {
                let (first, second) = bytes.split_at_mut(two);
                first[one..one + BLOCK].swap_with_slice(&mut second[..BLOCK]);
            }
        }
        _ => bytes.truncate((size - random.below(size / 2)).max(3 * BLOCK)),
    }
}

/// Makes all checksums right, so that each block is valid.
fn seal(bytes: &mut [u8]) {
    let sealed = |block: &mut [u8]| {
        let end = block.len() - 8;
        let sum = crc(&block[..end]);
        put(block, end, sum);
        sum
    };
    for superblock in SUPERBLOCKS {
        for (row, manifest) in rows(bytes, superblock) {
            let sum = sealed(&mut bytes[manifest]);
            put(bytes, row + 49, sum);
        }
        sealed(&mut bytes[superblock..superblock + BLOCK]);
    }
    sealed(&mut bytes[..BLOCK]);
}

/// The counts of opener outcomes.
#[derive(Debug, Default)]
struct Reached {
    refused: u64,
    opened: u64,
    versions: u64,
    /// Versions that no program has written.
    strange: u64,
}

/// Any bytes: no panic, no more memory than a bound, and an arena that opens can be used.
fn check(memory: &Memory, known: &[RankManifest], reached: &mut Reached) {
    let size = memory.size();
    let Ok(opened) = Arena::open(memory) else {
        reached.refused += 1;
        return;
    };
    reached.opened += 1;
    let manifests = MAX_VERSIONS as u64 * size.min(MAX_BYTES + PAGE);
    assert!(
        memory.read.get() <= 3 * BLOCK as u64 + manifests,
        "{} bytes read",
        memory.read.get()
    );
    let versions = opened.versions();
    assert!(versions.len() <= MAX_VERSIONS && opened.header().run.len() <= 255);
    assert!(
        versions.windows(2).all(|w| w[0].id < w[1].id),
        "versions are not in order"
    );
    let mut whole = Vec::new();
    for version in versions {
        reached.versions += 1;
        reached.strange += u64::from(!known.contains(&version.manifest));
        // Memory is as much as the bytes of the manifest account for: 17 for a piece, 11 for an object, 8 for a checksum.
        let encoded = version.manifest.encode();
        assert!(encoded.len() as u64 <= size.min(MAX_BYTES + PAGE));
        assert_eq!(
            RankManifest::decode(&encoded, size).as_ref(),
            Some(&version.manifest)
        );
        for object in &version.manifest.objects {
            assert!((1..=MAX_KEY).contains(&object.key.len()));
            for extent in object.pieces.iter().filter_map(ObjectPiece::extent) {
                assert!(
                    extent.start >= FIRST && extent.end <= size,
                    "{extent:?} of {size}"
                );
            }
            if object.size() <= LARGE {
                let mut bytes = vec![0; object.size() as usize];
                if arena::read(memory, object, &mut bytes).unwrap().is_empty() {
                    whole.push((version.id, object, bytes));
                }
            }
        }
    }
    // A process that continues with it changes no kept version.
    let mut written = memory.clone();
    let mut arena = Arena::resume(&mut written).unwrap();
    assert_eq!(arena, opened);
    let number = versions.last().map_or(1, |v| v.id.number.saturating_add(1));
    let added = (
        id(number),
        PersistenceLevel::Durable,
        RankManifest::default(),
    );
    let Ok(places) = arena.places(&written, &[5000]) else {
        return;
    };
    written.write(places[0], &[0xee; 5000]).unwrap();
    let more = arena.versions().len() < MAX_VERSIONS;
    if arena.publish(&mut written, Some(added), |_| true).is_err() && more {
        // There was space for data, and none beside them.
        arena.publish(&mut written, None, |_| true).unwrap();
    }
    let again = Arena::open(&written).unwrap();
    assert_eq!(again, arena, "what was published is not what is found");
    for (id, object, bytes) in whole {
        let Some(version) = again.versions().iter().find(|v| v.id == id) else {
            panic!("version {id} is gone");
        };
        if version.manifest.objects.contains(object) {
            let mut now = vec![0; bytes.len()];
            assert!(arena::read(&written, object, &mut now).unwrap().is_empty());
            assert!(now == bytes, "an object of version {id} was overwritten");
        }
    }
}

#[test]
fn whatever_an_arena_says_is_refused_or_can_be_worked_with() {
    let variable = std::env::var("TARN_ARENAS").ok();
    let arenas = variable.map_or(ARENAS, |n| n.parse().expect("TARN_ARENAS is a number"));
    let real = real();
    let known: Vec<RankManifest> = real
        .iter()
        .flat_map(|bytes| {
            Arena::open(&Memory::new(bytes.clone()))
                .unwrap()
                .versions()
                .to_vec()
        })
        .map(|version| version.manifest)
        .collect();
    // Before anything is changed: of the four that were committed, the newest three are there.
    assert_eq!(common::whole(&Memory::new(real[4].clone()), 1), [2, 3, 4]);
    let mut reached = Reached::default();
    for seed in 0..arenas {
        let mut random = Random(random::Random::new(seed));
        let mut bytes = real[random.below(real.len())].clone();
        for _ in 0..1 + random.below(4) {
            change(&mut bytes, &real, &mut random);
        }
        if random.below(8) > 0 {
            seal(&mut bytes);
        }
        let memory = Memory::new(bytes);
        let checked = std::panic::AssertUnwindSafe(|| check(&memory, &known, &mut reached));
        if let Err(panic) = std::panic::catch_unwind(checked) {
            eprintln!("arena {seed}");
            std::panic::resume_unwind(panic);
        }
    }
    // Much of it gets past the checksums.
    assert!(
        reached.refused > arenas / 20 && reached.opened > arenas / 4,
        "{reached:?}"
    );
    assert!(reached.strange > arenas / 20, "{reached:?}");
}
