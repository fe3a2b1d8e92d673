//! How likely a run loses what is staged: all copies of one node's part within the time in which nothing else has it.

/// Seconds of a year of 365 days, which is what the published values were computed with.
pub const YEAR: f64 = 365.0 * 86_400.0;

/// What a run is exposed to. Failures are independent, and equally likely at any time (exponential).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exposure {
    /// Nodes of the run.
    pub nodes: f64,
    /// Mean time between failures of one of them; above 0.
    pub mtbf: f64,
    /// How long each checkpoint lies in memory only.
    pub exposure: f64,
    /// Checkpoints of the run.
    pub checkpoints: f64,
}

/// What Fernando 2016 publishes (section II): the loss of one copy, and of two, in 48 hours with 2880 checkpoints.
pub const PUBLISHED: [f64; 2] = [0.989_602_70, 0.000_000_03];

/// Parameters that give these values. They are not the paper's, which states none but the checkpoints.
pub const FITTED: Exposure = Exposure {
    nodes: 125_000.0,
    mtbf: 25.0 * YEAR,
    exposure: 10.0,
    checkpoints: 2880.0,
};

impl Exposure {
    /// How likely a node fails while a checkpoint is exposed.
    pub fn failure(&self) -> f64 {
        -(-self.exposure / self.mtbf).exp_m1()
    }

    /// How likely the run loses a checkpoint of which each node's part has so many copies, on as many nodes: one of the
    /// `nodes / copies` groups loses all of its nodes.
    pub fn loss(&self, copies: u32) -> f64 {
        let groups = self.checkpoints * self.nodes / f64::from(copies.max(1));
        let group = self.failure().powf(f64::from(copies.max(1)));
        -(groups * (-group).ln_1p()).exp_m1()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
