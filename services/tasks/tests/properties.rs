//! Properties that hold for all requests: space, shares, no task lost or done twice, recovery.

mod bounds;
mod common;

use common::{World, copy, remove, space};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;
use tarn_proto::local::*;
use tarn_tasks::{Config, Core, LEAST_COST, TaskEvent};

/// Something that a user does.
#[derive(Debug, Clone)]
enum Deed {
    Submit {
        user: UserId,
        space: usize,
        kind: u8,
        size: u64,
        priority: u8,
        durable: bool,
        deadline: Option<u64>,
        after: bool,
        job: bool,
    },
    Cancel {
        back: usize,
    },
    Pause {
        scope: u8,
        back: usize,
        on: bool,
    },
    Turn,
    Unreachable,
    Later(u64),
    Crash,
}

fn deed() -> impl Strategy<Value = Deed> {
    let submit = (
        1u32..4,
        0usize..2,
        0u8..5,
        0u64..60,
        any::<u8>(),
        any::<(bool, bool, bool)>(),
        any::<Option<u64>>(),
    );
    prop_oneof![
        6 => submit.prop_map(|(user, space, kind, size, priority, flags, deadline)| Deed::Submit {
            user, space, kind, size, priority, deadline, durable: flags.0, after: flags.1, job: flags.2 && user == 1,
        }),
        1 => (0usize..8).prop_map(|back| Deed::Cancel { back }),
        2 => (0u8..8, 0usize..8, any::<bool>()).prop_map(|(scope, back, on)| Deed::Pause { scope, back, on }),
        6 => Just(Deed::Turn),
        1 => Just(Deed::Unreachable),
        1 => (0u64..5_000_000_000).prop_map(Deed::Later),
    ]
}

fn world() -> World {
    let spaces = vec![
        ("fast".to_owned(), space(100, 60, 2)),
        ("big".to_owned(), space(1000, 0, 3)),
    ];
    let mut world = World::new(
        Config {
            external_slots: 3,
            ..Config::default()
        },
        spaces,
    );
    let limits = vec![Limit {
        space: "big".into(),
        quota: 200,
    }];
    let change = JobChange::Register {
        job: 7,
        user: 1,
        limits,
    };
    world.step(TaskEvent::Job {
        ticket: 0,
        user: 0,
        change,
    });
    world
}

/// Does it, and notes the submitted tasks.
fn perform(world: &mut World, deed: &Deed, ids: &mut Vec<(TaskId, bool)>) {
    match deed {
        Deed::Submit {
            user,
            space,
            kind,
            size,
            priority,
            durable,
            deadline,
            after,
            job,
        } => {
            let name = ["fast", "big"][*space];
            let kind = match kind {
                0 => TaskOperation::Nothing,
                1 => remove(name),
                2 => TaskOperation::Move {
                    from: TaskLocation::Space {
                        name: name.into(),
                        path: b"a".into(),
                    },
                    to: TaskLocation::Space {
                        name: ["big", "fast"][*space].into(),
                        path: b"b".into(),
                    },
                },
                _ => copy(name),
            };
            let mut spec = TaskSpec {
                priority: *priority,
                durable: *durable,
                deadline: *deadline,
                ..TaskSpec::new(kind)
            };
            if let Some((id, _)) = ids.last().filter(|(_, d)| *after && *d >= *durable) {
                spec.after.push(*id);
            }
            match world.submit(*user, job.then_some(7), spec, *size) {
                Ok(id) => ids.push((id, *durable)),
                // Another user's task cannot be followed.
                Err(why) => assert_eq!(why.map(|w| w.code), Some(Code::NotFound)),
            }
        }
        Deed::Cancel { back } => {
            if let Some((id, _)) = ids.iter().rev().nth(*back).copied() {
                world.step(TaskEvent::Cancel {
                    ticket: 0,
                    user: 0,
                    ids: vec![id],
                });
            }
        }
        Deed::Pause { scope, back, on } => {
            let scope = match scope {
                0 => Scope::All,
                1 => Scope::Job(7),
                _ => match ids.iter().rev().nth(*back) {
                    Some((id, _)) => Scope::Tasks(vec![*id]),
                    None => return,
                },
            };
            pause(world, scope, *on);
        }
        Deed::Turn => drop(world.turn()),
        Deed::Unreachable => drop(world.unreachable()),
        Deed::Later(nanos) => {
            let next = world.busy.first().map_or(u64::MAX, |(at, _)| *at);
            world.now = (world.now + nanos).min(next);
            world.step(TaskEvent::Tick);
        }
        Deed::Crash => {
            world.crash();
            ids.retain(|(id, durable)| *durable || world.ended.contains_key(id));
        }
    }
}

