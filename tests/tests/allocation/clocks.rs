//! Clocks that differ by years: nothing compares times of two nodes.

use crate::{TIER, cluster, spread};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Stands where tarnd does, and starts it with the node's wrong clock, by which it notes the year first.
const WRAPPER: &str = r#"#!/bin/bash
case $(hostname) in
    node1) export CLOCK_SHIFT=31536000 ;;
    *) export CLOCK_SHIFT=-31536000 ;;
esac
export LD_PRELOAD=/shared/bin/clock.so
date +%Y > "$HOME/year-$(hostname)"
exec -a tarnd "$(dirname "$0")/tarnd.true" "$@"
"#;

#[test]
fn clocks_that_differ_by_two_years_change_nothing() {
    let Some(cluster) = cluster(2) else { return };
    let bin = cluster.shared().join("bin");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster/clock.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-o"])
        .arg(bin.join("clock.so"))
        .args([source, "-ldl"])
        .output()
        .expect("cc");
    let stderr = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{stderr}");
    std::fs::rename(bin.join("tarnd"), bin.join("tarnd.true")).expect("tarnd");
    std::fs::write(bin.join("tarnd"), WRAPPER).expect("a wrapper");
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(bin.join("tarnd"), open).expect("its mode");

    let (fixture, wanted) = spread(&cluster, "alice");
    let run = || fixture.run("-N2 -n16", &format!("tarn run {TIER} wf.toml"));
    let first = run();
    assert_eq!(fixture.read("out/text"), wanted, "{first}");
    let year = |node: &str| -> i32 {
        let home = cluster.shared().join("home/alice");
        let text = std::fs::read_to_string(home.join(format!("year-{node}")));
        text.expect("a year").trim().parse().expect("a number")
    };
    assert_eq!(year("node1") - year("node2"), 2);
    assert_eq!(fixture.read("out/nodes"), "node1\nnode2\n", "both worked");
    // Unchanged steps do not run again; when one entry has changed, every step that reads the dataset does.
    let again = run();
    assert!(again.contains("0 run, 13 unchanged"), "{again}");
    fixture.write("in/f15", "changed\n");
    let changed = run();
    assert!(changed.contains("13 run"), "{changed}");
    let wanted = wanted.replace("PIECE 15 OF ALICE\n", "CHANGED\n");
    assert_eq!(fixture.read("out/text"), wanted);
}
