//! An object store outside, over the nodes of an allocation.

use super::{Fixture, LATER, TIER, began, cluster, wait_for_begin};
use serde_json::Value;
use std::time::Duration;
use tarn_tests::objects::{Objects, SECRET};
use tarn_tests::slurm::wait_until;

/// Twelve objects and a large one, a step each that notes its node, and one that gathers them.
const BOOKS: &str = r#"
name = "books"

[data.text]
source = "s3://books/in/"

[data.piece]

[data.all]
dest = "s3://books/out/"

[[step]]
name = "work"
foreach = "text/*"
cores = 2
run = "sleep 0.3; tr a-z A-Z < $TARN_text/$TARN_ITEM > $TARN_piece/$TARN_ITEM; echo $TARN_NODE > $TARN_piece/$TARN_ITEM.node"
in = ["text/{item}"]
out = ["piece"]

[[step]]
name = "gather"
run = "cat $TARN_piece/f?? > $TARN_all/text; cp $TARN_piece/large $TARN_all/; cat $TARN_piece/*.node | sort -u > $TARN_all/nodes; ln -s text $TARN_all/link"
in = ["piece"]
out = ["all"]
"#;

/// Bytes of the large object: more than is put in one piece.
const LARGE: u64 = 12 << 20;
/// Bytes a second.
const RATE: f64 = 8e6;

/// Kind, bytes and seconds of each transfer that a run has ended.
fn transfers(fixture: &Fixture<'_>, run: &str) -> Vec<(String, u64, f64)> {
    let log = fixture.read(&format!(".tarn/runs/{run}/events.log"));
    let records = log
        .lines()
        .skip(1)
        .filter_map(|l| l.find('{').map(|at| &l[at..]));
    let records: Vec<Value> = records.map(|r| serde_json::from_str(r).expect(r)).collect();
    let actions = records.iter().filter_map(|r| r["actions"].as_array());
    let orders: Vec<&Value> = actions
        .flatten()
        .filter(|a| a["do"] == "transfer")
        .collect();
    let done = records.iter().filter(|r| r["event"] == "transfer-done");
    let all = done.map(|r| {
        let order = orders
            .iter()
            .find(|o| o["id"] == r["id"])
            .expect("its order");
        let kind = order["kind"].as_str().expect("a kind").to_owned();
        let took = r["took"].as_f64().expect("nanoseconds") / 1e9;
        (kind, r["bytes"].as_u64().expect("bytes"), took)
    });
    all.collect()
}

