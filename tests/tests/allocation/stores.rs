//! External stores that hang.

use super::{Fixture, LATER, SOON, TIER, cluster};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use tarn_tests::slurm::{run_for_output, wait_until};

/// A process outside of Slurm, until this is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // If it has ended by itself there is nothing to end.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file system at this path that answers everything but reads of its file, for ever.
fn hanging(mut command: Command) -> Server {
    let mut server = command
        .stdout(Stdio::piped())
        .spawn()
        .map(Server)
        .expect("a file system");
    let mut line = String::new();
    let stdout = server.0.stdout.take().expect("its output");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    server
}

const HANGING: &str = r#"
name = "hanging"

[data.raw]
source = "store"

[data.made]

[data.all]
dest = "out"

[[step]]
name = "reads"
run = "cp $TARN_raw/big $TARN_all/big"
in = ["raw"]
out = ["all"]

[[step]]
name = "makes"
foreach = ["a", "b", "c", "d"]
run = "echo $TARN_ITEM > $TARN_made/$TARN_ITEM; touch $TARN_WORKFLOW_DIR/made-$TARN_ITEM"
out = ["made"]
"#;

/// The external store does not answer: all else continues, the status names the pending operations, and the run can be ended.
#[test]
fn the_external_store_hangs() {
    let Some(cluster) = cluster(2) else { return };
    let fixture = Fixture::new(&cluster, "alice", HANGING);
    run_for_output(&mut cluster.command("alice", &["mkdir", "work/store"])).expect("mkdir");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster/hanging-store.py");
    std::fs::copy(script, cluster.shared().join("store.py")).expect("a copy");
    let words = [
        "python3",
        "/shared/store.py",
        "/shared/home/alice/work/store",
    ];
    let _stores = [
        hanging(cluster.command("root", &words)),
        hanging(cluster.node(1).command("root", &words)),
        hanging(cluster.node(2).command("root", &words)),
    ];
    let running = fixture.start("-N2 -n16", &format!("tarn run {TIER} wf.toml"));
    let made = || {
        ["a", "b", "c", "d"]
            .iter()
            .all(|n| fixture.path(&format!("made-{n}")).exists())
    };
    let status = || fixture.shell("tarn status");
    let waits = wait_until("all else is done", SOON, || {
        made() && status().contains("4 done, 1 staging")
    });
    waits.unwrap_or_else(|e| panic!("{e:#}: {}", status()));
    let shown = status();
    assert!(
        shown.contains("raw v0  external in") && shown.contains("its source"),
        "{shown}"
    );
    eprintln!("{shown}");
    let begun = Instant::now();
    let cancelled = fixture.shell("tarn cancel");
    assert!(cancelled.contains("has stopped"), "{cancelled}");
    let (code, text) = running.end();
    assert_eq!(code, Some(143), "{text}");
    eprintln!("ended after {:.1?}", begun.elapsed());
    // The kernel releases no process that reads there: tarnd has ended but for that.
    let stop = ["pkill", "-KILL", "-f", "/shared/[s]tore.py"];
    cluster.exec("root", &stop).expect("the stores' end");
    for node in 1..=2 {
        let gone = wait_until("tarnd's end", SOON, || {
            let alive = ["pgrep", "-x", "tarnd"];
            cluster.node(node).exec("root", &alive).is_err()
        });
        gone.unwrap_or_else(|e| panic!("{e:#} on node{node}"));
    }
}

/// A store that does not even list its files: the run does not begin, and a message names the pending operation.
#[test]
fn the_external_store_is_mute() {
    let Some(cluster) = cluster(1) else { return };
    let fixture = Fixture::new(&cluster, "alice", HANGING);
    run_for_output(&mut cluster.command("alice", &["mkdir", "work/store"])).expect("mkdir");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster/hanging-store.py");
    std::fs::copy(script, cluster.shared().join("store.py")).expect("a copy");
    let store = "/shared/home/alice/work/store";
    let words = ["python3", "/shared/store.py", store, "mute"];
    let _store = hanging(cluster.command("root", &words));
    let command = format!("bash -c 'exec tarn run {TIER} wf.toml 2> told'");
    let running = fixture.start("-N1", &command);
    // Until the store is gone the kernel does not release a process that reads it: the message comes before.
    let stderr = || std::fs::read_to_string(fixture.path("told")).unwrap_or_default();
    let waited = wait_until("a word", LATER, || {
        stderr().contains("does not answer for 20s")
    });
    waited.unwrap_or_else(|e| panic!("{e:#}: {}", stderr()));
    assert!(
        stderr().contains("the source of dataset `raw`"),
        "{}",
        stderr()
    );
    let stop = ["pkill", "-KILL", "-f", "/shared/[s]tore.py"];
    cluster.exec("root", &stop).expect("the store's end");
    assert_eq!(running.end().0, Some(5), "{}", stderr());
}
