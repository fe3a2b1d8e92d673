//! Data in motion at a site: streams over shared pipes, max-min fair within a class of urgency, strict priority between
//! classes (Bertsekas and Gallager, Data Networks, 6.5.2), in integers, so that every machine computes the same times.
//!
//! A pipe that could carry all its streams at their caps binds nobody. Streams are shared out again only within what
//! hangs together by pipes that do bind: most often one stream alone.

use super::earliest::Earliest;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tarn_types::units::{Nanos, Time};

/// Rates are counted in thousandths of a byte a second, so that sharing them loses nothing that matters.
const RATE_UNIT: u64 = 1000;
/// Work is counted in bytes times this: nanoseconds in a second times the resolution of a rate.
const WORK_UNIT: u128 = 1_000_000_000 * RATE_UNIT as u128;
/// Classes of urgency.
const CLASSES: u8 = 4;
/// No limit, as a rate.
pub(crate) const UNLIMITED: u64 = u64::MAX;
/// Pipes that one stream uses: the store, or the links of both ends; and a tier at each end.
pub(crate) const MAX_PIPES: usize = 4;

/// A stream in motion.
pub(crate) type StreamIndex = u32;
/// The number of a pipe.
pub(crate) type PipeId = u32;

/// Bytes a second (0 for no limit) as a rate.
pub(crate) fn rate_of(bytes_per_second: u64) -> u64 {
    match bytes_per_second {
        0 => UNLIMITED,
        rate => rate.saturating_mul(RATE_UNIT),
    }
}

/// The demand of a stream.
#[derive(Debug, Clone)]
pub(crate) struct StreamDemand {
    /// Bytes to carry.
    pub(crate) bytes: u64,
    /// A limit of its own, as a rate.
    pub(crate) cap: u64,
    /// Urgency: the highest goes first.
    pub(crate) class: u8,
    /// Pipes that it shares with others, each once.
    pub(crate) over: Vec<PipeId>,
}

#[derive(Debug, Clone, Copy)]
struct PipeUse {
    pipe: PipeId,
    /// Its place among the pipe's streams.
    at: u32,
}

#[derive(Debug)]
struct FluidStream {
    left: u128,
    rate: u64,
    /// When `left` was so much.
    since: Time,
    /// Its own limit.
    own: u64,
    /// The least of its own limit and the capacities of its pipes.
    cap: u64,
    class: u8,
    uses: [PipeUse; MAX_PIPES],
    used: u8,
    /// The round in which it was collected.
    collected: u64,
    live: bool,
    /// While rates are given: it waits for its own.
    open: bool,
}

#[derive(Debug)]
struct FluidPipe {
    capacity: u64,
    streams: Vec<StreamIndex>,
    /// The sum of its streams' caps.
    wanted: u128,
    /// The round in which it was collected.
    collected: u64,
    /// While rates are given: the rest of it, and streams that wait for theirs.
    free: u64,
    open: u32,
}

impl FluidPipe {
    fn binds(&self) -> bool {
        self.capacity < UNLIMITED && self.wanted > u128::from(self.capacity)
    }
}

impl FluidStream {
    fn uses(&self) -> &[PipeUse] {
        &self.uses[..usize::from(self.used)]
    }

    /// Time passes at the present rate.
    fn pass(&mut self, now: Time) {
        let done = match self.rate {
            UNLIMITED => self.left,
            rate => u128::from(now.saturating_sub(self.since)) * u128::from(rate),
        };
        self.left = self.left.saturating_sub(done);
        self.since = now;
    }

    fn ends(&self) -> Time {
        let takes: Nanos = match (self.left, self.rate) {
            (0, _) | (_, UNLIMITED) => 0,
            (_, 0) => return Time::MAX,
            (left, rate) => u64::try_from(left.div_ceil(u128::from(rate))).unwrap_or(u64::MAX),
        };
        self.since.saturating_add(takes)
    }
}