/// Sources are read by the nodes, the result goes out from where it is, all of it at the requested rate.
#[test]
fn nodes_read_from_an_object_store_and_deliver_there() {
    let Some(cluster) = cluster(3) else { return };
    let store = Objects::start(&cluster);
    store.client_output(&["bucket", "books"]);
    let mut wanted = String::new();
    let mut put = vec!["put".to_owned(), "books".to_owned()];
    for n in 10..22 {
        put.extend([format!("in/f{n}"), format!("piece {n}\n")]);
        wanted.push_str(&format!("PIECE {n}\n"));
    }
    store.client_output(&put.iter().map(String::as_str).collect::<Vec<_>>());
    store.client_output(&["fill", "books", "in/large", &LARGE.to_string()]);
    let fixture = Fixture::new(&cluster, "alice", BOOKS);
    // The inputs of the run are known, and so are missing ones, before a node does anything.
    let plan = format!("{} tarn plan {TIER} wf.toml", store.variables());
    let plan = fixture.run("-N3 -n24", &plan);
    assert!(plan.contains("12.00 MiB in"), "{plan}");
    fixture.write("none.toml", &BOOKS.replace("books/in/", "books/nothing/"));
    let none = format!("{} tarn run {TIER} none.toml", store.variables());
    let (status, none) = fixture.start("-N3 -n24", &none).end();
    assert_eq!(status, Some(3), "{none}");
    assert!(
        none.contains("there is nothing at s3://books/nothing/"),
        "{none}"
    );
    assert!(!fixture.path(".tarn/runs/books-1").exists());
    let run = format!(
        "{} tarn run {TIER} --external-rate 8MB/s wf.toml",
        store.variables()
    );
    let output = fixture.run("-N3 -n24", &run);
    assert_eq!(
        store.client_output(&["get", "books", "out/text"]),
        wanted,
        "{output}"
    );
    assert_eq!(
        store.client_output(&["get", "books", "out/nodes"]),
        "node1\nnode2\nnode3\n"
    );
    // An object without letters is as it was.
    let sum = |key| store.client_output(&["sum", "books", key]);
    assert_eq!(sum("out/large"), sum("in/large"));
    assert_eq!(
        store.keys("books", "out/"),
        ["out/.tarn-manifest", "out/large", "out/nodes", "out/text"]
    );
    let moved = transfers(&fixture, "books-1");
    for kind in ["external-in", "external-out"] {
        let of_kind = || moved.iter().filter(|(k, ..)| k == kind);
        let bytes: u64 = of_kind().map(|(_, bytes, _)| bytes).sum();
        assert!(
            (LARGE..LARGE + 1000).contains(&bytes),
            "{kind}: {bytes}\n{output}"
        );
        for (_, bytes, took) in of_kind() {
            // 2 ms may run ahead.
            assert!(
                *took > *bytes as f64 / RATE - 0.003,
                "{bytes} bytes in {took} s"
            );
        }
    }
    assert!(
        output.contains("12.00 MiB in") && output.contains("12.00 MiB out"),
        "{output}"
    );
    // Again, from other nodes: nothing has changed, nothing runs. A changed object is read.
    let again = format!("{} tarn run {TIER} wf.toml", store.variables());
    let output = fixture.run("-N2 -n16", &again);
    assert!(output.contains("0 run, 14 unchanged"), "{output}");
    store.client_output(&["put", "books", "in/f10", "another\n"]);
    fixture.run("-N2 -n16", &again);
    let text = store.client_output(&["get", "books", "out/text"]);
    assert_eq!(text, wanted.replace("PIECE 10", "ANOTHER"));
    // Nothing that tarn keeps has the secret.
    let found = fixture.shell(&format!(
        "grep -rlaE '{SECRET}|X-Amz-Signature' .tarn; true"
    ));
    assert_eq!(found, "");
}

/// A dataset without a `dest` goes to the store from the node that has it, and comes from there to the node that needs it.
#[test]
fn nodes_stage_through_an_object_store() {
    let Some(cluster) = cluster(2) else { return };
    let store = Objects::start(&cluster);
    store.client_output(&["bucket", "through"]);
    store.client_output(&["put", "through", "in/f10", "one\n", "in/f11", "two\n"]);
    store.client_output(&["fill", "through", "in/large", &LARGE.to_string()]);
    let external = "name = \"books\"\nexternal = \"s3://through/ext/\"";
    let through = BOOKS
        .replace("name = \"books\"", external)
        .replace("s3://books/", "s3://through/");
    let fixture = Fixture::new(&cluster, "alice", &through);
    let run = format!(
        "{} tarn run {TIER} --policy stage-through wf.toml",
        store.variables()
    );
    let output = fixture.run("-N2 -n16", &run);
    let text = store.client_output(&["get", "through", "out/text"]);
    assert_eq!(text, "ONE\nTWO\n", "{output}");
    let moved = transfers(&fixture, "books-1");
    for kind in ["external-in", "external-out"] {
        let of_kind = moved.iter().filter(|(k, ..)| k == kind);
        let bytes: u64 = of_kind.map(|(_, bytes, _)| bytes).sum();
        assert!(bytes >= 2 * LARGE, "{kind}: {bytes}\n{output}");
    }
    let none: [&str; 0] = [];
    assert_eq!(store.keys("through", "ext/"), none, "{output}");
    assert!(store.uploads("through").is_empty(), "{output}");
}

/// One step whose result takes a while to go out.
const SLOW: &str = r#"
name = "slow"

[data.end]
dest = "s3://slow/out/"

[[step]]
name = "make"
run = "echo $TARN_NODE >> $TARN_WORKFLOW_DIR/began; seq -f %07g 3000000 > $TARN_end/large; echo small > $TARN_end/small"
out = ["end"]
"#;

