//! A workflow of each user stands before ordinary jobs, and nothing else that a user may write does.

use super::data::{key, reads, stored};
use super::*;
use crate::seniority::MAX_SENIOR_JOBS;
use tarn_proto::site::Owner;
use tarn_site::{PlanningJob, PlanningKey};

/// A job of this workflow that the controller got to know when Slurm did.
fn step(workflow: &str, number: u32, reads: &[&str], makes: &[&str]) -> PlanningJob {
    let keys = |names: &[&str]| names.iter().map(|name| of(workflow, name)).collect();
    let keys: (Vec<PlanningKey>, Vec<PlanningKey>) = (keys(reads), keys(makes));
    PlanningJob {
        workflow: (Owner::User(1000), workflow.to_owned()),
        arrived: (START - 20_000 + u64::from(number)) * SECOND,
        reads: keys.0.into_iter().map(|key| (key, false)).collect(),
        makes: keys.1,
        is_well: false,
        is_called: true,
        is_staged: true,
    }
}

fn of(workflow: &str, dataset: &str) -> PlanningKey {
    let (owner, _, _, version) = key(dataset);
    (owner, workflow.to_owned(), dataset.to_owned(), version)
}

/// Job 1 runs on the only node, ordinary jobs 2 to 4 of somebody else wait for it, and then these of alice's.
fn busy(alices: &[(u32, PlanningJob)]) -> (SlurmSnapshot, PlanningView) {
    let other = |number| SlurmJob {
        user: 2000,
        ..waiting(number, 1)
    };
    let mut jobs = vec![running(waiting(1, 1), &["n0"], START - 100)];
    jobs.extend((2..5).map(other));
    jobs.extend(alices.iter().map(|(number, _)| waiting(*number, 1)));
    let snapshot = with(cluster(1), jobs);
    let mut view = empty_view(&snapshot);
    for (number, job) in alices {
        for made in &job.makes {
            let mut version = stored(1 << 20, &[]);
            version.is_made = false;
            view.versions.insert(made.clone(), version);
        }
        view.jobs.insert(*number, job.clone());
    }
    (snapshot, view)
}

fn queue(snapshot: &SlurmSnapshot, view: &PlanningView) -> Vec<u32> {
    let mut planner = planner();
    see(&mut planner, snapshot, view);
    facts(&planner).queue
}

#[test]
fn of_several_workflows_of_a_user_the_oldest_stands_before_ordinary_jobs() {
    let a = [
        (7, step("a", 7, &[], &["mesh"])),
        (9, step("a", 9, &["mesh"], &[])),
    ];
    let b = [
        (8, step("b", 8, &[], &["mesh"])),
        (10, step("b", 10, &["mesh"], &[])),
    ];
    let (mut snapshot, mut view) = busy(&[&a[..], &b[..]].concat());
    let mut planner = planner();
    see(&mut planner, &snapshot, &view);
    assert_eq!(facts(&planner).queue, [7, 9, 2, 3, 4, 8, 10]);

    // Once that has ended, it is the other's turn.
    for number in [7, 9] {
        snapshot.jobs.remove(&number);
        view.jobs.remove(&number);
    }
    view.versions.remove(&of("a", "mesh"));
    snapshot.read_at += 1;
    see(&mut planner, &snapshot, &view);
    assert_eq!(facts(&planner).queue, [8, 10, 2, 3, 4]);
}

#[test]
fn names_of_workflows_and_data_lines_change_no_place() {
    let ordinary: Vec<u32> = (2..5).chain(10..1_010).collect();
    // Each a workflow of its own, with data that nobody else has.
    let own = |n: u32| (n, step(&format!("w{n}"), n, &[], &["out"]));
    let (snapshot, view) = busy(&(10..1_010).map(own).collect::<Vec<_>>());
    assert_eq!(queue(&snapshot, &view), ordinary);
    // All in one, and still no data from one to another.
    let same = |n: u32| {
        let out = format!("out{n}");
        (n, step("w", n, &[], &[&out[..]]))
    };
    let (snapshot, view) = busy(&(10..1_010).map(same).collect::<Vec<_>>());
    assert_eq!(queue(&snapshot, &view), ordinary);
}

