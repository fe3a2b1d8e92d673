//! Measured values, as ratios, medians, a table and figures.

use crate::figure::{BenchFigure, median};
use crate::trial::aligned;
use serde::Serialize;
use std::collections::BTreeMap;

/// The whole of which a share of I/O is a part. Both are of `easy`, where each job reads and writes outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ShareOf {
    /// The makespan: 1 less the makespan if data took no time, over the makespan
    TimeToSolution,
    /// The time for which jobs hold nodes: sum of T_I/O over sum of T_run (Weiland et al., equation 5)
    NodeTime,
}

/// The name of the bound on the makespan that no policy can beat.
const BOUND: &str = "bound";

/// Shares of I/O under `easy`, by both definitions.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct IoShares {
    pub(super) time_to_solution: f64,
    pub(super) node_time: f64,
}

impl IoShares {
    pub(super) fn of(&self, of: ShareOf) -> f64 {
        match of {
            ShareOf::TimeToSolution => self.time_to_solution,
            ShareOf::NodeTime => self.node_time,
        }
    }
}

/// A policy on a workflow.
#[derive(Debug, Clone, Serialize)]
pub(super) struct PolicyRun {
    pub(super) policy: String,
    pub(super) makespan_s: f64,
    pub(super) external_bytes: u64,
    pub(super) peer_bytes: u64,
}

/// A workflow at one bandwidth of the external store.
#[derive(Debug, Clone, Serialize)]
pub(super) struct BandwidthPoint {
    pub(super) instance: String,
    pub(super) family: String,
    pub(super) wanted_share: f64,
    pub(super) shares: IoShares,
    /// Bytes a second in both directions.
    pub(super) external_rate: u64,
    /// Of one node, read and written, bytes a second: those of the machine, or in proportion (0: no limit).
    pub(super) client_rates: [u64; 2],
    /// In the requested order, at least one.
    pub(super) runs: Vec<PolicyRun>,
    pub(super) lower_bound_s: f64,
    pub(super) unavoidable_bytes: u64,
    pub(super) stage_through_bytes: u64,
}

impl BandwidthPoint {
    /// The makespan of the last policy over those of the others and over the bound, by their names.
    pub(super) fn ratios(&self) -> Vec<(String, f64)> {
        let Some((subject, others)) = self.runs.split_last() else {
            return Vec::new();
        };
        let others = others.iter().map(|r| (r.policy.as_str(), r.makespan_s));
        let all = others.chain([(BOUND, self.lower_bound_s)]);
        all.filter(|(_, makespan)| *makespan > 0.0)
            .map(|(name, makespan)| (name.to_owned(), subject.makespan_s / makespan))
            .collect()
    }
}

/// The last policy: the one that is compared.
pub(super) fn subject(points: &[BandwidthPoint]) -> &str {
    let last = points.first().and_then(|p| p.runs.last());
    last.map_or("", |r| &r.policy)
}

/// The medians of a family at a share.
#[derive(Debug, Clone, Serialize)]
pub(super) struct FamilyMedian {
    pub(super) family: String,
    pub(super) wanted_share: f64,
    pub(super) instances: usize,
    /// By the name of the other, in the order of the policies.
    pub(super) ratios: Vec<(String, f64)>,
}

/// Medians of each family at each share, families by name.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub(super) struct Medians(pub(super) Vec<FamilyMedian>);

impl Medians {
    pub(super) fn of(points: &[BandwidthPoint]) -> Self {
        let mut groups: BTreeMap<(&str, u64), Vec<&BandwidthPoint>> = BTreeMap::new();
        for point in points {
            // Shares are above 0: their bits are in the order of their values.
            let key = (point.family.as_str(), point.wanted_share.to_bits());
            groups.entry(key).or_default().push(point);
        }
        let medians = groups
            .into_iter()
            .map(|((family, share), group)| FamilyMedian {
                family: family.to_owned(),
                wanted_share: f64::from_bits(share),
                instances: group.len(),
                ratios: medians(&group),
            });
        Self(medians.collect())
    }
}

/// The median of each ratio.
pub(super) fn medians(group: &[&BandwidthPoint]) -> Vec<(String, f64)> {
    let mut by_name: Vec<(String, Vec<f64>)> = Vec::new();
    for (name, ratio) in group.iter().flat_map(|p| p.ratios()) {
        match by_name.iter_mut().find(|(n, _)| *n == name) {
            Some((_, values)) => values.push(ratio),
            None => by_name.push((name, vec![ratio])),
        }
    }
    let each = by_name.into_iter();
    each.map(|(name, values)| (name, median(&values))).collect()
}

