//! The calls of a step: a reservation that was used lapses as soon as another one, and starts come first.

use super::*;

#[test]
fn a_reservation_that_jobs_have_used_lapses_as_soon_as_another_one() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(3));
    slurm.submit(7, 0, 2);
    let mut wishes = [wish(0, "wing", [1, 2], 7)];
    wishes[0].jobs[0].is_staged = false;
    wishes[0].seconds = 600;
    // It is five minutes old when its job joins.
    for _ in 0..150 {
        slurm.drive(&mut marks, &wishes);
        slurm.pass(2);
    }
    wishes[0].jobs[0].is_staged = true;
    slurm.drive(&mut marks, &wishes);
    assert!(!slurm.snapshot.jobs[&7].reservation.is_empty());
    slurm.pass(1);
    let step = slurm.drive(&mut marks, &wishes);
    let texts: Vec<String> = step.orders.iter().map(|o| o.action.to_string()).collect();
    let renewal = "scontrol update reservationname=tarn_3_workflow_1 EndTime=now+600 Flags+=PURGE_COMP=0-00:00:36";
    assert_eq!(texts[0], renewal);
    assert!(slurm.snapshot.jobs[&7].reservation.is_empty());
    // It lives as long as it is renewed, and no longer.
    for _ in 0..100 {
        slurm.pass(2);
        slurm.drive(&mut marks, &wishes);
    }
    assert_eq!(slurm.tarns().len(), 1);
    slurm.pass(u64::from(RENEWED_SECONDS) + 21);
    assert!(slurm.tarns().is_empty());
}

#[test]
fn a_job_joins_however_many_others_are_to_be_delayed() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(1));
    slurm.submit(7, 0, 2);
    let wishes = [wish(0, "wing", [1, 2], 7)];
    slurm.drive(&mut marks, &wishes);
    slurm.pass(1);
    let many = 100..150;
    for job in many.clone() {
        slurm.submit(job, 1, 1);
    }
    let delay = |job| DelayWish {
        job,
        total: 100 * SECOND,
        reason: "of another mode".into(),
    };
    marks.wish_delays(many.map(delay).collect());
    let step = slurm.drive(&mut marks, &wishes);
    assert!(matches!(step.orders[0].action, SlurmAction::Join { .. }));
    assert!(step.orders.len() > 15);
}
