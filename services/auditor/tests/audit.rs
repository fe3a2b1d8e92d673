//! Accountings with exactly one violation each, clean ones, and those that are damaged. Machine: four nodes of 8 processors.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tarn_auditor::{AuditInput, AuditReport, AuditedNode, BackwardTime, audit};
use tarn_types::site::{AccountedJob, AccountedState};

const BOUND: u64 = 600;
/// Seconds since 1970 at which the accountings begin.
const DAY: u64 = 1_796_000_000;

/// An ordinary job or one with data lines, on these of the four nodes, with times from the beginning of the accounting.
fn job(number: u32, nodes: &[u32], [ready, start, end]: [u64; 3], limit: u64) -> AccountedJob {
    AccountedJob {
        number,
        user: 7001,
        partition: "main".into(),
        qos: "normal".into(),
        state: AccountedState::Completed,
        submitted: Some(DAY + ready),
        eligible: Some(DAY + ready),
        start: Some(DAY + start),
        end: Some(DAY + end),
        limit: Some(limit),
        nodes: nodes.iter().map(|n| format!("n{n}")).collect(),
        wanted: nodes.len() as u32,
        cpus: 8 * nodes.len() as u64,
        memory: None,
        gpus: 0,
        reservation: String::new(),
        is_array_task: false,
    }
}

fn machine() -> BTreeMap<String, AuditedNode> {
    let node = AuditedNode {
        resources: [8, 32 << 30, 0],
        partitions: BTreeSet::from(["main".to_owned(), "short".to_owned()]),
    };
    (0..4).map(|n| (format!("n{n}"), node.clone())).collect()
}

fn run(jobs: &[AccountedJob], data: &[u32]) -> AuditReport {
    audit(&AuditInput {
        jobs,
        data_jobs: &data.iter().copied().collect(),
        nodes: &machine(),
        bound: BOUND,
    })
}

/// Job 1 has all nodes for 1,000 s. Job 2 needs all four and waits from 10 s on: it is promised a begin at 1,000 s. Job 3, with data
/// lines, came later, gets two nodes first and has a limit of an hour: job 2 begins when that ends.
fn overtaken(limit: u64, end: u64) -> Vec<AccountedJob> {
    vec![
        job(1, &[0, 1, 2, 3], [0, 0, 1000], 1000),
        job(2, &[0, 1, 2, 3], [10, end, end + 100], 500),
        job(3, &[0, 1], [20, 1000, end], limit),
    ]
}

#[test]
fn a_workflow_that_delays_an_ordinary_job_too_long_is_named() {
    let report = run(&overtaken(3600, 4600), &[3]);
    assert_eq!((report.delay_count, report.judged), (1, 1));
    let delay = report.delays[0];
    assert_eq!((delay.job, delay.by), (2, 3));
    assert_eq!((delay.at, delay.could_begin), (DAY + 1000, DAY + 1000));
    assert_eq!(delay.latest, DAY + 1000 + BOUND);
    assert_eq!(
        (delay.then, delay.began),
        (Some(DAY + 4600), Some(DAY + 4600))
    );
    assert!(!report.is_clean());
}

#[test]
fn within_the_bound_nothing_is_named() {
    assert!(run(&overtaken(600, 1600), &[3]).is_clean());
    let report = run(&overtaken(3600, 1200), &[3]);
    assert!(report.is_clean(), "it ended early");
    assert_eq!(report.without_effect, 1);
}

#[test]
fn an_ordinary_job_that_slurm_prefers_is_slurms_matter() {
    let report = run(&overtaken(3600, 4600), &[]);
    assert!(report.is_clean() && report.data_jobs == 0);
    // With a workflow that comes behind it, job 2 is judged no further: its priority was lower.
    let mut jobs = overtaken(3600, 4600);
    jobs.push(job(4, &[2, 3], [30, 1000, 4600], 3600));
    let report = run(&jobs, &[4]);
    assert!(report.is_clean());
    assert_eq!(report.not_compared.passed_over, 1);
}

