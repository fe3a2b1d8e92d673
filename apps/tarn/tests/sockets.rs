//! Processor sockets that `HWLOC_SYNTHETIC` describes to hwloc, each of one real processor: where the real `tarn` runs steps,
//! its output, and that a machine without several pays for none of it.

mod common;
use common::Site;
use std::path::Path;
use std::process::{Command, Stdio};

/// Processors that this process may use, as the kernel lists them.
fn allowed() -> String {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let list = status
        .lines()
        .find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
    list.expect("a list").trim().to_owned()
}

/// Two of them, or the test is skipped.
fn two() -> Option<[String; 2]> {
    let list = allowed();
    let range = |r: &str| {
        let (first, last) = r.split_once('-').unwrap_or((r, r));
        let number = |n: &str| n.parse::<u32>().expect("a number");
        number(first)..=number(last)
    };
    let cpus: Vec<u32> = list.split(',').flat_map(range).collect();
    match cpus[..] {
        [first, second, ..] => Some([first.to_string(), second.to_string()]),
        _ => {
            eprintln!("skipped: it takes two processors, and there is {list}");
            None
        }
    }
}

/// Two sockets of one processor each; NUMA node 0, which every machine has, belongs to the second.
fn pretended(cpus: &[String; 2]) -> String {
    let list = cpus.join(",");
    format!("pack:2 [numa(indexes=1,0)] core:1 pu:1(indexes={list})")
}

/// Steps that run at the same time, wait for each other, and say what they may run on.
const BESIDE: &str = r#"
name = "beside"
[data.cpus]
dest = "cpus"
[[step]]
name = "one"
foreach = ["a", "b"]
time = "20s"
run = '''
touch "$BARRIER/$TARN_ITEM"
until [ -e "$BARRIER/a" ] && [ -e "$BARRIER/b" ]; do sleep 0.02; done
grep Cpus_allowed_list /proc/self/status > $TARN_cpus/$TARN_ITEM
'''
out = ["cpus"]
"#;

/// The last words of the files of `cpus`, sorted.
fn cpu_lists(site: &Site) -> Vec<String> {
    let files = std::fs::read_dir(site.path("cpus"))
        .expect("a result")
        .flatten();
    let read = |path: &Path| std::fs::read_to_string(path).expect("a file");
    let last = |text: String| text.split_whitespace().last().expect("a list").to_owned();
    let mut all: Vec<String> = files.map(|f| last(read(&f.path()))).collect();
    all.sort();
    all
}

