//! L3: decorators of ports that crash or fail on purpose, to prove that the layers above them recover.
//!
//! [`CrashPoint`] numbers every moment at which a crash makes a difference: before and after each append to the
//! log, each action, each wait for an event. A test runs the same workflow with 1, 2, 3, ... until it ends without a
//! crash: then every point was tried.

mod points;

pub use points::{CrashPoint, CrashPointError};

use std::io;
use tarn_ports::{Journal, JournalError, Record, World, WorldError};
use tarn_types::action::Action;
use tarn_types::event::Event;
use tarn_types::units::Time;

/// A journal with a crash point before and after each append.
#[derive(Debug)]
pub struct FaultJournal<J> {
    inner: J,
    points: CrashPoint,
}

impl<J> FaultJournal<J> {
    /// Decorates a journal. Clones of `points` count together.
    pub fn new(inner: J, points: CrashPoint) -> Self {
        Self { inner, points }
    }

    /// The journal itself.
    pub fn into_inner(self) -> J {
        self.inner
    }
}

impl<J: Journal> Journal for FaultJournal<J> {
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        self.points.pass();
        let appended = self.inner.append(records);
        self.points.pass();
        appended
    }
}

/// A world with a crash point before and after each action and each wait.
#[derive(Debug)]
pub struct FaultWorld<W> {
    inner: W,
    points: CrashPoint,
}

impl<W> FaultWorld<W> {
    /// Decorates a world. Clones of `points` count together.
    pub fn new(inner: W, points: CrashPoint) -> Self {
        Self { inner, points }
    }

    /// The world itself.
    pub fn into_inner(self) -> W {
        self.inner
    }
}

impl<W: World> World for FaultWorld<W> {
    fn now(&self) -> Time {
        self.inner.now()
    }

    fn perform(&mut self, action: &Action) -> Result<(), WorldError> {
        self.points.pass();
        let performed = self.inner.perform(action);
        self.points.pass();
        performed
    }

    fn next(&mut self, until: Option<Time>) -> Result<(Time, Event), WorldError> {
        self.points.pass();
        let event = self.inner.next(until);
        self.points.pass();
        event
    }

    fn poll(&mut self) -> Option<(Time, Event)> {
        self.inner.poll()
    }
}

/// A journal on a disk that is full from a given append on.
#[derive(Debug)]
pub struct FullJournal<J> {
    inner: J,
    space_for: u64,
}

impl<J> FullJournal<J> {
    /// `space_for` appends succeed, all others fail with ENOSPC.
    pub fn new(inner: J, space_for: u64) -> Self {
        Self { inner, space_for }
    }

    /// The journal itself.
    pub fn into_inner(self) -> J {
        self.inner
    }
}

impl<J: Journal> Journal for FullJournal<J> {
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        match self.space_for.checked_sub(1) {
            Some(left) => {
                self.inner.append(records)?;
                self.space_for = left;
                Ok(())
            }
            None => Err(JournalError {
                path: "(a disk that is full on purpose)".into(),
                source: io::Error::from(io::ErrorKind::StorageFull),
            }),
        }
    }
}
