//! Ranges of addresses, which a handler of a signal looks at while others change them.

use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// An atomic word; another one under test, where all orders of its operations are tried.
pub(crate) trait AtomicWord {
    fn load(&self) -> usize;
    /// As it was lately.
    fn peek(&self) -> usize;
    fn store(&self, value: usize);
    /// Replaces what is expected; whether it was that.
    fn replace(&self, expected: usize, value: usize) -> bool;
    /// Makes it no less than that.
    fn raise(&self, value: usize);
}

impl AtomicWord for AtomicUsize {
    #[inline]
    fn load(&self) -> usize {
        self.load(SeqCst)
    }

    #[inline]
    fn peek(&self) -> usize {
        self.load(Relaxed)
    }

    #[inline]
    fn store(&self, value: usize) {
        self.store(value, SeqCst);
    }

    #[inline]
    fn replace(&self, expected: usize, value: usize) -> bool {
        self.compare_exchange(expected, value, SeqCst, SeqCst)
            .is_ok()
    }

    #[inline]
    fn raise(&self, value: usize) {
        self.fetch_max(value, SeqCst);
    }
}

/// A place for a range. It is given back before the range is unmapped: a thread that touches the range has it mapped, and so the
/// place is the range's for as long as a handler deals with that.
#[derive(Debug)]
pub(super) struct GuardedRangeSlot<W> {
    /// Four for each range that it had: 4 n is free, 4 n + 1 is being filled, 4 n + 2 has a range. It never comes back, so what is read
    /// between two equal ones is one range's.
    turn: W,
    start: W,
    end: W,
    broken: W,
}

/// The ranges.
pub(super) struct GuardedRangeTable<'t, W> {
    pub(super) slots: &'t [GuardedRangeSlot<W>],
    /// Slots from here on were never taken.
    pub(super) used: &'t W,
}

impl GuardedRangeSlot<AtomicUsize> {
    /// One without a range.
    pub(super) const fn free() -> Self {
        Self {
            turn: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            broken: AtomicUsize::new(0),
        }
    }
}

impl<W: AtomicWord> GuardedRangeSlot<W> {
    fn take(&self, range: &Range<usize>) -> bool {
        let turn = self.turn.load();
        let taken = turn.is_multiple_of(4) && self.turn.replace(turn, turn.wrapping_add(1));
        if taken {
            self.broken.store(0);
            self.start.store(range.start);
            self.end.store(range.end);
            self.turn.store(turn.wrapping_add(2));
        }
        taken
    }

    /// It has no range any more. Only the thread that has taken it calls this, once.
    pub(super) fn give_back(&self) {
        self.turn.store(self.turn.load().wrapping_add(2));
    }

    fn has(&self, address: usize) -> bool {
        let turn = self.turn.load();
        let range = self.start.load()..self.end.load();
        turn % 4 == 2 && range.contains(&address) && self.turn.load() == turn
    }

    /// Some of its range was not there.
    pub(super) fn mark(&self) {
        self.broken.store(1);
    }

    /// Whether that was so.
    #[inline]
    pub(super) fn is_marked(&self) -> bool {
        self.broken.peek() != 0
    }
}

impl<'t, W: AtomicWord> GuardedRangeTable<'t, W> {
    /// A slot that has this range from now on; none where all are taken.
    pub(super) fn take(&self, range: Range<usize>) -> Option<&'t GuardedRangeSlot<W>> {
        let mut slots = self.slots.iter().enumerate();
        let (number, slot) = slots.find(|(_, slot)| slot.take(&range))?;
        self.used.raise(number + 1);
        Some(slot)
    }

    /// The slot whose range has an address.
    pub(super) fn find(&self, address: usize) -> Option<&'t GuardedRangeSlot<W>> {
        let mut slots = self.slots.iter().take(self.used.load());
        slots.find(|slot| slot.has(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::atomic::AtomicUsize as ModelWord;

    impl AtomicWord for ModelWord {
        fn load(&self) -> usize {
            self.load(SeqCst)
        }

        fn peek(&self) -> usize {
            self.load(Relaxed)
        }

        fn store(&self, value: usize) {
            self.store(value, SeqCst);
        }

        fn replace(&self, expected: usize, value: usize) -> bool {
            self.compare_exchange(expected, value, SeqCst, SeqCst)
                .is_ok()
        }

        fn raise(&self, value: usize) {
            self.fetch_max(value, SeqCst);
        }
    }

    fn table<W>(slots: usize, word: impl Fn() -> W) -> GuardedRangeTable<'static, W> {
        let slot = |_| GuardedRangeSlot {
            turn: word(),
            start: word(),
            end: word(),
            broken: word(),
        };
        GuardedRangeTable {
            slots: Box::leak((0..slots).map(slot).collect()),
            used: Box::leak(Box::new(word())),
        }
    }

    /// All orders in which a thread may find its own range while another one takes and gives back ranges on both sides of it.
    #[test]
    fn who_faults_finds_its_own_range_whatever_others_do() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(5);
        model.check(|| {
            let table = std::sync::Arc::new(table(2, || ModelWord::new(0)));
            let theirs = std::sync::Arc::clone(&table);
            let other = loom::thread::spawn(move || {
                for range in [0..10, 20..30, 0..10] {
                    let slot = theirs.take(range).expect("a slot is free");
                    assert!(!slot.is_marked(), "it was another's");
                    slot.give_back();
                }
            });
            let own = table.take(12..18).expect("a slot is free");
            let found = table.find(15).expect("it is there");
            assert!(std::ptr::eq(found, own), "another's was found");
            found.mark();
            assert!(own.is_marked());
            own.give_back();
            other.join().unwrap();
            assert!(table.find(15).is_none() && table.find(5).is_none());
        });
    }

    /// The same by threads of the machine, and of Miri.
    #[test]
    fn threads_find_their_own_ranges_whatever_others_do() {
        let table = table(4, || AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let table = &table;
                scope.spawn(move || {
                    for turn in 0..50 {
                        let start = 1000 * thread + 10 * turn;
                        let own = table.take(start..start + 10).expect("a slot is free");
                        let found = table.find(start + 5).expect("it is there");
                        assert!(std::ptr::eq(found, own) && !own.is_marked());
                        found.mark();
                        assert!(own.is_marked() && table.find(start + 10).is_none());
                        own.give_back();
                    }
                });
            }
        });
    }

    #[test]
    fn slots_are_used_again_and_there_are_no_more() {
        loom::model(|| {
            let table = table(2, || ModelWord::new(0));
            let one = table.take(0..10).expect("free");
            let two = table.take(10..20).expect("free");
            assert!(table.take(20..30).is_none());
            one.mark();
            one.give_back();
            assert!(table.find(5).is_none());
            let again = table.take(20..30).expect("free");
            assert!(std::ptr::eq(one, again) && !again.is_marked() && !two.is_marked());
        });
    }
}
