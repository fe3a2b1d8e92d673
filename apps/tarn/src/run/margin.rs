//! The time that a run leaves to itself before its allocation ends: the requested time, and the time to bring out data that
//! must not be lost (`on_failure = "drain"`) at the rate that was seen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tarn_types::history::{History, TransferEnd};
use tarn_types::id::DataId;
use tarn_types::part::{Place, TransferKind};
use tarn_types::units::{Nanos, SECOND};
use tarn_types::workflow::{Dataset, OnFailure, Workflow};

/// Datasets that are named.
const NAMED: usize = 8;
/// With so many parts the history is looked at after every second record, with twice as many after every third, and so on: the
/// part that one record changes is smaller and smaller.
const PARTS: u64 = 100;
/// Bytes that have to be brought out before their rate counts.
const SAMPLE: u64 = 16 << 20;

/// A handle, cheap to clone: one end looks at what happens, another watches the clock.
#[derive(Debug, Clone)]
pub(crate) struct Margin(Arc<MarginState>);

#[derive(Debug)]
struct MarginState {
    least: Duration,
    /// Nanoseconds for data that must not be lost.
    saving: AtomicU64,
    /// Records that were not looked at since the last that was.
    passed: AtomicU64,
}

/// The data that is lost with the nodes when an allocation ends early, and how to keep it: results that `on_failure` does not
/// bring out then.
pub(crate) fn at_risk(w: &Workflow) -> Option<String> {
    let made = |id: DataId| w.last_version(id) > 0;
    let ids = (0u32..).map(DataId).zip(&w.data);
    let lost: Vec<String> = ids
        .filter(|(id, d)| made(*id) && d.on_failure == OnFailure::Discard)
        .filter(|(_, d)| d.dest.is_some() || w.external.is_some())
        .map(|(_, d)| format!("`{}`", d.name))
        .collect();
    if lost.is_empty() {
        return None;
    }
    let shown = tarn_types::text::first_of(&lost, NAMED);
    Some(format!(
        "if an allocation ends before its run, the parts of {shown} made by then are lost with its nodes; `on_failure = \"drain\"` on a dataset copies them out"
    ))
}

impl Margin {
    pub(crate) fn new(seconds: u64) -> Self {
        Self(Arc::new(MarginState {
            least: Duration::from_secs(seconds),
            saving: AtomicU64::new(0),
            passed: AtomicU64::new(0),
        }))
    }

    /// The margin that the user set.
    pub(crate) fn least(&self) -> Duration {
        self.0.least
    }

    /// The additional time to bring out the data that must not be lost.
    pub(crate) fn saving(&self) -> Duration {
        Duration::from_nanos(self.0.saving.load(Ordering::Relaxed))
    }

    /// Updates the estimate with one more record.
    pub(crate) fn look(&self, history: &History) {
        let passed = self.0.passed.fetch_add(1, Ordering::Relaxed);
        if passed >= history.parts.len() as u64 / PARTS {
            self.0.passed.store(0, Ordering::Relaxed);
            let nanos = time_to_save(history);
            self.0.saving.store(nanos, Ordering::Relaxed);
        }
    }
}

fn time_to_save(history: &History) -> Nanos {
    let Some(start) = &history.start else {
        return 0;
    };
    let drains = |d: &Dataset| d.on_failure == OnFailure::Drain;
    if start.allocation.is_none() || !start.workflow.data.iter().any(drains) {
        return 0;
    }
    let drained = |data: DataId| drains(start.workflow.dataset(data));
    let outside = |place: &Place| !matches!(place, Place::Node(_));
    // Of each dataset the newest version; its parts outside are safe.
    let mut newest: BTreeMap<DataId, (u32, u64)> = BTreeMap::new();
    for (name, info) in history.parts.iter().filter(|(name, _)| drained(name.data)) {
        let safe = name.version == 0 || history.places(*name).any(outside);
        let entry = newest.entry(name.data).or_default();
        if name.version > entry.0 {
            *entry = (name.version, 0);
        }
        if name.version == entry.0 && !safe {
            entry.1 = entry.1.saturating_add(info.bytes);
        }
    }
    let bytes: u64 = newest.values().map(|(_, bytes)| bytes).sum();
    let (mut seen, mut took) = (0u64, 0u64);
    for transfer in history.transfers.values() {
        if let Some((_, TransferEnd::Done { bytes, took: t, .. })) = transfer.ended
            && transfer.order.kind == TransferKind::ExternalOut
        {
            (seen, took) = (seen.saturating_add(bytes), took.saturating_add(t));
        }
    }
    let rate = if seen >= SAMPLE && took > 0 {
        u128::from(seen) * u128::from(SECOND) / u128::from(took)
    } else {
        u128::from(start.cluster.external.write)
    };
    let nanos = (u128::from(bytes) * u128::from(SECOND)).checked_div(rate);
    nanos.map_or(0, |n| u64::try_from(n).unwrap_or(u64::MAX))
}
