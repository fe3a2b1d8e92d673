//! Advice for a machine: how many replicas, what is kept on other nodes, how much is staged, how often.

use super::energy::link_budget;
use super::interval::Times;
use super::loss::Exposure;
use crate::rank::{MAX_REPLICAS, MAX_SET, Replicate};
use crate::split::{Split, StagingRates};
use std::cmp::Ordering::{self, Equal};
use tarn_types::units::SECOND;

/// Versions that a rank has space for: one that is kept, and the next; and one more while others fetch it.
const SLOTS: f64 = 2.0;
/// Versions of others that a node has space for.
const OTHERS: f64 = 2.0;

/// A run on a machine. Rates are above 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CheckpointedRun {
    /// Nodes.
    pub nodes: f64,
    /// Mean time between failures of one of them; above 0.
    pub mtbf: f64,
    /// The share of these that take the node's persistent tier too.
    pub for_good: f64,
    /// How long the run computes.
    pub length: f64,
    /// Bytes of a node's checkpoint; above 0.
    pub bytes: u64,
    /// The most of them that may be staged.
    pub budget: u64,
    /// Bytes a second that a node's persistent tier takes and gives.
    pub persistent: u64,
    /// Bytes a second that its memory takes.
    pub memory: u64,
    /// Bytes a second that its link to other nodes takes, each way.
    pub link: u64,
    /// From a failure until it computes again; none: as long as it takes to read the checkpoint from the tier.
    pub restart: Option<f64>,
    /// How long a checkpoint is stored in memory only; none: as long as it takes to de-stage it.
    pub exposure: Option<f64>,
    /// The time between checkpoints; none: Daly's optimum.
    pub interval: Option<f64>,
    /// Checkpoints of the run; none: one each interval.
    pub checkpoints: Option<f64>,
    /// Every how many-eth of them other nodes keep, if any; above 0.
    pub every: f64,
}

/// The estimate for a number of replicas.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Copies of the staged bytes, on other nodes.
    pub replicas: u32,
    /// The split of a checkpoint's bytes between tier and memory.
    pub split: Split,
    /// Times of a checkpoint and of a restart, and between failures of the whole.
    pub times: Times,
    /// The time between checkpoints.
    pub interval: f64,
    /// The run's exposure to losses.
    pub exposure: Exposure,
    /// How likely it loses something that was committed and not yet durable.
    pub loss: f64,
    /// Bytes of a node's memory: its own staged bytes, and its copies of others'.
    pub memory: f64,
    /// Seconds of a node's link for a checkpoint.
    pub link: f64,
}

/// The estimate for one way of keeping versions on other nodes, or for keeping none there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReplicationEstimate {
    /// The way.
    pub how: Replicate,
    /// Nodes that are lost within this time lose a version together: until the next is there.
    pub window: f64,
    /// How likely the run loses the newest of these versions: nodes are gone for good.
    pub loss: f64,
    /// Bytes of a node's tier: its own versions, and those of others.
    pub tier: f64,
    /// Seconds of a node's link for a version.
    pub link: f64,
    /// The same for a lost node's part, when it comes back; infinite where it does not.
    pub back: f64,
}

/// The advised choice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReplicationAdvice {
    /// Replicas of the staged bytes.
    pub staged: Choice,
    /// All of versions.
    pub kept: ReplicationEstimate,
    /// The part of an interval in which a node's link is taken.
    pub link_share: f64,
}

impl ReplicationAdvice {
    /// How likely the run loses something: staged bytes, or versions that had reached the tiers.
    pub fn loss(&self) -> f64 {
        self.staged.loss + self.kept.loss * (1.0 - self.staged.loss)
    }

    /// The cost: bytes of a node, in memory and on the tier; then the share of its link.
    fn cost(&self) -> [f64; 2] {
        [self.staged.memory + self.kept.tier, self.link_share]
    }
}

impl CheckpointedRun {
    /// With so many replicas.
    pub fn with(&self, replicas: u32) -> Choice {
        let rates = StagingRates {
            persistent: self.persistent,
            memory: self.memory,
            copies: 1 + replicas,
        };
        let linked = match replicas {
            0 => u64::MAX,
            n => link_budget(self.bytes, self.persistent, self.link / u64::from(n)),
        };
        let split = rates.split(self.bytes, self.budget.min(linked));
        let stored = |bytes: u64| bytes as f64 / self.persistent as f64;
        // A checkpoint that is too short to measure takes a nanosecond.
        let checkpoint = rates.time(split).max(1);
        let times = Times {
            checkpoint: checkpoint as f64 / SECOND as f64,
            restart: self.restart.unwrap_or(stored(self.bytes)),
            mtbf: self.mtbf / self.nodes,
        };
        let interval = self.interval.unwrap_or(times.daly());
        let exposure = Exposure {
            nodes: self.nodes,
            mtbf: self.mtbf,
            exposure: self.exposure.unwrap_or(stored(split.staged)),
            checkpoints: self.checkpoints.unwrap_or(self.length / interval),
        };
        let staged = split.staged as f64;
        Choice {
            replicas,
            split,
            times,
            interval,
            exposure,
            loss: exposure.loss(1 + replicas),
            memory: staged * f64::from(1 + replicas),
            link: staged * f64::from(replicas) / self.link as f64,
        }
    }

