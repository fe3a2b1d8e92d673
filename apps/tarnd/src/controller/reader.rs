//! Slurm's state, as a thread of its own reads it: on request, and now and then. Nothing else of the controller reads Slurm's queue or nodes.
//! docs/internals/site.md, "What the controller knows of Slurm".

use super::ControllerInput;
use std::collections::BTreeSet;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tarn_proto::site::SlurmInfo;
use tarn_slurm::{SlurmError, SlurmSnapshot, SlurmSource, SnapshotLimits};

/// Between the beginnings of two readings on request.
const ON_REQUEST: Duration = Duration::from_millis(200);
/// Between two readings of everything while a job of tarn's waits, and while none does.
const WAITED_FOR: Duration = Duration::from_secs(5);
const UNUSED: Duration = Duration::from_secs(30);
/// Between two readings while a job waits, where tarn drives Slurm.
const DRIVEN: Duration = Duration::from_secs(1);
/// Without a request, Slurm is not read for so many times as long as a reading took; after a long one for this time or, if it
/// took longer, for as long as that.
const RESTS: u32 = 3;
const LONG_REST: Duration = Duration::from_secs(3);
/// After a reading that has failed.
const RETRY: Duration = Duration::from_secs(1);
/// Jobs that one line of the log names.
const MAX_NAMED: usize = 20;
/// Nothing is decided on a reading that is older.
const MAX_AGE: Duration = Duration::from_secs(60);

/// Slurm's state as it was read.
#[derive(Debug)]
pub(super) struct SlurmReading {
    pub(super) snapshot: SlurmSnapshot,
    source: SlurmSource,
    /// When the reading of everything began, and that of the jobs: by a clock that does not jump.
    began: Instant,
    pub(super) jobs_began: Instant,
    /// The time of the last reading of everything.
    took: Duration,
    bytes: u64,
}

impl SlurmReading {
    /// When the reading of its oldest part began.
    pub(super) fn oldest_part(&self) -> Instant {
        self.began.min(self.jobs_began)
    }

    fn is_usable(&self) -> bool {
        self.began.elapsed() <= MAX_AGE && self.jobs_began.elapsed() <= MAX_AGE
    }
}

#[derive(Default)]
struct ReaderState {
    /// Something waits for a reading that begins from now on.
    is_requested: bool,
    /// A job of tarn's waits in Slurm's queue, or for its stage.
    is_waited_for: bool,
    /// Everything is read each time.
    drives: bool,
    /// There are reservations of tarn's, which are to go when nothing needs them.
    has_marks: bool,
    newest: Option<Arc<SlurmReading>>,
    /// The last reading has failed: when it began, and why.
    failure: Option<(Instant, String)>,
    /// When a reading began last, and how long it took.
    last: Option<Instant>,
    last_took: Duration,
}

impl ReaderState {
    /// Between the beginnings of two readings of everything.
    fn interval(&self) -> Duration {
        match (self.is_waited_for, self.drives) {
            _ if self.has_marks => DRIVEN,
            (true, true) => DRIVEN,
            (true, false) => WAITED_FOR,
            (false, _) => UNUSED,
        }
    }

    /// Between the beginnings of the last reading and the next, if nothing requests one.
    fn unrequested_pause(&self) -> Duration {
        let took = self.last_took;
        took + (RESTS * took).min(LONG_REST).max(took)
    }

    /// How long from now until the next reading is due. At least half of the time Slurm is not read.
    fn pause(&self, interval: Duration) -> Duration {
        let Some(last) = self.last else {
            return Duration::ZERO;
        };
        if self.failure.is_some() {
            let is_urgent = self.is_requested || self.is_waited_for || self.has_marks;
            let pause = if is_urgent { RETRY } else { WAITED_FOR };
            let pause = pause.max(2 * self.last_took);
            return pause.saturating_sub(last.elapsed());
        }
        if self.is_requested {
            let rest = (2 * self.last_took).saturating_sub(last.elapsed());
            return rest.max(ON_REQUEST.saturating_sub(last.elapsed()));
        }
        let rest = self.unrequested_pause().saturating_sub(last.elapsed());
        let whole = self.newest.as_ref().map_or(last, |newest| newest.began);
        rest.max(interval.saturating_sub(whole.elapsed()))
    }
}

/// Reads Slurm's state. There is never more than one reading at a time.
#[derive(Clone, Default)]
pub(super) struct SlurmReader(Arc<(Mutex<ReaderState>, Condvar)>);

