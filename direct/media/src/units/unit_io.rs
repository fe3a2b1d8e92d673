//! Requests, cut into pieces, each of which is a few calls one after the other. docs/guide/direct-access.md, "In units".

use super::Units;
use super::engine::{UnitIoCall, UnitIoCompletion, UnitIoEngine};
use super::locks::Locks;
use crate::map::Pages;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use tarn_ring::{MemorySpan, StorageRequestError, Ticket};

/// Pieces under way, at most.
pub(super) const DEPTH: usize = 64;
/// Bytes of a piece's buffer: two of the largest units.
pub(super) const BUFFER: usize = 32 << 10;
/// Bytes that go straight in one call, at most.
pub(super) const STRAIGHT: usize = 1 << 20;
/// How long a lock is requested again and again.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long what holds locks may wait, if the program does not look.
const HELD: Duration = Duration::from_millis(2);
/// The same where somebody waits for one.
const WAITED: Duration = Duration::from_micros(250);
/// The number of the call that syncs.
const SYNC: u32 = DEPTH as u32;

/// The change of a part of a unit.
#[derive(Debug, Clone, Copy)]
pub(super) enum UnitChange {
    Bytes(MemorySpan),
    Add(u64),
    Swap { expected: u64, new: u64 },
}

impl UnitChange {
    /// Bytes that it changes.
    fn length(self) -> usize {
        match self {
            Self::Bytes(from) => from.len(),
            _ => size_of::<u64>(),
        }
    }

    /// Changes the bytes. The value for the request's completion; an error with the found value if they are not as expected.
    fn apply(self, bytes: &mut [u8]) -> Result<u64, u64> {
        let found = |bytes: &[u8]| {
            let word = bytes.first_chunk();
            word.map_or(0, |word| u64::from_ne_bytes(*word))
        };
        let new = match self {
            Self::Bytes(from) => {
                from.copy_to(bytes);
                return Ok(from.len() as u64);
            }
            Self::Add(add) => found(bytes).wrapping_add(add),
            Self::Swap { expected, new } => match found(bytes) {
                found if found == expected => new,
                found => return Err(found),
            },
        };
        let before = found(bytes);
        bytes.copy_from_slice(&new.to_ne_bytes());
        Ok(before)
    }
}

/// The operation of a request, from a byte on.
#[derive(Debug, Clone, Copy)]
pub(super) enum UnitOperation {
    Read(MemorySpan),
    Write(MemorySpan),
    Word(UnitChange),
}

/// A request that has not ended.
#[derive(Debug)]
struct UnitRequest {
    /// The part that was not cut into pieces yet, and its offset.
    rest: Option<(u64, UnitOperation)>,
    /// Pieces under way.
    left: u32,
    result: Result<u64, StorageRequestError>,
    persistent: bool,
    /// Some of it was written without being synced.
    unsynced: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum PieceOperation {
    /// From there; by the buffer, from so many bytes of it on.
    Read {
        at: u64,
        to: MemorySpan,
        bounced: Option<usize>,
    },
    /// Whole units, from one to before another.
    Write {
        first: u64,
        end: u64,
        from: MemorySpan,
        bounced: bool,
    },
    /// A part of a unit.
    Change {
        unit: u64,
        within: usize,
        change: UnitChange,
    },
}

/// The event that a piece waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PieceStage {
    /// Its lock.
    Lock,
    Reading,
    /// Whole units; their locks are shared.
    Writing,
    /// From here on it has one slot alone. The unit is read.
    Looking,
    /// It is written to its slot,
    Shadowing,
    /// and in place,
    Placing,
    /// and the slot is cleared.
    Clearing,
    /// The slot of a dead one is read,
    Finding,
    /// its shadow written in place,
    Mending,
    /// and the slot is cleared.
    Mended,
}

