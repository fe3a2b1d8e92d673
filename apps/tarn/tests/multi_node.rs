//! Steps of several nodes, by the real `tarn`, mpirun and `tarn exec`: how trees are scattered, merged, gathered and
//! broadcast, and which bytes that moves.

mod common;
use common::{Ran, Site, files};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The raw data from which a solver of four ranks starts.
const CASE: &[(&str, &str)] = &[
    ("processor0/state", "state of 0\n"),
    ("processor1/state", "state of 1\n"),
    ("processor2/state", "state of 2\n"),
    ("processor3/state", "state of 3\n"),
    ("processor0/old", "old\n"),
    ("processor1/old", "old\n"),
    ("processor2/old", "old\n"),
    ("processor3/old", "old\n"),
    ("common/settings", "settings\n"),
    ("common/gone", "to be deleted\n"),
    ("common/stays", "nobody touches this\n"),
    ("top", "a file at the top\n"),
];

/// A workflow of three steps; `solve` runs on two nodes and `change` is its command.
fn foam(change: &str) -> String {
    format!(
        r#"
name = "foam"
[data.raw]
source = "raw"
[data.case]
scatter = "processor{{rank}}"
dest = "case-out"
[data.result]
dest = "result"
[[step]]
name = "decompose"
run = "cp -r $TARN_raw/. $TARN_case/"
in = ["raw"]
out = ["case"]
[[step]]
name = "solve"
nodes = 2
tasks = 4
time = "60s"
run = '''{change}'''
inout = ["case:scatter"]
[[step]]
name = "reconstruct"
run = "cd $TARN_case && find . -type f | sort > $TARN_result/names && cat processor*/state > $TARN_result/states"
in = ["case:gather"]
out = ["result"]
"#
    )
}

/// mpirun of Open MPI 5 may hang after ranks that live for milliseconds (docs/internals/stacks.md): here all live for a second.
///
/// Every rank in its own folder: changes, adds, deletes; three of them touch common files, each another one.
const SOLVE: &str = r#"mpirun sh -c '
    sleep 1; r=$OMPI_COMM_WORLD_RANK; cd $TARN_case || exit 20
    for other in 0 1 2 3; do
        if [ $((other / 2)) = $((r / 2)) ]; then [ -e processor$other/state ] || exit 21
        else [ ! -e processor$other ] || exit 22; fi
    done
    [ "$OMPI_COMM_WORLD_SIZE" = 4 ] && [ "$(cat top)" = "a file at the top" ] || exit 23
    echo "changed by $r" >> processor$r/state
    rm processor$r/old
    echo $TARN_NODE > processor$r/node
    case $r in
        0) rm common/gone;;
        1) echo new > common/new;;
        2) echo changed > common/settings;;
    esac'"#;

fn site(workflow: &str) -> Option<Site> {
    if !Path::new("/usr/bin/mpirun").exists() {
        eprintln!("skipped: mpirun is not installed");
        return None;
    }
    namespaces_allowed().then(|| {
        let site = Site::new(workflow).with(&["--nodes", "2"]);
        for (name, text) in CASE {
            site.write(&format!("raw/{name}"), text);
        }
        site
    })
}

fn namespaces_allowed() -> bool {
    let mut probe = Command::new("unshare");
    probe.args(["-Urmpf", "--mount-proc", "true"]);
    let allowed = probe.output().is_ok_and(|o| o.status.success());
    if !allowed {
        eprintln!(
            "skipped: namespaces are not allowed here, so steps of several nodes are not either"
        );
    }
    allowed
}

/// All files below a folder of the site, with their content.
fn tree(site: &Site, folder: &str) -> BTreeMap<String, String> {
    let root = site.path(folder);
    let mut all = Vec::new();
    files(&root, &mut all);
    let read = |p: &PathBuf| {
        let name = p.strip_prefix(&root).expect("below").display().to_string();
        (name, std::fs::read_to_string(p).expect("read"))
    };
    all.iter().map(read).collect()
}

/// The output of `SOLVE` from `CASE`, but for the files that name nodes.
fn solved() -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> = CASE
        .iter()
        .filter(|(n, _)| !n.ends_with("/old") && *n != "common/gone")
        .map(|(n, t)| ((*n).to_owned(), (*t).to_owned()))
        .collect();
    for r in 0..4 {
        all.insert(
            format!("processor{r}/state"),
            format!("state of {r}\nchanged by {r}\n"),
        );
    }
    all.insert("common/new".into(), "new\n".into());
    all.insert("common/settings".into(), "changed\n".into());
    all
}