fn pause(world: &mut World, scope: Scope, on: bool) {
    world.step(TaskEvent::Pause {
        ticket: 0,
        user: 0,
        scope,
        on,
    });
    world.answers.pop();
}

/// Resumes everything and lets all end.
fn run(world: &mut World, ids: &[(TaskId, bool)]) {
    world.run();
    let running = world.core.running().count();
    assert_eq!(running, 0, "what is under way ends, paused or not");
    for scope in [
        Scope::All,
        Scope::Job(7),
        Scope::Tasks(ids.iter().map(|(id, _)| *id).collect()),
    ] {
        pause(world, scope, false);
    }
    world.run();
}

fn by_task(started: &[TaskId]) -> BTreeMap<TaskId, usize> {
    let mut counts = BTreeMap::new();
    for id in started {
        *counts.entry(*id).or_default() += 1;
    }
    counts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Capacity and quotas hold at every step (`World::check`), every task ends exactly once, none is started twice,
    /// and nothing is left over.
    #[test]
    fn tasks_end_once_and_space_is_never_exceeded(deeds in vec(deed(), 1..120)) {
        let mut world = world();
        let mut ids = Vec::new();
        for deed in &deeds {
            perform(&mut world, deed, &mut ids);
        }
        run(&mut world, &ids);
        for (id, _) in &ids {
            prop_assert!(world.ended.contains_key(id), "task {} was lost: {:?}", id, world.core.task(*id));
        }
        prop_assert_eq!(world.ended.len(), ids.len());
        for (id, times) in by_task(&world.started) {
            prop_assert!(times <= 1 + world.halts.get(&id).copied().unwrap_or(0), "task {} was started {} times", id, times);
        }
        prop_assert!(world.core.is_empty());
        for info in world.core.spaces_for(0) {
            let really: u64 = world.content.get(&info.name).map_or(0, |c| c.values().sum());
            prop_assert_eq!((info.used, info.reserved), (really, 0));
        }
    }

    /// With crashes in between: a durable task ends exactly once for its caller, and is never lost.
    #[test]
    fn durable_tasks_survive(deeds in vec(prop_oneof![12 => deed(), 1 => Just(Deed::Crash)], 1..120)) {
        let mut world = world();
        let mut ids = Vec::new();
        for deed in &deeds {
            perform(&mut world, deed, &mut ids);
        }
        run(&mut world, &ids);
        for (id, durable) in &ids {
            prop_assert!(!durable || world.ended.contains_key(id), "task {} was lost", id);
        }
    }

    /// The records of the journal, and the snapshot that replaces them, lead to the same state.
    #[test]
    fn recovery_gives_the_same_state(deeds in vec(deed(), 1..120)) {
        let mut world = world();
        let mut ids = Vec::new();
        for deed in &deeds {
            perform(&mut world, deed, &mut ids);
        }
        let of = |records: Vec<_>| {
            let recovered = Core::recover(world.config.clone(), world.now, records, world.spaces.clone());
            let mut snapshot = recovered.core.snapshot();
            // A recovered core is the next start's.
            snapshot.remove(0);
            snapshot
        };
        let mut expected = world.core.snapshot();
        expected.remove(0);
        prop_assert_eq!(&of(world.journal.clone()), &expected);
        prop_assert_eq!(&of(world.core.snapshot()), &expected);
        for record in &world.journal {
            let text = serde_json::to_string(record).unwrap();
            prop_assert_eq!(&serde_json::from_str::<tarn_tasks::TaskLogRecord>(&text).unwrap(), record);
        }
    }

    /// While two users have tasks waiting, their service differs from their shares by no more than so many of the
    /// largest tasks as may be under way, and one (start-time fair queueing's bound, for a size that is only known once
    /// a task is looked at).
    #[test]
    fn shares_are_as_weights_say(
        weights in (1u32..5, 1u32..5),
        sizes in (vec(1u64..100, 40), vec(1u64..100, 40)),
        slots in 1u32..4,
    ) {
        let config = Config { external_slots: slots, weights: [(1, weights.0), (2, weights.1)].into(), ..Config::default() };
        let mut world = World::new(config, vec![("big".into(), space(u64::MAX, 0, slots))]);
        world.run();
        const UNIT: u64 = 1 << 20;
        for (a, b) in sizes.0.iter().zip(&sizes.1) {
            world.submit(1, None, TaskSpec::new(copy("big")), a * UNIT).unwrap();
            world.submit(2, None, TaskSpec::new(copy("big")), b * UNIT).unwrap();
        }
        let cost = |w: &World, user: UserId| -> f64 {
            let of_user = w.started.iter().filter(|id| w.ended.contains_key(id) || w.core.task(**id).is_some());
            let own = of_user.filter(|id| (**id & 1 == 0) == (user == 1));
            own.map(|id| w.size(*id).max(LEAST_COST) as f64 + LEAST_COST as f64).sum()
        };
        let largest = 100.0 * UNIT as f64;
        let bound = f64::from(slots + 1) * (largest / f64::from(weights.0) + largest / f64::from(weights.1));
        while world.turn() {
            let waits = |user| world.core.queued(user) > 0;
            if waits(1) && waits(2) {
                let (a, b) = (cost(&world, 1) / f64::from(weights.0), cost(&world, 2) / f64::from(weights.1));
                prop_assert!((a - b).abs() <= bound, "{a} against {b}, bound {bound}");
            }
        }
        prop_assert_eq!(world.ended.len(), 80);
    }
}

