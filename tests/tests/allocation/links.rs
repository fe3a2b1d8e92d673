//! Nodes that differ: links between them are measured before a run, no node is believed more than its bytes prove, and one with an
//! older tarnd is named.

use crate::{Fixture, LATER, SPREAD, TIER, ended};
use std::process::Command;
use tarn_proto::node::VERSION;
use tarn_tests::programs::install;
use tarn_tests::slurm::{Cluster, wait_until};

/// The links in the output of `tarn nodes`: in the order of the readers, bytes a second; and the rate that is planned with.
fn links(output: &str) -> (Vec<f64>, f64) {
    let value: serde_json::Value =
        serde_json::from_str(output).unwrap_or_else(|e| panic!("{e}: {output}"));
    let rates = value["links"].as_array().into_iter().flatten();
    let rates: Option<Vec<f64>> = rates.map(|link| link["rate"].as_f64()).collect();
    let rates = rates.unwrap_or_else(|| panic!("{output}"));
    let planned = value["peer"]["read"].as_f64();
    (rates, planned.unwrap_or_else(|| panic!("{output}")))
}

/// The second node's cable is slow: the links to and from it are found to be, once.
pub(crate) fn links_are_measured(cluster: &Cluster) {
    const MBIT: u32 = 200;
    /// Each takes a tenth of a second, in which all nodes may be busy with something else: they are one machine.
    const MEASUREMENTS: usize = 6;
    let fixture = Fixture::new(cluster, "alice", "");
    let shape = |rate| {
        let shaped = cluster.node(2).shape_link(rate);
        shaped.unwrap_or_else(|e| panic!("{e:#}"));
    };
    let json = format!("tarn --json nodes {TIER}");
    let share = |rate: f64| rate * 8.0 / (f64::from(MBIT) * 1e6);
    let (slow, fast) = (
        |rate: &f64| (0.7..1.2).contains(&share(*rate)),
        |rate: &f64| share(*rate) > 2.0,
    );
    // Other work of the machine makes a link slower, never faster: the best of each counts.
    let measured = |as_they_are: &dyn Fn(&[f64]) -> bool| {
        let (mut all, mut best) = (Vec::new(), [0.0_f64; 4]);
        for _ in 0..MEASUREMENTS {
            let anew = format!("bash -c 'rm -rf .tarn/hosts; {json} > measured'");
            fixture.run("-N4 -n32", &anew);
            let found = links(&fixture.read("measured"));
            assert_eq!(found.0.len(), best.len(), "{found:?}");
            for (best, rate) in best.iter_mut().zip(&found.0) {
                *best = best.max(*rate);
            }
            if as_they_are(&best) {
                return found;
            }
            all.push(found);
        }
        panic!("{all:?}");
    };
    shape(Some(MBIT));
    // Each reads from the next one.
    let (rates, planned) = measured(&|rates| match rates {
        [from_it, by_it, others @ ..] => {
            slow(from_it) && slow(by_it) && others.len() == 2 && others.iter().all(fast)
        }
        _ => false,
    });
    // Half of the links are at least as fast.
    let mut sorted = rates.clone();
    sorted.sort_by(f64::total_cmp);
    assert_eq!(planned, sorted[1]);
    shape(None);
    let again = format!("bash -c '{json} > again'");
    fixture.run("-N4 -n32", &again);
    let again = links(&fixture.read("again"));
    assert_eq!(again, (rates, planned), "it is remembered");
    measured(&|rates| rates.iter().all(fast));
    let shown = format!("bash -ec 'tarn nodes {TIER} > text; tarn nodes --nodes 1 {TIER} > one'");
    fixture.run("-N4 -n32", &shown);
    let text = fixture.read("text");
    for wanted in [
        "node1 reads from node2: ",
        "node4 reads from node1: ",
        "is planned with",
    ] {
        assert!(text.contains(wanted), "{text}");
    }
    // One node has nothing to measure.
    let one = fixture.read("one");
    assert!(
        !one.contains("reads from") && one.contains("node1"),
        "{one}"
    );
}

/// The output of one node comes to another one, once it may; where it is stored meanwhile it can be changed.
const TRUSTED: &str = r#"
name = "trusted"

[data.made]
KEPT

[data.go]

[data.seen]
dest = "seen"

[[step]]
name = "make"
run = "for n in 1 2 3; do (yes line $n || true) | head -c 3000000 > $TARN_made/f$n; done; echo $TARN_NODE >> $TARN_WORKFLOW_DIR/made"
out = ["made"]

[[step]]
name = "wait"
after = ["make"]
run = "while [ ! -e $TARN_WORKFLOW_DIR/go ]; do sleep 0.1; done; echo go > $TARN_go/go"
out = ["go"]

[[step]]
name = "look"
nodes = 2
run = "cat $TARN_HOSTFILE; cd $TARN_made && md5sum * > $TARN_seen/here && tarn exec $(sed -n 2p $TARN_HOSTFILE | cut -d ' ' -f 1) -- bash -c 'cd $TARN_made && md5sum *' > $TARN_seen/there"
in = ["made", "go"]
out = ["seen:single"]
"#;

