//! `tarn mode` as people and Slurm call it. The tools are emulated (services/memory-modes/tests/played), the users of devices are real.

mod common;

use common::{Ran, Site};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A node with modules: the emulated tools, and their state.
struct Node {
    site: Site,
}

impl Node {
    fn new(tools: &[&str]) -> Self {
        let site = Site::new("");
        let played = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../services/memory-modes/tests/played/memory-tools");
        for tool in tools {
            site.write(&format!("bin/{tool}"), "");
            fs::copy(&played, site.path(&format!("bin/{tool}"))).expect("a tool");
        }
        site.write("state/log", "");
        Self { site }
    }

    fn whole() -> Self {
        Self::new(&["ipmctl", "ndctl", "daxctl", "firmware"])
    }

    /// A tool that does something else.
    fn tool(&self, name: &str, script: &str) {
        self.site
            .write(&format!("bin/{name}"), &format!("#!/bin/bash\n{script}\n"));
        let path = self.site.path(&format!("bin/{name}"));
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its mode");
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut all = vec!["mode"];
        all.extend(words);
        let mut command = self.site.command(&all);
        let path = format!("{}:/usr/bin:/bin", self.site.path("bin").display());
        command
            .env("PATH", path)
            .env("PLAYED_MODES", self.site.path("state"));
        command
            .env_remove("TARN_SOCKET")
            .env_remove("TARN_MODE_DESTROY");
        command
    }

    fn mode(&self, words: &[&str]) -> Ran {
        Ran::of(self.command(words).output().expect("tarn starts"))
    }

    fn json(&self, words: &[&str]) -> Value {
        let ran = self.mode(&[words, &["--json"]].concat());
        serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {}", ran.out))
    }

    fn boot(&self) {
        let mut firmware = Command::new(self.site.path("bin/firmware"));
        let played = firmware
            .env("PLAYED_MODES", self.site.path("state"))
            .status();
        assert!(played.is_ok_and(|s| s.success()));
    }

    /// The calls that change something.
    fn changes(&self) -> Vec<String> {
        let log = self.site.read("state/log");
        let changes = log.lines().filter(|l| {
            !l.contains(" show ") && !l.contains(" list ") && !l.starts_with("firmware")
        });
        changes.map(Into::into).collect()
    }
}

fn root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: only root may change a memory mode");
    }
    root
}

#[test]
fn a_node_is_shown() {
    let node = Node::whole();
    node.site
        .write("state/namespaces", "namespace0.0 fsdax 1073741824 pmem77\n");
    let shown = node.mode(&["show"]).exits(0);
    for line in [
        "mode        1lm (according to ipmctl)",
        "persistent  1.48 TiB",
        "socket 0    1lm: 6 modules, 0 B memory, 756.00 GiB persistent",
        "region0     756.00 GiB, 0 B without a namespace",
        "namespace0.0 fsdax, 1.00 GiB, pmem77",
    ] {
        assert!(shown.out.contains(line), "{line}: {}", shown.out);
    }
    let places = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"];
    let there = places.iter().any(|p| Path::new(p).join("cxl").exists());
    let missing = shown.err.contains("cxl is missing (package cxl)");
    assert_eq!(missing, !there, "{}", shown.err);
    assert_eq!(node.mode(&["show", "--feature"]).exits(0).out, "mode_1lm\n");
    let json = node.json(&["show"]);
    assert_eq!((&json["schema"], &json["mode"]), (&1.into(), &"1lm".into()));
    assert_eq!(
        json["inventory"]["modules"].as_array().map(Vec::len),
        Some(12)
    );
    assert_eq!(
        json["inventory"]["dram"][11]["place"],
        serde_json::json!([1, 1, 2])
    );
    let island = node.mode(&["show", "--island"]).exits(0).out;
    assert!(
        island.contains("mode = \"1lm\"") && island.contains("app-direct = true"),
        "{island}"
    );
}

#[test]
fn a_machine_without_any_of_it_is_shown_too() {
    let node = Node::new(&[]);
    let json = node.json(&["show"]);
    let states: Vec<&str> = json["inventory"]["tools"]
        .as_array()
        .expect("tools")
        .iter()
        .filter_map(|t| t["state"].as_str())
        .collect();
    if states != ["missing"; 4] {
        eprintln!("SKIPPED: this machine has tools for memory modes: {states:?}");
        return;
    }
    assert_eq!(json["told_by"], "the kernel");
    let plan = node.mode(&["plan", "2lm"]).exits(1);
    assert!(
        plan.out.contains("install the package ipmctl"),
        "{}",
        plan.out
    );
}