/// A user with a few tasks is served beside another that has submitted thousands before.
#[test]
fn nobody_starves() {
    let mut world = World::new(
        Config::default(),
        vec![("big".into(), space(u64::MAX, 0, 2))],
    );
    world.run();
    for _ in 0..5000 {
        world
            .submit(1, None, TaskSpec::new(copy("big")), 1 << 20)
            .unwrap();
    }
    let late = world
        .submit(2, None, TaskSpec::new(copy("big")), 1 << 20)
        .unwrap();
    let mut turns = 0;
    while !world.ended.contains_key(&late) {
        assert!(world.turn());
        turns += 1;
    }
    assert!(turns < 40, "{turns} turns");
    // And of one user, the oldest is not passed by for ever: all end.
    world.run();
    assert_eq!(world.ended.len(), 5001);
}

/// A large task is not passed over for ever by small ones that always fit.
#[test]
fn a_large_task_gets_its_space() {
    let mut world = World::new(Config::default(), vec![("fast".into(), space(100, 0, 4))]);
    world.run();
    let small = |world: &mut World| {
        // Each replaces the files of the last one.
        let spec = TaskSpec {
            replace: true,
            ..TaskSpec::new(copy("fast"))
        };
        world.submit(1, None, spec, 10).unwrap()
    };
    for _ in 0..4 {
        small(&mut world);
    }
    for _ in 0..6 {
        world.turn();
    }
    let large = world
        .submit(2, None, TaskSpec::new(copy("fast")), 90)
        .unwrap();
    for _ in 0..200 {
        small(&mut world);
        world.turn();
    }
    assert_eq!(
        world.ended.get(&large).map(|o| &o.end),
        Some(&TaskEnd::Done)
    );
    world.run();
    assert_eq!(world.ended.len(), 205);
}

