//! Bounds of queues, rights, and tasks of a job together.

use crate::common::{START, World, copy, space};
use tarn_proto::local::*;
use tarn_tasks::{Config, TaskEvent};

#[test]
fn queues_have_bounds() {
    let mut world = World::new(
        Config {
            external_slots: 1,
            ..Config::default()
        },
        vec![("big".into(), space(u64::MAX, 0, 1))],
    );
    let batch = |world: &mut World, user, kind: TaskOperation| {
        let tasks = vec![TaskSpec::new(kind); 256];
        world.step(TaskEvent::Submit {
            ticket: 0,
            user,
            job: None,
            tasks,
        });
        matches!(
            world.answers.pop(),
            Some(tarn_tasks::TaskReply::Submitted(_))
        )
    };
    for n in 0..tarn_tasks::MAX_USER_TASKS / 256 {
        assert!(batch(&mut world, 1, copy("big")), "{n}");
    }
    assert_eq!(
        world.submit(1, None, TaskSpec::new(copy("big")), 1),
        Err(None)
    );
    assert!(world.submit(2, None, TaskSpec::new(copy("big")), 1).is_ok());
    for _ in 0..3 * tarn_tasks::MAX_USER_KEPT / 256 {
        assert!(batch(&mut world, 3, TaskOperation::Nothing));
    }
    assert_eq!(world.core.kept(), tarn_tasks::MAX_USER_KEPT);
    world.now = START + 2 * tarn_tasks::KEPT_FOR;
    world
        .submit(3, None, TaskSpec::new(TaskOperation::Nothing), 0)
        .unwrap();
    assert_eq!(world.core.kept(), 1);
}

#[test]
fn what_makes_no_sense_or_is_not_allowed_is_refused() {
    let mut closed = space(100, 0, 1);
    closed.everyone = Access {
        read: true,
        ..Access::default()
    };
    closed.users = vec![(
        5,
        Access {
            read: true,
            write: true,
            manage: true,
        },
    )];
    let mut world = World::new(Config::default(), vec![("a".into(), closed.clone())]);
    let at = |path: &[u8]| TaskLocation::Space {
        name: "a".into(),
        path: path.into(),
    };
    let memory = TaskLocation::Memory {
        region: 0,
        offset: 0,
        length: 1,
    };
    let elsewhere = TaskLocation::Node {
        node: "n1".into(),
        space: "a".into(),
        path: b"x".into(),
    };
    let out = |path: &[u8]| TaskLocation::External(path.into());
    let copy = |from: TaskLocation, to: TaskLocation| TaskOperation::Copy { from, to };
    let cases = [
        (5, TaskOperation::Remove { at: at(b"") }, Code::Invalid),
        (5, TaskOperation::Remove { at: at(b"../x") }, Code::Invalid),
        (5, TaskOperation::Remove { at: at(b"a//b") }, Code::Invalid),
        (5, TaskOperation::Remove { at: at(b"/etc") }, Code::Invalid),
        (
            5,
            TaskOperation::Remove { at: at(b".tarn-1") },
            Code::Invalid,
        ),
        (
            5,
            TaskOperation::Remove {
                at: at(&[b'x'; 5000]),
            },
            Code::Invalid,
        ),
        (
            5,
            TaskOperation::Remove { at: memory.clone() },
            Code::Invalid,
        ),
        (5, copy(memory.clone(), memory.clone()), Code::Invalid),
        (5, copy(out(b"relative"), at(b"x")), Code::Invalid),
        (5, copy(out(b"/a/../b"), at(b"x")), Code::Invalid),
        (5, copy(out(b"gs://bucket/x"), at(b"x")), Code::Unsupported),
        (5, copy(out(b"s3://bucket/a//b"), at(b"x")), Code::Invalid),
        (0, copy(at(b"x"), out(b"s3://bucket")), Code::Invalid),
        (
            0,
            TaskOperation::Remove {
                at: out(b"s3://bucket/x"),
            },
            Code::Unsupported,
        ),
        (
            0,
            TaskOperation::Move {
                from: out(b"s3://bucket/x"),
                to: at(b"x"),
            },
            Code::Unsupported,
        ),
        // The keys are the owner's.
        (6, copy(out(b"s3://bucket/x"), out(b"/x")), Code::Denied),
        (6, copy(out(b"/x"), out(b"s3://bucket/x")), Code::Denied),
        (5, copy(elsewhere, at(b"x")), Code::Unsupported),
        (6, copy(out(b"/x"), at(b"x")), Code::Denied),
        (
            6,
            TaskOperation::Move {
                from: at(b"x"),
                to: out(b"/x"),
            },
            Code::Denied,
        ),
        (
            6,
            copy(
                TaskLocation::Space {
                    name: "b".into(),
                    path: b"x".into(),
                },
                out(b"/x"),
            ),
            Code::NotFound,
        ),
    ];
    for (user, kind, code) in cases {
        let refused = world.submit(user, None, TaskSpec::new(kind.clone()), 1);
        assert_eq!(refused.unwrap_err().unwrap().code, code, "{kind:?}");
    }
    let durable = TaskSpec {
        durable: true,
        ..TaskSpec::new(copy(memory, at(b"x")))
    };
    assert_eq!(
        world.submit(5, None, durable, 1).unwrap_err().unwrap().code,
        Code::Invalid
    );
    assert!(
        world
            .submit(6, None, TaskSpec::new(copy(at(b""), out(b"/x"))), 1)
            .is_ok()
    );
    let space_change = |world: &mut World, user, change| {
        world.step(TaskEvent::Space {
            ticket: 0,
            user,
            change,
        });
        world.answers.pop()
    };
    let made = |name: &str| SpaceChange::Make {
        name: name.into(),
        spec: closed.clone(),
    };
    let refused = |answer, code| {
        assert!(matches!(answer, Some(tarn_tasks::TaskReply::Refused(w)) if w.code == code))
    };
    refused(space_change(&mut world, 6, made("b")), Code::Denied);
    refused(space_change(&mut world, 0, made("a")), Code::Exists);
    refused(space_change(&mut world, 0, made("a/b")), Code::Invalid);
    refused(
        space_change(&mut world, 5, SpaceChange::Remove { name: "a".into() }),
        Code::Busy,
    );
    assert_eq!(
        space_change(&mut world, 0, made("b")),
        Some(tarn_tasks::TaskReply::Done)
    );
}

