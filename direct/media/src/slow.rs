//! An NVRAM that is slower than the medium it is emulated on, as Phoenix was evaluated (Fernando 2016, section
//! III): writes take the time that a device of the given bandwidths and latency would take. A waiting thread
//! sleeps, so that the processor is free for others.

use crate::map::MappedFile;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tarn_ports::{Medium, MediumError, MediumWindow, Promises, ReadableMedium};
use tarn_types::units::{Nanos, SECOND};

/// So much later than it should have been a sleeper may wake and make up for it: timers of the kernel are
/// late by less.
const LATE: Nanos = 2_000_000;
/// Threads whose rates are remembered.
const MAX_CORES: usize = 1024;

/// A device that is emulated (Fernando 2016, section III).
///
/// # Examples
/// ```
/// use tarn_media::Profile;
///
/// let nvram = Profile::named("device=2.5GB/s,latency=300ns")?;
/// assert_eq!((nvram.device, nvram.core, nvram.latency), (2_500_000_000, 0, 300));
/// assert_eq!(Profile::none().device, 0);
/// assert!(Profile::named("no-such-device").is_err());
/// # Ok::<(), tarn_media::ProfileError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Its name in results.
    pub name: String,
    /// Bytes a second that the device takes from all cores together; 0 for no limit.
    pub device: u64,
    /// Bytes a second that one core gets; 0 for no limit.
    pub core: u64,
    /// Nanoseconds that each write waits beside that.
    pub latency: Nanos,
}

/// When a device is free again, by the system's monotonic clock: a queue that takes so many bytes a second.
/// In memory that processes share it is one device for all of them.
#[derive(Debug, Default)]
#[repr(transparent)]
struct DeviceQueue {
    free: AtomicU64,
}

impl DeviceQueue {
    /// When bytes have gone through that come now.
    fn take(&self, now: Nanos, bytes: u64, rate: u64) -> Nanos {
        if rate == 0 {
            return now;
        }
        let lasts = u128::from(bytes) * u128::from(SECOND) / u128::from(rate);
        let lasts = Nanos::try_from(lasts).unwrap_or(Nanos::MAX);
        // Lateness is made up for; idle time is not saved.
        let end = |free: Nanos| free.max(now.saturating_sub(LATE)).saturating_add(lasts);
        let before = self
            .free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |f| Some(end(f)));
        before.map_or(now, end)
    }
}

impl Profile {
    /// A device that takes no longer than the medium.
    pub fn none() -> Self {
        Self {
            name: "none".into(),
            device: 0,
            core: 0,
            latency: 0,
        }
    }

    fn is_none(&self) -> bool {
        self.device == 0 && self.core == 0 && self.latency == 0
    }

    /// When a write of one core ends that begins now.
    fn end(&self, device: &DeviceQueue, core: &DeviceQueue, now: Nanos, bytes: u64) -> Nanos {
        let device = device.take(now, bytes, self.device);
        let core = core.take(now, bytes, self.core);
        device.max(core).max(now).saturating_add(self.latency)
    }
}

/// A device that is emulated, for all media on it. [`EmulatedMedium`] has an example.
#[derive(Debug)]
pub struct Device {
    profile: Profile,
    queue: DeviceQueueMemory,
    /// The queue of each thread, which bounds its writes: threads stand for cores here.
    cores: Mutex<BTreeMap<u64, Arc<DeviceQueue>>>,
}

/// The memory of a device's queue.
#[derive(Debug)]
enum DeviceQueueMemory {
    Own(DeviceQueue),
    /// In a file, for all processes that emulate this device.
    Shared(MappedFile),
}

impl Device {
    /// A device for this process.
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            queue: DeviceQueueMemory::Own(DeviceQueue::default()),
            cores: Mutex::default(),
        }
    }

    /// A device for all processes that name this file, which is made if it is not there.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub fn shared(profile: Profile, file: &Path) -> Result<Self, MediumError> {
        Ok(Self {
            queue: DeviceQueueMemory::Shared(MappedFile::shared(
                file,
                size_of::<DeviceQueue>() as u64,
            )?),
            profile,
            cores: Mutex::default(),
        })
    }

    fn queue(&self) -> &DeviceQueue {
        match &self.queue {
            DeviceQueueMemory::Own(queue) => queue,
            // SAFETY: the mapping is as large as the queue, begins at a page, lives as long as this, and is only used as an atomic,
            // by all processes.
            DeviceQueueMemory::Shared(mapped) => unsafe {
                mapped.start().cast::<DeviceQueue>().as_ref()
            },
        }
    }

    /// The queue of this thread's core.
    fn core(&self) -> Arc<DeviceQueue> {
        thread_local! {
            static THREAD: u64 = {
                static NEXT: AtomicU64 = AtomicU64::new(0);
                NEXT.fetch_add(1, Ordering::Relaxed)
            };
        }
        let mut cores = self.cores.lock().unwrap_or_else(PoisonError::into_inner);
        if cores.len() > MAX_CORES {
            // Those that are not waiting have nothing to remember.
            cores.retain(|_, core| Arc::strong_count(core) > 1);
        }
        Arc::clone(cores.entry(THREAD.with(|n| *n)).or_default())
    }
}

