//! Every k-th version goes to the external store, by a thread of its own: a slow store holds up no commit. Its slot in the arena is not
//! used again until then. A version whose turn comes while the one before is still being flushed is skipped.
//!
//! Ranks skip on their own, and only a version that none has skipped is complete. So a rank that had to skip, or whose last part
//! the others have not completed, doubles its stride from one version to the next: multiples of the widest stride are the turn of
//! all ranks, however many each has skipped before, and the widest one stops growing once every rank keeps up with it.

use super::{ExternalStore, Options, RankStats, lock};
use crate::arena::{Arena, VersionId};
use crate::fault::{CheckpointError, CheckpointErrorCode};
use crate::flush::{self, Exact};
use crate::manifest::PieceLocation;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tarn_ports::{Ranks, ReadableMedium, Vault};

/// How often it is looked whether a version is on the tiers of all ranks.
const LOOK: Duration = Duration::from_millis(5);
/// The store is looked at for other ranks' parts after so long first, and then ever more seldom.
const FIRST_LOOK: Duration = Duration::from_millis(20);
/// The longest time between two looks.
const LAST_LOOK: Duration = Duration::from_secs(2);
/// The most that is waited for a store that does not answer when the program ends.
const END: Duration = Duration::from_secs(5);
/// A rank's parts of versions that other ranks have not completed: older ones are removed.
const MAX_WAITING: usize = 8;
/// A stride is at most so many times `every`: only so that the number does not overflow.
const MAX_STRIDE: u64 = 1 << 20;

/// Flushes a rank's versions.
pub(super) struct Flusher<T> {
    external: ExternalStore,
    tier: Arc<T>,
    /// Weak: the rank is dropped at its end, whatever the store is doing.
    ranks: Weak<dyn Ranks>,
    rank: u32,
    /// The identity of this start.
    start: u128,
    state: Mutex<FlushState>,
    changed: Condvar,
}

/// One that works, and its thread.
pub(super) type Begun<T> = (Arc<Flusher<T>>, JoinHandle<()>);

struct FlushState {
    /// The version that is to be flushed or is being flushed, and the arena that keeps it.
    pinned: Option<(VersionId, String)>,
    /// The one after it, as somebody waits for it.
    wanted: Option<(VersionId, String)>,
    /// The newest that was committed.
    newest: u64,
    /// Multiples of this have their turn: `every`, a power of two times.
    stride: u64,
    /// Versions of which this rank's part is on the store, and `latest` does not name one as new.
    waiting: VecDeque<VersionId>,
    /// The newest that could not be flushed.
    failed: Option<(VersionId, CheckpointError)>,
    flushed: u64,
    skipped: u64,
    failures: u64,
    last: Duration,
    ended: bool,
}

