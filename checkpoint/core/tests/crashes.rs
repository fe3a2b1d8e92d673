//! Crash images: after a crash, any of the bytes that were written since the last persist boundary may be there or not.
//! In every case the arena has its content of before or the published one, whole.

mod common;

use common::{header, id};
use proptest::prelude::*;
use std::os::fd::OwnedFd;
use tarn_checkpoint_core::arena::{self, Arena, PersistenceLevel};
use tarn_checkpoint_core::layout;
use tarn_checkpoint_core::manifest::{CHUNK, Object, PieceLocation, RankManifest, Shape};
use tarn_checkpoint_core::rank::left;
use tarn_ports::{Medium, MediumError, MediumWindow, PowerFail, Promises, ReadableMedium, Vault};
use tarn_types::block::{self, BlockKind};
use tarn_types::crc::crc;

/// Bytes that the medium writes as one.
const ATOM: usize = 8;
const SIZE: usize = 1 << 20;

/// A medium that records its writes.
#[derive(Clone)]
struct Memory {
    bytes: Vec<u8>,
    done: Vec<Done>,
}

#[derive(Clone)]
enum Done {
    Write(usize, Vec<u8>),
    Persist,
}

impl Memory {
    fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            done: Vec::new(),
        }
    }
}

fn within(at: u64, len: usize, size: usize) -> Result<std::ops::Range<usize>, MediumError> {
    let at = at as usize;
    match at.checked_add(len).is_some_and(|end| end <= size) {
        true => Ok(at..at + len),
        false => Err(MediumError::Outside {
            range: at as u64..at as u64 + len as u64,
            size: size as u64,
        }),
    }
}

impl ReadableMedium for Memory {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
        let range = within(at, into.len(), self.bytes.len())?;
        into.copy_from_slice(&self.bytes[range]);
        Ok(crc(into))
    }
}

impl MediumWindow for Memory {
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<u64, MediumError> {
        let range = within(at, bytes.len(), self.bytes.len())?;
        self.bytes[range].copy_from_slice(bytes);
        self.done.push(Done::Write(at as usize, bytes.to_vec()));
        Ok(crc(bytes))
    }

    fn persist(&mut self) -> Result<(), MediumError> {
        self.done.push(Done::Persist);
        Ok(())
    }
}

impl ReadableMedium for &mut Memory {
    fn size(&self) -> u64 {
        ReadableMedium::size(&**self)
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
        (**self).read(at, into)
    }
}

impl MediumWindow for &mut Memory {
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<u64, MediumError> {
        (**self).write(at, bytes)
    }

    fn persist(&mut self) -> Result<(), MediumError> {
        (**self).persist()
    }
}

impl Medium for Memory {
    type Window<'a> = &'a mut Memory;

    fn promises(&self) -> Promises {
        Promises {
            atomic: ATOM as u64,
            write_unit: 1,
            persist_unit: 1,
            power_fail: PowerFail::Synced,
        }
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn windows(&mut self, _: &[std::ops::Range<u64>]) -> Result<Vec<&mut Memory>, MediumError> {
        Ok(vec![self])
    }

    fn grow(&mut self, size: u64) -> Result<(), MediumError> {
        Err(MediumError::Taken(0..size))
    }
}

/// The memory of a node: one staging file, or none.
struct Staged(Option<Memory>);

impl Vault for Staged {
    type Medium = Memory;
    type Seen = Memory;

    fn create(
        &self,
        _: &str,
        size: u64,
        _: &mut dyn FnMut(&mut Memory) -> Result<(), MediumError>,
    ) -> Result<Memory, MediumError> {
        Err(MediumError::Taken(0..size))
    }

    fn open(&self, _: &str) -> Result<Memory, MediumError> {
        Err(MediumError::Taken(0..0))
    }

    fn see(&self, _: &str) -> Result<Memory, MediumError> {
        self.0.clone().ok_or(MediumError::Taken(0..0))
    }

    fn file(&self, _: &str, _: bool) -> Result<OwnedFd, MediumError> {
        Err(MediumError::Taken(0..0))
    }

    fn list(&self) -> Result<Vec<String>, MediumError> {
        Ok(self.0.iter().map(|_| "3.staging".to_owned()).collect())
    }

