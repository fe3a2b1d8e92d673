//! The state that the callers of one rank, its thread that has the lines, and its threads that serve share.

use crate::greet::{MeetingId, ProgramKey, RankGreeting};
use crate::hub::MAX_AHEAD;
use crate::line::malformed;
use crate::socket::{RankSocket, deadline};
use crate::wire::{FromHub, Least, ToHub};
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tarn_ports::ranks::MAX_WORD;
use tarn_ports::{Carried, OneSided, RankProgress, RankService, RanksError};

/// How long it is waited for the hub's reply about the ranks that did not come to an exchange.
const GRACE: Duration = Duration::from_secs(1);

/// Everybody's words, by rank, or why there are none.
type Words = Result<Vec<Box<[u8]>>, RanksError>;

/// A connection that came in.
pub(crate) struct IncomingConnection {
    pub(crate) from: IpAddr,
    pub(crate) socket: Arc<RankSocket>,
    /// It has proven itself.
    pub(crate) proven: bool,
}

#[derive(Default)]
pub(crate) struct MeetingState {
    /// To the hub, in order.
    pub(crate) words: VecDeque<Arc<[u8]>>,
    /// Of these only the newest counts.
    pub(crate) new_progress: Option<RankProgress>,
    pub(crate) missing_request: Option<u64>,
    /// No more is sent after that, and by then all is over.
    pub(crate) leave: Option<Instant>,
    /// The thread with the lines has ended.
    pub(crate) ended: bool,
    /// Ranks that have come to the hub.
    pub(crate) members: Vec<(RankGreeting, RankSocket)>,
    /// By a number that counts up. Each has a thread.
    pub(crate) incoming: BTreeMap<u64, IncomingConnection>,
    pub(crate) next_incoming: u64,
    pub(crate) host: Option<Arc<dyn RankService>>,
    /// Exchanges begun, and ended by the hub.
    begun: u64,
    over: u64,
    waiting: BTreeMap<u64, Option<Words>>,
    missing: Option<(u64, String)>,
    reached: RankProgress,
    least: Least,
    /// Ranks that are gone, and how that is known.
    gone: BTreeMap<u32, String>,
    /// The first that died, or rank 0 once it is gone in any way: nothing is agreed without it.
    lost: Option<u32>,
}

pub(crate) struct MeetingContext {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) identity: MeetingId,
    pub(crate) key: ProgramKey,
    /// Readable when the thread with the lines has something to do.
    pub(crate) wake: OwnedFd,
    state: Mutex<MeetingState>,
    pub(crate) changed: Condvar,
    /// Moves bytes between nodes, where there is something better than streams.
    pub(crate) one_sided: OnceLock<Arc<dyn OneSided>>,
    pub(crate) carried: CarriedCounters,
    /// Why bytes do not go so, until that was reported.
    detour: Mutex<Option<String>>,
}

/// Bytes, as [`Carried`] has them.
#[derive(Default)]
pub(crate) struct CarriedCounters {
    pub(crate) put: AtomicU64,
    pub(crate) put_by_stream: AtomicU64,
    pub(crate) fetched: AtomicU64,
    pub(crate) fetched_by_stream: AtomicU64,
}

impl CarriedCounters {
    pub(crate) fn add(to: &AtomicU64, bytes: usize) {
        to.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Carried {
        let read = |of: &AtomicU64| of.load(Ordering::Relaxed);
        Carried {
            put: read(&self.put),
            put_by_stream: read(&self.put_by_stream),
            fetched: read(&self.fetched),
            fetched_by_stream: read(&self.fetched_by_stream),
        }
    }
}

/// An exchange that the hub ends without words.
fn refused(why: String) -> RanksError {
    RanksError::Refused { who: rank(0), why }
}

/// A rank's name in errors.
pub(crate) fn rank(number: u32) -> String {
    format!("rank {number}")
}

impl MeetingContext {
    pub(crate) fn new(
        (rank, ranks): (u32, u32),
        identity: MeetingId,
        key: ProgramKey,
        wake: OwnedFd,
    ) -> Self {
        Self {
            rank,
            ranks,
            identity,
            key,
            wake,
            state: Mutex::default(),
            changed: Condvar::new(),
            one_sided: OnceLock::new(),
            carried: CarriedCounters::default(),
            detour: Mutex::default(),
        }
    }

    /// Bytes go by streams, and not as they were to: the first reason is reported.
    pub(crate) fn note_detour(&self, why: String) {
        self.detour().get_or_insert(why);
    }

    pub(crate) fn detour(&self) -> MutexGuard<'_, Option<String>> {
        self.detour.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, MeetingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something has changed, or it is time: `false`.
    pub(crate) fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, MeetingState>,
        until: Instant,
    ) -> (MutexGuard<'a, MeetingState>, bool) {
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout(state, left);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        (state, !left.is_zero())
    }

