//! An NVRAM that is slower than the medium it is played on, as Phoenix was evaluated (Fernando 2016, section III): writes take the
//! time that a device of the given bandwidths and latency would take. Who waits sleeps, so that the processor is free for others.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tarn_base::units::{Nanos, SECOND};
use tarn_ports::{Medium, MediumError, Promises, Stored, Window};

/// So much later than it should have been a sleeper may wake and make up for it: timers of the kernel are late by less.
const LATE: Nanos = 2_000_000;

/// A device that is played.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// What it is called in results.
    pub name: String,
    /// Bytes a second that the device takes from all cores together; 0 for no limit.
    pub device: u64,
    /// Bytes a second that one core gets; 0 for no limit.
    pub core: u64,
    /// Nanoseconds that each write waits beside that.
    pub latency: Nanos,
}

/// When writes end: a queue that takes `rate` bytes a second.
#[derive(Debug, Clone, Copy, Default)]
struct Queue {
    free: Nanos,
}

impl Queue {
    /// When bytes have gone through that come now.
    fn take(&mut self, now: Nanos, bytes: u64, rate: u64) -> Nanos {
        if rate == 0 {
            return now;
        }
        // What was late before is made up for; idle time is not saved.
        let begin = self.free.max(now.saturating_sub(LATE));
        let lasts = u128::from(bytes) * u128::from(SECOND) / u128::from(rate);
        self.free = begin.saturating_add(lasts as Nanos);
        self.free
    }
}

impl Profile {
    /// When a write of one core ends that begins now.
    fn end(&self, device: &mut Queue, core: &mut Queue, now: Nanos, bytes: u64) -> Nanos {
        let device = device.take(now, bytes, self.device);
        let core = core.take(now, bytes, self.core);
        device.max(core).max(now).saturating_add(self.latency)
    }
}

/// What all windows share.
#[derive(Debug)]
struct Device {
    profile: Profile,
    since: Instant,
    queue: Mutex<Queue>,
}

/// A medium that takes the time of another.
#[derive(Debug)]
pub struct Slow<M> {
    medium: M,
    device: Arc<Device>,
}

impl<M: Medium> Slow<M> {
    /// Plays a device on a medium.
    pub fn new(medium: M, profile: Profile) -> Self {
        let device = Device {
            profile,
            since: Instant::now(),
            queue: Mutex::default(),
        };
        Self {
            medium,
            device: Arc::new(device),
        }
    }

    /// What is played.
    pub fn profile(&self) -> &Profile {
        &self.device.profile
    }
}

impl<M: Medium> Medium for Slow<M> {
    type Window<'a>
        = SlowWindow<M::Window<'a>>
    where
        Self: 'a;

    fn promises(&self) -> Promises {
        self.medium.promises()
    }

    fn size(&self) -> u64 {
        self.medium.size()
    }

    fn windows(&mut self, ranges: &[Range<u64>]) -> Result<Vec<Self::Window<'_>>, MediumError> {
        let device = &self.device;
        let windows = self.medium.windows(ranges)?.into_iter();
        let slow = |window| SlowWindow {
            window,
            device: Arc::clone(device),
            core: Queue::default(),
        };
        Ok(windows.map(slow).collect())
    }

    fn grow(&mut self, size: u64) -> Result<(), MediumError> {
        self.medium.grow(size)
    }
}

/// A part of such a medium, in the hands of one core.
#[derive(Debug)]
pub struct SlowWindow<W> {
    window: W,
    device: Arc<Device>,
    core: Queue,
}

impl<W: Window> Stored for SlowWindow<W> {
    fn size(&self) -> u64 {
        self.window.size()
    }

    /// Reads are as fast as the medium: writing is what limits (Fernando 2016, section I).
    fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
        self.window.read(at, into)
    }
}

impl<W: Window> Window for SlowWindow<W> {
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<u64, MediumError> {
        let device = &self.device;
        let now = nanos(device.since.elapsed());
        let sum = self.window.write(at, bytes)?;
        let end = {
            let mut queue = device.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let profile = &device.profile;
            profile.end(&mut queue, &mut self.core, now, bytes.len() as u64)
        };
        let left = end.saturating_sub(nanos(device.since.elapsed()));
        if left > 0 {
            std::thread::sleep(Duration::from_nanos(left));
        }
        Ok(sum)
    }

    fn persist(&mut self) -> Result<(), MediumError> {
        self.window.persist()
    }
}

fn nanos(time: Duration) -> Nanos {
    Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    fn profile(device: u64, core: u64, latency: Nanos) -> Profile {
        Profile {
            name: "test".into(),
            device,
            core,
            latency,
        }
    }

    /// The time at which so many cores have written so many pieces each, one piece after the other.
    fn played(profile: &Profile, cores: usize, pieces: u32, bytes: u64, late: Nanos) -> Nanos {
        let mut device = Queue::default();
        let mut queues = vec![Queue::default(); cores];
        // A core comes again when its piece has ended, and a little late.
        let mut at: Vec<Nanos> = vec![0; cores];
        for _ in 0..pieces {
            for core in 0..cores {
                let next = (0..cores).min_by_key(|c| at[*c]).unwrap_or(core);
                at[next] = profile.end(&mut device, &mut queues[next], at[next], bytes) + late;
            }
        }
        at.into_iter().max().unwrap_or(0)
    }

    fn close(is: Nanos, seconds: f64) {
        let ratio = is as f64 / (seconds * SECOND as f64);
        assert!((0.98..1.02).contains(&ratio), "{is} ns for {seconds} s");
    }

    #[test]
    fn one_core_is_held_to_its_own_rate_and_many_to_the_devices() {
        let both = profile(1000 * MB, 400 * MB, 0);
        close(played(&both, 1, 1000, MB, 0), 2.5);
        close(played(&both, 2, 1000, MB, 0), 2.5);
        close(played(&both, 4, 1000, MB, 0), 4.0);
        close(played(&profile(1000 * MB, 0, 0), 1, 1000, MB, 0), 1.0);
        close(played(&profile(0, 400 * MB, 0), 4, 1000, MB, 0), 2.5);
    }

    #[test]
    fn latency_is_paid_for_each_write() {
        close(played(&profile(0, 0, 500_000), 1, 2000, MB, 0), 1.0);
        close(played(&profile(1000 * MB, 0, 0), 1, 2000, MB / 10, 0), 0.2);
    }

    /// A sleeper that wakes late does not make the device slower; one that comes back after a while finds it idle, not faster.
    #[test]
    fn late_is_made_up_for_and_idle_is_not_saved() {
        let device = profile(1000 * MB, 0, 0);
        close(played(&device, 1, 1000, MB, LATE / 10), 1.0);
        let (mut queue, mut core) = (Queue::default(), Queue::default());
        device.end(&mut queue, &mut core, 0, MB);
        let later = 10 * SECOND;
        let end = device.end(&mut queue, &mut core, later, 100 * MB);
        assert!(end >= later + SECOND / 10 - LATE, "{end}");
    }
}