fn run_json(site: &Site) -> Ran {
    let mut arguments = site.run_arguments();
    arguments.push("--json");
    site.tarn(&arguments)
}

/// Steps (by number) that the newest run really started.
fn started(site: &Site) -> Vec<u64> {
    let log = site.log();
    let actions = log
        .iter()
        .flat_map(|r| r["actions"].as_array().into_iter().flatten());
    actions
        .filter(|a| a["do"] == "run")
        .map(|a| a["instance"]["step"].as_u64().expect("a step"))
        .collect()
}

fn sizes(names: &[&str]) -> u64 {
    let size = |n: &&str| {
        CASE.iter()
            .find(|(name, _)| name == n)
            .expect("of the case")
            .1
            .len()
    };
    names.iter().map(size).sum::<usize>() as u64
}

#[test]
fn mpirun_changes_a_scattered_tree_and_the_next_step_gathers_it() {
    let Some(site) = site(&foam(SOLVE)) else {
        return;
    };
    let ran = run_json(&site).exits(0);
    let mut delivered = tree(&site, "case-out");
    let nodes: Vec<String> = (0..4)
        .map(|r| {
            delivered
                .remove(&format!("processor{r}/node"))
                .expect("rank wrote")
        })
        .collect();
    assert!(
        nodes[0] == nodes[1] && nodes[2] == nodes[3] && nodes[0] != nodes[2],
        "{nodes:?}"
    );
    assert_eq!(delivered, solved());
    let mut names: Vec<String> = solved().keys().map(|n| format!("./{n}\n")).collect();
    names.extend((0..4).map(|r| format!("./processor{r}/node\n")));
    names.sort();
    assert_eq!(site.read("result/names"), names.concat());
    let states = (0..4).map(|r| format!("state of {r}\nchanged by {r}\n"));
    assert_eq!(site.read("result/states"), states.collect::<String>());

    // One node made everything: the other gets two ranks and the common files, nothing else.
    let common = sizes(&["common/settings", "common/gone", "common/stays", "top"]);
    let ranks = sizes(&[
        "processor2/state",
        "processor2/old",
        "processor3/state",
        "processor3/old",
    ]);
    let moved = site.moved();
    assert_eq!(
        moved.get(&("peer".into(), 1)),
        Some(&(ranks + common)),
        "{moved:?}"
    );
    let peer: u64 = moved
        .iter()
        .filter(|((k, _), _)| k == "peer")
        .map(|(_, b)| b)
        .sum();
    assert_eq!(ran.summary()["bytes"]["peer"].as_u64(), Some(peer));
    site.leaves_nothing_on_its_tier();
    assert!(run_json(&site).exits(0).code == Some(0) && started(&site).is_empty());
}

fn conflicting(first: &str, second: &str) {
    let change = format!(
        "mpirun sh -c 'sleep 1; cd $TARN_case; echo more >> processor$OMPI_COMM_WORLD_RANK/state; case $OMPI_COMM_WORLD_RANK in 0) {first};; 3) {second};; esac'"
    );
    let Some(site) = site(&foam(&change)) else {
        return;
    };
    let ran = site.run().exits(1);
    for text in ["solve", "`common/settings`", "`node0`", "`node1`", "`case`"] {
        assert!(ran.err.contains(text), "no {text:?} in {}", ran.err);
    }
    assert!(!site.path("case-out").exists() && !site.path("result").exists());
    site.tarn(&["why", "solve"])
        .exits(0)
        .prints("common/settings");
    // Resuming meets the same conflict; the version before is still there.
    site.tarn(&["resume"]).exits(1).prints("`common/settings`");
    assert!(!started(&site)[1..].contains(&0), "decompose ran again");
    site.write("workflow.toml", &foam(SOLVE));
    site.run().exits(0);
    assert_eq!(
        started(&site),
        [1, 2],
        "only what failed and what comes after it"
    );
    let mut delivered = tree(&site, "case-out");
    delivered.retain(|name, _| !name.ends_with("/node"));
    assert_eq!(delivered, solved());
    site.leaves_nothing_on_its_tier();
}