#[test]
fn a_workflow_that_came_before_goes_first() {
    let mut jobs = overtaken(3600, 4600);
    jobs[2] = job(3, &[0, 1], [5, 1000, 4600], 3600);
    assert!(run(&jobs, &[3]).is_clean());
}

#[test]
fn small_delays_of_many_workflows_add_up_to_one_bound() {
    // Each alone puts job 2 off by less than the bound beyond what was before.
    let jobs = [
        job(1, &[0, 1, 2, 3], [0, 0, 1000], 1000),
        job(2, &[0, 1, 2, 3], [10, 2400, 2500], 500),
        job(3, &[0], [20, 1000, 1500], 500),
        job(4, &[1], [20, 1450, 1950], 500),
        job(5, &[2], [20, 1900, 2400], 500),
    ];
    let report = run(&jobs, &[3, 4, 5]);
    let by: Vec<u32> = report.delays.iter().map(|d| d.by).collect();
    assert_eq!(by, [4, 5], "the first is within the bound");
}

#[test]
fn jobs_of_another_quality_or_partition_are_counted_not_compared() {
    for change in [
        |job: &mut AccountedJob| job.qos = "high".into(),
        |job: &mut AccountedJob| job.partition = "short".into(),
    ] {
        let mut jobs = overtaken(3600, 4600);
        change(&mut jobs[2]);
        let report = run(&jobs, &[3]);
        assert!(report.is_clean());
        assert_eq!(report.not_compared.other_queue, 1);
    }
}

#[test]
fn a_job_that_waits_for_a_licence_is_not_delayed_by_whoever_takes_its_nodes() {
    // Two nodes are free for job 2 from its submission on.
    let jobs = |reservation: &str| {
        let mut taker = job(3, &[2, 3], [500, 500, 4100], 3600);
        taker.reservation = reservation.into();
        vec![
            job(1, &[0, 1], [0, 0, 5000], 5000),
            job(2, &[2, 3], [10, 4100, 4200], 500),
            taker,
        ]
    };
    let report = run(&jobs(""), &[3]);
    assert!(report.is_clean());
    assert_eq!(report.not_compared.waited_for_more, 1);
    let kept = run(&jobs("tarn_3_foam_nodes"), &[3]);
    assert_eq!(kept.delay_count, 1, "the nodes were kept for the workflow");
}

#[test]
fn a_share_of_a_node_is_enough_for_a_job_that_asks_for_one() {
    let mut jobs = overtaken(3600, 4600);
    // Job 2 asks for two processors of one node, which job 4 leaves it.
    jobs[1] = job(2, &[3], [10, 1000, 1100], 500);
    jobs[1].cpus = 2;
    jobs.push(job(4, &[3], [20, 1000, 4600], 3600));
    jobs[3].cpus = 6;
    assert!(run(&jobs, &[3, 4]).is_clean());
}

#[test]
fn a_requeued_job_is_two_attempts_and_a_held_one_waits_not() {
    let mut jobs = overtaken(3600, 4600);
    let mut first = job(2, &[0, 1, 2, 3], [10, 1000, 1001], 500);
    first.state = AccountedState::Requeued;
    // It waits again from 1,001 s on, with job 3 before it.
    jobs[1] = job(2, &[0, 1, 2, 3], [1001, 4700, 4800], 500);
    jobs[2] = job(3, &[0, 1], [900, 1001, 4600], 3600);
    jobs.push(first);
    assert!(run(&jobs, &[3]).is_clean(), "the data job was there first");
    let mut held = overtaken(3600, 4600);
    held[1].eligible = None;
    assert!(run(&held, &[3]).is_clean());
}

#[test]
fn a_job_that_was_cancelled_in_the_queue_was_delayed_until_then() {
    let mut jobs = overtaken(3600, 4600);
    jobs[1].start = None;
    jobs[1].state = AccountedState::Cancelled;
    jobs[1].nodes = [].into();
    jobs[1].end = Some(DAY + 1500);
    assert_eq!(run(&jobs, &[3]).without_effect, 1);
    jobs[1].end = Some(DAY + 3000);
    let report = run(&jobs, &[3]);
    assert_eq!((report.delay_count, report.delays[0].began), (1, None));
}

