//! The content after a loss of power, and after the holder of locks was killed: all writes completed as persistent; of the rest,
//! the earlier or the later content; and all that others had in the same units.

use super::emulated::{Dice, EmulatedEngine, Log};
use crate::units::unit_io::{BUFFER, DEPTH, UnitChange, UnitIo, UnitOperation};
use crate::units::{Units, Using, pool, reopened};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::cell::Cell;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tarn_ring::{MemorySpan, ProgramMemory, Ticket};

/// The largest, which has the fewest slots: 32.
const UNIT: usize = 16384;
const WORDS: usize = UNIT / 8;
/// Those that are used, two of each slot, and the one behind each.
const UNITS: [usize; 4] = [0, 1, 32, 33];
const FROM: usize = 2 << 20;
const SIZE: usize = 40 * UNIT;
const USING: Using = Using {
    from: FROM as u64,
    unit: UNIT as u32,
    identity: 5,
    writable: true,
    guarded: false,
};

/// Something that was posted.
#[derive(Debug, Clone, Copy)]
struct Op {
    words: (usize, usize),
    value: u64,
    /// It writes its units as they are.
    whole: bool,
    persistent: bool,
    posted: usize,
    ended: Option<usize>,
}

#[derive(Debug)]
struct Flushed {
    posted: usize,
    ended: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
enum Posted {
    Op(usize),
    Flush(usize),
}

/// A program.
#[derive(Debug)]
struct Program {
    unit_io: UnitIo,
    /// By their tickets.
    posted: Vec<Option<Posted>>,
}

struct World {
    file: OwnedFd,
    units: Arc<Units>,
    log: Arc<Mutex<Log>>,
    dice: Dice,
    ops: Vec<Op>,
    flushes: Vec<Flushed>,
}

fn file() -> OwnedFd {
    let file = memfd_create("units", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, (FROM + SIZE) as u64).unwrap();
    file
}

fn begin(file: &OwnedFd) -> Arc<Units> {
    let own = reopened(file, true).unwrap();
    Arc::new(Units::new(own, Path::new("units"), USING, SIZE as u64).unwrap())
}

impl World {
    fn new(seed: u64) -> Self {
        let file = file();
        Self {
            units: begin(&file),
            file,
            log: Arc::default(),
            dice: Dice(seed),
            ops: Vec::new(),
            flushes: Vec::new(),
        }
    }

    fn program(&mut self) -> Program {
        let file = Arc::new(reopened(&self.units.file, true).unwrap());
        let dice = Dice(self.dice.below(u64::MAX));
        let medium = EmulatedEngine::new(Arc::clone(&file), Arc::clone(&self.log), dice);
        let pool = pool(DEPTH * BUFFER).unwrap();
        let units = Arc::clone(&self.units);
        Program {
            unit_io: UnitIo::new(units, file, Box::new(medium), pool),
            posted: Vec::new(),
        }
    }

    /// Bytes that are the program's until the request has ended: they are never given back.
    fn bytes(words: &[u64]) -> MemorySpan {
        let cells: Box<[Cell<u8>]> = words
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .map(Cell::new)
            .collect();
        let cells: &'static [Cell<u8>] = Box::leak(cells);
        let memory = ProgramMemory::of(cells);
        let at = cells.as_ptr().addr() as u64;
        memory.span(at, cells.len() as u64).unwrap()
    }

    /// The value of a word; none where a dead program may have changed it.
    fn value(&self, word: usize) -> Option<u64> {
        let of = |op: &&Op| (op.words.0..op.words.1).contains(&word);
        match self.ops.iter().rev().find(of) {
            Some(op) => op.ended.map(|_| op.value),
            None => Some(0),
        }
    }

