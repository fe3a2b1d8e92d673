//! `shared` over two nodes of a real Slurm: GlusterFS that an ordinary user's run starts and ends, MPI-IO on it, and its bad days.

use std::process::Command;
use std::time::Duration;
use tarn_tests::fixture::{self, Fixture};
use tarn_tests::slurm::{Cluster, Node, run_for_output, wait_until};
use tarn_tests::tree;

const SOON: Duration = Duration::from_secs(120);
const RUN: &str = "tarn run --tier scm=/scm/$USER:96MiB wf.toml";

/// A cluster with tarn and all that `shared` needs, or a reason on stderr why there is none.
fn cluster(nodes: usize, programs_too: &[&str]) -> Option<Cluster> {
    for program in [&["glusterfsd"], programs_too].concat() {
        let known = format!("PATH=$PATH:/usr/sbin command -v {program}");
        let found = Command::new("sh")
            .args(["-c", &known])
            .output()
            .expect("sh");
        if !found.status.success() {
            eprintln!("SKIPPED: no {program} here: scripts/deps.sh test installs it");
            return None;
        }
    }
    let cluster = fixture::cluster(nodes, &["tarn", "tarnd"], &["fuse"], &[])?;
    let mut build = Command::new(tree::root().join("scripts/brick.sh"));
    run_for_output(build.arg(cluster.shared().join("bin"))).unwrap_or_else(|e| panic!("{e:#}"));
    Some(cluster)
}

fn on(node: &Node<'_>, script: &str) -> String {
    let output = node.exec("root", &["bash", "-c", script]);
    output.unwrap_or_else(|e| panic!("{e:#}")).trim().to_owned()
}

/// Neither a process nor a file of the file system is left on these nodes.
fn nothing_left(cluster: &Cluster, nodes: &[usize]) {
    for n in nodes {
        let node = cluster.node(*n);
        let gone = || on(&node, "pgrep -x 'glusterfsd?' || true").is_empty();
        wait_until("the end of GlusterFS", SOON, gone).unwrap_or_else(|e| panic!("{e:#}"));
        // Those of this machine are seen on its nodes as well.
        let ours = r#"awk '$3 == "fuse.glusterfs" && $2 ~ "^/scm/"' /proc/mounts"#;
        assert_eq!(on(&node, ours), "");
        assert_eq!(
            on(&node, "find /scm -path '*/wor[k]/*' -o -name '.glusterfs'"),
            ""
        );
    }
}

/// Three steps: one node makes the first content of the namespace, two write and read in it, one compares.
const WAVES: &str = r#"
name = "waves"

[data.raw]
source = "in"
[data.start]
[data.field]
size = "24 MiB"
[data.report]
dest = "out"

[[step]]
name = "fill"
run = """cp -a $TARN_raw/. $TARN_start/; cd $TARN_start
mkdir -p deep/er empty; seq 100000 > deep/er/numbers; ln -s deep/er/numbers link; ln deep/er/numbers twice
for n in 1 2 3 4 5 6 7 8; do echo $n > f$n; done; setfattr -n user.mine -v yes f1; chmod 640 f2"""
in = ["raw"]
out = ["start"]

[[step]]
name = "solve"
nodes = 2
tasks = 4
run = """set -e
cd $TARN_start; test "$(cat link | md5sum)" = "$(seq 100000 | md5sum)"; ! touch $TARN_start/no 2> /dev/null
cp -a $TARN_start/. $TARN_field/copy
for n in 1 2 3 4 5 6 7 8 9; do echo $n > $TARN_field/n$n; done
set -- $(cut -d ' ' -f 1 $TARN_HOSTFILE)
tarn exec $2 -- sh -ec 'cd $TARN_field; test "$(cat n9)" = 9; mv n1 moved; ln n2 hard; ln -s n3 soft; echo more >> n4; rm n5
    mkdir -p a/b; echo deep > a/b/c; mv a z; test "$(cat $TARN_start/f3)" = 3'
test "$(cat $TARN_field/moved $TARN_field/hard $TARN_field/soft $TARN_field/z/b/c | tr -d '\n')" = 123deep
romio=$(ompi_info --parsable | sed -n 's/^mca:io:\\(romio[0-9]*\\):.*/\\1/p' | head -n 1)
for io in $romio ompio; do of=${io%%[0-9]*}; mpirun --mca io $io mpiio $TARN_field/$of > $TARN_field/said.$of; done"""
in = ["start:shared"]
out = ["field:shared"]

