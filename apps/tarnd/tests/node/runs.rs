//! The requests of a run to a node, from the first to the last.

use crate::Test;
use crate::bed::*;
use rustix::process::Resource;
use tarn_proto::node::{NodeCommand, NodeNotification, NodeReply, NodeRequest, VERSION};
use tarn_types::event::{AttemptOutcome, Event, RunErrorKind};
use tarn_types::nodes::{PathAppearance, Phase, Staying};
use tarn_types::part::Place;

pub(crate) const TESTS: &[Test] = &[
    ("runs::a_run_of_one_node", a_run_of_one_node),
    (
        "runs::progress_is_told_while_something_goes_on",
        progress_is_reported,
    ),
    (
        "runs::a_step_that_does_not_listen_is_killed",
        a_step_is_killed,
    ),
    (
        "runs::what_cannot_work_is_said_first",
        what_cannot_work_is_said_first,
    ),
    ("runs::a_broken_world_says_so", a_broken_world_says_so),
];

fn a_run_of_one_node() {
    let bed = Bed::make();
    let mut node = bed.start("n1", &[]);
    let client = bed.connect(&node.started);
    let node_config = bed.node_config(&[(&node, &client)], 0);
    let [only] = &node_config.cluster.nodes[..] else {
        panic!("{:?}", node_config.cluster);
    };
    assert_eq!((&*only.name, only.tiers[0].capacity), ("n1", 64 << 20));
    assert!(only.cores > 0 && only.tiers[0].read > 0 && node_config.cluster.hosts[0].name == "n1");
    assert!(
        bed.state().0.join("hosts/n1/machine.json").is_file(),
        "measured once a node"
    );
    let early = client.failed(NodeRequest::Exist(vec![]));
    assert!(early.contains("not been opened"), "{early}");
    client.open(node_config.clone());
    let again = client.failed(NodeRequest::Open(Box::new(node_config)));
    assert!(again.contains("already"), "{again}");
    client.clean(Staying::default());
    let made = client.run(MAKES, 0);
    let replica = bed.tier("n1").part(&made.key);
    assert_eq!(
        std::fs::read_to_string(replica.join("d/f")).unwrap(),
        "hello\n"
    );
    // State is shared: logs and manifests are where every run has them.
    let log = bed.state().step_log(RUN, "s0-0", 1);
    assert!(
        std::fs::read_to_string(&log).unwrap().contains("said"),
        "{}",
        log.display()
    );
    assert!(bed.state().manifest(WORKSPACE, &made.key).is_file());
    let there = NodeRequest::Exist(vec![replica.clone(), bed.path("none")]);
    assert_eq!(client.call(there), NodeReply::There(vec![true, false]));
    let at = Place::Node(tier_ref(0));
    let wanted = NodeRequest::Inventory(vec![(part(MAKES), made.key.clone(), at.clone())]);
    assert_eq!(
        client.call(wanted),
        NodeReply::Found(vec![(part(MAKES), at)])
    );
    assert_eq!(client.call(NodeRequest::Leave), NodeReply::Left(vec![]));
    assert!(replica.is_dir(), "what a run has made stays");
    let left = client.failed(NodeRequest::Exist(vec![]));
    assert!(left.contains("left this node"), "{left}");
    assert_eq!(client.call(NodeRequest::Close), NodeReply::Done);
    drop(client);
    assert!(node.ended().success());
}

