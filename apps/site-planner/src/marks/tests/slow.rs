//! Renewals where Slurm is slow.

use super::*;

/// How slow Slurm is, in seconds.
struct Slowness {
    /// Of a process of `scontrol`, and of each call that it makes.
    process: u64,
    call: u64,
    /// Of a reading, which then rests for as long.
    reading: u64,
}

/// So many jobs of as many workflows, each with a node that is busy.
fn crowd(count: usize) -> (Model, Vec<ReservationWish>) {
    let mut slurm = Model::of(count);
    let wishes = (1..=count).map(|at| {
        let number = u32::try_from(at).unwrap();
        slurm.submit(number, number / 4, 1);
        let node = slurm.snapshot.nodes.get_mut(&node(at)).unwrap();
        node.state.base = NodeBase::Allocated;
        wish(number / 4, &format!("w{at}"), [at], number)
    });
    let wishes = wishes.collect();
    (slurm, wishes)
}

/// A cycle: Slurm is read, renewals are made as one batch, and then other calls as long as the reading is fresh.
fn cycle(slurm: &mut Model, marks: &mut Marks, wishes: &[ReservationWish], slow: &Slowness) {
    let (begun, snapshot) = (slurm.time(), slurm.snapshot.clone());
    slurm.pass(slow.reading);
    let step = marks.step(&snapshot, begun, wishes, slurm.time());
    let is_renewal = |order: &&MarkOrder| matches!(order.action, SlurmAction::Renew { .. });
    let renewals = step.orders.iter().take_while(is_renewal).count();
    let mut results = Vec::new();
    for (at, order) in step.orders.iter().enumerate() {
        let is_first = at == 0 || at >= renewals;
        if at >= renewals && slurm.time() - begun > MAX_AGE {
            break;
        }
        let result = slurm.perform(&order.action);
        slurm.pass(slow.call + if is_first { slow.process } else { 0 });
        results.push((order, result));
        if at + 1 == renewals {
            let took = (slow.process + slow.call * renewals as u64) * SECOND;
            marks.renewals_took(renewals, took);
        }
        if at + 1 >= renewals {
            for (order, result) in results.drain(..) {
                marks.done(order, result, slurm.time());
            }
        }
    }
    slurm.pass(slow.reading.max(1));
}

fn names(slurm: &Model) -> BTreeSet<String> {
    slurm.tarns().into_iter().map(str::to_owned).collect()
}

#[test]
fn all_reservations_live_where_each_client_of_slurm_takes_a_second() {
    let (mut slurm, wishes) = crowd(MAX_RESERVATIONS);
    let mut marks = Marks::new(1);
    let slow = Slowness {
        process: 1,
        call: 0,
        reading: 7,
    };
    for _ in 0..60 {
        cycle(&mut slurm, &mut marks, &wishes, &slow);
    }
    let made = names(&slurm);
    assert_eq!(made.len(), MAX_RESERVATIONS);
    for _ in 0..40 {
        cycle(&mut slurm, &mut marks, &wishes, &slow);
        assert_eq!(names(&slurm), made);
    }
}

#[test]
fn fewer_reservations_live_where_slurm_itself_takes_a_second_for_each_call() {
    let (mut slurm, wishes) = crowd(MAX_RESERVATIONS);
    let mut marks = Marks::new(1);
    let quick = Slowness {
        process: 0,
        call: 0,
        reading: 0,
    };
    for _ in 0..30 {
        cycle(&mut slurm, &mut marks, &wishes, &quick);
    }
    assert_eq!(slurm.tarns().len(), MAX_RESERVATIONS);
    let slow = Slowness {
        process: 0,
        call: 1,
        reading: 7,
    };
    for _ in 0..40 {
        cycle(&mut slurm, &mut marks, &wishes, &slow);
    }
    // At most as many as can be renewed in 10 s, of which some were made before its reading was too old; and these stay.
    let left = names(&slurm);
    assert!((3..=10).contains(&left.len()), "{left:?}");
    for _ in 0..40 {
        cycle(&mut slurm, &mut marks, &wishes, &slow);
        assert_eq!(names(&slurm), left);
    }
    for _ in 0..60 {
        cycle(&mut slurm, &mut marks, &wishes, &quick);
    }
    assert_eq!(slurm.tarns().len(), MAX_RESERVATIONS);
}

#[test]
fn a_renewal_without_an_answer_is_made_again_and_one_that_is_refused_is_not() {
    let (mut slurm, mut marks) = (Model::new(), Marks::new(1));
    slurm.submit(7, 0, 2);
    slurm
        .snapshot
        .nodes
        .values_mut()
        .for_each(|node| node.state.base = NodeBase::Allocated);
    let wishes = [wish(0, "wing", [1, 2], 7)];
    slurm.drive(&mut marks, &wishes);
    slurm.pass(20);
    let renewal = |marks: &mut Marks, slurm: &Model| {
        let step = marks.step(&slurm.snapshot, slurm.time(), &wishes, slurm.time());
        let is_renewal = |order: &MarkOrder| matches!(order.action, SlurmAction::Renew { .. });
        step.orders.into_iter().find(is_renewal)
    };
    let order = renewal(&mut marks, &slurm).expect("it is due");
    let unanswered = Err(CallError::Unanswered("late".to_owned()));
    marks.done(&order, unanswered, slurm.time());
    assert!(!marks.is_left_alone(&wishes[0].workflow, slurm.time()));
    slurm.pass(1);
    let again = renewal(&mut marks, &slurm).expect("it is due still");
    marks.done(&again, Err(refused("no")), slurm.time());
    assert!(marks.is_left_alone(&wishes[0].workflow, slurm.time()));
}