[[step]]
name = "change"
nodes = 2
run = """set -e
tarn exec $(sed -n '2s/ .*//p' $TARN_HOSTFILE) -- sh -c 'echo changed >> $TARN_field/n6; rm $TARN_field/n7'"""
inout = ["field:shared"]

[[step]]
name = "check"
run = """set -e; cd $TARN_field
[ ! -e romio ] || cmp romio ompio; stat -c %s ompio > $TARN_report/size; cat said.* | sort > $TARN_report/ranks
cat copy/link copy/twice | md5sum > $TARN_report/numbers; getfattr -d copy/f1 >> $TARN_report/numbers; stat -c %a copy/f2 >> $TARN_report/numbers
find . | sort > $TARN_report/names; getfattr -R -d . | grep -c user.tarn > $TARN_report/own || true
cat n4 n6 moved hard soft z/b/c > $TARN_report/text"""
in = ["field"]
out = ["report"]
"#;

#[test]
fn ranks_on_two_nodes_write_one_file() {
    let Some(cluster) = cluster(2, &["mpicc.openmpi", "setfattr"]) else {
        return;
    };
    let fixture = Fixture::new(&cluster, "alice", WAVES);
    fixture.write("in/seed", "a seed\n");
    let mut build = Command::new("mpicc.openmpi");
    build
        .args(["-O2", "-o"])
        .arg(cluster.shared().join("bin/mpiio"));
    build.arg(tree::root().join("tests/tests/shared/mpiio.c"));
    run_for_output(&mut build).unwrap_or_else(|e| panic!("{e:#}"));
    let show = format!("sh -c '{RUN} || {{ tail -n 40 .tarn/runs/*/steps/*.log; exit 1; }}'");
    let output = fixture.run("-N2 -n4", &show);
    let ranks = fixture.read("out/ranks");
    let info = run_for_output(Command::new("ompi_info").arg("--parsable"));
    let info = info.unwrap_or_else(|e| panic!("{e:#}"));
    let mut interfaces = 2;
    if !info.contains("mca:io:romio") {
        eprintln!("SKIPPED: ROMIO: this Open MPI has none");
        interfaces = 1;
    }
    assert_eq!(
        ranks.lines().filter(|l| l.ends_with(": 0 wrong")).count(),
        4 * interfaces,
        "{ranks}"
    );
    for node in ["node1", "node2"] {
        assert!(ranks.contains(node), "{ranks}");
    }
    // Four ranks, sixteen blocks of 64 KiB each.
    assert_eq!(
        fixture.read("out/size").trim(),
        (4 * 16 * (64 << 10)).to_string()
    );
    assert_eq!(
        fixture.read("out/text"),
        "4\nmore\n6\nchanged\n1\n2\n3\ndeep\n"
    );
    let numbers = fixture.read("out/numbers");
    assert!(
        numbers.contains("user.mine=\"yes\"") && numbers.ends_with("640\n"),
        "{numbers}"
    );
    assert_eq!(
        fixture.read("out/own").trim(),
        "0",
        "attributes of GlusterFS"
    );
    let names = fixture.read("out/names");
    for name in [
        "./copy/deep/er/numbers",
        "./copy/empty",
        "./copy/seed",
        "./hard",
        "./z/b/c",
    ] {
        assert!(names.lines().any(|l| l == name), "{name}: {names}");
    }
    for gone in ["./n1", "./n5", "./n7", "./a"] {
        assert!(!names.lines().any(|l| l == gone), "{gone}: {names}");
    }
    nothing_left(&cluster, &[1, 2]);
    // Nothing has changed, nothing runs.
    let again = fixture.run("-N2 -n4", RUN);
    assert!(!again.contains("solve started"), "{output}\n{again}");
}

/// The first attempt waits for the event of the test.
const WAITS: &str = r#"
name = "waits"
[data.field]
dest = "out"
[[step]]
name = "hold"
nodes = 2
retries = 1
run = """if ! mkdir $HOME/work/tried 2> /dev/null; then echo done > $TARN_field/text; exit; fi
echo here > $TARN_field/text; cut -d " " -f 1 $TARN_HOSTFILE > $HOME/work/waits; sleep 300"""
out = ["field:shared"]
"#;

