//! Begin times: a job waits for the nodes with its data, and never for longer than it gains by it.

use super::*;
use tarn_slurm::DELAY_SECONDS;

/// Nodes 1 and 2 are busy, and job 7 had better wait for them, at most for so many seconds.
pub(super) fn busy_nodes(seconds: u64) -> (Model, Marks, [ReservationWish; 1]) {
    let (mut slurm, marks) = (Model::new(), Marks::new(3));
    slurm.snapshot.settings.boot_time = Some(1);
    slurm.submit(7, 0, 2);
    set_nodes(&mut slurm, NodeBase::Allocated);
    let mut wish = wish(0, "wing", [1, 2], 7);
    wish.jobs[0].delay = Some(seconds * SECOND);
    wish.jobs[0].needs_delay = true;
    (slurm, marks, [wish])
}

pub(super) fn set_nodes(slurm: &mut Model, base: NodeBase) {
    for at in 1..=2 {
        let node = slurm.snapshot.nodes.get_mut(&node(at)).unwrap();
        node.state.base = base;
    }
}

fn texts(step: &MarkStep) -> Vec<String> {
    let orders = step.orders.iter();
    orders.map(|order| order.action.to_string()).collect()
}

/// In how many seconds job 7 may begin.
pub(super) fn waits(slurm: &Model) -> u64 {
    slurm.snapshot.jobs[&7]
        .eligible
        .unwrap()
        .saturating_sub(slurm.now)
}

#[test]
fn a_job_waits_for_busy_nodes_with_its_data_and_joins_them_once_they_are_free() {
    let (mut slurm, mut marks, wishes) = busy_nodes(200);
    let first = texts(&slurm.drive(&mut marks, &wishes));
    assert_eq!(first[0], "scontrol update jobid=7 starttime=now+60");
    assert!(first[1].contains("create reservation"), "{first:?}");
    // The planner knows nothing of it.
    let seen = marks.undelayed(&slurm.snapshot);
    let job = &seen.jobs[&7];
    assert!(job.eligible <= Some(slurm.now) && job.reason == PendingReason::Priority);
    assert_eq!(marks.delayed(), [7].into());
    // It is renewed in time, and not with every second.
    let mut calls = 0;
    for _ in 0..100 {
        slurm.pass(1);
        let step = slurm.drive(&mut marks, &wishes);
        calls += texts(&step)
            .iter()
            .filter(|t| t.contains("starttime"))
            .count();
        assert!(waits(&slurm) > 35, "{:?}", step.orders);
    }
    assert_eq!(calls, 5);
    // Its nodes are free: it joins, which ends the delay, and nothing else.
    set_nodes(&mut slurm, NodeBase::Idle);
    let mut wishes = wishes;
    (wishes[0].jobs[0].delay, wishes[0].jobs[0].needs_delay) = (None, false);
    // Nothing is done on what was read before the last renewal.
    assert_eq!(texts(&slurm.drive(&mut marks, &wishes)), [""; 0]);
    slurm.pass(1);
    let step = texts(&slurm.drive(&mut marks, &wishes));
    assert!(step.last().unwrap().ends_with("starttime=now"), "{step:?}");
    assert!(step.iter().all(|t| !t.contains("now+60 ")), "{step:?}");
    slurm.pass(1);
    assert_eq!(slurm.snapshot.jobs[&7].nodes[..], [node(1), node(2)]);
    slurm.drive(&mut marks, &wishes);
    assert!(marks.delayed().is_empty());
}

#[test]
fn a_delay_ends_when_its_time_is_over_or_nobody_wishes_for_it_and_does_not_come_again() {
    let (mut slurm, mut marks, wishes) = busy_nodes(70);
    let mut last = Vec::new();
    for second in 0..=70 {
        last = texts(&slurm.drive(&mut marks, &wishes));
        // Never beyond the end of its time, whether the controller lives or not.
        assert!(waits(&slurm) + second <= 70, "{second} s: {last:?}");
        slurm.pass(1);
    }
    assert_eq!(last, ["scontrol update jobid=7 starttime=now"]);
    for _ in 0..10 {
        slurm.pass(1);
        slurm.drive(&mut marks, &wishes);
    }
    // Without it the nodes are not kept either.
    assert!(!marks.has_any() && slurm.tarns().is_empty() && waits(&slurm) == 0);

    let (mut slurm, mut marks, wishes) = busy_nodes(70);
    slurm.drive(&mut marks, &wishes);
    slurm.pass(1);
    let step = texts(&slurm.drive(&mut marks, &[]));
    assert_eq!(step, ["scontrol update jobid=7 starttime=now"]);
    slurm.pass(1);
    slurm.drive(&mut marks, &wishes);
    assert_eq!(waits(&slurm), 0);
    // When it is switched on again, a while later, that is another matter.
    slurm.pass(10);
    slurm.drive(&mut marks, &wishes);
    assert_eq!(waits(&slurm), u64::from(DELAY_SECONDS));
}

