//! This machine, measured while something runs on it.

use crate::account::EnergyAccount;
use crate::sensors::{Reading, Sensors};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tarn_ports::{Meter, MeteredActivity};
use tarn_types::energy::{Draw, Energy, Power};

/// Between two readings while something runs: far less than any counter takes to start again.
pub const SAMPLE: Duration = Duration::from_secs(5);
/// Between two readings of counters from which power is computed: they are updated every millisecond.
const WINDOW: Duration = Duration::from_millis(200);

/// This machine.
pub struct MachineMeter(Arc<MachineMeterState>);

struct MachineMeterState {
    sensors: Sensors,
    /// The moment from which the times of its readings count.
    epoch: Instant,
    state: Mutex<SamplingState>,
}

#[derive(Default)]
struct SamplingState {
    account: EnergyAccount,
    /// The last reading, while something runs.
    last: Option<Reading>,
    /// Whether a thread reads from time to time.
    sampled: bool,
}

impl MachineMeter {
    /// The machine that shows its devices in this folder (`/sys`).
    pub fn new(sysfs: &Path) -> Self {
        Self(Arc::new(MachineMeterState {
            sensors: Sensors::find(sysfs),
            epoch: Instant::now(),
            state: Mutex::default(),
        }))
    }

    /// Its sensors.
    pub fn sensors(&self) -> &Sensors {
        &self.0.sensors
    }
}

impl MachineMeterState {
    fn state(&self) -> MutexGuard<'_, SamplingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> Option<Reading> {
        self.sensors.read(self.epoch.elapsed())
    }

    /// Divides the energy drawn since the last reading. Readings are made one at a time, so that each is later than the one
    /// before.
    fn settle(&self, state: &mut SamplingState) {
        let now = self.read();
        if !state.account.is_idle() {
            let both = state.last.as_ref().zip(now.as_ref());
            let drawn = both.and_then(|(last, now)| self.sensors.between(last, now));
            state.account.drawn(drawn);
        }
        state.last = now;
    }

    fn sample(&self) {
        loop {
            std::thread::sleep(SAMPLE);
            let mut state = self.state();
            if state.account.is_idle() {
                state.sampled = false;
                return;
            }
            self.settle(&mut state);
        }
    }
}

impl Meter for MachineMeter {
    fn draw(&self) -> Draw {
        let sensors = &self.0.sensors;
        let milliwatts = sensors.milliwatts().or_else(|| {
            let first = self.0.read()?;
            let begun = Instant::now();
            std::thread::sleep(WINDOW);
            let last = self.0.read()?;
            let passed = u64::try_from(begun.elapsed().as_micros()).ok()?;
            let drawn = sensors.between(&first, &last)?;
            (u128::from(drawn) * 1000)
                .checked_div(passed.into())
                .and_then(|mw| u64::try_from(mw).ok())
        });
        let power = milliwatts.zip(sensors.source());
        Draw {
            power: power.map(|(milliwatts, source)| Power { milliwatts, source }),
            warmth: sensors.warmth(),
        }
    }

    fn begin(&self, cores: u32) -> Option<Box<dyn MeteredActivity>> {
        self.0.sensors.source()?;
        let mut state = self.0.state();
        self.0.settle(&mut state);
        let id = state.account.begin(cores);
        if !state.sampled {
            let inner = Arc::clone(&self.0);
            let thread = std::thread::Builder::new().name("tarn-power".into());
            // Without it, readings are made at begins and ends.
            state.sampled = thread.spawn(move || inner.sample()).is_ok();
        }
        let inner = Arc::clone(&self.0);
        Some(Box::new(EnergyShareMeter {
            inner,
            id: Some(id),
        }))
    }
}

struct EnergyShareMeter {
    inner: Arc<MachineMeterState>,
    /// Until it has ended.
    id: Option<u64>,
}

impl EnergyShareMeter {
    fn take(&mut self) -> Option<u64> {
        let id = self.id.take()?;
        let mut state = self.inner.state();
        self.inner.settle(&mut state);
        state.account.end(id)
    }
}

impl MeteredActivity for EnergyShareMeter {
    fn end(mut self: Box<Self>) -> Option<Energy> {
        let source = self.inner.sensors.source()?;
        let microjoules = self.take()?;
        Some(Energy {
            millijoules: microjoules / 1000,
            source,
        })
    }
}

impl Drop for EnergyShareMeter {
    fn drop(&mut self) {
        self.take();
    }
}
