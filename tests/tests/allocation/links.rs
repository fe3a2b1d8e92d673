//! Nodes that differ: links between them are measured before a run, no node is believed more than its bytes prove, and one with an
//! older tarnd is named.

use crate::{Desk, LATER, SPREAD, TIER, ended};
use std::path::Path;
use std::process::Command;
use tarn_tests::programs::install;
use tarn_tests::slurm::{Cluster, wait_until};

/// What `tarn nodes` says of the links: in the order of the readers, bytes a second; and the rate that is planned with.
fn links(desk: &Desk<'_>) -> (Vec<f64>, f64) {
    let text = desk.run("-N4 -n32", &format!("tarn --json nodes {TIER}"));
    // What is said on standard error follows it.
    let json = serde_json::Deserializer::from_str(&text);
    let value: Option<serde_json::Value> = json.into_iter().next().and_then(Result::ok);
    let value = value.unwrap_or_else(|| panic!("{text}"));
    let of = |link: &serde_json::Value| link["rate"].as_f64();
    let rates = value["links"].as_array().into_iter().flatten().map(of);
    let rates: Option<Vec<f64>> = rates.collect();
    let rates = rates.unwrap_or_else(|| panic!("{text}"));
    let planned = value["peer"]["read"].as_f64();
    (rates, planned.unwrap_or_else(|| panic!("{text}")))
}

/// The second node's cable is slow: the links to and from it are found to be, once.
pub(crate) fn links_are_measured(cluster: &Cluster) {
    const MBIT: u32 = 200;
    let desk = Desk::new(cluster, "alice", "");
    let shape = |rate| {
        let shaped = cluster.node(2).shape_link(rate);
        shaped.unwrap_or_else(|e| panic!("{e:#}"));
    };
    shape(Some(MBIT));
    let (slow, planned) = links(&desk);
    let share = |rate: f64| rate * 8.0 / (f64::from(MBIT) * 1e6);
    // Each reads from the next one.
    let [first, second, third, fourth] = slow[..] else {
        panic!("{slow:?}")
    };
    for rate in [first, second] {
        assert!((0.7..1.2).contains(&share(rate)), "{slow:?}");
    }
    for rate in [third, fourth] {
        assert!(share(rate) > 2.0, "{slow:?}");
    }
    // Two of four are as slow as that: half of the links are at least as fast as the slower of the two in the middle.
    assert_eq!(planned, first.max(second));
    shape(None);
    assert_eq!(links(&desk), (slow, planned), "it is remembered");
    let forget = desk.shell("rm -r .tarn/hosts && tarn --version");
    assert!(forget.contains("tarn"), "{forget}");
    let (fast, _) = links(&desk);
    assert!(fast.iter().all(|rate| share(*rate) > 2.0), "{fast:?}");
    let text = desk.run("-N2 -n16", &format!("tarn nodes {TIER}"));
    assert!(
        text.contains("node1 reads from node2: ") && text.contains("is planned with"),
        "{text}"
    );
    // One node has nothing to measure.
    let text = desk.run("-N1 -n8", &format!("tarn nodes {TIER}"));
    assert!(!text.contains("reads from"), "{text}");
}

/// What one node has made comes to another one, once it may; where it lies meanwhile it can be changed.
const TRUSTED: &str = r#"
name = "trusted"

[data.made]
KEPT

[data.go]

[data.seen]
dest = "seen"

[[step]]
name = "make"
run = "for n in 1 2 3; do yes line $n | head -c 3000000 > $TARN_made/f$n; done; echo $TARN_NODE >> $TARN_WORKFLOW_DIR/made"
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

