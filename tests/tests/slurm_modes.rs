//! A job that requests a memory mode gets a node that has it: through node_features/helpers, `tarn mode` and a reboot.
//! Slurm and tarn are real, the node's tools are emulated (`services/memory-modes/tests/played`).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use tarn_tests::slurm::{Cluster, Doctor, Node, wait_until};
use tarn_tests::{programs, tree};
use tempfile::TempDir;

/// Slurm looks for jobs that need another feature every 30 s.
const TIMEOUT: Duration = Duration::from_secs(300);
const TOOLS: [&str; 4] = ["ipmctl", "ndctl", "daxctl", "firmware"];

const SLURM_CONF: &str = "\
NodeFeaturesPlugins=node_features/helpers
RebootProgram=/etc/slurm/reboot-node
ResumeTimeout=300
";
const HELPERS_CONF: &str = "\
Feature=mode_1lm Helper=/etc/slurm/helper
Feature=mode_2lm Helper=/etc/slurm/helper
MutuallyExclusive=mode_1lm,mode_2lm
ExecTime=60
";
/// A site's settings for the plug-in. When the nodes start for the first time, nothing is in /shared yet, and the modules
/// are as made.
const HELPER: &str = "\
#!/bin/bash
[ -x /shared/bin/tarn ] || { echo mode_1lm; exit; }
export PATH=/shared/bin:$PATH TARN_MODE_DESTROY=idle TARN_MODE_LOG=/shared/modes/$(hostname)/changes
exec /etc/slurm/tarn-mode-helper \"$@\"
";
/// Notifies the test, which has the power button.
const REBOOT: &str = "\
#!/bin/bash
touch \"/shared/modes/$(hostname)/reboot\"
";

fn script(path: &Path, text: &str) {
    fs::write(path, text).expect("a script");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its mode");
}

fn cluster(etc: &TempDir) -> Option<Cluster> {
    let doctor = Doctor::ask().expect("slurm-cluster doctor");
    if let Some(why) = doctor.lacks(&[]) {
        eprintln!("SKIPPED: no Slurm cluster here: {why}");
        return None;
    }
    let plugin = tree::root().join("plugins/slurm/tarn-mode-helper");
    let plugin = fs::read_to_string(plugin).expect("the plug-in");
    fs::write(etc.path().join("slurm.conf"), SLURM_CONF).expect("slurm.conf");
    fs::write(etc.path().join("helpers.conf"), HELPERS_CONF).expect("helpers.conf");
    script(&etc.path().join("tarn-mode-helper"), &plugin);
    script(&etc.path().join("helper"), HELPER);
    script(&etc.path().join("reboot-node"), REBOOT);
    let folder = etc.path().to_str().expect("a path");
    let cluster = Cluster::up_with(1, &["--etc", folder]).unwrap_or_else(|e| panic!("{e:#}"));
    programs::install(&cluster, &["tarn"]).unwrap_or_else(|e| panic!("{e:#}"));
    let played = tree::root().join("services/memory-modes/tests/played/memory-tools");
    for tool in TOOLS {
        fs::copy(&played, cluster.shared().join("bin").join(tool)).expect("a tool");
    }
    fs::create_dir_all(cluster.shared().join("modes/node1")).expect("the node's modules");
    Some(cluster)
}

