//! Partitions that steps get when they start: a real program over libtarn writes and reads them, and nothing is left behind.

mod common;
#[path = "../../../bindings/c/tests/common/mod.rs"]
mod linked;

use common::{Ran, Site, files, send, until};
use rustix::process::Signal;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

/// A site on whose steps' path the program `exported` is.
fn site(workflow: &str) -> Site {
    let site = Site::new(workflow);
    let flags = ["-std=c11", "-D_POSIX_C_SOURCE=200809L"];
    linked::output_of(&mut linked::compiler(
        "cc",
        &flags,
        &["../../apps/tarn/tests/exported.c"],
        &site.path("lent"),
    ));
    site
}

/// The output of an attempt of a step of the newest run.
fn printed(site: &Site, step: &str, attempt: u32) -> String {
    let mut runs: Vec<PathBuf> = fs::read_dir(site.path(".tarn/runs"))
        .expect("runs")
        .map(|e| e.expect("an entry").path())
        .collect();
    runs.sort();
    let log = format!("steps/{step}-0.{attempt}.log");
    let log = runs.last().expect("a run").join(log);
    fs::read_to_string(&log).unwrap_or_else(|e| panic!("{}: {e}", log.display()))
}

/// The partitions on the tier.
fn there(site: &Site) -> Vec<String> {
    let mut all = Vec::new();
    files(&site.path("tier"), &mut all);
    let names = all.iter().filter_map(|p| p.file_name()?.to_str());
    let names = names.filter_map(|n| n.strip_suffix(".partition"));
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    names
}

/// One step writes to a partition that the next one reads, and has one of its own beside it.
const SHARED: &str = r#"
name = "lent"
[partition.field]
size = "1 MiB"
keep = "workflow"
[partition.journal]
size = "40 KiB"
unit = "8 KiB"
[data.result]
dest = "result"
[[step]]
name = "write"
partitions = ["field", "journal"]
run = """
lent write $TARN_PARTITION_field 4096 hello && lent write $TARN_PARTITION_journal 100 own
lent read $TARN_PARTITION_journal 100 && lent add $TARN_PARTITION_field 0
"""
[[step]]
name = "read"
after = ["write"]
partitions = ["field", "journal"]
out = ["result"]
run = """
lent read $TARN_PARTITION_field 4096 > $TARN_result/field && lent add $TARN_PARTITION_field 0 >> $TARN_result/field
lent read $TARN_PARTITION_journal 100
"""
"#;

#[test]
fn what_one_step_writes_the_next_one_reads_and_each_has_its_own_beside_it() {
    let site = site(SHARED).with(&["--nodes", "3"]);
    site.run().exits(0);
    // Earlier additions are there too: 1 by the first step.
    assert_eq!(site.read("result/field"), "hello of 1048576 by 0\nwas 1\n");
    assert_eq!(
        printed(&site, "write", 1),
        "own of 40960 by 8192\nwas 0\n".to_owned()
    );
    assert_eq!(printed(&site, "read", 1), " of 40960 by 8192\n");
    let why = site.tarn(&["why", "read"]).exits(0);
    why.prints("has its partition field");
    site.leaves_nothing_on_its_tier();
    // Data in the partition is no input that tarn knows: both run again.
    site.run().exits(0).prints("write");
    assert_eq!(site.read("result/field"), "hello of 1048576 by 0\nwas 1\n");
    site.leaves_nothing_on_its_tier();
}

#[test]
fn of_several_nodes_each_has_its_own_or_all_have_one_block_by_block() {
    let site = site(
        r#"
name = "wide"
[partition.own]
size = "64 KiB"
[partition.all]
size = "64 KiB"
spread = "4 KiB"
unit = "512 B"
keep = "workflow"
[[step]]
name = "write"
nodes = 2
partitions = ["own", "all"]
run = """
export LENT_BLOCK=$TARN_BLOCK_all
for node in $(cut -d' ' -f1 $TARN_HOSTFILE); do
    tarn exec $node 'lent write $TARN_PARTITION_own 0 $TARN_NODE && lent read $TARN_PARTITION_own 0' || exit
done
lent write $TARN_PARTITION_all 4096 second && lent write $TARN_PARTITION_all 8192 third
lent read @step/all 4096 && lent read @step/own 0
lent read $(echo $TARN_PARTITION_all | cut -d, -f2) 0
lent read $(echo $TARN_PARTITION_all | cut -d, -f1) 4096
"""
[[step]]
name = "read"
nodes = 2
after = ["write"]
partitions = ["all"]
run = "LENT_BLOCK=$TARN_BLOCK_all lent read $TARN_PARTITION_all 4096"
"#,
    )
    .with(&["--nodes", "2"]);
    site.run().exits(0);
    let own = |node: &str| format!("{node} of 65536 by 0\n");
    let nodes = own("node0") + &own("node1") + "second of 65536 by 512\n" + &own("node0");
    let pieces = "second of 32768 by 512\nthird of 32768 by 512\n";
    assert_eq!(printed(&site, "write", 1), nodes + pieces);
    assert_eq!(printed(&site, "read", 1), "second of 65536 by 512\n");
    site.leaves_nothing_on_its_tier();
}

