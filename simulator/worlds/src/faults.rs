//! Failures drawn from a seed: whether a given transfer or attempt fails never depends on earlier events.

use tarn_types::id::{InstanceId, NodeId, TransferId};
use tarn_types::random::{self, unit};
use tarn_types::units::Time;

/// Which transfers and attempts fail. The default: none.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FaultPlan {
    /// Seed of all draws.
    pub seed: u64,
    /// Probability (0 to 1) that a transfer fails.
    pub transfer_failure_probability: f64,
    /// Probability (0 to 1) that nothing can be read from one node by another, by the same plan and in that direction.
    pub link_failure_probability: f64,
    /// Probability (0 to 1) that a transfer which fails finds its source damaged.
    pub damage_probability: f64,
    /// Probability (0 to 1) that an attempt of a step fails.
    pub step_failure_probability: f64,
    /// Probability (0 to 1) that an attempt of a step with a time limit hangs, until that is over.
    pub hang_probability: f64,
    /// Operations that begin after this do not fail.
    pub until: Option<Time>,
}

impl FaultPlan {
    /// The share (0 to 1) of its work after which a transfer fails; `None` when it succeeds.
    pub(crate) fn transfer(&self, now: Time, id: TransferId) -> Option<f64> {
        self.draw(now, [1, id.0, 0], self.transfer_failure_probability)
    }

    /// The share (0 to 1) of its work after which a transfer from one node to another fails; `None` when that link is good.
    pub(crate) fn link(&self, now: Time, from: NodeId, to: NodeId) -> Option<f64> {
        let values = [5, from.0.into(), to.0.into()];
        self.draw(now, values, self.link_failure_probability)
    }

    /// Whether a transfer that fails finds its source damaged.
    pub(crate) fn damage(&self, now: Time, id: TransferId) -> bool {
        self.draw(now, [4, id.0, 0], self.damage_probability)
            .is_some()
    }

    /// The share (0 to 1) of its time after which an attempt fails; `None` when it succeeds.
    pub(crate) fn attempt(&self, now: Time, id: InstanceId, attempt: u32) -> Option<f64> {
        let values = [2, number(id), attempt.into()];
        self.draw(now, values, self.step_failure_probability)
    }

    /// Whether an attempt hangs.
    pub(crate) fn hangs(&self, now: Time, id: InstanceId, attempt: u32) -> bool {
        let values = [3, number(id), attempt.into()];
        self.draw(now, values, self.hang_probability).is_some()
    }

    fn draw(&self, now: Time, values: [u64; 3], probability: f64) -> Option<f64> {
        let mixed = mix(self.seed, &values);
        let over = self.until.is_some_and(|until| now > until);
        (!over && unit(mixed) < probability).then(|| unit(random::mix(mixed)))
    }
}

fn number(id: InstanceId) -> u64 {
    u64::from(id.step.0) << 32 | u64::from(id.index)
}

/// Random bits that depend on all of these and on nothing else.
pub(crate) fn mix(seed: u64, values: &[u64]) -> u64 {
    let mixed = values.iter();
    mixed.fold(seed, |s, v| random::mix(s ^ random::mix(*v)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probability_is_kept_and_the_seed_decides() {
        let plan = |seed| FaultPlan {
            seed,
            transfer_failure_probability: 0.25,
            ..FaultPlan::default()
        };
        let failed = |seed| {
            (0..4000)
                .filter(|n| plan(seed).transfer(0, TransferId(*n)).is_some())
                .collect::<Vec<_>>()
        };
        let (a, b) = (failed(1), failed(2));
        assert!((800..1200).contains(&a.len()), "{}", a.len());
        assert_eq!(a, failed(1));
        assert_ne!(a, b);
        let id = InstanceId {
            step: tarn_types::id::StepId(3),
            index: 1,
        };
        assert!((1..1000).all(|n| plan(1).attempt(0, id, n).is_none()));
        let calm = FaultPlan {
            until: Some(9),
            ..plan(1)
        };
        let fails = |now| (0..4000).any(|n| calm.transfer(now, TransferId(n)).is_some());
        assert!(fails(9) && !fails(10));
    }
}