/// A medium that takes the time of another: its writes sleep until the emulated device would have taken them.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use std::time::{Duration, Instant};
/// use tarn_media::{Device, EmulatedMedium, MappedFile, Profile};
/// use tarn_ports::{Medium, MediumWindow};
///
/// # let folder = tempfile::tempdir_in("/dev/shm").unwrap();
/// let slow = Profile::named("device=10MB/s").unwrap();
/// let file = MappedFile::create(&folder.path().join("file"), 1 << 20)?;
/// let mut medium = EmulatedMedium::new(file, Arc::new(Device::new(slow)));
/// let began = Instant::now();
/// medium.windows(&[0..1 << 20])?[0].write(0, &[1; 500_000])?; // 50 ms at 10 MB/s
/// assert!(began.elapsed() >= Duration::from_millis(40));
/// # Ok::<(), tarn_ports::MediumError>(())
/// ```
#[derive(Debug)]
pub struct EmulatedMedium<M> {
    medium: M,
    device: Arc<Device>,
}

impl<M: Medium> EmulatedMedium<M> {
    /// Emulates a device on a medium.
    pub fn new(medium: M, device: Arc<Device>) -> Self {
        Self { medium, device }
    }
}

impl<M: Medium> Medium for EmulatedMedium<M> {
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
        };
        Ok(windows.map(slow).collect())
    }

    fn grow(&mut self, size: u64) -> Result<(), MediumError> {
        self.medium.grow(size)
    }
}

/// A part of such a medium.
#[derive(Debug)]
pub struct SlowWindow<W> {
    window: W,
    device: Arc<Device>,
}

impl<W: MediumWindow> ReadableMedium for SlowWindow<W> {
    fn size(&self) -> u64 {
        self.window.size()
    }

    /// Reads are as fast as the medium: writing is the limit (Fernando 2016, section I).
    fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
        self.window.read(at, into)
    }
}

impl<W: MediumWindow> MediumWindow for SlowWindow<W> {
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<u64, MediumError> {
        let device = &self.device;
        if device.profile.is_none() {
            return self.window.write(at, bytes);
        }
        let began = now();
        let sum = self.window.write(at, bytes)?;
        let len = bytes.len() as u64;
        let end = device
            .profile
            .end(device.queue(), &device.core(), began, len);
        let left = end.saturating_sub(now());
        if left > 0 {
            std::thread::sleep(Duration::from_nanos(left));
        }
        Ok(sum)
    }

    fn write_both(&mut self, other: &mut Self, at: u64, bytes: &[u8]) -> Result<u64, MediumError> {
        if self.device.profile.is_none() && other.device.profile.is_none() {
            return self.window.write_both(&mut other.window, at, bytes);
        }
        other.write(at, bytes)?;
        self.write(at, bytes)
    }

    fn warm(&mut self) {
        self.window.warm();
    }

    fn persist(&mut self) -> Result<(), MediumError> {
        self.window.persist()
    }

    fn pinned(&self) -> Result<Vec<Range<u64>>, MediumError> {
        self.window.pinned()
    }
}

/// The system's monotonic clock, the same for all processes.
fn now() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
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
    fn emulate_writes(
        profile: &Profile,
        cores: usize,
        pieces: u32,
        bytes: u64,
        late: Nanos,
    ) -> Nanos {
        let device = DeviceQueue::default();
        let queues: Vec<DeviceQueue> = (0..cores).map(|_| DeviceQueue::default()).collect();
        // A core comes again when its piece has ended, and a little late.
        let mut at: Vec<Nanos> = vec![0; cores];
        for _ in 0..pieces {
            for core in 0..cores {
                let next = (0..cores).min_by_key(|c| at[*c]).unwrap_or(core);
                at[next] = profile.end(&device, &queues[next], at[next], bytes) + late;
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
        close(emulate_writes(&both, 1, 1000, MB, 0), 2.5);
        close(emulate_writes(&both, 2, 1000, MB, 0), 2.5);
        close(emulate_writes(&both, 4, 1000, MB, 0), 4.0);
        close(
            emulate_writes(&profile(1000 * MB, 0, 0), 1, 1000, MB, 0),
            1.0,
        );
        close(
            emulate_writes(&profile(0, 400 * MB, 0), 4, 1000, MB, 0),
            2.5,
        );
    }

    #[test]
    fn latency_is_paid_for_each_write() {
        close(emulate_writes(&profile(0, 0, 500_000), 1, 2000, MB, 0), 1.0);
        close(
            emulate_writes(&profile(1000 * MB, 0, 0), 1, 2000, MB / 10, 0),
            0.2,
        );
    }

    /// A sleeper that wakes late does not make the device slower; one that comes back after a while finds it
    /// idle, not faster.
    #[test]
    fn late_is_made_up_for_and_idle_is_not_saved() {
        let device = profile(1000 * MB, 0, 0);
        close(emulate_writes(&device, 1, 1000, MB, LATE / 10), 1.0);
        let (queue, core) = (DeviceQueue::default(), DeviceQueue::default());
        device.end(&queue, &core, 0, MB);
        let later = 10 * SECOND;
        let end = device.end(&queue, &core, later, 100 * MB);
        assert!(end >= later + SECOND / 10 - LATE, "{end}");
    }
}
