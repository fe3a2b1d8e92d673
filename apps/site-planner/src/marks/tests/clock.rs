//! Reservations of a Slurm whose clock is set.

use super::*;

/// A step of a controller whose own clock has not jumped by these seconds as Slurm's has.
fn drive(
    slurm: &mut Model,
    marks: &mut Marks,
    wishes: &[ReservationWish],
    jumped: i64,
) -> MarkStep {
    let now = slurm.now.checked_add_signed(-jumped).unwrap() * SECOND;
    let step = marks.step(&slurm.snapshot.clone(), now, wishes, now);
    for order in &step.orders {
        let result = slurm.perform(&order.action);
        marks.done(order, result, now);
    }
    step
}

/// A reservation for a job whose data is not there yet.
fn reserved() -> (Model, Marks, [ReservationWish; 1]) {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(3));
    slurm.submit(7, 0, 2);
    let mut wishes = [wish(0, "wing", [1, 2], 7)];
    wishes[0].jobs[0].is_staged = false;
    drive(&mut slurm, &mut marks, &wishes, 0);
    assert_eq!(slurm.tarns().len(), 1);
    (slurm, marks, wishes)
}

#[test]
fn a_reservation_that_a_clock_ended_is_made_again_and_one_that_somebody_deleted_is_not() {
    let (mut slurm, mut marks, wishes) = reserved();
    // An hour ahead: it is over.
    slurm.pass(3_600);
    assert_eq!(slurm.tarns().len(), 0);
    let step = drive(&mut slurm, &mut marks, &wishes, 3_599);
    assert_eq!(step.notes, Vec::<String>::new());
    assert_eq!(slurm.tarns(), ["tarn_3_workflow_2"]);
    // Later, nobody's clock moves.
    for _ in 0..7 {
        slurm.pass(10);
        drive(&mut slurm, &mut marks, &wishes, 3_599);
    }
    slurm.snapshot.reservations.clear();
    slurm.pass(1);
    let step = drive(&mut slurm, &mut marks, &wishes, 3_599);
    assert!(step.notes[0].contains("somebody deleted"), "{step:?}");
    assert_eq!(slurm.tarns().len(), 0);
}

#[test]
fn a_reservation_that_would_last_as_the_clock_was_set_back_is_deleted() {
    let (mut slurm, mut marks, wishes) = reserved();
    // It would begin in an hour, and Slurm renews no such thing.
    slurm.now -= 3_600;
    for _ in 0..6 {
        slurm.pass(5);
        drive(&mut slurm, &mut marks, &wishes, -3_600);
    }
    assert_eq!(slurm.tarns(), Vec::<&str>::new());
    // The workflow is only advised for a while, then driven again.
    for _ in 0..60 {
        slurm.pass(5);
        drive(&mut slurm, &mut marks, &wishes, -3_600);
    }
    assert_eq!(slurm.tarns().len(), 1);
}