/// Runs it, while somebody changes a file of the first replica. The output of tarn, and the nodes that made the data.
fn disturbed(fixture: &Fixture<'_>, kept: &str, change: &str) -> (String, Vec<String>) {
    let clean = fixture.shell("rm -rf .tarn seen out made go");
    assert_eq!(clean, "");
    fixture.write("wf.toml", &TRUSTED.replace("KEPT", kept));
    let running = fixture.start(
        "-N2 -n16",
        &format!("tarn run {TIER} --external-rate 20MB/s wf.toml"),
    );
    let there = |name: &str| fixture.path(name).exists();
    let named = || there("made") && !fixture.read("made").is_empty();
    let made = || named() && (kept.is_empty() || there("out/f3"));
    let waited = wait_until("what is made", LATER, made);
    waited.unwrap_or_else(|e| panic!("{e:#}"));
    let node = fixture.read("made");
    let number = node
        .trim()
        .strip_prefix("node")
        .and_then(|n| n.parse().ok());
    let number: usize = number.unwrap_or_else(|| panic!("{node}"));
    // It is there soon after the step has named its node.
    let change = format!(
        "set -e; until f=$(find /scm/alice/trusted-*/node{number}/parts -name f2 2> /dev/null); [ -f \"$f\" ]; do sleep 0.1; done; {change}"
    );
    let words = ["bash", "-c", &change];
    let changed = fixture.cluster.node(number).exec("root", &words);
    changed.unwrap_or_else(|e| panic!("{e:#}"));
    fixture.write("go", "");
    let (status, text) = running.end();
    assert_eq!(status, Some(0), "{change}:\n{text}");
    let nodes = fixture.read("made").lines().map(str::to_owned).collect();
    (text, nodes)
}

/// A node's replica is not as in its manifest: that is found out, and the run gets it elsewhere or has it made again.
pub(crate) fn liars_are_found_out(cluster: &Cluster) {
    let fixture = Fixture::new(cluster, "alice", "");
    let mut sums = Command::new("bash");
    sums.args([
        "-c",
        "for n in 1 2 3; do echo \"$(yes line $n | head -c 3000000 | md5sum | cut -c -32)  f$n\"; done",
    ]);
    let sums = sums.output().expect("md5sum").stdout;
    let sums = String::from_utf8(sums).expect("text");
    let out = "dest = \"out\"";
    let cases = [
        // Shorter than in its manifest: nobody else has it, so it is made again.
        ("truncate -s -1 $f", "", 2, "shorter than in its manifest"),
        // Of the length in its manifest, with another content.
        (
            "printf X | dd of=$f bs=1 seek=1000000 conv=notrunc status=none",
            "",
            2,
            "f2",
        ),
        // The copy that was brought out is whole: it is read there, and the data made once.
        ("truncate -s 7 $f", out, 1, "shorter than in its manifest"),
        // Longer than in its manifest: no other node requests the rest. Steps on its own node read it as it is.
        ("echo more >> $f", "", 1, ""),
    ];
    for (change, kept, times, expected) in cases {
        let (text, nodes) = disturbed(&fixture, kept, change);
        assert_eq!(nodes.len(), times, "{change}: {nodes:?}\n{text}");
        assert_eq!(fixture.read("seen/there"), sums, "{change}\n{text}");
        let log = fixture.read(".tarn/runs/trusted-1/events.log");
        let failed: Vec<&str> = log
            .lines()
            .filter(|l| l.contains("\"transfer-failed\""))
            .collect();
        match expected.is_empty() {
            true => assert!(failed.is_empty(), "{failed:?}"),
            false => {
                assert_eq!(fixture.read("seen/here"), sums, "{change}\n{text}");
                assert_eq!(failed.len(), 1, "it is not asked again: {failed:?}");
                let who = nodes.first().map_or("", String::as_str);
                for wanted in [who, expected] {
                    assert!(failed[0].contains(wanted), "{wanted}: {failed:?}");
                }
            }
        }
    }
}

/// On one node an older tarnd is installed: it is named, and nothing is begun.
pub(crate) fn an_older_tarnd_is_refused(cluster: &Cluster) {
    install(cluster, &["elder"]).unwrap_or_else(|e| panic!("{e:#}"));
    let on_second = |command: &str| {
        let done = cluster.node(2).exec("root", &["bash", "-c", command]);
        done.unwrap_or_else(|e| panic!("{e:#}"))
    };
    on_second("mount --bind /shared/bin/elder /shared/bin/tarnd");
    let fixture = Fixture::new(cluster, "bob", SPREAD);
    fixture.write("in/f10", "piece\n");
    let run = format!("tarn run {TIER} wf.toml");
    let (status, text) = ended(fixture.allocated("-N3 -n24", &run));
    assert_eq!(status, Some(4), "{text}");
    let versions = [VERSION - 1, VERSION].map(|v| format!("version {v}"));
    for wanted in [
        "node node2",
        "0.0.9",
        &versions[0],
        &versions[1],
        "same release",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    assert!(!fixture.path(".tarn/runs/spread-1").exists(), "{text}");
    for node in 1..=3 {
        let alive = cluster.node(node).exec("root", &["pgrep", "-x", "tarnd"]);
        assert!(alive.is_err(), "tarnd still runs on node{node}");
    }
    // Without that node, and with it once it has the same release.
    fixture.run("-N2 -n16 -x node2", &run);
    on_second("umount /shared/bin/tarnd");
    let text = fixture.run("-N3 -n24", &run);
    assert!(text.contains("unchanged"), "{text}");
}