/// All streams and pipes.
#[derive(Debug, Default)]
pub(crate) struct Fluid {
    pipes: Vec<FluidPipe>,
    streams: Vec<FluidStream>,
    free: Vec<StreamIndex>,
    earliest: Earliest,
    /// Counts collections and settlings, to recognise pipes and streams that this one has touched.
    round: u64,
    /// Streams and pipes that changed since rates were given last.
    changed_streams: Vec<StreamIndex>,
    changed_pipes: Vec<PipeId>,
    /// One of them has no limit, so it may end at once.
    sudden: bool,
    /// Kept to save allocations.
    group: Vec<StreamIndex>,
    group_pipes: Vec<PipeId>,
}

impl Fluid {
    /// Pipes by number, with their capacities as rates.
    pub(crate) fn new(capacities: impl Iterator<Item = u64>) -> Self {
        let pipes = capacities.map(|capacity| FluidPipe {
            capacity,
            streams: Vec::new(),
            wanted: 0,
            collected: 0,
            free: 0,
            open: 0,
        });
        Self {
            pipes: pipes.collect(),
            ..Self::default()
        }
    }

    /// A stream begins.
    pub(crate) fn start(&mut self, now: Time, demand: &StreamDemand) -> StreamIndex {
        let slot = self.free.pop().unwrap_or(self.streams.len() as StreamIndex);
        let mut stream = FluidStream {
            left: u128::from(demand.bytes) * WORK_UNIT,
            rate: 0,
            since: now,
            own: demand.cap,
            cap: demand.cap,
            class: demand.class.min(CLASSES - 1),
            uses: [PipeUse { pipe: 0, at: 0 }; MAX_PIPES],
            used: 0,
            collected: 0,
            live: true,
            open: false,
        };
        for pipe in demand.over.iter().take(MAX_PIPES) {
            let shared = &mut self.pipes[*pipe as usize];
            stream.uses[usize::from(stream.used)] = PipeUse {
                pipe: *pipe,
                at: shared.streams.len() as u32,
            };
            stream.used += 1;
            stream.cap = stream.cap.min(shared.capacity);
            shared.streams.push(slot);
        }
        for used in stream.uses() {
            self.pipes[used.pipe as usize].wanted += u128::from(stream.cap);
        }
        self.earliest.set(slot, stream.ends());
        match self.streams.get_mut(slot as usize) {
            Some(place) => *place = stream,
            None => self.streams.push(stream),
        }
        self.sudden |= self.streams[slot as usize].cap == UNLIMITED;
        self.changed_streams.push(slot);
        slot
    }

    /// A stream ends, complete or not. Bytes that it had not carried.
    pub(crate) fn stop(&mut self, now: Time, slot: StreamIndex) {
        let stream = &mut self.streams[slot as usize];
        stream.pass(now);
        stream.live = false;
        let (uses, used, cap) = (stream.uses, usize::from(stream.used), stream.cap);
        for used in &uses[..used] {
            let pipe = &mut self.pipes[used.pipe as usize];
            if pipe.binds() {
                self.changed_pipes.push(used.pipe);
            }
            pipe.wanted -= u128::from(cap);
            pipe.streams.swap_remove(used.at as usize);
            if let Some(moved) = pipe.streams.get(used.at as usize) {
                let moved = &mut self.streams[*moved as usize];
                let of_moved = moved.uses.iter_mut().take(usize::from(moved.used));
                for other in of_moved.filter(|u| u.pipe == used.pipe) {
                    other.at = used.at;
                }
            }
        }
        self.earliest.set(slot, Time::MAX);
        self.free.push(slot);
    }