#[test]
fn a_plan_changes_nothing() {
    let node = Node::whole();
    node.site
        .write("state/namespaces", "namespace0.0 fsdax 1073741824 pmem77\n");
    let refused = node.mode(&["plan", "2lm"]).exits(1);
    assert!(
        refused
            .out
            .contains("refused     namespace0.0 (1.00 GiB) would be destroyed"),
        "{}",
        refused.out
    );
    let plan = node.json(&["plan", "2lm", "--destroy", "idle"]);
    assert_eq!(plan["refusals"], serde_json::json!([]));
    assert_eq!(plan["destroys"][0]["name"], "namespace0.0");
    assert_eq!(plan["commands"][1]["args"][3], "MemoryMode=100");
    assert_eq!(plan["after"]["persistent"], 0);
    assert_eq!(
        (&plan["reboot"], &plan["done"]),
        (&true.into(), &false.into())
    );
    assert_eq!(node.changes(), Vec::<String>::new());
    node.mode(&["plan", "3lm"])
        .exits(2)
        .prints("no memory mode");
}

#[test]
fn a_change_is_made_once_and_a_reboot_makes_it_so() {
    if !root() {
        return;
    }
    let node = Node::whole();
    node.site
        .write("state/namespaces", "namespace0.0 fsdax 1073741824 pmem77\n");
    node.mode(&["set", "2lm"])
        .exits(1)
        .prints("nothing was changed");
    assert_eq!(node.changes(), Vec::<String>::new());
    let set = node.mode(&["set", "2lm", "--destroy", "idle"]).exits(0);
    let audit = "changes 1lm to 2lm: ndctl destroy-namespace --force namespace0.0";
    assert!(set.err.contains(audit), "{}", set.err);
    let changes = [
        "ndctl destroy-namespace --force namespace0.0",
        "ipmctl create -f -goal MemoryMode=100",
    ];
    assert_eq!(node.changes(), changes);

    let shown = node.mode(&["show"]).exits(0);
    assert!(
        shown.out.contains("pending     2lm: a reboot makes it so"),
        "{}",
        shown.out
    );
    assert_eq!(node.mode(&["show", "--feature"]).exits(0).out, "mode_1lm\n");
    let again = node.mode(&["set", "2lm"]).exits(0);
    assert!(again.out.contains("nothing to do"), "{}", again.out);
    assert_eq!(node.changes(), changes);

    node.boot();
    assert_eq!(node.mode(&["show", "--feature"]).exits(0).out, "mode_2lm\n");
    assert!(node.mode(&["show"]).out.contains("persistent  0 B"));
    node.mode(&["set", "2lm"]).exits(0);
    // And back, with namespaces after the reboot.
    node.mode(&["set", "1lm", "--namespaces", "fsdax"]).exits(0);
    node.boot();
    let made = node.mode(&["set", "1lm", "--namespaces", "fsdax"]).exits(0);
    assert!(
        made.out
            .contains("create-namespace --mode=fsdax --region region1"),
        "{}",
        made.out
    );
    node.mode(&["set", "1lm", "--namespaces", "fsdax"])
        .exits(0)
        .out
        .find("nothing to do")
        .expect("done");
    assert_eq!(node.changes().len(), 2 + 1 + 2);
}

#[test]
fn a_command_that_fails_ends_it_and_the_next_try_goes_on() {
    if !root() {
        return;
    }
    let node = Node::whole();
    node.site
        .write("state/namespaces", "namespace0.0 fsdax 1073741824 pmem77\n");
    let played = fs::read_to_string(node.site.path("bin/ipmctl")).expect("the tool");
    let failing =
        format!("[ \"$1\" != create ] || {{ echo 'Error: no power' ; exit 1; }}\n{played}");
    node.tool("ipmctl", &failing);
    let failed = node
        .mode(&["set", "2lm", "--destroy", "namespace0.0"])
        .exits(1);
    assert!(
        failed.err.contains("no power") && failed.err.contains("run the same again"),
        "{}",
        failed.err
    );
    node.tool("ipmctl", &played);
    node.mode(&["set", "2lm", "--destroy", "namespace0.0"])
        .exits(0);
    let destroyed = node
        .changes()
        .iter()
        .filter(|c| c.contains("destroy"))
        .count();
    assert_eq!(destroyed, 1);
}

