//! How likely a run loses staged bytes: all copies of one node's part within the time in which nothing else
//! has it.

/// Seconds of a year of 365 days: the published values were computed with it.
pub const YEAR: f64 = 365.0 * 86_400.0;

/// The exposure of a run to losses; times in one unit, such as seconds. Failures are independent, and equally likely
/// at any time (exponential).
///
/// # Examples
/// The published values (Fernando 2016, section II):
/// ```
/// use tarn_checkpoint_core::model::loss::{FITTED, PUBLISHED};
///
/// assert!((FITTED.loss(1) - PUBLISHED[0]).abs() < 1.5e-8); // one copy: 0.9896
/// assert!((FITTED.loss(2) - PUBLISHED[1]).abs() < 0.5e-8); // two: 0.00000003
/// assert!(FITTED.loss_of_sets(8) > FITTED.loss(2)); // parity of 8 nodes takes less space, and is weaker
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exposure {
    /// Nodes of the run.
    pub nodes: f64,
    /// Mean time between failures of one of them; above 0.
    pub mtbf: f64,
    /// How long each checkpoint is stored in memory only.
    pub exposure: f64,
    /// Checkpoints of the run.
    pub checkpoints: f64,
}

/// The values that Fernando 2016 publishes (section II): the loss of one copy, and of two, in 48 hours with 2880
/// checkpoints.
pub const PUBLISHED: [f64; 2] = [0.989_602_70, 0.000_000_03];

/// Parameters that give these values. They are not the paper's, which states none but the checkpoints.
pub const FITTED: Exposure = Exposure {
    nodes: 125_000.0,
    mtbf: 25.0 * YEAR,
    exposure: 10.0,
    checkpoints: 2880.0,
};

impl Exposure {
    /// The probability that a node fails while a checkpoint is exposed.
    pub fn failure(&self) -> f64 {
        -(-self.exposure / self.mtbf).exp_m1()
    }

    /// The probability that the run loses a checkpoint of which each node's part has `copies` copies, on as
    /// many nodes: one of the `nodes / copies` groups loses all of its nodes.
    pub fn loss(&self, copies: u32) -> f64 {
        let group = self.failure().powf(f64::from(copies.max(1)));
        self.of_groups(copies.max(1), group)
    }

    /// The same with parity in sets of `size` nodes: one of the `nodes / size` sets loses two of its nodes,
    /// or more.
    pub fn loss_of_sets(&self, size: u32) -> f64 {
        let (q, size) = (self.failure(), size.max(2));
        // How likely so many fail. All terms are above 0: small ones keep their digits.
        let (mut fail, mut lost) = (1.0, 0.0);
        for failed in 1..=size {
            fail *= f64::from(size + 1 - failed) / f64::from(failed) * q;
            if failed > 1 {
                lost += fail * (1.0 - q).powi((size - failed) as i32);
            }
        }
        self.of_groups(size, lost.min(1.0))
    }