/// Runs it, with somebody changing a file of the first replica, and on which node that is; what tarn said, and where it was made.
fn disturbed(desk: &Desk<'_>, kept: &str, change: &str) -> (String, Vec<String>) {
    let clean = desk.shell("rm -rf .tarn seen out made go");
    assert_eq!(clean, "");
    desk.write("wf.toml", &TRUSTED.replace("KEPT", kept));
    let running = desk.start(
        "-N2 -n16",
        &format!("tarn run {TIER} --external-rate 20MB/s wf.toml"),
    );
    let there = |name: &str| desk.path(name).exists();
    let made = || there("made") && (kept.is_empty() || there("out/f3"));
    let waited = wait_until("what is made", LATER, made);
    waited.unwrap_or_else(|e| panic!("{e:#}"));
    let node = desk.read("made");
    let number = node
        .trim()
        .strip_prefix("node")
        .and_then(|n| n.parse().ok());
    let number: usize = number.unwrap_or_else(|| panic!("{node}"));
    let change = format!(
        "set -e; cd /scm/alice/trusted-*/node{number}/parts; f=$(find . -name f2); [ -f \"$f\" ]; {change}"
    );
    let words = ["bash", "-c", &change];
    let changed = desk.cluster.node(number).exec("root", &words);
    changed.unwrap_or_else(|e| panic!("{e:#}"));
    desk.write("go", "");
    let (status, text) = running.end();
    assert_eq!(status, Some(0), "{change}:\n{text}");
    let nodes = desk.read("made").lines().map(str::to_owned).collect();
    (text, nodes)
}

/// A node's replica is not what it says: that is found out, and the run gets it elsewhere or has it made again.
pub(crate) fn liars_are_found_out(cluster: &Cluster) {
    let desk = Desk::new(cluster, "alice", "");
    let mut sums = Command::new("bash");
    sums.args([
        "-c",
        "for n in 1 2 3; do echo \"$(yes line $n | head -c 3000000 | md5sum | cut -c -32)  f$n\"; done",
    ]);
    let sums = sums.output().expect("md5sum").stdout;
    let sums = String::from_utf8(sums).expect("text");
    let out = "dest = \"out\"";
    let cases = [
        // Shorter than it says: nobody else has it, so it is made again.
        ("truncate -s -1 $f", "", 2, "shorter than its manifest says"),
        // Of the length that it says, with another content.
        (
            "printf X | dd of=$f bs=1 seek=1000000 conv=notrunc status=none",
            "",
            2,
            "f2",
        ),
        // What was brought out is whole: it is read there, and made once.
        ("truncate -s 7 $f", out, 1, "shorter than its manifest says"),
        // Nothing is left of it.
        ("rm -r ./*", "", 2, "not there any more"),
        // Longer than it says: nobody asks for the rest.
        ("echo more >> $f", "", 1, ""),
    ];
    for (change, kept, times, said) in cases {
        let (text, nodes) = disturbed(&desk, kept, change);
        assert_eq!(nodes.len(), times, "{change}: {nodes:?}\n{text}");
        for seen in ["seen/here", "seen/there"] {
            assert_eq!(desk.read(seen), sums, "{change}: {seen}\n{text}");
        }
        let log = Path::new(".tarn/runs/trusted-1/events.log");
        let log = desk.read(&log.display().to_string());
        let failed: Vec<&str> = log
            .lines()
            .filter(|l| l.contains("\"transfer-failed\""))
            .collect();
        println!("{change}: {failed:#?}\n{text}");
        match said.is_empty() {
            true => assert!(failed.is_empty(), "{failed:?}"),
            false => {
                assert_eq!(failed.len(), 1, "it is not asked again: {failed:?}");
                let who = nodes.first().map_or("", String::as_str);
                for wanted in [who, said] {
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
    let desk = Desk::new(cluster, "bob", SPREAD);
    desk.write("in/f10", "piece\n");
    let run = format!("tarn run {TIER} wf.toml");
    let (status, text) = ended(desk.allocated("-N3 -n24", &run));
    assert_eq!(status, Some(4), "{text}");
    for wanted in [
        "node node2",
        "0.0.9",
        "version 2",
        "version 3",
        "same release",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    assert!(!desk.path(".tarn/runs/spread-1").exists(), "{text}");
    for node in 1..=3 {
        let alive = cluster.node(node).exec("root", &["pgrep", "-x", "tarnd"]);
        assert!(alive.is_err(), "tarnd still runs on node{node}");
    }
    // Without that node, and with it once it has the same release.
    desk.run("-N2 -n16 -x node2", &run);
    on_second("umount /shared/bin/tarnd");
    let text = desk.run("-N3 -n24", &run);
    assert!(text.contains("unchanged"), "{text}");
}