/// Dataspaces are named where a tarnd serves; a tarnd that has gone is not waited for each time.
#[test]
fn a_socket_of_a_tarnd_that_has_gone_delays_nothing() {
    let node = Node::whole();
    node.site
        .write("state/namespaces", "namespace0.0 fsdax 1073741824 pmem77\n");
    let socket = node.site.path("socket");
    drop(UnixListener::bind(&socket).expect("a socket"));
    let begun = Instant::now();
    // Each would wait for 5 s.
    for _ in 0..12 {
        let mut plan = node.command(&["plan", "2lm", "--destroy", "namespace0.0"]);
        plan.env("TARN_SOCKET", &socket);
        let planned = Ran::of(plan.output().expect("tarn starts")).exits(0);
        assert!(planned.out.contains("nobody uses it"), "{}", planned.out);
    }
    assert!(begun.elapsed() < Duration::from_secs(50));
}

/// A block device of this machine with a mounted file system, and where.
fn mounted_device() -> Option<(String, String)> {
    let text = fs::read_to_string("/proc/self/mountinfo").ok()?;
    text.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let name = after.split(' ').nth(1)?.strip_prefix("/dev/")?;
        let block = Path::new("/sys/class/block").join(name).exists();
        let at = before.split(' ').nth(4)?;
        block.then(|| (name.to_owned(), at.to_owned()))
    })
}

#[test]
fn live_data_is_found_and_left_alone() {
    let node = Node::whole();
    let Some((device, at)) = mounted_device() else {
        eprintln!("SKIPPED: no block device is mounted here");
        return;
    };
    node.site.write(
        "state/namespaces",
        &format!("namespace0.0 fsdax 1073741824 {device}\n"),
    );
    let plan = node.mode(&["plan", "2lm", "--destroy", "idle"]).exits(1);
    assert!(
        plan.out.contains("is in use") && plan.out.contains(&format!("mounted at {at}")),
        "{}",
        plan.out
    );
    if root() {
        node.mode(&["set", "2lm", "--destroy", "idle"])
            .exits(1)
            .prints("nothing was changed");
        assert_eq!(node.changes(), Vec::<String>::new());
    }
}

#[test]
fn a_device_that_a_program_has_open_is_live() {
    let node = Node::whole();
    // Every process has it open; it is played as a device for maps.
    let dax = r#"[{"chardev":"null","size":1073741824,"target_node":2,"mode":"devdax"}]"#;
    node.site.write("state/dax", dax);
    let mut sleeper = Command::new("sleep")
        .arg("60")
        .stdin(std::process::Stdio::null())
        .spawn()
        .expect("sleep");
    let plan = node.mode(&["plan", "system-ram", "--destroy", "idle"]);
    let _ = sleeper.kill();
    let _ = sleeper.wait();
    let plan = plan.exits(1);
    assert!(plan.out.contains("null is open in process"), "{}", plan.out);
    let named = node.json(&["plan", "system-ram", "--destroy", "null"]);
    assert_eq!(named["commands"][0]["program"], "daxctl");
}

#[test]
fn a_device_becomes_memory_and_a_device_again() {
    if !root() {
        return;
    }
    let node = Node::whole();
    let dax = r#"[{"chardev":"dax77.0","size":1073741824,"target_node":77,"mode":"devdax","online_memblocks":0,"movable":true}]"#;
    node.site.write("state/dax", dax);
    node.mode(&[
        "set",
        "system-ram",
        "--device",
        "dax77.0",
        "--destroy",
        "idle",
    ])
    .exits(0);
    assert!(
        node.mode(&["show"])
            .out
            .contains("dax77.0     system-ram, 1.00 GiB")
    );
    node.mode(&["set", "devdax"]).exits(0);
    assert_eq!(
        node.changes(),
        [
            "daxctl reconfigure-device --mode=system-ram dax77.0",
            "daxctl offline-memory dax77.0",
            "daxctl reconfigure-device --mode=devdax dax77.0"
        ]
    );
}

