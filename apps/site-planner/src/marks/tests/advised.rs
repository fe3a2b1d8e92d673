//! The site service learns of each change of a job's reserved nodes, and of nothing else.

use super::*;

/// The changes after a step, by job.
fn changes(slurm: &Model, marks: &mut Marks) -> Vec<(u32, Vec<String>)> {
    let all = marks.newly_reserved(slurm.now * SECOND);
    all.into_iter().map(|of| (of.job, of.nodes)).collect()
}

fn names(of: &[usize]) -> Vec<String> {
    of.iter().map(|at| node(*at)).collect()
}

#[test]
fn each_change_of_reserved_nodes_is_passed_on_once() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(1));
    for at in 1..=NODES {
        let node = slurm.snapshot.nodes.get_mut(&node(at)).unwrap();
        node.state = SlurmNodeState::parse("allocated");
    }
    slurm.submit(1, 0, 2);
    let first = [wish(0, "wing", [1, 2], 1)];
    assert!(changes(&slurm, &mut marks).is_empty());
    slurm.drive(&mut marks, &first);
    assert_eq!(changes(&slurm, &mut marks), [(1, names(&[1, 2]))]);
    for _ in 0..30 {
        slurm.pass(1);
        slurm.drive(&mut marks, &first);
        assert!(changes(&slurm, &mut marks).is_empty());
    }
    // Other nodes, once Slurm has changed the reservation; not at every turn.
    let mut sent = Vec::new();
    for turn in 0..20 {
        let on = if turn % 2 == 0 { [2, 3] } else { [1, 2] };
        slurm.drive(&mut marks, &[wish(0, "wing", on, 1)]);
        sent.extend(changes(&slurm, &mut marks));
        slurm.pass(1);
    }
    assert!((1..=11).contains(&sent.len()), "{sent:?}");
    assert_eq!(sent[0], (1, names(&[2, 3])));
    assert!(sent.iter().all(|(job, on)| *job == 1 && on.len() == 2));
    // It is given up: the job has none any more.
    let mut sent = Vec::new();
    for _ in 0..10 {
        slurm.pass(1);
        slurm.drive(&mut marks, &[]);
        sent.extend(changes(&slurm, &mut marks));
    }
    assert_eq!(sent, [(1, Vec::new())]);
    assert_eq!(marks.reservations(), 0);
}

#[test]
fn one_step_passes_on_a_bounded_number() {
    let mut slurm = Model::of(100);
    let mut marks = Marks::new(1);
    let mut whole = wish(0, "wing", [1, 2], 1);
    for job in 1..=100 {
        slurm.submit(job, 0, 1);
        let mut one = wish(0, "wing", [1, 2], job);
        one.nodes = nodes([job as usize]);
        one.jobs[0].nodes = one.nodes.clone();
        if job == 1 {
            whole = one;
        } else {
            whole.nodes.extend(one.nodes);
            whole.jobs.extend(one.jobs);
        }
    }
    slurm.drive(&mut marks, std::slice::from_ref(&whole));
    assert_eq!(changes(&slurm, &mut marks).len(), 64);
    assert_eq!(changes(&slurm, &mut marks).len(), 36);
    assert!(changes(&slurm, &mut marks).is_empty());
}
