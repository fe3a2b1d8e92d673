//! The loop that drives the engine: events in, a durable record, then the actions. Written once; local,
//! Slurm and simulated runs are three worlds in it.

use crate::{ENGINE_VERSION, Engine};
use tarn_ports::{Journal, JournalError, Record, World, WorldError};
use tarn_types::action::Outcome;
use tarn_types::event::Event;
use tarn_types::units::Time;

/// Events that go into one durable append at most: bounds the time until their actions begin.
const MAX_BATCH: usize = 64;

/// Why a run could not continue. It can be resumed once the cause is gone.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The log cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The world is broken.
    #[error(transparent)]
    World(#[from] WorldError),
}

/// Drives a run from its first event (`Started`, or `Resumed` after [`replay`]) to its end. `seq` is the
/// number of the next record; `watch` sees every record once it is durable.
///
/// # Errors
/// When the log or the world fails as a whole. Nothing is done that is not in the log.
pub fn drive<W: World, J: Journal>(
    engine: &mut Engine,
    world: &mut W,
    journal: &mut J,
    first: Event,
    mut seq: u64,
    watch: &mut dyn FnMut(&Record),
) -> Result<Outcome, DriveError> {
    let mut pending = Some((world.now(), first));
    let mut last: Time = 0;
    let mut batch = Vec::new();
    loop {
        while let Some((now, event)) = pending.take() {
            last = last.max(now);
            let mut actions = Vec::new();
            engine.step(last, &event, &mut actions);
            batch.push(Record {
                seq,
                now: last,
                engine: ENGINE_VERSION,
                event,
                actions,
            });
            seq += 1;
            if batch.len() < MAX_BATCH && engine.outcome().is_none() {
                pending = world.poll();
            }
        }
        if batch.len() >= MAX_BATCH || !batch.iter().all(can_wait) {
            journal.append(&batch)?;
            for record in batch.drain(..) {
                watch(&record);
                for action in &record.actions {
                    world.perform(action)?;
                }
            }
        }
        if let Some(outcome) = engine.outcome() {
            return Ok(outcome);
        }
        pending = Some(world.next(engine.deadline())?);
    }
}

/// Whether a record may be made durable together with the next one: nothing is done because of it, and a resumed run
/// finds out its content by itself. It saves every other sync of a workflow of short steps.
fn can_wait(record: &Record) -> bool {
    let known_again = matches!(
        record.event,
        Event::Evicted { .. } | Event::Capacity { .. } | Event::Timer
    );
    known_again && record.actions.is_empty()
}

/// Rebuilds an engine from the records of a log. Returns it with the number and time of the next record.
pub fn replay<'a>(records: impl IntoIterator<Item = &'a Record>) -> (Engine, u64, Time) {
    let mut engine = Engine::new();
    let (mut seq, mut now) = (0, 0);
    for record in records {
        engine.replay(record.now, &record.event, &record.actions);
        (seq, now) = (record.seq + 1, record.now);
    }
    (engine, seq, now)
}
