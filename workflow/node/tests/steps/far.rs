//! Steps over two nodes that two worlds own, which reach each other by messages only.

mod pair;

use crate::Test;
use crate::bench::{
    Bench, Machine, committed, data, failed, held, namespaces_allowed, ranked, tier_ref, tree, used,
};
use crate::messages::{SUM, messages};
use crate::multi::{two, whole, with_helper};
use crate::opened;
use pair::{Hooked, Pair};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tarn_ports::{MoverError, World};
use tarn_types::action::Do;
use tarn_types::cluster::Host;
use tarn_types::event::{AttemptOutcome, Event, RunErrorKind};
use tarn_types::id::{InstanceId, NodeId, StepId};
use tarn_types::layout::TierDir;
use tarn_types::nodes::{Phase, RunningStep};
use tarn_types::part::Place;
use tarn_types::units::SECOND;
use tarn_types::workflow::{Dataset, DatasetUse, Distribution, Role};

pub(crate) const TESTS: &[Test] = &[
    ("far::own_nodes_and_others_mix", mixed),
    ("far::a_scattered_tree_is_changed_and_merged", scattered),
    ("far::broadcast_outputs_must_agree", broadcast),
    ("far::conflicting_files_name_both_nodes", conflict),
    ("far::single_outputs_lie_on_the_first_node", single),
    ("far::glusterfs_gives_them_one_namespace", one_namespace),
    ("far::exec_passes_streams_status_and_paths", exec),
    ("far::exec_holds_back_who_writes_too_fast", flow),
    ("far::exec_ends_what_nobody_waits_for", gone),
    (
        "far::attack_clients_that_send_nothing_or_half_keep_nobody_waiting",
        quiet_clients,
    ),
    ("far::mpi_messages_cross_the_nodes", mpi),
    ("far::nodes_of_several_hosts_use_the_network", network),
    ("far::a_step_past_its_time_ends_on_both_nodes", time_limit),
    ("far::a_stopped_step_ends_on_both_nodes", stopped),
    ("far::hashing_at_the_mate_is_cancelled", cancelled),
    ("far::a_lost_mate_ends_the_attempt", mate_lost),
    (
        "far::nodes_that_do_not_reach_each_other_end_the_attempt",
        unreachable_follower,
    ),
    ("far::a_lost_leader_ends_it_at_the_mate", leader_lost),
    ("far::what_was_published_goes_with_the_leader", publishing),
    (
        "far::a_publish_that_fails_at_the_mate_is_taken_back",
        unpublished,
    ),
    ("far::a_missing_replica_at_the_mate_is_told", missing),
    ("far::a_damaged_replica_at_the_mate_is_told", damaged),
    ("far::a_mate_that_knows_nothing_says_so", unknown),
    ("far::a_world_that_ends_leaves_no_mate_waiting", ending),
];

fn bench(datasets: Vec<Dataset>, run: &str, uses: Vec<DatasetUse>) -> Option<Bench> {
    let mut bench = Bench::new(datasets, vec![two(run, uses)]);
    bench.nodes = 2;
    with_helper(&mut bench);
    namespaces_allowed(&bench.world()).then_some(bench)
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(folder).into_iter().flatten().flatten();
    found.map(|e| e.path()).collect()
}

/// No work folder and, where nothing was committed, no replica; and nobody has touched what is not his.
fn nothing_left(bench: &Bench, replicas: bool) {
    for node in ["n0", "n1"] {
        let dir = TierDir::new(&bench.path("tier"), "ws", node);
        assert_eq!(entries(&dir.work()), Vec::<PathBuf>::new(), "{node}");
        if !replicas {
            assert_eq!(entries(&dir.parts()), Vec::<PathBuf>::new(), "{node}");
        }
    }
    for other in ["elsewhere0", "elsewhere1"] {
        assert!(!bench.path(other).join("ws/n0").exists(), "{other}");
        assert!(!bench.path(other).join("ws/n1").exists(), "{other}");
    }
}

