//! Ranks that are threads of one process, and what can happen to them.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tarn_ports::{RankProgress, RankService, Ranks, RanksError};

/// The meeting of all ranks.
pub(crate) struct Hall {
    nodes: Vec<String>,
    state: Mutex<State>,
    changed: Condvar,
    /// Ranks that keep nothing for others any more.
    deaf: Vec<AtomicBool>,
    after: Mutex<Option<After>>,
}

/// Runs after each report of a rank's progress; gets the report.
type After = Box<dyn FnMut(RankProgress) + Send>;

#[derive(Default)]
struct State {
    /// The words of each round, by rank.
    rounds: Vec<BTreeMap<u32, Box<[u8]>>>,
    reached: BTreeMap<u32, RankProgress>,
    hosts: BTreeMap<u32, Arc<dyn RankService>>,
}

/// One of them.
pub(crate) struct Seat {
    hall: Arc<Hall>,
    rank: u32,
    round: Mutex<usize>,
}

impl Hall {
    /// A hall for ranks on these nodes.
    pub(crate) fn new(nodes: &[&str]) -> Arc<Self> {
        Arc::new(Self {
            nodes: nodes.iter().map(|n| (*n).to_owned()).collect(),
            state: Mutex::default(),
            changed: Condvar::new(),
            deaf: nodes.iter().map(|_| AtomicBool::new(false)).collect(),
            after: Mutex::default(),
        })
    }

    /// From now on this runs after each report of a rank's progress; all ranks have it by then.
    pub(crate) fn after_each(&self, word: impl FnMut(RankProgress) + Send + 'static) {
        *self.after.lock().unwrap() = Some(Box::new(word));
    }

    pub(crate) fn seat(self: &Arc<Self>, rank: u32) -> Arc<Seat> {
        Arc::new(Seat {
            hall: Arc::clone(self),
            rank,
            round: Mutex::default(),
        })
    }

    /// A rank keeps nothing for others from now on.
    pub(crate) fn deafen(&self, rank: u32) {
        self.deaf[rank as usize].store(true, Ordering::SeqCst);
    }

    fn host(&self, rank: u32) -> Result<Arc<dyn RankService>, RanksError> {
        if self.deaf[rank as usize].load(Ordering::SeqCst) {
            return Err(RanksError::Lost {
                who: format!("rank {rank}"),
                why: "it is deaf".into(),
            });
        }
        let state = self.state.lock().unwrap();
        Ok(Arc::clone(&state.hosts[&rank]))
    }

    fn until<R>(
        &self,
        within: Duration,
        doing: &'static str,
        mut look: impl FnMut(&mut State) -> Option<R>,
    ) -> Result<R, RanksError> {
        let end = Instant::now() + within;
        let mut state = self.state.lock().unwrap();
        loop {
            if let Some(found) = look(&mut state) {
                return Ok(found);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(RanksError::TimedOut {
                    who: "a rank".into(),
                    doing,
                    seconds: within.as_secs(),
                });
            }
            state = self.changed.wait_timeout(state, left).unwrap().0;
        }
    }

    fn all(&self, state: &State) -> RankProgress {
        let of = |rank| state.reached.get(&rank).copied().unwrap_or_default();
        let all = (0..self.nodes.len() as u32).map(of);
        all.reduce(RankProgress::and).unwrap()
    }
}

fn refused<E: Display>(rank: u32) -> impl Fn(E) -> RanksError {
    move |why| RanksError::Refused {
        who: format!("rank {rank}"),
        why: why.to_string(),
    }
}

impl Ranks for Seat {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.hall.nodes.len() as u32
    }

    fn node(&self, rank: u32) -> &str {
        &self.hall.nodes[rank as usize]
    }

    fn serve(&self, host: Arc<dyn RankService>) {
        self.hall
            .state
            .lock()
            .unwrap()
            .hosts
            .insert(self.rank, host);
    }

    fn exchange(&self, word: &[u8], within: Duration) -> Result<Vec<Box<[u8]>>, RanksError> {
        let mut round = self.round.lock().unwrap();
        {
            let mut state = self.hall.state.lock().unwrap();
            if state.rounds.len() <= *round {
                state.rounds.push(BTreeMap::new());
            }
            state.rounds[*round].insert(self.rank, word.into());
        }
        self.hall.changed.notify_all();
        let all = self.hall.until(within, "meet", |state| {
            let words = &state.rounds[*round];
            (words.len() == self.hall.nodes.len()).then(|| words.values().cloned().collect())
        })?;
        *round += 1;
        Ok(all)
    }

    fn report_progress(&self, reached: RankProgress) {
        self.hall
            .state
            .lock()
            .unwrap()
            .reached
            .insert(self.rank, reached);
        self.hall.changed.notify_all();
        if let Some(after) = &mut *self.hall.after.lock().unwrap() {
            after(reached);
        }
    }

    fn common_progress(&self) -> RankProgress {
        self.hall.all(&self.hall.state.lock().unwrap())
    }

    fn wait(&self, least: RankProgress, within: Duration) -> Result<(), RanksError> {
        self.hall.until(within, "come so far", |state| {
            let all = self.hall.all(state);
            let mut counts = all.counts().into_iter().zip(least.counts());
            counts.all(|(is, least)| is >= least).then_some(())
        })
    }

    fn grant(
        &self,
        from: u32,
        generation: u64,
        bytes: u64,
        _: Duration,
    ) -> Result<String, RanksError> {
        let granted = self.hall.host(from)?.grant(self.rank, generation, bytes);
        granted.map_err(refused(from))
    }

    fn put(
        &self,
        to: u32,
        generation: u64,
        at: u64,
        bytes: &[u8],
        _: Duration,
    ) -> Result<u64, RanksError> {
        let put = self.hall.host(to)?.put(self.rank, generation, at, bytes);
        put.map_err(refused(to))
    }

    fn fetch(
        &self,
        from: u32,
        medium: &str,
        at: u64,
        into: &mut [u8],
        _: Duration,
        arrived: &mut dyn FnMut(&[u8]),
    ) -> Result<(), RanksError> {
        let file = self.hall.host(from)?.file(medium);
        let file = File::from(file.map_err(refused(from))?);
        let read = file.read_exact_at(into, at);
        read.map_err(refused(from))?;
        // Not chunk by chunk.
        arrived(&into[..into.len() / 3]);
        arrived(into);
        Ok(())
    }
}
