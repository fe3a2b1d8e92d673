//! `tarn status --watch`: a run in progress, from its state folder alone.

mod common;
use common::{Ran, Site, send, until};
use rustix::process::Signal;
use serde_json::Value;
use std::process::Stdio;

const SLOW: &str = r#"
name = "slow"
[data.raw]
source = "raw"
[data.made]
dest = "made"
[[step]]
name = "take"
foreach = "raw/*"
run = "sleep 2; wc -c < $TARN_raw/$TARN_ITEM > $TARN_made/$TARN_ITEM"
in = ["raw/{item}"]
out = ["made"]
"#;

/// Three files come in at 3 MB/s together, each is worked on for two seconds.
fn slow() -> Site {
    let site = Site::new(SLOW).with(&["--nodes", "3", "--external-rate", "3 MB/s"]);
    for name in ["a", "b", "c"] {
        site.write(&format!("raw/{name}"), &name.repeat(4_000_000));
    }
    site
}

/// A `tarn status --watch` of a site, which ends by itself.
fn watched(site: &Site, more: &[&str]) -> std::process::Child {
    let mut command = site.command(&[&["status", "--watch"], more].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("tarn starts")
}

fn list<'a>(status: &'a Value, name: &str) -> &'a [Value] {
    status[name].as_array().expect("a list")
}

#[test]
fn a_run_is_watched_from_outside_until_it_ends() {
    let site = slow();
    let run = site.begin(&[]);
    let log = site.path(".tarn/runs/slow-1/events.log");
    until("the run begins", || site.tarn(&["status"]).code == Some(0));
    let (lines, objects) = (watched(&site, &[]), watched(&site, &["--json"]));
    let (lines, objects) = (Ran::end(lines).exits(0), Ran::end(objects).exits(0));
    Ran::end(run).exits(0);
    assert!(log.exists());
    let live = site.path(".tarn/runs/slow-1/live");
    assert!(!live.exists(), "what the run said of itself goes with it");

    let all: Vec<Value> = objects
        .out
        .lines()
        .map(|l| serde_json::from_str(l).expect("JSON"))
        .collect();
    let (last, before) = all.split_last().expect("some");
    assert!(before.len() >= 3, "{}", objects.out);
    assert!(before.iter().all(|s| s["alive"] == true));
    let times: Vec<u64> = all
        .iter()
        .filter_map(|s| s["elapsed_ns"].as_u64())
        .collect();
    let before_the_end = &times[..times.len() - 1];
    assert!(before_the_end.is_sorted(), "{times:?}");
    let moves = |t: &Value| {
        let bytes = |what: &str| t[what].as_u64();
        let inward = t["from"] == "its source" && t["kind"] == "external in";
        inward
            && bytes("done") > Some(0)
            && bytes("done") < bytes("bytes")
            && bytes("rate") > Some(0)
    };
    let sources = |s: &Value| list(s, "transfers").iter().any(moves);
    assert!(before.iter().any(sources), "{}", objects.out);
    let phased = |s: &&Value| list(s, "running").iter().any(|r| r["phase"] == "running");
    assert!(before.iter().any(|s| phased(&s)), "{}", objects.out);
    let busy = |s: &Value| list(s, "nodes").iter().any(|n| n["running"] == 1);
    assert!(before.iter().any(busy), "{}", objects.out);
    assert_eq!(list(last, "nodes").len(), 3);
    assert_eq!(list(last, "tiers").len(), 3);
    assert_eq!(
        (&last["outcome"], &last["alive"]),
        (&"done".into(), &false.into())
    );
    let moved = list(last, "moved")
        .iter()
        .find(|m| m["kind"] == "external in");
    assert_eq!(moved.expect("it moved")["bytes"], 12_000_000);

    let seconds = lines.out.lines().take_while(|l| l.starts_with('['));
    assert!(seconds.count() >= 3, "{}", lines.out);
    assert!(lines.out.contains("; moving raw v0 to "), "{}", lines.out);
    assert!(lines.out.contains("\nslow-1  done  "), "{}", lines.out);
}

#[test]
fn what_a_killed_run_said_last_is_not_believed() {
    let site = slow();
    let mut run = site.begin(&[]);
    let live = site.path(".tarn/runs/slow-1/live");
    until("the run says where it is", || live.exists());
    send(Signal::KILL, &run);
    run.wait().expect("wait");
    let status: Value = serde_json::from_str(&site.read(".tarn/runs/slow-1/live")).expect("JSON");
    assert_eq!(status["format"], 1);
    assert!(!list(&status, "transfers").is_empty(), "{status}");
    let now = site
        .tarn(&["status", "--watch", "--json"])
        .exits(0)
        .summary();
    assert_eq!(
        (&now["outcome"], &now["alive"]),
        (&"unfinished".into(), &false.into())
    );
    assert!(!list(&now, "transfers").is_empty(), "{now}");
    assert!(
        list(&now, "transfers").iter().all(|t| t["done"].is_null()),
        "{now}"
    );
    let text = site.tarn(&["status", "--watch"]).exits(0);
    let text = text
        .prints("slow-1  unfinished")
        .prints("its process is gone");
    assert!(!text.out.contains("RATE"), "{}", text.out);
    site.tarn(&["resume"]).exits(0);
    assert!(!live.exists());
}
