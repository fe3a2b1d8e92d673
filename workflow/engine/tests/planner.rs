//! The effects of `data` beside the choice of nodes, one small site each: data that comes ahead, space that is kept,
//! copies that follow each other, reboots that are few, nodes that sleep, and the begin on which ordinary jobs can
//! rely.

use std::sync::Arc;
use tarn_engine::plan::{Planner, drive_site};
use tarn_simulator::site::SimulatedSite;
use tarn_types::policy::{Order, Policy};
use tarn_types::site::{
    Flow, FlowId, Input, Island, Item, ItemId, Job, Machine, Mode, ModeChange, NodeKind,
    NodePowerModel, Rates, SiteResult, Spread, Store, Submit, TierKind, WorkItem, WorkJob,
    Workload,
};
use tarn_types::units::{Nanos, SECOND};

const GB: u64 = 1_000_000_000;

fn rate(gb: u64) -> Rates {
    let rate = gb * GB;
    Rates {
        read: rate,
        write: rate,
    }
}

/// Nodes of 4 cores with 100 GB of tier at 100 GB/s and links of 10 GB/s; a store that gives each node 1 GB/s.
fn machine(nodes: u32) -> Machine {
    let kind = NodeKind {
        sockets: 1,
        cores: 4,
        memory: 64 * GB,
        gpus: 0,
        tiers: vec![TierKind {
            name: "nvme".into(),
            capacity: 100 * GB,
            rates: rate(100),
            app_direct: false,
        }],
        link: rate(10),
        mode: Mode::OneLevel,
        mode_change: Some(ModeChange {
            time: 300 * SECOND,
            memory: 256 * GB,
        }),
        power: NodePowerModel {
            idle: 100.0,
            busy: 300.0,
            asleep: 10.0,
            boot: 200.0,
            wake: 50 * SECOND,
        },
        temperature: 20.0,
    };
    Machine {
        name: "small".into(),
        islands: vec![Island {
            name: "n".into(),
            nodes,
            kind,
        }],
        store: Store {
            rates: rate(u64::from(nodes)),
            client: rate(1),
            saturates: nodes,
        },
    }
}

#[derive(Default)]
struct Work(Workload);

impl Work {
    fn item(mut self, gb: u64, outside: bool, keep: bool) -> Self {
        let bytes = gb * GB;
        let item = Item {
            bytes,
            outside,
            keep,
        };
        self.0.items.push(WorkItem {
            item,
            name: "".into(),
            bytes,
        });
        self
    }

    /// A job of `compute` seconds, and some more for its limit, that comes at `at` seconds.
    fn job(mut self, at: Nanos, job: Job, compute: Nanos) -> Self {
        let job = Job {
            limit: (compute + compute / 2) * SECOND,
            expect: compute * SECOND,
            ..job
        };
        self.0.jobs.push(WorkJob {
            job: Arc::new(job),
            name: "".into(),
            submit: Submit::At(at * SECOND),
            compute: compute * SECOND,
        });
        self
    }

    fn under(&self, policy: &str, machine: &Machine) -> SiteResult {
        let name = policy;
        let policy: Policy = name.parse().expect("a policy");
        let site = SimulatedSite::new(machine, Arc::new(self.0.clone())).expect("a workload");
        let site = site.checked();
        let mut site = match policy.order {
            Order::Data | Order::Energy => site.promising(policy.bound),
            Order::Fcfs
            | Order::Greedy
            | Order::Easy
            | Order::Conservative
            | Order::SjfEasy
            | Order::Heft
            | Order::SameNodes => site,
        };
        let mut planner = Planner::new(machine, policy);
        drive_site(&mut planner, &mut site, &mut |_, _, _| {})
            .unwrap_or_else(|e| panic!("under {name}: {e}"));
        site.into_inner().into_result()
    }
}

/// On so many whole nodes.
fn whole(nodes: u32, reads: &[u32], writes: &[u32]) -> Job {
    let input = |item: &u32| Input {
        item: ItemId(*item),
        spread: Spread::Share,
    };
    Job {
        flow: None,
        nodes,
        cores: 0,
        memory: 0,
        gpus: 0,
        mode: None,
        limit: 0,
        expect: 0,
        after: Vec::new(),
        continues: None,
        submitted: None,
        place: None,
        on: None,
        not_before: 0,
        reads: reads.iter().map(input).collect(),
        writes: writes.iter().map(|i| ItemId(*i)).collect(),
    }
}

fn begun(result: &SiteResult, job: usize) -> Nanos {
    result.jobs[job].begun / SECOND
}

fn released(result: &SiteResult, job: usize) -> Nanos {
    result.jobs[job].released / SECOND
}