fn run(site: &Site, pretend: &str, more: &[&str]) {
    let barrier = site.path("barrier");
    let _ = std::fs::remove_dir_all(&barrier);
    std::fs::create_dir(&barrier).expect("a folder");
    let mut command = site.command(&[&site.run_arguments(), more].concat());
    command
        .env("HWLOC_SYNTHETIC", pretend)
        .env("BARRIER", &barrier);
    let ran = command.output().expect("tarn starts");
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

#[test]
fn steps_beside_each_other_get_a_socket_each() {
    let Some(cpus) = two() else { return };
    let site = Site::new(BESIDE);
    run(&site, &pretended(&cpus), &[]);
    let mut each = cpus.to_vec();
    each.sort();
    assert_eq!(cpu_lists(&site), each);
    for (pretend, more) in [
        (pretended(&cpus), &["--bind", "none"][..]),
        (
            format!("pack:1 core:2 pu:1(indexes={})", cpus.join(",")),
            &[],
        ),
    ] {
        let site = Site::new(BESIDE);
        run(&site, &pretend, more);
        assert_eq!(cpu_lists(&site), [allowed(), allowed()], "{more:?}");
    }
}

#[test]
fn a_step_of_several_nodes_is_bound_on_each() {
    let Some(cpus) = two() else { return };
    let site = Site::new(
        r#"
name = "spread"
[data.cpus]
dest = "cpus"
[[step]]
name = "spread"
nodes = 2
run = '''
for node in node0 node1; do
  tarn exec $node -- grep Cpus_allowed_list /proc/self/status > $TARN_cpus/$node
done
'''
out = ["cpus:single"]
"#,
    )
    .with(&["--nodes", "2"]);
    run(&site, &pretended(&cpus), &[]);
    let mut each = cpus.to_vec();
    each.sort();
    assert_eq!(cpu_lists(&site), each);
}

/// A tmpfs that is bound to NUMA node 0 is on the second socket: steps go there, and it is shown.
#[test]
fn a_step_goes_to_the_socket_of_its_tier() {
    let Some(cpus) = two() else { return };
    let site = Site::new(
        "name = \"w\"\n[data.cpus]\ndest = \"cpus\"\n[[step]]\nname = \"s\"\n\
         run = \"grep Cpus_allowed_list /proc/self/status > $TARN_cpus/s\"\nout = [\"cpus\"]\n",
    );
    let mount = "mount -t tmpfs -o size=512m,mpol=bind:0 none tier || exit 77\n";
    let tarn = env!("CARGO_BIN_EXE_tarn");
    let tier = format!("--tier fast={}:16MiB", site.path("tier").display());
    let script = format!(
        "{mount}{tarn} nodes {tier} --json > nodes.json && {tarn} nodes {tier} > nodes && {tarn} run workflow.toml {tier}"
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
    unshare.current_dir(site.dir.path()).stdin(Stdio::null());
    unshare
        .env_remove("TARN_STATE")
        .env("HWLOC_SYNTHETIC", pretended(&cpus));
    let ran = unshare.output().expect("unshare (util-linux)");
    let error = String::from_utf8_lossy(&ran.stderr);
    if error.contains("unshare:") || ran.status.code() == Some(77) {
        return eprintln!("skipped: a tmpfs cannot be mounted here: {error}");
    }
    assert!(ran.status.success(), "{error}");
    assert_eq!(cpu_lists(&site), [cpus[1].clone()]);
    let shown: serde_json::Value = serde_json::from_str(&site.read("nodes.json")).expect("JSON");
    let sockets = &shown["hosts"][0]["sockets"];
    assert_eq!(sockets[1]["tiers"][0], "fast", "{shown}");
    assert_eq!(sockets[0]["tiers"], serde_json::json!([]));
    let second = format!("socket 1 has processors {}, NUMA nodes 0,", cpus[1]);
    let text = site.read("nodes");
    assert!(
        text.contains(&second) && text.contains(", tiers fast"),
        "{text}"
    );
}

/// Calls that bind, and files that are opened, as strace saw them of tarn, its helpers and a step.
fn traced(pretend: Option<&str>) -> String {
    let site = Site::new(
        "name = \"w\"\n[data.d]\ndest = \"d\"\n[[step]]\nname = \"s\"\nrun = \"echo > $TARN_d/f\"\nout = [\"d\"]\n",
    );
    let calls = "trace=sched_setaffinity,set_mempolicy,openat";
    let mut strace = Command::new("strace");
    strace.args([
        "-f",
        "-qq",
        "-e",
        calls,
        "-o",
        "trace",
        env!("CARGO_BIN_EXE_tarn"),
    ]);
    strace
        .args(site.run_arguments())
        .current_dir(site.dir.path());
    strace
        .env_remove("TARN_STATE")
        .env_remove("HWLOC_SYNTHETIC")
        .env_remove("HWLOC_XMLFILE");
    strace.stdin(Stdio::null());
    if let Some(pretend) = pretend {
        strace.env("HWLOC_SYNTHETIC", pretend);
    }
    let ran = strace.output().expect("strace (scripts/deps.sh test)");
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    site.read("trace")
}

#[test]
fn a_machine_of_one_socket_pays_for_none_of_it() {
    let online = std::fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    if online.contains(['-', ',']) {
        return eprintln!("skipped: this machine has the NUMA nodes {online}");
    }
    let trace = traced(None);
    assert!(trace.contains("openat"));
    for never in ["sched_setaffinity", "set_mempolicy", "libhwloc"] {
        assert!(!trace.contains(never), "{never}");
    }
    let Some(cpus) = two() else { return };
    let several = traced(Some(&pretended(&cpus)));
    assert!(several.contains("libhwloc"));
    assert!(
        several.matches("sched_setaffinity").count() > 0,
        "the helper's"
    );
}
