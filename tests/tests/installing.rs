//! docs/admin/installing-on-your-cluster.md, followed word for word by the administrator and a user of a real Slurm.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::time::Duration;
use tarn_tests::slurm::{Cluster, Doctor, wait_until};
use tarn_tests::{pages, programs, tree};

const PAGE: &str = include_str!("../../docs/admin/installing-on-your-cluster.md");
const TIMEOUT: Duration = Duration::from_secs(240);
const NODES: usize = 2;

/// The commands of the page, in order: the place, and the command.
fn commands() -> Vec<(String, String)> {
    let found = pages::blocks(PAGE).into_iter().filter_map(|block| {
        let place = block.label.strip_prefix("sh ")?;
        Some((place.to_owned(), block.text))
    });
    found.collect()
}

/// Runs `make install PREFIX=/shared/tarn`; false, with a message, without Slurm's headers.
fn install(cluster: &Cluster) -> bool {
    let built = tempfile::tempdir().expect("a folder");
    for name in ["tarn", "tarn-bench", "tarnd", "libtarn.so", "libtarn.a"] {
        let program = programs::built(name).unwrap_or_else(|e| panic!("{e:#}"));
        symlink(program, built.path().join(name)).expect("a link");
    }
    let script = |name: &str| Command::new(tree::root().join("scripts").join(name));
    let made = script("spank.sh").arg(built.path()).status();
    if made.expect("spank.sh").code() == Some(3) {
        eprintln!("SKIPPED: the SPANK plug-in cannot be built: install libslurm-dev");
        return false;
    }
    // The units name the folder by which the cluster's hosts know it.
    let staged = tempfile::tempdir().expect("a folder");
    let installed = script("install.sh")
        .arg(built.path())
        .arg("/shared/tarn")
        .env("DESTDIR", staged.path())
        .status();
    assert!(installed.expect("install.sh").success());
    let copied = Command::new("cp")
        .arg("-a")
        .arg(staged.path().join("shared/tarn"))
        .arg(cluster.shared())
        .status();
    assert!(copied.expect("cp").success());
    let bin = cluster.shared().join("stand-in");
    fs::create_dir(&bin).expect("a folder");
    let stand_in = tree::root().join("tests/cluster/systemctl");
    fs::copy(stand_in, bin.join("systemctl")).expect("systemctl");
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(bin.join("systemctl"), mode).expect("its mode");
    true
}

#[test]
fn the_page_works_when_followed_word_for_word() {
    let doctor = Doctor::ask().expect("slurm-cluster doctor");
    if let Some(why) = doctor.lacks(&[]) {
        eprintln!("SKIPPED: no Slurm cluster here: {why}");
        return;
    }
    let cluster = Cluster::up(NODES).unwrap_or_else(|e| panic!("{e:#}"));
    if !install(&cluster) {
        return;
    }
    let run = |text: &str| {
        let path = "export PATH=/shared/stand-in:/shared/tarn/bin:$PATH";
        format!("{path}\nset -e\n{text}")
    };
    let controller = |text: &str| {
        let output = cluster.exec("root", &["bash", "-c", &run(text)]);
        output.unwrap_or_else(|e| panic!("{text}: {e:#}"))
    };
    let alice = |text: &str| {
        let output = cluster.exec("alice", &["bash", "-c", &run(text)]);
        output.unwrap_or_else(|e| panic!("{text}: {e:#}"))
    };
    let mut output = String::new();
    for (place, text) in &commands() {
        match place.as_str() {
            "node" => {
                for number in 1..=NODES {
                    let node = cluster.node(number);
                    let done = node.exec("root", &["bash", "-c", &run(text)]);
                    output += &done.unwrap_or_else(|e| panic!("{text}: {e:#}"));
                }
            }
            "controller" => {
                if text.contains("--check") {
                    let up = || {
                        let status =
                            cluster.command("root", &["bash", "-c", &run("tarn slurm status")]);
                        let mut status = status;
                        let output = status.output().expect("tarn slurm status").stdout;
                        String::from_utf8_lossy(&output).matches(" up ").count() == NODES
                    };
                    wait_until("all nodes take orders", TIMEOUT, up)
                        .unwrap_or_else(|e| panic!("{e:#}"));
                }
                output += &controller(text);
            }
            "user" => {
                output += &alice(text);
                let kept = cluster.shared().join("home/alice/kept/where");
                wait_until("the result is there", TIMEOUT, || kept.exists()).unwrap_or_else(|e| {
                    panic!("{e:#}; {}", alice("squeue -o '%i %T %R'; cat *.out"))
                });
                let node = fs::read_to_string(kept).expect("the result");
                assert!(["node1\n", "node2\n"].contains(&&*node), "{node}");
                wait_until("no job is left", TIMEOUT, || {
                    alice("squeue -h -t PD,R,CF,CG,SO").is_empty()
                })
                .unwrap_or_else(|e| panic!("{e:#}; {}", alice("squeue -o '%i %T %R'")));
            }
            other => panic!("nobody knows where `{other}` is"),
        }
    }
    // The check has looked at Slurm as it runs, and the switch and the removal have reported their actions.
    for words in [
        "srun has --workflow-start",
        "all 2 take orders",
        "burst_buffer.lua reaches the controller",
        "slurm.conf taken out",
        "off: sbatch refuses",
    ] {
        assert!(output.contains(words), "{words}: {output}");
    }
    let conf = controller("cat /etc/slurm/slurm.conf; ls /etc/slurm");
    assert!(
        !conf.contains("tarn:") && !conf.contains("burst_buffer"),
        "{conf}"
    );
    // Ordinary jobs run as before.
    assert_eq!(alice("srun hostname | wc -l").trim(), "1");
}