    /// The thread with the lines looks for work.
    pub(crate) fn wake(&self) {
        // Full: it is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// `doing`: the call that others should make, for an error's text.
    pub(crate) fn exchange(
        &self,
        word: &[u8],
        within: Duration,
        doing: &'static str,
    ) -> Result<Vec<Box<[u8]>>, RanksError> {
        if word.len() > MAX_WORD {
            return Err(RanksError::Invalid(format!(
                "a word of {} bytes: at most {MAX_WORD} can be sent to all at once",
                word.len()
            )));
        }
        let until = deadline(within);
        let late = |who: String, doing| RanksError::TimedOut {
            who,
            doing,
            seconds: within.as_secs(),
        };
        let mut state = self.lock();
        if let Some(gone) = state.broken() {
            return Err(state.loss(gone));
        }
        let number = state.begun;
        assert!(
            state.over <= number,
            "an exchange has ended that was not begun"
        );
        if number - state.over >= MAX_AHEAD as u64 {
            return Err(late("another rank".into(), "end earlier exchanges"));
        }
        state.begun += 1;
        state.words.push_back(ToHub::Word(number, word).frame());
        state.waiting.insert(number, None);
        self.wake();
        let mut end = until;
        loop {
            if let Some(Some(words)) = state.waiting.get_mut(&number) {
                let words = std::mem::replace(words, Ok(Vec::new()));
                state.waiting.remove(&number);
                return words;
            }
            if let Some(gone) = state.broken() {
                state.waiting.remove(&number);
                return Err(state.loss(gone));
            }
            if let Some((_, who)) = state.missing.take_if(|(n, _)| *n == number) {
                state.waiting.remove(&number);
                return Err(late(who, doing));
            }
            let in_time;
            (state, in_time) = self.wait(state, end);
            if in_time {
                continue;
            }
            if end > until {
                state.waiting.remove(&number);
                return Err(late(rank(0), "answer"));
            }
            end = until + GRACE;
            state.missing_request = Some(number);
            self.wake();
        }
    }

    pub(crate) fn report_progress(&self, progress: RankProgress) {
        let mut state = self.lock();
        let reached = RankProgress {
            committed: state.reached.committed.max(progress.committed),
            durable: state.reached.durable.max(progress.durable),
            replicated: state.reached.replicated.max(progress.replicated),
            ..progress
        };
        if reached != state.reached {
            state.reached = reached;
            state.new_progress = Some(reached);
            self.wake();
        }
    }

    pub(crate) fn common_progress(&self) -> RankProgress {
        self.lock().least.reached
    }

    pub(crate) fn wait_for(&self, least: RankProgress, within: Duration) -> Result<(), RanksError> {
        let until = deadline(within);
        let mut state = self.lock();
        loop {
            let Some(last) = state.last(least) else {
                return Ok(());
            };
            // A rank that has ended in order never gets so far, if it has not yet.
            let gone = state
                .lost
                .or(state.gone.contains_key(&last).then_some(last));
            if let Some(gone) = gone {
                return Err(state.loss(gone));
            }
            let in_time;
            (state, in_time) = self.wait(state, until);
            if !in_time {
                return Err(RanksError::TimedOut {
                    who: rank(last),
                    doing: "come so far",
                    seconds: within.as_secs(),
                });
            }
        }
    }

    /// How it is known that a rank is gone.
    pub(crate) fn gone(&self, rank: u32) -> Option<RanksError> {
        let state = self.lock();
        state.gone.contains_key(&rank).then(|| state.loss(rank))
    }

    /// Takes a message of the hub.
    ///
    /// # Errors
    /// When the message ends an exchange that this rank has not begun.
    pub(crate) fn receive(&self, message: FromHub) -> io::Result<()> {
        let mut state = self.lock();
        match message {
            FromHub::Words(number, words) => {
                let count = words.len();
                let words = if count == self.ranks as usize {
                    Ok(words)
                } else {
                    Err(refused(format!("it sent {count} words")))
                };
                state.end_exchange(number, words)?;
            }
            FromHub::No(number, why) => state.end_exchange(number, Err(refused(why)))?,
            FromHub::Least(least) => state.least = least,
            FromHub::Gone(rank, in_order, why) => state.note_gone(rank, in_order, why),
            FromHub::Missing(number, who) => state.missing = Some((number, who)),
        }
        self.changed.notify_all();
        Ok(())
    }

    /// The line to the hub has ended.
    pub(crate) fn hub_gone(&self, why: String) {
        self.lock().note_gone(0, false, why);
        self.changed.notify_all();
    }
}

impl MeetingState {
    fn end_exchange(&mut self, number: u64, words: Words) -> io::Result<()> {
        if number >= self.begun {
            return Err(malformed());
        }
        self.over = self.over.max(number + 1);
        // A caller that was waiting may have given up.
        if let Some(place) = self.waiting.get_mut(&number) {
            *place = Some(words);
        }
        Ok(())
    }

    fn note_gone(&mut self, rank: u32, in_order: bool, why: String) {
        if !in_order || rank == 0 {
            self.lost.get_or_insert(rank);
        }
        self.gone.entry(rank).or_insert(why);
    }

    /// Without whom there is no exchange any more.
    fn broken(&self) -> Option<u32> {
        self.lost.or_else(|| self.gone.keys().next().copied())
    }

    fn loss(&self, of: u32) -> RanksError {
        RanksError::Lost {
            who: rank(of),
            why: self.gone.get(&of).cloned().unwrap_or_default(),
        }
    }

    /// The last of all, if it is not so far yet.
    fn last(&self, wanted: RankProgress) -> Option<u32> {
        let counts = self.least.reached.counts().into_iter().zip(wanted.counts());
        let mut last = counts.zip(self.least.by);
        last.find_map(|((is, wanted), by)| (is < wanted).then_some(by))
    }
}