#[test]
fn priorities_deadlines_and_dependencies() {
    let mut world = World::new(
        Config {
            external_slots: 1,
            ..Config::default()
        },
        vec![("big".into(), space(u64::MAX, 0, 1))],
    );
    world.run();
    let mut submit = |priority, deadline, after: &[TaskId]| {
        let spec = TaskSpec {
            priority,
            deadline,
            after: after.to_vec(),
            ..TaskSpec::new(copy("big"))
        };
        world.submit(1, None, spec, 5).unwrap()
    };
    let first = submit(0, None, &[]);
    let low = submit(1, None, &[]);
    let late = submit(9, Some(1_000_000), &[]);
    let soon = submit(9, Some(3), &[]);
    let high = submit(200, None, &[]);
    let follows = submit(255, None, &[low]);
    world.run();
    assert_eq!(world.started, [first, high, soon, late, low, follows]);
    assert!(world.ended[&soon].late && !world.ended[&late].late);
}

#[test]
fn what_follows_a_failure_fails_and_what_hangs_is_told() {
    let mut world = World::new(
        Config {
            external_slots: 1,
            ..Config::default()
        },
        vec![("big".into(), space(u64::MAX, 0, 1))],
    );
    world.run();
    let hangs = world
        .submit(1, None, TaskSpec::new(copy("big")), 1 << 50)
        .unwrap();
    world.turn();
    let queued = world
        .submit(1, None, TaskSpec::new(copy("big")), 1)
        .unwrap();
    let spec = TaskSpec {
        after: vec![queued, hangs],
        ..TaskSpec::new(TaskOperation::Nothing)
    };
    let follower = world.submit(1, None, spec, 0).unwrap();
    world.step(TaskEvent::Cancel {
        ticket: 0,
        user: 1,
        ids: vec![queued, hangs, 1, follower],
    });
    let answer = world.answers.pop();
    use CancelResult::{Cancelled, Over, Unknown};
    assert_eq!(
        answer,
        Some(tarn_tasks::TaskReply::Cancelled(vec![
            Cancelled, Cancelled, Unknown, Over
        ]))
    );
    assert!(
        matches!(&world.ended[&follower].end, TaskEnd::Failed(w) if w.code == Code::Dependency)
    );
    assert!(!world.ended.contains_key(&hangs));
    world.now = world.core.timer().expect("somebody is to be told");
    world.step(TaskEvent::Tick);
    assert!(matches!(&world.ended[&hangs].end, TaskEnd::Failed(w) if w.code == Code::Cancelled));
    assert!(world.core.timer().is_none());
    // A task that follows it now follows a failure.
    let spec = TaskSpec {
        after: vec![hangs],
        ..TaskSpec::new(TaskOperation::Nothing)
    };
    let late = world.submit(1, None, spec, 0).unwrap();
    assert!(matches!(&world.ended[&late].end, TaskEnd::Failed(w) if w.code == Code::Dependency));
    // Its slot is taken until it has really stopped.
    let next = world
        .submit(1, None, TaskSpec::new(copy("big")), 1)
        .unwrap();
    assert!(world.measuring.is_empty());
    world.run();
    assert_eq!(world.ended[&next].end, TaskEnd::Done);
    assert!(world.core.is_empty());
}