    /// With versions on other nodes in this way.
    pub fn keep(&self, staged: &Choice, how: Replicate) -> ReplicationEstimate {
        let bytes = self.bytes as f64;
        let part = bytes / self.link as f64;
        // In versions: a node's space for those of others, its fetches for that, and the fetches of a lost node that comes back.
        let (kept, fetched, back) = match how {
            Replicate::None => (0.0, 0.0, f64::INFINITY),
            Replicate::Copies(copies) => (copies as f64, copies as f64, 1.0),
            Replicate::Parity(size) => (1.0 / (size as f64 - 1.0), 1.0, size as f64 - 1.0),
        };
        let (slots, every) = match how {
            Replicate::None => (SLOTS, 1.0),
            _ => (SLOTS + 1.0, self.every),
        };
        let link = fetched * part;
        let window = staged.interval * every + link;
        let exposure = Exposure {
            mtbf: self.mtbf / self.for_good,
            exposure: window,
            checkpoints: staged.exposure.checkpoints / every,
            ..staged.exposure
        };
        ReplicationEstimate {
            how,
            window,
            loss: match how {
                Replicate::None => exposure.loss(1),
                Replicate::Copies(copies) => exposure.loss(1 + copies as u32),
                Replicate::Parity(size) => exposure.loss_of_sets(size as u32),
            },
            tier: bytes * (slots + OTHERS * kept),
            link,
            back: back * part,
        }
    }

    /// The numbers of replicas that there are nodes for.
    pub fn replicas(&self) -> impl Iterator<Item = u32> {
        (0..=MAX_REPLICAS).filter(|n| f64::from(1 + n) <= self.nodes)
    }

    /// The ways of keeping versions on other nodes that there are nodes for.
    pub fn ways(&self) -> impl Iterator<Item = Replicate> {
        let copies = (1..=MAX_REPLICAS as usize).map(|n| (1 + n, Replicate::Copies(n)));
        let parity = (2..=MAX_SET).map(|size| (size, Replicate::Parity(size)));
        let all = std::iter::once((1, Replicate::None)).chain(copies);
        let all = all.chain(parity);
        all.filter_map(|(nodes, how)| (nodes as f64 <= self.nodes).then_some(how))
    }

    /// So many replicas, and this way.
    pub fn both(&self, staged: Choice, how: Replicate) -> ReplicationAdvice {
        let kept = self.keep(&staged, how);
        ReplicationAdvice {
            staged,
            kept,
            link_share: (staged.link + kept.link / self.every) / staged.interval,
        }
    }

