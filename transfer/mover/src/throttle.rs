//! Rate and latency limits: emulating a slow external store.

use crate::error::{Result, cancelled};
use crate::queue::lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tarn_ports::Watch;

/// Bytes may run ahead of the rate by so much time: enough to hide the coarseness of sleeping, too little to
/// show in a transfer of a second.
const BURST: Duration = Duration::from_millis(2);
/// The longest sleep between two looks at the cancel flag.
const NAP: Duration = Duration::from_millis(50);
/// Different limiters kept; a process emulates one or two stores.
const MAX_LIMITERS: usize = 64;

/// A token bucket for bytes and a cost for each file, shared by all threads and jobs that use one store.
///
/// # Examples
/// ```
/// use std::time::{Duration, Instant};
/// use tarn_mover::throttle::Limiter;
/// use tarn_ports::Control;
///
/// let limiter = Limiter::new(10_000_000, 0); // bytes a second
/// let began = Instant::now();
/// for _ in 0..10 {
///     limiter.bytes(100_000, &Control::default())?;
/// }
/// println!("1 MB took {:?}", began.elapsed());
/// # Ok::<(), tarn_ports::MoverError>(())
/// ```
#[derive(Debug)]
pub struct Limiter {
    /// Bytes a second; 0 for no limit.
    rate: u64,
    latency: Duration,
    /// The moment at which all bytes granted so far will have passed.
    paid_until: Mutex<Instant>,
    /// The limiters that bound this one too.
    under: Vec<Arc<Limiter>>,
    /// The part of the rate that is its.
    share: Arc<RateShare>,
}

/// A part of a rate, of which others have the rest elsewhere: all, until another part is set.
#[derive(Debug)]
struct RateShare {
    /// Upper half: how many parts; lower half: of how many.
    parts: AtomicU64,
}

impl Default for RateShare {
    fn default() -> Self {
        let parts = AtomicU64::new(1 << 32 | 1);
        Self { parts }
    }
}

impl RateShare {
    fn set(&self, own: u32, all: u32) {
        let own = own.max(1);
        let all = all.max(own);
        let parts = u64::from(own) << 32 | u64::from(all);
        self.parts.store(parts, Ordering::Relaxed);
    }

    fn get(&self) -> f64 {
        let parts = self.parts.load(Ordering::Relaxed);
        (parts >> 32) as f64 / (parts & u64::from(u32::MAX)) as f64
    }
}

impl Limiter {
    /// A limiter of `rate` bytes a second (0 for no limit) over everything that shares it, and `latency`
    /// nanoseconds for every file on the thread that opens it.
    pub fn new(rate: u64, latency: u64) -> Arc<Self> {
        Self::sharing(rate, latency, Arc::default())
    }

    fn sharing(rate: u64, latency: u64, share: Arc<RateShare>) -> Arc<Self> {
        Arc::new(Self {
            rate,
            latency: Duration::from_nanos(latency),
            paid_until: Mutex::new(Instant::now()),
            under: Vec::new(),
            share,
        })
    }

    /// A limiter of its own rate (0 for no limit) for work that others limit as well, each together with all
    /// else that it limits.
    pub fn under(rate: u64, others: Vec<Arc<Self>>) -> Arc<Self> {
        Arc::new(Self {
            rate,
            latency: Duration::ZERO,
            paid_until: Mutex::new(Instant::now()),
            under: others,
            share: Arc::default(),
        })
    }

    /// Waits until `bytes` may pass. Sleeps, never spins.
    ///
    /// # Errors
    /// `Cancelled`.
    pub fn bytes(&self, bytes: u64, watch: &dyn Watch) -> Result<()> {
        for other in &self.under {
            other.bytes(bytes, watch)?;
        }
        if self.rate == 0 {
            return Ok(());
        }
        let cost = Duration::from_secs_f64(bytes as f64 / (self.rate as f64 * self.share.get()));
        let until = {
            let mut paid = lock(&self.paid_until);
            let now = Instant::now();
            let start = now
                .checked_sub(BURST)
                .map_or(now, |earliest| (*paid).max(earliest));
            *paid = start + cost;
            *paid
        };
        sleep_until(until, watch)
    }

