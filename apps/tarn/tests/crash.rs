//! A crash before and after every append to the log, every action and every wait of a small workflow, and again
//! during recovery: enumerated, with real processes. Always the same result, no committed step twice, nothing left.

mod common;
use common::Site;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

const WORKFLOW: &str = r#"
name = "small"
[data.raw]
source = "raw"
[data.half]
[data.whole]
dest = "result"
[data.kept]
keep = "forever"
[[step]]
name = "each"
foreach = "raw/*"
run = "tr a-z A-Z < $TARN_raw/$TARN_ITEM > $TARN_half/$TARN_ITEM; mkdir -p $TARN_half/folder/$TARN_ITEM"
in = ["raw/{item}"]
out = ["half"]
[[step]]
name = "join"
run = """
cat $TARN_half/? > $TARN_whole/all && cp -r $TARN_half/folder $TARN_whole
mkdir -p $TARN_kept/empty/deep
"""
in = ["half"]
out = ["whole", "kept"]
[[step]]
name = "sign"
run = "echo signed >> $TARN_whole/all"
inout = ["whole"]
"#;

const RESULT: &str = "ONE\nTWO\nsigned\n";

fn site() -> Site {
    let site = Site::new(WORKFLOW).with(&["--nodes", "2"]);
    site.write("raw/a", "one\n");
    site.write("raw/b", "two\n");
    site
}

/// Runs with a crash at point `at`; whether it crashed.
fn crashes(mut command: Command, at: u32) -> bool {
    let output = command
        .env("TARN_CRASH_AT", at.to_string())
        .output()
        .expect("tarn starts");
    match output.status.signal() {
        Some(9) => true,
        None if output.status.code() == Some(0) => false,
        _ => panic!(
            "crash point {at}: {}",
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}

/// Goes on until the end; a run that died before its first record is begun again.
fn finish(site: &Site, label: &str) {
    let resumed = site.tarn(&["resume"]);
    let ran = match resumed.code {
        Some(7) => site.run(),
        _ => resumed,
    };
    assert_eq!(ran.code, Some(0), "{label}: {}", ran.err);
    assert_eq!(site.read("result/all"), RESULT, "{label}");
    let folders = ["result/folder/a", "result/folder/b"];
    assert!(folders.iter().all(|f| site.path(f).is_dir()), "{label}");
    // Empty folders are data, on the tier as well.
    let drained = site.tarn(&["data", "drain", "kept", "drained"]);
    assert_eq!(drained.code, Some(0), "{label}: {}", drained.err);
    assert!(site.path("drained/empty/deep").is_dir(), "{label}");
    assert!(site.left_on_tier().is_empty(), "{label}");
    let mut committed = std::collections::BTreeSet::new();
    for record in site.log() {
        if record["event"] == "ended" && record["ended"]["how"] == "committed" {
            assert!(
                committed.insert(record["instance"].to_string()),
                "{label}: {} ran again",
                record["instance"]
            );
        }
    }
}

#[test]
fn every_crash_point_is_recovered_from() {
    let mut at = 1;
    loop {
        let site = site();
        if !crashes(site.command(&site.run_arguments()), at) {
            break;
        }
        // Every second one crashes again during recovery, at a point that moves on with it.
        let mut again = at / 2 + 1;
        while at % 2 == 0 && again > 0 && site.path(".tarn/runs/small-1/events.log").exists() {
            if !crashes(site.command(&["resume"]), again) {
                break;
            }
            again /= 2;
        }
        finish(&site, &format!("crash at {at}"));
        at += 1;
    }
    assert!(at > 40, "only {at} points: the hooks are gone");
}

#[test]
fn every_crash_point_of_a_recovery_is_recovered_from() {
    let mut at = 1;
    loop {
        let site = site();
        assert!(crashes(site.command(&site.run_arguments()), 25));
        if !crashes(site.command(&["resume"]), at) {
            break;
        }
        finish(&site, &format!("crash of the recovery at {at}"));
        at += 1;
    }
    assert!(at > 10, "only {at} points");
}
