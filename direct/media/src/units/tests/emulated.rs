//! A medium whose calls take their time, and which notes them.

use crate::units::engine::{UnitIoCall, UnitIoCompletion, UnitIoEngine};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::{pread, pwrite};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Numbers by a seed.
#[derive(Debug, Clone)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    /// One below another.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    pub(super) fn one_in(&mut self, end: u64) -> bool {
        self.below(end) == 0
    }
}

/// A write or a sync, with the moments of its beginning and end.
#[derive(Debug)]
struct Call {
    began: usize,
    ended: Option<usize>,
    /// None of a sync.
    bytes: Option<(u64, Vec<u8>)>,
    synced: bool,
}

/// All requests to a medium.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Moments so far.
    pub(super) now: usize,
    calls: Vec<Call>,
}

impl Log {
    /// One more moment.
    pub(super) fn tick(&mut self) -> usize {
        self.now += 1;
        self.now
    }

    /// The content that a loss of power may leave at a moment: of each unit the persistent bytes, later writes, or garbage
    /// in place of a write.
    pub(super) fn image(
        &self,
        first: &[u8],
        unit: usize,
        moment: usize,
        dice: &mut Dice,
    ) -> Vec<u8> {
        let has_ended = |call: &Call| call.ended.filter(|ended| *ended <= moment);
        let syncs = self
            .calls
            .iter()
            .filter(|call| call.bytes.is_none() && has_ended(call).is_some());
        let synced = syncs.map(|call| call.began).max().unwrap_or(0);
        // The possible contents of each unit; the first is the persistent one.
        let mut versions: BTreeMap<usize, Vec<&[u8]>> = BTreeMap::new();
        let mut written: Vec<_> = self
            .calls
            .iter()
            .filter(|call| call.began <= moment)
            .collect();
        // A write that ends later overwrites earlier ones.
        written.sort_by_key(|call| call.ended.unwrap_or(usize::MAX));
        for call in written {
            let Some((at, bytes)) = &call.bytes else {
                continue;
            };
            let ended = has_ended(call);
            let is_safe = ended.is_some_and(|ended| call.synced || ended < synced);
            for (number, bytes) in (*at as usize / unit..).zip(bytes.chunks_exact(unit)) {
                let before = &first[number * unit..][..unit];
                let versions = versions.entry(number).or_insert_with(|| vec![before]);
                if is_safe {
                    versions.clear();
                }
                versions.push(bytes);
            }
        }
        let mut image = first.to_vec();
        for (number, versions) in versions {
            let there = &mut image[number * unit..][..unit];
            let which = dice.below(versions.len() as u64 + u64::from(versions.len() > 1)) as usize;
            match versions.get(which) {
                Some(version) => there.copy_from_slice(version),
                None => there.fill_with(|| dice.below(256) as u8),
            }
        }
        image
    }
}

/// A medium in a file.
#[derive(Debug)]
pub(super) struct EmulatedEngine {
    pub(super) file: Arc<OwnedFd>,
    pub(super) log: Arc<Mutex<Log>>,
    pub(super) dice: Dice,
    under_way: Vec<(u32, UnitIoCall, usize)>,
}

// SAFETY: the calls under way belong to the unit I/O.
unsafe impl Send for EmulatedEngine {}

impl EmulatedEngine {
    pub(super) fn new(file: Arc<OwnedFd>, log: Arc<Mutex<Log>>, dice: Dice) -> Self {
        Self {
            file,
            log,
            dice,
            under_way: Vec::new(),
        }
    }

    fn end(&mut self, which: usize) -> UnitIoCompletion {
        let (number, io, call) = self.under_way.swap_remove(which);
        let done = match io {
            UnitIoCall::Read { at, to, length } => {
                // SAFETY: the unit I/O's, until this ends.
                let to = unsafe { std::slice::from_raw_parts_mut(to, length) };
                pread(&self.file, to, at)
            }
            UnitIoCall::Write {
                at, from, length, ..
            } => {
                // SAFETY: as above.
                let from = unsafe { std::slice::from_raw_parts(from, length) };
                pwrite(&self.file, from, at)
            }
            UnitIoCall::Sync => Ok(0),
        };
        let mut log = self.log.lock().unwrap();
        let now = log.tick();
        if !matches!(io, UnitIoCall::Read { .. }) {
            log.calls[call].ended = Some(now);
        }
        (number, done)
    }
}

impl UnitIoEngine for EmulatedEngine {
    // SAFETY: the trait's: the memory is there until the number has ended.
    unsafe fn begin(&mut self, number: u32, io: UnitIoCall) {
        let mut log = self.log.lock().unwrap();
        let (bytes, synced) = match io {
            UnitIoCall::Read { .. } => {
                drop(log);
                self.under_way.push((number, io, usize::MAX));
                return;
            }
            UnitIoCall::Write {
                at,
                from,
                length,
                synced,
            } => {
                // SAFETY: as the caller says.
                let from = unsafe { std::slice::from_raw_parts(from, length) };
                (Some((at, from.to_vec())), synced)
            }
            UnitIoCall::Sync => (None, false),
        };
        let began = log.tick();
        log.calls.push(Call {
            began,
            ended: None,
            bytes,
            synced,
        });
        self.under_way.push((number, io, log.calls.len() - 1));
    }

    fn enter(&mut self) {}

    /// In any order, and not always at once.
    fn ended(&mut self) -> Option<UnitIoCompletion> {
        let count = self.under_way.len() as u64;
        if count == 0 || self.dice.one_in(4) {
            return None;
        }
        let which = self.dice.below(count) as usize;
        Some(self.end(which))
    }

    fn wait(&mut self) {}

    fn notify(&mut self, _: BorrowedFd<'_>) -> bool {
        true
    }
}

impl Drop for EmulatedEngine {
    /// A call that a killed program has under way ends, or was not begun.
    fn drop(&mut self) {
        while !self.under_way.is_empty() {
            let which = self.dice.below(self.under_way.len() as u64) as usize;
            match self.dice.one_in(2) {
                true => drop(self.end(which)),
                false => {
                    let (_, io, call) = self.under_way.swap_remove(which);
                    if !matches!(io, UnitIoCall::Read { .. }) {
                        self.log.lock().unwrap().calls[call].began = usize::MAX;
                    }
                }
            }
        }
    }
}