impl SlurmReader {
    /// Begins to read; each reading, and each failure of one, is an input of the controller.
    pub(super) fn start(inputs: Sender<ControllerInput>, drives: bool) -> Self {
        let reader = Self::default();
        reader.set_driven(drives);
        let thread = std::thread::Builder::new().name("slurm".into());
        let own = reader.clone();
        if let Err(e) = thread.spawn(move || own.read_on(&inputs)) {
            tracing::error!("Slurm's state is not known: no thread: {e}");
        }
        reader
    }

    fn state(&self) -> MutexGuard<'_, ReaderState> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a reading that begins after this call.
    pub(super) fn request(&self) {
        self.state().is_requested = true;
        self.0.1.notify_all();
    }

    /// Whether a job of tarn's waits.
    pub(super) fn set_waited_for(&self, is_waited_for: bool) {
        let mut state = self.state();
        if state.is_waited_for != is_waited_for {
            state.is_waited_for = is_waited_for;
            self.0.1.notify_all();
        }
    }

    /// Whether tarn drives Slurm: then each reading is of everything.
    pub(super) fn set_driven(&self, drives: bool) {
        self.state().drives = drives;
        self.0.1.notify_all();
    }

    /// Whether Slurm has reservations of tarn's.
    pub(super) fn set_marked(&self, has_marks: bool) {
        let mut state = self.state();
        if state.has_marks != has_marks {
            state.has_marks = has_marks;
            self.0.1.notify_all();
        }
    }

    /// The newest reading, unless it is too old to decide anything on it.
    pub(super) fn newest(&self) -> Option<Arc<SlurmReading>> {
        let newest = self.state().newest.clone();
        newest.filter(|reading| reading.is_usable())
    }

    /// A reading whose jobs were read from now on; `None` if there is none after so long.
    pub(super) fn newest_from_now_on(&self, limit: Duration) -> Option<Arc<SlurmReading>> {
        let now = Instant::now();
        self.request();
        let (state, condition) = &*self.0;
        let state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_there = |state: &ReaderState| {
            let newest = state.newest.as_ref();
            newest.is_some_and(|reading| reading.jobs_began >= now)
        };
        let waited = condition.wait_timeout_while(state, limit, |state| !is_there(state));
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let newest = state.newest.clone().filter(|_| is_there(&state));
        newest.filter(|reading| reading.is_usable())
    }

    /// When the last reading began, if it failed.
    pub(super) fn failed_since(&self) -> Option<Instant> {
        self.state().failure.as_ref().map(|(began, _)| *began)
    }

    /// The readings, for people.
    pub(super) fn info(&self) -> SlurmInfo {
        let state = self.state();
        let failure = state.failure.as_ref().map(|(_, why)| why.clone());
        let Some(reading) = &state.newest else {
            return SlurmInfo {
                failure: failure.or(Some("it was not read yet".into())),
                ..SlurmInfo::default()
            };
        };
        let jobs = reading.snapshot.jobs.values();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let nodes = reading.snapshot.nodes.values();
        SlurmInfo {
            version: reading.snapshot.settings.version.clone(),
            source: match reading.source {
                SlurmSource::Fields => "fields".into(),
                SlurmSource::Json => "JSON".into(),
            },
            nodes: count(reading.snapshot.nodes.len()),
            usable: count(nodes.filter(|node| node.state.is_usable()).count()),
            jobs: count(jobs.len()),
            with_data: count(jobs.filter(|job| job.has_burst_buffer).count()),
            age: nanos(reading.jobs_began.elapsed()),
            took: nanos(reading.took),
            bytes: reading.bytes,
            failure,
        }
    }

    fn read_on(&self, inputs: &Sender<ControllerInput>) {
        let mut source = None;
        let mut incomplete = BTreeSet::new();
        loop {
            let earlier = self.wait_until_due();
            let began = Instant::now();
            let read = read(&mut source, earlier.as_deref(), began);
            let mut state = self.state();
            state.last_took = began.elapsed();
            match read {
                Ok(reading) => {
                    if state.failure.take().is_some() {
                        tracing::info!("Slurm's state is read again");
                    }
                    note_incomplete(&mut incomplete, &reading.snapshot);
                    state.newest = Some(Arc::new(reading));
                    self.0.1.notify_all();
                }
                Err(e) => {
                    if state.failure.is_none() {
                        tracing::warn!("Slurm's state cannot be read: {e}");
                    }
                    state.failure = Some((began, e.to_string()));
                }
            }
            drop(state);
            if inputs.send(ControllerInput::Read).is_err() {
                return;
            }
        }
    }