    fn remove(&self, _: &str) -> Result<(), MediumError> {
        Err(MediumError::Taken(0..0))
    }
}

fn commit(arena: &mut Arena, memory: &mut Memory, number: u64, keep: u64) {
    common::commit(arena, memory, number, keep, 1);
}

fn whole(memory: &Memory) -> Vec<u64> {
    common::whole(memory, 1)
}

/// Every image that a crash could leave: the persistent bytes, and any of the atoms written since. Of these: none, all, all that
/// were written up to each, each write left out, and many at random.
fn images(before: &[u8], done: &[Done], mut check: impl FnMut(&Memory, usize)) {
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut persistent = before.to_vec();
    let mut since: Vec<(usize, &[u8])> = Vec::new();
    for (step, one) in done.iter().enumerate() {
        match one {
            Done::Write(at, bytes) => since.push((*at, bytes)),
            Done::Persist => {
                for (at, bytes) in since.drain(..) {
                    persistent[at..at + bytes.len()].copy_from_slice(bytes);
                }
            }
        }
        let atoms: Vec<(usize, &[u8])> = since
            .iter()
            .flat_map(|(at, bytes)| {
                assert!(
                    at.is_multiple_of(ATOM),
                    "it is torn where the medium tears nothing"
                );
                bytes
                    .chunks(ATOM)
                    .enumerate()
                    .map(move |(n, atom)| (at + n * ATOM, atom))
            })
            .collect();
        let mut image = |keeps: &mut dyn FnMut(usize) -> bool| {
            let mut memory = Memory::new(persistent.clone());
            for (n, (at, atom)) in atoms.iter().enumerate() {
                if keeps(n) {
                    memory.bytes[*at..at + atom.len()].copy_from_slice(atom);
                }
            }
            check(&memory, step);
        };
        image(&mut |_| false);
        image(&mut |_| true);
        for part in 1..16 {
            image(&mut |n| n < atoms.len() * part / 16);
            image(&mut |n| n >= atoms.len() * part / 16);
            image(&mut |n| n % 16 != part);
            // Some likely, some unlikely.
            image(&mut |_| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % 16 < part as u64
            });
        }
    }
}

#[test]
fn a_crash_leaves_the_version_before_or_the_new_one_and_never_a_mix() {
    let mut memory = Memory::new(vec![0; SIZE]);
    let mut arena = Arena::format(&mut memory, header()).unwrap();
    let mut kept: Vec<u64> = Vec::new();
    for number in 1..=5 {
        let before = memory.bytes.clone();
        memory.done.clear();
        commit(&mut arena, &mut memory, number, 2);
        let mut after = kept.clone();
        after.push(number);
        after.retain(|n| n + 2 > number);
        let published = memory.done.len() - 1;
        let mut seen = [0, 0];
        images(&before, &memory.done, |image, step| {
            let found = whole(image);
            assert!(
                found == kept || found == after,
                "{found:?} after step {step}"
            );
            assert!(step < published || found == after, "it was published");
            seen[usize::from(found == after)] += 1;
        });
        assert!(seen.iter().all(|n| *n > 10), "{seen:?}");
        kept = after;
        // The arena that is opened again equals the writer's.
        assert_eq!(Arena::open(&memory).unwrap(), arena);
        assert_eq!(whole(&memory), kept);
    }
}

