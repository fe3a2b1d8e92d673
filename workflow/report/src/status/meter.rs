//! The rates of transfers, from a run's live status.

use super::TransferKindBytes;
use crate::names::kind_name;
use std::collections::{BTreeMap, VecDeque};
use tarn_types::history::History;
use tarn_types::id::TransferId;
use tarn_types::nodes::LiveRunStatus;
use tarn_types::part::TransferKind;
use tarn_types::units::{Nanos, SECOND, Time};

/// The time that a rate is taken over.
const WINDOW: Nanos = 5 * SECOND;

/// Bytes a second over the last [`WINDOW`].
#[derive(Debug, Default)]
struct TransferRateMeter(VecDeque<(Time, u64)>);

impl TransferRateMeter {
    fn note(&mut self, at: Time, bytes: u64) {
        match self.0.back_mut() {
            // The same look once more, or one from before (another process): it begins again.
            Some(last) if last.0 == at => last.1 = bytes,
            Some(last) if last.0 > at => self.0 = VecDeque::from([(at, bytes)]),
            _ => self.0.push_back((at, bytes)),
        }
        // One point at the window's edge or before it stays.
        while self.0.get(1).is_some_and(|p| p.0 + WINDOW <= at) {
            self.0.pop_front();
        }
    }

    /// `None` while there is nothing to compare with.
    fn rate(&self) -> Option<u64> {
        let (first, last) = (self.0.front()?, self.0.back()?);
        let took = last.0.checked_sub(first.0).filter(|t| *t > 0)?;
        Some(per_second(last.1.saturating_sub(first.1), took))
    }
}

fn per_second(bytes: u64, took: Nanos) -> u64 {
    let rate = u128::from(bytes) * u128::from(SECOND) / u128::from(took.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// The progress of a transfer that moves.
#[derive(Debug, Clone, Copy)]
pub(super) struct TransferRateEstimate {
    /// Bytes that are there.
    pub(super) done: u64,
    /// Bytes a second.
    pub(super) rate: Option<u64>,
    /// Nanoseconds to its end.
    pub(super) left: Option<Nanos>,
}

/// The meters of a run: one a transfer that moves, one a kind.
#[derive(Debug, Default)]
pub(super) struct Meters {
    transfers: BTreeMap<TransferId, (TransferRateMeter, TransferRateEstimate)>,
    kinds: BTreeMap<TransferKind, TransferRateMeter>,
    bytes: BTreeMap<TransferKind, u64>,
}

impl Meters {
    pub(super) fn read(&mut self, history: &History, live: Option<&LiveRunStatus>) {
        self.bytes = history.moved();
        let open = |id: &TransferId| history.transfers.get(id).is_some_and(|t| t.ended.is_none());
        let moving = live.map_or(&[][..], |l| &l.transfers);
        let moving: BTreeMap<_, _> = moving.iter().map(|m| (m.id, m)).collect();
        self.transfers
            .retain(|id, _| moving.contains_key(id) && open(id));
        for (id, m) in moving.into_iter().filter(|(id, _)| open(id)) {
            let done = m.done.min(m.total);
            let mut meter = match self.transfers.remove(&id) {
                Some((meter, _)) => meter,
                // It began with nothing.
                None => TransferRateMeter(VecDeque::from([(0, 0)])),
            };
            meter.note(m.elapsed, done);
            let rate = meter.rate();
            let left = rate.filter(|r| *r > 0).map(|r| {
                let left = u128::from(m.total - done) * u128::from(SECOND) / u128::from(r);
                u64::try_from(left).unwrap_or(u64::MAX)
            });
            let metered = TransferRateEstimate { done, rate, left };
            self.transfers.insert(id, (meter, metered));
            let sum = self.bytes.entry(m.kind).or_default();
            *sum = sum.saturating_add(done);
        }
        let Some(live) = live else {
            self.kinds.clear();
            return;
        };
        for (kind, bytes) in &self.bytes {
            self.kinds.entry(*kind).or_default().note(live.now, *bytes);
        }
    }

    pub(super) fn of(&self, id: TransferId) -> Option<TransferRateEstimate> {
        self.transfers.get(&id).map(|(_, metered)| *metered)
    }

    pub(super) fn moved(&self, elapsed: Nanos) -> Vec<TransferKindBytes> {
        let moved = self.bytes.iter().map(|(kind, bytes)| TransferKindBytes {
            kind: kind_name(*kind).into(),
            bytes: *bytes,
            mean: per_second(*bytes, elapsed),
            rate: self.kinds.get(kind).and_then(TransferRateMeter::rate),
        });
        moved.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_of_the_last_five_seconds() {
        let mut meter = TransferRateMeter::default();
        assert_eq!(meter.rate(), None);
        for (second, bytes) in [(0, 0), (1, 100), (1, 200), (2, 200)] {
            meter.note(second * SECOND, bytes);
        }
        assert_eq!(meter.rate(), Some(100));
        for second in 3..9 {
            meter.note(second * SECOND, 200);
        }
        assert_eq!((meter.rate(), meter.0.len()), (Some(0), 6));
        // A run that continues in another process, from an earlier time.
        meter.note(SECOND, 50);
        assert_eq!(meter.rate(), None);
    }
}
