//! Begin times that tarn sets, with the model of Slurm.

use super::super::{DelayWish, Delays};
use super::*;
use proptest::prelude::*;

/// Slurm and a controller whose clock is Slurm's.
struct World {
    slurm: Model,
    delays: Delays,
}

impl World {
    fn new() -> Self {
        let mut slurm = Model::new();
        for number in 1..=3 {
            slurm.submit(number, 0, 1);
        }
        Self {
            slurm,
            delays: Delays::default(),
        }
    }

    /// Time passes, and the controller sees Slurm. The calls that it made.
    fn step(&mut self, seconds: u64, wished: &[u32]) -> Vec<SlurmAction> {
        self.slurm.now += seconds;
        self.slurm.snapshot.read_at = self.slurm.now;
        let now = self.slurm.now * SECOND;
        let wish = |job: &u32| DelayWish {
            job: *job,
            reason: "it would reboot a node".to_owned(),
        };
        let wishes: Vec<DelayWish> = wished.iter().map(wish).collect();
        let step = self.delays.step(&self.slurm.snapshot, now, &wishes, now);
        let mut calls = Vec::new();
        for order in &step.orders {
            let result = self.slurm.perform(&order.action);
            self.delays.done(order, result, now);
            calls.push(order.action.clone());
        }
        calls
    }

    fn begin_of(&self, job: u32) -> u64 {
        self.slurm.snapshot.jobs[&job].eligible.expect("a time")
    }
}

fn delay(job: u32) -> SlurmAction {
    SlurmAction::Delay { job }
}

#[test]
fn a_job_waits_while_it_is_wished_and_begins_at_once_after() {
    let mut world = World::new();
    assert_eq!(world.step(1, &[1]), [delay(1)]);
    assert_eq!(world.step(10, &[1]), []);
    assert_eq!(world.step(10, &[1]), [delay(1)], "it is renewed in time");
    assert_eq!(world.begin_of(1), world.slurm.now + 60);
    assert_eq!(world.step(5, &[]), [SlurmAction::EndDelay { job: 1 }]);
    assert_eq!(world.begin_of(1), world.slurm.now);
    assert_eq!(world.step(5, &[]), []);
    assert!(world.delays.jobs().is_empty());
}

#[test]
fn begin_times_of_others_are_never_touched() {
    let mut world = World::new();
    // Its user submitted it with --begin.
    let later = world.slurm.now + 500;
    world.slurm.waiting(1).expect("it waits").eligible = Some(later);
    assert_eq!(world.step(1, &[1, 2]), [delay(2)]);
    // Its user, or an administrator, changes the one that tarn set.
    world.slurm.waiting(2).expect("it waits").eligible = Some(later);
    assert_eq!(world.step(1, &[2]), []);
    assert_eq!(world.step(30, &[2]), [], "it is left alone from then on");
    assert_eq!(world.step(30, &[]), []);
    assert_eq!((world.begin_of(1), world.begin_of(2)), (later, later));
}

#[test]
fn no_job_waits_for_more_than_an_hour() {
    let mut world = World::new();
    let mut waited = 0;
    while !world
        .step(20, &[1])
        .contains(&SlurmAction::EndDelay { job: 1 })
    {
        waited += 20;
        assert!(waited <= 3700, "it waits for ever");
    }
    assert!(waited >= 3500, "{waited}");
    assert_eq!(world.step(20, &[1]), []);
}

#[test]
fn an_old_reading_leads_to_nothing_and_a_refusal_to_a_pause() {
    let mut world = World::new();
    let now = world.slurm.now * SECOND;
    let wish = DelayWish {
        job: 1,
        reason: String::new(),
    };
    let wishes = [wish];
    let later = now + MAX_AGE + 1;
    let step = world
        .delays
        .step(&world.slurm.snapshot, now, &wishes, later);
    assert!(step.orders.is_empty());
    let step = world.delays.step(&world.slurm.snapshot, now, &wishes, now);
    let refused = Err(refused("the job is completing"));
    world.delays.done(&step.orders[0], refused, now);
    assert_eq!(world.step(60, &[1]), []);
    assert_eq!(world.step(300, &[1]), [delay(1)]);
}

proptest! {
    /// Whatever is wished and whichever jobs begin or vanish: a job that is not wished can begin after the next step, and each
    /// one a minute after the controller died.
    #[test]
    fn delays_end(
        steps in prop::collection::vec((0u64..70, prop::collection::btree_set(1u32..=3, 0..4), 0u32..8), 1..40)
    ) {
        let mut world = World::new();
        for (seconds, wished, begins) in steps {
            if let Ok(job) = world.slurm.waiting(begins) {
                job.state = SlurmJobState::Running;
            }
            let wished: Vec<u32> = wished.into_iter().collect();
            world.step(seconds, &wished);
            for number in 1..=3 {
                let begin = world.begin_of(number);
                prop_assert!(begin <= world.slurm.now + 60);
                let waits = world.slurm.snapshot.jobs[&number].state == SlurmJobState::Pending;
                if waits && !wished.contains(&number) {
                    prop_assert!(begin <= world.slurm.now, "{number} waits without a wish");
                }
            }
            let waiting = world.delays.jobs();
            prop_assert!(waiting.iter().all(|job| wished.contains(job)));
        }
    }
}
