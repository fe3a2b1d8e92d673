//! `tarn bench ckpt` by the real binary, on little.

#[path = "../../tarn/tests/common/mod.rs"]
mod common;
#[allow(dead_code)]
#[path = "../../../bindings/c/tests/common/mod.rs"]
mod linked;
#[path = "../../../bindings/c/tests/common/proxies.rs"]
mod proxies;

use common::{Ran, Site};
use std::path::Path;
use std::process::Command;

#[test]
fn copies_are_measured_beside_memcpy_and_nothing_is_left() {
    let site = Site::new("");
    let dir = site.path("medium");
    std::fs::create_dir(&dir).unwrap();
    let dir = dir.to_string_lossy().into_owned();
    let mut args = vec!["bench", "ckpt", "--json", "--mib", "3", "--rounds", "1"];
    args.extend(["--threads", "3", "--dir", &dir]);
    args.extend(["--case", "copy", "--case", "commit"]);
    let value = site.tarn(&args).exits(0).summary();
    assert_eq!(value["bench"], "ckpt");
    let results = value["results"].as_array().expect("results");
    // Copies and back; a commit, a restart into memory that was touched, and one that was not, in clear and encrypted.
    assert_eq!(results.len(), 8);
    for result in results {
        assert_eq!(result["against"]["name"], "memcpy", "{result}");
        assert!(result["ratio"].as_f64() > Some(0.0), "{result}");
    }
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn tracking_is_measured_beside_memcpy_in_all_ways_that_there_are() {
    let site = Site::new("");
    let args = ["bench", "ckpt", "--json", "--mib", "3", "--rounds", "2"];
    let ran = site.tarn(&[&args[..], &["--case", "tracking"]].concat());
    let ran = ran.exits(0);
    let value = ran.summary();
    let results = value["results"].as_array().expect("results");
    let of = |way| {
        let name = format!(" by {way}: ");
        let named = |r: &&serde_json::Value| r["name"].as_str().expect("a name").contains(&name);
        results.iter().filter(named).count()
    };
    // Small pages and huge ones, if there are.
    let kinds = 2 - ran.err.matches("huge pages is skipped").count();
    assert_eq!(of("mprotect"), kinds * 6, "{}", ran.err);
    match ran.err.contains("by userfaultfd is skipped") {
        true => assert_eq!(of("userfaultfd"), 0),
        false => assert_eq!(of("userfaultfd"), kinds * 6),
    }
    for result in results {
        let beside = result["against"]["name"].as_str().expect("a name");
        assert!(beside.starts_with("memcpy"), "{result}");
    }
}

/// Over a link that is not limited, and one that is: how long the rank of a node that lost something takes, in parts.
#[test]
fn what_a_node_has_lost_comes_over_a_link_that_is_measured_beside_it() {
    let site = Site::new("");
    let dir = site.path("medium");
    std::fs::create_dir(&dir).unwrap();
    let dir = dir.to_string_lossy().into_owned();
    let mut args = vec!["bench", "ckpt", "--json", "--mib", "4", "--rounds", "1"];
    args.extend(["--dir", &dir, "--case", "recovery", "--rate", "1gbit"]);
    let ran = site.tarn(&args).exits(0);
    let value = ran.summary();
    let results = value["results"].as_array().expect("results");
    let lacking = ran
        .err
        .matches("is skipped: the link is not available")
        .count();
    if lacking > 0 {
        eprintln!(
            "SKIPPED: a link needs a network namespace, ip and tc: {}",
            ran.err
        );
    }
    // From two losses, in three parts.
    assert_eq!(results.len(), (2 - lacking) * 6);
    for result in results {
        let name = result["name"].as_str().expect("a name");
        assert!(
            name.starts_with("recovery, ") && name.contains("veth"),
            "{name}"
        );
        assert!(result["ratio"].as_f64() > Some(0.0), "{result}");
    }
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

/// By each way that there is, a commit and a recovery.
#[test]
fn copies_on_another_node_are_measured_by_all_ways_that_there_are() {
    let site = Site::new("");
    // Windows are onto memory only.
    let medium = tempfile::tempdir_in("/dev/shm").unwrap();
    let dir = medium.path().to_string_lossy().into_owned();
    let mut args = vec!["bench", "ckpt", "--json", "--mib", "4", "--rounds", "1"];
    args.extend(["--dir", &dir, "--case", "buddies"]);
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let built = Command::new("../../scripts/shim.sh").arg(tmp).status();
    let built = built.expect("a shell").success();
    let mut command = site.command(&args);
    command.env("TARN_FABRIC_LIBRARY", tmp.join("libtarnfabric.so"));
    let ran = Ran::of(command.output().expect("tarn")).exits(0);
    let value = ran.summary();
    let results = value["results"].as_array().expect("results");
    let ways: &[&str] = match (ran.err.contains("buddies is skipped"), built) {
        (true, _) => {
            eprintln!(
                "SKIPPED: a link needs a network namespace, ip and tc: {}",
                ran.err
            );
            &[]
        }
        (false, false) => &["TCP"],
        (false, true) => &["TCP", "libfabric:tcp;ofi_rxm", "libfabric:shm"],
    };
    assert_eq!(results.len(), 2 * ways.len());
    for (pair, way) in results.chunks(2).zip(ways) {
        for result in pair {
            let name = result["name"].as_str().expect("a name");
            assert!(name.contains(&format!(" by {way}: ")), "{name}");
            assert!(result["ratio"].as_f64() > Some(0.0), "{result}");
        }
    }
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn proxies_run_with_checkpoints_and_without() {
    let site = Site::new("");
    let dir = site.path("medium");
    std::fs::create_dir(&dir).unwrap();
    let proxies_at = site.path("proxies");
    std::fs::create_dir(&proxies_at).unwrap();
    let dir = dir.to_string_lossy().into_owned();
    let at = proxies_at.to_string_lossy().into_owned();
    let mut args = vec!["bench", "ckpt", "--json", "--mib", "2", "--rounds", "1"];
    args.extend(["--dir", &dir, "--proxies", &at]);
    args.extend(["--case", "slowdown-cm1", "--case", "whole"]);
    site.tarn(&args).exits(5).prints("make the proxies");
    if !proxies::make(&["cm1", "gtc"], &proxies_at) {
        return;
    }
    let parameters = "../../examples/checkpoints/proxies.conf";
    std::fs::copy(parameters, proxies_at.join("proxies.conf")).unwrap();
    let value = site.tarn(&args).exits(0).summary();
    let results = value["results"].as_array().expect("results");
    assert_eq!(results.len(), 8);
    let ways = ["nvr", "phx", "phx-ec", "phx-mp"];
    for (result, way) in results.iter().zip(ways.iter().cycle()) {
        let name = result["name"].as_str().expect("a name");
        assert!(name.contains(&format!(" {way} (")), "{name}");
        assert!(result["ratio"].as_f64() > Some(0.0), "{result}");
    }
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}
