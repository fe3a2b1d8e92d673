//! Steps of several nodes on this one machine.

use crate::Test;
use crate::bench::{
    Bench, committed, data, failed, held, namespaces_allowed, ranked, step, tier_ref, tree, used,
};
use crate::messages::{SUM, messages};
use std::collections::BTreeMap;
use tarn_node::Namespaces;
use tarn_types::action::NodeReplica;
use tarn_types::event::{Output, RunErrorKind};
use tarn_types::layout::TierDir;
use tarn_types::part::Place;
use tarn_types::workflow::{Dataset, DatasetUse, Distribution, Role, Step};

pub(crate) const TESTS: &[Test] = &[
    (
        "multi::without_namespaces_it_is_refused_with_the_reason",
        without_namespaces_it_is_refused,
    ),
    (
        "multi::nodes_have_one_path_and_their_own_names",
        nodes_have_one_path_and_their_own_names,
    ),
    (
        "multi::exec_passes_streams_status_and_directory",
        exec_passes_streams_status_and_directory,
    ),
    (
        "multi::a_scattered_tree_is_changed_and_merged",
        a_scattered_tree_is_changed_and_merged,
    ),
    (
        "multi::conflicting_files_fail_the_commit",
        conflicting_files_fail_the_commit,
    ),
    (
        "multi::broadcast_outputs_must_agree",
        broadcast_outputs_must_agree,
    ),
    ("multi::they_share_a_folder", they_share_a_folder),
    ("multi::mpirun_spans_the_nodes", mpirun_spans_the_nodes),
    (
        "multi::mpi_messages_cross_the_nodes",
        mpi_messages_cross_the_nodes,
    ),
    (
        "multi::what_exec_started_ends_with_the_step",
        what_exec_started_ends_with_the_step,
    ),
];

pub(crate) fn two(run: &str, uses: Vec<DatasetUse>) -> Step {
    Step {
        nodes: 2,
        tasks: 2,
        ..step(run, uses)
    }
}

fn bench(datasets: Vec<Dataset>, run: &str, uses: Vec<DatasetUse>) -> Option<Bench> {
    let mut bench = Bench::new(datasets, vec![two(run, uses)]);
    bench.nodes = 2;
    namespaces_allowed(&bench.world()).then_some(bench)
}

/// All files of an output, over all nodes, with the nodes that hold them.
pub(crate) fn whole(bench: &Bench, output: &Output) -> BTreeMap<String, (String, Vec<u32>)> {
    let mut all: BTreeMap<String, (String, Vec<u32>)> = BTreeMap::new();
    for (info, tier_refs) in &output.parts {
        for s in tier_refs {
            let part =
                TierDir::new(&bench.path("tier"), "ws", &format!("n{}", s.node.0)).part(&info.key);
            for (name, text) in tree(&part) {
                all.entry(name)
                    .or_insert((text, Vec::new()))
                    .1
                    .push(s.node.0);
            }
        }
    }
    all
}

fn without_namespaces_it_is_refused() {
    let mut bench = Bench::new(vec![], vec![two("true", vec![])]);
    bench.nodes = 2;
    bench.namespaces = Namespaces::Off;
    let mut world = bench.world();
    assert!(world.multi_node().is_err());
    world.begin(0, 1, &[0, 1], vec![]);
    let (kind, message, _) = failed(world.ended());
    assert_eq!(kind, RunErrorKind::Launch);
    assert!(message.contains("switched off"), "{message}");
}

fn nodes_have_one_path_and_their_own_names() {
    let run = "for n in n0 n1; do tarn_exec $n -- sh -c 'echo $TARN_NODE $(hostname) > $TARN_made/$TARN_NODE; echo $TARN_made'; done; cat $TARN_HOSTFILE";
    let run = run.replace("tarn_exec", "\"$HELPER\" exec");
    let uses = vec![used(0, Role::Out, Distribution::Scatter)];
    let Some(mut bench) = bench(vec![data("made")], &run, uses) else {
        return;
    };
    let exe = std::env::current_exe().unwrap().display().to_string();
    bench.workflow.steps[0].env.insert("HELPER".into(), exe);
    let mut world = bench.world();
    world.begin(0, 1, &[0, 1], vec![vec![]]);
    let outputs = committed(world.ended());
    let all = whole(&bench, &outputs[0]);
    let one = |n: u32| (format!("n{n}"), (format!("n{n} n{n}\n"), vec![n]));
    assert_eq!(all, [one(0), one(1)].into_iter().collect());
    let log = std::fs::read_to_string(bench.state().step_log("r1", "work-0", 1)).unwrap();
    let path = bench.path("tier/ws/at/made").display().to_string();
    assert_eq!(log, format!("{path}\n{path}\nn0 slots=1\nn1 slots=1\n"));
}