/// A crash, at any point, of the process that de-stages for a dead one: whole versions stay so, waiting ones are neither lost nor
/// taken for whole, and the next process completes them. A reader meanwhile sees the same.
#[test]
fn a_crash_of_who_de_stages_after_a_death_loses_nothing_and_the_next_one_ends_it() {
    let mut memory = Memory::new(vec![0; SIZE / 2]);
    let mut arena = Arena::format(&mut memory, header()).unwrap();
    commit(&mut arena, &mut memory, 1, 2);
    // Half of each object of the second version is stored in the arena, the other in memory.
    let head = block::seal(BlockKind::Staging, header().identity, 0, &[], 4096);
    let mut staging = Memory::new(head);
    staging.bytes.resize(64 << 10, 0);
    let content = common::content(2, 1);
    let lengths: Vec<u64> = content.values().map(|v| v.len() as u64).collect();
    let places = arena.places(&memory, &lengths).unwrap();
    let mut objects = Vec::new();
    for (n, ((key, bytes), at)) in content.iter().zip(places).enumerate() {
        let place = match n % 2 {
            0 => {
                memory.write(at, bytes).unwrap();
                PieceLocation::Arena(at)
            }
            _ => {
                let at = staging.bytes.len() as u64;
                staging.bytes.extend(bytes);
                PieceLocation::Staged(at)
            }
        };
        let sums = bytes.chunks(CHUNK as usize).map(crc).collect();
        objects.push(common::object(key, bytes.len(), place, sums));
    }
    memory.persist().unwrap();
    let new = Some((
        id(2),
        PersistenceLevel::Committed,
        RankManifest::of(objects),
    ));
    arena.publish(&mut memory, new, |_| true).unwrap();
    let (lost, staged) = (Staged(None), Staged(Some(staging)));
    let before = memory.clone();
    let outcome = left::destage(&mut memory.clone(), &lost).unwrap();
    assert_eq!(
        (outcome.brought, outcome.lacking),
        (Vec::new(), vec![id(2)])
    );
    memory.done.clear();
    let outcome = left::destage(&mut memory, &staged).unwrap();
    let brought: Vec<_> = outcome.brought.iter().map(|(id, _)| *id).collect();
    assert_eq!((brought, outcome.lacking), (vec![id(2)], Vec::new()));
    assert_eq!(whole(&memory), [1, 2]);
    let mut ended = [0, 0];
    images(&before.bytes, &memory.done, |image, _| {
        let ids: Vec<_> = Arena::open(image)
            .unwrap()
            .versions()
            .iter()
            .map(|v| v.id)
            .collect();
        assert_eq!(ids, [id(1), id(2)]);
        let found = whole(image);
        assert!(found == [1] || found == [1, 2], "{found:?}");
        ended[usize::from(found.len() == 2)] += 1;
        let mut again = Memory::new(image.bytes.clone());
        left::destage(&mut again, &staged).unwrap();
        assert_eq!(whole(&again), [1, 2]);
        let mut without = Memory::new(image.bytes.clone());
        left::destage(&mut without, &lost).unwrap();
        assert_eq!(whole(&without), found);
    });
    assert!(ended.iter().all(|n| *n > 10), "{ended:?}");
}

/// No commit leaves that, but it can be read: beside one piece, staged bytes would be stored over another.
#[test]
fn what_was_staged_goes_beside_the_rest_only_where_all_of_that_lies_as_in_one_slot() {
    let content = common::content(2, 1);
    let sizes = content.values().map(|bytes| bytes.len() as u64);
    let (offsets, length) = layout::slot(sizes).unwrap();
    let (staged, other) = (offsets[1], offsets[3]);
    for (other, agree) in [(other, true), (staged, false), (other + 64, false)] {
        let mut memory = Memory::new(vec![0; SIZE]);
        let mut arena = Arena::format(&mut memory, header()).unwrap();
        commit(&mut arena, &mut memory, 1, 2);
        let head = block::seal(BlockKind::Staging, header().identity, 0, &[], 4096);
        let mut staging = Memory::new(head);
        let (slot, _) = arena.slot(&memory, length + 64).unwrap();
        let mut objects = Vec::new();
        for ((key, bytes), at) in content.iter().zip([0, staged, offsets[2], other]) {
            let place = match &**key {
                b"bb" => {
                    staging.bytes.resize(64 << 10, 0);
                    staging.bytes.extend(bytes);
                    PieceLocation::Staged(64 << 10)
                }
                _ => {
                    memory.write(slot + at, bytes).unwrap();
                    PieceLocation::Arena(slot + at)
                }
            };
            let sums = bytes.chunks(CHUNK as usize).map(crc).collect();
            objects.push(common::object(key, bytes.len(), place, sums));
        }
        let new = Some((
            id(2),
            PersistenceLevel::Committed,
            RankManifest::of(objects),
        ));
        arena.publish(&mut memory, new, |_| true).unwrap();
        let places = arena.own_places(&memory, &arena.versions()[1]).unwrap();
        let all: Vec<u64> = offsets.iter().map(|offset| slot + offset).collect();
        assert_eq!(places, agree.then_some(all));
        left::destage(&mut memory, &Staged(Some(staging))).unwrap();
        assert_eq!(whole(&memory), [1, 2], "the last object at {other}");
    }
}

