//! The rules of an allocation, each against scripted nodes: who does what, in which order, and what holds up nobody.

mod common;
use common::*;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tarn_cluster::NodeLink;
use tarn_ports::{CapabilityError, NodeWorld, World};
use tarn_proto::node::{NodeCommand, NodeNotification, NodeReply, NodeRequest};
use tarn_types::action::{Do, Outcome};
use tarn_types::event::{AttemptOutcome, Event, Output, PriorInstance, RunError, RunErrorKind};
use tarn_types::hash::Hash;
use tarn_types::id::{DataId, NodeId, StepId, TransferId};
use tarn_types::nodes::{Cleaned, Phase, RunningStep, SpaceWaitCause, Staying};
use tarn_types::part::{Place, StoreKey};

fn failure_of(event: &Event) -> RunErrorKind {
    match event {
        Event::TransferFailed { failure, .. }
        | Event::Ended {
            ended: AttemptOutcome::Failed { failure, .. },
            ..
        } => failure.kind,
        other => panic!("no failure: {other:?}"),
    }
}

#[test]
fn each_order_goes_to_who_does_it() {
    let mut p = Script::new(3).open();
    let infos = [
        (part(0), info(0, 100)),
        (part(1), info(1, 900)),
        (part(2), info(2, 1)),
    ];
    p.world().know(infos.to_vec()).unwrap();
    let d = Place::External("/ext/d".into());
    let deliver = transfer(2, &[(0, at(0)), (1, at(2)), (2, at(0))], d.clone());
    let outside = transfer(3, &[(0, Place::Source)], Place::Drained);
    let evict = |at| Do::Evict {
        part: part(0),
        key: info(0, 0).key,
        at,
    };
    let stop = Do::Stop {
        instance: instance(0),
        attempt: 1,
    };
    let abandon = |id| Do::Abandon { id: TransferId(id) };
    let reuse = Do::Reuse {
        instance: instance(0),
        prior: 0,
    };
    let orders = [
        Do::List { data: DataId(0) },
        Do::Transfer(transfer(1, &[(0, at(0))], at(1))),
        Do::Transfer(deliver.clone()),
        Do::Transfer(outside.clone()),
        Do::Run(Box::new(run(0, &[1, 2], &[]))),
        stop.clone(),
        abandon(2),
        abandon(3),
        abandon(99),
        evict(at(0)),
        evict(Place::Drained),
        reuse.clone(),
        Do::Note {
            about: tarn_types::action::Subject::Run,
        },
        Do::Unassign {
            instance: instance(0),
        },
        Do::Finish {
            outcome: Outcome::Done,
        },
    ];
    let [list, to_1, ..] = orders.clone();
    let finish = orders.last().unwrap().clone();
    orders.into_iter().for_each(|o| p.perform(o));
    assert_eq!(
        p.session(0).orders(3),
        [evict(at(0)), reuse.clone(), finish.clone()]
    );
    let ran = Do::Run(Box::new(run(0, &[1, 2], &[])));
    assert_eq!(
        p.session(1).orders(5),
        [to_1, ran, stop, reuse.clone(), finish.clone()]
    );
    let most = Do::Transfer(deliver);
    assert_eq!(
        p.session(2).orders(4),
        [most, abandon(2), reuse.clone(), finish.clone()]
    );
    let outside = Do::Transfer(outside);
    let home = [
        list,
        outside,
        abandon(3),
        evict(Place::Drained),
        reuse,
        finish,
    ];
    assert_eq!(p.home.lock().unwrap().performed, home);
}