#[test]
fn what_does_not_fit_is_refused_or_waits_and_what_fills_the_tier_fails_with_the_reason() {
    let one = |size: &str, more: &str| {
        format!(
            "name = \"large\"\n[partition.field]\nsize = \"{size}\"\n{more}[[step]]\nname = \"a\"\nrun = \"true\"\n\
             partitions = [\"field\"]\n"
        )
    };
    Site::new(&one("63 MiB", ""))
        .run()
        .exits(4)
        .prints("takes 65.00 MiB on each node")
        .prints("there is space for 64.00 MiB");
    Site::new(&one("1 MiB", "tier = \"slow\"\n"))
        .run()
        .exits(4)
        .prints("wants tier `slow`, which no node has");
    // Together with its output.
    let site =
        Site::new(&(one("40 MiB", "") + "out = [\"made\"]\n[data.made]\nsize = \"40 MiB\"\n"));
    site.run()
        .exits(4)
        .prints("needs at least")
        .prints("no tier holds more than");
    // Two at once do not fit: one waits for the other.
    let two = "[[step]]\nname = \"b\"\nrun = \"true\"\npartitions = [\"field\"]\n";
    let site = Site::new(&(one("40 MiB", "") + two));
    site.run().exits(0);
    let log = site.log();
    let mut actions = log.iter().map(|record| record["actions"].to_string());
    assert!(
        actions.any(|text| text.contains("wait-for-room")),
        "{log:?}"
    );
    site.leaves_nothing_on_its_tier();
}

/// The disk below the tier is smaller than it seemed.
#[test]
fn a_partition_that_its_file_system_has_no_space_for_fails_its_step_and_says_so() {
    let mut site = Site::new(
        "name = \"full\"\n[partition.field]\nsize = \"20 MiB\"\n[[step]]\nname = \"steal\"\n\
         run = \"head -c 30000000 /dev/zero > $TARN_WORKFLOW_DIR/tier/stolen\"\n[[step]]\nname = \"a\"\nrun = \"true\"\n\
         after = [\"steal\"]\npartitions = [\"field\"]\n",
    );
    site.options[1] = format!("fast={}:30MiB", site.path("tier").display());
    let mount = format!(
        "mount -t tmpfs -o size=40m none '{}' || exit 99; exec \"$@\"",
        site.path("tier").display()
    );
    let mut command = std::process::Command::new("unshare");
    let tarn = env!("CARGO_BIN_EXE_tarn");
    command.args(["-Urm", "sh", "-c", &mount, "sh", tarn]);
    command
        .args(site.run_arguments())
        .current_dir(site.dir.path());
    let ran = Ran::of(command.env("NO_COLOR", "1").output().expect("unshare"));
    if ran.code == Some(99) || ran.err.starts_with("unshare:") {
        println!("SKIPPED: a tmpfs cannot be mounted in a namespace here");
        return;
    }
    ran.exits(1)
        .prints("its partition `field`: ")
        .prints("space");
    let log = site.log();
    let mut kinds = log.iter().map(|r| &r["ended"]["failure"]["kind"]);
    assert!(kinds.any(|kind| kind == "no-space"), "{log:?}");
}

#[test]
fn a_partition_of_the_workflow_outlives_attempts_and_runs_that_are_killed() {
    let site = site(
        r#"
name = "lives"
[partition.field]
size = "1 MiB"
keep = "workflow"
[partition.own]
size = "1 MiB"
[[step]]
name = "count"
retries = 2
partitions = ["field", "own"]
run = """
lent add $TARN_PARTITION_own 0; lent add $TARN_PARTITION_field 0
[ $TARN_ATTEMPT = 1 ] && exit 1
[ -e $TARN_WORKFLOW_DIR/go ] || { touch $TARN_WORKFLOW_DIR/hangs; sleep 600; }
"""
"#,
    );
    let child = site.begin(&[]);
    until("it hangs", || site.path("hangs").exists());
    assert_eq!(there(&site), ["field", "own"]);
    send(Signal::KILL, &child);
    Ran::end(child);
    site.write("go", "");
    site.tarn(&["resume"]).exits(0);
    let count = |n: u32| printed(&site, "count", n);
    assert_eq!(count(1), "was 0\nwas 0\n");
    assert_eq!(count(2), "was 0\nwas 1\n");
    assert_eq!(count(3), "was 0\nwas 2\n");
    site.leaves_nothing_on_its_tier();
}