    /// A pipe becomes wider or narrower.
    pub(crate) fn set_capacity(&mut self, pipe: PipeId, capacity: u64) {
        let changed = &mut self.pipes[pipe as usize];
        if changed.capacity == capacity {
            return;
        }
        if changed.binds() {
            self.changed_pipes.push(pipe);
        }
        changed.capacity = capacity;
        for at in 0..self.pipes[pipe as usize].streams.len() {
            let slot = self.pipes[pipe as usize].streams[at];
            self.changed_streams.push(slot);
            let stream = &mut self.streams[slot as usize];
            let old = stream.cap;
            let pipes = stream.uses[..usize::from(stream.used)].iter();
            let capacities = pipes.map(|u| self.pipes[u.pipe as usize].capacity);
            stream.cap = capacities.fold(stream.own, u64::min);
            self.sudden |= stream.cap == UNLIMITED;
            for used in &stream.uses[..usize::from(stream.used)] {
                let pipe = &mut self.pipes[used.pipe as usize];
                if pipe.binds() {
                    self.changed_pipes.push(used.pipe);
                }
                pipe.wanted = pipe.wanted - u128::from(old) + u128::from(stream.cap);
            }
        }
    }

    /// A stream that ends now. No rates are given for that: of many that begin and end at one moment, all are shared out at once.
    pub(crate) fn ended(&mut self, now: Time) -> Option<StreamIndex> {
        if self.sudden {
            self.settle(now);
        }
        let (time, slot) = self.earliest.first()?;
        (time <= now).then_some(slot)
    }

    /// The stream that ends next and when, if nothing else happens.
    pub(crate) fn next(&mut self, now: Time) -> Option<(Time, StreamIndex)> {
        self.settle(now);
        self.earliest.first()
    }

    /// Streams in motion.
    pub(crate) fn live(&self) -> usize {
        self.streams.len() - self.free.len()
    }

    /// Counts the users of each pipe, their demands and rates, and compares.
    ///
    /// # Panics
    /// When they differ, or a pipe carries more than it can.
    pub(crate) fn check(&self) {
        let live = self.streams.iter().filter(|s| s.live).count();
        assert_eq!(self.live(), live, "streams in motion");
        let is_settled = self.changed_streams.is_empty() && self.changed_pipes.is_empty();
        for (number, pipe) in (0..).zip(&self.pipes) {
            let (mut wanted, mut carried) = (0, 0);
            for (at, slot) in (0..).zip(&pipe.streams) {
                let stream = &self.streams[*slot as usize];
                let mut uses = stream.uses().iter();
                let is_used = uses.any(|u| u.pipe == number && u.at == at);
                assert!(stream.live && is_used, "stream {slot} of pipe {number}");
                wanted += u128::from(stream.cap);
                carried += u128::from(stream.rate);
            }
            assert_eq!(pipe.wanted, wanted, "what streams of pipe {number} want");
            assert_eq!(pipe.open, 0, "streams of pipe {number} without a rate");
            // A stream has the smallest rate at least.
            let most = u128::from(pipe.capacity) + pipe.streams.len() as u128;
            let fits = pipe.capacity == UNLIMITED || !is_settled || carried <= most;
            assert!(fits, "pipe {number} carries {carried} of {}", pipe.capacity);
        }
    }

    /// Gives new rates to the streams that a change reaches.
    fn settle(&mut self, now: Time) {
        self.sudden = false;
        if self.changed_streams.is_empty() && self.changed_pipes.is_empty() {
            return;
        }
        self.collect();
        let group = std::mem::take(&mut self.group);
        let pipes = std::mem::take(&mut self.group_pipes);
        for pipe in &pipes {
            let pipe = &mut self.pipes[*pipe as usize];
            pipe.free = pipe.capacity;
        }
        for class in (0..CLASSES).rev() {
            self.share(now, class, &group, &pipes);
        }
        self.group = group;
        self.group_pipes = pipes;
    }