#[test]
fn parts_are_known_before_an_order_names_them_and_again_when_more_is_known() {
    let mut p = Script::new(2).open();
    let listed = Event::SourceListed {
        data: DataId(0),
        parts: vec![info(0, 10), info(1, 10)],
    };
    p.home.lock().unwrap().events.push_back(listed.clone());
    p.perform(Do::List { data: DataId(0) });
    assert_eq!(p.event(), listed);
    p.perform(Do::Transfer(transfer(1, &[(0, Place::Source)], at(0))));
    p.session(0).orders(1);
    p.session(0).happens(done(1, 1));
    assert_eq!(p.event(), done(1, 1));
    assert_eq!(p.home.lock().unwrap().learned, [TransferId(1)]);
    p.perform(Do::Run(Box::new(run(0, &[0, 1], &[(0, 0), (1, 1)]))));
    p.perform(Do::Run(Box::new(run(1, &[0], &[(0, 0)]))));
    p.session(0).orders(3);
    let mut hashed = info(0, 10);
    hashed.hash = Some(Hash(7));
    let names = |command: &NodeCommand| match command {
        NodeCommand::Know(parts) => parts.clone(),
        _ => Vec::new(),
    };
    let commands = p.session(0).commands.lock().unwrap().clone();
    let known: Vec<_> = commands.iter().map(names).collect();
    let (a, b) = ((part(0), info(0, 10)), (part(1), info(1, 10)));
    assert_eq!(
        known,
        [
            vec![a],
            vec![],
            vec![],
            vec![(part(0), hashed), b.clone()],
            vec![],
            vec![]
        ]
    );
    p.session(1)
        .receives(|t| *t == NodeCommand::Know(vec![b.clone()]));
    assert!(p.session(1).orders(0).is_empty());
}

#[test]
fn what_home_moves_it_knows_too() {
    let mut p = Script::new(1).open();
    p.perform(Do::Run(Box::new(run(0, &[0], &[]))));
    let output = Output {
        data: DataId(0),
        version: 0,
        parts: vec![(info(0, 10), vec![tier_ref(0)])],
    };
    p.session(0).orders(1);
    p.session(0)
        .happens(committed(instance(0), 1, vec![output]));
    p.event();
    let out = transfer(1, &[(0, Place::Drained)], Place::External("/ext/d".into()));
    p.perform(Do::Transfer(out));
    assert_eq!(p.home.lock().unwrap().known, [part(0)]);
}

#[test]
fn a_step_whose_script_has_changed_is_not_begun_and_a_stop_is_never_before_its_run() {
    let mut script = Script::new(1);
    // Each look waits for one message; the sender is dropped once all orders are given, or a look holds the loop up for good.
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    script.changed = Arc::new(move |step: StepId| {
        let _ = held.lock().unwrap().recv();
        (step == StepId(1)).then(|| PathBuf::from("/w/solve.sh"))
    });
    let mut p = script.open();
    let stop = Do::Stop {
        instance: instance(0),
        attempt: 1,
    };
    let good = Do::Run(Box::new(run(0, &[0], &[])));
    p.perform(good.clone());
    p.perform(stop.clone());
    let mut changed = run(1, &[0], &[]);
    changed.instance.step = StepId(1);
    p.perform(Do::Run(Box::new(changed)));
    // The loop has not waited for a look: none is over.
    drop(hold);
    let event = p.event();
    assert_eq!(failure_of(&event), RunErrorKind::Launch);
    assert!(format!("{event:?}").contains("/w/solve.sh"));
    assert_eq!(p.session(0).orders(2), [good, stop]);
}

#[test]
fn a_node_that_takes_nothing_holds_up_nobody_and_news_wake_at_once() {
    let mut p = Script::new(2).open();
    p.session(0).is_stuck(true);
    let since = Instant::now();
    for id in 0..2000 {
        let (from, to) = ((id + 1) % 2, id % 2);
        p.perform(Do::Transfer(transfer(
            id,
            &[(id as u32, at(from as u32))],
            at(to as u32),
        )));
    }
    assert!(since.elapsed() < Duration::from_secs(10));
    assert_eq!(p.session(1).orders(1000).len(), 1000);
    // A loop that only looks now and then would get each of them 40 ms late; a busy machine makes some late.
    let woken = (0..100).any(|n| {
        let (session, sent) = (p.session(1), done(2 * n + 1, 1));
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(10));
            let since = Instant::now();
            session.happens(sent);
            since
        });
        assert_eq!(p.event(), done(2 * n + 1, 1));
        thread.join().unwrap().elapsed() < Duration::from_millis(20)
    });
    assert!(woken, "no event has woken the loop");
    p.session(0).is_stuck(false);
    assert_eq!(p.session(0).orders(1000).len(), 1000);
}

