//! Results of a policy with a seed, and medians over seeds.

use crate::figure::{BenchFigure, median};
use crate::trial::aligned;
use serde::Serialize;
use tarn_report::site::SiteSummary;

/// A policy with a seed.
#[derive(Debug, Clone, Serialize)]
pub(super) struct MixedOutcome {
    seed: u32,
    policy: String,
    ordinary_jobs: u64,
    workflows: usize,
    /// Mean bounded slow-down of the ordinary jobs.
    slow_down: f64,
    /// Their mean wait.
    wait_s: f64,
    /// Mean and median time to solution of the workflows.
    flow_mean_s: f64,
    flow_median_s: f64,
}

/// A figure that is compared: its name, its unit, and its value.
type Measure = (&'static str, &'static str, fn(&MixedOutcome) -> f64);

const MEASURES: [Measure; 4] = [
    ("slow-down", "times", |o| o.slow_down),
    ("wait", "s", |o| o.wait_s),
    ("workflows mean", "s", |o| o.flow_mean_s),
    ("workflows median", "s", |o| o.flow_median_s),
];

impl MixedOutcome {
    pub(super) fn of(seed: u32, summary: &SiteSummary) -> Self {
        let times: Vec<f64> = summary.workflows.values().map(|f| f.time_s).collect();
        Self {
            seed,
            policy: summary.policy.clone(),
            ordinary_jobs: summary.ordinary_jobs.done,
            workflows: times.len(),
            slow_down: summary.ordinary_jobs.bounded_slowdown.mean,
            wait_s: summary.ordinary_jobs.wait_s.mean,
            flow_mean_s: times.iter().sum::<f64>() / (times.len() as f64).max(1.0),
            flow_median_s: median(&times),
        }
    }
}

/// A figure of a policy over all seeds.
#[derive(Debug, Clone, Serialize)]
pub(super) struct MixedMedian {
    policy: String,
    measure: &'static str,
    unit: &'static str,
    value: f64,
    /// The policy that it is compared with, and its median.
    against: (String, f64),
    /// Median and worst over the seeds of: the figure over that of the first policy with the same seed.
    ratio: f64,
    worst_ratio: f64,
}

/// Medians over seeds, each policy against the first.
pub(super) fn across_seeds(outcomes: &[MixedOutcome]) -> Vec<MixedMedian> {
    let Some(first) = outcomes.first() else {
        return Vec::new();
    };
    let of_policy = |policy: &str| -> Vec<&MixedOutcome> {
        outcomes.iter().filter(|o| o.policy == policy).collect()
    };
    let base = of_policy(&first.policy);
    let policies = outcomes.iter().filter(|o| o.seed == first.seed);
    let mut medians = Vec::new();
    for policy in policies.map(|o| &o.policy) {
        let runs = of_policy(policy);
        for (measure, unit, value) in MEASURES {
            let all =
                |runs: &[&MixedOutcome]| -> Vec<f64> { runs.iter().map(|o| value(o)).collect() };
            let ratios = ratios(&all(&runs), &all(&base));
            medians.push(MixedMedian {
                policy: policy.clone(),
                measure,
                unit,
                value: median(&all(&runs)),
                against: (first.policy.clone(), median(&all(&base))),
                ratio: median(&ratios),
                worst_ratio: ratios.iter().copied().fold(0.0, f64::max),
            });
        }
    }
    medians
}

/// One by one; 1 where both are nothing.
fn ratios(values: &[f64], base: &[f64]) -> Vec<f64> {
    let ratio = |(value, base): (&f64, &f64)| match *base > 0.0 {
        true => value / base,
        false if *value > 0.0 => f64::INFINITY,
        false => 1.0,
    };
    values.iter().zip(base).map(ratio).collect()
}

/// All of it for terminals.
pub(super) fn text(outcomes: &[MixedOutcome], medians: &[MixedMedian]) -> String {
    let head = [
        "policy",
        "seed",
        "jobs",
        "slow-down",
        "wait s",
        "workflows",
        "mean s",
        "median s",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(outcomes.iter().map(|o| {
        vec![
            o.policy.clone(),
            o.seed.to_string(),
            o.ordinary_jobs.to_string(),
            format!("{:.3}", o.slow_down),
            format!("{:.0}", o.wait_s),
            o.workflows.to_string(),
            format!("{:.1}", o.flow_mean_s),
            format!("{:.1}", o.flow_median_s),
        ]
    }));
    let against = medians.first().map_or("", |m| &m.against.0);
    let mut lines = vec![vec![
        "median of seeds".to_owned(),
        "value".into(),
        format!("of {against}"),
        "worst".into(),
    ]];
    lines.extend(medians.iter().map(|m| {
        vec![
            format!("{}, {}", m.policy, m.measure),
            format!("{:.3}", m.value),
            format!("{:.3}", m.ratio),
            format!("{:.3}", m.worst_ratio),
        ]
    }));
    format!("{}\n{}", aligned(&rows), aligned(&lines))
}

/// The medians of every policy but the first, each beside that of the first.
pub(super) fn figures(medians: &[MixedMedian]) -> Vec<BenchFigure> {
    let others = medians.iter().filter(|m| m.policy != m.against.0);
    let figure = |m: &MixedMedian| BenchFigure {
        name: format!("{}: {}", m.policy, m.measure),
        value: m.value,
        unit: m.unit,
        against: Some(m.against.clone()),
    };
    others.map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(seed: u32, policy: &str, slow_down: f64) -> MixedOutcome {
        MixedOutcome {
            seed,
            policy: policy.into(),
            ordinary_jobs: 1,
            workflows: 1,
            slow_down,
            wait_s: 0.0,
            flow_mean_s: 10.0,
            flow_median_s: 10.0,
        }
    }

    #[test]
    fn ratios_are_taken_seed_by_seed() {
        let outcomes = [
            outcome(1, "easy", 10.0),
            outcome(1, "data", 5.0),
            outcome(2, "easy", 20.0),
            outcome(2, "data", 30.0),
            outcome(3, "easy", 10.0),
            outcome(3, "data", 10.0),
        ];
        let medians = across_seeds(&outcomes);
        let data = &medians[MEASURES.len()];
        assert_eq!((data.policy.as_str(), data.measure), ("data", "slow-down"));
        assert_eq!((data.value, data.ratio, data.worst_ratio), (10.0, 1.0, 1.5));
        assert_eq!(medians[MEASURES.len() + 1].ratio, 1.0, "nobody waited");
        assert_eq!(figures(&medians).len(), MEASURES.len());
    }
}
