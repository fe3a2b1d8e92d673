//! The order in which jobs are taken in.

use super::*;

/// Slurm reports jobs that were submitted together in any order, and not always within a moment.
#[test]
fn jobs_are_taken_in_by_the_order_of_their_submission() {
    let mut case = dataset("case");
    case.source = Some("/lustre/case".into());
    let script = || script("w", 1, vec![(Role::Inout, Single, case.clone())]);
    let setup = || Stage::Setup(Box::new(script()));
    let after = |world: &World, token| match &world.answers[&token] {
        ControllerReply::Advice(advice) => advice.after.clone(),
        other => panic!("{other:?}"),
    };

    let mut world = World::new(1, Config::default());
    let tokens = [3, 1, 2].map(|job| world.stage(job, setup()));
    assert!(world.answers.is_empty() && world.site.is_arriving());
    let began = world.now;
    world.list(&[], &[]);
    let advised = tokens.map(|token| after(&world, token));
    assert_eq!(advised, [vec![2], vec![], vec![1]]);
    assert!(!world.site.is_arriving());
    // No time has passed.
    assert_eq!(world.now, began);

    // The first was not reported: it is held. Its script is read, and the others come behind it.
    let mut world = World::new(1, Config::default());
    let tokens = [3, 2].map(|job| world.stage(job, setup()));
    world.list(&[1], &[]);
    world.pass(100);
    assert!(world.answers.is_empty(), "one before them is not known");
    world.find(1, script());
    world.list(&[], &[]);
    let advised = tokens.map(|token| after(&world, token));
    assert_eq!(advised, [vec![2], vec![1]]);
    // Slurm asks about it later, and learns at once where it would best run.
    let first = world.stage(1, setup());
    assert!(after(&world, first).is_empty());

    // A reading that began before a job arrived does not have those before it.
    let mut world = World::new(1, Config::default());
    world.now += SECOND;
    let third = world.stage(3, setup());
    world.event(SiteServiceEvent::Listed {
        began: world.now - 1,
        unknown: [].into(),
        gone: [].into(),
    });
    assert!(world.answers.is_empty());
    // The list decides that there is no other: not how long was waited.
    world.list(&[4], &[]);
    assert!(after(&world, third).is_empty());
    world.check_replay(Config::default());
}

/// Versions are as by number, in whatever order Slurm reports jobs and tarn finds them.
#[test]
fn versions_are_as_by_number_in_any_order_of_reports() {
    let jobs: Vec<u32> = (1..=6).collect();
    let submitted = |job: u32| {
        let data = dataset("x");
        match job % 2 {
            1 => script("w", 1, vec![(Role::Out, Single, data)]),
            _ => script("w", 1, vec![(Role::In, Single, data)]),
        }
    };
    let mut orders: Vec<Vec<u32>> = vec![Vec::new()];
    for job in &jobs {
        let longer = orders.iter().flat_map(|order| {
            (0..=order.len()).map(move |at| {
                let mut order = order.clone();
                order.insert(at, *job);
                order
            })
        });
        orders = longer.collect();
    }
    assert_eq!(orders.len(), 720);
    for order in orders {
        let mut world = World::new(2, Config::default());
        let mut unknown: Vec<u32> = jobs.clone();
        for (at, job) in order.iter().enumerate() {
            unknown.retain(|other| other != job);
            // Slurm reports some; others are held, and found.
            match at % 3 {
                0 => world.find(*job, submitted(*job)),
                _ => drop(world.stage(*job, Stage::Setup(Box::new(submitted(*job))))),
            }
            world.list(&unknown, &[]);
        }
        for reader in [2, 4, 6] {
            let token = world.stage(reader, Stage::Setup(Box::new(submitted(reader))));
            let ControllerReply::Advice(advice) = &world.answers[&token] else {
                panic!("{order:?}: {:?}", world.answers[&token]);
            };
            assert_eq!(advice.after, [reader - 1], "{order:?}");
        }
    }
}

/// The data of others may be made by a job of theirs that is held.
#[test]
fn the_jobs_of_others_whose_data_is_read_come_first() {
    let (mut grid, mesh) = (dataset("grid"), dataset("mesh"));
    grid.of = Some("alice/foam/mesh".parse().expect("a name"));
    let makes = script("foam", 1, vec![(Role::Out, Single, mesh)]);
    let reads = || {
        let script = script("mine", 1, vec![(Role::In, Single, grid.clone())]);
        let owners = [("alice".to_owned(), Owner::User(ALICE))].into();
        Stage::Setup(Box::new(JobSubmission {
            user: BOB,
            owners,
            ..script
        }))
    };
    let mut world = World::new(1, Config::default());
    let reader = world.stage(2, reads());
    world.list(&[1], &[]);
    assert!(world.answers.is_empty(), "a job of hers is not known");
    world.find(1, makes);
    world.list(&[], &[]);
    // It is made, but she has not granted it.
    assert_eq!(refused(&world.answers[&reader]).code, Code::Denied);
    let mut world = World::new(1, Config::default());
    let reader = world.stage(2, reads());
    world.list(&[3], &[]);
    assert_eq!(refused(&world.answers[&reader]).code, Code::Denied);
}