#[test]
fn followers_have_had_a_mark_before_the_leader_s_messages_count() {
    let mut p = Script::new(3).open();
    let listed = Event::SourceListed {
        data: DataId(0),
        parts: vec![info(0, 10), info(1, 10)],
    };
    p.home.lock().unwrap().events.push_back(listed.clone());
    p.perform(Do::List { data: DataId(0) });
    assert_eq!(p.event(), listed);
    let led = run(0, &[0, 1, 2, 1], &[(1, 1)]);
    let step = (led.instance, led.attempt);
    p.perform(Do::Run(Box::new(led)));
    p.perform(Do::Run(Box::new(run(1, &[2], &[]))));
    p.perform(Do::Run(Box::new(run(2, &[1, 0], &[]))));
    let commands_to = |n: u32| {
        let commands = p.session(n).commands.lock().unwrap().clone();
        let kinds = commands.into_iter().map(|t| match t {
            NodeCommand::Know(_) => "know".to_owned(),
            NodeCommand::Mark(n) => format!("mark {n}"),
            NodeCommand::Lead { step: of, mark } => format!("lead {} {mark}", of == step),
            NodeCommand::Do(_) => "do".into(),
            other => panic!("{other:?}"),
        });
        kinds.collect::<Vec<_>>()
    };
    let of_all = [
        // The first one gets the parts that any of them holds.
        vec!["lead true 1", "know", "do", "mark 2"],
        vec!["know", "mark 1", "lead false 2", "do"],
        vec!["mark 1", "do"],
    ];
    for (n, expected) in (0..).zip(of_all) {
        until(|| commands_to(n).len() >= expected.len(), "what is told");
        assert_eq!(commands_to(n), expected, "node {n}");
    }
}

#[test]
fn a_node_hears_which_message_did_not_get_through_unless_one_is_lost() {
    let mut p = Script::new(3).open();
    let step = (instance(0), 1);
    let undelivered = |to| NodeNotification::Undelivered {
        to: NodeId(to),
        step,
        why: "no route".into(),
    };
    p.session(0).sends(undelivered(1));
    let command = NodeCommand::Undelivered {
        from: NodeId(0),
        step,
        why: "no route".into(),
    };
    p.quiet("it is no event");
    p.session(1).receives(|t| *t == command);
    p.loses(1);
    assert!(matches!(
        p.event(),
        Event::NodeLost {
            node: NodeId(1),
            ..
        }
    ));
    for to in [0, 1, 77] {
        p.session(0).sends(undelivered(to));
    }
    p.session(0).sends(undelivered(2));
    p.quiet("it is no event");
    p.session(2).receives(|t| *t == command);
    let commands = p.session(0).commands.lock().unwrap().clone();
    assert_eq!(commands, [NodeCommand::NodeLost(NodeId(1))]);
}

#[test]
fn progress_of_nodes_is_shown_until_they_are_lost() {
    let mut p = Script::new(2).open();
    let progress = p.world().progress();
    let step = RunningStep {
        instance: instance(0),
        attempt: 1,
        phase: Phase::Running,
        elapsed: 5,
    };
    let (transfers, steps) = (Vec::new(), vec![step.clone()]);
    p.session(1)
        .sends(NodeNotification::Progress { transfers, steps });
    p.quiet("progress is no event");
    assert_eq!(progress.steps(), [step]);
    p.loses(1);
    p.event();
    assert!(progress.steps().is_empty());
}

