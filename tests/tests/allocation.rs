//! `tarn run` in an allocation of a real Slurm: over all its nodes, through failures there, and nothing left behind.

#[path = "allocation/bad_links.rs"]
mod bad_links;
#[path = "allocation/clocks.rs"]
mod clocks;
#[path = "allocation/dealt.rs"]
mod dealt;
#[path = "allocation/exported.rs"]
mod exported;
#[path = "allocation/images.rs"]
mod images;
#[path = "allocation/links.rs"]
mod links;
#[path = "allocation/objects.rs"]
mod objects;
#[path = "allocation/pieces.rs"]
mod pieces;
#[path = "allocation/stores.rs"]
mod stores;

use links::{an_older_tarnd_is_refused, liars_are_found_out, links_are_measured};
use pieces::{libfabric_moves_pieces, pieces_move, strangers_come};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};
use tarn_tests::fixture::{self, Fixture, ended};
use tarn_tests::programs::install;
use tarn_tests::slurm::{Cluster, run_for_output, wait_until};

const SOON: Duration = Duration::from_secs(60);
/// A node is lost after 10 s of silence, and a run that is cut takes its time.
const LATER: Duration = Duration::from_secs(240);

fn cluster(nodes: usize) -> Option<Cluster> {
    fixture::cluster(nodes, &["tarn", "tarnd"], &[], &[])
}

/// The files on the tier of a node, but for the ledger.
fn left_on(cluster: &Cluster, node: usize) -> String {
    let look =
        "find /scm /dev/shm -mindepth 2 ! -name 'ledger*' ! -name 'tarn-[0-9]*' 2>/dev/null; true";
    let found = cluster.node(node).exec("root", &["bash", "-c", look]);
    found.unwrap_or_else(|e| panic!("{e:#}")).trim().to_owned()
}

/// Twelve pieces, a step each that notes its node, and one that gathers them.
const SPREAD: &str = r#"
name = "spread"

[data.raw]
source = "in"

[data.piece]

[data.all]
dest = "out"

[[step]]
name = "work"
foreach = "raw/*"
cores = 2
run = "sleep 0.3; tr a-z A-Z < $TARN_raw/$TARN_ITEM > $TARN_piece/$TARN_ITEM; echo $TARN_NODE > $TARN_piece/$TARN_ITEM.node"
in = ["raw"]
out = ["piece"]

[[step]]
name = "gather"
run = "cat $TARN_piece/f?? > $TARN_all/text; cat $TARN_piece/*.node | sort -u > $TARN_all/nodes"
in = ["piece"]
out = ["all"]
"#;

fn spread<'a>(cluster: &'a Cluster, user: &'a str) -> (Fixture<'a>, String) {
    let fixture = Fixture::new(cluster, user, SPREAD);
    let mut text = String::new();
    for n in 10..22 {
        fixture.write(&format!("in/f{n}"), &format!("piece {n} of {user}\n"));
        text.push_str(&format!("PIECE {n} OF {}\n", user.to_uppercase()));
    }
    (fixture, text)
}

const TIER: &str = "--tier scm=/scm/$USER:64MiB";

