//! How fast the planner of a Slurm site follows a large cluster (`tarn_site_planner`): seconds of a generated cluster in which
//! jobs end, begin and are submitted, and nodes drain. What it has to look at, it has beside it: the comparison of the snapshot
//! with the one before.

mod crowd;

use crate::figure::BenchFigure;
use crate::processes::{resident, timed};
use crowd::{Crowd, CrowdSettings};
use tarn_site_planner::{SitePlanner, SiteRates};
use tarn_types::policy::Policy;
use tarn_types::units::SECOND;

/// How far the plan reaches: as in the controller.
const HORIZON: u64 = 24 * 3600 * SECOND;
/// Seconds of the cluster before the timed ones.
const WARM: u32 = 5;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Nodes of the cluster
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    nodes: u32,
    /// Jobs that run
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    running: u32,
    /// Jobs that wait
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    waiting: u32,
    /// Seconds of the cluster, each a snapshot
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    seconds: u32,
    /// The policy of the site: `energy` looks at the power and the data of each node, too
    #[arg(long, default_value = "data")]
    policy: Policy,
    /// The same seed gives the same cluster
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Seconds of the processor that the parts of each second took.
#[derive(Debug, Default)]
struct SecondTimes {
    see: Vec<f64>,
    wishes: Vec<f64>,
    plan: Vec<f64>,
    compare: Vec<f64>,
}

/// All figures.
///
/// # Errors
/// When the planner refuses what happens, or Linux does not say how much memory the program has.
pub(crate) fn run(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    let mut crowd = Crowd::new(CrowdSettings {
        nodes: args.nodes,
        running: args.running,
        waiting: args.waiting,
        has_sleepers: args.policy.has_sleepers(),
        seed: args.seed,
    });
    let before = resident()?;
    let mut planner = SitePlanner::new(args.policy, SiteRates::default());
    let mut built = Vec::new();
    let seen = timed(&mut built, || {
        let now = crowd.snapshot.read_at * SECOND;
        planner.see(&crowd.snapshot, &crowd.view, now)
    });
    anyhow::ensure!(seen.refused.is_empty(), "refused: {:?}", seen.refused);
    let memory = resident()?.saturating_sub(before);
    let (mut times, mut changes, mut still) = (SecondTimes::default(), 0, 0);
    let none = std::collections::BTreeSet::new();
    for second in 0..WARM + args.seconds {
        if second == WARM {
            times = SecondTimes::default();
            changes = 0;
        }
        let last = crowd.snapshot.clone();
        changes += crowd.next_second();
        let now = crowd.snapshot.read_at * SECOND;
        let (snapshot, view) = (&crowd.snapshot, &crowd.view);
        let seen = timed(&mut times.see, || planner.see(snapshot, view, now));
        anyhow::ensure!(seen.refused.is_empty(), "refused: {:?}", seen.refused);
        anyhow::ensure!(
            seen.rebuilt.is_none(),
            "built again: {:?} in second {second}",
            seen.rebuilt
        );
        timed(&mut times.wishes, || {
            let reservations = planner.reservation_wishes(snapshot, view, &none);
            (reservations, planner.delay_wishes(snapshot, view))
        });
        let is_same = timed(&mut times.compare, || {
            let mut nodes = snapshot.nodes.values().zip(last.nodes.values());
            // All of them, though one differs.
            let others = nodes.by_ref().filter(|(now, before)| now != before);
            others.count() == 0 && snapshot.jobs == last.jobs
        });
        still += u32::from(is_same);
        // It need not follow each snapshot, and is much longer than a second's work.
        if second % WARM == 0 {
            timed(&mut times.plan, || planner.plan(HORIZON));
        }
    }
    let peak = resident()?.saturating_sub(before);
    let what = format!(
        "policy {}, {} nodes, {} jobs run and {} wait, {:.1} changes a second",
        args.policy,
        args.nodes,
        args.running,
        args.waiting,
        f64::from(changes) / f64::from(args.seconds)
    );
    eprintln!("{what}; in {still} seconds nothing happened");
    Ok(figures_of(&what, &times, (built[0], memory, peak)))
}

fn figures_of(
    what: &str,
    times: &SecondTimes,
    (built, memory, peak): (f64, u64, u64),
) -> Vec<BenchFigure> {
    let plain = |name: String, value: f64, unit: &'static str| BenchFigure {
        name,
        value,
        unit,
        against: None,
    };
    let mut figures = Vec::new();
    let kinds = [
        ("see", &times.see),
        ("wishes", &times.wishes),
        ("plan", &times.plan),
    ];
    for (name, samples) in kinds {
        for (rank, share) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
            let mut figure = plain(
                format!("{name}-{rank}-ms"),
                1e3 * rank_of(samples, share),
                "ms",
            );
            if name == "see" {
                let compared = 1e3 * rank_of(&times.compare, share);
                figure.against = Some(("comparing the two snapshots".to_owned(), compared));
            }
            if figures.is_empty() {
                figure.name = format!("{}: {what}", figure.name);
            }
            figures.push(figure);
        }
    }
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    figures.push(plain(
        "built-ms: the first snapshot".to_owned(),
        1e3 * built,
        "ms",
    ));
    figures.push(plain("memory-mib".to_owned(), mebibytes(memory), "MiB"));
    figures.push(plain(
        "memory-end-mib: with two snapshots and a plan".to_owned(),
        mebibytes(peak),
        "MiB",
    ));
    figures
}

/// The sample below which such a share of them is.
fn rank_of(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_cluster_gives_every_figure() {
        let args = Args {
            nodes: 400,
            running: 20,
            waiting: 40,
            seconds: 300,
            policy: Policy::new(tarn_types::policy::Order::Data, None),
            seed: 1,
        };
        let figures = run(&args).expect("figures");
        let names: Vec<&str> = figures
            .iter()
            .map(|f| f.name.split(':').next().unwrap_or(""))
            .collect();
        assert_eq!(
            names,
            [
                "see-p50-ms",
                "see-p99-ms",
                "see-max-ms",
                "wishes-p50-ms",
                "wishes-p99-ms",
                "wishes-max-ms",
                "plan-p50-ms",
                "plan-p99-ms",
                "plan-max-ms",
                "built-ms",
                "memory-mib",
                "memory-end-mib",
            ]
        );
        assert!(figures.iter().take(10).all(|f| f.value > 0.0));
        assert!(figures[0].value <= figures[1].value && figures[1].value <= figures[2].value);
    }
}