#[test]
fn a_second_signal_kills_but_a_closed_terminal_does_not() {
    let mut p = Script::new(1).open();
    for signal in [15, 1] {
        p.home
            .lock()
            .unwrap()
            .events
            .push_back(Event::Interrupted { signal });
        assert_eq!(p.event(), Event::Interrupted { signal });
    }
    p.quiet("there is no third signal");
    assert!(p.session(0).commands.lock().unwrap().is_empty());
    p.home
        .lock()
        .unwrap()
        .events
        .push_back(Event::Interrupted { signal: 2 });
    assert_eq!(p.event(), Event::Interrupted { signal: 2 });
    p.session(0).receives(|t| *t == NodeCommand::KillAll);
}

#[test]
fn a_node_that_says_what_no_node_can_is_lost_and_what_nobody_ordered_is_not_heard() {
    let mut p = Script::new(2).open();
    p.session(0).happens(done(5, 1));
    p.session(0).happens(committed(instance(0), 1, Vec::new()));
    p.quiet("nobody ordered that");
    p.session(0).happens(Event::Capacity {
        tier_ref: tier_ref(0),
        bytes: 5,
    });
    assert!(matches!(p.event(), Event::Capacity { .. }));
    p.session(0).happens(Event::Capacity {
        tier_ref: tier_ref(1),
        bytes: 5,
    });
    assert!(matches!(
        p.event(),
        Event::NodeLost {
            node: NodeId(0),
            ..
        }
    ));
    p.session(1)
        .sends(NodeNotification::Broken("the disk is gone".into()));
    match p.event() {
        Event::NodeBack { .. } => assert!(matches!(p.event(), Event::NodeLost { .. })),
        other => assert!(format!("{other:?}").contains("the disk is gone")),
    }
}

/// Tier folders of the scripted cluster.
fn folder(n: u32, key: &str) -> PathBuf {
    PathBuf::from(format!("/tier/w/node{n}/parts/{key}"))
}

