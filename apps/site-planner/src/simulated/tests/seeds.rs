//! Random small worlds, in each mode, on which nodes are lost and the controller is started again.

use super::*;
use crate::simulated::ClusterFaults;
use tarn_types::random::Random;
use tarn_types::site::{Fate, Flow};

const SEEDS: u64 = 100;
/// Of those without faults: few of their ordinary jobs are judged by the auditor.
const WHOLE_SEEDS: u64 = 140;

/// Ordinary jobs, and workflows of chains and of one job that others read.
fn world(random: &mut Random) -> (Machine, Workload) {
    let nodes = random.within(3..9) as u32;
    let machine = machine(nodes, random.within(300..2000) * MIB);
    let mut work = Workload::default();
    for _ in 0..random.within(2..12) {
        let at = random.below(400) * SECOND / 2;
        let wants = random.within(1..u64::from(nodes) + 1) as u32;
        let compute = random.within(1..120) * SECOND;
        let limit = (compute / (60 * SECOND) + 1 + random.below(3)) * 60 * SECOND;
        let mut ordinary = job(None, wants, compute, limit, at);
        if random.below(3) == 0 {
            // It shares its nodes.
            let spec = Arc::make_mut(&mut ordinary.job);
            (spec.cores, spec.nodes) = (random.within(1..9) as u32, 1);
        }
        work.jobs.push(ordinary);
    }
    for flow in 0..random.within(1..4) as u32 {
        let arrives = random.below(300) * SECOND;
        work.flows.push(Flow {
            name: format!("flow{flow}"),
            arrives,
        });
        let mut before: Vec<u32> = Vec::new();
        for _ in 0..random.within(2..5) {
            let bytes = random.within(1..120) * MIB;
            let made = work.items.len() as u32;
            work.items.push(item(bytes, false, random.below(4) == 0));
            let spread = match random.below(3) {
                0 => Spread::Whole,
                _ => Spread::Share,
            };
            let reads: Vec<(u32, Spread)> = before.iter().map(|i| (*i, spread)).collect();
            let wants = random.within(1..u64::from(nodes.min(4)) + 1) as u32;
            let compute = random.within(1..60) * SECOND;
            let job = job(Some(FlowId(flow)), wants, compute, 600 * SECOND, arrives);
            work.jobs.push(with_data(job, &reads, &[made]));
            if random.below(3) > 0 {
                before.clear();
            }
            before.push(made);
        }
    }
    (machine, work)
}

fn run_with(seed: u64, mode: ServiceMode, faults: Option<ClusterFaults>) -> ClusterResult {
    let (machine, work) = world(&mut Random::new(seed));
    let cluster = SimulatedCluster::new(&machine, Arc::new(work), settings(mode)).unwrap();
    let cluster = match faults {
        Some(faults) => cluster.with_faults(faults),
        None => cluster,
    };
    let title = mode.title();
    cluster
        .run()
        .unwrap_or_else(|e| panic!("seed {seed}, {title}: {e}"))
}

/// Every rule holds after each event, every job is done, and the same seed gives the same.
#[test]
fn jobs_of_random_worlds_are_done_by_the_rules() {
    let (mut judged, mut marks) = (0, 0);
    for seed in 0..WHOLE_SEEDS {
        {
            let (_, mode) = ServiceMode::NAMES[(seed % 4) as usize];
            let result = run_with(seed, mode, None);
            let title = mode.title();
            let done = result.site.jobs.iter().filter(|j| j.fate == Fate::Done);
            let refused = &result.site.refused;
            assert_eq!(
                done.count(),
                result.site.jobs.len(),
                "seed {seed}, {title}: {refused:?}"
            );
            assert_eq!(
                result.delays, 0,
                "seed {seed}, {title}: beyond the promise's bound"
            );
            judged += result.judged;
            marks += result.marks;
            if seed % 10 == 0 {
                let again = run_with(seed, mode, None);
                assert_eq!(again.site, result.site, "seed {seed}, {title}");
            }
        }
    }
    // The auditor judges no job that Slurm itself passed over, and Slurm's windows let many pass.
    assert!(judged > 10 && marks > 100, "{judged} judged, {marks} marks");
}

/// Nodes are lost, some with their data, and the controller is started again from its log: no rule is broken, and every job ends.
#[test]
fn losses_and_restarts_break_no_rule() {
    let (mut restarts, mut retried, mut taken_out) = (0, 0, 0);
    for seed in 0..SEEDS {
        let faults = ClusterFaults {
            seed,
            losses: 4,
            restarts: 4,
            interval: 60 * SECOND,
        };
        let (_, mode) = ServiceMode::NAMES[1 + (seed % 3) as usize];
        let result = run_with(seed, mode, Some(faults));
        restarts += result.restarts;
        let jobs = &result.site.jobs;
        retried += jobs.iter().filter(|j| j.attempts > 1).count();
        taken_out += jobs.iter().filter(|j| j.fate == Fate::TakenOut).count();
        assert!(jobs.iter().all(|j| j.fate != Fate::Open), "seed {seed}");
        assert_eq!(result.delays, 0, "seed {seed}");
    }
    assert!(
        restarts > 100 && retried > 100,
        "{restarts} restarts, {retried} jobs begun again, {taken_out} taken out"
    );
}
