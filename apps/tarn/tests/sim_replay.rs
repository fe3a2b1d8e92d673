//! `tarn sim --replay` and `--calibrate` by the real binary, over logs of real runs.

mod common;

use common::{Ran, Site};
use serde_json::Value;
use std::collections::BTreeSet;
use tarn_journal::{LogReader, LogWriter};
use tarn_ports::{Journal, Record};

/// More than the tiers of two nodes hold; a step that fails once; one that changes what another made.
const FULL: &str = r#"
name = "full"
external = "external"
[data.src]
source = "src"
[data.big]
[data.small]
[data.notes]
dest = "notes"
[[step]]
name = "make"
foreach = ["1", "2", "3", "4", "5", "6", "7", "8"]
run = "head -c 2000000 /dev/zero > $TARN_big/$TARN_ITEM"
out = ["big"]
[[step]]
name = "look"
foreach = "big/*"
max = 100
run = "cat $TARN_src/s $TARN_big/$TARN_ITEM | wc -c > $TARN_small/$TARN_ITEM"
in = ["big/{item}", "src"]
out = ["small"]
[[step]]
name = "join"
retries = 1
run = """
test -e $TARN_WORKFLOW_DIR/tried || { touch $TARN_WORKFLOW_DIR/tried; exit 3; }
cat $TARN_small/* > $TARN_notes/n
"""
in = ["small"]
out = ["notes"]
[[step]]
name = "sign"
run = "echo signed >> $TARN_notes/n"
inout = ["notes"]
"#;

const LOG: &str = ".tarn/runs/full-1/events.log";

fn full() -> Site {
    let mut site = Site::new(FULL);
    site.write("src/s", &"x".repeat(1_000_000));
    for folder in ["slow", "external"] {
        std::fs::create_dir(site.path(folder)).expect("mkdir");
    }
    site.options = ["--nodes", "2", "--tier", "", "--tier", ""]
        .map(String::from)
        .to_vec();
    site.options[3] = format!("fast={}:3MiB", site.path("tier").display());
    site.options[5] = format!("slow={}:4MiB", site.path("slow").display());
    site
}

/// Replays a run and holds it to all of its records.
#[track_caller]
fn agrees(site: &Site, run: &str) -> Value {
    let replayed = site
        .tarn(&["sim", "--replay", run, "--json"])
        .exits(0)
        .summary();
    assert_eq!(replayed["difference"], Value::Null);
    assert_eq!(replayed["agreed_records"], replayed["records"]);
    assert_eq!(replayed["recorded_by"], serde_json::json!([]));
    replayed
}

/// The reasons of all actions in the newest run's log.
fn reasons(site: &Site) -> BTreeSet<String> {
    let log = site.log();
    let actions = log.iter().flat_map(|r| r["actions"].as_array());
    let reasons = actions
        .flatten()
        .filter_map(|a| a["why"]["reason"].as_str());
    reasons.map(String::from).collect()
}

fn read(site: &Site) -> Vec<Record> {
    let reader = LogReader::open(&site.path(LOG)).expect("a log");
    reader.collect::<Result<_, _>>().expect("records")
}

/// A log of these records, under another name.
fn write(site: &Site, name: &str, records: &[Record]) {
    let mut writer = LogWriter::create(&site.path(name)).expect("a log");
    writer.append(records).expect("records");
}

#[test]
fn full_tiers_and_failures_are_decided_again_as_they_were() {
    let site = full();
    site.run().exits(0);
    let happened = reasons(&site);
    for reason in [
        "demote-for-room",
        "drain-for-room",
        "promote-for-use",
        "fetch-peer",
        "retry",
    ] {
        assert!(happened.contains(reason), "no {reason} in {happened:?}");
    }
    let replayed = agrees(&site, "full-1");
    assert_eq!(replayed["records"], site.log().len());
    assert_eq!(replayed["resumed"], 0);
    let ran = site.tarn(&["sim", "--replay", LOG]).exits(0);
    let agree = format!(
        "{} records with {}",
        replayed["records"], replayed["agreed_actions"]
    );
    ran.prints(&agree);
}

#[test]
fn what_is_staged_through_is_decided_again_as_it_was() {
    let site = full().with(&["--policy", "stage-through"]);
    site.run().exits(0);
    assert!(reasons(&site).contains("stage-out"));
    agrees(&site, "full-1");
}

#[test]
fn resumed_runs_are_decided_again_as_they_were() {
    let site = full();
    for (times, at) in [30, 12].into_iter().enumerate() {
        let arguments = match times {
            0 => site.run_arguments(),
            _ => vec!["resume"],
        };
        let mut command = site.command(&arguments);
        let crashed = Ran::of(
            command
                .env("TARN_CRASH_AT", at.to_string())
                .output()
                .expect("tarn starts"),
        );
        assert_eq!(crashed.code, None, "{}", crashed.err);
        agrees(&site, "full-1");
    }
    site.tarn(&["resume"]).exits(0);
    let replayed = agrees(&site, "full-1");
    assert_eq!(replayed["resumed"], 2);
    site.tarn(&["sim", "--replay", "full-1"])
        .prints("resumed 2 times");
}