#[test]
fn a_common_file_changed_differently_on_two_nodes_fails_the_step_whole() {
    conflicting("echo a > common/settings", "echo b > common/settings");
}

#[test]
fn a_common_file_changed_on_one_node_and_deleted_on_the_other_fails_the_step_whole() {
    conflicting("echo a > common/settings", "rm common/settings");
}

#[test]
fn what_lies_right_does_not_move_when_it_is_scattered_again() {
    let again = r#"[[step]]
name = "again"
nodes = 2
tasks = 4
time = "60s"
run = '''mpirun sh -c 'sleep 1; cd $TARN_case && [ "$(cat common/new)" = new ] && echo again >> processor$OMPI_COMM_WORLD_RANK/state' '''
inout = ["case:scatter"]
[[step]]
name = "reconstruct""#;
    let workflow = foam(SOLVE).replace("[[step]]\nname = \"reconstruct\"", again);
    let Some(site) = site(&workflow) else { return };
    site.run().exits(0);
    for r in 0..4 {
        assert_eq!(
            site.read(&format!("case-out/processor{r}/state")),
            format!("state of {r}\nchanged by {r}\nagain\n")
        );
    }
    // Only the common files that one node alone has after `solve` go to the other: each once.
    let moved = site.moved();
    let fresh = ("new\n".len() + "changed\n".len()) as u64;
    assert_eq!(moved.get(&("peer".into(), 2)), Some(&fresh), "{moved:?}");
}

#[test]
fn an_external_source_is_scattered_and_stays_as_it_is() {
    let workflow = r#"
name = "s"
[data.raw]
source = "raw"
scatter = "processor{rank}"
dest = "changed"
[data.seen]
dest = "seen"
[[step]]
name = "look"
nodes = 2
tasks = 4
time = "60s"
run = '''mpirun sh -c 'sleep 1; cd $TARN_raw && find . -type f | sort > $TARN_seen/$OMPI_COMM_WORLD_RANK' '''
in = ["raw:scatter"]
out = ["seen:scatter"]
[[step]]
name = "change"
nodes = 2
tasks = 4
time = "60s"
run = '''mpirun sh -c 'sleep 1; cd $TARN_raw && echo $OMPI_COMM_WORLD_RANK > processor$OMPI_COMM_WORLD_RANK/state' '''
inout = ["raw:scatter"]
"#
    .replace("[data.seen]", "[data.seen]\nscatter = \"seen{rank}\"");
    let Some(site) = site(&workflow) else { return };
    site.run().exits(0);
    for r in 0..4 {
        let seen = site.read(&format!("seen/{r}"));
        for other in 0..4 {
            let there = seen.contains(&format!("./processor{other}/state\n"));
            assert_eq!(there, other / 2 == r / 2, "rank {r} sees {seen}");
        }
        assert!(
            seen.contains("./top\n") && seen.contains("./common/stays\n"),
            "{seen}"
        );
        assert_eq!(
            site.read(&format!("changed/processor{r}/state")),
            format!("{r}\n")
        );
    }
    let raw: BTreeMap<String, String> = CASE
        .iter()
        .map(|(n, t)| ((*n).into(), (*t).into()))
        .collect();
    assert_eq!(tree(&site, "raw"), raw);
    let all: u64 = CASE.iter().map(|(_, t)| t.len() as u64).sum();
    let common = sizes(&["common/settings", "common/gone", "common/stays", "top"]);
    let moved = site.moved();
    let within = |kind: &str| -> u64 {
        moved
            .iter()
            .filter(|((k, _), _)| k == kind)
            .map(|(_, b)| b)
            .sum()
    };
    // Each rank is read once; common files go to both nodes, from outside or from the other.
    assert_eq!(
        within("external-in") + within("peer"),
        all + common,
        "{moved:?}"
    );
    site.leaves_nothing_on_its_tier();
}

