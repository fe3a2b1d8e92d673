//! Begin times by calls that take long, or that Slurm does not answer: tarn knows them for its own.

use super::delays::{busy_nodes, set_nodes, waits};
use super::*;

/// One step whose calls reach Slurm after so many seconds and are answered after so many more.
fn slow_step(
    slurm: &mut Model,
    marks: &mut Marks,
    wishes: &[ReservationWish],
    (before, after): (u64, u64),
) {
    let step = marks.step(&slurm.snapshot.clone(), slurm.time(), wishes, slurm.time());
    for order in &step.orders {
        slurm.pass(before);
        let result = slurm.perform(&order.action);
        slurm.pass(after);
        marks.done(order, result, slurm.time());
    }
}

/// One step whose calls about begin times Slurm does not answer, and makes or not.
fn unanswered_step(
    slurm: &mut Model,
    marks: &mut Marks,
    wishes: &[ReservationWish],
    are_made: bool,
) -> MarkStep {
    let step = marks.step(&slurm.snapshot.clone(), slurm.time(), wishes, slurm.time());
    for order in &step.orders {
        let is_begin = matches!(
            order.action,
            SlurmAction::DelayUntil { .. } | SlurmAction::Undelay { .. }
        );
        let made = (!is_begin || are_made).then(|| slurm.perform(&order.action));
        let result = match made {
            Some(result) if !is_begin => result,
            _ => Err(CallError::Unanswered("late".into())),
        };
        marks.done(order, result, slurm.time());
    }
    step
}

#[test]
fn a_begin_time_whose_call_was_slow_is_its_own() {
    for (before, after) in [(8, 0), (0, 8), (4, 4)] {
        let (mut slurm, mut marks, wishes) = busy_nodes(300);
        slow_step(&mut slurm, &mut marks, &wishes, (before, after));
        assert!(waits(&slurm) > 40);
        for _ in 0..60 {
            slurm.pass(1);
            let step = slurm.drive(&mut marks, &wishes);
            assert_eq!(step.notes, [""; 0], "{before} s, {after} s");
            assert!(waits(&slurm) > 20, "it is renewed");
        }
    }
}

#[test]
fn a_begin_time_without_an_answer_is_its_own_whether_it_was_set_or_not() {
    for are_made in [true, false] {
        let (mut slurm, mut marks, wishes) = busy_nodes(300);
        unanswered_step(&mut slurm, &mut marks, &wishes, are_made);
        for second in 0..100 {
            slurm.pass(1);
            let step = slurm.drive(&mut marks, &wishes);
            assert_eq!(step.notes, [""; 0], "{are_made}");
            let is_delayed = waits(&slurm) > 20;
            assert!(is_delayed || !are_made && second < 20, "{second} s");
        }
        // Its end is none of somebody else's either.
        slurm.pass(1);
        let end = unanswered_step(&mut slurm, &mut marks, &[], true);
        assert!(matches!(end.orders[0].action, SlurmAction::Undelay { .. }));
        slurm.pass(1);
        let step = slurm.drive(&mut marks, &[]);
        assert_eq!(step.notes, [""; 0]);
        assert_eq!((waits(&slurm), marks.delayed().len()), (0, 0));
    }
}

#[test]
fn a_change_by_somebody_stands_after_a_call_without_an_answer() {
    for begin in [400, 0] {
        let (mut slurm, mut marks, wishes) = busy_nodes(300);
        slurm.drive(&mut marks, &wishes);
        slurm.pass(20);
        unanswered_step(&mut slurm, &mut marks, &wishes, false);
        slurm.pass(1);
        slurm.begin_at(7, slurm.now + begin).unwrap();
        let step = slurm.drive(&mut marks, &wishes);
        let note = "somebody changed the begin time of job 7: tarn leaves it alone";
        assert!(step.notes.iter().any(|n| n == note), "{:?}", step.notes);
    }
}

#[test]
fn a_begin_time_that_somebody_sets_stands_after_an_end_without_an_answer() {
    let (mut slurm, mut marks, wishes) = busy_nodes(300);
    slurm.drive(&mut marks, &wishes);
    slurm.pass(5);
    unanswered_step(&mut slurm, &mut marks, &[], false);
    slurm.pass(1);
    let later = slurm.now + 30;
    slurm.begin_at(7, later).unwrap();
    let step = slurm.drive(&mut marks, &[]);
    let note = "somebody changed the begin time of job 7: tarn leaves it alone";
    assert!(step.notes.iter().any(|n| n == note), "{:?}", step.notes);
    assert_eq!(slurm.snapshot.jobs[&7].eligible, Some(later));
}

#[test]
fn a_job_whose_nodes_have_come_free_waits_for_them_no_longer_than_to_join() {
    let (mut slurm, mut marks, mut wishes) = busy_nodes(300);
    for _ in 0..50 {
        slurm.drive(&mut marks, &wishes);
        slurm.pass(1);
    }
    // They are its own now, and Slurm does not give them free.
    set_nodes(&mut slurm, NodeBase::Idle);
    let of_first = slurm.snapshot.nodes.get_mut(&node(1)).unwrap();
    of_first.state.flags.insert(NodeFlag::Completing);
    for (delay, second) in [(None, 0), (Some(30 * SECOND), 1)].repeat(30) {
        (wishes[0].jobs[0].delay, wishes[0].jobs[0].needs_delay) = (delay, false);
        slurm.drive(&mut marks, &wishes);
        slurm.pass(second);
    }
    slurm.drive(&mut marks, &wishes);
    assert_eq!((waits(&slurm), marks.delayed().len()), (0, 0));
}