/// The worst result of the last policy against each other one: the ratio, the instance and the share.
pub(super) fn worst(points: &[BandwidthPoint]) -> Vec<(String, f64, &BandwidthPoint)> {
    let mut worst: Vec<(String, f64, &BandwidthPoint)> = Vec::new();
    for point in points {
        for (name, ratio) in point.ratios() {
            match worst.iter_mut().find(|(n, ..)| *n == name) {
                Some(known) if known.1 >= ratio => {}
                Some(known) => *known = (name, ratio, point),
                None => worst.push((name, ratio, point)),
            }
        }
    }
    worst
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Every point, as rows with a head: for the table and the page.
pub(super) fn rows(points: &[BandwidthPoint]) -> Vec<Vec<String>> {
    let mut head = vec![
        "workflow".into(),
        "of time".into(),
        "of node time".into(),
        "MB/s".into(),
    ];
    if let Some(first) = points.first() {
        head.extend(first.runs.iter().map(|r| format!("{} s", r.policy)));
        head.push(format!("{BOUND} s"));
        let subject = subject(points);
        let against = first.ratios().into_iter();
        head.extend(against.map(|(name, _)| format!("{subject}/{name}")));
    }
    let row = |p: &BandwidthPoint| {
        let mut row = vec![
            p.instance.clone(),
            percent(p.shares.time_to_solution),
            percent(p.shares.node_time),
            format!("{:.3}", p.external_rate as f64 / 1e6),
        ];
        row.extend(p.runs.iter().map(|r| format!("{:.1}", r.makespan_s)));
        row.push(format!("{:.1}", p.lower_bound_s));
        row.extend(p.ratios().iter().map(|(_, ratio)| format!("{ratio:.3}")));
        row
    };
    std::iter::once(head)
        .chain(points.iter().map(row))
        .collect()
}

/// The medians of families, as rows with a head.
pub(super) fn family_rows(points: &[BandwidthPoint], medians: &Medians) -> Vec<Vec<String>> {
    let subject = subject(points);
    let mut head = vec![
        "median of family".into(),
        "share".into(),
        "workflows".into(),
    ];
    let first = medians.0.first();
    let names = first.iter().flat_map(|m| &m.ratios);
    head.extend(names.map(|(name, _)| format!("{subject}/{name}")));
    let row = |m: &FamilyMedian| {
        let mut row = vec![
            m.family.clone(),
            percent(m.wanted_share),
            m.instances.to_string(),
        ];
        row.extend(m.ratios.iter().map(|(_, ratio)| format!("{ratio:.3}")));
        row
    };
    std::iter::once(head)
        .chain(medians.0.iter().map(row))
        .collect()
}

/// All of it for terminals.
pub(super) fn text(points: &[BandwidthPoint], medians: &Medians) -> String {
    let worst = worst(points).into_iter().map(|(name, ratio, at)| {
        format!(
            "worst {}/{name}: {ratio:.3}, {} at {}\n",
            subject(points),
            at.instance,
            percent(at.wanted_share)
        )
    });
    format!(
        "{}\n{}\n{}",
        aligned(&rows(points)),
        aligned(&family_rows(points, medians)),
        worst.collect::<String>()
    )
}

/// The figures of every point, the last policy against each, and of every family.
pub(super) fn figures(points: &[BandwidthPoint], medians: &Medians) -> Vec<BenchFigure> {
    let subject = subject(points);
    let mut figures = Vec::new();
    for point in points {
        let Some((last, others)) = point.runs.split_last() else {
            continue;
        };
        let others = others.iter().map(|r| (r.policy.clone(), r.makespan_s));
        for against in others.chain([(BOUND.to_owned(), point.lower_bound_s)]) {
            figures.push(BenchFigure {
                name: format!(
                    "{} at {}: makespan under {subject}",
                    point.instance,
                    percent(point.wanted_share)
                ),
                value: last.makespan_s,
                unit: "s",
                against: Some(against),
            });
        }
    }
    for m in &medians.0 {
        for (name, ratio) in &m.ratios {
            figures.push(BenchFigure {
                name: format!(
                    "{} at {}: {subject}/{name}",
                    m.family,
                    percent(m.wanted_share)
                ),
                value: *ratio,
                unit: "times",
                against: None,
            });
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(instance: &str, share: f64, makespans: [f64; 2]) -> BandwidthPoint {
        let run = |policy: &str, makespan_s| PolicyRun {
            policy: policy.into(),
            makespan_s,
            external_bytes: 0,
            peer_bytes: 0,
        };
        BandwidthPoint {
            instance: instance.into(),
            family: instance.split('-').next().unwrap_or_default().into(),
            wanted_share: share,
            shares: IoShares {
                time_to_solution: share,
                node_time: share,
            },
            external_rate: 1,
            client_rates: [0, 0],
            runs: vec![run("easy", makespans[0]), run("data", makespans[1])],
            lower_bound_s: 10.0,
            unavoidable_bytes: 0,
            stage_through_bytes: 0,
        }
    }

    #[test]
    fn families_have_medians_and_the_worst_is_named() {
        let points = [
            point("b-1", 0.5, [100.0, 50.0]),
            point("a-1", 0.5, [100.0, 60.0]),
            point("a-2", 0.5, [100.0, 40.0]),
            point("a-2", 0.1, [100.0, 110.0]),
        ];
        let medians = Medians::of(&points);
        let short: Vec<_> = medians
            .0
            .iter()
            .map(|m| {
                (
                    m.family.as_str(),
                    m.wanted_share,
                    m.instances,
                    m.ratios[0].1,
                )
            })
            .collect();
        assert_eq!(
            short,
            [("a", 0.1, 1, 1.1), ("a", 0.5, 2, 0.5), ("b", 0.5, 1, 0.5)]
        );
        let worst = worst(&points);
        let named: Vec<_> = worst
            .iter()
            .map(|(name, ratio, at)| (name.as_str(), *ratio, at.wanted_share))
            .collect();
        assert_eq!(named, [("easy", 1.1, 0.1), ("bound", 11.0, 0.1)]);
        let text = text(&points, &medians);
        assert!(
            text.contains("data/easy") && text.contains("worst data/bound: 11.000"),
            "{text}"
        );
    }
}