#[test]
fn data_is_there_when_the_nodes_are_free() {
    // Job 1 reads for 40 s, while Job 0 still computes.
    let work = Work::default()
        .item(80, true, false)
        .job(0, whole(2, &[], &[]), 100)
        .job(1, whole(2, &[0], &[]), 50);
    let machine = machine(2);
    assert_eq!(released(&work.under("easy", &machine), 1), 100 + 40 + 50);
    let data = work.under("data", &machine);
    assert_eq!((begun(&data, 1), released(&data, 1)), (100, 150));
    assert_eq!(data.bytes.external_in, 80 * GB);
}

#[test]
fn data_does_not_come_ahead_where_it_has_no_space() {
    // The output of Job 0 and the input of Job 1 do not fit together; the output takes 70 s to leave.
    let work = Work::default()
        .item(70, false, true)
        .item(60, true, false)
        .job(0, whole(1, &[], &[0]), 100)
        .job(1, whole(1, &[1], &[]), 50);
    let data = work.under("data", &machine(1));
    assert_eq!(data.tier_peaks, [70 * GB]);
    assert!((170..=171).contains(&begun(&data, 1)), "{data:?}");
    assert!((280..=282).contains(&released(&data, 1)), "{data:?}");
}

#[test]
fn space_is_kept_for_who_goes_first() {
    // When Job 0 has ended, 60 GB have to leave before Job 1 has space for 80. Job 2 is so short that it would not
    // delay it by its nodes, but its output would.
    let work = Work::default()
        .item(60, false, true)
        .item(80, false, false)
        .item(30, false, true)
        .job(0, whole(1, &[], &[0]), 100)
        .job(1, whole(1, &[], &[1]), 50)
        .job(2, whole(1, &[], &[2]), 10);
    let data = work.under("data", &machine(1));
    assert!((160..=161).contains(&begun(&data, 1)), "{data:?}");
    assert!(begun(&data, 2) >= released(&data, 1));
}

/// On so many cores of one node.
fn part(cores: u32, reads: &[u32], writes: &[u32]) -> Job {
    Job {
        cores,
        ..whole(1, reads, writes)
    }
}

#[test]
fn who_reads_past_the_tiers_holds_a_node_and_others_take_another() {
    // 200 GB never fit: each job reads for 200 s on its node. A busy node is no sooner, although its program is short.
    let work = (0..3).fold(Work::default().item(200, true, false), |work, _| {
        work.job(0, part(4, &[0], &[]), 10)
    });
    let data = work.under("data", &machine(3));
    for job in 0..3 {
        assert_eq!((begun(&data, job), released(&data, job)), (0, 210));
    }
}

#[test]
fn a_node_without_space_is_not_waited_for_while_another_has_some() {
    let work = Work::default()
        .item(70, false, false)
        .item(70, false, false)
        .job(0, part(1, &[], &[0]), 100)
        .job(0, part(1, &[], &[1]), 100);
    let data = work.under("data", &machine(2));
    assert_eq!((begun(&data, 0), begun(&data, 1)), (0, 0));
    assert_eq!(data.tier_peaks, [70 * GB, 70 * GB]);
}

#[test]
fn who_would_wait_long_for_space_does_without() {
    // Job 0 fills the tier for 1,000 s. Job 1 writes its 50 GB outside in 50 s instead.
    let work = Work::default()
        .item(80, false, false)
        .item(50, false, true)
        .job(0, part(1, &[], &[0]), 1000)
        .job(1, part(1, &[], &[1]), 10);
    let data = work.under("data", &machine(1));
    assert_eq!((begun(&data, 1), released(&data, 1)), (1, 61));
}

#[test]
fn readers_of_one_item_do_not_queue_where_it_comes_first() {
    // It is there after 80 s; four readers fill a node for 60 s.
    let work = (0..8).fold(Work::default().item(80, true, false), |work, _| {
        work.job(0, part(1, &[0], &[]), 60)
    });
    let data = work.under("data", &machine(2));
    assert!(data.end < 160 * SECOND, "{data:?}");
}

#[test]
fn parts_of_many_nodes_are_taken_at_once() {
    let work = (0..300).fold(Work::default(), |work, _| {
        work.job(0, part(1, &[], &[]), 60)
    });
    let data = work.under("data", &machine(100));
    assert!((0..300).all(|job| begun(&data, job) == 0));
}