#[test]
fn answers_of_all_nodes_are_merged_and_a_node_lost_meanwhile_has_nothing() {
    let dead = Arc::new(AtomicBool::new(false));
    let is_dead = Arc::clone(&dead);
    let mut script = Script::new(3);
    script.answers = Arc::new(move |n, call| {
        if n == NodeId(2) && is_dead.load(Ordering::Relaxed) {
            return Some(NodeReply::Failed("it has no disk any more".into()));
        }
        match call {
            NodeRequest::Inventory(wanted) => {
                assert!(wanted.iter().all(|w| w.2 == at(n.0)));
                let first = wanted.first().map(|(p, _, at)| (*p, at.clone()));
                // And one that was not in its request.
                Some(NodeReply::Found(
                    first.into_iter().chain([(part(9), at(n.0))]).collect(),
                ))
            }
            NodeRequest::Clean(_) => Some(NodeReply::Cleaned(Cleaned {
                removed: vec![folder(n.0, "stale")],
                aside: [(tier_ref(0), 100 + u64::from(n.0))].into(),
                trouble: Vec::new(),
            })),
            NodeRequest::Exist(folders) => {
                let there = folders.iter().map(|f| f.ends_with("here"));
                Some(NodeReply::There(there.collect()))
            }
            _ => None,
        }
    });
    let mut p = script.open();
    let prior = PriorInstance {
        identity: Hash(1),
        outputs: Vec::new(),
        held: Vec::new(),
    };
    let there = (0..3).map(|n| (StoreKey(format!("k{n}")), at(n))).collect();
    let kept = [folder(1, "here")].into();
    p.world().offer(vec![prior], &there, &kept).unwrap();
    let offered = |call: &NodeRequest| match call {
        NodeRequest::Offer { there, .. } => there.iter().map(|(k, _)| k.0.clone()).collect(),
        _ => Vec::new(),
    };
    let called = p.session(1).called.lock().unwrap().clone();
    assert_eq!(called.iter().flat_map(offered).collect::<Vec<_>>(), ["k1"]);
    let key = |seq| info(seq, 0).key;
    let wanted = [
        (part(0), key(0), at(1)),
        (part(1), key(1), at(1)),
        (part(2), key(2), Place::Source),
        (part(3), key(3), at(0)),
    ];
    let found = p.world().inventory(&wanted).unwrap();
    let names: Vec<_> = found.iter().map(|(p, _)| p.seq).collect();
    assert_eq!(names, [0, 2, 3]);
    let keep = [(key(0), at(1)), (key(3), at(0))].into();
    let staying = Staying {
        keep,
        ..Staying::default()
    };
    let cleaned = p.world().clean(&staying).unwrap();
    assert_eq!(
        cleaned.removed.len(),
        4,
        "three nodes and home: {cleaned:?}"
    );
    assert_eq!(
        cleaned.aside,
        [(tier_ref(0), 100)].into(),
        "others cannot speak for node 0"
    );
    assert_eq!(p.home.lock().unwrap().cleaned.as_ref(), Some(&staying));
    let requests = p.session(0).called.lock().unwrap().clone();
    assert!(
        requests
            .iter()
            .any(|c| matches!(c, NodeRequest::Clean(s) if s.keep.len() == 1))
    );
    let folders = [
        folder(0, "here"),
        folder(1, "gone"),
        folder(7, "here"),
        "/ext/tarn-w/drained".into(),
        "/elsewhere".into(),
        folder(2, "here"),
    ];
    let there = p.world().exist(&folders).unwrap();
    let [yes, no] = [Some(true), Some(false)];
    assert_eq!(there, [yes, no, yes, yes, no, yes]);
    p.loses(2);
    let there = p.world().exist(&folders).unwrap();
    let nobody_looks = None;
    assert_eq!(there, [yes, no, yes, yes, no, nobody_looks]);
    let left = p.world().remove(&folders[3..]).unwrap();
    assert_eq!(left.len(), 3, "{left:?}");
    assert!(left[2].contains("node2 is lost"), "{left:?}");
    p.gets_back(2);
    while !matches!(p.event(), Event::NodeBack { .. }) {}
    dead.store(true, Ordering::Relaxed);
    let refused = p.world().inventory(&wanted).unwrap_err();
    assert!(refused.0.contains("node2: it has no disk"), "{refused}");
    p.loses(1);
    let left = p.world.unwrap().leave();
    assert!(left.iter().any(|l| l.contains("node1 is lost")), "{left:?}");
    assert_eq!(left.last().unwrap(), "home has left");
}

#[test]
fn a_node_hears_that_the_run_is_over_and_one_that_hangs_does_not_keep_it() {
    let mut p = Script::new(2).open();
    let (hangs, answers) = (p.session(0), p.session(1));
    hangs.is_stuck(true);
    p.perform(Do::Run(Box::new(run(0, &[0], &[]))));
    let since = Instant::now();
    drop(p.world);
    assert!(since.elapsed() < Duration::from_secs(8));
    assert!(hangs.over().is_some());
    let called = answers.called.lock().unwrap();
    assert_eq!(called.last(), Some(&NodeRequest::Close));
}