    /// Waits as long as opening a file takes.
    ///
    /// # Errors
    /// `Cancelled`.
    pub fn file(&self, watch: &dyn Watch) -> Result<()> {
        for other in &self.under {
            other.file(watch)?;
        }
        if self.latency.is_zero() {
            return Ok(());
        }
        sleep_until(Instant::now() + self.latency, watch)
    }
}

fn sleep_until(until: Instant, watch: &dyn Watch) -> Result<()> {
    loop {
        if watch.stopped() {
            return Err(cancelled());
        }
        match until.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => std::thread::sleep(left.min(NAP)),
            _ => return Ok(()),
        }
    }
}

/// The limiters in use: one for each pair of rate and latency.
#[derive(Debug, Default)]
pub(crate) struct Limiters {
    known: Mutex<BTreeMap<(u64, u64), Arc<Limiter>>>,
    share: Arc<RateShare>,
}

impl Limiters {
    /// The part of their rates that all of these limiters have.
    pub(crate) fn pace(&self, own: u32, all: u32) {
        self.share.set(own, all);
    }

    /// The limiter of this rate and latency; `None` when neither limits anything.
    pub(crate) fn get(&self, rate: u64, latency: u64) -> Option<Arc<Limiter>> {
        if (rate, latency) == (0, 0) {
            return None;
        }
        let mut known = lock(&self.known);
        if known.len() >= MAX_LIMITERS {
            known.retain(|_, limiter| Arc::strong_count(limiter) > 1);
        }
        let limiter = known
            .entry((rate, latency))
            .or_insert_with(|| Limiter::sharing(rate, latency, Arc::clone(&self.share)));
        Some(Arc::clone(limiter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_ports::Control;

    #[test]
    fn threads_share_one_rate() {
        let limiter = Limiter::new(10_000_000, 0);
        let control = Control::default();
        let start = Instant::now();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..10).for_each(|_| limiter.bytes(50_000, &control).unwrap()));
            }
        });
        // 2 MB at 10 MB/s, less the burst.
        assert!(
            start.elapsed() >= Duration::from_millis(195),
            "{:?}",
            start.elapsed()
        );
    }

    #[test]
    fn one_under_another_keeps_both_rates() {
        let store = Limiter::new(10_000_000, 0);
        let control = Control::default();
        let start = Instant::now();
        std::thread::scope(|s| {
            for rate in [0, 1_000_000] {
                let own = Limiter::under(rate, vec![Arc::clone(&store)]);
                let (control, pieces) = (&control, if rate == 0 { 18 } else { 2 });
                s.spawn(move || (0..pieces).for_each(|_| own.bytes(100_000, control).unwrap()));
            }
        });
        // 2 MB in all at 10 MB/s, and 0.2 MB of it at 1 MB/s.
        assert!(start.elapsed() >= Duration::from_millis(195));
    }

    #[test]
    fn a_part_of_a_rate_is_its_own_until_it_has_all_again() {
        let all = Limiters::default();
        let limiter = all.get(10_000_000, 0).unwrap();
        let control = Control::default();
        let taken = || {
            let start = Instant::now();
            (0..5).for_each(|_| limiter.bytes(100_000, &control).unwrap());
            start.elapsed()
        };
        all.pace(1, 4);
        // 0.5 MB at 2.5 MB/s, less the burst.
        let part = taken();
        assert!(part >= Duration::from_millis(195), "{part:?}");
        all.pace(4, 4);
        let whole = taken();
        assert!(
            whole >= Duration::from_millis(45) && whole < part,
            "{whole:?}"
        );
        // A share that makes no sense counts as the whole.
        all.pace(0, 0);
        assert!(taken() < part);
    }

    #[test]
    fn latency_and_cancellation() {
        let limiter = Limiter::new(1, 20_000_000);
        let control = Control::default();
        let start = Instant::now();
        limiter.file(&control).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(20));
        control
            .cancel
            .store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(limiter.bytes(1 << 40, &control).is_err());
    }

    #[test]
    fn limiters_are_shared_and_bounded() {
        let all = Limiters::default();
        let one = all.get(5, 0).unwrap();
        assert!(Arc::ptr_eq(&one, &all.get(5, 0).unwrap()));
        assert!(all.get(0, 0).is_none());
        (6..1000).for_each(|rate| drop(all.get(rate, 0)));
        assert!(lock(&all.known).len() <= MAX_LIMITERS + 1);
        assert!(Arc::ptr_eq(&one, &all.get(5, 0).unwrap()));
    }
}