#[test]
fn one_reads_outside_and_the_others_from_it() {
    let work = (0..4).fold(Work::default().item(20, true, false), |work, _| {
        let job = Job {
            cores: 4,
            ..whole(1, &[0], &[])
        };
        work.job(0, job, 100)
    });
    let mut machine = machine(4);
    machine.store.rates = rate(1);
    let data = work.under("data", &machine);
    assert_eq!(data.bytes.external_in, 20 * GB);
    assert_eq!(data.bytes.peer, 3 * 20 * GB);
    assert_eq!(work.under("easy", &machine).bytes.external_in, 4 * 20 * GB);
}

#[test]
fn jobs_of_one_memory_mode_run_together() {
    let modes = [Mode::OneLevel, Mode::TwoLevel];
    let work = (0..12).fold(Work::default(), |work, i| {
        let job = Job {
            mode: Some(modes[i % 2]),
            ..whole(1, &[], &[])
        };
        work.job(0, job, 60)
    });
    let machine = machine(1);
    let (easy, data) = (work.under("easy", &machine), work.under("data", &machine));
    assert_eq!((easy.mode_changes, data.mode_changes), (11, 1));
}

/// Jobs of `seconds` on all nodes, one every 10,000 s.
fn now_and_then(jobs: u64, seconds: u64) -> Work {
    (0..jobs).fold(Work::default(), |work, i| {
        work.job(i * 10_000, whole(4, &[], &[]), seconds)
    })
}

fn slow_down(result: &SiteResult) -> f64 {
    let all = result.jobs.iter().map(|j| j.bounded_slow_down());
    all.sum::<f64>() / result.jobs.len() as f64
}

#[test]
fn idle_nodes_sleep() {
    let (work, machine) = (now_and_then(20, 1000), machine(4));
    let (data, energy) = (work.under("data", &machine), work.under("energy", &machine));
    assert!(energy.energy < data.energy / 2.0, "{energy:?} {data:?}");
    assert!(energy.end <= data.end + 51 * SECOND);
    assert!(slow_down(&energy) > 1.0 && slow_down(&energy) <= 1.1);
}

#[test]
fn sleep_slows_down_no_more_than_is_stated() {
    // Waking takes 50 s: five times the run time of such a job.
    for (seconds, jobs) in [(10, 400), (100, 200), (1000, 50)] {
        let (work, machine) = (now_and_then(jobs, seconds), machine(4));
        let data = work.under("data", &machine);
        assert_eq!(slow_down(&data), 1.0);
        for percent in [0, 5, 10, 50] {
            let policy = format!("energy:slow-down={percent}%");
            let energy = work.under(&policy, &machine);
            let most = 1.0 + f64::from(percent) / 100.0;
            let one_waking = 50.0 / seconds.max(10) as f64 / jobs as f64;
            let mean = slow_down(&energy);
            assert!(mean <= most + one_waking, "{policy}, {seconds} s: {mean}");
            assert!(energy.energy <= data.energy, "{policy}, {seconds} s");
            if percent == 0 {
                assert_eq!(energy.end, data.end);
            }
            if percent == 50 {
                assert!(
                    energy.energy < data.energy * 0.95,
                    "{seconds} s: it never slept"
                );
            }
        }
    }
}

#[test]
fn nothing_sleeps_that_takes_longer_to_wake_than_it_idles() {
    let mut machine = machine(4);
    machine.islands[0].kind.power.wake = 3600 * SECOND;
    let work = Work::default()
        .job(0, whole(1, &[], &[]), 3600)
        .job(1800, whole(4, &[], &[]), 10);
    let (data, energy) = (work.under("data", &machine), work.under("energy", &machine));
    assert_eq!((energy.end, energy.energy), (data.end, data.energy));
}

/// Workflows of one step on so many nodes (or, of one node, so many cores), one every so many seconds.
fn workflows(work: Work, count: u32, every: Nanos, step: &Job, compute: Nanos) -> Work {
    (0..count).fold(work, |mut work, n| {
        let flow = FlowId(work.0.flows.len() as u32);
        let arrives = Nanos::from(n) * every;
        work.0.flows.push(Flow {
            name: "".into(),
            arrives: arrives * SECOND,
        });
        let flow = Some(flow);
        work.job(
            arrives,
            Job {
                flow,
                ..step.clone()
            },
            compute,
        )
    })
}

/// The longest wait of the first jobs, in seconds.
fn longest_wait(work: &Work, policy: &str, machine: &Machine, first: usize) -> Nanos {
    let result = work.under(policy, machine);
    let came = |i: usize| match work.0.jobs[i].submit {
        Submit::At(at) => at / SECOND,
        Submit::After(_) => 0,
    };
    let waits = (0..first).map(|i| begun(&result, i) - came(i));
    waits.max().unwrap_or(0)
}

