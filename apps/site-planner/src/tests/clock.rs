//! A clock that is set: Slurm's times and the planner's are of the machine's clock, which may jump.

use super::data::stored;
use super::reserve::{nodes_of, two_steps};
use super::*;
use crate::RebuildReason;

const HOUR: u64 = 3_600;

/// The two steps once the first has ended and its data is there, an hour later or earlier than before.
fn after_first_step(snapshot: &mut SlurmSnapshot, view: &mut PlanningView, read_at: u64) {
    snapshot.jobs.remove(&1);
    let second = snapshot.jobs.get_mut(&2).unwrap();
    (second.reason, second.dependency) = (PendingReason::Priority, String::new());
    view.jobs.remove(&1);
    let versions = view.versions.values_mut();
    versions.for_each(|version| *version = stored(50 << 30, &[&["n0"], &["n1"]]));
    snapshot.read_at = read_at;
}

#[test]
fn nodes_that_are_kept_are_given_up_although_the_clock_was_set_back() {
    let (mut snapshot, mut view) = two_steps();
    let mut planner = planner();
    see(&mut planner, &snapshot, &view);
    assert_eq!(
        planner
            .reservation_wishes(&snapshot, &view, &BTreeSet::new())
            .len(),
        1
    );
    after_first_step(&mut snapshot, &mut view, START - HOUR);
    // It waits for its begin time: nothing but the note would keep the nodes.
    let second = snapshot.jobs.get_mut(&2).unwrap();
    second.reason = PendingReason::BeginTime;
    second.eligible = Some(snapshot.read_at + HOUR);
    let seen = planner.see(&snapshot, &view, snapshot.read_at * SECOND);
    assert_eq!(seen.rebuilt, Some(RebuildReason::ClockSetBack));
    assert_eq!(
        nodes_of(&planner.reservation_wishes(&snapshot, &view, &BTreeSet::new())),
        []
    );
}

#[test]
fn a_clock_that_jumps_is_followed_at_once_in_both_directions() {
    for read_at in [START + HOUR, START - HOUR] {
        let (mut snapshot, mut view) = two_steps();
        let mut planner = planner();
        see(&mut planner, &snapshot, &view);
        planner.reservation_wishes(&snapshot, &view, &BTreeSet::new());
        after_first_step(&mut snapshot, &mut view, read_at);
        // A job that comes after the jump has the new times.
        let new = SlurmJob {
            submitted: Some(read_at),
            eligible: Some(read_at),
            ..waiting(4, 1)
        };
        snapshot.jobs.insert(4, new);
        snapshot.jobs.remove(&3);
        see(&mut planner, &snapshot, &view);
        let plan = planner.plan(HOUR * SECOND);
        assert_eq!(plan.made, read_at * SECOND);
        let begin = |number| {
            plan.jobs
                .iter()
                .find(|job| job.job == number)
                .map(|j| j.begin)
        };
        assert_eq!(begin(4), Some(read_at * SECOND), "{plan:?}");
        assert!(begin(2).is_some(), "{plan:?}");
        let wishes = planner.reservation_wishes(&snapshot, &view, &BTreeSet::new());
        assert_eq!(
            nodes_of(&wishes).first().map(|w| w.0),
            Some(2),
            "{wishes:?}"
        );
    }
}

#[test]
fn a_clock_that_is_slewed_is_not_one_that_was_set() {
    let snapshot = with(cluster(1), vec![waiting(1, 1)]);
    let view = empty_view(&snapshot);
    let mut planner = planner();
    see(&mut planner, &snapshot, &view);
    let seen = planner.see(&snapshot, &view, START * SECOND - SECOND);
    assert_eq!(seen.rebuilt, None);
    assert_eq!(planner.plan(SECOND).made, START * SECOND);
}