    /// Waits for the next reading; the newest one, if that of jobs is enough.
    fn wait_until_due(&self) -> Option<Arc<SlurmReading>> {
        let mut state = self.state();
        loop {
            let interval = state.interval();
            let pause = state.pause(interval);
            if pause.is_zero() {
                state.is_requested = false;
                state.last = Some(Instant::now());
                let reads_all = state.drives;
                let is_recent =
                    |reading: &&Arc<SlurmReading>| !reads_all && reading.began.elapsed() < interval;
                return state.newest.as_ref().filter(is_recent).cloned();
            }
            let waited = self.0.1.wait_timeout(state, pause);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Logs each job of which something could not be read, once as long as that is so. Such a job is in the queue for tarn, and nothing is decided
/// on it.
fn note_incomplete(noted: &mut BTreeSet<u32>, snapshot: &SlurmSnapshot) {
    let jobs = snapshot.jobs.values().filter(|job| job.is_incomplete);
    let incomplete: BTreeSet<u32> = jobs.map(|job| job.number).collect();
    let new: Vec<String> = incomplete
        .difference(noted)
        .take(MAX_NAMED)
        .map(u32::to_string)
        .collect();
    if !new.is_empty() {
        tracing::info!(
            "Of {} jobs in Slurm's queue a text or a list of nodes is too long for tarn or no such list (new: {}): tarn plans nothing for them. \
             Compare with `scontrol show job`",
            incomplete.len(),
            new.join(", ")
        );
    }
    *noted = incomplete;
}

/// Reads the jobs if everything else was read lately, else all. The first reading decides the source.
fn read(
    source: &mut Option<SlurmSource>,
    earlier: Option<&SlurmReading>,
    began: Instant,
) -> Result<SlurmReading, SlurmError> {
    let limits = SnapshotLimits::default();
    if let Some(earlier) = earlier {
        let answers = earlier.source.answers_about_jobs(&limits)?;
        return Ok(SlurmReading {
            snapshot: earlier.source.parse_jobs(&answers, &earlier.snapshot)?,
            jobs_began: began,
            ..*earlier
        });
    }
    let (chosen, snapshot, bytes) = match *source {
        Some(source) => {
            let (snapshot, bytes) = source.read(&limits)?;
            (source, snapshot, bytes)
        }
        None => SlurmSource::choose(&limits)?,
    };
    *source = Some(chosen);
    Ok(SlurmReading {
        snapshot,
        source: chosen,
        began,
        jobs_began: began,
        took: began.elapsed(),
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ago(seconds: u64) -> Instant {
        Instant::now() - Duration::from_secs(seconds)
    }

    fn state(is_waited_for: bool, took: u64) -> ReaderState {
        ReaderState {
            is_waited_for,
            drives: true,
            last: Some(ago(took)),
            last_took: Duration::from_secs(took),
            ..ReaderState::default()
        }
    }

    /// In seconds, rounded up.
    fn pause(state: &ReaderState) -> u64 {
        state.pause(state.interval()).as_millis().div_ceil(1000) as u64
    }

    #[test]
    fn slurm_is_left_alone_as_long_as_a_reading_takes() {
        for (took, expected, on_request) in [(0, 1, 1), (1, 3, 1), (2, 3, 2), (3, 3, 3), (8, 8, 8)]
        {
            let mut state = state(true, took);
            assert_eq!(pause(&state), expected, "a reading of {took} s");
            state.is_requested = true;
            assert_eq!(pause(&state), on_request, "{took} s, on request");
            state.failure = Some((ago(took), "slurmctld does not answer".to_owned()));
            assert_eq!(pause(&state), on_request, "{took} s, after a failure");
        }
    }

    #[test]
    fn reservations_are_looked_after_though_no_job_waits() {
        let mut state = state(false, 0);
        assert_eq!(pause(&state), 30);
        state.has_marks = true;
        assert_eq!(pause(&state), 1);
    }

    #[test]
    fn a_reading_from_now_on_is_requested_and_not_waited_for_without_end() {
        let reader = SlurmReader::default();
        assert!(
            reader
                .newest_from_now_on(Duration::from_millis(20))
                .is_none()
        );
        assert!(reader.state().is_requested);
    }
}