#[test]
fn an_old_job_makes_later_ones_older_by_an_hour_at_most() {
    let jobs = [
        (7, step("a", 7, &[], &["mesh"])),
        (9, step("a", 9, &["mesh"], &[])),
    ];
    let (mut snapshot, mut view) = busy(&jobs);
    let mut came = |number: u32, before: u64| {
        let job = snapshot.jobs.get_mut(&number).unwrap();
        job.submitted = Some(START - 20_000 - before);
        if let Some(job) = view.jobs.get_mut(&number) {
            job.arrived = (START - 20_000 - before) * SECOND;
        }
    };
    came(7, 864_000);
    (2..5).for_each(|number| came(number, 400_000));
    assert_eq!(queue(&snapshot, &view), [7, 2, 3, 4, 9]);
}

#[test]
fn ten_thousand_steps_of_a_user_are_senior_a_few_at_a_time() {
    let mut jobs = vec![(9, step("w", 9, &[], &["mesh"]))];
    jobs.extend((10..10_010).map(|n| (n, step("w", n, &["mesh"], &[]))));
    let (snapshot, view) = busy(&jobs);
    let queue = queue(&snapshot, &view);
    let seniors = queue.iter().position(|number| *number == 2);
    assert_eq!(seniors, Some(MAX_SENIOR_JOBS));
    assert_eq!(queue.len(), 10_004);
    // The others stand where Slurm has them.
    let rest: Vec<u32> = (2..5).chain(73..10_010).collect();
    assert_eq!(queue[MAX_SENIOR_JOBS..], rest[..]);
}

/// The wishes for the next step of a workflow of two that arrived at these times, beside an ordinary job that came 300 s
/// ago.
fn keeps_nodes(submitted: [u64; 2], arrived: [u64; 2]) -> bool {
    let first = SlurmJob {
        submitted: Some(submitted[0]),
        ..running(waiting(1, 1), &["n0"], START - 100)
    };
    let second = SlurmJob {
        reason: PendingReason::Dependency,
        dependency: "afterok:1(unfulfilled),afterburstbuffer:1(unfulfilled)".to_owned(),
        submitted: Some(submitted[1]),
        ..waiting(2, 1)
    };
    let ordinary = SlurmJob {
        user: 2000,
        submitted: Some(START - 300),
        ..waiting(3, 2)
    };
    let snapshot = with(cluster(2), vec![first, second, ordinary]);
    let mut view = empty_view(&snapshot);
    let mut mesh = stored(1 << 30, &[]);
    mesh.is_made = false;
    view.versions.insert(key("mesh"), mesh);
    let maker = PlanningJob {
        arrived: arrived[0] * SECOND,
        makes: vec![key("mesh")],
        reads: Vec::new(),
        ..reads("mesh")
    };
    let reader = PlanningJob {
        arrived: arrived[1] * SECOND,
        ..reads("mesh")
    };
    view.jobs.extend([(1, maker), (2, reader)]);
    let mut planner = planner();
    see(&mut planner, &snapshot, &view);
    !planner
        .reservation_wishes(&snapshot, &view, &BTreeSet::new())
        .is_empty()
}

#[test]
fn a_workflow_is_as_old_as_its_oldest_job_that_has_not_ended() {
    let (old, new) = (START - 600, START - 200);
    assert!(keeps_nodes([old, old], [old, old]));
    assert!(keeps_nodes([old, new], [old, new]));
    assert!(!keeps_nodes([new, new], [new, new]));
    // A clock that was behind: of the controller, of slurmctld.
    assert!(!keeps_nodes([new, new], [1_000, 1_000]));
    assert!(!keeps_nodes([1_000, 1_000], [new, new]));
}

#[test]
fn a_step_of_an_old_workflow_is_no_older_than_itself() {
    // The maker of its input has ended, days ago.
    let again = (7, step("w", 7, &["mesh"], &[]));
    let (snapshot, mut view) = busy(&[again]);
    view.versions
        .insert(of("w", "mesh"), stored(1 << 20, &[&["n0"]]));
    let mut planner = planner();
    see(&mut planner, &snapshot, &view);
    let known = &planner.jobs.jobs[&7];
    assert_eq!(
        known.spec.submitted,
        Some((START - 20_000 + 7) * SECOND + 7)
    );
    assert_eq!(facts(&planner).queue, [7, 2, 3, 4]);
}
