//! The energy of nodes, with a real Slurm whose energy plug-in reads emulated counters of a Cray: by the nodes themselves,
//! and by Slurm alone.

use std::fs;
use std::path::Path;
use std::time::Duration;
use tarn_tests::fixture::{self, Fixture};
use tarn_tests::slurm::{Cluster, wait_until};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(60);

/// Slurm looks each second.
const SLURM_CONF: &str = "AcctGatherEnergyType=acct_gather_energy/pm_counters
AcctGatherNodeFreq=1
JobAcctGatherFrequency=energy=1,task=1
";

/// A step of one core, without stored data; it runs until a file ends it.
const WORK: &str = r#"
name = "work"
[data.where]
dest = "out"
[[step]]
name = "one"
time = "2m"
run = 'hostname > $TARN_where/node; echo > "$HOME/work/began"; until [ -e "$HOME/work/go" ]; do sleep 0.1; done'
out = ["where"]
"#;

fn counters(folder: &Path, node: usize, joules: u64, watts: u64) {
    let folder = folder.join(format!("node{node}/cray/pm_counters"));
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("energy"), format!("{joules} J 1 us\n")).expect("energy");
    fs::write(folder.join("power"), format!("{watts} W 1 us\n")).expect("power");
}

/// Two nodes, of which the second draws half as much as the first.
fn cluster() -> Option<Cluster> {
    let folder = TempDir::new().expect("a folder");
    let (etc, sys) = (folder.path().join("etc"), folder.path().join("sys"));
    fs::create_dir(&etc).expect("a folder");
    fs::write(etc.join("slurm.conf"), SLURM_CONF).expect("slurm.conf");
    counters(&sys, 1, 100_000, 300);
    counters(&sys, 2, 100_000, 150);
    let text = |p: &Path| p.to_str().expect("a path").to_owned();
    let (etc, sys) = (text(&etc), text(&sys));
    fixture::cluster(2, &["tarn", "tarnd"], &[], &["--etc", &etc, "--sys", &sys])
}

fn ran(cluster: &Cluster, before: &str, meanwhile: impl Fn()) -> (String, String) {
    let fixture = Fixture::new(cluster, "alice", WORK);
    let words = format!("env {before} tarn run --tier scm=/scm/$USER:96MiB wf.toml");
    let running = fixture.start("-N2 -n16", &format!("bash -c '{words}'"));
    let began = fixture.path("began");
    wait_until("the step", SOON, || began.exists()).unwrap_or_else(|e| panic!("{e:#}"));
    meanwhile();
    fixture.write("go", "");
    let (status, text) = running.end();
    assert_eq!(status, Some(0), "{text}");
    // With data, load and cores alike, the lower draw decides.
    assert_eq!(fixture.read("out/node").trim(), "node2", "{text}");
    (
        text,
        fixture.shell("grep -ho '\"energy\":{[^}]*}' .tarn/runs/*/events.log"),
    )
}

#[test]
fn nodes_that_measure_are_shown_and_a_step_has_what_was_drawn() {
    let Some(cluster) = cluster() else { return };
    let fixture = Fixture::new(&cluster, "alice", WORK);
    let shown = fixture.run("-N2 -n16", "tarn nodes --tier scm=/scm/alice:96MiB");
    assert!(
        shown.contains("300") && shown.contains("pm-counters"),
        "{shown}"
    );
    let sys = cluster.folder().join("sys");
    let (text, energy) = ran(&cluster, "", || counters(&sys, 2, 100_400, 150));
    let expected = "\"energy\":{\"millijoules\":400000,\"source\":\"pm-counters\"}";
    assert_eq!(energy.trim(), expected, "{text}");
    assert!(text.contains("400.0 J (pm-counters)"), "{text}");
}

#[test]
fn where_nodes_measure_nothing_slurm_is_asked() {
    let Some(cluster) = cluster() else { return };
    let is_measured = || {
        let output = cluster.exec("alice", &["scontrol", "show", "node", "node2"]);
        output.is_ok_and(|s| s.contains("CurrentWatts=150"))
    };
    wait_until("Slurm's figures", SOON, is_measured).unwrap_or_else(|e| panic!("{e:#}"));
    let pause = || std::thread::sleep(Duration::from_secs(3));
    let (text, energy) = ran(&cluster, "TARN_SYSFS=/none", pause);
    assert!(energy.contains("\"source\":\"slurm\""), "{energy}\n{text}");
    let digits = energy.split("millijoules\":").nth(1).expect("a figure");
    let digits: String = digits.chars().take_while(char::is_ascii_digit).collect();
    let millijoules: u64 = digits.parse().expect("a number");
    assert!((450_000..150 * 60_000).contains(&millijoules), "{energy}");
}