#[test]
fn the_first_difference_is_told() {
    let site = full();
    site.run().exits(0);
    let whole = read(&site);
    let is_run = |r: &Record| r.actions.len() > 1;
    let at = whole
        .iter()
        .rposition(is_run)
        .expect("a record with actions");
    let seq = whole[at].seq;
    // An action that was not recorded, one too many, and one that is another.
    let mut missing = whole.clone();
    let gone = missing[at].actions.pop().expect("an action");
    let mut more = whole.clone();
    more[at].actions.push(gone);
    let mut other = whole.clone();
    other[at].actions.reverse();
    for (name, records) in [("missing", &missing), ("more", &more), ("other", &other)] {
        write(&site, name, records);
        let replayed = site.tarn(&["sim", "--replay", name, "--json"]).exits(70);
        assert!(
            replayed.err.contains(&format!("from record {seq} on")),
            "{}",
            replayed.err
        );
        let value = replayed.summary();
        let difference = &value["difference"];
        assert_eq!(
            (&difference["seq"], &value["agreed_records"]),
            (&seq.into(), &at.into())
        );
        assert_eq!(difference["now_ns"], whole[at].now);
        assert_eq!(difference["recorded"].is_null(), name == "missing");
        assert_eq!(difference["decided"].is_null(), name == "more");
    }
    let ran = site.tarn(&["sim", "--replay", "more"]).exits(70);
    ran.prints(&format!("differs     record {seq}"))
        .prints("decided   nothing more")
        .prints("report it with the log");
}

#[test]
fn a_log_of_another_engine_is_said_to_be_one() {
    let site = full();
    site.run().exits(0);
    let mut records = read(&site);
    for record in &mut records {
        record.engine = 1;
    }
    write(&site, "same", &records);
    let same = site.tarn(&["sim", "--replay", "same"]).exits(0);
    same.prints("engine version 1")
        .prints("differences are expected");
    records.last_mut().expect("a record").actions.clear();
    write(&site, "differs", &records);
    let differs = site.tarn(&["sim", "--replay", "differs"]).exits(1);
    differs
        .prints("engine version 1")
        .prints("the tarn that wrote it");
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let site = full();
    site.tarn(&["sim", "--replay", "full-1"])
        .exits(7)
        .prints("no state folder");
    site.run().exits(0);
    site.tarn(&["sim", "--replay", "full-2"])
        .exits(7)
        .prints("Runs, newest first: full-1");
    site.tarn(&["sim", "--replay", "workflow.toml"]).exits(5);
    let records = read(&site);
    write(&site, "empty", &records[..0]);
    site.tarn(&["sim", "--replay", "empty"])
        .exits(7)
        .prints("before its first record");
    let mut headless = records[1..].to_vec();
    for (seq, record) in (0u64..).zip(&mut headless) {
        record.seq = seq;
    }
    write(&site, "headless", &headless);
    site.tarn(&["sim", "--replay", "headless"])
        .exits(5)
        .prints("does not begin with its start");
    for more in [
        ["--cluster", "c.toml"],
        ["--calibrate", "full-1"],
        ["--policy", "easy"],
        ["--seed", "3"],
    ] {
        let arguments = [&["sim", "--replay", "full-1"], &more[..]].concat();
        site.tarn(&arguments).exits(2).prints("cannot be used with");
    }
    site.tarn(&["sim"]).exits(2).prints("--cluster");
}

/// Four sleeps, one that reads what they made, and a delivery.
const SLEEPS: &str = r#"
name = "sleeps"
[data.src]
source = "src"
[data.mid]
[data.out]
dest = "out"
[[step]]
name = "nap"
foreach = ["a", "b", "c", "d"]
run = "sleep 0.2; cp $TARN_src/s $TARN_mid/$TARN_ITEM"
in = ["src"]
out = ["mid"]
[[step]]
name = "join"
run = "sleep 0.3; cat $TARN_mid/* > $TARN_out/all"
in = ["mid"]
out = ["out"]
"#;

