//! Copying ahead (phx-ec): objects that are written no more in a cycle are copied while the program still computes, and at the commit
//! only what was written since (Fernando 2016, section III).
//!
//! A cycle is what lies between two commits. When an object is written last in it is learned by looking, in some cycles, at several
//! times; from then on it is watched from that time only. A prediction that is wrong costs time, never data: what counts is which pages
//! were written since the copy began.

use super::{Desk, Item, Shared};
use crate::layout;
use crate::manifest::{CHUNK, Piece};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};
use tarn_base::crc::crc;
use tarn_ports::{Medium, Vault, Watched, Window};

/// Looks at an object in a cycle in which it is learned when it is written.
const LOOKS: u32 = 16;
/// An object that is written after this part of a cycle is not copied ahead: there would be no time.
const LATE: f64 = 0.9;
/// After the last write that was seen so much of a cycle passes before an object is copied.
const MARGIN: f64 = 0.05;
/// Of what was copied ahead at most so much may be copied again: more, and the prediction is given up.
const WASTE: f64 = 0.25;
/// Chunks that are copied before the desk is given to who wants it.
const SLICE: u64 = 4;
/// How soon it is looked again whether there is a free slot.
const SOON: Duration = Duration::from_millis(20);
/// Cycles at most between two in which an object is looked at again.
const MAX_PAUSE: u64 = 1024;

/// What is copied ahead.
#[derive(Default)]
pub(super) struct Ahead {
    watched: BTreeMap<Box<[u8]>, Object>,
    /// The objects of the last commit, in the order of a slot.
    last: Vec<(Box<[u8]>, u64)>,
    /// Where the next version will lie.
    slot: Option<u64>,
    /// Cycles that have begun.
    cycle: u64,
    began: Option<Instant>,
    /// A mean.
    length: Option<Duration>,
}

/// An object that is watched.
struct Object {
    memory: Box<dyn Watched>,
    /// Some of its pages may be protected.
    armed: bool,
    /// As soon as possible, whatever was learned.
    always: bool,
    /// The part of a cycle after which it is written no more.
    written_until: Option<f64>,
    /// The cycle in which it is looked at again, and how many that is from the last.
    look: (u64, u64),
    doing: Doing,
    /// Of what was copied.
    sums: Vec<Option<u64>>,
}

/// What is done with an object in a cycle.
#[derive(Debug, Clone, Copy)]
enum Doing {
    Nothing,
    /// It is looked when it is written: looks so far, and the part of the cycle of the last that saw something.
    Learning(u32, f64),
    /// It is copied after this part of the cycle.
    Waiting(f64),
    /// It is copied from this chunk on.
    Copying(u64),
}

/// What was copied ahead and is as it was: per object, in the order of the items, the checksum of each such chunk.
pub(super) struct Done {
    pub(super) slot: Option<u64>,
    pub(super) sums: Vec<Vec<Option<u64>>>,
    /// Bytes that were copied and written again.
    pub(super) twice: u64,
}

impl Ahead {
    /// An object is watched from now on.
    pub(super) fn watch(&mut self, key: &[u8], memory: Box<dyn Watched>, always: bool) {
        let object = Object {
            memory,
            armed: false,
            always,
            written_until: None,
            look: (0, 1),
            doing: Doing::Nothing,
            sums: Vec::new(),
        };
        self.watched.insert(key.into(), object);
    }

    /// An object is not watched any more.
    pub(super) fn forget(&mut self, key: &[u8]) {
        self.watched.remove(key);
    }