fn scattered() {
    let run = r#"for n in n0 n1; do "$HELPER" exec $n -- sh -c '
        r=${TARN_NODE#n}; cd $TARN_case; test ! -e p$((1-r)) || exit 1
        echo changed-$r > p$r/f; rm p$r/old; echo new-$r > made-$r; cat common'; done
        rm $TARN_case/gone"#;
    let uses = vec![used(0, Role::Inout, Distribution::Scatter)];
    let Some(mut bench) = bench(vec![ranked("case")], run, uses) else {
        return;
    };
    for name in ["p0/f", "p1/f", "p0/old", "p1/old", "common", "gone"] {
        bench.write(&format!("raw/{name}"), name);
    }
    bench.workflow.data[0].source = Some(bench.path("raw"));
    let mut pair = Pair::new(&bench);
    let views = pair.stage();
    pair.leader().begin(0, 1, &[0, 1], vec![views]);
    let outputs = committed(pair.ended());
    let expected = [
        ("common", "common", vec![0, 1]),
        ("made-0", "new-0\n", vec![0]),
        ("made-1", "new-1\n", vec![1]),
        ("p0/f", "changed-0\n", vec![0]),
        ("p1/f", "changed-1\n", vec![1]),
    ];
    let expected = expected
        .into_iter()
        .map(|(n, t, at)| (n.to_owned(), (t.to_owned(), at)));
    assert_eq!(whole(&bench, &outputs[0]), expected.collect());
    for (info, _) in &outputs[0].parts {
        assert!(info.stored > 0, "{info:?}");
    }
    nothing_left(&bench, true);
}

/// Whether this machine has what a shared namespace needs; its library is put beside this program.
fn glusterfs() -> bool {
    let exe = std::env::current_exe().expect("this program");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/brick.sh");
    let built = std::process::Command::new(script)
        .arg(exe.parent().expect("its folder"))
        .status();
    assert!(built.expect("brick.sh").success());
    match tarn_node::probe_shared(&exe) {
        Ok(()) => true,
        Err(why) => {
            eprintln!("SKIPPED: no shared namespace: {why}");
            false
        }
    }
}

fn one_namespace() {
    let run = r#"set -e; cd $TARN_made; cat $TARN_seed/deep/text
        for n in 1 2 3 4 5 6 7 8; do echo $n > f$n; done
        "$HELPER" exec n1 -- sh -ec 'cd $TARN_made; cat f1 f8; cat $TARN_seed/deep/text > copy; mv f2 moved; ln f3 hard; ln -s f4 soft
            ! touch $TARN_seed/no 2> /dev/null'
        test "$(cat copy)" = seed; cat moved soft hard; rm f3"#;
    let uses = vec![
        used(0, Role::In, Distribution::Shared),
        used(1, Role::Out, Distribution::Shared),
    ];
    let Some(mut bench) = bench(vec![data("seed"), data("made")], run, uses) else {
        return;
    };
    if !glusterfs() {
        return;
    }
    bench.write("raw/deep/text", "seed");
    bench.workflow.data[0].source = Some(bench.path("raw"));
    let mut pair = Pair::new(&bench);
    let infos = pair.leader().list(0).expect("a source");
    pair.bring(0, &infos);
    let views = vec![vec![held(0, 0, &infos, 0), Vec::new()], Vec::new()];
    pair.leader().begin(0, 1, &[0, 1], views);
    let outputs = committed(pair.ended());
    let all = whole(&bench, &outputs[0]);
    let names: Vec<&str> = all.keys().map(String::as_str).collect();
    let expected = [
        "copy", "f1", "f4", "f5", "f6", "f7", "f8", "hard", "moved", "soft",
    ];
    assert_eq!(names, expected);
    assert_eq!((&*all["copy"].0, &*all["hard"].0), ("seed", "3\n"));
    for (name, (_, at)) in &all {
        assert_eq!(at.len(), 1, "{name} lies whole on one node");
    }
    // By their names: that never changes.
    for node in [0, 1] {
        assert!(all.values().any(|(_, at)| *at == [node]), "{all:?}");
    }
    nothing_left(&bench, true);
}

fn broadcast() {
    for (text, agree) in [("a", true), ("b", false)] {
        let run = format!(
            r#"echo a > $TARN_made/f; "$HELPER" exec n1 -- sh -c 'echo {text} > $TARN_made/f'"#
        );
        let uses = vec![used(0, Role::Out, Distribution::Broadcast)];
        let Some(bench) = bench(vec![data("made")], &run, uses) else {
            return;
        };
        let mut pair = Pair::new(&bench);
        pair.leader().begin(0, 1, &[0, 1], vec![vec![]]);
        let ended = pair.ended();
        if !agree {
            assert_eq!(failed(ended).0, RunErrorKind::Conflict);
            nothing_left(&bench, false);
            continue;
        }
        let outputs = committed(ended);
        let all = whole(&bench, &outputs[0]);
        assert_eq!(all["f"], ("a\n".to_owned(), vec![0, 1]));
        nothing_left(&bench, true);
    }
}

fn conflict() {
    let run = r#"echo a > $TARN_made/same; "$HELPER" exec n1 -- sh -c 'echo b > $TARN_made/same'"#;
    let uses = vec![used(0, Role::Out, Distribution::Scatter)];
    let Some(bench) = bench(vec![data("made")], run, uses) else {
        return;
    };
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![vec![]]);
    let (kind, message, _) = failed(pair.ended());
    assert_eq!(kind, RunErrorKind::Conflict);
    for word in ["`same`", "`n0`", "`n1`"] {
        assert!(message.contains(word), "{message}");
    }
    nothing_left(&bench, false);
}