/// The node that delivers is gone in the middle, then all of the run is.
#[test]
fn a_delivery_to_an_object_store_is_interrupted() {
    let Some(cluster) = cluster(3) else { return };
    let store = Objects::start(&cluster);
    store.client_output(&["bucket", "slow"]);
    let fixture = Fixture::new(&cluster, "alice", SLOW);
    let wanted = fixture.shell("seq -f %07g 3000000 | md5sum | cut -d ' ' -f 1");
    let slow = format!(
        "{} tarn run {TIER} --external-rate 3MB/s wf.toml",
        store.variables()
    );
    let under_way = || {
        let is_begun = || store.uploads("slow").iter().any(|parts| *parts > 0);
        let waited = wait_until("a part is there", LATER, is_begun);
        waited.unwrap_or_else(|e| panic!("{e:#}"));
        assert!(store.keys("slow", "out/.tarn-upload").len() == 1);
    };
    let is_whole = |output: &str| {
        assert_eq!(
            store.client_output(&["sum", "slow", "out/large"]),
            wanted,
            "{output}"
        );
        let keys = ["out/.tarn-manifest", "out/large", "out/small"];
        assert_eq!(store.keys("slow", "out/"), keys, "{output}");
        // The upload that was interrupted has ended.
        let uploads = store.uploads("slow");
        assert!(uploads.is_empty(), "{uploads:?}: {output}");
    };
    let running = fixture.start("-N3 -n24 --no-kill", &slow);
    let node = wait_for_begin(&fixture, 1);
    under_way();
    cluster
        .node(node)
        .power_cut()
        .unwrap_or_else(|e| panic!("{e:#}"));
    let (status, output) = running.end();
    assert_eq!(status, Some(0), "{output}");
    assert!(
        output.contains(&format!("node{node}")) && output.contains("is lost ("),
        "{output}"
    );
    assert_ne!(began(&fixture), [node]);
    is_whole(&output);
    // Another version of it, on the other nodes, once Slurm knows of which it has none, and the whole run is killed.
    let down = ["sinfo", "-h", "-n", &format!("node{node}"), "-o", "%t"];
    let waited = wait_until("Slurm misses the node", LATER, || {
        let state = cluster.exec("root", &down);
        state.is_ok_and(|state| state.starts_with("down"))
    });
    waited.unwrap_or_else(|e| panic!("{e:#}"));
    fixture.write("wf.toml", &SLOW.replace("echo small", "echo smaller"));
    let times = began(&fixture).len();
    let running = fixture.start("-N2 -n16", &slow);
    wait_for_begin(&fixture, times + 1);
    // Objects that were there are not sent again: only a large file with other content is.
    let (status, output) = running.end();
    assert_eq!(status, Some(0), "{output}");
    is_whole(&output);
    assert_eq!(
        store.client_output(&["get", "slow", "out/small"]),
        "smaller\n"
    );
    let other = SLOW.replace("seq -f %07g 3000000", "seq -f %07g 3000001");
    fixture.write("wf.toml", &other);
    let wanted = fixture.shell("seq -f %07g 3000001 | md5sum | cut -d ' ' -f 1");
    let running = fixture.start("-N2 -n16", &slow);
    under_way();
    let kill = ["pkill", "-KILL", "-u", "alice", "-x", "tarn"];
    cluster
        .exec("root", &kill)
        .unwrap_or_else(|e| panic!("{e:#}"));
    running.end();
    let gone = wait_until("the nodes are free", Duration::from_secs(60), || {
        let jobs = cluster.exec("root", &["squeue", "-h"]);
        jobs.is_ok_and(|jobs| jobs.trim().is_empty())
    });
    gone.unwrap_or_else(|e| panic!("{e:#}"));
    // The tree has old and new objects: nothing marks it as whole.
    assert!(
        !store
            .keys("slow", "out/")
            .contains(&"out/.tarn-manifest".to_owned())
    );
    let output = fixture.run("-N2 -n16", &format!("{} tarn resume", store.variables()));
    assert_eq!(
        store.client_output(&["sum", "slow", "out/large"]),
        wanted,
        "{output}"
    );
    assert!(store.uploads("slow").is_empty(), "{output}");
    assert_eq!(store.keys("slow", "out/.tarn").len(), 1, "{output}");
}