#[test]
fn times_that_run_backwards_are_named_and_not_judged() {
    let mut odd = overtaken(3600, 4600);
    odd[1].start = Some(DAY);
    odd[1].submitted = Some(DAY + 10);
    let report = run(&odd, &[3]);
    assert!(report.is_clean());
    let named = BackwardTime::StartBeforeSubmission { job: 2, by: 10 };
    assert_eq!(
        (&report.backwards[..], report.not_compared.bad_times),
        (&[named][..], 1)
    );

    // The clock is set back by 900 s between jobs 3 and 4: who waits then is not judged.
    let mut jumped = overtaken(3600, 4600);
    jumped[2] = job(3, &[0, 1], [1300, 1300, 4600], 3600);
    jumped.push(job(4, &[2], [400, 1700, 1800], 60));
    let report = run(&jumped, &[3]);
    assert!(report.is_clean());
    let set_back = BackwardTime::ClockSetBack {
        before: 3,
        after: 4,
        from: DAY + 1300,
        to: DAY + 400,
    };
    assert_eq!(report.backwards, [set_back]);
    assert_eq!(report.not_compared.bad_times, 2);
}

#[test]
fn an_end_before_the_begin_takes_no_nodes() {
    let mut jobs = overtaken(600, 1600);
    jobs.push(job(9, &[0, 1, 2, 3], [900, 1200, 1100], 86_400));
    let report = run(&jobs, &[3, 9]);
    assert!(report.is_clean());
    assert_eq!(
        report.backwards,
        [BackwardTime::EndBeforeStart { job: 9, by: 100 }]
    );
}

#[test]
fn numbers_that_begin_again_are_no_clock_that_was_set_back() {
    let jobs = [
        job(67_000_000, &[0], [0, 0, 9], 60),
        job(1, &[1], [100, 100, 109], 60),
    ];
    assert_eq!(run(&jobs, &[]).backward_count, 0);
}

#[test]
fn without_a_description_nodes_are_what_jobs_had_on_them() {
    let jobs = overtaken(3600, 4600);
    let report = audit(&AuditInput {
        jobs: &jobs,
        data_jobs: &BTreeSet::from([3]),
        nodes: &BTreeMap::new(),
        bound: BOUND,
    });
    assert_eq!(report.delay_count, 1);
}

fn any_job() -> impl Strategy<Value = AccountedJob> {
    let times = proptest::collection::vec(proptest::option::of(0u64..50), 4);
    let odd = prop_oneof![Just(0u64), Just(5), Just(u64::MAX), 0u64..100];
    (
        1u32..20,
        times,
        0u32..5,
        odd.clone(),
        proptest::option::of(odd),
        0u32..3,
    )
        .prop_map(|(number, times, nodes, cpus, limit, queue)| AccountedJob {
            submitted: times[0],
            eligible: times[1],
            start: times[2],
            end: times[3],
            limit,
            cpus,
            memory: Some(cpus),
            qos: format!("q{queue}"),
            nodes: (0..nodes).map(|n| format!("n{n}")).collect(),
            ..job(number, &[], [0, 0, 0], 0)
        })
}

proptest! {
    /// The audit of any accounting ends, and names only jobs that are in it.
    #[test]
    fn no_accounting_panics(
        jobs in proptest::collection::vec(any_job(), 0..60),
        data in proptest::collection::btree_set(1u32..20, 0..10),
        is_described in any::<bool>(),
        bound in prop_oneof![Just(0u64), Just(10), Just(u64::MAX)],
    ) {
        let nodes = if is_described { machine() } else { BTreeMap::new() };
        let report = audit(&AuditInput { jobs: &jobs, data_jobs: &data, nodes: &nodes, bound });
        for delay in &report.delays {
            prop_assert!(data.contains(&delay.by) && !data.contains(&delay.job));
        }
    }
}
