//! `tarn bench cluster` by the real binary, on trees of a hundredth of their size.

#[path = "../../tarn/tests/common/mod.rs"]
mod common;

use common::{Site, send, until};
use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

fn tmpfs(name: &str) -> String {
    let shm = Path::new("/dev/shm");
    let dir = if shm.is_dir() { shm } else { Path::new("/tmp") };
    let own = dir.join(format!("tarn-bench-test-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&own).unwrap();
    own.to_string_lossy().into_owned()
}

#[test]
fn transfers_are_measured_beside_bare_streams_and_nothing_is_left() {
    let site = Site::new("");
    let dir = tmpfs("whole");
    let mut args = vec![
        "bench",
        "cluster",
        "--json",
        "--percent",
        "1",
        "--rounds",
        "1",
    ];
    args.extend(["--dir", &dir, "--streams", "2"]);
    args.extend(["--case", "node-to-node", "--case", "node-to-node-tree"]);
    let ran = site.tarn(&args);
    let value = ran.exits(0).summary();
    assert_eq!(
        (&value["schema"], &value["bench"]),
        (&1.into(), &"cluster".into())
    );
    let results = value["results"].as_array().expect("results");
    assert_eq!(
        results.len(),
        20,
        "two cases: speed and CPU time beside both ceilings, six bare figures"
    );
    for result in results {
        assert!(result["value"].as_f64() > Some(0.0), "{result}");
    }
    for (case, first) in [("node-to-node (", 0), ("node-to-node-tree (", 10)] {
        let name = results[first]["name"].as_str().expect("a name");
        assert!(name.starts_with(case), "{name}");
        assert!(results[first]["ratio"].as_f64() > Some(0.0));
    }
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    std::fs::remove_dir(&dir).unwrap();
}

#[test]
fn nothing_is_left_by_one_that_is_told_to_end() {
    let site = Site::new("");
    let dir = tmpfs("cut");
    let mut bench = site.command(&["bench", "cluster", "--percent", "5", "--dir", &dir]);
    let mut bench = bench.stdout(Stdio::null()).spawn().expect("tarn");
    let entries = || std::fs::read_dir(&dir).unwrap().count();
    until("its folder", || entries() == 1);
    send(Signal::TERM, &bench);
    let ended = bench.wait().expect("its end");
    assert_eq!(ended.signal(), Some(15), "{ended:?}");
    assert_eq!(entries(), 0);
    std::fs::remove_dir(&dir).unwrap();
}

#[test]
fn a_rate_that_is_none_is_refused() {
    let site = Site::new("");
    for rate in ["fast", "1", "0gbit", "1GB/s", "gbit", "-1gbit"] {
        let rate = format!("--rate={rate}");
        site.tarn(&["bench", "cluster", &rate]).exits(2);
    }
}
