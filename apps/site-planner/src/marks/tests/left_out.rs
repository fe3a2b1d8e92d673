//! A job that cannot be in a reservation does not cost its workflow the reservation.

use super::*;

/// A wish for jobs 1, 2 and 3 of one workflow, on two nodes each.
fn three(slurm: &mut Model) -> ReservationWish {
    for job in 1..=3 {
        slurm.submit(job, 0, 2);
    }
    let mut whole = wish(0, "wing", [1, 2], 1);
    for (job, on) in [(2, [3, 4]), (3, [5, 6])] {
        let one = wish(0, "wing", on, job);
        whole.nodes.extend(one.nodes);
        whole.jobs.extend(one.jobs);
    }
    whole
}

fn reserved(slurm: &Model) -> BTreeSet<String> {
    let reservations = slurm.snapshot.reservations.values();
    reservations
        .filter(|r| is_own_reservation(&r.name))
        .flat_map(|r| r.nodes.iter().cloned())
        .collect()
}

#[test]
fn only_the_unsuitable_job_is_left_out() {
    let cases: [fn(&mut SlurmSnapshot); 4] = [
        |s| s.jobs.get_mut(&2).unwrap().required = vec![node(3)].into(),
        |s| s.jobs.get_mut(&2).unwrap().partitions = vec!["q".into()],
        |s| s.nodes.get_mut("n3").unwrap().state = SlurmNodeState::parse("idle+drain"),
        |s| drop(s.jobs.remove(&2)),
    ];
    for change in cases {
        let (mut slurm, mut marks) = (Model::new(), Marks::new(1));
        let wishes = [three(&mut slurm)];
        change(&mut slurm.snapshot);
        let step = slurm.drive(&mut marks, &wishes);
        assert_eq!(reserved(&slurm), nodes([1, 2, 5, 6]), "{:?}", step.notes);
        assert!(
            step.notes[0].starts_with("left out of workflow wing"),
            "{:?}",
            step.notes
        );
    }
}

#[test]
fn a_job_that_becomes_unsuitable_leaves_the_reservation_to_the_others() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(1));
    let wishes = [three(&mut slurm)];
    slurm.drive(&mut marks, &wishes);
    assert_eq!(reserved(&slurm), nodes(1..=6));
    let name = slurm.snapshot.reservations.keys().next().unwrap().clone();
    slurm.snapshot.jobs.get_mut(&1).unwrap().has_burst_buffer = false;
    for _ in 0..10 {
        slurm.pass(1);
        slurm.drive(&mut marks, &wishes);
    }
    assert_eq!(reserved(&slurm), nodes(3..=6));
    assert!(slurm.snapshot.reservations.contains_key(&name));
}

#[test]
fn jobs_of_two_partitions_have_no_reservation_together() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(1));
    let wishes = [three(&mut slurm)];
    for (name, of) in [("a", 1..=4), ("b", 5..=8)] {
        let mut partition = slurm.snapshot.partitions["p"].clone();
        partition.name = name.into();
        partition.nodes = of.map(node).collect();
        slurm.snapshot.partitions.insert(name.into(), partition);
    }
    for (job, partition) in [(1, "a"), (2, "a"), (3, "b")] {
        slurm.snapshot.jobs.get_mut(&job).unwrap().partitions = vec![partition.into()];
    }
    slurm.drive(&mut marks, &wishes);
    assert_eq!(reserved(&slurm), nodes(1..=4));
}