/// A job that is held is set up; what is wrong with it Slurm learns when it asks. Slurm tears down only jobs that it has staged.
#[test]
fn a_job_that_slurm_never_stages_is_over_when_it_has_left_the_queue() {
    let mut world = World::new(1, Config::default());
    let made = |name: &str| script("w", 1, vec![(Role::Out, Single, dataset(name))]);
    world.list(&[1, 2], &[]);
    world.find(1, made("x"));
    let missing = script("w", 1, vec![(Role::In, Single, dataset("nothing"))]);
    world.find(2, missing.clone());
    world.list(&[], &[]);
    assert_eq!(world.site.queued_jobs().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(world.site.taken_in(ALICE, 1), Some(Ok(())));
    assert!(
        world
            .site
            .taken_in(BOB, 1)
            .is_some_and(|known| known.is_err())
    );
    assert!(matches!(world.site.taken_in(ALICE, 2), Some(Err(why)) if why.code == Code::NotFound));
    assert_eq!(world.site.taken_in(ALICE, 3), None);
    // Slurm learns the reason once; if the job is released, it is tried again.
    let setup = |script: &JobSubmission| Stage::Setup(Box::new(script.clone()));
    let token = world.stage(2, setup(&missing));
    assert_eq!(refused(&world.answers[&token]).code, Code::NotFound);
    let token = world.stage(2, setup(&missing));
    assert!(!world.answers.contains_key(&token));

    // One reading without the first may be a mistake.
    world.list(&[], &[1]);
    world.list(&[], &[]);
    world.list(&[], &[1]);
    assert_eq!(world.site.taken_in(ALICE, 1), Some(Ok(())));
    assert_eq!(world.site.queued_jobs().collect::<Vec<_>>(), [1]);
    world.list(&[], &[1]);
    world.settle();
    assert_eq!(world.site.queued_jobs().count(), 0);
    let reads = script("w", 1, vec![(Role::In, Single, dataset("x"))]);
    let done = world.staged(4, setup(&reads));
    assert_eq!(refused(&done).code, Code::NotFound, "{done:?}");
    world.check_replay(Config::default());
}

/// A job that is cancelled while Slurm asks about it: Slurm may kill its teardown with its setup.
#[test]
fn a_job_whose_teardown_never_comes_is_over_when_it_has_left_the_queue() {
    let mut world = World::new(1, Config::default());
    let made = script("w", 1, vec![(Role::Out, Single, dataset("x"))]);
    world.list(&[1], &[]);
    world.find(1, made.clone());
    world.list(&[], &[]);
    let token = world.stage(1, Stage::Setup(Box::new(made)));
    assert!(world.answers.contains_key(&token));
    for _ in 0..3 {
        world.list(&[], &[1]);
    }
    assert_eq!(world.site.queued_jobs().collect::<Vec<_>>(), [1]);
    world.list(&[], &[1]);
    world.settle();
    assert_eq!(world.site.queued_jobs().count(), 0);
    world.check_replay(Config::default());
}

/// Weiland 2018, section 2.1: workflows of other users, and of the same, do not wait for each other.
#[test]
fn five_workflows_at_once_are_taken_in_by_one_reading() {
    let mut world = World::new(4, Config::default());
    let mut tokens = Vec::new();
    for workflow in 0..5 {
        for step in 0..3 {
            let name = |step: u32| dataset(&format!("d{step}"));
            let mut data = vec![(Role::Out, Single, name(step))];
            if step > 0 {
                data.push((Role::In, Single, name(step - 1)));
            }
            let script = script(&format!("w{workflow}"), 1, data);
            let user = if workflow % 2 == 0 { ALICE } else { BOB };
            let job = 1 + step * 5 + workflow;
            let setup = Stage::Setup(Box::new(JobSubmission { user, ..script }));
            tokens.push((job, world.stage(job, setup)));
        }
    }
    let began = world.now;
    world.list(&[], &[]);
    for (job, token) in tokens {
        let ControllerReply::Advice(advice) = &world.answers[&token] else {
            panic!("{:?}", world.answers[&token]);
        };
        let expected: Vec<u32> = job.checked_sub(5).filter(|j| *j > 0).into_iter().collect();
        assert_eq!(advice.after, expected, "job {job}");
    }
    assert_eq!(world.now, began);
}
