//! Tasks that need a node which does not answer.

mod common;

use common::{World, copy, space};
use tarn_proto::local::*;
use tarn_tasks::{Config, RETRIED_FOR, RETRY_PAUSE, TaskEvent};
use tarn_types::units::SECOND;

/// One task at a time, with space for one.
fn world() -> World {
    let config = Config {
        external_slots: 1,
        ..Config::default()
    };
    let mut world = World::new(config, vec![("fast".into(), space(10, 0, 1))]);
    world.run();
    world
}

fn durable() -> TaskSpec {
    TaskSpec {
        durable: true,
        ..TaskSpec::new(copy("fast"))
    }
}

fn cancel(world: &mut World, id: TaskId) {
    let (ticket, user, ids) = (0, 1, vec![id]);
    world.step(TaskEvent::Cancel { ticket, user, ids });
}

fn failure(world: &World, id: TaskId) -> RequestError {
    match &world.ended[&id].end {
        TaskEnd::Failed(why) => why.clone(),
        TaskEnd::Done => panic!("task {id} is done"),
    }
}

/// Until it is under way: measured, if that has not been done.
fn until_busy(world: &mut World) {
    while world.busy.is_empty() {
        assert!(world.turn());
    }
}

/// Its slots are free for others while it waits, its space is not, and the pauses grow.
#[test]
fn a_durable_task_is_tried_again_later_and_later() {
    let mut world = world();
    let id = world.submit(1, None, durable(), 10).unwrap();
    let mut pauses = Vec::new();
    for _ in 0..9 {
        until_busy(&mut world);
        let failed = world.now;
        assert_eq!(world.unreachable(), Some(id));
        let info = world.core.spaces_for(0).remove(0);
        assert_eq!((info.used, info.reserved), (0, 10));
        assert_eq!(world.core.status(1, id).state, TaskState::Waiting);
        pauses.push(world.core.timer().unwrap() - failed);
    }
    let second = |n: u64| n * SECOND;
    let wanted = [1, 2, 4, 8, 16, 32, 60, 60, 60].map(|half| second(half) / 2);
    assert_eq!(pauses, wanted);
    assert_eq!((wanted[0], wanted[8]), RETRY_PAUSE);
    // Others have its slot meanwhile, but not its space.
    let other = world.submit(1, None, durable(), 1).unwrap();
    let none = TaskSpec::new(TaskOperation::Copy {
        from: TaskLocation::External(b"/a".into()),
        to: TaskLocation::External(b"/b".into()),
    });
    let outside = world.submit(1, None, none, 5).unwrap();
    while !world.ended.contains_key(&outside) {
        assert!(world.turn());
    }
    assert!(!world.ended.contains_key(&id) && !world.ended.contains_key(&other));
    while !world.ended.contains_key(&id) {
        assert!(world.turn());
    }
    assert_eq!(world.ended[&id].end, TaskEnd::Done);
    assert!(world.discarded.is_empty());
}

#[test]
fn it_is_given_up_after_an_hour_or_at_its_deadline() {
    for (deadline, bound) in [(None, RETRIED_FOR), (Some(100 * SECOND), 100 * SECOND)] {
        let mut world = world();
        let spec = TaskSpec {
            deadline,
            ..durable()
        };
        let id = world.submit(1, None, spec, 10).unwrap();
        let began = world.now;
        while !world.ended.contains_key(&id) {
            until_busy(&mut world);
            world.unreachable();
        }
        let took = world.now - began;
        assert!((bound..bound + SECOND).contains(&took), "{took}");
        let why = failure(&world, id);
        assert!(
            why.code == Code::Io && why.text.contains("it was tried for"),
            "{why:?}"
        );
        assert_eq!(world.discarded, [id]);
        let info = world.core.spaces_for(0).remove(0);
        assert_eq!((info.used, info.reserved), (0, 0));
        assert_eq!((world.core.timer(), world.core.is_empty()), (None, true));
    }
}

#[test]
fn others_end_at_once_and_who_waits_can_be_cancelled_and_paused() {
    let mut world = world();
    let id = world
        .submit(1, None, TaskSpec::new(copy("fast")), 10)
        .unwrap();
    until_busy(&mut world);
    world.unreachable();
    assert_eq!(failure(&world, id).text, "node b cannot be reached");

    let id = world.submit(1, None, durable(), 10).unwrap();
    until_busy(&mut world);
    world.unreachable();
    assert!(!world.core.rests(), "it goes on by itself");
    cancel(&mut world, id);
    assert_eq!(failure(&world, id).code, Code::Cancelled);
    assert_eq!(world.discarded, [id]);
    assert_eq!((world.core.timer(), world.core.is_empty()), (None, true));

    let id = world.submit(1, None, durable(), 10).unwrap();
    until_busy(&mut world);
    world.unreachable();
    let pause = |world: &mut World, on| {
        world.step(TaskEvent::Pause {
            ticket: 0,
            user: 1,
            scope: Scope::Tasks(vec![id]),
            on,
        });
    };
    pause(&mut world, true);
    world.run();
    assert_eq!(world.core.status(1, id).state, TaskState::Paused);
    pause(&mut world, false);
    world.run();
    assert_eq!(world.ended[&id].end, TaskEnd::Done);
}