#[test]
fn why_steps_of_several_nodes_cannot_run_is_told_with_the_node() {
    let mut script = Script::new(2);
    script.answers = Arc::new(|n, call| match call {
        NodeRequest::Open(o) if n == NodeId(1) => {
            assert_eq!((o.node, o.peers.len()), (n, 2));
            Some(NodeReply::Opened {
                several: Some("no namespaces".into()),
                shared: Some("no FUSE".into()),
                images: None,
            })
        }
        _ => None,
    });
    let mut p = script.open();
    assert_eq!(
        p.world().multi_node(),
        Err(CapabilityError::new("node1: no namespaces"))
    );
    assert_eq!(
        p.world().one_namespace(),
        Err(CapabilityError::new("node1: no FUSE"))
    );
    let mut script = Script::new(2);
    script.answers = Arc::new(|n, call| match call {
        NodeRequest::Open(_) if n == NodeId(1) => Some(NodeReply::Failed("/tier is full".into())),
        _ => None,
    });
    let refused = script.open().world.err().expect("a refusal");
    assert_eq!(refused.0, "node node1: /tier is full");
}

/// The store takes four transfers at once in [`cluster_of`], whichever nodes make them.
#[test]
fn the_external_store_is_one_for_all_nodes() {
    let mut p = Script::new(3).open();
    let known: Vec<_> = (0..8).map(|n| (part(n), info(n, 1))).collect();
    p.world().know(known).unwrap();
    let order = |id: u64, to: u32, priority: u64| {
        let mut t = transfer(id, &[(id as u32, Place::Source)], at(to));
        t.priority = priority;
        Do::Transfer(t)
    };
    let (first, second) = (order(0, 0, 1), order(1, 0, 1));
    for what in [
        first.clone(),
        second.clone(),
        order(2, 1, 1),
        order(3, 1, 1),
    ] {
        p.perform(what);
    }
    // No more at once; between nodes as many as there are.
    let (late, urgent, doomed) = (order(4, 0, 1), order(5, 0, 9), order(6, 2, 5));
    let between = Do::Transfer(transfer(7, &[(0, at(1))], at(0)));
    for what in [&late, &urgent, &doomed, &between] {
        p.perform(what.clone());
    }
    let begun = [first, second, between];
    assert_eq!(p.session(0).orders(3), begun);
    // One that nobody has begun is abandoned at once.
    let abandon = |id| Do::Abandon { id: TransferId(id) };
    p.perform(abandon(6));
    assert_eq!(failure_of(&p.event()), RunErrorKind::Cancelled);
    // The most urgent comes next.
    p.session(1).happens(done(2, 1));
    assert_eq!(p.event(), done(2, 1));
    p.quiet("the other four go on");
    let begun = [&begun[..], &[urgent]].concat();
    assert_eq!(p.session(0).orders(4), begun);
    // With its node goes what had not begun.
    p.loses(0);
    let mut ended = Vec::new();
    while ended.len() < 5 {
        match p.event() {
            Event::NodeLost { .. } => {}
            Event::TransferFailed { id, failure, .. } => {
                assert_eq!(failure.kind, RunErrorKind::NodeLost);
                ended.push(id.0);
            }
            other => panic!("{other:?}"),
        }
    }
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 4, 5, 7]);
    assert!(
        p.session(2)
            .commands
            .lock()
            .unwrap()
            .iter()
            .all(|t| !matches!(t, NodeCommand::Do(_)))
    );
}