#[test]
fn a_workflow_runs_over_all_nodes_and_leaves_nothing() {
    let Some(cluster) = cluster(3) else { return };
    let (fixture, wanted) = spread(&cluster, "alice");
    let output = fixture.run("-N3 -n24", &format!("tarn run {TIER} wf.toml"));
    assert_eq!(fixture.read("out/text"), wanted);
    assert_eq!(fixture.read("out/nodes"), "node1\nnode2\nnode3\n");
    // The note about the allocation's end comes before anything runs.
    let note = "note: if an allocation ends before its run, the parts of `all` made by then are lost with its nodes; \
                `on_failure = \"drain\"` on a dataset copies them out";
    let at = |what: &str| {
        output
            .find(what)
            .unwrap_or_else(|| panic!("{what}: {output}"))
    };
    assert!(at(note) < at(" s] "), "{output}");
    for node in 1..=3 {
        assert_eq!(left_on(fixture.cluster, node), "", "on node{node}");
        // Slurm reports the job's end before its last process has gone.
        let gone = || {
            let alive = cluster.node(node).exec("root", &["pgrep", "-x", "tarnd"]);
            alive.is_err()
        };
        let waited = wait_until("the end of tarnd", SOON, gone);
        waited.unwrap_or_else(|e| panic!("node{node}: {e:#}"));
    }
    libfabric_moves_pieces(&cluster);
    // A `dest` in a job's own /tmp is refused before anything runs.
    fixture.write("lost.toml", "name = \"lost\"\n[data.all]\ndest = \"/tmp/out\"\n[[step]]\nname = \"s\"\nrun = \"echo > $TARN_all/x\"\nout = [\"all\"]\n");
    let refused = fixture.allocated("-N2 -n16", &format!("tarn run {TIER} lost.toml"));
    let (status, refused) = ended(refused);
    assert_eq!(status, Some(4), "{refused}");
    assert!(
        refused.contains("does not see the dest of dataset `all` (/tmp/out) as tarn does")
            && refused.contains("all nodes mount"),
        "{refused}"
    );
    assert!(!fixture.path(".tarn/runs").join("lost-1").exists());
    // The nodes and a plan of their work.
    let nodes = fixture.run("-N3 -n24", &format!("tarn nodes {TIER}"));
    let plan = fixture.run("-N3 -n24", &format!("tarn plan {TIER} wf.toml"));
    for node in ["node1", "node2", "node3"] {
        assert!(nodes.contains(&format!("{node} ")), "{nodes}");
        assert!(plan.contains(&format!("{node}/scm")), "{plan}");
    }
    // Again: nothing has changed, nothing runs.
    let again = fixture.run("-N2 -n16", &format!("tarn run {TIER} wf.toml"));
    assert!(again.contains("0 run, 13 unchanged"), "{again}");
}

#[test]
fn a_batch_script_runs_it_too_and_strangers_bother_nobody() {
    let Some(cluster) = cluster(2) else { return };
    install(&cluster, &["stranger"]).unwrap_or_else(|e| panic!("{e:#}"));
    let (_, strangers) = pieces_move(&cluster, "", || strangers_come(&cluster));
    for mut stranger in strangers {
        drop(stranger.stdin.take());
        assert!(stranger.wait().expect("its end").success());
    }
    let (fixture, wanted) = spread(&cluster, "alice");
    fixture.write(
        "job.sh",
        &format!("#!/bin/bash\ncd ~/work && exec tarn run {TIER} wf.toml\n"),
    );
    let words = [
        "sbatch",
        "--wait",
        "-N2",
        "-n16",
        "-o",
        "work/log",
        "work/job.sh",
    ];
    let ended = cluster.exec("alice", &words);
    assert!(ended.is_ok(), "{ended:?}\n{}", fixture.read("log"));
    assert_eq!(fixture.read("out/text"), wanted);
    assert_eq!(fixture.read("out/nodes"), "node1\nnode2\n");
    a_run_on_a_node_is_cancelled_from_the_login_node(&fixture);
}