fn state(cluster: &Cluster, name: &str) -> String {
    let path = cluster.shared().join("modes/node1").join(name);
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Off and on again; in between firmware applies a goal.
fn reboot(node: &Node<'_>) {
    node.power_cut().unwrap_or_else(|e| panic!("{e:#}"));
    node.start().unwrap_or_else(|e| panic!("{e:#}"));
}

fn alice(cluster: &Cluster, words: &[&str]) -> String {
    let answer = cluster.exec("alice", words);
    answer.unwrap_or_else(|e| panic!("{e:#}")).trim().to_owned()
}

fn has_feature(cluster: &Cluster, mode: &str) -> bool {
    let shown = alice(cluster, &["scontrol", "-o", "show", "node", "node1"]);
    shown
        .split(' ')
        .any(|w| w == format!("ActiveFeatures={mode}"))
}

/// When its slurmd has started, in whole seconds.
fn started(cluster: &Cluster) -> String {
    let shown = alice(cluster, &["scontrol", "-o", "show", "node", "node1"]);
    let mut words = shown.split(' ');
    let word = words.find(|w| w.starts_with("SlurmdStartTime="));
    word.expect("SlurmdStartTime").to_owned()
}

/// Boots the node with these namespaces on its modules: it is in 1LM then. Slurm has been notified before a job is
/// submitted: 24.11 sets a node aside which reports its mode after a job for another one was given to it.
fn boot(cluster: &Cluster, node: &Node, namespaces: &str) {
    fs::write(cluster.shared().join("modes/node1/namespaces"), namespaces).expect("namespaces");
    let before = started(cluster);
    std::thread::sleep(Duration::from_secs(1));
    reboot(node);
    wait_until("the node is in mode_1lm", TIMEOUT, || {
        has_feature(cluster, "mode_1lm") && started(cluster) != before
    })
    .unwrap_or_else(|e| panic!("{e:#}"));
}

/// A job of alice that requests 2LM; its number.
fn submit(cluster: &Cluster, script: &str) -> String {
    let wants = ["sbatch", "--parsable", "-C", "mode_2lm", "-o", "said"];
    alice(cluster, &[&wants[..], &["--wrap", script]].concat())
}

#[test]
fn a_job_gets_the_memory_mode_that_it_asks_for() {
    let etc = tempfile::tempdir().expect("a folder");
    let Some(cluster) = cluster(&etc) else {
        return;
    };
    let node = cluster.node(1);
    // Two namespaces that nobody uses.
    let namespaces = "namespace0.0 fsdax 1024 pmem0\nnamespace1.0 fsdax 1024 pmem1\n";
    boot(&cluster, &node, namespaces);

    let job = submit(&cluster, "tarn mode show --feature; tarn mode show --json");
    wait_until("Slurm asks for a reboot", TIMEOUT, || {
        cluster.shared().join("modes/node1/reboot").exists()
    })
    .unwrap_or_else(|e| {
        panic!(
            "{e:#}; {}",
            alice(&cluster, &["scontrol", "show", "job", &job])
        )
    });
    assert_eq!(
        (state(&cluster, "goal"), state(&cluster, "mode")),
        ("100".into(), String::new())
    );
    assert_eq!(
        state(&cluster, "namespaces"),
        "",
        "they are gone before the goal"
    );
    let pending = node.exec("root", &["tarn", "mode", "show"]);
    let pending = pending.unwrap_or_else(|e| panic!("{e:#}"));
    assert!(pending.contains("pending     2lm"), "{pending}");

    // The node notifies Slurm before it goes down: no machine is down sooner.
    std::thread::sleep(Duration::from_secs(3));
    node.power_cut().unwrap_or_else(|e| panic!("{e:#}"));
    let firmware = cluster.shared().join("bin/firmware");
    let played = std::process::Command::new(firmware)
        .env("PLAYED_MODES", cluster.shared().join("modes/node1"))
        .status();
    assert!(played.is_ok_and(|s| s.success()));
    node.start().unwrap_or_else(|e| panic!("{e:#}"));
    let ended = || {
        alice(
            &cluster,
            &["squeue", "-h", "-t", "all", "-o", "%T", "-j", &job],
        )
    };
    wait_until("the job has run", TIMEOUT, || ended() == "COMPLETED").unwrap_or_else(|e| {
        let node = alice(&cluster, &["scontrol", "show", "node", "node1"]);
        let log = fs::read_to_string(cluster.folder().join("log/slurmctld.log"));
        panic!(
            "{e:#}; it is {}: {node}\n{}",
            ended(),
            log.unwrap_or_default()
        )
    });
    let output = alice(&cluster, &["cat", "said"]);
    assert!(output.starts_with("mode_2lm\n"), "{output}");
    assert!(output.contains("\"persistent\":0"), "{output}");
    assert!(has_feature(&cluster, "mode_2lm") && !has_feature(&cluster, "mode_1lm"));

    let log = state(&cluster, "log");
    let changes: Vec<&str> = log
        .lines()
        .filter(|l| !l.contains(" show ") && !l.contains(" list ") && !l.starts_with("firmware"))
        .collect();
    assert_eq!(
        changes,
        [
            "ndctl destroy-namespace --force namespace0.0",
            "ndctl destroy-namespace --force namespace1.0",
            "ipmctl create -f -goal MemoryMode=100"
        ]
    );
}

/// A block device that is mounted on the node: /usr or another of the machine's own.
fn mounted_device(node: &Node<'_>) -> Option<String> {
    let look = "while read -r line; do set -- ${line#* - }; [ ! -e /sys/class/block/${2#/dev/} ] || { echo ${2#/dev/}; exit; }; \
        done < /proc/self/mountinfo";
    let output = node.exec("root", &["bash", "-c", look]).ok()?;
    Some(output.trim().to_owned()).filter(|name| !name.is_empty())
}

#[test]
fn a_node_with_live_data_keeps_it() {
    let etc = tempfile::tempdir().expect("a folder");
    let Some(cluster) = cluster(&etc) else {
        return;
    };
    let node = cluster.node(1);
    let Some(device) = mounted_device(&node) else {
        eprintln!("SKIPPED: no block device is mounted on the node");
        return;
    };
    let namespaces = format!("namespace0.0 fsdax 1024 {device}");
    boot(&cluster, &node, &format!("{namespaces}\n"));
    let job = submit(&cluster, "true");
    // slurmd 22.05 reboots the node although its helper has refused, that of 24.11 sets it aside (docs/admin/memory-modes.md).
    let reboot_request = cluster.shared().join("modes/node1/reboot");
    let aside = || {
        let shown = alice(&cluster, &["scontrol", "-o", "show", "node", "node1"]);
        shown
            .split(' ')
            .any(|w| w.starts_with("State=") && w.contains("DRAIN"))
    };
    wait_until("Slurm reboots the node or sets it aside", TIMEOUT, || {
        reboot_request.exists() || aside()
    })
    .unwrap_or_else(|e| panic!("{e:#}; job {job}"));
    let update = |words: &str| {
        let words = ["scontrol", "update", "nodename=node1", words];
        cluster.exec("root", &words)
    };
    let set_aside = !reboot_request.exists();
    if set_aside {
        alice(&cluster, &["scancel", &job]);
        // It takes the node to be in the mode that it has not got.
        update("activefeatures=mode_1lm").unwrap_or_else(|e| panic!("{e:#}"));
    }
    reboot(&node);
    let changes = state(&cluster, "changes");
    assert!(changes.contains("Slurm asks for mode_2lm"), "{changes}");
    assert!(changes.contains("is in use"), "{changes}");
    assert_eq!(state(&cluster, "namespaces"), namespaces);
    assert_eq!(
        (state(&cluster, "goal"), state(&cluster, "mode")),
        (String::new(), String::new())
    );
    let word = node.exec("root", &["tarn", "mode", "show", "--feature"]);
    assert_eq!(word.unwrap_or_else(|e| panic!("{e:#}")), "mode_1lm\n");
    if set_aside {
        wait_until("the node is back", TIMEOUT, || {
            update("state=resume").is_ok()
        })
        .unwrap_or_else(|e| panic!("{e:#}"));
        let output = alice(&cluster, &["srun", "-C", "mode_1lm", "echo", "back"]);
        assert_eq!(output, "back");
    }
}