fn single() {
    // The follower spends time and leaves something; the sums have its parts.
    let run = r#"echo one > $TARN_made/f; echo x > left-0
        "$HELPER" exec n1 -- sh -c 'test -z "$(ls $TARN_made 2>/dev/null)" || exit 1
            echo yy > left-1; i=0; while test $i -lt 200000; do i=$((i+1)); done'"#;
    let uses = vec![used(0, Role::Out, Distribution::Single)];
    let Some(bench) = bench(vec![data("made")], run, uses) else {
        return;
    };
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![vec![]]);
    let (ended, usage) = pair.ended();
    assert!(usage.user > 20_000_000, "{usage:?}");
    let AttemptOutcome::Committed {
        outputs,
        undeclared,
    } = ended
    else {
        panic!("{ended:?}");
    };
    assert_eq!(outputs[0].parts[0].1, [tier_ref(0)]);
    assert_eq!((undeclared.files, undeclared.bytes), (2, 5));
    assert_eq!(undeclared.names, ["left-0", "left-1"]);
    nothing_left(&bench, true);
}

fn mixed() {
    let run = r#"for n in n0 n1 n2; do "$HELPER" exec $n -- sh -c '
        echo $TARN_NODE > $TARN_all/$TARN_NODE; echo same > $TARN_each/f; echo > left-$TARN_NODE'; done"#;
    for own in [[&[0, 1][..], &[2]], [&[0, 2], &[1]]] {
        let uses = vec![
            used(0, Role::Out, Distribution::Scatter),
            used(1, Role::Out, Distribution::Broadcast),
        ];
        let Some(mut bench) = bench(vec![data("all"), data("each")], run, uses) else {
            return;
        };
        bench.nodes = 3;
        bench.workflow.steps[0].nodes = 3;
        let mut pair = Pair::owning(&bench, [&bench.mover, &bench.mover], own);
        pair.leader().begin(0, 1, &[0, 1, 2], vec![vec![], vec![]]);
        let AttemptOutcome::Committed {
            outputs,
            undeclared,
        } = pair.ended().0
        else {
            panic!("it failed");
        };
        let one = |n: u32| (format!("n{n}"), (format!("n{n}\n"), vec![n]));
        assert_eq!(whole(&bench, &outputs[0]), (0..3).map(one).collect());
        let all = whole(&bench, &outputs[1]);
        assert_eq!(all["f"], ("same\n".to_owned(), vec![0, 1, 2]));
        assert_eq!(undeclared.names, ["left-n0", "left-n1", "left-n2"]);
        nothing_left(&bench, true);
    }
}