    /// How likely anything is lost, by how likely a group of so many nodes loses something.
    fn of_groups(&self, size: u32, lost: f64) -> f64 {
        let groups = self.checkpoints * self.nodes / f64::from(size);
        -(groups * (-lost).ln_1p()).exp_m1()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_types::random::Random;

    fn near(is: f64, wanted: f64, relative: f64) {
        assert!(
            (is / wanted - 1.0).abs() < relative,
            "{is:e} is not {wanted:e}"
        );
    }

    #[test]
    fn the_published_values_are_met_to_their_last_digit() {
        // 0.98960271: one more in the eighth digit.
        assert!((FITTED.loss(1) - PUBLISHED[0]).abs() < 1.5e-8);
        near(FITTED.loss(2), 2.896e-8, 1e-3);
        assert_eq!(format!("{:.8}", FITTED.loss(2)), "0.00000003");
    }

    #[test]
    fn one_copy_determines_the_product_only() {
        let others = [
            Exposure {
                nodes: 250_000.0,
                exposure: 5.0,
                ..FITTED
            },
            Exposure {
                mtbf: 50.0 * YEAR,
                exposure: 20.0,
                ..FITTED
            },
        ];
        for other in others {
            near(other.loss(1), FITTED.loss(1), 1e-9);
        }
        // Two copies tell nodes apart from the rest, but 3e-8 has one digit.
        let with = |nodes: f64| {
            let mtbf = FITTED.mtbf * nodes / FITTED.nodes;
            let other = Exposure {
                nodes,
                mtbf,
                ..FITTED
            };
            near(other.loss(1), FITTED.loss(1), 1e-6);
            format!("{:.8}", other.loss(2))
        };
        assert_eq!([104e3, 144e3].map(with), ["0.00000003"; 2]);
        assert_eq!([103e3, 146e3].map(with), ["0.00000004", "0.00000002"]);
    }

    #[test]
    fn small_losses_keep_their_digits() {
        let rare = Exposure {
            nodes: 2.0,
            mtbf: 1e9,
            exposure: 1e-3,
            checkpoints: 1.0,
        };
        near(rare.failure(), 1e-12, 1e-9);
        near(rare.loss(1), 2e-12, 1e-9);
        near(rare.loss(2), 1e-24, 1e-9);
        near(rare.loss(4), 0.5e-48, 1e-9);
    }

    #[test]
    fn what_is_never_exposed_is_never_lost_and_what_always_is_surely_is() {
        let never = Exposure {
            exposure: 0.0,
            ..FITTED
        };
        let always = Exposure {
            exposure: f64::INFINITY,
            ..FITTED
        };
        assert_eq!([never.loss(1), never.loss(2)], [0.0; 2]);
        assert_eq!([always.loss(1), always.loss(2)], [1.0; 2]);
    }

    /// Each node of each checkpoint fails or not: how often a run loses so many of a group.
    fn simulate_losses(of: &Exposure, size: u32, enough: usize, random: &mut Random) -> f64 {
        let groups = (of.checkpoints * of.nodes) as u32 / size;
        let mut fails = || -(1.0 - random.unit()).ln() * of.mtbf < of.exposure;
        let mut run = || {
            let mut lost = || (0..size).filter(|_| fails()).count() >= enough;
            (0..groups).any(|_| lost())
        };
        f64::from((0..RUNS).filter(|_| run()).count() as u32) / f64::from(RUNS)
    }

    const RUNS: u32 = 4000;

    #[test]
    fn what_is_played_is_lost_as_often_as_the_formulas_say() {
        let mut random = Random::new(1);
        let copies = [(1, 0.01), (2, 0.1), (3, 0.2), (4, 0.4)].map(|(n, e)| (n, n as usize, e));
        let sets = [(3, 0.1), (8, 0.05), (16, 0.02)].map(|(size, e)| (size, 2, e));
        for (size, enough, exposure) in copies.into_iter().chain(sets) {
            let of = Exposure {
                nodes: 48.0,
                mtbf: 1.0,
                exposure,
                checkpoints: 3.0,
            };
            let closed = match enough == size as usize {
                true => of.loss(size),
                false => of.loss_of_sets(size),
            };
            assert!((0.2..0.8).contains(&closed), "{size}: {closed}");
            let often = simulate_losses(&of, size, enough, &mut random);
            // Four standard deviations of the count.
            let bound = 4.0 * (closed * (1.0 - closed) / f64::from(RUNS)).sqrt();
            assert!((often - closed).abs() < bound, "{size}: {often} {closed}");
        }
    }

    #[test]
    fn a_set_of_two_is_a_copy_and_larger_sets_lose_more() {
        for of in [
            FITTED,
            Exposure {
                exposure: FITTED.mtbf / 3.0,
                nodes: 4.0,
                checkpoints: 1.0,
                ..FITTED
            },
        ] {
            near(of.loss_of_sets(2), of.loss(2), 1e-12);
            let all: Vec<f64> = (2..=16).map(|size| of.loss_of_sets(size)).collect();
            assert!(all.windows(2).all(|w| w[0] < w[1]), "{all:?}");
        }
        // As long as failures are rare, each of m (m - 1) / 2 pairs of a set is one.
        near(FITTED.loss_of_sets(16) / FITTED.loss(2), 15.0, 1e-4);
        let always = Exposure {
            exposure: f64::INFINITY,
            ..FITTED
        };
        assert_eq!((always.loss_of_sets(16), always.loss(4)), (1.0, 1.0));
    }
}
