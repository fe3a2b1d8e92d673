//! Steps that resume from their checkpoints, with real programs that are really killed.

mod common;
#[path = "../../../bindings/c/tests/common/mod.rs"]
mod linked;
#[path = "../../../checkpoint/ranks/tests/common/ports.rs"]
mod ports;

use common::{Ran, Site, send, until};
use ports::free_port;
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};

/// A site whose step `add` runs the program with these arguments.
fn site(step: &str, arguments: &str) -> Site {
    let site = Site::new(&format!(
        "name = \"sums\"\n[data.result]\ndest = \"result\"\n[[step]]\nname = \"add\"\nrestart = \"phx\"\n\
         checkpoints = \"8 MiB\"\nout = [\"result\"]\nrun = \"add {arguments}\"\n{step}"
    ))
    .with(&["--nodes", "2"]);
    compile(&site.path("add"));
    site
}

/// Compiles the program against libtarn, which cargo has built as a dependency of these tests.
fn compile(to: &Path) {
    let flags = ["-std=c11", "-D_POSIX_C_SOURCE=200809L"];
    linked::output_of(&mut linked::compiler(
        "cc",
        &flags,
        &["../../apps/tarn/tests/restart.c"],
        to,
    ));
}

/// The output of the attempts of the newest run.
fn printed(site: &Site) -> Vec<String> {
    let mut runs: Vec<PathBuf> = fs::read_dir(site.path(".tarn/runs"))
        .expect("runs")
        .map(|e| e.expect("an entry").path())
        .collect();
    runs.sort();
    let steps = runs.last().expect("a run").join("steps");
    let attempt = |n: u32| fs::read_to_string(steps.join(format!("add-0.{n}.log"))).ok();
    (1..).map_while(attempt).collect()
}

/// The staged data of a site's runs in memory: failed runs leave it for `tarn resume`, and no test does.
struct Staged(PathBuf);