/// A paused task is not started, stops, keeps its space and not its slot, and continues when it is resumed.
#[test]
fn paused_tasks_stop_and_go_on() {
    let mut world = World::new(
        Config {
            external_slots: 1,
            ..Config::default()
        },
        vec![("fast".into(), space(100, 0, 4))],
    );
    world.run();
    let submit = |world: &mut World, size| {
        world
            .submit(1, None, TaskSpec::new(copy("fast")), size)
            .unwrap()
    };
    let status = |world: &World, id| world.core.status(1, id).state;
    let begun = submit(&mut world, 60);
    world.turn();
    let next = submit(&mut world, 30);
    assert_eq!(
        (status(&world, begun), status(&world, next)),
        (TaskState::Running, TaskState::Queued)
    );
    pause(&mut world, Scope::Tasks(vec![begun]), true);
    world.run();
    assert_eq!(status(&world, begun), TaskState::Paused);
    assert_eq!(
        world.ended[&next].end,
        TaskEnd::Done,
        "the slot was given back"
    );
    let info = &world.core.spaces_for(0)[0];
    assert_eq!((info.used, info.reserved), (30, 60));
    // A task that does not fit beside it waits, and another user may not resume it.
    let waits = submit(&mut world, 20);
    world.run();
    assert_eq!(status(&world, waits), TaskState::Queued);
    let by = |world: &mut World, user, scope| {
        world.step(TaskEvent::Pause {
            ticket: 0,
            user,
            scope,
            on: false,
        });
        world.answers.pop()
    };
    let refused = by(&mut world, 2, Scope::Tasks(vec![begun, next]));
    assert_eq!(
        refused,
        Some(tarn_tasks::TaskReply::Paused(vec![PauseResult::Unknown; 2]))
    );
    assert!(
        matches!(by(&mut world, 2, Scope::All), Some(tarn_tasks::TaskReply::Refused(w)) if w.code == Code::Denied)
    );
    pause(&mut world, Scope::All, true);
    let resumed = by(&mut world, 1, Scope::Tasks(vec![begun, next]));
    let expected = vec![PauseResult::Done, PauseResult::Over];
    assert_eq!(resumed, Some(tarn_tasks::TaskReply::Paused(expected)));
    world.run();
    assert_eq!(
        status(&world, begun),
        TaskState::Queued,
        "tarnd starts nothing"
    );
    pause(&mut world, Scope::All, false);
    world.run();
    assert_eq!(world.ended[&begun].end, TaskEnd::Done);
    assert!(world.ended.contains_key(&waits));
    // Cancelled while it is paused: its space is free.
    let gone = submit(&mut world, 5);
    pause(&mut world, Scope::Tasks(vec![gone]), true);
    world.run();
    world.step(TaskEvent::Cancel {
        ticket: 0,
        user: 1,
        ids: vec![gone],
    });
    assert!(matches!(&world.ended[&gone].end, TaskEnd::Failed(w) if w.code == Code::Cancelled));
    assert_eq!(world.core.spaces_for(0)[0].reserved, 0);
    assert!(world.core.is_empty());
}

#[test]
fn what_never_fits_is_told_with_figures() {
    let mut world = World::new(Config::default(), vec![("fast".into(), space(100, 60, 4))]);
    world.run();
    let mut end = |user, size| {
        let id = world
            .submit(user, None, TaskSpec::new(copy("fast")), size)
            .unwrap();
        world.run();
        world.ended[&id].end.clone()
    };
    assert!(
        matches!(end(1, 101), TaskEnd::Failed(w) if w.code == Code::Quota && w.text.contains("60 B"))
    );
    assert_eq!(end(1, 60), TaskEnd::Done);
    assert!(matches!(end(1, 1), TaskEnd::Failed(w) if w.code == Code::Quota));
    assert!(matches!(end(2, 50), TaskEnd::Failed(w) if w.code == Code::NoSpace));
    assert_eq!(end(2, 40), TaskEnd::Done);
    // A survey finds that a program has removed files itself.
    world.content.clear();
    world.now += 20_000_000_000;
    let id = world
        .submit(2, None, TaskSpec::new(copy("fast")), 60)
        .unwrap();
    world.run();
    assert_eq!(world.ended[&id].end, TaskEnd::Done);
}