/// For hours, workflows come that stand before an ordinary job in the queue and would leave it no nodes: it waits no longer
/// than under `easy` and the bound.
#[test]
fn an_ordinary_job_is_not_overtaken_for_ever() {
    for (job, step, nodes) in [
        (whole(3, &[], &[]), whole(2, &[], &[]), 4),
        (part(3, &[], &[]), part(2, &[], &[]), 1),
        (part(4, &[], &[]), whole(1, &[], &[]), 1),
        (whole(1, &[], &[]), part(2, &[], &[]), 1),
    ] {
        let machine = machine(nodes);
        let work = Work::default().job(601, job, 600);
        let work = workflows(work, 100, 900, &step, 3600);
        let easy = longest_wait(&work, "easy", &machine, 1);
        for (policy, bound) in [
            ("data", 600),
            ("data:bound=0s", 0),
            ("data:lead=0s", 0),
            ("energy", 600),
        ] {
            let wait = longest_wait(&work, policy, &machine, 1);
            assert!(
                wait <= easy + bound,
                "{policy}: {wait} s, under easy {easy} s"
            );
        }
    }
}

#[test]
fn ten_ordinary_jobs_are_not_overtaken_for_ever() {
    let work = (0..10).fold(Work::default(), |work, n| {
        work.job(600 + n, whole(3, &[], &[]), 600)
    });
    let work = workflows(work, 120, 900, &whole(2, &[], &[]), 3600);
    let machine = machine(4);
    let easy = longest_wait(&work, "easy", &machine, 10);
    for policy in ["data", "data:bound=0s", "data:lead=0s", "data:bound=10m"] {
        let wait = longest_wait(&work, policy, &machine, 10);
        assert!(
            wait <= easy + 600,
            "{policy}: {wait} s, under easy {easy} s"
        );
    }
}

/// So many workflows stand before it that they are not all looked at for one event.
#[test]
fn an_ordinary_job_behind_many_workflows_is_looked_at() {
    let work = Work::default().job(1, whole(1, &[], &[]), 60);
    let work = workflows(work, 1, 1, &whole(2, &[], &[]), 100);
    let work = (0..200).fold(work, |work, _| {
        let before = work.0.jobs.len() as u32;
        let mut work = workflows(work, 1, 0, &whole(2, &[], &[]), 1000);
        let last = &mut work.0.jobs[before as usize];
        last.submit = Submit::At(2 * SECOND);
        work
    });
    let data = work.under("data:bound=0s", &machine(2));
    assert_eq!(begun(&data, 0), 100);
}

/// While Job 0 runs, Job 1 comes, and then a step of 5 minutes (by its limit 7.5) that its lead puts before it.
#[test]
fn a_workflow_overtakes_within_the_bound() {
    let work = Work::default()
        .job(0, whole(1, &[], &[]), 1000)
        .job(10, whole(1, &[], &[]), 1000);
    let work = workflows(work, 2, 20, &whole(1, &[], &[]), 300);
    let mut work = work;
    work.0.jobs.remove(2);
    for (policy, first) in [
        ("data:bound=10m", 1300),
        ("data:bound=5m", 1000),
        ("data:bound=0s", 1000),
        ("data:bound=10m,lead=0s", 1000),
        ("data:bound=10m,lead=5s", 1000),
    ] {
        let result = work.under(policy, &machine(1));
        assert_eq!(begun(&result, 1), first, "{policy}");
    }
}

/// Ordinary jobs without data among workflows, nothing goes wrong: the checker knows the latest begin of each.
#[test]
fn ordinary_jobs_begin_as_promised() {
    for seed in 0..150u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = |most: u64| {
            // Marsaglia's xorshift: all that is wanted is that the cases differ.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % most
        };
        let mut job = |whole_only: bool| match whole_only || below(2) == 0 {
            true => whole(1 + below(4) as u32, &[], &[]),
            false => part(1 + below(4) as u32, &[], &[]),
        };
        let kinds: Vec<Job> = (0..40).map(|n| job(n % 5 == 0)).collect();
        let mut work = Work::default();
        for (n, kind) in kinds.iter().enumerate() {
            let (at, compute) = (below(4000), 20 + below(2000));
            work = match n < 15 {
                true => work.job(at, kind.clone(), compute),
                false => {
                    let mut with = workflows(work, 1, 0, kind, compute);
                    if let Some(last) = with.0.jobs.last_mut() {
                        last.submit = Submit::At(at * SECOND);
                    }
                    with
                }
            };
        }
        for policy in ["data", "data:bound=0s", "data:bound=30m", "data:lead=0s"] {
            work.under(policy, &machine(4));
        }
    }
}
