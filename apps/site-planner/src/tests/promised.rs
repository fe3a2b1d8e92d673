//! A promise holds whenever the planner is built again.

use super::*;
use crate::RebuildReason;

/// Job 1 runs on both nodes until at most 900 s from now, job 2 waits for both. One of them is drained or not.
fn moment(is_drained: bool) -> SlurmSnapshot {
    let first = running(waiting(1, 2), &["n0", "n1"], START - 100);
    let mut snapshot = with(cluster(2), vec![first, waiting(2, 2), waiting(3, 1)]);
    if is_drained {
        let node = snapshot.nodes.get_mut("n1").unwrap();
        node.state = SlurmNodeState::parse("allocated+drain");
        snapshot.read_at += 1;
    }
    snapshot
}

fn promised(planner: &SitePlanner) -> Option<(u32, Time)> {
    let promise = planner.promise();
    promise.map(|promise| (promise.job, promise.begin / SECOND))
}

#[test]
fn a_promise_outlives_a_rebuild() {
    let (before, mut after) = (moment(false), moment(true));
    let view = empty_view(&before);
    let mut planner = planner();
    see(&mut planner, &before, &view);
    assert_eq!(promised(&planner), Some((2, START + 900)));
    see(&mut planner, &after, &view);
    assert_eq!(promised(&planner), Some((2, START + 900)));
    after.settings.boot_time = Some(START);
    let seen = planner.see(&after, &view, after.read_at * SECOND);
    assert_eq!(seen.rebuilt, Some(RebuildReason::SlurmRestarted));
    assert_eq!(seen.refused, Vec::<String>::new());
    assert_eq!(promised(&planner), Some((2, START + 900)));
}

#[test]
fn a_promise_outlives_a_restart_and_is_nobody_elses() {
    let (before, after) = (moment(false), moment(true));
    let view = empty_view(&before);
    let mut first = planner();
    see(&mut first, &before, &view);
    let given = first.promise().unwrap();
    let restarted = |snapshot: &SlurmSnapshot, promise| {
        let mut second = planner();
        second.restore_promise(promise);
        see(&mut second, snapshot, &view);
        promised(&second)
    };
    assert_eq!(restarted(&after, given), Some((2, START + 900)));
    // Without it nothing could be promised: no two nodes are there.
    let mut second = planner();
    see(&mut second, &after, &view);
    assert_eq!(promised(&second), None);
    // Another job with that number, one that has begun, one that is gone, one that is held.
    let mut other = after.clone();
    other.jobs.get_mut(&2).unwrap().submitted = Some(START - 5);
    let mut gone = after.clone();
    gone.jobs.remove(&2);
    let mut held = after.clone();
    held.jobs.get_mut(&2).unwrap().priority = 0;
    let mut begun = before.clone();
    begun.jobs.remove(&1);
    let two = running(waiting(2, 2), &["n0", "n1"], START - 1);
    begun.jobs.insert(2, two);
    for snapshot in [other, gone, held, begun] {
        let promise = restarted(&snapshot, given);
        assert_ne!(promise, Some((2, START + 900)), "{promise:?}");
    }
}