fn exec() {
    let run = r#"
        set +e
        test "$(echo in | "$HELPER" exec n1 -- cat)" = in || exit 11
        "$HELPER" exec n1 -- sh -c 'exit 9'; test $? = 9 || exit 12
        "$HELPER" exec n1 -- sh -c 'kill -TERM $$'; test $? = 143 || exit 13
        "$HELPER" exec n1 -- pwd | grep -qx "$TARN_SCRATCH" || exit 14
        test "$("$HELPER" exec n1 echo a '$TARN_NODE;' hostname)" = "a n1
n1" || exit 15
        "$HELPER" exec n7 -- true; test $? = 255 || exit 16
        "$HELPER" exec n1 -- /no/such/program; test $? = 127 || exit 17
        MINE=here "$HELPER" exec n1 -- sh -c 'test $MINE = here' || exit 18
        echo own > scratch-of-0; "$HELPER" exec n1 -- ls scratch-of-0 && exit 19
        "$HELPER" exec n1 -- sh -c 'cat $TARN_HOSTFILE; echo $TARN_HOSTFILE' > hosts || exit 20
        grep -q 'n1 slots=1' hosts && grep -q ws/n1/work hosts || exit 21
        test "$("$HELPER" exec n1 -- sh -c 'echo out; echo err >&2' 2>&1 >/dev/null)" = err || exit 22
        test "$("$HELPER" exec n1 -- sh -c '"$HELPER" exec n1 -- echo self')" = self || exit 23
        for i in 1 2 3 4 5 6 7 8; do "$HELPER" exec n1 -- echo $i & done > many; wait
        test $(sort many | tr -d '\n') = 12345678 || exit 24
        true"#;
    let Some(bench) = bench(vec![], run, vec![]) else {
        return;
    };
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![]);
    committed(pair.ended());
}

fn flow() {
    // Both ways at once, far more than a window; a reader that closes early, and a writer that continues, get to know it.
    let run = r#"
        set +o pipefail
        head -c 30000000 /dev/urandom > big
        "$HELPER" exec n1 -- cat < big | cmp - big || exit 11
        test $("$HELPER" exec n1 -- yes | head -c 300000 | wc -c) = 300000 || exit 12
        yes | "$HELPER" exec n1 -- head -c 10 | wc -c | grep -qx 10 || exit 13
        "$HELPER" exec n1 -- sh -c 'head -c 5000000 /dev/zero; sleep 0.2; echo end >&2' 2> last | (sleep 0.3; wc -c) | grep -qx 5000000 || exit 14
        grep -qx end last || exit 15
        "$HELPER" exec n1 -- sh -c '(sleep 0.3; echo late) & echo early' > both
        until test "$(tr '\n' ' ' < both)" = "early late "; do sleep 0.02; done"#;
    let Some(bench) = bench(vec![], run, vec![]) else {
        return;
    };
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![]);
    committed(pair.ended());
}

/// At the socket of a node of another world, which this one serves.
fn quiet_clients() {
    let Some(bench) = bench(vec![], opened::RUN, vec![]) else {
        return;
    };
    let program = format!("{}\n{}", opened::CLIENT, opened::SILENT);
    bench.write("attack.py", &program);
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![]);
    committed(pair.ended());
}

fn gone() {
    let run = r#"
        "$HELPER" exec n1 -- sh -c 'trap "echo told > $TARN_WORKFLOW_DIR/told; exit" TERM; echo up; while :; do sleep 0.05; done' > up &
        while ! test -s up; do sleep 0.02; done
        kill -9 $!
        while ! test -e $TARN_WORKFLOW_DIR/told; do sleep 0.02; done
        "$HELPER" exec n1 -- sh -c 'while :; do echo > $TARN_WORKFLOW_DIR/beat; sleep 0.05; done' &
        while ! test -e $TARN_WORKFLOW_DIR/beat; do sleep 0.02; done"#;
    let Some(bench) = bench(vec![], run, vec![]) else {
        return;
    };
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![]);
    committed(pair.ended());
    silent(&bench);
}

fn mpi() {
    let there = |p: &str| Path::new(p).exists();
    if !there("/usr/bin/mpirun") || !there("/usr/bin/python3") {
        eprintln!("skipped: mpirun or python3 is not installed");
        return;
    }
    let uses = vec![used(0, Role::Out, Distribution::Scatter)];
    let run = messages().to_owned() + "mpirun /usr/bin/python3 $TARN_WORKFLOW_DIR/sum.py";
    let Some(mut bench) = bench(vec![data("made")], &run, uses) else {
        return;
    };
    bench.write("sum.py", SUM);
    bench.workflow.steps[0].tasks = 3;
    bench.workflow.steps[0].time = Some(20 * SECOND);
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![vec![]]);
    let outputs = committed(pair.ended());
    let rank = |r: u32| (r.to_string(), ("111".to_owned(), vec![r / 2]));
    assert_eq!(
        whole(&bench, &outputs[0]),
        (0..3).map(rank).collect::<BTreeMap<_, _>>()
    );
}