    /// The cheapest choice that makes a loss no more likely than this; if there is none, the one that makes it least likely.
    pub fn advise(&self, bound: f64) -> ReplicationAdvice {
        let staged = self.replicas().map(|n| self.with(n));
        let all = staged.flat_map(|of| self.ways().map(move |how| self.both(of, how)));
        let mut all: Vec<ReplicationAdvice> = all.collect();
        // Of equal ones the first is the simplest.
        all.sort_by(|a, b| {
            let costs = a.cost().into_iter().zip(b.cost());
            costs
                .map(|(a, b)| a.total_cmp(&b))
                .fold(Equal, Ordering::then)
        });
        let enough = all.iter().find(|a| a.loss() <= bound);
        let best = || all.iter().min_by(|a, b| a.loss().total_cmp(&b.loss()));
        let advice = enough.or_else(best).copied();
        advice.unwrap_or_else(|| self.both(self.with(0), Replicate::None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::loss::YEAR;

    const JOB: CheckpointedRun = CheckpointedRun {
        nodes: 1000.0,
        mtbf: 5.0 * YEAR,
        for_good: 0.01,
        length: 48.0 * 3600.0,
        bytes: 40_000_000_000,
        budget: 20_000_000_000,
        persistent: 5_000_000_000,
        memory: 20_000_000_000,
        link: 12_500_000_000,
        restart: None,
        exposure: None,
        interval: None,
        checkpoints: None,
        every: 1.0,
    };

    #[test]
    fn a_replica_is_advised_where_one_copy_is_not_safe_enough() {
        let alone = JOB.with(0);
        // 5 of 20 GB/s to the tier would be best; no more than half is staged.
        assert_eq!(alone.split.staged, 20_000_000_000);
        assert!((alone.times.checkpoint - 4.0).abs() < 1e-9);
        assert!((alone.exposure.exposure - 4.0).abs() < 1e-9);
        assert!((alone.times.restart - 8.0).abs() < 1e-9);
        assert!((alone.times.mtbf - 5.0 * YEAR / 1000.0).abs() < 1e-6);
        assert_eq!(alone.interval, alone.times.daly());
        assert!(alone.loss > 1e-3 && JOB.with(1).loss < 1e-6);
        let advice = JOB.advise(1e-3);
        assert_eq!(
            (advice.staged.replicas, advice.kept.how),
            (1, Replicate::Parity(16))
        );
        assert_eq!(JOB.advise(0.5).staged.replicas, 0);
        // Where no node is ever gone for good, nothing is kept elsewhere.
        let kind = CheckpointedRun {
            for_good: 0.0,
            ..JOB
        };
        assert_eq!(kind.advise(1e-3), kind.both(kind.with(1), Replicate::None));
        // No choice is safe enough: the safest one.
        let never = JOB.advise(0.0);
        let most = (MAX_REPLICAS, Replicate::Copies(MAX_REPLICAS as usize));
        assert_eq!((never.staged.replicas, never.kept.how), most);
        assert!(never.loss() > 0.0);
    }

    #[test]
    fn what_is_advised_is_the_cheapest_that_is_enough() {
        for (bound, for_good) in [(1e-2, 1.0), (1e-6, 1.0), (1e-9, 0.1), (1e-12, 1e-3)] {
            let job = CheckpointedRun { for_good, ..JOB };
            let advice = job.advise(bound);
            assert!(advice.loss() <= bound);
            for replicas in job.replicas() {
                for how in job.ways() {
                    let other = job.both(job.with(replicas), how);
                    let cheaper = other.cost()[0] < advice.cost()[0];
                    assert!(other.loss() > bound || !cheaper, "{advice:?} {other:?}");
                }
            }
        }
        // Fewer nodes than all that needs.
        let few = CheckpointedRun { nodes: 3.0, ..JOB };
        assert_eq!(few.replicas().collect::<Vec<_>>(), [0, 1, 2]);
        let ways = [
            Replicate::None,
            Replicate::Copies(1),
            Replicate::Copies(2),
            Replicate::Parity(2),
            Replicate::Parity(3),
        ];
        assert_eq!(few.ways().collect::<Vec<_>>(), ways);
        let alone = CheckpointedRun { nodes: 1.0, ..JOB };
        assert_eq!(
            alone.advise(0.0),
            alone.both(alone.with(0), Replicate::None)
        );
    }

    #[test]
    fn what_is_kept_on_other_nodes_has_its_price_and_its_window() {
        let job = CheckpointedRun {
            interval: Some(100.0),
            checkpoints: Some(60.0),
            every: 3.0,
            ..JOB
        };
        let staged = job.with(2);
        assert_eq!(staged.memory, 3.0 * staged.split.staged as f64);
        assert_eq!(staged.link, 2.0 * staged.split.staged as f64 / 12.5e9);
        let [none, copies, pair, set] = [
            Replicate::None,
            Replicate::Copies(2),
            Replicate::Parity(2),
            Replicate::Parity(5),
        ]
        .map(|how| job.keep(&staged, how));
        // A part takes 3.2 s over the link.
        assert_eq!((none.window, none.link, none.tier), (100.0, 0.0, 80e9));
        assert!(none.back.is_infinite());
        assert_eq!((copies.window, copies.link, copies.back), (306.4, 6.4, 3.2));
        assert_eq!(copies.tier, 120e9 + 160e9);
        assert_eq!((set.window, set.link, set.back), (303.2, 3.2, 12.8));
        assert_eq!(set.tier, 120e9 + 20e9);
        // A set of two is a copy.
        let copy = job.keep(&staged, Replicate::Copies(1));
        assert_eq!(
            ReplicationEstimate {
                how: copy.how,
                loss: copy.loss,
                ..pair
            },
            copy
        );
        assert!((pair.loss / copy.loss - 1.0).abs() < 1e-12);
        // The closed form of these windows: 20 of them, of nodes that are gone for good.
        let of = Exposure {
            nodes: 1000.0,
            mtbf: 500.0 * YEAR,
            exposure: 303.2,
            checkpoints: 20.0,
        };
        assert_eq!(set.loss, of.loss_of_sets(5));
        let both = job.both(staged, Replicate::Parity(5));
        let share = (staged.link + 3.2 / 3.0) / 100.0;
        assert!((both.link_share - share).abs() < 1e-12);
        assert_eq!(both.kept, set);
    }

    #[test]
    fn a_slow_link_takes_what_it_can_while_the_tier_takes_the_rest() {
        let job = CheckpointedRun {
            link: 1_000_000_000,
            ..JOB
        };
        let choice = job.with(1);
        let sent = choice.split.staged as f64 / 1e9;
        assert!(choice.split.staged > 6_000_000_000);
        assert!(sent <= choice.times.checkpoint + 1e-6);
        assert_eq!(job.with(0), JOB.with(0));
    }

    #[test]
    fn what_is_given_is_taken() {
        let given = CheckpointedRun {
            restart: Some(60.0),
            exposure: Some(10.0),
            interval: Some(100.0),
            checkpoints: Some(7.0),
            ..JOB
        };
        let choice = given.with(1);
        assert_eq!(
            (choice.times.restart, choice.interval, choice.exposure),
            (
                60.0,
                100.0,
                Exposure {
                    nodes: 1000.0,
                    mtbf: 5.0 * YEAR,
                    exposure: 10.0,
                    checkpoints: 7.0
                }
            )
        );
        let every = CheckpointedRun {
            checkpoints: None,
            ..given
        };
        assert_eq!(every.with(0).exposure.checkpoints, 1728.0);
    }
}