    /// Posts something that overlaps nothing under way.
    fn post(&mut self, programs: &mut [Program]) {
        let unit = UNITS[self.dice.below(4) as usize];
        let start = unit * WORDS + self.dice.below(WORDS as u64) as usize;
        let kind = self.dice.below(4);
        let words = match kind {
            // Whole units; a change of a part; a part of one unit and a part of the next; an atomic operation.
            0 => (unit * WORDS, (unit + 1) * WORDS),
            1 => (
                start,
                (start + 1 + self.dice.below(40) as usize).min((unit + 1) * WORDS),
            ),
            2 => (
                (unit & !1) * WORDS + WORDS - 5,
                (unit & !1) * WORDS + WORDS + 7,
            ),
            _ => (start, start + 1),
        };
        let busy = programs
            .iter()
            .flat_map(|program| program.posted.iter().flatten());
        let busy = busy.filter_map(|posted| match posted {
            Posted::Op(op) => Some(self.ops[*op].words),
            Posted::Flush(_) => None,
        });
        let which = self.dice.below(programs.len() as u64) as usize;
        if busy
            .into_iter()
            .any(|busy| busy.0 < words.1 && words.0 < busy.1)
        {
            return;
        }
        let tag = 1 + self.ops.len() as u64;
        let (value, work) = match kind {
            3 => {
                let Some(before) = self.value(words.0) else {
                    return;
                };
                (
                    before + (tag << 32),
                    UnitOperation::Word(UnitChange::Add(tag << 32)),
                )
            }
            _ => (
                tag,
                UnitOperation::Write(Self::bytes(&vec![tag; words.1 - words.0])),
            ),
        };
        let persistent = kind != 3 && self.dice.one_in(2);
        let op = Op {
            words,
            value,
            whole: kind == 0,
            persistent,
            posted: self.log.lock().unwrap().tick(),
            ended: None,
        };
        self.ops.push(op);
        let ticket = programs[which].ticket(Posted::Op(self.ops.len() - 1));
        let at = words.0 as u64 * 8;
        programs[which].unit_io.post(ticket, at, work, persistent);
    }

    fn flush(&mut self, program: &mut Program) {
        let posted = self.log.lock().unwrap().tick();
        self.flushes.push(Flushed {
            posted,
            ended: None,
        });
        let ticket = program.ticket(Posted::Flush(self.flushes.len() - 1));
        program.unit_io.flush(ticket);
    }

    fn go_on(&mut self, program: &mut Program) {
        program.unit_io.go_on();
        for (ticket, result) in program.unit_io.ends() {
            assert!(result.is_ok(), "{result:?}");
            let now = Some(self.log.lock().unwrap().tick());
            match program.posted[ticket as usize].take() {
                Some(Posted::Op(op)) => self.ops[op].ended = now,
                Some(Posted::Flush(flush)) => self.flushes[flush].ended = now,
                None => panic!("a request has ended twice"),
            }
        }
    }

    fn is_safe(&self, op: &Op, moment: usize) -> bool {
        let Some(ended) = op.ended.filter(|ended| *ended <= moment) else {
            return false;
        };
        let covers = |flush: &Flushed| {
            ended < flush.posted && flush.ended.is_some_and(|ended| ended <= moment)
        };
        op.persistent || self.flushes.iter().any(covers)
    }

    /// Checks each word that a loss of power at a moment may leave.
    fn check(&self, data: &[u8], moment: usize, torn: bool) {
        for unit in UNITS {
            for word in unit * WORDS..(unit + 1) * WORDS {
                let of = |op: &&Op| (op.words.0..op.words.1).contains(&word) && op.posted <= moment;
                let history: Vec<&Op> = self.ops.iter().filter(of).collect();
                let safe = history.iter().rposition(|op| self.is_safe(op, moment));
                let since = &history[safe.map_or(0, |safe| safe + 1)..];
                // Nobody else has anything in a whole unit.
                if torn && since.iter().any(|op| op.whole) {
                    continue;
                }
                let before = safe.map_or(0, |safe| history[safe].value);
                let found = u64::from_ne_bytes(data[word * 8..][..8].try_into().unwrap());
                assert!(
                    found == before || since.iter().any(|op| op.value == found),
                    "at {moment}, word {} of unit {unit} is {found:x}, which was {before:x} before {since:?}",
                    word % WORDS,
                );
            }
        }
    }