/// One rate is played for all: each has of it what it has of the streams.
#[test]
fn the_rate_of_the_external_store_is_that_of_all_nodes_together() {
    let mut script = Script::new(2);
    script.cluster.external.emulated = true;
    let mut p = script.open();
    let known: Vec<_> = (0..8).map(|n| (part(n), info(n, 1))).collect();
    p.world().know(known).unwrap();
    let read = |id: u64, to: u32| Do::Transfer(transfer(id, &[(id as u32, Place::Source)], at(to)));
    let paces = |session: &Session| {
        let commands = session.commands.lock().unwrap();
        let pace = |t: &NodeCommand| match t {
            NodeCommand::Pace { own, all } => Some((*own, *all)),
            _ => None,
        };
        commands.iter().filter_map(pace).collect::<Vec<_>>()
    };
    p.perform(read(0, 0));
    p.perform(read(1, 0));
    p.perform(read(2, 1));
    p.perform(Do::Transfer(transfer(
        3,
        &[(3, Place::Source)],
        Place::Drained,
    )));
    p.session(0).orders(2);
    p.session(1).orders(1);
    until(|| paces(&p.session(0)).len() == 4, "each change");
    assert_eq!(paces(&p.session(0)), [(1, 1), (2, 2), (2, 3), (2, 4)]);
    assert_eq!(paces(&p.session(1)), [(1, 3), (1, 4)]);
    assert_eq!(p.home.lock().unwrap().paced, [(1, 4)]);
    // It arrives before the order that it is for.
    let commands = p.session(1).commands.lock().unwrap().clone();
    let order = commands
        .iter()
        .position(|t| matches!(t, NodeCommand::Do(_)));
    let pace = commands
        .iter()
        .position(|t| matches!(t, NodeCommand::Pace { .. }));
    assert!(pace < order, "{commands:?}");
    for id in 0..2 {
        p.session(0).happens(done(id, 1));
        assert_eq!(p.event(), done(id, 1));
    }
    p.quiet("the others have more now");
    until(|| paces(&p.session(1)).last() == Some(&(1, 2)), "its share");
    assert_eq!(p.home.lock().unwrap().paced.last(), Some(&(1, 2)));
}

/// A file system that does not respond keeps a step from being begun, and the failure names it; other messages to the node
/// continue.
#[test]
fn a_step_whose_files_cannot_be_looked_at_is_not_begun() {
    let mut script = Script::new(1);
    script.timeout = 2000;
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    script.changed = Arc::new(move |step: StepId| {
        if step == StepId(1) {
            let _ = held.lock().unwrap().recv();
        }
        None
    });
    let mut p = script.open();
    let mut hangs = run(1, &[0], &[]);
    hangs.instance.step = StepId(1);
    p.perform(Do::Run(Box::new(hangs)));
    let good = Do::Run(Box::new(run(0, &[0], &[])));
    p.perform(good.clone());
    let event = p.event();
    assert_eq!(failure_of(&event), RunErrorKind::Launch);
    let text = format!("{event:?}");
    assert!(
        text.contains("has not answered for 2s") && text.contains("tarn resume"),
        "{text}"
    );
    assert_eq!(p.session(0).orders(1), [good]);
    drop(hold);
}

/// A run that is to stop does not wait for what hangs in a file system for ever.
#[test]
fn a_transfer_that_hangs_does_not_keep_a_run_that_is_to_stop() {
    let mut script = Script::new(1);
    script.timeout = 1500;
    let mut p = script.open();
    let known: Vec<_> = (0..2).map(|n| (part(n), info(n, 1))).collect();
    p.world().know(known).unwrap();
    p.perform(Do::Transfer(transfer(0, &[(0, Place::Source)], at(0))));
    p.perform(Do::Abandon { id: TransferId(0) });
    p.session(0).orders(2);
    // While the run continues, it is waited for: its destination is its own until it ends.
    std::thread::sleep(Duration::from_millis(2000));
    p.quiet("the run goes on");
    let signal = Event::Interrupted { signal: 15 };
    p.home.lock().unwrap().events.push_back(signal.clone());
    assert_eq!(p.event(), signal);
    let event = p.event();
    assert_eq!(failure_of(&event), RunErrorKind::Cancelled);
    assert!(
        format!("{event:?}").contains("does not answer"),
        "{event:?}"
    );
    // Should it end after all, there is no event.
    p.session(0).happens(done(0, 1));
    p.quiet("nothing is owed");
}

