//! A reader in another program pins a version while its rank continues, at every instant of that: a pinned version stays as it is,
//! and the rank passes over it for as long as it is pinned.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use tarn_checkpoint_core::arena::{
    self, Arena, ArenaHeader, PersistenceLevel, ProgramStart, Version, VersionId,
};
use tarn_checkpoint_core::free_space::FIRST;
use tarn_checkpoint_core::manifest::{Object, ObjectPiece, PieceLocation, RankManifest, Shape};
use tarn_ports::{MediumError, MediumWindow, ReadableMedium};
use tarn_types::crc::crc;

const SIZE: usize = FIRST as usize + (64 << 10);
/// Versions that are committed.
const LAST: u64 = 4;

/// The bytes that readers and the writer share, with their history. Each step is half of a write, so that some are torn, or a
/// look at the pins.
struct Memory {
    images: RefCell<Vec<Vec<u8>>>,
    /// From this step on this range is pinned.
    pin: (usize, Range<u64>),
    /// Slots that were passed over.
    passed: Cell<u32>,
}

impl Memory {
    fn new(pin: (usize, Range<u64>)) -> Self {
        Self {
            images: RefCell::new(vec![vec![0; SIZE]]),
            pin,
            passed: Cell::new(0),
        }
    }

    fn now(&self) -> Vec<u8> {
        self.images.borrow().last().expect("the first").clone()
    }
}

impl ReadableMedium for Memory {
    fn size(&self) -> u64 {
        SIZE as u64
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
        into.copy_from_slice(&self.now()[at as usize..at as usize + into.len()]);
        Ok(crc(into))
    }
}

impl MediumWindow for Memory {
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<u64, MediumError> {
        let middle = bytes.len() / 2;
        for (from, half) in [(0, &bytes[..middle]), (middle, &bytes[middle..])] {
            let mut image = self.now();
            image[at as usize + from..][..half.len()].copy_from_slice(half);
            self.images.get_mut().push(image);
        }
        Ok(crc(bytes))
    }

    fn persist(&mut self) -> Result<(), MediumError> {
        Ok(())
    }

    fn pinned(&self) -> Result<Vec<Range<u64>>, MediumError> {
        let (from, range) = &self.pin;
        let is_there = self.images.borrow().len() > *from && !range.is_empty();
        // It may be pinned as soon as this has looked.
        let same = self.now();
        self.images.borrow_mut().push(same);
        Ok(is_there.then(|| range.clone()).into_iter().collect())
    }
}

/// A rank that keeps one version beside the one that it writes; of its superblocks the first or (`other`) the second are those that give
/// a version up. The step at which the first version was there.
fn commits(memory: &mut Memory, other: bool) -> usize {
    let header = ArenaHeader {
        identity: 7,
        run: b"a run".as_slice().into(),
        start: ProgramStart {
            generation: 1,
            identity: 5,
        },
        rank: 0,
        ranks: 1,
    };
    let mut arena = Arena::format(memory, header).unwrap();
    if other {
        arena.publish(memory, None, |_| true).unwrap();
    }
    let mut first = 0;
    for number in 1..=LAST {
        arena
            .publish(memory, None, |v| v.id.number + 1 == number)
            .unwrap();
        // A smaller one leaves space for its manifest where another's data were, so that the other's manifest stays.
        let length = if number == 3 { 3000 } else { 5000 };
        let bytes = vec![number as u8; length as usize];
        let (at, passed) = arena.slot(memory, length).unwrap();
        memory.passed.set(memory.passed.get() + u32::from(passed));
        let sums = vec![memory.write(at, &bytes).unwrap()];
        let piece = ObjectPiece {
            length,
            place: PieceLocation::Arena(at),
            sums,
        };
        let object = Object {
            key: b"k".as_slice().into(),
            unit: 1,
            shape: Shape::Own,
            pieces: vec![piece],
        };
        let manifest = RankManifest {
            seal: None,
            objects: vec![object],
        };
        let id = VersionId {
            generation: 1,
            number,
        };
        let new = Some((id, PersistenceLevel::Durable, manifest));
        arena.publish(memory, new, |_| true).unwrap();
        if first == 0 {
            first = memory.images.get_mut().len() - 1;
        }
    }
    first
}

/// Some images of a memory.
struct At<'a> {
    images: &'a [Vec<u8>],
    /// That the superblocks are read of, one after the other, and all else after these.
    steps: RefCell<Vec<usize>>,
}

