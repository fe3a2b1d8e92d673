//! What holds whatever programs ask for: room, shares, no task lost or done twice, recovery.

mod common;

use common::{START, World, copy, remove, space};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;
use tarn_proto::local::*;
use tarn_tasks::{Config, Core, Event, LEAST_COST};

/// Something that a user does.
#[derive(Debug, Clone)]
enum Deed {
    Submit {
        user: Uid,
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
    world.step(Event::Job {
        ticket: 0,
        user: 0,
        change,
    });
    world
}

/// Does it; what was submitted is noted.
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
                0 => Kind::Nothing,
                1 => remove(name),
                2 => Kind::Move {
                    from: Place::Space {
                        name: name.into(),
                        path: b"a".into(),
                    },
                    to: Place::Space {
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
                world.step(Event::Cancel {
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
            world.step(Event::Tick);
        }
        Deed::Crash => {
            world.crash();
            ids.retain(|(id, durable)| *durable || world.ended.contains_key(id));
        }
    }
}

fn pause(world: &mut World, scope: Scope, on: bool) {
    world.step(Event::Pause {
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
    fn tasks_end_once_and_room_is_never_exceeded(deeds in vec(deed(), 1..120)) {
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

    /// With crashes in between: what is durable ends exactly once for its caller, and is never lost.
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
            prop_assert_eq!(&serde_json::from_str::<tarn_tasks::Record>(&text).unwrap(), record);
        }
    }

    /// While two users have tasks waiting, what they were given differs from their shares by no more than so many of
    /// the largest tasks as may be under way, and one (start-time fair queueing's bound, for a size that is only known
    /// once a task is looked at).
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
        let cost = |w: &World, user: Uid| -> f64 {
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

/// A user with a few tasks is served beside one who has submitted thousands before.
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
fn a_large_task_gets_its_room() {
    let mut world = World::new(Config::default(), vec![("fast".into(), space(100, 0, 4))]);
    world.run();
    let small = |world: &mut World| {
        // Each replaces what the last one has put there.
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
    assert_eq!(world.ended.get(&large).map(|o| &o.end), Some(&End::Done));
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
        ..TaskSpec::new(Kind::Nothing)
    };
    let follower = world.submit(1, None, spec, 0).unwrap();
    world.step(Event::Cancel {
        ticket: 0,
        user: 1,
        ids: vec![queued, hangs, 1, follower],
    });
    let answer = world.answers.pop();
    use CancelResult::{Cancelled, Over, Unknown};
    assert_eq!(
        answer,
        Some(tarn_tasks::Answer::Cancelled(vec![
            Cancelled, Cancelled, Unknown, Over
        ]))
    );
    assert!(matches!(&world.ended[&follower].end, End::Failed(w) if w.code == Code::Dependency));
    assert!(!world.ended.contains_key(&hangs));
    world.now = world.core.timer().expect("somebody is to be told");
    world.step(Event::Tick);
    assert!(matches!(&world.ended[&hangs].end, End::Failed(w) if w.code == Code::Cancelled));
    assert!(world.core.timer().is_none());
    // Who follows it now follows a failure.
    let spec = TaskSpec {
        after: vec![hangs],
        ..TaskSpec::new(Kind::Nothing)
    };
    let late = world.submit(1, None, spec, 0).unwrap();
    assert!(matches!(&world.ended[&late].end, End::Failed(w) if w.code == Code::Dependency));
    // Its slot is taken until it has really stopped.
    let next = world
        .submit(1, None, TaskSpec::new(copy("big")), 1)
        .unwrap();
    assert!(world.measuring.is_empty());
    world.run();
    assert_eq!(world.ended[&next].end, End::Done);
    assert!(world.core.is_empty());
}

/// What is paused is not started, stops, keeps its room and not its slot, and goes on when it is resumed.
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
        (State::Running, State::Queued)
    );
    pause(&mut world, Scope::Tasks(vec![begun]), true);
    world.run();
    assert_eq!(status(&world, begun), State::Paused);
    assert_eq!(world.ended[&next].end, End::Done, "the slot was given back");
    let info = &world.core.spaces_for(0)[0];
    assert_eq!((info.used, info.reserved), (30, 60));
    // What does not fit beside it waits, and another user may not resume it.
    let waits = submit(&mut world, 20);
    world.run();
    assert_eq!(status(&world, waits), State::Queued);
    let by = |world: &mut World, user, scope| {
        world.step(Event::Pause {
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
        Some(tarn_tasks::Answer::Paused(vec![PauseResult::Unknown; 2]))
    );
    assert!(
        matches!(by(&mut world, 2, Scope::All), Some(tarn_tasks::Answer::Refused(w)) if w.code == Code::Denied)
    );
    pause(&mut world, Scope::All, true);
    let resumed = by(&mut world, 1, Scope::Tasks(vec![begun, next]));
    let expected = vec![PauseResult::Done, PauseResult::Over];
    assert_eq!(resumed, Some(tarn_tasks::Answer::Paused(expected)));
    world.run();
    assert_eq!(status(&world, begun), State::Queued, "tarnd starts nothing");
    pause(&mut world, Scope::All, false);
    world.run();
    assert_eq!(world.ended[&begun].end, End::Done);
    assert!(world.ended.contains_key(&waits));
    // Cancelled while it is paused: its room is free.
    let gone = submit(&mut world, 5);
    pause(&mut world, Scope::Tasks(vec![gone]), true);
    world.run();
    world.step(Event::Cancel {
        ticket: 0,
        user: 1,
        ids: vec![gone],
    });
    assert!(matches!(&world.ended[&gone].end, End::Failed(w) if w.code == Code::Cancelled));
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
        matches!(end(1, 101), End::Failed(w) if w.code == Code::Quota && w.text.contains("60 B"))
    );
    assert_eq!(end(1, 60), End::Done);
    assert!(matches!(end(1, 1), End::Failed(w) if w.code == Code::Quota));
    assert!(matches!(end(2, 50), End::Failed(w) if w.code == Code::NoSpace));
    assert_eq!(end(2, 40), End::Done);
    // What a program has removed itself is found by a survey.
    world.content.clear();
    world.now += 20_000_000_000;
    let id = world
        .submit(2, None, TaskSpec::new(copy("fast")), 60)
        .unwrap();
    world.run();
    assert_eq!(world.ended[&id].end, End::Done);
}

#[test]
fn queues_have_bounds() {
    let mut world = World::new(
        Config {
            external_slots: 1,
            ..Config::default()
        },
        vec![("big".into(), space(u64::MAX, 0, 1))],
    );
    let batch = |world: &mut World, user, kind: Kind| {
        let tasks = vec![TaskSpec::new(kind); 256];
        world.step(Event::Submit {
            ticket: 0,
            user,
            job: None,
            tasks,
        });
        matches!(world.answers.pop(), Some(tarn_tasks::Answer::Submitted(_)))
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
        assert!(batch(&mut world, 3, Kind::Nothing));
    }
    assert_eq!(world.core.kept(), tarn_tasks::MAX_USER_KEPT);
    world.now = START + 2 * tarn_tasks::KEPT_FOR;
    world
        .submit(3, None, TaskSpec::new(Kind::Nothing), 0)
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
    let at = |path: &[u8]| Place::Space {
        name: "a".into(),
        path: path.into(),
    };
    let memory = Place::Memory {
        region: 0,
        offset: 0,
        length: 1,
    };
    let elsewhere = Place::Node {
        node: "n1".into(),
        space: "a".into(),
        path: b"x".into(),
    };
    let out = |path: &[u8]| Place::External(path.into());
    let copy = |from: Place, to: Place| Kind::Copy { from, to };
    let cases = [
        (5, Kind::Remove { at: at(b"") }, Code::Invalid),
        (5, Kind::Remove { at: at(b"../x") }, Code::Invalid),
        (5, Kind::Remove { at: at(b"a//b") }, Code::Invalid),
        (5, Kind::Remove { at: at(b"/etc") }, Code::Invalid),
        (5, Kind::Remove { at: at(b".tarn-1") }, Code::Invalid),
        (
            5,
            Kind::Remove {
                at: at(&[b'x'; 5000]),
            },
            Code::Invalid,
        ),
        (5, Kind::Remove { at: memory.clone() }, Code::Invalid),
        (5, copy(memory.clone(), memory.clone()), Code::Invalid),
        (5, copy(out(b"relative"), at(b"x")), Code::Invalid),
        (5, copy(out(b"/a/../b"), at(b"x")), Code::Invalid),
        (5, copy(out(b"gs://bucket/x"), at(b"x")), Code::Unsupported),
        (5, copy(out(b"s3://bucket/a//b"), at(b"x")), Code::Invalid),
        (0, copy(at(b"x"), out(b"s3://bucket")), Code::Invalid),
        (
            0,
            Kind::Remove {
                at: out(b"s3://bucket/x"),
            },
            Code::Unsupported,
        ),
        (
            0,
            Kind::Move {
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
            Kind::Move {
                from: at(b"x"),
                to: out(b"/x"),
            },
            Code::Denied,
        ),
        (
            6,
            copy(
                Place::Space {
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
        world.step(Event::Space {
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
        assert!(matches!(answer, Some(tarn_tasks::Answer::Refused(w)) if w.code == code))
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
        Some(tarn_tasks::Answer::Done)
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
    let code = |r: Result<TaskId, Option<Refusal>>| r.unwrap_err().unwrap().code;
    let nothing = || TaskSpec::new(Kind::Nothing);
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
        world.step(Event::Job {
            ticket: 0,
            user,
            change,
        });
        world.answers.pop().unwrap()
    };
    assert!(matches!(
        change(&mut world, 4, register.clone()),
        tarn_tasks::Answer::Refused(_)
    ));
    assert_eq!(change(&mut world, 0, register), tarn_tasks::Answer::Done);
    assert_eq!(code(world.submit(5, Some(1), nothing(), 0)), Code::Denied);
    let first = world
        .submit(4, Some(1), TaskSpec::new(copy("big")), 80)
        .unwrap();
    let second = world
        .submit(4, Some(1), TaskSpec::new(copy("big")), 30)
        .unwrap();
    world.run();
    assert_eq!(world.ended[&first].end, End::Done);
    assert!(matches!(&world.ended[&second].end, End::Failed(w) if w.code == Code::Quota));
    // It is remembered over a restart.
    world.crash();
    world.run();
    let third = world
        .submit(4, Some(1), TaskSpec::new(copy("big")), 30)
        .unwrap();
    world.run();
    assert!(matches!(&world.ended[&third].end, End::Failed(w) if w.code == Code::Quota));
    let last = world
        .submit(4, Some(1), TaskSpec::new(copy("big")), 10)
        .unwrap();
    assert_eq!(
        change(&mut world, 0, JobChange::Unregister { job: 1 }),
        tarn_tasks::Answer::Done
    );
    world.run();
    assert!(matches!(&world.ended[&last].end, End::Failed(w) if w.code == Code::Cancelled));
}