#[test]
fn tools_that_misbehave_are_survived() {
    let node = Node::whole();
    for (script, expected) in [
        ("echo nonsense", "no JSON"),
        ("echo '{\"dev\":' ; exit 3", "no JSON"),
        (
            "echo 'cannot open the bus' >&2; exit 1",
            "cannot open the bus",
        ),
        ("exit 1", "without a reason"),
        ("kill -SEGV $$", "without a reason"),
        ("yes | head -c 5000000", "longer than 4194304 bytes"),
        ("head -c 1000 /dev/urandom", "no JSON"),
    ] {
        node.tool("ndctl", script);
        let shown = node.mode(&["show"]).exits(0);
        assert!(
            shown.err.contains("note: ndctl: "),
            "{script}: {}",
            shown.err
        );
        assert!(shown.err.contains(expected), "{script}: {}", shown.err);
        assert!(shown.out.contains("mode        1lm"), "{}", shown.out);
        let plan = node.mode(&["plan", "2lm", "--destroy", "idle"]).exits(1);
        assert!(
            plan.out.contains("ndctl cannot report namespaces"),
            "{}",
            plan.out
        );
    }
    // One that needs root says so, and tarn queries the kernel.
    node.tool(
        "ipmctl",
        "echo 'The ipmctl command you have attempted to execute requires root privileges.'; exit 1",
    );
    let shown = node.mode(&["show"]).exits(0);
    assert!(
        shown.err.contains("ipmctl needs root") && shown.out.contains("according to the kernel"),
        "{}{}",
        shown.out,
        shown.err
    );
}

/// A plan in full, for people.
const PLAN: &str = "\
1lm -> 2lm
destroys    namespace0.0, 1.00 GiB: nobody uses it
runs        ndctl destroy-namespace --force namespace0.0  (regions with namespaces are not changed; 1.00 GiB is lost)
runs        ipmctl create -f -goal MemoryMode=100  (what the next reboot shall make)
after       1.48 TiB memory, 0 B persistent
reboot      needed
takes       about 630 s (an estimate)
note        in 2LM nothing on the modules is persistent: what they hold is gone with the power
note        what regions hold beside namespaces is lost too
";

#[test]
fn a_plan_is_a_page() {
    let node = Node::whole();
    node.site
        .write("state/namespaces", "namespace0.0 fsdax 1073741824 pmem77\n");
    let plan = node
        .mode(&["plan", "mode_2lm", "--destroy", "idle"])
        .exits(0);
    assert_eq!(plan.out, PLAN);
}

const WORKLOAD: &str = r#"
[data.fields]
size = "10 GB"
[[job]]
name = "solve"
workflow = "wing"
compute = "50s"
out = ["fields"]
[[job]]
name = "draw"
workflow = "wing"
compute = "5s"
in = ["fields"]
"#;

#[test]
fn the_planner_counts_no_store_in_pure_2lm_and_more_memory() {
    let node = Node::whole();
    // One island of nodes as this one; those in 1LM stay so.
    let sim = |name: &str, workload: &str| {
        let island = node.mode(&["show", "--island"]).exits(0).out;
        let is_kept = |l: &&str| name == "two" || !l.starts_with("mode-change");
        let kept: Vec<&str> = island.lines().filter(is_kept).collect();
        let store = "[external]\nread = \"1 GB/s\"\nwrite = \"1 GB/s\"\n";
        node.site.write(
            "cluster.toml",
            &format!("name = \"{name}\"\n{store}{}\n", kept.join("\n")),
        );
        node.site.write("workload.toml", workload);
        let words = [
            "sim",
            "--cluster",
            "cluster.toml",
            "--workload",
            "workload.toml",
            "--policy",
            "data",
            "--json",
        ];
        node.site.tarn(&words)
    };
    let bytes = |name: &str| {
        let ran = sim(name, WORKLOAD).exits(0);
        let value: Value = serde_json::from_str(&ran.out).expect("JSON");
        value["runs"][0]["bytes"]["external_out"]
            .as_u64()
            .expect("bytes")
    };
    let large = "[[job]]\nname = \"large\"\ncompute = \"1s\"\nmemory = \"1200 GiB\"\n";
    assert_eq!(bytes("one"), 0, "data stays on the modules");
    sim("one", large).exits(4).prints("large");
    node.site.write("state/mode", "100");
    assert_eq!(
        bytes("two"),
        10_000_000_000,
        "there is no store that would keep it"
    );
    sim("two", large).exits(0);
}