fn network() {
    let run = "env | grep -c OMPI_MCA_..._tcp_if_include || true";
    for (hosts, expected) in [(1, "2\n"), (2, "0\n")] {
        let Some(bench) = bench(vec![], run, vec![]) else {
            return;
        };
        let mut config = bench.config("ws");
        let host = Host {
            name: "h1".into(),
            ..config.cluster.hosts[0].clone()
        };
        config.cluster.hosts.push(host);
        config.cluster.nodes[1].host = hosts - 1;
        let mut world = Machine::new(config);
        world.begin(0, 1, &[0, 1], vec![]);
        committed(world.ended());
        let log = bench.state().step_log("r1", "work-0", 1);
        assert_eq!(std::fs::read_to_string(log).unwrap(), expected);
    }
}

/// Something that runs on both nodes, and shows on the second again and again that it does.
const LONG: &str =
    r#""$HELPER" exec n1 -- sh -c 'while :; do echo > $TARN_WORKFLOW_DIR/beat; sleep 0.05; done'"#;

/// No process runs any more that would show it.
fn silent(bench: &Bench) {
    std::fs::remove_file(bench.path("beat")).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(!bench.path("beat").exists());
}

fn time_limit() {
    let Some(mut bench) = bench(vec![], LONG, vec![]) else {
        return;
    };
    bench.workflow.steps[0].time = Some(3 * SECOND);
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![]);
    assert_eq!(failed(pair.ended()).0, RunErrorKind::TimedOut);
    nothing_left(&bench, false);
    silent(&bench);
}

fn stop() -> Do {
    let step = StepId(0);
    let instance = InstanceId { step, index: 0 };
    Do::Stop {
        instance,
        attempt: 1,
    }
}

fn stopped() {
    let Some(bench) = bench(vec![], LONG, vec![]) else {
        return;
    };
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![]);
    pair.there(&bench.path("beat"));
    let begun = Instant::now();
    pair.leader().perform(stop());
    assert_eq!(failed(pair.ended()).0, RunErrorKind::Cancelled);
    assert!(begun.elapsed() < tarn_node::GRACE, "it was asked first");
    nothing_left(&bench, false);
    silent(&bench);
}

fn mate_lost() {
    let Some(bench) = bench(vec![], LONG, vec![]) else {
        return;
    };
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![]);
    pair.there(&bench.path("beat"));
    pair.part();
    let (kind, message, _) = failed(pair.ended());
    assert_eq!(kind, RunErrorKind::NodeLost);
    assert!(message.contains("`n1`"), "{message}");
    pair.follower = None;
    nothing_left(&bench, false);
    silent(&bench);
}

fn unreachable_follower() {
    let Some(bench) = bench(vec![], LONG, vec![]) else {
        return;
    };
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![]);
    pair.there(&bench.path("beat"));
    // No message of either gets through any more. About another attempt, or of a node without a part in it, it is no news.
    pair.cut.store(true, Ordering::SeqCst);
    let instance = InstanceId {
        step: StepId(0),
        index: 0,
    };
    let step = (instance, 1);
    let leader = &mut pair.leader().local;
    leader.undelivered(NodeId(1), (instance, 2), "not this one");
    leader.undelivered(NodeId(7), step, "nor this one");
    let follower = &mut pair.follower().local;
    follower.undelivered(NodeId(1), step, "nor this one");
    let why = "node n1 could not give node n0 a message";
    pair.leader().local.undelivered(NodeId(1), step, why);
    let (kind, message, _) = failed(pair.ended());
    assert_eq!(kind, RunErrorKind::Io, "{message}");
    assert!(message.ends_with(why), "{message}");
    pair.follower().local.undelivered(NodeId(0), step, why);
    let work = TierDir::new(&bench.path("tier"), "ws", "n1").work();
    pair.until(|_| entries(&work).is_empty().then_some(()));
    silent(&bench);
}