#[test]
fn an_input_is_broadcast_and_a_broadcast_output_must_be_equal() {
    for (text, equal) in [("same", true), ("$TARN_NODE", false)] {
        let workflow = format!(
            r#"
name = "b"
[data.raw]
source = "raw"
[data.table]
dest = "table"
[data.both]
dest = "both"
[[step]]
name = "both"
nodes = 2
time = "60s"
run = '''mpirun sh -c 'sleep 1; cat $TARN_raw/top $TARN_raw/processor3/state > $TARN_table/t && echo {text} >> $TARN_table/t' '''
in = ["raw"]
out = ["table:broadcast"]
[[step]]
name = "use"
nodes = 2
time = "60s"
run = '''mpirun sh -c 'sleep 1; cp $TARN_table/t $TARN_both/$OMPI_COMM_WORLD_RANK' '''
in = ["table"]
out = ["both:scatter"]
"#
        )
        .replace("[data.both]", "[data.both]\nscatter = \"{rank}\"");
        let Some(site) = site(&workflow) else { return };
        if !equal {
            let ran = site.run().exits(1);
            for text in ["`t`", "`table`", "`node0`", "`node1`"] {
                assert!(ran.err.contains(text), "no {text:?} in {}", ran.err);
            }
            assert!(!site.path("table").exists());
            continue;
        }
        site.run().exits(0);
        let table = "a file at the top\nstate of 3\nsame\n";
        assert_eq!(site.read("table/t"), table);
        assert_eq!(
            (site.read("both/0"), site.read("both/1")),
            (table.into(), table.into())
        );
        // Both nodes hold the table already.
        assert_eq!(site.moved().get(&("peer".into(), 1)), None);
        site.leaves_nothing_on_its_tier();
    }
}

const EXEC: &str = r#"
set -- $(cut -d ' ' -f 1 "$TARN_HOSTFILE")
[ $# = 2 ] && [ "$1" = "$TARN_NODE" ] || exit 10
grep -c 'slots=1$' "$TARN_HOSTFILE" | grep -qx 2 || exit 11
test "$(echo in | tarn exec $2 -- cat)" = in || exit 12
code=0; tarn exec $2 -- sh -c 'exit 9' || code=$?; test $code = 9 || exit 13
test "$(tarn exec $2 -- printenv TARN_NODE)" = $2 || exit 14
test "$(MINE='a b' tarn exec $2 -- printenv MINE)" = 'a b' || exit 15
test "$(tarn exec $2 -- printenv TARN_made)" = "$TARN_made" || exit 16
test "$(tarn exec $2 -- cat $TARN_raw/top)" = "$(cat $TARN_raw/top)" || exit 17
tarn exec $2 -- sh -c 'echo two > $TARN_made/two' || exit 18
test ! -e $TARN_made/two || exit 19
tarn exec nobody -- true && exit 20
echo one > $TARN_made/one
echo "$TARN_made $TARN_raw" > $TARN_WORKFLOW_DIR/paths
"#;

#[test]
fn exec_reaches_the_other_node_under_the_same_paths() {
    let workflow = format!(
        r#"
name = "e"
[data.raw]
source = "raw"
[data.made]
scatter = "x{{rank}}"
dest = "made"
[[step]]
name = "reach"
nodes = 2
time = "60s"
run = '''{EXEC}'''
in = ["raw"]
out = ["made:scatter"]
"#
    );
    let Some(site) = site(&workflow) else { return };
    site.run().exits(0);
    let expected = [("one", "one\n"), ("two", "two\n")];
    let expected = expected.map(|(n, t)| (n.to_owned(), t.to_owned()));
    assert_eq!(tree(&site, "made"), expected.into_iter().collect());
    // Outside a step there is nothing under those paths.
    for path in site.read("paths").split_whitespace() {
        assert!(
            std::fs::read_dir(path).map_or(true, |mut d| d.next().is_none()),
            "{path}"
        );
    }
    site.tarn(&["exec", "n0", "--", "true"])
        .exits(255)
        .prints("step");
}

#[test]
fn without_namespaces_steps_of_two_nodes_are_refused_before_anything_starts() {
    let Some(site) = site(&foam(SOLVE)) else {
        return;
    };
    let site = site.with(&["--isolation", "off"]);
    let ran = site.run().exits(4).prints("--isolation off");
    assert!(
        ran.err.contains("workflow.toml") && ran.err.contains("solve"),
        "{}",
        ran.err
    );
    assert!(!site.path(".tarn/runs").exists(), "a run was begun");
    site.leaves_nothing_on_its_tier();
    // One node does: every distribution is `single` there.
    let mut one = site
        .read("workflow.toml")
        .replace("nodes = 2\ntasks = 4\n", "");
    one = one.replace(SOLVE, "cd $TARN_case && echo solved > top");
    site.write("workflow.toml", &one);
    site.run().exits(0);
    assert_eq!(site.read("case-out/top"), "solved\n");
}
