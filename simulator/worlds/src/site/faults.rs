//! The faults of a site, drawn from a seed. Whether a given move or attempt fails depends on its number only.

use crate::faults::mix;
use tarn_types::id::NodeId;
use tarn_types::random::unit;
use tarn_types::site::{JobId, MoveId};
use tarn_types::units::{Nanos, Time};

/// The faults of a site. The default: none.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SiteFaults {
    /// Seed of all draws.
    pub seed: u64,
    /// From then on nothing new goes wrong; lost nodes and slow resources come back in their time.
    pub until: Time,
    /// Mean time between losses of a node, over the machine; 0 for none.
    pub loss_every: Nanos,
    /// How long a lost node stays away.
    pub loss_for: Nanos,
    /// Probability (0 to 1) that a move fails.
    pub move_failure: f64,
    /// Probability (0 to 1) that an attempt of a job fails.
    pub job_failure: f64,
    /// Probability (0 to 1) that a node does not come up in the requested mode.
    pub mode_failure: f64,
    /// Mean time between slow-downs of a node's links or of the store; 0 for none.
    pub slow_every: Nanos,
    /// How long something stays slow.
    pub slow_for: Nanos,
    /// The share (above 0, at most 1) of its bandwidth that it has meanwhile.
    pub slow_to: f64,
}

/// A resource that can be slow for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SlowResource {
    Store,
    Links(NodeId),
}

/// Kinds of draws: a draw of one kind never decides another.
#[derive(Clone, Copy)]
enum FaultDraw {
    Move = 1,
    Job,
    Mode,
    LossAt,
    LossOf,
    SlowAt,
    SlowOf,
}

impl SiteFaults {
    fn bits(&self, draw: FaultDraw, a: u64, b: u64) -> u64 {
        mix(self.seed, &[draw as u64, a, b])
    }

    fn fails(&self, now: Time, bits: u64, probability: f64) -> bool {
        now < self.until && unit(bits) < probability
    }

    /// The share (0 to 1) of its bytes after which a move fails; `None` when it succeeds.
    pub(super) fn of_move(&self, now: Time, id: MoveId) -> Option<f64> {
        let bits = self.bits(FaultDraw::Move, id.0, 0);
        let fails = self.fails(now, bits, self.move_failure);
        fails.then(|| unit(mix(bits, &[1])))
    }

    /// The share (0 to 1) of its time after which an attempt fails; `None` when it succeeds.
    pub(super) fn of_job(&self, now: Time, job: JobId, attempt: u32) -> Option<f64> {
        let bits = self.bits(FaultDraw::Job, u64::from(job.0), u64::from(attempt));
        let fails = self.fails(now, bits, self.job_failure);
        fails.then(|| unit(mix(bits, &[1])))
    }

    /// Whether the so-and-so-manieth change of mode fails.
    pub(super) fn of_mode(&self, now: Time, count: u64) -> bool {
        self.fails(now, self.bits(FaultDraw::Mode, count, 0), self.mode_failure)
    }

    /// When the so-and-so-manieth node is lost, if that many are.
    pub(super) fn loss_at(&self, now: Time, count: u64) -> Option<Time> {
        self.after(now, self.loss_every, self.bits(FaultDraw::LossAt, count, 0))
    }

    /// Which node that is.
    pub(super) fn loss_of(&self, count: u64, nodes: u32) -> NodeId {
        NodeId(below(self.bits(FaultDraw::LossOf, count, 0), nodes))
    }

    /// When the so-and-so-manieth slow-down begins, if there are so many.
    pub(super) fn slow_at(&self, now: Time, count: u64) -> Option<Time> {
        self.after(now, self.slow_every, self.bits(FaultDraw::SlowAt, count, 0))
    }

    /// The resource that becomes slow then: the store every third time.
    pub(super) fn slow_of(&self, count: u64, nodes: u32) -> SlowResource {
        let bits = self.bits(FaultDraw::SlowOf, count, 0);
        match bits % 3 {
            0 => SlowResource::Store,
            _ => SlowResource::Links(NodeId(below(mix(bits, &[1]), nodes))),
        }
    }

    /// Evenly between 0 and twice the mean from now; `None` from `until` on.
    fn after(&self, now: Time, mean: Nanos, bits: u64) -> Option<Time> {
        let gap = (unit(bits) * 2.0 * mean as f64) as Nanos;
        let at = now.saturating_add(gap.max(1));
        (mean > 0 && at < self.until).then_some(at)
    }
}

fn below(bits: u64, count: u32) -> u32 {
    (unit(bits) * f64::from(count)) as u32
}