#[test]
fn bad_days() {
    let Some(cluster) = cluster(2, &[]) else {
        return;
    };
    let fixture = Fixture::new(&cluster, "alice", WAITS);
    let waits = || fixture.path("waits").exists();
    let under_way = || {
        let run = fixture.start("-N2", RUN);
        wait_until("the step", SOON, waits).unwrap_or_else(|e| panic!("{e:#}"));
        run
    };
    let again = || {
        let _ = fixture.shell("rm -rf tried waits out");
    };

    // A stranger has the port, but not the password.
    let run = under_way();
    let stranger = |word: &str| {
        // As long as it takes, or so long that it would be there.
        let seconds = if word == "right" { 100 } else { 6 };
        let script = format!(
            r#"set -e; f=$(echo /scm/alice/*/*/wor[k]/*/shared); w=$(mktemp -d); mkdir $w/m
            sed 's/option password .*/option password {word}/' $f/client.vol > $w/vol
            [ '{word}' != right ] || cp $f/client.vol $w/vol
            [ '{word}' != none ] || sed -i '/username\|password/d' $w/vol
            timeout -s KILL {seconds} unshare --mount --fork --pid --kill-child sh -c "
                PATH=\$PATH:/usr/sbin; mount -t proc proc /proc; glusterfs -N -f $w/vol -l $w/log $w/m &
                until cat $w/m/field/text 2> /dev/null; do sleep 0.1; done" || true
            rm -rf $w"#
        );
        on(&cluster.node(1), &script)
    };
    assert!(
        stranger("right").contains("here"),
        "the test itself: {}",
        stranger("right")
    );
    for word in ["wrong", "none"] {
        assert!(!stranger(word).contains("here"), "{word}");
    }
    let files = on(
        &cluster.node(1),
        "stat -c %a /scm/alice/*/*/wor[k]/*/shared/{.,brick.vol,client.vol}",
    );
    assert_eq!(files, "700\n600\n600");

    // The brick of the other node dies in the middle: the attempt fails, the next one succeeds.
    on(&cluster.node(2), "kill -9 $(pgrep -x glusterfsd)");
    let (status, output) = run.end();
    assert_eq!(status, Some(0), "{output}");
    assert!(
        output.contains("its brick has ended while the step ran"),
        "{output}"
    );
    assert!(output.contains("node2"), "{output}");
    assert_eq!(fixture.read("out/text"), "done\n");
    nothing_left(&cluster, &[1, 2]);

    // tarn is killed: all of it goes, and the next run does it again.
    again();
    let _ = fixture.shell("rm -rf .tarn/w*; sed -i s/done/once/ wf.toml");
    let run = under_way();
    let tarn = "kill -9 $(pgrep -u alice -x tarn | head -n 1)";
    let _ = cluster.exec("root", &["bash", "-c", tarn]);
    let _ = run.end();
    let (status, output) = fixture::ended(fixture.allocated("-N2", "tarn resume"));
    assert_eq!(status, Some(0), "{output}");
    assert_eq!(fixture.read("out/text"), "once\n");
    nothing_left(&cluster, &[1, 2]);
}

#[test]
fn a_node_of_the_namespace_loses_its_power() {
    let Some(cluster) = cluster(3, &[]) else {
        return;
    };
    // A lost node uses up no retry.
    let fixture = Fixture::new(&cluster, "alice", &WAITS.replace("retries = 1", ""));
    let run = fixture.start("-N3 --no-kill", RUN);
    let of_step = || {
        let text = std::fs::read_to_string(fixture.path("waits")).unwrap_or_default();
        let number = |line: &str| line.strip_prefix("node")?.parse().ok();
        text.lines().filter_map(number).collect::<Vec<usize>>()
    };
    wait_until("the step", SOON, || of_step().len() == 2).unwrap_or_else(|e| panic!("{e:#}"));
    let lost = of_step()[1];
    let cut = cluster.node(lost).power_cut();
    cut.unwrap_or_else(|e| panic!("{e:#}"));
    let (status, output) = run.end();
    assert_eq!(status, Some(0), "{output}");
    assert!(
        output.contains(&format!("node{lost} is lost (")),
        "{output}"
    );
    assert_eq!(fixture.read("out/text"), "done\n");
    let others: Vec<usize> = (1..=3).filter(|n| *n != lost).collect();
    nothing_left(&cluster, &others);
}

#[test]
fn a_node_that_cannot_have_it_is_named_before_anything_starts() {
    let Some(cluster) = fixture::cluster(2, &["tarn", "tarnd"], &[], &[]) else {
        return;
    };
    let fixture = Fixture::new(&cluster, "alice", WAITS);
    // Its library has not been put beside tarn, if it has GlusterFS.
    let (status, output) = fixture::ended(fixture.allocated("-N2", RUN));
    assert_eq!(status, Some(4), "{output}");
    let named = output.contains("node1: there is no ") || output.contains("node2: there is no ");
    assert!(output.contains("no_shared") && named, "{output}");
    assert!(!fixture.path("tried").exists(), "{output}");
}
