//! Copying ahead (phx-ec): objects that are written no more in a cycle are copied while the program still computes, and at the commit
//! only bytes that were written since (Fernando 2016, section III).
//!
//! A cycle is the time between two commits. The time of an object's last write in it is estimated by looks at a few places of it,
//! some times in each cycle; it is watched from that time only. A wrong prediction costs time, never data: only the pages count
//! that were written since the copy began.

use super::{CommitObject, RankContext, RankState};
use crate::layout;
use crate::manifest::{CHUNK, ChunkProof, ObjectPiece};
use crate::seal::RankSealer;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};
use tarn_ports::{Medium, MediumWindow, Vault, WatchedMemory};
use tarn_types::crc::crc;

/// Looks at all objects in a cycle.
const LOOKS: u32 = 32;
/// With fewer looks the cycle is no evidence: the helper was busy.
const ENOUGH: u32 = LOOKS / 2;
/// Places of an object that are looked at, and the bytes of each: a line of the processor's cache.
const PLACES: u64 = 64;
const PLACE: u64 = 64;
/// An object that is written after this part of a cycle is not copied ahead: there would be no time.
const LATE: f64 = 0.9;
/// After the last write that was seen so much of a cycle passes before an object is copied.
const MARGIN: f64 = 0.05;
/// Of an object at most so much may be written after it was copied: with more, the prediction was wrong.
const WASTE: f64 = 0.25;
/// Copies of an object that are begun in a cycle.
const TRIES: u32 = 2;
/// An object that was copied in vain is not for up to so many cycles, as a power of two.
const MAX_PAUSE: u32 = 10;
/// Chunks that are copied before the rank's state is given to a waiting caller.
const SLICE: u64 = 4;
/// How soon it is looked again whether there is a free slot.
const SOON: Duration = Duration::from_millis(20);

/// The state of copying ahead.
#[derive(Default)]
pub(super) struct PrecopyState {
    watched: BTreeMap<Box<[u8]>, PrecopyObject>,
    /// The objects of the last commit, in the order of a slot.
    last: Vec<(Box<[u8]>, u64)>,
    /// The slot of the next version.
    slot: Option<u64>,
    /// Cycles that have begun.
    cycle: u64,
    began: Option<Instant>,
    /// A mean.
    length: Option<Duration>,
    /// Looks in this cycle, and the part of it after which the next one is due.
    looks: (u32, f64),
}

/// An object that is watched.
struct PrecopyObject {
    memory: Box<dyn WatchedMemory>,
    /// As soon as possible, without a prediction.
    always: bool,
    /// The part of a cycle after which it is written no more: the latest of the last cycles, more or less.
    written_until: Option<f64>,
    /// The checksum of its places when they were looked at last.
    sample: u64,
    /// The part of this cycle in which a look found something written.
    seen: f64,
    /// It is not copied before this cycle is over.
    rests: u64,
    /// Cycles in which it was copied in vain, less those in which it was not.
    wasted_cycles: u32,
    /// Copies that were begun in this cycle.
    tries: u32,
    doing: Doing,
    /// Chunks that were copied and not written since. Pages are protected as long as there are any.
    copies: Vec<Option<Early>>,
    /// Chunks that were written after the copy that was begun last.
    lost: u64,
    /// Some of its pages may be protected.
    armed: bool,
    /// Bytes that were copied and written again in this cycle.
    twice: u64,
}

/// A chunk that was copied ahead.
#[derive(Debug, Clone, Copy)]
pub(super) struct Early {
    /// Its checksum where it is stored.
    pub(super) sum: u64,
    /// The checksum of the program's bytes.
    plain: u64,
    /// The proof of a sealed chunk.
    pub(super) proof: Option<ChunkProof>,
}

/// The handling of an object in a cycle.
#[derive(Debug, Clone, Copy)]
enum Doing {
    Nothing,
    /// It is copied after this part of the cycle.
    Waiting(f64),
    /// It is copied from this chunk on.
    Copying(u64),
}

/// Chunks that were copied ahead and not written since: per object, in the order of the items.
pub(super) struct PrecopiedChunks {
    pub(super) slot: Option<u64>,
    pub(super) copies: Vec<Vec<Option<Early>>>,
    /// Bytes that were copied and written again.
    pub(super) twice: u64,
}

