//! The decisions of the planner that a host keeps if it only observes: wishes about nodes, and copies that nobody makes.
//! A copy is over when its estimated time is; the next state of the site service corrects it.

use crate::rates::SiteRates;
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::site::{AllocationReason, JobNodes, Move, MoveId, SiteEvent, Where};
use tarn_types::units::{Nanos, SECOND, Time};

/// The time that a copy takes at least.
const LEAST: Nanos = SECOND / 100;

/// The planner's wish about a job that has not begun.
#[derive(Debug, Clone)]
pub(crate) struct NodeWish {
    pub(crate) nodes: JobNodes,
    pub(crate) begin: Time,
    pub(crate) why: AllocationReason,
    /// The planner began it; for so many snapshots Slurm did not.
    pub(crate) allocated_for: Option<u32>,
    /// All its data is there, as the planner has it.
    pub(crate) runs: bool,
}

impl NodeWish {
    pub(crate) fn planned(nodes: &JobNodes, begin: Time, why: AllocationReason) -> Self {
        Self {
            nodes: nodes.clone(),
            begin,
            why,
            allocated_for: None,
            runs: false,
        }
    }

    pub(crate) fn allocated(nodes: &JobNodes, begin: Time, why: AllocationReason) -> Self {
        Self {
            allocated_for: Some(0),
            ..Self::planned(nodes, begin, why)
        }
    }
}

/// Copies that the planner ordered.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostedMoves {
    ends: BTreeSet<(Time, MoveId)>,
    end_of: BTreeMap<MoveId, Time>,
    later: Vec<SiteEvent>,
}

impl HostedMoves {
    pub(crate) fn begin(&mut self, now: Time, order: &Move, rates: &SiteRates) {
        let end = now.saturating_add(duration(order, rates));
        self.ends.insert((end, order.id));
        self.end_of.insert(order.id, end);
    }

    pub(crate) fn cancel(&mut self, id: MoveId) -> Option<SiteEvent> {
        let end = self.end_of.remove(&id)?;
        self.ends.remove(&(end, id));
        Some(SiteEvent::MoveFailed { id })
    }

    /// The events of the copies that are over by now.
    pub(crate) fn over(&mut self, now: Time) -> Vec<SiteEvent> {
        let mut events = std::mem::take(&mut self.later);
        while let Some((end, id)) = self.ends.first().copied().filter(|(end, _)| *end <= now) {
            self.ends.remove(&(end, id));
            self.end_of.remove(&id);
            events.push(SiteEvent::Moved { id });
        }
        events
    }

    pub(crate) fn answer_later(&mut self, events: Vec<SiteEvent>) {
        self.later.extend(events);
    }

    /// When the next of them is over; 0 for at once.
    pub(crate) fn next(&self) -> Option<Time> {
        let end = self.ends.first().map(|(end, _)| *end);
        if self.later.is_empty() { end } else { Some(0) }
    }
}

/// How long a copy takes if nothing else is copied.
fn duration(order: &Move, rates: &SiteRates) -> Nanos {
    let (nodes, rate) = match (&order.from, &order.to) {
        (Where::Outside, Where::Nodes(to)) => (to.len(), rates.external.read.min(rates.tier.write)),
        (Where::Nodes(from), Where::Outside) => {
            (from.len(), rates.external.write.min(rates.tier.read))
        }
        (_, Where::Nodes(to)) => (to.len(), rates.link.read.min(rates.tier.write)),
        (Where::Outside, Where::Outside) => (1, 0),
    };
    let all = u128::from(rate).saturating_mul(nodes.max(1) as u128);
    let nanos = (u128::from(order.bytes) * u128::from(SECOND)).checked_div(all);
    let nanos = nanos.map_or(0, |n| Nanos::try_from(n).unwrap_or(Nanos::MAX));
    nanos.max(LEAST)
}