pub(crate) fn with_helper(bench: &mut Bench) {
    let exe = std::env::current_exe().unwrap().display().to_string();
    bench.workflow.steps[0].env.insert("HELPER".into(), exe);
}

/// On one machine a shared namespace is the first node's folder, for reading, making and changing.
fn they_share_a_folder() {
    let run = r#"set -e; echo first > $TARN_made/a
        "$HELPER" exec n1 -- sh -ec 'cat $TARN_seed/text $TARN_made/a > $TARN_made/b; mv $TARN_case/old $TARN_case/new
            ! touch $TARN_seed/no 2> /dev/null'
        test "$(cat $TARN_made/b | tr -d '\n')" = seedfirst; cat $TARN_case/new"#;
    let uses = vec![
        used(0, Role::In, Distribution::Shared),
        used(1, Role::Inout, Distribution::Shared),
        used(2, Role::Out, Distribution::Shared),
    ];
    let datasets = vec![data("seed"), data("case"), data("made")];
    let Some(mut bench) = bench(datasets, run, uses) else {
        return;
    };
    with_helper(&mut bench);
    bench.write("seed/text", "seed\n");
    bench.write("case/old", "case\n");
    for (number, name) in ["seed", "case"].into_iter().enumerate() {
        bench.workflow.data[number].source = Some(bench.path(name));
    }
    let mut world = bench.world();
    let mut views = Vec::new();
    for at in 0..2 {
        let infos = world.list(at).expect("a source");
        let to = Place::Node(tier_ref(0));
        world
            .transfer(at, 0, &infos, &Place::Source, &to)
            .expect("a transfer");
        views.push(vec![held(at, 0, &infos, 0), Vec::new()]);
    }
    views.push(Vec::new());
    world.begin(0, 1, &[0, 1], views);
    let outputs = committed(world.ended());
    let on_first = |text: &str| (text.to_owned(), vec![0]);
    let case = [("new".to_owned(), on_first("case\n"))];
    assert_eq!(whole(&bench, &outputs[0]), case.into_iter().collect());
    let made = [("a", "first\n"), ("b", "seed\nfirst\n")];
    let made = made.map(|(name, text)| (name.to_owned(), on_first(text)));
    assert_eq!(whole(&bench, &outputs[1]), made.into_iter().collect());
}

fn exec_passes_streams_status_and_directory() {
    let run = r#"
        set +e
        test "$(echo in | "$HELPER" exec n1 -- cat)" = in || exit 11
        "$HELPER" exec n1 -- sh -c 'exit 9'; test $? = 9 || exit 12
        "$HELPER" exec n1 -- sh -c 'kill -TERM $$'; test $? = 143 || exit 13
        "$HELPER" exec n1 -- pwd | grep -qx "$TARN_SCRATCH" || exit 14
        test "$("$HELPER" exec n1 echo a '$TARN_NODE;' echo b)" = "a n1
b" || exit 15
        "$HELPER" exec n7 -- true; test $? = 255 || exit 16
        "$HELPER" exec n1 -- /no/such/program; test $? = 127 || exit 17
        MINE=here "$HELPER" exec n1 -- sh -c 'test $MINE = here' || exit 18
        echo both > /tmp/of-0; "$HELPER" exec n0 -- grep -q both /tmp/of-0 || exit 30
        "$HELPER" exec n1 -- test -e /tmp/of-0 && exit 31
        echo own > scratch-of-0; "$HELPER" exec n1 -- ls scratch-of-0 && exit 19
        true"#;
    let Some(mut bench) = bench(vec![], run, vec![]) else {
        return;
    };
    with_helper(&mut bench);
    let mut world = bench.world();
    world.begin(0, 1, &[0, 1], vec![]);
    committed(world.ended());
}