#[test]
fn a_job_that_waits_for_another_one_is_delayed_beyond_its_end_alone() {
    let (mut slurm, mut marks, wishes) = busy_nodes(30);
    let job = slurm.snapshot.jobs.get_mut(&7).unwrap();
    job.dependency = "afterok:6(unfulfilled)".to_owned();
    job.reason = PendingReason::Dependency;
    job.eligible = None;
    // However long the other one runs.
    for _ in 0..200 {
        slurm.drive(&mut marks, &wishes);
        assert!(waits(&slurm) > 35);
        slurm.pass(1);
    }
    slurm.snapshot.jobs.get_mut(&7).unwrap().dependency.clear();
    for _ in 0..30 {
        assert!(waits(&slurm) > 0);
        slurm.drive(&mut marks, &wishes);
        slurm.pass(1);
    }
    slurm.drive(&mut marks, &wishes);
    assert_eq!(waits(&slurm), 0);
}

#[test]
fn a_delay_outlives_a_moment_in_which_the_job_before_is_gone_and_still_waited_for() {
    let (mut slurm, mut marks, wishes) = busy_nodes(30);
    let job = slurm.snapshot.jobs.get_mut(&7).unwrap();
    job.dependency = "afterok:6(unfulfilled)".to_owned();
    slurm.drive(&mut marks, &wishes);
    for _ in 0..5 {
        slurm.pass(2);
        assert_eq!(texts(&slurm.drive(&mut marks, &[])), [""; 0]);
        slurm.pass(1);
        slurm.drive(&mut marks, &wishes);
        assert!(waits(&slurm) > 35);
    }
    for _ in 0..4 {
        slurm.pass(1);
        slurm.drive(&mut marks, &[]);
    }
    assert_eq!(waits(&slurm), 0);
}

#[test]
fn a_begin_time_of_a_user_or_an_administrator_stands() {
    // Before tarn came to it.
    let (mut slurm, mut marks, wishes) = busy_nodes(200);
    slurm.begin_at(7, slurm.now + 500).unwrap();
    assert_eq!(texts(&slurm.drive(&mut marks, &wishes)), [""; 0]);
    // While tarn delays it: later, and earlier.
    for begin in [500, 0] {
        let (mut slurm, mut marks, wishes) = busy_nodes(200);
        slurm.drive(&mut marks, &wishes);
        slurm.pass(10);
        let at = slurm.now + begin;
        slurm.begin_at(7, at).unwrap();
        let step = slurm.drive(&mut marks, &wishes);
        let note = "somebody changed the begin time of job 7: tarn leaves it alone";
        assert!(step.notes.iter().any(|n| n == note), "{:?}", step.notes);
        for _ in 0..20 {
            slurm.pass(2);
            slurm.drive(&mut marks, &wishes);
        }
        assert_eq!(slurm.snapshot.jobs[&7].eligible, Some(at));
        assert!(!marks.has_any());
    }
}

#[test]
fn jobs_that_wait_for_something_else_are_not_delayed() {
    let held = |job: &mut SlurmJob| job.priority = 0;
    let limited = |job: &mut SlurmJob| job.reason = PendingReason::Licences;
    let array = |job: &mut SlurmJob| {
        job.array = Some(tarn_slurm::ArrayTasks {
            job: 7,
            tasks: "1".into(),
        });
    };
    let changes: [fn(&mut SlurmJob); 3] = [held, limited, array];
    for change in changes {
        let (mut slurm, mut marks, wishes) = busy_nodes(200);
        change(slurm.snapshot.jobs.get_mut(&7).unwrap());
        slurm.drive(&mut marks, &wishes);
        assert_eq!(waits(&slurm), 0);
        assert!(!marks.has_any());
    }
    // One that begins before the call reaches Slurm: that is no reason to leave its workflow alone.
    let (slurm, mut marks, wishes) = busy_nodes(200);
    let step = marks.step(&slurm.snapshot, slurm.time(), &wishes, slurm.time());
    let late = refused("Job is no longer pending execution");
    marks.done(&step.orders[0], Err(late), slurm.time());
    assert!(marks.delayed().is_empty());
    assert!(!marks.is_left_alone(&wishes[0].workflow, slurm.time()));
}

#[test]
fn a_controller_that_dies_delays_nothing_for_longer_than_a_minute() {
    let (mut slurm, mut marks, wishes) = busy_nodes(10_000);
    slurm.drive(&mut marks, &wishes);
    assert_eq!(waits(&slurm), u64::from(DELAY_SECONDS));
    slurm.pass(u64::from(DELAY_SECONDS));
    assert_eq!(waits(&slurm), 0);
    // The next one takes the begin time for somebody else's: it changes nothing, and the job may begin.
    let mut next = Marks::new(4);
    let step = texts(&slurm.drive(&mut next, &[]));
    assert!(
        step.iter().all(|t| !t.contains("jobid=7 starttime")),
        "{step:?}"
    );
}