impl PrecopyState {
    /// An object is watched from now on.
    pub(super) fn watch(&mut self, key: &[u8], memory: Box<dyn WatchedMemory>, always: bool) {
        let object = PrecopyObject {
            memory,
            always,
            written_until: None,
            sample: 0,
            seen: 0.0,
            rests: 0,
            wasted_cycles: 0,
            tries: 0,
            doing: Doing::Nothing,
            copies: Vec::new(),
            lost: 0,
            armed: false,
            twice: 0,
        };
        self.watched.insert(key.into(), object);
    }

    /// An object is not watched any more.
    pub(super) fn forget(&mut self, key: &[u8]) {
        self.watched.remove(key);
    }

    /// A cycle ends: the chunks of these objects that need not be copied.
    pub(super) fn settle(&mut self, items: &[&CommitObject<'_>], audit: bool) -> PrecopiedChunks {
        let now = Instant::now();
        if let Some(began) = self.began {
            let took = now - began;
            self.length = Some(self.length.map_or(took, |mean| (mean * 3 + took) / 4));
        }
        let same =
            self.last.len() == items.len()
                && self.last.iter().zip(items).all(|((key, size), item)| {
                    **key == *item.key && *size == item.bytes.len() as u64
                });
        let mut done = PrecopiedChunks {
            slot: self.slot.take().filter(|_| same),
            copies: items.iter().map(|_| Vec::new()).collect(),
            twice: 0,
        };
        let learns = self.looks.0 >= ENOUGH;
        for (number, item) in items.iter().enumerate() {
            let Some(object) = self.watched.get_mut(item.key) else {
                continue;
            };
            let bytes = audit.then_some(item.bytes);
            let copies = object.settle(bytes, self.cycle, learns);
            done.twice += object.twice;
            if done.slot.is_some() {
                done.copies[number] = copies;
            }
        }
        // Objects that are no part of this commit.
        for object in self.watched.values_mut() {
            object.doing = Doing::Nothing;
            object.copies.clear();
        }
        done
    }

    /// A cycle begins, after a commit of these objects.
    pub(super) fn begin(&mut self, items: &[&CommitObject<'_>]) {
        self.cycle += 1;
        self.began = Some(Instant::now());
        self.looks = (0, 0.0);
        self.last = items
            .iter()
            .map(|i| (i.key.into(), i.bytes.len() as u64))
            .collect();
        for object in self.watched.values_mut() {
            (object.seen, object.tries, object.twice) = (0.0, 0, 0);
            object.doing = match object.written_until {
                _ if object.always => Doing::Waiting(0.0),
                Some(until) if object.rests < self.cycle => due(until),
                _ => Doing::Nothing,
            };
        }
    }

    /// Takes protection off again, after a commit: that takes longer than to look which pages lost it, and the program waits for that
    /// alone.
    pub(super) fn disarm(&mut self) {
        for object in self.watched.values_mut() {
            if object.copies.is_empty() && std::mem::take(&mut object.armed) {
                // An object that stays watched costs a little, no more.
                let _ = object.memory.disarm();
            }
        }
    }

    /// The part of the cycle that is over, if that is known.
    fn part(&self) -> Option<f64> {
        let (began, length) = (self.began?, self.length?);
        Some(began.elapsed().as_secs_f64() / length.as_secs_f64().max(1e-9))
    }

    /// Looks at all objects, if it is time: when to come again.
    pub(super) fn look(&mut self) -> Option<Instant> {
        let part = self.part()?;
        let (looks, due) = &mut self.looks;
        if *due >= 1.0 {
            return None;
        }
        if part >= *due {
            for object in self.watched.values_mut() {
                // The first one only begins: earlier writes are not known, nor of interest.
                object.look(part, *looks == 0);
            }
            (*looks, *due) = (*looks + 1, part + 1.0 / f64::from(LOOKS));
        }
        let due = *due;
        self.at(due)
    }

    /// When this part of the cycle is over.
    fn at(&self, part: f64) -> Option<Instant> {
        Some(self.began? + self.length?.mul_f64(part))
    }

    /// Whether anything will be copied in this cycle.
    fn copies(&self) -> bool {
        let copies = |o: &PrecopyObject| matches!(o.doing, Doing::Waiting(_) | Doing::Copying(_));
        self.watched.values().any(copies)
    }
}

/// The handling of an object that is written until this part of a cycle.
fn due(until: f64) -> Doing {
    match until + MARGIN {
        due if due < LATE => Doing::Waiting(due),
        _ => Doing::Nothing,
    }
}

impl PrecopyObject {
    /// Whether a few places of it, evenly spread, have changed since the last call. That is a guess, and costs the
    /// program nothing, as tracking would while the object is written all the time.
    fn changed(&mut self) -> bool {
        let size = self.memory.size();
        let length = size.min(PLACE);
        let mut places = vec![0; (PLACES * length) as usize];
        for (n, place) in (0..).zip(places.chunks_mut(length.max(1) as usize)) {
            self.memory.copy(n * (size - length) / (PLACES - 1), place);
        }
        let sample = crc(&places);
        std::mem::replace(&mut self.sample, sample) != sample
    }

    /// Chunks that were copied and have been written since are not copied any more; whether there are new ones, and many in all. They
    /// count as clean again if `again`.
    fn overtaken(&mut self, again: bool) -> bool {
        let written = self.memory.written(again);
        let failed = written.is_err();
        let all = |_| std::iter::once(0..self.memory.size()).collect();
        let written: Vec<Range<u64>> = written.unwrap_or_else(all);
        let mut lost = 0;
        for range in written {
            for chunk in range.start / CHUNK..ObjectPiece::chunks(range.end) {
                let sum = self.copies.get_mut(chunk as usize).and_then(Option::take);
                lost += u64::from(sum.is_some());
            }
        }
        if failed {
            // It is watched no more.
            self.copies.clear();
        }
        self.lost += lost;
        self.twice += (lost * CHUNK).min(self.memory.size());
        lost > 0 && self.lost as f64 > WASTE * ObjectPiece::chunks(self.memory.size()) as f64
    }

    /// Sees whether it was written, in this part of the cycle; then it is copied later.
    fn look(&mut self, part: f64, first: bool) {
        let wrote = match self.copies.is_empty() {
            true => self.changed() && !first,
            false => self.overtaken(false),
        };
        if wrote {
            self.seen = part;
            if !matches!(self.doing, Doing::Nothing) && !self.always {
                self.doing = due(part);
            }
        }
    }

    /// Begins to copy.
    fn start(&mut self) {
        if self.tries == TRIES {
            self.doing = Doing::Nothing;
            return;
        }
        self.tries += 1;
        self.doing = Doing::Copying(0);
        if !self.copies.is_empty() {
            self.overtaken(true);
            self.lost = 0;
            if self.copies.is_empty() {
                self.doing = Doing::Nothing;
            }
            return;
        }
        (self.armed, self.lost) = (true, 0);
        match self.memory.arm() {
            Ok(()) => self.copies = vec![None; ObjectPiece::chunks(self.memory.size()) as usize],
            // Memory that cannot be watched is copied at the commit.
            Err(_) => (self.doing, self.rests, self.always) = (Doing::Nothing, u64::MAX, false),
        }
    }

    /// Copies the next chunks that are not copied yet, from this one on, to where the object is stored in its slot. Whether there were any.
    fn copy_slice(
        &mut self,
        chunk: u64,
        key: &[u8],
        medium: &mut impl Medium,
        place: u64,
        seal: Option<&RankSealer>,
    ) -> bool {
        let left = &self.copies[chunk as usize..];
        let has = left.iter().take_while(|sum| sum.is_some()).count();
        let lacks = left[has..].iter().take_while(|sum| sum.is_none()).count() as u64;
        let chunk = chunk + has as u64;
        if lacks == 0 {
            self.doing = Doing::Copying(chunk);
            return false;
        }
        let end = chunk + lacks.min(SLICE);
        let bytes = chunk * CHUNK..(end * CHUNK).min(self.memory.size());
        match slice((key, &*self.memory), medium, place, bytes, seal) {
            Some(sums) => {
                let copied = &mut self.copies[chunk as usize..end as usize];
                for (to, sum) in copied.iter_mut().zip(sums) {
                    *to = Some(sum);
                }
                self.doing = Doing::Copying(end);
            }
            // The commit reports the tier's error.
            None => self.doing = Doing::Nothing,
        }
        true
    }

    /// The cycle of this number has ended: updates the prediction, and returns the chunks that were copied and not written since.
    /// `bytes` are compared to find writes that nobody saw.
    fn settle(&mut self, bytes: Option<&[u8]>, cycle: u64, learns: bool) -> Vec<Option<Early>> {
        let copied = !self.copies.is_empty();
        let late = match copied {
            true => self.overtaken(false),
            false => self.changed() && learns,
        };
        for (chunk, copy) in bytes
            .iter()
            .flat_map(|b| b.chunks(CHUNK as usize))
            .zip(&mut self.copies)
        {
            if copy.is_some_and(|copy| copy.plain != crc(chunk)) {
                // Somebody wrote whom nobody sees: a device.
                *copy = None;
                self.twice += CHUNK;
            }
        }
        if late {
            self.seen = 1.0;
        }
        self.written_until = match self.written_until {
            Some(until) if self.seen >= until => Some(self.seen),
            // Slowly, as the next cycle may be as one before.
            Some(until) if learns => Some(until - (until - self.seen) / 4.0),
            None if learns => Some(self.seen),
            until => until,
        };
        let is_wasted = self.twice as f64 > WASTE * self.memory.size() as f64;
        if copied && is_wasted && !self.always {
            // Not at the first time: it was not known.
            self.rests = self.rests.max(cycle + (1 << self.wasted_cycles) - 1);
            self.wasted_cycles = (self.wasted_cycles + 1).min(MAX_PAUSE);
        } else if copied {
            // A score, not below 0.
            self.wasted_cycles = self.wasted_cycles.saturating_sub(1);
        }
        self.doing = Doing::Nothing;
        std::mem::take(&mut self.copies)
    }
}

impl<A: Medium, S: Medium> RankState<A, S> {
    /// Does the next work, but no more than a slice of copying; returns when to come again.
    pub(super) fn look_ahead<T, M>(&mut self, shared: &RankContext<T, M>) -> Option<Instant>
    where
        T: Vault<Medium = A>,
        M: Vault<Medium = S>,
    {
        if self.pending.is_some() || self.ahead.watched.is_empty() {
            return None;
        }
        let mut next = self.ahead.look();
        let part = self.ahead.part()?;
        let now = Instant::now();
        let mut again = |when: Instant| next = Some(next.map_or(when, |n| n.min(when)));
        if self.ahead.copies() && self.ahead.slot.is_none() {
            let sizes = self.ahead.last.iter().map(|(_, size)| *size);
            let slot = layout::slot(sizes)?.1;
            match self.free_slot(shared, slot) {
                Some(slot) => self.ahead.slot = Some(slot),
                None => again(now + SOON),
            }
        }
        let seal = shared.options.seal.as_deref();
        let (places, _) = layout::slot(self.ahead.last.iter().map(|(_, size)| *size))?;
        let mut copied = false;
        for (number, place) in places.into_iter().enumerate() {
            let PrecopyState {
                watched,
                last,
                slot,
                ..
            } = &mut self.ahead;
            let (key, size) = &last[number];
            let Some(object) = watched.get_mut(key).filter(|o| o.memory.size() == *size) else {
                continue;
            };
            match object.doing {
                Doing::Nothing => {}
                Doing::Waiting(due) if part < due => {
                    self.ahead.at(due).into_iter().for_each(&mut again);
                }
                Doing::Waiting(_) if slot.is_none() => {}
                Doing::Waiting(_) => {
                    object.start();
                    again(now);
                }
                Doing::Copying(chunk) if chunk >= ObjectPiece::chunks(*size) => {}
                // One object after the other.
                Doing::Copying(_) if copied => again(now),
                Doing::Copying(chunk) => {
                    let (Some(slot), Some((_, medium))) = (*slot, &mut self.arena) else {
                        continue;
                    };
                    if object.copy_slice(chunk, key, medium, slot + place, seal) {
                        copied = true;
                        again(now);
                    }
                }
            }
        }
        next
    }
}

/// Copies some chunks of an object to where it is stored in its slot.
fn slice(
    (key, memory): (&[u8], &dyn WatchedMemory),
    medium: &mut impl Medium,
    place: u64,
    bytes: Range<u64>,
    seal: Option<&RankSealer>,
) -> Option<Vec<Early>> {
    let range = place + bytes.start..place + bytes.end;
    let mut windows = medium.windows(std::slice::from_ref(&range)).ok()?;
    let window = windows.first_mut()?;
    let mut buffer = vec![0; CHUNK as usize];
    let mut copies = Vec::new();
    for at in bytes.clone().step_by(CHUNK as usize) {
        let buffer = &mut buffer[..(bytes.end - at).min(CHUNK) as usize];
        memory.copy(at, buffer);
        let plain = seal.map(|_| crc(buffer));
        let proof = seal.map(|seal| seal.seal(key, at / CHUNK, buffer));
        let proof = proof.transpose().ok()?;
        let sum = window.write(at - bytes.start, buffer).ok()?;
        copies.push(Early {
            sum,
            plain: plain.unwrap_or(sum),
            proof,
        });
    }
    window.persist().ok()?;
    Some(copies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tarn_ports::TrackError;

    const CHUNKS: usize = 8;

    /// Memory whose writes are seen by chunks.
    #[derive(Clone)]
    struct Memory(Arc<Mutex<(Vec<u8>, [bool; CHUNKS])>>);

    impl Memory {
        fn new() -> Self {
            let bytes = vec![0; CHUNKS * CHUNK as usize];
            Self(Arc::new(Mutex::new((bytes, [false; CHUNKS]))))
        }

        fn write(&self, chunks: Range<usize>, value: u8) {
            let (bytes, written) = &mut *self.0.lock().unwrap();
            bytes[chunks.start * CHUNK as usize..chunks.end * CHUNK as usize].fill(value);
            written[chunks].fill(true);
        }
    }

    impl WatchedMemory for Memory {
        fn size(&self) -> u64 {
            CHUNKS as u64 * CHUNK
        }

        fn arm(&mut self) -> Result<(), TrackError> {
            self.0.lock().unwrap().1 = [false; CHUNKS];
            Ok(())
        }

        fn written(&mut self, again: bool) -> Result<Vec<Range<u64>>, TrackError> {
            let written = &mut self.0.lock().unwrap().1;
            let chunks = (0..CHUNKS as u64).filter(|c| written[*c as usize]);
            let found = chunks.map(|c| c * CHUNK..(c + 1) * CHUNK).collect();
            if again {
                *written = [false; CHUNKS];
            }
            Ok(found)
        }

        fn disarm(&mut self) -> Result<(), TrackError> {
            Ok(())
        }

        fn copy(&self, at: u64, into: &mut [u8]) {
            let bytes = &self.0.lock().unwrap().0;
            into.copy_from_slice(&bytes[at as usize..][..into.len()]);
        }
    }

    /// A cycle in which some chunks are filled with values at some looks: the chunks that need not be copied at its end.
    fn cycle(
        ahead: &mut PrecopyState,
        memory: &Memory,
        writes: &[(u32, Range<usize>, u8)],
    ) -> usize {
        let bytes = vec![0; memory.size() as usize];
        let item = CommitObject {
            key: b"object",
            unit: 1,
            shape: crate::Shape::Own,
            bytes: &bytes,
        };
        ahead.begin(&[&item]);
        let object = ahead.watched.get_mut(b"object".as_slice()).unwrap();
        for look in 0..LOOKS {
            let part = f64::from(look) / f64::from(LOOKS);
            for (_, chunks, value) in writes.iter().filter(|w| w.0 == look) {
                memory.write(chunks.clone(), *value);
            }
            object.look(part, look == 0);
            if matches!(object.doing, Doing::Waiting(due) if part >= due) {
                object.start();
            }
            // Two chunks are copied between two looks.
            for _ in 0..2 {
                if let Doing::Copying(chunk) = object.doing
                    && let Some(sum) = object.copies.get_mut(chunk as usize)
                {
                    *sum = Some(Early {
                        sum: 1,
                        plain: 1,
                        proof: None,
                    });
                    object.doing = Doing::Copying(chunk + 1);
                }
            }
        }
        let copies = object.settle(None, ahead.cycle, true);
        copies.into_iter().flatten().count()
    }

    fn watching() -> (PrecopyState, Memory) {
        let (mut ahead, memory) = (PrecopyState::default(), Memory::new());
        ahead.watch(b"object", Box::new(memory.clone()), false);
        (ahead, memory)
    }

    #[test]
    fn what_is_written_early_is_copied_from_the_second_cycle_on() {
        let (mut ahead, memory) = watching();
        assert_eq!(cycle(&mut ahead, &memory, &[(5, 0..CHUNKS, 1)]), 0);
        for value in 2..20 {
            assert_eq!(cycle(&mut ahead, &memory, &[(5, 0..CHUNKS, value)]), CHUNKS);
        }
    }

    #[test]
    fn what_is_written_late_is_never_watched() {
        let (mut ahead, memory) = watching();
        for value in 1..20 {
            let writes = [(3, 0..CHUNKS, value), (31, 0..CHUNKS, value + 100)];
            assert_eq!(cycle(&mut ahead, &memory, &writes), 0);
            assert!(!ahead.watched[b"object".as_slice()].armed);
        }
    }

    #[test]
    fn what_is_written_later_than_before_is_copied_again_in_the_same_cycle() {
        let (mut ahead, memory) = watching();
        cycle(&mut ahead, &memory, &[(3, 0..CHUNKS, 1)]);
        assert_eq!(cycle(&mut ahead, &memory, &[(15, 0..CHUNKS, 2)]), CHUNKS);
        assert_eq!(ahead.watched[b"object".as_slice()].tries, 2);
        // And at the right time from then on.
        assert_eq!(cycle(&mut ahead, &memory, &[(15, 0..CHUNKS, 3)]), CHUNKS);
        assert_eq!(ahead.watched[b"object".as_slice()].tries, 1);
    }

    #[test]
    fn a_part_that_is_written_late_is_copied_at_the_commit_and_the_rest_ahead() {
        let (mut ahead, memory) = watching();
        // Not where its places are looked at.
        cycle(&mut ahead, &memory, &[(3, 0..CHUNKS, 1)]);
        for value in 2..20 {
            let writes = [(3, 0..CHUNKS, value), (30, 2..3, value)];
            assert_eq!(cycle(&mut ahead, &memory, &writes), CHUNKS - 1);
        }
    }

    #[test]
    fn what_is_written_slowly_all_of_it_is_late_once_it_is_known() {
        let (mut ahead, memory) = watching();
        cycle(&mut ahead, &memory, &[(3, 0..CHUNKS, 1)]);
        let slowly = |value: u8| {
            let chunks =
                (0..CHUNKS as u32).map(|c| (14 + 2 * c, c as usize..c as usize + 1, value));
            chunks.collect::<Vec<_>>()
        };
        cycle(&mut ahead, &memory, &slowly(2));
        let object = &ahead.watched[b"object".as_slice()];
        assert_eq!(object.written_until, Some(28.0 / f64::from(LOOKS)));
    }

    /// No look can see them.
    #[test]
    fn writes_of_the_same_values_have_an_object_left_alone_for_longer_and_longer() {
        let (mut ahead, memory) = watching();
        let copied = |ahead: &mut PrecopyState| {
            cycle(ahead, &memory, &[(31, 0..CHUNKS, 0)]);
            u32::from(ahead.watched[b"object".as_slice()].tries > 0)
        };
        let times: u32 = (0..1000).map(|_| copied(&mut ahead)).sum();
        assert!((1..20).contains(&times), "{times}");
    }

    #[test]
    fn with_few_looks_only_what_was_seen_counts() {
        let (mut ahead, memory) = watching();
        cycle(&mut ahead, &memory, &[(16, 0..CHUNKS, 1)]);
        let object = ahead.watched.get_mut(b"object".as_slice()).unwrap();
        let before = object.written_until;
        object.seen = 0.0;
        object.settle(None, 1, false);
        assert_eq!(object.written_until, before);
        object.seen = 0.75;
        object.settle(None, 2, false);
        assert_eq!(object.written_until, Some(0.75));
    }
}
