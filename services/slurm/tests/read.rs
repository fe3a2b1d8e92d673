//! A snapshot is read by Slurm's programs; here by scripts in their place, in a process of its own for its PATH.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tarn_slurm::{SlurmSource, SnapshotLimits};

/// All of Slurm's programs at once: `$0` is the one that is played, `$RULE` what is to go wrong.
const PROGRAM: &str = r#"#!/bin/sh
name=${0##*/}
[ "$SLURM_TIME_FORMAT" = %s ] || { echo "times would be local" >&2; exit 7; }
[ -z "$SQUEUE_STATES$SINFO_PARTITION$SLURM_CLUSTERS" ] || { echo "filtered by the environment" >&2; exit 7; }
case "$RULE $name $*" in
    "no-columns squeue "*" -O "*) echo "squeue: error: no such field" >&2; exit 1 ;;
    "slow squeue "*) exec sleep 60 ;;
    "long sinfo "*) exec yes ;;
    *" squeue --json") echo '{"jobs": [{"job_id": 5, "job_state": "RUNNING"}]}' ;;
    *" sinfo --json") echo '{"nodes": []}' ;;
    *" scontrol show config") printf 'SLURM_VERSION = 22.05.8\nBOOT_TIME = 1764500000\n' ;;
    *" scontrol -a -o show partition") echo 'PartitionName=p Nodes=n[1-3] State=UP' ;;
    *" scontrol "*|*" squeue "*|*" sinfo "*) ;;
esac
"#;

fn limits() -> SnapshotLimits {
    let is_slow = std::env::var("RULE").is_ok_and(|rule| rule == "slow");
    SnapshotLimits {
        bytes: 100_000,
        time: Duration::from_secs(if is_slow { 1 } else { 20 }),
    }
}

/// A folder with the three programs.
fn programs(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    for program in ["squeue", "sinfo", "scontrol"] {
        let path = folder.join(program);
        std::fs::write(&path, PROGRAM).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

/// The output of [`reads_in_a_process_of_its_own`] under this rule.
fn read(rule: &str) -> String {
    let path = format!("{}:/usr/bin:/bin", programs(rule).display());
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "--nocapture",
            "reads_in_a_process_of_its_own",
        ])
        .env("PATH", path)
        .env("RULE", rule)
        .env("SQUEUE_STATES", "all")
        .env("SINFO_PARTITION", "q")
        .env("SLURM_CLUSTERS", "other")
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
#[ignore = "started by the others, with these programs in its PATH"]
fn reads_in_a_process_of_its_own() {
    match SlurmSource::choose(&limits()) {
        Ok((source, snapshot, bytes)) => println!(
            "read by {source:?}, {bytes} bytes: {} jobs, {} nodes of p, boot {:?}",
            snapshot.jobs.len(),
            snapshot.partitions["p"].nodes.len(),
            snapshot.settings.boot_time
        ),
        Err(error) => println!("error: {error}"),
    }
    if let Err(error) = SlurmSource::Fields.read(&limits()) {
        println!("fields: {error}");
    }
}

#[test]
fn the_environment_neither_filters_nor_changes_times() {
    let output = read("none");
    // One partition, release and start.
    let expected = "read by Fields, 85 bytes: 0 jobs, 3 nodes of p, boot Some(1764500000)";
    assert!(output.contains(expected), "{output}");
}

#[test]
fn where_columns_cannot_be_read_json_is() {
    let output = read("no-columns");
    assert!(output.contains("read by Json"), "{output}");
    assert!(output.contains("no such field"), "{output}");
}

#[test]
fn a_program_that_is_slow_or_writes_too_much_is_named() {
    let output = read("slow");
    assert!(
        output.contains("squeue") && output.contains("within 1s"),
        "{output}"
    );
    let output = read("long");
    let expected = "wrote more than 100000 bytes";
    assert!(
        output.contains("sinfo") && output.contains(expected),
        "{output}"
    );
}