#[derive(Debug, Clone, Copy)]
struct UnitPiece {
    ticket: Ticket,
    job: PieceOperation,
    stage: PieceStage,
    /// The call under way.
    io: UnitIoCall,
    since: Instant,
    /// The slot that it would have alone, and has not.
    wants: Option<u64>,
    /// Of a write of whole units: a slot that has a mark.
    suspect: Option<u64>,
    value: u64,
}

/// All that one open file has under way.
#[derive(Debug)]
pub(super) struct UnitIo {
    /// Before the memory that its calls name.
    engine: Box<dyn UnitIoEngine>,
    pool: Pages,
    units: Arc<Units>,
    file: Arc<OwnedFd>,
    locks: Locks,
    /// By their tickets.
    requests: Vec<Option<UnitRequest>>,
    uncut: VecDeque<Ticket>,
    pieces: [Option<UnitPiece>; DEPTH],
    free: Vec<u32>,
    /// Pieces without their locks.
    waiting: VecDeque<u32>,
    to_sync: Vec<Ticket>,
    syncing: Vec<Ticket>,
    calls: u32,
    ended: Vec<(Ticket, Result<u64, StorageRequestError>)>,
    event: Option<OwnedFd>,
    /// Nothing new is begun.
    pub(super) closing: bool,
    /// Its thread sleeps until it is notified.
    pub(super) unwatched: bool,
}

// SAFETY: the memory that its pointers name belongs to requests, not to a thread: any owner of the unit I/O may use it.
unsafe impl Send for UnitIo {}

impl UnitIo {
    pub(super) fn new(
        units: Arc<Units>,
        file: Arc<OwnedFd>,
        engine: Box<dyn UnitIoEngine>,
        pool: Pages,
    ) -> Self {
        Self {
            engine,
            pool,
            locks: Locks::new(units.layout),
            units,
            file,
            requests: Vec::new(),
            uncut: VecDeque::new(),
            pieces: [None; DEPTH],
            free: (0..DEPTH as u32).rev().collect(),
            waiting: VecDeque::new(),
            to_sync: Vec::new(),
            syncing: Vec::new(),
            calls: 0,
            ended: Vec::new(),
            event: None,
            closing: false,
            unwatched: false,
        }
    }

    /// Takes a request.
    pub(super) fn post(&mut self, ticket: Ticket, at: u64, work: UnitOperation, persistent: bool) {
        self.insert_request(
            ticket,
            UnitRequest {
                rest: Some((at, work)),
                left: 0,
                result: Ok(0),
                persistent,
                unsynced: false,
            },
        );
        self.uncut.push_back(ticket);
    }

    /// Takes a flush.
    pub(super) fn flush(&mut self, ticket: Ticket) {
        self.insert_request(
            ticket,
            UnitRequest {
                rest: None,
                left: 0,
                result: Ok(0),
                persistent: true,
                unsynced: true,
            },
        );
        self.to_sync.push(ticket);
    }

    fn insert_request(&mut self, ticket: Ticket, request: UnitRequest) {
        let at = ticket as usize;
        if self.requests.len() <= at {
            self.requests.resize_with(at + 1, || None);
        }
        let before = self.requests[at].replace(request);
        assert!(before.is_none(), "ticket {ticket} has a request under way");
    }

    /// The ends that were not reported yet.
    pub(super) fn ends(&mut self) -> Vec<(Ticket, Result<u64, StorageRequestError>)> {
        std::mem::take(&mut self.ended)
    }

    /// An eventfd is notified of ends from now on.
    pub(super) fn notify(&mut self, event: OwnedFd) -> bool {
        let engine_notifies = self.engine.notify(rustix::fd::AsFd::as_fd(&event));
        self.event = Some(event);
        // Earlier ends were not reported.
        self.notify_if(self.calls > 0 || !self.ended.is_empty());
        engine_notifies
    }

    /// Notifies that there are ends.
    pub(super) fn notify_ends(&self) {
        self.notify_if(!self.ended.is_empty());
    }