#[test]
fn a_run_that_failed_keeps_it_for_resume_and_the_next_run_begins_anew() {
    let site = site(
        r#"
name = "fails"
[partition.field]
size = "1 MiB"
keep = "workflow"
[partition.own]
size = "1 MiB"
[[step]]
name = "fill"
partitions = ["field"]
run = "lent add $TARN_PARTITION_field 0"
[[step]]
name = "fail"
after = ["fill"]
partitions = ["field", "own"]
run = "lent add $TARN_PARTITION_field 0; exit 3"
"#,
    );
    site.run().exits(1);
    assert_eq!(there(&site), ["field"]);
    assert_eq!(printed(&site, "fail", 1), "was 1\n");
    site.tarn(&["resume"]).exits(1);
    assert_eq!(printed(&site, "fail", 2), "was 2\n");
    // Another run has a fresh one.
    site.run().exits(1);
    assert_eq!(there(&site), ["field"]);
    assert_eq!(printed(&site, "fail", 1), "was 1\n");
    // If somebody removes it behind tarn's back, tarn says what that means.
    let mut all = Vec::new();
    files(&site.path("tier"), &mut all);
    for path in all
        .iter()
        .filter(|p| p.extension().is_some_and(|e| e == "partition"))
    {
        fs::remove_file(path).expect("remove");
    }
    let ran = site.tarn(&["resume"]).exits(1);
    ran.prints("its partition `field` is not on node");
}

#[test]
fn nobody_else_can_open_it() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: becoming another user needs root");
        return;
    }
    let site = site(
        r#"
name = "mine"
[partition.field]
size = "1 MiB"
[[step]]
name = "a"
partitions = ["field"]
run = """
stat -Lc %a $TARN_PARTITION_field.partition
touch $TARN_WORKFLOW_DIR/runs; while [ ! -e $TARN_WORKFLOW_DIR/go ]; do sleep 0.05; done
"""
"#,
    );
    let child = site.begin(&[]);
    until("it runs", || site.path("runs").exists());
    let mut all = Vec::new();
    files(&site.path("tier"), &mut all);
    let path = all
        .iter()
        .find(|p| p.ends_with("field.partition"))
        .expect("it is there");
    let mut cat = std::process::Command::new("setpriv");
    cat.args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"]);
    let other = cat.arg(path).output().expect("setpriv");
    site.write("go", "");
    Ran::end(child).exits(0);
    assert!(!other.status.success() && other.stdout.is_empty());
    assert_eq!(printed(&site, "a", 1), "600\n");
    site.leaves_nothing_on_its_tier();
}

/// A crash before and after every append, action and wait, and again during recovery.
#[test]
fn every_crash_point_leaves_what_committed_steps_wrote_and_nothing_else() {
    let mut at = 1;
    loop {
        let site = site(SHARED);
        let mut command = site.command(&site.run_arguments());
        let ran = command.env("TARN_CRASH_AT", at.to_string()).output();
        let ran = ran.expect("tarn starts");
        if ran.status.signal() != Some(9) {
            assert!(
                ran.status.success(),
                "{}",
                String::from_utf8_lossy(&ran.stderr)
            );
            break;
        }
        if at % 2 == 0 {
            let mut again = site.command(&["resume"]);
            let again = again
                .env("TARN_CRASH_AT", (at / 3 + 1).to_string())
                .output();
            again.expect("tarn starts");
        }
        let resumed = site.tarn(&["resume"]);
        let ran = match resumed.code {
            Some(7) => site.run(),
            _ => resumed,
        };
        assert_eq!(ran.code, Some(0), "crash at {at}: {}", ran.err);
        let field = site.read("result/field");
        let (first, second) = field.split_once('\n').expect("two lines");
        assert_eq!(first, "hello of 1048576 by 0", "crash at {at}");
        // As often as attempts have added before: the data of failed attempts stays.
        let before: u32 = second
            .trim()
            .trim_start_matches("was ")
            .parse()
            .expect("a number");
        assert!((1..=3).contains(&before), "crash at {at}: {before}");
        assert!(there(&site).is_empty(), "crash at {at}: {:?}", there(&site));
        // Killed behind its last record, it has not taken down its folders.
        site.tarn(&["data", "rm", "--orphans"]).exits(0);
        let left = site.left_on_tier();
        assert!(left.is_empty(), "crash at {at}: {left:?}");
        at += 1;
    }
    assert!(at > 10, "only {at} points: the hooks are gone");
}