/// A process is killed before its superblock is persistent, another continues from the visible state, and then the power fails: the
/// state that the second has built on is there.
#[test]
fn what_was_seen_after_a_kill_is_made_persistent_before_it_is_built_on() {
    let mut memory = Memory::new(vec![0; SIZE]);
    let mut arena = Arena::format(&mut memory, header()).unwrap();
    commit(&mut arena, &mut memory, 1, 1);
    let one = memory.bytes.clone();
    memory.done.clear();
    commit(&mut arena, &mut memory, 2, 1);
    // All but the last persist: the superblock is in memory only.
    let mut persistent = Memory::new(one);
    let written = memory.done.iter().filter_map(|d| match d {
        Done::Write(at, bytes) => Some((*at, bytes.clone())),
        Done::Persist => None,
    });
    let mut written: Vec<_> = written.collect();
    let (at, superblock) = written.pop().unwrap();
    for (at, bytes) in written {
        persistent.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    memory.done = vec![Done::Write(at, superblock)];
    let mut arena = Arena::resume(&mut memory).unwrap();
    commit(&mut arena, &mut memory, 3, 1);
    let mut seen = std::collections::BTreeSet::new();
    images(&persistent.bytes, &memory.done, |image, _| {
        let found = whole(image);
        assert_eq!(found.len(), 1, "{found:?}");
        seen.insert(found[0]);
    });
    assert_eq!(seen, [1, 2, 3].into());
}

/// When a superblock cannot be made persistent, nobody knows which one a crash would leave: nothing is built on either.
#[test]
fn after_a_failure_nothing_is_done_until_it_is_opened_again() {
    struct Failing(Memory);
    impl ReadableMedium for Failing {
        fn size(&self) -> u64 {
            ReadableMedium::size(&self.0)
        }
        fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
            self.0.read(at, into)
        }
    }
    impl MediumWindow for Failing {
        fn write(&mut self, at: u64, bytes: &[u8]) -> Result<u64, MediumError> {
            self.0.write(at, bytes)
        }
        fn persist(&mut self) -> Result<(), MediumError> {
            Err(MediumError::Taken(0..0))
        }
    }
    let mut memory = Memory::new(vec![0; SIZE]);
    let mut arena = Arena::format(&mut memory, header()).unwrap();
    commit(&mut arena, &mut memory, 1, 2);
    let mut failing = Failing(memory);
    assert!(arena.publish(&mut failing, None, |_| false).is_err());
    let assert_refused =
        |e: arena::ArenaError| assert!(e.to_string().contains("open it again"), "{e}");
    assert_refused(arena.places(&failing, &[1]).unwrap_err());
    assert_refused(arena.publish(&mut failing.0, None, |_| true).unwrap_err());
    // Here it had reached the medium.
    assert!(Arena::resume(&mut failing.0).unwrap().versions().is_empty());
}

/// An arena that has no name yet may be anything.
#[test]
fn a_crash_in_formatting_leaves_none_or_an_empty_one() {
    let before = vec![0xff; SIZE];
    let mut memory = Memory::new(before.clone());
    Arena::format(&mut memory, header()).unwrap();
    images(&before, &memory.done, |image, _| {
        if let Ok(arena) = Arena::open(image) {
            assert!(arena.versions().is_empty() && arena.header() == &header());
        }
    });
}

/// A bit that flips anywhere loses the thing that it is in, and no wrong bytes are ever returned.
#[test]
fn a_flipped_bit_is_found() {
    let mut memory = Memory::new(vec![0; SIZE]);
    let mut arena = Arena::format(&mut memory, header()).unwrap();
    for number in 1..=3 {
        commit(&mut arena, &mut memory, number, 2);
    }
    let taken = |image: &Memory| match Arena::open(image) {
        // The superblock before leads to versions that may be half overwritten: `whole` checks them.
        Ok(_) => whole(image),
        Err(_) => Vec::new(),
    };
    assert_eq!(taken(&memory), [2, 3]);
    let mut hit = 0;
    for at in (0..SIZE).step_by(997) {
        let bit = at % 8;
        memory.bytes[at] ^= 1 << bit;
        let left = taken(&memory);
        assert!(left.iter().all(|n| (1..=3).contains(n)));
        hit += usize::from(left != [2, 3]);
        memory.bytes[at] ^= 1 << bit;
    }
    assert!(hit > 50, "{hit}");
}