/// A run waits for space of dead runs no longer than on one machine; for space that another run may free it waits longer.
#[test]
fn a_run_that_waits_for_space_of_the_dead_says_so() {
    for (others, kept) in [(true, true), (false, true), (false, false)] {
        let mut script = Script::new(2);
        script.answers = Arc::new(move |node, call| match call {
            NodeRequest::Idle(Some(nanos)) => {
                assert!(*nanos >= 1_000_000_000);
                let first = node == NodeId(0);
                Some(NodeReply::Waits(SpaceWaitCause {
                    dead: (!kept && first).then(|| "dead runs hold it".into()),
                    kept: (kept && first).then(|| "it is kept".into()),
                    others: others && !first,
                }))
            }
            _ => None,
        });
        let mut p = script.open();
        let until = p.world().now() + 3_000_000_000;
        let next = p.world().next(Some(until));
        match (others, kept) {
            (true, _) => assert_eq!(next.unwrap().1, Event::Timer),
            (false, true) => assert_eq!(next.unwrap_err().0, "it is kept"),
            (false, false) => assert_eq!(next.unwrap_err().0, "dead runs hold it"),
        }
    }
}

fn io(id: u64) -> Event {
    let (kind, message) = (RunErrorKind::Io, "its store is silent".into());
    Event::TransferFailed {
        id: TransferId(id),
        failure: RunError { kind, message },
        damaged: None,
    }
}

#[test]
fn what_follows_a_copy_is_handed_out_when_that_has_begun_and_goes_with_it() {
    let mut p = Script::new(4).open();
    let known: Vec<_> = (0..3).map(|n| (part(n), info(n, 1))).collect();
    p.world().know(known).unwrap();
    let chain = |of: u32, ids: u64| {
        let order = |id, from, to| Do::Transfer(transfer(id, &[(of, from)], at(to)));
        [
            order(ids, Place::Source, 0),
            order(ids + 1, at(0), 1),
            order(ids + 2, at(1), 2),
        ]
    };
    let abandon = |id| Do::Abandon { id: TransferId(id) };
    let first = chain(0, 0);
    first.clone().into_iter().for_each(|o| p.perform(o));
    assert_eq!(p.session(0).orders(1), first[..1]);
    p.quiet("the others wait");
    // Only its performer can report that.
    p.session(3).sends(NodeNotification::Begun(TransferId(0)));
    p.session(0).sends(NodeNotification::Begun(TransferId(1)));
    p.quiet("nobody has begun");
    assert!(p.session(1).orders(0).is_empty());
    p.session(0).sends(NodeNotification::Begun(TransferId(0)));
    p.quiet("the second may begin");
    assert_eq!(p.session(1).orders(1), first[1..2]);
    // The second is whole before any report that it had begun.
    p.session(1).happens(done(1, 1));
    assert_eq!(p.event(), done(1, 1));
    p.quiet("the third may begin");
    assert_eq!(p.session(2).orders(1), first[2..]);
    // A copy that fails takes with it what waits for it to begin.
    chain(2, 6).into_iter().for_each(|o| p.perform(o));
    p.session(0).happens(io(6));
    let failed = [6, 7, 8].map(|id| (TransferId(id), p.event()));
    for (id, event) in failed {
        assert!(
            matches!(&event, Event::TransferFailed { id: of, failure, .. } if *of == id
                && (failure.kind == RunErrorKind::Cancelled || id == TransferId(6))),
            "{event:?}"
        );
    }
    // A transfer that nobody has begun is abandoned at once; its node abandons one that was handed out.
    let second = chain(1, 3);
    second.into_iter().for_each(|o| p.perform(o));
    p.perform(abandon(5));
    assert_eq!(failure_of(&p.event()), RunErrorKind::Cancelled);
    p.perform(abandon(3));
    assert_eq!(p.session(0).orders(4)[3], abandon(3));
    // With a node goes what was to follow its copy.
    p.loses(1);
    let ended = loop {
        if let Event::TransferFailed { id, failure, .. } = p.event() {
            assert_eq!(failure.kind, RunErrorKind::NodeLost);
            break id;
        }
    };
    assert_eq!(ended, TransferId(4));
    assert_eq!(p.session(2).orders(2)[1], abandon(2));
}