impl At<'_> {
    fn open(images: &[Vec<u8>], steps: &[usize]) -> Option<Arena> {
        let steps = RefCell::new(steps.iter().rev().copied().collect());
        Arena::open(&At { images, steps }).ok()
    }
}

impl ReadableMedium for At<'_> {
    fn size(&self) -> u64 {
        SIZE as u64
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
        let mut steps = self.steps.borrow_mut();
        let step = *steps.last().expect("one");
        if (4096..16384).contains(&at) && steps.len() > 1 {
            steps.pop();
        }
        into.copy_from_slice(&self.images[step][at as usize..at as usize + into.len()]);
        // Blocks have their checksum in them.
        Ok(0)
    }
}

fn is_whole(image: &[u8], version: &Version) -> bool {
    let at = version.extent();
    image[at.start as usize..at.end as usize]
        .iter()
        .all(|b| u64::from(*b) == version.id.number)
}

#[test]
fn what_is_taken_for_pinned_stays_as_it_is_whenever_it_was_pinned() {
    for other in [false, true] {
        at_all_instants(other);
    }
}

fn at_all_instants(other: bool) {
    let mut alone = Memory::new((0, 0..0));
    let first = commits(&mut alone, other);
    assert_eq!(alone.passed.get(), 0);
    let alone = alone.images.into_inner();
    let newest = |step: usize| At::open(&alone, &[step])?.versions().last().cloned();
    let (mut pinned, mut late, mut passed) = (0, 0, 0);
    for locked in first..alone.len() {
        // Versions that a reader may have found before.
        let mut seen: Vec<Version> = Vec::new();
        for version in (first..=locked).filter_map(newest) {
            if !seen.contains(&version) {
                seen.push(version);
            }
        }
        for version in seen {
            let mut memory = Memory::new((locked, version.extent()));
            commits(&mut memory, other);
            let images = memory.images.get_mut();
            assert_eq!(images[locked], alone[locked]);
            let stays = images[locked..].iter().all(|i| is_whole(i, &version));
            // The changes of superblocks.
            let blocks = |step: usize| &images[step][4096..16384];
            let steps: Vec<usize> = (locked..images.len())
                .filter(|s| *s == locked || blocks(*s) != blocks(s - 1))
                .collect();
            for (n, a) in steps.iter().enumerate() {
                for (m, b) in steps.iter().enumerate().skip(n) {
                    for c in &steps[m..] {
                        let Some(arena) = At::open(images, &[*a, *b, *c]) else {
                            continue;
                        };
                        let is_pinned = arena.versions().contains(&version);
                        assert!(
                            stays || !is_pinned,
                            "version {} was pinned at {locked}, and seen to be kept at {a}, {b} and {c}",
                            version.id
                        );
                        pinned += usize::from(is_pinned);
                        late += usize::from(!is_pinned);
                    }
                }
            }
            passed += memory.passed.get();
        }
    }
    assert!(
        pinned > 100 && late > 100 && passed > 10,
        "{pinned} {late} {passed}"
    );
}

/// A reader that stays for good costs a slot, and no more.
#[test]
fn what_is_pinned_is_passed_over_and_its_space_is_there_again_afterwards() {
    let mut alone = Memory::new((0, 0..0));
    let first = commits(&mut alone, false);
    let version = At::open(alone.images.get_mut(), &[first])
        .unwrap()
        .versions()[0]
        .clone();
    let mut memory = Memory::new((first, version.extent()));
    commits(&mut memory, false);
    assert!(is_whole(&memory.now(), &version) && memory.passed.get() > 0);
    let arena = Arena::open(&memory).unwrap();
    for kept in arena.versions() {
        let object = &kept.manifest.objects[0];
        let mut bytes = vec![0; object.size() as usize];
        assert!(arena::read(&memory, object, &mut bytes).unwrap().is_empty());
    }
    let free = arena.places(&memory, &[5000]).unwrap()[0];
    assert!(!version.extent().contains(&free));
    memory.pin = (0, 0..0);
    let again = arena.places(&memory, &[5000]).unwrap()[0];
    assert!(
        version.extent().contains(&again),
        "{again} is not {:?}",
        version.extent()
    );
    // All of it is pinned.
    memory.pin = (0, 0..SIZE as u64);
    let full = arena.places(&memory, &[5000]).unwrap_err().to_string();
    assert!(full.contains("a reader in another program"), "{full}");
}
