//! What `data` does beside choosing nodes, one small site each: data that comes ahead, room that is kept, copies that follow
//! each other, reboots that are few, nodes that sleep.

use std::sync::Arc;
use tarn_base::policy::Policy;
use tarn_base::site::{
    Input, Island, Item, ItemId, Job, Machine, Mode, ModeChange, NodeKind, Power, Rates,
    SiteResult, Spread, Store, Submit, TierKind, WorkItem, WorkJob, Workload,
};
use tarn_base::units::{Nanos, SECOND};
use tarn_engine::plan::{Planner, drive_site};
use tarn_sim::site::Site;

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
        power: Power {
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
        let policy: Policy = policy.parse().expect("a policy");
        let site = Site::new(machine, Arc::new(self.0.clone())).expect("a workload");
        let mut site = site.checked();
        let mut planner = Planner::new(machine, policy);
        drive_site(&mut planner, &mut site, &mut |_, _, _| {}).expect("every rule is kept");
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
fn data_does_not_come_ahead_where_it_has_no_room() {
    // What Job 0 writes and what Job 1 reads do not fit together; what Job 0 has written leaves for 70 s.
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
fn room_is_kept_for_who_goes_first() {
    // When Job 0 has ended, 60 GB have to leave before Job 1 has room for 80. Job 2 is so short that it would not delay it
    // by its nodes, but what it writes would.
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
fn a_node_without_room_is_not_waited_for_while_another_has_some() {
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
fn who_would_wait_long_for_room_does_without() {
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

#[test]
fn idle_nodes_sleep() {
    let work = Work::default()
        .job(0, whole(4, &[], &[]), 100)
        .job(10_000, whole(4, &[], &[]), 100);
    let machine = machine(4);
    let (data, energy) = (work.under("data", &machine), work.under("energy", &machine));
    assert!(energy.energy < data.energy / 3.0, "{energy:?} {data:?}");
    assert!(energy.end <= data.end + 51 * SECOND);
}