    /// A cycle ends: what of these objects need not be copied.
    pub(super) fn settle(&mut self, items: &[&Item<'_>], audit: bool) -> Done {
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
        let mut done = Done {
            slot: self.slot.take().filter(|_| same),
            sums: items.iter().map(|_| Vec::new()).collect(),
            twice: 0,
        };
        for (number, item) in items.iter().enumerate() {
            let Some(object) = self.watched.get_mut(item.key) else {
                continue;
            };
            let sums = object.settle(item.bytes, self.cycle, &mut done.twice, audit);
            if done.slot.is_some() {
                done.sums[number] = sums;
            }
        }
        // Objects that are no part of this commit.
        for object in self.watched.values_mut() {
            object.rest();
        }
        done
    }

    /// A cycle begins, after a commit of these objects.
    pub(super) fn begin(&mut self, items: &[&Item<'_>]) {
        self.cycle += 1;
        self.began = Some(Instant::now());
        self.last = items
            .iter()
            .map(|i| (i.key.into(), i.bytes.len() as u64))
            .collect();
        let known = self.length.is_some();
        for object in self.watched.values_mut() {
            object.doing = match object.written_until {
                _ if object.always => Doing::Waiting(0.0),
                _ if known && object.look.0 <= self.cycle => Doing::Learning(0, 0.0),
                Some(until) if until + MARGIN < LATE => Doing::Waiting(until + MARGIN),
                _ => Doing::Nothing,
            };
        }
    }

    /// Takes protection off again, after a commit: that takes longer than to look which pages lost it, and the program waits for that
    /// alone.
    pub(super) fn disarm(&mut self) {
        for object in self.watched.values_mut() {
            let begun = matches!(object.doing, Doing::Learning(1.., _) | Doing::Copying(_));
            if !begun && std::mem::take(&mut object.armed) {
                // What stays watched costs a little, no more.
                let _ = object.memory.disarm();
            }
        }
    }

    /// Whether anything will be copied in this cycle.
    fn copies(&self) -> bool {
        let copies = |o: &Object| matches!(o.doing, Doing::Waiting(_) | Doing::Copying(_));
        self.watched.values().any(copies)
    }
}

impl Object {
    /// Whether anything was written since it was looked last, as far as a sample tells: to protect all would make the program slower
    /// while it is learned how fast it is.
    fn wrote(&mut self) -> bool {
        self.armed = true;
        self.memory.sample().unwrap_or(true)
    }

    /// What cannot be watched is copied at the commit.
    fn give_up(&mut self) -> Doing {
        self.look.0 = u64::MAX;
        self.written_until = None;
        self.always = false;
        Doing::Nothing
    }

    fn rest(&mut self) {
        self.doing = Doing::Nothing;
        self.sums.clear();
    }

    /// The cycle of this number has ended: what was learned, and what was copied and not written since.
    fn settle(
        &mut self,
        bytes: &[u8],
        cycle: u64,
        twice: &mut u64,
        audit: bool,
    ) -> Vec<Option<u64>> {
        let mut sums = std::mem::take(&mut self.sums);
        match self.doing {
            // Where the helper did not come to look it looks in the next cycle.
            Doing::Nothing | Doing::Waiting(_) | Doing::Learning(0, _) => sums.clear(),
            Doing::Learning(_, seen) => {
                let late = self.wrote();
                let until = if late { 1.0 } else { seen };
                // What is written no later than it was is looked at less and less.
                let as_before = self.written_until.is_some_and(|u| until <= u + MARGIN);
                let pause = if as_before {
                    (self.look.1 * 2).min(MAX_PAUSE)
                } else {
                    2
                };
                self.look = (cycle + pause, pause);
                self.written_until = Some(until);
                sums.clear();
            }
            Doing::Copying(_) => {
                let all = std::iter::once(0..bytes.len() as u64).collect();
                let written: Vec<Range<u64>> = self.memory.written(false).unwrap_or(all);
                let (mut kept, mut lost) = (0u64, 0u64);
                for range in written {
                    let chunks = range.start / CHUNK..Piece::chunks(range.end);
                    for chunk in chunks {
                        if sums
                            .get_mut(chunk as usize)
                            .and_then(Option::take)
                            .is_some()
                        {
                            lost += 1;
                        }
                    }
                }
                for (chunk, sum) in bytes.chunks(CHUNK as usize).zip(&mut sums) {
                    if audit && sum.is_some_and(|sum| sum != crc(chunk)) {
                        // Somebody wrote whom nobody sees: a device.
                        *sum = None;
                        lost += 1;
                    }
                    kept += u64::from(sum.is_some());
                }
                *twice += lost * CHUNK;
                if lost as f64 > WASTE * (kept + lost) as f64 && !self.always {
                    self.written_until = None;
                    self.look = (cycle + self.look.1, (self.look.1 * 2).min(MAX_PAUSE));
                }
            }
        }
        self.rest();
        sums
    }
}

impl<A: Medium, S: Medium> Desk<A, S> {
    /// Does what there is to do now, but no more than a slice of copying; when to come again.
    pub(super) fn look_ahead<T, M>(&mut self, shared: &Shared<T, M>) -> Option<Instant>
    where
        T: Vault<Medium = A>,
        M: Vault<Medium = S>,
    {
        let (began, length) = (self.ahead.began?, self.ahead.length?);
        let now = Instant::now();
        if self.pending.is_some() || self.ahead.watched.is_empty() {
            return None;
        }
        let part = (now - began).as_secs_f64() / length.as_secs_f64().max(1e-9);
        let at = |part: f64| began + length.mul_f64(part);
        let mut next: Option<Instant> = None;
        let mut again = |when: Instant| next = Some(next.map_or(when, |n| n.min(when)));
        if self.ahead.copies() && self.ahead.slot.is_none() {
            let sizes = self.ahead.last.iter().map(|(_, size)| *size);
            let slot = layout::slot(sizes)?.1;
            match self.free_slot(shared, slot) {
                Some(slot) => self.ahead.slot = Some(slot),
                None => again(now + SOON),
            }
        }
        let Ahead {
            watched,
            last,
            slot,
            ..
        } = &mut self.ahead;
        let (places, _) = layout::slot(last.iter().map(|(_, size)| *size))?;
        let mut copied = false;
        for ((key, size), place) in last.iter().zip(places) {
            let Some(object) = watched.get_mut(key).filter(|o| o.memory.size() == *size) else {
                continue;
            };
            match object.doing {
                Doing::Nothing => {}
                Doing::Learning(looks, _) if looks + 1 >= LOOKS => {}
                Doing::Learning(looks, seen) => {
                    let due = f64::from(looks + 1) / f64::from(LOOKS);
                    if part >= due {
                        // The first one only begins: what was written before is not known, nor of interest.
                        let wrote = object.wrote() && looks > 0;
                        let seen = if wrote { part } else { seen };
                        object.doing = Doing::Learning(looks + 1, seen);
                        again(now);
                    } else {
                        again(at(due));
                    }
                }
                Doing::Waiting(due) if part < due => again(at(due)),
                Doing::Waiting(_) if slot.is_none() => {}
                Doing::Waiting(_) => {
                    object.armed = true;
                    object.doing = match object.memory.arm() {
                        Ok(()) => Doing::Copying(0),
                        Err(_) => object.give_up(),
                    };
                    again(now);
                }
                Doing::Copying(chunk) if chunk >= Piece::chunks(*size) => {}
                // One object after the other.
                Doing::Copying(_) if copied => again(now),
                Doing::Copying(chunk) => {
                    let (Some(slot), Some((_, medium))) = (*slot, &mut self.arena) else {
                        continue;
                    };
                    copied = true;
                    let end = Piece::chunks(*size).min(chunk + SLICE);
                    let bytes = chunk * CHUNK..(end * CHUNK).min(*size);
                    match slice(&*object.memory, medium, slot + place, bytes) {
                        Some(sums) => {
                            object.sums.extend(sums.into_iter().map(Some));
                            object.doing = Doing::Copying(end);
                        }
                        // The commit says what is wrong with the tier.
                        None => object.rest(),
                    }
                    again(now);
                }
            }
        }
        next
    }
}

/// Copies some chunks of an object to where it lies in its slot; their checksums.
fn slice(
    memory: &dyn Watched,
    medium: &mut impl Medium,
    place: u64,
    bytes: Range<u64>,
) -> Option<Vec<u64>> {
    let range = place + bytes.start..place + bytes.end;
    let mut windows = medium.windows(std::slice::from_ref(&range)).ok()?;
    let window = windows.first_mut()?;
    let mut buffer = vec![0; CHUNK as usize];
    let mut sums = Vec::new();
    for at in bytes.clone().step_by(CHUNK as usize) {
        let buffer = &mut buffer[..(bytes.end - at).min(CHUNK) as usize];
        memory.copy(at, buffer);
        sums.push(window.write(at - bytes.start, buffer).ok()?);
    }
    window.persist().ok()?;
    Some(sums)
}