fn leader_lost() {
    let Some(bench) = bench(vec![], LONG, vec![]) else {
        return;
    };
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![]);
    pair.there(&bench.path("beat"));
    // As a machine that loses its power: no message of it comes any more.
    pair.cut.store(true, Ordering::SeqCst);
    pair.follower().local.lose_node(NodeId(0));
    let work = TierDir::new(&bench.path("tier"), "ws", "n1").work();
    pair.until(|_| entries(&work).is_empty().then_some(()));
    silent(&bench);
    // It is free for others meanwhile.
    pair.follower().begin(0, 2, &[1], vec![]);
    let ended = pair.until(|p| Some(p.follower().local.poll()?.1));
    assert!(matches!(ended, Event::Ended { .. }), "{ended:?}");
}

/// A step with two outputs, each of both nodes.
fn two_outputs() -> Option<Bench> {
    let run = r#"for n in n0 n1; do "$HELPER" exec $n -- sh -c '
        echo $TARN_NODE > $TARN_one/$TARN_NODE; echo $TARN_NODE > $TARN_two/$TARN_NODE'; done"#;
    let out = |at| used(at, Role::Out, Distribution::Scatter);
    bench(vec![data("one"), data("two")], run, vec![out(0), out(1)])
}

fn publishing() {
    let Some(bench) = two_outputs() else { return };
    // The leader hangs before it publishes its part of the second output.
    let (reached, goes_on) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (reach, go_on) = (Arc::clone(&reached), Arc::clone(&goes_on));
    let hanging = Hooked::mover(move |n| {
        reach.store(n == 1, Ordering::SeqCst);
        while n == 1 && !go_on.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    });
    let mut pair = Pair::with(&bench, [&hanging, &bench.mover]);
    pair.leader().begin(0, 1, &[0, 1], vec![vec![], vec![]]);
    pair.until(|_| reached.load(Ordering::SeqCst).then_some(()));
    let parts = TierDir::new(&bench.path("tier"), "ws", "n1").parts();
    // The follower has published both.
    pair.until(|_| (entries(&parts).len() == 2).then_some(()));
    pair.part();
    pair.until(|_| entries(&parts).is_empty().then_some(()));
    goes_on.store(true, Ordering::SeqCst);
    assert_eq!(failed(pair.ended()).0, RunErrorKind::NodeLost);
    pair.follower = None;
    nothing_left(&bench, false);
    let manifests = entries(&bench.state().manifests("ws"));
    assert_eq!(manifests, Vec::<PathBuf>::new());
}

fn cancelled() {
    let Some(bench) = two_outputs() else { return };
    let slow = Hooked::slow();
    let mut pair = Pair::with(&bench, [&bench.mover, &slow]);
    pair.leader().begin(0, 1, &[0, 1], vec![vec![], vec![]]);
    let progress = pair.leader().progress();
    let committing = |s: &RunningStep| s.phase == Phase::Committing;
    pair.until(|_| progress.steps().iter().any(committing).then_some(()));
    std::thread::sleep(Duration::from_millis(100));
    let begun = Instant::now();
    pair.leader().perform(stop());
    let (kind, message, _) = failed(pair.ended());
    assert_eq!(kind, RunErrorKind::Cancelled, "{message}");
    assert!(begun.elapsed() < Duration::from_secs(5));
    nothing_left(&bench, false);
}

fn unpublished() {
    let Some(bench) = two_outputs() else { return };
    let broken = Hooked::mover(|n| match n {
        0 => Ok(()),
        _ => Err(MoverError::new(RunErrorKind::Io, "the disk is broken")),
    });
    let mut pair = Pair::with(&bench, [&bench.mover, &broken]);
    pair.leader().begin(0, 1, &[0, 1], vec![vec![], vec![]]);
    let (kind, message, _) = failed(pair.ended());
    assert_eq!(kind, RunErrorKind::Io);
    assert!(
        message.contains("on node `n1`: the disk is broken"),
        "{message}"
    );
    nothing_left(&bench, false);
    let manifests = entries(&bench.state().manifests("ws"));
    assert_eq!(manifests, Vec::<PathBuf>::new());
}

