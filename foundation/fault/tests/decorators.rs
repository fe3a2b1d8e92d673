//! Each point is hit once, in order, and the decorated port sees only the calls before it.

use std::cell::Cell;
use tarn_fault::{CrashPoint, FaultJournal, FaultWorld, FullJournal};
use tarn_ports::{Journal, JournalError, Record, World, WorldError};
use tarn_types::action::{Action, Do, Outcome};
use tarn_types::event::Event;
use tarn_types::reason::Reason;
use tarn_types::units::Time;

/// The calls so far of the decorated journal and world.
#[derive(Default)]
struct Seen(Vec<&'static str>);

impl Journal for Seen {
    fn append(&mut self, _: &[Record]) -> Result<(), JournalError> {
        note("append");
        self.0.push("append");
        Ok(())
    }
}

impl World for Seen {
    fn now(&self) -> Time {
        7
    }
    fn perform(&mut self, _: &Action) -> Result<(), WorldError> {
        note("perform");
        Ok(())
    }
    fn next(&mut self, _: Option<Time>) -> Result<(Time, Event), WorldError> {
        note("next");
        Ok((8, Event::Timer))
    }
    fn poll(&mut self) -> Option<(Time, Event)> {
        None
    }
}

thread_local! {
    static STORY: Cell<Vec<&'static str>> = const { Cell::new(Vec::new()) };
}

fn note(what: &'static str) {
    let mut story = STORY.take();
    story.push(what);
    STORY.set(story);
}

/// Stands for a crash: separates later calls from earlier ones.
fn crash() {
    note("CRASH");
}

fn drive(at: Option<u64>) -> (Vec<&'static str>, u64) {
    STORY.set(Vec::new());
    let points = CrashPoint::new(at, crash);
    let mut journal = FaultJournal::new(Seen::default(), points.clone());
    let mut world = FaultWorld::new(Seen::default(), points.clone());
    let action = Action {
        what: Do::Finish {
            outcome: Outcome::Done,
        },
        why: Reason::AllDone,
    };
    assert_eq!(world.next(None).unwrap(), (8, Event::Timer));
    journal.append(&[]).unwrap();
    world.perform(&action).unwrap();
    assert_eq!((world.now(), world.poll()), (7, None));
    (STORY.take(), points.passed())
}

#[test]
fn every_point_is_before_or_after_something() {
    let want = [
        ["CRASH", "next", "append", "perform"],
        ["next", "CRASH", "append", "perform"],
        ["next", "CRASH", "append", "perform"],
        ["next", "append", "CRASH", "perform"],
        ["next", "append", "CRASH", "perform"],
        ["next", "append", "perform", "CRASH"],
    ];
    for (n, story) in want.iter().enumerate() {
        assert_eq!(drive(Some(n as u64 + 1)), (story.to_vec(), 6));
    }
    for never in [None, Some(7)] {
        assert_eq!(drive(never), (vec!["next", "append", "perform"], 6));
    }
}

#[test]
fn the_text_of_a_crash_point_is_strict() {
    for never in ["", "  "] {
        let points = CrashPoint::parse(never, || panic!("never")).unwrap();
        (0..10).for_each(|_| points.pass());
    }
    STORY.set(Vec::new());
    let points = CrashPoint::parse(" 2 ", crash).unwrap();
    (0..3).for_each(|_| points.pass());
    assert_eq!(STORY.take(), ["CRASH"]);
    for bad in ["0", "-1", "x", "1.5", "99999999999999999999"] {
        let error = CrashPoint::parse(bad, crash).unwrap_err();
        assert!(error.to_string().contains(bad));
    }
}

#[test]
fn a_full_disk_stays_full() {
    let mut journal = FullJournal::new(Seen::default(), 2);
    for _ in 0..2 {
        journal.append(&[]).unwrap();
    }
    for _ in 0..2 {
        let error = journal.append(&[]).unwrap_err();
        assert_eq!(error.source.kind(), std::io::ErrorKind::StorageFull);
    }
    assert_eq!(journal.into_inner().0.len(), 2);
}