/// slurmctld starts again with a begin time of job 7 that it had before.
fn restart_with(slurm: &mut Model, begin: u64) {
    slurm.snapshot.settings.boot_time = Some(2);
    slurm.begin_at(7, begin).unwrap();
}

#[test]
fn a_slurmctld_that_starts_again_with_an_older_begin_time_holds_no_job() {
    // It has lost that the delay is over.
    let (mut slurm, mut marks, wishes) = busy_nodes(200);
    slurm.drive(&mut marks, &wishes);
    slurm.pass(1);
    let set = slurm.snapshot.jobs[&7].eligible.unwrap();
    slurm.drive(&mut marks, &[]);
    slurm.pass(1);
    restart_with(&mut slurm, set);
    assert!(waits(&slurm) > 55);
    slurm.drive(&mut marks, &[]);
    assert_eq!(waits(&slurm), 0);
    // From then on, somebody's begin time is somebody's.
    slurm.pass(1);
    let later = slurm.now + 500;
    slurm.begin_at(7, later).unwrap();
    slurm.drive(&mut marks, &[]);
    assert_eq!(waits(&slurm), 500);

    // It has lost the last renewal.
    let (mut slurm, mut marks, wishes) = busy_nodes(200);
    slurm.drive(&mut marks, &wishes);
    let set = slurm.snapshot.jobs[&7].eligible.unwrap();
    slurm.pass(25);
    slurm.drive(&mut marks, &wishes);
    slurm.pass(1);
    restart_with(&mut slurm, set);
    let step = slurm.drive(&mut marks, &wishes);
    assert_eq!((&step.notes[..], marks.delayed()), (&[][..], [7].into()));
    slurm.pass(25);
    slurm.drive(&mut marks, &wishes);
    assert!(waits(&slurm) > 55);

    // It has lost the first.
    let (mut slurm, mut marks, wishes) = busy_nodes(200);
    slurm.drive(&mut marks, &wishes);
    slurm.pass(1);
    let now = slurm.now;
    restart_with(&mut slurm, now);
    slurm.drive(&mut marks, &wishes);
    assert_eq!(waits(&slurm), u64::from(DELAY_SECONDS));
}

/// A job that waits for another reason than for reserved nodes.
fn plain_wish(seconds: u64) -> Vec<DelayWish> {
    let wish = DelayWish {
        job: 7,
        total: seconds * SECOND,
        reason: "it would reboot a node".to_owned(),
    };
    vec![wish]
}

#[test]
fn a_job_waits_without_a_reservation_while_that_is_wished() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(3));
    slurm.submit(7, 0, 2);
    for second in 0..100 {
        marks.wish_delays(plain_wish(200));
        let step = texts(&slurm.drive(&mut marks, &[]));
        let is_due = second % 20 == 0;
        let expected = is_due.then_some("scontrol update jobid=7 starttime=now+60");
        assert_eq!(step, expected.as_slice(), "{second} s");
        slurm.pass(1);
    }
    // It is wished no more: it may begin at once.
    let step = texts(&slurm.drive(&mut marks, &[]));
    assert_eq!(step, ["scontrol update jobid=7 starttime=now"]);
    assert_eq!((waits(&slurm), marks.has_any()), (0, false));
}

#[test]
fn a_job_never_waits_beyond_its_time_or_by_a_begin_time_of_others() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(3));
    slurm.submit(7, 0, 2);
    for second in 0..=70 {
        marks.wish_delays(plain_wish(70));
        slurm.drive(&mut marks, &[]);
        assert!(waits(&slurm) + second <= 70, "{second} s");
        slurm.pass(1);
    }
    marks.wish_delays(plain_wish(70));
    assert!(slurm.drive(&mut marks, &[]).orders.is_empty());
    // Of its user's.
    slurm.submit(7, 0, 2);
    let (later, mut marks) = (slurm.now + 500, Marks::new(4));
    slurm.begin_at(7, later).unwrap();
    marks.wish_delays(plain_wish(70));
    assert!(slurm.drive(&mut marks, &[]).orders.is_empty());
    assert_eq!(waits(&slurm), 500);
}

#[test]
fn a_wish_that_comes_again_does_not_begin_its_time_again() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(3));
    slurm.submit(7, 0, 2);
    let mut waited = 0;
    for second in 0..600 {
        // The planner has another node changed for a while, again and again.
        if second % 60 < 30 {
            marks.wish_delays(plain_wish(100));
        }
        slurm.drive(&mut marks, &[]);
        waited += u64::from(waits(&slurm) > 0);
        slurm.pass(1);
    }
    assert!((90..=110).contains(&waited), "{waited} s");
}
