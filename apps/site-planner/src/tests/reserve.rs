//! The wishes of drive.

use super::data::{key, reads, stored};
use super::*;
use tarn_site::PlanningJob;

/// Job 1 runs on n0 and n1 and makes `mesh`, job 2 waits for its end and reads that, and an ordinary job waits for all nodes.
pub(super) fn two_steps() -> (SlurmSnapshot, PlanningView) {
    let first = SlurmJob {
        has_burst_buffer: true,
        ..running(waiting(1, 2), &["n0", "n1"], START - 100)
    };
    let second = SlurmJob {
        has_burst_buffer: true,
        reason: PendingReason::Dependency,
        dependency: "afterok:1(unfulfilled),afterburstbuffer:1(unfulfilled)".to_owned(),
        ..waiting(2, 2)
    };
    let ordinary = SlurmJob {
        user: 2000,
        submitted: Some(START - 50),
        ..waiting(3, 4)
    };
    let snapshot = with(cluster(4), vec![first, second, ordinary]);
    let mut view = empty_view(&snapshot);
    let maker = PlanningJob {
        reads: Vec::new(),
        makes: vec![key("mesh")],
        ..reads("mesh")
    };
    view.jobs.insert(1, maker);
    let reader = PlanningJob {
        is_called: false,
        is_staged: false,
        ..reads("mesh")
    };
    view.jobs.insert(2, reader);
    let mut mesh = stored(50 << 30, &[]);
    mesh.is_made = false;
    view.versions.insert(key("mesh"), mesh);
    (snapshot, view)
}

pub(super) fn nodes_of(wishes: &[crate::ReservationWish]) -> Vec<(u32, Vec<&str>, bool)> {
    let jobs = wishes.iter().flat_map(|wish| &wish.jobs);
    jobs.map(|join| {
        let nodes = join.nodes.iter().map(String::as_str).collect();
        (join.job, nodes, join.is_staged)
    })
    .collect()
}

#[test]
fn the_nodes_of_a_step_are_kept_for_the_next_one_until_it_has_them() {
    let (mut snapshot, mut view) = two_steps();
    let mut planner = planner();
    see(&mut planner, &snapshot, &view);
    let wishes = planner.reservation_wishes(&snapshot, &view, &BTreeSet::new());
    assert_eq!(nodes_of(&wishes), [(2, vec!["n0", "n1"], false)]);
    // The rest of the first one's limit, and that of the second.
    let limit = |job: u32| snapshot.jobs[&job].limit.unwrap() as u32;
    assert_eq!(wishes[0].seconds, limit(1) - 100 + limit(2));
    assert_eq!(
        (wishes[0].user.as_str(), wishes[0].workflow.0),
        ("alice", 1000)
    );

    // It ends; its outputs are being published, and Slurm still has the second wait for it.
    snapshot.jobs.get_mut(&1).unwrap().state = SlurmJobState::StageOut;
    let maker = view.jobs.get_mut(&1).unwrap();
    maker.is_well = true;
    view.versions
        .insert(key("mesh"), stored(50 << 30, &[&["n0"], &["n1"]]));
    for second in 1..4 {
        snapshot.read_at = START + second;
        see(&mut planner, &snapshot, &view);
        let wishes = planner.reservation_wishes(&snapshot, &view, &BTreeSet::new());
        assert_eq!(
            nodes_of(&wishes),
            [(2, vec!["n0", "n1"], false)],
            "{second} s"
        );
    }

    // It is over, and the second is staged.
    snapshot.jobs.remove(&1);
    let job = snapshot.jobs.get_mut(&2).unwrap();
    (job.reason, job.dependency) = (PendingReason::Priority, String::new());
    let job = view.jobs.get_mut(&2).unwrap();
    (job.is_called, job.is_staged) = (true, true);
    snapshot.read_at += 1;
    see(&mut planner, &snapshot, &view);
    let wishes = planner.reservation_wishes(&snapshot, &view, &BTreeSet::new());
    assert_eq!(nodes_of(&wishes), [(2, vec!["n0", "n1"], true)]);
    let limit = snapshot.jobs[&2].limit.unwrap();
    assert_eq!(u64::from(wishes[0].seconds), limit);

    // Once it has them there is nothing to wish for.
    let job = snapshot.jobs[&2].clone();
    snapshot
        .jobs
        .insert(2, running(job, &["n0", "n1"], snapshot.read_at));
    see(&mut planner, &snapshot, &view);
    assert_eq!(
        nodes_of(&planner.reservation_wishes(&snapshot, &view, &BTreeSet::new())),
        []
    );
}

#[test]
fn nothing_is_kept_for_a_workflow_that_came_after_an_ordinary_job_that_waits() {
    let (mut snapshot, view) = two_steps();
    snapshot.jobs.get_mut(&3).unwrap().submitted = Some(START - 700);
    let mut planner = planner();
    see(&mut planner, &snapshot, &view);
    assert_eq!(
        nodes_of(&planner.reservation_wishes(&snapshot, &view, &BTreeSet::new())),
        []
    );
}

#[test]
fn nothing_is_wished_for_an_ordinary_job() {
    let snapshot = with(cluster(4), vec![waiting(1, 2), waiting(2, 1)]);
    let view = empty_view(&snapshot);
    let mut planner = planner();
    see(&mut planner, &snapshot, &view);
    assert_eq!(planned(&mut planner).len(), 2);
    assert_eq!(
        nodes_of(&planner.reservation_wishes(&snapshot, &view, &BTreeSet::new())),
        []
    );
}

#[test]
fn a_next_step_that_is_cancelled_frees_the_nodes() {
    let (mut snapshot, view) = two_steps();
    let mut planner = planner();
    see(&mut planner, &snapshot, &view);
    assert_eq!(
        planner
            .reservation_wishes(&snapshot, &view, &BTreeSet::new())
            .len(),
        1
    );
    snapshot.jobs.remove(&2);
    snapshot.read_at += 1;
    see(&mut planner, &snapshot, &view);
    assert_eq!(
        nodes_of(&planner.reservation_wishes(&snapshot, &view, &BTreeSet::new())),
        []
    );
}