/// After a crash the superblock before the newest leads to the place of the manifest that was being published: if the newest is
/// damaged, this manifest is not taken for the older one.
#[test]
fn the_superblock_before_leads_to_nothing_wrong() {
    let mut memory = Memory::new(vec![0; SIZE]);
    let mut arena = Arena::format(&mut memory, header()).unwrap();
    // Without data, each manifest takes the first place that is free: that of the one before the last.
    let mut met = 0;
    for number in 1..=6 {
        let object = Object {
            key: format!("version {number}").into_bytes().into(),
            unit: 1,
            shape: Shape::Own,
            pieces: Vec::new(),
        };
        let manifest = RankManifest {
            seal: None,
            objects: vec![object],
        };
        let new = Some((id(number), PersistenceLevel::Durable, manifest));
        let mut crashed = Memory::new(memory.bytes.clone());
        memory.done.clear();
        arena.publish(&mut memory, new, |_| false).unwrap();
        // All but the superblock.
        let Some(Done::Write(at, bytes)) = memory.done.first() else {
            panic!("a manifest")
        };
        crashed.bytes[*at..at + bytes.len()].copy_from_slice(bytes);
        for newest in [4 << 10, 8 << 10] {
            let mut damaged = crashed.clone();
            damaged.bytes[newest + 40] ^= 1;
            met += usize::from(Arena::open(&damaged).is_ok_and(|a| a.versions().is_empty()));
            for version in Arena::open(&damaged).map_or(Vec::new(), |a| a.versions().to_vec()) {
                let key = format!("version {}", version.id.number);
                assert_eq!(*version.manifest.objects[0].key, *key.as_bytes());
            }
        }
    }
    assert!(met > 3, "{met}: it was not the case");
}

fn unsorted() -> RankManifest {
    let object = |key: &[u8]| Object {
        key: key.into(),
        unit: 1,
        shape: Shape::Own,
        pieces: Vec::new(),
    };
    RankManifest {
        seal: None,
        objects: vec![object(b"b"), object(b"a")],
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let mut memory = Memory::new(vec![0; SIZE]);
    let mut arena = Arena::format(&mut memory, header()).unwrap();
    commit(&mut arena, &mut memory, 1, 2);
    let before = (arena.clone(), memory.bytes.clone());
    let assert_refused = |error: arena::ArenaError, words: &str| {
        assert!(error.to_string().contains(words), "{error}")
    };
    assert_refused(
        arena.places(&memory, &[SIZE as u64]).unwrap_err(),
        "are free",
    );
    let long = RankManifest {
        seal: None,
        objects: vec![Object {
            key: vec![b'k'; 256].into(),
            unit: 1,
            shape: Shape::Own,
            pieces: Vec::new(),
        }],
    };
    assert_refused(
        arena
            .publish(
                &mut memory,
                Some((id(2), PersistenceLevel::Durable, unsorted())),
                |_| true,
            )
            .unwrap_err(),
        "out of order",
    );
    assert_refused(
        arena
            .publish(
                &mut memory,
                Some((id(2), PersistenceLevel::Durable, long)),
                |_| true,
            )
            .unwrap_err(),
        "a key",
    );
    let none = || Some((id(2), PersistenceLevel::Durable, RankManifest::default()));
    for number in 2..=16 {
        let new = Some((
            id(number),
            PersistenceLevel::Durable,
            RankManifest::default(),
        ));
        arena.publish(&mut memory, new, |_| true).unwrap();
    }
    let many = Some((id(17), PersistenceLevel::Durable, RankManifest::default()));
    assert_refused(
        arena.publish(&mut memory, many, |_| true).unwrap_err(),
        "versions",
    );
    // One that is there takes no further place, and all others can go.
    arena.publish(&mut memory, none(), |_| true).unwrap();
    arena.publish(&mut memory, None, |v| v.id == id(1)).unwrap();
    assert_eq!(whole(&memory), [1]);
    assert_eq!(arena.versions(), before.0.versions());
    let small = &mut Memory::new(vec![0; 100]);
    assert_refused(Arena::format(small, header()).unwrap_err(), "are free");
    assert!(Arena::open(small).is_err());
}

proptest! {
    /// Any bytes are opened: no panic, no more memory than they have.
    #[test]
    fn garbage_is_no_arena(cuts in proptest::collection::vec((any::<u32>(), any::<u64>()), 1..40)) {
        let mut memory = Memory::new(vec![0; SIZE]);
        let mut arena = Arena::format(&mut memory, header()).unwrap();
        commit(&mut arena, &mut memory, 1, 2);
        for (at, word) in cuts {
            // Most of them where it hurts.
            let range = if at % 4 == 0 { SIZE } else { 80 << 10 };
            let at = at as usize % (range / ATOM) * ATOM;
            memory.bytes[at..at + ATOM].copy_from_slice(&word.to_le_bytes());
        }
        if let Ok(arena) = Arena::open(&memory) {
            prop_assert!(arena.versions().len() <= 16);
        }
    }
}