#[test]
fn jobs_limit_their_tasks_together() {
    let mut world = World::new(
        Config {
            jobs_only: true,
            ..Config::default()
        },
        vec![("big".into(), space(1000, 0, 4))],
    );
    world.run();
    let code = |r: Result<TaskId, Option<RequestError>>| r.unwrap_err().unwrap().code;
    let nothing = || TaskSpec::new(TaskOperation::Nothing);
    assert_eq!(code(world.submit(4, None, nothing(), 0)), Code::Denied);
    assert_eq!(code(world.submit(4, Some(1), nothing(), 0)), Code::NotFound);
    let limits = vec![Limit {
        space: "big".into(),
        quota: 100,
    }];
    let register = JobChange::Register {
        job: 1,
        user: 4,
        limits,
    };
    let change = |world: &mut World, user, change| {
        world.step(TaskEvent::Job {
            ticket: 0,
            user,
            change,
        });
        world.answers.pop().unwrap()
    };
    assert!(matches!(
        change(&mut world, 4, register.clone()),
        tarn_tasks::TaskReply::Refused(_)
    ));
    assert_eq!(change(&mut world, 0, register), tarn_tasks::TaskReply::Done);
    assert_eq!(code(world.submit(5, Some(1), nothing(), 0)), Code::Denied);
    let first = world
        .submit(4, Some(1), TaskSpec::new(copy("big")), 80)
        .unwrap();
    let second = world
        .submit(4, Some(1), TaskSpec::new(copy("big")), 30)
        .unwrap();
    world.run();
    assert_eq!(world.ended[&first].end, TaskEnd::Done);
    assert!(matches!(&world.ended[&second].end, TaskEnd::Failed(w) if w.code == Code::Quota));
    // It is remembered over a restart.
    world.crash();
    world.run();
    let third = world
        .submit(4, Some(1), TaskSpec::new(copy("big")), 30)
        .unwrap();
    world.run();
    assert!(matches!(&world.ended[&third].end, TaskEnd::Failed(w) if w.code == Code::Quota));
    let last = world
        .submit(4, Some(1), TaskSpec::new(copy("big")), 10)
        .unwrap();
    assert_eq!(
        change(&mut world, 0, JobChange::Unregister { job: 1 }),
        tarn_tasks::TaskReply::Done
    );
    world.run();
    assert!(matches!(&world.ended[&last].end, TaskEnd::Failed(w) if w.code == Code::Cancelled));
}