fn progress_is_reported() {
    let bed = Bed::make();
    let node = bed.start("n1", &[]);
    let client = bed.opened(&node);
    client.begin(BEATS, 1, 0);
    let steps = loop {
        match client.next_notification() {
            Some(NodeNotification::Progress { steps, .. }) if !steps.is_empty() => break steps,
            Some(
                NodeNotification::Progress { .. } | NodeNotification::Event(Event::Capacity { .. }),
            ) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((steps[0].instance.step.0, steps[0].attempt), (BEATS, 1));
    assert!(matches!(steps[0].phase, Phase::Preparing | Phase::Running));
    client.send_command(NodeCommand::KillAll);
    assert!(matches!(client.event(), Event::Ended { .. }));
    // Once more, because nothing is in progress.
    loop {
        match client.next_notification() {
            Some(NodeNotification::Progress { transfers, steps }) if steps.is_empty() => {
                assert!(transfers.is_empty());
                return;
            }
            Some(
                NodeNotification::Progress { .. } | NodeNotification::Event(Event::Capacity { .. }),
            ) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn a_step_is_killed() {
    let bed = Bed::make();
    let node = bed.start("n1", &[]);
    let client = bed.opened(&node);
    client.begin(BEATS, 1, 0);
    bed.wait_for_beats();
    let began = std::time::Instant::now();
    client.send_command(NodeCommand::KillAll);
    match client.event() {
        Event::Ended {
            ended: AttemptOutcome::Failed { failure, .. },
            ..
        } => assert_eq!(failure.kind, RunErrorKind::Cancelled, "{}", failure.message),
        other => panic!("{other:?}"),
    }
    assert!(began.elapsed() < tarn_node::GRACE, "it was not asked first");
    bed.wait_for_silence();
}

/// Version, how the state folder looks, and tiers.
type RequestFields<'a> = (&'a mut u32, &'a mut PathAppearance, &'a mut Vec<String>);

fn what_cannot_work_is_said_first() {
    let bed = Bed::make();
    let node = bed.start("n1", &[]);
    let client = bed.connect(&node.started);
    let with = |change: &dyn Fn(RequestFields<'_>)| {
        let mut call = bed.measure("n1");
        if let NodeRequest::Measure {
            version,
            sights,
            tiers,
            ..
        } = &mut call
        {
            change((version, &mut sights[0].look, tiers));
        }
        client.failed(call)
    };
    let why = with(&|(version, _, _)| *version = VERSION + 1);
    for version in [VERSION, VERSION + 1] {
        assert!(why.contains(&format!("version {version}")), "{why}");
    }
    let word = |name: &str, word: &str| PathAppearance::Word {
        name: name.into(),
        word: word.into(),
    };
    let why = with(&|(_, look, _)| *look = word("nonce", "another"));
    assert!(
        why.contains("another content") && why.contains("all nodes mount"),
        "{why}"
    );
    let why = with(&|(_, look, _)| *look = word("none", "another"));
    assert!(
        why.contains("none") && why.contains("all nodes mount"),
        "{why}"
    );
    let why = with(&|(_, _, tiers)| *tiers = vec!["t=relative".into()]);
    assert!(why.contains("t=relative"), "{why}");
    // A world that cannot be made is none; the next one may be.
    let node_config = bed.node_config(&[(&node, &client)], 0);
    let mut wrong = node_config.clone();
    wrong.cluster.nodes[0].tiers[0].root = bed.path("state/nonce");
    let why = client.failed(NodeRequest::Open(Box::new(wrong)));
    assert!(why.contains("state/nonce"), "{why}");
    client.open(node_config);
    std::fs::remove_file(bed.path("bin/tarn")).unwrap();
    let why = client.failed(bed.measure("n1"));
    assert!(
        why.contains("bin/tarn") && why.contains("in one folder"),
        "{why}"
    );
}

fn a_broken_world_says_so() {
    let bed = Bed::make();
    let node = bed.start("n1", &[]);
    let client = bed.opened(&node);
    client.begin(BEATS, 1, 0);
    bed.wait_for_beats();
    let pid = rustix::process::Pid::from_raw(node.pid().cast_signed());
    let limit = |current| {
        let mut limit = rustix::process::getrlimit(Resource::Nofile);
        limit.current = Some(current);
        rustix::process::prlimit(pid, Resource::Nofile, limit)
            .unwrap()
            .current
    };
    // No descriptor is left for another step.
    let before = limit(3).unwrap();
    client.begin(MAKES, 1, 0);
    let why = loop {
        match client.next_notification() {
            Some(NodeNotification::Broken(why)) => break why,
            Some(
                NodeNotification::Progress { .. } | NodeNotification::Event(Event::Capacity { .. }),
            ) => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(why.contains("cannot start a step"), "{why}");
    bed.wait_for_silence();
    let after = client.failed(NodeRequest::Exist(vec![]));
    assert_eq!(after, why);
    limit(before);
    drop(client);
    let client = bed.opened(&node);
    client.run(MAKES, 0);
}