fn a_run_on_a_node_is_cancelled_from_the_login_node(fixture: &Fixture<'_>) {
    fixture.write("wf.toml", &CHAIN.replace("\"out\"", "\"chained\""));
    fixture.write(
        "job.sh",
        &format!(
            "#!/bin/bash\ncd ~/work && exec tarn --log info --log-to run --log-format json run {TIER} wf.toml\n"
        ),
    );
    let words = ["sbatch", "-N2", "-n16", "-o", "work/log", "work/job.sh"];
    fixture.cluster.exec("alice", &words).expect("sbatch");
    wait_for_begin(fixture, 1);
    // A signal of the job's is none to tarnd.
    fixture.shell("scancel --signal=USR1 $(squeue -h -u alice -o %A)");
    // The run's activities are seen from there as well, as long as it lasts.
    let watched = fixture.shell("timeout 60 tarn status --watch --json | grep -m 2 '^{'");
    let pictures: Vec<&str> = watched.lines().filter(|l| l.starts_with('{')).collect();
    assert!(pictures.len() >= 2, "{watched}");
    for wanted in ["node1", "node2", "scm", "second", "running"] {
        assert!(pictures[1].contains(wanted), "{wanted}: {}", pictures[1]);
    }
    let output = fixture.shell("tarn cancel");
    assert!(
        output.contains("runs on node1") && output.contains("chain-1 has stopped"),
        "{output}\n{}",
        fixture.read("log")
    );
    assert!(!fixture.path(".tarn/runs/chain-1/cancel").exists());
    // Events are logged; each line is an object, and the lines of nodes name theirs.
    let log = fixture.read(".tarn/runs/chain-1/tarn.log");
    assert!(!log.contains("node lost"), "{log}");
    let nodes = fixture.read(".tarn/runs/chain-1/nodes.log");
    for line in log.lines().chain(nodes.lines()) {
        let object: serde_json::Value = serde_json::from_str(line).expect(line);
        assert!(object["message"].is_string(), "{line}");
    }
    for node in ["node1", "node2"] {
        let named = format!(r#"{{"node":"{node}","timestamp""#);
        assert!(nodes.lines().any(|l| l.starts_with(&named)), "{nodes}");
    }
    for line in [
        "the run begins",
        "step begins",
        "step committed",
        "interrupted",
        "the run ends",
    ] {
        assert!(log.contains(line), "{line}:\n{log}");
    }
}

/// A source that two nodes read. All of it takes a while, even if they share it.
const SHARED: &str = r#"
name = "shared"

[data.all]
source = "in"

[data.sums]
dest = "out"

[[step]]
name = "sum"
nodes = 2
run = "cd $TARN_all && md5sum * > $TARN_sums/here && tarn exec $(sed -n 2p $TARN_HOSTFILE | cut -d ' ' -f 1) -- bash -c 'cd $TARN_all && md5sum *' > $TARN_sums/there"
in = ["all"]
out = ["sums:single"]
"#;

#[test]
fn what_nodes_share_is_read_once_and_the_chain_may_break() {
    let Some(cluster) = cluster(3) else { return };
    let fixture = Fixture::new(&cluster, "alice", SHARED);
    let line = "seed: a line that is not the last one\n".repeat(1 << 19);
    fixture.write("in/large", &line);
    fixture.write("in/small", "a few words\n");
    let slow = format!("tarn run {TIER} --external-rate 2MB/s wf.toml");
    let running = fixture.start("-N3 -n24", &slow);
    // The first node of the chain goes while the second reads from it.
    let moving = || {
        let half = "find /scm/alice -path '*incoming*' -name large -size +2M | grep -q .";
        let on = |node| cluster.node(node).exec("root", &["bash", "-c", half]);
        on(1).is_ok() && on(2).is_ok()
    };
    let waited = wait_until("a chain of copies", LATER, moving);
    waited.unwrap_or_else(|e| panic!("{e:#}"));
    let kill = cluster
        .node(1)
        .exec("root", &["pkill", "-KILL", "-x", "tarnd"]);
    kill.unwrap_or_else(|e| panic!("{e:#}"));
    let (status, text) = running.end();
    assert_eq!(status, Some(0), "{text}");
    let sums = fixture.read("out/here");
    assert_eq!(sums, fixture.read("out/there"));
    let wanted =
        run_for_output(&mut cluster.command("alice", &["bash", "-c", "cd work/in && md5sum *"]));
    assert_eq!(sums.trim(), wanted.expect("md5sum").trim());
    // Undisturbed, and nothing known of the source: it is read once.
    let again = "rm -rf .tarn out && exec tarn run";
    let command = format!("bash -c '{again} {TIER} wf.toml'");
    let text = fixture.run("-N3 -n24", &command);
    let bytes = line.len() as f64 / f64::from(1 << 20);
    assert!(
        text.contains(&format!("shared file system {bytes:.2} MiB in")),
        "{text}"
    );
    assert_eq!(fixture.read("out/there"), sums);
}

#[test]
fn links_are_measured_once() {
    let Some(cluster) = fixture::cluster(4, &["tarn", "tarnd"], &["shaping"], &[]) else {
        return;
    };
    links_are_measured(&cluster);
}

#[test]
fn a_replica_that_is_not_what_it_says_is_found_out() {
    let Some(cluster) = cluster(2) else { return };
    liars_are_found_out(&cluster);
}

#[test]
fn a_node_with_an_older_tarnd_is_named() {
    let Some(cluster) = cluster(3) else { return };
    an_older_tarnd_is_refused(&cluster);
}

/// Two nodes work on a scattered version, and look at each other.
const SCATTERED: &str = r#"
name = "scattered"

[data.case]
scatter = "p{rank}"

[data.result]
dest = "out"

[data.notes]
dest = "notes"

[[step]]
name = "split"
run = "for r in 0 1 2 3; do mkdir $TARN_case/p$r; echo $r > $TARN_case/p$r/n; done; echo common > $TARN_case/c"
out = ["case"]

[[step]]
name = "solve"
nodes = 2
tasks = 4
run = "solve.sh"
inout = ["case:scatter"]
out = ["notes:single"]

[[step]]
name = "join"
run = "cp -r $TARN_case/. $TARN_result"
in = ["case:gather"]
out = ["result"]
"#;

const SOLVE: &str = r#"#!/bin/bash
set -eu
other=$(sed -n 2p "$TARN_HOSTFILE" | cut -d ' ' -f 1)
for r in 0 1; do echo "$TARN_NODE $(hostname)" > "$TARN_case/p$r/done"; done
name=$(for n in $(seq 1 46) $(seq 48 255); do printf '\\x%02x' $n; done)
printf -v name "$name"
echo here > "$TARN_case/p0/$name"
echo "said on $TARN_NODE" | tarn exec "$other" -- bash -c '
    cat > $TARN_case/p2/heard
    echo there > "$TARN_case/p3/$0"
    for r in 2 3; do echo "$TARN_NODE $(hostname)" > $TARN_case/p$r/done; done
    [ ! -e $TARN_case/p0 ]' "$name"
srun --overlap --mem=0 --nodes=1 --ntasks=1 --nodelist="$other" tarn enter bash -c '
    echo "$SLURM_PROCID $TARN_NODE" && cat "$TARN_case/p2/heard" && [ -e "$TARN_HOSTFILE" ]' > "$TARN_case/p0/entered"
tarn exec "$other" -- bash -c 'exit 7' && exit 1
[ $? = 7 ]
[ ! -e "$TARN_case/p2" ]
echo kept > "$TARN_notes/own"
# It lies on the first node only: elsewhere it cannot be written to, rather than be lost.
tarn exec "$other" -- bash -c 'mkdir -p "$TARN_notes" && echo lost > "$TARN_notes/other"' && exit 1
true
"#;

#[test]
fn a_step_spans_two_nodes() {
    let Some(cluster) = cluster(2) else { return };
    let fixture = Fixture::new(&cluster, "alice", SCATTERED);
    fixture.write("solve.sh", SOLVE);
    fixture.run("-N2 -n16", &format!("tarn run {TIER} wf.toml"));
    let node = |rank: u32| fixture.read(&format!("out/p{rank}/done"));
    assert_eq!(node(0), node(1));
    assert_eq!(node(2), node(3));
    assert_ne!(node(0), node(2));
    let first = node(0);
    let first = first.split_whitespace().next().expect("a name");
    assert_eq!(fixture.read("out/p2/heard"), format!("said on {first}\n"));
    let other = node(2);
    let other = other.split_whitespace().next().expect("a name");
    assert_eq!(
        fixture.read("out/p0/entered"),
        format!("0 {other}\nsaid on {first}\n"),
        "what srun starts sees its node's part of the step"
    );
    assert_eq!(fixture.read("out/c"), "common\n");
    assert_eq!(fixture.read("notes/own"), "kept\n");
    assert!(!fixture.path("notes/other").exists());
    // A name of every byte but NUL and slash, made on each node and gathered.
    let bytes: Vec<u8> = (1..=255).filter(|b| *b != b'/').collect();
    let name = std::ffi::OsStr::from_bytes(&bytes);
    for (rank, text) in [("p0", "here\n"), ("p3", "there\n")] {
        let path = fixture.path("out").join(rank).join(name);
        assert_eq!(std::fs::read_to_string(path).ok().as_deref(), Some(text));
    }
}

/// A chain on one dataset, slow enough to be disturbed.
const CHAIN: &str = r#"
name = "chain"

[data.a]

[data.b]

[data.end]
dest = "out"

[[step]]
name = "first"
run = "dd if=/dev/zero of=$TARN_a/zeros bs=1M count=8 status=none; echo $TARN_NODE > $TARN_a/node"
out = ["a"]

[[step]]
name = "second"
run = "cp $TARN_a/node $TARN_b/node; echo $TARN_NODE >> $TARN_WORKFLOW_DIR/began; while [ ! -e $TARN_WORKFLOW_DIR/go ]; do sleep 0.1; done; echo b > $TARN_b/b"
in = ["a"]
out = ["b"]

[[step]]
name = "third"
run = "cat $TARN_b/b > $TARN_end/text; ls $TARN_a > $TARN_end/list"
in = ["a", "b"]
out = ["end"]
"#;

fn began(fixture: &Fixture<'_>) -> Vec<usize> {
    let text = std::fs::read_to_string(fixture.path("began")).unwrap_or_default();
    let number = |name: &str| name.strip_prefix("node").and_then(|n| n.parse().ok());
    text.lines().filter_map(number).collect()
}

fn wait_for_begin(fixture: &Fixture<'_>, times: usize) -> usize {
    let waited = wait_until("the second step", LATER, || began(fixture).len() >= times);
    waited.unwrap_or_else(|e| panic!("{e:#}"));
    began(fixture)[times - 1]
}

/// The node of the running step loses its tarnd, or all of itself: the run makes the lost data again, elsewhere.
fn a_lost_node(how: impl Fn(&Cluster, usize), called: &str) {
    let Some(cluster) = cluster(3) else { return };
    let fixture = Fixture::new(&cluster, "alice", CHAIN);
    let running = fixture.start("-N3 -n24 --no-kill", &format!("tarn run {TIER} wf.toml"));
    let node = wait_for_begin(&fixture, 1);
    how(&cluster, node);
    let second = wait_for_begin(&fixture, 2);
    assert_ne!(second, node);
    fixture.write("go", "");
    let (status, text) = running.end();
    assert_eq!(status, Some(0), "{text}");
    let line = text.lines().find(|l| l.contains("is lost ("));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    for wanted in [&format!("node{node}"), called, "nodes.log"] {
        assert!(line.contains(wanted), "{line}");
    }
    assert_eq!(fixture.read("out/text"), "b\n");
    assert_eq!(fixture.read("out/list"), "node\nzeros\n");
}

#[test]
fn a_tarnd_is_killed() {
    let kill = |cluster: &Cluster, node| {
        let killed = cluster
            .node(node)
            .exec("root", &["pkill", "-KILL", "-x", "tarnd"]);
        killed.unwrap_or_else(|e| panic!("{e:#}"));
    };
    a_lost_node(kill, "its tarnd has died");
}

#[test]
fn a_node_loses_its_power() {
    let cut = |cluster: &Cluster, node| {
        let cut = cluster.node(node).power_cut();
        cut.unwrap_or_else(|e| panic!("{e:#}"));
    };
    a_lost_node(cut, "nothing came from it for 10 s");
}

/// With no node left the run fails with a message; in another allocation it resumes.
#[test]
fn all_tarnds_are_killed() {
    let Some(cluster) = cluster(2) else { return };
    let fixture = Fixture::new(&cluster, "alice", CHAIN);
    let running = fixture.start("-N2 -n16 --no-kill", &format!("tarn run {TIER} wf.toml"));
    wait_for_begin(&fixture, 1);
    for node in 1..=2 {
        let killed = cluster
            .node(node)
            .exec("root", &["pkill", "-KILL", "-x", "tarnd"]);
        killed.unwrap_or_else(|e| panic!("{e:#}"));
    }
    let (status, text) = running.end();
    assert_eq!(status, Some(1), "{text}");
    assert!(
        text.contains("lost") && text.contains("tarn resume"),
        "{text}"
    );
    fixture.write("go", "");
    let output = fixture.run("-N2 -n16", "tarn resume");
    assert_eq!(fixture.read("out/text"), "b\n", "{output}");
}

/// The tier of one node is full of somebody else's files: data that does not fit there goes elsewhere.
#[test]
fn a_tier_is_full() {
    let Some(cluster) = cluster(2) else { return };
    let fixture = Fixture::new(&cluster, "alice", CHAIN);
    fixture.write("go", "");
    let fill = "dd if=/dev/zero of=/scm/full bs=1M status=none; df --output=avail /scm | tail -1";
    let free = cluster.node(1).exec("root", &["bash", "-c", fill]);
    assert_eq!(free.unwrap_or_else(|e| panic!("{e:#}")).trim(), "0");
    // Without a size each node offers its free space; with one, a node that has not is refused by name.
    let (status, text) = fixture
        .start("-N2 -n16", &format!("tarn run {TIER} wf.toml"))
        .end();
    assert!(status != Some(0) && text.contains("node1"), "{text}");
    cluster
        .node(1)
        .exec("root", &["rm", "/scm/full"])
        .expect("rm");
    // Some space is left there, and the first step needs more: it runs where there is enough.
    let fill = "dd if=/dev/zero of=/scm/full bs=1M count=1016 status=none";
    let filled = cluster.node(1).exec("root", &["bash", "-c", fill]);
    filled.unwrap_or_else(|e| panic!("{e:#}"));
    fixture.write(
        "wf.toml",
        &CHAIN.replace("[data.a]", "[data.a]\nsize = \"8 MiB\""),
    );
    let text = fixture.run("-N2 -n16", "tarn run --tier scm=/scm/alice wf.toml");
    assert_eq!(fixture.read("out/text"), "b\n", "{text}");
    assert_eq!(began(&fixture), [2], "{text}");
    let emptied = "rm -rf /scm/full";
    let emptied = cluster.node(1).exec("root", &["bash", "-c", emptied]);
    emptied.unwrap_or_else(|e| panic!("{e:#}"));
    run_for_output(&mut cluster.command("alice", &["rm", "-rf", "work/.tarn", "work/out"]))
        .expect("rm");
    fixture.run("-N2 -n16", &format!("tarn run {TIER} wf.toml"));
    assert_eq!(fixture.read("out/text"), "b\n");
}

/// slurmctld is away from the middle of a run until after its end.
#[test]
fn slurmctld_dies_and_nothing_happens_to_a_run() {
    let Some(cluster) = cluster(2) else { return };
    let fixture = Fixture::new(&cluster, "alice", CHAIN);
    let script = format!("#!/bin/bash\ntarn run {TIER} wf.toml > told 2>&1\necho $? > status\n");
    fixture.write("job.sh", &script);
    let running = fixture.start("-N2 -n16", "./job.sh");
    wait_for_begin(&fixture, 1);
    run_for_output(&mut cluster.command("root", &["pkill", "-KILL", "-x", "slurmctld"]))
        .expect("pkill");
    fixture.write("go", "");
    let over = || fixture.path("status").exists();
    let waited = wait_until("the run's end", LATER, over);
    let took = waited.unwrap_or_else(|e| panic!("{e:#}: {}", fixture.read("told")));
    eprintln!("ended {took:.1?} after slurmctld");
    assert_eq!(fixture.read("status"), "0\n", "{}", fixture.read("told"));
    assert_eq!(fixture.read("out/text"), "b\n");
    assert_eq!(began(&fixture).len(), 1);
    cluster.restart_ctld().unwrap_or_else(|e| panic!("{e:#}"));
    // The end of the allocation is Slurm's business.
    let (_, text) = running.end();
    eprintln!("{text}");
}

/// tarn dies: so do its steps, everywhere; in the same allocation it resumes with the data on the nodes.
#[test]
fn tarn_is_killed_and_goes_on() {
    let Some(cluster) = cluster(2) else { return };
    let fixture = Fixture::new(&cluster, "alice", CHAIN);
    let script = format!(
        "#!/bin/bash\ntarn run {TIER} wf.toml\necho $? > status\nuntil [ -e again ]; do sleep 0.1; done\nexec tarn resume\n"
    );
    fixture.write("job.sh", &script);
    let running = fixture.start("-N2 -n16", "./job.sh");
    let node = wait_for_begin(&fixture, 1);
    run_for_output(&mut cluster.command("root", &["pkill", "-KILL", "-x", "tarn"])).expect("pkill");
    let step = ["pgrep", "-f", "[b]egan.*go"];
    let waited = wait_until("the step's end", SOON, || {
        cluster.node(node).exec("root", &step).is_err() && fixture.path("status").exists()
    });
    waited.unwrap_or_else(|e| panic!("{e:#}"));
    fixture.write("go", "");
    fixture.write("again", "");
    let (status, text) = running.end();
    assert_eq!(status, Some(0), "{text}");
    assert_eq!(fixture.read("out/text"), "b\n");
    let log = fixture.run("-N1", "tarn why first");
    assert!(!log.contains("attempt 2"), "{log}");
}

/// Two users on the same nodes at once: neither sees or disturbs the other.
#[test]
fn two_users_share_nodes() {
    let Some(cluster) = cluster(2) else { return };
    let slow = Fixture::new(&cluster, "alice", CHAIN);
    let (quick, wanted) = spread(&cluster, "bob");
    let options = "-N2 -n8 --ntasks-per-node=4 --mem=1500";
    let command = format!("tarn run {TIER} wf.toml");
    let running = slow.start(options, &command);
    let node = cluster.node(wait_for_begin(&slow, 1));
    quick.run(options, &command);
    assert_eq!(quick.read("out/text"), wanted);
    let zeros = |user: &str| {
        let found = node.exec(
            user,
            &["bash", "-c", "find /scm -name zeros 2>/dev/null; true"],
        );
        found.unwrap_or_else(|e| panic!("{e:#}"))
    };
    assert_ne!(zeros("root"), "");
    assert_eq!(zeros("bob"), "");
    slow.write("go", "");
    let (status, text) = running.end();
    assert_eq!(status, Some(0), "{text}");
    assert_eq!(slow.read("out/text"), "b\n");
}

/// A link is cut in the middle and healed a minute later: the run continues without the node, and with it again.
#[test]
fn a_link_is_cut_and_healed() {
    let Some(cluster) = cluster(2) else { return };
    let fixture = Fixture::new(&cluster, "alice", CHAIN);
    let running = fixture.start("-N2 -n16", &format!("tarn run {TIER} wf.toml"));
    let node = wait_for_begin(&fixture, 1);
    let begun = Instant::now();
    cluster
        .node(node)
        .cut_link()
        .unwrap_or_else(|e| panic!("{e:#}"));
    let second = wait_for_begin(&fixture, 2);
    assert_ne!(second, node);
    eprintln!("placed again after {:.1?}", begun.elapsed());
    cluster
        .node(node)
        .heal_link()
        .unwrap_or_else(|e| panic!("{e:#}"));
    fixture.write("go", "");
    let (status, text) = running.end();
    assert_eq!(status, Some(0), "{text}");
    assert_eq!(fixture.read("out/text"), "b\n");
}