fn sleeps(nodes: usize) -> Site {
    let mut site = Site::new(SLEEPS);
    site.write("src/s", &"x".repeat(100_000));
    let tier = format!("fast={}:2MiB", site.path("tier").display());
    site.options = ["--nodes", &nodes.to_string(), "--tier", &tier]
        .map(String::from)
        .to_vec();
    site
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn a_simulated_run_is_told_beside_the_real_one() {
    let site = sleeps(1);
    let real = site
        .tarn(&[&site.run_arguments()[..], &["--json"]].concat())
        .exits(0);
    let real = real.summary();
    let ran = site
        .tarn(&["sim", "--calibrate", "sleeps-1", "--json", "--check"])
        .exits(0);
    let summary = ran.summary();
    assert_eq!(summary["schema"], 1);
    assert_eq!(summary["bandwidths"]["external_in"]["observed"], true);
    assert_eq!(
        summary["bandwidths"]["peer"]["observed"], false,
        "one node has no peer"
    );
    let policies = summary["policies"].as_array().expect("policies");
    assert_eq!(policies.len(), 1);
    let data = &policies[0];
    assert_eq!(data["policy"], "data");
    let makespan = &data["makespan"];
    let off = number(&makespan["real"]) - number(&real["makespan_ns"]) / 1e9;
    assert!(off.abs() < 1e-9, "{makespan}");
    assert!(number(&makespan["simulated"]) >= number(&summary["lower_bound_s"]) - 1e-6);
    assert!(
        number(&makespan["simulated"]) >= 0.5,
        "a nap, then the join: {makespan}"
    );
    let difference = (number(&makespan["simulated"]) / number(&makespan["real"]) - 1.0) * 100.0;
    assert!((number(&makespan["difference_percent"]) - difference).abs() < 1e-6);
    let steps = data["steps"].as_array().expect("steps");
    for (step, (name, instances, least)) in steps.iter().zip([("nap", 4, 0.2), ("join", 1, 0.3)]) {
        assert_eq!(
            (&step["step"], &step["instances"]),
            (&name.into(), &instances.into())
        );
        for side in ["real", "simulated"] {
            assert!(number(&step["run"][side]) >= least, "{step}");
        }
    }
    for (kind, bytes) in [
        ("external_in", 100_000),
        ("external_out", 400_000),
        ("peer", 0),
    ] {
        let both = &data["bytes"][kind];
        assert_eq!(
            (&both["real"], &both["simulated"]),
            (&bytes.into(), &bytes.into()),
            "{kind}"
        );
    }
    assert_eq!(real["bytes"]["external_in"], 100_000);
    assert_eq!(real["bytes"]["retained"], data["bytes"]["retained"]["real"]);
}

#[test]
fn policies_are_told_one_after_the_other() {
    let site = sleeps(1);
    site.run().exits(0);
    let arguments = [
        "sim",
        "--calibrate",
        "sleeps-1",
        "--policy",
        "data,easy",
        "--json",
    ];
    let summary = site.tarn(&arguments).exits(0).summary();
    let [data, easy] = [0, 1].map(|at| summary["policies"][at].clone());
    assert_eq!([&data["policy"], &easy["policy"]], ["data", "easy"]);
    // Each nap reads its input outside, each writes there, and so does the join.
    assert_eq!(easy["bytes"]["external_in"]["simulated"], 800_000);
    assert_eq!(easy["bytes"]["external_out"]["simulated"], 800_000);
    assert!(number(&easy["makespan"]["simulated"]) > number(&data["makespan"]["simulated"]));
    let text = site.tarn(&["sim", "--calibrate", "sleeps-1"]).exits(0);
    text.prints("real    simulated difference")
        .prints("nap (4)")
        .prints("not modelled");
}

#[test]
fn what_the_simulation_leaves_out_is_counted() {
    let site = full();
    site.run().exits(0);
    let ran = site.tarn(&["sim", "--calibrate", "full-1", "--json"]);
    // With one core for both nodes the log is refused; elsewhere it is not.
    if ran.code == Some(2) {
        assert!(ran.err.contains("on a host that has"), "{}", ran.err);
        return;
    }
    let left_out = &ran.exits(0).summary()["not_modelled"];
    assert_eq!(left_out["attempts_in_vain"], 1);
    assert!(number(&left_out["in_vain_s"]) > 0.0 && number(&left_out["overhead_s"]) > 0.0);
    assert_eq!(
        (&left_out["reused"], &left_out["resumed"]),
        (&0.into(), &0.into())
    );
}

#[test]
fn what_cannot_be_calibrated_is_refused() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let site = sleeps(cores + 1);
    site.run().exits(0);
    let crowded = site.tarn(&["sim", "--calibrate", "sleeps-1"]).exits(2);
    crowded
        .prints("on a host that has")
        .prints(&format!("--nodes {cores}"));
    site.run().exits(0);
    let unchanged = site.tarn(&["sim", "--calibrate", "sleeps-2"]).exits(2);
    unchanged.prints("ran nothing");
    site.write("workflow.toml", &SLEEPS.replace("sleep 0.3", "exit 3"));
    site.run().exits(1);
    site.tarn(&["sim", "--calibrate", "sleeps-3"])
        .exits(2)
        .prints("is not complete");
    site.tarn(&["sim", "--calibrate", "sleeps-3", "--cluster", "c"])
        .exits(2)
        .prints("cannot be used with");
}