    /// Loses power at a moment, and opens what is left.
    fn lose(&mut self, moment: usize) {
        let first = vec![0; FROM + SIZE];
        let mut image = {
            let log = self.log.lock().unwrap();
            log.image(&first, UNIT, moment, &mut self.dice)
        };
        // The page of marks is random: the system may have written any part of it.
        let marks = 32 << 10;
        image[marks..marks + 4096].fill_with(|| self.dice.below(2) as u8);
        let file = file();
        let length = rustix::io::pwrite(&file, &image, 0).unwrap();
        assert_eq!(length, image.len());
        let units = begin(&file);
        let mut data = vec![0; SIZE];
        let read = |data: &mut [u8]| rustix::io::pread(&file, data, FROM as u64).unwrap();
        assert_eq!(read(&mut data), SIZE);
        self.check(&data, moment, true);
        // Once more, as if power was lost again at the end of that.
        drop(units);
        let _units = begin(&file);
        let mut again = vec![0; SIZE];
        assert_eq!(read(&mut again), SIZE);
        assert!(again == data);
    }
}

impl Program {
    fn ticket(&mut self, posted: Posted) -> Ticket {
        let free = self.posted.iter().position(Option::is_none);
        let ticket = free.unwrap_or(self.posted.len());
        if ticket == self.posted.len() {
            self.posted.push(None);
        }
        self.posted[ticket] = Some(posted);
        ticket as Ticket
    }

    fn is_idle(&self) -> bool {
        self.posted.iter().all(Option::is_none)
    }
}

/// Two programs, one of which may be killed and begun again, act as the dice decide.
fn emulated_world(seed: u64) -> World {
    let mut world = World::new(seed);
    let mut programs = vec![world.program(), world.program()];
    for _ in 0..60 {
        let which = world.dice.below(2) as usize;
        match world.dice.below(16) {
            0..7 => world.post(&mut programs),
            7 => world.flush(&mut programs[which]),
            8 => programs[which] = world.program(),
            _ => world.go_on(&mut programs[which]),
        }
    }
    for _ in 0..100_000 {
        if programs.iter().all(Program::is_idle) {
            return world;
        }
        programs.iter_mut().for_each(|program| world.go_on(program));
    }
    panic!("some requests do not end");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(24))]
    #[test]
    fn a_loss_of_power_brings_nothing_back_and_takes_nothing_of_neighbours(seed in 0..u64::MAX) {
        let mut world = emulated_world(seed);
        let end = world.log.lock().unwrap().now;
        for _ in 0..12 {
            let moment = world.dice.below(end as u64 + 1) as usize;
            world.lose(moment);
        }
        world.lose(end);
    }

    #[test]
    fn what_others_have_is_as_they_left_it_when_a_program_was_killed(seed in 0..u64::MAX) {
        let mut world = emulated_world(seed);
        // One more change of each unit, so that the remains of a dead one are dealt with.
        let mut last = world.program();
        for (ticket, unit) in (0..).zip(UNITS) {
            last.posted.push(None);
            last.unit_io.post(ticket, (unit * UNIT) as u64, UnitOperation::Word(UnitChange::Add(0)), false);
        }
        for _ in 0..1000 {
            last.unit_io.go_on();
        }
        proptest::prop_assert_eq!(last.unit_io.ends().len(), UNITS.len());
        let mut data = vec![0; SIZE];
        rustix::io::pread(&world.file, &mut data, FROM as u64).unwrap();
        // All completed writes are there, flushed or not: there was no loss of power.
        world.ops.iter_mut().for_each(|op| op.persistent = true);
        world.check(&data, usize::MAX, false);
    }

    #[test]
    fn whole_units_and_parts_of_them_written_at_the_same_time_are_both_there(seed in 0..u64::MAX) {
        let mut world = World::new(seed);
        let mut programs = [world.program(), world.program()];
        let part = 5..9;
        for round in 1..20 {
            let whole = World::bytes(&vec![round; WORDS]);
            programs[0].unit_io.post(0, 0, UnitOperation::Write(whole), false);
            let change = World::bytes(&vec![round + 100; part.len()]);
            programs[1].unit_io.post(0, part.start as u64 * 8, UnitOperation::Write(change), false);
            let mut ended = 0;
            while ended < 2 {
                let which = world.dice.below(2) as usize;
                programs[which].unit_io.go_on();
                ended += programs[which].unit_io.ends().len();
            }
            let mut data = vec![0; UNIT];
            rustix::io::pread(&world.file, &mut data, FROM as u64).unwrap();
            for (number, word) in data.chunks_exact(8).enumerate() {
                let word = u64::from_ne_bytes(word.try_into().unwrap());
                let is_in_both = part.contains(&number) && word == round + 100;
                proptest::prop_assert!(word == round || is_in_both, "{number}: {word} of {round}");
            }
        }
    }
}
