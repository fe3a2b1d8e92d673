//! Jobs that wait for the nodes with their data, although Slurm would start them elsewhere at once.

use super::*;
use crate::simulated::ClusterFaults;
use tarn_types::random::Random;
use tarn_types::site::{Fate, Flow};

const SEEDS: u64 = 30;

/// Workflows of one step whose data several others read, and ordinary jobs; links of 100 MiB/s.
fn world(random: &mut Random) -> (Machine, Workload) {
    let nodes = random.within(3..9) as u32;
    let machine = machine(nodes, 64 << 30);
    let mut work = Workload::default();
    for _ in 0..random.within(1..12) {
        let at = random.below(400) * SECOND / 2;
        let wants = random.within(1..u64::from(nodes) + 1) as u32;
        let compute = random.within(1..120) * SECOND;
        let limit = (compute / (60 * SECOND) + 1 + random.below(3)) * 60 * SECOND;
        work.jobs.push(job(None, wants, compute, limit, at));
    }
    for flow in 0..random.within(1..4) as u32 {
        let arrives = random.below(300) * SECOND;
        work.flows.push(Flow {
            name: format!("flow{flow}"),
            arrives,
        });
        let made = work.items.len() as u32;
        work.items
            .push(item(random.within(1..16) * 1024 * MIB, false, false));
        let wants = random.within(1..3) as u32;
        let mut step = |reads: &[(u32, Spread)], writes: &[u32]| {
            let compute = random.within(5..60) * SECOND;
            let job = job(Some(FlowId(flow)), wants, compute, 60 * SECOND, arrives);
            work.jobs.push(with_data(job, reads, writes));
        };
        step(&[], &[made]);
        for _ in 0..4 {
            step(&[(made, Spread::Whole)], &[]);
        }
    }
    (machine, work)
}

fn run(machine: &Machine, work: &Workload, faults: Option<ClusterFaults>) -> ClusterResult {
    let settings = settings(ServiceMode::Drive);
    let cluster = SimulatedCluster::new(machine, Arc::new(work.clone()), settings).unwrap();
    let cluster = match faults {
        Some(faults) => cluster.with_faults(faults),
        None => cluster,
    };
    cluster.run().unwrap()
}

/// A step reads what the one before made. Its nodes are kept for it, but Slurm knows that it may start before tarn sees them idle: it
/// would start on another node, and bring 16 GiB there for 160 s.
#[test]
fn a_next_step_waits_until_it_can_join_the_nodes_with_its_data() {
    let machine = machine(3, 64 << 30);
    let mut work = Workload::default();
    work.flows.push(Flow {
        name: "chain".to_owned(),
        arrives: 0,
    });
    work.items.push(item(16 << 30, false, false));
    let step = |reads: &[(u32, Spread)], writes: &[u32]| {
        let job = job(Some(FlowId(0)), 1, 50 * SECOND, 60 * SECOND, 0);
        with_data(job, reads, writes)
    };
    work.jobs.push(step(&[], &[0]));
    work.jobs.push(step(&[(0, Spread::Whole)], &[]));
    let result = run(&machine, &work, None);
    let jobs = &result.site.jobs;
    assert!(jobs.iter().all(|job| job.fate == Fate::Done));
    let last = seconds(result.site.end);
    assert!((100.0..105.0).contains(&last), "{last} s");
    assert_eq!(result.site.bytes.peer, 0);
    // Set once, and renewed every 20 s while the first one runs.
    assert_eq!(result.begin_times, 3);
}

/// No ordinary job is late, every job ends, and the same seed gives the same; also if controllers die meanwhile.
#[test]
fn delays_break_no_rule() {
    let (mut begin_times, mut restarts) = (0, 0);
    for seed in 0..SEEDS {
        let (machine, work) = world(&mut Random::new(seed));
        let faults = ClusterFaults {
            seed,
            losses: 0,
            restarts: 6,
            interval: 40 * SECOND,
        };
        for faults in [None, Some(faults)] {
            let result = run(&machine, &work, faults);
            let mut fates = result.site.jobs.iter().map(|job| job.fate);
            assert!(fates.all(|fate| fate != Fate::Open), "seed {seed}");
            begin_times += result.begin_times;
            restarts += result.restarts;
        }
    }
    assert!(
        begin_times > 5 && restarts > 20,
        "{begin_times} begin times, {restarts} restarts"
    );
}

/// Workflows of steps that each read what the one before made, and ordinary jobs.
fn chains(random: &mut Random) -> (Machine, Workload) {
    let nodes = random.within(3..9) as u32;
    let machine = machine(nodes, 64 << 30);
    let mut work = Workload::default();
    for _ in 0..random.within(1..12) {
        let at = random.below(400) * SECOND / 2;
        let wants = random.within(1..u64::from(nodes) + 1) as u32;
        let compute = random.within(1..120) * SECOND;
        let limit = (compute / (60 * SECOND) + 1 + random.below(3)) * 60 * SECOND;
        work.jobs.push(job(None, wants, compute, limit, at));
    }
    for flow in 0..random.within(1..4) as u32 {
        let arrives = random.below(300) * SECOND;
        work.flows.push(Flow {
            name: format!("flow{flow}"),
            arrives,
        });
        let mut before: Option<u32> = None;
        for _ in 0..random.within(2..5) {
            let made = work.items.len() as u32;
            work.items
                .push(item(random.within(1..8) * 1024 * MIB, false, false));
            let wants = random.within(1..u64::from(nodes.min(4)) + 1) as u32;
            let compute = random.within(5..60) * SECOND;
            let limit = (compute / (60 * SECOND) + 1 + random.below(10)) * 60 * SECOND;
            let reads: Vec<(u32, Spread)> = before.iter().map(|i| (*i, Spread::Whole)).collect();
            let job = job(Some(FlowId(flow)), wants, compute, limit, arrives);
            work.jobs.push(with_data(job, &reads, &[made]));
            before = Some(made);
        }
    }
    (machine, work)
}

/// A step's begin time ends as it joins its nodes, and Slurm shows the reason BeginTime until its next pass. The planner once took
/// the step for one that waits for something else meanwhile, planned an ordinary job on its nodes, and forgot that job's promise.
#[test]
fn a_step_that_joins_takes_no_promise_from_an_ordinary_job() {
    let mut begin_times = 0;
    for seed in 40..64 {
        let (machine, work) = chains(&mut Random::new(seed));
        let result = run(&machine, &work, None);
        let fates = result.site.jobs.iter().map(|job| job.fate);
        assert!(fates.into_iter().all(|fate| fate == Fate::Done), "{seed}");
        assert_eq!(result.delays, 0, "{seed}: beyond the promise's bound");
        begin_times += result.begin_times;
    }
    assert!(begin_times > 50, "{begin_times}");
}