    fn notify_if(&self, there_are: bool) {
        if let Some(event) = self.event.as_ref().filter(|_| there_are) {
            // It is readable already if it cannot count further.
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }

    /// How soon [`UnitIo::go_on`] is to be called again for others' sake.
    pub(super) fn timeout(&self) -> Option<Duration> {
        match self.waiting.is_empty() {
            false => Some(WAITED),
            true => self.locks.are_held().then_some(HELD),
        }
    }

    /// Does all that can be done without waiting.
    pub(super) fn go_on(&mut self) {
        loop {
            self.lock_waiting();
            self.cut();
            self.sync();
            self.engine.enter();
            let Some(end) = self.engine.ended() else {
                return;
            };
            self.step(end);
            while let Some(end) = self.engine.ended() {
                self.step(end);
            }
        }
    }

    /// Ends, as soon as the system has nothing of it any more.
    pub(super) fn close(&mut self) {
        self.closing = true;
        self.to_sync.clear();
        while self.calls > 0 {
            self.engine.enter();
            self.engine.wait();
            while let Some(end) = self.engine.ended() {
                self.step(end);
            }
        }
    }

    /// Begins a call of a piece, or the one that syncs.
    fn begin(&mut self, number: u32, io: UnitIoCall) {
        self.calls += 1;
        // SAFETY: a piece's memory is a request's, which has not ended, or the piece's buffer; `close` waits for the end.
        unsafe { self.engine.begin(number, io) };
    }

    fn start(&mut self, number: u32, mut piece: UnitPiece, stage: PieceStage, io: UnitIoCall) {
        (piece.stage, piece.io) = (stage, io);
        self.pieces[number as usize] = Some(piece);
        self.begin(number, io);
    }

    fn buffer_start(&self, number: u32) -> *mut u8 {
        // SAFETY: each piece has one.
        unsafe { self.pool.start.as_ptr().add(number as usize * BUFFER) }
    }

    /// The buffer of a piece that has no call under way.
    fn buffer(&mut self, number: u32) -> &mut [u8] {
        // SAFETY: this unit I/O's memory, which no call has now.
        unsafe { std::slice::from_raw_parts_mut(self.buffer_start(number), BUFFER) }
    }

    fn unit(&self) -> usize {
        self.units.layout.unit as usize
    }

    /// The offset of a unit in the file.
    fn place(&self, unit: u64) -> u64 {
        self.units.layout.from + unit * self.units.layout.unit
    }

    /// The offset of a slot.
    fn slot_place(&self, slot: u64) -> u64 {
        self.units.layout.place(slot..slot).start
    }

    /// Cuts pieces off requests, as long as there are free places.
    fn cut(&mut self) {
        while !self.free.is_empty() && !self.closing {
            let Some(ticket) = self.uncut.front().copied() else {
                return;
            };
            let Some(request) = &mut self.requests[ticket as usize] else {
                self.uncut.pop_front();
                continue;
            };
            let Some((at, work)) = request.rest.take() else {
                self.uncut.pop_front();
                continue;
            };
            let Some(number) = self.free.pop() else {
                return;
            };
            let (job, rest) = self.units.piece(at, work);
            request.rest = rest;
            request.left += 1;
            request.unsynced |= matches!(job, PieceOperation::Write { .. });
            let piece = UnitPiece {
                ticket,
                job,
                stage: PieceStage::Lock,
                io: UnitIoCall::Sync,
                since: Instant::now(),
                wants: None,
                suspect: None,
                value: 0,
            };
            match job {
                PieceOperation::Read { at, to, bounced } => {
                    self.read(number, piece, at, to, bounced)
                }
                _ => self.lock(number, piece),
            }
        }
    }

    fn read(
        &mut self,
        number: u32,
        piece: UnitPiece,
        at: u64,
        to: MemorySpan,
        bounced: Option<usize>,
    ) {
        let grain = self.units.grain.bytes;
        let from = self.units.layout.from + at;
        let io = match bounced {
            None => UnitIoCall::Read {
                at: from,
                to: to.start(),
                length: to.len(),
            },
            Some(skip) => UnitIoCall::Read {
                at: from - skip as u64,
                to: self.buffer_start(number),
                length: (skip + to.len()).next_multiple_of(grain),
            },
        };
        self.start(number, piece, PieceStage::Reading, io);
    }

    fn lock_waiting(&mut self) {
        for _ in 0..self.waiting.len() {
            let Some(number) = self.waiting.pop_front() else {
                return;
            };
            let Some(piece) = self.pieces[number as usize] else {
                continue;
            };
            match piece.since.elapsed() < TIMEOUT {
                true => self.lock(number, piece),
                false => self.fail(number, piece, StorageRequestError::Io),
            }
        }
    }

    /// A piece gets its lock and continues, or waits.
    fn lock(&mut self, number: u32, mut piece: UnitPiece) {
        let alone = match piece.job {
            PieceOperation::Change { unit, .. } => Some(self.units.layout.slot(unit)),
            _ => piece.suspect,
        };
        let locked = match (alone, piece.job) {
            (Some(slot), _) => self.locks.take(&self.file, slot),
            (None, PieceOperation::Write { first, end, .. }) => {
                self.locks.share(&self.file, &(first..end))
            }
            (None, _) => Ok(true),
        };
        let wanted = match (locked, alone) {
            (Ok(false), Some(slot)) => Some(slot),
            _ => None,
        };
        if wanted != piece.wants {
            for (slot, is_wanted) in [(piece.wants, false), (wanted, true)] {
                slot.into_iter()
                    .for_each(|slot| self.locks.want(slot, is_wanted));
            }
            piece.wants = wanted;
        }
        match (locked, alone) {
            (Err(_), _) => self.fail(number, piece, StorageRequestError::Io),
            (Ok(false), _) => self.wait(number, piece),
            (Ok(true), Some(slot)) if self.units.marks.is_set(slot) => {
                let io = UnitIoCall::Read {
                    at: self.slot_place(slot),
                    to: self.buffer_start(number),
                    length: 2 * self.unit(),
                };
                self.start(number, piece, PieceStage::Finding, io);
            }
            (Ok(true), Some(slot)) => self.locked(number, piece, slot),
            (Ok(true), None) => self.shared(number, piece),
        }
    }

    fn wait(&mut self, number: u32, mut piece: UnitPiece) {
        piece.stage = PieceStage::Lock;
        self.pieces[number as usize] = Some(piece);
        self.waiting.push_back(number);
    }

    /// A piece has one slot alone, and nobody has left anything in it.
    fn locked(&mut self, number: u32, mut piece: UnitPiece, slot: u64) {
        let PieceOperation::Change { unit, .. } = piece.job else {
            // Now it shares it.
            let _ = self.locks.give_back(&self.file, slot);
            piece.suspect = None;
            return self.wait(number, piece);
        };
        let (length, at) = (self.unit(), self.place(unit));
        let to = self.buffer_start(number).wrapping_add(length);
        self.start(
            number,
            piece,
            PieceStage::Looking,
            UnitIoCall::Read { at, to, length },
        );
    }

    /// A piece shares the slots of its units.
    fn shared(&mut self, number: u32, mut piece: UnitPiece) {
        let PieceOperation::Write {
            first,
            end,
            from,
            bounced,
        } = piece.job
        else {
            return;
        };
        piece.stage = PieceStage::Writing;
        let slots = self.units.layout.slots_of(first..end);
        let mut slots = slots.into_iter().flatten();
        if let Some(slot) = slots.find(|slot| self.units.marks.is_set(*slot)) {
            self.unlock(&piece);
            piece.suspect = Some(slot);
            return self.wait(number, piece);
        }
        if self.units.is_cut() {
            return self.fail(number, piece, StorageRequestError::Corrupt);
        }
        if bounced {
            from.copy_to(self.buffer(number));
        }
        let io = UnitIoCall::Write {
            at: self.place(first),
            from: match bounced {
                true => self.buffer_start(number),
                false => from.start(),
            },
            length: from.len(),
            synced: false,
        };
        self.start(number, piece, PieceStage::Writing, io);
    }

    /// A call has ended.
    fn step(&mut self, (number, result): UnitIoCompletion) {
        assert!(self.calls > 0, "a call has ended that was not begun");
        self.calls -= 1;
        if number == SYNC {
            return self.synced(result);
        }
        let Some(piece) = self.pieces[number as usize] else {
            return;
        };
        let length = piece.io.length();
        match result {
            // Memory was short, or the thread that had begun it is no more.
            Err(Errno::AGAIN | Errno::INTR | Errno::CANCELED)
                if piece.since.elapsed() < TIMEOUT =>
            {
                self.begin(number, piece.io);
            }
            Ok(done) if done >= length => self.done(number, piece),
            Ok(done) if done > 0 => self.start(number, piece, piece.stage, piece.io.after(done)),
            _ => {
                if matches!(piece.io, UnitIoCall::Write { synced: true, .. }) {
                    self.units.failed.store(true, SeqCst);
                }
                let why = match self.units.is_cut() {
                    true => StorageRequestError::Corrupt,
                    false => StorageRequestError::Io,
                };
                self.fail(number, piece, why);
            }
        }
    }

    /// The call that a piece has waited for is done.
    fn done(&mut self, number: u32, mut piece: UnitPiece) {
        let length = self.unit();
        match (piece.stage, piece.job) {
            (PieceStage::Reading, PieceOperation::Read { to, bounced, .. }) => {
                if let Some(skip) = bounced {
                    to.fill(&self.buffer(number)[skip..]);
                }
                self.finish(number, piece, Ok(to.len() as u64));
            }
            (PieceStage::Writing, PieceOperation::Write { from, .. }) => {
                self.unlock(&piece);
                self.finish(number, piece, Ok(from.len() as u64));
            }
            (
                PieceStage::Looking,
                PieceOperation::Change {
                    unit,
                    within,
                    change,
                },
            ) => {
                let range = length + within..length + within + change.length();
                match change.apply(&mut self.buffer(number)[range]) {
                    Ok(value) => piece.value = value,
                    Err(found) => {
                        self.unlock(&piece);
                        return self.finish(number, piece, Ok(found));
                    }
                }
                let layout = self.units.layout;
                let slot = layout.slot(unit);
                layout.frame(unit, &mut self.buffer(number)[..2 * length]);
                self.units.marks.set(slot, true);
                self.write(number, piece, PieceStage::Shadowing, self.slot_place(slot));
            }
            (PieceStage::Shadowing, PieceOperation::Change { unit, .. }) => {
                self.write(number, piece, PieceStage::Placing, self.place(unit));
            }
            (PieceStage::Finding, _) => {
                let slot = self.slot(&piece);
                let layout = self.units.layout;
                match layout.shadow(slot, &self.buffer(number)[..2 * length]) {
                    Some(unit) if self.units.has(unit) => {
                        self.write(number, piece, PieceStage::Mending, self.place(unit));
                    }
                    _ => {
                        self.units.marks.set(slot, false);
                        self.locked(number, piece, slot);
                    }
                }
            }
            (PieceStage::Placing, _) => self.clear(number, piece, PieceStage::Clearing),
            (PieceStage::Mending, _) => self.clear(number, piece, PieceStage::Mended),
            (PieceStage::Clearing, _) => {
                self.units.marks.set(self.slot(&piece), false);
                self.unlock(&piece);
                self.finish(number, piece, Ok(piece.value));
            }
            (PieceStage::Mended, _) => {
                let slot = self.slot(&piece);
                self.units.marks.set(slot, false);
                self.locked(number, piece, slot);
            }
            // No other piece is ever in these stages.
            _ => self.fail(number, piece, StorageRequestError::Io),
        }
    }

    /// The slot that a piece has, or would have, alone.
    fn slot(&self, piece: &UnitPiece) -> u64 {
        match piece.job {
            PieceOperation::Change { unit, .. } => self.units.layout.slot(unit),
            _ => piece.suspect.unwrap_or(0),
        }
    }

    /// Writes a slot as it is in the buffer, or the unit in its second half in place.
    fn write(&mut self, number: u32, piece: UnitPiece, stage: PieceStage, at: u64) {
        let (unit, buffer) = (self.unit(), self.buffer_start(number));
        let (from, length) = match stage {
            PieceStage::Shadowing => (buffer, 2 * unit),
            _ => (buffer.wrapping_add(unit), unit),
        };
        let io = UnitIoCall::Write {
            at,
            from,
            length,
            synced: true,
        };
        self.start(number, piece, stage, io);
    }

    /// Clears the slot.
    fn clear(&mut self, number: u32, piece: UnitPiece, stage: PieceStage) {
        let length = self.unit();
        self.buffer(number)[..length].fill(0);
        let io = UnitIoCall::Write {
            at: self.slot_place(self.slot(&piece)),
            from: self.buffer_start(number),
            length,
            synced: false,
        };
        self.start(number, piece, stage, io);
    }

    /// Gives back what a piece has locked.
    fn unlock(&mut self, piece: &UnitPiece) {
        // If the system refuses, the file is not open any more, nor is anything locked.
        let _ = match (piece.stage, piece.job) {
            (PieceStage::Lock | PieceStage::Reading, _) => Ok(()),
            (PieceStage::Writing, PieceOperation::Write { first, end, .. }) => {
                self.locks.unshare(&self.file, &(first..end))
            }
            _ => self.locks.give_back(&self.file, self.slot(piece)),
        };
    }

    fn fail(&mut self, number: u32, mut piece: UnitPiece, why: StorageRequestError) {
        if let Some(slot) = piece.wants.take() {
            self.locks.want(slot, false);
        }
        self.unlock(&piece);
        self.finish(number, piece, Err(why));
    }

    /// A piece has ended, and with the last one its request.
    fn finish(&mut self, number: u32, piece: UnitPiece, result: Result<u64, StorageRequestError>) {
        self.pieces[number as usize] = None;
        self.free.push(number);
        debug_assert!(
            self.free.len() <= DEPTH,
            "place {number} is given back twice"
        );
        let Some(request) = &mut self.requests[piece.ticket as usize] else {
            return;
        };
        assert!(request.left > 0, "a request has more ends than pieces");
        request.left -= 1;
        request.result = request.result.and_then(|sum| Ok(sum + result?));
        if request.result.is_err() {
            request.rest = None;
        }
        if request.left > 0 || request.rest.is_some() {
            return;
        }
        match request.result {
            Ok(_) if request.persistent && request.unsynced => self.to_sync.push(piece.ticket),
            result => self.end(piece.ticket, result),
        }
    }

    fn end(&mut self, ticket: Ticket, result: Result<u64, StorageRequestError>) {
        self.requests[ticket as usize] = None;
        self.ended.push((ticket, result));
    }

    /// Syncs for all that wait for it, but for those that came after the last one had begun.
    fn sync(&mut self) {
        if self.syncing.is_empty() && !self.to_sync.is_empty() {
            std::mem::swap(&mut self.syncing, &mut self.to_sync);
            self.begin(SYNC, UnitIoCall::Sync);
        }
    }

    fn synced(&mut self, result: Result<usize, Errno>) {
        match result {
            Err(Errno::AGAIN | Errno::INTR | Errno::CANCELED) => {
                return self.begin(SYNC, UnitIoCall::Sync);
            }
            Err(_) => self.units.failed.store(true, SeqCst),
            Ok(_) => {}
        }
        let has_failed = self.units.failed.load(SeqCst);
        for ticket in std::mem::take(&mut self.syncing) {
            let request = self.requests[ticket as usize].as_ref();
            let result = match has_failed {
                true => Err(StorageRequestError::Io),
                false => request.map_or(Ok(0), |request| request.result),
            };
            self.end(ticket, result);
        }
    }
}