impl<T: Vault + 'static> Flusher<T> {
    /// Begins, if anything is to be flushed.
    pub(super) fn begin(
        options: &Options,
        start: u128,
        tier: &Arc<T>,
        ranks: &Arc<dyn Ranks>,
    ) -> Result<Option<Begun<T>>, CheckpointError> {
        let Some(external) = options.external.clone().filter(|e| e.every > 0) else {
            return Ok(None);
        };
        if options.helpers == 0 {
            let text = "versions are flushed by a thread in the background: allow a helper, or flush nothing";
            return Err(CheckpointError::new(CheckpointErrorCode::Invalid, text));
        }
        let flusher = Arc::new(Self {
            state: Mutex::new(FlushState {
                pinned: None,
                wanted: None,
                newest: 0,
                stride: external.every,
                waiting: VecDeque::new(),
                failed: None,
                flushed: 0,
                skipped: 0,
                failures: 0,
                last: Duration::ZERO,
                ended: false,
            }),
            external,
            tier: Arc::clone(tier),
            ranks: Arc::downgrade(ranks),
            rank: ranks.rank(),
            start,
            changed: Condvar::new(),
        });
        let own = Arc::clone(&flusher);
        let enter = Arc::clone(&options.enter);
        let thread = std::thread::Builder::new().name("phx-flush".into());
        let thread = thread.spawn(move || {
            enter();
            own.run();
        });
        let thread = thread.map_err(|e| {
            let text = format!("no thread can be made to flush versions: {e}");
            CheckpointError::new(CheckpointErrorCode::NoMem, text)
        })?;
        Ok(Some((flusher, thread)))
    }

    /// Versions go to the store as their turn comes, until the end.
    fn run(&self) {
        let mut pause = FIRST_LOOK;
        let mut looked = Instant::now();
        let mut state = self.state();
        while !state.ended {
            if let Some((id, arena)) = state.pinned.clone() {
                match self.all_have(id) {
                    None if self.rank == 0 && !state.waiting.is_empty() => {
                        state = self.sleep(state, Some(LOOK));
                        if looked.elapsed() < pause {
                            continue;
                        }
                        looked = Instant::now();
                        pause = (pause * 2).min(LAST_LOOK);
                        drop(state);
                        let latest = self.look();
                        state = self.state();
                        state.named(latest);
                        self.changed.notify_all();
                    }
                    None => state = self.sleep(state, Some(LOOK)),
                    Some(have) => {
                        drop(state);
                        if have {
                            self.flush(id, &arena);
                        }
                        state = self.state();
                        state.pinned = state.wanted.take();
                        self.changed.notify_all();
                        pause = FIRST_LOOK;
                    }
                }
            } else if self.rank != 0 || state.waiting.is_empty() {
                state = self.sleep(state, None);
            } else {
                state = self.sleep(state, Some(pause));
                pause = (pause * 2).min(LAST_LOOK);
                if state.pinned.is_none() && !state.ended {
                    drop(state);
                    let latest = self.look();
                    state = self.state();
                    state.named(latest);
                    self.changed.notify_all();
                }
            }
        }
    }

    /// Whether all ranks have a version on their tiers; none: not yet.
    fn all_have(&self, id: VersionId) -> Option<bool> {
        let progress = self.ranks.upgrade()?.common_progress();
        match progress.lacks(id.number) {
            true if progress.committed >= id.number => Some(false),
            _ => (progress.durable >= id.number).then_some(true),
        }
    }

    /// Flushes a version, and looks whether the one before has become complete.
    fn flush(&self, id: VersionId, arena: &str) {
        let begun = Instant::now();
        let flushed = self.write(id, arena, begun);
        let took = begun.elapsed();
        let latest = self.look();
        let mut state = self.state();
        if state.ended {
            return;
        }
        state.named(latest);
        // The others do not keep up with this rank.
        let ahead = !state.waiting.is_empty();
        match flushed {
            Ok(()) => {
                state.flushed += 1;
                state.last = took;
                if latest < Some(id) {
                    state.waiting.retain(|other| *other != id);
                    state.waiting.push_back(id);
                }
            }
            Err(fault) => {
                state.failures += 1;
                state.failed = Some((id, fault));
            }
        }
        if ahead {
            state.widen(self.external.every);
        } else if state.stride > self.external.every && state.since(id) < state.stride / 2 {
            state.stride /= 2;
        }
        if state.waiting.len() > MAX_WAITING
            && let Some(old) = state.waiting.pop_front()
        {
            drop(state);
            // That it stays costs space alone.
            let old = Exact {
                id: old,
                start: self.start,
            };
            let _ = self.external.store.remove(&old.part(self.rank));
        }
    }

    /// Writes this rank's part of a version to the store.
    fn write(&self, id: VersionId, arena: &str, begun: Instant) -> Result<(), CheckpointError> {
        let seen = self.tier.see(arena)?;
        let found = Arena::open(&seen)?;
        let version = found.versions().iter().find(|v| v.id == id);
        let version = version.ok_or_else(|| {
            CheckpointError::new(
                CheckpointErrorCode::Corrupt,
                format!("version {id} is not in the arena any more"),
            )
        })?;
        let mut read = |place, into: &mut [u8], sum| match place {
            PieceLocation::Arena(at) => Ok(seen.read(at, into)? == sum),
            PieceLocation::Staged(_) => Ok(false),
        };
        let mut moved = 0;
        let mut meter = |bytes| {
            moved += bytes;
            let until = begun + flush::lasts(moved, self.external.rate);
            let mut state = self.state();
            while !state.ended {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(());
                }
                state = self.sleep(state, Some(left));
            }
            Err(CheckpointError::new(
                CheckpointErrorCode::Lost,
                "the program ends",
            ))
        };
        let (store, header) = (&*self.external.store, found.header());
        flush::write(store, header, version, &mut read, &mut meter).map(drop)
    }

    /// The version of this start that `latest` names; rank 0 has it name the newest. A store that cannot be read now is read later.
    fn look(&self) -> Option<VersionId> {
        let store = &*self.external.store;
        let published = match self.rank {
            0 => flush::publish(store).or_else(|_| flush::latest(store)),
            _ => flush::latest(store),
        };
        self.own(published.ok().flatten())
    }

    fn state(&self) -> MutexGuard<'_, FlushState> {
        lock(&self.state)
    }

    fn sleep<'a>(
        &self,
        state: MutexGuard<'a, FlushState>,
        most: Option<Duration>,
    ) -> MutexGuard<'a, FlushState> {
        match most {
            Some(most) => self
                .changed
                .wait_timeout(state, most)
                .map_or_else(|e| e.into_inner().0, |w| w.0),
            None => self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl FlushState {
    /// `latest` names this version: it stands for those before it, and nobody waits for them any more.
    fn named(&mut self, latest: Option<VersionId>) {
        self.waiting.retain(|id| Some(*id) > latest);
        self.wanted.take_if(|(id, _)| Some(*id) <= latest);
    }

    /// Versions that are flushed, or of which this rank's part is there and the others' are not.
    fn all(&self) -> impl Iterator<Item = VersionId> {
        let under_way = self.pinned.iter().chain(&self.wanted).map(|(id, _)| *id);
        under_way.chain(self.waiting.iter().copied())
    }

    /// Versions that were committed since that one.
    fn since(&self, id: VersionId) -> u64 {
        assert!(
            id.number <= self.newest,
            "version {id} was flushed and not committed: {} were",
            self.newest
        );
        self.newest - id.number
    }

    /// Versions have their turn half as often.
    fn widen(&mut self, every: u64) {
        // Saturates: `every` is a setting.
        let widest = every.saturating_mul(MAX_STRIDE);
        self.stride = self.stride.saturating_mul(2).min(widest);
    }
}

impl<T> Flusher<T> {
    /// A version was committed: from now on its arena keeps it, if its turn has come.
    pub(super) fn committed(&self, id: VersionId, arena: &str) {
        let mut state = lock(&self.state);
        assert!(id.number > state.newest, "version {id} is committed twice");
        state.newest = id.number;
        if !id.number.is_multiple_of(self.external.every) {
            return;
        }
        let turn = id.number.is_multiple_of(state.stride);
        if turn && state.pinned.is_none() {
            state.pinned = Some((id, arena.to_owned()));
            self.changed.notify_all();
            return;
        }
        state.skipped += 1;
        if turn {
            state.widen(self.external.every);
        }
    }

    /// A version, if it is of this start.
    fn own(&self, named: Option<Exact>) -> Option<VersionId> {
        named.filter(|v| v.start == self.start).map(|v| v.id)
    }

    /// The version that is not to be given up.
    pub(super) fn pinned(&self) -> Option<VersionId> {
        lock(&self.state).pinned.as_ref().map(|(id, _)| *id)
    }

    /// Waits until this rank has done with a version for which `latest` stands, so that it is counted, and the next one finds nothing under
    /// way. It does not wait for other versions.
    pub(super) fn settle(&self, id: VersionId, within: Duration) {
        let until = Instant::now() + within;
        let mut state = lock(&self.state);
        state.named(Some(id));
        while state.pinned.as_ref().is_some_and(|(at, _)| *at == id) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.map_or_else(|e| e.into_inner().0, |w| w.0);
        }
    }

    /// Adds its figures.
    pub(super) fn count(&self, stats: &mut RankStats) {
        let state = lock(&self.state);
        stats.flushed = state.flushed;
        stats.flushes_skipped = state.skipped;
        stats.flush_failed = state.failures;
        stats.last_flush = state.last;
    }

    /// Waits until `latest` names a version or a newer one. If the version is kept, in this arena, and was not flushed, it is now. A store
    /// that cannot be read now may be later.
    pub(super) fn wait(
        &self,
        id: VersionId,
        mut kept: Option<String>,
        within: Duration,
    ) -> Result<(), CheckpointError> {
        let until = Instant::now() + within;
        let mut pause = FIRST_LOOK;
        let mut flushed = self.names(id);
        if flushed == Ok(true) {
            return Ok(());
        }
        loop {
            // Before the store is looked at: a version that comes in between is there then.
            let (coming, failed) = {
                let mut state = lock(&self.state);
                // A version that may be there already is not flushed twice.
                if flushed == Ok(false)
                    && let Some(arena) = kept.take()
                    && state.all().all(|other| other != id)
                {
                    match state.pinned {
                        None => state.pinned = Some((id, arena)),
                        Some(_) => state.wanted = Some((id, arena)),
                    }
                    self.changed.notify_all();
                }
                let failed = state.failed.clone().filter(|(of, _)| *of >= id);
                (state.all().max() >= Some(id), failed)
            };
            flushed = self.names(id);
            let left = until.saturating_duration_since(Instant::now());
            match (&flushed, coming, failed) {
                (Ok(true), ..) => return Ok(()),
                // It is flushed now.
                (Ok(false), ..) if kept.is_some() => {}
                (_, false, Some((of, fault))) if flushed.is_ok() || of == id => {
                    let text = format!("version {of} could not be flushed: {}", fault.text);
                    return Err(CheckpointError::new(fault.code, text));
                }
                (Err(fault), ..) if left.is_zero() => {
                    let text = format!(
                        "it is not known whether version {id} is flushed, as the external store cannot be read: {}",
                        fault.text
                    );
                    return Err(CheckpointError::new(CheckpointErrorCode::TimedOut, text));
                }
                (Ok(false), true, _) if left.is_zero() => {
                    let text = format!(
                        "version {id} is not flushed by all ranks yet: all of them wait for it, and as long as the store takes"
                    );
                    return Err(CheckpointError::new(CheckpointErrorCode::TimedOut, text));
                }
                (Err(_), ..) | (Ok(false), true, _) => {}
                (Ok(false), false, _) => {
                    let text = format!(
                        "version {id} was not flushed, and is not kept any more: wait for a newer one"
                    );
                    return Err(CheckpointError::new(CheckpointErrorCode::NotFound, text));
                }
            }
            let state = lock(&self.state);
            drop(self.changed.wait_timeout(state, pause.min(left)));
            pause = (pause * 2).min(LAST_LOOK);
        }
    }

    /// Whether `latest` names a version, or a newer one of this start.
    fn names(&self, id: VersionId) -> Result<bool, CheckpointError> {
        let latest = flush::latest(&*self.external.store)?;
        Ok(self.own(latest) >= Some(id))
    }

    /// It is to end, whatever it does: a file that is not whole is no part.
    pub(super) fn end(&self, thread: JoinHandle<()>) {
        lock(&self.state).ended = true;
        self.changed.notify_all();
        let until = Instant::now() + END;
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