fn a_scattered_tree_is_changed_and_merged() {
    let run = r#"for n in n0 n1; do "$HELPER" exec $n -- sh -c '
        r=${TARN_NODE#n}; cd $TARN_case; test ! -e p$((1-r)) || exit 1
        echo changed-$r > p$r/f; rm p$r/old; echo new-$r > made-$r; cat common'; done
        rm $TARN_case/gone"#;
    let uses = vec![used(0, Role::Inout, Distribution::Scatter)];
    let Some(mut bench) = bench(vec![ranked("case")], run, uses) else {
        return;
    };
    with_helper(&mut bench);
    for name in ["p0/f", "p1/f", "p0/old", "p1/old", "common", "gone"] {
        bench.write(&format!("raw/{name}"), name);
    }
    bench.workflow.data[0].source = Some(bench.path("raw"));
    let mut world = bench.world();
    let infos = world.list(0).unwrap();
    let mut views: Vec<Vec<NodeReplica>> = Vec::new();
    for node in 0..2 {
        // Common and its own rank; the classes sort ranks first.
        let own = [infos[node as usize].clone(), infos[2].clone()];
        world
            .transfer(0, 0, &own, &Place::Source, &Place::Node(tier_ref(node)))
            .unwrap();
        views.push(held(0, 0, &own, node));
    }
    world.begin(0, 1, &[0, 1], vec![views]);
    let outputs = committed(world.ended());
    let all = whole(&bench, &outputs[0]);
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
    assert_eq!(all, expected.collect());
}

fn conflicting_files_fail_the_commit() {
    let run = r#"echo a > $TARN_made/same; "$HELPER" exec n1 -- sh -c 'echo b > $TARN_made/same'"#;
    let uses = vec![used(0, Role::Out, Distribution::Scatter)];
    let Some(mut bench) = bench(vec![data("made")], run, uses) else {
        return;
    };
    with_helper(&mut bench);
    let mut world = bench.world();
    world.begin(0, 1, &[0, 1], vec![vec![]]);
    let (kind, message, _) = failed(world.ended());
    assert_eq!(kind, RunErrorKind::Conflict);
    assert!(
        message.contains("`same`") && message.contains("`n0`") && message.contains("`n1`"),
        "{message}"
    );
}

fn broadcast_outputs_must_agree() {
    for (text, agree) in [("a", true), ("b", false)] {
        let run = format!(
            r#"echo a > $TARN_made/f; "$HELPER" exec n1 -- sh -c 'echo {text} > $TARN_made/f'"#
        );
        let uses = vec![used(0, Role::Out, Distribution::Broadcast)];
        let Some(mut bench) = bench(vec![data("made")], &run, uses) else {
            return;
        };
        with_helper(&mut bench);
        let mut world = bench.world();
        world.begin(0, 1, &[0, 1], vec![vec![]]);
        let ended = world.ended();
        match agree {
            true => {
                let outputs = committed(ended);
                assert_eq!(
                    whole(&bench, &outputs[0])["f"],
                    ("a\n".to_owned(), vec![0, 1])
                );
            }
            false => assert_eq!(failed(ended).0, RunErrorKind::Conflict),
        }
    }
}

fn mpirun_spans_the_nodes() {
    if !std::path::Path::new("/usr/bin/mpirun").exists() {
        eprintln!("skipped: mpirun is not installed");
        return;
    }
    let run = "mpirun sh -c 'sleep 1; echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on $TARN_NODE $(hostname) > $TARN_made/$OMPI_COMM_WORLD_RANK'";
    let uses = vec![used(0, Role::Out, Distribution::Scatter)];
    let Some(mut bench) = bench(vec![data("made")], run, uses) else {
        return;
    };
    bench.workflow.steps[0].tasks = 4;
    bench.workflow.steps[0].time = Some(20 * tarn_types::units::SECOND);
    let mut world = bench.world();
    world.begin(0, 1, &[0, 1], vec![vec![]]);
    let outputs = committed(world.ended());
    let all = whole(&bench, &outputs[0]);
    let rank = |r: u32| {
        (
            r.to_string(),
            (format!("{r} of 4 on n{0} n{0}\n", r / 2), vec![r / 2]),
        )
    };
    assert_eq!(all, (0..4).map(rank).collect());
}

fn mpi_messages_cross_the_nodes() {
    let there = |p: &str| std::path::Path::new(p).exists();
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
    bench.workflow.steps[0].time = Some(30 * tarn_types::units::SECOND);
    let mut world = bench.world();
    world.begin(0, 1, &[0, 1], vec![vec![]]);
    let outputs = committed(world.ended());
    let all = whole(&bench, &outputs[0]);
    let rank = |r: u32| (r.to_string(), ("111".to_owned(), vec![r / 2]));
    assert_eq!(all, (0..3).map(rank).collect());
}

fn what_exec_started_ends_with_the_step() {
    let run = r#"
        "$HELPER" exec n1 -- sh -c 'while :; do echo > $TARN_WORKFLOW_DIR/beat; sleep 0.05; done' &
        while ! test -e $TARN_WORKFLOW_DIR/beat; do sleep 0.02; done"#;
    let Some(mut bench) = bench(vec![], run, vec![]) else {
        return;
    };
    with_helper(&mut bench);
    let mut world = bench.world();
    world.begin(0, 1, &[0, 1], vec![]);
    committed(world.ended());
    std::fs::remove_file(bench.path("beat")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(!bench.path("beat").exists());
}