/// A step that reads a dataset whose ranks lie on their nodes.
fn reading(run: &str) -> Option<Bench> {
    let uses = vec![used(0, Role::In, Distribution::Scatter)];
    let mut bench = bench(vec![ranked("case")], run, uses)?;
    for name in ["p0/f", "p1/f", "common"] {
        bench.write(&format!("raw/{name}"), name);
    }
    bench.workflow.data[0].source = Some(bench.path("raw"));
    Some(bench)
}

fn damaged() {
    let run = r#"touch $TARN_WORKFLOW_DIR/up
        while ! test -e $TARN_WORKFLOW_DIR/go; do sleep 0.02; done; exit 3"#;
    let Some(bench) = reading(run) else { return };
    let mut pair = Pair::new(&bench);
    let views = pair.stage();
    let damaged = views[1][0].clone();
    pair.leader().begin(0, 1, &[0, 1], vec![views]);
    pair.there(&bench.path("up"));
    let replica = TierDir::new(&bench.path("tier"), "ws", "n1").part(&damaged.key);
    std::fs::write(replica.join("p1/f"), "something else").unwrap();
    bench.write("go", "");
    let (kind, message, _) = failed(pair.ended());
    assert_eq!(kind, RunErrorKind::Corrupt, "{message}");
    assert!(message.contains("`case` (p1/f)"), "{message}");
    assert!(!replica.exists());
    let gone = Event::Evicted {
        part: damaged.part,
        at: Place::Node(tier_ref(1)),
    };
    assert_eq!(pair.events, [gone]);
}

fn missing() {
    let Some(bench) = reading("true") else { return };
    let mut pair = Pair::new(&bench);
    let views = pair.stage();
    let damaged = views[1][0].clone();
    let replica = TierDir::new(&bench.path("tier"), "ws", "n1").part(&damaged.key);
    assert_eq!(tree(&replica).len(), 1);
    std::fs::remove_dir_all(replica).unwrap();
    pair.leader().begin(0, 1, &[0, 1], vec![views]);
    let (kind, message, _) = failed(pair.ended());
    assert_eq!(kind, RunErrorKind::Corrupt, "{message}");
    let gone = Event::Evicted {
        part: damaged.part,
        at: Place::Node(tier_ref(1)),
    };
    // By the leader, and before the attempt's end.
    assert_eq!(pair.events, [gone]);
}

fn unknown() {
    let Some(bench) = bench(vec![], "true", vec![]) else {
        return;
    };
    let mut pair = Pair::new(&bench);
    // The follower is one that was started again in the middle.
    pair.leader().begin(0, 1, &[0, 1], vec![]);
    let (from, _, step, begin) = pair.letters.recv().unwrap();
    assert!(String::from_utf8_lossy(&begin).contains("Begin"));
    assert_eq!(failed(pair.ended()).0, RunErrorKind::NodeLost);
    // Garbage, and what was never begun here.
    for text in ["", "{}", "\n\n", r#"{"at":7,"say":"Gone","sizes":[9]}"#] {
        pair.follower().local.follower(from, step, text.as_bytes());
        pair.leader()
            .local
            .follower(NodeId(1), step, text.as_bytes());
    }
    pair.follower().local.follower(from, step, &begin);
    pair.follower().local.follower(from, step, &begin);
    pair.leader().begin(0, 2, &[0, 1], vec![]);
    committed(pair.ended());
}

fn ending() {
    for leader in [true, false] {
        let Some(bench) = bench(vec![], LONG, vec![]) else {
            return;
        };
        let mut pair = Pair::new(&bench);
        pair.leader().begin(0, 1, &[0, 1], vec![]);
        pair.there(&bench.path("beat"));
        let begun = Instant::now();
        match leader {
            true => pair.leader = None,
            false => pair.follower = None,
        }
        assert!(begun.elapsed() < Duration::from_secs(4));
        let node = if leader { "n0" } else { "n1" };
        let work = TierDir::new(&bench.path("tier"), "ws", node).work();
        assert_eq!(entries(&work), Vec::<PathBuf>::new());
        // The leader's last message is enough for the follower.
        if leader {
            let work = TierDir::new(&bench.path("tier"), "ws", "n1").work();
            pair.until(|_| entries(&work).is_empty().then_some(()));
        }
    }
}
