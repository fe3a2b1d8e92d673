//! The results of a second look: folders that come back, files that programs removed, processes that have ended.

mod common;

use common::{World, copy, space};
use tarn_proto::local::*;
use tarn_tasks::{Added, Config, MAX_PROCESSES, Process, TaskEvent, TaskReply};
use tarn_types::units::SECOND;

/// A folder that could not be read is of use again once it is back.
#[test]
fn a_space_whose_survey_failed_once() {
    let mut world = World::new(Config::default(), vec![("big".into(), space(100, 0, 4))]);
    let fail = |world: &mut World| {
        let name = world.surveys.pop().unwrap();
        let why = RequestError::new(Code::Io, "cannot be read");
        world.step(TaskEvent::Surveyed {
            space: name,
            used: Err(why),
        });
    };
    fail(&mut world);
    let task = |world: &mut World| {
        world
            .submit(1, None, TaskSpec::new(copy("big")), 10)
            .unwrap()
    };
    let first = task(&mut world);
    world.run();
    assert!(matches!(&world.ended[&first].end, TaskEnd::Failed(why) if why.code == Code::Io));
    // Not at once again, but soon.
    assert!(world.surveys.is_empty());
    world.now += 3 * SECOND;
    let second = task(&mut world);
    world.turn();
    fail(&mut world);
    world.run();
    assert!(matches!(&world.ended[&second].end, TaskEnd::Failed(why) if why.code == Code::Io));
    world.now += 3 * SECOND;
    let third = task(&mut world);
    world.run();
    assert_eq!(world.ended[&third].end, TaskEnd::Done);
}

fn registered(world: &mut World) {
    let limits = vec![Limit {
        space: "big".into(),
        quota: 100,
    }];
    let change = JobChange::Register {
        job: 1,
        user: 4,
        limits,
    };
    world.step(TaskEvent::Job {
        ticket: 0,
        user: 0,
        change,
    });
    assert_eq!(world.answers.pop(), Some(TaskReply::Done));
}

/// Bytes that a job's programs remove themselves are given back to its quota, over a restart too.
#[test]
fn a_job_gets_back_what_its_programs_removed() {
    let mut world = World::new(Config::default(), vec![("big".into(), space(1000, 0, 4))]);
    world.run();
    registered(&mut world);
    let task = |world: &mut World, size| {
        let id = world.submit(4, Some(1), TaskSpec::new(copy("big")), size);
        world.run();
        world.ended[&id.unwrap()].end.clone()
    };
    assert_eq!(task(&mut world, 90), TaskEnd::Done);
    world.now += 20 * SECOND;
    assert!(matches!(task(&mut world, 20), TaskEnd::Failed(why) if why.code == Code::Quota));
    world.content.clear();
    world.now += 20 * SECOND;
    assert_eq!(task(&mut world, 95), TaskEnd::Done);
    world.content.clear();
    world.crash();
    world.run();
    assert_eq!(task(&mut world, 95), TaskEnd::Done);
}

/// A job that is registered again has the reservations of its cancelled tasks until they stop.
#[test]
fn a_job_registered_again_counts_what_still_runs() {
    let mut world = World::new(Config::default(), vec![("big".into(), space(1000, 0, 4))]);
    world.run();
    registered(&mut world);
    let submit = |world: &mut World, size| {
        let spec = TaskSpec::new(copy("big"));
        world.submit(4, Some(1), spec, size).unwrap()
    };
    let first = submit(&mut world, 60);
    world.turn();
    world.step(TaskEvent::Job {
        ticket: 0,
        user: 0,
        change: JobChange::Unregister { job: 1 },
    });
    assert_eq!(world.answers.pop(), Some(TaskReply::Done));
    assert!(!world.ended.contains_key(&first));
    registered(&mut world);
    let second = submit(&mut world, 100);
    world.run();
    assert!(
        matches!(&world.ended[&first].end, TaskEnd::Failed(why) if why.code == Code::Cancelled)
    );
    assert_eq!(world.ended[&second].end, TaskEnd::Done);
}

/// A process belongs to a job by its number and its stamp; those that have ended make space.
#[test]
fn processes_are_distinguished() {
    let mut world = World::new(Config::default(), Vec::new());
    registered(&mut world);
    let add = |world: &mut World, pid, stamp, gone: Vec<i32>| {
        let process = Process { job: 1, pid, stamp };
        world.step(TaskEvent::Process(Added {
            ticket: 0,
            user: 0,
            process,
            gone,
        }));
        world.answers.pop().unwrap()
    };
    assert_eq!(add(&mut world, 99, 7, Vec::new()), TaskReply::Done);
    let job_of = |world: &World, all: &[(i32, u64)]| world.core.job_of(all.iter().copied());
    assert_eq!(job_of(&world, &[(1, 7), (99, 7)]), Some(1));
    assert_eq!(job_of(&world, &[(99, 8)]), None);
    for pid in 100..99 + i32::try_from(MAX_PROCESSES).unwrap() {
        assert!(world.core.crowd(1).is_empty());
        assert_eq!(add(&mut world, pid, 1, Vec::new()), TaskReply::Done);
    }
    assert_eq!(world.core.crowd(1).len(), MAX_PROCESSES);
    assert!(
        matches!(add(&mut world, 50, 1, Vec::new()), TaskReply::Refused(why) if why.code == Code::Busy)
    );
    assert_eq!(add(&mut world, 50, 1, vec![99, 100]), TaskReply::Done);
    world.crash();
    assert_eq!(job_of(&world, &[(99, 7)]), None);
    assert_eq!(job_of(&world, &[(50, 1)]), Some(1));
    assert_eq!(job_of(&world, &[(50, 2)]), None);
}