impl Drop for Staged {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn staged(site: &Site) -> Staged {
    let mut workspaces = fs::read_dir(site.path("tier")).expect("the tier");
    let found = workspaces.find_map(|e| {
        let name = e.expect("an entry").file_name();
        name.to_string_lossy().starts_with("sums-").then_some(name)
    });
    let user = rustix::process::geteuid().as_raw();
    let memory = PathBuf::from(format!("/dev/shm/tarn-phx-{user}"));
    Staged(memory.join(found.expect("a workspace")))
}

/// The first lines that the attempts of the newest run printed.
fn begun(site: &Site) -> Vec<String> {
    let first = |text: String| text.lines().next().unwrap_or_default().to_owned();
    printed(site).into_iter().map(first).collect()
}

#[test]
fn a_step_that_is_killed_goes_on_from_its_newest_version_until_it_is_done() {
    let site = site("", "kill 25 1 kill 47 2");
    let ran = site.run().exits(0);
    assert_eq!(site.read("result/sum"), "1830\n");
    assert_eq!(
        begun(&site),
        ["from step 0", "from step 20", "from step 40"]
    );
    let ran = ran.prints("add: restarted from version 1.2 (1st restart)");
    ran.prints("add: restarted from version 2.2 (2nd restart)");
    site.leaves_nothing_on_its_tier();
}

#[test]
fn attempts_that_come_no_further_use_up_the_retries() {
    let site = site("retries = 1\n", "kill 25 0");
    let tries = ["from step 0", "from step 20", "from step 20"];
    let ran = site.run().exits(1);
    assert_eq!(begun(&site), tries);
    ran.prints("restarted from version 1.2 (2nd restart; 1 of 1 retries used up)");
    let memory = staged(&site);
    assert!(memory.0.is_dir(), "they stay for `tarn resume`");
    site.tarn(&["resume"]).exits(1);
    assert_eq!(begun(&site)[3..], ["from step 20", "from step 20"]);
    // Another run begins again, and has the space.
    site.run().exits(1);
    assert_eq!(begun(&site), tries);
    let runs = fs::read_dir(&memory.0).expect("the workspace").count();
    assert_eq!(runs, 1);
    // Of a run of which the tier has nothing any more.
    let over = memory.0.join("sums-0");
    fs::create_dir_all(over.join("add-0")).expect("what an older run has staged");
    let kept = site.tarn(&["data", "rm", "--orphans"]).exits(0);
    let kept = kept.prints("checkpoints stay in");
    kept.prints(&memory.0.display().to_string());
    assert!(!site.left_on_tier().is_empty());
    assert!(!over.exists(), "no run goes on with it");
    assert_eq!(fs::read_dir(&memory.0).expect("the workspace").count(), 1);
}

#[test]
fn a_step_that_dies_before_its_first_version_fails_after_its_retries() {
    let site = site("retries = 2\n", "kill 5 0");
    site.run().exits(1).prints("signal 9 (kill");
    let _memory = staged(&site);
    assert_eq!(begun(&site), ["from step 0"; 3]);
}

#[test]
fn a_run_that_is_killed_and_resumed_goes_on_from_the_newest_version() {
    let site = site("", "kill 25 1 hang 47 2");
    let child = site.begin(&[]);
    until("it hangs", || site.path("hangs").exists());
    let status = site.tarn(&["status"]).exits(0);
    status.prints("restarted from version 1.2 (1st restart)");
    send(Signal::KILL, &child);
    Ran::end(child);
    let ran = site.tarn(&["resume"]).exits(0);
    assert_eq!(site.read("result/sum"), "1830\n");
    assert_eq!(
        begun(&site),
        ["from step 0", "from step 20", "from step 40"]
    );
    ran.prints("add: started again (2nd restart)");
    site.tarn(&["why", "add"])
        .exits(0)
        .prints("has its checkpoints");
    site.leaves_nothing_on_its_tier();
}

/// Of each version, each of the two nodes has one rank.
#[test]
fn a_step_of_several_nodes_goes_on_from_what_they_have_together() {
    let port = free_port();
    let key = "7".repeat(64);
    let site = Site::new(&format!(
        r#"
name = "sums"
[data.result]
dest = "result"
[[step]]
name = "add"
nodes = 2
restart = "phx"
out = ["result:single"]
run = """
export TARN_PHX_MEET=127.0.0.1:{port} TARN_PHX_KEY=hex:{key} RANKS=2
set -- $(cut -d' ' -f1 $TARN_HOSTFILE)
RANK=1 tarn exec $2 -- add > /dev/null 2>&1 &
code=0
RANK=0 add kill 25 1 || code=$?
wait
exit $code
"""
"#
    ))
    .with(&["--nodes", "2"]);
    compile(&site.path("add"));
    let ran = site.run().exits(0);
    assert_eq!(site.read("result/sum"), "1830\n");
    assert_eq!(begun(&site), ["from step 0", "from step 20"]);
    ran.prints("add: restarted from version 1.2 (1st restart)");
    site.leaves_nothing_on_its_tier();
}

/// A program with restart files of its own: its files at `$TARN_CHECKPOINTS` outlive its attempts, each of which counts.
#[test]
fn restart_files_outlive_attempts() {
    let site = Site::new(
        r#"
name = "files"
[data.result]
dest = "result"
[[step]]
name = "count"
restart = "files"
retries = 2
out = ["result"]
run = """
echo $TARN_ATTEMPT >> $TARN_CHECKPOINTS/attempts
test -z "${TARN_PHX_TIER:-}" || exit 9
test $TARN_ATTEMPT = 3 || exit 1
cp $TARN_CHECKPOINTS/attempts $TARN_result
"""
"#,
    );
    let ran = site.run().exits(0);
    assert_eq!(site.read("result/attempts"), "1\n2\n3\n");
    ran.prints("count: started again (2nd restart; 2 of 2 retries used up)");
    site.leaves_nothing_on_its_tier();
}