    /// Streams that a change reaches over binding pipes, and those pipes.
    fn collect(&mut self) {
        self.round += 1;
        self.group.clear();
        self.group_pipes.clear();
        for slot in std::mem::take(&mut self.changed_streams) {
            self.take_in(slot);
        }
        for pipe in std::mem::take(&mut self.changed_pipes) {
            for at in 0..self.pipes[pipe as usize].streams.len() {
                self.take_in(self.pipes[pipe as usize].streams[at]);
            }
        }
        let mut next = 0;
        while let Some(slot) = self.group.get(next) {
            next += 1;
            let stream = &self.streams[*slot as usize];
            let (uses, used) = (stream.uses, usize::from(stream.used));
            for used in &uses[..used] {
                let pipe = &mut self.pipes[used.pipe as usize];
                if !pipe.binds() || pipe.collected == self.round {
                    continue;
                }
                pipe.collected = self.round;
                self.group_pipes.push(used.pipe);
                for at in 0..self.pipes[used.pipe as usize].streams.len() {
                    self.take_in(self.pipes[used.pipe as usize].streams[at]);
                }
            }
        }
    }

    fn take_in(&mut self, slot: StreamIndex) {
        let stream = &mut self.streams[slot as usize];
        if stream.live && stream.collected != self.round {
            stream.collected = self.round;
            self.group.push(slot);
        }
    }

    /// Progressive filling of one class with the rest that the more urgent ones leave: the pipe that gives its streams least is
    /// filled first, after those whose own limit is less than that.
    fn share(&mut self, now: Time, class: u8, group: &[StreamIndex], pipes: &[PipeId]) {
        let of_class = |s: &&StreamIndex| self.streams[**s as usize].class == class;
        let open = group.iter().filter(of_class);
        let mut by_cap: Vec<(u64, StreamIndex)> =
            open.map(|s| (self.streams[*s as usize].cap, *s)).collect();
        if by_cap.is_empty() {
            return;
        }
        by_cap.sort_unstable();
        for (_, slot) in &by_cap {
            let stream = &mut self.streams[*slot as usize];
            stream.open = true;
            for used in &stream.uses[..usize::from(stream.used)] {
                self.pipes[used.pipe as usize].open += 1;
            }
        }
        // A stream never gets more than the least share, so shares only grow: an old one is a lower bound.
        let shares = pipes
            .iter()
            .filter_map(|p| Some(Reverse((self.share_of(*p)?, *p))));
        let mut shares: BinaryHeap<_> = shares.collect();
        let mut next = 0;
        while let Some((cap, slot)) = by_cap.get(next).copied() {
            if !self.streams[slot as usize].open {
                next += 1;
                continue;
            }
            let least = shares.peek().map(|Reverse(least)| *least);
            let Some((share, fullest)) = least else {
                self.give(now, slot, cap);
                continue;
            };
            match self.share_of(fullest) {
                Some(fresh) if fresh == share => {}
                fresh => {
                    shares.pop();
                    shares.extend(fresh.map(|fresh| Reverse((fresh, fullest))));
                    continue;
                }
            }
            if cap <= share {
                self.give(now, slot, cap);
                continue;
            }
            shares.pop();
            for at in 0..self.pipes[fullest as usize].streams.len() {
                let limited = self.pipes[fullest as usize].streams[at];
                if self.streams[limited as usize].open {
                    self.give(now, limited, share);
                }
            }
        }
    }

    /// The rate that each waiting stream would get of a pipe: at least the smallest rate as long as anything is left, so that
    /// rounding stops no stream. `None` if none waits.
    fn share_of(&self, pipe: PipeId) -> Option<u64> {
        let pipe = &self.pipes[pipe as usize];
        let share = pipe.free.checked_div(u64::from(pipe.open))?;
        Some(share.max(u64::from(pipe.free > 0)))
    }

    /// A stream gets its rate.
    fn give(&mut self, now: Time, slot: StreamIndex, rate: u64) {
        let stream = &mut self.streams[slot as usize];
        stream.open = false;
        for used in &stream.uses[..usize::from(stream.used)] {
            let pipe = &mut self.pipes[used.pipe as usize];
            pipe.free = pipe.free.saturating_sub(rate);
            pipe.open -= 1;
        }
        if stream.rate != rate {
            stream.pass(now);
            stream.rate = rate;
            self.earliest.set(slot, stream.ends());
        }
    }
}

#[cfg(test)]
mod tests;
